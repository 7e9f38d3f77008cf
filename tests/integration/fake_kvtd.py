# SPDX-License-Identifier: Apache-2.0
"""A daemon that is none: answers on a socket as a test tells it, to see what clients make of it.

Messages are bytes made by field(): enough of protobuf for replies. No more is parsed of a request
than its id and which one it is.
"""
import os
import socket
import threading


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """One field: an int is a varint, str and bytes are length-delimited."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """The varint and length-delimited fields of a message, as (number, value)."""
    def number():
        nonlocal pos
        value = shift = 0
        while True:
            byte = data[pos]
            pos += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    pos = 0
    while pos < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        elif key & 7 == 1:
            yield key >> 3, data[pos:pos + 8]
            pos += 8
        else:
            size = number()
            yield key >> 3, data[pos:pos + size]
            pos += size


HELLO, LIST, STATUS = 16, 40, 41


def hello_reply(major=1):
    """The body of the reply to a hello."""
    return field(HELLO, field(1, major) + field(6, "kvtk1x") + field(7, bytes(16)) +
                 field(8, "fake") + field(9, "9.9.9"))


class FakeKvtd:
    """answer(what, body) gives a reply's fields but its id, or None for none at all."""

    def __init__(self, path, answer):
        self.answer = answer
        self.asked = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with conn:
                self.talk(conn)

    def talk(self, conn):
        while True:
            data, fds, _, _ = socket.recv_fds(conn, 65536, 8)
            for fd in fds:
                os.close(fd)
            if not data:
                return
            number, what, body = 0, 0, b""
            for key, value in fields(data):
                if key == 1:
                    number = value
                else:
                    what, body = key, value
            self.asked.append(what)
            reply = self.answer(what, body)
            if reply is None:
                continue
            pidfd = os.pidfd_open(os.getpid())
            socket.send_fds(conn, [field(1, field(1, number) + reply)],
                            [pidfd] if what == HELLO else [])
            os.close(pidfd)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)

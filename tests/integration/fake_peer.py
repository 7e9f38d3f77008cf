# SPDX-License-Identifier: Apache-2.0
"""A daemon that is none, on the peer port: proves itself rightly, then says what a test wants.

    with FakePeer(daemon) as p:          dials the daemon
    with FakeListener("node-x") as l:    is dialled; l.token(secret) names it, l.accept() is a FakePeer
    p.send("grant_open", open=1, ...)    a frame; p.frame("grant_opened") waits for one
    p.data(0)                            a proven data connection of it

With tls=, options of c/tlspipe (Key.options() of tls.py), the same over TLS.
"""
import base64
import hmac
import os
import select
import socket
import struct
import time

from test_peers import TOKEN, crc32c, port
from tls import Pipe
from wire import SLOW, SOURCE, Schema, readable, ready

PEER = Schema(SOURCE / "proto" / "peer.proto")
MAGIC = 0x3144564b
DATA_HELLO = struct.Struct("<IIIIQ32s")
DATA_HEADER = struct.Struct("<IBBHQQII")


def read_token(text):
    """The fields of a token."""
    body = text.split(".")[1]
    return TOKEN.decode("Token", base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))[:-4])


def make_token(**fields):
    raw = TOKEN.encode("Token", fields)
    raw += crc32c(raw).to_bytes(4, "little")
    return "kvt1." + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read_exactly(sock, n, deadline):
    out = b""
    while len(out) < n:
        wait = deadline - time.monotonic()
        assert wait > 0 and readable(sock, wait), "nothing comes"
        got = sock.recv(n - len(out))
        if not got:
            raise ConnectionError("the other side closed")
        out += got
    return out


class FakePeer:
    def __init__(self, daemon, node="node-x", sock=None, epoch=None, tls=None, source=None,
                 **hello):
        self.daemon, self.timeout = daemon, 10 * SLOW
        self.dialled = sock is None
        self.node, self.tls, self.pipe, self.sock = node, tls, None, None
        self.epoch = epoch or os.urandom(16)
        self.seq_in = self.seq_out = 0
        self.buffer, self.frames, self.pongs = b"", [], []
        self.conn_id, self.key = 0, b""
        mine = {"version_major": 1, "node": node, "epoch": self.epoch, "cluster": "default",
                "streams": 2}
        self.mine = {**mine, **hello}
        try:
            self.greet(mine, hello, sock, source)
        except Exception:
            self.close()
            raise

    def greet(self, mine, hello, sock, source):
        """Up to both Hellos."""
        if self.dialled:
            self.begin(socket.create_connection(("127.0.0.1", port(self.daemon)), self.timeout,
                                                (source, 0) if source else None))
            self.send("hello", **{**mine, "expect_node": self.daemon.name, **hello})
            self.hello = self.frame("hello")
            self.conn_id = self.hello["connection"]
            self.key = self.pipe.exported if self.tls else self.hello["data_key"]
        else:
            self.sock = sock
            assert read_exactly(sock, 8, time.monotonic() + self.timeout) == b"KVTCTRL1"
            self.begin(sock)
            self.hello = self.frame("hello")
            self.conn_id = 4711
            self.key = self.pipe.exported if self.tls else os.urandom(32)
            mine.update({"connection": self.conn_id} if self.tls else
                        {"connection": self.conn_id, "data_key": self.key})
            self.send("hello", **{**mine, **hello})

    def begin(self, sock):
        """What comes before frames."""
        self.sock = sock
        if self.dialled:
            sock.sendall(b"KVTCTRL1")
        if self.tls:
            self.pipe = Pipe(sock, "client" if self.dialled else "server", *self.tls)
            self.sock = self.pipe.sock
            if not self.pipe.ok:
                raise ConnectionError(self.pipe.line)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        for what in (self.pipe, self.sock):
            if what:
                what.close()

    def raw(self, data):
        """All of it; what comes meanwhile is kept, so that nobody waits for ever."""
        deadline = time.monotonic() + self.timeout
        self.sock.setblocking(False)
        while data:
            assert time.monotonic() < deadline, "the daemon does not read"
            events = ready(self.sock, select.POLLIN | select.POLLOUT, 0.1)
            if events & select.POLLIN:
                self._take()
            if events & ~select.POLLIN:
                data = data[self.sock.send(data):]
        if self.pongs:  # pings that came meanwhile: not in the middle of a frame
            self.send("pong", stamp_ns=self.pongs.pop(0))

    def send(self, kind, seq=None, **fields):
        self.seq_out += 1
        body = PEER.encode("Frame", {"seq": seq or self.seq_out, kind: fields})
        self.raw(struct.pack(">I", len(body)) + body)

    def _take(self):
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError(f"closed: {self.frames[-1:]}")
        self.buffer += data
        while len(self.buffer) >= 4:
            n = 4 + struct.unpack_from(">I", self.buffer)[0]
            if len(self.buffer) < n:
                break
            frame = PEER.decode("Frame", self.buffer[4:n])
            self.buffer = self.buffer[n:]
            self.seq_in += 1
            assert frame.pop("seq") == self.seq_in
            if "ping" in frame:
                self.pongs.append(frame["ping"].get("stamp_ns", 0))
            elif "pong" not in frame:
                self.frames.append(frame)

    def take(self):
        """What has come; pings are answered."""
        self._take()
        if self.pongs:
            self.send("pong", stamp_ns=self.pongs.pop(0))

    def pump(self, seconds=0):
        """Takes what is there."""
        deadline = time.monotonic() + seconds
        while readable(self.sock, deadline - time.monotonic()):
            self.take()

    def frame(self, kind, **fields):
        """The next one of that kind, with those fields; others stay."""
        deadline = time.monotonic() + self.timeout
        while True:
            for i, f in enumerate(self.frames):
                if kind in f and all(f[kind].get(k) == v for k, v in fields.items()):
                    return self.frames.pop(i)[kind]
            wait = deadline - time.monotonic()
            assert wait > 0 and readable(self.sock, wait), \
                f"no {kind} {fields}: {self.frames}"
            self.take()

    def ended(self):
        """The daemon closes; the last frames, Bye among them, are in frames."""
        deadline = time.monotonic() + self.timeout
        try:
            while readable(self.sock, deadline - time.monotonic()):
                self.take()
        except ConnectionError:
            return [f["bye"] for f in self.frames if "bye" in f]
        raise AssertionError("the daemon does not close")

    def alive(self):
        """The daemon answers on this connection."""
        self.send("token_query", query=999999, client=1, secret=bytes(16), epoch=bytes(16))
        self.frame("token_answer", query=999999)

    def open(self, token, handle=1, **fields):
        """GrantOpen for that token; the answer's status."""
        t = read_token(token)
        self.send("grant_open", open=handle, epoch=t["epoch"], client=t["client"],
                  secret=t["secret"], **fields)

    # ---- data connections, of the side that dialled

    @property
    def encrypted(self):
        """Whether data connections are: either side's word, over TLS."""
        return bool(self.tls and (self.mine.get("encrypt") or self.hello.get("encrypt")))

    def data_begin(self, stream=0, count=2, conn_id=None, version=1, preamble=b"KVTDATA1",
                   flags=None):
        """Up to the acceptor's nonce: socket, hello, nonce."""
        s = socket.create_connection(("127.0.0.1", port(self.daemon)), self.timeout)
        hello = DATA_HELLO.pack(version, stream, count,
                                self.encrypted if flags is None else flags,
                                self.conn_id if conn_id is None else conn_id, os.urandom(32))
        s.sendall(preamble + hello)
        try:
            return s, hello, read_exactly(s, 32, time.monotonic() + self.timeout)
        except ConnectionError:
            s.close()
            raise

    def proof(self, label, hello, nonce):
        return hmac.digest(self.key, label + hello + nonce, "sha256")

    def data_tls(self, s, hello, nonce, stream=0, role="client", more=()):
        """What follows the proofs where data is encrypted."""
        if not self.encrypted:
            return s
        key = self.proof(b"kvtd-data-psk", hello, nonce).hex()
        return DataPipe(s, role, f"psk={self.conn_id:016x}.{stream:x}:{key}", "alpn=kvtd/1",
                        *more)

    def data(self, stream=0, count=2):
        s, hello, nonce = self.data_begin(stream, count)
        s.sendall(self.proof(b"kvtd-data-dial", hello, nonce))
        proof = read_exactly(s, 32, time.monotonic() + self.timeout)
        assert proof == self.proof(b"kvtd-data-accept", hello, nonce)
        return self.data_tls(s, hello, nonce, stream)


class DataPipe(Pipe):
    """A data connection over TLS, used as its socket."""

    def __init__(self, *args):
        super().__init__(*args)
        if not self.ok:
            self.close()
            raise ConnectionError(self.line)

    def __getattr__(self, name):
        return getattr(self.sock, name)


def data_frame(xfer, pos, payload, opener=True, trailer=1, magic=MAGIC, kind=1, length=None):
    return DATA_HEADER.pack(magic, kind, opener, 0, xfer, pos,
                            len(payload) if length is None else length, 0) + payload + \
        bytes([trailer]) + bytes(7)


class FakeListener:
    def __init__(self, node="node-x"):
        self.node, self.epoch = node, os.urandom(16)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.settimeout(10 * SLOW)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def token(self, secret=bytes(16), client=1):
        return make_token(addresses=["127.0.0.1:%d" % self.sock.getsockname()[1]],
                          node=self.node, epoch=self.epoch, client=client, cluster="default",
                          secret=secret)

    def accept(self, daemon, **hello):
        """The control connection."""
        s, _ = self.sock.accept()
        s.setblocking(True)
        return FakePeer(daemon, self.node, s, self.epoch, **hello)

    def accept_data(self, peer):
        """A data connection, proven."""
        s, _ = self.sock.accept()
        deadline = time.monotonic() + peer.timeout
        assert read_exactly(s, 8, deadline) == b"KVTDATA1"
        hello, nonce = read_exactly(s, 56, deadline), os.urandom(32)
        s.sendall(nonce)
        assert read_exactly(s, 32, deadline) == peer.proof(b"kvtd-data-dial", hello, nonce)
        s.sendall(peer.proof(b"kvtd-data-accept", hello, nonce))
        return peer.data_tls(s, hello, nonce, DATA_HELLO.unpack(hello)[1], "server")



# SPDX-License-Identifier: Apache-2.0
"""The local protocol from the outside: proto/kvt.proto read at test time, and a client made of it.

Schema reads the .proto file itself, so that tests speak what is written there and not what the
daemon's code makes of it. encode() takes dicts, decode() gives dicts with every field that came.
"""
import fcntl
import os
import pathlib
import re
import select
import socket
import struct
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SLOW = 8 if os.environ.get("KVT_SANITIZE") else 1
# One for each run, also when it is several processes: seeds are in the names of tests.
FRESH_SEED = int(os.environ.get("KVT_SEED") or
                 os.environ.setdefault("KVT_FRESH_SEED", str(time.time_ns() & 0xffff)))
STATUS = {}
SCALARS = ("uint64", "uint32", "int32", "int64", "bool")


def ready(sock, events, seconds):
    """As select, but of any descriptor number."""
    p = select.poll()
    p.register(sock, events)
    got = p.poll(max(0, seconds) * 1000)
    return got[0][1] if got else 0


def readable(sock, seconds):
    return ready(sock, select.POLLIN, seconds)


def varint(n):
    out = bytearray()
    n &= (1 << 64) - 1
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def read_varint(data, pos):
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, pos


class Schema:
    def __init__(self, path):
        text = re.sub(r"//.*", "", path.read_text())
        self.messages = {}  # name -> {field name: (number, type, repeated)}
        self.enums = {}
        self._read(re.findall(r"[\w.]+|[{}=;]|\"[^\"]*\"", text))

    def _read(self, tokens):
        stack = []
        i = 0
        while i < len(tokens):
            t = tokens[i]
            if t in ("message", "enum", "oneof") and tokens[i + 2] == "{":
                stack.append((t, tokens[i + 1]))
                if t == "message":
                    self.messages.setdefault(tokens[i + 1], {})
                elif t == "enum":
                    self.enums[tokens[i + 1]] = {}
                i += 3
            elif t == "}":
                stack.pop()
                i += 1
            else:
                end = tokens.index(";", i)
                self._statement(stack, tokens[i:end])
                i = end + 1

    def _statement(self, stack, words):
        if not stack or words[0] == "reserved":
            return
        if stack[-1][0] == "enum":
            self.enums[stack[-1][1]][words[0]] = int(words[2])
            return
        repeated = words[0] == "repeated"
        kind, name, _, number = words[repeated:repeated + 4]
        message = [n for what, n in stack if what == "message"][-1]
        self.messages[message][name] = (int(number), kind, repeated)

    def encode(self, message, value):
        out = b""
        for name, v in value.items():
            number, kind, repeated = self.messages[message][name]
            if repeated and (kind in SCALARS):
                body = b"".join(varint(x) for x in v)
                out += varint(number << 3 | 2) + varint(len(body)) + body
            else:
                for x in v if repeated else [v]:
                    out += self._field(number, kind, x)
        return out

    def _field(self, number, kind, v):
        if kind == "fixed64":
            return varint(number << 3 | 1) + struct.pack("<Q", v)
        if kind in SCALARS or kind in self.enums:
            if isinstance(v, str):
                v = self.enums[kind][v]
            return varint(number << 3) + varint(int(v))
        if kind in self.messages:
            v = self.encode(kind, v)
        elif isinstance(v, str):
            v = v.encode()
        return varint(number << 3 | 2) + varint(len(v)) + v

    def decode(self, message, data):
        by_number = {n: (name, kind, rep) for name, (n, kind, rep) in
                     self.messages[message].items()}
        out = {}
        pos = 0
        while pos < len(data):
            key, pos = read_varint(data, pos)
            if key & 7 == 0:
                raw, pos = read_varint(data, pos)
            elif key & 7 == 1:
                raw, pos = struct.unpack_from("<Q", data, pos)[0], pos + 8
            else:
                size, pos = read_varint(data, pos)
                raw, pos = data[pos:pos + size], pos + size
            name, kind, repeated = by_number[key >> 3]
            if kind in self.messages:
                raw = self.decode(kind, raw)
            elif kind == "string":
                raw = raw.decode()
            if repeated:
                out.setdefault(name, []).append(raw)
            else:
                out[name] = raw
        return out


KVT = Schema(SOURCE / "proto" / "kvt.proto")
for _name, _number in re.findall(r"^\tKVT_([A-Z_]+) = (\d+),", (SOURCE / "client" / "kvt.h")
                                 .read_text(), re.M):
    STATUS.setdefault(int(_number), _name)


class Gone(Exception):
    """The daemon ended the connection; bye is what it said, or None."""

    def __init__(self, bye):
        super().__init__(f"connection ended, bye: {bye}")
        self.bye = bye


class Reply(dict):
    """A reply's fields; .status is the name, .text the text, .fds what came with it."""

    fds = ()

    @property
    def status(self):
        return STATUS[self.get("status", 0)]

    @property
    def text(self):
        return self.get("text", "")

    def __getattr__(self, name):
        return self[name]


def memfd(size, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, fill=True, flags=None):
    """A memfd as kvt_region_alloc makes them; the variations are what tests are about."""
    if flags is None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    fd = os.memfd_create("kvt-test", flags)
    os.ftruncate(fd, size)
    if fill:
        pos = 0
        while pos < size:
            pos += os.pwrite(fd, bytes(min(size - pos, 1 << 20)), pos)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Client:
    """A connection. Every wait has a deadline."""

    def __init__(self, path, hello=True, name="test", timeout=10, **fields):
        self.timeout = timeout * SLOW
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(str(path))
        self.next_id = 1
        self.replies = {}
        self.events = []
        self.bye = None
        if hello:
            r = self.hello(name=name, **fields)
            assert r.status == "OK", r
            self.id, self.key, self.ticket = r.hello["client"], r.hello["client_key"], \
                r.hello["ticket"]
            self.close_fds(r)

    def hello(self, fds=None, **fields):
        pidfd = os.pidfd_open(os.getpid())
        try:
            return self.ask("hello", fds=[pidfd] if fds is None else fds,
                            **{"version_major": 1, **fields})
        finally:
            os.close(pidfd)

    @staticmethod
    def close_fds(reply):
        for fd in reply.fds:
            os.close(fd)

    def raw(self, data, fds=()):
        """One datagram, whatever it is; waits for room."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                socket.send_fds(self.sock, [data], list(fds), socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                assert time.monotonic() < deadline, "the daemon does not read"
                ready(self.sock, select.POLLOUT, 0.1)

    def send(self, what, fds=(), rid=None, **fields):
        """A request; returns its id (rid 0: a reply only if it is refused)."""
        if rid is None:
            rid, self.next_id = self.next_id, self.next_id + 1
        kind = KVT.messages["Request"][what][1]
        body = KVT.encode(kind, fields)
        number = KVT.messages["Request"][what][0]
        self.raw(KVT.encode("Request", {"id": rid}) + varint(number << 3 | 2) +
                 varint(len(body)) + body, fds)
        return rid

    def receive(self, deadline):
        """One datagram, filed. False: none came in time."""
        wait = max(0, deadline - time.monotonic())
        if not readable(self.sock, wait):
            return False
        try:
            data, fds, flags, _ = socket.recv_fds(self.sock, 1 << 17, 16)
        except ConnectionError:
            data, fds, flags = b"", [], 0
        if not data:
            raise Gone(self.bye)
        assert not flags & socket.MSG_TRUNC
        m = KVT.decode("FromDaemon", data)
        assert not self.bye, f"a datagram after Bye: {m}"
        if "reply" in m:
            reply = Reply(m["reply"])
            reply.fds = fds
            self.replies.setdefault(reply.get("id", 0), []).append(reply)
        elif "event" in m:
            self.events.append(m["event"])
        elif "bye" in m:
            self.bye = Reply(m["bye"])
        return True

    def reply(self, id, timeout=None):
        deadline = time.monotonic() + (timeout or self.timeout)
        while not self.replies.get(id):
            assert self.receive(deadline), f"no reply to request {id}"
        return self.replies[id].pop(0)

    def ask(self, what, fds=(), **fields):
        return self.reply(self.send(what, fds, **fields))

    def event(self, kind, timeout=None):
        """The next event of a kind, as a dict; others stay."""
        deadline = time.monotonic() + (timeout or self.timeout)
        while True:
            for i, e in enumerate(self.events):
                if kind in e:
                    return Reply(self.events.pop(i)[kind])
            assert self.receive(deadline), f"no event {kind}"

    def quiet(self, seconds=0.2):
        """True if nothing comes for a while."""
        return not self.receive(time.monotonic() + seconds)

    def wait_end(self, timeout=None):
        """Reads until the daemon closes; returns Bye or None."""
        deadline = time.monotonic() + (timeout or self.timeout)
        try:
            while self.receive(deadline):
                pass
        except Gone as gone:
            return gone.bye
        raise AssertionError("the daemon does not close")

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ------------------------------------------------------------ objects

    def begin(self, region, size, access=7, **fields):
        return self.send("region_begin", region=region, length=size, access=access, **fields)

    def region(self, handle, size, access=7, fd=None, **fields):
        """Registers; returns the commit's reply. A given fd is the caller's."""
        mine = memfd(size) if fd is None else fd
        self.begin(handle, size, access, rid=0, **fields)
        self.send("region_fds", [mine], rid=0, region=handle, count=1)
        r = self.ask("region_commit", region=handle)
        if fd is None:
            os.close(mine)
        return r

    def cache(self, handle, region, blocks, size, planes=1, **fields):
        """planes x blocks x size, one after the other in the region."""
        return self.ask("cache_create", cache=handle, blocks=blocks, region=[region] * planes,
                        offset=[i * blocks * size for i in range(planes)],
                        stride=[size] * planes, bytes=[size] * planes, **fields)

    def grant(self, handle, cache, blocks, access="ACCESS_READ", **fields):
        return self.ask("grant_create", grant=handle, access=access,
                        parts=[{"cache": cache, "blocks": blocks}], **fields)

    def transfer(self, handle, op, token, cache=None, blocks=(), rid=0, part=None, **fields):
        """Starts one; its end is an event."""
        parts = [{"cache": cache, "blocks": list(blocks), **(part or {})}] if cache else []
        return self.send("transfer_start", rid=rid, transfer=handle, op=op, token=token,
                         parts=parts, **fields)

    def ended(self, handle, timeout=None):
        e = self.event("transfer_ended", timeout)
        assert e["transfer"] == handle, e
        return e

    def status(self):
        return self.ask("status").status_reply

    def rows(self, kind):
        """All rows of a kind, page by page."""
        out, after = [], 0
        field = {"CLIENT": "clients", "REGION": "regions", "CACHE": "caches", "GRANT": "grants",
                 "TRANSFER": "transfers", "PEER": "peers"}[kind]
        while True:
            r = self.ask("list", object=f"OBJECT_{kind}", after_id=after)
            assert r.status == "OK", r
            page = r.get("rows", {})
            out += page.get(field, [])
            if not page.get("more"):
                return out
            after = out[-1]["id"]

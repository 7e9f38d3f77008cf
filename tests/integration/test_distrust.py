# SPDX-License-Identifier: Apache-2.0
"""What strangers do to the peer port, with a key and without: half-open connections in masses, slow
and endless ones, frames too early and too large; and peers that claim to be who they are not. The
clients beside go on, the log stays readable, nothing is left."""
import contextlib
import os
import re
import select
import signal
import socket
import struct
import threading
import time

import pytest

from conftest import wait_until
from actors import actor  # noqa: F401
from busy import Busy
from fake_peer import PEER, FakePeer
from proxy import CONTROL, Proxy
from test_peers import Owner, ask, ended, peers, token_change, works
from tls import Key, Pipe, connect, keyed, tries  # noqa: F401
from wire import SLOW, readable, ready

QUICK = 'keepalive_interval = "50 ms"\nkeepalive_timeout = "%d ms"\n' % (400 * SLOW)
LINES = 40  # of one attack in the log, at most: ten in five seconds and what sums them up


@pytest.fixture(params=["clear", "key"])
def target(request, kvtd, keyed):
    """A daemon; d.tls is what gets in."""
    if request.param == "key":
        key = Key()
        d = keyed([key], peers=QUICK)
        d.key, d.tls = key, key.options()
    else:
        d = kvtd(config=f"peers {{\n{QUICK}\n}}\n")
        d.key, d.tls = None, None
    d.mode = request.param
    return d


def bounded(d, at, most=LINES):
    """The log since then is not flooded."""
    lines = d.log()[at:].splitlines()
    assert len(lines) <= most, (len(lines), lines[:20])
    return "\n".join(lines)


def at_rest(d):
    """No connection of anybody's is left."""
    wait_until("sockets as at start", lambda: d.fds()["inet"] == d.fds_at_start["inet"], 30)


def gets_in(d):
    """A right one is let in, once there is room for it."""
    def once():
        try:
            with FakePeer(d, "node-ok", tls=d.tls) as p:
                p.alive()
                return True
        except (ConnectionError, AssertionError, KeyError):
            return False
    wait_until("a peer gets in", once, 20)


def flood(d, begin, stop, sources=1):
    """New connections as fast as they are made, kept open; how many."""
    kept, n = [], 0
    try:
        while not stop.is_set():
            try:
                kept.append(connect(d, begin, f"127.0.1.{n % sources + 1}"))
            except OSError:
                pass
            n += 1
            if n % 50 == 0:
                time.sleep(0.01)
            if len(kept) > 1200:
                kept.pop(0).close()
    finally:
        for s in kept:
            s.close()
    return n


# ---------------------------------------------------------------- masses of connections

HALF = {"silent": b"", "preamble": b"KVTCTRL1", "data": b"KVTDATA1",
        "hello": b"KVTCTRL1\0\0\1\0", "tls": b"KVTCTRL1\x16\x03\x01\x02\x00\x01\x00\x01\xfc"}


@pytest.mark.parametrize("what", HALF)
def test_a_thousand_half_open(target, actor, what):
    """From one source: others' connections get in beside it; 5 s later nothing is left."""
    d = target
    at = len(d.log())
    with contextlib.ExitStack() as kept:
        with Busy(d, actor) as busy:
            for _ in range(1000):
                with contextlib.suppress(OSError):
                    kept.enter_context(connect(d, HALF[what], "127.0.1.1"))
            gets_in(d)  # from another source
            busy.check()
        assert d.fds()["all"] < d.fds_at_start["all"] + 200
        at_rest(d)
    log = bounded(d, at)
    want = {("clear", "tls"): "speaks TLS: this daemon has no cluster key",
            ("key", "hello"): "TLS is needed here"}.get((d.mode, what), "too many")
    assert re.search(want, log), log
    gets_in(d)


@pytest.mark.parametrize("what, sources", [("silent", 1), ("preamble", 1), ("preamble", 20),
                                           ("tls", 20), ("data", 20)])
def test_floods_beside_transfers(target, actor, what, sources):
    d = target
    at, n = len(d.log()), 0
    with Busy(d, actor) as busy:
        n = busy.compare(f"{what} from {sources}, {d.mode}",
                         lambda stop: flood(d, HALF[what], stop, sources))
    assert n > 100
    bounded(d, at)
    gets_in(d)
    at_rest(d)


def test_full_is_not_for_ever(target):
    """All places taken, from many sources: after 5 s a peer gets in."""
    d = target
    with contextlib.ExitStack() as kept:
        for i in range(400):
            kept.enter_context(connect(d, b"", f"127.0.1.{i % 50 + 1}"))
        wait_until("it is full", lambda: "too many" in d.log())
        gets_in(d)
        at_rest(d)


# ---------------------------------------------------------------- slow, large, early

def test_slow_hello(target, actor):
    """Byte by byte: in the end, within the time for it, it is a peer like any other; and one that
    is too slow is told."""
    d = target
    with Busy(d, actor) as busy:
        def drip(stop):
            n = 0
            while not stop.is_set():
                n += 1
                if d.tls:
                    with FakePeer(d, "node-slow", tls=[*d.tls, "drip=1"]) as p:
                        p.alive()
                else:
                    with connect(d) as s:
                        hello = PEER.encode("Frame", {"seq": 1, "hello": {
                            "version_major": 1, "node": "node-slow", "epoch": os.urandom(16),
                            "cluster": "default", "expect_node": d.name}})
                        for b in b"KVTCTRL1" + struct.pack(">I", len(hello)) + hello:
                            s.sendall(bytes([b]))
                            time.sleep(0.001)
                        assert readable(s, 5) and s.recv(4)
            return n
        n = busy.compare(f"slow hello, {d.mode}", drip)
        assert n


def test_too_slow(target):
    """Never ready: 5 s, not a second chance."""
    d = target
    start = time.monotonic()
    kept = []
    if d.tls:
        kept.append(Pipe.dial(d, *d.tls, "stop=100"))
        kept.append(Pipe.dial(d, *d.tls, "drip=300"))
    slow = connect(d, b"KVTCTRL1")
    done = threading.Event()

    def drip():
        try:
            for _ in range(200):
                slow.sendall(b"\0" if d.mode == "clear" else b"\x16")
                if done.wait(0.1):
                    return
        except OSError:
            pass
    t = threading.Thread(target=drip)
    t.start()
    s = connect(d, b"KVTC")
    ended(s)
    took = time.monotonic() - start
    assert 4 < took < 8 * SLOW, took
    at_rest(d)
    assert time.monotonic() - start < 10 * SLOW
    done.set()
    t.join()
    for p in kept:
        assert not p.ok, p.line
        p.close()
    for x in (slow, s):
        x.close()
    assert re.search(r"not proven: .*within 5000 ms|no hello|incomplete", d.log())


def test_large_hello(target):
    """4 KiB is the limit, one more is not read."""
    d = target

    def hello(size):
        body = {"version_major": 1, "node": "node-big", "epoch": os.urandom(16),
                "cluster": "default", "expect_node": d.name, "streams": 1}
        short = len(PEER.encode("Frame", {"seq": 1, "hello": {**body, "version": "x" * 200}}))
        body["version"] = "x" * (200 + size - short)
        return {**body, "version": body["version"][:len(body["version"]) - fit(body, size)]}

    def fit(body, size):
        return len(PEER.encode("Frame", {"seq": 1, "hello": body})) - size
    for size, good in ((4096, True), (4097, False)):
        fields = hello(size)
        assert len(PEER.encode("Frame", {"seq": 1, "hello": fields})) == size
        fields.pop("expect_node")
        if good:
            with FakePeer(d, tls=d.tls, **fields) as p:
                p.alive()
        else:
            with pytest.raises(ConnectionError, match="a frame of 4097 bytes"):
                FakePeer(d, tls=d.tls, **fields)
            d.says("a frame of 4097 bytes")
    at_rest(d)


def rss(d):
    with open(f"/proc/{d.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])


class Raw:
    """A connection to the peer port, with what proof there is and no Hello."""

    def __init__(self, d):
        self.pipe = Pipe.dial(d, *d.tls) if d.tls else None
        if self.pipe:
            assert self.pipe.ok, self.pipe.line
        self.sock = self.pipe.sock if d.tls else connect(d, b"KVTCTRL1")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        (self.pipe or self.sock).close()


def test_megabytes_before_the_hello(target, actor):
    """Of many at once: what was read is thrown away or never read."""
    d = target
    before = rss(d)
    data = struct.pack(">I", 4000) + bytes(100) + os.urandom(4 << 20)
    with Busy(d, actor) as busy:
        def push(stop):
            n = 0
            while not stop.is_set():
                many = [Raw(d) for _ in range(4)]
                for r in many:
                    r.sock.setblocking(False)
                    sent = 0
                    end = time.monotonic() + 2
                    try:
                        while sent < len(data) and time.monotonic() < end:
                            if ready(r.sock, select.POLLOUT, 0.05):
                                sent += r.sock.send(data[sent:sent + 65536])
                    except OSError:
                        pass
                    n += 1
                for r in many:
                    r.__exit__()
            return n
        assert busy.compare(f"megabytes before the hello, {d.mode}", push)
    at_rest(d)
    assert rss(d) - before < 100000 * (1 if SLOW == 1 else 4), (before, rss(d))
    assert "cannot be read" in d.log() or "broke the protocol" in d.log()


def test_endless_client_hellos(keyed, actor):
    """As large as TLS lets them be, and never complete, on all places that there are."""
    d = keyed([Key()], peers=QUICK)
    before = rss(d)
    size = 131000
    hello = b"\x01" + (size - 4).to_bytes(3, "big") + bytes(size - 5)
    data = b"KVTCTRL1" + b"".join(b"\x16\x03\x01" + struct.pack(">H", len(hello[i:i + 16384])) +
                                  hello[i:i + 16384] for i in range(0, len(hello), 16384))
    with contextlib.ExitStack() as kept, Busy(d, actor):
        for i in range(256):
            s = kept.enter_context(connect(d, source=f"127.0.1.{i % 8 + 1}"))
            s.settimeout(2)
            with contextlib.suppress(OSError):
                s.sendall(data)
        grown = rss(d) - before
        at_rest(d)
    print(f"grew by {grown} KiB")
    bound = 100 << 10 if SLOW == 1 else 400 << 10  # sanitizers keep what is freed
    assert grown < bound and rss(d) - before < bound


@pytest.mark.parametrize("kind, fields", [
    ("grant_open", {"open": 1, "secret": bytes(16), "epoch": bytes(16), "client": 1}),
    ("token_query", {"query": 1, "secret": bytes(16), "epoch": bytes(16)}),
    ("ping", {"stamp_ns": 1}), ("draining", {"on": True}), ("xfer_start", {"open": 1, "xfer": 1}),
])
def test_frames_before_the_hello(target, kind, fields):
    d = target
    with Raw(d) as r:
        body = PEER.encode("Frame", {"seq": 1, kind: fields})
        r.sock.sendall(struct.pack(">I", len(body)) + body)
        assert b"before its hello" in ended(r.sock)
    wait_until("it is in the log", lambda: "a frame before its hello" in d.log())
    assert peers(d) == []
    at_rest(d)


def test_a_thousand_that_prove_nothing(target):
    """The log has some of them and how many there were."""
    d = target
    at = len(d.log())
    if d.tls:
        tries(d, 1000, *Key().options(identity=d.key.fingerprint))
    else:
        for _ in range(1000):
            with connect(d, b"KVTCTRL1\0\0\0\0") as s:
                ended(s)
    bounded(d, at)
    wait_until("nothing is left", lambda: peers(d) == [])
    at_rest(d)

    def one_more():
        with connect(d, b"GET / HTTP/1.1\r\n\r\n") as s:
            ended(s)
        return "lines like the next one were left out" in d.log()[at:]
    wait_until("how many were left out", one_more, 20)  # after the window of the limit: 10 s


# ---------------------------------------------------------------- who they say they are

def test_our_own_id(target):
    d = target
    with pytest.raises(ConnectionError, match="two daemons are called node-a"):
        FakePeer(d, d.name, tls=d.tls)
    wait_until("it is said loudly", lambda: re.search(r"err: .*called node-a.*refused", d.log()))
    assert peers(d) == []


def test_another_is_expected(target):
    d = target
    with pytest.raises(ConnectionError, match="this is node-a, not node-z"):
        FakePeer(d, tls=d.tls, expect_node="node-z")
    wait_until("it is in the log", lambda: "not node-z" in d.log())
    assert peers(d) == []


def test_a_live_id(target):
    """Refused while the real one answers; takes over once that one is dead, whose opens end."""
    d = target
    with FakePeer(d, "node-x", tls=d.tls) as real:
        stop = threading.Event()

        def answer():
            try:
                while not stop.is_set():
                    real.pump(0.02)
            except (ConnectionError, OSError, ValueError):
                pass
        t = threading.Thread(target=answer)
        t.start()
        for _ in range(5):
            with pytest.raises(ConnectionError, match="another daemon called node-x"):
                FakePeer(d, "node-x", tls=d.tls)
        wait_until("it is in the log", lambda: "says to be it as well: refused" in d.log())
        assert peers(d) == ["node-x"]
        stop.set()
        t.join()
        real.alive()
        # it answers no more
        with FakePeer(d, "node-x", tls=d.tls) as second:
            second.alive()
            assert peers(d) == ["node-x"]
            with pytest.raises((ConnectionError, AssertionError)):
                real.alive()


def test_hello_bent_back(kvtd, keyed):
    """Whoever sits on the wire sends a daemon's own bytes back to it, or dials it with them."""
    key = Key()
    d = keyed([key], peers=QUICK + 'connect_timeout = "2 s"')
    proxy = Proxy()
    try:
        host, port = d.address.rsplit(":", 1)
        proxy.to = (host, int(port))
        with Owner(d) as owner, d.client() as c:
            away = token_change(owner.token, node="node-x", addresses=[proxy.address])
            r = ask(c, away)  # dialled to itself
            assert r.status == "PEER_UNREACHABLE", r
            assert re.search(r"node-a, this node itself|not node-x|node-a, not", r.text), r
            wait_until("it is said", lambda: "this is this daemon itself" in d.log())
            proxy.mirror = True
            proxy.cut()
            away = token_change(owner.token, node="node-y", addresses=[proxy.address])
            r = ask(c, away)
            assert r.status in ("PEER_UNREACHABLE", "PERMISSION"), r
            assert proxy.accepted >= 2
            assert works(c, owner.token)
        assert peers(d) == []
    finally:
        proxy.stop()

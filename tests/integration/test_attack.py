# SPDX-License-Identifier: Apache-2.0
"""Attacks: a hostile peer, hostile clients, and want of everything. After each the daemon lives,
others get their bytes, and nothing is left (conftest looks)."""
import hmac
import os
import random
import resource
import socket
import struct
import time

import pytest

from conftest import wait_until
from fake_peer import MAGIC, FakeListener, FakePeer, data_frame, read_token
from test_peers import ended
from test_raw_requests import BLOCK, MIB, Owner, words
from wire import FRESH_SEED, SLOW, STATUS, memfd

PULL = {"op": 1, "transport": "tcp", "chunk": 4096}
PUSH = {"op": 2, "transport": "tcp", "chunk": 4096}


def part(count, **more):
    return {"count": count, "plane_count": 1, "block_bytes": [BLOCK], **more}


class Pair:
    """Two honest clients beside the attack."""

    def __init__(self, a, b):
        self.o, self.r = Owner(a, name="good owner"), Owner(b, name="good reader")
        self.n, self.rng = 0, random.Random(7)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.o.close()
        self.r.close()

    def works(self):
        """A hand-over: every byte, and nothing beside them."""
        self.n += 1
        o, r, n = self.o, self.r, 4
        theirs, mine = self.rng.sample(range(256), n), self.rng.sample(range(256), n)
        data = [self.rng.randbytes(BLOCK) for _ in range(n)]
        want = bytearray(r.mem[:])
        for i in range(n):
            o.mem[theirs[i] * BLOCK:(theirs[i] + 1) * BLOCK] = data[i]
            want[mine[i] * BLOCK:(mine[i] + 1) * BLOCK] = data[i]
        token = o.grant(self.n, 1, theirs, ttl_ms=60000).grant_created["token"]
        r.transfer(self.n, "OP_PULL", token, 1, mine, final=True)
        e = r.ended(self.n)
        assert STATUS[e.get("status", 0)] == "OK", e
        assert r.mem[:] == want
        e = o.event("grant_ended")
        assert STATUS[e.get("status", 0)] == "OK" and e["grant"] == self.n, e


@pytest.fixture
def pair(two_daemons):
    with Pair(*two_daemons) as p:
        p.works()
        yield p


# ---------------------------------------------------------------- a hostile peer

def test_frames_about_nothing(daemon):
    """Of unknown handles, in every kind: ignored or answered, and the connection goes on."""
    with FakePeer(daemon) as p:
        for kind in ("grant_opened", "grant_close", "grant_revoke", "revoke_ack", "xfer_go",
                     "xfer_commit", "xfer_end", "xfer_abort", "token_answer", "draining", "pong"):
            p.send(kind)
            p.alive()
        p.send("xfer_start", open=9, xfer=9, parts=[part(1)], bytes=BLOCK, **PULL)
        assert STATUS[p.frame("xfer_end", xfer=9)["status"]] == "NOT_FOUND"
        p.send("grant_open", open=1, client=5, secret=bytes(16), epoch=p.hello["epoch"])
        assert STATUS[p.frame("grant_opened", open=1)["status"]] == "NOT_FOUND"
        p.send("grant_open", open=1, client=5, secret=bytes(16), epoch=bytes(16))
        assert STATUS[p.frame("grant_opened", open=1)["status"]] == "PEER_RESTARTED"


@pytest.mark.parametrize("kind, fields", [
    ("grant_open", {"open": 1, "secret": bytes(15), "epoch": bytes(16)}),
    ("grant_open", {"open": 1, "secret": bytes(16), "epoch": bytes(17)}),
    ("grant_open", {"secret": bytes(16), "epoch": bytes(16)}),
    ("token_query", {"query": 1, "secret": bytes(16), "epoch": b""}),
    ("xfer_start", {"open": 1}),
    ("xfer_start", {"open": 1, "xfer": 1, "op": 5}),
    ("xfer_start", {"open": 1, "xfer": 1, "op": 1, "parts": [{}] * 17}),
    ("xfer_start", {"open": 1, "xfer": 1, "op": 0, "parts": [{}]}),
    ("xfer_start", {"open": 1, "xfer": 1, "op": 1, "note": bytes(4097)}),
    ("xfer_start", {"open": 1, "xfer": 1, "op": 1, "priority": 3}),
    ("hello", {"version_major": 1}),
    ("ping", {"seq": 77}),
])
def test_violations(daemon, kind, fields):
    """What breaks the protocol ends the connection, with the reason, and no more than that."""
    with FakePeer(daemon) as other, FakePeer(daemon, "node-y") as p:
        p.send(kind, **fields)
        bye, = p.ended()
        assert bye["status"] and "broke the protocol" in bye["text"]
        other.alive()


def test_handles_twice(daemon):
    with Owner(daemon) as o:
        token = o.grant(1, 1, [1, 2], readers=9, ttl_ms=60000).grant_created["token"]
        with FakePeer(daemon) as p:
            p.open(token)
            p.open(token)
            assert "used twice" in p.ended()[0]["text"]
        assert STATUS[o.event("grant_attempt")["status"]] == "PEER_LOST"
        with FakePeer(daemon) as p:
            p.open(token)
            for _ in range(2):  # no data connection: it waits
                p.send("xfer_start", open=1, xfer=1, parts=[part(1)], bytes=BLOCK, **PULL)
            assert "used twice" in p.ended()[0]["text"]


def test_crowd(daemon):
    """So many transfers of one open wait that the daemon must not look at all of them for each."""
    with Owner(daemon) as o:
        token = o.grant(1, 1, [1], ttl_ms=600000).grant_created["token"]
        with FakePeer(daemon) as p:
            p.open(token)
            for xfer in range(1, 20001):  # no data connection: they wait
                p.send("xfer_start", open=1, xfer=xfer, parts=[part(1)], bytes=BLOCK, **PULL)
            p.alive()
            t = time.monotonic()
            p.send("xfer_abort", xfer=20000)
            p.frame("xfer_end", xfer=20000)
            p.alive()
            o.status()
            assert time.monotonic() - t < SLOW


@pytest.mark.parametrize("fields, status", [
    ({"parts": [part(2)]}, "INVALID"),  # bytes do not match
    ({"parts": [part(4)], "bytes": 4 * BLOCK}, "INVALID"),
    ({"parts": [part((1 << 64) - 1)]}, "INVALID"),
    ({"parts": [part(1 << 63, step=2)]}, "INVALID"),
    ({"parts": [part(1, first=(1 << 64) - 1)]}, "INVALID"),
    ({"parts": [part(0)], "bytes": 0}, "INVALID"),
    ({"parts": [part(1, grant_part=1)]}, "INVALID"),
    ({"parts": [part(1, plane_first=1)]}, "INVALID"),
    ({"parts": [part(1, plane_count=(1 << 32) - 1)]}, "INVALID"),
    ({"parts": [part(1, block_bytes=[])]}, "INVALID"),
    ({"parts": [part(1, block_bytes=[BLOCK] * 2)]}, "INVALID"),
    ({"parts": [part(1, block_bytes=[BLOCK // 2])], "bytes": BLOCK // 2}, "INVALID"),
    ({"parts": [part(1, slice_len=BLOCK + 1, slice_count=1)], "bytes": BLOCK + 1}, "INVALID"),
    ({"parts": [part(1, slice_len=1, slice_count=0)], "bytes": 0}, "INVALID"),
    ({"parts": [part(1, slice_len=1, slice_count=1 << 31, slice_stride=1 << 40)]}, "INVALID"),
    ({"parts": [part(1, slice_off=(1 << 64) - 1, slice_len=1, slice_count=1)], "bytes": 1},
     "INVALID"),
    ({"chunk": 0}, "INVALID"),
    ({"chunk": (1 << 64) - 1}, "INVALID"),
    ({"transport": ""}, "UNSUPPORTED"),
    ({"transport": "rdma"}, "UNSUPPORTED"),
    ({"transport": "local"}, "POLICY"),
    ({"op": 2}, "PERMISSION"),
])
def test_starts_that_are_refused(daemon, fields, status):
    with Owner(daemon) as o:
        token = o.grant(1, 1, [1, 2, 3], ttl_ms=60000).grant_created["token"]
        with FakePeer(daemon) as p, p.data(0):
            p.open(token)
            p.frame("grant_opened", open=1)
            p.send("xfer_start", **{"open": 1, "xfer": 1, "parts": [part(1)], "bytes": BLOCK,
                                    **PULL, **fields})
            e = p.frame("xfer_end", xfer=1)
            assert STATUS[e["status"]] == status and e["text"], e
            p.alive()


def test_commit_of_what_the_owner_moves(daemon):
    """XferCommit for a tcp transfer, before, while and after it moves: never an OK."""
    with Owner(daemon) as o:
        token = o.grant(1, 1, list(range(256)), access=2, ttl_ms=60000).grant_created["token"]
        with FakePeer(daemon) as p:
            p.open(token)
            p.send("xfer_start", open=1, xfer=1, parts=[part(1)], bytes=BLOCK, **PUSH)
            p.send("xfer_commit", xfer=1)
            assert STATUS[p.frame("xfer_end", xfer=1)["status"]] == "INVALID"
            with p.data(0):
                p.send("xfer_start", open=1, xfer=2, parts=[part(1)], bytes=BLOCK, final=True,
                       **PUSH)
                p.frame("xfer_go", xfer=2)
                p.send("xfer_commit", xfer=2)
                assert STATUS[p.frame("xfer_end", xfer=2)["status"]] == "INVALID"
                p.alive()
        assert STATUS[o.event("grant_ended")["status"]] == "PEER_LOST"
        assert not any(o.mem[:])


def test_data_connections(two_daemons, pair):
    """Wrong proofs, other people's names, frames that are none, cut ones: each costs itself."""
    daemon = two_daemons[0]
    with FakePeer(daemon) as p:
        for proof in (lambda t: bytes(32), lambda t: b"short",
                      lambda t: hmac.digest(bytes(32), b"kvtd-data-dial" + t, "sha256"),
                      lambda t: hmac.digest(p.key, b"kvtd-data-accept" + t, "sha256")):
            s, hello, nonce = p.data_begin()
            s.sendall(proof(hello + nonce))
            s.shutdown(socket.SHUT_WR)
            assert ended(s) == b""
            s.close()
        for hello in ({"conn_id": 1}, {"version": 2}, {"stream": 2, "count": 2}, {"count": 65},
                      {"count": 0}, {"stream": (1 << 32) - 1, "count": (1 << 32) - 1}):
            with pytest.raises(ConnectionError):
                p.data_begin(**hello)
        x = bytes(BLOCK)
        for data in (bytes(32), b"GET / HTTP/1.1\r\n\r\n" + x, data_frame(1, 0, x, length=0),
                     data_frame(1, 0, x, length=(64 << 20) + 1), data_frame(1, 0, x, trailer=7),
                     data_frame(1, 0, x, magic=1), data_frame(1, 0, x, kind=9)):
            with p.data(0) as s:
                s.sendall(data)
                assert ended(s) == b""
        for cut in (1, 31, 32, 33, 4000, 32 + BLOCK, 32 + BLOCK + 7, None):
            with p.data(0) as s:
                s.sendall(data_frame(77, 0, x)[:cut])
        many = [p.data(0) for _ in range(40)]  # each replaces the one before
        p.alive()
        for s in many:
            s.close()
        pair.works()


@pytest.mark.parametrize("data, text", [
    (data_frame(1, 0, bytes(BLOCK)) * 2, "came before"),
    (data_frame(1, 2 * BLOCK, bytes(BLOCK)), "position"),
    (data_frame(1, 1, bytes(BLOCK)), "position"),
    (data_frame(1, 1 << 63, bytes(BLOCK)), "position"),
    (data_frame(1, 0, bytes(BLOCK - 1)), "length"),
    (data_frame(1, 0, bytes(BLOCK + 1)), "length"),
])
def test_frames_that_do_not_belong(daemon, data, text):
    """Of a push that the owner knows: it ends, TRANSPORT, and with it nothing else."""
    with Owner(daemon) as o:
        token = o.grant(1, 1, [3, 4], access=2, ttl_ms=60000).grant_created["token"]
        with FakePeer(daemon) as p, p.data(0) as s:
            p.open(token)
            p.send("xfer_start", open=1, xfer=1, parts=[part(2)], bytes=2 * BLOCK, **PUSH)
            p.frame("xfer_go", xfer=1)
            s.sendall(data)
            e = p.frame("xfer_end", xfer=1)
            assert STATUS[e["status"]] == "TRANSPORT" and text in e["text"], e
            with p.data(0) as s2:  # and again, rightly
                p.send("xfer_start", open=1, xfer=2, parts=[part(2)], bytes=2 * BLOCK,
                       final=True, **PUSH)
                p.frame("xfer_go", xfer=2)
                s2.sendall(data_frame(2, 0, b"A" * BLOCK) + data_frame(2, BLOCK, b"B" * BLOCK))
                assert not p.frame("xfer_end", xfer=2).get("status")
        assert not o.event("grant_ended").get("status")
        assert o.mem[3 * BLOCK:5 * BLOCK] == b"A" * BLOCK + b"B" * BLOCK
        assert not any(o.mem[:3 * BLOCK]) and not any(o.mem[5 * BLOCK:])


def test_late_frames(daemon):
    """A push that is never complete: the grant expires, and what comes then goes nowhere."""
    with Owner(daemon) as o:
        token = o.grant(1, 1, [3, 4], access=2, ttl_ms=60000,
                        max_hold_ms=100).grant_created["token"]
        with FakePeer(daemon) as p, p.data(0) as s:
            p.open(token)
            p.send("xfer_start", open=1, xfer=1, parts=[part(2)], bytes=2 * BLOCK, **PUSH)
            p.frame("xfer_go", xfer=1)
            late = data_frame(1, BLOCK, b"E" * BLOCK)
            s.sendall(data_frame(1, 0, b"D" * BLOCK, trailer=2) + late[:100])
            assert STATUS[o.event("grant_ended")["status"]] == "EXPIRED"
            before = o.mem[:]
            s.sendall(late[100:] + data_frame(1, 0, b"F" * BLOCK))
            s.sendall(bytes(32))  # no header: closed once all before it was read
            assert ended(s) == b""
            assert o.mem[:] == before
            p.alive()


def test_pulls_that_nobody_reads(two_daemons, pair):
    """A peer that starts pulls and reads no byte: others go on, and a revoke ends at once."""
    o = pair.o
    with FakePeer(two_daemons[0]) as p, p.data(0) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        token = o.grant(1000, 1, list(range(256)), ttl_ms=60000).grant_created["token"]
        p.open(token)
        for x in range(1, 100):
            p.send("xfer_start", open=1, xfer=x, parts=[part(256)], bytes=MIB, **PULL)
        p.alive()
        pair.works()
        assert o.ask("grant_revoke", grant=1000).status == "OK"
        assert STATUS[o.event("grant_ended")["status"]] == "REVOKED"
        pair.works()


def random_frame(rng, tokens, opens, xfers, owner):
    """Mostly plausible."""
    big = rng.choice([0, 1, 3, 4096, (1 << 32) - 1, 1 << 63, (1 << 64) - 1])
    status = rng.choice([0, 0, 1, 8, 20, 23, 24, (1 << 32) - 1])
    text = rng.choice([b"", b"x", b"\xff\xfe", "ü".encode() * 40, b"%s%n\n"])
    o, x, t = rng.choice(opens), rng.choice(xfers), read_token(rng.choice(tokens))
    odd = rng.random() < 0.2
    n = rng.choice([1, 2, 3])
    start = {"open": o, "xfer": x, "op": rng.choice([1, 1, 2, 2, 0, 3, 4]), "bytes": n * BLOCK,
             "final": rng.random() < 0.2, "deadline_ms": rng.choice([0, 0, 1, 50, big]),
             "transport": "tcp", "chunk": 4096, "after": rng.choice([0, 0, 1]),
             "note": rng.choice([b"", b"n"]), "tag": text}
    if start["op"] in (1, 2):
        start["parts"] = [part(n)] if not odd else [part(
            big, first=rng.choice([0, big]), step=rng.choice([1, 2]),
            plane_first=rng.choice([0, 1]), slice_len=rng.choice([0, 1, 64]),
            slice_count=rng.choice([0, 1, 64]), slice_stride=rng.choice([0, 64, big]),
            layout=text)]
    of_opener = [
        ("grant_open", {"open": o, "epoch": t["epoch"], "client": t["client"], "tag": text,
                        "secret": bytes(16) if odd else t["secret"],
                        "open_wait_ms": rng.choice([0, 5, 50])}, 3),
        ("xfer_start", start, 6),
        ("xfer_commit", {"xfer": x}, 1),
        ("xfer_abort", {"xfer": x, "status": status, "text": text}, 1),
        ("grant_close", {"open": o, "status": status, "text": text, "reason": big & 3}, 1),
        ("token_query", {"query": o, "client": t["client"], "secret": t["secret"],
                         "epoch": t["epoch"]}, 1)]
    of_owner = [
        ("grant_opened", {"open": o, "status": status if odd else 0, "text": text,
                          "note": b"n" * 99, "access": big & 0xff}, 3),
        ("xfer_go", {"xfer": x, "key": big}, 3),
        ("xfer_end", {"xfer": x, "status": rng.choice([0, 20, status]), "text": text}, 3),
        ("grant_revoke", {"open": o, "status": status, "text": text}, 1),
        ("token_answer", {"query": o, "state": big & 7, "status": status}, 1)]
    mine, others = (of_owner, of_opener) if owner else (of_opener, of_owner)
    table = [(k, f, w * 4) for k, f, w in mine] + others + [("draining", {"on": odd}, 1)]
    kind, fields, _ = rng.choices(table, [w for _, _, w in table])[0]
    return kind, fields


def random_data(rng, xfers, opener):
    return data_frame(rng.choice(xfers), rng.choice([0, 0, 4096, 8192]), rng.randbytes(BLOCK),
                      opener=opener, trailer=rng.choice([1] * 9 + [2]),
                      magic=rng.choice([MAGIC] * 99 + [0]))


def push_some(s, data):
    try:
        try:
            s.recv(1 << 20)
        except BlockingIOError:
            pass
        s.send(data)
    except (BlockingIOError, ConnectionError):
        pass


FUZZ = "peers { redial_max = 20ms } transport { tcp_chunk = 4096 }"
SEEDS = [1, 2, FRESH_SEED]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_opener(kvtd, seed):
    """Proven, and then anything in any order against a victim's grants."""
    print(f"KVT_SEED={seed}")
    rng = random.Random(seed)
    a, b = kvtd(config=FUZZ), kvtd(config=FUZZ)
    with Pair(a, b) as pair, Owner(a, name="victim") as v:
        tokens, fresh = {}, 0

        def refill():
            nonlocal fresh
            while len(tokens) < 4:
                fresh += 1
                r = v.grant(fresh, 1, rng.sample(range(256), 3), rng.choice([1, 2]),
                            readers=rng.choice([1, 2, 64]), ttl_ms=rng.choice([20, 60000]),
                            max_hold_ms=rng.choice([30, 60000]), keep=rng.random() < 0.3)
                assert r.status == "OK", r
                tokens[fresh] = r.grant_created["token"]

        for _ in range(30):
            refill()
            p = FakePeer(a)
            streams = [p.data(i) for i in range(2)]
            for s in streams:
                s.setblocking(False)
            opens, xfers = [0], [0]
            try:
                for _ in range(rng.choice([20, 300])):
                    if rng.random() < 0.95:  # else one of old, which may be a violation
                        fresh += 1
                        opens, xfers = opens[-5:] + [fresh], xfers[-9:] + [fresh]
                    kind, fields = random_frame(rng, list(tokens.values()), opens, xfers, False)
                    if kind in ("grant_open", "xfer_start") and rng.random() < 0.98:
                        fields["open" if kind == "grant_open" else "xfer"] = fresh
                    p.send(kind, **fields)
                    if rng.random() < 0.3:
                        push_some(rng.choice(streams), random_data(rng, xfers, True))
                    if rng.random() < 0.02:
                        v.send("grant_revoke", rid=0, grant=rng.choice(list(tokens)))
                p.pump()
            except ConnectionError:
                pass
            for s in [p.sock, *streams]:
                s.close()
            while v.receive(0):
                pass
            for e in v.events:
                if "grant_ended" in e:
                    del tokens[e["grant_ended"]["grant"]]  # KeyError: twice
            v.events.clear()
            assert a.alive
        pair.works()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_owner(kvtd, seed):
    """The daemon dials it for its client's transfers, each of which ends once, whatever it says."""
    print(f"KVT_SEED={seed}")
    rng = random.Random(seed)
    a, b = kvtd(config=FUZZ), kvtd(config=FUZZ)
    with Pair(a, b) as pair, Owner(a, name="victim") as v, FakeListener() as l:
        tokens, live, fresh = [l.token(bytes([i]) * 16) for i in range(4)], set(), 0

        def start():
            nonlocal fresh
            fresh += 1
            live.add(fresh)
            op = rng.choice(["OP_PULL", "OP_PUSH", "OP_PULL", "OP_PUSH", "OP_CLAIM", "OP_DECLINE"])
            bare = op in ("OP_CLAIM", "OP_DECLINE")
            v.transfer(fresh, op, rng.choice(tokens), None if bare else 1,
                       rng.sample(range(256), 2), final=rng.random() < 0.3,
                       timeout_ms=rng.choice([0, 30, 3000]), open_wait_ms=rng.choice([0, 1000]))

        def take():
            while v.receive(0):
                pass
            for e in v.events:
                if "transfer_ended" in e:
                    live.remove(e["transfer_ended"]["transfer"])  # KeyError: twice
            v.events.clear()
            for r in v.replies.pop(0, []):
                assert r.status in ("QUOTA", "NOT_FOUND"), r
                live.discard(r.handle)

        l.sock.settimeout(0.2 * SLOW)
        for _ in range(20):
            start()
            streams = []
            try:
                p = l.accept(a, streams=2)
            except (AssertionError, TimeoutError, ConnectionError):
                continue  # a data connection of the life before, a dial that was given up; or its
                # control connection was used
            try:
                for _ in range(2):
                    streams.append(l.accept_data(p))
                    streams[-1].setblocking(False)
                for _ in range(rng.choice([20, 200])):
                    if rng.random() < 0.3:
                        start()
                    p.pump()
                    opens = [f["grant_open"]["open"] for f in p.frames if "grant_open" in f]
                    xfers = [f["xfer_start"]["xfer"] for f in p.frames if "xfer_start" in f]
                    opens, xfers = opens[-5:] or [1], xfers[-8:] or [1]
                    kind, fields = random_frame(rng, tokens, opens, xfers, True)
                    p.send(kind, **fields)
                    if rng.random() < 0.4:
                        push_some(rng.choice(streams), random_data(rng, xfers, False))
                    if live and rng.random() < 0.1:
                        v.send("transfer_cancel", rid=0, transfer=rng.choice(list(live)))
                    take()
            except (ConnectionError, TimeoutError, AssertionError):
                pass
            for s in [p.sock, *streams]:
                s.close()
            take()
            assert a.alive
        for x in list(live):
            v.send("transfer_cancel", rid=0, transfer=x)

        def over():
            take()
            return not live
        wait_until("all transfers have ended", over)
        pair.works()


# ---------------------------------------------------------------- hostile clients

def test_long_lists_do_not_stop_others(daemon):
    """Requests that each take long to read, back to back: others are answered in between."""
    n = 16 * MIB - 4096
    fd = os.memfd_create("list")
    os.ftruncate(fd, 4 * n)
    os.pwrite(fd, struct.pack("<I", 999), 4 * (n - 1))
    try:
        with Owner(daemon) as bad, Owner(daemon) as good:
            ask = {"grant": 1, "access": 1, "parts": [{"cache": 1, "list_blocks": n}]}
            start = time.monotonic()
            r = bad.ask("grant_create", [fd], **ask)
            one = time.monotonic() - start
            assert r.status == "INVALID" and "999" in r.text, r
            for _ in range(20):
                bad.send("grant_create", [fd], rid=0, **ask)
            start = time.monotonic()
            good.status()
            assert time.monotonic() - start < 8 * one + 0.1, "it waited for all of them"
    finally:
        os.close(fd)


@pytest.mark.parametrize("op", ["OP_PULL", "OP_PUSH"])
@pytest.mark.parametrize("far", [False, True])
def test_reader_dies_at_the_commit(kvtd, op, far):
    """Its bytes are moved, the word is awaited: the owner hears CLIENT_DIED, once, and not of an
    attempt."""
    a = kvtd("--fault", "delay-commit=60000")
    b = kvtd() if far else a
    with Owner(a) as o:
        r = Owner(b)
        token = o.grant(1, 1, [1], 1 if op == "OP_PULL" else 2,
                        ttl_ms=60000).grant_created["token"]
        r.transfer(1, op, token, 1, [5], final=True)
        wait_until("it is moved", lambda: any(t["state"] == "moved" for t in
                                              a.rows("TRANSFER")))
        r.close()
        assert STATUS[o.event("grant_ended")["status"]] == "CLIENT_DIED"
        assert not o.events


# ---------------------------------------------------------------- want

def test_no_fds_left(daemon):
    """What came with fds is refused by its name: nobody waits for an answer for ever."""
    with Owner(daemon) as o:
        token = o.grant(1, 1, [1], ttl_ms=60000).grant_created["token"]
        hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[1]
        used = max(int(fd) for fd in os.listdir(f"/proc/{daemon.pid}/fd")) + 1
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used, hard))
        free = used - daemon.fds()["all"]
        hogs = [daemon.admin(hello=False) for _ in range(free)]  # clients may not have the last
        wait_until("no fd is left", lambda: daemon.fds()["all"] == used)
        fd, region = words(1, 2), memfd(MIB)
        parts = [{"cache": 1, "list_blocks": 2}]
        r = o.ask("grant_create", [fd], grant=7, access=1, parts=parts)
        assert r.status == "QUOTA" and "file descriptors" in r.text and r.handle == 7, r
        o.send("transfer_start", [fd], rid=0, transfer=8, op="OP_PULL", token=token, parts=parts)
        r = o.reply(0)
        assert r.status == "QUOTA" and r.handle == 8, r
        r = o.region(9, MIB, fd=region)
        assert r.status == "QUOTA" and "file descriptors" in r.text, r
        for c in hogs:
            c.close()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert o.region(9, MIB, fd=region).status == "OK"
        os.close(fd)
        os.close(region)


def test_any_local_chunk(kvtd):
    """What --check-config takes works."""
    d = kvtd(config="transport { local_chunk = 64MiB }")
    with Pair(d, d) as pair:
        pair.works()


# ---------------------------------------------------------------- more than one end

@pytest.mark.parametrize("ops", [("PULL", "PULL"), ("PULL", "RELEASE"), ("PULL", "DECLINE"),
                                 ("DECLINE", "PULL"), ("PULL", "PULL", "PULL")])
@pytest.mark.parametrize("far", [False, True])
def test_finals_behind_one_another(kvtd, ops, far):
    """All under one token, at once, behind a pull that takes its time: the first final counts, the
    others are refused, nobody waits for the other for ever."""
    d = "delay-chunk=100"
    a = kvtd("--fault", d)
    b = kvtd("--fault", d) if far else a
    with Owner(a) as o, Owner(b) as r:
        token = o.grant(1, 1, list(range(64)), ttl_ms=600000).grant_created["token"]
        r.transfer(10, "OP_PULL", token, 1, range(64))
        for i, op in enumerate(ops):
            bare = op != "PULL"
            r.transfer(11 + i, f"OP_{op}", token, None if bare else 1, range(64), final=not bare)
        ends = {}
        for _ in range(len(ops) + 1):
            e = r.event("transfer_ended")
            ends[e["transfer"]] = STATUS[e.get("status", 0)]
        assert ends.pop(10) == "OK" and ends.pop(11) == "OK", ends
        assert set(ends.values()) <= {"NOT_FOUND", "DECLINED"}, ends
        want = "DECLINED" if ops[0] == "DECLINE" else "OK"
        assert STATUS[o.event("grant_ended").get("status", 0)] == want

# SPDX-License-Identifier: Apache-2.0
"""Grants and transfers as raw messages: what is refused and how, lists in memfds, events that
nobody reads, and mutations of everything. What a hand-over does with bytes is tested elsewhere."""
import mmap
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from conftest import wait_until
from wire import FRESH_SEED, KVT, SLOW, STATUS, Client, Gone, Reply, memfd, varint

MIB = 1 << 20
BLOCK = 4096


class Owner(Client):
    """A client with region 1 of 256 blocks and cache 1 over it; its memory is mem."""

    def __init__(self, daemon, planes=1, **kw):
        super().__init__(daemon.client_socket, **kw)
        self.fd = memfd(MIB)
        self.mem = mmap.mmap(self.fd, MIB)
        assert self.region(1, MIB, fd=self.fd).status == "OK"
        assert self.cache(1, 1, 256 // planes, BLOCK, planes=planes).status == "OK"

    def close(self):
        super().close()
        self.mem.close()
        os.close(self.fd)


@pytest.fixture
def o(daemon):
    with Owner(daemon, name="owner") as owner:
        yield owner


@pytest.fixture
def r(daemon):
    with Owner(daemon, name="reader") as reader:
        yield reader


def words(*numbers):
    """A list memfd."""
    fd = os.memfd_create("list", os.MFD_CLOEXEC)
    os.write(fd, struct.pack(f"<{len(numbers)}I", *numbers))
    return fd


GOOD = {"grant": 1, "access": "ACCESS_READ", "parts": [{"cache": 1, "blocks": [1, 2, 3]}]}


@pytest.mark.parametrize("fields, status", [
    ({"grant": 0}, "INVALID"),
    ({"access": 0}, "INVALID"),
    ({"access": 3}, "INVALID"),
    ({"access": 77}, "INVALID"),
    ({"parts": []}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1]}] * 17}, "INVALID"),
    ({"parts": [{"cache": 9, "blocks": [1]}]}, "NOT_FOUND"),
    ({"parts": [{"cache": 1}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [256]}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [0xffffffff]}]}, "INVALID"),
    ({"access": 2, "parts": [{"cache": 1, "blocks": [5, 6, 5]}]}, "INVALID"),
    ({"secret": b"short"}, "INVALID"),
    ({"secret": bytes(17)}, "INVALID"),
    ({"readers": 65}, "INVALID"),
    ({"note": bytes(4097)}, "INVALID"),
    ({"tag": b"\xff"}, "INVALID"),
    ({"tag": "x" * 65}, "INVALID"),
    ({"parts": [{"cache": 1, "list_blocks": 3}]}, "INVALID"),  # no memfd
    ({"parts": [{"cache": 1, "blocks": [1], "list_blocks": 3}]}, "INVALID"),
    ({"parts": [{"cache": 1, "list_blocks": (1 << 64) - 1}]}, "INVALID"),
])
def test_grant_refused(o, fields, status):
    m = {**GOOD, **fields}
    r = o.ask("grant_create", **m)
    assert r.status == status and r.text, r
    assert r.get("handle", 0) == m["grant"]
    assert o.rows("GRANT") == []
    assert o.ask("grant_create", **GOOD).status == "OK"
    assert o.ask("grant_create", **GOOD).status == "EXISTS"
    assert o.ask("grant_revoke", grant=1).status == "OK"
    assert STATUS[o.event("grant_ended")["status"]] == "REVOKED"


def test_grant_lists(o):
    """Lists in a memfd: exactly what is announced, of the right kind, read once."""
    def ask(fds, *counts, grant=1):
        return o.ask("grant_create", fds, grant=grant, access="ACCESS_READ",
                     parts=[{"cache": 1, "list_blocks": n} for n in counts])

    good = words(1, 2, 3, 4, 5)
    r_, w = os.pipe()
    os.write(w, bytes(20))
    file = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.write(file, bytes(16))
    try:
        for fds, counts in (([good], [4]), ([good], [6]), ([good], [2, 2]), ([good], []),
                            ([good, good], [5]), ([r_], [5]), ([file], [5]), ([], [5]),
                            ([good], [0]), ([good], [1 << 62]), ([good], [(1 << 64) - 5, 10])):
            assert ask(fds, *counts).status == "INVALID", (fds, counts)
        far = words(1, 2, 300)
        reply = ask([far], 3)
        assert reply.status == "INVALID" and "300" in reply.text and "256" in reply.text
        os.close(far)
        assert ask([good], 2, 3).status == "OK"
        row, = o.rows("GRANT")
        assert row["blocks"] == 5 and row["bytes"] == 5 * BLOCK
        assert o.rows("CLIENT")[0]["list_bytes"] > 0
    finally:
        for fd in (good, r_, w, file):
            os.close(fd)


def test_list_changed_after_it_was_sent(o, r):
    """What the client does with its list memfd once there is an answer has no effect."""
    for b in range(256):
        o.mem[b * BLOCK:(b + 1) * BLOCK] = bytes([b]) * BLOCK
    mine = words(*range(10, 20))
    reply = o.ask("grant_create", [mine], grant=1, access="ACCESS_READ",
                  parts=[{"cache": 1, "list_blocks": 10}])
    assert reply.status == "OK"
    os.pwrite(mine, struct.pack("<10I", *[0xffffffff] * 10), 0)
    token = reply.grant_created["token"]
    theirs = words(*range(100, 110))
    r.send("transfer_start", [theirs], rid=0, transfer=1, op="OP_PULL", token=token, final=True,
           parts=[{"cache": 1, "list_blocks": 10}])
    os.ftruncate(theirs, 0)  # too late, or just in time to be refused: never a wrong byte
    if refusal(r)[0] == "OK":
        assert r.mem[100 * BLOCK:110 * BLOCK] == b"".join(bytes([b]) * BLOCK
                                                          for b in range(10, 20))
    else:
        assert not any(r.mem[:])
    assert r.mem[:100 * BLOCK] == bytes(100 * BLOCK)
    assert r.mem[110 * BLOCK:] == bytes(MIB - 110 * BLOCK)
    os.close(mine)
    os.close(theirs)


def refusal(client, timeout=10):
    """How a TransferStart with id 0 ended: (status, text), by a reply or by an event."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        if client.replies.get(0):
            reply = client.replies[0].pop(0)
            return reply.status, reply.text
        for i, e in enumerate(client.events):
            if "transfer_ended" in e:
                end = client.events.pop(i)["transfer_ended"]
                return STATUS[end.get("status", 0)], end.get("text", "")
        assert client.receive(deadline), "no end of the transfer"


@pytest.mark.parametrize("fields, statuses", [
    ({"transfer": 0}, "INVALID"),
    ({"op": 77}, "INVALID"),
    ({"token": ""}, "INVALID"),
    ({"token": "kvt1."}, "INVALID"),
    ({"token": "x" * 60000}, "INVALID"),
    ({"token": b"\xff\xff"}, "INVALID"),
    ({"tag": b"\xff"}, "INVALID"),
    ({"note": bytes(4097)}, "INVALID"),
    ({"priority": 3}, "INVALID"),
    ({"require": "rdma"}, "UNSUPPORTED POLICY INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1]}] * 17}, "INVALID"),
    ({"parts": [{"cache": 5, "blocks": [1, 2, 3]}]}, "NOT_FOUND"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 256]}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 1, 2]}]}, "INVALID"),  # a pull writes them
    ({"parts": [{"cache": 1, "list_blocks": 3}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "grant_part": 1}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "first": 1}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "first": (1 << 64) - 1}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "far_step": 2}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "far_step": 1 << 63}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "plane_first": 1}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "plane_count": 2}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "far_plane_first": 1}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3], "plane_first": 0xffffffff,
                 "plane_count": 0xffffffff}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3],
                 "slice": {"len": 4097, "count": 1}}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3],
                 "slice": {"len": 64, "count": 0}}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3],
                 "slice": {"len": 64, "count": 2, "src_off": 4000, "src_stride": 64,
                           "dst_stride": 64}}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3],
                 "slice": {"len": 64, "count": 2, "dst_off": (1 << 64) - 64, "src_stride": 64,
                           "dst_stride": 64}}]}, "INVALID"),
    ({"parts": [{"cache": 1, "blocks": [1, 2, 3],
                 "slice": {"len": 64, "count": 0xffffffff, "src_stride": 1 << 40,
                           "dst_stride": 1 << 40}}]}, "INVALID"),
])
def test_transfer_refused(o, r, fields, statuses):
    token = o.ask("grant_create", **GOOD, ttl_ms=60000, keep=True).grant_created["token"]
    m = {"transfer": 1, "op": "OP_PULL", "token": token,
         "parts": [{"cache": 1, "blocks": [7, 8, 9]}], **fields}
    r.send("transfer_start", rid=0, **m)
    status, text = refusal(r)
    assert status in statuses.split() and text, (status, text)
    assert not any(r.mem[:])
    # the grant is as good as before
    o.mem[BLOCK:2 * BLOCK] = b"k" * BLOCK
    r.transfer(2, "OP_PULL", token, 1, [7, 8, 9], final=True)
    e = r.ended(2)
    assert STATUS[e.get("status", 0)] == "OK", e
    assert r.mem[7 * BLOCK:8 * BLOCK] == b"k" * BLOCK and not any(r.mem[8 * BLOCK:])
    while STATUS[o.event("grant_ended").get("status", 0)] != "OK":
        pass


def test_handles_in_use(o, r):
    token = o.ask("grant_create", **GOOD, ttl_ms=60000).grant_created["token"]
    r.transfer(1, "OP_CLAIM", token)
    assert STATUS[r.ended(1).get("status", 0)] == "OK"
    for op in ("OP_RELEASE",):
        r.transfer(1, op, token, final=True)  # the handle is free again once its end was read
        assert STATUS[r.ended(1).get("status", 0)] == "OK"
    assert STATUS[o.event("grant_ended").get("status", 0)] == "OK"
    for what, field in (("grant_extend", "grant"), ("grant_revoke", "grant")):
        assert o.ask(what, **{field: 77}).status == "NOT_FOUND"
    assert o.ask("transfer_cancel", transfer=77).status == "NOT_FOUND"


def test_client_that_never_reads_events(kvtd):
    """Terminal events wait in their objects, against the quota; when it reads, all are there."""
    d = kvtd(config="limits { grants = 50 }\n")
    with Owner(d) as c:
        made, refused_at = 0, None
        # grants that end at once; their events are not read, and the socket takes few
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        for i in range(1, 3000):
            c.send("grant_create", rid=0, **{**GOOD, "grant": i, "ttl_ms": 1, "tag": "x" * 64})
            made = i
        # the connection is in step and every grant has either a refusal or an end
        ends = set()
        deadline = time.monotonic() + 30 * SLOW
        refused = set()
        while len(ends) + len(refused) < made:
            assert c.receive(deadline), (len(ends), len(refused), made)
            for reply in c.replies.pop(0, []):
                assert reply.status == "QUOTA" and "50 of 50 grants" in reply.text, reply
                assert reply.handle not in refused
                refused.add(reply.handle)
            while c.events:
                e = Reply(c.events.pop()["grant_ended"])
                assert STATUS[e["status"]] == "EXPIRED" and e["grant"] not in ends
                ends.add(e["grant"])
        assert ends and not ends & refused
        assert c.quiet()


def test_release_while_in_flight(kvtd):
    """Asked for twice while a transfer is being fenced: both hear of the end, after it."""
    d = kvtd("--fault", "delay-chunk=50", config="transport { local_chunk = 16KiB }")
    with Owner(d) as o, Owner(d) as r:
        o.mem[:] = b"s" * MIB
        token = o.grant(1, 1, range(256), ttl_ms=60000).grant_created["token"]
        r.transfer(1, "OP_PULL", token, 1, range(256), final=True)
        wait_until("some of it is there", lambda: r.mem[0] == ord("s"))
        a, b = r.send("region_release", region=1), r.send("region_release", region=1)
        late = r.send("cache_create", cache=5, blocks=1, region=[1], offset=[0], stride=[1],
                      bytes=[1])
        assert r.reply(a).status == "OK"
        seen = r.mem[:]  # nothing touches it from here on
        assert r.reply(b).status == "OK"
        assert r.reply(late).status in ("BUSY", "NOT_FOUND")
        e = next(e["transfer_ended"] for e in r.events if "transfer_ended" in e)
        assert STATUS[e["status"]] == "CANCELED", e
        assert 0 < seen.count(b"s") < MIB
        r.mem[:] = b"r" * MIB
        # the owner's grant goes on or ends; either way its memory can be released now
        assert o.ask("region_release", region=1).status == "OK"
        assert r.mem[:] == b"r" * MIB
        assert r.rows("REGION") == [] and r.rows("CACHE") == []


CHILD = r"""
import os, sys, time
sys.path.insert(0, sys.argv[1])
from wire import STATUS
from test_raw_requests import Owner, GOOD
class D: client_socket = sys.argv[2]
c = Owner(D, planes=4)
state, token = sys.argv[3], sys.argv[4]
if state == "claim":
    c.transfer(1, "OP_CLAIM", token)
    assert STATUS[c.ended(1).get("status", 0)] == "OK"
elif state == "parked":
    c.transfer(1, "OP_CLAIM", token, open_wait_ms=60000)
elif state == "pull":
    c.transfer(1, "OP_PULL", token, 1, range(64), final=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["claim", "parked", "pull"])
@pytest.mark.parametrize("far", [False, True])
def test_kill_of_a_reader(kvtd, state, far):
    """kill -9 of an opener: the owner hears of it, all is released on both sides."""
    slow = ["--fault", "delay-chunk=100"] if state == "pull" else []
    config = "transport { local_chunk = 16KiB tcp_chunk = 16KiB }"
    a = kvtd(*slow, config=config)
    b = kvtd(*slow, config=config) if far else a
    with Owner(a, planes=4) as o:
        token = o.ask("grant_create", grant=1, access="ACCESS_READ", ttl_ms=60000,
                      parts=[{"cache": 1, "blocks": list(range(64))}]).grant_created["token"]
        if state == "parked":
            unknown = o.ask("grant_create", grant=2, access="ACCESS_READ", ttl_ms=60000,
                            parts=[{"cache": 1, "blocks": [1]}]).grant_created["token"]
            other = Owner(a)
            token = other.ask("grant_create", grant=1, access="ACCESS_READ",
                              parts=[{"cache": 1, "blocks": [1]}], readers=1).grant_created["token"]
            assert other.ask("grant_revoke", grant=1).status == "OK"
            other.event("grant_ended")
            assert unknown
        here = os.path.dirname(os.path.abspath(__file__))
        child = subprocess.Popen([sys.executable, "-c", CHILD, here, str(b.client_socket), state,
                                  token], stdout=subprocess.PIPE)
        try:
            assert child.stdout.readline() == b"ready\n"
            if state == "pull":
                wait_until("some of it has moved", lambda: any(
                    row.get("moved_bytes") for row in b.rows("TRANSFER")))
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        if state != "parked":
            e = o.event("grant_ended")
            assert STATUS[e["status"]] == "CLIENT_DIED", e
        else:
            other.close()
        wait_until("the reader is released", lambda: b.status().get("clients", 0) == (0 if far else 1))
        assert o.ask("region_release", region=1).status == "OK"
        for d in {a, b}:
            wait_until("nothing is left", lambda: d.status().get("transfers", 0) == 0)


# ---------------------------------------------------------------- mutations

def sample(rng, token):
    """A request with plausible and implausible values."""
    odd = rng.random() < 0.4  # a message of good values alone gets further

    def number():
        if not odd or rng.random() < 0.7:
            return rng.choice([1, 1, 1, 2, 3])
        return rng.choice([0, 255, 256, 4096, MIB, 1 << 31, (1 << 32) - 1, 1 << 63,
                           (1 << 64) - 1, rng.randrange(1 << 64)])

    def text(name):
        if name == "token" and rng.random() < 0.9:
            return token.encode()
        if not odd or rng.random() < 0.7:
            return b""
        return rng.choice([b"x", b"\xff\xfe", b"\0", "ü".encode(), b"y" * 64, b"z" * 300,
                           token.encode()[:-3]])

    def value(name, kind, depth):
        if kind in KVT.messages:
            return message(kind, depth + 1)
        if kind in KVT.enums:
            return rng.choice([0, 1, 2, 3, 200]) if odd else rng.choice([0, 1, 2])
        if kind in ("string", "bytes"):
            return text(name)
        if kind == "bool":
            return rng.random() < 0.5
        if name == "length" and rng.random() < 0.8:
            return MIB
        return number() & (0xffffffff if kind == "uint32" else (1 << 64) - 1)

    def message(name, depth=0):
        out = {}
        for field, (_, kind, repeated) in KVT.messages[name].items():
            if rng.random() < (0.25 if odd else 0.1) or field in ("slice", "list_blocks") and \
                    rng.random() < 0.7:
                continue
            if repeated:
                out[field] = [value(field, kind, depth) for _ in range(
                    rng.choice([0, 1, 1, 2, 5]) if odd else 1)]
            else:
                out[field] = value(field, kind, depth)
        return out

    what = rng.choice([f for f in KVT.messages["Request"] if f not in ("id", "hello", "close")])
    kind = KVT.messages["Request"][what][1]
    return what, KVT.encode("Request", {"id": rng.choice([0, 1, 99]), what: message(kind)})


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([0, 0, 0, 0, 0, 1, 1, 3, 10])):
        if not data:
            break
        i = rng.randrange(len(data))
        how = rng.randrange(4)
        if how == 0:
            data[i] = rng.randrange(256)
        elif how == 1:
            del data[i:i + rng.randrange(1, 8)]
        elif how == 2:
            data[i:i] = rng.randbytes(rng.randrange(1, 8))
        else:
            data[i] ^= 1 << rng.randrange(8)
    return bytes(data) or b"\0"


def drain(client):
    """Takes what is there, without waiting."""
    while client.receive(0):
        pass
    client.replies.clear()
    client.events.clear()


@pytest.mark.parametrize("seed", [1, 2, 3, FRESH_SEED])
def test_mutations(daemon, seed):
    """Thousands of damaged requests: the daemon lives, leaks nothing, serves others rightly."""
    print(f"KVT_SEED={seed}")
    rng = random.Random(seed)
    with Owner(daemon, name="good") as good, Owner(daemon, name="reader") as reader:
        c = None
        deadline = time.monotonic() + 20 * SLOW
        for i in range(8000):
            if c is None:
                c = Owner(daemon, name="mutant")
                token = c.grant(77, 1, [1, 2], ttl_ms=600000).get("grant_created", {}).get("token")
            what, data = sample(rng, token or "kvt1.x")
            fds = [c.fd] if what == "region_fds" else []
            if rng.random() < 0.1:
                fds = [rng.choice([c.fd, 0]) for _ in range(rng.choice([1, 1, 2, 20]))]
            try:
                c.raw(mutate(rng, data), fds)
                if i % 16 == 0:
                    drain(c)
            except (Gone, ConnectionError):
                c.close()
                c = None
            assert daemon.alive and time.monotonic() < deadline
            if i % 500 == 0:
                assert good.status()["pid"] == daemon.pid
        if c:
            c.close()
        good.mem[0:BLOCK] = b"g" * BLOCK
        token = good.grant(1, 1, [0, 1]).grant_created["token"]
        reader.transfer(1, "OP_PULL", token, 1, [5, 4], final=True)
        assert STATUS[reader.ended(1).get("status", 0)] == "OK"
        assert reader.mem[5 * BLOCK:6 * BLOCK] == b"g" * BLOCK
        assert not any(reader.mem[:5 * BLOCK]) and not any(reader.mem[6 * BLOCK:])
        assert not any(good.mem[BLOCK:])

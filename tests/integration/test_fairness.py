# SPDX-License-Identifier: Apache-2.0
"""What a client gets beside others: its share of the bytes, and its turn in the daemon's loop.

Counted in bytes and in requests, not in time: fault point delay-chunk makes the daemon that decides
whose bytes are next (the one node's, or the sender's) the slowest on the way.
"""
import os
import re
import signal
import statistics
import time

import pytest

from actors import actor  # noqa: F401 (a fixture)
from conftest import wait_until

pytestmark = pytest.mark.plain

CONFIG = """
transport {
	local_chunk = 64KiB
	tcp_chunk = 64KiB
}
"""
KIB, MIB = 1 << 10, 1 << 20
BLOCK = 64 * KIB
WAYS = pytest.mark.parametrize("way", ["local", "tcp"])
OPS = pytest.mark.parametrize("op", ["pull", "push"])


class Two:
    """An owner, and two clients at the other end: one and many."""

    def __init__(self, kvtd, actor, way, op, delay_ms):
        slow = ("--fault", f"delay-chunk={delay_ms}")
        sends = op == "push"
        a = kvtd(*(() if way == "tcp" and sends else slow), config=CONFIG)
        self.d = a if way == "local" else kvtd(*(slow if sends else ()), config=CONFIG)
        self.op, self.n, self.used = op, 0, 0
        self.owner = actor(a)
        self.owner.cache("A", 1024, 1, BLOCK)
        self.one, self.many = actor(self.d, "name=one"), actor(self.d, "name=many")
        for c in (self.one, self.many):
            c.cache("B", 512, 1, BLOCK)

    def begin(self, client, size, more=""):
        """A transfer of `size` bytes, in blocks that nobody else uses; its name."""
        n = size // BLOCK
        assert self.used + n <= 1024
        theirs, self.used = f"A:{self.used}-{self.used + n - 1}", self.used + n
        self.n += 1
        access = "read" if self.op == "pull" else "write"
        token = self.owner.grant(f"g{self.n}", f"{access} {theirs}")
        first = 0 if client is self.one else self.many_used
        if client is self.many:
            self.many_used += n
        client.xfer(f"x{self.n}", self.op, token,
                    f"B:{first}-{first + n - 1} final tag={client.name}-{self.n} {more}")
        return f"x{self.n}"

    many_used = 0

    def moved(self):
        """Bytes of the transfers of one and of many that have not ended, at one moment."""
        rows = [r for r in self.d.rows("TRANSFER") if r["role"] == "initiator"]
        return [sum(r.get("moved_bytes", 0) for r in rows if r["tag"].startswith(client + "-"))
                for client in ("one", "many")]

    def beside(self, size):
        """What the one moves while the others move so much and perhaps a little more; and this."""
        start, now = self.moved(), [0, 0]

        def there():
            now[:] = [a - b for a, b in zip(self.moved(), start)]
            return now[1] >= size
        wait_until("they have moved enough", there, 30)
        return now

    def end(self, client, name):
        assert client.ok(f"cancel {name}") == "OK"
        assert client.wait(name) in ("CANCELED", "OK")


@pytest.fixture
def two(kvtd, actor, request):
    def make(way, op, delay_ms):
        t = Two(kvtd, actor, way, op, delay_ms)
        t.one.name, t.many.name = "one", "many"
        return t
    return make


@WAYS
@OPS
def test_shares(two, way, op):
    """One transfer against 16: it gets as much as they do together."""
    t = two(way, op, 2)
    long = t.begin(t.one, 32 * MIB)
    names = [t.begin(t.many, 2 * MIB) for _ in range(16)]
    mine, theirs = t.beside(8 * MIB)
    t.end(t.one, long)
    for name in names:
        t.end(t.many, name)
    assert 0.35 < mine / (mine + theirs) < 0.65


@WAYS
@OPS
def test_priority(two, way, op):
    """A low one beside a high one gets little, but something."""
    t = two(way, op, 2)
    low = t.begin(t.one, 32 * MIB, "priority=2")
    high = t.begin(t.many, 32 * MIB, "priority=1")
    mine, theirs = t.beside(16 * MIB)
    t.end(t.one, low)
    t.end(t.many, high)
    assert 0 < mine < theirs / 8


@WAYS
@OPS
def test_small_beside_large(two, way, op):
    """A small transfer sees a few chunks of the others go by, not one of each of them."""
    t = two(way, op, 10)
    names = [t.begin(t.many, 2 * MIB) for _ in range(16)]
    wait_until("they move", lambda: t.moved()[1])
    seen = []
    for _ in range(9):
        name = t.begin(t.one, BLOCK)
        before = t.moved()[1]
        assert t.one.wait(name) == "OK"
        seen.append((t.moved()[1] - before) // BLOCK)
    for name in names:
        t.end(t.many, name)
    assert statistics.median(seen) <= 8, seen


def test_owner_shows_priority(kvtd, actor):
    a = kvtd("--fault", "delay-chunk=50")
    b = kvtd()
    owner, reader = actor(a), actor(b)
    owner.cache("A", 64, 1, BLOCK)
    reader.cache("B", 64, 1, BLOCK)
    token = owner.grant("g", "read A:0-63")
    reader.xfer("x", "pull", token, "B:0-63 priority=1")
    wait_until("it is there", lambda: a.rows("TRANSFER"))
    assert [r["priority"] for r in a.rows("TRANSFER")] == [1]
    reader.ok("cancel x")
    assert reader.wait("x") in ("CANCELED", "OK")


def test_flood_of_requests(kvtd):
    """Three clients with full sockets: a turn of each, and then the one request of another."""
    d = kvtd(config='log_level = "debug"\n')
    floods = [d.client(name=f"flood-{i}") for i in range(3)]
    other = d.client(name="other")
    d.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, d.pid, os.WSTOPPED | os.WNOWAIT)
    for c in floods:
        for _ in range(150):
            c.send("region_release", region=99)
    mine = other.send("region_release", region=99)
    d.signal(signal.SIGCONT)
    assert other.reply(mine).status == "NOT_FOUND"
    for c in floods:
        for _ in range(150):
            assert c.receive(time.monotonic() + c.timeout)
    who = re.findall(r"\((\S+)\): refused", d.log())
    assert len(who) == 451 and who.index("other") <= 3 * 16, who.index("other")
    for c in [*floods, other]:
        c.close()

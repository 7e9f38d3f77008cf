# SPDX-License-Identifier: Apache-2.0
"""Quiescence: once a client was told of an end, nothing touches its memory for it any more.

A round brings a slow transfer to where some of its bytes have landed, but not all, and ends it.
Whoever is told takes its memory back at once: a destination is overwritten and watched, of a source
all pages are given back to the kernel, and one that comes back was read. Meanwhile the other side
is at work, stopped, or resumed. Each case is also run with the daemons' fences off, and must then
see what it is there to see.
"""
import os
import signal

import pytest

from conftest import wait_until
from actors import actor, place  # noqa: F401

CONFIG = """
transport {
	local_chunk = "4 KiB"
	tcp_chunk = "4 KiB"
	local_threads = 4
	tcp_threads = 4
	tcp_streams = 4
}
"""
DELAY_MS = 12
BLOCKS = "0-63"
FENCED, UNFENCED = ("--fault", f"delay-chunk={DELAY_MS}"), \
    ("--fault", f"delay-chunk={DELAY_MS}", "--fault", "fence-off")


class World:
    """Two clients, the daemons between them, and the transfer of a round."""

    def __init__(self, place, actor, op):
        self.place, self.actor, self.op = place, actor, op
        self.owner = self.reader = None
        self.round = 0
        self.revive()

    def revive(self):
        """New ones for those that died."""
        for d in self.place.daemons:
            if not d.alive:
                d.start()
                self.leave()
        if self.owner is None:
            self.owner = self.actor(self.place.owner, "name=owner", "timeout=600")
            self.owner.cache("A", 64, 1, 4096, "memfd")
            if self.reader:
                self.reader.kill()
                self.reader = None
        if self.reader is None:
            self.reader = self.actor(self.place.reader, "name=reader", "timeout=600")
            self.reader.cache("B", 64, 1, 4096, "memfd")
            token = self.owner.grant("first", "read A:0")
            assert self.reader.run("first", "pull", token, "B:0 final") == "OK"
            self.reader.ok("free first")
            assert self.owner.gwait("first") == "OK"
            self.owner.ok("gfree first")

    def leave(self):
        for a in (self.owner, self.reader):
            if a:
                a.kill()
        self.owner = self.reader = None

    @property
    def sides(self):
        """(actor, its cache) of the source and of the destination."""
        owner, reader = (self.owner, "A"), (self.reader, "B")
        return (owner, reader) if self.op == "pull" else (reader, owner)

    def begin(self, grant_more="", xfer_more=""):
        """A transfer of which some has landed. True if not all."""
        self.round += 1
        self.seed = self.round * 2
        (src, s), (dst, d) = self.sides
        dst.ok(f"noise {d} {self.seed}")
        src.ok(f"fill {self.seed} {s}:{BLOCKS}")
        access = "read" if self.op == "pull" else "write"
        token = self.owner.grant(f"g{self.round}", f"{access} A:{BLOCKS} {grant_more}")
        self.reader.xfer(f"x{self.round}", self.op, token, f"B:{BLOCKS} final {xfer_more}")
        some = dst(f"until {self.seed} {d}:{BLOCKS} ms=3000")
        landed, total = (int(n) for n in some.text.split())
        return some == "OK" and landed < total

    def end(self, who, then_resume=()):
        """The end as `who` sees it; its memory is its own then. (status, violated)"""
        mine = "A" if who is self.owner else "B"
        wait = f"gwait g{self.round}" if who is self.owner else f"wait x{self.round}"
        (src, s), (dst, d) = self.sides
        if who is dst:
            status = who(f"{wait} 5000 then={mine} seed={self.seed + 1}")
            changed = who(f"changed {mine} {3 * DELAY_MS}") != "OK"
            for resume in then_resume:
                resume()
            changed |= bool(then_resume) and who(f"changed {mine} 80") != "OK"
            return status, changed
        status = who(f"{wait} 5000 vanish={s}")
        touched = who(f"touched {s} {3 * DELAY_MS}") != "OK"
        for resume in then_resume:
            resume()
        touched |= bool(then_resume) and who(f"touched {s} 80") != "OK"
        return status, touched

    def finish(self):
        """The far side's end, and nothing left of the round: an attempt uses nothing."""
        if self.owner:
            self.owner.ok(f"revoke g{self.round}")
        for a, wait, free in ((self.owner, f"gwait g{self.round}", f"gfree g{self.round}"),
                              (self.reader, f"wait x{self.round}", f"free x{self.round}")):
            if a:
                assert a(f"{wait} 5000") != "PENDING"
                a.ok(free)


# ---------------------------------------------------------------- how transfers end

def by_cancel(w, freeze):
    counts = w.begin()
    resume = freeze(w, "owner")
    w.reader.ok(f"cancel x{w.round}")
    return counts, "CANCELED", *w.end(w.reader, resume)


def by_timeout(w, freeze):
    counts = w.begin(xfer_more=f"timeout={6 * DELAY_MS}")
    resume = freeze(w, "owner")
    return counts, "TIMEOUT", *w.end(w.reader, resume)


def by_revoke(w, freeze):
    counts = w.begin()
    resume = freeze(w, "reader")
    w.owner.ok(f"revoke g{w.round}")
    return counts, "REVOKED", *w.end(w.owner, resume)


def by_expiry(w, freeze):
    counts = w.begin(grant_more=f"hold={6 * DELAY_MS}")
    resume = freeze(w, "reader")
    return counts, "EXPIRED", *w.end(w.owner, resume)


def by_release_of_region(w, freeze):
    """Of the destination's region: kvt_region_release returns when nothing touches it."""
    counts = w.begin()
    resume = freeze(w, "owner" if w.op == "pull" else "reader")
    (_, _), (dst, d) = w.sides
    dst.ok(f"release {d} 20000 keep=kept")
    dst.ok(f"noise kept {w.seed + 1}")
    violated = dst(f"changed kept {3 * DELAY_MS}") != "OK"
    for r in resume:
        r()
    violated |= dst("changed kept 80") != "OK"
    wait = f"gwait g{w.round}" if dst is w.owner else f"wait x{w.round}"
    status = dst(f"{wait} 5000")
    expected = "REVOKED" if dst is w.owner else "CANCELED"
    w.finish()
    dst.ok(f"uncache {d}")
    dst.cache(d, 64, 1, 4096, "memfd")
    return counts, expected, status, violated


def by_suspension(w, freeze):
    """Of the destination's region: once kvt_region_suspend returns nothing touches the memory. The
    other side hears BUSY, or has given up itself; the grant stays."""
    counts = w.begin()
    (_, _), (dst, d) = w.sides
    resume = freeze(w, "owner" if w.op == "pull" else "reader")
    dst.ok(f"suspend {d} 20000")
    dst.ok(f"noise {d} {w.seed + 1}")
    violated = dst(f"changed {d} {3 * DELAY_MS}") != "OK"
    for r in resume:
        r()
    violated |= dst(f"changed {d} 80") != "OK"
    status = w.reader(f"wait x{w.round} 5000")
    if dst is w.owner and status != "OK":
        assert w.owner("gwait g%d 0" % w.round) == "PENDING"
    w.finish()
    dst.ok(f"resume {d}" + " elsewhere" * (w.round % 2))
    return counts, "BUSY" if dst is w.owner else "CANCELED", status, violated


def by_opener_death(w, freeze):
    counts = w.begin()
    w.reader.kill()
    w.reader = None
    return counts, "CLIENT_DIED", *w.end(w.owner)


def by_owner_death(w, freeze):
    counts = w.begin()
    w.owner.kill()
    w.owner = None
    return counts, "CLIENT_DIED", *w.end(w.reader)


def by_far_daemon_death(w, freeze):
    """Of the daemon of the source; the destination watches."""
    counts = w.begin()
    (src, _), (dst, _) = w.sides
    far = w.place.owner if w.op == "pull" else w.place.reader
    far.kill()
    expected = "SHUTDOWN" if w.place.path == "local" else "PEER_LOST"
    result = w.end(dst)
    src.kill()
    if src is w.owner:
        w.owner = None
    else:
        w.reader = None
    return counts, expected, *result


def by_near_daemon_death(w, freeze):
    """Of the destination's own daemon."""
    counts = w.begin()
    (_, _), (dst, _) = w.sides
    (w.place.reader if w.op == "pull" else w.place.owner).kill()
    result = w.end(dst)
    w.leave()
    return counts, "SHUTDOWN", *result


# ---------------------------------------------------------------- what the other side does

def at_work(w, side):
    return ()


def client_stopped(w, side):
    a = getattr(w, side)
    a.stop()
    return (a.resume,)


def daemon_stopped(w, side):
    d = getattr(w.place, side)
    d.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, d.pid, os.WSTOPPED | os.WNOWAIT)
    return (lambda: d.signal(signal.SIGCONT),)


def crashed(w):
    """Memory that was unmapped too early shows in that way."""
    return any(d.process.poll() not in (None, -signal.SIGKILL) for d in w.place.daemons)


def rounds(w, cause, freeze, n):
    """(rounds that count, violations) of n rounds; with n None until a violation is seen."""
    counted = violations = 0
    for i in range(n or 10):
        try:
            w.revive()
            counts, expected, status, violated = cause(w, freeze)
        except AssertionError:
            if n is None:
                wait_until("it is known that it crashed", lambda: crashed(w))
                return 0, 1
            raise
        assert status in (expected, "OK") if n else True, f"{status!r}, not {expected}"
        counted += counts and status == expected
        violations += violated or crashed(w)
        if n is None and violations:
            break
        if cause not in (by_release_of_region, by_suspension):
            w.finish()
    return counted, violations


def cases(table):
    """(place, cause, op, freeze); one daemon that is stopped tells nobody of an end."""
    all_of = [(path, cause, op, freeze) for path in ("local", "tcp")
              for cause, ops, freezes in table for op in ops for freeze in freezes
              if path == "tcp" or freeze is not daemon_stopped]
    return pytest.mark.parametrize(
        "place, cause, op, freeze", all_of, indirect=["place"],
        ids=[f"{p}-{c.__name__}-{o}-{f.__name__}" for p, c, o, f in all_of])


BOTH = ("pull", "push")
CASES = [
    (by_cancel, BOTH, (at_work, daemon_stopped)),
    (by_timeout, BOTH, (at_work, daemon_stopped)),
    (by_revoke, BOTH, (at_work, daemon_stopped, client_stopped)),
    (by_expiry, BOTH, (at_work, daemon_stopped)),
    (by_release_of_region, BOTH, (at_work,)),
    (by_suspension, BOTH, (at_work, daemon_stopped)),
    (by_opener_death, ("push",), (at_work,)),
    (by_owner_death, ("pull",), (at_work,)),
    (by_far_daemon_death, BOTH, (at_work,)),
    (by_near_daemon_death, BOTH, (at_work,)),
]
# Not what cannot be seen: a dead daemon does nothing late, nor does one whose far side was stopped
# long before the end and whose sockets are empty then.
UNFENCED_CASES = [
    (by_cancel, BOTH, (at_work, daemon_stopped)),
    (by_timeout, BOTH, (at_work,)),
    (by_revoke, BOTH, (at_work, daemon_stopped)),
    (by_expiry, BOTH, (at_work,)),
    (by_release_of_region, BOTH, (at_work,)),
    (by_suspension, BOTH, (at_work,)),
    (by_opener_death, ("push",), (at_work,)),
    (by_owner_death, ("pull",), (at_work,)),
]


@cases(CASES)
def test_fence(place, actor, cause, op, freeze):
    p = place(*FENCED, config=CONFIG)
    w = World(p, actor, op)
    n = 5
    counted, violations = rounds(w, cause, freeze, n)
    assert violations == 0
    assert counted >= 0.8 * n, f"only {counted} of {n} rounds were in the middle of a transfer"
    w.revive()
    w.leave()


def sees_it(p, actor, op, cause, freeze):
    """Whether the rounds see what a missing fence does: late bytes, or a daemon that touched memory
    that was unmapped already."""
    w = World(p, actor, op)
    try:
        _, violations = rounds(w, cause, freeze, None)
    except AssertionError:
        if all(d.alive for d in p.daemons):
            raise
        return True
    w.leave()
    return violations > 0


@cases(UNFENCED_CASES)
def test_of_the_test(place, actor, cause, op, freeze):
    """Without the fence the same rounds must see late bytes."""
    assert sees_it(place(*UNFENCED, config=CONFIG, check=False), actor, op, cause, freeze)


@pytest.mark.parametrize("place", ["tcp"], indirect=True)
@pytest.mark.parametrize("op", BOTH)
def test_of_the_test_of_a_far_death(place, actor, op):
    assert sees_it(place(*UNFENCED, config=CONFIG, check=False), actor, op, by_far_daemon_death,
                   at_work)

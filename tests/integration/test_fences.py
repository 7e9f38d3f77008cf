# SPDX-License-Identifier: Apache-2.0
"""Quiescence: once a client was told of an end, nothing touches its memory for it any more.

A round brings a slow transfer to where some of its bytes have landed, but not all, and ends it.
Whoever is told takes its memory back at once: a destination is overwritten and watched, of a source
all pages are given back to the kernel, and one that comes back was read. Meanwhile the other side
is at work, stopped, or resumed, or bytes are held back on the wire and come when all is over. Each
row of the tables below is also run with the fault point that switches its rule off, and must then
see what it is there to see. The rules are those of doc/design.md, section 9.
"""
import collections
import json
import mmap
import os
import re
import signal
import time

import pytest

from conftest import wait_until
from actors import Place, actor  # noqa: F401
from proxy import DATA, Proxy
from tls import Key, keyed  # noqa: F401
from wire import SLOW

CONFIG = """
drain_timeout = "1 ms"
transport {
	local_chunk = "4 KiB"
	tcp_chunk = "4 KiB"
	local_threads = 4
	tcp_threads = 4
	tcp_streams = 4
}
"""
# Frames that are long on a wire that is slow: one is cut in two where that is held. With more
# streams all of a transfer would be in the source's sockets, and it is done then.
WIRE_CONFIG = """
transport {
	tcp_chunk = "1 MiB"
	tcp_streams = 1
}
"""
PEERS = 'redial_max = "100 ms"'
DELAY_MS = 12
BLOCKS = "0-63"
LONG = os.environ.get("KVT_LONG", "0") != "0"
HELD = 1.5 if LONG else 0.1  # seconds that bytes stay on the wire beyond the end


def faults(*names):
    return sum((("--fault", n) for n in names), ())


@pytest.fixture
def place(request, kvtd, keyed, actor):
    """place(fault points) starts the daemons of an owner and a reader. param: local, tcp, or tls,
    and +wire: a slow one that can be held, p.wire. actor is asked for so that the clients are gone
    before the daemons are looked at."""
    path, _, wire = request.param.partition("+")
    proxy = Proxy() if wire else None
    key = [Key()]

    def make(*args, **kw):
        config = WIRE_CONFIG if wire else CONFIG
        more = f'advertise = "{proxy.address}"\n' if wire else ""

        def daemon(first):
            text = (more if first else "") + config
            if path == "tls":
                return keyed(key, *args, peers=PEERS, config=text, listen=first or not wire, **kw)
            return kvtd(*args, config=text + f"peers {{ {PEERS} }}\n", **kw)
        owner = daemon(True)
        p = Place(owner, owner if path == "local" else daemon(False), path)
        p.wire = proxy
        if wire:
            host, port = owner.address.rsplit(":", 1)
            proxy.to = (host, int(port))
            proxy.delay = 0.004
        return p
    yield make
    if proxy:
        proxy.stop()


class World:
    """Two clients, the daemons between them, and the transfer of a round."""

    def __init__(self, place, actor, op):
        self.place, self.actor, self.op = place, actor, op
        self.wire = place.wire
        self.size = 131072 if self.wire else 4096
        self.watch = 3 * DELAY_MS  # ms in which late bytes would come
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
            self.owner.cache("A", 64, 1, self.size, "memfd")
            if self.reader:
                self.reader.kill()
                self.reader = None
        if self.reader is None:
            self.reader = self.actor(self.place.reader, "name=reader", "timeout=600")
            self.reader.cache("B", 64, 1, self.size, "memfd")
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
            if status == "PENDING" and then_resume:
                # all had left the source, which is done: it goes on when it can
                for resume in then_resume:
                    resume()
                return who(f"{wait} 5000"), False
            changed = who(f"changed {mine} {self.watch}") != "OK"
            for resume in then_resume:
                resume()
            changed |= bool(then_resume) and who(f"changed {mine} {3 * self.watch}") != "OK"
            return status, changed
        status = who(f"{wait} 5000 vanish={s}")
        touched = who(f"touched {s} {self.watch}") != "OK"
        for resume in then_resume:
            resume()
        touched |= bool(then_resume) and who(f"touched {s} {3 * self.watch}") != "OK"
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


def release(w, freeze, who, cache):
    """kvt_region_release returns when nothing touches the region."""
    counts = w.begin()
    resume = freeze(w, "owner" if who is w.reader else "reader")
    (_, _), (dst, _) = w.sides
    who.ok(f"release {cache} 20000 keep=kept")
    if who is dst:
        who.ok(f"noise kept {w.seed + 1}")
        look, violated = "changed kept", False
    else:
        who.ok("vanish kept")
        look, violated = "touched kept", False
    violated |= who(f"{look} {w.watch}") != "OK"
    for r in resume:
        r()
    violated |= bool(resume) and who(f"{look} {3 * w.watch}") != "OK"
    wait = f"gwait g{w.round}" if who is w.owner else f"wait x{w.round}"
    status = who(f"{wait} 5000")
    w.finish()
    who.ok(f"uncache {cache}")
    who.cache(cache, 64, 1, w.size, "memfd")
    return counts, "REVOKED" if who is w.owner else "CANCELED", status, violated


def by_release_at_destination(w, freeze):
    return release(w, freeze, *w.sides[1])


def by_release_at_source(w, freeze):
    return release(w, freeze, *w.sides[0])


def by_suspension(w, freeze):
    """Of the destination's region: once kvt_region_suspend returns nothing touches the memory. The
    other side hears BUSY, or has given up itself; the grant stays."""
    counts = w.begin()
    (_, _), (dst, d) = w.sides
    resume = freeze(w, "owner" if w.op == "pull" else "reader")
    dst.ok(f"suspend {d} 20000")
    dst.ok(f"noise {d} {w.seed + 1}")
    violated = dst(f"changed {d} {w.watch}") != "OK"
    for r in resume:
        r()
    violated |= bool(resume) and dst(f"changed {d} {3 * w.watch}") != "OK"
    status = w.reader(f"wait x{w.round} 5000")
    if dst is w.owner and status != "OK":
        assert w.owner("gwait g%d 0" % w.round) == "PENDING"
    w.finish()
    dst.ok(f"resume {d}" + " elsewhere" * (w.round % 2))
    return counts, "BUSY" if dst is w.owner else "CANCELED", status, violated


def by_opener_death(w, freeze):
    counts = w.begin()
    resume = freeze(w, "nobody")
    w.reader.kill()
    w.reader = None
    return counts, "CLIENT_DIED", *w.end(w.owner, resume)


def by_owner_death(w, freeze):
    counts = w.begin()
    resume = freeze(w, "nobody")
    w.owner.kill()
    w.owner = None
    return counts, "CLIENT_DIED", *w.end(w.reader, resume)


def by_own_death(w, freeze):
    """Of the destination's client: what is left of its memory is watched by those who share it,
    from when its daemon has let go of it."""
    counts = w.begin()
    resume = freeze(w, "nobody")
    (_, _), (dst, _) = w.sides
    daemon = w.place.owner if dst is w.owner else w.place.reader
    fd = next(fd for fd in (f"/proc/{dst.pid}/fd/{n}" for n in os.listdir(f"/proc/{dst.pid}/fd"))
              if os.readlink(fd).startswith("/memfd:actor"))
    with open(fd, "r+b") as f, mmap.mmap(f.fileno(), 0) as mine:
        gone = len(re.findall(r"released in", daemon.log()))
        dst.kill()
        if dst is w.owner:
            w.owner = None
        else:
            w.reader = None
        wait_until("its daemon has let go", lambda: crashed(w) or
                   len(re.findall(r"released in", daemon.log())) > gone)
        pattern = bytes([w.round & 255]) * len(mine)
        mine[:] = pattern
        violated = changes(mine, pattern, w.watch)
        for r in resume:
            r()
        violated |= bool(resume) and changes(mine, pattern, 3 * w.watch)
    return counts, None, None, violated


def changes(mine, pattern, ms):
    deadline = time.monotonic() + ms / 1000
    while mine[:] == pattern:
        if time.monotonic() > deadline:
            return False
    return True


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


def by_near_daemon_end(w, freeze):
    """Of the destination's own daemon, in good order."""
    counts = w.begin()
    resume = freeze(w, "nobody")
    (_, _), (dst, _) = w.sides
    d = w.place.reader if w.op == "pull" else w.place.owner
    d.signal(signal.SIGTERM)
    result = w.end(dst, resume)
    wait_until("the daemon has ended", lambda: not d.alive)
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


def bytes_held(w, side):
    """Data stays on the wire until the end is over, for a while; daemons speak with each other."""
    w.wire.held = {DATA}

    def resume():
        time.sleep(HELD)  # how long is what the test is about
        w.wire.held = set()
    return (resume,)


def crashed(w):
    """Memory that was unmapped too early shows in that way."""
    return any(d.process.poll() not in (None, 0, -signal.SIGKILL) for d in w.place.daemons)


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
        if "release" not in cause.__name__ and cause is not by_suspension:
            w.finish()
    return counted, violations


BOTH, PULL, PUSH = ("pull", "push"), ("pull",), ("push",)
NODES = ("local", "tcp")
WIRE, WIRES = ("tcp+wire",), ("tcp+wire", "tls+wire")

# rule: of doc/design.md, section 9. cause: how it ends, and who looks at his memory then. meanwhile:
# what the other side does. unfenced: what must be seen with the fence off. Not what cannot be: a
# dead daemon does nothing late, nor does one whose far side was stopped long before the end and
# whose sockets are empty then.
Row = collections.namedtuple("Row", "rule cause ops paths meanwhile unfenced")
TABLE = [
    # the initiator's end
    Row(2, by_cancel, BOTH, NODES, (at_work, daemon_stopped), (at_work, daemon_stopped)),
    Row(2, by_cancel, PULL, WIRES, (bytes_held,), (bytes_held,)),
    Row(2, by_timeout, BOTH, NODES, (at_work, daemon_stopped), (at_work,)),
    Row(2, by_owner_death, BOTH, NODES, (at_work,), (at_work,)),
    Row(2, by_owner_death, PULL, WIRE, (bytes_held,), (bytes_held,)),
    Row(2, by_own_death, PULL, NODES, (at_work,), (at_work,)),
    # the owner's end
    Row(3, by_revoke, BOTH, NODES, (at_work, daemon_stopped, client_stopped),
        (at_work, daemon_stopped)),
    Row(3, by_revoke, PUSH, WIRES, (bytes_held,), (bytes_held,)),
    Row(3, by_expiry, BOTH, NODES, (at_work, daemon_stopped), (at_work,)),
    Row(3, by_opener_death, BOTH, NODES, (at_work,), (at_work,)),
    Row(3, by_opener_death, PUSH, WIRE, (bytes_held,), (bytes_held,)),
    Row(3, by_own_death, PUSH, NODES, (at_work,), (at_work,)),
    # a region's release
    Row(6, by_release_at_destination, BOTH, NODES, (at_work,), (at_work,)),
    Row(6, by_release_at_destination, BOTH, WIRE, (bytes_held,), (bytes_held,)),
    Row(6, by_suspension, BOTH, NODES, (at_work, daemon_stopped), (at_work,)),
    Row(6, by_release_at_source, BOTH, NODES, (at_work,), (at_work,)),
    # the daemons' ends
    Row(6, by_near_daemon_end, BOTH, NODES, (at_work,), ()),
    Row(5, by_far_daemon_death, BOTH, NODES, (at_work,), ()),
    Row(6, by_near_daemon_death, BOTH, NODES, (at_work,), ()),
]


def cases(column):
    """(place, cause, op, meanwhile); one daemon that is stopped tells nobody of an end."""
    all_of = [(path, r.cause, op, m) for r in TABLE for path in r.paths for op in r.ops
              for m in getattr(r, column) if path != "local" or m is not daemon_stopped]
    return pytest.mark.parametrize(
        "place, cause, op, meanwhile", all_of, indirect=["place"],
        ids=[f"{p}-{c.__name__}-{o}-{m.__name__}" for p, c, o, m in all_of])


@cases("meanwhile")
def test_fence(place, actor, cause, op, meanwhile):
    p = place(*faults(f"delay-chunk={DELAY_MS}"))
    w = World(p, actor, op)
    n = 5
    for _ in range(3):  # a machine that is busy just then is no fault
        counted, violations = rounds(w, cause, meanwhile, n)
        assert violations == 0
        if counted >= (0.8 if SLOW == 1 else 0.2) * n:
            break
    else:
        pytest.fail(f"only {counted} of {n} rounds were in the middle of a transfer")
    w.revive()
    w.leave()


def sees_it(p, actor, op, cause, meanwhile):
    """Whether the rounds see what a missing fence does: late bytes, or a daemon that touched memory
    that was unmapped already."""
    w = World(p, actor, op)
    try:
        _, violations = rounds(w, cause, meanwhile, None)
    except AssertionError:
        if all(d.alive for d in p.daemons):
            raise
        return True
    w.leave()
    return violations > 0


@pytest.mark.plain
@cases("unfenced")
def test_of_the_test(place, actor, cause, op, meanwhile):
    """Without the fence the same rounds must see late bytes."""
    p = place(*faults(f"delay-chunk={DELAY_MS}", "fence-off"), check=False)
    assert sees_it(p, actor, op, cause, meanwhile)


@pytest.mark.plain
@pytest.mark.parametrize("place", ["tcp"], indirect=True)
@pytest.mark.parametrize("op", BOTH)
def test_of_the_test_of_a_far_death(place, actor, op):
    p = place(*faults(f"delay-chunk={DELAY_MS}", "fence-off"), check=False)
    assert sees_it(p, actor, op, by_far_daemon_death, at_work)


# ---------------------------------------------------------------- bystanders, visibility, retries

def bystander(p, actor, op):
    """A transfer on the same connections while another one is fenced in the middle of its frames:
    (how that ends, how this one ends, retries of this one)."""
    w = World(p, actor, op)
    (src, s), (dst, d) = w.sides
    src.cache(s + "2", 64, 1, w.size)
    dst.cache(d + "2", 64, 1, w.size)
    w.begin()
    src.ok(f"fill 7 {s}2:{BLOCKS}")
    dst.ok(f"noise {d}2 8")
    token = w.owner.grant("beside", f"{'read' if op == 'pull' else 'write'} A2:{BLOCKS}")
    w.reader.xfer("beside", op, token, f"B2:{BLOCKS} final")
    if op == "pull":
        w.owner.ok(f"revoke g{w.round}")
        status, violated = w.end(w.owner)
    else:
        w.reader.ok(f"cancel x{w.round}")
        status, violated = w.end(w.reader)
    assert not violated
    end = w.reader.wait("beside")
    if end == "OK":
        dst.ok(f"check 7 {d}2:{BLOCKS}")
        dst.ok(f"changed {d}2 {d}2:{BLOCKS}")
    retries = w.reader.stats("beside")["retries"]
    w.finish()
    w.leave()
    return str(status), str(end), retries


def bystanders(p, actor, op):
    return [bystander(p, actor, op) for _ in range(3)]


UNHARMED = {op: [(end, "OK", 0)] * 3 for op, end in (("pull", "REVOKED"), ("push", "CANCELED"))}
SHORT = (f"delay-chunk={DELAY_MS}", "send-short=600")  # so that a fence meets half a frame


@pytest.mark.parametrize("place", ["local", "tcp", "tls"], indirect=True)
@pytest.mark.parametrize("op", BOTH)
def test_bystander(place, actor, op):
    """Rule 4: who is not fenced does not notice."""
    assert bystanders(place(*faults(*SHORT)), actor, op) == UNHARMED[op]


@pytest.mark.plain
@pytest.mark.parametrize("place", ["tcp", "tls"], indirect=True)
@pytest.mark.parametrize("op", BOTH)
def test_of_the_test_of_bystanders(place, actor, op):
    """Where a fence breaks the connection, others notice."""
    p = place(*faults(*SHORT, "fence-cuts"))
    assert bystanders(p, actor, op) != UNHARMED[op]


def seen_at_the_event(p, actor, op):
    """Whether all bytes were there when the destination's client was told, n times."""
    w = World(p, actor, op)
    seen = []
    for _ in range(3):
        w.begin()
        (_, _), (dst, d) = w.sides
        wait = f"gwait g{w.round}" if dst is w.owner else f"wait x{w.round}"
        dst.send(f"{wait} 10000")
        dst.send(f"check {w.seed} {d}:{BLOCKS}")
        end, check = dst.recv(), dst.recv()
        assert end == "OK", repr(end)
        seen.append(check == "OK")
        w.finish()
    w.leave()
    return seen


@pytest.mark.parametrize("place", ["local", "tcp", "tls"], indirect=True)
@pytest.mark.parametrize("op", BOTH)
def test_visible(place, actor, op):
    """Rule 7: bytes are there at the moment of the event."""
    assert seen_at_the_event(place(*faults(f"delay-chunk={DELAY_MS}")), actor, op) == [True] * 3


@pytest.mark.plain
@pytest.mark.parametrize("place", ["local", "tcp", "tls"], indirect=True)
@pytest.mark.parametrize("op", BOTH)
def test_of_the_test_of_visibility(place, actor, op):
    # local: the owner's end is fenced before the event, too
    p = place(*faults(f"delay-chunk={DELAY_MS}", "done-early", "fence-off"), check=False)
    assert not all(seen_at_the_event(p, actor, op))


SLEEP_MS = 1000 * SLOW
RETRY_CONFIG = 'transport { tcp_chunk = "256 KiB" tcp_streams = 4 tcp_threads = 4 }\n' \
    f"peers {{ {PEERS} }}\n"


def fault_line(*points):
    return f"fault = {{ {', '.join(map(json.dumps, points))} }}\n" if points else ""


class Retry:
    """One frame (of a transfer that does not count as a small one) whose bytes are in the
    destination's socket; the thread that is to place it sleeps while another connection breaks, and
    with it the attempt."""

    def __init__(self, kvtd, actor, op, *more):
        self.op, self.proxy, self.more = op, Proxy(), more
        texts = RETRY_CONFIG + f'advertise = "{self.proxy.address}"\n', RETRY_CONFIG
        late = fault_line(f"delay-chunk={SLEEP_MS}", *more)
        # the source is done with its last byte in a socket; the owner is not to say so yet
        slow = fault_line(f"delay-commit={10 * SLEEP_MS}")
        points = (slow, late) if op == "pull" else (late, "")
        owner, reader = (kvtd(config=t + p, check=not more) for t, p in zip(texts, points))
        self.late, self.text = (reader, texts[1]) if op == "pull" else (owner, texts[0])
        host, port = owner.address.rsplit(":", 1)
        self.proxy.to = (host, int(port))
        self.daemons = owner, reader
        self.owner, self.reader = actor(owner), actor(reader)
        self.owner.cache("A", 64, 1, 4096)
        self.reader.cache("B", 64, 1, 4096)
        self.src, self.dst = (("A", self.owner), ("B", self.reader))[::1 if op == "pull" else -1]
        self.token = self.owner.grant("g", ("read" if op == "pull" else "write") + " A:0-63")
        self.reader.ok(f"tstatus {self.token}")
        wait_until("all streams are up", lambda: self.proxy.live(DATA) == 4)

    def awake(self):
        """Who sleeps goes on doing so; the others do not begin to. What is not fenced stays so."""
        self.late.config_file.write_text(self.text + fault_line(*self.more))
        said = len(self.late.log())
        self.late.signal(signal.SIGHUP)
        wait_until("its configuration is loaded", lambda: "config" in self.late.log()[said:])

    def counts(self):
        with self.proxy.lock:
            return {p: p.passed for p in self.proxy.pairs if p.kind == DATA and not p.dead}

    def run(self):
        """How it ended, and whether old bytes came after the new attempt had begun."""
        (s, src), (d, dst) = self.src, self.dst
        src.ok(f"fill 1 {s}:0-63")
        dst.ok(f"noise {d} 5")
        before = self.counts()
        self.reader.xfer("x", self.op, self.token, "B:0-63")
        moved = wait_until("the frame is there", lambda: [
            p for p, n in self.counts().items() if n >= before[p] + 262144])
        self.awake()
        # the old attempt has its bytes; the next one is to have others
        src.ok(f"fill 2 {s}:0-63")
        lost = self.late.log().count(" lost: ")
        with self.proxy.lock:
            other = next(p for p in before if p not in moved)
            other.close(reset=True)
        wait_until("it is lost", lambda: self.late.log().count(" lost: ") > lost)
        if self.op == "pull":
            self.daemons[0].signal(signal.SIGUSR2)  # it may say so
        end = self.reader.wait("x")
        assert self.reader.stats("x")["retries"] >= 1
        old = dst(f"check 2 {d}:0-63") != "OK"
        dst.ok(f"snap {d}")
        return str(end), end == "OK" and (old or dst(f"changed {d} {2 * SLEEP_MS}") != "OK")

    def end(self):
        self.owner.ok("revoke g")
        self.owner.gwait("g")
        self.owner.kill()
        self.reader.kill()
        self.proxy.stop()


@pytest.mark.parametrize("op", BOTH)
def test_retry(kvtd, actor, op):
    """Rule 5: it is tried again when nothing comes of the broken attempt any more."""
    r = Retry(kvtd, actor, op)
    assert r.run() == ("OK", False)
    r.end()


@pytest.mark.plain
@pytest.mark.parametrize("op", BOTH)
def test_of_the_test_of_retries(kvtd, actor, op):
    """With luck: the new attempt may go to the connection whose thread sleeps, and be the later."""
    for _ in range(4):
        r = Retry(kvtd, actor, op, "fence-off")
        _, seen = r.run()
        r.end()
        if seen:
            return
    raise AssertionError("no late byte was seen")

# SPDX-License-Identifier: Apache-2.0
"""Deaths: either client or either daemon is killed at a random moment, freezes, or finds no memory
and no descriptors; beside them others whose hand-overs stay byte-exact.

After each: what was told OK has the right bytes, what has ended is not touched any more, the guards
are whole, nothing of the dead is left, and nobody hung. KVT_LONG=1 plays ten times the rounds.
"""
import os
import pathlib
import resource
import signal
import time

import pytest

from actors import actor, place, seeded  # noqa: F401
from conftest import wait_until
from test_strain import reload
from wire import SLOW

LONG = 10 if os.environ.get("KVT_LONG") == "1" else 1
ROUNDS = 50 * LONG       # of each of the four worlds
HANG = 3                 # s beyond what keep-alives and deadlines allow
BLOCKS, PLANES, SIZE = 16, 2, 16384
CHUNKS = 'transport { local_chunk = "16 KiB" tcp_chunk = "16 KiB" }\n'
QUICK = "peers { keepalive_interval = 100ms keepalive_timeout = 600ms redial_max = 100ms }\n"
ALL = f"0-{BLOCKS - 1}"
BACK = f"{BLOCKS - 1}-0"
# what the end of the other side, or of a daemon between, may look like
BROKEN = {"CLIENT_DIED", "SHUTDOWN", "PEER_LOST", "PEER_UNREACHABLE", "PEER_RESTARTED", "TRANSPORT"}


def with_patience(what, wanted, timeout=HANG):
    """Asks again while the answer is one of those that a reconnection explains."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        answer = what()
        if answer in wanted or answer not in BROKEN | {"TIMEOUT", "NOT_FOUND"}:
            return answer
        assert time.monotonic() < deadline, f"{timeout} s and still {answer!r}"
        time.sleep(0.005)


class Pair:
    """An owner with cache A and a reader with cache B; either may be replaced."""

    def __init__(self, p, make, name):
        self.p, self.make, self.name = p, make, name
        self.owner = self.reader = None
        self.n = 0
        self.revive()

    def revive(self):
        if self.owner is None:
            self.owner = self.make(self.p.owner, f"name={self.name}-owner")
            self.owner.cache("A", BLOCKS, PLANES, SIZE)
        if self.reader is None:
            self.reader = self.make(self.p.reader, f"name={self.name}-reader")
            self.reader.cache("B", BLOCKS, PLANES, SIZE)

    def sides(self, op):
        """Who has the source, who the destination: actor, cache."""
        o, r = (self.owner, "A"), (self.reader, "B")
        return (o, r) if op == "pull" else (r, o)

    def hand_over(self, op):
        """One that must go well, after whatever was before."""
        self.n += 1
        g, x = f"h{self.n}", f"h{self.n}"
        (src, s), (dst, d) = self.sides(op)
        src.ok(f"fill {self.n} {s}:{ALL if s == 'A' else BACK}")
        dst.ok(f"noise {d} {self.n}")

        def once():
            granted = self.owner(f"grant {g} {'read' if op == 'pull' else 'write'} A:{ALL}")
            if granted != "OK":
                return granted
            end = self.reader.run(x, op, granted.text, f"B:{BACK} final")
            self.reader.ok(f"free {x}")
            if end != "OK":
                self.owner.ok(f"revoke {g}")
            grant = self.owner.gwait(g)
            self.owner.ok(f"gfree {g}")
            assert end != "OK" or grant == "OK", repr(grant)
            return end
        end = with_patience(once, {"OK"})
        assert end == "OK", repr(end)
        part = f"{d}:{ALL if d == 'A' else BACK}"
        dst.ok(f"check {self.n} {part}")
        dst.ok(f"changed {d} {part}")

    def drop(self):
        for a in (self.owner, self.reader):
            a.events()


class World:
    """Daemons at fixed addresses, a pair that dies, and one that only sees daemons die."""

    def __init__(self, place, make, rng, *args, config):
        self.p, self.rng = place(*args, config=config), rng
        for d in self.p.daemons:
            at = d.args.index("127.0.0.1:0")
            d.args[at] = d.address  # again there after a restart
        self.pair, self.others = Pair(self.p, make, "pair"), Pair(self.p, make, "others")
        self.pair.hand_over("pull")
        self.others.hand_over("pull")
        self.span = 0.002
        self.seen, self.restarts = {}, 0
        self.standing = None
        self.stand()

    def stand(self):
        """A grant that nobody uses: live for as long as its daemon."""
        self.others.owner.ok(f"fill 4711 A:{ALL}")
        self.others.owner.ok("snap A")
        self.standing = self.others.owner.grant("standing", f"read A:{ALL} ttl=600000")

    def unmoved(self):
        """Of the live grant: no byte of it has changed."""
        self.others.owner.ok(f"check 4711 A:{ALL}")
        self.others.owner.ok("changed A")

    # ---- a round

    def start(self, n, op):
        """Traffic: whole, or layer by layer."""
        owner, reader = self.pair.owner, self.pair.reader
        (src, s), (dst, d) = self.pair.sides(op)
        src.ok(f"fill {n} {s}:{ALL}")
        dst.ok(f"noise {d} {n}")
        token = owner.grant(f"g{n}", f"{'read' if op == 'pull' else 'write'} A:{ALL}")
        if self.rng.random() < 0.3:
            assert reader.run(f"c{n}", "claim", token) == "OK"
            reader.ok(f"free c{n}")
        parts = [f"B:{ALL}"]
        if self.rng.random() < 0.3:
            parts = [f"B:{ALL}:planes={i}+1:far={i}" for i in range(PLANES)]
        for i, part in enumerate(parts):
            last = " final" if i == len(parts) - 1 else ""
            reader.xfer(f"x{n}.{i}", op, token, part + last)
        return parts

    def unopened(self):
        """The grant of this round may have met no open before the daemons that would: nobody ends it."""
        return self.p.owner.alive and \
            not [r for r in self.p.owner.rows("GRANT") if r["state"] != "live"]

    def die(self, victim):
        pair = self.pair
        if victim in ("owner", "reader"):
            getattr(pair, victim).kill()
            setattr(pair, victim, None)
        else:
            getattr(self.p, victim.partition(" ")[0]).kill()

    def ends(self, n, op, parts, killed):
        """What the living hear, and that it is so."""
        pair, heard = self.pair, []
        if pair.reader:
            for i in range(len(parts)):
                start = time.monotonic()
                end = pair.reader.wait(f"x{n}.{i}", HANG * 1000)
                assert end == "OK" or end in BROKEN or end in ("NOT_FOUND", "REVOKED"), repr(end)
                heard.append(str(end))
                assert time.monotonic() - start < HANG * SLOW
                if end == "OK" and op == "pull":
                    pair.reader.ok(f"check {n} {parts[i]}")
                pair.reader.ok(f"free x{n}.{i}")
        if pair.owner:
            told = "daemon" in killed and not self.unopened()
            grant = pair.owner.gwait(f"g{n}", HANG * 1000 if told else 0)
            assert grant != "PENDING" or not told
            if grant == "PENDING":  # not opened yet, or not known yet
                pair.owner.ok(f"revoke g{n}")
                grant = pair.owner.gwait(f"g{n}", HANG * 1000)
            assert grant == "OK" or grant in BROKEN or grant == "REVOKED", repr(grant)
            if grant == "OK" and op == "push":
                pair.owner.ok(f"check {n} A:{ALL}")
            assert grant == "OK" or heard[-1:] != ["OK"] or "daemon" in killed, (heard, grant)
            pair.owner.ok(f"gfree g{n}")
            heard.append("grant " + str(grant))
        # ended: it is theirs again, and no byte comes any more
        (_, _), (dst, d) = pair.sides(op)
        if dst:
            dst.ok(f"changed {d} {d}:{ALL}")
            dst.ok(f"noise {d} {n + 1}")
        return dst, d, heard

    def round(self, n):
        rng = self.rng
        op = rng.choice(["pull", "push"])
        victim = rng.choice(["owner", "reader"] * 3 + ["owner daemon", "reader daemon"])
        parts = self.start(n, op)
        time.sleep(rng.random() * self.span)
        self.die(victim)
        dst, d, heard = self.ends(n, op, parts, victim)
        # about as many that were in time as were not
        if heard:
            self.span *= 1.15 if "OK" not in heard[0] else 0.87
            self.span = min(max(self.span, 0.0002), 0.02)
        if "daemon" in victim:
            self.restart()
        else:
            self.unmoved()
        self.pair.revive()
        self.calm()
        if dst:
            dst.ok(f"changed {d} 2")
        self.pair.hand_over(rng.choice(["pull", "push"]))
        if n % 10 == 0:
            self.others.hand_over("push")
            self.others.owner.ok(f"fill 4711 A:{ALL}")
            self.others.owner.ok("snap A")
        self.pair.drop()
        key = f"{victim}: {', '.join(heard)}"
        self.seen[key] = self.seen.get(key, 0) + 1
        return f"{op}, {key}"

    def restart(self):
        """On the same address, while its clients already knock."""
        dead = [d for d in self.p.daemons if not d.alive]
        for d in dead:
            d.start()
        self.restarts += 1
        for a, at in self.actors():
            if at in dead:
                self.come_back(a)
        if self.p.owner in dead:
            assert self.others.owner.gwait("standing", HANG * 1000) == "SHUTDOWN"
            self.others.owner.ok("gfree standing")
            self.stand()
        else:
            self.unmoved()

    def actors(self):
        """All that live, and where."""
        return [(a, at) for pair in (self.pair, self.others) for a, at in
                ((pair.owner, self.p.owner), (pair.reader, self.p.reader)) if a]

    @staticmethod
    def come_back(a):
        """It hears that its daemon is gone, and that there is another, with its regions there."""
        kinds = []
        while not kinds or kinds[-1] != "RECONNECTED":
            event = a.ok(f"event {HANG * 1000 * SLOW}")
            kinds.append(event.kind)
        assert event["status"] == "OK" and kinds[-2:-1] != ["RECONNECTED"], kinds
        assert kinds.count("DISCONNECTED") == 1, kinds

    def calm(self):
        """Nothing of the dead is left; the living have what is theirs."""
        for d in self.p.daemons:
            mine = [a for a, at in self.actors() if at is d]
            want = {"clients": len(mine), "regions": len(mine), "caches": len(mine),
                    "grants": int(d is self.p.owner), "transfers": 0, "fencing": 0}

            def left():
                with d.admin(name="calm") as c:
                    s = c.status()
                return {k: s.get(k, 0) for k in want}
            deadline = time.monotonic() + HANG * SLOW
            while left() != want:
                assert time.monotonic() < deadline, f"{d.name}: {left()}, not {want}"
                time.sleep(0.003)
            fds = d.fds()
            assert fds["memfd"] == len(mine), fds


@pytest.mark.parametrize("speed", ["full", "slow"])
def test_killed(place, actor, seeded, speed):
    slow = ["--fault", "delay-chunk=1"] if speed == "slow" else []
    w = World(place, actor, seeded, *slow, config=CHUNKS + QUICK)
    start, took = time.monotonic(), []
    for n in range(1, ROUNDS + 1):
        at = time.monotonic()
        what = w.round(n)
        took.append((time.monotonic() - at, n, what))
    for key in sorted(w.seen):
        print(f"{w.seen[key]:4} {key}")
    print(f"{ROUNDS} rounds in {time.monotonic() - start:.1f} s, {w.restarts} restarts; the longest:",
          *(f"{t:.2f} s: round {n}: {what}" for t, n, what in sorted(took)[-3:]), sep="\n    ")
    heard = " ".join(w.seen)
    assert "OK" in heard and "CLIENT_DIED" in heard and w.restarts, w.seen
    w.others.owner.ok("revoke standing")
    for pair in (w.pair, w.others):
        for a in (pair.owner, pair.reader):
            a.exit()
    for d in w.p.daemons:
        d.wait_idle()


# ---------------------------------------------------------------- tests of the tests

SLOWLY = 'transport { local_chunk = "4 KiB" tcp_chunk = "4 KiB" }\n'


def crashed(p):
    """Memory of the dead that was unmapped under a thread's hands."""
    return any(d.process.poll() is not None for d in p.daemons)


def dies_while_it_writes(p, pair, n):
    """A round; whether bytes came after the end."""
    op = "push" if n % 2 else "pull"
    (src, s), (dst, d) = pair.sides(op)
    src.ok(f"fill {n} {s}:{ALL}")
    dst.ok(f"noise {d} {n}")
    token = pair.owner.grant(f"g{n}", f"{'read' if op == 'pull' else 'write'} A:{ALL}")
    pair.reader.xfer(f"x{n}", op, token, f"B:{ALL} final")
    dst.ok(f"until {n} {d}:{ALL}")
    src.kill()
    if op == "push":
        end = pair.owner.gwait(f"g{n}", HANG * 1000, "then=A")
        pair.reader = None
    else:
        end = pair.reader.wait(f"x{n}", HANG * 1000, "then=B")
        pair.owner = None
    assert end == "CLIENT_DIED", repr(end)
    late = dst(f"changed {d} 40") != "OK"
    pair.revive()
    return late


@pytest.mark.parametrize("fence", ["on", "off"])
def test_killed_while_it_writes(place, actor, fence):
    """The other side of a destination dies in the middle: its owner is told, and takes it back. With
    fences off bytes must come after that, or the daemon dies of it."""
    off = [] if fence == "on" else ["--fault", "fence-off"]
    p = place("--fault", "delay-chunk=5", *off, config=SLOWLY, check=fence == "on")
    pair = Pair(p, actor, "pair")
    for n in range(1, 9):
        try:
            late = dies_while_it_writes(p, pair, n)
        except AssertionError:
            if fence == "on":
                raise
            wait_until("a daemon has died of it", lambda: crashed(p))
            return
        assert fence == "off" or not late, f"late bytes in round {n}"
        if late:
            return
    assert fence == "on", "no late byte in any round"


@pytest.mark.parametrize("confirm", ["asked", "off"])
@pytest.mark.parametrize("op", ["pull", "push"])
def test_killed_before_the_commit(place, actor, op, confirm):
    """All bytes are there, the owner dies before it confirms: that is no success. With confirm-off
    it is one."""
    off = [] if confirm == "asked" else ["--fault", "confirm-off"]
    p = place("--fault", "delay-commit=5000", *off, config=SLOWLY, check=confirm == "asked")
    pair = Pair(p, actor, "pair")
    token = pair.owner.grant("g", f"{'read' if op == 'pull' else 'write'} A:{ALL}")
    pair.reader.xfer("x", op, token, f"B:{ALL} final")
    wait_until("it waits for its commit", lambda: any(
        r["role"] == "owner" and r["state"] == "moved" for r in p.owner.rows("TRANSFER")))
    pair.owner.kill()
    assert pair.reader.wait("x") == ("CLIENT_DIED" if confirm == "asked" else "OK")


# ---------------------------------------------------------------- frozen

@pytest.mark.parametrize("who", ["owner", "reader"])
def test_frozen_client(place, actor, who):
    """For longer than any keep-alive: daemons move its bytes all the same, and it hears of it."""
    p = place(config=QUICK + SLOWLY)
    pair, others = Pair(p, actor, "pair"), Pair(p, actor, "others")
    for n, op in enumerate(("pull", "push")):
        (src, s), (dst, d) = pair.sides(op)
        src.ok(f"fill {n} {s}:{ALL}")
        dst.ok(f"noise {d} {n}")
        token = pair.owner.grant("g", f"{'read' if op == 'pull' else 'write'} A:{ALL}")
        frozen = getattr(pair, who)
        if who == "reader":
            pair.reader.xfer("x", op, token, f"B:{ALL} final")
        frozen.stop()
        if who == "owner":
            pair.reader.xfer("x", op, token, f"B:{ALL} final")
            assert pair.reader.wait("x") == "OK"
        else:
            assert pair.owner.gwait("g") == "OK"
        deadline = time.monotonic() + 0.8
        while time.monotonic() < deadline:
            others.hand_over("pull")
        frozen.resume()
        assert pair.owner.gwait("g") == "OK" and pair.reader.wait("x") == "OK"
        dst.ok(f"check {n} {d}:{ALL}")
        dst.ok(f"changed {d} {d}:{ALL}")
        pair.owner.ok("gfree g")
        pair.reader.ok("free x")
    for d in p.daemons:
        assert "lost" not in d.log()


@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("who", ["owner", "reader"])
def test_frozen_daemon(kvtd, actor, who, op):
    """For longer than the keep-alive: the other side hears of it in time, its own clients when it is
    back, and then all goes on."""
    class P:
        owner, reader = (kvtd(config=QUICK + SLOWLY) for _ in "12")
    pair, others = Pair(P, actor, "pair"), Pair(P, actor, "others")
    others.hand_over("pull")
    (src, s), (dst, d) = pair.sides(op)
    src.ok(f"fill 1 {s}:{ALL}")
    dst.ok(f"noise {d} 1")
    for daemon in (P.owner, P.reader):
        reload(daemon, 'fault = {"delay-chunk=20"}\n' + QUICK + SLOWLY)
    token = pair.owner.grant("g", f"{'read' if op == 'pull' else 'write'} A:{ALL}")
    pair.reader.xfer("x", op, token, f"B:{ALL} final")
    dst.ok(f"until 1 {d}:{ALL}")
    frozen = getattr(P, who)
    frozen.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
    start = time.monotonic()
    there = pair.reader if who == "owner" else pair.owner  # whose daemon is at work
    ours = f"wait x {HANG * 1000 * SLOW}" if there is pair.reader else \
        f"gwait g {HANG * 1000 * SLOW}"
    mine = d if there is dst else None
    end = there(ours + (f" then={mine}" if mine else ""))
    assert end == "PEER_LOST", repr(end)
    assert time.monotonic() - start < (0.6 + HANG) * SLOW
    here = pair.owner if who == "owner" else pair.reader
    assert here("gwait g 50" if who == "owner" else "wait x 50") == "PENDING"
    frozen.signal(signal.SIGCONT)
    end = pair.owner.gwait("g", HANG * 1000) if who == "owner" else \
        pair.reader.wait("x", HANG * 1000)
    assert end == "PEER_LOST", repr(end)
    if mine:
        there.ok(f"changed {mine} 100")
    for daemon in (P.owner, P.reader):
        reload(daemon, 'fault = {"delay-chunk=0"}\n' + QUICK + SLOWLY)
    pair.owner.ok("gfree g")
    pair.reader.ok("free x")
    pair.hand_over("push" if op == "pull" else "pull")
    others.hand_over(op)


# ---------------------------------------------------------------- nothing left to have

def status_kib(pid, name):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])


@pytest.mark.skipif("KVT_SANITIZE" in os.environ, reason="sanitizers map the address space")
def test_daemon_without_memory(place, actor):
    """RLIMIT_AS: what cannot be had fails its request; all else goes on, and all of it afterwards."""
    p = place(config="limits { list_bytes = 1GiB grants = 100000 }\n"
              "limits_key { list_bytes = 1GiB }\n")
    pair, others = Pair(p, actor, "pair"), Pair(p, actor, "others")
    others.hand_over("pull")
    pair.hand_over("pull")
    pair.owner.cache("L", 1 << 20, 1, 1, "guard=0", "raw")
    scattered = ",".join(str(i) for i in range(0, 100000, 3))
    for d in p.daemons:
        limit = (status_kib(d.pid, "VmSize") << 10) + (2 << 20)
        resource.prlimit(d.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    refused, made = None, []
    for n in range(200):
        got = pair.owner(f"grant big{n} read L:{scattered} ttl=600000")
        if got != "OK":
            refused = got
            break
        made.append(f"big{n}")
    assert refused == "NO_MEMORY", repr(refused)
    for _ in range(10):
        end = pair.owner(f"grant small read A:{ALL}")
        assert end in ("OK", "NO_MEMORY"), repr(end)
        if end == "OK":
            got = pair.reader.run("s", "pull", end.text, f"B:{BACK} final")
            assert got in ("OK", "NO_MEMORY", "PEER_LOST"), repr(got)
            pair.owner.ok("revoke small")
            assert pair.owner.gwait("small") != "PENDING"
            pair.owner.ok("gfree small")
            pair.reader.ok("free s")
    for d in p.daemons:
        assert d.alive
        resource.prlimit(d.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    for name in made:
        pair.owner.ok(f"revoke {name}")
        assert pair.owner.gwait(name) == "REVOKED"
    others.hand_over("pull")
    pair.hand_over("push")


def test_client_without_memory_or_fds(place, actor):
    """It is told, and goes on with what it has."""
    p = place()
    pair = Pair(p, actor, "pair")
    pair.hand_over("pull")
    for a in (pair.owner, pair.reader):
        if "KVT_SANITIZE" not in os.environ:
            size = (status_kib(a.pid, "VmSize") << 10) + (1 << 20)
            resource.prlimit(a.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
            refused = a(f"region R {64 << 20}")
            assert refused == "NO_MEMORY", repr(refused)
        fds = max(int(fd) for fd in os.listdir(f"/proc/{a.pid}/fd")) + 1
        hard = resource.prlimit(a.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(a.pid, resource.RLIMIT_NOFILE, (fds, hard))
        refused = a("region R 4096")
        assert refused not in ("OK", "INTERNAL", "PENDING"), repr(refused)
        print(repr(refused))
    pair.hand_over("push")
    pair.hand_over("pull")
    for a in (pair.owner, pair.reader):
        resource.prlimit(a.pid, resource.RLIMIT_NOFILE, (hard, hard))
        resource.prlimit(a.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        a.ok("region R 4096")

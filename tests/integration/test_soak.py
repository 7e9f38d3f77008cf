# SPDX-License-Identifier: Apache-2.0
"""Mixed traffic for a while, on this node and between two, with cancels, revokes, expiries and deaths:
at rest the daemons have no more memory, descriptors and mappings than they had after the warm-up.
KVT_LONG=1 makes it ten minutes."""
import os
import pathlib
import random
import statistics
import threading
import time

import pytest

from actors import actor, seeded  # noqa: F401
from test_deaths import ALL, BACK, BROKEN, HANG, Pair
from test_scale import maps, rss_anon
from wire import SLOW

pytestmark = pytest.mark.plain

SECONDS = 600 if os.environ.get("KVT_LONG") == "1" else 40
WARM_UP, SAMPLES = 0.3, 24


class Traffic:
    """A pair that is never done, in a thread of its own."""

    def __init__(self, owner, reader, make, seed):
        class P:
            pass
        P.owner, P.reader = owner, reader
        self.pair, self.rng = Pair(P, make, f"soak-{owner.name}-{reader.name}"), random.Random(seed)
        self.n, self.counts, self.error = 0, {}, None
        self.lock, self.stop = threading.Lock(), False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        try:
            while not self.stop:
                with self.lock:
                    self.round()
                time.sleep(0)  # whoever waits for the lock gets it
        except BaseException as e:
            self.error = e

    def round(self):
        self.n += 1
        what, = self.rng.choices([self.whole, self.stopped, self.expired, self.killed, self.dropped],
                                 [60, 20, 5, 2, 5])
        what()
        for a in (self.pair.owner, self.pair.reader):
            a.events()
        self.counts[what.__name__] = self.counts.get(what.__name__, 0) + 1

    def whole(self):
        self.pair.hand_over(self.rng.choice(["pull", "push"]))

    def begin(self):
        op = self.rng.choice(["pull", "push"])
        (src, s), (dst, d) = self.pair.sides(op)
        src.ok(f"fill {self.n} {s}:{ALL}")
        dst.ok(f"noise {d} {self.n}")
        token = self.pair.owner.grant("g", f"{'read' if op == 'pull' else 'write'} A:{ALL}")
        self.pair.reader.xfer("x", op, token, f"B:{BACK} final note=0102")
        return dst, d

    def stopped(self):
        dst, d = self.begin()
        if self.rng.random() < 0.5:
            self.pair.reader.ok("cancel x")
        else:
            self.pair.owner.ok("revoke g")
        assert self.pair.reader.wait("x") in ("OK", "CANCELED", "REVOKED")
        self.pair.owner.ok("revoke g")
        assert self.pair.owner.gwait("g") in ("OK", "REVOKED")
        dst.ok(f"changed {d} {d}:{ALL}")
        self.pair.owner.ok("gfree g")
        self.pair.reader.ok("free x")

    def expired(self):
        self.pair.owner.grant("g", f"read A:{ALL} ttl=1 tag=expires")
        assert self.pair.owner.gwait("g") == "EXPIRED"
        self.pair.owner.ok("gfree g")

    def dropped(self):
        token = self.pair.owner.grant("g", f"read A:{ALL}")
        self.pair.reader.ok(f"drop {token} decline")
        assert self.pair.owner.gwait("g") == "DECLINED"
        self.pair.owner.ok("gfree g")

    def killed(self):
        self.begin()
        who = self.rng.choice(["owner", "reader"])
        getattr(self.pair, who).kill()
        setattr(self.pair, who, None)
        if who == "owner":
            end = self.pair.reader.wait("x", HANG * 1000)
            assert end == "OK" or end in BROKEN, repr(end)
            self.pair.reader.ok("free x")
        else:
            self.pair.owner.ok("revoke g")
            assert self.pair.owner.gwait("g", HANG * 1000) != "PENDING"
            self.pair.owner.ok("gfree g")
        self.pair.revive()


def at_rest(d, clients):
    """RssAnon, sockets of peers, mappings when nothing moves and nothing of the dead is left."""
    kinds = ("memfd", "pidfd", "unix")
    want = sum(d.fds_at_start[k] for k in kinds) + len(kinds) * clients
    deadline = time.monotonic() + HANG * SLOW
    while True:
        s, n = d.status(), d.fds()
        if s["clients"] == clients and sum(n[k] for k in kinds) == want and \
                not any(s.get(k) for k in ("grants", "transfers", "fencing")):
            return rss_anon(d), n["inet"], maps(d)
        assert time.monotonic() < deadline, (s, n)
        time.sleep(0.005)


@pytest.mark.skipif(SLOW > 1, reason="a measurement")
def test_soak(kvtd, actor, seeded):
    a, b = (kvtd(config="grants { token_keep = 1s }\npeers { redial_max = 100ms }\n"
                 'transport { local_chunk = "32 KiB" tcp_chunk = "32 KiB" }') for _ in "ab")
    streams = [Traffic(o, r, actor, seeded.random()) for o, r in
               ((a, a), (a, b), (b, a), (b, b))]
    for t in streams:
        t.pair.hand_over("pull")
        t.thread.start()
    samples, start = {a: [], b: []}, time.monotonic()
    while time.monotonic() < start + SECONDS:
        time.sleep(SECONDS / SAMPLES / 2)
        if time.monotonic() < start + SECONDS * WARM_UP:
            continue
        for t in streams:
            t.lock.acquire()
        try:
            for t in streams:
                assert t.error is None, repr(t.error)
            for d in samples:
                samples[d].append(at_rest(d, len(streams)))
        finally:
            for t in streams:
                t.lock.release()
    for t in streams:
        t.stop = True
    for t in streams:
        t.thread.join(60 * SLOW)
        assert t.error is None, repr(t.error)
        print(t.pair.name, t.counts)
        for who in (t.pair.owner, t.pair.reader):
            who.exit()
    for d, seen in samples.items():
        third = len(seen) // 3
        early, late = (statistics.median(s[0] for s in part) for part in (seen[:third], seen[-third:]))
        print(f"{d.name}: RssAnon {early / 1024:.0f} KiB, later {late / 1024:.0f} KiB; "
              f"sockets {seen[0][1]} to {seen[-1][1]}, mappings {seen[0][2]} to {seen[-1][2]}")
        assert late - early < 256 << 10, [s[0] for s in seen]
        for i in (1, 2):
            assert max(s[i] for s in seen[-third:]) <= max(s[i] for s in seen[:third]) + 4, \
                [s[i] for s in seen]
        d.wait_idle()

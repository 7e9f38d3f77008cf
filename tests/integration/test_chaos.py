# SPDX-License-Identifier: Apache-2.0
"""Several owners and readers who do anything at any time, by a seed. What was told OK has the right
bytes, each end comes once, guards stay, and nothing is left."""
import os
import signal
import time

import pytest

from conftest import wait_until
from actors import actor, blocks, place, seeded  # noqa: F401
from wire import SLOW

SECONDS = float(os.environ.get("KVT_CHAOS_SECONDS", 2))  # for each kind
BLOCKS, PLANES, SIZE = 64, 2, 8192
ENDS_OF_GRANTS = {"OK", "EXPIRED", "REVOKED", "DECLINED", "CLIENT_DIED", "PEER_LOST"}
ENDS_OF_TRANSFERS = {"OK", "NOT_FOUND", "BUSY", "TIMEOUT", "CANCELED", "EXPIRED", "REVOKED",
                     "DECLINED", "CLIENT_DIED", "TRANSPORT"}


class Side:
    """An actor with its cache C and what it has under way."""

    def __init__(self, make, daemon):
        self.actor = make(daemon)
        self.actor.cache("C", BLOCKS, PLANES, SIZE)
        self.free = list(range(BLOCKS))
        self.live = {}  # name -> what


class Chaos:
    def __init__(self, place, make, rng, starved):
        self.starved = starved  # allocations fail
        self.place, self.make, self.rng = place, make, rng
        self.owners = [Side(make, place.owner) for _ in range(3)]
        self.readers = [Side(make, place.reader) for _ in range(3)]
        self.n = 0
        self.ends = {}

    def take(self, side, n):
        if len(side.free) < n:
            return None
        self.rng.shuffle(side.free)
        ids, side.free = side.free[:n], side.free[n:]
        return ids

    def grant(self):
        rng, owner = self.rng, self.rng.choice(self.owners)
        ids = self.take(owner, rng.randrange(1, 9))
        if not ids:
            return
        self.n += 1
        op = rng.choice(["pull", "push"])
        g = {"name": f"g{self.n}", "seed": self.n, "ids": ids, "op": op, "owner": owner,
             "readers": rng.choice([1, 1, 1, 2, 3]), "done": 0}
        if op == "pull":
            owner.actor.ok(f"fill {g['seed']} C:{blocks(ids)}")
        what = f"{'read' if op == 'pull' else 'write'} C:{blocks(ids)} readers={g['readers']}"
        what += " keep" * (rng.random() < 0.2)
        what += f" ttl={rng.choice([20, 200, 5000])} hold={rng.choice([20, 200, 60000])}"
        made = owner.actor(f"grant {g['name']} {what}")
        if made == "NO_MEMORY" and self.starved:
            owner.free += ids
            return
        assert made == "OK", repr(made)
        g["token"] = made.text
        owner.live[g["name"]] = g
        for _ in range(rng.choice([1, 1, 2, 4])):
            self.use(g)

    def use(self, g):
        rng, reader = self.rng, self.rng.choice(self.readers)
        self.n += 1
        x = {"name": f"x{self.n}", "grant": g, "reader": reader, "ids": []}
        more = f" timeout={rng.choice([2, 20])}" if rng.random() < 0.15 else ""
        more += " note=0a0b" if rng.random() < 0.3 else ""
        if rng.random() < 0.15:
            reader.actor.xfer(x["name"], "claim", g["token"], more)
        else:
            x["ids"] = self.take(reader, len(g["ids"]))
            if not x["ids"]:
                return
            x["final"] = rng.random() < 0.6
            if g["op"] == "push":
                reader.actor.ok(f"fill {g['seed']} C:{blocks(x['ids'])}")
            reader.actor.xfer(x["name"], g["op"], g["token"],
                              f"C:{blocks(x['ids'])}{more}{' final' * x['final']}")
        reader.live[x["name"]] = x

    def steer(self):
        """Something to what is under way."""
        rng = self.rng
        owner, reader = rng.choice(self.owners), rng.choice(self.readers)
        if owner.live and rng.random() < 0.4:
            g = rng.choice(list(owner.live.values()))
            how = rng.choice(["revoke", "extend", "use", "use", "release", "decline"])
            if how == "revoke":
                owner.actor.ok(f"revoke {g['name']}")
            elif how == "extend":
                owner.actor(f"extend {g['name']} 100")
            elif how == "use":
                self.use(g)
            else:
                reader.actor(f"drop {g['token']} {how} 200")
        elif reader.live:
            reader.actor.ok(f"cancel {rng.choice(list(reader.live))}")

    def kill(self):
        sides = self.rng.choice([self.owners, self.readers])
        i = self.rng.randrange(len(sides))
        side, sides[i] = sides[i], None
        side.actor.kill()
        side.live = {}
        sides[i] = Side(self.make, self.place.owner if sides is self.owners else self.place.reader)

    def look(self):
        """Who has come to an end."""
        for reader in self.readers:
            for x in list(reader.live.values()):
                end = reader.actor(f"wait {x['name']} 0")
                if end == "PENDING":
                    continue
                self.ended(str(end), ENDS_OF_TRANSFERS, end)
                if end == "OK" and x["ids"] and x["grant"]["op"] == "pull":
                    reader.actor.ok(f"check {x['grant']['seed']} C:{blocks(x['ids'])}")
                del reader.live[x["name"]]
                reader.free += x["ids"]
                reader.actor.ok(f"free {x['name']}")
        for owner in self.owners:
            for g in list(owner.live.values()):
                end = owner.actor(f"gwait {g['name']} 0")
                if end == "PENDING":
                    continue
                self.ended("grant " + str(end), {f"grant {e}" for e in ENDS_OF_GRANTS}, end)
                if end == "OK" and g["op"] == "push" and end["bytes"]:
                    owner.actor.ok(f"check {g['seed']} C:{blocks(g['ids'])}")
                # the memory is his again
                owner.actor.ok(f"fill {g['seed'] + 1000000} C:{blocks(g['ids'])}")
                del owner.live[g["name"]]
                owner.free += g["ids"]
                owner.actor.ok(f"gfree {g['name']}")

    def ended(self, what, allowed, end):
        assert what in allowed or self.starved and \
            what.endswith(("NO_MEMORY", "PEER_LOST")), repr(end)
        self.ends[what] = self.ends.get(what, 0) + 1

    def finish(self):
        for owner in self.owners:
            for name in owner.live:
                owner.actor.ok(f"revoke {name}")
        deadline = time.monotonic() + 20 * SLOW
        while any(s.live for s in self.owners + self.readers):
            self.look()
            assert time.monotonic() < deadline, [s.live for s in self.owners + self.readers]
        for s in self.owners + self.readers:
            s.actor.ok(f"changed C C:0-{BLOCKS - 1}")
            assert not [e for e in s.actor.events() if e.kind in ("TRANSFER", "GRANT")
                        and not e["name"]]
            s.actor.exit()


KINDS = {
    "fast": [],
    "slow": ["--fault", "delay-chunk=1"],
    "starved": ["--fault", "alloc-fail=19"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_chaos(place, actor, seeded, kind):
    starved = kind == "starved"
    p = place(*([] if starved else KINDS[kind]), config="""
        transport {
            local_chunk = "8 KiB"
            tcp_chunk = "8 KiB"
            tcp_streams = 4
            local_threads = 4
            tcp_threads = 4
        }""")
    c = Chaos(p, actor, seeded, starved)
    if starved:
        assert c.readers[0].actor("tstatus " + c.owners[0].actor.grant("up", "read C:0")) == "OK"
        c.owners[0].actor.ok("revoke up")
        for d in p.daemons:
            d.config_file.write_text('fault = {"%s"}\n' % KINDS[kind][1] +
                                     d.config_file.read_text())
            d.signal(signal.SIGHUP)
            wait_until("it is reloaded", lambda d=d: "config: reloaded" in d.log())
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        what = seeded.random()
        if what < 0.45:
            c.grant()
        elif what < 0.75:
            c.steer()
        elif what < 0.765 and not starved:
            c.kill()
        c.look()
    c.finish()
    print(c.ends)
    assert c.ends.get("OK", 0) > 5 and c.ends.get("grant OK", 0) > 2, c.ends
    if starved:
        for d in p.daemons:
            d.config_file.write_text('fault = {"alloc-fail=0"}\n')
            d.signal(signal.SIGHUP)
            wait_until("it is reloaded", lambda d=d: d.log().count("config: reloaded") == 2)
    for d in p.daemons:
        d.wait_idle()

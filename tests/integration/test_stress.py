# SPDX-License-Identifier: Apache-2.0
"""Everything at once: clients of two daemons make, use, cancel, revoke, release and leave in random
order, while an administrator interferes. Whatever happens,

- every transfer and every grant ends exactly once,
- OK means the right bytes, and what has ended is not touched any more,
- nothing is left, and nothing impossible is logged (conftest looks at both).
"""
import mmap
import os
import signal
import time

import pytest

from actors import seeded  # noqa: F401 (a fixture)
from conftest import wait_until
from wire import SLOW, STATUS, Client, Gone, memfd

BLOCK, BLOCKS, PLANES = 512, 64, 2
SIZE = BLOCK * BLOCKS * PLANES
SOURCE, TARGET = 1, 2  # region and cache handles: one is only read, one is only written
SECONDS = float(os.environ.get("KVT_STRESS_SECONDS", 2))


def pattern(who, plane, block):
    return bytes([who * 7 + plane * 101 + block & 255 | 1]) * BLOCK


class Worker(Client):
    """A client whose blocks of TARGET have one user at a time; idle ones hold a canary."""

    def __init__(self, world, number, daemon):
        super().__init__(daemon.client_socket, name=f"worker {number}")
        self.world, self.number, self.daemon, self.rng = world, number, daemon, world.rng
        self.fds, self.mem = {}, {}
        self.next = 10
        self.grants, self.transfers = {}, {}  # handle -> what it is about
        self.finals = {}  # handle of a transfer -> whose final it is
        self.free = set(range(BLOCKS))
        self.whole = False
        for region in (SOURCE, TARGET):
            self.fds[region] = memfd(SIZE)
            self.mem[region] = mmap.mmap(self.fds[region], SIZE)
        for plane in range(PLANES):
            for block in range(BLOCKS):
                at = (plane * BLOCKS + block) * BLOCK
                self.mem[SOURCE][at:at + BLOCK] = pattern(number, plane, block)
        self.register()

    def register(self):
        """Again and again, until all of it is there."""
        for region in (SOURCE, TARGET):
            if self.region(region, SIZE, fd=self.fds[region]).status not in ("OK", "EXISTS"):
                return
            if self.cache(region, region, BLOCKS, BLOCK, planes=PLANES).status not in (
                    "OK", "EXISTS"):
                return
        self.whole = True

    def shut(self):
        self.close()
        for region in self.mem:
            self.mem[region].close()
            os.close(self.fds[region])

    # ---- memory

    def spans(self, blocks):
        return [(plane, block, (plane * BLOCKS + block) * BLOCK) for plane in range(PLANES)
                for block in blocks]

    def take(self, n):
        return [self.free.pop() for _ in range(min(n, len(self.free)))]

    def give(self, blocks):
        """Nobody may write them from now on: a canary is laid and the old one was whole."""
        for _, _, at in self.spans(blocks):
            self.mem[TARGET][at:at + BLOCK] = bytes(BLOCK)
        self.free.update(blocks)

    def check_free(self):
        for plane, block, at in self.spans(self.free):
            assert self.mem[TARGET][at:at + BLOCK] == bytes(BLOCK), \
                f"worker {self.number}: block {block} of plane {plane} was written after its end"

    def check_bytes(self, blocks, who, theirs):
        if who is None:  # overwritten when its region was released
            return
        for plane in range(PLANES):
            for mine, their in zip(blocks, theirs):
                at = (plane * BLOCKS + mine) * BLOCK
                assert self.mem[TARGET][at:at + BLOCK] == pattern(who, plane, their), \
                    f"worker {self.number}: wrong bytes in block {mine} of plane {plane}"

    # ---- what it does

    def do_grant(self):
        rng, handle = self.rng, self.next
        self.next += 1
        writes = rng.random() < 0.4
        blocks = self.take(rng.choice([1, 2, 8])) if writes else \
            [rng.randrange(BLOCKS) for _ in range(rng.choice([1, 2, 8]))]
        if not blocks:
            return
        r = self.grant(handle, TARGET if writes else SOURCE, blocks, 2 if writes else 1,
                       readers=1 if writes else rng.choice([1, 1, 2, 3]),
                       keep=rng.random() < 0.2, ttl_ms=rng.choice([5, 50, 2000]),
                       max_hold_ms=rng.choice([10, 100, 2000]),
                       note=rng.choice([b"", b"from the owner"]))
        if r.status != "OK":
            if writes:
                self.give(blocks)
            return
        self.grants[handle] = (writes, blocks)
        self.world.offer((r.grant_created["token"], self.number, writes, blocks, handle))

    def do_transfer(self):
        rng, handle = self.rng, self.next
        if not self.world.tokens:
            return
        token, who, writes, theirs, grant = rng.choice(self.world.tokens)
        self.next += 1
        fields = {"final": rng.random() < 0.6, "timeout_ms": rng.choice([0, 0, 1, 20, 500]),
                  "open_wait_ms": rng.choice([0, 0, 10]), "priority": rng.choice([0, 1, 2]),
                  "note": rng.choice([b"", b"", b"from the opener"])}
        self.finals[handle] = fields["final"] and (who, grant)
        if rng.random() < 0.15:
            op = rng.choice(["OP_CLAIM", "OP_RELEASE", "OP_DECLINE"])
            self.transfers[handle] = ()
            self.finals[handle] = op == "OP_RELEASE" and (who, grant)
            self.transfer(handle, op, token, **{**fields, "final": False})
        elif writes:
            blocks = [rng.randrange(BLOCKS) for _ in theirs]
            self.transfers[handle] = ()
            self.transfer(handle, "OP_PUSH", token, SOURCE, blocks, **fields)
        else:
            blocks = self.take(len(theirs))
            if len(blocks) < len(theirs):
                self.give(blocks)
                return
            self.transfers[handle] = (blocks, who, theirs)
            self.transfer(handle, "OP_PULL", token, TARGET, blocks, **fields)

    def do_cancel(self):
        if self.transfers:
            self.send("transfer_cancel", rid=0, transfer=self.rng.choice(list(self.transfers)))

    def do_revoke(self):
        if self.grants:
            self.send("grant_revoke", rid=0, grant=self.rng.choice(list(self.grants)))

    def do_extend(self):
        if self.grants:
            self.send("grant_extend", rid=0, grant=self.rng.choice(list(self.grants)),
                      ttl_ms=self.rng.choice([1, 100]))

    def do_ask(self):
        if self.world.tokens:
            self.send("token_status", token=self.rng.choice(self.world.tokens)[0],
                      timeout_ms=self.rng.choice([1, 1000]))

    def do_delete(self):
        if self.rng.random() < 0.2:
            self.send("cache_delete", rid=0, cache=self.rng.choice([SOURCE, TARGET]))
            self.whole = False

    def do_release(self):
        """Both regions, under whatever is on them; all that was on them has ended then."""
        if self.rng.random() > 0.1:
            return
        for region in (SOURCE, TARGET):
            assert self.ask("region_release", region=region).status in ("OK", "NOT_FOUND")
        for blocks in [b for w, b in self.grants.values() if w] + \
                [t[0] for t in self.transfers.values() if t]:
            for _, _, at in self.spans(blocks):  # released: not even what has not said its end
                self.mem[TARGET][at:at + BLOCK] = b"\xee" * BLOCK
        for handle, t in self.transfers.items():
            if t:
                self.transfers[handle] = (t[0], None, t[2])
        self.whole = False
        self.register()

    # ---- what it hears

    def take_events(self):
        while self.receive(0):
            pass
        for r in self.replies.pop(0, []):
            h = r.get("handle", 0)
            if h in self.transfers and r.status not in ("NOT_FOUND", "EXISTS"):
                self.refused(h)
            elif h in self.transfers and "transfer" not in r.text:
                self.refused(h)
        events, self.events = self.events, []
        for e in events:
            if "transfer_ended" in e:
                self.on_transfer(e["transfer_ended"])
            elif "grant_ended" in e:
                e = e["grant_ended"]
                writes, blocks = self.grants.pop(e["grant"])  # KeyError: twice
                self.world.ended[self.number, e["grant"]] = e.get("finals", 0)
                if writes:
                    self.give(blocks)
        if not self.whole:
            self.register()

    def refused(self, handle):
        t = self.transfers.pop(handle)
        if t:
            self.give(t[0])

    def on_transfer(self, e):
        t = self.transfers.pop(e["transfer"])  # KeyError: a second end
        status = STATUS[e.get("status", 0)]
        self.world.count(status)
        final = self.finals.pop(e["transfer"])
        if final and status == "OK":
            self.world.finals[final] = self.world.finals.get(final, 0) + 1
        if t and status == "OK":
            self.check_bytes(*t)
        if t:
            self.give(t[0])


class World:
    memory_fails = False

    def __init__(self, rng, daemons, n):
        self.rng, self.daemons, self.tokens, self.ends = rng, daemons, [], {}
        self.serial = 0
        self.finals, self.ended = {}, {}  # of grants: seen by openers, by owners
        self.workers = [self.hire(daemons[i % len(daemons)]) for i in range(n)]

    def hire(self, daemon):
        self.serial += 1
        deadline = time.monotonic() + 10 * SLOW
        while True:
            try:
                return Worker(self, self.serial, daemon)
            except (Gone, ConnectionError, AssertionError):  # while memory fails it
                assert daemon.alive and time.monotonic() < deadline

    def offer(self, token):
        self.tokens = self.tokens[-15:] + [token]

    def count(self, status):
        self.ends[status] = self.ends.get(status, 0) + 1

    def replace(self, i):
        """A worker dies, and what others know of it stays."""
        old = self.workers[i]
        old.shut()
        self.workers[i] = self.hire(old.daemon)

    def admin(self, daemon):
        what = self.rng.choice(["drain", "resume", "resume", "reload", "admin_cancel",
                                "admin_revoke", "list"])
        try:
            self.admin_asks(daemon, what)
        except (Gone, ConnectionError, AssertionError):
            assert self.memory_fails and daemon.alive

    def admin_asks(self, daemon, what):
        with daemon.admin(name="admin") as a:
            if what == "admin_cancel":
                for row in a.rows("TRANSFER")[:2]:
                    a.ask(what, id=row["id"])
            elif what == "admin_revoke":
                for row in a.rows("GRANT")[:2]:
                    a.ask(what, id=row["id"])
            elif what == "list":
                for kind in ("CLIENT", "REGION", "CACHE", "GRANT", "TRANSFER", "PEER"):
                    a.rows(kind)
            else:
                a.ask(what)

    def configure(self, daemon):
        """What a careless operator may write, and what is no configuration at all."""
        r = self.rng
        ms = [f"{key} = {r.choice(values)}" for key, values in (
            ("ttl", ["1ms", "5s"]), ("max_hold", ["1ms", "5s"]), ("max_hold_max", ["1ms", "1h"]),
            ("open_wait_max", ["0s", "1s"]), ("token_keep", ["0s", "1s"]))]
        counts = [f"{key} = {r.choice([1, 5, 1000])}" for key in
                  ("regions", "caches", "grants", "transfers", "parked", "dials")]
        daemon.config_file.write_text(r.choice([
            CONFIG.format(f"grants {{ {' '.join(ms)} }}"),
            CONFIG.replace("dials = 64", " ".join(counts)).format(""),
            CONFIG.format("peers { allow = {\"10.0.0.0/8\"} }"),
            CONFIG.format("peers { keepalive_interval = 10ms keepalive_timeout = 20ms }"),
            CONFIG.format("log_level = debug fence_timeout = 10ms"),
            CONFIG.format(""), CONFIG.format(""),
            "nonsense", ""]))
        with daemon.admin(name="operator") as a:
            assert a.ask("reload").status in ("OK", "INVALID")

    def chaos(self):
        """Something happens to a daemon."""
        d, what = self.rng.choice(self.daemons), self.rng.random()
        if what < 0.4:
            self.configure(d)
        elif what < 0.7 and len(self.daemons) > 1:
            d.signal(signal.SIGSTOP)
            for w in self.workers:
                if w.daemon is not d:
                    for _ in range(self.rng.randrange(20)):
                        w.do_transfer()
                        w.take_events()
            d.signal(signal.SIGCONT)
        else:
            d.kill()
            d.config_file.write_text(CONFIG.format(""))
            d.start()
            for i, w in enumerate(self.workers):
                if w.daemon is d:
                    self.replace(i)

    def run(self, seconds, chaos=False):
        deadline = time.monotonic() + seconds
        acts = [(Worker.do_grant, 30), (Worker.do_transfer, 45), (Worker.do_cancel, 5),
                (Worker.do_revoke, 4), (Worker.do_extend, 2), (Worker.do_ask, 3),
                (Worker.do_release, 4), (Worker.do_delete, 2), (None, 1)]
        n = 0
        while time.monotonic() < deadline:
            n += 1
            i = self.rng.randrange(len(self.workers))
            act, = self.rng.choices([a for a, _ in acts], [w for _, w in acts])
            try:
                if act is None and self.rng.random() < 0.3:
                    self.replace(i)
                elif act:
                    act(self.workers[i])
                self.workers[i].take_events()
            except (Gone, ConnectionError):  # no memory for its messages
                self.replace(i)
            if n % 50 == 0:
                for w in self.workers:
                    w.check_free()
            if n % 100 == 0:
                self.admin(self.rng.choice(self.daemons))
            if chaos and n % 200 == 0:
                self.chaos()

    def end(self):
        for daemon in self.daemons:
            with daemon.admin() as a:
                a.ask("resume")
        for w in self.workers:
            for handle in list(w.transfers):
                w.send("transfer_cancel", rid=0, transfer=handle)
            for handle in list(w.grants):
                w.send("grant_revoke", rid=0, grant=handle)

        def quiet():
            for w in self.workers:
                w.take_events()
            return not any(w.transfers or w.grants for w in self.workers)
        wait_until("everything has ended", quiet, 20)
        for w in self.workers:
            w.check_free()
            w.shut()
        for grant, n in self.ended.items():
            assert n >= self.finals.get(grant, 0), f"grant {grant}: a final was OK and not DONE"


CONFIG = """
drain_timeout = 1s
transport {{ local_chunk = 4KiB tcp_chunk = 4KiB tcp_streams = 3 }}
limits {{ dials = 64 }}
{}
"""


@pytest.mark.parametrize("faults", ["", "delay-chunk=1", "delay-commit=3"])
@pytest.mark.parametrize("n", [1, 2])
def test_stress(kvtd, seeded, n, faults):
    config = CONFIG.format(f'fault = {{"{faults}"}}' if faults else "")
    daemons = [kvtd(config=config) for _ in range(n)]
    world = World(seeded, daemons, 5)
    try:
        world.run(SECONDS)
        world.end()
    finally:
        for w in world.workers:
            w.close()
    print(world.ends)
    assert world.ends.get("OK", 0) > 10


@pytest.mark.parametrize("n", [1, 2])
def test_stress_and_chaos(kvtd, seeded, n):
    """Daemons are killed and frozen, and their configuration is changed, under way."""
    daemons = [kvtd(config=CONFIG.format("")) for _ in range(n)]
    world = World(seeded, daemons, 5)
    try:
        world.run(SECONDS, chaos=True)
        for d in daemons:
            d.config_file.write_text(CONFIG.format(""))
            with d.admin() as a:
                assert a.ask("reload").status == "OK"
        world.end()
    finally:
        for w in world.workers:
            w.close()
    print(world.ends)


@pytest.mark.parametrize("nth", [int(x) for x in os.environ.get("NTH", "3 17 101").split()])
@pytest.mark.parametrize("n", [1, 2])
def test_stress_without_memory(kvtd, seeded, n, nth):
    """Every nth object cannot be had, on all sides."""
    daemons = [kvtd(config=CONFIG.format("")) for _ in range(n)]
    world = World(seeded, daemons, 5)

    def reload(fault):
        for d in daemons:
            d.config_file.write_text(CONFIG.format(fault))
            d.signal(signal.SIGHUP)
            wait_until("reload", lambda: d.log().count("reload") > reload.n, 10)
        reload.n += 1
    reload.n = 0
    try:
        world.memory_fails = True
        reload(f'fault = {{"alloc-fail={nth}"}}')
        world.run(SECONDS)
        reload("")
        world.memory_fails = False
        world.end()
    finally:
        for w in world.workers:
            w.close()
    print(world.ends)

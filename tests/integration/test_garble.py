# SPDX-License-Identifier: Apache-2.0
"""Two daemons, in the clear and with a key, and a wire between them that lies: bytes that change,
ways that stall, connections that end anywhere. What was told OK has the right bytes, everything
else has a status, and afterwards the two find one another again."""
import time

import pytest

from conftest import wait_until
from actors import actor, seeded  # noqa: F401
from proxy import BACK, CONTROL, DATA, THERE, Proxy
from test_wires import begin, works
from tls import Key, keyed  # noqa: F401
from wire import SLOW

PEERS = """
	keepalive_interval = "50 ms"
	keepalive_timeout = "%d ms"
	redial_max = "100 ms"
	connect_timeout = "%d ms"
""" % (500 * SLOW, 1000 * SLOW)
CONFIG = """
transport {
	tcp_chunk = "64 KiB"
	tcp_streams = 3
	encrypt = %s
}
fence_timeout = "300 ms"
"""
WAYS = pytest.mark.parametrize("way", [THERE, BACK], ids=["there", "back"])
OPS = pytest.mark.parametrize("op", ["pull", "push"])
MODES = {"clear": "yes", "key": "yes", "bound": "no"}  # how encrypt is configured


class Line:
    """owner's daemon, the wire, and reader's daemon, which dials through it."""

    def __init__(self, mode, kvtd, keyed, actor):
        self.mode, self.proxy = mode, Proxy()
        advertise = f'advertise = "{self.proxy.address}"\n'
        config = CONFIG % MODES[mode]
        if mode == "clear":
            peers = "peers {%s}\n" % PEERS
            a = kvtd(config=advertise + config + peers)
            b = kvtd("--insecure-loopback", config=config + peers, listen=False)
        else:
            keys = [Key()]
            a = keyed(keys, peers=PEERS, config=advertise + config)
            b = keyed(keys, peers=PEERS, config=config, listen=False)
        host, port = a.address.rsplit(":", 1)
        self.proxy.to = (host, int(port))
        self.daemons = (a, b)
        self.owner, self.reader = actor(a, "name=owner"), actor(b, "name=reader")
        self.owner.cache("A", 32, 2, 262144, "guard=4096")
        self.reader.cache("B", 32, 2, 262144, "guard=4096")
        for c in (self.owner, self.reader):
            c.cache("W", 1, 1, 4096)
        self.n = 0

    def target(self, op):
        return (self.reader, "B") if op == "pull" else (self.owner, "A")

    def begin(self, op, more=""):
        """A transfer of 16 MiB on its way; its number."""
        self.n += 1
        begin(self.owner, self.reader, op, self.n, more)
        return self.n

    def end(self, n, op):
        """Both sides' words on it: right bytes, or a status; the reader's."""
        end, ended = self.reader.wait(f"x{n}"), self.owner.gwait(f"g{n}", 100)
        if ended == "PENDING":
            assert end != "OK"
            self.owner.ok(f"revoke g{n}")
            ended = self.owner.gwait(f"g{n}")
        assert end != "PENDING" and ended != "PENDING", (end, ended)
        dst, d = self.target(op)
        if end == "OK":
            assert ended == "OK", repr(ended)
            dst.ok(f"check {n} {d}:0-31")
        dst.ok(f"changed {d} {d}:0-31")
        self.owner.ok(f"gfree g{n}")
        return end

    def works(self):
        def once():
            self.n += 1
            return works(self.owner, self.reader, "pull", 1000 + self.n)
        wait_until("they have found one another", once, 20)

    def paths(self):
        def there():
            if not self.proxy.live(CONTROL):  # a byte that was garbled late: nobody dials unasked
                self.works()
            return self.proxy.live(DATA) == 3
        wait_until("there are data connections", there)

    def logs(self):
        return [d.log() for d in self.daemons]


@pytest.fixture
def line(request, kvtd, keyed, actor):
    made = []

    def make(mode):
        made.append(Line(mode, kvtd, keyed, actor))
        made[-1].works()
        return made[-1]
    yield make
    for one in made:
        one.proxy.stop()


def modes(*names):
    return pytest.mark.parametrize("mode", names)


# ---------------------------------------------------------------- bytes that change

@modes("clear", "key")
@WAYS
def test_garbled_control(line, mode, way):
    """The next byte: in the clear that is a frame's length. A clean end, and a new connection."""
    w = line(mode)
    for n in range(1, 4):
        w.paths()
        before = w.proxy.garbled
        w.proxy.garble(CONTROL, way)
        wait_until("it is garbled", lambda: w.proxy.garbled > before)
        wait_until("the connection is over", lambda: w.proxy.live(CONTROL) == 0)
        w.works()
    # who read it says what was wrong with it, and not that an end of file was unexpected
    log = w.logs()[0 if way == THERE else 1]
    assert log.count("broke the protocol" if mode == "clear" else "down: ") >= 3
    # (a data connection that was being made just then did end unexpectedly)
    lines = [x for x in "".join(w.logs()).splitlines() if "data connection from" not in x]
    assert not [x for x in lines if "unexpected eof" in x]


@modes("key", "bound")
@OPS
def test_garbled_control_anywhere(line, mode, op, seeded):
    """While transfers go on, somewhere in the next frames."""
    w = line(mode)
    ends = []
    for _ in range(8):
        w.paths()
        w.proxy.garble(CONTROL, seeded.choice([THERE, BACK]), seeded.randrange(400))
        ends.append(str(w.end(w.begin(op), op)))
        w.works()
    print(ends)
    assert set(ends) <= {"OK", "PEER_LOST"}, ends
    assert w.proxy.garbled


@OPS
def test_garbled_data(line, op, seeded):
    """Never wrong bytes: it is tried again and right, or has a status."""
    w = line("key")
    ends, retries = [], 0
    for _ in range(10):
        w.paths()
        way = (BACK if op == "pull" else THERE) if seeded.random() < 0.7 else \
            (THERE if op == "pull" else BACK)
        w.proxy.garble(DATA, way, seeded.randrange(6 << 20))
        n = w.begin(op)
        ends.append(str(w.end(n, op)))
        retries += w.reader.stats(f"x{n}")["retries"]
        w.works()
    print(ends, "retries", retries, "garbled", w.proxy.garbled)
    assert set(ends) <= {"OK", "TRANSPORT"}, ends
    assert ends.count("OK") > 2 and retries and w.proxy.garbled


@modes("clear", "key")
def test_garbled_beginnings(line, mode, seeded):
    """One bit of each new connection, of either kind, in its first bytes: preamble, TLS, proof."""
    w = line(mode)

    def plan(pair):
        pair.ways[seeded.choice([THERE, BACK])].flips.append(seeded.randrange(8, 400))
    w.proxy.plan = plan
    ends, live = [], []
    for _ in range(12):
        w.proxy.cut()
        n = w.begin("pull", f"timeout={1500 * SLOW}")
        if mode == "key":
            ends.append(str(w.end(n, "pull")))
        else:  # what a bit of a frame makes of a grant in the clear is nobody's to say
            live.append(n)
            ends.append(str(w.reader.wait(f"x{n}")))
    print(ends, "garbled", w.proxy.garbled)
    assert w.proxy.garbled > 3 and "PENDING" not in ends
    w.proxy.plan = None
    for n in live:
        w.owner(f"revoke g{n}")
    w.proxy.cut()
    w.works()


# ---------------------------------------------------------------- ways that stall

@modes("clear", "key")
@WAYS
@OPS
def test_control_stalls_one_way(line, mode, way, op):
    """Nobody closes: keep-alive ends it on both sides, in time."""
    w = line(mode)
    w.proxy.delay = 0.002
    before = w.proxy.passed(DATA)
    n = w.begin(op)
    wait_until("it moves", lambda: w.proxy.passed(DATA) > before + 100000)
    w.proxy.held = {(CONTROL, way)}
    start = time.monotonic()
    end, ended = w.reader.wait(f"x{n}"), w.owner.gwait(f"g{n}")
    took = time.monotonic() - start
    assert (end, ended) in (("PEER_LOST", "PEER_LOST"), ("PEER_LOST", "OK"), ("OK", "OK")), \
        (end, ended)
    assert took < 5 * SLOW
    if end == "OK":
        w.target(op)[0].ok(f"check {n} {w.target(op)[1]}:0-31")
    wait_until("somebody noticed", lambda: any("no answer for" in x for x in w.logs()))
    w.proxy.held = set()
    w.proxy.delay = 0
    w.works()


@modes("clear", "key", "bound")
@WAYS
def test_data_stalls_one_way(line, mode, way):
    """Control goes on: a deadline ends a transfer, and one without goes on when the way does."""
    w = line(mode)
    w.paths()
    w.proxy.delay = 0.002
    for op in ("pull", "push"):
        before = w.proxy.passed(DATA)
        n = w.begin(op)
        wait_until("it moves", lambda: w.proxy.passed(DATA) > before + 100000)
        w.proxy.held = {(DATA, way)}
        assert w.reader(f"wait x{n} {700 * SLOW}") in ("PENDING", "OK")
        assert w.proxy.live(CONTROL) == 1
        w.proxy.held = set()
        assert w.end(n, op) == "OK"
        before = w.proxy.passed(DATA)
        n = w.begin(op, f"timeout={600 * SLOW}")
        wait_until("it moves", lambda: w.proxy.passed(DATA) > before + 100000)
        w.proxy.held = {(DATA, way)}
        end = w.reader.wait(f"x{n}")
        assert end in ("TIMEOUT", "OK"), repr(end)
        w.proxy.held = set()
        w.owner(f"revoke g{n}")
        w.works()


@modes("clear", "key")
def test_slow_ways(line, mode):
    """40 ms there and 80 ms back."""
    w = line(mode)
    w.proxy.delays = {THERE: 0.04, BACK: 0.08}
    w.proxy.cut()
    w.works()
    for op in ("pull", "push"):
        assert w.end(w.begin(op), op) == "OK"
    row, = w.daemons[1].rows("PEER")
    assert row["round_trip_us"] > 100000


# ---------------------------------------------------------------- ends anywhere

@modes("clear", "key", "bound")
@OPS
def test_cut_anywhere(line, mode, op, seeded):
    """Every new connection lasts for so many bytes, of either kind: in preambles, handshakes,
    proofs and transfers."""
    w = line(mode)

    def plan(pair):
        if seeded.random() < (0.8 if pair.kind == DATA else 0.4):
            most = 1 << seeded.randrange(3, 24 if pair.kind == DATA else 15)
            pair.cut_at = seeded.randrange(8, 8 + most)
    w.proxy.plan = plan
    ends = []
    for _ in range(20):
        if seeded.random() < 0.7:
            w.proxy.cut()
        ends.append(str(w.end(w.begin(op, f"timeout={2000 * SLOW}"), op)))
    w.proxy.plan = None
    print({e: ends.count(e) for e in ends}, "cuts", w.proxy.cuts)
    assert w.proxy.cuts > 10
    assert set(ends) <= {"OK", "PEER_LOST", "PEER_UNREACHABLE", "TRANSPORT", "TIMEOUT"}, ends
    w.proxy.cut()
    w.works()

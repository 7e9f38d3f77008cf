# SPDX-License-Identifier: Apache-2.0
"""Two daemons and a bad wire between them: connections that are cut, and a partition."""
import signal
import time

import pytest

from conftest import wait_until
from actors import actor, seeded  # noqa: F401
from certs import cluster_key, trust
from proxy import BACK, CONTROL, DATA, THERE, Proxy
from wire import SLOW

PEERS = """
peers {
	keepalive_interval = "50 ms"
	keepalive_timeout = "%d ms"
	redial_max = "100 ms"
	connect_timeout = "1 s"
}
transport {
	tcp_chunk = "64 KiB"
	tcp_streams = 3
}
fence_timeout = "300 ms"
""" % (500 * SLOW)


@pytest.fixture
def wire(kvtd, actor):
    """(proxy, owner, reader, their daemons); the reader's daemon dials the owner's."""
    proxy = Proxy()
    a = kvtd(config=PEERS + f'advertise = "{proxy.address}"\n')
    # whoever dials goes through the wire: the reader's daemon has no listener of its own
    b = kvtd(config=PEERS, listen=False)
    b.stop()
    b.args.append("--insecure-loopback")
    b.start()
    host, port = a.address.rsplit(":", 1)
    proxy.to = (host, int(port))
    owner, reader = actor(a, "name=owner"), actor(b, "name=reader")
    owner.cache("A", 32, 2, 262144, "guard=4096")
    reader.cache("B", 32, 2, 262144, "guard=4096")
    owner.cache("W", 1, 1, 4096)
    reader.cache("W", 1, 1, 4096)
    yield proxy, owner, reader, (a, b)
    proxy.stop()


@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("encrypt", ["yes", "no"])
def test_bytes_on_the_wire(kvtd, actor, folder, encrypt, op):
    """The same bytes go twice. Who listens finds them again, unless they are encrypted."""
    proxy = Proxy()
    proxy.recording = True
    config = trust(key=cluster_key(folder / "key")) + \
        'peers {\n\tallow = {"127.0.0.0/8"}\n}\n' \
        f"transport {{\n\ttcp_streams = 1\n\tencrypt = {encrypt}\n}}\n"
    a = kvtd("-l", "127.0.0.1:0", listen=False, config=config + f'advertise = "{proxy.address}"\n')
    b = kvtd(listen=False, config=config)
    host, port = a.address.rsplit(":", 1)
    proxy.to = (host, int(port))
    owner, reader = actor(a, "name=owner"), actor(b, "name=reader")
    for p in (owner, reader):
        p.cache("W", 1, 1, 65536)
    src, dst = (owner, reader) if op == "pull" else (reader, owner)
    said = [b""]
    for n in range(2):
        src.ok("fill 5 W:0")
        dst.ok(f"noise W {n}")
        token = owner.grant(f"g{n}", ("read" if op == "pull" else "write") + " W:0")
        assert reader.run(f"x{n}", op, token, "W:0 final") == "OK"
        dst.ok("check 5 W:0")
        connection, = proxy.recorded(DATA, BACK if op == "pull" else THERE)
        said.append(connection)
    first, second = said[1], said[2][len(said[1]):]
    assert len(first) > 65536 and len(second) > 65536
    again = sum(second[at:at + 64] in first for at in range(0, 65536, 64))
    assert again == 0 if encrypt == "yes" else again > 1000
    proxy.stop()


def begin(owner, reader, op, n, more=""):
    src, s = (owner, "A") if op == "pull" else (reader, "B")
    dst, d = (reader, "B") if op == "pull" else (owner, "A")
    dst.ok(f"noise {d} {n}")
    src.ok(f"fill {n} {s}:0-31")
    token = owner.grant(f"g{n}", ("read" if op == "pull" else "write") + " A:0-31")
    reader.xfer(f"x{n}", op, token, f"B:0-31 final {more}")
    return token


@pytest.mark.parametrize("op", ["pull", "push"])
def test_data_connections_cut(wire, op, seeded):
    """Cut in the middle of a transfer: it is tried again by itself, and its bytes are right."""
    proxy, owner, reader, _ = wire
    begin(owner, reader, op, 1)
    assert reader.wait("x1") == "OK"
    retries = 0
    for n in range(2, 10):
        proxy.cut_after(seeded.randrange(3 << 20))
        begin(owner, reader, op, n)
        end = reader.wait(f"x{n}")
        ended = owner.gwait(f"g{n}", 3000)
        # the owner had committed: the last byte had left its memory
        if end == "TRANSPORT" and ended == "OK" and op == "pull":
            continue
        assert (end, ended) == ("OK", "OK"), (end, ended, reader.stats(f"x{n}"))
        dst, d = (reader, "B") if op == "pull" else (owner, "A")
        dst.ok(f"check {n} {d}:0-31")
        dst.ok(f"changed {d} {d}:0-31")
        retries += reader.stats(f"x{n}")["retries"]
    assert retries > 0


@pytest.mark.parametrize("op", ["pull", "push"])
def test_data_connections_that_never_last(wire, op):
    """After some tries it ends with TRANSPORT, which says so; the grant is there for another."""
    proxy, owner, reader, _ = wire
    begin(owner, reader, op, 1)
    assert reader.wait("x1") == "OK"
    proxy.each = 300000
    proxy.cut(DATA)
    token = begin(owner, reader, op, 2)
    end = reader.wait("x2", 30000)
    assert end == "TRANSPORT" and end.text, end
    assert reader.stats("x2")["retries"] == 3
    proxy.each = None
    proxy.cut(DATA)
    assert owner.event("GRANT")["name"] == "g1"
    assert owner.event("ATTEMPT")["status"] == "TRANSPORT"
    wait_until("there is a path", lambda: works(owner, reader, op, 9))
    assert reader.run("y", op, token, "B:0-31 final") == "OK"
    dst, d = (reader, "B") if op == "pull" else (owner, "A")
    dst.ok(f"check 2 {d}:0-31")
    assert owner.gwait("g2") == "OK"


@pytest.mark.parametrize("op", ["pull", "push"])
def test_control_connection_cut(wire, op):
    proxy, owner, reader, daemons = wire
    proxy.delay = 0.002
    for n in range(1, 5):
        before = proxy.passed(DATA)
        token = begin(owner, reader, op, n)
        wait_until("it moves", lambda: proxy.passed(DATA) > before + 100000)
        proxy.cut(CONTROL)
        end, ended = reader.wait(f"x{n}"), owner.gwait(f"g{n}")
        assert end in ("PEER_LOST", "OK") and ended in ("PEER_LOST", "OK"), (end, ended)
        if end == "OK":
            assert ended == "OK"
            continue
        if ended == "PEER_LOST":
            assert reader.run(f"y{n}", op, token, "B:0-31 final") in ("PEER_LOST", "NOT_FOUND")
        assert reader.ok(f"tstatus {token}").text.startswith("ENDED")


@pytest.mark.parametrize("op", ["pull", "push"])
def test_partition(wire, op):
    """Nothing passes any more, then all of it does: both sides hear PEER_LOST by themselves, and
    what comes out of the wire later does not touch their memory."""
    proxy, owner, reader, daemons = wire
    proxy.delay = 0.002
    dst, d = (reader, "B") if op == "pull" else (owner, "A")
    for n in range(1, 4):
        before = proxy.passed(DATA)
        begin(owner, reader, op, n)
        wait_until("it moves", lambda: proxy.passed(DATA) > before + 200000)
        proxy.held = {CONTROL, DATA}
        start = time.monotonic()
        ends = []
        for a, wait, mine in ((owner, f"gwait g{n}", "A"), (reader, f"wait x{n}", "B")):
            ends.append(a(f"{wait} 20000 then={mine} seed={n}"))
        assert ends == ["PEER_LOST", "PEER_LOST"], ends
        assert time.monotonic() - start < 3 * SLOW
        proxy.held = set()
        assert dst(f"changed {d} 300") == "OK"
        wait_until("they have found one another", lambda: works(owner, reader, op, n))


def works(owner, reader, op, n):
    token = owner.grant(f"w{n}", "read W:0")
    end = reader.run(f"w{n}", "pull", token, "W:0 final")
    if end != "OK":
        owner.ok(f"revoke w{n}")
    assert owner.gwait(f"w{n}") != "PENDING"
    owner.ok(f"gfree w{n}")
    reader.ok(f"free w{n}")
    return end == "OK"


@pytest.mark.parametrize("taken", [True, False])
def test_owner_ends_while_bytes_are_on_the_way(wire, taken):
    """What the owner's daemon has sent and counted as moved is not lost to a reader by its end: it
    keeps the connections until the reader has it, or for a bounded time."""
    proxy, owner, reader, (a, b) = wire
    wait_until("there is a path", lambda: works(owner, reader, "pull", 1))
    proxy.held = {DATA}
    reader.ok("noise W 2")
    owner.ok("fill 2 W:0")
    token = owner.grant("g", "read W:0")
    reader.xfer("x", "pull", token, "W:0 final")
    assert owner.gwait("g") == "OK"  # it fits into the sockets
    wait_until("the owner's word is here",
               lambda: any(r["state"] == "landing" for r in b.rows("TRANSFER")))
    owner.kill()
    a.signal(signal.SIGTERM)
    start = time.monotonic()
    if taken:
        wait_until("its sockets are closed", lambda: not a.client_socket.exists())
        until = time.monotonic() + 0.3
        wait_until("it has stayed for a while",
                   lambda: not a.alive or time.monotonic() > until)
        assert a.alive and reader.wait("x", 0) == "PENDING"
        proxy.held = set()
        assert reader.wait("x") == "OK"
        reader.ok("check 2 W:0")
        assert a.process.wait(10 * SLOW) == 0
        assert "in time" not in a.log()
    else:
        assert a.process.wait(10 * SLOW) == 0
        assert time.monotonic() - start < 5 * SLOW
        a.says("peers have not taken in time what was sent to them")
        assert reader.wait("x") == "PEER_LOST"
        proxy.held = set()


def test_data_held_control_alive(wire):
    """The data path is stuck, the control path is not: a deadline, a cancel and a revoke end the
    transfer all the same."""
    proxy, owner, reader, _ = wire
    proxy.delay = 0.002
    for n, how in enumerate(("timeout", "cancel", "revoke"), 1):
        before = proxy.passed(DATA)
        begin(owner, reader, "pull", n, "timeout=700" if how == "timeout" else "")
        wait_until("it moves", lambda: proxy.passed(DATA) > before + 100000)
        proxy.held = {DATA}
        if how == "cancel":
            reader.ok(f"cancel x{n}")
        if how == "revoke":
            owner.ok(f"revoke g{n}")
        end = reader(f"wait x{n} 20000 then=B seed={n}")
        assert end == {"timeout": "TIMEOUT", "cancel": "CANCELED", "revoke": "REVOKED"}[how], end
        owner.ok(f"revoke g{n}")
        assert owner.gwait(f"g{n}") == "REVOKED"
        proxy.held = set()
        assert reader("changed B 200") == "OK"
        wait_until("the path is clear again", lambda: works(owner, reader, "pull", n))

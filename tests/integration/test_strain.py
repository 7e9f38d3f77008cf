# SPDX-License-Identifier: Apache-2.0
"""Limits, a draining daemon, memory that faults or runs short, clients in odd places: each costs
what it is about and nothing else."""
import pathlib
import re
import select
import signal
import time

import pytest

from conftest import wait_until
from actors import actor, blocks, place, seeded  # noqa: F401
from test_peers import token_change
from test_tokens import Bystander, nobody_answers
from wire import SLOW

SECRET = "5a" * 16


def pair(p, actor, *options, size=4096, n=8):
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", n, 2, size, *options)
    reader.cache("B", n, 2, size, *options)
    return owner, reader


def reload(daemon, config):
    """By signal: there may be no memory for a client."""
    daemon.config_file.write_text(config)

    def reloaded():
        at = len(daemon.log())
        daemon.signal(signal.SIGHUP)
        wait_until("there is an answer", lambda: "config: " in daemon.log()[at:])
        return "config: reloaded" in daemon.log()[at:] or "nothing" in daemon.log()[at:]
    wait_until("it is reloaded", reloaded)


def numbers(answer, used, limit):
    assert answer == "QUOTA", repr(answer)
    assert f"{used} of {limit}" in answer.text, answer.text


# ---------------------------------------------------------------- limits

def test_limits_of_a_client(place, actor):
    p = place(config="limits {\n grants = 2\n parked = 2\n transfers = 3\n}")
    owner, reader = pair(p, actor)
    other = Bystander(p, actor)
    tokens = [owner.grant(f"g{i}", "read A:0") for i in range(2)]
    numbers(owner("grant h read A:0"), 2, 2)
    late = reader.ok(f"token {owner.ticket()} {SECRET}").text
    later = reader.ok(f"token {owner.ticket()} {SECRET[:-2]}11").text
    third = reader.ok(f"token {owner.ticket()} {SECRET[:-2]}22").text
    reader.xfer("p1", "pull", late, "B:0 wait=60000")
    reader.xfer("p2", "pull", later, "B:1 wait=60000")
    numbers(reader.run("p3", "pull", third, "B:2 wait=60000"), 2, 2)
    reader.xfer("q", "pull", late, "B:3 wait=60000")  # under the same open as p1
    numbers(reader.run("r", "pull", tokens[0], "B:4"), 3, 3)
    other.works()
    owner.ok("revoke g1")
    assert owner.gwait("g1") == "REVOKED"
    owner.grant("h", f"read A:0 secret={SECRET} readers=2")
    assert reader.wait("p1") == "OK" and reader.wait("q") == "OK"
    reader.ok("cancel p2")
    assert reader.wait("p2") == "CANCELED"
    assert reader.run("s", "pull", third, "B:2 wait=50") == "NOT_FOUND"


def test_limits_of_a_key(place, actor):
    """Of all clients of one user."""
    p = place(config="limits_key {\n grants = 3\n}")
    owner, _ = pair(p, actor)
    twin = actor(p.owner)
    twin.cache("A", 4, 1, 4096)
    owner.grant("a", "read A:0")
    owner.grant("b", "read A:0")
    twin.grant("a", "read A:0")
    numbers(twin("grant b read A:0"), 3, 3)
    owner.kill()
    wait_until("it is released", lambda: twin("grant b read A:0") == "OK")


def test_limit_of_bytes_in_flight(place, actor):
    p = place("--fault", "delay-chunk=30", config="""
        limits {\n in_flight = "100 KiB"\n}
        transport {\n local_chunk = "4 KiB"\n tcp_chunk = "4 KiB"\n}""")
    owner, reader = pair(p, actor, size=10240)
    owner.ok("fill 1 A:0-7")
    token = owner.grant("g", "read A:0-7 readers=3")
    reader.xfer("x", "pull", token, "B:0-3")  # 80 KiB
    end = reader.run("y", "pull", token, "B:4,5")
    numbers(end, 81920, 102400)
    assert "40960 more" in end.text
    assert reader.wait("x") == "OK"
    assert reader.run("z", "pull", token, "B:4,5 final") == "OK"
    reader.ok("check 1 B:0-3 B:4,5:first=0")


def test_limit_of_dials(kvtd, actor):
    d = kvtd(config='limits {\n dials = 1\n}\npeers {\n connect_timeout = "2 s" \n}')
    owner, reader = actor(d), actor(d)
    owner.cache("A", 4, 1, 4096)
    reader.cache("B", 4, 1, 4096)
    token = owner.grant("g", "read A:0")
    closed, silent = nobody_answers()
    try:
        at = "127.0.0.1:%d" % silent.getsockname()[1]
        reader.xfer("x", "pull", token_change(token, node="away", secret=bytes(15) + b"1",
                                             addresses=[at]), "B:0")
        numbers(reader.run("y", "pull", token_change(token, node="far", secret=bytes(16),
                                                        addresses=[at]), "B:0"),
                1, 1)
        assert reader.run("z", "pull", token, "B:0 final") == "OK"  # needs none
        reader.ok("cancel x")
        assert reader.wait("x") == "CANCELED"
    finally:
        closed.close()
        silent.close()


def test_notes_are_charged(place, actor):
    """To the owner who does not read them; the pusher hears QUOTA."""
    p = place(config='limits {\n list_bytes = "64 KiB"\n}')
    owner, reader = pair(p, actor)
    token = owner.grant("g", "write A:0")
    owner.stop()
    note, ends = "ab" * 4096, []
    for i in range(2000):
        ends.append(reader.run(f"x{i}", "push", token, f"note={note}"))
        reader.ok(f"free x{i}")
        if ends[-1] != "OK":
            break
    assert ends[-1] == "QUOTA" and ends.count("OK") >= 4, (len(ends), ends[-1])
    assert re.search(r"\d+ (of|notes to read, at most) \d+", ends[-1].text), ends[-1].text
    owner.resume()
    assert owner.event("NOTE")["note"] == note
    wait_until("there is room again", lambda: owner("dispatch") == "OK" and
               reader.run("y", "push", token, f"note={note}") == "OK")
    assert reader.run("z", "push", token, "final") == "OK"
    assert owner.gwait("g") == "OK"


# ---------------------------------------------------------------- drain

def test_drain_serves_tokens(place, actor):
    """SIGTERM: no new grants, existing tokens are served to their ends, then the daemon ends."""
    p = place("--fault", "delay-chunk=10", check=False, config="""
        transport {\n local_chunk = "4 KiB"\n tcp_chunk = "4 KiB"\n}""")
    owner, reader = pair(p, actor)
    owner.ok("fill 3 A:0-7")
    tokens = [owner.grant(f"g{i}", "read A:0-7") for i in range(2)]
    reader.xfer("x", "pull", tokens[0], "B:0-7 final")
    p.owner.signal(signal.SIGTERM)
    assert owner.event("DRAINING")["status"] == "SHUTDOWN"
    assert owner("grant h read A:0") == "SHUTDOWN"
    assert reader.wait("x") == "OK"
    reader.ok("check 3 B:0-7")
    reader.ok("noise B 1")
    end = reader.run("y", "pull", tokens[1], "B:0-7 final")
    # the owner's daemon is done with the last grant, and ends, before the last byte has landed
    assert end == "OK" or (end == "PEER_LOST" and p.path == "tcp"), end
    if end == "OK":
        reader.ok("check 3 B:0-7")
    assert [owner.gwait(f"g{i}") for i in range(2)] == ["OK", "OK"]
    assert p.owner.process.wait(10 * SLOW) == 0
    assert "impossible" not in p.owner.log()


def test_drain_timeout(place, actor):
    """What has not ended by then ends with SHUTDOWN, fenced."""
    p = place("--fault", "delay-chunk=50", check=False, config="""
        drain_timeout = "200 ms"
        transport {\n local_chunk = "4 KiB"\n tcp_chunk = "4 KiB"\n}""")
    owner, reader = pair(p, actor, size=65536)
    token = owner.grant("g", "write A:0-7")
    reader.ok("fill 4 B:0-7")
    reader.xfer("x", "push", token, "B:0-7 final")
    owner.ok("until 4 A:0-7")
    p.owner.signal(signal.SIGTERM)
    assert owner.gwait("g", more="then=A") == "SHUTDOWN"
    owner.ok("changed A 150")
    end = reader.wait("x")
    assert end in ("SHUTDOWN", "PEER_LOST"), end
    assert p.owner.process.wait(10 * SLOW) == 0
    assert "impossible" not in p.owner.log()


# ---------------------------------------------------------------- memory

def test_holes(place, actor):
    """Holes punched into source and destination while bytes move."""
    p = place("--fault", "delay-chunk=2", config="""
        transport {\n local_chunk = "4 KiB"\n tcp_chunk = "4 KiB"\n}""")
    owner, reader = pair(p, actor, "memfd", size=32768)
    others = Bystander(p, actor)
    for i, (a, name) in enumerate(((owner, "A"), (reader, "B"), (owner, "A"), (reader, "B"))):
        op = "pull" if i < 2 else "push"
        token = owner.grant(f"g{i}", ("read" if op == "pull" else "write") + " A:0-7")
        reader.xfer(f"x{i}", op, token, "B:0-7 final")
        for at in range(0, 8):
            a.ok(f"punch {name} {at * 65536} 32768")
        end = reader.wait(f"x{i}")
        assert end in ("OK", "INVALID"), end
        owner.ok(f"revoke g{i}")
        others.works()


@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8])
def test_memory_faults(place, actor, op, nth):
    """A fault in the nth access: the transfer ends INVALID, the region is poisoned, others go on."""
    p = place()
    owner, reader = pair(p, actor, size=16384)
    src, s = (owner, "A") if op == "pull" else (reader, "B")
    src.ok(f"fill 1 {s}:0-7")
    token = owner.grant("g", ("read" if op == "pull" else "write") + " A:0-7")
    for d in p.daemons:
        reload(d, f'fault = {{"sigbus={nth}"}}\n')
    ends = []
    for i in range(3 * nth):
        ends.append(reader.run(f"x{i}", op, token, "B:0-7"))
        if ends[-1] != "OK":
            break
    for d in p.daemons:
        reload(d, 'fault = {"sigbus=0"}\n')
    owner.ok("revoke g")
    assert owner.gwait("g") == "REVOKED"
    if p.path == "local":  # tcp takes large pieces past the guard
        assert ends[-1] == "INVALID" and "faulted" in ends[-1].text, ends[-1]
        rows = [r["state"] for d in p.daemons for r in d.rows("REGION")]
        assert rows.count("poisoned") == 1, rows
    Bystander(p, actor).works()


@pytest.mark.parametrize("nth", [2, 3, 5, 7, 11, 17, 29, 53])
def test_allocations_fail(place, actor, nth):
    """Out of memory fails requests, not the daemon; nothing is left of what failed."""
    calm = 'peers {\n redial_max = "50 ms"\n}\n'
    p = place(config=calm)
    owner, reader = pair(p, actor)
    for d in p.daemons:
        reload(d, f'fault = {{"alloc-fail={nth}"}}\n' + calm)
    for i in range(40):
        grant = owner(f"grant g{i} {'read' if i % 2 else 'write'} A:0-7 readers=2 note=0102")
        if grant != "OK":
            assert grant == "NO_MEMORY", repr(grant)
            continue
        src, s = (owner, "A") if i % 2 else (reader, "B")
        src.ok(f"fill {i} {s}:0-7")
        end = reader.run(f"x{i}", "pull" if i % 2 else "push", grant.text,
                         "B:0-7 final note=0304")
        assert end in ("OK", "NO_MEMORY", "PEER_UNREACHABLE", "PEER_LOST", "TRANSPORT"), repr(end)
        if end == "OK":
            dst, d = (reader, "B") if i % 2 else (owner, "A")
            dst.ok(f"check {i} {d}:0-7")
        owner.ok(f"revoke g{i}")
        assert owner.gwait(f"g{i}") != "PENDING"
    for d in p.daemons:
        reload(d, 'fault = {"alloc-fail=0"}\n' + calm)
    time.sleep(0.06)  # for the pause between two tries, not for a state
    Bystander(p, actor).works()


# ---------------------------------------------------------------- odd places

def test_pid_namespaces(place, actor):
    """Clients in pid namespaces of their own, as in containers; one of them dies."""
    p = place()
    prefix = ("unshare", "--pid", "--fork", "--kill-child")
    owner = actor(p.owner, "name=in", prefix=prefix)
    reader = actor(p.reader, "name=in", prefix=prefix)
    owner.cache("A", 8, 2, 4096)
    reader.cache("B", 8, 2, 4096)
    owner.ok("fill 1 A:0-7")
    token = owner.grant("g", "read A:0-7 readers=2")
    assert reader.run("x", "pull", token, "B:0-7") == "OK"
    reader.ok("check 1 B:0-7")
    reader.kill()
    assert owner.event("ATTEMPT")["status"] == "CLIENT_DIED"
    owner.kill()
    for d in p.daemons:
        d.wait_idle()


# ---------------------------------------------------------------- at rest

def field(pid, name):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+)", text, re.M).group(1))


def cpu_ticks(pid):
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(words[11]) + int(words[12])


@pytest.mark.alone
@pytest.mark.skipif(SLOW > 1, reason="a measurement")
def test_idle(kvtd, actor):
    """Two daemons and two clients that have worked: no spinning, no memory, keep-alives alone."""
    class Two:
        owner, reader, path = kvtd(), kvtd(), "tcp"
    others = Bystander(Two, actor)
    for _ in range(5):
        others.works()
    pids = [others.owner.pid, others.reader.pid]
    daemons = [Two.owner.pid, Two.reader.pid]
    token = others.owner.grant("held", "read A:0")
    assert others.reader.run("c", "claim", token) == "OK"
    others.reader.events()
    others.owner.events()
    before = [cpu_ticks(p) for p in pids]
    switches = [field(p, "voluntary_ctxt_switches") for p in daemons]
    others.owner.send("idle 10000")
    others.reader.send("event 10000")  # sleeps in the library
    assert others.owner.recv() == "OK"
    assert others.reader.recv() == "PENDING"
    for p, was in zip(pids, before):
        assert cpu_ticks(p) - was <= 2
    for p, was in zip(daemons, switches):
        # sent and answered every 500 ms, both ways
        assert field(p, "voluntary_ctxt_switches") - was < 10 * 8
        assert field(p, "RssAnon") < 4096
    others.owner.ok("revoke held")


@pytest.mark.alone
@pytest.mark.skipif(SLOW > 1, reason="a measurement")
def test_half_a_million_pieces(place, actor, seeded):
    """mla-page1, fragmented on both sides: small requests, and no memory for the pieces."""
    p = place()
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", 8192, 61, 1152, "guard=0", "raw")
    reader.cache("B", 8192, 61, 1152, "guard=0", "raw")
    mine, theirs = list(range(8192)), list(range(8192))
    seeded.shuffle(mine)
    seeded.shuffle(theirs)
    owner.ok(f"fill 1 A:{blocks(mine)}")
    token = owner.grant("warm", "read A:0")
    assert reader.run("warm", "pull", token, "B:0 final") == "OK"
    assert owner.gwait("warm") == "OK"
    before = [field(d.pid, "RssAnon") for d in p.daemons]
    token = owner.grant("g", f"read A:{blocks(mine)}")
    reader.xfer("x", "pull", token, f"B:{blocks(theirs)} final")
    reader.send("wait x 30000")
    most = list(before)
    while not select_now(reader):
        most = [max(m, field(d.pid, "RssAnon")) for m, d in zip(most, p.daemons)]
    assert reader.recv() == "OK"
    reader.ok(f"check 1 B:{blocks(theirs)}")
    s = reader.stats("x")
    assert s["pieces"] == 499712 and s["bytes"] == 499712 * 1152
    assert s["request"] < 100000, s["request"]
    for b, m in zip(before, most):
        assert m - b < 8192, f"RssAnon grew from {b} to {m} KiB"


def select_now(a):
    return select.select([a.process.stdout], [], [], 0.001)[0]

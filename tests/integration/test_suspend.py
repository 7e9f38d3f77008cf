# SPDX-License-Identifier: Apache-2.0
"""Regions whose memory goes and comes back: what stays, what others see meanwhile. That nothing
touches the memory in between is in test_fences.py."""
import time

import pytest

from conftest import wait_until
from actors import actor, place, seeded  # noqa: F401
from test_handover import done, pair
from wire import memfd

SLOW_CONFIG = 'transport { local_chunk = "4 KiB"; tcp_chunk = "4 KiB" }'.replace(";", "\n")
SLOWLY = ("--fault", "delay-chunk=12")


def region(daemon, tag_or_state=None):
    """The one region of a daemon, or the rows in a state."""
    return [r for r in daemon.rows("REGION") if tag_or_state in (None, r["state"])]


def test_life(place, actor):
    """Ids, caches and grants stay; opens are BUSY; quota is given back; new memory works."""
    p = place()
    owner, reader = pair(p, actor)
    owner.ok("fill 1 A:0-7")
    token = owner.grant("g", "read A:0-7")
    before = [r for r in p.owner.rows("REGION") if r["client"] == p.owner.rows("GRANT")[0]["client"]]
    bytes_before = p.owner.status()["registered_bytes"]
    owner.ok("suspend A 5000")
    owner.ok("suspend A 5000")
    rows = [r for r in p.owner.rows("REGION") if r["id"] == before[0]["id"]]
    assert rows[0]["state"] == "suspended" and not rows[0].get("mapped"), rows
    assert rows[0]["handle"] == before[0]["handle"] and rows[0]["caches"] == 1
    assert bytes_before - p.owner.status().get("registered_bytes", 0) == before[0]["length"]
    t = time.monotonic()
    busy = reader("xfer x pull " + token + " B:0-7 final wait=5000") and reader.wait("x")
    assert busy == "BUSY" and "is suspended" in busy.text, repr(busy)
    assert time.monotonic() - t < 4
    assert reader.run("c", "claim", token) == "BUSY"
    assert owner.ok(f"tstatus {token}").text == "WAITING OK"
    new = owner("grant h read A:0")
    assert new == "BUSY" and "is suspended" in new.text
    owner.xfer("own", "push", token, "A:0")
    assert owner.wait("own") == "BUSY"
    owner.ok("resume A")
    assert p.owner.status()["registered_bytes"] == bytes_before
    owner.ok("fill 2 A:0-7")
    reader.ok("free x")
    assert reader.run("x", "pull", token, "B:0-7 final") == "OK"
    reader.ok("check 2 B:0-7")
    done(owner, "g")
    owner.exit()
    reader.exit()
    for d in p.daemons:
        d.wait_idle()


def test_new_memory_is_zeroed_and_where_it_was(daemon, actor):
    a = actor(daemon)
    a.cache("A", 4, 1, 4096)
    a.ok("fill 1 A:0-3")
    a.ok("suspend A 5000")
    a.ok("resume A")
    assert a("check 1 A:0") != "OK"
    a.ok("fill 3 A:0-3")
    a.ok("check 3 A:0-3")


@pytest.mark.parametrize("where", ["", "elsewhere"])
def test_memfd(place, actor, where):
    p = place()
    owner, reader = pair(p, actor, options="memfd")
    token = owner.grant("g", "read A:0-7")
    for seed in (1, 2, 3):
        owner.ok("suspend A 5000")
        owner.ok(f"resume A {where}")
        owner.ok(f"fill {seed} A:0-7")
        assert reader.run(f"x{seed}", "pull", token, "B:0-7" + " final" * (seed == 3)) == "OK"
        reader.ok(f"check {seed} B:0-7")
    done(owner, "g")


def test_under_a_claim(place, actor):
    """What has the grant open keeps it: an attempt, and then the rest."""
    p = place(*SLOWLY, config=SLOW_CONFIG)
    owner, reader = pair(p, actor, n=64, planes=1)
    owner.ok("fill 1 A:0-63")
    token = owner.grant("g", "read A:0-63")
    assert reader.run("c", "claim", token) == "OK"
    reader.ok("noise B 5")
    reader.xfer("x", "pull", token, "B:0-63 final")
    reader.ok("until 1 B:0-63 ms=3000")
    owner.ok("suspend A 20000")
    end = reader.wait("x")
    assert end == "BUSY" and "suspended" in end.text, repr(end)
    attempt = owner.event("ATTEMPT")
    assert attempt["status"] == "BUSY"
    assert owner.ok(f"tstatus {token}").text == "OPEN OK"
    assert reader.run("y", "pull", token, "B:0-63 final") == "BUSY"
    owner.ok("resume A")
    owner.ok("fill 2 A:0-63")
    assert reader.run("z", "pull", token, "B:0-63 final") == "OK"
    reader.ok("check 2 B:0-63")
    done(owner, "g")


def test_unclaimed(place, actor):
    """Without a claim the place is free again."""
    p = place(*SLOWLY, config=SLOW_CONFIG)
    owner, reader = pair(p, actor, n=64, planes=1)
    token = owner.grant("g", "write A:0-63")
    owner.ok("noise A 5")
    reader.ok("fill 1 B:0-63")
    reader.xfer("x", "push", token, "B:0-63 final")
    owner.ok("until 1 A:0-63 ms=3000")
    owner.ok("suspend A 20000")
    assert reader.wait("x") == "BUSY"
    assert owner.event("ATTEMPT")["status"] == "BUSY"
    wait_until("it is nobody's", lambda: owner.ok(f"tstatus {token}").text == "WAITING OK")
    owner.ok("resume A")
    other = actor(p.reader, "name=other")
    other.cache("B", 64, 1, 4096)
    other.ok("fill 2 B:0-63")
    assert other.run("x", "push", token, "B:0-63 final") == "OK"
    owner.ok("check 2 A:0-63")
    done(owner, "g")


def test_without_waiting(place, actor):
    """The asynchronous form: BUSY, it goes on, and is done without another word."""
    p = place("--fault", "delay-chunk=300", config=SLOW_CONFIG)
    owner, reader = pair(p, actor, n=64, planes=1)
    owner.ok("fill 1 A:0-63")
    token = owner.grant("g", "read A:0-63")
    reader.xfer("x", "pull", token, "B:0-63")
    wait_until("it moves", lambda: any(t["state"] == "moving" for t in p.reader.rows("TRANSFER")))
    first = reader("suspend B 0")
    early = reader("resume B")
    # a thread is inside; over tcp it sleeps at the sender, and all may be quiet by now
    assert p.path == "tcp" or first == early == "BUSY", f"{first!r} {early!r}"
    if early != "OK":
        assert early == "BUSY" and "still touches" in early.text, repr(early)
        wait_until("it is suspended", lambda: region(p.reader, "suspended"))
        reader.ok("resume B")
    assert reader.wait("x") == "CANCELED"
    assert reader.run("y", "pull", token, "B:0-3 final") == "OK"
    owner.ok("revoke g")
    assert owner.gwait("g") != "PENDING"


def test_refusals(kvtd, actor):
    d = kvtd()
    a = actor(d)
    a.cache("A", 4, 1, 4096)
    a.cache("M", 4, 1, 4096, "memfd")
    early = a("resume A")
    assert early == "INVALID" and "is not suspended" in early.text
    a.ok("suspend M 5000")
    wrong = a("resume M len=4096")
    assert wrong == "INVALID" and "4096 bytes: it has" in wrong.text, repr(wrong)
    rows = region(d, "suspended")
    assert len(rows) == 1
    a.ok("resume M")
    a.ok("suspend A 5000")
    a.ok("release A 5000")
    assert not region(d, "suspended")
    a.ok("suspend M 5000")
    a.exit()
    d.wait_idle()


def test_quota_of_others(kvtd, actor):
    """What is given up can be had by another, and then resume is QUOTA and leaves it suspended."""
    d = kvtd(config='limits { registered = "32 MiB" }')
    a, b = actor(d), actor(d)
    mib = 1 << 20
    a.ok(f"region R {24 * mib}")
    assert b(f"region S {24 * mib}") == "QUOTA"
    a.ok("suspend R 5000")
    b.ok(f"region S {24 * mib}")
    full = a("resume R")
    assert full == "QUOTA" and "registered" in full.text, repr(full)
    assert len(region(d, "suspended")) == 1
    b.ok("release S 5000")
    a.ok("resume R")


def test_daemon_restart(kvtd, actor):
    """A suspended region comes to the next daemon as one, with its cache."""
    d = kvtd()
    a = actor(d, "timeout=20000")
    a.cache("A", 4, 1, 4096)
    a.ok("suspend A 5000")
    d.kill()
    d.start()
    a.event("DISCONNECTED")
    a.event("RECONNECTED")
    rows = region(d)
    assert [r["state"] for r in rows] == ["suspended"] and rows[0]["caches"] == 1, rows
    assert d.status().get("registered_bytes", 0) == 0
    a.ok("resume A")
    a.ok("fill 1 A:0-3")
    token = a.grant("g", "read A:0-3")
    b = actor(d)
    b.cache("B", 4, 1, 4096)
    assert b.run("x", "pull", token, "B:0-3 final") == "OK"
    b.ok("check 1 B:0-3")
    done(a, "g")
    a.exit()
    b.exit()


def test_suspended_without_a_daemon(kvtd, actor):
    d = kvtd()
    a = actor(d, "timeout=20000")
    a.cache("A", 4, 1, 4096)
    d.kill()
    a.event("DISCONNECTED")
    a.ok("suspend A 5000")
    d.start()
    a.event("RECONNECTED")
    assert [r["state"] for r in region(d)] == ["suspended"]
    a.ok("resume A")
    a.exit()


def test_death_while_suspended(place, actor):
    p = place(*SLOWLY, config=SLOW_CONFIG)
    owner, reader = pair(p, actor, n=64, planes=1)
    token = owner.grant("g", "read A:0-63")
    assert reader.run("c", "claim", token) == "OK"
    owner.ok("suspend A 5000")
    owner.kill()
    wait_until("it is known", lambda: not p.owner.rows("GRANT"))
    reader.ok("free c")
    assert reader.run("x", "pull", token, "B:0") in ("CLIENT_DIED", "NOT_FOUND")
    reader.exit()
    for d in p.daemons:
        d.wait_idle()


def test_death_while_suspending(place, actor):
    p = place("--fault", "delay-chunk=300", config=SLOW_CONFIG)
    owner, reader = pair(p, actor, n=64, planes=1)
    token = owner.grant("g", "read A:0-63")
    reader.xfer("x", "pull", token, "B:0-63")
    wait_until("it moves", lambda: any(t["state"] == "moving" for t in p.reader.rows("TRANSFER")))
    assert owner("suspend A 0") in ("BUSY", "OK")
    assert reader("suspend B 0") in ("BUSY", "OK")
    owner.kill()
    reader.kill()
    for d in p.daemons:
        d.wait_idle(20)


def test_released_while_suspending(place, actor):
    p = place("--fault", "delay-chunk=300", config=SLOW_CONFIG)
    owner, reader = pair(p, actor, n=64, planes=1)
    token = owner.grant("g", "read A:0-63")
    reader.xfer("x", "pull", token, "B:0-63")
    wait_until("it moves", lambda: any(t["state"] == "moving" for t in p.reader.rows("TRANSFER")))
    owner("suspend A 0")
    owner.ok("release A 20000")
    assert owner.gwait("g") == "REVOKED"
    assert reader.wait("x") in ("BUSY", "REVOKED")
    owner.exit()


def test_many_times_under_load(place, actor, seeded):
    """An owner that sleeps and wakes again and again; readers that try until it works: what they
    got is what the owner had when it was awake."""
    p = place()
    owner, reader = pair(p, actor, n=64, planes=4, size=16384)
    token = owner.grant("g", "read A:0-63 readers=2")
    assert reader.run("c", "claim", token) == "OK"
    ok = busy = 0
    for seed in range(1, 13):
        owner.ok(f"fill {seed} A:0-63")
        for i in range(4):
            reader.xfer(f"x{i}", "pull", token, f"B:{16 * i}-{16 * i + 15}:first={16 * i}")
        time.sleep(seeded.uniform(0, 0.002))  # a spread, not a wait
        owner.ok("suspend A 20000")
        for i in range(4):
            end = reader.wait(f"x{i}")
            assert end in ("OK", "BUSY"), repr(end)
            if end == "OK":
                ok += 1
                reader.ok(f"check {seed} B:{16 * i}-{16 * i + 15}:first={16 * i}")
            else:
                busy += 1
            reader.ok(f"free x{i}")
        owner.ok("resume A")
    print(f"{ok} ok, {busy} busy")
    owner.ok("fill 99 A:0-63")
    assert reader.run("last", "pull", token, "B:0-63 final") == "OK"
    reader.ok("check 99 B:0-63")
    owner.ok("revoke g")
    assert owner.gwait("g") == "REVOKED"


def test_requests(daemon):
    """The messages themselves, also out of turn."""
    with daemon.client() as c:
        size = 65536
        ask = c.ask
        assert ask("region_suspend", region=1).status == "NOT_FOUND"
        assert ask("region_resume", region=1, length=size).status == "NOT_FOUND"
        c.begin(1, size, rid=0)
        assert ask("region_suspend", region=1).status == "INVALID"
        assert ask("region_resume", region=1, length=size).status == "INVALID"
        fd = memfd(size)
        c.send("region_fds", [fd], rid=0, region=1, count=1)
        assert ask("region_commit", region=1).status == "OK"
        assert ask("region_resume", region=1, length=size).status == "INVALID"
        assert c.cache(5, 1, 4, 4096).status == "OK"
        assert ask("region_suspend", region=1).status == "OK"
        assert c.cache(6, 1, 4, 4096).status == "OK"
        wrong = ask("region_resume", region=1, length=size, kind="MEMORY_CUDA")
        assert wrong.status == "INVALID" and "kind" in wrong.text
        wrong = ask("region_resume", region=1, length=size * 2)
        assert wrong.status == "INVALID" and str(size * 2) in wrong.text and str(size) in wrong.text
        assert ask("region_resume", region=1, length=size, address=2**64 - 5).status == "INVALID"
        assert ask("region_commit", region=1).status == "INVALID"
        assert ask("region_resume", region=1, length=size).status == "OK"
        again = ask("region_resume", region=1, length=size)
        assert again.status == "BUSY" and "being resumed" in again.text
        assert c.grant(9, 5, [0]).status == "BUSY"
        assert ask("region_commit", region=1).status == "INVALID"    # no fds: suspended again
        assert ask("region_resume", region=1, length=size).status == "OK"
        assert ask("region_suspend", region=1).status == "OK"        # withdrawn
        assert [r["state"] for r in c.rows("REGION")] == ["suspended"]
        # all at once; the wrong memory leaves it suspended
        small = memfd(4096)
        c.send("region_resume", rid=0, region=1, length=size)
        c.send("region_fds", [small], rid=0, region=1, count=1)
        assert c.ask("region_commit", region=1).status == "INVALID"
        assert [r["state"] for r in c.rows("REGION")] == ["suspended"]
        c.send("region_resume", rid=0, region=1, length=size)
        c.send("region_fds", [fd], rid=0, region=1, count=1)
        assert c.ask("region_commit", region=1).status == "OK"
        assert c.grant(9, 5, [0]).status == "OK"
        # a new one without memory
        assert ask("region_begin", region=2, length=size, access=7, suspended=True).status == "OK"
        assert ask("region_commit", region=2).status == "INVALID"
        assert sorted(r["state"] for r in c.rows("REGION")) == ["ready", "suspended"]
        assert c.ask("region_release", region=2).status == "OK"


def test_shown(daemon, actor):
    import subprocess
    from conftest import BUILD
    a = actor(daemon)
    a.cache("A", 4, 1, 4096)
    a.ok("suspend A 5000")
    out = subprocess.run([BUILD / "kvtctl", "-a", daemon.admin_socket, "region"],
                         capture_output=True, text=True, timeout=30)
    assert out.returncode == 0 and "suspended" in out.stdout, out


def test_moved(place, actor):
    """Memory of KVT_MOVE is a region as others; suspended, it stays where and as it is."""
    p = place()
    owner, reader = actor(p.owner), actor(p.reader)
    owner.ok("move R 262144")
    owner.ok("cachex A 16 R/0/4096/4096 R/65536/8192/4096")
    reader.cache("B", 16, 2, 4096)
    owner.ok("fill 1 A:0-15")
    token = owner.grant("g", "read A:0-15")
    assert reader.run("x", "pull", token, "B:0-15") == "OK"
    reader.ok("check 1 B:0-15")
    owner.ok("suspend R 5000")
    owner.ok("check 1 A:0-15")
    owner.ok("fill 2 A:0-15")
    assert reader.run("y", "pull", token, "B:0-15") == "BUSY"
    owner.ok("resume R")
    assert reader.run("z", "pull", token, "B:0-15 final") == "OK"
    reader.ok("check 2 B:0-15")
    done(owner, "g")
    owner.ok("release R 5000")
    owner.exit()

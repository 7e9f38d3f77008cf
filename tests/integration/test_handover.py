# SPDX-License-Identifier: Apache-2.0
"""Hand-overs between real clients of real daemons, on one node and over tcp: what moves, and how
grants end."""
import pytest

from conftest import wait_until
from actors import actor, blocks, place, seeded  # noqa: F401

SECRET = "00112233445566778899aabbccddeeff"


def pair(p, actor, n=16, planes=3, size=4096, options=""):
    """Owner and reader with a cache each, A and B, that have guard bytes around every block."""
    owner, reader = actor(p.owner, "name=owner"), actor(p.reader, "name=reader")
    owner.cache("A", n, planes, size, options)
    reader.cache("B", n, planes, size, options)
    return owner, reader


def done(owner, grant, finals=1, failed=0):
    end = owner.gwait(grant)
    assert end == "OK" and end["finals"] == finals and end["failed"] == failed, repr(end)
    return end


def test_pull(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    owner.ok("fill 7 A:3,0,9,5")
    owner.ok("snap A")
    token = owner.grant("g", "read A:3,0,9,5 tag=req-1 note=6f776e")
    assert owner.ok(f"tstatus {token}").text == "WAITING OK"
    assert reader.run("x", "pull", token, "B:15,2,7,1 final note=aa00bb tag=req-2") == "OK"
    reader.ok("check 7 B:15,2,7,1")
    reader.ok("changed B B:15,2,7,1")
    end = done(owner, "g")
    assert end["bytes"] == 4 * 3 * 4096 and end["note"] == "aa00bb"
    owner.ok("changed A")
    s = reader.stats("x")
    assert s["path"] == p.path and s["bytes"] == 4 * 3 * 4096 and s["pieces"] == 12
    assert s["note"] == "6f776e" and s["retries"] == 0
    assert s["queued"] <= s["started"] <= s["ended"]
    assert reader.ok(f"tstatus {token}").text == "ENDED OK"
    note, ended = owner.event("NOTE"), owner.event("GRANT")
    assert (note["note"], note["final"], note["tag"]) == ("aa00bb", 1, "req-2")
    assert (ended["name"], ended["status"]) == ("g", "OK")
    assert reader.event("TRANSFER")["status"] == "OK"
    assert not owner.events() and not reader.events()
    assert reader.run("y", "pull", token, "B:0-3 final") == "NOT_FOUND"
    owner.exit()
    reader.exit()
    for d in p.daemons:
        d.wait_idle()


def test_push(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    token = owner.grant("g", "write A:3,0,9,5")
    reader.ok("fill 7 B:15,2,7,1")
    reader.ok("snap B")
    assert reader.run("x", "push", token, "B:15,2,7,1 final note=01") == "OK"
    assert done(owner, "g")["note"] == "01"
    owner.ok("check 7 A:3,0,9,5")
    owner.ok("changed A A:3,0,9,5")
    reader.ok("changed B")


def test_layerwise_push(place, actor):
    """Planes one by one, none waited for, the final last: DONE says that all of it is there."""
    p = place()
    owner, reader = pair(p, actor, planes=12)
    token = owner.grant("g", "write A:0-7")
    reader.ok("fill 3 B:8-15")
    for i in range(12):
        reader.xfer(f"x{i}", "push", token,
                    f"B:8-15:planes={i}+1:far={i} note={i:02x} " + "final " * (i == 11))
    assert done(owner, "g")["bytes"] == 8 * 12 * 4096
    owner.ok("check 3 A:0-7")
    for i in range(12):
        assert reader.wait(f"x{i}") == "OK"
    notes = [owner.event("NOTE") for _ in range(12)]
    assert sorted(n["note"] for n in notes) == [f"{i:02x}" for i in range(12)]
    assert [n["final"] for n in notes] == [0] * 11 + [1]
    owner.event("GRANT")


def test_parts(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    owner.cache("K", 8, 2, 1000)
    reader.cache("L", 8, 2, 1000)
    owner.ok("fill 5 A:1,3,5:gp=0 K:7-0:gp=1 A:8:gp=2")
    token = owner.grant("g", "read A:1,3,5 K:7-0 A:8")
    what = "B:0-2:gp=0 L:0-3:gp=1:first=4 L:4-7:gp=1 B:9:gp=2"
    assert reader.run("x", "pull", token, what + " final") == "OK"
    reader.ok(f"check 5 {what}")
    reader.ok(f"changed B {what}")
    reader.ok(f"changed L {what}")
    done(owner, "g")


def test_plane_ranges(place, actor):
    """Stages of a pipeline: a reader with fewer planes takes some of the owner's."""
    p = place()
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", 8, 6, 512)
    reader.cache("B", 8, 2, 512)
    owner.ok("fill 9 A:0-7")
    token = owner.grant("g", "read A:0-7 readers=1")
    assert reader.run("x", "pull", token, "B:7-0:planes=0+1:far=5") == "OK"
    reader.ok("check 9 B:7-0:planes=0+1:far=5")
    reader.ok("changed B B:7-0:planes=0+1")
    assert reader.run("y", "pull", token, "B:0-7:planes=0+2:far=2 final") == "OK"
    reader.ok("check 9 B:0-7:far=2")
    done(owner, "g")


@pytest.mark.parametrize("op", ["pull", "push"])
def test_slices(place, actor, op):
    """Heads of a larger tensor-parallel rank: 3 runs of 100 bytes of each block."""
    p = place()
    owner, reader = actor(p.owner), actor(p.reader)
    big, small = (owner, reader) if op == "pull" else (reader, owner)
    big.cache("C", 8, 4, 3000)
    small.cache("C", 8, 4, 777)
    cut = "slice=50/7/100/3/901/200"  # of the large block at 50, 951, 1852; of the small 7, 207, 407
    if op == "pull":
        owner.ok("fill 4 C:2,4,6")
        token = owner.grant("g", "read C:2,4,6")
        assert reader.run("x", "pull", token, f"C:1-3:{cut} final") == "OK"
        reader.ok(f"check 4 C:1-3:{cut}")
        reader.ok(f"changed C C:1-3:{cut}")
    else:
        reader.ok(f"fill 4 C:2,4,6:{cut} op=s")
        token = owner.grant("g", "write C:1-3")
        assert reader.run("x", "push", token, f"C:2,4,6:{cut} final") == "OK"
        owner.ok(f"check 4 C:1-3:{cut} op=o")
        owner.ok(f"changed C C:1-3:{cut} op=o")
    assert reader.stats("x")["pieces"] == 3 * 4 * 3
    done(owner, "g")


def test_far_step_and_repeats(place, actor):
    """Every other block of the grant; a grant that names a block twice."""
    p = place()
    owner, reader = pair(p, actor)
    owner.ok("fill 2 A:0-15")
    token = owner.grant("g", "read A:0-15")
    what = "B:0-4:first=1:step=3"
    assert reader.run("x", "pull", token, what + " final") == "OK"
    reader.ok(f"check 2 {what}")
    reader.ok(f"changed B {what}")
    done(owner, "g")

    owner.ok("fill 6 A:4,5")
    token = owner.grant("h", "read A:4,5,4,4")
    assert reader.run("y", "pull", token, "B:0,1,2,3 final") == "OK"
    reader.ok("check 6 B:0,1")
    for twin in (2, 3):
        assert reader.run(f"z{twin}", "pull", owner.grant(f"i{twin}", "read A:4"),
                          f"B:{twin} final") == "OK"
        reader.ok(f"check 6 B:{twin}")
    done(owner, "h")
    # the source of a push may repeat as well
    reader.ok("fill 8 B:9")
    token = owner.grant("w", "write A:10,11")
    assert reader.run("w", "push", token, "B:9,9 final") == "OK"
    owner.ok("check 8 A:10")
    done(owner, "w")


def test_notification(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    token = owner.grant("g", "write A:0")
    assert reader.run("x", "push", token, "note=c0ffee tag=first") == "OK"
    n = owner.event("NOTE")
    assert (n["note"], n["final"], n["tag"]) == ("c0ffee", 0, "first")
    assert owner.gwait("g", 0) == "PENDING"
    assert reader.run("y", "push", token, "final note=" + "5a" * 4096) == "OK"
    assert done(owner, "g")["note"] == "5a" * 4096
    owner.ok("changed A")


def test_claim(place, actor):
    p = place(config='grants {\n ttl = "300 ms" \n}')
    owner, reader = pair(p, actor)
    owner.ok("fill 1 A:0-3")
    token = owner.grant("g", "read A:0-3 note=77")
    assert reader.run("c", "claim", token, "tag=queued") == "OK"
    assert reader.stats("c")["note"] == "77"
    assert owner.ok(f"tstatus {token}").text == "OPEN OK"
    assert owner.gwait("g", 600) == "PENDING"  # twice the ttl
    # a failure under the claim uses nothing
    assert reader.run("bad", "pull", token, "B:0-3:first=9") == "INVALID"
    assert owner.event("ATTEMPT")["status"] == "INVALID"
    assert reader.run("x", "pull", token, "B:0-3 final") == "OK"
    reader.ok("check 1 B:0-3")
    done(owner, "g")


def test_release_and_decline(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    token = owner.grant("g", "read A:0-3")
    assert reader(f"drop {token} release") == "OK"
    assert done(owner, "g")["bytes"] == 0
    assert reader(f"drop {token} release") == "NOT_FOUND"
    for claimed in (False, True):
        token = owner.grant("h", "read A:0-3")
        if claimed:
            assert reader.run("c", "claim", token) == "OK"
        assert reader(f"drop {token} decline") == "OK"
        assert owner.gwait("h") == "DECLINED"
        assert reader.ok(f"tstatus {token}").text == "ENDED DECLINED"
        assert reader.run("x", "pull", token, "B:0-3 final") == "DECLINED"
        owner.ok("gfree h")


def test_keep(place, actor):
    """A reader that dies or declines leaves a kept grant for the next."""
    p = place()
    owner, reader = pair(p, actor)
    owner.ok("fill 1 A:0-3")
    token = owner.grant("g", "read A:0-3 keep")
    first = actor(p.reader)
    assert first.run("c", "claim", token, "tag=one") == "OK"
    first.kill()
    attempt = owner.event("ATTEMPT")
    assert attempt["status"] == "CLIENT_DIED" and attempt["tag"] == "one"
    assert reader(f"drop {token} decline") == "OK"
    assert owner.event("ATTEMPT")["status"] == "DECLINED"
    assert reader.run("x", "pull", token, "B:0-3 final") == "OK"
    reader.ok("check 1 B:0-3")
    done(owner, "g")


def test_readers(place, actor):
    """Three readers: one is done, one dies, one declines. The fourth comes too late."""
    p = place()
    owner, reader = pair(p, actor)
    owner.ok("fill 1 A:0-3")
    token = owner.grant("g", "read A:0-3 readers=3")
    dies, declines = actor(p.reader), actor(p.reader)
    assert dies.run("c", "claim", token) == "OK"
    assert declines.run("c", "claim", token) == "OK"
    assert reader.run("c", "claim", token) == "OK"
    late = actor(p.reader)
    assert late.run("c", "claim", token) == "BUSY"
    dies.kill()
    assert owner.event("ATTEMPT")["status"] == "CLIENT_DIED"
    assert late.run("d", "claim", token) == "BUSY"
    assert declines(f"drop {token} decline") == "OK"
    assert owner.event("ATTEMPT")["status"] == "DECLINED"
    assert owner.gwait("g", 0) == "PENDING"
    assert reader.run("x", "pull", token, "B:0-3 final") == "OK"
    reader.ok("check 1 B:0-3")
    done(owner, "g", finals=1, failed=2)
    assert late(f"drop {token} release") == "NOT_FOUND"


def test_all_readers_fail(place, actor):
    p = place()
    owner, _ = pair(p, actor)
    token = owner.grant("g", "read A:0-3 readers=2")
    for _ in range(2):
        a = actor(p.reader)
        assert a.run("c", "claim", token) == "OK"
        a.kill()
        assert owner.event("ATTEMPT")["status"] == "CLIENT_DIED"
    done(owner, "g", finals=0, failed=2)


def test_reader_dies(place, actor):
    p = place()
    owner, _ = pair(p, actor)
    token = owner.grant("g", "read A:0-3")
    dies = actor(p.reader)
    assert dies.run("c", "claim", token) == "OK"
    dies.kill()
    assert owner.gwait("g") == "CLIENT_DIED"


def test_owner_dies(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    held, idle = owner.grant("g", "read A:0-3"), owner.grant("h", "read A:4")
    assert reader.run("c", "claim", held) == "OK"
    owner.kill()
    p.owner.says("(owner): gone")
    assert reader.run("x", "pull", held, "B:0-3") == "CLIENT_DIED"
    assert reader.run("y", "pull", idle, "B:0") == "CLIENT_DIED"
    reader.ok("changed B")


def test_tensor_parallel(place, actor):
    """Eight ranks of one node under one secret, eight tickets; the readers open before it is
    created."""
    p = place()
    owners = [actor(p.owner, f"name=prefill-{i}") for i in range(8)]
    readers = [actor(p.reader, f"name=decode-{i}") for i in range(8)]
    for i, (o, r) in enumerate(zip(owners, readers)):
        o.cache("A", 8, 4, 1024)
        r.cache("B", 8, 4, 1024)
        o.ok(f"fill {i} A:0-7")
        token = r.ok(f"token {o.ticket()} {SECRET}").text
        r.xfer("x", "pull", token, "B:7-0 final wait=20000")
    assert all(r.wait("x", 0) == "PENDING" for r in readers)
    for i in (3, 0, 7, 1, 5, 2, 6, 4):
        owners[i].grant("g", f"read A:0-7 secret={SECRET}")
    for i, (o, r) in enumerate(zip(owners, readers)):
        assert r.wait("x") == "OK"
        r.ok(f"check {i} B:7-0")
        r.ok("changed B B:7-0")
        done(o, "g")
    for a in owners + readers:
        a.exit()
    for d in p.daemons:
        d.wait_idle()


def test_open_wait(place, actor):
    p = place(config='grants {\n open_wait_max = "300 ms" \n}')
    owner, reader = pair(p, actor)
    token = reader.ok(f"token {owner.ticket()} {SECRET}").text
    assert reader.run("x", "pull", token, "B:0-3") == "NOT_FOUND"
    assert reader.run("y", "pull", token, "B:0-3 wait=50") == "NOT_FOUND"
    assert reader.run("z", "pull", token, "B:0-3 wait=60000", 5000) == "NOT_FOUND"
    assert reader.run("t", "pull", token, "B:0-3 wait=300 timeout=60") == "TIMEOUT"
    reader.xfer("c", "pull", token, "B:0-3 wait=300")
    reader.ok("cancel c")
    assert reader.wait("c") == "CANCELED"
    # the owner of a parked open dies
    reader.xfer("d", "pull", token, "B:0-3 wait=60000")
    owner.kill()
    assert reader.wait("d") in ("CLIENT_DIED", "NOT_FOUND")
    for i in range(2):  # nothing is parked for nobody
        assert reader.run(f"e{i}", "pull", token, "B:0-3 wait=60000", 5000) == "CLIENT_DIED"


def test_duplicate_secret(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    owner.grant("g", f"read A:0 secret={SECRET}")
    again = owner(f"grant h read A:0 secret={SECRET}")
    assert again == "EXISTS", repr(again)
    # another client may: it is found by client and secret
    other = actor(p.owner)
    other.cache("A", 4, 1, 4096)
    other.grant("g", f"read A:0 secret={SECRET}")
    token = reader.ok(f"token {owner.ticket()} {SECRET}").text
    assert reader(f"drop {token} release") == "OK"
    done(owner, "g")
    assert other.gwait("g", 0) == "PENDING"


def test_ttl(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    token = owner.grant("g", "read A:0-3 ttl=200")
    assert owner.gwait("g") == "EXPIRED"
    assert reader.run("x", "pull", token, "B:0-3") == "EXPIRED"
    assert reader.ok(f"tstatus {token}").text == "ENDED EXPIRED"
    assert owner("extend g 1000") in ("NOT_FOUND", "EXPIRED", "INVALID")
    token = owner.grant("h", "read A:0-3 ttl=300")
    owner.ok("extend h 60000")
    assert owner.gwait("h", 500) == "PENDING"
    assert reader.run("y", "pull", token, "B:0-3 final") == "OK"
    done(owner, "h")


def test_max_hold(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    token = owner.grant("g", "read A:0-3 hold=300")
    assert reader.run("c", "claim", token) == "OK"
    assert owner.gwait("g") == "EXPIRED"
    assert reader.run("x", "pull", token, "B:0-3") == "EXPIRED"
    too_long = owner("grant h read A:0-3 hold=86400000")
    assert too_long == "POLICY" or too_long == "INVALID", repr(too_long)


def test_revoke(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    token = owner.grant("idle", "read A:0-3")
    owner.ok("revoke idle")
    assert owner.gwait("idle") == "REVOKED"
    assert reader.run("x", "pull", token, "B:0-3") == "REVOKED"
    assert reader.ok(f"tstatus {token}").text == "ENDED REVOKED"
    token = owner.grant("held", "read A:0-3")
    assert reader.run("c", "claim", token) == "OK"
    owner.ok("revoke held")
    assert owner.gwait("held") == "REVOKED"
    assert reader.run("y", "pull", token, "B:0-3 final") == "REVOKED"
    owner.ok("revoke held")  # has ended already: nothing happens
    reader.ok("changed B")


def test_token_status(place, actor):
    p = place(config='grants {\n token_keep = "400 ms" \n}')
    owner, reader = pair(p, actor)
    unknown = reader.ok(f"token {owner.ticket()} {SECRET}").text
    assert reader.ok(f"tstatus {unknown}").text == "UNKNOWN OK"
    token = owner.grant("g", "read A:0 readers=2")
    assert reader.ok(f"tstatus {token}").text == "WAITING OK"
    assert reader.run("x", "pull", token, "B:0") == "OK"
    assert reader.ok(f"tstatus {token}").text == "OPEN OK"
    assert reader(f"drop {token} release") == "OK"
    assert reader.ok(f"tstatus {token}").text == "WAITING OK"
    owner.ok("revoke g")
    assert owner.gwait("g") == "REVOKED"
    assert reader.ok(f"tstatus {token}").text == "ENDED REVOKED"

    def forgotten():
        return reader.ok(f"tstatus {token}").text == "UNKNOWN OK"
    wait_until("the end is forgotten", forgotten)


def test_wrong_secret(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    owner.grant("g", f"read A:0 secret={SECRET}")
    wrong = reader.ok(f"token {owner.ticket()} {SECRET[:-2]}00").text
    end = reader.run("x", "pull", wrong, "B:0")
    assert end == "NOT_FOUND" and "no such grant" in end.text, repr(end)
    assert owner.gwait("g", 0) == "PENDING"
    reader.ok("changed B")


def test_many_hand_overs_at_once(place, actor, seeded):
    """Pulls and pushes of several clients mixed, with random lists: every byte, every guard."""
    p = place()
    owner, readers = actor(p.owner), [actor(p.reader) for _ in range(3)]
    owner.cache("A", 192, 2, 2048)
    for r in readers:
        r.cache("B", 64, 2, 2048)
    ids = list(range(192))
    seeded.shuffle(ids)
    jobs = []
    for n in range(24):
        mine, r = blocks(ids[n * 8:n * 8 + 8]), readers[n % 3]
        theirs = blocks(range(n // 3 * 8, n // 3 * 8 + 8))
        op = seeded.choice(["pull", "push"])
        if op == "pull":
            owner.ok(f"fill {n} A:{mine}")
        else:
            r.ok(f"fill {n} B:{theirs}")
        token = owner.grant(f"g{n}", f"{'read' if op == 'pull' else 'write'} A:{mine}")
        jobs.append((n, r, op, mine, theirs, token))
    for n, r, op, mine, theirs, token in jobs:
        r.xfer(f"x{n}", op, token, f"B:{theirs} final priority={n % 3}")
    for n, r, op, mine, theirs, token in jobs:
        assert r.wait(f"x{n}") == "OK"
        done(owner, f"g{n}")
    for n, r, op, mine, theirs, token in jobs:
        r.ok(f"check {n} B:{theirs}")
        owner.ok(f"check {n} A:{mine}")
    for r in readers:
        r.ok("changed B B:0-63")
    owner.ok("changed A A:0-191")


def test_failed_layer(place, actor):
    """A layer that fails takes the final behind it along: no DONE without all of it. Then it is
    pushed again."""
    p = place("--fault", "delay-chunk=10", config="""
        transport {\n local_chunk = "4 KiB"\n tcp_chunk = "4 KiB"\n}""")
    owner, reader = pair(p, actor, n=8, planes=6)
    reader.ok("fill 1 B:0-7")
    token = owner.grant("g", "write A:0-7")

    def layer(i, name, more=""):
        reader.xfer(name, "push", token, f"B:0-7:planes={i}+1:far={i} {more}")

    assert reader.run("c", "claim", token) == "OK"
    for i in range(6):
        layer(i, f"x{i}", "final" * (i == 5))
    reader.ok("cancel x3")
    assert reader.wait("x3") == "CANCELED"
    end = reader.wait("x5")
    assert end == "CANCELED" and "before it failed" in end.text, end
    for i in (0, 1, 2, 4):
        assert reader.wait(f"x{i}") == "OK"
    assert owner.gwait("g", 0) == "PENDING"
    layer(3, "y3")
    layer(5, "y5", "final")
    assert reader.wait("y5") == "OK" and reader.wait("y3") == "OK"
    done(owner, "g")
    owner.ok("check 1 A:0-7")
    owner.ok("changed A A:0-7")


def test_final_waits_for_its_layers(place, actor):
    """The final is small and its bytes are there long before those of the others."""
    p = place("--fault", "delay-chunk=5", config="""
        transport {\n local_chunk = "4 KiB"\n tcp_chunk = "4 KiB"\n}""")
    owner, reader = pair(p, actor, n=16, planes=4)
    reader.ok("fill 1 B:0-15")
    token = owner.grant("g", "write A:0-15")
    for i in range(3):
        reader.xfer(f"x{i}", "push", token, f"B:0-15:planes={i}+1:far={i} priority=2")
    reader.xfer("last", "push", token, "B:0-15:planes=3+1:far=3 final priority=1")
    done(owner, "g")
    owner.ok("check 1 A:0-15")
    assert [reader.wait(x) for x in ("x0", "x1", "x2", "last")] == ["OK"] * 4


def test_what_is_queued_behind_a_final(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    owner.ok("fill 1 A:0-7")
    token = owner.grant("g", "read A:0-7")
    reader.xfer("x", "pull", token, "B:0-7 final")
    reader.xfer("y", "pull", token, "B:8-15")
    assert reader.wait("x") == "OK"
    end = reader.wait("y")
    assert end in ("NOT_FOUND", "OK", "BUSY"), end  # it may have come before it
    reader.ok("check 1 B:0-7")
    done(owner, "g")


def test_readers_beside_one_another(place, actor):
    """Eight readers of one grant at once, each with its own range and final."""
    p = place()
    owner = actor(p.owner)
    owner.cache("A", 64, 3, 2048)
    owner.ok("fill 1 A:0-63")
    token = owner.grant("g", "read A:0-63 readers=8")
    readers = [actor(p.reader) for _ in range(8)]
    for i, r in enumerate(readers):
        r.cache("B", 8, 3, 2048)
        r.xfer("x", "pull", token, f"B:7-0:first={i * 8} final")
    for i, r in enumerate(readers):
        assert r.wait("x") == "OK"
        r.ok(f"check 1 B:7-0:first={i * 8}")
        r.ok("changed B B:0-7")
    done(owner, "g", finals=8)


def test_same_client_both_ends(place, actor):
    """A client that pulls from its own grant, into other blocks of the same cache."""
    p = place()
    owner, _ = pair(p, actor)
    owner.ok("fill 1 A:0-3")
    token = owner.grant("g", "read A:0-3")
    assert owner.run("x", "pull", token, "A:8-11 final") == "OK"
    owner.ok("check 1 A:8-11")
    done(owner, "g")
    owner.ok("check 1 A:0-3")
    owner.ok("changed A A:0-3 A:8-11")


def test_wrong_direction_and_access(place, actor):
    p = place()
    owner, reader = pair(p, actor)
    readable, writable = owner.grant("r", "read A:0"), owner.grant("w", "write A:1")
    for n, (op, token) in enumerate((("push", readable), ("pull", writable))):
        end = reader.run(f"x{n}", op, token, "B:0 final")
        assert end == "PERMISSION" and "grant is for" in end.text, end
    owner.cache("L", 4, 1, 4096, "access=1")  # local alone
    owner.cache("R", 4, 1, 4096, "access=3")
    for what in ("read L:0", "write L:0", "write R:0"):
        refused = owner(f"grant g {what}")
        assert refused == "PERMISSION" and "remote" in refused.text, refused
    reader.cache("N", 4, 1, 4096, "access=6")  # not for its own transfers
    end = reader.run("n", "pull", owner.grant("g", "read R:0"), "N:0 final")
    assert end == "PERMISSION" and "local" in end.text, end


@pytest.mark.parametrize("what, status, text", [
    ("B:0-7:first=1", "INVALID", "only 8 blocks"),
    ("B:0-7:step=2", "INVALID", "only 8 blocks"),
    ("B:0:first=18446744073709551615", "INVALID", ""),
    ("B:0,1:step=18446744073709551615", "INVALID", ""),
    ("B:0:gp=1", "INVALID", "only 1 part"),
    ("B:0:far=1", "INVALID", "planes"),
    ("B:0:planes=3", "INVALID", "planes"),
    ("B:0:planes=1+3", "INVALID", "planes"),
    ("B:0,0", "INVALID", "block 0"),
    ("B:16", "INVALID", "block 16"),
    ("B:4294967295", "INVALID", "block 4294967295"),
    ("S:0", "INVALID", "4095"),
    ("L:0", "INVALID", "layout"),
    ("B:0:slice=4090/0/7/1/0/0", "INVALID", "slice"),
    ("B:0:slice=0/4090/7/1/0/0", "INVALID", "slice"),
    ("B:0:slice=0/0/1/2/18446744073709551615/0", "INVALID", "slice"),
    ("B:0:slice=0/0/8/4/8/4", "INVALID", ""),  # runs over one another in the destination
    ("B:0:slice=0/0/18446744073709551615/1/0/0", "INVALID", "slice"),
    ("B:0:slice=0/0/1/0/0/0", "INVALID", ""),
    ("B:0:slice=0/0/1/4294967295/0/1", "INVALID", ""),
])
def test_ranges_that_do_not_fit(place, actor, what, status, text):
    """Each is refused with what was wrong, uses nothing and touches nothing."""
    p = place()
    owner, reader = pair(p, actor, options="layout=llama3/bf16")
    reader.cache("S", 4, 3, 4095)
    reader.cache("L", 4, 3, 4096, "layout=llama3/fp8")
    reader.ok("snap S")
    owner.ok("fill 1 A:0-7")
    token = owner.grant("g", "read A:0-7")
    end = reader.run("x", "pull", token, f"{what} final")
    assert end == status and text in end.text, end
    for region in "BSL":
        reader.ok(f"changed {region}")
    assert reader.run("y", "pull", token, "B:0-7 final") == "OK"
    reader.ok("check 1 B:0-7")
    done(owner, "g")

# SPDX-License-Identifier: Apache-2.0
"""Grants over regions, and transfers of raw ranges: address, length, in lists of any cut."""
import os
import time

import pytest

from actors import actor, place, seeded  # noqa: F401
from test_strain import reload
from test_wires import wire  # noqa: F401

MB = 1 << 20


@pytest.fixture
def ends(place, actor):
    """(owner, reader) with a region R each, full of noise, on one node or two."""
    def make(size=MB, **kw):
        p = place(**kw)
        owner, reader = actor(p.owner, "name=owner"), actor(p.reader, "name=reader")
        for a, seed in ((owner, 1), (reader, 2)):
            a.ok(f"region R {size} memfd")
            a.ok(f"noise R {seed}")
        owner.place = p
        return owner, reader
    return make


def address(a):
    return int(a.ok("addr R").text)


def test_whole_regions(ends):
    """The simple form: all against all, both ways."""
    owner, reader = ends()
    owner.ok("fill 5 @R:all")
    assert reader.run("x", "pull", owner.grant("g", "read @R:all"), "@R:all final") == "OK"
    reader.ok("check 5 @R:all")
    assert owner.gwait("g")["bytes"] == MB
    reader.ok("fill 6 @R:all")
    assert reader.run("y", "push", owner.grant("h", "write @R:all"), "@R:all final") == "OK"
    owner.ok("check 6 @R:all")
    assert reader.stats("y")["pieces"] == reader.stats("y")["coalesced"] == 1


@pytest.mark.parametrize("op", ["pull", "push"])
def test_lists_cut_differently(ends, op):
    """Odd places and sizes; the sides' lists have nothing in common but their bytes."""
    owner, reader = ends()
    theirs, mine = "7+13,6000+1,100001+70000,4096+3x100/11", "900001+70013,3+1x300/7"
    src, dst = (owner, reader) if op == "pull" else (reader, owner)
    src.ok(f"fill 8 @R:{theirs if op == 'pull' else mine}")
    src.ok("snap R")
    token = owner.grant("g", f"{'read' if op == 'pull' else 'write'} @R:all")
    assert reader.run("x", op, token, f"@R:{mine}:fr={theirs}") == "INVALID"  # 70314 and 70313 bytes
    mine = mine.replace("70013", "70014")
    src.ok(f"fill 8 @R:{theirs if op == 'pull' else mine}")
    src.ok("snap R")
    assert reader.run("y", op, token, f"@R:{mine}:fr={theirs} final") == "OK"
    dst.ok(f"check 8 @R:{mine if op == 'pull' else theirs}")
    dst.ok(f"changed R 0 @R:{mine if op == 'pull' else theirs}")
    src.ok("changed R 0")
    st = reader.stats("y")
    assert st["bytes"] == 70314 and st["pieces"] == st["coalesced"] == 301


def test_addresses(ends):
    """As a compatibility layer speaks: virtual addresses of each process, on both sides."""
    owner, reader = ends()
    owner.ok("fill 9 @R:4096+4096x50/8192")
    token = owner.grant("g", "read @R:0+819200:addr")
    part = f"@R:65536+4096x50/4096:addr:fr=4096+4096x50/8192:fbase={address(owner)}"
    assert reader.run("x", "pull", token, part + " final") == "OK"
    reader.ok("check 9 @R:65536+204800")
    reader.ok("changed R 0 @R:65536+204800")
    st = reader.stats("x")
    assert st["pieces"] == 50 and st["coalesced"] == 1  # mine are neighbours


def test_ranges_of_a_grant(ends):
    """Its own order is kept; what lies between them is out of reach, what they share is not."""
    owner, reader = ends()
    grant = "write @R:500000+1000,1000+1000,2000+500,400+50"
    token = owner.grant("g", grant)
    reader.ok("fill 3 @R:0+2550")
    owner.ok("snap R")
    assert reader.run("x", "push", token, "@R:0+2550") == "OK"
    owner.ok("check 3 @R:500000+1000,1000+1000,2000+500,400+50")
    owner.ok("changed R 0 @R:500000+1000,1000+1000,2000+500,400+50")
    # two of them touch
    assert reader.run("y", "push", token, "@R:0+1500:fr=1000+1500") == "OK"
    owner.ok("snap R")
    for i, far in enumerate(["999+2", "2499+2", "450+1", "399+51", "499999+1", "501000+1", "0+1"]):
        at, size = map(int, far.split("+"))
        st = reader.run(f"b{i}", "push", token, f"@R:0+1,0+{size}:fr=1000+1,{far}")
        assert st == "INVALID", far
        assert (f"range 1, {size} bytes at offset {at}: not inside of what was granted, "
                "2550 bytes in 3 places") in st.text
    owner.ok("changed R 0")
    assert reader.run("z", "push", token, "@R:0+50:fr=400+50 final") == "OK"
    assert owner.gwait("g") == "OK"


BAD = [  # mine, far, what the text says
    (f"{MB - 9}+10", "0+10", f"part 0: range 0, 10 bytes at offset {MB - 9}: not inside of region"),
    (f"0+10,{MB}+1", "0+11", f"range 1, 1 bytes at offset {MB}: not inside of region"),
    (f"0+{MB + 1}", "0+1", f"of {MB} bytes"),
    ("0+1,5+0", "0+1", "part 0: range 1 has 0 bytes"),
    ("16+0xfffffffffffffff8", "0+1", "not inside of region"),
    ("0xfffffffffffffff8+16", "0+16", "not inside of region"),
    ("0+10", f"{MB - 9}+10", f"part 0 of the grant: range 0, 10 bytes at offset {MB - 9}: not inside"),
    ("0+11", f"0+10,{MB}+1", f"range 1, 1 bytes at offset {MB}: not inside"),
    ("0+1", "0+1,5+0", "far ranges: range 1 has 0 bytes"),
    ("0+16", "0xfffffffffffffff8+16", "ends beyond 64 bits"),
    ("0+8", "0xfffffffffffffff7+8", "not inside of region"),
    ("0+10", "0+5,8+6", "far ranges: 11 bytes, 10 here"),
    ("0+10", "all", f"10 bytes here, {MB} in the grant"),
]


def test_bounds(ends):
    """Each end judges its own; the text names the range, its values and the region's size."""
    owner, reader = ends()
    token = owner.grant("g", "read @R:all keep")
    reader.ok("snap R")
    assert reader.run("c", "claim", token) == "OK"
    for i, (mine, far, text) in enumerate(BAD):
        st = reader.run(f"x{i}", "pull", token, f"@R:{mine}:fr={far}")
        assert st == "INVALID" and text in st.text, (mine, far, st)
    # as addresses: below the first byte, and offsets taken for addresses
    for i, base in enumerate([address(owner) - 8, 0]):
        st = reader.run(f"y{i}", "pull", token, f"@R:0+8:fr=0+8:fbase={base}")
        assert st == "INVALID" and "range 0, 8 bytes at 0x" in st.text
        assert f"{address(owner):x}" not in st.text  # where it is is not for others
    reader.ok("changed R 0")
    for i, (mine, _, text) in enumerate(BAD[:6]):
        st = reader(f"grant h{i} read @R:{mine}")
        assert st == "INVALID" and text.removeprefix("part 0: ") in st.text
    assert reader.run("z", "pull", token, f"@R:{MB - 1}+1:fr={MB - 1}+1 final") == "OK"


def test_kinds_that_do_not_go_together(ends):
    owner, reader = ends()
    for a in (owner, reader):
        a.cache("B", 4, 1, 4096)
    blocks, raw = owner.grant("g", "read B:0-3"), owner.grant("h", "read @R:all")
    st = reader.run("a", "pull", blocks, "@R:0+4096")
    assert st == "INVALID" and "it is of blocks, not of a region" in st.text
    st = reader.run("b", "pull", raw, "B:0-3")
    assert st == "INVALID" and "it is of a region, not of blocks" in st.text
    st = reader.run("c", "pull", raw, "@R:0+1:fr=0+1:gp=1")
    assert st == "INVALID" and "it has only 1 part" in st.text
    st = reader("xfer d pull " + raw + " B:0:first=1:fr=0+4096")
    assert st == "INVALID" or reader.wait("d") == "INVALID"


def test_blocks_against_ranges(ends):
    """A store's way: blocks of a cache into one piece of a region, and back into other blocks."""
    owner, reader = ends()
    reader.cache("B", 8, 3, 4096)
    reader.ok("fill 4 B:7,2,5")
    assert reader.run("x", "push", owner.grant("g", "write @R:all"),
                      "B:7,2,5:fr=8192+36864 final") == "OK"
    owner.ok("changed R 0 @R:8192+36864")
    reader.ok("noise B 77")
    token = owner.grant("h", "read @R:8192+36864")
    assert reader.run("y", "pull", token, "B:0,6,1:fr=all final") == "OK"
    reader.ok("check 4 B:0,6,1")
    assert reader.stats("y")["pieces"] == 9


def test_parts_of_both_kinds(ends):
    owner, reader = ends()
    for a in (owner, reader):
        a.cache("B", 8, 2, 4096)
    owner.ok("fill 2 B:1-3 @R:10+5000:gp=1")
    token = owner.grant("g", "read B:1-3 @R:10+5000")
    assert reader.run("x", "pull", token, "B:5-7 @R:77+1000,3000+4000:gp=1 final") == "OK"
    reader.ok("check 2 B:5-7 @R:77+1000,3000+4000:gp=1")
    reader.ok("changed R 0 @R:77+1000,3000+4000")


def test_progress_of_ranges(ends):
    owner, reader = ends()
    token = owner.grant("g", "write @R:all progress")
    reader.ok("fill 4 @R:0+300")
    assert reader.run("x", "push", token, "@R:0+300:fr=5000+100x3/200 note=ab") == "OK"
    e = owner.event("PROGRESS")
    assert e["parts"] == "0:0+3/0:0+0:300:5000-5500" and e["note"] == "ab" and e["bytes"] == 300
    owner.ok("check 4 @R:5000+100x3/200")


@pytest.mark.parametrize("op", ["pull", "push"])
def test_long_lists(ends, op):
    """Longer than a datagram, and than a frame; coalesced where they touch; both sides shuffled."""
    owner, reader = ends(8 * MB)
    n = 50000
    src, dst = (owner, reader) if op == "pull" else (reader, owner)
    far, mine = f"1+100x{n}/150", f"0+100x{n}/160"
    src.ok(f"fill 8 @R:{far}:fshuffle=1:shuffle=3" if op == "pull" else f"fill 8 @R:{mine}:shuffle=4")
    token = owner.grant("g", f"{'read' if op == 'pull' else 'write'} @R:all")
    assert reader.run("x", op, token, f"@R:{mine}:shuffle=4:fr={far}:fshuffle=3") == "OK"
    where = f"@R:{mine}:shuffle=4" if op == "pull" else f"@R:{far}:shuffle=3"
    dst.ok(f"check 8 {where}")
    dst.ok(f"changed R 0 {where}")
    st = reader.stats("x")
    assert st["bytes"] == 100 * n and st["pieces"] == st["coalesced"] == n
    assert st["request"] > 32 * n
    # neighbours in the list
    assert reader.run("y", op, token, f"@R:0+100x{n}/100:fr=0+50x{2 * n}/50 final") == "OK"
    st = reader.stats("y")
    assert st["pieces"] == n and st["coalesced"] == 1
    assert owner.gwait("g")["bytes"] == 2 * 100 * n


def test_a_million_ranges(ends):
    # it is not about time: in no order on a busy machine it may take the loop a while
    owner, reader = ends(80 * MB, config='peers { keepalive_timeout = "60 s" }')
    n = 1000000
    owner.ok(f"fill 8 @R:5+64x{n}/80:shuffle=3")
    reader.ok("noise R 3")
    start = time.monotonic()
    token = owner.grant("g", f"read @R:5+64x{n}/80")
    granted = time.monotonic() - start
    start = time.monotonic()
    assert reader.run("x", "pull", token, f"@R:0+64x{n}/80:shuffle=4:fr=5+64x{n}/80:fshuffle=3 final",
                      60000) == "OK"
    print(f"grant {granted:.2f} s, pull {time.monotonic() - start:.2f} s")
    reader.ok(f"check 8 @R:0+64x{n}/80:shuffle=4")
    reader.ok(f"changed R 0 @R:0+64x{n}/80")
    assert reader.stats("x")["coalesced"] == n
    assert owner.gwait("g") == "OK"


def test_many_long_lists_at_once(ends):
    """They take turns on the control connection, which lives; cancels in the middle leave nothing."""
    owner, reader = ends(8 * MB)
    n, k = 30000, 24
    token = owner.grant("g", "read @R:all readers=1")
    owner.ok(f"fill 8 @R:1+100x{n}/150")
    for i in range(k):
        reader.xfer(f"x{i}", "pull", token, f"@R:0+100x{n}/160:fr=1+100x{n}/150")
        if i % 3 == 2:
            reader.ok(f"cancel x{i}")
    for i in range(k):
        st = reader.wait(f"x{i}")
        assert st == "OK" or i % 3 == 2 and st == "CANCELED", (i, st)
    reader.ok(f"check 8 @R:0+100x{n}/160")
    owner.ok("revoke g")
    assert owner.gwait("g") == "REVOKED"


def test_lists_are_charged(ends):
    owner, reader = ends(config='limits { list_bytes = "112 KiB" }')
    st = reader("grant g read @R:0+10x2000/10")
    assert st == "OK"  # 36 x 2000 bytes, and some
    st = reader("grant h read @R:0+10x1000/10")
    assert st == "QUOTA", st.text
    reader.ok("revoke g")
    assert reader.gwait("g") == "REVOKED"
    token = owner.grant("g", "read @R:all")
    st = reader.run("x", "pull", token, "@R:0+10x4000/10:fr=0+10x4000/10")
    assert st == "QUOTA"
    # what the owner's client has no room for
    assert owner("grant f read @R:0+10x1900/10") == "OK"
    st = reader.run("y", "pull", token, "@R:0+3000:fr=0+1x3000/1")
    assert st == "QUOTA" and "memory for lists" in st.text, st.text
    owner.ok("revoke f")
    owner.gwait("f")
    assert reader.run("z", "pull", token, "@R:0+3000:fr=0+1x3000/1 final") == "OK"


def test_permission(ends):
    owner, reader = ends()
    owner.ok("region L 4096 access=1")
    reader.ok("region W 4096 access=4")
    st = owner("grant g read @L:all")
    assert st == "PERMISSION" and "was not registered for remote_read" in st.text
    st = reader.run("x", "pull", owner.grant("g", "read @R:0+4096"), "@W:all")
    assert st == "PERMISSION" and "was not registered for local access" in st.text


def test_release_ends_grants(ends):
    """A region that goes takes its grants and transfers along, and counts them as uses."""
    owner, reader = ends()
    token = owner.grant("g", "read @R:0+4096")
    assert reader.run("c", "claim", token) == "OK"
    rows = owner.place.owner.rows("REGION")
    assert sum(r.get("in_use", 0) for r in rows) == 1
    assert not any(r.get("caches") for r in rows)
    owner.ok("release R")
    assert owner.gwait("g") == "REVOKED"
    assert reader.run("x", "pull", token, "@R:0+4096") in ("REVOKED", "NOT_FOUND")


def test_suspended(ends):
    """Its ranges are places in the region: grants over them outlive the memory."""
    owner, reader = ends()
    owner.ok("region S 65536")
    token = owner.grant("g", "read @S:100+5000 keep")
    owner.ok("suspend S")
    st = owner("grant h read @S:all")
    assert st == "BUSY" and "region" in st.text and "is suspended" in st.text
    assert reader.run("x", "pull", token, "@R:0+5000") == "BUSY"
    owner.ok("resume S")
    owner.ok("fill 6 @S:100+5000")
    assert reader.run("y", "pull", token, "@R:0+5000 final") == "OK"
    reader.ok("check 6 @R:0+5000")


def test_poisoned(ends):
    """Memory that faults ends the transfer, and the region takes no new grant."""
    owner, reader = ends()
    token = owner.grant("g", "read @R:all")
    for d in owner.place.daemons:
        reload(d, 'fault = {"sigbus=1"}\n')
    # small pieces: tcp takes large ones past the guard
    assert reader.run("x", "pull", token, "@R:0+64x100/80:fr=1+64x100/80") == "INVALID"
    for d in owner.place.daemons:
        reload(d, 'fault = {"sigbus=0"}\n')
    ends = [a(f"grant h{i} read @R:all") for i, a in enumerate((owner, reader))]
    bad = [e for e in ends if e != "OK"]
    assert bad and all(e == "INVALID" and "region 1" in e.text and "faulted: release it" in e.text
                       for e in bad), ends


def test_cut_while_lists_are_sent(wire):
    """A retried attempt sends its lists again; the connection's turns are right afterwards."""
    proxy, owner, pusher, _ = wire
    n = 20000
    for a in (owner, pusher):
        a.ok(f"region R {16 * MB}")
    assert pusher.run("w", "push", owner.grant("w", "write W:0"), "W:0 final") == "OK"
    pusher.ok(f"fill 9 @R:0+700x{n}/800")
    token = owner.grant("g", "write @R:all")
    assert pusher.run("c", "claim", token) == "OK"
    for i in range(5):
        proxy.cut_after(3 << 20)
        end = pusher.run(f"x{i}", "push", token, f"@R:0+700x{n}/800:fr=3+700x{n}/800")
        if end == "OK":
            break
        assert end == "TRANSPORT"  # a busy machine: each stream is cut on its own
    assert end == "OK" and pusher.stats(f"x{i}")["retries"] + i >= 1
    owner.ok(f"check 9 @R:3+700x{n}/800")
    assert pusher.run("y", "push", token, f"@R:0+700x{n}/800:fr=3+700x{n}/800 final") == "OK"
    assert owner.gwait("g") == "OK"


def test_random(ends, seeded):
    """Random lists of few and many, short and long, against a plain expansion (the actor's)."""
    owner, reader = ends(4 * MB)
    for i in range(12 if os.environ.get("KVT_LONG") != "1" else 200):
        def cut(total):
            out, at = [], seeded.randrange(64)
            while total:
                size = min(total, 1 + int(seeded.expovariate(1) * seeded.choice([3, 300, 30000])))
                out.append((at, size))
                total -= size
                at += size + (0 if seeded.random() < .4 else seeded.randrange(50))
            return out

        total = seeded.randrange(1, 500000)
        mine, far = [",".join(f"{a}+{n}" for a, n in cut(total)) for _ in range(2)]
        while max(len(mine), len(far)) > 20000:
            total //= 2
            mine, far = [",".join(f"{a}+{n}" for a, n in cut(total)) for _ in range(2)]
        op = seeded.choice(["pull", "push"])
        src, dst = (owner, reader) if op == "pull" else (reader, owner)
        s, t = (far, mine) if op == "pull" else (mine, far)
        dst.ok(f"noise R {i}")
        src.ok(f"fill {i} @R:{s}")
        token = owner.grant(f"g{i}", f"{'read' if op == 'pull' else 'write'} @R:all")
        assert reader.run(f"x{i}", op, token, f"@R:{mine}:fr={far}:fbase={address(owner)} final") == "OK"
        dst.ok(f"check {i} @R:{t}")
        dst.ok(f"changed R 0 @R:{t}")
        assert owner.gwait(f"g{i}")["bytes"] == total

# SPDX-License-Identifier: Apache-2.0
"""The commit point: a reader hears of success only of what was granted when the last byte was read,
and then the owner hears of DONE; whatever the two do at the same moment, each of them hears of one
end, once."""
import pytest

from conftest import wait_until
from actors import actor, place, seeded  # noqa: F401

ROUNDS = 200  # of each of the kinds of race, on each path, in each direction


def pair(p, actor):
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", 8, 2, 32768)
    reader.cache("B", 8, 2, 32768)
    return owner, reader


def start(owner, reader, op, n, more=""):
    src, s = (owner, "A") if op == "pull" else (reader, "B")
    src.ok(f"fill {n} {s}:0-7")
    token = owner.grant(f"g{n}", f"{'read' if op == 'pull' else 'write'} A:0-7 {more}")
    return token


@pytest.mark.parametrize("confirm", ["asked", "off"])
@pytest.mark.parametrize("op", ["pull", "push"])
def test_revoked_before_the_commit(place, actor, op, confirm):
    """All bytes are there, the owner takes the grant back before it confirms. With confirm-off the
    reader must be told of a success that is none: a test of the test."""
    off = ["--fault", "confirm-off"] if confirm == "off" else []
    p = place("--fault", "delay-commit=5000", *off, check=confirm == "asked")
    owner, reader = pair(p, actor)
    token = start(owner, reader, op, 1)
    reader.xfer("x", op, token, "B:0-7 final")
    dst, d = (reader, "B") if op == "pull" else (owner, "A")
    wait_until("it waits for its commit", lambda: any(
        r["role"] == "owner" and r["state"] == "moved" for r in p.owner.rows("TRANSFER")))
    dst.ok(f"check 1 {d}:0-7")
    owner.ok("revoke g1")
    assert owner.gwait("g1", more="then=A") == "REVOKED"
    assert reader.wait("x") == ("REVOKED" if confirm == "asked" else "OK")


def the_events(a, kind):
    """Exactly one terminal one."""
    kinds = [(e.kind, str(e["status"])) for e in a.events()]
    ends = [status for k, status in kinds if k == kind]
    assert len(ends) == 1, kinds
    return ends[0]


def race(p, actor, op, seeded, how):
    """how: the racer's command, and what the reader may hear but OK."""
    owner, reader = pair(p, actor)
    seen, span, n = [], 400, 0

    def rare():
        return min(seen.count("OK"), len(seen) - seen.count("OK"))
    while n < ROUNDS or rare() < 10 and n < 5 * ROUNDS:
        n += 1
        token = start(owner, reader, op, n)
        racer = owner if how == "revoke" else reader
        us = seeded.randrange(span)
        name = f"g{n}" if racer is owner else f"x{n}"
        if racer is owner:
            owner.send(f"revoke {name} us={us}")
        reader.send(f"xfer x{n} {op} {token} B:0-7 final")
        if racer is reader:
            reader.send(f"cancel {name} us={us}")
        if op == "pull":
            owner.send(f"gwait g{n} {10000 if racer is owner else 0} then=A seed={n}")
        reader.send(f"wait x{n} 10000")
        if racer is owner:
            assert owner.recv() == "OK"
        assert reader.recv() == "OK"
        if racer is reader:
            assert reader.recv() == "OK"
        if op == "pull":
            ended = owner.recv()
        got = reader.recv()
        if racer is reader:
            owner.ok(f"revoke g{n}")
        if racer is reader or op == "push":
            ended = owner.gwait(f"g{n}", 10000)
        assert ended in ("OK", "REVOKED"), repr(ended)
        if racer is owner:
            assert got == ended, f"round {n}: reader {got!r}, owner {ended!r}"
        else:
            assert got in ("OK", "CANCELED"), repr(got)
        if got == "OK":
            assert ended == "OK", f"round {n}: {ended!r}"
            dst, d = (reader, "B") if op == "pull" else (owner, "A")
            dst.ok(f"check {n} {d}:0-7")
        assert the_events(owner, "GRANT") == ended
        assert the_events(reader, "TRANSFER") == got
        owner.ok(f"gfree g{n}")
        reader.ok(f"free x{n}")
        seen.append(str(got))
        # as many of each as can be had
        span = max(1, span - 20) if got == "OK" and us > span // 2 else span + 10
    assert rare() >= 10, seen
    assert owner("event 20") == "PENDING" and reader("event 0") == "PENDING"


@pytest.mark.parametrize("op", ["pull", "push"])
def test_revoke_against_final(place, actor, seeded, op):
    race(place(), actor, op, seeded, "revoke")


@pytest.mark.parametrize("op", ["pull", "push"])
def test_cancel_against_final(place, actor, seeded, op):
    race(place(), actor, op, seeded, "cancel")


def test_release_against_revoke(place, actor, seeded):
    """The same for a final without bytes, and for a decline."""
    p = place()
    owner, reader = pair(p, actor)
    for n in range(ROUNDS):
        word = seeded.choice(["release", "decline"])
        token = owner.grant(f"g{n}", "read A:0")
        owner.send(f"revoke g{n} us={seeded.randrange(300)}")
        reader.send(f"drop {token} {word}")
        assert owner.recv() == "OK"
        ended, got = owner.gwait(f"g{n}"), reader.recv()
        want = {"release": "OK", "decline": "DECLINED"}[word]
        assert (ended, got) in ((want, "OK"), ("REVOKED", "REVOKED")), (word, ended, got)
        assert the_events(owner, "GRANT") == ended
        owner.ok(f"gfree g{n}")
    assert not reader.events()


def test_ttl_against_open(place, actor, seeded):
    """An open at the moment at which the ttl passes: either it holds, or both hear EXPIRED."""
    p = place()
    owner, reader = pair(p, actor)
    for n in range(20):
        token = start(owner, reader, "pull", n, "ttl=5")
        reader.send(f"xfer x{n} pull {token} B:0-7 final us={4000 + seeded.randrange(1500)}")
        assert reader.recv() == "OK"
        got, ended = reader.wait(f"x{n}"), owner.gwait(f"g{n}")
        assert (got, ended) in (("OK", "OK"), ("EXPIRED", "EXPIRED")), (got, ended)
        if got == "OK":
            reader.ok(f"check {n} B:0-7")
        assert the_events(owner, "GRANT") == ended
        assert the_events(reader, "TRANSFER") == got


def test_two_readers_of_one_place(place, actor, seeded):
    """Two readers at the same moment: one gets it, byte for byte, the other hears BUSY or, later,
    that it is used up."""
    p = place()
    owner, reader = pair(p, actor)
    other = actor(p.reader)
    other.cache("B", 8, 2, 32768)
    for n in range(1, 31):
        token = start(owner, reader, "pull", n)
        for r in (reader, other):
            r.send(f"xfer x{n} pull {token} B:0-7 final us={seeded.randrange(300)}")
        got = []
        for r in (reader, other):
            assert r.recv() == "OK"
        for r in (reader, other):
            got.append(str(r.wait(f"x{n}")))
            if got[-1] == "OK":
                r.ok(f"check {n} B:0-7")
        assert sorted(got) in (["BUSY", "OK"], ["NOT_FOUND", "OK"]), got
        assert owner.gwait(f"g{n}") == "OK"

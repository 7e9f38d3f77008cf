# SPDX-License-Identifier: Apache-2.0
"""The order of transfers under one token: what a final waits for, and what ends with it."""
import socket

import pytest

from actors import actor, place  # noqa: F401
from conftest import wait_until


def pair(p, actor):
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", 8, 1, 32768)
    reader.cache("B", 8, 1, 32768)
    return owner, reader


@pytest.mark.parametrize("word", ["claim", "pull B:4-7", "pull B:4-7 final", "push final"])
def test_after_a_final(place, actor, word):
    """What is started behind a final waits for it, and finds the grant used up."""
    p = place("--fault", "delay-chunk=100")
    owner, reader = pair(p, actor)
    owner.ok("fill 3 A:0-3")
    token = owner.grant("g", "read A:0-3")
    reader.xfer("x", "pull", token, "B:0-3 final")
    op, _, more = word.partition(" ")
    reader.xfer("y", op, token, more)
    assert reader.wait("x") == "OK"
    assert reader.wait("y") == "NOT_FOUND"
    reader.ok("check 3 B:0-3")
    ended = owner.gwait("g")
    assert ended == "OK" and ended["finals"] == 1
    assert len(reader.events()) == 2


def test_final_behind_one_that_is_being_fenced(kvtd, actor):
    """A push is canceled while its sender is at work. The final behind it was refused by then, as it
    came short: it must not be tried again without the push."""
    a, b = kvtd(), kvtd("--fault", "delay-chunk=1500")
    owner, reader = actor(a), actor(b)
    owner.cache("A", 8, 1, 32768)
    reader.cache("B", 8, 1, 32768)
    token = owner.grant("g", "write A:0-7")
    assert reader.run("c", "claim", token) == "OK"
    reader.xfer("x", "push", token, "B:0-7")
    reader.xfer("y", "push", token, "final")
    wait_until("both are at the owner",
               lambda: {"moving", "moved"} == {r["state"] for r in a.rows("TRANSFER")})
    reader.ok("cancel x")
    assert reader.wait("y") == "CANCELED"
    assert reader.wait("x") == "CANCELED"
    assert owner.gwait("g", 0) == "PENDING"
    assert reader(f"drop {token} release") == "OK"
    assert owner.gwait("g") == "OK"


def test_opener_dies_before_the_commit(place, actor):
    """A death is told as one, whatever its transfers were just doing."""
    p = place("--fault", "delay-commit=5000")
    owner, reader = pair(p, actor)
    token = owner.grant("g", "read A:0-3")
    reader.xfer("x", "pull", token, "B:0-3 final")
    wait_until("the bytes are there",
               lambda: "committing" in {r["state"] for r in p.reader.rows("TRANSFER")})
    reader.kill()
    assert owner.gwait("g") == "CLIENT_DIED"


def test_many_finals_end_together(kvtd):
    """As many as a client may have, under one token, one behind the other."""
    n = 20000
    d = kvtd("--fault", "delay-commit=60000", config=f"limits {{ transfers = {n} }}")
    with d.client(name="reader", timeout=60) as c, d.client(name="owner") as owner:
        owner.region(1, 32768)
        owner.cache(1, 1, 8, 4096)
        token = owner.grant(1, 1, [0]).grant_created["token"]
        for i in range(1, n + 1):
            c.transfer(i, "OP_RELEASE", token)
        c.send("transfer_cancel", rid=0, transfer=1)
        for _ in range(n):
            assert c.event("transfer_ended").status == "CANCELED"


def test_owner_that_does_not_read(kvtd, actor):
    """It cannot be sent to any more, with a note that waits; in the same turn its grant ends."""
    d = kvtd("--fault", "delay-chunk=100")
    reader = actor(d)
    reader.cache("B", 8, 1, 32768)
    with d.client(name="owner") as owner:
        owner.region(1, 8 * 32768)
        owner.cache(1, 1, 8, 32768)
        token = owner.grant(1, 1, [0, 1], access="ACCESS_WRITE").grant_created["token"]
        owner.sock.shutdown(socket.SHUT_RD)
        reader.xfer("x", "push", token, "B:0-1 note=0909")
        reader.xfer("y", "push", token, "final")
        reader.wait("x"), reader.wait("y")
        wait_until("the owner is gone", lambda: len(d.rows("CLIENT")) == 1)

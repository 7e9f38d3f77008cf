# SPDX-License-Identifier: Apache-2.0
"""Limits: bytes in flight, connections that are being made for a client, what waits."""
import os
import signal

import pytest

from actors import actor, place  # noqa: F401
from conftest import wait_until


def test_bytes_in_flight(place, actor):
    """The transfer that would go over it is refused with the numbers; the next one after an end is not."""
    p = place(config="limits { in_flight = 64KiB }")
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", 16, 1, 16384)
    reader.cache("B", 16, 1, 16384)
    owner.ok("fill 5 A:0-3")
    token = owner.grant("g", "read A:0-3 readers=2")
    later = "00" * 15 + "11"
    waiting = reader.ok(f"token {owner.ticket()} {later}").text
    reader.xfer("w", "pull", waiting, "B:8-10 wait=20000")
    wait_until("the first transfer counts", lambda: reader.wait("w", 0) == "PENDING")
    refused = reader.run("x", "pull", token, "B:0-3 final")
    assert refused == "QUOTA", refused.text
    assert "49152 of 65536 bytes" in refused.text and "65536 more" in refused.text
    reader.ok("cancel w")
    assert reader.wait("w") == "CANCELED"
    assert reader.run("y", "pull", token, "B:0-3 final") == "OK"
    reader.ok("check 5 B:0-3")
    assert reader.run("z", "pull", token, "B:0-4") == "QUOTA"


def test_one_dial_for_many_tokens(kvtd, actor):
    """A burst of tokens of one node that is not connected yet takes one dial, not one each."""
    a = kvtd(name="node-a")
    b = kvtd(name="node-b", config="limits { dials = 1 }")
    owner, reader = actor(a), actor(b)
    owner.cache("A", 64, 1, 4096)
    reader.cache("B", 64, 1, 4096)
    owner.ok("fill 5 A:0-39")
    tokens = [owner.grant(f"g{i}", f"read A:{i}") for i in range(40)]
    for i, token in enumerate(tokens):
        reader.xfer(f"x{i}", "pull", token, f"B:{i} final")
    for i in range(40):
        assert reader.wait(f"x{i}") == "OK"
    reader.ok("check 5 B:0-39")


@pytest.mark.skipif("KVT_SANITIZE" in os.environ, reason="sanitizers use memory of their own")
def test_memory_of_ends_is_given_back(kvtd, actor):
    """Ended grants are remembered for token_keep; a daemon that is idle after a load is small again."""
    d = kvtd(config="grants { token_keep = 1s }")
    a = actor(d)
    a.cache("A", 8, 1, 4096)
    a.cache("B", 8, 1, 4096)
    for i in range(3000):
        token = a.grant(f"g{i}", "read A:0")
        assert a.run(f"x{i}", "pull", token, "B:0 final") == "OK"
        assert a.gwait(f"g{i}") == "OK"
        for what in ("gfree g", "free x"):
            a.ok(f"{what}{i}")
    assert a.ok(f"tstatus {token}").text == "ENDED OK"
    wait_until("the ends are forgotten", lambda: a.ok(f"tstatus {token}").text == "UNKNOWN OK")
    wait_until("the memory is given back", lambda: d.status()["rss_anon_bytes"] < 4 << 20)


def test_again_at_once_after_cancel(place, actor):
    """A place that its own opener has just given up is waited for, not BUSY, while it is fenced."""
    p = place("--fault", "delay-chunk=40", config="transport {\n tcp_chunk = 64KiB\n local_chunk = 64KiB\n}")
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", 16, 1, 65536)
    reader.cache("B", 16, 1, 65536)
    owner.ok("fill 5 A:0-15")
    for i in range(3):
        token = owner.grant(f"g{i}", "read A:0-15")
        reader.xfer(f"x{i}", "pull", token, "B:0-15 final")
        wait_until("bytes move", lambda: any(
            row.get("moved_bytes") for d in p.daemons for row in d.rows("TRANSFER")))
        reader.ok(f"cancel x{i}")
        assert reader.wait(f"x{i}") == "CANCELED"
        again = reader.run(f"y{i}", "pull", token, "B:15-0 final")
        assert again == "OK", again.text
        reader.ok("check 5 B:15-0")
        assert owner.gwait(f"g{i}") == "OK"


def test_timeouts_are_never_early(place, actor):
    """And their text says what had not come."""
    p = place()
    owner, reader = actor(p.owner), actor(p.reader)
    reader.cache("B", 16, 1, 4096)
    for i in range(20):
        token = reader.ok(f"token {owner.ticket()} {i:032x}").text
        reader.xfer(f"x{i}", "pull", token, f"B:0 wait=20000 timeout={31 + i}")
    for i in range(20):
        end = reader.wait(f"x{i}")
        assert end == "TIMEOUT" and "may not have been created" in end.text, end.text
        s = reader.stats(f"x{i}")
        assert s["ended"] - s["queued"] >= (31 + i) * 1000000


def test_registered_is_asked_before_pages_are_made(kvtd, actor):
    """A region over the limit is refused with the numbers and takes no memory; the next that fits is taken."""
    d = kvtd(config="limits { registered = 100MiB }")
    a = actor(d)
    refused = a("cache A 1 1 1073741824")
    assert refused == "QUOTA" and "of 104857600 bytes registered" in refused.text, repr(refused)
    with open(f"/proc/{a.pid}/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert "KVT_SANITIZE" in os.environ or peak < 256 << 10, f"{peak} KiB"
    refused = a("cache A 1 1 35184372088832")
    assert refused != "OK" and "this machine has" in refused.text, repr(refused)
    a.cache("A", 1, 1, 64 << 20)
    assert a("cache B 1 1 67108864") == "QUOTA"


@pytest.mark.parametrize("how", ["release", "end"])
def test_a_begin_without_commit_is_given_back(kvtd, how):
    d = kvtd(config="limits { registered = 1MiB }")
    with d.client() as c:
        assert c.ask("region_begin", region=1, length=1 << 20, access=7).status == "OK"
        assert c.ask("region_begin", region=2, length=4096, access=7).status == "QUOTA"
        if how == "release":
            assert c.ask("region_release", region=1).status == "OK"
            assert c.ask("region_begin", region=3, length=1 << 20, access=7).status == "OK"
    wait_until("it is given back", lambda: not d.rows("REGION"))
    with d.client() as c:
        assert c.ask("region_begin", region=1, length=1 << 20, access=7).status == "OK"


def test_questions_about_tokens(two_daemons):
    """A daemon that does not answer: a client may wait for so many answers, and no more."""
    a, b = two_daemons
    with b.client(name="owner") as owner, a.client(name="asker") as c:
        owner.region(1, 4096)
        owner.cache(1, 1, 1, 4096)
        token = owner.grant(1, 1, [0]).grant_created["token"]
        assert c.ask("token_status", token=token).status == "OK"
        b.signal(signal.SIGSTOP)
        asked = [c.send("token_status", token=token, timeout_ms=60000) for _ in range(1100)]
        for rid in asked[1024:]:
            refused = c.reply(rid)
            assert refused.status == "QUOTA" and "1024" in refused.text
        b.signal(signal.SIGCONT)
        for rid in asked[:1024]:
            assert c.reply(rid).status in ("OK", "PEER_LOST")
        assert c.ask("token_status", token=token).status == "OK"


def test_what_waits_at_the_owner(kvtd, actor):
    """Transfers that came before their grant: what the owner's daemon keeps of them is bounded, and
    all of it is free again when they have ended."""
    n, note = 9000, b"n" * 4096
    some = f"{{ transfers = {n} list_bytes = 256MiB }}"
    d = kvtd(config=f"limits {some} limits_key {some} grants {{ open_wait_max = 60s }}")
    owner = actor(d)
    token = owner.ok(f"token {owner.ticket()} {'00' * 15 + '33'}").text
    for _ in range(2):
        with d.client(name="reader", timeout=30) as c:
            c.transfer(1, "OP_CLAIM", token, note=note, open_wait_ms=60000)
            assert c.quiet()
            for i in range(2, n + 1):
                c.transfer(i, "OP_CLAIM", token, note=note, open_wait_ms=60000)
            ended = c.event("transfer_ended")
            assert ended.status == "NO_MEMORY" and "at most" in ended["text"]
        wait_until("the reader is gone", lambda: len(d.rows("CLIENT")) == 1)

# SPDX-License-Identifier: Apache-2.0
"""PROGRESS: the owner of a write grant is told of each push, once, when its bytes are there."""
from actors import actor, place  # noqa: F401
from conftest import wait_until
from test_wires import wire  # noqa: F401

LAYERS = 8


def test_layers(place, actor):
    """Layer by layer: what each event says is there when it comes; DONE is the last word."""
    p = place()
    owner, pusher = actor(p.owner, "name=owner"), actor(p.reader, "name=pusher")
    owner.cache("A", 16, LAYERS, 16384)
    pusher.cache("B", 16, LAYERS, 16384)
    token = owner.grant("g", "write A:3-10 progress")
    for i in range(LAYERS):
        pusher.ok(f"fill 7 B:8-15:planes={i}+1:far={i}")
        final = " final" if i == LAYERS - 1 else ""
        pusher.xfer(f"x{i}", "push", token,
                    f"B:8-15:planes={i}+1:far={i}{final} note={i:02x} tag=layer-{i}")
    assert [pusher.wait(f"x{i}") for i in range(LAYERS)] == ["OK"] * LAYERS
    order = []
    for _ in range(LAYERS - 1):
        e = owner.event("PROGRESS")
        part, first, planes, size = e["parts"].split(":")
        layer = int(planes.split("+")[0])
        order.append(layer)
        assert (part, first, planes) == ("0", "0+8/1", f"{layer}+1")
        assert int(size) == e["bytes"] == 8 * 16384
        assert e["note"] == f"{layer:02x}" and e["tag"] == f"layer-{layer}"
        assert e["name"] == "g" and e["node"] == p.reader.name and e["missed"] == 0
        owner.ok(f"check 7 A:3-10:planes={layer}+1:far={layer}")
    assert sorted(order) == list(range(LAYERS - 1))
    assert owner.event("NOTE")["final"] == 1
    assert owner.event("GRANT")["status"] == "OK"
    assert owner.events() == []
    done = owner.gwait("g")
    assert done["bytes"] == LAYERS * 8 * 16384 and done["note"] == f"{LAYERS - 1:02x}"


def test_parts_steps_and_notifications(place, actor):
    """All of what a push wrote is said; one of no bytes is told, too. Who it was is his client id."""
    p = place()
    owner, pusher = actor(p.owner), actor(p.reader)
    owner.cache("A", 16, 2, 4096)
    pusher.cache("B", 16, 2, 4096)
    token = owner.grant("g", "write A:0-7 A:8-15 progress")
    assert pusher.run("x", "push", token, "B:0-2:first=1:step=2 B:5-6:gp=1:planes=0+1:far=1") == "OK"
    assert pusher.run("y", "push", token, "note=" + "ab" * 4096) == "OK"
    e = owner.event("PROGRESS")
    assert e["parts"] == f"0:1+3/2:0+2:{6 * 4096},1:0+2/1:1+1:{2 * 4096}"
    opener = e["opener"]
    assert int(opener, 16) in [r["client"] for r in p.reader.rows("CLIENT") if r["pid"] == pusher.pid]
    e = owner.event("PROGRESS")
    assert e["bytes"] == 0 and e["note"] == "ab" * 4096 and e["opener"] == opener
    assert pusher.run("z", "push", token, "B:0:first=0 final") == "OK"
    assert owner.event("GRANT")["status"] == "OK"
    assert owner.events() == []


def test_a_failed_push_is_an_attempt(place, actor):
    p = place()
    owner, pusher = actor(p.owner), actor(p.reader)
    owner.cache("A", 16, 2, 4096)
    pusher.cache("B", 16, 2, 4096)
    token = owner.grant("g", "write A:0-7 progress")
    assert pusher.run("c", "claim", token) == "OK"
    assert pusher.run("x", "push", token, "B:0-7:first=1") == "INVALID"
    assert owner.event("ATTEMPT")["status"] == "INVALID"
    assert pusher.run("y", "push", token, "B:0-7 final") == "OK"
    assert owner.event("GRANT")["status"] == "OK"
    assert owner.events() == []


def test_not_of_a_read_grant(place, actor):
    p = place()
    owner = actor(p.owner)
    owner.cache("A", 1, 1, 4096)
    refused = owner("grant g read A:0 progress")
    assert refused == "INVALID" and "a grant for reading has none" in refused.text


def test_a_retried_push_is_told_once(wire):
    proxy, owner, pusher, _ = wire
    assert pusher.run("w", "push", owner.grant("w", "write W:0"), "W:0 final") == "OK"
    token = owner.grant("g", "write A:0-31 progress")
    pusher.ok("fill 9 B:0-31")
    assert pusher.run("c", "claim", token) == "OK"
    for i in range(5):
        proxy.cut_after(3 << 20)
        end = pusher.run(f"x{i}", "push", token, "B:0-31")
        if end == "OK":
            break
        assert end == "TRANSPORT"  # a busy machine: each stream is cut on its own
    assert end == "OK" and pusher.stats(f"x{i}")["retries"] + i >= 1
    owner.ok("check 9 A:0-31")
    assert pusher.run("y", "push", token, "final") == "OK"
    assert owner.gwait("g") == "OK"
    told = [t for t in owner.events() if t.kind != "ATTEMPT"]
    assert [(t.kind, t["name"]) for t in told] == [("GRANT", "w"), ("PROGRESS", "g"), ("GRANT", "g")]
    assert told[1]["bytes"] == 32 * 2 * 262144


def test_an_owner_that_does_not_read(place, actor):
    """A push that could not be told of is refused before it writes; what succeeded is all told."""
    p = place(config='limits { list_bytes = "32 KiB" }')
    owner, pusher = actor(p.owner), actor(p.reader)
    owner.cache("A", 1, 1, 4096)
    pusher.cache("B", 1, 1, 4096)
    token = owner.grant("g", "write A:0 progress")
    assert pusher.run("c", "claim", token) == "OK"
    good = refused = 0
    while not refused:
        assert good < 2000
        pusher.ok(f"fill {good + 1} B:0")
        st = pusher.run(f"x{good}", "push", token, f"B:0 tag=n{good} note=" + "5a" * 4096)
        pusher.ok(f"free x{good}")
        good += st == "OK"
        refused += st == "QUOTA"
        assert st in ("OK", "QUOTA"), st.text
    assert good > 5
    owner.ok(f"check {good} A:0")
    for i in range(good):
        e = owner.event("PROGRESS")
        assert e["tag"] == f"n{i}" and e["missed"] == 0
    assert owner.event("ATTEMPT")["status"] == "QUOTA"
    # it reads again: on with it
    assert pusher.run("y", "push", token, "B:0 tag=more") == "OK"
    assert owner.event("PROGRESS")["tag"] == "more"
    owner.ok("revoke g")
    assert owner.gwait("g") == "REVOKED"


def test_revoked_with_events_unread(place, actor):
    """What is not read goes with the client, and nothing is left of it."""
    p = place()
    owner, pusher = actor(p.owner), actor(p.reader)
    owner.cache("A", 1, 1, 4096)
    token = owner.grant("g", "write A:0 progress")
    for i in range(40):
        assert pusher.run(f"x{i}", "push", token, "note=" + "5a" * 4096) == "OK"
    owner.kill()
    wait_until("the owner is gone", lambda: not p.owner.rows("GRANT"))

# SPDX-License-Identifier: Apache-2.0
"""Tokens that are damaged, foreign, old, or that lead nowhere; beside them others' transfers go on."""
import socket
import time

import pytest

from actors import actor, place, seeded  # noqa: F401
from test_peers import token_change
from wire import SLOW

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


class Bystander:
    """Others, whose hand-overs stay byte-exact."""

    def __init__(self, p, actor):
        self.owner, self.reader = actor(p.owner, "name=other"), actor(p.reader, "name=other")
        self.owner.cache("A", 8, 2, 4096)
        self.reader.cache("B", 8, 2, 4096)
        self.n = 0

    def works(self):
        self.n += 1
        self.owner.ok(f"fill {self.n} A:0-7")
        token = self.owner.grant(f"o{self.n}", "read A:0-7")
        assert self.reader.run(f"o{self.n}", "pull", token, "B:7-0 final") == "OK"
        self.reader.ok(f"check {self.n} B:7-0")
        self.reader.ok("changed B B:0-7")
        assert self.owner.gwait(f"o{self.n}") == "OK"


@pytest.fixture
def scene(place, actor):
    def make(*args, **kw):
        p = place(*args, **kw)
        owner, reader = actor(p.owner), actor(p.reader)
        owner.cache("A", 8, 2, 4096)
        reader.cache("B", 8, 2, 4096)
        return p, owner, reader, Bystander(p, actor)
    return make


def test_damaged(scene, seeded):
    p, owner, reader, others = scene()
    token = owner.grant("g", "read A:0-7")
    body = token.split(".")[1]
    bad = [token[:n] for n in (1, 4, 5, 6, 20, len(token) - 1)]
    bad += [token + "A", token + "=", "kvt1." + "A" * 400, "kvt2." + body, "kvtk1." + body,
            owner.ticket(), owner.ticket().replace("kvtk1.", "kvt1."), "x", "kvt1.", "....",
            "kvt1." + body[::-1], token.replace(".", "", 1), "\xff\xfe" + token]
    for _ in range(40):
        at = seeded.randrange(len(token))
        c = seeded.choice([c for c in ALPHABET if c != token[at]])
        bad.append(token[:at] + c + token[at + 1:])
    for i, t in enumerate(bad):
        end = reader.run(f"x{i}", "pull", t, "B:0-7 final")
        assert end == "INVALID", (t, end)
        assert end.text and body[60:] not in end.text
        assert reader(f"tstatus {t}") == "INVALID"
        assert reader(f"drop {t} release") == "INVALID"
        reader.ok(f"free x{i}")
    assert reader("xfer long pull " + "A" * 600 + " B:0") == "INVALID"
    others.works()
    reader.ok("changed B")
    assert owner.gwait("g", 0) == "PENDING"
    assert reader.run("x", "pull", token, "B:0-7 final") == "OK"


def test_foreign(scene):
    p, owner, reader, others = scene()
    token = owner.grant("g", "read A:0-7")
    cases = [
        (dict(cluster="elsewhere"), "PERMISSION", "elsewhere"),
        (dict(secret=bytes(16)), "NOT_FOUND", ""),
        (dict(client=12345), "NOT_FOUND", "client"),
        (dict(epoch=bytes(16)), "PEER_RESTARTED", "restarted"),
        (dict(epoch=bytes(15)), "INVALID", ""),
        (dict(secret=bytes(15)), "INVALID", ""),
        (dict(node=""), "INVALID", ""),
        (dict(node="x" * 65), "INVALID", ""),
        (dict(node="a\nb"), "INVALID", ""),
        (dict(client=0), "INVALID", ""),
    ]
    for i, (change, status, text) in enumerate(cases):
        end = reader.run(f"x{i}", "pull", token_change(token, **change), "B:0-7 final")
        assert end == status and text in end.text, (change, end)
    others.works()
    assert owner.gwait("g", 0) == "PENDING"
    reader.ok("changed B")


def nobody_answers():
    """A port at which nobody listens, and one at which nobody speaks."""
    closed, silent = socket.socket(), socket.socket()
    closed.bind(("127.0.0.1", 0))
    silent.bind(("127.0.0.1", 0))
    silent.listen(8)
    return closed, silent


def test_unreachable(kvtd, actor):
    d = kvtd(config='peers {\n connect_timeout = "400 ms" \n}')
    owner, reader = actor(d), actor(d)
    owner.cache("A", 8, 2, 4096)
    reader.cache("B", 8, 2, 4096)
    token = owner.grant("g", "read A:0-7")
    sockets = nobody_answers()
    try:
        for i, s in enumerate(sockets):
            at = "127.0.0.1:%d" % s.getsockname()[1]
            t = token_change(token, node=f"node-{i}", addresses=[at])
            start = time.monotonic()
            end = reader.run(f"x{i}", "pull", t, "B:0-7 final")
            took = time.monotonic() - start
            assert end == "PEER_UNREACHABLE" and at in end.text, end
            assert took < 1.2 * SLOW, took
            # its own deadline comes first
            end = reader.run(f"y{i}", "pull", t, "B:0-7 final timeout=60")
            assert end in ("TIMEOUT", "PEER_UNREACHABLE"), end
            # and so does a cancel
            reader.xfer(f"z{i}", "pull", t, "B:0-7 final")
            reader.ok(f"cancel z{i}")
            assert reader.wait(f"z{i}") in ("CANCELED", "PEER_UNREACHABLE")
    finally:
        for s in sockets:
            s.close()
    assert reader.run("x", "pull", token, "B:0-7 final") == "OK"
    assert owner.gwait("g") == "OK"


def test_other_node_at_the_address(kvtd, actor):
    """The token names a node; another one answers."""
    a, b = kvtd(), kvtd()
    owner, reader = actor(b), actor(a)
    owner.cache("A", 8, 2, 4096)
    reader.cache("B", 8, 2, 4096)
    token = owner.grant("g", "read A:0-7")
    end = reader.run("x", "pull", token_change(token, node="node-z"), "B:0-7 final")
    assert end in ("PEER_UNREACHABLE", "PERMISSION"), end
    assert "node-b" in end.text or "node-z" in end.text, end
    assert reader.run("y", "pull", token, "B:0-7 final") == "OK"
    assert owner.gwait("g") == "OK"


def test_no_such_address(scene):
    p, owner, reader, others = scene()
    token = owner.grant("g", "read A:0-7")
    for i, (at, status) in enumerate((("10.1.2.3:7588", "POLICY"), ("[2001:db8::1]:7588", "POLICY"),
                                      ("224.0.0.1:7588", "POLICY"), ("0.0.0.0:7588", "POLICY"))):
        end = reader.run(f"x{i}", "pull",
                         token_change(token, node=f"node-{i}z", addresses=[at]), "B:0-7 final")
        assert end == status and at in end.text, end
        assert "peers { allow }" in end.text or "is not the address of one host" in end.text, end
    for i, at in enumerate(("127.0.0.1:0", "127.0.0.1:99999", "[::1", "")):
        end = reader.run(f"y{i}", "pull",
                         token_change(token, node=f"node-{i}y", addresses=[at]), "B:0-7 final")
        assert end in ("INVALID", "POLICY"), (at, end)
    others.works()


def test_older_epoch(place, actor):
    """The owner's daemon starts anew: its old tokens say so, the new ones work."""
    p = place(check=False)
    owner, reader = actor(p.owner), actor(p.reader)
    owner.cache("A", 8, 2, 4096)
    reader.cache("B", 8, 2, 4096)
    owner.ok("fill 5 A:0-7")
    token, ticket = owner.grant("g", "read A:0-7"), owner.ticket()
    assert reader.run("c", "claim", token) == "OK"
    p.owner.kill()
    assert owner.gwait("g") == "SHUTDOWN"
    if p.path == "local":
        reader.event("TRANSFER")
        reader.event("DISCONNECTED")
    p.owner.args[p.owner.args.index("127.0.0.1:0")] = p.owner.address
    p.owner.start()
    back = [owner.event(k) for k in ("DISCONNECTED", "GRANT", "RECONNECTED")][-1]
    assert back["ticket"] == owner.ticket() != ticket
    if p.path == "local":
        reader.event("RECONNECTED")
    end = reader.run("x", "pull", token, "B:0-7 final")
    assert end == "PEER_RESTARTED" and end.text, end
    end = reader("tstatus " + token)
    assert end == "PEER_RESTARTED" or end.text.startswith("UNKNOWN"), end
    reader.ok("changed B")
    # the cache was registered again; the new ticket is as good as the new token
    owner.ok("fill 6 A:0-7")
    secret = "ab" * 16
    owner.grant("h", f"read A:0-7 secret={secret}")
    new = reader.ok(f"token {back['ticket']} {secret}").text
    assert reader.run("y", "pull", new, "B:0-7 final") == "OK"
    reader.ok("check 6 B:0-7")
    assert owner.gwait("h") == "OK"
    owner.exit()
    reader.exit()
    for d in p.daemons:
        d.wait_idle()
        assert d.stop() == 0 and "impossible" not in d.log()

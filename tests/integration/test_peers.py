# SPDX-License-Identifier: Apache-2.0
"""Daemons and one another: what comes to the peer port, connections made, lost and made again."""
import base64
import os
import pathlib
import random
import signal
import socket
import time

from conftest import wait_until
from wire import SLOW, SOURCE, Schema

TOKEN = Schema(SOURCE / "proto" / "token.proto")
QUICK = "peers { keepalive_interval = 50ms keepalive_timeout = 300ms redial_max = 50ms }"


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def token_change(text, **fields):
    """The token with other fields and a right checksum."""
    prefix, body = text.split(".")
    raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    raw = TOKEN.encode("Token", {**TOKEN.decode("Token", raw[:-4]), **fields})
    raw += crc32c(raw).to_bytes(4, "little")
    return prefix + "." + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def port(daemon):
    return int(daemon.address.rsplit(":", 1)[1])


class Owner:
    """A client with a grant of one block."""

    def __init__(self, daemon):
        self.client = daemon.client(name="owner")
        assert self.client.region(1, 1 << 16).status == "OK"
        assert self.client.cache(1, 1, 16, 4096).status == "OK"
        r = self.client.grant(1, 1, [3])
        assert r.status == "OK", r
        self.token = r.grant_created["token"]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.client.close()


def ask(client, token):
    return client.ask("token_status", token=token, timeout_ms=5000 * SLOW)


def works(client, token):
    r = ask(client, token)
    return r.status == "OK" and r.token_state.get("state") == 1


def peers(daemon):
    return [p["node"] for p in daemon.rows("PEER")]


def connect(daemon, data=b""):
    s = socket.create_connection(("127.0.0.1", port(daemon)), timeout=10 * SLOW)
    s.sendall(data)
    return s


def ended(s):
    """Reads to the end; what came."""
    out = b""
    while True:
        try:
            data = s.recv(4096)
        except ConnectionError:
            return out
        if not data:
            return out
        out += data


def fds_as_at_start(daemon):
    wait_until("fds as at start", lambda: daemon.fds() == daemon.fds_at_start, 20)


# ---------------------------------------------------------------- strangers

def test_strangers(daemon):
    seed = int(os.environ.get("KVT_SEED", time.time_ns() % 2**32))
    print("KVT_SEED", seed)
    rnd = random.Random(seed)
    for data in (b"GET / HTTP/1.1\r\nHost: kvtd\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
                 b"KVTCTRL9", rnd.randbytes(1 << 16)):
        with connect(daemon, data) as s:
            assert ended(s) == b""
    # the right preamble, then garbage: a Bye at most
    for _ in range(50):
        with connect(daemon, b"KVTCTRL1" + rnd.randbytes(rnd.randint(4, 6000))) as s:
            s.shutdown(socket.SHUT_WR)
            assert len(ended(s)) < 400
    assert daemon.alive
    assert peers(daemon) == []
    fds_as_at_start(daemon)
    # garbage is told of, but not without end
    assert 1 <= daemon.log().count("does not speak the peer protocol") <= 10


def test_silent_strangers(two_daemons):
    """As many as there may be, and more, that say nothing: others still get through, later."""
    a, b = two_daemons
    silent = [connect(a) for _ in range(100)]
    wait_until("the surplus is closed", lambda: "have proven nothing yet" in a.log())
    with Owner(a) as owner, b.client() as c:
        # a's port takes no more of this address; after 5 s it does
        wait_until("the silent ones are closed", lambda: works(c, owner.token), 20)
    for s in silent:
        assert ended(s) == b""
        s.close()


# ---------------------------------------------------------------- two daemons

def test_rows(two_daemons):
    a, b = two_daemons
    with Owner(b) as owner, a.client() as c:
        assert works(c, owner.token)
        row, = a.rows("PEER")
        assert row["node"] == "node-b" and row["state"] == "up" and row["dialled"]
        assert row["address"] == b.address and row["version"] == "0.1.0"
        assert len(row["epoch"]) == 32 and row["bytes_in"] > 0 and row["bytes_out"] > 0
        back, = b.rows("PEER")
        assert back["node"] == "node-a" and not back.get("dialled")
        wait_until("tcp is ready", lambda: a.rows("PEER")[0].get("paths") == "tcp")
        # a client sees none: peers are nobody's
        assert c.rows("PEER") == []


def test_killed_and_back(kvtd):
    a, b = kvtd(config=QUICK), kvtd(config=QUICK, check=False)
    with Owner(b) as owner, a.client() as c:
        old = owner.token
        assert works(c, old)
        b.kill()
        wait_until("the peer is gone", lambda: peers(a) == [])
        r = ask(c, old)
        assert r.status == "PEER_UNREACHABLE" and "node-b" in r.text, r
        b.args[b.args.index("127.0.0.1:0")] = b.address
        b.start()
        wait_until("old life", lambda: ask(c, old).status == "PEER_RESTARTED")
    with Owner(b) as owner, a.client() as c:
        assert works(c, owner.token)
    assert peers(a) == ["node-b"]


def test_frozen(kvtd):
    a, b = kvtd(config=QUICK), kvtd(config=QUICK)
    with Owner(b) as owner, a.client() as c:
        assert works(c, owner.token)
        b.signal(signal.SIGSTOP)
        wait_until("the peer is lost", lambda: peers(a) == [])
        a.says("node-b: down: node-b: no answer for 300 ms")
        b.signal(signal.SIGCONT)
        wait_until("it is back", lambda: works(c, owner.token))
        assert peers(b) == ["node-a"]


def test_one_node_id(kvtd):
    a, b, twin = kvtd(), kvtd(name="node-b"), kvtd(name="node-b-twin", start=False)
    twin.args[twin.args.index("-n") + 1] = "node-b"
    twin.start()
    with Owner(b) as of_b, Owner(twin) as of_twin, Owner(a) as of_a:
        with a.client() as c, b.client() as d, twin.client() as e:
            assert works(c, of_b.token)
            # a has node-b: the twin's token is of another life, its connection is refused
            assert ask(c, of_twin.token).status == "PEER_RESTARTED"
            r = ask(e, of_a.token)
            assert r.status == "EXISTS" and "another daemon called node-b" in r.text, r
            a.says("says to be it as well")
            assert ask(d, of_twin.token).status == "PEER_RESTARTED"
            assert works(c, of_b.token)
    assert peers(a) == ["node-b"]


def test_address_not_allowed(two_daemons):
    a, b = two_daemons
    with Owner(b) as owner, a.client() as c:
        r = ask(c, token_change(owner.token, addresses=["10.9.8.7:7588"]))
        assert r.status == "POLICY", r
        assert "10.9.8.7:7588" in r.text and "peers { allow }" in r.text
        # others are tried as well
        assert works(c, token_change(owner.token, addresses=["10.9.8.7:7588", b.address]))


def test_other_cluster(kvtd):
    a, b = kvtd(), kvtd(config='cluster = "elsewhere"')
    with Owner(b) as owner, a.client() as c:
        assert ask(c, owner.token).status == "PERMISSION"
        r = ask(c, token_change(owner.token, cluster="default"))
        assert r.status == "PERMISSION" and "elsewhere" in r.text, r
    assert peers(a) == []


def test_drain_is_told(two_daemons):
    a, b = two_daemons
    with Owner(b) as owner, a.client() as c, b.admin() as admin:
        assert works(c, owner.token)
        assert admin.ask("drain").status == "OK"
        wait_until("a knows", lambda: a.rows("PEER")[0]["state"] == "draining")
        assert admin.ask("resume").status == "OK"
        wait_until("a knows", lambda: a.rows("PEER")[0]["state"] == "up")


def test_idle_pair(two_daemons):
    """Connected and idle: keep-alives, and no other wake-ups."""
    a, b = two_daemons
    with Owner(b) as owner, a.client() as c:
        assert works(c, owner.token)

        def switches():
            status = pathlib.Path(f"/proc/{a.pid}/status").read_text()
            return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
        before = switches()
        time.sleep(5)
        assert switches() - before < 5 * 8
        assert peers(a) == ["node-b"]

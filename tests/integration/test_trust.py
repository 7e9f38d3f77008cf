# SPDX-License-Identifier: Apache-2.0
"""Who is refused, and what everybody is told of it: with cluster keys, with certificates, and
between daemons of which each has something else. Refused means: a reason in the log (in both logs
where both ends are daemons), PERMISSION with the reason for the client who asked, no peer, no
secret on the wire, nothing left, and whoever is right goes on beside it."""
import re
import socket
import threading
import time

import pytest

from certs import ca
from certs import trust as trust_section
from conftest import wait_until
from actors import actor  # noqa: F401
from busy import Busy
from fake_peer import FakeListener, FakePeer, make_token, read_exactly
from proxy import BACK, CONTROL, DATA, THERE, Proxy, replay
from test_peers import Owner, ask, ended, peers, token_change, works
from tls import LOOPBACK, Key, Pipe, at, keyed, tries, write_keys  # noqa: F401
from wire import SLOW, readable

QUICK = f'keepalive_interval = "50 ms"\nkeepalive_timeout = "{400 * SLOW} ms"\nredial_max = "50 ms"'
SECRET = b"a secret of 16 b"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return ca(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return ca(tmp_path_factory.mktemp("other"), "elsewhere")


@pytest.fixture
def certified(kvtd, authority):
    """certified("node-a", ...) makes a daemon with a certificate."""
    def make(node, cert=None, authority=authority, allow=(), peers="", config="", listen=True,
             **kw):
        cert = cert or authority.cert(node)
        args = ("-l", "127.0.0.1:0") if listen else ()
        return kvtd(*args, name=node, listen=False, config=config + trust_section(
            cert=cert, ca=authority, allow=allow) + f"peers {{\n{LOOPBACK}\n{QUICK}\n{peers}\n}}\n",
            **kw)
    return make


def logged(d, pattern):
    wait_until(f"in the log of {d.name}: {pattern}", lambda: re.search(pattern, d.log()))


def no_trace(d):
    """No peer, no socket. (Data threads begin with the first data connection, and stay.)"""
    wait_until("no peer", lambda: peers(d) == [])
    wait_until("sockets as at start", lambda: d.fds()["inet"] == d.fds_at_start["inet"], 20)


def cert_options(cert, *more):
    return [f"cert={cert.cert}", f"key={cert.key}", "alpn=kvtd/1",
            "export=EXPORTER-kvtd-data", *more]


# ---------------------------------------------------------------- who dials a daemon with a key

def key_clients(key):
    strange = Key()
    return {
        "in the clear": (None, "it does not speak TLS|does not speak it"),
        "no proof": (["alpn=kvtd/1"], "offers no key"),
        "a strange key": (strange.options(),
                          f"offers key {strange.fingerprint}, which is not in our key file"),
        "a name without its key": (strange.options(identity=key.fingerprint),
                                   f"names our key {key.fingerprint} but does not have it"),
        "a name of no key": (strange.options(identity="x" * 200), "which is not in our key file"),
        "a certificate": (["alpn=kvtd/1", "self-signed=node-b"], "offers no key"),
        "TLS 1.2": (["tls12", "alpn=kvtd/1", "self-signed=node-b"], "another version of TLS"),
        "another ALPN": (key.options(alpn="h2"), "not for kvtd .no ALPN kvtd/1"),
        "no ALPN": (key.options(alpn=None), "not for kvtd .no ALPN kvtd/1"),
    }


@pytest.mark.parametrize("who", key_clients(Key()))
def test_client_is_refused(keyed, who):
    key = Key()
    d = keyed([key])
    options, reason = key_clients(key)[who]
    for _ in range(3):
        if options is None:
            with pytest.raises(ConnectionError, match="TLS is needed here|closed"):
                FakePeer(d)
        else:
            with Pipe.dial(d, *options) as p:
                assert not p.ok or 'alert-in="' in p.last, (p.line, p.last)
    logged(d, rf"peer 127\.0\.0\.1:\d+: .*({reason})")
    no_trace(d)
    with FakePeer(d, tls=key.options()) as p:
        p.alive()


@pytest.mark.parametrize("who", [w for w in key_clients(Key()) if w != "in the clear"])
def test_a_thousand_refusals(keyed, actor, who):
    """Beside transfers, in a log that stays short."""
    key = Key()
    d = keyed([key])
    options, _ = key_clients(key)[who]
    at = len(d.log())
    with Busy(d, actor) as busy:
        def attack(stop):
            n = 0
            while not stop.is_set() or n < 340:
                got = tries(d, 20, *options)
                assert not any(k.startswith("ok") and 'alert-in="' not in k for k in got), got
                n += sum(got.values())
            return n
        busy.compare(f"refusals: {who}", attack)
    assert len(d.log()[at:].splitlines()) < 40
    no_trace(d)
    with FakePeer(d, tls=key.options()) as p:
        p.alive()


# ---------------------------------------------------------------- whom a daemon dials

class Rogue:
    """A listener that a token names; each connection is handled by what serve(sock) does."""

    def __init__(self, serve):
        self.serve, self.heard, self.lines, self.stopping = serve, b"", [], False
        self.listener = FakeListener()
        self.listener.sock.settimeout(0.05)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stopping = True
        self.thread.join()
        self.listener.sock.close()

    def token(self):
        return self.listener.token(SECRET)

    def run(self):
        while not self.stopping:
            try:
                s, _ = self.listener.sock.accept()
            except TimeoutError:
                continue
            s.setblocking(True)
            try:
                assert read_exactly(s, 8, time.monotonic() + 5) == b"KVTCTRL1"
                self.serve(self, s)
            except ConnectionError as e:
                self.lines.append(str(e))
            finally:
                s.close()

    def listen(self, sock, seconds=5):
        """What comes until it ends."""
        deadline = time.monotonic() + seconds * SLOW
        try:
            while readable(sock, deadline - time.monotonic()):
                data = sock.recv(65536)
                if not data:
                    break
                self.heard += data
        except ConnectionError:
            pass


def in_the_clear(rogue, s):
    """As a daemon without trust would answer."""
    s.sendall(b"\0\0\0\x20" + bytes(32))
    rogue.listen(s)


def silent(rogue, s):
    rogue.listen(s, 1)


def ends(rogue, s):
    pass


def server(*options, talk=False):
    def serve(rogue, s):
        with Pipe(s, "server", *options) as p:
            rogue.lines.append(p.line)
            rogue.listen(p.sock)
    return serve


def proven(key, **hello):
    """It has the key, and says something wrong then."""
    def serve(rogue, s):
        with Pipe(s, "server", *key.options()) as p:
            rogue.lines.append(p.line)
            head = read_exactly(p.sock, 4, time.monotonic() + 5)
            read_exactly(p.sock, int.from_bytes(head, "big"), time.monotonic() + 5)
            from fake_peer import PEER
            body = PEER.encode("Frame", {"seq": 1, "hello": {
                "version_major": 1, "node": "node-x", "epoch": rogue.listener.epoch,
                "cluster": "default", "connection": 5, "streams": 1, **hello}})
            p.sock.sendall(len(body).to_bytes(4, "big") + body)
            rogue.listen(p.sock)
    return serve


def key_servers(key):
    strange = Key()
    return {
        "in the clear": (in_the_clear, "PERMISSION", "it does not speak TLS"),
        "HTTP": (lambda r, s: (s.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), r.listen(s)),
                 "PERMISSION", "does not speak TLS|HTTP"),
        "silent": (silent, "PEER_UNREACHABLE", "in time|closed|ended"),
        "ends": (ends, "PEER_UNREACHABLE", "closed|reset|ended"),
        "self-signed": (server("self-signed=node-x", "alpn=kvtd/1"), "PERMISSION",
                        f"not accept our key {key.fingerprint} and shows a certificate instead"),
        "self-signed without ALPN": (server("self-signed=node-x"), "PERMISSION",
                                     "certificate instead|ALPN"),
        "no key of ours": (server("deaf", "alpn=kvtd/1"), "PERMISSION",
                   f"does not accept our key {key.fingerprint}: is the key in its file"),
        "a strange key": (server(*strange.options()), "PERMISSION",
                          f"not accept our key {key.fingerprint}: it knows another key by that"),
        "TLS 1.2": (server("tls12", "self-signed=node-x", "alpn=kvtd/1"), "PERMISSION",
                    "another version of TLS"),
        "nothing at all": (server("alpn=kvtd/1"), "PERMISSION", "another version of TLS"),
        "another ALPN": (server(*key.options(alpn="h2")), "PERMISSION", "ALPN"),
        "no ALPN": (server(*key.options(alpn=None)), "PERMISSION", "ALPN"),
        "another node": (proven(key, node="node-z"), "PEER_UNREACHABLE", "is node-z, not node-x"),
        "our id": (proven(key, node="node-a"), "EXISTS", "two daemons are called node-a"),
        "another cluster": (proven(key, cluster="elsewhere"), "PERMISSION", "elsewhere"),
        "a key in its hello": (proven(key, data_key=bytes(32)), "INVALID", "key"),
    }


@pytest.mark.parametrize("who", key_servers(Key()))
def test_rogue_server(keyed, who):
    """It is told nothing: the secret of the token that led to it stays here."""
    key = Key()
    d = keyed([key], peers=QUICK + '\nconnect_timeout = "2 s"')
    serve, status, reason = key_servers(key)[who]
    with Rogue(serve) as rogue, d.client() as c:
        r = ask(c, rogue.token())
        assert r.status == status and re.search(reason, r.text), (r, rogue.lines)
        logged(d, f"peer node-x.*({reason})|({reason}).*refused")
        assert SECRET not in rogue.heard
    no_trace(d)


def test_a_thousand_dials(keyed, actor):
    """A client asks again and again for a server that is none: few lines, few connections."""
    key = Key()
    d = keyed([key], peers=QUICK)
    count = 0

    def serve(rogue, s):
        nonlocal count
        count += 1
        server("self-signed=node-x", "alpn=kvtd/1")(rogue, s)
    begin = len(d.log())
    with Rogue(serve) as rogue, d.client() as c, Busy(d, actor) as busy:
        def attack(stop):
            n = 0
            while not stop.is_set():
                assert ask(c, rogue.token()).status == "PERMISSION"
                n += 1
            return n
        busy.compare("dials of a rogue server", attack)
        assert count
    assert len(d.log()[begin:].splitlines()) < 60
    no_trace(d)


# ---------------------------------------------------------------- tickets

def test_no_tickets(keyed, folder):
    """None is given out, none is taken; with its key in the file gone, nobody gets in."""
    old, new = Key(), Key()
    d = keyed([old, new])
    kept = folder / "session"
    with Pipe.dial(d, *old.options(f"keep={kept}")) as p:
        assert p.ok and p.word("reused") == "1"
        p.sock.shutdown(socket.SHUT_WR)
        assert "tickets=0" in p.last
    assert not kept.exists()
    # a session of another server, offered here
    a, b = socket.socketpair()
    with Pipe(a, "server", "self-signed=node-a", "tickets=2", "alpn=kvtd/1") as s, \
            Pipe(b, "client", f"keep={kept}", "alpn=kvtd/1") as c:
        assert s.ok and c.ok
        s.sock.sendall(b"x")
        assert c.sock.recv(1) == b"x"
        c.sock.shutdown(socket.SHUT_WR)
        assert "tickets=2" in c.last
    with Pipe.dial(d, f"session={kept}", "alpn=kvtd/1") as p:
        assert not p.ok or 'alert-in="' in p.last, (p.line, p.last)
    # the key goes: a connection that is up stays, a new one is refused
    with FakePeer(d, tls=old.options()) as live:
        write_keys(d.keys, [new])
        with d.admin() as admin:
            r = admin.ask("reload")
            assert r.status == "OK" and r.reload["changed"] == ["trust.key"], r
        with Pipe.dial(d, *old.options()) as p:
            assert not p.ok or 'alert-in="' in p.last
        with Pipe.dial(d, f"session={kept}", *old.options()) as p:
            assert not p.ok or 'alert-in="' in p.last
        logged(d, f"offers key {old.fingerprint}, which is not in our key file")
        live.alive()
    with FakePeer(d, tls=new.options()) as p:
        p.alive()


# ---------------------------------------------------------------- data connections

@pytest.mark.parametrize("encrypt", ["yes", "no", None])
def test_data_proofs(kvtd, keyed, encrypt):
    """Replayed, stolen, of another connection, of a connection that is gone, downgraded."""
    key = Key()
    config = f"transport {{\n encrypt = {encrypt}\n}}\n" if encrypt else ""
    d = keyed([key], config=config) if encrypt else kvtd()
    tls = key.options() if encrypt else None
    dial = b"kvtd-data-dial"

    def refused(s):
        assert ended(s) == b""
        s.close()
    with FakePeer(d, "node-x", tls=tls) as p, FakePeer(d, "node-y", tls=tls) as q:
        assert p.encrypted == (encrypt == "yes")
        # a good one, whose proof is used once more
        s, hello, nonce = p.data_begin()
        proof = p.proof(dial, hello, nonce)
        s.sendall(proof)
        assert read_exactly(s, 32, time.monotonic() + 10) == \
            p.proof(b"kvtd-data-accept", hello, nonce)
        with socket.create_connection(at(d)) as again:
            again.sendall(b"KVTDATA1" + hello)
            other = read_exactly(again, 32, time.monotonic() + 10)
            assert other != nonce
            again.sendall(proof)
            assert ended(again) == b""
        # the nonce of one connection, answered on another
        s1, hello1, nonce1 = p.data_begin(1)
        s2, hello2, nonce2 = p.data_begin(1)
        s2.sendall(p.proof(dial, hello1, nonce1))
        refused(s2)
        s1.sendall(p.proof(dial, hello1, nonce2))
        refused(s1)
        # under another's name, with one's own key
        s3, hello3, nonce3 = p.data_begin(1, conn_id=q.conn_id)
        s3.sendall(p.proof(dial, hello3, nonce3))
        refused(s3)
        # the acceptor's label, the key of nothing
        s4, hello4, nonce4 = p.data_begin(1)
        s4.sendall(p.proof(b"kvtd-data-accept", hello4, nonce4))
        refused(s4)
        logged(d, "data connection from .* refused: wrong proof")
        # encrypted or not, against what both said
        with pytest.raises(ConnectionError):
            p.data_begin(1, flags=not p.encrypted)
        with p.data(1):
            p.alive()
        q.alive()
        gone = q.conn_id
    with FakePeer(d, "node-y", tls=tls) as q:
        with pytest.raises(ConnectionError):
            q.data_begin(conn_id=gone)
    logged(d, "no control connection of that name")
    s.close()
    no_trace(d)


def test_data_tls(keyed):
    """After the right proofs: TLS with another key, none, as a certificate's; in the clear."""
    key = Key()
    d = keyed([key])
    with FakePeer(d, "node-x", tls=key.options()) as p:
        assert p.encrypted

        def begin():
            s, hello, nonce = p.data_begin()
            s.sendall(p.proof(b"kvtd-data-dial", hello, nonce))
            read_exactly(s, 32, time.monotonic() + 10)
            return s, f"{p.conn_id:016x}.0", p.proof(b"kvtd-data-psk", hello, nonce).hex()
        for options in (lambda name, psk: [f"psk={name}:{'11' * 32}", "alpn=kvtd/1"],
                        lambda name, psk: [f"psk=x:{psk}", "alpn=kvtd/1"],
                        lambda name, psk: [f"psk={name}:{psk}"],
                        lambda name, psk: ["alpn=kvtd/1", "self-signed=node-x"],
                        lambda name, psk: ["tls12", "alpn=kvtd/1"],
                        lambda name, psk: key.options()):
            s, name, psk = begin()
            with Pipe(s, "client", *options(name, psk)) as t:
                assert not t.ok or 'alert-in="' in t.last, (t.line, t.last)
        s, _, _ = begin()
        s.sendall(bytes(100))
        s.settimeout(10 * SLOW)
        ended(s)
        s.close()
        assert d.rows("PEER")[0].get("data_connections", 0) == 0
        with p.data(0):
            wait_until("it is up", lambda: d.rows("PEER")[0].get("data_connections") == 1)
        p.alive()
    no_trace(d)


def test_key_updates(keyed):
    """On the control connection they change nothing; on a data connection nothing but data may
    come, and it costs that connection alone."""
    key = Key()
    d = keyed([key])
    with FakePeer(d, "node-x", tls=key.options("rekey")) as p:
        for _ in range(20):
            p.alive()
        with p.data(0) as quiet:
            s, hello, nonce = p.data_begin(1)
            s.sendall(p.proof(b"kvtd-data-dial", hello, nonce))
            read_exactly(s, 32, time.monotonic() + 10)
            with p.data_tls(s, hello, nonce, 1, more=["rekey"]) as loud:
                wait_until("both are up", lambda: d.rows("PEER")[0].get("data_connections") == 2)
                loud.sendall(bytes(1))
                assert ended(loud.sock) == b""
            wait_until("one is up", lambda: d.rows("PEER")[0].get("data_connections") == 1)
            p.alive()
            assert not readable(quiet.sock, 0)
    no_trace(d)


@pytest.mark.parametrize("encrypt", ["yes", "no"])
def test_recorded(keyed, actor, encrypt):
    """All that one daemon said to another, said again by somebody else."""
    key, proxy = Key(), Proxy()
    proxy.recording = True
    config = f"transport {{\n encrypt = {encrypt}\n tcp_streams = 2\n}}\n"
    a = keyed([key], config=f'advertise = "{proxy.address}"\n' + config)
    b = keyed([key], config=config, listen=False)
    proxy.to = at(a)
    try:
        owner, reader = actor(a), actor(b)
        owner.cache("A", 16, 1, 65536, "guard=4096")
        reader.cache("B", 16, 1, 65536, "guard=4096")
        reader.ok("fill 1 B:0-15")
        # whichever is first: later ones go by tcp
        assert reader.run("x", "push", owner.grant("g", "write A:0-15"), "B:0-15 final") == "OK"
        owner.ok("check 1 A:0-15")
        wait_until("both are there", lambda: len(proxy.recorded(DATA)) == 2)
        owner.ok("noise A 1")
        for what in proxy.recorded(CONTROL) + proxy.recorded(DATA):
            for _ in range(2):
                replay(a.address, what)
        owner.ok("changed A")
        assert peers(a) == ["node-b"]
        if encrypt == "yes":  # the secret and the bytes are not there to be read
            said = b"".join(proxy.recorded(CONTROL) + proxy.recorded(DATA) +
                            proxy.recorded(CONTROL, BACK) + proxy.recorded(DATA, BACK))
            assert b"node-b" not in said
        assert reader.run("y", "push", owner.grant("h", "write A:0-15"), "B:0-15 final") == "OK"
        owner.ok("check 1 A:0-15")
        proxy.cut()
        wait_until("b is gone", lambda: peers(a) == [])
        for what in proxy.recorded(CONTROL) + proxy.recorded(DATA):
            replay(a.address, what)
        assert peers(a) == []
    finally:
        proxy.stop()


# ---------------------------------------------------------------- two daemons

def both_logs(a, b, of_a, of_b, status="PERMISSION", node="node-b"):
    """a dials b, and is refused; each says why."""
    with Owner(b) as owner, a.client() as c:
        r = ask(c, token_change(owner.token, node=node))
        assert r.status == status and re.search(of_a, r.text), r
        logged(a, of_a)
        logged(b, of_b)
        with a.client() as other, Owner(a) as mine:
            assert works(other, mine.token)
    for d in (a, b):
        no_trace(d)


def test_wrong_keys(keyed):
    one, two = Key(), Key()
    a, b = keyed([one], peers=QUICK), keyed([two], peers=QUICK)
    both_logs(a, b, f"does not accept our key {one.fingerprint}",
              f"offers key {one.fingerprint}, which is not in our key file")
    both_logs(b, a, f"does not accept our key {two.fingerprint}",
              f"offers key {two.fingerprint}, which is not in our key file", node="node-a")


def test_key_and_none(keyed, kvtd):
    a, b = keyed([Key()], peers=QUICK), kvtd(config=f"peers {{ {QUICK} }}")
    both_logs(a, b, "TLS", "speaks TLS: this daemon has no cluster key|speaks TLS")
    both_logs(b, a, "TLS is needed here|cluster key", "does not speak", node="node-a")


def test_key_and_certificate(keyed, certified):
    a, b = keyed([Key()], peers=QUICK), certified("node-b")
    both_logs(a, b, "certificate|not accept our key", "certificate|unknown ca|trust")
    both_logs(b, a, "takes no certificates|trust . key|not accept our certificate",
              "offers no key: has it trust . key", node="node-a")


def test_certificates_work(certified, actor):
    a, b = certified("node-a"), certified("node-b")
    with Owner(b) as owner, a.client() as c:
        assert works(c, owner.token)
        assert a.rows("PEER")[0]["identity"] == "certificate node-b"
        assert b.rows("PEER")[0]["identity"] == "certificate node-a"


def test_certificate_of_another_node(certified):
    a, b = certified("node-a"), certified("node-b")
    both_logs(a, b, "certificate is for node-b, not for node-x",
              "dialled another node, or refuses our certificate, which is for node-b",
              node="node-x")


def test_certificate_of_another_ca(certified, other):
    a, b = certified("node-a"), certified("node-b", authority=other)
    reason = "not signed by our trust . ca .: its issuer is .*(trust|tests)"
    both_logs(a, b, reason, "does not accept our certificate")
    both_logs(b, a, "not signed by our trust . ca|not accept our certificate",
              "not accept our certificate|not signed by our trust . ca", node="node-a")


def test_certificate_not_allowed(certified):
    a = certified("node-a", allow=["node-c"])
    b = certified("node-b")
    both_logs(a, b, "certificate is for node-b: not in trust . allow",
              "refuses our certificate, which is for node-b")
    both_logs(b, a, "refuses our certificate, which is for node-b|trust . allow",
              "certificate is for node-b: not in trust . allow", node="node-a")


def test_certificate_expires(certified, authority):
    """While the daemon runs: the others refuse it, and both say the date."""
    b = certified("node-b", authority.cert("node-b", days=4 * SLOW / 86400))
    a = certified("node-a")
    with Owner(b) as owner, a.client() as c:
        assert works(c, owner.token)
    b_until = b.status()["trust_until"]
    wait_until("it has expired", lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) >
               b_until, 20)
    # what was proven stays until it ends
    assert peers(a) == ["node-b"]
    a.stop()
    a.start()
    wait_until("it is noticed", lambda: peers(b) == [])
    both_logs(a, b, "certificate has expired on 20",
              f"our certificate is not valid now: ours ends on {b_until[:10]}")
    both_logs(b, a, "our certificate is not valid now: ours ends on",
              "certificate has expired on 20", node="node-a")


def cert_clients(authority, other):
    mine = authority.cert("node-b")
    return {
        "no certificate": (["alpn=kvtd/1"], "shows no certificate"),
        "self-signed": (["self-signed=node-b", "alpn=kvtd/1"], "signed by itself"),
        "another ca": (cert_options(other.cert("node-b")), "not signed by our trust"),
        "expired": (cert_options(authority.cert("node-b", days=-1)), "has expired on"),
        "not yet": (cert_options(authority.cert("node-b", start=2)), "not valid before"),
        "server only": (cert_options(authority.cert("node-b", eku="serverAuth")),
                        "lacks extended key usage clientAuth"),
        "TLS 1.2": (cert_options(mine, "tls12"), "another version of TLS"),
        "no ALPN": ([o for o in cert_options(mine) if "alpn" not in o], "no ALPN kvtd/1"),
        "a key": (Key().options(), "shows no certificate"),
        "not allowed": (cert_options(authority.cert("node-z")), "node-z: not in trust . allow"),
    }


CERT_CLIENTS = ["no certificate", "self-signed", "another ca", "expired", "not yet",
                "server only", "TLS 1.2", "no ALPN", "a key", "not allowed"]


@pytest.mark.parametrize("who", CERT_CLIENTS)
def test_client_is_refused_by_certificate(certified, authority, other, who):
    d = certified("node-a", allow=["node-b", "node-c"])
    options, reason = cert_clients(authority, other)[who]
    with Pipe.dial(d, *options) as p:
        assert not p.ok or 'alert-in="' in p.last, (p.line, p.last)
    logged(d, rf"peer 127\.0\.0\.1:\d+: .*({reason})")
    begin = len(d.log())
    tries(d, 300, *options)
    assert len(d.log()[begin:].splitlines()) < 40
    no_trace(d)


def test_certificate_and_hello(certified, authority):
    """The Hello names whom the certificate does not; and one with two names may be either."""
    d = certified("node-a")
    two = cert_options(authority.cert("node-b", names=["node-b", "node-c"]))
    with pytest.raises(ConnectionError, match="is for node-b, node-c, not for node-x"):
        FakePeer(d, "node-x", tls=two)
    logged(d, "is for node-b, node-c, not for node-x")
    no_trace(d)
    with FakePeer(d, "node-b", tls=two), FakePeer(d, "node-c", tls=two) as p:
        assert sorted(r["identity"] for r in d.rows("PEER")) == \
            ["certificate node-b", "certificate node-c"]
        p.alive()


def test_live_id_by_certificate(certified, authority):
    """In certificate mode nobody can even claim it."""
    d = certified("node-a")
    with FakePeer(d, "node-b", tls=cert_options(authority.cert("node-b"))) as p:
        with pytest.raises(ConnectionError, match="not for node-b"):
            FakePeer(d, "node-b", tls=cert_options(authority.cert("node-c")))
        p.alive()


@pytest.mark.parametrize("who", ["self-signed", "another ca", "expired", "another node",
                                 "client only", "key"])
def test_rogue_server_by_certificate(certified, authority, other, who):
    d = certified("node-a", peers='connect_timeout = "2 s"')
    ask_for = ["ask", "alpn=kvtd/1"]
    options, reason = {
        "self-signed": (["self-signed=node-x", *ask_for], "signed by itself"),
        "another ca": (cert_options(other.cert("node-x"), "ask"), "not signed by our trust"),
        "expired": (cert_options(authority.cert("node-x", days=-1), "ask"), "has expired on"),
        "another node": (cert_options(authority.cert("node-z"), "ask"),
                         "is for node-z, not for node-x"),
        "client only": (cert_options(authority.cert("node-x", eku="clientAuth"), "ask"),
                        "lacks extended key usage serverAuth"),
        "key": (Key().options(), "takes no certificates|not accept"),
    }[who]
    with Rogue(server(*options)) as rogue, d.client() as c:
        r = ask(c, rogue.token())
        assert r.status == "PERMISSION" and re.search(reason, r.text), (r, rogue.lines)
        logged(d, f"peer node-x.*({reason})")
        assert SECRET not in rogue.heard
    no_trace(d)

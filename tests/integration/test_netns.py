# SPDX-License-Identifier: Apache-2.0
"""Two hosts: daemons on addresses of their own that prove each other, and the link between them."""
import json
import re
import shutil
import subprocess
import time

import pytest

from actors import actor  # noqa: F401
from certs import BUILD, ca, certificate_fingerprint, cluster_key, fingerprints, trust
from conftest import wait_until
from fake_peer import read_token
from netns import hosts  # noqa: F401
from wire import SLOW

QUICK = """
peers {
	keepalive_interval = "50 ms"
	keepalive_timeout = "%d ms"
	redial_max = "100 ms"
}
fence_timeout = "300 ms"
""" % (500 * SLOW)
BLOCK = 65536


def kvtctl(d, *args):
    r = subprocess.run([BUILD / "kvtctl", "-a", d.admin_socket, *args], capture_output=True,
                       text=True, timeout=20 * SLOW, stdin=subprocess.DEVNULL)
    assert r.returncode == 0, r.stderr
    return r.stdout


def peer(d):
    """The one row of kvtctl peer."""
    row, = json.loads(kvtctl(d, "--json", "peer"))["peers"]
    return row


class Pair:
    """A client at each of two daemons, with memory; the reader's daemon dials the owner's."""

    def __init__(self, actor, a, b):
        self.daemons = a, b
        self.owner, self.reader, self.n = actor(a, "name=owner"), actor(b, "name=reader"), 0
        self.owner.cache("A", 64, 2, BLOCK, "guard=4096")
        self.reader.cache("B", 64, 2, BLOCK, "guard=4096")

    def begin(self, op, blocks=16, more=""):
        """Starts a transfer, as xN under the grant gN; what it is to do is filled in."""
        self.n += 1
        last = blocks - 1
        src, s = (self.owner, "A") if op == "pull" else (self.reader, "B")
        self.dst, self.d = (self.reader, "B") if op == "pull" else (self.owner, "A")
        self.dst.ok(f"noise {self.d} {self.n}")
        src.ok(f"fill {self.n} {s}:0-{last}")
        access = "read" if op == "pull" else "write"
        token = self.owner.grant(f"g{self.n}", f"{access} A:0-{last}")
        self.reader.xfer(f"x{self.n}", op, token, f"B:0-{last} final {more}")
        self.last = last
        return token

    def end(self):
        return self.reader.wait(f"x{self.n}"), self.owner.gwait(f"g{self.n}", 5000)

    def move(self, op, **kw):
        """A transfer that goes well; every byte of it and around it."""
        token = self.begin(op, **kw)
        end = self.end()
        assert end == ("OK", "OK"), end
        self.dst.ok(f"check {self.n} {self.d}:0-{self.last}")
        self.dst.ok(f"changed {self.d} {self.d}:0-{self.last}")
        assert self.reader.stats(f"x{self.n}")["path"] == "tcp"
        return token

    def both(self):
        self.move("pull")
        self.move("push")

    def works(self):
        """Whether a small transfer does; for wait_until, while a peer is being found again."""
        self.begin("pull", blocks=1)
        if self.reader.wait(f"x{self.n}") == "OK":
            return self.owner.gwait(f"g{self.n}", 5000) == "OK"
        self.owner.ok(f"revoke g{self.n}")
        assert self.owner.gwait(f"g{self.n}") != "PENDING"
        return False

    def refused(self):
        """A transfer that is refused; its text."""
        self.begin("pull")
        end = self.reader.wait(f"x{self.n}")
        assert end == "PERMISSION", repr(end)
        self.owner.ok(f"revoke g{self.n}")
        assert self.owner.gwait(f"g{self.n}") == "REVOKED"
        assert self.reader("changed B") == "OK"
        return end.text


@pytest.fixture
def pair(hosts, kvtd, actor):
    """pair(a=, b=, args=): each a configuration of trust, or a key file."""
    def make(a, b=None, more="", args_a=(), args_b=(), **kw):
        daemons = []
        for host, what, args in ((hosts.a, a, args_a), (hosts.b, b or a, args_b)):
            config = what if isinstance(what, str) else trust(key=what)
            daemons.append(host.kvtd(kvtd, *args, config=config + QUICK + more, **kw))
        return Pair(actor, *daemons)
    return make


@pytest.fixture
def key(folder):
    return cluster_key(folder / "cluster.key")


# ---------------------------------------------------------------- keys

def test_key(pair, hosts, key):
    p = pair(key)
    fp, = fingerprints(key)
    p.both()
    token = read_token(p.move("pull"))
    assert token["addresses"] == ["10.77.0.1:7588"]
    for d, other, address in ((p.daemons[0], "node-b", "10.77.0.2:"),
                              (p.daemons[1], "node-a", "10.77.0.1:7588")):
        row = peer(d)
        assert (row["node"], row["state"], row["identity"]) == (other, "up", f"key {fp}")
        assert row["encryption"] in ("tls", "ktls") and row["data_connections"] > 0
        assert row["address"].startswith(address)
        s = json.loads(kvtctl(d, "--json", "status"))["status"]
        assert (s["trust"], s["fingerprints"], s["encrypt"]) == ("key", [fp], "yes")
        assert f"trust       key {fp}\n" in kvtctl(d, "status")
        for line in d.log().splitlines():
            assert not re.search("[0-9a-f]{64}", line), line


def test_key_option(hosts, kvtd, actor, key):
    """-k on the command line, for an experiment without a file."""
    Pair(actor, *(h.kvtd(kvtd, "-k", key) for h in (hosts.a, hosts.b))).both()


def test_wrong_key(pair, folder, key):
    other = cluster_key(folder / "other.key")
    p = pair(key, other)
    (mine,), (theirs,) = fingerprints(key), fingerprints(other)
    text = p.refused()
    assert f"does not accept our key {theirs}" in text
    p.daemons[1].says(f"does not accept our key {theirs}")
    p.daemons[0].says(f"offers key {theirs}, which is not in our key file")
    # mended by hand, without a restart: the owner's daemon takes both
    key.write_text(key.read_text() + other.read_text())
    kvtctl(p.daemons[0], "reload")
    wait_until("they have found one another", p.works)
    p.both()
    assert peer(p.daemons[0])["identity"] == f"key {theirs}"


def test_rotation(pair, hosts, folder, key):
    """As kvtctl(1) tells it, on both hosts."""
    keys = [key, folder / "b.key"]
    shutil.copy(key, keys[1])
    p = pair(*keys)
    old, = fingerprints(key)
    p.both()

    subprocess.run([BUILD / "kvtctl", "keygen", "--add", key], check=True, capture_output=True)
    shutil.copy(key, keys[1])
    for d in p.daemons:
        kvtctl(d, "reload")
    p.both()
    new = fingerprints(key)[1]
    # p.both() goes on with the connection that is up: what the old key proved stays
    assert peer(p.daemons[0])["identity"] == f"key {old}"
    for command in ("--first", new), ("--remove", old):
        for d, file in zip(p.daemons, keys):
            subprocess.run([BUILD / "kvtctl", "keygen", *command, file], check=True,
                           capture_output=True)
            assert kvtctl(d, "reload").strip() != "nothing has changed"
            p.both()
    assert fingerprints(key) == fingerprints(keys[1]) == [new]
    assert peer(p.daemons[0])["identity"] == f"key {old}"
    reconnect(hosts, p)
    assert [peer(d)["identity"] for d in p.daemons] == [f"key {new}"] * 2
    assert json.loads(kvtctl(p.daemons[0], "--json", "status"))["status"]["fingerprints"] == [new]


def test_cut_by_hand(pair, hosts, folder, key):
    """As doc/security.md tells it, after a key was removed that has leaked."""
    p = pair(key)
    old, = fingerprints(key)
    p.both()
    for args in ("--add", key), ("--first", None, key), ("--remove", old, key):
        args = [fingerprints(key)[1] if a is None else a for a in args]
        subprocess.run([BUILD / "kvtctl", "keygen", *args], check=True, capture_output=True)
        for d in p.daemons:
            kvtctl(d, "reload")
    p.both()
    assert [peer(d)["identity"] for d in p.daemons] == [f"key {old}"] * 2
    r = hosts.a.run("ss", "--kill", "-t",
                    f"dst {hosts.b.address} and ( sport = 7588 or dport = 7588 )", check=False)
    if "not supported" in r.stderr:
        pytest.skip("this kernel's ss --kill: " + r.stderr.strip())
    assert r.returncode == 0, r.stderr
    for d in p.daemons:
        wait_until(f"{d.name} has lost its peer", lambda d=d: none_up(d))
    wait_until("they have found one another", p.works)
    p.both()
    assert [peer(d)["identity"] for d in p.daemons] == [f"key {fingerprints(key)[0]}"] * 2


def none_up(d):
    return not [r for r in d.rows("PEER") if r["state"] == "up"]


def lose(hosts, p):
    """The link goes down until both have lost the other, and up again."""
    hosts.cut()
    for d in p.daemons:
        wait_until(f"{d.name} has lost its peer", lambda d=d: none_up(d))
    hosts.mend()


def reconnect(hosts, p):
    lose(hosts, p)
    wait_until("they have found one another", p.works)
    p.both()


# ---------------------------------------------------------------- certificates

def test_certificates(pair, hosts, folder):
    authority = ca(folder)
    mine = [authority.cert(f"node-{x}") for x in "ab"]
    p = pair(*(trust(cert=c, ca=authority) for c in mine))
    p.both()
    for d, other, cert in zip(p.daemons, ("node-b", "node-a"), mine):
        row = peer(d)
        assert (row["state"], row["identity"]) == ("up", f"certificate {other}")
        assert row["encryption"] in ("tls", "ktls")
        s = json.loads(kvtctl(d, "--json", "status"))["status"]
        assert s["trust"] == "certificate"
        assert s["fingerprints"] == [certificate_fingerprint(cert.cert)]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", s["trust_until"])
        assert f", until {s['trust_until'][:10]}\n" in kvtctl(d, "status")


def test_certificate_of_another_ca(pair, folder):
    one, other = ca(folder, "one"), ca(folder, "other")
    p = pair(trust(cert=one.cert("node-a"), ca=one), trust(cert=other.cert("node-b"), ca=other))
    assert "not signed by our trust { ca }" in p.refused()
    p.daemons[1].says("not signed by our trust { ca }")
    p.daemons[0].says("does not accept our certificate")


def test_certificate_that_is_not_allowed(pair, folder):
    """The owner's daemon allows others only: it refuses whoever it is that dials."""
    authority = ca(folder)
    p = pair(trust(cert=authority.cert("node-a"), ca=authority, allow=["node-c", "node-d"]),
             trust(cert=authority.cert("node-b"), ca=authority))
    assert "our certificate, which is for node-b: see its trust { allow }" in p.refused()
    p.daemons[1].says("our certificate, which is for node-b: see its")
    p.daemons[0].says("its certificate is for node-b: not in trust { allow }")


def test_two_hosts_of_one_name(pair, hosts, key):
    """The reader's daemon takes the token for its own, and says what may be behind that."""
    p = pair(key, args_b=("-n", "node-a"))
    p.begin("pull")
    status = p.reader.wait("x1")
    assert status == "PEER_RESTARTED"
    words = ("the token is of node-a at 10.77.0.1:7588, and this daemon is node-a at "
             "10.77.0.2:7588: two hosts of one node id")
    assert words in status.text
    p.daemons[1].says(words)
    p.owner.ok("revoke g1")
    assert p.owner.gwait("g1") == "REVOKED"


def test_certificate_that_expires(pair, hosts, folder):
    """While the daemons run: what is up stays up, and whoever connects then is refused."""
    authority = ca(folder)
    seconds = 8 if SLOW == 1 else 15
    mine = authority.cert("node-a", days=seconds / 86400)
    end = time.time() + seconds
    p = pair(trust(cert=mine, ca=authority),
             trust(cert=authority.cert("node-b"), ca=authority))
    p.both()
    assert p.daemons[0].status()["state"] == "running"
    wait_until("the certificate has expired", lambda: time.time() > end + 1, 20)
    s = p.daemons[0].status()
    assert s["state"] == "degraded" and "its certificate expired on 20" in s["why"]
    p.both()
    lose(hosts, p)
    text = p.refused()
    assert "its certificate has expired on " in text
    p.daemons[1].says("its certificate has expired on ")
    p.daemons[0].says("our certificate is not valid now")
    r = subprocess.run([BUILD / "kvtctl", "-a", p.daemons[0].admin_socket, "reload"],
                       capture_output=True, text=True)
    assert r.returncode == 1 and "has expired on" in r.stderr
    new = authority.cert("node-a")
    shutil.copy(new.key, mine.key)
    shutil.copy(new.cert, mine.cert)
    assert "changed: trust.cert\n" in kvtctl(p.daemons[0], "reload")
    wait_until("they have found one another", p.works)
    p.both()


def test_key_and_certificate(pair, folder, key):
    """One kind cannot prove itself to the other."""
    authority = ca(folder)
    p = pair(key, trust(cert=authority.cert("node-b"), ca=authority))
    p.refused()
    for d in p.daemons:
        d.says("trust { key }")


# ---------------------------------------------------------------- encryption

@pytest.mark.parametrize("mode_a,mode_b,encryption", [
    ("no", "no", ("none",)), ("no", "yes", ("tls", "ktls")), ("yes", "no", ("tls", "ktls")),
    ("require", "no", ("tls", "ktls"))])
def test_encrypt(hosts, kvtd, actor, key, mode_a, mode_b, encryption):
    """Data goes in the clear only if both sides want it so; the connections are proven even then."""
    daemons = [h.kvtd(kvtd, config=f"{trust(key=key)}{QUICK}transport {{ encrypt = {mode} }}\n")
               for h, mode in ((hosts.a, mode_a), (hosts.b, mode_b))]
    p = Pair(actor, *daemons)
    p.both()
    for d in daemons:
        assert peer(d)["encryption"] in encryption
        assert peer(d)["identity"].startswith("key ")


SNIFF = """
import select, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("eth0", 0))
s.setblocking(False)
needles = [bytes.fromhex(n) for n in sys.argv[1:]]
total, found = 0, [0] * len(needles)
print("ready", flush=True)
ending = False
while True:
    try:
        packet = s.recv(1 << 17)
    except BlockingIOError:
        if ending:
            break
        ending = sys.stdin in select.select([s, sys.stdin], [], [])[0]
        continue
    total += len(packet)
    for i, n in enumerate(needles):
        found[i] += n in packet
print(total, *found)
"""


@pytest.fixture
def start():
    """start(*args) starts a program, which ends with the test at the latest."""
    started = []

    def popen(*args):
        started.append(subprocess.Popen(args, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE))
        return started[-1]
    yield popen
    for p in started:
        p.kill()
        p.communicate()


@pytest.mark.parametrize("encrypt", ["no", "yes"])
def test_what_the_wire_sees(hosts, kvtd, start, key, folder, encrypt):
    """The bytes of a file are on the wire in the clear, or not; the token's secret never is."""
    a, b = (h.kvtd(kvtd, config=f"{trust(key=key)}{QUICK}transport {{ encrypt = {encrypt} }}\n")
            for h in (hosts.a, hosts.b))
    needle = bytes(range(100, 164))
    (folder / "from").write_bytes(needle * 32768)  # 2 MiB
    carry = BUILD / "examples" / "carry"
    giver = start(carry, "give", folder / "from", a.client_socket)
    token = giver.stdout.readline().strip()
    secret = read_token(token)["secret"]
    assert len(secret) == 16
    sniffer = start(*hosts.a.prefix, "/usr/bin/python3", "-c", SNIFF, needle.hex(), secret.hex())
    assert sniffer.stdout.readline() == "ready\n"
    subprocess.run([carry, "take", token, folder / "to", b.client_socket], check=True,
                   timeout=60 * SLOW, stdout=subprocess.DEVNULL)
    assert giver.wait(20 * SLOW) == 0
    assert (folder / "to").read_bytes() == (folder / "from").read_bytes()
    out, _ = sniffer.communicate(timeout=30 * SLOW)
    total, needles, secrets = map(int, out.split())
    assert total > 1 << 17  # what the sniffer was too slow for is dropped
    assert needles > 0 if encrypt == "no" else needles == 0
    assert secrets == 0


# ---------------------------------------------------------------- addresses

@pytest.mark.parametrize("address,advertised", [
    ("0.0.0.0", "10.77.0.1:7588"), ("::", "[fd77::1]:7588"), ("fd77::1", "[fd77::1]:7588")])
def test_addresses(hosts, kvtd, actor, key, address, advertised):
    """What the tickets of a daemon say is where it can be reached."""
    a = hosts.a.kvtd(kvtd, "-k", key, address=address, config=QUICK)
    b = hosts.b.kvtd(kvtd, "-k", key, config=QUICK)
    p = Pair(actor, a, b)
    token = read_token(p.move("pull"))
    assert token["addresses"] == [advertised]
    assert peer(b)["address"] == advertised
    assert json.loads(kvtctl(a, "--json", "status"))["status"]["advertise"] == [advertised]


# ---------------------------------------------------------------- the link

def moving(p):
    """Some but not all bytes of the only transfer have landed."""
    for d in p.daemons:
        for row in d.rows("TRANSFER"):
            if 0 < row.get("moved_bytes", 0) < row["bytes"]:
                return True
    return False


@pytest.mark.parametrize("op", ["pull", "push"])
def test_link_down(pair, hosts, key, op):
    """In the middle of a transfer: PEER_LOST on both sides, by themselves, in time; nothing lands
    later. Up again, all is well."""
    p = pair(key)
    p.both()
    hosts.slow("20mbit")
    for _ in range(2):
        p.begin(op, blocks=64)  # 8 MiB
        wait_until("it moves", lambda: moving(p))
        hosts.cut()
        start = time.monotonic()
        ends = [side(f"{wait} 20000 then={mine} seed={p.n}") for side, wait, mine in
                ((p.owner, f"gwait g{p.n}", "A"), (p.reader, f"wait x{p.n}", "B"))]
        assert ends == ["PEER_LOST", "PEER_LOST"], ends
        assert time.monotonic() - start < 3 * SLOW
        hosts.mend()
        assert p.dst(f"changed {p.d} 300") == "OK"
        wait_until("they have found one another", p.works)
        p.move(op, blocks=1)
    for d in p.daemons:
        d.says("no answer for")


def test_slow_link(pair, hosts, key):
    """A link that is full for longer than the keep-alive lasts is not one that is down."""
    p = pair(key)
    hosts.slow("50mbit")
    start = time.monotonic()
    p.move("pull", blocks=64)  # 8 MiB: 1.3 s at least
    assert time.monotonic() - start > 1
    p.move("push", blocks=64)
    hosts.fast()
    p.both()
    assert p.reader.stats(f"x{p.n}")["retries"] == 0
    for d in p.daemons:
        assert ": down: " not in d.log()

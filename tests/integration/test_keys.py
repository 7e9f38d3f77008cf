# SPDX-License-Identifier: Apache-2.0
"""From one cluster key to the next while transfers go on, and what is said of mistakes in the
configuration of trust: by --check-config, at a start, at a reload."""
import os
import signal
import subprocess
import threading

import pytest

from certs import ca
from conftest import BUILD, wait_until
from actors import actor  # noqa: F401
from fake_peer import FakePeer
from proxy import CONTROL, Proxy
from test_peers import Owner, ask, peers, works
from tls import Key, at, keyed, tries, write_keys  # noqa: F401
from wire import SLOW

PEERS = f"""
	keepalive_interval = "50 ms"
	keepalive_timeout = "{1000 * SLOW} ms"
	redial_max = "50 ms"
	connect_timeout = "{5000 * SLOW} ms"
"""


class Stream:
    """Pulls, one after the other, from a daemon by a client of another: every one has to be OK."""

    def __init__(self, actor, owner, reader, name):
        self.owner, self.reader, self.name = actor(owner), actor(reader), name
        self.owner.cache("A", 16, 2, 32768, "guard=4096")
        self.reader.cache("B", 16, 2, 32768, "guard=4096")
        self.n, self.error, self.stopping = 0, None, False
        self.going = threading.Lock()  # held during a transfer
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.stopping:
                with self.going:
                    self.once()
        except Exception as e:
            self.error = e

    def once(self):
        n = self.n + 1
        self.owner.ok(f"fill {n} A:0-15")
        self.reader.ok(f"noise B {n}")
        token = self.owner.grant("g", "read A:0-15")
        end = self.reader.run("x", "pull", token, "B:15-0 final")
        assert end == "OK", f"{self.name} {n}: {end!r}"
        self.reader.ok(f"check {n} B:15-0")
        self.reader.ok("changed B B:0-15")
        assert self.owner.gwait("g") == "OK"
        self.owner.ok("gfree g")
        self.reader.ok("free x")
        self.n = n

    def goes_on(self, more=5):
        before = self.n
        wait_until(f"{self.name} goes on", lambda: self.error or self.n >= before + more, 30)
        assert self.error is None, repr(self.error)

    def stop(self):
        self.stopping = True
        self.thread.join()
        assert self.error is None, repr(self.error)


def keygen(*args):
    r = subprocess.run([BUILD / "kvtctl", "keygen", *map(str, args)], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=20)
    assert r.returncode == 0, r.stderr
    return r.stdout


def reload(d, changed=("trust.key",)):
    with d.admin() as admin:
        r = admin.ask("reload")
        assert r.status == "OK" and tuple(r.reload.get("changed", ())) == changed, r


def identities(*daemons):
    return {row["identity"] for d in daemons for row in d.rows("PEER")}


def test_rotation(keyed, actor):
    """Add, first, remove, host by host, as the documents say; the connection is cut after each
    step, between two transfers, and made again. Not one transfer is lost or wrong."""
    old, new = Key(), Key()
    proxies = [Proxy(), Proxy()]
    hosts = [keyed([old], peers=PEERS, config=f'advertise = "{p.address}"\n') for p in proxies]
    for p, d in zip(proxies, hosts):
        p.to = at(d)
    a, b = hosts
    streams = [Stream(actor, a, b, "b from a"), Stream(actor, b, a, "a from b")]

    def cut():
        for s in streams:
            s.going.acquire()
        for p in proxies:
            p.cut()
        for s in streams:
            s.going.release()

    def all_go_on(proof):
        for s in streams:
            s.goes_on()
        cut()
        for s in streams:
            s.goes_on()
        assert identities(a, b) <= {f"key {k.fingerprint}" for k in proof}
    try:
        all_go_on([old])
        for d in hosts:
            with d.keys.open("a") as f:
                f.write(f"# the next\n{new.hex}\n")
            reload(d)
            d.says(f"trust: key {new.fingerprint} is accepted")
            all_go_on([old])
        for d in hosts:
            keygen("--first", new.fingerprint, d.keys)
            reload(d)
            d.says(f"trust: key {new.fingerprint} dials")
            all_go_on([old, new])
        for d in hosts:
            keygen("--remove", old.fingerprint, d.keys)
            reload(d)
            d.says(f"trust: key {old.fingerprint} is not accepted any more")
            all_go_on([new])
        assert identities(a, b) == {f"key {new.fingerprint}"}
    finally:
        for s in streams:
            s.stopping = True
        for s in streams:
            s.thread.join()
        for p in proxies:
            p.stop()
    for s in streams:
        s.stop()
    print({s.name: s.n for s in streams})
    for d in hosts:
        assert d.status()["fingerprints"] == [new.fingerprint]
        with pytest.raises(ConnectionError):
            FakePeer(d, tls=old.options())
        wait_until("the old one is refused", lambda: f"offers key {old.fingerprint}, which is "
                   "not in our key file" in d.log())
        with FakePeer(d, tls=new.options()) as p:
            p.alive()


def test_reloads_in_masses(keyed, actor):
    """Keys change all the time while others connect: each handshake ends with the trust that it
    began with, and transfers go on."""
    keys = [Key() for _ in range(4)]
    a = keyed(keys[:2], peers=PEERS)
    b = keyed(keys[:1], peers=PEERS)
    s = Stream(actor, a, b, "b from a")
    stop = threading.Event()
    got = []

    def strangers():
        while not stop.is_set():
            got.append(tries(a, 5, *Key().options()))
    t = threading.Thread(target=strangers)
    t.start()
    try:
        for i in range(40):
            write_keys(a.keys, [keys[0], keys[1 + i % 3]])
            a.signal(signal.SIGHUP)
            wait_until("it is reloaded",
                       lambda: f"key {keys[1 + i % 3].fingerprint} is accepted" in a.log())
        s.goes_on()
    finally:
        stop.set()
        t.join()
        s.stop()
    assert not any(k.startswith("ok") and "alert-in" not in k for c in got for k in c)


def test_forgotten_host(keyed):
    """One host dials with the new key already, the other does not know it: refused, with its
    fingerprint in both logs and in the client's text; the other way round they are together."""
    old, new = Key(), Key()
    a, b = keyed([new, old], peers=PEERS), keyed([old], peers=PEERS)
    with Owner(a) as of_a, Owner(b) as of_b, a.client() as c, b.client() as e:
        r = ask(c, of_b.token)
        assert r.status == "PERMISSION" and new.fingerprint in r.text, r
        wait_until("in b's log", lambda: f"offers key {new.fingerprint}, which is not in our key "
                   "file" in b.log())
        wait_until("in a's log", lambda: f"not accept our key {new.fingerprint}" in a.log())
        assert works(e, of_a.token)
        assert identities(a, b) == {f"key {old.fingerprint}"}
        assert works(c, of_b.token)


# ---------------------------------------------------------------- mistakes

def mistakes(folder, authority):
    """name: (section, what is said of it)"""
    good, mine = Key(), authority.cert("node-a")
    files = {"good": good.hex, "open": good.hex, "group": good.hex, "garbage": "not a key\n",
             "short": good.hex[:-2], "twice": f"{good.hex}\n# and again\n{good.hex}\n",
             "empty": "# nothing\n\n", "many": "\n".join(Key().hex for _ in range(17)),
             "letters": "g" * 64}
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod({"open": 0o644, "group": 0o640}.get(name, 0o600))
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "fifo", 0o600)
    open_key = folder / "open.key"
    open_key.write_bytes(mine.key.read_bytes())
    open_key.chmod(0o640)

    def key(name, more=""):
        return f'trust {{\n\tkey = "{folder / name}"\n{more}\n}}\n'

    def cert(cert=mine.cert, cert_key=mine.key, ca=authority.file, more=""):
        return "trust {\n" + "".join(f'\t{k} = "{v}"\n' for k, v in (
            ("cert", cert), ("cert_key", cert_key), ("ca", ca)) if v) + more + "\n}\n"
    far, old = authority.cert("node-z"), authority.cert("node-a", days=-1)
    soon = authority.cert("node-a", start=2)
    one_way = authority.cert("node-a", eku="serverAuth")
    return {
        "others can read it": (key("open"), "open: mode 0644: others can read it (chmod 600"),
        "the group can read it": (key("group"), "group: mode 0640: others can read it"),
        "missing": (key("none"), "none: No such file or directory"),
        "garbage": (key("garbage"), "garbage:1: a key is 64 hexadecimal digits"),
        "letters": (key("letters"), "letters:1: a key is 64 hexadecimal digits"),
        "short": (key("short"), "short:1: a key is 64 hexadecimal digits, these are 62"),
        "twice": (key("twice"), "twice:3: the key of line 1 once more"),
        "empty": (key("empty"), "empty: has no key (kvtctl keygen makes them)"),
        "many": (key("many"), "many:17: more than 16 keys"),
        "a folder": (key("."), "is no regular file"),
        "a fifo": (key("fifo"), "fifo: is no regular file"),
        "a loop": (key("loop"), "loop: Too many levels of symbolic links"),
        "both": (key("good", f'\tcert = "{mine.cert}"\n'), "trust.key and trust.cert"),
        "key and ca": (key("good", f'\tca = "{authority.file}"\n'), "trust.key and trust.ca"),
        "key and allow": (key("good", "\tallow = {node-b}\n"), "trust.allow needs trust.ca"),
        "loopback": ("insecure_loopback = true\n" + key("good"),
                     "trust.key and insecure_loopback"),
        "no ca": (cert(ca=None), "trust.cert needs trust.ca"),
        "no cert_key": (cert(cert_key=None), "trust.cert needs trust.cert_key"),
        "no cert": (cert(cert=None, ca=None), "trust.cert_key needs trust.cert"),
        "cert missing": (cert(cert=folder / "none"), "trust.cert: "),
        "cert_key open": (cert(cert_key=open_key), "open.key: mode 0640: others can read it"),
        "cert garbage": (cert(cert=folder / "garbage"), "trust.cert: "),
        "ca garbage": (cert(ca=folder / "garbage"), "trust.ca: "),
        "keys crossed": (cert(cert_key=far.key), "trust.cert"),
        "of another node": (cert(far.cert, far.key),
                            "is for node-z (SAN, DNS), not for this node, node-a"),
        "expired": (cert(old.cert, old.key), "has expired on 20"),
        "not yet": (cert(soon.cert, soon.key), "is not valid before 20"),
        "one way": (cert(one_way.cert, one_way.key), "clientAuth"),
    }


NAMES = ["others can read it", "the group can read it", "missing", "garbage", "letters", "short",
         "twice", "empty", "many", "a folder", "a fifo", "a loop", "both", "key and ca",
         "key and allow", "loopback", "no ca", "no cert_key", "no cert", "cert missing",
         "cert_key open", "cert garbage", "ca garbage", "keys crossed", "of another node",
         "expired", "not yet", "one way"]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    out = mistakes(folder, ca(folder))
    assert sorted(out) == sorted(NAMES)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_mistakes(wrong, kvtd, keyed, name):
    """The same words three times, with the place in the file; a daemon that runs keeps what it
    has. No text has a byte of a key."""
    section, says = wrong[name]
    d = kvtd(config=section, listen=False, start=False)
    r = subprocess.run([BUILD / "kvtd", "--check-config", d.config_file, "-n", d.name],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    line = r.stderr.strip()
    assert r.returncode == 2 and says in line and line.count("\n") == 0, r
    assert f"{d.config_file}:" in line, line
    r = subprocess.run(d.args, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       timeout=20)
    assert r.returncode in (1, 2) and r.stderr.splitlines()[-1] == line, r
    # reloaded into a daemon that has a good one
    key = Key()
    b = keyed([key], name="node-a", peers=PEERS)
    before = b.config_file.read_text()
    b.config_file.write_text(section)
    with b.admin() as admin:
        r = admin.ask("reload")
        assert r.status in ("INVALID", "PERMISSION", "NOT_FOUND"), r
        assert r.text.partition(": ")[2] == line.partition(": ")[2].partition(": ")[2] or \
            says in r.text, (r.text, line)
    b.signal(signal.SIGHUP)
    wait_until("it is in the log", lambda: "config: not reloaded" in b.log())
    b.says(says)
    assert b.status()["fingerprints"] == [key.fingerprint]
    with FakePeer(b, tls=key.options()) as p:
        p.alive()
    b.config_file.write_text(before)
    reload(b, ())


@pytest.mark.parametrize("now", ["none", "loopback"])
def test_trust_comes_with_a_restart(kvtd, folder, now):
    """From no proof to proof is no matter of a reload: said, and nothing changes."""
    write_keys(folder / "keys", [Key()])
    d = kvtd(listen=now == "loopback")
    d.config_file.write_text(f'trust {{\n key = "{folder / "keys"}"\n}}\n')
    with d.admin() as admin:
        r = admin.ask("reload")
        assert r.status == "INVALID", r
        assert "needs a restart" in r.text or "insecure_loopback" in r.text, r
    assert not d.status().get("fingerprints")


def test_listen_without_trust(kvtd):
    d = kvtd("-l", "127.0.0.1:0", listen=False, start=False)
    r = subprocess.run(d.args, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       timeout=20)
    assert r.returncode == 2 and "trust { key" in r.stderr, r

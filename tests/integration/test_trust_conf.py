# SPDX-License-Identifier: Apache-2.0
"""Trust in the configuration: --check-config, the start, a reload, the status; nobody is dialled."""
import os
import subprocess

import pytest

from certs import BUILD, ca, certificate_fingerprint, cluster_key, fingerprints, trust
from conftest import wait_until
from wire import SLOW

LISTEN = 'listen = {"127.0.0.1:0"}\n'


def check(path):
    """What --check-config says, and its exit status."""
    p = subprocess.run([BUILD / "kvtd", "--check-config", path], capture_output=True, text=True,
                       timeout=30 * SLOW)
    assert not p.stdout and len(p.stderr.splitlines()) <= 1
    return p.returncode, p.stderr


def start_refused(config, folder):
    """It does not start; the one line that says why."""
    p = subprocess.run([BUILD / "kvtd", "-f", "-c", config, "-s", folder / "other.sock", "-a",
                        folder / "other-admin.sock"], capture_output=True, text=True,
                       timeout=30 * SLOW)
    line, = [x for x in p.stderr.splitlines() if x.startswith("kvtd: ")]
    assert p.returncode in (1, 2) and not (folder / "other.sock").exists()
    return line + "\n"


def test_refusals(kvtd, folder):
    """At the start, by --check-config and at a reload in the same words, with the place."""
    key = cluster_key(folder / "keys")
    node = ca(folder).cert("node-a")
    good = LISTEN + trust(key=key)
    d = kvtd(config=good, listen=False)
    secret = key.read_text().strip()

    def one(text, says, mode=0o600):
        key.chmod(mode)
        d.config_file.write_text(text)
        code, err = check(d.config_file)
        assert code == 2 and says in err and err.startswith(f"kvtd: {d.config_file}:"), err
        assert secret[:8] not in err
        with d.admin() as a:
            r = a.ask("reload")
        assert r.status in ("INVALID", "PERMISSION", "NOT_FOUND") and f"kvtd: {r.text}\n" == err
        d.says(f"config: not reloaded: {r.text}")
        assert d.status()["fingerprints"] == fingerprints(key)
        assert start_refused(d.config_file, folder) == err
        d.config_file.write_text(good)
        key.chmod(0o600)

    one(good, f": trust.key: {key}: mode 0644: others can read it (chmod 600 {key})", 0o644)
    one(LISTEN + trust(key=folder / "no"), f":3: trust.key: {folder}/no: No such file")
    (folder / "junk").write_text("# key:\n" + secret[:40] + "\n")
    (folder / "junk").chmod(0o600)
    one(LISTEN + trust(key=folder / "junk"), f":3: trust.key: {folder}/junk:2: a key is 64 hex")
    one(LISTEN + trust(key=key, cert=node), ":4: trust.key and trust.cert: ")
    one(LISTEN + trust(cert=node), ":3: trust.cert needs trust.ca")
    one(LISTEN + trust(key=key, allow=["b"]), ":4: trust.allow needs trust.ca")
    one("insecure_loopback = true\n" + good, ":4: trust.key and insecure_loopback: ")
    d.config_file.write_text(good)
    with d.admin() as a:
        assert a.ask("reload").status == "OK"


def test_reload_reads_the_files_again(kvtd, folder):
    """Though the configuration is the same; a bad file changes nothing."""
    key = cluster_key(folder / "keys")
    first, = fingerprints(key)
    d = kvtd(config=LISTEN + trust(key=key), listen=False)
    s = d.status()
    assert (s["trust"], s["fingerprints"], s["encrypt"]) == ("key", [first], "yes")
    d.says(f"trust: key {first} dials")
    with d.admin() as a:
        assert not a.ask("reload").get("reload", {}).get("changed")
        subprocess.run([BUILD / "kvtctl", "keygen", "--add", key], check=True, capture_output=True)
        second = fingerprints(key)[1]
        assert a.ask("reload").reload["changed"] == ["trust.key"]
        assert d.status()["fingerprints"] == [first, second]
        d.says(f"trust: key {second} is accepted")
        lines = key.read_text().split()
        key.write_text(f"{lines[1]}\n{lines[0]}\n")
        assert a.ask("reload").reload["changed"] == ["trust.key"]
        d.says(f"trust: key {second} dials")
        key.write_text("nothing\n")
        r = a.ask("reload")
        assert r.status == "INVALID" and d.status()["fingerprints"] == [second, first]
        # nor does anything else of such a configuration
        d.config_file.write_text("limits { regions = 1 }\n" + LISTEN + trust(key=key))
        assert a.ask("reload").status == "INVALID"
        key.write_text(lines[1])
        assert set(a.ask("reload").reload["changed"]) == {"limits.regions", "trust.key"}
        d.says(f"trust: key {first} is not accepted any more")
        # the same key from another file is a change of the key of the configuration alone
        os.rename(key, folder / "moved")
        d.config_file.write_text(LISTEN + trust(key=folder / "moved"))
        assert set(a.ask("reload").reload["changed"]) == {"limits.regions", "trust.key"}


def test_certificates(kvtd, folder):
    authority = ca(folder)
    node = authority.cert("node-a")
    d = kvtd(config=LISTEN + trust(cert=node, ca=authority), listen=False)
    s = d.status()
    assert (s["trust"], s["fingerprints"]) == ("certificate", [certificate_fingerprint(node.cert)])
    assert s["trust_until"].endswith("Z") and s["trust_until"][:10] in d.log()
    with d.admin() as a:
        authority.cert("node-a").cert.rename(node.cert)  # its key is another one's now
        expired = authority.cert("node-a", days=-1)
        d.config_file.write_text(LISTEN + trust(cert=expired, ca=authority))
        r = a.ask("reload")
        assert r.status == "INVALID" and "has expired on " in r.text, r.text
        assert d.status()["fingerprints"] == s["fingerprints"]
        # to keys and back
        key = cluster_key(folder / "keys")
        d.config_file.write_text(LISTEN + trust(key=key))
        assert set(a.ask("reload").reload["changed"]) == {"trust.key", "trust.cert",
                                                          "trust.cert_key", "trust.ca"}
        assert d.status()["trust"] == "key" and not d.status().get("trust_until")


@pytest.mark.parametrize("before", ["", "insecure_loopback = true\n"])
def test_trust_needs_a_restart(kvtd, folder, before):
    key = cluster_key(folder / "keys")
    d = kvtd(config=before, listen=False)
    d.config_file.write_text(trust(key=key))
    with d.admin() as a:
        r = a.ask("reload")
        assert r.status == "INVALID" and r.text.endswith("this change needs a restart"), r.text
        d.stop()
        d.start()
        assert d.status()["trust"] == "key"
    d.config_file.write_text(before)
    with d.admin() as a:
        r = a.ask("reload")
        assert r.status == "INVALID" and r.text.endswith("this change needs a restart"), r.text


@pytest.mark.parametrize("address, says", [
    ("224.0.0.1:0", "is not the address of one host"),
    ("240.0.0.1:0", "is not the address of one host"),
    ("[fe80::1]:0", "a link-local address of IPv6"),
    ("nonsense", "not an address"),
])
def test_listen_with_a_key(kvtd, folder, address, says):
    key = cluster_key(folder / "keys")
    d = kvtd(config=f'listen = {{"{address}"}}\n' + trust(key=key), listen=False, start=False)
    assert says in start_refused(d.config_file, folder)
    d.config_file.write_text('listen = {"0.0.0.0:0"}\n' + trust(key=key))
    d.start()
    wait_until("it listens", lambda: d.address.startswith("0.0.0.0:"))
    assert all(not x.startswith("0.0.0.0") for x in d.status()["advertise"])

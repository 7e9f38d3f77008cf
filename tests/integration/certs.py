# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates for tests, made on the spot: kvtctl keygen and the openssl program.

    key = cluster_key(folder / "keys")              the path of a file of one new key
    authority = ca(folder)                          authority.file: its certificate
    mine = authority.cert("node-a")                 mine.cert, mine.key: paths of PEM files
    authority.cert("node-a", days=-1)               expired yesterday
    authority.cert("node-a", start=2)               valid the day after tomorrow
    authority.cert("node-a", names=["node-x"])      SANs; [] for none
    authority.cert("node-a", eku="serverAuth")      extended key usage; None for none
    config = trust(key=path) or trust(cert=mine, ca=authority, allow=[...])

Nothing is committed, nothing asks the network.
"""
import datetime
import hashlib
import os
import pathlib
import subprocess

BUILD = pathlib.Path(os.environ["KVT_BUILD"])


def run(*args):
    r = subprocess.run([str(a) for a in args], stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=60)
    assert r.returncode == 0, f"{args}: {r.stderr}"
    return r.stdout


def cluster_key(path):
    run(BUILD / "kvtctl", "keygen", path)
    return path


def fingerprints(path):
    """Of a file of keys, in its order."""
    return [hashlib.sha256(bytes.fromhex(line)).hexdigest()[:16]
            for line in path.read_text().splitlines() if line and line[0] != "#"]


def certificate_fingerprint(path):
    """As kvtctl status shows it."""
    text = run("openssl", "x509", "-in", path, "-noout", "-fingerprint", "-sha256")
    return text.strip().partition("=")[2].replace(":", "").lower()[:16]


CONFIG = """
[ca]
default_ca = it
[it]
database = {folder}/index
new_certs_dir = {folder}
certificate = {folder}/ca.pem
private_key = {folder}/ca.key
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
"""


class Cert:
    def __init__(self, cert, key):
        self.cert, self.key = cert, key


class Authority:
    def __init__(self, folder):
        self.folder, self.count = folder, 0
        self.file = folder / "ca.pem"
        folder.mkdir()
        (folder / "index").touch()
        (folder / "ca.conf").write_text(CONFIG.format(folder=folder))
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / "ca.key", "-out",
            self.file, "-days", 30, "-subj", f"/CN=tests {folder.name}", "-addext",
            "keyUsage=critical,keyCertSign")

    def cert(self, node, days=30, names=None, eku="serverAuth,clientAuth", start=-2):
        """Valid from `start` days from now until `days` days from now."""
        self.count += 1
        base = self.folder / f"{self.count}-{node}"
        key, request, cert, ext = (base.with_suffix(s) for s in (".key", ".csr", ".pem", ".ext"))
        names = [node] if names is None else names
        ext.write_text("basicConstraints = critical,CA:FALSE\n" +
                       "keyUsage = critical,digitalSignature\n" +
                       (f"extendedKeyUsage = {eku}\n" if eku else "") +
                       (f"subjectAltName = {','.join('DNS:' + n for n in names)}\n"
                        if names else ""))
        run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", request, "-subj",
            f"/CN={node}")
        now = datetime.datetime.utcnow()
        from_, until = (f"{now + datetime.timedelta(days=d):%Y%m%d%H%M%SZ}"
                        for d in (min(start, days - 1), days))
        run("openssl", "ca", "-batch", "-notext", "-config", self.folder / "ca.conf", "-in",
            request, "-out", cert, "-extfile", ext, "-startdate", from_, "-enddate", until)
        key.chmod(0o600)
        return Cert(cert, key)


def ca(folder, name="ca"):
    return Authority(folder / name)


def trust(key=None, cert=None, ca=None, allow=()):
    """The section of a configuration."""
    lines = [f'key = "{key}"'] if key else []
    if cert:
        lines += [f'cert = "{cert.cert}"', f'cert_key = "{cert.key}"']
    if ca:
        lines.append(f'ca = "{ca.file}"')
    if allow:
        lines.append("allow = {" + ", ".join(f'"{n}"' for n in allow) + "}")
    return "trust {\n\t" + "\n\t".join(lines) + "\n}\n"

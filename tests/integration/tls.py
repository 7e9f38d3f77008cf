# SPDX-License-Identifier: Apache-2.0
"""Keys, daemons that have them, and TLS of one's own that need not be what a daemon wants.

    key = Key()                              key.hex, key.fingerprint
    def test_x(keyed): d = keyed([key])      a daemon whose key file has these
    p = Pipe.dial(d, *key.options())         TLS to its peer port, by c/tlspipe; p.line says what
                                             came of the handshake, p.sock carries the bytes,
                                             p.last says how it ended
    FakePeer(d, tls=key.options())           a peer over it
    tries(d, 1000, *options)                 {what came of it: how often}
"""
import collections
import hashlib
import os
import pathlib
import re
import secrets
import socket
import subprocess
import time

import pytest

from wire import SLOW, readable

TLSPIPE = pathlib.Path(os.environ["KVT_BUILD"]) / "tests" / "integration" / "c" / "tlspipe"
LABEL = "EXPORTER-kvtd-data"
LOOPBACK = 'allow = {"127.0.0.0/8"}'


class Key:
    """Of a cluster."""

    def __init__(self, text=None):
        self.hex = text or secrets.token_hex(32)
        self.fingerprint = hashlib.sha256(bytes.fromhex(self.hex)).hexdigest()[:16]

    def options(self, *more, identity=None, alpn="kvtd/1"):
        """For tlspipe: what a daemon with this key says; None leaves it out."""
        return [f"psk={identity or self.fingerprint}:{self.hex}", f"export={LABEL}",
                *([f"alpn={alpn}"] if alpn else []), *more]


def write_keys(path, keys, mode=0o600):
    """A key file, replaced at once as a roll-out would."""
    new = path.with_name(path.name + ".new")
    new.write_text("".join(f"{k.hex}\n" for k in keys))
    new.chmod(mode)
    new.rename(path)


class Pipe:
    def __init__(self, sock, role, *options):
        """Takes the socket, whose preamble is behind it. role: client or server."""
        self.timeout = 20 * SLOW
        self.sock, theirs = socket.socketpair()
        self.process = subprocess.Popen([TLSPIPE, role, str(sock.fileno()), *options],
                                        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
                                        pass_fds=[sock.fileno()])
        theirs.close()
        sock.close()
        self.text = b""
        self._line = self._last = None

    @classmethod
    def dial(cls, daemon, *options, preamble=b"KVTCTRL1", source=None):
        return cls(connect(daemon, preamble, source), "client", *options)

    def _read(self):
        deadline = time.monotonic() + self.timeout
        while b"\n" not in self.text:
            left = deadline - time.monotonic()
            assert left > 0 and readable(self.process.stderr, left), \
                "tlspipe does not answer"
            data = os.read(self.process.stderr.fileno(), 4096)
            if not data:
                return self.text.decode()
            self.text += data
        line, _, self.text = self.text.partition(b"\n")
        assert not line.startswith(b"usage"), line
        return line.decode()

    @property
    def line(self):
        if self._line is None:
            self._line = self._read()
        return self._line

    @property
    def ok(self):
        return self.line.startswith("ok ")

    def word(self, name):
        got = re.search(rf"\b{name}=(\S*)", self.line)
        return got and got[1]

    @property
    def exported(self):
        assert self.ok, self.line
        return bytes.fromhex(self.word("export"))

    @property
    def last(self):
        """How it ended, once it has."""
        if self._last is None:
            self._last = self._read() if self.ok else self.line
        return self._last

    def close(self):
        self.sock.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def at(daemon):
    host, _, port = daemon.address.rpartition(":")
    return host, int(port)


def connect(daemon, data=b"", source=None):
    s = socket.create_connection(at(daemon), 10 * SLOW, (source, 0) if source else None)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(data)
    return s


def tries(daemon, n, *options, preamble="KVTCTRL1", timeout=60):
    host, port = at(daemon)
    done = subprocess.run([TLSPIPE, "try", str(n), host, str(port), preamble, *options],
                          stdout=subprocess.PIPE, text=True, timeout=timeout * SLOW, check=True)
    out = collections.Counter()
    for line in done.stdout.splitlines():
        count, _, what = line.partition(" ")
        out[what] += int(count)
    return out


@pytest.fixture
def keyed(kvtd, folder):
    """keyed(keys, name=, peers=, config=, listen=True) makes a Daemon with a key file, d.keys."""
    made = []

    def make(keys, *args, peers="", config="", listen=True, **kw):
        path = folder / f"keys-{len(made)}"
        write_keys(path, keys)
        if listen:
            args = ("-l", "127.0.0.1:0", *args)
        d = kvtd(*args, listen=False, config=config + trust_config(path, peers), **kw)
        d.keys = path
        made.append(d)
        return d
    return make


def trust_config(path, peers=""):
    return f'\ntrust {{\n\tkey = "{path}"\n}}\npeers {{\n\t{LOOPBACK}\n{peers}\n}}\n'

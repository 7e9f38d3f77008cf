# SPDX-License-Identifier: Apache-2.0
"""Daemons for integration tests.

    def test_x(daemon): ...             one kvtd with a peer listener on loopback
    def test_x(two_daemons): a, b = two_daemons
    def test_x(kvtd): d = kvtd("--fault", "fence-off", config="grants { ttl = 1s }")

Each lives in a private folder and is stopped after the test, which fails if then anything of a
client is left, a memfd, a pidfd or a client's socket is still open, the exit was not clean, or
the log speaks of something impossible. Logs are attached to a failing test.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from wire import SLOW, Client

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]


def wait_until(what, condition, timeout=10):
    """Polls for a state with a deadline; returns what the condition gave."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        got = condition()
        if got:
            return got
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


class Daemon:
    def __init__(self, folder, name, args, config, check=True, prefix=()):
        self.folder, self.name, self.check = folder / name, name, check
        self.folder.mkdir(exist_ok=True)
        self.client_socket = self.folder / "client" / "kvtd.sock"
        self.admin_socket = self.folder / "admin" / "admin.sock"
        self.log_file = self.folder / "log"
        self.config_file = self.folder / "kvtd.conf"
        self.config_file.write_text(config or "")
        self.args = [*prefix, BUILD / "kvtd", "-f", "-c", self.config_file, "-s", self.client_socket,
                     "-a", self.admin_socket, "-n", name, *args]
        self.process = None

    def start(self):
        """Starts and waits until it is ready."""
        at = self.log_file.stat().st_size if self.log_file.exists() else 0
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)
        wait_until(f"{self.name} is ready", lambda: " is ready" in self.log()[at:] or
                   self.process.poll() is not None)
        assert self.process.poll() is None, f"{self.name} did not start:\n{self.log()}"
        fds = self.fds()
        # after a restart clients may have come back already
        before = getattr(self, "fds_at_start", fds)
        self.fds_at_start = {k: min(n, before[k]) for k, n in fds.items()}
        return self

    @property
    def pid(self):
        return self.process.pid

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def says(self, words):
        """In its log, soon: of two daemons either may hear first of what both tell."""
        wait_until(f"{self.name} says '{words}'", lambda: words in self.log())

    @property
    def address(self):
        """Of the peer listener."""
        return re.findall(r"peer listener on (\S+)", self.log())[-1]

    def client(self, **kw):
        return Client(self.client_socket, **kw)

    def admin(self, **kw):
        return Client(self.admin_socket, **kw)

    def status(self):
        with self.admin(name="status") as c:
            return c.status()

    def rows(self, kind):
        with self.admin(name="rows") as c:
            return c.rows(kind)

    def fds(self):
        """How many of each sort: memfds, pidfds, Unix sockets, other sockets, and all."""
        unix = {line.split()[6] for line in
                pathlib.Path(f"/proc/{self.pid}/net/unix").read_text().splitlines()[1:]}
        n = {"memfd": 0, "pidfd": 0, "unix": 0, "inet": 0, "all": 0}
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                to = os.readlink(f"/proc/{self.pid}/fd/{fd}")
            except FileNotFoundError:
                continue
            n["all"] += 1
            if to.startswith("/memfd:"):
                n["memfd"] += 1
            elif to == "anon_inode:[pidfd]" or to.startswith("pidfd:"):
                n["pidfd"] += 1
            elif to.startswith("socket:["):
                n["unix" if to[8:-1] in unix else "inet"] += 1
        return n

    def left(self):
        """What is there of clients; all zero at rest."""
        s = self.status()
        return {k: s[k] for k in ("regions", "caches", "grants", "transfers", "clients",
                                  "registered_bytes", "fencing") if s.get(k)}

    def wait_idle(self, timeout=10):
        """No objects left, fds of clients as at start."""
        def fds():
            return {k: v for k, v in self.fds().items() if k in ("memfd", "pidfd", "unix")}
        start = {k: self.fds_at_start[k] for k in ("memfd", "pidfd", "unix")}
        try:
            wait_until(f"{self.name} is idle", lambda: not self.left() and fds() == start,
                       timeout)
        except AssertionError:
            raise AssertionError(f"{self.name}: left: {self.left()}, fds {fds()}, "
                                 f"at start {start}") from None

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """At once, as a crash would."""
        if self.alive:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout=15):
        """SIGTERM; the exit status."""
        if not self.alive:
            return self.process.returncode if self.process else 0
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} does not end after SIGTERM") from None

    def check_end(self):
        """The end of a test: nothing left, a clean exit, nothing impossible in the log."""
        if not self.check or self.process is None:
            return
        if self.alive:
            self.signal(signal.SIGCONT)
            self.wait_idle()
        code = self.stop()
        assert code == 0, f"{self.name} ended with {code}"
        for bad in ("impossible", "runtime error:", "Sanitizer"):
            assert bad not in self.log(), f"{self.name}: '{bad}' in its log"


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures, or changes what all tests share: nothing "
                                       "else may run beside it")
    config.addinivalue_line("markers", "plain: not run again under sanitizers: figures, documents, "
                                       "scripts; or ways of the daemon that other tests go, too")


@pytest.fixture
def folder():
    """A short path: Unix sockets take 107 bytes."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="kvt-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def kvtd(request, folder):
    """kvtd(*args, name=, config=, listen=True, check=True, start=True) makes a Daemon."""
    daemons = request.node.daemons = []

    def make(*args, name=None, config=None, listen=True, check=True, start=True, prefix=()):
        name = name or f"node-{'abcdefgh'[len(daemons)]}"
        if listen:
            args = ("-l", "127.0.0.1:0", "--insecure-loopback", *args)
        d = Daemon(folder, name, args, config, check, prefix)
        daemons.append(d)
        return d.start() if start else d

    yield make
    problems = []
    for d in daemons:
        try:
            d.check_end()
        except Exception as e:  # whatever it is, the others are ended, too
            problems.append(f"{d.name}: {type(e).__name__}: {e}")
        finally:
            d.kill()
    if problems:
        logs = "".join(f"\n--- {d.name}\n{d.log()[-8000:]}" for d in daemons)
        pytest.fail("\n".join(problems) + logs, pytrace=False)


@pytest.fixture
def daemon(kvtd):
    return kvtd()


@pytest.fixture
def two_daemons(kvtd):
    return kvtd(), kvtd()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call" and report.failed:
        for d in getattr(item, "daemons", []):
            report.sections.append((f"log of {d.name}", d.log()[-20000:]))

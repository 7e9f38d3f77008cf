# SPDX-License-Identifier: Apache-2.0
"""Hosts of their own: network namespaces that are joined by a veth pair.

    the fixture comes by: from netns import hosts

    def test_x(hosts, kvtd):            in this order: the daemons end before their hosts
        a, b = hosts.a, hosts.b         a.address is "10.77.0.1", a.address6 "fd77::1"
        d = a.kvtd(kvtd, "--key", file) listens on the host's address
        hosts.cut(), hosts.mend()       the link goes down and up
        hosts.slow("50mbit")            tc tbf, both directions; hosts.fast() ends it
        a.run("ip", "addr")             any program on that host

A namespace lives as long as a process that holds it, which ends with the test whatever comes:
nothing has a name, nothing is mounted, nothing is seen by the machine's own network. Without root
it all happens in a user namespace, where that is allowed; else these tests are skipped with the
reason.
"""
import functools
import os
import shutil
import subprocess

import pytest

from wire import SLOW


class Holder:
    """A process in a new network namespace that waits for its standard input to end."""

    def __init__(self, enter=()):
        user = [] if os.geteuid() == 0 or enter else ["--user", "--map-root-user"]
        self.process = subprocess.Popen([*enter, "unshare", *user, "--net", "cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, bufsize=0)
        try:
            self.process.stdin.write(b"\n")
            ready = self.process.stdout.read(1)
        except BrokenPipeError:
            ready = b""
        if not ready:
            why = self.process.stderr.read().decode().strip()
            self.close()
            raise OSError(why or "unshare failed")
        self.enter = ["nsenter", "--target", str(self.process.pid), "--net"]
        if os.geteuid() != 0:
            self.enter += ["--user", "--preserve-credentials"]

    def close(self):
        self.process.kill()
        self.process.wait()
        for f in (self.process.stdin, self.process.stdout, self.process.stderr):
            f.close()


class Host:
    def __init__(self, name, number, holder):
        self.name, self.prefix = name, holder.enter
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number}"
        self.pid = holder.process.pid

    def run(self, *args, check=True):
        r = subprocess.run([*self.prefix, *map(str, args)], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=30 * SLOW)
        assert not check or r.returncode == 0, f"{self.name}: {args}: {r.stderr}"
        return r

    def kvtd(self, kvtd, *args, address=None, port=7588, **kw):
        """A daemon that runs here and listens on address, by default this host's own."""
        address = address or self.address
        if ":" in address:
            address = f"[{address}]"
        return kvtd("-l", f"{address}:{port}", *args, name=kw.pop("name", f"node-{self.name}"),
                    listen=False, prefix=self.prefix, **kw)


class Hosts:
    def __init__(self):
        self.holders = []
        try:
            self.holders.append(Holder())
            first = self.holders[0].enter if os.geteuid() != 0 else ()
            self.holders.append(Holder(first))
            self.a, self.b = (Host(name, i + 1, self.holders[i])
                              for i, name in enumerate(("a", "b")))
            self.a.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
                       "netns", self.b.pid)
            for host in self.a, self.b:
                host.run("ip", "link", "set", "lo", "up")
                # an interface that goes down would lose its IPv6 addresses
                host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down",
                         check=False)
                host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
                host.run("ip", "addr", "add", f"{host.address6}/64", "dev", "eth0", "nodad",
                         check=False)
                host.run("ip", "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise

    def cut(self):
        self.b.run("ip", "link", "set", "eth0", "down")

    def mend(self):
        self.b.run("ip", "link", "set", "eth0", "up")

    def slow(self, rate):
        for host in self.a, self.b:
            host.run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
                     "burst", "64kb", "latency", "100ms")

    def fast(self):
        for host in self.a, self.b:
            host.run("tc", "qdisc", "del", "dev", "eth0", "root")

    def close(self):
        for h in self.holders:
            h.close()


@functools.lru_cache
def why_not():
    """Why there are no namespaces here, or None."""
    missing = [p for p in ("unshare", "nsenter", "ip", "tc") if not shutil.which(p)]
    if missing:
        return f"no {' '.join(missing)} here (Debian: apt install iproute2 util-linux)"
    try:
        Hosts().close()
    except (OSError, AssertionError) as e:
        return f"no network namespaces here: {e}"
    return None


@pytest.fixture
def hosts():
    if why_not():
        pytest.skip(why_not())
    h = Hosts()
    yield h
    h.close()

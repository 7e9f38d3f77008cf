# SPDX-License-Identifier: Apache-2.0
"""Many clients, regions and grants: memory that grows in proportion, mappings only of what is used,
and a word at the start about limits of the kernel that are too low."""
import os
import pathlib
import re
import resource
import subprocess
import time

import pytest

from actors import Answer, actor  # noqa: F401
from conftest import wait_until
from wire import SLOW, readable

pytestmark = pytest.mark.plain

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
CLIENTS, REGIONS = 1000, 100
RUN = 16  # blocks of a grant, neighbours: 8 bytes when they are coded


class Crowd:
    """c/crowd.c: N processes that do the same at once."""

    def __init__(self, n):
        self.n = n
        self.process = subprocess.Popen([BUILD / "tests" / "integration" / "c" / "crowd", str(n)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def __call__(self, command, timeout=120):
        """How many it went well for, the longest time in s, and the answer."""
        self.process.stdin.write(command.encode() + b"\n")
        deadline, line = time.monotonic() + timeout * SLOW, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            assert left > 0 and readable(self.process.stdout, left), f"no answer: {command}"
            data = os.read(self.process.stdout.fileno(), 4096)
            assert data, "the crowd has ended"
            line += data
        answer = Answer(line.decode())
        good, worst = answer.text.split()[:2]
        return int(good), int(worst) / 1e6, answer

    def ok(self, command):
        good, worst, answer = self(command)
        assert good == self.n, repr(answer)
        return worst

    def end(self):
        self.process.stdin.close()  # they die as they are
        self.process.wait(20 * SLOW)
        self.process.stdout.close()


@pytest.fixture
def crowd():
    made = []

    def make(n):
        made.append(Crowd(n))
        return made[-1]
    yield make
    for c in made:
        if not c.process.stdin.closed:
            c.process.kill()
            c.process.wait()
            c.process.stdin.close()
            c.process.stdout.close()


def rss_anon(daemon):
    text = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
    return int(re.search(r"^RssAnon:\s+(\d+)", text, re.M).group(1)) << 10


def maps(daemon):
    return pathlib.Path(f"/proc/{daemon.pid}/maps").read_text().count("\n")


def cpu(daemon):
    words = pathlib.Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def fds_for(clients):
    """Regions of each client for which there are file descriptors here."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    hard = 1 << 30 if hard == resource.RLIM_INFINITY else hard
    return (hard - 2 * clients - 256) // clients


# ---------------------------------------------------------------- grants

@pytest.mark.skipif(SLOW > 1, reason="a measurement")
def test_a_hundred_thousand_grants(kvtd, crowd):
    """Each under 512 bytes beside its list, which is coded in runs; the last as cheap as the first."""
    many = "{ grants = 200000 list_bytes = 1GiB }"
    d = kvtd(config=f"limits {many} limits_key {many} grants {{ token_keep = 1s }}")
    c = crowd(4)
    c.ok(f"open {d.client_socket}")
    c.ok("regions 1 65536")
    c.ok("grants 10 16")
    before, spent = rss_anon(d), []
    for _ in range(5):
        start = cpu(d)
        c.ok(f"grants 5000 {RUN}")
        spent.append(cpu(d) - start)
    each = (rss_anon(d) - before) / 100000
    print(f"{each:.0f} bytes a grant; CPU of 20,000 each: {' '.join('%.2f s' % s for s in spent)}")
    assert d.status()["grants"] == 100040
    assert each < 512 + 8, each
    assert spent[-1] < 3 * spent[0] + 0.1, spent
    c.ok("revoke")
    # ids that are no neighbours: 4 bytes each
    before = rss_anon(d)
    c.ok("grants 5000 64 3")
    each = (rss_anon(d) - before) / 20000
    print(f"with 64 scattered blocks: {each:.0f} bytes")
    assert each < 512 + 4 * 64, each
    ids = [row["id"] for row in d.rows("GRANT")]  # in pages
    assert len(ids) == 20000 and ids == sorted(set(ids))
    c.ok("revoke")
    c.ok("close")
    wait_until("the memory is given back", lambda: d.status()["rss_anon_bytes"] < 6 << 20)


# ---------------------------------------------------------------- clients and regions

def test_a_thousand_clients(kvtd, crowd):
    """The defaults let them in. A region is mapped when its bytes move for the first time."""
    clients = CLIENTS if SLOW == 1 else 100
    per = min(REGIONS, fds_for(clients))
    d = kvtd()
    before, at_start = maps(d), rss_anon(d)
    c = crowd(clients)
    c.ok(f"open {d.client_socket}")
    opened, start = rss_anon(d), cpu(d)
    c.ok(f"regions {per} 4096")
    spent = cpu(d) - start
    s = d.status()
    assert s["clients"] == clients and s["regions"] == clients * per
    assert maps(d) < before + 100, f"{maps(d)} mappings, {before} without them"
    print(f"{clients} clients x {per} regions: {(opened - at_start) / clients:.0f} bytes a client, "
          f"{(rss_anon(d) - opened) / clients / per:.0f} bytes and "
          f"{spent / clients / per * 1e6:.0f} us of CPU a region")
    c.ok("own")
    assert clients <= maps(d) - before < clients + 100, "one of each client's is used"
    c.ok("close")
    d.wait_idle(30)
    assert maps(d) < before + 100


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_five_hundred_at_once(kvtd, crowd, end):
    n = 500 if SLOW == 1 else 100
    d = kvtd()
    c = crowd(n)
    for _ in range(2):
        worst = c.ok(f"open {d.client_socket} 20000")
        print(f"{n} clients have connected within {worst:.2f} s")
        assert worst < 3 * SLOW
        c.ok("regions 1 4096")
        worst = c.ok("own")
        if end == "killed":
            break
        assert c.ok("close") < 3 * SLOW
        d.wait_idle()
    c.end()
    d.wait_idle()
    assert "impossible" not in d.log()


# ---------------------------------------------------------------- the kernel's limits

def test_word_about_low_limits(kvtd):
    """Name, value, need; none where it is enough."""
    config = "limits { clients = 100 regions = 10 }"
    low = kvtd(config=config, prefix=("prlimit", "--nofile=300:1400"))
    assert low.log().count("warn: limits: RLIMIT_NOFILE is 1400: 100 clients with 1000 regions "
                           "in all take up to 1456 (") == 1, low.log()
    assert resource.prlimit(low.pid, resource.RLIMIT_NOFILE) == (1400, 1400)
    enough = kvtd(config=config, prefix=("prlimit", "--nofile=300:1456"))
    assert "limits:" not in enough.log()
    most = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    maps_low = kvtd(config=f"limits {{ clients = 1 regions = {most} }}\n"
                    f"limits_key {{ regions = {most} }}")
    assert f"warn: limits: vm.max_map_count is {most}: {most} regions, once in use, take up to " \
        f"{most + 512} mappings (" in maps_low.log(), maps_low.log()


def test_no_fd_for_another_client(kvtd, actor, crowd):
    """At the limit clients hear so at once, those that are there go on, and so does kvtctl."""
    d = kvtd()
    a = actor(d)
    a.cache("A", 8, 1, 4096)
    a.cache("B", 8, 1, 4096)
    room = d.fds()["all"] + 60
    resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (room, room))
    c = crowd(60)
    good, worst, answer = c(f"open {d.client_socket} 2000")
    assert 0 < good < 60 and worst < 3 * SLOW, answer
    assert answer == "QUOTA" and "the daemon has no free file descriptors" in answer.text, answer
    refused = next(r for r in (a(f"region {i} 4096") for i in range(60)) if r != "OK")
    assert refused == "QUOTA" and f"RLIMIT_NOFILE is {room}, of which 16" in refused.text, refused
    a.ok("fill 1 A:0-7")
    token = a.grant("g", "read A:0-7")
    assert a.run("x", "pull", token, "B:7-0 final") == "OK"
    a.ok("check 1 B:7-0")
    kvtctl = subprocess.run([BUILD / "kvtctl", "-s", d.admin_socket, "status"], timeout=10 * SLOW,
                            capture_output=True, text=True)
    assert kvtctl.returncode == 0, kvtctl.stderr
    c.end()
    wait_until("there are some again", lambda: a("region C 4096") == "OK")


# ---------------------------------------------------------------- who comes in

def test_clients_of_one_user(kvtd, actor):
    d = kvtd(config="limits_key { clients = 3 }")
    three = [actor(d) for _ in range(3)]
    more = actor()
    refused = more(f"open {d.client_socket} timeout=2000")
    assert refused == "QUOTA", repr(refused)
    assert re.search(r"user 0, group \d+ on socket default has 3 of 3 clients|"
                     r"user \d+, group \d+ on socket default has 3 of 3 clients", refused.text)
    assert len(d.rows("CLIENT")) == 3  # and an administrator is no client
    three[0].exit()
    wait_until("there is room", lambda: more(f"open {d.client_socket}") == "OK")


def test_no_hello(kvtd):
    """A connection that says nothing is told and closed; one that has said it stays."""
    d = kvtd(config="limits { hello = 300ms }")
    start = time.monotonic()
    with d.client() as up, d.client(hello=False) as c, d.admin(hello=False) as a:
        for silent in (c, a):
            bye = silent.wait_end()
            assert bye.status == "TIMEOUT" and "no Hello within 300 ms" in bye["text"], bye
        assert 0.3 <= time.monotonic() - start < 3 * SLOW
        assert [r["id"] for r in d.rows("CLIENT")] == [1]
        assert up.status()["clients"] == 1

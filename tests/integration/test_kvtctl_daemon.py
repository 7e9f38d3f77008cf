# SPDX-License-Identifier: Apache-2.0
"""kvtctl and a daemon that has work: kvtbench and the examples are its clients."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

from conftest import wait_until
from wire import SLOW

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
OBJECTS = ["client", "region", "cache", "grant", "transfer", "peer"]


def kvtctl(node, *args, client=False):
    where = ["-s", node.client_socket] if client else ["-a", node.admin_socket]
    return subprocess.run([BUILD / "kvtctl", *where, *map(str, args)], capture_output=True,
                          text=True, timeout=60, stdin=subprocess.DEVNULL)


def rows(node, name, **kw):
    r = kvtctl(node, name, "--json", **kw)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)[name + "s"]


def status(node):
    return json.loads(kvtctl(node, "status", "--json").stdout)["status"]


def wait_for(what):
    """The first truth that what() tells."""
    return wait_until("it comes about", what, 20)


@pytest.fixture
def nodes(two_daemons):
    return list(two_daemons)


@pytest.fixture
def bench(nodes):
    """A kvtbench that runs until the test ends it, with 3 clients and 2 transfers of each."""
    p = subprocess.Popen(
        [BUILD / "kvtbench", "--via", "tcp", "--socket", nodes[0].client_socket, "--far-socket",
         nodes[1].client_socket, "--block", "64KiB", "--blocks", "500", "--clients", "3", "--inflight",
         "2", "--seconds", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    wait_for(lambda: status(nodes[1])["transfers_ok"] > 0)
    yield p
    p.terminate()
    try:
        p.communicate(timeout=30 * SLOW)
    finally:
        p.kill()


def test_none(nodes):
    for name in OBJECTS:
        assert rows(nodes[0], name) == []
        assert kvtctl(nodes[0], name).stdout.count("\n") == 1
        assert kvtctl(nodes[0], name, "-n").stdout == ""
        r = kvtctl(nodes[0], name, "show", 12345)
        assert r.returncode == 4 and r.stderr == f"kvtctl: there is no {name} 12345\n"
    for command, name in ("cancel", "transfer"), ("revoke", "grant"):
        r = kvtctl(nodes[0], command, 12345)
        assert r.returncode == 4 and r.stderr == f"kvtctl: there is no {name} 12345\n"
    first = kvtctl(nodes[0], "status").stdout.splitlines()[0]
    assert re.fullmatch(r"kvtd \d+\.\d+\.\d+: running", first)
    assert re.fullmatch(r"kvtctl (\S+)\nkvtd \1\n", kvtctl(nodes[0], "version").stdout)


def test_many(nodes, bench):
    owner, opener = nodes
    assert len(rows(owner, "client")) == 3 and len(rows(opener, "client")) == 3
    assert {r["name"] for r in rows(owner, "client")} == {"kvtbench source"}
    assert {r["pid"] for r in rows(owner, "client")} == {bench.pid}
    assert [r["planes"] for r in rows(owner, "cache")] == [1] * 3
    assert {r["length_bytes"] for r in rows(owner, "region")} == {502 * 65536 + 8192}
    assert len(rows(owner, "grant")) >= 3
    (peer,) = rows(owner, "peer")
    assert peer["node"] == "node-b" and peer["out_bytes"] > 0
    for node in nodes:
        for name in OBJECTS:
            table = kvtctl(node, name)
            assert table.returncode == 0
            assert re.match(r" *ID ", table.stdout) or name in ("grant", "transfer")
    moving = wait_for(lambda: rows(opener, "transfer"))[0]
    assert moving["op"] == "pull" and moving["role"] == "initiator"
    assert moving["peer"] == "node-a" and moving["bytes"] == 500 * 65536
    served = wait_for(lambda: rows(owner, "transfer"))[0]
    assert served["role"] == "owner" and served["peer"] == "node-b"


def test_show(nodes, bench):
    for name in "client", "region", "cache", "peer":
        first = rows(nodes[0], name)[0]
        r = kvtctl(nodes[0], name, "show", first["id"], "--json")
        (shown,) = json.loads(r.stdout)[name + "s"]
        assert shown.keys() == first.keys() and shown["id"] == first["id"]
        r = kvtctl(nodes[0], name, "show", first["id"], "-r")
        assert f"ID {first['id']}\n" in r.stdout


def try_ids(node, command, name):
    """A transfer or a grant may end before its id arrives: the next, then."""
    for row in rows(node, name):
        r = kvtctl(node, command, row["id"])
        assert r.returncode in (0, 4), r.stderr
        if r.returncode == 0:
            return True
    return False


def test_cancel(nodes, bench):
    wait_for(lambda: try_ids(nodes[1], "cancel", "transfer"))
    # one that had committed meanwhile has succeeded all the same, so not only once
    wait_for(lambda: bench.poll() is not None or
             (try_ids(nodes[1], "cancel", "transfer"), False)[1])
    assert bench.returncode == 1
    assert "CANCELED" in bench.stderr.read()


def test_cancel_where_it_is_not(nodes, bench):
    """The owner's side of another node's transfer."""
    def refused():
        for row in rows(nodes[0], "transfer"):
            r = kvtctl(nodes[0], "cancel", row["id"])
            if r.returncode != 4:
                return r
    r = wait_for(refused)
    assert r.returncode == 1 and "revoke its grant" in r.stderr


def test_revoke(nodes, bench):
    wait_for(lambda: try_ids(nodes[0], "revoke", "grant"))
    wait_for(lambda: bench.poll() is not None or
             (try_ids(nodes[0], "revoke", "grant"), False)[1])
    assert bench.returncode == 1
    assert re.search("REVOKED|NOT_FOUND", bench.stderr.read())


def test_drain_and_resume(nodes, bench):
    owner = nodes[0]
    assert kvtctl(owner, "drain", "--timeout", "30s").returncode == 0
    assert kvtctl(owner, "status").stdout.splitlines()[0].endswith(": draining") or \
        ": draining: " in kvtctl(owner, "status").stdout.splitlines()[0]
    wait_for(lambda: bench.poll() is not None)
    assert "SHUTDOWN" in bench.stderr.read() or bench.returncode == 1
    assert kvtctl(owner, "resume").returncode == 0
    assert status(owner)["state"] == "running"


def test_reload(nodes):
    conf = nodes[0].config_file
    assert kvtctl(nodes[0], "reload").stdout == "nothing has changed\n"
    conf.write_text('log_level = "debug"\ncluster = "another"\n')
    r = kvtctl(nodes[0], "reload", "--json")
    assert r.returncode == 0, r.stderr
    assert json.loads(r.stdout) == {"changed": ["log_level"], "needs_restart": ["cluster"]}
    conf.write_text("frob = 1\n")
    r = kvtctl(nodes[0], "reload")
    assert r.returncode == 1 and f"{conf}:1:" in r.stderr and r.stderr.count("\n") == 1
    conf.unlink()
    r = kvtctl(nodes[0], "reload")
    assert r.returncode == 1 and r.stderr == f"kvtctl: {conf}: No such file or directory\n"


def test_own_objects_only(nodes, bench):
    """The client socket: what is of clients of the same user on that socket, and only looked at."""
    owner = nodes[0]
    for name in "region", "cache":
        assert [r["id"] for r in rows(owner, name, client=True)] == \
            [r["id"] for r in rows(owner, name)] != []
    assert len([r for r in rows(owner, "client", client=True) if r["pid"] == bench.pid]) == 3
    wait_for(lambda: rows(owner, "grant", client=True))
    wait_for(lambda: rows(owner, "transfer", client=True))
    assert rows(owner, "peer", client=True) == []
    region = rows(owner, "region")[0]["id"]
    r = kvtctl(owner, "region", "show", region, client=True)
    assert r.returncode == 0 and "own objects only" in r.stderr
    r = kvtctl(owner, "status", client=True)
    assert r.returncode == 0 and r.stdout.startswith("kvtd ") and "own objects only" in r.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_other_users_objects(nodes, bench, tmp_path):
    owner = nodes[0]
    region = rows(owner, "region")[0]["id"]
    program = pathlib.Path(shutil.copy(BUILD / "kvtctl", tempfile.mkdtemp(prefix="kvt-other-")))
    opened = [program.parent, *list(owner.client_socket.parents)[:3]]
    for folder in opened:
        if str(folder) not in ("/", "/tmp"):
            folder.chmod(folder.stat().st_mode | 0o11)
    owner.client_socket.chmod(0o666)

    def as_nobody(*args):
        return subprocess.run([program, "-s", owner.client_socket, *map(str, args)],
                              capture_output=True, text=True, timeout=60, user=65534, group=65534,
                              extra_groups=[], stdin=subprocess.DEVNULL)
    try:
        for name in OBJECTS:
            r = as_nobody(name, "--json")
            assert r.returncode == 0, r.stderr
            (found,) = json.loads(r.stdout).values()
            assert [row["name"] for row in found] == ["kvtctl"] if name == "client" else not found
        r = as_nobody("region", "show", region)
        assert r.returncode == 4 and f"there is no region {region} of this user" in r.stderr
    finally:
        shutil.rmtree(program.parent)


def test_other_sockets_objects(kvtd, folder):
    """Tenants do not see one another, whoever they are."""
    d = kvtd(config=f'listen_client = {{"vllm {folder}/vllm.sock"}}')
    with d.client() as c:
        assert c.region(1, 1 << 20).status == "OK"
        assert len(rows(d, "region", client=True)) == 1
        d.client_socket = folder / "vllm.sock"
        assert rows(d, "region", client=True) == [] and len(rows(d, "client", client=True)) == 1

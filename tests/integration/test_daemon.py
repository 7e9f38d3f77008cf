# SPDX-License-Identifier: Apache-2.0
"""kvtd as a process: starting, refusing to start, sockets, signals, reload, drain, idling."""
import os
import pathlib
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from conftest import BUILD, wait_until
from wire import SLOW, STATUS, Client, Gone

KVTD = BUILD / "kvtd"
MIB = 1 << 20


def run(*args, **kw):
    """A kvtd that is to end by itself: (status, stdout, stderr)."""
    p = subprocess.run([KVTD, *map(str, args)], capture_output=True, text=True, timeout=30 * SLOW,
                       **kw)
    return p.returncode, p.stdout, p.stderr


def refused(d, status, text):
    """It does not start, says why in one line, leaves what was there."""
    p = subprocess.run(d.args, capture_output=True, text=True, timeout=30 * SLOW)
    errors = [line for line in p.stderr.splitlines() if line.startswith("kvtd: ")]
    assert p.returncode == status, p
    assert len(errors) == 1 and re.search(text, errors[0]), p.stderr
    return p


# ---------------------------------------------------------------- options and config

def test_usage():
    assert run("--version") == (0, "kvtd 0.1.0\n", "")
    code, out, err = run("--help")
    assert code == 0 and not err
    for option in ("-c", "-s", "-a", "-l", "-k", "-n", "-f", "--insecure-loopback", "--check-config",
                   "--help-config", "--version"):
        assert option in out
    for args in (["--nonsense"], ["-x"], ["argument"], ["-c"]):
        code, out, err = run(*args)
        assert code == 2 and err and not out, args
    code, out, err = run("-n", "")
    assert code == 2 and err.startswith("kvtd: --node: must be")
    assert run("-s", "/x", "-a", "/x")[2].startswith("kvtd: --admin-socket: must not be")


def test_help_config_is_a_config(folder):
    code, out, _ = run("--help-config")
    assert code == 0
    (folder / "c").write_text(out)
    assert run("--check-config", folder / "c") == (0, "", "")
    assert "max_hold_max" in out and "limits_key {" in out


@pytest.mark.parametrize("text, error", [
    ("nodes = a\n", ":1: there is no key nodes"),
    ("node = a\nnode = b\n", ":2: node is set twice, first in line 1"),
    ("\nadmin_socket = ${HOME}/x\n", ":2: \"${\" is not expanded"),
    ("peers {\n  keepalive_timeout = 3 parsecs\n}\n", ":2: "),
    ("grants { ttl = 30 }\n", ":1: grants.ttl: "),
    ("log_level = shout\n", ":1: log_level: "),
    ("\ntransport { allow = {carrier-pigeon} }\n", ":2: transport.allow: there is no transport \"carrier-pigeon\""),
    ("listen = {\"10.0.0.1:7588\"}\n", "needs a cluster key"),
    ("insecure_loopback = true\nlisten = {\"10.0.0.1:7588\"}\n", "127.0.0.0/8 and ::1 alone"),
    ("insecure_loopback = true\nlisten = {nonsense}\n", ":2: listen nonsense: not an address"),
    ("node = a\nadvertise = {nosuchif0}\n", ":2: advertise nosuchif0: neither an address"),
    ("peers {\nallow = {\"10.0.0.0/8\", nonsense} }\n", ":2: peers.allow: \"nonsense\""),
    ("node = a /* oops\nlimits { grants = 1 }\n", ":1: a comment begins here"),
    ("grants={ttl=1s}\n", ":1: grants is a section"),
    ("grants { ttl = 2h }\n", ":1: grants.ttl: must not exceed max_hold_max (1 h): it is 2 h"),
    ("peers { allow = {\"10.0.0.0/33\"} }\n", "peers.allow: \"10.0.0.0/33\""),
    ("\nfault = {\"nonsense\"}\n", ":2: fault: there is no fault point \"nonsense\""),
])
def test_bad_config(folder, kvtd, text, error):
    path = folder / "kvtd.conf"
    path.write_text(text)
    code, out, err = run("--check-config", path)
    assert code == 2 and err.startswith(f"kvtd: {path}") and error in err, err
    assert len(err.splitlines()) == 1
    d = kvtd(config=text, listen=False, start=False)
    refused(d, 2, re.escape(error))


def test_missing_config(folder):
    code, _, err = run("-c", folder / "none")
    assert code == 2 and "No such file" in err
    code, _, err = run("--check-config", folder / "none")
    assert code == 2 and "No such file" in err


@pytest.mark.parametrize("args, text", [
    (["-l", "127.0.0.1:0"], "needs a cluster key"),
    (["-l", "192.0.2.1:0", "--insecure-loopback"], "needs a cluster key"),
    (["-l", "0.0.0.0:0", "--insecure-loopback"], "needs a cluster key"),
    (["-l", "nonsense", "--insecure-loopback"], "kvtd: --listen: listen nonsense: not an"),
])
def test_listen_without_trust(kvtd, args, text):
    d = kvtd(*args, listen=False, start=False)
    refused(d, 2, text)
    assert not d.client_socket.exists()


# ---------------------------------------------------------------- sockets

def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_sockets_and_folders(kvtd):
    d = kvtd()
    assert mode(d.client_socket.parent) == 0o755 and mode(d.admin_socket.parent) == 0o700
    assert mode(d.client_socket) == 0o660 and mode(d.admin_socket) == 0o600
    assert d.stop() == 0
    assert os.listdir(d.client_socket.parent) == [] and os.listdir(d.admin_socket.parent) == []


def test_deep_folder_is_made(kvtd, folder):
    path = folder / "a" / "b" / "c" / "kvtd.sock"
    d = kvtd(config=f'listen_client = {{"deep {path}"}}')
    Client(path).close()
    assert d.alive


def test_stale_socket_is_replaced(kvtd):
    d = kvtd()
    d.kill()
    assert d.client_socket.exists() and d.admin_socket.exists()
    d.start()
    d.says("stale")
    d.client().close()


def test_live_daemon_is_not_replaced(kvtd):
    d = kvtd()
    p = subprocess.run([a if a != d.name else "node-x" for a in d.args], capture_output=True,
                       text=True, timeout=30 * SLOW)
    assert p.returncode == 1 and "another kvtd serves this socket" in p.stderr
    d.client().close()
    # the same for somebody who is no kvtd
    path = d.folder / "alien.sock"
    alien = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    alien.bind(str(path))
    alien.listen()
    other = kvtd(config=f'listen_client = {{"x {path}"}}', start=False)
    refused(other, 1, "another process serves this socket")
    alien.close()
    os.unlink(path)
    path.write_text("not a socket")
    refused(other, 1, "exists and is not a socket")
    assert path.read_text() == "not a socket"


def test_two_starts_at_once(kvtd):
    """Of several daemons that find the same stale socket, one serves it."""
    d = kvtd()
    d.kill()
    d.process = None
    logs = [open(d.folder / f"log{i}", "wb") for i in range(4)]
    racers = [subprocess.Popen(d.args, stdout=log, stderr=log) for log in logs]
    try:
        wait_until("all but one have ended",
                   lambda: sum(p.poll() is None for p in racers) == 1)
        time.sleep(0.2)  # that one stays
        alive = [p for p in racers if p.poll() is None]
        assert len(alive) == 1
        assert {p.returncode for p in racers if p not in alive} == {1}
        with Client(d.client_socket) as c:
            assert c.status()["pid"] == alive[0].pid
    finally:
        for p in racers:
            p.kill()
            p.wait()
        for log in logs:
            log.close()


def test_port_in_use(kvtd):
    d = kvtd()
    other = kvtd("-l", d.address, "--insecure-loopback", listen=False, start=False)
    refused(other, 1, f"listen {re.escape(d.address)}: Address already in use")
    assert not other.client_socket.exists()  # nothing is left behind


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_unwritable_folder(kvtd, folder):
    (folder / "locked").mkdir(mode=0o555)
    d = kvtd(config=f'listen_client = {{"x {folder}/locked/x.sock"}}', start=False)
    refused(d, 1, "Permission denied")


def test_folder_that_cannot_be(kvtd, folder):
    (folder / "file").write_text("")
    d = kvtd(config=f'listen_client = {{"x {folder}/file/x.sock"}}', start=False)
    refused(d, 1, "file")
    d = kvtd(config='listen_client = {"x /proc/nowhere/x.sock"}', start=False)
    refused(d, 1, "/proc/nowhere: cannot make the folder")


def test_path_too_long(kvtd, folder):
    d = kvtd("-s", folder / ("x" * 120), start=False)
    refused(d, 2, "--client-socket: must be")


# ---------------------------------------------------------------- systemd

def test_socket_activation(kvtd, folder):
    """Sockets by their names; they are not removed at the end; READY and STOPPING are said."""
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(folder / "notify"))
    notify.settimeout(10 * SLOW)
    paths = [folder / "c.sock", folder / "a.sock", folder / "t.sock"]
    listeners = []
    for p in paths:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.bind(str(p))
        s.listen()
        listeners.append(s)
    peer = socket.create_server(("127.0.0.1", 0))
    stray = socket.create_server(("127.0.0.1", 0))
    listeners += [peer, stray]
    peer_address, stray_address = peer.getsockname(), stray.getsockname()
    address = "127.0.0.1:%d" % peer.getsockname()[1]
    script = ("import os, sys\n"
              "fds = [int(x) for x in sys.argv[1].split(',')]\n"
              "fds = [os.dup2(fd, 100 + i) for i, fd in enumerate(fds)]\n"
              "os.closerange(3, 100)\n"
              "for i, fd in enumerate(fds):\n"
              "    os.dup2(fd, 3 + i, inheritable=True)\n"
              "os.closerange(100, 200)\n"
              "os.environ['LISTEN_PID'] = str(os.getpid())\n"
              "os.execv(sys.argv[2], sys.argv[2:])\n")
    d = kvtd("-l", address, "--insecure-loopback", listen=False, start=False)
    order = [1, 4, 2, 0, 3]  # not by position
    env = dict(os.environ, LISTEN_FDS="5", LISTEN_FDNAMES="admin:peer:client-vllm:client:peer",
               NOTIFY_SOCKET=str(folder / "notify"))
    log = open(d.log_file, "wb")
    d.process = subprocess.Popen(
        [sys.executable, "-c", script, ",".join(str(listeners[i].fileno()) for i in order),
         *d.args], env=env, stdout=log, stderr=log, pass_fds=[s.fileno() for s in listeners])
    log.close()
    try:
        assert notify.recv(1000) == b"READY=1"
        for s in listeners:
            s.close()
        with Client(paths[0]) as c, Client(paths[1]) as a, Client(paths[2]) as t:
            assert not c.status().get("admin") and a.status()["admin"]
            assert t.rows("CLIENT")[0]["tenant"] == "vllm"
            assert c.status()["listen"] == [address]
            assert c.status()["encrypt"] == "no", "there is nothing to do it with"
        assert not d.client_socket.exists()
        d.says("its socket \"peer\" is not used")
        socket.create_connection(peer_address).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(stray_address)
        d.signal(signal.SIGHUP)
        assert notify.recv(1000).startswith(b"RELOADING=1")
        assert notify.recv(1000) == b"READY=1"
        d.signal(signal.SIGTERM)
        assert notify.recv(1000) == b"STOPPING=1"
        assert d.process.wait(10 * SLOW) == 0
        assert all(p.exists() for p in paths)
    finally:
        d.kill()
        d.process = None
        notify.close()


def test_activation_of_another_process_is_ignored(kvtd):
    d = kvtd(start=False)
    os.environ.update(LISTEN_FDS="1", LISTEN_PID="1", LISTEN_FDNAMES="client")
    try:
        d.start()
    finally:
        for k in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
            del os.environ[k]
    d.client().close()


# ---------------------------------------------------------------- signals, drain, reload

def test_sigterm_with_clients(kvtd):
    """Clients are told; what they own is released; Bye is the last word."""
    d = kvtd(config='drain_timeout = "10 s"')
    with d.client() as c:
        assert c.region(1, MIB).status == "OK"
        assert c.cache(1, 1, 16, 4096).status == "OK"
        d.signal(signal.SIGTERM)
        bye = c.wait_end()
        assert bye.status == "SHUTDOWN"
        assert any("draining" in e for e in c.events)
    assert d.process.wait(10 * SLOW) == 0


@pytest.mark.parametrize("second", [False, True])
def test_drain_waits_for_grants(kvtd, second):
    d = kvtd(config=f'drain_timeout = "{30 if second else 1} s"')
    with d.client() as c:
        assert c.region(1, MIB).status == "OK" and c.cache(1, 1, 16, 4096).status == "OK"
        assert c.grant(1, 1, [1, 2]).status == "OK"
        begin = time.monotonic()
        d.signal(signal.SIGTERM)
        assert c.event("draining").on
        assert c.grant(2, 1, [3]).status == "SHUTDOWN"
        assert c.status()["state"] == "draining"
        if second:
            d.signal(signal.SIGTERM)
        e = c.event("grant_ended")
        took = time.monotonic() - begin
        assert STATUS[e["status"]] == "SHUTDOWN", e
        assert took < 5 * SLOW if second else took > 0.9
        assert c.wait_end().status == "SHUTDOWN"
    assert d.process.wait(10 * SLOW) == 0


def test_sigterm_ends_when_grants_have(kvtd):
    d = kvtd(config='drain_timeout = "60 s"')
    with d.client() as c:
        assert c.region(1, MIB).status == "OK" and c.cache(1, 1, 16, 4096).status == "OK"
        assert c.grant(1, 1, [1], ttl_ms=500).status == "OK"
        d.signal(signal.SIGTERM)
        assert STATUS[c.event("grant_ended")["status"]] == "EXPIRED"
        assert c.wait_end().status == "SHUTDOWN"
    assert d.process.wait(20 * SLOW) == 0


def test_drain_and_resume_by_request(kvtd):
    d = kvtd()
    with d.client() as c, d.admin() as a:
        assert c.region(1, MIB).status == "OK" and c.cache(1, 1, 16, 4096).status == "OK"
        assert a.ask("drain").status == "OK"
        e = c.event("draining")
        assert e.on and e.text
        assert c.grant(1, 1, [1]).status == "SHUTDOWN"
        assert a.status()["state"] == "draining" and a.status()["why"]
        with d.client(hello=False) as late:
            assert late.hello().hello["draining"]
        assert a.ask("resume").status == "OK"
        assert not c.event("draining").get("on")
        assert c.grant(1, 1, [1]).status == "OK"
        assert a.status()["state"] == "running"
        assert a.ask("resume").status == "OK"
        d.signal(signal.SIGTERM)
        wait_until("it is draining", lambda: a.status()["state"] == "draining")
        assert a.ask("resume").status == "SHUTDOWN"
        assert c.ask("grant_revoke", grant=1).status == "OK"
        assert c.wait_end().status == "SHUTDOWN"
    assert d.process.wait(10 * SLOW) == 0


def test_out_of_fds(daemon):
    """No fd left to accept with: it neither spins nor dies, and goes on when there are some."""
    room = daemon.fds()["all"] + 12
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (room, 4096))
    with daemon.client(hello=False) as c:  # the last are kept for administrators
        assert "RLIMIT_NOFILE" in c.wait_end()["text"]
    clients = []
    for _ in range(30):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(str(daemon.admin_socket))
        clients.append(s)
    wait_until("it is out of fds", lambda: "cannot accept" in daemon.log())
    before = proc_time(daemon.pid)
    time.sleep(1)  # the time is what is measured
    assert proc_time(daemon.pid) - before < 0.3
    for s in clients:
        s.close()
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    daemon.client().close()


def proc_time(pid):
    """CPU seconds used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_client_in_a_pid_namespace(daemon):
    """Its own idea of its pid is another than the daemon's; its death is seen all the same."""
    here = os.path.dirname(os.path.abspath(__file__))
    script = ("import os, sys, time\n"
              "sys.path.insert(0, sys.argv[1])\n"
              "from wire import Client\n"
              "assert os.getpid() < 10\n"
              "c = Client(sys.argv[2])\n"
              "assert c.region(1, 1 << 20).status == 'OK'\n"
              "print('ready', flush=True)\n"
              "time.sleep(600)\n")
    p = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c",
                          script, here, str(daemon.client_socket)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    try:
        if p.stdout.readline() != "ready\n":
            error = p.stderr.read()
            if "unshare" in error:
                pytest.skip(error.strip())
            pytest.fail(error)
        row, = daemon.rows("CLIENT")
        assert row["pid"] > 10 and row["regions"] == 1
    finally:
        p.kill()
        p.communicate()
    daemon.wait_idle()


def test_reload(kvtd):
    d = kvtd(config="log_level = info\nlimits { regions = 1 }\n")
    with d.admin() as a, d.client() as c:
        r = a.ask("reload")
        assert r.status == "OK" and not r.get("reload", {}).get("changed")
        d.config_file.write_text("log_level = debug\nlimits { regions = 2 }\ncluster = other\n")
        r = a.ask("reload")
        assert r.reload["changed"] == ["log_level", "limits.regions"]
        assert r.reload["needs_restart"] == ["cluster"]
        assert c.region(1, 4096).status == "OK" and c.region(2, 4096).status == "OK"
        assert a.status()["cluster"] == "default"
        # options of the command line stay: the node id is no change
        d.config_file.write_text("node = elsewhere\nlimits { regions = 2 }\n")
        assert "needs_restart" not in a.ask("reload").reload
        for bad in ("limits { regions = 3 }\nnonsense = 1\n",
                    "limits { regions = 3 }\ntransport { allow = {pigeon} }\n",
                    "limits { regions = 3 }\nfault = {pigeon}\n"):
            d.config_file.write_text(bad)
            r = a.ask("reload")
            assert r.status in ("INVALID", "POLICY") and r.text, bad
            assert c.region(3, 4096).status == "QUOTA"
        d.config_file.unlink()
        assert a.ask("reload").status == "NOT_FOUND"
        assert d.alive


def test_config_folder(kvtd):
    """FILE.d/*.conf goes over FILE: at the start, in the check, at a reload, and it is said."""
    d = kvtd(config="limits { regions = 1 }\n", start=False)
    more = d.folder / "kvtd.conf.d"
    more.mkdir()
    (more / "20.conf").write_text("limits { regions = 3 }\n")
    (more / "10.conf").write_text("limits { regions = 2 }\n")
    files = [str(f) for f in (d.config_file, more / "10.conf", more / "20.conf")]
    assert run("--check-config", d.config_file) == (0, "".join(f + "\n" for f in files), "")
    d.start()
    assert [f for f in files if f"config: read {f}" in d.log()] == files
    ctl = subprocess.run([BUILD / "kvtctl", "-a", d.admin_socket, "status"], capture_output=True,
                         text=True, timeout=30)
    assert all(f in ctl.stdout for f in files), ctl
    with d.admin() as a, d.client() as c:
        s = a.status()
        assert (s["config"], s["config_files"]) == (files[0], files)
        for i in range(1, 4):
            assert c.region(i, 4096).status == "OK"
        assert c.region(4, 4096).status == "QUOTA"
        (more / "30.conf").write_text("limits { regions = 4 }\n")
        assert a.ask("reload").reload["changed"] == ["limits.regions"]
        assert a.status()["config_files"] == [*files, str(more / "30.conf")]
        assert c.region(4, 4096).status == "OK"
        (more / "10.conf").write_text("\nlimits { rejoins = 2 }\n")
        bad = a.ask("reload")
        assert bad.status == "INVALID" and f"{more / '10.conf'}:2: " in bad.text, bad
        assert run("--check-config", d.config_file)[2] == f"kvtd: {bad.text}\n"
        (more / "10.conf").unlink()
        (more / "10.conf").symlink_to("/nonexistent")
        assert a.ask("reload").status == "NOT_FOUND"
        (more / "10.conf").unlink()
        d.config_file.unlink()
        assert a.ask("reload").status == "OK"
        s = a.status()
        assert (s.get("config", ""), s["config_files"]) == ("", [files[2], str(more / "30.conf")])


def test_sighup(kvtd):
    d = kvtd(config="limits { regions = 1 }\n")
    with d.client() as c:
        assert c.region(1, 4096).status == "OK" and c.region(2, 4096).status == "QUOTA"
        d.config_file.write_text("limits { regions = 2 }\n")
        d.signal(signal.SIGHUP)
        wait_until("it is reloaded", lambda: "config: reloaded" in d.log())
        assert c.region(2, 4096).status == "OK"
        d.config_file.write_text("limits { regions = \n")
        d.signal(signal.SIGHUP)
        wait_until("it is refused", lambda: "config: not reloaded" in d.log())
        d.says(f"{d.config_file}:")


# ---------------------------------------------------------------- at rest, and short of memory

def proc_field(pid, name):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+)", text, re.M).group(1))


@pytest.mark.skipif("KVT_SANITIZE" in os.environ, reason="sanitizers use memory of their own")
def test_idle(kvtd):
    """Little memory, and no wake-up at all without peers."""
    d = kvtd()
    with d.client() as c:
        assert c.region(1, MIB).status == "OK"
        s = c.status()
        assert s["rss_anon_bytes"] < 4 * MIB
        assert s["pid"] == d.pid and s["fds"] > 0

        def switches():
            return sum(proc_field(f"{d.pid}/task/{t}", "voluntary_ctxt_switches")
                       for t in os.listdir(f"/proc/{d.pid}/task"))
        before = switches()
        time.sleep(3)  # the time is what is measured
        assert switches() - before <= 1
    assert proc_field(d.pid, "RssAnon") < 4096


def test_every_fd_is_cloexec(daemon):
    with daemon.client() as c:
        assert c.region(1, MIB).status == "OK"
        for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
            if int(fd) < 3:
                continue
            info = pathlib.Path(f"/proc/{daemon.pid}/fdinfo/{fd}").read_text()
            flags = int(re.search(r"flags:\s+(\d+)", info).group(1), 8)
            assert flags & os.O_CLOEXEC, (fd, os.readlink(f"/proc/{daemon.pid}/fd/{fd}"))


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 7, 11])
def test_allocations_fail(kvtd, nth):
    """Every request may fail for want of memory; none takes the daemon or anything else along."""
    d = kvtd()
    ends = {"OK", "NO_MEMORY", "NOT_FOUND", "INVALID"}  # INVALID: that token
    with d.client() as old, d.admin() as admin:
        assert old.region(1, MIB).status == "OK" and old.cache(1, 1, 16, 4096).status == "OK"
        assert old.grant(1, 1, [1, 2], ttl_ms=60000).status == "OK"
        d.config_file.write_text(f'fault = {{"alloc-fail={nth}"}}')
        assert admin.ask("reload").status == "OK"
        seen = set()
        for i in range(30):
            c = d.client(hello=False)
            try:
                # not the same number of allocations each time, so that each has its turn
                for _ in range(i % 5):
                    d.client(hello=False).close()
                seen.add(c.hello().status)
                seen.add(c.region(1, MIB).status)
                seen.add(c.cache(1, 1, 16, 4096).status)
                seen.add(c.grant(1, 1, [1, 2, 3]).status)
                c.transfer(1, "OP_PULL", "kvt1.nonsense", rid=99)
                while not c.replies.get(99) and not c.events:
                    assert c.receive(time.monotonic() + c.timeout)
                end = c.replies[99][0] if c.replies.get(99) else c.events[0]["transfer_ended"]
                seen.add(STATUS[end["status"]])
            except (Gone, ConnectionError) as e:
                seen.add(e.bye.status if isinstance(e, Gone) and e.bye else "NO_MEMORY")
            c.close()
        assert "NO_MEMORY" in seen and seen <= ends, seen
        d.config_file.write_text("")
        assert admin.ask("reload").status == "OK"
        assert old.ask("grant_extend", grant=1).status == "OK"
        assert old.ask("grant_revoke", grant=1).status == "OK"
        assert STATUS[old.event("grant_ended")["status"]] == "REVOKED"
        assert old.ask("region_release", region=1).status == "OK"

# SPDX-License-Identifier: Apache-2.0
"""kvtbench: tiny runs that verify every byte, what it prints, and what it refuses."""
import glob
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from wire import SLOW

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
SMALL = ["--block", "4KiB", "--blocks", "64", "--planes", "3"]

KEYS = ("gbytes_per_s baseline_gbytes_per_s ratio ratio_min ratio_max p50_us p99_us p999_us pieces "
        "pieces_coalesced request_bytes daemon_rss_bytes cpu_s_per_gb path verified runs op via "
        "shape fragmented clients inflight threads streams baseline openssl_to_tcp key encrypt "
        "encryption baseline_cpu_s_per_gb").split()


def kvtbench(*args, timeout=60):
    return subprocess.run([BUILD / "kvtbench", *args], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=timeout * SLOW)


def bench(*args):
    r = kvtbench("--spawn", "--seconds", "0.2", "--verify", "--json", *args)
    assert r.returncode == 0, r.stderr
    data = json.loads(r.stdout)
    assert sorted(data) == sorted(KEYS)
    assert data["verified"] is True and data["runs"] >= 3
    for key in ("clients", "inflight", "threads", "streams"):
        asked = args[args.index(f"--{key}") + 1] if f"--{key}" in args else None
        assert data[key] == int(asked) if asked else data[key] >= 1, key
    assert 0 < data["ratio_min"] <= data["ratio"] <= data["ratio_max"]
    assert 0 < data["p50_us"] <= data["p99_us"] <= data["p999_us"]
    assert data["gbytes_per_s"] > 0 and data["baseline_gbytes_per_s"] > 0
    assert data["cpu_s_per_gb"] > 0 and data["baseline_cpu_s_per_gb"] > 0
    assert data["daemon_rss_bytes"] > 0 and data["request_bytes"] > 0
    encrypt = "--encrypt" in args
    assert (data["encrypt"], data["key"]) == (encrypt, encrypt or "--key" in args)
    assert data["baseline"] == "openssl" if encrypt else data["baseline"] in ("memcpy", "tcp")
    assert data["openssl_to_tcp"] > 0 if encrypt else data["openssl_to_tcp"] is None
    assert data["encryption"] in (("tls", "ktls") if encrypt else ("none", ""))
    return data


@pytest.fixture(autouse=True)
def nothing_left(folder, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert not glob.glob(f"{folder}/kvtbench.*")


@pytest.mark.parametrize("fragmented", [False, True], ids=["coalesced", "fragmented"])
@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("via", ["local", "tcp"])
def test_small(via, op, fragmented):
    data = bench("--via", via, "--op", op, *SMALL, *(["--fragmented"] if fragmented else []))
    assert (data["via"], data["op"], data["path"]) == (via, op, via)
    assert data["fragmented"] is fragmented and data["shape"] == "3x64x4096"
    assert data["pieces"] == 192
    if fragmented:
        assert 3 < data["pieces_coalesced"] <= 192
    else:
        assert data["pieces_coalesced"] == 3


@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("via", ["local", "tcp"])
def test_many_at_once(via, op):
    bench("--via", via, "--op", op, *SMALL, "--fragmented", "--inflight", "4", "--clients", "3")


@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("via", ["local", "tcp"])
def test_slices(via, op):
    data = bench("--via", via, "--op", op, "--shape", "hetero-70b:40", "--fragmented")
    assert data["shape"] == "hetero-70b:40" and data["pieces"] == 160 * 3 * 16


@pytest.mark.parametrize("via", ["local", "tcp"])
def test_odd_sizes(via):
    bench("--via", via, "--block", "1", "--blocks", "1")
    bench("--via", via, "--block", "1155", "--blocks", "33", "--planes", "2", "--fragmented")


@pytest.mark.parametrize("how", ["--key", "--encrypt"])
@pytest.mark.parametrize("op", ["pull", "push"])
def test_with_a_key(op, how):
    data = bench("--via", "tcp", how, "--op", op, *SMALL, "--fragmented")
    assert (data["path"], data["op"], data["fragmented"]) == ("tcp", op, True)


def test_encrypted_at_once():
    bench("--via", "tcp", "--encrypt", *SMALL, "--inflight", "4", "--clients", "3",
          "--threads", "2", "--streams", "3")
    bench("--via", "tcp", "--encrypt", "--block", "1155", "--blocks", "33", "--planes", "2")


def test_the_key_is_private(folder):
    """What a spawned daemon is given: a key that only its user can read, and the asked encryption."""
    seen = folder / "seen"
    program = folder / "kvtd"
    program.write_text(f"""#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in -c) conf="$2";; *insecure*) echo insecure >>"{seen}";; esac; shift; done
cat "$conf" >>"{seen}"
stat -c 'mode %a' "$(dirname "$conf")" "$(dirname "$conf")/cluster.key" >>"{seen}"
cat "$(dirname "$conf")/cluster.key" >>"{seen}"
exit 1
""")
    program.chmod(0o755)
    keys = set()
    for how, encrypt in (("--key", "no"), ("--encrypt", "yes")):
        kvtbench("--spawn", "--via", "tcp", how, *SMALL, "--kvtd", str(program))
        text = seen.read_text()
        seen.unlink()
        assert f"encrypt = {encrypt}\n" in text and "insecure" not in text
        assert re.findall(r"^mode (\d+)$", text, re.M) == ["700", "600"]
        keys.add(re.search(r"^[0-9a-f]{64}$", text, re.M)[0])
    assert len(keys) == 2


def test_not_encrypted(folder):
    """Daemons that do not do what was asked for are not measured."""
    program = folder / "kvtd"
    program.write_text(f"""#!/bin/sh
prev=
for a; do [ "$prev" = -c ] && sed -i 's/encrypt = yes/encrypt = no/' "$a"; prev="$a"; done
exec "{BUILD}/kvtd" "$@"
""")
    program.chmod(0o755)
    r = kvtbench("--spawn", "--via", "tcp", "--encrypt", *SMALL, "--kvtd", str(program))
    assert r.returncode == 1 and "encryption of their bytes is 'none'" in r.stderr


def test_for_people():
    r = kvtbench("--spawn", "--via", "local", *SMALL, "--seconds", "0.1", "--streams", "2")
    assert r.returncode == 0 and r.stderr == ""
    assert re.search(r"rate +[\d.]+ [kMG]?B/s over local", r.stdout)
    assert re.search(r"baseline +[\d.]+ [MG]B/s by memcpy", r.stdout)
    assert re.search(r"ratio +[\d.]+, [\d.]+ to [\d.]+ in 5 runs", r.stdout)
    assert "not verified" in r.stdout
    r = kvtbench("--spawn", "--via", "tcp", "--encrypt", *SMALL, "--seconds", "0.1")
    assert r.returncode == 0 and r.stderr == ""
    assert re.search(r"rate .* over tcp, encrypted;", r.stdout)
    assert re.search(r"baseline .* by OpenSSL over loopback, 4 streams\n"
                     r" +that is [\d.]+ of raw TCP; \d threads? at each end, [\d.]+ CPU s per GB",
                     r.stdout)


@pytest.mark.parametrize("args", [
    [], ["--via", "local"], ["--via", "rdma", *SMALL], ["--via", "local", "--shape", "llama9"],
    ["--via", "local", "--shape", "llama3-8b", "--block", "4KiB"], ["--via", "local", *SMALL, "x"],
    ["--via", "local", *SMALL, "--inflight", "0"], ["--via", "local", *SMALL, "--seconds", "nan"],
    ["--via", "tcp", *SMALL], ["--via", "local", *SMALL, "--spawn", "--socket", "/x"],
    ["--via", "local", "--encrypt", "--spawn", *SMALL], ["--via", "local", "--key", "--spawn", *SMALL],
    ["--via", "tcp", "--key", "--socket", "/x", "--far-socket", "/y", *SMALL],
    ["--via", "local", "--block", "4GiB", "--blocks", "60000000", "--planes", "4096"],
    ["--frob"]], ids=" ".join)
def test_usage(args):
    r = kvtbench(*args)
    assert r.returncode == 2 and r.stdout == "" and r.stderr


def test_no_daemon(tmp_path):
    r = kvtbench("--via", "local", *SMALL, "--socket", str(tmp_path / "none"))
    assert r.returncode == 1 and str(tmp_path / "none") in r.stderr
    r = kvtbench("--spawn", "--via", "local", *SMALL, "--kvtd", str(tmp_path / "none"))
    assert r.returncode == 1 and "exit status 127" in r.stderr
    r = kvtbench("--spawn", "--via", "local", *SMALL, "--kvtd", "/bin/false")
    assert r.returncode == 1 and "exit status 1" in r.stderr


def test_daemon_that_ends_badly(folder):
    program = folder / "kvtd"
    program.write_text(f'#!/bin/sh\n"{BUILD}/kvtd" "$@" &\ntrap "kill $!; wait $!; exit 3" TERM\n'
                       'wait\n')
    program.chmod(0o755)
    r = kvtbench("--spawn", "--via", "local", *SMALL, "--seconds", "0.1", "--kvtd", str(program))
    assert r.returncode == 1 and "ended badly: exit status 3" in r.stderr


def test_other_path_than_asked_for(daemon, folder):
    """Two names of one daemon: the bytes do not go over tcp."""
    (folder / "far").symlink_to(daemon.client_socket)
    r = kvtbench("--via", "tcp", *SMALL, "--socket", str(daemon.client_socket), "--far-socket",
                 str(folder / "far"))
    assert r.returncode == 1 and "went over 'local', not over tcp" in r.stderr


def test_too_much_memory():
    r = kvtbench("--spawn", "--via", "local", "--block", "1GiB", "--blocks", "1024")
    assert r.returncode == 1 and "memory are free" in r.stderr


def transfers_ok(admin):
    r = subprocess.run([BUILD / "kvtctl", "-a", admin, "status", "--json"], capture_output=True,
                       text=True, timeout=60)
    return r.returncode == 0 and json.loads(r.stdout)["status"]["transfers_ok"]


@pytest.mark.parametrize("busy", [False, True], ids=["starting", "busy"])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_interrupted(sig, busy, folder):
    with subprocess.Popen([BUILD / "kvtbench", "--spawn", "--via", "tcp", "--seconds", "600",
                           *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        try:
            while p.poll() is None:
                new = glob.glob(f"{folder}/kvtbench.*")
                if new and (not busy or transfers_ok(new.pop() + "/bench-b.admin")):
                    break
            p.send_signal(sig)
            _, err = p.communicate(timeout=30 * SLOW)
        finally:
            p.kill()
    assert p.returncode == 1 and b"interrupted" in err


def test_help_and_man_page_agree():
    page = (SOURCE / "man/kvtbench.1").read_text()
    text = kvtbench("--help").stdout
    for option in re.findall(r"^  --([a-z-]+)", text, re.M):
        assert f"Fl -{option}" in page, option
    for name, planes, tokens, size in re.findall(
            r"^  (\S+) +(\d+) planes, +(\d+) tokens in +(\d+) bytes", text, re.M):
        row = re.search(rf"^\.It {name} Ta (\d+) Ta (\d+) Ta (?:\d+ to )?(\d+)$", page, re.M)
        assert row and row.groups() == (planes, tokens, size), name
    for key in KEYS:
        assert re.search(rf"^\.It .*\b{key}\b", page, re.M), key

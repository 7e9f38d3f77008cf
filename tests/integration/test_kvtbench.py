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

pytestmark = pytest.mark.plain

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
SMALL = ["--block", "4KiB", "--blocks", "64", "--planes", "3"]

KEYS = ("""
    gbytes_per_s path baseline_gbytes_per_s grants_per_s baseline_grants_per_s baseline
    socket_messages_per_s openssl_to_tcp ratio ratio_min ratio_max p50_us p90_us p99_us p999_us max_us
    latencies transfers runs p50_ratio p50_ratio_min p50_ratio_max baseline_p50_us share_min priority_ratio
    submit_us request_bytes pieces pieces_coalesced requests_cut cpu_s_per_gb_each cpu_s_per_gb
    baseline_cpu_s_per_gb daemon_rss_bytes encryption verified via op mode shape beside trace compare
    transport compare_transport extents_per_s extent_pairs_per_s     fragmented key encrypt priority layers clients inflight inflight_each threads streams""").split()


def kvtbench(*args, timeout=60):
    return subprocess.run([BUILD / "kvtbench", *args], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=timeout * SLOW)


def run(*args):
    """A run of private daemons: what it measured, null left out; all keys are there."""
    r = kvtbench("--spawn", "--seconds", "0.2", "--json", *args)
    assert r.returncode == 0, r.stderr
    data = json.loads(r.stdout)
    assert sorted(data) == sorted(KEYS)
    for key in ("clients", "inflight", "threads", "streams"):
        asked = args[args.index(f"--{key}") + 1] if f"--{key}" in args else None
        assert data[key] == int(asked) if asked and asked.isdigit() else data[key] >= 1, key
    assert 0 < data["p50_us"] <= data["p90_us"] <= data["p99_us"] <= data["p999_us"] <= data["max_us"]
    assert data["runs"] >= 7 or data["mode"] == "trace"
    assert data["daemon_rss_bytes"] > 0 and data["request_bytes"] > 0 and data["submit_us"] > 0
    assert data["latencies"] == data["transfers"] > 0, "latencies are of all runs"
    assert len(data["cpu_s_per_gb_each"]) == (2 if data["via"] == "tcp" else 1)
    return {key: value for key, value in data.items() if value is not None}


def ordered(data, key):
    assert 0 < data[f"{key}_min"] <= data[key] <= data[f"{key}_max"]


def bench(*args):
    data = run("--verify", *args)
    assert data["verified"] is True and data["mode"] == "transfers"
    ordered(data, "ratio")
    assert data["gbytes_per_s"] > 0 and data["baseline_gbytes_per_s"] > 0
    assert data["cpu_s_per_gb"] > 0 and data["baseline_cpu_s_per_gb"] > 0
    encrypt = "--encrypt" in args
    assert (data["encrypt"], data["key"]) == (encrypt, encrypt or "--key" in args)
    assert data["baseline"] == "openssl" if encrypt else data["baseline"] not in ("openssl", "")
    assert data["openssl_to_tcp"] > 0 if encrypt else "openssl_to_tcp" not in data
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
    data = bench("--via", via, "--op", op, *SMALL, "--fragmented", "--inflight", "4", "--clients", "3")
    assert data["inflight_each"] == [4, 4, 4] and "p50_ratio" not in data
    assert 0 <= data.get("share_min", 0) <= 1 / 3


@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("via", ["local", "tcp"])
def test_round_trips(via, op):
    """A transfer at a time is compared with a round trip, too."""
    data = bench("--via", via, "--op", op, "--block", "64KiB", "--blocks", "1")
    ordered(data, "p50_ratio")
    assert 0 < data["baseline_p50_us"] and "share_min" not in data
    assert "p50_ratio" not in bench("--via", via, "--op", op, "--block", "1MiB", "--blocks", "5")


@pytest.mark.parametrize("via", ["local", "tcp"])
def test_grants(via):
    data = run("--op", "grant", *(["--via", via] if via != "tcp" else []))
    assert (data["mode"], data["op"], data["via"], data["baseline"]) == (
        "grants", "grant", via, "messages")
    ordered(data, "ratio")
    assert data["grants_per_s"] > 0 and data["pieces"] == 0 and data["inflight"] == 16
    assert data["socket_messages_per_s"] > data["baseline_grants_per_s"] > 0
    assert "gbytes_per_s" not in data and "verified" not in data
    run("--op", "grant", "--via", via, "--clients", "3", "--inflight", "2", *SMALL)


def test_extents():
    """No daemons and no memory: each piece of it once, neighbours together."""
    for args, pieces, spans in (["--shape", "mla-page1"], 499712, 61), (
            ["--shape", "mla-page1", "--fragmented"], 499712, 400000), (
                ["--shape", "hetero-70b:2048"], 327680, 327680):
        r = kvtbench("--op", "extents", "--json", "--seconds", "0.1", *args)
        assert r.returncode == 0, r.stderr
        data = json.loads(r.stdout)
        assert sorted(data) == sorted(KEYS) and data["mode"] == data["op"] == "extents"
        assert data["extents_per_s"] > 0 and data["extent_pairs_per_s"] > 0
        assert data["pieces"] == pieces and spans <= data["pieces_coalesced"] <= pieces
        assert data["ratio"] is data["p50_us"] is data["via"] is None
    r = kvtbench("--op", "extents", "--seconds", "0.1", "--shape", "llama3-8b")
    assert re.search(r"extents +\d+ per second, \d+ of both sides", r.stdout)


@pytest.mark.parametrize("op", [[], ["--op", "pull"]], ids=["push", "pull"])
@pytest.mark.parametrize("via", ["local", "tcp"])
def test_layers(via, op):
    data = run("--via", via, "--layers", "3", *SMALL, "--verify", "--inflight", "2", *op)
    assert (data["mode"], data["layers"], data["baseline"]) == ("layers", 3, "whole")
    assert data["op"] == (op or ["", "push"])[1] and data["verified"] is True
    assert data["pieces"] == 192 and data["pieces_coalesced"] == 3
    ordered(data, "ratio")
    ordered(data, "p50_ratio")


@pytest.mark.parametrize("via", ["local", "tcp"])
def test_shares(via):
    data = run("--via", via, "--clients", "2", "--inflight", "1,4", *SMALL, "--verify")
    assert data["mode"] == "shares" and data["verified"] is True and "ratio" not in data
    assert data["inflight_each"] == [1, 4] and data["inflight"] == 4
    assert 0 <= data.get("share_min", 0) <= 0.5


@pytest.mark.parametrize("via", ["local", "tcp"])
def test_priority(via):
    data = run("--via", via, "--priority", "--inflight", "2,1", *SMALL, "--verify")
    assert data["mode"] == "priority" and data["verified"] is True and "ratio" not in data
    assert data["priority"] is True and data["clients"] == 2 and data["inflight_each"] == [2, 1]
    assert data.get("priority_ratio", 1) > 0


@pytest.mark.parametrize("via", ["local", "tcp"])
def test_beside(via):
    data = run("--via", via, "--beside", "llama3-70b-tp8:64", "--block", "64KiB", "--blocks", "1",
               "--inflight", "1,3", "--verify")
    assert (data["mode"], data["baseline"], data["beside"]) == ("beside", "alone", "llama3-70b-tp8:64")
    assert data["inflight_each"] == [1, 3] and data["clients"] == 1 and data["verified"] is True
    ordered(data, "p50_ratio")
    assert data["baseline_p50_us"] > 0 and data["pieces"] == 1


TRACE = ["--shape", "llama3-70b-tp8:64", "--inflight", "2", "--verify"]


@pytest.mark.parametrize("via", ["local", "tcp"])
def test_trace(via, folder):
    """Each request once, when it is due, with the blocks that are not there already."""
    trace = folder / "trace"
    trace.write_text("# a comment\n0 16\n0.01 64 32 # two of four blocks\n\n0.02 64 63\n"
                     "0.03 1000 0\n900 1\n")
    data = run("--via", via, *TRACE, "--trace", str(trace))
    assert (data["mode"], data["trace"], data["transfers"]) == ("trace", str(trace), 4)
    assert data["requests_cut"] == 1 and data["pieces"] in (80, 160, 320)
    assert data["verified"] is True and "ratio" not in data and "baseline" not in data
    data = run("--via", via, *TRACE, "--trace", str(trace), "--speed", "10000")
    assert data["transfers"] == 5
    data = run("--via", via, *TRACE, "--trace", "builtin:7", "--speed", "100")
    assert 20 < data["transfers"] < 150


@pytest.mark.parametrize("text", ["x 1", "1", "1 0", "1 2 3", "1 2 1 1", "2 1\n1 1", "-1 5", "1 nan",
                                  "", "# nothing"])
def test_bad_traces(text, folder):
    trace = folder / "trace"
    trace.write_text(text)
    r = kvtbench("--spawn", "--via", "local", *TRACE, "--trace", str(trace))
    assert r.returncode == 1 and str(trace) in r.stderr and r.stdout == ""


def test_compare():
    """With the daemons of the same build."""
    data = run("--via", "tcp", *SMALL, "--verify", "--compare", str(BUILD))
    assert (data["mode"], data["baseline"], data["compare"]) == ("compare", "compare", str(BUILD))
    ordered(data, "ratio")
    ordered(data, "p50_ratio")
    data = run("--op", "grant", "--compare", str(BUILD))
    assert data["op"] == "grant" and data["grants_per_s"] > 0 and data["baseline_grants_per_s"] > 0
    data = run("--via", "local", *SMALL, "--transport", "spin = 1ms\ntcp_threads = 1",
               "--compare-transport", "spin = 0s")
    assert (data["mode"], data["compare_transport"]) == ("compare", "spin = 0s")
    r = kvtbench("--spawn", "--via", "local", *SMALL, "--compare-transport", "spin = 7")
    assert r.returncode == 1 and "spin" in r.stderr
    r = kvtbench("--spawn", "--via", "local", *SMALL, "--compare", "/nonexistent")
    assert r.returncode == 1 and "exit status 127" in r.stderr


@pytest.mark.parametrize("via", ["local", "tcp"])
def test_daemons_that_run(via, two_daemons):
    """As a user does it, with the daemons of a machine."""
    near, far = two_daemons
    sockets = ["--socket", str(near.client_socket)]
    if via == "tcp":
        sockets += ["--far-socket", str(far.client_socket)]
    for args in (SMALL, ["--op", "grant"], ["--layers", "3", *SMALL]):
        r = kvtbench("--via", via, *sockets, "--seconds", "0.1", "--json", *args)
        assert r.returncode == 0, r.stderr
        assert len(json.loads(r.stdout)["cpu_s_per_gb_each"]) == (2 if via == "tcp" else 1)


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
    assert re.search(r"pull of 3x64x4096, coalesced: 3 planes x 64 blocks, 768 KiB; "
                     r"1 client, 1 in flight", r.stdout)
    assert re.search(r"rate +[\d.]+ [kMG]?B/s over local", r.stdout)
    assert re.search(r"baseline +[\d.]+ [MG]B/s by \w+", r.stdout)
    assert re.search(r"ratio +[\d.]+ \([\d.]+ to [\d.]+\)", r.stdout)
    assert re.search(r"p50 +[\d.]+ \([\d.]+ to [\d.]+\) times that of the baseline, ", r.stdout)
    assert "not verified" in r.stdout
    r = kvtbench("--spawn", "--via", "tcp", "--encrypt", *SMALL, "--seconds", "0.1")
    assert r.returncode == 0 and r.stderr == ""
    assert re.search(r"rate .* over tcp", r.stdout) and ", encrypted\n" in r.stdout
    assert re.search(r"baseline .* by openssl, [\d.]+ of raw TCP", r.stdout)
    r = kvtbench("--spawn", "--op", "grant", "--seconds", "0.1")
    assert r.returncode == 0 and r.stderr == ""
    assert re.search(r"grants +\d+ per second\n +baseline +\d+ per second by messages, "
                     r"\d+ messages per second", r.stdout)


@pytest.mark.parametrize("args", [
    [], ["--via", "local"], ["--via", "rdma", *SMALL], ["--via", "local", "--shape", "llama9"],
    ["--via", "local", "--shape", "llama3-8b", "--block", "4KiB"], ["--via", "local", *SMALL, "x"],
    ["--via", "local", *SMALL, "--inflight", "0"], ["--via", "local", *SMALL, "--seconds", "nan"],
    ["--via", "tcp", *SMALL], ["--via", "local", *SMALL, "--spawn", "--socket", "/x"],
    ["--via", "local", "--encrypt", "--spawn", *SMALL], ["--via", "local", "--key", "--spawn", *SMALL],
    ["--via", "tcp", "--key", "--socket", "/x", "--far-socket", "/y", *SMALL],
    ["--via", "local", "--block", "4GiB", "--blocks", "60000000", "--planes", "4096"],
    ["--via", "local", *SMALL, "--inflight", "1,2"], ["--via", "local", *SMALL, "--inflight", "1,"],
    ["--via", "local", *SMALL, "--inflight", "1025"], ["--via", "local", *SMALL, "--inflight", ""],
    ["--via", "local", *SMALL, "--layers", "2"], ["--via", "local", *SMALL, "--layers", "0"],
    ["--via", "local", *SMALL, "--priority", "--clients", "3"], ["--op", "grant", "--verify"], ["--op", "extents"],
    ["--op", "extents", *SMALL, "--trace", "builtin"], ["--op", "extents", *SMALL, "--verify"],
    ["--op", "grant", "--layers", "1"], ["--op", "grants"], ["--op", "grant", "--blocks", "4"],
    ["--via", "local", *SMALL, "--beside", "llama9"],
    ["--via", "local", *SMALL, "--beside", "llama3-8b", "--trace", "builtin"],
    ["--via", "local", *SMALL, "--trace", "builtin", "--clients", "2"],
    ["--via", "local", *SMALL, "--trace", "builtin", "--speed", "0"],
    ["--via", "local", *SMALL, "--compare", "/tmp"],
    ["--via", "local", *SMALL, "--transport", "spin = 0s"], ["--via", "local", *SMALL, "--clients", "256"],
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

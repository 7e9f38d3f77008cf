# SPDX-License-Identifier: Apache-2.0
"""scripts/demo: what it shows, and that it leaves nothing behind, also when interrupted."""
import os
import pathlib
import re
import signal
import subprocess

import pytest

from netns import why_not
from wire import SLOW

pytestmark = pytest.mark.plain

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
DEMO = pathlib.Path(__file__).resolve().parents[2] / "scripts/demo"


def start(folder, *args):
    return subprocess.Popen(
        [DEMO, "--build", BUILD, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={**os.environ, "TMPDIR": str(folder)})


def processes_of(folder):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(str(folder)) in line:
            found.append((entry.name, line))
    return found


def assert_clean(folder):
    assert processes_of(folder) == [] and list(folder.iterdir()) == []


@pytest.mark.parametrize("args", [[], ["--push"], ["--same-node"], ["--push", "--same-node"]],
                         ids=lambda a: " ".join(a) or "pull")
def test_demo(tmp_path, args):
    with start(tmp_path, "--tokens", "200", *args) as p:
        out, _ = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 0, out
    path = "local" if "--same-node" in args else "tcp"
    size = 13 * 32 * 65536
    assert re.search(rf"^moved 26.0 MiB in [\d.]+ s: [\d.]+ GB/s over {path}$", out, re.M), out
    assert re.search(rf"^decode: {size} bytes are right, and so are \d+ guard bytes$", out, re.M)
    assert "prefill: DONE" in out and "decode: DONE" in out
    assert "  26 of 26 MiB\n" in out and "\r" not in out
    assert len(re.findall(r"^kvtd \S+: running$", out, re.M)) == (1 if path == "local" else 2)
    assert_clean(tmp_path)


def test_two_hosts(tmp_path):
    if os.geteuid() != 0 or why_not():
        pytest.skip(why_not() or "scripts/demo --two-hosts needs root")
    with start(tmp_path, "--tokens", "200", "--two-hosts") as p:
        out, _ = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 0, out
    assert "node-a at 10.77.0.1:7588, node-b at 10.77.0.2:7588" in out
    assert "bytes are right" in out and "prefill: DONE" in out and "decode: DONE" in out
    key, = re.findall(r"^.*/cluster.key: key ([0-9a-f]{16})$", out, re.M)
    assert out.count(f"  trust       key {key}\n") == 2
    rows = re.findall(r"^(node-.) up +(\S+):\d+ +(key \S+) +(\S+)$", out, re.M)
    assert [r[:3] for r in rows] == [("node-b", "10.77.0.2", f"key {key}"),
                                     ("node-a", "10.77.0.1", f"key {key}")], out
    assert {r[3] for r in rows} <= {"tls", "ktls"}
    assert_clean(tmp_path)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
                         ids=lambda s: s.name)
@pytest.mark.parametrize("args", [[], ["--two-hosts"]], ids=["", "two hosts"])
def test_interrupted(tmp_path, sig, args):
    if args and (os.geteuid() != 0 or why_not()):
        pytest.skip(why_not() or "scripts/demo --two-hosts needs root")
    with start(tmp_path, "--tokens", "4096", *args) as p:
        while not p.stdout.readline().startswith("decode pulls from prefill"):
            assert p.poll() is None
        assert processes_of(tmp_path)
        p.send_signal(sig)
        p.communicate(timeout=30 * SLOW)
    assert p.returncode == 128 + sig
    assert_clean(tmp_path)


def test_more_than_the_machine_has(tmp_path):
    with start(tmp_path, "--tokens", "9999999") as p:
        out, _ = p.communicate(timeout=30)
    assert p.returncode == 1 and "MiB are free" in out
    assert_clean(tmp_path)


@pytest.mark.parametrize("args", [["--frob"], ["--tokens"], ["--tokens", "0"], ["--tokens", "x"],
                                  ["--build", "/nonexistent"],
                                  ["--same-node", "--two-hosts"]], ids=" ".join)
def test_usage(tmp_path, args):
    with start(tmp_path, *args) as p:
        out, _ = p.communicate(timeout=30)
    assert p.returncode == 2 and args[0] in out.splitlines()[0], out
    assert_clean(tmp_path)

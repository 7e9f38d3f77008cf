# SPDX-License-Identifier: Apache-2.0
"""scripts/demo: what it shows, and that it leaves nothing behind, also when interrupted."""
import os
import pathlib
import re
import signal
import subprocess

import pytest

from wire import SLOW

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


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
                         ids=lambda s: s.name)
def test_interrupted(tmp_path, sig):
    with start(tmp_path, "--tokens", "4096") as p:
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
                                  ["--build", "/nonexistent"]], ids=" ".join)
def test_usage(tmp_path, args):
    with start(tmp_path, *args) as p:
        out, _ = p.communicate(timeout=30)
    assert p.returncode == 2 and args[0] in out.splitlines()[0], out
    assert_clean(tmp_path)

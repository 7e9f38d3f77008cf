# SPDX-License-Identifier: Apache-2.0
"""examples/: requests go on when a daemon is killed and started again under them."""
import os
import pathlib
import signal
import subprocess

import pytest

from wire import SLOW

BUILD = pathlib.Path(os.environ["KVT_BUILD"])


@pytest.fixture
def nodes(two_daemons):
    return list(two_daemons)


def scheduler(*args):
    return subprocess.Popen([BUILD / "examples/scheduler", *map(str, args)], text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def finish(p, seconds=60):
    try:
        out, _ = p.communicate(timeout=seconds * SLOW)
    except subprocess.TimeoutExpired:
        p.terminate()
        out, _ = p.communicate(timeout=10)
        pytest.fail("the scheduler has not ended:\n" + out)
    return out


def read_until(p, text):
    """The lines up to one that has the text."""
    seen = ""
    for line in p.stdout:
        seen += line
        if text in line:
            return seen
    pytest.fail(f"no '{text}' in\n{seen}")


@pytest.mark.parametrize("victim", [0, 1], ids=["prefill's", "decode's"])
@pytest.mark.parametrize("op", [[], ["--push"]], ids=["pull", "push"])
def test_daemon_is_killed(nodes, op, victim):
    p = scheduler(*op, "--tokens", 512, "--requests", 6, nodes[0].client_socket, nodes[1].client_socket)
    try:
        for _ in range(2):  # once in the middle of a request, once in the middle of another
            out = read_until(p, "decode: DONE")
            out += read_until(p, " 512 tokens")
            nodes[victim].kill()
            nodes[victim].start()
        out += finish(p)
    finally:
        p.kill()
    assert p.returncode == 0, out
    assert "its daemon is gone" in out
    assert out.count("guard bytes") >= 3, out


def test_no_daemon(tmp_path, nodes):
    p = scheduler("--tokens", 16, tmp_path / "none", nodes[1].client_socket)
    out = finish(p)
    assert p.returncode == 1
    assert "prefill: connecting" in out and str(tmp_path / "none") in out


@pytest.mark.parametrize("who", ["prefill", "decode"])
def test_worker_dies(nodes, who):
    p = scheduler("--tokens", 512, "--requests", 1000, nodes[0].client_socket, nodes[1].client_socket)
    try:
        read_until(p, "decode: DONE")
        children = pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split()
        names = {pathlib.Path(f"/proc/{c}/cmdline").read_bytes().split(b"\0")[0].decode(): int(c)
                 for c in children}
        os.kill(names[who], signal.SIGKILL)
        out = finish(p)
    finally:
        p.kill()
    assert p.returncode == 1 and f"{who} is gone" in out

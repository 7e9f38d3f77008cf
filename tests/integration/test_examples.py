# SPDX-License-Identifier: Apache-2.0
"""examples/: requests go on when a daemon is killed and started again under them."""
import os
import pathlib
import random
import re
import secrets
import signal
import subprocess

import pytest

from test_peers import token_change
from wire import SLOW

pytestmark = pytest.mark.plain

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


class Worker:
    """prefill or decode, with the test as its scheduler."""

    def __init__(self, name, node):
        self.process = subprocess.Popen(
            [BUILD / "examples" / name, node.client_socket, "llama3-70b-tp8", "160"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1)
        self.ticket = self.hear("ticket ")

    def say(self, *words):
        print(*words, file=self.process.stdin)

    def hear(self, *begin):
        """What follows the first line that begins so."""
        for line in self.process.stdout:
            for b in begin:
                if line.startswith(b):
                    return line[len(b):].strip()
        pytest.fail(f"no line '{begin}'")

    def close(self):
        self.process.communicate(timeout=30 * SLOW)
        assert self.process.returncode == 0


@pytest.fixture
def workers(nodes):
    pair = [Worker("prefill", nodes[0]), Worker("decode", nodes[1])]
    yield pair
    for w in pair:
        w.close()


def token_of(ticket, secret):
    """kvt_token_make()."""
    return token_change(ticket.replace("kvtk1.", "kvt1."), secret=secret)


@pytest.mark.parametrize("op", ["pull", "push"])
@pytest.mark.parametrize("wrong", [False, True], ids=["right bytes", "wrong bytes"])
def test_decode_looks_at_the_bytes(workers, op, wrong):
    prefill, decode = workers
    secret = secrets.token_bytes(16)
    if op == "pull":
        prefill.say("grant", secret.hex(), 7)
        decode.say("pull", token_of(prefill.ticket, secret), 7 + wrong)
    else:
        decode.say("reserve", secret.hex(), 7 + wrong)
        prefill.say("push", token_of(decode.ticket, secret), 7)
    said = decode.hear("verified", "failed")
    if wrong:
        assert said.startswith("21 plane 0, block ") and said.endswith(": wrong bytes")
    else:
        size, guards = map(int, said.split())
        assert size == 80 * 10 * 8192 and guards > 0
    prefill.hear("done")


def test_drop(workers):
    """What a scheduler says to the owner when the other side has failed."""
    for name, worker in zip(("grant", "reserve"), workers):
        worker.say(name, secrets.token_hex(16), 7)
        worker.say("drop")
        assert worker.hear("failed ").startswith("14 ")


# ---------------------------------------------------------------- carry

def give(daemon, file):
    p = subprocess.Popen([BUILD / "examples/carry", "give", file, daemon.client_socket],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return p, p.stdout.readline().strip()


def take(daemon, token, file):
    return subprocess.run([BUILD / "examples/carry", "take", token, file, daemon.client_socket],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60 * SLOW)


@pytest.mark.parametrize("size", [0, 1, 65536, 3000001])
@pytest.mark.parametrize("path", ["local", "tcp"])
def test_carry(nodes, tmp_path, path, size):
    (tmp_path / "from").write_bytes(random.Random(size).randbytes(size))
    p, token = give(nodes[0], tmp_path / "from")
    with p:
        to = nodes[path == "tcp"]
        r = take(to, token, tmp_path / "to")
        assert r.returncode == 0, r.stderr
        assert re.fullmatch(rf"{tmp_path}/to: {size} bytes in \d+\.\d+ s over {path}\n", r.stdout)
        assert (tmp_path / "to").read_bytes() == (tmp_path / "from").read_bytes()
        assert p.communicate(timeout=20 * SLOW)[0] == "taken\n" and p.returncode == 0
    r = take(to, token, tmp_path / "again")
    assert r.returncode == 1 and re.match(r"carry: claim: (NOT_FOUND|CLIENT_DIED): ", r.stderr)
    assert not (tmp_path / "again").exists()


def test_carry_usage(tmp_path):
    for args in [], ["give"], ["take", "x"], ["frob", "x"], ["give", "a", "b", "c"]:
        r = subprocess.run([BUILD / "examples/carry", *args], capture_output=True, text=True)
        assert r.returncode == 2 and "usage: carry give FILE" in r.stderr


def test_scatter(nodes):
    for places in ([nodes[0].client_socket], [n.client_socket for n in nodes]):
        out = subprocess.run([BUILD / "examples/scatter", *places], capture_output=True, text=True,
                             timeout=30 * SLOW)
        assert out.returncode == 0, out.stderr
        assert out.stdout == "from three places: three remote places\n"

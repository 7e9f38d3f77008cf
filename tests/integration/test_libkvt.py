# SPDX-License-Identifier: Apache-2.0
"""libkvt in a process of its own against real daemons; the scenarios are in c/libkvt_real.c."""
import os
import pathlib
import signal
import subprocess
import threading

import pytest

from wire import SLOW

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
PROGRAM = BUILD / "tests/integration/c/libkvt_real"


def admin(d, verb):
    subprocess.run([BUILD / "kvtctl", "-a", d.admin_socket, verb], check=True, timeout=20 * SLOW,
                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def act(d, what):
    if what == "stop":
        d.signal(signal.SIGSTOP)
    elif what == "kill":
        d.kill()
    elif what == "start":
        d.start()
    else:
        admin(d, what)


def run(scenario, daemons, seconds=60):
    p = subprocess.Popen([PROGRAM, scenario, *(d.client_socket for d in daemons)], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    timer = threading.Timer(seconds * SLOW, p.kill)
    timer.start()
    try:
        for line in p.stdout:
            assert line.startswith("> "), line
            act(daemons[0], line[2:].strip())
            p.stdin.write("\n")
            p.stdin.flush()
        p.wait()
        assert p.returncode == 0, f"{scenario} ended with {p.returncode}: {p.stderr.read()}"
    finally:
        timer.cancel()
        p.kill()
        p.wait()
        for f in (p.stdin, p.stdout, p.stderr):
            f.close()


@pytest.fixture(params=[1, 2], ids=["local", "tcp"])
def daemons(request, kvtd):
    def make(*args):
        return [kvtd(*args) for _ in range(request.param)]
    return make


@pytest.mark.parametrize("scenario", ["hand_over", "other_ends", "threads", "drain"])
def test_scenario(daemons, scenario):
    run(scenario, daemons())


@pytest.mark.parametrize("scenario", ["in_flight", "restart"])
def test_slow_scenario(daemons, scenario):
    run(scenario, daemons("--fault", "delay-chunk=100"))


@pytest.mark.parametrize("scenario", ["resume", "forks"])
def test_single(daemon, scenario):
    run(scenario, [daemon])

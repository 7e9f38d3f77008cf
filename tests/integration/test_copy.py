# SPDX-License-Identifier: Apache-2.0
"""How transport local copies: on the loop or in threads, by which kernel, and how long threads spin."""
import json
import os
import subprocess
import time

import pytest

from actors import actor  # noqa: F401
from conftest import BUILD, wait_until

pytestmark = pytest.mark.plain

SPIN_MS = 8
SLACK_MS = 1


def threads(daemon, name):
    """The CPU time in ns of each thread of this name."""
    times = {}
    for task in os.listdir(f"/proc/{daemon.pid}/task"):
        folder = f"/proc/{daemon.pid}/task/{task}"
        with open(f"{folder}/comm") as comm, open(f"{folder}/schedstat") as stat:
            if comm.read().strip() == name:
                times[task] = int(stat.read().split()[0])
    return times


def pull(owner, reader, n, name):
    token = owner.grant(f"g{name}", f"read A:0-{n - 1}")
    assert reader.run(name, "pull", token, f"B:0-{n - 1} final") == "OK"
    reader.ok(f"check 5 B:0-{n - 1}")


def clients(d, actor, n, size):
    owner, reader = actor(d), actor(d)
    owner.cache("A", n, 1, size)
    reader.cache("B", n, 1, size)
    owner.ok(f"fill 5 A:0-{n - 1}")
    return owner, reader


def transports(d):
    r = subprocess.run([BUILD / "kvtctl", "-a", d.admin_socket, "status", "--json"],
                       capture_output=True, text=True, timeout=30, check=True)
    return {t["name"]: t for t in json.loads(r.stdout)["status"]["transports"]}


def test_small_ones_take_no_thread(kvtd, actor):
    """Up to local_inline the loop copies; what is larger, or of many pieces, is the threads'."""
    d = kvtd(config="transport { local_inline = 64KiB }")
    owner, reader = clients(d, actor, 32, 4096)
    pull(owner, reader, 16, "small")
    assert not threads(d, "kvtd-copy")
    pull(owner, reader, 17, "large")
    assert threads(d, "kvtd-copy")


def test_inline_off(kvtd, actor):
    d = kvtd(config="transport { local_inline = 0 }")
    owner, reader = clients(d, actor, 1, 4096)
    pull(owner, reader, 1, "small")
    assert threads(d, "kvtd-copy")


def test_the_way_to_copy_is_found_out(kvtd, actor):
    """After the first bytes status says it, and bytes go on being right."""
    d = kvtd()
    owner, reader = clients(d, actor, 64, 256 << 10)
    assert transports(d)["local"]["how"] == ""
    pull(owner, reader, 64, "x")
    wait_until("it is found out", lambda: transports(d)["local"]["how"])
    assert transports(d)["local"]["how"].startswith("copies by ")
    pull(owner, reader, 64, "y")


def test_the_way_to_copy_is_chosen(kvtd, actor, tmp_path):
    d = kvtd(config="transport { local_copy = memcpy }")
    owner, reader = clients(d, actor, 64, 256 << 10)
    pull(owner, reader, 64, "x")
    assert transports(d)["local"]["how"] == ""
    file = tmp_path / "kvtd.conf"
    file.write_text("transport { local_copy = by-hand }\n")
    r = subprocess.run([BUILD / "kvtd", "--check-config", file], capture_output=True, text=True,
                       timeout=30)
    assert r.returncode != 0 and "by-hand" in r.stderr


@pytest.mark.parametrize("one_cpu", (False, True), ids=("all_cpus", "one_cpu"))
def test_spinning_ends(kvtd, actor, one_cpu):
    """After the last byte copy threads use no more CPU than the budget and a millisecond."""
    config = f"transport {{ spin = {SPIN_MS}ms local_inline = 0 local_copy = memcpy }}"
    d = kvtd(config=config, prefix=("taskset", "-c", "0") if one_cpu else ())
    owner, reader = clients(d, actor, 16, 65536)
    used = 0
    for i in range(8):
        token = owner.grant(f"g{i}", "read A:0-15")
        assert reader.run(f"x{i}", "pull", token, "B:0-15 final") == "OK"
        after = threads(d, "kvtd-copy")
        assert after
        # it sleeps when its CPU time has not changed for long
        last, since = after, time.monotonic()
        while time.monotonic() < since + 5 * SPIN_MS / 1000:
            time.sleep(0.002)
            now = threads(d, "kvtd-copy")
            if now != last:
                last, since = now, time.monotonic()
        for task, ns in after.items():
            spent = (last[task] - ns) / 1e6
            assert spent <= (0 if one_cpu else SPIN_MS) + SLACK_MS, f"{spent} ms after the last byte"
            used += spent
    if not one_cpu and len(os.sched_getaffinity(0)) > 1:
        assert used > SLACK_MS, "no thread has looked for work at all"

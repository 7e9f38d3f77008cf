# SPDX-License-Identifier: Apache-2.0
"""Memory of 2 MiB pages: it moves like any other, and a hole in it that no page can fill costs the
transfers on it and nothing else."""
import pathlib

import pytest

from actors import actor, place  # noqa: F401

pytestmark = pytest.mark.alone  # the pool is the machine's

POOL = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")


def count(what):
    return int((POOL / what).read_text())


@pytest.fixture
def pages():
    """pages(N) makes N free 2 MiB pages, neither more nor less; the pool is as before at the end."""
    if not POOL.exists():
        pytest.skip("the kernel has no 2 MiB pages")
    before = count("nr_hugepages")

    def make(n):
        try:
            (POOL / "nr_hugepages").write_text(
                str(count("nr_hugepages") - count("free_hugepages") + n))
        except OSError as e:
            pytest.skip(f"the pool of 2 MiB pages cannot be changed: {e}")
        if count("free_hugepages") != n:
            pytest.skip(f"{n} free pages of 2 MiB are not to be had")
    yield make
    (POOL / "nr_hugepages").write_text(str(before))


def test_hand_over(place, actor, pages):
    pages(8)
    p = place()
    owner, reader = actor(p.owner), actor(p.reader)
    owner.ok("region H 5000000 huge")
    owner.ok("cachex A 64 H/4096/65536/65536")
    reader.ok("region H 5000000 huge")
    reader.ok("cachex B 64 H/0/65536/65536")
    owner.ok("fill 3 A:0-63")
    token = owner.grant("g", "read A:0-63")
    assert reader.run("x", "pull", token, "B:63-0 final") == "OK"
    reader.ok("check 3 B:63-0")
    assert count("free_hugepages") == 2
    owner.exit()
    reader.exit()
    for d in p.daemons:
        d.wait_idle()
    assert count("free_hugepages") == 8


def test_none_left(kvtd, actor, pages):
    pages(1)
    a = actor(kvtd())
    refused = a("region H 4194304 huge")
    assert refused == "UNSUPPORTED" and "nr_hugepages" in refused.text, refused.text


def test_hole_that_cannot_be_filled(place, actor, pages):
    """SIGBUS in a copy thread, EFAULT in a socket's: INVALID, the region takes no new use, the daemon
    and the other transfers live."""
    pages(2)
    p = place()
    owner, reader = actor(p.owner), actor(p.reader)
    owner.ok("region H 4194304 memfd huge")
    owner.ok("cachex A 64 H/0/65536/65536")
    owner.cache("C", 8, 1, 65536)
    reader.cache("B", 64, 1, 65536)
    owner.ok("fill 3 A:0-63")
    owner.ok("fill 4 C:0-7")
    token = owner.grant("g", "read A:0-63 readers=3")
    assert reader.run("x", "pull", token, "B:0-63") == "OK"
    owner.ok("punch H 2097152 2097152")
    pages(0)
    broken = reader.run("y", "pull", token, "B:0-63")
    assert broken == "INVALID", f"{broken} {broken.text}"
    refused = owner("grant h read A:0-1")
    assert refused == "INVALID" and "fault" in refused.text, refused.text
    token = owner.grant("k", "read C:0-7")
    assert reader.run("z", "pull", token, "B:0-7 final") == "OK"
    reader.ok("check 4 B:0-7")
    owner.ok("revoke g")
    assert owner.gwait("g") == "REVOKED"

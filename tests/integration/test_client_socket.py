# SPDX-License-Identifier: Apache-2.0
"""The client socket against clients of all sorts: the daemon answers, lives, and leaves nothing."""
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from conftest import wait_until
from wire import KVT, SLOW, Client, Gone, memfd, varint

MIB = 1 << 20


@pytest.fixture
def c(daemon):
    with daemon.client() as client:
        yield client


def works(client):
    """The connection is in step: a request gets its own reply."""
    assert client.status()["pid"] > 0


def test_hello(daemon):
    with daemon.client(hello=False) as c:
        r = c.hello(name="rank 3")
        assert r.status == "OK"
        h = r.hello
        assert h["version_major"] == 1
        assert h["node"] == "node-a"
        assert len(h["client_key"]) == 32 and len(h["epoch"]) == 16
        assert h["ticket"].startswith("kvtk1.")
        assert h["client"] != 0 and not h.get("draining")
        assert len(r.fds) == 1
        with open(f"/proc/self/fdinfo/{r.fds[0]}") as f:
            assert f"Pid:\t{daemon.pid}\n" in f.read()
        c.close_fds(r)
        rows = c.rows("CLIENT")
        assert [row["name"] for row in rows] == ["rank 3"]
        assert rows[0]["pid"] == os.getpid() and rows[0]["client"] == h["client"]
        assert c.hello().status == "INVALID"  # twice


@pytest.mark.parametrize("fields, status, text", [
    ({"version_major": 2}, "VERSION", "protocol 2.0"),
    ({"version_major": 0}, "VERSION", "protocol 0.0"),
    ({"name": b"\xff\xfe"}, "INVALID", "name"),
    ({"name": "a\nb"}, "INVALID", "name"),
    ({"name": "x" * 65}, "INVALID", "name"),
    ({"client": 77, "client_key": bytes(32)}, "PERMISSION", "key"),
    ({"client": 77, "client_key": b"short"}, "PERMISSION", "key"),
    ({"client": 77}, "PERMISSION", "key"),
])
def test_hello_refused(daemon, fields, status, text):
    with daemon.client(hello=False) as c:
        r = c.hello(**fields)
        assert r.status == status and text in r.text, r
        assert r.fds == [] and "hello" not in r
        assert c.ask("status").status == "INVALID"  # no Hello yet
        assert c.hello().status == "OK"  # it may try again


def test_log_of_who_never_was_here(daemon):
    """A client that comes back to a restarted daemon is refused with its old key: not one that went."""
    with daemon.client(hello=False, name="stray") as c:
        assert c.hello(client=77, client_key=bytes(32)).status == "PERMISSION"
    with daemon.client(name="guest"):
        pass
    wait_until("the second one is gone", lambda: "(guest): gone: " in daemon.log())
    assert daemon.log().count(": gone: ") == 1, daemon.log()


def test_hello_fds(daemon):
    other = subprocess.Popen(["sleep", "60"])
    try:
        with daemon.client(hello=False) as c:
            pidfd, strange = os.pidfd_open(os.getpid()), os.pidfd_open(other.pid)
            for fds, text in (([], "0 fds"), ([pidfd, pidfd], "2 fds"), ([0], "not a pidfd"),
                              ([strange], f"process {other.pid}")):
                r = c.hello(fds=fds)
                assert r.status == "INVALID" and text in r.text, r
            os.close(pidfd)
            os.close(strange)
            assert c.hello().status == "OK"
    finally:
        other.kill()
        other.wait()


def test_resume(daemon):
    a = daemon.client()
    with daemon.client(hello=False) as b:
        assert b.hello(client=a.id, client_key=a.key).status == "BUSY"
        a.close()
        wait_until("the id is free", lambda: b.hello(client=a.id, client_key=a.key).status == "OK")
        assert [r["client"] for r in b.rows("CLIENT")] == [a.id]


def test_close(c, daemon):
    assert c.region(1, MIB).status == "OK"
    assert c.cache(1, 1, 16, 4096).status == "OK"
    c.send("close")
    bye = c.wait_end()
    assert bye is not None and bye.status == "OK"
    daemon.wait_idle()


def test_half_close_gets_bye(c, daemon):
    """shutdown(SHUT_WR) is an end, too; the daemon's word about it still arrives."""
    assert c.region(1, MIB).status == "OK"
    c.sock.shutdown(socket.SHUT_WR)
    assert c.wait_end() is not None
    daemon.wait_idle()


def test_empty_datagram_closes(c, daemon):
    c.raw(b"")
    assert c.wait_end() is not None
    daemon.wait_idle()


@pytest.mark.parametrize("hello", [True, False])
def test_garbage(daemon, hello):
    with daemon.client(hello=hello) as c:
        for data in (b"\0", b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000),
                     b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                     b"\x82\x01\xff\xff\x03"):
            c.raw(data)
            r = c.reply(0)
            assert r.status in ("INVALID", "UNSUPPORTED"), (data, r)
        if not hello:
            assert c.hello().status == "OK"
        works(c)


def test_truncated_messages(c):
    whole = KVT.encode("Request", {"id": 5, "cache_create": {
        "cache": 1, "blocks": 4, "region": [1] * 50, "offset": [0] * 50, "stride": [1] * 50,
        "bytes": [1] * 50, "tag": "a tag"}})
    for n in range(1, len(whole)):
        c.raw(whole[:n])
    # every prefix is refused: as garbage, or as a request that names nothing that exists
    answered = 0
    while answered < len(whole) - 1:
        assert c.receive(time.monotonic() + c.timeout)
        answered = sum(len(v) for v in c.replies.values())
    for replies in c.replies.values():
        assert all(r.status != "OK" for r in replies)
    c.replies.clear()
    works(c)


def test_oversized(c, daemon):
    big = KVT.encode("Request", {"id": 1, "list": {}}) + b"\x7a" + varint(70000) + bytes(70000)
    c.raw(big)
    r = c.reply(0)
    assert r.status == "INVALID" and "65536" in r.text
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
    c.raw(big, fds)
    assert c.reply(0).status == "INVALID"
    for fd in fds:
        os.close(fd)
    works(c)
    # exactly at the limit: parsed, and refused for what it says
    c.raw(KVT.encode("Request", {"id": 9, "hello": {"name": "x" * (65536 - 12)}}))
    assert c.reply(9).status == "INVALID"
    assert daemon.fds()["all"] == daemon.fds_at_start["all"] + 2  # the connection, its pidfd


def test_swollen_message(c):
    """Small on the wire, large when unpacked: refused at the arena's cap or by the handler."""
    part = b"\xe2\x01" + varint(0)  # an empty sub-message of nothing known
    c.raw(KVT.encode("Request", {"id": 3}) + part)
    assert c.reply(3).status in ("INVALID", "UNSUPPORTED")
    parts = KVT.encode("GrantCreate", {"grant": 1, "parts": [{}] * 30000})
    c.raw(KVT.encode("Request", {"id": 4}) + b"\xe2\x01" + varint(len(parts)) + parts)
    assert c.receive(time.monotonic() + c.timeout)
    assert all(r.status == "INVALID" for v in c.replies.values() for r in v)
    c.replies.clear()
    works(c)


def test_unknown_and_empty_requests(c):
    c.raw(KVT.encode("Request", {"id": 1}))
    assert c.reply(1).status == "INVALID"
    c.raw(KVT.encode("Request", {"id": 2}) + varint(99 << 3 | 2) + b"\0")
    r = c.reply(2)
    assert r.status == "UNSUPPORTED" and "99" in r.text
    c.raw(KVT.encode("Request", {"id": 3}) + varint(53 << 3 | 2) + b"\0")  # reserved
    assert c.reply(3).status == "UNSUPPORTED"
    works(c)


def test_roles(c, daemon):
    for what in ("drain", "resume", "reload", "admin_cancel", "admin_revoke"):
        r = c.ask(what)
        assert r.status == "PERMISSION" and "admin socket" in r.text
    with daemon.admin() as admin:
        r = admin.ask("region_begin", region=1, length=4096, access=1)
        assert r.status == "PERMISSION"
        assert admin.status()["admin"]
    assert not c.status().get("admin")


def test_before_hello(daemon):
    with daemon.client(hello=False) as c:
        for what in ("status", "list", "region_begin", "close", "grant_create"):
            r = c.ask(what)
            assert r.status == "INVALID" and "before Hello" in r.text


def test_fds_missing_and_surplus(c, daemon):
    null = os.open("/dev/null", os.O_RDONLY)
    before = daemon.fds()["all"]
    try:
        assert c.ask("status", [null]).status == "INVALID"
        assert c.ask("list", [null] * 5, object="OBJECT_CLIENT").status == "INVALID"
        assert c.ask("region_fds", [], region=1, count=1).status == "INVALID"
        assert c.ask("grant_create", [null] * 2, grant=1).status == "INVALID"
        assert c.ask("status", [null] * 253).status == "INVALID"
        c.raw(b"garbage", [null] * 253)
        assert c.reply(0).status == "INVALID"
        works(c)
        assert daemon.fds()["all"] == before
    finally:
        os.close(null)


def test_ids(c):
    """id 0: silence on success, a reply that names the handle on failure."""
    c.send("region_begin", rid=0, region=7, length=0, access=7)
    r = c.reply(0)
    assert r.status == "INVALID" and r.handle == 7
    assert c.region(8, 4096).handle == 8
    c.send("status", rid=0)
    works(c)
    assert 0 not in c.replies or not c.replies[0]


# ---------------------------------------------------------------- regions

def test_region_life(c, daemon):
    assert c.region(1, 2 * MIB, access=3, tag="kv", address=0x7f0000000000).status == "OK"
    row, = c.rows("REGION")
    assert row["state"] == "ready" and row["access"] == "local,remote_read"
    assert row["length"] == 2 * MIB and row["kind"] == "host" and row["tag"] == "kv"
    assert c.status()["registered_bytes"] == 2 * MIB
    assert c.region(1, MIB).status == "EXISTS"
    assert c.ask("region_release", region=2).status == "NOT_FOUND"
    a, b = c.send("region_release", region=1), c.send("region_release", region=1)
    assert c.reply(a).status == "OK"
    assert c.reply(b).status in ("OK", "NOT_FOUND")  # it may have been quicker
    assert c.rows("REGION") == []
    assert c.region(1, MIB).status == "OK"  # the handle is free again


@pytest.mark.parametrize("fields, status, text", [
    ({"region": 0}, "INVALID", "handle"),
    ({"length": 0}, "INVALID", "length is 0"),
    ({"access": 0}, "INVALID", "access"),
    ({"access": 8}, "INVALID", "access"),
    ({"kind": 1}, "UNSUPPORTED", "kind 1"),
    ({"kind": 77}, "UNSUPPORTED", "kind 77"),
    ({"length": 1 << 62}, "QUOTA", "registered"),
    ({"length": (1 << 64) - 1}, "QUOTA", ""),
    ({"address": (1 << 64) - 4096, "length": 8192}, "INVALID", "exceeds 64 bits"),
    ({"tag": b"\xc3"}, "INVALID", "tag"),
    ({"tag": "x" * 65}, "INVALID", "tag"),
])
def test_region_begin_refused(c, fields, status, text):
    m = {"region": 1, "length": 4096, "access": 7, **fields}
    r = c.ask("region_begin", **m)
    assert r.status == status and text in r.text, r
    if m["region"]:
        # what was sent behind it without waiting hears the same
        fd = memfd(4096)
        f = c.ask("region_fds", [fd], region=1, count=1)
        os.close(fd)
        k = c.ask("region_commit", region=1)
        assert f.status == k.status == status and f.text == k.text == r.text
    assert c.region(1, 4096).status == "OK"


def bad_fds():
    both = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    plain = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(plain, MIB)
    r, w = os.pipe()
    os.close(w)
    hole = memfd(MIB, fill=False)
    os.pwrite(hole, b"x", 0)
    terabyte = memfd(1 << 40, fill=False)
    yield "unsealed", memfd(MIB, seals=0), MIB
    yield "cannot be sealed", memfd(MIB, seals=0, flags=os.MFD_CLOEXEC), MIB
    yield "half sealed", memfd(MIB, seals=fcntl.F_SEAL_SHRINK), MIB
    yield "write sealed", memfd(MIB, seals=both | fcntl.F_SEAL_WRITE), MIB
    yield "short", memfd(MIB // 2), MIB
    yield "long", memfd(2 * MIB), MIB
    yield "empty", memfd(0), MIB
    yield "file", plain, MIB
    yield "pipe", r, MIB
    yield "socket", socket.socket(socket.AF_UNIX).detach(), MIB
    yield "folder", os.open("/tmp", os.O_RDONLY), MIB
    yield "null", os.open("/dev/null", os.O_RDWR), MIB
    yield "hole", hole, MIB
    yield "sparse by a terabyte", terabyte, 1 << 40
    yield "odd length", memfd(5000), 5000


def test_region_wrong_memory(c, daemon):
    for what, fd, size in bad_fds():
        r = c.region(1, size, fd=fd)
        os.close(fd)
        assert r.status in ("INVALID", "UNSUPPORTED", "QUOTA"), (what, r)
        assert r.text, what
        works(c)
    assert daemon.fds()["memfd"] == 0
    assert c.status().get("registered_bytes", 0) == 0
    assert c.region(1, MIB).status == "OK"


def test_region_write_sealed_source(c):
    """Memory that nobody is to write may be sealed against it."""
    fd = memfd(MIB, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    r = c.region(1, MIB, access=2, fd=fd)
    os.close(fd)
    assert r.status in ("OK", "UNSUPPORTED")


def test_region_fds_out_of_order(c):
    fd = memfd(4096)
    try:
        assert c.ask("region_fds", [fd], region=5, count=1).status == "NOT_FOUND"
        assert c.ask("region_commit", region=5).status == "NOT_FOUND"
        assert c.ask("region_begin", region=0, length=4096, access=7).status == "INVALID"
        assert c.ask("region_begin", region=6, length=0, access=7).status == "INVALID"
        assert c.ask("region_commit", region=0).status == "NOT_FOUND"
        assert c.ask("region_begin", region=5, length=4096, access=7).status == "OK"
        assert c.ask("region_commit", region=5).status == "INVALID"  # no fds
        assert c.ask("region_commit", region=5).status == "NOT_FOUND"
        for count in (0, 2, 253, 0xffffffff):
            assert c.ask("region_begin", region=5, length=4096, access=7).status == "OK"
            r = c.ask("region_fds", [fd], region=5, count=count)
            assert r.status == "INVALID" and "announced" in r.text
            assert c.ask("region_commit", region=5).text == r.text
        assert c.ask("region_begin", region=5, length=4096, access=7).status == "OK"
        assert c.ask("region_fds", [fd], region=5, count=1).status == "OK"
        assert c.ask("region_fds", [fd], region=5, count=1).status == "INVALID"
        assert c.ask("region_commit", region=5).status == "INVALID"
        assert c.region(5, 4096).status == "OK"
        assert c.ask("region_fds", [fd], region=5, count=1).status == "INVALID"
        assert c.ask("region_commit", region=5).status == "INVALID"
    finally:
        os.close(fd)


def test_253_fds(c, daemon):
    before = daemon.fds()["all"]
    fds = [memfd(4096) for _ in range(253)]
    c.begin(1, 253 * 4096)
    r = c.ask("region_fds", fds, region=1, count=253)
    assert r.status == "INVALID" and "253" in r.text
    for fd in fds:
        os.close(fd)
    assert c.ask("region_commit", region=1).status == "INVALID"
    assert daemon.fds()["all"] == before


def test_quotas(kvtd):
    d = kvtd(config="limits { regions = 2 caches = 2 bytes = 1MiB registered = 3MiB }\n"
                    "limits_key { regions = 3 }\n")
    with d.client() as a, d.client() as b:
        assert a.region(1, 4096).status == "OK"
        r = a.region(2, MIB)
        assert r.status == "QUOTA" and "1048576" in r.text, r
        assert a.region(2, 4096).status == "OK"
        r = a.region(3, 4096)
        assert r.status == "QUOTA" and "2 of 2 regions" in r.text, r
        assert b.region(1, 4096).status == "OK"
        r = b.region(2, 4096)
        assert r.status == "QUOTA" and "3 of 3 regions" in r.text, r
        for i in (1, 2):
            assert a.cache(i, 1, 1, 16).status == "OK"
        assert a.cache(3, 1, 1, 16).status == "QUOTA"
        assert a.ask("cache_delete", cache=1).status == "OK"
        assert a.cache(3, 1, 1, 16).status == "OK"
        assert a.ask("region_release", region=2).status == "OK"
        assert b.region(2, 4096).status == "OK"


def test_max_clients(kvtd):
    d = kvtd(config="limits { clients = 2 }")
    with d.client(), d.client():
        c = d.client(hello=False)
        bye = c.wait_end()
        assert bye.status == "QUOTA" and "2 of 2" in bye.text
        assert d.status()["clients"] == 2
    wait_until("they are gone", lambda: not d.left())
    d.client().close()


def test_registration_pipelined_with_its_caches(kvtd):
    """A cache named right behind its region's commit waits for the registration, in order."""
    d = kvtd("--fault", "delay-import=200")
    with d.client() as c:
        fd = memfd(MIB)
        ids = []
        for i in range(3):
            c.begin(i + 1, MIB, rid=0)
            c.send("region_fds", [fd], rid=0, region=i + 1, count=1)
            ids.append(c.send("region_commit", region=i + 1))
            ids.append(c.send("cache_create", cache=i + 1, blocks=4, region=[i + 1], offset=[0],
                              stride=[4096], bytes=[4096]))
        # and one behind a registration that fails
        c.begin(9, 2 * MIB, rid=0)
        c.send("region_fds", [fd], rid=0, region=9, count=1)
        bad = c.send("region_commit", region=9)
        lost = c.send("cache_create", cache=9, blocks=4, region=[9], offset=[0], stride=[4096],
                      bytes=[4096])
        os.close(fd)
        for i in ids:
            assert c.reply(i).status == "OK"
        assert c.reply(bad).status != "OK"
        assert c.reply(lost).status == "NOT_FOUND"


# ---------------------------------------------------------------- caches

@pytest.mark.parametrize("fields, text", [
    ({"cache": 0}, "handle"),
    ({"blocks": 0}, "0 blocks"),
    ({"blocks": (1 << 27) + 1}, "134217729 blocks"),
    ({"region": [], "offset": [], "stride": [], "bytes": []}, "0 planes"),
    ({"offset": [0, 0]}, "do not match"),
    ({"bytes": []}, "do not match"),
    ({"bytes": [0]}, "0 bytes"),
    ({"stride": [4095]}, "stride 4095"),
    ({"stride": [0]}, "stride 0"),
    ({"offset": [1]}, "offset 1 + stride 4096 x 256 blocks exceeds region 1 of 1048576 bytes"),
    ({"blocks": 257}, "x 257 blocks exceeds"),
    ({"offset": [(1 << 64) - 1]}, "exceeds"),
    ({"stride": [(1 << 63) + 1], "bytes": [1]}, "exceeds"),
    ({"stride": [(1 << 64) - 1], "bytes": [(1 << 64) - 1], "blocks": 1}, "exceeds"),
    ({"offset": [1 << 63], "stride": [1 << 63], "bytes": [1 << 63], "blocks": 1}, "exceeds"),
    ({"layout": "x" * 129}, "layout"),
    ({"layout": b"\xed\xa0\x80"}, "layout"),
    ({"tag": "\x7f"}, "tag"),
    ({"region": [1] * 4097, "offset": [0] * 4097, "stride": [4096] * 4097,
      "bytes": [4096] * 4097}, "4097 planes"),
])
def test_cache_refused(c, fields, text):
    assert c.region(1, MIB).status == "OK"
    m = {"cache": 1, "blocks": 256, "region": [1], "offset": [0], "stride": [4096],
         "bytes": [4096], **fields}
    r = c.ask("cache_create", **m)
    assert r.status == "INVALID" and text in r.text, r
    assert c.rows("CACHE") == []
    m.update(fields and {"cache": 1, "blocks": 256, "region": [1], "offset": [0],
                         "stride": [4096], "bytes": [4096], "layout": "x" * 128, "tag": "ü"})
    assert c.ask("cache_create", **m).status == "OK"  # the very edge fits
    assert c.ask("cache_create", **m).status == "EXISTS"


def test_cache_life(c):
    assert c.cache(1, 1, 4, 4096).status == "NOT_FOUND"
    c.begin(1, MIB)
    r = c.cache(1, 1, 4, 4096)
    assert r.status == "INVALID" and "not committed" in r.text
    assert c.ask("region_release", region=1).status == "OK"
    assert c.region(1, MIB).status == "OK" and c.region(2, MIB).status == "OK"
    assert c.cache(1, 1, 4, 4096, planes=3, layout="llama", tag="t").status == "OK"
    assert c.ask("cache_create", cache=2, blocks=1, region=[1, 2], offset=[0, 0],
                 stride=[16, 16], bytes=[16, 16]).status == "OK"
    rows = c.rows("CACHE")
    assert [(r["handle"], r["planes"], r["bytes"]) for r in rows] == [(1, 3, 49152), (2, 2, 32)]
    assert rows[0]["layout"] == "llama"
    assert c.ask("cache_delete", cache=7).status == "NOT_FOUND"
    assert c.ask("region_release", region=2).status == "OK"  # takes cache 2 along
    assert [r["handle"] for r in c.rows("CACHE")] == [1]
    assert c.ask("cache_delete", cache=1).status == "OK"
    assert c.status().get("caches", 0) == 0


# ---------------------------------------------------------------- lists

def test_lists_page(c, daemon):
    assert c.region(1, MIB).status == "OK"
    ids = [c.send("cache_create", cache=i + 1, blocks=1, region=[1], offset=[0], stride=[16],
                  bytes=[16], layout="l" * 128, tag="t" * 64) for i in range(250)]
    for i in ids:
        assert c.reply(i).status == "OK"
    page = c.ask("list", object="OBJECT_CACHE").rows
    assert page["more"] is not None and 0 < len(page["caches"]) < 250
    assert [r["handle"] for r in c.rows("CACHE")] == list(range(1, 251))
    page = c.ask("list", object="OBJECT_CACHE", limit=3).rows
    assert len(page["caches"]) == 3 and page["more"]
    last = c.rows("CACHE")[-1]["id"]
    assert "caches" not in c.ask("list", object="OBJECT_CACHE", after_id=last).get("rows", {})
    one = c.ask("list", object="OBJECT_CACHE", id=last)
    assert [r["id"] for r in one.rows["caches"]] == [last] and not one.rows.get("more")
    assert c.ask("list", object="OBJECT_CACHE", id=last + 1).status == "NOT_FOUND"
    for kind in (0, 7, 8, 99):
        assert c.ask("list", object=kind).status == "UNSUPPORTED"
    with daemon.client() as other:
        # of the same user, on the same socket
        assert len(other.rows("CACHE")) == 250 and len(other.rows("CLIENT")) == 2
        assert other.ask("list", object="OBJECT_CACHE", id=last).status == "OK"
        assert other.ask("cache_delete", cache=250).status == "NOT_FOUND"  # seen, not steered
    with daemon.admin() as admin:
        assert len(admin.rows("CACHE")) == 250
        assert admin.rows("PEER") == []


# ---------------------------------------------------------------- clients that behave badly

def test_client_that_never_reads(daemon):
    """Its replies fill the socket, then a bounded queue; then it is not read any more."""
    with daemon.client() as c, daemon.client() as other:
        rss = daemon.status()["rss_anon_bytes"]
        c.sock.setblocking(False)
        message = KVT.encode("Request", {"id": 1, "list": {"object": 1}})
        sent, deadline, stuck = 0, time.monotonic() + 30 * SLOW, None
        while time.monotonic() < deadline:
            try:
                c.sock.send(message)
                sent += 1
                stuck = None
            except BlockingIOError:
                works(other)
                stuck = stuck or time.monotonic()
                if time.monotonic() - stuck > 0.3:
                    break
        assert stuck, "the daemon reads for ever"
        works(other)
        assert SLOW > 1 or daemon.status()["rss_anon_bytes"] - rss < 4 * MIB
        # it reads at last: every request has its reply
        got = 0
        while got < sent:
            assert c.receive(time.monotonic() + c.timeout)
            got = len(c.replies.get(1, []))
        works(c)


def test_client_that_never_reads_is_released(daemon):
    c = daemon.client()
    assert c.region(1, MIB).status == "OK"
    message = KVT.encode("Request", {"id": 1, "status": {}})
    try:
        while True:
            c.sock.send(message, socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    c.close()
    daemon.wait_idle()


CHILD = r"""
import os, sys, time
sys.path.insert(0, sys.argv[1])
from wire import Client, memfd
c = Client(sys.argv[2], hello=sys.argv[3] != "connected")
size = 1 << 20
state = sys.argv[3]
if state == "half":
    c.begin(1, size)
elif state in ("fds", "importing"):
    c.begin(1, size)
    c.send("region_fds", [memfd(size)], region=1, count=1)
    if state == "importing":
        c.send("region_commit", region=1)
elif state in ("region", "cache", "grant", "releasing"):
    assert c.region(1, size).status == "OK"
    if state != "region":
        assert c.cache(1, 1, 16, 4096).status == "OK"
    if state == "grant":
        assert c.grant(1, 1, [1, 2, 3]).status == "OK"
    if state == "releasing":
        c.send("region_release", region=1)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["connected", "hello", "half", "fds", "importing", "region",
                                   "cache", "grant", "releasing"])
def test_kill_in_each_state(kvtd, state):
    d = kvtd(*(["--fault", "delay-import=300"] if state == "importing" else []))
    here = os.path.dirname(os.path.abspath(__file__))
    child = subprocess.Popen([sys.executable, "-c", CHILD, here, str(d.client_socket), state],
                             stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        if state == "importing":
            wait_until("it is importing", lambda: [r["state"] for r in d.rows("REGION")] ==
                       ["importing"])
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    d.wait_idle()
    assert d.alive


def test_death_of_a_process_whose_socket_lives_on(daemon):
    """A child that inherited the connection does not keep the dead one's memory registered."""
    here = os.path.dirname(os.path.abspath(__file__))
    script = ("import os, sys, time\n"
              "sys.path.insert(0, sys.argv[1])\n"
              "from wire import Client\n"
              "c = Client(sys.argv[2])\n"
              "assert c.region(1, 1 << 20).status == 'OK'\n"
              "os.set_inheritable(c.sock.fileno(), True)\n"
              "pid = os.fork()\n"
              "if pid == 0:\n"
              "    time.sleep(600)\n"
              "print(pid, flush=True)\n"
              "time.sleep(600)\n")
    p = subprocess.Popen([sys.executable, "-c", script, here, str(daemon.client_socket)],
                         stdout=subprocess.PIPE)
    heir = int(p.stdout.readline())
    try:
        assert daemon.status()["regions"] == 1
        p.kill()
        p.wait()
        wait_until("it is released", lambda: not daemon.left())
        os.kill(heir, 0)
    finally:
        os.kill(heir, signal.SIGKILL)
        p.stdout.close()


def test_many_connections(daemon):
    clients = [daemon.client() for _ in range(100)]
    assert daemon.status()["clients"] == 100
    for c in clients:
        c.close()
    daemon.wait_idle()


def test_tenants(kvtd, folder):
    d = kvtd(config=f'listen_client = {{"vllm {folder}/vllm.sock"}}')
    with Client(folder / "vllm.sock") as c, d.client() as other:
        assert c.rows("CLIENT")[0]["tenant"] == "vllm"
        assert other.rows("CLIENT")[0]["tenant"] == "default"
        assert not c.status().get("admin")

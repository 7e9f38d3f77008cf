# SPDX-License-Identifier: Apache-2.0
"""Calls that fail: each system call and allocation that the daemons make for a hand-over over tcp,
once and from then on, with what it can fail with.

Which these are the daemons say themselves (`--fault trace`), so a new one is in the sweep by itself.
Whatever fails: right bytes or a status in time, the daemon alive, or not started and it says why;
with the fault gone nothing is left and the next hand-over is right.

A sample, always the same, or of KVT_SWEEP cases, or with KVT_SEED; all of them with KVT_LONG=1.
"""
import os
import random
import re
import signal
import time

import pytest

from conftest import wait_until
from actors import Actor, actor  # noqa: F401
from tls import Key, keyed  # noqa: F401
from wire import SLOW

PEERS = 'redial_max = "200 ms" keepalive_interval = "200 ms" keepalive_timeout = "1 s"'
CONFIG = """
transport { tcp_streams = 2 tcp_threads = 2 tcp_chunk = "64 KiB" }
fence_timeout = "500 ms"
drain_timeout = "200 ms"
"""
LONG = os.environ.get("KVT_LONG", "0") != "0"
LIMIT = 25           # seconds for a hand-over, whatever fails
BLOCKS = 9000        # their list goes in a memfd
ALL, TURNED = f"A:0-{BLOCKS - 1}", f"B:{BLOCKS - 1}-0"

# What a call can fail with. Those that mean "again" would be a loop in the kernel's place if they
# came for ever; they come once.
AGAIN = ("EAGAIN", "EINTR")
MEMORY = ("ENOMEM",)
ERRNOS = {
    "accept4": ("EMFILE", "ECONNABORTED", "ENOMEM", *AGAIN),
    "bind": ("EADDRINUSE",),
    "connect": ("ECONNREFUSED", "ENETUNREACH", "ETIMEDOUT"),
    "epoll_create1": ("EMFILE",),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "epoll_wait": ("EINTR",),
    "eventfd": ("EMFILE",),
    "fcntl": ("EINVAL",),
    "fstat": ("EOVERFLOW", "EIO"),
    "fstatfs": ("EIO",),
    "getaddrinfo": ("EAGAIN", "ENOMEM"),
    "getsockname": ("ENOBUFS",),
    "getsockopt": ("ENOPROTOOPT", "EMFILE"),
    "listen": ("EADDRINUSE",),
    "madvise": ("EINVAL",),
    "memfd_create": ("EMFILE",),
    "mkdir": ("EACCES", "ENOSPC"),
    "mmap": ("ENOMEM", "EPERM"),
    "open": ("EACCES", "EMFILE"),
    "pread": ("EIO",),
    "pthread_create": ("EAGAIN",),
    "read": ("EIO", *AGAIN),
    "recv": ("ECONNRESET", "ETIMEDOUT", *AGAIN),
    "recvmsg": ("ECONNRESET", "ENOMEM", *AGAIN),
    "send": ("EPIPE", "ECONNRESET", "ENOBUFS", *AGAIN),
    "sendmsg": ("EPIPE", "ECONNRESET", "ENOBUFS", *AGAIN),
    "setsockopt": ("ENOPROTOOPT",),
    "shutdown": ("ENOTCONN",),
    "socket": ("EMFILE", "ENOBUFS"),
    "syscall": ("EMFILE", "ENOSYS"),
    "write": ("EIO", "ENOSPC", *AGAIN),
    "event_add": MEMORY,
    "event_new": MEMORY,
    "bufferevent_socket_new": MEMORY,
    "bufferevent_openssl_socket_new": MEMORY,
    "SSL_new": MEMORY,
    "SSL_CTX_new": MEMORY,
    "aligned_alloc": MEMORY,
    "calloc": MEMORY,
    "malloc": MEMORY,
    "realloc": MEMORY,
    "strdup": MEMORY,
}

# Not in the sweep, and why.
EXEMPT = {
    "write@loop_post": "an eventfd takes 8 bytes, always: eventfd(2) has no error for it but EAGAIN, "
                       "and then who waits for it wakes up all the same",
    "write@tcp_threads_stop": "as that",
    "calloc@tcp_open": "the daemon starts without the transport, and says so",
    "calloc@local_open": "as that",
    "write@log_line": "a log that cannot be written: the test reads it",
}


class Pair:
    """Two daemons, the fault in one of them."""

    def __init__(self, make, owner=(), reader=()):
        self.owner, self.reader = self.daemons = [make(*owner), make(*reader)]

    def start(self):
        """False: one has not, and says why."""
        for d in self.daemons:
            try:
                d.start()
            except AssertionError:
                assert d.process.poll() is not None, f"{d.name} does not start"
                # 2: what is configured cannot be used; but the fault point must be there
                assert d.process.returncode in (1, 2), f"{d.name}: {d.process.returncode}"
                assert "no fault point" not in d.log()
                assert d.log().strip(), f"{d.name} does not say why it has not started"
                return False
        return True


def hand_over(pair, actors, limit=3000):
    """A pull and a push, as far as it goes. The statuses; asserts on the bytes of what was OK."""
    said = {}
    owner, reader = (Actor() for _ in range(2))
    actors += (owner, reader)
    for a, d in ((owner, pair.owner), (reader, pair.reader)):
        said["open"] = a(f"open {d.client_socket} timeout={limit}")
        if said["open"] != "OK":
            return said
    for a, cache in ((owner, "A"), (reader, "B")):
        said["cache"] = a(f"cache {cache} {BLOCKS} 1 64")
        if said["cache"] != "OK":
            return said
    for op, access in (("pull", "read"), ("push", "write")):
        seed = 1 if op == "pull" else 2
        owner.ok(f"fill {seed} {ALL}" if op == "pull" else "noise A 3")
        reader.ok("noise B 4" if op == "pull" else f"fill {seed} {TURNED}")
        grant = owner(f"grant {op} {access} {ALL}")
        if grant != "OK":
            said["grant"] = grant
            return said
        got = reader(f"xfer {op} {op} {grant.text} {TURNED} final timeout={limit}")
        if got == "OK":
            got = reader.wait(op, 4 * limit)
            assert got != "PENDING", f"the {op} does not end"
        said[op] = got
        if got != "OK":
            # one that it would have to wait for, as the reader has no place any more
            revoked = owner(f"revoke {op}")
            if revoked != "OK":  # then it is as if it had not been asked for
                said["revoke"] = revoked
                return said
        end = owner.gwait(op, 4 * limit)
        assert end != "PENDING", f"the grant of the {op} does not end"
        assert got != "OK" or end in ("OK", "SHUTDOWN"), f"OK, but {end!r} at the owner"
        if got == "OK":
            if op == "pull":
                reader.ok(f"check {seed} {TURNED}")
                reader.ok(f"changed B {TURNED}")
            elif end == "OK":
                owner.ok(f"check {seed} {ALL}")
                owner.ok(f"changed A {ALL}")
        said[op + " at the owner"] = end
    return said


def leave(actors):
    for a in actors:
        a.kill()
    actors.clear()


def all_ok(pair, actors):
    """With no fault any more."""
    def works():
        said = hand_over(pair, actors, 5000)
        leave(actors)
        return all(s == "OK" for s in said.values()) and len(said) == 6
    wait_until("hand-overs work again", works, 15)


def sites_of(make):
    """(daemon, "call@function.line") of all that a hand-over passes."""
    pair, actors = Pair(make, ("--fault", "trace"), ("--fault", "trace")), []
    assert pair.start()
    said = hand_over(pair, actors)
    assert set(said.values()) == {"OK"}, said
    leave(actors)
    for d in pair.daemons:
        d.wait_idle()
    return sorted({(side, site) for side, d in (("owner", pair.owner), ("reader", pair.reader))
                   for site in re.findall(r"fault: passed (\S+)", d.log())})


def cases_of(sites):
    out = []
    for side, site in sites:
        call, _, where = site.partition("@")
        if site.partition(".")[0] in EXEMPT:
            continue
        if call == "frame":
            out += [(side, f"drop-frame={where[:-2]}:{when}") for when in ("1", "1+", "2", "2+")]
            continue
        assert call in ERRNOS, f"{site}: what can it fail with?"
        for errno in ERRNOS[call]:
            for when in ("1",) if errno in AGAIN and call != "accept4" else ("1", "1+", "2", "2+"):
                out.append((side, f"sys={site}:{errno}:{when}"))
    return out


@pytest.fixture(params=["clear", "tls"])
def make(request, kvtd, keyed):
    """make(*args): a daemon that is not started yet."""
    key = [Key()]

    def clear(*args):
        return kvtd(*args, config=CONFIG + f"peers {{ {PEERS} }}", start=False)

    def tls(*args):
        return keyed(key, *args, peers=PEERS, config=CONFIG, start=False)
    return clear if request.param == "clear" else tls


def end_of(request):
    """The daemons of a case, so that thousands of them do not pile up."""
    try:
        for d in request.node.daemons:
            d.check_end()
    finally:
        for d in request.node.daemons:
            d.kill()
            d.log_file.unlink(missing_ok=True)
        request.node.daemons.clear()


def one_case(make, side, fault):
    actors, began = [], time.monotonic()
    pair = Pair(make, **{side: ("--fault", fault)})
    try:
        if pair.start():
            said = hand_over(pair, actors)
            leave(actors)
            took = time.monotonic() - began
            assert took < LIMIT * SLOW, f"{took:.1f} s: {said}"
            for d in pair.daemons:
                assert d.alive, f"{d.name} died: {d.process.returncode}"
            getattr(pair, side).signal(signal.SIGUSR2)
            all_ok(pair, actors)
            for d in pair.daemons:
                d.wait_idle()
        else:
            for d in pair.daemons:
                d.check = d.check and d.alive
    finally:
        leave(actors)


def test_sweep(make, request):
    seeded = random.Random(int(os.environ.get("KVT_SEED") or 1))
    todo = cases_of(sites_of(make))
    end_of(request)
    seeded.shuffle(todo)
    n = len(todo) if LONG else int(os.environ.get("KVT_SWEEP") or 20)
    print(f"{n} of {len(todo)} cases")
    bad = []
    for side, fault in todo[:n]:
        logs = ""
        try:
            one_case(make, side, fault)
            logs = "".join(f"--- {d.name}\n{d.log()[-1500:]}" for d in request.node.daemons)
            end_of(request)
        except AssertionError as e:
            logs = logs or "".join(f"--- {d.name}\n{d.log()[-1500:]}"
                                   for d in request.node.daemons)
            bad.append(f"{side} {fault}: {e}\n{logs}")
            print("BAD", bad[-1], flush=True)
            for d in request.node.daemons:
                d.check = False
            if request.node.daemons:
                end_of(request)
    assert not bad, "\n".join(bad)


# Found by the sweep: who had sent what could not be read waited for ever; with no memory to queue
# what is to be freed, it never was.
FOUND = ("sys=malloc@add_block:ENOMEM:2", "sys=malloc@add_block:ENOMEM:2+",
         "sys=malloc@loop_bury:ENOMEM:2+", "sys=epoll_ctl@watch:ENOMEM:1+")


@pytest.mark.parametrize("side", ["owner", "reader"])
@pytest.mark.parametrize("fault", FOUND)
@pytest.mark.parametrize("make", ["clear"], indirect=True)
def test_found(make, side, fault):
    one_case(make, side, fault)

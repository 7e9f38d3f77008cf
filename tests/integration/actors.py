# SPDX-License-Identifier: Apache-2.0
"""Processes that use kvt.h as a test says: c/actor.c, one command a line, one line of answer.

    @pytest.fixture comes by: from actors import actor, place

    def test_x(place, actor):        place: same node (local) and two daemons (tcp), in turn
        p = place()
        owner, reader = actor(p.owner), actor(p.reader)
        owner.cache("A", 8, 2, 4096)
        owner.ok("fill 7 A:0-3")
        token = owner.grant("g", "read A:0-3")
        reader.cache("B", 8, 2, 4096)
        reader.xfer("x", "pull", token, "B:7-4 final")
        assert reader.wait("x") == "OK" ...
"""
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest

from wire import SLOW, readable

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
ACTOR = BUILD / "tests" / "integration" / "c" / "actor"


class Answer(str):
    """A status, with the rest of the line as .text and its key=value words as items."""

    def __new__(cls, line):
        status, _, text = line.partition(" ")
        self = super().__new__(cls, status)
        self.text = text.strip()
        return self

    def __getitem__(self, key):
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key == "text":
            return self.text.partition("text=")[2]
        for word in self.text.partition(" text=")[0].split():
            k, eq, v = word.partition("=")
            if eq and k == key:
                return int(v) if v.isdigit() and key not in ("tag", "note") else v
        raise KeyError(key)

    @property
    def kind(self):
        """Of an event."""
        return self.text.split()[0] if self.text else ""

    def __repr__(self):
        return f"{str(self)} {self.text}"


class Actor:
    def __init__(self, socket=None, *options, prefix=()):
        self.process = subprocess.Popen([*prefix, ACTOR], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, bufsize=0)
        self.pending = 0
        self.buffer = b""
        if socket is not None:
            self.ok(f"open {socket} {' '.join(options)}")

    @property
    def pid(self):
        return self.process.pid

    def send(self, command):
        """A command whose answer is read later."""
        self.process.stdin.write(command.encode() + b"\n")
        self.pending += 1

    def recv(self, timeout=30):
        deadline = time.monotonic() + timeout * SLOW
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            assert left > 0 and readable(self.process.stdout, left), \
                "an actor does not answer"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, f"an actor ended: {self.process.wait(5)} {self.buffer}"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        self.pending -= 1
        answer = Answer(line.decode())
        assert answer != "USAGE", answer.text
        return answer

    def __call__(self, command, timeout=30):
        assert not self.pending
        self.send(command)
        return self.recv(timeout)

    def ok(self, command, timeout=30):
        answer = self(command, timeout)
        assert answer == "OK", f"{command[:200]}: {answer!r}"
        return answer

    # ---- shorthands

    def ticket(self):
        return self.ok("ticket").text

    def cache(self, name, blocks, planes, size, *options):
        return self.ok(f"cache {name} {blocks} {planes} {size} {' '.join(options)}")

    def grant(self, name, what):
        """what: "read A:0-3 ttl=500"; the token."""
        return self.ok(f"grant {name} {what}").text

    def xfer(self, name, op, token, what=""):
        return self.ok(f"xfer {name} {op} {token} {what}")

    def run(self, name, op, token, what="", ms=20000):
        """A transfer to its end; the answer is that of wait."""
        self.xfer(name, op, token, what)
        return self.wait(name, ms)

    def wait(self, name, ms=20000, more=""):
        return self(f"wait {name} {ms * SLOW} {more}", ms / 1000 + 30)

    def gwait(self, name, ms=20000, more=""):
        return self(f"gwait {name} {ms * SLOW} {more}", ms / 1000 + 30)

    def event(self, kind, ms=10000):
        """The next event, which is of that kind."""
        answer = self.ok(f"event {ms * SLOW}")
        assert answer.kind == kind, repr(answer)
        return answer

    def events(self):
        """All that are there."""
        out = []
        while True:
            answer = self("event 0")
            if answer != "OK":
                return out
            out.append(answer)

    def stats(self, name):
        return self.ok(f"stats {name}")

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self):
        """SIGSTOP, and it has stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def exit(self):
        """In good order."""
        assert self("exit") == "OK"
        assert self.process.wait(10 * SLOW) == 0
        self.kill()


@pytest.fixture
def actor(request):
    """actor(DAEMON or socket) makes an Actor."""
    made = []

    def make(at=None, *options, prefix=()):
        a = Actor(getattr(at, "client_socket", at), *options, prefix=prefix)
        made.append(a)
        return a

    yield make
    for a in made:
        if a.process.poll() is None and not a.process.stdin.closed:
            a.kill()


class Place:
    def __init__(self, owner, reader, path):
        self.owner, self.reader, self.path = owner, reader, path

    @property
    def daemons(self):
        return [self.owner] if self.owner is self.reader else [self.owner, self.reader]


@pytest.fixture(params=["local", "tcp"])
def place(request, kvtd, actor):
    """place(*args, config=) starts the daemons of an owner and a reader; actor is asked for so
    that the clients are gone before the daemons are looked at."""
    def make(*args, **kw):
        owner = kvtd(*args, **kw)
        return Place(owner, owner if request.param == "local" else kvtd(*args, **kw),
                     request.param)
    return make


@pytest.fixture
def seeded(request):
    """A random.Random whose seed is printed; KVT_SEED sets it."""
    seed = int(os.environ.get("KVT_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}: KVT_SEED={seed} repeats it")
    return random.Random(seed)


def blocks(ids):
    """A block list as actors read it."""
    return ",".join(str(i) for i in ids)

# SPDX-License-Identifier: Apache-2.0
"""A wire between two daemons that can be cut, held up, slowed, garbled, recorded and bent back,
data and control apart.

The owner's daemon advertises the proxy's address; who dials it is told apart by the preamble. A
connection has two ways: THERE, from who dialled, and BACK, to him. Places in a connection count
from its first byte on each way, the preamble among them.
"""
import collections
import select
import socket
import threading
import time

from wire import readable

DATA, CONTROL = b"KVTDATA1", b"KVTCTRL1"
THERE, BACK = 0, 1
PIECE = 65536
BUFFER = 65536  # of the proxy's sockets, so that little is on its way
RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: close() resets


class Way:
    """One direction of a connection."""

    def __init__(self, src, dst):
        self.src, self.dst = src, dst
        self.queue = collections.deque()  # (when it may go on, bytes)
        self.size = 0        # of what is in the queue
        self.passed = 0      # bytes read
        self.flips = []      # places of bytes to be garbled
        self.record = None   # a bytearray: everything that was read, as it came
        self.eof = self.shut = False

    def take(self, data, due):
        """What was read goes into the queue; how many bytes were garbled."""
        if self.record is not None:
            self.record += data
        hit = [at for at in self.flips if self.passed <= at < self.passed + len(data)]
        if hit:
            data = bytearray(data)
            for at in hit:
                data[at - self.passed] ^= 1
                self.flips.remove(at)
        self.passed += len(data)
        self.queue.append((due, bytes(data)))
        self.size += len(data)
        return len(hit)

    def flush(self):
        due, data = self.queue.popleft()
        n = self.dst.send(data)
        self.size -= n
        if n < len(data):
            self.queue.appendleft((due, data[n:]))


class Pair:
    """One connection, both ends; a mirror has one end and one way."""

    def __init__(self, near, far=None):
        self.ends = (near, far) if far else (near,)
        self.ways = (Way(near, far), Way(far, near)) if far else (Way(near, near),)
        self.kind = None
        self.head = b""
        self.cut_at = None   # bytes of both ways together
        self.dead = False

    @property
    def passed(self):
        return sum(w.passed for w in self.ways)

    def close(self, reset=False):
        self.dead = True
        for s in self.ends:
            if reset:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            s.close()


class Proxy:
    def __init__(self, to=None):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.to = to         # (host, port), once it is known
        self.pairs = []
        self.held = set()    # of kinds, or (kind, way), that are not forwarded
        self.delay = 0       # seconds for each piece of anything
        self.delays = {}     # way -> seconds that each byte is on it
        self.each = None     # bytes after which every new data connection is cut
        self.plan = None     # called with each Pair once its kind is known: sets cut_at, flips
        self.recording = False
        self.mirror = False  # new connections get back what they send
        self.cuts = self.garbled = self.accepted = 0
        self.lock = threading.Lock()
        self.stopping = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def cut(self, kind=None):
        """Resets the connections of that kind, or all."""
        with self.lock:
            for p in self.pairs:
                if not p.dead and (kind is None or p.kind == kind):
                    p.close(reset=True)
                    self.cuts += 1
            self.pairs = [p for p in self.pairs if not p.dead]

    def cut_after(self, more, kind=DATA):
        """The connections of that kind are cut after so many more bytes of each."""
        with self.lock:
            for p in self.pairs:
                if p.kind == kind:
                    p.cut_at = p.passed + more

    def garble(self, kind, way, after=0):
        """A bit of the byte so many bytes ahead is flipped, on each connection of that kind."""
        with self.lock:
            for p in self.pairs:
                if p.kind == kind and not p.dead:
                    p.ways[way].flips.append(p.ways[way].passed + after)

    def passed(self, kind, way=None):
        with self.lock:
            return sum(p.passed if way is None else p.ways[way].passed
                       for p in self.pairs if p.kind == kind)

    def live(self, kind):
        with self.lock:
            return sum(p.kind == kind and not p.dead for p in self.pairs)

    def recorded(self, kind, way=THERE):
        """What each connection of that kind sent on that way, the oldest first."""
        with self.lock:
            return [bytes(p.ways[way].record) for p in self.pairs if p.kind == kind]

    def stop(self):
        self.stopping = True
        self.thread.join()
        self.cut()
        self.listener.close()

    # ---- the thread

    def run(self):
        quiet = 0
        while not self.stopping:
            with self.lock:
                ready = self.turn()
                # a recorded one stays, to be looked at
                self.pairs = [p for p in self.pairs if not p.dead or self.recording]
            quiet = 0 if ready else quiet + 1
            if not ready:
                time.sleep(0.001 if quiet < 50 else 0.005)
            elif self.delay:
                time.sleep(self.delay)

    def turn(self):
        """What can be done now; whether there was anything."""
        now = time.monotonic()
        poll, by_fd = select.poll(), {}
        by_fd[self.listener.fileno()] = select.POLLIN
        readers, writers = {}, {}
        for p in self.pairs:
            if p.dead or p.kind in self.held:
                continue
            for number, w in enumerate(p.ways):
                if (p.kind, number) in self.held:
                    continue
                if not w.eof and w.size < PIECE * 4:
                    readers[w.src.fileno()] = (p, number)
                    by_fd[w.src.fileno()] = by_fd.get(w.src.fileno(), 0) | select.POLLIN
                if w.queue and w.queue[0][0] <= now:
                    writers[w.dst.fileno()] = (p, w)
                    by_fd[w.dst.fileno()] = by_fd.get(w.dst.fileno(), 0) | select.POLLOUT
        for fd, events in by_fd.items():
            poll.register(fd, events)
        ready = poll.poll(0)
        for fd, events in ready:
            if fd == self.listener.fileno():
                self.accept()
            elif fd in readers and events & ~select.POLLOUT:
                self.step(readers[fd][0], self.read, *readers[fd])
            if fd in writers and events & select.POLLOUT:
                self.step(writers[fd][0], writers[fd][1].flush)
        for p in self.pairs:
            self.ends(p)
        return ready

    def step(self, p, what, *args):
        if p.dead:
            return
        try:
            what(*args)
        except BlockingIOError:
            pass
        except OSError:
            p.close()

    def ends(self, p):
        """An end that passed on everything is passed on; a cut that is due is made."""
        if p.dead:
            return
        if p.cut_at is not None and p.passed >= p.cut_at and not any(w.queue for w in p.ways):
            p.close()
            self.cuts += 1
            return
        for w in p.ways:
            if w.eof and not w.queue and not w.shut:
                w.shut = True
                self.step(p, w.dst.shutdown, socket.SHUT_WR)
        if not p.dead and all(w.shut for w in p.ways):
            p.close()

    def accept(self):
        near, _ = self.listener.accept()
        self.accepted += 1
        far = None
        try:
            if not self.mirror:
                far = socket.socket()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
                far.settimeout(5)
                far.connect(self.to)
        except OSError:
            near.close()
            far.close()
            return
        p = Pair(near, far)
        for s in p.ends:
            s.setblocking(False)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.recording:
            for w in p.ways:
                w.record = bytearray()
        self.pairs.append(p)

    def read(self, p, number):
        w = p.ways[number]
        most = PIECE
        if p.cut_at is not None:
            most = min(most, p.cut_at - p.passed)
            if most <= 0:
                return
        if p.kind is None and number == THERE:
            most = min(most, 8 - len(p.head))
        data = w.src.recv(most)
        if not data:
            w.eof = True
            return
        if p.kind is None and number == THERE:
            p.head += data
            if len(p.head) == 8:
                p.kind = p.head
                if p.kind == DATA and self.each:
                    p.cut_at = self.each
                if self.plan:
                    self.plan(p)
        self.garbled += w.take(data, time.monotonic() + self.delays.get(number, 0))


def replay(address, data, timeout=10):
    """Recorded bytes sent to a listener: what it answers until it closes, or in that time."""
    host, _, port = address.rpartition(":")
    out, deadline = b"", time.monotonic() + timeout
    with socket.create_connection((host, int(port)), timeout) as s:
        try:
            s.sendall(data)
            while readable(s, deadline - time.monotonic()):
                got = s.recv(PIECE)
                if not got:
                    return out
                out += got
        except ConnectionError:
            return out
    raise AssertionError(f"{address} does not close; it said {out[:100]!r}")

# SPDX-License-Identifier: Apache-2.0
"""A wire between two daemons that can be cut, held up and slowed, data and control apart.

The owner's daemon advertises the proxy's address; who dials it is told apart by the preamble.
"""
import selectors
import socket
import threading
import time

DATA, CONTROL = b"KVTDATA1", b"KVTCTRL1"
PIECE = 65536
BUFFER = 65536  # of the proxy's sockets, so that little is on its way


class Pair:
    """One connection, both ends."""

    def __init__(self, near, far):
        self.ends = (near, far)
        self.kind = None
        self.out = {near: b"", far: b""}  # what is to be written there
        self.passed = 0
        self.cut_at = None
        self.dead = False

    def other(self, end):
        return self.ends[1] if end is self.ends[0] else self.ends[0]

    def close(self):
        self.dead = True
        for s in self.ends:
            s.close()


class Proxy:
    def __init__(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.to = None       # (host, port), once it is known
        self.pairs = []
        self.held = set()    # kinds that are not forwarded
        self.delay = 0       # seconds for each piece of data
        self.each = None     # bytes after which every new data connection is cut
        self.cuts = 0
        self.lock = threading.Lock()
        self.stopping = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def cut(self, kind=None):
        """Resets the connections of that kind, or all."""
        with self.lock:
            for p in self.pairs:
                if not p.dead and (kind is None or p.kind == kind):
                    for s in p.ends:
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    p.close()
                    self.cuts += 1
            self.pairs = [p for p in self.pairs if not p.dead]

    def cut_after(self, more):
        """One of the data connections is cut after so many more bytes."""
        with self.lock:
            for p in self.pairs:
                if p.kind == DATA:
                    p.cut_at = p.passed + more

    def passed(self, kind):
        with self.lock:
            return sum(p.passed for p in self.pairs if p.kind == kind)

    def stop(self):
        self.stopping = True
        self.thread.join()
        self.cut()
        self.listener.close()

    # ---- the thread

    def run(self):
        while not self.stopping:
            with self.lock:
                selector = selectors.DefaultSelector()
                selector.register(self.listener, selectors.EVENT_READ)
                for p in self.pairs:
                    if p.kind in self.held:
                        continue
                    for s in p.ends:
                        events = selectors.EVENT_READ if len(p.out[p.other(s)]) < PIECE * 4 else 0
                        events |= selectors.EVENT_WRITE if p.out[s] else 0
                        if events:
                            selector.register(s, events, p)
                ready = selector.select(0)
                for key, events in ready:
                    if key.data is None:
                        self.accept()
                    elif not key.data.dead:
                        self.forward(key.data, key.fileobj, events)
                selector.close()
                self.pairs = [p for p in self.pairs if not p.dead]
            if not ready:
                time.sleep(0.001)
            elif self.delay:
                time.sleep(self.delay)

    def accept(self):
        near, _ = self.listener.accept()
        try:
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            far.settimeout(5)
            far.connect(self.to)
        except OSError:
            near.close()
            far.close()
            return
        for s in (near, far):
            s.setblocking(False)
        self.pairs.append(Pair(near, far))

    def forward(self, p, end, events):
        try:
            if events & selectors.EVENT_READ:
                data = end.recv(PIECE)
                if not data:
                    p.close()
                    return
                if p.kind is None and end is p.ends[0]:
                    p.kind = data[:8]
                p.out[p.other(end)] += data
                p.passed += len(data)
            if events & selectors.EVENT_WRITE:
                n = end.send(p.out[end])
                p.out[end] = p.out[end][n:]
        except BlockingIOError:
            return
        except OSError:
            p.close()
            return
        if p.kind == DATA and (p.passed > (p.cut_at or p.passed) or
                               self.each and p.passed > self.each):
            p.close()
            self.cuts += 1

# SPDX-License-Identifier: Apache-2.0
"""Attempts that break, seen from an owner that says what a test wants, when it wants.

They were found by tests/model.
"""
import pytest

from conftest import wait_until
from fake_peer import FakeListener, data_frame
from test_raw_requests import BLOCK, Owner
from wire import STATUS

NUMBER = {name: n for n, name in STATUS.items()}
TRANSPORT, CANCELED = NUMBER["TRANSPORT"], NUMBER["CANCELED"]


class Reader:
    """A client of a real daemon, whose transfers go to an owner that we play."""

    def __init__(self, kvtd, listener, *args):
        self.l = listener
        self.daemon = kvtd(*args, config="transport { tcp_threads = 2 }")
        self.client = Owner(self.daemon, name="reader")
        self.token = listener.token()
        self.streams = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for s in self.streams:
            s.close()
        self.client.close()

    def connect(self, access=1):
        """Both connections of the first transfer, its open, and the data connections."""
        self.peer = self.l.accept(self.daemon, streams=2)
        self.streams = [self.l.accept_data(self.peer) for _ in range(2)]
        opened = self.peer.frame("grant_open")
        self.open = opened["open"]
        self.peer.send("grant_opened", open=self.open, access=access)

    def start(self):
        return self.peer.frame("xfer_start")

    def answer(self, xfer, status=0):
        self.peer.send("xfer_end", xfer=xfer, status=status, open=self.open,
                       text="" if status == 0 else "said a test")

    def state(self, n):
        return {r["state"] for r in self.daemon.rows("TRANSFER")
                if r["role"] == "initiator" and r["handle"] == n}

    def nothing_starts(self):
        self.peer.pump(0.2)
        assert not [f for f in self.peer.frames if "xfer_start" in f]

    def ended(self, n):
        """How it ends. Until then nothing is tried again."""
        ends = {}

        def over():
            self.peer.pump()
            assert not [f for f in self.peer.frames if "xfer_start" in f]
            while self.client.receive(0):
                pass
            ends.update((e["transfer_ended"]["transfer"], e["transfer_ended"])
                        for e in self.client.events if "transfer_ended" in e)
            return n in ends

        wait_until(f"transfer {n} has ended", over)
        return STATUS[ends[n].get("status", 0)]


def test_canceled_while_a_broken_attempt_is_fenced(kvtd):
    """It ends as canceled. It is not tried again because the owner then speaks of the breakage."""
    with FakeListener() as l, Reader(kvtd, l, "--fault", "delay-chunk=1500") as r:
        r.client.transfer(1, "OP_PULL", r.token, 1, [1, 2])
        r.connect()
        xfer = r.start()["xfer"]
        # a thread is inside, for a while
        r.streams[0].sendall(data_frame(xfer, 0, bytes(2 * BLOCK), opener=False)[:100])
        r.peer.pump(0.3)
        r.streams[1].close()
        wait_until("it is being fenced", lambda: r.state(1) == {"fencing"})
        r.client.ask("transfer_cancel", transfer=1)
        assert r.state(1) == {"fencing"}
        r.answer(xfer, TRANSPORT)
        assert r.ended(1) == "CANCELED"


def test_final_behind_one_that_failed(kvtd):
    """A push fails, as often as it is tried. The final behind it ends with it, and is not tried again
    by itself: it would count."""
    with FakeListener() as l, Reader(kvtd, l, "--fault", "delay-chunk=1500") as r:
        r.client.transfer(1, "OP_PUSH", r.token, 1, [1, 2])
        r.client.transfer(2, "OP_PUSH", r.token, 1, [3, 4], final=True)
        r.connect(access=2)
        one, final = r.start(), r.start()
        assert final["final"] and final["after"] == 1
        for _ in range(3):
            r.answer(one["xfer"], TRANSPORT)
            r.nothing_starts()  # what is counted before the final stays as it is while it is judged
            r.answer(final["xfer"], TRANSPORT)
            one, final = r.start(), r.start()
            assert final["final"] and final["after"] == 1
        r.peer.send("xfer_go", xfer=final["xfer"])
        wait_until("the final moves", lambda: r.state(2) == {"moving"})
        r.answer(one["xfer"], TRANSPORT)
        assert r.ended(1) == "TRANSPORT"
        r.peer.frame("xfer_abort", xfer=final["xfer"])
        r.answer(final["xfer"], TRANSPORT)
        assert r.ended(2) == "TRANSPORT"


def test_final_behind_a_pull_that_was_counted_twice(kvtd):
    """The owner's OK came when the bytes had been lost: the pull is tried again, and counts again.
    What must have committed before the final is one more then."""
    with FakeListener() as l, Reader(kvtd, l) as r:
        r.client.transfer(1, "OP_PULL", r.token, 1, [1, 2])
        r.client.transfer(2, "OP_PULL", r.token, 1, [3, 4])
        r.client.transfer(3, "OP_RELEASE", r.token)
        r.connect()
        one, two, three = r.start(), r.start(), r.start()
        assert (three["op"], three["after"]) == (3, 2)
        r.streams[0].close()
        r.peer.frame("xfer_abort", xfer=one["xfer"])
        r.peer.frame("xfer_abort", xfer=two["xfer"])
        r.answer(one["xfer"], TRANSPORT)
        r.answer(two["xfer"])  # committed; its abort came too late
        r.answer(three["xfer"], TRANSPORT)
        starts = [r.start() for _ in range(3)]
        final = [s for s in starts if s["op"] == 3]
        try:
            assert len(final) == 1
            assert final[0]["after"] == 3
        finally:
            for s in starts:
                r.answer(s["xfer"], CANCELED)
            for n in (1, 2, 3):
                r.client.event("transfer_ended")


@pytest.mark.parametrize("status, after", [(0, 2), (CANCELED, 1)], ids=["counted", "not counted"])
def test_final_behind_one_that_was_canceled(kvtd, status, after):
    """Canceled, but the owner may have counted it: what is behind waits for its word."""
    with FakeListener() as l, Reader(kvtd, l) as r:
        r.client.transfer(1, "OP_PULL", r.token, 1, [1, 2])
        r.client.transfer(2, "OP_PULL", r.token, 1, [3, 4])
        r.connect()
        one, two = r.start(), r.start()
        r.client.ask("transfer_cancel", transfer=1)
        r.peer.frame("xfer_abort", xfer=one["xfer"])
        r.client.event("transfer_ended")
        r.client.transfer(3, "OP_RELEASE", r.token)
        r.nothing_starts()
        r.answer(one["xfer"], status)
        final = r.start()
        assert (final["op"], final["after"]) == (3, after)
        for s in two, final:
            r.answer(s["xfer"], CANCELED)
        for _ in range(2):
            r.client.event("transfer_ended")

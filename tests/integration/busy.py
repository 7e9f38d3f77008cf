# SPDX-License-Identifier: Apache-2.0
"""Two clients of one daemon that hand blocks over all the time, while something else goes on.

    with Busy(daemon, actor) as b:
        b.compare("what goes on", lambda stop: ...)    paired intervals, the ratio is printed
Every byte is compared; a hand-over that took longer than STALL fails.
"""
import statistics
import threading
import time

from wire import SLOW

STALL = 3 * SLOW     # of one hand-over: far beyond what any of them needs
INTERVAL = 0.7


class Busy:
    def __init__(self, daemon, actor):
        self.owner, self.reader = actor(daemon, "name=busy"), actor(daemon, "name=busy")
        self.owner.cache("A", 16, 1, 65536, "guard=4096")
        self.reader.cache("B", 16, 1, 65536, "guard=4096")
        self.stopping, self.error = False, None
        self.ends, self.longest = [], 0
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *rest):
        self.stopping = True
        self.thread.join()
        if kind is None:
            self.check()
            self.owner.exit()
            self.reader.exit()

    def check(self):
        assert self.error is None, repr(self.error)
        assert self.ends and self.longest < STALL, self.longest

    def run(self):
        try:
            n = 0
            while not self.stopping:
                n += 1
                start = time.monotonic()
                self.once(n)
                self.ends.append(time.monotonic())
                self.longest = max(self.longest, self.ends[-1] - start)
        except Exception as e:
            self.error = e

    def once(self, n):
        o, r = self.owner, self.reader
        o.ok(f"fill {n} A:0-15")
        r.ok(f"noise B {n}")
        token = o.grant("g", "read A:0-15")
        assert r.run("x", "pull", token, "B:15-0 final") == "OK"
        assert r.stats("x")["path"] == "local"
        r.ok(f"check {n} B:15-0")
        r.ok("changed B B:0-15")
        assert o.gwait("g") == "OK"
        o.ok("gfree g")
        r.ok("free x")

    def rate(self, seconds):
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        return sum(start < t <= end for t in list(self.ends)) / (end - start)

    def compare(self, name, attack, rounds=3, seconds=INTERVAL):
        """attack(stop) runs until stop is set, in a thread; what it returned last."""
        ratios, got, errors = [], None, []
        longest_quiet = 0

        def work(stop):
            nonlocal got
            try:
                got = attack(stop)
            except Exception as e:
                errors.append(e)
        for _ in range(rounds):
            self.longest = 0
            quiet = self.rate(seconds)
            longest_quiet = max(longest_quiet, self.longest)
            stop = threading.Event()
            t = threading.Thread(target=work, args=(stop,), daemon=True)
            t.start()
            under = self.rate(seconds)
            stop.set()
            t.join()
            assert not errors, repr(errors[0])
            self.check()
            ratios.append(under / quiet if quiet else 0)
        print(f"{name}: {statistics.median(ratios):.2f} of the rate without it "
              f"({', '.join('%.2f' % r for r in ratios)}; the longest hand-over "
              f"{self.longest * 1000:.1f} ms, without it {longest_quiet * 1000:.1f} ms)")
        return got

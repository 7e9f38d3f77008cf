# SPDX-License-Identifier: Apache-2.0
"""A daemon in a folder of its own, for tests of what runs beside it."""
import os
import pathlib
import subprocess

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
SLOW = 4 if os.environ.get("KVT_SANITIZE") else 1


class Node:
    """A daemon that can be killed and started again on the same socket."""

    def __init__(self, folder, name):
        self.folder = folder / name
        self.folder.mkdir()
        self.name = name
        self.socket = self.folder / "kvtd.sock"
        (self.folder / "kvtd.conf").write_text("")
        self.process = None

    def start(self):
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(
                [BUILD / "kvtd", "-f", "-c", self.folder / "kvtd.conf", "-n", self.name,
                 "-s", self.socket, "-a", self.folder / "admin.sock", "-l", "127.0.0.1:0",
                 "--insecure-loopback"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        try:
            assert self.process.wait(10 * SLOW) == 0
        finally:
            self.process.kill()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""sniff.py CARD READY STOP: counts frames that go over a card, and those of them that hold 512
bytes of zero in a row, as zeroes that are sent in the clear do. Creates READY, ends when STOP
is there, prints "FRAMES ZEROES"."""
import os
import socket
import sys

card, ready, stop = sys.argv[1:]
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
    s.bind((card, 0))
    s.settimeout(0.2)
    open(ready, "w").close()
    frames = zeroes = 0
    while True:
        try:
            frame = s.recv(1 << 17)
        except TimeoutError:
            if os.path.exists(stop):
                break
            continue
        frames += 1
        zeroes += bytes(512) in frame
    print(frames, zeroes)

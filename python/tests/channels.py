# SPDX-License-Identifier: BSD-3-Clause
"""Connected channels for tests: two of this process, or one to another process."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import pier
from support import PATIENCE, Case

# Of a peer that was killed: the device notices that its connection ends, or gets no answer.
GONE = (pier.ConnectionLost, pier.TimedOut)
HERE = pathlib.Path(__file__).resolve().parent


def connect_pair(one, other):
    """Connect two channels of this process."""
    near, far = socket.socketpair()
    with near, far:
        thread = threading.Thread(target=other.handshake, args=(far,), kwargs={"timeout": PATIENCE})
        thread.start()
        one.handshake(near, timeout=PATIENCE)
        thread.join()


class ChannelCase(Case):
    """Has two connected channels, near and far, and registered memory for each."""

    LENGTH = 1 << 16
    ATTRIBUTES = {}

    def setUp(self):
        super().setUp()
        self.near_bytes = bytearray(os.urandom(self.LENGTH))
        self.far_bytes = bytearray(os.urandom(self.LENGTH))
        self.near_region = self.register(self.near_bytes)
        self.far_region = self.register(self.far_bytes)
        self.near, self.far = self.pair(**self.ATTRIBUTES)

    def register(self, memory):
        region = self.pd.register(memory)
        self.addCleanup(region.close)
        return region

    def channel(self, **attributes):
        channel = pier.Channel(self.pd, **{"timeout": PATIENCE, **attributes})
        self.addCleanup(channel.close)
        return channel

    def pair(self, **attributes):
        near, far = self.channel(**attributes), self.channel(**attributes)
        connect_pair(near, far)
        return near, far


class Peer:
    """Another process with a channel: see the end of this file."""

    def __init__(self, channel, length=1 << 16):
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "channels.py"), str(theirs.fileno()), str(length)],
                pass_fds=[theirs.fileno()], preexec_fn=lambda: signal.alarm(int(PATIENCE) * 2))
        self.socket.settimeout(PATIENCE)
        channel.handshake(self.socket, timeout=PATIENCE)
        self.remote = pier.Remote.from_text(self.ask(""))

    def ask(self, command):
        if command:
            self.socket.sendall(command.encode() + b"\n")
        with self.socket.makefile() as lines:
            return lines.readline().rstrip("\n")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.socket.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()


def serve(sock, length):
    """Register memory, connect, and answer questions about the memory until the socket is closed."""
    memory = bytearray(length)
    with pier.ProtectionDomain("soft0") as pd, pd.register(memory) as region, pier.Channel(pd) as channel:
        channel.handshake(sock)
        sock.sendall(str(region.remote).encode() + b"\n")
        for line in sock.makefile():
            if line == "receive\n":
                result = channel.recv(region, timeout=PATIENCE)
                answer = "%d %s" % (result.length, result.immediate)
            elif line == "pid\n":
                answer = str(os.getpid())
            else:  # "A B": the bytes in between
                first, end = map(int, line.split())
                answer = memory[first:end].hex()
            sock.sendall(answer.encode() + b"\n")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))

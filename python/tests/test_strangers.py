#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Strangers at the doors of the package, and at that of soft0."""

import errno
import os
import socket
import subprocess
import sys
import threading
import unittest

import pier
import serving
from pier import _peers
from pier.data import connect
from strangers import Strangers
from support import PATIENCE

TOKEN = serving.TOKEN
STORE = """
import pier, sys
store = pier.TCPStore("127.0.0.1", 0, serve=True, token=sys.argv[1])
print(store.port, flush=True)
sys.stdin.read()
"""
# The other process is told the endpoint of each channel, answers with its own, and sends a message.
SOFT = """
import pier, sys
memory = bytearray(8)
with pier.ProtectionDomain("soft0") as pd, pd.register(memory) as region:
    while True:
        with pier.Channel(pd) as channel:
            print(channel.endpoint.hex(), flush=True)
            line = sys.stdin.readline()
            if not line:
                break
            try:
                channel.connect(bytes.fromhex(line))
                print(channel.recv(region, timeout=float(sys.argv[1])).length, flush=True)
            except pier.Error as error:
                print(error, flush=True)
"""


class Process:
    """A program that listens, until the case ends."""

    def start(self, program, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", program, *map(str, arguments)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PIER_DEVICE": "soft0", **environment})
        self.pid = self.process.pid
        self.addCleanup(self.end)
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.communicate()


class Store(Process, Strangers, unittest.TestCase):
    def setUp(self):
        self.port = int(self.start(STORE, TOKEN))

    def dial(self):
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def call(self):
        with pier.TCPStore("127.0.0.1", self.port, token=TOKEN, timeout=PATIENCE) as store:
            store.set("key", b"value")
            self.assertEqual(store.get("key"), b"value")


class Data(Strangers, serving.Case):
    COUNT = 3

    def setUp(self):
        super().setUp()
        server = self.serve()
        self.pid, self.url = server.process.pid, server.url
        self.port = int(server.address.rpartition(":")[2])

    def dial(self):
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def call(self):
        with connect(self.url, device="soft0", timeout=PATIENCE) as connection:
            connection.ping(PATIENCE)


class Soft(Process, Strangers, unittest.TestCase):
    """Processes of the same user may connect to its Unix socket, and have no secret either."""

    def setUp(self):
        self.endpoint = self.start(SOFT, PATIENCE / 2)
        self.name = self.find_name()

    def find_name(self):
        links = [os.readlink("/proc/%d/fd/%s" % (self.pid, number))
                 for number in os.listdir("/proc/%d/fd" % self.pid)]
        with open("/proc/net/unix") as table:
            rows = [line.split() for line in table]
        # Flag 00010000 is that of a socket that listens.
        return next("\0" + row[7][1:] for row in rows
                    if len(row) == 8 and row[3] == "00010000" and "socket:[%s]" % row[6] in links)

    def dial(self):
        sock = socket.socket(socket.AF_UNIX)
        self.addCleanup(sock.close)
        sock.setblocking(False)
        try:
            sock.connect(self.name)
        except BlockingIOError:
            pass  # the backlog is full
        return sock

    def call(self):
        """A caller gives up after 5 s, and may try again."""
        for attempt in range(4):
            try:
                return self.call_once()
            except (pier.Error, AssertionError):
                if attempt == 3:
                    raise

    def call_once(self):
        """The end with the lower GID calls: it must be this one."""
        while True:
            with pier.ProtectionDomain("soft0") as pd, pier.Channel(pd) as channel, \
                    pd.register(bytearray(8)) as region:
                if channel.endpoint[28:44] >= bytes.fromhex(self.endpoint)[28:44]:
                    continue
                self.process.stdin.write(channel.endpoint.hex() + "\n")
                self.process.stdin.flush()
                try:
                    channel.connect(bytes.fromhex(self.endpoint))
                    channel.send(region, timeout=PATIENCE)
                finally:
                    answer = self.process.stdout.readline().strip()
                    self.endpoint = self.process.stdout.readline().strip()
                self.assertEqual(answer, "8")
                return


class Doors(unittest.TestCase):
    def test_descriptors_that_are_used_up_are_reported_once(self):
        """accept() is tried again after a pause."""
        pauses = []

        class Door(_peers.Door):
            def _pause(self, error):
                pauses.append(error.errno)
                super()._pause(error)

        class Listener(socket.socket):
            def accept(self):
                if len(pauses) < 3:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return super().accept()

        arrived = threading.Event()
        listener = Listener()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = listener.getsockname()
        door = Door(listener, "pier.test", lambda connection, address: arrived.set(), 1)
        with self.assertLogs("pier.test") as logs:
            door.open()
            with socket.create_connection(address, PATIENCE):
                self.assertTrue(arrived.wait(PATIENCE))
        door.close()
        self.assertEqual(pauses, [errno.EMFILE] * 3)
        self.assertEqual(len(logs.output), 1)


if __name__ == "__main__":
    serving.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The other side on another host: `run --listen` starts it, `run --peer` asks for it.

    hosts.py [HOST] pier cp|perf --server     for pier --rsh, in place of ssh
    hosts.py --peer FD SPEC                   for gpu_copy, in place of its second process

PIER_CARRY_PEER is HOST:PORT:KEY, as `run --listen` prints it. Each request is a TCP
connection with a line of JSON: the key, and

    "meet"                  answers with facts, a line of JSON, and stays open until the run
                            has ended: then the line "end", and the answer is text
    "start", ID, NIC, ...   the connection becomes that program's input and output
    "status", ID            answers with its exit status and its errors
"""

import hmac
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LINE_SECONDS = 30  # until a request is complete
MEET_SECONDS = 60  # until the other host answers
LISTEN_SECONDS = 1800  # until it asks
END_SECONDS = 30  # until a program has ended that nobody talks to
LINE_MAX = 4096
SPEC = re.compile(r"(cuda|hip):\d+((?::\w+)*)$")


class PeerError(Exception):
    """The other host does not answer as it must."""


def receive_line(connection):
    """One byte at a time: what follows is a program's."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) == LINE_MAX:
            raise PeerError("the connection ended")
        line += byte
    return line.decode()


def receive_all(connection):
    parts = iter(lambda: connection.recv(65536), b"")
    return b"".join(parts).decode(errors="replace")


def request(peer, *words):
    """The connection, to HOST:PORT:KEY."""
    host, port, key = peer.rsplit(":", 2)
    connection = socket.create_connection((host.strip("[]"), int(port)), LINE_SECONDS)
    connection.settimeout(None)
    connection.sendall(json.dumps([key, *words]).encode() + b"\n")
    return connection


class Peer:
    """The host that listens, for as long as the run takes."""

    def __init__(self, text):
        self.text = text
        until = time.monotonic() + MEET_SECONDS
        while True:
            try:
                self.connection = request(text, "meet")
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise PeerError("no answer within %d s: %s: is `run --listen` running "
                                    "there?" % (MEET_SECONDS, error.strerror or error)) from None
            time.sleep(0.2)
        try:
            self.connection.settimeout(MEET_SECONDS)
            self.facts = json.loads(receive_line(self.connection))
        except (OSError, ValueError, PeerError):
            raise PeerError("it refuses the key, or another run") from None

    def address(self):
        return self.connection.getpeername()[0]

    def end(self):
        """Tell the other host that this was all. Returns its kernel log."""
        try:
            self.connection.sendall(b"end\n")
            return receive_all(self.connection)
        except OSError as error:
            return "the other host: %s" % error


def listen(port):
    try:
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        address = "::"
    except OSError:
        listener = socket.socket()
        address = "0.0.0.0"
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(16)
    return listener


class Server:
    """
    command     (name, its words, folder of its files, its socket) -> its command
    facts       what the other host is told
    farewell    () -> text for the end
    """

    def __init__(self, command, env, facts, farewell):
        self.command, self.env, self.facts, self.farewell = command, env, facts, farewell
        self.key = secrets.token_hex(8)
        self.started = {}
        self.lock = threading.Lock()
        self.met = self.ended = self.complete = False

    def serve(self, listener):
        """Whether the other host has come and told its end."""
        until = time.monotonic() + LISTEN_SECONDS
        listener.settimeout(0.2)
        with tempfile.TemporaryDirectory(prefix="pier-carry-") as self.folder:
            try:
                while not self.ended and (self.met or time.monotonic() < until):
                    try:
                        connection, _ = listener.accept()
                    except socket.timeout:
                        continue
                    threading.Thread(target=self.answer, args=(connection,), daemon=True).start()
            finally:
                for process, _ in list(self.started.values()):
                    process.kill()
                    process.wait()
        return self.complete

    def answer(self, connection):
        with connection:
            try:
                connection.settimeout(LINE_SECONDS)
                key, what, *words = json.loads(receive_line(connection))
                if hmac.compare_digest(key, self.key):
                    connection.settimeout(None)
                    {"meet": self.meet, "start": self.start, "status": self.status}[what](
                        connection, *words)
            # Of any kind: a request may be anything, from anybody.
            except Exception as error:
                print("a request failed: %s" % (error or type(error).__name__), flush=True)

    def meet(self, connection):
        with self.lock:
            if self.met:
                return
            self.met = True
        print("the other host has come", flush=True)
        # A host that has crashed says no end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        try:
            connection.sendall(json.dumps(self.facts).encode() + b"\n")
            self.complete = receive_line(connection) == "end\n"
            connection.sendall(self.farewell().encode())
        finally:
            self.ended = True

    def start(self, connection, number, nic, name, *words):
        command = self.command(name, words, self.folder, connection.fileno())
        # Where soft0 listens: where the other host has called.
        address = connection.getsockname()[0].replace("::ffff:", "")
        with tempfile.TemporaryFile() as errors:
            # gpu_copy talks over the socket itself.
            ends = [subprocess.DEVNULL, errors] if name == "gpu_copy" else [connection] * 2
            # The program may end, and its status be asked for, before it is noted here.
            with self.lock:
                process = subprocess.Popen(
                    command, stdin=ends[0], stdout=ends[1], stderr=errors, cwd=self.folder,
                    env={**self.env, "PIER_GPU_NIC": nic, "PIER_SOFT_ADDRESS": address,
                         "PIER_GPU_BACKEND": words[0].partition(":")[0] if words else "host"},
                    pass_fds=[connection.fileno()] if name == "gpu_copy" else [])
                self.started[number] = process, os.dup(errors.fileno())

    def status(self, connection, number):
        with self.lock:
            process, errors = self.started.pop(number)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with open(errors, "rb") as file:
            file.seek(0)
            said = file.read().decode(errors="replace")
        connection.sendall(json.dumps([process.returncode, said]).encode() + b"\n")


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def forward(source, connection):
    try:
        for data in iter(lambda: os.read(source, 65536), b""):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other direction notices


def reach(source, target, *words):
    """As ssh: the program's exit status, after its errors on standard error."""
    peer, number = os.environ["PIER_CARRY_PEER"], secrets.token_hex(8)
    signal.signal(signal.SIGTERM, lambda *_: connection.shutdown(socket.SHUT_RDWR))
    connection = request(peer, "start", number, os.environ["PIER_GPU_PEER_NIC"], *words)
    threading.Thread(target=forward, args=(source, connection), daemon=True).start()
    try:
        for data in iter(lambda: connection.recv(65536), b""):
            write_all(target, data)
    except OSError:
        pass  # this side has ended: the other one ends when it sees that
    connection.close()
    status, said = json.loads(receive_line(request(peer, "status", number)))
    for line in said.splitlines():
        print("there: " + line, file=sys.stderr)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        sys.exit(reach(int(sys.argv[2]), int(sys.argv[2]), "gpu_copy", sys.argv[3]))
    sys.exit(reach(0, 1, sys.argv[-2]))

# SPDX-License-Identifier: BSD-3-Clause
"""Runs programs, alone and in pairs of a server and a client, with deadlines."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

from judge import DEVICE, Outcome

# Far beyond what a program takes; the guest is emulated.
SECONDS = 60 if DEVICE == "soft0" else 100
PORT_TRIES = 5
ON_DEVICE = [os.environ["PIER"], "run", "--"] if DEVICE == "soft0" else []


class Running:
    """A program that was started: its output goes to a file, and it leads a process group."""

    def __init__(self, command, env=None, cwd=None, stdin=subprocess.DEVNULL):
        self.command = command
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*ON_DEVICE, *command], stdin=stdin, stdout=self.output, stderr=subprocess.STDOUT, cwd=cwd,
            env={**os.environ, **(env or {})}, start_new_session=True)

    def wait(self, until):
        """True if it has ended by then."""
        try:
            self.process.wait(max(0, until - time.monotonic()))
            return True
        except subprocess.TimeoutExpired:
            return False

    def text(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def end(self):
        """Kill what is left of it, and describe how it ended."""
        ended = self.process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        how = "did not end in time" if ended is None else "status %d" % ended
        lines = "$ %s\n%s\n%s" % (" ".join(map(str, self.command)), self.text().strip(), how)
        self.output.close()
        return ended == 0, lines


def run(command, env=None, seconds=SECONDS):
    """Whether it succeeded, and its output."""
    running = Running(command, env)
    try:
        running.wait(time.monotonic() + seconds)
    finally:
        result = running.end()
    return result


def run_alone(command, env=None, contains=()):
    """The outcome of a program whose output contains all of these."""
    succeeded, text = run(command, env)
    missing = [words for words in contains if words not in text]
    if missing:
        text += "\nthe output does not contain: " + ", ".join(missing)
    return Outcome("passes" if succeeded and not missing else "fails", text)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port):
    """proc_net_tcp.txt: 0A is TCP_LISTEN."""
    wanted = re.compile(r":%04X \S+ 0A " % port)
    for name in "/proc/net/tcp", "/proc/net/tcp6":
        with contextlib.suppress(FileNotFoundError), open(name) as table:
            if wanted.search(table.read()):
                return True
    return False


def listens(server, port, until):
    while time.monotonic() < until and server.process.poll() is None:
        if is_listening(port):
            return True
        time.sleep(0.01)
    return False


def run_once(server_command, client_command, port, env, seconds):
    until = time.monotonic() + seconds
    server, client = Running(server_command, env), None
    results = []
    try:
        if listens(server, port, until):
            client = Running(client_command, env)
            # A server whose client failed would wait for ever.
            if client.wait(until) and client.process.returncode == 0:
                server.wait(until)
            else:
                server.wait(min(until, time.monotonic() + 1))
    finally:
        results = [program.end() for program in (client, server) if program]
    succeeded = len(results) == 2 and all(good for good, _ in results)
    return succeeded, "\n".join(text for _, text in results)


def run_pair(server, client, env=None, seconds=SECONDS):
    """The outcome of server(port) and client(port), which return commands."""
    for _ in range(PORT_TRIES):
        port = free_port()
        succeeded, text = run_once(server(port), client(port), port, env, seconds)
        if succeeded or "in use" not in text:
            break
    return Outcome("passes" if succeeded else "fails", text)

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""
A signal, or the exit of the other side, while the destination is synced and renamed:
the exit status must agree with the destination.
"""

import os
import re
import signal
import sys

from harness import Case, PIER, STUB_RSH, main, read_proc

# Replaces ssh: runs a server that exits after it has sent END (frame 5).
LEAVES_AFTER_END = """#!%s
import os, struct, subprocess, sys, threading
server = subprocess.Popen([%r, "cp", "--server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def pump():
    while data := os.read(0, 65536):
        os.write(server.stdin.fileno(), data)

threading.Thread(target=pump, daemon=True).start()
out = sys.stdout.buffer
out.write(server.stdout.read(16))
kind = None
while kind != 5:
    out.flush()
    header = server.stdout.read(8)
    length, kind = struct.unpack("<II", header)
    out.write(header + server.stdout.read(length))
server.kill()
server.wait()
out.flush()
os._exit(0)
"""


def pipes_of(pid):
    """The ends of pipes that a process has open besides its standard files."""
    found = []
    try:
        names = os.listdir("/proc/%d/fd" % pid)
    except OSError:
        return found
    for name in names:
        try:
            if int(name) > 2 and os.readlink("/proc/%d/fd/%s" % (pid, name)).startswith("pipe:"):
                found.append(name)
        except OSError:
            pass
    return found


def is_pending(pid, number):
    """Whether the process has not taken a signal yet that it blocks."""
    pending = re.search(r"ShdPnd:\t(\w+)", read_proc(pid, "status"))
    return bool(pending and int(pending[1], 16) >> (number - 1) & 1)


class LastMoment(Case):
    def setUp(self):
        super().setUp()
        self.hold = self.folder / "hold"
        self.source = self.file("source", 100_000)
        self.target = self.folder / "copy"

    def held(self, kind, *arguments, **options):
        """A copy that is inside fsync(2) of the file or of the directory, and its receiver."""
        self.target.write_bytes(b"old")
        process = self.start("cp", *arguments,
                             env=self.preload("HOLD_FSYNC", HOLD_KIND=kind, HOLD=str(self.hold)),
                             **options)
        self.wait_for(lambda: self.holder() or process.poll() is not None, "no fsync(2)")
        return process, self.holder()

    def holder(self):
        return int(self.hold.read_text() or 0) if self.hold.exists() else 0

    def release_abandoned(self, receiver):
        """End fsync(2) when the receiver has given the copy up, or was killed."""
        self.wait_for(lambda: not pipes_of(receiver), "the receiver does not end the copy")
        self.hold.unlink()

    def check_verdict(self, process, status):
        result = self.finish(process)
        self.wait_for(lambda: not self.processes(), "processes are left")
        new = self.target.read_bytes() == self.source.read_bytes()
        self.assertEqual(new, result.status == 0, str(result))
        if not new:
            self.assertEqual(self.target.read_bytes(), b"old")
        self.assertIn(result.status, (0, status), str(result))
        return result.status

    def pull_arguments(self):
        return ("--rsh", STUB_RSH, "--remote-pier", PIER, "somewhere:%s" % self.source, self.target)

    def test_a_sending_client_is_interrupted(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                process, receiver = self.held("file", self.source, self.target)
                process.send_signal(number)
                self.release_abandoned(receiver)
                self.assertEqual(self.check_verdict(process, status), status)

    def test_a_receiving_client_is_interrupted(self):
        process, receiver = self.held("file", *self.pull_arguments())
        process.send_signal(signal.SIGINT)
        self.release_abandoned(receiver)
        self.assertEqual(self.check_verdict(process, 130), 130)

    def test_both_sides_are_interrupted(self):
        for arguments in ((self.source, self.target), self.pull_arguments()):
            with self.subTest(arguments):
                process, receiver = self.held("file", *arguments, start_new_session=True)
                os.killpg(process.pid, signal.SIGINT)
                self.release_abandoned(receiver)
                self.assertEqual(self.check_verdict(process, 130), 130)

    def stopped_after(self, signal_to_server):
        """A client that slept while its server ended, and is interrupted as it wakes up."""
        process, server = self.held("file", self.source, self.target)
        process.send_signal(signal.SIGSTOP)
        self.wait_for(lambda: "\nState:\tT" in read_proc(process.pid, "status"), "it runs")
        if signal_to_server:
            os.kill(server, signal_to_server)
            self.release_abandoned(server)
        else:
            self.hold.unlink()
        self.wait_for(lambda: server not in self.processes(), "the server is left")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        return process

    def test_a_report_crosses_that_of_the_other_side(self):
        """The client's report meets a closed pipe, in which the server's report is left."""
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                process = self.stopped_after(number)
                self.assertEqual(self.check_verdict(process, status), status)

    def test_a_report_crosses_the_end_of_the_copy(self):
        """The client's report meets a closed pipe, in which DONE is left."""
        self.assertEqual(self.check_verdict(self.stopped_after(None), 0), 0)

    def test_a_receiving_server_is_interrupted(self):
        process, server = self.held("file", self.source, self.target)
        os.kill(server, signal.SIGINT)
        self.release_abandoned(server)
        self.assertEqual(self.check_verdict(process, 130), 130)

    def release_after_signal(self, pid):
        self.wait_for(lambda: not is_pending(pid, signal.SIGINT), "the signal is not taken")
        self.hold.unlink()

    def release_after_report(self, client):
        self.wait_for(lambda: len(pipes_of(client)) < 2, "the client does not report its signal")
        self.hold.unlink()

    def test_a_signal_after_the_rename_is_ignored(self):
        """The directory is being synced: the copy can no longer fail."""
        for who in ("client", "server", "both"):
            with self.subTest(who):
                process, server = self.held("directory", self.source, self.target,
                                            start_new_session=True)
                if who == "both":
                    os.killpg(process.pid, signal.SIGINT)
                else:
                    os.kill(process.pid if who == "client" else server, signal.SIGINT)
                if who == "server":
                    self.release_after_signal(server)
                else:
                    self.release_after_report(process.pid)
                self.assertEqual(self.check_verdict(process, 0), 0)

    def test_a_signal_after_the_rename_of_a_pulled_file_is_ignored(self):
        process, receiver = self.held("directory", *self.pull_arguments())
        process.send_signal(signal.SIGINT)
        self.release_after_signal(receiver)
        self.assertEqual(self.check_verdict(process, 0), 0)

    def test_a_server_that_exits_after_end_does_not_fail_the_copy(self):
        program = self.folder / "leaves"
        program.write_text(LEAVES_AFTER_END % (sys.executable, PIER))
        program.chmod(0o755)
        for kind in ("file", "directory"):
            with self.subTest(kind):
                process, receiver = self.held(kind, "--rsh", "'%s'" % program,
                                              "somewhere:%s" % self.source, self.target)
                self.release_abandoned(receiver)
                self.assertEqual(self.check_verdict(process, 0), 0)

    def test_a_killed_client_leaves_the_old_file(self):
        process, receiver = self.held("file", self.source, self.target)
        process.kill()
        self.release_abandoned(receiver)
        self.finish(process)
        self.wait_for(lambda: not self.processes(), "the server is left")
        self.assertEqual(self.target.read_bytes(), b"old")


main()

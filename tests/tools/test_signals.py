#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Either process is killed, stopped or interrupted during a copy."""

import os
import signal
import subprocess
import time

from harness import Case, MIB, PATIENCE, PIER, STUB_RSH, main

# In seconds: the default of --timeout.
TIMEOUT = 30


class Local(Case):
    """Both processes on this host, started by one command."""

    options = ()
    place = "copy"

    def slow(self, **options):
        return self.start_slowly(*self.options, target=self.place, **options)

    def test_a_killed_server_fails_the_copy(self):
        process = self.slow()
        os.kill(self.server_of(process), signal.SIGKILL)
        self.failure_of(process, 4, "ended before the copy was complete: .*(signal 9|status 137)")

    def test_the_server_exits_when_the_client_is_killed(self):
        process = self.slow()
        process.kill()
        self.finish(process)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.wait_for(lambda: not self.processes(), "the server is left")
        self.assertFalse((self.folder / "copy").exists())

    def test_a_signal_to_the_client_ends_the_copy(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            with self.subTest(number):
                process = self.slow()
                process.send_signal(number)
                self.failure_of(process, status, "interrupted|terminated")

    def test_a_signal_to_the_server_ends_the_copy(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                process = self.slow()
                os.kill(self.server_of(process), number)
                self.failure_of(process, status, "interrupted|terminated")

    def test_ctrl_c_ends_both_sides(self):
        """A terminal sends SIGINT to both processes."""
        for _ in range(5):
            process = self.slow(start_new_session=True)
            os.killpg(process.pid, signal.SIGINT)
            self.failure_of(process, 130, r"\Apier: interrupted\n\Z")

    def test_a_stopped_server_times_out(self):
        process = self.slow()
        os.kill(self.server_of(process), signal.SIGSTOP)
        self.failure_of(process, 4, "no progress|did not respond", PATIENCE)

    def test_the_server_times_out_if_the_client_is_stopped(self):
        process = self.slow()
        server = self.server_of(process)
        process.send_signal(signal.SIGSTOP)
        self.wait_for(lambda: server not in self.processes(), "the server does not time out")
        self.assertFalse((self.folder / "copy").exists())
        process.kill()
        self.finish(process)

    def test_ctrl_c_works_while_the_server_is_stopped(self):
        process = self.slow()
        os.kill(self.server_of(process), signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        self.failure_of(process, 130, "interrupted")

    def test_an_interrupted_copy_keeps_the_old_file(self):
        old = self.file("copy", b"old")
        process = self.slow()
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process).status, 130)
        self.assertEqual(old.read_bytes(), b"old")

    def test_a_copy_continues_after_both_sides_were_stopped(self):
        """Ctrl-Z stops both sides, and fg continues them."""
        source = self.file("slow", 12 * MIB)
        process = self.slow(source=source)
        both = [process.pid, *(p for p in self.processes() if p != process.pid)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in both:
                os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(TIMEOUT + 3)
        self.assertEqual(self.finish(process).status, 0)
        self.check_same(source, self.folder / "copy")

    def test_a_low_rate_limit_does_not_time_out(self):
        """With a low rate limit, one chunk takes longer than the timeout."""
        source = self.file("little", 80 * 1024)
        result = self.copy("--bwlimit", "1K", "--chunk", "40K", source, "slowly")
        self.assertGreater(result.seconds, TIMEOUT + 5, "a chunk in 40 seconds")
        self.check_same(source, self.folder / "slowly")


class Remote(Local):
    """The receiver is behind a remote shell."""

    options = ("--rsh", STUB_RSH, "--remote-pier", PIER)

    def setUp(self):
        super().setUp()
        self.place = "somewhere:%s" % (self.folder / "copy")


class Nohup(Case):
    def test_an_ignored_signal_stays_ignored(self):
        self.file("source", MIB)
        def ignore():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        process = self.start("cp", "--progress", "--bwlimit", "512K", "source", "copy",
                             preexec_fn=ignore)
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process).status, 0)


class Descriptors(Case):
    def test_closed_standard_descriptors_are_harmless(self):
        source = self.file("source", MIB)
        line = 'exec "$0" cp "$1" "$2" <&- >&- 2>&-'
        status = subprocess.run(["sh", "-c", line, PIER, source, self.folder / "copy"],
                                env=self.environment(), timeout=60).returncode
        self.assertEqual(status, 0)
        self.check_same(source, self.folder / "copy")


main(at_once=16)

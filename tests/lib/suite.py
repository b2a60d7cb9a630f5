# SPDX-License-Identifier: BSD-3-Clause
"""A suite of tests: its environment, its deadline, and running a program of it."""

import contextlib
import os
import pathlib
import shutil
import signal
import tempfile
import time

from process import STOPS, Deadline, end_orphans, processor_seconds, run, say
from tap import Reader, Tally

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Seconds in which the programs of a suite must end: several times what two cores need,
# because a slow machine is no failure. They count only while one of its programs runs.
DEADLINES = {"fuzz": 800, "bench": 3600, "asan": 2400, "tsan": 2400, "vm": 2400, "vm-arm": 2400,
             "configurations": 7200, "fresh": 3600, "packages": 5400}
DEADLINE = 1800

# Whose programs print more than cases.
SHOWN = {"bench", "bench-smoke", "gpu", "hosts", "nic"}

# Variables of the caller that would change the outcome.
UNSET = ("PIER_DEVICE", "PIER_LOG", "PIER_BACKEND_PATH", "PIER_CANARY", "PIER_PEERMEM",
         "PIER_RELAXED_ORDERING", "PIER_NIXL_ADDRESS", "PIER_NIXL_ANY_VERSION",
         "PIER_NIXL_CACHE", "PIER_NIXL_CONNECT_TIMEOUT", "PIER_NIXL_POLICY",
         "PIER_NIXL_RAILS", "PIER_NIXL_SERVICE_LEVEL", "PIER_NIXL_TIMEOUT", "PIER_NIXL_TRAFFIC_CLASS",
         "NIXL_PLUGIN_DIR", "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "DESTDIR", "MESONARGS")

SANITIZER_ENV = {
    "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1:detect_stack_use_after_return=1:"
                    "strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


@contextlib.contextmanager
def temporary_folder():
    """A new folder, and its path. An interrupt that comes while it is made or removed waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        folder = tempfile.mkdtemp(prefix="pier-")
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            yield folder
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def clean_environment():
    """The caller's environment, without variables that would change the outcome."""
    env = {k: v for k, v in os.environ.items() if k not in UNSET}
    # The fake HIP driver needs nothing of this kernel: backends/hip/load.c.
    env.update(PIER_DMABUF="on")
    env.update(LC_ALL="C", CMOCKA_MESSAGE_OUTPUT="TAP", PIER_TESTS_ROOT=str(ROOT))
    env.update(SANITIZER_ENV)
    return env


class Clock:
    """The seconds during which at least one program of a suite runs."""

    def __init__(self):
        self.running = 0
        self.since = 0
        self.before = 0
        # Processor seconds of all programs together.
        self.used = 0

    def start(self):
        if not self.running:
            self.since = time.monotonic()
        self.running += 1

    def stop(self, used):
        self.running -= 1
        self.used += used
        if not self.running:
            self.before += time.monotonic() - self.since

    def __str__(self):
        return "%.0f s (%.0f s of processors)" % (self.seconds(), self.used)

    def seconds(self):
        return self.before + (time.monotonic() - self.since if self.running else 0)


class Suite:
    """One suite while it runs: its tally, its clock and its environment."""

    patience = 1  # of the time limits of its programs

    def __init__(self, name, strict=False, whole=True):
        self.name = name
        self.strict = strict  # no program is run again
        self.whole = whole  # also what is left to a release
        self.tally = Tally()
        self.clock = Clock()
        self.env = clean_environment()
        self.shows_all = name in SHOWN or os.environ.get("PIER_TEST_OUTPUT") == "all"

    def deadline(self):
        return DEADLINES.get(self.name, DEADLINE)

    def left(self):
        return self.deadline() - self.clock.seconds()

    def fail(self, problem):
        say("not ok - %s: %s" % (self.name, problem))
        self.tally.failed.append("%s: %s" % (self.name, problem))

    def program(self, name, argv, seconds, env=None, cwd=ROOT):
        """Run a test program in an empty temporary folder, which it must empty.

        What it leaves running must become a child of this process: adopt_orphans().
        Its output is shown if a case fails.
        """
        title = "%s: %s" % (self.name, name)
        reader = Reader(title)
        kept = []
        started, used = time.monotonic(), processor_seconds()

        def line(text):
            (say if self.shows_all else kept.append)(text)
            reader.line(text)

        try:
            self.run_and_count(reader, line, argv, min(seconds, self.left()), env, cwd)
        finally:
            if reader.tally.failed or not reader.ended:
                for text in kept:
                    say(text)
        for failure in reader.tally.failed:
            say("failed: " + failure)
        say("-- %s: %s in %.0f s (%.0f s of processors)" % (
            title, reader.tally, time.monotonic() - started, processor_seconds() - used))
        return reader.tally

    def program_twice(self, *args):
        """Like program(), but one that fails is run again at once."""
        tally = self.program(*args)
        if not tally.is_worth_another_run():
            return tally
        again = self.program(*args)
        again.replace(tally)
        return again

    def run_and_count(self, reader, line, argv, seconds, env, cwd):
        with temporary_folder() as folder:
            env = {**self.env, "TMPDIR": folder, **(env or {})}
            try:
                reader.end(run([str(a) for a in argv], seconds, line, env, cwd))
            except Deadline:
                reader.fail("did not end within %d s, killed" % seconds)
            # TSan makes this file when a program starts, and unlinks it at once.
            left = ["file " + name for name in sorted(os.listdir(folder))
                    if not name.startswith("tsan.rodata.")]
        left += ["process " + line for line in end_orphans(0 if reader.tally.failed else 2)]
        if left and not reader.tally.failed:
            reader.fail("left behind: " + ", ".join(left))
            reader.is_grave = True
        reader.tally.final = bool(reader.tally.failed) and reader.is_grave
        reader.ended = True

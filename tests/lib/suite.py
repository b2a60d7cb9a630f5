# SPDX-License-Identifier: BSD-3-Clause
"""A suite of tests/run: its environment, its build folder and its programs."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from process import Deadline, echo, end_orphans, run, say
from tap import Reader, Tally

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Seconds, well above what two slow cores need: for the programs of a suite, and
# before that once more for its build, which is slow on a fresh machine only.
DEADLINES = {"lint": 600, "unit": 600, "conformance": 600, "hostile": 600,
             "consumer": 300, "fuzz": 400, "asan": 1200, "tsan": 1200, "bench": 3600, "vm": 1200, "gpu": 1800}

# What would change the outcome from outside.
UNSET = ("PIER_DEVICE", "PIER_LOG", "PIER_BACKEND_PATH", "CC", "CXX", "CFLAGS",
         "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "DESTDIR", "MESONARGS")

SANITIZER_ENV = {
    "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1:detect_stack_use_after_return=1:"
                    "strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


class Suite:
    """One suite while it runs: its tally, its deadline and its environment."""

    def __init__(self, name):
        self.name = name
        self.tally = Tally()
        self.started = time.monotonic()
        self.start_deadline()
        self.env = {k: v for k, v in os.environ.items() if k not in UNSET}
        self.env.update(LC_ALL="C", CMOCKA_MESSAGE_OUTPUT="TAP", PIER_TESTS_ROOT=str(ROOT))
        self.env.update(SANITIZER_ENV)

    def start_deadline(self):
        self.until = time.monotonic() + DEADLINES.get(self.name, 60)

    def left(self):
        return self.until - time.monotonic()

    def fail(self, what):
        say("not ok - %s: %s" % (self.name, what))
        self.tally.failed.append("%s: %s" % (self.name, what))

    def step(self, what, argv):
        """A step that must succeed and is no test case; printed if it fails."""
        say("-- %s: %s" % (self.name, what))
        output = []
        try:
            # A copy, since another thread may be setting one.
            status = run([str(a) for a in argv], self.left(), output.append, dict(self.env), ROOT)
            problem = "%s failed" % what
        except Deadline:
            status = 1
            problem = "%s took longer than the %d s of this suite" % (
                what, DEADLINES[self.name])
        if status:
            say("\n".join(output))
            self.fail(problem)
        return status == 0

    def program(self, name, argv, seconds, env=None, cwd=None):
        """Run a test program in an empty temporary folder, which it must empty."""
        say("-- %s: %s" % (self.name, name))
        reader = Reader("%s: %s" % (self.name, name))
        started = time.monotonic()
        seconds = min(seconds, self.left())

        def line(text):
            echo(text)
            reader.line(text)

        with tempfile.TemporaryDirectory(prefix="pier-") as folder:
            env = {**self.env, "TMPDIR": folder, **(env or {})}
            try:
                tally = reader.end(run([str(a) for a in argv], seconds, line, env, cwd))
            except Deadline:
                reader.fail("did not end within %d s, killed" % seconds)
                tally = reader.tally
            left = ["file " + name for name in sorted(os.listdir(folder))]
        left += ["process " + line for line in end_orphans(0 if tally.failed else 2)]
        if left and not tally.failed:
            reader.fail("left behind: " + ", ".join(left))
        if time.monotonic() - started > 5:
            say("-- %s: %s took %.0f s" % (self.name, name, time.monotonic() - started))
        self.tally.add(tally)


def build(suite, compiler, *options):
    """Configure and build in a folder of this suite's own; None if that fails."""
    folder = ROOT / "build" / ("tests-" + options[0])
    wanted = json.dumps([str(ROOT), compiler, options])
    stamp = folder / "tests-run.json"
    suite.env["CC"] = compiler
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        if not suite.step("configure", ["meson", "setup", folder, ROOT, "-Dtests=enabled",
                                        "-Dwerror=true", *options[1:]]):
            return None
        stamp.write_text(wanted)
    if not suite.step("build", ["ninja", "--quiet", "-C", folder]):
        return None
    suite.start_deadline()
    return folder


def meson_tests(folder):
    return json.loads(subprocess.check_output(["meson", "introspect", "--tests", str(folder)]))


def run_meson_tests(suite, folder, wanted, wrapper=(), patience=1):
    """Run those of meson's tests that are in the wanted suites."""
    for test in meson_tests(folder):
        names = {name.split(":")[-1] for name in test["suite"]}
        if not names & wanted:
            continue
        if suite.left() <= 0:
            suite.fail("%s was not run: the %d s of this suite are over" %
                       (test["name"], DEADLINES[suite.name]))
            continue
        suite.program(test["name"], [*wrapper, *test["cmd"]], test["timeout"] * patience,
                      test["env"], test["workdir"] or ROOT)

#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""pyverbs' own test suite, as Debian's python3-pyverbs has it. usage: test_pyverbs.py DEVICE"""

import gzip
import json
import pathlib
import subprocess
import time

from judge import DEVICE, HERE, Judge, Outcome, Place, skip_everything
from programs import Running

TESTS = pathlib.Path("/usr/share/doc/rdma-core/tests")
# Debian makes pyverbs for its own Python alone.
PYTHON = "/usr/bin/python3"
# The longest test takes some seconds in the guest.
SECONDS = 30 if DEVICE == "soft0" else 60


def unpack(folder):
    """Debian compresses the larger files of a package's documentation."""
    folder.mkdir()
    for file in TESTS.iterdir():
        data = file.read_bytes()
        if file.suffix == ".gz":
            data = gzip.decompress(data)
        (folder / file.name.removesuffix(".gz")).write_bytes(data)


def lines_of(file, program):
    """The lines, until the program has ended, or has written nothing for too long."""
    heard, begun = time.monotonic(), ""
    while time.monotonic() - heard < SECONDS:
        ended = program.process.poll() is not None
        part = file.readline()
        begun += part
        if begun.endswith("\n"):
            yield json.loads(begun)
            heard, begun = time.monotonic(), ""
        elif ended and not part:
            return
        elif not part:
            time.sleep(0.01)


def judge_lines(judge, lines):
    """Judge the tests that ended. Returns the test that did not, and whether all were run."""
    current, complete = None, False
    for name, state, text in lines:
        if state == "unused":
            judge.is_unused(name)
        elif state == "end":
            complete = True
        elif state == "begins":
            current = name
        else:
            judge.judge(name, Outcome(state, text))
            current = None
    return current, complete


def run_round(judge, folder, file):
    """Run tests until one crashes or hangs: True then, because the others are to run."""
    unused = [line.pattern.partition(" ")[2] for line in judge.lines if line.state == "unused"]
    program = Running([PYTHON, "-B", HERE / "pyverbs_tests.py", file.name, DEVICE, *unused],
                      cwd=folder)
    try:
        current, complete = judge_lines(judge, lines_of(file, program))
    finally:
        _, text = program.end()
    if current or not complete:
        judge.judge(current or "the tests run", Outcome("fails", text))
    return bool(current)


def main():
    if not TESTS.is_dir() or subprocess.run([PYTHON, "-c", "import pyverbs"],
                                            stderr=subprocess.DEVNULL).returncode:
        skip_everything("no pyverbs for %s (Debian: python3-pyverbs)" % PYTHON)
    judge = Judge("pyverbs")
    with Place() as folder:
        unpack(folder / "tests")
        (folder / "results").touch()
        with open(folder / "results") as file:
            while run_round(judge, folder, file):
                pass
    judge.end()


main()

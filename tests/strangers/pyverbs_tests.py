# SPDX-License-Identifier: BSD-3-Clause
"""Runs pyverbs' own tests, unmodified, and appends lines of JSON to a file: name, state, text.

usage: pyverbs_tests.py RESULTS DEVICE PATTERN...

The state is "begins", and later "passes", "fails" or "skips"; "unused" for tests that match a
pattern; and "end" after the last test. Tests that RESULTS names already do not run again. Runs
in the folder above pyverbs' `tests`. Names are those of unittest, without the leading `tests.`.
"""

import fnmatch
import json
import os
import pathlib
import sys
import traceback
import unittest

# At the end: pyverbs' tests must find their own modules.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from cases import cases_of  # noqa: E402

file, device, patterns = sys.argv[1], sys.argv[2], sys.argv[3:]
with open(file) as earlier:
    done = {json.loads(line)[0] for line in earlier}
results = open(file, "a", buffering=1)
sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "tests")]
sys.argv[1:] = ["--dev", device]


def name_of(test):
    return test.id().partition(".")[2]


def tell(name, state, text=""):
    results.write(json.dumps([name, state, text]) + "\n")


class Teller(unittest.TestResult):
    """Tells what happens to each test."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passes", ""
        tell(name_of(test), "begins")

    def addSkip(self, test, reason):
        self.outcome = "skips", reason

    def addError(self, test, error):
        self.outcome = "fails", self.outcome[1] + "".join(traceback.format_exception(*error))

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error:
            self.addError(test, error)

    def stopTest(self, test):
        super().stopTest(test)
        tell(name_of(test), *self.outcome)


def main():
    from args_parser import parser
    parser.parse_args()
    import tests
    chosen = unittest.TestSuite()
    for test in cases_of(unittest.TestLoader().loadTestsFromModule(tests)):
        name = name_of(test)
        if name in done:
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            tell(name, "unused")
        else:
            chosen.addTest(test)
    chosen.run(Teller())
    tell("", "end")


main()

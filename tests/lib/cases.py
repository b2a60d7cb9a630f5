# SPDX-License-Identifier: BSD-3-Clause
"""Printing test cases, of checks that are scripts and of unittest (testanything.org)."""

import os
import sys
import unittest

# check_lint requests one case; the others must then cost nothing.
ONLY = os.environ.get("PIER_LINT_CASE")


class Cases:
    """Prints a case per check: the problems found, and ok if there are none."""

    def __init__(self):
        self.count = 0
        self.failed = False

    def case(self, name, problems, reason=None):
        """If problems is a generator, the check runs here, unless there is a reason to skip it."""
        if ONLY not in (None, name):
            return
        if reason:
            self.skip(name, reason)
            return
        problems = list(problems)
        self.count += 1
        for problem in problems:
            print("# " + problem)
        self.failed |= bool(problems)
        print("%s %d - %s" % ("not ok" if problems else "ok", self.count, name), flush=True)

    def skip(self, name, reason):
        self.count += 1
        print("ok %d - %s # SKIP %s" % (self.count, name, reason), flush=True)

    def end(self):
        print("1..%d" % self.count)
        sys.exit(1 if self.failed or not self.count else 0)


class TapResult(unittest.TestResult):
    """Prints one line per case, preceded by its errors."""

    count = 0

    def say(self, verdict, test, more=""):
        TapResult.count += 1
        name = test.id().split(".", 1)[-1]
        print("%s %d - %s%s" % (verdict, self.count, name, more), flush=True)

    def complain(self, error, test):
        for line in self._exc_info_to_string(error, test).splitlines():
            print("# " + line)

    def startTest(self, test):
        super().startTest(test)
        self.failed = False

    def stopTest(self, test):
        super().stopTest(test)
        if self.failed:
            self.say("not ok", test)

    def addSuccess(self, test):
        self.say("ok", test)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            print("# in %s" % subtest)
            self.complain(err, test)
            self.failed = True

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.complain(err, test)
        self.failed = True

    def addError(self, test, err):
        self.addFailure(test, err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("ok", test, " # SKIP " + reason)


def run_cases(module, names=()):
    """Run the cases of a module, or those named, print them, and exit."""
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names, module) if names else \
        loader.loadTestsFromModule(module)
    result = TapResult()
    suite.run(result)
    print("1..%d" % TapResult.count)
    sys.exit(0 if not result.failures and not result.errors else 1)

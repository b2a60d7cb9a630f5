# SPDX-License-Identifier: BSD-3-Clause
"""Printing test cases, for checks that are scripts (testanything.org)."""

import os
import sys

# check_lint requests one case; the others must then cost nothing.
ONLY = os.environ.get("PIER_LINT_CASE")


class Cases:
    """Prints a case per check: the problems found, and ok if there are none."""

    def __init__(self):
        self.count = 0
        self.failed = False

    def case(self, name, problems):
        """If problems is a generator, the check runs here."""
        if ONLY not in (None, name):
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

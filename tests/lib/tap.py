# SPDX-License-Identifier: BSD-3-Clause
"""Test cases, counted from a test program's output (testanything.org)."""

import collections
import json
import pathlib
import re

RESULT = re.compile(r"^(ok|not ok)\b *(\d*) *(?:- *)?(.*)$")
PLAN = re.compile(r"^1\.\.(\d+)(?: *# *skip *(.*))?$", re.IGNORECASE)
DIRECTIVE = re.compile(r"^(.*?) *# *(?:skip)(?:ped)? *(.*)$", re.IGNORECASE)
# "skip: reason", also after "#" or after the prefix of cmocka's print_message().
REASON = re.compile(r"^(?:# *|\[ *\] *)?skip(?:ped|ping)?: *(.+)$", re.IGNORECASE)
# What a case prints about itself. The last line of a group of cmocka's is none of that.
COMMENT = re.compile(r"^(?:# *|ERROR: )(?! *(?:not )?ok - )(.+)$")
COMMENT_LENGTH = 300
# The lines in which a sanitizer says what it found: the first of its report, and the summary.
REPORT = re.compile(r"^(?:==\d+== ?)?(?:ERROR|WARNING|FATAL|SUMMARY): "
                    r"(\w+Sanitizer: .+|libFuzzer: (?!timeout).+)$")
CMOCKA_FAILURE = "error: Failure!"  # the end of the last one after a case
# A failure that is no matter of time: a program that fails so is not run again. In what a
# program prints: wrong bytes (cmocka, unittest, cmp(1)), leaks, and children that crash.
GRAVE = re.compile(r"difference at offset|\bdiffer(s|ent)?\b|AssertionError: b['\"]|\bleak"
                   r"|Segmentation fault|Bus error|Aborted|Illegal instruction|core dumped"
                   r"|\b(killed by|died of) signal|\bSIG(SEGV|BUS|ABRT|ILL|FPE)\b", re.IGNORECASE)
# In the line of source that cmocka names: an assertion about bytes, fds or objects.
GRAVE_ASSERTION = re.compile(r"memory|memcmp|byte|guard|census|object|fds|\w\[", re.IGNORECASE)
LOCATION = re.compile(r"([\w./-]+):(\d+): error: Failure!$")
ROOT = pathlib.Path(__file__).resolve().parents[2]

Skip = collections.namedtuple("Skip", "program name reason")


class Tally:
    """The test cases of a run: the number that passed, and the others with reasons."""

    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []
        # Why programs failed that passed when they were run again.
        self.unsteady = []
        # Whether a failure stands although another run might pass.
        self.final = False

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.unsteady += other.unsteady
        self.final |= other.final

    def is_worth_another_run(self):
        return bool(self.failed) and not self.final

    def replace(self, first):
        """The program was run again, because its first run failed so."""
        self.final = bool(self.failed)
        if not self.failed:
            self.unsteady.append(first.failed[0])

    def write(self, file):
        """For another process to read()."""
        file.write_text(json.dumps(vars(self)))

    @classmethod
    def read(cls, file):
        tally = cls()
        vars(tally).update(json.loads(file.read_text()))
        tally.skipped = [Skip(*skip) for skip in tally.skipped]
        return tally

    def total(self):
        return self.passed + len(self.failed) + len(self.skipped)

    def skip_lines(self):
        """The skips, grouped by program and reason."""
        together = {}
        for skip in self.skipped:
            together.setdefault((skip.program, skip.reason), []).append(skip.name)
        for (program, reason), names in together.items():
            what = "%d cases" % len(names) if names[1:] else names[0]
            yield ": ".join(part for part in (program, what, reason) if part)

    def __str__(self):
        return "%d passed, %d failed, %d skipped" % (
            self.passed, len(self.failed), len(self.skipped))


def is_grave(line):
    """Whether a line of a program that fails shows more than that it was slow."""
    location = LOCATION.search(line)
    if not location:
        return bool(GRAVE.search(line) or REPORT.match(line))
    # Relative to the build folder, or to the root where the build is reproducible.
    source = ROOT / re.sub(r"^(\.\./)+", "", location[1])
    try:
        text = source.read_text(errors="replace").splitlines()[int(location[2]) - 1]
    except (OSError, IndexError):
        text = ""
    return bool(GRAVE_ASSERTION.search(text) or "census" in source.name)


class Reader:
    """Reads the lines of one program, and tallies."""

    def __init__(self, program):
        self.program = program
        self.tally = Tally()
        self.planned = 0
        self.saw_tap = False
        self.reason = ""
        self.comment = ""
        self.report = ""
        self.unexplained = False  # the last case failed, and its comments follow
        self.is_grave = False  # if it failed, it is not run again
        # The program has ended, and has left nothing behind.
        self.ended = False

    def line(self, line):
        plan = PLAN.match(line)
        result = RESULT.match(line)
        reason = REASON.match(line)
        comment = COMMENT.match(line)
        report = REPORT.match(line)
        self.is_grave |= is_grave(line)
        if report:
            self.report = report[1]  # the last one names the place
        elif plan:
            self.saw_tap = True
            self.planned += int(plan[1])
            if plan[1] == "0":
                self.skip("", plan[2] or self.reason)
        elif result:
            self.saw_tap = True
            self.result(result[1] == "ok", result[3])
            self.reason = self.comment = ""
        elif reason:
            self.reason = reason[1]
        elif comment and self.unexplained and comment[1].endswith(CMOCKA_FAILURE):
            self.explain(self.comment or comment[1])
        elif comment:
            self.comment = comment[1]

    def explain(self, comment):
        """Say why the last case failed."""
        self.tally.failed[-1] += ": " + comment[:COMMENT_LENGTH]
        self.unexplained = False

    def result(self, passed, name):
        self.unexplained = False
        skip = DIRECTIVE.match(name)
        if skip and skip[1]:
            self.skip(skip[1], skip[2] or self.reason)
        elif skip:
            # cmocka 1.1.5 prints "not ok 2 # SKIP name", and no reason.
            self.skip(skip[2], self.reason)
        elif passed:
            self.tally.passed += 1
        else:
            self.fail(name or "a case")
            self.unexplained = True
            if self.comment:
                self.explain(self.comment)

    def fail(self, name):
        self.tally.failed.append("%s: %s" % (self.program, name))

    def skip(self, name, reason):
        if reason:
            self.tally.skipped.append(Skip(self.program, name, reason))
        else:
            self.fail("%s skipped without a reason" % (name or "a case"))

    def end(self, status):
        """The program ended with this status (as in subprocess)."""
        how = "killed by signal %d" % -status if status < 0 else "exit status %d" % status
        self.is_grave |= status < 0
        if self.report:
            how += " (%s)" % self.report[:COMMENT_LENGTH]
        if not self.saw_tap:
            self.end_without_tap(status, how)
            return self.tally
        missing = self.planned - self.tally.total()
        if status and missing > 0:
            self.fail("%s, %d cases did not run" % (how, missing))
        elif missing > 0:
            self.fail("%d cases of %d did not run" % (missing, self.planned))
        elif status == 77 and self.tally.total() == len(self.tally.skipped):
            pass  # meson's and automake's "skipped": as the cases said
        elif status and not self.tally.failed:
            self.fail("%s after the last case" % how)
        return self.tally

    def end_without_tap(self, status, how):
        if status == 0:
            self.tally.passed += 1
        elif status == 77:  # meson's and automake's "skipped"
            self.skip("", self.reason)
        else:
            self.fail(how)

# SPDX-License-Identifier: BSD-3-Clause
"""Builds and runs the suites of tests/run, and prints the count of their cases.

usage: run_suites.py [--strict] [--whole] [--left-out "SUITE..."] SUITE...
"""

import argparse
import re
import sys
import time

from process import adopt_orphans, processor_seconds, say
from schedule import Failure, Interrupted, Scheduler, Task, default_slots, stop_on_signals
from suite import ROOT, Suite
from suites import BUILDS, SUITES
from tap import Tally

# Suites that need hardware that few machines have.
MAY_SKIP = {"gpu", "nic"}
# More unsteady programs fail the run.
MOST_UNSTEADY = 3
# Known ones, which fail the run.
UNSTEADY = ROOT / "tests/unsteady"
ENTRY = re.compile(r"\d{4}-\d\d-\d\d (\S+: [^:]+): \S.*")


class BuildTask(Task):
    """A build that suites wait for."""

    def __init__(self, everything, build):
        super().__init__("build " + build.name, build=True)
        self.everything = everything
        self.target = build

    def work(self, slots):
        return self.target.run(slots)

    def done(self, result):
        self.everything.end_build(self.target.name, result is True)


class ProgramTask(Task):
    """Runs one program of a suite, or runs it again after it has failed."""

    def __init__(self, everything, suite, program, first=None):
        super().__init__("%s: %s" % (suite.name, program.name), alone=program.alone,
                         urgent=first is not None, priority=program.priority)
        self.everything = everything
        self.suite = suite
        self.program = program
        self.first = first  # the tally of the run that failed

    def start(self):
        self.suite.clock.start()

    def work(self, slots):
        if self.suite.left() <= 0:
            return Failure("was not run: the %d s of this suite are over" % self.suite.deadline())
        return self.program.run(), processor_seconds()

    def done(self, result):
        self.suite.clock.stop(0 if isinstance(result, Failure) else result[1])
        if isinstance(result, Failure):
            self.suite.fail("%s: %s" % (self.program.name, result.reason))
        else:
            tally = result[0]
            if self.first:
                tally.replace(self.first)
            elif self.everything.runs_again(tally):
                say("-- again, alone: " + self.name)
                self.everything.scheduler.add(
                    ProgramTask(self.everything, self.suite, self.program, tally))
                return
            self.suite.tally.add(tally)
        self.everything.end_program(self.suite)


class Everything:
    """The suites of one call of tests/run."""

    def __init__(self, names, strict, whole):
        self.scheduler = Scheduler(default_slots())
        self.strict = strict
        # Name of a build, whether it succeeded.
        self.built = {}
        self.suites = [Suite(name, strict, whole) for name in dict.fromkeys(names)]
        self.waiting = list(self.suites)
        # Name of a suite, number of programs that have not ended.
        self.missing = {}

    def run(self):
        for suite in self.waiting:
            for name, tests in SUITES[suite.name].builds.items():
                BUILDS[name].want(tests)
        needed = [name for suite in self.waiting for name in SUITES[suite.name].builds]
        for name in dict.fromkeys(needed):
            self.scheduler.add(BuildTask(self, BUILDS[name]))
        self.start_suites()
        self.scheduler.run()

    def runs_again(self, tally):
        """Whether a program with this tally is run again. A lost run takes no longer for it."""
        lost = len(self.tally().failed)
        return not self.strict and lost <= MOST_UNSTEADY and tally.is_worth_another_run()

    def tally(self):
        """The tally of all programs that have ended."""
        total = Tally()
        for suite in self.suites:
            total.add(suite.tally)
        return total

    def end_build(self, name, succeeded):
        self.built[name] = succeeded
        self.start_suites()

    def start_suites(self):
        """The suites whose builds have all ended."""
        ready = [suite for suite in self.waiting
                 if all(name in self.built for name in SUITES[suite.name].builds)]
        for suite in ready:
            self.waiting.remove(suite)
            self.start_suite(suite)

    def start_suite(self, suite):
        failed = [name for name in SUITES[suite.name].builds if not self.built[name]]
        for name in failed:
            suite.fail("build %s failed" % name)
        programs = [] if failed else list(SUITES[suite.name].programs(suite))
        for program in programs:
            self.scheduler.add(ProgramTask(self, suite, program))
        self.missing[suite.name] = len(programs)
        if not programs:
            self.end_suite(suite)

    def end_program(self, suite):
        self.missing[suite.name] -= 1
        if not self.missing[suite.name]:
            self.end_suite(suite)

    def end_suite(self, suite):
        if suite.tally.total() == 0:
            suite.fail("ran nothing")
        elif suite.tally.total() == len(suite.tally.skipped) and suite.name not in MAY_SKIP:
            suite.fail("everything was skipped")
        say("-- %s: %s in %s" % (suite.name, suite.tally, suite.clock))


def problems_of_unsteady(unsteady, known):
    """The problems of a run with these unsteady programs, if UNSTEADY has the lines `known`."""
    entries = [line for line in known if line.strip() and not line.startswith("#")]
    for entry in entries:
        match = ENTRY.fullmatch(entry)
        if not match:
            yield "%s: not DATE SUITE: PROGRAM: SENTENCE: %s" % (UNSTEADY.name, entry)
            continue
        for sentence in unsteady:
            if sentence.startswith(match[1] + ": "):
                yield "unsteady, as is known: " + sentence
    if len(unsteady) > MOST_UNSTEADY:
        yield "%d programs are unsteady, more than %d" % (len(unsteady), MOST_UNSTEADY)


def read_unsteady():
    return UNSTEADY.read_text().splitlines() if UNSTEADY.exists() else []


def main():
    started = time.monotonic()
    parser = argparse.ArgumentParser()
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--left-out", default="")
    parser.add_argument("suites", nargs="+")
    options = parser.parse_args()
    stop_on_signals()
    adopt_orphans()
    everything = Everything(options.suites, options.strict, options.whole)
    status = 0
    problem = None
    try:
        everything.run()
    except Interrupted as how:
        problem = "stopped by %s before the end" % how
        status = 130
    except BaseException as error:  # the last line is printed whatever happens
        problem = "tests/run itself: %r" % error
    tally = everything.tally()
    if problem:
        tally.failed.append(problem)
    tally.failed += problems_of_unsteady(tally.unsteady, read_unsteady())
    for line in tally.skip_lines():
        say("skipped: " + line)
    for line in tally.failed:
        say("failed: " + line)
    if not tally.total():
        say("nothing ran")
    say("-- total: %.0f s (%.0f s of processors)" % (
        time.monotonic() - started, processor_seconds()))
    if options.left_out:
        say("-- left out: %s; ./tests/run all runs these too" % options.left_out)
    for sentence in tally.unsteady:
        say("unsteady: " + sentence)
    say(str(tally))
    return status or (1 if tally.failed or not tally.total() else 0)


if __name__ == "__main__":
    sys.exit(main())

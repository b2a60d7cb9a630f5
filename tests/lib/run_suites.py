# SPDX-License-Identifier: BSD-3-Clause
"""Builds and runs the suites of tests/run, and prints the count of their cases.

usage: run_suites.py [--left-out "SUITE..."] SUITE...
"""

import sys
import time

from process import adopt_orphans, processor_seconds, say
from schedule import Failure, Interrupted, Scheduler, Task, default_slots, stop_on_signals
from suite import Suite
from suites import BUILDS, SUITES
from tap import Tally

# Suites that need hardware that few machines have.
MAY_SKIP = {"gpu", "nic"}


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
    """Runs one program of a suite."""

    def __init__(self, everything, suite, program):
        super().__init__("%s: %s" % (suite.name, program.name), alone=program.alone)
        self.everything = everything
        self.suite = suite
        self.program = program

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
            self.suite.tally.add(result[0])
        self.everything.end_program(self.suite)


class Everything:
    """The suites of one call of tests/run."""

    def __init__(self, names):
        self.scheduler = Scheduler(default_slots())
        # Name of a build, whether it succeeded.
        self.built = {}
        self.suites = [Suite(name) for name in dict.fromkeys(names)]
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


def main(arguments):
    started = time.monotonic()
    left_out = ""
    if arguments[:1] == ["--left-out"]:
        left_out, arguments = arguments[1], arguments[2:]
    stop_on_signals()
    adopt_orphans()
    everything = Everything(arguments)
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
    for line in tally.skip_lines():
        say("skipped: " + line)
    for line in tally.failed:
        say("failed: " + line)
    if not tally.total():
        say("nothing ran")
    say("-- total: %.0f s (%.0f s of processors)" % (
        time.monotonic() - started, processor_seconds()))
    if left_out:
        say("-- left out: %s; ./tests/run all runs these too" % left_out)
    say(str(tally))
    return status or (1 if tally.failed or not tally.total() else 0)


sys.exit(main(sys.argv[1:]))

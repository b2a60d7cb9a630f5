# SPDX-License-Identifier: BSD-3-Clause
"""Builds and runs the suites of tests/run, and prints the count of their cases."""

import argparse
import re
import sys
import time

from process import adopt_orphans, processor_seconds, say
from schedule import Failure, Interrupted, Scheduler, Task, default_slots, stop_on_signals
from suite import ROOT, Suite
from suites import BUILDS, SUITES
from tap import Tally

DEFAULT = ["unit", "conformance", "consumer", "tools"]
# Only before a release. The others are "all", in their order.
RELEASE = ["configurations", "fresh", "packages", "bench"]
ALL = [name for name in SUITES if name not in RELEASE]
# Suites that need hardware that few machines have.
MAY_SKIP = {"gpu", "nic"}
# More unsteady programs fail the run.
MOST_UNSTEADY = 3
# Known ones, which fail the run.
UNSTEADY = ROOT / "tests/unsteady"
ENTRY = re.compile(r"\d{4}-\d\d-\d\d (\S+: [^:]+): \S.*")


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
        needed = {}
        for suite in self.suites:
            for name, tests in SUITES[suite.name].builds.items():
                BUILDS[name].want(tests)
                needed[name] = BUILDS[name]
        for name, build in needed.items():
            self.scheduler.add(Task("build " + name, build.run, lambda result, name=name: self.end_build(
                name, result is True), build=True))
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
        """Those whose builds have all ended."""
        for suite in list(self.waiting):
            builds = SUITES[suite.name].builds
            if all(name in self.built for name in builds):
                self.waiting.remove(suite)
                self.start_suite(suite, [name for name in builds if not self.built[name]])

    def start_suite(self, suite, failed):
        for name in failed:
            suite.fail("build %s failed" % name)
        programs = [] if failed else list(SUITES[suite.name].programs(suite))
        self.missing[suite.name] = len(programs)
        for program in programs:
            self.start_program(suite, program)
        if not programs:
            self.end_suite(suite)

    def start_program(self, suite, program, first=None):
        """Run a program, or run it again: its first run had that tally."""
        def work(slots):
            if suite.left() <= 0:
                return Failure("was not run: the %d s of this suite are over" % suite.deadline())
            return program.run(), processor_seconds()

        self.scheduler.add(Task(
            "%s: %s" % (suite.name, program.name), work,
            lambda result: self.end_program(suite, program, first, result), suite.clock.start,
            alone=program.alone, urgent=first is not None, priority=program.priority))

    def end_program(self, suite, program, first, result):
        suite.clock.stop(0 if isinstance(result, Failure) else result[1])
        if isinstance(result, Failure):
            suite.fail("%s: %s" % (program.name, result.reason))
        else:
            tally = result[0]
            if first:
                tally.replace(first)
            # A run that is lost takes no longer for it.
            elif not self.strict and len(self.tally().failed) <= MOST_UNSTEADY and tally.is_worth_another_run():
                say("-- again, alone: %s: %s" % (suite.name, program.name))
                self.start_program(suite, program, tally)
                return
            suite.tally.add(tally)
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


def read_options():
    parser = argparse.ArgumentParser(
        "tests/run", epilog="suites: %s; without a name: %s; all: every suite but %s; release: every suite" % (
            " ".join(ALL + RELEASE), " ".join(DEFAULT), " ".join(RELEASE)))
    parser.add_argument("--strict", action="store_true", help="a program that fails is not run again")
    parser.add_argument("--whole", action="store_true", help="also what the suites leave to release")
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    options, unknown = parser.parse_known_args()
    unknown += [name for name in options.suites if name not in (*SUITES, "all", "release")]
    if unknown:
        print("tests/run: no such suite: " + unknown[0], file=sys.stderr)
        parser.print_usage(sys.stderr)
        say("0 passed, 1 failed, 0 skipped")
        sys.exit(2)
    groups = {"all": ALL, "release": ALL + RELEASE}
    options.whole |= "release" in options.suites
    options.names = [suite for name in options.suites or DEFAULT for suite in groups.get(name, [name])]
    return options


def main():
    started = time.monotonic()
    options = read_options()
    stop_on_signals()
    adopt_orphans()
    everything = Everything(options.names, options.strict, options.whole)
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
    known = UNSTEADY.read_text().splitlines() if UNSTEADY.exists() else []
    tally.failed += problems_of_unsteady(tally.unsteady, known)
    for line in tally.skip_lines():
        say("skipped: " + line)
    for line in tally.failed:
        say("failed: " + line)
    if not tally.total():
        say("nothing ran")
    say("-- total: %.0f s (%.0f s of processors)" % (
        time.monotonic() - started, processor_seconds()))
    if not options.suites:
        left_out = [name for name in ALL if name not in DEFAULT]
        say("-- left out: %s; ./tests/run all runs these too" % " ".join(left_out))
    for sentence in tally.unsteady:
        say("unsteady: " + sentence)
    say(str(tally))
    return status or (1 if tally.failed or not tally.total() else 0)


if __name__ == "__main__":
    sys.exit(main())

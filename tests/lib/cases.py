# SPDX-License-Identifier: BSD-3-Clause
"""Printing test cases, of checks that are scripts and of unittest (testanything.org)."""

import os
import sys
import tempfile
import traceback
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


def each(*parameters):
    """A case for each of these parameters. Its class needs expand()."""
    def keep(function):
        function.parameters = parameters
        return function
    return keep


def expand(a_class):
    """Replace the functions with each() of a class by their cases."""
    for name, function in list(vars(a_class).items()):
        for number, parameter in enumerate(getattr(function, "parameters", ())):
            def case(self, function=function, parameter=parameter):
                with self.subTest(parameter):
                    function(self, parameter)
            setattr(a_class, "%s_%d" % (name, number + 1), case)
        if hasattr(function, "parameters"):
            delattr(a_class, name)


def cases_of(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from cases_of(part)
        else:
            yield part


def start_case(case, number):
    """Run a case in a process of its own. Returns the process and its output."""
    output = tempfile.TemporaryFile("w+", errors="backslashreplace")
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid, output
    try:
        sys.stdout, TapResult.count = output, number
        result = TapResult()
        case.run(result)
        output.flush()
        os._exit(0 if result.wasSuccessful() else 1)
    except BaseException:  # pylint: disable=broad-exception-caught
        traceback.print_exc()
        os._exit(2)


def run_at_once(cases, most):
    """Run cases side by side, and print them in their order. Returns whether all passed."""
    running, ended, printed, passed = {}, {}, 0, True
    for number, case in enumerate(cases):
        running[number] = start_case(case, number)
        while len(running) == most or (number == len(cases) - 1 and running):
            pid, status = os.wait()
            done = next(n for n, (other, _) in running.items() if other == pid)
            ended[done] = running.pop(done)[1], status
            passed &= status == 0
            while printed in ended:
                output, status = ended.pop(printed)
                output.seek(0)
                print(output.read(), end="", flush=True)
                printed += 1
                if os.waitstatus_to_exitcode(status) not in (0, 1):
                    print("not ok %d - %s" % (printed, cases[printed - 1].id()), flush=True)
    print("1..%d" % len(cases))
    return passed


def run_cases(module, names=(), at_once=1):
    """
    Run the cases of a module, or those named, print them, and exit. Those that mostly wait
    can run side by side: at most this number.
    """
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names, module) if names else \
        loader.loadTestsFromModule(module)
    if at_once > 1:
        sys.exit(0 if run_at_once(list(cases_of(suite)), at_once) else 1)
    result = TapResult()
    suite.run(result)
    print("1..%d" % TapResult.count)
    sys.exit(0 if not result.failures and not result.errors else 1)

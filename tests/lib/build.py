# SPDX-License-Identifier: BSD-3-Clause
"""The build folders of tests/run, each of which several suites may use."""

import json
import os
import shutil
import subprocess
import time

from process import Deadline, processor_seconds, run, say
from suite import ROOT, clean_environment

# Well above what two slow cores need, on a fresh machine too.
SECONDS = 1800
# Of C and of C++.
COMPILERS = {"gcc": "g++", "clang": "clang++"}


def introspect(folder, what):
    return json.loads(subprocess.check_output(["meson", "introspect", what, str(folder)]))


def suites_of(test):
    """Meson prefixes them with the project's name."""
    return {name.split(":")[-1] for name in test["suite"]}


def meson_tests(folder, wanted):
    """Meson's tests of these suites."""
    return [test for test in introspect(folder, "--tests") if suites_of(test) & wanted]


def tests_of(suite, folder, wanted):
    """
    The tests that a suite of tests/run runs. Those that meson.build marks with its name, as
    "tsan_release", repeat what others of the suite cover, and are left to a release.
    """
    tests = meson_tests(folder, wanted)
    later = [] if suite.whole else [
        test for test in tests if suite.name.replace("-", "_") + "_release" in suites_of(test)]
    if later:
        say("-- %s: left to a release: %s" % (
            suite.name, ", ".join(test["name"] for test in later)))
    return [test for test in tests if test not in later]


def step(name, argv, env, seconds):
    """A step that must succeed but is no test case; printed if it fails."""
    output = []
    started, used = time.monotonic(), processor_seconds()
    try:
        status = run([str(a) for a in argv], seconds, output.append, env, ROOT)
        problem = "%s failed" % name
    except Deadline:
        status = 1
        problem = "%s took longer than %d s" % (name, seconds)
    if status:
        say("\n".join(output))
        say("-- %s" % problem)
    else:
        say("-- %s: in %.0f s (%.0f s of processors)" % (
            name, time.monotonic() - started, processor_seconds() - used))
    return status == 0


class Build:
    """A build folder: only the parts that the wanted suites of Meson's tests need."""

    def __init__(self, name, compiler, *options, prepare=None, everything=lambda build: []):
        self.name = name
        self.compiler = compiler
        self.options = options
        self.prepare = prepare  # what is built before it
        self.everything = everything  # the files of a whole build; none: all of them
        self.folder = ROOT / "build" / ("tests-" + name)
        self.wanted = set()
        self.whole = False

    def want(self, suites):
        """Adds suites whose tests run there; without any, all is built."""
        self.wanted |= suites
        self.whole |= not suites

    def configure(self, env):
        """Configures it anew if the options or the path have changed."""
        stamp = self.folder / "tests-run.json"
        wanted = json.dumps([str(ROOT), self.compiler, self.options])
        if stamp.exists() and stamp.read_text() == wanted:
            return True
        shutil.rmtree(self.folder, ignore_errors=True)
        if not step("configure %s" % self.name, [
                "meson", "setup", self.folder, ROOT, "-Dtests=enabled", *self.options],
                env, SECONDS):
            return False
        stamp.write_text(wanted)
        return True

    def files(self, is_wanted):
        """Of Meson's targets, as ninja names them."""
        return [os.path.relpath(file, self.folder)
                for target in introspect(self.folder, "--targets") if is_wanted(target)
                for file in target["filename"]]

    def targets(self):
        """The files that the wanted tests need, as ninja's arguments."""
        if self.whole:
            return self.everything(self)
        needed = {target for test in meson_tests(self.folder, self.wanted)
                  for target in test["depends"]}
        return self.files(lambda target: target["id"] in needed)

    def run(self, slots):
        env = {**clean_environment(), "CC": self.compiler, "CXX": COMPILERS[self.compiler]}
        ninja = ["ninja", "--quiet", "-j%d" % slots, "-C", self.folder]
        # If the folder is older than its meson.build, its tests are known only afterwards.
        return ((not self.prepare or self.prepare.run(slots)) and self.configure(env) and
                step("reconfigure %s" % self.name, [*ninja, "build.ninja"], env, SECONDS) and
                step("build %s" % self.name, [*ninja, *self.targets()], env, SECONDS))


def objects_and_pier(build):
    """For the compiler's warnings: of the programs, only pier itself is linked."""
    objects = subprocess.check_output(
        ["ninja", "-C", str(build.folder), "-t", "targets", "rule", "c_COMPILER"], text=True)
    return [line for line in objects.splitlines() if line.endswith(".o")] + \
        build.files(lambda target: target["name"] == "pier")


class Prepare:
    """A command that must have succeeded before the programs of a suite can run."""

    def __init__(self, name, argv):
        self.name = name
        self.argv = argv

    def want(self, suites):
        pass

    def run(self, slots):
        return step("prepare the %s" % self.name, self.argv, clean_environment(), SECONDS)

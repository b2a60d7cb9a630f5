# SPDX-License-Identifier: BSD-3-Clause
"""The suites vm and vm-arm: programs run in guests, whose kernel logs are checked."""

import json
import pathlib
import tempfile

import kernel_log
from build import suites_of, tests_of
from process import Deadline, run, say
from suite import ROOT
from tap import Tally

GUEST = ROOT / "tests/vm/guest"
# Seconds that a guest needs to boot and to end, on a slow machine.
BOOT_SECONDS = 100
# Name, processors, options of tests/vm/guest, meson's suites: the longest first.
# A guest with two processors takes twice as long: one spins while it waits for the
# other's lock. Only tests whose threads register and deregister at once need two.
GUESTS = [
    ("peers", 1, [], {"vm_peers"}),
    ("rxe with dma-bufs", 1, [], {"vm"}),
    ("lifetime of regions", 2, [], {"vm_lifetime"}),
    ("memory of GPUs on rxe", 1, [], {"vm_gpu"}),
    ("stock rxe and soft0", 1, ["--stock-rxe"], {"vm_stock", "conformance"}),
]
ARM_GUESTS = [
    ("arm64, pages of 16 KiB", 1, ["--machine", "arm64-16k"], {"vm_arm"}),
]
# Debian's own rxe, which is what others have. Two processes that poll need two processors.
STRANGERS_GUESTS = [
    ("strangers' programs on rxe", 2, ["--stock-rxe"], {"vm_strangers"}),
]


# check_leftovers, of tests/vm/meson.build.
LEFTOVERS = "leftovers of "


def programs_of(suite, folder, wanted):
    """
    Meson's tests of these suites, as tests/vm/run_programs takes them, without those to
    which a guest is nothing new. Those that unload the driver are the last.
    """
    for test in sorted(tests_of(suite, folder, wanted), key=lambda test: test["name"].startswith(LEFTOVERS)):
        if "outside" not in suites_of(test):
            yield {"name": test["name"], "argv": test["cmd"], "seconds": test["timeout"],
                   "env": test["env"], "cwd": test["workdir"] or str(ROOT)}


class Guest:
    """One guest: the programs that run in it, and the verdict on its kernel."""

    def __init__(self, suite, name, processors, options, programs):
        self.suite = suite
        self.env = {**suite.env, "PIER_VM_CPUS": str(processors)}
        self.name = name
        self.options = options
        self.programs = programs
        self.tally = Tally()

    def fail(self, problem):
        say("not ok - %s: %s" % (self.name, problem))
        self.tally.failed.append("vm: %s: %s" % (self.name, problem))

    def run(self):
        """Boot, run the programs, count them, and judge the kernel's log."""
        say("-- vm: guest: %s" % self.name)
        self.tally = Tally()
        with tempfile.TemporaryDirectory(prefix="pier-vm-") as share:
            share = pathlib.Path(share)
            (share / "programs.json").write_text(json.dumps(self.programs))
            self.boot(share)
            self.take_tally(share / "tally.json")
            if (share / "kernel.log").exists():
                self.judge_kernel(share / "kernel.log")
        return self.tally

    def boot(self, share):
        seconds = max(1, int(self.suite.left()) - BOOT_SECONDS)
        argv = [GUEST, *self.options, "--seconds", seconds, "--share", share, "--log",
                share / "kernel.log", ROOT / "tests/vm/run_programs", self.suite.name, share,
                *(["--strict"] if self.suite.strict else [])]
        try:
            status = run([str(a) for a in argv], self.suite.left(), say, self.env, ROOT)
            if status:
                self.fail("tests/vm/guest ended with status %d" % status)
        except Deadline:
            self.fail("the guest did not end")

    def take_tally(self, file):
        if not file.exists():
            self.fail("the guest ended before its programs had")
            return
        self.tally.add(Tally.read(file))

    def judge_kernel(self, log):
        found = list(kernel_log.problems(log.read_text(errors="replace").splitlines()))
        for problem in found[:50]:
            say("# kernel: " + problem)
        if found:
            self.fail("the guest's kernel complains %d times" % len(found))
            self.tally.final = True
        else:
            say("ok - %s: nothing in the kernel's log" % self.name)
            self.tally.passed += 1


def guest_programs(suite, folder, guests):
    # The system's own Python: another one that is first in PATH may be slow to start.
    suite.env["PATH"] = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    return [Guest(suite, name, processors, options, list(programs_of(suite, folder, suites)))
            for name, processors, options, suites in guests]

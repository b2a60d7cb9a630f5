# SPDX-License-Identifier: BSD-3-Clause
"""The suite vm: programs run in guests, and what the guests' kernels say of it."""

import concurrent.futures
import json
import pathlib
import tempfile

import kernel_log
from process import Deadline, run, say
from suite import ROOT, build, meson_tests
from tap import Skip, Tally

GUEST = ROOT / "tests/vm/guest"
# What a guest takes to boot and to end, on a slow machine.
BOOT_SECONDS = 100
# Name, processors, options of tests/vm/guest, meson's suites: the longest first.
# A guest with two processors takes twice as long: one that waits for a lock of the
# other spins. Only tests whose threads register and deregister at once need two.
GUESTS = [
    ("peers", 1, [], {"vm_peers"}),
    ("rxe with dma-bufs", 1, [], {"vm"}),
    ("lifetime of regions", 2, [], {"vm_lifetime"}),
    ("memory of GPUs on rxe", 1, [], {"vm_gpu"}),
    ("stock rxe and soft0", 1, ["--stock-rxe"], {"vm_stock", "conformance"}),
]
# Keeps two cores busy: a guest is idle for about a quarter of its time.
AT_A_TIME = 3


def tests_of(folder, wanted):
    """
    meson's tests of these suites, as tests/vm/run_programs takes them, but those to which
    a guest is nothing new.
    """
    for test in meson_tests(folder):
        suites = {name.split(":")[-1] for name in test["suite"]}
        if suites & wanted and "outside" not in suites:
            yield {"name": test["name"], "argv": test["cmd"], "seconds": test["timeout"],
                   "env": test["env"], "cwd": test["workdir"] or str(ROOT)}


class Guest:
    """One guest: the programs that run in it, what it said, and the verdict."""

    def __init__(self, suite, name, processors, options, programs):
        self.suite = suite
        self.env = {**suite.env, "PIER_VM_CPUS": str(processors)}
        self.name = name
        self.options = options
        self.programs = programs
        self.tally = Tally()
        self.lines = ["-- vm: guest: %s" % name]

    def fail(self, what):
        self.lines.append("not ok - %s: %s" % (self.name, what))
        self.tally.failed.append("vm: %s: %s" % (self.name, what))

    def run(self):
        """Boot, run the programs, count them, and judge the kernel's log."""
        with tempfile.TemporaryDirectory(prefix="pier-vm-") as share:
            share = pathlib.Path(share)
            (share / "programs.json").write_text(json.dumps(self.programs))
            self.boot(share)
            self.take_tally(share / "tally.json")
            if (share / "kernel.log").exists():
                self.judge_kernel(share / "kernel.log")
        return self

    def boot(self, share):
        seconds = max(1, int(self.suite.left()) - BOOT_SECONDS)
        argv = [GUEST, *self.options, "--seconds", seconds, "--share", share, "--log",
                share / "kernel.log", ROOT / "tests/vm/run_programs", self.suite.name, share]
        try:
            status = run([str(a) for a in argv], self.suite.left(), self.lines.append,
                         self.env, ROOT)
            if status:
                self.fail("tests/vm/guest ended with status %d" % status)
        except Deadline:
            self.fail("the guest did not end")

    def take_tally(self, file):
        if not file.exists():
            self.fail("the guest ended before its programs had")
            return
        told = json.loads(file.read_text())
        self.tally.passed += told["passed"]
        self.tally.failed += told["failed"]
        self.tally.skipped += [Skip(*skip) for skip in told["skipped"]]

    def judge_kernel(self, log):
        found = list(kernel_log.problems(log.read_text(errors="replace").splitlines()))
        self.lines += ["# kernel: " + problem for problem in found[:50]]
        if found:
            self.fail("the guest's kernel complains %d times" % len(found))
        else:
            self.lines.append("ok - %s: nothing in the kernel's log" % self.name)
            self.tally.passed += 1


def suite_vm(suite):
    pool = concurrent.futures.ThreadPoolExecutor(AT_A_TIME)
    try:
        # It mostly waits for the network, so the compiler runs meanwhile.
        prepared = pool.submit(suite.step, "prepare the guest", [GUEST, "--prepare"])
        folder = build(suite, "gcc", "gcc")
        if prepared.result() and folder:
            run_guests(suite, pool, folder)
    finally:
        # On an interrupt, the handler ends the programs that these threads wait for.
        pool.shutdown(wait=False, cancel_futures=True)


def run_guests(suite, pool, folder):
    # The system's own Python: another one that is first in PATH may be slow to start.
    suite.env["PATH"] = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    guests = [Guest(suite, name, processors, options, list(tests_of(folder, suites)))
              for name, processors, options, suites in GUESTS]
    say("-- vm: %d guests, %d at a time; each is shown when it has ended" % (
        len(guests), AT_A_TIME))
    for ended in concurrent.futures.as_completed([pool.submit(g.run) for g in guests]):
        guest = ended.result()
        say("\n".join(guest.lines))
        suite.tally.add(guest.tally)

# SPDX-License-Identifier: BSD-3-Clause
"""The suite vm: programs run in guests, and what the guests' kernels say of it."""

import json
import pathlib
import tempfile

import kernel_log
from process import Deadline, echo, run, say
from suite import ROOT, build, meson_tests
from tap import Skip

GUEST = ROOT / "tests/vm/guest"
# What a guest takes to boot and to end, on a slow machine.
BOOT_SECONDS = 100


def tests_of(folder, wanted):
    """meson's tests of these suites, as tests/vm/run_programs takes them."""
    for test in meson_tests(folder):
        if {name.split(":")[-1] for name in test["suite"]} & wanted:
            yield {"name": test["name"], "argv": test["cmd"], "seconds": test["timeout"],
                   "env": test["env"], "cwd": test["workdir"] or str(ROOT)}


def take_tally(suite, name, file):
    """Count what the guest counted."""
    if not file.exists():
        suite.fail("%s: the guest ended before its programs had" % name)
        return
    told = json.loads(file.read_text())
    suite.tally.passed += told["passed"]
    suite.tally.failed += told["failed"]
    suite.tally.skipped += [Skip(*skip) for skip in told["skipped"]]


def judge_kernel(suite, name, log):
    found = list(kernel_log.problems(log.read_text(errors="replace").splitlines()))
    for problem in found[:50]:
        say("# kernel: " + problem)
    if found:
        suite.fail("%s: the guest's kernel complains %d times" % (name, len(found)))
    else:
        say("ok - %s: nothing in the kernel's log" % name)
        suite.tally.passed += 1


def run_guest(suite, name, options, programs):
    """Boot one guest, run the programs in it, and count them and its kernel's log."""
    with tempfile.TemporaryDirectory(prefix="pier-vm-") as share:
        share = pathlib.Path(share)
        (share / "programs.json").write_text(json.dumps(programs))
        seconds = int(suite.left()) - BOOT_SECONDS
        if seconds <= 0:
            suite.fail("%s was not run: the suite's time is over" % name)
            return
        argv = [GUEST, *options, "--seconds", seconds, "--share", share, "--log",
                share / "kernel.log", ROOT / "tests/vm/run_programs", suite.name, share]
        say("-- vm: %s: booting" % name)
        try:
            status = run([str(a) for a in argv], suite.left(), echo, suite.env, ROOT)
            if status:
                suite.fail("%s: tests/vm/guest ended with status %d" % (name, status))
        except Deadline:
            suite.fail("%s: the guest did not end" % name)
        take_tally(suite, name, share / "tally.json")
        if (share / "kernel.log").exists():
            judge_kernel(suite, name, share / "kernel.log")


def suite_vm(suite):
    folder = build(suite, "gcc", "gcc")
    if not folder or not suite.step("prepare the guest", [GUEST, "--prepare"]):
        return
    # The system's own Python: what else is first in PATH may take long to start.
    suite.env["PATH"] = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    run_guest(suite, "stock rxe", ["--stock-rxe"], list(tests_of(folder, {"vm_stock"})))
    run_guest(suite, "rxe with dma-bufs", [], list(tests_of(folder, {"conformance", "vm"})))

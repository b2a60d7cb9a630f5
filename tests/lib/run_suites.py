# SPDX-License-Identifier: BSD-3-Clause
"""Builds and runs the suites of tests/run, and prints the count of their cases."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from process import Deadline, adopt_orphans, echo, end_orphans, run, say
from suite import ROOT, Suite, build, meson_tests, run_meson_tests
from tap import Skip, Tally
from vm import suite_vm

DEADLINE_PROGRAM = {"lint": 120, "consumer": 120}
SEED = os.environ.get("PIER_SEED")
FUZZ_SECONDS = int(os.environ.get("PIER_FUZZ_SECONDS", "10"))

STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
# What takes hardware that few machines have.
MAY_SKIP = {"gpu"}


class Interrupted(Exception):
    """Ctrl-C, or somebody ended the run."""


def suite_tests(suite):
    folder = build(suite, "gcc", "gcc")
    if folder:
        run_meson_tests(suite, folder, {suite.name})


def suite_asan(suite):
    folder = build(suite, "gcc", "asan", "-Db_sanitize=address,undefined", "-Db_lundef=false")
    if folder:
        run_meson_tests(suite, folder, {"unit", "conformance"}, patience=4)


def suite_tsan(suite):
    folder = build(suite, "gcc", "tsan", "-Db_sanitize=thread", "-Db_lundef=false")
    if folder:
        run_meson_tests(suite, folder, {"unit", "conformance"}, tsan_wrapper(suite), 8)


def tsan_wrapper(suite):
    """TSan of gcc 12 dies of address spaces with more than 28 random bits."""
    with tempfile.TemporaryDirectory(prefix="pier-") as folder:
        program = folder + "/probe"
        subprocess.run(["gcc", "-fsanitize=thread", "-x", "c", "-", "-o", program],
                       input=b"int main(void) { return 0; }", check=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if any(subprocess.run([program], **quiet).returncode for _ in range(10)):
            say("-- %s: without address space randomisation (setarch -R)" % suite.name)
            return ["setarch", "-R"]
    return []


def suite_script(suite):
    """lint and consumer: programs that print their cases."""
    folder = ROOT / "tests" / suite.name
    if suite.name == "lint" and not (build(suite, "gcc", "gcc") and
                                     build(suite, "clang", "clang")):
        return
    suite.env["PIER_BUILD"] = str(ROOT / "build" / "tests-gcc")
    suite.env.pop("CC", None)
    for script in sorted(folder.glob("check_*")):
        suite.program(script.name, [script], DEADLINE_PROGRAM[suite.name], cwd=ROOT)


def suite_fuzz(suite):
    folder = build(suite, "clang", "fuzz", "-Dfuzz=true", "-Db_sanitize=address,undefined",
                   "-Db_lundef=false", "-Dtools=false")
    if not folder:
        return
    seed = int(SEED or str(random.randrange(1, 2**31)), 0)
    say("-- fuzz: PIER_SEED=%s" % seed)
    findings = folder / "findings"
    findings.mkdir(exist_ok=True)
    for test in meson_tests(folder):
        if "fuzz" not in {name.split(":")[-1] for name in test["suite"]}:
            continue
        program, *corpora = test["cmd"]
        with tempfile.TemporaryDirectory(prefix="pier-fuzz-") as found:
            suite.program(test["name"], [
                program, "-max_total_time=%d" % FUZZ_SECONDS, "-timeout=10", "-seed=%d" % (seed % 2**32),
                "-print_final_stats=1", "-verbosity=0", "-rss_limit_mb=2048",
                "-error_exitcode=70",  # 77, its own, means skipped
                "-artifact_prefix=%s/%s-" % (findings, test["name"]), found, *corpora],
                FUZZ_SECONDS + 60, cwd=ROOT)


def suite_bench(suite):
    folder = build(suite, "gcc", "release", "--buildtype=release")
    if folder:
        suite.program("run.py", [ROOT / "tests/bench/run.py", folder], suite.left(), cwd=ROOT)


def suite_gpu(suite):
    """What is carried to other machines with a GPU, on this one."""
    reason = subprocess.run([ROOT / "tests/gpu/run", "--why-not"], env=suite.env, check=True,
                            text=True, stdout=subprocess.PIPE).stdout.strip()
    if reason:
        say("skip: %s" % reason)
        suite.tally.skipped.append(Skip("gpu", "", reason))
        return
    folder = build(suite, "gcc", "gcc")
    if not folder:
        return
    with tempfile.TemporaryDirectory(prefix="pier-gpu-") as place:
        carried, tally = place + "/carried", pathlib.Path(place, "tally.json")
        if not suite.step("pack", [ROOT / "tests/gpu/pack", folder, carried]):
            return
        try:
            run([carried + "/run", "--tally", str(tally)], suite.left(), echo, suite.env, ROOT)
        except Deadline:
            suite.fail("the GPU suite did not end")
        if not tally.exists():
            suite.fail("the GPU suite told no count")
            return
        told = json.loads(tally.read_text())
    suite.tally.passed += told["passed"]
    suite.tally.failed += told["failed"]
    suite.tally.skipped += [Skip(*skip) for skip in told["skipped"]]


SUITES = {"lint": suite_script, "unit": suite_tests, "conformance": suite_tests,
          "hostile": suite_tests,
          "consumer": suite_script, "fuzz": suite_fuzz, "asan": suite_asan,
          "tsan": suite_tsan, "vm": suite_vm, "gpu": suite_gpu,
          "bench": suite_bench}


def run_suite(name, total):
    suite = Suite(name)
    try:
        SUITES[name](suite)
        if suite.tally.total() == 0:
            suite.fail("ran nothing")
        elif suite.tally.total() == len(suite.tally.skipped) and name not in MAY_SKIP:
            suite.fail("everything was skipped")
    finally:
        total.add(suite.tally)
    say("-- %s: %s in %.0f s" % (name, suite.tally, time.monotonic() - suite.started))


def interrupted(number, frame):
    for other in STOPS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def main(names):
    for number in STOPS:
        signal.signal(number, interrupted)
    adopt_orphans()
    total = Tally()
    status = 0
    try:
        for name in dict.fromkeys(names):
            run_suite(name, total)
    except Interrupted as how:
        total.failed.append("stopped by %s before the end" % how)
        status = 130
        end_orphans(0)
    except BaseException as error:  # the last line is printed whatever happens
        total.failed.append("tests/run itself: %r" % error)
    for line in total.skip_lines():
        say("skipped: " + line)
    for line in total.failed:
        say("failed: " + line)
    if not total.total():
        say("nothing ran")
    say(str(total))
    return status or (1 if total.failed or not total.total() else 0)


sys.exit(main(sys.argv[1:]))

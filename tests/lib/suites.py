# SPDX-License-Identifier: BSD-3-Clause
"""The suites of tests/run: what each needs built, and its programs."""

import json
import os
import pathlib
import random
import subprocess
import tempfile

from build import Build, Compilation, CrossBuild, Prepare, introspect, meson_tests, tests_of
from process import Deadline, run, say
from suite import ROOT
from tap import Skip, Tally
from vm import ARM_GUESTS, GUEST, GUESTS, STRANGERS_GUESTS, guest_programs

# Programs that take minutes start first: those of Meson's tests have their own priority.
LONG_SCRIPT, LONG_GUEST = 100, 200
SEED = os.environ.get("PIER_SEED")
FUZZ_SECONDS = os.environ.get("PIER_FUZZ_SECONDS")

NO_UNDEFINED = "-Db_lundef=false"
WARNINGS = "-Dwerror=true"
# All the debugging information that reports need; the rest takes a fifth of the compiler's time.
LINES = ["-Dc_args=-g1", "-Dcpp_args=-g1"]
BUILDS = {build.name: build for build in (
    # As users build it, which also compiles faster than with what debuggers need.
    Build("gcc", "gcc", WARNINGS, "--buildtype=release"),
    Compilation("clang", "clang", WARNINGS, "--optimization=0"),
    # Higher levels take longer to compile than they save. At this one gcc warns wrongly.
    Build("asan", "gcc", "-Db_sanitize=address,undefined", NO_UNDEFINED, *LINES,
          "--optimization=1"),
    Build("tsan", "gcc", "-Db_sanitize=thread", NO_UNDEFINED, *LINES, "--optimization=1"),
    Build("fuzz", "clang", WARNINGS, "-Dfuzz=true", "-Db_sanitize=address,undefined",
          NO_UNDEFINED, "-Dtools=false"),
    Prepare("guest", [GUEST, "--prepare"]),
    CrossBuild("arm64", Prepare("guest for ARM", [GUEST, "--machine", "arm64-16k", "--prepare"]),
               ROOT / "build/vm-arm64-16k/cross.ini"),
)}


class Program:
    """A program of a suite: run() returns its tally."""

    def __init__(self, name, function, alone=False, priority=0):
        self.name = name
        self.run = function
        self.alone = alone
        self.priority = priority


def test_program(suite, test, wrapper=(), patience=1):
    """One of Meson's tests."""
    def run_test():
        return suite.program(test["name"], [*wrapper, *test["cmd"]], test["timeout"] * patience,
                             test["env"], test["workdir"] or ROOT)

    return Program(test["name"], run_test, not test["is_parallel"], test["priority"])


class Tests:
    """The tests of one of Meson's suites in one build folder."""

    def __init__(self, build, *suites, patience=1):
        self.build = BUILDS[build]
        self.suites = set(suites)
        self.builds = {build: self.suites}
        self.patience = patience

    def programs(self, suite):
        wrapper = tsan_wrapper(suite) if suite.name == "tsan" else []
        return [test_program(suite, test, wrapper, self.patience)
                for test in tests_of(suite, self.build.folder, self.suites)]


def tsan_wrapper(suite):
    """TSan of gcc 12 crashes if addresses have more than 28 random bits."""
    with tempfile.TemporaryDirectory(prefix="pier-") as folder:
        program = folder + "/probe"
        subprocess.run(["gcc", "-fsanitize=thread", "-x", "c", "-", "-o", program],
                       input=b"int main(void) { return 0; }", check=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if any(subprocess.run([program], **quiet).returncode for _ in range(10)):
            say("-- %s: without address space randomisation (setarch -R)" % suite.name)
            return ["setarch", "-R"]
    return []


class Scripts:
    """lint and consumer: programs that print their cases."""

    def __init__(self, **builds):
        self.builds = builds

    def programs(self, suite):
        suite.env["PIER_BUILD"] = str(BUILDS["gcc"].folder)
        for script in sorted((ROOT / "tests" / suite.name).glob("check_*")):
            yield Program(script.name, lambda script=script: suite.program(
                script.name, [script], suite.left(), cwd=ROOT), priority=LONG_SCRIPT)


class Fuzz:
    builds = {"fuzz": {"fuzz"}}

    def programs(self, suite):
        seed = int(SEED or str(random.randrange(1, 2**31)), 0)
        say("-- fuzz: PIER_SEED=%s" % seed)
        findings = BUILDS["fuzz"].folder / "findings"
        findings.mkdir(exist_ok=True)
        for test in meson_tests(BUILDS["fuzz"].folder, {"fuzz"}):
            yield Program(test["name"], lambda test=test: self.search(suite, test, seed, findings))

    def search(self, suite, test, seed, findings):
        """Search for new inputs, starting from the kept ones."""
        program, *corpora = test["cmd"]
        seconds = int(FUZZ_SECONDS or (10 if suite.whole else 4))
        with tempfile.TemporaryDirectory(prefix="pier-fuzz-") as found:
            return suite.program(test["name"], [
                program, "-max_total_time=%d" % seconds, "-timeout=10",
                "-seed=%d" % (seed % 2**32),
                "-print_final_stats=1", "-verbosity=0", "-rss_limit_mb=2048",
                "-error_exitcode=70",  # 77, its own, means skipped
                "-artifact_prefix=%s/%s-" % (findings, test["name"]), found, *corpora],
                seconds + 60, cwd=ROOT)


class Guests:
    """tests/vm, in guests; each guest is one program here."""

    def __init__(self, guests, builds, build):
        self.guests = guests
        self.builds = builds
        self.build = BUILDS[build]

    def programs(self, suite):
        return [Program(guest.name, guest.run, priority=LONG_GUEST)
                for guest in guest_programs(suite, self.build.folder, self.guests)]


class Together:
    """The programs of several kinds."""

    def __init__(self, *parts):
        self.parts = parts
        self.builds = {}
        for part in parts:
            for build, suites in part.builds.items():
                self.builds[build] = self.builds.get(build, set()) | suites

    def programs(self, suite):
        return [program for part in self.parts for program in part.programs(suite)]


class Bench:
    builds = {"gcc": set()}

    def __init__(self, *options):
        self.options = options

    def programs(self, suite):
        return [Program("run.py", lambda: suite.program(
            "run.py", [ROOT / "tests/bench/run.py", BUILDS["gcc"].folder, *self.options],
            suite.left(), cwd=ROOT), alone=not self.options)]


class Configurations:
    """Compiles what no other suite does, from empty folders, with warnings as errors."""

    builds = {}
    compilers = {"gcc": "g++", "clang": "clang++"}
    LEVELS = [["--optimization=0"], ["--optimization=s"], [], ["--buildtype=release"],
              ["--buildtype=release", "-Db_ndebug=true", "-Dtests=disabled"],
              ["--buildtype=release", "-Db_lto=true", "-Dtests=disabled"]]
    # The tests are compiled, and not linked, which would take longer than all the rest.
    SCRIPT = """meson setup "$TMPDIR/build" "$@" && cd "$TMPDIR/build" &&
        for rule in c_COMPILER cpp_COMPILER c_LINKER cpp_LINKER STATIC_LINKER; do
            ninja -t targets rule $rule
        done | grep -v '^tests/.*/[^.]*$' | xargs ninja --quiet -j1 -k0
        status=$?; rm -rf "$TMPDIR/build"; exit $status"""

    def programs(self, suite):
        for options in [*self.LEVELS, *(["--optimization=0", option] for option in self.left_out())]:
            for compiler, cxx in self.compilers.items():
                name = " ".join([compiler, *options])
                argv = ["sh", "-c", self.SCRIPT, "sh", ROOT, WARNINGS, *options]
                env = {"CC": compiler, "CXX": cxx}
                yield Program(name, lambda name=name, argv=argv, env=env: suite.program(
                    name, argv, suite.left(), env, ROOT))

    @staticmethod
    def left_out():
        """Options that leave out a part: each of meson_options.txt, in turn."""
        for option in introspect(ROOT / "meson.build", "--buildoptions"):
            if option["section"] != "user":
                continue
            if option["value"] is True:
                yield "-D%s=false" % option["name"]
            for choice in option.get("choices", []):
                if choice not in ("enabled", "auto", option["value"]):
                    yield "-D%s=%s" % (option["name"], choice)


class Fresh:
    """README's commands on bare systems. Each is one case: what runs there is counted there."""

    builds = {}
    SCRIPT = "set -o pipefail; tests/fresh --release $0 2>&1 | sed 's/^/| /'"

    def programs(self, suite):
        # In turn, since they share a folder.
        return [Program(release, lambda release=release: suite.program(
            release, ["bash", "-c", self.SCRIPT, release], suite.left(), cwd=ROOT), alone=True)
            for release in ("bookworm", "trixie")]


class Carried:
    """Runs a suite of the packed folder, which is made for other machines, on this one."""

    builds = {}

    def programs(self, suite):
        return [Program(suite.name, lambda: self.run(suite), alone=True)]

    def run(self, suite):
        reason = subprocess.run([ROOT / "tests/carry/run", "--why-not", suite.name],
                                env=suite.env, check=True, text=True,
                                stdout=subprocess.PIPE).stdout.strip()
        tally = Tally()
        if reason:
            say("skip: %s" % reason)
            tally.skipped.append(Skip(suite.name, "", reason))
            return tally
        build = BUILDS["gcc"]
        # The programs are unit tests, too.
        build.want({"unit"})
        if not build.run(len(os.sched_getaffinity(0))):
            raise RuntimeError("build gcc failed")
        with tempfile.TemporaryDirectory(prefix="pier-carried-") as place:
            return self.run_carried(suite, build.folder, pathlib.Path(place))

    def run_carried(self, suite, build, place):
        """Pack the build and run the packed suite."""
        carried, file = place / "carried", place / "tally.json"
        subprocess.run([ROOT / "tests/carry/pack", build, carried], check=True)
        # Real devices: the checks of the kernel's configuration apply.
        suite.env.pop("PIER_DMABUF")
        try:
            run([str(carried / "run"), "--tally", str(file), "--result", str(place / "result"),
                 suite.name], suite.left(), say, suite.env, ROOT)
        except Deadline:
            raise RuntimeError("the suite %s did not end" % suite.name) from None
        return Tally.read(file)


SUITES = {
    "lint": Scripts(gcc=set(), clang=set()),
    "unit": Tests("gcc", "unit"),
    "tools": Tests("gcc", "tools"),
    "conformance": Tests("gcc", "conformance"),
    "hostile": Tests("gcc", "hostile"),
    "consumer": Scripts(),
    # The guest first, which takes longest.
    "strangers": Together(
        Guests(STRANGERS_GUESTS, {"guest": set(), "gcc": {"vm_strangers"}}, "gcc"),
        Tests("gcc", "strangers")),
    "python": Tests("gcc", "python"),
    "nixl": Tests("gcc", "nixl", "nixl_wheels"),
    "fuzz": Fuzz(),
    "asan": Tests("asan", "unit", "tools", "conformance", "nixl", "python", patience=4),
    "tsan": Tests("tsan", "unit", "tools", "conformance", "nixl", patience=8),
    "vm": Guests(GUESTS, {"guest": set(),
                          "gcc": set().union(*(suites for *_, suites in GUESTS))}, "gcc"),
    # All of the cross build, for the compiler's warnings.
    "vm-arm": Guests(ARM_GUESTS, {"arm64": set()}, "arm64"),
    "gpu": Carried(),
    "nic": Carried(),
    "bench-smoke": Bench("--smoke"),
    "bench": Bench(),
    "configurations": Configurations(),
    "fresh": Fresh(),
}

# SPDX-License-Identifier: BSD-3-Clause
"""The suites of tests/run: what each needs built, and its programs."""

import collections
import math
import os
import pathlib
import random
import subprocess
import tempfile

from build import COMPILERS, Build, Prepare, introspect, meson_tests, objects_and_pier, tests_of
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
    Build("clang", "clang", WARNINGS, "--optimization=0", everything=objects_and_pier),
    # Higher levels take longer to compile than they save. At this one gcc warns wrongly.
    Build("asan", "gcc", "-Db_sanitize=address,undefined", NO_UNDEFINED, *LINES,
          "--optimization=1"),
    Build("tsan", "gcc", "-Db_sanitize=thread", NO_UNDEFINED, *LINES, "--optimization=1"),
    Build("fuzz", "clang", WARNINGS, "-Dfuzz=true", "-Db_sanitize=address,undefined",
          NO_UNDEFINED, "-Dtools=false"),
    Prepare("guest", [GUEST, "--prepare"]),
    # For the guest with another processor, whose libraries it links with. Without C++: Debian's
    # cross compiler for it comes with headers that hide the guest's. Without Python, whose
    # headers the guest does not have.
    Build("arm64", "gcc", WARNINGS, "-Dnixl=disabled", "-Dpython=disabled",
          "--cross-file=%s" % (ROOT / "build/vm-arm64-16k/cross.ini"),
          prepare=Prepare("guest for ARM", [GUEST, "--machine", "arm64-16k", "--prepare"])),
)}


# run() returns a tally.
Program = collections.namedtuple("Program", "name run alone priority", defaults=(False, 0))
# The builds that a suite needs, with the suites of Meson that run there (none: all of it is built),
# a function that returns its programs, and the build whose tests of Meson they are, if so.
Kind = collections.namedtuple("Kind", "builds programs build", defaults=(None,))


def command(suite, name, argv, seconds=math.inf, env=None, **how):
    """A program that is no test of Meson's."""
    return Program(name, lambda: suite.program(name, argv, seconds, env), **how)


def tests(build, *suites, patience=1):
    """The tests of these of Meson's suites in one build folder."""
    def programs(suite):
        wrapper = tsan_wrapper(suite) if suite.name == "tsan" else []
        for test in tests_of(suite, BUILDS[build].folder, set(suites)):
            yield Program(test["name"], lambda test=test: suite.program(
                test["name"], [*wrapper, *test["cmd"]], test["timeout"] * patience * suite.patience, test["env"],
                test["workdir"] or ROOT), not test["is_parallel"], test["priority"])

    return Kind({build: set(suites)}, programs, BUILDS[build])


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


def scripts(suite):
    """Of lint and consumer: programs that print their cases."""
    suite.env["PIER_BUILD"] = str(BUILDS["gcc"].folder)
    return [command(suite, script.name, [script], priority=LONG_SCRIPT)
            for script in sorted((ROOT / "tests" / suite.name).glob("check_*"))]


# Search for new inputs, starting from the kept ones.
SEARCH = """mkdir "$TMPDIR/found" && "$0" "$TMPDIR/found" "$@"
    status=$?; rm -r "$TMPDIR/found"; exit $status"""


def fuzz_targets(suite):
    seed = int(SEED or str(random.randrange(1, 2**31)), 0)
    say("-- fuzz: PIER_SEED=%s" % seed)
    findings = BUILDS["fuzz"].folder / "findings"
    findings.mkdir(exist_ok=True)
    seconds = int(FUZZ_SECONDS or (10 if suite.whole else 4))
    options = ["-max_total_time=%d" % seconds, "-timeout=10", "-seed=%d" % (seed % 2**32),
               "-print_final_stats=1", "-verbosity=0", "-rss_limit_mb=2048",
               "-error_exitcode=70"]  # 77, its own, means skipped
    for test in meson_tests(BUILDS["fuzz"].folder, {"fuzz"}):
        program, *corpora = test["cmd"]
        yield command(suite, test["name"], ["sh", "-c", SEARCH, program, *options, "-artifact_prefix=%s/%s-" % (
            findings, test["name"]), *corpora], seconds + 60)


def guests(rows, builds, build="gcc"):
    """tests/vm, in guests; each guest is one program here."""
    return Kind(builds, lambda suite: [
        Program(guest.name, guest.run, priority=LONG_GUEST)
        for guest in guest_programs(suite, BUILDS[build].folder, rows)])


def together(*kinds):
    builds = {}
    for kind in kinds:
        for build, suites in kind.builds.items():
            builds[build] = builds.get(build, set()) | suites
    return Kind(builds, lambda suite: [program for kind in kinds for program in kind.programs(suite)])


def bench(*options, **how):
    return Kind({"gcc": set()}, lambda suite: [command(
        suite, "run.py", [ROOT / "tests/bench/run.py", BUILDS["gcc"].folder, *options], **how)])


LEVELS = [["--optimization=0"], ["--optimization=s"], [], ["--buildtype=release"],
          ["--buildtype=release", "-Db_ndebug=true", "-Dtests=disabled"],
          ["--buildtype=release", "-Db_lto=true", "-Dtests=disabled"]]
# The tests are compiled, and not linked, which would take longer than all the rest.
CONFIGURE = """meson setup "$TMPDIR/build" "$@" && cd "$TMPDIR/build" &&
    for rule in c_COMPILER cpp_COMPILER c_LINKER cpp_LINKER STATIC_LINKER; do
        ninja -t targets rule $rule
    done | grep -v '^tests/.*/[^.]*$' | xargs ninja --quiet -j1 -k0
    status=$?; rm -rf "$TMPDIR/build"; exit $status"""


def configurations(suite):
    """Compiles what no other suite does, from empty folders, with warnings as errors."""
    for options in [*LEVELS, *(["--optimization=0", option] for option in parts_left_out())]:
        for compiler, cxx in COMPILERS.items():
            yield command(suite, " ".join([compiler, *options]), [
                "sh", "-c", CONFIGURE, "sh", ROOT, WARNINGS, *options], env={"CC": compiler, "CXX": cxx})


def parts_left_out():
    """Options that leave out a part: each of meson_options.txt, in turn."""
    for option in introspect(ROOT / "meson.build", "--buildoptions"):
        if option["section"] != "user":
            continue
        if option["value"] is True:
            yield "-D%s=false" % option["name"]
        for choice in option.get("choices", []):
            if choice not in ("enabled", "auto", option["value"]):
                yield "-D%s=%s" % (option["name"], choice)


def fresh(suite):
    """
    README's commands on bare systems, in turn, since they share a folder. Each is one case: what
    runs there is counted there.
    """
    return [in_bare_root(suite, release) for release in ("bookworm", "trixie")]


def in_bare_root(suite, release, *options):
    script = "set -o pipefail; tests/fresh --release $0 \"$@\" 2>&1 | sed 's/^/| /'"
    return command(suite, release, ["bash", "-c", script, release, *options], alone=True)


def packages(suite):
    """The files of a release, and Debian's packages, built and installed in bare systems."""
    return [command(suite, "release", ["tests/packaging/check_release"], alone=True),
            command(suite, "recipes", ["tests/packaging/check_recipes"]),
            *(in_bare_root(suite, release, "--packages") for release in ("bookworm", "trixie"))]


def arm_wheel(suite):
    """The wheel for aarch64, in a guest of its own."""
    return [command(suite, "wheel", ["tests/packaging/check_arm_wheel"], priority=LONG_SCRIPT)]


def carried(suite):
    """Runs a suite of the packed folder, which is made for other machines, on this one."""
    return [Program(suite.name, lambda: run_carried(suite), alone=True)]


def run_carried(suite):
    tally = Tally()
    reason = subprocess.run([ROOT / "tests/carry/run", "--why-not", suite.name], env=suite.env,
                            check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    if reason:
        say("skip: %s" % reason)
        tally.skipped.append(Skip(suite.name, "", reason))
        return tally
    # The programs are unit tests, too.
    BUILDS["gcc"].want({"unit"})
    if not BUILDS["gcc"].run(len(os.sched_getaffinity(0))):
        raise RuntimeError("build gcc failed")
    # Real devices: the checks of the kernel's configuration apply.
    suite.env.pop("PIER_DMABUF")
    with tempfile.TemporaryDirectory(prefix="pier-carried-") as place:
        subprocess.run([ROOT / "tests/carry/pack", BUILDS["gcc"].folder, place + "/carried"], check=True)
        try:
            run([place + "/carried/run", "--tally", place + "/tally.json", "--result", place + "/result",
                 suite.name], suite.left(), say, suite.env, ROOT)
        except Deadline:
            raise RuntimeError("the suite %s did not end" % suite.name) from None
        return Tally.read(pathlib.Path(place, "tally.json"))


# In the order in which they start: the long programs of vm while there is still enough to run
# beside them.
SUITES = {
    "unit": tests("gcc", "unit"),
    "conformance": tests("gcc", "conformance"),
    "consumer": Kind({}, scripts),
    "tools": tests("gcc", "tools"),
    "hostile": tests("gcc", "hostile"),
    "python": tests("gcc", "python"),
    # The guest first, which takes longest.
    "strangers": together(guests(STRANGERS_GUESTS, {"guest": set(), "gcc": {"vm_strangers"}}),
                          tests("gcc", "strangers")),
    "nixl": tests("gcc", "nixl", "nixl_wheels"),
    "lint": Kind({"gcc": set(), "clang": set()}, scripts),
    "vm": guests(GUESTS, {"guest": set(), "gcc": set().union(*(suites for *_, suites in GUESTS))}),
    # All of the cross build, for the compiler's warnings.
    "vm-arm": together(guests(ARM_GUESTS, {"arm64": set()}, "arm64"), Kind({}, arm_wheel)),
    "asan": tests("asan", "unit", "tools", "conformance", "nixl", "python", patience=4),
    "tsan": tests("tsan", "unit", "tools", "conformance", "nixl", patience=8),
    "fuzz": Kind({"fuzz": {"fuzz"}}, fuzz_targets),
    "bench-smoke": bench("--smoke"),
    "gpu": Kind({}, carried),
    "nic": Kind({}, carried),
    "configurations": Kind({}, configurations),
    "fresh": Kind({}, fresh),
    "packages": Kind({}, packages),
    "bench": bench(alone=True),
}

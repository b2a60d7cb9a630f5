#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a file of unittest cases, which prints TAP, in an interpreter with the modules it needs.

    run.py pypi|debian|torch FILE

pypi: a virtual environment with the packages of requirements.txt, kept in build/python-venv.
Without PyPI, the system's interpreter alone: cases that need a module then skip themselves.
debian: the system's interpreter, whose packages python3-torch, python3-mpi4py and
python3-pmix are older, and need an older NumPy.
torch: the same, with the folder of the package torchdata of pypi in PIER_TORCHDATA.

PIER_TEST_PRELOAD is a sanitizer's library, which must come before the interpreter's. Leaks then
are failures if the extension made them: CPython frees not all of its own memory at its end.
"""

import fcntl
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENV = ROOT / "build/python-venv"
REQUIREMENTS = HERE / "requirements.txt"
# Of packages whose own requirements are large and unused here.
ALONE = HERE / "requirements-alone.txt"
SYSTEM = "/usr/bin/python3"
# A frame of the extension or of the library, with or without debug information.
OURS = re.compile(r"_pier\.|python/extension/|/backends/|/src/(?!libsanitizer/)")


class Unavailable(Exception):
    """The packages cannot be had; the text is the reason."""


def pip(folder, *arguments):
    command = [folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check",
               "--only-binary=:all:", "--timeout", "20", "--retries", "1", *arguments]
    done = subprocess.run([str(part) for part in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Unavailable((done.stdout.strip().splitlines() or ["pip failed"])[-1])


def make_venv():
    """The interpreter of the virtual environment, made by the first process that needs it."""
    folder = VENV
    wanted = sys.version + REQUIREMENTS.read_text() + ALONE.read_text()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(str(folder) + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "requirements.txt"
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            pip(folder, "-r", REQUIREMENTS)
            pip(folder, "--no-deps", "-r", ALONE)
            stamp.write_text(wanted)
    return folder / "bin/python"


def interpreter(kind):
    system = SYSTEM if os.path.exists(SYSTEM) and kind != "pypi" else sys.executable
    if kind == "debian":
        return system
    try:
        python = make_venv()
    except (Unavailable, subprocess.SubprocessError) as problem:
        print("# without the packages of PyPI: %s" % problem, flush=True)
        return system
    if kind == "pypi":
        return python
    os.environ["PIER_TORCHDATA"], = map(str, VENV.glob("lib/python*/site-packages/torchdata"))
    return system


def run_sanitized(command, library):
    """The exit status of a command, whose leaks are reported on standard error at its end."""
    env = {**os.environ, "LD_PRELOAD": library, "PYTHONMALLOC": "malloc",
           "LSAN_OPTIONS": "exitcode=0"}
    done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, errors="replace",
                          check=False)
    sys.stderr.write(done.stderr)
    leaks = [report for report in done.stderr.split("\n\n")
             if " leak of " in report and OURS.search(report)]
    for report in leaks:
        print("# " + report.replace("\n", "\n# "))
    return done.returncode or bool(leaks)


def main():
    if sys.argv[1] != "run":
        python = str(interpreter(sys.argv[1]))
        command = [python, "-B", __file__, "run", *sys.argv[2:]]
        if "PIER_TEST_PRELOAD" in os.environ:
            sys.exit(run_sanitized(command, os.environ["PIER_TEST_PRELOAD"]))
        os.execv(python, command)
    # For what the cases start: this process has read it.
    os.environ["LSAN_OPTIONS"] = "detect_leaks=0"
    sys.path[:0] = [str(ROOT / "tests/lib"), str(HERE)]
    from cases import run_cases
    spec = importlib.util.spec_from_file_location(pathlib.Path(sys.argv[2]).stem, sys.argv[2])
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if hasattr(module, "SEED"):
        print("# PIER_SEED=%d" % module.SEED)
    run_cases(module, sys.argv[3:])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""examples/mpi.c under mpirun: four ranks, all well, and with one that dies."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from cases import Cases  # noqa: E402

RANKS = 4
DIES = 2
SECONDS = 50  # far beyond what it takes
WELL = "rank %d: %d blocks of 1048576 bytes are right"


def why_not():
    """Why there is nothing to run here, or None."""
    if not os.environ["EXAMPLE"]:
        return "the example over MPI is " + os.environ["STATE"]
    if not shutil.which("mpirun"):
        return "no mpirun (Debian: openmpi-bin)"
    if os.environ["SANITIZER"] != "none":
        return "Debian's OpenMPI is not made for the sanitizers"
    return None


def mpirun(*arguments, options=()):
    """Exit status, None if it did not end in time, and what was printed."""
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", *options, "-n", str(RANKS),
               os.environ["EXAMPLE"], *arguments]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    # Its sessions lie in a folder that is removed; containers forbid the ranks to read
    # each other's memory.
    with tempfile.TemporaryDirectory(prefix="pier-mpi-") as folder:
        environment = {**os.environ, "TMPDIR": folder, "PIER_DEVICE": "soft0",
                       "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=environment,
                                   start_new_session=True)
        try:
            output, _ = process.communicate(timeout=SECONDS)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]


def all_well():
    status, output = mpirun()
    for rank in range(RANKS):
        if WELL % (rank, RANKS) not in output:
            yield "rank %d does not say that all is right" % rank
    if status != 0:
        yield "status %s: %r" % (status, output)


def one_dies():
    """mpirun would end the others: it is told to let them be."""
    status, output = mpirun("--die", str(DIES), options=["--enable-recovery"])
    for rank in range(RANKS):
        said = re.findall(r"^rank %d: (.*)" % rank, output, re.MULTILINE)
        if rank == DIES:
            if said:
                yield "rank %d should print nothing: %r" % (rank, said)
        elif not any(re.match(r"barrier: .*rank %d .*is gone" % DIES, line) for line in said):
            yield "rank %d should name rank %d: %r" % (rank, DIES, said or output)
    if status is None or "are right" in output:
        yield "status %s: %r" % (status, output)


def main():
    cases = Cases()
    reason = why_not()
    for name, check in (("four ranks give each other their blocks", all_well),
                        ("a rank that dies is named by all others", one_dies)):
        if reason:
            cases.skip(name, reason)
        else:
            cases.case(name, check())
    cases.end()


main()

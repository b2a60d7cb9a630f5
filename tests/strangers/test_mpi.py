#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""Open MPI over UCX: NetPIPE (Debian: netpipe-openmpi), which compares the bytes here.

usage: test_mpi.py DEVICE
"""

import os

from judge import DEVICE, Judge, Place, need_programs
from programs import run_alone

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2",
          "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib,ofi"]
# -a posts receives before, -2 sends both ways. NPopenmpi2 is left out: it passes no valid
# MPI_Info to MPI_Win_create(), which Open MPI 4 refuses over any transport.
RUNS = [("rc_v", "NPopenmpi"), ("rc_v", "NPopenmpi -a -2"), ("ud_v", "NPopenmpi")]


def netpipe(program, transport, folder):
    """
    -i compares bytes; -u is the largest message, -n the rounds. Open MPI takes no other way
    than UCX, and UCX none but this transport.
    """
    env = {"UCX_TLS": transport, "UCX_NET_DEVICES": DEVICE + ":1", "TMPDIR": str(folder)}
    command = [*MPIRUN, *program.split(), "-i", "-u", "70000", "-n", "20", "-o", os.devnull]
    return run_alone(command, env, contains=["65537 bytes"])


def main():
    need_programs("openmpi-bin", "mpirun")
    need_programs("netpipe-openmpi", "NPopenmpi")
    judge = Judge("mpi")
    with Place() as folder:
        for transport, program in RUNS:
            judge.run("UCX_TLS=%s mpirun %s" % (transport, program),
                      lambda: netpipe(program, transport, folder))
    judge.end()


main()

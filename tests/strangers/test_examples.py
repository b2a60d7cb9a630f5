#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""rdma-core's own programs (Debian: ibverbs-utils). usage: test_examples.py DEVICE"""

from judge import DEVICE, Judge, Place, need_programs
from programs import run_alone, run_pair

ALONE = [
    (["ibv_devices"], [DEVICE]),
    (["ibv_devinfo", "-d", DEVICE], ["PORT_ACTIVE", "Ethernet"]),
    (["ibv_devinfo", "-v", "-d", DEVICE], ["PORT_ACTIVE", "GID[  0]", "RoCE v2"]),
    (["ibv_devinfo", "-l"], [DEVICE]),
]
# -c compares the bytes, -e waits for events, -o registers on demand, -N is ibv_wr_*.
PAIRS = """
    ibv_rc_pingpong
    ibv_rc_pingpong -e
    ibv_rc_pingpong -c
    ibv_rc_pingpong -c -s 1000000 -n 20
    ibv_rc_pingpong -c -m 4096
    ibv_rc_pingpong -c -o
    ibv_rc_pingpong -c -o -P
    ibv_rc_pingpong -c -O
    ibv_rc_pingpong -c -N
    ibv_rc_pingpong -c -e -N
    ibv_rc_pingpong -t
    ibv_rc_pingpong -c -j
    ibv_srq_pingpong
    ibv_srq_pingpong -e
    ibv_srq_pingpong -c
    ibv_srq_pingpong -c -o
    ibv_ud_pingpong
    ibv_ud_pingpong -e
    ibv_ud_pingpong -c
    ibv_uc_pingpong -c
    ibv_xsrq_pingpong -n 5
"""


def pingpong(command):
    """-n: rounds, unless the command has its own."""
    program, *options = command.split()
    common = [program, "-n", "100", *options, "-d", DEVICE, "-g", "0", "-p"]
    return run_pair(lambda port: [*common, str(port)],
                    lambda port: [*common, str(port), "127.0.0.1"])


def main():
    need_programs("ibverbs-utils", "ibv_devinfo", "ibv_rc_pingpong")
    judge = Judge("examples")
    with Place():
        for command, contains in ALONE:
            name = " ".join(word for word in command if word not in ("-d", DEVICE))
            judge.run(name, lambda: run_alone(command, contains=contains))
        for command in PAIRS.strip().splitlines():
            judge.run(command.strip(), lambda: pingpong(command))
    judge.end()


main()

#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""Programs of linux-rdma's perftest. It checks no bytes. usage: test_perftest.py DEVICE"""

from judge import DEVICE, Judge, Place, need_programs
from programs import run_pair

# -a: all sizes from 2 bytes to 8 MiB; -n: rounds; -e waits for events.
COMMANDS = """
    ib_write_bw -a -n 5
    ib_write_bw -n 100 -s 65536 -b
    ib_write_bw -n 100 -s 4096 -q 4
    ib_write_bw -n 100 -s 64 -I 64
    ib_write_bw -n 96 -s 4096 -m 4096 -l 8 -Q 8
    ib_write_bw -n 100 -s 4096 --use_old_post_send
    ib_write_bw -n 100 -s 4096 --mr_per_qp -q 2
    ib_write_bw -n 100 -s 4096 --odp
    ib_write_bw -n 100 -s 4096 -R
    ib_write_lat -n 100
    ib_write_lat -n 5 -s 8388608
    ib_write_lat -n 100 -s 64 -I 0
    ib_read_bw -n 5 -s 8388608
    ib_read_bw -n 100 -s 4096 -q 4 -o 1
    ib_read_bw -n 100 -s 4096 -b -e
    ib_read_lat -n 100
    ib_read_lat -n 1000 -s 4096 -e
    ib_send_bw -n 5 -s 8388608
    ib_send_bw -n 100 -s 4096 -b -e
    ib_send_bw -n 100 -s 4096 -q 4 --use-srq
    ib_send_bw -n 100 -s 4096 -r 8
    ib_send_bw -n 100 -s 1024 -c UD
    ib_send_bw -n 100 -s 4096 -c UC
    ib_send_bw -n 100 -s 4096 -c XRC
    ib_send_lat -n 100
    ib_send_lat -n 1000 -s 4096 -e
    ib_send_lat -n 100 -s 64 -I 64
    ib_send_lat -n 100 -s 1024 -c UD
    ib_atomic_bw -n 100
    ib_atomic_bw -n 100 -A CMP_AND_SWAP -q 4 -o 4
    ib_atomic_lat -n 100
    ib_atomic_lat -n 1000 -A CMP_AND_SWAP -e
"""


def perftest(command):
    # -F: the processor's frequency does not matter here.
    common = [*command.split(), "-d", DEVICE, "-F", "-p"]
    return run_pair(lambda port: [*common, str(port)],
                    lambda port: [*common, str(port), "127.0.0.1"])


def main():
    need_programs("perftest", "ib_write_bw", "ib_atomic_lat")
    judge = Judge("perftest")
    with Place():
        for command in COMMANDS.strip().splitlines():
            judge.run(command.strip(), lambda: perftest(command))
    judge.end()


main()

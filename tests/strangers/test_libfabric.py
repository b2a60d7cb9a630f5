#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""libfabric's verbs provider (Debian: libfabric-bin). usage: test_libfabric.py DEVICE"""

from judge import DEVICE, Judge, Place, need_programs
from programs import run_alone, run_pair

# -c compares the bytes. The provider calls a device with UD NAME-dgram.
PINGPONGS = [
    "fi_pingpong -p verbs;ofi_rxd -e rdm -d %s-dgram -c -I 10 -S 64" % DEVICE,
    "fi_pingpong -p verbs;ofi_rxd -e rdm -m tagged -d %s-dgram -c -I 10 -S 100000" % DEVICE,
    "fi_pingpong -p verbs -e dgram -d %s-dgram -c -I 10 -S 1024" % DEVICE,
    "fi_pingpong -p verbs -e msg -d %s -c -I 10 -S 4096" % DEVICE,
    "fi_pingpong -p verbs;ofi_rxm -e rdm -d %s -c -I 10 -S 4096" % DEVICE,
]


def pingpong(command):
    return run_pair(lambda port: [*command.split(), "-B", str(port)],
                    lambda port: [*command.split(), "-P", str(port), "127.0.0.1"])


def main():
    need_programs("libfabric-bin", "fi_info", "fi_pingpong")
    judge = Judge("libfabric")
    with Place():
        judge.run("fi_info -p verbs", lambda: run_alone(
            ["fi_info", "-p", "verbs"], contains=["FI_EP_MSG", "domain: %s-dgram" % DEVICE]))
        for command in PINGPONGS:
            judge.run(command.replace(DEVICE, "DEVICE"), lambda: pingpong(command))
    judge.end()


main()

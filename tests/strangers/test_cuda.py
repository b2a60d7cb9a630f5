#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""
Programs of others with memory of a GPU, the fake CUDA driver's, which they register by
ibv_reg_mr(): without libpier-dmabuf they fail, with it they run. usage: test_cuda.py DEVICE

The environment is that of gpu.py, and PIER_PERFTEST, what build_perftest has left.
"""

import os
import pathlib

import gpu
from judge import DEVICE, Judge, Outcome, Place, skip_everything
from programs import run_pair

COMMANDS = """
    ib_write_bw -n 20 -s 4096
    ib_read_bw -n 20 -s 4096
    ib_send_lat -n 20 -s 4096
"""
# One region of each of the two processes.
REGIONS = 2
PERFTEST = pathlib.Path(os.environ["PIER_PERFTEST"])


def perftest(command, wrap, env):
    name, *options = command.split()
    common = [PERFTEST / name, "--use_cuda=0", *options, "-d", DEVICE, "-F", "-p"]
    return run_pair(lambda port: wrap([*common, str(port)]),
                    lambda port: wrap([*common, str(port), "127.0.0.1"]),
                    {"LD_LIBRARY_PATH": str(PERFTEST / "lib"), **env})


def refused(command):
    outcome = perftest(command, list, {})
    right = outcome.state == "fails" and "Couldn't allocate MR" in outcome.text
    return Outcome("passes" if right else "fails", outcome.text)


def registered(command, report):
    env = {"PIER_DMABUF_REPORT": str(report)}
    return gpu.check_regions(lambda: perftest(command, gpu.with_library, env), report, REGIONS)


def main():
    missing = PERFTEST / "missing"
    if missing.exists():
        skip_everything("no perftest with CUDA: " + missing.read_text().strip())
    gpu.need_dmabufs()
    judge = Judge("cuda")
    with Place() as place:
        commands = [command.strip() for command in COMMANDS.strip().splitlines()]
        judge.run("refused: " + commands[0], lambda: refused(commands[0]))
        for command in commands:
            judge.run(command, lambda: registered(command, place / "report"))
    judge.end()


main()

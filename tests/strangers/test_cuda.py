#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""
Programs of others with memory of a GPU, the fake CUDA driver's, which they register by
ibv_reg_mr(): without libpier-dmabuf they fail, with it they run. usage: test_cuda.py DEVICE

The environment: PIER, PIER_DMABUF_LIBRARY, PIER_VERBS_LIBRARY, and PIER_PERFTEST, what
build_perftest has left.
"""

import os
import pathlib

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
# Of the guest's rxe: dma-bufs that the kernel has registered.
COUNTER = pathlib.Path("/sys/module/rdma_rxe/parameters/dmabuf_registered")
# `pier run` has no soft0 with --dmabuf: nobody needs both.
WITH = [os.environ["PIER"], "run", "--dmabuf", "--"] if DEVICE != "soft0" else [
    "env", "LD_PRELOAD=%s:%s" % (os.environ["PIER_DMABUF_LIBRARY"], os.environ["PIER_VERBS_LIBRARY"])]


def perftest(command, prefix, env):
    name, *options = command.split()
    common = [*prefix, PERFTEST / name, "--use_cuda=0", *options, "-d", DEVICE, "-F", "-p"]
    return run_pair(lambda port: [*common, str(port)],
                    lambda port: [*common, str(port), "127.0.0.1"],
                    {"LD_LIBRARY_PATH": str(PERFTEST / "lib"), **env})


def kernel_count():
    return int(COUNTER.read_text()) if DEVICE != "soft0" else 0


def refused(command):
    outcome = perftest(command, [], {})
    right = outcome.state == "fails" and "Couldn't allocate MR" in outcome.text
    return Outcome("passes" if right else "fails", outcome.text)


def registered(command, report):
    """It runs, and its regions are dma-bufs, to the library and to the kernel."""
    before = kernel_count()
    outcome = perftest(command, WITH, {"PIER_DMABUF_REPORT": str(report)})
    lines = report.read_text().splitlines() if report.exists() else []
    report.unlink(missing_ok=True)
    good = [line for line in lines if line.split("\t")[7] == "dma-buf" and line.split("\t")[10] == "0"]
    of_kernel = kernel_count() - before
    text = "\n".join([outcome.text, *lines, "registered by the kernel: %d" % of_kernel])
    right = len(lines) == len(good) == REGIONS and of_kernel == (0 if DEVICE == "soft0" else REGIONS)
    return Outcome(outcome.state if right else "fails", text)


def main():
    missing = PERFTEST / "missing"
    if missing.exists():
        skip_everything("no perftest with CUDA: " + missing.read_text().strip())
    if DEVICE != "soft0" and not COUNTER.exists():
        skip_everything("the rdma_rxe that takes dma-bufs is not loaded")
    judge = Judge("cuda")
    with Place() as place:
        commands = [command.strip() for command in COMMANDS.strip().splitlines()]
        judge.run("refused: " + commands[0], lambda: refused(commands[0]))
        for command in commands:
            judge.run(command, lambda: registered(command, place / "report"))
    judge.end()


main()

#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""
UCX in the wheel of NIXL with memory of the fake CUDA driver, which gives it no dma-bufs:
it registers that memory only if it finds peer memory. usage: test_cuda_nixl.py DEVICE

The environment is that of gpu.py, and PIER_TEST_NIXL_WHEELS, where the wheel is kept.
"""

import os
import sys

import gpu
from judge import HERE, Judge, Outcome, Place, skip_everything
from programs import run_alone

sys.path.insert(0, str(HERE.parent / "nixl"))
import wheels  # noqa: E402


def nixl(path, drivers, report, mode):
    """The outcome. UCX connects agents of one process, too, by the NIC."""
    env = wheels.environment(
        path, LD_LIBRARY_PATH=str(drivers), PIER_DMABUF_REPORT=str(report), PIER_PRELOAD=mode,
        UCX_TLS="rc_v,cuda_copy", UCX_CUDA_COPY_DMABUF="n")
    return run_alone(gpu.with_library([sys.executable, "-B", HERE / "nixl_vram.py"]), env)


def refused(outcome):
    """UCX takes the NIC for one that reaches no memory of a GPU, and copies it, which fails."""
    right = outcome.state == "fails" and "registered server" in outcome.text
    return Outcome("passes" if right else "fails", outcome.text)


def main():
    gpu.need_dmabufs()
    judge = Judge("cuda-nixl")
    try:
        path = wheels.Cache(os.environ["PIER_TEST_NIXL_WHEELS"]).path(wheels.NEWEST)
    except wheels.Unavailable as problem:
        skip_everything("no wheel of NIXL: %s" % problem)
    with Place() as place:
        arguments = path, gpu.driver_folder(place), place / "report"
        # With `off`, too, all its calls go to the system's libibverbs: its own has no driver of rxe.
        for mode in "off", "on":
            judge.run("PIER_PRELOAD=%s: nothing is registered" % mode, lambda: gpu.check_regions(
                lambda: refused(nixl(*arguments, mode)), arguments[-1], 0))
        judge.run("PIER_PRELOAD=peermem: UCX registers", lambda: gpu.check_regions(
            lambda: nixl(*arguments, "peermem"), arguments[-1], 2))
    judge.end()


main()

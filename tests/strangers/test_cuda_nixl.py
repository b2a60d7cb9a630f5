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

VERSION = "1.5.1"


def nixl(path, drivers, report, mode):
    """The outcome. UCX connects agents of one process, too, by the NIC."""
    env = wheels.environment(
        path, LD_LIBRARY_PATH=str(drivers), PIER_DMABUF_REPORT=str(report), PIER_PRELOAD=mode,
        UCX_TLS="rc_v,cuda_copy", UCX_CUDA_COPY_DMABUF="n")
    return run_alone(gpu.with_library([sys.executable, "-B", HERE / "nixl_vram.py"]), env)


def without_answer(path, drivers, report):
    """UCX takes the NIC for one that reaches no memory of a GPU, and copies it."""
    text = nixl(path, drivers, report, "on").text
    outcome = Outcome("passes" if "registered server" in text else "fails", text)
    return gpu.check_regions(outcome, report, 0)


def with_answer(path, drivers, report):
    return gpu.check_regions(nixl(path, drivers, report, "peermem"), report, 2)


def main():
    judge = Judge("cuda-nixl")
    try:
        path = wheels.Cache(os.environ["PIER_TEST_NIXL_WHEELS"]).path(VERSION)
    except wheels.Unavailable as problem:
        skip_everything("no wheel of NIXL: %s" % problem)
    with Place() as place:
        arguments = path, gpu.driver_folder(place), place / "report"
        judge.run("PIER_PRELOAD=on: nothing is registered", lambda: without_answer(*arguments))
        judge.run("PIER_PRELOAD=peermem: UCX registers", lambda: with_answer(*arguments))
    judge.end()


main()

#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""
UCX in the wheel of NIXL with memory of the fake CUDA driver, which gives it no dma-bufs:
it registers that memory only if it finds peer memory. usage: test_cuda_nixl.py DEVICE

The environment: PIER, PIER_DMABUF_LIBRARY, PIER_VERBS_LIBRARY, PIER_FAKE_DRIVERS, and
PIER_TEST_NIXL_WHEELS, where the wheel is kept.
"""

import os
import pathlib
import sys

from judge import HERE, Judge, Outcome, Place, skip_everything
from programs import run

sys.path.insert(0, str(HERE.parent / "nixl"))
import wheels  # noqa: E402

VERSION = "1.5.1"


def driver_folder(place):
    """The fake libmlx5 is not for UCX."""
    folder = place / "drivers"
    folder.mkdir()
    for name in "libcuda.so.1", "libnvidia-ml.so.1":
        (folder / name).symlink_to(pathlib.Path(os.environ["PIER_FAKE_DRIVERS"], name))
    return folder


def nixl(path, drivers, report, mode):
    """Its output, whether it succeeded, and the lines of the report."""
    env = wheels.environment(
        path, LD_LIBRARY_PATH=str(drivers), PIER_DMABUF_REPORT=str(report), PIER_PRELOAD=mode,
        UCX_TLS="rc_v,cuda_copy", UCX_CUDA_COPY_DMABUF="n")
    # The order is the order of the loader.
    command = ["env", "LD_PRELOAD=%s:%s" % (os.environ["PIER_DMABUF_LIBRARY"], os.environ["PIER_VERBS_LIBRARY"]),
               sys.executable, "-B", HERE / "nixl_vram.py"]
    succeeded, text = run(command, env)
    lines = report.read_text().splitlines() if report.exists() else []
    report.unlink(missing_ok=True)
    return succeeded, "\n".join([text, *lines]), lines


def without_answer(*arguments):
    """UCX takes the NIC for one that reaches no memory of a GPU, and copies it."""
    _, text, lines = nixl(*arguments, "on")
    return Outcome("passes" if "registered server" in text and not lines else "fails", text)


def with_answer(*arguments):
    succeeded, text, lines = nixl(*arguments, "peermem")
    good = [line for line in lines if line.split("\t")[7] == "dma-buf" and line.split("\t")[10] == "0"]
    right = succeeded and "the bytes are right" in text and len(good) == len(lines) == 2
    return Outcome("passes" if right else "fails", text)


def main():
    judge = Judge("cuda-nixl")
    try:
        path = wheels.Cache(os.environ["PIER_TEST_NIXL_WHEELS"]).path(VERSION)
    except wheels.Unavailable as problem:
        skip_everything("no wheel of NIXL: %s" % problem)
    with Place() as place:
        arguments = path, driver_folder(place), place / "report"
        judge.run("PIER_PRELOAD=on: nothing is registered", lambda: without_answer(*arguments))
        judge.run("PIER_PRELOAD=peermem: UCX registers", lambda: with_answer(*arguments))
    judge.end()


main()

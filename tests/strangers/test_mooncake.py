#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""Mooncake's transfer engine, its wheel from PyPI, over RDMA. usage: test_mooncake.py DEVICE

The wheel is kept in $PIER_TEST_NIXL_WHEELS. If gpu.py has its environment, it also moves memory of
the fake CUDA driver, without and with libpier-dmabuf.
"""

import os
import re
import subprocess
import sys
import time

import gpu
from judge import DEVICE, HERE, Judge, Outcome, Place, skip_everything
from programs import SECONDS, Running

sys.path.insert(0, str(HERE.parent / "nixl"))
import wheels

SIZES = ["1", "4096", "1000003", str(5 << 20)]


def wait_for_target(target, until):
    """Its name and the address of its memory, or None."""
    while time.monotonic() < until and target.process.poll() is None:
        found = re.search(r"^target (\S+) (\d+)$", target.text(), re.MULTILINE)
        if found:
            return found.groups()
        time.sleep(0.02)
    return None


def transfer(env, memory="host", wrap=list):
    until = time.monotonic() + SECONDS
    command = wrap([sys.executable, "-B", HERE / "mooncake_end.py", memory, DEVICE])
    target, initiator = Running(command, env, stdin=subprocess.PIPE), None
    try:
        found = wait_for_target(target, until)
        if found:
            initiator = Running([*command, *found, *SIZES], env)
            initiator.wait(until)
        target.process.stdin.close()
        target.wait(until)
    finally:
        results = [end.end() for end in (initiator, target) if end]
    text = "\n".join(text for _, text in results)
    # Without a device it moves the bytes over TCP instead.
    passed = initiator and all(good for good, _ in results) and "installTransport, type=rdma" in text
    return Outcome("passes" if passed else "fails", text)


def cuda_without(env):
    outcome = transfer(env, "cuda")
    right = outcome.state == "fails" and re.search("^register_memory: ", outcome.text, re.MULTILINE)
    return Outcome("passes" if right else "fails", outcome.text)


def judge_cuda(judge, env, place):
    report = place / "report"
    env = {**env, "LD_LIBRARY_PATH": str(gpu.driver_folder(place)), "PIER_DMABUF_REPORT": str(report)}
    judge.run("memory of a GPU without libpier-dmabuf", lambda: gpu.check_regions(
        lambda: cuda_without(env), report, 0))
    judge.run("memory of a GPU with libpier-dmabuf", lambda: gpu.check_regions(
        lambda: transfer(env, "cuda", gpu.with_library), report, 2))


def main():
    judge = Judge("mooncake")
    with_gpu = "PIER_DMABUF_LIBRARY" in os.environ
    if with_gpu:
        gpu.need_dmabufs()
    try:
        env = {"PYTHONPATH": str(wheels.Cache(os.environ["PIER_TEST_NIXL_WHEELS"]).mooncake())}
    except wheels.Unavailable as problem:
        skip_everything("no wheel of Mooncake: %s" % problem)
    with Place() as place:
        judge.run("TransferEngine over rdma", lambda: transfer(env))
        if with_gpu:
            judge_cuda(judge, env, place)
    judge.end()


main()

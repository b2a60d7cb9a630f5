#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""Mooncake's transfer engine, its wheel from PyPI, over RDMA. usage: test_mooncake.py DEVICE

The wheel is kept in $PIER_STRANGERS. If gpu.py has its environment, it also moves memory of the
fake CUDA driver, without and with libpier-dmabuf.
"""

import os
import pathlib
import re
import subprocess
import time

import gpu
from judge import DEVICE, HERE, Judge, Outcome, Place, skip_everything
from programs import SECONDS, Running

WHEEL = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
SIZES = ["1", "4096", "1000003", str(5 << 20)]
INSTALL_SECONDS = 150


def installed_python():
    """The Python of an environment with the wheel; it is made if it is not there."""
    folder = pathlib.Path(os.environ["PIER_STRANGERS"]) / "mooncake"
    python, stamp = folder / "bin/python", folder / "installed"
    if stamp.exists() and stamp.read_text() == WHEEL:
        return python
    try:
        for command in (["/usr/bin/python3", "-m", "venv", "--clear", folder],
                        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--timeout", "20",
                         "--retries", "1", WHEEL]):
            subprocess.run(command, check=True, text=True, timeout=INSTALL_SECONDS,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        skip_everything("%s was not installed within %d s" % (WHEEL, INSTALL_SECONDS))
    except subprocess.CalledProcessError as error:
        last = error.stdout.strip().rpartition("\n")[2]
        skip_everything("%s cannot be installed: %s" % (WHEEL, last))
    stamp.write_text(WHEEL)
    return python


def wait_for_target(target, until):
    """Its name and the address of its memory, or None."""
    while time.monotonic() < until and target.process.poll() is None:
        found = re.search(r"^target (\S+) (\d+)$", target.text(), re.MULTILINE)
        if found:
            return found.groups()
        time.sleep(0.02)
    return None


def transfer(python, memory="host", wrap=list, env=None):
    until = time.monotonic() + SECONDS
    command = wrap([python, "-B", HERE / "mooncake_end.py", memory, DEVICE])
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


def cuda_without(python, env):
    outcome = transfer(python, "cuda", env=env)
    right = outcome.state == "fails" and re.search("^register_memory: ", outcome.text, re.MULTILINE)
    return Outcome("passes" if right else "fails", outcome.text)


def cuda_with(python, env, report):
    env = {**env, "PIER_DMABUF_REPORT": str(report)}
    return gpu.check_regions(transfer(python, "cuda", gpu.with_library, env), report, 2)


def judge_cuda(judge, python, place):
    env = {"LD_LIBRARY_PATH": str(gpu.driver_folder(place))}
    judge.run("memory of a GPU without libpier-dmabuf", lambda: cuda_without(python, env))
    judge.run("memory of a GPU with libpier-dmabuf", lambda: cuda_with(python, env, place / "report"))


def main():
    judge = Judge("mooncake")
    name = "TransferEngine over rdma"
    if not judge.is_unused(name):
        python = installed_python()
        with Place() as place:
            judge.judge(name, transfer(python))
            if "PIER_DMABUF_LIBRARY" in os.environ:
                judge_cuda(judge, python, place)
    judge.end()


main()

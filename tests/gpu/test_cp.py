#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp through device memory: every byte of the copy is compared.

PIER is the program, PIER_GPU_DEVICE the device.
"""

import ctypes
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from cases import Cases  # noqa: E402

CUDA = "cuda:%d" % int(os.environ.get("PIER_GPU_DEVICE", "0"))
SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)
SECONDS = 120
# The memory of the sender and of the receiver, the size, and other options.
COPIES = [
    (CUDA, CUDA, 40000007, []),
    (CUDA, CUDA, 0, []),
    (CUDA, CUDA, 5000001, ["--chunk", "64K", "--depth", "3"]),
    (CUDA + ":vmm", CUDA + ":vmm", 20000003, []),
    (CUDA + ":host", CUDA, 5000001, []),
    (CUDA, "memfd", 5000001, []),
    ("memfd", CUDA, 5000001, []),
]


def no_device():
    """Why there is none, or None. The programs in C look closer."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return "no NVIDIA driver: %s" % error
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "no CUDA device"
    return None


def copy(folder, source, target, options):
    """What it says, and what is wrong with it."""
    command = [os.environ["PIER"], "cp", "--device", "soft0", "--remote-device", "soft0", *options,
               str(source), str(target)]
    try:
        done = subprocess.run(command, cwd=folder, text=True, timeout=SECONDS,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return "", "it did not end within %d s" % SECONDS
    if done.returncode:
        return done.stdout, "exit status %d" % done.returncode
    if target.read_bytes() != source.read_bytes():
        return done.stdout, "other bytes than the file's"
    return done.stdout, None


def main():
    cases = Cases()
    reason = no_device()
    if reason:
        print("skip: %s\n1..0 # skip %s" % (reason, reason))
        sys.exit(77)
    print("# PIER_SEED=%d" % SEED)
    content = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="pier-gpu-") as folder:
        source, target = pathlib.Path(folder, "source"), pathlib.Path(folder, "target")
        for here, there, size, options in COPIES:
            source.write_bytes(content.randbytes(size))
            said, problem = copy(folder, source, target,
                                 ["--src-mem", here, "--dst-mem", there, *options])
            print("\n".join("# " + line for line in said.splitlines()))
            cases.case("%d bytes from %s to %s%s" % (
                size, here, there, " ".join(["", *options])), [problem] if problem else [])
            target.unlink(missing_ok=True)
    cases.end()


main()

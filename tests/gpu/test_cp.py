#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp through device memory: every byte of the copy is compared.

PIER is the program, PIER_GPU_BACKEND cuda, hip or host, PIER_GPU_DEVICE the device, and
PIER_GPU_NIC and PIER_GPU_PEER_NIC the NICs.
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

BACKEND = os.environ.get("PIER_GPU_BACKEND", "cuda")
GPU = "%s:%d" % (BACKEND, int(os.environ.get("PIER_GPU_DEVICE", "0")))
NIC = os.environ.get("PIER_GPU_NIC", "soft0")
PEER_NIC = os.environ.get("PIER_GPU_PEER_NIC", NIC)
# The library of a backend, and the function that counts its devices.
DRIVERS = {"cuda": (["libcuda.so.1"], "cuDeviceGetCount"),
           "hip": (["libamdhip64.so." + n for n in "675"], "hipGetDeviceCount")}
SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)
SECONDS = 120
# The memory of the sender and of the receiver, the size, and other options.
COPIES = [
    (GPU, GPU, 40000007, []),
    (GPU, GPU, 0, []),
    (GPU, GPU, 5000001, ["--chunk", "64K", "--depth", "3"]),
    (GPU + ":host", GPU, 5000001, []),
    (GPU, "memfd", 5000001, []),
    ("memfd", GPU, 5000001, []),
]
if BACKEND == "cuda":
    COPIES.append((GPU + ":vmm", GPU + ":vmm", 20000003, []))
if BACKEND == "host":
    COPIES = [("host", "host", size, options) for _, _, size, options in COPIES[:3]]


def no_device():
    """Why there is none, or None. The programs in C look closer."""
    if BACKEND == "host":
        return None
    names, counter = DRIVERS[BACKEND]
    for name in names:
        try:
            driver = ctypes.CDLL(name)
            break
        except OSError as error:
            reason = "no %s driver: %s" % (BACKEND, error)
    else:
        return reason
    count = ctypes.c_int(0)
    if BACKEND == "cuda" and driver.cuInit(0) or \
            getattr(driver, counter)(ctypes.byref(count)) or not count.value:
        return "no %s device" % BACKEND
    return None


def copy(folder, source, target, options):
    """What it says, and what is wrong with it."""
    command = [os.environ["PIER"], "cp", "--device", NIC, "--remote-device", PEER_NIC, *options,
               str(source), str(target)]
    try:
        done = subprocess.run(command, cwd=folder, universal_newlines=True, timeout=SECONDS,
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
            random_bytes = content.getrandbits(8 * size + 8).to_bytes(size + 1, "little")
            source.write_bytes(random_bytes[:size])
            said, problem = copy(folder, source, target,
                                 ["--src-mem", here, "--dst-mem", there, *options])
            print("\n".join("# " + line for line in said.splitlines()))
            cases.case("%d bytes from %s to %s%s" % (
                size, here, there, " ".join(["", *options])), [problem] if problem else [])
            if target.exists():
                target.unlink()
    cases.end()


main()

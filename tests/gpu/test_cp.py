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
DEVICE = int(os.environ.get("PIER_GPU_DEVICE", "0"))
GPU = "%s:%d" % (BACKEND, DEVICE)
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


def count_devices():
    """How many there are, and why none, or None. The programs in C look closer."""
    if BACKEND == "host":
        return 1, None
    names, counter = DRIVERS[BACKEND]
    for name in names:
        try:
            driver = ctypes.CDLL(name)
            break
        except OSError as error:
            reason = "no %s driver: %s" % (BACKEND, error)
    else:
        return 0, reason
    count = ctypes.c_int(0)
    if BACKEND == "cuda" and driver.cuInit(0) or \
            getattr(driver, counter)(ctypes.byref(count)) or not count.value:
        return 0, "no %s device" % BACKEND
    return count.value, None


def copy(folder, source, target, options):
    """What it says, and what is wrong with it."""
    command = [os.environ["PIER"], "cp", *options, str(source), str(target)]
    env = {name: value for name, value in os.environ.items() if name != "PIER_DEVICE"}
    try:
        done = subprocess.run(command, cwd=folder, universal_newlines=True, timeout=SECONDS,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    except subprocess.TimeoutExpired:
        return "", "it did not end within %d s" % SECONDS
    if done.returncode:
        return done.stdout, "exit status %d" % done.returncode
    if target.read_bytes() != source.read_bytes():
        return done.stdout, "other bytes than the file's"
    return done.stdout, None


def copies(count):
    """(name, size, options) of each."""
    for here, there, size, options in COPIES:
        yield ("%d bytes from %s to %s%s" % (size, here, there, " ".join(["", *options])), size,
               ["--device", NIC, "--remote-device", PEER_NIC, "--src-mem", here,
                "--dst-mem", there, *options])
    if BACKEND == "cuda":  # the driver copies, or -v prints why not
        other = "cuda:%d" % ((DEVICE + 1) % count)
        yield ("40000007 bytes from %s to %s without a NIC" % (GPU, other), 40000007,
               ["-v", "--src-mem", GPU, "--dst-mem", other])


def main():
    cases = Cases()
    count, reason = count_devices()
    if reason:
        print("skip: %s\n1..0 # skip %s" % (reason, reason))
        sys.exit(77)
    print("# PIER_SEED=%d" % SEED)
    content = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="pier-gpu-") as folder:
        source, target = pathlib.Path(folder, "source"), pathlib.Path(folder, "target")
        for name, size, options in copies(count):
            random_bytes = content.getrandbits(8 * size + 8).to_bytes(size + 1, "little")
            source.write_bytes(random_bytes[:size])
            said, problem = copy(folder, source, target, options)
            print("\n".join("# " + line for line in said.splitlines()))
            if not problem and "-v" in options and "ipc" not in said:
                problem = "neither ipc nor why not"
            cases.case(name, [problem] if problem else [])
            if target.exists():
                target.unlink()
    cases.end()


main()

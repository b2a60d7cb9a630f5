#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier's bandwidth beside perftest's on the same NIC, in turn, as a ratio. No ratio fails.

    test_perf.py [ROUNDS]

PIER is the program, PIER_GPU_NIC the NIC. Both have two processes on it. The memory is the
host's, or with PIER_GPU_BACKEND=cuda that of the GPU PIER_GPU_DEVICE, of which perftest
exports dma-bufs (--use_cuda_dmabuf). It has that only if it was built with CUDA.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from cases import Cases  # noqa: E402

NIC = os.environ.get("PIER_GPU_NIC", "")
BACKEND = os.environ.get("PIER_GPU_BACKEND", "host")
DEVICE = int(os.environ.get("PIER_GPU_DEVICE") or "0")
MEMORY = "host" if BACKEND == "host" else "%s:%d" % (BACKEND, DEVICE)
OPTIONS = [] if BACKEND == "host" else ["--use_cuda=%d" % DEVICE, "--use_cuda_dmabuf"]
TESTS = [("write_bw", "ib_write_bw"), ("read_bw", "ib_read_bw")]
SIZES = [4096, 65536, 1 << 20]
ROUNDS = int((sys.argv[1:] or ["3"])[0])
SECONDS = 60
MIB = 1 << 20


def pier(test, size, count):
    """Bytes per second."""
    done = subprocess.run([os.environ["PIER"], "perf", "--json", "-d", NIC, "--src-mem", MEMORY,
                           "--dst-mem", MEMORY, "-s", str(size), "-n", str(count), "--warm-up",
                           "0", test], universal_newlines=True, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)["results"][0]["bytes_per_second"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def perftest(program, size, count):
    """Bytes per second; its column of the average is the third after the size."""
    # The ack timeout is pier's. perftest's own is 67 ms, which busy machines take to answer.
    command = [program, "-d", NIC, "-s", str(size), "-n", str(count), "-u", "18", "-F", "-p",
               str(free_port()), *OPTIONS]
    server = subprocess.Popen(command, universal_newlines=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
    said = ""
    try:
        until = time.monotonic() + SECONDS
        # The server listens when it has made its queue pair: until then it is asked again.
        while time.monotonic() < until and server.poll() is None:
            said = subprocess.run(command + ["127.0.0.1"], universal_newlines=True, timeout=SECONDS,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
            row = re.search(r"^ *%d +\d+ +[\d.]+ +([\d.]+)" % size, said, re.M)
            if row and float(row[1]):
                return float(row[1]) * MIB
            time.sleep(0.1)
    finally:
        ended = server.poll() is not None
        server.kill()
        server_said = server.communicate()[0]
    # A client cannot know why there is no server.
    said = (server_said if ended else said).strip()
    raise RuntimeError("%s: %s" % (program, " ".join(said[-300:].split()) or "no answer"))


def failure_of(measure, *arguments):
    """Why it fails, or None."""
    try:
        measure(*arguments)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def reason_to_skip_gpu(test, program, size):
    """Not every machine has a path to the GPU's memory. pier must have one if perftest has."""
    theirs = failure_of(perftest, program, size, 20)
    return theirs and "%s (pier perf: %s)" % (theirs, failure_of(pier, test, size, 20) or "works")


def compare(test, program, size):
    """The problems, after printing the ratio."""
    try:
        # As many as take half a second.
        count = int(min(max(pier(test, size, 20) * 0.5 / size, 20), 100000))
        pairs = [(pier(test, size, count), perftest(program, size, count))
                 for _ in range(ROUNDS)]
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    ratios = [ours / theirs for ours, theirs in pairs]
    print("# %s, %d bytes: pier %.3f GB/s, %s %.3f GB/s, ratio %.3f (%.3f..%.3f)" % (
        test, size, statistics.median(ours for ours, _ in pairs) / 1e9, program,
        statistics.median(theirs for _, theirs in pairs) / 1e9, statistics.median(ratios),
        min(ratios), max(ratios)))
    return []


def reason_to_skip():
    if not os.path.exists("/sys/class/infiniband/" + NIC) or not NIC:
        return "%s is no device of the kernel's" % (NIC or "PIER_GPU_NIC")
    missing = [program for _, program in TESTS if not shutil.which(program)]
    if missing:
        return "perftest is not installed"
    usage = subprocess.run([TESTS[0][1], "--help"], universal_newlines=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    if OPTIONS and "--use_cuda_dmabuf" not in usage:
        return "perftest was built without CUDA: it has no --use_cuda_dmabuf"
    return None


def main():
    reason, cases = reason_to_skip(), Cases()
    if reason:
        print("skip: %s\n1..0 # skip %s" % (reason, reason))
        sys.exit(77)
    for test, program in TESTS:
        for size in SIZES:
            reason = BACKEND != "host" and reason_to_skip_gpu(test, program, size)
            cases.case("%s beside %s, %d bytes" % (test, program, size),
                       [] if reason else compare(test, program, size), reason)
    cases.end()


if __name__ == "__main__":
    main()

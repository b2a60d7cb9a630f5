#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp and pier perf between this host and another one, on which `run --listen` runs.

PIER is the program; PIER_GPU_BACKEND cuda, hip or host; PIER_GPU_MEMORY and
PIER_GPU_PEER_MEMORY the memory here and there, PIER_GPU_NIC and PIER_GPU_PEER_NIC the NICs,
and PIER_CARRY_PEER the other host (tests/carry/hosts.py). PIER_CARRY_NO_COPY is why that
host cannot take files, if so.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "lib"))
from cases import Cases  # noqa: E402

RSH = "'%s' -B '%s'" % (sys.executable, TESTS / "carry/hosts.py")
HOST = os.environ["PIER_CARRY_PEER"].rsplit(":", 2)[0]
NIC, PEER_NIC = os.environ["PIER_GPU_NIC"], os.environ["PIER_GPU_PEER_NIC"]
MEMORY, PEER_MEMORY = os.environ["PIER_GPU_MEMORY"], os.environ["PIER_GPU_PEER_MEMORY"]
NICS = ["--device", NIC, "--remote-device", PEER_NIC]
SECONDS = 120
SIZES = [0, 5000001]
# Software is slow, and its figures are of no interest.
AMOUNT = ["-n", "100", "-s", "8,64K"] if NIC == "soft0" else ["-n", "5000", "-s", "8,4K,1M"]


def pier(*words):
    """The problems, after printing what it says."""
    try:
        done = subprocess.run([os.environ["PIER"], *map(str, words)], universal_newlines=True,
                              timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return ["it did not end within %d s" % SECONDS]
    print("\n".join("# " + line for line in done.stdout.splitlines()))
    return ["exit status %d" % done.returncode] if done.returncode else []


def copy(folder, size, nics):
    """There and back: the other host keeps the file under a name of its own."""
    source, target = pathlib.Path(folder, "source"), pathlib.Path(folder, "target")
    source.write_bytes(os.urandom(size))
    common = ["cp", "--rsh", RSH, *nics]
    problems = pier(*common, "--src-mem", MEMORY, "--dst-mem", PEER_MEMORY, source,
                    HOST + ":copy") or \
        pier(*common, "--src-mem", PEER_MEMORY, "--dst-mem", MEMORY, HOST + ":copy", target)
    if not problems and target.read_bytes() != source.read_bytes():
        return ["other bytes than the file's"]
    return problems


def main():
    cases, no_copy = Cases(), os.environ.get("PIER_CARRY_NO_COPY")
    with tempfile.TemporaryDirectory(prefix="pier-hosts-") as folder:
        for size in SIZES:
            cases.case("%d bytes from %s to %s and back" % (size, MEMORY, PEER_MEMORY),
                       copy(folder, size, NICS), no_copy)
        if NIC != "soft0":
            cases.case("on the NICs that pier chooses", copy(folder, SIZES[-1], []), no_copy)
    for test in "write_bw", "read_bw", "send_bw", "write_lat":
        cases.case("%s from %s to %s" % (test, MEMORY, PEER_MEMORY), pier(
            "perf", "--rsh", RSH, *NICS, "--src-mem", MEMORY, "--dst-mem", PEER_MEMORY,
            *AMOUNT, test, HOST))
    cases.end()


main()

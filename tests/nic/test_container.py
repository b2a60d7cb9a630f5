#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A copy in a network namespace without the NIC's interfaces, as in a container: it works,
or it ends soon with a sentence on the addresses (GIDs) of the NIC, and does not hang.

PIER is the program, PIER_GPU_NIC the NIC. As root.
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from cases import Cases  # noqa: E402

NIC = os.environ.get("PIER_GPU_NIC", "soft0")
CLONE_NEWNET = 0x40000000  # unshare(2)
SECONDS = 120
ADDRESS = re.compile(r"\bGID|network namespace|network interface|netdev|no address")


def enter():
    """In the child, before exec(3)."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        os._exit(77)


def copy(folder, isolated):
    """Exit status, what it said, and whether the bytes have arrived."""
    source, target = pathlib.Path(folder, "source"), pathlib.Path(folder, "target")
    source.write_bytes(os.urandom(300007))
    done = subprocess.run(
        [os.environ["PIER"], "cp", "--device", NIC, "--remote-device", NIC, "--timeout", "30",
         str(source), str(target)], preexec_fn=enter if isolated else None,
        universal_newlines=True, timeout=SECONDS, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)
    same = target.exists() and target.read_bytes() == source.read_bytes()
    if target.exists():
        target.unlink()
    return done.returncode, done.stdout.strip(), same


def problems_outside(folder):
    status, said, same = copy(folder, False)
    print("# " + said)
    if status or not same:
        yield "exit status %d" % status


def problems_inside(folder):
    try:
        status, said, same = copy(folder, True)
    except subprocess.TimeoutExpired:
        yield "it did not end within %d s" % SECONDS
        return
    print("# exit status %d: %s" % (status, said))
    if status == 0 and not same:
        yield "other bytes than the file's"
    elif status not in (0, 3, 4):
        yield "exit status %d" % status
    elif status and not ADDRESS.search(said):
        yield "the sentence says nothing of addresses"


def main():
    cases = Cases()
    if os.geteuid():
        print("skip: network namespaces take root\n1..0 # skip network namespaces take root")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="pier-nic-") as folder:
        cases.case("a copy on %s" % NIC, problems_outside(folder))
        cases.case("a copy on %s in another network namespace" % NIC, problems_inside(folder))
    cases.end()


main()

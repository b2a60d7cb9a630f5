#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A copy outlasts 5 s without a link, as if the cable were pulled: `ip link set DEV down`.

PIER is the program, PIER_GPU_NIC the NIC, PIER_GPU_PEER_NIC the other one, if there are
two. The first one's interface is taken down: all other traffic on it stops, too. As root,
and never by default: tests/carry/run --pull.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from cases import Cases  # noqa: E402

NIC = os.environ.get("PIER_GPU_NIC", "soft0")
PEER_NIC = os.environ.get("PIER_GPU_PEER_NIC", NIC)
LENGTH, RATE = 24 << 20, "3M"  # 8 s of copying
PULLED = 5  # seconds without a link
SECONDS = 240


def interface():
    """Of the first port, or an empty string."""
    file = pathlib.Path("/sys/class/infiniband", NIC, "ports/1/gid_attrs/ndevs/0")
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def set_link(name, state):
    subprocess.run(["ip", "link", "set", name, state], check=True)


def pull(name, process):
    """While the copy runs. The link is up again in any case that lets this process act."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    time.sleep(2)
    if process.poll() is not None:
        return ["the copy ended before the cable was pulled"]
    set_link(name, "down")
    try:
        time.sleep(PULLED)
    finally:
        set_link(name, "up")
    return []


def problems(folder, name):
    source, target = pathlib.Path(folder, "source"), pathlib.Path(folder, "target")
    source.write_bytes(os.urandom(LENGTH))
    process = subprocess.Popen(
        [os.environ["PIER"], "cp", "--device", NIC, "--remote-device", PEER_NIC, "--bwlimit",
         RATE, "--timeout", "60", str(source), str(target)], universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        found = pull(name, process)
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return found + ["it did not end within %d s" % SECONDS]
    print("\n".join("# " + line for line in said.splitlines()))
    if process.returncode:
        found.append("exit status %d" % process.returncode)
    elif target.read_bytes() != source.read_bytes():
        found.append("other bytes than the file's")
    return found


def main():
    cases, name = Cases(), interface()
    reason = "%s has no network interface" % NIC if not name else \
        "taking an interface down takes root" if os.geteuid() else \
        "ip (iproute2) is not installed" if not shutil.which("ip") else None
    if reason:
        print("skip: %s\n1..0 # skip %s" % (reason, reason))
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="pier-nic-") as folder:
        cases.case("a copy from %s to %s while %s is down for %d s" % (
            NIC, PEER_NIC, name, PULLED), problems(folder, name))
    cases.end()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: BSD-3-Clause
"""Programs of PyPI, each in the version that a script names."""

import fcntl
import os
import subprocess
import sys
import venv


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr, **options)


def make_tools(folder, packages):
    """A virtual environment with these packages; a finished one is kept. Ends with status 69 without them."""
    stamp = folder / "tools.txt"
    with open(str(folder) + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == "\n".join(packages):
            return
        venv.create(folder, clear=True, with_pip=True)
        try:
            run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check",
                "--only-binary=:all:", "--timeout", "20", "--retries", "1", *packages)
        except subprocess.CalledProcessError:
            sys.exit(os.EX_UNAVAILABLE)
        stamp.write_text("\n".join(packages))

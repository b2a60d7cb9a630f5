# SPDX-License-Identifier: BSD-3-Clause
"""Unmodified wheels of NIXL from PyPI, unpacked into folders that are kept."""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

PACKAGE, MODULE = "nixl-cu12", "nixl_cu12"
NEWEST = "1.5.1"
# The last version with another ABI, which must be refused.
REFUSED = "0.10.1"
# The engine that needs no CUDA.
MOONCAKE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
# Large parts that no test uses.
UNUSED = ("nixl_ep", "nixl_cu12.scripts")
SECONDS = 150


class Unavailable(Exception):
    """The wheel cannot be had; the text is the reason."""


def pip(*arguments):
    # Debian's pip may not install into its own Python; --target and download do not.
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check",
               "--timeout", "20", "--retries", "1", *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable("%s: not within %d s" % (arguments[-1], SECONDS)) from None
    if done.returncode:
        last = done.stdout.strip().splitlines() or ["no output"]
        raise Unavailable("%s: %s" % (" ".join(command[2:4] + list(arguments)), last[-1]))


class Cache:
    """A folder with a folder for each wheel, one for numpy, and one for a stand-in of torch."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def keep(self, name, make):
        """The folder `name`, made by make(FOLDER) if it is not there; one process at a time."""
        kept = self.folder / ("%s-%s" % (name, sys.implementation.cache_tag))
        with open(str(kept) + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                part = pathlib.Path(str(kept) + ".part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                make(part)
                part.rename(kept)
        return kept

    def unpack(self, package, folder):
        pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder, package)
        wheel, = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist()
                                        if not name.startswith(UNUSED)])
        wheel.unlink()

    def wheel(self, version):
        return self.keep(version, lambda folder: self.unpack(
            "%s==%s" % (PACKAGE, version), folder))

    def mooncake(self):
        return self.keep(MOONCAKE, lambda folder: self.unpack(MOONCAKE, folder))

    def path(self, version):
        """PYTHONPATH for a version. Older ones import torch, and name one of its types."""
        numpy = self.keep("numpy", lambda folder: pip("install", "--only-binary=:all:",
                                                      "--target", folder, "numpy"))
        torch = self.keep("torch", lambda folder: (folder / "torch.py").write_text(
            "class Tensor:\n    pass\n\n\ndevice = dtype = None\n"))
        return os.pathsep.join(map(str, (self.wheel(version), numpy, torch)))


def environment(path, **more):
    """The environment of a process that imports NIXL from the path."""
    # NIXL's own messages about devices that are not there.
    return {**os.environ, "PYTHONPATH": path, "NIXL_LOG_LEVEL": "ERROR",
            "PYTHONDONTWRITEBYTECODE": "1", **more}

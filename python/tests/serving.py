# SPDX-License-Identifier: BSD-3-Clause
"""Servers of data sets in processes of their own, and a data set to serve, for tests of the loader."""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import datasets

SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)
# In seconds: a process or a wait that takes longer hangs.
PATIENCE = 60 * float(os.environ.get("PIER_TEST_SLOWNESS", "1"))
TOKEN = "token-of-the-tests"


class ServerProcess:
    """python -m pier.data serve, in a process that tests can stop and kill."""

    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-m", "pier.data", "serve", *map(str, arguments)], stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PIER_DATA_TOKEN": TOKEN, "PIER_DEVICE": "soft0", **environment})
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise AssertionError("the server ended with status %d" % self.process.wait(PATIENCE))

    @property
    def address(self):
        return self.url.rpartition("/")[2].rpartition("@")[2]

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def end(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()
        self.process.stdout.close()

    def descriptors(self):
        """What the server has open, and what it shares with other processes, as sorted texts.

        Without the staging memory of soft0, which the first connection over TCP makes for all later ones.
        """
        with open("/proc/%d/maps" % self.process.pid) as maps:
            found = ["map " + line.split(maxsplit=5)[5] for line in maps if "/memfd:" in line or "/dev/shm/" in line]
        found += (link.partition("[")[0] for link in self._links())
        return sorted(text for text in found if "pier-soft-staging" not in text)

    def is_connected(self):
        """Whether a TCP connection of the server is open at its end."""
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in table][1:]
        # State 0A is TCP_LISTEN, and column 9 the inode: proc(5).
        connections = {"socket:[%s]" % row[9] for row in rows if row[3] != "0A"}
        return not connections.isdisjoint(self._links())

    def _links(self):
        folder = "/proc/%d/fd/" % self.process.pid
        links = []
        for descriptor in os.listdir(folder):
            # A descriptor can be closed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(folder + descriptor))
        return links


def count_descriptors():
    return len(os.listdir("/proc/self/fd"))


class Case(unittest.TestCase):
    """Each case has a data set of two archives: self.contents is a list of (key, bytes, label) in its order."""

    COUNT = 101
    SIZE = 3000

    def setUp(self):
        self.random = random.Random(SEED)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pier-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        os.environ["PIER_DATA_TOKEN"] = TOKEN
        self.contents = self.write_dataset(self.folder / "data", self.COUNT)

    def write_dataset(self, folder, count):
        folder.mkdir()
        contents = []
        for number, part in enumerate((count // 3, count - count // 3)):
            files = datasets.samples(self.random, part, self.SIZE)
            (folder / ("%d.tar" % number)).write_bytes(datasets.tar_bytes(files))
            contents += [(name.removesuffix(".bin"), body, int(label))
                         for (name, body), (_, label) in zip(files[::2], files[1::2])]
        return contents

    def serve(self, *arguments, **environment):
        server = ServerProcess(*(arguments or [self.folder / "data"]), **environment)
        self.addCleanup(server.end)
        return server

    def wait_for(self, condition, complaint):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, complaint() if callable(complaint) else complaint)
            time.sleep(0.01)

    def check_batch(self, batch):
        """Each sample must have its bytes, at its place."""
        for i, sample in enumerate(batch.samples):
            _, body, _ = self.contents[sample]
            field = batch.fields(i)["bin"]
            self.assertEqual(bytes(field), body, "sample %d of %s" % (sample, batch.server))
            self.assertEqual(batch.offsets[i] % 256, 0)

    def read(self, loader):
        """The samples of the rest of the epoch, in order and checked."""
        samples = []
        for batch in loader:
            self.check_batch(batch)
            samples += batch.samples
            batch.release()
        return samples


def main():
    print("# PIER_SEED=%d" % SEED)
    unittest.main()

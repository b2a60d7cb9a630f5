# SPDX-License-Identifier: BSD-3-Clause
"""The examples of README and of docs/python.md, as they stand there."""

import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

from support import PATIENCE

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = 10


def programs(document, heading):
    """The fenced blocks of Python below a heading."""
    text = (ROOT / document).read_text().split(heading, 1)[1]
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def write_shard(path):
    """WebDataset samples: an image of 100 equal bytes, and its class."""
    with tarfile.open(path, "w") as archive:
        for i in range(SAMPLES):
            for name, data in (("bin", bytes([i]) * 100), ("cls", str(i).encode())):
                member = tarfile.TarInfo("%03d.%s" % (i, name))
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def run(program, **env):
    done = subprocess.run([sys.executable, "-B", "-c", program], check=False, text=True,
                          env={**os.environ, **env}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=PATIENCE)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


class Documents(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="pier-documents-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def serve(self, shards):
        """The URL of the server that README starts."""
        server = subprocess.Popen([sys.executable, "-B", "-m", "pier.data", "serve", shards],
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.terminate)
        return server.stdout.readline().strip()

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_ten_lines_of_readme(self):
        program, = programs("README.md", "## Python\n")
        self.assertLessEqual(len([line for line in program.splitlines() if line]), 10)
        write_shard(self.folder / "shard.tar")
        lines = run(program, SHARDS=self.serve(self.folder)).splitlines()
        self.assertEqual(sorted(lines), ["%03d %d torch.Size([100]) cpu" % (i, i)
                                         for i in range(SAMPLES)])
        self.assertNotEqual(lines, sorted(lines), "they are not shuffled")

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")
    def test_examples_of_the_package(self):
        output = run("\n".join(programs("docs/python.md", "# The Python package\n"))).splitlines()
        self.assertEqual(output[0], "straight into place")
        self.assertRegex(output[1], "no RDMA device \"mlx5_77\"")
        self.assertEqual(output[2], "into placestraight ")


if __name__ == "__main__":
    unittest.main()

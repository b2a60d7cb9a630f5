# SPDX-License-Identifier: BSD-3-Clause
"""The examples of README, python/README.md, docs/python.md, docs/data.md and docs/loader.md, as they stand there."""

import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import unittest

from support import PATIENCE

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = 10


def programs(document, heading):
    """The fenced blocks of Python below a heading."""
    text = (ROOT / document).read_text().split(heading, 1)[1]
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def example(document, word):
    """The indented block that has this word."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", (ROOT / document).read_text(), re.MULTILINE)
    block, = (block for block in blocks if word in block)
    return textwrap.dedent(block)


def write_shard(path, suffix="bin"):
    """WebDataset samples: an image of 100 equal bytes, and its class."""
    with tarfile.open(path, "w") as archive:
        for i in range(SAMPLES):
            for name, data in ((suffix, bytes([i]) * 100), ("cls", str(i).encode())):
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

    def test_example_of_the_description_on_pypi(self):
        program, = programs("python/README.md", "## First bytes\n")
        self.assertEqual(run(program), "straight into place\n")

    def run_data_example(self, word, before, after, suffix="jpg", document="docs/data.md"):
        """Run a block on memory of the host and a folder of one shard, without Pillow."""
        write_shard(self.folder / "shard.tar", suffix)
        block = example(document, word)
        for old, new in (("cuda:0", "memfd"), ("10.0.0.7:7700", "127.0.0.1:0"),
                         ("/data/imagenet", str(self.folder)), ('"rgb"', "")):
            block = block.replace(old, new)
        return run("import os, pier\n" + before + block + after,
                   SHARDS=self.serve(self.folder)).split()

    def test_server_of_data_sets(self):
        before = "start_training = lambda url: print(len(pier.data.connect(url, 'soft0').index))\n"
        self.assertEqual(self.run_data_example("Server(", before, ""), ["10"])

    def test_reading_with_a_connection(self):
        before = ("url, pd = os.environ['SHARDS'], pier.ProtectionDomain()\n"
                  "memory = bytearray(1 << 20)\nregion = pd.register(memory)\n")
        # The header of the second file lies between the two.
        after = "print(memory.find(b'000.cls'))"
        self.assertEqual(self.run_data_example("connect(url, pd)", before, after), ["512"])

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_torch_adapter(self):
        before = ("import torch.utils.data\n"
                  "url, rank, world, epochs, decode = os.environ['SHARDS'], 0, 1, 1, len\n"
                  "train = lambda images: print(*images)\n")
        self.assertEqual(self.run_data_example("BatchDataset", before, ""), ["100"] * SAMPLES)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_loader(self):
        # An event that has fired, as on a machine without a GPU there is none.
        before = ("import torch, types\n"
                  "torch.cuda.Event = lambda: types.SimpleNamespace(record=lambda: None, query=lambda: True)\n"
                  "urls, train = os.environ['SHARDS'], lambda images, labels: print(len(images), *sorted(labels))\n")
        epoch = [str(SAMPLES), *map(str, range(SAMPLES))]
        self.assertEqual(self.run_data_example("Loader(urls", before, "", "bin", "docs/loader.md"), epoch * 2)

    @unittest.skipUnless(importlib.util.find_spec("spdl"), "SPDL is not installed")
    def test_spdl_adapter(self):
        before = ("import spdl.pipeline\nurl = os.environ['SHARDS']\n"
                  "decode = lambda fields: bytes(fields[1])\n")
        after = "with pipeline.auto_stop():\n    print(len(next(iter(pipeline))))"
        # All of an epoch: it has fewer than 64.
        self.assertEqual(self.run_data_example("spdl.Source", before, after), [str(SAMPLES)])

    @unittest.skipUnless(importlib.util.find_spec("webdataset"), "webdataset is not installed")
    def test_webdataset_adapter(self):
        before = "import webdataset\nurl = os.environ['SHARDS']\n"
        after = "print(*sorted(sample['cls'] for sample in dataset))"
        self.assertEqual(self.run_data_example("webdataset.shards", before, after, "bin"),
                         [str(i) for i in range(SAMPLES)])


if __name__ == "__main__":
    unittest.main()

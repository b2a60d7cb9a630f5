#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp through GPU memory, with the fake drivers of tests/fakes.

FAKE_DRIVERS is the folder of these drivers.
"""

import os
import signal

from harness import Case, MIB, json, main

SPECS = "cuda:0", "cuda:1", "cuda:0:vmm", "cuda:0:vmm:2M", "cuda:0:host", "hip:0", "hip:1"


class GpuMemory(Case):
    def environment(self, **more):
        return super().environment(LD_LIBRARY_PATH=os.environ["FAKE_DRIVERS"], **more)

    def copied(self, source_memory, target_memory, size, *options, env=None):
        """Copy and compare a file; returns the report."""
        source = self.file("source", size)
        target = self.folder / "target"
        result = self.run_pier("cp", "--json", "--src-mem", source_memory, "--dst-mem",
                               target_memory, *options, source, target, env=env)
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.check_same(source, target)
        facts = json.loads(result.stdout)
        self.assertTrue(facts["verified"])
        return facts

    def test_cuda_to_hip_uses_dma_bufs(self):
        facts = self.copied("cuda:0", "hip:0", 5 * MIB + 3, "--direct")
        for side, memory in ("source", "cuda:0"), ("destination", "hip:0"):
            self.assertEqual((facts[side]["memory"], facts[side]["path"]), (memory, "dma-buf"))

    def test_every_gpu_memory_is_source_and_destination(self):
        for spec in SPECS:
            for memories in (spec, "memfd"), ("host", spec):
                with self.subTest(memories):
                    self.copied(*memories, MIB + 17, "--chunk", "64K")

    def test_sizes_are_copied(self):
        for size in 0, 1, 4097, 70001:
            with self.subTest(size):
                self.copied("hip:0", "cuda:0", size)

    def test_memory_that_cannot_be_exported_uses_a_bounce_buffer(self):
        """The report names the bounce path, and --direct refuses it."""
        env = {"FAKE_CUDA_DMABUF": "0"}
        facts = self.copied("cuda:0", "cuda:1", 3 * MIB + 5, "--chunk", "256K", env=env)
        self.assertEqual(facts["source"]["path"], "bounce")
        self.assertEqual(facts["destination"]["path"], "bounce")
        source = self.file("source", 100)
        self.refused(3, "cuda.*DMA_BUF|DMA_BUF.*cuda|dma-buf", "cp", "--direct", "--src-mem",
                     "cuda:0", source, "target", env=env)

    def test_peer_memory_is_direct(self):
        """With NVIDIA's proprietary modules: no dma-bufs, but nvidia-peermem."""
        env = {"FAKE_CUDA_DMABUF": "0", "FAKE_CUDA_PEER_MEMORY": "1"}
        facts = self.copied("cuda:0", "cuda:1", 3 * MIB + 5, "--direct", env=env)
        for side in "source", "destination":
            self.assertEqual(facts[side]["path"], "peermem")
            self.assertIn("nvidia-peermem", facts[side]["why"])

    def test_memory_with_several_segments_uses_a_bounce_buffer(self):
        """The slots need one key, so memory with several segments needs a bounce buffer."""
        facts = self.copied("cuda:0:vmm:2M", "cuda:1:vmm:2M", 9 * MIB, env={
            "FAKE_CUDA_SEAMS": "refused"})
        self.assertEqual(facts["source"]["path"], "bounce")
        self.assertIn("segments", facts["source"]["why"])

    def test_wrong_specs_are_refused(self):
        source = self.file("source", 100)
        for spec, pattern in (("cuda:9", "9"), ("cuda:x", "x"), ("cuda:0:nothing", "nothing"),
                              ("hip:9", "9"), ("hip:", "unit")):
            with self.subTest(spec):
                self.refused(3, pattern, "cp", "--src-mem", spec, source, "target")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["source"])

    def test_an_interrupted_copy_leaves_no_file(self):
        """Ctrl-C during the transfer leaves no partial file."""
        process = self.start("cp", "--bwlimit", "1M", "--chunk", "64K", "--src-mem", "cuda:0",
                             "--dst-mem", "hip:0", self.file("source", 20 * MIB), "target")
        self.wait_for(lambda: len(self.processes()) > 1, "the receiver does not start")
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(self.finish(process).status, 0)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["source"])

    def test_info_lists_gpu_memory_as_available(self):
        facts = json.loads(self.run_pier("info", "--json").stdout)
        available = {m["name"]: m["available"] for m in facts["memory"]}
        self.assertTrue(available["cuda"] and available["hip"] and available["level_zero"])


main()

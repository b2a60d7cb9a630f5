#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp through GPU memory, with the fake drivers of tests/fakes.

FAKE_DRIVERS is the folder of these drivers.
"""

import os
import re
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

    # The harness names soft0 in PIER_DEVICE. Without a named NIC there is ipc.
    NO_NIC = {"PIER_DEVICE": ""}
    CUDA = "--src-mem", "cuda:0", "--dst-mem", "cuda:1"

    def test_cuda_to_cuda_uses_ipc(self):
        """Neither side reports a NIC, and the path is direct."""
        for memories in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0"), ("cuda:1", "cuda:1")):
            with self.subTest(memories):
                facts = self.copied(*memories, 5 * MIB + 3, "--direct", env=self.NO_NIC)
                for side, memory in zip(("source", "destination"), memories):
                    self.assertEqual([facts[side][name] for name in
                                      ("memory", "path", "device", "why")],
                                     [memory, "ipc", None, None])
        source = self.file("source", 100)
        self.assertIn(": cuda:0 memory (ipc) -> cuda:1 memory (ipc)\n",
                      self.copy(*self.CUDA, source, "target", env=self.NO_NIC).stdout)

    def test_ipc_copies_every_size(self):
        for size in 0, 1, 4097, 30 * 4096 + 17:
            with self.subTest(size):
                facts = self.copied("cuda:0", "cuda:1", size, "--chunk", "4K", "--depth", "3",
                                    "--bwlimit", "100M", env=self.NO_NIC)
                self.assertEqual(facts["source"]["path"], "ipc")
        source = self.folder / "sparse"
        with open(source, "wb") as file:
            file.seek(MIB)
            file.write(self.bytes(70000))
            file.truncate(3 * MIB)
        self.copy(*self.CUDA, "--chunk", "16K", source, "sparse2", env=self.NO_NIC)
        self.check_same(source, self.folder / "sparse2")

    def test_a_named_nic_is_used(self):
        for options, env in ((("--device", "soft0"), self.NO_NIC),
                             (("--remote-device", "soft0"), self.NO_NIC),
                             ((), {"PIER_DEVICE": "soft0"})):
            with self.subTest((options, env)):
                result = self.run_pier("cp", "--json", *self.CUDA, *options,
                                       self.file("source", MIB), "target", env=env)
                facts = json.loads(result.stdout)
                self.assertTrue(facts["ok"], result)
                for side in "source", "destination":
                    self.assertNotEqual(facts[side]["path"], "ipc")
                    self.assertIsNotNone(facts[side]["device"])
                    self.assertNotIn("ipc", facts[side]["why"] or "")

    def test_refused_ipc_uses_a_nic_and_gives_the_reason(self):
        for memories, env, reason in (
                (("cuda:0", "cuda:1"), {"FAKE_CUDA_CONTAINED": "1"}, "--pid=host --ipc=host"),
                (("cuda:0", "cuda:1"), {"FAKE_CUDA_NO_PEERS": "1"}, "each other's memory"),
                (("cuda:0", "cuda:1"), {"FAKE_CUDA_NO_IPC": "1"}, "CUDA_ERROR_NOT_SUPPORTED"),
                (("cuda:0", "cuda:1"), {"FAKE_CUDA_VERSION": "10020"}, "cuIpcOpenMemHandle"),
                (("cuda:0", "cuda:1:vmm"), {}, "this is VMM"),
                (("hip:0", "cuda:1"), {}, "a buffer of hip"),
                (("cuda:0", "hip:1"), {}, "the backend hip")):
            with self.subTest((memories, env)):
                source = self.file("source", 2 * MIB + 5)
                result = self.run_pier("cp", "--json", "--src-mem", memories[0], "--dst-mem",
                                       memories[1], source, "target", env={**self.NO_NIC, **env})
                facts = json.loads(result.stdout)
                self.assertTrue(facts["ok"], result)
                self.check_same(source, self.folder / "target")
                for side in "source", "destination":
                    self.assertNotEqual(facts[side]["path"], "ipc")
                    self.assertIn("not by ipc: ", facts[side]["why"])
                    self.assertIn(reason, facts[side]["why"])

    def test_failure_after_refused_ipc_names_both_causes(self):
        """The remedy is in the first one, where no NIC reaches the memory."""
        self.refused(3, "not by ipc: .*--pid=host", "cp", "--direct", *self.CUDA,
                     self.file("source", 100), "target",
                     env={**self.NO_NIC, "FAKE_CUDA_CONTAINED": "1", "FAKE_CUDA_DMABUF": "0"})

    def test_host_memory_needs_no_ipc(self):
        for memories in ("memfd", "memfd"), ("cuda:0:host", "cuda:0"), ("cuda:0", "host"):
            with self.subTest(memories):
                result = self.run_pier("cp", "--json", "--src-mem", memories[0], "--dst-mem",
                                       memories[1], self.file("source", MIB), "target",
                                       env=self.NO_NIC)
                facts = json.loads(result.stdout)
                self.assertTrue(facts["ok"], result)
                for side in "source", "destination":
                    self.assertNotEqual(facts[side]["path"], "ipc")
                    self.assertNotIn("ipc", facts[side]["why"] or "")

    def test_failures_under_ipc_leave_no_file(self):
        """Also in that order: the fake aborts if memory is freed that the sender has open."""
        source = self.file("source", 20 * MIB)
        for call in "cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync":
            with self.subTest(call):
                self.refused(3, "CUDA_ERROR_INVALID_VALUE", "cp", *self.CUDA, source, "target",
                             env={**self.NO_NIC, "FAKE_CUDA_FAIL": call + ":5:1"})
                self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["source"])

    def test_killed_processes_under_ipc(self):
        process = self.start_slowly(*self.CUDA, env=self.NO_NIC)
        os.kill(self.server_of(process), signal.SIGKILL)
        self.failure_of(process, 4, "killed by signal 9")
        process = self.start_slowly(*self.CUDA, env=self.NO_NIC)
        server = self.server_of(process)
        process.kill()
        self.wait_for(lambda: server not in self.processes(), "the receiver stays")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["slow"])

    def test_a_stopped_sender_keeps_the_memory_under_ipc(self):
        """The receiver ends, but does not free what the sender has open."""
        process = self.start_slowly(*self.CUDA, env=self.NO_NIC)
        server = self.server_of(process)
        process.send_signal(signal.SIGSTOP)
        self.wait_for(lambda: server not in self.processes(), "the receiver does not time out")
        process.send_signal(signal.SIGCONT)
        self.failure_of(process, 4, "no progress|did not respond|exited with status 4")

    def test_ctrl_c_under_ipc(self):
        process = self.start_slowly(*self.CUDA, env=self.NO_NIC)
        for pid in process.pid, self.server_of(process):
            os.kill(pid, signal.SIGINT)
        self.failure_of(process, 130, "interrupted")

    def perf(self, *arguments, env=None):
        """A short measurement: the record of this side, of the other one, and the message."""
        result = self.run_pier("perf", "--json", "-n", "40", "--warm-up", "0", *arguments, env=env)
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        facts = json.loads(result.stdout)
        self.assertEqual([row["messages"] for row in facts["results"]], [40])
        return facts["here"], facts["there"]

    def test_perf_measures_gpu_memory_directly(self):
        for test in "write_bw", "read_bw", "send_bw", "atomic_bw", "write_lat", "send_lat":
            for memories in ("cuda:0", "cuda:1"), ("hip:0", "memfd"), ("host", "cuda:0:vmm"):
                with self.subTest((test, memories)):
                    sides = self.perf("--src-mem", memories[0], "--dst-mem", memories[1], test)
                    if test == "read_bw":
                        sides = sides[::-1]
                    self.assertEqual(tuple(side["memory"] for side in sides), memories)
                    self.assertEqual([side["path"] for side in sides],
                                     ["host" if m == "host" else "dma-buf" for m in memories])

    def test_perf_stages_gpu_memory_that_has_no_direct_path(self):
        env = {"FAKE_CUDA_DMABUF": "0"}
        memories = "--src-mem", "cuda:0", "--dst-mem", "cuda:1"
        self.refused(3, "CUDA.*--path staged", "perf", *memories, "write_bw", env=env)
        for test in "write_bw", "send_bw", "write_lat":
            for side in self.perf(*memories, "--path", "staged", "-s", "100K", test, env=env):
                self.assertEqual(side["path"], "staged, host")

    def test_info_lists_gpu_memory_as_available(self):
        facts = json.loads(self.run_pier("info", "--json").stdout)
        available = {m["name"]: m["available"] for m in facts["memory"]}
        self.assertTrue(available["cuda"] and available["hip"] and available["level_zero"])

    def reach(self, device, spec, **env):
        """What `pier info --mem` prints, as text and as JSON."""
        command = "info", "--device", device, "--mem", spec
        result = self.run_pier(*command, env=env)
        self.assertEqual((result.status, result.stderr), (0, ""))
        line, = re.findall(r"(?m)^  memory        (.*)$", self.unfold(result.stdout))
        facts, = json.loads(self.run_pier(*command, "--json", env=env).stdout)["devices"]
        return line, facts["reach"]

    def test_doctor_judges_gpus(self):
        """Exports and transfers of each GPU; without dma-bufs they are warnings."""
        for env, verdict, status in ({}, "ok", None), ({"FAKE_CUDA_DMABUF": "0"}, "warning", 6):
            with self.subTest(env):
                result = self.run_pier("doctor", "--json", "--device", "soft0", env=env)
                self.assertEqual(result.stderr, "")
                if status:
                    self.assertEqual(result.status, status)
                found = {(f["check"], f["subject"]): f["verdict"]
                         for f in json.loads(result.stdout)["checks"]}
                for gpu in "cuda:0", "cuda:1":
                    self.assertEqual(found["dma-buf export", gpu], verdict)
                self.assertEqual(found["write and read", "hip:0 - soft0"], "ok")
                self.assertEqual(found["BAR", "cuda:1"], "not applicable")
                self.assertIn(("other kinds", "cuda:0:vmm"), found)

    def test_doctor_asks_nvidias_management_library(self):
        unit = next(u for u in json.loads(self.run_pier("info", "--json").stdout)["units"]
                    if u["spec"] == "cuda:0")
        result = self.run_pier("doctor", "--json", "--device", "soft0", "--mem", "host",
                               env={"FAKE_NVML_PCI": unit["pci"]})
        found = {(f["check"], f["subject"]): f for f in json.loads(result.stdout)["checks"]}
        self.assertEqual(found["BAR", "cuda:0"]["verdict"], "ok")
        self.assertRegex(found["BAR", "cuda:0"]["evidence"],
                         "128.00 GiB .* of which 3.00 MiB are in use")
        self.assertEqual(found["partition", "cuda:0"]["verdict"], "warning")
        self.assertEqual(found["partition", "cuda:1"]["verdict"], "ok")

    def test_info_prints_the_canary_of_a_pair(self):
        line, facts = self.reach("soft0", "cuda:0")
        self.assertEqual(line, "cuda:0: dma-buf, mapping default; canary: passed")
        self.assertEqual((facts["path"], facts["mapping"], facts["canary"], facts["error"]),
                         ("dma-buf", "default", "passed", None))
        line, facts = self.reach("soft0", "hip:1", FAKE_HIP_GTT="1")
        self.assertIn("hip:1: not registered: ", line)
        self.assertIn("soft0 and the device do not share the memory of hip:1", line)
        self.assertIn("do not share", facts["error"])
        self.assertEqual((facts["path"], facts["canary"]), (None, None))
        line, facts = self.reach("fault:create_qp@1=EOPNOTSUPP:soft0", "cuda:0")
        self.assertIn("canary: not run: create a queue pair", line)
        self.assertRegex(facts["canary"], "^not run: ")
        line, facts = self.reach("soft0", "cuda:0", PIER_CANARY="off")
        self.assertEqual(facts["canary"], "off: PIER_CANARY")


main()

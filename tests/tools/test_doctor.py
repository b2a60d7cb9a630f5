#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier doctor. With PIER_WRITE_EXPECTED, the outputs for the machines are written."""

import errno
import os
import pathlib
import re

from harness import Case, json, main

DATA = pathlib.Path(__file__).resolve().parent.parent / "data/doctor"
MACHINES = {"dgx-h100": 0, "mi300x": 6, "azure-nd-h100-v5": 6, "nothing": 6}
WRITE = os.environ.get("PIER_WRITE_EXPECTED")

NIC = "/sys/class/infiniband/mlx5_0"
PORT = NIC + "/ports/1"
PCI = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
SWITCH = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0"
GPU = SWITCH + "/0000:17:02.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0"

# Changes of the facts of a DGX H100, and a finding that each must lead to. None removes a
# line; with a name that ends in *, all lines that begin with the rest of it.
CHANGES = (
    ({"/proc/sys/kernel/osrelease": "= unknown"}, ("version", "", "warning")),
    ({"/proc/sys/kernel/osrelease": "= 5.11.22", "pier/nic/*": None}, ("version", "", "warning")),
    # Distributions bring dma-bufs to older kernels.
    ({"/proc/sys/kernel/osrelease": "= 4.18.0-553.el8_10.x86_64"}, ("version", "", "ok")),
    ({"pier/page_size": None}, ("page size", "", "not applicable")),
    ({"/dev/infiniband/": None}, ("uverbs", "", "error")),
    ({"pier/access/dev/infiniband/uverbs1": "! Permission denied"}, ("uverbs", "", "error")),
    ({"pier/config/CONFIG_DMABUF_MOVE_NOTIFY": "= n", "/sys/module/amdgpu/": "= version"},
     ("DMABUF_MOVE_NOTIFY", "", "warning")),
    ({"pier/config*": None}, ("DMABUF_MOVE_NOTIFY", "", "not applicable")),
    ({"pier/config/CONFIG_PCI_P2PDMA": "= n", "/sys/module/amdgpu/": "= version"},
     ("PCI_P2PDMA", "", "warning")),
    ({"pier/config*": None}, ("PCI_P2PDMA", "", "not applicable")),
    ({"pier/config/CONFIG_PCI_P2PDMA": "= n"}, ("PCI_P2PDMA", "", "not applicable")),
    ({"pier/config/CONFIG_PCI_P2PDMA": None}, ("PCI_P2PDMA", "", "not applicable")),
    ({"/proc/self/uid_map": "= 0 1000 1"}, ("namespaces", "", "ok")),
    ({"/proc/self/uid_map": "= 0 1000 1", "pier/limit/memlock": "= 8388608"},
     ("namespaces", "", "warning")),
    ({"/sys/module/ib_core/parameters/netns_mode": "= N"}, ("namespaces", "", "ok")),
    ({"/sys/module/ib_core/parameters/netns_mode": "= N", "/.dockerenv": "= "},
     ("namespaces", "", "ok")),
    ({"/sys/module/ib_core/parameters/netns_mode": "= N", "/.dockerenv": "= ", "pier/nic/*": None},
     ("namespaces", "", "warning")),
    ({"pier/access/dev/udmabuf": "= yes"}, ("udmabuf", "", "ok")),
    ({"pier/access/dev/udmabuf": "! Permission denied"}, ("udmabuf", "", "not applicable")),
    ({"/dev/dma_heap/": "= system", "pier/access/dev/dma_heap/system": "= yes"},
     ("dma-heap", "", "ok")),
    ({"/dev/dma_heap/": "= system", "pier/access/dev/dma_heap/system": "! Permission denied"},
     ("dma-heap", "", "not applicable")),
    ({"pier/nic/mlx5_0*": None}, ("found", "mlx5_0", "error")),
    # The counters after the transfers are read all the same.
    ({"pier/nic/mlx5_0": None}, ("found", "mlx5_0", "error")),
    ({"pier/nic/mlx5_0": "! Function not implemented"}, ("found", "mlx5_0", "error")),
    ({"pier/nic/*": None}, ("RC", "", "not applicable")),
    ({"pier/nic/mlx5_0/channels": "! EFA has no RC"}, ("RC", "mlx5_0", "warning")),
    ({"pier/nic/mlx5_0/ports/1/channel": "! Resource temporarily unavailable"},
     ("RC", "mlx5_0", "not applicable")),
    ({"pier/nic/mlx5_0/dmabuf": "= no"}, ("dma-buf method", "mlx5_0", "warning")),
    ({"pier/nic/*": None}, ("dma-buf method", "", "not applicable")),
    ({"pier/nic/mlx5_0/firmware": "= ", NIC + "/fw_ver": None},
     ("firmware", "mlx5_0", "not applicable")),
    ({PCI + "/current_link_width": "= 8"}, ("slot", "mlx5_0", "warning")),
    ({PCI + "/current_link_speed": "= 16.0 GT/s PCIe", PCI + "/max_link_speed": "= 16.0 GT/s PCIe"},
     ("slot", "mlx5_0", "warning")),
    # A slot that is slower than the NIC, but not than its port.
    ({PCI + "/current_link_speed": "= 16.0 GT/s PCIe", PORT + "/rate": "= 200 Gb/sec (4X HDR)",
      PCI.rpartition("/")[0] + "/max_link_speed": "= 16.0 GT/s PCIe"}, ("slot", "mlx5_0", "ok")),
    ({PCI + "/current_link_speed": "= Unknown"}, ("slot", "mlx5_0", "not applicable")),
    ({PCI + "/config": "= " + "00" * 64}, ("relaxed ordering", "mlx5_0", "not applicable")),
    ({PCI + "/physfn": "-> ../0000:18:00.1"}, ("relaxed ordering", "mlx5_0", "not applicable")),
    ({"pier/env/PIER_RELAXED_ORDERING": "= off"}, ("relaxed ordering", "mlx5_0", "warning")),
    ({PCI + "/vendor": "= 0x15b3", PCI + "/device": "= 0x2100"},
     ("Data Direct", "0000:18:00.0", "warning")),
    ({PCI + "/device": "= 0x2100", PCI + "/driver": "-> ../../bus/pci/drivers/mlx5_ib"},
     ("Data Direct", "0000:18:00.0", "ok")),
    ({PORT + "/state": "= 1: DOWN"}, ("port state", "mlx5_0/1", "warning")),
    ({PORT + "/state": "= 2: INIT"}, ("port state", "mlx5_0/1", "error")),
    ({PORT + "/state": "= 3: ARMED"}, ("port state", "mlx5_0/1", "error")),
    ({PORT + "/state": None}, ("port state", "mlx5_0/1", "not applicable")),
    ({"pier/nic/mlx5_0/ports/1/active_mtu": "= 2048"}, ("MTU", "mlx5_0/1", "warning")),
    ({"pier/nic/mlx5_0/ports/1/active_mtu": "= 512"}, ("MTU", "mlx5_0/1", "error")),
    ({"pier/nic/mlx5_0/ports/1/active_mtu": "= 0"}, ("MTU", "mlx5_0/1", "not applicable")),
    ({"pier/nic/mlx5_0/ports/1/gid": "! no address"}, ("GID", "mlx5_0/1", "error")),
    ({"pier/nic/mlx5_0/ports/1/gid": None}, ("GID", "mlx5_0/1", "not applicable")),
    ({"pier/nic/mlx5_0/ports/1/gid": None,
      "pier/nic/mlx5_0/ports/1/channel": "! Cannot allocate memory"}, ("GID", "mlx5_0/1", "error")),
    ({"pier/nic/mlx5_0/ports/1/link_layer": "= Ethernet",
      "pier/nic/mlx5_0/ports/1/gid": "= 1 (RoCE v2) ::ffff:169.254.1.2"},
     ("GID", "mlx5_0/1", "warning")),
    ({"pier/nic/mlx5_0/ports/1/link_layer": "= Ethernet",
      "pier/nic/mlx5_0/ports/1/gid": "= 0 (RoCE v1) ::ffff:10.0.0.1"},
     ("GID", "mlx5_0/1", "warning")),
    ({"pier/nic/mlx5_0/ports/1/link_layer": "= Ethernet",
      "pier/nic/mlx5_0/ports/1/gid": "= 1 (RoCE v2) fe80::1"}, ("GID", "mlx5_0/1", "warning")),
    ({"pier/nic/mlx5_0/ports/1/link_layer": "= Ethernet"},
     ("traffic class", "mlx5_0/1", "warning")),
    ({"pier/nic/mlx5_0/ports/1/link_layer": "= Ethernet",
      "pier/nic/mlx5_0/ports/1/traffic_class": "= 106"}, ("traffic class", "mlx5_0/1", "ok")),
    ({"pier/nic/mlx5_0/ports/1/after/out_of_sequence": "= 15"},
     ("error counters", "mlx5_0/1", "warning")),
    ({PORT + "/counters*": None, PORT + "/hw_counters*": None},
     ("error counters", "mlx5_0/1", "not applicable")),
    ({"pier/gpu*": None, "pier/backend/cuda": "! no CUDA driver"}, ("NVIDIA driver", "", "error")),
    ({"/proc/driver/nvidia/version": "= NVRM version: NVIDIA UNIX x86_64 Kernel Module  550"},
     ("NVIDIA driver", "", "ok")),
    ({"/proc/driver/nvidia/version": "= NVRM version: NVIDIA UNIX x86_64 Kernel Module  550",
      "/sys/module/nvidia_peermem/": None}, ("NVIDIA driver", "", "warning")),
    ({"/proc/driver/nvidia/version": None}, ("NVIDIA driver", "", "not applicable")),
    ({"/sys/module/amdgpu/": "= version"}, ("AMD driver", "", "warning")),
    ({"pier/env/PIER_PEERMEM": "= off"}, ("peer memory", "", "warning")),
    ({"/sys/module/nvidia_peermem/": None}, ("peer memory", "", "not applicable")),
    ({"pier/export/cuda:0": "! not supported"}, ("dma-buf export", "cuda:0", "not applicable")),
    ({"pier/export/cuda:0": "! not supported", "/sys/module/nvidia_peermem/": None},
     ("dma-buf export", "cuda:0", "warning")),
    ({"pier/export*": None}, ("dma-buf export", "cuda:0", "not applicable")),
    ({GPU + "/resource": "= 0x00000000e0000000 0x00000000efffffff 0x000000000014220c"},
     ("BAR", "cuda:0", "warning")),
    # The region of its virtual functions, the eighth, is not its own.
    ({GPU + "/resource": "= 0x00000000e0000000 0x00000000efffffff 0x000000000014220c" +
      "\\x0a0x0 0x0 0x0" * 6 + "\\x0a0x2000000000 0x3fffffffff 0x14220c"},
     ("BAR", "cuda:0", "warning")),
    ({"pier/gpu/cuda:0/bar1_total": "= 137438953472",
      "pier/gpu/cuda:0/bar1_used": "= 137000000000"}, ("BAR", "cuda:0", "warning")),
    ({"pier/gpu/cuda:0/bar1_total": "= 137438953472", "pier/gpu/cuda:0/bar1_used": "= 1048576"},
     ("BAR", "cuda:0", "ok")),
    ({"pier/gpu/cuda:0/mig": "= enabled"}, ("partition", "cuda:0", "warning")),
    ({GPU + "/resource": None}, ("BAR", "cuda:0", "not applicable")),
    ({"pier/gpu/cuda:0": "= NVIDIA H100 80GB HBM3 MIG 1g.10gb"},
     ("partition", "cuda:0", "warning")),
    ({"pier/distance/cuda:0/mlx5_0": "= host bridge"}, ("distance", "cuda:0", "warning")),
    ({"pier/distance/cuda:0/mlx5_0": "= unknown", "pier/distance/cuda:0/mlx5_6": "= unknown"},
     ("distance", "cuda:0", "warning")),
    ({"pier/distance*": None}, ("distance", "cuda:0", "not applicable")),
    ({PCI + "/numa_node": "= -1"}, ("NUMA", "mlx5_0", "warning")),
    ({NIC + "/device": None}, ("NUMA", "mlx5_0", "not applicable")),
    ({SWITCH + "/0000:17:02.0/config": "= " + "00" * 64},
     ("ACS", "cuda:0 - mlx5_0", "not applicable")),
    ({PCI + "/iommu_group/type": "= DMA"}, ("IOMMU", "mlx5_0", "warning")),
    ({PCI + "/iommu_group/type": None}, ("IOMMU", "mlx5_0", "ok")),
    ({PCI + "/iommu_group/type": "! Permission denied"}, ("IOMMU", "mlx5_0", "not applicable")),
    ({NIC + "/device": None}, ("IOMMU", "mlx5_0", "not applicable")),
    ({"pier/reach/cuda:0/mlx5_0": "! no path"}, ("registration", "cuda:0 - mlx5_0", "warning")),
    ({"pier/reach*": None}, ("registration", "", "not applicable")),
    ({"pier/reach/cuda:0/mlx5_0/reason": "= dma-buf: EOPNOTSUPP"},
     ("registration", "cuda:0 - mlx5_0", "warning")),
    ({"pier/reach/cuda:0/mlx5_0": "= peermem",
      "pier/reach/cuda:0/mlx5_0/reason": "= dma-buf: EOPNOTSUPP"},
     ("registration", "cuda:0 - mlx5_0", "ok")),
    ({"pier/reach/cuda:0/mlx5_0/canary": "= off: PIER_CANARY"},
     ("canary", "cuda:0 - mlx5_0", "warning")),
    ({"pier/reach/cuda:0/mlx5_0/canary": "= not run: no active port"},
     ("canary", "cuda:0 - mlx5_0", "not applicable")),
    ({"pier/reach/cuda:0/mlx5_0/canary": "= the bytes did not arrive"},
     ("canary", "cuda:0 - mlx5_0", "error")),
    ({"pier/limit/nofile": "= 64"}, ("open files", "", "warning")),
    ({"pier/limit/nofile": "= unlimited"}, ("open files", "", "ok")),
    ({"pier/limit/memlock": "= 8388608", "pier/cap_ipc_lock": "= 1"}, ("locked memory", "", "ok")),
    ({"pier/limit/memlock": "= 8388608", "pier/cap_ipc_lock": "= 1",
      "/proc/self/uid_map": "= 0 1000 1"}, ("locked memory", "", "warning")),
    # Root in a container of Docker.
    ({"pier/limit/memlock": "= 8388608", "pier/cap_ipc_lock": "= 0"},
     ("locked memory", "", "warning")),
    ({"pier/limit/memlock": "= 68719476736"}, ("locked memory", "", "ok")),
    ({"pier/transfer/cuda:0/mlx5_0": "! the NIC returned other bytes"},
     ("write and read", "cuda:0 - mlx5_0", "error")),
    ({"pier/transfer/cuda:0/mlx5_0": None},
     ("write and read", "cuda:0 - mlx5_0", "not applicable")),
)

# Verdicts that some checks do not have.
NEVER = {
    ("version", "not applicable"), ("version", "error"), ("page size", "warning"),
    ("page size", "error"), ("uverbs", "warning"), ("DMABUF_MOVE_NOTIFY", "error"),
    ("PCI_P2PDMA", "error"), ("namespaces", "not applicable"), ("namespaces", "error"),
    ("udmabuf", "error"), ("udmabuf", "warning"), ("dma-heap", "error"), ("dma-heap", "warning"),
    ("backends", "warning"), ("backends", "error"),
    ("found", "not applicable"), ("RC", "error"), ("dma-buf method", "error"),
    ("firmware", "warning"), ("firmware", "error"), ("slot", "error"),
    ("relaxed ordering", "error"), ("Data Direct", "error"), ("traffic class", "error"),
    ("error counters", "error"), ("AMD driver", "error"), ("peer memory", "error"),
    ("dma-buf export", "error"), ("other kinds", "warning"), ("other kinds", "error"),
    ("BAR", "error"), ("partition", "error"), ("distance", "error"), ("PCIe tree", "warning"),
    ("PCIe tree", "error"), ("NUMA", "error"),
    ("ACS", "error"), ("IOMMU", "error"), ("registration", "error"),
    ("open files", "not applicable"), ("open files", "error"),
    ("locked memory", "not applicable"), ("locked memory", "error"), ("write and read", "warning"),
}


class Doctor(Case):
    def changed(self, changes):
        """A DGX H100 with other facts; returns the name of the file."""
        wanted = dict(changes)
        lines = []
        for line in (DATA / "dgx-h100").read_text().splitlines():
            path = re.split(r" = | =$| -> | ! ", line)[0]
            if path in wanted:
                new = wanted.pop(path)
                if new is not None:
                    lines.append("%s %s" % (path, new))
            elif not any(name.endswith("*") and path.startswith(name[:-1]) for name in changes):
                lines.append(line)
        lines[-1:-1] = ["%s %s" % (path, new) for path, new in wanted.items() if new is not None]
        name = self.folder / "facts"
        name.write_text("\n".join(lines) + "\n")
        return name

    def judge(self, name, *options):
        result = self.run_pier("doctor", "--json", "--from", name, *options)
        self.assertEqual(result.stderr, "")
        report = json.loads(result.stdout)
        worst = {"ok": 0, "not applicable": 0, "warning": 6, "error": 7}
        self.assertEqual(result.status, worst[report["verdict"]])
        self.assertEqual(result.status, max(worst[f["verdict"]] for f in report["checks"]))
        for finding in report["checks"]:
            self.assertTrue(finding["evidence"], finding)
            if finding["verdict"] in ("warning", "error"):
                self.assertTrue(finding["remedy"] or ":" in finding["evidence"], finding)
        return report["checks"]

    def test_machines_are_judged_as_expected(self):
        for machine, status in MACHINES.items():
            with self.subTest(machine):
                result = self.run_pier("doctor", "--from", DATA / machine)
                self.assertEqual((result.status, result.stderr), (status, ""))
                expected = DATA / (machine + ".expected")
                if WRITE:
                    expected.write_text(result.stdout)
                self.assertEqual(result.stdout, expected.read_text())
                # Beside the summary, which is one line.
                self.assertLessEqual(max(map(len, result.stdout.splitlines()[1:])), 80)
                self.assertNotRegex(result.stdout, r"(?m) $")

    def test_each_verdict_of_each_check(self):
        seen, checks = set(), set()
        for changes, expected in CHANGES:
            with self.subTest(expected):
                findings = self.judge(self.changed(changes))
                found = {(f["check"], f["subject"] or "", f["verdict"]) for f in findings}
                self.assertIn(expected, found)
                seen.add((expected[0], expected[2]))
        for machine in MACHINES:
            for finding in self.judge(DATA / machine):
                seen.add((finding["check"], finding["verdict"]))
                checks.add(finding["check"])
        every = {(check, verdict) for check in checks
                 for verdict in ("ok", "warning", "error", "not applicable")}
        self.assertEqual(every - seen, NEVER)

    def test_counters_of_errors_of_each_driver(self):
        """Names of bnxt_re, efa and irdma; a counter of traffic is none."""
        for counter, verdict in (("rnr_naks_rcvd", "warning"), ("missing_resp", "warning"),
                                 ("oos_drop_count", "warning"), ("rx_drops", "warning"),
                                 ("ip4InDiscards", "warning"), ("rx_pkts", "ok")):
            with self.subTest(counter):
                findings = self.judge(self.changed({
                    PORT + "/hw_counters/" + counter: "= 3",
                    "pier/nic/mlx5_0/ports/1/after/" + counter: "= 4"}))
                found = {(f["check"], f["subject"] or "", f["verdict"]) for f in findings}
                self.assertIn(("error counters", "mlx5_0/1", verdict), found)

    def test_ranks_change_the_limits(self):
        name = self.changed({"pier/limit/nofile": "= 1024"})
        few = self.judge(name, "--ranks", "8")
        many = self.judge(name, "--ranks", "512")
        verdicts = [[f["verdict"] for f in findings if f["check"] == "open files"]
                    for findings in (few, many)]
        self.assertEqual(verdicts, [["ok"], ["warning"]])

    def test_this_machine_is_judged(self):
        """soft0 works everywhere: its transfers are verified."""
        saved = self.folder / "saved"
        result = self.run_pier("doctor", "--device", "soft0", "--mem", "memfd", "--json", "--save",
                               saved)
        self.assertEqual(result.stderr, "")
        report = json.loads(result.stdout)
        transfers = {f["subject"]: f["verdict"] for f in report["checks"]
                     if f["check"] == "write and read"}
        self.assertEqual(transfers, {"host - soft0": "ok", "memfd - soft0": "ok"})
        again = self.run_pier("doctor", "--from", saved, "--json")
        self.assertEqual((again.status, again.stdout), (result.status, result.stdout))

    def test_a_device_that_does_not_exist_is_an_error(self):
        for name in "mlx5_99", "a/b", "x" * 300:
            result = self.run_pier("doctor", "--device", name, "--json")
            self.assertEqual((result.status, result.stderr), (7, ""))
            found = [f for f in json.loads(result.stdout)["checks"] if f["check"] == "found"]
            self.assertEqual([f["verdict"] for f in found], ["error"], found)

    def test_only_the_named_nic_is_judged(self):
        name = self.changed({"pier/only": "= mlx5_0", "pier/nic/mlx5_6*": None,
                             "pier/reach/host/mlx5_6*": None})
        self.assertNotIn("mlx5_6", {f["subject"] for f in self.judge(name)})

    def test_a_full_disk_is_reported(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            result = self.run_pier("doctor", "--from", DATA / "nothing", stdout=full)
        self.assertEqual(result.status, 1)

    def test_odd_memory_is_refused(self):
        result = self.run_pier("doctor", "--device", "soft0", "--mem", "x/y z", "--json")
        self.assertEqual((result.status, result.stderr), (6, ""))
        found = {f["subject"]: f["verdict"] for f in json.loads(result.stdout)["checks"]
                 if f["check"] == "registration"}
        self.assertEqual(found, {"host - soft0": "ok", "x_y z - soft0": "warning"})

    def test_faults_of_a_nic_are_found(self):
        for device, check, verdict in (
                ("fault:wc@1=REM_ACCESS_ERR:soft0", "write and read", "error"),
                ("fault:like=efa:soft0", "RC", "warning"),
                ("fault:like=efa:soft0", "GID", "not applicable"),
                ("fault:async@1=PORT_ERR:soft0", "write and read", "error"),
                ("fault:create_qp@1=ENOMEM:soft0", "GID", "error"),
                ("fault:create_qp@1=ENOMEM:soft0", "RC", "not applicable"),
                ("fault:like=qedr:soft0", "dma-buf method", "warning"),
                ("fault:open_device@1=EACCES:soft0", "RC", "not applicable")):
            with self.subTest(device):
                result = self.run_pier("doctor", "--device", device, "--json")
                found = [f for f in json.loads(result.stdout)["checks"] if f["check"] == check]
                self.assertIn(verdict, [f["verdict"] for f in found], found)

    def test_unbounded_files_are_refused(self):
        good = (DATA / "nothing").read_text()
        for text in ("a" * (1 << 20), "".join("pier/%d = 0\n" % i for i in range(30000))):
            name = self.folder / "bad"
            name.write_text(good.removesuffix("end\n") + text + "\nend\n")
            result = self.run_pier("doctor", "--from", name)
            self.assertEqual((result.status, result.stdout), (1, ""))
            self.assertIn("more than 20000 lines", result.stderr)
        self.assertEqual(self.run_pier("doctor", "--from", "/dev/zero").status, 1)

    def test_signs_in_names_survive_saving(self):
        saved = self.folder / "saved"
        first = self.run_pier("doctor", "--device", "soft0", "--mem", "x = y -> z ! \\", "--json",
                              "--save", saved)
        again = self.run_pier("doctor", "--from", saved, "--json")
        self.assertEqual((again.status, again.stdout), (first.status, first.stdout))

    def test_lines_with_escaped_bytes_are_broken_too(self):
        name = self.changed({"pier/nic/mlx5_0/firmware": "= " + "\\xff" * 100})
        text = self.run_pier("doctor", "--from", name).stdout
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_registrations_of_a_preload_are_counted(self):
        """What PIER_DMABUF_REPORT wrote: docs/preload.md."""
        line = "1\t1764482400.000001\t7\tmlx5_0\t0x7f00\t%d\tcuda:0, cuMemAlloc\t%s\t%s\t%s\t%d\t%s\n"
        direct = line % (4096, "dma-buf", "default", "2.500", 0, "")
        peer = line % (100, "peer memory", "", "9.000", 0, "no \x1bdma-buf")
        refused = line % (1, "", "", "1.000", errno.EFAULT, "no way")
        report = self.folder / "report"
        for lines, status, words in (
                (direct + direct, 0,
                 ["ok       mlx5_0, cuda:0, cuMemAlloc: 2 of 8192 bytes: dma-buf, mapping default, 2.5 us"]),
                (direct + peer, 6, ["warning  mlx5_0", "1 of 100 bytes: peer memory, 9.0 us", "no \\x1bdma-buf"]),
                (peer + refused, 7, ["error    mlx5_0", "not registered (Bad address)", "no way"]),
                ("", 0, ["has no registration"])):
            report.write_text(lines)
            done = self.run_pier("doctor", "--report", str(report))
            self.assertEqual(done.status, status, done)
            text = re.sub(r"\s+", " ", done.stdout)
            for word in words:
                self.assertIn(re.sub(r"\s+", " ", word), text)
        report.write_text(direct + "else\n")
        self.refused(1, "1 lines of another form", "doctor", "--report", str(report))
        self.refused(1, "cannot read .*none", "doctor", "--report", str(self.folder / "none"))
        self.refused(2, "--report looks at that file alone", "doctor", "--report", "x", "--json")

    def test_bad_files_are_refused(self):
        good = (DATA / "nothing").read_text()
        for text, reason in (("", "incomplete"), ("x\n", "first line"),
                             (good.removesuffix("end\n"), "incomplete"),
                             (good.replace("pier/uid = 1000", "pier/uid"), "line"),
                             (good.replace("pier/uid = 1000", "pier/uid = \\x1"), "line"),
                             (good.replace("pier/uid = 1000", "pier/uid = 1\0000"), "NUL"),
                             (good + "pier/uid = 0\n", "line")):
            name = self.folder / "bad"
            name.write_text(text)
            result = self.run_pier("doctor", "--from", name)
            self.assertEqual((result.status, result.stdout), (1, ""), text[-40:])
            self.assertIn(reason, result.stderr)
        self.assertEqual(self.run_pier("doctor", "--from", "/nowhere").status, 1)
        result = self.run_pier("doctor", "--device", "soft0", "--mem", "host", "--save",
                               "/dev/full")
        self.assertEqual(result.status, 1)
        self.assertIn("/dev/full", result.stderr)

    def test_wrong_usage(self):
        for arguments in (["x"], ["--rankz", "3"], ["--ranks", "0"], ["--ranks", "x"],
                          ["--from", "a", "--save", "b"], ["--from", "a", "--mem", "host"],
                          ["--from"]):
            result = self.run_pier("doctor", *arguments)
            self.assertEqual((result.status, result.stdout), (2, ""), arguments)
            self.assertEqual(result.stderr.count("\n"), 1)

    def test_control_characters_do_not_reach_the_terminal(self):
        name = self.changed({"pier/nic/mlx5_0/firmware": "= \\x1b[2J"})
        text = self.run_pier("doctor", "--from", name).stdout
        self.assertIn("firmware \\x1b[2J", text)
        self.assertNotIn("\x1b", text)


main()

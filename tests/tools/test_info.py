#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier info."""

import ipaddress
import os
import re
import subprocess
import textwrap

from harness import Case, json, main


class Info(Case):
    def facts(self, **options):
        result = self.run_pier("info", "--json", **options)
        self.assertEqual((result.status, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_soft0_is_described(self):
        facts = self.facts()
        soft = [d for d in facts["devices"] if d["name"] == "soft0"]
        self.assertEqual(len(soft), 1)
        self.assertEqual(soft[0]["provider"], "soft")
        self.assertIsNone(soft[0]["error"])
        self.assertTrue(soft[0]["channels"])
        self.assertIsNone(soft[0]["no_channels"])
        self.assertTrue(soft[0]["dmabuf"])
        self.assertTrue(soft[0]["memfd_as_dmabuf"])
        for limit in ("max_mr_size", "max_qp_wr", "max_sge", "max_cqe", "page_sizes"):
            self.assertGreater(soft[0][limit], 0)
        for ability in ("atomics", "memory_windows", "on_demand", "counters"):
            self.assertIsInstance(soft[0][ability], bool)
        self.assertTrue(soft[0]["counters"])
        self.assertEqual(soft[0]["max_requested_key"], 65535)
        text = self.unfold(self.run_pier("info").stdout)
        self.assertRegex(text, r"(?m)^  channels      yes$")
        self.assertRegex(text, r"(?m)^  regions       atomics, memory windows, on demand, "
                               r"counters, keys on request up to 65535, %d ranges under one "
                               r"key$" % soft[0]["max_joined_ranges"])

    def test_one_device_is_printed_with_its_persona(self):
        result = self.run_pier("info", "--json", "--device", "fault:like=qedr:soft0")
        self.assertEqual((result.status, result.stderr), (0, ""))
        device, = json.loads(result.stdout)["devices"]
        self.assertEqual((device["name"], device["provider"], device["firmware"]),
                         ("fault:like=qedr:soft0", "fault", "like=qedr"))
        self.assertEqual((device["max_sge"], device["dmabuf"]), (4, False))
        text = self.unfold(self.run_pier("info", "--device", "fault:like=nothing:soft0").stdout)
        self.assertRegex(text, r"not usable .*one of these: mlx5, efa, ")
        self.assertNotIn("device soft0", text)
        self.assertEqual(self.run_pier("info", "--device", "x" * 64).status, 2)

    def test_the_status_says_whether_a_device_can_be_opened(self):
        for name, status in (("soft0", 0), ("soft7", 3), ("fault:like=nothing:soft0", 3)):
            for more in ((), ("--json",)):
                self.assertEqual(self.run_pier("info", "--device", name, *more).status, status)

    def test_reach_of_memory_is_printed(self):
        text = self.run_pier("info", "--device", "soft0", "--mem", "memfd").stdout
        self.assertRegex(text, r"(?m)^  memory        memfd: dma-buf$")
        text = self.run_pier("info", "--device", "soft0", "--mem", "no\x1b").stdout
        self.assertRegex(text, r"(?m)^  memory        no\\x1b: not registered: memory spec: ")
        result = self.run_pier("info", "--json", "--device", "soft0", "--mem", "host")
        device, = json.loads(result.stdout)["devices"]
        self.assertEqual(device["reach"], {"spec": "host", "error": None, "path": "host",
                                           "mapping": None, "canary": None, "reason": None})
        self.assertNotIn("reach", self.facts()["devices"][0])

    def test_control_characters_do_not_reach_the_terminal(self):
        # From the name that was given, and from a backend that cannot be loaded.
        text = self.run_pier("info", "--device", "soft\x1b[2J\n").stdout
        self.assertIn("\ndevice soft\\x1b[2J\\x0a (", text)
        self.assertRegex(text, r"(?m)^  not usable .*soft\\x1b\[2J\\x0a")
        env = {"PIER_BACKEND_PATH": "/nowhere/\x1b[2J.so"}
        self.assertIn("/nowhere/\\x1b[2J.so", self.run_pier("info", env=env).stdout)

    def test_switches_that_are_set_are_printed(self):
        env = {"PIER_DMABUF": "off", "PIER_CANARY": "of\x1b"}
        facts = self.facts(env=env)
        self.assertEqual(facts["switches"], env)
        text = self.run_pier("info", env=env).stdout
        self.assertRegex(text, r"(?m)^PIER_DMABUF=off$")
        self.assertRegex(text, r"(?m)^PIER_CANARY=of\\x1b$")
        self.assertRegex(text, r"not usable +PIER_CANARY=")
        # tests/run sets PIER_DMABUF for all tests.
        self.assertNotIn("PIER_CANARY", self.facts()["switches"])
        self.assertNotIn("PIER_CANARY", self.run_pier("info").stdout)

    def test_asking_for_dmabuf_support_logs_no_failure(self):
        result = self.run_pier("info", env={"PIER_LOG": "debug"})
        self.assertIn("opened soft0", result.stderr)
        self.assertNotIn("fd -1", result.stderr)

    def test_without_an_rdma_device_the_reason_is_printed(self):
        facts = self.facts()
        reason = facts["no_rdma_device"]
        if any(d["name"] != "soft0" for d in facts["devices"]):
            self.assertIsNone(reason)
            return
        self.assertRegex(reason, "^there is no RDMA device")
        self.assertEqual(self.facts(env={"PIER_DEVICE": "soft0"})["no_rdma_device"], reason)
        self.assertIn("\n\n%s\n\n" % textwrap.fill(reason, 80, break_on_hyphens=False),
                      self.run_pier("info").stdout)

    def test_a_missing_library_of_a_driver_is_named_in_each_refusal(self):
        script = 'mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mlx5_7 && exec "$@"'
        before = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-r", "-m"]), "sh", "-c", script, "sh"]
        if subprocess.run([*before, "true"], capture_output=True).returncode != 0:
            self.skipTest("no file system can be mounted here")
        missing = r"the kernel has mlx5_7, but .* \(Debian: ibverbs-providers"
        source = self.file("source", 1)
        self.refused(3, missing, "cp", "--device", "mlx5_7", source, "target", before=before)
        self.refused(3, missing, "cp", source, "target", before=before, env={"PIER_DEVICE": "mlx5_7"})
        result = self.run_pier("info", before=before, env={"PIER_DEVICE": ""})
        self.assertRegex(" ".join(result.stdout.split()), "there is no RDMA device: .*" + missing)

    def test_ports_and_gids_are_listed(self):
        port, = [d for d in self.facts()["devices"] if d["name"] == "soft0"][0]["ports"]
        self.assertTrue(port["active"])
        self.assertEqual(port["port"], 1)
        self.assertIn(port["active_mtu"], (256, 512, 1024, 2048, 4096))
        self.assertGreaterEqual(len(port["gids"]), 1)
        for gid in port["gids"]:
            ipaddress.IPv6Address(gid["gid"])

    def test_kinds_of_memory_are_listed(self):
        memory = {m["name"]: m for m in self.facts()["memory"]}
        for name in ("host", "memfd"):
            self.assertTrue(memory[name]["available"])
        for name in ("udmabuf", "dma_heap"):
            self.assertTrue(memory[name]["available"] or memory[name]["detail"])

    def test_text_and_json_agree(self):
        facts, text = self.facts(), self.unfold(self.run_pier("info").stdout)
        for device in facts["devices"]:
            self.assertIn("device %s (%s)" % (device["name"], device["provider"]), text)
            for port in device.get("ports", ()):
                for gid in port.get("gids", ()):
                    # soft0 has another GID each time it is opened.
                    known = "" if device["provider"] == "soft" else gid["gid"]
                    self.assertRegex(text, r"(?m)^    GID %d +%s" % (gid["index"], known))
        for memory in facts["memory"]:
            state = "available" if memory["available"] else "not available"
            self.assertRegex(text, r"(?m)^  %s +%s: " % (memory["name"], state))
            self.assertIn(memory["detail"], text)

    def test_the_first_line_is_a_summary(self):
        env = self.board("/1,/2")
        facts = self.facts(env=env)
        nics = sum(device["name"] != "soft0" for device in facts["devices"])
        memory = ", ".join(m["name"] for m in facts["memory"] if m["available"])
        self.assertEqual(
            self.unfold(self.run_pier("info", env=env).stdout).splitlines()[0],
            "pier %s: %d NIC%s, 2 GPUs; memory: %s" % (facts["version"], nics, "s"[:nics != 1], memory))
        self.assertRegex(self.run_pier("info", env=self.board("/1")).stdout, r"\A[^\n]* NICs?, 1 GPU; ")

    def board(self, places):
        """The environment of a machine with a unit of memory at each of these locations."""
        folder = self.folder / "board"
        folder.mkdir(exist_ok=True)
        if not (folder / "board.so").exists():
            (folder / "board.so").symlink_to(os.environ["BOARD_BACKEND"])
        return {"PIER_BACKEND_PATH": str(folder), "BOARD": places}

    def test_without_gpus_no_unit_is_listed(self):
        self.assertEqual(self.facts()["units"], [])
        self.assertNotRegex(self.run_pier("info").stdout, "(?m)^memory .")
        # A backend that cannot list its units.
        self.assertEqual(self.facts(env=self.board("broken"))["units"], [])

    def test_units_are_listed_with_location_and_nearest_devices(self):
        environment = self.board("FFF0:17:00.0/1,/3,fff0:e7:1f.7,nowhere")
        units = self.facts(env=environment)["units"]
        self.assertEqual([(u["spec"], u["name"], u["pci"], u["numa_node"]) for u in units],
                         [("board:0", "Board 0", "fff0:17:00.0", 1),
                          ("board:1", "Board 1", None, 3),
                          ("board:2", "Board 2", "fff0:e7:1f.7", None),
                          ("board:3", "Board 3", None, None)])
        # Not soft0, which is used by name alone.
        names = sorted(d["name"] for d in self.facts()["devices"] if d["name"] != "soft0")
        for unit in units:
            self.assertEqual(unit["detail"], "d" * 159)
            self.assertEqual(sorted(n["name"] for n in unit["near"]), names)
        text = self.run_pier("info", env=environment).stdout
        blocks = dict(re.findall(r"(?m)^memory (board:\d) .*\n((?:  .*\n)+)", text))
        self.assertEqual(sorted(blocks), ["board:%d" % i for i in range(4)])
        self.assertIn("  location      fff0:17:00.0, NUMA node 1\n", blocks["board:0"])
        self.assertIn("  location      not on a PCI bus, NUMA node 3\n", blocks["board:1"])
        self.assertIn("  location      fff0:e7:1f.7, NUMA node unknown\n", blocks["board:2"])
        self.assertNotIn("location", blocks["board:3"])
        self.assertIn("memory board:2 (Board 2)\n  limits        " + "d" * 159,
                      text.replace("\n" + " " * 16, ""))
        self.assertIn("  nearest       unknown\n", blocks["board:3"])

    def test_error_of_topology_file_is_printed(self):
        path = self.file("topology", b"near mlx5_0\n")
        env = dict(self.board("/3"), PIER_TOPO_FILE=path)
        self.assertIn("  nearest       unknown: PIER_TOPO_FILE: %s, line 1: " % path,
                      self.unfold(self.run_pier("info", env=env).stdout))

    def test_soft0_has_no_location(self):
        for device in self.facts()["devices"]:
            if device["provider"] == "soft":
                self.assertIsNone(device["pci"])
                self.assertIsNone(device["numa_node"])
        text = self.run_pier("info").stdout
        self.assertNotRegex(text, r"device soft0 \(soft\)\n  location")

    def test_a_broken_backend_is_listed_as_unavailable(self):
        folder = self.folder / 'a "b"\\c\n\x01é'
        folder.mkdir()
        (folder / "broken.so").write_text("not an object")
        memory = self.facts(env={"PIER_BACKEND_PATH": str(folder)})["memory"]
        broken = [m for m in memory if m["origin"] and m["origin"].endswith("broken.so")]
        self.assertEqual(len(broken), 1)
        self.assertFalse(broken[0]["available"])
        self.assertTrue(broken[0]["detail"])

    def test_a_path_that_is_not_utf8_is_replaced_in_json(self):
        folder = self.folder / "x\udcff\udcc3y"
        folder.mkdir()
        (folder / "broken.so").write_text("not an object")
        memory = self.facts(env={"PIER_BACKEND_PATH": str(folder)})["memory"]
        self.assertIn("x\ufffd\ufffdy", [m for m in memory if m["origin"]][0]["origin"])


main()

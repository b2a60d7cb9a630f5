#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier info."""

import ipaddress

from harness import Case, json, main


class Info(Case):
    def facts(self, **options):
        result = self.run_pier("info", "--json", **options)
        self.assertEqual((result.status, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_devices(self):
        facts = self.facts()
        soft = [d for d in facts["devices"] if d["name"] == "soft0"]
        self.assertEqual(len(soft), 1)
        self.assertEqual(soft[0]["provider"], "soft")
        self.assertIsNone(soft[0]["error"])
        self.assertTrue(soft[0]["dmabuf"])
        self.assertTrue(soft[0]["memfd_as_dmabuf"])
        for limit in ("max_mr_size", "max_qp_wr", "max_sge", "max_cqe", "page_sizes"):
            self.assertGreater(soft[0][limit], 0)
        for ability in ("atomics", "memory_windows", "on_demand", "counters"):
            self.assertIsInstance(soft[0][ability], bool)
        self.assertTrue(soft[0]["counters"])
        self.assertEqual(soft[0]["max_requested_key"], 65535)
        text = self.run_pier("info").stdout
        self.assertRegex(text, r"(?m)^  regions       atomics, memory windows, on demand, "
                               r"counters, keys on request up to 65535, %d ranges under one "
                               r"key$" % soft[0]["max_joined_ranges"])

    def test_ports_and_gids(self):
        port, = [d for d in self.facts()["devices"] if d["name"] == "soft0"][0]["ports"]
        self.assertTrue(port["active"])
        self.assertEqual(port["port"], 1)
        self.assertIn(port["active_mtu"], (256, 512, 1024, 2048, 4096))
        self.assertGreaterEqual(len(port["gids"]), 1)
        for gid in port["gids"]:
            ipaddress.IPv6Address(gid["gid"])

    def test_memory(self):
        memory = {m["name"]: m for m in self.facts()["memory"]}
        for name in ("host", "memfd"):
            self.assertTrue(memory[name]["available"])
        for name in ("udmabuf", "dma_heap"):
            self.assertTrue(memory[name]["available"] or memory[name]["detail"])

    def test_lines_say_the_same(self):
        facts, text = self.facts(), self.run_pier("info").stdout
        for device in facts["devices"]:
            self.assertIn("device %s (%s)" % (device["name"], device["provider"]), text)
            for port in device.get("ports", ()):
                for gid in port.get("gids", ()):
                    # The software NIC has another one each time it is opened.
                    known = "" if device["provider"] == "soft" else gid["gid"]
                    self.assertRegex(text, r"(?m)^    GID %d +%s" % (gid["index"], known))
        for memory in facts["memory"]:
            state = "available" if memory["available"] else "not available"
            self.assertRegex(text, r"(?m)^  %s +%s: " % (memory["name"], state))
            self.assertIn(memory["detail"], text)

    def test_a_backend_that_cannot_be_loaded(self):
        folder = self.folder / 'a "b"\\c\n\x01é'
        folder.mkdir()
        (folder / "broken.so").write_text("not an object")
        memory = self.facts(env={"PIER_BACKEND_PATH": str(folder)})["memory"]
        broken = [m for m in memory if m["origin"] and m["origin"].endswith("broken.so")]
        self.assertEqual(len(broken), 1)
        self.assertFalse(broken[0]["available"])
        self.assertTrue(broken[0]["detail"])

    def test_a_name_that_is_not_utf8(self):
        folder = self.folder / "x\udcff\udcc3y"
        folder.mkdir()
        (folder / "broken.so").write_text("not an object")
        memory = self.facts(env={"PIER_BACKEND_PATH": str(folder)})["memory"]
        self.assertIn("x\ufffd\ufffdy", [m for m in memory if m["origin"]][0]["origin"])


main()

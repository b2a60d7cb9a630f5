#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Memory that corrupts data, and memory that is not mapped for the CPU."""

import os

from harness import Case, MIB, json, main

FOLDER = os.path.dirname(os.environ["FAULTY_BACKEND"])


class FaultyMemory(Case):
    """The memory of faulty.c, which the CPU can only copy to and from."""

    def faulty(self, *arguments, **options):
        return self.run_pier("cp", *arguments, env={"PIER_BACKEND_PATH": FOLDER}, **options)

    def test_memory_without_a_cpu_mapping_is_copied(self):
        source = self.file("source", 10 * 65536 + 3)
        for src, dst in (("faulty", "faulty"), ("host", "faulty"), ("faulty", "memfd")):
            with self.subTest((src, dst)):
                result = self.faulty("--json", "--chunk", "64K", "--depth", 3, "--src-mem", src,
                                     "--dst-mem", dst, source, "target")
                self.assertEqual((result.status, result.stderr), (0, ""), str(result))
                self.check_same(source, self.folder / "target")
                facts = json.loads(result.stdout)
                self.assertEqual(facts["destination"]["memory"], dst)

    def test_memory_that_cannot_be_exported_uses_a_bounce_buffer(self):
        source = self.file("source", 10 * 65536 + 3)
        for src, dst in (("faulty:sealed", "host"), ("host", "faulty:sealed"),
                         ("faulty:sealed", "faulty:sealed")):
            with self.subTest((src, dst)):
                result = self.faulty("--json", "--chunk", "64K", "--depth", 3, "--src-mem", src,
                                     "--dst-mem", dst, source, "target")
                self.assertEqual((result.status, result.stderr), (0, ""), str(result))
                self.check_same(source, self.folder / "target")
                facts = json.loads(result.stdout)
                for side, memory in (("source", src), ("destination", dst)):
                    sealed = memory == "faulty:sealed"
                    self.assertEqual(facts[side]["path"], "bounce" if sealed else "host")
                    self.assertEqual("faulty is sealed" in str(facts[side]["why"]), sealed)

    def test_verbose_gives_the_reason_for_the_bounce_path(self):
        self.file("source", 5000)
        result = self.faulty("-v", "--dst-mem", "faulty:sealed", "source", "target")
        self.assertEqual(result.status, 0)
        self.assertRegex(result.stdout, r"\(bounce\)\nthe path to destination memory is bounce; "
                         r"as a dma-buf: [^\n]*faulty is sealed[^\n]*\n\Z")
        result = self.faulty("--dst-mem", "faulty:sealed", "source", "target")
        self.assertRegex(result.stdout, r"\A[^\n]* faulty:sealed memory on soft0 \(bounce\)\n\Z")

    def test_direct_refuses_a_bounce_buffer(self):
        self.file("source", 5000)
        for option in ("--src-mem", "--dst-mem"):
            result = self.faulty("--direct", option, "faulty:sealed", "source", "target")
            self.check_failure(result, 3, "faulty is sealed")

    def test_a_flipped_bit_in_a_bounced_chunk_is_detected(self):
        self.file("source", MIB)
        for option in ("--src-mem", "--dst-mem"):
            with self.subTest(option):
                result = self.faulty("--chunk", "128K", "--depth", 2, option,
                                     "faulty:sealedflip3", "source", "target")
                self.check_failure(result, 5, "verification failed")
                self.assertFalse((self.folder / "target").exists())

    def test_a_flipped_bit_is_detected(self):
        self.file("source", MIB)
        for chunk in (1, 2, 8):
            with self.subTest(chunk):
                result = self.faulty("--chunk", "128K", "--depth", 2, "--dst-mem",
                                     "faulty:flip%d" % chunk, "source", "target")
                self.check_failure(result, 5, "verification failed")
                self.assertEqual(result.stdout, "")
                self.assertFalse((self.folder / "target").exists())

    def test_a_bit_flipped_in_the_source_memory_is_detected(self):
        """The third copy is one of data, or of a header, which fits no chunk then."""
        self.file("source", MIB)
        result = self.faulty("--chunk", "128K", "--src-mem", "faulty:spoil3", "source", "target")
        self.assertIn(result.status, (4, 5), str(result))
        self.assertRegex(result.stderr, "verification failed|unexpected chunk")
        self.assertFalse((self.folder / "target").exists())

    def test_no_lie_of_a_device_is_taken_for_success(self):
        """The first request writes a header, the second one data. A flipped bit may hit nothing."""
        source = self.file("source", MIB)
        for rule in ("corrupt", "drop", "stale", "misplace"):
            for number in (1, 2, 3, 4):
                with self.subTest((rule, number)):
                    result = self.run_pier("cp", "--chunk", "128K", "--depth", 2, "source", "target",
                                           env={"PIER_DEVICE": "fault:%s@%d:soft0" % (rule, number)})
                    target = self.folder / "target"
                    if result.status == 0:
                        self.assertEqual((rule, number % 2), ("corrupt", 1))
                        self.check_same(source, target)
                        target.unlink()
                    self.assertIn(result.status, (0, 4, 5), str(result))
                    self.assertFalse(target.exists())

    def test_no_verify_misses_a_lie_of_a_device(self):
        source = self.file("source", MIB)
        result = self.run_pier("cp", "--no-verify", "--chunk", "128K", "source", "target",
                               env={"PIER_DEVICE": "fault:corrupt@2:soft0"})
        self.assertEqual(result.status, 0, str(result))
        self.assertNotEqual(source.read_bytes(), (self.folder / "target").read_bytes())

    def test_no_verify_misses_a_flipped_bit(self):
        """The first copy is that of the header, the second that of the data."""
        source = self.file("source", MIB)
        result = self.faulty("--no-verify", "--dst-mem", "faulty:flip2", "source", "target")
        self.assertEqual(result.status, 0)
        self.assertNotEqual(source.read_bytes(), (self.folder / "target").read_bytes())

    def test_a_failing_memory_copy_fails_the_command(self):
        self.file("source", MIB)
        for option in ("--src-mem", "--dst-mem"):
            result = self.faulty(option, "faulty:broken", "source", "target")
            self.check_failure(result, 3, "faulty memory is broken")
            self.assertFalse((self.folder / "target").exists())


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp between two local files."""

import os
import pathlib
import pty
import random
import re
import shutil
import subprocess

from harness import Case, MIB, PROMISE, extents, json, main, slowness

KIB = 1024
CHUNK = 64 * KIB


class Sizes(Case):
    def copy_of(self, size, *options):
        source = self.file("source", size)
        target = self.folder / "target"
        self.copy(*options, source, target)
        self.check_same(source, target)

    def test_a_file_of_at_most_a_few_pages_is_copied(self):
        for size in (0, 1, 4095, 4096, 4097, 12345):
            with self.subTest(size):
                self.copy_of(size)

    def test_sizes_around_a_chunk_boundary_are_copied(self):
        for count in (1, 2, 3, 4, 8):
            for size in (count * CHUNK - 1, count * CHUNK, count * CHUNK + 1):
                with self.subTest(size):
                    self.copy_of(size, "--chunk", "64K", "--depth", 3)

    def test_more_chunks_than_slots_are_copied(self):
        for depth in (1, 2, 7):
            with self.subTest(depth):
                self.copy_of(1000 * 4096 + 17, "--chunk", "4K", "--depth", depth)

    def test_random_sizes_are_copied(self):
        for _ in range(10):
            size = self.random.randrange(20 * CHUNK)
            depth = self.random.randrange(1, 10)
            with self.subTest(size=size, depth=depth):
                self.copy_of(size, "--chunk", "%dKiB" % (4 * self.random.randrange(1, 17)),
                             "--depth", depth, "--threads", self.random.randrange(1, 5))

    def test_a_file_is_copied_with_default_options(self):
        self.copy_of(33 * MIB + 5)

    def test_a_file_is_copied_without_verification(self):
        self.copy_of(3 * MIB + 5, "--no-verify")

    def test_verification_ignores_the_configuration_of_openssl(self):
        """That of FIPS mode leaves Poly1305 out."""
        config = self.file("openssl.cnf", b"openssl_conf = a\n[a]\nalg_section = b\n"
                                          b"[b]\ndefault_properties = fips=yes\n")
        source = self.file("source", 5000)
        self.copy(source, "target", env={"OPENSSL_CONF": str(config)})
        self.check_same(source, self.folder / "target")

    def test_bwlimit_limits_the_rate(self):
        source = self.file("source", 5 * CHUNK)
        result = self.copy("--bwlimit", "256K", source, "target")
        self.assertGreaterEqual(result.seconds, 1)
        self.check_same(source, self.folder / "target")

    def test_a_file_larger_than_4_gib_is_copied(self):
        size = (4 << 30) + 4097
        if shutil.disk_usage(self.folder).free < size + (1 << 30):
            self.skipTest("less than 5 GiB free under %s" % self.folder.parent)
        source = self.folder / "source"
        with open(source, "wb") as file:
            for offset in (0, (2 << 30) - 3, (4 << 30) - 3, size - 7):
                file.seek(offset)
                file.write(self.bytes(7))
        self.copy("--chunk", "4M", source, "target")
        self.check_same(source, self.folder / "target")


class SparseFiles(Case):
    """Holes stay holes."""

    def sparse(self, size, data):
        """A file of this size, with data of (offset, length)."""
        source = self.folder / "source"
        with open(source, "wb") as file:
            file.truncate(size)
            for offset, length in data:
                file.seek(offset)
                file.write(self.bytes(length))
        if source.stat().st_blocks * 512 >= size:
            self.skipTest("%s is on a file system without holes" % source)
        return source

    def check_extents(self, source, target):
        self.assertEqual(target.stat().st_size, source.stat().st_size)
        self.assertEqual(extents(target), extents(source))
        with open(source, "rb") as ours, open(target, "rb") as theirs:
            for start, end in extents(source):
                ours.seek(start)
                theirs.seek(start)
                self.assertTrue(ours.read(end - start) == theirs.read(end - start))

    def test_a_sparse_tebibyte_is_copied_in_seconds(self):
        source = self.sparse(1 << 40, [(0, 4096), (1 << 30, 3 * MIB), (5 << 37, 77),
                                       ((1 << 40) - 4097, 4097)])
        target = self.folder / "target"
        result = self.copy(source, target)
        self.assertIn("1099511627776 bytes in ", result.stdout)
        self.assertLess(result.seconds, PROMISE * slowness())
        self.check_extents(source, target)
        self.assertLess(target.stat().st_blocks * 512, 8 * MIB)

    def test_holes_stay_where_they_are(self):
        size = 20 * CHUNK + 17
        for data in ([], [(0, 1)], [(size - 1, 1)], [(CHUNK - 1, 2)], [(3 * CHUNK, CHUNK)],
                     [(4096 * i, 4096) for i in range(0, 100, 2)],
                     [(4096 * i, 4096) for i in range(1, 100, 3)]):
            for options in ((), ("--no-verify",)):
                with self.subTest((data[:3], options)):
                    target = self.folder / "target"
                    source = self.sparse(size, data)
                    self.copy("--chunk", "64K", "--depth", 3, *options, source, target)
                    self.check_same(source, target)
                    self.check_extents(source, target)

    def test_random_holes_are_copied(self):
        for _ in range(10):
            size = self.random.randrange(MIB, 8 * MIB)
            data = [(self.random.randrange(size), self.random.randrange(1, CHUNK))
                    for _ in range(self.random.randrange(8))]
            source = self.sparse(size, data)
            self.copy("--chunk", "16K", "--depth", self.random.randrange(1, 9), source, "target")
            self.check_same(source, self.folder / "target")

    def test_a_sparse_file_replaces_an_old_file(self):
        source = self.sparse(2 * MIB, [(MIB, 5)])
        target = self.file("target", 3 * MIB)
        self.copy(source, target)
        self.check_extents(source, target)


class KernelFiles(Case):
    """Files of /proc and /sys, whose size is not that of their content."""

    def test_files_of_proc_with_size_0_are_copied_whole(self):
        for name in ("/proc/cpuinfo", "/proc/filesystems", "/proc/self/limits"):
            with self.subTest(name):
                facts = json.loads(self.copy("--json", name, "target").stdout)
                content = (self.folder / "target").read_bytes()
                self.assertGreater(len(content), 10)
                self.assertEqual(facts["bytes"], len(content))
        self.copy("/proc/filesystems", "target")
        self.assertEqual((self.folder / "target").read_bytes(),
                         pathlib.Path("/proc/filesystems").read_bytes())

    def test_files_of_sys_are_shorter_than_their_size(self):
        name = pathlib.Path("/sys/devices/system/cpu/possible")
        if not name.exists():
            self.skipTest("there is no %s" % name)
        self.assertGreater(name.stat().st_size, len(name.read_bytes()))
        self.copy(name, "target")
        self.assertEqual((self.folder / "target").read_bytes(), name.read_bytes())

    def test_files_of_sys_that_nobody_has_listed(self):
        """Listing the attributes of one for the first time sets its times."""
        names = list(pathlib.Path("/sys/devices/virtual").glob("*/*/uevent"))
        for name in random.sample(names, min(5, len(names))):
            with self.subTest(name):
                self.copy(name, "target")
                self.assertEqual((self.folder / "target").read_bytes(), name.read_bytes())

    def test_an_empty_file_is_copied(self):
        self.copy(self.file("source", b""), "target")
        self.assertEqual((self.folder / "target").read_bytes(), b"")

    def test_a_read_error_fails_the_copy(self):
        self.refused(1, "cannot read /proc/self/mem: Input/output error", "cp",
                     "/proc/self/mem", "target")

    def test_a_file_without_an_end_is_refused(self):
        self.refused(1, r"/proc/self/pagemap does not end at its size \(0 bytes\) "
                     "and is larger than the 256 MiB", "cp", "/proc/self/pagemap", "target")
        self.assertFalse((self.folder / "target").exists())


class Waits(Case):
    """No side waits when there is nothing more to come: then it would wait a second."""

    def test_a_copy_ends_without_a_timeout(self):
        for size in (0, 1, 4097, MIB, 3 * MIB + 17):
            with self.subTest(size):
                source = self.file("source", size)
                self.copy(source, "target", env=self.preload("NO_TIMEOUTS"))
                self.check_same(source, self.folder / "target")


class WrongSizes(Case):
    """Files with a wrong size and constant times, which FUSE file systems allow."""

    def claiming(self, source, size):
        return self.preload("CLAIM_SIZE", CLAIM_INODE=str(source.stat().st_ino), CLAIM_SIZE=str(size))

    def test_a_wrong_size_is_corrected(self):
        source = self.file("source", 3 * MIB + 17)
        for size in (0, 1, 4096, 3 * MIB, 3 * MIB + 16, 3 * MIB + 17, 3 * MIB + 18, 9 * MIB):
            with self.subTest(size):
                result = self.copy("--json", source, "target", env=self.claiming(source, size))
                self.assertEqual(json.loads(result.stdout)["bytes"], 3 * MIB + 17)
                self.check_same(source, self.folder / "target")

    def test_a_file_too_large_to_buffer_is_refused(self):
        source = self.folder / "source"
        with open(source, "wb") as file:
            file.truncate(257 * MIB)
        self.refused(1, r"does not end at its size \(1048576 bytes\)", "cp", source,
                     "target", env=self.claiming(source, MIB))
        self.assertFalse((self.folder / "target").exists())

    def test_growth_without_a_new_size_is_noticed(self):
        source = self.file("source", 3 * MIB)
        process = self.start_slowly(source=source, env=self.claiming(source, 3 * MIB))
        with open(source, "ab") as file:
            file.write(b"more")
        self.failure_of(process, 1, "changed while")


class Memory(Case):
    def test_every_pair_of_memories_works(self):
        source = self.file("source", 5 * MIB + 3)
        memory = json.loads(self.run_pier("info", "--json").stdout)["memory"]
        kinds = [m["name"] for m in memory if m["available"] and m["name"] != "dma_heap"]
        self.assertGreaterEqual(len(kinds), 2)
        for src in kinds:
            for dst in kinds:
                with self.subTest((src, dst)):
                    target = self.folder / ("%s-%s" % (src, dst))
                    result = self.copy("--json", "--src-mem", src, "--dst-mem", dst,
                                       source, target)
                    self.check_same(source, target)
                    facts = json.loads(result.stdout)
                    self.assertEqual(facts["source"]["memory"], src)
                    self.assertEqual(facts["destination"]["memory"], dst)

    def test_direct_uses_a_dma_buf(self):
        source = self.file("source", MIB)
        result = self.copy("--json", "--direct", "--src-mem", "memfd", "--dst-mem", "memfd",
                           source, "target")
        facts = json.loads(result.stdout)
        self.assertEqual(facts["source"]["path"], "dma-buf")
        self.assertEqual(facts["destination"]["path"], "dma-buf")

    def test_default_memory_depends_on_the_device(self):
        facts = json.loads(self.copy("--json", self.file("source", 1), "target").stdout)
        for side in ("source", "destination"):
            self.assertEqual(facts[side]["device"], "soft0")
            self.assertEqual(facts[side]["memory"], "memfd")

    def test_soft0_is_used_within_a_host_and_named(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("this machine has an RDMA device")
        source = self.file("source", MIB)
        environment = {"PIER_DEVICE": ""}
        result = self.run_pier("cp", source, "target", env=environment)
        self.assertEqual(result.status, 0, str(result))
        self.check_same(source, self.folder / "target")
        self.assertEqual(result.stderr, "pier cp: no usable RDMA device: using the software "
                         "NIC soft0\n")
        self.copy("--quiet", source, "target2", env=environment)

    def test_it_is_named_before_the_copy(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("this machine has an RDMA device")
        result = self.run_pier("cp", "--progress", self.file("source", MIB), "target",
                               env={"PIER_DEVICE": ""})
        self.assertRegex(result.stderr, r"\Apier cp: no usable RDMA device: [^\n]*\n *0% ")

    def test_a_wrong_variable_is_named(self):
        source = self.file("source", 1)
        for command in (("cp", source, "target"), ("perf", "write_bw")):
            self.refused(3, r'PIER_DEVICE=soft7: no RDMA device "soft7"', *command,
                         env={"PIER_DEVICE": "soft7"})
        result = self.refused(3, 'no RDMA device "soft7"', "cp", "--device", "soft7", source,
                              "target", env={"PIER_DEVICE": "soft0"})
        self.assertNotIn("PIER_DEVICE=soft0: ", result.stderr)
        for value, complaint in (("verbose", 'PIER_LOG=verbose: not "error", '), ("", ""), ("none", "")):
            result = self.run_pier("info", env={"PIER_LOG": value})
            self.assertRegex(result.stderr, r"\A(pier: warning: %s.*\n)\Z" % complaint
                             if complaint else r"\A\Z")

    def test_several_nics_share_the_chunks(self):
        """soft0 named several times is as many NICs. Chunks, slots and NICs do not divide evenly."""
        source = self.file("source", 100 * 4096 + 17)
        with open(source, "r+b") as file:
            file.seek(30 * 4096)
            file.truncate(60 * 4096)
            file.seek(90 * 4096)
            file.write(self.bytes(8 * 4096 + 1))
        for here, there, used in ((2, 2, 2), (3, 3, 3), (4, 2, 2), (1, 3, 1), (9, 9, 4)):
            with self.subTest((here, there)):
                result = self.copy("--device", ",".join(["soft0"] * here), "--remote-device",
                                   ",".join(["soft0"] * there), "--chunk", "4K", "--depth", 7,
                                   "--json", source, "target")
                report = json.loads(result.stdout)
                for side in ("source", "destination"):
                    self.assertEqual(report[side]["device"], ",".join(["soft0"] * used))
                self.check_same(source, self.folder / "target")
        # Not more NICs than chunks.
        small = self.file("small", 10)
        report = json.loads(self.copy("--device", "soft0,soft0", "--json", small, "target").stdout)
        self.assertEqual(report["source"]["device"], "soft0")

    def test_the_device_nearest_to_chosen_memory_is_used(self):
        source = self.file("source", MIB)
        folder = self.folder / "board"
        folder.mkdir()
        (folder / "board.so").symlink_to(os.environ["BOARD_BACKEND"])
        # The location of the memory is known, and no device is named.
        environment = {"PIER_BACKEND_PATH": str(folder), "BOARD": "/0", "PIER_DEVICE": "",
                       "PIER_LOG": "info"}
        # Without an RDMA device there is no distance to tell.
        words = (r"(?m)^pier: info: the memory's distance from \S+: |"
                 r"^pier cp: no usable RDMA device")
        for option in ("--src-mem", "--dst-mem"):
            result = self.run_pier("cp", option, "board:0", source, "target",
                                   env=environment)
            self.assertEqual(result.status, 0, str(result))
            self.check_same(source, self.folder / "target")
            self.assertEqual(len(re.findall(words, result.stderr)), 1, result.stderr)
        result = self.run_pier("cp", "--src-mem", "board:0", "--device", "soft0", source,
                               "target", env=environment)
        self.assertEqual(result.status, 0, str(result))
        self.assertNotRegex(result.stderr, words)

    def test_unknown_memory_and_devices_are_refused(self):
        source = self.file("source", 1)
        for options, name in ((("--src-mem", "vram"), "vram"), (("--dst-mem", "vram"), "vram"),
                              (("--src-mem", "host:small"), "small"),
                              (("--dst-mem", "host:small"), "small"),
                              (("--device", "soft7"), "soft7"),
                              (("--remote-device", "soft7"), "soft7")):
            with self.subTest(options):
                self.refused(3, name, "cp", *options, source, "target")
                self.assertFalse((self.folder / "target").exists())

    def test_unavailable_memory_is_refused(self):
        memory = json.loads(self.run_pier("info", "--json").stdout)["memory"]
        missing = [m["name"] for m in memory if not m["available"]]
        if not missing:
            self.skipTest("every kind of memory is available here")
        self.file("source", 1)
        for name in missing:
            with self.subTest(name):
                self.refused(3, name, "cp", "--dst-mem", name, "source", "target")


class Output(Case):
    """The output of a copy."""

    def test_the_summary_is_one_line(self):
        self.file("source", 3 * MIB)
        line = self.copy("source", "target").stdout
        self.assertRegex(line, r"\A3145728 bytes in [\d.]+ s, [\d.]+ [KMG]?B/s, verified(?: as read)?: "
                               r"\w+ memory on soft0 \([\w-]+\) -> "
                               r"\w+ memory on soft0 \([\w-]+\)\n\Z")
        self.assertIn(" not verified:", self.copy("--no-verify", "source", "target").stdout)

    def test_quiet_prints_nothing(self):
        self.file("source", MIB)
        self.assertEqual(self.copy("-q", "source", "target").stdout, "")

    def test_json_describes_a_copy(self):
        self.file("source", MIB + 1)
        facts = json.loads(self.copy("--json", "source", "target").stdout)
        self.assertIs(facts["ok"], True)
        self.assertEqual(facts["bytes"], MIB + 1)
        self.assertIs(facts["verified"], True)
        self.assertEqual(facts["checksum"], "poly1305")
        for side, name in (("source", "source"), ("destination", "target")):
            self.assertIsNone(facts[side]["host"])
            self.assertEqual(facts[side]["file"], name)
            self.assertEqual(facts[side]["device"], "soft0")

    def test_json_describes_a_failure(self):
        result = self.run_pier("cp", "--json", 'no "such"\n', "target")
        facts = json.loads(result.stdout)
        self.assertEqual((result.status, facts["exit_status"], facts["ok"]), (1, 1, False))
        self.assertEqual(facts["source"]["file"], 'no "such"\n')
        self.assertIn("No such file", facts["error"])

    def test_verbose_copy_succeeds(self):
        self.file("source", MIB)
        result = self.run_pier("cp", "-v", "source", "target")
        self.assertEqual(result.status, 0)
        self.assertRegex(result.stdout, r"\Asource\n%d bytes " % MIB)
        self.assertNotIn("source\n", self.run_pier("cp", "-qv", "source", "target").stdout)
        self.assertEqual(self.run_pier("cp", "-nv", "source", "target").stdout, "source\n")
        lines = self.run_pier("cp", "--json", "-v", "source", "target").stdout.splitlines()
        self.assertEqual(json.loads(lines[0])["event"], "end")

    def terminal(self, columns, *options):
        """The output to a terminal of this width during a copy of about one second."""
        self.file("source", 2 * MIB)
        try:
            ours, theirs = pty.openpty()
        except OSError as error:
            self.skipTest("no pseudo-terminal can be opened here: %s" % error)
        subprocess.run(["stty", "cols", str(columns)], stdin=theirs, check=True)
        process = self.start("cp", "--bwlimit", "1500K", *options, "source", "target",
                             stderr=theirs)
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:
                break
        os.close(ours)
        self.assertEqual(self.finish(process).status, 0)
        return seen.decode()

    def test_the_progress_bar_fits_the_terminal(self):
        for columns in (20, 80, 200):
            with self.subTest(columns):
                seen = self.terminal(columns)
                frames = seen.split("\r\033[K")
                self.assertGreater(len(frames), 3)
                self.assertEqual((frames[0], frames[-1]), ("", ""), "the line is taken away")
                self.assertLess(max(map(len, frames)), columns)
                self.assertNotIn("\n", seen)
                self.assertEqual("#" in seen, columns >= 80)

    def test_quiet_hides_the_progress_bar(self):
        self.assertEqual(self.terminal(80, "-q"), "")


main()

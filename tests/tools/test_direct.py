#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp writes past the page cache where the file system allows it."""

import ctypes
import mmap
import os
import shutil

from harness import Case, MIB, main

LIBC = ctypes.CDLL(None, use_errno=True)
STATX_DIOALIGN = 0x2000
AT_FDCWD = -100


def has_direct_writes(path):
    """The kernel's answer, which is 0 for tmpfs: statx(2)."""
    result = ctypes.create_string_buffer(256)
    if LIBC.statx(AT_FDCWD, os.fsencode(path), 0, STATX_DIOALIGN, result) != 0:
        return False
    mask = int.from_bytes(result[0:4], "little")
    return bool(mask & STATX_DIOALIGN) and any(result[0x98:0xa0])


def cached_pages(path):
    """How many of a file's pages are in the page cache: mincore(2)."""
    size = os.stat(path).st_size
    pages = -(-size // mmap.PAGESIZE)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as memory:
        found = (ctypes.c_ubyte * pages)()
        start = (ctypes.c_char * size).from_buffer(memory)
        try:
            if LIBC.mincore(ctypes.byref(start), ctypes.c_size_t(size), found):
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            del start
        return sum(page & 1 for page in found)


class Direct(Case):
    def setUp(self):
        super().setUp()
        self.target = self.folder / "target"
        self.preloaded = shutil.copy(os.environ["URING_FAULT"], self.folder)
        self.target.write_bytes(b"")
        if not has_direct_writes(self.target):
            self.skipTest("the file system of %s has no direct writes" % self.folder)

    def fault(self, kind):
        if os.environ["SANITIZED"] == "yes":
            self.skipTest("a sanitizer's library must be the first")
        return {"LD_PRELOAD": str(self.preloaded), "URING_FAULT": kind}

    def test_the_page_cache_gets_no_copy(self):
        source = self.file("source", 8 * MIB)
        self.copy(source, self.target)
        cached = cached_pages(self.target)
        self.check_same(source, self.target)
        self.assertEqual(cached, 0)

    def test_sizes_around_a_block_are_copied(self):
        for size in (MIB - 1, MIB, MIB + 1, 2 * MIB - 4096, 3 * MIB + 4095, 5 * MIB + 4097):
            for options in ((), ("--chunk", "12K"), ("--chunk", "260K"), ("--chunk", "3M", "--threads", 3)):
                with self.subTest(size=size, options=options):
                    source = self.file("source", size)
                    self.copy(*options, source, self.target)
                    self.check_same(source, self.target)

    def test_many_threads_share_a_block(self):
        # A file of this size has one.
        source = self.file("source", 2 * MIB - 4096)
        for _ in range(5):
            self.copy("--chunk", "256K", "--threads", 8, source, self.target)
        self.check_same(source, self.target)

    def test_data_between_holes_is_copied(self):
        source = self.folder / "source"
        with open(source, "wb") as file:
            os.ftruncate(file.fileno(), 40 * MIB)
            for start in range(0, 40 * MIB, 4 * MIB):
                length = self.random.randrange(1, 3 * MIB)
                os.pwrite(file.fileno(), self.bytes(length), start + self.random.randrange(MIB))
        self.copy(source, self.target)
        self.check_same(source, self.target)

    def test_a_kernel_without_io_uring_is_no_obstacle(self):
        source = self.file("source", 4 * MIB + 3)
        self.copy(source, self.target, env=self.fault("refuse"))
        self.assertGreater(cached_pages(self.target), 0)
        self.check_same(source, self.target)

    def test_short_writes_are_completed(self):
        source = self.file("source", 20 * MIB + 3)
        self.copy(source, self.target, env=self.fault("short"))
        self.check_same(source, self.target)

    def test_a_failed_write_fails_the_copy(self):
        # More than the blocks hold, and less: the failure is found in both cases.
        for size in (2 * MIB, 40 * MIB):
            with self.subTest(size):
                self.target.write_text("old")
                self.refused(1, "cannot write .*target: Bad file descriptor", "cp",
                             self.file("source", size), self.target, env=self.fault("fail"))
                self.assertEqual(self.target.read_text(), "old")


main()

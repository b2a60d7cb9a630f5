#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp reads and writes past the page cache where the file system allows it."""

import contextlib
import ctypes
import mmap
import os
import resource
import tempfile

from harness import Case, MIB, main

LIBC = ctypes.CDLL(None, use_errno=True)
STATX_DIOALIGN = 0x2000
AT_FDCWD = -100


def has_direct_io(path):
    """The kernel's answer, which is no for tmpfs: statx(2)."""
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


def evict(path):
    """Write the file back, and drop its pages."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def keep_cached(path):
    """Read a file, and let the kernel keep its pages: mlock(2)."""
    size = os.stat(path).st_size
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as memory:
        start = (ctypes.c_char * size).from_buffer(memory)
        try:
            if LIBC.mlock(ctypes.byref(start), ctypes.c_size_t(size)):
                raise OSError(ctypes.get_errno(), "mlock")
            yield
        finally:
            del start


class DirectCase(Case):
    def setUp(self):
        super().setUp()
        self.target = self.folder / "target"
        self.target.write_bytes(b"")
        if not has_direct_io(self.target):
            self.skipTest("the file system of %s has no direct reads and writes" % self.folder)

    def fault(self, kind):
        if os.environ["SANITIZED"] == "yes":
            self.skipTest("a sanitizer's library must be the first")
        return self.preload("DIRECT_FAULT", DIRECT_FAULT=kind)


class Writes(DirectCase):
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



class Reads(DirectCase):
    def evicted(self, name, size):
        source = self.file(name, size)
        evict(source)
        self.assertEqual(cached_pages(source), 0)
        return source

    def copied(self, *sources, **options):
        """Copy the sources. Returns the bytes that were read from disks: getrusage(2)."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
        self.copy(*sources, **options)
        return (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) * 512

    def test_the_page_cache_gets_no_copy(self):
        for size in (MIB, 8 * MIB + 4096 + 7):
            for options in ((), ("--chunk", "320K"), ("--chunk", "3M", "--threads", 3)):
                with self.subTest(size=size, options=options):
                    source = self.evicted("source", size)
                    read = self.copied(*options, source, self.target)
                    self.assertGreaterEqual(read, size - mmap.PAGESIZE)
                    # The last page: its end is not aligned, or the file's end was looked at.
                    self.assertLessEqual(cached_pages(source), 1)
                    self.check_same(source, self.target)

    def test_memory_of_a_backend_gets_the_bytes_from_private_memory(self):
        source = self.evicted("source", 4 * MIB)
        folder = self.folder / "board"
        folder.mkdir()
        (folder / "board.so").symlink_to(os.environ["BOARD_BACKEND"])
        self.copy("--src-mem", "board", source, self.target,
                  env={"PIER_BACKEND_PATH": str(folder), "BOARD": "/0"})
        self.assertLessEqual(cached_pages(source), 1)
        self.check_same(source, self.target)

    def test_large_files_of_a_tree_leave_no_pages(self):
        tree = self.folder / "tree"
        tree.mkdir()
        for i, size in enumerate((5, 3 * MIB, 100, 2 * MIB + 8192, MIB - 1, 4 * MIB, 0)):
            self.file("tree/%d" % i, size)
        large = [tree / n for n in ("1", "3", "5")]
        for file in large:
            evict(file)
        self.copy("-r", tree, self.folder / "copy")
        # Less than 256 KiB is not read directly: a file's end, or a part of a chunk that goes
        # around the end of the stream's memory.
        self.assertLess(max(cached_pages(file) for file in large), 64)
        for file in tree.iterdir():
            self.check_same(file, self.folder / "copy" / file.name)

    def test_cached_bytes_are_not_read_again(self):
        """Not by getrusage(2), which also counts what the program and its libraries page in."""
        fault = self.fault("exit_on_reads")
        source = self.evicted("source", 2 * MIB)
        self.assertEqual(self.run_pier("cp", source, self.target, env=fault).status, 99)
        with keep_cached(source):
            self.copy(source, self.target, env=fault)
        self.check_same(source, self.target)

    def test_bytes_that_are_not_on_the_disk_yet_are_read(self):
        source = self.evicted("source", 8 * MIB)
        with open(source, "r+b") as file:
            for offset in range(0, 8 * MIB, MIB):
                os.pwrite(file.fileno(), self.bytes(5000), offset + 300000)
        self.copy(source, self.target)
        self.check_same(source, self.target)

    def test_a_refused_read_takes_the_page_cache(self):
        source = self.evicted("source", 4 * MIB + 3)
        self.copy(source, self.target, env=self.fault("refuse_reads"))
        # The kernel may drop some again at any time.
        self.assertGreater(cached_pages(source), 2 * MIB // mmap.PAGESIZE)
        self.check_same(source, self.target)

    def test_short_reads_are_completed(self):
        source = self.evicted("source", 4 * MIB + 3)
        self.copy(source, self.target, env=self.fault("short_reads"))
        self.check_same(source, self.target)

    def test_a_source_without_direct_reads_is_copied(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as source:
            source.write(self.bytes(4 * MIB + 3))
            source.flush()
            self.assertFalse(has_direct_io(source.name))
            self.copy(source.name, self.target)
            self.check_same(source.name, self.target)


main()

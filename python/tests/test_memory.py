# SPDX-License-Identifier: BSD-3-Clause
"""Buffers, dma-bufs, and the registration of the memory of any object."""

import array
import ctypes
import gc
import mmap
import os
import sys
import threading
import unittest
import weakref

import pier
from pier import Access
from channels import ChannelCase
from support import PATIENCE, Case, module_or_skip, open_fds

ROUNDS = 10000


class Buffers(Case):
    def test_a_new_buffer_is_zero_and_has_its_length(self):
        for memory in ("host", "memfd"):
            buffer = self.buffer(5000, memory)
            self.assertEqual((len(buffer), buffer.memory), (5000, memory))
            self.assertEqual(bytes(buffer), bytes(5000))
            self.assertEqual(buffer.info.backend, memory)
            self.assertFalse(buffer.info.wrapped)

    def test_bytes_are_copied_both_ways(self):
        buffer, into = self.buffer(), bytearray(8)
        buffer.copy_to(3, b"hello")
        self.assertEqual(buffer.copy_from(2, 7), b"\0hello\0")
        self.assertIsNone(buffer.copy_from(3, memoryview(into)[1:6]))
        self.assertEqual(into, b"\0hello\0\0")
        buffer.copy_to(0, array.array("I", [1, 2]))
        self.assertEqual(buffer.copy_from(0, 8), b"\1\0\0\0\2\0\0\0")
        self.assertEqual(buffer.copy_from(4096, 0), b"")

    def test_copies_out_of_range_change_nothing(self):
        buffer = self.buffer()
        for copy in (lambda: buffer.copy_to(4095, b"xy"), lambda: buffer.copy_to(1 << 63, b"x"),
                     lambda: buffer.copy_from(4095, 2), lambda: buffer.copy_from(0, 1 << 63),
                     lambda: buffer.copy_from(5000, bytearray(1)), lambda: buffer.export(4096, 1)):
            with self.assertRaises(pier.OutOfRange):
                copy()
        self.assertEqual(bytes(buffer), bytes(4096))

    def test_wrong_types_are_refused(self):
        buffer = self.buffer()
        for call in (lambda: buffer.copy_to(0, "text"), lambda: buffer.copy_to(0.5, b""),
                     lambda: buffer.copy_from(0, "text"), lambda: pier.Buffer("memfd"),
                     lambda: pier.Buffer(3, 3), lambda: pier.Buffer("memfd", 1.5),
                     lambda: pier.Buffer.from_dmabuf("x", 0, 1), lambda: pier.Buffer.wrap(3)):
            with self.assertRaises(TypeError):
                call()
        with self.assertRaises(BufferError):
            buffer.copy_from(0, b"read-only")
        with self.assertRaises(OverflowError):
            buffer.copy_to(-1, b"")

    def test_impossible_buffers_are_refused(self):
        for memory, length, error in (("memfd", 0, pier.Invalid), ("memfd", 1 << 62, pier.NoMemory),
                                      ("nonsense", 1, pier.NoDevice)):
            with self.assertRaises(error):
                pier.Buffer(memory, length)

    def test_exports_keep_a_buffer_open(self):
        buffer = pier.Buffer("memfd", 4096)
        window = memoryview(buffer)
        with self.assertRaisesRegex(pier.Busy, r"users \(1\)"):
            buffer.close()
        window[0] = 7
        window.release()
        self.assertEqual(buffer.copy_from(0, 1), b"\7")
        buffer.close()
        buffer.close()
        for use in (lambda: len(buffer), lambda: memoryview(buffer), lambda: buffer.view(),
                    lambda: buffer.address, lambda: buffer.info, lambda: buffer.copy_from(0, 1),
                    buffer.export, buffer.__dlpack__, buffer.__dlpack_device__,
                    lambda: buffer.copy_to(0, b""), lambda: self.pd.register(buffer)):
            with self.assertRaisesRegex(ValueError, "the buffer is closed"):
                use()

    def test_a_buffer_wraps_an_object_and_keeps_it(self):
        memory = bytearray(100)
        buffer = pier.Buffer.wrap(memory)
        buffer.copy_to(1, b"x")
        self.assertEqual(memory[1:2], b"x")
        self.assertTrue(buffer.info.wrapped)
        with self.assertRaises(BufferError):
            memory.append(1)
        buffer.close()
        memory.append(1)

    def test_a_wrapped_buffer_of_bytes_is_read_only(self):
        buffer = pier.Buffer.wrap(bytes(64))
        self.assertTrue(memoryview(buffer).readonly)
        self.assertTrue(memoryview(buffer.view((8,), "int64")).readonly)
        with self.assertRaises(pier.AccessDenied):
            buffer.copy_to(0, b"x")
        with self.assertRaises(pier.AccessDenied):
            self.pd.register(buffer)
        self.pd.register(buffer, access=Access.REMOTE_READ).close()

    def test_dmabuf_of_a_buffer_has_its_bytes(self):
        buffer = self.buffer(3 * 4096)
        with buffer.export(4096 + 5, 100) as dmabuf:
            self.assertEqual(dmabuf.length, 100)
            self.assertEqual(dmabuf.iova, buffer.address + 4096 + 5)
            with self.assertRaises(pier.Busy):
                buffer.close()
            with pier.Buffer.from_dmabuf(dmabuf, dmabuf.offset, dmabuf.length) as other:
                other.copy_to(0, b"hello")
            with self.pd.register(dmabuf, offset=5) as region:
                self.assertEqual((region.address, len(region)), (dmabuf.iova + 5, 95))
        self.assertEqual(buffer.copy_from(4096 + 5, 5), b"hello")
        with self.assertRaisesRegex(ValueError, "the dma-buf is closed"):
            dmabuf.fileno()

    def test_closed_fds_are_refused(self):
        with self.assertRaises(pier.Error):
            pier.Buffer.from_dmabuf(1 << 20, 0, 1)

    def test_udmabuf_registers_as_a_dmabuf(self):
        if not os.path.exists("/dev/udmabuf"):
            self.skipTest("no /dev/udmabuf: modprobe udmabuf")
        buffer = self.buffer(1 << 20, "udmabuf")
        with self.pd.register(buffer) as region, buffer.export() as dmabuf:
            self.assertEqual((region.path, dmabuf.length), ("dma-buf", 1 << 20))
            with pier.Buffer.from_dmabuf(dmabuf, 0, 1 << 20) as other:
                memoryview(other)[:5] = b"hello"
        self.assertEqual(buffer.copy_from(0, 5), b"hello")


class Registrations(Case):
    def test_plain_buffers_register_at_their_address(self):
        for memory in (bytearray(100), memoryview(bytearray(100))[10:90], mmap.mmap(-1, 4096),
                       array.array("d", [1, 2, 3]), (ctypes.c_char * 100)()):
            with memoryview(memory) as window, self.pd.register(memory) as region:
                address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
                self.assertEqual((region.address, len(region)), (address, window.nbytes))
                self.assertEqual((region.path, region.access, region.parts), ("host", Access.SHARED, 1))
                self.assertEqual((region.reason, region.pd), ("", self.pd))
                self.assertEqual(region.remote.parts[0][:2], (address, window.nbytes))

    def test_a_part_of_the_memory_can_be_registered(self):
        memory = bytearray(100)
        with self.pd.register(memory, offset=10, length=20) as region, \
                self.pd.register(memory, offset=10) as rest:
            self.assertEqual(len(region), 20)
            self.assertEqual((rest.address, len(rest)), (region.address, 90))
        for part in ({"offset": 101}, {"length": 101}, {"offset": 90, "length": 11},
                     {"offset": (1 << 64) - 1, "length": 2}):
            with self.assertRaises(pier.OutOfRange):
                self.pd.register(memory, **part)

    def test_buffers_and_views_register_as_a_dmabuf(self):
        buffer = self.buffer(8192)
        view = buffer.view((10, 4), "float32", offset=100)
        for memory, offset, length in ((buffer, 0, 8192), (view, 100, 160),
                                       (memoryview(buffer)[5:10], 5, 5)):
            with self.pd.register(memory) as region:
                self.assertEqual((region.address, len(region)), (buffer.address + offset, length))
                self.assertEqual(region.path, "dma-buf")
        del view, memory

    def test_memory_without_bytes_is_refused(self):
        for memory in (b"", bytearray(), memoryview(bytearray(5))[5:], self.buffer().view((0,))):
            with self.assertRaises(pier.Invalid):
                self.pd.register(memory, access=Access.REMOTE_READ)
        del memory

    def test_memory_that_is_not_contiguous_is_refused(self):
        memory = memoryview(bytearray(100))
        for part in (memory[::2], memory[::-1]):
            with self.assertRaisesRegex(pier.Invalid, "not contiguous"):
                self.pd.register(part)

    def test_memory_of_references_to_objects_is_refused(self):
        class Record(ctypes.Structure):
            _fields_ = [("O", ctypes.c_int), ("reference", ctypes.py_object)]

        class Plain(ctypes.Structure):
            _fields_ = [("O", ctypes.c_int)]

        for kind in (ctypes.py_object, Record):
            with self.assertRaisesRegex(pier.Invalid, "references to Python objects"):
                self.pd.register((kind * 2)())
        self.pd.register((Plain * 2)()).close()

    def test_read_only_memory_needs_an_access_without_writes(self):
        for memory in (bytes(100), memoryview(bytearray(100)).toreadonly(), mmap.mmap(-1, 4096, prot=mmap.PROT_READ)):
            for access in (Access.SHARED, Access.LOCAL_WRITE, Access.REMOTE_ATOMIC | Access.LOCAL_WRITE):
                with self.assertRaisesRegex(pier.AccessDenied, "read-only"):
                    self.pd.register(memory, access=access)
            with self.pd.register(memory, access=Access.REMOTE_READ) as region:
                self.assertEqual(region.access, Access.REMOTE_READ)

    def test_hints_are_passed_on(self):
        cpu = min(os.sched_getaffinity(0))
        memory = bytearray(100)
        for hint in ("bidirectional", "requester", "target", "target-priority"):
            self.pd.register(memory, tph=hint).close()
            self.pd.register(memory, tph=hint, tph_cpu=cpu).close()
            with self.assertRaisesRegex(pier.Error, "may not run on CPU 1048576"):
                self.pd.register(memory, tph=hint, tph_cpu=1 << 20)
        self.pd.register(memory, tph="none", tph_cpu=1 << 20, cached=True).close()
        with self.assertRaisesRegex(pier.Invalid, "tph and cached"):
            self.pd.register(memory, tph="target", cached=True)
        with self.assertRaisesRegex(pier.Invalid, "tph"):
            self.pd.register(memory, tph="soon")
        with self.assertRaisesRegex(pier.Invalid, "tph_cpu -2"):
            self.pd.register(memory, tph="target", tph_cpu=-2)

    def test_wrong_types_are_refused(self):
        for memory in (3, "text", None, object(), [1, 2], self.pd):
            with self.assertRaises(TypeError):
                self.pd.register(memory)
        for keywords in ({"offset": "x"}, {"length": 1.5}, {"access": "x"}, {"policy": 3}, {"other": 1}):
            with self.assertRaises(TypeError):
                self.pd.register(bytearray(10), **keywords)
        with self.assertRaisesRegex(pier.Invalid, "policy"):
            self.pd.register(bytearray(10), policy="best")
        with self.assertRaises(pier.Invalid):
            self.pd.register(bytearray(10), access=1 << 30)

    def test_a_region_keeps_its_memory(self):
        memory = bytearray(100)
        region = self.pd.register(memory)
        with self.assertRaises(BufferError):
            memory.append(1)
        region.close()
        memory.append(1)

    def test_a_buffer_with_regions_is_busy(self):
        buffer = pier.Buffer("memfd", 4096)
        region = self.pd.register(buffer)
        with self.assertRaisesRegex(pier.Busy, "1 region"):
            buffer.close()
        del buffer
        gc.collect()
        self.assertEqual(len(region), 4096)
        region.close()

    def test_a_closed_region_refuses_everything(self):
        region = self.pd.register(bytearray(100))
        region.close()
        region.close()
        for use in (lambda: len(region), lambda: region.address, lambda: region[0:1], lambda: region.path,
                    region.sync_for_nic, region.sync_for_device, lambda: region.remote):
            with self.assertRaisesRegex(ValueError, "the region is closed"):
                use()

    def test_syncs_are_for_ranges_of_the_region(self):
        with self.pd.register(bytearray(100)) as region:
            for sync in (region.sync_for_nic, region.sync_for_device):
                sync()
                sync(10, 90)
                sync(offset=100)
                with self.assertRaises(pier.OutOfRange):
                    sync(10, 91)

    def test_bounce_copies_only_when_synchronised(self):
        memory = bytearray(4096)
        with self.pd.register(memory, policy="bounce") as region:
            self.assertEqual(region.path, "host")

    def test_registration_fails_as_the_library_does(self):
        with pier.ProtectionDomain("fault:reg@1=ENOMEM:soft0") as domain:
            memory = bytearray(100)
            with self.assertRaises(pier.NoMemory):
                domain.register(memory)
            memory.append(1)
            domain.register(memory).close()

    def test_a_failed_close_leaves_the_region_open(self):
        memory = bytearray(100)
        with pier.ProtectionDomain("fault:dereg_mr@1=EIO:soft0") as domain:
            region = domain.register(memory)
            with self.assertRaises(pier.Error):
                region.close()
            with self.assertRaises(BufferError):
                memory.append(1)
            region.close()
            memory.append(1)


class Cached(ChannelCase):
    """Registrations that the domain keeps after close()."""

    def key(self, memory, **options):
        with self.pd.register(memory, cached=True, **options) as region:
            return region.remote.parts[0][2]

    def test_a_kept_registration_serves_parts_of_its_memory(self):
        buffer = self.buffer(8192)
        whole = self.pd.register(buffer, cached=True)
        remote = whole.remote
        whole.close()
        with self.pd.register(buffer.view(100, offset=4096), access=Access.REMOTE_READ, cached=True) as part:
            self.assertEqual(part.remote, remote[4096:4196])
            self.assertEqual((len(part), part.access), (100, Access.REMOTE_READ))
            self.assertEqual(part.address, remote.parts[0][0] + 4096)
            self.assertIn("100 bytes", repr(part))
            part.sync_for_nic(0, 100)
            for wrong in (lambda: part[0:101], lambda: part.sync_for_nic(1, 100)):
                with self.assertRaises(pier.OutOfRange):
                    wrong()
        self.assertEqual(self.key(buffer), remote.parts[0][2])
        with self.pd.register(buffer) as region:
            self.assertNotEqual(region.remote.parts[0][2], remote.parts[0][2])

    def test_requests_stay_in_their_part(self):
        buffer = self.buffer(8192)
        self.key(buffer)
        with self.pd.register(buffer, offset=4096, length=100, cached=True) as part:
            self.near.read(part[10:20], self.far_region.remote[:10])
            self.far.write(self.far_region[10:20], part.remote[20:30])
        self.assertEqual(buffer.copy_from(0, 8192),
                         bytes(4106) + bytes(self.far_bytes[:20]) + bytes(8192 - 4126))

    def test_freed_memory_is_registered_again(self):
        buffer = pier.Buffer("memfd", 4096)
        with self.pd.register(buffer, cached=True) as region:
            before = region.remote.parts[0][2]
            with self.assertRaisesRegex(pier.Busy, "registration cache"):
                buffer.close()
        buffer.close()
        self.assertNotEqual(self.key(self.buffer()), before)

    def test_arrays_of_the_host_are_cached_or_registered(self):
        memory = mmap.mmap(-1, 1 << 16)
        for _ in range(3):
            with self.pd.register(memory, cached=True) as region:
                self.far.write(self.far_region[:16], region.remote[:16])
            self.assertEqual(memory[:16], self.far_bytes[:16])
            self.far_bytes[:16] = os.urandom(16)
        memory.close()

    def test_more_access_is_not_handed_on(self):
        buffer = self.buffer()
        self.key(buffer, access=Access.SHARED)
        with self.pd.register(buffer, access=Access.LOCAL_READ, cached=True) as region:
            with self.assertRaisesRegex(pier.AccessDenied, "no remote access"):
                region.remote

    def test_policies_are_apart(self):
        buffer = self.buffer()
        keys = {self.key(buffer, policy=policy) for policy in ("direct", "any", "direct", "any")}
        self.assertEqual(len(keys), 2)

    def test_a_domain_in_use_stays_open(self):
        domain = pier.ProtectionDomain(self.device)
        region = domain.register(bytearray(100), cached=True)
        with self.assertRaises(pier.Busy):
            domain.close()
        region.close()
        domain.register(bytearray(100), cached=True).close()
        domain.close()

    def test_a_dma_buf_is_found_by_its_file(self):
        buffer = self.buffer(8192)
        with buffer.export() as dmabuf:
            before = self.key(dmabuf)
        with buffer.export(4096) as dmabuf, self.pd.register(dmabuf, offset=10, length=100, cached=True) as part:
            self.assertEqual((part.remote.parts[0][2], part.address), (before, 4106))
            self.far.write(self.far_region[:16], part.remote[:16])
        self.assertEqual(buffer.copy_from(4106, 16), bytes(self.far_bytes[:16]))

    def test_what_cannot_be_cached_is_refused(self):
        with self.assertRaisesRegex(pier.AccessDenied, "read-only"):
            self.pd.register(b"constant", cached=True)

    def test_memory_that_a_nic_may_use_is_not_released(self):
        # Of a mapped file, which cannot be watched: close() deregisters it.
        constant = ctypes.c_ulong.in_dll(ctypes.pythonapi, "Py_Version")
        alive = weakref.ref(constant)
        with pier.ProtectionDomain("fault:dereg_mr@1=EIO:soft0") as domain:
            region = domain.register(constant, access=Access.REMOTE_READ, cached=True)
            with self.assertRaises(pier.Error):
                region.close()
            self.assertTrue(region.closed)
            region.close()
            del region, constant
            gc.collect()
            self.assertIsNotNone(alive())

    def test_a_child_has_no_use_for_them(self):
        region = self.pd.register(self.buffer(), cached=True)
        self.addCleanup(region.close)
        self.assertIn("Forked", self.in_child(lambda: self.pd.register(bytearray(100), cached=True)))
        self.assertIn("Forked", self.in_child(region.close))


class Cycles(Case):
    def test_an_array_that_holds_its_region_is_collected(self):
        numpy = module_or_skip("numpy")

        class Array(numpy.ndarray):
            pass

        def wrap(memory):
            return pier.Buffer.wrap(memory)

        for make in (self.pd.register, wrap, lambda memory: wrap(memory).view(),
                     lambda memory: self.pd.register(memory)[0:1], lambda memory: self.pd.register(wrap(memory)),
                     lambda memory: self.pd.register(wrap(memory).view())):
            memory = numpy.zeros(100).view(Array)
            memory.holder = make(memory)
            seen = weakref.ref(memory)
            del memory
            gc.collect()
            self.assertIsNone(seen())


def is_sanitized():
    with open("/proc/self/maps") as maps:
        return "libasan" in maps.read()


def resident_bytes():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * mmap.PAGESIZE


class Leaks(Case):
    """10,000 rounds leave neither memory, nor fds, nor references."""

    def check_rounds(self, function, rounds=ROUNDS):
        def growth():
            before = sys.getallocatedblocks(), resident_bytes()
            for _ in range(rounds):
                function()
            gc.collect()
            return sys.getallocatedblocks() - before[0], resident_bytes() - before[1]

        # At first, what Python keeps for reuse grows.
        growth()
        before = open_fds(), pier.live_objects()
        # It may grow once more, but what leaks grows each time.
        grown = [growth()]
        while len(grown) < 3 and grown[-1][0] >= rounds // 2:
            grown.append(growth())
        self.assertLess(grown[-1][0], rounds // 2, grown)
        # An allocator that keeps freed memory for its reports grows without a leak.
        if not is_sanitized():
            self.assertLess(grown[-1][1], 100 * rounds, grown)
        self.assertEqual((open_fds(), pier.live_objects()), before)

    def test_registrations(self):
        memory, buffer = bytearray(4096), self.buffer()
        for source in (memory, buffer):
            references = sys.getrefcount(source)
            self.check_rounds(lambda: self.pd.register(source).close())
            self.check_rounds(lambda: self.pd.register(source))
            self.assertEqual(sys.getrefcount(source), references)

    def test_buffers(self):
        memory = bytearray(4096)
        references = sys.getrefcount(memory)
        self.check_rounds(lambda: pier.Buffer.wrap(memory))
        self.check_rounds(lambda: pier.Buffer("memfd", 4096).copy_to(0, b"x"), ROUNDS // 10)
        self.assertEqual(sys.getrefcount(memory), references)

    def test_views_and_exports(self):
        buffer = self.buffer()
        references = sys.getrefcount(buffer)
        self.check_rounds(lambda: memoryview(buffer.view((4, 8), "float32", 64)).tolist())
        self.check_rounds(lambda: buffer.__dlpack__(max_version=(1, 0)))
        self.check_rounds(lambda: buffer.__dlpack__())
        self.check_rounds(lambda: buffer.export().close())
        self.assertEqual(sys.getrefcount(buffer), references)

    def test_values(self):
        with self.pd.register(bytearray(4096)) as region:
            references = sys.getrefcount(region)
            self.check_rounds(lambda: region[1:100][2:3])
            self.check_rounds(lambda: pier.Remote.from_text(str(region.remote[5:10])).parts)
            self.assertEqual(sys.getrefcount(region), references)

    def test_domains(self):
        def work():
            with pier.Device("soft0") as device, pier.ProtectionDomain(device) as domain:
                domain.register(bytearray(64))[0:1]
                return device.attributes, device.port()
        self.check_rounds(work, ROUNDS // 10)

    def test_refusals(self):
        buffer, memory = self.buffer(), bytearray(100)
        readonly = pier.Buffer.wrap(bytes(64))

        def refused(*call):
            try:
                call[0](*call[1:])
            except (pier.Error, TypeError, ValueError, BufferError, OverflowError):
                return
            self.fail("not refused")

        def work():
            refused(self.pd.register, memoryview(memory)[::2])
            refused(self.pd.register, readonly)
            refused(self.pd.register, object())
            refused(pier.Remote, [(1, 2, 3), (1, 2)])
            refused(pier.Remote.from_bytes, memory)
            refused(buffer.view, (5, 5000))
            refused(buffer.view, (5, None))
            refused(readonly.__dlpack__)
            refused(buffer.copy_from, 5000, memory)
            refused(pier.Buffer, "nonsense", 5)
        self.check_rounds(work, ROUNDS // 5)

    def test_close_during_use_is_refused_and_not_lost(self):
        """Threads register and close the same buffer: only clear errors come out."""
        buffer, failures = pier.Buffer("memfd", 1 << 20), []
        stop = threading.Event()

        def work():
            try:
                while not stop.is_set():
                    try:
                        self.pd.register(buffer).close()
                        buffer.copy_from(0, 1 << 19)
                    except ValueError as error:
                        if "closed" not in str(error):
                            raise
                        return
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(2000):
            try:
                buffer.close()
                break
            except pier.Busy:
                continue
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        buffer.close()
        self.assertEqual(failures, [])


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: BSD-3-Clause
"""Memory of every kind on the device that PIER_DEVICE names: the bytes that a NIC reads and writes."""

import os
import unittest

import pier
from channels import ChannelCase
from support import module_or_skip

LENGTH = 3 << 16
PAGE = 1 << 14  # of any machine that tests run on
GUARD = 100


class Host(ChannelCase):
    DEVICE = os.environ.get("PIER_DEVICE") or "soft0"
    MEMORY = "host"

    def setUp(self):
        if self.DEVICE not in [device.name for device in pier.devices()]:
            self.skipTest("no device %s here" % self.DEVICE)
        name = self.MEMORY.split(":")[0]
        backend = next(backend for backend in pier.backends() if backend.name == name)
        if not backend.available:
            self.skipTest("%s: %s" % (name, backend.detail))
        super().setUp()
        self.source, self.target = self.buffer(LENGTH, self.MEMORY), self.buffer(LENGTH, self.MEMORY)
        self.source.copy_to(0, os.urandom(LENGTH))

    def check_path(self, region):
        """Overridden for memory that must not be reached in another way."""

    def test_bytes_are_written_and_read(self):
        with self.pd.register(self.source) as local, self.pd.register(self.target) as there:
            self.check_path(local)
            self.near.write(local[:-GUARD], there.remote[GUARD:])
            self.assertEqual(bytes(self.target), bytes(GUARD) + bytes(self.source)[:-GUARD])
            self.near.read(local[:GUARD], there.remote[2 * GUARD:3 * GUARD])
            self.assertEqual(bytes(self.source)[:GUARD], bytes(self.target)[2 * GUARD:3 * GUARD])

    def test_views_are_written_in_place(self):
        view = self.target.view((100, 8), "float32", offset=PAGE)
        with self.pd.register(self.source) as local, self.pd.register(view) as there:
            self.check_path(there)
            self.near.write(local[:len(there)], there.remote)
        self.assertEqual(bytes(view), self.source.copy_from(0, view.nbytes))
        end = view.offset + view.nbytes
        self.assertEqual(bytes(self.target)[:PAGE], bytes(PAGE))
        self.assertEqual(bytes(self.target)[end:], bytes(LENGTH - end))
        del view

    def test_arrays_see_what_the_nic_writes(self):
        numpy = module_or_skip("numpy")
        array = numpy.asarray(self.target.view((LENGTH // 8,), "uint64"))
        with self.pd.register(self.source) as local, self.pd.register(array) as there:
            self.check_path(there)
            self.near.write(local, there.remote)
        self.assertEqual(array.tobytes(), bytes(self.source))
        del array


class Memfd(Host):
    MEMORY = "memfd"


class Udmabuf(Host):
    MEMORY = "udmabuf"

    def check_path(self, region):
        self.assertEqual(region.path, "dma-buf")

    def test_dmabufs_are_written_in_place(self):
        with self.target.export(PAGE, 2 * PAGE) as dmabuf:
            there = self.pd.register(dmabuf)
        with there, self.pd.register(self.source) as local:
            self.near.write(local[:2 * PAGE], there.remote)
        self.assertEqual(bytes(self.target),
                         bytes(PAGE) + self.source.copy_from(0, 2 * PAGE) + bytes(LENGTH - 3 * PAGE))

    def test_dmabufs_of_others_are_buffers(self):
        with self.target.export() as dmabuf, pier.Buffer.from_dmabuf(dmabuf, PAGE, PAGE) as other:
            with self.pd.register(self.source) as local, self.pd.register(other) as there:
                self.check_path(there)
                self.near.write(local[:PAGE], there.remote)
            self.assertEqual(bytes(other), self.source.copy_from(0, PAGE))
        self.assertEqual(self.target.copy_from(PAGE, PAGE), self.source.copy_from(0, PAGE))


class DmaHeap(Udmabuf):
    MEMORY = "dma_heap:system"


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: BSD-3-Clause
"""Memory of GPUs, with the fake drivers that LD_LIBRARY_PATH leads to."""

import ctypes
import os
import unittest

import pier
from channels import connect_pair
from support import PATIENCE, Case, module_or_skip
from test_arrays import Producer, delete_on_foreign_thread, take

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED, ONEAPI = 1, 2, 3, 10, 11, 13, 14


def available(name):
    return next(backend for backend in pier.backends() if backend.name == name).available


class Gpu(Case):
    memory = "cuda"

    def setUp(self):
        if "fakes" not in os.environ.get("LD_LIBRARY_PATH", ""):
            self.skipTest("LD_LIBRARY_PATH does not lead to the fake drivers")
        self.assertTrue(available(self.memory))
        # The first use of a driver keeps fds until the process ends.
        pier.warm_up(self.memory + ":0")
        super().setUp()


class Cuda(Gpu):
    def test_memory_of_a_device_is_that_of_dlpack(self):
        for memory, name, device in (("cuda:0", "cuda:0", (CUDA, 0)), ("cuda:1", "cuda:1", (CUDA, 1)),
                                     ("cuda:1:vmm", "cuda:1", (CUDA, 1)), ("cuda:0:host", "cuda:0", (CUDA_HOST, 0))):
            buffer = self.buffer(1 << 16, memory)
            view = buffer.view((4, 8), "bfloat16", 256)
            self.assertEqual(buffer.memory, name)
            self.assertEqual(buffer.__dlpack_device__(), device)
            for version in (None, (1, 0)):
                for stream in (None, 1, 2, -1):
                    managed = take(view.__dlpack__(max_version=version, stream=stream, dl_device=device), version)
                    self.assertEqual((managed.tensor.device_type, managed.tensor.device_id), device)
                    self.assertEqual(managed.tensor.data, view.address)
                    delete_on_foreign_thread(managed)
            with self.assertRaises(BufferError):
                view.__dlpack__(dl_device=(CPU, 0))
            del view

    def test_memory_of_a_device_is_not_that_of_the_cpu(self):
        buffer = self.buffer(1 << 16, "cuda:0")
        with self.assertRaisesRegex(BufferError, "CPU"):
            memoryview(buffer)
        with self.assertRaisesRegex(BufferError, "CPU"):
            memoryview(buffer.view((4,), "float32"))
        buffer.copy_to(5, b"hello")
        self.assertEqual(buffer.copy_from(4, 7), b"\0hello\0")
        self.assertFalse(buffer.info.mappable)
        memoryview(self.buffer(4096, "cuda:0:host"))[:2] = b"ab"

    def test_short_requests_are_not_copied_by_the_cpu(self):
        near, far = pier.Channel(self.pd, max_inline=64, timeout=PATIENCE), pier.Channel(self.pd, timeout=PATIENCE)
        for channel in (near, far):
            self.addCleanup(channel.close)
        connect_pair(near, far)
        for memory in ("cuda:0", "cuda:1:vmm"):
            source, target = self.buffer(1 << 16, memory), self.buffer(1 << 16, "cuda:0")
            source.copy_to(0, b"hello GPU" + bytes(range(200)))
            expected = source.copy_from(0, 80)
            with self.pd.register(source) as local, self.pd.register(target) as other:
                near.write(local[:9], other.remote[:9])
                near.write([local[9:12], local[12:20]], other.remote[9:20])
                near.post_writes([(local[20:24], other.remote[20:24])]).wait()
                near.post_write(local[24:30], other.remote[24:30]).wait()
                message = far.post_recv(other[30:40])
                near.send(local[30:40])
                message.wait()
                pier.Transfer(pier.Rail(near, local[:80], other.remote[:80]), chunk=50).wait()
                self.assertEqual(target.copy_from(0, 80), expected)

    def test_numpy_refuses_memory_of_a_device(self):
        numpy = module_or_skip("numpy")
        with self.assertRaises((RuntimeError, BufferError)):
            numpy.from_dlpack(self.buffer(1 << 16, "cuda:0"))
        for memory in self.buffer(64, "cuda:0"), self.buffer(64, "cuda:0").view(16, "float32"):
            with self.assertRaises(BufferError):
                numpy.asarray(memory)
        self.assertEqual(numpy.from_dlpack(self.buffer(1 << 16, "cuda:0:host")).nbytes, 1 << 16)

    def test_buffers_register_as_a_dmabuf(self):
        buffer = self.buffer(1 << 16, "cuda:1")
        view = buffer.view((1000,), "float32", 4096)
        for memory, address, length in ((buffer, buffer.address, 1 << 16), (view, view.address, 4000)):
            with self.pd.register(memory, policy="direct") as region:
                self.assertEqual((region.path, region.address, len(region)), ("dma-buf", address, length))
                region.sync_for_nic()
                region.sync_for_device()
        del view, memory

    def test_arrays_of_others_register_as_a_dmabuf(self):
        buffer = self.buffer(1 << 16, "cuda:1")
        view = buffer.view((1000,), "float32", 4096)

        class Array:
            __cuda_array_interface__ = view.__cuda_array_interface__

        for array in (Producer(view), Array()):
            with self.pd.register(array, policy="direct", offset=1000) as region:
                self.assertEqual((region.path, region.address, len(region)), ("dma-buf", view.address + 1000, 3000))
            with pier.Buffer.wrap(array) as wrapped:
                self.assertEqual((wrapped.memory, wrapped.__dlpack_device__()), ("cuda:1", (CUDA, 1)))
                self.assertEqual(wrapped.address, view.address)
        del view, array, Array.__cuda_array_interface__

    def test_cuda_array_interface_describes_a_view(self):
        buffer = self.buffer(1 << 16, "cuda:0")
        view = buffer.view((4, 8), "float32", 256)
        self.assertEqual(view.__cuda_array_interface__, {
            "shape": (4, 8), "typestr": "<f4", "data": (view.address, False), "strides": None, "stream": None,
            "version": 3})
        self.assertEqual(buffer.__cuda_array_interface__["shape"], (1 << 16,))
        self.assertFalse(hasattr(buffer.view((4,), "bfloat16"), "__cuda_array_interface__"))
        del view

    def test_managed_memory_has_its_own_device(self):
        driver = ctypes.CDLL("libcuda.so.1")
        address = ctypes.c_uint64()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.assertEqual(driver.cuInit(0), 0)
        self.assertEqual(driver.cuDeviceGet(ctypes.byref(device), 0), 0)
        self.assertEqual(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), 0)
        self.addCleanup(driver.cuDevicePrimaryCtxRelease_v2, device)
        self.assertEqual(driver.cuCtxPushCurrent_v2(context), 0)
        self.addCleanup(driver.cuCtxPopCurrent_v2, ctypes.byref(context))
        self.assertEqual(driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(1 << 16), 1), 0)
        self.addCleanup(driver.cuMemFree_v2, address)

        class Array:
            __cuda_array_interface__ = {"shape": (1 << 16,), "typestr": "|u1", "data": (address.value, False),
                                        "version": 3}

        with pier.Buffer.wrap(Array()) as buffer:
            self.assertEqual(buffer.__dlpack_device__(), (CUDA_MANAGED, 0))


class Hip(Gpu):
    memory = "hip"

    def test_memory_of_a_device_is_that_of_dlpack(self):
        for memory, device in (("hip:0", (ROCM, 0)), ("hip:1", (ROCM, 1)), ("hip:0:host", (ROCM_HOST, 0))):
            buffer = self.buffer(1 << 16, memory)
            self.assertEqual(buffer.__dlpack_device__(), device)
            self.assertFalse(hasattr(buffer, "__cuda_array_interface__"))


class LevelZero(Gpu):
    memory = "level_zero"

    def test_memory_of_a_device_is_that_of_dlpack(self):
        self.assertEqual(self.buffer(1 << 16, "level_zero:0").__dlpack_device__(), (ONEAPI, 0))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's tensors on a CPU: no copy either way."""

import gc
import unittest
import unittest.mock
import weakref

import pier
from pier import Access
from support import Case, module_or_skip


class Torch(Case):
    def setUp(self):
        self.torch = module_or_skip("torch")
        super().setUp()

    def test_tensors_use_the_memory_of_a_view(self):
        buffer, seen = self.buffer(), []
        view = buffer.view((4, 8), "float32", offset=128)
        weakref.finalize(view, seen.append, 1)
        tensor = self.torch.from_dlpack(view)
        self.assertEqual((tensor.data_ptr(), tuple(tensor.shape)), (view.address, (4, 8)))
        tensor += 1
        self.assertEqual(memoryview(buffer)[128:132].cast("f")[0], 1)
        del view
        part = tensor[1:2]
        del tensor
        gc.collect()
        self.assertEqual(seen, [])
        del part
        gc.collect()
        self.assertEqual(seen, [1])

    def test_every_type_becomes_that_of_torch(self):
        buffer = self.buffer()
        for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16",
                     "complex64", "complex128"):
            tensor = self.torch.from_dlpack(buffer.view((2, 3), name))
            self.assertEqual(tensor.dtype, getattr(self.torch, name))
        del tensor

    def test_tensors_are_registered_without_a_copy(self):
        tensor = self.torch.arange(24).reshape(2, 3, 4)
        for part in (tensor, tensor.transpose(0, 1), tensor.permute(2, 0, 1), tensor[1]):
            with self.pd.register(part) as region:
                self.assertEqual((region.address, len(region)),
                                 (part.data_ptr(), part.numel() * part.element_size()))
        for part in (tensor[:, ::2], tensor[..., 1]):
            with self.assertRaises(pier.Invalid):
                self.pd.register(part)
        brain = self.torch.ones(10, dtype=self.torch.bfloat16)
        with self.pd.register(brain) as region:
            self.assertEqual(len(region), 20)

    def test_a_region_keeps_its_tensor(self):
        tensor = self.torch.zeros(1000)
        region = self.pd.register(tensor)
        seen = weakref.ref(tensor)
        address = tensor.data_ptr()
        del tensor, seen
        gc.collect()
        others = [self.torch.zeros(1000) for _ in range(100)]
        self.assertNotIn(address, [other.data_ptr() for other in others])
        region.close()

    def test_storage_of_a_region_cannot_be_resized(self):
        module_or_skip("numpy")
        for dtype in (self.torch.float32, self.torch.bfloat16, self.torch.uint8):
            for tensor in (self.torch.zeros(4, 6, dtype=dtype), self.torch.zeros(4, 6, dtype=dtype).t(),
                           self.torch.zeros(1000, dtype=dtype)[10:20], self.torch.zeros((), dtype=dtype)):
                with self.pd.register(tensor):
                    address = tensor.data_ptr()
                    for resize in (lambda: tensor.storage().resize_(0), lambda: tensor.resize_(1 << 20)):
                        with self.assertRaisesRegex(RuntimeError, "resiz"):
                            resize()
                    self.assertEqual(tensor.data_ptr(), address)

    def test_dtypes_and_copies(self):
        buffer = self.buffer()
        tensor = self.torch.arange(24, dtype=self.torch.int32).reshape(4, 6)
        buffer.copy_to(8, tensor)
        view = buffer.view((4, 6), tensor.dtype, 8)
        self.assertTrue(self.torch.equal(self.torch.from_dlpack(view), tensor))
        for into in self.torch.zeros(4, 6, dtype=self.torch.int32), self.torch.zeros(24, dtype=self.torch.int32):
            buffer.copy_from(8, into)
            self.assertTrue(self.torch.equal(into.reshape(4, 6), tensor))
        self.assertEqual(buffer.copy_from(8, self.torch.tensor(96).item()), view.tobytes())
        for wrong in (tensor.t(), tensor[:, ::2]):
            with self.assertRaises(pier.Invalid):
                buffer.copy_to(0, wrong)
        del view

    def test_memory_can_be_a_device_of_torch(self):
        with pier.Buffer(self.torch.device("cpu"), 64) as buffer:
            self.assertEqual(buffer.memory, "host")
        pier.warm_up(self.torch.device("cpu"))
        for device, version, name in (("cuda:63", "", "cuda:63"), ("xpu", "", "level_zero"),
                                      ("cuda:63", "6.2", "hip:63")):
            with unittest.mock.patch.object(self.torch.version, "hip", version or None), \
                    self.assertRaisesRegex(pier.Error, "of %s" % name):
                pier.Buffer(self.torch.device(device), 64)
        for wrong in None, 7, b"host":
            with self.assertRaisesRegex(TypeError, "torch.device, not"):
                pier.Buffer(wrong, 64)
        with self.assertRaises(ValueError):
            pier.Buffer("ho\0st", 64)

    def test_tensors_with_gradients_are_refused(self):
        tensor = self.torch.zeros(10, requires_grad=True)
        with self.assertRaises((RuntimeError, BufferError)):
            self.pd.register(tensor)
        self.pd.register(tensor.detach(), access=Access.REMOTE_READ).close()


if __name__ == "__main__":
    unittest.main()

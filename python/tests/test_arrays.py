# SPDX-License-Identifier: BSD-3-Clause
"""Views of buffers as arrays of NumPy and JAX, and their arrays as memory: no copy either way."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import unittest
import unittest.mock
import weakref

import pier
from pier import Access
from support import PATIENCE, Case, module_or_skip

# (name, format of the buffer protocol, bytes)
TYPES = [("uint8", "B", 1), ("uint16", "H", 2), ("uint32", "I", 4), ("uint64", "Q", 8), ("int8", "b", 1),
         ("int16", "h", 2), ("int32", "i", 4), ("int64", "q", 8), ("float16", "e", 2), ("float32", "f", 4),
         ("float64", "d", 8), ("complex64", "Zf", 8), ("complex128", "Zd", 16), ("bool", "?", 1)]
NAMES = {None: b"dltensor", (1, 0): b"dltensor_versioned"}


class Tensor(ctypes.Structure):
    """DLTensor"""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    """DLManagedTensor"""
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned"""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


def take(capsule, version):
    """What a consumer does: the struct of the capsule, which it renames."""
    name = NAMES[version]
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    address = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), name)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), take.used.setdefault(name, b"used_" + name))
    return (Versioned if version else Managed).from_address(address)


take.used = {}  # the names of capsules must stay


def delete_on_foreign_thread(managed):
    """Call the deleter as a thread that Python does not know, and that has no GIL."""
    library = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    assert library.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(managed.deleter),
                                  ctypes.c_void_p(ctypes.addressof(managed))) == 0
    assert library.pthread_join(thread, None) == 0


class Producer:
    """An array of another library, which offers DLPack alone."""

    def __init__(self, array, device=None, change=None):
        self.array = array
        self.change = change
        self.device = device

    def __dlpack__(self, *, max_version=None):
        capsule = self.array.__dlpack__(max_version=max_version)
        if self.change:
            ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
            self.change(Versioned.from_address(ctypes.pythonapi.PyCapsule_GetPointer(
                ctypes.py_object(capsule), b"dltensor_versioned")))
        return capsule


class OldProducer(Producer):
    """One of before DLPack 1.0."""

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__()


class Views(Case):
    def test_every_type_has_its_format(self):
        buffer = self.buffer()
        for name, letters, size in TYPES:
            view = buffer.view((2, 3), name, offset=16)
            with memoryview(view) as window:
                self.assertEqual((window.format, window.itemsize, window.shape, window.strides),
                                 (letters, size, (2, 3), (3 * size, size)))
            self.assertEqual((view.dtype, view.shape, view.strides, view.nbytes, view.offset),
                             (name, (2, 3), (3 * size, size), 6 * size, 16))
            self.assertEqual(view.address, buffer.address + 16)
            self.assertIs(view.buffer, buffer)
        del view

    def test_a_view_without_a_shape_is_all_that_follows(self):
        buffer = self.buffer()
        self.assertEqual(buffer.view().shape, (4096,))
        self.assertEqual(buffer.view(dtype="float32", offset=96).shape, (1000,))
        self.assertEqual(buffer.view(offset=4096).shape, (0,))
        self.assertEqual(memoryview(buffer.view(())).shape, ())

    def test_views_out_of_range_are_refused(self):
        buffer = self.buffer()
        for arguments in (((4097,),), ((1025,), "float32"), ((1,), "uint8", 4096), ((1 << 40, 1 << 40),),
                          (None, "uint8", 4097), (None, "float32", 1), ((1,), "uint8", (1 << 64) - 1),
                          ((1 << 62, 4),), ((-1, 3),), ((-1, 0),), ((-1, 1 << 62), "float64"), (-1, "float32", 1)):
            with self.assertRaises(pier.OutOfRange, msg=str(arguments)):
                buffer.view(*arguments)
        for arguments in (((-2,),), ((-1, -1),), (-2,), ((1,) * 65,)):
            with self.assertRaises(pier.Invalid):
                buffer.view(*arguments)
        for arguments in (((2.5,),), (2.5,), ("ab",), ((1,), 3), ((1,), "uint8", 1.5)):
            with self.assertRaises(TypeError):
                buffer.view(*arguments)
        with self.assertRaisesRegex(ValueError, "unknown dtype \"decimal\"; known are uint8, .*bfloat16"):
            buffer.view((1,), "decimal")

    def test_shapes_and_dtypes_are_those_of_other_libraries(self):
        buffer = self.buffer()
        for shape, result in ((4, (4,)), (-1, (1024,)), ((-1, 4), (256, 4)), ((2, -1, 8), (2, 64, 8)), ((), ())):
            self.assertEqual(buffer.view(shape, "float32").shape, result)
        self.assertEqual((len(buffer.view((3, 4))), buffer.view(4, "uint8", 8).tobytes()), (3, bytes(4)))
        with self.assertRaises(TypeError):
            len(buffer.view(()))
        for dtype, name in (("<f4", "float32"), ("f4", "float32"), ("|u1", "uint8"), ("u1", "uint8"),
                            ("c16", "complex128"), ("|b1", "bool"), ("float8_e8m0fnu", "float8_e8m0fnu")):
            self.assertEqual(buffer.view(1, dtype).dtype, name)
        numpy = module_or_skip("numpy")
        for dtype in (numpy.float32, numpy.dtype("float32"), numpy.dtype("<f4")):
            self.assertEqual(buffer.view(1, dtype).dtype, "float32")
        for dtype in (numpy.dtype(">f4"), numpy.dtype("U4"), ">f4", float):
            with self.assertRaises(ValueError):
                buffer.view(1, dtype)
        array = numpy.arange(24, dtype="int16").reshape(4, 6)
        buffer.copy_to(2, array)
        into = numpy.zeros((4, 6), "int16")
        buffer.copy_from(2, into)
        self.assertTrue((into == array).all())
        self.assertEqual(buffer.copy_from(numpy.int64(2), numpy.int32(4)), b"\0\0\1\0")

    def test_parts_of_views_are_views(self):
        numpy = module_or_skip("numpy")
        buffer = self.buffer()
        buffer.copy_to(8, bytes(range(60)))
        view = buffer.view((3, 4, 5), "uint8", 8)
        rows = [[[20 * i + 5 * j + k for k in range(5)] for j in range(4)] for i in range(3)]
        for key in (1, -1, slice(1, 3), (2, 1), (2, slice(1, 3)), (0, 0, 4), (-1, -1, slice(-2, None)), slice(2, 1),
                    (1, ...), ..., (), (slice(None), slice(None)), (slice(1, 2), slice(1, 3)),
                    (1, slice(None), slice(0))):
            part, expected = view[key], numpy.array(rows, "uint8")[key]
            self.assertEqual((part.shape, part.tobytes()), (expected.shape, expected.tobytes()))
        self.assertEqual(view[1][2][3].tobytes(), b"\x21")
        self.assertEqual(view[1:][1].address, view.address + 40)
        for key in (slice(None), 0), (slice(0, 2), slice(1, 2)), slice(None, None, 2), (..., 0):
            with self.assertRaises((ValueError, TypeError)):
                view[key]
        for key in 3, -4, (0, 4), (0, 0, 0, 0), 1 << 70:
            with self.assertRaises(IndexError):
                view[key]
        with self.assertRaisesRegex(TypeError, "not str"):
            view["1"]

    def test_the_last_consumer_frees_a_view(self):
        buffer, seen = pier.Buffer("memfd", 4096), []
        view = buffer.view()
        weakref.finalize(view, seen.append, 1)
        window, capsule = memoryview(view), view.__dlpack__()
        del view
        window.release()
        with self.assertRaises(pier.Busy):
            buffer.close()
        self.assertEqual(seen, [])
        del capsule
        self.assertEqual(seen, [1])
        buffer.close()

    def test_requests_of_the_buffer_protocol_are_checked(self):
        view = self.buffer().view((2, 3), "float32")
        with self.assertRaises(BufferError):
            memoryview(self.buffer().view((2,), "bfloat16"))
        self.assertEqual(bytes(view), bytes(24))
        del view


class Tensors(Case):
    def test_both_forms_describe_the_view(self):
        buffer = self.buffer()
        codes = {"uint": 1, "int": 0, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
        for version in NAMES:
            for name, bits in ([(name, 8 * size) for name, _, size in TYPES] + [("bfloat16", 16)]):
                view = buffer.view((2, 3), name, offset=64)
                managed = take(view.__dlpack__(max_version=version), version)
                tensor = managed.tensor
                self.assertEqual((tensor.data, tensor.byte_offset), (view.address, 0))
                self.assertEqual((tensor.device_type, tensor.device_id), (1, 0))
                self.assertEqual((tensor.code, tensor.bits, tensor.lanes),
                                 (codes[name.rstrip("0123456789")], bits, 1))
                self.assertEqual((tensor.shape[:2], tensor.strides[:2]), ([2, 3], [3, 1]))
                if version:
                    self.assertEqual((managed.major, managed.flags), (1, 0))
                delete_on_foreign_thread(managed)
                del view

    def test_short_floats_have_the_codes_of_dlpack(self):
        for name, item in (("float8_e4m3fn", (10, 8, 1)), ("float8_e5m2", (12, 8, 1)),
                           ("float4_e2m1fn_x2", (17, 4, 2))):
            view = self.buffer().view((2,), name)
            self.assertEqual(view.nbytes, 2)
            tensor = (managed := take(view.__dlpack__(max_version=(1, 0)), (1, 0))).tensor
            self.assertEqual((tensor.code, tensor.bits, tensor.lanes), item)
            delete_on_foreign_thread(managed)
            del view, tensor
        with self.assertRaisesRegex(BufferError, "float4_e2m1fn_x2"):
            self.buffer().view(2, "float4_e2m1fn").__dlpack__(max_version=(1, 0))

    def test_a_foreign_thread_frees_the_view(self):
        view, seen = self.buffer().view(), []
        weakref.finalize(view, lambda: seen.append(threading.get_ident()))
        managed = take(view.__dlpack__(), None)
        del view
        self.assertEqual(seen, [])
        delete_on_foreign_thread(managed)
        self.assertEqual(len(seen), 1)
        self.assertNotEqual(seen[0], threading.get_ident())

    def test_requests_that_cannot_be_met_are_refused(self):
        view = self.buffer().view((4,), "float32", offset=2)
        whole = self.buffer()
        for error, keywords in ((BufferError, {"stream": 1}), (BufferError, {"copy": True}),
                                (BufferError, {"dl_device": (2, 0)}), (TypeError, {"stream": "x"}),
                                (TypeError, {"max_version": 1}), (TypeError, {"dl_device": 1}),
                                (TypeError, {"other": 1})):
            with self.assertRaises(error, msg=str(keywords)):
                whole.__dlpack__(**keywords)
        for keywords in ({"copy": False}, {"copy": None}, {"dl_device": (1, 0)}, {"stream": None},
                         {"max_version": (0, 8)}, {"max_version": (2, 0)}):
            whole.__dlpack__(**keywords)
        with self.assertRaises(TypeError):
            whole.__dlpack__(None)
        with self.assertRaisesRegex(BufferError, "aligned"):
            view.__dlpack__()
        self.assertEqual(whole.__dlpack_device__(), (1, 0))
        del view

    def test_read_only_memory_has_a_flag(self):
        buffer = pier.Buffer.wrap(bytes(64))
        with self.assertRaisesRegex(BufferError, "read-only"):
            buffer.__dlpack__()
        managed = take(buffer.__dlpack__(max_version=(1, 1)), (1, 0))
        self.assertEqual(managed.flags, 1)
        delete_on_foreign_thread(managed)
        buffer.close()

    def test_host_memory_has_no_cuda_array_interface(self):
        self.assertFalse(hasattr(self.buffer(), "__cuda_array_interface__"))
        self.assertFalse(hasattr(self.buffer().view(), "__cuda_array_interface__"))


class Consumer(Case):
    """Registration of arrays that offer DLPack or the CUDA array interface."""

    def test_tensors_of_both_forms_are_registered(self):
        buffer = self.buffer()
        view = buffer.view((4, 8), "float32", offset=128)
        for kind in (Producer, OldProducer):
            producer = kind(view)
            references = sys.getrefcount(view)
            with self.pd.register(producer) as region:
                self.assertEqual((region.address, len(region)), (view.address, 128))
                self.assertEqual(sys.getrefcount(view), references + 1)
            self.assertEqual(sys.getrefcount(view), references)
        del view, producer

    def test_changed_tensors_are_understood_or_refused(self):
        view = self.buffer().view((4, 6), "uint8", 0)

        def strides(first, second):
            def change(managed):
                managed.tensor.strides[0], managed.tensor.strides[1] = first, second
            return change

        def field(owner, name, value):
            return lambda managed: setattr(getattr(managed, owner) if owner else managed, name, value)

        cases = [(strides(1, 4), 24), (strides(12, 1), pier.Invalid), (strides(-6, 1), pier.Invalid),
                 (strides(1 << 62, 1 << 62), pier.Invalid), (field("tensor", "strides", None), 24),
                 (field("tensor", "byte_offset", 5), 24), (field("tensor", "bits", 4), 12),
                 (field("tensor", "bits", 12), 48), (field("tensor", "lanes", 3), 72),
                 (field("tensor", "device_type", 8), pier.NotSupported), (field(None, "major", 2), pier.NotSupported),
                 (field(None, "minor", 9), 24), (field(None, "flags", 1), pier.AccessDenied),
                 (field(None, "flags", 2), 24)]
        for number, (change, expected) in enumerate(cases):
            with self.subTest(number):
                producer = Producer(view, change=change)
                references = sys.getrefcount(view)
                if isinstance(expected, int):
                    with self.pd.register(producer) as region:
                        self.assertEqual(len(region), expected)
                        self.assertEqual(region.address, view.address + (5 if number == 5 else 0))
                else:
                    self.assertRaises(expected, self.pd.register, producer)
                self.assertEqual(sys.getrefcount(view), references)
        del view, producer

    def test_errors_of_the_producer_come_out(self):
        class Refuses:
            def __dlpack__(self, **keywords):
                raise BufferError("it needs a gradient")

        class Lies:
            def __dlpack__(self, **keywords):
                return 3

        with self.assertRaisesRegex(BufferError, "gradient"):
            self.pd.register(Refuses())
        with self.assertRaises(ValueError):
            self.pd.register(Lies())

    def test_arrays_of_cuda_are_described(self):
        memory = bytearray(96)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

        class Array:
            def __init__(self, **changes):
                self.__cuda_array_interface__ = {
                    "shape": (4, 6), "typestr": "<f4", "data": (address, False), "version": 3} | changes

        for changes, expected in (({}, 96), ({"strides": None}, 96), ({"strides": (24, 4)}, 96),
                                  ({"strides": (4, 16)}, 96), ({"shape": ()}, 4), ({"typestr": "|u1"}, 24),
                                  ({"typestr": "V2"}, 48), ({"stream": 1, "mask": None}, 96)):
            with self.pd.register(Array(**changes)) as region:
                self.assertEqual((region.address, len(region)), (address, expected))
        for changes, error in (({"strides": (48, 4)}, pier.Invalid), ({"data": (address, True)}, pier.AccessDenied),
                               ({"typestr": "f"}, pier.Invalid), ({"typestr": 3}, TypeError),
                               ({"data": 5}, TypeError), ({"data": (-1, False)}, OverflowError),
                               ({"shape": 4}, TypeError), ({"shape": (1,) * 65}, pier.Invalid),
                               ({"mask": 1}, pier.NotSupported), ({"strides": (4,)}, IndexError),
                               ({"shape": (1 << 62, 4)}, pier.Invalid)):
            with self.subTest(changes):
                self.assertRaises(error, self.pd.register, Array(**changes))


class NumPy(Case):
    def setUp(self):
        self.numpy = module_or_skip("numpy")
        super().setUp()

    def test_arrays_use_the_memory_of_a_view(self):
        buffer = self.buffer()
        view = buffer.view((4, 8), "float32", offset=128)
        for make in (self.numpy.asarray, self.numpy.from_dlpack):
            array = make(view)
            self.assertEqual(array.ctypes.data, view.address)
            self.assertEqual((array.shape, array.dtype.name), ((4, 8), "float32"))
        # Arrays of DLPack are read-only before NumPy 2.2.
        self.assertTrue(array.flags.writeable or self.numpy.lib.NumpyVersion(self.numpy.__version__) < "2.2.0")
        self.numpy.asarray(view)[0, 0] = 1
        self.assertEqual(memoryview(buffer)[128:132].cast("f")[0], 1)
        self.assertEqual(array[0, 0], 1)
        self.assertEqual(self.numpy.from_dlpack(buffer).shape, (4096,))
        del array, view

    def test_every_type_becomes_that_of_numpy(self):
        buffer = self.buffer()
        for name, _, _ in TYPES:
            for make in (self.numpy.asarray, self.numpy.from_dlpack):
                self.assertEqual(make(buffer.view((2,), name)).dtype.name, name)

    def test_types_that_numpy_lacks_are_those_of_ml_dtypes(self):
        module = module_or_skip("ml_dtypes")
        buffer = self.buffer()
        for name, size in ("bfloat16", 2), ("float8_e5m2", 1), ("float8_e8m0fnu", 1), ("float4_e2m1fn", 1):
            view = buffer.view((2, 3), getattr(module, name), 64)
            array = self.numpy.asarray(view)
            self.assertEqual((array.dtype.name, array.shape, array.ctypes.data), (name, (2, 3), view.address))
            array[1, 2] = 2
            self.assertEqual(self.numpy.asarray(view, dtype="float32")[1, 2], 2)
            self.assertEqual((self.numpy.array(view)[1, 2], view.nbytes), (2, 6 * size))
            del view, array
        with self.assertRaisesRegex(TypeError, "no float4_e2m1fn_x2: use"):
            self.numpy.asarray(buffer.view(2, "float4_e2m1fn_x2"))
        with unittest.mock.patch.dict(sys.modules, ml_dtypes=None), \
                self.assertRaisesRegex(TypeError, "without the package ml_dtypes.*uint16"):
            self.numpy.asarray(buffer.view(2, "bfloat16"))

    def test_read_only_memory_stays_read_only(self):
        buffer = pier.Buffer.wrap(bytes(64))
        self.assertFalse(self.numpy.asarray(buffer).flags.writeable)
        if tuple(map(int, self.numpy.__version__.split(".")[:2])) >= (2, 1):
            self.assertFalse(self.numpy.from_dlpack(buffer).flags.writeable)
        buffer.close()

    def test_arrays_are_registered_without_a_copy(self):
        array = self.numpy.arange(24, dtype="int32").reshape(2, 3, 4)
        for part in (array, array.T, array.transpose(1, 0, 2), array[1], array[:, :1][:1], array[0, 0, 0]):
            if not isinstance(part, self.numpy.ndarray):
                part = self.numpy.asarray(part)
            with self.pd.register(part) as region:
                self.assertEqual((region.address, len(region)), (part.ctypes.data, part.nbytes))
        for part in (array[:, ::2], array[..., 1], array[::-1]):
            with self.assertRaises(pier.Invalid):
                self.pd.register(part)
        array.flags.writeable = False
        with self.assertRaises(pier.AccessDenied):
            self.pd.register(array)
        self.pd.register(array, access=Access.REMOTE_READ).close()

    def test_types_that_dlpack_lacks_are_registered(self):
        for dtype in ("datetime64[s]", "S5", [("a", "i4"), ("b", "f8")]):
            array = self.numpy.zeros(10, dtype=dtype)
            with self.pd.register(array) as region:
                self.assertEqual(len(region), array.nbytes)

    def test_a_wrapped_array_is_used_in_place(self):
        array = self.numpy.zeros(10)
        with pier.Buffer.wrap(array) as buffer:
            self.assertEqual(buffer.address, array.ctypes.data)
            buffer.copy_to(8, self.numpy.ones(1))
        self.assertEqual(array[1], 1)


class Jax(Case):
    def setUp(self):
        self.jax = module_or_skip("jax")
        super().setUp()

    def test_arrays_use_the_memory_of_a_view(self):
        # JAX uses memory of the CPU in place if it is aligned to 64 bytes, and else copies it.
        view = self.buffer().view((4, 8), "float32", offset=128)
        memoryview(view).cast("B").cast("f")[3] = 5
        array = self.jax.dlpack.from_dlpack(view)
        self.assertEqual(array.unsafe_buffer_pointer(), view.address)
        self.assertEqual((array.shape, float(array[0, 3])), ((4, 8), 5))
        brain = self.buffer().view((16,), "bfloat16")
        self.assertEqual(self.jax.dlpack.from_dlpack(brain).dtype.name, "bfloat16")
        array.delete()
        del array
        array = self.jax.numpy.asarray(view)
        self.assertEqual((array.unsafe_buffer_pointer(), array.shape), (view.address, (4, 8)))
        copy = self.jax.numpy.array(view)
        self.assertNotEqual(copy.unsafe_buffer_pointer(), view.address)
        self.assertEqual(self.jax.numpy.asarray(brain).dtype.name, "bfloat16")
        array.delete()
        del array, view, brain

    def test_arrays_are_registered_without_a_copy(self):
        array = self.jax.numpy.arange(1000.0)
        with self.assertRaises(pier.AccessDenied):
            self.pd.register(array)
        for source in (array, Producer(array)):
            with self.pd.register(source, access=Access.REMOTE_READ) as region:
                self.assertEqual((region.address, len(region)), (array.unsafe_buffer_pointer(), array.nbytes))
        brain = self.jax.numpy.ones(10, "bfloat16")
        with self.pd.register(brain, access=Access.REMOTE_READ) as region:
            self.assertEqual(len(region), 20)


class Ending(unittest.TestCase):
    """Tensors that outlive the interpreter's last code: no hang, no crash, no output."""

    # The first function of atexit is the last that runs, when pier drops nothing any more.
    PREAMBLE = textwrap.dedent("""
        import atexit, ctypes, os, sys, threading, weakref
        last = []
        atexit.register(lambda: [function() for function in last])
        import pier
        from test_arrays import take, delete_on_foreign_thread
    """)

    def check_script(self, script):
        done = subprocess.run([sys.executable, "-B", "-c", self.PREAMBLE + textwrap.dedent(script)], text=True,
                              env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_tensors_are_freed_by_the_ending_interpreter(self):
        self.check_script("""
            buffer = pier.Buffer("memfd", 4096)
            capsule, view = buffer.__dlpack__(), buffer.view()
            window = memoryview(view)
            device = pier.Device("soft0")
            region = pier.ProtectionDomain(device).register(buffer)
            sys.cycle = [buffer, region, capsule]
            sys.cycle.append(sys.cycle)
        """)

    def test_a_foreign_thread_frees_a_tensor_at_the_end(self):
        self.check_script("""
            class Late:
                def __init__(self):
                    self.tensor = take(pier.Buffer("memfd", 4096).__dlpack__(), None)
                    self.delete = delete_on_foreign_thread
                def __del__(self):
                    self.delete(self.tensor)
            sys.late = Late()
        """)

    def test_threads_free_tensors_while_the_interpreter_ends(self):
        self.check_script("""
            def work():
                while True:
                    delete_on_foreign_thread(take(pier.Buffer("host", 64).__dlpack__(), None))
            for _ in range(3):
                threading.Thread(target=work, daemon=True).start()
            delete_on_foreign_thread(take(pier.Buffer("host", 64).__dlpack__(), None))
        """)

    def test_a_foreign_thread_does_not_wait_for_the_gil_at_the_end(self):
        self.check_script("""
            tensor = take(pier.Buffer("memfd", 4096).__dlpack__(), None)
            holder = ctypes.PyDLL(None)  # its calls keep the GIL
            def delete_with_gil():
                thread = ctypes.c_ulong()
                holder.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(tensor.deleter),
                                      ctypes.c_void_p(ctypes.addressof(tensor)))
                holder.pthread_join(thread, None)
            last.append(delete_with_gil)
        """)

    def test_the_end_waits_for_threads_that_free_tensors(self):
        self.check_script("""
            started, go, done = threading.Event(), threading.Event(), []
            view = pier.Buffer("memfd", 4096).view()
            def freed():
                started.set()
                go.wait()
                for _ in range(1000):
                    os.sched_yield()  # without the GIL
                done.append(1)
            finalizer = weakref.finalize(view, freed)
            tensor = take(view.__dlpack__(), None)
            del view
            library, thread = ctypes.CDLL(None), ctypes.c_ulong()
            library.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(tensor.deleter),
                                   ctypes.c_void_p(ctypes.addressof(tensor)))
            started.wait()
            atexit.register(go.set)
            last.append(lambda: done or print("it did not wait"))
        """)


class Threads(Case):
    def test_threads_share_a_buffer(self):
        buffer, failures = self.buffer(), []

        def work(number):
            try:
                for _ in range(2000):
                    view = buffer.view((16,), "uint8", 16 * number)
                    with memoryview(view) as window:
                        window[0] = number
                    delete_on_foreign_thread(take(view.__dlpack__(), None))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        self.assertEqual(failures, [])
        self.assertEqual([bytes(buffer)[16 * number] for number in range(4)], [0, 1, 2, 3])


if __name__ == "__main__":
    unittest.main()

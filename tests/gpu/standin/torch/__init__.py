# SPDX-License-Identifier: BSD-3-Clause
"""In place of PyTorch, to try test_torch.py where there is none: as much of a tensor as it
uses, in memory of the CUDA driver that each allocator of PyTorch would take, or of HIP."""

import array
import ctypes
import os

__version__ = "standin"
int32 = "int32"
BLOCK = 2 << 20

_HIP = os.environ.get("PIER_GPU_BACKEND") == "hip"
_cuda = ctypes.CDLL("libamdhip64.so.6" if _HIP else "libcuda.so.1")
_settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
_context = ctypes.c_void_p()


class version:
    cuda = None if _HIP else "of the driver"
    hip = "of the runtime" if _HIP else None


class cuda:
    @staticmethod
    def is_available():
        count = ctypes.c_int(0)
        if _HIP:
            return _cuda.hipGetDeviceCount(ctypes.byref(count)) == 0 and count.value > 0
        return _cuda.cuInit(0) == 0 and _cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 \
            and count.value > 0

    @staticmethod
    def synchronize():
        _must((_cuda.hipStreamSynchronize if _HIP else _cuda.cuStreamSynchronize)(None))

    class memory:
        @staticmethod
        def get_allocator_backend():
            return _settings or "native"


def _must(error):
    if error:
        raise RuntimeError("the driver's error %d" % error)


def _copy(name, kind, target, source, size):
    """By CUDA's function, or by HIP's one for all kinds."""
    if _HIP:
        _must(_cuda.hipMemcpyAsync(target, source, ctypes.c_size_t(size), kind, None))
        cuda.synchronize()
    else:
        _must(getattr(_cuda, name)(target, source, ctypes.c_size_t(size)))


def _enter():
    """As PyTorch's threads, which have the primary context current."""
    if not _context and not _HIP:
        _must(_cuda.cuInit(0))
        _must(_cuda.cuDevicePrimaryCtxRetain(ctypes.byref(_context), 0))
        _must(_cuda.cuCtxPushCurrent_v2(_context))


class _Prop(ctypes.Structure):
    """CUmemAllocationProp"""
    _fields_ = [("type", ctypes.c_uint), ("handles", ctypes.c_uint), ("where", ctypes.c_uint),
                ("id", ctypes.c_int), ("none", ctypes.c_void_p), ("compression", ctypes.c_ubyte),
                ("rdma", ctypes.c_ubyte), ("rest", ctypes.c_ubyte * 6)]


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""
    _fields_ = [("where", ctypes.c_uint), ("id", ctypes.c_int), ("flags", ctypes.c_uint)]


def _map(size):
    """Segments of a block each, one behind the other."""
    address, handle = ctypes.c_uint64(), ctypes.c_uint64()
    blocks = -(-size // BLOCK)
    prop, access = _Prop(type=1, where=1, rdma=1), _Access(where=1, flags=3)
    _must(_cuda.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(blocks * BLOCK),
                                    ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0)))
    for block in range(blocks):
        at = ctypes.c_uint64(address.value + block * BLOCK)
        _must(_cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(BLOCK), ctypes.byref(prop),
                                ctypes.c_uint64(0)))
        _must(_cuda.cuMemMap(at, ctypes.c_size_t(BLOCK), ctypes.c_size_t(0), handle,
                             ctypes.c_uint64(0)))
        _must(_cuda.cuMemSetAccess(at, ctypes.c_size_t(BLOCK), ctypes.byref(access),
                                   ctypes.c_size_t(1)))
    return address.value


def _allocate(size):
    """Never freed: as long as the process, which a caching allocator's is too."""
    address = ctypes.c_uint64()
    if _HIP:  # without expandable segments
        _must(_cuda.hipMalloc(ctypes.byref(address), ctypes.c_size_t(-(-size // BLOCK) * BLOCK)))
    elif "expandable_segments" in _settings:
        return _map(size)
    elif "cudaMallocAsync" in _settings:
        _must(_cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), None))
    else:
        _must(_cuda.cuMemAlloc_v2(ctypes.byref(address),
                                  ctypes.c_size_t(-(-size // BLOCK) * BLOCK)))
    return address.value


class _Tensor:
    def __init__(self, address, count):
        self.address, self.count = address, count

    def __getitem__(self, part):
        first, end, _ = part.indices(self.count)
        return _Tensor(self.address + 4 * first, max(0, end - first))

    def numel(self):
        return self.count

    def element_size(self):
        return 4

    def data_ptr(self):
        return self.address

    def contiguous(self):
        return self

    def cpu(self):
        found = ctypes.create_string_buffer(4 * self.count)
        if self.count:
            _copy("cuMemcpyDtoH_v2", 2, found, ctypes.c_uint64(self.address),
                  4 * self.count)
        tensor = _Tensor(ctypes.addressof(found), self.count)
        tensor.memory = found
        return tensor


def _make(values):
    _enter()
    tensor = _Tensor(_allocate(4 * len(values)), len(values))
    _copy("cuMemcpyHtoD_v2", 1, ctypes.c_uint64(tensor.address), values.tobytes(),
          4 * len(values))
    return tensor


def arange(count, dtype, device):
    return _make(array.array("i", range(count)))


def zeros(count, dtype, device):
    return _make(array.array("i", bytes(4 * count)))

# SPDX-License-Identifier: BSD-3-Clause
"""Questions of the extension about arrays, dtypes and devices of other libraries."""

from __future__ import annotations

import contextlib
import errno
import re
import sys
from typing import Any

from . import _pier


def _wrong_type(value: object, sentence: str) -> TypeError:
    return TypeError("%s, not %s" % (sentence, type(value).__name__))


def dtype_name(dtype: Any) -> Any:
    """Return the name of a dtype.

    numpy.dtype and those of JAX have one, the scalar types of NumPy are classes, and PyTorch's print as
    "torch.float32".
    """
    name = getattr(dtype, "__name__" if isinstance(dtype, type) else "name", None)
    if name is None:
        if type(dtype).__name__ != "dtype":
            raise _wrong_type(dtype, 'dtype must be a name such as "float32", or a dtype of NumPy, PyTorch or JAX')
        name = str(dtype)
    # numpy.dtype(">f4"), whose name is "float32".
    if getattr(dtype, "isnative", True) is False:
        raise ValueError("dtype %s has another byte order than this machine" % name)
    return name


def memory_name(device: Any) -> str:
    """Return the name of a kind of memory for a torch.device. It calls Intel's GPUs xpu, and those of AMD cuda."""
    if type(device).__name__ != "device":
        raise _wrong_type(device, 'memory must be a name such as "cuda:0", or a torch.device')
    name = str(device)
    if name == "cpu":
        return "host"
    if name.startswith("xpu"):
        return "level_zero" + name[3:]
    if name.startswith("cuda") and getattr(sys.modules.get("torch.version"), "hip", None) is not None:
        return "hip" + name[4:]
    return name


def _forbid_resizing(array: Any) -> None:
    """Keep the memory of a tensor of the CPU from being freed when its storage is resized.

    PyTorch frees it then, whoever else uses it. It refuses that once the storage was given to NumPy
    (set_resizable in torch/csrc/utils/tensor_numpy.cpp); an empty view of any type does. Without NumPy, and for
    memory of a GPU, nothing prevents it.
    """
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and isinstance(array, torch.Tensor) and array.device.type == "cpu":
            array.as_strided((0,), (1,)).view(torch.uint8).numpy()


def request_capsule(array: Any) -> Any:
    """Return the capsule of an array that offers DLPack.

    Without a stream: a registration reads no bytes, and None makes every producer assume its default stream.
    """
    _forbid_resizing(array)
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:  # producers of before 2024 do not have the argument
        return array.__dlpack__()


def read_interface(array: Any) -> tuple[Any, ...]:
    """Return the data, the size of an item, the shape and the strides of an array with the CUDA array interface.

    Version 2 or 3 (numba's documentation, "CUDA Array Interface").
    """
    interface = array.__cuda_array_interface__
    if not isinstance(interface, dict):
        raise _wrong_type(interface, "__cuda_array_interface__ must be a dict")
    if interface.get("mask") is not None:
        raise _pier.NotSupported(errno.EOPNOTSUPP, "the array has a mask: use its data alone")
    get: Any = interface.get
    data, typestr, shape, strides = get("data"), get("typestr"), get("shape"), get("strides")
    if not isinstance(data, tuple):
        raise _wrong_type(data, '"data" of the array must be a tuple')
    # "<f4" has items of 4 bytes; "V12" and others as well (numpy's __array_interface__).
    size = re.search(r"[0-9]+", typestr)
    if not size or not int(size[0]):
        raise _pier.Invalid(errno.EINVAL, "the typestr %.80r of the array has no size" % typestr)
    return data, int(size[0]), tuple(shape), None if strides is None else tuple(strides)

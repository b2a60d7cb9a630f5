# SPDX-License-Identifier: BSD-3-Clause
"""The encodings of MDS columns.

They are those of streaming/base/format/mds/encodings.py in the package mosaicml-streaming. Images stay as they are:
decoders of images take the bytes. Pickles are refused, because loading one can execute code.
"""

import errno
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from .. import NotSupported
from .._peers import invalid, printable

Bytes = bytes | bytearray | memoryview

_SCALARS = {"int": "<q", "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q", "int8": "<b", "int16": "<h",
            "int32": "<i", "int64": "<q", "float16": "<e", "float32": "<f", "float64": "<d"}
_ARRAY_TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
                34: "float32", 64: "uint64", 65: "int64", 66: "float64"}
_IMAGES = ("bytes", "jpeg", "png", "pil", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
_TEXTS: dict[str, Callable[[str], Any]] = {"str": str, "str_int": int, "str_float": float, "str_decimal": Decimal,
                                           "json": json.loads}


def decode(encoding: str, data: Bytes) -> Any:
    """Return the value of a field.

    encoding  that of the field: :attr:`pier.data.Field.encoding`
    data      the bytes of the field, in memory that the CPU can read

    Numbers become int and float, text str, JSON what it describes, and arrays ``numpy.ndarray``, which are views of
    the data. Bytes and images are returned as they are.

    Raises Invalid if the data does not fit the encoding, NotSupported if the encoding is unknown or a pickle.
    """
    name, _, parameters = encoding.partition(":")
    if not encoding or name in _IMAGES:
        return data
    try:
        if name in _SCALARS:
            return struct.unpack(_SCALARS[name], data)[0]
        if name in _TEXTS:
            return _TEXTS[name](bytes(data).decode("utf-8"))
        if name == "ndarray":
            return _decode_array(parameters, memoryview(data).cast("B"))
    except (ValueError, ArithmeticError, struct.error, RecursionError) as error:
        raise invalid("a field of %d bytes does not fit its encoding %s: %s" % (len(data), encoding, error)) from None
    raise NotSupported(errno.EOPNOTSUPP, "encoding %s %s: take the bytes of the field" % (
        printable(encoding), "can execute code" if name == "pkl" else "is unknown"))


def _decode_array(parameters: str, data: memoryview) -> Any:
    """[type: 1 byte] [number of dimensions * 4 + log2 of the bytes of each: 1 byte] [dimensions] values.

    The type and the dimensions are left out if the encoding names them: "ndarray:uint8:3,4".
    """
    import numpy

    dtype, _, dimensions = parameters.partition(":")
    if not dtype:
        if not data or data[0] not in _ARRAY_TYPES:
            raise ValueError("the type of the array is unknown")
        dtype, data = _ARRAY_TYPES[data[0]], data[1:]
    if dtype not in _ARRAY_TYPES.values():
        raise ValueError("the type %r is unknown" % dtype)
    if dimensions:
        shape = tuple(map(int, dimensions.split(",")))
    else:
        if not data:
            raise ValueError("the dimensions are missing")
        count, size = data[0] >> 2, 1 << data[0] % 4
        shape = struct.unpack_from("<%d%s" % (count, " BHIQ"[size.bit_length()]), data, 1)
        data = data[1 + count * size:]
    return numpy.frombuffer(data, numpy.dtype(dtype).newbyteorder("<")).reshape(shape)

# SPDX-License-Identifier: BSD-3-Clause
"""Methods of the extension's classes that need no C.

Each class here is the base of the class of that name in the extension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._types import BufferInfo


def _ml_dtype(name: str, integers: str) -> Any:
    """Return the dtype of a type that NumPy itself lacks."""
    try:
        import ml_dtypes
        return getattr(ml_dtypes, name)
    except (ImportError, AttributeError) as error:
        raise TypeError("NumPy has no %s%s: use DLPack, or a view of the dtype %s" % (
            name, " without the package ml_dtypes" if isinstance(error, ImportError) else "", integers)) from None


class View:
    __slots__ = ()

    # NumPy calls this if the buffer protocol fails, which it otherwise hides.
    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the memory as an array of NumPy, with a dtype of ml_dtypes for types
        that NumPy lacks. numpy.asarray() calls it."""
        import numpy
        integers = self._as_integers()
        array = numpy.asarray(memoryview(integers))
        if integers is not self:
            array = array.view(_ml_dtype(self.dtype, integers.dtype))
        # None: only if needed, as False before NumPy 2.
        return numpy.array(array, dtype=dtype, copy=copy)

    # jax.numpy.asarray() would otherwise pass the attribute `dtype`, a string, to NumPy, which refuses it.
    def __jax_array__(self) -> Any:
        """The method of JAX: return jax.dlpack.from_dlpack(self)."""
        from jax.dlpack import from_dlpack
        return from_dlpack(self)

    def tobytes(self: Any) -> Any:
        """Return a copy of its bytes, also of those of a GPU."""
        return self.buffer.copy_from(self.offset, self.nbytes)

    def __repr__(self: Any) -> str:
        return "<pier.View %r of %s at offset %d of %r>" % (self.shape, self.dtype, self.offset, self.buffer)


class Buffer:
    __slots__ = ()

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the memory as an array of NumPy. numpy.asarray() calls it."""
        return self.view().__array__(dtype, copy)

    def __dlpack__(self: Any, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """Export the memory for from_dlpack() of an array library, without a copy.
        BufferError: it cannot be done so."""
        return self.view().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self: Any) -> Any:
        """Return the type and the number of the device, as in DLPack."""
        return self.view().__dlpack_device__()

    @property
    def __cuda_array_interface__(self: Any) -> Any:
        """The memory for CuPy, numba and others, if it is of CUDA."""
        return self.view().__cuda_array_interface__

    @property
    def memory(self: Any) -> str:
        """Where it is: "memfd", "cuda:0"."""
        info: BufferInfo = self.info
        return info.backend + (":" + info.unit if info.unit else "")


class Region:
    __slots__ = ()

    def __repr__(self: Any) -> str:
        try:
            return "<pier.Region of %d bytes, %s>" % (len(self), self.path)
        except ValueError:
            return "<pier.Region, closed>"


class Span:
    __slots__ = ()

    def __repr__(self: Any) -> str:
        return "<pier.Span of %d bytes at offset %d of %r>" % (self.length, self.offset, self.region)


class Ring:
    __slots__ = ()

    @property
    def mappable(self: Any) -> Any:
        """Whether the CPU can reach the slots."""
        return self.buffer.info.mappable

    def __repr__(self: Any) -> str:
        return "<pier.Ring of %d slots of %d bytes%s>" % (
            len(self), self.slot_size, ", closed" if self.closed else "")


class Remote:
    __slots__ = ()

    def __eq__(self: Any, other: Any) -> Any:
        return self.parts == other.parts if isinstance(other, type(self)) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(self.parts)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """For pickle."""
        return type(self), (self.parts,)

    # Without the keys: whoever has them and a channel can use the memory.
    def __repr__(self: Any) -> str:
        return "<pier.Remote of %d bytes, %d parts>" % (sum(part[1] for part in self.parts), len(self.parts))

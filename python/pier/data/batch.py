# SPDX-License-Identifier: BSD-3-Clause
"""Batches: samples in a slot of the ring, handed out without a copy."""

import typing
from array import array
from collections.abc import Iterator
from typing import Any, Protocol

from .. import RingSlot, View
from .encodings import decode

if typing.TYPE_CHECKING:
    from .fetch import Plan
    from .loader import Loader


class Event(Protocol):
    """Work of a device, such as torch.cuda.Event."""

    def query(self) -> bool:
        """Return whether the work is done. Does not wait. Called by a thread of the loader."""


class Batch:
    """The samples of one batch, in the order of the loader, in one slot of its ring.

    Views are windows of the slot. They have the buffer protocol if the CPU can reach the memory, ``__dlpack__``, and
    ``__cuda_array_interface__`` where it applies: ``torch.from_dlpack(batch[0])`` is a tensor of the bytes of the
    first sample.

    The loader reads other samples into the slot when the batch is gone or released, every view and every tensor made
    of one is gone, and every event that was given to :meth:`release` has fired. Until then the bytes do not change.

    Any thread may use a batch, and release it while others have views.
    """

    __slots__ = ("__weakref__", "_loader", "_plan", "_slot", "epoch", "number", "samples", "server")

    def __init__(self, loader: "Loader", slot: RingSlot, plan: "Plan") -> None:
        self._loader, self._plan = loader, plan
        self._slot: RingSlot | None = slot
        self.epoch = plan.epoch
        self.number = plan.number
        """In this loader's part of the epoch, from 0."""
        self.samples: array[int] = plan.samples
        """The numbers of the samples in the data set, as an array of uint64."""
        self.server = plan.server
        """The URL of the server, without its token; of the last one, if several were needed."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    @typing.overload
    def __getitem__(self, i: int) -> View: ...
    @typing.overload
    def __getitem__(self, i: slice) -> list[View]: ...

    def __getitem__(self, i: int | slice) -> View | list[View]:
        """Return a view of the bytes of the i-th sample, one dimension of uint8; for a slice, a list of them."""
        if isinstance(i, slice):
            return [self[n] for n in range(len(self))[i]]
        return self._held().view((self.lengths[i],), "uint8", self.offsets[i])

    def __iter__(self) -> Iterator[View]:
        """Yield a view of each sample."""
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return "<pier.data.Batch %d of epoch %d: %d samples%s>" % (
            self.number, self.epoch, len(self), "" if self.is_held else ", released")

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    @property
    def offsets(self) -> memoryview:
        """Where each sample begins in the slot, in bytes: uint64."""
        return self._plan.offsets

    @property
    def lengths(self) -> memoryview:
        """The length of each sample, in bytes: uint64."""
        return self._plan.lengths

    @property
    def nbytes(self) -> int:
        """The bytes of the slot that are in use: up to the end of the last sample."""
        return self.offsets[-1] + self.lengths[-1]

    @property
    def keys(self) -> list[str]:
        """The key of each sample; see Index.key()."""
        return [self._loader.index.key(sample) for sample in self.samples]

    @property
    def is_held(self) -> bool:
        """Whether release() has not been called."""
        return self._slot is not None

    def fields(self, i: int) -> dict[str, View]:
        """Return a view of each field of the i-th sample, by name: ``{"jpg": View, "cls": View}``."""
        slot, offset = self._held(), self.offsets[i]
        return {name: slot.view((field.length,), "uint8", offset + field.offset)
                for name, field in self._loader.index.fields(self.samples[i]).items()}

    def view(self, shape: tuple[int, ...], dtype: str = "uint8", offset: int = 0) -> View:
        """Return one view of the batch as an array that begins at an offset of the slot.

        If all samples have the same length, a multiple of the loader's `align`, it can be the whole batch.

        Raises OutOfRange if the array exceeds the slot.
        """
        return self._held().view(shape, dtype, offset)

    def values(self, name: str) -> list[Any]:
        """Return a field of each sample: bytes, or the value that its MDS encoding describes. Makes copies.

        Raises KeyError if a sample has no such field.
        """
        slot, values = self._held(), []
        for sample, offset in zip(self.samples, self.offsets):
            fields = self._loader.index.fields(sample)
            if name not in fields:
                raise KeyError("sample %d has no field %r, but %s" % (sample, name, ", ".join(fields) or "none"))
            field = fields[name]
            self._loader.count_copy(field.length)
            values.append(decode(field.encoding, slot.copy_from(offset + field.offset, field.length)))
        return values

    def labels(self, name: str = "cls") -> list[int]:
        """Return a field of each sample as an integer: decimal text as in WebDataset, or an MDS integer."""
        return [int(value) for value in self.values(name)]

    def release(self, event: Event | None = None) -> None:
        """Give the slot back. It is reused when, in addition, no view exists and the event has fired.

        event  of the device work that still reads the slot; None: there is none

        Views that exist stay valid; no more can be made. A second call without an event does nothing.

        Raises ValueError if there is an event and the batch was released before.
        """
        slot, self._slot = self._slot, None
        if event is not None:
            if slot is None:
                raise ValueError("the batch is released: pass the event to the first release()")
            self._loader.keep_until(event, slot)

    def _held(self) -> RingSlot:
        if self._slot is None:
            raise ValueError("the batch is released: make views before release()")
        return self._slot

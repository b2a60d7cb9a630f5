# SPDX-License-Identifier: BSD-3-Clause
"""Data sets of other nodes for SPDL: a source of batches, and a stage that takes them apart.

    builder = spdl.pipeline.PipelineBuilder()
    builder.add_source(pier.data.spdl.Source("pier://TOKEN@node7:7700", batch_size=64), continuous=True)
    builder.pipe(pier.data.spdl.Fields("jpg", "cls")).disaggregate().pipe(decode, concurrency=8).aggregate(64)

A pipeline of SPDL consists of any iterables and callables (``PipelineBuilder.add_source``, ``PipelineBuilder.pipe``),
so this module does not import SPDL.
"""

import os
from collections.abc import Iterator
from typing import Any

from .. import View
from .batch import Batch
from .loader import Loader


class Source:
    """An iterable of batches for ``add_source()``. Each iteration is an epoch, so it may be ``continuous``.

    It connects when it is first iterated, in the process of the pipeline, and can be pickled before.
    """

    def __init__(self, urls: Any, batch_size: int, **options: Any) -> None:
        """The arguments are those of Loader."""
        self._arguments = urls, batch_size
        self._options = options
        self._loader: Loader | None = None
        self._process = 0

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over the rest of the current epoch. Raises the errors of Loader."""
        return iter(self.loader)

    @property
    def loader(self) -> Loader:
        """The loader: its state, epoch and counts. It is made when it is first needed."""
        if self._loader is None or self._process != os.getpid():
            self._loader = Loader(*self._arguments, **self._options)
            self._process = os.getpid()
        return self._loader

    def close(self) -> None:
        """Close the loader when the pipeline has ended. Batches and views that exist stay valid."""
        if self._loader is not None and self._process == os.getpid():
            self._loader.close()
        self._loader = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loader: the process that unpickles makes its own."""
        return {**self.__dict__, "_loader": None}


class Fields:
    """A stage for ``pipe()``: takes a batch and returns a list with a tuple of views for each sample.

    Put ``disaggregate()`` behind it, and then the stage that decodes one sample. Nothing is copied. The slot of the
    batch is free again when the views of all its samples are gone.
    """

    def __init__(self, *names: str) -> None:
        """names: the fields of a tuple, in this order."""
        self._names = names

    def __call__(self, batch: Batch) -> list[tuple[View, ...]]:
        """Raises KeyError if a sample has no such field."""
        with batch:
            return [tuple(map(batch.fields(n).__getitem__, self._names)) for n in range(len(batch))]

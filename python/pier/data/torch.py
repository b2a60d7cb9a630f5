# SPDX-License-Identifier: BSD-3-Clause
"""Data sets of other nodes for PyTorch: an IterableDataset of batches.

    dataset = pier.data.torch.BatchDataset("pier://TOKEN@node7:7700", batch_size=64, memory="cuda:0", rank=0, world=8)
    for batch in torch.utils.data.DataLoader(dataset, batch_size=None):
        images = [decode(sample["jpg"]) for sample in batch]
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from .batch import Batch
from .loader import Loader


def as_tensors(batch: Batch) -> list[dict[str, Any]]:
    """Return the samples of a batch as dicts: "__key__", and for each field a tensor of its bytes.

    The tensors are views of the loader's memory. They keep its slot until they are gone.
    """
    return [{"__key__": key, **{name: torch.from_dlpack(view) for name, view in batch.fields(n).items()}}
            for n, key in enumerate(batch.keys)]


class BatchDataset(torch.utils.data.IterableDataset[Any]):
    """The batches of a Loader. Use it with ``DataLoader(dataset, batch_size=None)``.

    Without workers nothing is copied: the tensors are in the memory that the NIC wrote, host or device memory. The
    loader reads ahead by itself, so workers are useful only if `transform` takes long. With workers each batch comes
    from one of them, and the bytes of host tensors are copied once, into the shared memory between the processes.
    """

    def __init__(self, urls: Any, batch_size: int, *, transform: Callable[[Batch], Any] = as_tensors, rank: int = 0,
                 world: int = 1, **options: Any) -> None:
        """Connects to nothing yet: each process that iterates makes a Loader of its own.

        transform    called with each Batch. What it returns is what the data set yields. The batch is released
                     afterwards. For device memory, let it call ``batch.release(event)``
        rank, world  of this process in the training; workers divide its part among them
        urls, batch_size, options
                     for Loader

        With workers everything must be picklable.
        """
        super().__init__()
        self._urls = urls
        self._batch_size = batch_size
        self._transform = transform
        self._rank = rank
        self._world = world
        self._options = options
        self._loader: Loader | None = None
        self._process = 0
        self._state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of the current epoch. The next iteration yields the next epoch.

        Raises the errors of Loader.
        """
        for batch in self._open():
            with batch:
                yield self._transform(batch)

    def set_epoch(self, epoch: int) -> None:
        """Continue at the beginning of an epoch, in all workers that start afterwards.

        Needed before each epoch if the DataLoader starts new workers for it (without ``persistent_workers``).
        """
        self._options["epoch"] = epoch
        self._state = None
        if self._has_loader():
            self._open().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for load_state_dict(). Also called by torchdata's StatefulDataLoader, in workers."""
        return self._state if self._state and not self._has_loader() else self._open().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the position of a state, exactly. Raises ValueError if it is of another data set."""
        self._state = state
        if self._has_loader():
            self._open().load_state_dict(state)

    def close(self) -> None:
        """End all reads and close the connections of this process. Tensors that exist stay valid."""
        if self._has_loader():
            self._open().close()
        self._loader = None

    def _has_loader(self) -> bool:
        # A worker is a child of fork(), and must not use its parent's.
        return self._loader is not None and self._process == os.getpid()

    def _open(self) -> Loader:
        if self._loader is None or not self._has_loader():
            worker = torch.utils.data.get_worker_info()
            number, count = (worker.id, worker.num_workers) if worker else (0, 1)
            self._loader = Loader(self._urls, self._batch_size, rank=self._rank * count + number,
                                  world=self._world * count, **self._options)
            self._process = os.getpid()
            if self._state:
                self._loader.load_state_dict(self._state)
        return self._loader

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loader: the process that unpickles makes its own."""
        return {**self.__dict__, "_loader": None}

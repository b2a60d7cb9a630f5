# SPDX-License-Identifier: BSD-3-Clause
"""Data sets of other nodes for PyTorch: an IterableDataset of batches.

    dataset = pier.data.torch.BatchDataset("pier://TOKEN@node7:7700", batch_size=64, memory="cuda:0", rank=0, world=8)
    for epoch in range(10):
        dataset.set_epoch(epoch)
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None):
            images = [decode(sample["jpg"]) for sample in batch]
"""

import json
import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from .batch import Batch
from .loader import Loader
from .order import Order

# Numbers of the shared tensor: see _Start.
_TAKER, _BY_WORKERS, _POOL, _TURN, _LENGTH, _TEXT, _END = 0, 1, 2, 3, 4, 5, 1024


def as_tensors(batch: Batch) -> list[dict[str, Any]]:
    """Return the samples of a batch as dicts: "__key__", and for each field a tensor of its bytes.

    The tensors are views of the loader's memory. They keep its slot until they are gone.
    """
    return [{"__key__": key, **{name: torch.from_dlpack(view) for name, view in batch.fields(n).items()}}
            for n, key in enumerate(batch.keys)]


class _Start:
    """Where iterations begin, in memory that a process shares with its workers, also with those that run already."""

    def __init__(self, epoch: int) -> None:
        self._numbers = torch.zeros(_END, dtype=torch.int64).share_memory_()
        self.write(epoch, None, 0)

    def read(self) -> tuple[int, dict[str, Any] | None, int]:
        """Return the epoch, the loaded state or None, and how many states have been loaded."""
        epoch, state, serial, _, _ = self._record()
        return epoch, state, serial

    def _record(self) -> Any:
        length = int(self._numbers[_LENGTH])
        return json.loads(bytes(self._numbers[_TEXT:_TEXT + length].tolist()))

    def write(self, epoch: int, state: dict[str, Any] | None, serial: int) -> None:
        latest = self._numbers[[_POOL, _TURN]].tolist()
        text = json.dumps([operator.index(epoch), state, serial, *latest]).encode()
        if len(text) > _END - _TEXT:
            raise ValueError("the state has %d bytes: it is none of state_dict()" % len(text))
        self._numbers[_TEXT:_TEXT + len(text)] = torch.tensor(list(text))
        self._numbers[_LENGTH] = len(text)
        self._numbers[_BY_WORKERS] = 0

    def forget_taker(self) -> None:
        self._numbers[_TAKER] = 0

    def take(self, taker: int) -> bool:
        """Whether an iteration, which all workers know by one number, is the first one after a state was loaded."""
        if not self._numbers[_TAKER]:
            self._numbers[_TAKER] = taker
        return int(self._numbers[_TAKER]) == taker

    def is_taken(self) -> bool:
        return bool(self._numbers[_TAKER])

    def begin(self, pool: int, turn: int, by_workers: bool) -> bool:
        """Note an iteration, by the number of its workers and how many each of them has begun.

        Returns False if it began before the last write(), and this worker of it is late.
        """
        _, _, _, last_pool, last_turn = self._record()
        if pool == last_pool and turn <= last_turn:
            return False
        self._numbers[_POOL], self._numbers[_TURN], self._numbers[_BY_WORKERS] = pool, turn, by_workers
        return True

    def is_by_workers(self) -> bool:
        """Whether workers do the iteration that began last."""
        return bool(self._numbers[_BY_WORKERS])

    def __setstate__(self, state: dict[str, Any]) -> None:
        # multiprocessing passes the memory on, and copies of other kinds have their own.
        self._numbers = state["_numbers"].share_memory_()


class BatchDataset(torch.utils.data.IterableDataset[Any]):
    """The batches of a Loader. Use it with ``DataLoader(dataset, batch_size=None)``.

    Each iteration yields a whole epoch, with any number of workers. :meth:`set_epoch` selects its order. Call it
    before each epoch, as that of DistributedSampler: without it all iterations have the same order.

    Without workers nothing is copied: the tensors are in the memory that the NIC wrote, host or device memory. The
    loader reads ahead by itself, so workers are useful only if `transform` takes long. With workers each batch comes
    from one of them, and the bytes of host tensors are copied once, into the shared memory between the processes.
    """

    def __init__(self, urls: Any, batch_size: int, *, transform: Callable[[Batch], Any] = as_tensors, rank: int = 0,
                 world: int = 1, epoch: int = 0, **options: Any) -> None:
        """Connects to nothing yet: each process that iterates makes a Loader of its own.

        transform    called with each Batch. What it returns is what the data set yields. The batch is released
                     afterwards. For device memory, let it call ``batch.release(event)``
        rank, world  of this process in the training; workers divide its part among them
        epoch        as for set_epoch()
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
        self._count: int | None = None
        self._start = _Start(epoch)
        self._continued = 0  # the number of the state that an iteration of this process has taken
        self._worker_state: dict[str, Any] | None = None
        self._turn = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch, without workers. Connects to a server the first time.

        With workers there can be a few more, because the last batch of each can be incomplete, or, with drop_last, a
        few less.
        """
        if self._count is None:
            small = {**self._options, "memory": "memfd", "slots": 1, "slot_size": 4096}
            with Loader(self._urls, self._batch_size, **small) as loader:
                self._count = len(loader.index)
        return Order(self._count, self._batch_size, rank=self._rank, world=self._world,
                     drop_last=self._options.get("drop_last", False)).batches

    def __iter__(self) -> Iterator[Any]:
        """Yield an epoch, or once after load_state_dict() the rest of one. An earlier iteration of this process ends.

        Raises the errors of Loader, after which ``load_state_dict(state_dict())`` makes the next iteration continue;
        RuntimeError if a later iteration has begun.
        """
        self._turn += 1
        turn, loader = self._turn, self._open()
        self._begin(loader)
        for batch in loader:
            with batch:
                yield self._transform(batch)
            if turn != self._turn:
                raise RuntimeError("a later iteration of this BatchDataset has begun, which ended this one: use a "
                                   "data set for each")

    def set_epoch(self, epoch: int) -> None:
        """Let iterations yield this epoch, in all workers, also those that run already (``persistent_workers``).

        If load_state_dict() was called with a state of this epoch, the next iteration still yields the rest of it.
        """
        _, state, serial = self._start.read()
        if state and state.get("epoch") == epoch and serial != self._continued and not self._start.is_taken():
            return
        self._start.write(epoch, state and {**state, "epoch": epoch, "base": 0}, serial)
        if self._has_loader():
            self._open().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for load_state_dict(). Also called by torchdata's StatefulDataLoader, in workers.

        Raises RuntimeError if workers of a DataLoader read the data set: only they know the position.
        """
        _, state, serial = self._start.read()
        if not torch.utils.data.get_worker_info() and self._start.is_by_workers():
            raise RuntimeError("workers of a DataLoader read this data set, and only they know the position: use "
                               "torchdata.stateful_dataloader.StatefulDataLoader and its state_dict(), or "
                               "num_workers=0; set_epoch() selects the beginning of an epoch")
        if self._worker_state or (state and serial != self._continued):
            return self._worker_state or state or {}
        return self._open().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue at the position of a state, exactly; later ones yield whole epochs.

        Raises ValueError if it is of another data set, here or in the iteration.
        """
        if self._has_loader():
            self._open().load_state_dict(state)
        if torch.utils.data.get_worker_info():
            self._worker_state = state
            return
        _, _, serial = self._start.read()
        self._start.write(state.get("epoch", 0), state, serial + 1)
        self._start.forget_taker()

    def close(self) -> None:
        """End all reads and close the connections of this process. Tensors that exist stay valid."""
        if self._has_loader():
            self._open().close()
        self._loader = None

    def _begin(self, loader: Loader) -> None:
        """Move the loader to where an iteration begins."""
        worker = torch.utils.data.get_worker_info()
        epoch, state, serial = self._start.read()
        # The workers of an iteration have one seed, plus their numbers.
        pool = worker.seed - worker.id if worker else 1
        is_first = False
        if self._start.begin(pool, self._turn, bool(worker)):
            is_first = serial != self._continued and self._start.take(pool)
            self._continued = serial
        if self._worker_state:
            state, self._worker_state = self._worker_state, None
        elif state and not is_first:
            state = {**state, "epoch": epoch, "base": 0}
        if not state:
            loader.set_epoch(epoch)
        elif loader.state_dict() != state:
            loader.load_state_dict(state)

    def _has_loader(self) -> bool:
        # A worker is a child of fork(), and must not use its parent's.
        return self._loader is not None and self._process == os.getpid()

    def _open(self) -> Loader:
        if self._loader is None or not self._has_loader():
            worker = torch.utils.data.get_worker_info()
            number, count = (worker.id, worker.num_workers) if worker else (0, 1)
            epoch, state, _ = self._start.read()
            self._loader = Loader(self._urls, self._batch_size, rank=self._rank * count + number,
                                  world=self._world * count, epoch=epoch, **self._options)
            self._process = os.getpid()
            if state:
                self._loader.load_state_dict({**state, "epoch": epoch, "base": 0})
        return self._loader

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loader: the process that unpickles makes its own."""
        return {**self.__dict__, "_loader": None}

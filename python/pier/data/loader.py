# SPDX-License-Identifier: BSD-3-Clause
"""The loader: batches of a data set that other nodes serve, in the memory of this node or of its GPU."""

import collections
import errno
import functools
import heapq
import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from .. import Busy, Error, OutOfRange, ProtectionDomain, Ring, RingSlot, TimedOut
from .._peers import Closable, check_process
from .._types import ConnectionOptions, TorchDevice
from .batch import Batch, Event
from .connection import connect
from .fetch import Failure, Fetcher, Plan
from .order import Order
from .replicas import Replicas, Urls

_STATE_VERSION = 1
_PAGE = 4096
_LARGEST_SLOT = 1 << 48
# That the extension can count, in seconds.
_LONGEST_TIMEOUT = ((1 << 31) - 1) // 1000
# Reads on a channel at once; the others follow as these complete.
_SEND_QUEUE = 1024


class Loader(Closable):
    """Reads batches of samples from servers by one-sided READs, ahead of their use.

    ::

        with Loader("pier://TOKEN@10.0.0.1:7000", 64, memory="cuda:0", seed=7) as loader:
            for epoch in range(10):
                for batch in loader:
                    train([torch.from_dlpack(view) for view in batch])
                    batch.release(event)

    A loop over a loader yields the rest of the current epoch, and the next loop the next epoch, whose first batches
    are read while the last ones of the epoch before are in use.

    If a server dies, the reads that had not arrived are repeated on another one: each sample comes once, in the same
    order. The dead server is tried again with increasing delays. While none answers, next() waits.

    Any thread may call any method. Threads that share an iterator get different batches. A child of fork() cannot use
    a loader of its parent (pier.Forked).
    """

    def __init__(self, urls: Urls, batch_size: int, *, memory: str | TorchDevice = "memfd", slots: int = 4,
                 slot_size: int | None = None, align: int = 256, device: "str | ProtectionDomain | None" = None,
                 seed: int = 0, shuffle: bool = True, rank: int = 0, world: int = 1, epoch: int = 0,
                 drop_last: bool = False, checksums: bool = False, timeout: float = 30.0, stall: float = 5.0,
                 retries: int = 3, **channel: Unpack[ConnectionOptions]) -> None:
        """Connect to the servers. Reading begins with the first batch that is asked for.

        urls        of servers of the same data set; batches are spread over those that live. A function returns
                    them, and is called again, by another thread, when a server cannot be reached
        batch_size  samples of a batch; the last one of an epoch may have fewer
        memory      of the slots, as for Buffer: "memfd", "cuda:0"
        slots       batches that are being read, ready, or in use, at most. A loop needs 2, to read ahead 3;
                    each further thread that shares an iterator one more
        slot_size   in bytes; None: enough for the longest samples of the data set
        align       in bytes; each sample begins in its slot at a multiple of it
        device      name of the RDMA device, or a protection domain; None: the default device
        seed, shuffle, rank, world, epoch, drop_last
                    the order, see Order. Each epoch has its own
        checksums   compare zlib.crc32() of each sample with the server's
        timeout     in seconds, of each next(), and of connecting to a server
        stall       in seconds; a server from which nothing arrives for so long is given up
        retries     how often the reads of a batch are repeated before next() raises the error of the last server
        channel     attributes of the channels, see Channel

        Raises the error of connect() if no server answers; errors of ProtectionDomain and Ring; ValueError if a
        number is out of range, or two servers serve different data.
        """
        for name, number, most in (("batch_size", batch_size, 1 << 31), ("slots", slots, (1 << 32) - 1),
                                   ("align", align, 1 << 62), ("timeout", timeout, _LONGEST_TIMEOUT)):
            if not 0 < number <= most:
                raise ValueError("%s is %s: it must be more than 0, and at most %d" % (name, number, most))
        self._timeout, self._process, self._closed = timeout, os.getpid(), False
        self._lock, self._count_lock = threading.Lock(), threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._holders: dict[int, tuple[weakref.ref[RingSlot], weakref.ref[Batch]]] = {}
        own_pd = None if isinstance(device, ProtectionDomain) else ProtectionDomain(device)
        pd = device if isinstance(device, ProtectionDomain) else own_pd
        assert pd
        channel.setdefault("max_send_wr", min(slots * batch_size, _SEND_QUEUE, pd.device.attributes.max_qp_wr))
        replicas = Replicas(urls, lambda url, index: connect(url, pd, index=index, checksums=checksums,
                                                             timeout=timeout, **channel))
        try:
            self.index = replicas.open()
            """Of the data set."""
            order = Order(len(self.index), batch_size, seed=seed, shuffle=shuffle, rank=rank, world=world,
                          epoch=epoch, drop_last=drop_last)
            slot_size = slot_size or longest_batch(self.index.table[2::3], batch_size, align)
            self._ring = Ring(pd, slots=slots, slot_size=slot_size, memory=memory, stall=stall)
        except BaseException:
            replicas.close()
            raise
        self._position = order, 0  # the next batch for the consumer
        self._plan = functools.partial(Plan, table=self.index.table, align=align)
        self._fetcher = Fetcher(self._ring, replicas, retries)
        self._finalize = weakref.finalize(self, _close_all, self._process, self._fetcher, own_pd)

    def __iter__(self) -> "Epoch":
        """Return an iterator over the rest of the current epoch."""
        return Epoch(self, self._position[0])

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        order, _ = self._position
        return order.at(order.epoch).batches

    def __repr__(self) -> str:
        order, number = self._position
        return "<pier.data.Loader of %d samples: batch %d of %d of epoch %d%s>" % (
            len(self.index), number, order.batches, order.epoch, ", closed" if self._closed else "")

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._position[0].epoch

    def set_epoch(self, epoch: int) -> None:
        """Continue at the beginning of an epoch. Does nothing if the loader is there."""
        check_process(self._process, "loader")
        with self._lock:
            order, number = self._position
            if (epoch, 0, 0) != (order.epoch, order.base, number):
                self._move(order.at(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the consumer, as a dict of str, int and bool. Batches read ahead do not count.

        Another loader continues from it exactly, also with another number of slots. All ranks that have had as many
        batches have the same state. With another batch size or world, a loader continues with the samples that no
        rank has had.
        """
        order, number = self._position
        return {"version": _STATE_VERSION, "dataset": self.index.digest.hex(), "seed": order.seed,
                "shuffle": order.shuffle, "epoch": order.epoch, "base": order.base_after(number)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the position of a state, with its seed and shuffle. Batches that were read ahead are dropped.

        Raises ValueError, and changes nothing, if the state is of another data set or version, or malformed.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError("version %r of the state is not known, only %d" % (state.get("version"), _STATE_VERSION))
        if state.get("dataset") != self.index.digest.hex():
            raise ValueError("the state is of another data set: its index had the digest %s, not %s" % (
                str(state.get("dataset"))[:16], self.index.digest.hex()[:16]))
        for name, kind in (("seed", int), ("epoch", int), ("base", int), ("shuffle", bool)):
            if type(state.get(name)) is not kind:
                raise ValueError("%s of the state is %r: it must be %s" % (name, state.get(name), kind.__name__))
        check_process(self._process, "loader")
        with self._lock:
            self._move(self._position[0].at(state["epoch"], state["base"], seed=state["seed"],
                                            shuffle=state["shuffle"]))

    def stats(self) -> dict[str, float]:
        """Return counts since the loader was made.

        batches, samples      handed out
        reads, bytes          reads that were posted, and bytes that have arrived
        doorbells             how often reads were given to the device
        copies, copied_bytes  at the consumer: of values() and labels(), and for checksums of device memory
        waits, wait_seconds   of next() for a batch that had not arrived
        retries               repetitions of the reads of a batch
        failovers             servers that were given up
        """
        status = self._ring.status
        # Copies: other threads add keys.
        counts = collections.Counter(self._counts) + collections.Counter(self._fetcher.counts)
        names = "batches", "samples", "copies", "copied_bytes", "waits", "wait_seconds", "retries"
        return {**{name: counts[name] for name in names}, "failovers": self._fetcher.failovers,
                "reads": status.reads, "bytes": status.bytes, "doorbells": status.doorbells}

    def close(self) -> None:
        """End all reads and close the connections. Batches and views that exist stay valid. Again at any time.

        Does nothing in a child of fork(): the loader is its parent's.
        """
        if os.getpid() != self._process:
            return
        self._closed = True
        # A consumer that waits in another thread has the lock.
        self._fetcher.ready.put(Failure(_closed_error(), is_last=True))
        with self._lock:
            self._finalize()

    def next_batch(self, order: Order) -> Batch | None:
        """Return the next batch for an iterator; None if its epoch is over, or the loader is elsewhere."""
        check_process(self._process, "loader")
        with self._lock:
            self._check_usable()
            current, number = self._position
            if current is not order:
                return None
            if number == order.batches:
                self._position = order.at(order.epoch + 1), 0
                return None
            if not self._fetcher.is_running:
                self._fetcher.start(itertools.starmap(self._plan, order.batches_from(number)))
            entry = self._take()
            if isinstance(entry, Failure):
                self._position = order, number + entry.batches
                raise entry.error
            self._position = order, number + 1
            return self._hand_out(*entry)

    def keep_until(self, event: Event, slot: RingSlot) -> None:
        """Hold a slot until the event has fired: Batch.release()."""
        self._fetcher.keep_until(event, slot)

    def count_copy(self, length: int) -> None:
        """Count a copy that a batch makes, in bytes."""
        with self._count_lock:
            self._counts.update(copies=1, copied_bytes=length)

    def _take(self) -> tuple[RingSlot, Plan] | Failure:
        ready = self._fetcher.ready
        try:
            entry = ready.get_nowait()
        except queue.Empty:
            entry = self._wait()
        if isinstance(entry, Failure) and entry.is_last:
            ready.put(entry)
        return entry

    def _wait(self) -> tuple[RingSlot, Plan] | Failure:
        began = time.monotonic()
        try:
            return self._fetcher.ready.get(timeout=self._timeout)
        except queue.Empty:
            raise self._late_error() from None
        finally:
            self._counts["waits"] += 1
            self._counts["wait_seconds"] += time.monotonic() - began  # type: ignore[assignment]

    def _hand_out(self, slot: RingSlot, plan: Plan) -> Batch:
        self._counts["batches"] += 1
        self._counts["samples"] += len(plan.samples)
        batch = Batch(self, slot, plan)
        self._holders[slot.number] = weakref.ref(slot), weakref.ref(batch)
        return batch

    def _move(self, order: Order) -> None:
        self._check_usable()
        self._fetcher.stop()
        self._position = order, 0

    def _check_usable(self) -> None:
        if self._closed:
            raise _closed_error()

    def _late_error(self) -> Error:
        reason = self._fetcher.waiting_for() or (
            "no slot is free: %s: release batches, delete their views, or use more slots"
            % "; ".join(self._describe_holders()))
        return TimedOut(errno.ETIMEDOUT, "next batch: it was not ready after %g s: %s" % (self._timeout, reason))

    def _describe_holders(self) -> Iterator[str]:
        for number, (slot_reference, batch_reference) in sorted(self._holders.items()):
            slot, batch = slot_reference(), batch_reference()
            if slot and batch and batch.is_held:
                yield "slot %d has batch %d of epoch %d, which is not released" % (number, batch.number, batch.epoch)
            elif slot:
                yield "slot %d was released, and %s" % (
                    number, "its event has not fired" if self._fetcher.is_kept(slot) else "views of it exist")


class Epoch:
    """An iterator over the rest of an epoch. Any number of threads may share it."""

    def __init__(self, loader: Loader, order: Order) -> None:
        self._loader, self._order = loader, order

    def __iter__(self) -> "Epoch":
        return self

    def __next__(self) -> Batch:
        batch = self._loader.next_batch(self._order)
        if batch is None:
            raise StopIteration
        return batch


def longest_batch(lengths: Iterable[int], batch_size: int, align: int) -> int:
    """Return a size in bytes that is enough for every batch: that of one with the longest samples."""
    needed = sum(-(-length // align) * align for length in heapq.nlargest(batch_size, lengths))
    if needed >= _LARGEST_SLOT:
        raise OutOfRange(errno.ERANGE, "a batch can have %d bytes: choose a smaller batch_size, or a slot_size"
                         % needed)
    return max(1, -(-needed // _PAGE)) * _PAGE


def _closed_error() -> ValueError:
    return ValueError("the loader is closed")


def _close_all(process: int, fetcher: Fetcher, pd: ProtectionDomain | None) -> None:
    if os.getpid() != process:
        return
    fetcher.close()
    if pd:
        try:
            pd.close()
        except Busy:
            pass  # batches and views keep the memory, and the last one closes it

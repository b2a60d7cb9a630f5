# SPDX-License-Identifier: BSD-3-Clause
"""The order in which a rank gets the samples of an epoch.

All ranks walk one permutation of the data set, which seed and epoch select: rank r of w gets the positions base + r,
base + r + w, base + r + 2w and so on. Each batch is computed by itself, so an epoch takes no memory, and can be
resumed anywhere, also by another number of ranks or with another batch size.
"""

from array import array
from collections.abc import Iterator
from typing import Any

from .. import _pier

_UINT64 = (1 << 64) - 1


class Order:
    """The batches of one rank in one epoch. Immutable; any number of threads may use it."""

    __slots__ = ("_stop", "base", "batch_size", "batches", "count", "drop_last", "epoch", "rank", "seed", "shuffle",
                 "world")

    def __init__(self, count: int, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True,
                 rank: int = 0, world: int = 1, base: int = 0, drop_last: bool = False) -> None:
        """Describe an order.

        count       samples of the data set
        batch_size  samples of a batch; the last batch of an epoch may have fewer
        base        samples of the epoch that the ranks have had before
        drop_last   leave out incomplete batches, so that each rank gets as many batches; otherwise ranks can differ
                    by one sample, and so by one batch

        Raises ValueError if a number is out of range.
        """
        for name, value, low, high in (
                ("count", count, 0, 1 << 62), ("batch_size", batch_size, 1, 1 << 31), ("seed", seed, 0, _UINT64),
                ("epoch", epoch, 0, 1 << 62), ("world", world, 1, 1 << 31), ("rank", rank, 0, world - 1),
                ("base", base, 0, count)):
            if not low <= value <= high:
                raise ValueError("%s is %d: it must be between %d and %d" % (name, value, low, high))
        self.count, self.batch_size, self.base = count, batch_size, base
        self.seed, self.epoch, self.shuffle = seed, epoch, shuffle
        self.rank, self.world, self.drop_last = rank, world, drop_last
        if drop_last:
            self.batches = (count - base) // world // batch_size
        else:
            self.batches = -(-len(range(base + rank, count, world)) // batch_size)
        self._stop = self.base_after(self.batches) if drop_last else count

    def batch(self, number: int) -> "array[int]":
        """Return the samples of a batch, 0 <= number < batches, as an array of uint64."""
        start = self.base_after(number) + self.rank
        positions = range(start, min(self._stop, start + self.batch_size * self.world), self.world)
        if not self.shuffle:
            return array("Q", positions)
        samples = array("Q", bytes(8 * len(positions)))
        _pier._permute(samples, self.count, self.seed, self.epoch, start, self.world)
        return samples

    def base_after(self, batches: int) -> int:
        """Return the base with which an order continues when each rank has had this many batches."""
        return min(self.count, self.base + batches * self.batch_size * self.world)

    def at(self, epoch: int, base: int = 0, **changes: Any) -> "Order":
        """Return the same order in another epoch or with another base."""
        options: dict[str, Any] = {"seed": self.seed, "shuffle": self.shuffle, "rank": self.rank,
                                   "world": self.world, "drop_last": self.drop_last, **changes}
        return Order(self.count, self.batch_size, epoch=epoch, base=base, **options)

    def batches_from(self, number: int) -> "Iterator[tuple[Order, int]]":
        """Yield the order and number of all batches from this one on, epoch after epoch."""
        order = self
        # An epoch that begins with no batch has none the next time.
        while order.batches or order.base:
            for n in range(number, order.batches):
                yield order, n
            order, number = order.at(order.epoch + 1), 0

# SPDX-License-Identifier: BSD-3-Clause
"""The order in which a rank gets the samples of an epoch.

All ranks walk one permutation of the dataset, which seed and epoch select: rank r of w gets the positions base + r,
base + r + w, base + r + 2w and so on. Each batch is computed by itself, so an epoch takes no memory, and can be
resumed anywhere, also by another number of ranks or with another batch size.
"""

from array import array

from pier import _pier

_UINT64 = (1 << 64) - 1


class Order:
    """The batches of one rank in one epoch.

    count       samples of the dataset
    batch_size  samples of a batch; the last batch of the epoch may have fewer
    base        samples of the epoch that the ranks have had before
    drop_last   leave out incomplete batches, so that each rank gets the same number of batches; without it, ranks can
                differ by one sample, and so by one batch

    An Order does not change, and any thread may use it. Errors: ValueError a number is out of range.
    """

    __slots__ = ("_stop", "base", "batch_size", "batches", "count", "epoch", "rank", "seed", "shuffle", "world")

    def __init__(self, count, batch_size, *, seed=0, epoch=0, shuffle=True, rank=0, world=1, base=0, drop_last=False):
        for name, value, low, high in (
                ("count", count, 0, 1 << 62), ("batch_size", batch_size, 1, 1 << 31), ("seed", seed, 0, _UINT64),
                ("epoch", epoch, 0, 1 << 62), ("world", world, 1, 1 << 31), ("rank", rank, 0, world - 1),
                ("base", base, 0, count)):
            if not low <= value <= high:
                raise ValueError("%s is %d: it must be between %d and %d" % (name, value, low, high))
        self.count, self.batch_size, self.base = count, batch_size, base
        self.seed, self.epoch, self.shuffle = seed, epoch, shuffle
        self.rank, self.world = rank, world
        if drop_last:
            self.batches = (count - base) // world // batch_size
        else:
            self.batches = -(-len(range(base + rank, count, world)) // batch_size)
        self._stop = min(count, self.base_after(self.batches)) if drop_last else count

    def batch(self, number):
        """Return the samples of a batch, 0 <= number < batches, as an array of uint64."""
        start = self.base_after(number) + self.rank
        positions = range(start, min(self._stop, start + self.batch_size * self.world), self.world)
        if not self.shuffle:
            return array("Q", positions)
        samples = array("Q", bytes(8 * len(positions)))
        _pier._permute(samples, self.count, self.seed, self.epoch, start, self.world)
        return samples

    def base_after(self, batches):
        """Return the base with which an Order continues when each rank has had this many batches."""
        return min(self.count, self.base + batches * self.batch_size * self.world)

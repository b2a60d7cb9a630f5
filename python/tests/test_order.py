# SPDX-License-Identifier: BSD-3-Clause
"""The order of samples: seeded, exact, sharded, and resumed anywhere."""

import os
import random
import unittest
from array import array

from pier import _pier
from pier.data.order import Order

SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)
MASK = (1 << 64) - 1
GOLDEN = [2, 7, 4, 3, 1, 0, 9, 6, 5, 8]  # of seed 1, epoch 2 and 10 samples


def mix(value):
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9 & MASK
    value = (value ^ value >> 27) * 0x94d049bb133111eb & MASK
    return value ^ value >> 31


def permuted(position, count, seed, epoch):
    """The permutation as python/extension/data.c defines it; saved states rely on these numbers."""
    bits = max(2, (count - 1).bit_length())
    right_bits = bits - bits // 2
    state = mix((mix(seed) + epoch) & MASK)
    keys = [mix((state + (i + 1) * 0x9e3779b97f4a7c15) & MASK) for i in range(8)]
    while True:
        left, right = position >> right_bits, position & (1 << right_bits) - 1
        for i in range(0, 8, 2):
            left ^= mix((right + keys[i]) & MASK) & (1 << bits // 2) - 1
            right ^= mix((left + keys[i + 1]) & MASK) & (1 << right_bits) - 1
        position = left << right_bits | right
        if position < count:
            return position


def samples(order, first=0):
    return [sample for number in range(first, order.batches) for sample in order.batch(number)]


class OrderTest(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)

    def test_permutation_is_the_documented_one(self):
        for count in (1, 2, 3, 4, 5, 7, 64, 65, 1000, (1 << 40) + 3):
            seed, epoch = self.random.getrandbits(64), self.random.randrange(1000)
            start = self.random.randrange(count)
            length = min(count - start, 50)
            out = array("Q", bytes(8 * length))
            _pier._permute(out, count, seed, epoch, start, 1)
            self.assertEqual(list(out), [permuted(start + i, count, seed, epoch) for i in range(length)])

    def test_numbers_of_old_states_are_kept(self):
        self.assertEqual(list(Order(10, 10, seed=1, epoch=2).batch(0)), GOLDEN)

    def test_each_epoch_has_each_sample_once(self):
        for count in (0, 1, 2, 3, 5, 100, 4097):
            for epoch in range(3):
                order = Order(count, 7, seed=self.random.getrandbits(64), epoch=epoch)
                self.assertEqual(sorted(samples(order)), list(range(count)))

    def test_seed_and_epoch_change_the_order(self):
        orders = {tuple(samples(Order(100, 10, seed=seed, epoch=epoch))) for seed in range(5) for epoch in range(5)}
        self.assertEqual(len(orders), 25)

    def test_small_permutations_are_all_reached_evenly(self):
        seen = {}
        for seed in range(2400):
            key = tuple(Order(4, 4, seed=seed).batch(0))
            seen[key] = seen.get(key, 0) + 1
        self.assertEqual(len(seen), 24)
        self.assertLess(max(seen.values()), 2 * 100)
        self.assertGreater(min(seen.values()), 100 // 2)

    def test_samples_land_anywhere(self):
        """No place of the order prefers a part of the data set: chi-squared, 81 degrees of freedom."""
        cells = [[0] * 10 for _ in range(10)]
        for seed in range(40):
            for place, sample in enumerate(samples(Order(1000, 100, seed=seed))):
                cells[place // 100][sample // 100] += 1
        squared = sum((cell - 400) ** 2 / 400 for row in cells for cell in row)
        self.assertLess(squared, 150)

    def test_ranks_share_each_sample_once(self):
        for count in (0, 1, 5, 64, 1001):
            for world in (1, 2, 3, 8):
                ranks = [samples(Order(count, 4, seed=3, rank=rank, world=world)) for rank in range(world)]
                self.assertEqual(sorted(sum(ranks, [])), list(range(count)))
                self.assertLessEqual(max(map(len, ranks)) - min(map(len, ranks)), 1)

    def test_drop_last_gives_each_rank_the_same_whole_batches(self):
        for count in (0, 7, 64, 1001):
            for world in (1, 2, 3):
                orders = [Order(count, 4, seed=3, rank=rank, world=world, drop_last=True) for rank in range(world)]
                self.assertEqual({order.batches for order in orders}, {count // world // 4})
                self.assertEqual({len(order.batch(i)) for order in orders for i in range(order.batches)} - {4}, set())
                got = sum(map(samples, orders), [])
                self.assertEqual(len(got), len(set(got)))

    def test_resumed_order_continues_at_every_batch(self):
        whole = Order(103, 5, seed=9, epoch=4, rank=1, world=3)
        for done in range(whole.batches + 1):
            rest = Order(103, 5, seed=9, epoch=4, rank=1, world=3, base=whole.base_after(done))
            self.assertEqual(samples(rest), samples(whole, done))

    def test_another_world_continues_without_repeating_a_sample(self):
        before = [Order(103, 5, seed=9, rank=rank, world=3) for rank in range(3)]
        had = [sample for order in before for number in range(4) for sample in order.batch(number)]
        base = before[0].base_after(4)
        self.assertEqual(len(had), base)
        rest = [samples(Order(103, 8, seed=9, rank=rank, world=5, base=base)) for rank in range(5)]
        self.assertEqual(sorted(sum(rest, had)), list(range(103)))

    def test_without_shuffle_the_order_is_that_of_the_dataset(self):
        self.assertEqual(samples(Order(10, 4, shuffle=False, rank=1, world=2)), [1, 3, 5, 7, 9])

    def test_wrong_numbers_are_refused_with_their_range(self):
        for wrong in ({"rank": 2, "world": 2}, {"rank": -1}, {"world": 0}, {"seed": -1}, {"seed": 1 << 64},
                      {"epoch": -1}, {"base": 11}, {"batch_size": 0}, {"count": -1}):
            with self.assertRaisesRegex(ValueError, r"^\w+ is -?\d+: it must be between"):
                Order(**{"count": 10, "batch_size": 2, **wrong})

    def test_positions_past_the_end_are_refused(self):
        out = array("Q", bytes(16))
        for start, step in ((9, 1), (0, 10), (1 << 63, 1), (1, MASK)):
            with self.assertRaisesRegex(ValueError, "below 10"):
                _pier._permute(out, 10, 0, 0, start, step)
        with self.assertRaises(ValueError):
            _pier._permute(bytearray(9), 10, 0, 0, 0, 1)
        with self.assertRaises((TypeError, BufferError)):
            _pier._permute(bytes(8), 10, 0, 0, 0, 1)

    def test_reads_pack_the_samples_in_order(self):
        table = array("Q", [0, 100, 30, 2, 7, 64, 1, 0, 0, 1, 5, 1])
        reads = memoryview(_pier._plan_reads(array("Q", [1, 2, 3, 0]), table, 64)).cast("Q").tolist()
        self.assertEqual([tuple(reads[i:i + 4]) for i in range(0, 16, 4)],
                         [(0, 7, 64, 2), (64, 0, 0, 1), (64, 5, 1, 1), (128, 100, 30, 0)])
        self.assertEqual(memoryview(_pier._plan_reads(array("Q", [3, 0]), table, 1)).cast("Q")[4], 1)
        self.assertEqual(_pier._plan_reads(b"", table, 1), b"")

    def test_reads_of_samples_that_are_not_in_the_table_are_refused(self):
        table = array("Q", [0, 0, 1, 0, 0, MASK])
        for samples, align in (([2], 1), ([MASK], 1), ([0], 0), ([0, 1], 64), ([1, 0], 64)):
            with self.assertRaisesRegex(ValueError, "not in the table"):
                _pier._plan_reads(array("Q", samples), table, align)
        with self.assertRaises(ValueError):
            _pier._plan_reads(bytes(7), table, 1)


if __name__ == "__main__":
    print("# PIER_SEED=%d" % SEED)
    unittest.main()

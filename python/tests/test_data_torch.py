#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier.data.torch: a DataLoader of PyTorch over servers, with workers and without."""

import pickle
import unittest

import serving

try:
    import torch
except ImportError:
    torch = None
else:
    from torch.utils.data import DataLoader

    from pier.data.torch import BatchDataset
SEED = serving.SEED


def contents_of(batch):
    """A transform whose results can be sent by a worker."""
    return [(sample, bytes(batch.fields(n)["bin"])) for n, sample in enumerate(batch.samples)]


@unittest.skipUnless(torch, "PyTorch is not installed")
class Torch(serving.Case):
    def dataset(self, **options):
        dataset = BatchDataset([self.serve().url], 8, seed=SEED, **options)
        self.addCleanup(dataset.close)
        return dataset

    def check_equal(self, found, expected):
        self.assertEqual([sample for sample, _ in found], [sample for sample, _ in expected])
        self.assertTrue(found == expected)

    def check_samples(self, found):
        self.assertEqual(sorted(sample for sample, _ in found), list(range(self.COUNT)))
        for sample, body in found:
            self.assertEqual(body, self.contents[sample][1])

    def test_tensors_are_views_of_the_slots(self):
        dataset = self.dataset()
        found = []
        for batch in DataLoader(dataset, batch_size=None):
            for sample in batch:
                self.assertEqual(sample["bin"].dtype, torch.uint8)
                found.append((sample["__key__"], sample["bin"].numpy().tobytes(), int(bytes(sample["cls"].tolist()))))
        self.assertEqual(sorted(found), sorted(self.contents))
        self.assertEqual(dataset._loader.stats()["copies"], 0)

    def test_slot_waits_for_its_tensors(self):
        dataset = self.dataset(slots=4)
        iterator = iter(dataset)
        first = next(iterator)
        before = [sample["bin"].clone() for sample in first]
        for _ in range(8):
            next(iterator)
        for sample, copy in zip(first, before):
            self.assertTrue(torch.equal(sample["bin"], copy))

    def test_workers_divide_the_samples(self):
        for workers, options in ((2, {}), (3, {"persistent_workers": True})):
            loader = DataLoader(self.dataset(transform=contents_of), batch_size=None, num_workers=workers, **options)
            for _ in range(2):
                self.check_samples([sample for batch in loader for sample in batch])

    def test_ranks_divide_the_samples(self):
        found = []
        for rank in range(2):
            for batch in DataLoader(self.dataset(transform=contents_of, rank=rank, world=2), batch_size=None,
                                    num_workers=2):
                found += batch
        self.check_samples(found)

    def test_epochs_differ_and_can_be_set(self):
        dataset = self.dataset(transform=contents_of)
        epochs = [[sample for batch in dataset for sample in batch] for _ in range(2)]
        self.assertFalse(epochs[0] == epochs[1])
        dataset.set_epoch(0)
        self.check_equal([sample for batch in dataset for sample in batch], epochs[0])
        dataset.set_epoch(1)
        loader = DataLoader(dataset, batch_size=None, num_workers=1)
        self.check_equal([tuple(sample) for batch in loader for sample in batch], epochs[1])

    def test_state_continues_exactly(self):
        dataset = self.dataset(transform=contents_of)
        whole = [sample for batch in dataset for sample in batch]
        dataset.set_epoch(0)
        iterator = iter(dataset)
        first = [sample for _ in range(4) for sample in next(iterator)]
        state = dataset.state_dict()
        other = BatchDataset(dataset._urls, 8, seed=SEED, transform=contents_of)
        self.addCleanup(other.close)
        other.load_state_dict(state)
        self.assertEqual(other.state_dict(), state)
        self.check_equal(first + [sample for batch in other for sample in batch], whole)

    def test_copy_makes_connections_of_its_own(self):
        dataset = self.dataset(transform=contents_of)
        next(iter(dataset))
        copy = pickle.loads(pickle.dumps(dataset))
        self.addCleanup(copy.close)
        dataset.close()
        self.check_samples([sample for batch in copy for sample in batch])

    def test_worker_does_not_use_the_loader_of_its_parent(self):
        dataset = self.dataset(transform=contents_of)
        next(iter(dataset))
        dataset.set_epoch(0)
        self.check_samples([sample for batch in DataLoader(dataset, batch_size=None, num_workers=1)
                            for sample in batch])


if __name__ == "__main__":
    serving.main()

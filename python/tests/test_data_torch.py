#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier.data.torch: a DataLoader of PyTorch over servers, with workers and without."""

import importlib.util
import multiprocessing
import os
import pickle
import sys
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


def load_torchdata():
    """Without the packages beside it, which are newer than those of this interpreter."""
    folder = os.environ.get("PIER_TORCHDATA")
    if not folder:
        raise unittest.SkipTest("torchdata is not installed")
    spec = importlib.util.spec_from_file_location("torchdata", folder + "/__init__.py",
                                                  submodule_search_locations=[folder])
    sys.modules["torchdata"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader


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

    def test_iterations_are_whole_epochs_with_any_number_of_workers(self):
        expected = {}
        for workers, options in ((0, {}), (1, {}), (1, {"persistent_workers": True}), (2, {}),
                                 (2, {"persistent_workers": True})):
            with self.subTest(workers=workers, **options):
                dataset = self.dataset(transform=contents_of)
                loader = DataLoader(dataset, batch_size=None, num_workers=workers, **options)
                next(iter(loader))
                for epoch in 0, 0, 1, 0:
                    dataset.set_epoch(epoch)
                    found = [tuple(sample) for batch in loader for sample in batch]
                    self.check_samples(found)
                    self.check_equal(found, expected.setdefault((epoch, max(workers, 1)), found))
        self.assertFalse(expected[0, 1] == expected[1, 1])

    def test_iteration_ends_an_earlier_one_with_an_error(self):
        dataset = self.dataset(transform=contents_of)
        earlier = iter(dataset)
        next(earlier)
        later = iter(dataset)
        next(later)
        with self.assertRaisesRegex(RuntimeError, "later iteration"):
            next(earlier)
        self.assertEqual(len(list(later)), len(dataset) - 1)

    def test_length_is_that_of_an_epoch(self):
        for options in {}, {"drop_last": True}, {"rank": 1, "world": 2}:
            dataset = self.dataset(transform=contents_of, memory="memfd", **options)
            loader = DataLoader(dataset, batch_size=None)
            self.assertEqual(len(loader), len(list(loader)))

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

    def test_rest_of_an_epoch_comes_once(self):
        dataset = self.dataset(transform=contents_of)
        dataset.set_epoch(3)
        iterator = iter(dataset)
        had = [sample for _ in range(4) for sample in next(iterator)]
        state = dataset.state_dict()
        rest = sorted([sample for batch in iterator for sample in batch])
        for workers, options in ((0, {}), (2, {}), (2, {"persistent_workers": True})):
            with self.subTest(workers=workers, **options):
                other = self.dataset(transform=contents_of, epoch=1)
                loaded = multiprocessing.Event()
                loader = DataLoader(other, batch_size=None, num_workers=workers, **options,
                                    worker_init_fn=lambda number: number and loaded.wait(serving.PATIENCE))
                if options:
                    next(iter(loader))  # the other worker begins this iteration when the state is there
                other.load_state_dict(state)
                loaded.set()
                self.assertEqual(other.state_dict(), state)
                other.set_epoch(torch.tensor(3))  # as programs do before each epoch, with any kind of int
                self.assertEqual(sorted(tuple(sample) for batch in loader for sample in batch), rest)
                found = [tuple(sample) for batch in loader for sample in batch]
                self.assertEqual(sorted(found), sorted(had + rest))
                other.set_epoch(4)
                self.check_samples([tuple(sample) for batch in loader for sample in batch])

    def test_state_of_workers_is_not_known_to_their_parent(self):
        dataset = self.dataset(transform=contents_of)
        before = dataset.state_dict()
        for options in {}, {"persistent_workers": True}:
            iterator = iter(DataLoader(dataset, batch_size=None, num_workers=2, **options))
            next(iterator)
            with self.assertRaisesRegex(RuntimeError, "StatefulDataLoader"):
                dataset.state_dict()
            dataset.set_epoch(0)
            self.assertEqual(dataset.state_dict(), before)
            del iterator

    def test_stateful_loader_continues_exactly(self):
        stateful = load_torchdata()
        for workers, options in ((0, {}), (2, {}), (2, {"persistent_workers": True})):
            with self.subTest(workers=workers, **options):
                loaders = [stateful(self.dataset(transform=contents_of), batch_size=None, num_workers=workers,
                                    **options) for _ in range(2)]
                iterator = iter(loaders[0])
                had = [tuple(sample) for _ in range(5) for sample in next(iterator)]
                state = loaders[0].state_dict()
                rest = [tuple(sample) for batch in iterator for sample in batch]
                self.check_samples(had + rest)
                loaders[1].load_state_dict(state)
                self.check_equal([tuple(sample) for batch in loaders[1] for sample in batch], rest)
                for loader in loaders:
                    self.check_equal([tuple(sample) for batch in loader for sample in batch], had + rest)

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

# SPDX-License-Identifier: BSD-3-Clause
"""The loader over soft0, with servers in processes of their own: order, state, slots, copies."""

import ctypes
import gc
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import unittest
import weakref

import pier
import serving
from pier.data import Loader
from pier.data.loader import longest_batch
from pier.data.order import Order


class FakeEvent:
    def __init__(self):
        self.fired = False
        self.asked = 0

    def query(self):
        self.asked += 1
        return self.fired


class LoaderTest(serving.Case):
    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def load(self, batch_size=7, **options):
        loader = Loader(self.server.url, batch_size, **{"device": "soft0", "seed": 3, **options})
        self.addCleanup(loader.close)
        return loader

    def expected(self, batch_size=7, **options):
        order = Order(self.COUNT, batch_size, **{"seed": 3, **options})
        return [sample for number in range(order.batches) for sample in order.batch(number)]

    def test_each_epoch_has_each_sample_once_in_the_seeded_order(self):
        with self.load() as loader:
            self.assertEqual(len(loader), 15)
            for epoch in range(3):
                self.assertEqual(loader.epoch, epoch)
                samples = self.read(loader)
                self.assertEqual(samples, self.expected(epoch=epoch))
                self.assertEqual(sorted(samples), list(range(self.COUNT)))

    def test_two_servers_share_the_batches(self):
        other = self.serve()
        with Loader([self.server.url, other.url], 7, device="soft0", seed=3) as loader:
            servers = []
            for batch in loader:
                self.check_batch(batch)
                servers.append(batch.server)
        self.assertEqual(len(set(servers)), 2)
        self.assertGreaterEqual(min(servers.count(server) for server in servers), 3)

    def test_servers_of_different_data_are_refused(self):
        self.write_dataset(self.folder / "other", 10)
        other = self.serve(self.folder / "other")
        descriptors = serving.count_descriptors()
        with self.assertRaisesRegex(ValueError, "serves other data"):
            Loader([self.server.url, other.url], 7, device="soft0")
        self.wait_for(lambda: gc.collect() is not None and serving.count_descriptors() <= descriptors,
                      "descriptors are left")

    def test_state_of_every_position_continues_the_order(self):
        expected = self.expected() + self.expected(epoch=1)
        for slots in (2, 5):
            for done in range(16):
                with self.load(slots=7 - slots) as loader:
                    iterator = iter(loader)
                    for _ in range(done):
                        next(iterator).release()
                    state = loader.state_dict()
                with self.load(slots=slots, seed=99) as loader:
                    loader.load_state_dict(state)
                    self.assertEqual(self.read(loader) + self.read(loader), expected[min(7 * done, self.COUNT):])

    def test_state_can_be_loaded_while_batches_are_read_ahead(self):
        with self.load() as loader:
            iterator = iter(loader)
            next(iterator)
            state = loader.state_dict()
            for _ in range(5):
                kept = next(iterator)
            loader.load_state_dict(state)
            self.check_batch(kept)
            kept.release()
            self.assertRaises(StopIteration, next, iterator)
            self.assertEqual(self.read(loader), self.expected()[7:])

    def test_set_epoch_goes_to_its_beginning(self):
        with self.load() as loader:
            next(iter(loader)).release()
            loader.set_epoch(5)
            self.assertEqual(self.read(loader), self.expected(epoch=5))
            loader.set_epoch(6)
            self.assertEqual(self.read(loader), self.expected(epoch=6))

    def test_states_that_do_not_fit_are_refused(self):
        with self.load() as loader:
            state = loader.state_dict()
            for wrong in ({"version": 2}, {"dataset": "0" * 64}, {"seed": "3"}, {"base": -1}, {"base": 102},
                          {"epoch": True}, {"shuffle": None}):
                with self.assertRaises(ValueError):
                    loader.load_state_dict({**state, **wrong})
            self.assertEqual(self.read(loader), self.expected())

    def test_numbers_out_of_range_are_named(self):
        for name, numbers in (("batch_size", (0, -1, 1 << 40)), ("slots", (0, -1, 1 << 32)), ("align", (0, -1)),
                              ("timeout", (0, -1, float("inf"), float("nan"))), ("world", (0,)), ("rank", (1,))):
            for number in numbers:
                with self.assertRaisesRegex(ValueError, "^%s is %s: it must be" % (name, number)):
                    self.load(**{name: number})

    def test_stats_while_other_threads_count(self):
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, interval)
        with self.load() as loader:
            ended = False
            # So that copying them takes a while.
            loader._fetcher.counts.update(map(str, range(100)))

            def count():
                while not ended:
                    loader._fetcher.counts["another"] += 1
                    del loader._fetcher.counts["another"]

            thread = threading.Thread(target=count)
            thread.start()
            try:
                for _ in range(1000):
                    loader.stats()
            finally:
                ended = True
                thread.join()

    def test_ranks_share_each_sample_once(self):
        for drop_last in (False, True):
            samples = []
            for rank in range(3):
                with self.load(rank=rank, world=3, drop_last=drop_last) as loader:
                    samples += self.read(loader)
            self.assertEqual(len(samples), len(set(samples)))
            self.assertEqual(len(samples), 3 * 4 * 7 if drop_last else self.COUNT)

    def test_keys_labels_and_values_are_those_of_the_samples(self):
        with self.load() as loader:
            batch = next(iter(loader))
            expected = [self.contents[sample] for sample in batch.samples]
            self.assertEqual(batch.keys, [key for key, _, _ in expected])
            self.assertEqual(loader.stats()["copies"], 0)
            self.assertEqual(batch.labels(), [label for _, _, label in expected])
            values = batch.values("bin")
            self.assertEqual(values, [body for _, body, _ in expected])
            self.assertEqual({type(value) for value in values}, {bytes})
            self.assertEqual(loader.stats()["copies"], 14)
            with self.assertRaisesRegex(KeyError, "no field 'nothing', but bin, cls"):
                batch.values("nothing")
            self.assertEqual(repr(batch), "<pier.data.Batch 0 of epoch 0: 7 samples>")
            self.assertEqual(repr(loader), "<pier.data.Loader of 101 samples: batch 1 of 15 of epoch 0>")
            self.assertRegex(repr(loader.index), "^<pier.data.Index of 101 samples in 2 shards, [0-9a-f]{16}>$")
            self.assertRaises(IndexError, batch.__getitem__, 7)
            self.assertEqual(bytes(batch[-1]), bytes(batch[6]))
            self.assertEqual([view.offset for view in batch[2:4]], [batch[2].offset, batch[3].offset])

    def test_consumer_makes_no_copies(self):
        with self.load(checksums=True) as loader:
            batch = next(iter(loader))
            start = loader._ring.buffer.address + batch._slot.offset
            for i in range(len(batch)):
                address = ctypes.addressof(ctypes.c_char.from_buffer(batch[i]))
                self.assertEqual(address, start + batch.offsets[i])
            whole = batch.view((batch.nbytes,))
            self.assertEqual(ctypes.addressof(ctypes.c_char.from_buffer(whole)), start)
            del batch, whole
            self.read(loader)
            stats = loader.stats()
        self.assertEqual((stats["copies"], stats["copied_bytes"]), (0, 0))
        self.assertEqual((stats["batches"], stats["samples"]), (15, self.COUNT))
        self.assertGreaterEqual(stats["reads"], self.COUNT)
        self.assertLess(stats["doorbells"], stats["reads"])

    def test_slot_that_is_held_too_long_is_named(self):
        with self.load(slots=2, timeout=0.5) as loader:
            iterator = iter(loader)
            held = [next(iterator), next(iterator)]
            with self.assertRaisesRegex(pier.TimedOut, "slot 0 has batch 0 .*; slot 1 has batch 1 of epoch 0"):
                next(iterator)
            for batch in held:
                self.check_batch(batch)
            view = held[0][0]
            held[0].release()
            self.assertRaisesRegex(ValueError, "released", held[0].__getitem__, 0)
            with self.assertRaisesRegex(pier.TimedOut, "slot 0 was released, and views of it exist"):
                next(iterator)
            del view
            self.assertEqual(next(iterator).number, 2)

    def test_exported_memory_keeps_the_slot(self):
        with self.load(slots=2, timeout=0.5) as loader:
            iterator = iter(loader)
            first, second = next(iterator), next(iterator)
            exports = [memoryview(first[0]), second[1].__dlpack__()]
            body = bytes(exports[0])
            first.release()
            second.release()
            self.assertRaises(pier.TimedOut, next, iterator)
            self.assertEqual(bytes(exports[0]), body)
            del exports[1]
            self.assertEqual(next(iterator).number, 2)

    def test_slot_waits_for_its_event(self):
        with self.load(slots=1, timeout=0.5) as loader:
            iterator, event = iter(loader), FakeEvent()
            batch = next(iterator)
            batch.release(event)
            with self.assertRaisesRegex(pier.TimedOut, "slot 0 was released, and its event has not fired"):
                next(iterator)
            self.assertGreater(event.asked, 1)
            event.fired = True
            self.assertEqual(next(iterator).number, 1)
            self.assertRaises(ValueError, batch.release, event)

    def test_memory_of_a_closed_loader_lasts_until_the_event_has_fired(self):
        event = FakeEvent()
        with self.load() as loader:
            batch = next(iter(loader))
            slot = weakref.ref(batch._slot)
            batch.release(event)
        self.load().close()
        self.assertIsNotNone(slot())
        event.fired = True
        self.load().close()
        self.assertIsNone(slot())

    def test_error_of_an_event_reaches_the_consumer(self):
        class Broken:
            def query(self):
                raise ZeroDivisionError

        with self.load(slots=1) as loader:
            iterator = iter(loader)
            next(iterator).release(Broken())
            for _ in range(2):
                self.assertRaises(ZeroDivisionError, next, iterator)
            loader.set_epoch(1)
            self.assertEqual(self.read(loader), self.expected(epoch=1))

    def test_batches_outlive_the_loader(self):
        loader = self.load()
        batch = next(iter(loader))
        loader.close()
        loader.close()
        self.check_batch(batch)
        self.assertRaisesRegex(ValueError, "closed", next, iter(loader))

    def test_loader_that_is_forgotten_frees_everything(self):
        def forget_loader():
            loader = Loader(self.server.url, 7, device="soft0")
            view = next(iter(loader))[0]
            del loader, view
            gc.collect()
            return serving.count_descriptors(), threading.active_count()

        first = forget_loader()
        self.assertEqual([forget_loader() for _ in range(3)], [first] * 3)

    def test_garbage_collection_in_the_thread_of_the_loader_closes_it(self):
        class Event:
            def query(self):
                if self.loader:
                    self.loader = None
                    gc.collect()
                return True

        loader, event = Loader(self.server.url, 7, device="soft0"), Event()
        threads = threading.active_count()
        event.loader, batch = loader, next(iter(loader))
        fetcher = loader._fetcher
        slot = batch._slot
        del loader, batch
        fetcher.keep_until(event, slot)
        del slot
        self.wait_for(lambda: threading.active_count() < threads + 1, "the thread of the loader stays")
        self.assertEqual(event.loader, None)
        self.assertIsNone(fetcher._thread)

    def test_close_ends_a_wait_of_another_thread(self):
        loader = self.load(slots=1)
        held = next(iter(loader))
        errors = []

        def consume():
            try:
                next(iter(loader))
            except ValueError as error:
                errors.append(str(error))

        thread = threading.Thread(target=consume)
        thread.start()
        self.wait_for(lambda: loader._lock.locked(), "the thread does not wait")
        loader.close()
        thread.join(serving.PATIENCE)
        self.assertEqual(errors, ["the loader is closed"])
        self.check_batch(held)

    def test_threads_share_an_iterator(self):
        with self.load(slots=4, batch_size=3) as loader:
            iterator, numbers = iter(loader), []

            def consume():
                for batch in iterator:
                    self.check_batch(batch)
                    numbers.append(batch.number)

            threads = [threading.Thread(target=consume) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(serving.PATIENCE)
        self.assertEqual(sorted(numbers), list(range(34)))

    def test_child_of_fork_cannot_use_the_loader(self):
        with self.load() as loader:
            iterator = iter(loader)
            batch = next(iterator)
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    next(iterator)
                except pier.Forked:
                    status = 0
                finally:
                    del iterator, batch
                    os._exit(status)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.check_batch(batch)
            batch.release()
            self.assertEqual(self.read(loader), self.expected()[7:])

    def test_child_of_fork_ends_without_touching_the_loader(self):
        script = """if True:
            import faulthandler, os, signal, sys
            from pier.data import Loader
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            with Loader(sys.argv[1], 7, device="soft0") as loader:
                batch = next(iter(loader))
                if not os.fork():
                    sys.exit(0)
                print(os.wait()[1], sum(len(batch) for batch in loader))
        """
        process = subprocess.Popen([sys.executable, "-B", "-W", "ignore", "-c", script, self.server.url],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        # Processes that hang show where.
        watchdog = threading.Timer(serving.PATIENCE / 2, os.killpg, (process.pid, signal.SIGUSR1))
        killer = threading.Timer(serving.PATIENCE, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        killer.start()
        output = process.communicate()
        watchdog.cancel()
        killer.cancel()
        self.assertEqual(output, ("0 94\n", ""))

    def test_corrupted_sample_is_named(self):
        damaged = self.serve("--memory", "file", "--checksums", self.folder / "data")
        with self.load(shuffle=False) as loader:
            shard, offset, _ = loader.index.table[3 * 60:3 * 61]
        with open(self.folder / "data" / ("%d.tar" % shard), "r+b") as file:
            file.seek(offset + 512)  # behind the header of the first file
            byte = file.read(1)
            file.seek(offset + 512)
            file.write(bytes([byte[0] ^ 1]))
        with Loader(damaged.url, 7, device="soft0", shuffle=False, checksums=True) as loader:
            iterator = iter(loader)
            for _ in range(8):
                next(iterator)
            with self.assertRaisesRegex(pier.BadMessage, r"sample 60 \(.*\) of batch 8 .*%s" % damaged.address):
                next(iterator)
            self.assertEqual(next(iterator).number, 9)
            self.assertEqual(loader.state_dict()["base"], 70)

    def test_batch_that_does_not_fit_its_slot_is_refused(self):
        with self.load(slot_size=64) as loader:
            self.assertRaises(pier.OutOfRange, next, iter(loader))

    def test_longest_batch_fits(self):
        self.assertEqual(longest_batch([], 3, 256), 4096)
        self.assertEqual(longest_batch([1, 5000, 2, 4000], 2, 256), 12288)
        self.assertEqual(longest_batch([4096] * 5, 3, 1), 3 * 4096)
        self.assertRaises(pier.OutOfRange, longest_batch, [1 << 63] * 5, 3, 1)


class EmptyTest(serving.Case):
    def test_empty_samples_and_fewer_samples_than_ranks(self):
        folder = self.folder / "files"
        folder.mkdir()
        (folder / "a").write_bytes(b"")
        (folder / "b").write_bytes(b"b")
        server = self.serve(folder)
        got = []
        for rank in range(3):
            with Loader(server.url, 4, device="soft0", rank=rank, world=3) as loader:
                got += [(key, bytes(batch[i])) for batch in loader for i, key in enumerate(batch.keys)]
                self.assertEqual(list(loader) if rank == 2 else [], [])
        self.assertEqual(sorted(body for _, body in got), [b"", b"b"])


@unittest.skipUnless(os.path.exists(os.environ.get("FAKE_DRIVERS", "") + "/libcuda.so.1"),
                     "FAKE_DRIVERS is not the folder of the fake CUDA driver")
class DeviceMemoryTest(serving.Case):
    def test_batches_are_in_device_memory(self):
        server = self.serve()
        script = """if True:
            import sys, zlib
            from pier.data import Loader
            with Loader(sys.argv[1], 7, device="soft0", memory="cuda:0", checksums=True, seed=3) as loader:
                for batch in loader:
                    view = batch[0]
                    assert view.__dlpack_device__() == (2, 0), view.__dlpack_device__()
                    assert view.__cuda_array_interface__["shape"] == (batch.lengths[0],)
                    print(*batch.labels())
                    batch.release()
                stats = loader.stats()
                # Of checksums, also of batches that were read ahead, and of labels.
                assert stats["copies"] >= 2 * stats["samples"], stats
        """
        result = self.run_script(script, server)
        order = Order(self.COUNT, 7, seed=3)
        self.assertEqual([int(label) for label in result.stdout.split()],
                         [self.contents[sample][2] for n in range(order.batches) for sample in order.batch(n)])

    def test_example_of_the_documentation_runs(self):
        server = self.serve()
        text = (pathlib.Path(__file__).parents[2] / "docs/loader.md").read_text()
        block = r"(?:^(?:    .*|)\n)*"
        example = textwrap.dedent(re.search(block + r"^    .*torch\.from_dlpack.*\n" + block, text, re.M).group())
        # PyTorch finds no device behind the fake driver.
        prelude = """if True:
            import sys, types
            class Event:
                def record(self): self.asked = 0
                def query(self): self.asked += 1; return self.asked > 2
            torch = sys.modules["torch"] = types.ModuleType("torch")
            torch.cuda, torch.from_dlpack = types.SimpleNamespace(Event=Event), lambda view: view.__dlpack__()
            urls, train = sys.argv[1], lambda images, labels: print(len(images), len(labels))
        """
        result = self.run_script(textwrap.dedent(prelude) + "\n" + example, server)
        self.assertEqual(result.stdout.split(), ["64", "64", "37", "37"] * 2)

    def run_script(self, script, server):
        result = subprocess.run(
            [sys.executable, "-B", "-c", script, server.url], stdout=subprocess.PIPE, text=True,
            timeout=serving.PATIENCE,
            env={**os.environ, "PIER_DEVICE": "soft0", "LD_LIBRARY_PATH": os.environ["FAKE_DRIVERS"]})
        self.assertEqual(result.returncode, 0)
        return result


if __name__ == "__main__":
    serving.main()

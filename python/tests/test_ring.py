# SPDX-License-Identifier: BSD-3-Clause
"""pier.Ring: slots that are filled by lists of reads."""

import gc
import random
import struct
import threading
import unittest
import weakref
from array import array

import pier
from support import PATIENCE, Case

SEED = random.randrange(2 ** 32)
SIZE = 1 << 20
SLOT = 64 << 10


class RingCase(Case):
    """A server's memory, two channels to it, and a ring of three slots."""

    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.source = self.buffer(SIZE)
        self.bytes = self.random.randbytes(SIZE)
        self.source.copy_to(0, self.bytes)
        region = self.pd.register(self.source)
        self.addCleanup(region.close)
        self.remote = region.remote
        self.channels = [self.connect(), self.connect()]
        self.ring = self.make_ring()
        self.sources = [self.ring.sources([(channel, self.remote)]) for channel, _ in self.channels]

    def make_ring(self, slots=3, **keywords):
        ring = pier.Ring(self.pd, slots=slots, slot_size=SLOT, memory="memfd", **keywords)
        self.addCleanup(ring.close)
        return ring

    def connect(self):
        here, there = pier.Channel(self.pd), pier.Channel(self.pd)
        self.addCleanup(here.close)
        self.addCleanup(there.close)
        here.connect(there.endpoint)
        there.connect(here.endpoint)
        return here, there

    def choose_reads(self, count=50, source=0):
        """Reads side by side, and the bytes that they bring."""
        reads, expected = array("Q"), b""
        for _ in range(count):
            length = self.random.randrange(1, SLOT // count)
            start = self.random.randrange(SIZE - length)
            reads.extend((len(expected), start, length, source))
            expected += self.bytes[start:start + length]
        return reads, expected

    def fill(self, count=50):
        reads, expected = self.choose_reads(count)
        self.ring.begin(self.sources[0], reads)
        return expected

    def next(self):
        slot = self.ring.next(PATIENCE)
        self.assertIsNotNone(slot)
        return slot


class Fills(RingCase):
    def test_slots_are_filled_in_order(self):
        for _ in range(20):
            expected = [self.fill() for _ in range(3)]
            self.assertEqual(self.ring.free, 0)
            for one in expected:
                slot = self.next()
                self.assertEqual(len(one), slot.length)
                self.assertEqual(memoryview(slot.view()), one)
                self.assertEqual(slot.copy_from(1, 2), one[1:3])
            del slot
        self.assertEqual(self.ring.status.reads, 20 * 3 * 50)

    def test_reads_come_in_any_buffer(self):
        for reads in (bytes(struct.pack("4Q", 7, 100, 9, 0)), bytearray(struct.pack("4Q", 7, 100, 9, 0)),
                      memoryview(array("Q", [7, 100, 9, 0])).cast("B").cast("Q", (1, 4))):
            self.ring.begin(self.sources[0], reads)
            self.assertEqual(self.next().copy_from(7, 9), self.bytes[100:109])

    def test_bad_reads_take_no_slot(self):
        for error, reads in ((pier.OutOfRange, [0, SIZE, 1, 0]), (pier.OutOfRange, [SLOT, 0, 1, 0]),
                             (pier.OutOfRange, [0, 0, 1, 1]), (pier.OutOfRange, [0, 0, 1 << 32, 0]),
                             (pier.OutOfRange, [0, 0, 1, 1 << 32]), (pier.OutOfRange, [2 ** 64 - 1, 0, 1, 0]),
                             (pier.Invalid, [1, 2, 3])):
            with self.assertRaises(error):
                self.ring.begin(self.sources[0], array("Q", reads))
        with self.assertRaises(TypeError):
            self.ring.begin([], array("Q"))
        with self.assertRaises(TypeError):
            self.ring.begin(self.sources[0], 5)
        with self.assertRaises(TypeError):
            self.ring.sources([(self.remote, self.remote)])
        with self.assertRaises(TypeError):
            self.ring.sources([self.remote])
        with self.assertRaises(OverflowError):
            self.ring.retry(1 << 32, self.sources[0])
        self.assertEqual(self.ring.free, 3)

    def test_next_without_a_fill_is_an_error(self):
        with self.assertRaises(pier.Error):
            self.ring.next(0)
        self.fill()
        self.assertTrue(self.ring.wait(PATIENCE))
        self.assertTrue(self.ring.progress())
        self.next()

    def test_attributes_are_checked(self):
        for keywords, error in (({"slots": 0}, pier.Invalid), ({"slot_size": 0}, pier.Invalid),
                                ({"memory": "nosuchmemory"}, pier.NoDevice), ({"stall": 0}, pier.Invalid),
                                ({"timeout": 0}, pier.Invalid), ({"policy": "?"}, pier.Invalid),
                                ({"slot_size": 2 ** 63}, pier.OutOfRange)):
            with self.assertRaises(error, msg=keywords):
                pier.Ring(self.pd, **keywords)
        for slots in (-1, 1 << 32, (1 << 32) + 2):
            with self.assertRaises(OverflowError):
                pier.Ring(self.pd, slots=slots)
        for wrong in (self.device, None, self.source):
            with self.assertRaises(TypeError):
                pier.Ring(wrong)

    def test_slots_can_be_in_a_given_buffer(self):
        buffer = self.buffer(2 * SLOT)
        with pier.Ring(self.pd, slots=2, slot_size=SLOT, memory=buffer) as ring:
            sources = ring.sources([(self.channels[0][0], self.remote)])
            ring.begin(sources, array("Q", [0, 0, 8, 0]))
            ring.begin(sources, array("Q", [0, 8, 8, 0]))
            self.assertEqual([ring.next().offset for _ in range(2)], [0, SLOT])
            self.assertIs(ring.buffer, buffer)
        self.assertEqual(buffer.copy_from(SLOT, 8), self.bytes[8:16])


class Slots(RingCase):
    def test_views_hold_the_slot(self):
        expected = self.fill()
        slot = self.next()
        view = slot.view((10,), "uint8", 5)
        gone = weakref.ref(slot)
        del slot
        memory = memoryview(view)
        del view
        self.assertEqual(self.ring.free, 2)
        self.assertEqual(memory, expected[5:15])
        memory.release()
        self.assertIsNone(gone())
        self.assertEqual(self.ring.free, 3)

    def test_views_are_inside_of_the_slot(self):
        expected = self.fill()
        slot = self.next()
        self.assertEqual(slot.view().shape, (len(expected),))
        with self.assertRaises(pier.OutOfRange):
            slot.view((len(expected) + 1,))
        with self.assertRaises(pier.OutOfRange):
            slot.copy_from(len(expected), 1)

    def test_slots_outlive_the_ring(self):
        expected = self.fill()
        slot = self.next()
        view = slot.view()
        self.fill()
        self.ring.close()
        self.ring.close()
        self.assertTrue(self.ring.closed)
        self.assertEqual(memoryview(view), expected)
        with self.assertRaises(ValueError):
            self.ring.begin(self.sources[0], array("Q"))
        self.ring.wake()

    def test_any_thread_releases(self):
        for _ in range(100):
            while not self.ring.free:
                self.assertTrue(self.ring.wait(PATIENCE))
            expected, slot = self.fill(3), self.next()
            views = [slot.view(), slot.view()]
            del slot
            for view in views:
                threading.Thread(target=lambda view: self.assertEqual(memoryview(view), expected),
                                 args=(view,)).start()
            del view, views
        while self.ring.free < 3:
            self.assertTrue(self.ring.wait(PATIENCE))

    def test_garbage_in_any_order(self):
        for _ in range(200):
            ring = pier.Ring(self.pd, slots=2, slot_size=4096)
            sources = ring.sources([(self.channels[0][0], self.remote)])
            ring.begin(sources, array("Q", [0, 0, 100, 0]))
            ring.begin(sources, array("Q", [0, 5, 100, 0]))
            parts = [ring, sources, ring.next(PATIENCE)]
            parts.append(parts[2].view())
            del ring, sources
            self.random.shuffle(parts)
            while parts:
                parts.pop()
        gc.collect()

    def test_rounds_leave_nothing(self):
        reads = array("Q", [0, 0, 100, 0, 100, 50, 60, 0])
        for _ in range(10000):
            self.ring.begin(self.sources[0], reads)
            self.next().view()
        self.assertEqual(self.ring.free, 3)


class Failures(RingCase):
    def break_channel(self, i):
        self.channels[i][1].close()

    def test_a_failed_fill_continues_elsewhere(self):
        self.break_channel(0)
        expected = self.fill()
        for _ in range(2):
            with self.assertRaises(pier.Error) as caught:
                self.ring.next(PATIENCE)
            self.assertEqual(caught.exception.slot, 0)
        missing = self.ring.missing(0)
        self.assertTrue(missing)
        with self.assertRaises(pier.ConnectionLost):
            self.ring.begin(self.sources[0], array("Q", [0, 0, 1, 0]))
        self.assertTrue(self.ring.retry(0, self.sources[1]))
        slot = self.next()
        self.assertEqual(memoryview(slot.view()), expected)
        with self.assertRaises(pier.NoDevice):
            self.ring.retry(0, self.sources[1])

    def test_a_failed_fill_can_be_given_up(self):
        self.break_channel(0)
        self.fill()
        with self.assertRaises(pier.Error):
            self.ring.give_up()
        with self.assertRaises(pier.Error):
            self.ring.next(PATIENCE)
        self.ring.give_up()
        self.assertEqual(self.ring.free, 3)

    def test_cancelling_sources_fails_their_fills(self):
        self.fill()
        self.ring.cancel(self.sources[0])
        self.assertFalse(self.channels[0][0].connected)
        self.channels[0][0].close()
        try:
            self.next()  # it had arrived
        except pier.ConnectionLost:
            self.assertTrue(self.ring.retry(0, self.sources[1]))
            self.next()

    def test_channels_of_fills_cannot_be_closed(self):
        here, there = self.connect()
        here.set_waiting("event")
        sources = self.ring.sources([(here, self.remote)])
        self.ring.begin(sources, self.choose_reads()[0])  # more than its queue takes
        with self.assertRaises(pier.Busy):
            here.close()
        self.next()
        here.close()
        with self.assertRaises(ValueError):
            self.ring.begin(sources, array("Q", [0, 0, 1, 0]))
        there.close()

    def test_children_are_refused(self):
        self.fill()

        def use():
            errors = []
            for call in (lambda: self.ring.next(1), lambda: self.ring.begin(self.sources[0], array("Q")),
                         self.ring.close):
                try:
                    call()
                except pier.Forked:
                    errors.append("Forked")
            return errors

        self.assertEqual(self.in_child(use), repr(["Forked"] * 3))
        self.next()


class Waits(RingCase):
    def test_waits_end_at_their_time(self):
        self.assertFalse(self.ring.wait(0))
        self.assertFalse(self.ring.wait(0.05))

    def test_wake_ends_a_wait(self):
        thread = threading.Thread(target=self.ring.wake)
        thread.start()
        self.assertTrue(self.ring.wait(PATIENCE))
        thread.join()
        self.ring.wake()
        self.assertTrue(self.ring.wait(PATIENCE))
        self.assertFalse(self.ring.wait(0))

    def test_threads_take_turns(self):
        errors = []

        def work():
            try:
                for _ in range(200):
                    self.ring.wait(0)
                    self.ring.progress()
                    self.channels[0][0].poll()
                    self.assertLessEqual(self.ring.free, 3)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            self.fill(2)
            self.next()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])


if __name__ == "__main__":
    unittest.main()

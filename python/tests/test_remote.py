# SPDX-License-Identifier: BSD-3-Clause
"""Remote regions as values, and the slices of regions, spans and remote regions."""

import pickle
import unittest

import pier
from support import Case

PARTS = ((0x1000, 100, 7), (0x9000, 50, 8))
# The wire form of docs/wire.md of the part (0x1000, 100, 7), in version 1.
SINGLE = bytes.fromhex("50724d52010020000700000000000000" "0010000000000000" "6400000000000000")


class Values(unittest.TestCase):
    def setUp(self):
        self.remote = pier.Remote(PARTS)

    def test_parts_come_back(self):
        self.assertEqual(self.remote.parts, PARTS)
        self.assertEqual(len(self.remote), 150)
        self.assertEqual(pier.Remote([]).parts, ())
        self.assertEqual(pier.Remote(iter([list(PARTS[0])])).parts, PARTS[:1])

    def test_all_forms_come_back(self):
        for count in (0, 1, 2):
            remote = pier.Remote(PARTS[:count])
            self.assertEqual(pier.Remote.from_bytes(remote.to_bytes()), remote)
            self.assertEqual(pier.Remote.from_bytes(bytearray(remote.to_bytes())), remote)
            self.assertEqual(pier.Remote.from_text(str(remote)), remote)
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                self.assertEqual(pickle.loads(pickle.dumps(remote, protocol)), remote)

    def test_single_form_is_read_too(self):
        text = "pier-remote:" + SINGLE.hex()
        wire = pier.Remote.from_bytes(SINGLE)
        self.assertEqual(wire, pier.Remote(PARTS[:1]))
        self.assertEqual(pier.Remote.from_text(" %s\n" % text), wire)

    def test_equal_values_have_equal_hashes(self):
        same, other = pier.Remote(PARTS), pier.Remote(PARTS[:1])
        self.assertEqual(hash(same), hash(self.remote))
        self.assertEqual({self.remote: 1}[same], 1)
        self.assertNotEqual(self.remote, other)
        self.assertNotEqual(self.remote, PARTS)
        with self.assertRaises(TypeError):
            self.remote < other

    def test_repr_has_no_keys(self):
        self.assertEqual(repr(self.remote), "<pier.Remote of 150 bytes, 2 parts>")

    def test_hostile_forms_are_refused(self):
        wire = self.remote.to_bytes()
        for damaged in (b"", wire[:-1], wire + b"\0", b"X" + wire[1:], bytes(32), bytes(1 << 16)):
            with self.assertRaises((pier.BadMessage, pier.Invalid)):
                pier.Remote.from_bytes(damaged)
        for text in ("", "pier-remote-vec:", "pier-remote:00", str(self.remote)[:-1], "x" * 100000):
            with self.assertRaises((pier.BadMessage, pier.Invalid)):
                pier.Remote.from_text(text)

    def test_impossible_parts_are_refused(self):
        for parts, error in (([(0, 1, 1 << 32)], OverflowError), ([(-1, 1, 1)], OverflowError),
                             ([(1 << 64, 1, 1)], OverflowError), ([(0, 1)], TypeError),
                             ([(0, 1.5, 1)], TypeError), ([3], TypeError), (3, TypeError),
                             ([((1 << 64) - 1, 2, 1)], pier.OutOfRange),
                             ([(0, 1 << 63, 1)] * 3, pier.OutOfRange),
                             ([(0, 1, 1)] * 1025, pier.Invalid)):
            with self.assertRaises(error, msg=str(parts)[:80]):
                pier.Remote(parts)
        self.assertEqual(len(pier.Remote([(0, 1, 1)] * 1024)), 1024)

    def test_len_has_63_bits(self):
        with self.assertRaises(OverflowError):
            len(pier.Remote([(0, 1 << 63, 1)]))

    def test_a_remote_cannot_be_changed(self):
        with self.assertRaises(AttributeError):
            self.remote.parts = ()
        with self.assertRaises(TypeError):
            self.remote[0:1] = self.remote


class Slices(Case):
    def test_slices_of_a_remote_are_its_bytes(self):
        remote = pier.Remote(PARTS)
        self.assertEqual(remote[90:110].parts, ((0x105a, 10, 7), (0x9000, 10, 8)))
        self.assertEqual(remote[100:], pier.Remote(PARTS[1:]))
        self.assertEqual(remote[:-50], pier.Remote(PARTS[:1]))
        self.assertEqual(remote[:], remote)
        self.assertEqual(len(remote[150:]), 0)

    def test_slices_of_a_region_are_spans(self):
        with self.pd.register(bytearray(100)) as region:
            span = region[10:-10]
            self.assertIs(span.region, region)
            self.assertEqual((span.offset, span.length, len(span)), (10, 80, 80))
            inner = span[5:10]
            self.assertEqual((inner.offset, inner.length), (15, 5))
            del span, inner

    def test_slices_out_of_range_are_refused(self):
        with self.pd.register(bytearray(100)) as region:
            for sliced in (region, region[:], region.remote):
                for bad in (slice(0, 101), slice(101, 101), slice(-101, None), slice(5, 4),
                            slice(0, -101), slice(0, 1 << 70), slice(-1 << 70, 5)):
                    with self.assertRaises(pier.OutOfRange, msg=str(bad)):
                        sliced[bad]
                with self.assertRaises(ValueError):
                    sliced[0:10:2]
                with self.assertRaises(TypeError):
                    sliced[0]

    def test_a_span_keeps_its_region(self):
        span = self.pd.register(bytearray(100))[1:2]
        self.assertEqual(len(span.region), 100)
        del span
        self.assertNotIn("region", pier.live_objects())

    def test_region_without_remote_access_has_no_remote(self):
        with self.pd.register(bytearray(100), access=pier.Access.LOCAL_WRITE) as region:
            with self.assertRaises(pier.AccessDenied):
                region.remote
        with self.assertRaisesRegex(ValueError, "the region is closed"):
            region.remote


if __name__ == "__main__":
    unittest.main()

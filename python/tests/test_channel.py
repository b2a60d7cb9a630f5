# SPDX-License-Identifier: BSD-3-Clause
"""Channels: requests, their results and errors, and their objects."""

import gc
import os
import resource
import socket
import threading
import time
import unittest

import pier
from channels import GONE, ChannelCase, Peer, connect_pair
from support import PATIENCE


class Requests(ChannelCase):
    def test_write_arrives(self):
        self.assertIsNone(self.near.write(self.near_region, self.far_region.remote))
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_read_arrives(self):
        self.near.read(self.near_region, self.far_region.remote)
        self.assertEqual(self.near_bytes, self.far_bytes)

    def test_slices_leave_other_bytes_alone(self):
        expected = bytearray(self.far_bytes)
        expected[200:300] = self.near_bytes[1000:1100]
        self.near.write(self.near_region[1000:1100], self.far_region.remote[200:300])
        self.assertEqual(self.far_bytes, expected)

    def test_lists_are_gathered(self):
        self.near.write([self.near_region[0:10], self.near_region[50:60]], self.far_region.remote)
        self.assertEqual(self.far_bytes[:20], self.near_bytes[0:10] + self.near_bytes[50:60])

    def test_message_has_length_and_immediate(self):
        work = self.far.post_recv(self.far_region)
        self.near.send(self.near_region[:100], immediate=0xfedcba98)
        self.assertEqual(work.wait(PATIENCE), pier.Result("recv", 100, 0xfedcba98))
        self.assertEqual(self.far_bytes[:100], self.near_bytes[:100])

    def test_write_with_immediate_completes_a_receive(self):
        work = self.far.post_recv(None)
        self.near.write(self.near_region[:100], self.far_region.remote, immediate=5)
        self.assertEqual(work.wait(), pier.Result("recv_write", 100, 5))

    def test_atomics(self):
        access = pier.Access.SHARED | pier.Access.REMOTE_ATOMIC
        self.near, self.far = self.pair(access=access)
        self.far_region = self.pd.register(self.far_bytes, access=access)
        self.addCleanup(self.far_region.close)
        number = int.from_bytes(self.far_bytes[:8], "little")
        remote = self.far_region.remote[:8]
        self.near.fetch_add(self.near_region[:8], remote, 3)
        self.assertEqual(int.from_bytes(self.near_bytes[:8], "little"), number)
        self.near.compare_swap(self.near_region[:8], remote, (number + 3) % 2**64, 17)
        self.assertEqual(int.from_bytes(self.far_bytes[:8], "little"), 17)
        self.near.compare_swap(self.near_region[:8], remote, 16, 18)
        self.assertEqual(int.from_bytes(self.far_bytes[:8], "little"), 17)

    def test_pairs_under_one_doorbell(self):
        remote = self.far_region.remote
        pairs = [(self.near_region[i * 64:i * 64 + 64], remote[i * 64:i * 64 + 64]) for i in range(16)]
        work = self.near.post_reads(pairs)
        work.wait()
        self.assertEqual(self.near_bytes[:1024], self.far_bytes[:1024])
        self.near_bytes[:1024] = os.urandom(1024)
        self.near.post_writes(iter(pairs)).wait()
        self.assertEqual(self.near_bytes[:1024], self.far_bytes[:1024])

    def test_more_parts_than_the_queue_has_room_for(self):
        addr, length, rkey = self.far_region.remote.parts[0]
        parts = [(addr + i * 64, 64, rkey) for i in range(100)]
        self.near.write(self.near_region[:6400], pier.Remote(parts))
        self.assertEqual(self.far_bytes[:6400], self.near_bytes[:6400])
        work = self.far.post_recv(None)
        self.near.write(self.near_region[:128], pier.Remote(parts[:2]), immediate=1)
        self.assertEqual(work.wait().immediate, 1)
        with self.assertRaises(pier.Invalid):
            self.near.post_write(self.near_region[:6400], pier.Remote(parts))

    def test_done_and_wait_agree(self):
        work = self.far.post_recv(self.far_region)
        self.assertFalse(work.done())
        self.assertIn("outstanding", repr(work))
        self.near.send(self.near_region[:10])
        self.assertEqual(work.wait(), work.wait(0))
        self.assertTrue(work.done())
        self.assertIs(work.channel, self.far)

    def test_many_writes_keep_the_order(self):
        for _ in range(5):
            works = [self.near.post_write(self.near_region[i:i + 1], self.far_region.remote[:1])
                     for i in range(16)]
            works[-1].wait()
            self.assertTrue(all(work.done() for work in works))
            self.assertEqual(self.far_bytes[0], self.near_bytes[15])


class Failures(ChannelCase):
    def test_receive_without_message_times_out_and_breaks_the_channel(self):
        with self.assertRaisesRegex(pier.TimedOut, "50 ms") as caught:
            self.near.recv(self.near_region, timeout=0.05)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertFalse(self.near.connected)
        self.assertIn("cancelled", self.near.failure)
        with self.assertRaises(pier.ConnectionLost):
            self.near.write(self.near_region, self.far_region.remote)

    def test_failed_work_raises_each_time(self):
        work = self.near.post_write(self.near_region, pier.Remote([(0x1000, 1 << 16, 1)]))
        for _ in range(2):
            with self.assertRaises(pier.AccessDenied):
                work.wait()
        self.assertTrue(work.done())
        self.assertIn("failed", repr(work))

    def test_cancel_ends_what_is_outstanding(self):
        work = self.near.post_recv(self.near_region)
        self.near.cancel()
        with self.assertRaises(pier.ConnectionLost):
            work.wait()
        self.assertEqual(self.near.outstanding, 0)

    def test_reset_channels_connect_again(self):
        self.near.cancel()
        self.near.reset()
        self.far.reset()
        self.assertFalse(self.near.connected)
        connect_pair(self.near, self.far)
        self.near.write(self.near_region, self.far_region.remote)
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_too_short_remote(self):
        with self.assertRaises(pier.OutOfRange):
            self.near.write(self.near_region, self.far_region.remote[:100])

    def test_unconnected_channel(self):
        channel = self.channel()
        with self.assertRaises(pier.ConnectionLost):
            channel.write(self.near_region, self.far_region.remote)

    def test_full_queue(self):
        works = [self.far.post_recv(None) for _ in range(16)]
        with self.assertRaises(pier.Busy):
            self.far.post_recv(None)
        self.far.cancel()
        for work in works:
            with self.assertRaises(pier.ConnectionLost):
                work.wait()

    def test_peer_that_hangs_up_during_the_handshake(self):
        near, far = socket.socketpair()
        far.close()
        with near, self.assertRaises(pier.ConnectionLost):
            self.channel().handshake(near)

    def test_peer_that_speaks_another_protocol(self):
        near, far = socket.socketpair()
        with near, far, self.assertRaises(pier.BadMessage):
            far.sendall(b"GET / HTTP/1.0\r\n\r\n")
            self.channel().handshake(near, timeout=PATIENCE)

    def test_silent_peer(self):
        near, far = socket.socketpair()
        with near, far, self.assertRaises(pier.TimedOut):
            self.channel().handshake(near, timeout=0.05)


class Arguments(ChannelCase):
    def test_wrong_types(self):
        remote = self.far_region.remote
        for call in (lambda: self.near.write(b"bytes", remote),
                     lambda: self.near.write(self.near_region, b"remote"),
                     lambda: self.near.write(self.near_region),
                     lambda: self.near.write(self.near_region, remote, immediate="1"),
                     lambda: self.near.write(self.near_region, remote, timeout="1"),
                     lambda: self.near.write([self.near_region, 1], remote),
                     lambda: self.near.post_reads([self.near_region]),
                     lambda: self.near.post_reads(1),
                     lambda: self.near.handshake("socket"),
                     lambda: self.near.connect("endpoint"),
                     lambda: pier.Channel(self.device),
                     lambda: pier.Channel(self.pd, nonsense=1),
                     lambda: self.near.set_waiting("poll", nonsense=1),
                     lambda: pier.Channel(self.pd, max_send_wr="16"),
                     lambda: pier.Work()):
            with self.assertRaises(TypeError):
                call()
        self.assertTrue(self.near.connected)

    def test_wrong_types_are_named_without_their_contents(self):
        class Large(bytearray):
            def __repr__(self):
                raise AssertionError("its repr can be several times as long as its memory")

        large, remote = Large(8), self.far_region.remote
        for call, remedy in ((lambda: self.near.write(large, remote), "register"),
                             (lambda: self.near.send([large]), "register"),
                             (lambda: self.near.write(self.near_region, large), "Region.remote"),
                             (lambda: self.near.post_reads([large]), "tuple"),
                             (lambda: self.near_region[large], "slices"),
                             (lambda: pier.ProtectionDomain(large), "name"),
                             (lambda: pier.Channel(large), "ProtectionDomain"),
                             (lambda: pier.Channel(self.pd, waiting=large), "str"),
                             (lambda: pier.Transfer([large]), "Rail"),
                             (lambda: pier.Ring(self.pd).sources([large]), "Remote"),
                             (lambda: pier.Ring(self.pd).begin(large, b""), "sources"),
                             (lambda: pier.Group(self.pd, 0, 1).exchange([large]), "GroupRequest"),
                             (lambda: self.buffer().view(4, large), "dtype"),
                             (lambda: self.buffer().__dlpack__(max_version=large), "max_version"),
                             (lambda: self.buffer().__dlpack__(dl_device=large), "dl_device"),
                             (lambda: self.buffer().__dlpack__(stream=large), "stream")):
            with self.assertRaisesRegex(TypeError, "%s.*Large" % remedy):
                call()

    def test_region_of_another_protection_domain_is_refused(self):
        remote = self.far_region.remote
        near, _ = self.pair(max_inline=64)
        with pier.ProtectionDomain(self.device) as pd, pd.register(bytearray(64)) as region:
            for call in (lambda: near.write(region, remote), lambda: near.send([self.near_region[:8], region[:8]]),
                         lambda: near.post_writes([(region, remote)]), lambda: near.recv(region)):
                with self.assertRaisesRegex(pier.Invalid, "another protection domain"):
                    call()

    def test_unknown_attribute_is_named(self):
        for call in (lambda: pier.Channel(self.pd, max_sendwr=1), lambda: pier.Group(self.pd, 0, 1, max_sendwr=1),
                     lambda: pier.Group(self.pd, 0, 1, barrier="dissemination", max_sendwr=1)):
            with self.assertRaisesRegex(TypeError, "'max_sendwr' is neither"):
                call()

    def test_wrong_values(self):
        remote = self.far_region.remote
        for call in (lambda: self.near.write(self.near_region, remote, timeout=-1),
                     lambda: self.near.write(self.near_region, remote, timeout=float("nan")),
                     lambda: self.near.post_reads([]),
                     lambda: self.near.set_waiting("never"),
                     lambda: pier.Channel(self.pd, mtu=1000),
                     lambda: pier.Channel(self.pd, max_send_wr=-1),
                     lambda: pier.Channel(self.pd, retry_count=256),
                     lambda: pier.Channel(self.pd, keepalive=-1.0),
                     lambda: pier.Channel(self.pd, timeout=0),
                     lambda: pier.Channel(self.pd, waiting="never"),
                     lambda: pier.Channel(self.pd, options="nonsense=1")):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(OverflowError):
            self.near.write(self.near_region, remote, immediate=1 << 32)
        self.assertTrue(self.near.connected)

    def test_attributes_are_the_effective_ones(self):
        channel = self.channel(max_send_wr=100, timeout=12.5, waiting="event", keepalive=0.25, options="retry=3")
        attributes = channel.attributes
        self.assertEqual((attributes.max_send_wr, attributes.timeout, attributes.waiting), (100, 12.5, "event"))
        self.assertEqual((attributes.keepalive, attributes.retry_count), (0.25, 3))
        channel.set_waiting("adaptive", spin=0.001)
        self.assertEqual((channel.attributes.waiting, channel.attributes.spin), ("adaptive", 0.001))

    def test_endpoints_connect(self):
        near, far = self.channel(), self.channel()
        near.connect(far.endpoint)
        far.connect(near.endpoint)
        near.write(self.near_region, self.far_region.remote)
        self.assertEqual(self.far_bytes, self.near_bytes)
        with self.assertRaises(pier.BadMessage):
            self.channel().connect(bytes(100))
        with self.assertRaisesRegex(pier.Error, "connected"):
            near.connect(far.endpoint)

    def test_closed_channel(self):
        near, far = self.pair()
        work = near.post_recv(self.near_region)
        near.close()
        near.close()
        self.assertTrue(near.closed)
        for call in (lambda: near.write(self.near_region, self.far_region.remote), near.fileno, near.poll,
                     lambda: near.endpoint, near.reset, work.wait, work.done):
            with self.assertRaisesRegex(ValueError, "the channel is closed"):
                call()
        with far:
            pass
        self.assertTrue(far.closed)


class Lifetimes(ChannelCase):
    def test_outstanding_request_keeps_its_region(self):
        work = self.far.post_recv(self.far_region)
        with self.assertRaises(pier.Busy):
            self.far_region.close()
        self.near.send(self.near_region[:5])
        work.wait()
        self.far_region.close()

    def test_dropped_request_keeps_its_region_until_it_has_completed(self):
        memory = bytearray(100)
        region = self.pd.register(memory)
        self.far.post_recv(region)
        regions = pier.live_objects()["region"]
        del region
        gc.collect()
        self.assertEqual(pier.live_objects()["region"], regions)
        self.near.send(self.near_region[:100])
        self.assertEqual(memory, self.near_bytes[:100])
        # The next request notices that the one before has completed.
        self.far.post_recv(None)
        self.assertEqual(pier.live_objects()["region"], regions - 1)

    def test_objects_can_be_dropped_in_any_order(self):
        near, far = pier.Channel(self.pd), pier.Channel(self.pd)
        connect_pair(near, far)
        region = self.pd.register(bytearray(100))
        work = far.post_recv(region)
        del near, far, region
        gc.collect()
        with self.assertRaises(pier.ConnectionLost):
            work.wait()

    def test_ten_thousand_rounds_leave_nothing(self):
        def rounds(count):
            for _ in range(count):
                work = self.far.post_recv(self.far_region[:8])
                self.near.send(self.near_region[:8], immediate=1)
                work.wait()
                self.near.post_read(self.near_region[:8], self.far_region.remote[:8])
                with self.assertRaises(pier.OutOfRange):
                    self.near.write(self.near_region, self.far_region.remote[:1])
        rounds(1000)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rounds(10000)
        # AddressSanitizer keeps freed memory for a while.
        if "LD_PRELOAD" not in os.environ:
            self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 1024)

    def test_channels_come_and_go(self):
        for _ in range(200):
            near, far = pier.Channel(self.pd), pier.Channel(self.pd)
            near.connect(far.endpoint)
            del near, far


class Processes(ChannelCase):
    def setUp(self):
        super().setUp()
        self.to_peer = self.channel(keepalive=1.0)
        self.peer = Peer(self.to_peer)
        self.addCleanup(self.peer.close)

    def test_bytes_go_to_another_process_and_back(self):
        self.to_peer.write(self.near_region, self.peer.remote)
        self.assertEqual(self.peer.ask("0 %d" % self.LENGTH), self.near_bytes.hex())
        self.to_peer.read(self.far_region, self.peer.remote)
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_messages_go_to_another_process(self):
        self.peer.socket.sendall(b"receive\n")
        self.to_peer.send(self.near_region[:77], immediate=9)
        self.assertEqual(self.peer.ask(""), "77 9")

    def test_killed_peer_ends_a_wait(self):
        work = self.to_peer.post_recv(self.near_region)
        self.peer.kill()
        begin = time.monotonic()
        with self.assertRaises(GONE):
            work.wait(PATIENCE)
        self.assertLess(time.monotonic() - begin, PATIENCE / 2)
        with self.assertRaises(pier.ConnectionLost):
            self.to_peer.write(self.near_region, self.peer.remote)

    def test_child_of_fork_gets_echild(self):
        for use in (lambda: self.near.write(self.near_region, self.far_region.remote),
                    lambda: self.near.post_recv(None), self.near.poll, self.near.close, self.near.reset,
                    lambda: self.near.endpoint):
            self.assertIn("Forked", self.in_child(use))
        self.near.write(self.near_region, self.far_region.remote)
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_fork_beside_a_waiting_thread(self):
        work = self.near.post_recv(self.near_region)
        thread = threading.Thread(target=work.wait, args=(PATIENCE,))
        thread.start()
        self.assertIn("Forked", self.in_child(lambda: self.near.write(self.near_region, self.far_region.remote)))
        self.assertIn("Forked", self.in_child(work.done))
        self.far.send(None)
        thread.join()
        self.assertTrue(work.done())


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: BSD-3-Clause
"""Transfers: moving, resuming, cancelling, in threads and event loops."""

import asyncio
import errno
import gc
import os
import threading
import unittest

import pier
from channels import GONE, ChannelCase, Peer, connect_pair
from support import PATIENCE

MIB = 1 << 20


class Transfers(ChannelCase):
    LENGTH = 8 * MIB

    def transfer(self, *arguments, **keywords):
        transfer = pier.Transfer(*arguments, **keywords)
        self.addCleanup(transfer.close)
        return transfer

    def rail(self, channel=None):
        return pier.Rail(channel or self.near, self.near_region, self.far_region.remote)

    def test_all_bytes_arrive(self):
        for direction in ("write", "read"):
            self.near_bytes[:] = os.urandom(self.LENGTH)
            transfer = self.transfer(self.rail(), direction=direction)
            self.assertIsNone(transfer.wait(PATIENCE))
            self.assertEqual(self.far_bytes, self.near_bytes)
            status = transfer.status
            self.assertEqual((status.done, status.ended, status.error), (self.LENGTH, True, 0))

    def test_digests(self):
        for direction in ("write", "read"):
            self.near_bytes[:] = os.urandom(self.LENGTH)
            try:
                transfer = self.transfer(self.rail(), direction=direction, digest=True)
            except OSError as error:
                if error.errno != errno.ELIBACC:
                    raise
                self.skipTest("there is no libisal")
            transfer.wait(PATIENCE)
            self.assertEqual(self.far_bytes, self.near_bytes)

    def test_two_rails_share_the_bytes(self):
        other, _ = self.pair()
        transfer = self.transfer([self.rail(), self.rail(other)], chunk=64 << 10)
        transfer.wait()
        self.assertEqual(self.far_bytes, self.near_bytes)
        self.assertEqual(sum(transfer.rail_status(i).done for i in range(2)), self.LENGTH)
        self.assertEqual(transfer.channels, (self.near, other))
        with self.assertRaises(IndexError):
            transfer.rail_status(2)

    def test_parts(self):
        rail = (self.near, self.near_region[MIB:3 * MIB], self.far_region.remote[5 * MIB:7 * MIB])
        expected = bytearray(self.far_bytes)
        expected[5 * MIB:6 * MIB] = self.near_bytes[MIB:2 * MIB]
        self.transfer(rail, length=MIB).wait()
        self.assertEqual(self.far_bytes, expected)

    def test_await(self):
        async def main():
            transfer = self.transfer(self.rail())
            work = self.far.post_recv(None)
            await asyncio.gather(transfer, work, self.near.post_send(None))
            self.assertEqual(self.far_bytes, self.near_bytes)
        asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def test_await_with_rails_that_share_a_channel(self):
        async def main():
            await self.transfer([self.rail(), self.rail()], chunk=64 << 10)
            self.assertEqual(self.far_bytes, self.near_bytes)
        asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def test_progress(self):
        seen = []
        self.transfer(self.rail(), chunk=MIB, progress=lambda done, length: seen.append((done, length))).wait()
        self.assertEqual(seen[-1], (self.LENGTH, self.LENGTH))
        self.assertEqual(seen, sorted(seen))

    def test_progress_cancels(self):
        transfer = self.transfer(self.rail(), chunk=4096, window=1, progress=lambda done, length: True)
        with self.assertRaisesRegex(pier.ConnectionLost, "cancelled"):
            while True:
                transfer.advance()
        self.assertLess(transfer.status.done, self.LENGTH)

    def test_progress_that_raises(self):
        def fail(done, length):
            raise LookupError("mine")
        transfer = self.transfer(self.rail(), progress=fail)
        with self.assertRaisesRegex(LookupError, "mine"):
            transfer.wait()

    def test_notification_follows_the_bytes(self):
        work = self.far.post_recv(None)
        self.transfer(self.rail(), notify=77).wait()
        self.assertEqual(work.wait().immediate, 77)

    def test_resumes_with_another_rail(self):
        transfer = self.transfer(self.rail(), chunk=64 << 10)
        while not transfer.status.done:
            transfer.advance()
        self.near.cancel()
        with self.assertRaises(pier.ConnectionLost):
            transfer.wait()
        done = transfer.status.done
        self.assertTrue(0 < done < self.LENGTH)
        self.near.close()
        other, _ = self.pair()
        transfer.resume(self.rail(other))
        transfer.wait()
        self.assertEqual(self.far_bytes, self.near_bytes)
        self.assertEqual(transfer.rail_status(0).done, self.LENGTH - done)
        with self.assertRaisesRegex(pier.Error, "arrived"):
            transfer.resume(self.rail(other))

    def test_resumes_while_the_loops_of_its_rails_are_woken(self):
        lost = self.pair()[0], self.pair()[0]
        rails = [self.rail(channel) for channel in lost]
        others = [self.rail(self.pair()[0]) for _ in rails]
        transfer = self.transfer(rails, chunk=64 << 10)
        transfer.advance()
        resumed = []

        def resume():
            if transfer.status.ended and not resumed:
                resumed.append(True)
                transfer.resume(others)

        for channel in lost:
            channel._watch(resume)
            self.addCleanup(channel._unwatch, resume)
        transfer.cancel()
        with self.assertRaises(pier.ConnectionLost):
            transfer.wait()
        self.assertTrue(resumed)
        transfer.wait()
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_resumes_after_a_reset(self):
        transfer = self.transfer(self.rail(), chunk=64 << 10)
        while not transfer.status.done:
            transfer.advance()
        transfer.cancel()
        with self.assertRaises(pier.ConnectionLost):
            transfer.wait()
        transfer.cancel()  # again, of one that has ended
        self.near.reset()
        self.far.reset()
        connect_pair(self.near, self.far)
        transfer.resume([self.rail()])
        transfer.wait()
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_state_continues_in_another_transfer(self):
        with pier.Transfer(self.rail(), chunk=64 << 10) as first:
            while not first.status.done:
                first.advance()
            state = first.pack()
        second = self.transfer(self.rail(), state=state)
        self.assertGreater(second.status.done, 0)
        second.wait()
        self.assertEqual(self.far_bytes, self.near_bytes)
        with self.assertRaises(pier.BadMessage):
            pier.Transfer(self.rail(), length=MIB, state=state)
        with self.assertRaises((pier.BadMessage, pier.Invalid)):
            pier.Transfer(self.rail(), state=bytes(40))

    def test_resumes_after_the_peer_was_killed(self):
        first, second = self.channel(), self.channel()
        peers = [Peer(channel, self.LENGTH) for channel in (first, second)]
        for peer in peers:
            self.addCleanup(peer.close)
        transfer = self.transfer((first, self.near_region, peers[0].remote), chunk=64 << 10)
        while not transfer.status.done:
            transfer.advance()
        peers[0].kill()
        with self.assertRaises(GONE):
            transfer.wait(PATIENCE)
        # The new peer has none of the bytes, so everything is moved again.
        again = self.transfer((second, self.near_region, peers[1].remote))
        again.wait(PATIENCE)
        self.assertEqual(peers[1].ask("0 %d" % self.LENGTH), self.near_bytes.hex())

    def test_in_use_until_it_has_ended(self):
        transfer = self.transfer(self.rail())
        for close in (self.near.close, self.near_region.close):
            with self.assertRaises(pier.Busy):
                close()
        transfer.wait()
        self.near_region.close()
        self.near.close()
        self.assertTrue(transfer.advance())

    def test_timeout_of_wait_lets_it_go_on(self):
        transfer = self.transfer(self.rail(), chunk=4096, window=1)
        with self.assertRaisesRegex(pier.TimedOut, "still in progress"):
            transfer.wait(0)
        transfer.wait()
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_lost_completion_stalls_the_rail(self):
        with pier.ProtectionDomain("fault:lost@3:soft0") as pd, pd.register(self.near_bytes) as near, \
                pd.register(self.far_bytes) as far, pier.Channel(pd) as one, pier.Channel(pd) as other:
            connect_pair(one, other)
            with pier.Transfer((one, near, far.remote), stall=0.1) as transfer:
                with self.assertRaises(pier.ConnectionLost):
                    transfer.wait(PATIENCE)
                self.assertEqual(transfer.rail_status(0).error, errno.EHOSTUNREACH)
                self.assertTrue(transfer.rail_status(0).sentence)

    def test_threads_and_a_transfer_share_a_channel(self):
        near, far = self.pair(max_send_wr=64)
        transfer = self.transfer(self.rail(near), chunk=4096)
        memory = bytearray(8)
        region = self.register(memory)
        failures = []

        def write():
            try:
                for _ in range(200):
                    near.write(region, self.far_region.remote[:8], timeout=PATIENCE)
            except BaseException as error:
                failures.append(error)
        thread = threading.Thread(target=write)
        thread.start()
        transfer.wait(PATIENCE)
        thread.join(PATIENCE)
        self.assertEqual(failures, [])
        self.assertEqual(self.far_bytes[8:], self.near_bytes[8:])

    def test_dropped_in_progress(self):
        transfer = pier.Transfer(self.rail(), chunk=4096)
        transfer.advance()
        del transfer
        gc.collect()
        self.near.write(self.near_region, self.far_region.remote)
        self.near.close()

    def test_cycles_are_collected(self):
        holder = []
        transfer = pier.Transfer(self.rail(), progress=lambda *arguments: holder and None)
        holder.append(transfer)
        transfer.wait()

    def test_ten_thousand_transfers_leave_nothing(self):
        local, remote = self.near_region[:8], self.far_region.remote[:8]
        for _ in range(10000):
            pier.Transfer((self.near, local, remote)).advance()

    def test_child_of_fork_gets_echild(self):
        transfer = self.transfer(self.rail())
        for use in (transfer.advance, transfer.wait, transfer.cancel, transfer.pack, transfer.close):
            self.assertIn("Forked", self.in_child(use))
        transfer.wait()
        self.assertEqual(self.far_bytes, self.near_bytes)

    def test_wrong_arguments(self):
        for call in (lambda: pier.Transfer(), lambda: pier.Transfer(self.near), lambda: pier.Transfer([1]),
                     lambda: pier.Transfer((self.near, self.near_region, b"")),
                     lambda: pier.Transfer((self.near, bytearray(1), self.far_region.remote)),
                     lambda: pier.Transfer(self.rail(), length="1"),
                     lambda: pier.Transfer(self.rail(), state="state")):
            with self.assertRaises(TypeError):
                call()
        for call in (lambda: pier.Transfer([]), lambda: pier.Transfer(self.rail(), direction="up"),
                     lambda: pier.Transfer(self.rail(), stall=0), lambda: pier.Transfer([self.rail()] * 65),
                     lambda: pier.Transfer(self.rail(), direction="read", announce=True),
                     lambda: pier.Transfer(self.rail(), length=self.LENGTH + 1)):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(OverflowError):
            pier.Transfer(self.rail(), notify=1 << 32)
        for keywords in ({"chunk": -1}, {"chunk": 1 << 32}, {"window": -1}, {"window": (1 << 32) + 1}):
            with self.assertRaises(OverflowError, msg=keywords):
                pier.Transfer(self.rail(), **keywords)
        transfer = pier.Transfer(self.rail())
        transfer.close()
        with self.assertRaisesRegex(ValueError, "the transfer is closed"):
            transfer.advance()


if __name__ == "__main__":
    unittest.main()

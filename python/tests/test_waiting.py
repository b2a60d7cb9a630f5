# SPDX-License-Identifier: BSD-3-Clause
"""Waiting: in threads, in event loops, and interrupted by signals."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import pier
from channels import GONE, HERE, ChannelCase, Peer
from support import PATIENCE, module_or_skip

SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)


class Threads(ChannelCase):
    def run_threads(self, *functions):
        failures = []

        def run(function):
            try:
                function()
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=run, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive(), "a thread hangs")
        if failures:
            raise failures[0]

    def test_one_thread_receives_while_another_sends(self):
        """Each message needs the answer of the other end, on the same channels."""
        rounds = 500

        def receive(channel, region, answers):
            for i in range(rounds):
                self.assertEqual(channel.recv(region, timeout=PATIENCE).immediate, i)
                answers.release()

        def send(channel, answers):
            for i in range(rounds):
                channel.send(None, immediate=i, timeout=PATIENCE)
                answers.acquire()
        at_near, at_far = threading.Semaphore(0), threading.Semaphore(0)
        for channel in (self.near, self.far):
            channel.set_waiting("event")
        self.run_threads(lambda: receive(self.near, self.near_region[:1], at_far),
                         lambda: receive(self.far, self.far_region[:1], at_near),
                         lambda: send(self.near, at_near), lambda: send(self.far, at_far))

    def test_many_threads_share_a_channel(self):
        """Each thread has its own bytes, and all use all kinds of waits."""
        near, far = self.pair(max_send_wr=64, waiting="event")
        remote = self.far_region.remote

        def work(index):
            mine = slice(index * 1024, index * 1024 + 1024)
            chooser = random.Random(SEED + index)
            for _ in range(200):
                bytes_ = chooser.randbytes(1024)
                self.near_bytes[mine] = bytes_
                if chooser.random() < 0.5:
                    near.write(self.near_region[mine], remote[mine], timeout=PATIENCE)
                else:
                    near.post_write(self.near_region[mine], remote[mine]).wait(PATIENCE)
                self.near_bytes[mine] = bytes(1024)
                posted = near.post_read(self.near_region[mine], remote[mine])
                while chooser.random() < 0.9 and not posted.done():
                    pass
                posted.wait(PATIENCE)
                self.assertEqual(self.near_bytes[mine], bytes_)
        self.run_threads(*[lambda index=index: work(index) for index in range(16)])
        self.assertEqual(near.outstanding, 0)

    def test_several_threads_wait_for_one_request(self):
        work = self.far.post_recv(self.far_region[:8])
        results = []
        self.run_threads(*[lambda: results.append(work.wait(PATIENCE))] * 4, lambda: self.near.send(None))
        self.assertEqual(results, [pier.Result("recv", 0, None)] * 4)

    def test_other_threads_run_during_a_wait(self):
        ticks = []
        self.far.set_waiting("poll")
        work = self.far.post_recv(None)
        thread = threading.Thread(target=lambda: work.wait(PATIENCE))
        thread.start()
        while len(ticks) < 1000:
            ticks.append(time.monotonic())
        self.near.send(None)
        thread.join()

    def test_close_ends_a_wait_of_another_thread(self):
        near, _ = self.pair(waiting="event")
        work = near.post_recv(None)
        started = threading.Event()
        caught = []

        def wait():
            started.set()
            try:
                work.wait(PATIENCE)
            except ValueError as error:
                caught.append(str(error))
        thread = threading.Thread(target=wait)
        thread.start()
        started.wait()
        near.close()
        thread.join(PATIENCE)
        self.assertRegex(caught[0], "channel (was|is) closed")


class EventLoops(ChannelCase):
    def run_loop(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))

    def test_await_returns_the_result(self):
        async def main():
            work = self.far.post_recv(self.far_region)
            await self.near.post_send(self.near_region[:9], immediate=3)
            self.assertEqual(await work, pier.Result("recv", 9, 3))
            self.assertEqual(await work, pier.Result("recv", 9, 3))
        self.run_loop(main())

    def test_other_loops_are_refused_with_a_remedy(self):
        with self.assertRaisesRegex(RuntimeError, "a loop of asyncio.*trio.*fileno"):
            self.far.post_recv(self.far_region).__await__().send(None)

    def test_many_awaits_on_one_channel(self):
        near, far = self.pair(max_recv_wr=256)
        receives = [far.post_recv(None) for _ in range(256)]

        async def receive(work):
            return (await work).immediate

        async def send():
            for i in range(256):
                await near.post_send(None, immediate=i)
                if i % 16 == 0:
                    await asyncio.sleep(0)

        async def main():
            *numbers, _ = await asyncio.gather(*map(receive, receives), send())
            self.assertEqual(numbers, list(range(256)))
        self.run_loop(main())

    def test_await_raises_the_error(self):
        async def main():
            with self.assertRaises(pier.AccessDenied):
                await self.near.post_write(self.near_region, pier.Remote([(0x1000, 1 << 16, 1)]))
        self.run_loop(main())

    def test_cancelled_await_leaves_the_request(self):
        async def main():
            work = self.far.post_recv(self.far_region)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(work, 0.02)
            self.assertFalse(work.done())
            self.assertTrue(self.far.connected)
            await self.near.post_send(self.near_region[:4])
            self.assertEqual((await work).length, 4)
        self.run_loop(main())

    def test_channels_timeout_ends_an_await(self):
        near, _ = self.pair(timeout=0.05)

        async def main():
            with self.assertRaisesRegex(pier.TimedOut, "within 50 ms"):
                await near.post_recv(None)
            self.assertTrue(near.connected)
        self.run_loop(main())

    def test_close_ends_an_await(self):
        near, _ = self.pair()

        async def main():
            task = asyncio.ensure_future(near.post_recv(None))
            await asyncio.sleep(0.01)
            near.close()
            with self.assertRaisesRegex(ValueError, "closed"):
                await task
        self.run_loop(main())

    def test_loops_and_threads_share_a_channel(self):
        """Whoever arms the channel must not make the others miss their completions."""
        near, far = self.pair(max_send_wr=64, waiting="event")
        stop = threading.Event()
        failures = []

        def in_thread():
            try:
                while not stop.is_set():
                    near.write(self.near_region[:8], self.far_region.remote[:8], timeout=PATIENCE)
            except BaseException as error:
                failures.append(error)

        async def reads():
            for _ in range(300):
                await near.post_read(self.near_region[8:16], self.far_region.remote[8:16])

        def in_loop():
            try:
                self.run_loop(reads())
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=in_loop) for _ in range(2)]
        threads += [threading.Thread(target=in_thread) for _ in range(2)]
        for thread in threads:
            thread.start()
        self.run_loop(reads())
        for thread in threads[:2]:
            thread.join(PATIENCE)
        stop.set()
        for thread in threads[2:]:
            thread.join(PATIENCE)
        self.assertEqual(failures, [])

    def test_receives_of_a_loop_and_of_threads(self):
        """Every receive is completed while all the others sleep."""
        near, far = self.pair(max_recv_wr=64, waiting="event")
        rounds = 100
        turn = threading.Semaphore(0)

        def in_thread():
            for _ in range(rounds):
                far.recv(None, timeout=PATIENCE)
                turn.release()

        async def in_loop():
            for _ in range(rounds):
                await far.post_recv(None)
                turn.release()
        threads = [threading.Thread(target=in_thread) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: self.run_loop(in_loop())))
        for thread in threads:
            thread.start()
        for _ in range(4 * rounds):
            near.send(None, timeout=PATIENCE)
            self.assertTrue(turn.acquire(timeout=PATIENCE), "a completion was missed")
        for thread in threads:
            thread.join(PATIENCE)

    def test_keepalive_of_an_await_notices_a_killed_peer(self):
        channel = self.channel(keepalive=0.2)
        peer = Peer(channel)
        self.addCleanup(peer.close)

        async def main():
            work = channel.post_recv(None)
            asyncio.get_running_loop().call_later(0.05, peer.kill)
            with self.assertRaises(GONE):
                await work
        self.run_loop(main())

    def test_uvloop(self):
        uvloop = module_or_skip("uvloop")

        async def main():
            work = self.far.post_recv(None)
            asyncio.get_running_loop().call_later(0.01, lambda: self.near.send(None))
            await work
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(main(), PATIENCE))

    def test_loops_own_wait(self):
        """fileno() and arm(), as in a loop that is not of asyncio."""
        reader = asyncio.new_event_loop()
        try:
            work = self.far.post_recv(None)
            done = reader.create_future()

            def check():
                while not work.done():
                    if not self.far.arm():
                        return
                if not done.done():
                    done.set_result(None)
            reader.add_reader(self.far.fileno(), check)
            check()
            reader.call_later(0.01, lambda: self.near.send(None))
            reader.run_until_complete(asyncio.wait_for(done, PATIENCE))
            reader.remove_reader(self.far.fileno())
        finally:
            reader.close()


# What a process waits for, that only Ctrl-C ends. {} is PATIENCE.
WAITS = {
    "receive": "near.recv(None, timeout={})",
    "work": "near.post_recv(None).wait({})",
    "polling": "near.set_waiting('poll'); near.post_recv(None).wait({})",
    "handshake": "ends = socket.socketpair(); pier.Channel(pd).handshake(ends[0], timeout={})",
    "await": "asyncio.run(wait(near.post_recv(None)))",
    "transfer": "pier.Transfer((lost, region, region.remote), stall={}).wait()",
    "barrier": "groups[0].barrier({})",
    "exchange": "groups[0].exchange([pier.GroupRequest(1, None, None, 'recv')], {})",
    "lock": "threading.Thread(target=groups[0].barrier, args=({},), daemon=True).start(); "
            "groups[0].barrier({})",
}
PROGRAM = """
import asyncio, os, signal, socket, threading, time
import pier
from channels import connect_pair

async def wait(work):
    await work

with pier.ProtectionDomain("soft0") as pd, pier.ProtectionDomain("fault:lost@1:soft0") as faulty:
    region = faulty.register(bytearray(100))
    near, far = pier.Channel(pd), pier.Channel(pd)
    connect_pair(near, far)
    lost, other = pier.Channel(faulty), pier.Channel(faulty)
    connect_pair(lost, other)
    groups = [pier.Group(pd, rank, 2) for rank in range(2)]
    blobs = [group.endpoints() for group in groups]
    half = len(blobs[0]) // 2
    mine = [b"".join(blob[rank * half:(rank + 1) * half] for blob in blobs) for rank in range(2)]
    thread = threading.Thread(target=groups[1].connect, args=(mine[1],))
    thread.start()
    groups[0].connect(mine[0])
    thread.join()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        %s
    except KeyboardInterrupt:
        print("interrupted after", time.monotonic() - begin, flush=True)
    os._exit(0)
"""


class Interrupts(unittest.TestCase):
    def check(self, name):
        code = PROGRAM % WAITS[name].replace("{}", str(PATIENCE))
        environment = dict(os.environ, PYTHONPATH="%s:%s" % (HERE, os.environ.get("PYTHONPATH", "")))
        done = subprocess.run([sys.executable, "-c", code], text=True, env=environment, timeout=2 * PATIENCE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        self.assertRegex(done.stdout, r"^interrupted after", done.stderr)
        self.assertLess(float(done.stdout.split()[-1]), PATIENCE / 4)

    def test_handlers_that_do_not_raise_let_the_wait_go_on(self):
        code = """
import os, signal, threading
import pier
from channels import connect_pair
seen = []
signal.signal(signal.SIGUSR1, lambda *arguments: seen.append(1))
with pier.ProtectionDomain("soft0") as pd, pier.Channel(pd) as near, pier.Channel(pd) as far:
    connect_pair(near, far)
    def later():
        os.kill(os.getpid(), signal.SIGUSR1)
        while not seen:
            pass
        far.send(None)
    threading.Timer(0.1, later).start()
    near.recv(None, timeout=%s)
    print(len(seen))
""" % PATIENCE
        environment = dict(os.environ, PYTHONPATH="%s:%s" % (HERE, os.environ.get("PYTHONPATH", "")))
        self.assertEqual(subprocess.check_output([sys.executable, "-c", code], text=True, env=environment), "1\n")


for _name in WAITS:
    setattr(Interrupts, "test_ctrl_c_ends_" + _name, lambda self, name=_name: self.check(name))


if __name__ == "__main__":
    unittest.main()

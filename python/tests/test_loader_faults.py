# SPDX-License-Identifier: BSD-3-Clause
"""The loader when servers and clients die: every sample comes once, in the seeded order, and nothing is left."""

import os
import signal
import subprocess
import sys
import threading
import time

import pier
import serving
from pier.data import Loader
from pier.data.order import Order

# As between hosts: reads go through the process of the server, so stopping it stops them.
OVER_TCP = {"PIER_SOFT_UNIX": "off", "PIER_SOFT_ADDRESS": "127.0.0.1"}


class FaultTest(serving.Case):
    COUNT = 300

    def setUp(self):
        super().setUp()
        self.set_environment(PIER_SOFT_UNIX="", PIER_SOFT_ADDRESS="")

    def set_environment(self, **variables):
        for name, value in variables.items():
            before = os.environ.pop(name, None)
            if before is not None:
                self.addCleanup(os.environ.__setitem__, name, before)
            if value:
                os.environ[name] = value
                self.addCleanup(os.environ.pop, name, None)

    def load(self, *servers, **options):
        urls = [server.url.replace("://", "://%s@" % serving.TOKEN) for server in servers]
        loader = Loader(urls, 7, **{
            "device": "soft0", "seed": 3, "checksums": True, "timeout": serving.PATIENCE, "stall": 0.5, **options})
        self.addCleanup(loader.close)
        return loader

    def expected(self, epoch=0):
        order = Order(self.COUNT, 7, seed=3, epoch=epoch)
        return [sample for number in range(order.batches) for sample in order.batch(number)]

    def read_with(self, loader, number, action):
        """Read an epoch, and do something before a batch is taken."""
        samples = []
        for batch in loader:
            if batch.number == number:
                action()
            self.check_batch(batch)
            samples += batch.samples
            del batch
        return samples

    def await_both(self, loader):
        """Wait until the loader is connected to both servers: until then it reads from one."""
        self.wait_for(lambda: len(loader._fetcher._replicas.live()) == 2, "a server is not connected")

    def test_servers_with_new_urls_are_found(self):
        servers = [self.serve()]
        loader = Loader(lambda: [server.url for server in servers], 7, device="soft0", seed=3, slots=2,
                        timeout=serving.PATIENCE)
        self.addCleanup(loader.close)

        def replace():
            servers[0].kill()
            servers[0] = self.serve()

        self.assertEqual(self.read_with(loader, 9, replace), self.expected())
        self.assertEqual(self.read_with(loader, 9, replace), self.expected(epoch=1))

    def test_urls_that_cannot_be_found_are_no_harm(self):
        servers, asked = [self.serve()], threading.Event()

        def urls():
            if not servers:
                asked.set()
                raise LookupError("none")
            return [server.url for server in servers]

        loader = Loader(urls, 7, device="soft0", seed=3, slots=2, timeout=serving.PATIENCE)
        self.addCleanup(loader.close)

        def replace():
            servers.pop().kill()
            thread = threading.Thread(target=lambda: asked.wait(serving.PATIENCE) and servers.append(self.serve()))
            thread.start()
            self.addCleanup(thread.join)

        self.assertEqual(self.read_with(loader, 9, replace), self.expected())

    def test_killed_server_is_replaced_in_the_middle_of_an_epoch(self):
        for environment in ({}, OVER_TCP):
            self.set_environment(**environment)
            for number in (0, 1, 7):
                dying, other = self.serve(), self.serve()
                with self.load(dying, other) as loader:
                    def kill():
                        self.await_both(loader)
                        dying.kill()

                    self.assertEqual(self.read_with(loader, number, kill), self.expected())
                    self.assertEqual(self.read(loader), self.expected(1))
                    self.assertEqual(loader.stats()["failovers"], 1)

    def test_kill_at_any_moment_loses_and_repeats_nothing(self):
        for _ in range(5):
            dying, other = self.serve(), self.serve()
            killer = threading.Timer(self.random.uniform(0, 0.02), dying.kill)
            with self.load(dying, other) as loader:
                killer.start()
                for epoch in range(3):
                    self.assertEqual(self.read(loader), self.expected(epoch))
            killer.join()

    def test_stopped_server_is_given_up(self):
        self.set_environment(**OVER_TCP)
        stopped, other = self.serve(**OVER_TCP), self.serve(**OVER_TCP)
        with self.load(stopped, other) as loader:
            def stop():
                self.await_both(loader)
                stopped.signal(signal.SIGSTOP)

            self.assertEqual(self.read_with(loader, 3, stop), self.expected())
            stats = loader.stats()
            self.assertEqual(stats["failovers"], 1, loader._fetcher._replicas.describe())
            self.assertGreaterEqual(stats["retries"], 1)
            # Its old reads must not arrive in slots that hold other samples now.
            stopped.signal(signal.SIGCONT)
            self.assertEqual(self.read(loader), self.expected(1))

    def test_stopped_single_server_ends_the_wait_at_its_deadline(self):
        self.set_environment(**OVER_TCP)
        server = self.serve(**OVER_TCP)
        with self.load(server, timeout=1.0, stall=0.2) as loader:
            iterator, samples = iter(loader), []
            samples += next(iterator).samples
            server.signal(signal.SIGSTOP)
            began = time.monotonic()
            with self.assertRaisesRegex(pier.TimedOut, "not ready after 1 s: .*%s" % server.address):
                while True:
                    samples += next(iterator).samples
            self.assertLess(time.monotonic() - began, serving.PATIENCE)
            server.signal(signal.SIGCONT)

            def has_continued():
                try:
                    samples.extend(next(iterator).samples)
                    return True
                except pier.TimedOut:
                    return False

            self.wait_for(has_continued, "the loader does not continue")
            self.assertEqual(samples + self.read(loader), self.expected())

    def test_batch_whose_reads_fail_too_often_raises_the_error_and_follows(self):
        self.set_environment(**OVER_TCP)
        stopped, other = self.serve(**OVER_TCP), self.serve(**OVER_TCP)
        with self.load(stopped, other, retries=0, stall=0.2) as loader:
            iterator, samples, errors = iter(loader), [], []
            samples += next(iterator).samples
            self.await_both(loader)
            stopped.signal(signal.SIGSTOP)
            while len(samples) < self.COUNT:
                try:
                    samples += next(iterator).samples
                except pier.Error as error:
                    errors.append(error)
                    self.assertLess(len(errors), 10, errors)
            self.assertEqual(samples, self.expected())
            self.assertEqual(len(errors), loader.stats()["retries"])
            self.assertRegex(str(errors[0]), "batch [0-9]+ of epoch 0: attempt 1 to read it, from .*%s, failed: "
                             % stopped.address)

    def test_server_that_comes_back_is_used_again(self):
        first, other = self.serve(), self.serve()
        with self.load(first, other) as loader:
            self.assertEqual(self.read_with(loader, 2, first.kill), self.expected())
            again = self.serve("--listen", first.address, self.folder / "data")
            self.assertEqual(again.url, first.url)

            def read_servers():
                return {batch.server for batch in loader}

            self.wait_for(lambda: len(read_servers()) == 2, "the server is not used again")

    def test_single_server_that_is_restarted_continues_the_epoch(self):
        server = self.serve()
        with self.load(server) as loader:
            def restart():
                server.kill()
                self.serve("--listen", server.address, self.folder / "data")

            self.assertEqual(self.read_with(loader, 5, restart), self.expected())
            self.assertEqual(loader.stats()["failovers"], 1)

    def test_server_that_comes_back_with_other_data_is_not_used(self):
        server = self.serve()
        self.write_dataset(self.folder / "other", 10)
        with self.load(server, timeout=0.5) as loader:
            next(iter(loader)).release()
            server.kill()
            self.serve("--listen", server.address, self.folder / "other")

            def is_refused():
                try:
                    next(iter(loader)).release()
                except pier.TimedOut as error:
                    return "no server answers: " in str(error) and "serves other data" in str(error)
                return False

            self.wait_for(is_refused, "the server is not refused")

    def test_deadline_names_the_servers_when_all_are_dead(self):
        servers = [self.serve(), self.serve()]
        with self.load(*servers, timeout=0.5) as loader:
            for server in servers:
                server.kill()
            began = time.monotonic()
            with self.assertRaisesRegex(pier.TimedOut, "no server answers: .*%s: .*; .*%s: " % (
                    servers[0].address, servers[1].address)) as caught:
                for batch in loader:
                    self.check_batch(batch)
                    batch.release()
            self.assertGreaterEqual(time.monotonic() - began, 0.5)
            self.assertNotIn(serving.TOKEN, str(caught.exception))

    def test_server_that_is_not_there_raises_its_error(self):
        server = self.serve()
        server.kill()
        descriptors = serving.count_descriptors()
        with self.assertRaises(pier.ConnectionLost):
            self.load(server)
        self.wait_for(lambda: serving.count_descriptors() <= descriptors, "descriptors are left")

    def test_dead_server_at_the_start_does_not_matter(self):
        dead, server = self.serve(), self.serve()
        dead.kill()
        with self.load(dead, server) as loader:
            self.assertEqual(self.read(loader), self.expected())

    def test_killed_client_costs_the_server_nothing(self):
        server = self.serve(PIER_SOFT_ADDRESS="127.0.0.1")
        script = """if True:
            import sys, time
            from pier.data import Loader
            loader = Loader(sys.argv[1], 7, device="soft0", slots=3)
            iterator = iter(loader)
            batches = [next(iterator), next(iterator)]
            print("reading", flush=True)
            time.sleep(600)
        """
        def run_client(environment):
            client = subprocess.Popen([sys.executable, "-B", "-c", script, server.url], stdout=subprocess.PIPE,
                                      env={**os.environ, **environment})
            self.addCleanup(client.wait)
            self.addCleanup(client.kill)
            with client.stdout:
                self.assertEqual(client.stdout.readline(), b"reading\n")
            self.assertTrue(server.is_connected())
            client.kill()
            client.wait()
            self.wait_for(lambda: not server.is_connected(), "the server keeps the connection")

        # What soft0 makes once, for all connections.
        run_client({})
        run_client(OVER_TCP)
        idle = server.descriptors()
        for environment in ({}, OVER_TCP, {}, OVER_TCP):
            run_client(environment)
            self.wait_for(lambda: server.descriptors() == idle,
                          lambda: "the server has %s, before %s" % (server.descriptors(), idle))


if __name__ == "__main__":
    serving.main()

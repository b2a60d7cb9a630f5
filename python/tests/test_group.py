# SPDX-License-Identifier: BSD-3-Clause
"""Groups: their calls, and forming them through every kind of store and launcher."""

import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import pier
from channels import HERE
from pier import store as stores
from support import PATIENCE, Case, module_or_skip

SIZE = 4


class MemoryStore:
    """The least that a store must have; keys() is for the tests."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values.get(key)


class DeletingStore(MemoryStore):
    def delete_key(self, key):
        return self.values.pop(key, None) is not None


class CountingStore(DeletingStore):
    """As the stores of torch 1.13: get() waits, and only add() tells whether it would."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def get(self, key):
        assert key in self.values, "get(%r) would wait" % key
        return self.values[key]

    def add(self, key, number):
        with self.lock:
            self.values[key] = self.values.get(key, 0) + number
            return self.values[key]


class CheckingStore(DeletingStore):
    """As the stores of torch 2: get() waits, and check() tells whether it would."""

    def get(self, key):
        assert key in self.values, "get(%r) would wait" % key
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


def run_members(*functions):
    """Run each in a thread. Return their results, or exceptions, in order."""
    results = [None] * len(functions)

    def run(index):
        try:
            results[index] = functions[index]()
        except BaseException as error:
            results[index] = error
    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive(), "a member hangs"
    return results


class GroupCase(Case):
    def form(self, store, size=SIZE, **keywords):
        """The members of a group, all in this process."""
        keywords = {"timeout": PATIENCE, "pd": self.pd, **keywords}
        groups = run_members(*[lambda rank=rank: pier.Group.from_store(store, rank, size, **keywords)
                               for rank in range(size)])
        for group in groups:
            if isinstance(group, BaseException):
                raise group
            self.addCleanup(group.close)
        return groups


class Calls(GroupCase):
    def setUp(self):
        super().setUp()
        self.groups = self.form(DeletingStore(), 3)
        self.memory = [bytearray(os.urandom(256)) for _ in self.groups]
        self.regions = [self.pd.register(memory) for memory in self.memory]
        for region in self.regions:
            self.addCleanup(region.close)

    def test_properties(self):
        self.assertEqual([(group.rank, group.size) for group in self.groups], [(0, 3), (1, 3), (2, 3)])
        self.assertIsNone(self.groups[0].failed_rank)
        self.assertIn("rank 1 of 3", repr(self.groups[1]))
        self.assertIs(self.groups[0].pd, self.pd)

    def test_exchange_writes_and_reads(self):
        group, memory, regions = self.groups[0], self.memory, self.regions
        results = group.exchange([(rank, regions[0], regions[rank].remote, "write") for rank in (1, 2)])
        self.assertEqual([result.opcode for result in results], ["write", "write"])
        self.assertEqual(memory[1], memory[0])
        self.assertEqual(memory[2], memory[0])
        memory[2][:] = os.urandom(256)
        group.exchange([(2, regions[0], regions[2].remote, "read")], PATIENCE)
        self.assertEqual(memory[0], memory[2])
        address, length, rkey = regions[1].remote.parts[0]
        parts = pier.Remote([(address, 100, rkey), (address + 100, length - 100, rkey)])
        group.exchange([(1, regions[0], parts)])
        self.assertEqual(memory[1], memory[0])
        with self.assertRaises(pier.Invalid):
            group.exchange([(1, regions[0], pier.Remote([]))])

    def test_multicast(self):
        self.groups[1].multicast(self.regions[1], [(0, self.regions[0].remote), (2, self.regions[2].remote)])
        self.assertEqual((self.memory[0], self.memory[2]), (self.memory[1], self.memory[1]))
        works = [self.groups[rank].channel(0).post_recv(None) for rank in (1, 2)]
        self.groups[0].multicast(None, [1, 2], opcode="send", immediate=8)
        self.assertEqual([work.wait().immediate for work in works], [8, 8])

    def test_channels_belong_to_the_group(self):
        channel = self.groups[0].channel(1)
        self.assertTrue(channel.connected)
        channel.write(self.regions[0], self.regions[1].remote)
        self.assertEqual(self.memory[1], self.memory[0])
        for call in (channel.close, channel.reset):
            with self.assertRaises(pier.Busy):
                call()
        with self.assertRaises(IndexError):
            self.groups[0].channel(3)
        work = channel.post_recv(None)
        self.groups[0].close()
        for call in (work.wait, channel.poll, self.groups[0].barrier):
            with self.assertRaisesRegex(ValueError, "the group is closed"):
                call()

    def test_transfer_keeps_the_group(self):
        with pier.Transfer((self.groups[0].channel(1), self.regions[0], self.regions[1].remote)) as transfer:
            with self.assertRaises(pier.Busy):
                self.groups[0].close()
            transfer.wait()
            self.groups[0].close()

    def test_barrier_waits_for_all(self):
        arrived = []

        def member(group):
            arrived.append(group.rank)
            group.barrier(PATIENCE)
            return len(arrived)
        self.assertEqual(run_members(*[lambda group=group: member(group) for group in self.groups]), [3, 3, 3])

    def test_barrier_names_the_missing_rank(self):
        results = run_members(*[lambda group=group: group.barrier(2.0, algorithm="central")
                                for group in self.groups[:2]])
        self.assertIsInstance(results[0], pier.TimedOut)
        self.assertEqual(self.groups[0].failed_rank, 2)
        with self.assertRaises(pier.ConnectionLost):
            self.groups[0].barrier()

    def test_failed_request_names_its_rank_and_keeps_the_others(self):
        wrong = pier.Remote([(0x1000, 256, 1)])
        with self.assertRaisesRegex(pier.AccessDenied, "of rank 2") as caught:
            self.groups[0].exchange([(1, self.regions[0], self.regions[1].remote, "write"),
                                     (2, self.regions[0], wrong, "write")])
        self.assertEqual([result and result.opcode for result in caught.exception.results], ["write", None])
        self.assertEqual(self.memory[1], self.memory[0])

    def test_endpoints_by_hand(self):
        groups = [pier.Group(self.pd, rank, 2, barrier="central", max_send_wr=32) for rank in range(2)]
        for group in groups:
            self.addCleanup(group.close)
        blobs = [group.endpoints() for group in groups]
        half = len(blobs[0]) // 2
        results = run_members(*[
            lambda rank=rank: groups[rank].connect(b"".join(blob[rank * half:(rank + 1) * half] for blob in blobs),
                                                   PATIENCE) for rank in range(2)])
        self.assertEqual(results, [None, None])
        self.assertEqual(groups[0].channel(1).attributes.max_send_wr, 32)

    def test_handshake_over_sockets(self):
        groups = [pier.Group(self.pd, rank, 2) for rank in range(2)]
        ends = socket.socketpair()
        with ends[0], ends[1]:
            results = run_members(lambda: groups[0].handshake([None, ends[0]], PATIENCE),
                                  lambda: groups[1].handshake([ends[1], None], PATIENCE))
        self.assertEqual(results, [None, None])
        for group in groups:
            group.close()

    def test_child_of_fork_gets_echild(self):
        for use in (self.groups[0].barrier, self.groups[0].endpoints, self.groups[0].close):
            self.assertIn("Forked", self.in_child(use))

    def test_wrong_arguments(self):
        group = self.groups[0]
        for call in (lambda: pier.Group(), lambda: pier.Group(self.pd, "0", 1), lambda: pier.Group(self.device, 0, 1),
                     lambda: group.exchange(1), lambda: group.exchange([1]),
                     lambda: group.exchange([(1, b"", None, "write")]),
                     lambda: group.handshake([1.5] * 3), lambda: group.connect("blobs"),
                     lambda: pier.Group(self.pd, 0, 1, nonsense=1)):
            with self.assertRaises(TypeError):
                call()
        for call in (lambda: pier.Group(self.pd, 1, 1), lambda: pier.Group(self.pd, 0, 1, barrier="none"),
                     lambda: group.exchange([(1, None, None, "fetch_add")]),
                     lambda: group.exchange([(3, None, None, "send")]), lambda: group.barrier(ranks=[2, 1]),
                     lambda: group.barrier(-1), lambda: group.handshake([])):
            with self.assertRaises(ValueError):
                call()
        group.barrier(PATIENCE, ranks=[0])


class Stores(GroupCase):
    def test_groups_form_through_any_store(self):
        for kind in (MemoryStore, DeletingStore, CountingStore, CheckingStore):
            with self.subTest(kind.__name__):
                store = kind()
                for _ in range(3):
                    groups = self.form(store)
                    self.assertEqual(run_members(*[group.barrier for group in groups]), [None] * SIZE)
                if kind is not MemoryStore:
                    self.assertEqual(store.values, {})

    def test_several_names_at_once(self):
        store = CheckingStore()
        results = run_members(*[lambda name=name: self.form(store, 2, name=name) for name in ("a", "b", "c")])
        self.assertEqual([len(groups) for groups in results], [2, 2, 2])
        self.assertEqual(store.values, {})

    def test_groups_of_one(self):
        self.form(CheckingStore(), 1)[0].barrier()

    def test_missing_ranks_are_named(self):
        store = CheckingStore()
        results = run_members(*[
            lambda rank=rank: pier.Group.from_store(store, rank, 5, pd=self.pd, timeout=2.0) for rank in (0, 1, 3)])
        for result in results:
            self.assertIsInstance(result, pier.TimedOut)
            self.assertIn("ranks 2, 4 of 5 did not come in time", str(result))

    def test_missing_first_rank_is_named(self):
        with self.assertRaisesRegex(pier.TimedOut, "rank 0 of 2 did not come"):
            pier.Group.from_store(CheckingStore(), 1, 2, pd=self.pd, timeout=0.1)

    def test_keys_of_a_dead_attempt_are_no_danger(self):
        """Members died at every step of an earlier attempt; the same name works again."""
        for step in range(40):
            store = CheckingStore()
            died = []

            class Dies(CheckingStore):
                def set(self, key, value, store=store, step=step, died=died):
                    if len(died) > step:
                        raise ConnectionError("died")
                    died.append(key)
                    store.set(key, value)

                def get(self, key, store=store):
                    return store.get(key)

                def check(self, keys, store=store):
                    return store.check(keys)

                def delete_key(self, key):
                    return False
            first = Dies()
            run_members(*[lambda rank=rank: pier.Group.from_store(first, rank, 3, pd=self.pd, timeout=0.05)
                          for rank in range(3)])
            groups = self.form(store, 3)
            self.assertEqual(run_members(*[group.barrier for group in groups]), [None] * 3)
            for group in groups:
                group.close()
            if len(died) <= step:
                return
        self.fail("the attempt never got to its end")

    def test_hostile_values(self):
        store = CheckingStore()
        store.set("pier/hello/1", b"short")
        store.set("pier/hello/2", b"x" * 32)
        self.form(store, 3)
        self.assertEqual(store.values, {})

    def test_sentence_of_another_rank_is_escaped(self):
        class Answering(CheckingStore):
            def set(self, key, value):
                super().set(key, value)
                if key == "pier/hello/1":
                    super().set("pier/roster/" + value[:16].hex(), b"F\x1b]0;owned\x07\r\nforged")

        with self.assertRaisesRegex(pier.TimedOut, r"rank 0: \\x1b]0;owned\\x07\\r\\nforged"):
            pier.Group.from_store(Answering(), 1, 2, pd=self.pd, timeout=PATIENCE)

    def test_rank_and_size_come_from_the_environment(self):
        with self.assertRaisesRegex(ValueError, "RANK"):
            pier.Group.from_store(CheckingStore())
        os.environ.update(RANK="0", WORLD_SIZE="1")
        try:
            pier.Group.from_store(CheckingStore()).close()
        finally:
            del os.environ["RANK"], os.environ["WORLD_SIZE"]

    def test_a_domain_can_be_named(self):
        pier.Group.from_store(CheckingStore(), 0, 1, pd="soft0").close()
        with self.assertRaises(pier.NoDevice):
            pier.Group.from_store(CheckingStore(), 0, 1, pd="nonsense")


class TCPStores(GroupCase):
    def serve(self, **keywords):
        store = pier.TCPStore("127.0.0.1", 0, serve=True, timeout=PATIENCE, **keywords)
        self.addCleanup(store.close)
        return store

    def client(self, server, **keywords):
        client = pier.TCPStore("127.0.0.1", server.port,
                               **{"token": server.token, "timeout": PATIENCE, **keywords})
        self.addCleanup(client.close)
        return client

    def test_keys_and_values(self):
        server = self.serve()
        client = self.client(server)
        client.set("key", b"\0value")
        self.assertEqual(server.get("key"), b"\0value")
        server.set("key", "text")
        self.assertEqual(client.get("key"), b"text")
        self.assertTrue(client.check(["key"]))
        self.assertFalse(client.check(["key", "other"]))
        self.assertTrue(client.delete_key("key"))
        self.assertFalse(client.delete_key("key"))

    def test_get_waits(self):
        server = self.serve()
        client = self.client(server)
        threading.Timer(0.05, server.set, ("later", b"1")).start()
        self.assertEqual(client.get("later"), b"1")
        impatient = self.client(server)
        impatient.timeout = 1.0
        with self.assertRaisesRegex(pier.TimedOut, "'never'"):
            impatient.get("never")
        self.assertTrue(impatient.check(["later"]))

    def test_client_may_start_first(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            clients = run_members(
                lambda: pier.TCPStore("127.0.0.1", port, token="t", timeout=PATIENCE),
                lambda: (probe.close(), pier.TCPStore("127.0.0.1", port, token="t", serve=True))[1])
        for client in clients:
            self.addCleanup(client.close)
            client.set("key", b"")

    def test_wrong_token(self):
        server = self.serve()
        with self.assertRaisesRegex(pier.AccessDenied, "token"):
            self.client(server, token="wrong")
        with self.assertRaisesRegex(ValueError, "PIER_STORE_TOKEN"):
            pier.TCPStore("127.0.0.1", server.port)
        server.set("still", b"works")

    def test_server_without_the_token_is_noticed(self):
        """It sends back what it cannot know."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def impostor():
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(stores._MAGIC + bytes(32))
                    connection.recv(1 << 16)
                    connection.sendall(bytes(32))
                    connection.recv(1)
            thread = threading.Thread(target=impostor)
            thread.start()
            with self.assertRaises(pier.AccessDenied):
                pier.TCPStore("127.0.0.1", listener.getsockname()[1], token="t", timeout=PATIENCE)
            thread.join()

    def test_what_is_no_store(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def other():
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"220 mail.example.org ESMTP, ready to serve\r\n" * 2)
            thread = threading.Thread(target=other)
            thread.start()
            with self.assertRaises(pier.BadMessage):
                pier.TCPStore("127.0.0.1", listener.getsockname()[1], token="t", timeout=PATIENCE)
            thread.join()

    def test_silent_server(self):
        with socket.create_server(("127.0.0.1", 0)) as listener, self.assertRaises(pier.TimedOut):
            pier.TCPStore("127.0.0.1", listener.getsockname()[1], token="t", timeout=0.05)

    def test_nobody_listens(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            with self.assertRaisesRegex(pier.TimedOut, "no store answered"):
                pier.TCPStore("127.0.0.1", probe.getsockname()[1], token="t", timeout=0.1)

    def test_hostile_clients_harm_nobody(self):
        server = self.serve()
        random_bytes = os.urandom(64)
        for attack in (b"", b"GET / HTTP/1.0\r\n\r\n", random_bytes, bytes(64), bytes(1 << 20)):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as attacker:
                try:
                    attacker.sendall(attack)
                    attacker.shutdown(socket.SHUT_WR)
                    while attacker.recv(1 << 16):
                        pass
                except OSError:
                    pass
        hostile = self.client(server)
        hostile._stream.socket.send(struct.pack("<BII", 1, 10, 1 << 31))
        with self.assertRaises(pier.ConnectionLost):
            hostile.get("key")
        server.set("still", b"works")
        self.assertEqual(self.client(server).get("still"), b"works")

    def test_limits(self):
        server = self.serve()
        with self.assertRaises(pier.Invalid):
            server.set("k" * 2000, b"")
        with self.assertRaises(pier.Invalid):
            server.set("k", bytes((1 << 20) + 1))
        with self.assertRaisesRegex(pier.NoMemory, "full"):
            for i in range(100):
                server.set("key%d" % i, bytes(1 << 20))
        self.assertTrue(server.delete_key("key0"))
        server.set("key0", b"")

    def test_sentence_of_the_server_is_escaped(self):
        server = self.serve()
        server._server.apply = lambda *request: (2, b"\x1b[31m\nforged")
        with self.assertRaisesRegex(pier.NoMemory, r"refused: \\x1b\[31m\\nforged"):
            server.set("key", b"")

    def test_closed_server(self):
        server = self.serve()
        client = self.client(server)
        server.close()
        server.close()
        with self.assertRaises(pier.ConnectionLost):
            client.set("key", b"")
        with self.assertRaisesRegex(ValueError, "closed"):
            client.set("key", b"")
        with self.assertRaisesRegex(ValueError, "closed"):
            server.get("key")

    def test_form_a_group(self):
        server = self.serve()
        clients = [self.client(server) for _ in range(SIZE)]
        groups = run_members(*[lambda rank=rank: pier.Group.from_store(clients[rank], rank, SIZE, pd=self.pd)
                               for rank in range(SIZE)])
        self.assertEqual(run_members(*[group.barrier for group in groups]), [None] * SIZE)
        for group in groups:
            group.close()
        self.assertEqual(server._server.values, {})


class Processes(unittest.TestCase):
    """Groups of processes, by every way to find each other."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pier-group-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = dict(os.environ, PYTHONPATH="%s:%s" % (HERE, os.environ.get("PYTHONPATH", "")))

    def run_processes(self, commands, **environment):
        processes = [subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=dict(self.environment, **environment)) for command in commands]
        for process in processes:
            self.addCleanup(process.kill)
        outputs = [process.communicate(timeout=2 * PATIENCE) for process in processes]
        done = sorted(int(rank) for output, _ in outputs for rank in re.findall(r"done (\d+)$", output, re.M))
        self.assertEqual(done, list(range(SIZE)), outputs)

    def members(self, kind, place):
        return [[sys.executable, str(HERE / "members.py"), kind, place, str(rank), str(SIZE)]
                for rank in range(SIZE)]

    def test_store_of_pier(self):
        with pier.TCPStore("127.0.0.1", 0, serve=True) as store:
            self.run_processes(self.members("pier", "127.0.0.1:%d" % store.port), PIER_STORE_TOKEN=store.token)
            self.assertEqual(store._server.values, {})

    def test_tcp_store_of_torch(self):
        distributed = module_or_skip("torch.distributed")
        # It would wait for all workers here.
        store = distributed.TCPStore("127.0.0.1", 0, SIZE + 1, True, wait_for_workers=False)
        before = store.num_keys()
        self.run_processes(self.members("tcp", "127.0.0.1:%d" % store.port))
        # Each client counts itself in one key.
        self.assertLessEqual(store.num_keys(), before + 1)

    def test_file_store_of_torch(self):
        module_or_skip("torch.distributed")
        self.run_processes(self.members("file", str(self.folder / "store")))

    def test_prefix_store_of_torch(self):
        module_or_skip("torch.distributed")
        self.run_processes(self.members("prefix", str(self.folder / "store")))

    def test_hash_store_of_torch(self):
        """It is for the threads of one process."""
        distributed = module_or_skip("torch.distributed")
        store = distributed.HashStore()
        groups = run_members(*[lambda rank=rank: pier.Group.from_store(store, rank, SIZE, pd="soft0")
                               for rank in range(SIZE)])
        for group in groups:
            group.close()

    def test_torchrun(self):
        module_or_skip("torch.distributed.run")
        self.run_processes([[sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=%d" % SIZE,
                             "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0",
                             # The defaults of torch 1.13 fail with Python 3.11.
                             "--redirects=1", "--tee=1", "--log_dir", str(self.folder),
                             str(HERE / "members.py"), "torchrun", "", "0", "0"]])

    def mpirun(self, kind):
        program = shutil.which("mpirun")
        if not program:
            self.skipTest("there is no mpirun")
        self.run_processes([[program, "--allow-run-as-root", "--oversubscribe", "-n", str(SIZE), sys.executable,
                             str(HERE / "members.py"), kind, "", "0", "0"]])

    def test_mpi(self):
        module_or_skip("mpi4py")
        self.mpirun("mpi")

    def test_pmix(self):
        module_or_skip("pmix")
        self.mpirun("pmix")


if __name__ == "__main__":
    unittest.main()

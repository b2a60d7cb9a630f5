#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier.data: a server and its clients, hostile ones and killed ones among them."""

import contextlib
import gc
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import zlib

import datasets
import pier
from pier import _peers
from pier.data import Index, Server, connect, wire
from pier.data import server as server_module

SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)
os.environ.setdefault("PIER_DEVICE", "soft0")
PATIENCE = 60 * float(os.environ.get("PIER_TEST_SLOWNESS", "1"))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def shared_mappings():
    """What channels and peers have mapped into this process."""
    return pathlib.Path("/proc/self/maps").read_text().count("memfd:")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pier-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = random.Random(SEED)
        os.environ.pop("PIER_DATA_TOKEN", None)

    def archive(self, count=20, size=3000, name="a.tar"):
        self.files = datasets.samples(self.random, count, size)
        path = self.folder / name
        path.write_bytes(datasets.tar_bytes(self.files))
        return path

    def serve(self, *paths, **options):
        server = Server(*paths or [self.archive()], **options)
        self.addCleanup(server.close)
        return server

    def wait_for(self, condition, complaint):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, complaint)
            time.sleep(0.01)

    def wait_for_departures(self, server):
        """Until nothing of any client is left: its thread closes the socket last."""
        self.wait_for(lambda: server.clients == 0, "clients are left")
        self.wait_for(lambda: all(thread.name != "pier.data client" for thread in threading.enumerate()),
                      "threads of clients are left")

    def read_all(self, connection):
        """Read each sample through the channel, and return its fields."""
        index = connection.index
        found = []
        with pier.Buffer("memfd", max(index.max_sample_length, 1)) as buffer, \
                connection.pd.register(buffer, access=pier.Access.LOCAL_WRITE) as region:
            for n in range(len(index)):
                shard, offset, length = index.table[3 * n:3 * n + 3]
                if length:
                    connection.channel.read(region[:length], connection.remotes[shard][offset:offset + length])
                content = bytes(memoryview(buffer)[:length])
                found.append({name: content[f.offset:f.offset + f.length] for name, f in index.fields(n).items()})
        return found

    def check_archive(self, connection):
        expected = [{"bin": a[1], "cls": b[1]} for a, b in zip(self.files[::2], self.files[1::2])]
        self.assertEqual(self.read_all(connection), expected)


class Serving(Case):
    def test_samples_are_read_one_sidedly(self):
        with self.serve() as server, connect(server.url) as connection:
            self.assertEqual(connection.index.digest, server.index.digest)
            self.check_archive(connection)
            connection.ping()
            connection.check()

    def test_every_kind_of_memory_serves_the_same(self):
        path = self.archive()
        digests = set()
        for memory in ("memfd:readonly", "memfd", "file", "udmabuf"):
            with self.subTest(memory):
                try:
                    server = self.serve(path, memory=memory)
                except pier.NotSupported as error:
                    print("# %s is not tested: %s" % (memory, error.strerror))
                    continue
                with server, connect(server.url) as connection:
                    self.check_archive(connection)
                    digests.add(connection.index.digest)
        self.assertEqual(len(digests), 1)

    def test_packed_files_cannot_be_mapped(self):
        for name in "ab":
            (self.folder / name).write_bytes(b"1")
        with self.assertRaisesRegex(pier.Invalid, "packed from several files"):
            Server(self.folder, memory="file")
        with self.serve(self.folder) as server, connect(server.url) as connection:
            self.assertEqual(self.read_all(connection), [{"data": b"1"}] * 2)

    def test_clients_can_only_read(self):
        with self.serve() as server, connect(server.url) as connection:
            before = bytes(memoryview(server._shards[0].content)[:100])
            with pier.Buffer("memfd", 100) as buffer, connection.pd.register(buffer) as region:
                with self.assertRaises(pier.Error):
                    connection.channel.write(region, connection.remotes[0][:100])
            self.assertEqual(bytes(memoryview(server._shards[0].content)[:100]), before)

    def test_server_cannot_reach_the_memory_of_clients(self):
        """Not even with a key of the client's."""
        channels = []

        def channel(*arguments, **attributes):
            channels.append(pier.Channel(*arguments, **attributes))
            return channels[-1]

        with unittest.mock.patch.object(server_module, "Channel", channel), self.serve() as server, \
                pier.ProtectionDomain("soft0") as pd, pd.register(bytearray(b"weights")) as theirs, \
                connect(server.url, pd), server._pd.register(bytearray(b"changed")) as ours:
            self.wait_for(lambda: channels and channels[0].connected, "the server has not connected")
            with self.assertRaises((pier.AccessDenied, pier.ConnectionLost)):
                channels[0].write(ours, theirs.remote)

    def test_clients_cannot_read_behind_a_shard(self):
        with self.serve() as server, connect(server.url) as connection:
            (addr, length, rkey), = connection.remotes[0].parts
            with pier.Buffer("memfd", 4096) as buffer, connection.pd.register(buffer) as region:
                with self.assertRaises(pier.Error):
                    connection.channel.read(region, pier.Remote([(addr + length - 100, 4096, rkey)]))

    def test_known_index_is_not_sent_again(self):
        with self.serve() as server:
            with connect(server.url) as first, connect(server.url, index=first.index) as second:
                self.assertIs(second.index, first.index)
                self.check_archive(second)
            (self.folder / "x").write_bytes(b"1")
            with self.serve(self.folder / "x") as other, connect(other.url, index=first.index) as third:
                self.assertEqual(third.index.digest, other.index.digest)

    def test_checksums_on_request(self):
        with self.serve() as server:
            with connect(server.url) as connection:
                self.assertIsNone(connection.checksums)
            with connect(server.url, checksums=True) as connection:
                table, content = connection.index.table, server._shards[0].content
                self.assertEqual(list(connection.checksums), [zlib.crc32(content[o:o + n]) for o, n in
                                                              zip(table[1::3], table[2::3])])

    def test_several_clients_at_once(self):
        with self.serve() as server:
            failures = []

            def client():
                try:
                    with connect(server.url) as connection:
                        self.check_archive(connection)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=client) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            self.wait_for(lambda: server.clients == 0, "clients are left")

    def test_limit_of_clients(self):
        with self.serve(max_clients=2) as server:
            with connect(server.url), connect(server.url):
                with self.assertRaisesRegex(pier.Busy, "it has 2 clients, as many as it takes"):
                    connect(server.url)
            self.wait_for(lambda: server.clients == 0, "clients are left")
            connect(server.url).close()

    def test_client_without_a_thread_is_refused_alone(self):
        start, failures = threading.Thread.start, []

        def start_later(thread):
            if thread.name == "pier.data client" and not failures:
                failures.append(thread)
                raise RuntimeError("can't start new thread")
            start(thread)

        with self.serve() as server:
            with unittest.mock.patch.object(threading.Thread, "start", start_later), self.assertLogs("pier.data"):
                self.assertRaises(pier.ConnectionLost, connect, server.url)
            self.assertEqual(len(failures), 1)
            connect(server.url).close()

    def test_wrong_or_missing_token(self):
        with self.serve(token="secret/@:") as server:
            connect(server.url).close()
            host = server.url.rpartition("@")[2]
            with self.assertRaisesRegex(pier.AccessDenied, "the token is wrong"):
                connect("pier://other@" + host)
            with self.assertRaisesRegex(pier.Invalid, "has no token"):
                connect("pier://" + host)
            os.environ["PIER_DATA_TOKEN"] = "secret/@:"
            connect("pier://" + host).close()
            for url in ("http://t@h:1", "pier://t@h", "t@h:1", "", "pier://t@:1", "pier://t@h:99999", "pier://t@[::1",
                        "pier://t@h:1/a.tar"):
                with self.assertRaisesRegex(pier.Invalid, "is not the URL") as caught:
                    connect(url)
                self.assertNotIn("t@", caught.exception.strerror)
            self.wait_for(lambda: server.clients == 0, "clients are left")

    def test_token_of_the_environment_is_not_shown(self):
        os.environ["PIER_DATA_TOKEN"] = "hidden"
        with self.serve() as server:
            self.assertNotIn("hidden", server.url)
            connect(server.url).close()

    def test_list_of_paths_is_refused_with_the_remedy(self):
        with self.assertRaisesRegex(TypeError, r"Server\(\*paths\)"):
            Server([str(self.archive())])

    def test_bad_arguments(self):
        path = self.archive()
        for listen in ("localhost", "", "h:x", "127.0.0.1:70000"):
            with self.assertRaisesRegex(pier.Invalid, "write HOST:PORT"):
                Server(path, listen=listen)
        with self.assertRaises(OSError) as caught:
            Server(path, listen="no-such-host.invalid:1")
        self.assertEqual(caught.exception.filename, "no-such-host.invalid:1")
        with self.assertRaises(pier.Error):
            Server(path, memory="nonsense")
        with self.assertRaises(FileNotFoundError):
            Server(self.folder / "missing")

    def test_ipv6(self):
        try:
            server = self.serve(listen="[::1]:0")
        except OSError as error:
            self.skipTest("no IPv6: %s" % error)
        self.assertIn("@[::1]:", server.url)
        connect(server.url).close()

    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = "pier://t@127.0.0.1:%d" % listener.getsockname()[1]
            with self.assertRaises(pier.TimedOut):
                connect(url, timeout=0.05)
        with self.assertRaisesRegex(pier.ConnectionLost, "is it running"):
            connect(url)

    def test_closed_server_frees_everything(self):
        path = self.archive()
        with self.serve(path) as server, connect(server.url):
            pass
        gc.collect()
        before = descriptors(), threading.active_count()
        for _ in range(5):
            with self.serve(path) as server, connect(server.url) as connection:
                server.close()
                self.assertRaises(pier.ConnectionLost, connection.ping)
                self.assertRaises(pier.ConnectionLost, connection.check)
        self.assertEqual((descriptors(), threading.active_count()), before)

    def test_failed_connections_leave_nothing(self):
        with self.serve() as server:
            connect(server.url).close()
            self.wait_for_departures(server)
            before = descriptors()
            for _ in range(20):
                with self.assertRaises(pier.AccessDenied):
                    connect(server.url.replace("//", "//x"))
                with self.assertRaises(pier.Invalid):
                    connect(server.url, max_send_wr=1 << 30)
            self.wait_for(lambda: descriptors() == before, "descriptors are left")


class KilledClient(Case):
    CLIENT = """
import sys, time
from pier.data import connect
connections = [connect(sys.argv[1]) for _ in range(3)]
print("connected", flush=True)
time.sleep(1000)
"""

    def test_its_resources_come_back(self):
        with self.serve() as server:
            connect(server.url).close()
            self.wait_for_departures(server)
            before, mappings, threads = descriptors(), shared_mappings(), threading.active_count()
            for _ in range(3):
                command = [sys.executable, "-c", self.CLIENT, server.url]
                with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
                    self.assertEqual(child.stdout.readline(), b"connected\n")
                    self.assertEqual(server.clients, 3)
                    child.kill()
                self.wait_for(lambda: server.clients == 0, "clients are left")
            self.wait_for(lambda: descriptors() == before, "descriptors are left")
            self.wait_for(lambda: shared_mappings() == mappings, "memory is left")
            self.wait_for(lambda: threading.active_count() == threads, "threads are left")
            with connect(server.url) as connection:
                self.check_archive(connection)


class Hostile(Case):
    def talk(self, server):
        """A connection without the helpers of the package, and the server's challenge."""
        host, port = server.url.rpartition("@")[2].rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), PATIENCE)
        self.addCleanup(connection.close)
        return connection, self.receive(connection)[1]

    def receive(self, connection):
        header = self.exactly(connection, 16)
        magic, version, kind, length = struct.unpack("<4sHHQ", header)
        self.assertEqual((magic, version), (b"PrDS", 1))
        return kind, self.exactly(connection, length)

    def exactly(self, connection, length):
        data = b""
        while len(data) < length:
            piece = connection.recv(length - len(data))
            self.assertTrue(piece, "closed too early")
            data += piece
        return data

    def message(self, kind, payload, magic=b"PrDS", version=1, length=None):
        return struct.pack("<4sHHQ", magic, version, kind, len(payload) if length is None else length) + payload

    def hello(self, server, challenge, token=None):
        nonce = os.urandom(32)
        token = token if token is not None else server._token.encode()
        return struct.pack("<32s32s32sII", nonce, wire.proof(token, b"client", challenge, nonce), bytes(32), 0, 0)

    def ended(self, connection):
        """The rest of what the server sends, up to the end of the connection."""
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(65536):
                pass

    def test_messages_without_sense_are_refused(self):
        with self.serve() as server:
            good = self.hello(server, bytes(32))
            for data in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", bytes(200),
                         self.message(2, good, magic=b"XXXX"), self.message(2, good, version=2),
                         self.message(7, b""), self.message(2, good[:-1]), self.message(2, good + b"x"),
                         self.message(2, good, length=1 << 63), self.message(9, b"abc"),
                         self.message(2, good), self.message(9, struct.pack("<I", 1) + b"\xff\x1b[31m"),
                         self.message(65535, good)):
                with self.subTest(data[:24]):
                    connection, _ = self.talk(server)
                    connection.sendall(data)
                    self.ended(connection)
            self.wait_for(lambda: not server._door.connections, "connections are left")
            with connect(server.url) as connection:
                self.check_archive(connection)

    def test_proof_cannot_be_replayed_or_reflected(self):
        with self.serve() as server:
            connection, challenge = self.talk(server)
            hello = self.hello(server, challenge)
            connection.sendall(self.message(2, hello))
            self.assertEqual(self.receive(connection)[0], 3)
            replay, _ = self.talk(server)
            replay.sendall(self.message(2, hello))
            self.assertEqual(self.receive(replay)[0], 9)
            # The server's own proof, for a nonce that was chosen so.
            first, challenge = self.talk(server)
            proof = wire.proof(server._token.encode(), b"server", challenge, challenge)
            reflected = struct.pack("<32s32s32sII", challenge, proof, bytes(32), 0, 0)
            first.sendall(self.message(2, reflected))
            self.assertEqual(self.receive(first)[0], 9)

    def test_strangers_are_closed_after_a_while(self):
        with self.serve() as server, unittest.mock.patch.object(_peers, "PROOF_SECONDS", 0.1):
            connection, _ = self.talk(server)
            connection.sendall(b"P")
            self.ended(connection)

    def test_garbage_in_place_of_the_handshake(self):
        with self.serve() as server:
            endpoint = struct.pack("<4sHHI", b"PIER", 1, 1, 256)
            for garbage in (bytes(100), b"PIER" + bytes(100), endpoint + bytes(256), endpoint, b""):
                connection, challenge = self.talk(server)
                connection.sendall(self.message(2, self.hello(server, challenge)) + garbage)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                self.ended(connection)
            self.wait_for(lambda: server.clients == 0, "clients are left")
            connect(server.url).close()

    def test_garbage_after_the_handshake(self):
        with self.serve() as server:
            for data in (bytes(100), self.message(2, bytes(104)), self.message(7, b"x"),
                         self.message(7, b"", version=3)):
                with connect(server.url) as connection:
                    connection._stream.socket.send(data)
                    self.wait_for(lambda: server.clients == 0, "the client is left")
                    # It is told why, or finds the connection closed.
                    self.assertRaises((pier.ConnectionLost, pier.BadMessage), connection.check)

    def test_random_bytes(self):
        with self.serve() as server:
            for _ in range(100):
                connection, challenge = self.talk(server)
                data = bytearray(self.message(2, self.hello(server, challenge)) + self.message(7, b""))
                for _ in range(self.random.randrange(1, 5)):
                    data[self.random.randrange(len(data))] = self.random.randrange(256)
                connection.sendall(data[:self.random.randrange(len(data))])
                connection.close()
            self.wait_for(lambda: not server._door.connections, "connections are left")
            connect(server.url).close()


class HostileServer(Case):
    """A peer that has the token, and sends what the client must not believe."""

    def play(self, *messages, token=b"t"):
        """Play a server, and return what connect() raises."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def serve():
                connection, _ = listener.accept()
                with connection:
                    nonce = os.urandom(32)
                    connection.sendall(struct.pack("<4sHHQ", b"PrDS", 1, 1, 32) + nonce)
                    hello = b""
                    while len(hello) < 120:
                        hello += connection.recv(120 - len(hello))
                    proof = wire.proof(token, b"server", hello[16:48], nonce)
                    for kind, payload in messages:
                        payload = payload.replace(b"PROOF" * 6 + b"xx", proof)
                        with contextlib.suppress(OSError):
                            connection.sendall(struct.pack("<4sHHQ", b"PrDS", 1, kind, len(payload)) + payload)
                    connection.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(OSError):
                        while connection.recv(65536):
                            pass

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                with self.assertRaises(pier.Error) as caught:
                    connect("pier://t@127.0.0.1:%d" % listener.getsockname()[1], timeout=PATIENCE)
            finally:
                thread.join()
            return caught.exception

    def test_what_it_sends_is_checked(self):
        path = self.folder / "f"
        path.write_bytes(b"12345")
        with self.serve(path) as server:
            index, remotes = server.index.to_bytes(), server._remotes
        digest = Index.from_bytes(index).digest
        welcome = 3, b"PROOF" * 6 + b"xx" + digest
        remote = pier.Remote([(0, 6, 1)]).to_bytes()
        huge = pier.Remote([(0, 1 << 63, 1)]).to_bytes()
        before = descriptors()
        for messages, kind, pattern in (
                ([], pier.ConnectionLost, "closed"),
                ([(3, bytes(64))], pier.AccessDenied, "does not have the token"),
                ([(3, bytes(63))], pier.BadMessage, "63 bytes, where 64"),
                ([(3, bytes(65))], pier.BadMessage, "at most 64"),
                ([(9, struct.pack("<I", 16) + b"no\x1b[1m")], pier.Busy, r"no\\x1b\[1m"),
                ([(9, b"ab")], pier.BadMessage, "error message of 2"),
                ([(9, bytes(5000))], pier.BadMessage, "at most"),
                ([welcome], pier.ConnectionLost, "closed"),
                ([welcome, (4, index[:-1])], pier.BadMessage, "index"),
                ([welcome, (4, bytes(len(index)))], pier.BadMessage, "index"),
                ([(3, welcome[1][:32] + bytes(32)), (4, index)], pier.BadMessage, "not the one"),
                ([welcome, (5, remotes)], pier.BadMessage, "INDEX is expected"),
                ([welcome, (4, index), (5, b"")], pier.BadMessage, "shard f"),
                ([welcome, (4, index), (5, remotes[:-1])], pier.BadMessage, "shard f"),
                ([welcome, (4, index), (5, remotes + b"x")], pier.BadMessage, "1 bytes behind"),
                ([welcome, (4, index), (5, remote)], pier.BadMessage, "6 bytes instead of 5"),
                ([welcome, (4, index), (5, huge)], pier.BadMessage, "9223372036854775808 bytes instead of 5"),
                ([welcome, (4, index), (5, remotes)], pier.Error, "."),
                ([welcome, (4, index), (5, remotes), (8, bytes(100))], pier.Error, ".")):
            with self.subTest(messages=[kind for kind, _ in messages], pattern=pattern):
                error = self.play(*messages)
                self.assertIsInstance(error, kind)
                self.assertRegex(str(error), pattern)
        self.assertRegex(str(self.play((3, welcome[1]), token=b"other")), "does not have the token")
        self.assertEqual(descriptors(), before)

    def test_servers_of_other_protocols(self):
        for greeting in (b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", b"\0" * 64, struct.pack("<4sHHQ", b"PrDS", 9, 1, 32)):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                def serve(listener=listener, greeting=greeting):
                    with listener.accept()[0] as connection:
                        connection.sendall(greeting)

                thread = threading.Thread(target=serve)
                thread.start()
                with self.assertRaisesRegex(pier.BadMessage, "is it a server of pier.data|version 9 of the protocol"):
                    connect("pier://t@127.0.0.1:%d" % listener.getsockname()[1])
                thread.join()

    def test_damaged_messages(self):
        path = self.folder / "f"
        path.write_bytes(b"12345")
        with self.serve(path) as server:
            index, remotes = server.index.to_bytes(), server._remotes
        for _ in range(100):
            damaged = bytearray(index), bytearray(remotes)
            one = self.random.choice(damaged)
            one[self.random.randrange(len(one))] ^= 1 << self.random.randrange(8)
            self.play((3, b"PROOF" * 6 + b"xx" + Index.from_bytes(index).digest), *zip((4, 5), map(bytes, damaged)))


class Program(Case):
    def start(self, *arguments):
        """A server, which ends with the case, and does not inherit a SIGINT that is ignored."""
        program = subprocess.Popen([sys.executable, "-m", "pier.data", "serve", *map(str, arguments)], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        watchdog = threading.Timer(2 * PATIENCE, program.kill)
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        return program

    def test_program_serves_until_a_signal(self):
        path = self.archive()
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.start(path, "--checksums", "--memory", "file") as program:
                with connect(program.stdout.readline().strip(), checksums=True) as connection:
                    self.check_archive(connection)
                    program.send_signal(number)
                    self.assertEqual(program.wait(PATIENCE), 0)
                    self.assertRaises(pier.ConnectionLost, connection.ping)
                self.assertEqual(program.stderr.read(), "")

    def test_program_refuses_with_a_sentence(self):
        with self.start(self.folder / "missing") as program:
            output, errors = program.communicate(timeout=PATIENCE)
            self.assertEqual((output, program.returncode), ("", 1))
            self.assertEqual(errors, "pier.data: %s/missing: No such file or directory\n" % self.folder)
        with self.start(self.folder) as program:
            self.assertRegex(program.communicate(timeout=PATIENCE)[1], r"\Apier.data: .* nothing to serve\n\Z")

    def test_killed_server_is_noticed_at_once(self):
        with self.start(self.archive()) as program:
            with connect(program.stdout.readline().strip()) as connection:
                connection.check()
                program.kill()
                program.wait()
                self.assertRaises(pier.ConnectionLost, connection.ping)
                self.assertRaises(pier.ConnectionLost, connection.check)


if __name__ == "__main__":
    print("# PIER_SEED=%d" % SEED)
    unittest.main()

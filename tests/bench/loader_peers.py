# SPDX-License-Identifier: BSD-3-Clause
"""A contestant of the loader's benchmark: a server, and a client that reads and checks epochs.

    loader_peers.py NAME FOLDER BATCH COMPUTE

Prints as JSON the seconds of an epoch in which the client only checks what arrives, and how long it
waited for each batch of another one, in which it computes COMPUTE seconds with each batch; for pier
also what its loader counted. NAME is one of those in CONTESTANTS. PYTHONPATH must have NumPy and the
package of the contestant.
"""
import ctypes
import functools
import json
import mmap
import os
import pickle
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
import unittest.mock

import loader_data

PR_SET_PDEATHSIG = 1  # linux/prctl.h
RANGE = struct.Struct("<QII")  # offset, length, shard
READ = struct.Struct("<QQQQ")  # of pier.Ring: offset in the slot, in the source, length, source


def start_server(*arguments):
    """Another Python program, which ends with this one."""
    prctl = ctypes.CDLL(None).prctl
    return subprocess.Popen([sys.executable, "-B", *arguments], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))


class Server:
    """Another process with this program."""

    def __init__(self, *arguments):
        self.process = start_server(__file__, "--serve", *arguments)
        self.said = pickle.load(self.process.stdout)

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


def divert_output():
    """Return an fd of standard output, and have what libraries print go to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def say(out, value):
    with os.fdopen(out, "wb") as pipe:
        pickle.dump(value, pipe)


def map_memory(length):
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def receive(sock, view):
    while view:
        count = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        if count == 0:
            raise SystemExit("the other end has gone")
        view = view[count:]


def serve_tcp(out, folder):
    """Requests are lists of ranges; sendfile(2) is the answer."""
    files = [os.open(path, os.O_RDONLY) for path in loader_data.shard_paths(folder)]
    listener = socket.create_server(("127.0.0.1", 0))
    say(out, listener.getsockname())
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream, count = sock.fileno(), bytearray(4)
    while sock.recv_into(count, 4, socket.MSG_WAITALL) == 4:
        ranges = bytearray(RANGE.size * int.from_bytes(count, "little"))
        receive(sock, memoryview(ranges))
        for offset, length, shard in RANGE.iter_unpack(ranges):
            while length:
                sent = os.sendfile(stream, files[shard], offset, length)
                offset += sent
                length -= sent


class Contestant:
    """batches(seed) yields the seconds of waiting for a batch, and its samples as (number, address).
    """

    def figures(self):
        """What else there is to say, as a dict."""
        return {}


class Tcp(Contestant):
    """One connection, and one buffer that each batch is received into, requested `ahead` batches
    before it is awaited."""

    def __init__(self, folder, batch, *, ahead):
        self.server = Server("tcp", folder)
        self.sock = socket.create_connection(self.server.said)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ranges, self.batch, self.ahead = loader_data.load_ranges(folder), batch, ahead
        self.memory, self.address = map_memory(batch * loader_data.LONGEST)
        self.view = memoryview(self.memory)

    def request(self, numbers):
        ranges = b"".join(RANGE.pack(offset, length, shard) for shard, offset, length in
                          map(self.ranges.__getitem__, numbers))
        self.sock.sendall(len(numbers).to_bytes(4, "little") + ranges)

    def batches(self, seed):
        order = loader_data.make_order(seed, self.batch)
        for numbers in order[:self.ahead]:
            self.request(numbers)
        for turn, numbers in enumerate(order):
            if turn + self.ahead < len(order):
                self.request(order[turn + self.ahead])
            offset, found = 0, []
            for number in numbers:
                found.append((number, self.address + offset))
                offset += self.ranges[number][2]
            start = time.perf_counter()
            receive(self.sock, self.view[:offset])
            yield time.perf_counter() - start, found

    def end(self):
        self.sock.close()
        self.server.end()


def make_agent(name, threaded):
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(enable_prog_thread=threaded, backends=["UCX"]))


def serve_nixl(out, folder):
    agent = make_agent("server", True)
    addresses, kept = [], []
    for path in loader_data.shard_paths(folder):
        size = os.path.getsize(path)
        memory, address = map_memory(size)
        with open(path, "rb") as file:
            file.readinto(memory)
        agent.register_memory([(address, size, 0, "")], "DRAM")
        addresses.append(address)
        kept.append(memory)
    say(out, (agent.get_agent_metadata(), addresses))
    sys.stdin.read()
    os._exit(0)


class Nixl(Contestant):
    """Reads by lists of descriptors, one for each batch, with `slots` batches in flight or in use."""

    def __init__(self, folder, batch, *, threaded, slots=3):
        import numpy

        self.numpy, self.batch, self.slots = numpy, batch, slots
        self.server = Server("nixl", folder)
        metadata, addresses = self.server.said
        self.agent = make_agent("client", threaded)
        self.peer = self.agent.add_remote_agent(metadata)
        self.slot_bytes = batch * loader_data.LONGEST
        self.memory, self.address = map_memory(slots * self.slot_bytes)
        self.agent.register_memory([(self.address, slots * self.slot_bytes, 0, "")], "DRAM")
        self.remote = numpy.array([(addresses[shard] + offset, length, 0) for shard, offset, length
                                   in loader_data.load_ranges(folder)], dtype=numpy.uint64)

    def post(self, numbers, slot):
        numpy = self.numpy
        theirs = self.remote[numbers]
        mine = theirs.copy()
        mine[0, 0] = self.address + slot * self.slot_bytes
        numpy.cumsum(theirs[:-1, 1], out=mine[1:, 0])
        mine[1:, 0] += mine[0, 0]
        handle = self.agent.initialize_xfer(
            "READ", self.agent.get_xfer_descs(mine, "DRAM"),
            self.agent.get_xfer_descs(theirs, "DRAM"), self.peer)
        state = self.agent.transfer(handle)
        return handle, state, list(zip(numbers, mine[:, 0].tolist()))

    def batches(self, seed):
        order = loader_data.make_order(seed, self.batch)
        posted = [self.post(numbers, slot) for slot, numbers in enumerate(order[:self.slots - 1])]
        for turn in range(len(order)):
            start = time.perf_counter()  # the thread that posts does the copying
            ahead = turn + self.slots - 1
            if ahead < len(order):
                posted.append(self.post(order[ahead], ahead % self.slots))
            handle, state, found = posted.pop(0)
            while state == "PROC":
                state = self.agent.check_xfer_state(handle)
            if state != "DONE":
                raise SystemExit("a transfer of NIXL ended with " + state)
            waited = time.perf_counter() - start
            self.agent.release_xfer_handle(handle)
            yield waited, found

    def end(self):
        self.server.end()


def make_instant_ring(*arguments, **options):
    """A ring that reads one byte of each batch, so that the time of its loader is Python's."""
    import pier

    class InstantRing:
        def __init__(self):
            self.ring = pier.Ring(*arguments, **options)

        def begin(self, sources, reads):
            offset, place, length, source = READ.unpack_from(reads, len(reads) - READ.size)
            last = READ.pack(offset + length - 1, place + length - 1, 1, source)
            return self.ring.begin(sources, last)

        def __getattr__(self, name):
            return getattr(self.ring, name)

    return InstantRing()


class Pier(Contestant):
    """The loader and the server of pier.data."""

    def __init__(self, folder, batch):
        import numpy
        import pier.data.loader

        self.numpy, self.batch, self.module = numpy, batch, pier.data.loader
        self.server = start_server("-m", "pier.data", "serve", "--device", "soft0",
                                   *loader_data.shard_paths(folder))
        self.url = self.server.stdout.readline().decode().strip()
        self.loader = self.make_loader()
        self.numbers = [int(self.loader.index.key(i)) for i in range(len(self.loader.index))]

    def make_loader(self, slots=3):
        return self.module.Loader([self.url], self.batch, device="soft0", slots=slots)

    def arrays(self, loader, seed):
        loader.set_epoch(seed)
        batches = iter(loader)
        start = time.perf_counter()
        while (batch := next(batches, None)) is not None:
            waited = time.perf_counter() - start
            yield waited, batch, self.numpy.from_dlpack(batch.view((batch.nbytes,)))
            start = time.perf_counter()

    def batches(self, seed):
        for waited, batch, array in self.arrays(self.loader, seed):
            address = array.__array_interface__["data"][0]
            yield waited, [(self.numbers[sample], address + offset)
                           for sample, offset in zip(batch.samples, batch.offsets)]

    def figures(self):
        """The processor time of a batch of which nothing is read, and copies at the consumer."""
        # Without the system calls of threads that wake each other on other processors.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with unittest.mock.patch.object(self.module, "Ring", make_instant_ring):
            loader = self.make_loader(slots=64)  # so that its threads rarely wait for each other
        times = []
        for seed in range(0, 200, 10):
            start = time.process_time()
            count = sum(1 for _ in self.arrays(loader, seed))
            times.append((time.process_time() - start) / count)
        loader.close()
        return {"python_us": statistics.median(times) * 1e6,
                "copies": self.loader.stats()["copies"]}

    def end(self):
        self.loader.close()
        self.server.terminate()
        self.server.wait(30)


def check_batch(checker, found):
    for number, address in found:
        checker.check(number, address)


def run_epoch(contestant, checker, seed, compute=0):
    """Return the seconds of the epoch, and those of the wait for each batch."""
    waits, start = [], time.perf_counter()
    for waited, found in contestant.batches(seed):
        arrived = time.perf_counter()
        waits.append(waited)
        check_batch(checker, found)
        while time.perf_counter() < arrived + compute:
            check_batch(checker, found)
    return time.perf_counter() - start, waits


CONTESTANTS = {
    "pier": Pier,
    "tcp": functools.partial(Tcp, ahead=0),
    "tcp-ahead": functools.partial(Tcp, ahead=1),
    "nixl": functools.partial(Nixl, threaded=False),
    "nixl-thread": functools.partial(Nixl, threaded=True),
}


def main():
    out = divert_output()
    if sys.argv[1] == "--serve":
        {"tcp": serve_tcp, "nixl": serve_nixl}[sys.argv[2]](out, *sys.argv[3:])
        return
    name, folder, batch, compute = sys.argv[1:]
    contestant = CONTESTANTS[name](folder, int(batch))
    checker = loader_data.Checker()
    run_epoch(contestant, checker, 0)  # page faults, connections, code
    # Not the next ones, of which pier's loader has read the first batches.
    seconds, _ = run_epoch(contestant, checker, 10)
    _, waits = run_epoch(contestant, checker, 20, float(compute))
    figures = {"seconds": seconds, "waits": waits, **contestant.figures()}
    contestant.end()
    os.write(out, (json.dumps(figures) + "\n").encode())
    os._exit(0)  # without the interpreter's end, whose order the libraries do not expect


if __name__ == "__main__":
    main()

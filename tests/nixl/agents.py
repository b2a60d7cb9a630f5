# SPDX-License-Identifier: BSD-3-Clause
"""Two processes with an agent each, on the NIXL that PYTHONPATH names.

    agents.py BACKEND MEMORY TEST...

Runs the tests (functions below), and prints "ok - NAME" or "not ok - NAME". The second
process serves memory, and is this program with other arguments.
"""
import ctypes
import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback

from nixl_cu12._api import nixl_agent, nixl_agent_config

MIB = 1 << 20
SIZE = int(os.environ.get("PIER_TEST_NIXL_SIZE", 64 * MIB))
# Regions of the memory, of equal length.
PARTS = int(os.environ.get("PIER_TEST_NIXL_PARTS", 1))
SECONDS = 60


class Memory:
    """Bytes that an agent registers: of the process, or of a memfd."""

    def __init__(self, agent, kind, size=SIZE):
        self.fd = os.memfd_create("test") if kind == "memfd" else -1
        if self.fd >= 0:
            os.ftruncate(self.fd, size)
        self.bytes = mmap.mmap(self.fd, size)
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        text = "dmabuf:%d" % self.fd if self.fd >= 0 else ""
        part = size // PARTS
        agent.register_memory([(self.addr + i * part, part, 0, text) for i in range(PARTS)],
                              "DRAM")


def make_agent(name, backend):
    return nixl_agent(name, nixl_agent_config(backends=[backend]))


def until(what, step):
    end = time.monotonic() + SECONDS
    while True:
        found = step()
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(what)


def serve(backend, kind):
    """Commands from standard input, pickled: ("read", offset, length), ("fill", byte),
    ("notice",), ("say", text)."""
    agent = make_agent("server", backend)
    memory = Memory(agent, kind)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # NIXL prints to standard output, too

    def answer(value):
        pickle.dump(value, out)
        out.flush()

    notices = []
    answer((agent.get_agent_metadata(), memory.addr))
    while True:
        try:
            command, *rest = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if command == "read":
            offset, length = rest
            answer(memory.bytes[offset:offset + length])
        elif command == "fill":
            memory.bytes[:] = bytes(rest) * SIZE
            answer(None)
        elif command == "meet":
            agent.add_remote_agent(rest[0])
            answer(None)
        elif command == "say":
            agent.send_notif("client", rest[0])
            answer(None)
        elif command == "notice":
            def take():
                for texts in agent.get_new_notifs().values():
                    notices.extend(texts)
                return notices
            until("a notification", take)
            answer(notices.pop(0))


class Server:
    def __init__(self, backend, kind):
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", backend, kind],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.metadata, self.addr = self.answer()

    def answer(self):
        return pickle.load(self.process.stdout)

    def tell(self, *command):
        pickle.dump(command, self.process.stdin)
        self.process.stdin.flush()

    def ask(self, *command):
        self.tell(*command)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        if self.process.wait(SECONDS):
            raise RuntimeError("the server ended with %d" % self.process.returncode)


class World:
    """An agent, and a server that it knows."""

    def __init__(self, backend, kind):
        self.backend, self.kind = backend, kind
        self.agent = make_agent("client", backend)
        self.memory = Memory(self.agent, kind)
        self.start_server()

    def start_server(self):
        self.server = Server(self.backend, self.kind)
        self.peer = self.agent.add_remote_agent(self.server.metadata)

    def prepare(self, operation, ranges, notice=b""):
        local = [(self.memory.addr + mine, length, 0) for mine, theirs, length in ranges]
        remote = [(self.server.addr + theirs, length, 0) for mine, theirs, length in ranges]
        return self.agent.initialize_xfer(
            operation, self.agent.get_xfer_descs(local, "DRAM"),
            self.agent.get_xfer_descs(remote, "DRAM"), self.peer, notice)

    def state(self, handle, state="PROC"):
        """Bindings of some versions raise the error."""
        def step():
            nonlocal state
            if state == "PROC":
                try:
                    state = self.agent.check_xfer_state(handle)
                except Exception as problem:  # its class differs between versions
                    state = "ERR " + type(problem).__name__
            return state != "PROC"
        until("a transfer", step)
        return state

    def post(self, handle):
        try:
            return self.agent.transfer(handle)
        except Exception as problem:  # as above
            return "ERR " + type(problem).__name__

    def move(self, *arguments):
        handle = self.prepare(*arguments)
        state = self.state(handle, self.post(handle))
        self.agent.release_xfer_handle(handle)
        return state


def equal(found, expected):
    if found != expected:
        raise AssertionError("%.200r instead of %.200r" % (found, expected))


def the_wheels_own_backends_stay(world):
    found = world.agent.get_plugin_list()
    for name in ("PIER", "UCX", "POSIX"):
        equal(name in found, True)


def bytes_are_written_and_read(world):
    for length in (1, 4096, 65537, 5 * MIB + 3):
        content = os.urandom(length)
        world.server.ask("fill", 0xee)
        world.memory.bytes[4096:4096 + length] = content
        equal(world.move("WRITE", [(4096, 8192, length)]), "DONE")
        equal(world.server.ask("read", 8191, length + 2), b"\xee" + content + b"\xee")
        world.memory.bytes[:] = b"\xdd" * SIZE
        equal(world.move("READ", [(4096, 8192, length)]), "DONE")
        equal(world.memory.bytes[4095:4097 + length], b"\xdd" + content + b"\xdd")


def notifications_follow_the_bytes(world):
    handle = world.prepare("WRITE", [(0, 0, 2 * MIB)], b"there")
    for turn in range(20):
        world.memory.bytes[:2 * MIB] = bytes([turn]) * (2 * MIB)
        state = world.post(handle)
        equal(world.server.ask("notice"), b"there")
        equal(world.server.ask("read", 0, 2 * MIB), bytes([turn]) * (2 * MIB))
        equal(world.state(handle, state), "DONE")
    world.agent.release_xfer_handle(handle)


def both_agents_notify(world):
    world.server.ask("meet", world.agent.get_agent_metadata())
    for text in (b"", b"x", b"y" * 100000):
        world.agent.send_notif("server", text)
        equal(world.server.ask("notice"), text)
        world.server.ask("say", text)
        equal(until("a notification", world.agent.get_new_notifs), {"server": [text]})


def lists_of_10000_descriptors_are_moved(world):
    count, block = 10000, 2048
    agent, memory = world.agent, world.memory
    content = os.urandom(2 * count * block)
    memory.bytes[:len(content)] = content
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", agent.get_xfer_descs(
        [(memory.addr + 2 * i * block, block, 0) for i in range(count)], "DRAM"))
    remote = agent.prep_xfer_dlist(world.peer, agent.get_xfer_descs(
        [(world.server.addr + i * block, block, 0) for i in range(count)], "DRAM"))
    order = list(range(count))
    handle = agent.make_prepped_xfer("WRITE", local, order, remote, order[::-1], b"all")
    equal(world.state(handle, world.post(handle)), "DONE")
    equal(world.server.ask("notice"), b"all")
    expected = b"".join(content[2 * i * block:2 * i * block + block] for i in order[::-1])
    equal(world.server.ask("read", 0, count * block), expected)
    agent.release_xfer_handle(handle)


def running_requests_are_released(world):
    for _ in range(5):
        handle = world.prepare("WRITE", [(0, 0, SIZE)])
        world.post(handle)
        world.agent.release_xfer_handle(handle)
    bytes_are_written_and_read(world)


def a_killed_peer_is_reported(world):
    handle = world.prepare("WRITE", [(0, 0, SIZE)])
    equal(world.state(handle, world.post(handle)), "DONE")
    state = world.post(handle)
    world.server.process.send_signal(signal.SIGKILL)
    world.server.process.wait()
    world.state(handle, state)
    equal(until("an error", lambda: world.state(handle, world.post(handle)))[:3], "ERR")
    world.agent.release_xfer_handle(handle)
    # Another server has another address, which NIXL takes only for a new agent.
    try:
        world.agent.remove_remote_agent("server")
    except Exception:  # some versions have removed it with the error
        pass
    world.start_server()
    bytes_are_written_and_read(world)


def main():
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
        return
    backend, kind, *names = sys.argv[1:]
    world = World(backend, kind)
    failed = False
    for name in names:
        try:
            globals()[name](world)
            print("ok - %s %s" % (kind, name), flush=True)
        except Exception:
            failed = True
            print("not ok - %s %s\n# %s" % (kind, name, traceback.format_exc().replace(
                "\n", "\n# ")), flush=True)
            break
    world.server.end()
    # Leave nothing to the interpreter's end, which frees in any order.
    sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()

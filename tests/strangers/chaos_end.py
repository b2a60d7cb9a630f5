# SPDX-License-Identifier: BSD-3-Clause
"""One end of chaos.py: an agent of NIXL, or an engine of Mooncake, that obeys standard input.

usage: chaos_end.py NAME BACKEND SIZE

A command is a line of JSON: {"do": METHOD, ARGUMENT: ...}. The answer is one, too. PYTHONPATH has the
wheel.
"""

import base64
import ctypes
import hashlib
import json
import mmap
import os
import random
import select
import sys
import time

SMALL = 65536


class Nixl:
    def __init__(self, name, backend, size):
        from nixl_cu12._api import nixl_agent, nixl_agent_config
        self.make = lambda name: nixl_agent(name, nixl_agent_config(backends=[backend]))
        self.agent = self.make(name)
        self.size = size
        self.agent.register_memory([(ADDRESS, size, 0, "")], "DRAM")
        self.visitors = {}

    def describe(self):
        return {"metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(), "address": ADDRESS}

    def add(self, metadata, **_):
        self.agent.add_remote_agent(base64.b64decode(metadata))

    def remove(self, name):
        self.agent.remove_remote_agent(name)

    def write(self, peer, length, meanwhile=None):
        agent = self.agent
        local, remote = (agent.get_xfer_descs([(address, length, 0)], "DRAM")
                         for address in (ADDRESS, peer["address"]))
        handle = agent.initialize_xfer("WRITE", local, remote, peer["name"], b"")
        try:
            state = agent.transfer(handle)
            if meanwhile:
                getattr(self, meanwhile.pop("do"))(**meanwhile)
            while state == "PROC":
                time.sleep(0.0005)
                state = agent.check_xfer_state(handle)
        finally:
            agent.release_xfer_handle(handle)
        return state

    # An agent that comes and goes, in the process of this one.

    def come(self, name):
        agent = self.make(name)
        agent.register_memory([(ADDRESS, SMALL, 0, "")], "DRAM")
        self.visitors[name] = agent
        return {"metadata": base64.b64encode(agent.get_agent_metadata()).decode(), "address": ADDRESS}

    def go(self, name):
        del self.visitors[name]


class Mooncake:
    def __init__(self, name, backend, size):
        from mooncake.engine import TransferEngine
        self.size, self.engine = size, TransferEngine()
        host = os.environ.get("CHAOS_ADDRESS", "127.0.0.1")
        if self.engine.initialize(host, "P2PHANDSHAKE", "tcp", "") or self.engine.register_memory(ADDRESS, size):
            raise RuntimeError("the engine did not start")
        self.name = "%s:%d" % (host, self.engine.get_rpc_port())

    def describe(self):
        return {"metadata": "", "name": self.name, "address": ADDRESS}

    def add(self, **_):
        pass

    def remove(self, name):
        pass

    def write(self, peer, length):
        error = self.engine.transfer_sync_write(peer["name"], ADDRESS, peer["address"], length)
        return "ERR %d" % error if error else "DONE"


class Commands:
    def __init__(self, end):
        self.end = end
        self.waiting = b""

    def read_line(self, block=True):
        while b"\n" not in self.waiting:
            if not block and not select.select([0], [], [], 0)[0]:
                return None
            part = os.read(0, 65536)
            if not part:
                os._exit(0)
            self.waiting += part
        line, _, self.waiting = self.waiting.partition(b"\n")
        return line

    def obey(self):
        line = self.read_line()
        while line == b"stop":  # of a flow that had ended by itself
            line = self.read_line()
        command = json.loads(line)
        name = command.pop("do")
        return getattr(self if hasattr(self, name) else self.end, name)(**command)

    def fill(self, seed, length):
        MEMORY[:length] = random.Random(seed).randbytes(length)

    def digest(self, length):
        return hashlib.sha256(MEMORY[:length]).hexdigest()

    def write(self, peer, length, **more):
        try:
            return self.end.write(peer, length, **more)
        except Exception as problem:  # NIXL's classes differ between versions
            return "ERR %s" % (str(problem) or type(problem).__name__)

    def flow(self, peer, length):
        """Writes until it is told to stop, or an error."""
        count = 0
        while not self.read_line(block=False):
            say({"posted": count})
            state = self.write(peer, length)
            if state != "DONE":
                return {"state": state, "count": count}
            count += 1
        return {"state": "DONE", "count": count}


def say(value):
    OUT.write(json.dumps(value) + "\n")
    OUT.flush()


OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # NIXL and Mooncake print to standard output, too
SIZE = int(sys.argv[3])
MEMORY = mmap.mmap(-1, SIZE)
ADDRESS = ctypes.addressof(ctypes.c_char.from_buffer(MEMORY))
COMMANDS = Commands((Mooncake if sys.argv[2] == "Mooncake" else Nixl)(sys.argv[1], sys.argv[2], SIZE))
say(COMMANDS.end.describe())
while True:
    try:
        answer = {"is": COMMANDS.obey()}
    except Exception as trouble:  # of NIXL
        answer = {"error": "%s: %s" % (type(trouble).__name__, trouble)}
    say(answer)

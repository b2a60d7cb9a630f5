# SPDX-License-Identifier: BSD-3-Clause
"""One end of Mooncake's transfers: prints a line for each step.

usage: mooncake_end.py DEVICE                          the target: until its input ends
       mooncake_end.py DEVICE TARGET ADDRESS SIZE...   writes and reads the target's memory
"""

import ctypes
import mmap
import random
import sys

from mooncake.engine import TransferEngine

ROOM = 1 << 24
GUARD = 64


def must(result, step):
    if result:
        sys.exit("%s: %s" % (step, result))


def open_end(device):
    """Engine, memory and its address."""
    engine = TransferEngine()
    must(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device), "initialize")
    memory = mmap.mmap(-1, ROOM)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    must(engine.register_memory(address, ROOM), "register_memory")
    return engine, memory, address


def transfer(engine, memory, address, target, remote, size):
    """Bytes go there and come back, to another place; the bytes around it stay."""
    sent = random.randbytes(size)
    memory[:size] = sent
    must(engine.transfer_sync_write(target, address, remote, size), "write")
    back = size + GUARD
    memory[back - GUARD:back + size + GUARD] = bytes(size + 2 * GUARD)
    must(engine.transfer_sync_read(target, address + back, remote, size), "read")
    if memory[back - GUARD:back + size + GUARD] != bytes(GUARD) + sent + bytes(GUARD):
        sys.exit("%d bytes: other bytes came back" % size)
    print("%d bytes are right" % size, flush=True)


def main():
    engine, memory, address = open_end(sys.argv[1])
    if not sys.argv[2:]:
        print("target 127.0.0.1:%d %d" % (engine.get_rpc_port(), address), flush=True)
        sys.stdin.read()
        return
    for size in sys.argv[4:]:
        transfer(engine, memory, address, sys.argv[2], int(sys.argv[3]), int(size))


main()

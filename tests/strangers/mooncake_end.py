# SPDX-License-Identifier: BSD-3-Clause
"""One end of Mooncake's transfers: prints a line for each step.

usage: mooncake_end.py MEMORY DEVICE                          the target: until its input ends
       mooncake_end.py MEMORY DEVICE TARGET ADDRESS SIZE...   writes and reads the target's memory

MEMORY is host, or cuda: of the driver, which the engine is not told.
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


class HostMemory:
    def __init__(self):
        self.bytes = mmap.mmap(-1, ROOM)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def write(self, offset, data):
        self.bytes[offset:offset + len(data)] = data

    def read(self, offset, size):
        return self.bytes[offset:offset + size]


class CudaMemory:
    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        must(self.driver.cuInit(0), "cuInit")
        must(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
        must(self.driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        must(self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(ROOM)), "cuMemAlloc")
        self.address = address.value

    def write(self, offset, data):
        must(self.driver.cuMemcpyHtoD_v2(ctypes.c_uint64(self.address + offset), data,
                                         ctypes.c_size_t(len(data))), "cuMemcpyHtoD")

    def read(self, offset, size):
        data = ctypes.create_string_buffer(size)
        must(self.driver.cuMemcpyDtoH_v2(data, ctypes.c_uint64(self.address + offset),
                                         ctypes.c_size_t(size)), "cuMemcpyDtoH")
        return data.raw


def open_end(kind, device):
    """Engine and memory."""
    engine = TransferEngine()
    must(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device), "initialize")
    memory = CudaMemory() if kind == "cuda" else HostMemory()
    must(engine.register_memory(memory.address, ROOM), "register_memory")
    return engine, memory


def transfer(engine, memory, target, remote, size):
    """Bytes go there and come back, to another place; the bytes around it stay."""
    sent = random.randbytes(size)
    memory.write(0, sent)
    must(engine.transfer_sync_write(target, memory.address, remote, size), "write")
    back = size + GUARD
    memory.write(back - GUARD, bytes(size + 2 * GUARD))
    must(engine.transfer_sync_read(target, memory.address + back, remote, size), "read")
    if memory.read(back - GUARD, size + 2 * GUARD) != bytes(GUARD) + sent + bytes(GUARD):
        sys.exit("%d bytes: other bytes came back" % size)
    print("%d bytes are right" % size, flush=True)


def main():
    kind, device, *rest = sys.argv[1:]
    engine, memory = open_end(kind, device)
    if not rest:
        print("target 127.0.0.1:%d %d" % (engine.get_rpc_port(), memory.address), flush=True)
        sys.stdin.read()
        return
    target, remote, *sizes = rest
    for size in sizes:
        transfer(engine, memory, target, int(remote), int(size))


main()

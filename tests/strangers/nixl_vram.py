# SPDX-License-Identifier: BSD-3-Clause
"""Two agents of NIXL in a process, whose UCX moves memory of a GPU between them."""

import ctypes
import os
import random
import sys
import time
import traceback

from nixl_cu12._api import nixl_agent, nixl_agent_config

# Whole pages of the GPU: UCX registers no less.
SIZE = 4 << 20
SECONDS = 40

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(driver, name)(*arguments)
    if result:
        raise RuntimeError("%s: %d" % (name, result))


def open_gpu():
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)


def make_agent(name):
    """The agent, and its memory, registered."""
    address = ctypes.c_uint64()
    # Memory that is older than its UCX counted as the host's.
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE))
    agent.register_memory([(address.value, SIZE, 0, "")], "VRAM")
    print("registered", name, flush=True)
    return agent, address


def move(client, mine, server, theirs):
    peer = client.add_remote_agent(server.get_agent_metadata())
    descriptors = [client.get_xfer_descs([(address.value, SIZE, 0)], "VRAM") for address in (mine, theirs)]
    request = client.initialize_xfer("WRITE", *descriptors, peer, b"")
    until = time.monotonic() + SECONDS
    state = client.transfer(request)
    while state == "PROC" and time.monotonic() < until:
        state = client.check_xfer_state(request)
        server.get_new_notifs()
    if state != "DONE":
        raise RuntimeError("the transfer: " + state)


def main():
    open_gpu()
    (client, mine), (server, theirs) = make_agent("client"), make_agent("server")
    sent, received = random.randbytes(SIZE), ctypes.create_string_buffer(SIZE)
    call("cuMemcpyHtoD_v2", mine, sent, ctypes.c_size_t(SIZE))
    move(client, mine, server, theirs)
    call("cuMemcpyDtoH_v2", received, theirs, ctypes.c_size_t(SIZE))
    if received.raw != sent:
        raise RuntimeError("other bytes arrived")
    print("the bytes are right", flush=True)


try:
    main()
    status = 0
except Exception:  # a class of NIXL's
    traceback.print_exc()
    status = 1
sys.stdout.flush()
sys.stderr.flush()
# Not through the destructors of the wheel's libnl, which crash beside those of the system's.
os._exit(status)

# SPDX-License-Identifier: BSD-3-Clause
"""Figures of a backend of NIXL: writes between two processes of this host.

    perf.py BACKEND MEMORY [layers]

Prints the start of an agent in s, the latency of 4 KiB in s, and the bandwidth of
PIER_TEST_NIXL_SIZE bytes in bytes/s; with "layers", the s in which a KV cache is pushed
layer by layer. BACKEND is one of NIXL, or "mooncake", which is Mooncake's engine over TCP
without NIXL. PYTHONPATH must have their wheels.
"""
import os
import pickle
import statistics
import subprocess
import sys
import time

KIB = 1 << 10
SMALL = 4 * KIB
SIZE = int(os.environ["PIER_TEST_NIXL_SIZE"])
# Enough for a clock, few enough for a slow backend.
WARM, SMALL_COUNT, BIG_COUNT = 200, 2000, 7
BLOCK, ROUNDS = 16 * KIB, 5


def measure(small, big):
    """Seconds of one small write, the median, and bytes per second of big ones."""
    for _ in range(WARM):
        small()
    times = []
    for _ in range(SMALL_COUNT):
        start = time.perf_counter()
        small()
        times.append(time.perf_counter() - start)
    big()
    start = time.perf_counter()
    for _ in range(BIG_COUNT):
        big()
    return statistics.median(times), BIG_COUNT * SIZE / (time.perf_counter() - start)


def perf_nixl(backend, kind):
    import agents  # needs NIXL

    start = time.perf_counter()
    agents.make_agent("first", backend)
    started = time.perf_counter() - start
    world = agents.World(backend, kind)

    def write(length):
        handle = world.prepare("WRITE", [(0, 0, length)])
        transfer, check = world.agent.transfer, world.agent.check_xfer_state

        def once():
            state = transfer(handle)
            while state == "PROC":
                state = check(handle)
            if state != "DONE":
                sys.exit("a write ended with " + state)
        return once

    world.memory.bytes[:] = b"\1" * SIZE
    latency, bandwidth = measure(write(SMALL), write(SIZE))
    agents.equal(world.server.ask("read", SIZE - 4, 4), b"\1" * 4)
    return started, latency, bandwidth


def perf_layers(backend, kind):
    """Seconds from the first post until the receiver has the one notification: 80 layers
    with a region each for keys and values, and a transfer for each layer."""
    import agents  # needs NIXL

    world = agents.World(backend, kind)
    agent, region = world.agent, SIZE // agents.PARTS

    def place(layer, half, block):
        return (2 * layer + half) * region + block * BLOCK

    # Blocks of a cache are scattered, and others at the receiver.
    count = region // BLOCK
    handles = [world.prepare("WRITE", [(place(layer, half, block),
                                        place(layer, half, (7 * block + 3) % count), BLOCK)
                                       for half in range(2) for block in range(count)])
               for layer in range(agents.PARTS // 2)]
    times = []
    for turn in range(ROUNDS + 1):
        world.memory.bytes[:] = bytes([turn + 1]) * SIZE
        world.server.tell("notice")
        start = time.perf_counter()
        states = [agent.transfer(handle) for handle in handles]
        for handle, state in zip(handles, states):
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                sys.exit("a layer ended with " + state)
        agent.send_notif(world.peer, b"all layers")
        agents.equal(world.server.answer(), b"all layers")
        times.append(time.perf_counter() - start)
        agents.equal(world.server.ask("read", 0, SIZE), bytes([turn + 1]) * SIZE)
    return (statistics.median(times[1:]),)


def make_mooncake():
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        sys.exit("mooncake did not start")
    addr = engine.allocate_managed_buffer(SIZE)
    if not addr:
        sys.exit("mooncake has no memory")
    return engine, addr


def serve_mooncake():
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    engine, addr = make_mooncake()
    pickle.dump(("127.0.0.1:%d" % engine.get_rpc_port(), addr), out)
    out.flush()
    sys.stdin.read()


def perf_mooncake():
    start = time.perf_counter()
    engine, addr = make_mooncake()
    started = time.perf_counter() - start
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    peer, target = pickle.load(server.stdout)

    def write(length):
        def once():
            if engine.transfer_sync_write(peer, addr, target, length):
                sys.exit("a write of mooncake failed")
        return once

    figures = (started, *measure(write(SMALL), write(SIZE)))
    server.kill()
    return figures


def main():
    if sys.argv[1] == "--serve":
        serve_mooncake()
        return
    out = os.dup(1)
    os.dup2(2, 1)  # NIXL and Mooncake print to standard output
    if sys.argv[1] == "mooncake":
        figures = perf_mooncake()
    elif sys.argv[3:] == ["layers"]:
        figures = perf_layers(*sys.argv[1:3])
    else:
        figures = perf_nixl(*sys.argv[1:])
    os.write(out, (" ".join(map(repr, figures)) + "\n").encode())
    # Without the interpreter's end, whose order the libraries do not expect.
    os._exit(0)


if __name__ == "__main__":
    main()

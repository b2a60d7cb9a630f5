# SPDX-License-Identifier: BSD-3-Clause
"""pier's end and the stranger together, and what their memory must hold."""

import random

from peer import Peer, Refused
from stranger import Failed, Stranger

SIZE = 220000
# Of the region in the memory of each end: not on a page, and not the same.
PIER_REGION = {"region_offset": 4096 + 1235, "region_length": 211111}
STRANGER_REGION = {"offset": 777, "length": 213331}
# How pier must have registered the kinds of memory.
PATHS = {"host": "host", "memfd": "host", "udmabuf": "dma-buf", "dma_heap": "dma-buf"}


def expect(what, value, wanted):
    if value != wanted:
        raise AssertionError("%s is %r, not %r" % (what, value, wanted))


def fails(action, *arguments, **keywords):
    """The exception, which must come."""
    try:
        result = action(*arguments, **keywords)
    except (Refused, Failed) as error:
        return error
    raise AssertionError("it did not fail: %r" % (result,))


def expect_same(who, memory, image):
    if memory == image:
        return
    wrong = [i for i in range(len(image)) if memory[i] != image[i]]
    raise AssertionError("%s: %d bytes are not what they must be, the first and the last "
                         "at %d and %d" % (who, len(wrong), wrong[0], wrong[-1]))


class Side:
    """An end, with what its memory must hold."""

    def __init__(self, end, offset):
        self.end = end
        self.offset = offset  # of the region
        self.image = bytearray(random.randbytes(SIZE))
        end.put(self.image)

    def check(self, who):
        expect_same(who, self.end.get(), self.image)


class Pair:
    """pier's end and the stranger, connected unless told otherwise."""

    def __init__(self, options, memory, connect=True, told=None, **attributes):
        self.peer = Peer(options.program, options.peer_prefix, memory=memory, length=SIZE,
                         device=options.peer_device, gid_index=options.peer_gid_index,
                         **PIER_REGION, **attributes)
        try:
            expect("the path", self.peer.numbers["path"], PATHS[memory.split(":")[0]])
            self.stranger = Stranger(options.device, options.gid_index, SIZE,
                                     **STRANGER_REGION)
            vars(self.stranger).update(told or {})
            self.pier_side = Side(self.peer, PIER_REGION["region_offset"])
            self.stranger_side = Side(self.stranger, STRANGER_REGION["offset"])
            if connect:
                self.connect()
        except BaseException:
            self.peer.kill()
            raise

    def connect(self):
        self.peer.ask("connect", **self.stranger.numbers())
        self.peer.ask("remote", **self.stranger.region())
        self.stranger.connect(self.peer.numbers)

    def check(self):
        """All bytes of both ends."""
        self.pier_side.check("pier's memory")
        self.stranger_side.check("the stranger's memory")

    def moved(self, source, source_offset, target, target_offset, length):
        """What a transfer is to have changed, and nothing else."""
        target.image[target_offset:target_offset + length] = \
            source.image[source_offset:source_offset + length]
        self.check()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        try:
            if kind:
                self.peer.kill()
            else:
                self.peer.end()
        finally:
            self.stranger.close()

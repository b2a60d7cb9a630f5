# SPDX-License-Identifier: BSD-3-Clause
"""The shards of a server in registered memory."""

import contextlib
import errno
import mmap

from .. import Access, Buffer, NotSupported, ProtectionDomain, Region
from .._peers import invalid
from .formats import Source

# The page cache: files are mapped, not copied.
FILE = "file"


class LoadedShard:
    """A shard in memory, registered for reads by peers. Nobody can write it over the network."""

    def __init__(self, pd: ProtectionDomain, source: Source, memory: str) -> None:
        """Load and register a shard.

        memory  a backend for Buffer whose memory the CPU can access, or "file"

        Raises Invalid, NotSupported, the errors of Buffer and ProtectionDomain.register(), OSError.
        """
        with contextlib.ExitStack() as undo:
            if memory == FILE:
                mapping = undo.enter_context(_map(source))
                self.content = undo.enter_context(memoryview(mapping))
                self.region: Region = undo.enter_context(pd.register(mapping, access=Access.REMOTE_READ))
            else:
                buffer = undo.enter_context(Buffer(memory, source.length))
                self.content = undo.enter_context(_bytes_of(buffer, memory))
                source.load(self.content)
                self.region = undo.enter_context(pd.register(buffer, access=Access.REMOTE_READ))
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Deregister the shard and free its memory. Raises Busy while a view of the content is in use."""
        self._undo.close()


def _bytes_of(buffer: Buffer, memory: str) -> memoryview:
    try:
        return memoryview(buffer).cast("B")
    except (BufferError, NotSupported):
        raise NotSupported(errno.EOPNOTSUPP, "memory %s: the CPU cannot read it: serve from memfd or udmabuf"
                           % memory) from None


def _map(source: Source) -> mmap.mmap:
    if source.file is None:
        raise invalid("shard %s is compressed, empty or packed from several files, so there is no file to map: serve "
                      "from memfd" % source.name)
    with source.file.open() as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(mapping) != source.length:
        mapping.close()
        raise invalid("%s: it has %d bytes instead of %d: copy it again, and do not change it while it is served"
                      % (source.file.path, len(mapping), source.length))
    return mapping

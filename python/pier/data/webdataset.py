# SPDX-License-Identifier: BSD-3-Clause
"""The scheme ``pier:`` for webdataset: archives of a server are read one-sidedly, as streams.

    import pier.data.webdataset
    urls = pier.data.webdataset.shards("pier://TOKEN@node7:7700")
    dataset = webdataset.WebDataset(urls, shardshuffle=100).decode("rgb")

Importing this module adds the scheme to ``webdataset.gopen.gopen_schemes``. A stream reads whole archives in order;
Loader reads single samples in any order, and is faster.
"""

import errno
import io
import urllib.parse
from collections import deque
from typing import Any

from webdataset.gopen import gopen_schemes

from .. import Access, Buffer, Invalid, Work
from .connection import ServerConnection, connect
from .index import Index

# Of each of the two reads that are under way, in bytes.
_CHUNK = 4 << 20
# By server, so that each is sent only once to a process.
_indexes: dict[str, Index] = {}


def shards(url: str) -> list[str]:
    """Return the URLs of the shards of a server: "pier://TOKEN@HOST:PORT/SHARD". Raises the errors of connect()."""
    with _connect(url.rstrip("/")) as connection:
        return ["%s/%s" % (url.rstrip("/"), urllib.parse.quote(shard.name)) for shard in connection.index.shards]


def open_shard(url: str, mode: str = "rb", bufsize: int = -1, **ignored: Any) -> io.BufferedReader:
    """Open a shard: the handler of the scheme.

    Raises Invalid if the server has no such shard, ValueError if the mode is not "rb", the errors of connect().
    """
    if mode != "rb":
        raise ValueError("%r: a shard can only be read: use mode \"rb\"" % mode)
    server, _, name = url.partition("://")[2].partition("/")
    connection = _connect("pier://" + server)
    try:
        names = [shard.name for shard in connection.index.shards]
        if urllib.parse.unquote(name) not in names:
            raise Invalid(errno.EINVAL, "%s has no shard %r: shards() lists them"
                          % (connection.url, urllib.parse.unquote(name)))
        stream = _ShardStream(connection, names.index(urllib.parse.unquote(name)))
    except BaseException:
        connection.close()
        raise
    return io.BufferedReader(stream, max(bufsize, 1 << 16))


class _ShardStream(io.RawIOBase):
    """Reads a shard from its beginning, two chunks ahead. Owns the connection."""

    def __init__(self, connection: ServerConnection, shard: int) -> None:
        super().__init__()
        self._connection = connection
        self._remote = connection.remotes[shard]
        self._chunk = min(_CHUNK, len(self._remote))
        self._buffer = Buffer("memfd", 2 * self._chunk)
        self._region = connection.pd.register(self._buffer, access=Access.LOCAL_WRITE)
        self._posted = 0
        self._position = 0
        self._reads: deque[Work] = deque()
        self._view = memoryview(self._buffer)
        self._post()
        self._post()

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Raises TimedOut, ConnectionLost."""
        left = len(self._remote) - self._position
        if not left:
            return 0
        inside = self._position % self._chunk
        if not inside:
            self._reads.popleft().wait()
        count = min(len(target), left, self._chunk - inside)
        start = self._position % (2 * self._chunk)
        target[:count] = self._view[start:start + count]
        self._position += count
        if self._position % self._chunk == 0:
            self._post()
        return count

    def _post(self) -> None:
        """Read the next chunk into the half that was used up."""
        length = min(self._chunk, len(self._remote) - self._posted)
        if length:
            start = self._posted % (2 * self._chunk)
            self._reads.append(self._connection.channel.post_read(
                self._region[start:start + length], self._remote[self._posted:self._posted + length]))
            self._posted += length

    def close(self) -> None:
        if not self.closed:
            # The channel first: its reads then do not touch the memory any more.
            self._connection.channel.close()
            self._reads.clear()
            self._view.release()
            self._region.close()
            self._buffer.close()
            self._connection.close()
        super().close()


def _connect(url: str) -> ServerConnection:
    connection = connect(url, index=_indexes.get(url))
    _indexes[url] = connection.index
    return connection


gopen_schemes["pier"] = open_shard

# SPDX-License-Identifier: BSD-3-Clause
"""The servers of a loader, which serve the same data set: which of them live, and when a dead one is tried again."""

import logging
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence

from .. import Error, Ring, RingSources
from . import wire
from .connection import ServerConnection
from .index import Index

Urls = str | Sequence[str] | Callable[[], Sequence[str]]
_log = logging.getLogger("pier.data")

# In seconds. The delay doubles with each failure.
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 10.0


class Replica:
    """One server. It lives while it has a connection."""

    __slots__ = ("connection", "error", "failures", "name", "result", "retry_at", "sources", "thread", "turn", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = wire.without_token(url)
        """For messages."""
        self.connection: ServerConnection | None = None
        self.sources: RingSources | None = None
        """Its shards, for the ring."""
        self.error: BaseException | None = None
        """Why it has no connection."""
        self.failures = 0
        """Since the last batch that arrived from it."""
        self.retry_at = 0.0
        self.turn = 0
        """When it was last chosen."""
        self.thread: threading.Thread | None = None
        self.result: ServerConnection | BaseException | None = None
        """Of the thread, which connects."""


class Replicas:
    """All servers of a loader. One thread at a time uses them; each connection is made in a thread of its own.

    ``dial(url, index)`` connects, and has a deadline; its index is None, or that of the data set. If the URLs are a
    function, it is called again before a lost server is tried again: one that was started again has another URL.
    """

    def __init__(self, urls: Urls, dial: Callable[[str, Index | None], ServerConnection]) -> None:
        self._find = urls if callable(urls) else None
        known = urls() if callable(urls) else urls
        self._listed: Sequence[str] = [known] if isinstance(known, str) else known
        self._replicas = [Replica(url) for url in self._listed]
        if not self._replicas:
            raise ValueError("urls is empty: give the URL of at least one server")
        self._dial = dial
        # The garbage collector may call close() in a thread that has the lock.
        self._lock = threading.RLock()
        self._closed = False
        self._ring: Ring | None = None
        self._wake: Callable[[], None] | None = None
        self._index: Index | None = None
        self.checksums: array[int] | None = None
        self.failovers = 0

    def open(self) -> Index:
        """Connect to all servers, and return the index of the data set.

        Raises the error of the first server if none answers, and ValueError if two of them serve different data.
        """
        for replica in self._replicas:
            thread = self._start_dial(replica)
            # With the index of one server, the others need not send theirs.
            if self._index is None:
                thread.join()
                if isinstance(replica.result, ServerConnection):
                    self._index, self.checksums = replica.result.index, replica.result.checksums
        for replica in self._replicas:
            if replica.thread:
                replica.thread.join()
            if isinstance(replica.result, ServerConnection):
                self._check_data(replica.result)
        if self._index is None:
            assert isinstance(self._replicas[0].result, BaseException)
            raise self._replicas[0].result
        return self._index

    def attach(self, ring: Ring, wake: Callable[[], None]) -> None:
        """Let the ring read from the servers. Other threads call `wake` when there is a new connection."""
        self._ring, self._wake = ring, wake
        self.refresh()

    def refresh(self) -> list[tuple[Replica, Error]]:
        """Take new connections, and begin those that are due. Does not wait.

        Returns the servers that broke, and why: call :meth:`drop` for each.
        """
        broken = []
        known = {replica.url for replica in self._replicas}
        self._replicas += [Replica(url) for url in self._listed if url not in known]
        for replica in self._replicas[:]:
            if replica.connection:
                try:
                    replica.connection.check()
                except Error as error:
                    broken.append((replica, error))
            elif replica.thread:
                if not replica.thread.is_alive():
                    self._adopt(replica)
            elif time.monotonic() >= replica.retry_at:
                self._start_dial(replica)
        return broken

    def live(self) -> list[Replica]:
        """Return the servers that can be read from."""
        return [replica for replica in self._replicas if replica.connection]

    def drop(self, replica: Replica, error: Error) -> None:
        """Close a connection; the server is tried again later. No read of it arrives after this call."""
        _log.warning("%s: %s", replica.name, error)
        self.failovers += 1
        self._disconnect(replica)
        self._delay_retry(replica, error)

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        return self._index.key(sample) if self._index else ""

    def describe(self) -> str:
        """Return why no server lives."""
        return "; ".join("%s: %s" % (replica.name, replica.error or "not connected yet")
                         for replica in self._replicas)

    def close(self) -> None:
        """Close all connections. Those that are being made are closed by their threads."""
        with self._lock:
            self._closed = True
        for replica in self._replicas:
            if isinstance(replica.result, ServerConnection):
                replica.result.close()
            if replica.connection:
                self._disconnect(replica)

    def _start_dial(self, replica: Replica) -> threading.Thread:
        replica.thread = threading.Thread(target=self._dial_in_thread, args=(replica,), daemon=True,
                                          name="pier connect")
        replica.thread.start()
        return replica.thread

    def _dial_in_thread(self, replica: Replica) -> None:
        result: ServerConnection | BaseException
        try:
            # Nothing answers at an address that is not used any more, and to wait for it would take long.
            if self._find and self._ring and replica.url not in self._list_again(self._find):
                raise LookupError("it is not there any more")
            result = self._dial(replica.url, self._index)
        except BaseException as error:
            result = error
        with self._lock:
            if not self._closed:
                replica.result = result
            elif isinstance(result, ServerConnection):
                result.close()
        if self._wake:
            self._wake()

    def _list_again(self, find: Callable[[], Sequence[str]]) -> Sequence[str]:
        try:
            self._listed = list(find()) or self._listed
        except Exception as error:
            _log.warning("the URLs of the servers: %s", error)
        return self._listed

    def _adopt(self, replica: Replica) -> None:
        result, replica.thread, replica.result = replica.result, None, None
        try:
            if not isinstance(result, ServerConnection):
                raise result or RuntimeError("no result")
            self._check_data(result)
            assert self._ring
            replica.sources = self._ring.sources([(result.channel, remote) for remote in result.remotes])
            replica.connection, replica.error = result, None
        except Exception as error:
            if isinstance(result, ServerConnection):
                result.close()
            self._delay_retry(replica, error)
            if replica.url not in self._listed:
                self._replicas.remove(replica)

    def _disconnect(self, replica: Replica) -> None:
        assert self._ring and replica.sources and replica.connection
        self._ring.cancel(replica.sources)
        replica.connection.close()
        replica.connection = replica.sources = None

    def _delay_retry(self, replica: Replica, error: Exception) -> None:
        replica.error = error
        # Many loaders lose a server at once, and must not all come back at once.
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** replica.failures) * random.uniform(0.5, 1.0)
        replica.retry_at = time.monotonic() + delay
        replica.failures += 1

    def _check_data(self, connection: ServerConnection) -> None:
        if self._index and connection.index.digest != self._index.digest:
            raise ValueError("%s serves other data than the other servers: its index has the digest %s, not %s" % (
                connection.url, connection.index.digest.hex()[:16], self._index.digest.hex()[:16]))

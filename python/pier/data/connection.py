# SPDX-License-Identifier: BSD-3-Clause
"""The client's end of a connection to a server of a data set."""

import contextlib
import errno
import hmac
import os
import socket
import struct
import threading
import time
from array import array
from typing import Any

from .. import Access, AccessDenied, Channel, ConnectionLost, Error, ProtectionDomain, Remote, TimedOut
from .._peers import Closable, check_process, hang_up, own
from . import wire
from .index import Index, from_wire
from .wire import Message, Stream

# The largest remote vector (docs/wire.md), in bytes.
_MAX_REMOTE = 16 + 24 * 1024


class ServerConnection(Closable):
    """A connection to a server: its index, the addresses of its shards, and a channel to read them through.

    ``check()``, ``ping()``, ``fileno()`` and ``close()`` may be called by any thread. The channel belongs to one
    thread at a time, like every channel.

    When the server ends or dies, ``check()`` raises and ``fileno()`` becomes readable at once. Reads that are under
    way fail when the transport has given up.
    """

    url: str
    """Without its token."""
    pd: ProtectionDomain
    """Of the channel. Memory that is read into is registered with it."""
    index: Index
    remotes: list[Remote]
    """The address of each shard of the index. It permits reads only."""
    channel: Channel
    checksums: "array[int] | None"
    """zlib.crc32() of each sample, if they were asked for."""

    def __init__(self, url: str, pd: ProtectionDomain | str | None = None, *, device: str | None = None,
                 index: Index | None = None, checksums: bool = False, timeout: float = 10.0,
                 **attributes: Any) -> None:
        """Connect. See connect()."""
        deadline = time.monotonic() + timeout
        token, host, port = wire.parse_url(url)
        self.url = wire.without_token(url)
        self._lock, self._process = threading.Lock(), os.getpid()
        with contextlib.ExitStack() as undo:
            stream = _open(host, port, deadline)
            undo.callback(hang_up, stream.socket)
            self.pd = pd if isinstance(pd, ProtectionDomain) else undo.enter_context(ProtectionDomain(pd or device))
            self._greet(stream, token.encode(), index, checksums, deadline)
            # Nothing is for the server to read or write.
            self.channel = undo.enter_context(Channel(self.pd, **{"access": Access.LOCAL_READ, **attributes}))
            self.channel.handshake(stream.socket, timeout=max(deadline - time.monotonic(), 0.001))
            stream.socket.setblocking(False)
            self._stream = stream
            self._undo = undo.pop_all()

    def _greet(self, stream: Stream, token: bytes, index: Index | None, checksums: bool, deadline: float) -> None:
        theirs = _exactly(stream, Message.CHALLENGE, wire.NONCE_BYTES, deadline)
        ours = os.urandom(wire.NONCE_BYTES)
        stream.send(Message.HELLO, wire.HELLO.pack(
            ours, wire.proof(token, b"client", theirs, ours), index.digest if index else bytes(wire.DIGEST_BYTES),
            wire.WANT_CHECKSUMS if checksums else 0, 0), deadline)
        proof, digest = wire.WELCOME.unpack(_exactly(stream, Message.WELCOME, wire.WELCOME.size, deadline))
        if not hmac.compare_digest(proof, wire.proof(token, b"server", ours, theirs)):
            raise AccessDenied(errno.EACCES, "%s does not have the token of the URL" % stream.peer)
        if index is None or index.digest != digest:
            index = Index.from_bytes(stream.receive((Message.INDEX,), wire.MAX_INDEX, deadline)[1])
            if index.digest != digest:
                raise stream.bad("the index is not the one that it announced")
        self.index = index
        self.remotes = _receive_remotes(stream, index, deadline)
        self.checksums = _receive_checksums(stream, len(index), deadline) if checksums else None

    def fileno(self) -> int:
        """Return the descriptor of the TCP connection. It is readable when the server is gone."""
        return self._stream.socket.fileno()

    def check(self) -> None:
        """Find out without waiting whether the server is there.

        Raises ConnectionLost if it has closed the connection or died; BadMessage if it breaks the protocol.
        """
        check_process(self._process, "connection")
        if self._lock.acquire(blocking=False):
            try:
                self._stream.check()
            finally:
                self._lock.release()

    def ping(self, timeout: float = 10.0) -> None:
        """Wait until the server has answered. Reads need no answer: a NIC serves them without the server's CPU.

        Raises TimedOut, ConnectionLost, BadMessage. After TimedOut, close the connection.
        """
        check_process(self._process, "connection")
        deadline = time.monotonic() + timeout
        with self._lock:
            self._stream.send(Message.PING, b"", deadline)
            self._stream.receive((Message.PONG,), 0, deadline)

    def close(self) -> None:
        """Close the channel and the connection. The server then frees what it has for it. Again at any time.

        Does nothing in a child of fork(): the connection is its parent's.
        """
        if os.getpid() == self._process:
            self._undo.close()


def connect(url: str, pd: ProtectionDomain | str | None = None, *, device: str | None = None,
            index: Index | None = None, checksums: bool = False, timeout: float = 10.0,
            **attributes: Any) -> ServerConnection:
    """Connect to a server of a data set.

    url         "pier://TOKEN@HOST:PORT"; without a token, that of PIER_DATA_TOKEN
    pd          of the channel; None, or the name of a device: one of `device` or of that name, which the connection
                closes
    index       one from another connection. If the server has the same, it is not sent again
    checksums   ask for the checksums of the samples. The server computes them when they are first asked for, at about
                1 s per GB
    timeout     in seconds, for everything
    attributes  of the channel: see Channel. By default it grants the server no access to memory

    Raises ConnectionLost if the server cannot be reached or closes the connection; TimedOut; AccessDenied if the
    tokens differ; Busy if the server has as many clients as it takes; BadMessage if the peer does not follow the
    protocol; Invalid if the URL or an attribute is not possible; other errors of ProtectionDomain and Channel.
    """
    return ServerConnection(url, pd, device=device, index=index, checksums=checksums, timeout=timeout, **attributes)


def _open(host: str, port: int, deadline: float) -> Stream:
    name = "server %s:%d" % (host, port)
    try:
        connected = socket.create_connection((host, port), max(deadline - time.monotonic(), 0.001))
        return Stream(own(connected), name)
    except TimeoutError:
        raise TimedOut(errno.ETIMEDOUT, "%s: it did not answer in time" % name) from None
    except OSError as error:
        # Errors of getaddrinfo(3) have numbers of their own.
        number = errno.EHOSTUNREACH if isinstance(error, socket.gaierror) else error.errno or errno.EIO
        raise ConnectionLost(number, "%s: %s: is it running?" % (name, error.strerror or error)) from None


def _exactly(stream: Stream, message: Message, length: int, deadline: float) -> bytes:
    payload = stream.receive((message,), length, deadline)[1]
    if len(payload) != length:
        raise stream.bad("message of %d bytes, where %d are expected" % (len(payload), length))
    return bytes(payload)


def _receive_remotes(stream: Stream, index: Index, deadline: float) -> list[Remote]:
    limit = _MAX_REMOTE * len(index.shards)
    view = memoryview(stream.receive((Message.REMOTES,), limit, deadline)[1])
    remotes = []
    for shard in index.shards:
        # Each form has its length at byte 6.
        length = struct.unpack_from("<H", view, 6)[0] if len(view) >= 8 else 0
        try:
            remote = Remote.from_bytes(bytes(view[:length]))
        except Error as error:
            raise stream.bad("the address of shard %s: %s" % (shard.name, error.strerror)) from None
        # len() has only 63 bits.
        total = sum(length for _, length, _ in remote.parts)
        if total != shard.length:
            raise stream.bad("the address of shard %s has %d bytes instead of %d" % (shard.name, total, shard.length))
        remotes.append(remote)
        view = view[length:]
    if view:
        raise stream.bad("%d bytes behind the addresses of the shards" % len(view))
    return remotes


def _receive_checksums(stream: Stream, samples: int, deadline: float) -> "array[int]":
    return from_wire("I", _exactly(stream, Message.CHECKSUMS, 4 * samples, deadline))

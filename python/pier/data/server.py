# SPDX-License-Identifier: BSD-3-Clause
"""A server of a data set: shards in registered memory, an index, and a control connection per client."""

import contextlib
import hmac
import logging
import mmap
import os
import secrets
import socket
import threading
import time
import zlib
from array import array
from errno import EACCES, EBUSY, EINVAL, EOPNOTSUPP

from .. import (
    Access, AccessDenied, Buffer, Busy, Channel, Error, Invalid, NotSupported, ProtectionDomain, Region, _peers,
)
from .._peers import Closable, Door, check_process, invalid
from . import wire
from .formats import Source, build_index, find_sources
from .index import to_wire
from .wire import Message, Stream

_LOG = logging.getLogger(__name__)
# For a client to take the index and connect.
_CONNECT_SECONDS = 60.0
# The page cache: files are mapped, not copied.
_FILE = "file"


class _Shard:
    """A shard in memory, registered for reads by peers. Nobody can write it over the network."""

    def __init__(self, pd: ProtectionDomain, source: Source, memory: str) -> None:
        """Load and register a shard.

        memory  a backend for Buffer whose memory the CPU can access, or "file"

        Raises Invalid, NotSupported, the errors of Buffer and ProtectionDomain.register(), OSError.
        """
        with contextlib.ExitStack() as undo:
            if memory == _FILE:
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
        raise NotSupported(EOPNOTSUPP, "memory %s: the CPU cannot read it: serve from memfd or udmabuf"
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


class Server(Closable):
    """Serves data sets from memory, in threads of its own, from the constructor until ``close()``.

    Each client gets the index once and a channel, through which it can read the shards and nothing else. On a NIC,
    reads take no CPU time of the server. When a client ends or dies, what the server has for it is freed.

    Files must not be changed while they are served from "file": clients see the changes, and a file that shrinks ends
    the server with SIGBUS.

    Any thread may use a server.
    """

    def __init__(self, *paths: str | os.PathLike[str], listen: str = "127.0.0.1:0", memory: str = "memfd:readonly",
                 device: str | None = None, pd: ProtectionDomain | None = None, token: str | None = None,
                 max_clients: int = 64, allow_outside: bool = False) -> None:
        """Load the data sets and start to serve.

        paths        folders and files: WebDataset archives, MDS data sets, plain files
        listen       "HOST:PORT", on which TCP connections are accepted; port 0: any free one
        memory       "memfd:readonly", "udmabuf" or another backend whose memory the CPU can access: shards are
                     copied; or "file": files are mapped and registered as they are in the page cache
        device       a device to open; None: the default one. Ignored if `pd` is given
        pd           a protection domain to register with; it must outlive the server
        token        what clients must have to connect; None: that of PIER_DATA_TOKEN, or a random one
        max_clients  connected at once
        allow_outside
                     serve also files outside of the folders, to which links and lists of archives in them lead

        Raises Invalid if there is nothing to serve, or a file or an argument is malformed; NotSupported; errors of
        Device, Buffer and ProtectionDomain.register(); OSError.
        """
        self._token = token or os.environ.get("PIER_DATA_TOKEN", "") or secrets.token_urlsafe(16)
        self._show_token = token is not None or not os.environ.get("PIER_DATA_TOKEN")
        self._checksum_lock = threading.Lock()
        self._checksums: bytes | None = None
        self._process = os.getpid()
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(_listen(listen))
            # A child of fork() has no listener, and may ask for the URL.
            self._address = listener.getsockname()[:2]
            self._pd = pd if pd is not None else undo.enter_context(ProtectionDomain(device))
            sources = find_sources(_texts(paths), allow_outside)
            self._shards: list[_Shard] = []
            for source in sources:
                self._shards.append(_Shard(self._pd, source, memory))
                undo.callback(self._shards[-1].close)
            self.index = build_index(sources, [shard.content for shard in self._shards])
            """Of the data set that is served."""
            self._form = self.index.to_bytes()
            self._remotes = b"".join(shard.region.remote.to_bytes() for shard in self._shards)
            self._door = Door(listener, "pier.data", self._serve, max_clients)
            self._door.open()
            undo.callback(self._door.close)
            self._undo = undo.pop_all()

    @property
    def url(self) -> str:
        """The URL for clients: "pier://TOKEN@HOST:PORT". Without the token if it is that of PIER_DATA_TOKEN."""
        host, port = self._address
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        return wire.make_url(self._token if self._show_token else "", host, port)

    @property
    def clients(self) -> int:
        """The number of clients that are connected."""
        check_process(self._process, "server")
        return self._door.clients

    def compute_checksums(self) -> None:
        """Compute the checksums of all samples, so that the first client that asks for them does not wait."""
        check_process(self._process, "server")
        self._checksum_form()

    def close(self) -> None:
        """Disconnect all clients and free the memory. Reads of clients fail. Again at any time.

        Does nothing in a child of fork(): the server is its parent's.
        """
        if os.getpid() == self._process:
            self._undo.close()

    def _serve(self, connection: socket.socket, address: tuple[str, int]) -> None:
        """Serve one client until it is gone."""
        peer = "client %s:%d" % address[:2]
        try:
            with contextlib.ExitStack() as undo:
                # An error of one client must not reach the others.
                stream = Stream(connection, peer)
                try:
                    wants_checksums, digest = self._admit(stream)
                    self._connect(stream, wants_checksums, digest, undo)
                except Error as error:
                    _LOG.info("%s: refused: %s", peer, error)
                    stream.send(Message.ERROR, wire.error_payload(error), time.monotonic() + 1)
                    return
                while True:
                    stream.receive((Message.PING,), 0, None)
                    stream.send(Message.PONG, b"", time.monotonic() + _CONNECT_SECONDS)
        except (Error, OSError) as error:
            _LOG.info("%s: ended: %s", peer, error)

    def _admit(self, stream: Stream) -> tuple[bool, bytes]:
        """Wait for a hello, and count a client. Raises AccessDenied, Busy, BadMessage..."""
        deadline = time.monotonic() + _peers.PROOF_SECONDS
        ours = os.urandom(wire.NONCE_BYTES)
        stream.send(Message.CHALLENGE, ours, deadline)
        payload = stream.receive((Message.HELLO,), wire.HELLO.size, deadline)[1]
        if len(payload) != wire.HELLO.size:
            raise stream.bad("hello of %d bytes, where %d are expected" % (len(payload), wire.HELLO.size))
        theirs, proof, digest, flags, _ = wire.HELLO.unpack(payload)
        token = self._token.encode()
        if not hmac.compare_digest(proof, wire.proof(token, b"client", ours, theirs)):
            raise AccessDenied(EACCES, "the token is wrong: take the URL that the server printed")
        if not self._door.admit(stream.socket):
            raise Busy(EBUSY, "it has %d clients, as many as it takes: start it with more (--max-clients)"
                       % self.clients)
        stream.send(Message.WELCOME, wire.WELCOME.pack(wire.proof(token, b"server", theirs, ours),
                                                       self.index.digest), deadline)
        return bool(flags & wire.WANT_CHECKSUMS), digest

    def _connect(self, stream: Stream, wants_checksums: bool, digest: bytes, undo: contextlib.ExitStack) -> None:
        deadline = time.monotonic() + _CONNECT_SECONDS
        if digest != self.index.digest:
            stream.send(Message.INDEX, self._form, deadline)
        stream.send(Message.REMOTES, self._remotes, deadline)
        if wants_checksums:
            stream.send(Message.CHECKSUMS, self._checksum_form(), time.monotonic() + _CONNECT_SECONDS)
        channel = undo.enter_context(Channel(self._pd, max_send_wr=1, max_recv_wr=1, access=Access.REMOTE_READ))
        channel.handshake(stream.socket, timeout=_CONNECT_SECONDS)
        stream.socket.setblocking(False)

    def _checksum_form(self) -> bytes:
        with self._checksum_lock:
            if self._checksums is None:
                table = self.index.table
                rows = zip(table[0::3], table[1::3], table[2::3])
                contents = [shard.content for shard in self._shards]
                self._checksums = to_wire(array("I", (zlib.crc32(contents[shard][offset:offset + length])
                                                      for shard, offset, length in rows)))
            return self._checksums


def _texts(paths: tuple[str | os.PathLike[str], ...]) -> list[str]:
    try:
        return [os.fspath(path) for path in paths]
    except TypeError as error:
        raise TypeError("%s: each path is an argument of its own: Server(*paths)" % error) from None


def _listen(address: str) -> socket.socket:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise Invalid(EINVAL, "%r is no address to listen on: write HOST:PORT" % address)
    host = host.removeprefix("[").removesuffix("]")
    try:
        family = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, int(port)), family=family, backlog=128)
    except OSError as error:
        error.filename = address  # the sentence begins with it
        raise

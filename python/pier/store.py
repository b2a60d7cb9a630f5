# SPDX-License-Identifier: BSD-3-Clause
"""A store of keys and values over TCP, for a group of processes without a launcher.

    store = pier.TCPStore("0.0.0.0", 29400, serve=True, token=token)      # on one laptop
    store = pier.TCPStore("192.168.0.7", 29400, token=token)              # on the other
    group = pier.Group.from_store(store, rank, 2)

Both sides prove that they have the token (HMAC with SHA-256 of random challenges). What follows is neither
encrypted nor signed, and the blobs of soft0 have secrets: use it in a network that you trust, or through a
tunnel such as that of ssh.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable
from typing import Any

from . import _peers, _pier
from ._peers import Stream

_MAGIC = b"pier store 1\n"
_CHALLENGE = 32  # bytes
_NO_PROOF = bytes(32)  # in place of the server's proof: the client's is wrong
_HEAD = struct.Struct("<BII")  # operation or status, length of the key, length of the value
_SET, _GET, _CHECK, _DELETE = range(1, 5)
_FOUND, _ABSENT, _REFUSED = range(3)
_MOST_KEY, _MOST_VALUE = 1 << 10, 1 << 20  # bytes
_MOST_BYTES, _MOST_CLIENTS, _BACKLOG = 64 << 20, 4096, 1024  # of a server
_FRAME_SECONDS = 30.0  # for the rest of a message that has begun


def _proof(token: str, role: bytes, first: bytes, second: bytes) -> bytes:
    return _peers.proof(token.encode(), _MAGIC, role, first, second)


def _receive_frame(stream: Stream, deadline: float) -> tuple[int, bytes, bytes]:
    """Return the operation or status, the key and the value. The bytes may be hostile."""
    kind, key, value = _HEAD.unpack(stream.receive_bytes(_HEAD.size, deadline))
    if key > _MOST_KEY or value > _MOST_VALUE:
        raise stream.bad("a message has a key of %d bytes and a value of %d: the most are %d and %d"
                         % (key, value, _MOST_KEY, _MOST_VALUE))
    body = bytes(stream.receive_bytes(key + value, min(deadline, time.monotonic() + _FRAME_SECONDS)))
    return kind, body[:key], body[key:]


def _frame(kind: int, key: bytes = b"", value: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(key), len(value)) + key + value


class _Server:
    def __init__(self, address: tuple[str, int], token: str, family: int) -> None:
        self.token = token
        self.values: dict[bytes, bytes] = {}
        self.bytes = 0
        self.lock = threading.Lock()
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
        self.port: int = listener.getsockname()[1]
        self.door = _peers.Door(listener, "pier.store", self.serve, _MOST_CLIENTS)
        self.door.open()

    def serve(self, client: socket.socket, address: Any) -> None:
        stream = Stream(client, "client %s:%d" % address[:2])
        if self.authenticate(stream, time.monotonic() + _peers.PROOF_SECONDS):
            while True:
                self.answer(stream)

    def authenticate(self, stream: Stream, deadline: float) -> bool:
        ours = os.urandom(_CHALLENGE)
        stream.send_bytes(_MAGIC + ours, deadline)
        reply = bytes(stream.receive_bytes(_CHALLENGE + 32, deadline))
        theirs, proof = reply[:_CHALLENGE], reply[_CHALLENGE:]
        if not hmac.compare_digest(proof, _proof(self.token, b"client", ours, theirs)):
            stream.send_bytes(_NO_PROOF, deadline)
            return False
        if not self.door.admit(stream.socket):
            return False
        stream.send_bytes(_proof(self.token, b"server", theirs, ours), deadline)
        return True

    def answer(self, stream: Stream) -> None:
        # A client may be idle for as long as it lives.
        stream.wait(select.POLLIN, None)
        deadline = time.monotonic() + _FRAME_SECONDS
        kind, key, value = _receive_frame(stream, deadline)
        status, value = self.apply(kind, key, value)
        stream.send_bytes(_frame(status, b"", value), deadline)

    def apply(self, kind: int, key: bytes, value: bytes) -> tuple[int, bytes]:
        """Do an operation. Return a status and a value."""
        with self.lock:
            before = self.values.get(key)
            if kind == _SET:
                more = len(value) + (len(key) if before is None else -len(before))
                if self.bytes + more > _MOST_BYTES:
                    return _REFUSED, b"the store is full"
                self.values[key] = value
                self.bytes += more
            elif kind == _DELETE and before is not None:
                del self.values[key]
                self.bytes -= len(key) + len(before)
            elif kind not in (_GET, _CHECK, _DELETE):
                return _REFUSED, b"unknown operation"
        return _ABSENT if before is None else _FOUND, before if before and kind == _GET else b""


class TCPStore(_peers.Closable):
    """A store of keys and values: TCPStore(host, port, *, token=None, serve=False, timeout=30.0).

    host, port: of the server. With serve=True, the addresses to listen on ("" or "0.0.0.0": all) and a port, or
    0 for a free one (see `port`)
    token: a secret that all have; None: PIER_STORE_TOKEN of the environment; a server makes one if there is none
    serve: this process is the server, and a client of it, until close()
    timeout: in seconds, for connecting, for each call, and for get() of a key that nobody has set

    Clients try to connect until the timeout, so they may start before the server. Any thread may use a store; a
    child of fork() cannot use its parent's (Forked). It is a store for Group.from_store(). Keys are text of up to
    1 KiB, values are bytes of up to 1 MiB, 64 MiB in all.

    Raises TimedOut, ConnectionLost, AccessDenied (another token).
    """

    def __init__(self, host: str, port: int, *, token: str | None = None, serve: bool = False,
                 timeout: float = 30.0) -> None:
        self.host, self.port, self.timeout = host, port, timeout
        self.token = token or os.environ.get("PIER_STORE_TOKEN") or (secrets.token_hex(16) if serve else "")
        if not self.token:
            raise ValueError("no token: give the one of the server, or set PIER_STORE_TOKEN")
        self._lock, self._process = threading.Lock(), os.getpid()
        self._server: _Server | None = None
        self._stream: Stream | None = None
        if serve:
            self._serve()
        try:
            self._connect("127.0.0.1" if serve and host in ("", "0.0.0.0") else host)
        except BaseException:
            self.close()
            raise

    def _serve(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._server = _Server((self.host, self.port), self.token, family)
        self.port = self._server.port

    def _connect(self, host: str) -> None:
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                self._stream = self._dial(host, deadline)
                return
            # The server does not listen yet, or strangers took its time.
            except (ConnectionError, TimeoutError) as error:
                if time.monotonic() + 0.05 > deadline:
                    raise _pier.TimedOut(errno.ETIMEDOUT, "no store answered at %s, port %d, within %g s: %s" % (
                        host, self.port, self.timeout, error.strerror or error)) from None
                time.sleep(0.05)

    def _dial(self, host: str, deadline: float) -> Stream:
        sock = _peers.own(socket.create_connection((host, self.port), max(deadline - time.monotonic(), 0.001)))
        try:
            stream = Stream(sock, "the store at %s, port %d" % (host, self.port))
            self._authenticate(stream, deadline)
        except BaseException:
            _peers.hang_up(sock)
            raise
        return stream

    def _authenticate(self, stream: Stream, deadline: float) -> None:
        hello = bytes(stream.receive_bytes(len(_MAGIC) + _CHALLENGE, deadline))
        if not hello.startswith(_MAGIC):
            raise stream.bad("it is no store of pier")
        theirs, ours = hello[len(_MAGIC):], os.urandom(_CHALLENGE)
        stream.send_bytes(ours + _proof(self.token, b"client", theirs, ours), deadline)
        proof = stream.receive_bytes(32, deadline)
        if proof == _NO_PROOF:
            raise _pier.AccessDenied(errno.EACCES, "the store refused the token")
        if not hmac.compare_digest(proof, _proof(self.token, b"server", ours, theirs)):
            raise _pier.AccessDenied(errno.EACCES, "%s does not have the token" % stream.peer)

    def _call(self, kind: int, name: str, value: bytes = b"") -> tuple[bool, bytes]:
        key = name.encode()
        if len(key) > _MOST_KEY or len(value) > _MOST_VALUE:
            raise _pier.Invalid(errno.EMSGSIZE, "a key of %d bytes and a value of %d: the most are %d and %d" % (
                len(key), len(value), _MOST_KEY, _MOST_VALUE))
        _peers.check_process(self._process, "store")
        with self._lock:
            if self._stream is None:
                raise ValueError("the store is closed")
            deadline = time.monotonic() + self.timeout
            try:
                self._stream.send_bytes(_frame(kind, key, value), deadline)
                status, _, value = _receive_frame(self._stream, deadline)
            except BaseException:
                # Half a message may be on its way: no further call could be told from it.
                self._drop()
                raise
        if status == _REFUSED:
            raise _pier.NoMemory(errno.ENOMEM, "the store refused: %s" % (
                _peers.printable(value.decode("utf-8", "replace"))))
        return status == _FOUND, value

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key to bytes or text."""
        self._call(_SET, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Return the bytes of a key; wait until somebody has set it. Raises TimedOut."""
        pauses = _peers.Pauses(time.monotonic() + self.timeout)
        while True:
            found, value = self._call(_GET, key)
            if found:
                return value
            if not pauses.sleep():
                raise _pier.TimedOut(errno.ETIMEDOUT, "nobody set the key %r within %g s" % (key, self.timeout))

    def check(self, keys: Iterable[str]) -> bool:
        """Return whether all keys are set. Never waits for them."""
        return all(self._call(_CHECK, key)[0] for key in keys)

    def delete_key(self, key: str) -> bool:
        """Delete a key. Return whether it was set."""
        return self._call(_DELETE, key)[0]

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            _peers.hang_up(stream.socket)

    def close(self) -> None:
        """Close the connection, and the server if this process has it. Again at any time.

        Does nothing in a child of fork(): both are its parent's.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            self._drop()
            server, self._server = self._server, None
        if server is not None:
            server.door.close()

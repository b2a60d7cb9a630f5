# SPDX-License-Identifier: BSD-3-Clause
"""What the servers of the package and their clients have in common: sockets, strangers, and text of peers."""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Self

from . import _pier

MOST_STRANGERS = 64
# In seconds. A stranger may be replaced after the first, and is closed after the second.
PATIENCE = 0.25
PROOF_SECONDS = 30.0
# After accept(2) has failed.
_PAUSE = 0.1
# The most bytes of one send(2) or recv(2).
_PIECE = 1 << 20

_owned: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def own(sock: socket.socket) -> socket.socket:
    """Keep a socket from children of fork(), which close their copies: otherwise no peer would see the end of it."""
    _owned.add(sock)
    return sock


def _close_in_child() -> None:
    # Not shutdown(2): the connection is the parent's.
    for sock in _owned:
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)


def shut_down(sock: socket.socket) -> None:
    """End a connection, or the wait of another thread for one."""
    with contextlib.suppress(OSError):  # it has ended already
        sock.shutdown(socket.SHUT_RDWR)


def hang_up(sock: socket.socket) -> None:
    """Close a socket, and end its connection even if another process has a copy."""
    shut_down(sock)
    sock.close()


def check_process(process: int, name: str) -> None:
    """Raise Forked in a child of a process. Call it before taking a lock, which a thread of the parent may have."""
    if os.getpid() != process:
        raise _pier.Forked(errno.ECHILD, "the %s belongs to the parent of this process: make a %s after fork()"
                           % (name, name))


def printable(text: str) -> str:
    """Return a text of a peer or a file for sentences and logs, with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def invalid(sentence: str) -> _pier.Invalid:
    """Return the exception for a file. Its name, or those in it, may have control characters."""
    return _pier.Invalid(errno.EINVAL, printable(sentence))


class Closable:
    """A context manager that calls close()."""

    def close(self) -> None:
        """Free what it has. Again at any time."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Pauses:
    """Sleep between two looks, longer and longer, until a deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.pause, self.longest = 0.001, 0.05

    def sleep(self) -> bool:
        """Return False after the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self.pause, left))
        self.pause = min(2 * self.pause, self.longest)
        return True


def proof(token: bytes, protocol: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    """Prove that an end has the token.

    role           b"client" or b"server", so that an end cannot be shown its own proof
    first, second  the random bytes of the other end, and those of the end that proves
    """
    return hmac.digest(token, protocol + role + first + second, "sha256")


class Stream:
    """Sends and receives bytes over a connected socket. One thread at a time may use it.

    Deadlines are of time.monotonic(). None: wait until the connection ends.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        """peer: its name in sentences: "server 10.0.0.1:4711"."""
        self.socket = connection
        self.peer = peer
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that is switched off says nothing. Notice it within 25 s (tcp(7)).
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3),
                              (socket.TCP_USER_TIMEOUT, 25000)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send_bytes(self, data: bytes, deadline: float) -> None:
        """Send all bytes. Raises TimedOut, ConnectionLost."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view[:_PIECE]):]
            except BlockingIOError:
                self.wait(select.POLLOUT, deadline)
            except OSError as error:
                raise self._lost(error) from None

    def receive_bytes(self, length: int, deadline: float | None) -> bytearray:
        """Receive exactly so many bytes. Raises TimedOut, ConnectionLost."""
        # Memory grows with what arrives, not with what the peer announces.
        data = bytearray()
        while len(data) < length:
            try:
                piece = self.socket.recv(min(length - len(data), _PIECE))
            except BlockingIOError:
                self.wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise self._lost(error) from None
            if not piece:
                raise self._lost(None)
            data += piece
        return data

    def wait(self, events: int, deadline: float | None) -> None:
        """Wait for events of poll(2). Raises TimedOut."""
        left = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
        poll = select.poll()
        poll.register(self.socket, events)
        if not poll.poll(left):
            raise _pier.TimedOut(errno.ETIMEDOUT, "%s: it did not answer in time" % self.peer)

    def check(self) -> None:
        """Raise ConnectionLost if the connection has ended, BadMessage if the peer has sent something. No wait."""
        try:
            data = self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None
        raise self.bad("it sent something that was not asked for") if data else self._lost(None)

    def bad(self, reason: str) -> _pier.BadMessage:
        """Return the exception for bytes of the peer."""
        return _pier.BadMessage(errno.EBADMSG, printable("%s: %s" % (self.peer, reason)))

    def _lost(self, error: OSError | None) -> _pier.ConnectionLost:
        if error is None:
            return _pier.ConnectionLost(errno.ECONNRESET, "%s: it closed the connection" % self.peer)
        return _pier.ConnectionLost(error.errno or errno.ECONNRESET, "%s: %s" % (self.peer, error.strerror))


class Door:
    """Accepts connections and serves each in a thread of its own, from open() until close().

    Until admit() a connection is a stranger's. Strangers cannot take the descriptors of the process or keep others
    out: there are at most 64, and when another caller comes, the oldest one leaves, but not before 250 ms. Callers
    wait in the backlog meanwhile (docs/security.md, "Who can connect").

    Any thread may use a door, but only threads of other connections may close it.
    """

    def __init__(self, listener: socket.socket, name: str, serve: Callable[[socket.socket, Any], None],
                 most_clients: int) -> None:
        """Own a listening socket.

        name          of the threads and of the log
        serve         called with each connection and its address. It must return when the connection has ended, and
                      raise only OSError
        most_clients  that are admitted at once
        """
        listener.setblocking(False)
        self._listener, self._name, self._serve = own(listener), name, serve
        self._most_clients, self._log = most_clients, logging.getLogger(name)
        self._change = threading.Condition()
        self._strangers: dict[socket.socket, float] = {}  # since when, the oldest first
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._closing = self._is_failing = False
        self._acceptor = threading.Thread(target=self._accept, name=name + " accept", daemon=True)

    def open(self) -> None:
        """Begin to accept."""
        self._acceptor.start()

    @property
    def connections(self) -> int:
        """The number of connections, with those of strangers."""
        return len(self._threads)

    @property
    def clients(self) -> int:
        """The number of connections that were admitted."""
        with self._change:
            return len(self._threads) - len(self._strangers)

    def admit(self, connection: socket.socket) -> bool:
        """Count a connection as a client's. Return False if there are too many already."""
        with self._change:
            if len(self._threads) - len(self._strangers) >= self._most_clients:
                return False
            del self._strangers[connection]
            self._change.notify_all()
            return True

    def close(self) -> None:
        """End all connections, and wait for their threads. After open()."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        shut_down(self._listener)
        self._acceptor.join()
        self._listener.close()
        with self._change:
            threads = dict(self._threads)
        for connection in threads:
            shut_down(connection)
        for thread in threads.values():
            thread.join()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while poll.poll() and self._wait_for_room():
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                self._pause(error)
                continue
            self._is_failing = False
            self._start(own(connection), address)

    def _wait_for_room(self) -> bool:
        """Make a stranger leave if there are too many. Return False if the door closes."""
        with self._change:
            while len(self._strangers) >= MOST_STRANGERS and not self._closing:
                oldest, since = next(iter(self._strangers.items()))
                left: float | None = since + PATIENCE - time.monotonic()
                if left is not None and left <= 0:
                    shut_down(oldest)
                    left = None  # its thread notifies
                self._change.wait(left)
            return not self._closing

    def _pause(self, error: OSError) -> None:
        """Out of descriptors or memory: accept(2). The caller stays in the backlog."""
        if not self._is_failing:
            self._log.warning("accept: %s", error.strerror)
        self._is_failing = True
        with self._change:
            for stranger, since in self._strangers.items():
                if time.monotonic() - since > PATIENCE:
                    shut_down(stranger)
            self._change.wait_for(lambda: self._closing, _PAUSE)

    def _start(self, connection: socket.socket, address: Any) -> None:
        thread = threading.Thread(target=self._run, args=(connection, address), name=self._name + " client",
                                  daemon=True)
        with self._change:
            self._strangers[connection] = time.monotonic()
            self._threads[connection] = thread
        try:
            thread.start()
        except RuntimeError as error:
            # Out of threads or memory: clone(2). Clients that come later may have more luck.
            self._log.warning("client %s:%d: %s", *address[:2], error)
            self._forget(connection)

    def _run(self, connection: socket.socket, address: Any) -> None:
        try:
            with contextlib.suppress(OSError):  # a client that is gone or hostile concerns no other
                self._serve(connection, address)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        hang_up(connection)
        with self._change:
            self._strangers.pop(connection, None)
            del self._threads[connection]
            self._change.notify_all()

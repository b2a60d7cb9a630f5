# SPDX-License-Identifier: BSD-3-Clause
"""The exchange of a group's blobs through a store of keys and values.

A store can have keys of an earlier group of the same name: of one that formed, or of processes that died.
So each member draws a random number, and rank 0 makes a roster of them:

    NAME/hello/RANK      the number of the rank, and the roster that it has seen last
    NAME/roster/NUMBER   from rank 0 for the rank with that number: a state, and the roster or a sentence
    NAME/ROSTER/A.B      the blob of rank A for rank B

Rank 0 proposes a roster when all ranks have come, and again when a hello has changed. Once all ranks have seen
the same roster, no number in it is stale, and rank 0 says so. A key has one reader, who deletes it, except the
hellos, which each rank deletes when the group has formed. So nobody waits for a key that has been deleted.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from typing import Any

from . import _peers, _pier
from ._peers import Pauses

_NUMBER = 16  # bytes
_PROPOSED, _AGREED, _FAILED = b"P", b"A", b"F"
_ABSENT = KeyError, TimeoutError


def timed_out(sentence: str) -> _pier.TimedOut:
    return _pier.TimedOut(errno.ETIMEDOUT, sentence)


class _Keys:
    """A store of any kind."""

    def __init__(self, store: Any, name: str) -> None:
        self.store = store
        self.name = name
        # get() of torch waits for up to 300 s, and before version 2.1 a wait of TCPStore that times out
        # leaves its connection in a state that it cannot be used in (pytorch/pytorch pull request 100594).
        # So look before each get(): by check(), or, where Python has none, by a counter beside the key.
        self.checks = hasattr(store, "check")
        self.counts = not self.checks and hasattr(store, "add")

    def key(self, key: str) -> str:
        return "%s/%s" % (self.name, key)

    def put(self, key: str, value: bytes) -> None:
        self.store.set(self.key(key), value)
        if self.counts:
            self.store.add(self.key(key) + "#", 1)

    def peek(self, key: str) -> bytes | None:
        """Return the value, or None."""
        key = self.key(key)
        if self.checks and not self.store.check([key]):
            return None
        if self.counts and self.store.add(key + "#", 0) <= 0:
            return None
        try:
            value = self.store.get(key)
        except _ABSENT:
            return None
        if value is None:
            return None
        return value.encode("latin-1") if isinstance(value, str) else bytes(value)

    def delete(self, key: str) -> None:
        delete = getattr(self.store, "delete_key", None)
        if delete is None:
            return
        for key in [self.key(key)] + [self.key(key) + "#"] * self.counts:
            try:
                delete(key)
            except Exception:
                return  # PrefixStore has it for a store that has not


def exchange(store: Any, name: str, rank: int, size: int, blobs: bytes, deadline: float) -> bytearray:
    """Return the blobs that the other ranks have for this one."""
    keys = _Keys(store, name)
    number = os.urandom(_NUMBER)
    if rank == 0:
        roster = _lead(keys, number, size, deadline)
    else:
        roster = _follow(keys, number, rank, size, deadline)
    result = _exchange_blobs(keys, roster, rank, size, blobs, deadline)
    keys.delete("hello/%d" % rank)
    return result


def _mailbox(number: bytes) -> str:
    return "roster/" + number.hex()


def _digest(roster: bytes) -> bytes:
    return hashlib.sha256(roster).digest()[:_NUMBER]


def _lead(keys: _Keys, number: bytes, size: int, deadline: float) -> bytes:
    """Rank 0: return the roster on which all ranks agree."""
    pauses = Pauses(deadline)
    proposed = None
    numbers: set[bytes] = set()  # of all proposals
    keys.put("hello/0", number)
    while True:
        come = [number] + [_hello(keys, rank) for rank in range(1, size)]
        hellos = [hello for hello in come if hello is not None]
        missing = [rank for rank in range(size) if come[rank] is None]
        if not missing:
            roster = b"".join(hello[:_NUMBER] for hello in hellos)
            if roster != proposed:
                _send(keys, hellos, _PROPOSED + roster)
                proposed = roster
                numbers.update(hello[:_NUMBER] for hello in hellos[1:])
            missing = [rank for rank in range(1, size) if hellos[rank][_NUMBER:] != _digest(roster)]
            if not missing:
                _send(keys, hellos, _AGREED + roster)
                for dead in numbers.difference(hello[:_NUMBER] for hello in hellos):
                    keys.delete(_mailbox(dead))
                return roster
        if not pauses.sleep():
            sentence = _absent(missing, size)
            _send(keys, hellos, _FAILED + sentence.encode())
            raise timed_out(sentence)


def _hello(keys: _Keys, rank: int) -> bytes | None:
    hello = keys.peek("hello/%d" % rank)
    return hello if hello and len(hello) in (_NUMBER, 2 * _NUMBER) else None


def _send(keys: _Keys, hellos: Sequence[bytes], value: bytes) -> None:
    for hello in hellos[1:]:
        keys.put(_mailbox(hello[:_NUMBER]), value)


def _follow(keys: _Keys, number: bytes, rank: int, size: int, deadline: float) -> bytes:
    """Another rank: return the same."""
    pauses = Pauses(deadline)
    seen = None
    keys.put("hello/%d" % rank, number)
    while True:
        value = keys.peek(_mailbox(number))
        if value is not None and value != seen:
            seen = value
            if value[:1] == _FAILED:
                keys.delete(_mailbox(number))
                raise timed_out("rank 0: " + _peers.printable(value[1:].decode("utf-8", "replace")))
            if value[:1] == _AGREED:
                keys.delete(_mailbox(number))
                return value[1:]
            keys.put("hello/%d" % rank, number + _digest(value[1:]))
        elif not pauses.sleep():
            missing = [other for other in range(size)
                       if other != rank and keys.peek("hello/%d" % other) is None]
            raise timed_out(_absent(missing or [0], size))


def _exchange_blobs(keys: _Keys, roster: bytes, rank: int, size: int, blobs: bytes, deadline: float) -> bytearray:
    group = _digest(roster).hex()
    length = len(blobs) // size
    theirs = bytearray(len(blobs))
    missing = [other for other in range(size) if other != rank]
    pauses = Pauses(deadline)
    for other in missing:
        keys.put("%s/%d.%d" % (group, rank, other), blobs[other * length:(other + 1) * length])
    while missing:
        for other in list(missing):
            key = "%s/%d.%d" % (group, other, rank)
            blob = keys.peek(key)
            if blob is None:
                continue
            if len(blob) != length:
                raise _pier.BadMessage(errno.EBADMSG, "the blob of rank %d has %d bytes, not %d: members have "
                                       "different versions" % (other, len(blob), length))
            theirs[other * length:(other + 1) * length] = blob
            keys.delete(key)
            missing.remove(other)
        if missing and not pauses.sleep():
            raise timed_out(_absent(missing, size))
    return theirs


def _absent(missing: Sequence[int], size: int) -> str:
    """Name the ranks: 1, 2 and 5."""
    first = ", ".join(map(str, missing[:20])) + (" and others" if len(missing) > 20 else "")
    return "rank%s %s of %d did not come in time" % ("" if len(missing) == 1 else "s", first, size)

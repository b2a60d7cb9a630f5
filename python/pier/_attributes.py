# SPDX-License-Identifier: BSD-3-Clause
"""The attributes of a channel in Python and in the library, where each is a word of 32 bits."""

from __future__ import annotations

import errno
import math
import operator
import struct
from typing import Any

from . import _pier
from ._types import ChannelAttributes

_WORDS = struct.Struct("%dI" % len(ChannelAttributes._fields))
_PER_SECOND = {"timeout": 1e3, "keepalive": 1e3, "spin": 1e6}
_MOST = (1 << 31) - 1  # of these
_WAITING = ["", "adaptive", "poll", "event"]  # enum pier_waiting
_GID_ANY = 0xfffffffe  # the largest number but PIER_UNSET, and -1 in Python


def _word(name: str, value: Any) -> int:
    if name == "waiting":
        if not isinstance(value, str):
            raise TypeError("waiting must be a str, not %s" % type(value).__name__)
        if value not in _WAITING[1:]:
            raise _pier.Invalid(errno.EINVAL, 'waiting %.80r is not "adaptive", "poll" or "event"' % value)
        return _WAITING.index(value)
    if name in _PER_SECOND:
        seconds = math.ldexp(value, 0)  # float() would also read text
        if not 0 <= seconds * _PER_SECOND[name] <= _MOST or (seconds == 0 and name == "timeout"):
            raise ValueError("%s %r is not a time in seconds" % (name, value))
        return int(seconds * _PER_SECOND[name] + 0.5) or int(seconds > 0)
    number, least = operator.index(value), -1 if name == "gid_index" else 0
    if not least <= number < _GID_ANY:
        raise ValueError("%s %r is not between %d and %d" % (name, value, least, _GID_ANY - 1))
    return number if number >= 0 else _GID_ANY


def take(keywords: dict[str, Any], others: str, words: bytes) -> bytes:
    """Remove the attributes from the keywords of a constructor, and return the words with these.

    others: the names of its other parameters
    """
    numbers = list(_WORDS.unpack(words))
    for i, name in enumerate(ChannelAttributes._fields):
        if name in keywords:
            numbers[i] = _word(name, keywords.pop(name))
    # Parsing the arguments would count them, and not name the wrong one.
    for name in keywords:
        if name not in others.split():
            raise TypeError("%r is neither a parameter nor a field of ChannelAttributes" % name)
    return _WORDS.pack(*numbers)


def record(words: bytes) -> ChannelAttributes:
    """Return the attributes that the words are."""
    return ChannelAttributes(*(
        _WAITING[word] if name == "waiting" else word / _PER_SECOND[name] if name in _PER_SECOND else word
        for name, word in zip(ChannelAttributes._fields, _WORDS.unpack(words))))

# SPDX-License-Identifier: BSD-3-Clause
"""The index of a data set: where each sample and each of its fields is.

An index is built by a server, sent once to each client, and never changes. It consists of parallel arrays, so that
a million samples take tens of megabytes and a loader can use the arrays as they are (``numpy.frombuffer``).
"""

import errno
import hashlib
import itertools
import operator
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .. import BadMessage
from .._peers import invalid, printable

_HEADER = struct.Struct("<4sHHQIIQQQ")
_MAGIC = b"PrIX"
_VERSION = 1


class Shard(NamedTuple):
    """A contiguous piece of memory of the server: a file, or several packed together."""

    name: str
    """Its path, relative to the path that is served."""
    length: int
    """In bytes."""


class Field(NamedTuple):
    """A named part of a sample: a file of a WebDataset sample, a column of an MDS one, a plain file."""

    offset: int
    """In bytes, from the first byte of the sample."""
    length: int
    """In bytes."""
    encoding: str
    """"" for plain bytes; otherwise the encoding of an MDS column, for :func:`pier.data.decode`."""


class Index:
    """Shards, samples and fields of a data set. Immutable; any number of threads may use it.

    ``table`` has a row of three uint64 for each sample: the number of its shard, its offset in the shard, and its
    length, in bytes. A sample can be empty: an empty file.
    """

    def __init__(self, shards: list[Shard], names: list[tuple[str, str]], keys: "_Strings",
                 arrays: "_Arrays") -> None:
        self.shards = shards
        self._table = arrays.table
        self._field_first = arrays.field_first
        self._field_name = arrays.field_name
        self._field_offset = arrays.field_offset
        self._field_length = arrays.field_length
        self._names = names
        self._keys = keys
        self._check()
        self.table: memoryview = memoryview(self._table).toreadonly()
        self.max_sample_length: int = max(self._table[2::3], default=0)
        """Of the longest sample, in bytes."""
        self.digest: bytes = hashlib.sha256(self.to_bytes()).digest()
        """SHA-256 of the wire form. Two servers serve the same data set if and only if their digests are equal."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._table) // 3

    def __repr__(self) -> str:
        return "<pier.data.Index of %d samples in %d shards, %s>" % (len(self), len(self.shards),
                                                                     self.digest.hex()[:16])

    def key(self, sample: int) -> str:
        """Return the name that the files of a sample have in common; "" in MDS, whose samples have none."""
        return _text(self._keys[sample])

    def fields(self, sample: int) -> dict[str, Field]:
        """Return the fields of a sample, in their order in the shard."""
        sample = range(len(self))[sample]
        first = self._field_first[sample]
        end = self._field_first[sample + 1] if sample + 1 < len(self) else len(self._field_name)
        found = {}
        for n in range(first, end):
            name, encoding = self._names[self._field_name[n]]
            found[name] = Field(self._field_offset[n], self._field_length[n], encoding)
        return found

    def _check(self) -> None:
        """Refuse what would make a reader leave its shard or its sample."""
        shards, offsets, lengths = (self._table[column::3] for column in range(3))
        if max(shards, default=-1) >= len(self.shards):
            raise _bad("a sample is in a shard that is not there")
        limits = map([shard.length for shard in self.shards].__getitem__, shards)
        if any(map(operator.gt, map(operator.add, offsets, lengths), limits)):
            raise _bad("a sample exceeds its shard")
        fields = len(self._field_name)
        first = self._field_first
        if (first[0] if first else fields) != 0 or any(map(operator.gt, first, [*first[1:], fields])):
            raise _bad("the fields of the samples are not in order")
        if max(self._field_name, default=-1) >= len(self._names):
            raise _bad("a field has a name that is not there")
        of_fields = itertools.chain.from_iterable(map(itertools.repeat, lengths, self._field_counts()))
        if any(map(operator.gt, map(operator.add, self._field_offset, self._field_length), of_fields)):
            raise _bad("a field exceeds its sample")

    def _field_counts(self) -> Iterator[int]:
        return map(operator.sub, [*self._field_first[1:], len(self._field_name)], self._field_first)

    def to_bytes(self) -> bytes:
        """Return the wire form (docs/wire.md, "Index of a data set")."""
        texts = [shard.name for shard in self.shards]
        texts += itertools.chain.from_iterable(self._names)
        head = [*map(_bytes, texts)]
        text = b"".join([*head, self._keys.text])
        numbers = [array("Q", [shard.length for shard in self.shards]), self._table, self._field_first,
                   self._field_offset, self._field_length, self._field_name,
                   array("I", [*map(len, head), *self._keys.lengths()])]
        body = b"".join([*map(to_wire, numbers), text])
        return _HEADER.pack(_MAGIC, _VERSION, 0, _HEADER.size + len(body), len(self.shards), len(self._names),
                            len(self), len(self._field_name), len(text)) + body

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> "Index":
        """Parse the wire form, which may come from a hostile peer.

        Raises BadMessage if the form is malformed, or if a sample or a field lies outside what contains it.
        """
        view = memoryview(data).cast("B")
        if len(view) < _HEADER.size:
            raise _bad("it has %d bytes, and its header has %d" % (len(view), _HEADER.size))
        magic, version, reserved, total, shards, names, samples, fields, text = _HEADER.unpack_from(view)
        if magic != _MAGIC or reserved:
            raise _bad("it does not begin with %s" % _MAGIC.decode())
        if version != _VERSION:
            raise BadMessage(errno.EPROTONOSUPPORT, "index of a data set: version %d is not known, only %d: use the "
                             "same version of pier at both ends" % (version, _VERSION))
        counts = [shards, 3 * samples, samples, fields, fields, fields, shards + 2 * names + samples]
        expected = _HEADER.size + 8 * sum(counts[:5]) + 4 * sum(counts[5:]) + text
        if total != len(view) or total != expected:
            raise _bad("it has %d bytes, its header says %d, and its contents need %d" % (len(view), total, expected))
        return cls._parse(view[_HEADER.size:], counts, shards, names)

    @classmethod
    def _parse(cls, view: memoryview, counts: list[int], shards: int, names: int) -> "Index":
        arrays = []
        for code, count in zip("QQQQQII", counts):
            size = count * array(code).itemsize
            arrays.append(from_wire(code, view[:size]))
            view = view[size:]
        lengths = arrays.pop()
        if sum(lengths) != len(view):
            raise _bad("its texts have %d bytes, and their lengths sum up to %d" % (len(view), sum(lengths)))
        head = _Strings(view, lengths[:shards + 2 * names])
        keys = _Strings(view[len(head.text):], lengths[shards + 2 * names:])
        texts = [_text(head[n]) for n in range(shards + 2 * names)]
        return cls([Shard(*pair) for pair in zip(texts, arrays.pop(0))],
                   list(zip(texts[shards::2], texts[shards + 1::2])), keys, _Arrays(*arrays))


class _Strings:
    """Byte strings, one behind the other."""

    def __init__(self, text: bytes | memoryview, lengths: Iterable[int]) -> None:
        self._end = array("Q", itertools.accumulate(lengths))
        self.text = bytes(text[:self._end[-1] if self._end else 0])

    def __getitem__(self, n: int) -> bytes:
        n = range(len(self._end))[n]
        start = self._end[n - 1] if n else 0
        return self.text[start:self._end[n]]

    def lengths(self) -> Iterator[int]:
        return map(operator.sub, self._end, [0, *self._end[:-1]])


class _Arrays(NamedTuple):
    """In the order of the wire form."""

    table: "array[int]"
    field_first: "array[int]"
    field_offset: "array[int]"
    field_length: "array[int]"
    field_name: "array[int]"

    @classmethod
    def empty(cls) -> "_Arrays":
        return cls(array("Q"), array("Q"), array("Q"), array("Q"), array("I"))


class IndexBuilder:
    """Collects shards and samples in order. The samples belong to the shard that was added last."""

    def __init__(self) -> None:
        self._shards: list[Shard] = []
        self._shard_names: set[str] = set()
        self._keys: list[bytes] = []
        self._names: dict[tuple[str, str], int] = {}
        self._arrays = _Arrays.empty()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._keys)

    def add_shard(self, name: str, length: int) -> None:
        """Add a shard. Raises Invalid if there is one of this name."""
        if name in self._shard_names:
            raise invalid("two shards have the name %r: rename one of them, or serve the folder that contains both"
                          % name)
        self._shard_names.add(name)
        self._shards.append(Shard(name, length))

    def add_sample(self, key: str, offset: int, length: int,
                   fields: Iterable[tuple[str, tuple[int, int, str]]]) -> None:
        """Add a sample at an offset of the shard. Its fields, with the items of Field, are relative to it."""
        arrays = self._arrays
        arrays.table.extend((len(self._shards) - 1, offset, length))
        arrays.field_first.append(len(arrays.field_name))
        self._keys.append(_bytes(key))
        for name, (start, size, encoding) in fields:
            arrays.field_name.append(self._names.setdefault((name, encoding), len(self._names)))
            arrays.field_offset.append(start)
            arrays.field_length.append(size)

    def finish(self) -> Index:
        """Return the index. Raises BadMessage if a sample or a field lies outside what contains it."""
        keys = _Strings(b"".join(self._keys), map(len, self._keys))
        return Index(self._shards, list(self._names), keys, self._arrays)


def _bad(reason: str) -> BadMessage:
    return BadMessage(errno.EBADMSG, "index of a data set: %s" % printable(reason))


def _text(string: bytes) -> str:
    # Names of files are bytes: PEP 383.
    return string.decode("utf-8", "surrogateescape")


def _bytes(string: str) -> bytes:
    return string.encode("utf-8", "surrogateescape")


def to_wire(numbers: "array[int]") -> bytes:
    """Return numbers in little-endian order."""
    return _as_little_endian(numbers).tobytes()


def from_wire(code: str, wire: bytes | memoryview) -> "array[int]":
    """Return little-endian numbers as an array of a type code."""
    numbers = array(code)
    numbers.frombytes(wire)
    return _as_little_endian(numbers)


def _as_little_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return numbers
    swapped = numbers[:]
    swapped.byteswap()
    return swapped

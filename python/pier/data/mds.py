# SPDX-License-Identifier: BSD-3-Clause
"""MosaicML's MDS: a folder with an index.json and its shards.

The format is that of the package mosaicml-streaming: index.json and the head of a shard are written by
streaming/base/format/mds/writer.py (``encode_joint_shard``), a sample is read by reader.py beside it
(``decode_sample``). Numbers in a shard are little-endian.
"""

import errno
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import Invalid, NotSupported
from .._peers import invalid, printable
from .index import Field, IndexBuilder

INDEX = "index.json"
# What compressed shards may decompress to: this much, and so many times as much as their files have. A few bytes
# of zeros decompress to gigabytes.
_FREE_BYTES, _MOST_TIMES = 64 << 20, 100
_LARGEST = 1 << 48


class Column(NamedTuple):
    name: str
    encoding: str
    size: int | None
    """In bytes; None: each sample says."""


class MdsShard(NamedTuple):
    """A shard as index.json describes it."""

    name: str
    """The path of the shard without compression, relative to the folder."""
    length: int
    """In bytes, without compression."""
    samples: int
    columns: list[Column]
    file: str
    """The path of the file that is there, relative to the folder."""
    compression: str
    """"" for none; otherwise "zstd", "gz", "br"..."""


def read_index(folder: str) -> list[MdsShard]:
    """Read index.json of a folder.

    Raises Invalid if it is malformed, not MDS version 2, or does not fit the files; NotSupported if it is LitData's.
    """
    path = os.path.join(folder, INDEX)
    with open(path, "rb") as file:
        try:
            content = json.load(file)
            if "chunks" in content and "shards" not in content:
                raise NotSupported(errno.EOPNOTSUPP, "%s: it is that of a LitData data set, which has 'chunks', and "
                                   "is not supported: write the data set as MDS or WebDataset" % printable(path))
            shards = [_read_shard(folder, shard) for shard in content["shards"]]
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise invalid("%s: malformed: %s: write the data set again, or rename this file if it is not that of MDS"
                          % (path, _reason(error))) from None
    _check_sizes(folder, shards)
    return shards


def _check_sizes(folder: str, shards: list["MdsShard"]) -> None:
    """Refuse sizes that would take much more memory than the files of the data set."""
    there = announced = 0
    for shard in shards:
        size = os.path.getsize(os.path.join(folder, shard.file))
        if shard.compression:
            there, announced = there + size, announced + shard.length
        elif size != shard.length:
            raise invalid("%s: it has %d bytes instead of %d: copy it again" % (shard.file, size, shard.length))
    if announced > _FREE_BYTES + _MOST_TIMES * there:
        raise invalid("%s: the compressed shards have %d bytes, and shall have %d when decompressed, more than %d "
                      "times as much: decompress them first, if you trust the data set"
                      % (os.path.join(folder, INDEX), there, announced, _MOST_TIMES))


def _reason(error: Exception) -> str:
    return "%s is missing" % error if isinstance(error, KeyError) else str(error)


def _read_shard(folder: str, shard: dict[str, Any]) -> MdsShard:
    if shard["format"] != "mds" or shard["version"] != 2:
        raise ValueError("format %r, version %r: only version 2 of \"mds\" is known" % (shard["format"],
                                                                                      shard["version"]))
    columns = [Column(str(name), str(encoding), int(size) or None if size is not None else None)
               for name, encoding, size in zip(shard["column_names"], shard["column_encodings"],
                                               shard["column_sizes"], strict=True)]
    if any(column.size is not None and column.size < 0 for column in columns):
        raise ValueError("a column has a negative size")
    raw, packed = shard["raw_data"], shard.get("zip_data")
    name, file = _inside(raw["basename"]), ""
    # A shard can be there in both forms.
    if packed and not os.path.exists(os.path.join(folder, name)):
        file = _inside(packed["basename"])
    compression = str(shard.get("compression") or "").partition(":")[0] if file else ""
    length = int(raw["bytes"])
    if not 0 <= length <= _LARGEST:
        raise ValueError("a shard of %r bytes" % raw["bytes"])
    return MdsShard(name, length, int(shard["samples"]), columns, file or name, compression)


def _inside(name: str) -> str:
    """A name may not lead out of the folder."""
    if not name or name.startswith("/") or ".." in name.split("/") or b"\0" in os.fsencode(name):
        raise ValueError("the name %r leads out of the folder" % name)
    return name


def add_shard(builder: IndexBuilder, shard: MdsShard, content: memoryview) -> None:
    """Add a shard and its samples. Raises Invalid if the content is malformed.

    content  the whole shard, without compression
    """
    builder.add_shard(shard.name, len(content))
    for start, end in _sample_ranges(shard, content):
        builder.add_sample("", start, end - start, _sample_fields(shard, content[start:end]))


def _sample_ranges(shard: MdsShard, content: memoryview) -> Iterator[tuple[int, int]]:
    # The number of samples, and the offset of each and of the end.
    head = 4 * (shard.samples + 2)
    if shard.samples < 0 or head > len(content):
        raise _bad(shard, "it has %d bytes, too few for %d samples" % (len(content), shard.samples))
    count, *offsets = struct.unpack_from("<%dI" % (shard.samples + 2), content)
    if count != shard.samples:
        raise _bad(shard, "it has %d samples, and %s says %d" % (count, INDEX, shard.samples))
    last = head
    for offset in offsets:
        if not last <= offset <= len(content):
            raise _bad(shard, "a sample begins or ends at byte %d, out of order or behind the end" % offset)
        last = offset
    return zip(offsets, offsets[1:])


def _sample_fields(shard: MdsShard, sample: memoryview) -> Iterator[tuple[str, Field]]:
    """The sizes of the columns without a fixed one, and then the columns."""
    variable = sum(column.size is None for column in shard.columns)
    offset = 4 * variable
    if offset > len(sample):
        raise _bad(shard, "a sample of %d bytes is too short for its columns" % len(sample))
    sizes = iter(struct.unpack_from("<%dI" % variable, sample))
    for name, encoding, size in shard.columns:
        length = next(sizes) if size is None else size
        if offset + length > len(sample):
            raise _bad(shard, "column %s of a sample exceeds the sample" % name)
        yield name, Field(offset, length, encoding)
        offset += length


def _bad(shard: MdsShard, reason: str) -> Invalid:
    return invalid("%s: %s: write the data set again" % (shard.name, reason))

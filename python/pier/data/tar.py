# SPDX-License-Identifier: BSD-3-Clause
"""WebDataset: tar archives, whose consecutive files with one base name are a sample.

The header of a member is described in tar(5) of libarchive, and by POSIX.1-2017 (pax, "ustar Interchange Format" and
"pax Header Block"); GNU's extensions in "Basic Tar Format" of the manual of GNU tar. The rules by which files become
samples are those of webdataset's ``base_plus_ext``, ``tar_file_iterator`` and ``group_by_keys`` (tariterators.py).
"""

import errno
import logging
import re
from collections.abc import Iterator
from typing import NamedTuple

from .. import Invalid
from .index import Field, IndexBuilder

BLOCK = 512
_REGULAR = b"\0" + b"07"
# Members without contents that a reader could want: directories, volume labels and lists of directories.
_SILENT = b"5VD"
_NO_BYTES = b"123456"
_LOG = logging.getLogger(__name__)
# Of a long name or a pax header, in bytes. PATH_MAX is 4096.
_MAX_EXTENSION = 1 << 20
_BASE_AND_EXTENSION = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    offset: int
    """Of its first byte of contents, in the archive."""
    size: int


def add_archive(builder: IndexBuilder, name: str, archive: memoryview, index: str | None) -> None:
    """Add a shard and its samples.

    name     of the shard
    archive  the whole file
    index    the path of an index that DALI's wds2idx wrote; None: the headers of the archive are read

    Raises Invalid if the archive or the index is malformed, or has a member that cannot be served.
    """
    builder.add_shard(name, len(archive))
    files = read_headers(name, archive) if index is None else read_index(index, name, archive)
    group: list[tuple[str, Member]] = []
    last, before = "", len(builder)
    for member in files:
        match = _BASE_AND_EXTENSION.fullmatch(member.name)
        if not match or _META.match(member.name):
            continue
        if match[1] != last and group:
            _add_sample(builder, name, last, group)
            group = []
        last = match[1]
        group.append((match[2].lower(), member))
    if group:
        _add_sample(builder, name, last, group)
    if len(builder) == before:
        _LOG.warning("%s: it has no samples: the names of their files have the form KEY.EXTENSION", name)


def _add_sample(builder: IndexBuilder, archive: str, key: str, group: list[tuple[str, Member]]) -> None:
    start = min(member.offset for _, member in group)
    end = max(member.offset + member.size for _, member in group)
    if len({extension for extension, _ in group}) != len(group):
        raise Invalid(errno.EINVAL, "%s: sample %r has two files with one extension: rename one" % (archive, key))
    fields = [(extension, Field(member.offset - start, member.size, "")) for extension, member in group]
    builder.add_sample(key, start, end - start, fields)


def read_headers(name: str, archive: memoryview) -> Iterator[Member]:
    """Iterate over the files of an archive. Raises Invalid."""
    return _Headers(name, archive).files()


class _Headers:
    """Reads the headers of an archive, and remembers what they say about the members behind them."""

    def __init__(self, name: str, archive: memoryview) -> None:
        self.name = name
        self.archive = archive
        self.position = 0
        self.everywhere: dict[str, bytes] = {}
        self.pax: dict[str, bytes] = {}
        self.long_name = b""

    def files(self) -> Iterator[Member]:
        while self.position < len(self.archive):
            header = bytes(self.archive[self.position:self.position + BLOCK])
            if len(header) < BLOCK:
                raise self._bad("it ends in the header at byte %d: copy it again" % self.position)
            # Two of them end an archive. Like GNU tar and tarfile.py, stop at the first.
            if not header.strip(b"\0"):
                return
            kind, size = header[156:157], self._size(header)
            offset = self.position + BLOCK
            # With its padding: nothing that writes archives leaves it out.
            end = offset + (size + BLOCK - 1) // BLOCK * BLOCK
            if end > len(self.archive):
                raise self._bad("it has %d bytes, and the member at byte %d ends at byte %d: it is truncated, copy "
                                "it again" % (len(self.archive), self.position, end))
            self.position = end
            if self._is_extension(kind, self.archive[offset:offset + size]):
                continue
            name = self.pax.get("path") or self.long_name or _header_name(header)
            member = Member(_text(name), offset, size)
            if self._is_file(kind, member):
                yield member
            self.pax, self.long_name = dict(self.everywhere), b""

    def _size(self, header: bytes) -> int:
        size = _number(header[124:136])
        if not _has_checksum(header) or size is None or size < 0:
            raise self._bad("the header at byte %d is malformed: is it a tar archive, and not a compressed one?"
                            % self.position)
        if header[156:157] in _NO_BYTES:
            return 0
        digits = self.pax.get("size") if header[156:157] not in b"xXgLK" else None
        if digits is None:
            return size
        if not digits.isdigit() or len(digits) > 20:
            raise self._bad("the size in a pax header is no number: write the archive again")
        return int(digits)

    def _is_extension(self, kind: bytes, contents: memoryview) -> bool:
        """Take a header that says something about the next member, or about all of them."""
        if kind not in b"LKxXg":
            return False
        if len(contents) > _MAX_EXTENSION:
            raise self._bad("a header has %d bytes, more than %d: write the archive again"
                            % (len(contents), _MAX_EXTENSION))
        if kind == b"L":
            self.long_name = bytes(contents).rstrip(b"\0")
        elif kind == b"g":
            self.everywhere.update(self._records(bytes(contents)))
            self.pax = {**self.everywhere, **self.pax}
        elif kind in b"xX":
            self.pax.update(self._records(bytes(contents)))
        return True

    def _records(self, data: bytes) -> dict[str, bytes]:
        """Parse "LENGTH KEYWORD=VALUE\\n"."""
        records = {}
        while data:
            digits = data[:20].partition(b" ")[0]
            length = int(digits) if digits.isdigit() else 0
            keyword, equals, value = data[len(digits) + 1:max(length - 1, 0)].partition(b"=")
            if not equals or data[length - 1:length] != b"\n":
                raise self._bad("a pax header is malformed: write the archive again")
            records[_text(keyword)] = value
            data = data[length:]
        return records

    def _is_file(self, kind: bytes, member: Member) -> bool:
        if kind == b"S" or any(keyword.startswith("GNU.sparse") for keyword in self.pax):
            raise self._bad("the member %r is sparse, so its bytes are not in one piece: write the archive again "
                            "without --sparse" % member.name)
        if kind == b"M":
            raise self._bad("the member %r continues another volume: join the volumes" % member.name)
        # An old archive marks a directory only by the end of its name.
        if kind in _REGULAR:
            return not (kind == b"\0" and member.name.endswith("/"))
        if kind not in _SILENT:
            _LOG.warning("%s: member %r is left out: it has type %r, and only files have contents", self.name,
                         member.name, kind.decode("latin-1"))
        return False

    def _bad(self, reason: str) -> Invalid:
        return _bad(self.name, reason)


def read_index(path: str, name: str, archive: memoryview) -> Iterator[Member]:
    """Iterate over the files that an index lists, if the archive has them where the index says.

    The index begins with its version and the number of samples. A line per sample follows, with the extension,
    offset, size and name of each file (tools/wds2idx.py of DALI, ``create_index``).

    Raises Invalid.
    """
    remedy = "write it again with wds2idx, or delete it: the headers of the archive are read then"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        version, _, count = file.readline().strip().partition(" ")
        if version == "v1.1":
            # Without names, which are the keys of the samples.
            yield from read_headers(name, archive)
            return
        if version != "v1.2" or not count.isdecimal():
            raise _bad(path, "its first line is not \"v1.2 COUNT\": " + remedy)
        number = 0
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words or len(words) % 4:
                raise _bad(path, "line %d is not a list of extension, offset, size and name, without blanks in "
                           "names: %s" % (number + 1, remedy))
            for _, offset, size, file_name in zip(*[iter(words)] * 4):
                if not _is_file(archive, offset, size):
                    raise _bad(path, "line %d: %s has no file of %s bytes at byte %s: %s"
                               % (number + 1, name, size, offset, remedy))
                yield Member(file_name, int(offset), int(size))
        if number != int(count):
            raise _bad(path, "it has %d samples, and its first line says %s: %s" % (number, count, remedy))


def _is_file(archive: memoryview, offset: str, size: str) -> bool:
    """Whether the header of a file of this size is in front of the offset."""
    if not offset.isdecimal() or not size.isdecimal():
        return False
    start, length = int(offset), int(size)
    if start < BLOCK or start % BLOCK or start + length > len(archive):
        return False
    header = bytes(archive[start - BLOCK:start])
    return _has_checksum(header) and header[156:157] in _REGULAR and _number(header[124:136]) == length


def _has_checksum(header: bytes) -> bool:
    # The sum of all bytes, with the eight of the checksum taken as blanks.
    return _number(header[148:156]) == sum(header) - sum(header[148:156]) + 8 * ord(" ")


def _number(field: bytes) -> int | None:
    """Parse octal digits, or GNU's base 256. None: it is no number."""
    if field[0] in (0o200, 0o377):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0o377 else 0)
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        return None
    return int(digits or b"0", 8)


def _header_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    # Only POSIX has a prefix. GNU's magic is "ustar  ", and times are in its place.
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _bad(name: str, reason: str) -> Invalid:
    return Invalid(errno.EINVAL, "%s: %s" % (name, reason))

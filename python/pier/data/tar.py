# SPDX-License-Identifier: BSD-3-Clause
"""WebDataset: tar archives, whose consecutive files with one base name are a sample.

The header of a member is described in tar(5) of libarchive, and by POSIX.1-2017 (pax, "ustar Interchange Format" and
"pax Header Block"); GNU's extensions in "Basic Tar Format" of the manual of GNU tar. The rules by which files become
samples are those of webdataset's ``base_plus_ext``, ``tar_file_iterator`` and ``group_by_keys`` (tariterators.py).

The module tarfile is too slow. For the headers of 200,000 members it needs 3.4 s of a processor, and 8.4 s if each
has a pax header, as webdataset writes them; this reader needs 0.16 s and 0.97 s. It would make indexing 6 times as
long.
"""

import logging
import re
from collections.abc import Iterator

from .. import Invalid, _pier
from .._peers import invalid, printable
from .index import IndexBuilder

BLOCK = 512
_REGULAR = b"\0" + b"07"
# Members without contents that a reader could want: directories, volume labels and lists of directories.
_SILENT = b"5VD"
_NO_BYTES = b"123456"
# Members that say something about the next one, or about all.
_EXTENSIONS = b"LKxXg"
_LOG = logging.getLogger(__name__)
# Of a long name or a pax header, in bytes. PATH_MAX is 4096.
_MAX_EXTENSION = 1 << 20
_SPARSE = b"GNU.sparse"
_KEYWORDS = b"path", b"size", _SPARSE
_META = re.compile(r"__[^/]*__($|/)")


# A file in an archive: its name, the offset of its first byte of contents in the archive, and its size.
Member = tuple[str, int, int]


def add_archive(builder: IndexBuilder, name: str, archive: memoryview, index: str | None) -> None:
    """Add a shard and its samples.

    name     of the shard
    archive  the whole file
    index    the path of an index that DALI's wds2idx wrote; None: the headers of the archive are read

    Raises Invalid if the archive or the index is malformed, or has a member that cannot be served.
    """
    builder.add_shard(name, len(archive))
    files = read_headers(name, archive) if index is None else read_index(index, name, archive)
    group: list[tuple[str, int, int]] = []  # extension, offset, size
    last, before = "", len(builder)
    for file_name, offset, size in files:
        dot = _extension_at(file_name)
        if dot < 0 or file_name.startswith("__") and _META.match(file_name):
            continue
        key = file_name[:dot]
        if key != last and group:
            _add_sample(builder, name, last, group)
            group = []
        last = key
        group.append((file_name[dot + 1:].lower(), offset, size))
    if group:
        _add_sample(builder, name, last, group)
    if len(builder) == before:
        _LOG.warning("%s: it has no samples: the names of their files have the form KEY.EXTENSION", printable(name))


def _extension_at(name: str) -> int:
    """Return where the dot between key and extension is, or -1.

    As webdataset's regular expression finds it, "^((?:.*/|)[^.]+)[.]([^/]*)$", but in linear time: it is the first
    dot of the last component. A dot that begins this one counts if the component before it has none.
    """
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot > start or dot < 0:
        return dot
    return dot if start and "." not in name[name.rfind("/", 0, start - 1) + 1:start] else -1


def _add_sample(builder: IndexBuilder, archive: str, key: str, group: list[tuple[str, int, int]]) -> None:
    start = min([offset for _, offset, _ in group])
    end = max([offset + size for _, offset, size in group])
    if len({extension for extension, _, _ in group}) != len(group):
        raise _bad(archive, "sample %r has two files with one extension: rename one" % key)
    fields = [(extension, (offset - start, size, "")) for extension, offset, size in group]
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
        # The records of pax headers that matter, for all members and for the next one.
        self.everywhere: dict[bytes, bytes] = {}
        self.pax: dict[bytes, bytes] = {}
        self.long_name = b""

    def files(self) -> Iterator[Member]:
        archive, total = self.archive, len(self.archive)
        while self.position < total:
            if not self.pax and not self.long_name:
                members, self.position = _pier._tar_files(archive, self.position)
                yield from members
                if members:
                    continue
            offset = self.position + BLOCK
            if offset > total:
                raise self._bad("it ends in the header at byte %d: copy it again" % self.position)
            header = _pier._tar_header(archive, self.position)
            if header is None:
                raise self._bad("the header at byte %d is malformed: is it a tar archive, and not a compressed one?"
                                % self.position)
            kind, size, name = header
            # Two empty ones end an archive. Like GNU tar and tarfile.py, stop at the first.
            if not kind:
                return
            if kind in _NO_BYTES:
                size = 0
            elif self.pax and kind not in _EXTENSIONS:
                size = self._size(size)
            # With its padding: nothing that writes archives leaves it out.
            end = offset + (size + BLOCK - 1) // BLOCK * BLOCK
            if end > total:
                raise self._bad("it has %d bytes, and the member at byte %d ends at byte %d: it is truncated, copy "
                                "it again" % (total, self.position, end))
            self.position = end
            if kind in _EXTENSIONS:
                self._take_extension(kind, archive[offset:offset + size])
                continue
            if self.pax or self.long_name:
                name = self.pax.get(b"path") or self.long_name or name
            member = name.decode("utf-8", "surrogateescape")
            if self._is_file(kind, member):
                yield member, offset, size
            if self.pax or self.long_name:
                self.pax, self.long_name = self.everywhere.copy(), b""

    def _size(self, size: int) -> int:
        digits = self.pax.get(b"size")
        if digits is None:
            return size
        if not digits.isdigit() or len(digits) > 20:
            raise self._bad("the size in a pax header is no number: write the archive again")
        return int(digits)

    def _take_extension(self, kind: bytes, contents: memoryview) -> None:
        """Take a header that says something about the next member, or about all of them."""
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

    def _records(self, data: bytes) -> dict[bytes, bytes]:
        """Parse "LENGTH KEYWORD=VALUE\\n"."""
        records = {}
        start = 0
        while start < len(data):
            blank = data.find(b" ", start, start + 20)
            digits = data[start:max(blank, 0)]
            end = start + int(digits) if digits.isdigit() else 0
            equals = data.find(b"=", blank + 1, end - 1) if end > blank + 1 else -1
            if equals < 0 or data[end - 1:end] != b"\n":
                raise self._bad("a pax header is malformed: write the archive again")
            keyword = data[blank + 1:equals]
            if keyword.startswith(_SPARSE):
                keyword = _SPARSE
            if keyword in _KEYWORDS:
                records[keyword] = data[equals + 1:end - 1]
            start = end
        return records

    def _is_file(self, kind: bytes, member: str) -> bool:
        if kind == b"S" or _SPARSE in self.pax:
            raise self._bad("the member %r is sparse, so its bytes are not in one piece: write the archive again "
                            "without --sparse" % member)
        # An old archive marks a directory only by the end of its name.
        if kind in _REGULAR:
            return not (kind == b"\0" and member.endswith("/"))
        if kind == b"M":
            raise self._bad("the member %r continues another volume: join the volumes" % member)
        if kind not in _SILENT:
            _LOG.warning("%s: member %r is left out: it has type %r, and only files have contents",
                         printable(self.name), member, kind.decode("latin-1"))
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
        if version != "v1.2" or not _is_decimal(count):
            raise _bad(path, "its first line is not \"v1.2 COUNT\": " + remedy)
        number = 0
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words or len(words) % 4:
                raise _bad(path, "line %d is not a list of extension, offset, size and name, without blanks in "
                           "names: %s" % (number + 1, remedy))
            for _, offset, size, file_name in zip(*[iter(words)] * 4):
                if not _is_file(archive, offset, size):
                    raise _bad(path, "line %d: %s has no file of %.20s bytes at byte %.20s: %s"
                               % (number + 1, name, size, offset, remedy))
                yield file_name, int(offset), int(size)
        if number != int(count):
            raise _bad(path, "it has %d samples, and its first line says %s: %s" % (number, count, remedy))


def _is_decimal(text: str) -> bool:
    return text.isdecimal() and len(text) <= 20


def _is_file(archive: memoryview, offset: str, size: str) -> bool:
    """Whether the header of a file of this size is in front of the offset."""
    if not _is_decimal(offset) or not _is_decimal(size):
        return False
    start, length = int(offset), int(size)
    if start < BLOCK or start % BLOCK or start + length > len(archive):
        return False
    header = _pier._tar_header(archive, start - BLOCK)
    return header is not None and header[0] != b"" and header[0] in _REGULAR and header[1] == length


def _bad(name: str, reason: str) -> Invalid:
    return invalid("%s: %s" % (name, reason))

# SPDX-License-Identifier: BSD-3-Clause
"""Finds the data sets that a server can serve: WebDataset archives, MDS and plain files."""

import bz2
import collections
import contextlib
import errno
import gzip
import importlib
import io
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from .. import BadMessage, NotSupported
from .._peers import invalid, printable
from . import mds, tar
from .index import Field, Index, IndexBuilder

# Plain files are packed into shards of about this many bytes, because each shard is a region of its own. udmabuf
# permits 64 MiB by default (size_limit_mb).
_PACK_BYTES = 60 << 20
# Of a file in a packed shard, so that typed views of it are aligned.
_ALIGNMENT = 64
# Files with many samples in formats that are not read. A reader could still want whole files.
_CONTAINERS = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow", ".safetensors": "safetensors",
               ".tfrecord": "TFRecord", ".h5": "HDF5", ".hdf5": "HDF5"}
_LOG = logging.getLogger(__name__)
_COMPRESSED_ARCHIVE = re.compile(r".+\.(tar\.(gz|bz2|xz|zst|lz4|lzma|Z)|tgz|tbz2?|txz|tzst)",
                                 re.IGNORECASE | re.DOTALL)


class Piece(NamedTuple):
    """A file, or the bytes that it yields when decompressed."""

    path: str
    length: int
    """In bytes, decompressed."""
    compression: str = ""
    folder: str = ""
    """That it must be in, without links; "" if it may be anywhere."""

    def open(self) -> io.FileIO:
        """Open the file as it is. Raises Invalid if it is not in its folder: links and names can lead out."""
        return open(self.path, "rb", buffering=0, opener=self._open)

    def _open(self, path: str, flags: int) -> int:
        if not self.folder:
            return os.open(path, flags)
        # Look first: to open a device or a FIFO can have effects. A link that changes now does not matter.
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            place = "/proc/self/fd/%d" % handle
            real = os.readlink(place)
            if not real.startswith(os.path.join(self.folder, "")):
                raise invalid("%s: it leads out of %s, to %s: serve that folder, or allow it (--allow-outside)"
                              % (path, self.folder, real))
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise invalid("%s: it is no file" % path)
            return os.open(place, flags)
        except PermissionError as error:
            raise PermissionError(error.errno, error.strerror, path) from None
        finally:
            os.close(handle)


class Source(NamedTuple):
    """A shard to be loaded, and how it is indexed then."""

    name: str
    pieces: list[Piece]
    """One behind the other, each at a multiple of 64 bytes."""
    add: Callable[[IndexBuilder, memoryview], None]
    """Add the shard and its samples to an index. Gets the whole shard."""

    @property
    def length(self) -> int:
        """In bytes; at least 1, because memory of no bytes cannot be registered."""
        return max(sum(_aligned(piece.length) for piece in self.pieces[:-1]) + self.pieces[-1].length, 1)

    @property
    def file(self) -> Piece | None:
        """The file that has exactly the bytes of the shard, or None."""
        plain = len(self.pieces) == 1 and not self.pieces[0].compression and self.pieces[0].length
        return self.pieces[0] if plain else None

    def load(self, memory: memoryview) -> None:
        """Read the shard into memory of its length. Raises Invalid, NotSupported, OSError."""
        position = 0
        for piece in self.pieces:
            _read_piece(piece, memory[position:position + piece.length])
            position += _aligned(piece.length)


def find_sources(paths: list[str], allow_outside: bool = False) -> list[Source]:
    """Find what to serve. A path is one of

    - a folder with an index.json: an MDS data set;
    - a folder with files \\*.tar: WebDataset archives. Other files in it are not served;
    - any other folder: the plain files in it and in its folders, a sample each, without hidden ones;
    - a file \\*.tar;
    - a JSON file that widsindex wrote: the archives it lists;
    - any other file: one sample.

    allow_outside  also files outside of the folder, or of that of the JSON file, to which links and names lead.
                   Otherwise they are refused when they are opened

    Raises Invalid if there is nothing to serve, or if an index is malformed; NotSupported; OSError.
    """
    sources = [source for path in paths for source in _find(os.fspath(path), allow_outside)]
    if not sources:
        raise invalid("%s: there is nothing to serve" % ", ".join(map(os.fspath, paths)))
    return sources


def build_index(sources: list[Source], contents: list[memoryview]) -> Index:
    """Index loaded shards. Raises Invalid if the contents of one are malformed."""
    builder = IndexBuilder()
    for source, content in zip(sources, contents, strict=True):
        source.add(builder, content)
    try:
        return builder.finish()
    except BadMessage as error:
        raise invalid(str(error.strerror)) from None


def _find(path: str, allow_outside: bool) -> Iterator[Source]:
    is_folder = os.path.isdir(path)
    # What the user names may be anywhere.
    inside = "" if allow_outside else os.path.realpath(path if is_folder else os.path.dirname(path))
    if not is_folder:
        if path.endswith(".tar"):
            return iter([_archive(path, os.path.basename(path), "")])
        listed = _wids_archives(path, inside) if path.endswith(".json") else None
        return iter(listed) if listed is not None else _pack([(path, os.path.basename(path))], "")
    if os.path.exists(os.path.join(path, mds.INDEX)):
        return map(lambda shard: _mds_shard(path, shard, inside), mds.read_index(path))
    files = sorted(_files(path))
    archives = [(file, name) for file, name in files if name.endswith(".tar")]
    return (_archive(*pair, inside) for pair in archives) if archives else _pack(files, inside)


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """Regular files below a folder and their names relative to it. Hidden ones are left out."""
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = os.path.join(path, name)
            if not name.startswith(".") and os.path.isfile(file):
                yield file, os.path.relpath(file, folder)


def _archive(path: str, name: str, folder: str) -> Source:
    def add(builder: IndexBuilder, content: memoryview) -> None:
        tar.add_archive(builder, name, content, _beside(path))

    return Source(name, [Piece(path, os.path.getsize(path), folder=folder)], add)


def _beside(path: str) -> str | None:
    """The index of an archive. wds2idx puts that of a.b.tar into a.idx, callers of it often into a.b.idx.

    The file .index of the wids package is not read, because it is a pickle, which could execute code.
    """
    folder, name = os.path.split(path)
    candidates = [os.path.join(folder, stem + ".idx") for stem in (os.path.splitext(name)[0], name.partition(".")[0])]
    return next(filter(os.path.exists, candidates), None)


def _wids_archives(path: str, folder: str) -> list[Source] | None:
    """The archives of a "wids-shard-index-v1" (wids_specs.py of webdataset). None: it is another JSON file."""
    with open(path, "rb") as file:
        try:
            content = json.load(file)
        except (ValueError, RecursionError):
            return None
    if not isinstance(content, dict) or "wids_version" not in content:
        return None
    try:
        return [_wids_archive(path, content, shard, folder) for shard in content["shardlist"]]
    except (TypeError, KeyError, ValueError, ArithmeticError) as error:
        raise invalid("%s: malformed: %s: write it again with widsindex" % (path, error)) from None


def _wids_archive(path: str, content: dict[str, Any], shard: dict[str, Any], folder: str) -> Source:
    url = os.path.join(content.get("base", ""), shard["url"])
    if "://" in url:
        raise ValueError("%s is not a file" % url)
    source = _archive(os.path.join(os.path.dirname(path), url), os.path.basename(url), folder)
    expected = int(shard["nsamples"])

    def add(builder: IndexBuilder, content: memoryview) -> None:
        before = len(builder)
        source.add(builder, content)
        if len(builder) - before != expected:
            raise invalid("%s: it has %d samples, and %s says %d: write one of them again"
                          % (source.name, len(builder) - before, path, expected))

    return source._replace(add=add)


def _mds_shard(path: str, shard: mds.MdsShard, folder: str) -> Source:
    piece = Piece(os.path.join(path, shard.file), shard.length, shard.compression, folder)
    return Source(shard.name, [piece], lambda builder, content: mds.add_shard(builder, shard, content))


def _pack(files: list[tuple[str, str]], folder: str) -> Iterator[Source]:
    """Pack plain files into shards, which have the names of their first files."""
    _warn_of_containers([path for path, _ in files])
    packed: list[tuple[str, Piece]] = []
    length = 0
    for path, name in files:
        # As one sample it would be of no use.
        if _COMPRESSED_ARCHIVE.fullmatch(name):
            raise invalid("%s: the samples of a compressed archive cannot be read one by one: decompress it, or "
                          "move it away" % path)
        piece = Piece(path, os.path.getsize(path), folder=folder)
        if packed and length + piece.length > _PACK_BYTES:
            yield _packed(packed)
            packed, length = [], 0
        packed.append((name, piece))
        length += _aligned(piece.length)
    if packed:
        yield _packed(packed)


def _warn_of_containers(paths: list[str]) -> None:
    found: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    for path in paths:
        if kind := _CONTAINERS.get(os.path.splitext(path)[1].lower()):
            found[kind].append(path)
    for kind, files in found.items():
        _LOG.warning("%s%s: the format %s is not read: each file is served as one sample", printable(files[0]),
                     " and %d more" % (len(files) - 1) if len(files) > 1 else "", kind)


def _packed(files: list[tuple[str, Piece]]) -> Source:
    def add(builder: IndexBuilder, content: memoryview) -> None:
        builder.add_shard(files[0][0], len(content))
        position = 0
        for name, piece in files:
            builder.add_sample(name, position, piece.length, [("data", Field(0, piece.length, ""))])
            position += _aligned(piece.length)

    return Source(files[0][0], [piece for _, piece in files], add)


def _aligned(length: int) -> int:
    return (length + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _read_piece(piece: Piece, memory: memoryview) -> None:
    with piece.open() as raw, contextlib.closing(_decompress(piece, raw)) as file:
        position = 0
        try:
            while position < len(memory) and (count := file.readinto(memory[position:])):
                position += count
            more = file.read(1)
        except Exception as error:
            # Each decompressor has exceptions of its own. Those of the file have an errno.
            if not piece.compression or isinstance(error, OSError) and error.errno:
                raise
            raise invalid("%s: malformed: %s: copy it again" % (piece.path, error)) from None
    if position < len(memory) or more:
        raise invalid("%s: it has %s bytes instead of %d: copy it again, and do not change it while it is read"
                      % (piece.path, "more" if more else position, len(memory)))


def _decompress(piece: Piece, raw: io.FileIO) -> io.BufferedIOBase:
    if not piece.compression:
        return cast(io.BufferedIOBase, raw)
    if piece.compression == "gz":
        return cast(io.BufferedIOBase, gzip.open(raw))
    if piece.compression == "bz2":
        return cast(io.BufferedIOBase, bz2.open(raw))
    # The first is part of Python 3.14 (PEP 784), the others are packages of PyPI.
    for module in ("compression.zstd", "zstandard") if piece.compression == "zstd" else ():
        try:
            return cast(io.BufferedIOBase, importlib.import_module(module).open(raw))
        except ImportError:
            continue
    raise NotSupported(errno.EOPNOTSUPP, "%s: %s" % (printable(piece.path), "install the package zstandard to read it"
                       if piece.compression == "zstd" else "compression %r is not supported: decompress it, or write "
                       "the data set with zstd" % piece.compression))

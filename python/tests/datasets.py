# SPDX-License-Identifier: BSD-3-Clause
"""Data sets for tests, written from the descriptions of their formats."""

import io
import json
import struct
import tarfile


def tar_bytes(files, archive_format=tarfile.GNU_FORMAT, end=True):
    """An archive of (name, contents or TarInfo) pairs."""
    stream = io.BytesIO()
    archive = tarfile.open(fileobj=stream, mode="w", format=archive_format)
    for name, contents in files:
        member = contents if isinstance(contents, tarfile.TarInfo) else tarfile.TarInfo(name)
        if member is not contents:
            member.size = len(contents)
        archive.addfile(member, io.BytesIO(contents) if member is not contents else None)
    if end:
        archive.close()
    return stream.getvalue()


def samples(random, count, size=1000):
    """Files of a WebDataset archive: a .bin of about a size, and a .cls."""
    files = []
    for number in range(count):
        files.append(("%06d.bin" % number, random.randbytes(random.randrange(1, 2 * size))))
        files.append(("%06d.cls" % number, b"%d" % (number % 10)))
    return files


def wds2idx(archive_path, index_path):
    """The index that tools/wds2idx.py of DALI writes: "v1.2", and "EXTENSION OFFSET SIZE NAME" of each file."""
    groups = []
    with tarfile.open(archive_path) as archive:
        for member in archive:
            base, _, extension = member.name.partition(".")
            if not groups or groups[-1][0] != base:
                groups.append((base, []))
            groups[-1][1].append("%s %d %d %s" % (extension, member.offset_data, member.size, member.name))
    with open(index_path, "w") as file:
        file.write("v1.2 %d\n" % len(groups))
        file.writelines(" ".join(words) + "\n" for _, words in groups)


def mds_shard(columns, rows):
    """A shard (streaming/base/format/mds/writer.py).

    columns: (name, encoding, size or None); rows: lists of bytes
    """
    bodies = []
    for row in rows:
        sizes = [len(cell) for cell, (_, _, size) in zip(row, columns) if size is None]
        bodies.append(struct.pack("<%dI" % len(sizes), *sizes) + b"".join(row))
    config = json.dumps({"version": 2}).encode()
    offset = 4 * (len(rows) + 2) + len(config)
    offsets = [offset]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    return struct.pack("<%dI" % (len(rows) + 2), len(rows), *offsets) + config + b"".join(bodies)


def write_mds(folder, columns, shards, compression=None, compress=None):
    """A data set of shards, lists of rows."""
    described = []
    for number, rows in enumerate(shards):
        content = mds_shard(columns, rows)
        name = "shard.%05d.mds" % number
        packed = None
        if compress:
            extension = compression.partition(":")[0]
            (folder / (name + "." + extension)).write_bytes(compress(content))
            packed = {"basename": name + "." + extension, "bytes": len(compress(content)), "hashes": {}}
        else:
            (folder / name).write_bytes(content)
        described.append({
            "format": "mds", "version": 2, "samples": len(rows), "compression": compression, "hashes": [],
            "column_names": [c[0] for c in columns], "column_encodings": [c[1] for c in columns],
            "column_sizes": [c[2] for c in columns], "size_limit": 1 << 26,
            "raw_data": {"basename": name, "bytes": len(content), "hashes": {}}, "zip_data": packed})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": described}))

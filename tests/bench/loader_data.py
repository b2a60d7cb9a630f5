# SPDX-License-Identifier: BSD-3-Clause
"""The dataset of the loader's benchmark, and the check of what arrives.

Each sample is another part of one random block, so each byte of it can be compared without the file,
and without a second copy of the dataset in the caches.
"""
import ctypes
import io
import json
import pathlib
import random
import tarfile

SAMPLES, SHARDS = 3840, 4
SHORTEST, LONGEST = 84 << 10, 140 << 10  # 112 KiB on average
PATTERN_BYTES = 256 << 10

memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def make_pattern():
    return random.Random(18).randbytes(PATTERN_BYTES)


def sample_shape(number):
    """(length, offset in the pattern) of a sample; each has an offset of its own."""
    step = (PATTERN_BYTES - LONGEST) // SAMPLES
    return random.Random(number).randint(SHORTEST, LONGEST), number * step


def make_dataset(folder):
    """Shards of WebDataset, SAMPLES in all, and ranges.json: [shard, offset, length] of each."""
    folder = pathlib.Path(folder)
    pattern, ranges = make_pattern(), []
    for shard in range(SHARDS):
        path = folder / f"shard-{shard:06}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(shard * SAMPLES // SHARDS, (shard + 1) * SAMPLES // SHARDS):
                length, start = sample_shape(number)
                member = tarfile.TarInfo(f"{number:08}.bin")
                member.size = length
                archive.addfile(member, io.BytesIO(pattern[start:start + length]))
        with tarfile.open(path) as archive:
            ranges += [(shard, member.offset_data, member.size) for member in archive]
    (folder / "ranges.json").write_text(json.dumps(ranges))


def load_ranges(folder):
    return json.loads((pathlib.Path(folder) / "ranges.json").read_text())


def shard_paths(folder):
    return sorted(str(path) for path in pathlib.Path(folder).glob("*.tar"))


def make_order(seed, batch):
    """The numbers of all samples in random order, in lists of `batch`."""
    order = list(range(SAMPLES))
    random.Random(seed).shuffle(order)
    return [order[i:i + batch] for i in range(0, SAMPLES, batch)]


class Checker:
    """Compares every byte of samples."""

    def __init__(self):
        self.pattern = ctypes.create_string_buffer(make_pattern(), PATTERN_BYTES)
        address = ctypes.addressof(self.pattern)
        self.expected = [(address + start, length)
                         for length, start in map(sample_shape, range(SAMPLES))]

    def check(self, number, address):
        if memcmp(address, *self.expected[number]):
            raise SystemExit(f"sample {number} arrived with wrong bytes")

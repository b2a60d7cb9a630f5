#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier.data: what is found in paths, and how it is indexed."""

import bz2
import ctypes
import gzip
import importlib.util
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
import unittest.mock

import datasets
import pier
from pier import _pier
from pier.data import decode, formats, tar

SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pier-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = random.Random(SEED)

    def load(self, *paths, **options):
        """The index of paths, and what their shards contain."""
        sources = formats.find_sources([str(path) for path in paths], **options)
        contents = [memoryview(bytearray(source.length)) for source in sources]
        for source, content in zip(sources, contents):
            source.load(content)
        self.contents = contents
        return formats.build_index(sources, contents)

    def sample(self, index, number):
        """The fields of a sample, read as a client reads them."""
        shard, offset, length = index.table[3 * number:3 * number + 3]
        content = bytes(self.contents[shard][offset:offset + length])
        return {name: content[f.offset:f.offset + f.length] for name, f in index.fields(number).items()}

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def refused(self, pattern, *paths):
        with self.assertRaisesRegex(pier.Invalid, pattern):
            self.load(*paths)


class Outside(Case):
    """Links and names that lead out of what is served."""

    def setUp(self):
        super().setUp()
        self.secret = self.write("home/secret", b"private key")
        self.served = self.folder / "served"
        self.served.mkdir()

    def check(self, path):
        self.refused("leads out of .*/served, to .*/home/.*--allow-outside", path)
        index = self.load(path, allow_outside=True)
        self.assertEqual(len(index), 1)
        return self.sample(index, 0)

    def test_links_in_a_folder_of_files(self):
        for target in (self.secret, "../home/secret"):
            (self.served / "link").symlink_to(target)
            self.assertEqual(self.check(self.served), {"data": b"private key"})
            (self.served / "link").unlink()

    def test_links_that_stay_inside_are_followed(self):
        self.write("served/sub/.hidden", b"inside")
        (self.served / "link").symlink_to("sub/.hidden")
        self.assertEqual(self.sample(self.load(self.served), 0), {"data": b"inside"})
        # What the user names may be a link itself.
        (self.folder / "alias").symlink_to(self.served)
        self.assertEqual(self.sample(self.load(self.folder / "alias"), 0), {"data": b"inside"})
        (self.folder / "file").symlink_to(self.secret)
        self.assertEqual(self.sample(self.load(self.folder / "file"), 0), {"data": b"private key"})

    def test_a_folder_whose_name_begins_alike_is_outside(self):
        other = self.write("served2/secret", b"x")
        (self.served / "link").symlink_to(other)
        self.refused("leads out", self.served)

    def test_links_to_archives_and_shards(self):
        archive = self.write("home/a.tar", datasets.tar_bytes([("a.bin", b"1")]))
        (self.served / "a.tar").symlink_to(archive)
        self.assertEqual(self.check(self.served), {"bin": b"1"})
        (self.served / "a.tar").unlink()
        datasets.write_mds(self.served, COLUMNS, [rows(self.random, 1)])
        shard = self.served / "shard.00000.mds"
        shard.rename(self.folder / "home/shard")
        shard.symlink_to("../home/shard")
        self.check(self.served)

    def test_link_to_a_folder_in_the_name_of_a_shard(self):
        datasets.write_mds(self.served, COLUMNS, [rows(self.random, 1)])
        (self.served / "shard.00000.mds").rename(self.folder / "home/shard.00000.mds")
        (self.served / "sub").symlink_to("../home")
        index = self.served / "index.json"
        index.write_text(index.read_text().replace("shard.00000.mds", "sub/shard.00000.mds"))
        self.check(self.served)

    def test_names_in_a_list_of_archives(self):
        archive = self.write("home/a.tar", datasets.tar_bytes([("a.bin", b"1")]))
        for url in (str(archive), "../home/a.tar", "../" * 20 + str(archive)):
            path = self.write("served/list.json", json.dumps(
                {"wids_version": 1, "shardlist": [{"url": url, "nsamples": 1}]}).encode())
            self.assertEqual(self.check(path), {"bin": b"1"})

    def test_link_that_changes_after_the_look(self):
        """What was opened is what is checked."""
        path = self.write("served/file", b"harmless...")
        source, = formats.find_sources([str(self.served)])
        path.unlink()
        path.symlink_to(self.secret)
        with self.assertRaisesRegex(pier.Invalid, "leads out"):
            source.load(memoryview(bytearray(source.length)))
        with self.assertRaisesRegex(pier.Invalid, "leads out"):
            source.file.open()

    def test_what_is_no_file_is_not_opened(self):
        path = self.write("served/file", b"x")
        source, = formats.find_sources([str(self.served)])
        path.unlink()
        os.mkfifo(path)
        with self.assertRaisesRegex(pier.Invalid, "no file"):
            source.load(memoryview(bytearray(1)))


class Names(Case):
    """Names of files of hostile authors."""

    EVIL = "\x1b]0;owned\x07\r\nERROR:root:forged"

    def test_control_characters_are_escaped_in_sentences_and_logs(self):
        evil = self.EVIL
        two = datasets.tar_bytes([(evil + "/a.jpg", b"1"), (evil + "/a.JPG", b"2")])
        for name, content in ((evil + ".tar", b"junk" * 200), (evil + ".tar", two), (evil + ".tgz", b""),
                              ("index.json", json.dumps({"shards": [{"format": evil, "version": 2}]}).encode()),
                              ("index.json", json.dumps({"shards": [{evil: 1}]}).encode())):
            path = self.write(name, content)
            with self.subTest(name=name, content=content[:10]), self.assertRaises(pier.Error) as caught:
                self.load(self.folder)
            self.assertTrue(str(caught.exception).isprintable(), caught.exception)
            path.unlink()
        info = tarfile.TarInfo(evil)
        info.type = tarfile.FIFOTYPE
        self.write(evil + ".tar", datasets.tar_bytes([("", info)])).rename(self.folder / (evil + "2.tar"))
        with self.assertLogs("pier.data") as logs:
            self.load(self.folder)
        self.assertTrue(all(line.isprintable() for line in logs.output), logs.output)
        with self.assertRaises(pier.Error) as caught:
            decode(evil, b"")
        self.assertTrue(str(caught.exception).isprintable())

    def test_keys_are_those_of_webdataset(self):
        pattern = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
        names = ["".join(self.random.choices("a./\n", k=self.random.randrange(12))) for _ in range(20000)]
        for name in names:
            dot, match = tar._extension_at(name), pattern.fullmatch(name)
            found = (name[:dot], name[dot + 1:]) if dot >= 0 else None
            self.assertEqual(found, match.groups() if match else None, name)

    def test_time_grows_with_the_length_of_names_and_headers(self):
        """Quadratic, each took hours."""
        for name in ("a/" * 500000 + "a", "a." * 500000, "/" * 1000000 + "."):
            self.load(self.write("a.tar", datasets.tar_bytes([(name, b"1"), ("b.bin", b"2")])))
        records = b"5 a=\n" * 200000
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, len(records)
        header = info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)
        self.load(self.write("a.tar", header * 2 + datasets.tar_bytes([("a.bin", b"1")])))
        # Of a header for all members, only what matters is kept.
        headers = tar._Headers("a.tar", memoryview(b""))
        self.assertEqual(headers._records(b"13 path=name\n" + b"5 a=\n" * 10), {b"path": b"name"})


def checked(header):
    """The header of an archive with its checksum."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return header


def before_a_hole(content):
    """A copy that ends with a page; the one behind it cannot be read."""
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    pages[page - len(content):page] = content
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), page, 0):
        raise OSError("mprotect")
    return memoryview(pages)[page - len(content):page]


class Tar(Case):
    def archive(self, files, name="a.tar", **options):
        return self.write(name, datasets.tar_bytes(files, **options))

    def check_samples(self, index, files):
        expected = {}
        for name, contents in files:
            key, _, extension = name.partition(".")
            expected.setdefault(key, {})[extension] = contents
        self.assertEqual([index.key(n) for n in range(len(index))], list(expected))
        for number, fields in enumerate(expected.values()):
            self.assertEqual(self.sample(index, number), fields)

    def test_no_header_is_read_out_of_the_archive(self):
        archive = memoryview(datasets.tar_bytes([("a.bin", b"1"), ("b.bin", bytes(700))], end=False))
        files = [("a.bin", 512, 1), ("b.bin", 1536, 700)]
        self.assertEqual(_pier._tar_files(archive, 0), (files, 2560))
        for length, count in ((2559, 1), (1537, 1), (1535, 1), (1023, 0), (511, 0), (0, 0)):
            found, end = _pier._tar_files(before_a_hole(bytes(archive[:length])), 0)
            self.assertEqual((found, end), (files[:count], 1024 * count))
        # The kind of the second one is there, and the end of its checksum is not.
        self.assertRaises(ValueError, _pier._tar_header, before_a_hole(bytes(archive[:1535])), 1024)
        self.assertEqual(_pier._tar_files(archive, 2560), ([], 2560))
        for offset in (-1, 2561, 1 << 62):
            self.assertRaises(ValueError, _pier._tar_files, archive, offset)
            self.assertRaises(ValueError, _pier._tar_header, archive, offset)
        self.assertRaises(ValueError, _pier._tar_header, archive, 2049)

    def test_one_call_reads_a_thousand_files(self):
        archive = datasets.tar_bytes([("%d.bin" % number, b"") for number in range(1025)])
        found, end = _pier._tar_files(archive, 0)
        self.assertEqual((len(found), end), (1024, 1024 * 512))
        self.assertEqual(_pier._tar_files(archive, end), ([("1024.bin", 1025 * 512, 0)], 1025 * 512))

    def test_full_fields_and_a_wrong_checksum(self):
        """The name is 100 bytes, and its prefix 155."""
        header = bytearray(datasets.tar_bytes([("a.bin", b"1")], archive_format=tarfile.USTAR_FORMAT)[:512])
        header[:100] = b"n" * 100
        header[345:512] = b"p" * 155 + b"x" * 12
        self.assertEqual(_pier._tar_header(checked(header), 0), (b"0", 1, b"p" * 155 + b"/" + b"n" * 100))
        # The checksum is no longer right.
        header[50] += 1
        self.assertIsNone(_pier._tar_header(header, 0))
        self.assertEqual(_pier._tar_files(header, 0), ([], 0))

    def test_sizes_in_base_256(self):
        header = bytearray(datasets.tar_bytes([("a.bin", b"1")])[:512])
        for field, size in ((b"\x80" + (1 << 40).to_bytes(11, "big"), 1 << 40), (b"\xff" * 12, None),
                            (b"\x80" + b"\xff" * 11, None), (b"\x80" + (1 << 63).to_bytes(11, "big"), None),
                            (b"\x80" + ((1 << 63) - 1).to_bytes(11, "big"), (1 << 63) - 1),
                            (b"\x80" + ((1 << 64) + 5).to_bytes(11, "big"), None),
                            (b"\xff" + bytes(10) + b"\5", None), (b"\x81" + bytes(10) + b"\5", None),
                            (b"00000000009\0", None), (b"   17 \0 9999", 15), (bytes(12), 0)):
            header[124:136] = field
            found = _pier._tar_header(checked(header), 0)
            self.assertEqual(found and found[1], size, field)

    def test_headers_give_samples_in_every_format(self):
        files = datasets.samples(self.random, 40)
        files += [("folder/" * 30 + "x" * 120 + ".jpg", b"long name"), ("a/" + "y" * 90 + "/z.jpg", b"prefix")]
        files += [("\u00e4.txt", b"not ASCII"), ("empty.txt", b"")]
        for archive_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            with self.subTest(archive_format):
                self.check_samples(self.load(self.archive(files, archive_format=archive_format)), files)
        del files[40 * 2]
        with self.subTest("ustar"):
            self.check_samples(self.load(self.archive(files, archive_format=tarfile.USTAR_FORMAT)), files)

    def test_archive_of_tar_program_is_read(self):
        for name, contents in datasets.samples(self.random, 5):
            self.write("in/" + name, contents)
        for name in ("gnu", "pax", "ustar", "v7", "oldgnu"):
            subprocess.run(["tar", "--format=" + name, "--sort=name", "-C", self.folder / "in", "-cf",
                            self.folder / "a.tar", "."], check=True)
            index = self.load(self.folder / "a.tar")
            self.assertEqual([index.key(n) for n in range(len(index))], ["./%06d" % n for n in range(5)])
            for n in range(5):
                self.assertEqual(self.sample(index, n)["bin"], (self.folder / ("in/%06d.bin" % n)).read_bytes())

    def test_times_in_place_of_a_prefix_are_no_name(self):
        # GNU tar stores them in incremental archives.
        self.write("in/a.bin", b"1")
        subprocess.run(["tar", "--format=gnu", "--listed-incremental=%s/list" % self.folder, "-C", self.folder / "in",
                        "-cf", self.folder / "a.tar", "."], check=True)
        self.assertEqual(self.load(self.folder / "a.tar").key(0), "./a")

    def test_samples_follow_the_rules_of_webdataset(self):
        files = [("a.JPG", b"1"), ("a.seg.png", b"2"), ("b.jpg", b"3"), ("a.txt", b"4"), ("README", b"5"),
                 (".hidden", b"6"), ("__meta__", b"7"), ("__x__/c.jpg", b"8"), ("d.x/e.jpg", b"9")]
        index = self.load(self.archive(files))
        found = [(index.key(n), self.sample(index, n)) for n in range(len(index))]
        self.assertEqual(found, [("a", {"jpg": b"1", "seg.png": b"2"}), ("b", {"jpg": b"3"}), ("a", {"txt": b"4"}),
                                 ("d.x/e", {"jpg": b"9"})])

    def test_archive_without_samples_is_served_with_a_warning(self):
        for files in ([], [("README", b"1"), ("__meta__/a.txt", b"2")]):
            with self.assertLogs("pier.data", "WARNING") as logs:
                self.assertEqual(len(self.load(self.archive(files))), 0)
            self.assertIn("a.tar: it has no samples", logs.output[0])

    def test_two_files_with_one_extension_are_refused(self):
        self.refused("'a' has two files with one extension", self.archive([("a.jpg", b"1"), ("a.JPG", b"2")]))

    def test_index_of_dali_is_used(self):
        files = datasets.samples(self.random, 30)
        path = self.archive(files, "data.v2.tar")
        for name in ("data.v2.idx", "data.idx"):
            datasets.wds2idx(path, self.folder / name)
            self.check_samples(self.load(path), files)
            # A shorter index shows that it is the index that was read.
            lines = (self.folder / name).read_text().splitlines(True)
            (self.folder / name).write_text("v1.2 10\n" + "".join(lines[1:11]))
            self.check_samples(self.load(path), files[:20])
            (self.folder / name).unlink()

    def test_index_without_names_is_not_needed(self):
        files = datasets.samples(self.random, 3)
        path = self.archive(files)
        (self.folder / "a.idx").write_text("v1.1 1\nbin 512 5\n")
        self.check_samples(self.load(path), files)

    def test_index_that_does_not_fit_is_refused(self):
        path = self.archive(datasets.samples(self.random, 3))
        datasets.wds2idx(path, self.folder / "a.idx")
        lines = (self.folder / "a.idx").read_text().splitlines(True)
        first = lines[1].split()

        def refused(pattern, *changed):
            (self.folder / "a.idx").write_text("".join(changed))
            self.refused(pattern, path)

        refused("first line is not", "v1.3 3\n", *lines[1:])
        refused("first line is not", "v1.2 x\n", *lines[1:])
        refused("first line is not")
        refused("it has 2 samples, and its first line says 3", *lines[:3])
        refused("line 2 is not a list", lines[0], "bin 512 5\n")
        refused("line 3 is not a list", *lines[:2], "\n")
        for changes in (("512", "1024"), ("512", "513"), ("512", "0"), ("512", "99999999999"), ("512", "-512"),
                        (first[2], str(int(first[2]) + 1)), (first[2], "x")):
            refused("line 2: a.tar has no file of", lines[0], lines[1].replace(*changes, 1))

    def test_other_members_are_left_out_with_a_reason(self):
        def member(name, kind, target=""):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            return (name, info)

        files = [("a.jpg", b"1"), member("folder", tarfile.DIRTYPE), member("b.jpg", tarfile.SYMTYPE, "a.jpg"),
                 member("c.jpg", tarfile.LNKTYPE, "a.jpg"), member("d.jpg", tarfile.FIFOTYPE), ("e.jpg", b"2")]
        with self.assertLogs("pier.data", "WARNING") as log:
            self.check_samples(self.load(self.archive(files)), [files[0], files[-1]])
        self.assertEqual([line.split("'")[1] for line in log.output], ["b.jpg", "c.jpg", "d.jpg"])

    def test_sparse_members_are_refused(self):
        with open(self.folder / "holes.bin", "wb") as file:
            file.truncate(1 << 20)
            file.seek(1 << 19)
            file.write(b"x")
        for options in (["--format=gnu"], ["--format=pax"], ["--format=pax", "--sparse-version=0.1"]):
            subprocess.run(["tar", "--sparse", *options, "-C", self.folder, "-cf", self.folder / "a.tar",
                            "holes.bin"], check=True)
            self.refused("is sparse", self.folder / "a.tar")

    def test_truncated_archive_is_refused(self):
        content = datasets.tar_bytes([("a.bin", bytes(1000)), ("b.bin", bytes(10))], end=False)
        for length in (512 + 999, 512 + 1000, 512 + 1023, 512 + 1024 + 100, 512 + 1024 + 512 + 5):
            self.refused("is truncated|ends in the header", self.write("a.tar", content[:length]))
        self.assertEqual(len(self.load(self.write("a.tar", content[:512 + 1024]))), 1)

    def test_compressed_archive_is_refused(self):
        content = datasets.tar_bytes(datasets.samples(self.random, 4))
        self.refused("not a compressed one", self.write("a.tar", gzip.compress(content)))
        (self.folder / "a.tar").unlink()
        for name in ("a.tar.gz", "b.tgz", "c.TAR.ZST"):
            path = self.write(name, gzip.compress(content))
            self.refused("decompress it", path)
            self.refused("decompress it", self.folder)
            path.unlink()

    def test_damaged_headers_never_harm(self):
        content = bytearray(datasets.tar_bytes(datasets.samples(self.random, 4), tarfile.PAX_FORMAT))
        for _ in range(1000):
            position = self.random.randrange(len(content))
            old = content[position]
            content[position] = self.random.randrange(256)
            # Every second damage has the right checksum.
            start = position // 512 * 512
            saved = content[start + 148:start + 156]
            if self.random.random() < .5:
                total = sum(content[start:start + 512]) - sum(saved) + 256
                content[start + 148:start + 156] = b"%06o\0 " % total
            path = self.write("a.tar", content)
            try:
                self.load(path)
            except pier.Invalid:
                pass
            content[start + 148:start + 156] = saved
            content[position] = old

    def test_malformed_pax_headers_are_refused(self):
        good = b"9 a=bcde\n"
        for records, pattern in ((b"5 ab\n", "malformed"), (b"99 a=b\n", "malformed"), (b"-9 a=bcde\n", "malformed"),
                                 (b"9a=bcdef\n", "malformed"), (b"0 a=b\n", "malformed"), (b"1 a=b\n", "malformed"),
                                 (good + b"14 size=1e100\n", "no number"), (good + b"11 size=-1\n", "no number"),
                                 (b"28 size=9999999999999999999\n", "truncated")):
            info = tarfile.TarInfo("pax")
            info.type, info.size = tarfile.XHDTYPE, len(records)
            padded = records + bytes(-len(records) % 512)
            content = info.tobuf(tarfile.USTAR_FORMAT) + padded + datasets.tar_bytes([("a.bin", b"1")])
            with self.subTest(records):
                self.refused(pattern, self.write("a.tar", content))

    def test_archives_of_a_folder_are_served_in_order(self):
        for number in (2, 0, 1):
            self.archive([("%d.bin" % number, b"x" * number)], "s-%d.tar" % number)
        self.write("notes.txt", b"not served")
        index = self.load(self.folder)
        self.assertEqual([shard.name for shard in index.shards], ["s-0.tar", "s-1.tar", "s-2.tar"])
        self.assertEqual([index.key(n) for n in range(3)], ["0", "1", "2"])
        self.assertEqual(list(index.table[0::3]), [0, 1, 2])
        (self.folder / "sub").mkdir()
        shutil.copy(self.folder / "s-0.tar", self.folder / "sub")
        self.refused("two shards have the name", self.folder / "s-0.tar", self.folder / "sub")

    def test_list_of_wids_is_read(self):
        self.archive(datasets.samples(self.random, 3), "x/s-0.tar")
        self.archive(datasets.samples(self.random, 4), "x/s-1.tar")
        shards = [{"url": "s-1.tar", "nsamples": 4}, {"url": "s-0.tar", "nsamples": 3}]

        def write(**content):
            return self.write("index.wids.json", json.dumps({"wids_version": 1, **content}).encode())

        index = self.load(write(shardlist=shards, base="x"))
        self.assertEqual([shard.name for shard in index.shards], ["s-1.tar", "s-0.tar"])
        self.assertEqual(len(index), 7)
        shards[0]["nsamples"] = 5
        self.refused("it has 4 samples, and .* says 5", write(shardlist=shards, base="x"))
        self.refused("malformed", write())
        self.refused("http://a/s-0.tar is not a file", write(shardlist=[{"url": "http://a/s-0.tar", "nsamples": 1}]))


def reference_writer(case):
    """NumPy and MDSWriter of mosaicml-streaming, without what it imports and does not need here (PyTorch...)."""
    try:
        import numpy
    except ImportError:
        case.skipTest("NumPy is not installed")
    spec = importlib.util.find_spec("streaming")
    if not spec or not (pathlib.Path(spec.origin).parent / "base/format/mds/writer.py").exists():
        case.skipTest("mosaicml-streaming is not installed")
    patch = unittest.mock.patch.dict(sys.modules)
    patch.start()
    case.addCleanup(patch.stop)
    for name in ("streaming", "streaming.base", "streaming.base.format", "streaming.base.format.base",
                 "streaming.base.format.mds"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(pathlib.Path(spec.origin).parents[1] / name.replace(".", "/"))]
    for _ in range(30):
        try:
            return numpy, importlib.import_module("streaming.base.format.mds.writer").MDSWriter
        except ModuleNotFoundError as error:
            sys.modules[error.name] = unittest.mock.MagicMock()
    raise AssertionError("mosaicml-streaming cannot be imported")


COLUMNS = [("image", "jpeg", None), ("label", "int", 8), ("text", "str", None)]


def rows(random, count):
    return [[random.randbytes(random.randrange(2000)), struct.pack("<q", n), ("text %d" % n).encode()]
            for n in range(count)]


class Mds(Case):
    def test_columns_are_fields(self):
        shards = [rows(self.random, 7), rows(self.random, 1), rows(self.random, 12)]
        datasets.write_mds(self.folder, COLUMNS, shards)
        index = self.load(self.folder)
        self.assertEqual(len(index), 20)
        self.assertEqual([shard.name for shard in index.shards], ["shard.%05d.mds" % n for n in range(3)])
        for number, row in enumerate([row for shard in shards for row in shard]):
            self.assertEqual(self.sample(index, number), dict(zip(("image", "label", "text"), row)))
            self.assertEqual([field.encoding for field in index.fields(number).values()], ["jpeg", "int", "str"])
            self.assertEqual(index.key(number), "")

    def test_shards_of_mosaicml_streaming_are_read(self):
        numpy, writer = reference_writer(self)
        columns = {"number": "int", "values": "ndarray:int16", "raw": "bytes", "any": "ndarray", "about": "json"}
        expected = [{"number": n, "values": numpy.arange(n + 1, dtype="int16"), "raw": self.random.randbytes(n),
                     "any": numpy.ones((n + 1, 300), "float32"), "about": {"n": n}} for n in range(20)]
        with writer(columns=columns, out=str(self.folder / "out"), size_limit=100000) as out:
            for sample in expected:
                out.write(sample)
        index = self.load(self.folder / "out")
        self.assertGreater(len(index.shards), 1)
        for number, sample in enumerate(expected):
            fields = self.sample(index, number)
            self.assertEqual(set(fields), set(columns))
            for name, field in index.fields(number).items():
                numpy.testing.assert_array_equal(decode(field.encoding, fields[name]), sample[name])

    def test_compressed_shards_are_decompressed(self):
        shards = [rows(self.random, 5)]
        methods = {"gz": gzip.compress, "bz2:9": bz2.compress}
        try:
            import zstandard
            methods["zstd:3"] = zstandard.compress
        except ImportError:
            print("# zstd is not tested: no package zstandard")
        for name, compress in methods.items():
            with self.subTest(name):
                datasets.write_mds(self.folder, COLUMNS, shards, name, compress)
                index = self.load(self.folder)
                self.assertEqual(self.sample(index, 4), dict(zip(("image", "label", "text"), shards[0][4])))
                packed = next(self.folder.glob("*.mds.*"))
                content = packed.read_bytes()
                packed.write_bytes(content[:len(content) // 2])
                self.refused("malformed|instead of", self.folder)
                packed.write_bytes(bytes(100))
                self.refused("malformed|instead of", self.folder)
                packed.write_bytes(compress(gzip.decompress(gzip.compress(bytes(1 << 20)))))
                self.refused("more bytes", self.folder)
                packed.unlink()

    def test_other_compressions_are_refused(self):
        datasets.write_mds(self.folder, COLUMNS, [rows(self.random, 1)], "br", gzip.compress)
        with self.assertRaisesRegex(pier.NotSupported, "compression 'br' is not supported"):
            self.load(self.folder)

    def test_decompressed_shard_is_preferred(self):
        datasets.write_mds(self.folder, COLUMNS, [rows(self.random, 2)], "br", gzip.compress)
        packed = next(self.folder.glob("*.mds.br"))
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        self.assertEqual(len(self.load(self.folder)), 2)

    def test_malformed_index_is_refused(self):
        datasets.write_mds(self.folder, COLUMNS, [rows(self.random, 2)])
        good = json.loads((self.folder / "index.json").read_text())

        def refused(pattern, change):
            content = json.loads(json.dumps(good))
            change(content["shards"][0])
            (self.folder / "index.json").write_text(json.dumps(content))
            self.refused(pattern, self.folder)

        refused("'samples' is missing", lambda shard: shard.pop("samples"))
        refused("malformed", lambda shard: shard.pop("raw_data"))
        refused("only version 2", lambda shard: shard.update(version=3))
        refused("only version 2", lambda shard: shard.update(format="json"))
        refused("leads out", lambda shard: shard["raw_data"].update(basename="../x.mds"))
        refused("leads out", lambda shard: shard["raw_data"].update(basename="/etc/passwd"))
        refused("malformed", lambda shard: shard["column_names"].pop())
        refused("negative", lambda shard: shard.update(column_sizes=[-1, 8, None]))
        refused("malformed", lambda shard: shard.update(column_sizes="xyz"))
        refused("has 2 samples, and index.json says 3", lambda shard: shard.update(samples=3))
        refused("too few for", lambda shard: shard.update(samples=1 << 40))
        refused("too few for", lambda shard: shard.update(samples=-1))
        for number in (float("inf"), float("nan"), -1, 1 << 60, 10 ** 4000):
            refused("malformed", lambda shard, number=number: shard["raw_data"].update(bytes=number))
        refused("malformed", lambda shard: shard.update(samples=float("inf")))
        refused("malformed", lambda shard: shard.update(column_sizes=[float("inf"), 8, None]))
        for name in ("a\0b", "\ud800"):
            refused("malformed", lambda shard, name=name: shard["raw_data"].update(basename=name))
        refused("instead of", lambda shard: shard["raw_data"].update(bytes=10))
        refused("instead of", lambda shard: shard["raw_data"].update(bytes=1 << 20))
        for text in ("", "[]", "{}", "{\"shards\": 1}", "{\"shards\": [1]}", "[" * 100000, "\xff"):
            (self.folder / "index.json").write_text(text)
            self.refused("malformed", self.folder)

    def test_sizes_that_the_files_do_not_have_take_no_memory(self):
        """Neither a size that index.json invents nor a few bytes that decompress to gigabytes."""
        head = struct.pack("<II", 0, 8)
        described = {"format": "mds", "version": 2, "column_names": [], "column_encodings": [], "column_sizes": [],
                     "raw_data": {"basename": "s.mds", "bytes": 1 << 30}, "samples": 0}
        self.write("s.mds", head)
        self.write("index.json", json.dumps({"shards": [described]}).encode())
        with self.assertRaisesRegex(pier.Invalid, "8 bytes instead of 1073741824"):
            formats.find_sources([str(self.folder)])
        (self.folder / "s.mds").unlink()
        described.update(compression="gz", zip_data={"basename": "s.mds.gz"})
        # Many small ones are as large as one.
        for count in (1, 1000):
            described["raw_data"]["bytes"] = (1 << 30) // count
            self.write("s.mds.gz", gzip.compress(head + bytes(100000)))
            self.write("index.json", json.dumps({"shards": [described] * count}).encode())
            with self.assertRaisesRegex(pier.Invalid, "decompress them first"):
                formats.find_sources([str(self.folder)])

    def test_index_of_litdata_is_named(self):
        self.write("index.json", json.dumps({"chunks": [], "config": {}}).encode())
        with self.assertRaisesRegex(pier.NotSupported, "LitData"):
            self.load(self.folder)

    def test_malformed_shard_is_refused(self):
        datasets.write_mds(self.folder, COLUMNS, [rows(self.random, 3)])
        shard = self.folder / "shard.00000.mds"
        good = shard.read_bytes()
        first = struct.unpack_from("<I", good, 4)[0]
        for offset, value, pattern in (
                (0, 2, "it has 2 samples"), (4, 8, "out of order"), (8, 1 << 31, "out of order"),
                (16, len(good) + 1, "out of order"), (first, 1 << 30, "exceeds the sample"),
                (8, first + 4, "too short"), (8, first, "too short")):
            content = bytearray(good)
            struct.pack_into("<I", content, offset, value)
            shard.write_bytes(content)
            with self.subTest(offset=offset, value=value):
                self.refused(pattern, self.folder)

    def test_fields_decode(self):
        self.assertEqual(decode("int", struct.pack("<q", -5)), -5)
        self.assertEqual(decode("float32", struct.pack("<f", 1.5)), 1.5)
        self.assertEqual(decode("str", memoryview("\u00e4".encode())), "\u00e4")
        self.assertEqual(decode("str_int", b"-12"), -12)
        self.assertEqual(str(decode("str_decimal", b"0.10")), "0.10")
        self.assertEqual(decode("json", b"{\"a\": [1]}"), {"a": [1]})
        image = memoryview(b"image")
        self.assertIs(decode("jpeg", image), image)
        self.assertIs(decode("", image), image)
        for encoding, data in (("int", b"1234"), ("uint8", b""), ("str", b"\xff"), ("str_int", b"x"), ("json", b"{"),
                               ("str_decimal", b"x"), ("json", b"[" * 100000)):
            with self.assertRaisesRegex(pier.Invalid, "does not fit its encoding"):
                decode(encoding, data)
        with self.assertRaisesRegex(pier.NotSupported, "can execute code"):
            decode("pkl", b"cos\nsystem\n")
        with self.assertRaisesRegex(pier.NotSupported, "is unknown"):
            decode("x", b"")

    def test_arrays_decode_without_a_copy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        values = numpy.arange(12, dtype="int16").reshape(3, 4)
        raw = values.tobytes()
        for encoding, head in (
                ("ndarray", bytes([17, 2 << 2, 3, 4])), ("ndarray:int16", bytes([2 << 2 | 1, 3, 0, 4, 0])),
                ("ndarray:int16:3,4", b"")):
            data = bytearray(head + raw)
            array = decode(encoding, data)
            numpy.testing.assert_array_equal(array, values)
            data[-1] = 99
            self.assertEqual(array[2, 3], 99 << 8 | 11)
        for encoding, data in (
                ("ndarray", b""), ("ndarray", b"\x05\x04"), ("ndarray", b"\x08"), ("ndarray", b"\x08\xff"),
                ("ndarray", b"\x08\x04\x05abc"), ("ndarray:object:1", b"12345678"), ("ndarray:int16:3,4", b"abc"),
                ("ndarray:int16:x", b"ab"), ("ndarray", b"\x09\x04\xff")):
            with self.subTest(encoding=encoding, data=data), self.assertRaises(pier.Invalid):
                decode(encoding, data)


class Files(Case):
    def test_plain_files_are_samples(self):
        contents = {"cat/1.jpg": self.random.randbytes(1000), "cat/2.jpg": b"", "dog/1.jpg": b"x", "z.bin": bytes(64)}
        for name, content in contents.items():
            self.write(name, content)
        self.write(".hidden", b"h")
        self.write(".git/config", b"h")
        index = self.load(self.folder)
        self.assertEqual([index.key(n) for n in range(len(index))], list(contents))
        self.assertEqual([self.sample(index, n)["data"] for n in range(4)], list(contents.values()))
        self.assertEqual([offset % 64 for offset in index.table[1::3]], [0] * 4)
        self.assertEqual(index.max_sample_length, 1000)

    def test_small_files_share_a_shard_and_large_ones_do_not(self):
        for number in range(3):
            with open(self.folder / str(number), "wb") as file:
                file.truncate(25 << 20)
        self.write("3", b"3")
        index = self.load(self.folder)
        self.assertEqual([shard.name for shard in index.shards], ["0", "2"])
        self.assertEqual(list(index.table[0::3]), [0, 0, 1, 1])

    def test_one_file_is_mappable(self):
        path = self.write("tokens.bin", bytes(100))
        self.assertEqual([source.file.path for source in formats.find_sources([path])], [str(path)])
        self.write("b", b"2")
        self.assertEqual([source.file for source in formats.find_sources([self.folder])], [None])

    def test_formats_that_are_not_read_are_named(self):
        for name in ("a/1.parquet", "a/2.PARQUET", "b/data-00000-of-00001.arrow", "b/state.json", "c/m.safetensors"):
            self.write(name, b"x" * 10)
        for path, pattern in (("a", "1.parquet and 1 more: the format Parquet is not read"), ("b", "format Arrow"),
                              ("c", "format safetensors"), ("c/m.safetensors", "format safetensors")):
            with self.assertLogs("pier.data", "WARNING") as logs:
                self.assertGreater(len(self.load(self.folder / path)), 0)
            self.assertEqual(len(logs.output), 1)
            self.assertRegex(logs.output[0], pattern)

    def test_empty_folder_and_file(self):
        self.refused("nothing to serve", self.folder)
        index = self.load(self.write("x", b""))
        self.assertEqual((len(index), index.max_sample_length), (1, 0))
        with self.assertRaises(FileNotFoundError):
            self.load(self.folder / "missing")

    def test_file_that_changes_is_refused(self):
        path = self.write("x", b"123")
        sources = formats.find_sources([path])
        for content in (b"12", b"1234"):
            path.write_bytes(content)
            with self.assertRaisesRegex(pier.Invalid, "do not change it"):
                sources[0].load(memoryview(bytearray(3)))


class IndexForm(Case):
    def index(self):
        self.write("a.tar", datasets.tar_bytes(datasets.samples(self.random, 10)))
        os.makedirs(self.folder / "m", exist_ok=True)
        datasets.write_mds(self.folder / "m", COLUMNS, [rows(self.random, 5)])
        return self.load(self.folder / "a.tar", self.folder / "m")

    def test_form_yields_the_same_index(self):
        index = self.index()
        copy = pier.data.Index.from_bytes(memoryview(index.to_bytes()))
        self.assertEqual(copy.shards, index.shards)
        self.assertEqual(copy.table, index.table)
        self.assertEqual(copy.digest, index.digest)
        for number in range(-15, 15):
            self.assertEqual(copy.key(number), index.key(number))
            self.assertEqual(copy.fields(number), index.fields(number))
        for number in (15, -16):
            with self.assertRaises(IndexError):
                copy.key(number)
            with self.assertRaises(IndexError):
                copy.fields(number)
        self.assertEqual(copy.max_sample_length, max(index.table[2::3]))
        with self.assertRaises(TypeError):
            copy.table[0] = 1

    def test_form_is_that_of_the_documentation(self):
        self.write("f", b"12345")
        form = self.load(self.folder / "f").to_bytes()
        expected = struct.pack("<4sHHQIIQQQ", b"PrIX", 1, 0, len(form), 1, 1, 1, 1, 6)
        expected += struct.pack("<Q", 5) + struct.pack("<3Q", 0, 0, 5) + struct.pack("<3Q", 0, 0, 5)
        expected += struct.pack("<I", 0) + struct.pack("<4I", 1, 4, 0, 1) + b"fdataf"
        self.assertEqual(form, expected)

    def test_damaged_form_is_refused_or_consistent(self):
        good = self.index().to_bytes()
        for _ in range(1500):
            content = bytearray(good)
            for _ in range(self.random.randrange(1, 4)):
                content[self.random.randrange(len(content))] = self.random.choice((0, 1, 127, 128, 255))
            if self.random.random() < .1:
                del content[self.random.randrange(len(content)):]
            try:
                index = pier.data.Index.from_bytes(content)
            except pier.BadMessage:
                continue
            for n in range(len(index)):
                shard, offset, length = index.table[3 * n:3 * n + 3]
                self.assertLessEqual(offset + length, index.shards[shard].length)
                for field in index.fields(n).values():
                    self.assertLessEqual(field.offset + field.length, length)

    def test_lengths_of_texts_must_fit(self):
        form = bytearray(self.index().to_bytes())
        texts = form.index(b"a.tar")
        # The length of the last key, in front of the texts: one of MDS, which is empty.
        self.assertEqual(struct.unpack_from("<I", form, texts - 4), (0,))
        for length in (1, 1 << 31):
            struct.pack_into("<I", form, texts - 4, length)
            with self.assertRaisesRegex(pier.BadMessage, "their lengths sum up to"):
                pier.data.Index.from_bytes(form)

    def test_counts_allocate_nothing(self):
        form = struct.pack("<4sHHQIIQQQ", b"PrIX", 1, 0, 48, 0, 0, 1 << 60, 1 << 62, 1 << 63)
        with self.assertRaisesRegex(pier.BadMessage, "its contents need"):
            pier.data.Index.from_bytes(form)
        with self.assertRaisesRegex(pier.BadMessage, "version 2 is not known"):
            pier.data.Index.from_bytes(struct.pack("<4sHHQIIQQQ", b"PrIX", 2, 0, 48, 0, 0, 0, 0, 0))


if __name__ == "__main__":
    print("# PIER_SEED=%d" % SEED)
    unittest.main()

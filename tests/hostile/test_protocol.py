#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Hand-made messages to both ends of the control connection of pier cp."""

import os
import struct
import subprocess
import sys

from harness import GREETING, MIB, PATIENCE, PIER, Case, end_process, main

REQUEST, SOURCE, KEEPALIVE, ERROR, IPC, WORDS, LIST = 1, 2, 7, 8, 10, 11, 12
SEGMENTS, KEPT, SAME = 14, 15, 18
VERIFY, TREE, DRY_RUN, PARTIAL, SKIP_SAME = 1, 16, 32, 64, 256  # flags of a request
IN_TREE, SEVERAL, CONTENTS = 2, 4, 8  # flags of a source
DIRECTORY, FILE, LINK = 1, 2, 3
SENDER, RECEIVER = 1, 2
GIB = 1 << 30
DEPTH_MAX = 4096
# Of a source: the identity, and what its copy will lack.
TAIL = bytes(16) + bytes(5 * 4)
SETTINGS = struct.Struct("<IQQIIII")
# Sends the preamble, then writes a number of frames of the client to a file.
RECORDER = """#!%s
import os, struct
def take(length):
    data = b""
    while len(data) < length:
        more = os.read(0, length - len(data))
        if not more:
            break
        data += more
    return data
os.write(1, %r)
data = take(16)
for _ in range(%d):
    header = take(8)
    data += header + take(struct.unpack("<I", header[:4])[0])
with open(%r, "wb") as file:
    file.write(data)
"""


def string(text):
    data = os.fsencode(str(text))
    return struct.pack("<H", len(data)) + data


def request(role, path, *, chunk=MIB, depth=8, device="", flags=1):
    payload = SETTINGS.pack(role, chunk, 0, depth, 1, 30000, flags) + bytes(32) \
        + string("") + string(path) + string("") + string(device)
    return struct.pack("<II", len(payload), REQUEST) + payload


def frame(kind, payload=b""):
    return struct.pack("<II", len(payload), kind) + payload


def entry(path, kind=FILE, size=0, target="", mode=0o644, sparse=0, seconds=1, nanoseconds=0,
          identity=bytes(16)):
    """A file in a list of a tree."""
    top = b"" if "/" in str(path) else identity
    return struct.pack("<IIIQQI", kind, sparse, mode, size, seconds, nanoseconds) \
        + string(path) + string(target) + top


def tree(*entries, size=0, flags=IN_TREE, name="tree"):
    """The description of a tree, and its list."""
    source = struct.pack("<QIIQI", size, flags, 0, 1, 0) + string(name) + TAIL
    return frame(SOURCE, source) + frame(LIST, b"".join(entries)) + frame(LIST)


class Puller(Case):
    def pull(self, data, status, pattern, *arguments):
        """A client asks this server for a tree."""
        program, said = self.folder / "server", self.folder / "said"
        said.write_bytes(GREETING + data)
        program.write_text("#!/bin/sh\ncat '%s'\nexec cat > /dev/null\n" % said)
        program.chmod(0o755)
        before = sorted(os.listdir(self.folder))
        result = self.run_pier("cp", "-r", "--rsh", str(program), *arguments)
        self.check_failure(result, status, pattern)
        self.assertEqual(sorted(os.listdir(self.folder)), before)


class HostileTree(Puller):
    """Lists of files that a receiver must refuse before it makes anything."""

    BAD = (
        [entry("..", DIRECTORY)], [entry(".", DIRECTORY)], [entry("", DIRECTORY)],
        [entry("/etc", DIRECTORY)], [entry("a", DIRECTORY), entry("a/../../b")],
        [entry("a", DIRECTORY), entry("a//b")], [entry("a/", DIRECTORY)],
        [entry("a", DIRECTORY), entry("a/./b")], [entry("a/b")],
        [entry("a", DIRECTORY), entry("a", DIRECTORY)], [entry("a"), entry("a")],
        [entry("a"), entry("a/b")], [entry("a", LINK, target="/etc"), entry("a/passwd")],
        [entry("a", LINK)], [entry("a", FILE, target="x")], [entry("a", DIRECTORY, target="x")],
        [entry("a", 9)], [entry("a", 0)], [entry("a", DIRECTORY, size=1)],
        [entry("a", LINK, target="x", size=1)], [entry("a", size=5)], [entry("a", mode=0o4755)],
        [entry("a", sparse=2)], [entry("a", nanoseconds=10**9)], [entry("x" * 256)],
        [entry("a", size=1 << 63)], [entry("a", size=(1 << 63) - 1), entry("b", size=1)],
        [entry("a")[:-1]], [b"\0"], [entry("a\0b")],
        # Out of order.
        [entry("b"), entry("a")], [entry("a", DIRECTORY), entry("a/c"), entry("a/b")],
        [entry("a", DIRECTORY), entry("a/b"), entry("b")],
        [entry("a", DIRECTORY), entry("b", DIRECTORY), entry("b/x"), entry("a/x")],
    )

    def push(self, data, **options):
        """Send this to a server that is restricted to a folder, and return its output."""
        place = self.folder / "place"
        place.mkdir(exist_ok=True)
        server = subprocess.Popen([PIER, "cp", "--server", "--local", "--under", str(place)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env=self.environment())
        self.addCleanup(end_process, server)
        said = server.communicate(
            GREETING + request(RECEIVER, "new", flags=VERIFY | TREE, **options) + data,
            timeout=PATIENCE)[0]
        self.assertEqual([str(p) for p in place.rglob("*")], [])
        return said

    def test_a_server_refuses_bad_lists(self):
        for entries in self.BAD:
            with self.subTest(entries):
                self.assertIn(b"invalid", self.push(tree(*entries)))

    def test_a_server_takes_a_good_list(self):
        """So the case above cannot pass because of something else."""
        good = [entry("a", DIRECTORY), entry("a/b", size=5), entry("a/c", LINK, target="/x")]
        self.assertNotIn(b"invalid", self.push(tree(*good, size=5)))

    def test_a_server_refuses_a_tree_that_was_not_announced(self):
        said = self.push(b"")
        self.assertNotIn(b"not requested", said)
        place = self.folder / "place"
        server = subprocess.run([PIER, "cp", "--server", "--local", "--under", str(place)],
                                input=GREETING + request(RECEIVER, "new") +
                                tree(entry("a", DIRECTORY)), capture_output=True, check=False,
                                env=self.environment(), timeout=PATIENCE)
        self.assertIn(b"not requested", server.stdout)

    def test_a_server_refuses_bad_lists_of_sources(self):
        for words in (frame(WORDS), frame(WORDS, b"\1"), frame(WORDS, struct.pack("<I", 3) +
                                                               string("a")),
                      frame(WORDS, struct.pack("<I", 1) + string("")),
                      frame(WORDS, (struct.pack("<I", 1) + string("a")) * 1000) * 5):
            with self.subTest(words[:30]):
                server = subprocess.run(
                    [PIER, "cp", "--server", "--local"], capture_output=True, check=False,
                    input=GREETING + request(SENDER, "x", flags=VERIFY | TREE) + words,
                    env=self.environment(), timeout=PATIENCE, cwd=self.folder)
                self.assertIn(b"invalid list of sources", server.stdout)

    def test_a_client_refuses_bad_lists(self):
        for entries in self.BAD:
            with self.subTest(entries):
                self.pull(tree(*entries), 4, "invalid", "host:a", "target")

    def test_a_client_refuses_names_that_it_did_not_ask_for(self):
        for entries in ([entry("b", DIRECTORY)], [entry("a", DIRECTORY), entry("b", DIRECTORY)],
                        [entry(".ssh", DIRECTORY), entry("a", DIRECTORY)]):
            self.pull(tree(*entries), 4, "which was not requested", "host:dir/a", ".")
        self.pull(tree(entry("x"), flags=IN_TREE | CONTENTS), 4, "a named one was requested",
                  "host:dir/a", ".")


class HostileLists(Case):
    def test_a_signal_ends_the_work_on_a_long_list(self):
        """While the server makes the directories, and whatever their number is."""
        place = self.folder / "place"
        place.mkdir()
        server = subprocess.Popen([PIER, "cp", "--server", "--local", "--under", str(place)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env=self.environment())
        self.addCleanup(end_process, server)
        entries = [entry("a", DIRECTORY)] + [entry("a/%05d" % n, DIRECTORY) for n in range(50000)]
        # Without the last frame of the list, the server waits for the next one.
        data = b"".join(frame(LIST, b"".join(entries[n:n + 100]))
                        for n in range(0, len(entries), 100))
        server.stdin.write(GREETING + request(RECEIVER, "new", flags=VERIFY | TREE) +
                           tree(name="a")[:-8 * 2] + data + frame(LIST))
        server.stdin.flush()
        self.wait_for(lambda: list(place.glob(".new.pier-tmp-*/a/00000")) or
                      list(place.glob(".*.pier-tmp-*/a/00000")), "it makes no directories")
        server.terminate()
        self.assertEqual(server.wait(timeout=PATIENCE), 143)
        self.assertEqual(os.listdir(place), [])

    def test_a_server_looks_at_its_client_between_patterns(self):
        """However few the names are that it compares with them."""
        place = self.folder / "place"
        place.mkdir()
        for number in range(10):
            (place / ("%0200d" % number)).touch()
        said = subprocess.run(
            [PIER, "cp", "--server", "--local", "--under", str(place)], capture_output=True,
            input=GREETING + request(SENDER, ".", flags=VERIFY | TREE | DRY_RUN) +
            frame(WORDS, struct.pack("<I", 1) + string(".")) +
            frame(WORDS, struct.pack("<I", 2) + string("x" * 4000)) * 100 + frame(WORDS),
            check=False, env=self.environment(), timeout=PATIENCE).stdout
        before = said[len(GREETING):said.index(string("tree"))]
        self.assertGreater(before.count(frame(KEEPALIVE)), 100)


class LargeTrees(Case):
    """The list of a tree and all that it takes beside it has what the chunks leave of 1 GiB."""

    # 64 KiB less than all: for some 300 files.
    CHUNK, DEPTH = 129 * 4096, 2032
    MANY = 1000

    def serve(self, role, data, flags=VERIFY | TREE):
        """The answer of a server whose chunks leave 64 KiB of memory for the list."""
        self.assertEqual(GIB - self.CHUNK * self.DEPTH, 64 * 1024)
        return subprocess.run(
            [PIER, "cp", "--server", "--local"], capture_output=True, check=False,
            input=GREETING + request(role, "tree", flags=flags, chunk=self.CHUNK,
                                     depth=self.DEPTH) + data,
            env=self.environment(), timeout=PATIENCE, cwd=self.folder).stdout

    def send(self, *patterns):
        words = [(1, "tree"), *((2, pattern) for pattern in patterns)]
        return self.serve(SENDER, frame(WORDS, b"".join(
            struct.pack("<I", kind) + string(word) for kind, word in words)) + frame(WORDS))

    def test_a_list_that_is_received(self):
        for count in 100, self.MANY:
            entries = [entry("a", DIRECTORY)] + \
                [entry("a/%04d" % number) for number in range(count)]
            lists = b"".join(frame(LIST, b"".join(entries[at:at + 100]))
                             for at in range(0, len(entries), 100))
            said = self.serve(RECEIVER, tree()[:-8 * 2] + lists + frame(LIST),
                              VERIFY | TREE | DRY_RUN)
            if count == self.MANY:
                self.assertRegex(said, b"too many files for one copy, .*--exclude")
            else:
                self.assertNotIn(b"too many", said)
            self.assertEqual(os.listdir(self.folder), [])

    def many(self, make):
        for count in 100, self.MANY:
            for number in range(count):
                path = self.folder / "tree" / ("%04d" % number)
                if not path.exists():
                    make(path)
            yield count == self.MANY

    def test_a_list_that_is_sent(self):
        (self.folder / "tree").mkdir()
        for too_many in self.many(lambda path: path.touch()):
            self.assertEqual(b"too many files for one copy, " in self.send(), too_many)

    def test_names_that_are_left_out_take_no_memory(self):
        (self.folder / "tree").mkdir()
        for too_many in self.many(lambda path: path.with_name("x" * 100 + path.name).touch()):
            self.assertNotIn(b"too many files", self.send("x*"))
            self.assertEqual(b"too many files for one copy, " in self.send("y*"), too_many)

    def test_sentences_about_files_that_are_left_out(self):
        (self.folder / "tree").mkdir()
        for too_many in self.many(os.mkfifo):
            self.assertEqual(b"no memory to report all files " in self.send(), too_many)


class HostileServer(Puller):
    """What each field of a server's list and description decides about the client's tree."""

    def target(self, data, *arguments):
        """What a client has made when it is ready to receive, in an empty folder."""
        server, said = self.folder / "server", self.folder / "said"
        seen, place = self.folder / "seen", self.folder / "place"
        said.write_bytes(GREETING + data)
        place.mkdir()
        # The client has the list when it sends the frame about its NICs (9): after the
        # preamble, the request, and the names of the sources and their patterns.
        server.write_text("#!%s\n" % sys.executable + """
import os, struct, subprocess
os.write(1, open(%r, "rb").read())
def take(length):
    data = b""
    while len(data) < length and (more := os.read(0, length - len(data))):
        data += more
    return data
take(16)
while len(header := take(8)) == 8:
    length, kind = struct.unpack("<II", header)
    take(length)
    if kind in (8, 9):
        break
found = subprocess.run(["find", %r, "-printf", "%%y %%P %%l\\n"], capture_output=True)
open(%r, "wb").write(found.stdout)
""" % (str(said), str(place), str(seen)))
        server.chmod(0o755)
        result = self.run_pier("cp", "-r", "--rsh", str(server), *arguments, cwd=place)
        self.assertNotEqual(result.status, 0)
        left = sorted(str(p.relative_to(place)) for p in place.rglob("*"))
        place.rmdir()
        return result, seen.read_text(), left

    def check_harmless(self, *entries, **options):
        """The client takes the list, and writes only to its own stage."""
        result, seen, left = self.target(tree(*entries, name="a", **options), "host:a", ".")
        self.assertNotIn("requested", result.stderr)
        self.assertNotIn("invalid", result.stderr)
        places = [line.split(" ")[1] for line in seen.splitlines()[1:]]
        self.assertTrue(places, seen)
        for path in places:
            self.assertRegex(path, r"\A\.a\.pier-tmp-[0-9a-f]{16}(/|\Z)")
        self.assertEqual(left, [])

    def test_kind(self):
        """A link in place of what was named would lead the next copy elsewhere."""
        for options in ("host:a", "local"), ("host:a", "."), ("host:x/a/", "."):
            self.pull(tree(entry("a", LINK, target="/etc"), name="a"), 4,
                      "a symbolic link in place of 'a'", *options)
        for kinds in (FILE, LINK), (LINK, DIRECTORY):
            self.pull(tree(*map(lambda e: entry(*e, target="/etc" if e[1] == LINK else ""),
                                zip("ab", kinds)), name="a", flags=IN_TREE | SEVERAL),
                      4, "a symbolic link in place of '[ab]'", "host:a", "host:b", ".")
        self.check_harmless(entry("a", DIRECTORY), entry("a/x", LINK, target="/etc"))

    def test_path(self):
        for path in "b", "a ", "A", ".ssh":
            self.pull(tree(entry(path, DIRECTORY), name="a"), 4, "which was not requested",
                      "host:a", ".")

    def test_target(self):
        for target in "/", "..", "../" * 100, "x" * 4000, "\x1b[2J":
            self.check_harmless(entry("a", DIRECTORY), entry("a/x", LINK, target=target))

    def test_mode(self):
        for mode in 0o2777, 0o4777, 0o10777, 1 << 31:
            self.pull(tree(entry("a", DIRECTORY, mode=mode), name="a"), 4, "invalid", "host:a", ".")
        for mode in 0, 0o777, 0o1777:
            self.check_harmless(entry("a", DIRECTORY, mode=mode), entry("a/b", DIRECTORY))

    def test_size_and_sparse(self):
        self.pull(tree(entry("a", DIRECTORY, size=1), name="a", size=1), 4, "invalid", "host:a",
                  ".")
        self.pull(tree(entry("a", DIRECTORY), entry("a/x", size=2), name="a", size=1), 4,
                  "invalid", "host:a", ".")
        self.pull(tree(entry("a", DIRECTORY, sparse=1), name="a"), 4, "invalid", "host:a", ".")
        self.check_harmless(entry("a", DIRECTORY), entry("a/x", size=1 << 50, sparse=1),
                            size=1 << 50)

    def test_time(self):
        self.pull(tree(entry("a", nanoseconds=10**9), name="a"), 4, "invalid", "host:a", ".")
        for seconds in 0, 1 << 63, (1 << 64) - 1:
            self.check_harmless(entry("a", DIRECTORY, seconds=seconds))

    def test_identity(self):
        """Only the secret of the copy makes one that is the client's own."""
        for identity in bytes(16), b"\xff" * 16:
            self.check_harmless(entry("a", DIRECTORY, identity=identity))

    def test_the_number_of_sources(self):
        """With several, the destination must be a directory: it would become the only one."""
        for data, sources in (
                (tree(entry("a", DIRECTORY), name="a"), ("host:a", "host:b")),
                (tree(entry("a", DIRECTORY), name="a", flags=IN_TREE | SEVERAL), ("host:a",)),
                (frame(SOURCE, struct.pack("<QIIQI", 0, 0, 0o644, 1, 0) + string("a") + TAIL),
                 ("host:a", "host:b"))):
            self.pull(data, 4, "another number of sources", *sources, "new")

    def test_the_name(self):
        """It is that of the stage, and of what --continue uses again."""
        stage = self.folder / ".b.pier-partial"
        stage.mkdir(mode=0o1700)
        stage.chmod(0o1700)
        (stage / "mine").write_bytes(b"mine")
        for sent, asked in ("b", "a"), ("b", "dir/."), ("tree", "a"), ("a", "/"):
            flags = IN_TREE | (CONTENTS if asked in ("dir/.", "/") else 0)
            top = [entry("x" if flags & CONTENTS else "a", DIRECTORY)]
            self.pull(tree(*top, name=sent, flags=flags), 4, "'%s' was requested" %
                      ("a" if asked == "a" else "tree"), "--continue", "host:" + asked, ".")
        self.assertEqual((stage / "mine").read_bytes(), b"mine")
        (stage / "mine").unlink()
        stage.rmdir()


class Served(Case):
    def server(self, data):
        """The frames that a server answers with."""
        server = subprocess.run([PIER, "cp", "--server", "--local"], input=GREETING + data,
                                capture_output=True, check=False, env=self.environment(),
                                timeout=PATIENCE, cwd=self.folder)
        self.assertGreaterEqual(server.returncode, 0, "killed by a signal")
        output, frames = server.stdout[len(GREETING):], []
        while output:
            length, kind = struct.unpack_from("<II", output)
            frames.append((kind, output[8:8 + length]))
            output = output[8 + length:]
        return frames


class HostileAnswers(Served):
    """--skip-same: the bits of files that the receiver has, as if it had them."""

    def words(self, *operands):
        return b"".join(frame(WORDS, struct.pack("<I", 1) + string(o)) for o in operands) + frame(WORDS)

    def pull(self, path, *answers, flags=SKIP_SAME):
        """Run a sender of the files a, a/0, ... a/9, a/d against these answers, and return its frames."""
        top = self.folder / "a"
        (top / "d").mkdir(parents=True, exist_ok=True)
        for i in range(10):
            (top / str(i)).write_bytes(b"x")
        start = request(SENDER, path, flags=VERIFY | TREE | DRY_RUN | flags) + self.words(path)
        return self.server(start + b"".join(frame(SAME, answer) for answer in answers))

    def test_a_sender_refuses_bad_answers(self):
        for path, bad in (("a", b""), ("a", b"\0"), ("a", bytes(3)), ("a", b"\1\0"), ("a", b"\0\x08"),
                          ("a", b"\0\x10"), ("a", b"\0\x80"), ("a", b"\xff\xff"), ("a/1", b""),
                          ("a/1", b"\2"), ("a/1", bytes(2))):
            with self.subTest((path, bad)):
                frames = self.pull(path, bad)
                self.assertEqual(frames[-1][0], ERROR)
                self.assertIn(b"invalid answer about files that it has", frames[-1][1])
        for path, good in ("a", b"\xfe\7"), ("a", bytes(2)), ("a/1", b"\1"):
            frames = self.pull(path, good)
            self.assertFalse([f for f in frames if b"invalid" in f[1] or b"unexpected" in f[1]], frames)

    def test_an_answer_is_unexpected_without_the_option(self):
        self.assertIn(b"unexpected control message (type 18",
                      self.pull("a", bytes(2), flags=0)[-1][1])
        self.assertIn(b"unexpected control message (type 18", self.pull("a", bytes(2), bytes(2))[-1][1])

    def test_a_long_answer_has_several_frames(self):
        """140,000 files are 17,500 bytes."""
        top = self.folder / "place/a"
        top.mkdir(parents=True)
        for name in ("0", "139999"):
            (top / name).write_bytes(b"")
            os.utime(top / name, ns=(0, 10**9))
        names = sorted(map(str, range(140000)))
        entries = [entry("a", DIRECTORY), *(entry("a/" + name) for name in names)]
        source = struct.pack("<QIIQI", 0, IN_TREE, 0, 1, 0) + string("a") + TAIL
        lists = b"".join(frame(LIST, b"".join(entries[i:i + 300])) for i in range(0, len(entries), 300))
        frames = self.server(request(RECEIVER, "place", flags=VERIFY | TREE | DRY_RUN | SKIP_SAME) +
                             frame(SOURCE, source) + lists + frame(LIST))
        answers = [payload for kind, payload in frames if kind == SAME]
        self.assertEqual([len(answer) for answer in answers], [16384, 140001 // 8 + 1 - 16384])
        bits = int.from_bytes(b"".join(answers), "little")
        same = {i for i in range(bits.bit_length()) if bits >> i & 1}
        self.assertEqual(same, {1 + names.index("0"), 1 + names.index("139999")})


class HostileAgreement(Served):
    """The segments that a receiver offers after an interruption, and the sender's answers."""

    SEGMENT = 64 * 1024

    def test_a_sender_refuses_bad_lists_of_segments(self):
        path = self.file("file", 3 * self.SEGMENT + 1)
        start = request(SENDER, path, flags=VERIFY | PARTIAL)

        def segments(*numbers):
            return frame(SEGMENTS, b"".join(struct.pack("<Q", n) + bytes(16) for n in numbers))

        for bad in (segments(4), segments(1 << 63), segments((1 << 64) - 1), segments(1, 1),
                    segments(2, 1), segments(1) + segments(1), segments(3) + segments(0),
                    frame(SEGMENTS, b"x"), frame(SEGMENTS, bytes(23)), frame(SEGMENTS, bytes(25))):
            with self.subTest(bad):
                frames = self.server(start + bad)
                self.assertEqual(frames[-1][0], ERROR)
                self.assertIn(b"invalid list of what it has", frames[-1][1])
        # So the case above cannot pass because of something else. No tag is right.
        frames = self.server(start + segments(0, 1) + segments(3) + frame(SEGMENTS))
        self.assertIn((KEPT, bytes(2)), frames)
        self.assertIn((KEPT, bytes(1)), frames)
        self.assertFalse([f for f in frames if b"invalid" in f[1]])

    def test_segments_are_unexpected_without_the_option(self):
        path = self.file("file", 100)
        frames = self.server(request(SENDER, path) + frame(SEGMENTS, bytes(24)))
        self.assertIn(b"unexpected control message (type 14", frames[-1][1])

    def push(self, answers, size, flags=VERIFY | PARTIAL):
        """The frames of a receiver that has all of the bytes."""
        partial = self.folder / ".new.pier-partial"
        partial.write_bytes(self.bytes(size))
        source = struct.pack("<QIIQI", size, 0, 0o644, 1, 0) + string("new") + TAIL
        frames = self.server(request(RECEIVER, "new", flags=flags) + frame(SOURCE, source) +
                             answers)
        partial.unlink(missing_ok=True)
        self.assertEqual(os.listdir(self.folder), [])
        return frames

    def test_a_receiver_refuses_bad_answers(self):
        for bad in (b"", b"\1", b"\1\1\1", b"\1\2", b"\xff\0"):
            with self.subTest(bad):
                frames = self.push(frame(KEPT, bad), self.SEGMENT + 1)
                self.assertIn(b"invalid answer about what it keeps", frames[-1][1])
        frames = self.push(frame(KEPT, b"\1\0"), self.SEGMENT + 1)
        self.assertEqual([len(p) for kind, p in frames if kind == SEGMENTS], [2 * 24, 0])
        self.assertFalse([f for f in frames if b"invalid" in f[1]])

    def test_an_answer_is_unexpected_if_nothing_was_offered(self):
        for flags, size in ((VERIFY | PARTIAL, 0), (VERIFY, self.SEGMENT)):
            frames = self.push(frame(KEPT, b"\1"), size, flags)
            self.assertIn(b"unexpected control message (type 15", frames[-1][1])


class HostileClient(Case):
    def answer(self, data, *options):
        """The first frame after the server's greeting, as a type and a payload."""
        return self.answer_of(data, "--local", *options)

    def answer_of(self, data, *options):
        server = subprocess.Popen([PIER, "cp", "--server", *options],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env=self.environment())
        self.addCleanup(end_process, server)
        output, _ = server.communicate(GREETING + data, timeout=PATIENCE)
        self.assertEqual(output[:8], GREETING[:8])
        self.assertGreaterEqual(server.returncode, 0, "killed by a signal")
        length, kind = struct.unpack_from("<II", output, len(GREETING))
        start = len(GREETING) + 8
        return kind, output[start:start + length]

    def sparse_file(self, size):
        path = self.folder / "sparse"
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def test_a_request_above_the_memory_limit_is_refused(self):
        path = self.sparse_file(64 * GIB)
        for chunk, depth in ((GIB, 2), (GIB, DEPTH_MAX), (MIB, 1025), (256 * 1024, 4097)):
            with self.subTest((chunk, depth)):
                kind, payload = self.answer(request(SENDER, path, chunk=chunk, depth=depth))
                self.assertEqual(kind, ERROR)
                self.assertIn(b"sent an invalid request", payload)

    def test_ipc_is_refused_by_a_server_of_another_host(self):
        """A handle of memory gives more than a key."""
        for role in SENDER, RECEIVER:
            kind, payload = self.answer_of(request(role, self.file("small", 1), flags=9))
            self.assertEqual(kind, ERROR)
            self.assertIn(b"ipc, which is for copies inside one host", payload)

    def test_ipc_without_memory_is_harmless(self):
        handle = struct.pack("<I", 1) + string("") + bytes(224)
        kind, _ = self.answer(request(SENDER, self.file("small", 1), flags=9) +
                              struct.pack("<II", len(handle), IPC) + handle)
        self.assertEqual(kind, SOURCE)

    def test_a_request_at_the_memory_limit_is_accepted(self):
        """The server accepts the request: the next frame describes the file."""
        path = self.file("small", 1)
        for chunk, depth in ((GIB, 1), (MIB, 1024), (256 * 1024, DEPTH_MAX)):
            with self.subTest((chunk, depth)):
                kind, _ = self.answer(request(SENDER, path, chunk=chunk, depth=depth))
                self.assertEqual(kind, SOURCE)


class Client(Case):
    def record(self, frames, *arguments):
        """What the client sends to a server that sends only the preamble."""
        program, said = self.folder / "recorder", self.folder / "said"
        program.write_text(RECORDER % (sys.executable, GREETING, frames, str(said)))
        program.chmod(0o755)
        result = self.run_pier("cp", "--rsh", "'%s'" % program, *arguments)
        self.assertEqual(result.status, 4, str(result))
        return said.read_bytes()[len(GREETING):]

    def test_the_client_stays_within_the_memory_limit(self):
        for options, chunk, depth in (
                (("--chunk", "1G"), GIB, 1), (("--chunk", "1G", "--depth", "4096"), GIB, 1),
                (("--chunk", "384M"), 384 * MIB, 2), (("--depth", "4096"), MIB, 1024),
                (("-r", "--chunk", "1G"), GIB // 2, 1), (("-r", "--depth", "4096"), MIB, 512),
                (("--chunk", "256K", "--depth", "4096"), 256 * 1024, 4096), ((), MIB, 8)):
            with self.subTest(options):
                data = self.record(1, *options, "host:file", "target")
                settings = SETTINGS.unpack_from(data, 8)
                self.assertEqual((settings[1], settings[3]), (chunk, depth))

    def test_a_push_does_not_reveal_the_source_inode(self):
        source = self.file("source", 10)
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read().strip()
        said = [self.record(2, source, "host:target") for _ in range(2)]
        for data in said:
            self.assertNotIn(boot, data)
            # Size, flag, mode, time, name, a hash of 16 bytes, and 5 counts: nothing else.
            length, kind = struct.unpack_from("<II", data, 8 + struct.unpack("<I", data[:4])[0])
            self.assertEqual((length, kind), (28 + len(string("source")) + len(TAIL), SOURCE))
        # The key of the hash differs in every copy.
        hashes = [data[-len(TAIL):][:16] for data in said]
        self.assertNotEqual(*hashes)

    def test_the_largest_chunk_size_copies_a_small_file(self):
        source = self.file("source", 3 * MIB + 5)
        self.copy("--chunk", "1G", source, "target")
        self.check_same(source, self.folder / "target")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A server that sends another file name than the requested one (CVE-2019-6111)."""

import os
import sys

from harness import Case, PIER, main

# Replaces ssh: runs an honest server and changes strings in frames, in the request (1)
# to the server and in its description of the file (2).
RENAMER = """#!%s
import os, struct, subprocess, sys, threading
CHANGES = %r
server = subprocess.Popen([%r, "cp", "--server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def string(text):
    return struct.pack("<H", len(text)) + text

def relay(source, target):
    try:
        relay_frames(source, target)
    except BrokenPipeError:
        pass

def relay_frames(source, target):
    target.write(source.read(16))
    target.flush()
    while len(header := source.read(8)) == 8:
        length, kind = struct.unpack("<II", header)
        payload = source.read(length)
        if kind in CHANGES:
            old, new = map(string, CHANGES[kind])
            assert old in payload
            payload = payload.replace(old, new, 1)
        target.write(struct.pack("<II", len(payload), kind) + payload)
        target.flush()
    target.close()

threading.Thread(target=relay, args=(sys.stdin.buffer, server.stdin), daemon=True).start()
relay(server.stdout, sys.stdout.buffer)
os._exit(server.wait())
"""


class Pull(Case):
    def setUp(self):
        super().setUp()
        self.there = self.folder / "there"
        self.home = self.folder / "home"
        self.there.mkdir()
        self.home.mkdir()
        (self.there / "notes.txt").write_bytes(b"alias ls=evil\n")

    def renamer(self, changes):
        program = self.folder / "renamer"
        program.write_text(RENAMER % (sys.executable, changes, PIER))
        program.chmod(0o755)
        return "'%s'" % program

    def pull(self, sent, target, asked=None):
        served = os.fsencode(self.there / "notes.txt")
        asked = served if asked is None else asked
        shell = self.renamer({1: (asked, served), 2: (b"notes.txt", sent)})
        return self.run_pier("cp", "--rsh", shell, "somewhere:%s" % os.fsdecode(asked), target,
                             cwd=self.home)

    def test_another_name_is_refused(self):
        victim = self.home / ".bashrc"
        (self.home / "directory").mkdir()
        for target in (".", "./", "directory", self.home, "explicit"):
            for existing in (False, True):
                with self.subTest((target, existing)):
                    victim.unlink(missing_ok=True)
                    if existing:
                        victim.write_bytes(b"mine")
                    result = self.pull(b".bashrc", target)
                    self.check_failure(result, 4, "somewhere .*'.bashrc'.*'notes.txt'")
                    self.assertEqual(victim.exists(), existing)
                    if existing:
                        self.assertEqual(victim.read_bytes(), b"mine")
        self.assertEqual({p.name for p in self.home.rglob("*")}, {".bashrc", "directory"})

    def test_similar_names_are_refused(self):
        for sent in (b"notes.tx", b"notes.txtx", b"Notes.txt", b" notes.txt", b"notes.txt\n"):
            with self.subTest(sent):
                self.assertEqual(self.pull(sent, ".").status, 4)
        self.assertEqual(list(self.home.iterdir()), [])

    def test_the_requested_name_is_used(self):
        for target, name in ((".", "notes.txt"), ("other", "other")):
            result = self.pull(b"notes.txt", target)
            self.assertEqual((result.status, result.stderr), (0, ""), str(result))
            self.check_same(self.there / "notes.txt", self.home / name)

    def test_trailing_slashes_are_not_part_of_the_name(self):
        result = self.pull(b"notes.txt", ".", b"there/notes.txt//")
        self.assertEqual((result.status, result.stderr), (0, ""), str(result))

    def test_a_path_without_a_name_accepts_no_name(self):
        """The path has no last component, so no name matches it."""
        for asked in (b".", b"..", b"/", b"a/.."):
            with self.subTest(asked):
                self.check_failure(self.pull(b".bashrc", ".", asked), 4, "'.bashrc'")
        self.assertEqual(list(self.home.iterdir()), [])

    def test_an_empty_path_is_refused(self):
        """The command line never has an empty path, so only a hostile client sends one."""
        shell = self.renamer({1: (b"path", b"")})
        for places in (("somewhere:path", "x"), (self.there / "notes.txt", "somewhere:path")):
            with self.subTest(places):
                result = self.run_pier("cp", "--rsh", shell, *places, cwd=self.home)
                self.check_failure(result, 1, "empty path: SRC and DST must name files")
        self.assertEqual(list(self.home.iterdir()), [])


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Symbolic links that another user placed where root writes."""

import os
import pathlib
import pwd

from harness import Case, main

SYSCTL = pathlib.Path("/proc/sys/fs/protected_symlinks")


class StickyDirectory(Case):
    """Links of another user in a sticky world-writable directory: proc_sys_fs(5)."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("only root can make a link that belongs to another user")
        self.protect()
        self.nobody = pwd.getpwnam("nobody").pw_uid
        self.source = self.file("source", 100)
        self.victim = self.file("victim", b"root's own")
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        self.shared.chmod(0o1777)

    def protect(self):
        before = SYSCTL.read_text()
        if before.strip() != "1":
            try:
                SYSCTL.write_text("1")
            except OSError as error:
                self.skipTest("fs.protected_symlinks is off and stays off: %s" % error)
            self.addCleanup(SYSCTL.write_text, before)

    def plant(self, name, target):
        link = self.shared / name
        link.symlink_to(target)
        os.lchown(link, self.nobody, -1)
        return link

    def check_refused(self, target):
        self.refused(1, "Permission denied", "cp", self.source, target)
        self.assertEqual(self.victim.read_bytes(), b"root's own")

    def test_a_planted_link_to_a_file_is_refused(self):
        self.check_refused(self.plant("link", self.victim))
        self.check_refused(self.plant("relative", "../victim"))

    def test_a_planted_dangling_link_is_refused(self):
        self.check_refused(self.plant("link", self.folder / "new"))
        self.assertFalse((self.folder / "new").exists())

    def test_a_planted_link_to_a_directory_is_refused(self):
        (self.folder / "directory").mkdir()
        self.check_refused(self.plant("link", self.folder / "directory"))
        self.assertEqual(os.listdir(self.folder / "directory"), [])

    def test_a_planted_link_with_the_source_name_is_refused(self):
        self.plant("source", self.victim)
        self.check_refused(self.shared)

    def test_a_planted_link_behind_an_own_link_is_refused(self):
        self.plant("link", self.victim)
        (self.folder / "ours").symlink_to("shared/link")
        self.check_refused(self.folder / "ours")

    def test_a_planted_link_as_source_is_refused(self):
        self.refused(1, "Permission denied", "cp", self.plant("link", self.victim), "copy")

    def test_an_own_link_is_followed(self):
        (self.shared / "link").symlink_to("../victim")
        self.copy(self.source, self.shared / "link")
        self.check_same(self.source, self.victim)
        self.assertTrue((self.shared / "link").is_symlink())


class NestedLinks(Case):
    """The target of a chain of links is found."""

    def test_links_to_links_are_followed(self):
        source = self.file("source", 100)
        (self.folder / "a/b").mkdir(parents=True)
        victim = self.file("a/b/file (deleted)", 10)
        (self.folder / "directory").symlink_to("a/b")
        (self.folder / "a/one").symlink_to("../directory/file (deleted)")
        (self.folder / "two").symlink_to(self.folder / "a/one")
        self.copy(source, "two")
        self.check_same(source, victim)
        self.assertEqual(os.readlink(self.folder / "two"), str(self.folder / "a/one"))

    def test_a_loop_of_links_is_refused(self):
        self.file("source", 100)
        (self.folder / "loop").symlink_to("loop")
        self.refused(1, "loop: Too many levels", "cp", "source", "loop")

    def test_concurrent_copies_through_a_link_succeed(self):
        sources = [self.file("source-%d" % i, 4096) for i in range(3)]
        victim = self.file("victim", 10)
        (self.folder / "link").symlink_to("victim")
        for _ in range(3):
            copies = [self.start("cp", source, "link") for source in sources]
            for process in copies:
                result = self.finish(process)
                self.assertEqual((result.status, result.stderr), (0, ""), str(result))
            self.assertIn(victim.read_bytes(), [source.read_bytes() for source in sources])
        self.assertEqual(os.readlink(self.folder / "link"), "victim")


main()

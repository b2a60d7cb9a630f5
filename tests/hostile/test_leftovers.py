#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Temporary files of killed copies, and files with similar names."""

import fcntl
import os
import pwd
import shutil
import signal
import stat

from harness import Case, MIB, main


# Digits of temporary names.
A, B = "a" * 16, "b" * 16


class Leftovers(Case):
    def setUp(self):
        super().setUp()
        self.source = self.file("source", 3 * MIB)
        self.place = self.folder / "place"
        self.place.mkdir()
        self.target = self.place / "copy"

    def left(self):
        return sorted(p.name for p in self.place.glob(".*.pier-*"))

    def leave(self, *libraries, name="copy"):
        """Kill a copy just before the rename; returns the name of the file it leaves."""
        before = self.left()
        result = self.run_pier("cp", self.source, self.place / name,
                               env=self.preload("KILL_AT_RENAME", *libraries))
        self.assertEqual(result.status, 4, str(result))
        left, = set(self.left()) - set(before)
        return left

    def plant(self, name, content=b"mine"):
        return self.file("place/" + name, content)

    def copies(self, **options):
        self.copy(self.source, self.target, **options)
        self.check_same(self.source, self.target)


class KilledCopies(Leftovers):
    def test_a_file_left_before_the_rename_is_removed(self):
        for libraries in ((), ("NO_TMPFILE",)):
            with self.subTest(libraries):
                self.target.write_bytes(b"old")
                self.leave(*libraries)
                self.assertEqual(self.target.read_bytes(), b"old")
                self.copies(env=self.preload(*libraries))
                self.assertEqual(self.left(), [])

    def test_a_directory_of_a_killed_merge_has_its_mode(self):
        """It is complete as well: it has been moved as a whole."""
        tree = self.folder / "tree"
        (tree / "a/b").mkdir(parents=True)
        (tree / "a/b/file").write_bytes(b"new")
        (tree / "z").write_bytes(b"new")
        for mode in 0o755, 0o555:
            (tree / "a/b").chmod(mode)
            (self.place / "tree").mkdir()
            result = self.run_pier("cp", "-r", tree, self.place,
                                   env=self.preload("KILL_AT_RENAME"))
            self.assertEqual(result.status, 4, str(result))
            self.assertFalse((self.place / "tree/z").exists())
            for name, expected in ("a", 0o755), ("a/b", mode):
                found = (self.place / "tree" / name).stat().st_mode
                self.assertEqual(stat.S_IMODE(found), expected)
            self.assertEqual((self.place / "tree/a/b/file").read_bytes(), b"new")
            self.copy("-r", tree, self.place)
            self.assertEqual(self.left(), [])
            (self.place / "tree/a/b").chmod(0o755)
            shutil.rmtree(self.place / "tree")
        (tree / "a/b").chmod(0o755)

    def test_several_left_files_are_removed(self):
        self.target.write_bytes(b"old")
        name = self.leave()
        for digits in ("0123456789abcdef", "0" * 16, "f" * 16):
            shutil.copy(self.place / name, self.place / (name[:-16] + digits))
        self.copies()
        self.assertEqual(self.left(), [])

    def test_a_file_left_during_the_transfer_is_removed(self):
        for role in ("client", "server"):
            with self.subTest(role):
                process = self.start_slowly(target=self.target, env=self.preload("NO_TMPFILE"))
                server = self.server_of(process)
                os.kill(process.pid if role == "client" else server, signal.SIGKILL)
                self.finish(process)
                self.wait_for(lambda: not self.processes(), "processes are left")
                self.assertEqual(len(self.left()), role == "server")
                self.copies()
                self.assertEqual(self.left(), [])
                self.target.unlink()

    def test_a_left_read_only_file_is_removed(self):
        self.source.chmod(0o444)
        self.target.write_bytes(b"old")
        self.target.chmod(0o444)
        before = ("setpriv", "--bounding-set", "-dac_override") if os.geteuid() == 0 else ()
        self.leave()
        self.copies(before=before)
        self.assertEqual(self.left(), [])

    def test_a_long_name_is_truncated_at_a_character(self):
        for name, kept in (("n" * 255, "n" * 40), ("n" * 40, "n" * 40), ("n" * 41, "n" * 40),
                           ("é" * 100, "é" * 20), ("n" + "é" * 20, "n" + "é" * 19),
                           ("nn" + "€" * 20, "nn" + "€" * 12), ("n" + "😀" * 10, "n" + "😀" * 9),
                           (b"\xbf" * 60, b"\xbf" * 37)):
            with self.subTest(name):
                self.target = self.place / os.fsdecode(name)
                self.target.write_bytes(b"old")
                left = self.leave(name=self.target.name)
                self.assertEqual(left[:-16], ".%s.pier-tmp-" % os.fsdecode(kept))
                self.copies()
                self.assertEqual(self.left(), [])


class OtherFiles(Leftovers):
    """Files that a copy to this name did not leave behind stay."""

    def stays(self, *names):
        self.copies()
        self.assertEqual(self.left(), sorted(names))
        for name in names:
            path = self.place / name
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()

    def test_the_file_of_a_running_copy_stays(self):
        slow = self.start_slowly(target=self.target, env=self.preload("NO_TMPFILE"))
        name, = self.left()
        for libraries in ((), ("NO_TMPFILE",)):
            self.copies(env=self.preload(*libraries))
            self.assertEqual(self.left(), [name])
        slow.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(slow).status, 130)
        self.assertEqual(self.left(), [])

    def test_a_locked_file_stays(self):
        self.target.write_bytes(b"old")
        name = self.leave()
        with open(self.place / name, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            self.copies()
            self.assertEqual(self.left(), [name])
        self.copies()
        self.assertEqual(self.left(), [])

    def test_files_with_similar_names_stay(self):
        names = (".copy.pier-backup", ".copy.pier-tmp-backup", ".copy.pier-" + A,
                 ".copy.pier-tmp-" + A[1:], ".copy.pier-tmp-a" + A,
                 ".copy.pier-tmp-" + A.upper(), ".copy.pier-tmp-g" + A[1:],
                 ".copy2.pier-tmp-" + A, ".cop.pier-tmp-" + A, ".copy.pier-tmp-" + A + "~",
                 ".copy.pier-tmp-" + A + ".pier-tmp-" + A, "x.copy.pier-tmp-" + A)
        for name in names:
            self.plant(name)
        self.stays(*(n for n in names if n.startswith(".")))
        self.assertTrue((self.place / ("x.copy.pier-tmp-" + A)).exists())

    def test_symbolic_links_stay(self):
        victim = self.file("victim", b"mine")
        (self.place / (".copy.pier-tmp-" + A)).symlink_to(victim)
        (self.place / (".copy.pier-tmp-" + B)).symlink_to("nowhere")
        self.stays(".copy.pier-tmp-" + A, ".copy.pier-tmp-" + B)
        self.assertEqual(victim.read_bytes(), b"mine")

    def test_hard_links_stay(self):
        victim = self.file("victim", b"mine")
        os.link(victim, self.place / (".copy.pier-tmp-" + A))
        self.stays(".copy.pier-tmp-" + A)
        self.assertEqual(victim.read_bytes(), b"mine")

    def test_directories_and_pipes_stay(self):
        (self.place / (".copy.pier-tmp-" + A)).mkdir()
        os.mkfifo(self.place / (".copy.pier-tmp-" + B))
        self.stays(".copy.pier-tmp-" + A, ".copy.pier-tmp-" + B)

    def test_devices_stay(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make devices")
        os.mknod(self.place / (".copy.pier-tmp-" + A), stat.S_IFCHR | 0o600, os.makedev(1, 3))
        self.stays(".copy.pier-tmp-" + A)

    def test_files_of_another_user_stay(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a file that belongs to another user")
        self.place.chmod(0o1777)
        os.chown(self.plant(".copy.pier-tmp-" + A), pwd.getpwnam("nobody").pw_uid, -1)
        self.stays(".copy.pier-tmp-" + A)


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp and file systems: names, modes, errors, and sources that change."""

import mmap
import os
import pathlib
import pwd
import resource
import shutil
import signal
import stat
import struct
import subprocess
import tempfile

from harness import Case, MIB, PIER, STUB_RSH, default_signals, json, main

IN_MEMORY = "tmpfs", "ramfs"


def file_system(path):
    return subprocess.check_output(["stat", "-f", "-c", "%T", path], text=True).strip()


class Destinations(Case):
    """The path and the mode of the destination."""

    def test_a_directory_gets_a_file_of_the_same_name(self):
        source = self.file("source", 100)
        (self.folder / "directory").mkdir()
        for target in ("directory", "directory/", "."):
            cwd = self.folder / "directory" if target == "." else None
            self.copy(source, target, cwd=cwd)
            self.check_same(source, self.folder / "directory/source")
            (self.folder / "directory/source").unlink()

    def test_a_name_with_a_colon_is_copied(self):
        source = self.file("a:b", 100)
        self.copy("./a:b", "./c:d")
        self.check_same(source, self.folder / "c:d")

    def test_a_name_like_an_option_is_copied(self):
        source = self.file("-p", 100)
        self.copy("--", "-p", "-q")
        self.check_same(source, self.folder / "-q")

    def test_unusual_names_are_copied(self):
        for name in ("a b", "a'b", 'a"b', "$(x)", "a\nb", "~", "é", "\udcff", "*", "a" * 255):
            with self.subTest(name):
                source = self.file("source", self.bytes(10))
                self.copy(source, "./" + name)
                self.check_same(source, self.folder / name)

    def test_an_old_file_is_replaced_and_keeps_its_mode(self):
        source = self.file("source", 1000)
        target = self.file("target", 5000)
        target.chmod(0o640)
        inode = target.stat().st_ino
        self.copy(source, target)
        self.check_same(source, target)
        self.assertEqual(stat.S_IMODE(target.stat().st_mode), 0o640)
        self.assertNotEqual(target.stat().st_ino, inode, "it was replaced in one step")

    def test_an_open_file_of_a_process_is_no_destination(self):
        source = self.file("source", 100)
        log = self.file("log", b"precious\n")
        (self.folder / "directory").mkdir()
        os.symlink("/dev/stderr", self.folder / "directory/source")
        os.symlink("directory/source", self.folder / "link")
        os.symlink("../" * 30 + "proc/thread-self/fd/2", self.folder / "relative")
        opened = os.open(self.folder / "directory", os.O_RDONLY)
        self.addCleanup(os.close, opened)
        for target in ("/dev/stdout", "/dev/stderr", "/dev/fd/2", "/proc/self/task/../fd//1",
                       "/proc/self/exe", "directory", "directory/", "link", "relative",
                       "/proc/%d/fd/%d" % (os.getpid(), opened),
                       "/proc/%d/fd/%d/new" % (os.getpid(), opened),
                       "somewhere:/dev/stderr"):
            with self.subTest(target), open(log, "a") as stream:
                result = self.run_pier("cp", "--rsh", STUB_RSH, "--remote-pier", PIER, source,
                                       target, stderr=stream)
                self.assertEqual((result.status, result.stdout), (1, ""), str(result))
                self.assertRegex(log.read_text(), r"\Aprecious\n(pier: .*\n)*"
                                 r"pier: .* leads to an open file of a process \(/proc/.*\n\Z")
        self.refused(1, "leads to an open file", "cp", "-r", "directory",
                     "/proc/%d/fd/%d" % (os.getpid(), opened))
        self.assertEqual(os.listdir(self.folder / "directory"), ["source"])

    def test_a_server_reads_none_of_its_own_descriptors(self):
        log = self.file("log", b"precious\n")
        for more in ((), ("-r",)):
            with open(log, "a") as stream:
                result = self.run_pier("cp", *more, "--rsh", STUB_RSH, "--remote-pier", PIER,
                                       "somewhere:/dev/stdout", "got", stderr=stream)
            self.assertEqual(result.status, 1, str(result))
            self.assertRegex(log.read_text(), "/dev/stdout leads to an open file")
            self.assertFalse((self.folder / "got").exists())

    def test_the_root_and_the_cwd_of_a_process_are_destinations(self):
        source = self.file("source", 100)
        for number, place in enumerate(("/proc/self/root%s" % self.folder, "/proc/self/cwd")):
            self.copy(source, "%s/target%d" % (place, number))
            self.check_same(source, self.folder / ("target%d" % number))

    def test_a_file_of_another_user_does_not_set_the_mode(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a file that belongs to another user")
        source = self.file("secret", 100)
        place = self.folder / "place"
        place.mkdir()
        place.chmod(0o1777)
        for mode in (0o600, 0o640, 0o755):
            with self.subTest("%o" % mode):
                source.chmod(mode)
                target = place / ("target-%o" % mode)
                target.write_bytes(b"planted")
                target.chmod(0o666)
                os.chown(target, pwd.getpwnam("nobody").pw_uid, -1)
                self.copy(source, target)
                self.check_same(source, target)
                facts = target.stat()
                self.assertEqual((stat.S_IMODE(facts.st_mode), facts.st_uid), (mode, 0))

    def test_an_own_file_that_others_may_have_put_there_opens_nothing(self):
        """By rename(2), or in a sticky directory by link(2)."""
        source = self.file("secret", 100)
        (self.folder / "tree").mkdir()
        os.link(source, self.folder / "tree/secret")
        source.chmod(0o640)
        for place, mode, linked, kept in (("private", 0o755, False, 0o664), ("private", 0o755, True, 0o640),
                                          ("sticky", 0o1777, False, 0o664), ("sticky", 0o1777, True, 0o640),
                                          ("group", 0o775, False, 0o640)):
            for arguments in ((source,), ("-r", "tree/.")):
                with self.subTest((place, linked, arguments)):
                    target = self.folder / place / "secret"
                    target.parent.mkdir(exist_ok=True)
                    target.parent.chmod(mode)
                    other = self.file("notes", b"minutes")
                    other.chmod(0o664)
                    (os.link if linked else os.rename)(other, target)
                    self.copy(*arguments, target.parent)
                    self.assertEqual(oct(stat.S_IMODE(target.stat().st_mode)), oct(kept))
                    target.unlink()
                    other.unlink(missing_ok=True)

    def test_the_mode_is_the_source_mode_without_the_umask(self):
        source = self.file("source", 10)
        for mode in (0o755, 0o666, 0o400, 0o4711):
            source.chmod(mode)
            self.copy(source, "target-%o" % mode)
            self.assertEqual(stat.S_IMODE((self.folder / ("target-%o" % mode)).stat().st_mode),
                             mode & 0o755)

    def test_preserve_keeps_mode_and_modification_time(self):
        source = self.file("source", 10)
        source.chmod(0o666)
        os.utime(source, ns=(1, 1234567890123456789))
        self.file("target", 10).chmod(0o600)
        self.copy("-p", source, "target")
        facts = (self.folder / "target").stat()
        self.assertEqual(stat.S_IMODE(facts.st_mode), 0o666)
        self.assertEqual(facts.st_mtime_ns, 1234567890123456789)

    def test_a_symbolic_link_to_a_file_is_followed(self):
        source = self.file("source", 10)
        (self.folder / "directory").mkdir()
        target = self.file("directory/target", 20)
        (self.folder / "link").symlink_to("directory/target")
        self.copy(source, "link")
        self.assertTrue((self.folder / "link").is_symlink())
        self.check_same(source, target)

    def test_unsuitable_destinations_are_refused(self):
        self.file("source", 10)
        os.mkfifo(self.folder / "fifo")
        (self.folder / "dangling").symlink_to("nowhere")
        os.link(self.folder / "source", self.folder / "hard")
        (self.folder / "soft").symlink_to("source")
        for target, pattern in (("fifo", "not a regular file"), ("source", "same file"),
                                ("./source", "same file"), ("hard", "same file"),
                                ("soft", "same file"), (".", "same file"),
                                ("dangling", "symbolic link"), ("no/target", "No such file"),
                                ("no/", "no such directory"),
                                ("source/target", "Not a directory"),
                                ("b" * 256, "too long")):
            with self.subTest(target):
                self.refused(1, pattern, "cp", "source", target)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()),
                         ["dangling", "fifo", "hard", "soft", "source"])

    def test_unsuitable_sources_are_refused(self):
        os.mkfifo(self.folder / "fifo")
        (self.folder / "directory").mkdir()
        for source, pattern in (("fifo", "not a regular file"), ("directory", "a directory"),
                                ("none", "No such file"), ("/dev/zero", "not a regular file")):
            with self.subTest(source):
                self.refused(1, pattern, "cp", source, "target")
                self.assertFalse((self.folder / "target").exists())


class FileSystemErrors(Case):
    """Errors of file systems, and sources that change."""

    def test_permissions_are_respected(self):
        self.file("source", 10).chmod(0)
        self.file("readable", 10)
        (self.folder / "directory").mkdir(mode=0o500)
        before = ()
        if os.geteuid() == 0:
            before = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
        probe = subprocess.run([*before, "cat", self.folder / "source"], capture_output=True)
        if b"Permission denied" not in probe.stderr:
            self.skipTest("every file is readable here: %s" % probe.stderr.decode())
        self.refused(1, "source: Permission denied", "cp", "source", "target", before=before)
        self.refused(1, "directory/x: Permission denied", "cp", "readable", "directory/x",
                     before=before)

    def test_the_file_size_limit_fails_the_copy(self):
        def limit():
            default_signals()
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        self.file("source", 2 * MIB)
        # The limit also applies to memfds.
        self.refused(1, "target: File too large", "cp", "--src-mem", "host", "--dst-mem", "host",
                     "source", "target", preexec_fn=limit)
        self.assertFalse((self.folder / "target").exists())

    def test_a_full_disk_fails_the_copy_at_once(self):
        disk = self.folder / "disk"
        disk.mkdir()
        source = self.file("source", 4 * MIB)
        script = 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"'
        before = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-r", "-m"]),
                  "sh", "-c", script, "sh", disk]
        if subprocess.run([*before, "true"], capture_output=True).returncode != 0:
            self.skipTest("no small file system can be mounted here")
        (disk / "target").write_text("old")
        self.refused(1, "not enough space for the 4194304 bytes of .*target: No space left",
                     "cp", source, disk / "target", before=before)
        self.assertEqual((disk / "target").read_text(), "old")

    def changed(self, change, source=None, pattern="changed while|became shorter"):
        source = source or self.file("slow", 3 * MIB)
        process = self.start_slowly(source=source)
        change(source)
        self.failure_of(process, 1, pattern)

    def test_a_growing_source_fails_the_copy(self):
        def grow(source):
            with open(source, "ab") as file:
                file.write(b"more")
        self.changed(grow)

    def test_a_shrinking_source_fails_the_copy(self):
        self.changed(lambda source: os.truncate(source, MIB))

    def test_a_modified_source_fails_the_copy(self):
        def write(source):
            with open(source, "r+b") as file:
                file.write(b"other")
        self.changed(write)

    def test_a_modified_source_with_restored_mtime_fails_the_copy(self):
        def write(source):
            times = source.stat()
            with open(source, "r+b") as file:
                file.write(b"other")
            os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.changed(write)

    def test_a_replaced_source_fails_the_copy(self):
        def replace(source):
            other = self.file("other", source.read_bytes())
            shutil.copystat(source, other)
            other.rename(source)
        self.changed(replace)

    def test_a_replaced_source_directory_fails_the_copy(self):
        def replace(source):
            # The open file stays as it was.
            source.parent.rename(self.folder / "old")
            source.parent.mkdir()
            shutil.copy2(self.folder / "old/slow", source)
        (self.folder / "directory").mkdir()
        self.changed(replace, self.file("directory/slow", 3 * MIB), "was replaced while")

    def test_a_source_modified_through_a_mapping_fails_the_copy(self):
        """The times change only if the page was clean, or has been written to the disk."""
        if file_system(self.folder) in IN_MEMORY:
            self.skipTest("the temporary folder is in memory, where no such change shows")
        (self.folder / "directory").mkdir()
        for options, source, path in (((), "slow", "slow"),
                                      (("-r",), "directory", "directory/slow")):
            with open(self.file(path, 3 * MIB), "r+b") as file, \
                    mmap.mmap(file.fileno(), 0) as pages:
                for offset in range(0, len(pages), mmap.PAGESIZE):
                    pages[offset] ^= 1  # Now it is dirty.
                before = pages[:]
                process = self.start_slowly(*options, source=source)
                pages[:] = bytes(len(pages))
            result = self.finish_slowly(process)
            if result.status == 0:  # It was complete before the change.
                copy = self.folder / "copy"
                copy = copy / "slow" if copy.is_dir() else copy
                self.assertTrue(copy.read_bytes() == before, "the copy is torn")
                continue
            self.assertEqual(result.status, 1, str(result))
            self.assertRegex(result.stderr, "changed while")
            self.assertFalse((self.folder / "copy").is_file())
            self.assertFalse((self.folder / "copy/slow").exists())

    def test_a_source_in_memory_is_verified_as_it_was_read(self):
        """No change through a mapping shows there."""
        if file_system("/dev/shm") not in IN_MEMORY:
            self.skipTest("/dev/shm is not in memory")
        memory = pathlib.Path(tempfile.mkdtemp(prefix="test-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, memory)
        (memory / "tree").mkdir()
        (memory / "tree/file").write_bytes(self.bytes(MIB))
        remote = ("--rsh", STUB_RSH, "--remote-pier", PIER, "--device", "soft0",
                  "--remote-device", "soft0")
        for number, (source, as_read) in enumerate((
                (self.file("disk", MIB), file_system(self.folder) in IN_MEMORY),
                (memory / "tree/file", True), (memory / "tree", True), (memory / "tree/.", True))):
            target = "target%d" % number
            words = " verified as read: " if as_read else " verified: "
            self.assertIn(words, self.copy("-r", source, target).stdout)
            result = self.copy("-r", "--json", *remote, "somewhere:%s" % source, target)
            facts = json.loads(result.stdout)
            self.assertEqual((facts["verified"], facts["as_read"]), (True, as_read))


def acl(user, group, other, *, mask, users=(), groups=()):
    """As in <linux/posix_acl_xattr.h>: for acl(5)."""
    entries = [(1, user, -1), *((2, p, 10 + i) for i, p in enumerate(users)), (4, group, -1),
               *((8, p, 10 + i) for i, p in enumerate(groups)), (16, mask, -1), (32, other, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


class AccessControlLists(Case):
    """The copy has no ACL, and nobody gets more by its mode than by that."""

    # The ACL, and the mode of a copy. That of the source has the mask for the group.
    CASES = (
        (acl(6, 0, 0, mask=4, users=[4]), 0o600), (acl(6, 4, 4, mask=4, users=[0]), 0o600),
        (acl(6, 6, 4, mask=6, groups=[0]), 0o660), (acl(6, 6, 4, mask=4, groups=[7]), 0o644),
        (acl(7, 7, 7, mask=7, users=[5], groups=[6]), 0o754),
        (acl(6, 4, 6, mask=4, users=[7]), 0o644),
        (acl(6, 4, 4, mask=6), 0o644), (acl(6, 6, 4, mask=0), 0o604))

    def set_acl(self, path, value):
        try:
            os.setxattr(path, "system.posix_acl_access", value)
        except OSError as error:
            self.skipTest("no ACLs here: %s" % error)

    def mode(self, path):
        return stat.S_IMODE((self.folder / path).stat().st_mode)

    def test_the_mode_of_a_copy_gives_no_more_than_the_acl(self):
        (self.folder / "tree").mkdir()
        for number, (value, _) in enumerate(self.CASES):
            self.set_acl(self.file("tree/%d" % number, 10), value)
        self.set_acl(self.folder / "tree", self.CASES[4][0])
        for options in ((), ("-p",)):
            self.copy("-r", *options, "tree", "copy")
            self.assertEqual(self.mode("copy"), 0o754)
            for number, (_, mode) in enumerate(self.CASES):
                self.copy(*options, "tree/%d" % number, "single")
                self.copy("-r", *options, "tree/%d" % number, "operand")
                wanted = mode if options else mode & ~0o022
                for path in "copy/%d" % number, "single", "operand":
                    self.assertEqual(oct(self.mode(path)), oct(wanted), (number, path))
                (self.folder / "single").unlink()
                (self.folder / "operand").unlink()
            shutil.rmtree(self.folder / "copy")

    def test_a_replaced_file_passes_no_more_than_its_acl_on(self):
        (self.folder / "tree").mkdir()
        self.file("tree/old", 10)
        for source, target, options in ("tree/old", "old", ()), ("tree", "there", ("-r",)):
            (self.folder / "there/tree").mkdir(parents=True, exist_ok=True)
            path = "there/tree/old" if options else target
            self.set_acl(self.file(path, 20), self.CASES[0][0])
            self.assertEqual(self.mode(path), 0o640)
            self.copy(*options, source, target)
            self.assertEqual(oct(self.mode(path)), oct(0o600))


class LostMetadata(Case):
    """A copy says of how many files it has less than the bytes, the mode and the times."""

    REMOTE = ("--rsh", STUB_RSH, "--remote-pier", PIER, "--device", "soft0", "--remote-device",
              "soft0")
    NONE = {"owner": 0, "set_id": 0, "acl": 0, "xattr": 0, "hard_link": 0}
    LINE = "metadata not copied, by number of files: "

    def losses(self, *arguments):
        """The object of --json and the line for people, of one copy each."""
        facts = json.loads(self.copy("--json", *arguments).stdout)["not_kept"]
        lines = self.copy(*arguments).stdout.splitlines()
        self.assertEqual(len(lines), 1 + any(facts.values()), lines)
        return facts, lines[-1].removeprefix(self.LINE)

    def test_nothing_is_lost_of_plain_files(self):
        (self.folder / "tree/directory").mkdir(parents=True)
        for path in "tree/file", "tree/directory/file":
            self.file(path, 10)
        (self.folder / "tree/link").symlink_to("file")
        # Its other name is not a part of the copy.
        os.link(self.folder / "tree/file", self.folder / "elsewhere")
        for options in ("-r",), ("-rp",), ("-r", *self.REMOTE):
            for source in "tree", "tree/file":
                source = "somewhere:%s" % (self.folder / source) if self.REMOTE[0] in options \
                    else source
                self.assertEqual(self.losses(*options, source, "copy")[0], self.NONE)
                shutil.rmtree(self.folder / "copy", ignore_errors=True)
                (self.folder / "copy").unlink(missing_ok=True)

    def test_what_is_lost_is_counted(self):
        (self.folder / "tree").mkdir()
        for name in "abc":
            self.file("tree/" + name, 10)
        for name in "mn":
            os.link(self.folder / "tree/c", self.folder / "tree" / name)
        try:
            os.setxattr(self.folder / "tree/a", "user.color", b"red")
            os.setxattr(self.folder / "tree", "system.posix_acl_default", acl(7, 5, 0, mask=7,
                                                                              users=[5]))
            os.setxattr(self.folder / "tree/b", "system.posix_acl_access", acl(6, 4, 0, mask=4,
                                                                               users=[4]))
        except OSError as error:
            self.skipTest("no attributes or ACLs here: %s" % error)
        (self.folder / "tree/a").chmod(0o4755)
        wanted = {"owner": 0, "set_id": 1, "acl": 2, "xattr": 1, "hard_link": 2}
        line = "set-ID bits 1, ACL 2, extended attributes 1, hard links 2"
        if os.geteuid() == 0:
            os.chown(self.folder / "tree/b", 2001, -1)
            os.chown(self.folder / "tree/a", -1, 2001)
            (self.folder / "tree/a").chmod(0o4755)
            wanted["owner"] = 2
            line = "owner or group 2, " + line
        remote = "somewhere:%s"
        for source, target, options in (
                ("tree", "local", ()), ("tree", "preserved", ("-p",)),
                (remote % (self.folder / "tree"), "pulled", self.REMOTE),
                ("tree", remote % (self.folder / "pushed"), self.REMOTE)):
            with self.subTest(target):
                self.assertEqual(self.losses("-r", *options, source, target), (wanted, line))

    def test_what_a_single_file_loses_is_counted(self):
        source = self.file("source", 10)
        try:
            os.setxattr(source, "user.color", b"red")
        except OSError as error:
            self.skipTest("no attributes here: %s" % error)
        wanted = {**self.NONE, "xattr": 1}, "extended attributes 1"
        for options in (), ("-r",):
            self.assertEqual(self.losses(*options, source, "copy"), wanted)
        self.assertEqual(self.losses(*self.REMOTE, "somewhere:%s" % source, "copy"), wanted)
        # The files of a directory are copied without the directory.
        (self.folder / "tree").mkdir()
        os.setxattr(self.folder / "tree", "user.color", b"red")
        self.assertEqual(self.losses("-r", "tree/.", "contents")[0], self.NONE)
        self.assertEqual(self.losses("-r", "tree", "named")[0]["xattr"], 1)


class NamedTemporaries(Case):
    """On file systems without O_TMPFILE the file has a temporary name."""

    def environment(self, **more):
        return super().environment(**self.preload("NO_TMPFILE", **more))

    def temporaries(self):
        return [p.name for p in self.folder.glob(".*.pier-*")]

    def test_no_temporary_file_is_left(self):
        source = self.file("source", 2 * MIB + 1)
        self.file("old", 10)
        for name in ("new", "old", "n" * 255):
            self.copy(source, name)
            self.check_same(source, self.folder / name)
            self.assertEqual(self.temporaries(), [])

    def test_an_interrupted_copy_removes_its_temporary_file(self):
        for role in ("client", "server"):
            with self.subTest(role):
                process = self.start_slowly()
                name, = self.temporaries()
                self.assertRegex(name, r"\A\.copy\.pier-tmp-[0-9a-f]{16}\Z")
                os.kill(process.pid if role == "client" else self.server_of(process),
                        signal.SIGINT)
                self.failure_of(process, 130, "interrupted")
                self.assertEqual(self.temporaries(), [])

    def test_the_receiver_removes_its_file_when_the_sender_is_killed(self):
        process = self.start_slowly()
        process.kill()
        self.finish(process)
        self.wait_for(lambda: not self.temporaries(), "the temporary file is left")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp --continue: what an interrupted copy keeps, and what the next one makes of it."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess

from harness import Case, MIB, PIER, STUB_RSH, json, main

SEGMENT = 64 * 1024
STAGE_MODE = 0o1700
# Modes hold for root too.
UNPRIVILEGED = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") \
    if os.geteuid() == 0 else ()
# In disk_fault.c.
OTHER_USER = 4242
INTERRUPTIONS = 50
# The first chunk of each copy is sent at once. At this rate, 64 MiB take 256 s.
SLOWLY = ("--bwlimit", "256K", "--chunk", "64K")


def listing(top):
    """{path: what it is}, without following links."""
    found = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode
        what = os.readlink(path) if stat.S_ISLNK(mode) else \
            hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else None
        found[path.relative_to(top)] = (stat.S_IFMT(mode), what)
    return found


class Continued(Case):
    def setUp(self):
        super().setUp()
        self.source = self.folder / "source"
        self.target = self.folder / "target"
        self.partial = self.folder / ".target.pier-partial"

    def plant(self, size=4 * MIB, name="source"):
        return self.file(name, size).read_bytes()

    def leave(self, *parts, partial=None):
        """The file that an interrupted copy left: (offset, bytes)."""
        with open(partial or self.partial, "wb", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            for offset, data in parts:
                os.pwrite(file.fileno(), data, offset)

    def complete(self, *arguments, **options):
        """Continue, and return how many bytes were kept."""
        arguments = arguments or (self.source, self.target)
        result = self.copy("--continue", "--json", *arguments, **options)
        return json.loads(result.stdout)["kept"]

    def disk_fault(self, fault, **more):
        return self.preload("DISK_FAULT", DISK_FAULT=fault, **more)

    def finish_with_server(self, process):
        """The server may need longer to end than the next copy waits for its lock."""
        result = self.finish(process)
        self.wait_for(lambda: not self.processes(), "processes are left")
        return result

    def check(self, content):
        self.assertTrue(self.target.read_bytes() == content, "the copy differs")


class Interrupted(Continued):
    """Copies that are killed at random moments."""

    def await_more(self, process, arrived):
        """Wait until another segment has arrived, and return how many bytes have."""
        for line in process.stdout:
            reached = json.loads(line).get("bytes", 0)
            if reached >= arrived + SEGMENT:
                return reached
        return arrived

    def interrupt(self, process):
        """End the copy, and return how."""
        how = self.random.choice(("client", "server", "signal"))
        servers = self.children(process.pid)
        if how == "server" and servers:
            os.kill(servers[-1], signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT if how == "signal" else signal.SIGKILL)
        return how

    def interrupt_often(self, *arguments):
        """Every other copy gets further than those before it; the moment of the others is random."""
        arrived = 0
        for number in range(INTERRUPTIONS):
            process = self.start("cp", "--continue", "--json", "--progress", *SLOWLY, *arguments)
            if number % 2:
                arrived = self.await_more(process, arrived)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=self.random.uniform(0, 0.4))
            how = self.interrupt(process)
            result = self.finish_with_server(process)
            self.assertNotEqual(result.status, 0, (number, how, str(result)))
            self.assertNotIn("another copy", result.stderr, (number, how))
            self.assertFalse(self.target.exists(), (number, how))

    def test_a_file_survives_50_interruptions(self):
        content = self.plant(64 * MIB)
        self.interrupt_often(self.source, self.target)
        kept = self.complete()
        self.check(content)
        print("# kept %d bytes" % kept)
        self.assertGreater(kept, 10 * SEGMENT)

    def plant_tree(self):
        (self.source / "b/c/deep").mkdir(parents=True)
        (self.source / "empty").mkdir()
        (self.source / "link").symlink_to("/nowhere")
        (self.source / "b/zero").write_bytes(b"")
        for i in range(300):
            (self.source / ("b/c/%d" % i)).write_bytes(self.bytes(i * 40))
        for name in ("a", "b/big", "z"):
            (self.source / name).write_bytes(self.bytes(16 * MIB + 5))
        with open(self.source / "b/sparse", "wb") as file:
            file.truncate(64 * MIB)
            for offset in 0, 20 * MIB, 40 * MIB - 3:
                os.pwrite(file.fileno(), self.bytes(5 * MIB), offset)
        os.chmod(self.source / "a", 0o444)
        os.chmod(self.source / "b/c", 0o555)

    def test_a_tree_survives_50_interruptions(self):
        self.plant_tree()
        self.interrupt_often("-r", self.source, self.target)
        kept = self.complete("-r", self.source, self.target)
        print("# kept %d bytes" % kept)
        self.assertGreater(kept, 10 * SEGMENT)
        self.assertEqual(listing(self.source), listing(self.target))
        self.assertEqual(stat.S_IMODE((self.target / "a").stat().st_mode), 0o444)
        self.assertEqual(stat.S_IMODE((self.target / "b/c").stat().st_mode), 0o555)

    def test_nothing_is_left_without_the_option(self):
        self.plant(8 * MIB)
        for number in signal.SIGINT, signal.SIGTERM:
            process = self.start_slowly(source=self.source, target=self.target)
            process.send_signal(number)
            self.finish(process)
            self.assertEqual(os.listdir(self.folder), ["source"])

    def test_an_interrupted_copy_keeps_what_has_arrived(self):
        content = self.plant(8 * MIB)
        process = self.start_slowly("--continue", source=self.source, target=self.target)
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish_with_server(process).status, 128 + signal.SIGINT)
        self.assertEqual(stat.S_IMODE(self.partial.stat().st_mode), 0o600)
        self.assertGreater(self.complete(), 0)
        self.check(content)

    def test_a_second_copy_is_refused_while_one_writes(self):
        self.plant(64 * MIB)
        process = self.start_slowly("--continue", source=self.source, target=self.target)
        self.refused(1, "another copy with --continue writes", "cp", "--continue",
                     self.source, self.target)
        process.send_signal(signal.SIGINT)
        self.finish(process)
        self.partial.unlink()


class Files(Continued):
    """A partial file that the test has made, so that the kept bytes are known."""

    def test_what_is_there_is_kept(self):
        content = self.plant()
        for part, kept in ((b"", 0), (content[:MIB], MIB), (content[:MIB + 5], MIB),
                           (content, len(content)), (content + b"more", len(content))):
            with self.subTest(len(part)):
                self.leave((0, part))
                self.assertEqual(self.complete(), kept)
                self.check(content)

    def test_parts_anywhere_are_kept(self):
        content = self.plant(4 * MIB + 1000)
        for options in ((), ("--no-verify",), ("--chunk", "4K"), ("--chunk", "1G"),
                        ("--depth", "1"), ("-p",)):
            with self.subTest(options):
                self.leave((SEGMENT, content[SEGMENT:3 * SEGMENT]), (MIB, content[MIB:2 * MIB]),
                           (4 * MIB, content[4 * MIB:]))
                self.assertEqual(self.complete(*options, self.source, self.target),
                                 2 * SEGMENT + MIB + 1000)
                self.check(content)

    def test_a_changed_part_is_corrected(self):
        content = self.plant()
        for options in ((), ("--no-verify",)):
            with self.subTest(options):
                wrong = bytearray(content)
                for offset in 0, MIB + 5, len(content) - 1:
                    wrong[offset] ^= 1
                self.leave((0, wrong))
                self.assertEqual(self.complete(*options, self.source, self.target),
                                 len(content) - 3 * SEGMENT)
                self.check(content)

    def test_a_source_that_changed_is_copied_as_it_is_now(self):
        old = self.plant()
        for new in (old[:MIB] + self.bytes(MIB) + old[2 * MIB:], old[:MIB + 5], old + old, b"",
                    self.bytes(len(old))):
            with self.subTest(len(new)):
                self.leave((0, old))
                self.source.write_bytes(new)
                self.complete()
                self.check(new)

    def test_new_holes_replace_old_bytes(self):
        old = self.plant()
        self.leave((0, old))
        with open(self.source, "r+b") as file:
            file.truncate(MIB)
            file.truncate(8 * MIB)
            os.pwrite(file.fileno(), old[3 * MIB:], 3 * MIB)
        self.assertEqual(self.complete(), 2 * MIB)
        self.check(self.source.read_bytes())
        self.assertEqual(self.target.stat().st_blocks, self.source.stat().st_blocks)

    def test_holes_next_to_kept_bytes_stay_holes(self):
        with open(self.source, "wb") as file:
            file.truncate(64 * MIB)
            for offset in 5000, 30 * MIB + 7, 50 * MIB:
                os.pwrite(file.fileno(), self.bytes(MIB), offset)
        content = self.source.read_bytes()
        self.leave((30 * MIB, content[30 * MIB:32 * MIB]), (40 * MIB, bytes(MIB)))
        self.assertEqual(self.complete(), 3 * MIB)
        self.check(content)
        self.assertLess(self.target.stat().st_blocks * 512, 6 * MIB)

    def test_reserved_space_is_not_read(self):
        """Reading ahead makes it look like data to lseek(2), on ext4 for example."""
        content = self.plant(64 * MIB)
        self.leave((0, content[:MIB]))
        with open(self.partial, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, 64 * MIB)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # Of the processes that have ended, too: proc_pid_io(5).
        before = ("sh", "-c", '"$@" && cat /proc/$$/io', "sh")
        result = self.copy("--continue", "--json", self.source, self.target, before=before)
        end, _, counters = result.stdout.partition("\n")
        self.assertEqual(json.loads(end)["kept"], MIB)
        counters = dict(line.split(": ") for line in counters.splitlines())
        # The source is read for the transfer, and 1 MiB at each side for the comparison.
        self.assertLess(int(counters["rchar"]), 96 * MIB)

    def test_an_old_file_is_replaced(self):
        content = self.plant()
        self.target.write_bytes(b"old")
        self.target.chmod(0o640)
        self.leave((0, content[:MIB]))
        self.assertEqual(self.complete(), MIB)
        self.check(content)
        self.assertEqual(stat.S_IMODE(self.target.stat().st_mode), 0o640)

    def test_both_directions_continue(self):
        content = self.plant()
        env = {"STUB_HOME": str(self.folder)}
        for source, target in (("source", "somewhere:target"), ("somewhere:source", "target")):
            self.leave((0, content[:MIB]))
            self.assertEqual(self.complete("--rsh", STUB_RSH, "--remote-pier", PIER, "--device",
                                           "soft0", "--remote-device", "soft0", source, target,
                                           env=env), MIB)
            self.check(content)

    def test_without_files_that_have_no_name(self):
        content = self.plant()
        self.leave((0, content[:MIB]))
        self.assertEqual(self.complete(env=self.preload("NO_TMPFILE")), MIB)
        self.check(content)

    def test_a_file_system_without_holes_gets_zeroes_only_for_old_bytes(self):
        with open(self.source, "wb") as file:
            file.truncate(256 * MIB)
            os.pwrite(file.fileno(), self.bytes(MIB), 100 * MIB)
        for end in 2 * MIB, 200 * MIB:
            with self.subTest(end):
                self.leave((MIB, self.bytes(MIB)), (end - 1, b"x"))
                self.complete(env=self.disk_fault("no_punch"))
                self.check(self.source.read_bytes())
                self.assertLess(self.target.stat().st_blocks * 512, 8 * MIB)

    def test_a_full_disk_gets_back_what_was_reserved(self):
        content = self.plant(16 * MIB)
        self.leave((0, content[:MIB]))
        self.refused(1, "not enough space", "cp", "--continue", self.source, self.target,
                     env=self.disk_fault("full"))
        self.assertLess(self.partial.stat().st_blocks * 512, 2 * MIB)
        self.assertEqual(self.complete(), MIB)
        self.check(content)

    def test_a_long_search_for_data_is_no_silence(self):
        self.source.mkdir()
        (self.partial / "source").mkdir(parents=True)
        self.partial.chmod(STAGE_MODE)
        for number in range(64):
            self.plant(SEGMENT, "source/%d" % number)
            self.leave(partial=self.partial / ("source/%d" % number))
        self.complete("-r", self.source, self.target,
                      env=self.disk_fault("slow_seek", DISK_SLOW_MS="600"))
        self.assertEqual(listing(self.source), listing(self.target))

    def test_space_without_data_is_searched_once(self):
        content = self.plant(64 * MIB)
        self.leave((64 * MIB - 1, content[-1:]))
        result = self.copy("--continue", "--json", self.source, self.target,
                           env=self.disk_fault("slow_seek"))
        # A call for each segment would take 50 s.
        self.assertLess(json.loads(result.stdout)["seconds"], 25)
        self.check(content)

    def test_a_file_that_had_its_last_mode_is_continued(self):
        content = self.plant()
        self.leave((0, content[:MIB]))
        self.partial.chmod(0o444)
        self.assertEqual(self.complete(before=UNPRIVILEGED), MIB)
        self.check(content)

    def test_the_option_leaves_nothing_if_nothing_arrived(self):
        self.plant()
        self.refused(3, "no such device|none", "cp", "--continue", "--device", "none", self.source,
                     self.target)
        self.assertEqual(os.listdir(self.folder), ["source"])

    def test_a_dry_run_touches_nothing(self):
        content = self.plant()
        self.leave((0, content[:MIB]))
        before = self.partial.stat()
        self.copy("--continue", "-n", self.source, self.target)
        self.assertEqual(self.partial.stat(), before)
        self.assertFalse(self.target.exists())
        self.partial.unlink()

    def test_a_copy_without_the_option_leaves_the_part_alone(self):
        content = self.plant()
        self.leave((0, b"left"))
        self.copy(self.source, self.target)
        self.check(content)
        self.assertEqual(self.partial.read_bytes(), b"left")
        self.partial.unlink()

    def test_the_lines_count_what_is_kept(self):
        content = self.plant()
        self.leave((0, content[:2 * MIB]))
        result = self.copy("--continue", self.source, self.target)
        self.assertIn("4194304 bytes (2097152 kept) in", result.stdout)
        self.leave((0, content[:2 * MIB]))
        events, end = self.progress("--bwlimit", "2M")
        moving = [e for e in events if e["bytes_per_second"]]
        self.assertGreaterEqual(moving[0]["bytes"], 2 * MIB)
        # Twice the limit would mean that kept bytes are part of the rate.
        self.assertLess(max(e["bytes_per_second"] for e in moving), 8 * MIB)
        self.assertLess(end["bytes_per_second"], 3 * MIB)


    def progress(self, *options, **more):
        result = self.copy("--continue", "--json", "--progress", *options, self.source,
                           self.target, **more)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        return [e for e in events if e["event"] == "progress"], events[-1]

    def test_the_progress_counts_what_is_compared(self):
        content = self.plant(64 * MIB)
        self.leave((0, content))
        first = self.progress()[0][0]
        self.assertTrue(0 < first["bytes"] < len(content), first)
        self.assertEqual((first["bytes_per_second"], first["seconds_left"]), (0, None))

    def test_the_rate_begins_with_the_transfer(self):
        self.plant()
        self.leave(*((number * SEGMENT, b"x") for number in range(64)))
        events, end = self.progress("--bwlimit", "2M", env=self.disk_fault("slow_seek"))
        self.assertGreater(end["seconds"], 3)
        self.assertGreater(events[-1]["bytes_per_second"], MIB)


class Shared(Continued):
    """In a directory that others may write to, one of them may have the part open."""

    def setUp(self):
        super().setUp()
        self.place = self.folder / "place"
        self.place.mkdir()
        self.source.mkdir()
        self.content = self.file("source/file", 4 * MIB).read_bytes()
        # For the user that a case changes to.
        self.folder.chmod(0o711)

    def share(self, what):
        """Make the directory one that another user can put files into. Returns whether it is."""
        modes = {"group": 0o2775, "others": 0o757, "sticky": 0o1777, "private": 0o755}
        os.chown(self.place, OTHER_USER if what == "theirs" else -1, -1)
        self.place.chmod(modes.get(what, 0o755))
        return what != "private"

    def each(self):
        for what in ("group", "others", "sticky", "private", "theirs"):
            if what != "theirs" or os.geteuid() == 0:
                with self.subTest(what):
                    yield self.share(what)

    def check_apart(self, before, opened, target, shared):
        """Nothing was written into the file that was open, if another could have it open."""
        same = os.path.samestat(os.fstat(opened), target.stat())
        self.assertEqual(same, not shared)
        if shared:
            self.assertEqual(os.pread(opened, 5 * MIB, 0), before)
        self.assertEqual(target.read_bytes(), self.content)
        os.close(opened)

    def test_a_file_is_not_written_through_an_open_one(self):
        for shared in self.each():
            for before, mode, kept in ((b"minutes", 0o664, 0), (self.content[:MIB], 0o600, MIB),
                                       (self.content + b"more", 0o444, 4 * MIB)):
                partial, target = self.place / ".file.pier-partial", self.place / "file"
                self.leave((0, before), partial=partial)
                opened = os.open(partial, os.O_RDWR)
                partial.chmod(mode)
                self.assertEqual(self.complete("source/file", "place"), kept)
                self.check_apart(before, opened, target, shared)
                target.unlink()

    def test_a_tree_is_not_written_through_an_open_file(self):
        (self.source / "empty").write_bytes(b"")
        for shared in self.each():
            for into in "place", "place/new":
                name = "new" if into == "place/new" else "source"
                partial = self.place / (".%s.pier-partial" % name)
                (partial / "source").mkdir(parents=True)
                partial.chmod(STAGE_MODE)
                self.leave((0, self.content[:MIB]), partial=partial / "source/file")
                self.leave(partial=partial / "source/empty")
                opened = [os.open(partial / "source" / n, os.O_RDWR) for n in ("file", "empty")]
                self.assertEqual(self.complete("-r", "source", into), MIB)
                target = self.place / name
                self.assertEqual(listing(self.source), listing(target))
                self.assertEqual(os.path.samestat(os.fstat(opened[1]),
                                                  (target / "empty").stat()), not shared)
                os.close(opened[1])
                self.check_apart(self.content[:MIB], opened[0], target / "file", shared)
                shutil.rmtree(target)

    def test_holes_and_reserved_space_are_not_copied(self):
        self.share("group")
        partial, size = self.place / ".file.pier-partial", 64 * MIB
        with open(self.source / "file", "wb") as file:
            file.truncate(size)
            os.pwrite(file.fileno(), self.content[:MIB], 30 * MIB)
        with open(partial, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            os.pwrite(file.fileno(), self.content[:MIB], 30 * MIB)
            os.fsync(file.fileno())
        self.assertEqual(self.complete("source/file", "place"), MIB)
        self.check_same(self.source / "file", self.place / "file")
        self.assertLess((self.place / "file").stat().st_blocks * 512, 4 * MIB)

    def test_an_interruption_meanwhile_loses_nothing(self):
        self.share("group")
        partial = self.place / ".file.pier-partial"
        self.leave((0, self.content[:MIB]), partial=partial)
        # While the part is renewed, data is looked for: that takes 50 ms.
        process = self.start("cp", "--continue", "source/file", "place",
                             env=self.disk_fault("slow_seek"))
        self.wait_for(lambda: list(self.place.glob(".file.pier-tmp-*")), "there is no new file")
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(self.finish_with_server(process).status, 1)
        if partial.exists():
            self.assertEqual(partial.read_bytes()[:MIB], self.content[:MIB])
            self.assertEqual(self.complete("source/file", "place"), MIB)
        self.check_same(self.source / "file", self.place / "file")


class Strangers(Continued):
    """Other files with the name of the unfinished copy are refused."""

    def check_refused(self, pattern="is not from an interrupted copy of a file by this user"):
        self.plant(100)
        self.refused(1, pattern, "cp", "--continue", self.source, self.target)
        self.assertFalse(self.target.exists())

    def test_a_link_is_refused(self):
        other = self.file("other", b"other")
        self.partial.symlink_to("other")
        self.check_refused()
        self.partial.unlink()
        os.link(other, self.partial)
        self.check_refused()
        self.assertEqual(other.read_bytes(), b"other")
        self.partial.unlink()

    def test_what_is_no_file_is_refused(self):
        self.partial.mkdir()
        self.check_refused()
        self.partial.rmdir()
        os.mkfifo(self.partial)
        self.check_refused()
        self.partial.unlink()

    def test_a_file_of_another_user_is_refused(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a file that belongs to another user")
        self.leave((0, b"theirs"))
        os.chown(self.partial, 1, 1)
        self.check_refused()
        self.assertEqual(self.partial.read_bytes(), b"theirs")
        self.partial.unlink()

    def test_a_directory_that_was_moved_to_the_name_is_refused(self):
        """Another user may rename it, if the one above is not sticky."""
        self.source.mkdir()
        (self.source / "file").write_bytes(b"file")
        self.partial.mkdir(mode=0o700)
        mine = self.partial / "mine"
        mine.write_bytes(b"mine")
        for mode in 0o700, 0o755:
            self.partial.chmod(mode)
            self.refused(1, "not from an interrupted copy of a tree", "cp", "-r", "--continue",
                         self.source, self.target)
            self.assertEqual(mine.read_bytes(), b"mine")
        shutil.rmtree(self.partial)

    def test_new_files_may_belong_to_another_user(self):
        """On NFS, those of root do."""
        if os.geteuid() != 0:
            self.skipTest("only root can make a file that belongs to another user")
        place = self.folder / "place"
        place.mkdir()
        place.chmod(0o777)
        # The other user cannot reach it by an absolute path.
        self.folder.chmod(0o711)
        self.source.mkdir()
        content = self.file("source/file", 4 * MIB).read_bytes()
        for arguments, partial, part in (
                (("source/file", "place/x"), ".x.pier-partial", ""),
                (("-r", "source", "place/y"), ".y.pier-partial", "source/file")):
            with self.subTest(partial):
                partial = place / partial
                if part:
                    partial.mkdir()
                    (partial / part).parent.mkdir()
                    partial.chmod(STAGE_MODE)
                self.leave((0, content[:MIB]), partial=partial / part)
                for path in [partial, *partial.rglob("*")]:
                    os.chown(path, OTHER_USER, OTHER_USER)
                self.assertEqual(self.complete(*arguments, env=self.disk_fault("owner")),
                                 MIB)

    def test_the_part_is_no_source(self):
        self.leave((0, b"part"))
        self.refused(1, "the source is the unfinished copy", "cp", "--continue", self.partial,
                     self.target)
        self.assertEqual(self.partial.read_bytes(), b"part")
        self.partial.unlink()

    def test_a_name_that_is_too_long_is_refused(self):
        self.plant(100)
        self.refused(1, "File name too long", "cp", "--continue", self.source, "x" * 250)
        self.copy("--continue", self.source, "x" * 241)

    def test_a_lock_is_waited_for(self):
        """The process of the copy before may still be about to end."""
        content = self.plant(100)
        self.leave((0, b""))
        with open(self.partial, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            process = self.start("cp", "--continue", self.source, self.target)
            self.wait_for(lambda: any(map(self.has_partial_open, self.processes())),
                          "it does not open the file")
        self.assertEqual(self.finish(process).status, 0)
        self.check(content)

    def has_partial_open(self, pid):
        # The process and its descriptors come and go meanwhile.
        with contextlib.suppress(FileNotFoundError):
            for fd in os.listdir("/proc/%d/fd" % pid):
                with contextlib.suppress(FileNotFoundError):
                    if self.partial.samefile("/proc/%d/fd/%s" % (pid, fd)):
                        return True
        return False

    def test_a_write_only_server_refuses(self):
        """The digests would let a client test guesses about what others sent."""
        self.plant(100)
        place = self.folder / "place"
        place.mkdir()
        shell = self.folder / "shell"
        for options, status in (("--write-only", 1), ("", 0)):
            shell.write_text("#!/bin/sh\nexec '%s' cp --server --under '%s' %s\n" %
                             (PIER, place, options))
            shell.chmod(0o755)
            result = self.run_pier("cp", "--continue", "--rsh", "'%s'" % shell, "--device", "soft0",
                                   "--remote-device", "soft0", self.source, "somewhere:target")
            self.assertEqual(result.status, status, str(result))
            self.assertEqual("write-only" in result.stderr, status == 1)


    def test_a_directory_that_cannot_be_written_is_noticed_first(self):
        place = self.folder / "place"
        (place / ".y.pier-partial/source").mkdir(parents=True)
        (place / ".y.pier-partial").chmod(STAGE_MODE)
        (self.source / "b").mkdir(parents=True)
        content = self.file("source/file", MIB).read_bytes()
        for arguments, part in (((self.source / "file", place / "x"), ".x.pier-partial"),
                                (("-r", self.source, place / "y"),
                                 ".y.pier-partial/source/file")):
            self.leave((0, content), partial=place / part)
            before = listing(place)
            place.chmod(0o555)
            self.refused(1, "cannot keep an unfinished copy of .*: Permission denied", "cp",
                         "--continue", *arguments, before=UNPRIVILEGED)
            place.chmod(0o755)
            self.assertEqual(listing(place), before)
            self.assertEqual(self.complete(*arguments, before=UNPRIVILEGED), MIB)


class Trees(Continued):
    def setUp(self):
        super().setUp()
        (self.source / "b").mkdir(parents=True)
        for name in ("a", "b/one", "b/two", "c"):
            (self.source / name).write_bytes(self.bytes(MIB))
        self.stage = self.partial / "source"

    def leave_tree(self):
        self.partial.mkdir(mode=STAGE_MODE)
        shutil.copytree(self.source, self.stage)

    def complete_tree(self):
        kept = self.complete("-r", self.source, self.target)
        self.assertEqual(listing(self.source), listing(self.target))
        self.assertFalse(self.partial.exists())
        shutil.rmtree(self.target)
        return kept

    def test_what_is_there_is_kept(self):
        self.leave_tree()
        self.assertEqual(self.complete_tree(), 4 * MIB)
        self.leave_tree()
        (self.stage / "a").unlink()
        os.truncate(self.stage / "b/two", MIB - 5)
        (self.stage / "c").write_bytes(b"longer" * MIB)
        self.assertEqual(self.complete_tree(), 2 * MIB - SEGMENT)

    def test_the_directory_above_may_become_set_gid_or_lose_it(self):
        for above, mode in (0o2775, STAGE_MODE), (0o755, STAGE_MODE | stat.S_ISGID):
            self.leave_tree()
            self.folder.chmod(above)
            self.partial.chmod(mode)
            self.assertEqual(self.complete_tree(), 4 * MIB)

    def test_the_tree_may_change(self):
        self.leave_tree()
        (self.source / "0").write_bytes(self.bytes(5))
        (self.source / "c").rename(self.source / "d")
        (self.source / "b/link").symlink_to("one")
        (self.source / "b/two").write_bytes((self.source / "b/two").read_bytes()[:MIB // 2])
        (self.source / "a").unlink()
        (self.source / "a/a").mkdir(parents=True)
        self.assertGreater(self.complete_tree(), MIB)

    def test_what_the_list_does_not_have_is_removed(self):
        self.leave_tree()
        (self.stage / "other").write_bytes(b"other")
        (self.stage / "b/x/y/z").mkdir(parents=True)
        (self.stage / "b/x/y/z/file").write_bytes(b"deep")
        (self.stage / "b/link").symlink_to("/etc")
        (self.partial / "top").mkdir()
        (self.stage / "a").unlink()
        (self.stage / "a").symlink_to(self.folder / "outside")
        (self.stage / "c").unlink()
        (self.stage / "c").mkdir()
        (self.stage / "c/file").write_bytes(b"in the place of a file")
        self.assertEqual(self.complete_tree(), 2 * MIB)
        self.assertFalse((self.folder / "outside").exists())

    def test_a_long_removal_is_no_silence(self):
        self.leave_tree()
        (self.stage / "old/deep").mkdir(parents=True)
        for number in range(64):
            (self.stage / "old/deep" / str(number)).write_bytes(b"")
        self.complete("-r", self.source, self.target,
                      env=self.disk_fault("slow_unlink", DISK_SLOW_MS="600"))
        self.assertEqual(listing(self.source), listing(self.target))

    def test_last_modes_do_not_hinder(self):
        self.leave_tree()
        (self.stage / "b/old").mkdir()
        (self.stage / "b/old/file").write_bytes(b"old")
        for path, mode in (("a", 0o444), ("b/one", 0), ("b/old", 0), ("b", 0o555)):
            os.chmod(self.stage / path, mode)
        self.assertEqual(self.complete("-r", self.source, self.target, before=UNPRIVILEGED), 4 * MIB)
        self.assertEqual(listing(self.source), listing(self.target))

    def test_new_holes_replace_old_bytes(self):
        self.leave_tree()
        for name in ("a", "c"):
            with open(self.source / name, "r+b") as file:
                file.truncate(0)
                file.truncate(5 * MIB)
                os.pwrite(file.fileno(), b"x", 3 * MIB)
        self.complete_tree()

    def test_a_merged_tree_is_continued(self):
        self.target.mkdir()
        (self.target / "source").mkdir()
        (self.target / "source/stays").write_bytes(b"stays")
        partial = self.target / ".source.pier-partial"
        partial.mkdir(mode=STAGE_MODE)
        shutil.copytree(self.source, partial / "source")
        self.assertEqual(self.complete("-r", self.source, self.target), 4 * MIB)
        (self.source / "stays").write_bytes(b"stays")
        self.assertEqual(listing(self.source), listing(self.target / "source"))

    def test_the_part_is_no_source(self):
        self.leave_tree()
        before = listing(self.partial)
        self.refused(1, "is the unfinished copy in", "cp", "-r", "--continue", self.stage,
                     self.target)
        self.assertEqual(listing(self.partial), before)
        shutil.rmtree(self.partial)

    def test_a_tree_is_kept_if_its_place_is_taken(self):
        self.target.mkdir()
        taken = self.target / "source"
        taken.write_bytes(b"taken")
        result = self.run_pier("cp", "-r", "--continue", self.source, self.target)
        self.assertEqual(result.status, 1)
        taken.unlink()
        self.assertEqual(self.complete("-r", self.source, self.target), 4 * MIB)
        self.assertEqual(listing(self.source), listing(taken))

    def test_a_file_of_the_name_is_refused(self):
        inner = self.source / ".tree.pier-partial"
        inner.mkdir()
        self.refused(1, "one of the files has the name of the unfinished copy", "cp", "-r",
                     "--continue", "source/.", "target")
        inner.rmdir()

    def test_the_option_leaves_nothing_if_nothing_arrived(self):
        (self.source / "empty/empty").mkdir(parents=True)
        self.refused(3, "no such device|none", "cp", "-r", "--continue", "--device", "none",
                     self.source, self.target)
        self.assertEqual(os.listdir(self.folder), ["source"])

    def test_a_second_copy_is_refused(self):
        self.leave_tree()
        lock = os.open(self.partial, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.refused(1, "another copy with --continue writes", "cp", "-r", "--continue",
                     self.source, self.target)
        os.close(lock)
        self.complete_tree()


main(at_once=4)

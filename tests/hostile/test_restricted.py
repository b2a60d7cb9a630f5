#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Clients that try to get more than `pier cp --server --under DIR` allows."""

import ctypes
import os
import stat
import subprocess
import sys
import threading
import time

from harness import Case, PIER, main

SECRET = b"outside\n"
# seccomp(2): openat2(2), number 437 on every architecture, fails with ENOSYS.
WITHOUT_OPENAT2 = """#!%s
import ctypes, os, struct
prctl = ctypes.CDLL(None, use_errno=True).prctl
code = b"".join(struct.pack("<HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x00050000 | 38),
    (0x06, 0, 0, 0x7fff0000)))
buffer = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("@HP", 4, ctypes.addressof(buffer)))
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program, 0, 0) == 0
os.execv(%r, ["pier", "cp", "--server", "--under", %r])
"""


class Restricted(Case):
    """The server serves `inside`; `outside` is next to it."""

    def setUp(self):
        super().setUp()
        self.inside = self.folder / "inside"
        self.outside = self.folder / "outside"
        (self.inside / "directory").mkdir(parents=True)
        (self.outside / "directory").mkdir(parents=True)
        self.secret = self.outside / "secret"
        self.secret.write_bytes(SECRET)
        (self.inside / "file").write_bytes(b"inside\n")
        self.source = self.file("source", b"new\n")

    def shell(self, *options, under=None):
        """Like sshd(8) with command= in authorized_keys: ignores the client's command."""
        program = self.folder / "shell"
        words = " ".join("'%s'" % w for w in (PIER, "cp", "--server", "--under",
                                              under or self.inside, *options))
        program.write_text("#!/bin/sh\nSSH_ORIGINAL_COMMAND=\"$*\" exec %s\n" % words)
        program.chmod(0o755)
        return "'%s'" % program

    def pull(self, path, *server, under=None, options=()):
        (self.folder / "fetched").unlink(missing_ok=True)
        return self.run_pier("cp", *options, "--rsh", self.shell(*server, under=under),
                             "somewhere:%s" % path, "fetched")

    def push(self, path, *server, under=None, options=()):
        return self.run_pier("cp", *options, "--rsh", self.shell(*server, under=under),
                             self.source, "somewhere:%s" % path)

    def check_done(self, result):
        self.assertEqual((result.status, result.stderr), (0, ""), str(result))

    def check_outside(self):
        """Nothing outside was fetched or changed."""
        self.assertFalse((self.folder / "fetched").exists())
        self.assertEqual(self.secret.read_bytes(), SECRET)
        self.assertEqual({p.name for p in self.outside.rglob("*")}, {"secret", "directory"})


class ServedFiles(Restricted):
    """What a client is allowed to do."""

    def setUp(self):
        super().setUp()
        (self.inside / "link").symlink_to("directory/../file")
        (self.inside / "folder").symlink_to("directory")

    def test_files_below_the_directory_are_read(self):
        for path in ("file", "/file", "//file", "./file", "directory/../file", "link",
                     "folder/../file"):
            with self.subTest(path):
                self.check_done(self.pull(path))
                self.check_same(self.inside / "file", self.folder / "fetched")

    def test_files_below_the_directory_are_written(self):
        for path, name in (("new", "new"), ("/new", "new"), ("file", "file"), ("link", "file"),
                           ("", "source"), (".", "source"), ("/", "source"),
                           ("directory", "directory/source"),
                           ("/folder/", "directory/source"),
                           ("folder/new", "directory/new")):
            with self.subTest(path):
                target = self.inside / name
                if name != "file":
                    target.unlink(missing_ok=True)
                self.check_done(self.push(path))
                self.check_same(self.source, target)
                target.write_bytes(b"old")
        self.assertTrue((self.inside / "link").is_symlink())

    def test_the_root_directory_can_be_served(self):
        self.check_done(self.pull(self.secret, under="/"))
        self.check_same(self.secret, self.folder / "fetched")
        (self.outside / "link").symlink_to("secret")
        self.check_done(self.push(self.outside / "link", under="/"))
        self.check_same(self.source, self.secret)


class Escapes(Restricted):
    """All targets are files of the test, so a broken server does no harm."""

    def refused_everywhere(self, path, pattern="leads out of the directory that is served"):
        for result in (self.pull(path), self.push(path), self.push(path + "/new")):
            self.check_failure(result, 1, pattern)
        self.check_outside()

    def test_parent_directories_are_refused(self):
        for path in ("..", "../outside", "../outside/secret", "/../outside/secret",
                     "directory/../../outside/secret", "../inside/file", "./../outside/secret"):
            with self.subTest(path):
                self.refused_everywhere(path)

    def test_absolute_paths_begin_at_the_directory(self):
        for path in (str(self.secret), "/" + str(self.secret)):
            with self.subTest(path):
                self.check_failure(self.pull(path), 1, "cannot read .*: No such file")
                self.check_failure(self.push(path), 1, "cannot write .*: No such file")
                self.check_outside()

    def test_symbolic_links_that_lead_out_are_refused(self):
        for name, target in (("file-out", "../outside/secret"), ("absolute", self.secret),
                             ("directory-out", "../outside"), ("up", ".."),
                             ("folder-out", self.outside), ("nowhere", "../outside/nowhere"),
                             ("twice", "directory-out/secret"),
                             ("back", self.inside / "file")):
            with self.subTest(name):
                (self.inside / name).symlink_to(target)
                self.refused_everywhere(name)

    def test_links_in_the_middle_of_a_path_are_refused(self):
        (self.inside / "out").symlink_to("../outside")
        (self.inside / "directory/source").symlink_to("../../outside/secret")
        self.check_failure(self.pull("out/secret"), 1, "leads out")
        for path in ("out/secret", "out/directory", "out/new", "directory"):
            with self.subTest(path):
                self.check_failure(self.push(path), 1, "leads out")
        self.check_outside()

    def test_errors_do_not_reveal_files_outside(self):
        """The message is the same whether or not the target exists."""
        for there, missing in (("../outside", "../nowhere"), ("/outside-link", "/nowhere-link"),
                               ("up/outside", "up/nowhere"), ("../outside/secret", "../a/b/c"),
                               ("secret-link", "secret-none")):
            for name in (there, missing):
                if "-" in name:
                    link = self.inside / name.strip("/")
                    place = {"outside-link": self.outside, "secret-link": self.secret}
                    link.symlink_to(place.get(link.name, self.folder / "nowhere/at/all"))
            if not (self.inside / "up").is_symlink():
                (self.inside / "up").symlink_to("..")
            for copy in (self.pull, self.push, lambda path: self.push(path + "/x"),
                         lambda path: self.pull(path + "/x")):
                with self.subTest((there, missing)):
                    words = {copy(path).stderr.replace(path, "PATH")
                             for path in (there, missing)}
                    self.assertEqual(len(words), 1, words)

    def test_magic_links_are_refused(self):
        """Magic links, such as proc_pid_root(5), lead anywhere without a path."""
        for path in ("self/root%s" % self.secret, "self/cwd/x", "self/exe", "self/fd/0",
                     "thread-self/root%s" % self.secret):
            with self.subTest(path):
                result = self.pull(path, under="/proc")
                self.check_failure(result, 1, "leads out|Too many levels")
                self.check_outside()
        result = self.push("proc/self/cwd/x", under="/")
        self.check_failure(result, 1, "leads out|Too many levels")

    def test_a_directory_swapped_with_a_link_is_safe(self):
        """While both are swapped continuously, each copy stays inside or is refused."""
        for place, content in ((self.inside, b"inside\n"), (self.outside, SECRET)):
            (place / "directory/target").write_bytes(content)
        (self.inside / "other").symlink_to("../outside/directory")
        stop = threading.Event()
        swapper = threading.Thread(target=self.swap, args=(stop,))
        swapper.start()
        self.addCleanup(swapper.join)
        self.addCleanup(stop.set)
        deadline = time.monotonic() + 20
        seen = set()
        for i in range(60):
            if time.monotonic() > deadline and len(seen) == 4:
                break
            result = self.push("directory/target") if i % 2 else self.pull("directory/target")
            seen.add((i % 2, result.status))
            self.assertIn(result.status, (0, 1), str(result))
            self.assertEqual((self.outside / "directory/target").read_bytes(), SECRET)
            self.assertEqual(os.listdir(self.outside / "directory"), ["target"])
            if not i % 2 and result.status == 0:
                self.assertIn((self.folder / "fetched").read_bytes(), (b"inside\n", b"new\n"))

    def swap(self, stop):
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        names = [os.fsencode(self.inside / name) for name in ("directory", "other")]
        while not stop.is_set():
            renameat2(-100, names[0], -100, names[1], 2)  # AT_FDCWD, RENAME_EXCHANGE


class FileKinds(Restricted):
    """Files for which opening or writing has side effects."""

    def test_a_pipe_is_neither_opened_nor_written(self):
        pipe = self.inside / "pipe"
        os.mkfifo(pipe)
        self.check_failure(self.push("pipe"), 1, "exists and is not a regular file")
        # A waiting writer must not be woken.
        writer = subprocess.Popen(["sh", "-c", 'echo words >"$1"', "sh", pipe])
        self.addCleanup(writer.wait)
        self.addCleanup(writer.kill)
        self.wait_for(lambda: self.waits(writer.pid), "the writer does not wait")
        self.check_failure(self.pull("pipe"), 1, "not a regular file")
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.wait_for(lambda: self.has(reader, b"words\n"), "the writer was woken", 10)

    def has(self, reader, words):
        try:
            return os.read(reader, 100) == words
        except BlockingIOError:
            return False

    def waits(self, pid):
        """Whether the process waits in open(2) for a reader."""
        try:
            with open("/proc/%d/syscall" % pid) as file:
                number = file.read().split()[0]
        except OSError as error:
            self.skipTest("/proc/PID/syscall cannot be read: %s" % error)
        return number in ("2", "257", "56")

    def test_a_device_is_refused(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make devices")
        os.mknod(self.inside / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        self.check_failure(self.pull("device"), 1, "not a regular file")
        self.check_failure(self.push("device"), 1, "exists and is not a regular file")

    def test_a_directory_is_refused(self):
        self.check_failure(self.pull("directory"), 1, "is a directory")
        (self.inside / "directory/source").mkdir()
        self.check_failure(self.push("directory"), 1, "exists and is not a regular file")


class Directions(Restricted):
    def test_a_read_only_server_refuses_writes(self):
        self.check_done(self.pull("file", "--read-only"))
        for path in ("new", "file", "directory", "../outside/secret", "none/x"):
            with self.subTest(path):
                self.check_failure(self.push(path, "--read-only"), 1, "the server is read-only")
        self.assertEqual((self.inside / "file").read_bytes(), b"inside\n")
        self.assertEqual(sorted(os.listdir(self.inside)), ["directory", "file"])

    def test_a_write_only_server_refuses_reads(self):
        self.check_done(self.push("new", "--write-only"))
        for path in ("file", "none", "directory", "../outside/secret"):
            with self.subTest(path):
                result = self.pull(path, "--write-only")
                self.check_failure(result, 1, "the server is write-only")
                self.check_outside()

    def test_a_fault_plan_is_refused(self):
        plan = "fault:reg@1=ENOMEM:soft0"
        for copy in (self.pull, self.push):
            for names in (plan, "soft0," + plan):
                result = copy("file", options=("--remote-device", names))
                self.check_failure(result, 3, "the server does not accept a fault plan")
        self.check_outside()
        self.assertEqual((self.inside / "file").read_bytes(), b"inside\n")
        self.check_done(self.pull("file", options=("--remote-device", "soft0")))

    def test_the_command_line_of_the_client_is_ignored(self):
        """The client can choose neither the program nor the server's options."""
        shell = self.shell("--read-only")
        result = self.run_pier("cp", "--rsh", shell, "--remote-pier", "pier cp --server #",
                               self.source, "somewhere:new")
        self.check_failure(result, 1, "the server is read-only")


class Startup(Restricted):
    def server(self, *options):
        return subprocess.run([PIER, "cp", "--server", *options], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60,
                              env=self.environment())

    def test_wrong_options_are_refused(self):
        inside = str(self.inside)
        for options, pattern in (
                (("--under",), "needs a value"),
                (("--under", inside, "--read-only", "--write-only"), "mutually exclusive"),
                (("--under", inside, "--under", "/"), "given twice"),
                (("--read-only",), "require --under"), (("--write-only",), "require --under"),
                (("--under", inside, "--read"), "is unknown"),
                (("--under", inside, "--device", "soft0"), "is unknown"),
                (("--under", inside, "-p"), "is unknown"),
                (("--under", inside, "--read-only=1"), "takes no value"),
                (("--under", inside, "file"), "takes no paths"),
                (("--under", inside, "--", "--write-only"), "takes no paths")):
            with self.subTest(options):
                result = self.server(*options)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertRegex(result.stderr, r"\Apier cp: [^\n]*%s[^\n]*\n\Z" % pattern)

    def test_a_directory_that_cannot_be_opened_is_refused(self):
        for under, pattern in ((self.folder / "none", "No such file"),
                               (self.source, "Not a directory"), ("", "No such file")):
            with self.subTest(under):
                result = self.server("--under", str(under))
                self.assertEqual((result.returncode, result.stdout), (1, ""))
                self.assertRegex(result.stderr, r"\Apier: cannot serve .*%s[^\n]*\n\Z" % pattern)

    def test_a_kernel_without_openat2_is_refused(self):
        program = self.folder / "old"
        program.write_text(WITHOUT_OPENAT2 % (sys.executable, PIER, str(self.inside)))
        program.chmod(0o755)
        result = self.run_pier("cp", "--rsh", "'%s'" % program, "somewhere:file", "fetched")
        self.assertEqual(result.status, 4, str(result))
        self.assertIn("--under needs openat2(2)", result.stderr)
        self.check_outside()


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp with "-" in place of a file: standard input, and standard output."""

import fcntl
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import termios
import time

from harness import HERE, MIB, PIER, PROMISE, STUB_RSH, Case, default_signals, each, main, slowness

CHUNK = 65536
# In seconds: longer than the default of --timeout.
SILENCE = 35
SUMMARY = r"\A%d bytes in [^\n]*, verified(?: as read)?: [^\n]*\n\Z"


class Standard(Case):
    def setUp(self):
        super().setUp()
        self.home = self.folder / "home of one"
        self.home.mkdir()
        self.stub = {"PIER_RSH": STUB_RSH, "PIER_REMOTE_PIER": PIER, "STUB_HOME": str(self.home)}

    def pipe(self):
        """Both ends, which are closed at the end of the test."""
        ends = [os.fdopen(fd, mode, buffering=0) for fd, mode in zip(os.pipe(), ("rb", "wb"))]
        for end in ends:
            self.addCleanup(end.close)
        return ends

    def start_cp(self, *arguments, **options):
        return self.start("cp", *arguments, env=self.stub, **options)

    def put(self, data, *arguments, **options):
        """The result of a copy whose standard input is a pipe with these bytes."""
        feeder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = self.start_cp(*arguments, stdin=feeder.stdout, **options)
        feeder.stdout.close()
        try:
            feeder.stdin.write(data)
            feeder.stdin.close()
        except BrokenPipeError:
            pass
        result = self.finish(process)
        feeder.wait()
        return result

    def get(self, *arguments, **options):
        """The result of a copy whose standard output is a pipe, and the bytes from there."""
        reader, writer = self.pipe()
        process = self.start_cp(*arguments, stdout=writer, **options)
        writer.close()
        data = reader.read()
        return self.finish(process), data

    def check_silent(self, result):
        self.assertEqual((result.status, result.stderr), (0, ""), str(result))

    def check_failure_of(self, process, status, pattern):
        """It fails soon, whatever its standard input or output waits for."""
        broken = time.monotonic()
        result = self.finish(process)
        self.assertLess(time.monotonic() - broken, PROMISE * slowness())
        result.stderr = "".join(line for line in result.stderr.splitlines(True)
                                if not re.match(r" *(\d+% )?[\d.]+ (bytes|[KMG]iB)", line))
        self.check_failure(result, status, pattern)


class Input(Standard):
    def start_waiting(self, *arguments, target="somewhere:copy", **options):
        """A copy whose standard input is silent after the first bytes, and the pipe to it."""
        reader, writer = self.pipe()
        process = self.start_cp("--progress", "--chunk", "64K", *arguments, "-", target, stdin=reader, **options)
        reader.close()
        # More than a pipe holds.
        for _ in range(8):
            writer.write(self.bytes(CHUNK // 2))
        for line in process.stderr:
            if not line.startswith("0 bytes, "):
                break
        self.assertRegex(line, r"\A[\d.]+ KiB, [\d.]+ [KM]?B/s\n\Z")
        return process, writer

    @each(0, 1, 4095, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * MIB + 12345)
    def test_the_file_gets_all_bytes_of_a_pipe(self, size):
        data = self.bytes(size)
        for target, place in ("somewhere:copy", self.home / "copy"), ("copy", self.folder / "copy"):
            for options in ("--chunk", "64K", "--depth", 3), ("--chunk", "4K", "--depth", 1), ("--no-verify",):
                with self.subTest((target, options)):
                    result = self.put(data, *options, "-", target)
                    self.check_silent(result)
                    self.assertIn("%d bytes in " % size, result.stdout)
                    self.assertTrue(place.read_bytes() == data)

    def test_a_large_input_past_the_page_cache(self):
        data = self.bytes(MIB) * 40 + b"the end"
        self.check_silent(self.put(data, "-", "somewhere:copy"))
        self.assertTrue((self.home / "copy").read_bytes() == data)

    def test_a_redirected_file_is_read_from_its_offset(self):
        source = self.file("source", MIB)
        with open(source, "rb") as file:
            os.lseek(file.fileno(), 1000, os.SEEK_SET)
            self.check_silent(self.finish(self.start_cp("-", "somewhere:copy", stdin=file)))
        self.assertTrue((self.home / "copy").read_bytes() == source.read_bytes()[1000:])

    def test_an_old_file_is_replaced_with_its_mode(self):
        old = self.home / "copy"
        old.write_bytes(b"old")
        old.chmod(0o640)
        self.check_silent(self.put(b"new", "-", "somewhere:copy"))
        self.assertEqual((old.read_bytes(), old.stat().st_mode & 0o777), (b"new", 0o640))
        self.check_silent(self.put(b"new", "-", "somewhere:fresh"))
        self.assertEqual((self.home / "fresh").stat().st_mode & 0o777, 0o644)

    def test_a_terminal_ends_with_one_ctrl_d(self):
        controller, terminal = pty.openpty()
        process = self.start_cp("-", "copy", stdin=terminal)
        os.write(controller, b"typed\n\x04")
        self.check_silent(self.finish(process))
        os.close(controller)
        os.close(terminal)
        self.assertEqual((self.folder / "copy").read_bytes(), b"typed\n")

    def test_a_silent_input_does_not_time_out(self):
        process, writer = self.start_waiting()
        time.sleep(SILENCE)
        writer.write(b"the end")
        writer.close()
        self.assertEqual(self.finish(process).status, 0)
        self.assertEqual((self.home / "copy").stat().st_size, 4 * CHUNK + 7)

    def test_a_signal_while_the_input_is_silent_leaves_nothing(self):
        for number, status in (signal.SIGINT, 130), (signal.SIGTERM, 143):
            process, _ = self.start_waiting()
            process.send_signal(number)
            self.check_failure_of(process, status, "interrupted|terminated")
            self.assertEqual(list(self.home.iterdir()), [])

    def test_a_killed_server_ends_the_copy_while_the_input_is_silent(self):
        process, _ = self.start_waiting()
        os.kill(self.server_of(process), signal.SIGKILL)
        self.check_failure_of(process, 4, "ended before the copy was complete")
        self.assertEqual(list(self.home.iterdir()), [])

    def test_a_killed_client_leaves_the_old_file(self):
        old = self.home / "copy"
        old.write_bytes(b"old")
        process, _ = self.start_waiting()
        process.kill()
        self.finish(process)
        self.wait_for(lambda: not self.processes(), "the server is left")
        self.assertEqual([path.name for path in self.home.iterdir()], ["copy"])
        self.assertEqual(old.read_bytes(), b"old")

    def test_a_file_that_becomes_too_large_leaves_nothing(self):
        def limit():
            default_signals()
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        # The limit also applies to memfds.
        result = self.put(self.bytes(4 * MIB), "--src-mem", "host", "--dst-mem", "host", "-", "somewhere:copy",
                          preexec_fn=limit)
        self.check_failure(result, 1, "cannot write copy: File too large")
        self.assertEqual(list(self.home.iterdir()), [])

    def test_a_full_disk_leaves_the_old_file(self):
        disk = self.folder / "disk"
        disk.mkdir()
        script = 'mount -t tmpfs -o size=2m none "$1" && cd "$1" && echo old >copy && shift && "$@"; ' \
                 'status=$?; ls -A; cat copy; exit $status'
        before = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-r", "-m"]), "sh", "-c", script, "sh", disk]
        if subprocess.run([*before, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no small file system can be mounted here")
        result = self.put(self.bytes(4 * MIB), "-", "copy", before=before)
        self.assertEqual(result.stdout, "copy\nold\n")
        self.check_failure(result, 1, "cannot write copy: No space left on device")

    def test_an_input_that_cannot_be_read_is_refused_before_the_start(self):
        for redirection, reason in (("<&-", "Bad file descriptor"), ("0>out", "Bad file descriptor"),
                                    ("<.", "Is a directory")):
            with self.subTest(redirection):
                done = subprocess.run(["sh", "-c", 'exec "$0" cp - somewhere:copy %s' % redirection, PIER],
                                      cwd=self.folder, env=self.environment(PIER_RSH="false"), check=False,
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stdout, done.stderr),
                                 (1, "", "pier: cannot read standard input: %s\n" % reason))

    def test_a_directory_is_no_destination(self):
        result = self.put(b"some", "-", "somewhere:")
        self.check_failure(result, 1, r"somewhere: \. is a directory, and standard input has no name: add one")
        self.assertEqual(list(self.home.iterdir()), [])

    def test_json_knows_no_total(self):
        result = self.put(self.bytes(MIB), "--json", "--progress", "--bwlimit", "1M", "-", "copy")
        self.check_silent(result)
        start, *progress, end = map(json.loads, result.stdout.splitlines())
        self.assertEqual(start, {"event": "start", "total": None})
        self.assertGreater(len(progress), 0)
        for event in progress:
            self.assertEqual((event["event"], event["total"], event["seconds_left"]), ("progress", None, None))
        self.assertEqual((end["bytes"], end["verified"], end["source"]["file"]), (MIB, True, "-"))

    def test_a_flipped_bit_is_detected(self):
        self.stub["PIER_BACKEND_PATH"] = os.path.dirname(os.environ["FAULTY_BACKEND"])
        for size in MIB, 1000:
            result = self.put(self.bytes(size), "--chunk", "128K", "--dst-mem", "faulty:flip2", "-", "copy")
            self.check_failure(result, 5, "verification failed")
            self.assertFalse((self.folder / "copy").exists())


class Destinations(Standard):
    def setUp(self):
        super().setUp()
        for name in "host1", "host2", "host3":
            (self.home / name).mkdir()
        self.stub = {"PIER_RSH": "'%s'" % (HERE / "stub_hosts"), "PIER_REMOTE_PIER": PIER,
                     "STUB_HOSTS": str(self.home), "PIER_SOFT_PEERS": "none"}
        self.places = ["host%d:copy" % i for i in (1, 2, 3)]

    def check_copies(self, data, *names):
        for i in (1, 2, 3):
            copy = self.home / ("host%d" % i) / "copy"
            self.assertEqual(copy.exists(), i in names)
            self.assertTrue(i not in names or copy.read_bytes() == data)

    def test_standard_input_is_copied_to_several_hosts(self):
        for size in 0, 5 * MIB + 12345:
            data = self.bytes(size)
            result = self.put(data, "--chunk", "64K", "-", *self.places)
            self.check_silent(result)
            self.assertIn("3 destinations, %d bytes in " % size, result.stdout)
            self.check_copies(data, 1, 2, 3)

    def test_a_host_that_cannot_write_is_left_out(self):
        data = self.bytes(4 * MIB)
        (self.home / "host2" / ".profile").write_text("ulimit -f 2048\n")
        result = self.put(data, "--chunk", "64K", "-", *self.places)
        self.assertEqual(result.status, 1)
        self.assertRegex(result.stderr, "host2: cannot write copy: File too large; the copy goes on without it\n")
        self.check_copies(data, 1, 3)

    def test_a_host_whose_connection_fails_is_not_tried_again(self):
        """There is nothing left to read for it."""
        data = self.bytes(4 * MIB)
        (self.home / "host3" / ".profile").write_text(
            "[ -e .broken ] || export PIER_DEVICE=fault:wc@40+=REM_ACCESS_ERR:soft0\ntouch .broken\n")
        result = self.put(data, "--chunk", "64K", "-", *self.places)
        self.assertNotEqual(result.status, 0)
        self.assertIn("the copy goes on without it\n", result.stderr)
        self.check_copies(data, 1, 2)


class Output(Standard):
    def start_waiting(self, *arguments):
        """A copy whose standard output nobody reads, when its pipe is full; and the pipe."""
        source = self.file("slow", 8 * MIB)
        reader, writer = self.pipe()
        process = self.start_cp("--chunk", "64K", *arguments, "somewhere:%s" % source, "-", stdout=writer)
        room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
        writer.close()
        self.wait_for(lambda: struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"    "))[0] == room,
                      "the pipe is not full")
        return process, reader, source

    @each(0, 1, 4095, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * MIB + 12345)
    def test_a_pipe_gets_all_bytes_of_the_file(self, size):
        source = self.file("source", size)
        for path in "somewhere:%s" % source, source:
            for options in ("--chunk", "64K", "--depth", 3), ("--chunk", "4K", "--depth", 1), ("--no-verify", "-q"):
                with self.subTest((path, options)):
                    result, data = self.get(*options, path, "-")
                    self.assertEqual(result.status, 0, str(result))
                    self.assertTrue(data == source.read_bytes())
                    self.assertRegex(result.stderr, r"\A\Z" if "-q" in options else SUMMARY % size)

    def test_a_file_as_standard_output(self):
        source = self.file("source", 3 * MIB + 1)
        with open(self.folder / "copy", "wb") as copy:
            copy.write(b"before ")
            copy.flush()
            result = self.finish(self.start_cp("somewhere:%s" % source, "-", stdout=copy))
        self.assertEqual(result.status, 0, str(result))
        self.assertTrue((self.folder / "copy").read_bytes() == b"before " + source.read_bytes())

    def test_holes_are_zeroes(self):
        source = self.folder / "source"
        with open(source, "wb") as file:
            file.truncate(7 * MIB + 5)
            file.seek(3 * MIB + 17)
            file.write(self.bytes(CHUNK))
        result, data = self.get("somewhere:%s" % source, "-")
        self.assertEqual(result.status, 0, str(result))
        self.assertTrue(data == source.read_bytes())

    def test_messages_go_to_standard_error(self):
        source = self.file("source", MIB)
        result, data = self.get("-v", "--progress", "--bwlimit", "1M", "somewhere:%s" % source, "-")
        self.assertTrue(data == source.read_bytes())
        self.assertRegex(result.stderr, r"\n *\d+% ")
        self.assertRegex(result.stderr, r"\nsource\n1048576 bytes in ")
        result, data = self.get("--json", "--progress", "somewhere:%s" % source, "-")
        self.assertTrue(data == source.read_bytes())
        end = json.loads(result.stderr.splitlines()[-1])
        self.assertEqual((end["event"], end["destination"]["file"]), ("end", "-"))

    def test_a_reader_that_ends_fails_the_copy(self):
        process, reader, _ = self.start_waiting()
        reader.close()
        self.check_failure_of(process, 1, r"\Apier: cannot write to standard output: Broken pipe\n")

    def test_a_full_device_fails_the_copy(self):
        source = self.file("source", MIB)
        with open("/dev/full", "wb") as full:
            result = self.finish(self.start_cp("somewhere:%s" % source, "-", stdout=full))
        self.check_failure(result, 1, "cannot write to standard output: No space left on device")

    def test_a_slow_reader_does_not_time_out(self):
        process, reader, source = self.start_waiting()
        time.sleep(SILENCE)
        self.assertTrue(reader.read() == source.read_bytes())
        self.assertEqual(self.finish(process).status, 0)

    def test_a_signal_ends_a_copy_whose_output_nobody_reads(self):
        for number, status in (signal.SIGINT, 130), (signal.SIGTERM, 143):
            process, _, _ = self.start_waiting()
            process.send_signal(number)
            self.check_failure_of(process, status, "interrupted|terminated")

    def test_a_killed_server_ends_a_copy_whose_output_nobody_reads(self):
        process, _, _ = self.start_waiting()
        os.kill(self.server_of(process), signal.SIGKILL)
        self.check_failure_of(process, 4, "ended before the copy was complete")

    def test_a_missing_file_writes_nothing(self):
        result, data = self.get("somewhere:missing", "-")
        self.check_failure(result, 1, "cannot read missing: No such file")
        self.assertEqual(data, b"")

    def test_only_verified_chunks_are_written(self):
        """A whole chunk is verified before any of its bytes leave, and none follows a bad one."""
        self.stub["PIER_BACKEND_PATH"] = os.path.dirname(os.environ["FAULTY_BACKEND"])
        source = self.file("source", 4 * MIB)
        for copy in range(2, 12):
            result, data = self.get("--chunk", "512K", "--dst-mem", "faulty:flip%d" % copy, source, "-")
            # It may be the copy of a header, which fits no chunk then.
            self.assertIn(result.status, (4, 5), str(result))
            self.assertRegex(result.stderr, "verification failed|unexpected chunk")
            self.assertTrue(data == source.read_bytes()[:len(data)])


class Names(Standard):
    def test_options_for_files_are_refused(self):
        one = r"'-' is one stream of bytes: without -r, -p, -n, --continue, --skip-same, patterns"
        for arguments in (("-r", "-", "x"), ("-p", "-", "x"), ("-n", "-", "x"), ("--continue", "-", "x"),
                          ("--skip-same", "-", "x"),
                          ("-p", "x", "-"), ("-", "y", "z"), ("y", "-", "z"), ("y", "z", "-"),
                          ("somewhere:*.bin", "-"), ("-r", "somewhere:d", "-")):
            with self.subTest(arguments):
                self.refused(2, one, "cp", *arguments)
        self.refused(2, "SRC and DST are both '-'", "cp", "-", "-")

    def test_a_path_or_a_remote_dash_is_a_file(self):
        here = self.file("-", MIB)
        result = self.finish(self.start_cp("./-", "somewhere:-"))
        self.check_silent(result)
        self.check_same(here, self.home / "-")
        here.unlink()
        self.check_silent(self.finish(self.start_cp("somewhere:-", "./-")))
        self.check_same(here, self.home / "-")

    def test_a_restricted_server_needs_no_more(self):
        for option, arguments, data in (("--write-only", ("-", "somewhere:copy"), b"some"),
                                        ("--read-only", ("somewhere:copy", "-"), b"")):
            stub = self.folder / "restricted"
            stub.write_text("#!/bin/sh\nexec '%s' cp --server --under '%s' %s\n" % (PIER, self.home, option))
            stub.chmod(0o755)
            self.stub["PIER_RSH"] = "'%s'" % stub
            result = self.put(data, *arguments)
            self.assertEqual(result.status, 0, str(result))
        self.assertTrue(result.stdout == "some", str(result))


main(at_once=16)

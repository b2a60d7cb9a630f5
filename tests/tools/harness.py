# SPDX-License-Identifier: BSD-3-Clause
"""Helpers of the tests of the program: running it, and checking that it leaves nothing behind."""

import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from cases import each, expand, run_cases  # noqa: E402
from process import below, processes  # noqa: E402

PIER = os.environ["PIER"]
HERE = pathlib.Path(__file__).resolve().parent
STUB_SHELL = HERE / "stub_shell"
# Quoted for --rsh and PIER_RSH, because the path of the tree may contain blanks.
STUB_RSH = "'%s'" % STUB_SHELL
# In seconds. A command that takes longer hangs; sanitizers and valgrind are slow.
PATIENCE = 120
# A copy that fails ends at once, within 5 s on an idle machine. The load and stops add to that.
PROMISE = 30
MIB = 1 << 20
# Of the protocol of pier cp.
VERSION = 13
GREETING = b"\x89PIERCP\n" + struct.pack("<II", VERSION, 0)
SEED = int(os.environ.get("PIER_SEED", "0"), 0) or random.SystemRandom().randrange(1, 1 << 31)


def default_signals():
    """Undo the ignored SIGINT that a test running in the background would pass on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.umask(0o022)


class Result:
    def __init__(self, process, stdout, stderr, seconds):
        self.status = process.returncode
        self.stdout = stdout
        self.stderr = stderr
        self.seconds = seconds

    def __str__(self):
        return "status %s, stdout %r, stderr %r" % (self.status, self.stdout, self.stderr)


class Case(unittest.TestCase):
    """Each case has its own folder and must leave no process, temporary file or shared memory."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        expand(cls)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pier-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = "PIER_TEST_TOKEN=%s" % uuid.uuid4()
        self.shared_memory = shared_memory()
        self.random = random.Random(SEED)

    def tearDown(self):
        self.wait_for(lambda: not self.processes(), "processes are left")
        self.wait_for(lambda: not shared_memory() - self.shared_memory, "shared memory is left")
        left = [str(p) for p in self.folder.rglob(".*.pier-*")]
        self.assertEqual(left, [], "temporary files are left")

    def wait_for(self, condition, complaint, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while not condition():
            self.assertLess(time.monotonic(), deadline, complaint)
            time.sleep(0.01)

    def environment(self, **more):
        name, value = self.token.split("=")
        environment = {k: v for k, v in os.environ.items()
                       if k not in ("PIER_RSH", "PIER_REMOTE_PIER", "PIER_DEVICE", "PIER_LOG", "PIER_BACKEND_PATH")}
        environment.update(more)
        environment[name] = value
        environment.setdefault("PIER_DEVICE", "soft0")
        return environment

    def preload(self, *variables, **more):
        """Of the environment of a process that preloads the modules which these variables name."""
        copies = []
        for variable in variables:
            # LD_PRELOAD is split at blanks, and the path of the build may contain one.
            copies.append(self.folder / pathlib.Path(os.environ[variable]).name)
            if not copies[-1].exists():
                shutil.copy(os.environ[variable], copies[-1])
        # The address sanitizer complains unless its runtime is loaded first.
        return {"LD_PRELOAD": " ".join(map(str, copies)),
                "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0",
                **more}

    def start(self, *arguments, cwd=None, env=None, before=(), **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("preexec_fn", default_signals)
        process = subprocess.Popen(
            [*before, PIER, *map(str, arguments)],
            cwd=cwd or self.folder, env=self.environment(**(env or {})),
            text=True, errors="surrogateescape", **options)
        process.started = time.monotonic()
        self.addCleanup(end_process, process)
        return process

    def finish(self, process, patience=PATIENCE):
        stdout, stderr = process.communicate(timeout=patience)
        return Result(process, stdout, stderr, time.monotonic() - process.started)

    def run_pier(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def copy(self, *arguments, **options):
        """A copy that must succeed without output on standard error."""
        result = self.run_pier("cp", *arguments, **options)
        self.assertEqual((result.status, result.stderr), (0, ""), str(result))
        return result

    def refused(self, status, pattern, *arguments, **options):
        """The command must fail with this status, one line of error and no standard output."""
        result = self.run_pier(*arguments, **options)
        self.check_failure(result, status, pattern)
        self.assertEqual(result.stdout, "")
        return result

    def check_failure(self, result, status, pattern):
        self.assertEqual(result.status, status, str(result))
        self.assertRegex(result.stderr, r"\Apier( \w+)?: [^\n]+\n\Z", "one line")
        self.assertRegex(result.stderr, pattern)

    def unfold(self, text):
        """Whole values of `pier info`, of which no word is broken."""
        return text.replace("\n" + " " * 16, " ")

    def bytes(self, size):
        return self.random.randbytes(size)

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else self.bytes(content))
        return path

    def check_same(self, source, target):
        """Compare both files, without reading ranges that are holes in both."""
        self.assertEqual(os.stat(target).st_size, os.stat(source).st_size)
        with open(source, "rb") as ours, open(target, "rb") as theirs:
            for start, end in {*extents(source), *extents(target)}:
                for offset in range(start, end, MIB):
                    length = min(MIB, end - offset)
                    # For many bytes, assertEqual() would print a useless difference.
                    self.assertTrue(os.pread(ours.fileno(), length, offset) ==
                                    os.pread(theirs.fileno(), length, offset),
                                    "they differ in the MiB at offset %d" % offset)

    def processes(self):
        return [pid for pid in all_processes() if self.token in variables_of(pid)]

    def children(self, pid):
        """All descendants of a process."""
        return [child for child, _ in below(pid)]

    def server_of(self, process):
        servers = [p for p in self.children(process.pid) if "--server" in arguments_of(p)
                   and os.path.samefile("/proc/%d/exe" % p, PIER)]
        self.assertEqual(len(servers), 1)
        return servers[0]

    def start_slowly(self, *arguments, **options):
        """Start a copy that takes a minute, and wait until bytes have arrived."""
        source = options.pop("source", None) or self.file("slow", self.bytes(MIB) * 64)
        process = self.start("cp", "--progress", "--bwlimit", "1M", "--chunk", "64K",
                             *arguments, source, options.pop("target", "copy"), **options)
        return self.await_bytes(process)

    def await_bytes(self, process):
        """Wait until the first bytes of a copy with --progress have arrived."""
        for line in process.stderr:
            if not re.match(r" *\d+% [0-9.]+ ", line):
                self.fail("no progress: %s" % line)
            if not re.match(r" *0% 0 bytes", line):
                return process
        self.fail("it ended too soon")

    def finish_slowly(self, process):
        """The result of a copy from start_slowly(), without its progress."""
        result = self.finish(process)
        result.stderr = "".join(line for line in result.stderr.splitlines(True)
                                if not re.match(r" *\d+% ", line))
        return result

    def failure_of(self, process, status, pattern, patience=PROMISE):
        """Check how a copy from start_slowly() failed, and how fast."""
        broken = time.monotonic()
        result = self.finish_slowly(process)
        self.assertLess(time.monotonic() - broken, patience * slowness())
        self.check_failure(result, status, pattern)
        self.assertFalse((self.folder / "copy").exists())
        return result


def extents(path):
    """The ranges of data, from lseek(2)."""
    found, end = [], 0
    with open(path, "rb") as file:
        while True:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return found
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            found.append((start, end))


def slowness():
    return float(os.environ.get("PIER_TEST_SLOWNESS", "1"))


def end_process(process):
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def all_processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_proc(pid, name):
    try:
        return pathlib.Path("/proc", str(pid), name).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def variables_of(pid):
    return read_proc(pid, "environ").split("\0")


def arguments_of(pid):
    return read_proc(pid, "cmdline").split("\0")


def children_of(pid):
    return [child for child, parent, _ in processes() if parent == pid]


def shared_memory():
    return {n for n in os.listdir("/dev/shm") if "pier" in n}


def main(at_once=1):
    """usage: [CASE...] or --without CLASS..."""
    print("# PIER_SEED=%d" % SEED)
    module, names = sys.modules["__main__"], sys.argv[1:]
    if names[:1] == ["--without"]:
        names = [name for name, value in vars(module).items() if name not in names
                 and isinstance(value, type) and value.__module__ == "__main__"
                 and issubclass(value, Case)]
    run_cases(module, names, at_once)


__all__ = ["Case", "GREETING", "HERE", "MIB", "PATIENCE", "PIER", "PROMISE", "SEED", "STUB_RSH", "STUB_SHELL",
           "VERSION", "arguments_of", "children_of", "default_signals", "each", "extents", "json", "main", "slowness"]

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp to several destinations, which pass the copy on to each other."""

import json
import os
import re
import signal
import subprocess
import time

from harness import HERE, MIB, PIER, PROMISE, VERSION, Case, each, main, slowness

# In seconds, of --timeout. A host that is silent for half of it is given up; no other one may be.
TIMEOUT = 60
# Of a copy that is not over before something happens to it.
LONG = 12
# Of a copy that waits for the time limit and then tries once more.
PATIENCE = 6 * TIMEOUT
RSH = "'%s'" % (HERE / "stub_hosts")
RESTORED = r"pier cp: the connection broke and was restored \(times: \d+\)\n"


def folder_of(pid):
    try:
        return os.readlink("/proc/%d/cwd" % pid)
    except FileNotFoundError:
        return None


class Chain(Case):
    def setUp(self):
        super().setUp()
        self.hosts = self.folder / "hosts"
        self.hosts.mkdir()
        self.names = []
        # No name server is asked for these hosts.
        self.variables = {"PIER_RSH": RSH, "STUB_HOSTS": str(self.hosts), "PIER_SOFT_PEERS": "none"}

    def add_hosts(self, count):
        self.names = ["host%d" % i for i in range(1, count + 1)]
        for name in self.names:
            (self.hosts / name).mkdir()

    def profile(self, name, text):
        (self.hosts / name / ".profile").write_text(text + "\n")

    def serve(self, name, script):
        """Let this script be the server on that host."""
        path = self.folder / (name + ".py")
        path.write_text(script)
        self.profile(name, "exec python3 %s" % path)

    def places(self, path="copy", names=None):
        return ["%s:%s" % (name, path) for name in names or self.names]

    def spread(self, *arguments, **options):
        return self.run_pier("cp", "--timeout", TIMEOUT, "--remote-pier", PIER, *arguments,
                             env=self.variables, **options)

    def start_spread(self, source, seconds=LONG):
        """A copy that takes seconds, when its first bytes have arrived."""
        process = self.start("cp", "--timeout", TIMEOUT, "--remote-pier", PIER, "--chunk", "64K", "--progress",
                             "--bwlimit", int(source.stat().st_size / seconds), source, *self.places(),
                             env=self.variables)
        return self.await_bytes(process)

    def finish(self, process, patience=PATIENCE):
        return super().finish(process, patience)

    def server_on(self, process, name):
        return [pid for pid in self.children(process.pid) if folder_of(pid) == str(self.hosts / name)][0]

    def check_copies(self, source, lost=(), path="copy"):
        for name in self.names:
            copy = self.hosts / name / path
            if name in lost:
                self.assertFalse(copy.exists(), name)
            else:
                self.check_same(source, copy)

    def remove_copies(self):
        for name in self.names:
            (self.hosts / name / "copy").unlink(missing_ok=True)
            (self.hosts / name / ".profile").unlink(missing_ok=True)

    def check_result(self, result, status, *patterns):
        """The lines of standard error, without progress, in this order."""
        lines = [line for line in result.stderr.splitlines() if not re.match(r" *\d+% ", line)]
        self.assertEqual(result.status, status, str(lines))
        self.assertEqual(len(lines), len(patterns), str(lines))
        for line, pattern in zip(lines, patterns):
            self.assertRegex(line, pattern)

    def lost(self, reason):
        return r"\Apier cp: .*%s.*; the copy goes on without it\Z" % reason

    def count(self, lost):
        return r"\Apier: not copied to %d of %d destinations\Z" % (lost, len(self.names))


class Copies(Chain):
    def test_every_destination_gets_the_file(self):
        for count in (2, 3, 7):
            for size in (0, 1, MIB, 5 * MIB + 12345):
                with self.subTest((count, size)):
                    self.folder.joinpath("hosts%d-%d" % (count, size)).mkdir()
                    self.hosts = self.folder / ("hosts%d-%d" % (count, size))
                    self.variables["STUB_HOSTS"] = str(self.hosts)
                    self.add_hosts(count)
                    source = self.file("source", size)
                    result = self.spread(source, *self.places())
                    self.check_result(result, 0)
                    self.assertRegex(result.stdout, r"\A%d destinations, %d bytes in .*, verified(?: as read)?: "
                                     % (count, size))
                    self.check_copies(source)

    def test_many_destinations(self):
        """More than soft0 accepts in a list of addresses; some end while others still report."""
        self.names = ["127.0.1.%d" % i for i in range(1, 71)]
        del self.variables["PIER_SOFT_PEERS"]
        for name in self.names:
            (self.hosts / name).mkdir()
        source = self.file("source", 100000)
        for _ in range(3):
            self.check_result(self.spread(source, *self.places()), 0)
            self.check_copies(source)
            self.remove_copies()

    def test_the_source_is_read_once(self):
        """The client reads little more than the file."""
        self.add_hosts(4)
        source = self.file("source", 16 * MIB)
        process = self.start_spread(source, 1)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with open("/proc/%d/io" % process.pid) as file:
            read = int(re.search(r"rchar: (\d+)", file.read())[1])
        self.check_result(self.finish(process), 0)
        self.check_copies(source)
        self.assertLess(read, 20 * MIB)
        self.assertGreater(read, 8 * MIB)

    def test_options_reach_every_destination(self):
        self.add_hosts(3)
        source = self.file("source", MIB)
        os.chmod(source, 0o640)
        os.utime(source, (1000000000, 1000000000))
        self.check_result(self.spread("-p", "--no-verify", "--depth", "2", source, *self.places()), 0)
        self.check_copies(source)
        for name in self.names:
            status = os.stat(self.hosts / name / "copy")
            self.assertEqual((status.st_mode & 0o777, status.st_mtime), (0o640, 1000000000))

    def test_a_sparse_file_stays_sparse(self):
        self.add_hosts(3)
        source = self.file("source", MIB)
        with open(source, "r+b") as file:
            file.truncate(40 * MIB)
            file.seek(30 * MIB)
            file.write(self.bytes(MIB))
        self.check_result(self.spread(source, *self.places()), 0)
        self.check_copies(source)
        for name in self.names:
            self.assertLess(os.stat(self.hosts / name / "copy").st_blocks * 512, 4 * MIB)

    def test_a_tree_is_copied(self):
        self.add_hosts(3)
        tree = self.folder / "tree"
        (tree / "below").mkdir(parents=True)
        for i in range(50):
            (tree / "below" / str(i)).write_bytes(self.bytes(self.random.randrange(100000)))
        result = self.spread("-r", tree, *self.places())
        self.check_result(result, 0)
        self.assertRegex(result.stdout, r"\A3 destinations, 52 files, ")
        for name in self.names:
            for i in range(50):
                self.check_same(tree / "below" / str(i), self.hosts / name / "copy" / "below" / str(i))

    def test_a_file_that_one_host_leaves_out_is_named(self):
        self.add_hosts(3)
        tree = self.folder / "tree"
        tree.mkdir()
        (tree / "a").write_bytes(b"a")
        (tree / "b").write_bytes(b"b")
        (self.hosts / "host2" / "copy" / "tree" / "a").mkdir(parents=True)
        for name in ("host1", "host3"):
            (self.hosts / name / "copy").mkdir()
        result = self.spread("-r", tree, *self.places())
        self.check_result(result, 1, r"\Apier cp: host2: .*\ba: ", "\\Apier: 1 file was not copied; ")
        for name in self.names:
            self.check_same(tree / "b", self.hosts / name / "copy" / "tree" / "b")

    def test_a_file_that_cannot_be_read_is_named_once(self):
        """The sender reports it while the last hosts may still be connecting."""
        self.add_hosts(4)
        tree = self.folder / "tree"
        tree.mkdir()
        os.mkfifo(tree / "pipe")
        (tree / "file").write_bytes(b"a")
        result = self.spread("-r", tree, *self.places())
        self.check_result(result, 1, r"\Apier cp: .*tree/pipe: neither ", "\\Apier: 1 file was not copied; ")
        for name in self.names:
            self.check_same(tree / "file", self.hosts / name / "copy" / "file")

    def test_a_dry_run_lists_the_file(self):
        self.add_hosts(3)
        result = self.spread("-n", self.file("source", 10), *self.places())
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "source\n", ""))
        self.assertFalse((self.hosts / "host1" / "copy").exists())

    def test_what_is_refused(self):
        self.add_hosts(2)
        source = self.file("source", 10)
        for arguments, pattern in (((source, "a:x", "a:x"), "'a:x' is given twice"),
                                   (("--continue", source, "a:x", "b:x"), "--continue is for one DST"),
                                   (("--skip-same", source, "a:x", "b:x"), "--skip-same is for one DST"),
                                   ((source, *("h%d:x" % i for i in range(257))), "more than 256"),
                                   (("a:x", "b:x", "c:x"), "on another host"),
                                   ((source, "a:x", "y"), "'y' is local: with several destinations"),
                                   ((source, "a:x", "y", "b:x"), "'y' is local: with several destinations"),
                                   ((source, "y", "a:x", "b:x", "::1:x"), "'::1:x' is local: with several")):
            self.refused(2, pattern, "cp", *arguments)


# A remote shell that outlives its server. SIGUSR1 ends that, and one of the shell's pipes.
LINGERING = """
import os, signal, subprocess
def leave(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(%d)
    server.kill()
    while True:
        signal.pause()
server = subprocess.Popen([%r, "cp", "--server"], stdout=subprocess.PIPE)
signal.signal(signal.SIGUSR1, leave)
while data := os.read(server.stdout.fileno(), 4096):
    os.write(1, data)
"""
SPEAKING = """
import os, signal, struct, subprocess, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
READY, DONE, ERROR, KEEPALIVE, RAILS, SETUP, NOTICE, PONG, OPENED, CHAIN, RELINK, FAILED = (
    4, 6, 8, 7, 9, 3, 13, 17, 19, 20, 21, 22)
ONWARD = 1 << 30
def send(kind, payload=b""):
    os.write(1, struct.pack("<II", len(payload), kind) + payload)
def flood(kind):
    # Not for ever, which would take the processors from the others.
    for i in range(100000):
        send(kind)
    while True:
        send(kind)
        time.sleep(0.01)
"""
# A server that copies as it should, but changes or adds messages.
MEDDLING = SPEAKING + """
def onward(kind, payload=b""):
    send(ONWARD | kind, payload)
def read(count):
    data = b""
    while len(data) < count:
        more = os.read(server.stdout.fileno(), count - len(data))
        if not more:
            os._exit(server.wait() & 255)
        data += more
    return data
def meddle(*_):
    global told
    told = True
told = False
signal.signal(signal.SIGUSR1, meddle)
server = subprocess.Popen([%r, "cp", "--server"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
os.write(1, read(16))
while True:
    length, kind = struct.unpack("<II", read(8))
    data = read(length)
    %s
    send(kind, data)
"""


def meddling(text):
    return MEDDLING % (PIER, text)


def when_told(text):
    return meddling("if told:\n        told = False\n        " + text)


class Failures(Chain):
    """A destination that fails does not stop the others."""

    def setUp(self):
        super().setUp()
        self.add_hosts(4)
        self.source = self.file("source", 6 * MIB + 777)

    def test_hosts_that_cannot_be_reached(self):
        for bad in ((0,), (1,), (3,), (0, 1, 2)):
            with self.subTest(bad):
                names = ["nowhere%d" % i if i in bad else name for i, name in enumerate(self.names)]
                result = self.spread(self.source, *self.places(names=names))
                self.check_result(result, 4, *[self.lost(r"nowhere\d ended before .* status 255") for _ in bad],
                                  self.count(len(bad)))
                lost = [self.names[i] for i in bad]
                self.check_copies(self.source, lost)
                self.remove_copies()

    def test_paths_that_cannot_be_written(self):
        for bad in range(4):
            with self.subTest(bad):
                places = self.places()
                places[bad] = "%s:no/copy" % self.names[bad]
                result = self.spread("--json", self.source, *places)
                self.check_result(result, 1, self.lost("host%d: cannot write no/copy: No such" % (bad + 1)),
                                  self.count(1))
                self.check_copies(self.source, [self.names[bad]])
                report = json.loads(result.stdout)
                self.assertEqual([d["exit_status"] for d in report["destinations"]],
                                 [int(i == bad) for i in range(4)])
                self.assertEqual((report["exit_status"], report["ok"]), (1, False))
                self.assertEqual(report["destination"]["host"], "host2" if bad == 0 else "host1")
                self.remove_copies()

    def test_all_of_them(self):
        """The first on the command line gives the status."""
        result = self.spread(self.source, *self.places("no/copy"))
        self.check_result(result, 1, *[self.lost(r"host\d: cannot write") for i in (1, 2, 3)],
                          r"\Apier cp: host\d: cannot write", self.count(4))
        result = self.spread(self.source, "nowhere:copy", "host2:no/copy")
        self.assertEqual(result.status, 4, result.stderr)
        self.assertRegex(result.stderr, r"(?s)nowhere.*host2.*\npier: not copied to 2 of 2 destinations\n\Z")

    def test_the_copies_that_arrived_are_reported(self):
        size = self.source.stat().st_size
        result = self.spread(self.source, "host1:copy", "host2:no/copy", "host3:copy")
        self.assertEqual(result.status, 1, result.stderr)
        self.assertRegex(result.stdout, r"\A2 destinations, %d bytes in .*, verified: .*\n\Z" % size)
        for places, arrived in ((("host1:copy", "host2:no/copy"), True),
                                (("host1:no/copy", "host2:no/copy"), False)):
            line = json.loads(self.spread("--json", self.source, *places).stdout)
            self.assertEqual((line["ok"], line["verified"], line.get("bytes")),
                             (False, arrived, size if arrived else None))

    def test_devices_that_are_missing(self):
        """It turns out when the neighbours connect: the copy begins again."""
        for bad in ("host1", "host3", "host4"):
            with self.subTest(bad):
                self.profile(bad, "export PIER_DEVICE=soft7")
                result = self.spread(self.source, *self.places())
                self.check_result(result, 3, self.lost("%s: .*soft7" % bad), self.count(1))
                self.check_copies(self.source, [bad])
                self.remove_copies()

    def check_link_failures(self, result):
        """The innocent may be suspected first, and are tried again."""
        lines = re.sub(RESTORED, "", result.stderr).splitlines()
        self.assertEqual(result.status, 4, result.stderr)
        for line in lines[:-1]:
            self.assertRegex(line, r"\Apier cp: the connection from .* to .* failed: ")
        self.assertRegex(lines[-1], self.count(1))
        self.assertLess(len(lines), 6)

    def test_connections_that_never_work(self):
        for bad in ("host1", "host2", "host4"):
            with self.subTest(bad):
                self.profile(bad, "export PIER_DEVICE=fault:wc@1+=RETRY_EXC_ERR:soft0")
                result = self.spread(self.source, *self.places())
                self.check_link_failures(result)
                self.check_copies(self.source, [bad])
                self.remove_copies()

    def test_disks_that_are_full(self):
        for bad in ("host1", "host2", "host4"):
            with self.subTest(bad):
                self.profile(bad, "ulimit -f 4000")
                result = self.spread("--chunk", "64K", self.source, *self.places())
                lines = [line for line in result.stderr.splitlines(True) if not re.match(RESTORED, line)]
                result.stderr = "".join(lines)
                self.check_result(result, 1, self.lost("%s: .*File too large" % bad), self.count(1))
                self.check_copies(self.source, [bad])
                self.remove_copies()

    def test_a_connection_that_breaks_once(self):
        """The host gets a copy of its own; a file that another host leaves out stays left out."""
        tree = self.folder / "tree"
        tree.mkdir()
        (tree / "a").write_bytes(b"a")
        (tree / "b").write_bytes(self.source.read_bytes())
        for name in self.names:
            (self.hosts / name / "copy").mkdir()
        (self.hosts / "host1" / "copy" / "tree" / "a").mkdir(parents=True)
        self.profile("host4", "[ -e .broken ] || export PIER_DEVICE=fault:wc@40+=REM_ACCESS_ERR:soft0\ntouch .broken")
        result = self.spread("-r", "--chunk", "64K", tree, *self.places())
        result.stderr = re.sub(RESTORED, "", result.stderr)
        self.check_result(result, 1, "tried once more at the end", r"host1: .*\ba: ", "1 file was not copied; ")
        for name in self.names:
            self.check_same(tree / "b", self.hosts / name / "copy" / "tree" / "b")

    def end_early(self, names, action):
        process = self.start_spread(self.source)
        for name in names:
            os.kill(self.server_on(process, name), action)
        result = self.finish(process)
        result.stderr = re.sub(RESTORED, "", result.stderr)
        return result

    @each(["host1"], ["host2"], ["host4"], ["host1", "host2"], ["host2", "host4"], ["host1", "host2", "host3"])
    def test_servers_that_are_killed(self, names):
        result = self.end_early(names, signal.SIGKILL)
        self.check_result(result, 4, *[self.lost("ended before the copy was complete: .* killed by signal 9")
                                       for _ in names], self.count(len(names)))
        self.check_copies(self.source, names)

    @each("host1", "host3", "host4")
    def test_servers_that_hang(self, name):
        result = self.end_early([name], signal.SIGSTOP)
        self.check_result(result, 4, self.lost("%s did not respond for 30 s" % name), self.count(1))
        self.check_copies(self.source, [name])

    @each((0, "host1"), (0, "host3"), (1, "host1"), (1, "host4"))
    def test_servers_that_only_close_a_pipe(self, case):
        """The others do not wait for the end of such a process, or for its last words."""
        pipe, name = case
        self.serve(name, LINGERING % (pipe, PIER))
        result = self.end_early([name], signal.SIGUSR1)
        reason = "ended before the copy was complete" if pipe else "did not respond for 30 s"
        self.check_result(result, 4, self.lost("%s %s" % (name, reason)), self.count(1))
        self.check_copies(self.source, [name])

    @each(("host2", 4, True), ("host4", 5, True), ("host2", 1, False), ("host1", 5, False))
    def test_failures_that_a_neighbour_may_have_caused(self, case):
        """Those of the peer and of the bytes, except on the host that gets them from here."""
        name, status, again = case
        self.serve(name, when_told("send(ERROR, struct.pack('<IH', %d, 3) + b'bad')" % status))
        result = self.end_early([name], signal.SIGUSR1)
        if again:
            self.check_result(result, 0, self.lost("%s: bad" % name)[:-2] + ", and is tried once more")
        else:
            self.check_result(result, status, self.lost("%s: bad" % name), self.count(1))
        self.check_copies(self.source, [] if again else [name])

    def test_a_last_attempt_that_fails_where_it_begins(self):
        """The copies made by earlier attempts are reported."""
        self.serve("host2", when_told("send(ERROR, struct.pack('<IH', 4, 3) + b'bad')"))
        profile = self.hosts / "host2" / ".profile"
        profile.write_text("[ ! -e .begun ] || exit 9\ntouch .begun\n" + profile.read_text())
        result = self.end_early(["host2"], signal.SIGUSR1)
        self.check_copies(self.source, ["host2"])
        self.assertEqual(result.status, 4, result.stderr)
        self.assertRegex(result.stdout, r"\A3 destinations, %d bytes in .*, verified: .*memory on soft0" %
                         self.source.stat().st_size)

    def test_memory_that_spoils_what_it_passes_on(self):
        """It can be passed on before it is checked: so all behind it may report it, too."""
        self.variables["PIER_BACKEND_PATH"] = os.path.dirname(os.environ["FAULTY_BACKEND"])
        for i in range(5):
            self.profile("host1", "export FAULTY_ROT=%d" % (20 + i))
            result = self.spread("--chunk", "64K", "--dst-mem", "faulty", self.source, *self.places())
            self.assertIn(result.status, (4, 5), result.stderr)
            self.assertRegex(result.stderr.splitlines()[-1], self.count(1))
            self.check_copies(self.source, ["host1"])
            self.remove_copies()

    def test_connections_that_break_are_restored(self):
        for name in self.names:
            with self.subTest(name):
                self.profile(name, "export PIER_DEVICE=fault:wc@40=RETRY_EXC_ERR:soft0")
                result = self.spread("--chunk", "64K", self.source, *self.places())
                result.stderr = re.sub(RESTORED, "", result.stderr)
                self.check_result(result, 0)
                self.check_copies(self.source)

    def test_connections_that_stay_broken(self):
        """In a way that is not worth another attempt."""
        for name in self.names:
            with self.subTest(name):
                self.profile(name, "export PIER_DEVICE=fault:wc@40+=REM_ACCESS_ERR:soft0")
                result = self.spread("--chunk", "64K", self.source, *self.places())
                result.stderr = re.sub(RESTORED, "", result.stderr)
                self.check_link_failures(result)
                self.check_copies(self.source, [name])
                self.remove_copies()

    def test_connections_that_break_again_and_again(self):
        """The host behind has more patience than the others, and works for one attempt only."""
        self.serve("host2", PATIENT % PIER)
        with open(self.hosts / "host2" / ".profile", "r+") as file:
            text = file.read()
            file.seek(0)
            file.write("[ ! -e .begun ] || exit 9\ntouch .begun\n"
                       "export PIER_DEVICE=fault:wc@40+=RETRY_EXC_ERR:soft0\n" + text)
        result = self.spread("--chunk", "64K", "--timeout", TIMEOUT // 2, self.source,
                             *self.places(names=["host1", "host2"]))
        self.assertEqual(result.status, 4, result.stderr)
        self.assertRegex(result.stderr, "the connection from host1 to host2 failed: ")
        self.check_same(self.source, self.hosts / "host1" / "copy")

    def test_servers_that_are_killed_at_random_moments(self):
        for _ in range(20):
            process = self.start("cp", "--remote-pier", PIER, "--chunk", "64K", "--bwlimit", "20M",
                                 "--timeout", TIMEOUT, self.source, *self.places(), env=self.variables)
            killed = self.random.sample(self.names, self.random.randrange(1, 4))
            for name in killed:
                time.sleep(self.random.random() * 0.2)
                try:
                    os.kill(self.server_on(process, name), signal.SIGKILL)
                except (IndexError, ProcessLookupError, FileNotFoundError):
                    pass
            result = self.finish(process)
            with self.subTest((killed, result.stderr)):
                for name in self.names:
                    copy = self.hosts / name / "copy"
                    if copy.exists() or name not in killed:
                        self.check_same(self.source, copy)
                    copy.unlink(missing_ok=True)

    def test_an_interrupted_copy_leaves_nothing(self):
        for end in (signal.SIGINT, signal.SIGTERM):
            process = self.start_spread(self.source)
            process.send_signal(end)
            began = time.monotonic()
            result = self.finish(process)
            self.assertLess(time.monotonic() - began, PROMISE * slowness())
            self.assertEqual(result.status, 128 + end)
            self.check_copies(self.source, self.names)

    def test_a_client_that_is_killed_leaves_nothing(self):
        process = self.start_spread(self.source)
        process.kill()
        self.finish(process)
        self.wait_for(lambda: not self.processes(), "servers are left", PROMISE * slowness())
        self.check_copies(self.source, self.names)


# A server that says what it should not, and copies nothing.
HOSTILE = SPEAKING + """
def receive():
    length, kind = struct.unpack("<II", os.read(0, 8))
    if length:
        os.read(0, length)
    return kind
def skip(until):
    while receive() != until:
        pass
def wait():
    while os.read(0, 4096):
        pass
os.write(1, b"\\x89PIERCP\\n" + struct.pack("<II", %d, 0))
os.read(0, 16)
%s
wait()
"""
# A server that waits for its client's request, but not for the time limit of the others.
IMPATIENT = """
import array, fcntl, os, termios, time
until = time.monotonic() + %d
ready = array.array("i", [0])
while ready[0] < 100 and time.monotonic() < until:
    fcntl.ioctl(0, termios.FIONREAD, ready)
    time.sleep(0.01)
if ready[0] < 100:
    os._exit(9)
os.execv(%r, ["pier", "cp", "--server"])
"""
# A server whose request has a time limit of hours.
PATIENT = """
import os, subprocess
def take(length):
    data = b""
    while len(data) < length:
        data += os.read(0, length - len(data))
    return data
read, write = os.pipe()
server = subprocess.Popen([%r, "cp", "--server"], stdin=read)
os.close(read)
os.close(1)
data = take(16 + 8 + 28)
take(4)
data += (10**7).to_bytes(4, "little")
while data:
    try:
        os.write(write, data)
    except BrokenPipeError:
        break  # it has ended
    data = os.read(0, 4096)
os.close(write)
os._exit(server.wait() & 255)
"""
# A server behind a slow connection, over which a long list takes longer than the time limit.
SLOW = """
import os, subprocess, time
read, write = os.pipe()
server = subprocess.Popen([%r, "cp", "--server"], stdin=read)
os.close(read)
os.close(1)
while data := os.read(0, 4096):
    try:
        os.write(write, data)
    except BrokenPipeError:
        break  # it has ended, and its client says one thing more
    time.sleep(0.6)
os.close(write)
os._exit(server.wait() & 255)
"""
PIECES = """
while True:
    os.write(1, struct.pack("<I", 0))
    time.sleep(0.45)
    os.write(1, struct.pack("<I", PONG))
"""


def hostile(text):
    return HOSTILE % (VERSION, text)


# While the stream flows.
MEDDLERS = {
    "set-ups": "[send(SETUP, b'x' * 100) for i in range(9)]",
    "set-ups onward": "[onward(SETUP, b'x' * 100) for i in range(9)]",
    "more NICs": "send(RAILS, b'x' * 100)",
    "more NICs onward": "onward(RAILS, b'x' * 100)",
    "ready again": "[send(READY) for i in range(9)]",
    "ready again onward": "[onward(READY) for i in range(9)]",
    "new neighbours": "[send(RELINK) for i in range(9)]",
    "new neighbours onward": "[onward(RELINK) for i in range(9)]",
    "failed links": "[send(FAILED, struct.pack('<H', 1) + b'x') for i in range(9)]",
    "failed links onward": "[onward(FAILED, struct.pack('<H', 1) + b'x') for i in range(9)]",
    "bad notices": "[send(NOTICE, struct.pack('<IH', 0, 3) + b'bad') for i in range(9)]",
    "an error": "send(ERROR, struct.pack('<IH', 4, 3) + b'bad')",
    "an error onward": "onward(ERROR, struct.pack('<IH', 4, 3) + b'bad')",
    "nonsense": "send(99, b'x' * 100)",
    "nonsense onward": "onward(99, b'x' * 100)",
    "keepalives": "[send(KEEPALIVE) for i in range(1000)]",
    "done": "send(DONE)",
}
# What a server does after the preambles. It may come last in the chain, or elsewhere.
ATTACKS = {
    "silence": "",
    "half a frame": "os.write(1, b'12345')",
    "a wrong frame": "send(99)",
    "a long frame": "send(1 << 31, b'x')",
    "nonsense onward": "[send(ONWARD | i, b'xy') for i in range(100)]",
    "endless keepalives": "send(OPENED)\nflood(KEEPALIVE)",
    "endless answers": "flood(PONG)",
    "opened, then endless answers": "send(OPENED)\nflood(PONG)",
    "opened, then silence": "send(OPENED)",
    "opened, then an end": "send(OPENED)\nskip(CHAIN)\nos._exit(0)",
    "opened, then closed": "send(OPENED)\nskip(CHAIN)\nsignal.signal(15, signal.SIG_IGN)\nos.close(1)",
    "NICs that are none": "send(OPENED)\nskip(CHAIN)\nsend(RAILS, b'x' * 100)",
    "endless NICs": "send(OPENED)\nskip(CHAIN)\nwhile True: send(RAILS, b'x' * 1000)",
    "endless set-ups": "send(OPENED)\nskip(CHAIN)\nwhile True: send(SETUP, b'x' * 1000)",
    "ready at once": "send(OPENED)\nskip(CHAIN)\nsend(READY)\nsend(ONWARD | READY)",
    "endless notices": "while True: send(NOTICE, struct.pack('<IH', 0, 3) + b'bad')",
    "failed links": "send(OPENED)\nskip(CHAIN)\n[send(FAILED, struct.pack('<H', 1) + b'x') for i in range(9)]",
    "an error of the next": "send(OPENED)\nskip(CHAIN)\nsend(ONWARD | ERROR, struct.pack('<IH', 1, 1) + b'x')",
    "an error without a status": "send(OPENED)\nskip(CHAIN)\nsend(ONWARD | ERROR, struct.pack('<IH', 256, 1) + b'x')",
    "done at once": "send(DONE)",
}


KIND_AT = 88  # in FRAME_RAILS: see docs/wire.md, Rails; 1: verbs


class HostileChain(Chain):
    """A hostile server harms itself only; see docs/security.md."""

    def check_harm(self, bad, source, result):
        for other in self.names:
            if other != bad:
                copy = self.hosts / other / "copy"
                self.assertTrue(copy.exists(), (other, result.stderr))
                self.check_same(source, copy)


class HostileServers(HostileChain):
    """At each place of a chain: the first, the last, and in the middle."""

    @each(*((place, name) for name in ATTACKS for place in range(3)))
    def test_servers_that_copy_nothing(self, case):
        place, name = case
        self.add_hosts(3)
        source, bad = self.file("source", MIB), self.names[place]
        self.serve(bad, hostile(ATTACKS[name]))
        result = self.spread(source, *self.places())
        self.assertNotEqual(result.status, 0) if name != "done at once" else None
        self.assertFalse((self.hosts / bad / "copy").exists())
        self.check_harm(bad, source, result)

    @each(*((place, name) for name in MEDDLERS for place in range(3)))
    def test_servers_that_copy(self, case):
        place, name = case
        self.add_hosts(3)
        source, bad = self.file("source", MIB), self.names[place]
        self.serve(bad, when_told(MEDDLERS[name]))
        process = self.start_spread(source)
        os.kill(self.server_on(process, bad), signal.SIGUSR1)
        self.check_harm(bad, source, self.finish(process))


class Hostile(HostileChain):
    """Servers, hosts and clients that stop, wait, or say half of it."""

    @each(*((name, onward) for name in ("host1", "host2", "host3") for onward in (False, True)))
    def test_others_of_another_kind(self, case):
        """One that names NICs that fit no others, to the host before it or to the one behind."""
        bad, onward = case
        self.add_hosts(3)
        source = self.file("source", MIB)
        self.serve(bad, meddling("if kind == RAILS%s: data = data[:%d] + b'\\1' + data[%d:]" %
                                 (" + ONWARD" if onward else "", KIND_AT, KIND_AT + 1)))
        result = self.spread(source, *self.places())
        self.check_harm(bad, source, result)
        # Alone, one has nobody behind it.
        self.assertEqual(result.status == 0, onward)

    def test_pieces_of_messages(self):
        """Nobody waits for the rest of a message: this one never has time to connect."""
        self.add_hosts(2)
        source = self.file("source", MIB)
        self.serve("host2", hostile("send(OPENED)\n" + PIECES))
        result = self.spread(source, *self.places())
        self.check_harm("host2", source, result)
        reason = "host2 did not respond for 60 s"
        self.check_result(result, 4, self.lost(reason)[:-2] + ", and is tried once more", reason, self.count(1))

    def test_a_message_that_comes_in_two_pieces(self):
        """A packet was lost."""
        self.add_hosts(3)
        source = self.file("source", 2 * MIB)
        self.serve("host2", when_told("os.write(1, struct.pack('<I', len(data)))\n        time.sleep(0.7)\n        "
                                      "os.write(1, struct.pack('<I', kind) + data)\n        continue"))
        process = self.start_spread(source)
        os.kill(self.server_on(process, "host2"), signal.SIGUSR1)
        self.check_result(self.finish(process), 0)
        self.check_copies(source)

    def test_pieces_beside_a_host_that_is_stopped(self):
        """It is found before its neighbours give up, and they are not blamed."""
        self.add_hosts(6)
        source, bad = self.file("source", 4 * MIB), ["host3", "host5", "host6"]
        for name in bad:
            self.serve(name, when_told(PIECES.replace("\n", "\n        ")))
        process = self.start_spread(source)
        for name in bad:
            os.kill(self.server_on(process, name), signal.SIGUSR1)
        os.kill(self.server_on(process, "host2"), signal.SIGSTOP)
        result = self.finish(process)
        self.assertIn("host2 did not respond for 30 s", result.stderr)
        for name in ("host1", "host4"):
            self.check_same(source, self.hosts / name / "copy")

    def test_a_host_that_does_not_start(self):
        """The others have been asked long before it is given up."""
        self.add_hosts(3)
        source = self.file("source", MIB)
        self.profile("host2", "exec sleep 1000")
        for name in ("host1", "host3"):
            self.serve(name, IMPATIENT % (TIMEOUT // 2, PIER))
        result = self.spread(source, *self.places())
        self.check_result(result, 4, self.lost("host2 did not respond for 60 s"), self.count(1))
        self.check_copies(source, ["host2"])

    def test_many_hosts_that_do_not_start(self):
        """Their remote shells are ended together, not one after another."""
        self.add_hosts(13)
        source = self.file("source", MIB)
        for name in self.names[1:]:
            self.profile(name, "exec sleep 1000")
        self.check_result(self.spread(source, *self.places()), 4,
                          *[self.lost("%s did not respond for 60 s" % name) for name in self.names[1:]],
                          self.count(12))
        self.check_copies(source, self.names[1:])

    def long_list(self):
        """Of more than the pipe to a server and the hub's memory for it hold."""
        tree = self.folder / "tree"
        tree.mkdir()
        for i in range(2500):
            (tree / ("%0200d" % i)).touch()
        return tree

    def check_lists(self, lost=()):
        for name in self.names:
            if name not in lost:
                self.assertEqual(len(os.listdir(self.hosts / name / "copy")), 2500)

    def test_a_list_that_is_not_read(self):
        self.add_hosts(3)
        self.serve("host2", hostile("while True:\n    send(PONG)\n    time.sleep(0.1)"))
        result = self.spread("-r", self.long_list(), *self.places())
        self.check_result(result, 4, self.lost("host2 did not respond for 30 s"), self.count(1))
        self.check_lists(["host2"])

    def test_a_list_that_is_read_slowly(self):
        """The time to open the destination begins when all have read it."""
        self.add_hosts(4)
        self.serve("host4", SLOW % PIER)
        self.check_result(self.spread("-r", self.long_list(), *self.places()), 0)
        self.check_lists()

    def test_a_list_that_is_not_read_before_the_end(self):
        """A host that is done does not hold up the others."""
        self.add_hosts(3)
        self.serve("host2", hostile("send(OPENED)\ntime.sleep(0.6)\nsend(DONE)\ntime.sleep(1000)"))
        result = self.spread("-n", "-r", self.long_list(), *self.places())
        self.assertEqual(result.status, 0)
        self.assertLess(result.seconds, TIMEOUT // 2 * slowness())

    def test_an_interruption_beside_a_list_that_is_not_read(self):
        self.add_hosts(3)
        self.serve("host2", hostile("while True:\n    send(PONG)\n    time.sleep(0.1)"))
        process = self.start("cp", "-r", "--remote-pier", PIER, self.long_list(), *self.places(), env=self.variables)
        time.sleep(1.5)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process).status, 128 + signal.SIGINT)
        self.assertLess(time.monotonic() - began, PROMISE * slowness())

    def test_a_client_that_is_stopped(self):
        """As by Ctrl-Z, for longer than the others wait; half a message has arrived, too."""
        self.add_hosts(4)
        source = self.file("source", 4 * MIB)
        self.serve("host2", meddling("if kind == PONG:\n        os.write(1, struct.pack('<I', 0))\n"
                                     "        time.sleep(0.95)\n        os.write(1, struct.pack('<I', PONG))\n"
                                     "        continue"))
        process = self.start_spread(source)
        time.sleep(1.5)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.2 * TIMEOUT)
        process.send_signal(signal.SIGCONT)
        self.check_harm("host2", source, self.finish(process))

    @each(("host1", "PONG"), ("host3", "RELINK"))
    def test_done_is_never_said(self, case):
        bad, word = case
        self.add_hosts(3)
        source = self.file("source", MIB)
        self.serve(bad, meddling("while kind == DONE:\n        send(%s)\n        time.sleep(0.1)" % word))
        result = self.spread(source, *self.places())
        self.check_result(result, 4, self.lost("%s did not respond for 60 s" % bad), self.count(1))
        self.check_harm(bad, source, result)

    def test_a_dry_run(self):
        self.add_hosts(3)
        self.serve("host2", hostile("send(OPENED)\nskip(CHAIN)\nsend(RAILS)\nsend(SETUP)\nwhile True:\n"
                                    "    send(PONG)\n    time.sleep(0.1)"))
        result = self.spread("-n", self.file("source", 10), *self.places())
        self.assertIn("host2", result.stderr)
        self.assertNotEqual(result.status, 0)


class Networks(Chain):
    """Each host is a network namespace, so soft0 uses TCP between them."""

    def setUp(self):
        super().setUp()
        self.names = ["198.51.100.%d" % i for i in range(1, 7)]
        prefix = "pier%d-" % os.getpid()
        self.switch, self.here = prefix + "switch", prefix + "here"
        self.add_namespace(self.switch)
        self.ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "bridge", "up")
        self.join(self.here, "198.51.100.100")
        for name in self.names:
            (self.hosts / name).mkdir()
            self.join(prefix + name, name)
        shell = self.folder / "shell"
        shell.write_text('#!/bin/sh\nhost=$1\nshift\ncd "$STUB_HOSTS/$host" || exit 255\n'
                         'export SSH_CONNECTION="- - $host -"\n'
                         'exec ip netns exec "%s$host" sh -c "exec $*"\n' % prefix)
        shell.chmod(0o755)
        self.variables["PIER_RSH"] = "'%s'" % shell
        del self.variables["PIER_SOFT_PEERS"]
        self.prefix = prefix

    def add_namespace(self, name):
        if os.geteuid() != 0:
            self.skipTest("only root can make network namespaces")
        if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
            self.skipTest("no network namespaces here")
        self.addCleanup(subprocess.run, ["ip", "netns", "del", name], check=True)

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True)

    def join(self, namespace, address):
        """Give it an address in the network of all."""
        self.add_namespace(namespace)
        port = "port" + address.split(".")[-1]
        self.ip("link", "add", "nic", "netns", namespace, "type", "veth",
                "peer", "name", port, "netns", self.switch)
        self.ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")
        self.ip("-n", namespace, "address", "add", address + "/24", "dev", "nic")
        for device in "lo", "nic":
            self.ip("-n", namespace, "link", "set", device, "up")

    def start(self, *arguments, **options):
        return super().start(*arguments, before=["ip", "netns", "exec", self.here], **options)

    def sent_bytes(self, namespace):
        command = ["ip", "netns", "exec", namespace, "cat", "/sys/class/net/nic/statistics/tx_bytes"]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    def test_each_host_connects_to_the_next_one(self):
        source = self.file("source", 4 * MIB)
        self.check_result(self.spread(source, *self.places()), 0)
        self.check_copies(source)
        for name in ["here", *self.names[:-1]]:
            self.assertGreater(self.sent_bytes(self.prefix + name), 4 * MIB)
            self.assertLess(self.sent_bytes(self.prefix + name), 5 * MIB)
        self.assertLess(self.sent_bytes(self.prefix + self.names[-1]), MIB)

    def cut(self, name):
        source = self.file("source", 4 * MIB)
        process = self.start_spread(source)
        self.ip("-n", self.prefix + name, "link", "set", "nic", "down")
        return source, process

    def test_a_link_that_comes_back(self):
        source, process = self.cut(self.names[2])
        time.sleep(1)
        self.ip("-n", self.prefix + self.names[2], "link", "set", "nic", "up")
        result = self.finish(process)
        # A connection that is made meanwhile breaks.
        result.stderr = re.sub(RESTORED, "", result.stderr)
        self.check_result(result, 0)
        self.check_copies(source)

    def attempts(self, name):
        """How often a host without a network has tried to connect."""
        command = ["ip", "netns", "exec", self.prefix + name, "nstat", "-asz", "IpOutNoRoutes"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return int(text.split()[-2])

    def test_a_link_that_stays_down(self):
        source, process = self.cut(self.names[2])
        started = time.monotonic()
        result = self.finish(process)
        # It pauses for 0.1 s after each attempt, and attempts two channels, which ask for several
        # routes each. Without the pause, it asked for hundreds of them a second.
        attempts = self.attempts(self.names[2])
        self.assertGreater(attempts, 0)
        self.assertLess(attempts, 100 * (time.monotonic() - started))
        self.assertEqual(result.status, 4, result)
        self.assertRegex(result.stderr, "the connection from this host to %s failed: " % self.names[2])
        self.assertRegex(result.stderr.splitlines()[-1], self.count(1))
        self.check_copies(source, [self.names[2]])


class Restricted(Chain):
    """A server with --under passes nothing on, unless it may."""

    def shell(self, options):
        path = self.folder / "restricted"
        path.write_text("#!/bin/sh\nhost=$1\ncd \"$STUB_HOSTS/$host\" || exit 255\nset --\n"
                        "[ ! -e .restricted ] || set -- %s\nexec '%s' cp --server \"$@\"\n" % (options, PIER))
        path.chmod(0o755)
        self.variables["PIER_RSH"] = "'%s'" % path

    def test_it_can_be_the_last_one(self):
        self.add_hosts(3)
        self.shell("--under .")
        (self.hosts / "host3" / ".restricted").touch()
        source = self.file("source", MIB)
        self.check_result(self.spread(source, *self.places()), 0)
        self.check_copies(source)

    def test_it_is_left_out_elsewhere(self):
        self.add_hosts(3)
        self.shell("--under .")
        (self.hosts / "host2" / ".restricted").touch()
        source = self.file("source", MIB)
        self.check_result(self.spread(source, *self.places()), 1,
                          self.lost("host2: the server does not pass copies on"), self.count(1))
        self.check_copies(source, ["host2"])

    def test_it_may_be_allowed(self):
        self.add_hosts(3)
        self.shell("--under . --write-only --pass-on")
        (self.hosts / "host1" / ".restricted").touch()
        source = self.file("source", MIB)
        self.check_result(self.spread(source, *self.places()), 0)
        self.check_copies(source)


main(at_once=16)

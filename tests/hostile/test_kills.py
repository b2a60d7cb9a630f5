#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""
Copies of which one side is killed at a random moment. The destination must then be
the old file, the whole new file or absent, and the next successful copy must remove
all temporary files.

PIER_KILLS is the number of copies. They are made under TMPDIR, so its file system is
tested. PIER_SEED repeats the choices, but not the timing.
"""

import os
import selectors
import signal
import time

from harness import Case, MIB, arguments_of, children_of, main

KILLS = int(os.environ.get("PIER_KILLS", "40"))
SIZES = (0, 1, 4096, 100_000, MIB, 3 * MIB + 17)


class Kills(Case):
    def setUp(self):
        super().setUp()
        self.place = self.folder / "place"
        self.place.mkdir()
        self.target = self.place / "copy"
        self.without_tmpfile = self.preload("NO_TMPFILE")
        self.sources = [self.file("source-%d" % size, size) for size in SIZES]
        self.contents = {source: source.read_bytes() for source in self.sources}
        self.old = b"old" * 1000
        self.counts = {"old": 0, "absent": 0, "new": 0, "left": 0}

    def one(self, source, environment, kill):
        """Start a copy, call kill(process), and return when both sides have ended."""
        ended, inherited = os.pipe()
        try:
            process = self.start("cp", "-q", source, self.target, env=environment,
                                 pass_fds=(inherited,))
            os.close(inherited)
            kill(process, ended)
            self.assertTrue(readable(ended, 60), "a side is left")
            process.communicate(timeout=60)
        finally:
            os.close(ended)
        return process.returncode

    def duration(self, source, environment):
        """The duration of a copy that is not killed."""
        start = time.monotonic()
        status = self.one(source, environment, lambda process, ended: None)
        self.assertEqual(status, 0)
        self.assertEqual(self.target.read_bytes(), self.contents[source])
        return time.monotonic() - start

    def killer(self, moment, side):
        def kill(process, ended):
            # The wait also ends when the copy does.
            readable(ended, moment)
            if side == "client" or not kill_server(process.pid):
                os.kill(process.pid, signal.SIGKILL)
        return kill

    def check(self, source, replaced):
        if not self.target.exists():
            self.assertFalse(replaced, "the old file is gone")
            self.counts["absent"] += 1
            return
        found = self.target.read_bytes()
        if replaced and found == self.old:
            self.counts["old"] += 1
            return
        self.assertTrue(found == self.contents[source], "neither the old file nor the new one")
        self.counts["new"] += 1

    def test_a_kill_never_leaves_a_partial_destination(self):
        environments = ({}, self.without_tmpfile)
        lasts = {(source, i): min(self.duration(source, environments[i]) for _ in range(3))
                 for source in self.sources for i in range(2)}
        for number in range(KILLS):
            source = self.random.choice(self.sources)
            kind = self.random.randrange(2)
            last = lasts[source, kind]
            # Half of the moments are near the end, where names change.
            moment = last * self.random.choice((self.random.uniform(0, 0.7),
                                                self.random.uniform(0.7, 1.1)))
            side = self.random.choice(("client", "server"))
            replaced = number % 2 == 0
            self.target.unlink(missing_ok=True)
            if replaced:
                self.target.write_bytes(self.old)
            with self.subTest(number=number, source=source.name, side=side, moment=moment,
                              replaced=replaced, named=kind):
                self.one(source, environments[kind], self.killer(moment, side))
                self.check(source, replaced)
            self.counts["left"] += len(os.listdir(self.place)) - self.target.exists()
        print("# found: %s" % self.counts)
        self.one(self.sources[-1], {}, lambda process, ended: None)
        self.check_same(self.sources[-1], self.target)
        self.assertEqual(os.listdir(self.place), ["copy"])


def servers(client):
    # A leak checker is also a child.
    return [child for child in children_of(client) if "--server" in arguments_of(child)]


def kill_server(client):
    """Returns whether there was one. Checks that the pid still belongs to the server."""
    for child in servers(client):
        try:
            descriptor = os.pidfd_open(child)
        except ProcessLookupError:
            return False
        try:
            if child in servers(client):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False


def readable(descriptor, seconds):
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


main()

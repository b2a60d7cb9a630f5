#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The examples, each run on soft0, and the page that quotes two of them."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lib"))
from cases import run_cases  # noqa: E402

EXAMPLES = pathlib.Path(os.environ["EXAMPLES"])
FROM_VERBS = ROOT / "examples/from_verbs"
RECORDS = "2048 records of 64 peers are right\n"
SECONDS = 240


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=SECONDS)


def start(*arguments):
    return subprocess.Popen([EXAMPLES / "example_two_hosts", *arguments], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Examples(unittest.TestCase):
    def prints(self, text, program):
        result = run(program)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, text, ""))

    def test_first_writes_into_place(self):
        self.prints("soft0, dma-buf path: straight into place\n", EXAMPLES / "example_first")

    def test_two_processes_read_from_each_other(self):
        self.prints("65536 bytes read from the other process, the last is 'p'\n",
                    EXAMPLES / "example_two_processes")

    def test_loader_reads_all_samples(self):
        self.prints("4194304 of 4194304 words are right\n", EXAMPLES / "example_loader")

    def test_hub_receives_from_64_clients(self):
        self.prints("640 messages from 64 clients\n", EXAMPLES / "example_hub")

    def test_events_outlive_a_killed_client(self):
        result = run(EXAMPLES / "example_events")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.assertEqual([line for line in lines if "gone" not in line],
                         ["server: message"] * 6 + ["server: "])
        # If the second client connects first, it takes the place of the dead one.
        self.assertLessEqual(len(lines), 8)

    def test_two_hosts_meet_by_tcp(self):
        with start("0") as server:
            port = server.stdout.readline().split()[-1]
            with start("localhost", port) as client:
                self.assertEqual(client.communicate(timeout=SECONDS), ("", ""))
            self.assertEqual(server.communicate(timeout=SECONDS),
                             ("1048576 bytes arrived, the last is 'p'\n", ""))
        self.assertEqual((client.returncode, server.returncode), (0, 0))

    def test_two_hosts_report_a_host_that_does_not_answer(self):
        result = run(EXAMPLES / "example_two_hosts", "localhost", "no-such-port")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("localhost: ", result.stderr)

    @unittest.skipUnless("BEFORE" in os.environ, "built without libpier-verbs")
    def test_program_of_verbs_works(self):
        self.prints(RECORDS, os.environ["BEFORE"])

    def test_program_moved_to_pier_works(self):
        self.prints(RECORDS, EXAMPLES / "example_after")


class Page(unittest.TestCase):
    """docs/verbs.md: a program of verbs, moved to pier."""

    page = (ROOT / "docs/verbs.md").read_text()
    programs = {name: (FROM_VERBS / name).read_text() for name in ("before.c", "after.c")}

    def test_snippets_are_in_the_programs(self):
        snippets = re.findall(r"^`(\w+\.c)`:\n\n```c\n(.*?)^```$", self.page, re.DOTALL | re.MULTILINE)
        self.assertEqual(len(snippets), self.page.count("```c\n"))
        self.assertEqual({name for name, _ in snippets}, set(self.programs))
        for name, text in snippets:
            with self.subTest(name + ": " + text.split("\n", 1)[0]):
                for part in text.split("\t...\n"):
                    self.assertIn(part, self.programs[name])

    def test_line_counts_are_right(self):
        """Those of the table: of a program, and of its functions."""
        rows = re.findall(r"^\| (.+?) \| (\d+|-) \| (\d+|-) \|$", self.page, re.MULTILINE)
        self.assertGreater(len(rows), 5)
        for name, *counts in rows:
            for program, count in zip(self.programs.values(), counts):
                with self.subTest(name):
                    self.assertEqual(count, self.count_lines(program, re.findall(r"`(\w+)\(\)`", name)))

    def count_lines(self, program, functions):
        if not functions:
            return str(program.count("\n"))
        found = [re.search(r"^static [^;]*?\b%s\(.*?^}$" % name, program, re.DOTALL | re.MULTILINE)
                 for name in functions]
        return str(sum(match[0].count("\n") + 1 for match in found if match)) if any(found) else "-"


run_cases(sys.modules[__name__])

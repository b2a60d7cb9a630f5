#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Every exit status that the manual lists occurs, and no list lacks one."""

import os
import pathlib
import re
import signal

from harness import Case, PIER, STUB_RSH, main

MANUALS = pathlib.Path(__file__).resolve().parents[2] / "man"
FAULTY = os.path.dirname(os.environ["FAULTY_BACKEND"])


def listed(page):
    """The exit statuses that a manual lists, in its order."""
    text = (MANUALS / page).read_text()
    section = re.search(r"^\.Sh EXIT STATUS\n(.*?)^\.Sh", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\.It (\S+)$", section.group(1), re.MULTILINE)


class Status(Case):
    def test_0_is_a_complete_copy(self):
        self.file("source", 1)
        self.copy("source", "target")

    def test_1_is_a_file_on_either_side(self):
        self.file("source", 1)
        self.refused(1, "missing", "cp", "missing", "target")
        self.refused(1, "no/target", "cp", "source", "no/target")
        self.refused(1, "missing", "cp", "--remote-pier", PIER, "somewhere:missing", "target",
                     env={"PIER_RSH": STUB_RSH, "STUB_HOME": str(self.folder)})

    def test_1_is_a_standard_output_that_is_full(self):
        self.file("source", 1)
        with open("/dev/full", "w", encoding="ascii") as full:
            result = self.run_pier("cp", "source", "target", stdout=full)
        self.check_failure(result, 1, "standard output")

    def test_2_is_a_usage_error(self):
        self.refused(2, "unknown", "cp", "--no-such-option", "source", "target")

    def test_3_is_a_device_or_memory_on_either_side(self):
        self.file("source", 1)
        for option in ("--device", "--remote-device", "--src-mem", "--dst-mem"):
            with self.subTest(option):
                self.refused(3, "nothing", "cp", option, "nothing", "source", "target")

    def test_4_is_the_other_side(self):
        self.file("source", 1)
        self.refused(4, "exited with status 1", "cp", "--rsh", "false", "source", "host:target")

    def test_5_is_a_failed_verification(self):
        self.file("source", 65536)
        result = self.run_pier("cp", "--dst-mem", "faulty:flip1", "source", "target",
                               env={"PIER_BACKEND_PATH": FAULTY})
        self.check_failure(result, 5, "verification failed")

    def test_128_and_more_are_signals(self):
        for number in signal.SIGHUP, signal.SIGINT, signal.SIGTERM:
            with self.subTest(number):
                process = self.start_slowly()
                process.send_signal(number)
                self.assertEqual(self.finish(process).status, 128 + number)

    def test_the_manuals_and_the_help_list_the_same(self):
        """6 and 7 are those of pier doctor: tools_doctor."""
        common = ["0", "1", "2", "3", "4", "5"]
        every = [*common, "6", "7", "128+N"]
        self.assertEqual(listed("pier.1"), every)
        self.assertEqual(listed("pier-cp.1"), [*common, "128+N"])
        self.assertEqual(sorted(listed("pier-doctor.1")), ["0", "1", "2", "6", "7"])
        text = self.run_pier("--help").stdout.split("exit status:")[1]
        self.assertEqual(re.findall(r"^  (\d(?:\d\d \+ N)?) ", text, re.MULTILINE),
                         [*every[:-1], "128 + N"])


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The progress of a copy: lines for people, and JSON for programs."""

import os

from harness import Case, MIB, json, main

LINE = (r" *\d+% (\d+ bytes|[\d.]+ KiB|1\.00 MiB) of 1\.00 MiB, "
        r"[\d.]+ [KM]?B/s(, (\d+ s|\d+ min \d+ s|\d+ h \d+ min) left)?")


class Progress(Case):
    def events(self, *arguments, status=0):
        result = self.run_pier("cp", "--json", *arguments)
        self.assertEqual(result.status, status, str(result))
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_a_line_has_the_total_the_rate_and_the_time_that_is_left(self):
        self.file("source", MIB)
        result = self.run_pier("cp", "--progress", "--bwlimit", "1M", "source", "target")
        self.assertEqual(result.status, 0, str(result))
        lines = result.stderr.splitlines()
        self.assertGreater(len(lines), 2)
        for line in lines:
            self.assertRegex(line, r"\A%s\Z" % LINE)
        self.assertRegex(lines[0], r"\A  0% 0 bytes of 1.00 MiB, 0 B/s\Z", "no time is known yet")
        self.assertRegex(lines[-1], " s left")

    def test_json_lines_describe_the_progress(self):
        self.file("source", MIB)
        start, *progress, end = self.events("--progress", "--bwlimit", "1M", "source", "target")
        self.assertEqual(start, {"event": "start", "total": MIB})
        self.assertGreater(len(progress), 1)
        for event in progress:
            self.assertEqual(set(event), {"event", "bytes", "total", "seconds",
                                          "bytes_per_second", "seconds_left"})
            self.assertEqual((event["event"], event["total"]), ("progress", MIB))
        self.assertIsNone(progress[0]["seconds_left"])
        self.assertGreater(progress[-1]["bytes_per_second"], 0)
        for name in "bytes", "seconds":
            values = [event[name] for event in progress]
            self.assertEqual(values, sorted(values))
        self.assertEqual((end["event"], end["ok"], end["bytes"]), ("end", True, MIB))

    def test_json_alone_is_one_line(self):
        self.file("source", MIB)
        event, = self.events("--bwlimit", "4M", "source", "target")
        self.assertEqual(event["event"], "end")

    def test_a_failure_is_the_last_line(self):
        self.file("source", MIB)
        start, event = self.events("--progress", "source", "no/target", status=1)
        self.assertEqual((start["event"], event["event"]), ("start", "error"))
        self.assertEqual((event["ok"], event["exit_status"]), (False, 1))
        self.assertIn("no/target", event["error"])

    def test_a_reader_that_does_not_read_misses_lines_and_stops_nothing(self):
        self.file("source", MIB)
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        filled = 0
        while True:
            try:
                filled += os.write(theirs, bytes(65536))
            except BlockingIOError:
                break
        os.set_blocking(theirs, True)
        result = self.run_pier("cp", "--progress", "--bwlimit", "2M", "source", "target",
                               stderr=theirs)
        os.close(theirs)
        self.assertEqual(result.status, 0, str(result))
        with open(ours, "rb") as pipe:
            self.assertEqual(len(pipe.read()), filled)


main()

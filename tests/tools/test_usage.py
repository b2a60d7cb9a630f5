#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Invalid command lines, the help, and the width of what is printed."""

import pathlib
import re

from harness import Case, json, main

TOP = pathlib.Path(__file__).resolve().parents[2]
MAN, TOOLS = TOP / "man", TOP / "tools"
# Of `pier cp --server`, which the help leaves out.
SERVER = {("", "server", False), ("", "under", True), ("", "read-only", False),
          ("", "write-only", False), ("", "pass-on", False)}


class Usage(Case):
    def usage(self, pattern, *arguments, **options):
        self.refused(2, pattern, *arguments, **options)

    def test_a_missing_command_is_refused(self):
        self.usage("no command")

    def test_an_unknown_command_is_refused(self):
        self.usage("'copy'; 'pier help' lists", "copy", "a", "b")
        for typed, meant in ("docter", "doctor"), ("pref", "perf"), ("inf", "info"), ("rum", "run"):
            self.usage("unknown command '%s'; did you mean '%s'\\?\n" % (typed, meant), typed)
            self.usage("unknown command '%s'; did you mean '%s'\\?\n" % (typed, meant), "help", typed)

    def test_an_unknown_option_before_the_command_is_refused(self):
        self.usage("'--jsno'", "--jsno", "info")

    def test_unknown_options_are_refused(self):
        for word in ("--jsno", "-x", "--verbosely", "--chunks=4K", "--no-verify=yes"):
            with self.subTest(word):
                self.usage("'%s'" % word.split("=")[0], "cp", word, "a", "b")

    def test_the_option_that_was_meant_is_suggested(self):
        for command, typed, meant in (
                ("cp", "--jsno", "json"), ("cp", "--chunks=4K", "chunk"), ("cp", "--excude", "exclude"),
                ("cp", "--noverify", "no-verify"), ("cp", "--remote_device=x", "remote-device"),
                ("perf", "--tx_depth=8", "tx-depth"), ("perf", "--post-list", "post_list"),
                ("info", "--devcie", "device"), ("doctor", "--svae", "save"), ("run", "--hlep", "help")):
            with self.subTest((command, typed)):
                self.usage(r"pier %s: option '%s' is unknown; did you mean --%s\?\n"
                           % (command, typed.split("=")[0], meant), command, typed)
        for typed in ("--x", "--nothing-like-it", "--", "--serve", "--option-table", "--" + "x" * 500):
            with self.subTest(typed):
                self.assertNotIn("did you mean", self.run_pier("cp", typed).stderr)
                self.assertNotIn("did you mean", self.run_pier(typed).stderr)

    def test_long_options_may_be_abbreviated(self):
        self.file("a", 1)
        result = self.run_pier("cp", "--js", "--thr=2", "--dep", "4", "a", "b")
        self.assertEqual((result.status, json.loads(result.stdout)["depth"]), (0, 4))
        self.assertEqual(self.run_pier("--vers").stdout, self.run_pier("--version").stdout)
        self.assertIn("devices", json.loads(self.run_pier("info", "--jso").stdout))
        self.usage(r"invalid value 'x' for --depth", "cp", "--dep=x", "a", "b")
        self.usage(r"'--js' takes no value", "cp", "--js=1", "a", "b")
        self.usage(r"'--dep' needs a value", "cp", "a", "b", "--dep")

    def test_ambiguous_options_name_the_candidates(self):
        self.usage(r"'--d' is ambiguous: --dry-run, --dst-mem, --device, --direct, --depth\n",
                   "cp", "--d", "a", "b")
        self.usage(r"'--remote' is ambiguous: --remote-device, --remote-pier\n", "cp", "--remote=x", "a")
        # A name in full is none, though another begins with it.
        self.usage("invalid value 'x' for --size", "perf", "--size", "x", "write_bw")

    def test_hidden_options_must_be_written_in_full(self):
        """Also those of a restricted server, which stand in authorized_keys."""
        self.usage("'--option' is unknown", "--option")
        self.usage("'--read' is unknown", "cp", "--server", "--read")

    def test_options_of_other_programs_are_answered(self):
        for command, word, answer in (
                ("cp", "-a", "-rp"), ("cp", "-avz", "-rp"), ("cp", "--archive", "-rp"),
                ("cp", "-R", "-r copies"), ("cp", "-P", "--port is scp's -P; --continue and --progress are rsync's"),
                ("cp", "-u", "--skip-same skips"), ("cp", "-z", "not compressed"), ("cp", "--delete", "kept"),
                ("cp", "--partial", "--continue"), ("cp", "--include=*.c", "--exclude"),
                ("cp", "-i", "ssh -i"), ("cp", "-f", "always replaced"), ("cp", "-J", "--rsh"),
                ("perf", "-F", "omit it"), ("perf", "-R", "rdma_cm"), ("perf", "-p", "--port"),
                ("perf", "-i", "port=N"), ("perf", "--report_gbits", "Gbit/s"),
                ("perf", "--run_infinitely", "-D"), ("perf", "--use_cuda=0", "--src-mem"),
                ("perf", "--tos=5", "--tclass"), ("perf", "--out_json", "--json")):
            with self.subTest((command, word)):
                shown = word.split("=")[0] if word.startswith("--") else word[:2]
                self.usage("pier %s: option '%s' is unknown: .*%s" % (command, shown, re.escape(answer)),
                           command, word, "a", "b")

    def test_answers_are_for_unknown_options_and_name_known_ones(self):
        tables = json.loads(self.run_pier("--option-tables").stdout)["commands"]
        sources = {"cp": TOOLS / "cp/options.c", "perf": TOOLS / "perf/options.c"}
        for table in tables:
            if table["name"] not in sources:
                continue
            known = {"-" + o["letter"] for o in table["options"]} | \
                    {"--" + o["name"] for o in table["options"]}
            text = sources[table["name"]].read_text()
            block = re.search(r"option_habit habits\[\] = \{\n(.*?)\n\};", text, re.DOTALL)[1]
            for names in re.findall(r'\{ "(-[^"]*)"', block):
                self.assertFalse(known & set(names.split()), names)
                # This one is as its own table says.
                answer = self.run_pier(table["name"], names.split()[0], "a", "b").stderr
                for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", answer.split(" is unknown: ")[1]):
                    self.assertIn(option, known, names)

    def test_names_of_tests_are_suggested(self):
        for typed, meant in (("ib_write_bw", "write_bw"), ("ib_read_lat", "read_lat"),
                             ("wirte_bw", "write_bw"), ("write-bw", "write_bw")):
            self.usage(r"unknown test '%s'; did you mean '%s'\?\n" % (typed, meant), "perf", typed)
        self.usage("unknown test 'nothing'; 'pier perf --help' lists", "perf", "nothing")

    def test_an_unknown_letter_in_a_group_is_refused(self):
        self.usage("'-x'", "cp", "-qx", "a", "b")

    def test_the_option_that_is_wrong_is_named(self):
        for words, complaint in (
                (("--json", "-av"), "'-a' is unknown"), (("--json", "-va"), "'-a' is unknown"),
                (("--chunk=4K", "-avx"), "'-a' is unknown"), (("--json", "-a"), "'-a' is unknown"),
                (("-q", "x", "--json", "-vzr"), "'-z' is unknown"),
                (("--json", "-r=1"), "'-r' takes no value"), (("-vr=", "a"), "'-r' takes no value"),
                (("-r=yes",), "'-r' takes no value"), (("-=",), "'-=' is unknown"),
                (("--json", "--json=1"), "'--json' takes no value"),
                (("--js=1",), "'--js' takes no value"), (("--jsno=1",), "'--jsno' is unknown"),
                (("-p-",), "'--' is unknown")):
            with self.subTest(words):
                self.usage("option %s[;:] " % complaint, "cp", *words, "a", "b")
        self.usage("'-j' is unknown", "info", "--json", "-jx")
        self.usage("'--json' takes no value", "info", "--json=1")

    def test_an_option_without_its_value_is_refused(self):
        for word in ("--chunk", "--src-mem", "-e"):
            with self.subTest(word):
                self.usage("'%s' needs a value" % word, "cp", "a", "b", word)

    def test_invalid_values_are_refused(self):
        for option, values in {
                "--chunk": ("", "0", "-1", "+4096", " 4096", "4097", "4K ", "1X", "1MM", "2G",
                            "4.5M", "K", "99999999999999999999", "18446744073709551615G"),
                "--depth": ("", "0", "-1", "x", "4097", "1.5", "8K"),
                "--threads": ("0", "65", "two"),
                "--bwlimit": ("0", "fast", "1M/s", "1023"),
                "--timeout": ("", "0", "-1", "x", "nan", "inf", "5s", "86401"),
                "--port": ("", "0", "65536", "ssh"),
                "--channel": ("tclass=1", "tc", "tc=256", "tc=-1", "sl=16", "tc=1" * 99),
                "--src-mem": ("", "x" * 64),
                "--dst-mem": ("", "x" * 64),
                "--device": ("", "x" * 256)}.items():
            for value in values:
                with self.subTest((option, value)):
                    self.usage("%s: " % option, "cp", option, value, "a", "b")

    def test_a_wrong_number_of_paths_is_refused(self):
        self.usage("SRC and DST are required", "cp")
        self.usage("SRC and DST are required", "cp", "a")
        self.usage("SRC... DST", "cp", "a")

    def test_invalid_paths_are_refused(self):
        self.usage("empty path", "cp", "", "b")
        self.usage("empty path", "cp", "a", "")
        self.usage("both on other hosts", "cp", "h:a", "h:b")
        self.usage("host name", "cp", ":a", "b")
        self.usage("host name", "cp", "a", "--", "-oProxyCommand=x:b")
        self.usage("too long", "cp", "a" * 5000, "b")

    def test_incomplete_hosts_are_refused(self):
        self.file("a", 1)
        for place in "[::1:x", "me@[::1:x", "[::1]x", "[a:b]":
            with self.subTest(place):
                self.usage(r"'%s' has no '\]:'.*\./NAME" % re.escape(place), "cp", "a", place)
        for place in "me@:x", "@host:x", "me@[]:x", "me@-oProxyCommand=x:x", "[]:x":
            with self.subTest(place):
                self.usage("does not begin with a host name", "cp", "a", place)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["a"])

    def test_brackets_in_file_names_are_accepted(self):
        self.file("[a]", 1)
        (self.folder / "[b").mkdir()
        self.copy("[a]", "[b/c:d")
        self.copy("[a]", "./[b:c")

    def test_an_empty_remote_shell_is_refused(self):
        self.file("a", 1)
        self.usage("--rsh", "cp", "--rsh", " ", "a", "h:b")

    def test_info_refuses_arguments(self):
        self.usage("'x'", "info", "x")
        self.usage("'--jos'", "info", "--jos")

    def test_control_characters_in_arguments_are_escaped(self):
        """Arguments may be file names that another user chose and that the shell put in for a *."""
        word, shown = "\033]0;owned\a\x9b2J\n", r"\x1b]0;owned\x07\xc2\x9b2J\x0a"
        self.file("--chunk=" + word, 1)
        self.file("z", 1)
        names = sorted(path.name for path in self.folder.iterdir())
        for words in ([word], ["--" + word], ["help", word], ["cp", *names, "target"],
                      ["cp", "--" + word, "a", "b"], ["cp", "-\033", "a", "b"],
                      ["cp", "--direct=" + word, "a", "b"], ["cp", "--device", word * 40],
                      ["cp", "--depth", word], ["cp", "a" + word, "b"],
                      ["cp", "-oX%s:a" % word, "b"], ["cp", word, "h:b", "c"],
                      ["info", word], ["info", "--json" + word],
                      ["cp", "--server", "--" + word],
                      ["cp", "--server", "--under", "a" + word]):
            with self.subTest(words):
                result = self.run_pier(*words)
                self.assertNotEqual(result.status, 0)
                self.assertRegex(result.stderr, r"\Apier( \w+)?: [ -~]+\n\Z")
        for words in (("cp", *names, "target"), ("info", word), (word,)):
            self.assertIn(shown, self.run_pier(*words).stderr)

    def test_a_long_value_does_not_truncate_the_message(self):
        self.usage(r"from 1 to 4096\n", "cp", "--depth", "x" * 5000, "a", "b")

    def test_help_and_version_are_printed(self):
        for words in (("--help",), ("-h",), ("help",), ("help", "help"), ("help", "cp"),
                      ("cp", "--help"), ("cp", "-h"), ("help", "info"), ("info", "--help")):
            with self.subTest(words):
                result = self.run_pier(*words)
                self.assertEqual((result.status, result.stderr), (0, ""))
                self.assertIn("usage: pier", result.stdout)
        self.assertRegex(self.run_pier("--version").stdout, r"\Apier \d+\.\d+\.\d+\n\Z")
        self.usage("'nothing'", "help", "nothing")

    def test_man_pages_have_every_option(self):
        """Each with its letter, and with a value if it takes one."""
        for command in json.loads(self.run_pier("--option-tables").stdout)["commands"]:
            if command["name"] == "help":
                continue
            with self.subTest(command["name"]):
                text = (MAN / ("pier-%s.1" % command["name"])).read_text()
                synopsis = text.split(".Sh SYNOPSIS")[1].split(".Sh ")[0]
                for option in command["options"]:
                    self.assertTrue(re.search(r"Fl (.*\| )?-%s\b|Fl \w*[%s]\w*\b" % (
                        option["name"], option["letter"] or "\n"), synopsis),
                        "the SYNOPSIS lacks --" + option["name"])
                table = {(o["letter"], o["name"], bool(o["argument"])) for o in command["options"]}
                page = {(letter or "", name, bool(argument)) for item in
                        re.findall(r"^\.It Fl (.*)", text, re.MULTILINE) for letter, name, argument in
                        re.findall(r"(?:\b(\w) , )?(?<![\w-])-([\w-]+)( Ar)?", item)}
                if command["name"] == "cp":
                    self.assertTrue(SERVER <= page)
                    page -= SERVER
                self.assertEqual(page, table)

    def test_every_exit_status_is_in_the_help(self):
        text = self.run_pier("--help").stdout
        for status in ("0", "1", "2", "3", "4", "5", "128 + N"):
            self.assertIn("  %s " % status, text)

    def test_no_line_is_wider_than_80_columns(self):
        """Except rows of numbers and their heading, and the doctor's summary, which is one line."""
        test = ["perf", "-n", "1", "-l", "1", "--tx-depth", "16", "--warm-up", "0", "--histogram"]
        long = "/nowhere/" + "long/" * 40
        for words, env in (
                (("info", "--mem", "memfd"), {}), (("info", "--mem", long[:60]), {}),
                (("info", "--device", "fault:like=nothing:soft0"), {}),
                (("info",), {"PIER_BACKEND_PATH": long, "PIER_DMABUF": "on off " * 20}),
                (("doctor",), {"PIER_BACKEND_PATH": long}), (("doctor", "--device", "soft0"), {}),
                ((*test, "-q", "2", "--threads", "2", "-b", "-e", "send_bw", "-d",
                  "fault:like=mlx5:soft0"), {}),
                ((*test, "--path", "staged", "--src-mem", "host", "write_bw"), {}), ((*test, "send_lat"), {}),
                (("help",), {}),
                *((("help", command), {}) for command in ("cp", "doctor", "info", "perf", "run"))):
            with self.subTest(words):
                result = self.run_pier(*words, env=env)
                self.assertGreater(len(result.stdout), 100, str(result))
                for line in result.stdout.splitlines():
                    if not re.match(r"pier doctor: | +(bytes|\d+) +(messages|\d+) ", line):
                        self.assertLessEqual(len(line), 80, line)

    def test_a_failing_standard_output_is_reported(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            result = self.run_pier("--version", stdout=full)
        self.assertEqual(result.status, 1)
        self.assertIn("standard output", result.stderr)


main()

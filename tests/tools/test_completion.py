#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The completion of pier for bash, zsh and fish.

COMPLETION is the folder of the three files.
"""

import os
import re
import shutil
import subprocess

from harness import Case, json, main

FOLDER = os.environ["COMPLETION"]

# Prints what completes the last of the arguments.
BASH = """
compopt() { echo "compopt $*"; }
. "$0"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_pier
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh's own functions need a terminal: what they are given is printed.
ZSH = """
_describe() { print -l -- ${${(P)2}%%:*} }
_arguments() { print -l -- "$@" }
file=$1; shift
words=("$@") CURRENT=$#
. $file
"""


class Completion(Case):
    def printed(self, *command):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), command)
        return done.stdout.split("\n")[:-1]

    def bash(self, *words):
        return [w for w in self.printed("bash", "--norc", "-c", BASH, FOLDER + "/pier", "pier", *words)
                if w]

    def commands(self):
        text = self.run_pier("help").stdout
        return re.findall(r"^  ([a-z]+) ", text.split("commands:")[1].split("--version")[0],
                          re.MULTILINE)

    def options(self, command):
        """The options that the help of a command lists."""
        text = self.run_pier(command, "--help").stdout
        lines = [line for line in text.split("\n") if line.startswith("  -")]
        return {word for line in lines for word in re.findall(r"(?:^  |, )(--?[A-Za-z][a-z_-]*)", line)}

    def need(self, shell):
        if not shutil.which(shell):
            self.skipTest("no " + shell)

    def test_bash_completes_every_command_and_option(self):
        self.assertIn("doctor", self.commands())
        self.assertEqual(set(self.bash("")),
                         {*self.commands(), "--version", "-h", "--help"})
        self.assertEqual(self.bash("doc"), ["doctor"])
        for command in self.commands():
            if command != "help":
                with self.subTest(command):
                    self.assertEqual(set(self.bash(command, "-")), self.options(command))

    def test_bash_completes_values(self):
        memory = json.loads(self.run_pier("info", "--json").stdout)["memory"]
        self.assertEqual(set(self.bash("cp", "--src-mem", "")), {m["name"] for m in memory})
        self.assertIn("soft0", self.bash("info", "--device", "s"))
        self.assertEqual(self.bash("help", "d"), ["doctor"])
        self.assertEqual(self.bash("perf", "--path", ""), ["direct", "staged"])
        self.assertEqual(self.bash("perf", "-A", "C"), ["CMP_AND_SWAP"])
        # bash makes a word of the "=".
        self.assertEqual(self.bash("info", "--device", "=", "so"), ["soft0"])
        self.assertEqual(self.bash("perf", "--path", "="), ["direct", "staged"])
        # Files are left to bash, and numbers to the user.
        self.assertEqual(self.bash("doctor", "--from", ""), [])
        self.assertEqual(self.bash("cp", "file"), [])
        self.assertEqual(self.bash("cp", "--depth", ""), ["compopt +o default"])
        self.assertEqual(self.bash("run", "program", "-"), [])

    def test_bash_completes_names_of_tests(self):
        tests = self.bash("perf", "")
        text = self.run_pier("perf", "--help").stdout
        self.assertEqual(set(tests), set(re.findall(r"\b[a-z]+_(?:bw|lat)\b", text)))
        self.assertEqual(self.bash("perf", "-e", "write_"), ["write_bw", "write_lat"])
        for words in (("write_bw", ""), ("write_bw", "n"), ("-e", "write_bw", "-b", "")):
            self.assertEqual(self.bash("perf", *words), [])
        self.assertIn("--iters", self.bash("perf", "write_bw", "--it"))
        for test in tests:
            self.refused(2, "the name of HOST is empty", "perf", test, "")

    def test_zsh_completes_every_command_and_option(self):
        self.need("zsh")
        file = FOLDER + "/_pier"
        first = self.printed("zsh", "-fc", ZSH, "zsh", file, "pier", "")
        self.assertTrue(set(self.commands()) <= set(first), first)
        for command in self.commands():
            lines = self.printed("zsh", "-fc", ZSH, "zsh", file, "pier", command, "-")
            found = {line.split("[")[0] for line in lines if line.startswith("-")}
            self.assertEqual(found, set() if command == "help" else self.options(command))
            self.assertEqual(any(line.startswith("1:test:(write_bw ") for line in lines),
                             command == "perf")

    def test_fish_completes_every_command_and_option(self):
        self.need("fish")
        ask = "set -x HOME %s; source %s/pier.fish; complete -C" % (self.folder, FOLDER)

        def complete(text):
            return {line.split("\t")[0]
                    for line in self.printed("fish", "--no-config", "-c", "%s '%s'" % (ask, text))}

        self.assertTrue(set(self.commands()) <= complete("pier "))
        for command in self.commands():
            if command != "help":
                long = {o for o in self.options(command) if o.startswith("--")}
                self.assertEqual(complete("pier %s --" % command), long)
        self.assertTrue({"write_bw", "atomic_lat"} <= complete("pier perf "))
        self.assertEqual(complete("pier perf --path "), {"direct", "staged"})


main()

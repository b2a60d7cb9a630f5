#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the commands of a page on an installed pier, in the current folder and in one shell.

usage: newcomer.py PAGE FIRST END

The commands are those of the blocks from the heading FIRST up to the heading END. Each must print
what the page shows; a command below which the page shows nothing must succeed. The time of each is
printed.
"""

import pathlib
import subprocess
import sys
import time

import blocks
import outputs

END_OF_COMMAND = "\001"


class Shell:
    """A shell that keeps its variables from one command to the next."""

    def __init__(self):
        self.process = subprocess.Popen(["bash"], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, text):
        """The exit status and the output of a command, which does not read the script."""
        self.process.stdin.write("{ %s\n} </dev/null\nprintf '\\001%%d\\n' $?\n" % text)
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            printed += line
            if END_OF_COMMAND in line:
                output, _, status = printed.partition(END_OF_COMMAND)
                return int(status), output
        raise SystemExit("the shell ended: " + text)


def commands(page, first, end):
    text = pathlib.Path(page).read_text()
    start = text.index("\n%s" % first)
    section = text[start:text.index("\n%s" % end, start)]
    return [command for block in blocks.blocks_of(page, section) for command in block.commands()]


def main():
    found, shell = commands(*sys.argv[1:]), Shell()
    if not found:
        raise SystemExit("no commands there")
    for command in found:
        print("$", command.text, flush=True)
        start = time.monotonic()
        status, output = shell.run(command.text)
        seconds = time.monotonic() - start
        sys.stdout.write(output)
        shown = any(command.shown)
        if not (outputs.is_shown(command.shown, output) if shown else status == 0):
            raise SystemExit("exit status %d; the page shows\n%s" % (status, "\n".join(command.shown)))
        print("# %.1f s" % seconds)


if __name__ == "__main__":
    main()

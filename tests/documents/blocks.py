# SPDX-License-Identifier: BSD-3-Clause
"""The blocks of code of the pages, the examples, and the file `not_run`."""

import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_RUN = pathlib.Path(__file__).with_name("not_run")
PAGES = ["README.md", "docs/*.md", "integrations/nixl/README.md", "python/README.md"]
EXAMPLES = ["examples/**/*.c", "examples/**/*.py"]
KINDS = "synopsis", "elsewhere", "excluded"
FENCE = re.compile(r"^```")
LIMIT = re.compile(r"^at most (\d+)$")
# A description beside a command.
BESIDE = re.compile(r"(?<=\S) {2,}(?=\S).*")

# A command, and the lines that the page shows below it.
Command = collections.namedtuple("Command", "text shown")
Entry = collections.namedtuple("Entry", "page start kind reason")


class Block:
    """Consecutive lines of code, without their indentation, or the file of an example."""

    def __init__(self, page, number, lines):
        self.page = page
        self.number = number
        self.lines = lines

    def __str__(self):
        return "%s:%d: %s" % (self.page, self.number, self.lines[0])

    def starts(self, start):
        """Whether one of its lines begins with this text, apart from a prompt."""
        return any(line.removeprefix("$ ").startswith(start) for line in self.lines)

    def commands(self):
        """The commands after prompts, with their output; without a prompt, each line is a command."""
        found, prompts = [], any(line.startswith("$ ") for line in self.lines)
        for line in self.lines:
            if found and found[-1].text.endswith("\\"):
                found[-1] = Command(found[-1].text + "\n" + line, [])
            elif line.startswith("$ "):
                found.append(Command(line[2:], []))
            elif prompts:
                found[-1].shown.append(line)
            elif line:
                found.append(Command(BESIDE.sub("", line), []))
        return found


def fenced(lines, first):
    """The end of the fenced block that begins at this line."""
    return next(n for n in range(first + 1, len(lines)) if FENCE.match(lines[n]))


def indented(lines, first):
    """The end of the indented block: empty lines belong to it, except the last ones."""
    end = first
    for n in range(first, len(lines)):
        if lines[n].startswith("    "):
            end = n + 1
        elif lines[n].strip():
            break
    return end


def blocks_of(page, text):
    found, lines, n = [], text.split("\n"), 0
    while n < len(lines):
        if FENCE.match(lines[n]):
            end = fenced(lines, n)
            found.append(Block(page, n + 2, lines[n + 1:end]))
            n = end + 1
        elif lines[n].startswith("    ") and n and not lines[n - 1].strip():
            end = indented(lines, n)
            found.append(Block(page, n + 1, [line[4:] for line in lines[n:end]]))
            n = end
        else:
            n += 1
    return found


def all_blocks():
    found = []
    for page in (page for pattern in PAGES for page in sorted(ROOT.glob(pattern))):
        found += blocks_of(str(page.relative_to(ROOT)), page.read_text())
    for example in (path for pattern in EXAMPLES for path in sorted(ROOT.glob(pattern))):
        found.append(Block(str(example.relative_to(ROOT)), 1, example.read_text().split("\n")))
    return found


def find(blocks, page, start):
    """The first block of a page that has a line which starts so, or None."""
    return next((block for block in blocks if block.page == page and block.starts(start)), None)


def parse_not_run(text):
    """The greatest number of blocks that no test runs, and the entries."""
    most, entries, subject = None, [], None
    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        if LIMIT.match(line):
            most = int(LIMIT.match(line)[1])
        elif line[0] == "\t":
            kind, _, reason = line.strip().partition(": ")
            entries.append(Entry(*subject, kind, reason))
        else:
            subject = line.partition(": ")[::2]
    return most, entries

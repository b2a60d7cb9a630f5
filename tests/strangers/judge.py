# SPDX-License-Identifier: BSD-3-Clause
"""Cases judged by the file `expected`: each passes, or does exactly what a line there says."""

import collections
import fnmatch
import os
import pathlib
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))
from cases import Cases  # noqa: E402

LINE = re.compile(r"(\S+) +(passes|skips|may-skip|fails|unused) +(\S.*?): (\S.*)")
DEVICE = (sys.argv[1:] or ["soft0"])[0]

# What a program did: state is passes, fails or skips; text is its output, or its reason to skip.
Outcome = collections.namedtuple("Outcome", "state text")
Line = collections.namedtuple("Line", "state pattern reason")


def read_expected(group):
    """The lines for this group of programs on DEVICE."""
    for text in (HERE / "expected").read_text().splitlines():
        if text and not text.startswith("#"):
            device, state, pattern, reason = LINE.fullmatch(text).groups()
            if device in (DEVICE, "*") and pattern.split()[0] == group:
                yield Line(state, pattern, reason)


class Judge:
    """The cases of one group of programs."""

    def __init__(self, group):
        self.group = group
        self.cases = Cases()
        self.lines = list(read_expected(group))
        self.used = set()

    def line_for(self, name):
        """The first line that names this case, or None."""
        for line in self.lines:
            if fnmatch.fnmatchcase("%s %s" % (self.group, name), line.pattern):
                self.used.add(line)
                return line
        return None

    def is_unused(self, name):
        """True if this case does not run on DEVICE; it is then counted as skipped."""
        line = self.line_for(name)
        if not line or line.state != "unused":
            return False
        self.cases.skip(name, line.reason)
        return True

    def judge(self, name, outcome):
        line = self.line_for(name)
        wanted = line.state if line else "passes"
        if wanted == "may-skip":
            wanted = "skips" if outcome.state == "skips" else "passes"
        if outcome.state != wanted:
            self.cases.case(name, [*outcome.text.splitlines(), "it %s, and tests/strangers/expected "
                                   "says that it %s" % (outcome.state, wanted)])
        elif wanted == "passes":
            self.cases.case(name, [])
        else:
            self.cases.skip(name, line.reason)

    def run(self, name, function):
        """Judge function(), which returns an outcome, unless it does not run on DEVICE."""
        if not self.is_unused(name):
            self.judge(name, function())

    def end(self):
        stale = ["no case matches: " + line.pattern for line in self.lines
                 if line not in self.used]
        self.cases.case("every line of expected is used", stale)
        self.cases.end()


def skip_everything(reason):
    """Ends this program: a stranger cannot be had here."""
    print("skip: %s\n1..0 # skip %s" % (reason, reason))
    sys.exit(77)


def need_programs(package, *programs):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        skip_everything("no %s (Debian: %s)" % (", ".join(missing), package))


class Place:
    """A temporary folder, in which processes on soft0 meet."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="pier-strangers-")
        os.environ["XDG_RUNTIME_DIR"] = self.folder.name
        return pathlib.Path(self.folder.name)

    def __exit__(self, *exception):
        self.folder.cleanup()

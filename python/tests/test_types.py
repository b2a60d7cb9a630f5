# SPDX-License-Identifier: BSD-3-Clause
"""The types and the style of the package: stubtest, mypy --strict and ruff.

Nothing here needs PyPI but the tools themselves.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = ROOT / "pyproject.toml"
LINTED = ("python", "examples", "integrations", "tests", "tools", "tools/site", "tools/wheel")
# CPython before 3.12 does not show this method of an extension.
ALLOWED = r"pier\._pier\.(Buffer|View)\.__buffer__"
# What a type checker must find in a program of a user.
MISTAKES = [
    ("pier.Buffer('memfd', '19')", "arg-type"),
    ("pier.Device().close(1)", "call-arg"),
    ("with pier.Device() as device: len(device)", "arg-type"),
    ("pier.Remote([(1, 2)])", "list-item"),
    ("pier.Access.REMOTE", "attr-defined"),
    ("pier.Channel(pier.ProtectionDomain(), timout=3)", "call-arg"),
    ("pier.Group.from_store({}, 0, 1, max_send_wr='3')", "arg-type"),
    ("pier.data.Loader('pier://127.0.0.1:1', 8, prefetch=3)", "call-arg"),
]


def tool(name, *arguments, cwd=None):
    """Output of a tool that is a module of this interpreter; "" if it found nothing."""
    if importlib.util.find_spec(name.split(".")[0]) is None:
        raise unittest.SkipTest("%s cannot be had from PyPI" % name.split(".")[0])
    done = subprocess.run([sys.executable, "-m", name, *map(str, arguments)], check=False,
                          cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout if done.returncode else ""


class Types(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="pier-types-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # Where the build has the package, of which the stubs are a part.
        self.build = os.environ["PYTHONPATH"].split(os.pathsep)[0]

    def test_stubs_are_those_of_the_extension(self):
        allowed = self.folder / "allowed"
        allowed.write_text(ALLOWED + "\n")
        self.assertEqual(tool("mypy.stubtest", "--mypy-config-file", CONFIG, "--allowlist", allowed,
                              "--ignore-unused-allowlist", "--ignore-disjoint-bases", "pier._pier",
                              cwd=self.folder), "")

    def test_package_exports_what_the_extension_has(self):
        import pier
        self.assertEqual({name for name in vars(pier._pier) if name[0] != "_"} - {"Group"},
                         set(vars(pier._pier)) & set(pier.__all__) - {"Group", "__version__"})

    def test_package_passes_mypy(self):
        self.assertEqual(tool("mypy", "--config-file", CONFIG, "--cache-dir", self.folder / "cache",
                              cwd=self.build), "")

    def test_mistakes_of_a_program_are_found(self):
        program = self.folder / "program.py"
        program.write_text("import pier.data\n" + "".join(line + "\n" for line, _ in MISTAKES))
        found = tool("mypy", "--strict", "--cache-dir", self.folder / "cache", program,
                     cwd=self.build).splitlines()
        self.assertEqual([line.rpartition("[")[2].rstrip("]") for line in found if ": error: " in line],
                         [code for _, code in MISTAKES], found)

    def test_examples_pass_mypy(self):
        text = (ROOT / "docs/python.md").read_text()
        program = self.folder / "program.py"
        program.write_text("".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)))
        self.assertEqual(tool("mypy", "--strict", "--cache-dir", self.folder / "cache", program,
                              cwd=self.build), "")

    def test_style(self):
        self.assertEqual(tool("ruff", "check", "--no-cache", "--config", CONFIG, "--output-format",
                              "concise", *(ROOT / name for name in LINTED)), "")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: BSD-3-Clause
"""Shared by the lint checks: the files of the tree, and what they include."""

import os
import pathlib
import re
import shutil
import subprocess

SOURCES = pathlib.Path(__file__).resolve().parents[2]
# check_lint has its checks look at another tree, a wrong one.
ROOT = pathlib.Path(os.environ.get("PIER_LINT_ROOT", SOURCES)).resolve()
BUILD = pathlib.Path(os.environ.get("PIER_BUILD", ROOT / "build" / "tests-gcc"))
# Files of a driver of the kernel, which are compiled in another tree.
DRIVER = ROOT / "tests" / "vm" / "rxe" / "driver"
# Where the build looks for an include in quotes, after the file's own folder.
SEARCH = [".", "src", "tools", "tests/fakes"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# What judges differently in each version, by case: the program and the version that counts.
PINNED = {"clang-format": ("clang-format", 14), "clang --analyze": ("clang", 14),
          "gcc -fanalyzer": ("gcc", 12)}
# Cases that need a program: its name and its Debian package.
REQUIRED = {"the interface is the one described": ("abidiff", "abigail-tools")}
# Judge only these files: one path a line, relative to the root (tools/pre-commit).
ONLY = os.environ.get("PIER_LINT_FILES")


def other_version(case):
    """Why a case cannot be judged here: its program has another version; else None."""
    program, wanted = PINNED.get(case, ("", 0))
    if not program:
        return None
    line = subprocess.run([program, "--version"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split("\n")[0]
    found = re.findall(r"\d+(?:\.\d+)+", line)[-1]
    if int(found.split(".")[0]) == wanted:
        return None
    return "%s %s is installed, and version %d judges" % (program, found, wanted)


def not_installed(case):
    """The sentence for a case that is skipped because its program is missing; else None."""
    program, package = REQUIRED.get(case, (None, None))
    if not program or shutil.which(program):
        return None
    return "%s is not installed (Debian: %s)" % (program, package)


def ignored(name):
    return name.startswith("build") or name in (".git", "__pycache__", ".cache")


def tree(*patterns, under=""):
    """The files of the tree that match, build folders left out."""
    found = []
    for folder, folders, names in os.walk(ROOT / under):
        folders[:] = sorted(f for f in folders if not ignored(f))
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            if not path.is_symlink() and any(path.match(p) for p in patterns or ["*"]):
                found.append(path)
    return [path for path in found if path.name != ".git"]


def files(*patterns, under=""):
    """The files that a check judges: all that match, or those of PIER_LINT_FILES."""
    if ONLY is None:
        return tree(*patterns, under=under)
    named = [ROOT / name for name in ONLY.split("\n") if name]
    return sorted(path for path in named if (ROOT / under) in path.parents and path.is_file()
                  and not path.is_symlink() and any(path.match(p) for p in patterns or ["*"]))


def includes(path):
    """(quote, name) of each include in a source file."""
    return INCLUDE.findall(path.read_text())


def resolve_include(path, name):
    """The file of the tree that an include in quotes names, or None."""
    for folder in [path.parent] + [ROOT / s for s in SEARCH]:
        if (folder / name).is_file():
            return (folder / name).resolve()
    return None


def relative(path):
    return str(path.relative_to(ROOT))


def built_from(name):
    """The path in the tree of a source that the build names."""
    path = (BUILD / name).resolve()
    return str(path.relative_to(ROOT if ROOT in path.parents else SOURCES))

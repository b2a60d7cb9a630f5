# SPDX-License-Identifier: BSD-3-Clause
"""What the lint checks share: the files of the tree."""

import os
import pathlib

# Another tree may be given: check_lint looks at trees that are wrong.
ROOT = pathlib.Path(os.environ.get("PIER_LINT_ROOT", pathlib.Path(__file__).parents[2])).resolve()
BUILD = pathlib.Path(os.environ.get("PIER_BUILD", ROOT / "build" / "tests-gcc"))
# Files of a driver of the kernel, which are compiled in another tree.
DRIVER = ROOT / "tests" / "vm" / "rxe" / "driver"


def ignored(name):
    return name.startswith("build") or name in (".git", "__pycache__", ".cache")


def files(*patterns, under=""):
    """The files of the tree that match, build folders left out."""
    found = []
    for folder, folders, names in os.walk(ROOT / under):
        folders[:] = sorted(f for f in folders if not ignored(f))
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            if not path.is_symlink() and any(path.match(p) for p in patterns or ["*"]):
                found.append(path)
    return [path for path in found if path.name != ".git"]


def relative(path):
    return str(path.relative_to(ROOT))

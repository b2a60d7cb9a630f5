# SPDX-License-Identifier: BSD-3-Clause
"""Run a program whose GPU memory libpier-dmabuf.so registers as dma-bufs.

    python -m pier.preload PROGRAM [ARGUMENT...]

The library inside the package is preloaded, and the program takes the place of this process. With
PIER_PRELOAD=off the library does nothing. docs/preload.md of the sources has the whole, pier-run(1)
the same for the program pier. The exit status is that of the program; 2: wrong usage, 3: no library
to preload, 126: the program cannot be run, 127: there is no such program.
"""

import os
import pathlib
import shutil
import stat
import sys
from typing import NoReturn

__all__ = ["main"]

LIBRARY = pathlib.Path(__file__).resolve().with_name("libpier-dmabuf.so")
USAGE, NO_LIBRARY, CANNOT_RUN, NO_PROGRAM = 2, 3, 126, 127
HELP = ("-h", "--help")


def _fail(status: int, text: str) -> NoReturn:
    print("pier.preload: " + text, file=sys.stderr)
    raise SystemExit(status)


def _gains_privileges(program: str) -> bool:
    """Whether the loader ignores LD_PRELOAD for it (AT_SECURE in getauxval(3))."""
    file = os.stat(program)
    if file.st_mode & stat.S_ISUID and file.st_uid != os.geteuid():
        return True
    if file.st_mode & stat.S_ISGID and file.st_gid != os.getegid():
        return True
    try:
        return os.geteuid() != 0 and bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def _preload() -> str:
    """LD_PRELOAD with the library. A sanitizer's, which must be the first, stays there."""
    library = str(LIBRARY)
    if not LIBRARY.is_file():
        _fail(NO_LIBRARY, "there is no %s: this package comes without it; use pier run --dmabuf" % library)
    if " " in library or ":" in library:
        _fail(NO_LIBRARY, "%s: LD_PRELOAD separates paths by spaces and colons: install pier in a folder "
                          "without any" % library)
    before = os.environ.get("LD_PRELOAD")
    return before + ":" + library if before else library


def main(arguments: list[str]) -> NoReturn:
    if arguments[:1] and arguments[0] in HELP:
        print(__doc__)
        raise SystemExit(0)
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    elif not arguments or arguments[0].startswith("-"):
        arguments = []
    if not arguments:
        _fail(USAGE, "no program given; usage: python -m pier.preload [--] PROGRAM [ARGUMENT...]")
    env = {"PIER_LOG": "warning", **os.environ, "LD_PRELOAD": _preload()}
    program = shutil.which(arguments[0])
    if program and _gains_privileges(program):
        _fail(CANNOT_RUN, "%s runs with more privileges than yours, so the loader preloads nothing: run a copy "
                          "without them" % program)
    try:
        os.execvpe(arguments[0], arguments, env)
    except OSError as error:
        _fail(NO_PROGRAM if isinstance(error, FileNotFoundError) else CANNOT_RUN,
              "cannot run %s: %s" % (arguments[0], error.strerror))


if __name__ == "__main__":
    main(sys.argv[1:])

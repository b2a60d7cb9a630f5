# SPDX-License-Identifier: BSD-3-Clause
"""python -m pier.preload, as tests/tools/test_run.py tests pier run --dmabuf."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0], "pier")
LIBRARY = PACKAGE / "libpier-dmabuf.so"
SHOW = ("sh", "-c", "echo $LD_PRELOAD")


class Preload(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="pier-preload-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_it(self, *arguments, **more):
        return subprocess.run([sys.executable, "-m", "pier.preload", *map(str, arguments)], text=True,
                              capture_output=True, check=False, env={**os.environ, **more}, timeout=60)

    def refused(self, status, reason, *arguments, **more):
        done = self.run_it(*arguments, **more)
        self.assertEqual((done.returncode, done.stdout), (status, ""))
        self.assertRegex(done.stderr, "^pier.preload: .*%s.*\n$" % reason)

    def test_the_program_gets_the_library_and_its_arguments(self):
        self.assertEqual(self.run_it(*SHOW).stdout, "%s\n" % LIBRARY)
        self.assertEqual(self.run_it("--", "echo", "--help", "-x").stdout, "--help -x\n")
        self.assertEqual(self.run_it("sh", "-c", "exit 5").returncode, 5)
        found = self.run_it("cat", "/proc/self/maps")
        self.assertEqual(found.stderr, "")
        self.assertIn(str(LIBRARY), found.stdout)

    def test_another_preloaded_library_stays_first(self):
        self.assertEqual(self.run_it(*SHOW, LD_PRELOAD="libc.so.6").stdout, "libc.so.6:%s\n" % LIBRARY)

    def test_help_is_printed(self):
        done = self.run_it("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("python -m pier.preload PROGRAM", done.stdout)

    def test_wrong_usage_is_refused(self):
        self.refused(2, "no program given")
        self.refused(2, "no program given", "--")
        self.refused(2, "no program given", "--unknown", "true")

    def test_a_program_that_cannot_run_is_refused(self):
        self.refused(127, "cannot run no-such-program: No such file", "no-such-program")
        plain = self.folder / "plain"
        plain.write_text("text")
        self.refused(126, "Permission denied", plain)

    @unittest.skipUnless(os.geteuid() == 0, "only root makes a file of another user")
    def test_a_program_with_more_privileges_is_refused(self):
        program = self.folder / "program"
        shutil.copy(shutil.which("true"), program)
        os.chown(program, 1, 1)
        for bit in stat.S_ISUID, stat.S_ISGID:
            program.chmod(0o755 | bit)
            self.refused(126, "more privileges", program)
        program.chmod(0o755)
        self.assertEqual(self.run_it(program).returncode, 0)

    def test_a_package_without_the_library_is_refused(self):
        package = self.folder / "bare/pier"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns(LIBRARY.name))
        self.refused(3, "no .*/bare/pier/libpier-dmabuf.so: .*pier run --dmabuf", "true",
                     PYTHONPATH=str(package.parent))

    def test_a_path_that_cannot_be_preloaded_is_refused(self):
        package = self.folder / "two words/pier"
        shutil.copytree(PACKAGE, package)
        self.refused(3, "spaces and colons", "true", PYTHONPATH=str(package.parent))


if __name__ == "__main__":
    unittest.main()

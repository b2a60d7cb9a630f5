#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier run: a program of verbs on soft0."""

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import unittest

from harness import Case, json, main

PIER = os.environ["PIER"]
LIBRARY = os.environ["PIER_VERBS"]


class Run(Case):
    def output(self, *arguments, **options):
        result = self.run_pier("run", *arguments, **options)
        self.assertEqual((result.status, result.stderr), (0, ""))
        return result.stdout

    def test_a_program_of_verbs_sees_soft0(self):
        """pier itself is one: its provider verbs lists what libibverbs lists."""
        facts = json.loads(self.output("--", PIER, "info", "--json", "--device", "soft0"))
        device, = facts["devices"]
        self.assertEqual((device["name"], device["provider"]), ("soft0", "verbs"))

    def test_verbs_that_soft0_lacks_are_refused(self):
        """The first word is what a caller takes for failure."""
        functions = {"ibv_import_device": 0, "ibv_import_pd": 0, "ibv_attach_mcast": errno.EOPNOTSUPP,
                     "ibv_query_ece": errno.EOPNOTSUPP}
        script = ("import ctypes\nlibrary = ctypes.CDLL(None, use_errno=True)\n"
                  "for name in %r:\n    print(name, getattr(library, name)(None, None, None), "
                  "ctypes.get_errno())\n" % list(functions))
        self.assertEqual(self.output(sys.executable, "-c", script).splitlines(),
                         ["%s %d %d" % (name, value, errno.EOPNOTSUPP) for name, value in functions.items()])

    def test_the_status_of_the_program_is_returned(self):
        self.assertEqual(self.run_pier("run", "sh", "-c", "exit 7").status, 7)
        self.assertEqual(self.run_pier("run", "--", "sh", "-c", "exit 3").status, 3)

    def test_options_after_the_program_are_its_own(self):
        self.assertEqual(self.output("echo", "--help", "--", "-x"), "--help -- -x\n")

    def test_other_preloaded_libraries_stay_first(self):
        show = ("sh", "-c", "echo $LD_PRELOAD")
        self.assertEqual(self.output(*show), LIBRARY + "\n")
        other = os.environ["CLAIM_SIZE"]
        self.assertEqual(self.output(*show, env={"LD_PRELOAD": other}),
                         "%s:%s\n" % (other, LIBRARY))

    def test_dmabuf_preloads_the_other_library(self):
        """Beside libpier.so, or in the build's folder for it."""
        show = ("--dmabuf", "sh", "-c", "echo $LD_PRELOAD")
        self.assertEqual(self.output(*show), os.environ["PIER_DMABUF_LIBRARY"] + "\n")

    def test_wrong_usage_is_refused(self):
        self.refused(2, "no program given", "run")
        self.refused(2, "no program given", "run", "--")
        self.refused(2, "option '--x' is unknown", "run", "--x", "true")

    def test_a_program_that_cannot_run_is_refused(self):
        self.refused(127, "cannot run no-such-program: No such file", "run", "no-such-program")
        self.refused(127, "cannot run ./no-such: No such file", "run", "./no-such")
        plain = self.file("plain", b"text")
        self.refused(126, "Permission denied", "run", str(plain))

    @unittest.skipUnless(os.geteuid() == 0, "only root makes a file of another user")
    def test_a_program_with_more_privileges_is_refused(self):
        program = self.file("program", b"")
        shutil.copy(shutil.which("true"), program)
        os.chown(program, 1, 1)
        os.chmod(program, 0o755 | stat.S_ISUID)
        self.refused(126, "more privileges", "run", str(program))
        self.refused(126, "more privileges", "run", "--dmabuf", str(program))
        os.chmod(program, 0o755 | stat.S_ISGID)
        self.refused(126, "more privileges", "run", str(program))
        os.chmod(program, 0o755)
        self.assertEqual(self.run_pier("run", str(program)).status, 0)

    def move_libpier(self, name):
        """Copies libpier.so.0 to a folder, from where the tool takes it then."""
        folder = self.folder / name
        folder.mkdir()
        libraries = subprocess.run(["ldd", PIER], check=True, capture_output=True, text=True)
        shutil.copy(re.search(r"libpier\.so\.0 => (\S+)", libraries.stdout)[1], folder)
        return folder, {"LD_LIBRARY_PATH": str(folder)}

    def test_the_reason_why_soft0_does_not_open_is_printed(self):
        info = ("--", PIER, "info")
        env = {"XDG_RUNTIME_DIR": str(self.folder)}
        (self.folder / "pier-soft0").mkdir(0o755)
        reason = "pier: warning: ibv_open_device: soft0: the folder"
        self.assertIn(reason, self.run_pier("run", *info, env=env).stderr)
        env["PIER_LOG"] = "none"
        self.assertNotIn(reason, self.run_pier("run", *info, env=env).stderr)

    def test_a_missing_library_is_named(self):
        _, env = self.move_libpier("lib")
        self.refused(3, "no libpier-verbs.so in .*/lib/", "run", "true", env=env)
        self.refused(3, "no libpier-dmabuf.so in .*/lib/", "run", "--dmabuf", "true", env=env)

    def test_a_path_that_cannot_be_preloaded_is_refused(self):
        folder, env = self.move_libpier("two words")
        shutil.copy(LIBRARY, folder)
        self.refused(3, "separates paths by spaces", "run", "true", env=env)


main()

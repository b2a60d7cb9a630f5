# SPDX-License-Identifier: BSD-3-Clause
"""The wheel that tools/wheel makes, in clean virtual environments, and installing the sources."""

import email
import email.policy
import functools
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/pier"
TOOLS = ROOT / "build/wheel/tools"
BUILD = ROOT / "build/wheel" / platform.machine()
MINORS = range(11, 16)
# Every Linux with glibc has these.
LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}


def run(*command, more=None, **options):
    """The output of a command, which must succeed, with more variables in its environment."""
    env = {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **(more or {})}
    done = subprocess.run([str(part) for part in command], text=True, check=False, env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        raise AssertionError("%s: exit status %d\n%s" % (command, done.returncode, done.stdout))
    return done.stdout


def answer(python, code):
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def interpreters():
    """Path of each CPython from 3.11 on, by (minor version, whether it is free-threaded)."""
    names = ["python3", *("python3.%d%s" % (minor, t) for minor in MINORS for t in ("", "t"))]
    found = [shutil.which(name) for name in names] + ["/usr/bin/python3", sys.executable]
    # pyenv's shims start one version; the others are in folders beside them.
    for folder in os.get_exec_path():
        found += pathlib.Path(folder).parent.glob("versions/*/bin/python3")
    by_version = {}
    for path in found:
        version = path and answer(path, "import sys, sysconfig; print(sys.version_info[1], "
                                  "int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))")
        if version:
            minor, free = map(int, version.split())
            if minor in MINORS:
                by_version.setdefault((minor, bool(free)), path)
    return by_version


@functools.cache
def make_wheel():
    done = subprocess.run([ROOT / "tools/wheel"], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode == os.EX_UNAVAILABLE:
        raise unittest.SkipTest("the tools for wheels cannot be had from PyPI")
    if done.returncode:
        raise AssertionError(done.stderr)
    return pathlib.Path(done.stdout.splitlines()[-1])


def make_venv(python, folder):
    """Makes an environment, and returns the command of its pip: that of the tools if the CPython is the same."""
    version = "import sys; print(sys.version)"
    if answer(python, version) == answer(TOOLS / "bin/python", version):
        run(python, "-m", "venv", "--without-pip", folder)
        return [TOOLS / "bin/pip", "--python", folder / "bin/python"]
    run(python, "-m", "venv", folder)
    return [folder / "bin/pip"]


def problems_of_preload(library):
    """The faults of the library to preload: it must load into any program, on any Linux with glibc."""
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library)))
    found = ["needs " + name for name in needed - LIBRARIES - {"libibverbs.so.1"} if "ld-linux" not in name]
    if "libibverbs.so.1" not in needed:
        found.append("does not need libibverbs")
    # It replaces functions, and adds none of its own to those of the program.
    defined = set(re.findall(r" [TDBWR] ([^\s@]+)", run("nm", "-D", library))) - {"access", "dlopen"}
    found += ["defines " + name for name in sorted(defined) if not name.startswith("ibv_")]
    if os.path.getsize(library) > 400 << 10:
        found.append("has %d bytes" % os.path.getsize(library))
    return found


class Place(unittest.TestCase):
    """A case with a folder of its own."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pier-wheel-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, python):
        """Copies bytes in an interpreter that has the package installed."""
        output = run(python, "-B", ROOT / "python/tests/installed.py", cwd=self.folder)
        self.assertEqual(output, "soft0: straight into place\n")
        self.assertIn("/pier/libpier-dmabuf.so", run(python, "-m", "pier.preload", "cat", "/proc/self/maps"))
        self.check_folder_is_not_searched(python.parent / "pier-data")
        self.check_folder_is_not_searched(python, "-P", "-m", "pier.data")
        self.check_folder_is_not_searched(python, "-I", "-m", "pier.data", PYTHONPATH=":/opt/modules")

    def check_folder_is_not_searched(self, *program, **env):
        """The current folder may be a data set of others, here with a module of each name."""
        place = self.folder / "data set"
        place.mkdir(exist_ok=True)
        for name in sys.stdlib_module_names | {"pier", "_pier", "sitecustomize", "usercustomize"}:
            (place / (name + ".py")).write_text("raise SystemExit('code of the data set ran')\n")
        self.assertIn("serve", run(*program, "--help", cwd=place, more=env))


class Wheel(Place):
    @classmethod
    def setUpClass(cls):
        cls.wheel = make_wheel()

    def test_wheel_is_for_any_cpython_and_glibc(self):
        self.assertRegex(self.wheel.name, r"^pier-[\d.]+-cp311-abi3-manylinux_2_28_%s\.whl$" %
                         platform.machine())

    def test_wheel_has_the_package_the_licence_and_no_library(self):
        names = set(zipfile.ZipFile(self.wheel).namelist())
        expected = {"pier/%s" % file.relative_to(PACKAGE) for file in PACKAGE.rglob("*")
                    if file.suffix in (".py", ".pyi", ".typed")} | {
                        "pier/_pier.abi3.so", "pier/libpier-dmabuf.so"}
        self.assertEqual({name for name in names if ".dist-info/" not in name and
                          not name.endswith("/")}, expected)
        self.assertTrue([name for name in names if name.endswith("/LICENSE")])

    def test_description_is_for_pypi(self):
        with zipfile.ZipFile(self.wheel) as archive:
            name, = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = email.message_from_bytes(archive.read(name), policy=email.policy.default)
        description = metadata.get_payload()
        self.assertEqual(metadata["Description-Content-Type"], "text/markdown")
        self.assertEqual(description.strip(), (ROOT / "python/README.md").read_text().strip())
        # A relative link leads nowhere there, be it inline, by reference or of HTML.
        links = re.findall(r"\]\(\s*<?([^)\s]*)|^ {0,3}\[[^]]+\]:\s*(\S+)|(?:href|src)=[\"']?([^\"'\s>]+)",
                           description, re.M)
        self.assertEqual([link for found in links for link in found
                          if link and not link.startswith(("https://", "#"))], [])

    def test_extension_needs_glibc_alone_and_exports_its_entry(self):
        with zipfile.ZipFile(self.wheel) as archive:
            library = archive.extract("pier/_pier.abi3.so", self.folder)
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library)))
        self.assertEqual({name for name in needed - LIBRARIES if "ld-linux" not in name}, set())
        defined = re.findall(r" [A-TV-Z] (\w+)", run("nm", "-D", library))
        self.assertEqual(defined, ["PyInit__pier"])

    def test_library_to_preload_needs_libibverbs_and_glibc(self):
        with zipfile.ZipFile(self.wheel) as archive:
            library = archive.extract("pier/libpier-dmabuf.so", self.folder)
        self.assertEqual(problems_of_preload(library), [])

    def test_library_to_preload_registers(self):
        """The wheel's library passes the test program of the build's own library."""
        program = pathlib.Path(os.environ["FAKE_DRIVERS"]).parents[1] / "preload/preload_soft"
        if not program.exists():
            self.skipTest("no test program: the build has no libpier-verbs")
        with zipfile.ZipFile(self.wheel) as archive:
            library = pathlib.Path(archive.extract("pier/libpier-dmabuf.so", self.folder))
        more = {"LD_LIBRARY_PATH": "%s:%s" % (library.parent, os.environ["FAKE_DRIVERS"]),
                "PIER_DMABUF_REPORT": self.folder / "report", "CMOCKA_MESSAGE_OUTPUT": "STDOUT"}
        self.assertIn("libpier-dmabuf.so => %s " % library, run("ldd", program, more=more))
        self.assertIn("[  PASSED  ]", run(program, more=more))

    def test_wheel_works_in_clean_environments(self):
        found = {key: path for key, path in interpreters().items() if not key[1]}
        self.assertTrue(found)
        for (minor, _), path in sorted(found.items()):
            with self.subTest("3.%d" % minor):
                place = self.folder / str(minor)
                run(*make_venv(path, place), "install", "--quiet", "--no-index", "--no-deps",
                    "--disable-pip-version-check", self.wheel)
                self.check(place / "bin/python")
                print("# CPython 3.%d" % minor)


class Sources(Place):
    """pip install ."""

    @classmethod
    def setUpClass(cls):
        make_wheel()  # for its tools

    def install(self, python, *settings):
        path = answer(TOOLS / "bin/python", "import sys; print(sys.path[-1])")
        pip = make_venv(python, self.folder / "venv")
        target = answer(self.folder / "venv/bin/python", "import sys; print(sys.path[-1])")
        # The build's requirements, as pip would install them for it.
        pathlib.Path(target, "tools.pth").write_text(path + "\n")
        with unittest.mock.patch.dict(os.environ, PATH="%s:%s" % (TOOLS / "bin", os.environ["PATH"])):
            run(*pip, "install", "--quiet", "--no-build-isolation",
                "--disable-pip-version-check", "--no-deps",
                *("--config-settings=" + setting for setting in settings), ROOT)
        self.check(self.folder / "venv/bin/python")

    def test_sources_install(self):
        # The compiler and the objects of the wheel: compiling all again would take most of the time.
        self.install(sys.executable, "build-dir=%s" % (BUILD / "build"),
                     "setup-args=--native-file=%s" % (BUILD / "zig.ini"))

    def test_missing_library_is_named_with_its_package(self):
        for library, package in ("libibverbs", "libibverbs-dev"), ("libcrypto", "libssl-dev"):
            script = self.folder / "pkg-config"
            script.write_text("#!/bin/sh\ncase $* in *%s*) exit 1;; esac\nexec %s \"$@\"\n" % (
                library, shutil.which("pkg-config")))
            script.chmod(0o755)
            with unittest.mock.patch.dict(os.environ, PKG_CONFIG=str(script)), \
                    self.assertRaisesRegex(AssertionError, "ERROR: .*finds no %s.*%s" % (library, package)):
                run(TOOLS / "bin/meson", "setup", self.folder / library, ROOT, "-Dtools=false")

    def test_free_threaded_interpreter_has_an_extension_of_its_own(self):
        free = [path for (_, is_free), path in interpreters().items() if is_free]
        if not free:
            self.skipTest("no free-threaded CPython (python3.13t or later) in PATH")
        self.install(free[-1], "build-dir=%s" % (self.folder / "build"), "setup-args=-Doptimization=0",
                     "setup-args=-Dpython.allow_limited_api=false")
        output = run(self.folder / "venv/bin/python", "-c",
                     "import sys, pier; print(sys._is_gil_enabled(), pier._pier.__file__)")
        self.assertRegex(output, r"^False .*\.cpython-\d+t-")


class FreeThreaded(Place):
    def test_extension_compiles_for_free_threading(self):
        newer = [path for (minor, _), path in interpreters().items() if minor >= 13]
        if not newer:
            self.skipTest("no headers of CPython 3.13 or later")
        headers = self.folder / "headers"
        shutil.copytree(answer(newer[-1], "import sysconfig; "
                               "print(sysconfig.get_path('include'))"), headers)
        # As configure --disable-gil writes it.
        with open(headers / "pyconfig.h", "a") as file:
            file.write("#define Py_GIL_DISABLED 1\n")
        sources = sorted((ROOT / "python/extension").glob("*.c"))
        build = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent
        run("cc", "-fsyntax-only", "-std=gnu11", "-fms-extensions", "-D_GNU_SOURCE", "-Wall",
            "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-isystem",
            headers, "-I", ROOT / "include", "-I", build / "include",
            "-I", ROOT / "src", "-I", ROOT / "backends", *sources)


if __name__ == "__main__":
    unittest.main()

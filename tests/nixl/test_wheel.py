#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The backend in an unmodified wheel of NIXL, from PyPI.

    test_wheel.py VERSION

The environment names the plugin (PIER_TEST_NIXL_PLUGIN) and the folder in which wheels
are kept (PIER_TEST_NIXL_WHEELS).
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import wheels

HERE = pathlib.Path(__file__).resolve().parent
INSTALL = HERE.parents[1] / "integrations/nixl/install"
PLUGIN = os.environ["PIER_TEST_NIXL_PLUGIN"]
TESTS = """the_wheels_own_backends_stay bytes_are_written_and_read
notifications_follow_the_bytes both_agents_notify lists_of_10000_descriptors_are_moved
running_requests_are_released a_killed_peer_is_reported""".split()
BASE = "_ZTV17nixlBackendEngine"

failed = False


def report(name, problem=None):
    global failed
    failed |= bool(problem)
    print("%s - %s" % ("not ok" if problem else "ok", name))
    for line in (problem or "").splitlines():
        print("# " + line)
    sys.stdout.flush()


def run(command, env, seconds=120):
    return subprocess.run([str(a) for a in command], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False)


def symbols(library):
    """Address of each symbol, and the name at each address."""
    at, names = {}, {}
    for table in ([], ["-D"]):
        text = subprocess.run(["nm", "-S", *table, library], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=True).stdout
        for line in text.splitlines():
            fields = line.split()
            if len(fields) == 4:
                name = fields[3].split("@")[0]
                at[name] = int(fields[0], 16), int(fields[1], 16)
                names.setdefault(int(fields[0], 16), name)
    return at, names


def virtual_functions(library):
    """The table of nixlBackendEngine's virtual functions, by their mangled names."""
    at, names = symbols(library)
    start, size = at[BASE]
    text = subprocess.run(["readelf", "-rW", library], stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    table = [""] * (size // 8)
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or not re.fullmatch(r"[0-9a-f]{12,16}", fields[0]):
            continue
        offset = int(fields[0], 16) - start
        if 0 <= offset < size:
            table[offset // 8] = names.get(int(fields[3], 16), "?") \
                if "RELATIVE" in fields[2] else fields[4].split("@")[0]
    # Two words in front of the functions, and two destructors, which the compiler leaves
    # out of the table of a class that cannot be made.
    return table[4:]


def compare_tables(folder):
    theirs = next(folder.glob(".*.mesonpy.libs/plugins/libplugin_UCX.so"))
    ours, found = virtual_functions(PLUGIN), virtual_functions(theirs)
    differing = ["%d: %s instead of %s" % (i, b, a)
                 for i, (a, b) in enumerate(zip(ours, found)) if a != b]
    if len(ours) != len(found) or len(ours) < 20:
        differing.append("%d virtual functions instead of %d" % (len(found), len(ours)))
    report("the table of virtual functions is the declared one", "\n".join(differing))


def check_second_wheel(path, folder):
    """pip install nixl brings two wheels: the link goes into both."""
    with tempfile.TemporaryDirectory() as other:
        plugins = pathlib.Path(other, ".nixl_cu13.mesonpy.libs/plugins")
        plugins.mkdir(parents=True)
        (plugins / "libplugin_UCX.so").touch()
        about = pathlib.Path(other, "nixl_cu13-1.5.1.dist-info")
        about.mkdir()
        (about / "METADATA").write_text("Name: nixl-cu13\nVersion: 1.5.1\n")
        (about / "RECORD").write_text(".nixl_cu13.mesonpy.libs/plugins/libplugin_UCX.so,,\n")
        links = [next(folder.glob(".*.mesonpy.libs")) / "plugins/libplugin_PIER.so",
                 plugins / "libplugin_PIER.so"]
        for order in ([other, path], [path, other]):
            env = wheels.environment(os.pathsep.join(order))
            done = run([INSTALL, sys.executable, "--plugin", PLUGIN], env)
            found = [link.is_symlink() for link in links]
            undone = run([INSTALL, sys.executable, "--undo"], env)
            found += [not link.is_symlink() for link in links]
            report("it is installed into two wheels",
                   "" if all(found) else done.stdout + undone.stdout)


def check_untested_version(path, folder):
    """The same wheel is refused if it says that it is of a later version."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as other:
        later = pathlib.Path(other, "site-packages")
        shutil.copytree(folder, later, copy_function=os.link, symlinks=True)
        about = next(later.glob("nixl_*.dist-info"))
        about.rename(about.with_name("%s-9.8.7.dist-info" % about.name.split("-")[0]))
        env = wheels.environment(path.replace(str(folder), str(later)), PIER_DEVICE="soft0",
                                 NIXL_PLUGIN_DIR=str(pathlib.Path(PLUGIN).parent))
        done = run([sys.executable, HERE / "agents.py", "PIER", "host", *TESTS[1:2]], env)
    report("an untested version is refused",
           "" if "NIXL 9.8 was not tested" in done.stdout and "\nok" not in done.stdout else done.stdout)


def check_wheel(version, cache):
    folder, path = cache.wheel(version), cache.path(version)
    env = wheels.environment(path, PIER_DEVICE="soft0")
    link = next(folder.glob(".*.mesonpy.libs")) / "plugins/libplugin_PIER.so"
    compare_tables(folder)
    check_second_wheel(path, folder)
    check_untested_version(path, folder)
    done = run([INSTALL, sys.executable, "--plugin", PLUGIN], env)
    report("it is installed", "" if done.returncode == 0 and link.is_symlink() else done.stdout)
    for kind in ("host", "memfd"):
        done = run([sys.executable, HERE / "agents.py", "PIER", kind, *TESTS], env)
        passed = re.findall(r"^ok - (.*)$", done.stdout, re.M)
        for name in passed:
            report(name)
        if done.returncode or len(passed) != len(TESTS):
            report(kind, "exit status %d\n%s" % (done.returncode, done.stdout))
    done = run([INSTALL, sys.executable, "--undo"], env)
    report("it is removed", "" if done.returncode == 0 and not link.exists() else done.stdout)


def check_refused(version, cache):
    """Neither the script nor the plugin accepts a version with another ABI."""
    env = wheels.environment(cache.path(version), PIER_DEVICE="soft0",
                             NIXL_PLUGIN_DIR=str(pathlib.Path(PLUGIN).parent))
    done = run([INSTALL, sys.executable, "--plugin", PLUGIN], env)
    report("it is not installed",
           "" if done.returncode and "another plugin ABI" in done.stdout else done.stdout)
    done = run([sys.executable, HERE / "agents.py", "PIER", "host", *TESTS[1:2]], env)
    report("it is not loaded", "" if "has another plugin ABI than versions 1.0 to" in done.stdout
           and done.returncode > 0 and "\nok" not in done.stdout else done.stdout)


def main():
    version = sys.argv[1]
    try:
        cache = wheels.Cache(os.environ["PIER_TEST_NIXL_WHEELS"])
        check = check_refused if version == wheels.REFUSED else check_wheel
        check(version, cache)
    except wheels.Unavailable as problem:
        print("skip: NIXL %s: %s" % (version, problem))
        sys.exit(77)
    sys.exit(failed)


if __name__ == "__main__":
    main()

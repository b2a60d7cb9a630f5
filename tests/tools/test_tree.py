#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp -r, several sources, --exclude and --dry-run."""

import os
import pathlib
import re
import shutil
import signal
import stat

from harness import Case, MIB, PIER, STUB_RSH, json, main

# Root reads and writes everything, unless it gives that up.
WEAKER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] \
    if os.geteuid() == 0 else []
OTHER_USER = 4242
FAULTY = os.path.dirname(os.environ["FAULTY_BACKEND"])


def listing(top):
    """{path: what it is}, without following links."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, top)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = ("directory",)
            else:
                with open(path, "rb") as file:
                    found[key] = ("file", file.read())
    return found


class Tree(Case):
    def plant(self, name="tree", small=40):
        """A tree with all kinds of files."""
        top = self.folder / name
        (top / "b/c").mkdir(parents=True)
        (top / "empty").mkdir()
        (top / "x").write_bytes(b"hi")
        (top / "b/zero").write_bytes(b"")
        (top / "b/big").write_bytes(self.bytes(3 * MIB + 5))
        for i in range(small):
            (top / "b/c" / ("small %d" % i)).write_bytes(self.bytes(i * 300))
        (top / "b/link").symlink_to("../x")
        (top / "dangling").symlink_to("/nowhere")
        (top / "b/to directory").symlink_to("c")
        with open(top / "b/sparse", "wb") as file:
            file.truncate(5 * MIB)
            for offset in 0, 2 * MIB, 3 * MIB - 3:
                os.pwrite(file.fileno(), b"data" * 300, offset)
        (top / "a\nb").write_bytes(b"newline")
        (top / "\udcff").write_bytes(b"no UTF-8")
        return top

    def start_slowly(self, *arguments):
        """Start a copy of a tree that takes seconds, and wait until bytes have arrived."""
        tree = self.plant()
        # The first of the large files.
        (tree / "b/aaa").write_bytes(self.bytes(5 * MIB))
        process = self.start("cp", "-r", "--bwlimit", "1M", "--chunk", "64K", "--depth", "1",
                             "--progress", *arguments, tree, "copy")
        for line in process.stderr:
            if " 0 bytes" not in line:
                return tree, process
        return self.fail("it ended too soon")

    def same(self, source, target):
        self.assertEqual(listing(source), listing(target))

    def left_out(self, count, pattern, *arguments, **options):
        """Check that the copy leaves out this number of files and copies the others."""
        result = self.run_pier("cp", *arguments, **options)
        self.assertEqual(result.status, 1, str(result))
        lines = result.stderr.splitlines()
        self.assertEqual(lines[-1], "pier: %d %s not copied; all others were" %
                         (count, "file was" if count == 1 else "files were"), lines)
        self.assertRegex(result.stdout, r"\A\d+ files? \(%d not copied\), \d+ bytes .* "
                         r"verified: [^\n]*\n\Z" % count)
        self.assertEqual(len(lines), count + 1, lines)
        for line in lines[:-1]:
            self.assertRegex(line, pattern)
        return result


class Copies(Tree):
    def test_a_tree_arrives_with_everything_in_it(self):
        tree = self.plant(small=300)
        for options in ([], ["--chunk", "4K"], ["--chunk", "64K", "--depth", "3", "--threads", "4"],
                        ["--no-verify"], ["--src-mem", "host", "--dst-mem", "host"]):
            with self.subTest(options):
                self.copy("-r", *options, tree, "copy")
                self.same(tree, self.folder / "copy")
                shutil.rmtree(self.folder / "copy")

    def test_holes_stay_holes(self):
        tree = self.plant()
        self.copy("-r", tree, "copy")
        self.assertEqual(os.stat(self.folder / "copy/b/sparse").st_blocks,
                         os.stat(tree / "b/sparse").st_blocks)

    def test_the_name_follows_the_rules_of_cp(self):
        tree = self.plant()
        (self.folder / "there").mkdir()
        for source, target, result in (
                (tree, "there", "there/tree"), (str(tree) + "/", "there/", "there/tree"),
                (tree, "new", "new"), (tree, "new2/", "new2"), (str(tree) + "/.", "new3", "new3"),
                (str(tree) + "/.", "there", "there")):
            with self.subTest((source, target)):
                self.copy("-r", source, target)
                if result == "there":
                    shutil.rmtree(self.folder / "there/tree", ignore_errors=True)
                self.same(tree, self.folder / result)
        self.copy("-r", ".", "../new4", cwd=tree)
        self.same(tree, self.folder / "new4")

    def test_a_file_with_r_is_a_file(self):
        source = self.file("source", 100)
        self.copy("-r", source, "target")
        self.check_same(source, self.folder / "target")
        self.copy("-r", source, "target")

    def test_the_contents_of_a_directory_may_be_one_file(self):
        source = self.folder / "source"
        source.mkdir()
        (source / "file").write_bytes(b"alone")
        target = self.folder / "target"
        for operand, cwd in ("source/.", None), (".", source), ("./", source):
            with self.subTest(operand):
                self.copy("-r", operand, target, cwd=cwd)
                self.same(source, target)
                shutil.rmtree(target)
                # It goes into a directory, even if a file has the name.
                target.write_bytes(b"old")
                self.refused(1, "cannot write into", "cp", "-r", operand, target, cwd=cwd)
                target.unlink()

    def test_several_sources_go_into_a_directory(self):
        one, two = self.file("one", 100), self.file("two", 2 * MIB)
        tree = self.plant()
        (self.folder / "there").mkdir()
        (self.folder / "link").symlink_to("one")
        self.copy(one, two, "link", "there")
        self.check_same(two, self.folder / "there/two")
        self.check_same(one, self.folder / "there/link")
        self.copy("-r", one, tree, "there")
        self.same(tree, self.folder / "there/tree")

    def test_a_tree_is_merged_into_one_that_exists(self):
        tree = self.plant()
        self.copy("-r", tree, "copy")
        (tree / "b/new/deep").mkdir(parents=True)
        (tree / "b/new/deep/file").write_bytes(b"new")
        (tree / "x").write_bytes(b"changed")
        there = self.folder / "there"
        there.mkdir()
        (self.folder / "copy").rename(there / "tree")
        (there / "tree/b/other").write_bytes(b"stays")
        os.chmod(there / "tree/x", 0o640)
        os.chmod(there / "tree/b", 0o750)
        self.copy("-r", tree, there)
        expected = listing(tree)
        expected["b/other"] = ("file", b"stays")
        self.assertEqual(listing(there / "tree"), expected)
        self.assertEqual(stat.S_IMODE(os.stat(there / "tree/x").st_mode), 0o640)
        self.assertEqual(stat.S_IMODE(os.stat(there / "tree/b").st_mode), 0o750)

    def test_p_preserves_modes_and_times(self):
        tree = self.plant()
        os.chmod(tree / "x", 0o604)
        os.chmod(tree / "b/c", 0o555)
        self.addCleanup(os.chmod, tree / "b/c", 0o755)
        for name in ("x", "b/zero", "b/c", "empty", "b/sparse", "b/link"):
            os.utime(tree / name, ns=(10**18, 10**18 + 7), follow_symlinks=False)
        os.utime(tree, ns=(10**18, 10**18 + 9))
        self.copy("-rp", tree, "copy")
        self.addCleanup(os.chmod, self.folder / "copy/b/c", 0o755)
        for name in (".", "x", "b/zero", "b/c", "empty", "b/sparse", "b/link"):
            ours, theirs = os.lstat(tree / name), os.lstat(self.folder / "copy" / name)
            self.assertEqual((ours.st_mode, ours.st_mtime_ns), (theirs.st_mode, theirs.st_mtime_ns),
                             name)

    def test_p_preserves_the_sticky_bit(self):
        spool = self.folder / "tree/spool"
        spool.mkdir(parents=True)
        (spool / "file").write_bytes(b"1")
        spool.chmod(0o1777)
        self.copy("-rp", "tree", "copy")
        self.copy("-rp", "tree/.", "copy")
        self.assertEqual(stat.S_IMODE((self.folder / "copy/spool").stat().st_mode), 0o1777)
        self.copy("-p", spool / "file", "copy")
        (spool / "file").chmod(0o6755)
        self.copy("-p", spool / "file", "copy")
        self.assertEqual(stat.S_IMODE((self.folder / "copy/file").stat().st_mode), 0o755)

    def test_directories_in_a_set_gid_directory_are_set_gid(self):
        team = self.folder / "team"
        team.mkdir()
        team.chmod(0o2775)
        (self.folder / "tree/a/b").mkdir(parents=True)
        (self.folder / "tree/a/b/file").write_bytes(b"1")
        self.copy("-r", "tree", team)
        (self.folder / "tree/c").mkdir()
        self.copy("-r", "--continue", "tree", team)
        for name, mode in ("a", 0o2755), ("a/b", 0o2755), ("c", 0o2755), ("a/b/file", 0o644):
            self.assertEqual(stat.S_IMODE((team / "tree" / name).stat().st_mode), mode, name)
        self.assertEqual(os.listdir(team), ["tree"])

    def test_between_hosts(self):
        tree = self.plant()
        home = self.folder / "home"
        home.mkdir()
        env = {"PIER_RSH": STUB_RSH, "STUB_HOME": str(home)}
        self.copy("-r", "--remote-pier", PIER, tree, "somewhere:", env=env)
        self.same(tree, home / "tree")
        self.copy("-r", "--remote-pier", PIER, "somewhere:tree", "back", env=env)
        self.same(tree, self.folder / "back")
        (self.folder / "there").mkdir()
        self.copy("-r", "--remote-pier", PIER, "somewhere:tree/b/big", "somewhere:tree/b/c",
                  "there", env=env)
        self.same(tree / "b/c", self.folder / "there/c")

    def test_verbose_names_what_is_copied(self):
        tree = self.plant()
        home = self.folder / "home"
        home.mkdir()
        env = {"PIER_RSH": STUB_RSH, "STUB_HOME": str(home), "PIER_REMOTE_PIER": PIER}
        listed = self.run_pier("cp", "-rn", tree, "copy").stdout
        for more in (tree, "copy"), (tree, "somewhere:"), ("somewhere:tree", "back"):
            with self.subTest(more):
                result = self.run_pier("cp", "-rv", *more, env=env)
                self.assertEqual(result.status, 0, str(result))
                self.assertEqual(result.stdout.splitlines()[:-1], listed.splitlines())

    def test_a_reader_of_the_names_that_stops_does_not_hold_up_the_copy(self):
        tree = self.folder / "many"
        tree.mkdir()
        names = ["%s%04d" % ("x" * 60, i) for i in range(2000)]
        for name in names:
            (tree / name).write_bytes(b"1")
        process = self.start("cp", "-rv", "many", "copy")
        self.wait_for((self.folder / "copy").exists, "the copy waits for its reader")
        result = self.finish(process)
        self.assertEqual(result.status, 0)
        self.assertEqual(result.stdout.split("\n")[:-2], ["many/", *("many/" + name for name in names)])

    def test_a_tree_of_nothing(self):
        (self.folder / "nothing").mkdir()
        self.copy("-r", "nothing", "copy")
        self.assertEqual(listing(self.folder / "copy"), {})

    def test_few_descriptors_are_enough(self):
        tree = self.plant()
        deep = tree
        for _ in range(100):
            deep = deep / "d"
            deep.mkdir()
        (deep / "file").write_bytes(b"deep")
        self.copy("-r", tree, "copy", before=("sh", "-c", 'ulimit -n 40; exec "$@"', "sh"))
        self.same(tree, self.folder / "copy")

    def test_memory_that_is_copied_to(self):
        tree = self.plant()
        self.copy("-r", "--src-mem", "faulty", "--dst-mem", "faulty", tree, "copy",
                  env={"PIER_BACKEND_PATH": FAULTY})
        self.same(tree, self.folder / "copy")

    def test_json_counts_the_files(self):
        tree = self.plant()
        result = json.loads(self.copy("-r", "--json", tree, "copy").stdout)
        self.assertEqual(result["files"], len(listing(tree)) + 1)
        self.assertEqual(result["left_out"], 0)
        self.assertEqual(result["bytes"], sum(len(f[1]) for f in listing(tree).values()
                                              if f[0] == "file"))


class Choices(Tree):
    def test_exclude_leaves_out_what_matches(self):
        tree = self.folder / "t"
        for name in ("a.tmp", "b/a.tmp", "b/keep", "build/x", "c/build", "b/deep/build/y"):
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1")
        for patterns, left in (
                (["*.tmp"], {"b/keep", "build/x", "c/build", "b/deep/build/y"}),
                (["build/"], {"a.tmp", "b/a.tmp", "b/keep", "c/build"}),
                (["build"], {"a.tmp", "b/a.tmp", "b/keep"}),
                (["/t/build"], {"a.tmp", "b/a.tmp", "b/keep", "c/build", "b/deep/build/y"}),
                (["b/a.tmp", "c"], {"a.tmp", "b/keep", "build/x", "b/deep/build/y"}),
                (["b/*"], {"a.tmp", "build/x", "c/build"}),
                (["/t/**/build"], {"a.tmp", "b/a.tmp", "b/keep", "build/x"}),
                (["[ab].tmp", "kee?"], {"build/x", "c/build", "b/deep/build/y"})):
            with self.subTest(patterns):
                options = [word for p in patterns for word in ("--exclude", p)]
                self.copy("-r", *options, tree, "copy")
                found = {k for k, v in listing(self.folder / "copy").items() if v[0] == "file"}
                self.assertEqual(found, left)
                shutil.rmtree(self.folder / "copy")

    def test_exclude_is_also_for_what_was_named(self):
        for name in "main.c", "main.o":
            self.file(name, b"1")
        (self.folder / "build").mkdir()
        (self.folder / "there").mkdir()
        self.copy("-r", "--exclude", "*.o", "--exclude", "build/", "main.c", "main.o", "build", "there")
        self.assertEqual(os.listdir(self.folder / "there"), ["main.c"])
        for pattern in "/build/", "/**", "***/**", "?????/***":
            self.refused(1, "there is nothing to copy", "cp", "-r", "--exclude", pattern, "build", "new")

    def test_a_dry_run_lists_and_copies_nothing(self):
        tree = self.plant()
        home = self.folder / "home"
        home.mkdir()
        shutil.copytree(tree, home / "tree", symlinks=True)
        env = {"PIER_RSH": STUB_RSH, "STUB_HOME": str(home)}
        for source in (tree, "somewhere:tree"):
            output = self.copy("-rn", "--exclude", "c/", "--remote-pier", PIER, source, "copy",
                               env=env).stdout
            lines = output.splitlines()
            self.assertIn("tree/b/", lines)
            self.assertIn("tree/x", lines)
            self.assertIn("tree/a\\x0ab", lines)
            self.assertFalse([line for line in lines if line.startswith("tree/b/c/")])
        self.assertEqual(self.copy("-n", tree / "x", "copy").stdout, "x\n")
        self.assertFalse((self.folder / "copy").exists())

    def test_a_dry_run_names_files_that_are_left_out(self):
        (self.folder / "tree").mkdir()
        for name in "one", "two":
            os.mkfifo(self.folder / "tree" / name)
        env = {"PIER_RSH": STUB_RSH, "STUB_HOME": str(self.folder)}
        for source, target in (("tree", "copy"), ("somewhere:tree", "copy"),
                               ("tree", "somewhere:copy")):
            with self.subTest((source, target)):
                result = self.run_pier("cp", "-rn", "--remote-pier", PIER, source, target, env=env)
                self.assertEqual((result.status, result.stdout), (1, "tree/\n"))
                self.assertEqual(
                    result.stderr, "pier cp: tree/one: %s\npier cp: tree/two: %s\n"
                    "pier: 2 files would not be copied; all others would\n" %
                    (2 * ("neither a file, a directory nor a symbolic link",)))

    def test_a_dry_run_looks_at_the_destination(self):
        tree = self.plant()
        source = self.file("source", 10)
        self.file("other", 10)
        before = listing(self.folder)
        env = {"PIER_RSH": STUB_RSH, "STUB_HOME": str(self.folder)}
        for arguments, pattern in (((source, "missing/target"), "No such file"),
                                   ((source, "missing/"), "no such directory"),
                                   ((source, source), "the same file"),
                                   ((source, "other", "source"), "Not a directory"),
                                   (("-r", tree, tree), "inside the directory"),
                                   (("-r", "%s/." % tree, "missing/target"), "No such file"),
                                   ((source, "/dev/stdout"), "leads to an open file"),
                                   (("--remote-pier", PIER, source, "somewhere:missing/target"),
                                    "somewhere: .*No such file"),
                                   (("--remote-pier", PIER, "somewhere:source", "missing/target"),
                                    "No such file")):
            with self.subTest(arguments):
                self.refused(1, pattern, "cp", "-n", *arguments, env=env)
        self.copy("-rn", "%s/." % tree, "new")
        self.assertEqual(listing(self.folder), before)

    def test_a_dry_run_in_json_and_quietly(self):
        tree = self.plant()
        self.assertEqual(self.copy("-rnq", tree, "copy").stdout, "")
        lines = [json.loads(line) for line in self.copy("-rn", "--json", tree, "copy").stdout.splitlines()]
        self.assertEqual({line["event"] for line in lines[:-1]}, {"file"})
        self.assertIn("tree/b/", [line["file"] for line in lines[:-1]])
        self.assertEqual((lines[-1]["event"], lines[-1]["ok"], lines[-1]["files"], lines[-1]["verified"]),
                         ("end", True, len(lines) - 1, False))

    def test_mistakes_are_refused(self):
        tree = self.plant()
        (self.folder / "file").write_bytes(b"")
        self.refused(1, "-r copies it", "cp", tree, "copy")
        self.refused(2, "--exclude is for -r", "cp", "--exclude", "x", "file", "copy")
        self.refused(2, "'copy' is local: ", "cp", "a", "h:b", "copy")
        self.refused(1, "several sources need one", "cp", "-r", tree, "file", "copy")
        self.refused(1, "Not a directory", "cp", "-r", tree, "file")
        self.refused(1, "No such file", "cp", "-r", "missing", "copy")
        self.refused(1, "No such file", "cp", "-r", "--rsh", "false", tree, "missing", "h:")
        self.refused(1, "named tree", "cp", "-r", tree, tree / ".." / "tree", ".")
        self.refused(1, "has no name", "cp", "-r", str(tree) + "/.", "file", ".")
        for target in ("tree/b", "tree", "tree/b/c/new", "."):
            with self.subTest(target):
                self.refused(1, "inside the directory", "cp", "-r",
                             ".." if target == "." else tree, target,
                             cwd=tree if target == "." else None)


class Same(Tree):
    """--skip-same: files that the destination has with the same size and time."""

    def states(self, top):
        """{path: inode and time} of all files."""
        return {path.relative_to(top): (path.stat().st_ino, path.stat().st_mtime_ns)
                for path in top.rglob("*") if path.is_file() and not path.is_symlink()}

    def skip(self, *arguments, **options):
        """Copy, and return the numbers of files that were the same, and of bytes."""
        result = json.loads(self.copy("-r", "--skip-same", "--json", *arguments, **options).stdout)
        return result["same"], result["bytes"]

    def test_only_what_changed_is_copied(self):
        tree, copy = self.plant(), self.folder / "copy"
        size = sum(path.stat().st_size for path in tree.rglob("*")
                   if path.is_file() and not path.is_symlink())
        self.assertEqual(self.skip(tree, "copy"), (0, size))
        old = self.states(copy)
        self.assertEqual({k: v[1] for k, v in old.items()},
                         {k: v[1] for k, v in self.states(tree).items()})
        self.assertEqual(self.skip(str(tree) + "/.", "copy"), (len(old), 0))
        self.assertEqual(self.states(copy), old)
        self.same(tree, copy)
        for options in [], ["-p"], ["--continue", "--chunk", "64K"]:
            changed = self.random.sample(sorted(old), len(old) // 3)
            # Their directories become others in the list without those that are the same.
            added = [pathlib.Path("b/new %d/deep/file" % len(old)), pathlib.Path("new %d/file" % len(old))]
            for path in changed + added:
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_bytes(self.bytes(self.random.choice([3, 300, 70000])))
                os.utime(tree / path, ns=(0, old.get(path, (0, 0))[1] + 10**9))
            with self.subTest(options):
                bytes_left = sum((tree / path).stat().st_size for path in changed + added)
                self.assertEqual(self.skip(*options, str(tree) + "/.", "copy"),
                                 (len(old) - len(changed), bytes_left))
                self.same(tree, copy)
                new = self.states(copy)
                self.assertEqual({path for path in new if new[path] != old.get(path)}, {*changed, *added})
                old = new

    def test_size_time_and_mode_must_be_those_of_the_source(self):
        source, place, other = self.file("source", 100), self.folder / "place", self.folder / "other"
        self.skip(source, "place")
        second = 10**9
        for change, options, same in (
                (lambda: None, [], 1), (lambda: None, ["-p"], 1),
                (lambda: os.utime(source, ns=(0, 5 * second)), [], 0),
                (lambda: os.utime(source, ns=(0, 5 * second + 1)), [], 0),
                # Older ones, too.
                (lambda: os.utime(source, ns=(0, 4 * second + 1)), [], 0),
                (lambda: (os.truncate(source, 99), os.utime(source, ns=(0, 4 * second + 1))), [], 0),
                (lambda: source.chmod(0o600), [], 1), (lambda: source.chmod(0o640), ["-p"], 0),
                # A symbolic link is followed: the file behind it would be replaced.
                (lambda: (place.rename(other), place.symlink_to(other)), [], 1),
                (lambda: source.write_bytes(b"new"), [], 0)):
            change()
            with self.subTest(options):
                self.assertEqual(self.skip(*options, source, "place")[0], same)
                self.assertEqual(place.read_bytes(), source.read_bytes())
        self.assertTrue(place.is_symlink())

    def test_a_file_alone(self):
        source = self.file("source", 100)
        self.copy("--skip-same", source, "copy")
        summary = r"\A1 file \(1 same\), 0 bytes in [^\n]*\n\Z"
        for options in [], ["-v"], ["-r"], ["-p"], ["--continue"]:
            before = (self.folder / "copy").stat()
            result = self.run_pier("cp", "--skip-same", *options, source, "copy")
            self.assertEqual(result.status, 0, str(result))
            self.assertRegex(result.stdout, summary)
            self.assertEqual((self.folder / "copy").stat().st_ino, before.st_ino)
        self.assertEqual(self.copy("--skip-same", "-n", source, "copy").stdout, "")
        source.write_bytes(b"new")
        self.assertEqual(self.copy("--skip-same", "-n", source, "copy").stdout, "source\n")
        self.copy("--skip-same", source, "copy")
        self.assertEqual((self.folder / "copy").read_bytes(), b"new")

    def test_the_names_and_the_summary_are_of_what_is_copied(self):
        tree = self.plant(small=3)
        self.copy("-r", "--skip-same", tree, "copy")
        (tree / "x").write_bytes(b"another")
        os.mkfifo(tree / "pipe")
        self.assertIn("tree/x\n", self.run_pier("cp", "-rn", "--skip-same", str(tree), "copy").stdout)
        (tree / "pipe").unlink()
        listed = self.copy("-rn", "--skip-same", str(tree) + "/.", "copy").stdout
        self.assertIn("x\n", listed)
        self.assertNotIn("small", listed)
        os.mkfifo(tree / "pipe")
        result = self.run_pier("cp", "-rv", "--skip-same", str(tree) + "/.", "copy")
        self.assertEqual(result.status, 1, str(result))
        self.assertEqual(result.stdout.splitlines()[:-1], listed.splitlines())
        self.assertRegex(result.stdout.splitlines()[-1],
                         r"\A\d+ files \(8 same, 1 not copied\), 7 bytes in ")

    def test_between_hosts(self):
        tree, home = self.plant(), self.folder / "home"
        home.mkdir()
        env = {"PIER_RSH": STUB_RSH, "STUB_HOME": str(home), "PIER_REMOTE_PIER": PIER}
        count = len(self.states(tree))
        (tree / "dangling").unlink()
        for arguments, top in (([tree, "somewhere:"], home / "tree"),
                               (["somewhere:tree/.", "back"], self.folder / "back"),
                               (["somewhere:tree/[!.]*", "back"], self.folder / "back"),
                               ([*tree.iterdir(), "somewhere:tree"], home / "tree")):
            with self.subTest(arguments):
                if not top.exists():
                    self.assertEqual(self.skip(*arguments, env=env)[0], 0)
                before = self.states(top)
                self.assertEqual(self.skip(*arguments, env=env), (count, 0))
                self.assertEqual(self.states(top), before)
                self.same(tree, top)

    def test_links_in_the_destination_are_not_followed(self):
        tree, outside = self.plant(), self.folder / "outside"
        self.copy("-r", "--skip-same", tree, "copy")
        shutil.move(self.folder / "copy/b/c", outside)
        (self.folder / "copy/b/c").symlink_to(outside)
        shutil.copy2(tree / "x", outside / "x")
        (self.folder / "copy/x").unlink()
        (self.folder / "copy/x").symlink_to(outside / "x")
        before = self.states(outside)
        result = self.run_pier("cp", "-r", "--skip-same", str(tree) + "/.", "copy")
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("b/c: there is something that is no directory", result.stderr)
        self.assertFalse((self.folder / "copy/x").is_symlink())
        self.assertEqual(self.states(outside), before)

    def test_a_copy_with_hard_links_is_no_obstacle(self):
        """As those that `cp -al` makes before each backup."""
        tree = self.plant()
        (tree / "twin").hardlink_to(tree / "x")
        self.copy("-r", "--skip-same", tree, "old")
        (self.folder / "old/twin").unlink()
        (self.folder / "old/twin").hardlink_to(self.folder / "old/x")
        shutil.copytree(self.folder / "old", self.folder / "new", copy_function=os.link, symlinks=True)
        old = listing(self.folder / "old")
        count = len(self.states(tree))
        self.assertEqual(self.skip(str(tree) + "/.", "new"), (count, 0))
        (tree / "twin").unlink()
        (tree / "twin").write_bytes(b"no twin")
        self.assertEqual(self.skip(str(tree) + "/.", "new"), (count - 1, 7))
        self.same(tree, self.folder / "new")
        self.assertEqual(listing(self.folder / "old"), old)

    def test_an_interrupted_copy_goes_on_with_what_changed(self):
        tree = self.plant()
        self.copy("-r", "--skip-same", tree, "copy")
        before = self.states(self.folder / "copy")
        (tree / "b/big").write_bytes(self.bytes(5 * MIB))
        process = self.start("cp", "-r", "--skip-same", "--continue", "--bwlimit", "1M", "--chunk",
                             "64K", "--depth", "1", "--progress", str(tree) + "/.", "copy")
        for line in process.stderr:
            if " 0 bytes" not in line:
                break
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process).status, 130)
        states = self.states(self.folder / "copy")
        self.assertEqual({str(path) for path in states if states[path] != before.get(path)},
                         {".tree.pier-partial/b/big"})
        self.assertEqual(self.skip("--continue", str(tree) + "/.", "copy"),
                         (len(before) - 1, 5 * MIB))
        self.same(tree, self.folder / "copy")

    def test_a_file_of_another_user_in_a_shared_directory_is_replaced(self):
        """Anybody can put a file of this size and time there."""
        if os.geteuid() != 0:
            self.skipTest("only root can give files away")
        tree = self.folder / "tree"
        tree.mkdir()
        (tree / "file").write_bytes(b"mine")
        for shared in False, True:
            for arguments, place in ([tree / "file", "place"], "place/file"), ([tree, "copy"], "copy/file"):
                with self.subTest((shared, arguments)):
                    place = self.folder / place
                    place.parent.mkdir()
                    place.parent.chmod(0o777 if shared else 0o755)
                    place.write_bytes(b"evil")
                    os.utime(place, ns=(0, (tree / "file").stat().st_mtime_ns))
                    os.chown(place, OTHER_USER, OTHER_USER)
                    if arguments[0] == tree:
                        arguments = [str(tree) + "/.", "copy"]
                    self.copy("--skip-same", "-r", *arguments)
                    self.assertEqual(place.read_bytes(), b"mine" if shared else b"evil")
                    shutil.rmtree(place.parent)

    def test_a_file_is_not_copied_onto_itself(self):
        (self.folder / "a").write_bytes(b"a")
        (self.folder / "b").write_bytes(b"b")
        self.left_out(2, "the same file", "--skip-same", "a", "b", ".")
        self.refused(1, "the same file", "cp", "--skip-same", "a", ".")

    def test_a_write_only_server_refuses(self):
        """The answers would let a client test guesses about what others sent."""
        self.file("source", 100)
        (self.folder / "place").mkdir()
        shell = self.folder / "shell"
        for options, status in (("--write-only", 1), ("", 0)):
            shell.write_text("#!/bin/sh\nexec '%s' cp --server --under '%s' %s\n" %
                             (PIER, self.folder / "place", options))
            shell.chmod(0o755)
            result = self.run_pier("cp", "--skip-same", "--rsh", "'%s'" % shell, "--device", "soft0",
                                   "--remote-device", "soft0", "source", "somewhere:target")
            self.assertEqual(result.status, status, str(result))
            self.assertEqual("rules out --skip-same" in result.stderr, status == 1)


class Failures(Tree):
    def test_special_files_are_left_out(self):
        tree = self.plant()
        os.mkfifo(tree / "b/pipe")
        self.left_out(1, "tree/b/pipe: neither", "-r", tree, "copy")
        (tree / "b/pipe").unlink()
        self.same(tree, self.folder / "copy")

    def test_a_special_file_alone_is_nothing(self):
        os.mkfifo(self.folder / "pipe")
        result = self.run_pier("cp", "-r", "pipe", "copy")
        self.assertEqual((result.status, result.stderr.splitlines()),
                         (1, ["pier cp: pipe: not a regular file",
                              "pier: there is nothing to copy"]))

    def test_a_special_file_alone_on_another_host_is_nothing(self):
        """The server tells why."""
        os.mkfifo(self.folder / "pipe")
        result = self.run_pier("cp", "-r", "--rsh", STUB_RSH, "--remote-pier", PIER, "--device", "soft0",
                               "--remote-device", "soft0", "somewhere:%s" % (self.folder / "pipe"), "copy")
        self.check_failure(result, 1, "somewhere: there is nothing to copy: .*pipe: not a regular file")

    def test_unreadable_files_are_left_out(self):
        tree = self.plant()
        os.chmod(tree / "b/big", 0)
        os.chmod(tree / "b/c", 0)
        self.left_out(2, "Permission denied", "-r", tree, "copy", before=WEAKER)
        copy = listing(self.folder / "copy")
        self.assertNotIn("b/big", copy)
        self.assertEqual(copy["x"], ("file", b"hi"))
        self.assertEqual(copy["b/c"], ("directory",))
        os.chmod(tree / "b/c", 0o755)

    def test_what_stands_in_the_way_is_left_alone(self):
        tree = self.plant()
        there = self.folder / "there/tree"
        (there / "x").mkdir(parents=True)
        (there / "x/inside").write_bytes(b"stays")
        (self.folder / "outside").mkdir()
        (there / "empty").symlink_to(self.folder / "outside")
        (there / "dangling").write_bytes(b"is replaced")
        self.left_out(2, "tree/(x|empty): ", "-r", tree, "there")
        self.assertEqual((there / "x/inside").read_bytes(), b"stays")
        self.assertEqual(os.readlink(there / "empty"), str(self.folder / "outside"))
        self.assertEqual(os.readlink(there / "dangling"), "/nowhere")

    def test_the_sentence_about_a_long_path_has_its_reason(self):
        path = "/".join(["x" * 250] * 5)
        (self.folder / "tree" / path).mkdir(parents=True)
        in_the_way = self.folder / "there/tree" / path
        in_the_way.parent.mkdir(parents=True)
        in_the_way.write_bytes(b"stays")
        self.left_out(1, "tree/[x/]+: there is something that is no directory", "-r", "tree", "there")

    def test_links_in_the_destination_are_not_followed(self):
        tree = self.plant()
        outside = self.folder / "outside"
        outside.mkdir()
        (self.folder / "there/tree").mkdir(parents=True)
        (self.folder / "there/tree/b").symlink_to(outside)
        result = self.run_pier("cp", "-r", tree, "there")
        self.assertEqual(result.status, 1)
        self.assertEqual(list(outside.iterdir()), [])

    def test_a_file_is_not_copied_onto_itself(self):
        one, two = self.file("one", 10), self.file("two", 20)
        self.left_out(2, "the same file", one, two, ".")
        self.assertEqual(one.stat().st_size, 10)

    def test_a_directory_is_not_copied_onto_itself(self):
        tree = self.plant()
        before = (tree / "b/big").stat().st_ino
        result = self.run_pier("cp", "-r", tree, self.file("one", 10), ".")
        self.assertEqual(result.status, 1)
        self.assertIn("pier cp: tree: source and destination are the same directory\n", result.stderr)
        result = self.run_pier("cp", "-r", tree, ".")
        self.assertEqual(result.status, 1)
        self.assertRegex(result.stderr, "the same directory|inside the directory")
        self.assertEqual((tree / "b/big").stat().st_ino, before)

    def test_files_that_change_are_left_out(self):
        tree, process = self.start_slowly()
        with open(tree / "b/sparse", "r+b") as file:
            file.write(b"changed")
        (tree / "x").unlink()
        result = self.finish(process)
        self.assertEqual(result.status, 1)
        self.assertIn("tree/b/sparse: it changed while it was copied", result.stderr)
        copy = listing(self.folder / "copy")
        self.assertNotIn("b/sparse", copy)
        self.assertIn("b/big", copy)

    def sync_calls(self, *arguments, fault="fuse"):
        """The calls of a copy that sync or rename: [(call, path)], in their order."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        self.copy("-r", *arguments,
                  env=self.preload("DISK_FAULT", DISK_FAULT=fault, SYNC_LOG=str(log)))
        return [tuple(line.split(" ", 1)) for line in log.read_text().splitlines()]

    def test_each_file_is_synced_where_syncfs_does_not_reach(self):
        source = self.folder / "tree"
        (source / "b/c").mkdir(parents=True)
        (source / "b/link").symlink_to("x")
        for path, size in ("x", 3 * MIB), ("b/small", 5), ("b/c/zero", 0):
            (source / path).write_bytes(self.bytes(size))
        wanted = {"tree", *(os.path.join("tree", p) for p, (kind, *_) in listing(source).items()
                            if kind != "link")}
        for arguments in (source, "new"), ("--continue", source, "newer"), (source, "there"):
            if "there" in arguments:
                (self.folder / "there").mkdir()
            with self.subTest(arguments):
                calls = self.sync_calls(*arguments)
                first = [call for call, _ in calls].index("rename")
                staged = {re.split(r"/\.\w+\.pier-[\w-]+/", path)[-1]
                          for call, path in calls[:first] if call == "fsync"}
                self.assertEqual(staged, wanted)
                base = self.folder / "there" if "there" in arguments else self.folder
                self.assertIn(("fsync", str(base)), calls[first:])
                self.assertNotIn("syncfs", dict(calls))
        # A merged tree: the directories that the files went to.
        calls = self.sync_calls(source, "there")
        for path in "there", "there/tree", "there/tree/b", "there/tree/b/c":
            self.assertIn(("fsync", str(self.folder / path)), calls)
        # The directory that was made for the names, and the one that it is in.
        calls = self.sync_calls("%s/." % source, "made")
        for path in self.folder / "made", self.folder:
            self.assertIn(("fsync", str(path)), calls)
        calls = self.sync_calls(source, "disk", fault="")
        if "syncfs" in dict(calls):  # That is one of those which it reaches.
            self.assertNotIn("fsync", dict(calls))

    def test_a_directory_that_can_be_written_but_not_read(self):
        source, there = self.file("source", 10), self.folder / "there"
        (self.folder / "tree").mkdir()
        there.mkdir(mode=0o311)
        self.addCleanup(there.chmod, 0o755)
        # For pier alone: with a sanitizer, the module cannot be loaded by other programs.
        preload = self.preload("DISK_FAULT", DISK_FAULT="fuse").items()
        before = [*WEAKER, "env", *("%s=%s" % variable for variable in preload)]
        for options in ((), ("-p",), ("--continue",)):
            for name in "source", "tree":
                self.copy("-r", *options, name, there, before=before)
        there.chmod(0o755)
        self.assertEqual(sorted(os.listdir(there)), ["source", "tree"])
        self.check_same(source, there / "source")

    def test_sources_are_compared_with_each_directory_once(self):
        """A client of a restricted server chooses how many there are, and how deep."""
        names = ["source%d" % number for number in range(100)]
        for name in names:
            (self.folder / name).mkdir()
        deep = self.folder.joinpath(*["deep"] * 60)
        deep.mkdir(parents=True)
        # Of the processes that have ended, too: proc_pid_io(5).
        before = ("sh", "-c", '"$@" && cat /proc/$$/io', "sh")
        output = self.copy("-rq", *names, deep, before=before).stdout
        counters = dict(line.split(": ") for line in output.splitlines())
        # Each comparison reads the boot id.
        self.assertLess(int(counters["syscr"]), 3000)
        inside = self.folder / "source7/a/b"
        inside.mkdir(parents=True)
        self.refused(1, "is inside the directory that is copied", "cp", "-r", *names, inside)

    def test_nothing_is_left_behind(self):
        for end in (lambda p: p.send_signal(signal.SIGINT), lambda p: p.terminate(),
                    lambda p: os.kill(self.server_of(p), signal.SIGKILL)):
            tree, process = self.start_slowly()
            end(process)
            self.assertNotEqual(self.finish(process).status, 0)
            self.wait_for(lambda: not self.processes(), "processes are left")
            if end.__code__.co_names[-1] == "SIGKILL":
                # Only the kernel could have removed it: the next copy does.
                self.copy("-r", tree, "tree.copy")
                shutil.rmtree(self.folder / "tree.copy")
            self.assertEqual({p.name for p in self.folder.iterdir()}, {"tree"})
            shutil.rmtree(tree)

    def test_a_directory_that_was_made_for_the_names_is_removed(self):
        tree = self.plant()
        for pattern, status, arguments in (
                ("is inside the directory", 1, ("%s/." % tree, tree / "new")),
                ("no such device|none", 3, ("--device", "none", "%s/." % tree, "new")),
                ("no such device|none", 3, ("--continue", "--device", "none", "%s/." % tree, "new"))):
            with self.subTest(arguments):
                self.refused(status, pattern, "cp", "-r", *arguments)
                self.assertFalse((tree / "new").exists() or (self.folder / "new").exists())

    def test_a_directory_that_is_read_only_never_was_writable_at_its_place(self):
        if os.geteuid() != 0:
            self.skipTest("only root may move such a directory")
        (self.folder / "tree/locked").mkdir(parents=True)
        (self.folder / "tree/locked").chmod(0o555)
        (self.folder / "there/tree").mkdir(parents=True)
        placed = self.folder / "there/tree/locked"
        self.assertNotIn(("chmod", str(placed)), self.sync_calls("tree", "there", fault=""))
        self.assertEqual(stat.S_IMODE(placed.stat().st_mode), 0o555)

    def test_what_a_killed_copy_left_is_removed_whatever_its_modes(self):
        tree = self.plant()
        left = self.folder / ".tree.pier-tmp-0123456789abcdef"
        deep = left / "a/b/c/d"
        # In a set-gid directory it is set-gid, too.
        for mode in 0o1700, 0o3700:
            deep.mkdir(parents=True)
            (deep / "file").write_bytes(b"x")
            for path in (deep, deep.parent, deep.parent.parent):
                path.chmod(0o555)
            left.chmod(mode)
            self.copy("-r", tree, "copy%o" % mode, before=WEAKER)
            self.assertFalse(left.exists())

    def test_a_directory_that_was_moved_to_the_name_stays(self):
        """Another user may rename it, if the one above is not sticky."""
        tree = self.plant()
        moved = self.folder / ".tree.pier-tmp-0123456789abcdef"
        moved.mkdir(mode=0o700)
        (moved / "mine").write_bytes(b"mine")
        self.copy("-r", tree, "copy")
        self.assertEqual((moved / "mine").read_bytes(), b"mine")
        shutil.rmtree(moved)

    def test_a_broken_tag_ends_the_copy(self):
        tree = self.plant()
        self.refused(5, "verification failed", "cp", "-r", "--dst-mem", "faulty:flip3", tree,
                     "copy", env={"PIER_BACKEND_PATH": FAULTY})
        self.assertFalse((self.folder / "copy").exists())

    def test_a_full_disk_is_noticed(self):
        if os.geteuid() != 0:
            self.skipTest("only root can mount")
        tree, place = self.plant(), self.folder / "disk"
        place.mkdir()
        mount = ["unshare", "--mount", "sh", "-c",
                 'mount -t tmpfs -o size=2M none "$1"; shift; "$@"; status=$?; '
                 'ls -A disk; exit $status', "sh", str(place)]
        result = self.run_pier("cp", "-r", tree, "disk/copy", before=mount)
        self.assertEqual((result.status, result.stdout), (1, ""))
        self.assertRegex(result.stderr, "space")

    def test_what_belongs_to_another_file_system_is_left_out(self):
        if os.geteuid() != 0:
            self.skipTest("only root can mount")
        (self.folder / "tree/b/c").mkdir(parents=True)
        self.file("tree/b/file", 10)
        self.file("tree/other", 10)
        place = self.folder / "there/tree/b"
        place.mkdir(parents=True)
        mount = ["unshare", "--mount", "sh", "-c",
                 'mount -t tmpfs none "$1" && mkdir "$1/c"; shift; exec "$@"', "sh", str(place)]
        self.left_out(2, "b/(c|file): its place is in another file system", "-r", "tree", "there",
                      before=mount)
        self.assertEqual(list(listing(self.folder / "there/tree")), ["b", "other"])


class Names(Tree):
    """Where case does not count, names of the source can be one at the destination."""

    def setUp(self):
        super().setUp()
        self.place = self.folder / "place"
        self.place.mkdir()

    def folding(self, **more):
        return self.preload("FOLD_CASE", FOLD_BELOW=str(self.place), **more)

    def twins(self, tree):
        """Pairs of names that are one, of all kinds of files, and big enough for two chunks."""
        tree.mkdir()
        for name, size in (("README", 3 * MIB), ("readme", 20), ("X", 20), ("x", 3 * MIB), ("Z", 0),
                           ("z", 0)):
            (tree / name).write_bytes(self.bytes(size))
        for name in "d/D/one", "d/d/one", "d/d/two":
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(name.encode())
        (tree / "link").symlink_to("x")
        (tree / "LINK").symlink_to("README")
        return listing(tree)

    def check_twins(self, source, top, *arguments, **options):
        """Each name has one of its files, whole; the others are named."""
        result = self.left_out(7, "the file system takes its name for that of another file of "
                               "this copy$|t/d/[dD]/(one|two): its directory is left out$",
                               "-r", *arguments, self.place, **options)
        for pair in ("README", "readme"), ("x", "X"), ("Z", "z"), ("link", "LINK"):
            whole = [source[name] for name in pair]
            self.assertIn(listing(top)[pair[0].lower()], whole)
            named = [name for name in pair if "t/%s: " % name in result.stderr]
            self.assertEqual(len(named), 1, result.stderr)
        found = listing(top / "d")
        self.assertIn(found.pop("d/one"), (source["d/D/one"], source["d/d/one"]))
        self.assertLessEqual(set(found), {"d", "d/two", "old"})

    def test_no_file_is_written_into_another(self):
        tree = self.folder / "t"
        source = self.twins(tree)
        for arguments in (["--chunk", "1M"], ["--chunk", "64K", "--threads", "4"], ["--continue"],
                          ["-p"]):
            with self.subTest(arguments):
                self.check_twins(source, self.place / "t", *arguments, tree, env=self.folding())
                shutil.rmtree(self.place / "t")

    def test_no_file_of_the_copy_is_replaced_in_a_merge(self):
        tree = self.folder / "t"
        source = self.twins(tree)
        for old in [], ["README", "x", "z"], ["d/d/one"]:
            for arguments in [], ["-p"]:
                with self.subTest((old, arguments)):
                    for name in ["d/old", *old]:
                        path = self.place / "t" / name.lower()
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(b"old")
                    # Only the old tree folds, as with directories of ext4.
                    self.check_twins(source, self.place / "t", *arguments, tree,
                                     env=self.folding(FOLD_PLACES="1"))
                    shutil.rmtree(self.place / "t")


    def test_a_file_that_is_skipped_is_not_replaced_by_its_twin(self):
        """Of two names that are one there, one is the same, and the other is reported."""
        tree, place = self.folder / "t", self.place / "t"
        for first, second in ("README", "readme"), ("readme", "README"):
            for directory in tree, place:
                directory.mkdir()
            (tree / first).write_bytes(b"first")
            (tree / second).write_bytes(b"other")
            os.utime(tree / second, ns=(0, 10**9))
            shutil.copy2(tree / first, place / "readme")
            with self.subTest(first):
                result = self.run_pier("cp", "-r", "--skip-same", tree, self.place, env=self.folding())
                self.assertEqual(result.status, 1, str(result))
                self.assertIn("t/%s: the file system takes its name" % second, result.stderr)
                self.assertEqual(listing(place), {"readme": ("file", b"first")})
            shutil.rmtree(tree)
            shutil.rmtree(place)


class Peers(Tree):
    """A restricted server refuses trees that it must not send or take."""

    def server(self, *options):
        """A remote shell that runs a restricted server, whatever it is asked to run."""
        path = self.folder / "forced"
        path.write_text("#!/bin/sh\nexec '%s' cp --server %s\n" % (PIER, " ".join(options)))
        path.chmod(0o755)
        return ["--rsh", str(path)]

    def test_a_restricted_server_stays_below_its_directory(self):
        tree = self.plant("home")
        (tree / "out").symlink_to("/")
        outside = self.folder / "outside"
        outside.mkdir()
        rsh = self.server("--under", str(tree))
        self.copy("-r", *rsh, "h:b", "copy")
        self.same(tree / "b", self.folder / "copy")
        self.refused(1, "leads out", "cp", "-r", *rsh, "h:out", "copy2")
        self.refused(1, "leads out", "cp", "-r", *rsh, "h:../outside", "copy2")
        self.refused(1, "leads out", "cp", "-r", *rsh, outside, "h:../x")
        self.refused(1, "leads out", "cp", "-r", *rsh, outside, "h:out/tmp")
        self.copy("-r", *rsh, "copy", "h:/new")
        self.same(tree / "b", tree / "new")

    def test_patterns_of_a_restricted_server_stay_below_its_directory(self):
        tree = self.plant("home")
        (tree / "out").symlink_to("..")
        (self.folder / "outside.bin").write_bytes(b"secret")
        (self.folder / "to").mkdir()
        rsh = self.server("--under", str(tree))
        for pattern in ("../*", "out/*", "/../outside*", str(self.folder) + "/*"):
            with self.subTest(pattern):
                self.refused(1, "leads out|No such file", "cp", *rsh, "h:" + pattern, "to")
        self.refused(1, "no file matches", "cp", *rsh, "h:*/../../outside*", "to")
        self.refused(1, "no file matches", "cp", *rsh, "h:*/outside.bin", "to")
        self.assertEqual(os.listdir(self.folder / "to"), [])
        self.left_out(1, "out: .*leads out", *rsh, "h:/[bo]*", "to")
        self.same(tree / "b", self.folder / "to/b")

    def test_a_server_sends_nothing_but_what_matches(self):
        """One that expands another pattern than it was asked for."""
        home = self.folder / "home"
        home.mkdir()
        for name in ("a.bin", "b.txt"):
            (home / name).write_bytes(b"x")
        rewrite = self.folder / "rewrite"
        rewrite.write_text("""#!/usr/bin/env python3
import os, struct, subprocess, sys
os.chdir(%r)
server = subprocess.Popen([%r, "cp", "--server"], stdin=subprocess.PIPE, bufsize=0)
server.stdin.write(sys.stdin.buffer.read(16))
while header := sys.stdin.buffer.read(8):
    frame = sys.stdin.buffer.read(struct.unpack("<II", header)[0])
    try:
        server.stdin.write(header + frame.replace(b"*.bin", b"?.???"))
    except BrokenPipeError:
        break
server.stdin.close()
sys.exit(server.wait())
""" % (str(home), str(PIER)))
        rewrite.chmod(0o755)
        (self.folder / "to").mkdir()
        self.refused(4, "b.txt.*not requested", "cp", "--rsh", str(rewrite), "h:*.bin", "to")
        self.assertEqual(os.listdir(self.folder / "to"), [])

    def test_a_read_only_server_takes_no_tree(self):
        tree = self.plant("home")
        self.refused(1, "read-only", "cp", "-r",
                     *self.server("--under", str(tree), "--read-only"), tree / "b", "h:new")
        self.refused(1, "write-only", "cp", "-r",
                     *self.server("--under", str(tree), "--write-only"), "h:b", "new")


if __name__ == "__main__":
    main()

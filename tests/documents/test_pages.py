#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the commands of the pages, and compares their output with the pages.

Each block of code is run here, or stands in the file not_run with the reason. A command runs in
a folder with prepared files, on soft0 and fake GPUs; each other host is a folder.
"""

import collections
import functools
import importlib.util
import itertools
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unittest

import blocks
import outputs
import place
from harness import Case, PATIENCE, main

BLOCKS = blocks.all_blocks()
MOST, NOT_RUN = blocks.parse_not_run(blocks.NOT_RUN.read_text())
# (page, start) of each block that a case of this file runs.
RUN = []
# After each command: its status, on a line of its own, which the next one finds in $?.
SCRIPT = "%s\n{ S=$?; printf '\\001%%d\\n' $S; (exit $S); }\n"
# The exit statuses of `pier doctor`: no complaint, warnings, errors.
DOCTOR = 0, 6, 7
# Programs whose --help lists their options, as the pages name them, and where they are.
PROGRAMS = {name: name for name in ("tests/run", "tests/fresh", "tests/steady", "tests/bench/run.py",
                                    "tests/carry/build", "tests/strangers/chaos.py", "tests/vm/guest")}
PROGRAMS["carried/run"] = "tests/carry/run"
# For programs that are compiled here.
BUILT = {"LD_LIBRARY_PATH": str(place.BUILD)}
FAKE_GPUS = {"LD_LIBRARY_PATH": str(place.DRIVERS)}

UNSET = blocks.Command("unset PIER_DEVICE", [])
Done = collections.namedtuple("Done", "command status output")


def runs(page, *starts):
    """Pass the blocks of this page: for each text the first one that has a line which starts so."""
    def mark(case):
        RUN.extend((page, start) for start in starts)

        @functools.wraps(case)
        def run(self):
            case(self, *(blocks.find(BLOCKS, page, start) for start in starts))
        return run
    return mark


class Pages(Case):
    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"
        self.work.mkdir()
        place.write_programs(self.folder / "bin")
        place.write_package(self.folder / "packages")
        place.write_hosts(self.folder / "hosts")
        place.write_files(self.work, self.bytes)

    def shell(self, commands, env=None):
        """Run commands in one shell, and return what each printed."""
        script = "".join(SCRIPT % command.text for command in commands)
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=self.work, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env=self.environment(**{**place.environment(self.folder), **(env or {})}))
        self.addCleanup(process.stdout.close)
        output, _ = process.communicate(timeout=PATIENCE)
        done, rest = [], output
        for command in commands:
            printed, _, rest = rest.partition("\001")
            status, _, rest = rest.partition("\n")
            done.append(Done(command, int(status or -1), printed))
        return done

    def commands(self, block, *replaced):
        """The commands of a block, in which texts are replaced by others."""
        found = []
        for command in block.commands():
            text = command.text
            for old, new in replaced:
                text = text.replace(old, new)
            found.append(command._replace(text=text))
        for old, _ in replaced:
            self.assertIn(old, "\n".join(block.lines))
        return found

    def run_block(self, block, *replaced, statuses=(), env=None):
        """
        All commands must end well, or with these statuses, and print what is shown. Returns
        their output.
        """
        return self.check(self.shell(self.commands(block, *replaced), env), statuses)

    def check(self, done, statuses):
        for one, status in itertools.zip_longest(done, statuses, fillvalue=0):
            self.assertEqual(one.status, status, one)
            if one.command.shown:
                self.assertTrue(outputs.is_shown(one.command.shown, one.output), "%s printed\n%s" % (
                    one.command.text, "".join(line + "\n" for line in outputs.output_lines(one.output))))
        return [one.output for one in done]

    def excerpt(self, first, end, done):
        """The shown lines from a first one to an end, or all that follow, must have been printed."""
        lines = itertools.dropwhile(lambda line: not line.startswith(first), done.command.shown)
        lines = list(itertools.takewhile(lambda line: not (end and line.startswith(end)), lines))
        self.assertTrue(lines)
        self.assertEqual(outputs.absent(lines, done.output), [], done.output)


class Copies(Pages):
    @runs("docs/cp.md", "pier cp model.bin node2:/scratch/")
    def test_a_file(self, block):
        self.run_block(block, (":/", ":"))
        self.check_same(self.work / "model.bin", self.folder / "hosts/node2/scratch/model.bin")

    @runs("docs/cp.md", "pier cp -rn --exclude", "pier cp -r --skip-same", "mkfifo model/pipe",
          "pier cp --json -q -r")
    def test_a_directory(self, block, same, again, json):
        self.run_block(block)
        self.assertFalse((self.work / "copy/cache").exists())
        self.run_block(same)
        self.run_block(again, statuses=[0, 1])
        self.run_block(json, statuses=[1])

    @runs("docs/cp.md", "pier cp -r config shards", "pier cp 'node2:")
    def test_several_sources(self, block, pattern):
        self.run_block(block, (":/", ":"))
        (self.work / "shards/0.bin").unlink()
        self.run_block(pattern, (":/", ":"))
        self.check_same(self.work / "shards/0.bin", self.folder / "hosts/node2/srv/model/shards/0.bin")
        self.assertTrue((self.folder / "hosts/node2/srv/model/shards/0.bin").exists())

    @runs("docs/cp.md", "tar c shards | pier cp")
    def test_standard_input_and_output(self, block):
        self.run_block(block)

    @runs("docs/cp.md", "4 destinations,")
    def test_several_destinations(self, block):
        self.run_block(block)

    @runs("docs/cp.md", "3 destinations,")
    def test_one_destination_is_missing(self, block):
        (self.folder / "hosts/node3/scratch").rmdir()
        done, = self.shell(block.commands())
        self.assertNotEqual(done.status, 0)
        self.assertTrue(outputs.is_shown(done.command.shown, done.output), done.output)

    @runs("docs/cp.md", "while pier cp -r --continue")
    def test_a_loop_of_copies(self, block):
        # The loop ends with the status of `[`.
        self.run_block(block, (":/", ":"))
        self.assertTrue((self.folder / "hosts/node2/x/shards/0.bin").exists())

    @runs("docs/cp.md", "pier cp -e 'kubectl")
    def test_a_command_of_kubernetes(self, block):
        self.run_block(block, (":/", ":"))
        self.check_same(self.work / "model.bin", self.folder / "hosts/trainer-0/scratch/model.bin")

    @runs("docs/kubernetes.md", "pier cp -e 'kubectl", "PIER_SOFT_PEERS=")
    def test_copies_to_a_pod(self, named, soft):
        copy = self.folder / "hosts/trainer-0/scratch/model.bin"
        for block in named, soft:
            self.run_block(block, (":/", ":"))
            self.check_same(self.work / "model.bin", copy)
            copy.unlink()


class Tools(Pages):
    @runs("README.md", "pier cp model.bin")
    def test_each_command_of_readme(self, block):
        # The server of perftest would wait for a client, on a port that is always the same.
        program = "ib_write_bw --version" if shutil.which("ib_write_bw") else "echo Version"
        # The fake GPUs come with a part of libmlx5. perftest's status is 1 here.
        done = self.shell(self.commands(block, (":/", ":"), (
            "pier run ib_write_bw", "LD_LIBRARY_PATH= pier run %s | grep Version" % program)), FAKE_GPUS)
        statuses = [one.status for one in done]
        self.assertIn(statuses.pop(2), DOCTOR, done)
        self.assertEqual(statuses, [0, 0, 0, 0], done)

    @runs("docs/doctor.md", "pier doctor: 0 errors, 1 warning")
    def test_doctor(self, block):
        done, = self.shell(block.commands())
        self.assertIn(done.status, DOCTOR)
        # The rest depends on the machine.
        self.excerpt("transfer", None, done)

    @runs("docs/doctor.md", "pier doctor --from")
    def test_facts_of_another_machine(self, block):
        (self.work / "tests").symlink_to(blocks.ROOT / "tests")
        done, = self.shell(block.commands())
        self.assertEqual(done.status, DOCTOR[1])
        self.excerpt("pier doctor:", None, done)

    @runs("docs/doctor.md", "pier info")
    def test_info(self, block):
        done, = self.shell(block.commands())
        self.assertEqual(done.status, 0)
        self.excerpt("device soft0", "    GID 0", done)
        self.excerpt("memory", "  udmabuf", done)


class Perf(Pages):
    @runs("docs/perf.md", "pier perf write_bw node2", "pier perf -s 4K-1M", "pier perf -s 8,4K write_lat",
          "pier perf --src-mem host")
    def test_host_memory(self, *found):
        for block in found:
            self.run_block(block)

    @runs("docs/perf.md", "pier perf -a --src-mem cuda:0 --dst-mem cuda:1 --json")
    def test_gpus(self, block):
        plot = [] if importlib.util.find_spec("matplotlib") else [("--plot worth.svg ", "")]
        self.run_block(block, *plot, env=FAKE_GPUS)


class Library(Pages):
    def build_first(self):
        """The first example, as the pages build it."""
        (self.work / "examples").symlink_to(blocks.ROOT / "examples")
        block = blocks.find(BLOCKS, "docs/build.md", "cc examples/first.c")
        return self.run_block(block, env=BUILT)

    @runs("docs/build.md", "cc examples/first.c")
    def test_first_program(self, _):
        printed = self.build_first()[-1]
        text, = re.findall(r"^It prints `(.*)`", (blocks.ROOT / "docs/build.md").read_text(), re.MULTILINE)
        self.assertEqual(printed, text + "\n")

    @runs("docs/verbs.md", "cc examples/from_verbs/before.c")
    def test_programs_before_and_after(self, block):
        (self.work / "examples").symlink_to(blocks.ROOT / "examples")
        self.run_block(block, env={"LD_LIBRARY_PATH": str(place.BUILD)})

    @runs("docs/testing.md", "PIER_DEVICE=fault:wc@3", "for n in $(seq 1000)", "PIER_DEVICE=fault:like=mlx5")
    def test_plans_of_faults(self, plans, loop, personas):
        self.build_first()
        (self.work / "first").rename(self.work / "mine")
        for done in self.shell(self.commands(plans, ("mlx5_0", "soft0")), BUILT):
            # A fault is an error of the program, not its end; the plan itself is accepted.
            self.assertIn(done.status, (0, 1), done)
            self.assertNotRegex(done.output, "plan(?!.* strikes )")
        self.run_block(loop, env=BUILT)
        self.run_block(personas, env=BUILT)

    @runs("docs/testing.md", "export LD_LIBRARY_PATH=build/tests-gcc", "LD_LIBRARY_PATH=build/g/")
    def test_fake_gpus(self, cuda, hip):
        self.build_first()
        (self.work / "first").rename(self.work / "mine")
        for name in "tests-gcc", "g":
            (self.work / "build").mkdir(exist_ok=True)
            (self.work / "build" / name).symlink_to(place.BUILD)
        printed = self.run_block(cuda, ("drivers", "drivers:%s" % place.BUILD))
        self.assertRegex(printed[1], r"\n  cuda +available")
        self.assertRegex(self.run_block(hip)[0], r"\n  hip +available")


class Tutorial(Pages):
    """Nothing selects soft0 here, except the commands."""

    page = "docs/tutorial.md"

    def setUp(self):
        if any(pathlib.Path("/sys/class/infiniband").glob("*")):
            self.skipTest("this machine has a NIC, and the page shows one without")
        super().setUp()
        (self.work / "examples").symlink_to(blocks.ROOT / "examples")

    def run_block(self, block, *replaced, statuses=(), env=None):
        commands = [UNSET, *self.commands(block, *replaced)]
        return self.check(self.shell(commands, {**BUILT, **(env or {})}), [0, *statuses])

    @runs(page, "cc examples/first.c")
    def test_one_process(self, block):
        self.run_block(block, statuses=[0, 1])

    @runs(page, "cc examples/two_processes.c")
    def test_two_processes(self, block):
        # The page has exported it before.
        self.run_block(block, ("./two_processes", "PIER_DEVICE=soft0 ./two_processes"))

    @runs("docs/loader.md", "python3 examples/python/first_batch.py")
    def test_a_first_batch(self, block):
        if not list((place.BUILD / "python/pier").glob("_pier*.so")):
            self.skipTest("this build has no Python package")
        self.run_block(block, ("python3 ", shlex.quote(sys.executable) + " -B "),
                       env={"PYTHONPATH": str(place.BUILD / "python")})

    @runs(page, "unset PIER_DEVICE")
    def test_a_copy(self, block):
        self.run_block(block, ("100M", "1M"))

    @runs(page, "pier cp model.bin node2:/scratch/", "pier cp --remote-pier", "ssh node2 pier doctor")
    def test_a_host_without_a_nic(self, bare, path, doctor):
        self.run_block(path, ("/opt/pier/bin", "../../bin"), (":/", ":"), statuses=[3])
        done = self.shell(self.commands(bare, (":/", ":")))
        self.assertEqual(done[0].status, 0, "with the variable, which a NIC makes unnecessary")
        done, = self.shell(doctor.commands())
        self.assertIn(done.status, DOCTOR)
        self.assertRegex(done.output, r"^pier doctor: ")

    @runs("docs/ci.md", "cc mine.c -o mine")
    def test_a_program_of_verbs(self, block):
        (self.work / "mine.c").write_text(place.VERBS_PROGRAM)
        self.run_block(block, statuses=[0, 1])

    @runs(page, "bash: pier: command not found")
    def test_a_host_without_pier(self, block):
        (self.folder / "hosts/node2/.profile").write_text("PATH=/usr/bin:/bin\n")
        done, = self.shell(self.commands(block, (":/", ":")))
        self.assertEqual(done.status, 4)
        # Each shell has its own words.
        self.assertEqual(outputs.absent(done.command.shown[1:], done.output), [], done.output)

    @runs(page, "pier cp --device soft0", "pier perf --device soft0")
    def test_two_hosts(self, copies, perf):
        self.run_block(copies, (":/", ":"))
        self.run_block(perf)


class Extensions(Pages):
    """Pages that have a program of their own, which the test writes into a file first."""

    def setUp(self):
        super().setUp()
        (self.work / "tests").symlink_to(blocks.ROOT / "tests")

    def write(self, name, program):
        (self.work / name).write_text("".join(line + "\n" for line in program.lines))

    @runs("docs/backends.md", "#define _GNU_SOURCE", "cc -Wall -shared", "build/tests/tests/conformance")
    def test_backend(self, program, use, conformance):
        self.write("shelf.c", program)
        self.run_block(use, ("cc -Wall", "cc -Wall -Wextra -Werror"), env=BUILT)
        self.check_same(self.work / "model.bin", self.work / "copy.bin")
        *_, printed = self.run_block(
            conformance, ("meson setup -Dtests=enabled build/tests", "true"), ("ninja -C build/tests", "true"),
            ("build/tests/", shlex.quote(str(place.BUILD)) + "/"), statuses=[0, 0, 1],
            env={"PIER_BACKEND_PATH": str(self.work), "CMOCKA_MESSAGE_OUTPUT": "STDOUT"})
        failed = re.findall(r"ERROR +\] (\w+)", printed)
        self.assertEqual(failed, ["pointer_into_buffer_is_recognised"], "the page names what fails")

    @runs("docs/several.md", "pier doctor --from", "PIER_TOPO_FILE=places")
    def test_distances(self, doctor, places):
        self.run_block(doctor)
        self.run_block(places, env=FAKE_GPUS)

    @runs("docs/several.md", "pier cp --device soft0,soft0", "#include <stdint.h>", "cc -Wall rails.c")
    def test_rails(self, copy, program, use):
        self.run_block(copy, ("100M", "8M"))
        self.write("rails.c", program)
        self.run_block(use, ("cc -Wall", "cc -Wall -Wextra -Werror"), env=BUILT)


class Repository(Pages):
    @runs("docs/testing.md", "ln -s ../../tools/pre-commit", "ln -s build/NAME")
    def test_links(self, hook, commands):
        (self.work / ".git/hooks").mkdir(parents=True)
        (self.work / "tools").symlink_to(blocks.ROOT / "tools")
        self.run_block(hook)
        self.assertTrue((self.work / ".git/hooks/pre-commit").samefile(blocks.ROOT / "tools/pre-commit"))
        (self.work / "build").mkdir()
        (self.work / "build/NAME").symlink_to(place.BUILD)
        self.run_block(commands)
        self.assertTrue((self.work / "compile_commands.json").is_file())


class Options(Pages):
    """Of commands that are not run, because they take long or need root."""

    def listed(self, program):
        """The words of its --help."""
        done, = self.shell([blocks.Command("%s --help" % shlex.quote(str(blocks.ROOT / program)), [])])
        self.assertEqual(done.status, 0, done)
        return set(re.findall(r"[\w-]+", done.output))

    def used(self, program):
        """The options, and the suites of tests/run, with which the pages call a program."""
        call, words = re.compile(r"(?:^|\s)(?:\./)?%s (.*)" % re.escape(program)), set()
        for entry in NOT_RUN:
            block = blocks.find(BLOCKS, entry.page, entry.start)
            for found in filter(None, (call.search(command.text) for command in block.commands())):
                words |= {word.partition("=")[0] for word in found[1].split()
                          if word.startswith("--") or program == "tests/run"}
        return words

    def test_options_and_suites_exist(self):
        for program, place_of_it in PROGRAMS.items():
            words = self.used(program)
            self.assertTrue(words, "no page names an option of " + program)
            self.assertEqual(words - self.listed(place_of_it), set(), program)


class Accounts(unittest.TestCase):
    """Each block is run, or stands in the file not_run."""

    def known(self):
        """(page, start) of the blocks that are run or in the file, each with its block."""
        subjects = RUN + [(entry.page, entry.start) for entry in NOT_RUN]
        return [(subject, blocks.find(BLOCKS, *subject)) for subject in subjects]

    def test_each_entry_has_a_block(self):
        self.assertEqual([subject for subject, block in self.known() if not block], [],
                         "no block has a line that starts so")

    def test_no_block_has_two_entries(self):
        count = collections.Counter(block for _, block in self.known())
        self.assertEqual([str(block) for block in count if count[block] > 1], [])

    def test_each_entry_has_a_reason(self):
        for entry in NOT_RUN:
            self.assertIn(entry.kind, blocks.KINDS, entry)
            self.assertTrue(entry.reason, entry)

    def test_blocks_are_run_elsewhere(self):
        """The named file exists and contains the word that the entry quotes."""
        for entry in NOT_RUN:
            if entry.kind == "elsewhere":
                file, _, word = entry.reason.partition(", ")
                self.assertTrue(word, entry)
                self.assertTrue(word in (blocks.ROOT / file).read_text(), entry)

    def test_blocks_that_are_not_run_do_not_increase(self):
        known = {block for _, block in self.known()}
        unknown = [block for block in BLOCKS if block not in known]
        excluded = [entry for entry in NOT_RUN if entry.kind == "excluded"]
        for block in unknown:
            print("# not run, without a reason: %s" % block)
        count = len(excluded) + len(unknown)
        print("# of %d blocks, %d are run here; %d are not run, at most %d may be" % (
            len(BLOCKS), len(RUN), count, MOST))
        self.assertLessEqual(count, MOST, "run the new block, or give a reason in tests/documents/not_run")

    def test_blocks_are_found(self):
        text = "* an item\n    of two lines\n\n    $ a \\\n      b\n    c\n\n    d\n\n```sh\ne    f\n```\n"
        session, fenced = blocks.blocks_of("page", text)
        self.assertEqual(session.commands(), [("a \\\n  b", ["c", "", "d"])])
        self.assertEqual(fenced.commands(), [("e", [])])
        self.assertEqual((session.number, fenced.number), (4, 11))

    def test_outputs_are_compared(self):
        for shown, output, same in ((["1 file in 0.2 s, 3.10 MB/s"], "12 file in 9 s, 1.00 GB/s\n", True),
                                    (["a", "...", "b"], "a\nc\nd\nb\n", True), (["a", "b"], "a\nc\nb\n", False),
                                    (["x, ... y"], "x, z y\n", True), (["a"], "b\n", False)):
            self.assertEqual(bool(outputs.is_shown(shown, output)), same, (shown, output))
        self.assertEqual(outputs.absent(["a", "d", "c"], "a\nb\nc\n"), ["d"])


if __name__ == "__main__":
    main()

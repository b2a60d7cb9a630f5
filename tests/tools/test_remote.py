#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp with another host, through a stub shell and through a real sshd."""

import getpass
import os
import pathlib
import pwd
import re
import shutil
import socket
import struct
import subprocess
import sys

from harness import MIB, PIER, PROMISE, STUB_RSH, STUB_SHELL, VERSION, Case, main, slowness

MAGIC = b"\x89PIERCP\n"
GREETING = MAGIC + struct.pack("<II", VERSION, 0)
ERROR = 8
RAILS = 9


def frame(kind, payload=b""):
    return struct.pack("<II", len(payload), kind) + payload


class StubShell(Case):
    def setUp(self):
        super().setUp()
        self.home = self.folder / "home of one"
        self.home.mkdir()
        self.stub = {"PIER_RSH": STUB_RSH, "STUB_HOME": str(self.home)}

    def remote(self, *arguments, **options):
        return self.copy("--remote-pier", PIER, *arguments, env=self.stub, **options)

    def test_soft0_is_not_used_between_hosts_unless_named(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("this machine has an RDMA device")
        self.refused(3, "PIER_DEVICE=soft0", "cp", "--remote-pier", PIER,
                     self.file("source", 1), "somewhere:target",
                     env={**self.stub, "PIER_DEVICE": ""})
        self.assertFalse((self.home / "target").exists())

    def test_files_are_pushed_and_pulled(self):
        source = self.file("source", 3 * MIB + 1)
        result = self.remote(source, "somewhere:target")
        self.assertIn("verified", result.stdout)
        self.check_same(source, self.home / "target")
        self.remote("somewhere:target", "back")
        self.check_same(source, self.folder / "back")

    def test_remote_paths_are_not_expanded(self):
        source = self.file("source", 1000)
        (self.home / "directory").mkdir()
        for place, name in (("somewhere:", "source"), ("somewhere:directory", "directory/source"),
                            ("somewhere:~", "source"), ("somewhere:~/", "source"), ("somewhere:~x", None),
                            ("somewhere:~/x", "x"), ("somewhere:~//y", "y"),
                            ("somewhere:a b $(touch z) 'c' \"d\"\n;e", None)):
            with self.subTest(place):
                self.remote(source, place)
                name = name or place.split(":")[1]
                self.check_same(source, self.home / name)
        self.assertFalse((self.home / "z").exists())
        self.remote(source, "somewhere:%s" % (self.folder / "absolute"))
        self.check_same(source, self.folder / "absolute")

    def matched(self, expected, *patterns):
        """What arrives in a new directory."""
        place = self.folder / "matched"
        place.mkdir()
        self.remote(*("somewhere:" + pattern for pattern in patterns), place)
        self.assertEqual(sorted(path.name for path in place.iterdir()), sorted(expected))
        for name, source in expected.items():
            self.check_same(self.home / source, place / name)
        shutil.rmtree(place)

    def test_a_remote_pattern_is_expanded(self):
        for name in ("a1.bin", "a2.bin", "b.txt", ".hidden.bin", "d/deep.bin", "d/e/x", "f/e/y"):
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_bytes(os.urandom(1000))
        both = {"a1.bin": "a1.bin", "a2.bin": "a2.bin"}
        self.matched(both, "*.bin")
        self.matched(both, "~/a[12].???")
        self.matched(both, "*.bin", "a*")
        self.matched(both, "%s/a*" % self.home)
        self.matched({"a2.bin": "a2.bin", "b.txt": "b.txt"}, "a[!1]*", "b.txt")
        self.matched({".hidden.bin": ".hidden.bin"}, ".h*")
        self.matched({"deep.bin": "d/deep.bin"}, "*/*.bin")
        self.matched({"x": "d/e/x", "y": "f/e/y"}, "?/e/*")

    def test_a_name_that_exists_is_no_pattern(self):
        for name in ("a*", "ab", "[x]", "x"):
            (self.home / name).write_bytes(name.encode())
        self.remote("somewhere:a*", "one")
        self.assertEqual((self.folder / "one").read_bytes(), b"a*")
        self.matched({"a*": "a*", "[x]": "[x]"}, "a*", "[x]")
        self.matched({"a*": "a*"}, "?\\*")

    def test_a_pattern_that_cannot_be_used_is_refused(self):
        (self.home / "a").write_bytes(b"a")
        self.failed(1, r"somewhere: no file matches \*\.bin$", "somewhere:*.bin", ".")
        self.failed(1, "somewhere: no file matches a\\*/", "somewhere:a", "somewhere:a*/", ".")
        self.failed(1, "somewhere: cannot read none/: No such file", "somewhere:none/*", ".")
        self.failed(1, "new is no directory: several sources need one", "somewhere:*", "new")
        self.failed(1, "wildcards in 16 names at most", "somewhere:" + "*/" * 17, ".",
                    **{"env": self.deep()})

    def deep(self):
        """A home directory with 17 directories, one below the other."""
        home = self.folder / "deep"
        (home / ("d/" * 17)).mkdir(parents=True)
        return {**self.stub, "STUB_HOME": str(home)}

    def test_a_link_that_leads_nowhere_is_left_out_of_the_matches(self):
        (self.home / "a1").write_bytes(b"1")
        (self.home / "a2").symlink_to("nowhere")
        result = self.run_pier("cp", "--remote-pier", PIER, "somewhere:a*", ".", env=self.stub)
        self.assertEqual(result.status, 1)
        self.assertRegex(result.stderr, "a2: No such file.*\n.*1 file was not copied")
        self.assertEqual((self.folder / "a1").read_bytes(), b"1")

    def test_a_user_and_an_ipv6_address_are_accepted(self):
        source = self.file("source", 10)
        self.stub["STUB_HOST"] = "me@fe80::1%lo"
        self.remote(source, "me@[fe80::1%lo]:target")
        self.check_same(source, self.home / "target")

    def test_remote_pier_may_contain_blanks_and_quotes(self):
        source = self.file("source", 10)
        program = self.folder / "it's a 'pier' $HOME"
        program.symlink_to(PIER)
        self.copy("--remote-pier", program, source, "somewhere:x", env=self.stub)
        self.check_same(source, self.home / "x")

    def test_rsh_may_contain_quoted_arguments(self):
        source = self.file("source", 10)
        shell = self.folder / "my shell"
        shell.write_text('#!/bin/sh\n[ "$1" = "two words" ] && shift && exec "%s" "$@"\n'
                         % STUB_SHELL)
        shell.chmod(0o755)
        for line in ("'%s' 'two words'" % shell, "\"%s\"  two' 'words " % shell):
            self.copy("--rsh", line, "--remote-pier", PIER, source, "somewhere:x",
                      env={"STUB_HOME": str(self.home)})
            self.check_same(source, self.home / "x")
            (self.home / "x").unlink()

    def test_rsh_may_place_the_host(self):
        """As kubectl: unknown flags are errors, and the command, which no shell sees, follows --."""
        source = self.file("source", 10)
        kubectl = self.folder / "kubectl"
        kubectl.write_text("""#!/usr/bin/env python3
import argparse, os, sys
if "--" not in sys.argv:
    sys.exit("error: you must specify at least one command for the container")
end = sys.argv.index("--")
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("exec", choices=["exec"])
parser.add_argument("pod")
parser.add_argument("-i", action="store_true", required=True)
parser.add_argument("-n")
parser.add_argument("-c")
given = parser.parse_args(sys.argv[1:end])
assert (given.pod, given.n) == ("trainer-0", "100%trainer-0"), given
os.chdir(os.environ["STUB_HOME"])
os.execvp(sys.argv[end + 1], sys.argv[end + 1:])
""")
        kubectl.chmod(0o755)
        rsh = "'%s' exec -i -n 100%%%%%%h %%h --" % kubectl
        self.remote("--rsh", rsh, source, "trainer-0:target")
        self.check_same(source, self.home / "target")
        self.remote("--rsh", rsh, "trainer-0:target", "back")
        self.check_same(source, self.folder / "back")
        # Without the placeholder the host comes last, and % is what it is.
        self.recorded("shell%%", " a%b 100%%")
        self.assertEqual((self.folder / "words").read_text().split(), ["a%b", "100%%"])

    def test_ssh_gets_its_options_before_a_placed_host(self):
        shell = self.folder / "ssh"
        shell.write_text('#!/bin/sh\nfor word; do echo "$word"; [ "$word" != --server ] || break; done '
                         '>"%s"\nwhile [ "$1" != somewhere ]; do shift; done; shift; shift\n'
                         'exec "%s" somewhere "$@"\n' % (self.folder / "words", STUB_SHELL))
        shell.chmod(0o755)
        self.remote("--rsh", "'%s' -A %%h --" % shell, self.file("source", 10), "somewhere:x")
        words = (self.folder / "words").read_text().split()
        self.assertEqual((words[0], words[8:10]), ("-A", ["somewhere", "--"]))
        self.assertTrue(all(word.startswith("-o") for word in words[1:8]), words)

    def test_the_port_is_passed_to_ssh(self):
        self.assertEqual(self.recorded("ssh", " -A -p1", "--port", "2222")[:3], ["-p2222", "-A", "-p1"])
        self.assertEqual(self.recorded("ssh", " -A" * 62, "--port=1")[:63], ["-p1"] + ["-A"] * 62)
        for line in ("my-ssh", "sudo ssh"):
            self.refused(2, "--port is for ssh.* runs '%s': write the port" % line.split()[0], "cp", "--rsh",
                         line, "--port", "22", self.file("source", 1), "somewhere:x")

    def test_the_environment_has_the_default_of_remote_pier(self):
        source = self.file("source", 10)
        self.copy(source, "somewhere:x", env={**self.stub, "PIER_REMOTE_PIER": PIER})
        self.check_same(source, self.home / "x")
        self.copy("--remote-pier", PIER, source, "somewhere:y",
                  env={**self.stub, "PIER_REMOTE_PIER": "/nowhere"})
        result = self.run_pier("cp", source, "somewhere:z",
                               env={**self.stub, "PIER_REMOTE_PIER": "/nowhere"})
        self.assertEqual(result.status, 4)
        self.assertIn("status 127; is pier installed there?", result.stderr)

    def recorded(self, name, words="", *options):
        """The arguments before the host that a remote shell of this name receives."""
        shell = self.folder / name
        record = self.folder / "words"
        shell.write_text('#!/bin/sh\nwhile [ "$1" != somewhere ]; do echo "$1"; shift; done '
                         '>"%s"\nexec "%s" "$@"\n' % (record, STUB_SHELL))
        shell.chmod(0o755)
        self.copy("--rsh", "'%s'%s" % (shell, words), *options, "--remote-pier", PIER,
                  self.file("source", 10), "somewhere:x", env={"STUB_HOME": str(self.home)})
        return record.read_text().split()

    def test_ssh_gets_options_against_forwarding(self):
        words = self.recorded("ssh", " -A")
        self.assertEqual(words[0], "-A", "the user's own options come first")
        self.assertEqual(sorted(words[1:]), [
            "-oClearAllForwardings=yes", "-oForwardAgent=no", "-oForwardX11=no",
            "-oGSSAPIDelegateCredentials=no", "-oPermitLocalCommand=no", "-oRemoteCommand=none",
            "-oRequestTTY=no"])

    def test_another_shell_gets_no_ssh_options(self):
        self.assertEqual(self.recorded("my-ssh"), [])

    def failed(self, status, pattern, *arguments, **options):
        options.setdefault("env", self.stub)
        result = self.run_pier("cp", "--remote-pier", PIER, *arguments, **options)
        self.assertLess(result.seconds, PROMISE * slowness())
        lines = [line for line in result.stderr.splitlines(True) if line.startswith("pier: ")]
        result.stderr = "".join(lines)
        self.check_failure(result, status, pattern)
        return result

    def test_a_remote_failure_is_reported_once(self):
        source = self.file("source", 10)
        for arguments, pattern in (
                (("somewhere:none", "x"), "somewhere: cannot read none: No such file"),
                (("somewhere:.", "x"), "somewhere: . is a directory"),
                ((source, "somewhere:no/x"), "somewhere: cannot write no/x: No such file"),
                ((source, "somewhere:%s" % source), "somewhere: .*same file")):
            with self.subTest(pattern):
                self.assertEqual(self.failed(1, pattern, *arguments).stderr.count("\n"), 1)
        self.failed(3, "somewhere: .*vram", "--dst-mem", "vram", source, "somewhere:x")
        self.failed(3, "somewhere: .*soft7", "--remote-device", "soft7", source, "somewhere:x")

    def test_a_missing_remote_shell_is_reported(self):
        self.file("source", 10)
        self.failed(4, "cannot run .*no-such-shell: No such file",
                    "--rsh", "no-such-shell", "source", "somewhere:x")

    def test_a_quote_that_is_not_closed_is_refused(self):
        self.file("source", 10)
        for shell in "ssh 'x", 'ssh -o "a b':
            self.failed(2, "a quote %s is not closed" % ("'" if "'" in shell else '"'),
                        "--rsh", shell, "source", "somewhere:x")

    def test_a_shell_that_closes_its_output_is_stopped(self):
        self.file("source", 10)
        shell = self.file("shell", b"#!/bin/sh\nexec sleep 600 >&-\n")
        shell.chmod(0o755)
        self.failed(4, "somewhere ended .*: .*shell closed its output and did not end$",
                    "--rsh", "./shell", "source", "somewhere:x")

    def test_an_unknown_host_is_reported(self):
        self.file("source", 10)
        self.failed(4, "nowhere ended .*stub_shell exited with status 255",
                    "source", "nowhere:x")

    def test_a_missing_remote_pier_is_reported(self):
        self.file("source", 10)
        result = self.run_pier("cp", "--remote-pier", "no-such-pier", "source", "somewhere:x",
                               env=self.stub)
        self.assertEqual(result.status, 4)
        self.assertIn("--remote-pier", result.stderr)

    def test_output_of_shell_start_up_files_is_reported(self):
        self.file("source", 10)
        self.stub["STUB_NOISE"] = "Welcome to somewhere\033[2J"
        for arguments in (("source", "somewhere:x"), ("somewhere:y", "x")):
            result = self.failed(4, 'beginning with "Welcome.*start-up files', *arguments)
            self.assertNotIn("\033", result.stderr)

    def peer(self, script):
        """A remote shell that runs a script, then reads to the end of its input."""
        program = self.folder / "peer"
        program.write_text("#!%s\nimport struct, sys\n%s\nsys.stdout.flush()\n"
                           "sys.stdin.buffer.read()\n" % (sys.executable, script))
        program.chmod(0o755)
        return "'%s'" % program

    def says(self, data):
        return self.peer("sys.stdout.buffer.write(%r)" % data)

    def test_another_protocol_version_is_refused(self):
        self.file("source", 10)
        shell = self.says(MAGIC + struct.pack("<II", VERSION + 1, 0))
        self.failed(4, "somewhere uses version %d .*this side uses version %d" % (VERSION + 1, VERSION),
                    "--rsh", shell, "source", "somewhere:x")

    def test_invalid_frames_are_refused(self):
        self.file("source", 10)
        soft = struct.pack("<64sIIBBBB20x", b"soft0", 1, 0, 2, 2, 6, 0)
        rails = GREETING + frame(RAILS, struct.pack("<4sHHQ", b"PrRL", 1, 1, 7) + soft)
        endless = rails + frame(3, struct.pack("<I", 1) + b"\xff" * 500)
        for data, pattern in (
                (b"\0" * 100, "start-up files"),
                (self.bytes(1000), "start-up files"),
                (b"\x89PIERCP", "did not respond"),
                (b"\x89PIERXX\n" + bytes(8), "another command of pier, not .pier cp.:"),
                (GREETING, "did not respond"),
                (GREETING + b"\x10\0\0", "did not respond"),
                (GREETING + struct.pack("<II", 100, 3), "did not respond"),
                (GREETING + struct.pack("<II", 16385, 3), "unexpected"),
                (GREETING + struct.pack("<II", 0xffffffff, 3), "unexpected"),
                (GREETING + frame(0), "unexpected"),
                (GREETING + frame(99), "unexpected"),
                (GREETING + frame(RAILS), "no description of ports"),
                (GREETING + frame(RAILS, bytes(112)), "no description of ports"),
                (rails, "did not respond"),
                (rails + frame(3), "invalid"),
                (rails + frame(3, struct.pack("<I", 5) + bytes(200)), "invalid"),
                (endless, "invalid"),
                (rails + frame(3, struct.pack("<II", 1, 0) + bytes(38)), "."),
                (GREETING + frame(ERROR), "unexpected"),
                (GREETING + frame(ERROR, struct.pack("<IH", 0, 1) + b"x"), "unexpected"),
                (GREETING + frame(ERROR, struct.pack("<IH", 1, 9) + b"x"), "unexpected")):
            with self.subTest(data[:40]):
                self.failed(4, pattern, "--timeout", 1 if pattern == "did not respond" else 30,
                            "--rsh", self.says(data), "source", "somewhere:x")

    def test_a_refusal_names_the_options_for_the_software_nic(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("there is a NIC")
        self.file("small", 10)
        for options in (), ("--device", "soft0"), ("--remote-device", "soft0"):
            self.refused(3, "no RDMA device.*: --device soft0 --remote-device soft0", "cp",
                         "--rsh", STUB_RSH, "--remote-pier", PIER, *options, "small",
                         "somewhere:%s" % (self.folder / "target"),
                         env=self.environment(PIER_DEVICE=""))

    def test_invalid_source_descriptions_are_refused(self):
        def source(size=10, sparse=0, mode=0o644, nanoseconds=0, name=b"n"):
            return struct.pack("<QIIQI", size, sparse, mode, 0, nanoseconds) + \
                struct.pack("<H", len(name)) + name + bytes(16 + 5 * 4)
        for payload in (source(size=1 << 63), source(sparse=32), source(sparse=4), source(sparse=14),
                        source(mode=0o4755), source(nanoseconds=10**9), source(name=b""),
                        source(name=b"../x"), source(name=b".."), source(name=b"a\0b"), source(name=b"n" * 300),
                        source()[:-1], source() + b"x"):
            with self.subTest(payload):
                self.failed(4, "invalid", "--rsh",
                            self.says(GREETING + frame(2, payload)), "somewhere:x", "target")
        self.failed(4, "did not respond", "--timeout", 1, "--rsh",
                    self.says(GREETING + frame(2, source())), "somewhere:n", "target")
        self.assertFalse((self.folder / "target").exists())

    def test_control_characters_of_a_peer_are_escaped(self):
        self.file("source", 10)
        words = b"bad\033[2J\r\nnews"
        shell = self.says(GREETING + frame(ERROR, struct.pack("<IH", 1, len(words)) + words))
        self.failed(1, r"somewhere: bad\\x1b\[2J\\x0d\\x0anews", "--rsh", shell, "source", "somewhere:x")

    def test_a_peer_that_exits_early_is_reported(self):
        self.file("source", 10)
        for data in (b"", GREETING, GREETING + b"\x01", GREETING + struct.pack("<II", 10, 3)):
            with self.subTest(data):
                shell = self.peer("sys.stdout.buffer.write(%r)\nsys.stdout.flush()\n"
                                  "sys.exit(3)" % data)
                self.failed(4, "somewhere ended .*peer exited with status 3", "--rsh", shell,
                            "source", "somewhere:x")

    def test_a_hanging_peer_times_out(self):
        self.file("source", 10)
        shell = self.peer("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                          "signal.pause()")
        self.failed(4, "somewhere did not respond for 1 s", "--timeout", 1, "--rsh", shell,
                    "source", "somewhere:x")

    def test_the_server_rejects_invalid_input(self):
        for data in (b"", b"x", bytes(100), GREETING, GREETING + frame(1),
                     GREETING + frame(1, b"\xff" * 200), GREETING + frame(5),
                     MAGIC + struct.pack("<II", VERSION, 0)):
            with self.subTest(data):
                result = subprocess.run([PIER, "cp", "--server"], input=data, timeout=60,
                                        capture_output=True, env=self.environment())
                self.assertEqual(result.returncode, 4)
                self.assertTrue(result.stdout.startswith(GREETING))


class Sshd(Case):
    """An sshd of the test's own, on loopback, on a free port and with temporary keys."""

    def setUp(self):
        super().setUp()
        sshd = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
        if not sshd or not shutil.which("ssh"):
            self.skipTest("sshd or ssh is not installed")
        self.need_login()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            self.folder / name], check=True)
        self.write_configuration()
        self.port = self.start_daemon(sshd)

    def need_login(self):
        """ssh and sshd need a user who can log in."""
        try:
            user = pwd.getpwuid(os.geteuid())
        except KeyError:
            self.skipTest("user %d has no entry in passwd" % os.geteuid())
        if not os.path.isdir(user.pw_dir) or user.pw_shell.endswith(("nologin", "false")):
            self.skipTest("%s has no home directory or no shell" % user.pw_name)

    def write_configuration(self):
        keys = self.folder / "authorized_keys"
        keys.write_bytes((self.folder / "user.pub").read_bytes())
        self.configuration = self.folder / "sshd_config"
        self.configuration.write_text(
            "HostKey %s\nAuthorizedKeysFile %s\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin yes\nPasswordAuthentication no\nAcceptEnv PIER_*\n"
            % (self.folder / "host", keys))

    def start_daemon(self, sshd):
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)  # for privilege separation on Debian
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", self.configuration, "-o", "ListenAddress=127.0.0.1",
             "-p", str(port)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        line = process.stderr.readline()
        if "listening" not in line:
            self.skipTest("sshd does not start here: %s" % line.strip())
        return port

    def ssh(self):
        return ("ssh -F none -p %d -i '%s' -o BatchMode=yes -o StrictHostKeyChecking=no "
                "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o IdentityAgent=none "
                "-o SendEnv=PIER_*" % (self.port, self.folder / "user"))

    def test_files_are_pushed_and_pulled(self):
        source = self.file("source", 5 * MIB + 7)
        there = "%s@127.0.0.1:%s" % (getpass.getuser(), self.folder)
        self.copy("--rsh", self.ssh(), "--remote-pier", PIER, source, there + "/it's $HOME there")
        self.check_same(source, self.folder / "it's $HOME there")
        self.copy("--rsh", self.ssh(), "--remote-pier", PIER, there + "/source", "back")
        self.check_same(source, self.folder / "back")

    def test_several_destinations_pass_the_copy_on(self):
        """ssh cannot reach one of them."""
        source = self.file("source", 3 * MIB + 5)
        hosts = ["127.0.0.1", "127.0.0.2", "%s@127.0.0.1" % getpass.getuser()]
        places = ["%s:%s" % (host, self.folder / ("copy%d" % i)) for i, host in enumerate(hosts)]
        result = self.run_pier("cp", "--rsh", self.ssh(), "--remote-pier", PIER, source, *places)
        self.assertEqual(result.status, 4, result)
        self.assertRegex(result.stderr, r"(?m)^pier cp: 127.0.0.2 ended .*status 255; the copy goes on without it$")
        self.assertRegex(result.stderr, r"\npier: not copied to 1 of 3 destinations\n\Z")
        self.check_same(source, self.folder / "copy0")
        self.check_same(source, self.folder / "copy2")
        self.assertFalse((self.folder / "copy1").exists())

    def test_remote_failures_are_reported(self):
        self.file("source", 10)
        there = "%s@127.0.0.1:" % getpass.getuser()
        result = self.run_pier("cp", "--rsh", self.ssh(), "--remote-pier", PIER,
                               there + "/none", "x")
        self.check_failure(result, 1, "127.0.0.1: cannot read /none: No such file")
        result = self.run_pier("cp", "--rsh", self.ssh(), "--remote-pier", "no-such-pier",
                               "source", there + "x")
        self.assertEqual(result.status, 4)
        self.assertRegex(result.stderr, "status 127; is pier installed there")

    def session(self, words=""):
        """Which of agent, display and terminal the remote side of a copy can use."""
        program = self.folder / "pier there"
        found = self.folder / "found"
        program.write_text('#!/bin/sh\necho "${SSH_AUTH_SOCK:+agent} ${DISPLAY:+display} '
                           '${SSH_TTY:+tty}" >"%s"\nexec "%s" "$@"\n' % (found, PIER))
        program.chmod(0o755)
        shell = self.ssh().replace("-F none", "-F '%s'" % (self.folder / "config"))
        shell = shell.replace("-o IdentityAgent=none", "")
        self.copy("--rsh", shell + words, "--remote-pier", program, self.file("source", 10),
                  "127.0.0.1:%s" % (self.folder / "x"),
                  env={"SSH_AUTH_SOCK": str(self.folder / "agent")})
        return found.read_text().split()

    def test_the_agent_is_not_forwarded(self):
        (self.folder / "config").write_text(
            "ForwardAgent yes\nForwardX11 yes\nRequestTTY force\nRemoteCommand false\n"
            "PermitLocalCommand yes\nLocalCommand echo noise\n")
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", self.folder / "agent"],
                                 stdout=subprocess.DEVNULL)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.terminate)
        self.wait_for((self.folder / "agent").exists, "no agent")
        self.assertEqual(self.session(), [])
        self.assertEqual(self.session(" -A"), ["agent"], "the user requested it")

    def test_a_restricted_key_serves_one_directory_read_only(self):
        """As shown in pier-cp(1): the client's own command is ignored."""
        inside = self.folder / "inside"
        inside.mkdir()
        (inside / "file").write_bytes(self.bytes(1000))
        source = self.file("source", 10)
        (self.folder / "authorized_keys").write_text(
            'restrict,command="\'%s\' cp --server --under \'%s\' --read-only" %s'
            % (PIER, inside, (self.folder / "user.pub").read_text()))
        there = "%s@127.0.0.1:" % getpass.getuser()
        self.copy("--rsh", self.ssh(), there + "/file", "copy")
        self.check_same(inside / "file", self.folder / "copy")
        for arguments, pattern in (((there + "../source", "x"), "leads out of the directory"),
                                   ((there + str(source), "x"), "cannot read .*No such file"),
                                   ((source, there + "x"), "the server is read-only")):
            with self.subTest(pattern):
                result = self.run_pier("cp", "--rsh", self.ssh(), "--remote-pier",
                                       PIER + " cp --server #", *arguments)
                self.check_failure(result, 1, "127.0.0.1: .*" + pattern)

    def test_a_killed_ssh_fails_the_copy(self):
        process = self.start_slowly("--rsh", self.ssh(), "--remote-pier", PIER,
                                    target="127.0.0.1:%s" % (self.folder / "copy"))
        ssh, = [p for p in self.children(process.pid)
                if re.search("ssh$", os.readlink("/proc/%d/exe" % p))]
        os.kill(ssh, 9)
        self.failure_of(process, 4, "127.0.0.1 ended .*ssh was killed by signal 9")


main()

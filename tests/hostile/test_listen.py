#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The network use of pier cp: where it listens, and where it connects to."""

import os
import re
import shutil
import signal
import struct
import subprocess

from harness import Case, MIB, PIER, PROMISE, STUB_RSH, STUB_SHELL, main, slowness

LISTEN = "0A"  # enum in the kernel's include/net/tcp_states.h


def tcp_sockets(pid):
    """The TCP sockets of a process as [(local address, state)], from proc_pid_net(5)."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            found = re.match(r"socket:\[(\d+)\]", os.readlink("/proc/%d/fd/%s" % (pid, fd)))
        except OSError:
            continue
        if found:
            inodes.add(found.group(1))
    sockets = []
    for name in "tcp", "tcp6":
        with open("/proc/%d/net/%s" % (pid, name)) as table:
            for row in list(table)[1:]:
                fields = row.split()
                if fields[9] in inodes:
                    sockets.append((fields[1], fields[3]))
    return sockets


class Network(Case):
    def environment(self, **more):
        environment = super().environment(**more)
        for name in "PIER_SOFT_ADDRESS", "PIER_SOFT_PEERS", "SSH_CONNECTION":
            if name not in more:
                environment.pop(name, None)
        return environment

    def script(self, name, text):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path


class Listen(Network):
    def look(self, *arguments, **options):
        """The TCP sockets of the client and the server during a copy."""
        process = self.start_slowly("--chunk", "64K", *arguments, **options)
        server = self.server_of(process)
        found = tcp_sockets(process.pid), tcp_sockets(server)
        process.terminate()
        process.communicate()
        return found

    def test_a_local_copy_has_no_tcp_socket(self):
        self.assertEqual(self.look(), ([], []))

    def remote(self, **more):
        return self.look("--remote-pier", PIER, target="somewhere:%s" % (self.folder / "copy"),
                         env={"PIER_RSH": STUB_RSH, **more})

    def test_only_the_server_listens_on_the_ssh_address(self):
        client, server = self.remote(SSH_CONNECTION="127.0.0.9 999 127.0.0.2 22")
        self.assertEqual(client, [])
        self.assertEqual([state for _, state in server], [LISTEN])
        self.assertRegex(server[0][0], "^(0000000000000000FFFF0000)?0200007F:")

    def test_without_an_ssh_address_the_server_listens_on_all(self):
        for connection in (None, "nonsense", "a b fe80::1%lo 22", "1 2 192.0.2.77 22"):
            with self.subTest(connection):
                client, server = self.remote(
                    **({"SSH_CONNECTION": connection} if connection else {}))
                self.assertEqual(client, [])
                self.assertEqual([state for _, state in server], [LISTEN])
                self.assertRegex(server[0][0], "^0+:")

    def test_variables_of_the_user_are_kept(self):
        client, server = self.remote(PIER_SOFT_ADDRESS="none")
        self.assertEqual((client, server), ([], []))


class Lookup(Network):
    """Looking up a host takes a bounded time, and Ctrl-C ends it."""

    def test_ctrl_c_ends_a_hanging_name_lookup(self):
        self.file("source", 1000)
        # LD_PRELOAD is split at blanks, and the path of the build may contain one.
        library = shutil.copy(os.environ["HANG_AT_LOOKUP"], self.folder)
        process = self.start("cp", "--remote-pier", PIER, "source", "somewhere:copy", env={
            "PIER_RSH": STUB_RSH, "STUB_HOME": str(self.folder), "LD_PRELOAD": library,
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"})
        self.assertEqual(process.stderr.readline(), "asked\n")
        process.send_signal(signal.SIGINT)
        result = self.finish(process, PROMISE * slowness())
        self.assertEqual(result.status, -signal.SIGINT, str(result))
        self.assertFalse((self.folder / "copy").exists())

    def test_an_ssh_without_an_answer_is_not_waited_for(self):
        source = self.file("source", 1000)
        for name, answer in (("endless", "exec yes hostname"), ("late", "exec sleep 1000"),
                             ("none", "exit 0"), ("failing", "echo hostname >&2; exit 255")):
            with self.subTest(name):
                (self.folder / name).mkdir()
                shell = self.script(name + "/ssh", '''
                    for word; do [ "$word" != -G ] || { %s; }; done
                    while [ "$1" != somewhere.invalid ]; do shift; done
                    STUB_HOST=somewhere.invalid exec "%s" "$@"\n''' % (answer, STUB_SHELL))
                result = self.copy("--rsh", shell, "--remote-pier", PIER, source,
                                   "somewhere.invalid:%s" % (self.folder / name / "copy"))
                # 5 s for ssh; a resolver whose question got lost asks again after 5 s.
                self.assertLess(result.seconds, 2 * PROMISE * slowness())


class Hosts(Network):
    """A client and a server in two network namespaces, which stand for two hosts."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("not root: no network namespaces")
        name = "pier%d" % os.getpid()
        self.near, self.far = name + "n", name + "f"
        for host in self.near, self.far:
            if subprocess.run(["ip", "netns", "add", host], capture_output=True).returncode:
                self.skipTest("no network namespaces here")
            self.addCleanup(subprocess.run, ["ip", "netns", "del", host], check=True)
        self.ip("link", "add", "v", "netns", self.near, "type", "veth", "peer", "name", "v",
                "netns", self.far)
        for host, address in (self.near, "198.51.100.1"), (self.far, "198.51.100.2"):
            self.ip("-n", host, "address", "add", address + "/24", "dev", "v")
            self.ip("-n", host, "link", "set", "v", "up")
            self.ip("-n", host, "link", "set", "lo", "up")
        self.shell = self.script("shell", '''
            while :; do
                case "$1" in
                -G) printf "user me\\nhostname $SSH_HOSTNAME\\nport 22\\n"; exit ;;
                -o*) shift ;;
                *) break ;;
                esac
            done
            shift
            export SSH_CONNECTION="198.51.100.1 1 $SERVER 22"
            tee "%s" | ip netns exec %s sh -c "$*"\n''' % (self.folder / "heard", self.far))
        self.ssh = self.folder / "ssh"
        self.ssh.symlink_to(self.shell)

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True)

    def arguments(self, host, shell=None):
        return ("--rsh", shell or self.shell, "--remote-pier", PIER, "source",
                "%s:%s" % (host, self.folder / "copy"))

    def run_there(self, *arguments, **env):
        return self.run_pier("cp", *arguments, before=("ip", "netns", "exec", self.near),
                             env={"SERVER": "198.51.100.2", "SSH_HOSTNAME": "", **env})

    def connections(self):
        """How often the client's host has opened a TCP connection (SNMP's ActiveOpens)."""
        table = subprocess.run(["ip", "netns", "exec", self.near, "cat", "/proc/net/snmp"],
                               check=True, capture_output=True, text=True).stdout
        names, values = (line.split() for line in table.splitlines() if line.startswith("Tcp:"))
        return int(values[names.index("ActiveOpens")])

    def check_heard(self):
        """Check that the server was told that connecting failed, but not why."""
        sentence = b"the client could not connect"
        words = struct.pack("<IH", 4, len(sentence)) + sentence
        heard = (self.folder / "heard").read_bytes()
        self.assertTrue(heard.endswith(struct.pack("<II", len(words), 8) + words), heard[-200:])

    def test_a_copy_between_two_hosts_connects_once(self):
        source = self.file("source", 3 * MIB + 1)
        for shell, host in ((self.shell, "198.51.100.2"), (self.ssh, "198.51.100.2"),
                            (self.ssh, "me@an-alias-of-ssh.invalid")):
            with self.subTest((shell, host)):
                result = self.run_there(*self.arguments(host, shell), SSH_HOSTNAME="198.51.100.2")
                self.assertEqual((result.status, result.stderr), (0, ""), str(result))
                self.check_same(source, self.folder / "copy")
        self.assertEqual(self.connections(), 3)

    def test_a_host_without_addresses_is_not_connected_to(self):
        """Otherwise the server could make the client connect to any port in its networks."""
        self.file("source", 1000)
        alias = "an-alias-of-ssh.invalid"
        for shell, answer in ((self.shell, "198.51.100.2"), (self.ssh, ""), (self.ssh, alias)):
            with self.subTest((shell, answer)):
                result = self.run_there(*self.arguments(alias, shell), SSH_HOSTNAME=answer)
                self.check_failure(result, 4, "PIER_SOFT_PEERS")
                self.check_heard()
        self.assertEqual(self.connections(), 0)

    def test_a_server_on_another_address_is_not_connected_to(self):
        """A server that tries to scan the client's network."""
        self.file("source", 1000)
        for shell, host in (self.shell, "198.51.100.77"), (self.ssh, "an-alias-of-ssh.invalid"):
            with self.subTest(host):
                result = self.run_there(*self.arguments(host, shell), SSH_HOSTNAME="198.51.100.77")
                self.check_failure(result, 4, "198.51.100.2 port [0-9]+.*PIER_SOFT_PEERS")
                self.check_heard()
        self.assertEqual(self.connections(), 0)
        result = self.run_there(*self.arguments("198.51.100.77"),
                                PIER_SOFT_PEERS="198.51.100.0/24")
        self.assertEqual(result.status, 0, str(result))

    def test_the_server_is_not_told_why_connecting_failed(self):
        self.file("source", 1000)
        for route, reason in ("unreachable", "No route to host"), ("prohibit", "Permission denied"):
            with self.subTest(route):
                self.ip("-n", self.near, "route", "replace", route, "198.51.100.2/32")
                result = self.run_there(*self.arguments("198.51.100.2"))
                self.check_failure(result, 4, "198.51.100.2 port [0-9]+: " + reason)
                self.check_heard()

    def test_a_server_that_does_not_listen_is_reported(self):
        self.file("source", 1000)
        result = self.run_there(*self.arguments("198.51.100.2"), PIER_SOFT_ADDRESS="none")
        self.check_failure(result, 4, "PIER_SOFT_ADDRESS")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What pier cp opens to the network: nothing for a copy on this host."""

import os
import re
import subprocess

from harness import Case, MIB, PIER, STUB_RSH, main

LISTEN = "0A"  # enum in the kernel's include/net/tcp_states.h


def tcp_sockets(pid):
    """[(local address, state)] of a process' TCP sockets, from proc_pid_net(5)."""
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


class Listen(Case):
    def look(self, *arguments, **options):
        """The TCP sockets of the client and the server of a copy that is under way."""
        process = self.start_slowly("--chunk", "64K", *arguments, **options)
        server = self.server_of(process)
        found = tcp_sockets(process.pid), tcp_sockets(server)
        process.terminate()
        process.communicate()
        return found

    def environment(self, **more):
        environment = super().environment(**more)
        for name in "PIER_SOFT_ADDRESS", "PIER_SOFT_PEERS", "SSH_CONNECTION":
            if name not in more:
                environment.pop(name, None)
        return environment

    def test_a_local_copy_has_no_tcp_socket(self):
        self.assertEqual(self.look(), ([], []))

    def remote(self, **more):
        return self.look("--remote-pier", PIER, target="somewhere:%s" % (self.folder / "copy"),
                         env={"PIER_RSH": STUB_RSH, **more})

    def test_only_the_server_listens_where_ssh_came_in(self):
        client, server = self.remote(SSH_CONNECTION="127.0.0.9 999 127.0.0.2 22")
        self.assertEqual(client, [])
        self.assertEqual([state for _, state in server], [LISTEN])
        self.assertRegex(server[0][0], "^(0000000000000000FFFF0000)?0200007F:")

    def test_another_shell_leaves_no_address(self):
        for connection in (None, "nonsense", "a b fe80::1%lo 22", "1 2 192.0.2.77 22"):
            with self.subTest(connection):
                client, server = self.remote(
                    **({"SSH_CONNECTION": connection} if connection else {}))
                self.assertEqual(client, [])
                self.assertEqual([state for _, state in server], [LISTEN])
                self.assertRegex(server[0][0], "^0+:")

    def test_what_the_user_set_stays(self):
        client, server = self.remote(PIER_SOFT_ADDRESS="none")
        self.assertEqual((client, server), ([], []))


class Hosts(Case):
    """A client and a server on two hosts, played by two network namespaces."""

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
        self.shell = self.folder / "shell"
        self.shell.write_text('#!/bin/sh\nshift\nexport SSH_CONNECTION="198.51.100.1 1 $SERVER 22"\n'
                              'exec ip netns exec %s sh -c "$*"\n' % self.far)
        self.shell.chmod(0o755)

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True)

    def arguments(self, host):
        return ("--rsh", self.shell, "--remote-pier", PIER, "source",
                "%s:%s" % (host, self.folder / "copy"))

    def run_there(self, *arguments, **env):
        return self.run_pier("cp", *arguments, before=("ip", "netns", "exec", self.near),
                             env={"SERVER": "198.51.100.2", **env})

    def test_copy(self):
        source = self.file("source", 3 * MIB + 1)
        for host in "198.51.100.2", "an-alias-of-ssh":
            result = self.run_there(*self.arguments(host))
            self.assertEqual((result.status, result.stderr), (0, ""), str(result))
            self.check_same(source, self.folder / "copy")

    def test_a_server_that_is_elsewhere_is_not_called(self):
        """As of one that has the client look for open ports in its network."""
        self.file("source", 1000)
        result = self.run_there(*self.arguments("198.51.100.77"))
        self.check_failure(result, 4, "198.51.100.2 port [0-9]+.*PIER_SOFT_PEERS")
        result = self.run_there(*self.arguments("198.51.100.77"),
                                PIER_SOFT_PEERS="198.51.100.0/24")
        self.assertEqual(result.status, 0, str(result))

    def test_nobody_listens(self):
        self.file("source", 1000)
        result = self.run_there(*self.arguments("198.51.100.2"), PIER_SOFT_ADDRESS="none")
        self.check_failure(result, 4, "PIER_SOFT_ADDRESS")


main()

# SPDX-License-Identifier: BSD-3-Clause
"""Two network namespaces whose only connection passes through this process: no netem is needed."""

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import threading

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454ca, 1, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 32000
RAILS = 2


class Unavailable(Exception):
    """Namespaces or TUN devices cannot be had; the text is the reason."""


class Link:
    """Side S has the address 10.9.R.(S + 1) on the device tunR, for each rail R."""

    def __init__(self):
        self.blocked = set()  # (rail, side): packets that this side sends on this rail are lost
        self.devices, self.holders = {}, []
        self.stop_reading, self.stop_writing = os.pipe()
        self.problem, ready = None, threading.Event()
        self.thread = threading.Thread(target=self.run, args=[ready], daemon=True)
        self.thread.start()
        ready.wait()
        if self.problem:
            self.close()
            raise Unavailable(self.problem)

    def make_side(self, side):
        # Only this thread changes its namespace, and what it starts inherits that.
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
        # UCX looks for the devices in /sys, which shows those of the namespace that mounted it.
        holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", "mount -t sysfs sysfs /sys && echo && exec cat"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holders.append(holder)
        if not holder.stdout.readline():
            raise OSError("no /sys can be mounted")
        commands = [["link", "set", "lo", "up"]]
        for rail in range(RAILS):
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            self.devices[rail, side] = fd
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"tun%d" % rail, IFF_TUN | IFF_NO_PI))
            commands += [["addr", "add", self.address(side, rail) + "/24", "dev", "tun%d" % rail],
                         ["link", "set", "tun%d" % rail, "mtu", str(MTU), "up"]]
        for command in commands:
            subprocess.run(["ip", *command], check=True, capture_output=True)

    def run(self, ready):
        try:
            self.make_side(0)
            self.make_side(1)
        except (OSError, subprocess.CalledProcessError) as problem:
            self.problem = str(problem)
        ready.set()
        if not self.problem:
            self.forward()

    def forward(self):
        sources = {fd: place for place, fd in self.devices.items()}
        while True:
            readable, _, _ = select.select([*sources, self.stop_reading], [], [])
            if self.stop_reading in readable:
                return
            for fd in readable:
                packet = os.read(fd, 65536)
                rail, side = sources[fd]
                if (rail, side) not in self.blocked:
                    os.write(self.devices[rail, 1 - side], packet)

    def address(self, side, rail=0):
        return "10.9.%d.%d" % (rail, side + 1)

    def enter(self, side):
        """The beginning of a command that runs on this side."""
        return ["nsenter", "--target", str(self.holders[side].pid), "--net", "--mount"]

    def block(self, *sides, rails=range(RAILS)):
        self.blocked = {(rail, side) for rail in rails for side in sides}

    def close(self):
        os.write(self.stop_writing, b"x")
        self.thread.join()
        for holder in self.holders:
            holder.stdin.close()
            holder.wait()
            holder.stdout.close()
        for fd in [self.stop_reading, self.stop_writing, *self.devices.values()]:
            os.close(fd)

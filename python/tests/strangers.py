# SPDX-License-Identifier: BSD-3-Clause
"""What every listener of pier must stand from strangers: callers that do not have its token.

The listener is in another process, so that its descriptors can be counted and limited.
"""

import contextlib
import os
import resource
import select
import threading
import time

from support import PATIENCE

CROWD = 200
# A listener serves so many strangers at once. The others are for a client, and what the process opens meanwhile.
BOUND = 64 + 16


class Strangers:
    """Mix it into a case, which has

    pid        of the process that listens
    dial()     a new socket, connected to the listener
    call()     gets through to the listener, with the token, or raises OSError or AssertionError
    """

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.pid))

    def crowd(self):
        sockets = []
        self.addCleanup(lambda: [sock.close() for sock in sockets])
        for _ in range(CROWD):
            sockets.append(self.dial())
        return sockets

    def call_until(self, deadline):
        while True:
            try:
                return self.call()
            except (OSError, AssertionError):
                if time.monotonic() > deadline:
                    raise

    def test_silent_crowd_takes_few_descriptors_and_keeps_nobody_out(self):
        self.call()
        before = self.descriptors()
        crowd = self.crowd()
        self.call()
        self.assertLessEqual(self.descriptors(), before + BOUND)
        for sock in crowd[:CROWD // 2]:
            with contextlib.suppress(OSError):
                sock.send(b"x")  # still no proof
        self.call()
        self.assertLessEqual(self.descriptors(), before + BOUND)

    def test_crowd_that_comes_back_keeps_nobody_out(self):
        self.call()
        before = self.descriptors()
        crowd, over = self.crowd(), threading.Event()

        def come_back():
            poll = select.poll()
            known = {sock.fileno(): sock for sock in crowd}
            for number in known:
                poll.register(number, select.POLLIN | select.POLLRDHUP)
            while not over.wait(0.001):
                for number, _ in poll.poll(100):
                    with contextlib.suppress(OSError):
                        if known[number].recv(4096):
                            continue
                    poll.unregister(number)
                    known.pop(number).close()
                    with contextlib.suppress(OSError):
                        crowd.append(self.dial())
                        known[crowd[-1].fileno()] = crowd[-1]
                        poll.register(crowd[-1], select.POLLIN | select.POLLRDHUP)

        thread = threading.Thread(target=come_back)
        thread.start()
        try:
            self.call_until(time.monotonic() + PATIENCE)
            self.assertLessEqual(self.descriptors(), before + BOUND)
        finally:
            over.set()
            thread.join()

    def test_listener_without_descriptors_comes_back(self):
        self.call()
        limits = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (self.descriptors(), limits[1]))
        crowd = [self.dial() for _ in range(3)]
        for sock in crowd:
            sock.close()
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, limits)
        self.call_until(time.monotonic() + PATIENCE)

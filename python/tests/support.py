# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of the extension share: a domain of soft0, and that nothing is left behind."""

import gc
import importlib
import os
import signal
import unittest

import pier

# In seconds: longer than anything takes that does not hang.
PATIENCE = 60 * float(os.environ.get("PIER_TEST_SLOWNESS", "1"))


def module_or_skip(name):
    """A module that this interpreter may not have; the case is then skipped."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise unittest.SkipTest("%s: %s" % (name, error)) from None


def open_fds():
    return len(os.listdir("/proc/self/fd"))


class Case(unittest.TestCase):
    """Each case must leave no object of the library and no fd."""

    DEVICE = "soft0"

    def setUp(self):
        gc.collect()
        self.objects_before = pier.live_objects()
        self.fds_before = open_fds()
        self.addCleanup(self.check_nothing_left)
        self.device = pier.Device(self.DEVICE)
        self.addCleanup(self.device.close)
        self.pd = pier.ProtectionDomain(self.device)
        self.addCleanup(self.pd.close)

    def check_nothing_left(self):
        gc.collect()
        self.assertEqual(pier.live_objects(), self.objects_before)
        self.assertEqual(open_fds(), self.fds_before)

    def buffer(self, length=4096, memory="memfd"):
        buffer = pier.Buffer(memory, length)
        self.addCleanup(buffer.close)
        return buffer

    def in_child(self, function):
        """Run it in a child of fork(), whose exception or result comes back as text."""
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(int(PATIENCE))
            try:
                text = repr(function())
            except BaseException as error:
                text = "%s: %s" % (type(error).__name__, error)
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as stream:
            text = stream.read().decode()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        return text

# SPDX-License-Identifier: BSD-3-Clause
"""Devices, protection domains, lists, errors, and what every class has in common."""

import contextlib
import errno
import gc
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest

import pier
import pier.data
from support import PATIENCE, Case


class Lists(unittest.TestCase):
    def test_devices_end_with_soft0(self):
        self.assertEqual(pier.devices()[-1], pier.DeviceInfo("soft0", "soft"))

    def test_backends_tell_why_they_do_not_work(self):
        backends = {backend.name: backend for backend in pier.backends()}
        self.assertTrue(backends["memfd"].available)
        for backend in backends.values():
            self.assertTrue(backend.available or backend.detail, backend)

    def test_warm_up_of_unknown_memory_is_refused(self):
        pier.warm_up("memfd")
        with self.assertRaisesRegex(pier.NoDevice, "no memory backend"):
            pier.warm_up("nonsense")


class Errors(unittest.TestCase):
    # Each with the errno that its sentence has, and the class of Python that it also is.
    BUILTINS = {pier.TimedOut: TimeoutError, pier.ConnectionLost: ConnectionError,
                pier.AccessDenied: PermissionError, pier.OutOfRange: ValueError,
                pier.Invalid: ValueError, pier.Forked: ChildProcessError, pier.NoMemory: MemoryError}

    def test_classes_are_those_of_python_too(self):
        for kind, builtin in self.BUILTINS.items():
            self.assertTrue(issubclass(kind, builtin) and issubclass(kind, pier.Error), kind)
        self.assertTrue(issubclass(pier.Error, OSError))

    def test_an_error_has_errno_and_sentence(self):
        with self.assertRaises(pier.NoDevice) as caught:
            pier.Device("nonsense")
        self.assertEqual(caught.exception.errno, errno.ENODEV)
        self.assertIn("nonsense", caught.exception.strerror)

    def test_an_error_survives_pickle(self):
        error = pier.Busy(errno.EBUSY, "in use")
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(copy), copy.errno, copy.strerror), (pier.Busy, errno.EBUSY, "in use"))


class Devices(Case):
    def test_attributes_are_the_devices(self):
        self.assertEqual(self.device.name, "soft0")
        self.assertEqual(self.device.attributes.provider, "soft")
        self.assertEqual(self.device.attributes.port_count, 1)
        port = self.device.port()
        self.assertTrue(port.active)
        self.assertEqual(port.link_layer, "ethernet")
        with self.assertRaises(pier.Invalid):
            self.device.port(2)
        with self.assertRaises(OverflowError):
            self.device.port((1 << 32) + 1)

    def test_device_with_domains_is_busy(self):
        with self.assertRaisesRegex(pier.Busy, "1 protection domain"):
            self.device.close()
        self.assertFalse(self.device.closed)
        self.assertEqual(self.device.name, "soft0")

    def test_close_again_does_nothing(self):
        device = pier.Device("soft0")
        device.close()
        device.close()
        self.assertTrue(device.closed)
        for use in (lambda: device.name, lambda: device.attributes, device.port,
                    lambda: pier.ProtectionDomain(device)):
            with self.assertRaisesRegex(ValueError, "the device is closed"):
                use()

    def test_wrong_types_are_refused(self):
        for wrong in (3, b"soft0", ["soft0"]):
            with self.assertRaises(TypeError):
                pier.Device(wrong)
            with self.assertRaises(TypeError):
                pier.ProtectionDomain(wrong)
        with self.assertRaises(ValueError):
            pier.Device("soft0\0")

    def test_fault_plan_fails_chosen_calls(self):
        with pier.Device("fault:alloc_pd@1=ENOMEM:soft0") as device:
            with self.assertRaises(pier.NoMemory):
                pier.ProtectionDomain(device)


class Domains(Case):
    def test_domain_closes_the_device_that_it_opened(self):
        with pier.ProtectionDomain("soft0") as domain:
            device = domain.device
            self.assertEqual(device.name, "soft0")
        self.assertTrue(domain.closed and device.closed)

    def test_domain_leaves_the_device_that_it_was_given(self):
        pier.ProtectionDomain(self.device).close()
        self.assertFalse(self.device.closed)

    def test_domain_with_regions_is_busy(self):
        region = self.pd.register(bytearray(64))
        with self.assertRaisesRegex(pier.Busy, "1 region"):
            self.pd.close()
        region.close()

    def test_error_of_close_does_not_replace_that_of_the_block(self):
        region = None
        with self.assertRaises(ZeroDivisionError):
            with pier.ProtectionDomain(self.device) as domain:
                region = domain.register(bytearray(64))
                raise ZeroDivisionError
        self.assertFalse(domain.closed)
        region.close()
        domain.close()

    def test_collection_in_any_order_is_safe(self):
        for last in range(3):
            device = pier.Device("soft0")
            domain = pier.ProtectionDomain(device)
            objects = [device, domain, domain.register(bytearray(64))]
            kept = objects[last]
            del device, domain, objects
            gc.collect()
            del kept
            gc.collect()
            self.assertEqual(pier.live_objects(),
                             {"device": 1, "protection domain": 1} | self.objects_before)

    def test_threads_use_a_domain_at_once(self):
        failures = []

        def register():
            try:
                for _ in range(200):
                    with self.pd.register(bytearray(4096)) as region:
                        region.sync_for_nic()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=register) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


def open_links():
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            links.append(os.readlink("/proc/self/fd/" + number))
    return links


class Fork(Case):
    def test_child_cannot_use_what_is_the_parents(self):
        region = self.pd.register(bytearray(64))
        for use in (self.device.close, self.pd.close, region.close,
                    lambda: pier.ProtectionDomain(self.device), lambda: self.pd.register(bytearray(64)),
                    region.sync_for_nic, lambda: self.device.attributes):
            self.assertRegex(self.in_child(use), "^Forked: .*parent")
        region.close()

    def test_child_opens_its_own(self):
        def work():
            with pier.ProtectionDomain("soft0") as domain, domain.register(bytearray(64)) as region:
                return len(region)
        self.assertEqual(self.in_child(work), "64")

    def test_collection_in_the_child_harms_no_one(self):
        objects = [self.pd.register(bytearray(64)), pier.Buffer("memfd", 4096), pier.Buffer("memfd", 4096)]
        objects.append(self.pd.register(objects[1]))

        def work():
            objects.clear()
            return gc.collect() >= 0
        self.assertEqual(self.in_child(work), "True")
        self.assertEqual(len(objects[0]), 64)
        objects[1].copy_to(0, b"parent")
        for thing in reversed(objects):
            thing.close()
        objects.clear()

    def test_memory_with_an_fd_is_shared_with_the_child(self):
        buffer = self.buffer()
        self.assertEqual(self.in_child(lambda: buffer.copy_to(0, b"child")), "None")
        self.assertEqual(buffer.copy_from(0, 5), b"child")


# A server whose child, of fork(), outlives it until standard input ends.
OUTLIVED = """
import os, pier, pier.data, sys
store = pier.TCPStore("127.0.0.1", 0, serve=True, token="token")
with pier.data.Server(sys.argv[1], token="token") as server:
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print(server.url, store.port, flush=True)
    sys.stdin.read()
"""


class ForkedServers(Case):
    """What is the parent's in Python, too: a child uses and ends nothing of it, and keeps nothing open."""

    def setUp(self):
        super().setUp()
        self.file = tempfile.NamedTemporaryFile(prefix="pier-test-")
        self.addCleanup(self.file.close)
        self.file.write(bytes(1000))
        self.file.flush()

    def serve(self):
        server = pier.data.Server(self.file.name, pd=self.pd, token="token")
        self.addCleanup(server.close)
        return server

    def leave(self, thing):
        """A child leaves the block, and another one has nothing left of it."""
        def block():
            with thing:
                pass
            gc.collect()
        self.assertEqual(self.in_child(block), "None")
        before = sum(link.startswith("socket:") for link in open_links())
        self.assertLess(int(self.in_child(lambda: sum(link.startswith("socket:") for link in open_links()))), before)

    def test_child_leaves_the_parents_server(self):
        server = self.serve()
        with pier.data.connect(server.url, self.pd) as client:
            self.leave(server)
            self.assertEqual(self.in_child(lambda: server.url), repr(server.url))
            self.assertRegex(self.in_child(server.compute_checksums), "^Forked")
            with server._door._change:
                self.assertRegex(self.in_child(lambda: server.clients), "^Forked")
            client.ping(PATIENCE)
            with pier.data.connect(server.url, self.pd) as another:
                another.ping(PATIENCE)

    def test_child_leaves_the_parents_connection(self):
        with pier.data.connect(self.serve().url, self.pd) as client:
            with client._lock:  # as another thread may have it
                self.leave(client)
                for call in (client.ping, client.check):
                    self.assertRegex(self.in_child(call), "^Forked")
            client.ping(PATIENCE)

    def test_child_leaves_the_parents_loader(self):
        with pier.data.Loader(self.serve().url, 1, device=self.pd, timeout=PATIENCE) as loader:
            with loader._lock:
                self.leave(loader)
                self.assertRegex(self.in_child(lambda: next(iter(loader))), "^Forked")
                self.assertRegex(self.in_child(lambda: loader.set_epoch(3)), "^Forked")
            with next(iter(loader)) as batch:
                self.assertEqual(len(batch.keys), 1)

    def test_child_leaves_the_parents_store(self):
        with pier.TCPStore("127.0.0.1", 0, serve=True, token="token", timeout=PATIENCE) as store:
            store.set("key", b"value")
            with store._lock:
                self.leave(store)
                self.assertRegex(self.in_child(lambda: store.get("key")), "^Forked")
            self.assertEqual(store.get("key"), b"value")
            with pier.TCPStore("127.0.0.1", store.port, token="token", timeout=PATIENCE) as another:
                self.leave(another)
                self.assertEqual(another.get("key"), b"value")

    def test_end_of_a_server_is_seen_although_its_child_lives(self):
        program = subprocess.Popen([sys.executable, "-c", OUTLIVED, self.file.name], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        with program:
            url, port = program.stdout.readline().split()
            with pier.TCPStore("127.0.0.1", int(port), token="token", timeout=PATIENCE) as store, \
                    pier.data.connect(url, self.pd) as client:
                program.kill()
                self.assertRaises(pier.ConnectionLost, client.ping, PATIENCE)
                self.assertRaises(pier.ConnectionLost, store.get, "key")
                self.assertRaises(pier.ConnectionLost, pier.data.connect, url, self.pd)


class Interpreter(unittest.TestCase):
    def test_module_is_for_one_interpreter(self):
        import sys
        names = [name for name in sys.modules if name.split(".")[0] == "pier"]
        modules = {name: sys.modules.pop(name) for name in names}
        try:
            with self.assertRaises(ImportError):
                import pier as second  # noqa: F401
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "pier"]:
                del sys.modules[name]
            sys.modules.update(modules)

    def test_docstrings_are_there(self):
        for name in dir(pier._pier):
            value = getattr(pier._pier, name)
            if not name.startswith("_"):
                self.assertTrue(value.__doc__, name)


if __name__ == "__main__":
    unittest.main(verbosity=int(os.environ.get("VERBOSE", "1")))

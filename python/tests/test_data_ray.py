#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier.data.ray: servers and loaders on a cluster of several Ray nodes, which this machine plays."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import pier
import serving
import test_documents

try:
    import ray
    import ray.cluster_utils
except ImportError:
    ray = None
else:
    import pier.data.ray
SEED = serving.SEED
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/python/ray_cluster.py"
STORE = 80 << 20


def process_of(batch):
    """Called in the loader's process."""
    return os.getpid(), list(batch.samples), [bytes(view) for view in batch]


def kill_once(path, after):
    """A function for run() that kills its process in the middle of an epoch, once."""
    def consume(batch):
        if batch.number == after and not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return list(batch.samples)

    return consume


@unittest.skipUnless(ray, "Ray is not installed")
class Cluster(serving.Case):
    """Three nodes: two have the data set."""

    @classmethod
    def setUpClass(cls):
        os.environ["PIER_DEVICE"] = "soft0"
        os.environ.pop("PIER_DATA_TOKEN", None)
        # Short: it is a part of the names of sockets.
        os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="r-")
        cls.addClassCleanup(shutil.rmtree, os.environ["RAY_TMPDIR"])
        # Python's path of this process, for the actors.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        cls.cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={
            "num_cpus": 4, "object_store_memory": STORE, "include_dashboard": False})
        cls.addClassCleanup(cls.cluster.shutdown)
        for _ in range(2):
            cls.cluster.add_node(num_cpus=2, object_store_memory=STORE, resources={"data": 1})
        # Ray reports killed actors on standard output, which belongs to the results of the cases.
        silence = unittest.mock.patch("ray._private.worker.print_to_stdstream", create=True)
        silence.start()
        cls.addClassCleanup(silence.stop)
        ray.init(address=cls.cluster.address, namespace="pier", log_to_driver=False)
        cls.addClassCleanup(ray.shutdown)

    def setUp(self):
        super().setUp()
        os.environ.pop("PIER_DATA_TOKEN", None)

    def start_servers(self, name, **options):
        servers = pier.data.ray.start_servers(name, [self.folder / "data"], 2, resources={"data": 1},
                                              strategy="STRICT_SPREAD", **options)
        self.addCleanup(servers.stop)
        return servers

    def start_loaders(self, name, count, **options):
        loaders = pier.data.ray.start_loaders(name, 8, count, num_cpus=1, seed=SEED, **options)
        self.addCleanup(loaders.stop)
        return loaders

    def remove_node(self, node):
        if node in self.cluster.worker_nodes:
            self.cluster.remove_node(node)

    def test_servers_are_placed_on_nodes_and_found_by_name(self):
        servers = self.start_servers("found")
        urls = pier.data.ray.server_urls("found")
        self.assertEqual(len(set(urls)), 2)
        nodes = ray.get([server.node.remote() for server in servers])
        self.assertEqual(len(set(nodes)), 2)
        for url in urls:
            with pier.data.connect(url) as connection:
                self.assertEqual(len(connection.index), self.COUNT)
        with self.assertRaisesRegex(LookupError, "no server of the name 'other' runs"):
            pier.data.ray.server_urls("other", timeout=0.1)
        with self.assertRaises(ValueError):
            self.start_servers("found")

    def test_killed_server_is_restarted_and_found_again(self):
        servers = self.start_servers("restarted")
        before = dict(zip(servers, ray.get([server.url.remote() for server in servers])))
        os.kill(ray.get(servers[0].process.remote()), signal.SIGKILL)
        self.wait_for(lambda: ray.get(servers[0].url.remote()) != before[servers[0]], "it is not restarted")
        urls = pier.data.ray.server_urls("restarted")
        self.assertIn(ray.get(servers[0].url.remote()), urls)
        with pier.data.connect(ray.get(servers[0].url.remote())) as connection:
            self.assertEqual(len(connection.index), self.COUNT)

    def test_loaders_read_every_sample_once(self):
        self.start_servers("read")
        loaders = self.start_loaders("read", 2)
        done = ray.get([loader.run.remote(process_of, None) for loader in loaders])
        self.assertEqual(len({pid for results, _ in done for pid, _, _ in results}), 2)
        found = {}
        for results, _ in done:
            for _, samples, contents in results:
                found.update(zip(samples, contents))
        self.assertEqual(sorted(found), list(range(self.COUNT)))
        for sample, (_, body, _) in enumerate(self.contents):
            self.assertTrue(found[sample].startswith(body))

    def test_killed_loader_repeats_its_part(self):
        self.start_servers("repeated")
        loader, = self.start_loaders("repeated", 1)
        whole, _ = ray.get(loader.run.remote(kill_once("/nonexistent/x", 10 ** 9), None))
        loaders = self.start_loaders("repeated", 1)
        first, state = ray.get(loaders[0].run.remote(kill_once("/nonexistent/x", 10 ** 9), None, 4))
        rest, _ = ray.get(loaders[0].run.remote(kill_once(str(self.folder / "killed"), 7), state))
        self.assertTrue((self.folder / "killed").exists())
        self.assertEqual(first + rest, whole)

    def test_server_killed_in_mid_epoch(self):
        servers = self.start_servers("failover")
        loader, = self.start_loaders("failover", 1)
        whole, _ = ray.get(loader.run.remote(samples_of, None))
        loader, = self.start_loaders("failover", 1)
        first, state = ray.get(loader.run.remote(samples_of, None, 3))
        os.kill(ray.get(servers[0].process.remote()), signal.SIGKILL)
        rest, _ = ray.get(loader.run.remote(samples_of, state))
        self.assertEqual(first + rest, whole)

    def test_all_servers_killed_and_restarted(self):
        servers = self.start_servers("all")
        loader, = self.start_loaders("all", 1)
        first, state = ray.get(loader.run.remote(samples_of, None, 3))
        for pid in ray.get([server.process.remote() for server in servers]):
            os.kill(pid, signal.SIGKILL)
        rest, _ = ray.get(loader.run.remote(samples_of, state))
        self.assertEqual(sorted(sum(first + rest, [])), list(range(self.COUNT)))

    def test_node_that_dies(self):
        nodes = {}
        for _ in range(2):
            node = self.cluster.add_node(num_cpus=2, object_store_memory=STORE, resources={"spare": 1})
            self.addCleanup(self.remove_node, node)
            nodes[node.node_id] = node
        servers = pier.data.ray.start_servers("moved", [self.folder / "data"], resources={"spare": 1})
        self.addCleanup(servers.stop)
        loader, = self.start_loaders("moved", 1, resources={"data": 1})
        whole, _ = ray.get(loader.run.remote(samples_of, None))
        loader, = self.start_loaders("moved", 1, resources={"data": 1})
        first, state = ray.get(loader.run.remote(samples_of, None, 3))
        place = ray.get(servers[0].node.remote())
        self.remove_node(nodes[place])
        rest, _ = ray.get(loader.run.remote(samples_of, state))
        self.assertEqual(first + rest, whole)
        self.assertNotEqual(ray.get(servers[0].node.remote()), place)

    def test_example_of_the_documentation(self):
        block = test_documents.example("docs/data.md", "start_loaders")
        for old, new in (("cuda:0", "memfd"), ("/data/imagenet", str(self.folder / "data")), ("count=4", "count=2"),
                         ("count=8, num_gpus=1", "count=2, num_cpus=1")):
            self.assertIn(old, block)
            block = block.replace(old, new)
        names = {"pier": pier, "ray": ray, "train": samples_of}
        exec(block, names)
        self.addCleanup(names["servers"].stop)
        self.addCleanup(names["loaders"].stop)
        found = [sample for batches, _ in names["results"] for batch in batches for sample in batch]
        self.assertEqual(sorted(found), list(range(self.COUNT)))

    def test_example(self):
        address = self.cluster.address
        done = subprocess.run([sys.executable, "-B", EXAMPLE, self.folder / "data", "2", "2"], text=True,
                              env={**os.environ, "RAY_ADDRESS": address}, timeout=serving.PATIENCE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"epoch 0: \d+ batches, (\d+) bytes\nepoch 1: \d+ batches, \1 bytes\n")


def samples_of(batch):
    return list(batch.samples)


if __name__ == "__main__":
    serving.main()

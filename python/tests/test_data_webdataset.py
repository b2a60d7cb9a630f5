#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier.data.webdataset: streams of shards in pipelines of webdataset."""

import contextlib
import gc
import unittest

import pier
import serving

try:
    import webdataset
except ImportError:
    webdataset = None
else:
    import pier.data.webdataset
SEED = serving.SEED


@unittest.skipUnless(webdataset, "webdataset is not installed")
class WebDataset(serving.Case):
    def test_samples_of_all_shards(self):
        server = self.serve()
        urls = pier.data.webdataset.shards(server.url)
        self.assertEqual([url.rpartition("/")[2] for url in urls], ["0.tar", "1.tar"])
        dataset = webdataset.WebDataset(urls, shardshuffle=False).decode()
        found = [(sample["__key__"], sample["bin"], sample["cls"]) for sample in dataset]
        self.assertEqual(found, self.contents)

    def test_stream_has_the_bytes_of_the_file(self):
        # More than both chunks, and not a multiple of one.
        path = self.folder / "large \u00e4.bin"
        path.write_bytes(self.random.randbytes(3 * pier.data.webdataset._CHUNK + 12345))
        server = self.serve(path)
        url, = pier.data.webdataset.shards(server.url)
        self.assertTrue(url.endswith("/large%20%C3%A4.bin"))
        for size in (-1, 10240, 1 << 20, pier.data.webdataset._CHUNK + 1):
            with pier.data.webdataset.open_shard(url) as stream:
                content = b"".join(iter(lambda size=size, stream=stream: stream.read(size), b""))
            self.assertTrue(content == path.read_bytes(), "with reads of %d bytes" % size)

    def test_closed_streams_leave_nothing(self):
        server = self.serve()
        url = pier.data.webdataset.shards(server.url)[0]
        pier.data.webdataset.open_shard(url).close()
        gc.collect()
        before = serving.count_descriptors()
        for _ in range(10):
            with pier.data.webdataset.open_shard(url) as stream:
                stream.read(100)
            stream.close()
        self.assertEqual(serving.count_descriptors(), before)

    def test_refusals(self):
        server = self.serve()
        url = pier.data.webdataset.shards(server.url)[0]
        with self.assertRaisesRegex(pier.Invalid, "has no shard 'x.tar'"):
            pier.data.webdataset.open_shard(url.replace("0.tar", "x.tar"))
        with self.assertRaisesRegex(ValueError, "can only be read"):
            pier.data.webdataset.open_shard(url, "wb")

    def test_killed_server_ends_the_stream_with_an_error(self):
        path = self.folder / "large"
        path.write_bytes(bytes(8 * pier.data.webdataset._CHUNK))
        server = self.serve(path)
        url, = pier.data.webdataset.shards(server.url)
        stream = pier.data.webdataset.open_shard(url)
        with contextlib.closing(stream):
            stream.read(1)
            server.kill()
            with self.assertRaises(pier.Error):
                while stream.read(1 << 20):
                    pass
        with self.assertRaises(pier.ConnectionLost):
            pier.data.webdataset.open_shard(url)


if __name__ == "__main__":
    serving.main()

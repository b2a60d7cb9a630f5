#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier.data.spdl: batches through pipelines of SPDL."""

import pickle
import threading
import unittest

import pier.data.spdl
import serving
from pier.data.loader import Loader

try:
    from spdl.pipeline import PipelineBuilder
except ImportError:
    PipelineBuilder = None
SEED = serving.SEED


def decode(views):
    """Stands for a decoder, which runs in the threads of the pipeline."""
    body, label = views
    return bytes(body), int(bytes(label))


@unittest.skipUnless(PipelineBuilder, "SPDL is not installed")
class Spdl(serving.Case):
    def source(self, **options):
        source = pier.data.spdl.Source([self.serve().url], 8, seed=SEED, **options)
        self.addCleanup(source.close)
        return source

    def pipeline(self, source, **options):
        return (PipelineBuilder().add_source(source, **options).pipe(pier.data.spdl.Fields("bin", "cls"))
                .disaggregate().pipe(decode, concurrency=4, output_order="input").add_sink(4).build(num_threads=4))

    def expected(self, loader, epoch):
        loader.set_epoch(epoch)
        return [self.contents[sample][1:] for batch in loader for sample in list(batch.samples)]

    def test_every_sample_arrives_in_the_order_of_the_loader(self):
        source = self.source()
        next(iter(source))
        # The process of the pipeline gets a copy, which makes connections of its own.
        source = pickle.loads(pickle.dumps(source))
        self.addCleanup(source.close)
        for epoch in range(2):
            pipeline = self.pipeline(source)
            with pipeline.auto_stop():
                found = list(pipeline)
            self.assertEqual(sorted(found), sorted(content[1:] for content in self.contents))
            with Loader(source._arguments[0], 8, seed=SEED) as loader:
                self.assertEqual(found, self.expected(loader, epoch))
        self.assertEqual(source.loader.stats()["copies"], 0)

    def test_slots_come_back_to_the_loader(self):
        # More batches than slots: it would stop if a stage kept views.
        source = self.source(slots=2, timeout=serving.PATIENCE)
        pipeline = self.pipeline(source)
        with pipeline.auto_stop():
            self.assertEqual(len(list(pipeline)), self.COUNT)

    def test_pipeline_that_is_stopped_early_ends(self):
        source = self.source(slots=3)
        threads = threading.active_count()
        pipeline = self.pipeline(source, continuous=True)
        with pipeline.auto_stop():
            for _ in range(5):
                pipeline.get_item(timeout=serving.PATIENCE)
        del pipeline
        source.close()
        self.wait_for(lambda: threading.active_count() <= threads, "threads are left")

    def test_stage_releases_the_batch(self):
        batch = next(iter(self.source()))
        views = pier.data.spdl.Fields("cls", "bin")(batch)
        self.assertFalse(batch.is_held)
        self.assertEqual([bytes(body) for _, body in views], [self.contents[n][1] for n in batch.samples])

    def test_unknown_field(self):
        source = self.source()
        with self.assertRaises(KeyError):
            pier.data.spdl.Fields("jpg")(next(iter(source)))


if __name__ == "__main__":
    serving.main()

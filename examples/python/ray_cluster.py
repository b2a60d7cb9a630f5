#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A data set on a Ray cluster: servers on some nodes, loaders on others.

    ray_cluster.py FOLDER [SERVERS [LOADERS]]

Run it on a node of a cluster, whose nodes with the data set were started with --resources='{"data": 1}'. Without a
cluster, Ray starts one on this machine.
"""

import sys

import ray

import pier.data.ray


def count_bytes(batch):
    """Stands for a step of the training: it runs in the process of the loader, beside its GPU."""
    return sum(batch.lengths)


def main():
    folder, servers, loaders = (sys.argv[1:] + ["1", "1"])[:3]
    # PIER_DEVICE and the like reach the actors.
    ray.init(ignore_reinit_error=True)
    resources = {"data": 1} if ray.cluster_resources().get("data") else None
    started = pier.data.ray.start_servers("example", [folder], int(servers), resources=resources)
    workers = pier.data.ray.start_loaders("example", 32, int(loaders), num_cpus=0.5, seed=1)
    states = [None] * len(workers)
    for epoch in range(2):
        done = ray.get([worker.run.remote(count_bytes, state) for worker, state in zip(workers, states)])
        states = [state for _, state in done]
        print("epoch %d: %d batches, %d bytes" % (epoch, sum(len(results) for results, _ in done),
                                                  sum(sum(results) for results, _ in done)), flush=True)
    workers.stop()
    started.stop()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: BSD-3-Clause
"""Runs the contestants of loader_peers.py in turn."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import loader_data
import loader_plot

BATCH, SAMPLES = 32, loader_data.SAMPLES
ROUNDS = 7
# How much longer than its share of the fastest epoch the consumer computes with each batch.
LONGER = 1.5
DEADLINE = 120  # seconds, for one contestant
PEERS = {
    "pier": "pier's loader",
    "tcp": "TCP + sendfile, blocking",
    "tcp-ahead": "TCP + sendfile, a batch ahead",
    "nixl": "NIXL's UCX",
    "nixl-thread": "NIXL's UCX, progress thread",
}


def run_contestant(name, folder, compute, environment):
    command = [sys.executable, "-B", str(pathlib.Path(__file__).with_name("loader_peers.py")),
               name, str(folder), str(BATCH), repr(compute)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=DEADLINE, check=False)
    if done.returncode:
        sys.exit(f"bench: {' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def count_late(waits, compute):
    """Batches after the first one that the consumer waited for, a tenth of computing or longer."""
    return sum(wait > compute / 10 for wait in waits[1:])


def measure(build, rounds, environments):
    """Yield (name, figures) of each contestant in turn. environments: by name."""
    with tempfile.TemporaryDirectory(prefix="loader-", dir=build) as folder:
        loader_data.make_dataset(folder)  # which leaves it in the page cache
        os.sync()  # nothing is written to the disk while contestants run
        first = run_contestant("pier", folder, 0, environments["pier"])
        compute = LONGER * first["seconds"] / (SAMPLES / BATCH)
        for _ in range(rounds):
            for name in environments:
                figures = run_contestant(name, folder, compute, environments[name])
                late = count_late(figures["waits"], compute)
                yield name, dict(figures, compute=compute, late=late)


def write_plot(build, found):
    """Of the round in which pier's loader had its median wait."""
    path = pathlib.Path(build) / "loader-waits.svg"
    series, compute = {}, 0
    for name in "pier", "tcp-ahead", "nixl":
        rounds = sorted(found[name], key=lambda figures: sum(figures["waits"]))
        series[PEERS[name]] = rounds[len(rounds) // 2]["waits"]
        compute = rounds[0]["compute"]
    path.write_text(loader_plot.plot_waits(
        "Waiting for each batch of 32 samples, while the consumer computes "
        f"{compute * 1e3:.2g} ms with each", series, compute))
    return path

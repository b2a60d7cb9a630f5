#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Serves the files of a folder, and loads them in batches of two, in one process."""

import sys

import pier.data

with pier.data.Server(sys.argv[1]) as server, pier.data.Loader(server.url, 2, seed=7) as loader:
    for batch in loader:
        for i, key in enumerate(batch.keys):
            print(key, bytes(batch.fields(i)["data"]))

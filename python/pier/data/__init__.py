# SPDX-License-Identifier: BSD-3-Clause
"""Datasets of other nodes, read sample by sample into device memory."""

from .batch import Batch
from .connection import ServerConnection, connect
from .encodings import decode
from .index import Field, Index, Shard
from .loader import Loader
from .server import Server

__all__ = ["Batch", "Field", "Index", "Loader", "Server", "ServerConnection", "Shard", "connect", "decode"]

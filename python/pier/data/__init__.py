# SPDX-License-Identifier: BSD-3-Clause
"""Datasets of other nodes, read sample by sample into device memory."""

from .connection import ServerConnection, connect
from .encodings import decode
from .index import Field, Index, Shard
from .server import Server

__all__ = ["Field", "Index", "Server", "ServerConnection", "Shard", "connect", "decode"]

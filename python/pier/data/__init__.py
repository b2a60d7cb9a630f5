# SPDX-License-Identifier: BSD-3-Clause
"""Datasets of other nodes, read sample by sample into device memory."""

from .encodings import decode
from .index import Field, Index, Shard

__all__ = ["Field", "Index", "Shard", "decode"]

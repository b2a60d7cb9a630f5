# SPDX-License-Identifier: BSD-3-Clause
"""Datasets of other nodes, read sample by sample into device memory."""

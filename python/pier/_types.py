# SPDX-License-Identifier: BSD-3-Clause
"""The plain values of the package. The C extension makes them."""

import enum
from typing import NamedTuple


class Access(enum.IntFlag):
    """Access rights of a region. Local reads are always allowed."""

    LOCAL_READ = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2
    REMOTE_ATOMIC = 1 << 3
    MW_BIND = 1 << 4
    ON_DEMAND = 1 << 6
    RELAXED_ORDERING = 1 << 20
    SHARED = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ


class DeviceInfo(NamedTuple):
    """An entry of devices()."""

    name: str
    provider: str  # "verbs" or "soft"


class DeviceAttributes(NamedTuple):
    """Limits and capabilities of an open device; lengths are in bytes."""

    name: str
    provider: str  # "verbs", "soft", or "fault" with a plan of faults
    firmware: str
    max_mr_size: int
    page_sizes: int  # bit n: pages of 2^n bytes
    max_qp_wr: int
    max_sge: int
    max_cqe: int
    port_count: int  # ports are numbered from 1
    max_rd_atomic: int
    dmabuf: bool
    memfd_as_dmabuf: bool
    atomics: bool
    memory_windows: bool
    on_demand: bool
    counters: bool
    max_requested_key: int  # 0: the device chooses all keys
    max_joined_ranges: int


class PortAttributes(NamedTuple):
    """The state and the limits of a port."""

    active: bool
    link_layer: str  # "infiniband", "ethernet" or "unspecified"
    lid: int  # 0 on Ethernet
    active_mtu: int  # in bytes; 0: unknown
    max_mtu: int
    max_msg_size: int
    gid_count: int


class BackendInfo(NamedTuple):
    """An entry of backends()."""

    name: str
    description: str
    available: bool
    dmabuf: bool  # whether its memory can be exported as a dma-buf
    detail: str  # why it is not available, or its limits
    origin: str  # the shared object of a plug-in; "" if it is built in


class BufferInfo(NamedTuple):
    """A description of the memory of a Buffer."""

    backend: str
    unit: str  # "" if there are none
    kind: str  # "cuMemAlloc", "managed memory"; "" if unknown
    no_export: str  # why it cannot be exported as a dma-buf, or ""
    pci: str  # "0000:17:00.0", or ""
    numa_node: int  # -1: unknown
    mappable: bool  # whether the CPU can use it
    wrapped: bool  # whether it belongs to the caller
    allocation: int  # address of the allocation that contains it
    allocation_length: int

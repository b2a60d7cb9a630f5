# SPDX-License-Identifier: BSD-3-Clause
"""The plain values of the package. The C extension makes them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._pier import Channel, Region, Remote, Span


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


class TorchDevice(Protocol):
    """torch.device, in place of the name of a kind of memory: "cpu" is "host"."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int | None: ...


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


class ChannelAttributes(NamedTuple):
    """Attributes of a channel: the keywords of Channel and Group. <pier/channel.h> describes each."""

    port: int
    max_send_wr: int  # outstanding sends, writes and reads, at most
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline: int  # in bytes
    mtu: int  # in bytes
    max_rd_atomic: int
    ack_timeout: int  # 4.096 us * 2^n
    retry_count: int
    rnr_retry_count: int
    min_rnr_timer: int
    service_level: int
    traffic_class: int
    hop_limit: int
    gid_index: int
    psn: int
    access: int  # Access
    timeout: float  # seconds, of calls without a timeout of their own
    pkey_index: int
    waiting: str  # "adaptive", "poll" or "event"
    spin: float  # seconds of polling before sleeping, with "adaptive"
    cq_depth: int
    comp_vector: int
    flow_label: int
    keepalive: float  # seconds; 0: never
    max_dest_rd_atomic: int
    src_path_bits: int
    static_rate: int


class ConnectionOptions(TypedDict, total=False):
    """What ChannelAttributes describes, as keywords of calls that have a timeout of their own; and options."""

    port: int
    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline: int
    mtu: int
    max_rd_atomic: int
    ack_timeout: int
    retry_count: int
    rnr_retry_count: int
    min_rnr_timer: int
    service_level: int
    traffic_class: int
    hop_limit: int
    gid_index: int
    psn: int
    access: int
    pkey_index: int
    waiting: Literal["adaptive", "poll", "event"]
    spin: float
    cq_depth: int
    comp_vector: int
    flow_label: int
    keepalive: float
    max_dest_rd_atomic: int
    src_path_bits: int
    static_rate: int
    options: str  # such as "tc=106,gid=3"


class ChannelOptions(ConnectionOptions, total=False):
    """The keywords of Channel and Group."""

    timeout: float


class Result(NamedTuple):
    """How a request ended that did not fail."""

    opcode: str  # "write", "read", "send", "recv", "recv_write", "compare_swap", "fetch_add"
    length: int  # bytes received or read
    immediate: int | None  # of the peer


class Rail(NamedTuple):
    """A channel of a transfer, with its own registration of the same bytes."""

    channel: Channel
    local: Region | Span
    remote: Remote


class TransferStatus(NamedTuple):
    """The progress of a transfer."""

    length: int  # in bytes
    done: int  # bytes known to have arrived
    rails: int
    working_rails: int
    in_flight: int  # requests
    ended: bool  # with or without an error
    error: int  # the errno with which it ended, or 0


class RailStatus(NamedTuple):
    """The state of a rail."""

    done: int  # bytes moved since the start or the resumption
    in_flight: int  # requests
    error: int  # the errno with which it failed, or 0
    sentence: str  # the reason, or ""


class RingStatus(NamedTuple):
    """The slots of a ring by their states, and what it has done."""

    free: int  # slots that begin() can take
    filling: int  # fills that have not ended
    ended: int  # fills that have ended, and were not returned
    held: int  # returned and not released
    in_flight: int  # requests that the devices have
    doorbells: int  # since the ring was created
    reads: int  # requests posted since then
    bytes: int  # that have arrived since then


class GroupRequest(NamedTuple):
    """A request of Group.exchange()."""

    rank: int  # the peer
    local: Region | Span | Sequence[Region | Span] | None
    remote: Remote | None = None  # for writes and reads
    opcode: str = "write"  # or "send", "read", "recv"
    immediate: int | None = None  # sends and writes: 32 bits for a receive of the peer

# SPDX-License-Identifier: BSD-3-Clause
"""Move data directly between device memory and an RDMA NIC."""

from ._pier import (
    AccessDenied, BadMessage, Buffer, Busy, Channel, ConnectionLost, Device, Dmabuf, Error, Forked, Invalid, NoDevice,
    NoMemory, NotSupported, OutOfRange, ProtectionDomain, Region, Remote, Ring, RingSlot, RingSources, Span, TimedOut,
    Transfer, View, Work, __version__, backends, devices, live_objects, warm_up,
)
from ._types import (
    Access, BackendInfo, BufferInfo, ChannelAttributes, DeviceAttributes, DeviceInfo, GroupRequest, PortAttributes,
    Rail, RailStatus, Result, RingStatus, TransferStatus,
)
from .group import Group
from .store import TCPStore

__all__ = [
    "Access", "AccessDenied", "BackendInfo", "BadMessage", "Buffer", "BufferInfo", "Busy", "Channel",
    "ChannelAttributes", "ConnectionLost", "Device", "DeviceAttributes", "DeviceInfo", "Dmabuf", "Error", "Forked",
    "Group", "GroupRequest", "Invalid", "NoDevice", "NoMemory", "NotSupported", "OutOfRange", "PortAttributes",
    "ProtectionDomain", "Rail", "RailStatus", "Region", "Remote", "Result", "Ring", "RingSlot", "RingSources",
    "RingStatus", "Span", "TCPStore", "TimedOut", "Transfer", "TransferStatus", "View", "Work", "__version__",
    "backends", "devices", "live_objects", "warm_up",
]

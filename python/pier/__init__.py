# SPDX-License-Identifier: BSD-3-Clause
"""Move data directly between device memory and an RDMA NIC."""

from ._pier import *  # noqa: F401, F403
from ._pier import __version__  # noqa: F401
from ._types import (  # noqa: F401
    Access, BackendInfo, BufferInfo, ChannelAttributes, DeviceAttributes, DeviceInfo, GroupRequest, PortAttributes,
    Rail, RailStatus, Result, RingStatus, TransferStatus,
)
from .group import Group  # noqa: F401
from .store import TCPStore  # noqa: F401

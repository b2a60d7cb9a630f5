# SPDX-License-Identifier: BSD-3-Clause
"""Writes bytes from one region to another over soft0: whether an installed package works."""

import pier

with pier.Device("soft0") as device, pier.ProtectionDomain(device) as pd, \
        pd.register(b"straight into place", access=pier.Access.LOCAL_READ) as source, \
        pier.Buffer("memfd", 19) as buffer, pd.register(buffer) as target, \
        pier.Channel(pd) as here, pier.Channel(pd) as there:
    here.connect(there.endpoint)
    there.connect(here.endpoint)
    here.write(source, target.remote)
    print("%s: %s" % (device.name, bytes(buffer).decode()))

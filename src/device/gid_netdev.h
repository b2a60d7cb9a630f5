/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_GID_NETDEV_H
#define PIER_DEVICE_GID_NETDEV_H

#include <ifaddrs.h>
#include <stdbool.h>

#include <infiniband/verbs.h>

/*
 * Whether the network interface of a GID exists in this network namespace.
 *
 * sysfs      its root
 * nic        the name of the NIC in libibverbs
 * addresses  of this namespace, from getifaddrs(3); NULL: unknown
 */
bool pier_gid_is_local(const char *sysfs, const char *nic,
		       const struct ifaddrs *addresses,
		       const struct ibv_gid_entry *entry);

#endif

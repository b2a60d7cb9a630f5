/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_TOPOLOGY_H
#define PIER_DEVICE_TOPOLOGY_H

#include <pier/topology.h>

/*
 * What sysfs tells of places. `sysfs` is its root, so that tests can have trees of
 * their own. Nothing that stands in it is believed: it is bounded, and what makes no
 * sense is as if it were not there.
 */
#define PIER_SYSFS "/sys"

/* Where a NIC is, by its name in libibverbs; without a PCI device: "" and -1. */
void pier_locate_nic(const char *sysfs, const char *name,
		     struct pier_location *ret_location);

/* pier_device_location() by that sysfs. */
int pier_locate_device(const char *sysfs, const struct pier_device *device,
		       struct pier_location *ret_location);

/*
 * A place as a backend tells it: the address as sysfs writes it, or "" if it is none;
 * the NUMA node of sysfs where the backend knows none.
 *
 * pci  at most 16 bytes of it are looked at
 */
void pier_settle_location(const char *sysfs, const char *pci, int numa_node,
			  struct pier_location *ret_location);

/* pier_location_distance() by that sysfs. */
enum pier_distance pier_distance_in(const char *sysfs, const struct pier_location *a,
				    const struct pier_location *b);

#endif

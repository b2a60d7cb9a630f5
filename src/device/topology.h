/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_TOPOLOGY_H
#define PIER_DEVICE_TOPOLOGY_H

#include <pier/topology.h>

/*
 * Locations from sysfs. `sysfs` is its root, so tests can provide their own trees. Its
 * contents are not trusted: they are bounded, and whatever is malformed counts as absent.
 */
#define PIER_SYSFS "/sys"

/* Find a NIC by its name in libibverbs. Without a PCI device the location is "" and -1.
 */
void pier_locate_nic(const char *sysfs, const char *name,
		     struct pier_location *ret_location);

/*
 * Complete a location that a backend reports: the PCI address in the form of sysfs, or ""
 * if it is malformed; the NUMA node from sysfs if the backend does not know it.
 *
 * pci  at most 16 bytes are read
 */
void pier_settle_location(const char *sysfs, const char *pci, int numa_node,
			  struct pier_location *ret_location);

/* The distance by sysfs alone: see buffer/topology_file.h. */
enum pier_distance pier_distance_in(const char *sysfs, const struct pier_location *a,
				    const struct pier_location *b);

#endif

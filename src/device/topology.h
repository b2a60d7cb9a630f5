/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_TOPOLOGY_H
#define PIER_DEVICE_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>
#include <pier/topology.h>

/*
 * Read a file of sysfs that holds one short line, without its newline. `format` prints
 * the path. Returns false if the file cannot be read, is empty, or is longer.
 */
bool pier_read_sysfs(char *ret_line, size_t size, const char *format, ...)
	PIER_PRINTF(3, 4);

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

/* pier_thread_bind_near() with another root of sysfs. */
int pier_bind_near_in(const char *sysfs, const struct pier_location *location);

/*
 * How fast a NIC can move bytes, in Mbit/s: the rate of its fastest active port, or that
 * of its PCIe link if it is slower. 0: sysfs reports neither.
 *
 * sysfs  its root, as above
 * name   in libibverbs
 */
uint32_t pier_nic_speed(const char *sysfs, const char *name,
			const struct pier_location *location);

/* The rate of one port of `count`, if another one is faster; 0: none is. */
uint32_t pier_slow_port_speed(const char *sysfs, const char *name, uint32_t port,
			      uint32_t count);

#endif

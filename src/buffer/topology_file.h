/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_TOPOLOGY_FILE_H
#define PIER_BUFFER_TOPOLOGY_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <pier/topology.h>

/* A line of PIER_TOPO_FILE: <pier/topology.h>. */

enum {
	PIER_TOPOLOGY_LINES_MAX = 4096,
	PIER_TOPOLOGY_NAME_SIZE = 64,
	PIER_TOPOLOGY_NOT_GIVEN = -2,
};

enum pier_topology_kind {
	PIER_TOPOLOGY_NIC,
	PIER_TOPOLOGY_PCI,
	PIER_TOPOLOGY_DISTANCE,
	PIER_TOPOLOGY_IGNORED, /* it is about something that is not here */
};

struct pier_topology_line {
	enum pier_topology_kind kind;
	unsigned int number; /* in the file */
	/* NIC: its name. Otherwise a place: an address, a NIC or a unit of memory. */
	char name[PIER_TOPOLOGY_NAME_SIZE];
	/* DISTANCE: the other place. NIC: its address, or "". */
	char second[PIER_TOPOLOGY_NAME_SIZE];
	int node;	/* or PIER_TOPOLOGY_NOT_GIVEN */
	uint32_t speed; /* in Mbit/s; 0: not given */
	enum pier_distance distance;
};

/*
 * The topology of this machine: sysfs, corrected by the file that PIER_TOPO_FILE names.
 * <pier/topology.h> describes the file.
 */
struct pier_topology {
	const char *sysfs; /* its root, borrowed */
	struct pier_topology_line *lines;
	size_t count;
};

/*
 * Read the file, if there is one. Errors: -EINVAL a line of it is wrong; -ENOMEM; those
 * of open(2).
 */
int pier_topology_open(const char *sysfs, struct pier_topology *ret_topology);
/* For calls that cannot fail: a file with an error is ignored, with a warning. */
void pier_topology_open_leniently(const char *sysfs, struct pier_topology *ret_topology);
void pier_topology_close(struct pier_topology *topology);

/* pier_device_location() with another root of sysfs. */
int pier_locate_device(const char *sysfs, const struct pier_device *device,
		       struct pier_location *ret_location);

/* Find a NIC by its name in libibverbs; its speed is in Mbit/s, 0: unknown. */
void pier_topology_find_nic(const struct pier_topology *topology, const char *name,
			    struct pier_location *ret_location, uint32_t *ret_speed);

enum pier_distance pier_topology_distance(const struct pier_topology *topology,
					  const struct pier_location *a,
					  const struct pier_location *b);

#endif

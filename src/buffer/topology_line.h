/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_TOPOLOGY_LINE_H
#define PIER_BUFFER_TOPOLOGY_LINE_H

#include <stdbool.h>
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

/* The position of the parser, for error sentences. */
struct pier_topology_reading {
	const char *path;
	unsigned int number; /* of the line */
	char *rest;	     /* of the line */
};

/*
 * Read all lines of the file at reading->path.
 *
 * lines  room for PIER_TOPOLOGY_LINES_MAX
 *
 * Errors: -EINVAL a line is wrong; those of open(2) and read(2).
 */
int pier_topology_read_lines(struct pier_topology_reading *reading,
			     struct pier_topology_line *lines, size_t *ret_count);

/* Whether a word is a PCI address; ret_pci is then its form in sysfs. They may overlap.
 */
bool pier_take_address(const char *word, char ret_pci[PIER_TOPOLOGY_NAME_SIZE]);

/* Fail with a rule that the current line breaks: -EINVAL. value: NULL, or shown. */
int pier_fail_line(const struct pier_topology_reading *reading, const char *rule,
		   const char *value);
int pier_fail_place(const struct pier_topology_reading *reading, const char *place);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_RECORDED_H
#define TESTS_SUPPORT_RECORDED_H

/*
 * Trees like sysfs, made in a temporary folder from what is written down in
 * tests/data/topology (PIER_TEST_TREES), a line for each thing in them:
 *
 *	# a comment
 *	devices/pci0000:00/0000:00:01.0/numa_node = 0
 *	bus/pci/devices/0000:00:01.0 -> ../../../devices/pci0000:00/0000:00:01.0
 *
 * The folders on the way come by themselves. Of bridges only the links are written down.
 */

enum {
	RECORDED_MAX = 128,
};

struct recorded {
	char root[32];
	/* The entries of class/infiniband and bus/pci/devices, in the file's order. */
	char nics[RECORDED_MAX][64];
	size_t nic_count;
	char devices[RECORDED_MAX][16];
	size_t device_count;
};

/* Creates an empty tree; adds all lines of a file; adds one line; removes the tree. */
struct recorded recorded_start(void);
struct recorded recorded_open(const char *file);
void recorded_add(struct recorded *tree, const char *line);
void recorded_close(const struct recorded *tree);

#endif

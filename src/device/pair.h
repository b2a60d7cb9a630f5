/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_PAIR_H
#define PIER_DEVICE_PAIR_H

#include "device.h"

/*
 * Findings about a NIC and the memory of one unit of a backend, such as a GPU. A failure
 * that may pass, such as -ENOMEM, is not kept.
 */
struct pier_pair {
	struct pier_list link;
	char memory[64]; /* the backend and its unit, as a spec names them: "cuda:0" */
	/* Of the last dma-buf that was registered; AUTO: none, or it has no choice. */
	_Atomic(enum pier_mapping) mapping;
	/*
	 * The canary's result for each mapping; PIER_MAPPING_AUTO stands for peer memory.
	 * NULL: it has not run. pier_pair_passed: the path can be used. Otherwise the
	 * sentence that refuses the path, from malloc(3).
	 */
	_Atomic(char *) canary[PIER_MAPPING_PCIE + 1];
};

/* No sentence: see struct pier_pair. */
extern char pier_pair_passed[];

/*
 * The record of a device and the memory of a unit. The first call makes it. It stays
 * until the device is closed, and each field of it may be read and written by any
 * thread.
 *
 * unit  as in struct pier_memory_facts; "": the backend has none
 *
 * Returns NULL without memory.
 */
struct pier_pair *pier_find_pair(struct pier_device *device, const char *backend,
				 const char *unit);

/* Free all records of a device. */
void pier_free_pairs(struct pier_device *device);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_PAIR_H
#define PIER_DEVICE_PAIR_H

#include "device.h"

/* The result of region/canary.c for one path between a NIC and memory. */
struct pier_canary_answer {
	/*
	 * NULL: it was not sent. pier_canary_passed; pier_canary_impossible: it never
	 * can be. Otherwise the sentence that refuses the path, from malloc(3).
	 */
	_Atomic(char *) text;
	/* Why it could not be sent the first time, from malloc(3); NULL: it could. */
	_Atomic(char *) obstacle;
	/* Registrations since an error that may pass, such as -ENOMEM; 0: there was none.
	 */
	atomic_uint untested;
};

extern char pier_canary_passed[], pier_canary_impossible[];

/* Findings about a NIC and the memory of one unit of a backend, such as a GPU. */
struct pier_pair {
	struct pier_list link;
	char memory[64]; /* the backend and its unit, as a spec names them: "cuda:0" */
	/* Of the last dma-buf that was registered; AUTO: none, or it has no choice. */
	_Atomic(enum pier_mapping) mapping;
	/* By the mapping; PIER_MAPPING_AUTO stands for peer memory. */
	struct pier_canary_answer canary[PIER_MAPPING_PCIE + 1];
	/* Memory that no canary is using; `free_spare` frees it. Under `pairs_lock`. */
	struct pier_list spares;
	void (*free_spare)(struct pier_list *spare);
};

/*
 * The record of a device and the memory of a unit. The first call makes it. It stays
 * until the device is closed. Any thread may read and write its atomic fields.
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

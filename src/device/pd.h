/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_PD_H
#define PIER_DEVICE_PD_H

#include "device.h"

/* Something that has requests outstanding on regions of a PD: a channel. */
struct pier_region_user {
	struct pier_list link;
	/*
	 * What it does with the region of that key, "write"; or NULL. Any thread,
	 * with the PD locked; what happens at the same time may be missed.
	 */
	const char *(*uses)(const struct pier_region_user *user, uint32_t lkey);
};

/* Add a user to the PD, and remove it; removing it twice is harmless. */
void pier_add_region_user(struct pier_pd *pd, struct pier_region_user *user);
void pier_remove_region_user(struct pier_pd *pd, struct pier_region_user *user);

/* The name of the kind of request that is outstanding on a region, or NULL. */
const char *pier_region_in_use(struct pier_pd *pd, uint32_t lkey);

/*
 * The key of memory that the CPU cannot read at the addresses which elements have: that
 * of a GPU, for example. Such elements must not be inline data.
 */
struct pier_far_key {
	struct pier_list link; /* under the lock of the PD */
	uint32_t lkey;
	bool added;
};

/* Add a key to the PD, and remove it; removing one that was not added is harmless. */
void pier_add_far_key(struct pier_pd *pd, struct pier_far_key *key, uint32_t lkey);
void pier_remove_far_key(struct pier_pd *pd, struct pier_far_key *key);

/* Whether it is the key of such memory. Any thread. */
bool pier_is_far_key(struct pier_pd *pd, uint32_t lkey);

/* -EOPNOTSUPP: an element has such a key, and the device's CPU copies receives. */
int pier_check_receive(struct pier_pd *pd, const struct ibv_sge *sg_list,
		       uint32_t num_sge);

#endif

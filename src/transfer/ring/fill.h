/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RING_FILL_H
#define PIER_TRANSFER_RING_FILL_H

#include "ring.h"

/*
 * A lane is what a ring does on one channel: the requests in flight, in the order of
 * posting, which is also that of their completions (InfiniBand Architecture
 * Specification, volume 1, 9.5), and the legs that wait for room. A lane without either
 * is idle, and forgets its channel, which the user may then destroy.
 */

/* Requests of one fill that were posted together, and have one completion. */
struct pier_ring_chunk {
	struct pier_ring_fill *fill;
	uint32_t first, count;
	struct pier_work work;
};

struct pier_ring_lane {
	struct pier_channel *channel; /* NULL: idle */
	struct pier_ring_leg *leg, *last_leg;
	struct pier_ring_chunk *chunks; /* a ring buffer */
	uint32_t size, first, count;
	int64_t stall_ns;
	int64_t active_at; /* time of the last progress */
};

/* Make lanes for the legs of a planned fill. Errors: -ENOMEM. */
int pier_lanes_reserve(struct pier_ring *ring, const struct pier_ring_fill *fill);

/* Give them the legs, and post what there is room for. */
void pier_lanes_post(struct pier_ring *ring, struct pier_ring_fill *fill);

/* Drive all lanes. Returns whether anything has completed. */
bool pier_lanes_step(struct pier_ring *ring);

/* When a lane stalls, at the latest; INT64_MAX: never. */
int64_t pier_lanes_deadline(const struct pier_ring *ring);

/* Whether anything is in flight or waits for room on the channel. */
bool pier_lanes_use(const struct pier_ring *ring, const struct pier_channel *channel);

/* Requests that the devices have. */
uint32_t pier_lanes_in_flight(const struct pier_ring *ring);

void pier_lanes_free(struct pier_ring *ring);

#endif

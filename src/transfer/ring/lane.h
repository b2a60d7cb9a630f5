/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RING_LANE_H
#define PIER_TRANSFER_RING_LANE_H

#include <poll.h>

#include "channel/flow.h"
#include "fill.h"

/*
 * A lane is what a ring does on one channel: the flow of requests in flight, and the legs
 * that wait for room. A lane without either is idle, and forgets its channel, which the
 * user may then destroy.
 *
 * The requests of a flight were posted together. They are those of the fill that is its
 * owner, and offset and length count them.
 */
struct pier_ring_lane {
	struct pier_flow flow; /* its channel is NULL: idle */
	struct pier_ring_leg *leg, *last_leg;
};

struct pier_ring_lanes {
	const struct pier_ring_memory *memory;
	int stall_ms;
	struct pier_ring_lane *lanes;
	uint32_t count;
	struct pollfd *fds; /* for each lane, and one more */
	bool cancelling;    /* post no more */
	uint64_t doorbells, reads, bytes;
};

/* Make lanes for the legs of a planned fill. Errors: -ENOMEM. */
int pier_lanes_reserve(struct pier_ring_lanes *lanes, const struct pier_fill *fill);

/* Give them the legs, and post what there is room for. */
void pier_lanes_post(struct pier_ring_lanes *lanes, struct pier_fill *fill);

/* Drive all lanes. Returns whether anything has completed. */
bool pier_lanes_step(struct pier_ring_lanes *lanes);

/* When a lane stalls, or its channel has stopped, at the latest; INT64_MAX: never. */
int64_t pier_lanes_deadline(const struct pier_ring_lanes *lanes);

/* Whether anything is in flight or waits for room on the channel. */
bool pier_lanes_use(const struct pier_ring_lanes *lanes,
		    const struct pier_channel *channel);

/* Requests that the devices have. */
uint32_t pier_lanes_in_flight(const struct pier_ring_lanes *lanes);

void pier_lanes_free(struct pier_ring_lanes *lanes);

#endif

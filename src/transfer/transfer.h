/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_TRANSFER_H
#define PIER_TRANSFER_TRANSFER_H

#include <poll.h>

#include <pier/transfer.h>

#include "rail.h"
#include "remaining.h"
#include "core/object.h"

/* A chunk that a rail has brought, and that is still to be copied. */
struct pier_arrival {
	struct pier_rail_state *rail;
	uint32_t index; /* of the rail */
	struct pier_rail_chunk chunk;
};

/*
 * A byte of a transfer is in one of three places: still to be handed out (remaining),
 * in flight (in the ring of a rail), or done, which is a count alone. While it is driven
 * some are on the way from the second to the third: see copy_arrivals().
 */
struct pier_transfer {
	struct pier_object object;
	struct pier_transfer_attr attr; /* as given; rails and state are not kept */
	struct pier_remaining remaining;
	uint64_t done; /* bytes that have arrived */
	struct pier_rail_state *rails;
	struct pollfd *fds; /* one for each rail */
	uint32_t rail_count;
	uint32_t in_flight;
	struct pier_arrival *arrivals; /* as many as chunks can be in flight */
	uint32_t arrival_count;
	int flush_error;  /* of what came straight into memory of a device */
	bool owes_flush;  /* when it ended last, that could not be flushed */
	int64_t deadline; /* INT64_MAX: none */

	bool noticed;	   /* the peer was told */
	bool notice_flies; /* a request is to tell it */

	uint64_t reported; /* to attr.progress */
	int64_t reported_at;
	bool reported_end;

	int stop; /* 0, or why no chunk is posted any more: -errno */
	char reason[640];

	bool ended;
	int error; /* of one that has ended */
	char sentence[768];
};

/* No chunk is posted any more. The first reason stays. */
void pier_stop_transfer(struct pier_transfer *transfer, int error, const char *reason);

#endif

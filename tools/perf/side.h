/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_SIDE_H
#define PIER_TOOLS_PERF_SIDE_H

#include <pier/pier.h>

#include "lane.h"
#include "message.h"

struct side;

/*
 * Add the facts to the side's report that make the result comparable later: devices,
 * drivers, firmware, kernel, processor. A fact that cannot be read stays "".
 */
void read_environment(struct side *side);

/* One NIC, and the memory that is registered with it. */
struct perf_rail {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr;
};

/*
 * One side's memory, NICs and channels. The memory has the sources of all lanes, then
 * their destinations; both sides have the same layout. Lane n belongs to the rail
 * n % rail_count. With settings->staged the NICs use the staging buffer instead, which
 * has slots to send and slots to receive for each lane. Zero the struct before
 * open_side().
 */
struct side {
	const struct perf_settings *settings;
	bool client;
	struct perf_rail rails[PERF_RAILS_MAX];
	uint32_t rail_count;
	struct pier_buffer *buffer, *staging;
	volatile uint8_t *memory; /* of the buffer; NULL: the CPU cannot reach it */
	uint64_t stride;	  /* from one lane to the next */
	struct lane *lanes;
	uint32_t lane_count;
	bool substitute; /* soft0, which nobody named, in place of an RDMA device */
	struct perf_report report, peer_report;
};

/* Functions that return int return 0, or -1 with control->failure set. */

/* Agree with the other side on the NICs, and connect all channels. */
int open_side(struct side *side, const struct perf_settings *settings,
	      const struct perf_place *place, bool local, struct control *control);
/* Close everything that is open. */
void close_side(struct side *side);

/* Both sides poll their memory for the other's message, instead of a receive. */
static inline bool side_polls_memory(const struct side *side)
{
	return is_ping_pong(side->settings) && side->settings->opcode == PIER_OP_WRITE &&
	       !side->settings->events && side->report.mapped && side->peer_report.mapped;
}

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_LANE_H
#define PIER_TOOLS_PERF_LANE_H

#include <stdint.h>

#include <pier/pier.h>

#include "perf.h"

/*
 * Times in nanoseconds, in buckets: one for each number below 128, then 128 for each
 * power of two, so a value is known to 0.8 %.
 */
enum {
	HISTOGRAM_STEPS = 128,
	HISTOGRAM_BUCKETS = 58 * HISTOGRAM_STEPS
};

struct histogram {
	uint64_t total, sum;
	uint64_t least, most; /* valid if total is not 0 */
	uint64_t counts[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *histogram, uint64_t ns);
void histogram_merge(struct histogram *histogram, const struct histogram *other);
/* The time that a part of all times, from 0 to 1, does not exceed; 0 if there are none.
 */
uint64_t histogram_quantile(const struct histogram *histogram, double part);
/* 0 if there are none. */
double histogram_mean(const struct histogram *histogram);
/* The shortest time in a bucket. */
uint64_t histogram_bucket_start(uint32_t bucket);

struct side;

/* Equal requests, each for one message. */
union lane_requests {
	struct pier_write_pair writes[PERF_BATCH_MAX];
	struct pier_read_pair reads[PERF_BATCH_MAX];
	struct pier_request others[PERF_BATCH_MAX];
};

/* One channel, with a slot of memory that it sends and one that it receives. */
struct lane {
	struct side *side;
	struct pier_channel *channel;
	struct pier_mr *mr;
	struct pier_remote peer;	     /* what the other side registered */
	uint64_t source, destination;	     /* offsets in the memory */
	uint64_t staged_sends, staged_recvs; /* offsets in the staging buffer */
	uint64_t staged_counts;		     /* of struct staged_counts, there */
	uint64_t credited; /* what the other side was told of `received` */
	uint32_t depth;	   /* requests that the send queue takes */
	union lane_requests requests;
	struct pier_gather gather; /* the element of each of these */
	struct pier_scatter scatter;
	struct pier_remote remote;
	uint64_t posted; /* in this step */
	uint64_t goal;	 /* of posted; UINT64_MAX: by time */
	struct pier_work *receives;
	uint64_t received;	 /* in all steps */
	uint64_t receive_base;	 /* of these, before this step */
	struct pier_work sample; /* a request whose time is taken */
	uint64_t sample_ns;	 /* when it was posted; 0: none */
	uint32_t until_sample;	 /* batches */
};

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

/* Both sides poll their memory for the other's message, instead of a receive. */
static inline bool side_polls_memory(const struct side *side)
{
	return is_ping_pong(side->settings) && side->settings->opcode == PIER_OP_WRITE &&
	       !side->settings->events && side->report.mapped && side->peer_report.mapped;
}

/* Functions that return int return 0 or more, or a negative errno of the library. */

/* Before the first step: post all receives. */
int post_lane_receives(struct lane *lane);

/* Prepare the requests of one size. */
int prepare_lane(struct lane *lane, uint64_t size);

/*
 * Post as many messages as fit. Returns 1 if some were posted or completed, otherwise 0.
 *
 * ret_times  the time from posting to completion of some batches is added
 */
int advance_lane(struct lane *lane, struct histogram *ret_times);
/* Returns 1 if all messages that were posted are complete, otherwise 0. */
int drain_lane(struct lane *lane, struct histogram *ret_times);
/* Take messages that have arrived, and post their receives again. Returns how many. */
int serve_lane(struct lane *lane);

/* Post one message of the step's size; it is complete when the work is. */
int post_lane_message(struct lane *lane, struct pier_work *ret_work);

#endif

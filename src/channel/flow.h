/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_FLOW_H
#define PIER_CHANNEL_FLOW_H

#include <pier/recovery.h>

#include "channel.h"

/*
 * A flow is the requests that one user has in flight on a queue of a channel, in the
 * order of posting. A queue completes in order (InfiniBand Architecture Specification,
 * volume 1, 9.5), so only the oldest request is polled. The user of the flow posts the
 * requests, and decides what their completions mean. The flow keeps the handles, the time
 * of the last progress, and the first failure.
 *
 * A flow fails with its first request that fails, or if it stalls. The channel is then
 * stopped without waiting. When that is over, after a second at most, all requests in
 * flight have a result and can be taken at once.
 */

/* One request in flight, or several with one handle. */
struct pier_flight {
	struct pier_work work;
	void *owner; /* of the user of the flow, like the next two */
	uint64_t offset;
	uint32_t length;
	int error; /* how it ended */
};

struct pier_flow {
	struct pier_channel *channel;
	struct pier_flight *flights; /* a ring buffer */
	uint32_t size, first, count;
	uint32_t resets;   /* of the channel, when the last request was posted */
	int64_t stall_ns;  /* the longest time without progress */
	int64_t active_at; /* time of the last progress */
	int64_t full_at;   /* since when others' requests fill the queue; 0: no */
	int64_t stops_at;  /* when stopping the channel ends, at the latest; 0: no */
	bool stopped;	   /* the channel was stopped, or is being stopped */
	int error;	   /* of the first failure, or 0 */
	char sentence[PIER_FAILURE_SENTENCE_SIZE];
};

/*
 * Begin a flow. The struct is zeroed, or was used before and has nothing in flight.
 *
 * size      how many requests can be in flight, at least 1
 * stall_ms  or PIER_TIMEOUT_DEFAULT, the time of the channel
 *
 * Errors: -ENOMEM.
 */
int pier_flow_open(struct pier_flow *flow, struct pier_channel *channel, uint32_t size,
		   int stall_ms);
void pier_flow_free(struct pier_flow *flow);

static inline bool pier_flow_is_full(const struct pier_flow *flow)
{
	return flow->count == flow->size;
}

/* The requests in flight; 0 is the oldest. */
static inline struct pier_flight *pier_flow_at(const struct pier_flow *flow,
					       uint32_t index)
{
	return &flow->flights[(flow->first + index) % flow->size];
}

/* A request was posted. The flow was not full. */
void pier_flow_add(struct pier_flow *flow, const struct pier_flight *flight, int64_t now);

/*
 * Posting failed. A full queue drains: returns 0. Any other error fails the flow and is
 * returned; requests in flight complete as usual.
 */
int pier_flow_refused(struct pier_flow *flow, int error, int64_t now);

/* Take the oldest request if it has completed, and its result, which may be an error. */
bool pier_flow_take(struct pier_flow *flow, int64_t now, struct pier_flight *ret_flight,
		    struct pier_result *ret_result);

/* When the flow stalls, or its channel has been stopped; INT64_MAX: never. */
int64_t pier_flow_wakes_at(const struct pier_flow *flow);

/*
 * Fail the flow if it stalls. Returns 0; -EHOSTUNREACH no request completed; -EAGAIN
 * nothing is in flight, and other requests fill the queue.
 */
int pier_flow_check(struct pier_flow *flow, int64_t now);

/* There is nothing to post: a full queue is no stall. */
static inline void pier_flow_wants_no_room(struct pier_flow *flow)
{
	flow->full_at = 0;
}

/* The time without progress counts from now. */
void pier_flow_restart_stall(struct pier_flow *flow, int64_t now);

/*
 * The error of a request: the error that broke the channel, if the request was flushed or
 * refused for that reason. -EPIPE if that is an error of a wait, since a caller of
 * pier_transfer_wait() would wait again.
 */
int pier_flow_cause(const struct pier_flow *flow, int error);

/* Fail the flow with the cause of an error, unless it has failed before. */
void pier_flow_fail(struct pier_flow *flow, int error, const char *sentence);

/*
 * Fail the flow and stop its channel, unless the channel was reset since the last post:
 * the requests in flight then have ended, and the channel may have another connection.
 */
void pier_flow_stop(struct pier_flow *flow, int error, const char *sentence);

/* Whether the channel is still being stopped. Nothing can be taken meanwhile. */
bool pier_flow_is_stopping(struct pier_flow *flow);

/* Wait until the channel has been stopped, if that has begun. */
void pier_flow_finish_stop(struct pier_flow *flow);

#endif

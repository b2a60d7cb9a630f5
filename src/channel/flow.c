/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/error.h"
#include "flow.h"
#include "stop.h"

int pier_flow_open(struct pier_flow *flow, struct pier_channel *channel, uint32_t size,
		   int stall_ms)
{
	struct pier_flight *flights = reallocarray(flow->flights, size, sizeof(*flights));

	if (!flights)
		return pier_fail(ENOMEM, "no memory for %u requests", size);
	if (stall_ms == PIER_TIMEOUT_DEFAULT)
		stall_ms = channel->attr.timeout_ms;
	*flow = (struct pier_flow){
		.channel = channel,
		.flights = flights,
		.size = size,
		.resets = channel->resets,
		.stall_ns = (int64_t)stall_ms * 1000000,
	};
	return 0;
}

void pier_flow_free(struct pier_flow *flow)
{
	free(flow->flights);
}

void pier_flow_add(struct pier_flow *flow, const struct pier_flight *flight, int64_t now)
{
	if (flow->count == 0)
		flow->active_at = now;
	flow->full_at = flow->stops_at = 0;
	flow->stopped = false;
	flow->resets = flow->channel->resets;
	*pier_flow_at(flow, flow->count++) = *flight;
}

int pier_flow_refused(struct pier_flow *flow, int error, int64_t now)
{
	if (error == -EAGAIN) {
		if (flow->count == 0 && flow->full_at == 0)
			flow->full_at = now;
		return 0;
	}
	pier_flow_fail(flow, error, pier_error_message());
	return error;
}

bool pier_flow_is_stopping(struct pier_flow *flow)
{
	if (flow->stops_at &&
	    (flow->resets != flow->channel->resets ||
	     pier_finish_stop(flow->channel, pier_now() >= flow->stops_at)))
		flow->stops_at = 0;
	return flow->stops_at;
}

void pier_flow_finish_stop(struct pier_flow *flow)
{
	if (pier_flow_is_stopping(flow))
		pier_await_stop(flow->channel, flow->stops_at);
	flow->stops_at = 0;
}

/* Everything that was posted before has its result, or will have it. */
static bool was_stopped(const struct pier_flow *flow)
{
	return flow->stopped || flow->resets != flow->channel->resets;
}

/* Most devices flush at once. */
static void begin_stop(struct pier_flow *flow)
{
	if (was_stopped(flow))
		return;
	flow->stopped = true;
	flow->stops_at = pier_begin_stop(flow->channel);
	pier_flow_is_stopping(flow);
}

bool pier_flow_take(struct pier_flow *flow, int64_t now, struct pier_flight *ret_flight,
		    struct pier_result *ret_result)
{
	struct pier_flight *oldest;
	int done;

	if (flow->count == 0 || pier_flow_is_stopping(flow))
		return false;
	oldest = pier_flow_at(flow, 0);
	done = pier_work_poll(flow->channel, oldest->work, ret_result);
	if (done < 0 && !flow->stopped) {
		/* A stopped channel has a result for each request. */
		pier_flow_stop(flow, done, pier_error_message());
		if (flow->stops_at)
			return false;
		done = pier_work_poll(flow->channel, oldest->work, ret_result);
	}
	if (done == 0)
		return false;
	if (done < 0)
		*ret_result = (struct pier_result){ .error = done };
	if (ret_result->error) {
		pier_flow_fail(flow, ret_result->error, pier_error_message());
		/* A request of an earlier connection has not broken this one. */
		if (flow->channel->broken)
			begin_stop(flow);
	}
	*ret_flight = *oldest;
	ret_flight->error = ret_result->error;
	flow->first = (flow->first + 1) % flow->size;
	flow->count--;
	flow->active_at = now;
	return true;
}

int64_t pier_flow_wakes_at(const struct pier_flow *flow)
{
	int64_t since = flow->count > 0 ? flow->active_at : flow->full_at;

	if (flow->stops_at)
		return flow->stops_at;
	return since ? since + flow->stall_ns : INT64_MAX;
}

int pier_flow_check(struct pier_flow *flow, int64_t now)
{
	int ms = (int)(flow->stall_ns / 1000000);
	char sentence[128];

	if (flow->stopped || now < pier_flow_wakes_at(flow))
		return 0;
	if (flow->count > 0) {
		snprintf(sentence, sizeof(sentence),
			 "no request completed within %d ms; everything outstanding was "
			 "stopped",
			 ms);
		pier_flow_stop(flow, -EHOSTUNREACH, sentence);
		return pier_fail(EHOSTUNREACH, "%s", sentence);
	}
	flow->full_at = 0;
	pier_fail(EAGAIN, "the send queue was full of other requests for %d ms", ms);
	pier_flow_fail(flow, -EAGAIN, pier_error_message());
	return -EAGAIN;
}

void pier_flow_restart_stall(struct pier_flow *flow, int64_t now)
{
	flow->active_at = now;
	if (flow->full_at)
		flow->full_at = now;
}

int pier_flow_cause(const struct pier_flow *flow, int error)
{
	int broken = flow->channel->broken;

	if (!broken || (error != -ECANCELED && error != -EPIPE))
		return error;
	/* The deadline or the interruption of a call that posted and waited. */
	return pier_is_of_wait(broken) ? -EPIPE : broken;
}

void pier_flow_fail(struct pier_flow *flow, int error, const char *sentence)
{
	if (flow->error)
		return;
	flow->error = pier_flow_cause(flow, error);
	snprintf(flow->sentence, sizeof(flow->sentence), "%s", sentence);
}

void pier_flow_stop(struct pier_flow *flow, int error, const char *sentence)
{
	pier_flow_fail(flow, error, sentence);
	if (flow->resets == flow->channel->resets)
		pier_break_channel(flow->channel, error, sentence);
	begin_stop(flow);
}

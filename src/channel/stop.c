/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include <pier/recovery.h>
#include <pier/waiting.h>

#include "channel/cq/members.h"
#include "channel/scope_failures.h"
#include "channel/setup/gid.h"
#include "channel/setup/verbs_objects.h"
#include "collect.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "region/mr.h"
#include "stop.h"

enum {
	FLUSH_TIME_MS = 1000, /* how long to wait for the flushed completions */
};

/*
 * Bring the queue pair to a state that needs no other attributes. Returns 0 or a positive
 * errno.
 */
static int modify_state(struct pier_channel *channel, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int error = channel->provider->modify_qp(channel->qp, &attr, IBV_QP_STATE);

	if (error)
		pier_warning("queue pair %#x: to state %d: errno %d", channel->qp->qp_num,
			     (int)state, error);
	else
		channel->is_reset = state == IBV_QPS_RESET;
	return error;
}

static bool is_at_rest(const struct pier_channel *channel)
{
	return pier_channel_outstanding(channel) == 0 && !channel->keepalive.outstanding;
}

/* Returns false when the time is up. */
static bool sleep_until(const struct pier_channel *channel, int64_t deadline)
{
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };
	int timeout = pier_poll_timeout(deadline);

	return timeout > 0 && (pier_clock_poll(&fd, 1, timeout) >= 0 || errno == EINTR) &&
	       !(fd.revents & (POLLERR | POLLHUP | POLLNVAL));
}

static void collect_flush(struct pier_channel *channel, int64_t deadline)
{
	int count = 0;

	while (!is_at_rest(channel) && count >= 0) {
		count = pier_collect(channel);
		if (count == 0)
			count = pier_arm_completions(channel);
		if (count == 0 && !sleep_until(channel, deadline))
			return;
	}
}

/*
 * Check the whole ring: a device that lost a completion may have completed a later
 * request. Skip entries from head on, which the device refused.
 */
static void fill_in_queue(struct pier_channel *channel, struct pier_queue *queue)
{
	for (uint32_t i = 0; i <= queue->mask; i++) {
		struct pier_entry *entry = &queue->entries[i];
		uint64_t position = entry->id & PIER_ID_POSITION;
		struct pier_result flushed = { .error = -ECANCELED,
					       .status = IBV_WC_WR_FLUSH_ERR,
					       .opcode = pier_entry_opcode(entry),
					       .context = pier_entry_context(entry) };

		if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED &&
		    position - queue->tail < queue->head - queue->tail)
			pier_note_in_scope(channel, entry->id, &flushed);
		if (pier_entry_get_state(entry) == PIER_ENTRY_WATCHED &&
		    (int64_t)(queue->head - position) > 0)
			pier_queue_keep(queue, entry, &flushed);
	}
	pier_queue_done(queue, queue->head - 1);
}

void pier_fill_in_flush(struct pier_channel *channel)
{
	channel->flushed += pier_channel_outstanding(channel);
	channel->keepalive.outstanding = false;
	fill_in_queue(channel, &channel->sends);
	fill_in_queue(channel, &channel->receives);
	if (channel->attr.cq)
		pier_cq_note_news(channel->attr.cq, channel);
}

int64_t pier_begin_stop(struct pier_channel *channel)
{
	modify_state(channel, IBV_QPS_ERR);
	return pier_deadline(FLUSH_TIME_MS);
}

bool pier_finish_stop(struct pier_channel *channel, bool late)
{
	int count = late ? 0 : 1;

	while (!is_at_rest(channel) && count > 0)
		count = pier_collect(channel);
	/* A queue that cannot be polled gives no completions. */
	if (!late && count == 0 && !is_at_rest(channel))
		return false;
	/*
	 * Receives of a shared queue do not count as outstanding. RESET and destroying
	 * the queue pair remove their completions from the CQ without reporting them
	 * (mlx5_cq_clean() in libmlx5), so collect them now.
	 */
	if (channel->attr.srq)
		pier_collect(channel);
	if (!is_at_rest(channel)) {
		modify_state(channel, IBV_QPS_RESET);
		pier_collect(channel);
	}
	/* Even if nothing is outstanding: a completion may have been lost. */
	pier_fill_in_flush(channel);
	return true;
}

void pier_await_stop(struct pier_channel *channel, int64_t late_at)
{
	collect_flush(channel, late_at);
	pier_finish_stop(channel, true);
}

void pier_stop_channel(struct pier_channel *channel)
{
	pier_await_stop(channel, pier_begin_stop(channel));
}

int pier_stop_because(struct pier_channel *channel, int error, const char *format, ...)
{
	char cause[sizeof(channel->cause)];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(cause, sizeof(cause), format, arguments);
	va_end(arguments);
	pier_break_channel(channel, error, cause);
	pier_stop_channel(channel);
	return pier_fail(-error, "%s", cause);
}

int pier_channel_cancel(struct pier_channel *channel)
{
	PIER_REFUSE_NULL(channel);
	int error = pier_check_process(&channel->object);
	char cause[128];

	if (error)
		return error;
	snprintf(cause, sizeof(cause),
		 "the channel was cancelled, and %u outstanding request%s stopped",
		 pier_channel_outstanding(channel),
		 pier_channel_outstanding(channel) == 1 ? "" : "s");
	pier_break_channel(channel, -ECANCELED, cause);
	pier_stop_channel(channel);
	return 0;
}

enum {
	PSN_MASK = 0xffffff,
	HALF_OF_PSNS = 0x800000,
	AROUND_HALF =
		0x400000, /* the width of the range that the new PSN is chosen from */
};

/* By way of ERR, so that everything outstanding has completed before it is forgotten. */
static int stop_if_running(struct pier_channel *channel)
{
	if (!channel->is_reset)
		pier_stop_channel(channel);
	return 0;
}

/*
 * A CQ that overran fails all polls from then on (ibv_poll_cq(3)), and the channel
 * keeps its CQ. Posted requests would never complete.
 */
static int check_completions(struct pier_channel *channel)
{
	int count = pier_collect(channel);

	return count < 0 ? count : 0;
}

/* The PSN of the packet that was sent last, if the device reports it. */
static uint32_t last_psn(struct pier_channel *channel)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (channel->path_mtu == 0 ||
	    channel->provider->query_qp(channel->qp, &attr, IBV_QP_SQ_PSN, &init) != 0)
		return channel->psn;
	return attr.sq_psn;
}

/*
 * A responder accepts any packet with the expected PSN, whoever sent it, and takes
 * other PSNs for repetitions or gaps (IBTA 9.7.1). The new connection therefore begins
 * far from the last PSN, close to which late packets are.
 */
static int choose_new_psn(struct pier_channel *channel)
{
	uint32_t random;

	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return pier_fail(EIO, "getrandom() returned too few bytes");
	channel->psn = (last_psn(channel) + HALF_OF_PSNS - AROUND_HALF / 2 +
			random % AROUND_HALF) &
		       PSN_MASK;
	if (++channel->generation == 0)
		channel->generation = 1;
	channel->resets++;
	return 0;
}

static int to_reset(struct pier_channel *channel)
{
	int error;

	pier_clear_error();
	error = channel->is_reset ? 0 : modify_state(channel, IBV_QPS_RESET);
	if (error)
		return pier_fail_because(error, "bring queue pair %#x to RESET",
					 channel->qp_num);
	return 0;
}

/* The new one first: the channel always has a queue pair. */
static int replace_qp(struct pier_channel *channel)
{
	struct ibv_qp *old = channel->qp;
	int error = pier_create_qp(channel);

	if (error) {
		channel->qp = old;
		return error;
	}
	pier_clear_error();
	error = channel->provider->destroy_qp(old);
	if (!error)
		return 0;
	channel->provider->destroy_qp(channel->qp);
	channel->qp = old;
	pier_name_qp(channel);
	return pier_fail_because(error, "destroy queue pair %#x", old->qp_num);
}

/*
 * irdma reports success for RESET of a queue pair in ERR, leaves it there, and refuses
 * INIT with EINVAL (irdma_modify_qp_roce(); Mooncake pull request 721).
 *
 * rxe does so now and then (Linux 6.12): rxe_qp_from_attr() sets RESET and then waits for
 * the tasks of the queue pair (rxe_qp_reset(), rxe_disable_task()). A task that had seen
 * ERR before, and flushes a request, calls rxe_qp_error() meanwhile, which sets ERR
 * whatever the state is (rxe_requester() at "err", COMPST_ERROR in rxe_completer()).
 */
static int to_init(struct pier_channel *channel)
{
	int error = pier_modify_to_init(channel);

	if (error != -EINVAL)
		return error;
	pier_info("queue pair %#x does not leave RESET: replacing it", channel->qp_num);
	error = replace_qp(channel);
	return error ? error : pier_modify_to_init(channel);
}

static void clear_connection(struct pier_channel *channel)
{
	channel->broken = 0;
	channel->cause_is_flush = false;
	channel->cause[0] = '\0';
	channel->first = (struct pier_result){ 0 };
	channel->flushed = 0;
	channel->path_mtu = 0;
	channel->read_depth = 0;
	channel->keepalive = (struct pier_keepalive){ 0 };
	free(channel->handshake);
	channel->handshake = NULL;
	channel->state = PIER_CHANNEL_PREPARED;
}

int pier_channel_reset(struct pier_channel *channel)
{
	PIER_REFUSE_NULL(channel);
	static int (*const steps[])(struct pier_channel *) = {
		stop_if_running, check_completions, pier_end_windows,
		choose_new_psn,	 to_reset,	    pier_query_channel_port,
		to_init,
	};
	int error = pier_check_process(&channel->object);

	if (!error)
		error = pier_check_owner(&channel->object, &channel->pd->object,
					 "resetting a channel");
	if (error)
		return error;
	channel->state = PIER_CHANNEL_FAILED;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !error; i++)
		error = steps[i](channel);
	if (error)
		pier_break_channel(channel, error, pier_error_message());
	else
		clear_connection(channel);
	pier_update_ready(channel);
	return error ? pier_fail_because(error, "resetting the channel of queue pair %#x",
					 channel->qp_num)
		     : 0;
}

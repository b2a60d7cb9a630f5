/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "channel/extra/scope_failures.h"
#include "channel/recv/srq_post.h"
#include "collect.h"
#include "core/error.h"
#include "core/fd.h"

/* Nobody polls for an unwatched request: only its scope learns that it has failed. */
static __attribute__((cold)) struct pier_result note_failed_entry(
	struct pier_channel *channel, const struct ibv_wc *wc,
	const struct pier_entry *entry)
{
	struct pier_result result = pier_note_failure(channel, wc,
						      pier_entry_opcode(entry));

	if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED)
		pier_note_in_scope(channel, entry->id, &result);
	return result;
}

static void note_keepalive_answer(struct pier_channel *channel, const struct ibv_wc *wc)
{
	channel->keepalive.outstanding = false;
	channel->keepalive.since = 0;
	if (wc->status != IBV_WC_SUCCESS)
		pier_note_failure(channel, wc, PIER_OP_KEEPALIVE);
}

static void dispatch_srq_receive(struct pier_channel *channel, const struct ibv_wc *wc)
{
	struct pier_srq_entry *entry = pier_srq_arrived(channel, wc->wr_id);

	if (!entry)
		return;
	entry->result = wc->status == IBV_WC_SUCCESS
				? pier_receive_result(channel, wc)
				: pier_note_failure(channel, wc, PIER_OP_RECV);
}

/*
 * Handle a completion that matches no ring entry: a keepalive, an SRQ receive, or a
 * request that the caller posted to the QP directly.
 */
static __attribute__((noinline)) void dispatch_unlisted(struct pier_channel *channel,
							const struct ibv_wc *wc)
{
	if (wc->wr_id == PIER_ID_KEEPALIVE)
		note_keepalive_answer(channel, wc);
	else if (channel->attr.srq && (wc->wr_id & PIER_ID_SHARED))
		dispatch_srq_receive(channel, wc);
}

void pier_dispatch_completion(struct pier_channel *channel, const struct ibv_wc *wc)
{
	struct pier_queue *queue = pier_queue_of(channel, wc->wr_id);
	struct pier_entry *entry = pier_queue_entry(queue, wc->wr_id);
	struct pier_result result = { .opcode = pier_entry_opcode(entry),
				      .byte_length = pier_entry_length(entry) };

	if (pier_unlikely(entry->id != wc->wr_id ||
			  pier_entry_get_state(entry) == PIER_ENTRY_DONE)) {
		dispatch_unlisted(channel, wc);
		return;
	}
	if (pier_unlikely(wc->status != IBV_WC_SUCCESS))
		result = note_failed_entry(channel, wc, entry);
	else if (queue == &channel->receives)
		result = pier_receive_result(channel, wc);
	pier_queue_done(queue, wc->wr_id & PIER_ID_POSITION);
	if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED)
		return;
	pier_queue_keep(queue, entry, &result);
}

int pier_collect_more(struct pier_channel *channel, const struct ibv_wc *first, int count)
{
	struct ibv_wc batch[PIER_CQ_BATCH];
	int total = 0;

	for (;;) {
		/* Providers return -1, which is not an errno. */
		if (pier_unlikely(count < 0))
			return pier_fail(EIO,
					 "poll the completion queue: ibv_poll_cq "
					 "returned %d",
					 count);
		for (int i = 0; i < count; i++)
			pier_dispatch_completion(channel, &first[i]);
		total += count;
		if (count < PIER_CQ_BATCH)
			return total;
		first = batch;
		count = ibv_poll_cq(channel->cq, PIER_CQ_BATCH, batch);
	}
}

int pier_collect(struct pier_channel *channel)
{
	struct ibv_wc batch[PIER_CQ_BATCH];

	return pier_collect_more(channel, batch,
				 ibv_poll_cq(channel->cq, PIER_CQ_BATCH, batch));
}

/*
 * Acknowledge each event at once: ibv_destroy_cq() waits for all acknowledgements. After
 * the device was removed, poll(2) reports POLLERR for ever and read(2) fails with EIO:
 * ib_uverbs_event_poll() and ib_uverbs_event_read() in uverbs_main.c.
 */
static int take_cq_events(struct pier_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	errno = 0;
	while (channel->provider->get_cq_event(channel->events, &cq, &context) == 0)
		channel->provider->ack_cq_events(cq, 1);
	if (pier_is_transient(errno))
		return 0;
	return pier_fail_because(errno,
				 "take the events of the completion channel: the device "
				 "%s may have been removed",
				 channel->pd->device->name);
}

int pier_arm_completions(struct pier_channel *channel)
{
	int error;

	pier_clear_error();
	error = take_cq_events(channel);
	if (error)
		return error;
	error = ibv_req_notify_cq(channel->cq, 0);
	if (error)
		return pier_fail_because(error, "ask the completion queue for an event");
	return pier_collect(channel);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "channel/cq/members.h"
#include "channel/scope_failures.h"
#include "channel/recv/srq_post.h"
#include "collect.h"
#include "core/error.h"

/* Nobody polls for an unwatched request: only its scope learns that it has failed. */
static __attribute__((cold)) struct pier_result note_failed_entry(
	struct pier_channel *channel, const struct ibv_wc *wc,
	const struct pier_queue *queue, const struct pier_entry *entry)
{
	bool first = !channel->broken;
	struct pier_result result = pier_note_failure(
		channel, wc, pier_entry_opcode(entry), pier_entry_context(entry));

	if (first)
		pier_blame_regions(channel, queue, entry);
	if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED)
		pier_note_in_scope(channel, entry->id, &result);
	return result;
}

static void note_keepalive_answer(struct pier_channel *channel, const struct ibv_wc *wc)
{
	channel->keepalive.outstanding = false;
	channel->keepalive.since = 0;
	if (wc->status != IBV_WC_SUCCESS)
		pier_note_failure(channel, wc, PIER_OP_KEEPALIVE, NULL);
}

static void dispatch_srq_receive(struct pier_channel *channel, const struct ibv_wc *wc)
{
	struct pier_srq_entry *entry = pier_srq_arrived(channel, wc->wr_id);

	if (!entry)
		return;
	entry->result = wc->status == IBV_WC_SUCCESS
				? pier_receive_result(channel, wc)
				: pier_note_failure(channel, wc, PIER_OP_RECV,
						    entry->context);
	entry->result.context = entry->context;
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
		result = note_failed_entry(channel, wc, queue, entry);
	else if (queue == &channel->receives)
		result = pier_receive_result(channel, wc);
	pier_queue_done(queue, wc->wr_id & PIER_ID_POSITION);
	if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED)
		return;
	result.context = pier_entry_context(entry);
	pier_queue_keep(queue, entry, &result);
}

/* Providers return -1, which is not an errno. */
static int fail_polling(int count)
{
	return pier_fail(EIO, "poll the completion queue: ibv_poll_cq returned %d",
			 count);
}

/*
 * Hand a completion to its channel. It has none if the channel was destroyed: some
 * providers remove its completions from the queue (mlx5_cq_clean() in libmlx5), others
 * leave them there (rxe_destroy_qp() in librxe).
 *
 * Returns whether the channel is `asker`, or there is one, if `asker` is NULL.
 */
static bool route_completion(struct pier_cq *cq, struct pier_channel *asker,
			     const struct ibv_wc *wc)
{
	struct pier_channel *channel = asker && asker->qp_num == wc->qp_num
					       ? asker
					       : pier_cq_find(cq, wc->qp_num);

	if (!channel)
		return false;
	pier_dispatch_completion(channel, wc);
	pier_cq_note_news(cq, channel);
	channel->unseen |= channel != asker;
	return !asker || channel == asker;
}

/* Returns the number of completions of `asker`; NULL: of all channels. */
static int collect_shared(struct pier_cq *cq, struct pier_channel *asker,
			  const struct ibv_wc *first, int count)
{
	struct ibv_wc batch[PIER_CQ_BATCH];
	int total = 0;

	for (;;) {
		if (count < 0)
			return fail_polling(count);
		for (int i = 0; i < count; i++)
			total += route_completion(cq, asker, &first[i]);
		if (count < PIER_CQ_BATCH)
			return total;
		first = batch;
		count = ibv_poll_cq(cq->completions.cq, PIER_CQ_BATCH, batch);
	}
}

int pier_collect_cq(struct pier_cq *cq)
{
	struct ibv_wc batch[PIER_CQ_BATCH];

	return collect_shared(cq, NULL, batch,
			      ibv_poll_cq(cq->completions.cq, PIER_CQ_BATCH, batch));
}

/* room: for PIER_CQ_BATCH completions; may be that of the first ones */
static inline __attribute__((always_inline)) int collect_from(
	struct pier_channel *channel, const struct ibv_wc *first, int count,
	struct ibv_wc *room)
{
	int total = 0;

	if (pier_unlikely(channel->attr.cq))
		return collect_shared(channel->attr.cq, channel, first, count);
	for (;;) {
		if (pier_unlikely(count < 0))
			return fail_polling(count);
		for (int i = 0; i < count; i++)
			pier_dispatch_completion(channel, &first[i]);
		total += count;
		if (count < PIER_CQ_BATCH)
			return total;
		first = room;
		count = ibv_poll_cq(channel->cq, PIER_CQ_BATCH, room);
	}
}

int pier_collect_more(struct pier_channel *channel, const struct ibv_wc *first, int count)
{
	struct ibv_wc batch[PIER_CQ_BATCH];

	return collect_from(channel, first, count, batch);
}

int pier_collect(struct pier_channel *channel)
{
	struct ibv_wc batch[PIER_CQ_BATCH];
	int count = ibv_poll_cq(channel->cq, PIER_CQ_BATCH, batch);

	return collect_from(channel, batch, count, batch);
}

int pier_arm_completions(struct pier_channel *channel)
{
	int error = pier_request_event(channel->provider, &channel->completions);

	return error ? error : pier_collect(channel);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "channel/keepalive.h"
#include "channel/scope_failures.h"
#include "collect.h"
#include "core/error.h"

int pier_channel_poll(struct pier_channel *channel)
{
	PIER_REFUSE_NULL(channel);
	int error = pier_check_process(&channel->object);
	int count = error ? error : pier_collect(channel);

	if (count == 0)
		pier_keep_alive(channel);
	return count;
}

/*
 * Completions of all channels count. An application arms each channel of a shared CQ in
 * turn, and each call takes the event of the call before: nothing else announces what it
 * collects for a channel that was armed before.
 */
static int collect_for_all(struct pier_channel *channel)
{
	return channel->attr.cq ? pier_collect_cq(channel->attr.cq)
				: pier_collect(channel);
}

int pier_channel_arm(struct pier_channel *channel)
{
	PIER_REFUSE_NULL(channel);
	int error = pier_check_process(&channel->object);
	int unseen = channel->unseen;
	int before = error ? error : collect_for_all(channel);
	int after;

	if (before < 0)
		return before;
	before += pier_keep_alive(channel);
	error = pier_request_event(channel->provider, &channel->completions);
	after = error ? error : collect_for_all(channel);
	if (after < 0)
		return after;
	channel->unseen = false;
	return before + after + unseen;
}

static int hand_out(struct pier_channel *channel, struct pier_queue *queue,
		    struct pier_entry *entry, struct pier_result *ret_result)
{
	if (pier_unlikely(entry->result.error))
		pier_explain_failure(channel, &entry->result);
	if (ret_result)
		*ret_result = entry->result;
	pier_queue_forget(queue, entry);
	return 1;
}

static __attribute__((cold)) int fail_stale(struct pier_work work)
{
	return pier_fail(ESTALE,
			 "handle %#llx names no request of this channel: it was used "
			 "before, or it belongs to another channel",
			 (unsigned long long)work.id);
}

/*
 * The caller has polled `count` completions. Collect all others, then look at the
 * request.
 */
static __attribute__((noinline)) int collect_rest(struct pier_channel *channel,
						  const struct ibv_wc *batch, int count,
						  struct pier_work work,
						  struct pier_result *ret_result)
{
	struct pier_queue *queue = pier_queue_of(channel, work.id);
	struct pier_entry *entry = pier_queue_find(queue, work.id);

	count = pier_collect_more(channel, batch, count);
	if (pier_unlikely(count < 0))
		return count;
	return pier_entry_get_state(entry) == PIER_ENTRY_DONE
		       ? hand_out(channel, queue, entry, ret_result)
		       : 0;
}

/* The inline caller has polled one completion, or none. */
int pier_hot_complete(struct pier_channel *channel, const struct ibv_wc *wc, int count,
		      struct pier_work work, struct pier_result *ret_result)
{
	struct ibv_wc batch[PIER_CQ_BATCH];

	if (count > 0) {
		if (pier_unlikely(channel->attr.cq))
			pier_collect_more(channel, wc, count);
		else
			pier_dispatch_completion(channel, wc);
		count = ibv_poll_cq(channel->cq, PIER_CQ_BATCH, batch);
	}
	if (count == 0 && channel->idle_calls)
		pier_keepalive_check_rarely(channel);
	return collect_rest(channel, batch, count, work, ret_result);
}

/*
 * The request is done, unknown, or has a context, or the channel belongs to the parent
 * process.
 */
static __attribute__((noinline)) int poll_other(struct pier_channel *channel,
						struct pier_work work,
						struct pier_result *ret_result)
{
	struct pier_queue *queue = pier_queue_of(channel, work.id);
	struct pier_entry *entry = pier_queue_find(queue, work.id);
	struct ibv_wc wc;
	int count;

	if (pier_inherited(&channel->object))
		return pier_fail_inherited(&channel->object);
	if (!entry)
		return fail_stale(work);
	if (pier_entry_get_state(entry) == PIER_ENTRY_DONE)
		return hand_out(channel, queue, entry, ret_result);
	count = ibv_poll_cq(channel->cq, 1, &wc);
	if (count == 0 && !channel->idle_calls)
		return 0;
	return pier_hot_complete(channel, &wc, count, work, ret_result);
}

/*
 * Usually there is one completion or none, and it is the request's own: then nothing is
 * stored.
 */
static inline __attribute__((always_inline)) int poll_in(struct pier_channel *channel,
							 struct pier_queue *queue,
							 struct pier_work work,
							 struct pier_result *ret_result)
{
	struct pier_entry *entry = pier_queue_entry(queue, work.id);
	struct ibv_wc batch[PIER_CQ_BATCH];
	int count;

	if (pier_unlikely(entry->id != work.id || !pier_entry_is_plain(entry)))
		return poll_other(channel, work, ret_result);
	count = ibv_poll_cq(channel->cq, PIER_CQ_BATCH, batch);
	if (count == 0) {
		if (pier_unlikely(channel->idle_calls))
			pier_keepalive_check_rarely(channel);
		return 0;
	}
	if (pier_unlikely(count != 1 || batch[0].wr_id != work.id ||
			  batch[0].status != IBV_WC_SUCCESS || !ret_result))
		return collect_rest(channel, batch, count, work, ret_result);
	pier_queue_done(queue, work.id & PIER_ID_POSITION);
	if (queue == &channel->receives)
		*ret_result = pier_receive_result(channel, &batch[0]);
	else
		*ret_result =
			(struct pier_result){ .opcode = pier_entry_opcode(entry),
					      .byte_length = pier_entry_length(entry) };
	__atomic_store_n(&entry->kind, UINT64_C(0), __ATOMIC_RELAXED);
	return 1;
}

int pier_work_poll(struct pier_channel *channel, struct pier_work work,
		   struct pier_result *ret_result)
{
	PIER_REFUSE_NULL(channel);
	if (work.id & PIER_ID_RECEIVE)
		return poll_in(channel, &channel->receives, work, ret_result);
	return poll_in(channel, &channel->sends, work, ret_result);
}

int pier_work_drop(struct pier_channel *channel, struct pier_work work)
{
	PIER_REFUSE_NULL(channel);
	struct pier_queue *queue = pier_queue_of(channel, work.id);
	struct pier_entry *entry = pier_queue_find(queue, work.id);

	if (pier_inherited(&channel->object))
		return pier_fail_inherited(&channel->object);
	if (!entry)
		return fail_stale(work);
	if (pier_entry_get_state(entry) == PIER_ENTRY_DONE && entry->result.error)
		pier_note_in_scope(channel, work.id, &entry->result);
	pier_queue_forget(queue, entry);
	return 0;
}

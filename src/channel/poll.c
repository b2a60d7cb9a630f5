/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "channel/extra/counter.h"
#include "channel/extra/keepalive.h"
#include "posting.h"
#include "channel/extra/scope.h"
#include "channel/recv/srq.h"
#include "status.h"
#include "core/hot_alias.h"
#include "core/error.h"

enum {
	BATCH = 16, /* completions taken at once, on the stack */
};

/*
 * The first error is the cause of the flushes behind it, whichever comes first. Only
 * status, wr_id, qp_num and vendor_err are valid of a failure (ibv_poll_cq(3)).
 */
struct pier_result pier_note_failure(struct pier_channel *channel,
				     const struct ibv_wc *wc, enum pier_opcode opcode)
{
	const struct pier_result result = {
		.error = pier_status_error(wc->status, opcode),
		.status = wc->status,
		.vendor_error = wc->vendor_err,
		.opcode = opcode,
	};
	bool flush = wc->status == IBV_WC_WR_FLUSH_ERR;
	bool better = channel->cause_is_flush && !flush;

	/* One of the two is a flush, or will be when it has a better cause. */
	channel->flushed += channel->broken && (flush || better);
	if (channel->broken && !better)
		return result;
	channel->first = result;
	channel->broken = result.error;
	channel->cause_is_flush = flush;
	pier_update_ready(channel);
	pier_describe_status(wc->status, wc->vendor_err, opcode, channel->cause,
			     sizeof(channel->cause));
	return result;
}

void pier_break_channel(struct pier_channel *channel, int error, const char *cause)
{
	if (channel->broken)
		return;
	channel->broken = error;
	channel->first = (struct pier_result){ .error = error };
	pier_update_ready(channel);
	snprintf(channel->cause, sizeof(channel->cause), "%s", cause);
}

int pier_fail_broken(const struct pier_channel *channel)
{
	return pier_fail(EPIPE, "the channel is broken: %s", channel->cause);
}

/* Of a request that stands in a ring; nobody but its scope learns of one unwatched. */
static __attribute__((cold)) struct pier_result failed(struct pier_channel *channel,
						       const struct ibv_wc *wc,
						       const struct pier_entry *entry)
{
	struct pier_result result = pier_note_failure(channel, wc,
						      pier_entry_opcode(entry));

	if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED)
		pier_note_in_scope(channel, entry->id, &result);
	return result;
}

static struct pier_result received(const struct pier_channel *channel,
				   const struct ibv_wc *wc)
{
	struct pier_result result = { .opcode = PIER_OP_RECV,
				      .byte_length = wc->byte_len };

	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		result.opcode = PIER_OP_RECV_WRITE_IMM;
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		result.has_immediate = true;
		result.immediate = ntohl(wc->imm_data);
		if (channel->arrivals && result.opcode == PIER_OP_RECV_WRITE_IMM)
			pier_count_arrival(channel, result.immediate);
	}
	if (wc->wc_flags & IBV_WC_WITH_INV) {
		result.has_invalidated = true;
		result.invalidated_rkey = wc->invalidated_rkey;
	}
	return result;
}

/*
 * Not of what stands in the rings: of a look whether the peer lives; of the shared
 * receive queue; or of a request that the caller posted to the queue pair without us, or
 * repeated.
 */
static __attribute__((noinline)) void dispatch_other(struct pier_channel *channel,
						     const struct ibv_wc *wc)
{
	struct pier_srq_entry *entry = NULL;

	if (wc->wr_id == PIER_ID_KEEPALIVE)
		pier_peer_answered(channel, wc);
	else if (channel->attr.srq && (wc->wr_id & PIER_ID_SHARED))
		entry = pier_srq_arrived(channel, wc->wr_id);
	if (!entry)
		return;
	entry->result = wc->status == IBV_WC_SUCCESS
				? received(channel, wc)
				: pier_note_failure(channel, wc, PIER_OP_RECV);
}

static void dispatch(struct pier_channel *channel, const struct ibv_wc *wc)
{
	struct pier_queue *queue = pier_queue_of(channel, wc->wr_id);
	struct pier_entry *entry = pier_queue_entry(queue, wc->wr_id);
	struct pier_result result = { .opcode = pier_entry_opcode(entry),
				      .byte_length = pier_entry_length(entry) };

	if (pier_unlikely(entry->id != wc->wr_id ||
			  pier_entry_get_state(entry) == PIER_ENTRY_DONE)) {
		dispatch_other(channel, wc);
		return;
	}
	if (pier_unlikely(wc->status != IBV_WC_SUCCESS))
		result = failed(channel, wc, entry);
	else if (queue == &channel->receives)
		result = received(channel, wc);
	pier_queue_done(queue, wc->wr_id & PIER_ID_POSITION);
	if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED)
		return;
	pier_queue_keep(queue, entry, &result);
}

/* `count` completions were taken, and there may be more. */
static int collect_more(struct pier_channel *channel, const struct ibv_wc *first,
			int count)
{
	struct ibv_wc batch[BATCH];
	int total = 0;

	for (;;) {
		/* Providers return -1, which is no errno. */
		if (pier_unlikely(count < 0))
			return pier_fail(EIO,
					 "poll the completion queue: ibv_poll_cq "
					 "returned %d",
					 count);
		for (int i = 0; i < count; i++)
			dispatch(channel, &first[i]);
		total += count;
		if (count < BATCH)
			return total;
		first = batch;
		count = ibv_poll_cq(channel->cq, BATCH, batch);
	}
}

int pier_collect(struct pier_channel *channel)
{
	struct ibv_wc batch[BATCH];

	return collect_more(channel, batch, ibv_poll_cq(channel->cq, BATCH, batch));
}

int pier_channel_poll(struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);
	int count = error ? error : pier_collect(channel);

	if (count == 0)
		pier_keep_alive(channel);
	return count;
}

/* Each event is acknowledged at once: ibv_destroy_cq() waits for all of them. */
static void take_events(struct pier_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	while (channel->provider->get_cq_event(channel->events, &cq, &context) == 0)
		channel->provider->ack_cq_events(cq, 1);
}

int pier_channel_arm(struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);
	int before, after;

	if (error)
		return error;
	pier_clear_error();
	before = pier_collect(channel);
	if (before < 0)
		return before;
	before += channel->unseen;
	channel->unseen = false;
	pier_keep_alive(channel);
	take_events(channel);
	error = ibv_req_notify_cq(channel->cq, 0);
	if (error)
		return pier_fail_because(error, "ask the completion queue for an event");
	/* What came before it was armed gives no event. */
	after = pier_collect(channel);
	return after < 0 ? after : before + after;
}

void pier_explain_failure(const struct pier_channel *channel,
			  const struct pier_result *result)
{
	char sentence[sizeof(channel->cause)];

	pier_describe_status((enum ibv_wc_status)result->status, result->vendor_error,
			     result->opcode, sentence, sizeof(sentence));
	if (result->status == IBV_WC_WR_FLUSH_ERR && !channel->cause_is_flush)
		pier_fail(-result->error, "%s was flushed, because of this: %s",
			  pier_opcode_name(result->opcode), channel->cause);
	else
		pier_fail(-result->error, "%s", sentence);
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
			 "handle %#llx names no request of this channel: it "
			 "was used up, or is of another channel",
			 (unsigned long long)work.id);
}

/* `count` completions were taken: all that is complete, and then the request. */
static __attribute__((noinline)) int collect_rest(struct pier_channel *channel,
						  const struct ibv_wc *batch, int count,
						  struct pier_work work,
						  struct pier_result *ret_result)
{
	struct pier_queue *queue = pier_queue_of(channel, work.id);
	struct pier_entry *entry = pier_queue_find(queue, work.id);

	count = collect_more(channel, batch, count);
	if (pier_unlikely(count < 0))
		return count;
	return pier_entry_get_state(entry) == PIER_ENTRY_DONE
		       ? hand_out(channel, queue, entry, ret_result)
		       : 0;
}

/* Whoever called took one, and there may be more. */
int pier_hot_complete(struct pier_channel *channel, const struct ibv_wc *wc, int count,
		      struct pier_work work, struct pier_result *ret_result)
{
	struct ibv_wc batch[BATCH];

	if (count == 1) {
		dispatch(channel, wc);
		count = ibv_poll_cq(channel->cq, BATCH, batch);
	}
	if (count == 0 && channel->idle_calls)
		pier_look_after_peer_rarely(channel);
	return collect_rest(channel, batch, count, work, ret_result);
}

/* What is done already, or nobody's, or of the parent's. */
static __attribute__((noinline)) int poll_other(struct pier_channel *channel,
						struct pier_work work,
						struct pier_result *ret_result)
{
	struct pier_queue *queue = pier_queue_of(channel, work.id);
	struct pier_entry *entry = pier_queue_find(queue, work.id);

	if (pier_inherited(&channel->object))
		return pier_fail_inherited(&channel->object);
	return entry ? hand_out(channel, queue, entry, ret_result) : fail_stale(work);
}

/*
 * Mostly there is one completion or none, and it is that of the request: nothing is
 * kept of what is handed out at once.
 */
static inline __attribute__((always_inline)) int poll_in(struct pier_channel *channel,
							 struct pier_queue *queue,
							 struct pier_work work,
							 struct pier_result *ret_result)
{
	struct pier_entry *entry = pier_queue_entry(queue, work.id);
	struct ibv_wc batch[BATCH];
	int count;

	if (pier_unlikely(entry->id != work.id ||
			  pier_entry_get_state(entry) != PIER_ENTRY_WATCHED))
		return poll_other(channel, work, ret_result);
	count = ibv_poll_cq(channel->cq, BATCH, batch);
	if (count == 0) {
		if (pier_unlikely(channel->idle_calls))
			pier_look_after_peer_rarely(channel);
		return 0;
	}
	if (pier_unlikely(count != 1 || batch[0].wr_id != work.id ||
			  batch[0].status != IBV_WC_SUCCESS || !ret_result))
		return collect_rest(channel, batch, count, work, ret_result);
	pier_queue_done(queue, work.id & PIER_ID_POSITION);
	if (queue == &channel->receives)
		*ret_result = received(channel, &batch[0]);
	else
		*ret_result =
			(struct pier_result){ .opcode = pier_entry_opcode(entry),
					      .byte_length = pier_entry_length(entry) };
	pier_entry_set_state(entry, PIER_ENTRY_UNWATCHED);
	return 1;
}

int pier_work_poll(struct pier_channel *channel, struct pier_work work,
		   struct pier_result *ret_result)
{
	if (work.id & PIER_ID_RECEIVE)
		return poll_in(channel, &channel->receives, work, ret_result);
	return poll_in(channel, &channel->sends, work, ret_result);
}

int pier_work_drop(struct pier_channel *channel, struct pier_work work)
{
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

PIER_HOT_ALIAS(work_poll);

/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

#include "channel.h"
#include "counter.h"
#include "status.h"
#include "util/error.h"

enum {
	BATCH = 16, /* completions taken at once, on the stack */
};

/* The first error is the cause of the flushes behind it, whichever comes first. */
static __attribute__((cold)) void note_failure(struct pier_channel *channel,
					       const struct pier_slot *slot,
					       const struct pier_result *result)
{
	bool flush = result->status == IBV_WC_WR_FLUSH_ERR;

	if (channel->broken && !(channel->cause_is_flush && !flush))
		return;
	channel->broken = result->error;
	channel->cause_is_flush = flush;
	pier_describe_status((enum ibv_wc_status)result->status, result->vendor_error,
			     slot->opcode, channel->cause, sizeof(channel->cause));
}

void pier_break_channel(struct pier_channel *channel, int error, const char *cause)
{
	if (channel->broken)
		return;
	channel->broken = error;
	snprintf(channel->cause, sizeof(channel->cause), "%s", cause);
}

int pier_fail_broken(const struct pier_channel *channel)
{
	return pier_fail(EPIPE, "the channel is broken: %s", channel->cause);
}

/* Only status, wr_id, qp_num and vendor_err are valid of a failure (ibv_poll_cq(3)). */
static struct pier_result failure(const struct pier_slot *slot, const struct ibv_wc *wc)
{
	return (struct pier_result){
		.error = pier_status_error(wc->status, slot->opcode),
		.status = wc->status,
		.vendor_error = wc->vendor_err,
		.opcode = slot->opcode,
	};
}

static struct pier_result success(const struct pier_channel *channel,
				  const struct pier_slot *slot, const struct ibv_wc *wc)
{
	struct pier_result result = { .opcode = slot->opcode };

	if (slot->opcode == PIER_OP_READ)
		result.byte_length = slot->length;
	if (slot->opcode != PIER_OP_RECV)
		return result;
	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		result.opcode = PIER_OP_RECV_WRITE_IMM;
	result.byte_length = wc->byte_len;
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		result.has_immediate = true;
		result.immediate = ntohl(wc->imm_data);
		if (channel->arrivals && result.opcode == PIER_OP_RECV_WRITE_IMM)
			pier_count_arrival(channel, result.immediate);
	}
	return result;
}

static void dispatch(struct pier_channel *channel, const struct ibv_wc *wc)
{
	struct pier_slot *slot = pier_find_slot(&channel->slots, wc->wr_id);
	struct pier_result result;

	/* Of a request that the caller posted to the queue pair without us. */
	if (!slot || slot->state == PIER_SLOT_DONE)
		return;
	if (__builtin_expect(wc->status == IBV_WC_SUCCESS, 1)) {
		result = success(channel, slot, wc);
	} else {
		result = failure(slot, wc);
		note_failure(channel, slot, &result);
	}
	pier_slot_done(&channel->slots, slot, &result);
}

int pier_collect(struct pier_channel *channel)
{
	struct ibv_wc batch[BATCH];
	int total = 0, count;

	do {
		count = ibv_poll_cq(channel->cq, BATCH, batch);
		/* Providers return -1, which is no errno. */
		if (count < 0)
			return pier_fail(EIO,
					 "poll the completion queue: ibv_poll_cq "
					 "returned %d",
					 count);
		for (int i = 0; i < count; i++)
			dispatch(channel, &batch[i]);
		total += count;
	} while (count == BATCH);
	return total;
}

int pier_poll(struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);

	return error ? error : pier_collect(channel);
}

/* Each event is acknowledged at once: ibv_destroy_cq() waits for all of them. */
static void take_events(struct pier_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	while (channel->provider->get_cq_event(channel->events, &cq, &context) == 0)
		channel->provider->ack_cq_events(cq, 1);
}

int pier_arm_channel(struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);
	int before, after;

	if (error)
		return error;
	pier_clear_error();
	before = pier_collect(channel);
	if (before < 0)
		return before;
	take_events(channel);
	error = ibv_req_notify_cq(channel->cq, 0);
	if (error)
		return pier_fail_because(error, "ask the completion queue for an event");
	/* What came before it was armed gives no event. */
	after = pier_collect(channel);
	return after < 0 ? after : before + after;
}

/* Leaves the sentence for pier_last_error(). */
static __attribute__((cold)) void explain(const struct pier_channel *channel,
					  const struct pier_slot *slot)
{
	const struct pier_result *result = &slot->result;
	char sentence[sizeof(channel->cause)];

	pier_describe_status((enum ibv_wc_status)result->status, result->vendor_error,
			     slot->opcode, sentence, sizeof(sentence));
	if (result->status == IBV_WC_WR_FLUSH_ERR && !channel->cause_is_flush)
		pier_fail(-result->error, "%s was flushed, because of this: %s",
			  pier_opcode_name(slot->opcode), channel->cause);
	else
		pier_fail(-result->error, "%s", sentence);
}

static int hand_out(struct pier_channel *channel, struct pier_slot *slot,
		    struct pier_result *ret_result)
{
	if (slot->result.error)
		explain(channel, slot);
	if (ret_result)
		*ret_result = slot->result;
	pier_give_slot(&channel->slots, slot);
	return 1;
}

int pier_poll_work(struct pier_channel *channel, struct pier_work work,
		   struct pier_result *ret_result)
{
	struct pier_slot *slot = pier_find_slot(&channel->slots, work.id);
	int count;

	if (pier_inherited(&channel->object))
		return pier_fail_inherited(&channel->object);
	if (!slot || slot->state == PIER_SLOT_UNWATCHED)
		return pier_fail(ESTALE,
				 "handle %#llx names no request of this channel: it "
				 "was used up, or is of another channel",
				 (unsigned long long)work.id);
	if (slot->state == PIER_SLOT_DONE)
		return hand_out(channel, slot, ret_result);
	count = pier_collect(channel);
	if (count < 0)
		return count;
	if (slot->state != PIER_SLOT_DONE)
		return 0;
	return hand_out(channel, slot, ret_result);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "channel.h"
#include "status.h"
#include "core/deadline.h"
#include "core/error.h"
#include "region/cache/index.h"
#include "region/mr.h"

void pier_update_ready(struct pier_channel *channel)
{
	bool connected = channel->state == PIER_CHANNEL_CONNECTED && !channel->broken;
	bool prepared = channel->state == PIER_CHANNEL_PREPARED && !channel->broken;
	bool receives = (connected || prepared) && !channel->attr.srq;

	channel->sends.limit = connected ? channel->sends.depth : 0;
	channel->receives.limit = receives ? channel->receives.depth : 0;
	channel->reported_broken = channel->reported_broken && channel->broken;
}

/* Append the event of the device that explains a failure of the channel. */
static void add_device_event(const struct pier_channel *channel, char *sentence,
			     size_t size)
{
	size_t used = strlen(sentence);
	char event[160];

	if (pier_explain_by_event(channel->pd->device, channel->qp, channel->attr.port,
				  event, sizeof(event)))
		snprintf(sentence + used, size - used, "; %s", event);
}

/*
 * The first error is the cause of the flushes behind it, even if a flush completes
 * first. Only status, wr_id, qp_num and vendor_err of a failed completion are valid
 * (ibv_poll_cq(3)).
 */
struct pier_result pier_note_failure(struct pier_channel *channel,
				     const struct ibv_wc *wc, enum pier_opcode opcode,
				     void *context)
{
	const struct pier_result result = {
		.error = pier_status_error(wc->status, opcode),
		.status = wc->status,
		.vendor_error = wc->vendor_err,
		.opcode = opcode,
		.context = context,
	};
	bool flush = wc->status == IBV_WC_WR_FLUSH_ERR;
	bool better = channel->cause_is_flush && !flush;

	/*
	 * One of the two is a flush: this one, or the cause so far, which this one
	 * replaces.
	 */
	channel->flushed += channel->broken && (flush || better);
	if (channel->broken && !better)
		return result;
	channel->first = result;
	channel->broken = result.error;
	channel->cause_is_flush = flush;
	pier_update_ready(channel);
	pier_describe_status(wc->status, wc->vendor_err, opcode, channel->cause,
			     sizeof(channel->cause));
	add_device_event(channel, channel->cause, sizeof(channel->cause));
	return result;
}

static bool is_of_memory(uint32_t status)
{
	return status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_ACCESS_ERR;
}

/*
 * A region whose memory was taken away by the exporter of its dma-buf looks like one that
 * is gone (ib_umem_dmabuf_revoke() in Linux), and nothing tells the program: a cache
 * would hand it out again. One that is blamed by mistake is only registered once more.
 */
void pier_blame_regions(struct pier_channel *channel, const struct pier_queue *queue,
			const struct pier_entry *entry)
{
	uint32_t lkey;
	char name[128];

	if (!is_of_memory(channel->first.status))
		return;
	for (uint32_t i = 0; pier_queue_key(queue, entry, i, &lkey); i++) {
		size_t used = strlen(channel->cause);

		pier_caches_drop_key(channel->pd, lkey);
		pier_name_region(channel->pd, lkey, name, sizeof(name));
		if (name[0])
			snprintf(channel->cause + used, sizeof(channel->cause) - used,
				 "; it used %s", name);
	}
}

void pier_break_channel(struct pier_channel *channel, int error, const char *cause)
{
	if (channel->broken)
		return;
	channel->broken = error;
	channel->first = (struct pier_result){ .error = error };
	pier_update_ready(channel);
	snprintf(channel->cause, sizeof(channel->cause), "%s", cause);
	/* The causes of other errors are known. */
	if (error == -ETIMEDOUT || error == -EHOSTUNREACH)
		add_device_event(channel, channel->cause, sizeof(channel->cause));
}

int pier_fail_broken(const struct pier_channel *channel)
{
	return pier_fail(EPIPE, "the channel is broken: %s", channel->cause);
}

void pier_explain_failure(const struct pier_channel *channel,
			  const struct pier_result *result)
{
	char sentence[sizeof(channel->cause)];

	if (result->status == channel->first.status &&
	    result->opcode == channel->first.opcode && !channel->cause_is_flush) {
		pier_fail(-result->error, "%s", channel->cause);
		return;
	}
	pier_describe_status((enum ibv_wc_status)result->status, result->vendor_error,
			     result->opcode, sentence, sizeof(sentence));
	add_device_event(channel, sentence, sizeof(sentence));
	if (result->status == IBV_WC_WR_FLUSH_ERR && !channel->cause_is_flush)
		pier_fail(-result->error, "%s was flushed, because of this: %s",
			  pier_opcode_name(result->opcode), channel->cause);
	else
		pier_fail(-result->error, "%s", sentence);
}

int pier_channel_timeout(const struct pier_channel *channel, int timeout_ms,
			 int *ret_timeout_ms)
{
	return pier_check_timeout(timeout_ms, channel->attr.timeout_ms, ret_timeout_ms);
}

struct ibv_qp *pier_channel_verbs_qp(const struct pier_channel *channel)
{
	PIER_REFUSE_NULL_AS(NULL, channel);
	return channel->qp;
}

struct ibv_cq *pier_channel_verbs_cq(const struct pier_channel *channel)
{
	PIER_REFUSE_NULL_AS(NULL, channel);
	return channel->cq;
}

int pier_channel_fd(const struct pier_channel *channel)
{
	PIER_REFUSE_NULL(channel);
	return channel->completions.events->fd;
}

void *pier_channel_context(const struct pier_channel *channel)
{
	PIER_REFUSE_NULL_AS(NULL, channel);
	return channel->attr.context;
}

uint32_t pier_channel_outstanding(const struct pier_channel *channel)
{
	PIER_REFUSE_NULL_AS(0, channel);
	return pier_queue_outstanding(&channel->sends) +
	       pier_queue_outstanding(&channel->receives);
}

int pier_check_owner(const struct pier_object *object, const struct pier_object *pd,
		     const char *doing)
{
	char text[PIER_OBJECT_DESCRIPTION_SIZE];

	if (object->parent == pd)
		return 0;
	object->parent->describe(object->parent, text, sizeof(text));
	return pier_fail(EBUSY, "%s: it belongs to the %s", doing, text);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_COLLECT_H
#define PIER_CHANNEL_COLLECT_H

#include <arpa/inet.h>

#include "channel.h"
#include "channel/counter.h"

/* Completions: from the CQ to the entries of the requests that they belong to. */

enum {
	PIER_CQ_BATCH = 16, /* completions polled at once, on the stack */
};

/*
 * Poll the CQ until it is empty. Completions of other channels that share it go to
 * these.
 *
 * Returns the number of completions of this channel, or -errno of ibv_poll_cq().
 */
int pier_collect(struct pier_channel *channel);

/* The same for a shared CQ. Returns the number of completions of all channels. */
int pier_collect_cq(struct pier_cq *cq);

/* Likewise after the caller has polled `count` completions, which may be an error. */
int pier_collect_more(struct pier_channel *channel, const struct ibv_wc *first,
		      int count);

/* Hand one completion to its request. */
void pier_dispatch_completion(struct pier_channel *channel, const struct ibv_wc *wc);

/*
 * Ask the CQ for an event at the next completion, and collect those that came before,
 * for which there will be no event.
 *
 * Returns the number of completions of this channel, or -errno.
 */
int pier_arm_completions(struct pier_channel *channel);

/* The result of a receive that has succeeded. Counters learn of it. */
static inline struct pier_result pier_receive_result(const struct pier_channel *channel,
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

#endif

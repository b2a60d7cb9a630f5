/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_CQ_MEMBERS_H
#define PIER_CHANNEL_CQ_MEMBERS_H

#include <pier/cq.h>

#include "channel/channel.h"
#include "core/list.h"
#include "completions.h"

/*
 * The channels of a shared completion queue: which channel a completion belongs to, the
 * entries that each has reserved, and which of them pier_cq_poll() has yet to return.
 *
 * A completion is matched to its channel by qp_num, which is valid in every completion
 * (ibv_poll_cq(3)). A wr_id cannot name the channel, because receives of a shared receive
 * queue belong to none before they complete.
 */
struct pier_cq {
	struct pier_object object;
	struct pier_pd *pd;
	struct pier_completions completions;

	uint32_t channel_count;
	uint32_t bucket_bits;
	struct pier_channel **buckets; /* by qp_num; chained by channel->cq_next */

	uint32_t reserved;     /* entries */
	struct pier_list srqs; /* struct srq_share of members.c */

	struct pier_list ready; /* channel->ready_link, oldest first */
	uint64_t position;	/* see pier_cq_next_position() */

	uint32_t keepalive_count; /* channels with keepalive_ms */
	int64_t keepalive_at;	  /* no keepalive is due before: see pier_now() */
};

/* The entries that no channel has reserved. */
static inline uint32_t pier_cq_room(const struct pier_cq *cq)
{
	return (uint32_t)cq->completions.cq->cqe - cq->reserved;
}

/*
 * Reserve entries for a channel and everything that its shared receive queue can
 * complete; the latter once for all channels of that queue.
 *
 * entries  what the channel's own requests need
 *
 * Errors: -ENOSPC, -ENOMEM.
 */
int pier_cq_reserve(struct pier_cq *cq, uint32_t entries, const struct pier_srq *srq);
void pier_cq_release(struct pier_cq *cq, uint32_t entries, const struct pier_srq *srq);

/* Add a channel that has its queue pair. Errors: -ENOMEM. */
int pier_cq_add(struct pier_cq *cq, struct pier_channel *channel);
/* Remove it; removing it twice is harmless. */
void pier_cq_remove(struct pier_cq *cq, struct pier_channel *channel);

/* The channel of that queue pair, or NULL. */
struct pier_channel *pier_cq_find(const struct pier_cq *cq, uint32_t qp_num);

/* pier_cq_poll() returns the channel once more. */
void pier_cq_note_news(struct pier_cq *cq, struct pier_channel *channel);

/*
 * The first position of the requests of a new channel. pier_work_poll() recognises a
 * completion by its wr_id alone, so two channels of a queue must not have outstanding
 * requests at the same position.
 */
uint64_t pier_cq_next_position(struct pier_cq *cq);

#endif

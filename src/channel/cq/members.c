/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "channel/recv/srq_post.h"
#include "core/error.h"
#include "members.h"

enum {
	FIRST_BITS = 3,
	POSITION_BITS = 61, /* of a first position: see pier_init_queue() */
};

/* The channels of one shared receive queue. */
struct srq_share {
	struct pier_list link;
	const struct pier_srq *srq; /* only compared: it may be gone at the end */
	uint32_t channels, entries;
};

static struct srq_share *find_share(const struct pier_cq *cq, const struct pier_srq *srq)
{
	pier_list_for_each(struct srq_share, share, &cq->srqs, link) {
		if (share->srq == srq)
			return share;
	}
	return NULL;
}

static int fail_full(const struct pier_cq *cq, uint64_t needed)
{
	return pier_fail(ENOSPC,
			 "the shared completion queue has %u of %d entries left, and the "
			 "channel needs %llu: create it with a greater depth, or use "
			 "another one",
			 pier_cq_room(cq), cq->completions.cq->cqe,
			 (unsigned long long)needed);
}

int pier_cq_reserve(struct pier_cq *cq, uint32_t entries, const struct pier_srq *srq)
{
	struct srq_share *share = srq ? find_share(cq, srq) : NULL;
	uint64_t needed = (uint64_t)entries + (srq && !share ? srq->max_wr : 0);

	if (needed > pier_cq_room(cq))
		return fail_full(cq, needed);
	if (srq && !share) {
		share = calloc(1, sizeof(*share));
		if (!share)
			return pier_fail(ENOMEM, "no memory for a channel");
		share->srq = srq;
		share->entries = srq->max_wr;
		pier_list_append(&cq->srqs, &share->link);
	}
	if (share)
		share->channels++;
	cq->reserved += (uint32_t)needed;
	return 0;
}

void pier_cq_release(struct pier_cq *cq, uint32_t entries, const struct pier_srq *srq)
{
	struct srq_share *share = srq ? find_share(cq, srq) : NULL;

	cq->reserved -= entries;
	if (!share || --share->channels > 0)
		return;
	cq->reserved -= share->entries;
	pier_list_remove(&share->link);
	free(share);
}

/* Fibonacci hashing: the numbers of queue pairs can have any pattern. */
static struct pier_channel **bucket_of(const struct pier_cq *cq, uint32_t qp_num)
{
	return &cq->buckets[qp_num * UINT32_C(0x9e3779b1) >> (32 - cq->bucket_bits)];
}

static void link_channel(struct pier_cq *cq, struct pier_channel *channel)
{
	struct pier_channel **bucket = bucket_of(cq, channel->qp_num);

	channel->cq_next = *bucket;
	*bucket = channel;
}

/* One bucket for each channel, at least. */
static int grow_buckets(struct pier_cq *cq)
{
	struct pier_channel **old = cq->buckets;
	size_t count = old ? (size_t)1 << cq->bucket_bits : 0;
	uint32_t bits = old ? cq->bucket_bits + 1 : FIRST_BITS;
	struct pier_channel **buckets = calloc((size_t)1 << bits, sizeof(*buckets));

	if (!buckets)
		return pier_fail(ENOMEM, "no memory for a channel");
	cq->buckets = buckets;
	cq->bucket_bits = bits;
	for (size_t i = 0; i < count; i++) {
		for (struct pier_channel *at = old[i], *next; at; at = next) {
			next = at->cq_next;
			link_channel(cq, at);
		}
	}
	free(old);
	return 0;
}

int pier_cq_add(struct pier_cq *cq, struct pier_channel *channel)
{
	int error = 0;

	if (!cq->buckets || cq->channel_count >> cq->bucket_bits)
		error = grow_buckets(cq);
	if (error)
		return error;
	link_channel(cq, channel);
	cq->channel_count++;
	if (channel->attr.keepalive_ms) {
		cq->keepalive_count++;
		cq->keepalive_at = 0;
	}
	return 0;
}

void pier_cq_remove(struct pier_cq *cq, struct pier_channel *channel)
{
	struct pier_channel **at;

	if (!cq->buckets)
		return;
	for (at = bucket_of(cq, channel->qp_num); *at && *at != channel;
	     at = &(*at)->cq_next)
		continue;
	if (!*at)
		return;
	*at = channel->cq_next;
	cq->channel_count--;
	cq->keepalive_count -= channel->attr.keepalive_ms > 0;
}

struct pier_channel *pier_cq_find(const struct pier_cq *cq, uint32_t qp_num)
{
	struct pier_channel *channel;

	if (!cq->buckets)
		return NULL;
	channel = *bucket_of(cq, qp_num);
	while (channel && channel->qp_num != qp_num)
		channel = channel->cq_next;
	return channel;
}

void pier_cq_note_news(struct pier_cq *cq, struct pier_channel *channel)
{
	if (!channel->internal && pier_list_empty(&channel->ready_link))
		pier_list_append(&cq->ready, &channel->ready_link);
}

/*
 * Multiples of the golden ratio are spread evenly, whatever their number (Knuth, The Art
 * of Computer Programming, volume 3, 6.4): the positions of n channels begin about
 * 2^60 / n apart, which no channel posts in its life.
 */
uint64_t pier_cq_next_position(struct pier_cq *cq)
{
	cq->position += UINT64_C(0x9e3779b97f4a7c15) >> (64 - POSITION_BITS);
	return cq->position & ((UINT64_C(1) << POSITION_BITS) - 1);
}

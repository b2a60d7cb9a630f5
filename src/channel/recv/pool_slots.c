/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>

#include "channel/posting.h"
#include "pool_slots.h"
#include "srq_post.h"
#include "core/error.h"
#include "device/pd.h"

/* Posting the slots of receive pools. */

enum {
	DOORBELL = 32, /* receives per doorbell, on the stack */
};

/*
 * Write down as many receives as have a place in the receive queue, and return their
 * number. The next post overwrites those that the device refuses.
 */
static uint32_t fill_receives(struct pier_queue *queue,
			      const struct pier_scatter *const *targets, uint32_t count,
			      struct ibv_recv_wr *ret_wrs)
{
	uint32_t filled = 0;

	for (; filled < count && filled < pier_queue_room(queue); filled++) {
		uint64_t position = queue->head + filled;

		if (!pier_queue_make_free(queue, position))
			break;
		ret_wrs[filled] = (struct ibv_recv_wr){
			.wr_id = PIER_ID_RECEIVE | position,
			.next = &ret_wrs[filled + 1],
			.sg_list = (struct ibv_sge *)targets[filled],
			.num_sge = 1,
		};
		pier_queue_note(queue, pier_queue_entry(queue, position),
				ret_wrs[filled].wr_id, true, PIER_OP_RECV,
				ret_wrs[filled].sg_list, 1, 0);
	}
	if (filled > 0)
		ret_wrs[filled - 1].next = NULL;
	return filled;
}

/*
 * Post receives of a channel with one element each, under one doorbell.
 *
 * ret_works   of the posted receives
 * ret_posted  their number: less than count if the queue is full, or with an error
 */
static int post_receives(struct pier_channel *channel,
			 const struct pier_scatter *const *targets, uint32_t count,
			 struct pier_work *ret_works, uint32_t *ret_posted)
{
	struct pier_queue *queue = &channel->receives;
	struct ibv_recv_wr wrs[DOORBELL], *bad = NULL;
	uint32_t filled, taken;
	int error;

	*ret_posted = 0;
	if (queue->limit == 0)
		return pier_refuse_receive(channel);
	filled = taken = fill_receives(queue, targets,
				       count < DOORBELL ? count : DOORBELL, wrs);
	if (filled == 0)
		return 0;
	/* All slots are in one region. */
	error = pier_check_receive(channel->pd, wrs[0].sg_list, 1);
	if (error)
		return error;
	error = ibv_post_recv(channel->qp, wrs, &bad);
	if (error) {
		taken = bad >= wrs && bad < wrs + filled ? (uint32_t)(bad - wrs) : 0;
		error = pier_refuse_post(channel, error, PIER_OP_RECV);
	}
	for (uint32_t i = 0; i < taken; i++)
		ret_works[i].id = wrs[i].wr_id;
	pier_queue_posted(queue, queue->head + taken);
	*ret_posted = taken;
	return error;
}

/* List the first waiting slots, which stay where they are. */
static uint32_t list_waiting_slots(const struct pier_recv_pool *pool,
				   struct pier_recv_slot **ret_slots)
{
	uint32_t count = 0;

	for (struct pier_recv_slot *slot = pool->waiting.first; slot && count < DOORBELL;
	     slot = slot->next)
		ret_slots[count++] = slot;
	return count;
}

static int post_on_channel(const struct pier_recv_pool *pool,
			   struct pier_recv_slot *const *slots, uint32_t count,
			   uint32_t *ret_posted)
{
	const struct pier_scatter *targets[DOORBELL];
	struct pier_work works[DOORBELL];
	int error;

	for (uint32_t i = 0; i < count; i++)
		targets[i] = &slots[i]->element;
	error = post_receives(pool->channel, targets, count, works, ret_posted);
	assert(*ret_posted <= count);
	for (uint32_t i = 0; i < *ret_posted; i++)
		slots[i]->work = works[i];
	return error;
}

static int post_shared(const struct pier_recv_pool *pool,
		       struct pier_recv_slot *const *slots, uint32_t count,
		       uint32_t *ret_posted)
{
	struct pier_srq_recv recvs[DOORBELL];

	for (uint32_t i = 0; i < count; i++)
		recvs[i] = (struct pier_srq_recv){
			.sg_list = (const struct ibv_sge *)&slots[i]->element,
			.num_sge = 1,
			.context = slots[i],
		};
	return pier_srq_post(pool->srq, recvs, count, ret_posted);
}

int pier_pool_post(struct pier_recv_pool *pool)
{
	struct pier_recv_slot *slots[DOORBELL];
	uint32_t posted = 1;
	int error = 0;

	while (pool->waiting.count > 0 && posted > 0 && !error) {
		uint32_t count = list_waiting_slots(pool, slots);

		error = pool->srq ? post_shared(pool, slots, count, &posted)
				  : post_on_channel(pool, slots, count, &posted);
		for (uint32_t i = 0; i < posted; i++) {
			struct pier_recv_slot *slot = pier_slots_take(&pool->waiting);

			slot->state = PIER_SLOT_POSTED;
			if (pool->srq)
				pool->posted.count++;
			else
				pier_slots_append(&pool->posted, slot);
		}
	}
	return error;
}

static bool can_post(const struct pier_recv_pool *pool)
{
	return pool->srq || (pool->channel && !pool->channel->broken);
}

void pier_pool_put(struct pier_recv_pool *pool, struct pier_recv_slot *slot)
{
	slot->state = PIER_SLOT_WAITING;
	pier_slots_append(&pool->waiting, slot);
	/*
	 * The next call for a message meets an error of posting again. Messages that
	 * have arrived are handed out before that.
	 */
	if (can_post(pool) &&
	    (pool->waiting.count >= pool->batch || pool->posted.count < pool->batch))
		pier_pool_post(pool);
}

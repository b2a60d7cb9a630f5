/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/buffer.h>

#include "channel/posting.h"
#include "channel/stop.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/object.h"
#include "device/pd.h"
#include "recv_pool.h"
#include "region/mr.h"
#include "srq_post.h"

static inline void pier_slots_init(struct pier_slot_list *list)
{
	*list = (struct pier_slot_list){ .last = &list->first };
}

static inline void pier_slots_append(struct pier_slot_list *list,
				     struct pier_recv_slot *slot)
{
	slot->next = NULL;
	*list->last = slot;
	list->last = &slot->next;
	list->count++;
}

/* Posting the slots of receive pools. */

enum {
	DOORBELL = 32, /* receives per doorbell, on the stack */
};

/*
 * Write down as many receives as have a place in the receive queue, and return their
 * number. The next post overwrites those that the device refuses.
 */
static uint32_t fill_receives(struct pier_queue *queue,
			      struct pier_recv_slot *const *slots, uint32_t count,
			      struct ibv_recv_wr *ret_wrs)
{
	uint32_t filled = 0;

	for (; filled < count && filled < pier_queue_room(queue); filled++) {
		uint64_t position = queue->head + filled;
		struct ibv_recv_wr *wr = &ret_wrs[filled];

		if (!pier_queue_make_free(queue, position))
			break;
		*wr = (struct ibv_recv_wr){
			.wr_id = PIER_ID_RECEIVE | position,
			.next = wr + 1,
			.sg_list = (struct ibv_sge *)&slots[filled]->element,
			.num_sge = 1,
		};
		slots[filled]->work.id = wr->wr_id;
		pier_queue_note(queue, pier_queue_entry(queue, position), wr->wr_id, true,
				PIER_OP_RECV, wr->sg_list, 1, 0, NULL);
	}
	if (filled > 0)
		ret_wrs[filled - 1].next = NULL;
	return filled;
}

/*
 * Post slots on the channel of the pool under one doorbell, as far as there is room.
 *
 * ret_posted  their number, also with an error
 */
static int post_on_channel(const struct pier_recv_pool *pool,
			   struct pier_recv_slot *const *slots, uint32_t count,
			   uint32_t *ret_posted)
{
	struct pier_channel *channel = pool->channel;
	struct pier_queue *queue = &channel->receives;
	struct ibv_recv_wr wrs[DOORBELL], *bad = NULL;
	uint32_t filled;
	int error;

	*ret_posted = 0;
	if (queue->limit == 0)
		return pier_refuse_receive(channel);
	filled = fill_receives(queue, slots, count, wrs);
	if (filled == 0)
		return 0;
	/* All slots are in one region. */
	error = pier_check_receive(channel->pd, wrs[0].sg_list, 1);
	if (error)
		return error;
	error = ibv_post_recv(channel->qp, wrs, &bad);
	if (!error)
		*ret_posted = filled;
	else if (bad >= wrs && bad < wrs + filled)
		*ret_posted = (uint32_t)(bad - wrs);
	pier_queue_posted(queue, queue->head + *ret_posted);
	return error ? pier_refuse_post(channel, error, PIER_OP_RECV) : 0;
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
		struct pier_recv_slot *slot = pool->waiting.first;
		uint32_t count = 0;

		/* They stay in the list until the device has them. */
		for (; slot && count < DOORBELL; slot = slot->next)
			slots[count++] = slot;
		error = pool->srq ? post_shared(pool, slots, count, &posted)
				  : post_on_channel(pool, slots, count, &posted);
		assert(posted <= count);
		for (uint32_t i = 0; i < posted; i++) {
			slot = pier_slots_take(&pool->waiting);
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

enum {
	LARGEST_BATCH = 32,
};

PIER_ASSERT_NO_PADDING(recv_pool_attr, channel);

static void describe_pool(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_recv_pool *pool = (const struct pier_recv_pool *)object;

	snprintf(ret_text, size, "receive pool of %u times %u bytes on %s",
		 pool->attr.count, pool->attr.length, pool->pd->device->name);
}

/* Also while the user holds a slot, which will be posted again. */
static const char *use_of_region(const struct pier_region_user *user, uint32_t lkey)
{
	const struct pier_recv_pool *pool = pier_container_of(
		user, const struct pier_recv_pool, region_user);

	for (uint32_t i = 0; i < pool->attr.count; i++) {
		if (pool->slots[i].element.lkey == lkey)
			return "receive of a pool";
	}
	return NULL;
}

static int check_attr(const struct pier_recv_pool_attr *attr, const struct pier_pd *pd)
{
	if (attr->count < 1 || attr->count > PIER_QUEUE_MAX)
		return pier_fail(EINVAL, "receive pool: count %u is not in 1 to %d",
				 attr->count, PIER_QUEUE_MAX);
	if (attr->length < 1)
		return pier_fail(EINVAL, "receive pool: slots of length 0");
	if (attr->timeout_ms <= 0)
		return pier_fail(EINVAL, "receive pool: timeout_ms %d is not more than 0",
				 attr->timeout_ms);
	if (!attr->mr && !attr->spec)
		return pier_fail(EINVAL, "receive pool: neither spec nor mr");
	if (attr->mr && attr->mr->pd != pd)
		return pier_fail(EINVAL,
				 "receive pool: mr is in another protection domain");
	return 0;
}

static int allocate_memory(struct pier_recv_pool *pool)
{
	const struct pier_recv_pool_attr *attr = &pool->attr;
	size_t length = (size_t)attr->count * attr->length;
	int error = pier_buffer_alloc(attr->spec, length, &pool->buffer);

	if (!error)
		error = pier_mr_reg_buffer(pool->pd, pool->buffer, 0, length,
					   PIER_ACCESS_LOCAL_WRITE, attr->policy,
					   &pool->mr);
	if (error)
		return error;
	pool->attr.offset = 0;
	/* Messages have no pointer if the CPU cannot reach the memory. */
	if (pier_buffer_map(pool->buffer, &pool->pointer) != 0)
		pool->pointer = NULL;
	return 0;
}

static int check_given(const struct pier_recv_pool_attr *attr)
{
	uint64_t length = (uint64_t)attr->count * attr->length, end;

	if (!__builtin_add_overflow(attr->offset, length, &end) &&
	    end <= attr->mr->length)
		return 0;
	return pier_fail(ERANGE,
			 "receive pool: %u slots of %u bytes from offset %llu leave the "
			 "region of %llu bytes",
			 attr->count, attr->length, (unsigned long long)attr->offset,
			 (unsigned long long)attr->mr->length);
}

static int make_slots(struct pier_recv_pool *pool)
{
	const struct pier_recv_pool_attr *attr = &pool->attr;
	int error = 0;

	for (uint32_t i = 0; i < attr->count && !error; i++) {
		struct pier_recv_slot *slot = &pool->slots[i];
		uint64_t offset = attr->offset + (uint64_t)i * attr->length;

		error = pier_mr_scatter(pool->mr, pool->mr->iova + offset, attr->length,
					&slot->element);
		pier_slots_append(&pool->waiting, slot);
	}
	return error;
}

static int get_memory(struct pier_recv_pool *pool)
{
	int error;

	if (!pool->attr.mr) {
		error = allocate_memory(pool);
	} else {
		error = pier_check_process(&pool->attr.mr->object);
		if (!error)
			error = check_given(&pool->attr);
		if (!error)
			pool->mr = pool->attr.mr;
	}
	return error ? error : make_slots(pool);
}

static struct pier_recv_pool *new_pool(struct pier_pd *pd, struct pier_channel *channel,
				       const struct pier_recv_pool_attr *attr)
{
	struct pier_recv_pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->slots = calloc(attr->count, sizeof(*pool->slots));
	if (!pool->slots) {
		free(pool);
		return NULL;
	}
	pool->object.describe = describe_pool;
	pool->region_user.uses = use_of_region;
	pool->pd = pd;
	pool->channel = channel;
	pool->attr = *attr;
	pier_slots_init(&pool->waiting);
	pier_slots_init(&pool->posted);
	/* A quarter of the slots may wait for a batch; the others are posted. */
	pool->batch = attr->count / 4 < LARGEST_BATCH ? attr->count / 4 : LARGEST_BATCH;
	return pool;
}

/*
 * End the receives first. Accepts half-built pools, and continues where it failed
 * before.
 */
static int free_memory(struct pier_recv_pool *pool)
{
	int error = pool->srq ? pier_end_srq(pool->srq) : 0;

	if (error)
		return error;
	pool->srq = NULL;
	error = pool->buffer ? pier_mr_dereg(pool->mr) : 0;
	if (error)
		return error;
	pool->mr = NULL;
	error = pier_buffer_free(pool->buffer);
	if (!error)
		pool->buffer = NULL;
	return error;
}

static void free_pool(struct pier_recv_pool *pool)
{
	pier_object_untrack(&pool->object);
	atomic_fetch_sub(&pool->pd->children, 1);
	free(pool->fds);
	free(pool->slots);
	free(pool);
}

static void detach_from_channel(struct pier_recv_pool *pool)
{
	struct pier_channel *channel = pool->channel;

	if (!channel)
		return;
	if (pool->posted.count > 0) {
		pier_break_channel(
			channel, -ECANCELED,
			"its receive pool was destroyed while receives were posted");
		pier_stop_channel(channel);
	}
	while (pool->posted.count > 0)
		pier_work_drop(channel, pier_slots_take(&pool->posted)->work);
	channel->pool = NULL;
	pool->channel = NULL;
}

/* All slots wait at first; then as many as possible are posted. */
static int build_pool(struct pier_recv_pool *pool, bool shared)
{
	int error = get_memory(pool);
	struct pier_srq_attr attr;

	pier_srq_attr_init(&attr);
	attr.max_wr = pool->attr.count;
	if (!error && shared)
		error = pier_make_srq(pool->pd, &attr, pool, &pool->srq);
	return error ? error : pier_pool_post(pool);
}

static int create_pool(struct pier_pd *pd, struct pier_channel *channel,
		       const struct pier_recv_pool_attr *attr,
		       struct pier_recv_pool **ret_pool)
{
	struct pier_recv_pool *pool = new_pool(pd, channel, attr);
	int error;

	if (!pool)
		return pier_fail(ENOMEM, "no memory for a receive pool of %u slots",
				 attr->count);
	atomic_fetch_add(&pd->children, 1);
	pier_object_track(&pool->object, PIER_OBJECT_RECV_POOL, &pd->object);
	error = build_pool(pool, !channel);
	if (!error) {
		pier_add_region_user(pd, &pool->region_user);
		if (channel)
			channel->pool = pool;
		*ret_pool = pool;
		return 0;
	}
	error = pier_fail_because(error, "making a receive pool on %s", pd->device->name);
	detach_from_channel(pool);
	/* The device may still use what it refuses to give back. */
	if (free_memory(pool) == 0)
		free_pool(pool);
	return error;
}

static int check_channel(const struct pier_channel *channel, const struct pier_pd *pd,
			 const struct pier_recv_pool_attr *attr)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (channel->pd != pd)
		return pier_fail(EINVAL,
				 "receive pool: channel is in another protection domain");
	if (channel->attr.srq)
		return pier_fail(EINVAL, "receive pool: the channel has a shared receive "
					 "queue");
	if (channel->pool)
		return pier_fail(EBUSY, "receive pool: the channel has one");
	if (attr->length > channel->max_msg_size)
		return pier_fail(EMSGSIZE,
				 "receive pool: slots of %u bytes; the port's "
				 "max_msg_size is %u",
				 attr->length, channel->max_msg_size);
	return channel->broken ? pier_fail_broken(channel) : 0;
}

int pier_recv_pool_create(struct pier_pd *pd, const struct pier_recv_pool_attr *attr,
			  struct pier_recv_pool **ret_pool)
{
	PIER_REFUSE_NULL(pd, ret_pool);
	PIER_ENTRY();
	struct pier_recv_pool_attr known;
	int error = pier_check_process(&pd->object);

	if (!error)
		error = PIER_READ_ATTR("receive pool attributes", recv_pool_attr, attr,
				       PIER_SIZE_UP_TO(recv_pool_attr, channel), &known);
	if (!error)
		error = check_attr(&known, pd);
	if (!error && known.channel)
		error = check_channel(known.channel, pd, &known);
	return error ? error : create_pool(pd, known.channel, &known, ret_pool);
}

static int check_idle(const struct pier_recv_pool *pool)
{
	uint32_t channels = pool->srq ? pool->srq->channel_count : 0;

	if (pool->held > 0)
		return pier_fail(EBUSY,
				 "destroying a receive pool: %u of its messages are not "
				 "released",
				 pool->held);
	if (channels > 0)
		return pier_fail(EBUSY,
				 "destroying a receive pool: %u channel%s its shared "
				 "receive queue",
				 channels, channels == 1 ? " has" : "s have");
	return 0;
}

int pier_recv_pool_destroy(struct pier_recv_pool *pool)
{
	int error;

	if (!pool)
		return 0;
	error = pier_check_process(&pool->object);
	if (!error)
		error = check_idle(pool);
	if (error)
		return error;
	detach_from_channel(pool);
	pier_remove_region_user(pool->pd, &pool->region_user);
	error = free_memory(pool);
	if (!error)
		free_pool(pool);
	return error;
}

void pier_end_pool(struct pier_channel *channel)
{
	struct pier_recv_pool *pool = channel->pool;

	if (!pool)
		return;
	while (pool->posted.count > 0) {
		struct pier_recv_slot *slot = pier_slots_take(&pool->posted);

		slot->state = PIER_SLOT_WAITING;
		pier_slots_append(&pool->waiting, slot);
	}
	pool->channel = NULL;
}

struct pier_srq *pier_recv_pool_srq(const struct pier_recv_pool *pool)
{
	PIER_REFUSE_NULL_AS(NULL, pool);
	return pool->srq;
}

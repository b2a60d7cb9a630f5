/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "channel/collect.h"
#include "channel/keepalive.h"
#include "channel/wait.h"
#include "core/deadline.h"
#include "core/error.h"
#include "recv_pool.h"
#include "srq.h"
#include "srq_post.h"

/* The messages of a channel that has a shared receive queue. */

static int check_messages(const struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (!channel->attr.srq)
		return pier_fail(EINVAL,
				 "the channel has its own receives; only channels with a "
				 "shared receive queue have messages");
	if (channel->attr.srq->pool)
		return pier_fail(EBUSY, "the messages of the channel belong to a receive "
					"pool");
	return 0;
}

/* Take the oldest message. */
static int poll_message(struct pier_channel *channel, struct pier_result *ret_result)
{
	int error = channel->first_message ? 0 : pier_collect(channel);

	if (error < 0)
		return error;
	if (!channel->first_message)
		return channel->broken ? pier_fail_broken(channel) : 0;
	*ret_result = pier_srq_take(channel);
	if (ret_result->error)
		pier_explain_failure(channel, ret_result);
	return 1;
}

int pier_message_wait(struct pier_channel *channel, int timeout_ms,
		      struct pier_result *ret_result)
{
	PIER_REFUSE_NULL(channel, ret_result);
	int error = check_messages(channel), found;

	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (error)
		return error;
	if (timeout_ms == 0)
		return poll_message(channel, ret_result);
	error = pier_wait_for_message(channel, pier_deadline(timeout_ms));
	if (error == -ETIMEDOUT)
		pier_find_broken_qp(channel);
	else if (error)
		return error;
	found = poll_message(channel, ret_result);
	if (found)
		return found;
	return pier_fail(ETIMEDOUT, "no message arrived within %d ms", timeout_ms);
}

/* The messages of receive pools. */

static int report_broken(struct pier_channel *channel,
			 struct pier_pool_message *ret_message)
{
	ret_message->channel = channel;
	return pier_fail_broken(channel);
}

static void lend_slot(struct pier_recv_pool *pool, struct pier_channel *channel,
		      struct pier_recv_slot *slot, const struct pier_result *result,
		      struct pier_pool_message *ret_message)
{
	uint32_t number = (uint32_t)(slot - pool->slots);
	uint64_t begin = (uint64_t)number * pool->attr.length;

	slot->state = PIER_SLOT_HELD;
	slot->sequence = pool->sequence++;
	pool->held++;
	*ret_message = (struct pier_pool_message){
		.channel = channel,
		.pointer = pool->pointer ? (const char *)pool->pointer + begin : NULL,
		.mr = pool->mr,
		.iova = pier_mr_iova(pool->mr) + pool->attr.offset + begin,
		.offset = pool->attr.offset + begin,
		.length = result->opcode == PIER_OP_RECV ? result->byte_length : 0,
		.slot = number,
		.sequence = slot->sequence,
		.result = *result,
	};
}

/*
 * Receives of a channel complete in order: if the oldest has not completed, none has. A
 * reset has flushed those that were posted before it.
 */
static int take_from_channel(struct pier_recv_pool *pool,
			     struct pier_pool_message *ret_message)
{
	struct pier_channel *channel = pool->channel;
	struct pier_recv_slot *slot;
	struct pier_result result;
	int done;

	if (!channel) {
		ret_message->channel = NULL;
		return pier_fail(EPIPE, "the channel of the receive pool was destroyed");
	}
	do {
		slot = pool->posted.first;
		done = slot ? pier_work_poll(channel, slot->work, &result)
			    : pier_collect_while_idle(channel);
		if (done < 0)
			return done;
		if (!slot || done == 0)
			return channel->broken ? report_broken(channel, ret_message) : 0;
		pier_slots_take(&pool->posted);
		if (result.error)
			pier_pool_put(pool, slot);
	} while (result.error && !channel->broken);
	if (result.error)
		return report_broken(channel, ret_message);
	lend_slot(pool, channel, slot, &result, ret_message);
	return 1;
}

static int take_shared(struct pier_recv_pool *pool, struct pier_channel *channel,
		       struct pier_pool_message *ret_message)
{
	struct pier_result result;
	struct pier_recv_slot *slot;
	int count = 0;

	if (!channel->first_message)
		count = pier_collect_while_idle(channel);
	if (count < 0)
		return count;
	while (channel->first_message) {
		result = pier_srq_take(channel);
		slot = result.context;
		result.context = NULL;
		pool->posted.count--;
		if (!result.error) {
			lend_slot(pool, channel, slot, &result, ret_message);
			return 1;
		}
		pier_pool_put(pool, slot);
	}
	if (!channel->broken || channel->reported_broken)
		return 0;
	channel->reported_broken = true;
	return report_broken(channel, ret_message);
}

static int take_from_any(struct pier_recv_pool *pool,
			 struct pier_pool_message *ret_message)
{
	struct pier_channel *working = NULL, *last = NULL;

	pier_list_for_each(struct pier_channel, channel, &pool->srq->channels, srq_link) {
		int taken = take_shared(pool, channel, ret_message);

		if (taken > 0) {
			/* Look at it again after all others. */
			pier_list_remove(&channel->srq_link);
			pier_list_append(&pool->srq->channels, &channel->srq_link);
		}
		if (taken != 0)
			return taken;
		if (!channel->broken)
			working = channel;
		last = channel;
	}
	return working || !last ? 0 : report_broken(last, ret_message);
}

/* If there is no message, post the slots that wait for a batch. */
static int poll_pool(struct pier_recv_pool *pool, struct pier_pool_message *ret_message)
{
	int taken = pool->srq ? take_from_any(pool, ret_message)
			      : take_from_channel(pool, ret_message);
	int error = taken == 0 ? pier_pool_post(pool) : 0;

	return error ? error : taken;
}

static int make_room_for_fds(struct pier_recv_pool *pool)
{
	uint32_t count = pool->srq ? pool->srq->channel_count : 1;
	struct pollfd *fds;

	if (count <= pool->fd_room)
		return 0;
	fds = reallocarray(pool->fds, count, sizeof(*fds));
	if (!fds)
		return pier_fail(ENOMEM, "no memory to wait for %u channels", count);
	pool->fds = fds;
	pool->fd_room = count;
	return 0;
}

/* A wait for a message of a pool. */
struct pool_wait {
	struct pier_recv_pool *pool;
	struct pier_pool_message *message;
};

static int check_pool(void *subject)
{
	const struct pool_wait *wait = subject;
	int taken = poll_pool(wait->pool, wait->message);

	return taken > 0 ? PIER_CONDITION_HOLDS : taken;
}

static int pass_channels(void *subject, struct pier_wait_pass *pass)
{
	const struct pool_wait *wait = subject;
	const struct pier_recv_pool *pool = wait->pool;

	if (!pool->srq)
		return pier_wait_pass_channel(pass, pool->channel);
	pier_list_for_each(struct pier_channel, channel, &pool->srq->channels, srq_link) {
		int error = channel->broken ? 0 : pier_wait_pass_channel(pass, channel);

		if (error)
			return error;
	}
	return 0;
}

/* Channels with a shared receive queue may break without a completion. */
static void find_broken_channels(struct pier_recv_pool *pool)
{
	if (!pool->srq)
		return;
	pier_list_for_each(struct pier_channel, channel, &pool->srq->channels, srq_link)
		pier_find_broken_qp(channel);
}

/* Returns 1, -ETIMEDOUT without a sentence, or another error. */
static int wait_pool(struct pier_recv_pool *pool, int64_t deadline,
		     struct pier_pool_message *ret_message)
{
	struct pool_wait wait = { .pool = pool, .message = ret_message };
	struct pier_wait_condition condition = {
		.check = check_pool,
		.pass = pass_channels,
		.subject = &wait,
	};
	int error = make_room_for_fds(pool), taken;

	condition.fds = pool->fds;
	if (!error)
		error = pier_wait_until(&condition, deadline);
	if (error != -ETIMEDOUT)
		return error ? error : 1;
	find_broken_channels(pool);
	taken = poll_pool(pool, ret_message);
	return taken != 0 ? taken : -ETIMEDOUT;
}

int pier_recv_pool_wait(struct pier_recv_pool *pool, int timeout_ms,
			struct pier_pool_message *ret_message)
{
	PIER_REFUSE_NULL(pool, ret_message);
	int error = pier_check_process(&pool->object);

	if (!error)
		error = pier_check_timeout(timeout_ms, pool->attr.timeout_ms,
					   &timeout_ms);
	if (error)
		return error;
	if (timeout_ms == 0)
		return poll_pool(pool, ret_message);
	error = wait_pool(pool, pier_deadline(timeout_ms), ret_message);
	if (error == -ETIMEDOUT)
		return pier_fail(ETIMEDOUT, "no message of the receive pool within %d ms",
				 timeout_ms);
	return error;
}

int pier_recv_pool_release(struct pier_recv_pool *pool,
			   const struct pier_pool_message *message)
{
	PIER_REFUSE_NULL(pool, message);
	struct pier_recv_slot *slot = NULL;
	int error = pier_check_process(&pool->object);

	if (error)
		return error;
	if (message->slot < pool->attr.count)
		slot = &pool->slots[message->slot];
	if (!slot || slot->state != PIER_SLOT_HELD || slot->sequence != message->sequence)
		return pier_fail(ESTALE,
				 "message %llu in slot %u is not held: it was released "
				 "before, or it belongs to another pool",
				 (unsigned long long)message->sequence, message->slot);
	pool->held--;
	pier_pool_put(pool, slot);
	return 0;
}

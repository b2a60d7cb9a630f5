/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "channel/extra/keepalive.h"
#include "recv_pool.h"
#include "channel/spin.h"
#include "core/deadline.h"
#include "core/error.h"

/* The messages of receive pools. */

static int check(const struct pier_recv_pool *pool)
{
	int error = pier_check_process(&pool->object);

	if (!error && pool->delivering)
		error = pier_fail(EBUSY, "asking a receive pool for messages while it "
					 "delivers one");
	return error;
}

static int fail_told(struct pier_recv_pool *pool, struct pier_channel *channel)
{
	pool->broken = channel;
	return pier_fail_broken(channel);
}

static void hand_out(struct pier_recv_pool *pool, struct pier_channel *channel,
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

/* Receives of a channel complete in order: if the oldest has not, none has. */
static int take_from_channel(struct pier_recv_pool *pool,
			     struct pier_pool_message *ret_message)
{
	struct pier_channel *channel = pool->channel;
	struct pier_recv_slot *slot = pool->posted.first;
	struct pier_result result;
	int done;

	if (!channel)
		return pier_fail(EPIPE, "the channel of the receive pool was destroyed");
	done = slot ? pier_work_poll(channel, slot->work, &result)
		    : pier_collect(channel);
	if (done < 0)
		return done;
	if (!slot || done == 0)
		return channel->broken ? fail_told(pool, channel) : 0;
	pier_slots_take(&pool->posted);
	if (result.error) {
		pier_pool_put(pool, slot);
		return fail_told(pool, channel);
	}
	hand_out(pool, channel, slot, &result, ret_message);
	return 1;
}

static int take_shared(struct pier_recv_pool *pool, struct pier_channel *channel,
		       struct pier_pool_message *ret_message)
{
	struct pier_message message;
	struct pier_recv_slot *slot;
	int count = 0;

	if (!channel->first_message)
		count = pier_collect(channel);
	if (count < 0)
		return count;
	while (channel->first_message) {
		pier_srq_take(channel, &message);
		slot = message.context;
		pool->posted.count--;
		if (!message.result.error) {
			hand_out(pool, channel, slot, &message.result, ret_message);
			return 1;
		}
		pier_pool_put(pool, slot);
	}
	if (!channel->broken || channel->told_broken)
		return 0;
	channel->told_broken = true;
	return fail_told(pool, channel);
}

static struct pier_channel *channel_at(const struct pier_list *link)
{
	return pier_container_of(link, struct pier_channel, srq_link);
}

/* After all others it is its turn again. */
static void put_last(struct pier_recv_pool *pool, struct pier_channel *channel)
{
	pier_list_remove(&channel->srq_link);
	pier_list_append(&pool->srq->channels, &channel->srq_link);
}

static int take_from_any(struct pier_recv_pool *pool,
			 struct pier_pool_message *ret_message)
{
	struct pier_channel *working = NULL, *channel = NULL;
	int taken;

	pier_list_for_each(link, &pool->srq->channels) {
		channel = channel_at(link);
		taken = take_shared(pool, channel, ret_message);
		if (taken > 0)
			put_last(pool, channel);
		if (taken != 0)
			return taken;
		if (!channel->broken)
			working = channel;
	}
	return working || !channel ? 0 : fail_told(pool, channel);
}

static int take(struct pier_recv_pool *pool, struct pier_pool_message *ret_message)
{
	return pool->srq ? take_from_any(pool, ret_message)
			 : take_from_channel(pool, ret_message);
}

/* With nothing there, no slot waits for others. */
static int poll_pool(struct pier_recv_pool *pool, struct pier_pool_message *ret_message)
{
	int taken = take(pool, ret_message);
	int error = taken == 0 ? pier_pool_post(pool) : 0;

	return error ? error : taken;
}

int pier_recv_pool_poll(struct pier_recv_pool *pool,
			struct pier_pool_message *ret_message)
{
	int error = check(pool);

	return error ? error : poll_pool(pool, ret_message);
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

/* More than 0: something was collected, so look again. */
static int arm(struct pier_recv_pool *pool, struct pier_channel *channel, int *timeout,
	       nfds_t *count)
{
	int collected = pier_channel_arm(channel);

	*timeout = pier_sleep_ms(channel, *timeout);
	if (collected == 0)
		pool->fds[(*count)++] = (struct pollfd){ .fd = channel->events->fd,
							 .events = POLLIN };
	return collected;
}

static int arm_all(struct pier_recv_pool *pool, int *timeout, nfds_t *ret_count)
{
	int collected = 0;

	*ret_count = 0;
	if (!pool->srq)
		return arm(pool, pool->channel, timeout, ret_count);
	for (struct pier_list *link = pool->srq->channels.next;
	     link != &pool->srq->channels && collected == 0; link = link->next) {
		if (!channel_at(link)->broken)
			collected = arm(pool, channel_at(link), timeout, ret_count);
	}
	return collected;
}

/* 0: look again; -ETIMEDOUT without a sentence; or another error. */
static int sleep_on_channels(struct pier_recv_pool *pool, int64_t deadline)
{
	int left = pier_poll_timeout(deadline), timeout = left;
	int result = make_room_for_fds(pool);
	nfds_t count;

	if (!result)
		result = arm_all(pool, &timeout, &count);
	if (result != 0)
		return result < 0 ? result : 0;
	if (left == 0)
		return -ETIMEDOUT;
	if (poll(pool->fds, count, timeout) < 0 && errno != EINTR)
		return pier_fail(errno,
				 "poll the completion channels of a receive pool: %s",
				 strerror(errno));
	return 0;
}

/* Channels with a shared receive queue may have broken without a completion. */
static void notice_broken(struct pier_recv_pool *pool)
{
	if (!pool->srq)
		return;
	pier_list_for_each(link, &pool->srq->channels)
		pier_notice_broken(channel_at(link));
}

/* As the channel waits; where there are several, as all other such waits. */
static struct pier_spin begin_spin(const struct pier_recv_pool *pool, int64_t deadline)
{
	if (pool->channel)
		return pier_begin_spin(pool->channel->attr.waiting,
				       pool->channel->attr.spin_us, deadline);
	return pier_begin_spin(PIER_WAIT_ADAPTIVE, PIER_SPIN_US, deadline);
}

/* 1, -ETIMEDOUT without a sentence, or another error. */
static int wait_pool(struct pier_recv_pool *pool, int64_t deadline,
		     struct pier_pool_message *ret_message)
{
	struct pier_spin spin = begin_spin(pool, deadline);
	int taken = poll_pool(pool, ret_message), error = 0;

	while (taken == 0 && pier_spin_again(&spin))
		taken = poll_pool(pool, ret_message);
	while (taken == 0 && !error) {
		error = sleep_on_channels(pool, deadline);
		if (error == -ETIMEDOUT)
			notice_broken(pool);
		if (!error || error == -ETIMEDOUT)
			taken = poll_pool(pool, ret_message);
	}
	return taken != 0 ? taken : error;
}

static int resolve_timeout(const struct pier_recv_pool *pool, int *timeout_ms)
{
	if (*timeout_ms < PIER_TIMEOUT_DEFAULT)
		return pier_fail(EINVAL, "timeout_ms %d is negative", *timeout_ms);
	if (*timeout_ms == PIER_TIMEOUT_DEFAULT)
		*timeout_ms = pool->attr.timeout_ms;
	return 0;
}

static int fail_late(int timeout_ms)
{
	return pier_fail(ETIMEDOUT, "no message of the receive pool within %d ms",
			 timeout_ms);
}

int pier_recv_pool_wait(struct pier_recv_pool *pool, int timeout_ms,
			struct pier_pool_message *ret_message)
{
	int error = check(pool), taken;

	if (!error)
		error = resolve_timeout(pool, &timeout_ms);
	if (error)
		return error;
	taken = wait_pool(pool, pier_deadline(timeout_ms), ret_message);
	if (taken == -ETIMEDOUT)
		return fail_late(timeout_ms);
	return taken < 0 ? taken : 0;
}

int pier_recv_pool_release(struct pier_recv_pool *pool,
			   const struct pier_pool_message *message)
{
	struct pier_recv_slot *slot = NULL;
	int error = pier_check_process(&pool->object);

	if (error)
		return error;
	if (message->slot < pool->attr.count)
		slot = &pool->slots[message->slot];
	if (!slot || slot->state != PIER_SLOT_HELD || slot->sequence != message->sequence)
		return pier_fail(ESTALE,
				 "message %llu in slot %u is not one that is to be "
				 "released: it was, or it is of another pool",
				 (unsigned long long)message->sequence, message->slot);
	pool->held--;
	pier_pool_put(pool, slot);
	return 0;
}

/* The function may release the message itself, or others. */
static void deliver(struct pier_recv_pool *pool, const struct pier_pool_message *message)
{
	const struct pier_recv_slot *slot = &pool->slots[message->slot];
	enum pier_delivery delivery;

	pool->delivering = true;
	delivery = pool->attr.deliver(message, pool->attr.context);
	pool->delivering = false;
	if (delivery != PIER_KEPT && slot->state == PIER_SLOT_HELD &&
	    slot->sequence == message->sequence)
		pier_recv_pool_release(pool, message);
}

int pier_recv_pool_deliver(struct pier_recv_pool *pool, int timeout_ms)
{
	struct pier_pool_message message = { 0 };
	int error = check(pool), taken;
	uint32_t count = 0;

	if (!error)
		error = resolve_timeout(pool, &timeout_ms);
	if (!error && !pool->attr.deliver)
		error = pier_fail(EINVAL, "the receive pool was made without a function "
					  "to deliver to");
	if (error)
		return error;
	taken = wait_pool(pool, pier_deadline(timeout_ms), &message);
	if (taken == -ETIMEDOUT)
		return timeout_ms == 0 ? 0 : fail_late(timeout_ms);
	while (taken > 0) {
		deliver(pool, &message);
		taken = ++count < pool->attr.count ? poll_pool(pool, &message) : 0;
	}
	if (count == 0)
		return taken;
	/* It is told by the next call. */
	if (taken == -EPIPE && pool->broken)
		pool->broken->told_broken = false;
	return (int)count;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "channel/wait.h"
#include "lane.h"
#include "region/mr.h"
#include "region/sync.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

/* Driving a ring until something has happened. */

struct ring_wait {
	struct pier_ring *ring;
	bool (*holds)(struct pier_ring *ring);
	bool held;
};

static bool oldest_has_ended(struct pier_ring *ring)
{
	const struct pier_ring_fill *fill = pier_ring_oldest(ring);

	return !fill || fill->state == PIER_FILL_ENDED;
}

/* With the lock, so that wake_fd is readable as long as `woken` is set, and no longer. */
static bool take_wakeup(struct pier_ring *ring)
{
	eventfd_t count;

	if (!atomic_load(&ring->woken))
		return false;
	pthread_mutex_lock(&ring->lock);
	atomic_store(&ring->woken, false);
	eventfd_read(ring->wake_fd, &count);
	pthread_mutex_unlock(&ring->lock);
	return true;
}

/* With the lock. */
static void note_wakeup(struct pier_ring *ring)
{
	if (!atomic_exchange(&ring->woken, true))
		eventfd_write(ring->wake_fd, 1);
}

static bool has_news(struct pier_ring *ring)
{
	const struct pier_ring_fill *fill = pier_ring_oldest(ring);

	return take_wakeup(ring) || (fill && fill->state == PIER_FILL_ENDED);
}

static bool is_quiet(struct pier_ring *ring)
{
	return pier_lanes_in_flight(ring) == 0;
}

static int check_ring(void *subject)
{
	struct ring_wait *wait = subject;
	bool progress = pier_lanes_step(wait->ring);

	wait->held = wait->holds(wait->ring);
	if (wait->held)
		return PIER_CONDITION_HOLDS;
	return progress ? PIER_CONDITION_PROGRESS : PIER_CONDITION_PENDING;
}

/* If a channel cannot be armed, do not sleep: the next step finds the cause. */
static int pass_lanes(void *subject, struct pier_wait_pass *pass)
{
	const struct ring_wait *wait = subject;
	const struct pier_ring *ring = wait->ring;

	for (uint32_t i = 0; i < ring->lane_count; i++) {
		struct pier_channel *channel = ring->lanes[i].channel;

		if (!channel || pier_wait_pass_channel(pass, channel) == 0)
			continue;
		pier_debug("ring: %s", pier_error_message());
		pass->again = true;
	}
	pier_wait_pass_until(pass, pier_lanes_deadline(ring));
	if (pass->step == PIER_WAIT_STEP_SLEEP && wait->holds == has_news)
		pass->fds[pass->fd_count++] = (struct pollfd){ .fd = ring->wake_fd,
							       .events = POLLIN };
	return 0;
}

/* Returns 1 if it holds, 0 if the time was over first, or an error of waiting. */
static int wait_until(struct pier_ring *ring, bool (*holds)(struct pier_ring *ring),
		      int64_t deadline)
{
	struct ring_wait wait = { ring, holds, false };
	const struct pier_wait_condition condition = {
		.check = check_ring,
		.pass = pass_lanes,
		.subject = &wait,
		.fds = ring->fds,
	};
	int error = pier_wait_until(&condition, deadline);

	if (wait.held || error == -ETIMEDOUT)
		return wait.held;
	return error;
}

/* Likewise; with no time, it is driven once and not armed. */
static int wait_for(struct pier_ring *ring, bool (*holds)(struct pier_ring *ring),
		    int timeout_ms)
{
	if (timeout_ms == PIER_TIMEOUT_DEFAULT)
		timeout_ms = ring->attr.timeout_ms;
	if (timeout_ms < 0)
		return pier_fail(EINVAL,
				 "waiting for a ring: timeout_ms %d: use 0 or more",
				 timeout_ms);
	if (timeout_ms > 0)
		return wait_until(ring, holds, pier_deadline(timeout_ms));
	pier_lanes_step(ring);
	return holds(ring);
}

int pier_ring_cancel(struct pier_ring *ring)
{
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	ring->cancelling = true;
	while (wait_until(ring, is_quiet, INT64_MAX) != 1)
		continue;
	ring->cancelling = false;
	return 0;
}

int pier_ring_progress(struct pier_ring *ring)
{
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	take_wakeup(ring);
	pier_ring_drop_released(ring);
	pier_lanes_step(ring);
	return oldest_has_ended(ring);
}

/* Memory that was read into directly; again after an error. */
static int make_visible(const struct pier_ring *ring, struct pier_ring_fill *fill)
{
	if (fill->error || !ring->direct || fill->length == 0)
		return 0;
	return pier_flush_for_device(ring->mr, pier_fill_offset(ring, fill), fill->length,
				     false);
}

static int fail_fill(const struct pier_ring_fill *fill, int flush_error, uint32_t missing)
{
	if (flush_error)
		return pier_fail_because(-flush_error,
					 "slot %u of a ring: the bytes are not visible",
					 fill->number);
	return pier_fail(-fill->error,
			 "slot %u of a ring: %u of %u reads are missing: %s",
			 fill->number, missing, fill->item_count, fill->sentence);
}

static void describe_slot(const struct pier_ring *ring, const struct pier_ring_fill *fill,
			  struct pier_ring_slot *ret_slot)
{
	uint64_t offset = fill->number * ring->attr.slot_size;

	*ret_slot = (struct pier_ring_slot){
		.pointer = ring->pointer ? ring->pointer + offset : NULL,
		.iova = ring->mr->iova + pier_fill_offset(ring, fill),
		.offset = pier_fill_offset(ring, fill),
		.length = fill->length,
		.sequence = fill->sequence,
		.number = fill->number,
		.reads = fill->item_count,
		.missing = pier_fill_missing(fill),
	};
}

/* Return the oldest fill, which has ended. */
static int return_oldest(struct pier_ring *ring, struct pier_ring_fill *fill,
			 struct pier_ring_slot *ret_slot)
{
	int error;

	pier_clear_error();
	error = make_visible(ring, fill);
	describe_slot(ring, fill, ret_slot);
	atomic_store(&fill->ticket, fill->sequence + 1);
	if (error || fill->error) {
		fill->reported = true;
		ret_slot->error = fail_fill(fill, error, ret_slot->missing);
		return ret_slot->error;
	}
	fill->state = PIER_FILL_NONE;
	pier_ring_remove_oldest(ring);
	return 1;
}

int pier_ring_next(struct pier_ring *ring, int timeout_ms,
		   struct pier_ring_slot *ret_slot)
{
	int result = pier_check_process(&ring->object);
	struct pier_ring_fill *fill;

	memset(ret_slot, 0, sizeof(*ret_slot));
	if (result)
		return result;
	pier_ring_drop_released(ring);
	fill = pier_ring_oldest(ring);
	if (!fill)
		return pier_fail(ENODATA, "the ring has no fill to wait for: begin one");
	result = wait_for(ring, oldest_has_ended, timeout_ms);
	return result == 1 ? return_oldest(ring, fill, ret_slot) : result;
}

int pier_ring_wait(struct pier_ring *ring, int timeout_ms)
{
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	pier_ring_drop_released(ring);
	return wait_for(ring, has_news, timeout_ms);
}

int pier_ring_wake(struct pier_ring *ring)
{
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	pthread_mutex_lock(&ring->lock);
	note_wakeup(ring);
	pthread_mutex_unlock(&ring->lock);
	return 0;
}

/*
 * With the lock, so that the ring exists until the end of the call even if its thread
 * destroys it as soon as the slot is free.
 */
int pier_ring_release(struct pier_ring *ring, const struct pier_ring_slot *slot)
{
	unsigned long long ticket;
	bool held = false;
	int error = pier_check_process(&ring->object);

	if (!error)
		error = pier_check_given(slot, "slot");
	if (error)
		return error;
	ticket = slot->sequence + 1;
	pthread_mutex_lock(&ring->lock);
	if (slot->number < ring->attr.slots)
		held = atomic_compare_exchange_strong(&ring->fills[slot->number].ticket,
						      &ticket, 0);
	if (held)
		note_wakeup(ring);
	pthread_mutex_unlock(&ring->lock);
	return held ? 0
		    : pier_fail(ESTALE,
				"slot %u of fill %llu is not held: it was released "
				"before, its fill was continued, or it belongs to "
				"another ring",
				slot->number, (unsigned long long)slot->sequence);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include <pier/buffer.h>
#include <pier/element.h>

#include "channel/wait.h"
#include "core/caller.h"
#include "core/checked.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/fd.h"
#include "core/log.h"
#include "lane.h"
#include "region/mr.h"
#include "region/sync.h"
#include "transfer/drive.h"

/* Rings, from their creation to their end. */

PIER_ASSERT_NO_PADDING(ring_attr, offset);

struct pier_ring {
	struct pier_object object;
	struct pier_region_user region_user; /* for all slots, whatever their state */
	struct pier_ring_attr attr;
	struct pier_buffer *buffer; /* NULL: the caller's region */
	struct pier_ring_memory memory;
	char *pointer; /* of the first slot, or NULL */

	struct pier_fill *fills; /* one for each slot */
	uint32_t last;		 /* the slot that was taken last */
	/* The slots whose fills were not returned, oldest first; a ring buffer. */
	uint32_t *order;
	uint32_t order_first, order_count;
	uint64_t sequence;

	struct pier_ring_lanes lanes;

	pthread_mutex_t lock; /* a release is over when it was unlocked */
	atomic_bool woken;    /* set and cleared with `lock`, together with wake_fd */
	int wake_fd;
};

/* Whether the user has released the slot of a failed fill. Only the oldest can be. */
static bool is_given_up(const struct pier_fill *fill)
{
	return fill->state == PIER_FILL_ENDED && fill->reported &&
	       atomic_load(&fill->ticket) == 0;
}

/* Whether pier_ring_fill() can take the slot. */
static bool is_free(const struct pier_fill *fill)
{
	return fill->state == PIER_FILL_NONE && atomic_load(&fill->ticket) == 0;
}

/* The oldest fill that was not returned, or NULL. */
static struct pier_fill *find_oldest(const struct pier_ring *ring)
{
	return ring->order_count ? &ring->fills[ring->order[ring->order_first]] : NULL;
}

static void remove_oldest(struct pier_ring *ring)
{
	ring->order_first = (ring->order_first + 1) % ring->attr.slots;
	ring->order_count--;
}

static void describe_ring(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_ring *ring = (const struct pier_ring *)object;

	snprintf(ret_text, size, "ring of %u times %" PRIu64 " bytes on %s",
		 ring->attr.slots, ring->attr.slot_size, ring->memory.pd->device->name);
}

static const char *use_of_region(const struct pier_region_user *user, uint32_t lkey)
{
	const struct pier_ring *ring = pier_container_of(user, const struct pier_ring,
							 region_user);

	for (uint32_t i = 0; i < pier_mr_parts(ring->memory.mr); i++) {
		if (pier_mr_part_at(ring->memory.mr, i)->mr->lkey == lkey)
			return "ring";
	}
	return NULL;
}

static int check_attr(const struct pier_ring_attr *attr, const struct pier_pd *pd)
{
	uint64_t length;

	if (attr->slots < 1 || attr->slot_size < 1)
		return pier_fail(EINVAL, "ring: %u slots of %" PRIu64 " bytes",
				 attr->slots, attr->slot_size);
	if (!pier_mul_u64(attr->slots, attr->slot_size, &length) || length > SIZE_MAX)
		return pier_fail(ERANGE,
				 "ring: %u slots of %" PRIu64 " bytes exceed 64 bits",
				 attr->slots, attr->slot_size);
	if (!attr->mr && !attr->spec)
		return pier_fail(EINVAL, "ring: neither spec nor mr");
	if (!attr->mr && !(attr->access & PIER_ACCESS_LOCAL_WRITE))
		return pier_fail(EINVAL, "ring: access %#x lacks LOCAL_WRITE",
				 (unsigned int)attr->access);
	if (attr->mr && attr->mr->pd != pd)
		return pier_fail(EINVAL, "ring: mr is in another protection domain");
	if (attr->timeout_ms <= 0)
		return pier_fail(EINVAL, "ring: timeout_ms %d is not more than 0",
				 attr->timeout_ms);
	return pier_check_stall("ring", attr->stall_ms);
}

static int allocate_memory(struct pier_ring *ring)
{
	const struct pier_ring_attr *attr = &ring->attr;
	size_t length = (size_t)(attr->slots * attr->slot_size);
	void *pointer;
	int error = pier_buffer_alloc(attr->spec, length, &ring->buffer);

	if (!error)
		error = pier_mr_reg_buffer(ring->memory.pd, ring->buffer, 0, length,
					   attr->access, attr->policy, &ring->memory.mr);
	if (error)
		return error;
	ring->attr.offset = 0;
	/* Slots have no pointer if the CPU cannot reach the memory. */
	if (pier_buffer_map(ring->buffer, &pointer) == 0)
		ring->pointer = pointer;
	return 0;
}

static int take_region(struct pier_ring *ring)
{
	const struct pier_ring_attr *attr = &ring->attr;
	uint64_t length = attr->slots * attr->slot_size;
	struct pier_scatter target;
	int error = pier_check_process(&attr->mr->object);

	if (!error)
		error = pier_mr_scatter(attr->mr, pier_mr_iova(attr->mr), 0, &target);
	if (error)
		return error;
	if (!pier_range_fits(attr->offset, length, pier_mr_length(attr->mr)))
		return pier_fail(ERANGE,
				 "ring: %u slots of %" PRIu64 " bytes from offset "
				 "%" PRIu64 " leave the region of %zu bytes",
				 attr->slots, attr->slot_size, attr->offset,
				 pier_mr_length(attr->mr));
	ring->memory.mr = attr->mr;
	return 0;
}

static int get_memory(struct pier_ring *ring)
{
	int error = ring->attr.mr ? take_region(ring) : allocate_memory(ring);

	if (error)
		return error;
	for (uint32_t i = 0; i < ring->attr.slots; i++)
		ring->fills[i].offset = ring->attr.offset + i * ring->attr.slot_size;
	ring->memory.bounced = pier_has_bounce(ring->memory.mr);
	ring->memory.direct = pier_has_direct(ring->memory.mr);
	ring->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ring->wake_fd < 0)
		return pier_fail_because(errno, "eventfd of a ring");
	return 0;
}

static void free_ring(struct pier_ring *ring)
{
	for (uint32_t i = 0; ring->fills && i < ring->attr.slots; i++)
		pier_fill_free(&ring->fills[i]);
	pier_lanes_free(&ring->lanes);
	pier_close_fd(ring->wake_fd);
	pthread_mutex_destroy(&ring->lock);
	free(ring->fills);
	free(ring->order);
	free(ring);
}

static struct pier_ring *new_ring(struct pier_pd *pd, const struct pier_ring_attr *attr)
{
	struct pier_ring *ring = calloc(1, sizeof(*ring));

	if (!ring)
		return NULL;
	*ring = (struct pier_ring){
		.object.describe = describe_ring,
		.region_user.uses = use_of_region,
		.lanes = { .memory = &ring->memory, .stall_ms = attr->stall_ms },
		.memory = { .pd = pd, .slot_size = attr->slot_size },
		.attr = *attr,
		.last = attr->slots - 1,
		.wake_fd = -1,
	};
	pthread_mutex_init(&ring->lock, NULL);
	ring->fills = calloc(attr->slots, sizeof(*ring->fills));
	ring->order = calloc(attr->slots, sizeof(*ring->order));
	ring->lanes.fds = calloc(1, sizeof(*ring->lanes.fds));
	if (!ring->fills || !ring->order || !ring->lanes.fds) {
		free_ring(ring);
		return NULL;
	}
	for (uint32_t i = 0; i < attr->slots; i++)
		ring->fills[i].number = i;
	return ring;
}

/* Continues where it failed before. */
static int free_memory(struct pier_ring *ring)
{
	int error = 0;

	if (ring->buffer && ring->memory.mr)
		error = pier_mr_dereg(ring->memory.mr);
	if (error)
		return error;
	ring->memory.mr = NULL;
	error = pier_buffer_free(ring->buffer);
	if (!error)
		ring->buffer = NULL;
	return error;
}

int pier_ring_create(struct pier_pd *pd, const struct pier_ring_attr *attr,
		     struct pier_ring **ret_ring)
{
	PIER_REFUSE_NULL(pd, ret_ring);
	PIER_ENTRY();
	struct pier_ring_attr known;
	struct pier_ring *ring;
	int error = pier_check_process(&pd->object);

	if (!error)
		error = PIER_READ_ATTR("ring attributes", ring_attr, attr,
				       PIER_SIZE_UP_TO(ring_attr, offset), &known);
	if (!error)
		error = check_attr(&known, pd);
	if (error)
		return error;
	ring = new_ring(pd, &known);
	if (!ring)
		return pier_fail(ENOMEM, "no memory for a ring of %u slots", known.slots);
	error = get_memory(ring);
	if (error) {
		error = pier_fail_because(-error, "making a ring on %s",
					  pd->device->name);
		if (free_memory(ring) == 0)
			free_ring(ring);
		return error;
	}
	atomic_fetch_add(&pd->children, 1);
	pier_object_track(&ring->object, PIER_OBJECT_RING, &pd->object);
	pier_add_region_user(pd, &ring->region_user);
	*ret_ring = ring;
	return 0;
}

static uint32_t count_held(const struct pier_ring *ring)
{
	uint32_t held = 0;

	for (uint32_t i = 0; i < ring->attr.slots; i++)
		held += ring->fills[i].state == PIER_FILL_NONE &&
			atomic_load(&ring->fills[i].ticket) != 0;
	return held;
}

/* The release that freed the last slot may not have returned yet. */
static void await_releases(struct pier_ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	pthread_mutex_unlock(&ring->lock);
}

int pier_ring_destroy(struct pier_ring *ring)
{
	uint32_t held;
	int error;

	if (!ring)
		return 0;
	error = pier_check_process(&ring->object);
	if (error)
		return error;
	held = count_held(ring);
	if (held)
		return pier_fail(EBUSY,
				 "destroying a ring: %u of its %u slots are not released",
				 held, ring->attr.slots);
	pier_ring_cancel(ring);
	await_releases(ring);
	pier_remove_region_user(ring->memory.pd, &ring->region_user);
	error = free_memory(ring);
	if (error)
		return error;
	pier_object_untrack(&ring->object);
	atomic_fetch_sub(&ring->memory.pd->children, 1);
	free_ring(ring);
	return 0;
}

int pier_ring_fd(const struct pier_ring *ring)
{
	PIER_REFUSE_NULL(ring);
	return ring->wake_fd;
}

bool pier_ring_uses(const struct pier_ring *ring, const struct pier_channel *channel)
{
	PIER_REFUSE_NULL_AS(false, ring, channel);
	return pier_lanes_use(&ring->lanes, channel);
}

void pier_ring_query(const struct pier_ring *ring, struct pier_ring_status *ret_status,
		     size_t size)
{
	PIER_REFUSE_NULL_AS(, ring, ret_status);
	struct pier_ring_status status = {
		.mr = ring->memory.mr,
		.buffer = ring->buffer,
		.held = count_held(ring),
		.in_flight = pier_lanes_in_flight(&ring->lanes),
		.doorbells = ring->lanes.doorbells,
		.reads = ring->lanes.reads,
		.bytes = ring->lanes.bytes,
	};

	for (uint32_t i = 0; i < ring->attr.slots; i++) {
		const struct pier_fill *fill = &ring->fills[i];

		if (is_free(fill) || is_given_up(fill))
			status.free++;
		else if (fill->state == PIER_FILL_RUNNING)
			status.filling++;
		else if (fill->state == PIER_FILL_ENDED)
			status.ended++;
	}
	pier_write_extensible(&status, sizeof(status), ret_status, size);
}

/* How fills begin, and begin again. */

static void drop_released(struct pier_ring *ring)
{
	struct pier_fill *fill = find_oldest(ring);

	if (!fill || !is_given_up(fill))
		return;
	fill->state = PIER_FILL_NONE;
	remove_oldest(ring);
}

static struct pier_fill *find_free(struct pier_ring *ring)
{
	uint32_t number = ring->last;

	drop_released(ring);
	for (uint32_t i = 0; i < ring->attr.slots; i++) {
		number = number + 1 < ring->attr.slots ? number + 1 : 0;
		if (is_free(&ring->fills[number]))
			return &ring->fills[number];
	}
	return NULL;
}

static int copy_reads(struct pier_fill *fill, const struct pier_ring_read *reads,
		      uint32_t count)
{
	struct pier_ring_item *items = fill->items;

	if (count > fill->item_room) {
		items = reallocarray(items, count, sizeof(*items));
		if (!items)
			return pier_fail(ENOMEM, "no memory for %u reads", count);
		fill->items = items;
		fill->item_room = count;
	}
	fill->item_count = count;
	for (uint32_t i = 0; i < count; i++)
		items[i] = (struct pier_ring_item){ reads[i], reads[i].length };
	return 0;
}

/* Of reads that were checked: no overflow. */
static uint64_t end_of_reads(const struct pier_fill *fill)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < fill->item_count; i++) {
		const struct pier_ring_read *read = &fill->items[i].read;

		if (read->length > 0 && read->offset + read->length > end)
			end = read->offset + read->length;
	}
	return end;
}

/* Plan a fill, and post it. After an error it is as before. */
static int start_fill(struct pier_ring *ring, struct pier_fill *fill,
		      const struct pier_ring_source *sources, uint32_t source_count)
{
	int error = pier_fill_plan(&ring->memory, fill, sources, source_count);

	if (!error)
		error = pier_lanes_reserve(&ring->lanes, fill);
	if (error)
		return error;
	fill->error = 0;
	fill->open = fill->request_count;
	fill->state = fill->open ? PIER_FILL_RUNNING : PIER_FILL_ENDED;
	pier_lanes_post(&ring->lanes, fill);
	return 0;
}

int pier_ring_fill(struct pier_ring *ring, const struct pier_ring_source *sources,
		   uint32_t source_count, const struct pier_ring_read *reads,
		   uint32_t count, uint32_t *ret_number)
{
	PIER_REFUSE_NULL(ring);
	PIER_REFUSE_NULL_ARRAY(sources, source_count);
	PIER_REFUSE_NULL_ARRAY(reads, count);
	struct pier_fill *fill;
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	fill = find_free(ring);
	if (!fill)
		return pier_fail(EAGAIN,
				 "none of the %u slots of the ring is free: release one",
				 ring->attr.slots);
	error = copy_reads(fill, reads, count);
	if (!error)
		error = start_fill(ring, fill, sources, source_count);
	if (error)
		return error;
	fill->length = end_of_reads(fill);
	fill->sequence = ring->sequence++;
	fill->reported = false;
	ring->last = fill->number;
	ring->order[(ring->order_first + ring->order_count++) % ring->attr.slots] =
		fill->number;
	if (ret_number)
		*ret_number = fill->number;
	return 0;
}

/* A fill that was begun and not returned. Errors: -ENOENT. */
static int find_fill(const struct pier_ring *ring, uint32_t number,
		     struct pier_fill **ret_fill)
{
	if (number >= ring->attr.slots || ring->fills[number].state == PIER_FILL_NONE)
		return pier_fail(ENOENT, "slot %u of %u is not being filled", number,
				 ring->attr.slots);
	*ret_fill = &ring->fills[number];
	if ((*ret_fill)->state == PIER_FILL_RUNNING)
		return pier_fail(EBUSY,
				 "the fill of slot %u has not ended: %u requests "
				 "are left",
				 number, (*ret_fill)->open);
	return 0;
}

int pier_ring_retry(struct pier_ring *ring, uint32_t number,
		    const struct pier_ring_source *sources, uint32_t source_count)
{
	PIER_REFUSE_NULL(ring);
	PIER_REFUSE_NULL_ARRAY(sources, source_count);
	struct pier_fill *fill = NULL;
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	drop_released(ring);
	error = find_fill(ring, number, &fill);
	if (error)
		return error;
	if (!fill->error)
		return pier_fail(EALREADY, "all bytes of slot %u have arrived", number);
	error = start_fill(ring, fill, sources, source_count);
	if (error)
		return error;
	fill->reported = false;
	atomic_store(&fill->ticket, 0);
	return 0;
}

int pier_ring_missing(const struct pier_ring *ring, uint32_t number,
		      uint32_t *ret_indices, uint32_t capacity)
{
	PIER_REFUSE_NULL(ring);
	PIER_REFUSE_NULL_ARRAY(ret_indices, capacity);
	struct pier_fill *fill = NULL;
	uint32_t count = 0;
	int error = pier_check_process(&ring->object);

	if (!error)
		error = find_fill(ring, number, &fill);
	if (error)
		return error;
	for (uint32_t i = 0; i < fill->item_count; i++) {
		if (fill->items[i].left == 0)
			continue;
		if (count < capacity)
			ret_indices[count] = i;
		count++;
	}
	return (int)count;
}

/* Driving a ring until something has happened. */

struct ring_wait {
	struct pier_ring *ring;
	bool (*holds)(struct pier_ring *ring);
};

static bool oldest_has_ended(struct pier_ring *ring)
{
	const struct pier_fill *fill = find_oldest(ring);

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
	const struct pier_fill *fill = find_oldest(ring);

	return take_wakeup(ring) || (fill && fill->state == PIER_FILL_ENDED);
}

static bool is_quiet(struct pier_ring *ring)
{
	for (uint32_t i = 0; i < ring->lanes.count; i++)
		if (ring->lanes.lanes[i].flow.channel)
			return false;
	return true;
}

static int check_ring(void *subject)
{
	const struct ring_wait *wait = subject;
	bool progress = pier_lanes_step(&wait->ring->lanes);

	if (wait->holds(wait->ring))
		return PIER_CONDITION_HOLDS;
	return progress ? PIER_CONDITION_PROGRESS : PIER_CONDITION_PENDING;
}

/* If a channel cannot be armed, do not sleep: the next step finds the cause. */
static int pass_lanes(void *subject, struct pier_wait_pass *pass)
{
	const struct ring_wait *wait = subject;
	const struct pier_ring *ring = wait->ring;

	for (uint32_t i = 0; i < ring->lanes.count; i++) {
		struct pier_channel *channel = ring->lanes.lanes[i].flow.channel;

		if (!channel || pier_wait_pass_channel(pass, channel) == 0)
			continue;
		pier_debug("ring: %s", pier_error_message());
		pass->again = true;
	}
	pier_wait_pass_until(pass, pier_lanes_deadline(&ring->lanes));
	if (pass->step == PIER_WAIT_STEP_SLEEP && wait->holds == has_news)
		pass->fds[pass->fd_count++] = (struct pollfd){ .fd = ring->wake_fd,
							       .events = POLLIN };
	return 0;
}

/* Returns 1 if it holds, -ETIMEDOUT without a sentence, or another error of waiting. */
static int wait_until(struct pier_ring *ring, bool (*holds)(struct pier_ring *ring),
		      int64_t deadline)
{
	struct ring_wait wait = { ring, holds };
	const struct pier_wait_condition condition = {
		.check = check_ring,
		.pass = pass_lanes,
		.subject = &wait,
		.fds = ring->lanes.fds,
	};
	int error = pier_wait_until(&condition, deadline);

	return error ? error : 1;
}

/* Likewise. With no time, it is driven once and not armed: returns 0 if it does not hold.
 */
static int wait_for(struct pier_ring *ring, bool (*holds)(struct pier_ring *ring),
		    int timeout_ms)
{
	int error;

	if (timeout_ms == 0) {
		pier_lanes_step(&ring->lanes);
		return holds(ring);
	}
	error = wait_until(ring, holds, pier_deadline(timeout_ms));
	return error == -ETIMEDOUT
		       ? pier_fail(ETIMEDOUT, "the ring had nothing new within %d ms",
				   timeout_ms)
		       : error;
}

int pier_ring_cancel(struct pier_ring *ring)
{
	PIER_REFUSE_NULL(ring);
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	ring->lanes.cancelling = true;
	while (wait_until(ring, is_quiet, INT64_MAX) != 1)
		continue;
	ring->lanes.cancelling = false;
	return 0;
}

int pier_ring_progress(struct pier_ring *ring)
{
	PIER_REFUSE_NULL(ring);
	int error = pier_check_process(&ring->object);

	if (error)
		return error;
	take_wakeup(ring);
	drop_released(ring);
	pier_lanes_step(&ring->lanes);
	return oldest_has_ended(ring);
}

/* Memory that was read into directly; again after an error. */
static int make_visible(const struct pier_ring *ring, struct pier_fill *fill)
{
	if (fill->error || !ring->memory.direct || fill->length == 0)
		return 0;
	return pier_flush_for_device(ring->memory.mr, fill->offset, fill->length, false);
}

static int fail_fill(const struct pier_fill *fill, int flush_error, uint32_t missing)
{
	if (flush_error)
		return pier_fail_because(-flush_error,
					 "slot %u of a ring: the bytes are not visible",
					 fill->number);
	return pier_fail(-fill->error,
			 "slot %u of a ring: %u of %u reads are missing: %s",
			 fill->number, missing, fill->item_count, fill->sentence);
}

static void describe_slot(const struct pier_ring *ring, const struct pier_fill *fill,
			  struct pier_ring_slot *ret_slot)
{
	uint64_t offset = fill->number * ring->attr.slot_size;

	*ret_slot = (struct pier_ring_slot){
		.pointer = ring->pointer ? ring->pointer + offset : NULL,
		.iova = ring->memory.mr->iova + fill->offset,
		.offset = fill->offset,
		.length = fill->length,
		.sequence = fill->sequence,
		.number = fill->number,
		.reads = fill->item_count,
		.missing = pier_fill_missing(fill),
	};
}

/* Return the oldest fill, which has ended. */
static int return_oldest(struct pier_ring *ring, struct pier_fill *fill,
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
	remove_oldest(ring);
	return 1;
}

int pier_ring_next(struct pier_ring *ring, int timeout_ms,
		   struct pier_ring_slot *ret_slot)
{
	PIER_REFUSE_NULL(ring, ret_slot);
	int result = pier_check_process(&ring->object);
	struct pier_fill *fill;

	memset(ret_slot, 0, sizeof(*ret_slot));
	if (!result)
		result = pier_check_timeout(timeout_ms, ring->attr.timeout_ms,
					    &timeout_ms);
	if (result)
		return result;
	drop_released(ring);
	fill = find_oldest(ring);
	if (!fill)
		return pier_fail(ENODATA, "the ring has no fill to wait for: begin one");
	result = wait_for(ring, oldest_has_ended, timeout_ms);
	return result == 1 ? return_oldest(ring, fill, ret_slot) : result;
}

int pier_ring_wait(struct pier_ring *ring, int timeout_ms)
{
	PIER_REFUSE_NULL(ring);
	int error = pier_check_process(&ring->object);

	if (!error)
		error = pier_check_timeout(timeout_ms, ring->attr.timeout_ms,
					   &timeout_ms);
	if (error)
		return error;
	drop_released(ring);
	return wait_for(ring, has_news, timeout_ms);
}

int pier_ring_wake(struct pier_ring *ring)
{
	PIER_REFUSE_NULL(ring);
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
	PIER_REFUSE_NULL(ring, slot);
	unsigned long long ticket;
	bool held = false;
	int error = pier_check_process(&ring->object);

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

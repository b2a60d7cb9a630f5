/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "buffer/buffer.h"
#include "core/page.h"
#include "bounce.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/log.h"

/* soft0 copies directly into memfds; other devices take them as host memory. */
#define SHADOW "memfd"

/* The offset in the page, which the memory and the iova share: see core/page.h. */
static uint64_t page_offset(const struct pier_segment *segment)
{
	return segment->iova & (pier_host_page() - 1);
}

static int check_copies(const struct pier_buffer *buffer)
{
	const struct pier_backend *backend = buffer->backend;

	if (buffer->memory.cpu || backend->copy_start ||
	    (backend->copy_to && backend->copy_from))
		return 0;
	return pier_fail(EOPNOTSUPP, "the backend %s has no way to copy", backend->name);
}

/* Locked pages make copies faster; copies also work without. */
static void lock_pages(struct pier_bounce *bounce)
{
	const struct pier_buffer *buffer = bounce->buffer;
	uint64_t mask = pier_host_page() - 1;

	if (!buffer->backend->lock_host || !buffer->backend->unlock_host)
		return;
	bounce->locked = buffer->backend->lock_host(
				 &buffer->memory, bounce->cpu - bounce->skew,
				 (bounce->skew + bounce->length + mask) & ~mask) == 0;
	if (!bounce->locked)
		pier_debug("copies to %s are slower than they could be: %s",
			   buffer->backend->name, pier_error_message());
}

static int make_shadow(struct pier_bounce *bounce)
{
	void *cpu = NULL;
	uint64_t length;
	int error;

	if (!pier_add_u64(bounce->skew, bounce->length, &length) || length > SIZE_MAX)
		return pier_fail(ENOMEM, "no host memory for %" PRIu64 " bytes",
				 bounce->length);
	error = pier_buffer_alloc(SHADOW, (size_t)length, &bounce->shadow);
	if (!error)
		error = pier_buffer_map(bounce->shadow, &cpu);
	if (!error)
		bounce->cpu = (char *)cpu + bounce->skew;
	return error;
}

static int make_bounce(const struct pier_segment *segment,
		       struct pier_bounce **ret_bounce)
{
	struct pier_bounce *bounce;
	int error = check_copies(segment->range.buffer);

	if (error)
		return error;
	bounce = calloc(1, sizeof(*bounce));
	if (!bounce)
		return pier_fail(ENOMEM, "no memory for a bounce buffer");
	atomic_init(&bounce->users, 1);
	bounce->buffer = segment->range.buffer;
	bounce->offset = segment->range.offset;
	bounce->length = segment->range.length;
	bounce->skew = page_offset(segment);
	error = make_shadow(bounce);
	if (error) {
		pier_bounce_put(bounce);
		return error;
	}
	lock_pages(bounce);
	*ret_bounce = bounce;
	return 0;
}

void pier_bounce_put(struct pier_bounce *bounce)
{
	if (!bounce || atomic_fetch_sub(&bounce->users, 1) > 1)
		return;
	if (bounce->locked)
		bounce->buffer->backend->unlock_host(&bounce->buffer->memory,
						     bounce->cpu - bounce->skew);
	/* It is no longer registered, and no cache knows it. */
	pier_free_buffer_alone(bounce->shadow);
	free(bounce);
}

static bool bounce_covers(const struct pier_bounce *bounce,
			  const struct pier_mr_range *range)
{
	return bounce && bounce->buffer == range->buffer &&
	       range->offset >= bounce->offset &&
	       pier_range_fits(range->offset - bounce->offset, range->length,
			       bounce->length);
}

/* A sub-region shares the bounce buffers of its base. */
static struct pier_bounce *find_in_base(const struct pier_segment *segment)
{
	uint32_t count = segment->region->base ? pier_mr_parts(segment->region->base) : 0;

	for (uint32_t i = 0; i < count; i++) {
		struct pier_bounce *bounce =
			pier_mr_part_at(segment->region->base, i)->bounce;

		if (bounce_covers(bounce, &segment->range))
			return bounce;
	}
	return NULL;
}

uint64_t pier_bounce_reach(const struct pier_segment *segment, uint64_t length)
{
	uint32_t count = segment->region->base ? pier_mr_parts(segment->region->base) : 0;
	uint64_t reach = length, first = segment->range.offset;

	for (uint32_t i = 0; i < count; i++) {
		const struct pier_bounce *bounce =
			pier_mr_part_at(segment->region->base, i)->bounce;
		uint64_t edge;

		if (!bounce || bounce->buffer != segment->range.buffer)
			continue;
		edge = first < bounce->offset ? bounce->offset
					      : bounce->offset + bounce->length;
		if (first < edge && edge - first < reach)
			reach = edge - first;
	}
	return reach;
}

bool pier_base_has_bounce(const struct pier_segment *segment)
{
	return find_in_base(segment) != NULL;
}

int pier_bounce_get(const struct pier_segment *segment, struct pier_bounce **ret_bounce)
{
	struct pier_bounce *bounce = find_in_base(segment);

	if (!bounce)
		return make_bounce(segment, ret_bounce);
	atomic_fetch_add(&bounce->users, 1);
	*ret_bounce = bounce;
	return 0;
}

struct pier_segment pier_bounce_segment(const struct pier_bounce *bounce,
					const struct pier_segment *segment)
{
	struct pier_segment shadow = *segment;

	shadow.policy = PIER_POLICY_ANY;
	shadow.mapping = PIER_MAPPING_AUTO;
	shadow.checked = false;
	shadow.range.buffer = bounce->shadow;
	shadow.range.offset = bounce->skew + (segment->range.offset - bounce->offset);
	return shadow;
}

int pier_bounce_for_nic(const struct pier_bounce *bounce, uint64_t offset,
			uint64_t length)
{
	return pier_buffer_copy_from(bounce->buffer, (size_t)(bounce->offset + offset),
				     bounce->cpu + offset, (size_t)length);
}

int pier_bounce_for_device(const struct pier_bounce *bounce, uint64_t offset,
			   uint64_t length)
{
	return pier_buffer_copy_to(bounce->buffer, (size_t)(bounce->offset + offset),
				   bounce->cpu + offset, (size_t)length);
}

bool pier_has_bounce(const struct pier_mr *mr)
{
	bool found = false;

	mr = pier_mr_beneath(mr);
	for (uint32_t i = 0; i < pier_mr_parts(mr) && !found; i++)
		found = pier_mr_part_at(mr, i)->bounce;
	return found;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"
#include "device/loop.h"
#include "sync.h"

/* soft0 copies directly into memfds; other devices take them as host memory. */
#define SHADOW "memfd"

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

static int make_bounce(const struct pier_part_request *segment,
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
	/* The offset in the page, which the memory and the iova share: core/page.h. */
	bounce->skew = segment->iova & (pier_host_page() - 1);
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
static struct pier_bounce *find_in_base(const struct pier_part_request *segment)
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

uint64_t pier_bounce_reach(const struct pier_part_request *segment, uint64_t length)
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

bool pier_base_has_bounce(const struct pier_part_request *segment)
{
	return find_in_base(segment) != NULL;
}

int pier_bounce_get(const struct pier_part_request *segment,
		    struct pier_bounce **ret_bounce)
{
	struct pier_bounce *bounce = find_in_base(segment);

	if (!bounce)
		return make_bounce(segment, ret_bounce);
	atomic_fetch_add(&bounce->users, 1);
	*ret_bounce = bounce;
	return 0;
}

struct pier_part_request pier_bounce_segment(const struct pier_bounce *bounce,
					     const struct pier_part_request *segment)
{
	struct pier_part_request shadow = *segment;

	shadow.policy = PIER_POLICY_ANY;
	shadow.mapping = PIER_MAPPING_AUTO;
	shadow.checked = false;
	shadow.range.buffer = bounce->shadow;
	shadow.range.offset = bounce->skew + (segment->range.offset - bounce->offset);
	return shadow;
}

/* Copy [offset, offset + length) of the memory to the bounce buffer, or back. */
static int bounce_for_nic(const struct pier_bounce *bounce, uint64_t offset,
			  uint64_t length)
{
	return pier_buffer_copy_from(bounce->buffer, (size_t)(bounce->offset + offset),
				     bounce->cpu + offset, (size_t)length);
}

static int bounce_for_device(const struct pier_bounce *bounce, uint64_t offset,
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

/* Bytes of a region, in its own offsets. */
struct span {
	uint64_t offset, length;
};

/* The bytes of a span in [start, start + length); length 0: there are none. */
static struct span clip_span(struct span span, uint64_t start, uint64_t length)
{
	uint64_t first = span.offset > start ? span.offset : start;
	uint64_t end = span.offset + span.length, other = start + length;

	if (other < end)
		end = other;
	return (struct span){ first, end > first ? end - first : 0 };
}

/* A window has the memory of the region beneath. */
static int find_memory(struct pier_mr **mr, uint64_t *offset, uint64_t length)
{
	int error = pier_check_process(&(*mr)->object);

	if (error)
		return error;
	if (!pier_range_fits(*offset, length, (*mr)->length))
		return pier_fail(ERANGE,
				 "%" PRIu64 " bytes at offset %" PRIu64
				 " leave the region of %" PRIu64,
				 length, *offset, (*mr)->length);
	while ((*mr)->window && (*mr)->range_count == 0) {
		*offset += (*mr)->iova - (*mr)->base->iova;
		*mr = (*mr)->base;
	}
	return 0;
}

static int sync_part(const struct pier_mr_part *part, struct span span,
		     int (*copy)(const struct pier_bounce *bounce, uint64_t offset,
				 uint64_t length))
{
	const struct pier_bounce *bounce = part->bounce;
	uint64_t skipped;

	if (!bounce || span.length == 0)
		return 0;
	/* A sub-region's part begins somewhere in the bounce buffer of its base. */
	skipped = part->bounce_offset + (span.offset - part->start);
	return copy(bounce, skipped, span.length);
}

/* A region may have a thousand parts, and is synchronised chunk by chunk. */
static uint32_t first_part(const struct pier_mr *mr, uint64_t offset)
{
	return mr->parts ? (uint32_t)(pier_mr_find_part(mr, offset) - mr->parts) : 0;
}

static int sync_bounced(const struct pier_mr *mr, struct span span,
			int (*copy)(const struct pier_bounce *bounce, uint64_t offset,
				    uint64_t length))
{
	uint64_t end = span.offset + span.length;
	int error = 0;

	for (uint32_t i = first_part(mr, span.offset); i < pier_mr_parts(mr) && !error;
	     i++) {
		const struct pier_mr_part *part = pier_mr_part_at(mr, i);

		if (part->start >= end)
			break;
		error = sync_part(part, clip_span(span, part->start, part->length), copy);
	}
	return error;
}

/* Also true of an empty span. */
static bool all_bounced(const struct pier_mr *mr, struct span span)
{
	uint64_t end = span.offset + span.length;
	bool bounced = true;

	for (uint32_t i = first_part(mr, span.offset); i < pier_mr_parts(mr) && bounced;
	     i++) {
		const struct pier_mr_part *part = pier_mr_part_at(mr, i);

		if (part->start >= end)
			break;
		bounced = part->bounce ||
			  clip_span(span, part->start, part->length).length == 0;
	}
	return bounced;
}

bool pier_has_direct(const struct pier_mr *mr)
{
	uint64_t start = 0;

	mr = pier_mr_beneath(mr);
	for (uint32_t i = 0; i < mr->range_count; i++) {
		const struct pier_mr_range *range = &mr->ranges[i].range;
		struct span here = { start, range->length };

		if (range->source == PIER_MR_BUFFER && !all_bounced(mr, here))
			return true;
		start += range->length;
	}
	return false;
}

/*
 * The part of the first byte in a span that NICs reach directly, by a dma-buf of this
 * mapping, or NULL.
 */
static const struct pier_mr_part *find_direct(const struct pier_mr *mr, struct span span,
					      enum pier_mapping mapping,
					      uint64_t *ret_address)
{
	uint64_t end = span.offset + span.length;

	for (uint32_t i = first_part(mr, span.offset); i < pier_mr_parts(mr); i++) {
		const struct pier_mr_part *part = pier_mr_part_at(mr, i);
		struct span here = clip_span(span, part->start, part->length);

		if (part->start >= end)
			break;
		if (part->bounce || here.length == 0 || part->mapping != mapping)
			continue;
		*ret_address = part->iova + (here.offset - part->start);
		return part;
	}
	return NULL;
}

/*
 * Flush the bytes `there` of a buffer.
 *
 * part     of the region, by which the NIC reaches some of them; NULL: it reaches none
 * address  of one of these
 */
static int flush_part(const struct pier_mr *mr, const struct pier_buffer *buffer,
		      struct span there, const struct pier_mr_part *part,
		      uint64_t address)
{
	struct pier_backend_flush range = {
		.size = sizeof(range),
		.address = buffer->address + there.offset,
		.length = there.length,
		.device = mr->pd->device->name,
		.mapping = part ? part->mapping : PIER_MAPPING_AUTO,
	};
	int result;

	pier_clear_error();
	result = buffer->backend->flush(&buffer->memory, &range);
	if (result == PIER_BACKEND_READ_BACK) {
		/* Of bounce buffers the NIC has nothing to read. */
		result = part ? pier_read_back(mr->pd, part->mr->lkey, address) : 0;
		range.read_back = true;
		if (result == 0)
			result = buffer->backend->flush(&buffer->memory, &range);
	}
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "making a NIC's writes visible in memory of %s",
					 buffer->backend->name);
	return 0;
}

/*
 * Flush the bytes `there` of a buffer, which are `here` in the region: once for each
 * mapping of its parts, since writes take different ways, and only one may need a read.
 */
static int flush_buffer(const struct pier_mr *mr, const struct pier_buffer *buffer,
			struct span here, struct span there)
{
	const struct pier_mr_part *part;
	bool found = false;
	int error = 0;

	if (!buffer->backend->flush)
		return 0;
	for (int i = PIER_MAPPING_AUTO; i <= PIER_MAPPING_PCIE && !error; i++) {
		uint64_t address = 0;

		part = find_direct(mr, here, (enum pier_mapping)i, &address);
		found = found || part;
		if (part)
			error = flush_part(mr, buffer, there, part, address);
	}
	return found ? error : flush_part(mr, buffer, there, NULL, 0);
}

/* Flush the buffers that NICs write to directly, or `all`, also those with bounce
 * buffers. */
static int flush_buffers(const struct pier_mr *mr, struct span span, bool all)
{
	uint64_t start = 0;
	int error = 0;

	for (uint32_t i = 0; i < mr->range_count && !error; i++) {
		const struct pier_mr_range *range = &mr->ranges[i].range;
		struct span here = clip_span(span, start, range->length);

		if (range->source == PIER_MR_BUFFER && here.length > 0 &&
		    (all || !all_bounced(mr, here))) {
			struct span there = { range->offset + (here.offset - start),
					      here.length };

			error = flush_buffer(mr, range->buffer, here, there);
		}
		start += range->length;
	}
	return error;
}

int pier_mr_sync_for_nic(struct pier_mr *mr, uint64_t offset, uint64_t length)
{
	PIER_REFUSE_NULL(mr);
	int error = find_memory(&mr, &offset, length);

	return error ? error
		     : sync_bounced(mr, (struct span){ offset, length }, bounce_for_nic);
}

int pier_copy_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length)
{
	int error = find_memory(&mr, &offset, length);

	return error ? error
		     : sync_bounced(mr, (struct span){ offset, length },
				    bounce_for_device);
}

int pier_flush_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length, bool all)
{
	int error = find_memory(&mr, &offset, length);

	return error ? error : flush_buffers(mr, (struct span){ offset, length }, all);
}

bool pier_can_visit(const struct pier_mr *mr)
{
	bool found = false;

	mr = pier_mr_beneath(mr);
	for (uint32_t i = 0; i < mr->range_count && !found; i++)
		found = mr->ranges[i].range.source == PIER_MR_DMABUF;
	return !found;
}

int pier_visit_region(struct pier_mr *mr, uint64_t offset, uint64_t length,
		      const struct pier_visit *visit)
{
	int error = find_memory(&mr, &offset, length);
	uint64_t start = 0;

	for (uint32_t i = 0; i < mr->range_count && !error; i++) {
		const struct pier_mr_range *range = &mr->ranges[i].range;
		struct span here = clip_span((struct span){ offset, length }, start,
					     range->length);
		uint64_t skipped = here.offset - start;

		if (here.length > 0 && range->source == PIER_MR_HOST)
			visit->look(visit->context, (const char *)range->addr + skipped,
				    here.length);
		else if (here.length > 0)
			error = pier_visit_buffer(range->buffer, range->offset + skipped,
						  here.length, visit);
		start += range->length;
	}
	return error;
}

int pier_mr_sync_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length)
{
	PIER_REFUSE_NULL(mr);
	int error = pier_copy_for_device(mr, offset, length);

	return error ? error : pier_flush_for_device(mr, offset, length, false);
}

int pier_mr_read_back(struct pier_mr *mr, uint64_t offset)
{
	PIER_REFUSE_NULL(mr);
	struct pier_mr_part_info part = { 0 };
	int error = pier_check_process(&mr->object);

	if (!error && mr->window)
		error = pier_fail(EACCES,
				  "only the peer can read a memory window: read back "
				  "the region that it is bound to");
	for (uint32_t i = 0; !error && offset - part.offset >= part.length; i++) {
		if (i == pier_mr_parts(mr))
			return pier_fail(ERANGE,
					 "offset %" PRIu64 " is not in the region of %zu",
					 offset, pier_mr_length(mr));
		error = pier_mr_part(mr, i, &part, sizeof(part));
	}
	return error ? error
		     : pier_read_back(mr->pd, part.lkey,
				      part.iova + (offset - part.offset));
}

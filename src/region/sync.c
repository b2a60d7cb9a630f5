/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "buffer/buffer.h"
#include "bounce.h"
#include "core/checked.h"
#include "core/error.h"
#include "device/loop.h"
#include "sync.h"

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
	int error = find_memory(&mr, &offset, length);

	return error ? error
		     : sync_bounced(mr, (struct span){ offset, length },
				    pier_bounce_for_nic);
}

int pier_copy_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length)
{
	int error = find_memory(&mr, &offset, length);

	return error ? error
		     : sync_bounced(mr, (struct span){ offset, length },
				    pier_bounce_for_device);
}

int pier_flush_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length, bool all)
{
	int error = find_memory(&mr, &offset, length);

	return error ? error : flush_buffers(mr, (struct span){ offset, length }, all);
}

int pier_mr_sync_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length)
{
	int error = pier_copy_for_device(mr, offset, length);

	return error ? error : pier_flush_for_device(mr, offset, length, false);
}

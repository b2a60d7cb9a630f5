/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "bounce.h"
#include "buffer/buffer.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"
#include "dereg.h"
#include "parts.h"
#include "path.h"
#include "segment.h"

/* Make room for one more part; the capacity doubles. */
static int grow_parts(struct pier_mr *region)
{
	uint32_t count = region->part_count;
	bool moved = region->parts != &region->first;
	struct pier_mr_part *grown;

	if (count == 0) {
		region->parts = &region->first;
		return 0;
	}
	if (count == PIER_MR_PARTS_MAX)
		return pier_fail(E2BIG,
				 "registering %" PRIu64 " bytes: they need more than the "
				 "%d parts that a region can have",
				 region->length, PIER_MR_PARTS_MAX);
	/* The capacity is a power of two. */
	if (count & (count - 1))
		return 0;
	/* A part that was refused may have been asked for before. */
	grown = realloc(moved ? region->parts : NULL, 2 * count * sizeof(*grown));
	if (!grown)
		return pier_fail(ENOMEM, "registering %" PRIu64 " bytes: out of memory",
				 region->length);
	if (!moved) {
		grown[0] = region->first;
		region->first = (struct pier_mr_part){ 0 };
	}
	region->parts = grown;
	return 0;
}

/* The first `length` bytes of what is left of a range, which is shorter then. */
static int add_part(struct pier_mr *region, struct pier_segment *rest, uint64_t length)
{
	uint64_t left = rest->range.length;
	int error = grow_parts(region);

	if (error)
		return error;
	rest->range.length = length;
	error = pier_register_segment(rest, &region->parts[region->part_count]);
	rest->range.length = left;
	if (error)
		return error;
	region->part_count++;
	pier_advance_range(&rest->range, length);
	rest->range.length -= length;
	rest->iova += length;
	rest->start += length;
	return 0;
}

/*
 * How many of the first `length` bytes lie in one segment of their allocation, by its
 * backend. Backends come from elsewhere: what they return is checked.
 */
static int ask_for_segment(const struct pier_segment *rest, uint64_t length,
			   uint64_t *ret_length)
{
	const struct pier_buffer *buffer = rest->range.buffer;
	uint64_t address = buffer->address + rest->range.offset;
	uint64_t start = 0, span = 0, left = 0;
	int error;

	if (!buffer->backend->segment) {
		struct pier_export_use use = pier_export_use_of(rest->region,
								rest->mapping);

		return pier_export_reach(buffer, rest->range.offset, length, &use,
					 ret_length);
	}
	error = buffer->backend->segment(&buffer->memory, address, &start, &span);
	if (error)
		return error;
	if (address >= start && address - start < span)
		left = span - (address - start);
	if (left == 0)
		return pier_fail(EIO,
				 "backend %s has no segment at 0x%" PRIx64
				 ", although it refused to export several segments",
				 buffer->backend->name, address);
	*ret_length = left < length ? left : length;
	return 0;
}

/* A part for each segment of the allocation. */
static int add_by_segments(struct pier_mr *region, struct pier_segment *rest,
			   uint64_t length)
{
	uint64_t end = rest->start + length;

	while (rest->start < end) {
		uint64_t span = 0;
		int error = ask_for_segment(rest, end - rest->start, &span);

		if (!error)
			error = add_part(region, rest, span);
		if (error)
			return error;
	}
	return 0;
}

/* In one part, if the memory's driver makes one dma-buf of it. */
static int add_whole(struct pier_mr *region, struct pier_segment *rest, uint64_t length)
{
	int error = add_part(region, rest, length);

	if (error != -EXDEV || !pier_segment_splits(rest))
		return error;
	pier_debug("%" PRIu64 " bytes are registered by segments: %s", length,
		   pier_error_message());
	return add_by_segments(region, rest, length);
}

/*
 * Of a sub-region: the NIC's writes are copied from the bounce buffers of the base, so
 * no part may be in two of these.
 */
static int add_by_bounces(struct pier_mr *region, struct pier_segment *rest,
			  uint64_t length)
{
	uint64_t end = rest->start + length;
	int error = 0;

	while (rest->start < end && !error)
		error = add_whole(region, rest,
				  pier_bounce_reach(rest, end - rest->start));
	return error;
}

static int add_segment(struct pier_mr *region, struct pier_segment *rest, uint64_t length)
{
	return region->base ? add_by_bounces(region, rest, length)
			    : add_whole(region, rest, length);
}

/* Shorten a length so that the segment ends with a page, which no other has then. */
static uint64_t end_with_page(const struct pier_segment *segment, uint64_t length)
{
	uint64_t page = pier_host_page(), beyond = (segment->iova + length) & (page - 1);

	return beyond < length ? length - beyond : length;
}

/*
 * Segments as long as the device takes them. After E2BIG as long as it says that it does;
 * after ENOMEM, which drivers return for a translation table that does not fit in one
 * piece, half as long.
 */
static int add_in_pieces(struct pier_mr *region, struct pier_segment *rest)
{
	uint64_t end = rest->start + rest->range.length, page = pier_host_page();
	uint64_t reported = region->pd->device->limits.max_mr_size;
	uint64_t longest = UINT64_MAX;

	while (rest->start < end) {
		uint64_t left = end - rest->start;
		uint64_t length = left <= longest ? left : end_with_page(rest, longest);
		int error = add_segment(region, rest, length);

		/* Some of it may be registered. */
		length -= left - (end - rest->start);
		if (error == -E2BIG && length > reported && reported > 0) {
			longest = reported;
			continue;
		}
		if (error == -ENOMEM && length / 2 >= page) {
			pier_debug("%" PRIu64 " bytes are tried in pieces: %s", length,
				   pier_error_message());
			longest = length / 2;
			continue;
		}
		if (error)
			return error;
	}
	return 0;
}

static int add_range(struct pier_mr *region, struct pier_segment *rest)
{
	if (region->split == PIER_SPLIT_PIECES)
		return add_in_pieces(region, rest);
	return add_segment(region, rest, rest->range.length);
}

static enum pier_path common_path(const struct pier_mr *region)
{
	for (uint32_t i = 1; i < region->part_count; i++)
		if (region->parts[i].path != region->parts[0].path)
			return PIER_PATH_MIXED;
	return region->parts[0].path;
}

/* A single part with the region's own addresses needs no table. */
static void use_parts(struct pier_mr *region)
{
	region->mr = region->parts[0].mr;
	region->path = common_path(region);
	if (region->part_count == 1 && region->parts[0].iova == region->iova) {
		region->parts = NULL;
		region->part_count = 0;
	}
}

void pier_set_part(struct pier_mr *region, const struct pier_mr_part *part)
{
	region->first = *part;
	region->parts = &region->first;
	region->part_count = 1;
	use_parts(region);
}

int pier_register_parts(struct pier_mr *region)
{
	int error = 0;

	for (uint32_t i = 0; i < region->range_count && !error; i++) {
		struct pier_segment rest = pier_segment_of(region, &region->ranges[i]);

		error = add_range(region, &rest);
	}
	if (error) {
		/* This keeps the sentence of the failure. */
		if (region->parts)
			pier_dereg_parts(region);
		return error;
	}
	use_parts(region);
	return 0;
}

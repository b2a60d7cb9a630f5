/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "buffer/buffer.h"
#include "core/page.h"
#include "parts.h"
#include "piece.h"
#include "stage.h"
#include "core/error.h"
#include "core/log.h"

/* Room for one more, in steps that make few of them. */
static int grow(struct pier_mr *region)
{
	uint32_t count = region->part_count;
	bool moved = region->parts != &region->first;
	struct pier_mr_part *grown;

	if (count == PIER_MR_PARTS_MAX)
		return pier_fail(E2BIG,
				 "registering %" PRIu64 " bytes: they need more than the "
				 "%d parts that a region can have",
				 region->length, PIER_MR_PARTS_MAX);
	if (count == 0) {
		region->parts = &region->first;
		return 0;
	}
	/* A power of two is full. */
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

/* What is left of a range to be registered, and where in the region that begins. */
struct rest {
	struct pier_piece piece;
	uint64_t start;
};

static struct pier_piece front_of(const struct rest *rest, uint64_t length)
{
	struct pier_piece piece = rest->piece;

	piece.range.length = length;
	return piece;
}

/* The first bytes of the rest, which is shorter then. */
static int add_part(struct pier_mr *region, struct rest *rest, uint64_t length)
{
	struct pier_piece piece = front_of(rest, length);
	int error = grow(region);

	if (!error)
		error = pier_register_piece(&piece, &region->parts[region->part_count]);
	if (error)
		return error;
	region->parts[region->part_count++].start = rest->start;
	pier_advance_range(&rest->piece.range, length);
	rest->piece.range.length -= length;
	rest->piece.iova += length;
	rest->start += length;
	return 0;
}

/* How much of a piece, from its beginning, lies in one segment of its allocation. */
static int ask_segment(const struct pier_piece *piece, uint64_t *ret_length)
{
	const struct pier_buffer *buffer = piece->range.buffer;
	uint64_t address = buffer->address + piece->range.offset;
	uint64_t start = 0, length = 0, left = 0;
	int error = buffer->backend->segment(&buffer->memory, address, &start, &length);

	if (error)
		return error;
	/* Backends come from elsewhere: what they give is looked at. */
	if (address >= start && address - start < length)
		left = length - (address - start);
	if (left == 0)
		return pier_fail(EIO,
				 "backend %s has no segment at 0x%" PRIx64
				 ", where an export was refused for there being several",
				 buffer->backend->name, address);
	*ret_length = left < piece->range.length ? left : piece->range.length;
	return 0;
}

/* A part for each segment. */
static int add_segments(struct pier_mr *region, struct rest *rest, uint64_t length)
{
	uint64_t end = rest->start + length;

	while (rest->start < end) {
		struct pier_piece piece = front_of(rest, end - rest->start);
		uint64_t span = 0;
		int error = ask_segment(&piece, &span);

		if (!error)
			error = add_part(region, rest, span);
		if (error)
			return error;
	}
	return 0;
}

/* In one part, if the memory's driver makes one dma-buf of it. */
static int add_whole(struct pier_mr *region, struct rest *rest, uint64_t length)
{
	int error = add_part(region, rest, length);

	if (error != -EXDEV || !rest->piece.has_segments)
		return error;
	pier_debug("%" PRIu64 " bytes are registered by segments: %s", length,
		   pier_error_message());
	return add_segments(region, rest, length);
}

/* What a NIC writes is copied from where it did: by the stages of the region beneath. */
static int add_piece(struct pier_mr *region, struct rest *rest, uint64_t length)
{
	uint64_t end = rest->start + length;
	int error = 0;

	while (rest->start < end && !error) {
		struct pier_piece piece = front_of(rest, end - rest->start);

		error = add_whole(region, rest, pier_stage_reach(&piece));
	}
	return error;
}

/* So long that the piece ends with a page, which then belongs to one piece only. */
static uint64_t fit(const struct pier_piece *piece, uint64_t length)
{
	uint64_t page = pier_host_page(), beyond = (piece->iova + length) & (page - 1);

	return beyond < length ? length - beyond : length;
}

/*
 * Pieces as long as the device takes them; after ENOMEM, which drivers say for a
 * translation table that they cannot have in one piece, half as long.
 */
static int add_pieces(struct pier_mr *region, struct rest *rest)
{
	uint64_t end = rest->start + rest->piece.range.length, page = pier_host_page();
	uint64_t longest = region->pd->device->limits.max_mr_size;

	while (rest->start < end) {
		uint64_t left = end - rest->start;
		uint64_t length = left <= longest ? left : fit(&rest->piece, longest);
		int error = add_piece(region, rest, length);

		/* Some of it may be there. */
		length -= left - (end - rest->start);
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

/* It was checked as a whole; how a buffer will be reached was not known then. */
static int add_range(struct pier_mr *region, struct rest *rest)
{
	rest->piece.checked = rest->piece.range.source != PIER_MR_BUFFER;
	return add_piece(region, rest, rest->piece.range.length);
}

static enum pier_path path_of(const struct pier_mr *region)
{
	for (uint32_t i = 1; i < region->part_count; i++)
		if (region->parts[i].path != region->parts[0].path)
			return PIER_PATH_MIXED;
	return region->parts[0].path;
}

/* One part with the region's own addresses needs no table. */
static void take_parts(struct pier_mr *region)
{
	region->mr = region->parts[0].mr;
	region->path = path_of(region);
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
	take_parts(region);
}

int pier_register_parts(struct pier_mr *region)
{
	uint64_t start = 0;
	int error = 0;

	for (uint32_t i = 0; i < region->memory_count && !error; i++) {
		struct rest rest = { pier_piece_of(region, i, start), start };

		start += rest.piece.range.length;
		error = region->split == PIER_SPLIT_PIECES ? add_pieces(region, &rest)
							   : add_range(region, &rest);
	}
	if (error) {
		/* The sentence of the failure stays: this leaves none. */
		if (region->parts)
			pier_dereg_parts(region);
		return error;
	}
	take_parts(region);
	return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/wire.h"
#include "remaining.h"

static int reserve_ranges(struct pier_remaining *remaining, uint32_t room)
{
	struct pier_range *ranges = reallocarray(remaining->ranges, room,
						 sizeof(*ranges));

	if (!ranges)
		return pier_fail(ENOMEM, "no memory for %u ranges of a transfer", room);
	remaining->ranges = ranges;
	remaining->room = room;
	return 0;
}

int pier_remaining_init(struct pier_remaining *remaining, uint64_t length, uint32_t room)
{
	int error;

	*remaining = (struct pier_remaining){ 0 };
	error = reserve_ranges(remaining, room ? room : 1);
	if (error || length == 0)
		return error;
	remaining->ranges[0] = (struct pier_range){ 0, length };
	remaining->count = 1;
	return 0;
}

void pier_remaining_free(struct pier_remaining *remaining)
{
	free(remaining->ranges);
	*remaining = (struct pier_remaining){ 0 };
}

int pier_remaining_grow(struct pier_remaining *remaining, uint32_t more)
{
	if (remaining->room - remaining->count >= more)
		return 0;
	return reserve_ranges(remaining, remaining->count + more);
}

static void remove_range(struct pier_remaining *remaining, uint32_t index)
{
	remaining->count--;
	memmove(&remaining->ranges[index], &remaining->ranges[index + 1],
		(remaining->count - index) * sizeof(remaining->ranges[0]));
}

void pier_remaining_take(struct pier_remaining *remaining, uint64_t length)
{
	struct pier_range *first = &remaining->ranges[0];

	assert(remaining->count > 0 && length <= first->length);
	first->offset += length;
	first->length -= length;
	if (first->length == 0)
		remove_range(remaining, 0);
}

static void insert_range(struct pier_remaining *remaining, uint32_t index,
			 struct pier_range range)
{
	assert(remaining->count < remaining->room);
	memmove(&remaining->ranges[index + 1], &remaining->ranges[index],
		(remaining->count - index) * sizeof(remaining->ranges[0]));
	remaining->ranges[index] = range;
	remaining->count++;
}

static uint64_t end_of(const struct pier_range *range)
{
	return range->offset + range->length;
}

void pier_remaining_give_back(struct pier_remaining *remaining, struct pier_range range)
{
	struct pier_range *ranges = remaining->ranges;
	uint32_t index = 0;
	bool joins_next, joins_last;

	while (index < remaining->count && ranges[index].offset < range.offset)
		index++;
	joins_last = index > 0 && end_of(&ranges[index - 1]) == range.offset;
	joins_next = index < remaining->count && end_of(&range) == ranges[index].offset;
	if (joins_last) {
		ranges[index - 1].length += range.length;
		if (joins_next) {
			ranges[index - 1].length += ranges[index].length;
			remove_range(remaining, index);
		}
	} else if (joins_next) {
		ranges[index].offset = range.offset;
		ranges[index].length += range.length;
	} else {
		insert_range(remaining, index, range);
	}
}

uint64_t pier_remaining_length(const struct pier_remaining *remaining)
{
	uint64_t length = 0;

	for (uint32_t i = 0; i < remaining->count; i++)
		length += remaining->ranges[i].length;
	return length;
}

/*
 * The wire form, little-endian:
 *
 *	0  4  magic "PrTS"
 *	4  2  version, 1
 *	6  2  reserved, 0
 *	8  4  how many ranges are missing
 *	12 4  reserved, 0
 *	16 8  length of the transfer
 *	24    of each missing range, from the lowest on:
 *	0  8  offset
 *	8  8  length, more than 0
 */
static const uint8_t magic[4] = { 'P', 'r', 'T', 'S' };

enum {
	VERSION = 1,
	HEADER = 24,
	RANGE = 16,
	MAX_RANGES = (INT_MAX - HEADER) / RANGE,
};

int pier_remaining_pack(const struct pier_remaining *remaining, uint64_t length,
			void *ret_wire, size_t size)
{
	uint8_t *wire = ret_wire;
	size_t needed = HEADER + (size_t)remaining->count * RANGE;

	if (!wire)
		return (int)needed;
	if (size < needed)
		return pier_fail(ENOSPC,
				 "state of a transfer: %u missing ranges need %zu bytes, "
				 "not %zu",
				 remaining->count, needed, size);
	memcpy(wire, magic, sizeof(magic));
	pier_put_le16(wire + 4, VERSION);
	pier_put_le16(wire + 6, 0);
	pier_put_le32(wire + 8, remaining->count);
	pier_put_le32(wire + 12, 0);
	pier_put_le64(wire + 16, length);
	for (uint32_t i = 0; i < remaining->count; i++) {
		pier_put_le64(wire + HEADER + i * RANGE, remaining->ranges[i].offset);
		pier_put_le64(wire + HEADER + i * RANGE + 8, remaining->ranges[i].length);
	}
	return (int)needed;
}

static int check_header(const uint8_t *wire, size_t size, uint64_t length)
{
	if (size < HEADER)
		return pier_fail(EMSGSIZE,
				 "state of a transfer of %zu bytes: it has %d or more",
				 size, HEADER);
	if (memcmp(wire, magic, sizeof(magic)) != 0)
		return pier_fail(EBADMSG, "these bytes are not the state of a transfer");
	if (pier_get_le16(wire + 4) != VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "state of a transfer of version %u: %d is known",
				 pier_get_le16(wire + 4), VERSION);
	if (pier_get_le16(wire + 6) != 0 || pier_get_le32(wire + 12) != 0)
		return pier_fail(EBADMSG,
				 "state of a transfer: reserved bytes are not 0");
	if (pier_get_le64(wire + 16) != length)
		return pier_fail(EBADMSG,
				 "state of a transfer of %" PRIu64 " bytes, and this one "
				 "has %" PRIu64,
				 pier_get_le64(wire + 16), length);
	if (pier_get_le32(wire + 8) > MAX_RANGES ||
	    size != HEADER + (size_t)pier_get_le32(wire + 8) * RANGE)
		return pier_fail(EMSGSIZE,
				 "state of a transfer: %u missing ranges do not make "
				 "%zu bytes",
				 pier_get_le32(wire + 8), size);
	return 0;
}

/* In order, apart from each other, and in the transfer. */
static int get_ranges(struct pier_remaining *remaining, uint64_t length,
		      const uint8_t *wire, uint32_t count)
{
	uint64_t end = 0; /* of the range before */

	for (uint32_t i = 0; i < count; i++, wire += RANGE) {
		struct pier_range range = { pier_get_le64(wire),
					    pier_get_le64(wire + 8) };

		if (range.length == 0 || (i > 0 && range.offset <= end) ||
		    !pier_range_fits(range.offset, range.length, length))
			return pier_fail(EBADMSG,
					 "state of a transfer of %" PRIu64 " bytes: "
					 "missing range %u, [%" PRIu64 ", +%" PRIu64
					 "), cannot be",
					 length, i, range.offset, range.length);
		end = range.offset + range.length;
		remaining->ranges[remaining->count++] = range;
	}
	return 0;
}

int pier_remaining_unpack(struct pier_remaining *remaining, uint64_t length,
			  uint32_t room, const void *wire, size_t size)
{
	uint32_t count;
	int error = check_header(wire, size, length);

	if (error)
		return error;
	count = pier_get_le32((const uint8_t *)wire + 8);
	error = pier_remaining_init(remaining, 0, count + room);
	if (!error)
		error = get_ranges(remaining, length, (const uint8_t *)wire + HEADER,
				   count);
	if (error)
		pier_remaining_free(remaining);
	return error;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "remaining.h"
#include "core/error.h"

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

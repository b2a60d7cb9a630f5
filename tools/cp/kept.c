/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "kept.h"

enum {
	/* Small: a segment that is incomplete is copied again. */
	SEGMENT_MIN = 64 << 10,
	SEGMENT_MAX = 64 << 20,
	/* Tags of all segments take at most 24 MiB on the control connection. */
	SEGMENTS_MAX = 1 << 20,
};

/* Of a sequence above 64 TiB, only the beginning can be kept. */
int open_kept(struct kept *kept, uint64_t size)
{
	kept->size = size;
	kept->segment = SEGMENT_MIN;
	while (kept->segment < SEGMENT_MAX && size > kept->segment * SEGMENTS_MAX)
		kept->segment *= 2;
	kept->count = size / kept->segment + (size % kept->segment != 0);
	if (kept->count > SEGMENTS_MAX)
		kept->count = SEGMENTS_MAX;
	kept->bits = calloc(1, kept->count / 8 + 1);
	return kept->bits ? 0 : -1;
}

void close_kept(struct kept *kept)
{
	free(kept->bits);
	kept->bits = NULL;
	kept->count = 0;
}

uint64_t segment_length(const struct kept *kept, uint64_t number)
{
	uint64_t left = kept->size - number * kept->segment;

	return left < kept->segment ? left : kept->segment;
}

bool is_kept(const struct kept *kept, uint64_t number)
{
	return number < kept->count && (kept->bits[number / 8] >> number % 8 & 1);
}

void keep_segment(struct kept *kept, uint64_t number)
{
	kept->bits[number / 8] |= (uint8_t)(1 << number % 8);
	kept->bytes += segment_length(kept, number);
}

uint64_t skip_kept(const struct kept *kept, uint64_t offset)
{
	while (kept->count && offset < kept->size &&
	       is_kept(kept, offset / kept->segment))
		offset = offset / kept->segment * kept->segment +
			 segment_length(kept, offset / kept->segment);
	return offset;
}

uint64_t length_before_kept(const struct kept *kept, uint64_t offset, uint64_t length)
{
	uint64_t end = offset + length, at = offset;

	if (!kept->count)
		return length;
	while (at < end && at / kept->segment < kept->count &&
	       !is_kept(kept, at / kept->segment))
		at = (at / kept->segment + 1) * kept->segment;
	return at < end && is_kept(kept, at / kept->segment) ? at - offset : length;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "identity.h"

/*
 * The end of the segment around `address`; 0: the backend knows none. Without segment()
 * there is only one.
 */
static uint64_t find_end(const struct pier_backend *backend,
			 const struct pier_memory *memory, uint64_t address, uint64_t end)
{
	uint64_t start = 0, length = 0;

	if (!backend->segment)
		return end;
	if (backend->segment(memory, address, &start, &length) != 0 || address < start ||
	    address - start >= length)
		return 0;
	return end - start <= length ? end : start + length;
}

/* The capacity is a power of two. */
static bool add_segment(struct pier_cache_entry *entry, uint64_t start, uint64_t identity)
{
	uint32_t count = entry->segment_count;
	struct pier_cache_segment *grown = entry->segments;

	if ((count & (count - 1)) == 0) {
		grown = realloc(grown, (count ? 2 * count : 1) * sizeof(*grown));
		if (!grown)
			return false;
		entry->segments = grown;
	}
	grown[count] = (struct pier_cache_segment){ start, identity };
	entry->segment_count++;
	return true;
}

bool pier_cache_identify(struct pier_cache_entry *entry,
			 const struct pier_backend *backend,
			 const struct pier_memory *memory)
{
	uint64_t at = entry->node.start;

	while (at < entry->node.end) {
		uint64_t identity, end = find_end(backend, memory, at, entry->node.end);

		if (end == 0 || entry->segment_count == PIER_CACHE_SEGMENTS ||
		    backend->identity(at, &identity) != 0 ||
		    !add_segment(entry, at, identity)) {
			pier_cache_forget_identity(entry);
			return false;
		}
		at = end;
	}
	return true;
}

void pier_cache_forget_identity(struct pier_cache_entry *entry)
{
	free(entry->segments);
	entry->segments = NULL;
	entry->segment_count = 0;
}

bool pier_cache_is_current(const struct pier_cache_entry *entry)
{
	for (uint32_t i = 0; i < entry->segment_count; i++) {
		const struct pier_cache_segment *segment = &entry->segments[i];
		uint64_t identity;

		if (entry->set->backend->identity(segment->start, &identity) != 0 ||
		    identity != segment->identity)
			return false;
	}
	return true;
}

/* Both are sorted, and the kept entry's first segment starts no later. */
bool pier_cache_has_memory_of(const struct pier_cache_entry *kept,
			      const struct pier_cache_entry *entry)
{
	const struct pier_cache_segment *has = kept->segments;
	uint32_t left = kept->segment_count;

	if (left == 0 || entry->segment_count == 0)
		return left == entry->segment_count;
	for (uint32_t i = 0; i < entry->segment_count; i++) {
		const struct pier_cache_segment *wanted = &entry->segments[i];

		for (; left > 1 && has[1].start <= wanted->start; left--)
			has++;
		if (has->identity != wanted->identity)
			return false;
	}
	return true;
}

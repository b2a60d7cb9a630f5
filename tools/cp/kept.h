/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_KEPT_H
#define PIER_TOOLS_CP_KEPT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The parts of the sequence that the receiver has from an interrupted copy. Both sides
 * agree on them before the transfer (segments.h), and no chunk has any of their bytes.
 * The sequence consists of segments of the same length, which depends on its size alone;
 * only the last one may be shorter. Zeroes: nothing is kept.
 */
struct kept {
	uint64_t size;	  /* of the sequence */
	uint64_t segment; /* bytes */
	uint64_t count;	  /* of segments that can be kept */
	uint8_t *bits;	  /* one for each of them */
	uint64_t bytes;	  /* that are kept */
};

/* Returns 0, or -1 if there is no memory. */
int open_kept(struct kept *kept, uint64_t size);
/* kept->bytes stays. */
void close_kept(struct kept *kept);

uint64_t segment_length(const struct kept *kept, uint64_t number);
void keep_segment(struct kept *kept, uint64_t number);
bool is_kept(const struct kept *kept, uint64_t number);

/* The first byte at or after `offset` that is not kept, or the size. */
uint64_t skip_kept(const struct kept *kept, uint64_t offset);
/* How many of the `length` bytes from `offset` on come before the next that is kept. */
uint64_t length_before_kept(const struct kept *kept, uint64_t offset, uint64_t length);

#endif

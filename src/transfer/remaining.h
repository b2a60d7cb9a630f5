/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_REMAINING_H
#define PIER_TRANSFER_REMAINING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which bytes of a transfer are still to be handed out: ranges in the order of their
 * offsets, which neither touch nor overlap. They are handed out from the lowest on and
 * come back when their request failed. Beneath all that was never handed out lies
 * nothing but what came back; so they are as many as the chunks in flight, and not as
 * many as the transfer has.
 */

struct pier_range {
	uint64_t offset, length;
};

struct pier_remaining {
	struct pier_range *ranges;
	uint32_t count, room;
};

/* Of [0, length): one range, or none. Room for `room` ranges. Errors: -ENOMEM. */
int pier_remaining_init(struct pier_remaining *remaining, uint64_t length, uint32_t room);

void pier_remaining_free(struct pier_remaining *remaining);

/* Room for so many ranges more. Errors: -ENOMEM. */
int pier_remaining_grow(struct pier_remaining *remaining, uint32_t more);

static inline bool pier_remaining_empty(const struct pier_remaining *remaining)
{
	return remaining->count == 0;
}

/* The lowest range. There is one. */
static inline struct pier_range pier_remaining_first(
	const struct pier_remaining *remaining)
{
	return remaining->ranges[0];
}

/* Hand out so many bytes of the lowest range, which has them. */
void pier_remaining_take(struct pier_remaining *remaining, uint64_t length);

/* A range that was handed out comes back. There must be room for one more. */
void pier_remaining_give_back(struct pier_remaining *remaining, struct pier_range range);

/* All bytes. */
uint64_t pier_remaining_length(const struct pier_remaining *remaining);

/*
 * The wire form: docs/wire.md.
 *
 * Returns its size. Errors: -ENOSPC. Without ret_wire: the size.
 */
int pier_remaining_pack(const struct pier_remaining *remaining, uint64_t length,
			void *ret_wire, size_t size);

/*
 * Read one of a transfer of `length` bytes, with room for `room` ranges more.
 *
 * Errors: -EMSGSIZE, -EBADMSG, -EPROTONOSUPPORT, -ENOMEM.
 */
int pier_remaining_unpack(struct pier_remaining *remaining, uint64_t length,
			  uint32_t room, const void *wire, size_t size);

#endif

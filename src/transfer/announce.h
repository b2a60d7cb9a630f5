/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_ANNOUNCE_H
#define PIER_TRANSFER_ANNOUNCE_H

#include <stdbool.h>
#include <stdint.h>

#include <pier/transfer.h>

#include "remaining.h"

/*
 * An announced chunk (PIER_TRANSFER_ANNOUNCE) of n blocks is a plain write of all but its
 * last n bytes, and a write of those n bytes with immediate data: the chunk's offset in
 * the transfer, in blocks. The completion's length is therefore the number of blocks.
 * See docs/wire.md, and docs/design/transfer.md for the reason.
 */

enum {
	PIER_ANNOUNCE_BLOCK = 4096,
};

/* Longer transfers have offsets that do not fit. */
#define PIER_ANNOUNCE_MAX ((UINT64_C(1) << 32) * PIER_ANNOUNCE_BLOCK)

static inline uint32_t pier_announce_chunk(uint64_t offset)
{
	return (uint32_t)(offset / PIER_ANNOUNCE_BLOCK);
}

/* How many bytes the write with immediate data has. */
static inline uint32_t pier_announced_tail(uint32_t length)
{
	return length / PIER_ANNOUNCE_BLOCK + (length % PIER_ANNOUNCE_BLOCK != 0);
}

static inline uint64_t pier_announced_offset(uint32_t immediate)
{
	return (uint64_t)immediate * PIER_ANNOUNCE_BLOCK;
}

static inline bool pier_is_announcement(const struct pier_result *result)
{
	return result->opcode == PIER_OP_RECV_WRITE_IMM && result->has_immediate;
}

/*
 * The chunk that a peer announced, whose numbers are not trusted. Errors: -EBADMSG no
 * transfer of this length has it.
 */
int pier_read_announcement(const struct pier_result *result, uint64_t length,
			   struct pier_range *ret_chunk);

/* Check that a transfer's chunks can be announced. Errors: -EINVAL. */
int pier_check_announcing(const struct pier_transfer_attr *attr);
/* Missing ranges must begin and end on blocks. */
int pier_check_announced_ranges(const struct pier_remaining *remaining, uint64_t length);

#endif

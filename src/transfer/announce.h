/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_ANNOUNCE_H
#define PIER_TRANSFER_ANNOUNCE_H

#include <stdint.h>

#include <pier/transfer.h>

#include "rail.h"

/*
 * The immediate data by which a chunk announces itself (PIER_TRANSFER_ANNOUNCE): its
 * offset in the transfer, in blocks. How long it is the completion tells. docs/wire.md.
 */

enum {
	PIER_ANNOUNCE_BLOCK = 4096,
};

/* Beyond that there is no number. */
#define PIER_ANNOUNCE_MAX ((UINT64_C(1) << 32) * PIER_ANNOUNCE_BLOCK)

static inline uint32_t pier_announce_chunk(uint64_t offset)
{
	return (uint32_t)(offset / PIER_ANNOUNCE_BLOCK);
}

static inline uint64_t pier_announced_offset(uint32_t immediate)
{
	return (uint64_t)immediate * PIER_ANNOUNCE_BLOCK;
}

/* What can be announced. Errors: -EINVAL. */
int pier_check_announcing(const struct pier_transfer_attr *attr);
/* Chunks begin on blocks as long as what is missing does. */
int pier_check_announced_ranges(const struct pier_remaining *remaining, uint64_t length);
/* Likewise as long as what ends chunks does; the rail's chunks are cut to blocks. */
int pier_check_announced_rail(struct pier_rail_state *rail);

#endif

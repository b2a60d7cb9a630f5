/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_STAGE_H
#define PIER_REGION_STAGE_H

#include <stdatomic.h>

#include "piece.h"

struct pier_buffer;

/*
 * Host memory that a NIC uses in place of memory which it cannot reach. It is as long as
 * what it stands for, so that requests need not know of it; what is in flight between
 * the two is the business of pier_mr_sync_for_nic() and pier_mr_sync_for_device().
 */
struct pier_stage {
	atomic_uint users;	    /* parts: those of sub-regions share it */
	struct pier_buffer *buffer; /* borrowed: its region keeps it */
	uint64_t offset;	    /* in the buffer, of the first byte */
	uint64_t length;
	struct pier_buffer *shadow;
	uint64_t skew; /* of the first byte in the shadow: as in its page */
	char *cpu;     /* where the first byte is */
	bool locked;   /* its pages, by the backend of the buffer */
};

/* Register a piece of a buffer by a stage of its own, or by that of its base. */
int pier_register_stage(const struct pier_piece *piece, struct pier_mr_part *ret_part);

/* Whether the base of a sub-region has the piece's bytes in one of its stages. */
bool pier_base_is_staged(const struct pier_piece *piece);

/*
 * How much of a piece, from its beginning, lies in one stage of its base, or in none:
 * its bytes are the NIC's in the base's stages or not at all.
 */
uint64_t pier_stage_reach(const struct pier_piece *piece);

/* One user less; NULL is fine. */
void pier_put_stage(struct pier_stage *stage);

/* Copy [offset, offset + length) of the staged memory to the shadow, or from there. */
int pier_stage_for_nic(const struct pier_stage *stage, uint64_t offset, uint64_t length);
int pier_stage_for_device(const struct pier_stage *stage, uint64_t offset,
			  uint64_t length);

/* The region whose memory it is: a window has that of the one beneath. */
const struct pier_mr *pier_mr_beneath(const struct pier_mr *mr);

/* Whether a part of a region is staged, so that bytes of it may have to be copied. */
bool pier_has_stage(const struct pier_mr *mr);
/* Whether NICs write directly to the memory of a buffer, which may need a flush then. */
bool pier_has_direct(const struct pier_mr *mr);

/*
 * The halves of pier_mr_sync_for_device(): copy what is staged; and flush the memory of
 * devices that is not, or, `all`, whether it is or not.
 */
int pier_copy_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length);
int pier_flush_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length, bool all);

#endif

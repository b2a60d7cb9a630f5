/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RECEIVER_H
#define PIER_TRANSFER_RECEIVER_H

#include <pier/receiver.h>

#include "drive.h"
#include "stream/recv_stream.h"

struct pier_receiver {
	struct pier_drive drive;
	struct pier_receiver_attr attr; /* as given; rails are not kept */
	uint64_t *blocks;		/* a bit for each block that has arrived */
	int64_t stall_ns, active_at;
	struct pier_recv_stream stream;
	bool lost; /* bytes arrived that could not be copied */
};

static inline struct pier_rail_base *pier_receiver_rail(
	const struct pier_receiver *receiver, uint32_t index)
{
	return &((struct pier_rail_base *)receiver->drive.rails)[index];
}

/* Whether a block of the memory has arrived. */
static inline bool pier_receiver_has_block(const struct pier_receiver *receiver,
					   uint64_t block)
{
	return receiver->blocks[block / 64] >> (block % 64) & 1;
}

#endif

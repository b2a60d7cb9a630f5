/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_STORE_H
#define PIER_TOOLS_CP_STORE_H

#include "chunk.h"
#include "destination.h"
#include "transfer.h"

/*
 * Copy the chunk out of its slot, check its tag, and write it to the file, or to the
 * file's queue. A failure is the slot's. Runs on a worker.
 *
 * piece  private memory of PIECE_SIZE bytes
 */
void store_chunk(struct transfer *transfer, struct slot *slot,
		 struct destination *destination, void *piece);

#endif

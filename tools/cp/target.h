/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TARGET_H
#define PIER_TOOLS_CP_TARGET_H

#include "destination.h"
#include "transfer.h"
#include "tree.h"

/*
 * The file or the tree that a receiver writes. Set the descriptors of both to -1 first.
 */
struct target {
	struct transfer *transfer;
	struct destination file;
	struct tree tree; /* instead, if transfer->tree is set */
	bool sparse;
	uint64_t size;
};

/* Functions that return int return 0, or -1 with the failure set. */

/*
 * Receive the list of a tree, check what was sent, and open the destination. With
 * settings->dry_run only print what would be copied, at the client.
 */
int open_target(struct target *target, struct transfer *transfer,
		const struct source_message *source);
/*
 * With settings->partial: the first byte at or after `offset` that may be data of an
 * earlier copy, or the size.
 */
uint64_t find_target_data(const struct target *target, uint64_t offset);
/* Read what an earlier copy wrote. Returns whether all of it is there. */
bool read_target(const struct target *target, uint64_t offset, void *ret_data,
		 size_t length);
/* As for one file: see destination.h. */
int commit_target(struct target *target, struct failure *failure);
bool abandon_target(struct target *target);
void close_target(struct target *target);

#endif

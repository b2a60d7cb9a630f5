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
};

/* Functions that return int return 0, or -1 with the failure set. */

/*
 * Receive the list of a tree, check what was sent, and open the destination. With
 * settings->dry_run only print what would be copied, at the client.
 */
int open_target(struct target *target, struct transfer *transfer,
		const struct source_message *source);
/* As for one file: see destination.h. */
int commit_target(struct target *target, struct failure *failure);
bool abandon_target(struct target *target);
void close_target(struct target *target);

#endif

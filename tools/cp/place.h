/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_PLACE_H
#define PIER_TOOLS_CP_PLACE_H

#include "message.h"
#include "tree.h"

/* The place of a tree: found before it is written, and filled in the end. */

/* Functions that return int return 0, or -1 with the failure set. */

/*
 * Find or create the destination, and make the directories of the stage. tree->list has
 * been received.
 *
 * root  as in path.h
 */
int open_tree(struct tree *tree, int root, const char *path,
	      const struct source_message *source, const struct cp_settings *settings,
	      struct failure *failure);
/*
 * Complete the stage, sync it, and move everything from it to its place: directories that
 * do not exist yet as a whole, others file by file. Reports each file that cannot be
 * moved. Nothing that this copy has placed is replaced, not even under another name.
 */
int commit_tree(struct tree *tree, struct failure *failure);
/* What was not committed disappears, unless it is partial. */
void close_tree(struct tree *tree);

#endif

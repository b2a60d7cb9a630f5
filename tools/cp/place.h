/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_PLACE_H
#define PIER_TOOLS_CP_PLACE_H

#include "tree.h"

/* Call leave_out_entry() of tree.h, and report it. */
void report_left_out_entry(struct tree *tree, struct list_entry *entry,
			   const char *reason);
/* The same, if the file system takes its name for that of another file of the copy. */
void leave_out_twin(struct tree *tree, struct list_entry *entry);
/*
 * Open the file of an entry in the stage for writing, and make it unless it is there. Any
 * thread. Returns -1 with errno; EEXIST: leave_out_twin() was called.
 *
 * alone  nothing else opens it at the same time
 */
int open_staged(struct tree *tree, struct list_entry *entry, bool alone);
/* fsync(2), if tree->sync_each: 0, or -1 with errno. */
int sync_entry(const struct tree *tree, int fd);
/*
 * Set the mode and, with preserve, the time of a complete file, and sync it: 0, or -1
 * with errno.
 */
int set_entry_attributes(const struct tree *tree, const struct list_entry *entry, int fd);

/* Make what has no bytes, remove what was left out. Returns 0, or -1 with the failure. */
int finish_stage(struct tree *tree, struct failure *failure);

/*
 * Move everything from the stage to its place: directories that do not exist yet as a
 * whole, others file by file. Reports each file that cannot be moved. Nothing that this
 * copy has placed is replaced, not even under another name.
 */
void place_tree(struct tree *tree);

#endif

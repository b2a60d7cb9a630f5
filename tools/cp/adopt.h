/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_ADOPT_H
#define PIER_TOOLS_CP_ADOPT_H

#include "tree.h"

/*
 * Prepare the stage of an earlier copy (partial.h) for this one: afterwards it has only
 * files and directories of the list, none longer than there, and all can be written.
 *
 * ret_bytes  that its files have on the disk
 *
 * Returns 0, or -1 with the failure set.
 */
int adopt_stage(struct tree *tree, uint64_t *ret_bytes, struct failure *failure);

/* Remove the stage if it has no file, only directories of the list. */
void remove_empty_stage(const struct tree *tree);

/* As find_partial_data() and read_partial(), of bytes of the sequence. */
uint64_t find_staged_data(const struct tree *tree, uint64_t offset);
bool read_staged(const struct tree *tree, uint64_t offset, void *ret_data, size_t length);

#endif

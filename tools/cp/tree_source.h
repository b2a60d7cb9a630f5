/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TREE_SOURCE_H
#define PIER_TOOLS_CP_TREE_SOURCE_H

#include "digest.h"
#include "walk.h"

/* The files of a list, read as one sequence. */
struct tree_source {
	struct walk walk;
	struct file_list list;
	uint64_t data_end; /* the end of the data that find_tree_chunk() found last */
};

/* As find_chunk() for one file. A chunk of data may have many files. */
void find_tree_chunk(struct tree_source *tree, size_t most, struct chunk *chunk);

/*
 * Read `length` bytes of the sequence. Any thread may call it. A file that cannot be
 * read, or is not the one that was listed, is marked as failed, and its bytes are zero.
 *
 * fail_file  called with a sentence for each file that is marked
 */
void read_tree(struct tree_source *tree, uint64_t offset, void *ret_data, size_t length,
	       void (*fail_file)(void *context, struct list_entry *entry,
				 const char *reason),
	       void *context);

#endif

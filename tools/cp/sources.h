/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SOURCES_H
#define PIER_TOOLS_CP_SOURCES_H

#include "source.h"
#include "transfer.h"
#include "tree_source.h"

/* The file or the tree that a sender reads. Set the file's descriptors to -1 first. */
struct sources {
	struct transfer *transfer;
	struct source file;
	struct tree_source tree; /* instead, if is_tree */
	bool is_tree;
};

/* Functions that return int return 0, or -1 with the failure set. */

int open_sources(struct sources *sources, struct transfer *transfer,
		 struct source_message *ret_message);
/* The message, and the list of a tree. */
int send_sources(const struct sources *sources, const struct source_message *message);
/* Instead of a transfer: list what would be copied, at the client. */
int end_dry_run(const struct sources *sources, const struct source_message *message);
/* Of all bytes. */
uint64_t sources_size(const struct sources *sources);
/* As find_chunk(), read_source() and check_source() for one file. */
void find_sources_chunk(struct sources *sources, size_t most, struct chunk *chunk);
int read_sources(struct sources *sources, uint64_t offset, void *ret_data, size_t length,
		 struct failure *failure);
int check_sources(const struct sources *sources, struct failure *failure);
void close_sources(struct sources *sources);

#endif

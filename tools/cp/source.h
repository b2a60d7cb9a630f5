/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SOURCE_H
#define PIER_TOOLS_CP_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "file.h"
#include "list.h"
#include "party.h"

/* The file that is read. Set both descriptors to -1 before open_source(). */
struct source {
	int fd, content; /* the file; the descriptor its bytes are read from */
	int root;	 /* borrowed, like path */
	const char *path;
	struct attributes attributes;
	struct stat stat;	      /* at the time it was opened, or flushed */
	uint64_t size;		      /* of the content */
	bool sparse;		      /* it may have holes */
	struct direct_reader *direct; /* owned; NULL: read through the page cache */
};

/* The file or the tree that a sender reads. Set the file's descriptors to -1 first. */
struct sources {
	struct party *party;
	struct source file;
	bool is_tree; /* the files of a list, read as one sequence, instead: */
	struct walk walk;
	struct words matches; /* of the patterns among a server's operands */
	struct file_list list;
	uint64_t data_end; /* the end of the data that find_chunk() found last */
};

/* Functions that return int return 0, or -1 with the failure set. */

/* root is as in path.h. */
int open_source(struct source *source, int root, const char *path,
		struct failure *failure);
void close_source(struct source *source);

int open_sources(struct sources *sources, struct party *party,
		 struct source_message *ret_message);
/* With --continue, before the transfer: agree on what is kept. See segments.c. */
int compare_segments(struct party *party, struct sources *sources);
/* Instead of a transfer: list what would be copied, at the client. */
int end_dry_run(const struct sources *sources, const struct source_message *message);
/*
 * Set the length of the chunk that begins at chunk->offset, and whether it is a hole.
 * A chunk of data is at most `most` bytes long.
 */
void find_chunk(struct sources *sources, size_t most, struct chunk *chunk);
/*
 * Read exactly `length` bytes. Any thread may call it. A file of a tree that cannot be
 * read, or is not the one that was listed, is left out of the copy.
 */
int read_sources(struct sources *sources, uint64_t offset, void *ret_data, size_t length,
		 struct failure *failure);
/*
 * Fail if the file has changed since it was flushed, if its path now names another
 * file, or if it does not end at its size. A write through a mapping goes unnoticed if
 * is_in_memory(). The files of a tree are checked when they are read.
 */
int check_sources(const struct sources *sources, struct failure *failure);
void close_sources(struct sources *sources);

#endif

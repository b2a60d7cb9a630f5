/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SOURCE_H
#define PIER_TOOLS_CP_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "digest.h"
#include "direct_read.h"
#include "message.h"

/* The file that is read. Set both descriptors to -1 before open_source(). */
struct source {
	int fd, content; /* the file; the descriptor its bytes are read from */
	int root;	 /* borrowed, like path */
	const char *path;
	struct stat stat;  /* at the time it was opened */
	uint64_t size;	   /* of the content */
	bool sparse;	   /* it may have holes */
	uint64_t data_end; /* the end of the data that find_chunk() found last */
	struct direct_reader *direct; /* owned; NULL: read through the page cache */
};

/* root is as in path.h. */
int open_source(struct source *source, int root, const char *path,
		struct failure *failure);
/* `secret` is the copy's. */
void describe_source(const struct source *source, const uint8_t *secret,
		     struct source_message *ret_message);
/*
 * Set the length of the chunk that begins at chunk->offset, and whether it is a hole.
 * A chunk of data is at most `most` bytes long.
 */
void find_chunk(struct source *source, size_t most, struct chunk *chunk);
/* The start of the next data or hole at or after `offset`, or the size: lseek(2). */
uint64_t seek_extent(int fd, uint64_t size, uint64_t offset, int whence);
bool same_time(const struct timespec *a, const struct timespec *b);
/* pread(2), repeated when a signal interrupts it. */
ssize_t read_at(int fd, uint64_t offset, void *ret_data, size_t length);
/* As read_at(), but past the page cache if `direct` is not NULL and can do it. */
ssize_t read_past_cache(struct direct_reader *direct, int fd, uint64_t offset,
			void *ret_data, size_t length);
/* Report that the source cannot be read, with the reason in errno. Returns -1. */
int fail_source(const struct source *source, struct failure *failure);
/* Read exactly `length` bytes. Any thread may call it. */
int read_source(const struct source *source, uint64_t offset, void *ret_data,
		size_t length, struct failure *failure);
/* Returns 1 if the file ends at or before `offset`, 0 if it has data there; -1: errno. */
int ends_at(const struct source *source, uint64_t offset);
/*
 * Fail if the file has changed since it was opened, if its path now names another
 * file, or if it does not end at its size. A write through a mapping may go unnoticed,
 * because the kernel updates the times later (mmap(2)).
 */
int check_source(const struct source *source, struct failure *failure);
void close_source(struct source *source);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SOURCE_H
#define PIER_TOOLS_CP_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "digest.h"
#include "direct_read.h"
#include "message.h"
#include "metadata.h"

/* The file that is read. Set both descriptors to -1 before open_source(). */
struct source {
	int fd, content; /* the file; the descriptor its bytes are read from */
	int root;	 /* borrowed, like path */
	const char *path;
	struct attributes attributes;
	struct stat stat;  /* at the time it was opened */
	uint64_t size;	   /* of the content */
	bool sparse;	   /* it may have holes */
	uint64_t data_end; /* the end of the data that find_chunk() found last */
	struct direct_reader *direct; /* owned; NULL: read through the page cache */
};

/* root is as in path.h. */
int open_source(struct source *source, int root, const char *path,
		struct failure *failure);
/*
 * Begin to write dirty pages to the disk. A write through a mapping changes the times of
 * the file only when it makes a clean page dirty (the operation page_mkwrite of its file
 * system), and the kernel protects a page when it begins to write it. So a change after
 * this call shows in the times.
 */
void flush_pages(int fd, uint64_t offset, uint64_t length);
/*
 * Flush all pages, and note the file's state after that.
 *
 * alive  is called now and then; returns -1 with the failure set to end the copy
 */
int flush_source(struct source *source, int (*alive)(void *context), void *context,
		 struct failure *failure);
/* Whether the file system has no disk: its pages always stay dirty, and are never
 * protected. */
bool is_in_memory(int fd);
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
 * Fail if the file has changed since it was flushed, if its path now names another
 * file, or if it does not end at its size. A write through a mapping goes unnoticed if
 * is_in_memory().
 */
int check_source(const struct source *source, struct failure *failure);
void close_source(struct source *source);

#endif

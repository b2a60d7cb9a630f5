/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_WRITE_QUEUE_H
#define PIER_TOOLS_CP_WRITE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Direct writes of one file (O_DIRECT), in flight while the threads prepare the next
 * ones: io_uring(7). The disk reads the bytes from private memory of the queue, and the
 * page cache has no copy of them. Any thread may call these functions.
 */

enum {
	/* Disks reach their speed with requests of this size. */
	WRITE_BLOCK_SIZE = 1 << 20,
};

struct write_queue;

/*
 * fd    borrowed; it also takes the rest of a write that was cut short
 * size  of the file; a small one needs no queue
 *
 * Returns NULL if the file system, the kernel or the container does not allow it.
 */
struct write_queue *open_write_queue(int fd, uint64_t size);

/*
 * The length of a write at `offset` of at most `left` bytes; 0: this part of the file
 * must not be written directly. Both then keep away from the pages of the other.
 */
size_t direct_length(const struct write_queue *queue, uint64_t offset, uint64_t left);
/* The other bytes before the next direct write. NULL: all. */
uint64_t buffered_length(const struct write_queue *queue, uint64_t offset, uint64_t left);

/* Wait for a free block of WRITE_BLOCK_SIZE bytes. Returns NULL with errno. */
void *take_write_block(struct write_queue *queue);
/* The block has not been written. */
void return_write_block(struct write_queue *queue, void *block);
/* Write the block, which is free afterwards. Errors come from finish_writes(). */
void write_block(struct write_queue *queue, void *block, uint64_t offset, size_t length);
/* Wait for all writes. Returns 0, or -1 with the errno of the first that failed. */
int finish_writes(struct write_queue *queue);
/* Wait for all writes. NULL is allowed. */
void close_write_queue(struct write_queue *queue);

#endif

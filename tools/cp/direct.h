/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_DIRECT_H
#define PIER_TOOLS_CP_DIRECT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Direct reads and writes of one file (O_DIRECT): the disk accesses private memory of
 * this process, and the page cache has no copy of the bytes.
 */

enum {
	/* Disks reach their speed with requests of this size. */
	DIRECT_SIZE = 1 << 20,
};

struct direct_reader;

/*
 * fd    borrowed, until open_direct_reader() returns
 * size  of the file; a small one needs no reader
 *
 * Returns NULL if the file system does not allow direct reads.
 */
struct direct_reader *open_direct_reader(int fd, uint64_t size);
/* NULL is allowed. */
void close_direct_reader(struct direct_reader *reader);

/*
 * Read exactly `length` bytes of fd, past the page cache where the reader, which may be
 * NULL, can. Returns 1; 0 if the file ends before; or -1 with errno. Any thread may call
 * it.
 */
int read_exactly(struct direct_reader *reader, int fd, uint64_t offset, void *ret_data,
		 size_t length);

/*
 * Direct writes in flight while the threads prepare the next ones: io_uring(7). The disk
 * reads the bytes from memory of the queue. Any thread may call these functions.
 */
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

/* Wait for a free block of DIRECT_SIZE bytes. Returns NULL with errno. */
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

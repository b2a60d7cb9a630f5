/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "write_queue.h"

/* A build without liburing: there is never a queue. */

struct write_queue *open_write_queue(int fd, uint64_t size)
{
	(void)fd;
	(void)size;
	return NULL;
}

size_t direct_length(const struct write_queue *queue, uint64_t offset, uint64_t left)
{
	(void)queue;
	(void)offset;
	(void)left;
	return 0;
}

uint64_t buffered_length(const struct write_queue *queue, uint64_t offset, uint64_t left)
{
	(void)queue;
	(void)offset;
	return left;
}

void *take_write_block(struct write_queue *queue)
{
	(void)queue;
	errno = ENOSYS;
	return NULL;
}

void return_write_block(struct write_queue *queue, void *block)
{
	(void)queue;
	(void)block;
}

void write_block(struct write_queue *queue, void *block, uint64_t offset, size_t length)
{
	(void)queue;
	(void)block;
	(void)offset;
	(void)length;
}

int finish_writes(struct write_queue *queue)
{
	(void)queue;
	return 0;
}

void close_write_queue(struct write_queue *queue)
{
	(void)queue;
}

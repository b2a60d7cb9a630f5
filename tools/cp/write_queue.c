/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <liburing.h>

#include "direct_read.h"
#include "path.h"
#include "write_queue.h"

enum {
	BLOCKS_MAX = 16,
};

struct block {
	uint8_t *data;
	uint64_t offset; /* of the write in flight */
	size_t length;
};

struct write_queue {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a block was returned, or its write is in flight */
	struct io_uring ring;
	int fd, buffered; /* for direct writes; borrowed, for the others */
	uint64_t unit;	  /* of offsets and lengths of direct writes */
	uint8_t *memory;
	struct block blocks[BLOCKS_MAX], *free[BLOCKS_MAX];
	unsigned int count, free_count, in_flight;
	bool registered; /* the kernel has pinned the memory once, for all writes */
	int error;	 /* errno of the first write that failed */
};

static size_t memory_size(const struct write_queue *queue)
{
	return (size_t)queue->count * WRITE_BLOCK_SIZE;
}

static int alloc_blocks(struct write_queue *queue, uint64_t size)
{
	uint64_t count = size / WRITE_BLOCK_SIZE;
	void *memory;

	queue->count = count < BLOCKS_MAX ? (unsigned int)count : BLOCKS_MAX;
	memory = mmap(NULL, memory_size(queue), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -1;
	queue->memory = memory;
	for (unsigned int i = 0; i < queue->count; i++) {
		queue->blocks[i].data = queue->memory + (size_t)i * WRITE_BLOCK_SIZE;
		queue->free[i] = &queue->blocks[i];
	}
	queue->free_count = queue->count;
	return 0;
}

/* Linux before 5.12 counts the memory towards RLIMIT_MEMLOCK: do without then. */
static void register_blocks(struct write_queue *queue)
{
	struct iovec memory = { queue->memory, memory_size(queue) };

	queue->registered = io_uring_register_buffers(&queue->ring, &memory, 1) == 0;
}

struct write_queue *open_write_queue(int fd, uint64_t size)
{
	struct write_queue *queue;

	if (size < WRITE_BLOCK_SIZE)
		return NULL;
	queue = calloc(1, sizeof(*queue));
	if (!queue)
		return NULL;
	queue->buffered = fd;
	queue->unit = find_direct_unit(fd);
	queue->fd = queue->unit && WRITE_BLOCK_SIZE % queue->unit == 0
			    ? reopen_file(fd, O_WRONLY | O_DIRECT)
			    : -1;
	if (queue->fd < 0 || alloc_blocks(queue, size) < 0)
		goto free_queue;
	/* EPERM and ENOSYS in containers and where kernel.io_uring_disabled is set. */
	if (io_uring_queue_init(queue->count, &queue->ring, 0) < 0)
		goto free_queue;
	register_blocks(queue);
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->changed, NULL);
	return queue;

free_queue:
	if (queue->memory)
		munmap(queue->memory, memory_size(queue));
	if (queue->fd >= 0)
		close(queue->fd);
	free(queue);
	return NULL;
}

size_t direct_length(const struct write_queue *queue, uint64_t offset, uint64_t left)
{
	if (!queue || offset % queue->unit != 0)
		return 0;
	if (left > WRITE_BLOCK_SIZE)
		left = WRITE_BLOCK_SIZE;
	return (size_t)(left - left % queue->unit);
}

uint64_t buffered_length(const struct write_queue *queue, uint64_t offset, uint64_t left)
{
	uint64_t until = queue ? queue->unit - offset % queue->unit : left;

	return until < left ? until : left;
}

/* A short write is rare; the rest takes the way that takes every length. */
static void write_rest(struct write_queue *queue, const struct block *block, size_t done)
{
	while (done < block->length && !queue->error) {
		ssize_t count = pwrite(queue->buffered, block->data + done,
				       block->length - done,
				       (off_t)(block->offset + done));

		if (count > 0)
			done += (size_t)count;
		else if (count < 0 && errno != EINTR)
			queue->error = errno;
		else if (count == 0)
			queue->error = EIO;
	}
}

/* EINVAL: the file system takes no direct write of this kind after all. */
static void take_completion(struct write_queue *queue, struct io_uring_cqe *cqe)
{
	struct block *block = io_uring_cqe_get_data(cqe);
	int count = cqe->res;

	io_uring_cqe_seen(&queue->ring, cqe);
	queue->in_flight--;
	if (count == -EINVAL || count == -EAGAIN || count == -EINTR)
		count = 0;
	if (count >= 0)
		write_rest(queue, block, (size_t)count);
	else if (!queue->error)
		queue->error = -count;
	queue->free[queue->free_count++] = block;
}

/* The lock is held: every other thread would wait for a completion, too. */
static int await_completion(struct write_queue *queue)
{
	struct io_uring_cqe *cqe;
	int error;

	do
		error = io_uring_wait_cqe(&queue->ring, &cqe);
	while (error == -EINTR);
	if (error == 0)
		take_completion(queue, cqe);
	return error;
}

/* The other threads may still fill all of the blocks. */
static int await_block(struct write_queue *queue)
{
	if (queue->in_flight)
		return await_completion(queue);
	pthread_cond_wait(&queue->changed, &queue->lock);
	return 0;
}

void *take_write_block(struct write_queue *queue)
{
	void *block = NULL;
	int error = 0;

	pthread_mutex_lock(&queue->lock);
	while (!queue->free_count && !queue->error && !error)
		error = await_block(queue);
	if (queue->error)
		error = -queue->error;
	if (!error)
		block = queue->free[--queue->free_count]->data;
	pthread_mutex_unlock(&queue->lock);
	errno = -error;
	return block;
}

static struct block *find_block(struct write_queue *queue, const void *data)
{
	size_t distance = (size_t)((const uint8_t *)data - queue->memory);

	return &queue->blocks[distance / WRITE_BLOCK_SIZE];
}

void return_write_block(struct write_queue *queue, void *block)
{
	pthread_mutex_lock(&queue->lock);
	queue->free[queue->free_count++] = find_block(queue, block);
	pthread_cond_signal(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

/* There is an entry for every block. One that cannot be submitted is left in the ring. */
static void submit_write(struct write_queue *queue, struct block *block)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);
	unsigned int length = (unsigned int)block->length;
	int submitted;

	assert(sqe);
	if (queue->registered)
		io_uring_prep_write_fixed(sqe, queue->fd, block->data, length,
					  block->offset, 0);
	else
		io_uring_prep_write(sqe, queue->fd, block->data, length, block->offset);
	io_uring_sqe_set_data(sqe, block);
	do
		submitted = io_uring_submit(&queue->ring);
	while (submitted == -EINTR);
	if (submitted < 0)
		queue->error = -submitted;
	else
		queue->in_flight++;
}

void write_block(struct write_queue *queue, void *data, uint64_t offset, size_t length)
{
	struct block *block = find_block(queue, data);

	block->offset = offset;
	block->length = length;
	pthread_mutex_lock(&queue->lock);
	if (!queue->error)
		submit_write(queue, block);
	/* All of them: after an error, nobody gets a block. */
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

static void drain_queue(struct write_queue *queue)
{
	int error = 0;

	pthread_mutex_lock(&queue->lock);
	while (queue->in_flight && !error)
		error = await_completion(queue);
	if (error && !queue->error)
		queue->error = -error;
	pthread_mutex_unlock(&queue->lock);
}

int finish_writes(struct write_queue *queue)
{
	if (!queue)
		return 0;
	drain_queue(queue);
	errno = queue->error;
	return queue->error ? -1 : 0;
}

void close_write_queue(struct write_queue *queue)
{
	if (!queue)
		return;
	drain_queue(queue);
	io_uring_queue_exit(&queue->ring);
	pthread_cond_destroy(&queue->changed);
	pthread_mutex_destroy(&queue->lock);
	munmap(queue->memory, memory_size(queue));
	close(queue->fd);
	free(queue);
}

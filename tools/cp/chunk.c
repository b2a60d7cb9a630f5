/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "chunk.h"
#include "file.h"
#include "core/wire.h"

struct queue {
	struct job *first, **last;
};

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t wanted;
	struct queue todo, done;
	bool stopping;
	int event;
	unsigned int busy; /* accessed by the owner's thread only */
	unsigned int count;
	pthread_t threads[CP_THREADS_MAX];
	uint8_t *scratch;
	size_t scratch_size;   /* of each thread */
	unsigned int equipped; /* threads that have taken theirs */
};

static void append_job(struct queue *queue, struct job *job)
{
	job->next = NULL;
	*queue->last = job;
	queue->last = &job->next;
}

static struct job *take_first_job(struct queue *queue)
{
	struct job *job = queue->first;

	if (!job)
		return NULL;
	queue->first = job->next;
	if (!queue->first)
		queue->last = &queue->first;
	return job;
}

static void *run_worker(void *argument)
{
	struct workers *workers = argument;
	uint8_t *scratch;
	struct job *job;

	pthread_mutex_lock(&workers->lock);
	scratch = workers->scratch + workers->equipped++ * workers->scratch_size;
	for (;;) {
		while (!workers->stopping && !workers->todo.first)
			pthread_cond_wait(&workers->wanted, &workers->lock);
		if (workers->stopping)
			break;
		job = take_first_job(&workers->todo);
		assert(job);
		pthread_mutex_unlock(&workers->lock);
		job->run(job, scratch);
		pthread_mutex_lock(&workers->lock);
		append_job(&workers->done, job);
		eventfd_write(workers->event, 1);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

int start_workers(unsigned int count, size_t scratch_size, struct workers **ret_workers,
		  struct failure *failure)
{
	struct workers *workers = calloc(1, sizeof(*workers));
	int error = 0;

	if (!workers)
		return fail(failure, EXIT_FILE, "out of memory");
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->wanted, NULL);
	workers->todo.last = &workers->todo.first;
	workers->done.last = &workers->done.first;
	workers->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	workers->scratch_size = scratch_size;
	if (count > 0)
		workers->scratch = aligned_alloc((size_t)sysconf(_SC_PAGESIZE),
						 count * scratch_size);
	if (workers->event < 0 || (count > 0 && !workers->scratch))
		error = errno;
	while (!error && workers->count < count) {
		error = pthread_create(&workers->threads[workers->count], NULL,
				       run_worker, workers);
		workers->count += !error;
	}
	if (!error) {
		*ret_workers = workers;
		return 0;
	}
	stop_workers(&workers);
	return fail(failure, EXIT_FILE, "cannot start threads: %s", strerror(error));
}

void stop_workers(struct workers **owned)
{
	struct workers *workers = *owned;

	*owned = NULL;
	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	workers->stopping = true;
	pthread_cond_broadcast(&workers->wanted);
	pthread_mutex_unlock(&workers->lock);
	for (unsigned int i = 0; i < workers->count; i++)
		pthread_join(workers->threads[i], NULL);
	free(workers->scratch);
	if (workers->event >= 0)
		close(workers->event);
	pthread_cond_destroy(&workers->wanted);
	pthread_mutex_destroy(&workers->lock);
	free(workers);
}

void submit_job(struct workers *workers, struct job *job)
{
	workers->busy++;
	pthread_mutex_lock(&workers->lock);
	append_job(&workers->todo, job);
	pthread_cond_signal(&workers->wanted);
	pthread_mutex_unlock(&workers->lock);
}

struct job *take_finished_job(struct workers *workers)
{
	struct job *job;
	eventfd_t count;

	pthread_mutex_lock(&workers->lock);
	job = take_first_job(&workers->done);
	/* Under the lock, so that the event is set only while a finished job is queued.
	 */
	if (!job)
		eventfd_read(workers->event, &count);
	pthread_mutex_unlock(&workers->lock);
	if (job)
		workers->busy--;
	return job;
}

void wake_owner(struct workers *workers)
{
	eventfd_write(workers->event, 1);
}

unsigned int workers_busy(const struct workers *workers)
{
	return workers->busy;
}

int workers_fd(const struct workers *workers)
{
	return workers->event;
}

enum {
	HEADER_SIZE = 24 + CP_TAG_SIZE,
};

struct slot *open_slots(const struct stream *stream, void *owner, job_function *run,
			struct failure *failure)
{
	struct slot *slots = calloc(stream->depth, sizeof(*slots));

	if (!slots) {
		fail(failure, EXIT_FILE, "out of memory");
		return NULL;
	}
	for (uint32_t i = 0; i < stream->depth; i++) {
		slots[i].job.run = run;
		slots[i].owner = owner;
	}
	return slots;
}

uint64_t record_length(const struct stream *stream, const struct chunk *chunk)
{
	uint64_t blocks = (chunk->length + PIER_STREAM_BLOCK - 1) / PIER_STREAM_BLOCK;

	if (chunk->hole || stream->ipc)
		blocks = 0;
	return (1 + blocks) * PIER_STREAM_BLOCK;
}

uint64_t record_end(const struct stream *stream, const struct slot *slot)
{
	return slot->position + record_length(stream, &slot->chunk);
}

/* Where a byte of the chunk is in the buffer, and how many follow it there. */
static size_t find_place(const struct stream *stream, const struct slot *slot,
			 uint64_t done, size_t *ret_length)
{
	uint64_t left = slot->chunk.length - done, place;

	if (stream->ipc) {
		*ret_length = (size_t)left;
		return (size_t)(slot->chunk.number % stream->depth * stream->chunk +
				done);
	}
	place = (slot->position + PIER_STREAM_BLOCK + done) % stream->stream_size;
	if (left > stream->stream_size - place)
		left = stream->stream_size - place;
	*ret_length = (size_t)left;
	return (size_t)place;
}

/* Memory behind a dma-buf may also need DMA_BUF_IOCTL_SYNC: <pier/buffer.h>. */
uint8_t *choose_memory(const struct stream *stream, const struct slot *slot,
		       uint64_t done, void *piece, size_t *ret_length)
{
	const char *memory = stream->report.memory;
	uint64_t left = slot->chunk.length - done;
	void *pointer;

	if ((strcmp(memory, "host") == 0 || strcmp(memory, "memfd") == 0) &&
	    pier_buffer_map(stream->buffer, &pointer) == 0) {
		size_t place = find_place(stream, slot, done, ret_length);

		if (*ret_length > DIRECT_SIZE)
			*ret_length = DIRECT_SIZE;
		return (uint8_t *)pointer + place;
	}
	*ret_length = left < PIECE_SIZE ? (size_t)left : PIECE_SIZE;
	return piece;
}

/* From private memory to the slot, or from the slot to private memory: one is NULL. */
static int copy_piece(struct stream *stream, struct slot *slot, uint64_t done,
		      const uint8_t *from, uint8_t *to, size_t length)
{
	for (size_t at = 0, count; at < length; at += count) {
		size_t place = find_place(stream, slot, done + at, &count);

		if (count > length - at)
			count = length - at;
		if ((from ? pier_buffer_copy_to(stream->buffer, place, from + at, count)
			  : pier_buffer_copy_from(stream->buffer, place, to + at,
						  count)) < 0)
			return fail_pier(&slot->failure, EXIT_DEVICE);
	}
	return 0;
}

int put_piece(struct stream *stream, struct slot *slot, uint64_t done, const void *piece,
	      size_t length)
{
	return copy_piece(stream, slot, done, piece, NULL, length);
}

int get_piece(struct stream *stream, struct slot *slot, uint64_t done, void *ret_piece,
	      size_t length)
{
	return copy_piece(stream, slot, done, NULL, ret_piece, length);
}

int finish_pieces(struct stream *stream, struct slot *slot)
{
	size_t length, place = find_place(stream, slot, 0, &length);

	if (stream->ipc &&
	    pier_buffer_copy(stream->peer, place, stream->buffer, place, length) < 0)
		return fail_pier(&slot->failure, EXIT_DEVICE);
	return 0;
}

int put_header(struct stream *stream, struct slot *slot)
{
	size_t place = (size_t)(slot->position % stream->stream_size);
	uint8_t header[HEADER_SIZE];

	pier_put_le64(header, slot->chunk.number);
	pier_put_le64(header + 8, slot->chunk.length);
	pier_put_le64(header + 16, slot->chunk.hole);
	memcpy(header + 24, slot->tag, CP_TAG_SIZE);
	if (pier_buffer_copy_to(stream_memory(stream), place, header, sizeof(header)) < 0)
		return fail_pier(&slot->failure, EXIT_DEVICE);
	return 0;
}

int get_header(struct stream *stream, uint64_t position, struct chunk *ret_chunk,
	       uint8_t *ret_tag)
{
	size_t place = (size_t)(position % stream->stream_size);
	uint8_t header[HEADER_SIZE];
	int error = pier_buffer_copy_from(stream_memory(stream), place, header,
					  sizeof(header));

	if (error)
		return error;
	ret_chunk->number = pier_get_le64(header);
	ret_chunk->length = pier_get_le64(header + 8);
	ret_chunk->hole = pier_get_le64(header + 16) != 0;
	memcpy(ret_tag, header + 24, CP_TAG_SIZE);
	return 0;
}

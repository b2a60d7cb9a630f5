/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CHUNK_H
#define PIER_TOOLS_CP_CHUNK_H

#include <pier/stream.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "digest.h"
#include "failure.h"
#include "stream.h"

/* Threads that run jobs, in the order of submission. */

struct job;

/* `scratch` is private memory of the thread that runs the job. */
typedef void job_function(struct job *job, void *scratch);

struct job {
	job_function *run;
	struct job *next; /* internal */
};

struct workers;

/* `count` may be 0. Each thread has scratch_size bytes, whole pages, of scratch memory.
 */
int start_workers(unsigned int count, size_t scratch_size, struct workers **ret_workers,
		  struct failure *failure);

/*
 * Wait for the running jobs, drop the others, and end the threads. *owned, which may be
 * NULL, is NULL afterwards.
 */
void stop_workers(struct workers **owned);

/* The workers own the job until take_finished_job() returns it. */
void submit_job(struct workers *workers, struct job *job);

/* Returns a finished job, or NULL. */
struct job *take_finished_job(struct workers *workers);

/* Make workers_fd() readable for once. Any thread may call it. */
void wake_owner(struct workers *workers);

/* The number of jobs submitted and not yet taken back. */
unsigned int workers_busy(const struct workers *workers);

/* Readable when a job has finished. Take jobs until NULL before you poll it. */
int workers_fd(const struct workers *workers);

/*
 * The stream consists of records, one for each chunk: a header, which takes a block, and
 * the chunk's data, padded to blocks. A hole has a header only; so has every chunk with
 * ipc, whose data is copied to slot n % depth of the receiver's buffer before. A record
 * can go around the end of the stream's memory.
 *
 * A peer that has the memory's key can change its bytes at any time. The workers
 * therefore copy each piece to private memory before they hash and write it. This
 * memory also consists of ordinary pages, which the kernel can pin for file I/O.
 */

enum {
	/* Private memory of a worker; small enough to stay in the CPU cache. */
	PIECE_SIZE = 256 * 1024,
};

/* Chunk number n uses slot n % depth of its side. */
struct slot {
	struct job job;
	void *owner;
	struct chunk chunk;
	uint8_t tag[CP_TAG_SIZE]; /* the sender's */
	enum slot_state {
		SLOT_FREE,
		SLOT_WORKING, /* owned by a worker */
		SLOT_READY,   /* the worker is done */
		SLOT_POSTED,  /* the sender's: it is in the stream */
	} state;
	uint64_t position; /* of the record, in the stream */
	struct failure failure;
};

/* Allocate the stream's slots. Returns NULL on failure. */
struct slot *open_slots(const struct stream *stream, void *owner, job_function *run,
			struct failure *failure);

/* The bytes of the chunk's record. */
uint64_t record_length(const struct stream *stream, const struct chunk *chunk);

/* Where the record of the slot's chunk ends. */
uint64_t record_end(const struct stream *stream, const struct slot *slot);

/*
 * Where the sender reads the bytes of the chunk from `done` on: the slot, if it is plain
 * host memory, since the peer has no right to write there; otherwise `piece`, private
 * memory of PIECE_SIZE bytes. Without that in between, a whole chunk is one request to
 * the disk.
 */
uint8_t *choose_memory(const struct stream *stream, const struct slot *slot,
		       uint64_t done, void *piece, size_t *ret_length);

/* Copy a piece between private memory and the slot. Any thread may call these. */
int put_piece(struct stream *stream, struct slot *slot, uint64_t done, const void *piece,
	      size_t length);

int get_piece(struct stream *stream, struct slot *slot, uint64_t done, void *ret_piece,
	      size_t length);

/* Call after the last put_piece(): with ipc, copies the data to the receiver's slot. */
int finish_pieces(struct stream *stream, struct slot *slot);

/* Write the record's header, or read one: number, length, hole flag and tag. */
int put_header(struct stream *stream, struct slot *slot);

/* The header has no offset, so chunk->offset is not set. Returns 0 or -errno. */
int get_header(struct stream *stream, uint64_t position, struct chunk *ret_chunk,
	       uint8_t *ret_tag);

#endif

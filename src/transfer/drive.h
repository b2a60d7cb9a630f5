/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_DRIVE_H
#define PIER_TRANSFER_DRIVE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#include <pier/transfer.h>

#include "rail.h"
#include "core/object.h"

/*
 * The loop that drives a transfer or a receiver to its end, and what both need for it:
 * rails, times, the reason to stop, and the result. `ops` has what differs.
 */
struct pier_drive {
	struct pier_object object;
	const struct pier_drive_ops *ops;
	uint64_t length, done; /* bytes; `length` of a stream: so far */
	uint64_t span;	       /* the bytes of memory that they are in */

	void *rails; /* an array; each element begins with a struct pier_rail_base */
	uint32_t rail_count;
	struct pollfd *fds; /* one for each rail */
	bool incoming;	    /* the peer's bytes arrive in memory at this end */
	bool fail_fast;	    /* the first rail that fails ends everything */
	bool leftovers;	    /* the last step left work that no event announces */

	int flush_error; /* all bytes arrived, but could not be made visible */
	bool owes_flush; /* some could not be made visible when it ended last */

	int stop; /* 0, or why it is to end: -errno */
	char reason[640];

	bool ended;
	int error; /* 0, or how it ended: -errno */
	char sentence[768];
};

struct pier_drive_ops {
	const char *name; /* "transfer" or "receiver", for error sentences */
	size_t rail_size;
	/*
	 * Make some progress, and end it through pier_drive_conclude() if that is
	 * possible. Take no longer than the deadline, unless one piece of work does.
	 */
	void (*step)(struct pier_drive *drive, int64_t deadline);
	/* When a step is due at the latest, if no rail wakes up; INT64_MAX: never. */
	int64_t (*wake_at)(const struct pier_drive *drive);
	/* Whether a wait is to return, although it has not ended. */
	bool (*has_news)(const struct pier_drive *drive);
};

static inline struct pier_rail_base *pier_drive_rail(const struct pier_drive *drive,
						     uint32_t index)
{
	return (struct pier_rail_base *)((char *)drive->rails +
					 index * drive->ops->rail_size);
}

/* Errors: -EINVAL. */
int pier_check_stall(const char *what, int stall_ms);
/* rails, size  struct pier_rail or struct pier_receiver_rail, and its size */
int pier_drive_check_rails(const struct pier_drive_ops *ops, const void *rails,
			   size_t size, uint32_t count);

/*
 * Replace the rails; the caller has released the old ones. Errors: -ENOMEM, with nothing
 * changed.
 */
int pier_drive_reserve_fds(struct pier_drive *drive, uint32_t count);

/* Begin, or begin again: no result. */
void pier_drive_start(struct pier_drive *drive);

/* It is to end. The first reason, which is printed, stays. */
void pier_drive_stop(struct pier_drive *drive, int error, const char *format, ...)
	PIER_PRINTF(3, 4);

/* If a rail has failed just now: the others continue, or everything is to end. */
void pier_drive_note_failure(struct pier_drive *drive, uint32_t index);

/* Flush the rails, until one fails. 0, or its error, and *ret_index. */
int pier_drive_flush(struct pier_drive *drive, uint32_t *ret_index);

/* Flush what is possible, whether or not it succeeds; sets owes_flush. */
void pier_drive_settle_flushes(struct pier_drive *drive);

/* End it: successfully if it is complete, or with the reason to stop if there is one. */
void pier_drive_conclude(struct pier_drive *drive, bool complete);

/* Whether a channel is still being stopped: requests that it has may not have ended. */
bool pier_drive_is_stopping(const struct pier_drive *drive);

uint32_t pier_drive_count_working(const struct pier_drive *drive);
/* A bit for each rail that has failed, and whose channel has stopped. */
uint64_t pier_drive_failed_rails(const struct pier_drive *drive);

/* The public calls of both. */
int pier_drive_progress(struct pier_drive *drive);
int pier_drive_wait(struct pier_drive *drive, int timeout_ms);
int pier_drive_cancel(struct pier_drive *drive);
int pier_drive_fail(struct pier_drive *drive, int error);
int pier_drive_query_rail(const struct pier_drive *drive, uint32_t index,
			  struct pier_rail_status *ret_status, size_t size);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_GROUP_GROUP_H
#define PIER_GROUP_GROUP_H

#include <poll.h>

#include <pier/group.h>

#include "channel/channel.h"
#include "core/object.h"

enum {
	/*
	 * A rank can be one barrier ahead of another, not more, and sends it one
	 * barrier message in each; and once in its life, that it has failed. So at most
	 * 3 messages are on their way. One more is a margin.
	 */
	PIER_GROUP_RECEIVES = 4,
	PIER_GROUP_SENDS = 4,
};

/* What this member keeps for one rank. */
struct pier_group_member {
	struct pier_channel *channel; /* for requests */
	struct pier_channel *control; /* barrier messages; NULL: this rank */
	/* Of the control channel, in the order of posting, from `next` on. */
	struct pier_work receives[PIER_GROUP_RECEIVES];
	unsigned int next;
	struct pier_work message; /* the last barrier message sent */
	uint64_t watched;	  /* the look in which its channel was watched */
	uint64_t full[2]; /* the looks in which its send and receive queues were full */
	bool marked;	  /* to be named in an error sentence */
};

enum pier_group_state {
	PIER_GROUP_PREPARED,
	PIER_GROUP_CONNECTED,
	PIER_GROUP_FAILED, /* while connecting: can only be destroyed */
};

struct pier_group {
	struct pier_object object;
	struct pier_pd *pd;
	uint32_t rank, size;
	enum pier_barrier_algorithm barrier;
	enum pier_group_state state;

	/*
	 * The shared completion queues of its channels; none if the caller gave one.
	 * There is one, unless a device's longest is too short.
	 */
	struct pier_cq **cqs;
	uint32_t cq_count;
	uint32_t members_per_cq;

	/* Of the first barrier that failed, or of connecting. */
	int broken; /* 0, or its error */
	int failed_rank;
	char cause[512];

	/* The channels that a wait watches, and their fds; room for `size` of each. */
	struct pier_channel **watch;
	struct pollfd *fds;
	uint32_t watch_count;
	uint64_t look; /* counts looks; from 1 */

	/* The ranks whose messages are awaited, and those to which one is being sent. */
	uint32_t *awaited, *sending;
	uint32_t awaited_count, sending_count;

	struct pier_group_member members[];
};

/*
 * Resolve PIER_TIMEOUT_DEFAULT. Check that the group belongs to this process, and is
 * connected or, as `state` says, prepared.
 */
int pier_check_group(const struct pier_group *group, enum pier_group_state state,
		     int timeout_ms, int *ret_timeout_ms);

/*
 * Print the marked ranks as "1, 2, 5", the first ones if there are many, and remove
 * the marks. Returns their number.
 */
uint32_t pier_group_print_marked(struct pier_group *group, char *ret_text, size_t size);

/* Waits on several channels. */

/*
 * Returns 1 when the wait is over, 0 before that, or an error. It collects completions
 * as pier_work_poll() does, and watches each channel that it still needs.
 */
typedef int pier_group_look(struct pier_group *group, void *subject);

/*
 * Call it within a look, for at most one channel per member, and only for channels that
 * the look before watched. Repeated calls do nothing.
 */
void pier_group_watch(struct pier_group *group, uint32_t rank,
		      struct pier_channel *channel);

/*
 * Look until the wait is over. Returns 0; -ETIMEDOUT without a sentence; or the error
 * of a look or of waiting.
 */
int pier_group_wait_until(struct pier_group *group, pier_group_look *look, void *subject,
			  int64_t deadline);

/* Messages of barriers: 32 bits from rank to rank. */

enum pier_group_message_kind {
	/*
	 * "I am connected to all ranks" or "I am in this barrier", with a check of
	 * which.
	 */
	PIER_GROUP_MESSAGE_HERE = 1,
	/*
	 * "I have failed and will not join a barrier any more", with the reason and a
	 * rank.
	 */
	PIER_GROUP_MESSAGE_FAILED = 2,
};

enum {
	PIER_GROUP_MESSAGE_BITS = 28, /* bits of the value of a message */
};

/*
 * Tell all other ranks that this one is connected, and wait until they all have said so.
 * On failure the group is broken.
 *
 * timeout_ms  the caller's, for the error sentence
 */
int pier_group_confirm(struct pier_group *group, int64_t deadline, int timeout_ms);

/*
 * The member has failed because of that rank: remember it and leave the sentence.
 * Returns -error.
 */
int pier_group_break(struct pier_group *group, uint32_t failed_rank, int error,
		     const char *format, ...) PIER_PRINTF(4, 5);

/* Tell all other ranks, for some milliseconds. */
void pier_group_send_failure(struct pier_group *group);

/* The wire form of docs/wire.md. A rank has no blob for itself. */

struct pier_group_blob {
	uint32_t size, from, to;
	struct pier_endpoint channel, control;
};

/* Errors: those of pier_endpoint_pack(). */
int pier_group_pack_blob(const struct pier_group_blob *blob,
			 uint8_t ret_wire[PIER_GROUP_BLOB_SIZE]);

/* Errors: -EBADMSG, -EPROTONOSUPPORT. */
int pier_group_unpack_blob(const uint8_t wire[PIER_GROUP_BLOB_SIZE],
			   struct pier_group_blob *ret_blob);

#endif

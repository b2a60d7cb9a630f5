/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_GROUP_GROUP_H
#define PIER_GROUP_GROUP_H

#include <poll.h>

#include <pier/group.h>

#include "channel/channel.h"
#include "core/object.h"

enum {
	/*
	 * A rank can be one barrier ahead of another and no further, and sends it one
	 * notice in each; besides, once in its life, that it has failed. So 3 may be on
	 * their way, and one more is a full queue's margin.
	 */
	PIER_GROUP_RECEIVES = 4,
	PIER_GROUP_SENDS = 4,
};

/* What this member has for one rank. */
struct pier_group_member {
	struct pier_channel *channel; /* for requests */
	struct pier_channel *control; /* for notices; NULL for this rank itself */
	/* Of the control channel, in the order of posting, from `next` on. */
	struct pier_work receives[PIER_GROUP_RECEIVES];
	unsigned int next;
	struct pier_work notice; /* the last one that was sent */
	uint64_t watched;	 /* the look in which its channel was watched */
	uint64_t full[2];	 /* and its send queue, its receive queue full */
};

enum pier_group_state {
	PIER_GROUP_PREPARED,
	PIER_GROUP_CONNECTED,
	PIER_GROUP_FAILED, /* at connecting: can only be destroyed */
};

struct pier_group {
	struct pier_object object;
	struct pier_pd *pd;
	uint32_t rank, size;
	enum pier_barrier_algorithm barrier;
	enum pier_group_state state;

	/* Of the first barrier that failed, or of connecting. */
	int broken; /* 0, or its error */
	int culprit;
	char cause[512];

	/* The channels that a wait looks at, and what it sleeps on; `size` of each. */
	struct pier_channel **watch;
	struct pollfd *fds;
	uint32_t watch_count;
	uint64_t look; /* counts looks; from 1 */

	/* The ranks whose notices are waited for, and those whose notice is outstanding.
	 */
	uint32_t *awaited, *told;
	uint32_t awaited_count, told_count;

	struct pier_group_member members[];
};

/* PIER_TIMEOUT_DEFAULT resolved, and that the group is connected and this process'. */
int pier_check_group(const struct pier_group *group, int timeout_ms, int *ret_timeout_ms);

/* Likewise, and that it is not connected, and has not failed to connect. */
int pier_check_unconnected_group(const struct pier_group *group, int timeout_ms,
				 int *ret_timeout_ms);

/* blob.c: the wire form of docs/wire.md. A rank has none for itself. */

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

/* wait.c: waiting for what several channels do. */

/*
 * Whether it is over: 1, 0 not yet, or an error. It collects completions, as
 * pier_work_poll() does, and watches each channel that it still needs.
 */
typedef int pier_group_look(struct pier_group *group, void *subject);

/*
 * Within a look: at most one channel of each member, and none that the look before it
 * did not watch.
 */
void pier_group_watch(struct pier_group *group, struct pier_channel *channel);

/*
 * Look until it is over, asleep where it takes long. 0; -ETIMEDOUT, without a sentence;
 * or the error of a look or of waiting.
 */
int pier_group_wait_until(struct pier_group *group, pier_group_look *look, void *subject,
			  int64_t deadline);

/* notice.c: 32 bits from rank to rank. */

enum pier_notice {
	/* "I am connected to all", or "I am in this barrier": a check of which. */
	PIER_NOTICE_HERE = 1,
	/* "I have failed, and will be in no barrier any more": why, and a rank. */
	PIER_NOTICE_FAILED = 2,
};

enum {
	PIER_NOTICE_BITS = 28, /* of a notice's value */
};

/* Post what notices are received in. Before the channel is connected. */
int pier_group_post_receives(struct pier_group_member *member);

/* Send a notice, without waiting. The rank is blamed where that fails. */
int pier_group_tell(struct pier_group *group, uint32_t rank, uint32_t check);

/* Add a rank to those that pier_group_await() waits for. */
void pier_group_expect(struct pier_group *group, uint32_t rank);

/*
 * Wait until each of those has sent its notice, with this check; then none is expected.
 * When it fails somebody is blamed.
 *
 * timeout_ms  what the caller was given, for the sentence
 */
int pier_group_await(struct pier_group *group, uint32_t check, int64_t deadline,
		     int timeout_ms);

/* Wait until those that were told have it, or are gone, or the time is up. */
void pier_group_finish_telling(struct pier_group *group, int64_t deadline);

/*
 * The member has failed, because of that rank: remember it and leave the sentence.
 * Returns -error.
 */
int pier_group_blame(struct pier_group *group, uint32_t culprit, int error,
		     const char *format, ...) PIER_PRINTF(4, 5);

/* Tell all others of it, for some milliseconds. */
void pier_group_tell_failure(struct pier_group *group);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_GROUP_BARRIER_H
#define PIER_GROUP_BARRIER_H

#include "group.h"

/* Barrier messages: 32 bits from rank to rank. */

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

/* Post the receives for messages. Call it before the channel is connected. */
int pier_group_post_receives(struct pier_group_member *member);

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

#endif

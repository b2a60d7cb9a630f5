/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CONTROL_H
#define PIER_SOFT_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Control messages: what the two ends of a shared ring send over their socket. All fields
 * are little-endian. The first byte is the type:
 *
 *	wake	 1 byte
 *	request	 type, 1 if this end can copy by address, 2 zeros, key (4)
 *	returned type, 3 zeros, slot (4), serial (4)
 *	revoked	 the same
 *	grant	 type, fds, 1 if writes are counted, 1 if there will never be one,
 *		 key, slot, serial (4 each), rights (4; of IBV_ACCESS_REMOTE_*),
 *		 segments (4), iova (8), where the giver has mapped the shared memory
 *		 (8; 0: fds follow); for each segment its offset in the fd, or its
 *		 address in the giver, length (8 each), fd (4), 4 zeros; the fds come
 *		 with the first byte
 *
 * With the engine locked.
 */

struct soft_link;

enum soft_control_type {
	SOFT_CONTROL_WAKE = 1,
	SOFT_CONTROL_REQUEST,
	SOFT_CONTROL_RETURNED,
	SOFT_CONTROL_REVOKED,
	SOFT_CONTROL_GRANT
};

enum {
	SOFT_CONTROL_REQUEST_SIZE = 8,
	SOFT_CONTROL_SERIAL_SIZE = 12,
	SOFT_CONTROL_GRANT_SIZE = 40,
	SOFT_CONTROL_SEGMENT_SIZE = 24,
	/* Of one grant, each with its own fd. */
	SOFT_GRANT_SEGMENTS = 64,
	/* The longest message. */
	SOFT_MAX_CONTROL = SOFT_CONTROL_GRANT_SIZE +
			   SOFT_GRANT_SEGMENTS * SOFT_CONTROL_SEGMENT_SIZE
};

struct soft_grant_message {
	uint32_t key, slot, serial;
	uint64_t iova;
	bool counted; /* the owner counts writes, so it needs a header for each */
	bool never;   /* denied for good */
	uint32_t rights;
	uint64_t shared_memory; /* of the giver; 0: the segments are in fds */
	uint32_t count;		/* of segments; 0: denied */
	uint32_t fd_count;
	struct {
		uint64_t offset, length; /* in the fd, or the address in the giver */
		uint32_t fd;		 /* index */
	} segments[SOFT_GRANT_SEGMENTS];
};

void pier_soft_send_wake(const struct soft_link *link);
bool pier_soft_send_grant_request(const struct soft_link *link, uint32_t key,
				  bool by_address);
bool pier_soft_send_grant(const struct soft_link *link,
			  const struct soft_grant_message *grant, const int *fds);
/* By the receiver of a grant, which needs it no more. */
void pier_soft_send_grant_returned(const struct soft_link *link, uint32_t slot,
				   uint32_t serial);
/* By the giver. */
void pier_soft_send_grant_revoked(const struct soft_link *link, uint32_t slot,
				  uint32_t serial);

#endif

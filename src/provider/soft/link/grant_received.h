/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_GRANT_RECEIVED_H
#define PIER_SOFT_GRANT_RECEIVED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Memory of the process at the other end of a shared ring, which the kernel copies from
 * one process to the other (process_vm_readv(2)). With the engine locked.
 */

struct soft_qp;
struct soft_ring;
struct soft_vector;

/*
 * Copies from the vector to `address` of the process that gave a grant by address, or
 * back if the vector is written to, `length` bytes or fewer. Returns how many; 0: none,
 * because memory at either end has vanished, or the process cannot be reached.
 */
uint64_t pier_soft_copy_peer(struct soft_ring *ring, const struct soft_vector *vector,
			     uint64_t address, uint64_t length);

/*
 * Grants that peers gave to this end, and what is known about keys without one. With the
 * engine locked.
 */

struct soft_grant_message;
struct soft_mr;

enum soft_grant_state {
	SOFT_GRANT_NONE, /* the slot is free */
	SOFT_GRANT_SEEN, /* used once: no reason for a request yet */
	SOFT_GRANT_REQUESTED,
	SOFT_GRANT_DENIED,
	SOFT_GRANT_RECEIVED
};

struct soft_received_grant {
	enum soft_grant_state state;
	uint32_t key;
	uint32_t slot, serial;	/* in `valid` of the shared memory */
	bool counted;		/* the peer needs a header for each write */
	bool by_address;	/* the offsets of segments are addresses in the peer */
	uint32_t rights;	/* of IBV_ACCESS_REMOTE_* */
	struct soft_mr *mapped; /* the peer's region, mapped here unless by_address */
	uint64_t bytes;		/* of it, reserved with pier_soft_reserve_mapping(), */
	uint32_t segments;	/* and in how many mappings */
	uint64_t used;		/* the larger, the later */
	uint64_t denied_until;
};

/*
 * The grant for a request of `length` bytes; NULL: there is none. Requests one where that
 * may help.
 */
struct soft_received_grant *pier_soft_find_grant(struct soft_qp *qp, uint32_t key,
						 uint64_t length);

/* `fds` are borrowed. False: the grant was not requested. */
bool pier_soft_accept_grant(struct soft_qp *qp, const struct soft_grant_message *message,
			    const int *fds);

/* The grant is of no use: the peer set O_APPEND on its fd, for example. */
void pier_soft_reject_grant(struct soft_qp *qp, struct soft_received_grant *grant);

/* The peer has revoked it. */
void pier_soft_drop_revoked_grant(struct soft_qp *qp, uint32_t slot, uint32_t serial);

void pier_soft_release_grant(struct soft_received_grant *grant);
void pier_soft_release_grants(struct soft_ring *ring);

#endif

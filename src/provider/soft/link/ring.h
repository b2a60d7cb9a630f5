/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_RING_H
#define PIER_SOFT_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "control.h"
#include "core/list.h"
#include "grant_given.h"
#include "grant_received.h"
#include "shared_memory.h"

/*
 * What a link has beside its socket if both ends are on one host. Frames go through the
 * shared rings, and an end with a grant copies straight into and out of the regions of
 * the other. The socket carries control messages with their fds, and reports that the
 * peer is gone. With the engine locked.
 */

struct soft_qp;
struct soft_vector;

struct soft_ring {
	struct soft_shared_memory *memory;
	/* The same if a queue pair talks to itself. */
	struct soft_direction *out, *in;
	uint64_t put, taken; /* this end's positions in them */

	struct soft_qp *qp;
	struct pier_list polled; /* in engine->polled while the engine polls the rings */
	bool is_polled;
	uint64_t last_active;  /* when something was last found here */
	uint64_t last_checked; /* when the peer was last seen to be there */
	bool shares_fds;       /* pier_soft_may_have_fds() when the link was made */

	/* For copies by address. */
	bool unreachable; /* the kernel refuses, or PIER_SOFT_CMA=off */
	pid_t peer_pid;
	uint64_t peer_witness; /* the address in that process */
	uint64_t witnessed;    /* when it was last there */

	/* Control messages that are not handled yet, and the fds that came with them. */
	uint8_t control[SOFT_MAX_CONTROL];
	uint32_t control_length;
	int fds[SOFT_GRANT_SEGMENTS];
	int fd_count;

	struct soft_given_grant given[SOFT_MAX_GRANTS];
	uint32_t next_serial;
	bool unresponsive; /* the peer did not stop a copy: it is not waited for again */
	struct soft_received_grant received[SOFT_MAX_GRANTS];
	uint32_t last_found; /* the index of the last key that was looked up */
	uint64_t uses;
};

/*
 * `side`: 0 or 1, different at the two ends. Consumes the memory, which may be NULL.
 * NULL: no memory.
 */
struct soft_ring *pier_soft_create_ring(struct soft_shared_memory *memory, int side);
/* For a queue pair that talks to itself. */
struct soft_ring *pier_soft_create_loop_ring(struct soft_shared_memory *memory);
/* Takes NULL. All grants must have been revoked and released. */
void pier_soft_free_ring(struct soft_ring *ring);

/* As sendmsg(2) and recvmsg(2); EPROTO: the peer's position is impossible. */
ssize_t pier_soft_ring_send(struct soft_qp *qp, struct soft_vector *vector);
ssize_t pier_soft_ring_receive(struct soft_qp *qp, struct soft_vector *vector);

#endif

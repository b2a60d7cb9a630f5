/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_FIFO_H
#define PIER_SOFT_FIFO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/list.h"
#include "link.h"
#include "provider/soft/limits.h"

struct soft_engine;
struct soft_link;
struct soft_vector;

/*
 * Memory that the two ends of a link on one host share: two FIFOs of bytes, one for each
 * direction, and what goes with them.
 *
 * The peer may write to all of it at any time, and any value. Nothing in it is trusted:
 * each end keeps its own positions elsewhere, checks those of the peer each time it reads
 * them, and copies the bytes of a header before it looks at them.
 */

enum {
	SOFT_FIFO_SIZE = 256 * 1024,
	SOFT_FIFOS_OFFSET = 4096,
	SOFT_SHARED_MEMORY_SIZE = SOFT_FIFOS_OFFSET + 2 * SOFT_FIFO_SIZE
};

/* One direction. Its producer also copies into the regions of its consumer. */
struct soft_direction {
	_Alignas(64) _Atomic uint64_t head; /* bytes ever put in */
	_Alignas(64) _Atomic uint64_t tail; /* bytes ever taken out */
	_Alignas(64) _Atomic uint32_t reader_sleeps;
	_Atomic uint32_t writer_sleeps;
	/* The slot of the grant that the producer copies by, plus 1; 0: none. */
	_Alignas(64) _Atomic uint32_t busy;
	/* See grant.c. The producer finds it in the consumer's memory. */
	_Alignas(64) _Atomic uint64_t witness;
	/* Serials of the grants that the consumer has given; 0: none. */
	_Alignas(64) _Atomic uint32_t valid[SOFT_MAX_GRANTS];
};

struct soft_fifo_layout {
	struct soft_direction directions[2];
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock would be local to one process");

_Static_assert(sizeof(struct soft_fifo_layout) <= SOFT_FIFOS_OFFSET,
	       "the fifos lie behind it");

/* Mapped once in a process, even if both ends are in it. */
struct soft_shared_memory {
	atomic_uint users;
	int fd;
	struct soft_fifo_layout *layout;
};

/* NULL: not available; the link then uses its socket. */
struct soft_shared_memory *pier_soft_create_shared_memory(void);

/* From an fd of a peer, which is borrowed. NULL: not suitable. */
struct soft_shared_memory *pier_soft_adopt_shared_memory(int fd);

void pier_soft_release_shared_memory(struct soft_shared_memory *memory);

/* Which shared FIFOs the engine polls. With the engine locked. */

void pier_soft_start_polling(struct soft_link *link);
void pier_soft_stop_polling(struct soft_link *link);

/* From now on the peer wakes this end. False: there is something in the FIFO already. */
bool pier_soft_sleep_on_fifo(struct soft_link *link);

bool pier_soft_sleep_on_fifos(struct soft_engine *engine);

/* Activates each end with bytes in its FIFO, or with room it waited for. */
void pier_soft_poll_fifos(struct soft_engine *engine, uint64_t now);

/* Wakes the peer if it set `sleeps`, one of the flags in the shared memory. */
void pier_soft_wake_peer(struct soft_link *link, _Atomic uint32_t *sleeps);

/* A grant that this end gave: grant.h. */
struct soft_given_grant {
	struct pier_list of_mr; /* in mr->grants */
	struct soft_link *link;
	struct soft_mr *mr; /* NULL: free */
	uint32_t serial;
};

/* A key of the peer, and the grant for it: grant.h. */
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
 * The second half of a link between two ends on one host. Frames go through the shared
 * FIFOs, and an end with a grant copies straight into and out of the regions of the
 * other. The socket carries control messages with their fds, and reports that the peer is
 * gone. With the engine locked.
 */
struct soft_fifo {
	struct soft_shared_memory *memory;
	/* The same if a queue pair talks to itself. */
	struct soft_direction *out, *in;
	uint64_t put, taken; /* this end's positions in them */

	struct soft_link *link;
	struct pier_list polled; /* in engine->polled while the engine polls the FIFOs */
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
 * out, in  the directions in which this end sends and receives: 0 and 1, or 1 and 0; both
 *	    are 0 if a queue pair talks to itself
 *
 * Consumes the memory, which may be NULL. NULL: no memory.
 */
struct soft_fifo *pier_soft_create_fifo(struct soft_shared_memory *memory, int out,
					int in);

/* Takes NULL. All grants must have been revoked and released. */
void pier_soft_free_fifo(struct soft_fifo *fifo);

/* As sendmsg(2) and recvmsg(2); EPROTO: the peer's position is impossible. */
ssize_t pier_soft_fifo_send(struct soft_link *link, struct soft_vector *vector);

ssize_t pier_soft_fifo_receive(struct soft_link *link, struct soft_vector *vector);

#endif

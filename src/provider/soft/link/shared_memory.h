/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SHARED_MEMORY_H
#define PIER_SOFT_SHARED_MEMORY_H

#include <stdatomic.h>
#include <stdint.h>

#include "provider/soft/limits.h"

/*
 * Memory that the two ends of a link on one host share: two rings of bytes, one for each
 * direction, and what goes with them.
 *
 * The peer may write to all of it at any time, and any value. Nothing in it is trusted:
 * each end keeps its own positions elsewhere, checks those of the peer each time it reads
 * them, and copies the bytes of a header before it looks at them.
 */

enum {
	SOFT_RING_SIZE = 256 * 1024,
	SOFT_RINGS_OFFSET = 4096,
	SOFT_SHARED_MEMORY_SIZE = SOFT_RINGS_OFFSET + 2 * SOFT_RING_SIZE
};

/* One direction. Its producer also copies into the regions of its consumer. */
struct soft_direction {
	_Alignas(64) _Atomic uint64_t head; /* bytes ever put in */
	_Alignas(64) _Atomic uint64_t tail; /* bytes ever taken out */
	_Alignas(64) _Atomic uint32_t reader_sleeps;
	_Atomic uint32_t writer_sleeps;
	/* The slot of the grant that the producer copies by, plus 1; 0: none. */
	_Alignas(64) _Atomic uint32_t busy;
	/* See peer_memory.c. The producer finds it in the consumer's memory. */
	_Alignas(64) _Atomic uint64_t witness;
	/* Serials of the grants that the consumer has given; 0: none. */
	_Alignas(64) _Atomic uint32_t valid[SOFT_MAX_GRANTS];
};

struct soft_ring_layout {
	struct soft_direction directions[2];
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock would be local to one process");
_Static_assert(sizeof(struct soft_ring_layout) <= SOFT_RINGS_OFFSET,
	       "the rings lie behind it");

/* Mapped once in a process, even if both ends are in it. */
struct soft_shared_memory {
	atomic_uint users;
	int fd;
	struct soft_ring_layout *layout;
};

/* NULL: not available; the link then uses its socket. */
struct soft_shared_memory *pier_soft_create_shared_memory(void);
/* From an fd of a peer, which is borrowed. NULL: not suitable. */
struct soft_shared_memory *pier_soft_adopt_shared_memory(int fd);
void pier_soft_release_shared_memory(struct soft_shared_memory *memory);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_PEER_MEMORY_H
#define PIER_SOFT_PEER_MEMORY_H

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
 * Whether that process has mapped the link's shared memory at `shared_memory`, as it
 * claims, and the kernel lets this one copy its memory. If not, `ring->unreachable` is
 * set.
 */
bool pier_soft_find_peer(struct soft_qp *qp, uint64_t shared_memory);
/*
 * Copies from the vector to `address` of the process that pier_soft_find_peer() found, or
 * back if the vector is written to, `length` bytes or fewer. Returns how many; 0: none,
 * because memory at either end has vanished, or the process cannot be reached.
 */
uint64_t pier_soft_copy_peer(struct soft_ring *ring, const struct soft_vector *vector,
			     uint64_t address, uint64_t length);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/dma-buf.h>
#include <string.h>
#include <sys/uio.h>

#include "peer_memory.h"
#include "auth.h"
#include "credentials.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/soft.h"
#include "ring.h"

/*
 * process_vm_writev(2) names a process by its pid. The process may end and its pid be
 * used again, or it may call execve(2) and have other memory at the same addresses. So a
 * copy begins with a byte of the link's shared memory, the *witness*, at the address
 * where the peer has mapped it. One call copies in order, into or out of one address
 * space, and stops at an address without memory: process_vm_rw_core() in the kernel. The
 * shared memory lies at a random address (shared_memory.c), where other address spaces
 * have nothing.
 *
 * The witness costs a fifth of a copy of 4 KiB, so it is left out of READs that follow at
 * once: at worst they read bytes that nobody was promised. A WRITE always has it, because
 * this thread can be stopped just before the system call, for longer than the peer waits
 * until it gives up the link and uses the memory for something else.
 */
#define WITNESS_NANOSECONDS 10000

/*
 * The kernel decides, security modules included, whether this process may trace the other
 * one: mm_access(). It does so again for each copy. The peer, which chooses the address,
 * cannot point at a third process: that does not have the value that is chosen here.
 */
bool pier_soft_find_peer(struct soft_qp *qp, uint64_t shared_memory)
{
	struct soft_ring *ring = qp->link.ring;
	_Atomic uint64_t *witness = &ring->out->witness;
	ptrdiff_t offset = (char *)witness - (char *)ring->memory->layout;
	uint64_t chosen, found = 0, address = shared_memory + (uint64_t)offset;
	struct iovec here = { &found, sizeof(found) };
	struct iovec there = { (void *)(uintptr_t)address, sizeof(found) };

	if (ring->unreachable || !pier_soft_random(&chosen, sizeof(chosen)))
		return false;
	ring->peer_pid = pier_soft_peer_pid(qp->link.tx_fd);
	ring->peer_witness = address;
	atomic_store(witness, chosen);
	ring->unreachable = ring->peer_pid <= 0 ||
			    process_vm_readv(ring->peer_pid, &here, 1, &there, 1, 0) !=
				    sizeof(found) ||
			    found != chosen;
	return !ring->unreachable;
}

uint64_t pier_soft_copy_peer(struct soft_ring *ring, const struct soft_vector *vector,
			     uint64_t address, uint64_t length)
{
	uint64_t now = pier_soft_now();
	/* How many elements to leave out: 1 if the witness was just there. */
	unsigned long known = vector->writes &&
			      now - ring->witnessed < WITNESS_NANOSECONDS;
	unsigned long count = 1 + (unsigned long)vector->count;
	struct iovec here[1 + SOFT_MAX_VECTOR], there[2];
	ssize_t copied;
	char byte = 0;

	here[0] = (struct iovec){ &byte, 1 };
	memcpy(here + 1, vector->parts, sizeof(here[0]) * (count - 1));
	there[0] = (struct iovec){ (void *)(uintptr_t)ring->peer_witness, 1 };
	there[1] = (struct iovec){ (void *)(uintptr_t)address,
				   length < vector->bytes ? length : vector->bytes };
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	if (vector->writes)
		copied = process_vm_readv(ring->peer_pid, here + known, count - known,
					  there + known, 2 - known, 0);
	else
		copied = process_vm_writev(ring->peer_pid, here + known, count - known,
					   there + known, 2 - known, 0);
	/* EPERM, ENOSYS or ESRCH: the next copy would fail as well. */
	ring->unreachable |= copied < 0 && errno != EFAULT;
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	if (copied <= 0 || known)
		return copied < 0 ? 0 : (uint64_t)copied;
	ring->witnessed = now;
	return (uint64_t)copied - 1;
}

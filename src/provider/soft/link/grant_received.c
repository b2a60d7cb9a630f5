/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/dma-buf.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "grant_received.h"
#include "auth.h"
#include "control.h"
#include "core/checked.h"
#include "link.h"
#include "provider/provider.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/regions/rlimits.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/vector.h"
#include "ring.h"
#include "socket.h"

/*
 * process_vm_writev(2) names a process by its pid. The process may end and its pid be
 * used again, or it may call execve(2) and have other memory at the same addresses. So a
 * copy begins with a byte of the link's shared memory, the *witness*, at the address
 * where the peer has mapped it. One call copies in order, into or out of one address
 * space, and stops at an address without memory: process_vm_rw_core() in the kernel. The
 * shared memory lies at a random address (ring.c), where other address spaces
 * have nothing.
 *
 * The witness costs a fifth of a copy of 4 KiB, so it is left out of READs that follow at
 * once: at worst they read bytes that nobody was promised. A WRITE always has it, because
 * this thread can be stopped just before the system call, for longer than the peer waits
 * until it gives up the link and uses the memory for something else.
 */
#define WITNESS_NANOSECONDS 10000

/*
 * Whether that process has mapped the link's shared memory at `shared_memory`, as it
 * claims, and the kernel lets this one copy its memory. If not, `ring->unreachable` is
 * set.
 */
/*
 * The kernel decides, security modules included, whether this process may trace the other
 * one: mm_access(). It does so again for each copy. The peer, which chooses the address,
 * cannot point at a third process: that does not have the value that is chosen here.
 */
static bool find_peer(struct soft_link *link, uint64_t shared_memory)
{
	struct soft_ring *ring = link->ring;
	_Atomic uint64_t *witness = &ring->out->witness;
	ptrdiff_t offset = (char *)witness - (char *)ring->memory->layout;
	uint64_t chosen, found = 0, address = shared_memory + (uint64_t)offset;
	struct iovec here = { &found, sizeof(found) };
	struct iovec there = { (void *)(uintptr_t)address, sizeof(found) };

	if (ring->unreachable || !pier_soft_random(&chosen, sizeof(chosen)))
		return false;
	ring->peer_pid = pier_soft_peer_pid(link->tx_fd);
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

/* A peer may be hostile: it may grant any file, and change it later. */

enum {
	/* Requests of this size justify a grant at the first use of a key. */
	ASK_BYTES = 64 * 1024,
	/* Of one peer; regions/rlimits.c has the bounds for all peers together. */
	MAX_PEER_SEGMENTS = 1024
};

#define DENIED_NANOSECONDS UINT64_C(1000000000)
#define MAX_PEER_BYTES	   (UINT64_C(1) << 40)

void pier_soft_release_grant(struct soft_received_grant *grant)
{
	struct soft_mr *mr = grant->mapped;

	if (mr) {
		pier_soft_release_mapping(grant->bytes, grant->segments);
		pier_soft_free_mr(mr);
	}
	memset(grant, 0, sizeof(*grant));
}

void pier_soft_release_grants(struct soft_ring *ring)
{
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		pier_soft_release_grant(&ring->received[i]);
}

void pier_soft_drop_revoked_grant(struct soft_link *link, uint32_t slot, uint32_t serial)
{
	struct soft_received_grant *grant = link->ring->received;

	for (int i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (grant[i].state == SOFT_GRANT_RECEIVED && grant[i].slot == slot &&
		    grant[i].serial == serial)
			pier_soft_release_grant(&grant[i]);
	}
}

static struct soft_received_grant *find_grant_of_key(struct soft_ring *ring, uint32_t key)
{
	struct soft_received_grant *grant = ring->received,
				   *last = &grant[ring->last_found];

	if (last->key == key && last->state != SOFT_GRANT_NONE)
		return last;
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (grant[i].key == key && grant[i].state != SOFT_GRANT_NONE) {
			ring->last_found = i;
			return &grant[i];
		}
	}
	return NULL;
}

/* A free entry, or the least recently used one. NULL: all wait for answers. */
static struct soft_received_grant *make_room_for_key(struct soft_link *link)
{
	struct soft_received_grant *grant = link->ring->received, *oldest = NULL;

	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (grant[i].state == SOFT_GRANT_NONE)
			return &grant[i];
		if (grant[i].state != SOFT_GRANT_REQUESTED &&
		    (!oldest || grant[i].used < oldest->used))
			oldest = &grant[i];
	}
	if (!oldest)
		return NULL;
	if (oldest->state == SOFT_GRANT_RECEIVED)
		pier_soft_send_grant_returned(link, oldest->slot, oldest->serial);
	pier_soft_release_grant(oldest);
	return oldest;
}

static void request_grant(struct soft_link *link, struct soft_received_grant *grant)
{
	if (pier_soft_send_grant_request(link, grant->key, !link->ring->unreachable))
		grant->state = SOFT_GRANT_REQUESTED;
}

struct soft_received_grant *pier_soft_find_grant(struct soft_link *link, uint32_t key,
						 uint64_t length)
{
	struct soft_ring *ring = link->ring;
	struct soft_received_grant *grant = find_grant_of_key(ring, key);
	bool known = grant;

	if (!known)
		grant = make_room_for_key(link);
	if (!grant)
		return NULL;
	grant->used = ++ring->uses;
	if (!known) {
		grant->key = key;
		grant->state = SOFT_GRANT_SEEN;
	}
	if (grant->state == SOFT_GRANT_RECEIVED)
		return grant;
	if (grant->state == SOFT_GRANT_SEEN && (known || length >= ASK_BYTES))
		request_grant(link, grant);
	else if (grant->state == SOFT_GRANT_DENIED &&
		 soft_engine_of(link)->now >= grant->denied_until)
		request_grant(link, grant);
	return NULL;
}

void pier_soft_reject_grant(struct soft_link *link, struct soft_received_grant *grant)
{
	uint32_t key = grant->key;

	pier_soft_send_grant_returned(link, grant->slot, grant->serial);
	pier_soft_release_grant(grant);
	grant->key = key;
	grant->state = SOFT_GRANT_DENIED;
	grant->denied_until = SOFT_NEVER;
}

/* 0: longer than a region can be. */
static uint64_t sum_segment_lengths(const struct soft_grant_message *message)
{
	uint64_t sum = 0, end;

	for (uint32_t i = 0; i < message->count; i++) {
		if (!pier_add_u64(sum, message->segments[i].length, &sum))
			return 0;
	}
	return pier_add_u64(message->iova, sum, &end) ? sum : 0;
}

/* No access to the peer's memory may end in a signal, whatever the peer does later. */
static bool is_safe_to_map(const struct soft_grant_message *message, const int *fds)
{
	for (uint32_t i = 0; i < message->fd_count; i++) {
		if (!pier_soft_is_fixed(fds[i]))
			return false;
	}
	for (uint32_t i = 0; i < message->count; i++) {
		if (!pier_soft_may_write(message->segments[i].offset,
					 message->segments[i].length))
			return false;
	}
	return pier_soft_may_touch_holes();
}

static bool is_below_peer_limits(const struct soft_ring *ring, uint64_t bytes,
				 uint32_t segments)
{
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		bytes += ring->received[i].bytes;
		segments += ring->received[i].segments;
	}
	return bytes <= MAX_PEER_BYTES && segments <= MAX_PEER_SEGMENTS;
}

/* NULL: they cannot be mapped. */
static struct soft_mr *map_segments(const struct soft_grant_message *message,
				    const int *fds)
{
	const int access = message->rights & IBV_ACCESS_REMOTE_WRITE
				   ? IBV_ACCESS_LOCAL_WRITE /* of the mapping */
				   : 0;
	struct pier_provider_part parts[SOFT_GRANT_SEGMENTS];
	struct soft_mr *mr;
	bool usable;

	for (uint32_t i = 0; i < message->count; i++)
		parts[i] = (struct pier_provider_part){
			.fd = fds[message->segments[i].fd],
			.offset = message->segments[i].offset,
			.length = message->segments[i].length,
		};
	mr = pier_soft_allocate_mr(parts, message->count, message->iova, access);
	usable = mr && pier_soft_attach_parts(mr, parts, message->count) == 0;
	for (uint32_t i = 0; usable && i < message->count; i++) {
		const struct soft_segment *segment = &mr->segments[i];

		madvise(segment->mapping, segment->mapping_size, MADV_DONTFORK);
		usable = segment->fd >= 0; /* otherwise fds are scarce */
	}
	if (mr && !usable)
		pier_soft_free_mr(mr);
	return usable ? mr : NULL;
}

static bool map_grant(const struct soft_ring *ring,
		      const struct soft_grant_message *message, const int *fds,
		      struct soft_received_grant *grant)
{
	uint64_t bytes = sum_segment_lengths(message);

	if (bytes == 0 || bytes > MAX_PEER_BYTES ||
	    !is_below_peer_limits(ring, bytes, message->count) || !ring->shares_fds ||
	    !is_safe_to_map(message, fds))
		return false;
	if (!pier_soft_reserve_mapping(bytes, message->count))
		return false;
	grant->mapped = map_segments(message, fds);
	if (!grant->mapped) {
		pier_soft_release_mapping(bytes, message->count);
		return false;
	}
	grant->bytes = bytes;
	grant->segments = message->count;
	return true;
}

/* The kernel checks the addresses when they are used. */
static struct soft_mr *list_addresses(const struct soft_grant_message *message)
{
	const struct pier_provider_part none = { .fd = -1 };
	struct soft_mr *mr = pier_soft_allocate_mr(&none, message->count, message->iova,
						   0);

	for (uint32_t i = 0; mr && i < message->count; i++) {
		struct soft_segment *segment = &mr->segments[i];

		segment->start = mr->ibv.length;
		segment->end = segment->start + message->segments[i].length;
		segment->fd = -1;
		segment->offset = message->segments[i].offset;
		mr->ibv.length = segment->end;
		mr->count++;
	}
	return mr;
}

static bool use_grant(struct soft_link *link, const struct soft_grant_message *message,
		      const int *fds, struct soft_received_grant *grant)
{
	grant->by_address = message->shared_memory;
	grant->rights = message->rights;
	if (!grant->by_address)
		return map_grant(link->ring, message, fds, grant);
	if (sum_segment_lengths(message) == 0 || !link->ring->shares_fds ||
	    !find_peer(link, message->shared_memory))
		return false;
	grant->mapped = list_addresses(message);
	return grant->mapped;
}

bool pier_soft_accept_grant(struct soft_link *link,
			    const struct soft_grant_message *message, const int *fds)
{
	struct soft_received_grant *grant = find_grant_of_key(link->ring, message->key);

	if (!grant || grant->state != SOFT_GRANT_REQUESTED)
		return false;
	grant->state = SOFT_GRANT_DENIED;
	grant->denied_until = message->never
				      ? SOFT_NEVER
				      : soft_engine_of(link)->now + DENIED_NANOSECONDS;
	if (message->count == 0)
		return true;
	if (!use_grant(link, message, fds, grant)) {
		pier_soft_send_grant_returned(link, message->slot, message->serial);
		return true;
	}
	grant->state = SOFT_GRANT_RECEIVED;
	grant->counted = message->counted;
	grant->slot = message->slot;
	grant->serial = message->serial;
	return true;
}

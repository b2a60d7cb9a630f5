/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <sys/mman.h>

#include "grant_received.h"
#include "control.h"
#include "core/checked.h"
#include "peer_memory.h"
#include "provider/provider.h"
#include "provider/soft/regions/dmabuf.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/regions/rlimits.h"
#include "provider/soft/soft.h"
#include "ring.h"

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

void pier_soft_drop_revoked_grant(struct soft_qp *qp, uint32_t slot, uint32_t serial)
{
	struct soft_received_grant *grant = qp->link.ring->received;

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
static struct soft_received_grant *make_room_for_key(struct soft_qp *qp)
{
	struct soft_received_grant *grant = qp->link.ring->received, *oldest = NULL;

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
		pier_soft_send_grant_returned(qp, oldest->slot, oldest->serial);
	pier_soft_release_grant(oldest);
	return oldest;
}

static void request_grant(struct soft_qp *qp, struct soft_received_grant *grant)
{
	if (pier_soft_send_grant_request(qp, grant->key, !qp->link.ring->unreachable))
		grant->state = SOFT_GRANT_REQUESTED;
}

struct soft_received_grant *pier_soft_find_grant(struct soft_qp *qp, uint32_t key,
						 uint64_t length)
{
	struct soft_ring *ring = qp->link.ring;
	struct soft_received_grant *grant = find_grant_of_key(ring, key);
	bool known = grant;

	if (!known)
		grant = make_room_for_key(qp);
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
		request_grant(qp, grant);
	else if (grant->state == SOFT_GRANT_DENIED &&
		 soft_context_of(qp)->engine.now >= grant->denied_until)
		request_grant(qp, grant);
	return NULL;
}

void pier_soft_reject_grant(struct soft_qp *qp, struct soft_received_grant *grant)
{
	uint32_t key = grant->key;

	pier_soft_send_grant_returned(qp, grant->slot, grant->serial);
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

static bool use_grant(struct soft_qp *qp, const struct soft_grant_message *message,
		      const int *fds, struct soft_received_grant *grant)
{
	grant->by_address = message->shared_memory;
	grant->rights = message->rights;
	if (!grant->by_address)
		return map_grant(qp->link.ring, message, fds, grant);
	if (sum_segment_lengths(message) == 0 || !qp->link.ring->shares_fds ||
	    !pier_soft_find_peer(qp, message->shared_memory))
		return false;
	grant->mapped = list_addresses(message);
	return grant->mapped;
}

bool pier_soft_accept_grant(struct soft_qp *qp, const struct soft_grant_message *message,
			    const int *fds)
{
	struct soft_received_grant *grant = find_grant_of_key(qp->link.ring,
							      message->key);

	if (!grant || grant->state != SOFT_GRANT_REQUESTED)
		return false;
	grant->state = SOFT_GRANT_DENIED;
	grant->denied_until = message->never ? SOFT_NEVER
					     : soft_context_of(qp)->engine.now +
						       DENIED_NANOSECONDS;
	if (message->count == 0)
		return true;
	if (!use_grant(qp, message, fds, grant)) {
		pier_soft_send_grant_returned(qp, message->slot, message->serial);
		return true;
	}
	grant->state = SOFT_GRANT_RECEIVED;
	grant->counted = message->counted;
	grant->slot = message->slot;
	grant->serial = message->serial;
	return true;
}

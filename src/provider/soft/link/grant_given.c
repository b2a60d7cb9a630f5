/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>

#include "grant_given.h"
#include "control.h"
#include "core/fd.h"
#include "core/log.h"
#include "link.h"
#include "provider/soft/engine.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/regions/segments.h"
#include "ring.h"
#include "socket.h"

/*
 * An fd gives its holder the right to read and to write every byte of the file, because
 * an fd that was opened for reading can be opened again through /proc/self/fd; unless the
 * file is sealed against new writers (F_SEAL_FUTURE_WRITE in fcntl(2)), which leaves the
 * right to read. So fds are given only for a region that consists of whole files whose
 * size is final, and that the peer may read and write, or only read if they are sealed
 * so. For other regions the peer gets the addresses, by which the kernel copies
 * (grant_received.c). An address gives no right: the kernel lets a process
 * copy all memory of another one, or none. All other requests go through the ring, where
 * this end checks them.
 *
 * There is one difference from hardware. A hostile peer can keep its fd and its mapping
 * after the region was deregistered, since Linux cannot revoke either of them, and it can
 * go on copying by address. So both are given only to a process that could take the same
 * fd out of /proc/PID/fd at any time, and trace this one; see pier_soft_may_have_fds().
 */

enum {
	REMOTE = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	SPINS = 1000,
	/* A copy takes about 0.1 ms, but a peer may be stopped in the middle of one. */
	DEADLINE_NANOSECONDS = 1000000000
};

/* How many bytes of the file, from its first one on, belong to the region. */
static uint64_t covered_bytes(const struct soft_mr *mr, int fd)
{
	uint64_t covered = 0, before;

	do {
		before = covered;
		for (uint32_t i = 0; i < mr->count; i++) {
			const struct soft_segment *segment = &mr->segments[i];
			uint64_t end = segment->offset + (segment->end - segment->start);

			if (segment->fd == fd && segment->offset <= covered &&
			    end > covered)
				covered = end;
		}
	} while (covered > before);
	return covered;
}

static bool has_whole_files(const struct soft_mr *mr)
{
	for (uint32_t i = 0; i < mr->count; i++) {
		const struct soft_segment *segment = &mr->segments[i];

		if (segment->fd < 0 || !segment->fixed)
			return false;
		if (!segment->fd_shared &&
		    segment->file_size - covered_bytes(mr, segment->fd) > mr->padding)
			return false;
	}
	return true;
}

/* The mapping of a dma-buf has no pages that another process could reach. */
static bool has_addresses(const struct soft_mr *mr)
{
	for (uint32_t i = 0; i < mr->count; i++) {
		if (mr->segments[i].dmabuf)
			return false;
	}
	return true;
}

static bool is_grantable(const struct soft_mr *mr, bool by_address)
{
	return mr->count <= SOFT_GRANT_SEGMENTS &&
	       (has_whole_files(mr) || (by_address && has_addresses(mr)));
}

/* Memory windows are not granted: a request names the key of a region. */
static uint32_t find_rights(const struct soft_link *link, const struct soft_mr *mr)
{
	if (mr->ibv.pd != link->end->pd || link->closing)
		return 0;
	return (uint32_t)(mr->access & (int)link->end->attr->qp_access_flags & REMOTE);
}

/* Whether the fds of whole files give the peer no other right than these. */
static bool fds_give_only(const struct soft_mr *mr, uint32_t rights)
{
	for (uint32_t i = 0; rights != REMOTE && i < mr->count; i++) {
		if (rights != IBV_ACCESS_REMOTE_READ || !mr->segments[i].readonly)
			return false;
	}
	return true;
}

/* Of a grantable region. False: not with these rights. */
static bool choose_kind(const struct soft_link *link, const struct soft_mr *mr,
			bool by_address, struct soft_grant_message *message)
{
	message->rights = find_rights(link, mr);
	if (has_whole_files(mr) && fds_give_only(mr, message->rights))
		return true;
	message->shared_memory = (uintptr_t)link->ring->memory->layout;
	return message->rights && by_address;
}

/* The first segment of a file adds the fd, and later ones refer to it. */
static uint32_t find_fd(const struct soft_mr *mr,
			const struct soft_grant_message *message, uint32_t index)
{
	for (uint32_t i = 0; i < index; i++) {
		if (mr->segments[i].fd == mr->segments[index].fd)
			return message->segments[i].fd;
	}
	return message->fd_count;
}

/*
 * The peer gets an open file description of its own. With ours it could change the flags
 * and the offset of the application's fd.
 */
static int reopen_file(int fd, uint32_t rights)
{
	int mode = rights & IBV_ACCESS_REMOTE_WRITE ? O_RDWR : O_RDONLY;
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, mode | O_CLOEXEC);
}

/* False: a file cannot be opened. The caller closes `fds` in any case. */
static bool describe_segments(const struct soft_mr *mr,
			      struct soft_grant_message *message, int *fds)
{
	message->count = 0;
	message->fd_count = 0;
	for (uint32_t i = 0; i < mr->count; i++) {
		const struct soft_segment *segment = &mr->segments[i];

		message->segments[i].length = segment->end - segment->start;
		message->count++;
		if (message->shared_memory) {
			message->segments[i].offset = (uintptr_t)segment->memory;
			continue;
		}
		message->segments[i].offset = segment->offset;
		message->segments[i].fd = find_fd(mr, message, i);
		if (message->segments[i].fd < message->fd_count)
			continue;
		fds[message->fd_count] = reopen_file(segment->fd, message->rights);
		if (fds[message->fd_count] < 0)
			return false;
		message->fd_count++;
	}
	return true;
}

static bool find_slot(const struct soft_ring *ring, uint32_t *ret_slot)
{
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (!ring->given[i].mr) {
			*ret_slot = i;
			return true;
		}
	}
	return false;
}

static bool give_grant(struct soft_link *link, struct soft_mr *mr,
		       struct soft_grant_message *message)
{
	struct soft_ring *ring = link->ring;
	struct soft_given_grant *grant;
	int fds[SOFT_GRANT_SEGMENTS];
	bool sent;

	/* Checked each time, because this process may have become undumpable since. */
	if (!find_slot(ring, &message->slot) || !pier_soft_may_have_fds(link->tx_fd))
		return false;
	grant = &ring->given[message->slot];
	message->serial = ++ring->next_serial ? ring->next_serial : ++ring->next_serial;
	message->iova = mr->iova;
	message->counted = mr->counter;
	atomic_store(&ring->in->valid[message->slot], message->serial);
	sent = describe_segments(mr, message, fds) &&
	       pier_soft_send_grant(link, message, fds);
	for (uint32_t i = 0; i < message->fd_count; i++)
		pier_close_fd(fds[i]);
	if (!sent) {
		atomic_store(&ring->in->valid[message->slot], 0);
		return false;
	}
	grant->link = link;
	grant->mr = mr;
	grant->serial = message->serial;
	pier_list_append(&mr->grants, &grant->of_mr);
	return true;
}

void pier_soft_answer_grant_request(struct soft_link *link, uint32_t key, bool by_address)
{
	struct soft_mr *mr = pier_soft_find_key(soft_pd(link->end->pd)->mrs, key);
	struct soft_grant_message message = { .key = key }, denied = { .key = key };

	if (mr && link->ring->shares_fds && is_grantable(mr, by_address) &&
	    choose_kind(link, mr, by_address, &message) && give_grant(link, mr, &message))
		return;
	/* The memory of a region does not change while it has its key. */
	denied.never = mr && !is_grantable(mr, by_address);
	pier_soft_send_grant(link, &denied, NULL);
}

/*
 * The peer sets `busy` and then reads `valid`; this end clears `valid` and then reads
 * `busy`. All four are sequentially consistent, so either the peer sees that its grant
 * is gone, or this end sees the copy. A peer that has hung up does not copy. False: it
 * does not stop.
 */
static bool wait_until_unused(const struct soft_link *link, uint32_t slot)
{
	_Atomic uint32_t *busy = &link->ring->in->busy;
	uint64_t deadline = pier_soft_now() + DEADLINE_NANOSECONDS;

	for (uint64_t i = 0; atomic_load(busy) == slot + 1; i++) {
		if (i < SPINS)
			continue;
		if (pier_soft_has_hung_up(link->rx_fd))
			return true;
		if (pier_soft_now() > deadline)
			return false;
		sched_yield();
	}
	return true;
}

static bool revoke_grant(struct soft_link *link, struct soft_given_grant *grant)
{
	struct soft_ring *ring = link->ring;
	uint32_t slot = (uint32_t)(grant - ring->given);

	atomic_store(&ring->in->valid[slot], 0);
	pier_list_remove(&grant->of_mr);
	grant->mr = NULL;
	if (ring->unresponsive || wait_until_unused(link, slot))
		return !ring->unresponsive;
	ring->unresponsive = true;
	pier_warning("soft0: QP %#x: QP %#x was stopped while it copied into a region",
		     link->end->qpn, link->end->attr->dest_qp_num);
	return false;
}

bool pier_soft_take_returned_grant(struct soft_link *link, uint32_t slot, uint32_t serial)
{
	struct soft_ring *ring = link->ring;
	uint32_t index = slot % SOFT_MAX_GRANTS;
	struct soft_given_grant *grant = &ring->given[index];

	if (!grant->mr || grant->serial != serial)
		return true;
	/* No wait: an honest peer ends its copy before it returns the grant. */
	if (atomic_load(&ring->in->busy) == index + 1)
		ring->unresponsive = true;
	return revoke_grant(link, grant);
}

void pier_soft_revoke_region_grants(struct soft_mr *mr)
{
	while (!pier_list_empty(&mr->grants)) {
		struct soft_given_grant *grant = pier_container_of(
			mr->grants.next, struct soft_given_grant, of_mr);
		struct soft_link *link = grant->link;
		uint32_t slot = (uint32_t)(grant - link->ring->given);

		if (revoke_grant(link, grant))
			pier_soft_send_grant_revoked(link, slot, grant->serial);
		else
			soft_engine_of(link)->ops->lose_link(link);
	}
}

void pier_soft_revoke_link_grants(struct soft_link *link)
{
	struct soft_ring *ring = link->ring;

	for (uint32_t i = 0; ring && i < SOFT_MAX_GRANTS; i++) {
		if (!ring->given[i].mr)
			continue;
		if (revoke_grant(link, &ring->given[i]))
			pier_soft_send_grant_revoked(link, i, ring->given[i].serial);
	}
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "grant.h"
#include "auth.h"
#include "core/checked.h"
#include "core/fd.h"
#include "core/log.h"
#include "link.h"
#include "provider/provider.h"
#include "provider/soft/engine.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/vector.h"
#include "fifo.h"
#include "socket.h"

/*
 * An fd gives its holder the right to read and to write every byte of the file, because
 * an fd that was opened for reading can be opened again through /proc/self/fd; unless the
 * file is sealed against new writers (F_SEAL_FUTURE_WRITE in fcntl(2)), which leaves the
 * right to read. So fds are given only for a region that consists of whole files whose
 * size is final, and that the peer may read and write, or only read if they are sealed
 * so. For other regions the peer gets the addresses, by which the kernel copies. An
 * address gives no right: the kernel lets a process copy all memory of another one, or
 * none. All other requests go through the FIFO, where this end checks them.
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
	/* Memory windows are not granted: a request names the key of a region. */
	if (mr->ibv.pd == link->end->pd && !link->closing)
		message->rights = (uint32_t)mr->access &
				  link->end->attr->qp_access_flags & REMOTE;
	if (has_whole_files(mr) && fds_give_only(mr, message->rights))
		return true;
	message->shared_memory = (uintptr_t)link->fifo->memory->layout;
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

static bool find_slot(const struct soft_fifo *fifo, uint32_t *ret_slot)
{
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (!fifo->given[i].mr) {
			*ret_slot = i;
			return true;
		}
	}
	return false;
}

static bool give_grant(struct soft_link *link, struct soft_mr *mr,
		       struct soft_grant_message *message)
{
	struct soft_fifo *fifo = link->fifo;
	struct soft_given_grant *grant;
	int fds[SOFT_GRANT_SEGMENTS];
	bool sent;

	/* Checked each time, because this process may have become undumpable since. */
	if (!find_slot(fifo, &message->slot) || !pier_soft_may_have_fds(link->tx_fd))
		return false;
	grant = &fifo->given[message->slot];
	message->serial = ++fifo->next_serial ? fifo->next_serial : ++fifo->next_serial;
	message->iova = mr->iova;
	message->counted = mr->counter || link->end->counted;
	atomic_store(&fifo->in->valid[message->slot], message->serial);
	sent = describe_segments(mr, message, fds) &&
	       pier_soft_send_grant(link, message, fds);
	for (uint32_t i = 0; i < message->fd_count; i++)
		pier_close_fd(fds[i]);
	if (!sent) {
		atomic_store(&fifo->in->valid[message->slot], 0);
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

	if (mr && link->fifo->shares_fds && is_grantable(mr, by_address) &&
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
	_Atomic uint32_t *busy = &link->fifo->in->busy;
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
	struct soft_fifo *fifo = link->fifo;
	uint32_t slot = (uint32_t)(grant - fifo->given);

	atomic_store(&fifo->in->valid[slot], 0);
	pier_list_remove(&grant->of_mr);
	grant->mr = NULL;
	if (fifo->unresponsive || wait_until_unused(link, slot))
		return !fifo->unresponsive;
	fifo->unresponsive = true;
	pier_warning("soft0: QP %#x: peer QP %#x did not finish a direct copy within "
		     "1 s; closing the connection",
		     link->end->qpn, link->end->attr->dest_qp_num);
	return false;
}

bool pier_soft_take_returned_grant(struct soft_link *link, uint32_t slot, uint32_t serial)
{
	struct soft_fifo *fifo = link->fifo;
	uint32_t index = slot % SOFT_MAX_GRANTS;
	struct soft_given_grant *grant = &fifo->given[index];

	if (!grant->mr || grant->serial != serial)
		return true;
	/* No wait: an honest peer ends its copy before it returns the grant. */
	if (atomic_load(&fifo->in->busy) == index + 1)
		fifo->unresponsive = true;
	return revoke_grant(link, grant);
}

void pier_soft_revoke_region_grants(struct soft_mr *mr)
{
	while (!pier_list_empty(&mr->grants)) {
		struct soft_given_grant *grant = pier_container_of(
			mr->grants.next, struct soft_given_grant, of_mr);
		struct soft_link *link = grant->link;
		uint32_t slot = (uint32_t)(grant - link->fifo->given);

		if (revoke_grant(link, grant))
			pier_soft_send_serial(link, SOFT_CONTROL_REVOKED, slot,
					      grant->serial);
		else
			soft_engine_of(link)->ops->lose_link(link);
	}
}

void pier_soft_revoke_link_grants(struct soft_link *link)
{
	struct soft_fifo *fifo = link->fifo;

	for (uint32_t i = 0; fifo && i < SOFT_MAX_GRANTS; i++) {
		if (!fifo->given[i].mr)
			continue;
		if (revoke_grant(link, &fifo->given[i]))
			pier_soft_send_serial(link, SOFT_CONTROL_REVOKED, i,
					      fifo->given[i].serial);
	}
}

/*
 * process_vm_writev(2) names a process by its pid. The process may end and its pid be
 * used again, or it may call execve(2) and have other memory at the same addresses. So a
 * copy begins with a byte of the link's shared memory, the *witness*, at the address
 * where the peer has mapped it. One call copies in order, into or out of one address
 * space, and stops at an address without memory: process_vm_rw_core() in the kernel. The
 * shared memory lies at a random address (fifo.c), where other address spaces have
 * nothing.
 *
 * The witness costs a fifth of a copy of 4 KiB, so it is left out of READs that follow at
 * once: at worst they read bytes that nobody was promised. A WRITE always has it, because
 * this thread can be stopped just before the system call, for longer than the peer waits
 * until it gives up the link and uses the memory for something else.
 */
#define WITNESS_NANOSECONDS 10000

/*
 * Whether that process has mapped the link's shared memory at `shared_memory`, as it
 * claims, and the kernel lets this one copy its memory. If not, `FIFO->unreachable` is
 * set.
 *
 * The kernel decides, security modules included, whether this process may trace the other
 * one: mm_access(). It does so again for each copy. The peer, which chooses the address,
 * cannot point at a third process: that does not have the value that is chosen here.
 */
static bool find_peer(struct soft_link *link, uint64_t shared_memory)
{
	struct soft_fifo *fifo = link->fifo;
	_Atomic uint64_t *witness = &fifo->out->witness;
	ptrdiff_t offset = (char *)witness - (char *)fifo->memory->layout;
	uint64_t chosen, found = 0, address = shared_memory + (uint64_t)offset;
	struct iovec here = { &found, sizeof(found) };
	struct iovec there = { (void *)(uintptr_t)address, sizeof(found) };

	if (fifo->unreachable || !pier_soft_random(&chosen, sizeof(chosen)))
		return false;
	fifo->peer_pid = pier_soft_peer_pid(link->tx_fd);
	fifo->peer_witness = address;
	atomic_store(witness, chosen);
	fifo->unreachable = fifo->peer_pid <= 0 ||
			    process_vm_readv(fifo->peer_pid, &here, 1, &there, 1, 0) !=
				    sizeof(found) ||
			    found != chosen;
	return !fifo->unreachable;
}

uint64_t pier_soft_copy_peer(struct soft_fifo *fifo, const struct soft_vector *vector,
			     uint64_t address, uint64_t length)
{
	uint64_t now = pier_soft_now();
	/* How many elements to leave out: 1 if the witness was just there. */
	unsigned long known = vector->writes &&
			      now - fifo->witnessed < WITNESS_NANOSECONDS;
	unsigned long count = 1 + (unsigned long)vector->count;
	struct iovec here[1 + SOFT_MAX_VECTOR], there[2];
	ssize_t copied;
	char byte = 0;

	here[0] = (struct iovec){ &byte, 1 };
	memcpy(here + 1, vector->parts, sizeof(here[0]) * (count - 1));
	there[0] = (struct iovec){ (void *)(uintptr_t)fifo->peer_witness, 1 };
	there[1] = (struct iovec){ (void *)(uintptr_t)address,
				   length < vector->bytes ? length : vector->bytes };
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	if (vector->writes)
		copied = process_vm_readv(fifo->peer_pid, here + known, count - known,
					  there + known, 2 - known, 0);
	else
		copied = process_vm_writev(fifo->peer_pid, here + known, count - known,
					   there + known, 2 - known, 0);
	/* EPERM, ENOSYS or ESRCH: the next copy would fail as well. */
	fifo->unreachable |= copied < 0 && errno != EFAULT;
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	if (copied <= 0 || known)
		return copied < 0 ? 0 : (uint64_t)copied;
	fifo->witnessed = now;
	return (uint64_t)copied - 1;
}

/* A peer may be hostile: it may grant any file, and change it later. */
enum {
	/* Requests of this size justify a grant at the first use of a key. */
	ASK_BYTES = 64 * 1024,
	/* Of one peer; regions/segments.c has the bounds for all peers together. */
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

void pier_soft_release_grants(struct soft_fifo *fifo)
{
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		pier_soft_release_grant(&fifo->received[i]);
}

void pier_soft_drop_revoked_grant(struct soft_link *link, uint32_t slot, uint32_t serial)
{
	struct soft_received_grant *grant = link->fifo->received;

	for (int i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (grant[i].state == SOFT_GRANT_RECEIVED && grant[i].slot == slot &&
		    grant[i].serial == serial)
			pier_soft_release_grant(&grant[i]);
	}
}

static struct soft_received_grant *find_grant_of_key(struct soft_fifo *fifo, uint32_t key)
{
	struct soft_received_grant *grant = fifo->received,
				   *last = &grant[fifo->last_found];

	if (last->key == key && last->state != SOFT_GRANT_NONE)
		return last;
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (grant[i].key == key && grant[i].state != SOFT_GRANT_NONE) {
			fifo->last_found = i;
			return &grant[i];
		}
	}
	return NULL;
}

/* A free entry, or the least recently used one. NULL: all wait for answers. */
static struct soft_received_grant *make_room_for_key(struct soft_link *link)
{
	struct soft_received_grant *grant = link->fifo->received, *oldest = NULL;

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
		pier_soft_send_serial(link, SOFT_CONTROL_RETURNED, oldest->slot,
				      oldest->serial);
	pier_soft_release_grant(oldest);
	return oldest;
}

static void request_grant(struct soft_link *link, struct soft_received_grant *grant)
{
	if (pier_soft_send_grant_request(link, grant->key, !link->fifo->unreachable))
		grant->state = SOFT_GRANT_REQUESTED;
}

struct soft_received_grant *pier_soft_find_grant(struct soft_link *link, uint32_t key,
						 uint64_t length)
{
	struct soft_fifo *fifo = link->fifo;
	struct soft_received_grant *grant = find_grant_of_key(fifo, key);
	bool known = grant;

	if (!known)
		grant = make_room_for_key(link);
	if (!grant)
		return NULL;
	grant->used = ++fifo->uses;
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

	pier_soft_send_serial(link, SOFT_CONTROL_RETURNED, grant->slot, grant->serial);
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

static bool is_below_peer_limits(const struct soft_fifo *fifo, uint64_t bytes,
				 uint32_t segments)
{
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		bytes += fifo->received[i].bytes;
		segments += fifo->received[i].segments;
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

static bool map_grant(const struct soft_fifo *fifo,
		      const struct soft_grant_message *message, const int *fds,
		      struct soft_received_grant *grant)
{
	uint64_t bytes = sum_segment_lengths(message);

	if (bytes == 0 || bytes > MAX_PEER_BYTES ||
	    !is_below_peer_limits(fifo, bytes, message->count) || !fifo->shares_fds ||
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
		return map_grant(link->fifo, message, fds, grant);
	if (sum_segment_lengths(message) == 0 || !link->fifo->shares_fds ||
	    !find_peer(link, message->shared_memory))
		return false;
	grant->mapped = list_addresses(message);
	return grant->mapped;
}

bool pier_soft_accept_grant(struct soft_link *link,
			    const struct soft_grant_message *message, const int *fds)
{
	struct soft_received_grant *grant = find_grant_of_key(link->fifo, message->key);

	if (!grant || grant->state != SOFT_GRANT_REQUESTED)
		return false;
	grant->state = SOFT_GRANT_DENIED;
	grant->denied_until = message->never
				      ? SOFT_NEVER
				      : soft_engine_of(link)->now + DENIED_NANOSECONDS;
	if (message->count == 0)
		return true;
	if (!use_grant(link, message, fds, grant)) {
		pier_soft_send_serial(link, SOFT_CONTROL_RETURNED, message->slot,
				      message->serial);
		return true;
	}
	grant->state = SOFT_GRANT_RECEIVED;
	grant->counted = message->counted;
	grant->slot = message->slot;
	grant->serial = message->serial;
	return true;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "direct.h"
#include "core/checked.h"
#include "provider/soft/link/grant_received.h"
#include "provider/soft/link/peer_memory.h"
#include "provider/soft/link/ring.h"
#include "provider/soft/link/stream.h"
#include "provider/soft/regions/copy.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/soft.h"

/*
 * By a grant this end copies into and out of a region of the peer, which is mapped here
 * or reached by its addresses. If the peer needs no notice of it, that is all, and a SKIP
 * frame later says that some requests were done. For immediate data and where writes are
 * counted, a header follows through the ring.
 *
 * An earlier request may have to be sent again, or may be refused, and a peer that sees
 * bytes of a later request in its memory takes all earlier ones for done. So a request
 * is copied directly only if all requests before it are done, or were copied directly
 * themselves and cannot be delayed.
 */

enum {
	/* The longest copy that a peer waits for when it revokes a grant. */
	CHUNK_BYTES = 1024 * 1024,
	/* Requests of this size wait for earlier ones, to be copied directly. */
	WAIT_BYTES = 32 * 1024,
	/* A copy has no answer, so this end checks so often whether the peer is there. */
	CHECK_NANOSECONDS = 10000,
	/* The least cost of a request, in bytes that could be copied instead. */
	REQUEST_COST = 4096
};

/* A request outside the region's bounds or rights is the peer's to refuse. */
static bool is_allowed(const struct soft_received_grant *grant,
		       const struct soft_send *send)
{
	const struct soft_mr *mr = grant->mapped;
	uint32_t right = send->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
							  : IBV_ACCESS_REMOTE_WRITE;

	return (grant->rights & right) && send->address >= mr->iova &&
	       pier_range_fits(send->address - mr->iova, send->length, mr->ibv.length);
}

/* Lists the part to copy now, from `copied` on. False: memory of this end is gone. */
static bool list_local_elements(struct soft_qp *qp, const struct soft_send *send,
				struct soft_vector *ret_vector, uint64_t limit)
{
	bool reads = send->opcode == IBV_WR_RDMA_READ;
	uint64_t left = send->length - send->copied;

	if (limit > left)
		limit = left;
	pier_soft_vector_init(ret_vector, reads);
	ret_vector->streams = reads;
	if (send->flags & IBV_SEND_INLINE) {
		pier_soft_vector_add(ret_vector, send->inline_data + send->copied, limit);
		return true;
	}
	return pier_soft_vector_add_sges(ret_vector, qp, send->sges, send->sge_count,
					 send->copied, limit,
					 reads ? IBV_ACCESS_LOCAL_WRITE : 0);
}

static struct soft_extent extent_in_segment(const struct soft_segment *segment,
					    uint64_t offset, uint64_t length)
{
	uint64_t skip = offset - segment->start, rest = segment->end - offset;

	return (struct soft_extent){
		.memory = segment->memory ? segment->memory + skip : NULL,
		.fd = segment->fd,
		.offset = segment->offset + skip,
		.length = length < rest ? length : rest,
	};
}

/*
 * False: the peer revoked the grant. wait_until_unused() in grant_given.c is the other
 * half.
 *
 * Order, by the memory model of C11 (7.17.3). This end marks itself busy and then reads
 * whether the grant is valid; the owner makes it invalid and then reads whether this end
 * is busy. All four are sequentially consistent. So in their total order either this end
 * reads that the grant is gone, and copies nothing, or the owner reads `busy` and waits.
 * The load of `valid` acquires: no byte is copied before it. The store that ends the copy
 * releases: an owner that reads it has all bytes that were copied before.
 */
static bool begin_copy(struct soft_ring *ring, const struct soft_received_grant *grant)
{
	atomic_store(&ring->out->busy, grant->slot + 1);
	if (atomic_load(&ring->out->valid[grant->slot]) == grant->serial)
		return true;
	atomic_store(&ring->out->busy, 0);
	return false;
}

/*
 * -1 with EFAULT: memory of this end is gone. 0: the grant is of no use. Where a copy by
 * address ends early, the ring finds out whose memory it is.
 */
static ssize_t copy_extent(struct soft_ring *ring,
			   const struct soft_received_grant *grant,
			   struct soft_vector *vector, const struct soft_extent *extent)
{
	if (grant->by_address)
		return (ssize_t)pier_soft_copy_peer(ring, vector, extent->offset,
						    extent->length);
	return pier_soft_copy_synced(vector, extent);
}

/* A small request takes time, too. */
static void charge_budget(struct soft_send_queue *sq, uint64_t bytes)
{
	uint64_t cost = bytes > REQUEST_COST ? bytes : REQUEST_COST;

	sq->budget -= cost < sq->budget ? cost : sq->budget;
}

static enum soft_direct_result copy_chunk(struct soft_qp *qp, struct soft_send *send,
					  struct soft_received_grant *grant)
{
	struct soft_ring *ring = qp->link.ring;
	uint64_t offset = send->address - grant->mapped->iova + send->copied;
	const struct soft_segment *segment = pier_soft_find_segment(grant->mapped,
								    offset);
	struct soft_extent extent = extent_in_segment(segment, offset,
						      send->length - send->copied);
	struct soft_vector vector;
	ssize_t copied;

	if (!list_local_elements(qp, send, &vector, CHUNK_BYTES))
		return SOFT_DIRECT_FAILED;
	if (!begin_copy(ring, grant)) {
		pier_soft_release_grant(grant);
		return SOFT_DIRECT_UNUSED;
	}
	copied = copy_extent(ring, grant, &vector, &extent);
	atomic_store(&ring->out->busy, 0);
	if (copied < 0 && errno == EFAULT)
		return SOFT_DIRECT_FAILED;
	if (copied <= 0) {
		pier_soft_reject_grant(qp, grant);
		return SOFT_DIRECT_UNUSED;
	}
	send->copied += (uint64_t)copied;
	charge_budget(&qp->sq, (uint64_t)copied);
	return SOFT_DIRECT_LATER;
}

static enum soft_direct_result copy_chunks(struct soft_qp *qp, struct soft_send *send,
					   struct soft_received_grant *grant)
{
	enum soft_direct_result result = SOFT_DIRECT_LATER;

	while (result == SOFT_DIRECT_LATER && send->copied < send->length &&
	       qp->sq.budget > 0)
		result = copy_chunk(qp, send, grant);
	if (result == SOFT_DIRECT_UNUSED)
		send->copied = 0;
	return send->copied == send->length ? SOFT_DIRECT_DONE : result;
}

static bool is_one_sided(const struct soft_send *send)
{
	return send->opcode == IBV_WR_RDMA_READ || send->opcode == IBV_WR_RDMA_WRITE ||
	       send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* True: what it sent is received to the end, and then the link is lost. */
static bool peer_has_gone(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	uint64_t now = soft_context_of(qp)->engine.now;

	if (now - link->ring->last_checked < CHECK_NANOSECONDS)
		return false;
	link->ring->last_checked = now;
	if (pier_soft_has_hung_up(link->rx_fd))
		link->hung_up = link->readable = true;
	return link->hung_up;
}

static bool needs_header(const struct soft_send_queue *sq, const struct soft_send *send,
			 const struct soft_received_grant *grant)
{
	return send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || sq->done != sq->queued ||
	       (grant->counted && send->opcode == IBV_WR_RDMA_WRITE);
}

enum soft_direct_result pier_soft_copy_directly(struct soft_qp *qp,
						struct soft_send *send)
{
	struct soft_send_queue *sq = &qp->sq;
	enum soft_direct_result result;
	struct soft_received_grant *grant;
	bool header;

	if (!qp->link.ring || !is_one_sided(send) || send->length == 0)
		return SOFT_DIRECT_UNUSED;
	if (send->copied == send->length) /* only the header is sent again */
		return SOFT_DIRECT_DONE;
	grant = pier_soft_find_grant(qp, send->key, send->length);
	/* A request that went through the ring stays there. */
	if (!grant || sq->queued < sq->barrier || !is_allowed(grant, send)) {
		send->copied = 0;
		return SOFT_DIRECT_UNUSED;
	}
	if (sq->done < sq->barrier)
		return send->length < WAIT_BYTES ? SOFT_DIRECT_UNUSED : SOFT_DIRECT_LATER;
	/* The memory of a peer that is gone can still be mapped, but has no address. */
	if (!grant->by_address && peer_has_gone(qp))
		return SOFT_DIRECT_LATER;
	header = needs_header(sq, send, grant);
	result = copy_chunks(qp, send, grant);
	return result == SOFT_DIRECT_DONE && !header ? SOFT_DIRECT_SILENT : result;
}

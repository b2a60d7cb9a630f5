/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/dma-buf.h>

#include "core/checked.h"
#include "soft.h"

/*
 * WRITEs and READs without the peer's help: into and out of a region of its that we
 * have leave for and that is mapped here. Where the peer does not care, that is all,
 * and it learns later that some requests were done; else, for immediate data and where
 * writes are counted, a header follows by the ring and says where the bytes are.
 *
 * An earlier request may have to be sent again or be refused, and a peer that sees
 * bytes of a later one in its memory takes all earlier ones for done. So a request is
 * placed only when all before it are done, or are of those that were placed and
 * cannot be put off.
 */

enum {
	/* What a peer that takes its leave back waits for at most. */
	CHUNK_BYTES = 1024 * 1024,
	/* From here on it is worth waiting for what was sent before. */
	WAIT_BYTES = 32 * 1024,
	/* Nobody answers a copy: so often it is seen whether the peer is still there. */
	CHECK_NANOSECONDS = 10000,
	/* The least that a request counts for, in bytes that could be copied instead. */
	REQUEST_COST = 4096
};

/* Outside the region's bounds the peer has to refuse the request. */
static bool covers(const struct soft_mr *mr, const struct soft_send *send)
{
	return send->address >= mr->iova &&
	       pier_range_fits(send->address - mr->iova, send->length, mr->ibv.length);
}

/* From `placed` on, what of it is to be copied at once. False: our memory is gone. */
static bool list_elements(struct soft_qp *qp, const struct soft_send *send,
			  struct soft_vector *ret_vector, uint64_t limit)
{
	bool reads = send->opcode == IBV_WR_RDMA_READ;
	uint64_t left = send->length - send->placed;

	if (limit > left)
		limit = left;
	pier_soft_vector_init(ret_vector, reads);
	if (send->flags & IBV_SEND_INLINE) {
		pier_soft_vector_add(ret_vector, send->inline_data + send->placed, limit);
		return true;
	}
	return pier_soft_vector_add_sges(ret_vector, qp, send->sges, send->sge_count,
					 send->placed, limit,
					 reads ? IBV_ACCESS_LOCAL_WRITE : 0);
}

static struct soft_extent extent_in(const struct soft_piece *piece, uint64_t offset,
				    uint64_t length)
{
	uint64_t skip = offset - piece->start, rest = piece->end - offset;

	return (struct soft_extent){
		.memory = piece->memory + skip,
		.fd = piece->fd,
		.offset = piece->offset + skip,
		.length = length < rest ? length : rest,
	};
}

static ssize_t copy_bracketed(struct soft_vector *vector,
			      const struct soft_extent *extent)
{
	ssize_t copied;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	copied = pier_soft_copy(vector, extent);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return copied;
}

/* False: the leave was held back. See wait_until_unused() in grant.c. */
static bool begin_copy(struct soft_lane *lane, const struct soft_held *held)
{
	atomic_store(&lane->out->busy, held->slot + 1);
	if (atomic_load(&lane->out->valid[held->slot]) == held->serial)
		return true;
	atomic_store(&lane->out->busy, 0);
	return false;
}

/* A small one takes time, too. */
static void charge(struct soft_send_queue *sq, uint64_t bytes)
{
	uint64_t cost = bytes > REQUEST_COST ? bytes : REQUEST_COST;

	sq->budget -= cost < sq->budget ? cost : sq->budget;
}

static enum soft_placing copy_chunk(struct soft_qp *qp, struct soft_send *send,
				    struct soft_held *held)
{
	struct soft_lane *lane = qp->link.lane;
	uint64_t offset = send->address - held->mapped->iova + send->placed;
	const struct soft_piece *piece = pier_soft_find_piece(held->mapped, offset);
	struct soft_extent extent = extent_in(piece, offset, send->length - send->placed);
	struct soft_vector vector;
	ssize_t copied;

	if (!list_elements(qp, send, &vector, CHUNK_BYTES))
		return SOFT_PLACE_FAILED;
	if (!begin_copy(lane, held)) {
		pier_soft_release_held(held);
		return SOFT_PLACE_NOT;
	}
	copied = copy_bracketed(&vector, &extent);
	atomic_store(&lane->out->busy, 0);
	if (copied < 0 && errno == EFAULT)
		return SOFT_PLACE_FAILED;
	if (copied <= 0) {
		pier_soft_reject_leave(qp, held);
		return SOFT_PLACE_NOT;
	}
	send->placed += (uint64_t)copied;
	charge(&qp->sq, (uint64_t)copied);
	return SOFT_PLACE_LATER;
}

static enum soft_placing copy(struct soft_qp *qp, struct soft_send *send,
			      struct soft_held *held)
{
	enum soft_placing placing = SOFT_PLACE_LATER;

	while (placing == SOFT_PLACE_LATER && send->placed < send->length &&
	       qp->sq.budget > 0)
		placing = copy_chunk(qp, send, held);
	if (placing == SOFT_PLACE_NOT)
		send->placed = 0;
	return send->placed == send->length ? SOFT_PLACE_DONE : placing;
}

static bool is_one_sided(const struct soft_send *send)
{
	return send->opcode == IBV_WR_RDMA_READ || send->opcode == IBV_WR_RDMA_WRITE ||
	       send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* True: what it said is read to the end, and then the link is lost. */
static bool peer_has_gone(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	uint64_t now = soft_context_of(qp)->engine.now;

	if (now - link->lane->checked < CHECK_NANOSECONDS)
		return false;
	link->lane->checked = now;
	if (pier_soft_is_gone(qp))
		link->hung_up = link->readable = true;
	return link->hung_up;
}

static bool needs_header(const struct soft_send_queue *sq, const struct soft_send *send,
			 const struct soft_held *held)
{
	return send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || sq->done != sq->staged ||
	       (held->counted && send->opcode == IBV_WR_RDMA_WRITE);
}

enum soft_placing pier_soft_place(struct soft_qp *qp, struct soft_send *send)
{
	struct soft_send_queue *sq = &qp->sq;
	enum soft_placing placing;
	struct soft_held *held;
	bool header;

	if (!qp->link.lane || !is_one_sided(send) || send->length == 0)
		return SOFT_PLACE_NOT;
	if (send->placed == send->length) /* and only the header is sent again */
		return SOFT_PLACE_DONE;
	held = pier_soft_find_leave(qp, send);
	/* One that went by the ring before stays there. */
	if (!held || sq->staged < sq->barrier || !covers(held->mapped, send)) {
		send->placed = 0;
		return SOFT_PLACE_NOT;
	}
	if (sq->done < sq->barrier)
		return send->length < WAIT_BYTES ? SOFT_PLACE_NOT : SOFT_PLACE_LATER;
	if (peer_has_gone(qp))
		return SOFT_PLACE_LATER;
	header = needs_header(sq, send, held);
	placing = copy(qp, send, held);
	return placing == SOFT_PLACE_DONE && !header ? SOFT_PLACE_SILENT : placing;
}

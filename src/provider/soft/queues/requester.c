/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "requester.h"
#include "core/checked.h"
#include "core/wire.h"
#include "provider/soft/link/grant.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/link/socket.h"
#include "provider/soft/regions/keys.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/vector.h"
#include "qp.h"

enum soft_direct_result {
	SOFT_DIRECT_UNUSED, /* the request goes through the FIFO */
	SOFT_DIRECT_LATER,  /* earlier requests have to complete, or the turn is over */
	SOFT_DIRECT_DONE,   /* all bytes are copied; the peer needs the header */
	SOFT_DIRECT_SILENT, /* all bytes are copied, and the peer needs no header */
	SOFT_DIRECT_FAILED, /* memory of this end has vanished */
};

/*
 * By a grant this end copies into and out of a region of the peer, which is mapped here
 * or reached by its addresses. If the peer needs no notice of it, that is all, and a SKIP
 * frame later says that some requests were done. For immediate data and where writes are
 * counted, a header follows through the fifo.
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
	return pier_soft_vector_add_sges(ret_vector, &qp->reach, send->sges,
					 send->sge_count, send->copied, limit,
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
 * False: the peer revoked the grant. wait_until_unused() in grant.c is the other
 * half.
 *
 * Order, by the memory model of C11 (7.17.3). This end marks itself busy and then reads
 * whether the grant is valid; the owner makes it invalid and then reads whether this end
 * is busy. All four are sequentially consistent. So in their total order either this end
 * reads that the grant is gone, and copies nothing, or the owner reads `busy` and waits.
 * The load of `valid` acquires: no byte is copied before it. The store that ends the copy
 * releases: an owner that reads it has all bytes that were copied before.
 */
static bool begin_copy(struct soft_fifo *fifo, const struct soft_received_grant *grant)
{
	atomic_store(&fifo->out->busy, grant->slot + 1);
	if (atomic_load(&fifo->out->valid[grant->slot]) == grant->serial)
		return true;
	atomic_store(&fifo->out->busy, 0);
	return false;
}

/*
 * -1 with EFAULT: memory of this end is gone. 0: the grant is of no use. Where a copy by
 * address ends early, the FIFO finds out whose memory it is.
 */
static ssize_t copy_extent(struct soft_fifo *fifo,
			   const struct soft_received_grant *grant,
			   struct soft_vector *vector, const struct soft_extent *extent)
{
	if (grant->by_address)
		return (ssize_t)pier_soft_copy_peer(fifo, vector, extent->offset,
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
	struct soft_fifo *fifo = qp->link.fifo;
	uint64_t offset = send->address - grant->mapped->iova + send->copied;
	const struct soft_segment *segment = pier_soft_find_segment(grant->mapped,
								    offset);
	struct soft_extent extent = extent_in_segment(segment, offset,
						      send->length - send->copied);
	struct soft_vector vector;
	ssize_t copied;

	if (!list_local_elements(qp, send, &vector, CHUNK_BYTES))
		return SOFT_DIRECT_FAILED;
	if (!begin_copy(fifo, grant)) {
		pier_soft_release_grant(grant);
		return SOFT_DIRECT_UNUSED;
	}
	copied = copy_extent(fifo, grant, &vector, &extent);
	atomic_store(&fifo->out->busy, 0);
	if (copied < 0 && errno == EFAULT)
		return SOFT_DIRECT_FAILED;
	if (copied <= 0) {
		pier_soft_reject_grant(&qp->link, grant);
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

	if (now - link->fifo->last_checked < CHECK_NANOSECONDS)
		return false;
	link->fifo->last_checked = now;
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

static enum soft_direct_result copy_directly(struct soft_qp *qp, struct soft_send *send)
{
	struct soft_send_queue *sq = &qp->sq;
	enum soft_direct_result result;
	struct soft_received_grant *grant;
	bool header;

	if (!qp->link.fifo || !is_one_sided(send) || send->length == 0)
		return SOFT_DIRECT_UNUSED;
	if (send->copied == send->length) /* only the header is sent again */
		return SOFT_DIRECT_DONE;
	grant = pier_soft_find_grant(&qp->link, send->key, send->length);
	/* A request that went through the FIFO stays there. */
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

void pier_soft_break_sends(struct soft_qp *qp, uint64_t position,
			   enum ibv_wc_status status)
{
	qp->sq.broken = true;
	qp->sq.broken_at = position;
	qp->sq.broken_status = status;
	if (qp->sq.done == position)
		pier_soft_fail_qp(qp, status);
}

/* Completes local requests that waited for the requests before them. */
static void complete_local(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	while (qp->ibv.state == IBV_QPS_RTS && sq->done < sq->queued &&
	       pier_soft_is_local_at(sq, sq->done))
		pier_soft_complete_send(qp, IBV_WC_SUCCESS);
}

/* After requests have completed. */
static void note_progress(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	sq->rnr_left = qp->attr.rnr_retry;
	complete_local(qp);
	if (sq->broken && sq->done == sq->broken_at)
		pier_soft_fail_qp(qp, sq->broken_status);
}

/* The position of the request with this number; past `queued` if there is none yet. */
static uint64_t position_of(struct soft_send_queue *sq, uint32_t msn)
{
	uint64_t position = sq->done;
	uint32_t left = msn - sq->done_msn;

	for (; position < sq->queued; position++) {
		bool local = pier_soft_is_local_at(sq, position);

		if (left == 0 && !local)
			break;
		left -= !local;
	}
	return position + left;
}

/*
 * Completes everything before `position`. A READ or an atomic is done only with its
 * data.
 */
static bool complete_before(struct soft_qp *qp, uint64_t position)
{
	struct soft_send_queue *sq = &qp->sq;

	if (qp->ibv.state != IBV_QPS_RTS || position > sq->transmitted)
		return false;
	if (position == sq->done)
		return true;
	while (sq->done < position && qp->ibv.state == IBV_QPS_RTS) {
		const struct soft_send *send = pier_soft_send_at(sq, sq->done);

		if (pier_soft_has_response(send) && send->copied == 0)
			return false;
		pier_soft_complete_send(qp, IBV_WC_SUCCESS);
	}
	note_progress(qp);
	return true;
}

bool pier_soft_handle_ack(struct soft_qp *qp, const struct soft_header *header)
{
	return complete_before(qp, position_of(&qp->sq, header->msn));
}

/* The encoding of IBTA table 45, in units of 10 us; also in rnrnak_usec of rxe. */
static uint64_t rnr_nanoseconds(uint8_t timer)
{
	static const uint32_t units[32] = {
		65536, 1,    2,	   3,	 4,    6,     8,     12,    16,	   24,	  32,
		48,    64,   96,   128,	 192,  256,   384,   512,   768,   1024,  1536,
		2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	};

	return (uint64_t)units[timer & 31] * 10000;
}

/*
 * Goes back to the refused request: all requests from there on are sent again later. A
 * frame that has begun is finished first; the peer ignores it.
 */
static void retry_after_rnr(struct soft_qp *qp, uint64_t position, uint8_t timer)
{
	struct soft_send_queue *sq = &qp->sq;
	struct soft_link *link = &qp->link;

	if (sq->rnr_left == 0) {
		pier_soft_fail_qp(qp, IBV_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	if (link->tx_broken) {
		pier_soft_fail_qp(qp, IBV_WC_RETRY_EXC_ERR);
		return;
	}
	if (qp->attr.rnr_retry != 7) /* 7: without limit */
		sq->rnr_left--;
	pier_soft_drop_queued_requests(link);
	link->frames[link->first_frame].stale = true;
	sq->queued = sq->transmitted = position;
	sq->queued_msn = sq->done_msn;
	sq->reads = 0;
	sq->rnr_until = soft_context_of(qp)->engine.now + rnr_nanoseconds(timer);
}

static const enum ibv_wc_status refusals[] = {
	[SOFT_NAK_INVALID_REQUEST] = IBV_WC_REM_INV_REQ_ERR,
	[SOFT_NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR,
	[SOFT_NAK_OPERATION] = IBV_WC_REM_OP_ERR,
};

bool pier_soft_handle_nak(struct soft_qp *qp, const struct soft_header *header)
{
	uint64_t position = position_of(&qp->sq, header->msn);

	if (!complete_before(qp, position) || position >= qp->sq.queued)
		return false;
	if (qp->ibv.state != IBV_QPS_RTS)
		return true;
	if (header->syndrome == SOFT_NAK_RNR)
		retry_after_rnr(qp, position, header->timer);
	else
		pier_soft_fail_qp(qp, refusals[header->syndrome]);
	return true;
}

bool pier_soft_begin_read_response(struct soft_qp *qp, const struct soft_header *header)
{
	struct soft_send_queue *sq = &qp->sq;
	uint64_t position = position_of(sq, header->msn);
	const struct soft_send *send;

	if (position >= sq->transmitted || !complete_before(qp, position))
		return false;
	if (qp->ibv.state != IBV_QPS_RTS)
		return true;
	send = pier_soft_send_at(sq, position);
	if (!pier_soft_has_response(send) || send->copied > 0 ||
	    send->length != header->length)
		return false;
	if (pier_soft_is_atomic_wr(send->opcode) !=
	    (header->opcode == SOFT_ATOMIC_RESPONSE))
		return false;
	qp->link.target = SOFT_TO_READER;
	return true;
}

void pier_soft_finish_read(struct soft_qp *qp)
{
	qp->sq.reads--;
	pier_soft_complete_send(qp, IBV_WC_SUCCESS);
	if (qp->ibv.state == IBV_QPS_RTS)
		note_progress(qp);
}

static const enum soft_opcode frame_opcodes[] = {
	[IBV_WR_RDMA_WRITE] = SOFT_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = SOFT_WRITE_IMM,
	[IBV_WR_SEND] = SOFT_SEND,
	[IBV_WR_SEND_WITH_IMM] = SOFT_SEND_IMM,
	[IBV_WR_RDMA_READ] = SOFT_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = SOFT_COMPARE_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = SOFT_FETCH_ADD,
	[IBV_WR_SEND_WITH_INV] = SOFT_SEND_INV,
};

static enum ibv_wc_status check_local_memory(struct soft_qp *qp,
					     const struct soft_send *send)
{
	int access = pier_soft_has_response(send) ? IBV_ACCESS_LOCAL_WRITE : 0;

	if (pier_soft_has_response(send) && qp->attr.max_rd_atomic == 0)
		return IBV_WC_LOC_QP_OP_ERR;
	if (send->length > SOFT_MAX_MESSAGE)
		return IBV_WC_LOC_LEN_ERR;
	/* As validate_send_wr() of rxe. */
	if (pier_soft_is_atomic_wr(send->opcode) && send->length != SOFT_WORD_SIZE)
		return IBV_WC_LOC_LEN_ERR;
	if (send->flags & IBV_SEND_INLINE)
		return IBV_WC_SUCCESS;
	if (!pier_soft_check_sges(&qp->reach, send->sges, send->sge_count, send->length,
				  access))
		return IBV_WC_LOC_PROT_ERR;
	return IBV_WC_SUCCESS;
}

static bool must_wait_for_earlier(const struct soft_qp *qp, const struct soft_send *send)
{
	if ((send->flags & IBV_SEND_FENCE) && qp->sq.reads > 0)
		return true;
	/*
	 * All requests before it, not only those that a fence waits for (IBTA 10.6.5.1).
	 */
	if (send->opcode == IBV_WR_LOCAL_INV)
		return qp->sq.done != qp->sq.queued;
	return pier_soft_has_response(send) && qp->attr.max_rd_atomic > 0 &&
	       qp->sq.reads >= qp->attr.max_rd_atomic;
}

/* Whether the peer can no longer delay or refuse it. */
static bool is_settled(const struct soft_send *send)
{
	return send->copied > 0 && send->opcode != IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void stage_send(struct soft_qp *qp, const struct soft_send *send)
{
	struct soft_header header = {
		.opcode = (uint8_t)frame_opcodes[send->opcode],
		.flags = send->flags & IBV_SEND_SOLICITED ? SOFT_FLAG_SOLICITED : 0,
		.msn = qp->sq.queued_msn++,
		.length = (uint32_t)send->length,
		.key = send->key,
		.address = send->address,
		.immediate = send->immediate,
	};
	struct soft_frame *frame;

	if (send->copied > 0)
		header.flags |= SOFT_FLAG_COPIED;
	frame = pier_soft_queue_frame(&qp->link, &header);
	frame->request = true;
	frame->position = qp->sq.queued++;
	if (!is_settled(send))
		qp->sq.barrier = qp->sq.queued;
	if (send->copied > 0)
		return;
	if (pier_soft_has_response(send)) {
		qp->sq.reads++;
		if (pier_soft_is_atomic_wr(send->opcode)) {
			pier_put_le64(frame->payload, send->operands[0]);
			pier_put_le64(frame->payload + SOFT_WORD_SIZE, send->operands[1]);
			frame->source = SOFT_FROM_FRAME;
			frame->length = SOFT_OPERANDS_SIZE;
		}
		return;
	}
	frame->source = SOFT_FROM_SEND;
	frame->length = header.length;
}

/* The next request; NULL: there is none, or it has to wait. */
static struct soft_send *next_send(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;
	uint64_t head = atomic_load_explicit(&sq->head, memory_order_acquire);

	if (qp->ibv.state != IBV_QPS_RTS || sq->rnr_until || sq->queued == head)
		return NULL;
	if (sq->broken && sq->queued >= sq->broken_at)
		return NULL;
	return must_wait_for_earlier(qp, pier_soft_send_at(sq, sq->queued))
		       ? NULL
		       : pier_soft_send_at(sq, sq->queued);
}

static enum ibv_wc_status execute_local(struct soft_qp *qp, const struct soft_send *send)
{
	if (send->opcode == IBV_WR_BIND_MW)
		return pier_soft_bind_window(&qp->reach, &send->bind)
			       ? IBV_WC_SUCCESS
			       : IBV_WC_MW_BIND_ERR;
	return pier_soft_invalidate(&qp->reach, send->key) ? IBV_WC_SUCCESS
							   : IBV_WC_LOC_QP_OP_ERR;
}

static void run_local_request(struct soft_qp *qp, struct soft_send *send)
{
	struct soft_send_queue *sq = &qp->sq;
	enum ibv_wc_status status = send->executed ? IBV_WC_SUCCESS
						   : execute_local(qp, send);

	if (status != IBV_WC_SUCCESS) {
		pier_soft_break_sends(qp, sq->queued, status);
		return;
	}
	send->executed = true;
	if (sq->transmitted == sq->queued)
		sq->transmitted++;
	sq->queued++;
	complete_local(qp);
}

void pier_soft_run_local(struct soft_qp *qp)
{
	struct soft_send *send = next_send(qp);

	for (; send && pier_soft_is_local_wr(send->opcode); send = next_send(qp))
		run_local_request(qp, send);
}

/* All requests before it are done, and now so is this one. */
static void finish_silently(struct soft_qp *qp)
{
	qp->sq.transmitted = ++qp->sq.queued;
	qp->sq.queued_msn++;
	qp->sq.silent = true;
	qp->last_progress = soft_context_of(qp)->engine.now;
	pier_soft_complete_send(qp, IBV_WC_SUCCESS);
	if (qp->ibv.state == IBV_QPS_RTS)
		note_progress(qp);
}

static void stage_skip(struct soft_qp *qp)
{
	const struct soft_header header = {
		.opcode = SOFT_SKIP,
		.msn = qp->sq.queued_msn,
	};

	pier_soft_queue_frame(&qp->link, &header);
	qp->sq.silent = false;
}

/* LATER also if it cannot be sent at all. */
static enum soft_direct_result try_direct_copy(struct soft_qp *qp, struct soft_send *send)
{
	enum ibv_wc_status status = check_local_memory(qp, send);
	enum soft_direct_result result = SOFT_DIRECT_LATER;

	if (status == IBV_WC_SUCCESS)
		result = copy_directly(qp, send);
	if (result == SOFT_DIRECT_FAILED)
		status = IBV_WC_LOC_PROT_ERR;
	if (status == IBV_WC_SUCCESS)
		return result;
	pier_soft_break_sends(qp, qp->sq.queued, status);
	return SOFT_DIRECT_LATER;
}

/* Copies requests directly where that is possible, and queues the first other one. */
bool pier_soft_queue_request(struct soft_qp *qp)
{
	enum soft_direct_result result;
	struct soft_send *send;

	do {
		pier_soft_run_local(qp);
		send = next_send(qp);
		if (!send)
			return false;
		result = try_direct_copy(qp, send);
		if (result == SOFT_DIRECT_SILENT)
			finish_silently(qp);
	} while (result == SOFT_DIRECT_SILENT);
	if (result == SOFT_DIRECT_LATER)
		return false;
	if (qp->sq.silent)
		stage_skip(qp);
	else
		stage_send(qp, send);
	return true;
}

void pier_soft_finish_transmit(struct soft_qp *qp, const struct soft_frame *frame)
{
	struct soft_send_queue *sq = &qp->sq;

	if (frame->position != sq->transmitted)
		return;
	sq->transmitted++;
	while (sq->transmitted < sq->queued && pier_soft_is_local_at(sq, sq->transmitted))
		sq->transmitted++;
}

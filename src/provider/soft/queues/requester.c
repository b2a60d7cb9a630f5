/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <string.h>

#include "requester.h"
#include "complete.h"
#include "direct.h"
#include "provider/soft/link/outgoing.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/regions/window.h"
#include "provider/soft/soft.h"

static struct soft_send *send_at(struct soft_send_queue *sq, uint64_t position)
{
	return &sq->slots[position % sq->depth];
}

static uint8_t frame_opcode(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_SEND_WITH_IMM:
		return SOFT_SEND_IMM;
	case IBV_WR_SEND_WITH_INV:
		return SOFT_SEND_INV;
	case IBV_WR_RDMA_WRITE:
		return SOFT_WRITE;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return SOFT_WRITE_IMM;
	case IBV_WR_RDMA_READ:
		return SOFT_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return SOFT_COMPARE_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return SOFT_FETCH_ADD;
	default:
		return SOFT_SEND;
	}
}

/* Those that count against max_rd_atomic, and are done by a response of their own. */
static bool has_response(const struct soft_send *send)
{
	return send->opcode == IBV_WR_RDMA_READ || pier_soft_is_atomic_wr(send->opcode);
}

/* The request at `position` and all behind it will not be sent. */
void pier_soft_break_sends(struct soft_qp *qp, uint64_t position,
			   enum ibv_wc_status status)
{
	qp->sq.broken = true;
	qp->sq.broken_at = position;
	qp->sq.broken_status = status;
	if (qp->sq.done == position)
		pier_soft_fail_qp(qp, status);
}

static enum ibv_wc_status check_local(struct soft_qp *qp, const struct soft_send *send)
{
	int access = has_response(send) ? IBV_ACCESS_LOCAL_WRITE : 0;

	if (has_response(send) && qp->attr.max_rd_atomic == 0)
		return IBV_WC_LOC_QP_OP_ERR;
	if (send->length > SOFT_MAX_MESSAGE)
		return IBV_WC_LOC_LEN_ERR;
	/* rxe's validate_send_wr() takes no other length either. */
	if (pier_soft_is_atomic_wr(send->opcode) && send->length != SOFT_WORD_SIZE)
		return IBV_WC_LOC_LEN_ERR;
	if (send->flags & IBV_SEND_INLINE)
		return IBV_WC_SUCCESS;
	if (!pier_soft_check_sges(qp, send->sges, send->sge_count, send->length, access))
		return IBV_WC_LOC_PROT_ERR;
	return IBV_WC_SUCCESS;
}

static bool must_wait(const struct soft_qp *qp, const struct soft_send *send)
{
	if ((send->flags & IBV_SEND_FENCE) && qp->sq.reads > 0)
		return true;
	/* All before it, not only what a fence waits for (IBTA 10.6.5.1). */
	if (send->opcode == IBV_WR_LOCAL_INV)
		return qp->sq.done != qp->sq.queued;
	return has_response(send) && qp->attr.max_rd_atomic > 0 &&
	       qp->sq.reads >= qp->attr.max_rd_atomic;
}

static void add_operands(struct soft_frame *frame, const struct soft_send *send)
{
	for (int i = 0; i < 2; i++) {
		uint64_t word = htole64(send->operands[i]);

		memcpy(frame->payload + i * SOFT_WORD_SIZE, &word, SOFT_WORD_SIZE);
	}
	frame->source = SOFT_FROM_FRAME;
	frame->length = SOFT_OPERANDS_SIZE;
}

/* Whether nothing of it is left that the peer could put off or refuse in order. */
static bool is_settled(const struct soft_send *send)
{
	return send->copied > 0 && send->opcode != IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void stage_send(struct soft_qp *qp, const struct soft_send *send)
{
	struct soft_header header = {
		.opcode = frame_opcode(send->opcode),
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
	if (has_response(send)) {
		qp->sq.reads++;
		if (pier_soft_is_atomic_wr(send->opcode))
			add_operands(frame, send);
		return;
	}
	frame->source = SOFT_FROM_SEND;
	frame->length = header.length;
}

/* The request whose turn it is; NULL: none is there, or it has to wait. */
static struct soft_send *next_send(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;
	uint64_t head = atomic_load_explicit(&sq->head, memory_order_acquire);

	if (qp->ibv.state != IBV_QPS_RTS || sq->rnr_until || sq->queued == head)
		return NULL;
	if (sq->broken && sq->queued >= sq->broken_at)
		return NULL;
	return must_wait(qp, send_at(sq, sq->queued)) ? NULL : send_at(sq, sq->queued);
}

static bool is_local_at(struct soft_send_queue *sq, uint64_t position)
{
	return pier_soft_is_local_wr(send_at(sq, position)->opcode);
}

/* Those that were waiting for what went before them. */
static void complete_local(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	while (qp->ibv.state == IBV_QPS_RTS && sq->done < sq->queued &&
	       is_local_at(sq, sq->done))
		pier_soft_complete_send(qp, IBV_WC_SUCCESS);
}

static enum ibv_wc_status execute_local(struct soft_qp *qp, const struct soft_send *send)
{
	if (send->opcode == IBV_WR_BIND_MW)
		return pier_soft_bind_window(qp, &send->bind) ? IBV_WC_SUCCESS
							      : IBV_WC_MW_BIND_ERR;
	return pier_soft_invalidate(qp, send->key) ? IBV_WC_SUCCESS
						   : IBV_WC_LOC_QP_OP_ERR;
}

static void run_one(struct soft_qp *qp, struct soft_send *send)
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
		run_one(qp, send);
}

static void made_progress(struct soft_qp *qp);

/* All before it are done, and now it is. */
static void finish_silently(struct soft_qp *qp)
{
	qp->sq.transmitted = ++qp->sq.queued;
	qp->sq.queued_msn++;
	qp->sq.silent = true;
	qp->last_progress = soft_context_of(qp)->engine.now;
	pier_soft_complete_send(qp, IBV_WC_SUCCESS);
	if (qp->ibv.state == IBV_QPS_RTS)
		made_progress(qp);
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

/* LATER as well when it cannot be sent at all. */
static enum soft_direct_result place(struct soft_qp *qp, struct soft_send *send)
{
	enum ibv_wc_status status = check_local(qp, send);
	enum soft_direct_result result = SOFT_DIRECT_LATER;

	if (status == IBV_WC_SUCCESS)
		result = pier_soft_copy_directly(qp, send);
	if (result == SOFT_DIRECT_FAILED)
		status = IBV_WC_LOC_PROT_ERR;
	if (status == IBV_WC_SUCCESS)
		return result;
	pier_soft_break_sends(qp, qp->sq.queued, status);
	return SOFT_DIRECT_LATER;
}

/* Places what can be placed at once, and stages what cannot. */
bool pier_soft_queue_request(struct soft_qp *qp)
{
	enum soft_direct_result result = SOFT_DIRECT_SILENT;
	struct soft_send *send = NULL;

	while (result == SOFT_DIRECT_SILENT) {
		pier_soft_run_local(qp);
		send = next_send(qp);
		result = send ? place(qp, send) : SOFT_DIRECT_LATER;
		if (result == SOFT_DIRECT_SILENT)
			finish_silently(qp);
	}
	if (result == SOFT_DIRECT_LATER)
		return false;
	if (qp->sq.silent)
		stage_skip(qp);
	else
		stage_send(qp, send);
	return true;
}

/* The last byte of it is on the stream: from now on the peer may answer. */
void pier_soft_finish_transmit(struct soft_qp *qp, const struct soft_frame *frame)
{
	struct soft_send_queue *sq = &qp->sq;

	if (frame->position != sq->transmitted)
		return;
	sq->transmitted++;
	while (sq->transmitted < sq->queued && is_local_at(sq, sq->transmitted))
		sq->transmitted++;
}

/* Where the request is that has this number; past `staged` if none has it yet. */
static uint64_t position_of(struct soft_send_queue *sq, uint32_t msn)
{
	uint64_t position = sq->done;
	uint32_t left = msn - sq->done_msn;

	for (; position < sq->queued; position++) {
		bool local = is_local_at(sq, position);

		if (left == 0 && !local)
			break;
		left -= !local;
	}
	return position + left;
}

static void made_progress(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	sq->rnr_left = qp->attr.rnr_retry;
	complete_local(qp);
	if (sq->broken && sq->done == sq->broken_at)
		pier_soft_fail_qp(qp, sq->broken_status);
}

/* Everything before `position` is done; no READ or atomic is until its data is here. */
static bool complete_before(struct soft_qp *qp, uint64_t position)
{
	struct soft_send_queue *sq = &qp->sq;

	if (qp->ibv.state != IBV_QPS_RTS || position > sq->transmitted)
		return false;
	if (position == sq->done)
		return true;
	while (sq->done < position && qp->ibv.state == IBV_QPS_RTS) {
		const struct soft_send *send = send_at(sq, sq->done);

		if (has_response(send) && send->copied == 0)
			return false;
		pier_soft_complete_send(qp, IBV_WC_SUCCESS);
	}
	made_progress(qp);
	return true;
}

bool pier_soft_handle_ack(struct soft_qp *qp, const struct soft_header *header)
{
	return complete_before(qp, position_of(&qp->sq, header->msn));
}

/* The encoding of IBTA table 45, in units of 10 us; also in rxe's rnrnak_usec. */
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
 * Back to the refused request: all from there on is sent again, later. A frame that has
 * begun is finished first; the peer ignores it.
 */
static void go_back(struct soft_qp *qp, uint64_t position, uint8_t timer)
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
	if (qp->attr.rnr_retry != 7) /* 7: for ever */
		sq->rnr_left--;
	pier_soft_drop_queued_requests(link);
	link->frames[link->first_frame].stale = true;
	sq->queued = sq->transmitted = position;
	sq->queued_msn = sq->done_msn;
	sq->reads = 0;
	sq->rnr_until = soft_context_of(qp)->engine.now + rnr_nanoseconds(timer);
}

static enum ibv_wc_status refused_status(uint8_t syndrome)
{
	switch (syndrome) {
	case SOFT_NAK_ACCESS:
		return IBV_WC_REM_ACCESS_ERR;
	case SOFT_NAK_OPERATION:
		return IBV_WC_REM_OP_ERR;
	default:
		return IBV_WC_REM_INV_REQ_ERR;
	}
}

bool pier_soft_handle_nak(struct soft_qp *qp, const struct soft_header *header)
{
	uint64_t position = position_of(&qp->sq, header->msn);

	if (!complete_before(qp, position) || position >= qp->sq.queued)
		return false;
	if (qp->ibv.state != IBV_QPS_RTS)
		return true;
	if (header->syndrome == SOFT_NAK_RNR)
		go_back(qp, position, header->timer);
	else
		pier_soft_fail_qp(qp, refused_status(header->syndrome));
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
	send = send_at(sq, position);
	if (!has_response(send) || send->copied > 0 || send->length != header->length)
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
		made_progress(qp);
}

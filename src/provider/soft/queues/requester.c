/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <string.h>

#include "requester.h"
#include "acknowledge.h"
#include "complete.h"
#include "direct.h"
#include "provider/soft/link/outgoing.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/regions/window.h"
#include "provider/soft/soft.h"

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
	if (!pier_soft_check_sges(qp, send->sges, send->sge_count, send->length, access))
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

static void add_operands(struct soft_frame *frame, const struct soft_send *send)
{
	for (int i = 0; i < 2; i++) {
		uint64_t word = htole64(send->operands[i]);

		memcpy(frame->payload + i * SOFT_WORD_SIZE, &word, SOFT_WORD_SIZE);
	}
	frame->source = SOFT_FROM_FRAME;
	frame->length = SOFT_OPERANDS_SIZE;
}

/* Whether the peer can no longer delay or refuse it. */
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
	if (pier_soft_has_response(send)) {
		qp->sq.reads++;
		if (pier_soft_is_atomic_wr(send->opcode))
			add_operands(frame, send);
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
		return pier_soft_bind_window(qp, &send->bind) ? IBV_WC_SUCCESS
							      : IBV_WC_MW_BIND_ERR;
	return pier_soft_invalidate(qp, send->key) ? IBV_WC_SUCCESS
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
	pier_soft_complete_local(qp);
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
		pier_soft_note_progress(qp);
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
		result = pier_soft_copy_directly(qp, send);
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

/* SPDX-License-Identifier: BSD-3-Clause */
#include "acknowledge.h"
#include "complete.h"
#include "provider/soft/link/outgoing.h"
#include "provider/soft/soft.h"

void pier_soft_break_sends(struct soft_qp *qp, uint64_t position,
			   enum ibv_wc_status status)
{
	qp->sq.broken = true;
	qp->sq.broken_at = position;
	qp->sq.broken_status = status;
	if (qp->sq.done == position)
		pier_soft_fail_qp(qp, status);
}

void pier_soft_complete_local(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	while (qp->ibv.state == IBV_QPS_RTS && sq->done < sq->queued &&
	       pier_soft_is_local_at(sq, sq->done))
		pier_soft_complete_send(qp, IBV_WC_SUCCESS);
}

void pier_soft_note_progress(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	sq->rnr_left = qp->attr.rnr_retry;
	pier_soft_complete_local(qp);
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
	pier_soft_note_progress(qp);
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

static enum ibv_wc_status status_of_syndrome(uint8_t syndrome)
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
		retry_after_rnr(qp, position, header->timer);
	else
		pier_soft_fail_qp(qp, status_of_syndrome(header->syndrome));
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
		pier_soft_note_progress(qp);
}

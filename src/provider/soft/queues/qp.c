/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "qp.h"
#include "core/log.h"
#include "counter.h"
#include "cq.h"
#include "events.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/link/grant.h"

/* Of those that posting accepts; 0: IBV_WC_SEND. */
static const enum ibv_wc_opcode completed_opcodes[] = {
	[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
	[IBV_WR_LOCAL_INV] = IBV_WC_LOCAL_INV,
	[IBV_WR_BIND_MW] = IBV_WC_BIND_MW,
	[IBV_WR_SEND_WITH_INV] = IBV_WC_SEND,
};

/* 0: no counter of verbs counts it. */
static const uint32_t counted_sends[] = {
	[IBV_WR_RDMA_WRITE] = PIER_COUNTS_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = PIER_COUNTS_WRITE,
	[IBV_WR_SEND] = PIER_COUNTS_SEND,
	[IBV_WR_SEND_WITH_IMM] = PIER_COUNTS_SEND,
	[IBV_WR_RDMA_READ] = PIER_COUNTS_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = 0,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = 0,
	[IBV_WR_LOCAL_INV] = 0,
	[IBV_WR_BIND_MW] = 0,
	[IBV_WR_SEND_WITH_INV] = PIER_COUNTS_SEND,
};

/* A CQ that overran brings every queue pair that uses it to ERR (IBTA 11.6.3.2). */
static void push_completion(struct soft_qp *qp, struct ibv_cq *ibv_cq,
			    const struct soft_cqe *cqe, bool solicited)
{
	struct soft_context *context = soft_context_of(qp);
	struct soft_cq *cq = (struct soft_cq *)ibv_cq;

	if (pier_soft_push_cqe(cq, cqe, solicited))
		return;
	pier_soft_report_event(ibv_cq->context, &cq->events, IBV_EVENT_CQ_ERR);
	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		struct soft_qp *other = pier_soft_qp_at(context, i);

		if (other && other->ibv.state != IBV_QPS_ERR &&
		    (other->ibv.send_cq == ibv_cq || other->ibv.recv_cq == ibv_cq)) {
			pier_warning("soft0: QP %#x: its CQ of %d entries has overrun",
				     other->ibv.qp_num, ibv_cq->cqe);
			pier_soft_fail_qp(other, IBV_WC_SUCCESS);
		}
	}
}

void pier_soft_count_completion(struct soft_qp *qp, uint32_t kind,
				enum ibv_wc_status status)
{
	for (uint32_t i = 0; i < PIER_COUNTED_KINDS; i++) {
		if (kind & 1u << i)
			pier_soft_count(qp->counters[i], status);
	}
}

void pier_soft_complete_send(struct soft_qp *qp, enum ibv_wc_status status)
{
	struct soft_send_queue *sq = &qp->sq;
	const struct soft_send *send = pier_soft_send_at(sq, sq->done);
	bool wanted = qp->init.sq_sig_all || (send->flags & IBV_SEND_SIGNALED) ||
		      status != IBV_WC_SUCCESS;
	struct soft_cqe cqe = {
		.wc = {
			.wr_id = send->wr_id,
			.status = status,
			.opcode = completed_opcodes[send->opcode],
			.byte_len = (uint32_t)send->length,
			.qp_num = qp->ibv.qp_num,
			.src_qp = qp->attr.dest_qp_num,
		},
		.qp = qp,
		.tail = &sq->tail,
		.freed = sq->done + 1,
	};

	pier_soft_count_completion(qp, counted_sends[send->opcode], status);
	sq->done++;
	sq->done_msn += !pier_soft_is_local_wr(send->opcode);
	if (wanted)
		push_completion(qp, qp->ibv.send_cq, &cqe, false);
}

const struct soft_recv *pier_soft_current_recv(const struct soft_qp *qp)
{
	return qp->srq ? &qp->taken.recv : pier_soft_recv_at(&qp->rq.recvs, qp->rq.done);
}

void pier_soft_complete_recv(struct soft_qp *qp, enum ibv_wc_status status,
			     const struct soft_header *header)
{
	struct soft_recv_queue *rq = &qp->rq;
	struct soft_cqe cqe = {
		.wc = {
			.wr_id = pier_soft_current_recv(qp)->wr_id,
			.status = status,
			.opcode = IBV_WC_RECV,
			.qp_num = qp->ibv.qp_num,
			.src_qp = qp->attr.dest_qp_num,
		},
		.qp = qp,
		.tail = qp->srq ? &qp->srq->freed : &rq->tail,
		.freed = rq->done + 1,
		.shared = qp->srq != NULL,
	};

	if (header) {
		cqe.wc.byte_len = header->length;
		if (header->opcode == SOFT_WRITE_IMM)
			cqe.wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
		if (header->opcode == SOFT_SEND_IMM || header->opcode == SOFT_WRITE_IMM) {
			cqe.wc.wc_flags = IBV_WC_WITH_IMM;
			cqe.wc.imm_data = header->immediate;
		}
		if (qp->ibv.qp_type == IBV_QPT_UD) {
			cqe.wc.wc_flags |= IBV_WC_GRH;
			cqe.wc.src_qp = header->key;
		}
		if (header->opcode == SOFT_SEND_INV && status == IBV_WC_SUCCESS) {
			cqe.wc.wc_flags = IBV_WC_WITH_INV;
			cqe.wc.invalidated_rkey = header->key;
		}
	}
	if (qp->srq)
		qp->taken.there = false;
	else
		rq->done++;
	pier_soft_count_completion(qp, PIER_COUNTS_RECV, status);
	push_completion(qp, qp->ibv.recv_cq, &cqe,
			header && (header->flags & SOFT_FLAG_SOLICITED));
}

/*
 * Of an SRQ only what the queue pair has taken: the rest belongs to the others (IBTA
 * 10.2.9).
 */
void pier_soft_flush_recvs(struct soft_qp *qp)
{
	if (qp->taken.there)
		pier_soft_complete_recv(qp, IBV_WC_WR_FLUSH_ERR, NULL);
	while (qp->rq.done != atomic_load_explicit(&qp->rq.head, memory_order_acquire))
		pier_soft_complete_recv(qp, IBV_WC_WR_FLUSH_ERR, NULL);
}

/*
 * A frame that has begun must be finished before a NAK can follow it. It reads memory
 * that belongs to the application again when its request is flushed, so the flush waits.
 */
static bool is_frame_in_progress(const struct soft_link *link)
{
	return link->closing && link->frame_count > 0 &&
	       link->frames[link->first_frame].source == SOFT_FROM_SEND;
}

void pier_soft_flush_sends(struct soft_qp *qp)
{
	if (is_frame_in_progress(&qp->link))
		return;
	while (pier_soft_has_sends(&qp->sq))
		pier_soft_complete_send(qp, IBV_WC_WR_FLUSH_ERR);
}

void pier_soft_set_state(struct soft_qp *qp, enum ibv_qp_state state)
{
	pthread_mutex_lock(&qp->sq.lock);
	pthread_mutex_lock(&qp->rq.lock);
	qp->ibv.state = state;
	pthread_mutex_unlock(&qp->rq.lock);
	pthread_mutex_unlock(&qp->sq.lock);
}

void pier_soft_fail_qp(struct soft_qp *qp, enum ibv_wc_status status)
{
	struct soft_send_queue *sq = &qp->sq;
	bool failed = qp->ibv.state == IBV_QPS_ERR;

	if (qp->ibv.state == IBV_QPS_RESET)
		return;
	/* First, so that the state is ERR when the first completion can be polled. */
	pier_soft_set_state(qp, IBV_QPS_ERR);
	if (qp->link.closing)
		pier_soft_revoke_link_grants(&qp->link);
	else
		pier_soft_close_link(&qp->link);
	if (status != IBV_WC_SUCCESS && pier_soft_has_sends(sq))
		pier_soft_complete_send(qp, status);
	pier_soft_flush_sends(qp);
	pier_soft_flush_recvs(qp);
	/* It takes no more receives from the queue (IBTA 10.2.9). */
	if (qp->srq && !failed)
		pier_soft_report_event(qp->ibv.context, &qp->events,
				       IBV_EVENT_QP_LAST_WQE_REACHED);
}

/*
 * For programs that know only verbs, a peer that is gone is as on hardware: only a
 * request that it does not answer shows it, after the ack timeout. It may also have gone
 * through RESET once more before its first request, and connect again.
 */
static bool outlives_link(const struct soft_qp *qp)
{
	return soft_context_of(qp)->node.meeting.joined && qp->ibv.state != IBV_QPS_ERR;
}

static bool wants_link(const struct soft_qp *qp)
{
	return (qp->ibv.state == IBV_QPS_RTR || qp->ibv.state == IBV_QPS_RTS) &&
	       !pier_soft_link_open(&qp->link) && pier_soft_is_unused(qp);
}

void pier_soft_take_stream(struct soft_qp *qp)
{
	if (wants_link(qp) && pier_soft_adopt_stream(&qp->connection))
		qp->last_progress = pier_soft_now();
}

/* The next link begins with the first request. */
static void rewind_queues(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	for (; sq->queued > sq->done; sq->queued--)
		pier_soft_send_at(sq, sq->queued - 1)->copied = 0;
	sq->transmitted = sq->done;
	sq->queued_msn = 0;
	sq->reads = 0;
	sq->barrier = 0;
	sq->rnr_left = qp->attr.rnr_retry;
	memset(&qp->responder, 0, sizeof(qp->responder));
}

void pier_soft_lose_link(struct soft_qp *qp)
{
	/*
	 * While the link is closing, the loss is expected and its cause has been
	 * reported.
	 */
	bool closing = qp->link.closing;

	pier_debug("soft0: QP %#x lost its peer, QP %#x", qp->ibv.qp_num,
		   qp->attr.dest_qp_num);
	pier_soft_close_link(&qp->link);
	if (!closing && outlives_link(qp)) {
		if (pier_soft_is_unused(qp))
			rewind_queues(qp);
		qp->sq.rnr_until = 0;
		qp->last_progress = soft_context_of(qp)->engine.now;
		pier_soft_activate(&qp->end.work); /* a stream may wait */
		return;
	}
	qp->lost_in_rtr |= !closing && qp->ibv.state == IBV_QPS_RTR;
	pier_soft_fail_qp(qp, closing ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR);
}

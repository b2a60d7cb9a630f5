/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "post.h"
#include "atomic.h"
#include "core/error.h"
#include "provider/soft/pass.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/soft.h"
#include "ud_address.h"

static bool may_send(enum ibv_qp_state state)
{
	return state == IBV_QPS_RTS || state == IBV_QPS_ERR;
}

static int check_opcode(const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		if (pier_soft_atomic_cap() == IBV_ATOMIC_NONE)
			return pier_fail(EOPNOTSUPP, "soft0: no atomic operations on "
						     "this machine (atomic_cap is NONE)");
		/* fall through */
	case IBV_WR_RDMA_READ:
		if (wr->send_flags & IBV_SEND_INLINE)
			return pier_fail(EINVAL, "soft0: a READ or an atomic operation "
						 "cannot be inline");
		return 0;
	case IBV_WR_BIND_MW:
		if (!wr->bind_mw.mw)
			return pier_fail(EINVAL,
					 "soft0: IBV_WR_BIND_MW without a window");
		/* fall through */
	case IBV_WR_LOCAL_INV:
		if (wr->send_flags & IBV_SEND_INLINE)
			return pier_fail(
				EINVAL, "soft0: a request for a window cannot be inline");
		return 0;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return 0;
	default:
		return pier_fail(EINVAL, "soft0: opcode %d is not known here",
				 (int)wr->opcode);
	}
}

static uint64_t total_length(const struct ibv_sge *sges, int count)
{
	uint64_t total = 0;

	for (int i = 0; i < count; i++)
		total += sges[i].length;
	return total;
}

static int check_send(const struct soft_qp *qp, uint64_t position,
		      const struct ibv_send_wr *wr, uint64_t *ret_length)
{
	const struct soft_send_queue *sq = &qp->sq;
	uint64_t length;
	int error;

	if (!may_send(qp->ibv.state))
		return pier_fail(EINVAL,
				 "soft0: QP %#x accepts sends in RTS and ERR only",
				 qp->ibv.qp_num);
	if (position - atomic_load_explicit(&sq->tail, memory_order_acquire) >= sq->depth)
		return pier_fail(ENOMEM, "soft0: the send queue of %u requests is full",
				 sq->depth);
	/* Inline data leaves no elements in the queue. */
	if (wr->num_sge < 0 ||
	    (!(wr->send_flags & IBV_SEND_INLINE) && (uint32_t)wr->num_sge > sq->max_sge))
		return pier_fail(EINVAL, "soft0: %d elements, the send queue takes %u",
				 wr->num_sge, sq->max_sge);
	error = qp->ibv.qp_type == IBV_QPT_UD ? pier_soft_check_datagram(qp, wr)
					      : check_opcode(wr);
	if (error)
		return error;
	length = total_length(wr->sg_list, wr->num_sge);
	if ((wr->send_flags & IBV_SEND_INLINE) && length > sq->max_inline)
		return pier_fail(EINVAL, "soft0: %llu bytes inline, the limit is %u",
				 (unsigned long long)length, sq->max_inline);
	*ret_length = length;
	return 0;
}

static void copy_inline(uint8_t *to, const struct ibv_send_wr *wr)
{
	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr,
		       wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
}

static void store_atomic_target(struct soft_send *send, const struct ibv_send_wr *wr)
{
	send->address = wr->wr.atomic.remote_addr;
	send->key = wr->wr.atomic.rkey;
	send->operands[0] = wr->wr.atomic.compare_add;
	send->operands[1] = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.swap
								    : 0;
}

/*
 * Read only the members that the opcode uses: the caller need not set the others, and the
 * header, which goes to the peer, must not disclose the caller's stack.
 */
static void store_target(struct soft_send *send, const struct ibv_send_wr *wr)
{
	send->address = 0;
	send->key = 0;
	send->immediate = 0;
	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_IMM:
		send->immediate = wr->imm_data;
		break;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		send->key = wr->invalidate_rkey;
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		send->immediate = wr->imm_data;
		/* fall through */
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		send->address = wr->wr.rdma.remote_addr;
		send->key = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		store_atomic_target(send, wr);
		break;
	default:
		break;
	}
}

static void store_binding(struct soft_send *send, const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *info = &wr->bind_mw.bind_info;

	send->bind = (struct soft_bind){
		.window = wr->bind_mw.mw->rkey,
		.region = info->mr ? info->mr->lkey : 0,
		.key = wr->bind_mw.rkey,
		.access = (int)info->mw_access_flags,
		.address = info->addr,
		.length = info->length,
	};
}

int pier_soft_store_send(struct soft_qp *qp, uint64_t position,
			 const struct ibv_send_wr *wr)
{
	struct soft_send_queue *sq = &qp->sq;
	struct soft_send *send;
	uint64_t length = 0;
	int error = check_send(qp, position, wr, &length);

	if (error)
		return error;
	send = pier_soft_send_at(sq, position);
	send->wr_id = wr->wr_id;
	send->opcode = wr->opcode;
	send->flags = wr->send_flags;
	send->length = length;
	send->executed = false;
	store_target(send, wr);
	if (wr->opcode == IBV_WR_BIND_MW)
		store_binding(send, wr);
	if (qp->ibv.qp_type == IBV_QPT_UD)
		pier_soft_store_destination(qp, position, wr);
	send->sge_count = wr->num_sge;
	send->copied = 0;
	if (wr->send_flags & IBV_SEND_INLINE)
		copy_inline(send->inline_data, wr);
	else if (wr->num_sge > 0)
		memcpy(send->sges, wr->sg_list, wr->num_sge * sizeof(*send->sges));
	return 0;
}

/* A batch of ibv_wr_post(3) that is being built comes first. */
static void lock_sends(struct soft_qp *qp)
{
	if (qp->builder)
		pthread_mutex_lock(&qp->builder->lock);
	pthread_mutex_lock(&qp->sq.lock);
}

static void unlock_sends(struct soft_qp *qp)
{
	pthread_mutex_unlock(&qp->sq.lock);
	if (qp->builder)
		pthread_mutex_unlock(&qp->builder->lock);
}

int pier_soft_post_send(struct ibv_qp *ibv_qp, struct ibv_send_wr *wr,
			struct ibv_send_wr **bad_wr)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	uint64_t head;
	int error = 0;

	lock_sends(qp);
	head = atomic_load_explicit(&qp->sq.head, memory_order_relaxed);
	for (; wr && !error; wr = error ? wr : wr->next) {
		error = pier_soft_store_send(qp, head, wr);
		if (error)
			*bad_wr = wr;
		else
			head++;
	}
	atomic_store_explicit(&qp->sq.head, head, memory_order_release);
	unlock_sends(qp);
	pier_soft_ring_doorbell(qp);
	return -error;
}

/* The caller undoes the new key if the request fails later, as with other drivers. */
int pier_soft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_BIND_MW,
		.wr_id = bind->wr_id,
		.send_flags = bind->send_flags,
		.bind_mw = { .mw = mw,
			     .rkey = ibv_inc_rkey(mw->rkey),
			     .bind_info = bind->bind_info },
	};
	int error = pier_soft_post_send(qp, &wr, &bad);

	if (!error)
		mw->rkey = wr.bind_mw.rkey;
	return error;
}

static int queue_recv(struct soft_qp *qp, const struct ibv_recv_wr *wr)
{
	struct soft_recv_queue *rq = &qp->rq;
	uint64_t head = atomic_load_explicit(&rq->head, memory_order_relaxed);
	struct soft_recv *recv;

	if (qp->srq)
		return pier_fail(EINVAL, "soft0: QP %#x has a shared receive queue",
				 qp->ibv.qp_num);
	if (qp->ibv.state == IBV_QPS_RESET)
		return pier_fail(EINVAL, "soft0: QP %#x accepts receives from INIT on",
				 qp->ibv.qp_num);
	if (head - atomic_load_explicit(&rq->tail, memory_order_acquire) >= rq->depth)
		return pier_fail(ENOMEM,
				 "soft0: the receive queue of %u requests is full",
				 rq->depth);
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return pier_fail(EINVAL, "soft0: %d elements, the receive queue takes %u",
				 wr->num_sge, rq->max_sge);
	recv = &rq->slots[head % rq->depth];
	recv->wr_id = wr->wr_id;
	recv->sge_count = wr->num_sge;
	if (wr->num_sge > 0)
		memcpy(recv->sges, wr->sg_list, wr->num_sge * sizeof(*recv->sges));
	atomic_store_explicit(&rq->head, head + 1, memory_order_release);
	return 0;
}

/* No doorbell: the engine reads the queue when a message comes. */
int pier_soft_post_recv(struct ibv_qp *ibv_qp, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad_wr)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	int error = 0;
	bool flush;

	pthread_mutex_lock(&qp->rq.lock);
	for (; wr && !error; wr = error ? wr : wr->next) {
		error = queue_recv(qp, wr);
		if (error)
			*bad_wr = wr;
	}
	flush = qp->ibv.state == IBV_QPS_ERR;
	pthread_mutex_unlock(&qp->rq.lock);
	if (flush)
		pier_soft_ring_doorbell(qp);
	return -error;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "post.h"
#include "core/error.h"
#include "datagram.h"
#include "modify.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/regions/vector.h"
#include "qp.h"
#include "responder.h"

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

static int check_send(const struct soft_qp *qp, uint64_t position,
		      const struct ibv_send_wr *wr, uint64_t *ret_length)
{
	const struct soft_send_queue *sq = &qp->sq;
	uint64_t length;
	int error;

	if (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_ERR)
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
	length = pier_soft_total_length(wr->sg_list, wr->num_sge);
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
		send->address = wr->wr.atomic.remote_addr;
		send->key = wr->wr.atomic.rkey;
		send->operands[0] = wr->wr.atomic.compare_add;
		send->operands[1] = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP
					    ? wr->wr.atomic.swap
					    : 0;
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

/*
 * Checks a request, and stores it at `position` of the send queue, which is locked. The
 * engine sees it when the head of the queue has passed it. 0 or -errno with a sentence.
 */
static int store_send(struct soft_qp *qp, uint64_t position, const struct ibv_send_wr *wr)
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
		error = store_send(qp, head, wr);
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
	int error;

	if (qp->srq)
		return pier_fail(EINVAL, "soft0: QP %#x has a shared receive queue",
				 qp->ibv.qp_num);
	if (qp->ibv.state == IBV_QPS_RESET)
		return pier_fail(EINVAL, "soft0: QP %#x accepts receives from INIT on",
				 qp->ibv.qp_num);
	error = pier_soft_store_recv(
		&rq->recvs, head,
		head - atomic_load_explicit(&rq->tail, memory_order_acquire), wr,
		"receive queue");
	if (!error)
		atomic_store_explicit(&rq->head, head + 1, memory_order_release);
	return error;
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

static struct soft_builder *builder_of(struct ibv_qp_ex *ex)
{
	return ((struct soft_qp *)ex)->builder;
}

/* Queues the request that is complete, where the engine does not look yet. */
static void store_request(struct soft_qp *qp)
{
	struct soft_builder *builder = qp->builder;

	if (!builder->building || builder->error)
		return;
	builder->building = false;
	pthread_mutex_lock(&qp->sq.lock);
	builder->error = store_send(qp, builder->first + builder->count, &builder->wr);
	pthread_mutex_unlock(&qp->sq.lock);
	builder->count += !builder->error;
}

/* Only wr_set_inline_data() makes a request inline. */
static struct ibv_send_wr *begin_request(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct soft_builder *builder = builder_of(ex);

	store_request((struct soft_qp *)ex);
	builder->building = true;
	builder->wr = (struct ibv_send_wr){
		.wr_id = ex->wr_id,
		.opcode = opcode,
		.send_flags = ex->wr_flags & ~(unsigned int)IBV_SEND_INLINE,
		.sg_list = builder->sges,
	};
	return &builder->wr;
}

static struct ibv_send_wr *begin_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode,
				      uint32_t rkey, uint64_t remote_addr)
{
	struct ibv_send_wr *wr = begin_request(ex, opcode);

	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = remote_addr;
	return wr;
}

static void begin_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey,
			 uint64_t remote_addr, uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr *wr = begin_request(ex, opcode);

	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.remote_addr = remote_addr;
	wr->wr.atomic.compare_add = compare_add;
	wr->wr.atomic.swap = swap;
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin_request(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm_data)
{
	begin_request(ex, IBV_WR_SEND_WITH_IMM)->imm_data = imm_data;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin_request(ex, IBV_WR_SEND_WITH_INV)->invalidate_rkey = rkey;
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin_request(ex, IBV_WR_LOCAL_INV)->invalidate_rkey = rkey;
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *info)
{
	struct ibv_send_wr *wr = begin_request(ex, IBV_WR_BIND_MW);

	wr->bind_mw.mw = mw;
	wr->bind_mw.rkey = rkey;
	wr->bind_mw.bind_info = *info;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	begin_rdma(ex, IBV_WR_RDMA_READ, rkey, remote_addr);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	begin_rdma(ex, IBV_WR_RDMA_WRITE, rkey, remote_addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr,
			      __be32 imm_data)
{
	begin_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr)->imm_data =
		imm_data;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr,
			      uint64_t compare, uint64_t swap)
{
	begin_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr,
				uint64_t add)
{
	begin_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, add, 0);
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn,
			   uint32_t qkey)
{
	struct ibv_send_wr *wr = &builder_of(ex)->wr;

	wr->wr.ud.ah = ah;
	wr->wr.ud.remote_qpn = qpn;
	wr->wr.ud.remote_qkey = qkey;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t count,
			    const struct ibv_sge *sges)
{
	struct soft_builder *builder = builder_of(ex);

	if (count > SOFT_MAX_SGE) {
		builder->error = pier_fail(EINVAL, "soft0: %zu elements, the limit is %d",
					   count, SOFT_MAX_SGE);
		return;
	}
	if (count > 0)
		memcpy(builder->sges, sges, count * sizeof(*sges));
	builder->wr.num_sge = (int)count;
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr,
		       uint32_t length)
{
	const struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	wr_set_sge_list(ex, 1, &sge);
}

/* Copied here and now: the caller may reuse its buffers at once. */
static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t count,
				    const struct ibv_data_buf *buffers)
{
	struct soft_builder *builder = builder_of(ex);
	size_t total = 0;

	for (size_t i = 0; i < count; i++) {
		if (buffers[i].length > SOFT_MAX_INLINE - total) {
			builder->error = pier_fail(EINVAL,
						   "soft0: more than %d bytes inline",
						   SOFT_MAX_INLINE);
			return;
		}
		memcpy(builder->inline_data + total, buffers[i].addr, buffers[i].length);
		total += buffers[i].length;
	}
	builder->sges[0] = (struct ibv_sge){
		.addr = (uintptr_t)builder->inline_data,
		.length = (uint32_t)total,
	};
	builder->wr.num_sge = 1;
	builder->wr.send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	const struct ibv_data_buf buffer = { .addr = addr, .length = length };

	wr_set_inline_data_list(ex, 1, &buffer);
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct soft_builder *builder = builder_of(ex);
	struct soft_send_queue *sq = &((struct soft_qp *)ex)->sq;

	pthread_mutex_lock(&builder->lock);
	/* In this order: a RESET in between is noticed. */
	builder->resets = atomic_load(&sq->resets);
	builder->first = atomic_load(&sq->head);
	builder->count = 0;
	builder->error = 0;
	builder->building = false;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	pthread_mutex_unlock(&builder_of(ex)->lock);
}

/* All requests of the batch, or none. */
static int wr_complete(struct ibv_qp_ex *ex)
{
	struct soft_qp *qp = (struct soft_qp *)ex;
	struct soft_builder *builder = qp->builder;
	int error;

	store_request(qp);
	pthread_mutex_lock(&qp->sq.lock);
	error = builder->error;
	if (!error && qp->sq.resets != builder->resets)
		error = pier_fail(EINVAL, "soft0: QP %#x went through RESET",
				  qp->ibv.qp_num);
	if (!error)
		atomic_store_explicit(&qp->sq.head, builder->first + builder->count,
				      memory_order_release);
	pthread_mutex_unlock(&qp->sq.lock);
	pthread_mutex_unlock(&builder->lock);
	pier_soft_ring_doorbell(qp);
	return -error;
}

static void set_functions(struct ibv_qp_ex *ex)
{
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_send_inv = wr_send_inv;
	ex->wr_local_inv = wr_local_inv;
	ex->wr_bind_mw = wr_bind_mw;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
}

static int check_attr(const struct ibv_context *context,
		      const struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
			       IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	const uint64_t datagrams = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t connected = datagrams | IBV_QP_EX_WITH_RDMA_WRITE |
				   IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				   IBV_QP_EX_WITH_RDMA_READ |
				   IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
				   IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
				   IBV_QP_EX_WITH_SEND_WITH_INV;

	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || attr->pd->context != context)
		return pier_fail(EINVAL, "soft0: a queue pair needs a PD of its context");
	if ((attr->comp_mask & ~known) ||
	    ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr->create_flags))
		return pier_fail(EOPNOTSUPP,
				 "soft0: comp_mask %#x or create_flags %#x of a queue "
				 "pair",
				 attr->comp_mask, attr->create_flags);
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
	    (attr->send_ops_flags &
	     ~(attr->qp_type == IBV_QPT_UD ? datagrams : connected)))
		return pier_fail(EOPNOTSUPP, "soft0: send_ops_flags %#llx",
				 (unsigned long long)attr->send_ops_flags);
	return 0;
}

static bool add_builder(struct soft_qp *qp)
{
	qp->builder = calloc(1, sizeof(*qp->builder));
	if (!qp->builder)
		return false;
	pthread_mutex_init(&qp->builder->lock, NULL);
	set_functions(&qp->ex);
	return true;
}

struct ibv_qp *pier_soft_create_qp_ex(struct ibv_context *context,
				      struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp_init_attr plain = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
	};
	int error = check_attr(context, attr);
	struct ibv_qp *qp;

	if (error)
		return pier_null_with(error);
	qp = pier_soft_create_qp(attr->pd, &plain);
	if (!qp)
		return NULL;
	attr->cap = plain.cap;
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
	    !add_builder((struct soft_qp *)qp)) {
		pier_soft_destroy_qp(qp);
		return pier_null_with(-ENOMEM);
	}
	return qp;
}

struct ibv_qp_ex *pier_soft_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct soft_qp *soft = (struct soft_qp *)qp;

	return soft->builder ? &soft->ex : NULL;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "parts.h"

/* As mlx5_calc_send_wqe() of libmlx5: 192 bytes, for a window, and the elements. */
static bool fits_send_queue(const struct ibv_qp_cap *cap)
{
	uint32_t request = (192 + 16 * cap->max_send_sge + 63) / 64 * 64;
	uint64_t size = 64;

	while (size < (uint64_t)cap->max_send_wr * request)
		size *= 2;
	return fake.send_blocks == 0 || size / 64 <= fake.send_blocks;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp;

	if (fake_fails())
		return NULL;
	errno = EINVAL;
	if (!fits_send_queue(&attr->cap))
		return NULL;
	qp = calloc(1, sizeof(*qp));
	qp->context = pd->context;
	qp->pd = pd;
	qp->qp_num = FAKE_QPN + fake.qps_created++;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->srq = attr->srq;
	fake.last_qp = *attr;
	fake.cap = attr->cap;
	attr->cap.max_inline_data -= fake.less_inline;
	fake.qps++;
	return qp;
}

/* Complete the requests of one queue pair with an error. */
static void flush(const uint64_t *ids, const uint32_t *qpns, const int *count,
		  uint32_t qpn)
{
	for (int i = 0; i < *count;) {
		if (qpns[i] == qpn)
			fake_complete(ids[i], IBV_WC_WR_FLUSH_ERR, IBV_WC_BIND_MW,
				      0xdeadbeef);
		else
			i++;
	}
}

static void flush_sends(uint32_t qpn)
{
	flush(fake.send_ids, fake.send_qpns, &fake.sends, qpn);
}

void fake_flush_receives(uint32_t qpn)
{
	flush(fake.recv_ids, fake.recv_qpns, &fake.recvs, qpn);
}

static int keep_others(uint64_t *ids, uint32_t *qpns, int count, uint32_t qpn)
{
	int kept = 0;

	for (int i = 0; i < count; i++) {
		if (qpns[i] == qpn)
			continue;
		ids[kept] = ids[i];
		qpns[kept++] = qpns[i];
	}
	return kept;
}

static void forget_requests(uint32_t qpn)
{
	fake.sends = keep_others(fake.send_ids, fake.send_qpns, fake.sends, qpn);
	fake.recvs = keep_others(fake.recv_ids, fake.recv_qpns, fake.recvs, qpn);
}

/* 0, or the errno with which the NIC refuses the change. */
static int refuse_state(const struct ibv_qp *qp, const struct ibv_qp_attr *attr)
{
	if (fake.stays_in_error && qp->state == IBV_QPS_ERR &&
	    attr->qp_state == IBV_QPS_INIT)
		return EINVAL;
	if (attr->qp_state != IBV_QPS_RTR)
		return 0;
	if (fake.unresolved > 0) {
		fake.unresolved--;
		return ETIMEDOUT;
	}
	if (fake.rtr_lacks_memory > 0) {
		fake.rtr_lacks_memory--;
		return ENOMEM;
	}
	if (fake.read_budget && attr->max_dest_rd_atomic > fake.read_budget)
		return EINVAL;
	fake.read_budget -= fake.read_budget ? attr->max_dest_rd_atomic : 0;
	return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = refuse_state(qp, attr);

	(void)mask;
	if (fake_fails())
		return ENOSPC;
	if (error)
		return error;
	if (!fake.stays_in_error || qp->state != IBV_QPS_ERR)
		qp->state = attr->qp_state;
	fake.state = attr->qp_state;
	if (fake.changes < FAKE_QUEUE)
		fake.states[fake.changes++] = attr->qp_state;
	if (attr->qp_state == IBV_QPS_RESET)
		forget_requests(qp->qp_num);
	if (attr->qp_state == IBV_QPS_INIT)
		fake.init = *attr;
	if (attr->qp_state == IBV_QPS_RTR)
		fake.rtr = *attr;
	if (attr->qp_state == IBV_QPS_RTS)
		fake.rts = *attr;
	if (attr->qp_state == IBV_QPS_ERR && !fake.never_flushes) {
		flush_sends(qp->qp_num);
		fake_flush_receives(qp->qp_num);
	}
	return 0;
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		    struct ibv_qp_init_attr *ret_init_attr)
{
	(void)qp, (void)mask;
	if (fake_fails())
		return ENOSPC;
	*ret_attr = (struct ibv_qp_attr){ .qp_state = fake.state, .sq_psn = fake.sq_psn };
	*ret_init_attr = (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC };
	return 0;
}

static int destroy_qp(struct ibv_qp *qp)
{
	fake.mws_at_destroy = fake.mws;
	if (fake.cleans_cq)
		fake_clean_cq(qp->qp_num);
	forget_requests(qp->qp_num);
	fake_drop_events_of(qp);
	free(qp);
	fake.qps--;
	return 0;
}

void fake_add_queue_pairs(struct pier_provider *provider)
{
	provider->create_qp = create_qp;
	provider->modify_qp = modify_qp;
	provider->query_qp = query_qp;
	provider->destroy_qp = destroy_qp;
}

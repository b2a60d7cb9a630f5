/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include <infiniband/verbs.h>

#include "provider/provider.h"
#include "provider/soft/device.h"

/* Completion channels, completion queues, shared receive queues and queue pairs. */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	return pier_soft_provider.create_comp_channel(context);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	return pier_soft_provider.destroy_comp_channel(channel);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	return pier_soft_provider.create_cq(context, cqe, cq_context, channel,
					    comp_vector);
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	return pier_soft_verbs.resize_cq(cq, cqe);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	return pier_soft_provider.destroy_cq(cq);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
		     void **ret_cq_context)
{
	return pier_soft_provider.get_cq_event(channel, ret_cq, ret_cq_context);
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	pier_soft_provider.ack_cq_events(cq, count);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	return pier_soft_provider.create_srq(pd, attr);
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	return pier_soft_provider.modify_srq(srq, attr, mask);
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *ret_attr)
{
	return pier_soft_provider.query_srq(srq, ret_attr);
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	return pier_soft_provider.destroy_srq(srq);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return pier_soft_provider.create_qp(pd, attr);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return pier_soft_provider.modify_qp(qp, attr, mask);
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *ret_attr, int mask,
		 struct ibv_qp_init_attr *ret_init_attr)
{
	return pier_soft_provider.query_qp(qp, ret_attr, mask, ret_init_attr);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	return pier_soft_provider.destroy_qp(qp);
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return pier_soft_verbs.qp_to_qp_ex(qp);
}

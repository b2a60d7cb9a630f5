/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "parts.h"

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq *srq;

	if (fake_fails())
		return NULL;
	srq = calloc(1, sizeof(*srq));
	srq->context = pd->context;
	srq->pd = pd;
	fake.last_srq = attr->attr;
	fake.srqs++;
	return srq;
}

static int destroy_srq(struct ibv_srq *srq)
{
	if (fake_fails())
		return ENOSPC;
	free(srq);
	fake.srqs--;
	return 0;
}

static void log_send(const struct ibv_send_wr *wr)
{
	struct fake_send *send = &fake.log[fake.logged];

	if (fake.logged == FAKE_QUEUE || wr->num_sge > FAKE_SGE)
		return;
	send->wr = *wr;
	for (int i = 0; i < wr->num_sge; i++)
		send->sg_list[i] = wr->sg_list[i];
	fake.logged++;
}

/* Each request of a list counts as a call for `fail_call`. */
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	fake.doorbells++;
	for (; wr; wr = wr->next) {
		if (fake_fails()) {
			*bad = wr;
			return fake.fail_result;
		}
		fake.last_send = *wr;
		log_send(wr);
		fake.send_qpns[fake.sends] = qp->qp_num;
		fake.send_ids[fake.sends++] = wr->wr_id;
		if (fake.completes)
			fake_complete(wr->wr_id, fake.completes_with, IBV_WC_SEND, 0);
		if (fake.completes && fake.completes_with != IBV_WC_SUCCESS)
			fake_flush_receives(qp->qp_num);
	}
	return 0;
}

/* As for sends, each request of a list counts as a call. */
static int take_recvs(struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, uint64_t *ids,
		      int *count)
{
	fake.recv_doorbells++;
	for (; wr; wr = wr->next) {
		if (fake_fails()) {
			*bad = wr;
			return fake.fail_result;
		}
		fake.last_recv = *wr;
		if (wr->num_sge > 0)
			fake.last_recv_sge = wr->sg_list[0];
		ids[(*count)++] = wr->wr_id;
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error, before = fake.recvs;

	error = take_recvs(wr, bad, fake.recv_ids, &fake.recvs);
	for (int i = before; i < fake.recvs; i++)
		fake.recv_qpns[i] = qp->qp_num;
	return error;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad)
{
	(void)srq;
	return take_recvs(wr, bad, fake.shared_ids, &fake.shared);
}

void fake_add_requests(struct pier_provider *provider)
{
	provider->create_srq = create_srq;
	provider->destroy_srq = destroy_srq;
	fake.context.ops.post_send = post_send;
	fake.context.ops.post_recv = post_recv;
	fake.context.ops.post_srq_recv = post_srq_recv;
}

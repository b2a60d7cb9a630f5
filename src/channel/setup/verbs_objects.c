/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "attr.h"
#include "channel/collect.h"
#include "channel/cq/members.h"
#include "channel/recv/srq_post.h"
#include "core/error.h"
#include "refused_qp.h"
#include "region/window.h"
#include "verbs_objects.h"

/* The error of a verb that returned NULL: some providers do not set errno. */
static int last_errno(void)
{
	return errno ? errno : EIO;
}

int pier_open_channel_completions(struct pier_channel *channel)
{
	const struct pier_channel_attr *attr = &channel->attr;
	int error;

	if (!attr->cq) {
		channel->completions.comp_vector = attr->comp_vector;
		error = pier_open_completions("channel attributes", channel->pd->device,
					      pier_cq_entries(attr), channel,
					      &channel->completions);
	} else {
		error = pier_cq_reserve(attr->cq, pier_request_entries(attr), attr->srq);
		if (!error)
			channel->completions = attr->cq->completions;
	}
	channel->cq = channel->completions.cq;
	return error;
}

/*
 * The queue pair is gone, so no completion follows. Take those that the provider has
 * left in the queue, before another channel uses their entries.
 */
static void leave_cq(struct pier_channel *channel)
{
	struct pier_cq *cq = channel->attr.cq;

	pier_cq_remove(cq, channel);
	pier_list_remove(&channel->ready_link);
	pier_collect_cq(cq);
	pier_cq_release(cq, pier_request_entries(&channel->attr), channel->attr.srq);
	channel->cq = NULL;
}

int pier_name_qp(struct pier_channel *channel)
{
	struct pier_cq *cq = channel->attr.cq;

	if (cq)
		pier_cq_remove(cq, channel);
	channel->qp_num = channel->qp->qp_num;
	return cq ? pier_cq_add(cq, channel) : 0;
}

int pier_create_qp(struct pier_channel *channel)
{
	const struct pier_channel_attr *attr = &channel->attr;
	struct ibv_qp_init_attr init = {
		.qp_context = channel,
		.send_cq = channel->cq,
		.recv_cq = channel->cq,
		.srq = attr->srq ? attr->srq->srq : NULL,
		.cap = {
			.max_send_wr = attr->max_send_wr + (attr->keepalive_ms > 0),
			.max_recv_wr = attr->max_recv_wr,
			.max_send_sge = attr->max_send_sge,
			.max_recv_sge = attr->max_recv_sge,
			.max_inline_data = attr->max_inline,
		},
		.qp_type = IBV_QPT_RC,
	}, asked = init;
	char advice[REFUSED_QP_ADVICE];
	int error;

	errno = 0;
	pier_clear_error();
	channel->qp = pier_create_direct_qp(channel->provider, channel->pd->pd, &init);
	if (!channel->qp) {
		error = last_errno();
		pier_explain_refused_qp(channel, error, &asked, advice, sizeof(advice));
		return pier_fail_because(
			error,
			"create a queue pair of %u + %u requests, %u + %u elements and "
			"%u bytes inline%s%s",
			attr->max_send_wr, attr->max_recv_wr, attr->max_send_sge,
			attr->max_recv_sge, attr->max_inline, advice,
			error == EAGAIN ? " (is rdma.max of the cgroup reached?)" : "");
	}
	/* Do not use more than requested: that may be memory the CPU does not reach. */
	if (init.cap.max_inline_data < attr->max_inline)
		channel->attr.max_inline = init.cap.max_inline_data;
	return pier_name_qp(channel);
}

int pier_modify_to_init(struct pier_channel *channel)
{
	/* Ordering belongs to regions: queue pairs refuse the flag. */
	unsigned int access = (unsigned int)channel->attr.access &
			      ~(unsigned int)PIER_ACCESS_RELAXED_ORDERING;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = (uint16_t)channel->attr.pkey_index,
		.port_num = (uint8_t)channel->attr.port,
		.qp_access_flags = access,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	int error;

	pier_clear_error();
	error = channel->provider->modify_qp(channel->qp, &attr, mask);
	if (error)
		return pier_fail_because(error, "bring queue pair %#x to INIT",
					 channel->qp->qp_num);
	channel->is_reset = false;
	return 0;
}

/*
 * ibv_destroy_qp() ends all DMA of a queue pair in any state, without asking the peer.
 * It would wait for windows bound to the queue pair: 50 seconds on rxe
 * (rxe_do_bind_mw() holds a reference, rxe_cleanup() waits).
 */
int pier_destroy_verbs(struct pier_channel *channel)
{
	const struct pier_provider *provider = channel->provider;
	int error;

	pier_clear_error();
	error = pier_unbind_windows(channel->pd, &channel->windows);
	if (error)
		return pier_fail_because(error,
					 "deallocate a memory window of queue "
					 "pair %#x",
					 channel->qp->qp_num);
	error = channel->qp ? provider->destroy_qp(channel->qp) : 0;
	if (error)
		return pier_fail_because(error, "destroy queue pair %#x",
					 channel->qp->qp_num);
	channel->qp = NULL;
	if (channel->attr.cq) {
		if (channel->cq)
			leave_cq(channel);
		return 0;
	}
	error = pier_close_completions(provider, &channel->completions);
	channel->cq = channel->completions.cq;
	return error;
}

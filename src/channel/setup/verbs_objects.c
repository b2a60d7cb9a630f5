/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>

#include "attr.h"
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

/* pier_channel_arm() takes events and must not block in read(2). */
int pier_create_events(struct pier_channel *channel)
{
	int flags;

	errno = 0;
	pier_clear_error();
	channel->events = channel->provider->create_comp_channel(
		channel->pd->device->context);
	if (!channel->events)
		return pier_fail_because(last_errno(), "create a completion channel");
	flags = fcntl(channel->events->fd, F_GETFL);
	if (flags < 0 || fcntl(channel->events->fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return pier_fail_because(errno,
					 "make the completion channel non-blocking");
	return 0;
}

int pier_create_cq(struct pier_channel *channel)
{
	struct ibv_context *context = channel->pd->device->context;
	int vectors = context->num_comp_vectors > 1 ? context->num_comp_vectors : 1;
	int entries = (int)pier_cq_entries(&channel->attr);
	int vector = (int)channel->attr.comp_vector;

	if (vector < 0 || vector >= vectors)
		return pier_fail(EINVAL,
				 "channel attributes: comp_vector %u is not one of the "
				 "device's %d",
				 channel->attr.comp_vector, vectors);
	errno = 0;
	pier_clear_error();
	channel->cq = channel->provider->create_cq(context, entries, channel,
						   channel->events, vector);
	if (!channel->cq)
		return pier_fail_because(last_errno(),
					 "create a completion queue of %d on vector %d",
					 entries, vector);
	return 0;
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
	channel->qp = channel->provider->create_qp(channel->pd->pd, &init);
	if (!channel->qp) {
		error = last_errno();
		pier_explain_refused_qp(channel, error, &asked, advice, sizeof(advice));
		return pier_fail_because(
			error,
			"create a queue pair of %u + %u requests, %u + %u elements and "
			"%u bytes inline%s",
			attr->max_send_wr, attr->max_recv_wr, attr->max_send_sge,
			attr->max_recv_sge, attr->max_inline, advice);
	}
	channel->qp_num = channel->qp->qp_num;
	/* Do not use more than requested: that may be memory the CPU does not reach. */
	if (init.cap.max_inline_data < attr->max_inline)
		channel->attr.max_inline = init.cap.max_inline_data;
	return 0;
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
 * (rxe_do_bind_mw() holds a reference, rxe_cleanup() waits). ibv_destroy_cq() waits
 * until all events are acknowledged; they were, as they were taken.
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
	error = channel->cq ? provider->destroy_cq(channel->cq) : 0;
	if (error)
		return pier_fail_because(error, "destroy a completion queue");
	channel->cq = NULL;
	error = channel->events ? provider->destroy_comp_channel(channel->events) : 0;
	if (error)
		return pier_fail_because(error, "destroy a completion channel");
	channel->events = NULL;
	return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "attr.h"
#include "channel/channel.h"
#include "channel/collect.h"
#include "channel/cq/members.h"
#include "channel/recv/srq_post.h"
#include "core/error.h"
#include "core/text.h"
#include "region/mr.h"
#include "verbs_objects.h"

enum {
	REFUSED_QP_ADVICE = 160, /* bytes for the text */
};

/*
 * A device's limits hold one at a time. libmlx5 counts blocks of 64 bytes: a send of 16
 * elements takes 7 of them, so that 4,681 fit where max_qp_wr is 32,768, and it fails
 * with a bare EINVAL (mlx5_calc_sq_size() of libmlx5).
 */

/* A number in struct ibv_qp_cap, and the lowest that is useful. */
struct number {
	const char *name;
	size_t offset;
	uint32_t least;
};

static const struct number numbers[] = {
	{ "max_send_wr", offsetof(struct ibv_qp_cap, max_send_wr), 1 },
	{ "max_recv_wr", offsetof(struct ibv_qp_cap, max_recv_wr), 1 },
	{ "max_send_sge", offsetof(struct ibv_qp_cap, max_send_sge), 1 },
	{ "max_recv_sge", offsetof(struct ibv_qp_cap, max_recv_sge), 1 },
	{ "max_inline", offsetof(struct ibv_qp_cap, max_inline_data), 0 },
};

static uint32_t *number_in(struct ibv_qp_cap *cap, const struct number *number)
{
	return (uint32_t *)((char *)cap + number->offset);
}

/* The call changes what it is given: a copy. */
static bool accepts_qp(const struct pier_channel *channel, struct ibv_qp_init_attr init)
{
	struct ibv_qp *qp = pier_create_direct_qp(channel->provider, channel->pd->pd,
						  &init);

	return qp && channel->provider->destroy_qp(qp) == 0;
}

/* The highest number that is accepted, with the others as they are. False: none is. */
static bool find_highest(const struct pier_channel *channel, const struct number *number,
			 struct ibv_qp_init_attr init, uint32_t *ret_highest)
{
	uint32_t *value = number_in(&init.cap, number);
	uint32_t good = number->least, bad = *value;

	if (bad <= good)
		return false;
	*value = good;
	if (!accepts_qp(channel, init))
		return false;
	while (bad - good > 1) {
		*value = good + (bad - good) / 2;
		if (accepts_qp(channel, init))
			good = *value;
		else
			bad = *value;
	}
	*ret_highest = good;
	return true;
}

/*
 * Find out which numbers the device would accept in a queue pair that it refused with
 * this error, by creating others. Writes ": it takes max_send_wr 4681, or max_send_sge
 * 2", or "" if no single lower number helps.
 */
static void explain_refused_qp(const struct pier_channel *channel, int error,
			       const struct ibv_qp_init_attr *refused, char *ret_text,
			       size_t size)
{
	uint32_t highest;

	ret_text[0] = '\0';
	/* If it is accepted now, it was not refused for a number. */
	if ((error != EINVAL && error != ENOMEM) || accepts_qp(channel, *refused))
		return;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (find_highest(channel, &numbers[i], *refused, &highest))
			pier_append_text(ret_text, size, "%s %s %u",
					 ret_text[0] ? ", or" : ": it takes",
					 numbers[i].name, highest);
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
		error = pier_last_errno();
		explain_refused_qp(channel, error, &asked, advice, sizeof(advice));
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
	uint32_t access = channel->attr.access & ~(uint32_t)PIER_ACCESS_RELAXED_ORDERING;
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

int pier_end_windows(struct pier_channel *channel)
{
	int error;

	pier_clear_error();
	error = pier_unbind_windows(channel->pd, &channel->windows);
	return error ? pier_fail_because(error,
					 "deallocate a memory window of queue pair %#x",
					 channel->qp_num)
		     : 0;
}

/*
 * ibv_destroy_qp() ends all DMA of a queue pair in any state, without asking the peer.
 * It would wait for windows bound to the queue pair: 50 seconds on rxe
 * (rxe_do_bind_mw() holds a reference, rxe_cleanup() waits).
 */
int pier_destroy_verbs(struct pier_channel *channel)
{
	const struct pier_provider *provider = channel->provider;
	int error = pier_end_windows(channel);

	if (error)
		return error;
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

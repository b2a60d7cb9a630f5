/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "channel/setup/attr.h"
#include "channel.h"
#include "channel/extra/counter.h"
#include "channel/setup/gid.h"
#include "region/window.h"
#include "channel/setup/mtu.h"
#include "channel/extra/scope.h"
#include "channel/recv/recv_pool.h"
#include "channel/recv/srq.h"
#include "status.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/object.h"

static enum pier_link_layer link_layer_of(const struct ibv_port_attr *port)
{
	/* IBV_LINK_LAYER_UNSPECIFIED means InfiniBand (ibv_query_port(3)). */
	return port->link_layer == IBV_LINK_LAYER_ETHERNET ? PIER_LINK_ETHERNET
							   : PIER_LINK_INFINIBAND;
}

/* One that the caller named. */
static int query_gid(struct pier_channel *channel, int index)
{
	int error = channel->provider->query_gid(channel->pd->device->context,
						 (uint8_t)channel->attr.port,
						 (uint32_t)index, &channel->gid);

	if (error == ENODATA)
		return pier_fail(EADDRNOTAVAIL, "gid_index %d of port %u is empty", index,
				 channel->attr.port);
	if (error)
		return pier_fail_because(error, "read GID %d of port %u", index,
					 channel->attr.port);
	return 0;
}

/*
 * RoCE always needs a GID. InfiniBand has LIDs: GID 0 goes into the endpoint,
 * and into packets only if asked for or if the port wants it.
 */
static int choose_address(struct pier_channel *channel, const struct ibv_port_attr *port)
{
	int index = channel->attr.gid_index;

	channel->lid = port->lid;
	channel->link_layer = link_layer_of(port);
	channel->use_grh = channel->link_layer == PIER_LINK_ETHERNET || index >= 0 ||
			   (port->flags & IBV_QPF_GRH_REQUIRED);
	pier_clear_error();
	if (index >= 0)
		return query_gid(channel, index);
	if (channel->link_layer == PIER_LINK_INFINIBAND)
		return query_gid(channel, 0);
	return pier_find_gid(channel->provider, channel->pd->device->context,
			     (uint8_t)channel->attr.port, port->gid_tbl_len,
			     &channel->gid);
}

int pier_query_channel_port(struct pier_channel *channel)
{
	struct ibv_port_attr port = { 0 };
	uint8_t number = (uint8_t)channel->attr.port;
	int error;

	pier_clear_error();
	error = channel->provider->query_port(channel->pd->device->context, number,
					      &port);
	if (error)
		return pier_fail_because(error, "query port %u", number);
	error = pier_check_channel_port(&channel->attr, &port);
	if (error)
		return error;
	channel->max_msg_size = port.max_msg_sz;
	channel->least_plain = channel->attr.max_inline + 1;
	channel->plain_span = port.max_msg_sz > channel->attr.max_inline
				      ? port.max_msg_sz - channel->attr.max_inline
				      : 0;
	/* A port that does not say: the least that every link carries. */
	channel->port_mtu = pier_mtu_from_verbs(port.active_mtu);
	if (channel->port_mtu == 0)
		channel->port_mtu = 256;
	channel->port_mtu = pier_clamp_mtu(channel->attr.mtu, channel->port_mtu);
	return choose_address(channel, &port);
}

/*
 * The PSN protects a new connection from packets of an old one between the
 * same queue pairs, the first position a channel from handles of another.
 */
static int choose_numbers(struct pier_channel *channel)
{
	struct {
		uint64_t position;
		uint32_t psn, generation;
	} random;
	const struct pier_channel_attr *attr = &channel->attr;
	uint64_t first;
	int error;

	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return pier_fail(EIO, "getrandom gave too few bytes");
	channel->psn = channel->attr.psn == PIER_PSN_RANDOM ? random.psn & 0xffffff
							    : channel->attr.psn;
	channel->generation = random.generation ? random.generation : 1;
	first = random.position >> 3;
	error = pier_init_queue(&channel->sends, attr->max_send_wr, attr->max_send_sge,
				first);
	if (!error)
		error = pier_init_queue(&channel->receives, attr->max_recv_wr,
					attr->max_recv_sge, first);
	return error;
}

/* Of a verb that gave NULL: a provider may have forgotten to say why. */
static int last_errno(void)
{
	return errno ? errno : EIO;
}

/* Events are taken in pier_channel_arm(), which must not sleep in read(2). */
static int create_events(struct pier_channel *channel)
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

static int create_cq(struct pier_channel *channel)
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

static int create_qp(struct pier_channel *channel)
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
	};

	errno = 0;
	pier_clear_error();
	channel->qp = channel->provider->create_qp(channel->pd->pd, &init);
	if (!channel->qp)
		return pier_fail_because(
			last_errno(),
			"create a queue pair of %u + %u requests, %u + %u elements and "
			"%u bytes inline",
			attr->max_send_wr, attr->max_recv_wr, attr->max_send_sge,
			attr->max_recv_sge, attr->max_inline);
	channel->qp_num = channel->qp->qp_num;
	/* What is more than was asked may be memory that the CPU does not reach. */
	if (init.cap.max_inline_data < attr->max_inline)
		channel->attr.max_inline = init.cap.max_inline_data;
	return 0;
}

int pier_modify_to_init(struct pier_channel *channel)
{
	/* Ordering is a matter of regions: queue pairs refuse the flag. */
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

static int build(struct pier_channel *channel)
{
	static int (*const steps[])(struct pier_channel *) = {
		pier_query_channel_port,
		choose_numbers,
		create_events,
		create_cq,
		create_qp,
		pier_modify_to_init,
	};
	int error = 0;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !error; i++)
		error = steps[i](channel);
	return error;
}

/* In a child of fork: nothing is posted, and no handle is known. */
static void close_queue(struct pier_queue *queue)
{
	static struct pier_entry none = { .id = UINT64_MAX };

	queue->limit = 0;
	queue->mask = 0;
	queue->entries = &none;
}

static void forget_channel(struct pier_object *object)
{
	struct pier_channel *channel = (struct pier_channel *)object;

	close_queue(&channel->sends);
	close_queue(&channel->receives);
}

void pier_update_ready(struct pier_channel *channel)
{
	bool connected = channel->state == PIER_CHANNEL_CONNECTED && !channel->broken;
	bool prepared = channel->state == PIER_CHANNEL_PREPARED && !channel->broken;
	bool receives = (connected || prepared) && !channel->attr.srq;

	channel->sends.limit = connected ? channel->sends.depth : 0;
	channel->receives.limit = receives ? channel->receives.depth : 0;
	channel->told_broken = channel->told_broken && channel->broken;
}

static void describe_channel(const struct pier_object *object, char *ret_text,
			     size_t size)
{
	const struct pier_channel *channel = (const struct pier_channel *)object;

	snprintf(ret_text, size, "channel of queue pair %#x on %s", channel->qp_num,
		 channel->pd->device->name);
}

static const char *use_of_region(const struct pier_region_user *user, uint32_t lkey)
{
	const struct pier_channel *channel = pier_container_of(
		user, const struct pier_channel, region_user);
	enum pier_opcode opcode;

	if (pier_queue_uses(&channel->sends, lkey, &opcode) ||
	    pier_queue_uses(&channel->receives, lkey, &opcode))
		return pier_opcode_name(opcode);
	return NULL;
}

static struct pier_channel *new_channel(struct pier_pd *pd,
					const struct pier_channel_attr *attr)
{
	struct pier_channel *channel = calloc(
		1, sizeof(*channel) + attr->max_send_sge * sizeof(channel->scratch[0]));

	if (!channel)
		return NULL;
	channel->object.describe = describe_channel;
	channel->object.forked = forget_channel;
	channel->region_user.uses = use_of_region;
	channel->attr = *attr;
	/* With a shared receive queue that of the queue pair is not used. */
	if (attr->srq)
		channel->attr.max_recv_wr = channel->attr.max_recv_sge = 1;
	channel->last_message = &channel->first_message;
	pier_list_init(&channel->srq_link);
	channel->idle_calls = attr->keepalive_ms > 0;
	channel->max_read_sge = attr->max_send_sge;
	if (pd->device->limits.max_sge_rd > 0 &&
	    channel->max_read_sge > (uint32_t)pd->device->limits.max_sge_rd)
		channel->max_read_sge = (uint32_t)pd->device->limits.max_sge_rd;
	channel->has_atomics = pd->device->limits.atomic_cap != IBV_ATOMIC_NONE;
	channel->pd = pd;
	pier_list_init(&channel->windows);
	channel->provider = pd->device->provider;
	return channel;
}

/*
 * ibv_destroy_qp() ends all DMA of a queue pair, whatever its state, and asks
 * no peer. It would wait for windows that are bound to the queue pair, 50 seconds
 * on rxe (rxe_do_bind_mw() keeps it, rxe_cleanup() waits). Events were acknowledged as
 * they were taken, so that ibv_destroy_cq(), which waits for that, does not wait.
 */
static int destroy_verbs(struct pier_channel *channel)
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

/* 0, -ECHILD or -EINVAL. */
static int check_srq(const struct pier_pd *pd, const struct pier_srq *srq)
{
	int error = srq ? pier_check_process(&srq->object) : 0;

	if (!error && srq && srq->pd != pd)
		error = pier_fail(EINVAL, "channel attributes: srq is of another "
					  "protection domain than the channel");
	return error;
}

static void free_channel(struct pier_channel *channel)
{
	pier_free_queue(&channel->sends);
	pier_free_queue(&channel->receives);
	free(channel);
}

int pier_make_channel(struct pier_pd *pd, const struct pier_channel_attr *attr,
		      const struct pier_object *owner, struct pier_channel **ret_channel)
{
	struct pier_channel_attr known;
	struct pier_channel *channel;
	int error;

	error = pier_read_channel_attr(attr, &pd->device->limits, &known);
	if (!error)
		error = check_srq(pd, known.srq);
	if (!error)
		error = pier_check_channel_attr(&known, &pd->device->limits);
	if (error)
		return error;
	channel = new_channel(pd, &known);
	if (!channel)
		return pier_fail(ENOMEM, "no memory for a channel");
	error = build(channel);
	if (error) {
		error = pier_fail_because(error, "preparing a channel on %s",
					  pd->device->name);
		/* What a device does not take back may still be used by it. */
		if (destroy_verbs(channel) == 0)
			free_channel(channel);
		return error;
	}
	atomic_fetch_add(&pd->children, 1);
	pier_add_region_user(pd, &channel->region_user);
	pier_join_srq(channel);
	pier_object_track(&channel->object, PIER_OBJECT_CHANNEL, owner);
	pier_update_ready(channel);
	*ret_channel = channel;
	return 0;
}

int pier_channel_create(struct pier_pd *pd, const struct pier_channel_attr *attr,
			struct pier_channel **ret_channel)
{
	PIER_ENTRY();
	int error = pier_check_process(&pd->object);

	return error ? error : pier_make_channel(pd, attr, &pd->object, ret_channel);
}

int pier_check_owner(const struct pier_channel *channel, const char *doing)
{
	const struct pier_object *owner = channel->object.parent;
	char text[PIER_OBJECT_DESCRIPTION_SIZE];

	if (owner == &channel->pd->object)
		return 0;
	owner->describe(owner, text, sizeof(text));
	return pier_fail(EBUSY, "%s a channel: it belongs to the %s", doing, text);
}

int pier_channel_destroy(struct pier_channel *channel)
{
	int error;

	if (!channel)
		return 0;
	error = pier_check_process(&channel->object);
	if (!error)
		error = pier_check_owner(channel, "destroying");
	return error ? error : pier_end_channel(channel);
}

int pier_end_channel(struct pier_channel *channel)
{
	int error;

	pier_leave_srq(channel);
	error = destroy_verbs(channel);
	if (error)
		return error;
	pier_end_scopes(channel);
	pier_end_pool(channel);
	pier_end_arrivals(channel);
	pier_object_untrack(&channel->object);
	pier_remove_region_user(channel->pd, &channel->region_user);
	atomic_fetch_sub(&channel->pd->children, 1);
	free_channel(channel);
	return 0;
}

struct ibv_qp *pier_channel_qp(const struct pier_channel *channel)
{
	return channel->qp;
}

struct ibv_cq *pier_channel_cq(const struct pier_channel *channel)
{
	return channel->cq;
}

int pier_channel_fd(const struct pier_channel *channel)
{
	return channel->events->fd;
}

uint32_t pier_channel_outstanding(const struct pier_channel *channel)
{
	return pier_queue_outstanding(&channel->sends) +
	       pier_queue_outstanding(&channel->receives);
}

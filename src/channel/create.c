/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <pier/recovery.h>

#include "channel.h"
#include "channel/cq/cq.h"
#include "channel/counter.h"
#include "channel/scope.h"
#include "channel/recv/recv_pool.h"
#include "channel/recv/srq.h"
#include "channel/setup/attr.h"
#include "channel/setup/connect.h"
#include "channel/setup/gid.h"
#include "channel/setup/verbs_objects.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/object.h"
#include "create.h"
#include "status.h"

/*
 * The random PSN protects a new connection from packets of an old one between the same
 * queue pairs. The random first position tells handles of different channels apart.
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
		return pier_fail(EIO, "getrandom() returned too few bytes");
	channel->psn = channel->attr.psn == PIER_UNSET ? random.psn & 0xffffff
						       : channel->attr.psn;
	channel->generation = random.generation ? random.generation : 1;
	first = attr->cq ? pier_cq_next_position(attr->cq) : random.position >> 3;
	error = pier_init_queue(&channel->sends, attr->max_send_wr, attr->max_send_sge,
				first);
	if (!error)
		error = pier_init_queue(&channel->receives, attr->max_recv_wr,
					attr->max_recv_sge, first);
	return error;
}

static int build_channel(struct pier_channel *channel)
{
	static int (*const steps[])(struct pier_channel *) = {
		pier_query_channel_port,       choose_numbers,
		pier_open_channel_completions, pier_create_qp,
		pier_modify_to_init,
	};
	int error = 0;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !error; i++)
		error = steps[i](channel);
	return error;
}

/* In a child of fork(): posts are refused, and no handle is valid. */
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
	/* With a shared receive queue, the queue pair's own is not used. */
	if (attr->srq)
		channel->attr.max_recv_wr = channel->attr.max_recv_sge = 1;
	channel->last_message = &channel->first_message;
	pier_list_init(&channel->srq_link);
	pier_list_init(&channel->ready_link);
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

/* Errors: -ECHILD, -EINVAL. */
static int check_srq(const struct pier_pd *pd, const struct pier_srq *srq)
{
	int error = srq ? pier_check_process(&srq->object) : 0;

	if (!error && srq && srq->pd != pd)
		error = pier_fail(EINVAL, "channel attributes: srq is in another "
					  "protection domain than the channel");
	return error;
}

static void free_channel(struct pier_channel *channel)
{
	pier_free_queue(&channel->sends);
	pier_free_queue(&channel->receives);
	pier_drop_gids(channel->gids);
	free(channel->handshake);
	free(channel);
}

int pier_make_channel(struct pier_pd *pd, const struct pier_channel_attr *attr,
		      const struct pier_object *owner, struct pier_channel **ret_channel)
{
	struct pier_channel_attr known;
	struct pier_channel *channel;
	int error;

	error = pier_device_check_channels(pd->device);
	if (!error)
		error = pier_read_channel_attr(attr, &pd->device->limits, &known);
	if (!error)
		error = check_srq(pd, known.srq);
	if (!error)
		error = pier_check_cq(pd, known.cq, owner);
	if (!error)
		error = pier_check_channel_attr(&known, &pd->device->limits);
	if (error)
		return error;
	channel = new_channel(pd, &known);
	if (!channel)
		return pier_fail(ENOMEM, "no memory for a channel");
	error = build_channel(channel);
	if (error) {
		error = pier_fail_because(error, "preparing a channel on %s",
					  pd->device->name);
		/* The device may still use what it refuses to destroy. */
		if (pier_destroy_verbs(channel) == 0)
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
	PIER_REFUSE_NULL(pd, ret_channel);
	PIER_ENTRY();
	int error = pier_check_process(&pd->object);

	return error ? error : pier_make_channel(pd, attr, &pd->object, ret_channel);
}

int pier_channel_destroy(struct pier_channel *channel)
{
	int error;

	if (!channel)
		return 0;
	error = pier_check_process(&channel->object);
	if (!error)
		error = pier_check_owner(&channel->object, &channel->pd->object,
					 "destroying a channel");
	return error ? error : pier_end_channel(channel);
}

int pier_end_channel(struct pier_channel *channel)
{
	int error;

	pier_leave_srq(channel);
	error = pier_destroy_verbs(channel);
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

static uint8_t issued_reads(const struct pier_channel *channel)
{
	int limit = channel->pd->device->limits.max_qp_init_rd_atom;

	if (channel->state == PIER_CHANNEL_CONNECTED)
		return channel->read_depth;
	return (uint8_t)((int)channel->attr.max_rd_atomic < limit
				 ? (int)channel->attr.max_rd_atomic
				 : limit);
}

void pier_channel_query(const struct pier_channel *channel,
			struct pier_channel_attr *ret_attr, size_t size)
{
	PIER_REFUSE_NULL_AS(, channel, ret_attr);
	struct pier_channel_attr attr = channel->attr;

	attr.size = size;
	attr.mtu = channel->path_mtu ? channel->path_mtu : channel->port_mtu;
	attr.traffic_class = pier_traffic_class(channel);
	attr.max_rd_atomic = issued_reads(channel);
	attr.max_dest_rd_atomic = pier_served_reads(channel);
	attr.gid_index = channel->gid.gid_index;
	attr.psn = channel->psn;
	attr.cq_depth = (uint32_t)channel->cq->cqe;
	attr.comp_vector = channel->completions.comp_vector;
	pier_write_extensible(&attr, sizeof(attr), ret_attr, size);
}

int pier_channel_error(const struct pier_channel *channel,
		       struct pier_channel_failure *ret_failure, size_t size)
{
	PIER_REFUSE_NULL(channel);
	const struct pier_result *first = &channel->first;
	struct pier_channel_failure failure = { .first = *first };

	if (!channel->broken || !ret_failure)
		return channel->broken;
	failure.flushed = channel->flushed;
	failure.error_class = first->status
				      ? pier_status_class(first->status, first->opcode)
				      : PIER_CLASS_STOPPED;
	snprintf(failure.sentence, sizeof(failure.sentence), "%s", channel->cause);
	pier_write_extensible(&failure, sizeof(failure), ret_failure, size);
	return channel->broken;
}

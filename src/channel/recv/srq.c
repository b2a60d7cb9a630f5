/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "channel/collect.h"
#include "channel/setup/attr.h"
#include "channel/stop.h"
#include "srq.h"
#include "srq_post.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/object.h"

PIER_ASSERT_NO_PADDING(srq_attr, max_sge);

static void describe_srq(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_srq *srq = (const struct pier_srq *)object;

	snprintf(ret_text, size, "shared receive queue of %u on %s", srq->max_wr,
		 srq->pd->device->name);
}

static bool entry_uses(const struct pier_srq *srq, uint32_t index, uint32_t lkey)
{
	const struct ibv_sge *sges = srq->sges + (size_t)index * srq->max_sge;

	for (uint32_t i = 0; i < srq->entries[index].num_sge; i++) {
		/* Devices ignore the keys of empty elements. */
		if (sges[i].lkey == lkey && sges[i].length > 0)
			return true;
	}
	return false;
}

static const char *use_of_region(const struct pier_region_user *user, uint32_t lkey)
{
	struct pier_srq *srq = pier_container_of((struct pier_region_user *)user,
						 struct pier_srq, region_user);
	const char *use = NULL;

	pthread_mutex_lock(&srq->lock);
	for (uint32_t i = 0; srq->used > 0 && i < srq->max_wr && !use; i++) {
		if (srq->entries[i].id && entry_uses(srq, i, lkey))
			use = "receive";
	}
	pthread_mutex_unlock(&srq->lock);
	return use;
}

static int read_attr(const struct pier_srq_attr *attr,
		     const struct ibv_device_attr *limits, struct pier_srq_attr *ret_attr)
{
	static const char what[] = "shared receive queue attributes";
	uint32_t max_wr = (uint32_t)limits->max_srq_wr;
	struct pier_srq_attr known;
	int error = PIER_READ_ATTR(what, srq_attr, attr,
				   PIER_SIZE_UP_TO(srq_attr, max_sge), &known);

	if (known.max_wr == PIER_UNSET)
		known.max_wr = pier_clamp_to_limit(256, max_wr);
	if (known.max_sge == PIER_UNSET)
		known.max_sge = 1;
	if (!error && known.max_wr > PIER_QUEUE_MAX)
		error = pier_check_range(what, "max_wr", known.max_wr, 1, PIER_QUEUE_MAX,
					 "pier's");
	if (!error)
		error = pier_check_range(what, "max_wr", known.max_wr, 1, max_wr,
					 "the device's max_srq_wr");
	if (!error)
		error = pier_check_range(what, "max_sge", known.max_sge, 1,
					 (uint32_t)limits->max_srq_sge,
					 "the device's max_srq_sge");
	*ret_attr = known;
	return error;
}

static void free_srq(struct pier_srq *srq)
{
	free(srq->entries);
	free(srq->sges);
	pthread_mutex_destroy(&srq->lock);
	free(srq);
}

static struct pier_srq *new_srq(struct pier_pd *pd, const struct pier_srq_attr *attr)
{
	struct pier_srq *srq = calloc(1, sizeof(*srq));

	if (!srq)
		return NULL;
	srq->object.describe = describe_srq;
	srq->region_user.uses = use_of_region;
	srq->provider = pd->device->provider;
	srq->pd = pd;
	srq->max_wr = attr->max_wr;
	srq->max_sge = attr->max_sge;
	pthread_mutex_init(&srq->lock, NULL);
	pier_list_init(&srq->channels);
	srq->entries = calloc(srq->max_wr, sizeof(*srq->entries));
	srq->sges = calloc((size_t)srq->max_wr * srq->max_sge, sizeof(*srq->sges));
	if (!srq->entries || !srq->sges) {
		free_srq(srq);
		return NULL;
	}
	for (uint32_t i = srq->max_wr; i-- > 0;) {
		srq->entries[i].next = srq->free;
		srq->free = &srq->entries[i];
	}
	return srq;
}

static int create_verbs(struct pier_srq *srq)
{
	struct ibv_srq_init_attr init = {
		.attr = { .max_wr = srq->max_wr, .max_sge = srq->max_sge },
	};

	/* A random start, so that the wr_ids of another queue match no receive of this
	 * one. */
	if (getrandom(&srq->serial, sizeof(srq->serial), 0) !=
	    (ssize_t)sizeof(srq->serial))
		return pier_fail(EIO, "getrandom() returned too few bytes");
	errno = 0;
	pier_clear_error();
	srq->srq = srq->provider->create_srq(srq->pd->pd, &init);
	if (!srq->srq)
		return pier_fail_because(pier_last_errno(),
					 "create a shared receive queue of %u receives "
					 "with %u elements on %s",
					 srq->max_wr, srq->max_sge,
					 srq->pd->device->name);
	return 0;
}

int pier_make_srq(struct pier_pd *pd, const struct pier_srq_attr *attr,
		  struct pier_recv_pool *pool, struct pier_srq **ret_srq)
{
	/* The object is the first member of a pool. */
	const struct pier_object *owner = pool ? (struct pier_object *)pool : &pd->object;
	const struct ibv_device_attr *limits = &pd->device->limits;
	struct pier_srq_attr known;
	struct pier_srq *srq;
	int error;

	if (limits->max_srq <= 0 || !pd->device->provider->create_srq)
		return pier_fail(EOPNOTSUPP,
				 "%s has no shared receive queues (max_srq %d)",
				 pd->device->name, limits->max_srq);
	error = read_attr(attr, limits, &known);
	if (error)
		return error;
	srq = new_srq(pd, &known);
	if (!srq)
		return pier_fail(ENOMEM, "no memory for a shared receive queue of %u",
				 known.max_wr);
	error = create_verbs(srq);
	if (error) {
		free_srq(srq);
		return error;
	}
	srq->pool = pool;
	atomic_fetch_add(&pd->children, 1);
	pier_add_region_user(pd, &srq->region_user);
	pier_object_track(&srq->object, PIER_OBJECT_SRQ, owner);
	*ret_srq = srq;
	return 0;
}

int pier_srq_create(struct pier_pd *pd, const struct pier_srq_attr *attr,
		    struct pier_srq **ret_srq)
{
	PIER_REFUSE_NULL(pd, ret_srq);
	PIER_ENTRY();
	int error = pier_check_process(&pd->object);

	return error ? error : pier_make_srq(pd, attr, NULL, ret_srq);
}

int pier_end_srq(struct pier_srq *srq)
{
	uint32_t channels;
	int error;

	pthread_mutex_lock(&srq->lock);
	channels = srq->channel_count;
	pthread_mutex_unlock(&srq->lock);
	if (channels > 0)
		return pier_fail(
			EBUSY, "destroying a shared receive queue on %s: %u channel%s it",
			srq->pd->device->name, channels,
			channels == 1 ? " has" : "s have");
	pier_clear_error();
	error = srq->provider->destroy_srq(srq->srq);
	if (error)
		return pier_fail_because(error, "destroy a shared receive queue on %s",
					 srq->pd->device->name);
	pier_object_untrack(&srq->object);
	pier_remove_region_user(srq->pd, &srq->region_user);
	atomic_fetch_sub(&srq->pd->children, 1);
	free_srq(srq);
	return 0;
}

static int check_usable(const struct pier_srq *srq, const char *doing)
{
	int error = pier_check_process(&srq->object);

	return error ? error : pier_check_owner(&srq->object, &srq->pd->object, doing);
}

int pier_srq_destroy(struct pier_srq *srq)
{
	int error = srq ? check_usable(srq, "destroying a shared receive queue") : 0;

	return error || !srq ? error : pier_end_srq(srq);
}

int pier_srq_post_recv(struct pier_srq *srq, const struct pier_scatter *sg_list,
		       uint32_t num_sge, void *context)
{
	PIER_REFUSE_NULL(srq);
	PIER_REFUSE_NULL_ARRAY(sg_list, num_sge);
	struct pier_srq_recv recv = { .sg_list = (const struct ibv_sge *)sg_list,
				      .num_sge = num_sge,
				      .context = context };
	uint32_t posted;
	int error = check_usable(srq, "posting to a shared receive queue");

	if (!error && num_sge > srq->max_sge)
		error = pier_fail(EINVAL,
				  "%u elements; this shared receive queue takes 0 to %u",
				  num_sge, srq->max_sge);
	return error ? error : pier_srq_post(srq, &recv, 1, &posted);
}

void pier_join_srq(struct pier_channel *channel)
{
	struct pier_srq *srq = channel->attr.srq;

	if (!srq)
		return;
	pthread_mutex_lock(&srq->lock);
	pier_list_append(&srq->channels, &channel->srq_link);
	srq->channel_count++;
	pthread_mutex_unlock(&srq->lock);
}

/* Before the queue pair is destroyed: see pier_stop_channel(). */
void pier_leave_srq(struct pier_channel *channel)
{
	struct pier_srq *srq = channel->attr.srq;

	if (!srq || pier_list_empty(&channel->srq_link))
		return;
	pier_stop_channel(channel);
	pier_srq_post_again(channel);
	pthread_mutex_lock(&srq->lock);
	pier_list_remove(&channel->srq_link);
	srq->channel_count--;
	pthread_mutex_unlock(&srq->lock);
}

void pier_find_broken_qp(struct pier_channel *channel)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (channel->broken || channel->state != PIER_CHANNEL_CONNECTED ||
	    channel->provider->query_qp(channel->qp, &attr, IBV_QP_STATE, &init) != 0 ||
	    (attr.qp_state != IBV_QPS_ERR && attr.qp_state != IBV_QPS_SQE))
		return;
	pier_break_channel(channel, -ECANCELED,
			   "the queue pair is in the error state: the peer disconnected, "
			   "or the device or this end stopped it");
	channel->cause_is_flush = true; /* a later completion may give the cause */
	/* Collect the messages that came before. */
	pier_collect(channel);
}

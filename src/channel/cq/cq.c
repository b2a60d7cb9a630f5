/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "channel/collect.h"
#include "channel/keepalive.h"
#include "channel/setup/attr.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/object.h"
#include "cq.h"

PIER_ASSERT_NO_PADDING(cq_attr, comp_vector);

static void describe_cq(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_cq *cq = (const struct pier_cq *)object;

	snprintf(ret_text, size, "completion queue of %d on %s", cq->completions.cq->cqe,
		 cq->pd->device->name);
}

static int read_attr(const struct pier_cq_attr *attr,
		     const struct ibv_device_attr *limits, struct pier_cq_attr *ret_attr)
{
	static const char what[] = "completion queue attributes";
	uint32_t max_cqe = (uint32_t)limits->max_cqe;
	struct pier_cq_attr known;
	int error = PIER_READ_ATTR(what, cq_attr, attr,
				   PIER_SIZE_UP_TO(cq_attr, comp_vector), &known);

	if (known.depth == PIER_UNSET)
		known.depth = pier_clamp_to_limit(1024, max_cqe);
	if (!error)
		error = pier_check_range(what, "depth", known.depth, 1, max_cqe,
					 "the device's max_cqe");
	*ret_attr = known;
	return error;
}

static int open_cq(struct pier_cq *cq, const struct pier_cq_attr *attr)
{
	if (getrandom(&cq->position, sizeof(cq->position), 0) !=
	    (ssize_t)sizeof(cq->position))
		return pier_fail(EIO, "getrandom() returned too few bytes");
	cq->completions.comp_vector = attr->comp_vector;
	return pier_open_completions("completion queue attributes", cq->pd->device,
				     attr->depth, cq, &cq->completions);
}

int pier_make_cq(struct pier_pd *pd, const struct pier_cq_attr *attr,
		 const struct pier_object *owner, struct pier_cq **ret_cq)
{
	struct pier_cq_attr known;
	struct pier_cq *cq;
	int error = read_attr(attr, &pd->device->limits, &known);

	if (error)
		return error;
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return pier_fail(ENOMEM, "no memory for a completion queue");
	cq->object.describe = describe_cq;
	cq->pd = pd;
	pier_list_init(&cq->srqs);
	pier_list_init(&cq->ready);
	error = open_cq(cq, &known);
	if (error) {
		error = pier_fail_because(error, "preparing a completion queue on %s",
					  pd->device->name);
		/* The device may still use what it refuses to destroy. */
		if (pier_close_completions(pd->device->provider, &cq->completions) == 0)
			free(cq);
		return error;
	}
	atomic_fetch_add(&pd->children, 1);
	pier_object_track(&cq->object, PIER_OBJECT_CQ, owner);
	*ret_cq = cq;
	return 0;
}

int pier_cq_create(struct pier_pd *pd, const struct pier_cq_attr *attr,
		   struct pier_cq **ret_cq)
{
	PIER_REFUSE_NULL(pd, ret_cq);
	PIER_ENTRY();
	int error = pier_check_process(&pd->object);

	return error ? error : pier_make_cq(pd, attr, &pd->object, ret_cq);
}

int pier_end_cq(struct pier_cq *cq)
{
	int error;

	if (cq->channel_count > 0)
		return pier_fail(EBUSY,
				 "destroying a completion queue on %s: %u channel%s it",
				 cq->pd->device->name, cq->channel_count,
				 cq->channel_count == 1 ? " uses" : "s use");
	error = pier_close_completions(cq->pd->device->provider, &cq->completions);
	if (error)
		return error;
	pier_object_untrack(&cq->object);
	atomic_fetch_sub(&cq->pd->children, 1);
	free(cq->buckets);
	free(cq);
	return 0;
}

int pier_cq_destroy(struct pier_cq *cq)
{
	int error = cq ? pier_check_process(&cq->object) : 0;

	if (!error && cq)
		error = pier_check_owner(&cq->object, &cq->pd->object,
					 "destroying a completion queue");
	return error || !cq ? error : pier_end_cq(cq);
}

int pier_check_cq(const struct pier_pd *pd, const struct pier_cq *cq,
		  const struct pier_object *parent)
{
	int error = cq ? pier_check_process(&cq->object) : 0;

	if (error || !cq)
		return error;
	if (cq->pd->device != pd->device)
		return pier_fail(EINVAL,
				 "channel attributes: cq is of %s, the channel of %s",
				 cq->pd->device->name, pd->device->name);
	return cq->object.parent == parent
		       ? 0
		       : pier_check_owner(&cq->object, &cq->pd->object,
					  "using a completion queue");
}

int pier_cq_poll(struct pier_cq *cq, struct pier_channel **ret_channels, uint32_t max)
{
	PIER_REFUSE_NULL(cq, ret_channels);
	uint32_t count = 0;
	int error = pier_check_process(&cq->object);

	if (!error && max < 1)
		error = pier_fail(EINVAL, "room for no channel; at least 1 is needed");
	if (!error)
		error = pier_collect_cq(cq);
	if (error < 0)
		return error;
	if (pier_unlikely(cq->keepalive_count))
		pier_keepalive_check_members(cq);
	for (; count < max && !pier_list_empty(&cq->ready); count++) {
		struct pier_list *link = cq->ready.next;

		ret_channels[count] = pier_container_of(link, struct pier_channel,
							ready_link);
		pier_list_remove(link);
	}
	return (int)count;
}

int pier_cq_fd(const struct pier_cq *cq)
{
	PIER_REFUSE_NULL(cq);
	return cq->completions.events->fd;
}

int pier_cq_arm(struct pier_cq *cq)
{
	PIER_REFUSE_NULL(cq);
	int error = pier_check_process(&cq->object);

	if (!error)
		error = pier_request_event(cq->pd->device->provider, &cq->completions);
	if (!error)
		error = pier_collect_cq(cq);
	return error < 0 ? error : !pier_list_empty(&cq->ready);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "cq.h"
#include "core/error.h"
#include "core/fd.h"
#include "events.h"
#include "provider/soft/soft.h"

static struct soft_cqe *cqe_at(const struct soft_cq *cq, uint32_t index)
{
	return &cq->entries[(cq->first + index) % cq->capacity];
}

struct soft_comp_channel {
	struct ibv_comp_channel ibv;
	pthread_mutex_t lock;
	pthread_cond_t acknowledged;
	struct pier_list events; /* CQs with events; fd is readable iff not empty */
	unsigned int users;
};

static void use_channel(struct soft_comp_channel *channel)
{
	if (!channel)
		return;
	pthread_mutex_lock(&channel->lock);
	channel->users++;
	pthread_mutex_unlock(&channel->lock);
}

static bool is_valid_size(int cqe)
{
	return cqe >= 1 && cqe <= SOFT_MAX_CQE;
}

struct ibv_cq *pier_soft_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				   struct ibv_comp_channel *channel, int comp_vector)
{
	struct soft_cq *cq;

	if (!is_valid_size(cqe) || comp_vector < 0 ||
	    comp_vector >= context->num_comp_vectors)
		return pier_null_with(pier_fail(
			EINVAL, "soft0: a CQ of %d entries (1 to %d) on vector %d of %d",
			cqe, SOFT_MAX_CQE, comp_vector, context->num_comp_vectors));
	cq = calloc(1, sizeof(*cq));
	if (cq)
		cq->entries = calloc((size_t)cqe, sizeof(*cq->entries));
	if (!cq || !cq->entries) {
		free(cq);
		return pier_null_with(-ENOMEM);
	}
	cq->capacity = (uint32_t)cqe;
	pthread_mutex_init(&cq->lock, NULL);
	pthread_mutex_init(&cq->polled.lock, NULL);
	pier_list_init(&cq->event_link);
	pier_soft_init_event_source(&cq->events, &cq->ibv);
	cq->ibv.context = context;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	cq->ibv.cqe = cqe;
	use_channel((struct soft_comp_channel *)channel);
	pier_soft_use_handle(context);
	return &cq->ibv;
}

static struct soft_comp_channel *channel_of(const struct soft_cq *cq)
{
	return (struct soft_comp_channel *)cq->ibv.channel;
}

static void unlink_events(struct soft_comp_channel *channel, struct soft_cq *cq)
{
	pier_list_remove(&cq->event_link);
	if (pier_list_empty(&channel->events))
		pier_soft_set_readable(channel->ibv.fd, false);
}

/*
 * Drops events that were not taken, and waits until those taken are acknowledged, as
 * ibv_destroy_cq(3) does.
 */
static void retire_events(struct soft_cq *cq)
{
	struct soft_comp_channel *channel = channel_of(cq);

	if (!channel)
		return;
	pthread_mutex_lock(&channel->lock);
	if (cq->events_queued > 0)
		unlink_events(channel, cq);
	cq->events_queued = 0;
	while (cq->events_unacknowledged > 0)
		pthread_cond_wait(&channel->acknowledged, &channel->lock);
	channel->users--;
	pthread_mutex_unlock(&channel->lock);
}

int pier_soft_destroy_cq(struct ibv_cq *ibv_cq)
{
	struct soft_cq *cq = (struct soft_cq *)ibv_cq;

	if (atomic_load(&cq->users) > 0)
		return -pier_fail(EBUSY, "soft0: queue pairs still use the CQ");
	retire_events(cq);
	pier_soft_retire_event_source(ibv_cq->context, &cq->events);
	pier_soft_leave_handle(ibv_cq->context);
	pthread_mutex_destroy(&cq->polled.lock);
	pthread_mutex_destroy(&cq->lock);
	free(cq->entries);
	free(cq);
	return 0;
}

/* With the CQ locked. False: the completions do not fit. */
static bool move_completions(struct soft_cq *cq, struct soft_cqe *entries,
			     uint32_t capacity)
{
	if (cq->count > capacity)
		return false;
	for (uint32_t i = 0; i < cq->count; i++)
		entries[i] = *cqe_at(cq, i);
	cq->entries = entries;
	cq->first = 0;
	cq->capacity = capacity;
	cq->ibv.cqe = (int)capacity;
	return true;
}

int pier_soft_resize_cq(struct ibv_cq *ibv_cq, int cqe)
{
	struct soft_cq *cq = (struct soft_cq *)ibv_cq;
	struct soft_cqe *entries, *old;
	bool fits;

	if (!is_valid_size(cqe))
		return -pier_fail(EINVAL, "soft0: a CQ of %d entries (1 to %d)", cqe,
				  SOFT_MAX_CQE);
	entries = calloc((size_t)cqe, sizeof(*entries));
	if (!entries)
		return ENOMEM;
	pthread_mutex_lock(&cq->lock);
	old = cq->entries;
	fits = move_completions(cq, entries, (uint32_t)cqe);
	pthread_mutex_unlock(&cq->lock);
	free(fits ? old : entries);
	if (fits)
		return 0;
	return -pier_fail(EINVAL, "soft0: %d entries: more completions wait in the CQ",
			  cqe);
}

static void queue_event(struct soft_cq *cq)
{
	struct soft_comp_channel *channel = channel_of(cq);

	pthread_mutex_lock(&channel->lock);
	if (cq->events_queued++ == 0) {
		if (pier_list_empty(&channel->events))
			pier_soft_set_readable(channel->ibv.fd, true);
		pier_list_append(&channel->events, &cq->event_link);
	}
	pthread_mutex_unlock(&channel->lock);
}

/* An unsuccessful completion counts as solicited (IBTA 11.4.2.2). */
static void notify_completion(struct soft_cq *cq, enum ibv_wc_status status,
			      bool solicited)
{
	if (cq->armed == SOFT_UNARMED || !cq->ibv.channel)
		return;
	if (cq->armed == SOFT_ARMED_SOLICITED && !solicited && status == IBV_WC_SUCCESS)
		return;
	cq->armed = SOFT_UNARMED;
	queue_event(cq);
}

/* Takes back one event; false if it has none that was not taken. */
static bool withdraw_event(struct soft_cq *cq)
{
	struct soft_comp_channel *channel = channel_of(cq);
	bool queued;

	pthread_mutex_lock(&channel->lock);
	queued = cq->events_queued > 0;
	if (queued && --cq->events_queued == 0)
		unlink_events(channel, cq);
	pthread_mutex_unlock(&channel->lock);
	return queued;
}

void pier_soft_announce_waiting(struct soft_cq *cq)
{
	enum soft_armed armed = cq->armed;

	if (cq->announced != SOFT_UNARMED)
		withdraw_event(cq); /* armed twice: one event */
	for (uint32_t i = 0; i < cq->count && cq->armed != SOFT_UNARMED; i++) {
		const struct soft_cqe *cqe = cqe_at(cq, i);

		notify_completion(cq, cqe->wc.status, cqe->solicited);
	}
	cq->announced = cq->armed == SOFT_UNARMED ? armed : SOFT_UNARMED;
}

void pier_soft_withdraw_announced(struct soft_cq *cq)
{
	if (cq->announced == SOFT_UNARMED || cq->count > 0)
		return;
	if (withdraw_event(cq))
		cq->armed = cq->announced;
	cq->announced = SOFT_UNARMED;
}

bool pier_soft_push_cqe(struct soft_cq *cq, const struct soft_cqe *cqe, bool solicited)
{
	struct soft_cqe *last;
	bool fits, known;

	pthread_mutex_lock(&cq->lock);
	known = cq->overrun;
	if (cq->overwrites && cq->count == cq->capacity)
		pier_soft_remove_cqe(cq);
	fits = cq->count < cq->capacity && !cq->overrun;
	if (fits) {
		last = cqe_at(cq, cq->count++);
		*last = *cqe;
		last->solicited = solicited;
		if (cq->has_times)
			last->time = pier_soft_now();
	}
	/*
	 * The queue pair fails, and its own queues with it, but a shared receive queue
	 * lives on.
	 */
	if (!fits && cqe->shared)
		pier_soft_free_slots(cqe);
	cq->overrun |= !fits;
	notify_completion(cq, fits ? cqe->wc.status : IBV_WC_GENERAL_ERR, solicited);
	pthread_mutex_unlock(&cq->lock);
	return fits || known;
}

void pier_soft_purge_cq(struct soft_cq *cq, const struct soft_qp *qp)
{
	uint32_t kept = 0;

	pthread_mutex_lock(&cq->lock);
	for (uint32_t i = 0; i < cq->count; i++) {
		const struct soft_cqe *cqe = cqe_at(cq, i);

		if (cqe->qp != qp) {
			*cqe_at(cq, kept++) = *cqe;
		} else if (cqe->shared) {
			pier_soft_free_slots(cqe);
		}
	}
	cq->count = kept;
	pthread_mutex_unlock(&cq->lock);
}

struct ibv_comp_channel *pier_soft_create_comp_channel(struct ibv_context *context)
{
	struct soft_comp_channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->ibv.fd = eventfd(0, EFD_CLOEXEC);
	if (channel->ibv.fd < 0) {
		free(channel);
		return NULL;
	}
	channel->ibv.context = context;
	pthread_mutex_init(&channel->lock, NULL);
	pthread_cond_init(&channel->acknowledged, NULL);
	pier_list_init(&channel->events);
	pier_soft_use_handle(context);
	return &channel->ibv;
}

int pier_soft_destroy_comp_channel(struct ibv_comp_channel *ibv_channel)
{
	struct soft_comp_channel *channel = (struct soft_comp_channel *)ibv_channel;
	bool used;

	pthread_mutex_lock(&channel->lock);
	used = channel->users > 0;
	pthread_mutex_unlock(&channel->lock);
	if (used)
		return -pier_fail(EBUSY,
				  "soft0: completion queues still use the channel");
	pier_soft_leave_handle(ibv_channel->context);
	pthread_cond_destroy(&channel->acknowledged);
	pthread_mutex_destroy(&channel->lock);
	pier_close_fd(channel->ibv.fd);
	free(channel);
	return 0;
}

static struct soft_cq *take_event(struct soft_comp_channel *channel)
{
	struct soft_cq *cq = NULL;

	pthread_mutex_lock(&channel->lock);
	if (!pier_list_empty(&channel->events)) {
		cq = pier_container_of(channel->events.next, struct soft_cq, event_link);
		cq->events_unacknowledged++;
		if (--cq->events_queued == 0)
			unlink_events(channel, cq);
		else {
			pier_list_remove(&cq->event_link);
			pier_list_append(&channel->events, &cq->event_link);
		}
	}
	pthread_mutex_unlock(&channel->lock);
	return cq;
}

int pier_soft_get_cq_event(struct ibv_comp_channel *ibv_channel, struct ibv_cq **ret_cq,
			   void **ret_cq_context)
{
	struct soft_comp_channel *channel = (struct soft_comp_channel *)ibv_channel;
	struct soft_cq *cq;

	while (!(cq = take_event(channel))) {
		if (pier_wait_readable(channel->ibv.fd))
			return -1;
	}
	*ret_cq = &cq->ibv;
	*ret_cq_context = cq->ibv.cq_context;
	return 0;
}

void pier_soft_ack_cq_events(struct ibv_cq *ibv_cq, unsigned int count)
{
	struct soft_cq *cq = (struct soft_cq *)ibv_cq;
	struct soft_comp_channel *channel = channel_of(cq);

	if (!channel)
		return;
	pthread_mutex_lock(&channel->lock);
	cq->events_unacknowledged -= count;
	pthread_cond_broadcast(&channel->acknowledged);
	pthread_mutex_unlock(&channel->lock);
}

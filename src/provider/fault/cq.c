/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cq.h"
#include "channel.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/fd.h"
#include "failure.h"
#include "fault.h"
#include "lie.h"
#include "persona.h"
#include "post.h"

enum {
	BATCH = 16, /* completions taken at once, on the stack */
};

static void attach_to_channel(struct fault_cq *cq)
{
	if (cq->ibv.channel)
		pier_list_append(&fault_comp_channel(cq->ibv.channel)->cqs, &cq->link);
}

/* The context of the device's CQ leads back to this one. */
static bool create_under(struct fault_cq *cq, struct ibv_context *ibv, int cqe,
			 int comp_vector)
{
	struct fault_context *context = fault_context(ibv);
	struct ibv_comp_channel *channel = cq->ibv.channel;

	cq->under = context->beneath->create_cq(
		context->under, cqe, cq,
		channel ? fault_comp_channel(channel)->under : NULL, comp_vector);
	if (!cq->under)
		return false;
	cq->ibv.cqe = cq->under->cqe;
	cq->ibv.handle = cq->under->handle;
	cq->capacity = (uint32_t)cq->under->cqe;
	cq->waiting = calloc(cq->capacity, sizeof(*cq->waiting));
	if (cq->waiting)
		return true;
	context->beneath->destroy_cq(cq->under);
	errno = ENOMEM;
	return false;
}

struct ibv_cq *pier_fault_create_cq(struct ibv_context *ibv, int cqe, void *cq_context,
				    struct ibv_comp_channel *channel, int comp_vector)
{
	struct fault_context *context = fault_context(ibv);
	const struct pier_persona *persona = context->plan.persona;
	struct fault_cq *cq = fault_allocate(ibv, FAULT_CREATE_CQ, sizeof(*cq));
	int error;

	if (!cq)
		return NULL;
	cq->ibv.context = ibv;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	error = persona ? pier_persona_check_cq(persona, cqe) : 0;
	if (error)
		errno = error;
	if (error || !create_under(cq, ibv, cqe, comp_vector))
		return fault_free(cq);
	pthread_mutex_init(&cq->ibv.mutex, NULL);
	pthread_cond_init(&cq->ibv.cond, NULL);
	pier_list_init(&cq->link);
	pthread_mutex_lock(&context->lock);
	attach_to_channel(cq);
	pthread_mutex_unlock(&context->lock);
	return &cq->ibv;
}

int pier_fault_destroy_cq(struct ibv_cq *ibv)
{
	struct fault_cq *cq = fault_cq(ibv);
	struct fault_context *context = fault_context(cq->ibv.context);
	int error = pier_fault_fails(&context->plan, FAULT_DESTROY_CQ);

	if (error)
		return error;
	pthread_mutex_lock(&context->lock);
	pier_list_remove(&cq->link);
	pthread_mutex_unlock(&context->lock);
	error = context->beneath->destroy_cq(cq->under);
	if (error) {
		pthread_mutex_lock(&context->lock);
		attach_to_channel(cq);
		pthread_mutex_unlock(&context->lock);
		return error;
	}
	/* Blocks while events are not acknowledged, as ibv_destroy_cq(3) does. */
	pthread_mutex_lock(&cq->ibv.mutex);
	while (cq->ibv.comp_events_completed != cq->events)
		pthread_cond_wait(&cq->ibv.cond, &cq->ibv.mutex);
	pthread_mutex_unlock(&cq->ibv.mutex);
	pthread_mutex_lock(&context->lock);
	pier_fault_drop_events(context, &cq->ibv);
	pthread_mutex_unlock(&context->lock);
	pthread_mutex_destroy(&cq->ibv.mutex);
	pthread_cond_destroy(&cq->ibv.cond);
	free(cq->waiting);
	free(cq);
	return 0;
}

static void break_users(struct fault_cq *cq)
{
	struct fault_context *context = fault_context(cq->ibv.context);

	cq->overrun = true;
	pier_list_for_each(struct fault_qp, qp, &context->qps, link) {
		if (qp->ibv.send_cq == &cq->ibv || qp->ibv.recv_cq == &cq->ibv)
			pier_fault_break_qp(qp);
	}
}

/* In a failed completion nothing else is valid (ibv_poll_cq(3)). */
static struct ibv_wc failed_completion(const struct ibv_wc *wc, enum ibv_wc_status status)
{
	return (struct ibv_wc){
		.wr_id = wc->wr_id,
		.status = status,
		.vendor_err = FAULT_VENDOR_ERROR,
		.qp_num = wc->qp_num,
	};
}

/* After a failure the queue pair is in ERR, and the device flushes the rest. */
static void count_answer(struct fault_qp *qp, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS)
		qp->unanswered = 0;
	else if (!(wc->opcode & IBV_WC_RECV) && qp->unanswered > 0)
		qp->unanswered--;
}

/*
 * Applies the plan and earlier failures to a completion. After a failure the rest of the
 * same queue is flushed, even what the device has done by then: no initiator can see the
 * difference. The device flushes the other queue of the pair from now on.
 */
static void change_status(struct fault_context *context, struct ibv_wc *wc)
{
	const struct pier_fault_rule *rule = pier_fault_strikes(
		&context->plan, FAULT_STATUS, FAULT_COMPLETION);
	struct fault_qp *qp = pier_fault_find_qp(context, wc->qp_num);
	int queue = wc->opcode & IBV_WC_RECV ? FAULT_RECEIVES : FAULT_SENDS;

	if (!qp)
		return;
	pier_fault_scatter(context, qp, wc);
	if (wc->status == IBV_WC_SUCCESS && !(wc->opcode & IBV_WC_RECV))
		pier_fault_land_reads(qp);
	count_answer(qp, wc);
	if (wc->status == IBV_WC_WR_FLUSH_ERR && qp->has_first_failed &&
	    wc->wr_id == qp->first_failed) {
		*wc = failed_completion(wc, IBV_WC_RETRY_EXC_ERR);
		qp->has_first_failed = false;
	}
	if (wc->status != IBV_WC_SUCCESS)
		return;
	if (qp->failed[queue]) {
		*wc = failed_completion(wc, IBV_WC_WR_FLUSH_ERR);
	} else if (rule) {
		*wc = failed_completion(wc, (enum ibv_wc_status)rule->value);
		qp->failed[queue] = true;
		pier_fault_break_qp(qp);
	}
}

/* A completion comes no sooner than earlier ones of its queue pair. */
static void queue_completion(struct fault_cq *cq, const struct ibv_wc *wc,
			     const struct pier_fault_rule *late)
{
	struct fault_completion *last = &cq->waiting[cq->count];

	*last = (struct fault_completion){ .wc = *wc };
	if (late && late->in_polls)
		last->due_polls = cq->polls + late->value;
	else if (late)
		last->due = pier_now() + (int64_t)late->value;
	for (uint32_t i = 0; i < cq->count; i++) {
		const struct fault_completion *other = &cq->waiting[i];

		if (other->wc.qp_num != wc->qp_num)
			continue;
		if (other->due > last->due)
			last->due = other->due;
		if (other->due_polls > last->due_polls)
			last->due_polls = other->due_polls;
	}
	cq->count++;
}

/* Each kind of rule counts each completion until the queue overruns. */
static void handle_completion(struct fault_cq *cq, struct ibv_wc *wc)
{
	struct fault_context *context = fault_context(cq->ibv.context);
	const struct pier_fault_rule *lost, *late;

	if (cq->overrun)
		return;
	change_status(context, wc);
	lost = pier_fault_strikes(&context->plan, FAULT_LOST, FAULT_COMPLETION);
	late = pier_fault_strikes(&context->plan, FAULT_LATE, FAULT_COMPLETION);
	if (pier_fault_strikes(&context->plan, FAULT_OVERRUN, FAULT_COMPLETION))
		break_users(cq);
	else if (!lost)
		queue_completion(cq, wc, late);
}

int pier_fault_take_completions(struct fault_cq *cq)
{
	struct ibv_wc batch[BATCH];
	int wanted, count;

	do {
		wanted = (int)(cq->capacity - cq->count);
		if (wanted > BATCH)
			wanted = BATCH;
		count = ibv_poll_cq(cq->under, wanted, batch);
		for (int i = 0; i < count; i++)
			handle_completion(cq, &batch[i]);
	} while (count > 0 && count == wanted);
	return count < 0 ? count : 0;
}

static int return_completions(struct fault_cq *cq, int count, struct ibv_wc *ret_wc)
{
	int64_t now = pier_now();
	uint32_t kept = 0;
	int taken = 0;

	for (uint32_t i = 0; i < cq->count; i++) {
		const struct fault_completion *one = &cq->waiting[i];

		if (taken < count && one->due <= now && one->due_polls <= cq->polls)
			ret_wc[taken++] = one->wc;
		else
			cq->waiting[kept++] = *one;
	}
	cq->count = kept;
	return taken;
}

static int poll_locked(struct fault_cq *cq, int count, struct ibv_wc *ret_wc)
{
	int error, taken;

	cq->polls++;
	pier_fault_fail_dead_peers(fault_context(cq->ibv.context), pier_now());
	error = pier_fault_take_completions(cq);
	taken = return_completions(cq, count, ret_wc);
	pier_fault_set_timer(&cq->ibv);
	if (taken == 0 && error)
		return error;
	if (taken == 0 && cq->overrun)
		return pier_fail(EIO,
				 "fault: the completion queue of %d entries has overrun, "
				 "as planned",
				 cq->ibv.cqe);
	return taken;
}

int pier_fault_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *ret_wc)
{
	struct fault_cq *cq = fault_cq(ibv);
	int taken;

	if (count <= 0)
		return count < 0 ? -EINVAL : 0;
	pthread_mutex_lock(&fault_context(cq->ibv.context)->lock);
	taken = -pier_fault_fails(&fault_context(cq->ibv.context)->plan, FAULT_POLL_CQ);
	if (!taken)
		taken = poll_locked(cq, count, ret_wc);
	pthread_mutex_unlock(&fault_context(cq->ibv.context)->lock);
	return taken;
}

void pier_fault_purge_cq(struct ibv_cq *ibv, uint32_t qp_num)
{
	struct fault_cq *cq = fault_cq(ibv);
	uint32_t kept = 0;

	for (uint32_t i = 0; i < cq->count; i++) {
		if (cq->waiting[i].wc.qp_num != qp_num)
			cq->waiting[kept++] = cq->waiting[i];
	}
	cq->count = kept;
}

/* Asks the device for an event late. Completions before that already count. */
static void ask_device_late(struct fault_cq *cq, int64_t now)
{
	if (!cq->ask_at || now < cq->ask_at)
		return;
	cq->ask_at = 0;
	ibv_req_notify_cq(cq->under, cq->ask_solicited);
	pier_fault_take_completions(cq);
}

static bool has_event(const struct fault_cq *cq, int64_t now)
{
	if (!cq->armed || cq->ask_at)
		return false;
	for (uint32_t i = 0; i < cq->count; i++) {
		if (fault_due_time(cq, &cq->waiting[i]) <= now)
			return true;
	}
	return false;
}

static void give_event(struct fault_cq *cq)
{
	cq->armed = false;
	pthread_mutex_lock(&cq->ibv.mutex);
	cq->events++;
	pthread_mutex_unlock(&cq->ibv.mutex);
}

/* A CQ whose event the timer announced, or NULL. */
static struct fault_cq *take_due_event(struct fault_comp_channel *channel)
{
	struct fault_cq *found = NULL;
	int64_t now = pier_now();

	pier_fault_fail_dead_peers(fault_context(channel->ibv.context), now);
	pier_list_for_each(struct fault_cq, cq, &channel->cqs, link) {
		ask_device_late(cq, now);
		if (!found && has_event(cq, now))
			found = cq;
	}
	if (found)
		give_event(found);
	pier_fault_set_channel_timer(channel);
	return found;
}

/*
 * A CQ with an event of the device, or NULL with errno. The event is acknowledged here;
 * destroying the wrapping CQ waits for the acknowledgement of its own.
 */
static struct fault_cq *take_device_event(struct fault_comp_channel *channel)
{
	const struct pier_provider *beneath =
		fault_context(channel->ibv.context)->beneath;
	struct ibv_cq *under;
	void *cq_context;

	errno = 0;
	if (beneath->get_cq_event(channel->under, &under, &cq_context))
		return NULL;
	beneath->ack_cq_events(under, 1);
	pthread_mutex_lock(&fault_context(channel->ibv.context)->lock);
	give_event(cq_context);
	pthread_mutex_unlock(&fault_context(channel->ibv.context)->lock);
	return cq_context;
}

static struct fault_cq *take_event(struct fault_comp_channel *channel)
{
	struct fault_cq *cq;

	pthread_mutex_lock(&fault_context(channel->ibv.context)->lock);
	cq = take_due_event(channel);
	pthread_mutex_unlock(&fault_context(channel->ibv.context)->lock);
	return cq ? cq : take_device_event(channel);
}

int pier_fault_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **ret_cq,
			    void **ret_cq_context)
{
	struct fault_comp_channel *channel = fault_comp_channel(ibv);
	struct fault_cq *cq;

	if (pier_fault_fails(&fault_context(channel->ibv.context)->plan,
			     FAULT_GET_CQ_EVENT))
		return -1;
	while (!(cq = take_event(channel))) {
		if (errno != EAGAIN || pier_wait_readable(channel->ibv.fd))
			return -1;
	}
	*ret_cq = &cq->ibv;
	*ret_cq_context = cq->ibv.cq_context;
	return 0;
}

int pier_fault_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	struct fault_cq *cq = fault_cq(ibv);
	struct fault_context *context = fault_context(ibv->context);
	const struct pier_fault_rule *late;
	int error;

	pthread_mutex_lock(&context->lock);
	error = pier_fault_fails(&context->plan, FAULT_REQ_NOTIFY_CQ);
	late = pier_fault_strikes(&context->plan, FAULT_NOTIFY_LATE, FAULT_REQ_NOTIFY_CQ);
	if (!error && late) {
		cq->ask_at = pier_now() + (int64_t)late->value;
		cq->ask_solicited = solicited_only;
	} else if (!error && !cq->ask_at) {
		error = ibv_req_notify_cq(cq->under, solicited_only);
	}
	cq->armed |= !error;
	pier_fault_set_timer(ibv);
	pthread_mutex_unlock(&context->lock);
	return error;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "failure.h"
#include "core/log.h"

struct fault_qp *pier_fault_find_qp(struct fault_context *context, uint32_t qp_num)
{
	pier_list_for_each(struct fault_qp, qp, &context->qps, link) {
		if (qp->ibv.qp_num == qp_num)
			return qp;
	}
	return NULL;
}

/*
 * A queue pair in ERR flushes what is posted to it, after everything posted before: so
 * the device itself gives the completions their order, their entries in the CQ and their
 * event.
 */
void pier_fault_release_withheld(struct fault_qp *qp)
{
	for (uint32_t i = 0; i < qp->withheld_count; i++) {
		struct ibv_send_wr wr = { .wr_id = qp->withheld[i],
					  .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED },
				   *bad;
		int error = ibv_post_send(qp->under, &wr, &bad);

		if (error)
			pier_warning("fault: queue pair %#x does not flush: errno %d",
				     qp->ibv.qp_num, error);
	}
	qp->withheld_count = 0;
	qp->dies_at = 0;
}

void pier_fault_break_qp(struct fault_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int error = fault_context(qp->ibv.context)
			    ->beneath->modify_qp(qp->under, &attr, IBV_QP_STATE);

	if (error)
		pier_warning("fault: queue pair %#x does not go to ERR: errno %d",
			     qp->ibv.qp_num, error);
	qp->ibv.state = IBV_QPS_ERR;
	pier_fault_release_withheld(qp);
}

void pier_fault_fail_dead_peers(struct fault_context *context, int64_t now)
{
	pier_list_for_each(struct fault_qp, qp, &context->qps, link) {
		if (now < fault_death(qp))
			continue;
		qp->has_first_failed = true;
		qp->first_failed = qp->withheld[0];
		pier_fault_break_qp(qp);
	}
}

static bool is_of_queue_pair(const struct ibv_async_event *event)
{
	return event->event_type == IBV_EVENT_QP_FATAL ||
	       event->event_type == IBV_EVENT_QP_REQ_ERR ||
	       event->event_type == IBV_EVENT_QP_ACCESS_ERR;
}

/* The element of each event: ibv_get_async_event(3). */
void pier_fault_report_event(struct fault_qp *qp, const struct pier_fault_rule *rule)
{
	struct fault_context *context = fault_context(qp->ibv.context);
	struct ibv_async_event event = { .event_type = (enum ibv_event_type)rule->value };

	if (event.event_type == IBV_EVENT_CQ_ERR)
		event.element.cq = qp->ibv.send_cq;
	else if (is_of_queue_pair(&event))
		event.element.qp = &qp->ibv;
	else
		event.element.port_num = 1;
	/* The state changes before the event: rxe_port_down() in rxe_net.c. */
	if (event.event_type == IBV_EVENT_PORT_ERR)
		context->port_down = true;
	if (event.event_type == IBV_EVENT_PORT_ACTIVE)
		context->port_down = false;
	if (context->reported_count < FAULT_EVENTS)
		context->reported[context->reported_count++] = event;
}

void pier_fault_drop_events(struct fault_context *context, const void *object)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < context->reported_count; i++) {
		const struct ibv_async_event *event = &context->reported[i];

		if ((const void *)event->element.qp != object)
			context->reported[kept++] = *event;
	}
	context->reported_count = kept;
}

static void keep_number(struct fault_context *context, struct ibv_async_event *event)
{
	if (!is_of_queue_pair(event))
		return;
	context->event_qp.qp_num = event->element.qp->qp_num;
	event->element.qp = &context->event_qp;
}

/* With the context locked. */
static bool take_planned_event(struct fault_context *context,
			       struct ibv_async_event *ret_event)
{
	if (context->reported_count == 0)
		return false;
	*ret_event = context->reported[0];
	context->reported_count--;
	memmove(context->reported, context->reported + 1,
		context->reported_count * sizeof(context->reported[0]));
	keep_number(context, ret_event);
	return true;
}

/* Its queue pair has the same number here. */
static int take_event_beneath(struct fault_context *context,
			      struct ibv_async_event *ret_event)
{
	const struct pier_provider *beneath = context->beneath;
	struct ibv_async_event event;

	errno = EAGAIN;
	if (!beneath->get_async_event || beneath->get_async_event(context->under, &event))
		return -1;
	*ret_event = event;
	keep_number(context, ret_event);
	if (event.event_type == IBV_EVENT_CQ_ERR) {
		struct fault_cq *cq = event.element.cq->cq_context;

		ret_event->element.cq = &cq->ibv;
	}
	beneath->ack_async_event(&event);
	return 0;
}

int pier_fault_get_async_event(struct ibv_context *ibv, struct ibv_async_event *ret_event)
{
	struct fault_context *context = fault_context(ibv);
	bool planned;

	pthread_mutex_lock(&context->lock);
	planned = take_planned_event(context, ret_event);
	pthread_mutex_unlock(&context->lock);
	return planned ? 0 : take_event_beneath(context, ret_event);
}

void pier_fault_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "async.h"

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

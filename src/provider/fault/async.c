/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "async.h"

/* The element of each event: ibv_get_async_event(3). */
void pier_fault_report_event(struct fault_qp *qp, const struct pier_fault_rule *rule)
{
	struct fault_context *context = fault_context(qp->ibv.context);
	struct ibv_async_event event = { .event_type = (enum ibv_event_type)rule->value };

	switch (event.event_type) {
	case IBV_EVENT_CQ_ERR:
		event.element.cq = qp->ibv.send_cq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		event.element.qp = &qp->ibv;
		break;
	default:
		event.element.port_num = 1;
	}
	if (context->reported_count < FAULT_EVENTS)
		context->reported[context->reported_count++] = event;
}

int pier_fault_get_async_event(struct ibv_context *ibv, struct ibv_async_event *ret_event)
{
	struct fault_context *context = fault_context(ibv);
	bool has_event;

	pthread_mutex_lock(&context->lock);
	has_event = context->reported_count > 0;
	if (has_event) {
		*ret_event = context->reported[0];
		context->reported_count--;
		memmove(context->reported, context->reported + 1,
			context->reported_count * sizeof(context->reported[0]));
	}
	pthread_mutex_unlock(&context->lock);
	errno = has_event ? 0 : EAGAIN;
	return has_event ? 0 : -1;
}

void pier_fault_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

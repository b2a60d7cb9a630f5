/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_ASYNC_H
#define PIER_FAULT_ASYNC_H

#include "fault.h"

/* The device reports the event of a rule, about a queue pair. With the context locked. */
void pier_fault_report_event(struct fault_qp *qp, const struct pier_fault_rule *rule);

/* For struct pier_provider. The events of the device beneath stay there. */
int pier_fault_get_async_event(struct ibv_context *context,
			       struct ibv_async_event *ret_event);
void pier_fault_ack_async_event(struct ibv_async_event *event);

#endif

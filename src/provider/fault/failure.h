/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_FAILURE_H
#define PIER_FAULT_FAILURE_H

#include "fault.h"

/* How queue pairs fail. With the context locked. */

struct fault_qp *pier_fault_find_qp(struct fault_context *context, uint32_t qp_num);
/* Brings it to ERR, which flushes its requests. */
void pier_fault_break_qp(struct fault_qp *qp);
/* Posts the withheld requests to the device, which flushes them: the QP is in ERR. */
void pier_fault_release_withheld(struct fault_qp *qp);
/* Fails the requests to those dead peers whose time has come. */
void pier_fault_fail_dead_peers(struct fault_context *context, int64_t now);

/* Asynchronous events. */

/* The device reports the event of a rule, about a queue pair. With the context locked. */
void pier_fault_report_event(struct fault_qp *qp, const struct pier_fault_rule *rule);

/*
 * For struct pier_provider: the events of the plan, then those of the device beneath. The
 * queue pair of an event has its number alone, and may be gone; the completion queue is
 * the caller's. The caller does not take two at once: pier_take_device_events().
 */
int pier_fault_get_async_event(struct ibv_context *context,
			       struct ibv_async_event *ret_event);
void pier_fault_ack_async_event(struct ibv_async_event *event);

/*
 * An object goes: drop its events, as the kernel does (ib_uverbs_release_uevent()). With
 * the context locked.
 */
void pier_fault_drop_events(struct fault_context *context, const void *object);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_EVENTS_H
#define PIER_SOFT_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"

/*
 * The asynchronous events of a context, which async_fd announces
 * (ibv_get_async_event(3)). They are affiliated with an object: soft0 has no events of
 * ports and of the device.
 */

struct soft_handle;

/*
 * The events of one queue pair, CQ or SRQ, under the lock of the context's events. An
 * event of a type that is still pending is not repeated, so reporting needs no memory.
 */
struct soft_event_source {
	struct pier_list link;
	void *element;		     /* of the event: struct ibv_qp, ibv_cq or ibv_srq */
	uint32_t pending;	     /* bits of enum ibv_event_type */
	unsigned int unacknowledged; /* of those taken */
};

/* 0 or -errno. */
int pier_soft_open_events(struct soft_handle *handle);

/* Also after pier_soft_open_events() failed. */
void pier_soft_close_events(struct soft_handle *handle);

void pier_soft_init_event_source(struct soft_event_source *source, void *element);

/* On any thread, with the engine locked or not. */
void pier_soft_report_event(struct ibv_context *context, struct soft_event_source *source,
			    enum ibv_event_type type);

/*
 * The object is about to be destroyed and reports no more: drops its events that were not
 * taken, and waits until those taken are acknowledged.
 */
void pier_soft_retire_event_source(struct ibv_context *context,
				   struct soft_event_source *source);

/* As ibv_get_async_event(3). */
int pier_soft_get_async_event(struct ibv_context *context,
			      struct ibv_async_event *ret_event);

/* One event of the source was acknowledged. */
void pier_soft_ack_source(struct ibv_context *context, struct soft_event_source *source);

/*
 * The fd of a queue of events: an eventfd that is readable exactly while the queue is not
 * empty. It is written and read only under the lock of the queue.
 */

void pier_soft_set_readable(int fd, bool readable);

#endif

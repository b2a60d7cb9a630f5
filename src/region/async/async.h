/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_ASYNC_ASYNC_H
#define PIER_REGION_ASYNC_ASYNC_H

#include <pthread.h>
#include <stdbool.h>

#include <pier/event.h>

#include "core/list.h"
#include "core/object.h"

struct pier_event_queue {
	struct pier_object object;
	pthread_mutex_t lock; /* guards everything below, and the registrations */
	pthread_cond_t work;  /* something is queued, or `stop` is set */
	struct pier_list queued;
	struct pier_list events; /* registrations in the order of their completion */
	uint32_t depth;
	uint32_t unread; /* registrations that are not closed and whose event was not read
			  */
	uint32_t open;	 /* registrations that are not closed */
	uint32_t busy;	 /* registrations taken out of `queued` that are not complete */
	int fd;		 /* an eventfd: 1 while there are events */
	bool stop;
	uint32_t thread_count;
	pthread_t threads[];
};

enum pier_registration_state {
	PIER_REGISTRATION_QUEUED,
	PIER_REGISTRATION_BUSY, /* a thread works on it without the lock */
	PIER_REGISTRATION_OVER, /* its event can be read */
	PIER_REGISTRATION_READ,
};

struct pier_registration {
	struct pier_object object;
	struct pier_list link; /* in queued or events */
	struct pier_event_queue *queue;
	/* Take it out of the queue and complete it. Called with the queue locked;
	 * unlocks.
	 */
	void (*run)(struct pier_registration *registration);
	struct pier_pd *pd;	/* counted as its child; NULL when it is over */
	struct pier_mr *region; /* until it is registered or freed */
	enum pier_registration_state state;
	bool cancelled, closed;
	struct pier_event event;
};

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_ASYNC_EVENT_QUEUE_H
#define PIER_REGION_ASYNC_EVENT_QUEUE_H

#include <pthread.h>
#include <stdbool.h>

#include <pier/event.h>

#include "core/list.h"
#include "core/object.h"

struct pier_event_queue {
	struct pier_object object;
	pthread_mutex_t lock; /* of all below, and of the registrations */
	pthread_cond_t work;  /* for the threads: something is queued, or the end */
	struct pier_list queued;
	struct pier_list events; /* of registrations that are over, in that order */
	uint32_t depth;
	uint32_t unread; /* not closed, and no event read */
	uint32_t open;	 /* not closed */
	uint32_t busy;	 /* taken out of the queue, and not over */
	int fd;		 /* eventfd(2): 1 while there are events */
	bool stop;
	uint32_t thread_count;
	pthread_t threads[];
};

enum pier_registration_state {
	PIER_REGISTRATION_QUEUED,
	PIER_REGISTRATION_BUSY, /* some thread has it, without the lock */
	PIER_REGISTRATION_OVER, /* its event waits */
	PIER_REGISTRATION_READ,
};

struct pier_registration {
	struct pier_object object;
	struct pier_list link; /* in queued or events */
	struct pier_event_queue *queue;
	/* Takes it from the queue to its end, with the queue locked; unlocks meanwhile.
	 */
	void (*run)(struct pier_registration *registration);
	struct pier_pd *pd;	/* kept; NULL when it is over */
	struct pier_mr *region; /* until it is registered or freed */
	enum pier_registration_state state;
	bool cancelled, closed;
	struct pier_event event;
};

/* With the queue locked: */

/* Put the event of a registration at the end, and take it out from anywhere. */
void pier_publish_event(struct pier_registration *registration);
void pier_withdraw_event(struct pier_registration *registration);

#endif

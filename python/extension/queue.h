/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_QUEUE_H
#define PIER_PY_QUEUE_H

#include <pthread.h>

#include "threads.h"

struct pier_py_dropped;

/*
 * The completion queue of a channel, or of a group with all of its channels: its lock,
 * and the threads and event loops that wait for it.
 *
 * A wait gives up the lock while it sleeps, so several threads can wait on one channel.
 * One of them, the sleeper, arms the queue and sleeps on its fd. Arming clears the
 * readiness of the fd, which would make the others miss a completion that another thread
 * has collected. So the others wait until the sleeper has woken up, and event loops are
 * told after each arming that they have to check their requests.
 */
struct pier_py_queue {
	struct pier_py_lock lock;
	const char *name; /* "channel" or "group", for exceptions */
	/* With the lock: */
	uint32_t users; /* transfers and rings in progress, which forbid to close it */
	bool has_sleeper;
	/* With the mutex: */
	PyObject *watchers; /* NULL, or a tuple of functions of event loops */
	pthread_mutex_t mutex;
	pthread_cond_t woken;
	uint64_t turn; /* goes up whenever a sleeper has woken up */
	struct pier_py_dropped *dropped;
};

/** Returns 0, or -1 with an exception. */
int pier_py_queue_init(struct pier_py_queue *queue, const char *name);

/** Take the lock of an open queue. Returns false with an exception. */
static inline bool pier_py_queue_take(struct pier_py_queue *queue)
{
	return pier_py_lock_take(&queue->lock, queue->name);
}

static inline void pier_py_queue_release(struct pier_py_queue *queue)
{
	pier_py_lock_release(&queue->lock);
}

/**
 * Make all threads and event loops that wait for the queue check their requests: after
 * the library armed it, or after it was stopped or closed. Keeps an exception.
 *
 * except  the function of an event loop that is not called; NULL: none
 */
void pier_py_queue_wake(struct pier_py_queue *queue, PyObject *except);

/** Add or remove a function of an event loop. With the lock. -1: raised. */
int pier_py_queue_watch(struct pier_py_queue *queue, PyObject *wake);
int pier_py_queue_unwatch(struct pier_py_queue *queue, PyObject *wake);

/**
 * Wait until the check holds.
 *
 * channel  of the queue; for its fd and its waiting mode
 * check    called with the lock and without the GIL: 1, 0, or the error of a call
 *
 * With the lock, which is given up in between. Returns 1; 0 after timeout_ms; or -1 with
 * an exception: of the check, of a signal handler, or because the queue was closed.
 */
int pier_py_queue_wait(struct pier_py_queue *queue, struct pier_channel *channel,
		       int (*check)(void *subject), void *subject, int timeout_ms);

/** A Work is gone before its request has completed: keep the regions. Steals them. */
void pier_py_queue_drop(struct pier_py_queue *queue, struct pier_channel *channel,
			struct pier_work work, PyObject *regions);

/** Release the regions of dropped requests that have completed. With the lock. */
void pier_py_queue_reap(struct pier_py_queue *queue);

/**
 * Close the owner of a queue: a channel, or a group with all of its channels.
 *
 * subject  of the sentence: "the channel is"
 * destroy  a function of the library; on an error it has destroyed nothing
 *
 * Returns None if it is closed now, or was before; NULL: raised (pier.Busy if transfers
 * or rings use a channel).
 */
PyObject *pier_py_queue_close(struct pier_py_queue *queue, const char *subject,
			      int (*destroy)(void *), void *owner);

/** The same for Py_tp_dealloc, without exceptions. Half-built queues are allowed. */
void pier_py_queue_delete(struct pier_py_queue *queue, int (*destroy)(void *),
			  void *owner);

/* The locks of several queues, for what uses several channels. */

/**
 * Sort queues into the order of locking, and remove those that occur again: two threads
 * that lock several take them in the same order.
 *
 * Returns how many remain.
 */
uint32_t pier_py_queues_sort(struct pier_py_queue **queues, uint32_t count);

/** Take the locks of sorted queues. Returns false with an exception, and has none. */
bool pier_py_queues_take(struct pier_py_queue **queues, uint32_t count);

void pier_py_queues_release(struct pier_py_queue **queues, uint32_t count);

/** pier_py_queue_wake() for each; without the locks. */
void pier_py_queues_wake(struct pier_py_queue **queues, uint32_t count);

#endif

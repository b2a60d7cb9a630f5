/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_EVENT_H
#define PIER_EVENT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * Registrations that nobody waits for. Registering pins memory and can take the
 * driver long: pier_reg_mr_async() leaves that to threads of an event queue and
 * returns a handle, and an event tells the result.
 *
 * Each call that succeeded has exactly one event, unless its handle is closed
 * before that is read; a call that failed has none. The handle is written before
 * any thread can read the event. It stays valid until it is closed, which is due
 * for every handle, whenever and by whichever thread, also long after the event.
 *
 * While a registration goes on it keeps its PD and its buffers as a region does:
 * giving them back is -EBUSY. Host memory must stay until the event was read or the
 * handle was closed. A region that nobody gets is never reachable: until its event
 * is read nobody has its keys.
 *
 * A driver cannot be interrupted, so no call here waits for one that runs: it ends
 * in its own time, and what came of it is then taken back. Who has to know when
 * that is cancels, waits for the event, and closes then.
 *
 * Threads: any thread may call any function at any time, with handles and queues
 * that were not given back.
 */

struct pier_event_queue;
struct pier_registration;

/** How an event queue is made. Begin with pier_event_queue_attr_init(). */
struct pier_event_queue_attr {
	/** sizeof(struct pier_event_queue_attr), so that fields can be added. */
	size_t size;
	/** Threads that register, and so registrations at once: 1 to 64. */
	uint32_t workers;
	/** Registrations whose event was not read, from 1. */
	uint32_t depth;
};

/** Set every field to its default: two threads, 1024 registrations. Cannot fail. */
static inline void pier_event_queue_attr_init(struct pier_event_queue_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->workers = 2;
	attr->depth = 1024;
}

/**
 * Make an event queue, and start its threads, which take no signals.
 *
 * attr  NULL: the defaults
 *
 * Errors: -EINVAL size, workers or depth is not possible; -EAGAIN no thread can be
 * had (pthread_create(3)); -EMFILE, -ENFILE no fd; -ENOMEM.
 */
PIER_API int pier_event_queue_create(const struct pier_event_queue_attr *attr,
				     struct pier_event_queue **ret_queue);

/**
 * End an event queue and its threads; NULL is fine. Does not wait for a driver.
 *
 * Errors: -EBUSY there are registrations that were not closed, or the driver still
 * works on one that was, and nothing was changed.
 */
PIER_API int pier_event_queue_destroy(struct pier_event_queue *queue);

/**
 * An fd that is readable while an event can be read: for poll(2), epoll(7) and the
 * like. It is the queue's, is not to be read or closed, and stays the same. With
 * EPOLLET read events until there is none. Cannot fail.
 */
PIER_API int pier_event_queue_fd(const struct pier_event_queue *queue);

/**
 * Register memory as pier_reg_mr_attr() does, by a thread of the queue, with an
 * event for the result.
 *
 * attr              borrowed with all that it points to until this returns: also
 *                   fds may be closed then
 * ret_registration  the caller's, to be given to pier_registration_close(); written
 *                   before the event can be read
 *
 * Whose memory it is is found, and all is checked that can be without the driver,
 * before this returns.
 *
 * Errors: -EAGAIN as many events are unread as the queue is deep; -EMFILE no fd for
 * the duplicate of one; -EINVAL, -ERANGE, -EBADF, -EOPNOTSUPP, -E2BIG, -ENOMEM as of
 * pier_reg_mr_attr(). There is neither a handle nor an event then.
 */
PIER_API int pier_reg_mr_async(struct pier_event_queue *queue, struct pier_pd *pd,
			       const struct pier_mr_attr *attr,
			       struct pier_registration **ret_registration);

/** What an event tells. */
enum pier_event_kind {
	/** A registration is over: there is a region, or an error. */
	PIER_EVENT_MR_REGISTERED = 1,
};

#define PIER_EVENT_SENTENCE_SIZE 768

/** An event. Whoever read it has the region from then on. */
struct pier_event {
	enum pier_event_kind kind;
	/**
	 * What is 0, or why there is no region: the errors of pier_reg_mr_attr(),
	 * or -ECANCELED.
	 */
	int error;
	/** The handle; it may be closed already by another thread. */
	struct pier_registration *registration;
	struct pier_mr *mr; /**< for pier_dereg_mr(); NULL with an error */
	void *context;	    /**< attr.context of the registration */
	/** Of an error what pier_error_message() would be, or "". */
	char sentence[PIER_EVENT_SENTENCE_SIZE];
};

/**
 * Read an event, if there is one: the oldest. Does not wait, and cannot fail.
 *
 * Returns 1 and the event, or 0.
 *
 * Errors: -ECHILD the queue is that of the process which forked this one, as from
 * all calls with an event queue or a registration.
 */
PIER_API int pier_event_queue_read(struct pier_event_queue *queue,
				   struct pier_event *ret_event);

/**
 * Read an event, and wait for one.
 *
 * timeout_ms  in milliseconds, from 0
 *
 * Returns 0 and the event; what came of the registration is in there.
 *
 * Errors: -ETIMEDOUT there was none; -EINVAL timeout_ms is negative; others of
 * poll(2).
 */
PIER_API int pier_event_queue_wait(struct pier_event_queue *queue, int timeout_ms,
				   struct pier_event *ret_event);

/**
 * End a registration early: its event has -ECANCELED. That comes at once where no
 * thread began with it, and otherwise when the driver is done and the region was
 * deregistered. Should the driver refuse that, the event is that of a region which
 * was not cancelled. Again is as once, while the driver is not done.
 *
 * Errors: -EALREADY it is over, and nothing was changed: its event can be read, or
 * was.
 */
PIER_API int pier_registration_cancel(struct pier_registration *registration);

/**
 * Give a handle back; NULL is fine. Of one whose event was read this is all: the
 * region stays. Any other has no event any more, and its region, if there is
 * one, is deregistered: by this call where it is there already, or else when the
 * driver is done with it. Should the driver refuse that later, the log has a warning
 * and the region stays, as does its PD.
 *
 * Errors: those of ibv_dereg_mr(3) for a region that is there: the handle is not
 * closed then, and the event can be read.
 */
PIER_API int pier_registration_close(struct pier_registration *registration);

PIER_END_DECLS

#endif

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
 * Asynchronous registration: threads of an event queue register memory for the caller.
 * Registering pins memory, and the driver can take long. pier_mr_reg_async() therefore
 * returns a handle at once, and an event reports the result.
 *
 * Each successful call of pier_mr_reg_async() has exactly one event, unless its handle
 * is closed before the event is read. A failed call has none. The handle is written
 * before any thread can read the event. It is valid until it is closed. Every handle
 * must be closed, by any thread, before or after its event is read.
 *
 * While a registration is in progress, it keeps its PD and its buffers as a region
 * does: deallocating or freeing them fails with -EBUSY. Host memory must stay valid
 * until the event was read or the handle was closed. A peer cannot access the new
 * region before the event is read, because nobody has its keys yet.
 *
 * A driver call cannot be interrupted, so no function of this header waits for one that
 * is running. If a registration is cancelled or its handle is closed meanwhile, the
 * driver call runs to its end, and its result is then undone. To learn when this has
 * finished: cancel, wait for the event, then close.
 *
 * Threads: any thread may call any function at any time, with handles and queues that
 * have not been closed or destroyed.
 */

struct pier_event_queue;
struct pier_registration;

/** The attributes of an event queue. Set them up with pier_event_queue_attr_init(). */
struct pier_event_queue_attr {
	/** sizeof(struct pier_event_queue_attr), so that fields can be added. */
	size_t size;
	/**
	 * The number of threads, and thus of registrations in progress at once: 1 to
	 * 64.
	 */
	uint32_t workers;
	/** The most registrations whose event has not been read, from 1. */
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
 * Create an event queue and start its threads, which block all signals.
 *
 * attr  NULL: the defaults
 *
 * Errors: -EINVAL size, workers or depth is not possible; -EAGAIN a thread cannot be
 * created (pthread_create(3)); -EMFILE, -ENFILE no fd is available; -ENOMEM.
 */
PIER_API int pier_event_queue_create(const struct pier_event_queue_attr *attr,
				     struct pier_event_queue **ret_queue);

/**
 * Destroy an event queue and end its threads. NULL is allowed. Does not wait for a
 * driver.
 *
 * Errors: -EBUSY the queue has registrations whose handle is not closed, or the driver
 * is still working on a closed one; nothing was changed.
 */
PIER_API int pier_event_queue_destroy(struct pier_event_queue *queue);

/**
 * Return an fd that is readable while an event can be read, for poll(2), epoll(7) and
 * similar calls. The fd belongs to the queue and never changes; do not read or close
 * it. With EPOLLET, read events until there are none. Cannot fail.
 */
PIER_API int pier_event_queue_fd(const struct pier_event_queue *queue);

/**
 * Register memory asynchronously. A thread of the queue does the work of
 * pier_mr_reg_attr(), and an event reports the result.
 *
 * attr              borrowed, with everything it points to, until this call returns;
 *                   fds may then be closed, too
 * ret_registration  the handle; give it to pier_registration_close(). Written before
 *                   the event can be read
 *
 * Before this call returns, it determines the owner of the memory, and makes all checks
 * that do not need the driver.
 *
 * Errors: -EAGAIN the queue already has `depth` registrations whose event has not been
 * read; -EMFILE no fd is available for the duplicate of an fd; -EINVAL, -ERANGE,
 * -EBADF, -EOPNOTSUPP, -E2BIG, -ENOMEM as for pier_mr_reg_attr(). After an error there
 * is neither a handle nor an event.
 */
PIER_API int pier_mr_reg_async(struct pier_event_queue *queue, struct pier_pd *pd,
			       const struct pier_mr_attr *attr,
			       struct pier_registration **ret_registration);

/** The kind of an event. */
enum pier_event_kind {
	/** A registration has finished, with a region or an error. */
	PIER_EVENT_MR_REGISTERED = 1,
};

#define PIER_EVENT_SENTENCE_SIZE 768

/** An event. The thread that reads it takes ownership of the region. */
struct pier_event {
	enum pier_event_kind kind;
	/**
	 * 0, or the reason why there is no region: an error of pier_mr_reg_attr(), or
	 * -ECANCELED.
	 */
	int error;
	/** The handle. Another thread may have closed it already. */
	struct pier_registration *registration;
	struct pier_mr *mr; /**< for pier_mr_dereg(); NULL after an error */
	void *context;	    /**< attr.context of the registration */
	/** The error message, as from pier_error_message(); "" without an error. */
	char sentence[PIER_EVENT_SENTENCE_SIZE];
};

/**
 * Wait for an event and read the oldest one.
 *
 * timeout_ms  in milliseconds; 0: do not wait; PIER_TIMEOUT_DEFAULT: 30 s
 * ret_event   written up to `size` bytes
 * size        sizeof(*ret_event) in the caller
 *
 * Returns 1 and the event, which holds the result of the registration. Returns 0 and
 * writes nothing if there is no event and timeout_ms is 0.
 *
 * Errors: -ETIMEDOUT there was no event in time; -EINVAL timeout_ms is invalid; -EINTR
 * (<pier/waiting.h>); -ECHILD the queue belongs to the parent process, as for all
 * functions of event queues and registrations in a child of fork(2); others of poll(2).
 */
PIER_API int pier_event_queue_wait(struct pier_event_queue *queue, int timeout_ms,
				   struct pier_event *ret_event, size_t size);

/**
 * Cancel a registration. Its event then has the error -ECANCELED. If no thread has
 * started on the registration, the event can be read at once. Otherwise it can be read
 * after the driver has finished and the region has been deregistered. If the driver
 * refuses to deregister it, the event reports the region, as if the registration had
 * not been cancelled. Until the driver has finished, a second cancellation has no
 * further effect.
 *
 * Errors: -EALREADY the registration has finished, and its event can be read or was
 * read; nothing was changed.
 */
PIER_API int pier_registration_cancel(struct pier_registration *registration);

/**
 * Close a registration's handle. NULL is allowed. If the event was read, this only
 * closes the handle; the region stays.
 *
 * Otherwise there will be no event. If the region exists already, this call deregisters
 * it; if not, it is deregistered when the driver has finished. If the driver refuses
 * this later deregistration, a warning is logged, and the region and its PD stay.
 *
 * Errors: those of ibv_dereg_mr(3) for an existing region; the handle is then not
 * closed, and its event can be read.
 */
PIER_API int pier_registration_close(struct pier_registration *registration);

PIER_END_DECLS

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SCOPE_H
#define PIER_SCOPE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/export.h>

#ifdef __cplusplus
#include <exception>
#endif

PIER_BEGIN_DECLS

/**
 * Scopes: everything posted on a channel within one is complete when it ends, whichever
 * way the block is left, and what failed is told.
 *
 *	struct pier_scope_report report;
 *
 *	PIER_SCOPE(channel, NULL, &report) {
 *		for (i = 0; i < count; i++) {
 *			report.body_error = pier_post_write(channel, &pieces[i], 1,
 *							    &remotes[i], NULL);
 *			if (report.body_error)
 *				break;
 *		}
 *	}
 *	if (report.error)
 *		fprintf(stderr, "%s\n", pier_error_message());
 *
 * A scope covers both queues: receives too must have completed when it ends. What was
 * posted before it is none of its business. Scopes nest, the last one that began ends
 * first, and a request belongs to the innermost. Posting costs nothing more in a scope.
 *
 * A scope has a deadline, counted from its beginning, and one within another has no later
 * one. What has not completed by then is stopped as by pier_work_wait(): the channel is
 * broken, and nothing is in flight.
 *
 * Results that the body asked for are its own business. Those that nobody asked for are
 * collected by the end; their handles are used up.
 *
 * Threads and processes are as in <pier/channel.h>: a scope is of the channel's thread.
 */

/** What a scope is like: values of pier_scope_attr.flags. */
enum pier_scope_flag {
	/**
	 * The body asks for every handle itself. One that is left when the body ends
	 * without an error is a mistake, and reported as one: -ENOTEMPTY. What was
	 * posted without a handle is collected by the end.
	 */
	PIER_SCOPE_MANUAL = 1 << 0,
};

/** A request of a scope that failed. */
struct pier_scope_failure {
	struct pier_work work; /**< the handle that it had, or would have had */
	struct pier_result result;
};

/** How a scope is made. Begin with pier_scope_attr_init(). */
struct pier_scope_attr {
	/** sizeof(struct pier_scope_attr), so that fields can be added. */
	size_t size;
	/** From the beginning on; PIER_TIMEOUT_DEFAULT: the channel's. */
	int timeout_ms;
	int flags; /**< of enum pier_scope_flag */
	/**
	 * Most requests of the send queue outstanding at once, with those from before:
	 * posts wait for room, up to the scope's deadline, instead of being refused
	 * with -EAGAIN. What is more than max_send_wr is max_send_wr. 0: no window,
	 * and what a scope around this one has stays.
	 */
	uint32_t window;
	/** How many `failures` has room for. */
	uint32_t max_failures;
	/**
	 * The caller's, until the end: where failures are listed, those of the send
	 * queue first, each queue's in the order of posting. NULL with 0: counted only.
	 */
	struct pier_scope_failure *failures;
};

/** Set every field to its default. Cannot fail. */
static inline void pier_scope_attr_init(struct pier_scope_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->timeout_ms = PIER_TIMEOUT_DEFAULT;
}

/** How a scope ended. */
struct pier_scope_report {
	/** What pier_scope_end() returned. */
	int error;
	/** Why the body failed, as the body said; 0: it did not. */
	int body_error;
	/**
	 * 0, or why requests failed whose results the body did not ask for:
	 * -ETIMEDOUT when the deadline was over; else the error of the first that
	 * failed, and not only because of another (-ECANCELED: all of them did).
	 */
	int drain_error;
	uint64_t posted;   /**< requests, without those of scopes within */
	uint64_t failed;   /**< of them, without those that the body asked for */
	uint64_t unpolled; /**< handles that the body did not ask for */
	struct pier_work first_unpolled;
	/** The first that failed, as for drain_error; if failed is not 0. */
	struct pier_scope_failure cause;
};

/**
 * A scope that is open. The caller's, on its stack for instance: it stays where it is
 * until pier_scope_end(). All of it is private.
 */
struct pier_scope {
	struct pier_channel *channel;
	struct pier_scope *outer;
	uint64_t first_send, first_receive, posted_within;
	int64_t deadline;
	int timeout_ms, flags;
	uint32_t outer_depth, level, state, waits;
	uint32_t max_failures;
	struct pier_scope_failure *failures;
	struct pier_scope_report report;
	uint64_t reserved[4];
};

/**
 * Begin a scope on a channel.
 *
 * attr  borrowed; NULL: the defaults
 *
 * Errors: -EINVAL a value of attr (the sentence names it); -EPIPE the channel is broken.
 */
PIER_API int pier_scope_begin(struct pier_channel *channel,
			      const struct pier_scope_attr *attr,
			      struct pier_scope *ret_scope);

/**
 * End a scope: wait until all that was posted in it has completed, also when requests
 * or the body failed. On return nothing of it is in flight.
 *
 * body_error  0, or why the body failed; a number of the caller's, mostly -errno
 * ret_report  may be NULL; written whatever is returned, but for -ECHILD and -EALREADY
 *
 * Returns the first of these that is not 0: body_error; report.drain_error; -EBUSY a
 * scope within this one is still open, and was ended with it; -ENOTEMPTY the body of a
 * manual scope did not ask for all its handles. The sentence tells of the body's error
 * and of what was found at the end.
 *
 * When the channel was destroyed in the scope, what was outstanding then has failed with
 * -ECANCELED.
 *
 * Errors: also -EALREADY the scope was ended before; -ETIMEDOUT, -EIO and others of
 * pier_work_wait() as the drain_error.
 */
PIER_API int pier_scope_end(struct pier_scope *scope, int body_error,
			    struct pier_scope_report *ret_report);

/**
 * PIER_SCOPE(channel, attr, report) { ... }
 *
 * A block in a scope, which ends on every way out: through its end, by break, continue,
 * return and goto, and in C++ by an exception; not by longjmp(3). Each argument is
 * evaluated once. The body tells its error by writing report->body_error; leaving it by
 * an exception is one, -ECANCELED. When the scope cannot begin, the block does not run
 * and report->error says why. break and continue are those of this block, not of a loop
 * around it.
 *
 * Only where the compiler has the attribute "cleanup": gcc, clang.
 */
#ifdef __GNUC__
#define PIER_SCOPE(channel, attr, report) \
	PIER_SCOPE_AT_LINE(__LINE__, channel, attr, report)

/* Two steps, so that __LINE__ becomes its number before it is joined. */
#define PIER_SCOPE_AT_LINE(line, channel, attr, report) \
	PIER_SCOPE_ON_LINE(line, channel, attr, report)
#define PIER_SCOPE_ON_LINE(line, channel, attr, report)                                 \
	for (struct pier_scope_guard pier_scope_##line                                  \
	     __attribute__((__cleanup__(pier_scope_leave))),                            \
	     *pier_scope_open_##line =                                                  \
		     pier_scope_enter((channel), (attr), (report), &pier_scope_##line); \
	     pier_scope_open_##line;                                                    \
	     pier_scope_leave(&pier_scope_##line), pier_scope_open_##line = NULL)

struct pier_scope_guard {
	struct pier_scope scope;
	struct pier_scope_report *report; /* NULL: not open */
	int unwinding;
};

static inline int pier_scope_count_exceptions(void)
{
#if defined(__cplusplus) && __cplusplus >= 201703L
	return std::uncaught_exceptions();
#elif defined(__cplusplus)
	return std::uncaught_exception();
#else
	return 0;
#endif
}

static inline void pier_scope_leave(struct pier_scope_guard *guard)
{
	struct pier_scope_report *report = guard->report;
	int body_error;

	if (!report)
		return;
	guard->report = NULL;
	body_error = report->body_error;
	if (!body_error && pier_scope_count_exceptions() > guard->unwinding)
		body_error = -ECANCELED;
	report->error = pier_scope_end(&guard->scope, body_error, report);
}

static inline struct pier_scope_guard *pier_scope_enter(
	struct pier_channel *channel, const struct pier_scope_attr *attr,
	struct pier_scope_report *report, struct pier_scope_guard *guard)
{
	guard->unwinding = pier_scope_count_exceptions();
	memset(report, 0, sizeof(*report));
	report->error = pier_scope_begin(channel, attr, &guard->scope);
	guard->report = report->error ? NULL : report;
	return guard->report ? guard : NULL;
}

#endif

PIER_END_DECLS

#endif

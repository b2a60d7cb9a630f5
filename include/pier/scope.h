/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SCOPE_H
#define PIER_SCOPE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/export.h>

#ifdef __cplusplus
#include <exception>
#endif

PIER_BEGIN_DECLS

/**
 * Scopes: everything posted inside a scope has completed when the scope ends.
 *
 * A scope belongs to one channel, and reports all failures at its end.
 *
 *	struct pier_scope_report report;
 *
 *	PIER_SCOPE(channel, NULL, &report) {
 *		for (i = 0; i < count; i++) {
 *			report.body_error = pier_channel_post_write(
 *				channel, &pieces[i], 1, &remotes[i], NULL);
 *			if (report.body_error)
 *				break;
 *		}
 *	}
 *	if (report.error)
 *		fprintf(stderr, "%s\n", pier_error_message());
 *
 * A scope ends however its block is left. It covers both queues, so receives too must
 * have completed. It ignores requests that were posted before it began. Scopes nest:
 * the last one to begin ends first, and a request belongs to the innermost scope.
 * Posting costs nothing extra inside a scope.
 *
 * A scope has a deadline, counted from its beginning. The deadline of an inner scope is
 * never later than that of the outer one. Requests that have not completed by then are
 * stopped, as when pier_channel_send() times out: the channel is broken, and nothing is
 * in flight.
 *
 * The body handles the results that it fetches. The end of the scope collects all
 * others, and uses up their handles.
 *
 * Threads and processes: as in <pier/channel.h>. A scope belongs to the thread of its
 * channel.
 */

/** Flags of a scope: values of pier_scope_attr.flags, ored. */
enum pier_scope_flag {
	/**
	 * The body fetches the result of every handle itself. A handle that is left
	 * when the body ends without an error is a mistake, reported as -ENOTEMPTY. The
	 * end of the scope collects requests that were posted without a handle.
	 */
	PIER_SCOPE_MANUAL = 1 << 0,
};

/** A failed request of a scope. Frozen: the caller has an array of them. */
struct pier_scope_failure {
	struct pier_work work; /**< its handle, or the one it would have had */
	struct pier_result result;
};

/** The attributes of a new scope. Set them up with pier_scope_attr_init(). */
struct pier_scope_attr {
	/** sizeof(struct pier_scope_attr), so that fields can be added. */
	size_t size;
	/**
	 * In milliseconds from the beginning; PIER_TIMEOUT_DEFAULT: the channel's
	 * timeout.
	 */
	int timeout_ms;
	uint32_t flags; /**< enum pier_scope_flag, ored */
	/**
	 * Limit for the outstanding requests of the send queue, including those from
	 * before the scope. A post beyond it waits for room, up to the scope's
	 * deadline, instead of failing with -EAGAIN. Values above max_send_wr count as
	 * max_send_wr. 0: no window of its own; that of an outer scope stays in effect.
	 */
	uint32_t window;
	/** Number of entries in `failures`. */
	uint32_t max_failures;
	/**
	 * Array that the end of the scope fills with the failures: those of the send
	 * queue first, those of each queue in the order of posting. Failures beyond
	 * max_failures are counted, not listed. The caller owns the array and keeps it
	 * until the end. NULL with max_failures 0: failures are only counted.
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

/** The outcome of a scope. */
struct pier_scope_report {
	/** The return value of pier_scope_end(). */
	int error;
	/** The error that the body reported; 0: none. */
	int body_error;
	/**
	 * 0, or the reason why requests failed whose results the body did not fetch.
	 * -ETIMEDOUT: the deadline passed. Otherwise the error of the first request
	 * that failed by itself, not as a consequence of another; -ECANCELED if there
	 * is none.
	 */
	int drain_error;
	uint64_t posted;   /**< requests, not counting those of inner scopes */
	uint64_t failed;   /**< failed ones whose results the body did not fetch */
	uint64_t unpolled; /**< handles whose results the body did not fetch */
	struct pier_work first_unpolled;
	/** The first failure, chosen as for drain_error; valid if failed is not 0. */
	struct pier_scope_failure cause;
	uint64_t reserved[2]; /**< 0; for later members */
};

/**
 * An open scope. The caller owns it, for instance on its stack, and must not move it
 * until pier_scope_end(). All fields are private.
 */
struct pier_scope {
	struct pier_channel *channel;
	struct pier_scope *outer;
	uint64_t first_send, first_receive, posted_within;
	int64_t deadline;
	int timeout_ms;
	uint32_t flags;
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
 * Errors: -EINVAL a value of attr is invalid (the error message names it); -EPIPE the
 * channel is broken.
 */
PIER_API int pier_scope_begin(struct pier_channel *channel,
			      const struct pier_scope_attr *attr,
			      struct pier_scope *ret_scope);

/**
 * End a scope: wait until everything posted in it has completed.
 *
 * The call waits even if requests or the body failed. On return no request of the scope
 * is in flight.
 *
 * body_error  0, or the error of the body: any number, usually -errno
 * ret_report  may be NULL; written whatever is returned, except for -ECHILD and
 *             -EALREADY
 *
 * Returns the first of these that is not 0: body_error; report.drain_error; -EBUSY if
 * an inner scope was still open, which was then ended too; -ENOTEMPTY if the body of a
 * manual scope did not fetch all its results. The error message gives the error of the
 * body and those found at the end.
 *
 * If the channel was destroyed inside the scope, the requests that were outstanding
 * then have failed with -ECANCELED.
 *
 * Errors: -EALREADY the scope was ended before; -ETIMEDOUT, -EIO and others of
 * pier_work_wait() as the drain_error.
 */
PIER_API int pier_scope_end(struct pier_scope *scope, int body_error,
			    struct pier_scope_report *ret_report);

/**
 * PIER_SCOPE(channel, attr, report) { ... }
 *
 * A block inside a scope. The scope ends however the block is left: at its end, by
 * break, continue, return and goto, and in C++ by an exception; but not by longjmp(3).
 * Each argument is evaluated once.
 *
 * The body reports an error by setting report->body_error. An exception that leaves the
 * block counts as the error -ECANCELED. If the scope cannot begin, the block does not
 * run, and report->error has the reason. break and continue refer to this block, not to
 * a loop around it.
 *
 * PIER_SCOPE needs a compiler with the attribute "cleanup", such as gcc or clang.
 */
#ifdef __GNUC__
#define PIER_SCOPE(channel, attr, report) \
	PIER_SCOPE_AT_LINE(__LINE__, channel, attr, report)

/* Two steps, so that __LINE__ is expanded before it is pasted. */
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

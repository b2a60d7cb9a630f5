/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_ERROR_H
#define PIER_CORE_ERROR_H

#include <errno.h>
#include <stddef.h>

/* pier_fail() is declared for backends, and serves everybody. */
#include <pier/backend.h>
#include <pier/error.h>

#include "thread.h"

/*
 * pier_fail() for a step that was built on a call that failed: the sentence of
 * that call, if it left one since pier_clear_error(), is appended as the cause;
 * without one, strerror(error) is.
 */
int pier_fail_because(int error, const char *format, ...) PIER_PRINTF(2, 3);
#ifdef __clang_analyzer__
#define pier_fail_because(...) pier_analyze_failure(pier_fail_because(__VA_ARGS__))
#endif

/* Whether pier_fail() has left a sentence since pier_clear_error(). */
extern PIER_THREAD_LOCAL bool pier_error_fresh;

/*
 * Treat the sentence as an old one, before a call that may fail without leaving one.
 * pier_error_message() still returns it: success does not clear it.
 */
static inline void pier_clear_error(void)
{
	pier_error_fresh = false;
}

/* Leaves the sentence of an argument that is NULL, and returns false. */
static inline bool pier_refuse_null(const char *function, const char *name)
{
	pier_fail(EINVAL, "%s(): %s is NULL", function, name);
	return false;
}

#define PIER_IS_GIVEN(a)		  (__builtin_expect(!!(a), 1) || pier_refuse_null(__func__, #a))
#define PIER_ARE_GIVEN_2(a, b)		  (PIER_IS_GIVEN(a) && PIER_IS_GIVEN(b))
#define PIER_ARE_GIVEN_3(a, ...)	  (PIER_IS_GIVEN(a) && PIER_ARE_GIVEN_2(__VA_ARGS__))
#define PIER_ARE_GIVEN_4(a, ...)	  (PIER_IS_GIVEN(a) && PIER_ARE_GIVEN_3(__VA_ARGS__))
#define PIER_PICK(a, b, c, d, macro, ...) macro
#define PIER_ARE_GIVEN(...)                                                          \
	PIER_PICK(__VA_ARGS__, PIER_ARE_GIVEN_4, PIER_ARE_GIVEN_3, PIER_ARE_GIVEN_2, \
		  PIER_IS_GIVEN, )                                                   \
	(__VA_ARGS__)

/*
 * The first line of a public function: it returns -EINVAL if one of these arguments is
 * NULL, with a sentence that names the first one. A function that returns no error
 * returns `result` (nothing, if it is void). An array may be NULL if it has no elements.
 */
#define PIER_REFUSE_NULL_AS(result, ...)          \
	do {                                      \
		if (!PIER_ARE_GIVEN(__VA_ARGS__)) \
			return result;            \
	} while (0)
#define PIER_REFUSE_NULL(...) PIER_REFUSE_NULL_AS(-EINVAL, __VA_ARGS__)
#define PIER_REFUSE_NULL_ARRAY(array, count)          \
	do {                                          \
		if ((count) && !PIER_IS_GIVEN(array)) \
			return -EINVAL;               \
	} while (0)

/** The error of a verb that returned NULL: some providers do not set errno. Positive. */
static inline int pier_last_errno(void)
{
	return errno ? errno : EIO;
}

/** For functions that return NULL with errno, as those of libibverbs. error: negative. */
static inline void *pier_null_with(int error)
{
	errno = -error;
	return NULL;
}

#endif

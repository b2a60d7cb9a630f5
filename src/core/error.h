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

/* Returns 0, or -EINVAL with a sentence that names the argument that is NULL. */
static inline int pier_check_given(const void *pointer, const char *name)
{
	return pointer ? 0 : pier_fail(EINVAL, "%s is NULL", name);
}

/* The same for an array, which may be NULL if it has no elements. */
static inline int pier_check_array(const void *array, size_t count, const char *name)
{
	return count == 0 ? 0 : pier_check_given(array, name);
}

/** For functions that return NULL with errno, as those of libibverbs. error: negative. */
static inline void *pier_null_with(int error)
{
	errno = -error;
	return NULL;
}

#endif

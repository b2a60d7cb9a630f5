/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_DEADLINE_H
#define PIER_CORE_DEADLINE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <pier/channel.h>

#include "core/clock.h"
#include "core/error.h"

enum {
	PIER_TIMEOUT_USUAL = 30000, /* of objects without a timeout of their own */
};

/*
 * Resolve PIER_TIMEOUT_DEFAULT to `usual`.
 *
 * Errors: -EINVAL any other negative number.
 */
static inline int pier_check_timeout(int timeout_ms, int usual, int *ret_timeout_ms)
{
	if (timeout_ms < PIER_TIMEOUT_DEFAULT)
		return pier_fail(EINVAL,
				 "timeout_ms %d: use 0 or more, or PIER_TIMEOUT_DEFAULT",
				 timeout_ms);
	*ret_timeout_ms = timeout_ms == PIER_TIMEOUT_DEFAULT ? usual : timeout_ms;
	return 0;
}

/*
 * Whether an error tells the caller of a wait that what it waits for goes on. Nothing may
 * end with it.
 */
static inline bool pier_is_of_wait(int error)
{
	return error == -ETIMEDOUT || error == -EINTR;
}

static inline int64_t pier_deadline(int timeout_ms)
{
	return pier_now() + (int64_t)timeout_ms * 1000000;
}

/*
 * For poll(2): the whole milliseconds until then, rounded up so that it does
 * not spin through the last one; 0 when it is past.
 */
static inline int pier_poll_timeout(int64_t deadline)
{
	int64_t left = deadline - pier_now();

	if (left <= 0)
		return 0;
	left = (left + 999999) / 1000000;
	return left < INT_MAX ? (int)left : INT_MAX;
}

#endif

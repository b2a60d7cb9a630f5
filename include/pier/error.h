/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_ERROR_H
#define PIER_ERROR_H

#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * How functions of pier report failure: they return a negative errno value
 * and write none of their `ret_...` parameters. Errno values are those of the
 * system call or verb below, where there is one; "this device, memory or build
 * cannot do that" is always -EOPNOTSUPP.
 */

/**
 * The last failure on this thread, as one sentence without a final newline.
 *
 * It names the step, the inputs, the rule or the errno, and where it can what
 * to do. A successful call does not clear it, as with errno.
 *
 * Returns a string that is never NULL ("" before the first failure). It belongs
 * to the thread and is valid until the next failing call on the same thread.
 * Any thread, any time. Cannot fail.
 */
PIER_API const char *pier_error_message(void);

PIER_END_DECLS

#endif

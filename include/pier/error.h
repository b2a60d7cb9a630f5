/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_ERROR_H
#define PIER_ERROR_H

#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * How functions of pier report errors.
 *
 * A function that fails returns a negative errno value, and writes none of its
 * `ret_...` parameters. A function that wraps a system call or verb uses the errno
 * values of that call. If the device, the memory or the build does not support a
 * request, the value is always -EOPNOTSUPP.
 *
 * A documented value keeps its meaning, and a later version may return others: treat
 * every negative value as an error.
 *
 * A pointer may be NULL only where its function says so, and an array also if it has no
 * elements. Any other NULL, also in a struct, is refused with -EINVAL and a sentence that
 * names the parameter or member. A function that returns no error then returns 0 or NULL
 * and has no effect. Three kinds of pointers are not checked: those of
 * pier_mr_gather_unchecked() and pier_mr_scatter_unchecked(), of the plain case in
 * <pier/inline.h>, and of functions that a header defines itself, such as the `_init`
 * functions.
 */

/**
 * Return the last failure on this thread as one sentence, without a final newline.
 *
 * The sentence names the step, the inputs, the rule or the errno, and, if possible, the
 * remedy. Like errno, it is not cleared by a successful call.
 *
 * Returns a string that is never NULL; "" before the first failure. The string belongs
 * to the thread and is valid until the next failing call on that thread. Any thread may
 * call this function at any time. Cannot fail.
 */
PIER_API const char *pier_error_message(void);

PIER_END_DECLS

#endif

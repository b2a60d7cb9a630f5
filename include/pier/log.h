/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_LOG_H
#define PIER_LOG_H

#include <pier/export.h>

PIER_BEGIN_DECLS

/** The library's log messages: which ones there are, and where they go. */

/** Importance of a message. Each level includes those before it. */
enum pier_log_level {
	PIER_LOG_NONE = 0,    /**< no messages */
	PIER_LOG_ERROR = 1,   /**< a call failed */
	PIER_LOG_WARNING = 2, /**< a call works, but less well than requested */
	PIER_LOG_INFO = 3,    /**< the device, path and memory that were chosen */
	PIER_LOG_DEBUG = 4,   /**< each step */
};

/**
 * Receive a message: one line without a newline, valid only during the call. The
 * message may contain file names and text from peers, so escape control characters
 * before you print it. The callback runs on any thread of the library or the caller,
 * possibly on several at once. Locks of the library are held, so the callback must not
 * call pier.
 */
typedef void (*pier_log_callback)(enum pier_log_level level, const char *message,
				  void *argument);

/**
 * Send messages up to `level` to `callback`.
 *
 * callback  NULL: there are no messages
 * argument  any pointer: the last argument of the callback
 *
 * Until the first call, the environment variable PIER_LOG sets the level. With error,
 * warning, info or debug, messages go to standard error, and bytes that belong to no
 * printable character of UTF-8 appear as \xNN. If PIER_LOG is unset, empty or none,
 * there are no messages; any other value is reported there once. The library has no
 * other output.
 *
 * The library keeps `callback` and `argument` until the next call of this function.
 * Call it before other threads use the library. Cannot fail.
 */
PIER_API void pier_log_set(enum pier_log_level level, pier_log_callback callback,
			   void *argument);

PIER_END_DECLS

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_LOG_H
#define PIER_LOG_H

#include <pier/export.h>

PIER_BEGIN_DECLS

/** How much a message matters; a level includes those before it. */
enum pier_log_level {
	PIER_LOG_NONE = 0,    /**< nothing */
	PIER_LOG_ERROR = 1,   /**< a call failed */
	PIER_LOG_WARNING = 2, /**< it works, but not as well as was asked for */
	PIER_LOG_INFO = 3,    /**< which device, path and memory were chosen */
	PIER_LOG_DEBUG = 4,   /**< every step */
};

/**
 * Receives a message: one line without a newline, valid during the call only. It
 * may hold file names and text from peers: escape what a terminal would act on.
 * It runs on whichever thread has something to say, possibly several at once,
 * with locks of the library held: it must not call back into pier.
 */
typedef void (*pier_log_callback)(enum pier_log_level level, const char *message,
				  void *argument);

/**
 * Send messages up to `level` to `callback`; NULL stops them.
 *
 * Until this is called the environment variable PIER_LOG decides: error,
 * warning, info or debug writes to standard error, where bytes that are not
 * printable ASCII appear as \xNN; unset, empty or anything else is silence. The
 * library has no other output.
 *
 * The library keeps `callback` and `argument` until the next call. Call it
 * before other threads use the library. Cannot fail.
 */
PIER_API void pier_log_set(enum pier_log_level level, pier_log_callback callback,
			   void *argument);

PIER_END_DECLS

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_LOG_H
#define PIER_CORE_LOG_H

#include <stdbool.h>

#include <pier/log.h>

/* One message; formatting costs nothing when the level is off. */
void pier_log(enum pier_log_level level, const char *format, ...) PIER_PRINTF(2, 3);

/* Whether messages of that level go anywhere: worth the work to gather them. */
bool pier_log_takes(enum pier_log_level level);

#define pier_warning(...) pier_log(PIER_LOG_WARNING, __VA_ARGS__)
#define pier_info(...)	  pier_log(PIER_LOG_INFO, __VA_ARGS__)
#define pier_debug(...)	  pier_log(PIER_LOG_DEBUG, __VA_ARGS__)

#endif

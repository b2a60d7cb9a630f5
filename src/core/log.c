/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "printable.h"

enum {
	MESSAGE_MAX = 1024 /* with its NUL; longer ones are cut */
};

static const char *const level_names[] = {
	[PIER_LOG_NONE] = "none",	[PIER_LOG_ERROR] = "error",
	[PIER_LOG_WARNING] = "warning", [PIER_LOG_INFO] = "info",
	[PIER_LOG_DEBUG] = "debug",
};

static void print_to_stderr(enum pier_log_level level, const char *message,
			    void *argument)
{
	char line[4 * MESSAGE_MAX], *end = line;

	(void)argument;
	while (*message && end + PIER_PIECE_MAX <= line + sizeof(line))
		end += pier_escape_next(&message, end);
	*end = '\0';
	fprintf(stderr, "pier: %s: %s\n", level_names[level], line);
}

static struct {
	pthread_once_t once;
	enum pier_log_level level;
	pier_log_callback callback;
	void *argument;
} sink = { .once = PTHREAD_ONCE_INIT };

static void read_environment(void)
{
	const char *wanted = secure_getenv("PIER_LOG");

	char complaint[MESSAGE_MAX];

	if (!wanted || !wanted[0])
		return;
	for (int level = PIER_LOG_NONE; level <= PIER_LOG_DEBUG; level++) {
		if (strcmp(wanted, level_names[level]) == 0) {
			sink.level = level;
			sink.callback = print_to_stderr;
			return;
		}
	}
	snprintf(complaint, sizeof(complaint),
		 "PIER_LOG=%s: not \"error\", \"warning\", \"info\", \"debug\" or "
		 "\"none\"",
		 wanted);
	print_to_stderr(PIER_LOG_WARNING, complaint, NULL);
}

void pier_log_set(enum pier_log_level level, pier_log_callback callback, void *argument)
{
	pthread_once(&sink.once, read_environment);
	sink.level = callback ? level : PIER_LOG_NONE;
	sink.callback = callback;
	sink.argument = argument;
}

bool pier_log_takes(enum pier_log_level level)
{
	pthread_once(&sink.once, read_environment);
	return level <= sink.level;
}

void pier_log(enum pier_log_level level, const char *format, ...)
{
	char message[MESSAGE_MAX];
	va_list args;

	if (!pier_log_takes(level))
		return;
	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	sink.callback(level, message, sink.argument);
}

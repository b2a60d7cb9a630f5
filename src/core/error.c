/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "log.h"

/* Macros where a static analyzer looks. */
#undef pier_fail
#undef pier_fail_because

enum {
	SENTENCE_SIZE = 768
};

static _Thread_local char sentence[SENTENCE_SIZE];
PIER_THREAD_LOCAL bool pier_error_fresh;

const char *pier_error_message(void)
{
	return sentence;
}

/*
 * Whoever fails must not return 0 or more, whatever a provider or a backend gave
 * for an errno: some of rdma-core's return it negated (qedr, cxgb4).
 */
static int negative_errno(int error)
{
	if (error == 0)
		return -EIO;
	return error > 0 ? -error : error;
}

int pier_fail(int error, const char *format, ...)
{
	char text[SENTENCE_SIZE];
	va_list args;

	/* The arguments may point into the old sentence: print aside first. */
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	memcpy(sentence, text, sizeof(text));
	pier_error_fresh = true;
	error = negative_errno(error);
	pier_debug("%s (errno %d)", sentence, -error);
	return error;
}

int pier_fail_because(int error, const char *format, ...)
{
	/* Room for both sentences whole; what does not fit is cut at the end. */
	char text[2 * SENTENCE_SIZE + 2], unknown[64];
	const char *cause = sentence;
	va_list args;
	int used;

	error = negative_errno(error);
	va_start(args, format);
	used = vsnprintf(text, SENTENCE_SIZE, format, args);
	va_end(args);
	if (used >= SENTENCE_SIZE)
		used = SENTENCE_SIZE - 1;
	if (!pier_error_fresh)
		cause = strerror_r(-error, unknown, sizeof(unknown));
	snprintf(text + used, sizeof(text) - (size_t)used, ": %s", cause);
	text[SENTENCE_SIZE - 1] = '\0';
	memcpy(sentence, text, SENTENCE_SIZE);
	pier_error_fresh = true;
	pier_debug("%s (errno %d)", sentence, -error);
	return error;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "log.h"

enum {
	SENTENCE_SIZE = 768
};

static _Thread_local char sentence[SENTENCE_SIZE];

const char *pier_last_error(void)
{
	return sentence;
}

void pier_clear_error(void)
{
	sentence[0] = '\0';
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
	pier_debug("%s (errno %d)", sentence, error);
	return -error;
}

int pier_fail_because(int error, const char *format, ...)
{
	char text[SENTENCE_SIZE], unknown[64];
	va_list args;
	size_t used;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	used = strlen(text);
	snprintf(text + used, sizeof(text) - used, ": %s",
		 sentence[0] ? sentence : strerror_r(error, unknown, sizeof(unknown)));
	memcpy(sentence, text, sizeof(text));
	pier_debug("%s (errno %d)", sentence, error);
	return -error;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdarg.h>
#include <stdio.h>

#include <pier/error.h>

#include "failure.h"
#include "printable.h"

int fail(struct failure *failure, int status, const char *format, ...)
{
	va_list arguments;

	if (failure->status)
		return -1;
	failure->status = status;
	va_start(arguments, format);
	vsnprintf(failure->text, sizeof(failure->text), format, arguments);
	va_end(arguments);
	return -1;
}

int fail_pier(struct failure *failure, int status)
{
	return fail(failure, status, "%s", pier_error_message());
}

void print_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprint_line(stderr, format, arguments);
	va_end(arguments);
}

void print_failure(const struct failure *failure)
{
	print_error("pier: %s", failure->text);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "report.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include <pier/pier.h>

namespace pier_nixl
{

void report_line(const char *format, ...)
{
	char line[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	/* Sentences can contain names that a peer chose. */
	for (char *c = line; *c; c++)
		if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
			*c = '?';
	fprintf(stderr, "pier (NIXL backend): %s\n", line);
}

void report_failure(const char *step)
{
	report_line("%s: %s", step, pier_error_message());
}

nixl_status_t status_of(int error)
{
	switch (-error) {
	case 0:
		return NIXL_SUCCESS;
	/* The peer is gone, or never was there. */
	case ETIMEDOUT:
	case ECONNRESET:
	case ECONNREFUSED:
	case EPIPE:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case EAGAIN:
	/* Flushed without an error of this end: the peer had gone before. */
	case ECANCELED:
		return NIXL_ERR_REMOTE_DISCONNECT;
	case EINVAL:
	case ERANGE:
	case EBADF:
	case EFAULT:
		return NIXL_ERR_INVALID_PARAM;
	case EOPNOTSUPP:
		return NIXL_ERR_NOT_SUPPORTED;
	default:
		return NIXL_ERR_BACKEND;
	}
}

} // namespace pier_nixl

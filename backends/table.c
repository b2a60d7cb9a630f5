/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <pier/version.h>

#include "table.h"

enum {
	/* A table must reach to here; see <pier/backend.h>. */
	REQUIRED_SIZE = offsetof(struct pier_backend, find),
};

int pier_refuse_backend(char ret_problem[PIER_BACKEND_PROBLEM_SIZE], int error,
			const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(ret_problem, PIER_BACKEND_PROBLEM_SIZE, format, args);
	va_end(args);
	return error;
}

static const char *find_missing_member(const struct pier_backend *backend)
{
	if (!backend->name)
		return "name";
	if (!backend->description)
		return "description";
	if (!backend->probe)
		return "probe";
	if (!backend->alloc)
		return "alloc";
	if (!backend->free)
		return "free";
	if ((backend->dmabuf || backend->memfd) && !backend->export_range)
		return "export_range";
	if (backend->export_range && !backend->close_export)
		return "close_export";
	if (!backend->begin_cpu != !backend->end_cpu)
		return backend->begin_cpu ? "end_cpu" : "begin_cpu";
	if (!backend->copy_start != !backend->copy_query)
		return backend->copy_start ? "copy_query" : "copy_start";
	if (backend->ipc_open && !backend->release)
		return "release";
	return NULL;
}

static int check_members(const struct pier_backend *backend, char *ret_problem)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
				      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	const char *missing = find_missing_member(backend);
	size_t length;

	if (missing)
		return pier_refuse_backend(ret_problem, EINVAL, "its table has no %s",
					   missing);
	length = strnlen(backend->name, PIER_BACKEND_NAME_SIZE);
	if (length == 0 || length == PIER_BACKEND_NAME_SIZE ||
	    backend->name[strspn(backend->name, allowed)])
		return pier_refuse_backend(
			ret_problem, EINVAL,
			"its name is not 1 to %d letters, digits and _",
			PIER_BACKEND_NAME_SIZE - 1);
	return 0;
}

int pier_read_backend_table(const struct pier_backend *table,
			    struct pier_backend *ret_backend,
			    char ret_problem[PIER_BACKEND_PROBLEM_SIZE])
{
	size_t known;

	if (table->abi != PIER_BACKEND_ABI)
		return pier_refuse_backend(
			ret_problem, EPROTO,
			"it has backend ABI %u, and this library, pier " PIER_VERSION
			", has %d: build it with the <pier/backend.h> of this library",
			table->abi, PIER_BACKEND_ABI);
	if (table->size < REQUIRED_SIZE)
		return pier_refuse_backend(
			ret_problem, EINVAL,
			"its table has %u bytes, and the required members %d",
			table->size, REQUIRED_SIZE);
	/* After the required members there are only pointers: copy no half of one. */
	known = table->size < sizeof(*table) ? table->size : sizeof(*table);
	known -= known % sizeof(void *);
	memset(ret_backend, 0, sizeof(*ret_backend));
	memcpy(ret_backend, table, known);
	return check_members(ret_backend, ret_problem);
}

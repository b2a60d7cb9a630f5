/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <pier/version.h>

#include "object.h"
#include "core/error.h"
#include "core/log.h"

/* The symbol of ABI 1: the table itself. */
#define OLD_SYMBOL "pier_backend"

static const struct pier_backend_host library = {
	.size = sizeof(library),
	.abi = PIER_BACKEND_ABI,
	.version = PIER_VERSION_NUMBER,
	.fail = pier_fail,
	.log = pier_log,
	.revoke = pier_backend_revoke,
};

static void *open_object(const char *path, char *ret_problem)
{
	struct stat status;
	const char *reason;
	void *object;

	/* dlopen(3) of a FIFO would wait for its writer. */
	if (stat(path, &status) != 0) {
		pier_refuse_backend(ret_problem, errno, "%m");
		return NULL;
	}
	if (!S_ISREG(status.st_mode)) {
		pier_refuse_backend(ret_problem, EINVAL, "not a regular file");
		return NULL;
	}
	object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!object) {
		reason = dlerror();
		pier_refuse_backend(ret_problem, EINVAL, "%s",
				    reason ? reason : "dlopen failed");
	}
	return object;
}

static int refuse_without_symbol(void *object, char *ret_problem)
{
	const uint32_t *abi = dlsym(object, OLD_SYMBOL);

	if (!abi)
		return pier_refuse_backend(ret_problem, EINVAL, "it has no symbol %s",
					   PIER_BACKEND_SYMBOL);
	return pier_refuse_backend(
		ret_problem, EPROTO,
		"it has backend ABI %u (symbol " OLD_SYMBOL
		"), and this library, pier " PIER_VERSION
		", has %d (symbol %s): port it to the <pier/backend.h> of this library",
		*abi, PIER_BACKEND_ABI, PIER_BACKEND_SYMBOL);
}

static int read_object(void *object, struct pier_backend *ret_backend, char *ret_problem)
{
	pier_backend_get_function *get;
	const struct pier_backend *table;
	void *symbol = dlsym(object, PIER_BACKEND_SYMBOL);

	if (!symbol)
		return refuse_without_symbol(object, ret_problem);
	memcpy(&get, &symbol, sizeof(get));
	pier_clear_error();
	table = get(&library);
	if (table)
		return pier_read_backend_table(table, ret_backend, ret_problem);
	pier_fail_because(EINVAL, "its %s() returned NULL", PIER_BACKEND_SYMBOL);
	return pier_refuse_backend(ret_problem, EINVAL, "%s", pier_error_message());
}

bool pier_load_backend(const char *path, struct pier_backend *ret_backend,
		       char ret_problem[PIER_BACKEND_PROBLEM_SIZE])
{
	void *object = open_object(path, ret_problem);

	if (!object)
		return false;
	if (read_object(object, ret_backend, ret_problem) == 0)
		return true;
	dlclose(object);
	return false;
}

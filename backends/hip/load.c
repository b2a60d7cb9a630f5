/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "load.h"
#include "backends/loaded.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"

#define HSA "libhsa-runtime64.so.1"

static const char *const hip_names[] = {
	"libamdhip64.so.6",
	"libamdhip64.so.7",
	"libamdhip64.so.5",
	"libamdhip64.so",
};

/* Opened by the first thread, and never closed, because HIP has threads of its own. */
static _Atomic(struct pier_hip *) opened;
/* The memo of pier_find_loaded(). */
static atomic_ullong absent;

/*
 * The object that this process has loaded, from any path, or NULL. PyTorch ships its own
 * libamdhip64.so, and two runtimes in one process do not know each other's memory.
 */
static void *open_present(const char *prefix, char *ret_path, size_t size)
{
	if (!pier_find_loaded(prefix, NULL, ret_path, size))
		return NULL;
	return dlopen(ret_path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
}

static int open_hip(char *ret_path, size_t size, void **ret_object)
{
	char reason[256] = "";

	*ret_object = open_present("libamdhip64.so", ret_path, size);
	for (size_t i = 0; i < sizeof(hip_names) / sizeof(hip_names[0]); i++) {
		const char *problem;

		if (*ret_object)
			return 0;
		*ret_object = dlopen(hip_names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		snprintf(ret_path, size, "%s", hip_names[i]);
		problem = *ret_object ? NULL : dlerror();
		if (problem && !reason[0])
			snprintf(reason, sizeof(reason), "%s", problem);
	}
	if (*ret_object)
		return 0;
	return pier_fail(
		EOPNOTSUPP,
		"no HIP runtime: %s; .so.7, .so.5 and .so are missing, too. Install "
		"ROCm's HIP runtime, or add its folder to LD_LIBRARY_PATH",
		reason[0] ? reason : hip_names[0]);
}

/*
 * HIP's own HSA: dlsym(3) also searches what an object depends on. The process may have
 * another one loaded, of which HIP knows nothing: PyTorch's next to /opt/rocm's. Only a
 * HIP that opens HSA itself leaves the choice to the search.
 */
static int open_hsa(void *hip_object, void **ret_object)
{
	char path[256];
	const char *problem;

	*ret_object = hip_object;
	if (dlsym(hip_object, "hsa_init"))
		return 0;
	*ret_object = open_present("libhsa-runtime64.so", path, sizeof(path));
	if (!*ret_object)
		*ret_object = dlopen(HSA, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (*ret_object)
		return 0;
	problem = dlerror();
	return pier_fail(EOPNOTSUPP,
			 "no HSA runtime, on which HIP is built: %s. Install ROCm's "
			 "runtime, or add its folder to LD_LIBRARY_PATH",
			 problem ? problem : HSA);
}

/* POSIX makes object and function pointers alike; ISO C has no cast between them. */
static bool resolve_function(void *object, const char *name, void *ret_function)
{
	void *symbol = dlsym(object, name);

	memcpy(ret_function, &symbol, sizeof(symbol));
	return symbol != NULL;
}

/* The name of a required function that is missing, or NULL. */
static const char *resolve_all(struct pier_hip *hip, void *hip_object, void *hsa_object)
{
	const char *missing = NULL;

#define OPTIONAL_HIP(name, parameters) resolve_function(hip_object, #name, &hip->name);
#define OPTIONAL_HSA(name, parameters) resolve_function(hsa_object, #name, &hip->name);
#define REQUIRED_HIP(name, parameters)                        \
	if (!resolve_function(hip_object, #name, &hip->name)) \
		missing = #name;
#define REQUIRED_HSA(name, parameters)                        \
	if (!resolve_function(hsa_object, #name, &hip->name)) \
		missing = #name;
	PIER_HIP_OPTIONAL(OPTIONAL_HIP)
	PIER_HSA_OPTIONAL(OPTIONAL_HSA)
	PIER_HSA_FUNCTIONS(REQUIRED_HSA)
	PIER_HIP_FUNCTIONS(REQUIRED_HIP)
	REQUIRED_HIP(hipGetErrorName, )
	return missing;
}

static int fill_table(struct pier_hip *hip)
{
	void *hip_object = NULL, *hsa_object = NULL;
	const char *missing;
	int result = pier_watch_forks();

	if (result == 0)
		result = open_hip(hip->path, sizeof(hip->path), &hip_object);
	if (result == 0)
		result = open_hsa(hip_object, &hsa_object);
	if (result != 0)
		return result;
	missing = resolve_all(hip, hip_object, hsa_object);
	if (missing)
		return pier_fail(EOPNOTSUPP,
				 "the HIP runtime %s is too old: it has no %s; use that "
				 "of ROCm 5.2 or later",
				 hip->path, missing);
	hip->generation = pier_fork_generation;
	hip->kernel_known = pier_hip_explain_kernel(hip->kernel_reason,
						    sizeof(hip->kernel_reason));
	return 0;
}

/* If several threads fill a table at once, the first table stays. */
static int open_table(const struct pier_hip **ret_hip)
{
	struct pier_hip *hip = calloc(1, sizeof(*hip)), *first = NULL;
	int result;

	if (!hip)
		return pier_fail(ENOMEM, "no memory for the table of HIP's functions");
	result = fill_table(hip);
	if (result != 0) {
		free(hip);
		return result;
	}
	if (!atomic_compare_exchange_strong(&opened, &first, hip)) {
		free(hip);
		hip = first;
	} else {
		pier_debug("HIP is %s", hip->path);
	}
	*ret_hip = hip;
	return 0;
}

int pier_hip_open(const struct pier_hip **ret_hip)
{
	const struct pier_hip *hip = atomic_load(&opened);
	int result;

	if (!hip) {
		result = open_table(&hip);
		if (result != 0)
			return result;
	}
	if (pier_hip_inherited(hip))
		return pier_fail(EOPNOTSUPP,
				 "HIP was in use before fork(2) made this process, and "
				 "cannot be used here; use exec(3), or HIP in the child "
				 "alone");
	*ret_hip = hip;
	return 0;
}

const struct pier_hip *pier_hip_opened(void)
{
	const struct pier_hip *hip = atomic_load(&opened);
	char path[256];

	if (hip)
		return hip;
	if (!pier_find_loaded("libamdhip64.so", &absent, path, sizeof(path)))
		return NULL;
	return open_table(&hip) == 0 ? hip : NULL;
}

bool pier_hip_inherited(const struct pier_hip *hip)
{
	return hip->generation != pier_fork_generation;
}

int pier_hip_check_owner(const struct pier_hip *hip)
{
	if (!pier_hip_inherited(hip))
		return 0;
	return pier_fail(EOPNOTSUPP, "the memory was the parent's before fork(2), "
				     "and HIP cannot be used here");
}

void pier_hip_version(const struct pier_hip *hip, char *ret_text, size_t size)
{
	int version = 0;

	/* HIP_VERSION: major, then two digits and five of minor and patch. */
	if (hip->hipRuntimeGetVersion(&version) == PIER_HIP_SUCCESS)
		snprintf(ret_text, size, "%d.%d", version / 10000000,
			 version / 100000 % 100);
	else
		snprintf(ret_text, size, "of unknown version");
}

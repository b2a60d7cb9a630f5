/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pier/backend.h>

#include "load.h"

#define LOADER "libze_loader.so.1"

enum {
	DRIVERS = 8
};

/* By the first thread. Never closed: the drivers have threads of their own. */
static _Atomic(struct pier_ze *) opened;

/* The number of libraries loaded so far, when the loader was last found missing. */
static atomic_ullong absent;

struct search {
	unsigned long long loaded; /* libraries, ever */
	bool found;
};

static int match_library(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct search *search = argument;
	const char *name = strrchr(info->dlpi_name, '/');

	(void)size;
	search->loaded = info->dlpi_adds;
	if (search->loaded == atomic_load(&absent))
		return 1;
	name = name ? name + 1 : info->dlpi_name;
	search->found = strncmp(name, "libze_loader.so", 15) == 0;
	return search->found;
}

/*
 * Asked for every pointer that is wrapped. dlopen(3) with RTLD_NOLOAD alone would search
 * every folder for a library that is not loaded, under the dynamic linker's lock.
 */
static bool is_loaded(void)
{
	struct search search = { .loaded = 0 };

	dl_iterate_phdr(match_library, &search);
	if (!search.found)
		atomic_store(&absent, search.loaded);
	return search.found;
}

/* POSIX makes object and function pointers alike; ISO C has no cast between them. */
static bool resolve_function(void *object, const char *name, void *ret_function)
{
	void *symbol = dlsym(object, name);

	memcpy(ret_function, &symbol, sizeof(symbol));
	return symbol != NULL;
}

/* Returns the name of a required function that is missing, or NULL. */
static const char *resolve_all(void *object, struct pier_ze_functions *ret_call)
{
	const char *missing = NULL;

#define RESOLVE_OPTIONAL(name, parameters) \
	resolve_function(object, #name, &ret_call->name);
#define RESOLVE_REQUIRED(name, parameters)                     \
	if (!resolve_function(object, #name, &ret_call->name)) \
		missing = #name;
	PIER_ZE_OPTIONAL(RESOLVE_OPTIONAL)
	PIER_ZE_FUNCTIONS(RESOLVE_REQUIRED)
	return missing;
}

static int load_functions(int flags, struct pier_ze_functions *ret_call, char *ret_reason)
{
	void *object = dlopen(LOADER, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags);
	const char *problem;

	if (!object) {
		problem = dlerror();
		snprintf(ret_reason, PIER_ZE_REASON,
			 "no Level Zero loader: %s. Install it (Debian: libze1), or add "
			 "its folder to LD_LIBRARY_PATH",
			 problem ? problem : LOADER);
		return -EOPNOTSUPP;
	}
	problem = resolve_all(object, ret_call);
	if (!problem)
		return 0;
	snprintf(ret_reason, PIER_ZE_REASON,
		 "%s has no %s: install version 1.4 or later of the Level Zero loader",
		 LOADER, problem);
	return -EOPNOTSUPP;
}

/*
 * Copies use a queue that only copies, where there is one: on a compute queue they would
 * wait for the application's kernels, and one of these may be polling for their bytes.
 */
static uint32_t choose_queue_group(const struct pier_ze_functions *call,
				   struct _ze_device_handle_t *device)
{
	struct pier_ze_queue_group_properties groups[16];
	uint32_t count = 16;

	memset(groups, 0, sizeof(groups));
	for (uint32_t i = 0; i < count; i++)
		groups[i].stype = PIER_ZE_TYPE_QUEUE_GROUP_PROPERTIES;
	if (call->zeDeviceGetCommandQueueGroupProperties(device, &count, groups) !=
	    PIER_ZE_SUCCESS)
		return 0;
	for (uint32_t i = 0; i < count && i < 16; i++) {
		if (groups[i].flags & PIER_ZE_QUEUE_COPY &&
		    !(groups[i].flags & PIER_ZE_QUEUE_COMPUTE))
			return i;
	}
	return 0;
}

static bool exports_dmabufs(const struct pier_ze_functions *call,
			    struct _ze_device_handle_t *device)
{
	struct pier_ze_external_memory_properties properties = {
		.stype = PIER_ZE_TYPE_EXTERNAL_MEMORY_PROPERTIES,
	};

	return call->zeDeviceGetExternalMemoryProperties(device, &properties) ==
		       PIER_ZE_SUCCESS &&
	       properties.memory_exports & PIER_ZE_EXTERNAL_MEMORY_DMABUF;
}

/* Drivers of NPUs are drivers as well, if the application asked for them. */
static void add_device(struct pier_ze *ze, struct _ze_driver_handle_t *driver,
		       struct _ze_context_handle_t *context,
		       struct _ze_device_handle_t *device)
{
	struct pier_ze_device_properties properties = {
		.stype = PIER_ZE_TYPE_DEVICE_PROPERTIES,
	};
	struct pier_ze_device *added = &ze->devices[ze->count];

	if (ze->count == PIER_ZE_DEVICES ||
	    ze->call.zeDeviceGetProperties(device, &properties) != PIER_ZE_SUCCESS ||
	    properties.type != PIER_ZE_DEVICE_GPU)
		return;
	added->handle = device;
	added->driver = driver;
	added->context = context;
	added->ordinal = choose_queue_group(&ze->call, device);
	added->exports = exports_dmabufs(&ze->call, device);
	added->max_alloc = properties.max_alloc;
	ze->count++;
}

static const char device_gone[] =
	"; the device is lost: look into the kernel's log, and restart the process";

/* ze_result_t in ze_api.h */
static const struct error {
	unsigned int error;
	int number; /* errno */
	const char *name;
	const char *remedy;
} errors[] = {
	{ 0, 0, "ZE_RESULT_SUCCESS", "" },
	{ 0x70000001, EIO, "ZE_RESULT_ERROR_DEVICE_LOST", device_gone },
	{ 0x70000002, ENOMEM, "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY", "" },
	{ 0x70000003, ENOMEM, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "" },
	{ 0x70000006, EIO, "ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET", device_gone },
	{ 0x70000007, EAGAIN, "ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE", "" },
	{ 0x70010000, EACCES, "ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS",
	  "; check the permissions of /dev/dri/renderD*" },
	{ 0x70010001, EBUSY, "ZE_RESULT_ERROR_NOT_AVAILABLE", "" },
	{ 0x70020000, EOPNOTSUPP, "ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE",
	  "; a library of the driver is missing" },
	{ 0x78000001, EOPNOTSUPP, "ZE_RESULT_ERROR_UNINITIALIZED", "" },
	{ 0x78000002, EOPNOTSUPP, "ZE_RESULT_ERROR_UNSUPPORTED_VERSION", "" },
	{ 0x78000003, EOPNOTSUPP, "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE", "" },
	{ 0x78000004, EINVAL, "ZE_RESULT_ERROR_INVALID_ARGUMENT", "" },
	{ 0x78000005, EINVAL, "ZE_RESULT_ERROR_INVALID_NULL_HANDLE", "" },
	{ 0x78000006, EBUSY, "ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE", "" },
	{ 0x78000007, EINVAL, "ZE_RESULT_ERROR_INVALID_NULL_POINTER", "" },
	{ 0x78000008, EINVAL, "ZE_RESULT_ERROR_INVALID_SIZE", "" },
	{ 0x78000009, E2BIG, "ZE_RESULT_ERROR_UNSUPPORTED_SIZE", "" },
	{ 0x7800000a, EINVAL, "ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT", "" },
	{ 0x7800000c, EINVAL, "ZE_RESULT_ERROR_INVALID_ENUMERATION", "" },
	{ 0x7800000d, EOPNOTSUPP, "ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION", "" },
	{ 0x7ffffffe, EIO, "ZE_RESULT_ERROR_UNKNOWN", "" },
};

static unsigned int add_driver(struct pier_ze *ze, struct _ze_driver_handle_t *driver)
{
	static const struct pier_ze_context_desc desc = {
		.stype = PIER_ZE_TYPE_CONTEXT_DESC,
	};
	struct _ze_device_handle_t *devices[PIER_ZE_DEVICES];
	struct _ze_context_handle_t *context = NULL;
	uint32_t count = PIER_ZE_DEVICES, before = ze->count;
	unsigned int error = ze->call.zeDeviceGet(driver, &count, devices);

	if (error == PIER_ZE_SUCCESS && count > 0)
		error = ze->call.zeContextCreate(driver, &desc, &context);
	if (error != PIER_ZE_SUCCESS || count == 0)
		return error;
	for (uint32_t i = 0; i < count; i++)
		add_device(ze, driver, context, devices[i]);
	if (ze->count == before)
		ze->call.zeContextDestroy(context);
	else if (before == 0)
		ze->call.zeDriverGetApiVersion(driver, &ze->version);
	return PIER_ZE_SUCCESS;
}

static void destroy_contexts(struct pier_ze *ze)
{
	for (uint32_t i = 0; i < ze->count; i++) {
		if (i == 0 || ze->devices[i].context != ze->devices[i - 1].context)
			ze->call.zeContextDestroy(ze->devices[i].context);
	}
}

/*
 * zeInit() may be called any number of times. If an application used zeInitDrivers(), the
 * drivers are initialised, too, and zeDriverGet() lists them.
 */
static int add_drivers(struct pier_ze *ze, char *ret_reason)
{
	struct _ze_driver_handle_t *drivers[DRIVERS];
	uint32_t count = DRIVERS;
	unsigned int error = ze->call.zeInit(PIER_ZE_INIT_GPU_ONLY);

	if (error == PIER_ZE_SUCCESS)
		error = ze->call.zeDriverGet(&count, drivers);
	if (error != PIER_ZE_SUCCESS)
		count = 0;
	for (uint32_t i = 0; i < count; i++) {
		unsigned int failed = add_driver(ze, drivers[i]);

		error = failed == PIER_ZE_SUCCESS ? error : failed;
	}
	if (ze->count > 0)
		return 0;
	snprintf(ret_reason, PIER_ZE_REASON,
		 "Level Zero has no GPU (%s, %#x): install the GPU's driver (Intel's "
		 "compute runtime), look for /dev/dri/renderD* and the permission to "
		 "open it, and check ZE_AFFINITY_MASK",
		 pier_ze_error_name(error), error);
	return -EOPNOTSUPP;
}

/* Without a lock, which a fork(2) of another thread would leave taken in the child. */
static int open_drivers(int flags, struct pier_ze **ret_ze, char *ret_reason)
{
	struct pier_ze *ze = calloc(1, sizeof(*ze)), *first = NULL;
	int result;

	if (!ze) {
		snprintf(ret_reason, PIER_ZE_REASON, "no memory for the list of devices");
		return -ENOMEM;
	}
	ze->owner = getpid();
	result = load_functions(flags, &ze->call, ret_reason);
	if (result == 0)
		result = add_drivers(ze, ret_reason);
	if (result != 0) {
		free(ze);
		return result;
	}
	if (!atomic_compare_exchange_strong(&opened, &first, ze)) {
		destroy_contexts(ze);
		free(ze);
		ze = first;
	}
	*ret_ze = ze;
	return 0;
}

int pier_ze_open(struct pier_ze **ret_ze, char ret_reason[PIER_ZE_REASON])
{
	struct pier_ze *ze = atomic_load(&opened);

	if (!ze)
		return open_drivers(0, ret_ze, ret_reason);
	*ret_ze = ze;
	if (!pier_ze_inherited(ze))
		return 0;
	snprintf(ret_reason, PIER_ZE_REASON,
		 "Level Zero was initialised before fork(2), and its drivers do not work "
		 "in the child: initialise them in the child alone, or call execve(2)");
	return -ECHILD;
}

/* Of the drivers, or of none: before zeInit(), zeDriverGet() fails and does nothing. */
static bool is_initialised(void)
{
	struct pier_ze_functions call;
	char reason[PIER_ZE_REASON];
	uint32_t count = 0;

	return is_loaded() && load_functions(RTLD_NOLOAD, &call, reason) == 0 &&
	       call.zeDriverGet(&count, NULL) == PIER_ZE_SUCCESS && count > 0;
}

struct pier_ze *pier_ze_present(void)
{
	struct pier_ze *ze = atomic_load(&opened);
	char reason[PIER_ZE_REASON];

	if (!ze && (!is_initialised() || open_drivers(RTLD_NOLOAD, &ze, reason) != 0))
		return NULL;
	return pier_ze_inherited(ze) ? NULL : ze;
}

bool pier_ze_inherited(const struct pier_ze *ze)
{
	return ze->owner != getpid();
}

static const struct error *find_error(unsigned int error)
{
	static const struct error unknown = { 0, EIO, "an unknown ze_result_t", "" };

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (errors[i].error == error)
			return &errors[i];
	}
	return &unknown;
}

const char *pier_ze_error_name(unsigned int error)
{
	return find_error(error)->name;
}

int pier_ze_check(unsigned int error, const char *format, ...)
{
	const struct error *found = find_error(error);
	char sentence[256];
	va_list args;

	if (error == PIER_ZE_SUCCESS)
		return 0;
	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	return pier_fail(found->number, "%s: %s (%#x)%s", sentence, found->name, error,
			 found->remedy);
}

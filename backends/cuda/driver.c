/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "error.h"
#include "backends/loaded.h"
#include "core/error.h"
#include "core/log.h"

#define LIBRARY "libcuda.so.1"
#define MODULE	"/proc/driver/nvidia/version"

/* Global, because a process has one driver. Written once. */
static _Atomic(struct pier_cuda *) opened;
/* The memo of pier_find_loaded(). */
static atomic_ullong absent;

static const struct {
	const char *name;
	int since;
	const char *symbol;
	size_t offset; /* in struct pier_cu_calls */
} calls[] = {
#define CALL(name, since, symbol, parameters) \
	{ #name, since, symbol, offsetof(struct pier_cu_calls, name) },
	PIER_CU_CALLS(CALL)
#undef CALL
};

enum {
	CALLS = sizeof(calls) / sizeof(calls[0])
};

/* As "12.8". */
static void print_version(int version, char ret_text[24])
{
	snprintf(ret_text, 24, "%d.%d", version / 1000, version % 1000 / 10);
}

/*
 * cuGetProcAddress() returns the form of a call that a given version of CUDA introduced,
 * if the library has several forms. Before CUDA 11.3 only dlsym(3) and the symbol's
 * suffix select one.
 */
static void *find_call(void *library, size_t index)
{
	pier_cu_get_proc_address get = (pier_cu_get_proc_address)dlsym(
		library, "cuGetProcAddress_v2");
	pier_cu_get_proc_address_v1 get_v1;
	CUdriverProcAddressQueryResult status;
	void *function = NULL;

	if (get) {
		if (get(calls[index].name, &function, calls[index].since,
			CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS)
			function = NULL;
		return function;
	}
	get_v1 = (pier_cu_get_proc_address_v1)dlsym(library, "cuGetProcAddress");
	if (!get_v1)
		return dlsym(library, calls[index].symbol);
	if (get_v1(calls[index].name, &function, calls[index].since,
		   CU_GET_PROC_ADDRESS_DEFAULT) != CUDA_SUCCESS)
		function = NULL;
	return function;
}

/* Errors: -EOPNOTSUPP, with the sentence in ret_why. */
static int find_calls(struct pier_cuda *cuda, char *ret_why, size_t size)
{
	for (size_t i = 0; i < CALLS; i++) {
		void *function = find_call(cuda->library, i);

		memcpy((char *)&cuda->call + calls[i].offset, &function,
		       sizeof(function));
		if (function || calls[i].since > PIER_CU_OLDEST)
			continue;
		snprintf(ret_why, size,
			 "%s has no %s, which has been in it since CUDA %d.%d: it is not "
			 "NVIDIA's driver, or older than CUDA %d.%d",
			 LIBRARY, calls[i].name, calls[i].since / 1000,
			 calls[i].since % 1000 / 10, PIER_CU_OLDEST / 1000,
			 PIER_CU_OLDEST % 1000 / 10);
		return -EOPNOTSUPP;
	}
	/* Works without cuInit(). */
	if (cuda->call.cuDriverGetVersion(&cuda->version) != CUDA_SUCCESS)
		cuda->version = 0;
	return 0;
}

/* Takes ownership of the library. If two threads get here at once, the first wins. */
static int publish_driver(void *library, struct pier_cuda **ret_cuda, char *ret_why,
			  size_t size)
{
	struct pier_cuda *cuda = calloc(1, sizeof(*cuda)), *first = NULL;
	int result = -ENOMEM;

	if (cuda) {
		cuda->library = library;
		atomic_init(&cuda->device_count, -1);
		result = find_calls(cuda, ret_why, size);
	} else {
		snprintf(ret_why, size, "no memory for the CUDA driver's table");
	}
	if (result == 0 && atomic_compare_exchange_strong(&opened, &first, cuda)) {
		*ret_cuda = cuda;
		return 0;
	}
	free(cuda);
	dlclose(library);
	if (result == 0)
		*ret_cuda = first;
	return result;
}

static int load_driver(struct pier_cuda **ret_cuda, char *ret_why, size_t size)
{
	struct pier_cuda *cuda = atomic_load(&opened);
	const char *reason;
	void *library;

	if (cuda) {
		*ret_cuda = cuda;
		return 0;
	}
	library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (library)
		return publish_driver(library, ret_cuda, ret_why, size);
	reason = dlerror();
	snprintf(ret_why, size,
		 "no CUDA driver: %s; install NVIDIA's driver (Debian: nvidia-driver, "
		 "libcuda1), or pass it into the container (docker run --gpus all)",
		 reason ? reason : "dlopen of " LIBRARY " failed");
	return -EOPNOTSUPP;
}

struct pier_cuda *pier_cuda_if_loaded(void)
{
	struct pier_cuda *cuda = atomic_load(&opened);
	char path[256], why[256];
	void *library;

	if (cuda)
		return cuda;
	/* The driver is not loaded, so no pointer belongs to CUDA. Don't load it. */
	if (!pier_find_loaded("libcuda.so", &absent, path, sizeof(path)))
		return NULL;
	library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	if (!library)
		return NULL;
	if (publish_driver(library, &cuda, why, sizeof(why)) != 0) {
		pier_debug("%s", why);
		return NULL;
	}
	return cuda;
}

/* cuInit() returns a bare number: find out what is wrong with the machine. */
static const char *explain_init(CUresult error, char *ret_text, size_t size)
{
	const char *visible = secure_getenv("CUDA_VISIBLE_DEVICES");

	if (error != CUDA_ERROR_NO_DEVICE && error != CUDA_ERROR_UNKNOWN)
		return "";
	if (access(MODULE, F_OK) != 0)
		return "; the kernel module nvidia is not loaded (" MODULE
		       " is not there): load it (modprobe nvidia), or pass the devices "
		       "into the container (docker run --gpus all)";
	if (error == CUDA_ERROR_UNKNOWN)
		return "; is the kernel module nvidia_uvm loaded (nvidia-modprobe -u "
		       "-c0)?";
	if (!visible)
		return "";
	snprintf(ret_text, size, "; CUDA_VISIBLE_DEVICES is \"%.40s\"", visible);
	return ret_text;
}

static int init_driver(struct pier_cuda *cuda, char *ret_why, size_t size)
{
	char text[160], extra[80];
	const char *step = "cuInit";
	CUresult error;
	int count = 0;

	/* cuInit() is thread-safe and may be called again. */
	error = cuda->call.cuInit(0);
	if (error == CUDA_SUCCESS) {
		step = "cuDeviceGetCount";
		error = cuda->call.cuDeviceGetCount(&count);
	}
	/* With some drivers cuInit() succeeds without a device. */
	if (error == CUDA_SUCCESS && count <= 0)
		error = CUDA_ERROR_NO_DEVICE;
	if (error != CUDA_SUCCESS) {
		pier_cuda_describe_error(cuda, error, text, sizeof(text));
		snprintf(ret_why, size, "%s: %s%s%s", step, text, pier_cuda_hint(error),
			 explain_init(error, extra, sizeof(extra)));
		return -pier_cuda_errno(error);
	}
	atomic_store(&cuda->device_count,
		     count < PIER_CUDA_DEVICES ? count : PIER_CUDA_DEVICES);
	return 0;
}

int pier_cuda_try_open(struct pier_cuda **ret_cuda, char *ret_why, size_t size)
{
	struct pier_cuda *cuda;
	int result = load_driver(&cuda, ret_why, size);

	if (result == 0 && atomic_load(&cuda->device_count) < 0)
		result = init_driver(cuda, ret_why, size);
	if (result == 0)
		*ret_cuda = cuda;
	return result;
}

int pier_cuda_open(struct pier_cuda **ret_cuda)
{
	char why[512];
	int result = pier_cuda_try_open(ret_cuda, why, sizeof(why));

	return result == 0 ? 0 : pier_fail(-result, "%s", why);
}

int pier_cuda_fail_missing(const struct pier_cuda *cuda, const char *name)
{
	char since[24] = "a later version", have[24];

	for (size_t i = 0; i < CALLS; i++) {
		if (strcmp(calls[i].name, name) == 0)
			print_version(calls[i].since, since);
	}
	print_version(cuda->version, have);
	return pier_fail(
		EOPNOTSUPP,
		"the CUDA driver (%s) has no %s, which came with CUDA %s: install "
		"a newer driver",
		have, name, since);
}

int pier_cuda_attribute(const struct pier_cuda *cuda, int device,
			CUdevice_attribute attribute)
{
	int value = 0;
	CUresult error = cuda->call.cuDeviceGetAttribute(&value, attribute, device);

	if (error == CUDA_SUCCESS)
		return value;
	return error == CUDA_ERROR_INVALID_VALUE ? 0 : -1;
}

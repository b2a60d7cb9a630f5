/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/loaded.h"
#include "core/error.h"
#include "core/log.h"
#include "driver.h"

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
	CUresult error;

	get_v1 = (pier_cu_get_proc_address_v1)dlsym(library, "cuGetProcAddress");
	if (get)
		error = get(calls[index].name, &function, calls[index].since,
			    CU_GET_PROC_ADDRESS_DEFAULT, &status);
	else if (get_v1)
		error = get_v1(calls[index].name, &function, calls[index].since,
			       CU_GET_PROC_ADDRESS_DEFAULT);
	else
		return dlsym(library, calls[index].symbol);
	return error == CUDA_SUCCESS ? function : NULL;
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

/*
 * After these errors the process has lost the context or the device: every later call
 * fails with the same error (CUDA C programming guide, section "Error handling").
 */
#define LOST "; this process cannot use the device any more: restart the process"

#define MPS "; check the MPS daemon (nvidia-cuda-mps-control)"

/* Errors that are not listed are EIO. */
static const struct error {
	CUresult error;
	int number;
	const char *hint;
} errors[] = {
	{ CUDA_ERROR_INVALID_VALUE, EINVAL, "" },
	{ CUDA_ERROR_OUT_OF_MEMORY, ENOMEM, "" },
	/*
	 * cuInit() returns it, too, in a child of a process that called it before
	 * fork(2).
	 */
	{ CUDA_ERROR_NOT_INITIALIZED, ECHILD,
	  "; CUDA cannot be used in a child of fork(2) whose parent initialised it: use "
	  "CUDA in the parent alone, or fork before, or spawn" },
	/* Returned to destructors that run after the driver's own. */
	{ CUDA_ERROR_DEINITIALIZED, ESHUTDOWN, "; the process is ending" },
	{ CUDA_ERROR_STUB_LIBRARY, EOPNOTSUPP,
	  "; this is the toolkit's stub to link with: take its folder out of "
	  "LD_LIBRARY_PATH, or install NVIDIA's driver" },
	/* The first cause applies at the first use of the device, the other one later. */
	{ CUDA_ERROR_DEVICE_UNAVAILABLE, ENODEV,
	  "; another process has the device to itself (nvidia-smi -q -d COMPUTE), or it "
	  "was lost" },
	{ CUDA_ERROR_NO_DEVICE, ENODEV, "" },
	{ CUDA_ERROR_INVALID_DEVICE, EINVAL, "" },
	{ CUDA_ERROR_DEVICE_NOT_LICENSED, EOPNOTSUPP, "" },
	{ CUDA_ERROR_INVALID_CONTEXT, EINVAL, "" },
	{ CUDA_ERROR_CONTEXT_IS_DESTROYED, EINVAL, "" },
	{ CUDA_ERROR_MAP_FAILED, ENOMEM, "" },
	{ CUDA_ERROR_ALREADY_MAPPED, EINVAL, "" },
	{ CUDA_ERROR_NOT_MAPPED, EINVAL, "" },
	{ CUDA_ERROR_ECC_UNCORRECTABLE, EIO, LOST },
	{ CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, EOPNOTSUPP,
	  "; the two devices cannot reach each other's memory (nvidia-smi topo -p2p w)" },
	{ CUDA_ERROR_NVLINK_UNCORRECTABLE, EIO, LOST },
	{ CUDA_ERROR_OPERATING_SYSTEM, EIO,
	  "; a system call of the driver failed, often at the limit of file descriptors "
	  "(ulimit -n) or locked memory (ulimit -l)" },
	{ CUDA_ERROR_INVALID_HANDLE, EINVAL, "" },
	{ CUDA_ERROR_ILLEGAL_STATE, EINVAL, "" },
	/* Not ENOENT: find() returns that for memory of other backends. */
	{ CUDA_ERROR_NOT_FOUND, EOPNOTSUPP, "" },
	{ CUDA_ERROR_ILLEGAL_ADDRESS, EIO, LOST },
	{ CUDA_ERROR_LAUNCH_TIMEOUT, EIO, LOST },
	{ CUDA_ERROR_ASSERT, EIO, LOST },
	{ CUDA_ERROR_TOO_MANY_PEERS, EUSERS, "" },
	{ CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, EEXIST, "" },
	{ CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, EINVAL, "" },
	{ CUDA_ERROR_HARDWARE_STACK_ERROR, EIO, LOST },
	{ CUDA_ERROR_ILLEGAL_INSTRUCTION, EIO, LOST },
	{ CUDA_ERROR_MISALIGNED_ADDRESS, EIO, LOST },
	{ CUDA_ERROR_INVALID_ADDRESS_SPACE, EIO, LOST },
	{ CUDA_ERROR_INVALID_PC, EIO, LOST },
	{ CUDA_ERROR_LAUNCH_FAILED, EIO, LOST },
	{ CUDA_ERROR_NOT_PERMITTED, EPERM, "" },
	{ CUDA_ERROR_NOT_SUPPORTED, EOPNOTSUPP, "" },
	{ CUDA_ERROR_SYSTEM_NOT_READY, ENODEV,
	  "; start nvidia-fabricmanager, which machines with NVSwitches need" },
	{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, EOPNOTSUPP,
	  "; libcuda.so.1 and the kernel module nvidia are of different versions: "
	  "reload the module, or restart the machine" },
	{ CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, EOPNOTSUPP,
	  "; take the folder of CUDA's compat libraries out of LD_LIBRARY_PATH" },
	{ CUDA_ERROR_MPS_CONNECTION_FAILED, ECONNREFUSED, MPS },
	{ CUDA_ERROR_MPS_RPC_FAILURE, EIO, MPS },
	{ CUDA_ERROR_MPS_SERVER_NOT_READY, EAGAIN, MPS },
	{ CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, EUSERS, MPS },
	{ CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, EUSERS, MPS },
	/* A thread that captures a stream must not make calls that wait. */
	{ CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, EBUSY,
	  "; a stream of this process is being captured: wait until that is over" },
	{ CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, EBUSY,
	  "; a stream of this process is being captured: wait until that is over" },
	/* For example, the device fell off its bus. */
	{ CUDA_ERROR_UNKNOWN, EIO, "; the kernel's log may have the reason" },
};

static const struct error *find_error(CUresult error)
{
	static const struct error unlisted = { .number = EIO, .hint = "" };

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (errors[i].error == error)
			return &errors[i];
	}
	return &unlisted;
}

int pier_cuda_errno(CUresult error)
{
	return find_error(error)->number;
}

const char *pier_cuda_hint(CUresult error)
{
	return find_error(error)->hint;
}

void pier_cuda_describe_error(const struct pier_cuda *cuda, CUresult error,
			      char *ret_text, size_t size)
{
	const char *name = NULL, *words = NULL;

	if (cuda->call.cuGetErrorName(error, &name) != CUDA_SUCCESS || !name) {
		snprintf(ret_text, size, "error %u of the CUDA driver",
			 (unsigned int)error);
		return;
	}
	if (cuda->call.cuGetErrorString(error, &words) != CUDA_SUCCESS || !words)
		words = "unknown";
	snprintf(ret_text, size, "%s (%s)", name, words);
}

int pier_cuda_check(const struct pier_cuda *cuda, CUresult error, const char *format, ...)
{
	char step[256], text[160];
	va_list args;

	if (error == CUDA_SUCCESS)
		return 0;
	va_start(args, format);
	vsnprintf(step, sizeof(step), format, args);
	va_end(args);
	pier_cuda_describe_error(cuda, error, text, sizeof(text));
	return pier_fail(pier_cuda_errno(error), "%s: %s%s", step, text,
			 pier_cuda_hint(error));
}

void pier_cuda_warn(const struct pier_cuda *cuda, CUresult error, const char *step,
		    uint64_t address)
{
	char text[160];

	if (error == CUDA_SUCCESS)
		return;
	pier_cuda_describe_error(cuda, error, text, sizeof(text));
	pier_warning("%s of %#" PRIx64 ": %s", step, address, text);
}

/*
 * While a thread captures a stream into a graph in the global mode (the default), calls
 * of other threads that may allocate or wait fail and break the capture. Pier's calls
 * belong to no graph, so they relax the mode. Before CUDA 10.1 there was no other mode.
 */
static void relax_capture(const struct pier_cuda *cuda, struct pier_cuda_saved *ret_saved)
{
	ret_saved->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	ret_saved->relaxed = cuda->call.cuThreadExchangeStreamCaptureMode &&
			     cuda->call.cuThreadExchangeStreamCaptureMode(
				     &ret_saved->mode) == CUDA_SUCCESS;
}

static void restore_capture(const struct pier_cuda *cuda,
			    const struct pier_cuda_saved *saved)
{
	CUstreamCaptureMode mode = saved->mode;

	if (saved->relaxed)
		cuda->call.cuThreadExchangeStreamCaptureMode(&mode);
}

/*
 * In the current context. Don't set the flag twice: setting it takes a lock. The flags
 * that a context reports may include one that cuCtxSetFlags() does not take, such as the
 * deprecated CU_CTX_MAP_HOST. The bare flag always works, and is all that UCX passes
 * (uct_cuda_copy_set_ctx_sync_memops() in cuda_copy_md.c), but it resets the scheduling.
 */
static CUresult set_sync_flag(const struct pier_cuda *cuda)
{
	unsigned int flags = 0;
	CUresult error;

	if (!cuda->call.cuCtxSetFlags ||
	    cuda->call.cuCtxGetFlags(&flags) != CUDA_SUCCESS ||
	    flags & CU_CTX_SYNC_MEMOPS)
		return CUDA_SUCCESS;
	error = cuda->call.cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS);
	if (error == CUDA_ERROR_INVALID_VALUE && flags)
		error = cuda->call.cuCtxSetFlags(CU_CTX_SYNC_MEMOPS);
	return error;
}

CUresult pier_cuda_synchronize_context(const struct pier_cuda *cuda)
{
	struct pier_cuda_saved saved;
	CUresult error;

	relax_capture(cuda, &saved);
	error = set_sync_flag(cuda);
	restore_capture(cuda, &saved);
	return error;
}

/* 0 before CUDA 12.0. */
static unsigned long long read_id(const struct pier_cuda *cuda, CUcontext context)
{
	unsigned long long id = 0;

	if (!cuda->call.cuCtxGetId || cuda->call.cuCtxGetId(context, &id) != CUDA_SUCCESS)
		return 0;
	return id;
}

/* If two threads retain the context at once, the second releases its own reference. */
static int retain_primary(struct pier_cuda *cuda, int device, CUcontext *ret_context)
{
	CUcontext context = NULL, first = NULL, popped;
	int result = pier_cuda_check(
		cuda, cuda->call.cuDevicePrimaryCtxRetain(&context, device),
		"cuDevicePrimaryCtxRetain of CUDA device %d", device);

	if (result != 0)
		return result;
	/* A failure here shows up again at the first export. */
	if (cuda->call.cuCtxPushCurrent(context) == CUDA_SUCCESS) {
		pier_cuda_synchronize_context(cuda);
		cuda->call.cuCtxPopCurrent(&popped);
	}
	if (!atomic_compare_exchange_strong(&cuda->primary[device], &first, context)) {
		cuda->call.cuDevicePrimaryCtxRelease(device);
		context = first;
	} else {
		atomic_store(&cuda->primary_id[device], read_id(cuda, context));
	}
	*ret_context = context;
	return 0;
}

/*
 * cudaDeviceReset() destroys the primary context, with its streams, for all users in the
 * process. The next user makes a new one, often at the same address; only its number
 * differs. A reset does not release the references of other users
 * (cuDevicePrimaryCtxReset() in CUDA's driver API).
 */
static bool was_reset(const struct pier_cuda *cuda, int device, CUcontext context)
{
	unsigned long long known = atomic_load(&cuda->primary_id[device]);
	unsigned int flags;
	int active = 1;

	if (cuda->call.cuDevicePrimaryCtxGetState(device, &flags, &active) ==
		    CUDA_SUCCESS &&
	    !active)
		return true;
	return known && read_id(cuda, context) != known;
}

/*
 * The primary context if pier has retained it and it still exists. Otherwise NULL, and
 * pier forgets it and its stream. Of several threads that notice the reset, one drops the
 * reference.
 */
static CUcontext find_primary(struct pier_cuda *cuda, int device)
{
	CUcontext context = atomic_load(&cuda->primary[device]), lost = context;

	if (!context || !was_reset(cuda, device, context))
		return context;
	if (atomic_compare_exchange_strong(&cuda->primary[device], &lost, NULL)) {
		atomic_store(&cuda->primary_id[device], 0);
		atomic_store(&cuda->stream[device], NULL);
		cuda->call.cuDevicePrimaryCtxRelease(device);
	}
	return NULL;
}

static int push_context(struct pier_cuda *cuda, int device, CUcontext context)
{
	int result = 0;

	if (!context)
		context = find_primary(cuda, device);
	if (!context)
		result = retain_primary(cuda, device, &context);
	if (result != 0)
		return result;
	return pier_cuda_check(cuda, cuda->call.cuCtxPushCurrent(context),
			       "cuCtxPushCurrent of a context of CUDA device %d", device);
}

int pier_cuda_enter(struct pier_cuda *cuda, int device, CUcontext context,
		    struct pier_cuda_saved *ret_saved)
{
	int result;

	relax_capture(cuda, ret_saved);
	result = push_context(cuda, device, context);
	ret_saved->entered = result == 0;
	return result;
}

void pier_cuda_leave(struct pier_cuda *cuda, const struct pier_cuda_saved *saved)
{
	CUcontext context;

	if (saved->entered)
		cuda->call.cuCtxPopCurrent(&context);
	restore_capture(cuda, saved);
}

int pier_cuda_recognize(struct pier_cuda *cuda, int device, CUcontext *context)
{
	CUcontext primary = find_primary(cuda, device);
	unsigned int flags;
	int active = 0, result;

	if (!*context)
		return 0;
	if (!primary) {
		if (cuda->call.cuDevicePrimaryCtxGetState(device, &flags, &active) !=
			    CUDA_SUCCESS ||
		    !active)
			return 0;
		result = retain_primary(cuda, device, &primary);
		if (result != 0)
			return result;
	}
	if (*context == primary)
		*context = NULL;
	return 0;
}

/* If two threads create a stream at once, the second destroys its own. */
static CUstream keep_stream(struct pier_cuda *cuda, int device, CUstream stream)
{
	CUstream first = NULL;

	if (atomic_compare_exchange_strong(&cuda->stream[device], &first, stream))
		return stream;
	cuda->call.cuStreamDestroy(stream);
	return first;
}

/*
 * The owner of another context may destroy it, and its streams with it, so such a context
 * gets a new stream for each use.
 */
int pier_cuda_take_stream(struct pier_cuda *cuda, int device, CUcontext context,
			  CUstream *ret_stream)
{
	CUstream stream = context ? NULL : atomic_load(&cuda->stream[device]);
	int result;

	if (!stream) {
		result = pier_cuda_check(
			cuda, cuda->call.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
			"cuStreamCreate on CUDA device %d", device);
		if (result != 0)
			return result;
		if (!context)
			stream = keep_stream(cuda, device, stream);
	}
	*ret_stream = stream;
	return 0;
}

void pier_cuda_put_stream(struct pier_cuda *cuda, CUcontext context, CUstream stream)
{
	if (context)
		cuda->call.cuStreamDestroy(stream);
}

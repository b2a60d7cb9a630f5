/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "backends/loaded.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/fork.h"
#include "core/log.h"
#include "load.h"

/*
 * Without the first, pci_p2pdma_distance_many() fails, so amdgpu_dma_buf_attach() gives
 * up on peer-to-peer; without the second, amdgpu_dma_buf_pin() does not pin to the
 * device's memory. Either way the dma-buf is moved to host memory. UCX
 * (uct_rocm_base_is_dmabuf_supported()) and RCCL (rocmwrap.cc) want both set. Here a line
 * must say that one is not: newer kernels do without the second option ("dma-buf: Always
 * build with DMABUF_MOVE_NOTIFY", 2026).
 */
static const char *const options[] = { "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY" };

/*
 * Where the configuration of the running kernel is: around its release. RCCL
 * (kernel_config.cc) and UCX (uct_rocm_base_load_kernel_config_file()) look there, too;
 * sources in /usr/src may have been configured anew since. A container has the first at
 * most, if the kernel has CONFIG_IKCONFIG_PROC. Both fall back to dma_buf_move_notify in
 * /proc/kallsyms, which proves nothing: dma-buf.c has it with and without the option.
 */
static const struct {
	const char *before, *after; /* NULL: the release is not in the name */
} places[] = {
	{ "/proc/config.gz", NULL },
	{ "/boot/config-", "" },
	{ "/lib/modules/", "/config" },
	{ "/usr/lib/kernel/config-", "" },
	{ "/usr/lib/ostree-boot/config-", "" },
	{ "/lib/modules/", "/build/.config" },
};

/* It also reads plain text. HSA always brings it: HSA needs libelf, which needs zlib. */
struct zlib {
	struct gzFile_s *(*gzdopen)(int fd, const char *mode);
	char *(*gzgets)(struct gzFile_s *file, char *line, int size);
	int (*gzclose)(struct gzFile_s *file);
};

static bool resolve_zlib(void *object, struct zlib *ret_zlib)
{
	void *symbols[] = { dlsym(object, "gzdopen"), dlsym(object, "gzgets"),
			    dlsym(object, "gzclose") };

	/* POSIX makes object and function pointers alike. */
	_Static_assert(sizeof(symbols) == sizeof(*ret_zlib), "three pointers");
	memcpy(ret_zlib, symbols, sizeof(symbols));
	return ret_zlib->gzdopen && ret_zlib->gzgets && ret_zlib->gzclose;
}

static const char *find_unset(const char *line)
{
	char unset[64];

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		snprintf(unset, sizeof(unset), "# %s is not set\n", options[i]);
		if (strcmp(line, unset) == 0)
			return options[i];
	}
	return NULL;
}

/*
 * Returns whether the file can be read.
 *
 * ret_option  the option that it denies, or unchanged
 */
static bool read_config(const struct zlib *zlib, const char *path,
			const char **ret_option)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct gzFile_s *file;
	bool readable = false;
	char line[256];

	if (fd < 0)
		return false;
	file = zlib->gzdopen(fd, "r");
	if (!file) {
		pier_close_fd(fd);
		return false;
	}
	while (!*ret_option && zlib->gzgets(file, line, sizeof(line))) {
		readable = true;
		*ret_option = find_unset(line);
	}
	zlib->gzclose(file);
	return readable;
}

/* Reads the first configuration that can be read, whose name is in `path` then. */
static bool find_config(const struct zlib *zlib, char *path, size_t size,
			const char **ret_option)
{
	struct utsname system;
	bool readable = false;

	if (uname(&system) != 0)
		return false;
	for (size_t i = 0; !readable && i < sizeof(places) / sizeof(places[0]); i++) {
		const char *after = places[i].after;

		snprintf(path, size, "%s%s%s", places[i].before,
			 after ? system.release : "", after ? after : "");
		readable = read_config(zlib, path, ret_option);
	}
	return readable;
}

bool pier_hip_explain_kernel(char *ret_reason, size_t size)
{
	const char *option = NULL;
	struct zlib zlib;
	bool readable;
	char path[128];
	void *object;

	ret_reason[0] = '\0';
	/* "on": tried whatever the configuration says. */
	if (pier_switched_on("PIER_DMABUF"))
		return true;
	object = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!object)
		return false;
	readable = resolve_zlib(object, &zlib) &&
		   find_config(&zlib, path, sizeof(path), &option);
	dlclose(object);
	if (option)
		snprintf(ret_reason, size,
			 "by %s the kernel has no %s, so amdgpu would give a NIC host "
			 "memory in its place; use another kernel, peer memory or a "
			 "bounce buffer, or try it (PIER_DMABUF=on)",
			 path, option);
	return readable;
}

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

bool pier_hip_ask_hsa(const struct pier_hip *hip, uint64_t address,
		      struct pier_hsa_pointer_info *ret_info)
{
	unsigned int status;

	*ret_info = (struct pier_hsa_pointer_info){ .size = sizeof(*ret_info) };
	status = hip->hsa_amd_pointer_info((void *)(uintptr_t)address, ret_info, NULL,
					   NULL, NULL);
	if (status == PIER_HSA_NOT_INITIALIZED)
		return false;
	if (status != PIER_HSA_SUCCESS)
		ret_info->type = PIER_HSA_POINTER_UNKNOWN;
	return true;
}

bool pier_hip_is_on_gpu(const struct pier_hip *hip,
			const struct pier_hsa_pointer_info *info)
{
	int device = PIER_HSA_DEVICE_GPU;

	return hip->hsa_agent_get_info(info->owner, PIER_HSA_AGENT_DEVICE, &device) !=
		       PIER_HSA_SUCCESS ||
	       device == PIER_HSA_DEVICE_GPU;
}

bool pier_hip_is_mapped(const struct pier_hsa_pointer_info *info)
{
	return info->type == PIER_HSA_POINTER_VIRTUAL ||
	       info->type == PIER_HSA_POINTER_RESERVED;
}

#define FAILED                                                                       \
	"the device, or this process's use of it, has failed: end the process, and " \
	"look for amdgpu in the kernel's log"
#define CAPTURING "a stream of this process is being captured into a graph"

struct code {
	unsigned int code;
	const char *name;
	int error;
	const char *advice; /* or NULL */
};

/* hipError_t, of hip_runtime_api.h. */
static const struct code hip_codes[] = {
	{ 1, "hipErrorInvalidValue", EINVAL, NULL },
	{ 2, "hipErrorOutOfMemory", ENOMEM, NULL },
	{ 3, "hipErrorNotInitialized", ENODEV, NULL },
	{ 4, "hipErrorDeinitialized", EIO, "the process is ending" },
	{ 17, "hipErrorInvalidDevicePointer", EFAULT,
	  "the memory was freed, or is no device's" },
	{ 35, "hipErrorInsufficientDriver", EOPNOTSUPP,
	  "the kernel's amdgpu driver is too old for this ROCm" },
	{ 100, "hipErrorNoDevice", ENODEV, NULL },
	{ 101, "hipErrorInvalidDevice", ENODEV, NULL },
	{ 201, "hipErrorInvalidContext", EINVAL, NULL },
	{ 205, "hipErrorMapFailed", ENOMEM, NULL },
	{ 214, "hipErrorECCNotCorrectable", EIO, FAILED },
	{ 304, "hipErrorOperatingSystem", EIO, NULL },
	{ 500, "hipErrorNotFound", EFAULT, "the memory was freed, or is no device's" },
	{ 600, "hipErrorNotReady", EAGAIN, NULL },
	{ 700, "hipErrorIllegalAddress", EIO, FAILED },
	{ 702, "hipErrorLaunchTimeOut", EIO, FAILED },
	{ 709, "hipErrorContextIsDestroyed", EIO, FAILED },
	{ 712, "hipErrorHostMemoryAlreadyRegistered", EEXIST, NULL },
	{ 713, "hipErrorHostMemoryNotRegistered", EINVAL, NULL },
	{ 719, "hipErrorLaunchFailure", EIO, FAILED },
	{ 801, "hipErrorNotSupported", EOPNOTSUPP, NULL },
	{ 900, "hipErrorStreamCaptureUnsupported", EBUSY, CAPTURING },
	{ 901, "hipErrorStreamCaptureInvalidated", EBUSY, CAPTURING },
	{ 906, "hipErrorStreamCaptureImplicit", EBUSY, CAPTURING },
	{ 999, "hipErrorUnknown", EIO, FAILED },
	{ 1052, "hipErrorRuntimeMemory", ENOMEM, NULL },
	{ 1053, "hipErrorRuntimeOther", EIO, FAILED },
};

/* hsa_status_t, of hsa.h and hsa_ext_amd.h. */
static const struct code hsa_codes[] = {
	{ 40, "HSA_STATUS_ERROR_INVALID_MEMORY_POOL", EINVAL, NULL },
	{ 41, "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", EIO, FAILED },
	{ 43, "HSA_STATUS_ERROR_MEMORY_FAULT", EIO, FAILED },
	{ 47, "HSA_STATUS_ERROR_NOT_SUPPORTED", EOPNOTSUPP, NULL },
	{ 0x1000, "HSA_STATUS_ERROR", EIO, NULL },
	{ 0x1001, "HSA_STATUS_ERROR_INVALID_ARGUMENT", EINVAL, NULL },
	{ 0x1003, "HSA_STATUS_ERROR_INVALID_ALLOCATION", EFAULT, NULL },
	{ 0x1004, "HSA_STATUS_ERROR_INVALID_AGENT", EOPNOTSUPP, NULL },
	{ 0x1005, "HSA_STATUS_ERROR_INVALID_REGION", EINVAL, NULL },
	{ 0x1008, "HSA_STATUS_ERROR_OUT_OF_RESOURCES", ENOMEM, NULL },
	{ 0x100A, "HSA_STATUS_ERROR_RESOURCE_FREE", EIO, NULL },
	{ 0x100B, "HSA_STATUS_ERROR_NOT_INITIALIZED", ENODEV, NULL },
	{ 0x100C, "HSA_STATUS_ERROR_REFCOUNT_OVERFLOW", EOVERFLOW, NULL },
	{ 0x100D, "HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS", EINVAL, NULL },
	{ 0x1016, "HSA_STATUS_ERROR_EXCEPTION", EIO, FAILED },
	{ 0x1025, "HSA_STATUS_ERROR_INVALID_RUNTIME_STATE", EIO, FAILED },
	{ 0x1026, "HSA_STATUS_ERROR_FATAL", EIO, FAILED },
};

static const struct code *find_code(const struct code *codes, size_t count,
				    unsigned int code)
{
	for (size_t i = 0; i < count; i++) {
		if (codes[i].code == code)
			return &codes[i];
	}
	return NULL;
}

static const struct code *find_hip_code(unsigned int error)
{
	return find_code(hip_codes, sizeof(hip_codes) / sizeof(hip_codes[0]), error);
}

int pier_hip_errno(unsigned int error)
{
	const struct code *code = find_hip_code(error);

	return code ? code->error : EIO;
}

static int fail_with_code(const struct code *code, const char *other, const char *number,
			  const char *what)
{
	const char *advice = code ? code->advice : NULL;

	return pier_fail(code ? code->error : EIO, "%s: %s (%s)%s%s", what,
			 code ? code->name : other, number, advice ? "; " : "",
			 advice ? advice : "");
}

int pier_hip_check(const struct pier_hip *hip, unsigned int error, const char *format,
		   ...)
{
	const struct code *code = find_hip_code(error);
	char what[384], number[24];
	const char *name;
	va_list args;

	if (error == PIER_HIP_SUCCESS)
		return 0;
	name = code ? NULL : hip->hipGetErrorName(error);
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	snprintf(number, sizeof(number), "%u", error);
	return fail_with_code(code, name ? name : "hipError_t", number, what);
}

int pier_hsa_fail(unsigned int status, const char *format, ...)
{
	const struct code *code = find_code(
		hsa_codes, sizeof(hsa_codes) / sizeof(hsa_codes[0]), status);
	char what[384], number[24];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	snprintf(number, sizeof(number), "%#x", status);
	return fail_with_code(code, "hsa_status_t", number, what);
}

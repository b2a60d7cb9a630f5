/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "error.h"
#include "core/error.h"

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

static const struct code *find_hsa_code(unsigned int status)
{
	return find_code(hsa_codes, sizeof(hsa_codes) / sizeof(hsa_codes[0]), status);
}

int pier_hip_errno(unsigned int error)
{
	const struct code *code = find_hip_code(error);

	return code ? code->error : EIO;
}

static int fail_with_code(const struct code *code, const char *other, unsigned int number,
			  bool hexadecimal, const char *format, va_list args)
	__attribute__((format(printf, 5, 0)));
static int fail_with_code(const struct code *code, const char *other, unsigned int number,
			  bool hexadecimal, const char *format, va_list args)
{
	const char *advice = code ? code->advice : NULL;
	char what[384], value[24];

	vsnprintf(what, sizeof(what), format, args);
	if (hexadecimal)
		snprintf(value, sizeof(value), "0x%x", number);
	else
		snprintf(value, sizeof(value), "%u", number);
	return pier_fail(code ? code->error : EIO, "%s: %s (%s)%s%s", what,
			 code ? code->name : other, value, advice ? "; " : "",
			 advice ? advice : "");
}

int pier_hip_fail(const struct pier_hip *hip, unsigned int error, const char *format, ...)
{
	const struct code *code = find_hip_code(error);
	const char *name = code ? NULL : hip->hipGetErrorName(error);
	va_list args;
	int result;

	va_start(args, format);
	result = fail_with_code(code, name ? name : "hipError_t", error, false, format,
				args);
	va_end(args);
	return result;
}

int pier_hsa_fail(unsigned int status, const char *format, ...)
{
	va_list args;
	int result;

	va_start(args, format);
	result = fail_with_code(find_hsa_code(status), "hsa_status_t", status, true,
				format, args);
	va_end(args);
	return result;
}

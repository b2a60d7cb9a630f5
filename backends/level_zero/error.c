/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "error.h"

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

int pier_ze_fail(unsigned int error, const char *format, ...)
{
	const struct error *found = find_error(error);
	char sentence[256];
	va_list args;

	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	return pier_fail(found->number, "%s: %s (%#x)%s", sentence, found->name, error,
			 found->remedy);
}

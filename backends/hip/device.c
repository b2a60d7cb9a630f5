/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/linux/fd_memory.h"
#include "core/error.h"
#include "core/fd.h"
#include "device.h"
#include "load.h"

#define KFD	"/dev/kfd"
#define DEVICES "/sys/bus/pci/devices"

/*
 * While a thread captures a stream into a graph in the global mode (the default), calls
 * of other threads that may allocate or wait fail and break the capture
 * (CHECK_STREAM_CAPTURE_SUPPORTED() in clr). Pier's calls belong to no graph, so they
 * relax the mode.
 */
static void relax_capture(const struct pier_hip *hip, struct pier_hip_saved *saved)
{
	saved->mode = PIER_HIP_CAPTURE_RELAXED;
	saved->relaxed = hip->hipThreadExchangeStreamCaptureMode &&
			 hip->hipThreadExchangeStreamCaptureMode(&saved->mode) ==
				 PIER_HIP_SUCCESS;
}

static void restore_capture(const struct pier_hip *hip,
			    const struct pier_hip_saved *saved)
{
	unsigned int mode = saved->mode;

	if (saved->relaxed)
		hip->hipThreadExchangeStreamCaptureMode(&mode);
}

int pier_hip_enter(const struct pier_hip *hip, int device,
		   struct pier_hip_saved *ret_saved)
{
	int result;

	*ret_saved = (struct pier_hip_saved){
		.clean = hip->hipPeekAtLastError() == PIER_HIP_SUCCESS,
	};
	relax_capture(hip, ret_saved);
	if (device < 0)
		return 0;
	result = pier_hip_check(hip, hip->hipGetDevice(&ret_saved->device),
				"asking for the current device");
	if (result != 0 || ret_saved->device == device)
		return result;
	result = pier_hip_check(hip, hip->hipSetDevice(device),
				"making device %d current", device);
	ret_saved->changed = result == 0;
	return result;
}

void pier_hip_leave(const struct pier_hip *hip, const struct pier_hip_saved *saved)
{
	if (saved->changed)
		hip->hipSetDevice(saved->device);
	restore_capture(hip, saved);
	/*
	 * This call clears the error. An error of the application's could not be
	 * restored.
	 */
	if (saved->clean)
		hip->hipGetLastError();
}

/*
 * HIP reports only that there is no device. The driver's device file distinguishes a
 * missing driver from a missing permission.
 */
static int fail_without_device(void)
{
	int fd = open(KFD, O_RDWR | O_CLOEXEC), error = errno;
	char reason[256];

	if (fd >= 0) {
		pier_close_fd(fd);
		return pier_fail(
			EOPNOTSUPP,
			"HIP has no device: " KFD " can be opened, so either no "
			"GPU here is one that ROCm knows, or ROCR_VISIBLE_DEVICES "
			"or HIP_VISIBLE_DEVICES hides them, or no permission "
			"for /dev/dri/renderD* (groups render and video)");
	}
	pier_explain_device_file(KFD, "CONFIG_HSA_AMD", error, reason, sizeof(reason));
	return pier_fail(pier_device_file_errno(error), "HIP has no device: %s", reason);
}

int pier_hip_count_devices(const struct pier_hip *hip, int *ret_count)
{
	int count = 0;
	unsigned int error = hip->hipGetDeviceCount(&count);

	if (error == PIER_HIP_NO_DEVICE || (error == PIER_HIP_SUCCESS && count <= 0))
		return fail_without_device();
	*ret_count = count;
	return pier_hip_check(hip, error, "counting HIP's devices");
}

volatile uint32_t *pier_hip_flush_register(const struct pier_hip *hip, int device)
{
	volatile uint32_t *flush = NULL;

	if (hip->hipDeviceGetAttribute((int *)(void *)&flush, PIER_HIP_HDP_FLUSH,
				       device) != PIER_HIP_SUCCESS)
		return NULL;
	return flush;
}

static bool has_device(const char *devices, const char *pci)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", devices, pci);
	return access(path, F_OK) == 0;
}

void pier_hip_find_function(const char *devices, char pci[16])
{
	char first[16];
	size_t length = strlen(pci);

	if (length < 2 || pci[length - 2] != '.' || has_device(devices, pci))
		return;
	memcpy(first, pci, length + 1);
	first[length - 1] = '0';
	if (has_device(devices, first))
		memcpy(pci, first, length + 1);
}

void pier_hip_locate(const struct pier_hip *hip, int device, char ret_pci[16])
{
	ret_pci[0] = '\0';
	if (hip->hipDeviceGetPCIBusId(ret_pci, 16, device) != PIER_HIP_SUCCESS)
		ret_pci[0] = '\0';
	ret_pci[15] = '\0';
	/* HIP may write capital hexadecimal digits; sysfs has lower case. */
	for (char *c = ret_pci; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	pier_hip_find_function(DEVICES, ret_pci);
}

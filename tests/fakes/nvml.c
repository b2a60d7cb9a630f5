/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * NVIDIA's management library with one GPU, as nvml.h and its documentation describe the
 * functions: all but nvmlInit_v2() fail before it with NVML_ERROR_UNINITIALIZED.
 *
 * FAKE_NVML_PCI  the address of the GPU; other addresses are not found
 */

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_FOUND = 6,
};

struct nvml_bar1 {
	unsigned long long total, free, used;
};

static int users;
static char gpu;

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **ret_device);
EXPORT int nvmlDeviceGetBAR1MemoryInfo(void *device, struct nvml_bar1 *ret_memory);
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned int *ret_current,
				unsigned int *ret_pending);

int nvmlInit_v2(void)
{
	users++;
	return NVML_SUCCESS;
}

int nvmlShutdown(void)
{
	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	users--;
	return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **ret_device)
{
	const char *mine = getenv("FAKE_NVML_PCI");

	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!pci || !ret_device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!mine || strcmp(mine, pci) != 0)
		return NVML_ERROR_NOT_FOUND;
	*ret_device = &gpu;
	return NVML_SUCCESS;
}

int nvmlDeviceGetBAR1MemoryInfo(void *device, struct nvml_bar1 *ret_memory)
{
	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	if (device != &gpu || !ret_memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	*ret_memory = (struct nvml_bar1){ 1ull << 37, (1ull << 37) - (3 << 20), 3 << 20 };
	return NVML_SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned int *ret_current,
			 unsigned int *ret_pending)
{
	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	if (device != &gpu || !ret_current || !ret_pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*ret_current = *ret_pending = 1;
	return NVML_SUCCESS;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* CUDA's driver, for driver.h. */
#include "../support/cmocka.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

static void find_calls(void *library)
{
#define FIND(name, since, symbol, parameters) \
	*(void **)&gpu.call.name = dlsym(library, symbol);
	PIER_CU_CALLS(FIND)
#undef FIND
#define FIND(name, symbol, parameters) *(void **)&gpu.more.name = dlsym(library, symbol);
	GPU_CALLS(FIND)
#undef FIND
#define FIND(name, cuda, hip, parameters) *(void **)&gpu.both.name = dlsym(library, cuda);
	GPU_BOTH(FIND)
#undef FIND
	gpu.fake = dlsym(library, "fake_cuda_control") != NULL;
}

static void open_cuda_device(void)
{
	CUresult error = gpu.call.cuInit(0);
	char reason[128];

	if (error == CUDA_SUCCESS)
		error = gpu.call.cuDeviceGetCount(&gpu.count);
	if (error != CUDA_SUCCESS || gpu.count == 0) {
		snprintf(reason, sizeof(reason), "no CUDA device: cuInit gives %s%s",
			 gpu_error(error),
			 access("/dev/nvidiactl", F_OK) ? ", no /dev/nvidiactl" : "");
		gpu_skip_program(reason);
	}
	gpu_choose_device();
	error = gpu.call.cuDevicePrimaryCtxRetain(&gpu.context, gpu.device);
	if (error != CUDA_SUCCESS) {
		fprintf(stderr, "no context of device %d: %s\n", gpu.device,
			gpu_error(error));
		exit(1);
	}
}

static void open_cuda(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	char reason[256];

	if (!library) {
		snprintf(reason, sizeof(reason), "no NVIDIA driver: %s%s", dlerror(),
			 access("/dev/nvidiactl", F_OK) ? "; no /dev/nvidiactl" : "");
		gpu_skip_program(reason);
	}
	find_calls(library);
	if (!gpu.call.cuInit || gpu.call.cuDriverGetVersion(&gpu.version) != CUDA_SUCCESS)
		gpu_skip_program("libcuda.so.1 is not the CUDA driver");
	open_cuda_device();
}

static void push_context(void)
{
	gpu_must(gpu.call.cuCtxPushCurrent(gpu.context));
}

static void pop_context(void)
{
	CUcontext context;

	gpu_must(gpu.call.cuCtxPopCurrent(&context));
}

static void assert_nothing_current(void)
{
	CUcontext current = NULL;

	assert_int_equal(gpu.more.cuCtxGetCurrent(&current), CUDA_SUCCESS);
	assert_null(current);
}

static const char *name_error(unsigned int error)
{
	const char *name = NULL;

	if (!gpu.call.cuGetErrorName ||
	    gpu.call.cuGetErrorName(error, &name) != CUDA_SUCCESS)
		return NULL;
	return name;
}

static unsigned int export_range(uint64_t address, size_t length,
				 enum pier_mapping mapping, int *ret_fd)
{
	if (!gpu.call.cuMemGetHandleForAddressRange)
		return CUDA_ERROR_NOT_FOUND;
	return gpu.call.cuMemGetHandleForAddressRange(
		ret_fd, address, length, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
		mapping == PIER_MAPPING_PCIE ? PIER_CU_PCIE_FLAG : 0);
}

int gpu_attribute(CUdevice_attribute attribute)
{
	int value = 0;

	/* A driver that does not support the attribute counts as lacking the feature. */
	if (gpu.call.cuDeviceGetAttribute(&value, attribute, gpu.device) != CUDA_SUCCESS)
		return 0;
	return value;
}

static void say_attributes(void)
{
	static const struct {
		const char *name;
		CUdevice_attribute attribute;
	} attributes[] = {
		{ "compute capability, major", GPU_ATTRIBUTE_COMPUTE_MAJOR },
		{ "compute capability, minor", GPU_ATTRIBUTE_COMPUTE_MINOR },
		{ "DMA_BUF_SUPPORTED", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED },
		{ "HOST_ALLOC_DMA_BUF_SUPPORTED",
		  CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED },
		{ "GPU_DIRECT_RDMA_SUPPORTED",
		  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED },
		{ "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
		  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED },
		{ "GPU_DIRECT_RDMA_WRITES_ORDERING",
		  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING },
		{ "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
		  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS },
		{ "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
		  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED },
		{ "MANAGED_MEMORY", GPU_ATTRIBUTE_MANAGED_MEMORY },
		{ "MEMORY_POOLS_SUPPORTED", GPU_ATTRIBUTE_MEMORY_POOLS },
	};
	CUresult error;
	int value;

	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
		value = 0;
		error = gpu.call.cuDeviceGetAttribute(&value, attributes[i].attribute,
						      gpu.device);
		if (error == CUDA_SUCCESS)
			gpu_say("%s: %d", attributes[i].name, value);
		else
			gpu_say("%s: %s", attributes[i].name, gpu_error(error));
	}
}

static void say_cuda(void)
{
	char name[96] = "", pci[32] = "", line[200];
	size_t bytes = 0;

	gpu_must(gpu.call.cuDeviceGetName(name, sizeof(name), gpu.device));
	gpu_must(gpu.call.cuDeviceGetPCIBusId(pci, sizeof(pci), gpu.device));
	gpu_must(gpu.more.cuDeviceTotalMem(&bytes, gpu.device));
	gpu_read_line("/proc/driver/nvidia/version", "NVRM", line, sizeof(line));
	gpu_say("driver: %s",
		gpu.fake  ? "none: the fake of the tests, which says nothing of hardware"
		: line[0] ? line
			  : "/proc/driver/nvidia/version is not there");
	gpu_say("CUDA of the driver: %d.%d", gpu.version / 1000, gpu.version % 1000 / 10);
	gpu_read_line("/proc/modules", "nvidia_peermem", line, sizeof(line));
	gpu_say("nvidia_peermem: %s", line[0] ? "loaded" : "not loaded");
	gpu_say("device %d of %d: %s, %zu MiB, PCI %s", gpu.device, gpu.count, name,
		bytes >> 20, pci);
	gpu_say_bars(pci);
	say_attributes();
}

const struct gpu_vendor gpu_cuda = {
	.name = "cuda",
	.open = open_cuda,
	.push = push_context,
	.pop = pop_context,
	.check_clean = assert_nothing_current,
	.error = name_error,
	.export = export_range,
	.say_facts = say_cuda,
};

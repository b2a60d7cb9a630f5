/* SPDX-License-Identifier: BSD-3-Clause */
/* The HIP runtime, and the HSA that it depends on, for driver.h. */
#include "../support/cmocka.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

/* Calls of HIP alone, and of HSA: name, parameters. The values are in backends/hip/api.h.
 */
#define CALLS(X)                                                                       \
	X(hipGetDeviceCount, (int *ret_count))                                         \
	X(hipSetDevice, (int device))                                                  \
	X(hipRuntimeGetVersion, (int *ret_version))                                    \
	X(hipDeviceGetName, (char *ret_name, int size, int device))                    \
	X(hipDeviceGetPCIBusId, (char *ret_address, int size, int device))             \
	X(hipDeviceTotalMem, (size_t * ret_bytes, int device))                         \
	X(hsa_amd_portable_export_dmabuf,                                              \
	  (uint64_t address, size_t length, int *ret_fd, uint64_t *ret_offset))        \
	X(hsa_amd_portable_export_dmabuf_v2,                                           \
	  (uint64_t address, size_t length, int *ret_fd, uint64_t *ret_offset,         \
	   uint64_t flags))                                                            \
	X(hsa_amd_vmem_retain_alloc_handle, (uint64_t * ret_handle, uint64_t address)) \
	X(hsa_amd_vmem_export_shareable_handle,                                        \
	  (int *ret_fd, uint64_t handle, uint64_t flags))                              \
	X(hsa_amd_vmem_handle_release, (uint64_t handle))                              \
	X(hsa_amd_portable_close_dmabuf, (int fd))

#define MEMBER(name, parameters) unsigned int(*name) parameters;
static struct {
	CALLS(MEMBER)
	const char *(*hipGetErrorName)(unsigned int error);
} hip;

static void *open_runtime(void)
{
	static const char *const names[] = { "libamdhip64.so.6", "libamdhip64.so.7",
					     "libamdhip64.so.5", "libamdhip64.so" };
	char reason[256] = "no HIP runtime: ";
	void *library;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		if (library)
			return library;
	}
	strncat(reason, dlerror(), sizeof(reason) - 64);
	if (access("/dev/kfd", F_OK))
		strcat(reason, "; no /dev/kfd");
	gpu_skip_program(reason);
}

/* dlsym(3) also searches what HIP depends on, which is its HSA. */
static void find_calls(void *library)
{
#define FIND(name, parameters) *(void **)&hip.name = dlsym(library, #name);
	CALLS(FIND)
#undef FIND
#define FIND(name, cuda, hip, parameters) *(void **)&gpu.both.name = dlsym(library, hip);
	GPU_BOTH(FIND)
#undef FIND
	*(void **)&hip.hipGetErrorName = dlsym(library, "hipGetErrorName");
	gpu.fake = dlsym(library, "fake_hip_control") != NULL;
}

static const char *name_error(unsigned int error)
{
	/* Statuses of HSA are no errors of HIP. */
	return hip.hipGetErrorName && error < 0x1000 ? hip.hipGetErrorName(error) : NULL;
}

static void open_hip(void)
{
	unsigned int error;
	char reason[96];

	find_calls(open_runtime());
	if (!hip.hipGetDeviceCount || !hip.hipSetDevice || !hip.hipDeviceTotalMem)
		gpu_skip_program("libamdhip64.so is not the HIP runtime");
	error = hip.hipGetDeviceCount(&gpu.count);
	if (error || gpu.count == 0) {
		snprintf(reason, sizeof(reason),
			 "no HIP device: hipGetDeviceCount gives %s", gpu_error(error));
		gpu_skip_program(reason);
	}
	gpu_choose_device();
	error = hip.hipSetDevice(gpu.device);
	if (error) {
		fprintf(stderr, "device %d: %s\n", gpu.device, gpu_error(error));
		exit(1);
	}
}

/* HIP's current device belongs to the thread, and stays. */
static void nothing(void)
{
}

/* Memory of hipMemMap() is known to HSA by the handle of its segment. */
static unsigned int export_segment(uint64_t address, int *ret_fd)
{
	unsigned int status;
	uint64_t handle;

	status = hip.hsa_amd_vmem_retain_alloc_handle(&handle, address);
	if (status)
		return status;
	status = hip.hsa_amd_vmem_export_shareable_handle(ret_fd, handle, 0);
	hip.hsa_amd_vmem_handle_release(handle);
	return status;
}

static unsigned int export_range(uint64_t address, size_t length,
				 enum pier_mapping mapping, int *ret_fd)
{
	const unsigned int missing = 500; /* hipErrorNotFound */
	unsigned int status = missing;
	uint64_t offset, start = 0;
	int fd = -1;

	if (hip.hsa_amd_portable_export_dmabuf_v2)
		status = hip.hsa_amd_portable_export_dmabuf_v2(
			address, length, &fd, &offset, mapping == PIER_MAPPING_PCIE);
	else if (hip.hsa_amd_portable_export_dmabuf && mapping != PIER_MAPPING_PCIE)
		status = hip.hsa_amd_portable_export_dmabuf(address, length, &fd,
							    &offset);
	if (status && hip.hsa_amd_vmem_retain_alloc_handle &&
	    !gpu.both.find_range(&start, &length, address) && start == address &&
	    !export_segment(address, &fd))
		status = 0;
	if (status || !hip.hsa_amd_portable_close_dmabuf)
		return status ? status : missing;
	/* The caller closes a duplicate: HSA keeps a record of its own fds. */
	*ret_fd = dup(fd);
	hip.hsa_amd_portable_close_dmabuf(fd);
	return *ret_fd < 0 ? missing : 0;
}

static void say_hip(void)
{
	char name[96] = "", pci[32] = "", line[200];
	size_t bytes = 0;
	int version = 0;

	gpu_must(hip.hipDeviceGetName(name, sizeof(name), gpu.device));
	gpu_must(hip.hipDeviceGetPCIBusId(pci, sizeof(pci), gpu.device));
	gpu_must(hip.hipDeviceTotalMem(&bytes, gpu.device));
	hip.hipRuntimeGetVersion(&version);
	gpu_read_line("/sys/module/amdgpu/version", "", line, sizeof(line));
	gpu_say("driver: %s",
		gpu.fake  ? "none: the fake of the tests, which says nothing of hardware"
		: line[0] ? line
			  : "amdgpu of the kernel, or none");
	gpu_say("HIP runtime: %d.%d", version / 10000000, version / 100000 % 100);
	gpu_say("export: %s, %s; segments of hipMemMap: %s",
		hip.hsa_amd_portable_export_dmabuf ? "dma-bufs" : "no dma-bufs",
		hip.hsa_amd_portable_export_dmabuf_v2 ? "with flags" : "without flags",
		hip.hsa_amd_vmem_export_shareable_handle ? "yes" : "no");
	gpu_say("device %d of %d: %s, %zu MiB, PCI %s", gpu.device, gpu.count, name,
		bytes >> 20, pci);
	gpu_say_bars(pci);
}

const struct gpu_vendor gpu_hip = {
	.name = "hip",
	.open = open_hip,
	.push = nothing,
	.pop = nothing,
	.error = name_error,
	.export = export_range,
	.say_facts = say_hip,
};

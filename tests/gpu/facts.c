/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prints facts about the machine and its GPU as a block for docs/hardware.md, and checks
 * that pier reports the same.
 */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

/* The first line of a file that contains `part`, without its newline, or "". */
static void read_line(const char *path, const char *part, char *ret_line, size_t size)
{
	FILE *file = fopen(path, "re");

	ret_line[0] = '\0';
	while (file && fgets(ret_line, (int)size, file) && !strstr(ret_line, part))
		ret_line[0] = '\0';
	if (file)
		fclose(file);
	ret_line[strcspn(ret_line, "\n")] = '\0';
}

static void say_machine(void)
{
	char line[200], date[32];
	struct utsname kernel;
	time_t now = time(NULL);

	uname(&kernel);
	strftime(date, sizeof(date), "%Y-%m-%d", gmtime(&now));
	gpu_say("date: %s; pier %s", date, pier_version());
	gpu_say("kernel: %s %s, %s", kernel.sysname, kernel.release, kernel.machine);
	read_line("/proc/driver/nvidia/version", "NVRM", line, sizeof(line));
	gpu_say("driver: %s",
		gpu.fake  ? "none: the fake of the tests, which says nothing of hardware"
		: line[0] ? line
			  : "/proc/driver/nvidia/version is not there");
	gpu_say("CUDA of the driver: %d.%d", gpu.version / 1000, gpu.version % 1000 / 10);
	read_line("/proc/modules", "nvidia_peermem", line, sizeof(line));
	gpu_say("nvidia_peermem: %s", line[0] ? "loaded" : "not loaded");
}

/* Prints the regions of its PCI device: each line is "START END FLAGS". */
static void say_bars(const char *pci)
{
	unsigned long long start, end, flags;
	char path[96], line[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource", pci);
	file = fopen(path, "re");
	if (!file) {
		gpu_say("BARs: %s is not there", path);
		return;
	}
	for (int i = 0; i < 6 && fgets(line, sizeof(line), file); i++) {
		if (sscanf(line, "%llx %llx %llx", &start, &end, &flags) == 3 && end)
			gpu_say("PCI resource %d: %llu MiB", i, (end - start + 1) >> 20);
	}
	fclose(file);
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

static void tells_what_there_is(void **state)
{
	char name[96] = "", pci[32] = "";
	size_t bytes = 0;

	(void)state;
	gpu_must(gpu.call.cuDeviceGetName(name, sizeof(name), gpu.device));
	gpu_must(gpu.call.cuDeviceGetPCIBusId(pci, sizeof(pci), gpu.device));
	gpu_must(gpu.more.cuDeviceTotalMem(&bytes, gpu.device));
	for (char *c = pci; *c; c++)
		*c = (char)(*c >= 'A' && *c <= 'F' ? *c + 'a' - 'A' : *c);
	gpu_say("----- for docs/hardware.md");
	say_machine();
	gpu_say("device %d of %d: %s, %zu MiB, PCI %s", gpu.device, gpu.count, name,
		bytes >> 20, pci);
	say_bars(pci);
	say_attributes();
	gpu_say("-----");
}

/* The backend exists and has the same number of devices. */
static void is_what_pier_tells(void **state)
{
	struct pier_backend_info *list = NULL;
	char devices[32];
	size_t count;
	bool found = false;

	(void)state;
	snprintf(devices, sizeof(devices), "%d device%s,", gpu.count,
		 gpu.count == 1 ? "" : "s");
	expect_ok(pier_backend_list(&list, &count));
	for (size_t i = 0; i < count; i++) {
		if (strcmp(list[i].name, "cuda") != 0)
			continue;
		found = true;
		gpu_say("pier's backend cuda: %s", list[i].detail);
		assert_true(list[i].available);
		assert_true(list[i].dmabuf);
		assert_non_null(strstr(list[i].detail, devices));
	}
	assert_true(found);
	pier_backend_list_free(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(tells_what_there_is, gpu_setup,
						gpu_teardown),
		cmocka_unit_test_setup_teardown(is_what_pier_tells, gpu_setup,
						gpu_teardown),
	};

	gpu_open();
	return cmocka_run_group_tests_name("gpu_facts", tests, NULL, NULL);
}

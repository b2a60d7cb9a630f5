/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

#include "facts.h"
#include "nvml.h"

/* From nvml.h of the CUDA toolkit. */
enum {
	NVML_SUCCESS = 0,
	NVML_DEVICE_MIG_ENABLE = 1,
};

struct nvml_bar1 {
	unsigned long long total, free, used; /* in bytes */
};

struct nvml {
	void *object;
	int (*init)(void);
	int (*shutdown)(void);
	int (*find)(const char *pci, void **ret_device);
	int (*bar1)(void *device, struct nvml_bar1 *ret_memory);
	int (*mig)(void *device, unsigned int *ret_current, unsigned int *ret_pending);
};

static bool open_nvml(struct nvml *nvml)
{
	const struct {
		const char *name;
		void **function;
	} functions[] = {
		{ "nvmlInit_v2", (void **)&nvml->init },
		{ "nvmlShutdown", (void **)&nvml->shutdown },
		{ "nvmlDeviceGetHandleByPciBusId_v2", (void **)&nvml->find },
		{ "nvmlDeviceGetBAR1MemoryInfo", (void **)&nvml->bar1 },
		{ "nvmlDeviceGetMigMode", (void **)&nvml->mig },
	};

	nvml->object = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; nvml->object && i < sizeof(functions) / sizeof(functions[0]);
	     i++) {
		*functions[i].function = dlsym(nvml->object, functions[i].name);
		if (!*functions[i].function)
			return false;
	}
	return nvml->object != NULL;
}

static void keep_device(struct facts *facts, const struct nvml *nvml, const char *gpu,
			const char *pci)
{
	unsigned int current = 0, pending = 0;
	struct nvml_bar1 memory;
	void *device;

	if (nvml->find(pci, &device) != NVML_SUCCESS)
		return;
	if (nvml->bar1(device, &memory) == NVML_SUCCESS) {
		facts_set_number(facts, (long long)memory.total, "pier/gpu/%s/bar1_total",
				 gpu);
		facts_set_number(facts, (long long)memory.used, "pier/gpu/%s/bar1_used",
				 gpu);
	}
	/* GPUs without MIG answer NVML_ERROR_NOT_SUPPORTED. */
	if (nvml->mig(device, &current, &pending) == NVML_SUCCESS)
		facts_set(facts,
			  current == NVML_DEVICE_MIG_ENABLE ? "enabled" : "disabled",
			  "pier/gpu/%s/mig", gpu);
}

void keep_nvml(struct facts *facts, const char *gpu, const char *pci)
{
	struct nvml nvml = { 0 };

	if (open_nvml(&nvml) && nvml.init() == NVML_SUCCESS) {
		keep_device(facts, &nvml, gpu, pci);
		nvml.shutdown();
	}
	if (nvml.object)
		dlclose(nvml.object);
}

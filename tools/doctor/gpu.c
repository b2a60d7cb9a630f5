/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facts.h"
#include "report.h"
#include "units.h"

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

/* The checks of the GPUs and their drivers. */

static bool is_of_nvidia(struct report *report, const char *gpu)
{
	(void)report;
	return strncmp(gpu, "cuda:", 5) == 0;
}

static bool is_of_amd(struct report *report, const char *gpu)
{
	(void)report;
	return strncmp(gpu, "hip:", 4) == 0;
}

/* Each module takes pinned GPU memory for NICs without dma-bufs. NULL: none is loaded. */
static const char *find_peer_memory(struct report *report)
{
	static const char *const modules[] = { "nvidia_peermem", "nv_peer_mem" };

	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
		if (facts_has(report->facts, "/sys/module/%s", modules[i]))
			return modules[i];
	return NULL;
}

static void check_nvidia_driver(struct report *report)
{
	const char *version = facts_get(report->facts, "/proc/driver/nvidia/version");
	const char *reason = facts_error(report->facts, "pier/backend/cuda");
	const char *module = find_peer_memory(report);

	if (!version)
		conclude(report, NOT_APPLICABLE, "", "",
			 "no driver of NVIDIA: /proc/driver/nvidia/version does not "
			 "exist");
	else if (!any_name(report, "pier/gpu", is_of_nvidia))
		conclude(report, ERROR, "",
			 "install libcuda1 of the same version, or pass the GPUs into "
			 "the container (docker run --gpus all)",
			 "the kernel module is loaded, but CUDA has no GPU: %s",
			 reason ? reason : "it lists none");
	else if (strstr(version, "Open Kernel Module"))
		conclude(report, OK, "", "", "%.*s: open kernel modules",
			 (int)strcspn(version, "\n"), version);
	else if (module)
		conclude(report, OK, "", "", "%.*s: proprietary modules, with %s",
			 (int)strcspn(version, "\n"), version, module);
	else
		conclude(report, WARNING, "",
			 "install the open kernel modules (Debian: "
			 "nvidia-open-kernel-dkms), or modprobe nvidia_peermem",
			 "%.*s: proprietary modules, which export no dma-bufs",
			 (int)strcspn(version, "\n"), version);
}

static void check_amd_driver(struct report *report)
{
	const char *version = facts_get(report->facts, "/sys/module/amdgpu/version");
	const char *reason = facts_error(report->facts, "pier/backend/hip");

	if (!facts_has(report->facts, "/sys/module/amdgpu"))
		conclude(report, NOT_APPLICABLE, "", "",
			 "no driver of AMD: /sys/module/amdgpu does not exist");
	else if (!any_name(report, "pier/gpu", is_of_amd))
		conclude(report, WARNING, "",
			 "install ROCm's HIP runtime, and join the groups render and "
			 "video",
			 "amdgpu is loaded, but HIP has no GPU: %s",
			 reason ? reason : "it lists none");
	else
		conclude(report, OK, "", "", "amdgpu %s",
			 version ? version : "of the kernel itself");
}

static void check_peer_memory(struct report *report)
{
	const char *variable = facts_get(report->facts, "pier/env/PIER_PEERMEM");
	const char *module = find_peer_memory(report);

	if (!any_name(report, "pier/gpu", is_of_nvidia))
		conclude(report, NOT_APPLICABLE, "", "", "no GPU of NVIDIA");
	else if (!module)
		conclude(report, NOT_APPLICABLE, "", "",
			 "nvidia_peermem is not loaded; dma-bufs do not need it");
	else if (variable && strcmp(variable, "off") == 0)
		conclude(report, WARNING, "", "unset PIER_PEERMEM",
			 "/sys/module/%s: loaded, but PIER_PEERMEM=off", module);
	else
		conclude(report, OK, "", "",
			 "/sys/module/%s: loaded; used where dma-bufs are not available",
			 module);
}

static void judge_dmabuf(struct report *report, const char *gpu)
{
	/* The driver's claims, such as the attribute DMA_BUF_SUPPORTED. */
	const char *claims = facts_get(report->facts, "pier/gpu/%s/detail", gpu);
	const char *reason = facts_error(report->facts, "pier/export/%s", gpu);

	if (reason && is_of_nvidia(report, gpu) && find_peer_memory(report))
		conclude(
			report, NOT_APPLICABLE, gpu, "",
			"its memory is not exported, and peer memory takes its place: %s",
			reason);
	else if (reason)
		conclude(report, WARNING, gpu, "",
			 "its memory is not exported as a dma-buf: %s", reason);
	else if (facts_has(report->facts, "pier/export/%s", gpu))
		conclude(report, OK, gpu, "", "its memory is exported as dma-bufs%s%s",
			 claims && claims[0] ? "; driver: " : "", claims ? claims : "");
	else
		conclude(report, NOT_APPLICABLE, gpu, "", "no export was tried");
}

/* "cuda:0:vmm" and others, beside "cuda:0" itself. */
static void judge_kinds(struct report *report, const char *gpu)
{
	struct names specs = facts_names(report->facts, "pier/export");
	size_t length = strlen(gpu), count = 0;

	for (size_t i = 0; i < specs.count; i++) {
		const char *spec = specs.list[i], *reason, *kind;

		if (strncmp(spec, gpu, length) != 0 || spec[length] != ':')
			continue;
		count++;
		reason = facts_error(report->facts, "pier/export/%s", spec);
		kind = facts_get(report->facts, "pier/export/%s", spec);
		if (reason)
			conclude(report, NOT_APPLICABLE, spec, "", "not exported: %s",
				 reason);
		else
			conclude(report, OK, spec, "", "exported (%s)", kind);
	}
	if (count == 0)
		conclude(report, NOT_APPLICABLE, gpu, "", "no other kinds of memory");
	facts_free_names(&specs);
}

/* The size of the largest of the device's own six regions: "START END FLAGS" each. */
static unsigned long long largest_bar(const char *resources)
{
	enum {
		IORESOURCE_MEM = 0x200,
		BARS = 6
	};
	unsigned long long start, end, flags, largest = 0;

	for (int i = 0;
	     i < BARS && sscanf(resources, "%llx %llx %llx", &start, &end, &flags) == 3;
	     i++) {
		if ((flags & IORESOURCE_MEM) && end > start && end - start + 1 > largest)
			largest = end - start + 1;
		resources = strchr(resources, '\n');
		if (!resources)
			break;
		resources++;
	}
	return largest;
}

enum {
	SMALL_BAR = 256 << 20,
	NEARLY_FULL = 90 /* percent */
};

/*
 * The use of the region: NVML's of BAR1, or amdgpu's of the memory that the CPU sees.
 * False: the driver does not report it.
 */
static bool read_use(struct report *report, const char *gpu, const char *folder,
		     long long *ret_used, long long *ret_total)
{
	*ret_total = facts_number(report->facts, "pier/gpu/%s/bar1_total", gpu);
	*ret_used = facts_number(report->facts, "pier/gpu/%s/bar1_used", gpu);
	if (*ret_total <= 0) {
		*ret_total = facts_number(report->facts, "%s/mem_info_vis_vram_total",
					  folder);
		*ret_used = facts_number(report->facts, "%s/mem_info_vis_vram_used",
					 folder);
	}
	return *ret_total > 0 && *ret_used >= 0;
}

static void judge_bar(struct report *report, const char *gpu)
{
	char folder[FACT_PATH_MAX] = "", size[32], used_text[32], use[64] = "";
	const char *resources = NULL;
	long long used = 0, total = 0;
	unsigned long long bytes;
	bool known;

	if (find_gpu_pci(report, gpu, folder))
		resources = facts_get(report->facts, "%s/resource", folder);
	bytes = resources ? largest_bar(resources) : 0;
	known = read_use(report, gpu, folder, &used, &total);
	if (known) {
		bytes = (unsigned long long)total;
		format_bytes((uint64_t)used, used_text, sizeof(used_text));
		snprintf(use, sizeof(use), ", of which %s are in use", used_text);
	}
	format_bytes(bytes, size, sizeof(size));
	if (bytes == 0)
		conclude(report, NOT_APPLICABLE, gpu, "",
			 "its PCI regions are not known here");
	else if (bytes <= SMALL_BAR)
		conclude(report, WARNING, gpu,
			 "enable Resizable BAR (and Above 4G Decoding) in the BIOS",
			 "NICs can reach %s of its memory at once%s: registrations of "
			 "more fail",
			 size, use);
	else if (known && is_of_nvidia(report, gpu) && used > total / 100 * NEARLY_FULL)
		conclude(report, WARNING, gpu,
			 "nvidia-smi lists the programs that may have registered it",
			 "NICs can reach %s of its memory%s: registrations may fail",
			 size, use);
	else
		conclude(report, OK, gpu, "", "NICs can reach %s of its memory%s", size,
			 use);
}

/* MIG of NVIDIA, from NVML; partitions of AMD, from amdgpu's sysfs. */
static void judge_partition(struct report *report, const char *gpu)
{
	const char *name = facts_get(report->facts, "pier/gpu/%s", gpu);
	const char *mig = facts_get(report->facts, "pier/gpu/%s/mig", gpu);
	const char *compute = NULL, *memory = NULL;
	char folder[FACT_PATH_MAX];

	if (find_gpu_pci(report, gpu, folder)) {
		compute = facts_get(report->facts, "%s/current_compute_partition",
				    folder);
		memory = facts_get(report->facts, "%s/current_memory_partition", folder);
	}
	if ((name && strstr(name, "MIG")) || (mig && strcmp(mig, "enabled") == 0))
		conclude(report, WARNING, gpu,
			 "nvidia-smi -mig 0, if one program may have the whole GPU",
			 "%s: MIG is enabled: a program has a part of the GPU",
			 name ? name : "unknown");
	else if (compute && strcmp(compute, "SPX") != 0)
		conclude(report, WARNING, gpu,
			 "rocm-smi --setcomputepartition SPX, if one program may have "
			 "the whole GPU",
			 "current_compute_partition %s, memory %s: this is a part of a "
			 "GPU",
			 compute, memory ? memory : "unknown");
	else if (compute)
		conclude(report, OK, gpu, "", "compute partition %s, memory %s", compute,
			 memory ? memory : "unknown");
	else
		conclude(report, OK, gpu, "", "%s: not partitioned",
			 name ? name : "unknown");
}

const struct check doctor_gpu_checks[] = {
	{ "GPU", "NVIDIA driver", .once = check_nvidia_driver },
	{ "GPU", "AMD driver", .once = check_amd_driver },
	{ "GPU", "peer memory", .once = check_peer_memory },
	{ "GPU", "dma-buf export", .each_gpu = judge_dmabuf },
	{ "GPU", "other kinds", .each_gpu = judge_kinds },
	{ "GPU", "BAR", .each_gpu = judge_bar },
	{ "GPU", "partition", .each_gpu = judge_partition },
	{ 0 },
};

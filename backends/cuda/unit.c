/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "driver.h"
#include "memory.h"
#include "unit.h"

static int fail_unit(const char *unit)
{
	return pier_fail(
		EINVAL,
		"the units of cuda are N (a device), N:linear, N:vmm, N:vmm:SIZE "
		"(segments of SIZE, as 2M), N:pool and N:host, but \"%s\" was asked for",
		unit);
}

/* Only digits: no sign and no blanks. *ret_end points after them. */
static bool parse_number(const char *text, uint64_t *ret_number, const char **ret_end)
{
	char *end;

	errno = 0;
	*ret_number = strtoull(text, &end, 10);
	*ret_end = end;
	return *text >= '0' && *text <= '9' && errno == 0;
}

static bool parse_size(const char *text, uint64_t *ret_size)
{
	static const char units[] = "KMG";
	uint64_t size, scale = 1;
	const char *end, *unit;

	if (!parse_number(text, &size, &end) || size == 0)
		return false;
	unit = *end ? strchr(units, *end) : NULL;
	if (unit) {
		scale = UINT64_C(1) << (10 * (unit - units + 1));
		end++;
	}
	return *end == '\0' && pier_mul_u64(size, scale, ret_size);
}

int pier_cuda_parse_unit(const char *unit, struct pier_cuda_spec *ret_spec)
{
	struct pier_cuda_spec spec = { .kind = PIER_CUDA_LINEAR };
	uint64_t device;
	const char *rest;

	if (!unit)
		unit = "0";
	if (!parse_number(unit, &device, &rest))
		return fail_unit(unit);
	/*
	 * INT32_MAX exceeds every ordinal; the check against the device count refuses it.
	 */
	spec.device = device < INT32_MAX ? (int)device : INT32_MAX;
	spec.any = *rest == '\0';
	if (strcmp(rest, ":vmm") == 0) {
		spec.kind = PIER_CUDA_VMM;
	} else if (strcmp(rest, ":pool") == 0) {
		spec.kind = PIER_CUDA_POOL;
	} else if (strcmp(rest, ":host") == 0) {
		spec.kind = PIER_CUDA_HOST;
	} else if (strncmp(rest, ":vmm:", 5) == 0) {
		spec.kind = PIER_CUDA_VMM;
		if (!parse_size(rest + 5, &spec.segment))
			return fail_unit(unit);
	} else if (*rest && strcmp(rest, ":linear") != 0) {
		return fail_unit(unit);
	}
	*ret_spec = spec;
	return 0;
}

#define DEVICES "/sys/bus/pci/devices"

/* IORESOURCE_MEM_64 of the kernel (linux/ioport.h). */
#define WIDE UINT64_C(0x100000)

struct bar {
	uint64_t start;
	uint64_t end;
	uint64_t flags;
};

/* One of the lines "START END FLAGS" (pci_resource_show() of the kernel). */
static bool read_bar(FILE *file, struct bar *ret_bar)
{
	char line[128];

	return fgets(line, sizeof(line), file) &&
	       sscanf(line, "%" SCNx64 " %" SCNx64 " %" SCNx64, &ret_bar->start,
		      &ret_bar->end, &ret_bar->flags) == 3;
}

/*
 * The first BAR holds the registers, the second one the memory. Each register of the PCI
 * header has a line. A 64-bit BAR has two lines, the second one of zeros. Before Hopper
 * the first BAR has 32 bits.
 */
uint64_t pier_cuda_bar1(const char *devices, const char *pci)
{
	struct bar bar = { 0 };
	char path[256];
	FILE *file;
	bool found;

	snprintf(path, sizeof(path), "%s/%s/resource", devices, pci);
	file = fopen(path, "re");
	if (!file)
		return 0;
	found = read_bar(file, &bar);
	if (found && bar.flags & WIDE)
		found = read_bar(file, &bar);
	found = found && read_bar(file, &bar);
	fclose(file);
	return found && bar.end > bar.start ? bar.end - bar.start + 1 : 0;
}

/* As sysfs writes it: the driver uses capitals, and some versions a longer domain. */
static void read_pci(const struct pier_cuda *cuda, int device, char ret_pci[16])
{
	unsigned int domain, bus, slot, function = 0;
	char text[32] = "";

	ret_pci[0] = '\0';
	if (cuda->call.cuDeviceGetPCIBusId(text, sizeof(text), device) != CUDA_SUCCESS ||
	    sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3)
		return;
	snprintf(ret_pci, 16, "%04x:%02x:%02x.%x", domain, bus & 0xff, slot & 0x1f,
		 function & 7);
}

static bool exports_dmabufs(const struct pier_cuda *cuda, int device)
{
	return cuda->call.cuMemGetHandleForAddressRange &&
	       pier_cuda_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) >
		       0;
}

bool pier_cuda_exports(void)
{
	const struct pier_cuda *cuda = pier_cuda_if_loaded();
	int count = 0;

	/* CUDA_ERROR_NOT_INITIALIZED before cuInit(). */
	if (!cuda || cuda->call.cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return false;
	for (int device = 0; device < count; device++)
		if (!exports_dmabufs(cuda, device))
			return false;
	return count > 0;
}

static void describe_unit(const struct pier_cuda *cuda, int device,
			  struct pier_backend_unit *unit)
{
	uint64_t bar1 = pier_cuda_bar1(DEVICES, unit->pci);
	char bar[40] = "";

	if (bar1)
		snprintf(bar, sizeof(bar), ", BAR1 of %" PRIu64 " MiB", bar1 >> 20);
	snprintf(unit->detail, sizeof(unit->detail), "%s, %s%s, driver of CUDA %d.%d",
		 exports_dmabufs(cuda, device) ? "dma-bufs" : "no dma-bufs",
		 pier_cuda_attribute(cuda, device,
				     CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) > 0
			 ? "GPUDirect RDMA"
			 : "no GPUDirect RDMA",
		 bar, cuda->version / 1000, cuda->version % 1000 / 10);
}

int pier_cuda_unit(uint32_t index, struct pier_backend_unit *ret_unit)
{
	struct pier_backend_unit unit = { .size = sizeof(unit), .numa_node = -1 };
	struct pier_cuda *cuda;
	char why[512];
	int device;

	if (pier_cuda_try_open(&cuda, why, sizeof(why)) != 0 ||
	    index >= (uint32_t)atomic_load(&cuda->device_count))
		return -ENOENT;
	device = (int)index;
	snprintf(unit.unit, sizeof(unit.unit), "%d", device);
	if (cuda->call.cuDeviceGetName(unit.name, sizeof(unit.name), device) !=
	    CUDA_SUCCESS)
		unit.name[0] = '\0';
	read_pci(cuda, device, unit.pci);
	describe_unit(cuda, device, &unit);
	*ret_unit = unit;
	return 0;
}

/*
 * Over C2C the device walks the CPU's page tables: the CUDA C++ programming guide names
 * this attribute for such systems ("unified memory with hardware coherency").
 */
bool pier_cuda_is_coherent(const struct pier_cuda_memory *memory)
{
	return !memory->on_no_device && !pier_cuda_is_host(memory) &&
	       pier_cuda_attribute(memory->cuda, memory->device,
				   PIER_CU_USES_HOST_PAGE_TABLES) > 0;
}

int pier_cuda_locate(const struct pier_memory *memory, char ret_pci[16],
		     int *ret_numa_node)
{
	const struct pier_cuda_memory *state = memory->state;

	ret_pci[0] = '\0';
	*ret_numa_node = -1;
	/* Host memory is near a CPU, whatever the device of its context. */
	if (pier_cuda_is_host(state) || state->on_no_device)
		return 0;
	read_pci(state->cuda, state->device, ret_pci);
	return 0;
}

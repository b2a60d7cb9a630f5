/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "copy.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "device.h"
#include "load.h"
#include "memory.h"

static int fail_without(const struct pier_hip *hip, const char *function,
			const char *way_out)
{
	char version[32];

	pier_hip_version(hip, version, sizeof(version));
	return pier_fail(EOPNOTSUPP,
			 "the HSA runtime has no %s (HIP is %s, of ROCm %s): %s",
			 function, hip->path, version, way_out);
}

static int check_segment_functions(const struct pier_hip *hip)
{
	if (hip->hsa_amd_vmem_retain_alloc_handle && hip->hsa_amd_vmem_handle_release &&
	    hip->hsa_amd_vmem_export_shareable_handle &&
	    hip->hsa_amd_portable_close_dmabuf)
		return 0;
	return fail_without(hip, "hsa_amd_vmem_retain_alloc_handle",
			    "memory of hipMemMap() is exported through it, from version "
			    "1.4 of HSA's AMD extensions on; use a newer ROCm, or allow "
			    "a bounce buffer");
}

static int check_functions(const struct pier_hip *hip, enum pier_mapping mapping)
{
	static const char newer[] =
		"dma-bufs came with version 1.1 of HSA's AMD "
		"extensions; use a newer ROCm, or allow a bounce buffer";

	if (mapping == PIER_MAPPING_PCIE && !hip->hsa_amd_portable_export_dmabuf_v2)
		return fail_without(
			hip, "hsa_amd_portable_export_dmabuf_v2",
			"mappings can be chosen from version 1.9 of HSA's AMD "
			"extensions on; use a newer ROCm, or the default "
			"mapping");
	if (!hip->hsa_amd_portable_export_dmabuf &&
	    !hip->hsa_amd_portable_export_dmabuf_v2)
		return fail_without(hip, "hsa_amd_portable_export_dmabuf", newer);
	if (!hip->hsa_amd_portable_close_dmabuf)
		return fail_without(hip, "hsa_amd_portable_close_dmabuf", newer);
	return 0;
}

static unsigned int call_export(const struct pier_hip_memory *state,
				const struct pier_backend_request *request, int *ret_fd,
				uint64_t *ret_offset)
{
	const struct pier_hip *hip = state->hip;
	const void *pointer = (const void *)(uintptr_t)request->address;
	uint64_t length = request->length;
	enum pier_mapping mapping = request->mapping;

	/* Has no flags, and one mapping: over PCIe. */
	if (state->kind == PIER_HIP_VIRTUAL)
		return pier_hip_export_segment(hip, request->address, length, ret_fd,
					       ret_offset);
	if (mapping == PIER_MAPPING_PCIE || !hip->hsa_amd_portable_export_dmabuf)
		return hip->hsa_amd_portable_export_dmabuf_v2(
			pointer, length, ret_fd, ret_offset,
			mapping == PIER_MAPPING_PCIE ? PIER_HSA_MAPPING_PCIE
						     : PIER_HSA_MAPPING_NONE);
	return hip->hsa_amd_portable_export_dmabuf(pointer, length, ret_fd, ret_offset);
}

/*
 * HSA has one status for unknown memory, freed memory, and a range that leaves its
 * allocation (Runtime::DmaBufExport()). Ask HIP which one it is.
 */
static int fail_not_an_allocation(const struct pier_memory *memory, uint64_t address,
				  uint64_t length)
{
	const struct pier_hip_memory *state = memory->state;
	uint64_t start, size;

	if (!pier_hip_read_segment(state->hip, address, &start, &size))
		return pier_fail(EFAULT,
				 "%#llx is in no memory of HIP's any more: it was freed, "
				 "or never was a device's",
				 (unsigned long long)address);
	if (pier_range_fits(address - start, length, size))
		return pier_fail(
			EOPNOTSUPP,
			"this version of ROCm does not export memory of this kind, such "
			"as a piece of a pool (HSA_STATUS_ERROR_INVALID_ALLOCATION): use "
			"memory of hipMalloc(), or allow a bounce buffer");
	if (state->segments > 1)
		return pier_fail(
			EXDEV,
			"ROCm gives no dma-buf of %llu bytes at %#llx, which lie "
			"in several of %" PRIu32
			" segments of hipMemMap: export each alone",
			(unsigned long long)length, (unsigned long long)address,
			state->segments);
	return pier_fail(ERANGE,
			 "%llu bytes at %#llx leave the allocation, which is now %llu "
			 "bytes at %#llx",
			 (unsigned long long)length, (unsigned long long)address,
			 (unsigned long long)size, (unsigned long long)start);
}

static bool kernel_lacks_dmabufs(const struct pier_hip *hip)
{
	bool supported = true;

	return hip->hsa_system_get_info(PIER_HSA_SYSTEM_DMABUF, &supported) ==
		       PIER_HSA_SUCCESS &&
	       !supported;
}

/*
 * ROCr refuses the flag for PCIe, and nothing else, if the device's BAR is small, with
 * HSA_STATUS_ERROR_NOT_SUPPORTED (Runtime::DmaBufExport()). It refuses to export imported
 * memory with INCOMPATIBLE_ARGUMENTS (Runtime::VMemoryExportShareableHandle(), 2026).
 */
static int fail_refused(const struct pier_memory *memory,
			const struct pier_backend_request *request, unsigned int status)
{
	const struct pier_hip_memory *state = memory->state;
	uint64_t address = request->address, length = request->length;
	enum pier_mapping mapping = request->mapping;

	if (status == PIER_HSA_INVALID_ALLOCATION)
		return fail_not_an_allocation(memory, address, length);
	if (status == PIER_HSA_INVALID_AGENT)
		return pier_hsa_fail(status, "%#llx is in no GPU's memory",
				     (unsigned long long)address);
	if (status == PIER_HSA_INCOMPATIBLE_ARGUMENTS)
		return pier_hsa_fail(status,
				     "the memory at %#llx was imported, and only "
				     "the process that created it can export it",
				     (unsigned long long)address);
	if (status == PIER_HSA_NOT_SUPPORTED && mapping == PIER_MAPPING_PCIE)
		return pier_hsa_fail(status, "exporting for PCIe, which needs all of the "
					     "device's memory behind its BAR (large BAR, "
					     "\"Above 4G decoding\" and \"Resizable "
					     "BAR\" in the firmware's setup)");
	if (kernel_lacks_dmabufs(state->hip))
		return pier_fail(
			EOPNOTSUPP,
			"the kernel's amdgpu driver exports no dma-bufs: use one "
			"with version 1.12 of the KFD interface or later "
			"(amdgpu-dkms, or a newer kernel with CONFIG_HSA_AMD, "
			"CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY)");
	if (status == PIER_HSA_OUT_OF_RESOURCES)
		return pier_hsa_fail(status,
				     "the driver refused %llu bytes at %#llx, for "
				     "want of file descriptors (ulimit -n), of "
				     "memory, or of the device",
				     (unsigned long long)length,
				     (unsigned long long)address);
	return pier_hsa_fail(status, "exporting %llu bytes at %#llx",
			     (unsigned long long)length, (unsigned long long)address);
}

static int check_request(const struct pier_hip_memory *state, enum pier_mapping mapping)
{
	int result = pier_hip_check_owner(state->hip);

	if (result != 0)
		return result;
	return state->kind == PIER_HIP_VIRTUAL ? check_segment_functions(state->hip)
					       : check_functions(state->hip, mapping);
}

static int hip_export(const struct pier_memory *memory,
		      const struct pier_backend_request *request,
		      struct pier_backend_export *ret_export)
{
	const struct pier_hip_memory *state = memory->state;
	const struct pier_hip *hip = state->hip;
	struct pier_hip_saved saved;
	unsigned int status;
	uint64_t offset = 0;
	int fd = -1, result = check_request(state, request->mapping);

	if (result != 0)
		return result;
	/* HSA counts its users: it must stay initialised until the export is closed. */
	status = hip->hsa_init();
	if (status != PIER_HSA_SUCCESS)
		return pier_hsa_fail(status, "initialising HSA");
	pier_hip_enter(hip, -1, &saved);
	result = pier_hip_check_live(memory);
	if (result == 0)
		status = call_export(state, request, &fd, &offset);
	if (status != PIER_HSA_SUCCESS)
		result = fail_refused(memory, request, status);
	pier_hip_leave(hip, &saved);
	if (result != 0) {
		hip->hsa_shut_down();
		return result;
	}
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	/*
	 * The dma-buf covers the driver's whole allocation (hsaKmtExportDMABufHandle()),
	 * and the offset is that of the address in it: add nothing.
	 */
	ret_export->fd = fd;
	ret_export->offset = offset;
	ret_export->state = (void *)(uintptr_t)hip;
	return 0;
}

static void hip_close_export(struct pier_backend_export *dmabuf)
{
	const struct pier_hip *hip = dmabuf->state;

	/* HSA and its user count belong to the parent. */
	if (pier_hip_inherited(hip)) {
		pier_close_fd(dmabuf->fd);
		return;
	}
	/* That of a segment, too: Runtime::DmaBufClose() closes the fd, and no more. */
	hip->hsa_amd_portable_close_dmabuf(dmabuf->fd);
	hip->hsa_shut_down();
}

/* A number that is too large for any device becomes INT_MAX. */
static int parse_unit(const char *unit, int *ret_device, enum pier_hip_kind *ret_kind)
{
	static const char *const suffixes[] = {
		[PIER_HIP_DEVICE] = "",
		[PIER_HIP_FINE] = ":fine",
		[PIER_HIP_HOST] = ":host",
	};
	size_t digits = strspn(unit, "0123456789"), kind = 0;
	unsigned long number = strtoul(unit, NULL, 10);

	while (kind <= PIER_HIP_HOST && strcmp(unit + digits, suffixes[kind]) != 0)
		kind++;
	if (digits == 0 || (digits > 1 && unit[0] == '0') || kind > PIER_HIP_HOST)
		return pier_fail(
			EINVAL,
			"hip has the units N, N:host and N:fine, where N is the number "
			"of a device, but \"%s\" was asked for",
			unit);
	*ret_device = number < INT_MAX ? (int)number : INT_MAX;
	*ret_kind = (enum pier_hip_kind)kind;
	return 0;
}

static int check_device(const struct pier_hip *hip, const char *unit, int device)
{
	int count = 0, result = pier_hip_count_devices(hip, &count);

	if (result != 0 || device < count)
		return result;
	if (count == 1)
		return pier_fail(EINVAL,
				 "HIP has one device, 0, but \"%s\" was asked for", unit);
	return pier_fail(EINVAL, "HIP has %d devices, 0 to %d, but \"%s\" was asked for",
			 count, count - 1, unit);
}

static int check_alloc(const struct pier_hip *hip, unsigned int error, uint64_t length,
		       const struct pier_hip_memory *state)
{
	size_t available = 0, total = 0;

	if (error == PIER_HIP_OUT_OF_MEMORY && state->kind != PIER_HIP_HOST &&
	    hip->hipMemGetInfo(&available, &total) == PIER_HIP_SUCCESS)
		return pier_fail(
			ENOMEM, "device %d has no %llu bytes: %zu of its %zu are free",
			state->device, (unsigned long long)length, available, total);
	return pier_hip_check(hip, error, "allocating %llu bytes %s device %d",
			      (unsigned long long)length,
			      state->kind == PIER_HIP_HOST ? "of host memory for" : "on",
			      state->device);
}

static void free_pointer(const struct pier_hip *hip, enum pier_hip_kind kind,
			 void *pointer)
{
	if (kind == PIER_HIP_HOST)
		hip->hipHostFree(pointer);
	else
		hip->hipFree(pointer);
}

static int call_alloc(const struct pier_hip *hip, const struct pier_hip_memory *state,
		      uint64_t length, void **ret_pointer)
{
	unsigned int error;

	if (state->kind == PIER_HIP_FINE && !hip->hipExtMallocWithFlags)
		return pier_fail(EOPNOTSUPP,
				 "the HIP runtime %s has no hipExtMallocWithFlags, by "
				 "which fine-grained memory is allocated",
				 hip->path);
	if (state->kind == PIER_HIP_FINE)
		error = hip->hipExtMallocWithFlags(ret_pointer, length,
						   PIER_HIP_FINE_GRAINED);
	else if (state->kind == PIER_HIP_HOST)
		error = hip->hipHostMalloc(ret_pointer, length, 0);
	else
		error = hip->hipMalloc(ret_pointer, length);
	return check_alloc(hip, error, length, state);
}

static int alloc_pages(struct pier_hip_memory *state, uint64_t length,
		       struct pier_memory *ret_memory)
{
	const struct pier_hip *hip = state->hip;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rounded;
	void *pointer = NULL;
	int result;

	if (!pier_round_up_u64(length, page, &rounded) || rounded > SIZE_MAX)
		return pier_fail(ENOMEM, "%llu bytes are more than there are addresses",
				 (unsigned long long)length);
	result = call_alloc(hip, state, rounded, &pointer);
	if (result != 0)
		return result;
	if (state->kind == PIER_HIP_HOST)
		memset(pointer, 0, rounded);
	else
		result = pier_hip_clear(state, pointer, rounded);
	if (result != 0) {
		free_pointer(hip, state->kind, pointer);
		return result;
	}
	if (state->kind != PIER_HIP_HOST)
		state->flush = pier_hip_flush_register(hip, state->device);
	*ret_memory = (struct pier_memory){
		.size = sizeof(struct pier_memory),
		.address = (uint64_t)(uintptr_t)pointer,
		.length = rounded,
		.cpu = state->kind == PIER_HIP_HOST ? pointer : NULL,
		.state = state,
	};
	return 0;
}

/* Read a unit, NULL for the first device, and open HIP. */
static int open_unit(const char *unit, struct pier_hip_memory *ret_memory)
{
	struct pier_hip_saved saved;
	int result;

	if (!unit)
		unit = "0";
	result = parse_unit(unit, &ret_memory->device, &ret_memory->kind);
	if (result == 0)
		result = pier_hip_open(&ret_memory->hip);
	if (result != 0)
		return result;
	result = pier_hip_enter(ret_memory->hip, -1, &saved);
	if (result == 0)
		result = check_device(ret_memory->hip, unit, ret_memory->device);
	pier_hip_leave(ret_memory->hip, &saved);
	return result;
}

static int hip_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_hip_memory opened = { .hip = NULL }, *state;
	struct pier_hip_saved saved;
	int result = open_unit(unit, &opened);

	if (result != 0)
		return result;
	state = malloc(sizeof(*state));
	if (!state)
		return pier_fail(ENOMEM, "no memory for the description of memory");
	*state = opened;
	result = pier_hip_enter(state->hip, state->device, &saved);
	if (result == 0)
		result = alloc_pages(state, length, ret_memory);
	pier_hip_leave(opened.hip, &saved);
	if (result != 0)
		free(state);
	return result;
}

/*
 * The slow parts of a first use: starting HIP, and pier's stream, for which clr makes a
 * hardware queue (Device::acquireQueue() in rocdevice.cpp). HIP has nothing like
 * CU_CTX_SYNC_MEMOPS, whose lock the first export in a CUDA context waits for.
 */
static int hip_warm_up(const char *unit)
{
	struct pier_hip_memory opened = { .hip = NULL };
	struct ihipStream_t *stream;
	struct pier_hip_saved saved;
	int result = open_unit(unit, &opened);

	if (result != 0)
		return result;
	result = pier_hip_enter(opened.hip, opened.device, &saved);
	if (result == 0)
		result = pier_hip_take_stream(opened.hip, opened.device, &stream);
	if (result == 0)
		pier_hip_put_stream(opened.hip, opened.device, stream, PIER_HIP_SUCCESS);
	pier_hip_leave(opened.hip, &saved);
	return result;
}

static void hip_free(struct pier_memory *memory)
{
	struct pier_hip_memory *state = memory->state;
	struct pier_hip_saved saved;

	/*
	 * In a child of fork(2) the memory is the parent's: the driver maps nothing
	 * there.
	 */
	if (!pier_hip_inherited(state->hip)) {
		pier_hip_enter(state->hip, state->device, &saved);
		free_pointer(state->hip, state->kind, (void *)(uintptr_t)memory->address);
		pier_hip_leave(state->hip, &saved);
	}
	free(state);
}

static int hip_locate(const struct pier_memory *memory, char ret_pci[16],
		      int *ret_numa_node)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_saved saved;

	ret_pci[0] = '\0';
	*ret_numa_node = -1;
	if (pier_hip_on_host(state->kind) || pier_hip_inherited(state->hip))
		return 0;
	pier_hip_enter(state->hip, -1, &saved);
	pier_hip_locate(state->hip, state->device, ret_pci);
	pier_hip_leave(state->hip, &saved);
	return 0;
}

static void describe_unit(const struct pier_hip *hip, int device,
			  struct pier_backend_unit *ret_unit)
{
	struct pier_backend_unit unit = { .size = sizeof(unit), .numa_node = -1 };
	size_t total = 0;

	snprintf(unit.unit, sizeof(unit.unit), "%d", device);
	if (hip->hipDeviceGetName(unit.name, sizeof(unit.name), device) !=
	    PIER_HIP_SUCCESS)
		snprintf(unit.name, sizeof(unit.name), "HIP device %d", device);
	unit.name[sizeof(unit.name) - 1] = '\0';
	pier_hip_locate(hip, device, unit.pci);
	if (hip->hipDeviceTotalMem(&total, device) == PIER_HIP_SUCCESS)
		snprintf(unit.detail, sizeof(unit.detail), "%zu MiB", total >> 20);
	*ret_unit = unit;
}

static int hip_unit(uint32_t index, struct pier_backend_unit *ret_unit)
{
	const struct pier_hip *hip = NULL;
	struct pier_hip_saved saved;
	int count = 0, result;

	if (pier_hip_open(&hip) != 0)
		return -ENOENT;
	result = pier_hip_enter(hip, -1, &saved);
	if (result == 0 && pier_hip_count_devices(hip, &count) != 0)
		count = 0;
	if (index < (uint32_t)count)
		describe_unit(hip, (int)index, ret_unit);
	else
		result = -ENOENT;
	pier_hip_leave(hip, &saved);
	return result;
}

/* ret_more  what follows it, or "" */
static const char *describe_export(const struct pier_hip *hip, const char **ret_more)
{
	*ret_more = "";
	if (!hip->hsa_amd_portable_close_dmabuf ||
	    (!hip->hsa_amd_portable_export_dmabuf &&
	     !hip->hsa_amd_portable_export_dmabuf_v2))
		return "no dma-bufs: this ROCm is too old for them";
	if (kernel_lacks_dmabufs(hip))
		return "no dma-bufs: the kernel's amdgpu driver is too old for them";
	if (hip->kernel_reason[0]) {
		*ret_more = hip->kernel_reason;
		return "no dma-bufs: ";
	}
	if (!hip->kernel_known)
		*ret_more = "; no configuration of the kernel can be read, so the canary "
			    "decides whether a NIC reaches the memory";
	return hip->hsa_amd_portable_export_dmabuf_v2
		       ? "dma-bufs, by the default mapping or over PCIe"
		       : "dma-bufs, by the default mapping alone";
}

static int probe_devices(char *ret_detail, size_t size)
{
	const struct pier_hip *hip = NULL;
	struct pier_hip_saved saved;
	const char *exports, *more;
	char version[32];
	int count = 0, result;

	result = pier_hip_open(&hip);
	if (result != 0)
		return result;
	result = pier_hip_enter(hip, -1, &saved);
	if (result == 0)
		result = pier_hip_count_devices(hip, &count);
	if (result == 0) {
		pier_hip_version(hip, version, sizeof(version));
		exports = describe_export(hip, &more);
		snprintf(ret_detail, size, "%d device%s, HIP %s; %s%s", count,
			 count == 1 ? "" : "s", version, exports, more);
	}
	pier_hip_leave(hip, &saved);
	return result;
}

/* Initialises HIP: there is no other way to count the devices. */
static int probe_hip(char *ret_detail, size_t size)
{
	int result = probe_devices(ret_detail, size);

	if (result != 0)
		snprintf(ret_detail, size, "%s", pier_error_message());
	return result;
}

const struct pier_backend pier_hip_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "hip",
	.description = "memory of AMD GPUs (HIP); units N, N:fine and N:host",
	.dmabuf = true,
	.mappings = true,
	.probe = probe_hip,
	.alloc = hip_alloc,
	.free = hip_free,
	.find = pier_hip_find,
	.release = pier_hip_release,
	.export_range = hip_export,
	.close_export = hip_close_export,
	.copy_to = pier_hip_copy_to,
	.copy_from = pier_hip_copy_from,
	.flush = pier_hip_flush,
	.locate = hip_locate,
	.identity = pier_hip_identity,
	.describe = pier_hip_describe,
	.segment = pier_hip_segment,
	.unit = hip_unit,
	.lock_host = pier_hip_lock_host,
	.unlock_host = pier_hip_unlock_host,
	.copy_start = pier_hip_copy_start,
	.copy_query = pier_hip_copy_query,
	.warm_up = hip_warm_up,
};

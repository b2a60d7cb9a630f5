/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "device.h"
#include "export.h"
#include "load.h"
#include "memory.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"

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

static int check_request(const struct pier_memory *memory, enum pier_mapping mapping)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;
	int result = pier_hip_check_owner(state->hip);

	if (result == 0 && state->kind == PIER_HIP_VIRTUAL)
		result = check_segment_functions(state->hip);
	else if (result == 0)
		result = check_functions(state->hip, mapping);
	if (result != 0)
		return result;
	pier_hip_enter(state->hip, -1, &scope);
	result = pier_hip_check_live(memory);
	pier_hip_leave(state->hip, &scope);
	return result;
}

int pier_hip_export(const struct pier_memory *memory,
		    const struct pier_backend_request *request,
		    struct pier_backend_export *ret_export)
{
	const struct pier_hip_memory *state = memory->state;
	const struct pier_hip *hip = state->hip;
	struct pier_hip_scope scope;
	unsigned int status;
	uint64_t offset = 0;
	int fd = -1, result = check_request(memory, request->mapping);

	if (result != 0)
		return result;
	/* HSA counts its users: it must stay initialised until the export is closed. */
	status = hip->hsa_init();
	if (status != PIER_HSA_SUCCESS)
		return pier_hsa_fail(status, "initialising HSA");
	pier_hip_enter(hip, -1, &scope);
	status = call_export(state, request, &fd, &offset);
	if (status != PIER_HSA_SUCCESS)
		result = fail_refused(memory, request, status);
	pier_hip_leave(hip, &scope);
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

void pier_hip_close_export(struct pier_backend_export *dmabuf)
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

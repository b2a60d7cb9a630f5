/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "export.h"
#include "memory.h"
#include "unit.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/log.h"

#define BOUNCE "or allow a bounce buffer"

/* A range to export, and the driver's result. */
struct request {
	uint64_t address;
	uint64_t length;
	unsigned long long flags;
	CUresult error;
};

void pier_cuda_explain_export(const struct pier_cuda_memory *memory, char *ret_text,
			      size_t size)
{
	const struct pier_cuda *cuda = memory->cuda;
	bool host = pier_cuda_is_host(memory);

	ret_text[0] = '\0';
	if (memory->kind == PIER_CUDA_OPENED)
		snprintf(ret_text, size,
			 "memory of another process cannot be exported here: export it "
			 "in the process that owns it");
	else if (memory->kind == PIER_CUDA_MANAGED)
		/*
		 * cuda.h: only device allocations have dma-bufs, and managed pools have
		 * no handles at all. A driver of CUDA 13.1 dies of a question about the
		 * latter.
		 */
		snprintf(ret_text, size,
			 "managed memory moves between host and device, and has no "
			 "dma-bufs: allocate it with cudaMalloc, " BOUNCE);
	else if (memory->kind == PIER_CUDA_VMM_HOST && !memory->cpu)
		snprintf(ret_text, size,
			 "memory of cuMemCreate on the host is for a NIC where "
			 "the CPU reaches it: grant that with cuMemSetAccess and "
			 "CU_MEM_LOCATION_TYPE_HOST, " BOUNCE);
	else if (!cuda->call.cuMemGetHandleForAddressRange)
		snprintf(ret_text, size,
			 "the CUDA driver is older than CUDA 11.7, which brought "
			 "dma-bufs: "
			 "install a newer one");
	else if (host && cuda->version >= PIER_CU_HOST_DMA_BUF_SINCE &&
		 pier_cuda_attribute(cuda, memory->device,
				     CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED) ==
			 0)
		snprintf(ret_text, size,
			 "CUDA device %d exports no page-locked host memory: register it "
			 "by its CPU address",
			 memory->device);
	else if (!host && pier_cuda_attribute(cuda, memory->device,
					      CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0)
		snprintf(ret_text, size,
			 "CUDA device %d exports no dma-bufs: that takes NVIDIA's open "
			 "kernel modules and a data centre or workstation GPU; with the "
			 "proprietary ones load nvidia-peermem, " BOUNCE,
			 memory->device);
}

/*
 * On GB200 (SMMU) memory of cudaMalloc() failed to register, and memory that was created
 * for GPUDirect RDMA did not (torchcomms' pull request 1354).
 */
void pier_cuda_suggest_remedy(const struct pier_cuda_memory *memory, char *ret_text,
			      size_t size)
{
	ret_text[0] = '\0';
	if (memory->kind == PIER_CUDA_LINEAR && pier_cuda_is_coherent(memory))
		snprintf(ret_text, size,
			 "a NIC may refuse memory of cudaMalloc where NVLink-C2C joins "
			 "the GPU to the CPU: try cuda:%d:vmm, or cuMemCreate with "
			 "gpuDirectRDMACapable",
			 memory->device);
}

/*
 * The most likely reason why the driver refuses such memory, or "". pier itself does not
 * refuse it first: newer drivers may export more kinds, and gpuDirectRDMACapable is only
 * a request (UCX's pull request 10007).
 */
static const char *refusal_hint(const struct pier_cuda_memory *memory)
{
	switch (memory->kind) {
	case PIER_CUDA_POOL:
		return "; this is memory of a stream-ordered pool: allocate it with "
		       "cudaMalloc (PyTorch: PYTORCH_CUDA_ALLOC_CONF without "
		       "backend:cudaMallocAsync), " BOUNCE;
	case PIER_CUDA_VMM:
		if (memory->rdma_capable)
			return "";
		return "; cuMemCreate made this memory without GPUDirect RDMA: set "
		       "allocFlags.gpuDirectRDMACapable in CUmemAllocationProp, " BOUNCE;
	case PIER_CUDA_HOST:
		return "; this is page-locked host memory, which the driver exports only "
		       "if it comes from cuMemHostAlloc: register it by its CPU address";
	default:
		return "";
	}
}

/*
 * Make synchronous copies and memsets of this memory really synchronous. Otherwise a NIC
 * may read bytes that are still on their way. Memory of cuMemCreate() and of pools lacks
 * the attribute; its context has it since CUDA 12.1, and pier sets it at the context's
 * first use. With older drivers, or if this fails, the caller must wait for its stream.
 */
static void synchronize_memory(struct pier_cuda_memory *memory)
{
	struct pier_cuda *cuda = memory->cuda;
	unsigned int on = 1;
	CUresult error;
	char text[160];

	if (atomic_load(&memory->synchronous) || pier_cuda_is_host(memory))
		return;
	/* Of what is exported, this kind alone has it (UCX's issue 9895 for VMM). */
	if (memory->kind == PIER_CUDA_LINEAR)
		error = cuda->call.cuPointerSetAttribute(
			&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory->start);
	else
		error = pier_cuda_synchronize_context(cuda);
	if (error == CUDA_SUCCESS) {
		atomic_store(&memory->synchronous, true);
		return;
	}
	pier_cuda_describe_error(cuda, error, text, sizeof(text));
	pier_warning("memory operations at %#" PRIx64
		     " are not synchronous (SYNC_MEMOPS): %s; wait for your stream "
		     "before a NIC reads this memory",
		     memory->start, text);
}

static bool is_refusal(CUresult error)
{
	return error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_NOT_SUPPORTED;
}

static bool ask_driver(const struct pier_cuda *cuda, struct request *request, int *ret_fd)
{
	int fd = -1;

	request->error = cuda->call.cuMemGetHandleForAddressRange(
		&fd, request->address, request->length,
		CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, request->flags);
	if (request->error != CUDA_SUCCESS)
		return false;
	*ret_fd = fd;
	return true;
}

/*
 * Widen a request to the pages around the whole allocation or mapping, which some drivers
 * require. Returns false if the request leaves it, or covers it already.
 */
static bool widen_request(const struct pier_cuda_memory *memory, struct request *request,
			  bool *ret_leaves)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = memory->start;
	uint64_t length = memory->start_length, end;

	*ret_leaves = false;
	if (pier_cuda_is_mapped(memory) &&
	    pier_cuda_read_mapping(memory->cuda, request->address, &start, &length) !=
		    CUDA_SUCCESS)
		return false;
	if (!pier_round_up_u64(start + length, page, &end))
		return false;
	start &= ~(page - 1);
	*ret_leaves = !pier_range_fits(request->address - start, request->length,
				       end - start);
	if (*ret_leaves || request->length == end - start)
		return false;
	request->address = start;
	request->length = end - start;
	return true;
}

static int fail_seam(const struct pier_cuda_memory *memory, const struct request *request)
{
	return pier_fail(EXDEV,
			 "the CUDA driver gives no dma-buf of %" PRIu64
			 " bytes at %#" PRIx64 ", which lie in several of %" PRIu32
			 " segments of cuMemMap: export each alone",
			 request->length, request->address, memory->segments);
}

static int fail_export(const struct pier_cuda_memory *memory,
		       const struct request *request)
{
	const char *which = request->flags ? ", mapped over PCIe" : "", *hint;
	char text[160];

	if (request->error == CUDA_ERROR_OUT_OF_MEMORY)
		return pier_cuda_check(memory->cuda, request->error,
				       "exporting %" PRIu64
				       " bytes of CUDA device %d%s: is its BAR1 used "
				       "up (nvidia-smi -q -d MEMORY)?",
				       request->length, memory->device, which);
	hint = is_refusal(request->error) ? refusal_hint(memory) : "";
	pier_cuda_describe_error(memory->cuda, request->error, text, sizeof(text));
	return pier_fail(*hint ? EOPNOTSUPP : pier_cuda_errno(request->error),
			 "cuMemGetHandleForAddressRange of %" PRIu64 " bytes at %#" PRIx64
			 " of CUDA device %d%s: %s%s%s",
			 request->length, request->address, memory->device, which, text,
			 pier_cuda_hint(request->error), hint);
}

/*
 * Export the range, or all of the memory around it. ret_offset: of the range in the dma-
 * buf.
 */
static int ask_driver_twice(const struct pier_cuda_memory *memory,
			    struct request *request, int *ret_fd, uint64_t *ret_offset)
{
	struct request first;
	bool leaves;

	*ret_offset = 0;
	if (ask_driver(memory->cuda, request, ret_fd))
		return 0;
	first = *request;
	if (!is_refusal(first.error))
		return fail_export(memory, &first);
	if (!widen_request(memory, request, &leaves))
		return leaves && pier_cuda_is_mapped(memory)
			       ? fail_seam(memory, &first)
			       : fail_export(memory, &first);
	if (!ask_driver(memory->cuda, request, ret_fd))
		return fail_export(memory, &first);
	pier_debug("the CUDA driver exports the whole allocation at %#" PRIx64 " only",
		   request->address);
	*ret_offset = first.address - request->address;
	return 0;
}

static int check_mapping(const struct pier_cuda *cuda, enum pier_mapping mapping,
			 unsigned long long *ret_flags)
{
	*ret_flags = 0;
	if (mapping != PIER_MAPPING_PCIE)
		return 0;
	if (cuda->version < PIER_CU_PCIE_SINCE)
		return pier_fail(
			EOPNOTSUPP,
			"dma-bufs that are mapped over PCIe came with CUDA 12.8, "
			"and the driver is of CUDA %d.%d: install a newer one",
			cuda->version / 1000, cuda->version % 1000 / 10);
	*ret_flags = PIER_CU_PCIE_FLAG;
	return 0;
}

int pier_cuda_export(const struct pier_memory *memory,
		     const struct pier_backend_request *wanted,
		     struct pier_backend_export *ret_export)
{
	struct pier_cuda_saved saved;
	struct pier_cuda_memory *state = memory->state;
	struct request request = { .address = wanted->address, .length = wanted->length };
	int fd = -1, result = check_mapping(state->cuda, wanted->mapping, &request.flags);
	uint64_t offset;

	if (result != 0)
		return result;
	result = pier_cuda_enter_live(state, &saved);
	if (result == 0) {
		synchronize_memory(state);
		result = ask_driver_twice(state, &request, &fd, &offset);
	}
	pier_cuda_leave(state->cuda, &saved);
	if (result != 0)
		return result;
	/* The documentation does not say whether the fd is close-on-exec. */
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
		result = pier_fail(errno, "the CUDA driver gave fd %d: %m", fd);
		pier_close_fd(fd);
		return result;
	}
	ret_export->fd = fd;
	ret_export->offset = offset;
	return 0;
}

int pier_cuda_expose(const struct pier_memory *memory)
{
	struct pier_cuda_saved saved;
	struct pier_cuda_memory *state = memory->state;
	int result = pier_cuda_enter_live(state, &saved);

	if (result == 0)
		synchronize_memory(state);
	pier_cuda_leave(state->cuda, &saved);
	return result;
}

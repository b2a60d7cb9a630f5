/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/linux/fd_memory.h"
#include "copy.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/log.h"
#include "driver.h"
#include "export.h"
#include "ipc.h"
#include "memory.h"
#include "unit.h"

/*
 * A NIC can reach the memory only if it is created with gpuDirectRDMACapable, which is a
 * request: the driver may grant it or not.
 */
static CUmemAllocationProp read_properties(const struct pier_cuda_memory *memory)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {
			.type = CU_MEM_LOCATION_TYPE_DEVICE,
			.id = memory->device,
		},
	};

	prop.allocFlags.gpuDirectRDMACapable =
		pier_cuda_attribute(
			memory->cuda, memory->device,
			CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) > 0;
	return prop;
}

static int choose_segment(struct pier_cuda_memory *memory,
			  const CUmemAllocationProp *prop, uint64_t length,
			  uint64_t segment)
{
	struct pier_cuda *cuda = memory->cuda;
	size_t granularity = 0;
	uint64_t total;
	int result = pier_cuda_check(
		cuda,
		cuda->call.cuMemGetAllocationGranularity(
			&granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
		"cuMemGetAllocationGranularity of CUDA device %d", memory->device);

	if (result != 0)
		return result;
	/* The documentation does not promise a power of two. */
	if (granularity == 0 || segment % granularity)
		return pier_fail(EINVAL,
				 "segments of %" PRIu64 " bytes: on CUDA device %d they "
				 "are multiples of %zu bytes",
				 segment, memory->device, granularity);
	if (segment == 0 &&
	    !pier_mul_u64((length - 1) / granularity + 1, granularity, &segment))
		segment = UINT64_MAX;
	if (!pier_mul_u64((length - 1) / segment + 1, segment, &total) ||
	    total > INT64_MAX || total / segment > UINT32_MAX)
		return pier_fail(ENOMEM, "%" PRIu64 " bytes are more than a device has",
				 length);
	memory->segment = segment;
	memory->start_length = total;
	return 0;
}

/*
 * Release the handle at once: the mapping keeps the memory. If that fails, or an
 * unmapping, memory is leaked until the process ends.
 */
static int map_segment(struct pier_cuda_memory *memory, const CUmemAllocationProp *prop)
{
	uint64_t address = memory->start + memory->segments * memory->segment;
	struct pier_cuda *cuda = memory->cuda;
	CUmemGenericAllocationHandle handle;
	int result = pier_cuda_check(
		cuda, cuda->call.cuMemCreate(&handle, memory->segment, prop, 0),
		"cuMemCreate of %" PRIu64 " bytes on CUDA device %d", memory->segment,
		memory->device);

	if (result != 0)
		return result;
	result = pier_cuda_check(
		cuda, cuda->call.cuMemMap(address, memory->segment, 0, handle, 0),
		"cuMemMap of %" PRIu64 " bytes on CUDA device %d", memory->segment,
		memory->device);
	pier_cuda_warn(cuda, cuda->call.cuMemRelease(handle), "cuMemRelease", address);
	memory->segments += result == 0;
	return result;
}

static int map_all(struct pier_cuda_memory *memory, const CUmemAllocationProp *prop)
{
	struct pier_cuda *cuda = memory->cuda;
	CUmemAccessDesc access = {
		.location = prop->location,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	int result = 0;

	while (result == 0 && memory->segments * memory->segment < memory->start_length)
		result = map_segment(memory, prop);
	if (result != 0)
		return result;
	return pier_cuda_check(cuda,
			       cuda->call.cuMemSetAccess(
				       memory->start, memory->start_length, &access, 1),
			       "cuMemSetAccess on CUDA device %d", memory->device);
}

static void cuda_vmm_free(struct pier_cuda_memory *memory)
{
	struct pier_cuda *cuda = memory->cuda;

	/* Some versions cannot unmap several mappings with one call. */
	while (memory->segments > 0) {
		uint64_t address = memory->start + --memory->segments * memory->segment;

		pier_cuda_warn(cuda, cuda->call.cuMemUnmap(address, memory->segment),
			       "cuMemUnmap", address);
	}
	pier_cuda_warn(cuda,
		       cuda->call.cuMemAddressFree(memory->start, memory->start_length),
		       "cuMemAddressFree", memory->start);
}

/*
 * Memory of cuMemCreate(), mapped into one reservation, in segments of the same length,
 * with the device's context current. Fills in its bounds, segment, segments and
 * rdma_capable.
 *
 * segment  0: one
 */
static int cuda_vmm_alloc(struct pier_cuda_memory *memory, uint64_t length,
			  uint64_t segment)
{
	struct pier_cuda *cuda = memory->cuda;
	CUmemAllocationProp prop = read_properties(memory);
	CUdeviceptr start = 0;
	int result = PIER_CUDA_NEED(cuda, cuMemCreate);

	if (result == 0 &&
	    pier_cuda_attribute(
		    cuda, memory->device,
		    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0)
		return pier_fail(EOPNOTSUPP,
				 "CUDA device %d has no virtual memory management: use "
				 "cuda:%d instead of cuda:%d:vmm",
				 memory->device, memory->device, memory->device);
	if (result == 0)
		result = choose_segment(memory, &prop, length, segment);
	if (result == 0)
		result = pier_cuda_check(cuda,
					 cuda->call.cuMemAddressReserve(
						 &start, memory->start_length, 0, 0, 0),
					 "cuMemAddressReserve of %" PRIu64 " bytes",
					 memory->start_length);
	if (result != 0)
		return result;
	memory->start = memory->address = start;
	memory->length = memory->start_length;
	result = map_all(memory, &prop);
	if (result != 0)
		cuda_vmm_free(memory);
	else
		memory->rdma_capable = pier_cuda_is_rdma_capable(cuda, start);
	return result;
}

enum {
	/* The page of device memory in its BAR, and the largest page of a host. */
	PAGE = 65536,
	/*
	 * The driver takes a smaller allocation out of a block of this length, beside
	 * other allocations and aligned to less than a page. Such memory cannot be
	 * exported, neither alone nor by its base.
	 */
	BLOCK = 2 << 20,
};

/*
 * From the device's current pool. In pier's own stream: in the default one the allocation
 * would wait for the application's kernels. The pool may be one of managed memory, which
 * a driver must not be asked to export.
 */
static int alloc_from_pool(struct pier_cuda_memory *memory, uint64_t bytes,
			   CUresult *ret_error, CUdeviceptr *ret_address)
{
	struct pier_cuda *cuda = memory->cuda;
	unsigned int managed = 0;
	CUstream stream;
	int result;

	if (!cuda->call.cuMemAllocAsync)
		return pier_cuda_fail_missing(cuda, "cuMemAllocAsync");
	result = pier_cuda_take_stream(cuda, memory->device, NULL, &stream);
	if (result != 0)
		return result;
	*ret_error = cuda->call.cuMemAllocAsync(ret_address, bytes, stream);
	if (*ret_error == CUDA_SUCCESS &&
	    pier_cuda_read_attribute(cuda, *ret_address, CU_POINTER_ATTRIBUTE_IS_MANAGED,
				     &managed) &&
	    managed)
		memory->kind = PIER_CUDA_MANAGED;
	return 0;
}

/* Allocate `bytes` on the device, or of page-locked host memory, at any address. */
static int call_alloc(struct pier_cuda_memory *memory, uint64_t bytes)
{
	struct pier_cuda *cuda = memory->cuda;
	const char *name = "cuMemAlloc";
	CUdeviceptr address = 0;
	void *cpu = NULL;
	CUresult error = CUDA_SUCCESS;
	int result;

	if (memory->kind == PIER_CUDA_POOL) {
		name = "cuMemAllocAsync";
		result = alloc_from_pool(memory, bytes, &error, &address);
		if (result != 0)
			return result;
	} else if (memory->kind == PIER_CUDA_HOST) {
		name = "cuMemHostAlloc";
		error = cuda->call.cuMemHostAlloc(&cpu, bytes, CU_MEMHOSTALLOC_PORTABLE);
		/* Portable memory has one address for the CPU and every device. */
		address = (uint64_t)(uintptr_t)cpu;
	} else {
		error = cuda->call.cuMemAlloc(&address, bytes);
	}
	memory->start = address;
	memory->start_length = bytes;
	return pier_cuda_check(cuda, error, "%s of %" PRIu64 " bytes with CUDA device %d",
			       name, bytes, memory->device);
}

static void free_driver_memory(struct pier_cuda_memory *memory)
{
	struct pier_cuda *cuda = memory->cuda;

	if (memory->kind == PIER_CUDA_VMM)
		cuda_vmm_free(memory);
	else if (memory->kind == PIER_CUDA_HOST)
		pier_cuda_warn(cuda,
			       cuda->call.cuMemFreeHost((void *)(uintptr_t)memory->start),
			       "cuMemFreeHost", memory->start);
	else
		pier_cuda_warn(cuda, cuda->call.cuMemFree(memory->start), "cuMemFree",
			       memory->start);
}

static int alloc_pages(struct pier_cuda_memory *memory, uint64_t length)
{
	uint64_t bytes;
	int result;

	if (!pier_round_up_u64(length, PAGE, &bytes) || bytes > INT64_MAX)
		return pier_fail(ENOMEM, "%" PRIu64 " bytes are more than a device has",
				 length);
	if (memory->kind == PIER_CUDA_LINEAR && bytes < BLOCK)
		bytes = BLOCK;
	/* A pool gives memory that begins within a page. */
	result = call_alloc(memory,
			    memory->kind == PIER_CUDA_POOL ? bytes + PAGE : bytes);
	memory->address = (memory->start + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	memory->length = bytes;
	if (memory->kind == PIER_CUDA_HOST)
		memory->cpu = (void *)(uintptr_t)memory->address;
	return result;
}

/* With the device's context current. */
static int fill_memory(struct pier_cuda_memory *memory, const struct pier_cuda_spec *spec,
		       uint64_t length)
{
	int result = spec->kind == PIER_CUDA_VMM
			     ? cuda_vmm_alloc(memory, length, spec->segment)
			     : alloc_pages(memory, length);

	if (result != 0)
		return result;
	if (memory->cpu)
		memset(memory->cpu, 0, memory->length);
	else
		result = pier_cuda_clear(memory);
	if (result != 0)
		free_driver_memory(memory);
	else
		pier_cuda_read_identity(memory->cuda, memory->address, &memory->identity);
	return result;
}

static int alloc_memory(struct pier_cuda *cuda, const struct pier_cuda_spec *spec,
			uint64_t length, struct pier_cuda_memory **ret_memory)
{
	struct pier_cuda_memory *memory = calloc(1, sizeof(*memory));
	struct pier_cuda_saved saved;
	int result;

	if (!memory)
		return pier_fail(ENOMEM, "no memory for an allocation's description");
	memory->cuda = cuda;
	memory->kind = spec->kind;
	memory->device = spec->device;
	result = pier_cuda_enter_memory(memory, &saved);
	if (result == 0)
		result = fill_memory(memory, spec, length);
	pier_cuda_leave(cuda, &saved);
	if (result != 0) {
		free(memory);
		return result;
	}
	*ret_memory = memory;
	return 0;
}

/*
 * Where NVLink-C2C joins the device to the CPU, NICs may refuse memory of cuMemAlloc():
 * see pier_cuda_suggest_remedy().
 */
static int alloc_any(struct pier_cuda *cuda, const struct pier_cuda_spec *spec,
		     uint64_t length, struct pier_cuda_memory **ret_memory)
{
	struct pier_cuda_memory memory = { .cuda = cuda, .device = spec->device };
	struct pier_cuda_spec vmm = *spec;

	vmm.kind = PIER_CUDA_VMM;
	if (spec->any && pier_cuda_is_coherent(&memory) &&
	    read_properties(&memory).allocFlags.gpuDirectRDMACapable) {
		if (alloc_memory(cuda, &vmm, length, ret_memory) == 0)
			return 0;
		pier_debug("memory of cuMemAlloc on CUDA device %d, because: %s",
			   spec->device, pier_error_message());
	}
	return alloc_memory(cuda, spec, length, ret_memory);
}

static int open_unit(const char *unit, struct pier_cuda_spec *ret_spec,
		     struct pier_cuda **ret_cuda)
{
	int count, result = pier_cuda_parse_unit(unit, ret_spec);

	if (result == 0)
		result = pier_cuda_open(ret_cuda);
	if (result != 0)
		return result;
	count = atomic_load(&(*ret_cuda)->device_count);
	if (ret_spec->device < count)
		return 0;
	return pier_fail(EINVAL,
			 "no CUDA device %d: there %s %d, from 0 on, in the order "
			 "of the driver (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER)",
			 ret_spec->device, count == 1 ? "is" : "are", count);
}

/*
 * Prepare a context before its first use in the data path. UCX does so when it opens its
 * CUDA domain (uct_cuda_copy_md_open() in cuda_copy_md.c).
 */
static int cuda_warm_up(const char *unit)
{
	struct pier_cuda_saved saved;
	struct pier_cuda_spec spec;
	struct pier_cuda *cuda;
	CUstream stream;
	int result = open_unit(unit, &spec, &cuda);

	if (result != 0)
		return result;
	/* The current context of the application's, if it is not the primary one. */
	pier_cuda_synchronize_context(cuda);
	result = pier_cuda_enter(cuda, spec.device, NULL, &saved);
	if (result == 0)
		result = pier_cuda_take_stream(cuda, spec.device, NULL, &stream);
	pier_cuda_leave(cuda, &saved);
	return result;
}

static struct pier_own_list allocations = PIER_OWN_LIST(allocations);

static int cuda_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_cuda_memory *memory = NULL;
	struct pier_cuda_spec spec;
	struct pier_cuda *cuda;
	int result = open_unit(unit, &spec, &cuda);

	if (result != 0)
		return result;
	result = alloc_any(cuda, &spec, length, &memory);
	if (result != 0)
		return result;
	memory->own = true;
	memory->listed.memory = *ret_memory = pier_cuda_describe(memory);
	pier_own_add(&allocations, &memory->listed);
	return 0;
}

static int cuda_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	if (pier_own_find(&allocations, address, ret_memory) == 0)
		return 0;
	return pier_cuda_find(address, length, ret_memory);
}

/*
 * The context may have been lost meanwhile, and the memory with it: the address may be
 * another allocation's.
 */
static void destroy_memory(struct pier_cuda_memory *memory)
{
	struct pier_cuda_saved saved;

	if (pier_cuda_was_freed(memory)) {
		pier_debug("memory at %#" PRIx64
			   " was freed by a reset of CUDA device %d",
			   memory->start, memory->device);
		return;
	}
	if (pier_cuda_enter_memory(memory, &saved) == 0)
		free_driver_memory(memory);
	else
		pier_warning("freeing memory at %#" PRIx64 ": %s", memory->start,
			     pier_error_message());
	pier_cuda_leave(memory->cuda, &saved);
}

static void cuda_put(struct pier_memory *memory)
{
	struct pier_cuda_memory *state = memory->state;

	if (state->own) {
		if (!pier_own_drop(&state->listed))
			return;
		destroy_memory(state);
	}
	if (state->kind == PIER_CUDA_OPENED)
		pier_cuda_ipc_close(state);
	free(state);
}

static int probe_cuda(char *ret_detail, size_t size)
{
	struct pier_cuda *cuda;
	int result = pier_cuda_try_open(&cuda, ret_detail, size);
	int count;

	if (result != 0)
		return result;
	count = atomic_load(&cuda->device_count);
	snprintf(ret_detail, size,
		 "%d device%s, driver of CUDA %d.%d; units: N, N:linear, N:vmm, "
		 "N:vmm:SIZE, "
		 "N:pool, N:host",
		 count, count == 1 ? "" : "s", cuda->version / 1000,
		 cuda->version % 1000 / 10);
	return 0;
}

static void describe_cuda(const struct pier_memory *memory,
			  struct pier_memory_facts *ret_facts)
{
	const struct pier_cuda_memory *state = memory->state;
	const char *alike;

	if (state->segments > 1)
		snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s, %u segments",
			 pier_cuda_kind_name(state->kind), state->segments);
	else
		snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s",
			 pier_cuda_kind_name(state->kind));
	if (!state->on_no_device)
		snprintf(ret_facts->unit, sizeof(ret_facts->unit), "%d", state->device);
	pier_cuda_explain_export(state, ret_facts->no_export,
				 sizeof(ret_facts->no_export));
	ret_facts->host = pier_cuda_is_host(state);
	ret_facts->moves = state->kind == PIER_CUDA_MANAGED;
	ret_facts->coherent = pier_cuda_is_coherent(state);
	alike = state->kind == PIER_CUDA_VMM	  ? "vmm"
		: !ret_facts->coherent		  ? NULL
		: state->kind == PIER_CUDA_LINEAR ? "linear"
		: state->kind == PIER_CUDA_POOL	  ? "pool"
						  : NULL;
	if (alike)
		snprintf(ret_facts->alike, sizeof(ret_facts->alike), "%d:%s",
			 state->device, alike);
	ret_facts->any_order = pier_cuda_flushes_alone(state);
	pier_cuda_suggest_remedy(state, ret_facts->remedy, sizeof(ret_facts->remedy));
}

const struct pier_backend pier_cuda_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "cuda",
	.description =
		"memory of NVIDIA's GPUs (unit N), or page-locked for them (N:host)",
	.dmabuf = true,
	.mappings = true,
	.probe = probe_cuda,
	.alloc = cuda_alloc,
	.free = cuda_put,
	.find = cuda_find,
	.release = cuda_put,
	.export_range = pier_cuda_export,
	.close_export = pier_fd_memory_close_export,
	.copy_to = pier_cuda_copy_to,
	.copy_from = pier_cuda_copy_from,
	.flush = pier_cuda_flush,
	.locate = pier_cuda_locate,
	.identity = pier_cuda_identity,
	.describe = describe_cuda,
	.segment = pier_cuda_segment,
	.unit = pier_cuda_unit,
	.lock_host = pier_cuda_lock_host,
	.unlock_host = pier_cuda_unlock_host,
	.expose = pier_cuda_expose,
	.copy_start = pier_cuda_copy_start,
	.copy_query = pier_cuda_copy_query,
	.warm_up = cuda_warm_up,
	.ipc_export = pier_cuda_ipc_export,
	.ipc_open = pier_cuda_ipc_open,
	.copy_between = pier_cuda_copy_between,
};

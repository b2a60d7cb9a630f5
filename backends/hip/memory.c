/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/error.h"
#include "device.h"
#include "load.h"
#include "memory.h"

#define OTHERWISE                                                                        \
	"allocate what the NIC shall reach with hipMalloc() or pier_buffer_alloc(), or " \
	"allow a bounce buffer"

static const struct {
	const char *name;
	const char *no_export;
} kinds[] = {
	[PIER_HIP_DEVICE] = { "hipMalloc", "" },
	[PIER_HIP_FINE] = { "fine-grained device memory", "" },
	[PIER_HIP_HOST] = { "page-locked host memory",
			    "it is host memory, which ROCm does not export: register "
			    "it as such" },
	[PIER_HIP_REGISTERED] = { "registered host memory",
				  "it is host memory, which ROCm does not export: "
				  "register it as such" },
	[PIER_HIP_MANAGED] = { "managed memory",
			       "its pages move between host and device; " OTHERWISE },
	[PIER_HIP_VIRTUAL] = { "hipMemMap", "" },
	/*
	 * ROCr records no owner for it (Runtime::IPCAttach()), and
	 * Runtime::DmaBufExport() relies on the owner without a check.
	 */
	[PIER_HIP_IPC] = { "memory of another process",
			   "only the process that allocated it can export it" },
	[PIER_HIP_GRAPHICS] = { "memory of a graphics interface",
				"only the interface that allocated it can export it" },
};

bool pier_hip_on_host(enum pier_hip_kind kind)
{
	return kind == PIER_HIP_HOST || kind == PIER_HIP_REGISTERED;
}

void pier_hip_describe(const struct pier_memory *memory,
		       struct pier_memory_facts *ret_facts)
{
	const struct pier_hip_memory *state = memory->state;

	snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s", kinds[state->kind].name);
	if (state->segments > 1)
		snprintf(ret_facts->kind, sizeof(ret_facts->kind),
			 "%s, %" PRIu32 " segments", kinds[state->kind].name,
			 state->segments);
	snprintf(ret_facts->unit, sizeof(ret_facts->unit), "%d", state->device);
	snprintf(ret_facts->no_export, sizeof(ret_facts->no_export), "%s",
		 kinds[state->kind].no_export[0] ? kinds[state->kind].no_export
						 : state->hip->kernel_reason);
	ret_facts->host = pier_hip_on_host(state->kind);
	ret_facts->moves = state->kind == PIER_HIP_MANAGED;
	/*
	 * Both mappings go over PCIe. Only with the flag does Runtime::DmaBufExport()
	 * refuse a device whose BAR does not reach all of its memory.
	 */
	if (state->hip->hsa_amd_portable_export_dmabuf_v2)
		ret_facts->mapping = PIER_MAPPING_PCIE;
}

/*
 * The number that clr gives each of its memory objects, which only increases
 * (amd::Memory::getUniqueId()): memory that was freed and allocated again has another.
 * Memory of a pool keeps its number from user to user, and its pages as well, so a region
 * of it stays right.
 *
 * ret_number  0: there is no such memory, or HIP does not report it. clr writes 32 bits
 *             today; 64 have room for what CUDA's attribute of that name writes.
 *
 * Returns a hipError_t.
 */
static unsigned int read_number(const struct pier_hip *hip, uint64_t address,
				uint64_t *ret_number)
{
	*ret_number = 0;
	return hip->hipPointerGetAttribute(ret_number, PIER_HIP_BUFFER_ID,
					   (void *)(uintptr_t)address);
}

int pier_hip_check_live(const struct pier_memory *memory)
{
	const struct pier_hip_memory *state = memory->state;
	uint64_t number;
	unsigned int error;

	if (!state->number)
		return 0;
	error = read_number(state->hip, memory->address, &number);
	if (error == PIER_HIP_SUCCESS && number == state->number)
		return 0;
	/* Other errors do not concern liveness: the caller's next call reports them. */
	if (error != PIER_HIP_SUCCESS && error != PIER_HIP_INVALID_VALUE &&
	    error != PIER_HIP_INVALID_DEVICE_POINTER)
		return 0;
	return pier_fail(EFAULT,
			 "the memory at %#llx was freed after it was wrapped: wrap what "
			 "is there now",
			 (unsigned long long)memory->address);
}

int pier_hip_enter_memory(const struct pier_hip_memory *state,
			  struct pier_hip_saved *ret_saved)
{
	int result = pier_hip_check_owner(state->hip);

	*ret_saved = (struct pier_hip_saved){ 0 };
	return result == 0 ? pier_hip_enter(state->hip, state->device, ret_saved)
			   : result;
}

int pier_hip_enter_live(const struct pier_memory *memory,
			struct pier_hip_saved *ret_saved)
{
	int result = pier_hip_enter_memory(memory->state, ret_saved);

	return result == 0 ? pier_hip_check_live(memory) : result;
}

/*
 * Memory that the application mapped with hipMemMap(), one segment next to the other, as
 * PyTorch's expandable segments are. HIP treats each as an allocation of its own, for
 * bounds, copies and exports.
 */

bool pier_hip_read_segment(const struct pier_hip *hip, uint64_t address,
			   uint64_t *ret_start, uint64_t *ret_length)
{
	void *base = NULL;
	size_t size = 0;

	if (hip->hipMemGetAddressRange(&base, &size, (void *)(uintptr_t)address) !=
		    PIER_HIP_SUCCESS ||
	    !pier_range_fits(address - (uint64_t)(uintptr_t)base, 1, size))
		return false;
	*ret_start = (uint64_t)(uintptr_t)base;
	*ret_length = size;
	return true;
}

static bool is_next(const struct pier_hip *hip, uint64_t address, int device)
{
	struct pier_hsa_pointer_info info;
	int owner = -1;

	return pier_hip_ask_hsa(hip, address, &info) && pier_hip_is_mapped(&info) &&
	       hip->hipPointerGetAttribute(&owner, PIER_HIP_DEVICE_ORDINAL,
					   (void *)(uintptr_t)address) ==
		       PIER_HIP_SUCCESS &&
	       owner == device;
}

/* Add to memory that was just found the segments that follow it, up to `wanted`. */
static void add_segments(struct pier_memory *memory, uint64_t wanted)
{
	struct pier_hip_memory *state = memory->state;
	uint64_t end, start, length;

	state->segments = 1;
	if (state->kind != PIER_HIP_VIRTUAL)
		return;
	for (end = memory->address + memory->length; end < wanted; end = start + length) {
		if (!is_next(state->hip, end, state->device) ||
		    !pier_hip_read_segment(state->hip, end, &start, &length) ||
		    start != end)
			break;
		state->segments++;
		memory->length += length;
	}
}

/*
 * Runtime::DmaBufExport() in ROCr knows allocations only, and none of what
 * hsa_amd_vmem_map() mapped. The handle of such memory is found by the first address of
 * its mapping (Runtime::VMemoryRetainAllocHandle()). Its dma-buf is all of the
 * allocation, which is mapped from offset 0 on: hipMemMap() accepts no other. The release
 * undoes the retain alone; mappings and the dma-buf keep the memory.
 */
unsigned int pier_hip_export_segment(const struct pier_hip *hip, uint64_t address,
				     uint64_t length, int *ret_fd, uint64_t *ret_offset)
{
	struct pier_hsa_vmem_handle handle = { 0 };
	uint64_t start, size;
	unsigned int status;

	if (!pier_hip_read_segment(hip, address, &start, &size) ||
	    !pier_range_fits(address - start, length, size))
		return PIER_HSA_INVALID_ALLOCATION;
	status = hip->hsa_amd_vmem_retain_alloc_handle(&handle, (void *)(uintptr_t)start);
	if (status != PIER_HSA_SUCCESS)
		return status;
	status = hip->hsa_amd_vmem_export_shareable_handle(ret_fd, handle, 0);
	hip->hsa_amd_vmem_handle_release(handle);
	*ret_offset = address - start;
	return status;
}

int pier_hip_segment(const struct pier_memory *memory, uint64_t address,
		     uint64_t *ret_start, uint64_t *ret_length)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_saved saved;
	int result;

	if (state->kind != PIER_HIP_VIRTUAL) {
		*ret_start = memory->address;
		*ret_length = memory->length;
		return 0;
	}
	result = pier_hip_enter_memory(state, &saved);
	if (result == 0 &&
	    !pier_hip_read_segment(state->hip, address, ret_start, ret_length))
		result = pier_fail(EFAULT, "nothing is mapped at %#llx any more",
				   (unsigned long long)address);
	pier_hip_leave(state->hip, &saved);
	return result;
}

/*
 * Recognise pointers. HSA reports which call made the memory and on which agent, with
 * numbers that are the same in all versions. HIP reports the bounds, because HSA's bounds
 * of mapped memory are wrong (VMemoryPtrInfo() in ROCr takes the pointer for the base),
 * and HIP's own facts: managed memory, the device's ordinal.
 */

/*
 * Memory of a pool is what the pool is made of: memory of hipMalloc(), or since 2025
 * pieces of memory that is mapped (MemoryPool::AllocateMemory() in clr's
 * hip_mempool_impl.cpp). clr does not report pools: HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
 * is not supported.
 */
static enum pier_hip_kind find_kind(const struct pier_hip *hip, uint64_t address,
				    const struct pier_hsa_pointer_info *info)
{
	bool managed = false;

	if (hip->hipPointerGetAttribute(&managed, PIER_HIP_IS_MANAGED,
					(void *)(uintptr_t)address) == PIER_HIP_SUCCESS &&
	    managed)
		return PIER_HIP_MANAGED;
	if (pier_hip_is_mapped(info))
		return PIER_HIP_VIRTUAL;
	switch (info->type) {
	case PIER_HSA_POINTER_LOCKED:
		return PIER_HIP_REGISTERED;
	case PIER_HSA_POINTER_GRAPHICS:
		return PIER_HIP_GRAPHICS;
	case PIER_HSA_POINTER_IPC:
		return PIER_HIP_IPC;
	}
	if (info->type == PIER_HSA_POINTER_HSA && !pier_hip_is_on_gpu(hip, info))
		return PIER_HIP_HOST;
	return info->global_flags & PIER_HSA_FINE_GRAINED ? PIER_HIP_FINE
							  : PIER_HIP_DEVICE;
}

/*
 * HIP reports the requested size. The allocation has whole pages
 * (Runtime::AllocateMemory() rounds up), and ROCr exports any of them.
 */
static uint64_t whole_pages(enum pier_hip_kind kind, uint64_t base, uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rounded;

	if (pier_hip_on_host(kind) || base % page ||
	    !pier_round_up_u64(size, page, &rounded))
		return size;
	return rounded;
}

static int find_bounds(const struct pier_hip *hip, uint64_t address,
		       const struct pier_hsa_pointer_info *info, void **ret_base,
		       size_t *ret_size)
{
	unsigned int error;

	if (info->type == PIER_HSA_POINTER_LOCKED) {
		*ret_base = info->host_base;
		*ret_size = info->length;
		return 0;
	}
	error = hip->hipMemGetAddressRange(ret_base, ret_size,
					   (void *)(uintptr_t)address);
	/*
	 * If HMM lets devices reach all memory of the process, clr reports memory that it
	 * has not allocated as part of one object, which begins at kArenaMemoryPtr
	 * (0x100) and has no end.
	 */
	if (error == PIER_HIP_SUCCESS)
		return *ret_size == SIZE_MAX ? -ENOENT : 0;
	/*
	 * Memory of a GPU that HIP does not know (a library has it from HSA) is not host
	 * memory.
	 */
	if (pier_hip_errno(error) == EINVAL && info->type == PIER_HSA_POINTER_HSA &&
	    pier_hip_is_on_gpu(hip, info) &&
	    pier_range_fits(address - (uint64_t)(uintptr_t)info->agent_base, 1,
			    info->length)) {
		*ret_base = info->agent_base;
		*ret_size = info->length;
		return 0;
	}
	if (info->type == PIER_HSA_POINTER_UNKNOWN || pier_hip_errno(error) == EINVAL ||
	    pier_hip_errno(error) == EFAULT)
		return -ENOENT;
	return pier_hip_check(hip, error, "asking for the allocation at %#llx",
			      (unsigned long long)address);
}

static int describe_pointer(const struct pier_hip *hip, uint64_t address, uint64_t length,
			    const struct pier_hsa_pointer_info *info,
			    struct pier_memory *ret_memory)
{
	struct pier_hip_memory *state;
	uint64_t end;
	void *base = NULL;
	size_t size = 0;
	int result = find_bounds(hip, address, info, &base, &size);

	if (result != 0)
		return result;
	state = calloc(1, sizeof(*state));
	if (!state)
		return pier_fail(ENOMEM, "no memory for the description of memory");
	state->hip = hip;
	state->kind = find_kind(hip, address, info);
	read_number(hip, (uint64_t)(uintptr_t)base, &state->number);
	/* HIP returns -2 for memory of no device. */
	if (hip->hipPointerGetAttribute(&state->device, PIER_HIP_DEVICE_ORDINAL,
					(void *)(uintptr_t)address) != PIER_HIP_SUCCESS ||
	    state->device < 0)
		state->device = 0;
	if (!pier_hip_on_host(state->kind))
		state->flush = pier_hip_flush_register(hip, state->device);
	*ret_memory = (struct pier_memory){
		.size = sizeof(struct pier_memory),
		.address = (uint64_t)(uintptr_t)base,
		.length = whole_pages(state->kind, (uint64_t)(uintptr_t)base, size),
		.cpu = pier_hip_on_host(state->kind) ? base : NULL,
		.state = state,
	};
	if (!pier_add_u64(address, length, &end))
		end = address;
	add_segments(ret_memory, end);
	return 0;
}

/*
 * Memory that hipHostRegister() locked may lie within a larger piece of host memory. It
 * counts as HIP's only if the wanted range lies inside the locked one.
 */
static bool leaves_locked_range(const struct pier_hsa_pointer_info *info,
				uint64_t address, uint64_t length)
{
	uint64_t base = (uint64_t)(uintptr_t)info->host_base;

	return info->type == PIER_HSA_POINTER_LOCKED &&
	       (address < base || !pier_range_fits(address - base, length, info->length));
}

int pier_hip_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	const struct pier_hip *hip = pier_hip_opened();
	struct pier_hsa_pointer_info info;
	struct pier_hip_saved saved;
	int result;

	if (!hip || pier_hip_inherited(hip) || !pier_hip_ask_hsa(hip, address, &info) ||
	    leaves_locked_range(&info, address, length))
		return -ENOENT;
	result = pier_hip_enter(hip, -1, &saved);
	if (result == 0)
		result = describe_pointer(hip, address, length, &info, ret_memory);
	pier_hip_leave(hip, &saved);
	return result;
}

void pier_hip_release(struct pier_memory *memory)
{
	free(memory->state);
}

int pier_hip_identity(uint64_t address, uint64_t *ret_identity)
{
	const struct pier_hip *hip = pier_hip_opened();
	struct pier_hsa_pointer_info info;
	struct pier_hip_saved saved;
	uint64_t number;

	if (!hip || pier_hip_inherited(hip) || !pier_hip_ask_hsa(hip, address, &info))
		return -ENOENT;
	pier_hip_enter(hip, -1, &saved);
	read_number(hip, address, &number);
	pier_hip_leave(hip, &saved);
	if (number == 0)
		return -ENOENT;
	*ret_identity = number;
	return 0;
}

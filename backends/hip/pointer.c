/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hip.h"
#include "core/checked.h"
#include "core/error.h"

/*
 * Whose a pointer is. HSA tells who made the memory and on which agent, by numbers that
 * no version changed; HIP tells the bounds, since HSA gives those of mapped memory
 * wrongly (VMemoryPtrInfo() in ROCr takes the pointer for the base), and what is its
 * own: managed memory, pools, and which of its devices it is.
 */

#define OTHERWISE                                                                        \
	"allocate what the NIC shall reach with hipMalloc() or pier_buffer_alloc(), or " \
	"allow staging"

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
	[PIER_HIP_POOL] = { "hipMallocAsync",
			    "it belongs to a pool, which may give it to others in the "
			    "order of a stream; " OTHERWISE },
	/* Newer versions of ROCr export it; the others say that they do not. */
	[PIER_HIP_VIRTUAL] = { "hipMemMap", "" },
	/*
	 * ROCr has no owner of it in its table (Runtime::IPCAttach()), by which
	 * Runtime::DmaBufExport() goes without looking.
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
		 kinds[state->kind].no_export);
	ret_facts->host = pier_hip_on_host(state->kind);
	ret_facts->moves = state->kind == PIER_HIP_MANAGED;
}

bool pier_hip_ask_hsa(const struct pier_hip *hip, uint64_t address,
		      struct pier_hsa_pointer_info *ret_info)
{
	unsigned int status;

	*ret_info = (struct pier_hsa_pointer_info){ .size = sizeof(*ret_info) };
	status = hip->hsa_amd_pointer_info((void *)(uintptr_t)address, ret_info, NULL,
					   NULL, NULL);
	if (status == PIER_HSA_NOT_INITIALIZED)
		return false;
	if (status != PIER_HSA_SUCCESS)
		ret_info->type = PIER_HSA_POINTER_UNKNOWN;
	return true;
}

static bool is_managed(const struct pier_hip *hip, uint64_t address)
{
	bool managed = false;

	return hip->hipPointerGetAttribute(&managed, PIER_HIP_IS_MANAGED,
					   (void *)(uintptr_t)address) ==
		       PIER_HIP_SUCCESS &&
	       managed;
}

/*
 * Where HIP tells. Most versions answer hipErrorNotSupported: then it is like memory of
 * hipMalloc(), which the pools of those versions are made of (hip_mempool_impl.cpp).
 */
static bool is_of_pool(const struct pier_hip *hip, uint64_t address)
{
	void *pool = NULL;

	return hip->hipPointerGetAttribute(&pool, PIER_HIP_POOL_HANDLE,
					   (void *)(uintptr_t)address) ==
		       PIER_HIP_SUCCESS &&
	       pool;
}

static bool is_on_gpu(const struct pier_hip *hip,
		      const struct pier_hsa_pointer_info *info)
{
	int device = PIER_HSA_DEVICE_GPU;

	return hip->hsa_agent_get_info(info->owner, PIER_HSA_AGENT_DEVICE, &device) !=
		       PIER_HSA_SUCCESS ||
	       device == PIER_HSA_DEVICE_GPU;
}

static enum pier_hip_kind find_kind(const struct pier_hip *hip, uint64_t address,
				    const struct pier_hsa_pointer_info *info)
{
	if (is_managed(hip, address))
		return PIER_HIP_MANAGED;
	switch (info->type) {
	case PIER_HSA_POINTER_LOCKED:
		return PIER_HIP_REGISTERED;
	case PIER_HSA_POINTER_GRAPHICS:
		return PIER_HIP_GRAPHICS;
	case PIER_HSA_POINTER_IPC:
		return PIER_HIP_IPC;
	case PIER_HSA_POINTER_VIRTUAL:
		return PIER_HIP_VIRTUAL;
	}
	if (info->type == PIER_HSA_POINTER_HSA && !is_on_gpu(hip, info))
		return PIER_HIP_HOST;
	if (is_of_pool(hip, address))
		return PIER_HIP_POOL;
	return info->global_flags & PIER_HSA_FINE_GRAINED ? PIER_HIP_FINE
							  : PIER_HIP_DEVICE;
}

/*
 * HIP remembers the size that was asked for; the allocation has whole pages, of which
 * ROCr exports any (Runtime::AllocateMemory() rounds up).
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
	 * Where HMM lets devices reach all of the process, clr takes what it has not
	 * allocated for a part of one object that begins at kArenaMemoryPtr (0x100) and
	 * has no end.
	 */
	if (error == PIER_HIP_SUCCESS)
		return *ret_size == SIZE_MAX ? -ENOENT : 0;
	if (info->type == PIER_HSA_POINTER_UNKNOWN || pier_hip_errno(error) == EINVAL ||
	    pier_hip_errno(error) == EFAULT)
		return -ENOENT;
	return pier_hip_fail(hip, error, "asking for the allocation at %#llx",
			     (unsigned long long)address);
}

volatile uint32_t *pier_hip_flush_register(const struct pier_hip *hip, uint64_t address)
{
	struct pier_hsa_hdp_flush flush = { NULL, NULL };
	struct pier_hsa_pointer_info info;

	if (!pier_hip_ask_hsa(hip, address, &info) ||
	    info.type == PIER_HSA_POINTER_UNKNOWN || !is_on_gpu(hip, &info))
		return NULL;
	if (hip->hsa_agent_get_info(info.owner, PIER_HSA_AGENT_HDP_FLUSH, &flush) !=
	    PIER_HSA_SUCCESS)
		return NULL;
	return flush.memory;
}

/* 0: there is no such memory, or HIP does not tell. */
static unsigned int read_number(const struct pier_hip *hip, uint64_t address,
				uint32_t *ret_number)
{
	*ret_number = 0;
	return hip->hipPointerGetAttribute(ret_number, PIER_HIP_BUFFER_ID,
					   (void *)(uintptr_t)address);
}

int pier_hip_check_live(const struct pier_memory *memory)
{
	const struct pier_hip_memory *state = memory->state;
	uint32_t number;
	unsigned int error;

	if (!state->number)
		return 0;
	error = read_number(state->hip, memory->address, &number);
	if (error == PIER_HIP_SUCCESS && number == state->number)
		return 0;
	/* What else is wrong is for who asked for more than this to find out. */
	if (error != PIER_HIP_SUCCESS && error != PIER_HIP_INVALID_VALUE &&
	    error != PIER_HIP_INVALID_DEVICE_POINTER)
		return 0;
	return pier_fail(EFAULT,
			 "the memory at %#llx was freed after it was wrapped: wrap what "
			 "is there now",
			 (unsigned long long)memory->address);
}

static int fill_in(const struct pier_hip *hip, uint64_t address, uint64_t length,
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
	/* Of memory that is no device's it says -2. */
	if (hip->hipPointerGetAttribute(&state->device, PIER_HIP_DEVICE_ORDINAL,
					(void *)(uintptr_t)address) != PIER_HIP_SUCCESS ||
	    state->device < 0)
		state->device = 0;
	if (!pier_hip_on_host(state->kind))
		state->flush = pier_hip_flush_register(hip, address);
	*ret_memory = (struct pier_memory){
		.address = (uint64_t)(uintptr_t)base,
		.length = whole_pages(state->kind, (uint64_t)(uintptr_t)base, size),
		.cpu = pier_hip_on_host(state->kind) ? base : NULL,
		.state = state,
	};
	/* Of what is of unknown length, the segment around it. */
	if (length == UINT64_MAX || !pier_add_u64(address, length, &end))
		end = address;
	pier_hip_add_segments(ret_memory, end);
	return 0;
}

/*
 * Host memory of somebody else's that hipHostRegister() locked may lie within more host
 * memory: it is HIP's only for who wants nothing around it.
 */
static bool is_more(const struct pier_hsa_pointer_info *info, uint64_t address,
		    uint64_t length)
{
	uint64_t base = (uint64_t)(uintptr_t)info->host_base;

	return info->type == PIER_HSA_POINTER_LOCKED &&
	       (address < base || !pier_range_fits(address - base, length, info->length));
}

int pier_hip_find_range(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	const struct pier_hip *hip = pier_hip_opened();
	struct pier_hsa_pointer_info info;
	struct pier_hip_scope scope;
	int result;

	if (!hip || pier_hip_inherited(hip) || !pier_hip_ask_hsa(hip, address, &info) ||
	    is_more(&info, address, length))
		return -ENOENT;
	result = pier_hip_enter(hip, -1, &scope);
	if (result == 0)
		result = fill_in(hip, address, length, &info, ret_memory);
	pier_hip_leave(hip, &scope);
	return result;
}

int pier_hip_find(uint64_t address, struct pier_memory *ret_memory)
{
	/* Nobody knows how much is wanted, so registered memory stays host memory. */
	return pier_hip_find_range(address, UINT64_MAX, ret_memory);
}

void pier_hip_release(struct pier_memory *memory)
{
	free(memory->state);
}

/*
 * The number that clr gives each of its memory objects, which only goes up
 * (amd::Memory::getUniqueId()), so memory that was freed and allocated anew has another.
 * That of a pool keeps its number from user to user, and its pages with it: a region of
 * it stays right.
 */
int pier_hip_identity(uint64_t address, uint64_t *ret_identity)
{
	const struct pier_hip *hip = pier_hip_opened();
	struct pier_hsa_pointer_info info;
	struct pier_hip_scope scope;
	uint32_t number;

	if (!hip || pier_hip_inherited(hip) || !pier_hip_ask_hsa(hip, address, &info))
		return -ENOENT;
	pier_hip_enter(hip, -1, &scope);
	read_number(hip, address, &number);
	pier_hip_leave(hip, &scope);
	if (number == 0)
		return -ENOENT;
	*ret_identity = number;
	return 0;
}

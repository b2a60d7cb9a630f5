/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory.h"

/* Memory as an application allocates it, with CUDA or HIP. */

enum {
	MISSING = 500, /* CUDA_ERROR_NOT_FOUND, hipErrorNotFound */
};

static unsigned int take_linear(uint64_t *ret_address)
{
	return gpu.both.alloc(ret_address, 2 * GPU_BLOCK);
}

static unsigned int give_linear(uint64_t address)
{
	return gpu.both.free(address);
}

static unsigned int take_fine(uint64_t *ret_address)
{
	const unsigned int fine_grained = 1; /* hipDeviceMallocFinegrained */

	return gpu.both.alloc_fine
		       ? gpu.both.alloc_fine(ret_address, KIND_LENGTH, fine_grained)
		       : MISSING;
}

static unsigned int take_managed(uint64_t *ret_address)
{
	return gpu.both.alloc_managed ? gpu.both.alloc_managed(ret_address, KIND_LENGTH,
							       GPU_MEM_ATTACH_GLOBAL)
				      : MISSING;
}

static unsigned int take_pool(uint64_t *ret_address)
{
	unsigned int error = MISSING;

	if (gpu.both.alloc_async && gpu.both.free_async)
		error = gpu.both.alloc_async(ret_address, KIND_LENGTH, NULL);
	return error ? error : gpu.both.synchronize(NULL);
}

static unsigned int give_pool(uint64_t address)
{
	unsigned int error = gpu.both.free_async(address, NULL);

	return error ? error : gpu.both.synchronize(NULL);
}

static unsigned int take_host(uint64_t *ret_address)
{
	return gpu.both.alloc_host(ret_address, KIND_LENGTH, CU_MEMHOSTALLOC_PORTABLE);
}

static unsigned int give_host(uint64_t address)
{
	return gpu.both.free_host(address);
}

static unsigned int take_registered(uint64_t *ret_address)
{
	void *memory = aligned_alloc(65536, KIND_LENGTH);
	unsigned int error;

	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(memory, 0, KIND_LENGTH);
	*ret_address = (uintptr_t)memory;
	error = gpu.both.register_host(memory, KIND_LENGTH, CU_MEMHOSTREGISTER_PORTABLE);
	if (error)
		free(memory);
	return error;
}

static unsigned int give_registered(uint64_t address)
{
	void *memory = (void *)(uintptr_t)address;
	unsigned int error = gpu.both.unregister_host(memory);

	free(memory);
	return error;
}

/* hipMemAllocationProp and hipMemAccessDesc have CUDA's layout and values. */
static unsigned int map_segment(uint64_t address, bool rdma)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu.device },
		.allocFlags.gpuDirectRDMACapable = rdma,
	};
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	uint64_t handle;
	unsigned int error = gpu.both.create(&handle, GPU_BLOCK, &prop, 0);

	if (!error)
		error = gpu.both.map(address, GPU_BLOCK, 0, handle, 0);
	if (!error)
		error = gpu.both.release(handle);
	return error ? error : gpu.both.set_access(address, GPU_BLOCK, &access, 1);
}

static unsigned int map_two(uint64_t *ret_address, bool rdma)
{
	unsigned int error = MISSING;

	if (gpu.both.reserve && gpu.both.create && gpu.both.map)
		error = gpu.both.reserve(ret_address, 2 * GPU_BLOCK, 0, 0, 0);
	if (!error)
		error = map_segment(*ret_address, rdma);
	return error ? error : map_segment(*ret_address + GPU_BLOCK, rdma);
}

static unsigned int take_vmm(uint64_t *ret_address)
{
	return map_two(ret_address, true);
}

static unsigned int take_vmm_plain(uint64_t *ret_address)
{
	return map_two(ret_address, false);
}

static unsigned int give_vmm(uint64_t address)
{
	unsigned int error = gpu.both.unmap(address, GPU_BLOCK);

	if (!error)
		error = gpu.both.unmap(address + GPU_BLOCK, GPU_BLOCK);
	return error ? error : gpu.both.unreserve(address, 2 * GPU_BLOCK);
}

static struct {
	pid_t process; /* of the memory's owner */
	int stop;      /* closed: it ends */
} owner;

/* The owner writes its handle to standard output, and keeps the memory until told. */
int kind_own_shared(void)
{
	struct gpu_ipc handle;
	uint64_t address;
	char end;

	gpu_open();
	gpu_push();
	if (take_linear(&address) || gpu.both.get_ipc(&handle, address) ||
	    write(STDOUT_FILENO, &handle, sizeof(handle)) != sizeof(handle))
		return 1;
	return read(STDIN_FILENO, &end, 1) ? 1 : 0;
}

static int start_owner(struct gpu_ipc *ret_handle)
{
	char name[] = "gpu_kinds", option[] = KIND_OWN;
	char *argv[] = { name, option, NULL };
	posix_spawn_file_actions_t files;
	int in[2], out[2], error;
	ssize_t length;

	if (pipe(in) || pipe(out))
		return -1;
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
	/* Otherwise the owner would keep its own input open. */
	posix_spawn_file_actions_addclose(&files, in[1]);
	error = posix_spawn(&owner.process, "/proc/self/exe", &files, NULL, argv,
			    environ);
	posix_spawn_file_actions_destroy(&files);
	close(in[0]);
	close(out[1]);
	owner.stop = in[1];
	length = error ? -1 : read(out[0], ret_handle, sizeof(*ret_handle));
	close(out[0]);
	return length == sizeof(*ret_handle) ? 0 : -1;
}

static unsigned int end_owner(void)
{
	int status = 1;

	close(owner.stop);
	return waitpid(owner.process, &status, 0) == owner.process && status == 0
		       ? 0
		       : MISSING;
}

static unsigned int take_shared(uint64_t *ret_address)
{
	const unsigned int lazy_peer_access = 1;
	struct gpu_ipc handle;
	unsigned int error;

	if (!gpu.both.get_ipc || !gpu.both.open_ipc || !gpu.both.close_ipc)
		return MISSING;
	error = start_owner(&handle)
			? MISSING
			: gpu.both.open_ipc(ret_address, handle, lazy_peer_access);
	if (error)
		end_owner();
	return error;
}

static unsigned int give_shared(uint64_t address)
{
	unsigned int error = gpu.both.close_ipc(address);

	return end_owner() ? MISSING : error;
}

/* ROCr's Runtime::DmaBufExport() reads the owner of shared memory, which has none. */
#define HARMS_HIP .unasked = "hip"

const struct kind kinds[] = {
	{ "linear memory",
	  NULL,
	  take_linear,
	  give_linear,
	  { "cuMemAlloc", "hipMalloc" },
	  .length = 2 * GPU_BLOCK },
	{ "fine-grained memory",
	  "hip",
	  take_fine,
	  give_linear,
	  { NULL, "fine-grained" },
	  .length = KIND_LENGTH },
	{ "managed memory",
	  NULL,
	  take_managed,
	  give_linear,
	  { "managed memory", "managed memory" },
	  .length = KIND_LENGTH,
	  .attribute = GPU_ATTRIBUTE_MANAGED_MEMORY },
	/* HIP's pools are of hipMalloc(), or mapped like memory of hipMemMap(). */
	{ "a stream's pool",
	  NULL,
	  take_pool,
	  give_pool,
	  { "stream-ordered pool", "hipM" },
	  .length = KIND_LENGTH,
	  .attribute = GPU_ATTRIBUTE_MEMORY_POOLS },
	{ "VMM, two segments",
	  NULL,
	  take_vmm,
	  give_vmm,
	  { "VMM", "hipMemMap" },
	  .length = 2 * GPU_BLOCK,
	  .attribute = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED },
	{ "VMM without gpuDirectRDMACapable",
	  NULL,
	  take_vmm_plain,
	  give_vmm,
	  { "VMM", "hipMemMap" },
	  .length = 2 * GPU_BLOCK,
	  .attribute = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED },
	{ "memory of another process",
	  NULL,
	  take_shared,
	  give_shared,
	  { "", "memory of another process" },
	  .length = 2 * GPU_BLOCK,
	  HARMS_HIP },
	{ "page-locked host memory",
	  NULL,
	  take_host,
	  give_host,
	  { "page-locked host", "page-locked host" },
	  .length = KIND_LENGTH,
	  .host = true },
	{ "registered host memory",
	  NULL,
	  take_registered,
	  give_registered,
	  { "page-locked host", "registered host" },
	  .length = KIND_LENGTH,
	  .host = true,
	  .plain = true },
	{ NULL },
};

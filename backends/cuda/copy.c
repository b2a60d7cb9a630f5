/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "copy.h"
#include "error.h"
#include "identity.h"

/* `host` to or from the device's address, or else zeros to there. */
struct copy {
	enum {
		WRITE,
		READ,
		CLEAR
	} direction;
	uint64_t address;
	uint64_t length;
	void *host;
};

static CUresult start_copy(const struct pier_cuda *cuda, const struct copy *copy,
			   CUstream stream)
{
	switch (copy->direction) {
	case WRITE:
		return cuda->call.cuMemcpyHtoDAsync(copy->address, copy->host,
						    copy->length, stream);
	case READ:
		return cuda->call.cuMemcpyDtoHAsync(copy->host, copy->address,
						    copy->length, stream);
	default:
		return cuda->call.cuMemsetD8Async(copy->address, 0, copy->length, stream);
	}
}

/*
 * In a stream of pier's: in the default one it would wait for the application's kernels,
 * of which one may be waiting for these bytes.
 */
static int run_copy(const struct pier_cuda_memory *memory, const struct copy *copy)
{
	static const char *const words[][2] = {
		[WRITE] = { "copying", "to" },
		[READ] = { "copying", "from" },
		[CLEAR] = { "clearing", "at" },
	};
	struct pier_cuda *cuda = memory->cuda;
	CUstream stream;
	CUresult error;
	int result = pier_cuda_take_stream(cuda, memory->device, memory->context,
					   &stream);

	if (result != 0)
		return result;
	error = start_copy(cuda, copy, stream);
	if (error == CUDA_SUCCESS)
		error = cuda->call.cuStreamSynchronize(stream);
	pier_cuda_put_stream(cuda, memory->context, stream);
	if (error == CUDA_SUCCESS)
		return 0;
	return pier_cuda_fail(cuda, error,
			      "%s %" PRIu64 " bytes %s %#" PRIx64 " of CUDA device %d",
			      words[copy->direction][0], copy->length,
			      words[copy->direction][1], copy->address, memory->device);
}

int pier_cuda_clear(const struct pier_cuda_memory *memory)
{
	struct copy copy = { CLEAR, memory->address, memory->length, NULL };

	return run_copy(memory, &copy);
}

static int run_live_copy(const struct pier_cuda_memory *memory, const struct copy *copy)
{
	struct pier_cuda_scope scope;
	int result = pier_cuda_enter_memory(memory, &scope);

	if (result != 0)
		return result;
	result = pier_cuda_check_live(memory);
	if (result == 0)
		result = run_copy(memory, copy);
	pier_cuda_leave(memory->cuda, &scope);
	return result;
}

int pier_cuda_copy_to(const struct pier_memory *memory, uint64_t offset,
		      const void *source, uint64_t length)
{
	const struct pier_cuda_memory *state = memory->state;
	struct copy copy = { WRITE, state->address + offset, length, (void *)source };

	if (!memory->cpu)
		return run_live_copy(state, &copy);
	memcpy((char *)memory->cpu + offset, source, length);
	return 0;
}

int pier_cuda_copy_from(const struct pier_memory *memory, uint64_t offset,
			void *destination, uint64_t length)
{
	const struct pier_cuda_memory *state = memory->state;
	struct copy copy = { READ, state->address + offset, length, destination };

	if (!memory->cpu)
		return run_live_copy(state, &copy);
	memcpy(destination, (const char *)memory->cpu + offset, length);
	return 0;
}

int pier_cuda_lock_host(const struct pier_memory *memory, void *addr, uint64_t length)
{
	struct pier_cuda_scope scope;
	const struct pier_cuda_memory *state = memory->state;
	struct pier_cuda *cuda = state->cuda;
	CUresult error;
	int result = pier_cuda_enter_memory(state, &scope);

	if (result != 0)
		return result;
	error = cuda->call.cuMemHostRegister(addr, length, CU_MEMHOSTREGISTER_PORTABLE);
	if (error != CUDA_SUCCESS)
		result = pier_cuda_fail(cuda, error,
					"cuMemHostRegister of %" PRIu64
					" bytes at %p with CUDA device %d",
					length, addr, state->device);
	pier_cuda_leave(cuda, &scope);
	return result;
}

void pier_cuda_unlock_host(const struct pier_memory *memory, void *addr)
{
	struct pier_cuda_scope scope;
	const struct pier_cuda_memory *state = memory->state;

	if (pier_cuda_enter_memory(state, &scope) != 0)
		return;
	state->cuda->call.cuMemHostUnregister(addr);
	pier_cuda_leave(state->cuda, &scope);
}

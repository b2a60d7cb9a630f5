/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "core/error.h"
#include "driver.h"
#include "memory.h"

/*
 * Copy between `host` and the device's address, or from another device address to it, or
 * fill the device's memory with zeros.
 */
struct copy {
	enum {
		WRITE,
		READ,
		CLEAR,
		MOVE
	} direction;
	uint64_t address;
	uint64_t length;
	void *host;
	uint64_t source; /* of MOVE */
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
	case MOVE:
		return cuda->call.cuMemcpyDtoDAsync(copy->address, copy->source,
						    copy->length, stream);
	default:
		return cuda->call.cuMemsetD8Async(copy->address, 0, copy->length, stream);
	}
}

static int check_copy(const struct pier_cuda_memory *memory, CUresult error,
		      const struct copy *copy)
{
	static const char *const words[][2] = {
		[WRITE] = { "copying", "to" },
		[READ] = { "copying", "from" },
		[CLEAR] = { "clearing", "at" },
		[MOVE] = { "copying", "to" },
	};

	return pier_cuda_check(memory->cuda, error,
			       "%s %" PRIu64 " bytes %s %#" PRIx64 " of CUDA device %d",
			       words[copy->direction][0], copy->length,
			       words[copy->direction][1], copy->address, memory->device);
}

/*
 * Use a stream of pier's own. In the default stream the copy would wait for the
 * application's kernels, and one of those may wait for these bytes.
 */
static int run_copy(const struct pier_cuda_memory *memory, const struct copy *copy)
{
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
	return check_copy(memory, error, copy);
}

int pier_cuda_clear(const struct pier_cuda_memory *memory)
{
	struct copy copy = { CLEAR, memory->address, memory->length, NULL, 0 };

	return run_copy(memory, &copy);
}

static int run_live_copy(const struct pier_cuda_memory *memory, const struct copy *copy)
{
	struct pier_cuda_saved saved;
	int result = pier_cuda_enter_live(memory, &saved);

	if (result == 0)
		result = run_copy(memory, copy);
	pier_cuda_leave(memory->cuda, &saved);
	return result;
}

static int copy_range(const struct pier_memory *memory, bool to_host, uint64_t offset,
		      void *host, uint64_t length)
{
	const struct pier_cuda_memory *state = memory->state;
	struct copy copy = { to_host ? READ : WRITE, state->address + offset, length,
			     host, 0 };
	char *cpu = memory->cpu;

	if (!cpu)
		return run_live_copy(state, &copy);
	cpu += offset;
	memcpy(to_host ? host : cpu, to_host ? cpu : host, length);
	return 0;
}

int pier_cuda_copy_to(const struct pier_memory *memory, uint64_t offset,
		      const void *source, uint64_t length)
{
	return copy_range(memory, false, offset, (void *)source, length);
}

int pier_cuda_copy_from(const struct pier_memory *memory, uint64_t offset,
			void *destination, uint64_t length)
{
	return copy_range(memory, true, offset, destination, length);
}

/*
 * Memory of another process is mapped in one context, so the copy runs there. With
 * unified addressing the driver knows both devices by their addresses; UCX uses the same
 * call (uct_cuda_ipc_post_cuda_async_copy() in cuda_ipc_ep.c).
 */
int pier_cuda_copy_between(const struct pier_memory *to, uint64_t to_offset,
			   const struct pier_memory *from, uint64_t from_offset,
			   uint64_t length)
{
	const struct pier_cuda_memory *target = to->state, *source = from->state;
	bool is_opened = target->kind == PIER_CUDA_OPENED;
	const struct pier_cuda_memory *other = is_opened ? source : target;
	struct copy copy = { MOVE, target->address + to_offset, length, NULL,
			     source->address + from_offset };
	int result = pier_cuda_check_live(other);

	return result ? result : run_live_copy(is_opened ? target : source, &copy);
}

/* A copy that copy_start() has put into a stream, with an event behind it. */
struct started_copy {
	const struct pier_cuda_memory *memory;
	struct copy copy;
	CUevent event;
};

/*
 * Put a copy and its event into a stream. cuEventRecord() captures the work that is in
 * the stream at the call, so work that follows does not delay the event.
 */
static CUresult queue_copy(struct started_copy *started, CUstream stream)
{
	const struct pier_cuda *cuda = started->memory->cuda;
	CUresult error = cuda->call.cuEventCreate(
		&started->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);

	if (error != CUDA_SUCCESS)
		return error;
	error = start_copy(cuda, &started->copy, stream);
	if (error == CUDA_SUCCESS) {
		error = cuda->call.cuEventRecord(started->event, stream);
		/* The caller may reuse its memory after an error. */
		if (error != CUDA_SUCCESS)
			cuda->call.cuStreamSynchronize(stream);
	}
	if (error != CUDA_SUCCESS)
		cuda->call.cuEventDestroy(started->event);
	return error;
}

/*
 * With the context entered. cuStreamDestroy() of pier's own stream does not wait: the
 * driver releases it when its work is done.
 */
static int start_in_stream(struct started_copy *started, CUstream stream)
{
	const struct pier_cuda_memory *memory = started->memory;
	bool own = !stream;
	CUresult error;
	int result = 0;

	if (own)
		result = pier_cuda_take_stream(memory->cuda, memory->device,
					       memory->context, &stream);
	if (result != 0)
		return result;
	error = queue_copy(started, stream);
	if (own)
		pier_cuda_put_stream(memory->cuda, memory->context, stream);
	return check_copy(memory, error, &started->copy);
}

/* The CPU copies memory that it reaches, after the work of the stream. */
static int wait_for_stream(const struct pier_cuda_memory *memory, CUstream stream)
{
	const struct pier_cuda *cuda = memory->cuda;
	struct pier_cuda_saved saved;
	int result = pier_cuda_enter_memory(memory, &saved);

	if (result == 0)
		result = pier_cuda_check(cuda, cuda->call.cuStreamSynchronize(stream),
					 "waiting for a stream of CUDA device %d",
					 memory->device);
	pier_cuda_leave(memory->cuda, &saved);
	return result;
}

int pier_cuda_copy_start(const struct pier_memory *memory,
			 const struct pier_backend_copy *copy, void **ret_copy)
{
	const struct pier_cuda_memory *state = memory->state;
	struct pier_cuda_saved saved;
	struct started_copy *started;
	int result;

	if (memory->cpu) {
		result = copy->stream ? wait_for_stream(state, copy->stream) : 0;
		return result == 0 ? copy_range(memory, copy->to_host, copy->offset,
						copy->host, copy->length)
				   : result;
	}
	started = malloc(sizeof(*started));
	if (!started)
		return pier_fail(ENOMEM, "no memory for a copy's description");
	*started = (struct started_copy){
		.memory = state,
		.copy = { copy->to_host ? READ : WRITE, state->address + copy->offset,
			  copy->length, copy->host, 0 },
	};
	result = pier_cuda_enter_live(state, &saved);
	if (result == 0)
		result = start_in_stream(started, copy->stream);
	pier_cuda_leave(state->cuda, &saved);
	if (result == 0)
		*ret_copy = started;
	else
		free(started);
	return result;
}

/* Not ready: nothing has changed. In all other cases the event is gone. */
static CUresult query_event(const struct pier_cuda *cuda, CUevent event)
{
	CUresult error = cuda->call.cuEventQuery(event);

	if (error == CUDA_ERROR_NOT_READY)
		return error;
	/* Nothing of a copy that failed may be under way. */
	if (error != CUDA_SUCCESS)
		cuda->call.cuEventSynchronize(event);
	cuda->call.cuEventDestroy(event);
	return error;
}

int pier_cuda_copy_query(void *copy)
{
	struct started_copy *started = copy;
	const struct pier_cuda_memory *memory = started->memory;
	struct pier_cuda_saved saved;
	CUresult error = CUDA_SUCCESS;
	/* It fails if the context was destroyed, and its streams and events with it. */
	int result = pier_cuda_enter_memory(memory, &saved);

	if (result == 0)
		error = query_event(memory->cuda, started->event);
	pier_cuda_leave(memory->cuda, &saved);
	if (error == CUDA_ERROR_NOT_READY)
		return 0;
	if (result == 0)
		result = check_copy(memory, error, &started->copy);
	free(started);
	return result == 0 ? 1 : result;
}

int pier_cuda_lock_host(const struct pier_memory *memory, void *addr, uint64_t length)
{
	struct pier_cuda_saved saved;
	const struct pier_cuda_memory *state = memory->state;
	struct pier_cuda *cuda = state->cuda;
	int result = pier_cuda_enter_memory(state, &saved);

	if (result == 0)
		result = pier_cuda_check(
			cuda,
			cuda->call.cuMemHostRegister(addr, length,
						     CU_MEMHOSTREGISTER_PORTABLE),
			"cuMemHostRegister of %" PRIu64
			" bytes at %p with CUDA device %d",
			length, addr, state->device);
	pier_cuda_leave(cuda, &saved);
	return result;
}

void pier_cuda_unlock_host(const struct pier_memory *memory, void *addr)
{
	struct pier_cuda_saved saved;
	const struct pier_cuda_memory *state = memory->state;

	if (pier_cuda_enter_memory(state, &saved) == 0)
		state->cuda->call.cuMemHostUnregister(addr);
	pier_cuda_leave(state->cuda, &saved);
}

static int flush_device(const struct pier_cuda_memory *memory)
{
	struct pier_cuda_saved saved;
	struct pier_cuda *cuda = memory->cuda;
	int result = PIER_CUDA_NEED(cuda, cuFlushGPUDirectRDMAWrites);

	if (result != 0)
		return result;
	result = pier_cuda_enter_memory(memory, &saved);
	if (result == 0)
		result = pier_cuda_check(
			cuda,
			cuda->call.cuFlushGPUDirectRDMAWrites(
				CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
				CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
			"cuFlushGPUDirectRDMAWrites of CUDA device %d", memory->device);
	pier_cuda_leave(cuda, &saved);
	return result;
}

static bool can_flush(const struct pier_cuda_memory *state)
{
	return pier_cuda_attribute(
		       state->cuda, state->device,
		       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
	       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
}

bool pier_cuda_flushes_alone(const struct pier_cuda_memory *memory)
{
	if (memory->on_no_device || pier_cuda_is_host(memory))
		return false;
	return can_flush(memory) ||
	       pier_cuda_attribute(memory->cuda, memory->device,
				   CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
		       CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

/*
 * An attribute reports whether the device's own kernels see a NIC's writes in order. The
 * library does not care for kernels on other devices: programs that read this memory over
 * NVLink order that themselves.
 */
int pier_cuda_flush(const struct pier_memory *memory,
		    const struct pier_backend_flush *range)
{
	const struct pier_cuda_memory *state = memory->state;
	const struct pier_cuda *cuda = state->cuda;
	int ordering = 0;
	CUresult error;

	if (pier_cuda_is_host(state) || range->read_back)
		return 0;
	/*
	 * This mapping goes through PCIe where the CPU is attached by NVLink-C2C. There
	 * the completion takes another way than the data and can overtake it, whatever
	 * the attribute reports: NCCL forces a flush by the NIC (ncclTopoNeedFlush() in
	 * paths.cc). The CPU's flush goes through C2C, too.
	 */
	if (range->mapping == PIER_MAPPING_PCIE)
		return PIER_BACKEND_READ_BACK;
	error = cuda->call.cuDeviceGetAttribute(
		&ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
		state->device);
	/* Before CUDA 11.3 the attribute does not exist, and the order is unknown. */
	if (error != CUDA_SUCCESS && error != CUDA_ERROR_INVALID_VALUE)
		return pier_cuda_check(cuda, error,
				       "asking CUDA device %d how it orders writes",
				       state->device);
	if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
		return 0;
	return can_flush(state) ? flush_device(state) : PIER_BACKEND_READ_BACK;
}

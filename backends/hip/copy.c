/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "core/error.h"
#include "device.h"
#include "load.h"
#include "memory.h"

/*
 * Copies use streams of pier's own, one for each device. In the default stream they would
 * wait for the application's kernels, and one of those may wait for these bytes.
 */

enum {
	MOST_KEPT = 64
};

static _Atomic(struct ihipStream_t *) kept[MOST_KEPT];

/* If two threads create a stream at once, the second destroys its own. */
static struct ihipStream_t *keep_stream(const struct pier_hip *hip, int device,
					struct ihipStream_t *stream)
{
	struct ihipStream_t *first = NULL;

	if (device >= MOST_KEPT ||
	    atomic_compare_exchange_strong(&kept[device], &first, stream))
		return stream;
	hip->hipStreamDestroy(stream);
	return first;
}

int pier_hip_take_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t **ret_stream)
{
	struct ihipStream_t *stream = device < MOST_KEPT ? atomic_load(&kept[device])
							 : NULL;
	int result;

	if (!stream) {
		result = pier_hip_check(hip,
					hip->hipStreamCreateWithFlags(
						&stream, PIER_HIP_STREAM_NON_BLOCKING),
					"making a stream on device %d", device);
		if (result != 0)
			return result;
		stream = keep_stream(hip, device, stream);
	}
	*ret_stream = stream;
	return 0;
}

bool pier_hip_put_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t *stream, unsigned int error)
{
	if (device >= MOST_KEPT) {
		/* hipStreamDestroy() may destroy a stream whose work is under way. */
		hip->hipStreamSynchronize(stream);
		hip->hipStreamDestroy(stream);
		return false;
	}
	/* clr detects destroyed streams (hip::isValid()). */
	if (error != PIER_HIP_CONTEXT_IS_DESTROYED && error != PIER_HIP_INVALID_HANDLE)
		return false;
	atomic_compare_exchange_strong(&kept[device], &stream, NULL);
	return true;
}

/*
 * Copy between `host` and the device's address, or fill the device's memory with zeros.
 */
struct copy {
	enum {
		WRITE,
		READ,
		CLEAR
	} direction;
	void *device;
	void *host;
	uint64_t length;
};

static unsigned int start_copy(const struct pier_hip *hip, const struct copy *copy,
			       struct ihipStream_t *stream)
{
	switch (copy->direction) {
	case WRITE:
		return hip->hipMemcpyAsync(copy->device, copy->host, copy->length,
					   PIER_HIP_HOST_TO_DEVICE, stream);
	case READ:
		return hip->hipMemcpyAsync(copy->host, copy->device, copy->length,
					   PIER_HIP_DEVICE_TO_HOST, stream);
	default:
		return hip->hipMemsetAsync(copy->device, 0, copy->length, stream);
	}
}

static int check_copy(const struct pier_hip_memory *state, unsigned int error,
		      const struct copy *copy)
{
	static const char *const words[][2] = {
		[WRITE] = { "copying", "to" },
		[READ] = { "copying", "from" },
		[CLEAR] = { "clearing", "on" },
	};

	return pier_hip_check(state->hip, error, "%s %llu bytes %s device %d",
			      words[copy->direction][0], (unsigned long long)copy->length,
			      words[copy->direction][1], state->device);
}

/* One HIP copy cannot cross segments: how much of [device, device + left) it can copy. */
static int measure_piece(const struct pier_hip_memory *state, const void *device,
			 uint64_t left, uint64_t *ret_length)
{
	uint64_t address = (uint64_t)(uintptr_t)device, start, length;

	*ret_length = left;
	if (state->segments <= 1)
		return 0;
	if (!pier_hip_read_segment(state->hip, address, &start, &length))
		return pier_fail(EFAULT, "nothing is mapped at %#llx any more",
				 (unsigned long long)address);
	length -= address - start;
	if (length < left)
		*ret_length = length;
	return 0;
}

/*
 * Put a copy into a stream, segment by segment.
 *
 * Returns an errno; with 0, HIP's error is in ret_error.
 */
static int queue_pieces(const struct pier_hip_memory *state, struct copy piece,
			struct ihipStream_t *stream, unsigned int *ret_error)
{
	uint64_t left = piece.length;
	int result = 0;

	*ret_error = PIER_HIP_SUCCESS;
	for (; result == 0 && *ret_error == PIER_HIP_SUCCESS && left > 0;
	     left -= piece.length) {
		result = measure_piece(state, piece.device, left, &piece.length);
		if (result == 0)
			*ret_error = start_copy(state->hip, &piece, stream);
		piece.device = (char *)piece.device + piece.length;
		if (piece.host)
			piece.host = (char *)piece.host + piece.length;
	}
	return result;
}

/*
 * Put a copy and the event behind it into a stream; without an event, wait for the copy.
 * Returns as queue_pieces().
 */
static int queue_copy(const struct pier_hip_memory *state, const struct copy *copy,
		      struct ihipStream_t *stream, struct ihipEvent_t *event,
		      unsigned int *ret_error)
{
	int result = queue_pieces(state, *copy, stream, ret_error);
	unsigned int ended;

	if (result == 0 && *ret_error == PIER_HIP_SUCCESS && event) {
		*ret_error = state->hip->hipEventRecord(event, stream);
		if (*ret_error == PIER_HIP_SUCCESS)
			return 0;
	}
	/* The caller may reuse its memory after an error. */
	ended = state->hip->hipStreamSynchronize(stream);
	if (*ret_error == PIER_HIP_SUCCESS)
		*ret_error = ended;
	return result;
}

/* In pier's own stream; a second time if hipDeviceReset() has destroyed it. */
static int queue_in_own_stream(const struct pier_hip_memory *state,
			       const struct copy *copy, struct ihipEvent_t *event,
			       unsigned int *ret_error)
{
	struct ihipStream_t *stream;
	bool gone = true;
	int result = 0;

	for (int tries = 0; result == 0 && gone && tries < 2; tries++) {
		result = pier_hip_take_stream(state->hip, state->device, &stream);
		if (result != 0)
			return result;
		result = queue_copy(state, copy, stream, event, ret_error);
		gone = pier_hip_put_stream(state->hip, state->device, stream, *ret_error);
	}
	return result;
}

static int run_copy(const struct pier_hip_memory *state, const struct copy *copy)
{
	unsigned int error = PIER_HIP_SUCCESS;
	int result = queue_in_own_stream(state, copy, NULL, &error);

	return result == 0 ? check_copy(state, error, copy) : result;
}

int pier_hip_clear(const struct pier_hip_memory *state, void *pointer, uint64_t length)
{
	struct copy copy = { CLEAR, pointer, NULL, length };

	return run_copy(state, &copy);
}

static int copy_range(const struct pier_memory *memory, bool to_host, uint64_t offset,
		      void *host, uint64_t length)
{
	const struct pier_hip_memory *state = memory->state;
	void *device = (void *)(uintptr_t)(memory->address + offset);
	struct copy copy = { to_host ? READ : WRITE, device, host, length };
	struct pier_hip_saved saved;
	int result;

	if (memory->cpu) {
		memcpy(to_host ? host : device, to_host ? device : host, length);
		return 0;
	}
	result = pier_hip_enter_live(memory, &saved);
	if (result == 0)
		result = run_copy(state, &copy);
	pier_hip_leave(state->hip, &saved);
	return result;
}

int pier_hip_copy_to(const struct pier_memory *memory, uint64_t offset,
		     const void *source, uint64_t length)
{
	return copy_range(memory, false, offset, (void *)(uintptr_t)source, length);
}

int pier_hip_copy_from(const struct pier_memory *memory, uint64_t offset,
		       void *destination, uint64_t length)
{
	return copy_range(memory, true, offset, destination, length);
}

/* A copy that copy_start() has put into a stream, with an event behind it. */
struct started_copy {
	const struct pier_hip_memory *state;
	struct copy copy;
	struct ihipEvent_t *event;
};

static int start_in_stream(const struct pier_memory *memory, struct started_copy *started,
			   struct ihipStream_t *stream)
{
	const struct pier_hip_memory *state = started->state;
	const struct pier_hip *hip = state->hip;
	const struct copy *copy = &started->copy;
	struct pier_hip_saved saved;
	unsigned int error = PIER_HIP_SUCCESS;
	int result = pier_hip_enter_live(memory, &saved);

	if (result == 0)
		error = hip->hipEventCreateWithFlags(
			&started->event,
			PIER_HIP_EVENT_DISABLE_TIMING | PIER_HIP_EVENT_BLOCKING_SYNC);
	if (result == 0 && error == PIER_HIP_SUCCESS) {
		result = stream ? queue_copy(state, copy, stream, started->event, &error)
				: queue_in_own_stream(state, copy, started->event,
						      &error);
		if (result != 0 || error != PIER_HIP_SUCCESS)
			hip->hipEventDestroy(started->event);
	}
	pier_hip_leave(hip, &saved);
	return result == 0 ? check_copy(state, error, copy) : result;
}

/* The CPU copies memory that it reaches, after the work of the stream. */
static int wait_for_stream(const struct pier_hip_memory *state,
			   struct ihipStream_t *stream)
{
	struct pier_hip_saved saved;
	int result = pier_hip_enter_memory(state, &saved);

	if (result == 0)
		result = pier_hip_check(
			state->hip, state->hip->hipStreamSynchronize(stream),
			"waiting for a stream of device %d", state->device);
	pier_hip_leave(state->hip, &saved);
	return result;
}

int pier_hip_copy_start(const struct pier_memory *memory,
			const struct pier_backend_copy *copy, void **ret_copy)
{
	const struct pier_hip_memory *state = memory->state;
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
		.state = state,
		.copy = { copy->to_host ? READ : WRITE,
			  (void *)(uintptr_t)(memory->address + copy->offset), copy->host,
			  copy->length },
	};
	result = start_in_stream(memory, started, copy->stream);
	if (result == 0)
		*ret_copy = started;
	else
		free(started);
	return result;
}

/* Not ready: nothing has changed. In all other cases the event is gone. */
static unsigned int query_event(const struct pier_hip *hip, struct ihipEvent_t *event)
{
	unsigned int error = hip->hipEventQuery(event);

	if (error == PIER_HIP_NOT_READY)
		return error;
	/* Nothing of a copy that failed may be under way. */
	if (error != PIER_HIP_SUCCESS)
		hip->hipEventSynchronize(event);
	hip->hipEventDestroy(event);
	return error;
}

int pier_hip_copy_query(void *copy)
{
	struct started_copy *started = copy;
	const struct pier_hip_memory *state = started->state;
	struct pier_hip_saved saved;
	unsigned int error;
	int result;

	/* A query needs no current device, so a failure of this does not matter. */
	pier_hip_enter(state->hip, state->device, &saved);
	error = query_event(state->hip, started->event);
	pier_hip_leave(state->hip, &saved);
	if (error == PIER_HIP_NOT_READY)
		return 0;
	result = check_copy(state, error, &started->copy);
	free(started);
	return result == 0 ? 1 : result;
}

int pier_hip_lock_host(const struct pier_memory *memory, void *addr, uint64_t length)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_saved saved;
	int result = pier_hip_enter_memory(state, &saved);

	if (result == 0)
		result = pier_hip_check(state->hip,
					state->hip->hipHostRegister(
						addr, length, PIER_HIP_REGISTER_PORTABLE),
					"locking %llu bytes at %p",
					(unsigned long long)length, addr);
	pier_hip_leave(state->hip, &saved);
	return result;
}

void pier_hip_unlock_host(const struct pier_memory *memory, void *addr)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_saved saved;

	if (pier_hip_inherited(state->hip))
		return;
	pier_hip_enter(state->hip, state->device, &saved);
	state->hip->hipHostUnregister(addr);
	pier_hip_leave(state->hip, &saved);
}

/*
 * The NIC's completion goes to the host and its writes to the device, so PCIe does not
 * order the two: only a read by the NIC waits for the writes. RCCL reads through the NIC
 * after each receive, on every AMD device (ncclTopoNeedFlush() is 1; ncclIbIflush()).
 *
 * Writes over PCIe then pass the device's host data path, which may hold them back. A
 * write to its register flushes it, and a read of the register waits for that: clr does
 * this for the CPU's writes (KernelArgImpl::DeviceKernelArgsHDP in rocvirtual.cpp), and
 * RCCL before a NIC reads (sendProxyProgress() in net.cc). A device that is coherent with
 * the CPU lacks the register (HSA_AMD_AGENT_INFO_HDP_FLUSH), and needs no such flush.
 *
 * Neither discards what the device's L2 caches hold. clr launches kernels with an acquire
 * of the agent's saved (AMD_OPT_FLUSH is 1 in flags.hpp), which does not reach them. They
 * drop the lines that PCIe writes if the device makes such requests coherent (LLVM's
 * AMDGPUUsage, memory model of gfx90a). A kernel that is running already may read older
 * bytes from its L1 caches, except of fine-grained memory.
 */
int pier_hip_flush(const struct pier_memory *memory,
		   const struct pier_backend_flush *range)
{
	const struct pier_hip_memory *state = memory->state;
	int result;

	if (pier_hip_on_host(state->kind))
		return 0;
	if (!range->read_back)
		return PIER_BACKEND_READ_BACK;
	if (!state->flush)
		return 0;
	result = pier_hip_check_owner(state->hip);
	if (result != 0)
		return result;
	/* Several threads may flush at once. */
	__atomic_store_n(state->flush, 1, __ATOMIC_RELAXED);
	(void)__atomic_load_n(state->flush, __ATOMIC_RELAXED);
	return 0;
}

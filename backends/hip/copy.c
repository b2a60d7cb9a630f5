/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "copy.h"
#include "device.h"
#include "error.h"
#include "load.h"
#include "stream.h"
#include "virtual.h"
#include "core/error.h"

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

static int try_copy(const struct pier_hip_memory *state, const struct copy *copy,
		    unsigned int *ret_error, bool *ret_gone)
{
	const struct pier_hip *hip = state->hip;
	struct ihipStream_t *stream = NULL;
	unsigned int error;
	int result = pier_hip_take_stream(hip, state->device, &stream);

	if (result != 0)
		return result;
	error = start_copy(hip, copy, stream);
	if (error == PIER_HIP_SUCCESS)
		error = hip->hipStreamSynchronize(stream);
	*ret_gone = pier_hip_put_stream(hip, state->device, stream, error);
	*ret_error = error;
	return 0;
}

static int run_copy(const struct pier_hip_memory *state, const struct copy *copy)
{
	static const char *const words[][2] = {
		[WRITE] = { "copying", "to" },
		[READ] = { "copying", "from" },
		[CLEAR] = { "clearing", "on" },
	};
	unsigned int error = PIER_HIP_SUCCESS;
	bool gone = false;
	int result = try_copy(state, copy, &error, &gone);

	if (result == 0 && gone)
		result = try_copy(state, copy, &error, &gone);
	if (result != 0 || error == PIER_HIP_SUCCESS)
		return result;
	return pier_hip_fail(state->hip, error, "%s %llu bytes %s device %d",
			     words[copy->direction][0], (unsigned long long)copy->length,
			     words[copy->direction][1], state->device);
}

int pier_hip_clear(const struct pier_hip_memory *state, void *pointer, uint64_t length)
{
	struct copy copy = { CLEAR, pointer, NULL, length };

	return run_copy(state, &copy);
}

/* One HIP copy cannot cross segments. */
static int copy_by_segments(const struct pier_hip_memory *state, struct copy copy)
{
	uint64_t left = copy.length, address, start, length;
	int result = 0;

	for (; result == 0 && left > 0; left -= copy.length) {
		address = (uint64_t)(uintptr_t)copy.device;
		if (!pier_hip_read_segment(state->hip, address, &start, &length))
			return pier_fail(EFAULT, "nothing is mapped at %#llx any more",
					 (unsigned long long)address);
		length -= address - start;
		copy.length = left < length ? left : length;
		result = run_copy(state, &copy);
		copy.device = (char *)copy.device + copy.length;
		copy.host = (char *)copy.host + copy.length;
	}
	return result;
}

static int run_live_copy(const struct pier_memory *memory, const struct copy *copy)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;
	int result;

	result = pier_hip_check_owner(state->hip);
	if (result != 0)
		return result;
	result = pier_hip_enter(state->hip, state->device, &scope);
	if (result == 0)
		result = pier_hip_check_live(memory);
	if (result == 0 && state->segments > 1)
		result = copy_by_segments(state, *copy);
	else if (result == 0)
		result = run_copy(state, copy);
	pier_hip_leave(state->hip, &scope);
	return result;
}

int pier_hip_copy_to(const struct pier_memory *memory, uint64_t offset,
		     const void *source, uint64_t length)
{
	void *device = (void *)(uintptr_t)(memory->address + offset);
	struct copy copy = { WRITE, device, (void *)(uintptr_t)source, length };

	if (!memory->cpu)
		return run_live_copy(memory, &copy);
	memcpy(device, source, length);
	return 0;
}

int pier_hip_copy_from(const struct pier_memory *memory, uint64_t offset,
		       void *destination, uint64_t length)
{
	void *device = (void *)(uintptr_t)(memory->address + offset);
	struct copy copy = { READ, device, destination, length };

	if (!memory->cpu)
		return run_live_copy(memory, &copy);
	memcpy(destination, device, length);
	return 0;
}

/*
 * Writes over PCIe pass the device's host data path, which may hold them back. A write to
 * its register flushes it, and a read of the register waits for that. clr does this for
 * the CPU's writes (KernelArgImpl::DeviceKernelArgsHDP), and RCCL for a NIC's. A kernel
 * that is launched afterwards begins with a system-scope acquire, so its caches hold
 * nothing older. A device that is coherent with the CPU lacks the register
 * (HSA_AMD_AGENT_INFO_HDP_FLUSH), and needs no flush. This does not wait for writes that
 * are still on their way from a NIC whose completion was seen: PCIe does not order them
 * with the CPU's read, unless both take the same path to the device.
 */
int pier_hip_flush(const struct pier_memory *memory,
		   const struct pier_backend_flush *range)
{
	const struct pier_hip_memory *state = memory->state;
	int result;

	(void)range; /* the register flushes all of a device */
	if (!state->flush)
		return 0;
	result = pier_hip_check_owner(state->hip);
	if (result != 0)
		return result;
	*state->flush = 1;
	(void)*state->flush;
	return 0;
}

int pier_hip_lock_host(const struct pier_memory *memory, void *addr, uint64_t length)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;
	unsigned int error;
	int result;

	if (pier_hip_inherited(state->hip))
		return pier_fail(EOPNOTSUPP, "HIP cannot be used after fork(2)");
	result = pier_hip_enter(state->hip, state->device, &scope);
	if (result == 0) {
		error = state->hip->hipHostRegister(addr, length,
						    PIER_HIP_REGISTER_PORTABLE);
		if (error != PIER_HIP_SUCCESS)
			result = pier_hip_fail(state->hip, error,
					       "locking %llu bytes at %p",
					       (unsigned long long)length, addr);
	}
	pier_hip_leave(state->hip, &scope);
	return result;
}

void pier_hip_unlock_host(const struct pier_memory *memory, void *addr)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;

	if (pier_hip_inherited(state->hip))
		return;
	pier_hip_enter(state->hip, state->device, &scope);
	state->hip->hipHostUnregister(addr);
	pier_hip_leave(state->hip, &scope);
}

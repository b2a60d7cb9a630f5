/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "copy.h"
#include "device.h"
#include "load.h"
#include "core/checked.h"
#include "core/error.h"

static int fail_unit(const char *unit)
{
	return pier_fail(
		EINVAL,
		"hip has the units N, N:host and N:fine, where N is the number of "
		"a device, but \"%s\" was asked for",
		unit);
}

/* A number that is too large for any device becomes INT_MAX. */
static int parse_unit(const char *unit, int *ret_device, enum pier_hip_kind *ret_kind)
{
	size_t digits = strspn(unit, "0123456789");
	unsigned long number;

	if (digits == 0 || (digits > 1 && unit[0] == '0'))
		return fail_unit(unit);
	if (unit[digits] == '\0')
		*ret_kind = PIER_HIP_DEVICE;
	else if (strcmp(unit + digits, ":host") == 0)
		*ret_kind = PIER_HIP_HOST;
	else if (strcmp(unit + digits, ":fine") == 0)
		*ret_kind = PIER_HIP_FINE;
	else
		return fail_unit(unit);
	number = strtoul(unit, NULL, 10);
	*ret_device = number < INT_MAX ? (int)number : INT_MAX;
	return 0;
}

static int check_device(const struct pier_hip *hip, const char *unit, int device)
{
	int count = 0, result = pier_hip_count_devices(hip, &count);

	if (result != 0 || device < count)
		return result;
	if (count == 1)
		return pier_fail(EINVAL,
				 "HIP has one device, 0, but \"%s\" was asked for", unit);
	return pier_fail(EINVAL, "HIP has %d devices, 0 to %d, but \"%s\" was asked for",
			 count, count - 1, unit);
}

static int fail_alloc(const struct pier_hip *hip, unsigned int error, uint64_t length,
		      const struct pier_hip_memory *state)
{
	size_t available = 0, total = 0;

	if (error == PIER_HIP_OUT_OF_MEMORY && state->kind != PIER_HIP_HOST &&
	    hip->hipMemGetInfo(&available, &total) == PIER_HIP_SUCCESS)
		return pier_fail(
			ENOMEM, "device %d has no %llu bytes: %zu of its %zu are free",
			state->device, (unsigned long long)length, available, total);
	return pier_hip_fail(hip, error, "allocating %llu bytes %s device %d",
			     (unsigned long long)length,
			     state->kind == PIER_HIP_HOST ? "of host memory for" : "on",
			     state->device);
}

static void free_pointer(const struct pier_hip *hip, enum pier_hip_kind kind,
			 void *pointer)
{
	if (kind == PIER_HIP_HOST)
		hip->hipHostFree(pointer);
	else
		hip->hipFree(pointer);
}

static int call_alloc(const struct pier_hip *hip, const struct pier_hip_memory *state,
		      uint64_t length, void **ret_pointer)
{
	unsigned int error;

	if (state->kind == PIER_HIP_FINE && !hip->hipExtMallocWithFlags)
		return pier_fail(EOPNOTSUPP,
				 "the HIP runtime %s has no hipExtMallocWithFlags, by "
				 "which fine-grained memory is allocated",
				 hip->path);
	if (state->kind == PIER_HIP_FINE)
		error = hip->hipExtMallocWithFlags(ret_pointer, length,
						   PIER_HIP_FINE_GRAINED);
	else if (state->kind == PIER_HIP_HOST)
		error = hip->hipHostMalloc(ret_pointer, length, 0);
	else
		error = hip->hipMalloc(ret_pointer, length);
	return error == PIER_HIP_SUCCESS ? 0 : fail_alloc(hip, error, length, state);
}

static int alloc_pages(struct pier_hip_memory *state, uint64_t length,
		       struct pier_memory *ret_memory)
{
	const struct pier_hip *hip = state->hip;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rounded;
	void *pointer = NULL;
	int result;

	if (!pier_round_up_u64(length, page, &rounded) || rounded > SIZE_MAX)
		return pier_fail(ENOMEM, "%llu bytes are more than there are addresses",
				 (unsigned long long)length);
	result = call_alloc(hip, state, rounded, &pointer);
	if (result != 0)
		return result;
	if (state->kind == PIER_HIP_HOST)
		memset(pointer, 0, rounded);
	else
		result = pier_hip_clear(state, pointer, rounded);
	if (result != 0) {
		free_pointer(hip, state->kind, pointer);
		return result;
	}
	if (state->kind != PIER_HIP_HOST)
		state->flush = pier_hip_flush_register(hip, state->device);
	*ret_memory = (struct pier_memory){
		.size = sizeof(struct pier_memory),
		.address = (uint64_t)(uintptr_t)pointer,
		.length = rounded,
		.cpu = state->kind == PIER_HIP_HOST ? pointer : NULL,
		.state = state,
	};
	return 0;
}

static int alloc_on_device(struct pier_hip_memory *state, const char *unit,
			   uint64_t length, struct pier_memory *ret_memory)
{
	const struct pier_hip *hip = state->hip;
	struct pier_hip_scope outer, inner;
	int result = pier_hip_enter(hip, -1, &outer);

	if (result == 0)
		result = check_device(hip, unit, state->device);
	if (result == 0) {
		result = pier_hip_enter(hip, state->device, &inner);
		if (result == 0)
			result = alloc_pages(state, length, ret_memory);
		pier_hip_leave(hip, &inner);
	}
	pier_hip_leave(hip, &outer);
	return result;
}

static int open_unit(const char *unit, struct pier_hip_memory *ret_memory)
{
	int result = parse_unit(unit, &ret_memory->device, &ret_memory->kind);

	return result == 0 ? pier_hip_open(&ret_memory->hip) : result;
}

int pier_hip_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_hip_memory opened = { .hip = NULL }, *state;
	int result;

	if (!unit)
		unit = "0";
	result = open_unit(unit, &opened);
	if (result != 0)
		return result;
	state = malloc(sizeof(*state));
	if (!state)
		return pier_fail(ENOMEM, "no memory for the description of memory");
	*state = opened;
	result = alloc_on_device(state, unit, length, ret_memory);
	if (result != 0)
		free(state);
	return result;
}

static int make_stream(const struct pier_hip *hip, int device)
{
	struct ihipStream_t *stream = NULL;
	struct pier_hip_scope scope;
	int result = pier_hip_enter(hip, device, &scope);

	if (result == 0)
		result = pier_hip_take_stream(hip, device, &stream);
	if (result == 0)
		pier_hip_put_stream(hip, device, stream, PIER_HIP_SUCCESS);
	pier_hip_leave(hip, &scope);
	return result;
}

/*
 * The slow parts of a first use: starting HIP, and pier's stream, for which clr makes a
 * hardware queue (Device::acquireQueue() in rocdevice.cpp). HIP has nothing like
 * CU_CTX_SYNC_MEMOPS, whose lock the first export in a CUDA context waits for.
 */
int pier_hip_warm_up(const char *unit)
{
	struct pier_hip_memory opened = { .hip = NULL };
	struct pier_hip_scope scope;
	int result;

	if (!unit)
		unit = "0";
	result = open_unit(unit, &opened);
	if (result != 0)
		return result;
	result = pier_hip_enter(opened.hip, -1, &scope);
	if (result == 0)
		result = check_device(opened.hip, unit, opened.device);
	if (result == 0)
		result = make_stream(opened.hip, opened.device);
	pier_hip_leave(opened.hip, &scope);
	return result;
}

void pier_hip_free(struct pier_memory *memory)
{
	struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;

	/*
	 * In a child of fork(2) the memory is the parent's: the driver maps nothing
	 * there.
	 */
	if (!pier_hip_inherited(state->hip)) {
		pier_hip_enter(state->hip, state->device, &scope);
		free_pointer(state->hip, state->kind, (void *)(uintptr_t)memory->address);
		pier_hip_leave(state->hip, &scope);
	}
	free(state);
}

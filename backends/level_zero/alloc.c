/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "copy.h"
#include "load.h"

/* The index of a unit, or -1; its kind follows. More than 9 digits are no device's. */
static long parse_index(const char *unit, const char **ret_kind)
{
	size_t digits = strspn(unit, "0123456789");

	*ret_kind = unit + digits;
	if (digits == 0 || (unit[0] == '0' && digits > 1))
		return -1;
	return digits > 9 ? 999999999 : strtol(unit, NULL, 10);
}

static int parse_unit(const char *unit, long *ret_index, unsigned int *ret_type)
{
	static const struct {
		const char *kind;
		unsigned int type;
	} kinds[] = {
		{ "", PIER_ZE_MEMORY_DEVICE },
		{ ":host", PIER_ZE_MEMORY_HOST },
		{ ":shared", PIER_ZE_MEMORY_SHARED },
	};
	const char *kind;

	*ret_index = parse_index(unit, &kind);
	for (size_t i = 0; *ret_index >= 0 && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strcmp(kind, kinds[i].kind) == 0) {
			*ret_type = kinds[i].type;
			return 0;
		}
	}
	return pier_fail(EINVAL,
			 "Level Zero's units are N, N:host and N:shared, with the number "
			 "of a device, but \"%s\" was asked for",
			 unit);
}

static unsigned int call_alloc(const struct pier_ze_memory *state, size_t length,
			       void **ret_pointer)
{
	const struct pier_ze_functions *call = &state->ze->call;
	struct pier_ze_device *device = state->device;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	/* Without it, the specification promises no export, and the memory may be pooled.
	 */
	struct pier_ze_export_desc exported = {
		.stype = PIER_ZE_TYPE_EXPORT_DESC,
		.flags = PIER_ZE_EXTERNAL_MEMORY_DMABUF,
	};
	struct pier_ze_device_mem_alloc_desc on_device = {
		.stype = PIER_ZE_TYPE_DEVICE_MEM_ALLOC_DESC,
	};
	struct pier_ze_host_mem_alloc_desc on_host = {
		.stype = PIER_ZE_TYPE_HOST_MEM_ALLOC_DESC,
	};

	if (state->type == PIER_ZE_MEMORY_HOST)
		return call->zeMemAllocHost(device->context, &on_host, length, page,
					    ret_pointer);
	if (state->type == PIER_ZE_MEMORY_SHARED)
		return call->zeMemAllocShared(device->context, &on_device, &on_host,
					      length, page, device->handle, ret_pointer);
	on_device.next = device->exports ? &exported : NULL;
	return call->zeMemAllocDevice(device->context, &on_device, length, page,
				      device->handle, ret_pointer);
}

static int fail_alloc(const struct pier_ze_memory *state, unsigned int error,
		      uint64_t length, const char *unit)
{
	if (error == PIER_ZE_UNSUPPORTED_SIZE)
		return pier_ze_fail(error,
				    "allocating %llu bytes of unit %s: an allocation "
				    "there has at most %llu",
				    (unsigned long long)length, unit,
				    (unsigned long long)state->device->max_alloc);
	return pier_ze_fail(error, "allocating %llu bytes of unit %s",
			    (unsigned long long)length, unit);
}

static int alloc_pages(struct pier_ze_memory *state, const char *unit, uint64_t length,
		       struct pier_memory *ret_memory)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t rounded = (length + page - 1) / page * page;
	void *pointer = NULL;
	unsigned int error;
	int result = 0;

	if (rounded < length || rounded > SIZE_MAX)
		return pier_fail(ENOMEM, "%llu bytes are more than there are addresses",
				 (unsigned long long)length);
	error = call_alloc(state, rounded, &pointer);
	if (error != PIER_ZE_SUCCESS)
		return fail_alloc(state, error, rounded, unit);
	if (state->type == PIER_ZE_MEMORY_DEVICE)
		result = pier_ze_clear(state, pointer, rounded);
	else
		memset(pointer, 0, rounded);
	if (result != 0) {
		state->ze->call.zeMemFree(state->device->context, pointer);
		return result;
	}
	ret_memory->address = (uint64_t)(uintptr_t)pointer;
	ret_memory->length = rounded;
	ret_memory->cpu = state->type == PIER_ZE_MEMORY_DEVICE ? NULL : pointer;
	return 0;
}

int pier_ze_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	unsigned int type = PIER_ZE_MEMORY_DEVICE;
	struct pier_ze *ze = NULL;
	struct pier_ze_memory *state;
	long index = 0;
	int result;

	if (!unit)
		unit = "0";
	result = parse_unit(unit, &index, &type);
	if (result == 0)
		result = pier_ze_require(&ze);
	if (result != 0)
		return result;
	if ((unsigned long)index >= ze->count)
		return pier_fail(
			EINVAL,
			"Level Zero has %u GPUs, from 0 on, but \"%s\" was asked "
			"for: ZE_AFFINITY_MASK and ZE_FLAT_DEVICE_HIERARCHY "
			"choose them",
			ze->count, unit);
	state = calloc(1, sizeof(*state));
	if (!state)
		return pier_fail(ENOMEM, "no memory for the description of memory");
	state->ze = ze;
	state->device = &ze->devices[index];
	state->type = type;
	result = alloc_pages(state, unit, length, ret_memory);
	if (result != 0) {
		free(state);
		return result;
	}
	ret_memory->state = state;
	return 0;
}

void pier_ze_free(struct pier_memory *memory)
{
	struct pier_ze_memory *state = memory->state;

	/* In a child of fork(2) the memory is the parent's. */
	if (!pier_ze_inherited(state->ze))
		state->ze->call.zeMemFree(state->device->context,
					  (void *)(uintptr_t)memory->address);
	free(state);
}

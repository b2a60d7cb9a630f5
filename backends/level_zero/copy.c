/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "copy.h"
#include "load.h"

/*
 * A command list must not be used by two threads at once. Instead of a lock, which a copy
 * would hold until it is done, each copy takes the device's idle list or makes one.
 */
static unsigned int take_list(const struct pier_ze *ze, struct pier_ze_device *device,
			      struct _ze_command_list_handle_t **ret_list)
{
	struct pier_ze_command_queue_desc desc = {
		.stype = PIER_ZE_TYPE_COMMAND_QUEUE_DESC,
		.ordinal = device->ordinal,
		.mode = PIER_ZE_QUEUE_SYNCHRONOUS,
	};

	*ret_list = atomic_exchange(&device->idle, NULL);
	if (*ret_list)
		return PIER_ZE_SUCCESS;
	return ze->call.zeCommandListCreateImmediate(device->context, device->handle,
						     &desc, ret_list);
}

/* After an error the list may be unusable. */
static void put_list(const struct pier_ze *ze, struct pier_ze_device *device,
		     struct _ze_command_list_handle_t *list, unsigned int error)
{
	struct _ze_command_list_handle_t *none = NULL;

	if (error != PIER_ZE_SUCCESS ||
	    !atomic_compare_exchange_strong(&device->idle, &none, list))
		ze->call.zeCommandListDestroy(list);
}

/* The list is synchronous: what is appended is done on return. */
static unsigned int copy_bytes(const struct pier_ze_memory *state, void *destination,
			       const void *source, size_t length)
{
	struct _ze_command_list_handle_t *list;
	unsigned int error = take_list(state->ze, state->device, &list);

	if (error != PIER_ZE_SUCCESS)
		return error;
	error = state->ze->call.zeCommandListAppendMemoryCopy(list, destination, source,
							      length, NULL, 0, NULL);
	put_list(state->ze, state->device, list, error);
	return error;
}

int pier_ze_clear(const struct pier_ze_memory *state, void *pointer, size_t length)
{
	static const char zero;
	struct _ze_command_list_handle_t *list;
	unsigned int error = take_list(state->ze, state->device, &list);

	if (error == PIER_ZE_SUCCESS) {
		error = state->ze->call.zeCommandListAppendMemoryFill(
			list, pointer, &zero, sizeof(zero), length, NULL, 0, NULL);
		put_list(state->ze, state->device, list, error);
	}
	if (error == PIER_ZE_SUCCESS)
		return 0;
	return pier_ze_fail(error, "clearing %zu bytes on device %d", length,
			    (int)(state->device - state->ze->devices));
}

static int copy_memory(const struct pier_memory *memory, void *destination,
		       const void *source, uint64_t length)
{
	const struct pier_ze_memory *state = memory->state;
	unsigned int error;
	int result;

	if (memory->cpu && !state->wrapped) {
		memcpy(destination, source, length);
		return 0;
	}
	result = pier_ze_check_memory(memory);
	if (result != 0)
		return result;
	error = copy_bytes(state, destination, source, length);
	if (error == PIER_ZE_SUCCESS)
		return 0;
	return pier_ze_fail(error, "copying %llu bytes by device %d",
			    (unsigned long long)length,
			    (int)(state->device - state->ze->devices));
}

int pier_ze_copy_to(const struct pier_memory *memory, uint64_t offset, const void *source,
		    uint64_t length)
{
	return copy_memory(memory, (void *)(uintptr_t)(memory->address + offset), source,
			   length);
}

int pier_ze_copy_from(const struct pier_memory *memory, uint64_t offset,
		      void *destination, uint64_t length)
{
	return copy_memory(memory, destination,
			   (const void *)(uintptr_t)(memory->address + offset), length);
}

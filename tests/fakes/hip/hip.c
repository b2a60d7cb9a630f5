/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <string.h>

#include "call.h"

/* libamdhip64.so.6. */

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	NOT_FOUND = 500,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	CAPTURE_UNSUPPORTED = 900,

	BUFFER_ID = 7,
	IS_MANAGED = 8,
	DEVICE_ORDINAL = 9,
	HDP_MEM_FLUSH = 10005,

	FINE_GRAINED = 1,
};

static __thread int current_device;
static __thread unsigned int last_error;

int fake_current_device(void)
{
	return current_device;
}

unsigned int fake_end(unsigned int error)
{
	fake_unlock();
	/* The error stays until it is queried, as in CUDA and from HIP 7 on. */
	if (error != SUCCESS)
		last_error = error;
	return error;
}

unsigned int fake_begin(const char *function)
{
	struct fake_hip *settings = fake_settings();

	fake_lock();
	if (settings->devices == 0)
		return NO_DEVICE;
	if (!settings->initialised) {
		settings->initialised = 1;
		settings->references++;
	}
	if (settings->lost_call > 1)
		settings->lost_call--;
	if (settings->lost_call == 1)
		return settings->lost_error;
	return fake_failure(function);
}

/*
 * For calls that may allocate or wait: CHECK_STREAM_CAPTURE_SUPPORTED() in clr. They
 * break another thread's capture.
 */
unsigned int fake_begin_unsafe(const char *function)
{
	unsigned int error = fake_begin(function);
	struct fake_hip *settings = fake_settings();

	if (error || !settings->capturing || fake_is_relaxed())
		return error;
	settings->breaks++;
	return CAPTURE_UNSUPPORTED;
}

FAKE_API const char *hipGetErrorName(unsigned int error)
{
	return error == SUCCESS ? "hipSuccess" : "hipErrorOfTheFake";
}

FAKE_API unsigned int hipPeekAtLastError(void)
{
	return last_error;
}

FAKE_API unsigned int hipGetLastError(void)
{
	unsigned int error = last_error;

	last_error = SUCCESS;
	return error;
}

FAKE_API unsigned int hipRuntimeGetVersion(int *version)
{
	*version = fake_settings()->version;
	return SUCCESS;
}

FAKE_API unsigned int hipGetDeviceCount(int *count)
{
	unsigned int error = fake_begin("hipGetDeviceCount");

	*count = error ? 0 : fake_settings()->devices;
	return fake_end(error);
}

FAKE_API unsigned int hipGetDevice(int *device)
{
	unsigned int error = fake_begin("hipGetDevice");

	if (!error)
		*device = current_device;
	return fake_end(error);
}

static bool is_device(int device)
{
	return device >= 0 && device < fake_settings()->devices;
}

FAKE_API unsigned int hipSetDevice(int device)
{
	unsigned int error = fake_begin("hipSetDevice");

	if (!error && !is_device(device))
		error = INVALID_DEVICE;
	if (!error)
		current_device = device;
	return fake_end(error);
}

FAKE_API unsigned int hipDeviceGetName(char *name, int length, int device)
{
	unsigned int error = fake_begin("hipDeviceGetName");

	if (!error && !is_device(device))
		error = INVALID_DEVICE;
	if (!error)
		snprintf(name, (size_t)length, "Fake Instinct %d", device);
	return fake_end(error);
}

FAKE_API unsigned int hipDeviceGetPCIBusId(char *id, int length, int device)
{
	unsigned int error = fake_begin("hipDeviceGetPCIBusId");

	if (!error && !is_device(device))
		error = INVALID_DEVICE;
	if (!error && fake_settings()->partitions)
		snprintf(id, (size_t)length, "0000:C1:00.%x", (unsigned)device);
	else if (!error)
		snprintf(id, (size_t)length, "0000:%02X:00.0", 0xc1 + (unsigned)device);
	return fake_end(error);
}

/* A register is written as a pointer, into what is declared as an int. */
FAKE_API unsigned int hipDeviceGetAttribute(int *value, unsigned int attribute,
					    int device)
{
	unsigned int error = fake_begin("hipDeviceGetAttribute");
	struct fake_hip *settings = fake_settings();

	if (!error && !is_device(device))
		error = INVALID_DEVICE;
	if (!error && attribute != HDP_MEM_FLUSH)
		error = INVALID_VALUE;
	if (!error) {
		uint32_t *flush = settings->hdp ? &settings->registers[device] : NULL;

		memcpy(value, &flush, sizeof(flush));
	}
	return fake_end(error);
}

FAKE_API unsigned int hipDeviceTotalMem(size_t *total, int device)
{
	unsigned int error = fake_begin("hipDeviceTotalMem");

	if (!error && !is_device(device))
		error = INVALID_DEVICE;
	if (!error)
		*total = fake_settings()->memory;
	return fake_end(error);
}

FAKE_API unsigned int hipMemGetInfo(size_t *available, size_t *total)
{
	struct fake_hip *settings = fake_settings();
	unsigned int error = fake_begin("hipMemGetInfo");

	if (!error) {
		*total = settings->memory;
		*available = settings->memory - settings->bytes[current_device];
	}
	return fake_end(error);
}

static unsigned int allocate(const char *function, enum fake_kind kind, void **pointer,
			     size_t size)
{
	unsigned int error = fake_begin_unsafe(function);
	struct fake_allocation *allocation;

	if (!error && !pointer)
		error = INVALID_VALUE;
	if (!error) {
		allocation = fake_allocate(kind, current_device, size);
		if (allocation)
			*pointer = allocation->address;
		else
			error = OUT_OF_MEMORY;
	}
	return fake_end(error);
}

FAKE_API unsigned int hipMalloc(void **pointer, size_t size)
{
	return allocate("hipMalloc", FAKE_DEVICE, pointer, size);
}

FAKE_API unsigned int hipExtMallocWithFlags(void **pointer, size_t size,
					    unsigned int flags)
{
	return allocate("hipExtMallocWithFlags",
			flags == FINE_GRAINED ? FAKE_FINE : FAKE_DEVICE, pointer, size);
}

FAKE_API unsigned int hipHostMalloc(void **pointer, size_t size, unsigned int flags)
{
	(void)flags;
	return allocate("hipHostMalloc", FAKE_HOST, pointer, size);
}

FAKE_API unsigned int hipMallocManaged(void **pointer, size_t size, unsigned int flags)
{
	(void)flags;
	return allocate("hipMallocManaged", FAKE_MANAGED, pointer, size);
}

FAKE_API unsigned int hipMallocAsync(void **pointer, size_t size, void *stream)
{
	unsigned int error = allocate("hipMallocAsync", FAKE_DEVICE, pointer, size);

	(void)stream;
	if (!error && fake_settings()->pools)
		fake_hip_set_type(*pointer, FAKE_POINTER_VIRTUAL);
	return error;
}

static unsigned int release(const char *function, void *pointer, bool host)
{
	unsigned int error = fake_begin_unsafe(function);
	struct fake_allocation *allocation;

	if (!error && pointer) {
		allocation = fake_find(pointer);
		if (!allocation || allocation->address != pointer ||
		    allocation->kind == FAKE_REGISTERED ||
		    (allocation->kind == FAKE_HOST) != host)
			error = INVALID_VALUE;
		/* The call waits for all pending operations. */
		if (!error)
			fake_finish_all();
		if (!error)
			fake_free(allocation);
	}
	return fake_end(error);
}

FAKE_API unsigned int hipFree(void *pointer)
{
	return release("hipFree", pointer, false);
}

FAKE_API unsigned int hipFreeAsync(void *pointer, void *stream)
{
	(void)stream;
	return release("hipFreeAsync", pointer, false);
}

FAKE_API unsigned int hipHostFree(void *pointer)
{
	return release("hipHostFree", pointer, true);
}

FAKE_API unsigned int hipHostRegister(void *pointer, size_t size, unsigned int flags)
{
	unsigned int error = fake_begin_unsafe("hipHostRegister");

	(void)flags;
	if (!error && (!pointer || size == 0))
		error = INVALID_VALUE;
	if (!error && fake_find(pointer))
		error = ALREADY_REGISTERED;
	if (!error && !fake_adopt(pointer, size, current_device))
		error = OUT_OF_MEMORY;
	if (!error)
		fake_settings()->registrations++;
	return fake_end(error);
}

FAKE_API unsigned int hipHostUnregister(void *pointer)
{
	unsigned int error = fake_begin_unsafe("hipHostUnregister");
	struct fake_allocation *allocation = fake_find(pointer);

	if (!error && (!allocation || allocation->address != pointer ||
		       allocation->kind != FAKE_REGISTERED))
		error = NOT_REGISTERED;
	if (!error) {
		fake_free(allocation);
		fake_settings()->registrations--;
	}
	return fake_end(error);
}

FAKE_API unsigned int hipMemGetAddressRange(void **base, size_t *size, void *pointer)
{
	unsigned int error = fake_begin("hipMemGetAddressRange");
	struct fake_allocation *allocation = fake_find(pointer);

	if (!error && !allocation && fake_settings()->hmm) {
		*base = (void *)0x100;
		*size = SIZE_MAX;
		return fake_end(error);
	}
	if (!error && !allocation)
		error = NOT_FOUND;
	if (!error) {
		*base = allocation->address;
		*size = allocation->size;
	}
	return fake_end(error);
}

static unsigned int tell(const struct fake_allocation *allocation, unsigned int attribute,
			 void *data)
{
	switch (attribute) {
	case BUFFER_ID:
		if (fake_settings()->wide)
			*(uint64_t *)data = (uint64_t)allocation->number << 32 | 7;
		else
			*(uint32_t *)data = allocation->number;
		return SUCCESS;
	case IS_MANAGED:
		*(bool *)data = allocation->kind == FAKE_MANAGED;
		return SUCCESS;
	case DEVICE_ORDINAL:
		*(int *)data = allocation->device;
		return SUCCESS;
	}
	return INVALID_VALUE;
}

FAKE_API unsigned int hipPointerGetAttribute(void *data, unsigned int attribute,
					     void *pointer)
{
	unsigned int error = fake_begin("hipPointerGetAttribute");
	struct fake_allocation *allocation = fake_find(pointer);

	if (!error && (!data || !allocation))
		error = INVALID_VALUE;
	if (!error)
		error = tell(allocation, attribute, data);
	return fake_end(error);
}

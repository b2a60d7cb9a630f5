/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/level_zero/api.h"
#include "fake.h"

/* Drivers, devices and contexts. The handles are the addresses of these. */
struct fake_driver fake_drivers[2] = { { .npu = true }, { .npu = false } };
struct fake_device fake_devices[FAKE_LEVEL_ZERO_DEVICES + 1];

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_level_zero fake = {
	.devices = 2,
	.memory = 1 << 30,
	.max_alloc = 1 << 29,
	.exports = true,
};

static pid_t owner;

FAKE_API struct fake_level_zero *fake_level_zero_control(void)
{
	return &fake;
}

__attribute__((constructor)) static void read_environment(void)
{
	const char *devices = getenv("FAKE_LEVEL_ZERO_DEVICES");

	if (devices)
		fake.devices = (uint32_t)strtoul(devices, NULL, 10);
	if (fake.devices > FAKE_LEVEL_ZERO_DEVICES) {
		fprintf(stderr, "fake Level Zero: FAKE_LEVEL_ZERO_DEVICES=%s\n", devices);
		abort();
	}
}

static unsigned int find_failure(const char *function)
{
	if (fake.fail_call == 0 || strcmp(fake.fail_function, function) != 0)
		return SUCCESS;
	return --fake.fail_call == 0 ? fake.fail_error : SUCCESS;
}

unsigned int fake_begin(const char *function)
{
	pthread_mutex_lock(&fake_lock);
	if (!fake.initialised)
		return UNINITIALIZED;
	if (owner != getpid()) {
		fake.misuses++;
		return DEVICE_LOST;
	}
	return find_failure(function);
}

unsigned int fake_end(unsigned int error)
{
	pthread_mutex_unlock(&fake_lock);
	return error;
}

void fake_check_type(const void *base, unsigned int stype)
{
	const struct fake_base *found = base;

	fake.misuses += found->stype != stype;
}

/* The loader reports this, if no driver has a device: zeInit() in its ze_libapi.cpp. */
FAKE_API unsigned int zeInit(uint32_t flags)
{
	unsigned int error = fake.devices == 0 ? UNINITIALIZED : SUCCESS;

	(void)flags;
	pthread_mutex_lock(&fake_lock);
	if (error == SUCCESS)
		error = find_failure("zeInit");
	if (error == SUCCESS) {
		owner = getpid();
		fake.initialised++;
		for (uint32_t i = 0; i <= FAKE_LEVEL_ZERO_DEVICES; i++) {
			fake_devices[i].index = i;
			fake_devices[i].driver =
				&fake_drivers[i < FAKE_LEVEL_ZERO_DEVICES];
		}
	}
	return fake_end(error);
}

FAKE_API unsigned int zeDriverGet(uint32_t *count, struct _ze_driver_handle_t **drivers)
{
	unsigned int error = fake_begin("zeDriverGet");

	if (error == SUCCESS) {
		for (uint32_t i = 0; drivers && i < *count && i < 2; i++)
			drivers[i] = (struct _ze_driver_handle_t *)&fake_drivers[i];
		*count = *count == 1 ? 1 : 2;
	}
	return fake_end(error);
}

FAKE_API unsigned int zeDriverGetApiVersion(struct _ze_driver_handle_t *driver,
					    unsigned int *ret_version)
{
	(void)driver;
	*ret_version = 1 << 16 | 3;
	return SUCCESS;
}

/* The last device is the NPU, the first driver's only one. */
FAKE_API unsigned int zeDeviceGet(struct _ze_driver_handle_t *handle, uint32_t *count,
				  struct _ze_device_handle_t **devices)
{
	const struct fake_driver *driver = (struct fake_driver *)handle;
	unsigned int error = fake_begin("zeDeviceGet");
	uint32_t first = driver->npu ? FAKE_LEVEL_ZERO_DEVICES : 0;
	uint32_t all = driver->npu ? 1 : fake.devices;

	if (error == SUCCESS) {
		if (*count == 0 || *count > all)
			*count = all;
		for (uint32_t i = 0; devices && i < *count; i++)
			devices[i] =
				(struct _ze_device_handle_t *)&fake_devices[first + i];
	}
	return fake_end(error);
}

FAKE_API unsigned int zeDeviceGetProperties(struct _ze_device_handle_t *handle,
					    struct pier_ze_device_properties *properties)
{
	const struct fake_device *device = (struct fake_device *)handle;
	unsigned int error = fake_begin("zeDeviceGetProperties");

	fake_check_type(properties, 0x3);
	if (error == SUCCESS) {
		properties->type = device->driver->npu ? 5 : 1; /* ze_device_type_t */
		properties->max_alloc = fake.max_alloc;
		snprintf(properties->name, sizeof(properties->name),
			 "Fake Data Center GPU %u", device->index);
	}
	return fake_end(error);
}

FAKE_API unsigned int zeDeviceGetMemoryProperties(
	struct _ze_device_handle_t *device, uint32_t *count,
	struct pier_ze_device_memory_properties *properties)
{
	unsigned int error = fake_begin("zeDeviceGetMemoryProperties");

	(void)device;
	fake_check_type(properties, 0x7);
	*count = 1;
	properties->total = fake.memory;
	return fake_end(error);
}

FAKE_API unsigned int zeDeviceGetExternalMemoryProperties(
	struct _ze_device_handle_t *device,
	struct pier_ze_external_memory_properties *properties)
{
	unsigned int error = fake_begin("zeDeviceGetExternalMemoryProperties");

	(void)device;
	fake_check_type(properties, 0xc);
	properties->memory_exports = fake.exports ? 2 : 0;
	return fake_end(error);
}

/* The first group is that of kernels, which can copy, too. */
FAKE_API unsigned int zeDeviceGetCommandQueueGroupProperties(
	struct _ze_device_handle_t *device, uint32_t *count,
	struct pier_ze_queue_group_properties *groups)
{
	unsigned int error = fake_begin("zeDeviceGetCommandQueueGroupProperties");

	(void)device;
	fake_check_type(groups, 0x6);
	*count = fake.no_copy_queues ? 1 : 2;
	groups[0].flags = 3;
	groups[1].flags = 2;
	return fake_end(error);
}

FAKE_API unsigned int zeDevicePciGetPropertiesExt(struct _ze_device_handle_t *handle,
						  struct pier_ze_pci_properties *pci)
{
	const struct fake_device *device = (struct fake_device *)handle;
	unsigned int error = fake_begin("zeDevicePciGetPropertiesExt");

	fake_check_type(pci, 0x10008);
	pci->domain = 0;
	pci->bus = 0xd1 + device->index;
	pci->device = 0;
	pci->function = 0;
	return fake_end(error);
}

FAKE_API unsigned int zeContextCreate(struct _ze_driver_handle_t *driver,
				      const struct pier_ze_context_desc *desc,
				      struct _ze_context_handle_t **ret_context)
{
	unsigned int error = fake_begin("zeContextCreate");
	struct fake_context *context;

	fake_check_type(desc, 0xd);
	if (error == SUCCESS) {
		context = calloc(1, sizeof(*context));
		if (!context)
			abort();
		context->driver = (struct fake_driver *)driver;
		*ret_context = (struct _ze_context_handle_t *)context;
		fake.contexts++;
	}
	return fake_end(error);
}

FAKE_API unsigned int zeContextDestroy(struct _ze_context_handle_t *context)
{
	unsigned int error = fake_begin("zeContextDestroy");

	if (error == SUCCESS) {
		free(context);
		fake.contexts--;
	}
	return fake_end(error);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "level_zero_fixture.h"

#include <dlfcn.h>
#include <stdio.h>

struct level_zero_fixture fixture;

static void find_symbol(void *loader, const char *name, void *ret_function)
{
	void *symbol = dlsym(loader, name);

	assert_non_null(symbol);
	memcpy(ret_function, &symbol, sizeof(symbol));
}

int fixture_open(void **state)
{
	void *loader = dlopen("libze_loader.so.1", RTLD_NOW);
	struct fake_level_zero *(*control)(void);

	(void)state;
	if (!loader)
		fail_msg("%s", dlerror());
	find_symbol(loader, "fake_level_zero_control", &control);
	find_symbol(loader, "fake_level_zero_reach", &fixture.reach);
#define FIND(name, parameters) find_symbol(loader, #name, &fixture.call.name);
	PIER_ZE_FUNCTIONS(FIND)
	fixture.fake = control();
	fixture.settings = *fixture.fake;
	return 0;
}

int fixture_start(void **state)
{
	struct pier_ze_context_desc desc = { .stype = PIER_ZE_TYPE_CONTEXT_DESC };
	struct _ze_driver_handle_t *drivers[2];
	struct _ze_device_handle_t *devices[2];
	uint32_t count = 2;

	fixture_open(state);
	assert_int_equal(fixture.call.zeInit(0), 0);
	assert_int_equal(fixture.call.zeDriverGet(&count, drivers), 0);
	assert_int_equal(count, 2);
	assert_int_equal(fixture.call.zeDeviceGet(drivers[1], &count, devices), 0);
	fixture.device = devices[1];
	assert_int_equal(
		fixture.call.zeContextCreate(drivers[1], &desc, &fixture.context), 0);
	return 0;
}

int fixture_stop(void **state)
{
	(void)state;
	assert_int_equal(fixture.call.zeContextDestroy(fixture.context), 0);
	return 0;
}

int fixture_before(void **state)
{
	(void)state;
	assert_int_equal(fixture.fake->allocations, 0);
	fixture.census = test_take_census();
	return 0;
}

/* Restore the settings, which precede the counters. */
int fixture_after(void **state)
{
	(void)state;
	memcpy(fixture.fake, &fixture.settings,
	       offsetof(struct fake_level_zero, allocations));
	assert_int_equal(fixture.fake->allocations, 0);
	assert_int_equal(fixture.fake->fds, 0);
	assert_int_equal(fixture.fake->misuses, 0);
	/* pier's one for the driver of the GPUs, and the application's. */
	assert_true(fixture.fake->contexts <= 2);
	/* pier keeps one idle list for each device. */
	assert_true(fixture.fake->lists <= 2);
	test_assert_census(&fixture.census);
	return 0;
}

void *fixture_alloc(size_t size, bool for_export)
{
	struct pier_ze_export_desc exported = {
		.stype = PIER_ZE_TYPE_EXPORT_DESC,
		.flags = PIER_ZE_EXTERNAL_MEMORY_DMABUF,
	};
	struct pier_ze_device_mem_alloc_desc desc = {
		.stype = PIER_ZE_TYPE_DEVICE_MEM_ALLOC_DESC,
		.next = for_export ? &exported : NULL,
	};
	void *pointer = NULL;

	assert_int_equal(fixture.call.zeMemAllocDevice(fixture.context, &desc, size, 0,
						       fixture.device, &pointer),
			 0);
	return pointer;
}

void fixture_free(void *pointer)
{
	assert_int_equal(fixture.call.zeMemFree(fixture.context, pointer), 0);
}

void fixture_fail(const char *function, unsigned int error)
{
	snprintf(fixture.fake->fail_function, sizeof(fixture.fake->fail_function), "%s",
		 function);
	fixture.fake->fail_call = 1;
	fixture.fake->fail_error = error;
}

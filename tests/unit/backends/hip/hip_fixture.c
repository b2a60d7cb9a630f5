/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct hip_fixture fixture;

static void find_symbol(void *runtime, const char *name, void *ret_function)
{
	void *symbol = dlsym(runtime, name);

	assert_non_null(symbol);
	memcpy(ret_function, &symbol, sizeof(symbol));
}

int fixture_open(void **state)
{
	const char *hsa = getenv("FIXTURE_HSA");
	struct fake_hip *(*find)(void);
	void *runtime;

	(void)state;
	/* Needed if this machine's kernel lacks dma-bufs: see backends/hip/load.c. */
	setenv("PIER_DMABUF", "on", 0);
	/* If it has the soname that HIP wants, HIP gets this one. */
	if (hsa && !dlopen(hsa, RTLD_NOW))
		fail_msg("%s", dlerror());
	runtime = dlopen("libamdhip64.so.6", RTLD_NOW);
	if (!runtime)
		fail_msg("%s", dlerror());
	find_symbol(runtime, "fake_hip_control", &find);
	fixture.fake = find();
	find_symbol(runtime, "fake_hip_set_type", &fixture.set_type);
	find_symbol(runtime, "fake_hip_reach", &fixture.reach);
	find_symbol(runtime, "fake_hip_attach", &fixture.attach);
	find_symbol(runtime, "fake_hip_launch", &fixture.launch);
	find_symbol(runtime, "fake_hip_reset", &fixture.reset);
	find_symbol(runtime, "fake_hip_catch_up", &fixture.catch_up);
	find_symbol(runtime, "fake_hip_map", &fixture.map);
	find_symbol(runtime, "fake_hip_unmap", &fixture.unmap);
#define FIND(name, parameters) find_symbol(runtime, #name, &fixture.name);
	FIXTURE_FUNCTIONS(FIND)
	fixture.settings = *fixture.fake;
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
	int device = -1;

	(void)state;
	memcpy(fixture.fake, &fixture.settings, offsetof(struct fake_hip, allocations));
	assert_int_equal(fixture.fake->allocations, 0);
	assert_int_equal(fixture.fake->exports_open, 0);
	assert_int_equal(fixture.fake->registrations, 0);
	assert_int_equal(fixture.fake->retained, 0);
	assert_int_equal(fixture.fake->events, 0);
	assert_int_equal(fixture.fake->misuses, 0);
	assert_int_equal(fixture.fake->hangs, 0);
	assert_int_equal(fixture.fake->breaks, 0);
	/* HIP's own reference remains, and none of pier's. */
	assert_int_equal(fixture.fake->references, fixture.fake->initialised);
	assert_int_equal(fixture.hipPeekAtLastError(), 0);
	if (fixture.fake->initialised) {
		assert_int_equal(fixture.hipGetDevice(&device), 0);
		assert_int_equal(device, 0);
	}
	test_assert_census(&fixture.census);
	return 0;
}

char *fixture_map(int device, size_t segment, size_t count, size_t reserved)
{
	char *address = mmap(NULL, segment * reserved, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	int current;

	assert_ptr_not_equal(address, MAP_FAILED);
	/* A mapping counts as a use of HIP. */
	assert_int_equal(fixture.hipGetDevice(&current), 0);
	for (size_t i = 0; i < count; i++)
		assert_true(fixture.map(device, address + i * segment, segment));
	return address;
}

void fixture_unmap(char *address, size_t segment, size_t count, size_t reserved)
{
	for (size_t i = 0; i < count; i++)
		fixture.unmap(address + i * segment);
	munmap(address, segment * reserved);
}

void fixture_fail(const char *function, unsigned int error)
{
	snprintf(fixture.fake->fail_function, sizeof(fixture.fake->fail_function), "%s",
		 function);
	fixture.fake->fail_call = 1;
	fixture.fake->fail_error = error;
}

void fixture_expect_bytes(int fd, uint64_t offset, const void *expected, size_t length)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = offset & ~(page - 1);
	size_t size = (size_t)(offset - start) + length;
	char *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, (off_t)start);

	assert_ptr_not_equal(mapped, MAP_FAILED);
	assert_memory_equal(mapped + (offset - start), expected, length);
	munmap(mapped, size);
}

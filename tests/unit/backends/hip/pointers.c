/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/buffer.h>

/*
 * Pointers that others allocated: their owner, and whether the memory is still the same.
 */

static const struct pier_backend *const backend = &pier_hip_backend;

/* Must run first, before anything uses HIP: a host pointer does not initialise it. */
static void host_pointers_initialise_nothing(void **state)
{
	struct pier_buffer *buffer;
	struct pier_memory memory;
	char bytes[100];
	uint64_t identity;

	(void)state;
	assert_int_equal(fixture.fake->initialised, 0);
	expect_result(call_find(backend, (uint64_t)(uintptr_t)bytes, UINT64_MAX, &memory),
		      -ENOENT);
	expect_result(call_find(backend, (uint64_t)(uintptr_t)bytes, 100, &memory),
		      -ENOENT);
	expect_result(backend->identity((uint64_t)(uintptr_t)bytes, &identity), -ENOENT);
	expect_ok(pier_buffer_wrap(bytes, sizeof(bytes), &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(fixture.fake->initialised, 0);
	assert_int_equal(fixture.fake->references, 0);
}

static void expect_found(void *pointer, uint64_t offset, uint64_t length,
			 const char *kind, const char *unit)
{
	uint64_t address = (uint64_t)(uintptr_t)pointer;
	struct pier_memory_facts facts = { .kind = "" };
	struct pier_memory memory;

	expect_ok(call_find(backend, address + offset, 1, &memory));
	assert_int_equal(memory.address, address);
	assert_int_equal(memory.length, length);
	backend->describe(&memory, &facts);
	assert_string_equal(facts.kind, kind);
	assert_string_equal(facts.unit, unit);
	assert_ptr_equal(memory.cpu, facts.host ? pointer : NULL);
	backend->release(&memory);
}

static void finds_memory_of_the_application(void **state)
{
	void *device = NULL, *large = NULL, *fine = NULL, *host = NULL, *managed = NULL,
	     *pool = NULL;
	struct pier_memory memory;
	char bytes[10];

	(void)state;
	assert_int_equal(fixture.hipMalloc(&device, 100), 0);
	expect_found(device, 0, 4096, "hipMalloc", "0");
	expect_found(device, 99, 4096, "hipMalloc", "0");
	assert_int_equal(fixture.hipSetDevice(1), 0);
	assert_int_equal(fixture.hipMalloc(&large, 3 << 20), 0);
	assert_int_equal(fixture.hipExtMallocWithFlags(&fine, 4096, 1), 0);
	assert_int_equal(fixture.hipHostMalloc(&host, 5000, 0), 0);
	assert_int_equal(fixture.hipMallocManaged(&managed, 4096, 1), 0);
	assert_int_equal(fixture.hipMallocAsync(&pool, 4096, NULL), 0);
	assert_int_equal(fixture.hipSetDevice(0), 0);
	expect_found(large, (3 << 20) - 1, 3 << 20, "hipMalloc", "1");
	expect_found(fine, 5, 4096, "fine-grained device memory", "1");
	expect_found(host, 4999, 5000, "page-locked host memory", "1");
	expect_found(managed, 4000, 4096, "managed memory", "1");
	expect_found(pool, 4000, 4096, "hipMalloc", "1");
	/* HSA has the bounds of memory that HIP does not find. */
	fixture_fail("hipMemGetAddressRange", 1);
	expect_found(large, 5, 3 << 20, "hipMalloc", "1");
	fixture.set_type(large, 6);
	/* HSA accepts any interior pointer as a base; HIP does not. */
	expect_found(large, 1 << 20, 3 << 20, "hipMemMap", "1");

	expect_result(call_find(backend, (uint64_t)(uintptr_t)bytes, UINT64_MAX, &memory),
		      -ENOENT);
	expect_result(call_find(backend, (uint64_t)(uintptr_t)device + 4096, UINT64_MAX,
				&memory),
		      -ENOENT);
	assert_int_equal(fixture.hipFree(device), 0);
	expect_result(
		call_find(backend, (uint64_t)(uintptr_t)device, UINT64_MAX, &memory),
		-ENOENT);
	assert_int_equal(fixture.hipFree(large), 0);
	assert_int_equal(fixture.hipFree(fine), 0);
	assert_int_equal(fixture.hipFree(managed), 0);
	assert_int_equal(fixture.hipFree(pool), 0);
	assert_int_equal(fixture.hipHostFree(host), 0);
}

static void wraps_memory_of_the_application(void **state)
{
	struct pier_buffer *buffer;
	void *device = NULL;
	char back[8];

	(void)state;
	assert_int_equal(fixture.hipMalloc(&device, 1 << 20), 0);
	expect_ok(pier_buffer_wrap((char *)device + 5001, 1000, &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "hip");
	expect_ok(pier_buffer_copy_to(buffer, 10, "wrapped", 8));
	assert_string_equal((char *)fixture.reach((char *)device + 5011, 8), "wrapped");
	expect_ok(pier_buffer_copy_from(buffer, 10, back, 8));
	assert_string_equal(back, "wrapped");
	expect_ok(pier_buffer_free(buffer));
	expect_result(pier_buffer_wrap((char *)device + 5000, 1 << 20, &buffer), -ERANGE);
	assert_int_equal(fixture.hipFree(device), 0);
}

/* The memory around it never belonged to HIP, so a larger range is plain host memory. */
static void finds_registered_host_memory(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pier_buffer *buffer;
	struct pier_memory memory;
	uint64_t middle;

	(void)state;
	assert_ptr_not_equal(pages, MAP_FAILED);
	middle = (uint64_t)(uintptr_t)pages + page;
	assert_int_equal(fixture.hipHostRegister(pages + page, 2 * page, 0), 0);
	expect_found(pages + page, 7, 2 * page, "registered host memory", "0");
	expect_ok(call_find(backend, middle + 7, 2 * page - 7, &memory));
	backend->release(&memory);
	expect_result(call_find(backend, middle + 7, 2 * page - 6, &memory), -ENOENT);
	expect_result(call_find(backend, middle - 1, 2, &memory), -ENOENT);
	expect_ok(pier_buffer_wrap(pages, 4 * page, &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(fixture.hipHostUnregister(pages + page), 0);
	munmap(pages, 4 * page);
}

/* With HMM, clr reports every pointer as memory of the process. */
static void finds_host_pointers_with_hmm(void **state)
{
	struct pier_buffer *buffer = NULL;
	void *device = NULL;
	char bytes[100];

	(void)state;
	fixture.fake->hmm = true;
	assert_int_equal(fixture.hipMalloc(&device, 8192), 0);
	expect_ok(pier_buffer_wrap(bytes, sizeof(bytes), &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	expect_ok(pier_buffer_free(buffer));
	expect_found(device, 10, 8192, "hipMalloc", "0");
	assert_int_equal(fixture.hipFree(device), 0);
}

static void identifies_allocations(void **state)
{
	void *first = NULL, *second = NULL;
	uint64_t before = 0, same = 0, after = 0;

	(void)state;
	assert_int_equal(fixture.hipMalloc(&first, 4096), 0);
	expect_ok(backend->identity((uint64_t)(uintptr_t)first, &before));
	expect_ok(backend->identity((uint64_t)(uintptr_t)first + 4000, &same));
	assert_int_equal(same, before);
	assert_int_equal(fixture.hipFree(first), 0);
	expect_result(backend->identity((uint64_t)(uintptr_t)first, &same), -ENOENT);
	assert_int_equal(fixture.hipMalloc(&second, 4096), 0);
	assert_ptr_equal(first, second);
	expect_ok(backend->identity((uint64_t)(uintptr_t)second, &after));
	assert_int_not_equal(after, before);
	assert_int_equal(fixture.hipFree(second), 0);
}

/* If HIP writes 64 bits, all of them count. */
static void identifies_allocations_by_64_bits(void **state)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;
	void *device = NULL;

	(void)state;
	fixture.fake->wide = true;
	identifies_allocations(state);
	assert_int_equal(fixture.hipMalloc(&device, 4096), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)device, 4096, &memory));
	assert_int_equal(fixture.hipFree(device), 0);
	assert_int_equal(fixture.hipMalloc(&device, 4096), 0);
	assert_int_equal(memory.address, (uint64_t)(uintptr_t)device);
	expect_result(call_export(backend, &memory, memory.address, 4096,
				  PIER_MAPPING_DEFAULT, &dmabuf),
		      -EFAULT);
	test_assert_sentence("was freed after it was wrapped");
	backend->release(&memory);
	assert_int_equal(fixture.hipFree(device), 0);
}

/* A failure is reported, and does not turn the memory into someone else's. */
static void reports_failures_of_the_runtime(void **state)
{
	struct pier_memory memory;
	void *device = NULL;

	(void)state;
	assert_int_equal(fixture.hipMalloc(&device, 4096), 0);
	fixture.fake->lost_call = 1;
	fixture.fake->lost_error = 719;
	expect_result(
		call_find(backend, (uint64_t)(uintptr_t)device, UINT64_MAX, &memory),
		-EIO);
	test_assert_sentence("hipErrorLaunchFailure");
	/* Memory that HSA does not know is not claimed either. */
	expect_result(
		call_find(backend, (uint64_t)(uintptr_t)&memory, UINT64_MAX, &memory),
		-ENOENT);
	fixture.fake->lost_call = 0;
	assert_int_equal(fixture.hipFree(device), 0);
	fixture.hipGetLastError();
}

/* A child cannot use HIP; what it frees still belongs to the parent. */
static int in_child(struct pier_memory *memory, struct pier_backend_export *dmabuf)
{
	struct pier_backend_export other = { .fd = -1 };
	struct pier_memory found;
	size_t fds = test_count_fds(), open = fixture.fake->exports_open;
	char byte = 0;

	if (backend->alloc("0", 1, &found) != -EOPNOTSUPP ||
	    !strstr(pier_error_message(), "fork(2)"))
		return 1;
	if (call_find(backend, memory->address, UINT64_MAX, &found) != -ENOENT)
		return 2;
	if (backend->copy_from(memory, 0, &byte, 1) != -EOPNOTSUPP)
		return 3;
	if (call_export(backend, memory, memory->address, 4096, PIER_MAPPING_DEFAULT,
			&other) != -EOPNOTSUPP)
		return 4;
	backend->close_export(dmabuf);
	if (test_count_fds() != fds - 1 || fixture.fake->exports_open != open)
		return 5;
	backend->free(memory);
	return fixture.fake->allocations == 1 ? 0 : 6;
}

static void child_leaves_hip_alone(void **state)
{
	struct pier_backend_export dmabuf;
	struct pier_memory memory;
	int status = -1;
	pid_t child;

	(void)state;
	expect_ok(backend->alloc("0", 4096, &memory));
	expect_ok(call_export(backend, &memory, memory.address, 4096,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(in_child(&memory, &dmabuf));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	fixture_expect_bytes(dmabuf.fd, dmabuf.offset, "", 1);
	backend->close_export(&dmabuf);
	backend->free(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(host_pointers_initialise_nothing),
		fixture_test(finds_memory_of_the_application),
		fixture_test(wraps_memory_of_the_application),
		fixture_test(finds_registered_host_memory),
		fixture_test(finds_host_pointers_with_hmm),
		fixture_test(identifies_allocations),
		fixture_test(identifies_allocations_by_64_bits),
		fixture_test(reports_failures_of_the_runtime),
		fixture_test(child_leaves_hip_alone),
	};

	return cmocka_run_group_tests_name("hip_pointers", tests, fixture_open, NULL);
}

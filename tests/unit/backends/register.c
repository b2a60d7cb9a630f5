/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_backend_register(): a backend of the program itself. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/backend.h>
#include <pier/buffer.h>
#include <pier/version.h>

enum {
	REGISTERED_MAX = 32,
	THREADS = 4,
};

static _Alignas(64 << 10) char pages[64 << 10];
static int frees, releases;

static int probe_own(char *ret_detail, size_t size)
{
	snprintf(ret_detail, size, "one page");
	return 0;
}

static void describe_pages(struct pier_memory *ret_memory)
{
	ret_memory->address = (uint64_t)(uintptr_t)pages;
	ret_memory->length = sizeof(pages);
	ret_memory->cpu = pages;
}

static int alloc_own(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	if (ret_memory->size != sizeof(*ret_memory))
		return pier_fail(EPROTO, "the library set no size");
	if (unit || length > sizeof(pages))
		return pier_fail(EINVAL, "own has one page");
	describe_pages(ret_memory);
	return 0;
}

static void free_own(struct pier_memory *memory)
{
	frees += memory->size == sizeof(*memory);
}

static int find_own(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	(void)length;
	if (address - (uint64_t)(uintptr_t)pages >= sizeof(pages))
		return -ENOENT;
	describe_pages(ret_memory);
	return 0;
}

static void release_own(struct pier_memory *memory)
{
	releases += memory->size == sizeof(*memory);
}

static const struct pier_backend own = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(own),
	.name = "own",
	.description = "one page of the program's",
	.probe = probe_own,
	.alloc = alloc_own,
	.free = free_own,
	.find = find_own,
	.release = release_own,
};

static void expect_owner(void *addr, const char *backend)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_wrap(addr, 1, &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, backend);
	expect_ok(pier_buffer_free(buffer));
}

static void registers_a_backend(void **state)
{
	struct pier_buffer *buffer = NULL, *before = NULL;
	struct pier_backend copy = own;

	(void)state;
	expect_result(pier_buffer_alloc("own", 1, &buffer), -ENOENT);
	expect_ok(pier_buffer_wrap(pages, 1, &before));
	expect_ok(pier_backend_register(&copy));
	/* The table was copied. */
	memset(&copy, 0xff, sizeof(copy));
	expect_ok(pier_buffer_alloc("own", 1, &buffer));
	assert_int_equal(pier_buffer_address(buffer), (uint64_t)(uintptr_t)pages);
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(frees, 1);
	expect_owner(pages + 5, "own");
	assert_int_equal(releases, 1);
	/* Memory wrapped before keeps its backend. */
	assert_string_equal(test_buffer_info(before).backend, "host");
	expect_ok(pier_buffer_free(before));
	assert_int_equal(releases, 1);
}

static void lists_registered_backends(void **state)
{
	struct pier_backend_info *list;
	uint32_t count;

	(void)state;
	expect_ok(pier_backend_list(&list, &count, sizeof(*list)));
	assert_string_equal(list[count - 1].name, "own");
	assert_string_equal(list[count - 1].detail, "one page");
	assert_string_equal(list[count - 1].origin, "pier_backend_register()");
	assert_true(list[count - 1].available);
	free(list);
}

static void expect_refused(const struct pier_backend *table, int error,
			   const char *sentence)
{
	expect_result(pier_backend_register(table), -error);
	test_assert_sentence(sentence);
}

static int open_nothing(const struct pier_backend_ipc *ipc,
			const struct pier_memory *from, struct pier_memory *ret_memory)
{
	(void)ipc;
	(void)from;
	(void)ret_memory;
	return pier_fail(EOPNOTSUPP, "nothing");
}

static void refuses_invalid_backends(void **state)
{
	struct pier_backend table = own;

	(void)state;
	expect_refused(NULL, EINVAL, "backend is NULL");
	expect_refused(
		&own, EEXIST,
		"a backend named own is already registered (pier_backend_register())");
	table.name = "memfd";
	expect_refused(&table, EEXIST, "already registered (a built-in backend)");
	table.name = "not a name";
	expect_refused(&table, EINVAL, "letters, digits and _");
	table = own;
	table.alloc = NULL;
	expect_refused(&table, EINVAL, "its table has no alloc");
	table = own;
	table.ipc_open = open_nothing;
	table.release = NULL;
	expect_refused(&table, EINVAL, "its table has no release");
	table = own;
	table.abi = 1;
	expect_refused(&table, EPROTO,
		       "it has backend ABI 1, and this library, pier " PIER_VERSION
		       ", has 2");
}

static char names[REGISTERED_MAX][8];
static atomic_int registered;

/* Each thread registers the same names: one thread gets each name. */
static void *register_many(void *argument)
{
	(void)argument;
	for (int i = 1; i < REGISTERED_MAX; i++) {
		struct pier_backend table = own;
		int error;

		table.name = names[i];
		table.find = NULL;
		error = pier_backend_register(&table);
		if (error == 0)
			atomic_fetch_add(&registered, 1);
		else if (error != -EEXIST && error != -ENOSPC)
			return names;
	}
	return NULL;
}

static void threads_register_each_name_once(void **state)
{
	struct pier_backend table = own;
	pthread_t threads[THREADS];
	void *problem;

	(void)state;
	for (int i = 1; i < REGISTERED_MAX; i++)
		snprintf(names[i], sizeof(names[i]), "own%d", i);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, register_many, NULL),
				 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], &problem), 0);
		assert_null(problem);
	}
	assert_int_equal(registered, REGISTERED_MAX - 1);
	table.name = "one_more";
	expect_refused(&table, ENOSPC, "32 are registered, which is the limit");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(registers_a_backend),
		cmocka_unit_test(lists_registered_backends),
		cmocka_unit_test(refuses_invalid_backends),
		cmocka_unit_test(threads_register_each_name_once),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("backend_register", tests, NULL, NULL);
}

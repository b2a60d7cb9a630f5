/* SPDX-License-Identifier: BSD-3-Clause */
/* Pages of host memory that several threads allocate. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/mr.h>

#include "core/page.h"

enum {
	LENGTH = 50 << 20, /* four chunks, the last of which is short */
};

/* How many pages of a mapping are allocated. */
static size_t count_pages(char *memory, size_t length)
{
	size_t pages = length / pier_host_page(), count = 0;
	unsigned char *resident = malloc(pages);

	assert_int_equal(mincore(memory, length, resident), 0);
	for (size_t i = 0; i < pages; i++)
		count += resident[i] & 1;
	free(resident);
	return count;
}

static char *map(int rights)
{
	char *memory = mmap(NULL, LENGTH, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

/* A kernel before 5.14 cannot do it. */
static void populate(char *memory, size_t length, uint32_t threads)
{
	int error = pier_memory_populate(memory, length, PIER_ACCESS_SHARED, threads);

	if (error == -EOPNOTSUPP) {
		print_message("skip: no MADV_POPULATE_WRITE (Linux 5.14)\n");
		skip();
	}
	expect_ok(error);
}

static void populates_all_pages(void **state)
{
	static const uint32_t threads[] = { 1, 2, PIER_POPULATE_THREADS_MAX };
	size_t page = pier_host_page();

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct test_census before = test_take_census();
		char *memory = map(PROT_READ | PROT_WRITE);

		assert_int_equal(count_pages(memory, LENGTH), 0);
		populate(memory, LENGTH, threads[i]);
		assert_int_equal(count_pages(memory, LENGTH), LENGTH / page);
		munmap(memory, LENGTH);
		test_assert_census(&before);
	}
}

/* The range begins and ends inside of pages, and nothing around it is touched. */
static void populates_only_the_range(void **state)
{
	size_t page = pier_host_page();
	char *memory = map(PROT_READ | PROT_WRITE);

	(void)state;
	assert_int_equal(madvise(memory, LENGTH, MADV_NOHUGEPAGE), 0);
	populate(memory + 5 * page - 1, 3 * page + 2, 2);
	assert_int_equal(count_pages(memory, LENGTH), 5);
	assert_int_equal(count_pages(memory + 4 * page, 5 * page), 5);
	munmap(memory, LENGTH);
}

static void keeps_bytes(void **state)
{
	char *memory = map(PROT_READ | PROT_WRITE);

	(void)state;
	for (size_t i = 0; i < LENGTH; i += 3 << 20)
		memory[i] = (char)(i >> 20);
	populate(memory, LENGTH, 4);
	for (size_t i = 0; i < LENGTH; i += 3 << 20)
		assert_int_equal(memory[i], (char)(i >> 20));
	munmap(memory, LENGTH);
}

static void needs_only_the_rights_of_the_region(void **state)
{
	char *memory = map(PROT_READ);

	(void)state;
	expect_result(
		pier_memory_populate(memory, LENGTH, PIER_ACCESS_LOCAL_WRITE, 2) < 0, 1);
	test_assert_sentence("madvise");
	expect_ok(pier_memory_populate(memory, LENGTH, PIER_ACCESS_LOCAL_READ, 2));
	munmap(memory, LENGTH);
	expect_result(pier_memory_populate(memory, LENGTH, PIER_ACCESS_LOCAL_READ, 2),
		      -ENOMEM);
}

static void refuses_invalid_arguments(void **state)
{
	char byte;

	(void)state;
	expect_result(pier_memory_populate(&byte, 1, 0, 0), -EINVAL);
	expect_result(pier_memory_populate(&byte, 1, 0, PIER_POPULATE_THREADS_MAX + 1),
		      -EINVAL);
	test_assert_sentence("1 to 64");
	expect_result(pier_memory_populate(&byte, 0, 0, 1), -EINVAL);
	expect_result(pier_memory_populate(&byte, SIZE_MAX, 0, 1), -EINVAL);
	expect_result(pier_memory_populate((void *)UINTPTR_MAX, 1, 0, 1), -EINVAL);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(populates_all_pages),
		cmocka_unit_test(populates_only_the_range),
		cmocka_unit_test(keeps_bytes),
		cmocka_unit_test(needs_only_the_rights_of_the_region),
		cmocka_unit_test(refuses_invalid_arguments),
	};

	return cmocka_run_group_tests_name("populate", tests, NULL, NULL);
}

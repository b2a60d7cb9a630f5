/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tests the kernels with which the other programs check bytes: they must write what the
 * CPU computes for the pattern, and detect every difference. With --ptx, prints the
 * source that the driver compiles.
 */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

enum {
	LENGTH = 3 * GPU_MIB + 5,
	AROUND = 4099, /* guard bytes before and behind the written range */
	SEED = 1234567,
	FIRST = 99,
};

static struct pier_buffer *buffer;
static bool compiled;
static char why[160];

static int setup(void **state)
{
	expect_ok(pier_buffer_alloc(gpu_spec(""), LENGTH + 2 * AROUND, &buffer));
	return gpu_setup(state);
}

static int teardown(void **state)
{
	int result = gpu_teardown(state);

	expect_ok(pier_buffer_free(buffer));
	return result;
}

static void are_compiled(void **state)
{
	(void)state;
	if (!compiled)
		gpu_skip("%s: the bytes are written and compared by copies", why);
}

static void write_the_pattern_alone(void **state)
{
	uint8_t *found = malloc(LENGTH + 2 * AROUND);

	(void)state;
	assert_non_null(found);
	assert_int_equal(gpu_fill(buffer, AROUND, LENGTH, SEED, FIRST), 0);
	expect_ok(pier_buffer_copy_from(buffer, 0, found, LENGTH + 2 * AROUND));
	for (size_t i = 0; i < LENGTH + 2 * AROUND; i++) {
		bool inside = i >= AROUND && i < AROUND + LENGTH;

		if (found[i] != (inside ? gpu_pattern(SEED, FIRST + i - AROUND) : 0))
			fail_msg("byte %zu is %#x", i, found[i]);
	}
	free(found);
}

static void expect_wrong(size_t offset, size_t length, int64_t count, uint64_t first)
{
	uint64_t found = UINT64_MAX;

	assert_int_equal(gpu_count_wrong(buffer, offset, length, SEED,
					 FIRST + offset - AROUND, &found),
			 count);
	assert_int_equal(found, first);
}

static void find_what_is_wrong(void **state)
{
	static const size_t places[] = { AROUND + 7, AROUND + 70001,
					 AROUND + LENGTH - 1 };
	uint8_t byte;

	(void)state;
	assert_int_equal(gpu_fill(buffer, AROUND, LENGTH, SEED, FIRST), 0);
	expect_wrong(AROUND, LENGTH, 0, UINT64_MAX);
	for (size_t i = 0; i < 3; i++) {
		byte = gpu_pattern(SEED, FIRST + places[i] - AROUND) ^ 1;
		expect_ok(pier_buffer_copy_to(buffer, places[i], &byte, 1));
	}
	expect_wrong(AROUND, LENGTH, 3, 7);
	expect_wrong(AROUND + 8, LENGTH - 9, 1, 70001 - 8);
	expect_wrong(AROUND + 8, 0, 0, UINT64_MAX);
	/* A shifted pattern differs. */
	assert_true(gpu_count_wrong(buffer, AROUND, LENGTH, SEED, FIRST + 1,
				    &(uint64_t){ 0 }) > LENGTH / 2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(are_compiled),
		cmocka_unit_test_setup_teardown(write_the_pattern_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(find_what_is_wrong, setup, teardown),
	};

	if (argc == 2 && strcmp(argv[1], "--ptx") == 0) {
		fputs(gpu_ptx, stdout);
		return 0;
	}
	gpu_open_cuda();
	compiled = gpu_load_kernels(why, sizeof(why));
	return cmocka_run_group_tests_name("gpu_kernels", tests, NULL, NULL);
}

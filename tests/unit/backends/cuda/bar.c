/* SPDX-License-Identifier: BSD-3-Clause */
/* The length of BAR1, parsed from lines in the form of sysfs. */
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/cuda/unit.h"

#define PCI "0000:17:00.0"

static uint64_t bar1_of(const char *resource)
{
	char folder[] = "/tmp/pier-bar-XXXXXX", device[64], path[80];
	uint64_t length;
	FILE *file;

	assert_non_null(mkdtemp(folder));
	snprintf(device, sizeof(device), "%s/" PCI, folder);
	assert_int_equal(mkdir(device, 0700), 0);
	snprintf(path, sizeof(path), "%s/resource", device);
	file = fopen(path, "we");
	assert_non_null(file);
	fputs(resource, file);
	assert_int_equal(fclose(file), 0);
	length = pier_cuda_bar1(folder, PCI);
	unlink(path);
	rmdir(device);
	rmdir(folder);
	return length;
}

static void finds_the_length_of_bar1(void **state)
{
	(void)state;
	/* An A100: 32-bit registers, 64-bit memory. */
	assert_int_equal(
		bar1_of("0x00000000e3000000 0x00000000e3ffffff 0x0000000000040200\n"
			"0x0000030000000000 0x0000030fffffffff 0x000000000014220c\n"
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n"),
		UINT64_C(64) << 30);
	/* A Hopper: both 64-bit. */
	assert_int_equal(
		bar1_of("0x0000022042000000 0x0000022042ffffff 0x000000000014220c\n"
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
			"0x0000020000000000 0x0000021fffffffff 0x000000000014220c\n"
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n"),
		UINT64_C(128) << 30);
	/* Unassigned, truncated, and missing lines. */
	assert_int_equal(
		bar1_of("0x00000000e3000000 0x00000000e3ffffff 0x0000000000040200\n"
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n"),
		0);
	assert_int_equal(
		bar1_of("0x0000022042000000 0x0000022042ffffff 0x000000000014220c\n"
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n"),
		0);
	assert_int_equal(bar1_of("nothing\n"), 0);
	assert_int_equal(bar1_of(""), 0);
	assert_int_equal(pier_cuda_bar1("/tmp/pier-nothing", PCI), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_the_length_of_bar1),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

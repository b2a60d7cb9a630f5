/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/hip/device.h"

/*
 * A runtime without a device, and the reason; this file replaces the driver's file. And
 * the PCI addresses of partitions.
 */

static const struct pier_backend *const backend = &pier_hip_backend;

static int kfd_error; /* errno of opening it, or 0 */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

int __wrap_open(const char *path, int flags, ...)
{
	if (strcmp(path, "/dev/kfd") != 0)
		return __real_open(path, flags, 0600);
	assert_true(flags & O_CLOEXEC);
	if (!kfd_error)
		return __real_open("/dev/null", flags);
	errno = kfd_error;
	return -1;
}

int __wrap_open64(const char *path, int flags, ...)
{
	return __wrap_open(path, flags, 0600);
}

static void expect_reason(int error, int result, const char *reason)
{
	struct pier_memory memory = { .address = 7 };
	struct pier_backend_unit unit;
	char detail[256]; /* that of pier_backend_info */

	fixture.fake->devices = 0;
	kfd_error = error;
	expect_result(backend->alloc("0", 1, &memory), -result);
	test_assert_sentence("HIP has no device: ");
	test_assert_sentence(reason);
	assert_int_equal(memory.address, 7);
	expect_result(backend->probe(detail, sizeof(detail)), -result);
	assert_non_null(strstr(detail, reason));
	expect_result(backend->unit(0, &unit), -ENOENT);
	assert_int_equal(fixture.hipPeekAtLastError(), 0);
}

static void reports_why_no_device_works(void **state)
{
	(void)state;
	expect_reason(ENOENT, EOPNOTSUPP,
		      "/dev/kfd: no such file: kernel built without "
		      "CONFIG_HSA_AMD, or the device was not passed");
	expect_reason(EACCES, EOPNOTSUPP, "/dev/kfd: permission denied");
	test_assert_sentence("add the user to that group");
	expect_reason(EPERM, EOPNOTSUPP, "docker run --device=/dev/kfd");
	expect_reason(EMFILE, EMFILE, "/dev/kfd: Too many open files");
	expect_reason(0, EOPNOTSUPP, "/dev/dri/renderD* (groups render and video)");
	test_assert_sentence("HIP_VISIBLE_DEVICES");
}

/* No PCI device has the number of a partition as its function. */
static void finds_the_function_of_a_partition(void **state)
{
	static const struct {
		const char *told, *found;
	} cases[] = {
		{ "0000:c1:00.0", "0000:c1:00.0" },
		{ "0000:c1:00.7", "0000:c1:00.0" },
		{ "0000:c2:00.3", "0000:c2:00.3" }, /* exists */
		{ "0000:c3:00.1", "0000:c3:00.1" }, /* unknown: kept */
		{ "", "" },
	};
	static const char *const present[] = { "0000:c1:00.0", "0000:c2:00.0",
					       "0000:c2:00.3" };
	char devices[] = "/tmp/pier-hip-XXXXXX", path[64], pci[16] = "";

	(void)state;
	assert_non_null(mkdtemp(devices));
	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", devices, present[i]);
		assert_int_equal(mkdir(path, 0700), 0);
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(pci, sizeof(pci), "%s", cases[i].told);
		pier_hip_find_function(devices, pci);
		assert_string_equal(pci, cases[i].found);
	}
	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", devices, present[i]);
		assert_int_equal(rmdir(path), 0);
	}
	assert_int_equal(rmdir(devices), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(reports_why_no_device_works),
		fixture_test(finds_the_function_of_a_partition),
	};

	return cmocka_run_group_tests_name("hip_devices", tests, fixture_open, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/backend.h"
#include "backends/linux/fd_memory.h"
#include "backends/linux/dma_heap.h"
#include "backends/linux/host.h"
#include "backends/linux/udmabuf.h"

#include "tests/support/census.h"

static char folder[] = "/tmp/pier-unit-XXXXXX";
static char path[sizeof(folder) + 64];

static const char *inside(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void write_file(const char *name, const char *text)
{
	FILE *file = fopen(inside(name), "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int make_folder(void **state)
{
	(void)state;
	strcpy(folder + sizeof(folder) - 7, "XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command);
}

static void check_reason(int error, const char *expected)
{
	char text[256];

	pier_explain_device_file("/dev/udmabuf", "CONFIG_UDMABUF", error, text,
				 sizeof(text));
	assert_string_equal(text, expected);
}

static void names_the_reason(void **state)
{
	char text[256], expected[256];

	(void)state;
	check_reason(ENOENT, "/dev/udmabuf: no such file: kernel built without "
			     "CONFIG_UDMABUF, or the device was not passed into the "
			     "container");
	check_reason(EPERM, "/dev/udmabuf: operation not permitted: the container's "
			    "device rules forbid it; pass the device in (docker run "
			    "--device=/dev/udmabuf)");
	check_reason(ENODEV, "/dev/udmabuf: the file is there but no driver answers: "
			     "kernel built without CONFIG_UDMABUF");
	check_reason(EMFILE, "/dev/udmabuf: Too many open files");

	/* A group without a name, so that the sentence is the same everywhere. */
	write_file("device", "");
	if (chown(path, (uid_t)-1, 54321) != 0)
		return;
	chmod(path, 0660);
	pier_explain_device_file(path, "X", EACCES, text, sizeof(text));
	snprintf(expected, sizeof(expected),
		 "%s: permission denied: it belongs to group 54321 with mode 0660; add "
		 "the user to that group, or run as root",
		 path);
	assert_string_equal(text, expected);
}

static void reasons_have_an_errno(void **state)
{
	(void)state;
	assert_int_equal(pier_device_file_errno(ENOENT), EOPNOTSUPP);
	assert_int_equal(pier_device_file_errno(EACCES), EOPNOTSUPP);
	/* These errors carry no information about the device. */
	assert_int_equal(pier_device_file_errno(EMFILE), EMFILE);
	assert_int_equal(pier_device_file_errno(ENOMEM), ENOMEM);
}

static void check_limits(const char *size, const char *ranges, uint64_t expected_size,
			 uint64_t expected_ranges)
{
	struct pier_udmabuf_limits limits;

	write_file("size_limit_mb", size);
	write_file("list_limit", ranges);
	limits = pier_read_udmabuf_limits(folder);
	assert_int_equal(limits.size_mb, expected_size);
	assert_int_equal(limits.ranges, expected_ranges);
}

static void reads_udmabuf_limits(void **state)
{
	struct pier_udmabuf_limits limits;
	char text[256];

	(void)state;
	check_limits("64\n", "1024\n", 64, 1024);
	check_limits("2147483647", "1", 2147483647, 1);
	check_limits("0\n", "-1\n", 0, 0);
	check_limits("", "lots\n", 0, 0);
	check_limits("64 MiB\n", "99999999999999999999999\n", 0, 0);

	limits = pier_read_udmabuf_limits(inside("missing"));
	assert_int_equal(limits.size_mb, 0);
	pier_describe_udmabuf_limits(&limits, text, sizeof(text));
	assert_non_null(strstr(text, "does not report"));
	assert_int_equal(pier_check_udmabuf_length(&limits, UINT64_MAX), 0);

	limits = (struct pier_udmabuf_limits){ .size_mb = 64, .ranges = 1024 };
	pier_describe_udmabuf_limits(&limits, text, sizeof(text));
	assert_string_equal(text, "buffers up to 64 MiB of up to 1024 ranges");
	assert_int_equal(pier_check_udmabuf_length(&limits, 64 << 20), 0);
	assert_int_equal(pier_check_udmabuf_length(&limits, (64 << 20) + 4096), -E2BIG);
	test_assert_sentence("67112960 bytes are more than the 64 MiB");
	test_assert_sentence("/sys/module/udmabuf/parameters/size_limit_mb");
}

static void reports_why_a_dma_heap_is_missing(void **state)
{
	struct test_census before = test_take_census();
	char text[256], heaps[sizeof(path)], shorter[12];
	int fd = -2;

	(void)state;
	snprintf(heaps, sizeof(heaps), "%s", inside("heaps"));
	assert_int_equal(pier_probe_dma_heaps(heaps, text, sizeof(text)), -ENOENT);
	assert_non_null(strstr(text, "no such file: kernel built without "
				     "CONFIG_DMABUF_HEAPS"));
	assert_int_equal(pier_open_dma_heap(heaps, "system", &fd), -EOPNOTSUPP);
	test_assert_sentence("CONFIG_DMABUF_HEAPS");

	mkdir(heaps, 0755);
	assert_int_equal(pier_probe_dma_heaps(heaps, text, sizeof(text)), -ENODEV);
	assert_non_null(strstr(text, "is empty"));
	assert_int_equal(pier_open_dma_heap(heaps, "system", &fd), -EOPNOTSUPP);
	test_assert_sentence("is empty");

	write_file("heaps/reserved", "");
	assert_int_equal(pier_probe_dma_heaps(heaps, text, sizeof(text)), 0);
	assert_string_equal(text, "heaps: reserved");
	write_file("heaps/linux,cma", "");
	assert_int_equal(pier_probe_dma_heaps(heaps, text, sizeof(text)), 0);
	assert_string_equal(text, "heaps: linux,cma, reserved");
	write_file("heaps/system", "");
	assert_int_equal(pier_list_dma_heaps(heaps, shorter, sizeof(shorter)), 3);
	assert_string_equal(shorter, "linux,cma, ");

	assert_int_equal(pier_open_dma_heap(heaps, "nope", &fd), -EINVAL);
	test_assert_sentence("which has: linux,cma, reserved, system");
	assert_int_equal(pier_open_dma_heap(heaps, "../heaps/system", &fd), -EINVAL);
	assert_int_equal(pier_open_dma_heap(heaps, "..", &fd), -EINVAL);
	assert_int_equal(pier_open_dma_heap(heaps, "", &fd), -EINVAL);
	assert_int_equal(fd, -2);
	assert_int_equal(pier_open_dma_heap(heaps, "system", &fd), 0);
	assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	close(fd);
	test_assert_census(&before);
}

static void reads_huge_page_counts(void **state)
{
	struct pier_huge_pages huge;

	(void)state;
	write_file("meminfo", "MemTotal:       16 kB\nHugePages_Total:      12\n"
			      "HugePages_Free:        5\nHugePages_Rsvd:        3\n"
			      "Hugepagesize:       2048 kB\n");
	huge = pier_read_huge_pages(path);
	assert_int_equal(huge.size, 2 << 20);
	assert_int_equal(huge.total, 12);
	assert_int_equal(huge.free, 5);
	write_file("meminfo", "Hugepagesize:       2047 kB\n");
	assert_int_equal(pier_read_huge_pages(path).size, 0);
	assert_int_equal(pier_read_huge_pages(inside("missing")).size, 0);
}

/* On any machine: a reason exactly if the backend does not work. */
static void probes_agree_with_allocations(void **state)
{
	static const struct pier_backend *const backends[] = {
		&pier_host_backend,
		&pier_memfd_backend,
		&pier_udmabuf_backend,
		&pier_dma_heap_backend,
	};

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		struct test_census before = test_take_census();
		char detail[256] = "";
		int result = backends[i]->probe(detail, sizeof(detail));

		print_message("%s: %s\n", backends[i]->name, detail);
		assert_true(result <= 0);
		assert_true(result == 0 || detail[0] != '\0');
		test_assert_census(&before);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(names_the_reason, make_folder,
						remove_folder),
		cmocka_unit_test(reasons_have_an_errno),
		cmocka_unit_test_setup_teardown(reads_udmabuf_limits, make_folder,
						remove_folder),
		cmocka_unit_test_setup_teardown(reports_why_a_dma_heap_is_missing,
						make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(reads_huge_page_counts, make_folder,
						remove_folder),
		cmocka_unit_test(probes_agree_with_allocations),
	};

	return cmocka_run_group_tests_name("availability", tests, NULL, NULL);
}

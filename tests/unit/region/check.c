/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernel's rules for registrations, as pier checks them in advance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/error.h>
#include <pier/mr.h>

#include "core/page.h"
#include "region/plan.h"

enum {
	WRITE = PIER_ACCESS_LOCAL_WRITE,
	SHARED = PIER_ACCESS_SHARED,
	MEMFD_SIZE = 3 * 4096 + 100,
};

static const struct pier_provider provider = { .takes_memfd = true };
static const struct pier_device nic = {
	.provider = &provider,
	.dmabuf = true,
	.name = "nic0",
};

struct host_case {
	uint64_t address, length, iova;
	int access, error;
	const char *sentence; /* a part of it */
};

static const struct host_case host_cases[] = {
	{ 0x1000, 1, 0x1000, 0, 0, NULL },
	{ 0x1234, 4096, 0x1234, SHARED, 0, NULL },
	{ 0x1234, 4096, 0xabcd234, SHARED, 0, NULL },
	{ 0x1000, 8, 0x1000, SHARED | PIER_ACCESS_REMOTE_ATOMIC, 0, NULL },
	{ 0x1000, 8, 0x1000, PIER_ACCESS_RELAXED_ORDERING, 0, NULL },
	{ 0x1000, 1ull << 40, 0x1000, 0, 0, NULL },
	{ 0x1000, 0, 0x1000, WRITE, EINVAL, "length 0" },
	{ 0x1000, 1, 0x1001, WRITE, EINVAL, "modulo the page of 4096" },
	{ 0x1fff, 1, 0x2000, WRITE, EINVAL, "modulo the page" },
	{ 0x1000, 1, 0x1000, PIER_ACCESS_REMOTE_WRITE, EINVAL, "need LOCAL_WRITE" },
	{ 0x1000, 1, 0x1000, PIER_ACCESS_REMOTE_ATOMIC, EINVAL, "need LOCAL_WRITE" },
	{ 0x1000, 1, 0x1000, 1 << 5, EINVAL, "flags 0x20 are not possible here" },
	{ 0x1000, 1, 0x1000, PIER_ACCESS_MW_BIND, 0, NULL },
	{ 0x1000, 1, 0x1000, PIER_ACCESS_ON_DEMAND, 0, NULL },
	{ 0x1000, 1, 0x1000, 1 << 30 | WRITE, EINVAL, "flags 0x40000000" },
	{ UINT64_MAX - 10, 11, UINT64_MAX - 10, 0, EINVAL, "leave the address space" },
	{ UINT64_MAX - 5000, 10, UINT64_MAX - 5000, 0, 0, NULL },
	{ 0x1000, 1ull << 43, 0xfffffffffffff000, 0, EINVAL, "iova" },
	{ 0x1000, 0xfff, 0xfffffffffffff000, 0, 0, NULL },
	{ 0x1000, 0x1000, 0xfffffffffffff000, 0, EINVAL, "iova" },
	{ 0x1000, 4096ull * UINT32_MAX, 0x1000, 0, 0, NULL },
	{ 0x1001, 4096ull * UINT32_MAX - 1, 0x1001, 0, 0, NULL },
	{ 0x1000, 4096ull * UINT32_MAX + 1, 0x1000, 0, EINVAL, "4294967295 pages" },
	{ 0x1001, 4096ull * UINT32_MAX, 0x1001, 0, EINVAL, "4294967295 pages" },
};

static void expect(int got, int error, const char *sentence, size_t number)
{
	if (got != -error)
		print_error("case %zu: %d instead of %d (%s)\n", number, got, -error,
			    pier_error_message());
	assert_int_equal(got, -error);
	if (sentence && !strstr(pier_error_message(), sentence))
		print_error("case %zu: \"%s\" lacks \"%s\"\n", number,
			    pier_error_message(), sentence);
	assert_true(!sentence || strstr(pier_error_message(), sentence));
}

static void checks_host_ranges(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(host_cases) / sizeof(host_cases[0]); i++) {
		const struct host_case *c = &host_cases[i];

		expect(pier_check_host(&nic, c->address, c->length, c->iova, c->access),
		       c->error, c->sentence, i);
	}
}

struct dmabuf_case {
	uint64_t offset, length, iova;
	int access, error;
	const char *sentence;
};

static const struct dmabuf_case dmabuf_cases[] = {
	{ 0, MEMFD_SIZE, 0, SHARED, 0, NULL },
	{ 0, 1, 0x7000, 0, 0, NULL },
	{ 1, 1, 0x7001, WRITE, 0, NULL },
	{ MEMFD_SIZE - 1, 1, 0x7000 + (MEMFD_SIZE - 1) % 4096, WRITE, 0, NULL },
	{ 1, 1, 0x7000, WRITE, EINVAL, "modulo the page" },
	{ 0, 1, 0x7001, WRITE, EINVAL, "modulo the page" },
	{ 4096, 1, 4095, WRITE, EINVAL, "modulo the page" },
	{ 0, 0, 0, WRITE, EINVAL, "length 0" },
	{ 0, MEMFD_SIZE + 1, 0, WRITE, EINVAL, "but the dma-buf has 12388 bytes" },
	{ MEMFD_SIZE, 1, MEMFD_SIZE, WRITE, EINVAL, "but the dma-buf has" },
	{ UINT64_MAX, 2, 0xfff, WRITE, EINVAL, "overflow 64 bits" },
	{ 0, UINT64_MAX, 0, WRITE, EINVAL, "but the dma-buf has" },
	{ 1, 0, 1, WRITE, EINVAL, "length 0" },
	{ 0, 2, UINT64_MAX - 4095, WRITE, 0, NULL },
	{ 0, 4095, UINT64_MAX - 4095, WRITE, 0, NULL },
	{ 0, 4096, UINT64_MAX - 4095, WRITE, EINVAL, "iova" },
	{ 0, 4097, UINT64_MAX - 4095, WRITE, EINVAL, "iova" },
	{ 0, 1, 0, PIER_ACCESS_REMOTE_WRITE, EINVAL, "need LOCAL_WRITE" },
	{ 0, 1, 0, PIER_ACCESS_MW_BIND, EINVAL, "flags 0x10 are not possible on a dma" },
	{ 0, 1, 0, PIER_ACCESS_ON_DEMAND, EINVAL, "flags 0x40 are not possible on" },
	{ 0, 1, 0, 1 << 5, EINVAL, "flags 0x20" },
};

/* A right that the device lacks is refused by name, after rights that no device has. */
static void names_a_right_that_the_device_lacks(void **state)
{
	static const struct {
		int access, lacking, error;
		const char *sentence;
	} cases[] = {
		{ PIER_ACCESS_MW_BIND, PIER_ACCESS_MW_BIND, EOPNOTSUPP,
		  "nic0 has no MW_BIND" },
		{ PIER_ACCESS_ON_DEMAND, PIER_ACCESS_ON_DEMAND, EOPNOTSUPP,
		  "nic0 has no ON_DEMAND" },
		{ SHARED | PIER_ACCESS_REMOTE_ATOMIC, PIER_ACCESS_REMOTE_ATOMIC,
		  EOPNOTSUPP, "nic0 has no REMOTE_ATOMIC" },
		{ PIER_ACCESS_MW_BIND, PIER_ACCESS_ON_DEMAND, 0, NULL },
		{ PIER_ACCESS_REMOTE_ATOMIC, PIER_ACCESS_REMOTE_ATOMIC, EINVAL,
		  "need LOCAL_WRITE" },
		{ PIER_ACCESS_MW_BIND | 1 << 5, PIER_ACCESS_MW_BIND, EINVAL,
		  "flags 0x20" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_device poor = nic;

		poor.lacking_access = cases[i].lacking;
		expect(pier_check_host(&poor, 0x1000, 1, 0x1000, cases[i].access),
		       cases[i].error, cases[i].sentence, i);
	}
}

static int make_memfd(void)
{
	int fd = memfd_create("check", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, MEMFD_SIZE), 0);
	return fd;
}

static void checks_dmabuf_ranges(void **state)
{
	int fd = make_memfd();

	(void)state;
	for (size_t i = 0; i < sizeof(dmabuf_cases) / sizeof(dmabuf_cases[0]); i++) {
		const struct dmabuf_case *c = &dmabuf_cases[i];

		expect(pier_check_dmabuf(&nic, c->offset, c->length, c->iova, fd,
					 c->access),
		       c->error, c->sentence, i);
	}
	close(fd);
}

static void refuses_unusable_fds(void **state)
{
	int memfd = make_memfd(), null = open("/dev/null", O_RDONLY | O_CLOEXEC), path;
	static const struct pier_provider dmabufs_only;
	struct pier_device strict = nic;

	(void)state;
	strict.provider = &dmabufs_only;
	expect(pier_check_dmabuf(&nic, 0, 1, 0, -1, WRITE), EBADF, "fd -1", 0);
	expect(pier_check_dmabuf(&nic, 0, 1, 0, null, WRITE), EINVAL, "not a dma-buf", 1);
	expect(pier_check_dmabuf(&strict, 0, 1, 0, memfd, WRITE), EINVAL, "memfd", 2);
	/* The kernel does not treat such an fd as open: fget() skips it. */
	path = open("/dev/null", O_PATH | O_CLOEXEC);
	expect(pier_check_dmabuf(&nic, 0, 1, 0, path, WRITE), EBADF, "O_PATH", 2);
	close(path);
	close(null);
	expect(pier_check_dmabuf(&nic, 0, 1, 0, null, WRITE), EBADF, "not open", 3);
	close(memfd);
}

/*
 * If two rules are broken, the error is that of the rule which the kernel checks first.
 */
static void reports_the_first_broken_rule(void **state)
{
	struct pier_device without = nic;

	(void)state;
	without.dmabuf = false;
	expect(pier_check_dmabuf(&without, 1, 0, 0, -1, 1 << 30), EOPNOTSUPP, "nic0", 0);
	expect(pier_check_dmabuf(&nic, 1, 0, 0, -1, 1 << 30), EINVAL, "modulo", 1);
	expect(pier_check_dmabuf(&nic, 0, 0, 0, -1, 1 << 30), EINVAL, "access", 2);
	expect(pier_check_dmabuf(&nic, 4096, UINT64_MAX, 0, -1, 0), EINVAL, "overflow",
	       3);
	expect(pier_check_dmabuf(&nic, 0, 0, 0, -1, 0), EBADF, "fd -1", 4);
}

/* Checking a memfd does not move its file position. */
static void keeps_the_file_position(void **state)
{
	int fd = make_memfd();

	(void)state;
	assert_int_equal(lseek(fd, 77, SEEK_SET), 77);
	assert_int_equal(pier_check_dmabuf(&nic, 0, 1, 0, fd, WRITE), 0);
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 77);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(checks_host_ranges),
		cmocka_unit_test(checks_dmabuf_ranges),
		cmocka_unit_test(refuses_unusable_fds),
		cmocka_unit_test(reports_the_first_broken_rule),
		cmocka_unit_test(keeps_the_file_position),
		cmocka_unit_test(names_a_right_that_the_device_lacks),
	};

	/* The numbers of the cases are for pages of 4 KiB, whatever the host has. */
	pier_known_page = 4096;
	return cmocka_run_group_tests_name("check", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Buffers that wrap a caller's dma-buf. This file replaces fstatfs(2) and
 * DMA_BUF_IOCTL_SYNC.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <pier/pier.h>

#include "core/page.h"

enum {
	LENGTH = 100000,
	OFFSET = 70001,
};

static struct {
	bool dmabuf; /* memfds pose as dma-bufs */
	int syncs;
	int fd;
	struct test_census before;
} fixture;

int __real_fstatfs64(int fd, struct statfs *ret_fs);
int __wrap_fstatfs64(int fd, struct statfs *ret_fs);
int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, void *argument);

int __wrap_fstatfs64(int fd, struct statfs *ret_fs)
{
	int result = __real_fstatfs64(fd, ret_fs);

	if (result == 0 && fixture.dmabuf)
		ret_fs->f_type = 0x444d4142; /* DMA_BUF_MAGIC */
	return result;
}

int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
	if (request != DMA_BUF_IOCTL_SYNC)
		return __real_ioctl(fd, request, argument);
	fixture.syncs++;
	return 0;
}

static int before_test(void **state)
{
	(void)state;
	fixture.dmabuf = false;
	fixture.syncs = 0;
	fixture.before = test_take_census();
	fixture.fd = memfd_create("wrapped", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fixture.fd < 0 || ftruncate(fixture.fd, OFFSET + LENGTH) ? -1 : 0;
}

static int after_test(void **state)
{
	(void)state;
	close(fixture.fd);
	test_assert_census(&fixture.before);
	return 0;
}

static struct pier_buffer *wrap(uint64_t offset, size_t length)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_wrap_dmabuf(fixture.fd, offset, length, &buffer));
	return buffer;
}

/* The fd has the same bytes, and its position does not move. */
static void copies_through_a_mapping(void **state)
{
	struct pier_buffer *buffer = wrap(OFFSET, LENGTH);
	uint64_t page = pier_host_page();
	char byte = 0;
	void *mapped = NULL;

	(void)state;
	assert_int_equal(lseek(fixture.fd, 0, SEEK_CUR), 0);
	assert_string_equal(test_buffer_info(buffer).backend, "memfd");
	assert_int_equal(pier_buffer_length(buffer), LENGTH);
	assert_int_equal(pier_buffer_address(buffer) % page, OFFSET % page);
	expect_ok(pier_buffer_map(buffer, &mapped));
	assert_int_equal((uint64_t)(uintptr_t)mapped, pier_buffer_address(buffer));
	expect_ok(pier_buffer_copy_to(buffer, LENGTH - 1, "z", 1));
	assert_int_equal(pread(fixture.fd, &byte, 1, OFFSET + LENGTH - 1), 1);
	assert_int_equal(byte, 'z');
	assert_int_equal(pwrite(fixture.fd, "a", 1, OFFSET), 1);
	assert_int_equal(*(char *)mapped, 'a');
	expect_ok(pier_buffer_free(buffer));
}

/* The caller may close its fd at once. */
static void keeps_a_duplicate(void **state)
{
	struct pier_buffer *buffer = wrap(OFFSET, LENGTH);
	struct pier_dmabuf dmabuf;
	char byte = 0;

	(void)state;
	close(fixture.fd);
	fixture.fd = -1;
	expect_ok(pier_buffer_copy_to(buffer, 5, "k", 1));
	expect_ok(pier_dmabuf_export(buffer, 5, 10, PIER_MAPPING_AUTO, &dmabuf));
	assert_int_equal(dmabuf.offset, OFFSET + 5);
	assert_int_equal(fcntl(dmabuf.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(pread(dmabuf.fd, &byte, 1, (off_t)dmabuf.offset), 1);
	assert_int_equal(byte, 'k');
	pier_dmabuf_close(&dmabuf);
	expect_ok(pier_buffer_free(buffer));
}

static void check_owner(bool dmabuf, const char *name)
{
	struct pier_buffer *buffer, *inside = NULL;
	void *mapped = NULL;

	fixture.dmabuf = dmabuf;
	buffer = wrap(1, 3 * pier_host_page());
	assert_string_equal(test_buffer_info(buffer).backend, name);
	expect_ok(pier_buffer_map(buffer, &mapped));
	expect_ok(pier_buffer_wrap((char *)mapped + 10, 10, &inside));
	assert_string_equal(test_buffer_info(inside).backend, name);
	/* The inner buffer keeps the memory. */
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_buffer_copy_to(inside, 0, "i", 1));
	assert_int_equal(((char *)mapped)[10], 'i');
	expect_ok(pier_buffer_free(inside));
}

static void finds_pointers_into_it(void **state)
{
	(void)state;
	check_owner(false, "memfd");
	assert_int_equal(fixture.syncs, 0);
	check_owner(true, "dmabuf");
	/* One sync before the copy and one after it. */
	assert_int_equal(fixture.syncs, 2);
}

/* Like an exporter without mmap(2), or a read-only fd. */
static void works_without_a_mapping(void **state)
{
	struct pier_buffer *buffer, *other;
	struct pier_dmabuf dmabuf;
	char path[64], byte = 0;
	void *mapped;
	int writable = fixture.fd;

	(void)state;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", writable);
	fixture.fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fixture.fd >= 0);
	close(writable);
	buffer = wrap(OFFSET, 1000);
	other = wrap(OFFSET, 1000);
	assert_int_not_equal(pier_buffer_address(buffer), 0);
	assert_int_equal(pier_buffer_address(buffer) % pier_host_page(),
			 OFFSET % pier_host_page());
	assert_int_not_equal(pier_buffer_address(buffer), pier_buffer_address(other));
	expect_result(pier_buffer_map(buffer, &mapped), -EOPNOTSUPP);
	expect_result(pier_buffer_copy_from(buffer, 0, &byte, 1), -EOPNOTSUPP);
	expect_ok(pier_dmabuf_export(buffer, 0, 1000, PIER_MAPPING_AUTO, &dmabuf));
	assert_int_equal(dmabuf.offset, OFFSET);
	assert_true(pier_page_agree(dmabuf.offset, dmabuf.iova, pier_host_page()));
	pier_dmabuf_close(&dmabuf);
	expect_ok(pier_buffer_free(other));
	expect_ok(pier_buffer_free(buffer));
}

static void expect_refused(int fd, uint64_t offset, size_t length, int error,
			   const char *sentence)
{
	struct pier_buffer *buffer = (struct pier_buffer *)0x1;

	expect_result(pier_buffer_wrap_dmabuf(fd, offset, length, &buffer), -error);
	test_assert_sentence(sentence);
	assert_ptr_equal(buffer, (void *)0x1);
}

static void refuses_invalid_arguments(void **state)
{
	int pipes[2];

	(void)state;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	expect_refused(pipes[0], 0, 1, EINVAL, "is neither a dma-buf nor a memfd");
	close(pipes[0]);
	close(pipes[1]);
	expect_refused(-1, 0, 1, EBADF, "fd -1 is not open");
	expect_refused(fixture.fd, 0, 0, EINVAL, "length is 0");
	for (int i = 0; i < 2; i++) {
		fixture.dmabuf = i;
		expect_refused(fixture.fd, OFFSET, LENGTH + 1, ERANGE,
			       "which has 170001 bytes");
		expect_refused(fixture.fd, UINT64_MAX, 2, ERANGE, "leave fd");
		expect_refused(fixture.fd, 2, SIZE_MAX, ERANGE, "leave fd");
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, before_test, after_test)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(copies_through_a_mapping),	 CASE(keeps_a_duplicate),
		CASE(finds_pointers_into_it),	 CASE(works_without_a_mapping),
		CASE(refuses_invalid_arguments),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("wrap_dmabuf", tests, NULL, NULL);
}

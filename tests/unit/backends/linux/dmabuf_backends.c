/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "buffer/buffer.h"
#include "core/page.h"

/*
 * udmabuf and dma_heap on machines without them: this file replaces the kernel. It checks
 * what the kernel checks (udmabuf_create() in drivers/dma-buf/udmabuf.c,
 * dma_heap_ioctl_allocate(), dma_buf_ioctl()) and hands out memfds as dma-bufs.
 */
static struct {
	int fail_open;	   /* errno for opening a device */
	int fail_ioctl;	   /* errno for making a dma-buf */
	int fail_sync;	   /* errno for the next DMA_BUF_IOCTL_SYNC */
	int interruptions; /* EINTRs of DMA_BUF_IOCTL_SYNC */
	const char *limit_mb;
	int brackets; /* open dma-bufs */
	int syncs;
	uint64_t last_sync;
} kernel;

int __real_open(const char *path, int flags, ...);
int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_ioctl(int fd, unsigned long request, void *argument);

static int open_parameter(void)
{
	int fd;

	if (!kernel.limit_mb) {
		errno = ENOENT;
		return -1;
	}
	fd = memfd_create("parameter", MFD_CLOEXEC);
	assert_int_equal(pwrite(fd, kernel.limit_mb, strlen(kernel.limit_mb), 0),
			 strlen(kernel.limit_mb));
	return fd;
}

int __wrap_open(const char *path, int flags, ...)
{
	if (strstr(path, "/sys/module/udmabuf/parameters/"))
		return open_parameter();
	if (strcmp(path, "/dev/udmabuf") == 0 ||
	    strncmp(path, "/dev/dma_heap/", 14) == 0) {
		if (kernel.fail_open) {
			errno = kernel.fail_open;
			return -1;
		}
		assert_true(flags & O_CLOEXEC);
		return __real_open("/dev/null", flags);
	}
	return __real_open(path, flags, 0600);
}

int __wrap_open64(const char *path, int flags, ...)
{
	return __wrap_open(path, flags, 0600);
}

static int create_udmabuf(const struct udmabuf_create *create)
{
	uint64_t page = pier_host_page();
	int memfd = (int)create->memfd;
	int seals = fcntl(memfd, F_GET_SEALS);
	off_t size = lseek(memfd, 0, SEEK_END);

	assert_true(seals >= 0);
	assert_int_equal(seals & (F_SEAL_SHRINK | F_SEAL_WRITE), F_SEAL_SHRINK);
	assert_int_equal(create->flags, UDMABUF_FLAGS_CLOEXEC);
	assert_int_equal(create->offset % page, 0);
	assert_int_equal(create->size % page, 0);
	assert_true(create->size > 0);
	assert_true(create->offset + create->size <= (uint64_t)size);
	return fcntl(memfd, F_DUPFD_CLOEXEC, 0);
}

static int allocate_from_heap(struct dma_heap_allocation_data *data)
{
	int fd;

	assert_int_equal(data->fd, 0); /* EINVAL if the kernel would refuse it */
	assert_int_equal(data->heap_flags, 0);
	assert_int_equal(data->fd_flags & (uint32_t) ~(O_CLOEXEC | O_ACCMODE), 0);
	/* Otherwise the mapping would be read-only, or the fd inherited. */
	assert_int_equal(data->fd_flags, O_RDWR | O_CLOEXEC);
	fd = memfd_create("heap", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, (off_t)data->len), 0);
	data->fd = (uint32_t)fd;
	return 0;
}

static int sync_dmabuf(const struct dma_buf_sync *sync)
{
	assert_int_equal(sync->flags & ~(uint64_t)DMA_BUF_SYNC_VALID_FLAGS_MASK, 0);
	assert_int_not_equal(sync->flags & DMA_BUF_SYNC_RW, 0);
	if (kernel.interruptions > 0) {
		kernel.interruptions--;
		errno = kernel.interruptions % 2 ? EINTR : EAGAIN;
		return -1;
	}
	if (kernel.fail_sync) {
		errno = kernel.fail_sync;
		kernel.fail_sync = 0;
		return -1;
	}
	kernel.syncs++;
	kernel.brackets += sync->flags & DMA_BUF_SYNC_END ? -1 : 1;
	if (sync->flags & DMA_BUF_SYNC_END)
		/* The same direction as at the start. */
		assert_int_equal(sync->flags & DMA_BUF_SYNC_RW, kernel.last_sync);
	kernel.last_sync = sync->flags;
	return 0;
}

int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
	if (request == DMA_BUF_IOCTL_SYNC)
		return sync_dmabuf(argument);
	if (request != UDMABUF_CREATE && request != DMA_HEAP_IOCTL_ALLOC)
		return __real_ioctl(fd, request, argument);
	if (kernel.fail_ioctl) {
		errno = kernel.fail_ioctl;
		return -1;
	}
	return request == UDMABUF_CREATE ? create_udmabuf(argument)
					 : allocate_from_heap(argument);
}

static const char *const specs[] = { "udmabuf", "dma_heap", "dma_heap:reserved" };

static int before_test(void **state)
{
	struct test_census *census = malloc(sizeof(*census));

	*state = census;
	if (!census)
		return -1;
	*census = test_take_census();
	memset(&kernel, 0, sizeof(kernel));
	return 0;
}

static int after_test(void **state)
{
	test_assert_census(*state);
	free(*state);
	return 0;
}

static void check_export(struct pier_buffer *buffer, size_t offset, size_t length)
{
	struct pier_dmabuf dmabuf;
	char byte = 0;

	assert_int_equal(pier_buffer_copy_to(buffer, offset, "m", 1), 0);
	assert_int_equal(
		pier_dmabuf_export(buffer, offset, length, PIER_MAPPING_AUTO, &dmabuf),
		0);
	assert_int_equal(dmabuf.offset, offset);
	assert_true(pier_page_agree(dmabuf.offset, dmabuf.iova, pier_host_page()));
	assert_int_equal(fcntl(dmabuf.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(pread(dmabuf.fd, &byte, 1, (off_t)dmabuf.offset), 1);
	assert_int_equal(byte, 'm');
	assert_int_equal(pier_buffer_copy_to(buffer, offset, "", 1), 0);
	pier_dmabuf_close(&dmabuf);
}

static void allocates_and_exports(void **state)
{
	size_t page = pier_host_page();

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct pier_buffer *buffer, *wrapped;
		void *mapped;

		assert_int_equal(pier_buffer_alloc(specs[i], 3 * page - 5, &buffer), 0);
		assert_memory_equal(specs[i], test_buffer_info(buffer).backend,
				    strlen(test_buffer_info(buffer).backend));
		check_export(buffer, 0, 3 * page - 5);
		check_export(buffer, page + 3, 2);
		check_export(buffer, 3 * page - 6, 1);

		assert_int_equal(pier_buffer_map(buffer, &mapped), 0);
		((char *)mapped)[page + 9] = 'w';
		assert_int_equal(pier_buffer_wrap((char *)mapped + page, 10, &wrapped),
				 0);
		assert_int_equal(pier_buffer_free(buffer), 0);
		assert_string_equal(test_buffer_info(wrapped).backend,
				    i == 0 ? "udmabuf" : "dma_heap");
		assert_int_equal(pier_buffer_map(wrapped, &mapped), 0);
		assert_int_equal(((char *)mapped)[9], 'w');
		assert_int_equal(pier_buffer_free(wrapped), 0);
	}
}

/* One fd for each allocation: the memfd, the device and the heap are closed. */
static void keeps_one_fd_per_allocation(void **state)
{
	size_t before = test_count_fds();

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct pier_buffer *buffer;

		assert_int_equal(pier_buffer_alloc(specs[i], 1, &buffer), 0);
		assert_int_equal(test_count_fds(), before + 1);
		assert_int_equal(pier_buffer_free(buffer), 0);
	}
}

static void brackets_copies_with_syncs(void **state)
{
	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct pier_buffer *buffer;
		char byte;

		assert_int_equal(pier_buffer_alloc(specs[i], 100, &buffer), 0);
		kernel.syncs = 0;
		kernel.interruptions = 5;
		assert_int_equal(pier_buffer_copy_to(buffer, 0, "x", 1), 0);
		assert_int_equal(kernel.syncs, 2);
		assert_int_equal(kernel.last_sync, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_END);
		assert_int_equal(pier_buffer_copy_from(buffer, 0, &byte, 1), 0);
		assert_int_equal(kernel.syncs, 4);
		assert_int_equal(kernel.last_sync, DMA_BUF_SYNC_READ | DMA_BUF_SYNC_END);
		assert_int_equal(kernel.brackets, 0);
		/* An empty copy needs no bracket. */
		assert_int_equal(pier_buffer_copy_from(buffer, 0, &byte, 0), 0);
		assert_int_equal(kernel.syncs, 4);

		kernel.fail_sync = EIO;
		byte = 'b';
		assert_int_equal(pier_buffer_copy_from(buffer, 0, &byte, 1), -EIO);
		test_assert_sentence("DMA_BUF_IOCTL_SYNC");
		assert_int_equal(byte, 'b');
		assert_int_equal(pier_buffer_free(buffer), 0);
	}
}

static void check_alloc_fails(const char *spec, size_t length, int error,
			      const char *sentence)
{
	struct pier_buffer *buffer = (struct pier_buffer *)0x1;

	assert_int_equal(pier_buffer_alloc(spec, length, &buffer), -error);
	assert_ptr_equal(buffer, (void *)0x1);
	test_assert_sentence(sentence);
}

static void refuses_what_exceeds_the_limits(void **state)
{
	struct pier_buffer *buffer;

	(void)state;
	kernel.limit_mb = "1\n";
	/* The ioctl would fail, and must not be reached. */
	kernel.fail_ioctl = EINVAL;
	check_alloc_fails("udmabuf", (1 << 20) + 1, E2BIG, "more than the 1 MiB");
	kernel.fail_ioctl = 0;
	assert_int_equal(pier_buffer_alloc("udmabuf", 1 << 20, &buffer), 0);
	assert_int_equal(pier_buffer_free(buffer), 0);
	/* An unknown limit is left to the kernel to enforce. */
	kernel.limit_mb = NULL;
	assert_int_equal(pier_buffer_alloc("udmabuf", (1 << 20) + 1, &buffer), 0);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

static void reports_failures_of_the_kernel(void **state)
{
	(void)state;
	check_alloc_fails("udmabuf:x", 1, EINVAL, "no units");
	check_alloc_fails("dma_heap:../null", 1, EOPNOTSUPP, "CONFIG_DMABUF_HEAPS");
	for (size_t i = 0; i < 3; i++) {
		check_alloc_fails(specs[i], SIZE_MAX, ENOMEM, "more than a");
		check_alloc_fails(specs[i], (size_t)1 << 62, ENOMEM, "memory");
		kernel.fail_ioctl = ENOMEM;
		check_alloc_fails(specs[i], 1, ENOMEM, "Cannot allocate memory");
		kernel.fail_ioctl = EINVAL;
		check_alloc_fails(specs[i], 1, EINVAL,
				  i ? "HEAP_IOCTL" : "UDMABUF_CREATE");
		kernel.fail_ioctl = 0;
	}
	kernel.fail_open = EACCES;
	check_alloc_fails("udmabuf", 1, EOPNOTSUPP, "permission denied");
	kernel.fail_open = EMFILE;
	check_alloc_fails("udmabuf", 1, EMFILE, "Too many open files");
	kernel.fail_open = 0;
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, before_test, after_test)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(allocates_and_exports),
		TEST(keeps_one_fd_per_allocation),
		TEST(brackets_copies_with_syncs),
		TEST(refuses_what_exceeds_the_limits),
		TEST(reports_failures_of_the_kernel),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("dmabuf_backends", tests, NULL, NULL);
}

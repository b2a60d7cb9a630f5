/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fds.h"

#define HEAP "/dev/dma_heap/system"

enum {
	PAGES = 8,
	CLOSED_FD = 1 << 20, /* beyond any limit on open files */
};

static int make_memfd(uint64_t size)
{
	int fd = memfd_create("judge", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	return fd;
}

/* A udmabuf of `count` parts of a memfd, with a page left out before each. */
static int make_udmabuf(int device, uint64_t page, const unsigned int *pages,
			size_t count)
{
	union {
		struct udmabuf_create_list list;
		char room[sizeof(struct udmabuf_create_list) +
			  4 * sizeof(struct udmabuf_create_item)];
	} create = { .list = { .flags = UDMABUF_FLAGS_CLOEXEC,
			       .count = (uint32_t)count } };
	uint64_t at = 0;
	int memfd, fd;

	for (size_t i = 0; i < count; i++)
		at += (1 + pages[i]) * page;
	memfd = make_memfd(at);
	at = 0;
	for (size_t i = 0; i < count; i++) {
		create.list.list[i] = (struct udmabuf_create_item){
			.memfd = (uint32_t)memfd,
			.offset = at + page,
			.size = pages[i] * page,
		};
		at += (1 + pages[i]) * page;
	}
	fd = ioctl(device, UDMABUF_CREATE_LIST, &create);
	assert_true(fd >= 0);
	close(memfd);
	return fd;
}

static int make_heap_dmabuf(int device, uint64_t size, int flags)
{
	struct dma_heap_allocation_data data = {
		.len = size,
		.fd_flags = (uint32_t)(flags | O_CLOEXEC),
	};

	assert_int_equal(ioctl(device, DMA_HEAP_IOCTL_ALLOC, &data), 0);
	return (int)data.fd;
}

static void add(struct targets *targets, const char *name, int fd, uint64_t size)
{
	assert_true(targets->count < MAX_TARGETS);
	targets->list[targets->count++] = (struct target){ name, fd, size };
}

/* Adds an fd that must be open. */
static void add_open(struct targets *targets, const char *name, int fd)
{
	if (fd < 0)
		fail_msg("%s: %m", name);
	add(targets, name, fd, 0);
}

static void add_udmabufs(struct targets *targets, int udmabuf, uint64_t page)
{
	static const unsigned int whole[] = { PAGES }, one[] = { 1 };
	static const unsigned int pieces[] = { 1, 2, PAGES - 3 };

	add(targets, "udmabuf", make_udmabuf(udmabuf, page, whole, 1), PAGES * page);
	add(targets, "udmabuf in pieces", make_udmabuf(udmabuf, page, pieces, 3),
	    PAGES * page);
	add(targets, "udmabuf of a page", make_udmabuf(udmabuf, page, one, 1), page);
	targets->saved_stdin = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
	assert_int_equal(dup2(targets->list[TARGET_UDMABUF].fd, STDIN_FILENO), 0);
	add(targets, "udmabuf as fd 0", STDIN_FILENO, PAGES * page);
	assert_int_equal(targets->count, UDMABUFS);
	targets->dmabufs = targets->count;
}

/* Debian's kernels for ARM have no heaps (CONFIG_DMABUF_HEAPS). */
static void add_heap_dmabufs(struct targets *targets, uint64_t page)
{
	int heap = open(HEAP, O_RDONLY | O_CLOEXEC);

	if (heap < 0) {
		printf("# without dma-bufs of %s: %m\n", HEAP);
		return;
	}
	add(targets, "dma_heap", make_heap_dmabuf(heap, PAGES * page, O_RDWR),
	    PAGES * page);
	add(targets, "read-only dma_heap", make_heap_dmabuf(heap, page, O_RDONLY), page);
	targets->dmabufs = targets->count;
	add_open(targets, HEAP, heap);
}

static void add_pipe(struct targets *targets)
{
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	add_open(targets, "read end of a pipe", ends[0]);
	add_open(targets, "write end of a pipe", ends[1]);
}

/*
 * Reopening a dma-buf by its name is refused (its inode has no open()), but O_PATH does
 * not need the inode.
 */
static void add_reopened(struct targets *targets)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d",
		 targets->list[TARGET_UDMABUF].fd);
	add_open(targets, "O_PATH of a udmabuf", open(path, O_PATH | O_CLOEXEC));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		printf("# a dma-buf cannot be opened anew: %m\n");
	else
		add(targets, "udmabuf opened anew", fd, PAGES * (uint64_t)getpagesize());
}

static void add_others(struct targets *targets, uint64_t page)
{
	add_open(targets, "/dev/null", open("/dev/null", O_RDWR | O_CLOEXEC));
	add_open(targets, "memfd", make_memfd(PAGES * page));
	add_open(targets, "O_PATH of /dev/null", open("/dev/null", O_PATH | O_CLOEXEC));
	add_open(targets, "directory", open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	add_open(targets, "regular file", open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
	add_open(targets, "file of /proc", open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
	add_open(targets, "socket", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	add_open(targets, "eventfd", eventfd(0, EFD_CLOEXEC));
	add_open(targets, "timerfd", timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
	add_open(targets, "epoll", epoll_create1(EPOLL_CLOEXEC));
	add_open(targets, "/dev/udmabuf", open("/dev/udmabuf", O_RDWR | O_CLOEXEC));
	add_pipe(targets);
	add_reopened(targets);
	add(targets, "closed fd", CLOSED_FD, 0);
	add(targets, "fd -1", -1, 0);
	add(targets, "AT_FDCWD", AT_FDCWD, 0);
	add(targets, "least fd", INT_MIN, 0);
	add(targets, "greatest fd", INT_MAX, 0);
}

bool targets_open(struct targets *targets, uint64_t page, char *ret_reason, size_t size)
{
	int udmabuf = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);

	*targets = (struct targets){ .saved_stdin = -1 };
	if (udmabuf < 0) {
		snprintf(ret_reason, size, "no dma-bufs: /dev/udmabuf cannot be opened");
		return false;
	}
	add_udmabufs(targets, udmabuf, page);
	add_heap_dmabufs(targets, page);
	add_others(targets, page);
	close(udmabuf);
	return true;
}

/* Closing numbers that were never open fails, which is harmless. */
void targets_close(struct targets *targets)
{
	for (size_t i = 0; i < targets->count; i++)
		close(targets->list[i].fd);
	if (targets->saved_stdin >= 0) {
		dup2(targets->saved_stdin, STDIN_FILENO);
		close(targets->saved_stdin);
	}
	targets->count = 0;
}

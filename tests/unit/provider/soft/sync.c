/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"

#include <errno.h>
#include <linux/dma-buf.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "soft_fixture.h"

/*
 * soft0 and dma-bufs: the brackets around its accesses, and dma-bufs that it cannot map.
 * Here memfds pose as dma-bufs: this file replaces fstatfs(2), ioctl(2) and mmap(2).
 */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	BUFFERS = 2,
	WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		   IBV_ACCESS_REMOTE_READ
};

static int buffers[BUFFERS] = { -1, -1 };

static struct {
	int fd;
	uint64_t flags;
} calls[64];
static size_t call_count;
static int no_mapping; /* errno of mmap() on a buffer; 0: it works */

/* With large files fstatfs() is fstatfs64(), and mmap() is mmap64(). */
int __real_fstatfs64(int fd, struct statfs *ret_fs);
int __wrap_fstatfs64(int fd, struct statfs *ret_fs);
void *__real_mmap64(void *addr, size_t length, int protection, int flags, int fd,
		    off_t offset);
void *__wrap_mmap64(void *addr, size_t length, int protection, int flags, int fd,
		    off_t offset);
int __real_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument);

int __wrap_fstatfs64(int fd, struct statfs *ret_fs)
{
	int result = __real_fstatfs64(fd, ret_fs);

	if (fd >= 0 && (fd == buffers[0] || fd == buffers[1]))
		ret_fs->f_type = DMA_BUF_MAGIC;
	return result;
}

void *__wrap_mmap64(void *addr, size_t length, int protection, int flags, int fd,
		    off_t offset)
{
	if (no_mapping && (fd == buffers[0] || fd == buffers[1])) {
		errno = no_mapping;
		return MAP_FAILED;
	}
	return __real_mmap64(addr, length, protection, flags, fd, offset);
}

int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
	const struct dma_buf_sync *sync = argument;

	if (request != DMA_BUF_IOCTL_SYNC)
		return __real_ioctl(fd, request, argument);
	assert_true(call_count < sizeof(calls) / sizeof(calls[0]));
	calls[call_count].fd = fd;
	calls[call_count++].flags = sync->flags;
	return 0;
}

static void open_buffers(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = memfd_create("buffer", MFD_CLOEXEC);
		assert_int_equal(ftruncate(buffers[i], 65536), 0);
	}
	call_count = 0;
}

static void close_buffers(void)
{
	for (int i = 0; i < BUFFERS; i++) {
		close(buffers[i]);
		buffers[i] = -1;
	}
}

/* Ten bytes from each of: one buffer, the other, the first again, plain memory. */
static void fill_parts(const struct soft_fixture *fixture,
		       struct pier_provider_part *parts)
{
	for (uint32_t i = 0; i < 4; i++)
		parts[i] = (struct pier_provider_part){
			.fd = i < 3 ? buffers[i % 2] : -1,
			.offset = 100 * i,
			.addr = fixture->memory,
			.length = 10,
		};
}

/* Each buffer is held open once, however many pieces it has. */
static void holds_each_buffer_open_once(void **state)
{
	struct pier_provider_part parts[5];
	struct ibv_mr *mr;
	struct soft_fixture fixture;
	int before;

	(void)state;
	open_buffers();
	fixture_open(&fixture, NULL);
	before = fixture_count_fds();
	fill_parts(&fixture, parts);
	mr = soft->reg_parts(fixture.pd, parts, 4, 0, WRITABLE, NULL);
	assert_non_null(mr);
	assert_int_equal(fixture_count_fds(), before + BUFFERS);
	assert_int_equal(soft->dereg_mr(mr), 0);
	assert_int_equal(fixture_count_fds(), before);
	parts[4] = (struct pier_provider_part){ .fd = buffers[0],
						.offset = 65536,
						.length = 1 };
	errno = 0;
	assert_null(soft->reg_parts(fixture.pd, parts, 5, 0, WRITABLE, NULL));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(fixture_count_fds(), before);
	fixture_close(&fixture);
	close_buffers();
}

/* In `calls` from `first` on: both begin, then both end, with one direction. */
static void expect_bracket(size_t first, uint64_t direction)
{
	assert_true(call_count >= first + 4);
	for (size_t i = 0; i < 4; i++) {
		uint64_t edge = i < 2 ? DMA_BUF_SYNC_START : DMA_BUF_SYNC_END;

		assert_int_equal(calls[first + i].flags, direction | edge);
		assert_int_equal(calls[first + i].fd, calls[first + i % 2].fd);
	}
	assert_int_not_equal(calls[first].fd, calls[first + 1].fd);
}

static void brackets_every_access(void **state)
{
	struct fixture_options options = { .stepped = 1 };
	struct pier_provider_part parts[4];
	struct fixture_endpoint peer = { 0 };
	struct ibv_mr *mr;
	struct soft_fixture a, b;
	char byte;

	(void)state;
	open_buffers();
	fixture_open_pair(&a, &b, &options);
	fill_parts(&b, parts);
	mr = soft->reg_parts(b.pd, parts, 4, 0, WRITABLE, NULL);
	assert_non_null(mr);
	peer.rkey = mr->rkey;
	memset(a.memory, 's', 40);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 40, &peer, 0,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	expect_bracket(0, DMA_BUF_SYNC_WRITE);
	assert_int_equal(call_count, 4);
	assert_int_equal(pread(buffers[0], &byte, 1, 209), 1);
	assert_int_equal(byte, 's');
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_READ, 2, 50, 40, &peer, 0,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_SUCCESS);
	expect_bracket(4, DMA_BUF_SYNC_READ);
	assert_int_equal(call_count, 8);
	assert_memory_equal(a.memory, a.memory + 50, 40);
	/* The last ten bytes are plain memory. */
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 3, 0, 10, &peer, 30,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&a, a.send_cq, &b, 3, IBV_WC_SUCCESS);
	assert_int_equal(call_count, 8);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
	close_buffers();
}

/* The buffer that has the word gets one bracket, for both directions. */
static void brackets_an_atomic_in_both_directions(void **state)
{
	struct fixture_options options = {
		.stepped = 1,
		.access = WRITABLE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct pier_provider_part parts[4];
	struct ibv_sge sge;
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic.compare_add = 5,
	};
	struct ibv_send_wr *bad;
	struct ibv_mr *mr;
	struct soft_fixture a, b;
	char byte;

	(void)state;
	open_buffers();
	fixture_open_pair(&a, &b, &options);
	fill_parts(&b, parts);
	mr = soft->reg_parts(b.pd, parts, 4, 0, options.access, NULL);
	assert_non_null(mr);
	sge = fixture_sge(&a, 0, 8);
	wr.wr.atomic.rkey = mr->rkey;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	assert_int_equal(call_count, 2);
	assert_int_equal(calls[0].flags, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_START);
	assert_int_equal(calls[1].flags, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_END);
	assert_int_equal(calls[0].fd, calls[1].fd);
	assert_int_equal(pread(buffers[0], &byte, 1, 0), 1);
	assert_int_equal(byte, 5);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
	close_buffers();
}

static void refuse_mapping(const struct soft_fixture *fixture, int given, int expected)
{
	int before = fixture_count_fds();

	no_mapping = given;
	errno = 0;
	assert_null(soft->reg_dmabuf_mr(fixture->pd, 0, 100, 0, buffers[0], WRITABLE));
	assert_int_equal(errno, expected);
	assert_int_equal(fixture_count_fds(), before);
	no_mapping = 0;
}

/*
 * As with those of GPUs. ENOTSUPP has no name in user space, and pier must not return it.
 */
static void refuses_dmabufs_that_cannot_be_mapped(void **state)
{
	struct soft_fixture fixture;

	(void)state;
	open_buffers();
	fixture_open(&fixture, NULL);
	refuse_mapping(&fixture, 524, EOPNOTSUPP);
	test_assert_sentence("no mapping for it (mmap: errno 524)");
	test_assert_sentence("PIER_POLICY_BOUNCE");
	refuse_mapping(&fixture, EINVAL, EOPNOTSUPP);
	refuse_mapping(&fixture, ENODEV, EOPNOTSUPP);
	refuse_mapping(&fixture, ENOMEM, ENOMEM);
	test_assert_sentence("cannot be mapped");
	refuse_mapping(&fixture, EACCES, EACCES);
	fixture_close(&fixture);
	close_buffers();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_dmabufs_that_cannot_be_mapped),
		cmocka_unit_test(holds_each_buffer_open_once),
		cmocka_unit_test(brackets_every_access),
		cmocka_unit_test(brackets_an_atomic_in_both_directions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

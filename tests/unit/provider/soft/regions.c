/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "provider/soft/limits.h"
#include "soft_fixture.h"

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	READABLE = IBV_ACCESS_REMOTE_READ,
	WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		   IBV_ACCESS_REMOTE_READ
};

/*
 * Accesses fail as after munmap(2), but the address stays reserved. Otherwise a thread
 * that starts in the meantime may map its stack there, and the access succeeds.
 */
static void vanish(char *memory, size_t length)
{
	assert_ptr_equal(mmap(memory, length, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 memory);
}

static void refuse_host(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			int access, int error)
{
	errno = 0;
	assert_null(soft->reg_mr(pd, addr, length, iova, access));
	assert_int_equal(errno, error);
}

static void refuses_invalid_host_memory(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t at = (uintptr_t)memory;
	struct ibv_mr *mr;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, NULL);
	refuse_host(fixture.pd, memory, 0, at, WRITABLE, EINVAL);
	refuse_host(fixture.pd, memory, page, at + 1, WRITABLE, EINVAL);
	refuse_host(fixture.pd, memory, SIZE_MAX, at, WRITABLE, EINVAL);
	refuse_host(fixture.pd, memory, page, at, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	refuse_host(fixture.pd, memory, page, at, IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
	refuse_host(fixture.pd, memory, page, at, WRITABLE | 1 << 19, EINVAL);
	vanish(memory + 2 * page, page);
	refuse_host(fixture.pd, memory, 4 * page, at, WRITABLE, EFAULT);
	refuse_host(fixture.pd, memory + 2 * page - 1, 2, at + 2 * page - 1, WRITABLE,
		    EFAULT);
	mprotect(memory, page, PROT_READ);
	refuse_host(fixture.pd, memory, page, at, WRITABLE, EFAULT);
	mr = soft->reg_mr(fixture.pd, memory, page, 0x70000, READABLE);
	assert_non_null(mr);
	assert_ptr_equal(mr->addr, memory);
	assert_int_equal(soft->dereg_mr(mr), 0);
	munmap(memory, 4 * page);
	fixture_close(&fixture);
}

static void refuse_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t length,
			  uint64_t iova, int fd, int access, int error)
{
	errno = 0;
	assert_null(soft->reg_dmabuf_mr(pd, offset, length, iova, fd, access));
	assert_int_equal(errno, error);
}

/* If two rules are broken at once, the error follows the kernel's order. */
static void refuses_invalid_dmabufs(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	int file = open("/dev/null", O_RDWR | O_CLOEXEC);
	int fd = memfd_create("test", MFD_CLOEXEC);
	struct soft_fixture fixture;

	(void)state;
	assert_int_equal(ftruncate(fd, 4 * page), 0);
	fixture_open(&fixture, NULL);
	refuse_dmabuf(fixture.pd, 0, 0, 1, -1, 1 << 19, EINVAL);
	refuse_dmabuf(fixture.pd, 0, 0, 0, -1, WRITABLE | IBV_ACCESS_ZERO_BASED, EINVAL);
	refuse_dmabuf(fixture.pd, 0, 0, 0, -1, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	refuse_dmabuf(fixture.pd, 0, 0, 0, -1, WRITABLE, EBADF);
	refuse_dmabuf(fixture.pd, 0, page, 0, 1000000, WRITABLE, EBADF);
	refuse_dmabuf(fixture.pd, 0, page, 0, file, WRITABLE, EINVAL);
	refuse_dmabuf(fixture.pd, 0, 0, 0, fd, WRITABLE, EINVAL);
	refuse_dmabuf(fixture.pd, 0, 4 * page + 1, 0, fd, WRITABLE, EINVAL);
	refuse_dmabuf(fixture.pd, 4 * page, 1, 0, fd, WRITABLE, EINVAL);
	refuse_dmabuf(fixture.pd, UINT64_MAX - page + 1, page, 0, fd, WRITABLE, EINVAL);
	close(fd);
	close(file);
	fixture_close(&fixture);
}

static void accesses_a_memfd_by_its_iova(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	uint64_t offset = page + 100, iova = 0x123400000000 + 100;
	int fd = memfd_create("test", MFD_CLOEXEC), before = fixture_count_fds();
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;
	struct ibv_mr *mr;
	char bytes[102];

	(void)state;
	assert_int_equal(ftruncate(fd, 4 * page), 0);
	fixture_open_pair(&a, &b, NULL);
	mr = soft->reg_dmabuf_mr(b.pd, offset, 2 * page, iova, fd, WRITABLE);
	assert_non_null(mr);
	assert_ptr_equal(mr->addr, (void *)offset);
	fixture_describe(&b, &to_b);
	to_b.rkey = mr->rkey;
	to_b.address = iova;
	memset(a.memory, 'd', 100);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 100, &to_b, 50,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	assert_int_equal(pread(fd, bytes, 102, offset + 49), 102);
	assert_int_equal(bytes[0], 0);
	assert_memory_equal(bytes + 1, a.memory, 100);
	assert_int_equal(bytes[101], 0);
	/* The address of the mapping has no meaning; only the iova does. */
	to_b.address = (uintptr_t)mr->addr;
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 2, 0, 100, &to_b, 0, 0), 0);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
	assert_int_equal(fixture_count_fds(), before);
	close(fd);
}

/* Memory that vanishes under a region causes an error, not a signal. */
static void survives_vanished_memory(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	int fd = memfd_create("test", MFD_CLOEXEC);
	struct fixture_endpoint to_b;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	assert_int_equal(ftruncate(fd, 4 * page), 0);
	fixture_open_pair(&a, &b, NULL);
	mr = soft->reg_dmabuf_mr(b.pd, 0, 4 * page, 0, fd, WRITABLE);
	assert_non_null(mr);
	assert_int_equal(ftruncate(fd, 0), 0);
	fixture_describe(&b, &to_b);
	to_b.rkey = mr->rkey;
	to_b.address = 0;
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 100, &to_b, 0, 0), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
	close(fd);
}

static void survives_a_vanished_source(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, page, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = (uint32_t)page };
	struct ibv_send_wr *bad, wr = { .wr_id = 1,
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED };
	struct fixture_endpoint to_b;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&b, &to_b);
	mr = soft->reg_mr(a.pd, memory, page, (uintptr_t)memory, WRITABLE);
	assert_non_null(mr);
	vanish(memory, page);
	sge.lkey = mr->lkey;
	wr.wr.rdma.remote_addr = to_b.address;
	wr.wr.rdma.rkey = to_b.rkey;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	munmap(memory, page);
	fixture_close(&a);
	fixture_close(&b);
}

enum {
	KEPT = 2 * SOFT_MAX_VECTOR
};

/* Every other byte of the fixture's memory, followed by a piece that has vanished. */
static struct ibv_mr *make_vanishing(struct soft_fixture *fixture)
{
	size_t page = sysconf(_SC_PAGESIZE);
	int fd = memfd_create("vanishing", MFD_CLOEXEC);
	struct pier_provider_part parts[KEPT + 1];
	struct ibv_mr *mr;

	assert_int_equal(ftruncate(fd, page), 0);
	for (int i = 0; i < KEPT; i++)
		parts[i] = (struct pier_provider_part){ .fd = -1,
							.addr = fixture->memory + 2 * i,
							.length = 1 };
	parts[KEPT] = (struct pier_provider_part){ .fd = fd, .length = page };
	mr = soft->reg_parts(fixture->pd, parts, KEPT + 1, 0, WRITABLE, NULL);
	assert_non_null(mr);
	assert_int_equal(ftruncate(fd, 0), 0);
	close(fd);
	return mr;
}

/* Bytes moved before stay moved, and the bytes between are not touched. */
static void survives_a_vanished_piece_of_the_target(void **state)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE
	};
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	memset(a.memory, 'w', KEPT + 1);
	mr = make_vanishing(&b);
	sge = fixture_sge(&a, 0, KEPT + 1);
	wr.wr.rdma.rkey = mr->rkey;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < 2 * KEPT; i++)
		assert_int_equal(b.memory[i], i % 2 == 0 ? 'w' : 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
}

/* The peer has the header and half of the payload, which is not valid. */
static void survives_a_vanished_piece_of_the_source(void **state)
{
	struct ibv_sge sge = { .length = KEPT + 1 };
	struct ibv_send_wr *bad,
		wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	mr = make_vanishing(&a);
	sge.lkey = mr->lkey;
	assert_int_equal(fixture_post_recv(&b, 2, 0, FIXTURE_MEMORY), 0);
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_LOC_PROT_ERR);
	fixture_expect(&b, b.recv_cq, &a, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_invalid_host_memory),
		cmocka_unit_test(refuses_invalid_dmabufs),
		cmocka_unit_test(accesses_a_memfd_by_its_iova),
		cmocka_unit_test(survives_vanished_memory),
		cmocka_unit_test(survives_a_vanished_source),
		cmocka_unit_test(survives_a_vanished_piece_of_the_target),
		cmocka_unit_test(survives_a_vanished_piece_of_the_source),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

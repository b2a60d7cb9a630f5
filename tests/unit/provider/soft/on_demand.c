/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "provider/soft/limits.h"
#include "soft_fixture.h"

/* Host memory whose pages are looked up when they are accessed. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	PAGES = 256, /* more than a socket holds */
	ON_DEMAND = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND
};

static const struct fixture_options stepped = { .stepped = 1 };

/* Two ends, and a region of the second one that is only a range of addresses. */
struct demand {
	struct soft_fixture a, b;
	char *memory;
	size_t page, length;
	struct ibv_mr *mr;
	struct fixture_endpoint peer;
};

static char *map(struct demand *demand, size_t offset, size_t length, int protection)
{
	return mmap(demand->memory + offset, length, protection,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void punch_hole(struct demand *demand, size_t offset, size_t length)
{
	assert_int_equal(munmap(demand->memory + offset, length), 0);
}

/* Fails if something else was mapped there in the meantime, so as not to unmap it. */
static void plug_hole(struct demand *demand, size_t offset, size_t length)
{
	assert_ptr_equal(mmap(demand->memory + offset, length, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
			 demand->memory + offset);
}

/*
 * Remove the mapping if the NICs are stepped; a thread of theirs might map something into
 * the hole. Otherwise keep the range reserved but inaccessible.
 */
static void set_up(struct demand *demand)
{
	demand->page = sysconf(_SC_PAGESIZE);
	demand->length = PAGES * demand->page;
	demand->memory = mmap(NULL, demand->length, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(demand->memory, MAP_FAILED);
	fixture_open_pair(&demand->a, &demand->b, &stepped);
	demand->mr = soft->reg_mr(demand->b.pd, demand->memory, demand->length,
				  (uintptr_t)demand->memory, ON_DEMAND);
	assert_non_null(demand->mr);
	fixture_describe(&demand->b, &demand->peer);
	demand->peer.rkey = demand->mr->rkey;
	demand->peer.address = (uintptr_t)demand->memory;
	memset(demand->a.memory, 'd', FIXTURE_MEMORY);
}

static void tear_down(struct demand *demand)
{
	assert_int_equal(soft->dereg_mr(demand->mr), 0);
	fixture_close(&demand->a);
	fixture_close(&demand->b);
	munmap(demand->memory, demand->length);
}

static void transfer(struct demand *demand, enum ibv_wr_opcode opcode, uint64_t at,
		     uint32_t length, enum ibv_wc_status status)
{
	assert_int_equal(fixture_post(&demand->a, opcode, 1, 0, length, &demand->peer, at,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&demand->a, demand->a.send_cq, &demand->b, 1, status);
}

static void refuses_invalid_registrations(void **state)
{
	int fd = memfd_create("demand", MFD_CLOEXEC);
	size_t page = sysconf(_SC_PAGESIZE);
	bool on_demand = false;
	struct soft_fixture fixture;

	(void)state;
	assert_int_equal(ftruncate(fd, page), 0);
	fixture_open(&fixture, NULL);
	assert_int_equal(soft->query_on_demand(fixture.context, &on_demand), 0);
	assert_true(on_demand);
	errno = 0;
	assert_null(soft->reg_dmabuf_mr(fixture.pd, 0, page, 0, fd, ON_DEMAND));
	assert_int_equal(errno, EINVAL);
	for (int i = 0; i < 2; i++) {
		struct pier_provider_part parts[2] = {
			{ .fd = -1, .addr = fixture.memory, .length = 5 },
			{ .fd = -1, .addr = fixture.memory, .length = 5 },
		};

		parts[i].fd = fd;
		errno = 0;
		assert_null(soft->reg_parts(fixture.pd, parts, 2, 0, ON_DEMAND, NULL));
		assert_int_equal(errno, EINVAL);
	}
	errno = 0;
	assert_null(soft->reg_mr(fixture.pd, NULL, SIZE_MAX, 0, ON_DEMAND));
	assert_int_equal(errno, EINVAL);
	close(fd);
	fixture_close(&fixture);
}

static unsigned int count_resident(char *memory, size_t pages)
{
	size_t page = sysconf(_SC_PAGESIZE);
	unsigned char resident[PAGES];
	unsigned int count = 0;

	assert_int_equal(mincore(memory, pages * page, resident), 0);
	for (size_t i = 0; i < pages; i++)
		count += resident[i] & 1;
	return count;
}

/* Unlike a registration without the flag, this one brings in no page. */
static void registration_brings_in_no_page(void **state)
{
	struct demand demand;
	struct ibv_mr *pinned;

	(void)state;
	set_up(&demand);
	map(&demand, 0, demand.length, PROT_READ | PROT_WRITE);
	/* One page at a time; EINVAL: the kernel knows no other page sizes. */
	assert_true(madvise(demand.memory, demand.length, MADV_NOHUGEPAGE) == 0 ||
		    errno == EINVAL);
	assert_int_equal(count_resident(demand.memory, PAGES), 0);
	transfer(&demand, IBV_WR_RDMA_WRITE, demand.page, 1, IBV_WC_SUCCESS);
	assert_int_equal(count_resident(demand.memory, PAGES), 1);
	pinned = soft->reg_mr(demand.b.pd, demand.memory, demand.length,
			      (uintptr_t)demand.memory,
			      ON_DEMAND & ~IBV_ACCESS_ON_DEMAND);
	assert_non_null(pinned);
	assert_int_equal(count_resident(demand.memory, PAGES), PAGES);
	assert_int_equal(soft->dereg_mr(pinned), 0);
	tear_down(&demand);
}

static void can_be_registered_before_mapping(void **state)
{
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };

	(void)state;
	for (int i = 0; i < 2; i++) {
		for (int hole = 0; hole < 2; hole++) {
			struct demand demand;

			set_up(&demand);
			if (hole)
				punch_hole(&demand, 0, demand.length);
			transfer(&demand, opcodes[i], 100, 50, IBV_WC_REM_ACCESS_ERR);
			if (hole)
				plug_hole(&demand, 0, demand.length);
			tear_down(&demand);
		}
	}
}

static void sees_pages_mapped_later(void **state)
{
	struct demand demand;
	size_t at;

	(void)state;
	set_up(&demand);
	at = 3 * demand.page - 20;
	map(&demand, 2 * demand.page, 2 * demand.page, PROT_READ | PROT_WRITE);
	transfer(&demand, IBV_WR_RDMA_WRITE, at, 50, IBV_WC_SUCCESS);
	assert_int_equal(demand.memory[at - 1], 0);
	assert_memory_equal(demand.memory + at, demand.a.memory, 50);
	assert_int_equal(demand.memory[at + 50], 0);
	/* Other pages at the same address are other memory. */
	map(&demand, 2 * demand.page, 2 * demand.page, PROT_READ | PROT_WRITE);
	memset(demand.memory + at, 'n', 50);
	transfer(&demand, IBV_WR_RDMA_READ, at, 50, IBV_WC_SUCCESS);
	assert_memory_equal(demand.memory + at, demand.a.memory, 50);
	assert_int_equal(demand.a.memory[50], 'd');
	/* Read-only memory can be registered for writing; the write is refused. */
	mprotect(demand.memory, demand.length, PROT_READ);
	transfer(&demand, IBV_WR_RDMA_READ, at, 50, IBV_WC_SUCCESS);
	transfer(&demand, IBV_WR_RDMA_WRITE, at, 50, IBV_WC_REM_ACCESS_ERR);
	tear_down(&demand);
}

/* A response cannot be taken back once it has begun, so it must not begin. */
static void read_with_a_late_hole_sends_nothing(void **state)
{
	struct demand demand;
	struct ibv_mr *mr;
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ
	};
	char *sink;

	(void)state;
	set_up(&demand);
	sink = mmap(NULL, demand.length, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(sink, MAP_FAILED);
	mr = soft->reg_mr(demand.a.pd, sink, demand.length, (uintptr_t)sink, ON_DEMAND);
	assert_non_null(mr);
	map(&demand, 0, demand.length, PROT_READ | PROT_WRITE);
	punch_hole(&demand, demand.length - demand.page, demand.page);
	sge = (struct ibv_sge){ (uintptr_t)sink, (uint32_t)demand.length, mr->lkey };
	wr.wr.rdma.rkey = demand.peer.rkey;
	wr.wr.rdma.remote_addr = demand.peer.address;
	assert_int_equal(ibv_post_send(demand.a.qp, &wr, &bad), 0);
	fixture_expect(&demand.a, demand.a.send_cq, &demand.b, 1, IBV_WC_REM_ACCESS_ERR);
	plug_hole(&demand, demand.length - demand.page, demand.page);
	assert_int_equal(soft->dereg_mr(mr), 0);
	munmap(sink, demand.length);
	tear_down(&demand);
}

/* The region belongs to `demand->b`, which is the sender here. */
static void survives_holes_in_the_source(void **state)
{
	struct demand demand;
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED };

	(void)state;
	set_up(&demand);
	sge = (struct ibv_sge){ (uintptr_t)demand.memory, 10, demand.mr->lkey };
	map(&demand, 0, demand.page, PROT_READ | PROT_WRITE);
	memset(demand.memory, 's', 10);
	assert_int_equal(fixture_post_recv(&demand.a, 1, 100, 10), 0);
	assert_int_equal(ibv_post_send(demand.b.qp, &wr, &bad), 0);
	fixture_expect(&demand.b, demand.b.send_cq, &demand.a, 0, IBV_WC_SUCCESS);
	fixture_expect(&demand.a, demand.a.recv_cq, &demand.b, 1, IBV_WC_SUCCESS);
	assert_memory_equal(demand.a.memory + 100, demand.memory, 10);
	punch_hole(&demand, 0, demand.page);
	assert_int_equal(ibv_post_send(demand.b.qp, &wr, &bad), 0);
	fixture_expect(&demand.b, demand.b.send_cq, &demand.a, 0, IBV_WC_LOC_PROT_ERR);
	plug_hole(&demand, 0, demand.page);
	tear_down(&demand);
}

static void survives_holes_in_the_target(void **state)
{
	struct demand demand;
	struct ibv_sge sge;
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	(void)state;
	set_up(&demand);
	sge = (struct ibv_sge){ (uintptr_t)demand.memory, 10, demand.mr->lkey };
	assert_int_equal(ibv_post_recv(demand.b.qp, &wr, &bad), 0);
	assert_int_equal(fixture_post(&demand.a, IBV_WR_SEND, 1, 0, 10, NULL, 0, 0), 0);
	fixture_expect(&demand.b, demand.b.recv_cq, &demand.a, 0, IBV_WC_LOC_PROT_ERR);
	fixture_expect(&demand.a, demand.a.send_cq, &demand.b, 1, IBV_WC_REM_OP_ERR);
	tear_down(&demand);
}

/*
 * Only pages that a message touches must exist. Pages behind the first vector of pieces
 * are checked before that vector leaves.
 */
static void checks_only_touched_pages(void **state)
{
	enum {
		MAPPED = 2 * SOFT_MAX_VECTOR
	};
	struct pier_provider_part parts[MAPPED + 1];
	struct demand demand;
	struct ibv_mr *mr;

	(void)state;
	set_up(&demand);
	map(&demand, 0, demand.page, PROT_READ | PROT_WRITE);
	for (int i = 0; i <= MAPPED; i++)
		parts[i] = (struct pier_provider_part){ .fd = -1,
							.addr = demand.memory + 2 * i,
							.length = 1 };
	parts[MAPPED].addr = demand.memory + 2 * demand.page;
	mr = soft->reg_parts(demand.b.pd, parts, MAPPED + 1, 0, ON_DEMAND, NULL);
	assert_non_null(mr);
	demand.peer.rkey = mr->rkey;
	demand.peer.address = 0;
	transfer(&demand, IBV_WR_RDMA_WRITE, 0, MAPPED, IBV_WC_SUCCESS);
	for (int i = 0; i <= 2 * MAPPED; i++)
		assert_int_equal(demand.memory[i], i % 2 || i == 2 * MAPPED ? 0 : 'd');
	transfer(&demand, IBV_WR_RDMA_READ, 0, MAPPED, IBV_WC_SUCCESS);
	punch_hole(&demand, 2 * demand.page, demand.page);
	transfer(&demand, IBV_WR_RDMA_READ, 0, MAPPED + 1, IBV_WC_REM_ACCESS_ERR);
	plug_hole(&demand, 2 * demand.page, demand.page);
	assert_int_equal(soft->dereg_mr(mr), 0);
	tear_down(&demand);
}

static int advise(struct demand *demand, enum ibv_advise_mr_advice advice, size_t offset,
		  size_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)demand->memory + offset,
		.length = (uint32_t)length,
		.lkey = demand->mr->lkey,
	};

	return ibv_advise_mr(demand->b.pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
}

static bool is_resident(struct demand *demand, size_t page)
{
	unsigned char resident = 0;

	assert_int_equal(
		mincore(demand->memory + page * demand->page, demand->page, &resident),
		0);
	return resident & 1;
}

/* ibv_advise_mr(3) */
static void advice_faults_pages_in(void **state)
{
	struct demand demand;
	size_t page;

	(void)state;
	set_up(&demand);
	page = demand.page;
	map(&demand, 0, 8 * page, PROT_READ | PROT_WRITE);
	assert_int_equal(advise(&demand, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, page),
			 0);
	assert_false(is_resident(&demand, 0));
	assert_int_equal(
		advise(&demand, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, page + 1, page), 0);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(is_resident(&demand, i), i == 1 || i == 2);
	assert_int_equal(advise(&demand, IBV_ADVISE_MR_ADVICE_PREFETCH, 4 * page, page),
			 0);
	assert_true(is_resident(&demand, 4));
	tear_down(&demand);
}

static void refuses_invalid_advice(void **state)
{
	struct demand demand;
	struct ibv_sge sge;

	(void)state;
	set_up(&demand);
	/* Nothing is mapped there. */
	assert_int_equal(advise(&demand, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, 8), EFAULT);
	assert_int_equal(
		advise(&demand, IBV_ADVISE_MR_ADVICE_PREFETCH, demand.length - 4, 8),
		EFAULT);
	assert_int_equal(advise(&demand, (enum ibv_advise_mr_advice)9, 0, 8), EINVAL);
	sge = fixture_sge(&demand.b, 0, 8); /* not on demand */
	assert_int_equal(
		ibv_advise_mr(demand.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1),
		EPERM);
	assert_int_equal(
		ibv_advise_mr(demand.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0),
		EINVAL);
	assert_int_equal(
		ibv_advise_mr(demand.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &sge, 1),
		EINVAL);
	sge.lkey ^= 1;
	assert_int_equal(
		ibv_advise_mr(demand.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1),
		ENOENT);
	tear_down(&demand);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_invalid_registrations),
		cmocka_unit_test(registration_brings_in_no_page),
		cmocka_unit_test(can_be_registered_before_mapping),
		cmocka_unit_test(sees_pages_mapped_later),
		cmocka_unit_test(read_with_a_late_hole_sends_nothing),
		cmocka_unit_test(survives_holes_in_the_source),
		cmocka_unit_test(survives_holes_in_the_target),
		cmocka_unit_test(checks_only_touched_pages),
		cmocka_unit_test(advice_faults_pages_in),
		cmocka_unit_test(refuses_invalid_advice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

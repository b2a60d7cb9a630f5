/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_fixture.h"

/* Counters of remote writes count exactly the writes that are in memory. */

static const struct pier_provider *const soft = &pier_soft_provider;

struct counter {
	struct pier_provider_counter base; /* must be first: notify() gets it */
	atomic_uint calls;
	atomic_uint_fast64_t seen;
};

static void note(struct pier_provider_counter *base)
{
	struct counter *counter = (struct counter *)base;

	atomic_fetch_add(&counter->calls, 1);
	atomic_store(&counter->seen, atomic_load(&base->value));
}

static struct counter new_counter(void)
{
	return (struct counter){ .base.notify = note };
}

static void bind(struct ibv_mr *mr, struct counter *counter)
{
	assert_int_equal(soft->bind_counter(mr, counter ? &counter->base : NULL), 0);
}

static void expect_count(struct counter *counter, uint64_t count)
{
	assert_int_equal(atomic_load(&counter->base.value), count);
	assert_int_equal(atomic_load(&counter->calls), count);
	assert_int_equal(atomic_load(&counter->seen), count);
}

/*
 * Write from a to the memory that b described, until it completes; at both sides if b is
 * notified.
 */
static void transfer(struct soft_fixture *a, struct soft_fixture *b,
		     const struct fixture_endpoint *peer, enum ibv_wr_opcode opcode,
		     uint32_t length)
{
	bool told = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
		    opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	if (told)
		assert_int_equal(fixture_post_recv(b, 2, 0, FIXTURE_MEMORY), 0);
	assert_int_equal(
		fixture_post(a, opcode, 1, 0, length, peer, 0, IBV_SEND_SIGNALED), 0);
	if (told)
		fixture_expect(b, b->recv_cq, a, 2, IBV_WC_SUCCESS);
	fixture_expect(a, a->send_cq, b, 1, IBV_WC_SUCCESS);
}

static void counts_only_remote_writes(void **state)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		uint32_t length;
		uint64_t counts;
	} transfers[] = {
		{ IBV_WR_RDMA_WRITE, 1, 1 },
		{ IBV_WR_RDMA_WRITE, FIXTURE_MEMORY, 1 },
		{ IBV_WR_RDMA_WRITE_WITH_IMM, 1, 1 },
		{ IBV_WR_RDMA_WRITE_WITH_IMM, 5000, 1 },
		{ IBV_WR_RDMA_WRITE, 0, 0 },
		{ IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0 },
		{ IBV_WR_RDMA_READ, 100, 0 },
		{ IBV_WR_SEND, 100, 0 },
		{ IBV_WR_SEND_WITH_IMM, 100, 0 },
	};
	struct counter counter = new_counter(), other = new_counter();
	struct fixture_endpoint to_a, to_b;
	uint64_t expected = 0;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&a, &to_a);
	fixture_describe(&b, &to_b);
	bind(b.mr, &counter);
	bind(a.mr, &other);
	for (size_t i = 0; i < sizeof(transfers) / sizeof(transfers[0]); i++) {
		transfer(&a, &b, &to_b, transfers[i].opcode, transfers[i].length);
		expected += transfers[i].counts;
		expect_count(&counter, expected);
	}
	/* Reading from a region, or a READ into it, is not a write to it. */
	expect_count(&other, 0);
	transfer(&b, &a, &to_a, IBV_WR_RDMA_WRITE, 10);
	transfer(&b, &a, &to_a, IBV_WR_RDMA_READ, 10);
	expect_count(&counter, expected);
	expect_count(&other, 1);
	bind(a.mr, NULL);
	bind(b.mr, NULL);
	fixture_close(&a);
	fixture_close(&b);
}

/* A write that waits for a receive is sent again, and counts once. */
static void counts_a_repeated_write_once(void **state)
{
	struct fixture_options options = { .rnr_retry = 7,
					   .min_rnr_timer = 1,
					   .stepped = 1 };
	struct counter counter = new_counter();
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &options);
	fixture_describe(&b, &to_b);
	bind(b.mr, &counter);
	assert_int_equal(
		fixture_post(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 10, &to_b, 0, 0), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 2, 0, 10, &to_b, 0,
				      IBV_SEND_SIGNALED),
			 0);
	for (int i = 0; i < 1000; i++)
		fixture_step(&a, &b);
	expect_count(&counter, 0);
	fixture_expect_none(&a, a.send_cq);
	assert_int_equal(fixture_post_recv(&b, 3, 0, 0), 0);
	fixture_expect(&b, b.recv_cq, &a, 3, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_SUCCESS);
	expect_count(&counter, 2);
	bind(b.mr, NULL);
	fixture_close(&a);
	fixture_close(&b);
}

static void does_not_count_refused_writes(void **state)
{
	struct counter counter = new_counter();
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&b, &to_b);
	bind(b.mr, &counter);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 10, &to_b,
				      FIXTURE_MEMORY - 9, 0),
			 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_REM_ACCESS_ERR);
	expect_count(&counter, 0);
	bind(b.mr, NULL);
	fixture_close(&a);
	fixture_close(&b);
}

/* The second piece has vanished. */
static void does_not_count_partial_writes(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);
	int fd = memfd_create("counted", MFD_CLOEXEC);
	struct pier_provider_part parts[2] = { { .fd = -1, .length = 8192 },
					       { .fd = fd, .length = page } };
	struct counter counter = new_counter();
	struct fixture_endpoint peer = { 0 };
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	assert_int_equal(ftruncate(fd, page), 0);
	fixture_open_pair(&a, &b, NULL);
	parts[0].addr = b.memory;
	mr = soft->reg_parts(b.pd, parts, 2, 0,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, NULL);
	assert_non_null(mr);
	bind(mr, &counter);
	peer.rkey = mr->rkey;
	transfer(&a, &b, &peer, IBV_WR_RDMA_WRITE, 8193);
	expect_count(&counter, 1);
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8193, &peer, 0, 0), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_REM_ACCESS_ERR);
	expect_count(&counter, 1);
	bind(mr, NULL);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
	close(fd);
}

/* The writer dies after the first byte and before the last. */
static void does_not_count_writes_of_a_dead_peer(void **state)
{
	enum {
		LENGTH = 8 << 20
	};
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct fixture_options options = { .stepped = 1 };
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct counter counter = new_counter();
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = LENGTH };
	struct ibv_send_wr *bad,
		wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;
	struct ibv_mr *source, *target;
	volatile char *first;
	struct soft_fixture a, b;
	char *sink;

	(void)state;
	sink = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		    0);
	assert_true(memory != MAP_FAILED && sink != MAP_FAILED);
	memset(memory, 'x', LENGTH);
	fixture_open_pair(&a, &b, &options);
	source = soft->reg_mr(a.pd, memory, LENGTH, (uintptr_t)memory, access);
	target = soft->reg_mr(b.pd, sink, LENGTH, (uintptr_t)sink, access);
	assert_true(source && target);
	bind(target, &counter);
	sge.lkey = source->lkey;
	wr.wr.rdma.rkey = target->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)sink;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	first = sink;
	while (!*first && fixture_milliseconds() < deadline)
		fixture_step(&a, &b);
	assert_int_equal(*first, 'x');
	assert_int_equal(soft->destroy_qp(a.qp), 0);
	a.qp = NULL;
	assert_int_equal(fixture_post_recv(&b, 1, 0, 1), 0);
	fixture_expect(&b, b.recv_cq, &a, 1, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(sink[LENGTH - 1], 0);
	expect_count(&counter, 0);
	bind(target, NULL);
	assert_int_equal(soft->dereg_mr(target), 0);
	assert_int_equal(soft->dereg_mr(source), 0);
	fixture_close(&a);
	fixture_close(&b);
	munmap(memory, LENGTH);
	munmap(sink, LENGTH);
}

static void region_has_at_most_one_counter(void **state)
{
	struct counter counter = new_counter(), other = new_counter();
	struct fixture_endpoint first, second;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&b, &first);
	mr = soft->reg_mr(b.pd, b.memory, 100, (uintptr_t)b.memory,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	assert_non_null(mr);
	second = first;
	second.rkey = mr->rkey;
	bind(mr, NULL);
	transfer(&a, &b, &first, IBV_WR_RDMA_WRITE, 10);
	bind(b.mr, &counter);
	transfer(&a, &b, &second, IBV_WR_RDMA_WRITE, 10);
	expect_count(&counter, 0);
	/* A counter may cover two regions, but a region has one counter. */
	bind(mr, &counter);
	transfer(&a, &b, &first, IBV_WR_RDMA_WRITE, 10);
	transfer(&a, &b, &second, IBV_WR_RDMA_WRITE, 10);
	expect_count(&counter, 2);
	assert_int_equal(soft->bind_counter(mr, &other.base), EBUSY);
	assert_int_equal(soft->bind_counter(mr, &counter.base), EBUSY);
	assert_int_equal(soft->dereg_mr(mr), EBUSY);
	transfer(&a, &b, &second, IBV_WR_RDMA_WRITE, 10);
	expect_count(&counter, 3);
	expect_count(&other, 0);
	bind(mr, NULL);
	transfer(&a, &b, &second, IBV_WR_RDMA_WRITE, 10);
	transfer(&a, &b, &first, IBV_WR_RDMA_WRITE, 10);
	expect_count(&counter, 4);
	bind(mr, &other);
	transfer(&a, &b, &second, IBV_WR_RDMA_WRITE, 10);
	expect_count(&counter, 4);
	expect_count(&other, 1);
	bind(mr, NULL);
	bind(b.mr, NULL);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
}

/* The counter has no listener. */
static void counts_without_a_listener(void **state)
{
	struct pier_provider_counter counter = { 0 };
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&b, &to_b);
	assert_int_equal(soft->bind_counter(b.mr, &counter), 0);
	transfer(&a, &b, &to_b, IBV_WR_RDMA_WRITE, 10);
	assert_int_equal(atomic_load(&counter.value), 1);
	assert_int_equal(soft->bind_counter(b.mr, NULL), 0);
	fixture_close(&a);
	fixture_close(&b);
}

/*
 * Counters are bound and unbound while writes arrive: none is touched after it was
 * destroyed.
 */
static void can_be_unbound_under_load(void **state)
{
	enum {
		ROUNDS = 200,
		BATCH = 8
	};
	struct counter whole = new_counter();
	uint64_t counted = 0;
	struct fixture_endpoint to_b, inner;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&b, &to_b);
	inner = to_b;
	mr = soft->reg_mr(b.pd, b.memory, FIXTURE_MEMORY, (uintptr_t)b.memory,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	assert_non_null(mr);
	inner.rkey = mr->rkey;
	bind(b.mr, &whole);
	for (int round = 0; round < ROUNDS; round++) {
		struct counter *passing = calloc(1, sizeof(*passing));

		assert_non_null(passing);
		for (int i = 0; i < BATCH; i++)
			assert_int_equal(
				fixture_post(&a, IBV_WR_RDMA_WRITE, i, 0, 500,
					     i % 2 ? &to_b : &inner, 0,
					     i == BATCH - 1 ? IBV_SEND_SIGNALED : 0),
				0);
		bind(mr, passing);
		bind(mr, NULL);
		counted += atomic_load(&passing->base.value);
		memset(passing, 0xff, sizeof(*passing));
		free(passing);
		fixture_expect(&a, a.send_cq, &b, BATCH - 1, IBV_WC_SUCCESS);
	}
	assert_true(counted <= ROUNDS * BATCH / 2);
	expect_count(&whole, ROUNDS * BATCH / 2);
	bind(b.mr, NULL);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counts_only_remote_writes),
		cmocka_unit_test(counts_a_repeated_write_once),
		cmocka_unit_test(does_not_count_refused_writes),
		cmocka_unit_test(does_not_count_partial_writes),
		cmocka_unit_test(does_not_count_writes_of_a_dead_peer),
		cmocka_unit_test(region_has_at_most_one_counter),
		cmocka_unit_test(counts_without_a_listener),
		cmocka_unit_test(can_be_unbound_under_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Verbs that are newer than the headers of this build, looked up as a program does that
 * was built for an older libibverbs.
 */
#include <dlfcn.h>
#include <unistd.h>

#include "end.h"
#include "src/provider/comp_counter.h"
#include "src/provider/provider.h"

enum {
	ROUNDS = 20
};

/* Newer headers declare these functions, with types that older ones lack. */
static struct pier_comp_counter_functions counters;

static int find_counters(void **state)
{
	(void)state;
#define FIND(member, symbol)                                       \
	*(void **)&counters.member = dlvsym(RTLD_DEFAULT, #symbol, \
					    PIER_COMP_COUNTER_VERSION);
	PIER_COMP_COUNTER_SYMBOLS(FIND)
#define CHECK(member, symbol) assert_non_null(counters.member);
	PIER_COMP_COUNTER_SYMBOLS(CHECK)
	return 0;
}

static struct pier_comp_counter *new_counter(struct end *end)
{
	const struct pier_comp_counter_init_attr attr = { .type = PIER_COUNTS_REQUESTS };
	struct pier_comp_counter *counter = counters.create(end->context, &attr);

	assert_non_null(counter);
	assert_ptr_equal(counter->context, end->context);
	return counter;
}

static int attach(struct end *end, struct pier_comp_counter *counter, uint32_t kinds)
{
	const struct pier_comp_counter_attach_attr attr = { .kinds = kinds };

	return counters.attach(end->qp, counter, &attr);
}

static struct pier_comp_counter *counter_of(struct end *end, uint32_t kinds)
{
	struct pier_comp_counter *counter = new_counter(end);

	assert_int_equal(attach(end, counter, kinds), 0);
	return counter;
}

static void expect_counts(struct pier_comp_counter *counter, uint64_t successes,
			  uint64_t errors)
{
	uint64_t value = UINT64_MAX;

	assert_int_equal(counters.read(counter, &value), 0);
	assert_int_equal(value, successes);
	assert_int_equal(counters.read_errors(counter, &value), 0);
	assert_int_equal(value, errors);
}

static void connect_both(struct end *a, struct end *b)
{
	union ibv_gid gid;

	assert_int_equal(ibv_query_gid(a->context, 1, 0, &gid), 0);
	connect_end(a, &gid, b->qp->qp_num);
	connect_end(b, &gid, a->qp->qp_num);
}

static void post_recv(struct end *end)
{
	struct ibv_sge piece = {
		.addr = (uintptr_t)end->memory,
		.length = LENGTH,
		.lkey = end->mr->lkey,
	};
	struct ibv_recv_wr wr = { .sg_list = &piece, .num_sge = 1 }, *bad;

	assert_int_equal(ibv_post_recv(end->qp, &wr, &bad), 0);
}

static void counters_count_each_kind_of_operation(void **state)
{
	struct pier_comp_counter *writes, *reads, *sends, *recvs, *remote;
	struct end a = { 0 }, b = { 0 };

	(void)state;
	open_end(&a);
	open_end(&b);
	writes = counter_of(&a, PIER_COUNTS_WRITE);
	reads = counter_of(&a, PIER_COUNTS_READ);
	sends = counter_of(&a, PIER_COUNTS_SEND);
	recvs = counter_of(&b, PIER_COUNTS_RECV);
	remote = counter_of(&b, PIER_COUNTS_REMOTE_WRITE);
	connect_both(&a, &b);
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		/* An unsignaled request counts too, and completes before the next one. */
		post_between(&a, &b, IBV_WR_RDMA_WRITE, b.mr->rkey, 0);
		write_between(&a, &b);
		expect_counts(writes, 2 * i, 0);
	}
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		post_between(&a, &b, IBV_WR_RDMA_READ, b.mr->rkey, IBV_SEND_SIGNALED);
		assert_int_equal(wait_for_completion(&a), IBV_WC_SUCCESS);
		expect_counts(reads, i, 0);
	}
	post_recv(&b);
	post_recv(&b);
	post_between(&a, &b, IBV_WR_SEND, 0, IBV_SEND_SIGNALED);
	post_between(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, b.mr->rkey, IBV_SEND_SIGNALED);
	for (uint64_t i = 1; i <= 2; i++) {
		assert_int_equal(wait_for_completion(&a), IBV_WC_SUCCESS);
		assert_int_equal(wait_for_completion(&b), IBV_WC_SUCCESS);
	}
	/* The message came after all writes before it. */
	expect_counts(remote, 2 * ROUNDS + 1, 0);
	expect_counts(writes, 2 * ROUNDS + 1, 0);
	expect_counts(reads, ROUNDS, 0);
	expect_counts(sends, 1, 0);
	expect_counts(recvs, 2, 0);
	close_end(&a);
	close_end(&b);
	assert_int_equal(counters.destroy(writes), 0);
	assert_int_equal(counters.destroy(reads), 0);
	assert_int_equal(counters.destroy(sends), 0);
	assert_int_equal(counters.destroy(recvs), 0);
	assert_int_equal(counters.destroy(remote), 0);
}

static void counters_count_failures_apart(void **state)
{
	const uint32_t local = PIER_COUNTS_SEND | PIER_COUNTS_WRITE;
	struct pier_comp_counter *sent, *received;
	struct end a = { 0 }, b = { 0 };

	(void)state;
	open_end(&a);
	open_end(&b);
	sent = counter_of(&a, local);
	received = counter_of(&b, PIER_COUNTS_REMOTE_WRITE | PIER_COUNTS_RECV);
	connect_both(&a, &b);
	write_between(&a, &b);
	post_recv(&b);
	/* A key that nobody has, and a request that is flushed after it. */
	post_between(&a, &b, IBV_WR_RDMA_WRITE, b.mr->rkey + 1, 0);
	post_between(&a, &b, IBV_WR_SEND, 0, 0);
	assert_int_equal(wait_for_completion(&a), IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(wait_for_completion(&a), IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(wait_for_completion(&b), IBV_WC_WR_FLUSH_ERR);
	expect_counts(sent, 1, 2);
	expect_counts(received, 1, 2);
	close_end(&a);
	close_end(&b);
	assert_int_equal(counters.destroy(sent), 0);
	assert_int_equal(counters.destroy(received), 0);
}

static void counters_are_attached_before_the_connection(void **state)
{
	struct pier_comp_counter *counter, *other;
	struct end a = { 0 }, b = { 0 };

	(void)state;
	open_end(&a);
	open_end(&b);
	counter = counter_of(&a, PIER_COUNTS_WRITE | PIER_COUNTS_READ);
	other = new_counter(&a);
	assert_int_equal(attach(&a, other, PIER_COUNTS_READ | PIER_COUNTS_SEND), EBUSY);
	assert_int_equal(attach(&a, other, 0), EINVAL);
	assert_int_equal(attach(&a, other, PIER_COUNTS_REMOTE_READ), ENOTSUP);
	assert_int_equal(attach(&a, other, 1 << PIER_COUNTED_KINDS), ENOTSUP);
	assert_int_equal(attach(&b, other, PIER_COUNTS_SEND), EINVAL);
	connect_both(&a, &b);
	assert_int_equal(attach(&a, other, PIER_COUNTS_SEND), EINVAL);
	assert_int_equal(counters.destroy(other), 0);
	assert_int_equal(counters.destroy(counter), EBUSY);
	close_end(&a);
	close_end(&b);
	assert_int_equal(counters.destroy(counter), 0);
}

static void counters_are_set_and_wrap(void **state)
{
	struct pier_comp_counter_init_attr attr = { .type = PIER_COUNTS_BYTES };
	struct pier_comp_counter_caps caps = { .kinds = 1 };
	struct pier_comp_counter *counter;
	struct end a = { 0 };

	(void)state;
	open_end(&a);
	assert_int_equal(counters.query_caps(a.context, &caps, sizeof(caps)), 0);
	assert_true(caps.max_value == UINT64_MAX && caps.max_counters > 0);
	assert_int_equal(caps.kinds,
			 (1 << PIER_COUNTED_KINDS) - 1 - PIER_COUNTS_REMOTE_READ);
	errno = 0;
	assert_null(counters.create(a.context, &attr));
	assert_int_equal(errno, ENOTSUP);
	attr = (struct pier_comp_counter_init_attr){ .flags = 1 };
	assert_null(counters.create(a.context, &attr));
	assert_int_equal(errno, EINVAL);
	counter = new_counter(&a);
	expect_counts(counter, 0, 0);
	assert_int_equal(counters.set(counter, UINT64_MAX), 0);
	assert_int_equal(counters.set_errors(counter, 7), 0);
	expect_counts(counter, UINT64_MAX, 7);
	assert_int_equal(counters.add(counter, 3), 0);
	assert_int_equal(counters.add_errors(counter, 3), 0);
	expect_counts(counter, 2, 10);
	assert_int_equal(counters.destroy(counter), 0);
	close_end(&a);
}

/* Programs that know libibverbs 64 get ordinary memory. */
static void allocated_buffers_are_registered(void **state)
{
	struct ibv_buf;
	void *(*alloc)(struct ibv_pd *, size_t, struct ibv_buf **);
	struct ibv_mr *(*reg)(struct ibv_pd *, struct ibv_buf *, void *, size_t, int);
	int (*export)(struct ibv_buf *);
	void (*release)(struct ibv_buf *);
	struct ibv_context *context = open_soft0();
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_buf *buf = NULL;
	struct ibv_mr *mr;
	char *memory;

	(void)state;
	*(void **)&alloc = dlvsym(RTLD_DEFAULT, "ibv_alloc_buf", "IBVERBS_1.17");
	*(void **)&reg = dlvsym(RTLD_DEFAULT, "ibv_reg_buf_mr", "IBVERBS_1.17");
	*(void **)&release = dlvsym(RTLD_DEFAULT, "ibv_free_buf", "IBVERBS_1.17");
	*(void **)&export = dlvsym(RTLD_DEFAULT, "ibv_export_buf_dmabuf_fd",
				   PIER_COMP_COUNTER_VERSION);
	assert_true(alloc && reg && release && export);
	memory = alloc(pd, LENGTH, &buf);
	assert_true(memory && buf);
	assert_int_equal((uintptr_t)memory % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
	memset(memory, 'm', LENGTH);
	mr = reg(pd, buf, memory + 1, LENGTH - 1, IBV_ACCESS_LOCAL_WRITE);
	assert_non_null(mr);
	assert_true(mr->addr == memory + 1 && mr->length == LENGTH - 1 && mr->pd == pd);
	assert_null(reg(other, buf, memory, LENGTH, 0));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(reg(pd, buf, memory + 1, LENGTH, 0));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(reg(pd, buf, memory - 1, LENGTH, 0));
	assert_int_equal(errno, EINVAL);
	/* It is no dma-buf. */
	assert_int_equal(export(buf), -1);
	assert_int_equal(errno, ENODATA);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	release(buf);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which abort */
	assert_null(alloc(pd, SIZE_MAX - 1, &buf));
	assert_int_equal(errno, ENOMEM);
#endif
	assert_int_equal(ibv_dealloc_pd(other), 0);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(context), 0);
}

static void dma_handle_is_kept_by_its_region(void **state)
{
	struct pier_dmah_attr hint = { .comp_mask = PIER_DMAH_PH, .ph = 4 };
	struct pier_reg_attr region = {
		.comp_mask = PIER_REG_ADDR | PIER_REG_DMAH,
		.length = LENGTH,
		.fd = -1,
	};
	struct ibv_dmah *(*alloc)(struct ibv_context *, struct pier_dmah_attr *);
	int (*dealloc)(struct ibv_dmah *);
	struct ibv_mr *(*reg)(struct ibv_pd *, struct pier_reg_attr *);
	struct ibv_context *context = open_soft0();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char memory[LENGTH];
	struct ibv_mr *mr;

	(void)state;
	*(void **)&alloc = dlvsym(RTLD_DEFAULT, "ibv_alloc_dmah", "IBVERBS_1.15");
	*(void **)&dealloc = dlvsym(RTLD_DEFAULT, "ibv_dealloc_dmah", "IBVERBS_1.15");
	*(void **)&reg = dlvsym(RTLD_DEFAULT, "ibv_reg_mr_ex", "IBVERBS_1.15");
	assert_true(alloc && dealloc && reg);
	assert_null(alloc(context, &hint));
	assert_int_equal(errno, EINVAL);
	hint.ph = 3;
	/* A CPU without a kind of memory. */
	hint.comp_mask = PIER_DMAH_PH | PIER_DMAH_CPU_ID;
	assert_null(alloc(context, &hint));
	assert_int_equal(errno, EINVAL);
	hint.comp_mask = PIER_DMAH_PH;
	region.dmah = alloc(context, &hint);
	assert_non_null(region.dmah);
	region.addr = memory;
	mr = reg(pd, &region);
	assert_non_null(mr);
	assert_ptr_equal(mr->addr, memory);
	assert_int_equal(mr->length, LENGTH);
	assert_int_equal(dealloc(region.dmah), EBUSY);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	region.comp_mask |= PIER_REG_FD; /* and an address */
	assert_null(reg(pd, &region));
	assert_int_equal(errno, EINVAL);
	region.comp_mask = 1 << 5; /* a buffer of ibv_alloc_buf(3) */
	assert_null(reg(pd, &region));
	assert_int_equal(errno, EOPNOTSUPP);
	assert_int_equal(dealloc(region.dmah), 0);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(context), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(allocated_buffers_are_registered),
		cmocka_unit_test(dma_handle_is_kept_by_its_region),
		cmocka_unit_test(counters_count_each_kind_of_operation),
		cmocka_unit_test(counters_count_failures_apart),
		cmocka_unit_test(counters_are_attached_before_the_connection),
		cmocka_unit_test(counters_are_set_and_wrap),
	};

	return cmocka_run_group_tests(tests, find_counters, NULL);
}

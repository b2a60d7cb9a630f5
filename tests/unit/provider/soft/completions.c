/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "soft_fixture.h"

/*
 * Every way in which a request can end, in one process and single-stepped, so that
 * nothing depends on timing. A sends, B receives.
 */

static const struct fixture_options stepped = { .stepped = 1 };

static void open_ends(struct soft_fixture *a, struct soft_fixture *b,
		      struct fixture_endpoint *ret_to_b,
		      const struct fixture_options *options)
{
	fixture_open_pair(a, b, options);
	fixture_describe(b, ret_to_b);
}

static void close_ends(struct soft_fixture *a, struct soft_fixture *b)
{
	fixture_close(a);
	fixture_close(b);
}

static void sends_and_receives(void **state)
{
	struct soft_fixture a, b;
	struct fixture_endpoint to_b;
	struct ibv_wc wc;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	memset(a.memory, 's', 300);
	assert_int_equal(fixture_post_recv(&b, 11, 64, 300), 0);
	assert_int_equal(fixture_post_recv(&b, 12, 1024, 0), 0);
	assert_int_equal(
		fixture_post(&a, IBV_WR_SEND, 1, 0, 300, NULL, 0, IBV_SEND_SIGNALED), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_SEND_WITH_IMM, 2, 0, 0, NULL, 0,
				      IBV_SEND_SIGNALED),
			 0);
	wc = fixture_wait(&b, b.recv_cq, &a);
	assert_int_equal(wc.wr_id, 11);
	assert_int_equal(wc.byte_len, 300);
	assert_int_equal(wc.opcode, IBV_WC_RECV);
	assert_int_equal(wc.src_qp, a.qp->qp_num);
	wc = fixture_wait(&b, b.recv_cq, &a);
	assert_int_equal(wc.wr_id, 12);
	assert_int_equal(wc.byte_len, 0);
	assert_true(wc.wc_flags & IBV_WC_WITH_IMM);
	assert_int_equal(be32toh(wc.imm_data), 0x12345678);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_SUCCESS);
	assert_int_equal(b.memory[63], 0);
	assert_memory_equal(b.memory + 64, a.memory, 300);
	assert_int_equal(b.memory[364], 0);
	close_ends(&a, &b);
}

static void gathers_and_scatters(void **state)
{
	struct soft_fixture a, b;
	struct fixture_endpoint to_b;
	struct ibv_send_wr *bad_send, send = { .wr_id = 1,
					       .opcode = IBV_WR_SEND,
					       .send_flags = IBV_SEND_SIGNALED,
					       .num_sge = 3 };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 2, .num_sge = 2 };
	struct ibv_sge from[3], to[2];

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	for (int i = 0; i < 256; i++)
		a.memory[i] = (uint8_t)i;
	from[0] = fixture_sge(&a, 0, 10);
	from[1] =
		(struct ibv_sge){ .lkey = 0xdead }; /* length 0: the address is ignored */
	from[2] = fixture_sge(&a, 100, 50);
	to[0] = fixture_sge(&b, 0, 7);
	to[1] = fixture_sge(&b, 1000, 100);
	send.sg_list = from;
	recv.sg_list = to;
	assert_int_equal(ibv_post_recv(b.qp, &recv, &bad_recv), 0);
	assert_int_equal(ibv_post_send(a.qp, &send, &bad_send), 0);
	fixture_expect(&b, b.recv_cq, &a, 2, IBV_WC_SUCCESS);
	assert_memory_equal(b.memory, a.memory, 7);
	assert_int_equal(b.memory[7], 0);
	assert_memory_equal(b.memory + 1000, a.memory + 7, 3);
	assert_memory_equal(b.memory + 1003, a.memory + 100, 50);
	assert_int_equal(b.memory[1053], 0);
	close_ends(&a, &b);
}

static void copies_inline_data(void **state)
{
	struct soft_fixture a, b;
	struct fixture_endpoint to_b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	memset(a.memory, 'i', 64);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 64, &to_b, 8,
				      IBV_SEND_SIGNALED | IBV_SEND_INLINE),
			 0);
	memset(a.memory, 'x', 64);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	assert_int_equal(b.memory[7], 0);
	assert_int_equal(b.memory[8], 'i');
	assert_int_equal(b.memory[71], 'i');
	assert_int_equal(b.memory[72], 0);
	assert_int_equal(
		fixture_post(&a, IBV_WR_RDMA_WRITE, 2, 0, 65, &to_b, 8, IBV_SEND_INLINE),
		EINVAL);
	close_ends(&a, &b);
}

static void write_with_immediate_uses_a_receive(void **state)
{
	struct soft_fixture a, b;
	struct fixture_endpoint to_b;
	struct ibv_wc wc;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	memset(a.memory, 'm', 100);
	assert_int_equal(fixture_post_recv(&b, 5, 4096, 16), 0);
	assert_int_equal(
		fixture_post(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 100, &to_b, 0, 0), 0);
	wc = fixture_wait(&b, b.recv_cq, &a);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(wc.byte_len, 100);
	assert_int_equal(be32toh(wc.imm_data), 0x12345678);
	assert_memory_equal(b.memory, a.memory, 100);
	assert_int_equal(b.memory[100], 0);
	assert_int_equal(b.memory[4096], 0);
	close_ends(&a, &b);
}

static void unsignalled_request_has_no_completion(void **state)
{
	struct soft_fixture a, b;
	struct fixture_endpoint to_b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	for (int i = 0; i < 15; i++)
		assert_int_equal(
			fixture_post(&a, IBV_WR_RDMA_WRITE, i, 0, 8, &to_b, 0, 0), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 99, 0, 8, &to_b, 0,
				      IBV_SEND_SIGNALED),
			 0);
	/* Full until the signalled request has been polled. */
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 100, 0, 8, &to_b, 0, 0),
			 ENOMEM);
	fixture_expect(&a, a.send_cq, &b, 99, IBV_WC_SUCCESS);
	fixture_expect_none(&a, a.send_cq);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 100, 0, 8, &to_b, 0, 0), 0);
	close_ends(&a, &b);
}

static void bad_wr_is_the_first_refused_request(void **state)
{
	struct soft_fixture a, b;
	struct fixture_endpoint to_b;
	struct ibv_send_wr wrs[17] = { 0 }, *bad = NULL;
	struct ibv_sge sges[5] = { 0 };

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	for (int i = 0; i < 17; i++) {
		wrs[i].opcode = IBV_WR_RDMA_WRITE;
		wrs[i].next = i < 16 ? &wrs[i + 1] : NULL;
	}
	assert_int_equal(ibv_post_send(a.qp, wrs, &bad), ENOMEM);
	assert_ptr_equal(bad, &wrs[16]);
	close_ends(&a, &b);
	open_ends(&a, &b, &to_b, &stepped);
	wrs[0].next = NULL;
	wrs[0].sg_list = sges;
	wrs[0].num_sge = 5;
	assert_int_equal(ibv_post_send(a.qp, wrs, &bad), EINVAL);
	assert_ptr_equal(bad, &wrs[0]);
	wrs[0].num_sge = 0;
	wrs[0].opcode = IBV_WR_TSO;
	assert_int_equal(ibv_post_send(a.qp, wrs, &bad), EINVAL);
	close_ends(&a, &b);
}

/* Three in a row: the first fails with `status`, the others are flushed. */
static void expect_refused(struct soft_fixture *a, struct soft_fixture *b,
			   enum ibv_wc_status status)
{
	struct fixture_endpoint to_b;

	fixture_describe(b, &to_b);
	assert_int_equal(fixture_post_recv(a, 20, 0, 8), 0);
	assert_int_equal(fixture_post_recv(b, 30, 0, 8), 0);
	assert_int_equal(fixture_post(a, IBV_WR_RDMA_WRITE, 2, 0, 8, &to_b, 0, 0), 0);
	assert_int_equal(fixture_post(a, IBV_WR_RDMA_READ, 3, 0, 8, &to_b, 0, 0), 0);
	fixture_expect(a, a->send_cq, b, 1, status);
	fixture_expect(a, a->send_cq, b, 2, IBV_WC_WR_FLUSH_ERR);
	fixture_expect(a, a->send_cq, b, 3, IBV_WC_WR_FLUSH_ERR);
	fixture_expect(a, a->recv_cq, b, 20, IBV_WC_WR_FLUSH_ERR);
	fixture_expect(b, b->recv_cq, a, 30, IBV_WC_WR_FLUSH_ERR);
	/* Later posts are flushed as well. */
	assert_int_equal(fixture_post(a, IBV_WR_SEND, 4, 0, 8, NULL, 0, 0), 0);
	assert_int_equal(fixture_post_recv(b, 31, 0, 8), 0);
	fixture_expect(a, a->send_cq, b, 4, IBV_WC_WR_FLUSH_ERR);
	fixture_expect(b, b->recv_cq, a, 31, IBV_WC_WR_FLUSH_ERR);
	fixture_expect_none(a, a->send_cq);
	fixture_expect_none(b, b->send_cq);
}

static void check_remote_access(enum ibv_wr_opcode opcode, int access, uint64_t offset,
				uint32_t length, uint32_t key_change)
{
	struct fixture_options options = { .stepped = 1, .access = access };
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	open_ends(&a, &b, &to_b, &options);
	to_b.rkey ^= key_change;
	assert_int_equal(fixture_post(&a, opcode, 1, 0, length, &to_b, offset, 0), 0);
	expect_refused(&a, &b, IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < FIXTURE_MEMORY; i++)
		assert_int_equal(b.memory[i], 0);
	close_ends(&a, &b);
}

static void checks_remote_access(void **state)
{
	const int local = IBV_ACCESS_LOCAL_WRITE;

	(void)state;
	check_remote_access(IBV_WR_RDMA_WRITE, 0, FIXTURE_MEMORY - 99, 100, 0);
	check_remote_access(IBV_WR_RDMA_WRITE, 0, UINT64_MAX - 50, 100, 0);
	check_remote_access(IBV_WR_RDMA_READ, 0, FIXTURE_MEMORY - 99, 100, 0);
	check_remote_access(IBV_WR_RDMA_WRITE, 0, 0, 100, 1);
	check_remote_access(IBV_WR_RDMA_WRITE, 0, 0, 100, 0x7fff0000);
	check_remote_access(IBV_WR_RDMA_WRITE, local | IBV_ACCESS_REMOTE_READ, 0, 8, 0);
	check_remote_access(IBV_WR_RDMA_READ, local | IBV_ACCESS_REMOTE_WRITE, 0, 8, 0);
}

static void refuses_keys_of_another_pd(void **state)
{
	const struct pier_provider *soft = &pier_soft_provider;
	struct fixture_endpoint to_b;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	pd = soft->alloc_pd(b.context);
	mr = soft->reg_mr(pd, b.memory, 4096, (uintptr_t)b.memory,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	to_b.rkey = mr->rkey;
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_b, 0, 0), 0);
	expect_refused(&a, &b, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	assert_int_equal(soft->dealloc_pd(pd), 0);
	close_ends(&a, &b);
}

static void refuses_stale_keys(void **state)
{
	const struct pier_provider *soft = &pier_soft_provider;
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	assert_int_equal(soft->dereg_mr(b.mr), 0);
	b.mr = soft->reg_mr(b.pd, b.memory, FIXTURE_MEMORY, (uintptr_t)b.memory,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	/* Slots are reused, keys are not. */
	for (int i = 0; i < 500; i++) {
		assert_int_not_equal(b.mr->rkey, to_b.rkey);
		assert_int_equal(soft->dereg_mr(b.mr), 0);
		b.mr = soft->reg_mr(b.pd, b.memory, FIXTURE_MEMORY, (uintptr_t)b.memory,
				    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	}
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_b, 0, 0), 0);
	expect_refused(&a, &b, IBV_WC_REM_ACCESS_ERR);
	close_ends(&a, &b);
}

static void checks_local_access(void **state)
{
	struct fixture_endpoint to_b;
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1
	};
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	sge = fixture_sge(&a, FIXTURE_MEMORY - 10, 11);
	wr.wr.rdma.remote_addr = to_b.address;
	wr.wr.rdma.rkey = to_b.rkey;
	/* A request before it still succeeds, and is reported first. */
	assert_int_equal(
		fixture_post(&a, IBV_WR_RDMA_WRITE, 7, 0, 8, &to_b, 0, IBV_SEND_SIGNALED),
		0);
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 2, 0, 8, &to_b, 0, 0), 0);
	fixture_expect(&a, a.send_cq, &b, 7, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_LOC_PROT_ERR);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_WR_FLUSH_ERR);
	close_ends(&a, &b);
}

static void reports_a_receive_that_is_too_small(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	assert_int_equal(fixture_post_recv(&b, 29, 0, 7), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0), 0);
	fixture_expect(&b, b.recv_cq, &a, 29, IBV_WC_LOC_LEN_ERR);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_REM_INV_REQ_ERR);
	assert_int_equal(b.memory[0], 0);
	close_ends(&a, &b);
}

static void checks_access_to_receives(void **state)
{
	struct fixture_options options = { .stepped = 1,
					   .access = IBV_ACCESS_REMOTE_READ };
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &options);
	assert_int_equal(fixture_post_recv(&b, 29, 0, 8), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0), 0);
	fixture_expect(&b, b.recv_cq, &a, 29, IBV_WC_LOC_PROT_ERR);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_REM_OP_ERR);
	/* The target of a READ needs local write access too. */
	close_ends(&a, &b);
	open_ends(&a, &b, &to_b, &options);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_READ, 1, 0, 8, &to_b, 0, 0), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_LOC_PROT_ERR);
	close_ends(&a, &b);
}

static void repeats_a_send_without_a_receive(void **state)
{
	struct fixture_options options = { .stepped = 1,
					   .rnr_retry = 7,
					   .min_rnr_timer = 1 };
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &options);
	for (int i = 0; i < 4; i++) {
		memset(a.memory + i * 100, 'a' + i, 100);
		assert_int_equal(fixture_post(&a, IBV_WR_SEND, i, i * 100, 100, NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
	}
	for (int i = 0; i < 2000; i++)
		fixture_step(&a, &b);
	fixture_expect_none(&a, a.send_cq);
	for (int i = 0; i < 4; i++)
		assert_int_equal(fixture_post_recv(&b, 10 + i, i * 200, 100), 0);
	for (int i = 0; i < 4; i++) {
		fixture_expect(&b, b.recv_cq, &a, 10 + i, IBV_WC_SUCCESS);
		fixture_expect(&a, a.send_cq, &b, i, IBV_WC_SUCCESS);
		assert_memory_equal(b.memory + i * 200, a.memory + i * 100, 100);
		assert_int_equal(b.memory[i * 200 + 100], 0);
	}
	close_ends(&a, &b);
}

static void gives_up_after_the_rnr_retries(void **state)
{
	struct fixture_options options = { .stepped = 1,
					   .rnr_retry = 2,
					   .min_rnr_timer = 1 };
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &options);
	assert_int_equal(
		fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_b, 0, IBV_SEND_SIGNALED),
		0);
	assert_int_equal(fixture_post(&a, IBV_WR_SEND, 2, 0, 8, NULL, 0, 0), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 3, 0, 8, &to_b, 0, 0), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, &b, 2, IBV_WC_RNR_RETRY_EXC_ERR);
	fixture_expect(&a, a.send_cq, &b, 3, IBV_WC_WR_FLUSH_ERR);
	close_ends(&a, &b);
}

static void fence_waits_for_reads(void **state)
{
	struct fixture_options options = { .stepped = 1, .max_rd_atomic = 2 };
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &options);
	memset(b.memory, 'o', 8000);
	memset(a.memory + 40000, 'n', 8000);
	for (int i = 0; i < 8; i++)
		assert_int_equal(fixture_post(&a, IBV_WR_RDMA_READ, i, i * 1000, 1000,
					      &to_b, i * 1000, IBV_SEND_SIGNALED),
				 0);
	/* Not before the old bytes are copied. */
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 8, 40000, 8000, &to_b, 0,
				      IBV_SEND_SIGNALED | IBV_SEND_FENCE),
			 0);
	for (int i = 0; i < 9; i++)
		fixture_expect(&a, a.send_cq, &b, i, IBV_WC_SUCCESS);
	for (int i = 0; i < 8000; i++) {
		assert_int_equal(a.memory[i], 'o');
		assert_int_equal(b.memory[i], 'n');
	}
	assert_int_equal(a.memory[8000], 0);
	close_ends(&a, &b);
}

static void reports_a_cq_overrun(void **state)
{
	struct fixture_options options = { .stepped = 1, .cq_depth = 2 };
	struct fixture_endpoint to_b;
	struct ibv_wc wc;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &options);
	for (int i = 0; i < 3; i++)
		assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, i, 0, 8, &to_b, 0,
					      IBV_SEND_SIGNALED),
				 0);
	for (int i = 0; i < 1000; i++)
		fixture_step(&a, &b);
	fixture_expect(&a, a.send_cq, &b, 0, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	assert_true(ibv_poll_cq(a.send_cq, 1, &wc) < 0);
	assert_int_equal(a.qp->state, IBV_QPS_ERR);
	close_ends(&a, &b);
}

static void error_state_flushes_requests(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	for (int i = 0; i < 3; i++)
		assert_int_equal(fixture_post_recv(&a, 10 + i, 0, 8), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(fixture_post(&a, IBV_WR_SEND, i, 0, 8, NULL, 0, 0), 0);
	assert_int_equal(fixture_to(&a, IBV_QPS_ERR), 0);
	for (int i = 0; i < 3; i++) {
		fixture_expect(&a, a.send_cq, NULL, i, IBV_WC_WR_FLUSH_ERR);
		fixture_expect(&a, a.recv_cq, NULL, 10 + i, IBV_WC_WR_FLUSH_ERR);
	}
	fixture_expect_none(&a, a.send_cq);
	fixture_expect_none(&a, a.recv_cq);
	close_ends(&a, &b);
}

/* After RESET both ends can be used again like new ones. */
static void works_again_after_reset(void **state)
{
	struct fixture_endpoint to_a, to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ends(&a, &b, &to_b, &stepped);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, round, 0, 8, &to_b,
					      0, IBV_SEND_SIGNALED),
				 0);
		fixture_expect(&a, a.send_cq, &b, round, IBV_WC_SUCCESS);
		assert_int_equal(fixture_to(&a, IBV_QPS_ERR), 0);
		assert_int_equal(fixture_to(&a, IBV_QPS_RESET), 0);
		assert_int_equal(fixture_to(&b, IBV_QPS_RESET), 0);
		fixture_describe(&a, &to_a);
		fixture_describe(&b, &to_b);
		fixture_connect(&a, &to_b);
		fixture_connect(&b, &to_a);
	}
	close_ends(&a, &b);
}

static void can_connect_to_itself(void **state)
{
	struct fixture_endpoint self;
	struct soft_fixture a;

	(void)state;
	fixture_open(&a, &stepped);
	fixture_describe(&a, &self);
	fixture_connect(&a, &self);
	memset(a.memory, 'q', 100);
	assert_int_equal(fixture_post_recv(&a, 3, 200, 100), 0);
	assert_int_equal(
		fixture_post(&a, IBV_WR_SEND, 1, 0, 100, NULL, 0, IBV_SEND_SIGNALED), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_READ, 2, 400, 100, &self, 0,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&a, a.recv_cq, NULL, 3, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, NULL, 1, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, NULL, 2, IBV_WC_SUCCESS);
	assert_memory_equal(a.memory + 200, a.memory, 100);
	assert_memory_equal(a.memory + 400, a.memory, 100);
	fixture_close(&a);
}

/* Both write to each other more than any socket holds. */
static void moves_large_data_both_ways(void **state)
{
	struct fixture_endpoint to_a, to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&a, &to_a);
	fixture_describe(&b, &to_b);
	memset(a.memory, 'A', 30000);
	memset(b.memory, 'B', 30000);
	for (int round = 0; round < 64; round++) {
		for (int i = 0; i < 16; i++) {
			assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, i, 0, 30000,
						      &to_b, 32768, IBV_SEND_SIGNALED),
					 0);
			assert_int_equal(fixture_post(&b, IBV_WR_RDMA_READ, i, 32768,
						      30000, &to_a, 0, IBV_SEND_SIGNALED),
					 0);
		}
		for (int i = 0; i < 16; i++) {
			fixture_expect(&a, a.send_cq, NULL, i, IBV_WC_SUCCESS);
			fixture_expect(&b, b.send_cq, NULL, i, IBV_WC_SUCCESS);
		}
	}
	assert_memory_equal(b.memory + 32768, a.memory, 30000);
	assert_int_equal(b.memory[32768 + 30000], 0);
	close_ends(&a, &b);
}

static void leaves_no_fd_open(void **state)
{
	int before = fixture_count_fds();

	sends_and_receives(state);
	checks_remote_access(state);
	can_connect_to_itself(state);
	assert_int_equal(fixture_count_fds(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sends_and_receives),
		cmocka_unit_test(gathers_and_scatters),
		cmocka_unit_test(copies_inline_data),
		cmocka_unit_test(write_with_immediate_uses_a_receive),
		cmocka_unit_test(unsignalled_request_has_no_completion),
		cmocka_unit_test(bad_wr_is_the_first_refused_request),
		cmocka_unit_test(checks_remote_access),
		cmocka_unit_test(refuses_keys_of_another_pd),
		cmocka_unit_test(refuses_stale_keys),
		cmocka_unit_test(checks_local_access),
		cmocka_unit_test(reports_a_receive_that_is_too_small),
		cmocka_unit_test(checks_access_to_receives),
		cmocka_unit_test(repeats_a_send_without_a_receive),
		cmocka_unit_test(gives_up_after_the_rnr_retries),
		cmocka_unit_test(fence_waits_for_reads),
		cmocka_unit_test(reports_a_cq_overrun),
		cmocka_unit_test(error_state_flushes_requests),
		cmocka_unit_test(works_again_after_reset),
		cmocka_unit_test(can_connect_to_itself),
		cmocka_unit_test(moves_large_data_both_ways),
		cmocka_unit_test(leaves_no_fd_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

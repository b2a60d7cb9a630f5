/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "provider/soft/limits.h"
#include "provider/soft/queues/post.h"
#include "soft_fixture.h"

/* ibv_create_qp_ex(3), and requests that are posted one member at a time. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	DEPTH = 16,
	ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	THERE = 4096, /* where the peer's part of its memory begins */
};

static const uint64_t all_operations =
	IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
	IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
	IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
	IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;

struct ends {
	struct soft_fixture a, b;
	struct fixture_endpoint to_b;
	struct ibv_qp_ex *qp; /* of a */
};

static struct ibv_qp_init_attr_ex init_attr(const struct soft_fixture *fixture)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = fixture->send_cq,
		.recv_cq = fixture->recv_cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH,
			 .max_recv_wr = DEPTH,
			 .max_send_sge = 4,
			 .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = fixture->pd,
		.send_ops_flags = all_operations,
	};
}

static void open_ends(struct ends *ends, int is_stepped)
{
	const struct fixture_options options = { .stepped = is_stepped,
						 .access = ALL_RIGHTS,
						 .rnr_retry = 7,
						 .min_rnr_timer = 1 };
	struct ibv_qp_init_attr_ex attr;
	struct fixture_endpoint to_a;

	fixture_open(&ends->a, &options);
	fixture_open(&ends->b, &options);
	assert_null(pier_soft_qp_to_qp_ex(ends->a.qp));
	assert_int_equal(soft->destroy_qp(ends->a.qp), 0);
	attr = init_attr(&ends->a);
	ends->a.qp = pier_soft_create_qp_ex(ends->a.context, &attr);
	assert_non_null(ends->a.qp);
	ends->qp = pier_soft_qp_to_qp_ex(ends->a.qp);
	assert_non_null(ends->qp);
	fixture_describe(&ends->a, &to_a);
	fixture_describe(&ends->b, &ends->to_b);
	fixture_connect(&ends->a, &ends->to_b);
	fixture_connect(&ends->b, &to_a);
}

static void close_ends(struct ends *ends)
{
	fixture_close(&ends->a);
	fixture_close(&ends->b);
}

static void expect_sent(struct ends *ends, uint64_t wr_id)
{
	fixture_expect(&ends->a, ends->a.send_cq, &ends->b, wr_id, IBV_WC_SUCCESS);
}

static void set_sge(struct ends *ends, uint64_t offset, uint32_t length)
{
	ibv_wr_set_sge(ends->qp, ends->a.mr->lkey, (uintptr_t)ends->a.memory + offset,
		       length);
}

static void next_request(struct ends *ends, uint64_t wr_id)
{
	ends->qp->wr_id = wr_id;
	ends->qp->wr_flags = IBV_SEND_SIGNALED;
}

static void step(struct ends *ends)
{
	for (int i = 0; i < 50; i++)
		fixture_step(&ends->a, &ends->b);
}

/* One batch of everything; each operation shows in memory or in a completion. */
static void posts_each_operation(void **state)
{
	uint64_t *words, there = 5;
	struct ibv_wc wc;
	struct ends ends;

	(void)state;
	open_ends(&ends, 1);
	words = (uint64_t *)(void *)ends.b.memory;
	memcpy(ends.b.memory, &there, 8);
	memcpy(ends.a.memory, "written.imm.....", 16);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(fixture_post_recv(&ends.b, i, 1024 * (i + 1), 64), 0);
	ibv_wr_start(ends.qp);
	next_request(&ends, 1);
	ibv_wr_rdma_write(ends.qp, ends.to_b.rkey, ends.to_b.address + THERE);
	set_sge(&ends, 0, 8);
	next_request(&ends, 2);
	ibv_wr_rdma_write_imm(ends.qp, ends.to_b.rkey, ends.to_b.address + THERE + 8,
			      htobe32(77));
	set_sge(&ends, 8, 4);
	next_request(&ends, 3);
	ibv_wr_atomic_fetch_add(ends.qp, ends.to_b.rkey, ends.to_b.address, 3);
	set_sge(&ends, 64, 8);
	next_request(&ends, 4);
	ibv_wr_atomic_cmp_swp(ends.qp, ends.to_b.rkey, ends.to_b.address, 8, 21);
	set_sge(&ends, 72, 8);
	next_request(&ends, 5);
	ibv_wr_rdma_read(ends.qp, ends.to_b.rkey, ends.to_b.address);
	set_sge(&ends, 80, 8);
	next_request(&ends, 6);
	ibv_wr_send(ends.qp);
	set_sge(&ends, 0, 7);
	next_request(&ends, 7);
	ibv_wr_send_imm(ends.qp, htobe32(78));
	set_sge(&ends, 0, 3);
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	for (uint64_t i = 1; i <= 7; i++)
		expect_sent(&ends, i);
	assert_memory_equal(ends.b.memory + THERE, "written.imm.", 12);
	assert_int_equal(words[0], 21);
	words = (uint64_t *)(void *)(ends.a.memory + 64);
	assert_int_equal(words[0], 5);
	assert_int_equal(words[1], 8);
	assert_int_equal(words[2], 21);
	wc = fixture_wait(&ends.b, ends.b.recv_cq, &ends.a);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(wc.imm_data, htobe32(77));
	wc = fixture_wait(&ends.b, ends.b.recv_cq, &ends.a);
	assert_int_equal(wc.byte_len, 7);
	assert_memory_equal(ends.b.memory + 2048, "written\0", 8);
	wc = fixture_wait(&ends.b, ends.b.recv_cq, &ends.a);
	assert_int_equal(wc.imm_data, htobe32(78));
	close_ends(&ends);
}

static void posts_requests_for_windows(void **state)
{
	struct ibv_mw_bind_info info;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ends ends;
	uint32_t key;

	(void)state;
	open_ends(&ends, 1);
	mr = soft->reg_mr(ends.a.pd, ends.a.memory, 4096, (uintptr_t)ends.a.memory,
			  ALL_RIGHTS | IBV_ACCESS_MW_BIND);
	mw = soft->alloc_mw(ends.a.pd, IBV_MW_TYPE_2);
	key = ibv_inc_rkey(mw->rkey);
	info = (struct ibv_mw_bind_info){ .mr = mr,
					  .addr = (uintptr_t)ends.a.memory,
					  .length = 64,
					  .mw_access_flags = IBV_ACCESS_REMOTE_READ };
	ibv_wr_start(ends.qp);
	next_request(&ends, 1);
	ibv_wr_bind_mw(ends.qp, mw, key, &info);
	next_request(&ends, 2);
	ibv_wr_local_inv(ends.qp, key);
	next_request(&ends, 3);
	ibv_wr_local_inv(ends.qp, key); /* not bound any more */
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	expect_sent(&ends, 1);
	expect_sent(&ends, 2);
	fixture_expect(&ends.a, ends.a.send_cq, &ends.b, 3, IBV_WC_LOC_QP_OP_ERR);
	assert_int_equal(soft->dealloc_mw(mw), 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	close_ends(&ends);
}

static void invalidates_a_window_of_the_peer(void **state)
{
	struct ibv_wc wc;
	struct ends ends;

	(void)state;
	open_ends(&ends, 1);
	assert_int_equal(fixture_post_recv(&ends.b, 1, 0, 64), 0);
	ibv_wr_start(ends.qp);
	next_request(&ends, 1);
	ibv_wr_send_inv(ends.qp, 0x12345600); /* no window */
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	wc = fixture_wait(&ends.a, ends.a.send_cq, &ends.b);
	assert_int_equal(wc.status, IBV_WC_REM_ACCESS_ERR);
	close_ends(&ends);
}

static void gathers_lists(void **state)
{
	char first[] = "inline ", second[] = "data";
	struct ibv_data_buf buffers[] = { { first, 7 }, { second, 4 } };
	struct ibv_sge sges[2];
	struct ends ends;

	(void)state;
	open_ends(&ends, 1);
	memcpy(ends.a.memory, "one--two", 8);
	sges[0] = fixture_sge(&ends.a, 0, 3);
	sges[1] = fixture_sge(&ends.a, 5, 3);
	ibv_wr_start(ends.qp);
	next_request(&ends, 1);
	ibv_wr_rdma_write(ends.qp, ends.to_b.rkey, ends.to_b.address);
	ibv_wr_set_sge_list(ends.qp, 2, sges);
	next_request(&ends, 2);
	ibv_wr_rdma_write(ends.qp, ends.to_b.rkey, ends.to_b.address + 64);
	ibv_wr_set_inline_data_list(ends.qp, 2, buffers);
	memset(second, 'x', 4); /* was copied */
	next_request(&ends, 3);
	ibv_wr_rdma_write(ends.qp, ends.to_b.rkey, ends.to_b.address + 128);
	ibv_wr_set_inline_data(ends.qp, first, 6);
	next_request(&ends, 4);
	ibv_wr_rdma_write(ends.qp, ends.to_b.rkey, ends.to_b.address + 192);
	ibv_wr_set_inline_data(ends.qp, first, 0);
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	for (uint64_t i = 1; i <= 4; i++)
		expect_sent(&ends, i);
	assert_memory_equal(ends.b.memory, "onetwo\0", 7);
	assert_memory_equal(ends.b.memory + 64, "inline data\0", 12);
	assert_memory_equal(ends.b.memory + 128, "inline\0", 7);
	assert_int_equal(ends.b.memory[192], 0);
	close_ends(&ends);
}

static void write_word(struct ends *ends, uint64_t wr_id)
{
	next_request(ends, wr_id);
	ibv_wr_rdma_write(ends->qp, ends->to_b.rkey, ends->to_b.address);
	set_sge(ends, 0, 8);
}

/* Until the batch is complete, and not at all if it is aborted. */
static void engine_sees_complete_batches_only(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends, 1);
	ibv_wr_start(ends.qp);
	write_word(&ends, 1);
	write_word(&ends, 2);
	step(&ends);
	fixture_expect_none(&ends.a, ends.a.send_cq);
	ibv_wr_abort(ends.qp);
	step(&ends);
	fixture_expect_none(&ends.a, ends.a.send_cq);
	ibv_wr_start(ends.qp);
	write_word(&ends, 3);
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	expect_sent(&ends, 3);
	fixture_expect_none(&ends.a, ends.a.send_cq);
	close_ends(&ends);
}

/* An error anywhere in a batch refuses all of it, and no other batch. */
static void bad_batches_post_nothing(void **state)
{
	struct ibv_sge sges[SOFT_MAX_SGE + 1] = { 0 };
	char bytes[SOFT_MAX_INLINE + 1] = "";
	struct ends ends;

	(void)state;
	open_ends(&ends, 1);
	ibv_wr_start(ends.qp);
	write_word(&ends, 1);
	ibv_wr_set_sge_list(ends.qp, 5, sges);
	write_word(&ends, 2);
	assert_int_equal(ibv_wr_complete(ends.qp), EINVAL);
	ibv_wr_start(ends.qp);
	write_word(&ends, 1);
	ibv_wr_set_sge_list(ends.qp, SOFT_MAX_SGE + 1, sges);
	assert_int_equal(ibv_wr_complete(ends.qp), EINVAL);
	ibv_wr_start(ends.qp);
	write_word(&ends, 1);
	ibv_wr_set_inline_data(ends.qp, bytes, 65);
	assert_int_equal(ibv_wr_complete(ends.qp), EINVAL);
	ibv_wr_start(ends.qp);
	write_word(&ends, 1);
	ibv_wr_set_inline_data(ends.qp, bytes, SOFT_MAX_INLINE + 1);
	assert_int_equal(ibv_wr_complete(ends.qp), EINVAL);
	ibv_wr_start(ends.qp);
	for (uint64_t i = 0; i <= DEPTH; i++)
		write_word(&ends, i);
	assert_int_equal(ibv_wr_complete(ends.qp), ENOMEM);
	step(&ends);
	fixture_expect_none(&ends.a, ends.a.send_cq);
	close_ends(&ends);
}

static void connect_again(struct ends *ends)
{
	struct fixture_endpoint to_a;

	assert_int_equal(fixture_to(&ends->a, IBV_QPS_RESET), 0);
	assert_int_equal(fixture_to(&ends->b, IBV_QPS_RESET), 0);
	fixture_describe(&ends->a, &to_a);
	fixture_describe(&ends->b, &ends->to_b);
	fixture_connect(&ends->a, &ends->to_b);
	fixture_connect(&ends->b, &to_a);
}

/* The queue begins again at position 0, where the batch is, or is not. */
static void reset_ends_a_batch(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends, 1);
	ibv_wr_start(ends.qp);
	write_word(&ends, 0);
	connect_again(&ends);
	assert_int_equal(ibv_wr_complete(ends.qp), EINVAL);
	ibv_wr_start(ends.qp);
	write_word(&ends, 1);
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	expect_sent(&ends, 1);
	ibv_wr_start(ends.qp);
	write_word(&ends, 2);
	connect_again(&ends);
	assert_int_equal(ibv_wr_complete(ends.qp), EINVAL);
	ibv_wr_start(ends.qp);
	write_word(&ends, 3);
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	expect_sent(&ends, 3);
	close_ends(&ends);
}

static void bad_batch_leaves_the_queue_usable(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends, 1);
	ibv_wr_start(ends.qp);
	for (uint64_t i = 0; i <= DEPTH; i++)
		write_word(&ends, i);
	assert_int_equal(ibv_wr_complete(ends.qp), ENOMEM);
	ibv_wr_start(ends.qp);
	for (uint64_t i = 0; i < DEPTH; i++)
		write_word(&ends, i);
	assert_int_equal(ibv_wr_complete(ends.qp), 0);
	for (uint64_t i = 0; i < DEPTH; i++)
		expect_sent(&ends, i);
	close_ends(&ends);
}

static void expect_refused(struct soft_fixture *fixture,
			   const struct ibv_qp_init_attr_ex *attr, int error)
{
	struct ibv_qp_init_attr_ex copy = *attr;

	assert_null(pier_soft_create_qp_ex(fixture->context, &copy));
	assert_int_equal(errno, error);
}

static void refuses_what_it_does_not_have(void **state)
{
	struct ibv_qp_init_attr_ex attr;
	struct soft_fixture fixture;
	struct ibv_qp *qp;

	(void)state;
	fixture_open(&fixture, NULL);
	attr = init_attr(&fixture);
	attr.send_ops_flags |= IBV_QP_EX_WITH_TSO;
	expect_refused(&fixture, &attr, EOPNOTSUPP);
	attr = init_attr(&fixture);
	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	expect_refused(&fixture, &attr, EOPNOTSUPP);
	attr = init_attr(&fixture);
	attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
	expect_refused(&fixture, &attr, EOPNOTSUPP);
	attr = init_attr(&fixture);
	attr.comp_mask &= ~(uint32_t)IBV_QP_INIT_ATTR_PD;
	expect_refused(&fixture, &attr, EINVAL);
	attr = init_attr(&fixture);
	attr.cap.max_send_wr = SOFT_MAX_WR + 1;
	expect_refused(&fixture, &attr, EINVAL);
	attr = init_attr(&fixture);
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	qp = pier_soft_create_qp_ex(fixture.context, &attr);
	assert_non_null(qp);
	assert_null(pier_soft_qp_to_qp_ex(qp));
	assert_int_equal(soft->destroy_qp(qp), 0);
	fixture_close(&fixture);
}

enum {
	POSTS = 1000
};

/* No cmocka asserts here: they would jump into the wrong stack. */
static void *build_many(void *argument)
{
	struct ends *ends = argument;

	for (int i = 0; i < POSTS;) {
		ibv_wr_start(ends->qp);
		write_word(ends, 1);
		write_word(ends, 1);
		i += ibv_wr_complete(ends->qp) ? 0 : 2;
	}
	return NULL;
}

static void *post_many(void *argument)
{
	struct ends *ends = argument;

	for (int i = 0; i < POSTS;)
		i += !fixture_post(&ends->a, IBV_WR_RDMA_WRITE, 1, 0, 8, &ends->to_b, 0,
				   IBV_SEND_SIGNALED);
	return NULL;
}

static void threads_can_post_both_ways(void **state)
{
	pthread_t threads[3];
	struct ends ends;

	(void)state;
	open_ends(&ends, 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL,
						i < 2 ? build_many : post_many, &ends),
				 0);
	for (int i = 0; i < 3 * POSTS; i++)
		expect_sent(&ends, 1);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	close_ends(&ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(posts_each_operation),
		cmocka_unit_test(posts_requests_for_windows),
		cmocka_unit_test(invalidates_a_window_of_the_peer),
		cmocka_unit_test(gathers_lists),
		cmocka_unit_test(engine_sees_complete_batches_only),
		cmocka_unit_test(bad_batches_post_nothing),
		cmocka_unit_test(bad_batch_leaves_the_queue_usable),
		cmocka_unit_test(reset_ends_a_batch),
		cmocka_unit_test(refuses_what_it_does_not_have),
		cmocka_unit_test(threads_can_post_both_ways),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "soft_fixture.h"

/* Memory windows of type 1, which ibv_bind_mw(3) binds. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	AT = 1000,
	LENGTH = 100
};

/* The owner of a window and its peer. The region itself gives the peer no access. */
struct ends {
	struct soft_fixture owner, peer;
	struct ibv_mr *base;
	struct ibv_mw *mw;
};

static void open_ends(struct ends *ends)
{
	const struct fixture_options stepped = { .stepped = 1 };

	fixture_open_pair(&ends->owner, &ends->peer, &stepped);
	ends->base = soft->reg_mr(ends->owner.pd, ends->owner.memory, FIXTURE_MEMORY,
				  (uintptr_t)ends->owner.memory,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	ends->mw = soft->alloc_mw(ends->owner.pd, IBV_MW_TYPE_1);
	assert_non_null(ends->base);
	assert_non_null(ends->mw);
}

static void close_ends(struct ends *ends)
{
	if (ends->mw)
		assert_int_equal(soft->dealloc_mw(ends->mw), 0);
	assert_int_equal(soft->dereg_mr(ends->base), 0);
	fixture_close(&ends->owner);
	fixture_close(&ends->peer);
}

static enum ibv_wc_status bind_window(struct ends *ends, uint64_t offset, uint64_t length,
				      unsigned int access)
{
	struct ibv_mw_bind bind = {
		.wr_id = 7,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = ends->base,
			       .addr = (uintptr_t)ends->owner.memory + offset,
			       .length = length,
			       .mw_access_flags = access },
	};
	uint32_t before = ends->mw->rkey;
	struct ibv_wc wc;

	assert_int_equal(ibv_bind_mw(ends->owner.qp, ends->mw, &bind), 0);
	assert_int_equal(ends->mw->rkey, ibv_inc_rkey(before));
	wc = fixture_wait(&ends->owner, ends->owner.send_cq, &ends->peer);
	assert_int_equal(wc.wr_id, 7);
	assert_int_equal(wc.opcode, IBV_WC_BIND_MW);
	return wc.status;
}

static enum ibv_wc_status write_there(struct ends *ends, uint32_t key, uint64_t offset)
{
	const struct fixture_endpoint target = {
		.rkey = key,
		.address = (uintptr_t)ends->owner.memory,
	};

	assert_int_equal(fixture_post(&ends->peer, IBV_WR_RDMA_WRITE, 1, 0, 8, &target,
				      offset, IBV_SEND_SIGNALED),
			 0);
	return fixture_wait(&ends->peer, ends->peer.send_cq, &ends->owner).status;
}

static void opens_a_part_of_a_region(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends);
	memset(ends.peer.memory, 'x', 8);
	assert_int_equal(bind_window(&ends, AT, LENGTH, IBV_ACCESS_REMOTE_WRITE),
			 IBV_WC_SUCCESS);
	assert_int_equal(soft->dereg_mr(ends.base), EBUSY);
	assert_int_equal(write_there(&ends, ends.mw->rkey, AT + LENGTH - 8),
			 IBV_WC_SUCCESS);
	assert_memory_equal(ends.owner.memory + AT + LENGTH - 8, "xxxxxxxx\0", 9);
	assert_int_equal(write_there(&ends, ends.mw->rkey, AT + LENGTH - 7),
			 IBV_WC_REM_ACCESS_ERR);
	close_ends(&ends);
}

/* All queue pairs of the PD, not only the one that bound the window. */
static void is_open_to_the_whole_domain(void **state)
{
	const struct fixture_options stepped = { .stepped = 1 };
	struct fixture_endpoint to_second, to_third;
	struct soft_fixture second, third;
	struct ends ends;

	(void)state;
	open_ends(&ends);
	second = ends.owner;
	fixture_create_qp(&second);
	fixture_open(&third, &stepped);
	fixture_describe(&second, &to_second);
	fixture_describe(&third, &to_third);
	fixture_connect(&second, &to_third);
	fixture_connect(&third, &to_second);
	assert_int_equal(bind_window(&ends, AT, LENGTH, IBV_ACCESS_REMOTE_WRITE),
			 IBV_WC_SUCCESS);
	to_second.rkey = ends.mw->rkey;
	assert_int_equal(fixture_post(&third, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_second, AT,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&third, third.send_cq, &second, 1, IBV_WC_SUCCESS);
	fixture_close(&third);
	assert_int_equal(soft->destroy_qp(second.qp), 0);
	close_ends(&ends);
}

/* Without invalidating it first; the old key ends. */
static void can_be_bound_again(void **state)
{
	struct ends ends;
	uint32_t old;

	(void)state;
	open_ends(&ends);
	assert_int_equal(bind_window(&ends, 0, LENGTH, IBV_ACCESS_REMOTE_WRITE),
			 IBV_WC_SUCCESS);
	old = ends.mw->rkey;
	assert_int_equal(bind_window(&ends, AT, LENGTH, IBV_ACCESS_REMOTE_WRITE),
			 IBV_WC_SUCCESS);
	assert_int_equal(write_there(&ends, ends.mw->rkey, AT), IBV_WC_SUCCESS);
	assert_int_equal(write_there(&ends, old, AT), IBV_WC_REM_ACCESS_ERR);
	close_ends(&ends);
}

static void zero_bytes_close_it(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends);
	assert_int_equal(bind_window(&ends, AT, LENGTH, IBV_ACCESS_REMOTE_WRITE),
			 IBV_WC_SUCCESS);
	assert_int_equal(bind_window(&ends, AT, 0, 0), IBV_WC_SUCCESS);
	assert_int_equal(write_there(&ends, ends.mw->rkey, AT), IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->dealloc_mw(ends.mw), 0);
	ends.mw = NULL;
	close_ends(&ends);
}

static void cannot_be_invalidated(void **state)
{
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_LOCAL_INV };
	struct ends ends;

	(void)state;
	open_ends(&ends);
	assert_int_equal(bind_window(&ends, AT, LENGTH, IBV_ACCESS_REMOTE_WRITE),
			 IBV_WC_SUCCESS);
	wr.invalidate_rkey = ends.mw->rkey;
	assert_int_equal(ibv_post_send(ends.owner.qp, &wr, &bad), 0);
	assert_int_equal(fixture_wait(&ends.owner, ends.owner.send_cq, &ends.peer).status,
			 IBV_WC_LOC_QP_OP_ERR);
	close_ends(&ends);
}

static void follows_the_rules_of_its_region(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends);
	assert_int_equal(
		bind_window(&ends, FIXTURE_MEMORY - 8, 16, IBV_ACCESS_REMOTE_WRITE),
		IBV_WC_MW_BIND_ERR);
	close_ends(&ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opens_a_part_of_a_region),
		cmocka_unit_test(is_open_to_the_whole_domain),
		cmocka_unit_test(can_be_bound_again),
		cmocka_unit_test(zero_bytes_close_it),
		cmocka_unit_test(cannot_be_invalidated),
		cmocka_unit_test(follows_the_rules_of_its_region),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "provider/soft/queues/cq.h"
#include "provider/soft/queues/poll.h"
#include "provider/soft/limits.h"
#include "provider/soft/device.h"
#include "soft_fixture.h"

/* Extended completion queues, and their size. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	DEPTH = 8,
	TIMES = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
};

struct ends {
	struct soft_fixture a, b;
	struct ibv_cq_ex *cq; /* of b's receives */
};

static void open_ends(struct ends *ends, int is_stepped, uint32_t cqe, uint64_t wc_flags,
		      uint32_t flags)
{
	const struct fixture_options options = { .stepped = is_stepped,
						 .rnr_retry = 7,
						 .min_rnr_timer = 1 };
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe,
		.cq_context = ends,
		.wc_flags = wc_flags,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = flags,
	};
	struct fixture_endpoint to_a, to_b;

	fixture_open(&ends->a, &options);
	fixture_open(&ends->b, &options);
	assert_int_equal(soft->destroy_qp(ends->b.qp), 0);
	assert_int_equal(soft->destroy_cq(ends->b.recv_cq), 0);
	ends->cq = pier_soft_create_cq_ex(ends->b.context, &attr);
	assert_non_null(ends->cq);
	ends->b.recv_cq = ibv_cq_ex_to_cq(ends->cq);
	assert_ptr_equal(ends->b.recv_cq->cq_context, ends);
	fixture_create_qp(&ends->b);
	fixture_describe(&ends->a, &to_a);
	fixture_describe(&ends->b, &to_b);
	fixture_connect(&ends->a, &to_b);
	fixture_connect(&ends->b, &to_a);
}

static void close_ends(struct ends *ends)
{
	fixture_close(&ends->a);
	fixture_close(&ends->b);
}

/* The receives `first` and up complete, and are not polled. */
static void send_some(struct ends *ends, uint64_t first, int count)
{
	for (int i = 0; i < count; i++) {
		assert_int_equal(fixture_post_recv(&ends->b, first + i, 0, 16), 0);
		assert_int_equal(fixture_post(&ends->a, IBV_WR_SEND_WITH_IMM, 1, 0,
					      (uint32_t)(first + i), NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
		fixture_expect(&ends->a, ends->a.send_cq, &ends->b, 1, IBV_WC_SUCCESS);
	}
}

static void expect_current(struct ends *ends, uint64_t wr_id)
{
	struct ibv_cq_ex *cq = ends->cq;

	assert_int_equal(cq->wr_id, wr_id);
	assert_int_equal(cq->status, IBV_WC_SUCCESS);
	assert_int_equal(ibv_wc_read_opcode(cq), IBV_WC_RECV);
	assert_int_equal(ibv_wc_read_byte_len(cq), wr_id);
	assert_int_equal(ibv_wc_read_imm_data(cq), htobe32(0x12345678));
	assert_int_equal(ibv_wc_read_qp_num(cq), ends->b.qp->qp_num);
	assert_int_equal(ibv_wc_read_src_qp(cq), ends->a.qp->qp_num);
	assert_int_equal(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
	assert_int_equal(ibv_wc_read_vendor_err(cq), 0);
	assert_int_equal(ibv_wc_read_slid(cq), 0);
	assert_int_equal(ibv_wc_read_sl(cq), 0);
	assert_int_equal(ibv_wc_read_dlid_path_bits(cq), 0);
}

static void reads_one_completion_after_the_other(void **state)
{
	struct ibv_poll_cq_attr none = { 0 }, unknown = { .comp_mask = 1 };
	struct ends ends;

	(void)state;
	open_ends(&ends, 1, DEPTH, IBV_WC_STANDARD_FLAGS, 0);
	assert_int_equal(ibv_start_poll(ends.cq, &none), ENOENT);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(ibv_start_poll(ends.cq, &unknown), EINVAL);
	send_some(&ends, 3, 4);
	assert_int_equal(ibv_start_poll(ends.cq, &none), 0);
	expect_current(&ends, 3);
	assert_int_equal(ibv_next_poll(ends.cq), 0);
	expect_current(&ends, 4);
	ibv_end_poll(ends.cq);
	fixture_expect(&ends.b, ends.b.recv_cq, NULL, 5, IBV_WC_SUCCESS);
	assert_int_equal(ibv_start_poll(ends.cq, &none), 0);
	expect_current(&ends, 6);
	assert_int_equal(ibv_next_poll(ends.cq), ENOENT);
	ibv_end_poll(ends.cq);
	close_ends(&ends);
}

static uint64_t read_clock(const struct ends *ends)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	assert_int_equal(ibv_query_rt_values_ex(ends->b.context, &values), 0);
	assert_int_equal(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
	return (uint64_t)values.raw_clock.tv_nsec;
}

static void stamps_completions_with_the_time(void **state)
{
	struct ibv_poll_cq_attr none = { 0 };
	uint64_t before, after, wall = (uint64_t)time(NULL);
	struct ends ends;

	(void)state;
	open_ends(&ends, 1, DEPTH, IBV_WC_STANDARD_FLAGS | TIMES, 0);
	before = read_clock(&ends);
	send_some(&ends, 1, 1);
	after = read_clock(&ends);
	assert_int_equal(ibv_start_poll(ends.cq, &none), 0);
	assert_in_range(ibv_wc_read_completion_ts(ends.cq), before, after);
	/* Clocks may be set while this runs, but not by an hour. */
	assert_in_range(ibv_wc_read_completion_wallclock_ns(ends.cq) / 1000000000,
			wall - 3600, wall + 3600);
	ibv_end_poll(ends.cq);
	close_ends(&ends);
}

static void refuses_what_it_does_not_have(void **state)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = DEPTH };
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, NULL);
	attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
	assert_null(pier_soft_create_cq_ex(fixture.context, &attr));
	assert_int_equal(errno, EOPNOTSUPP);
	attr.wc_flags = 0;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	assert_null(pier_soft_create_cq_ex(fixture.context, &attr));
	assert_int_equal(errno, EOPNOTSUPP);
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = 1 << 10;
	assert_null(pier_soft_create_cq_ex(fixture.context, &attr));
	assert_int_equal(errno, EOPNOTSUPP);
	attr.comp_mask = 0;
	attr.cqe = UINT32_MAX;
	assert_null(pier_soft_create_cq_ex(fixture.context, &attr));
	assert_int_equal(errno, EINVAL);
	attr.cqe = DEPTH;
	attr.comp_vector = UINT32_MAX;
	assert_null(pier_soft_create_cq_ex(fixture.context, &attr));
	assert_int_equal(errno, EINVAL);
	fixture_close(&fixture);
}

/* The oldest completions are lost, and nothing else happens. */
static void ignores_an_overrun_if_asked_to(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends, 1, 2, 0, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	send_some(&ends, 1, 5);
	fixture_expect(&ends.b, ends.b.recv_cq, NULL, 4, IBV_WC_SUCCESS);
	fixture_expect(&ends.b, ends.b.recv_cq, NULL, 5, IBV_WC_SUCCESS);
	fixture_expect_none(&ends.b, ends.b.recv_cq);
	assert_int_equal(ends.b.qp->state, IBV_QPS_RTS);
	/* Their places in the receive queue are free: 16. */
	for (int i = 0; i < 16; i++)
		assert_int_equal(fixture_post_recv(&ends.b, 0, 0, 8), 0);
	close_ends(&ends);
}

static void resized_queue_keeps_its_completions(void **state)
{
	struct ends ends;
	struct ibv_cq *cq;

	(void)state;
	open_ends(&ends, 1, 4, 0, 0);
	cq = ends.b.recv_cq;
	send_some(&ends, 1, 3);
	fixture_expect(&ends.b, cq, NULL, 1, IBV_WC_SUCCESS);
	send_some(&ends, 4, 2);
	assert_int_equal(pier_soft_resize_cq(cq, 3), EINVAL);
	assert_int_equal(pier_soft_resize_cq(cq, 0), EINVAL);
	assert_int_equal(pier_soft_resize_cq(cq, SOFT_MAX_CQE + 1), EINVAL);
	assert_int_equal(cq->cqe, 4);
	assert_int_equal(pier_soft_resize_cq(cq, 6), 0);
	assert_int_equal(cq->cqe, 6);
	send_some(&ends, 6, 2);
	for (uint64_t i = 2; i < 8; i++)
		fixture_expect(&ends.b, cq, NULL, i, IBV_WC_SUCCESS);
	assert_int_equal(pier_soft_resize_cq(cq, 1), 0);
	send_some(&ends, 8, 1);
	fixture_expect(&ends.b, cq, NULL, 8, IBV_WC_SUCCESS);
	close_ends(&ends);
}

enum {
	MESSAGES = 2000
};

struct poller {
	struct ends *ends;
	atomic_int *polled;
	uint64_t sum;
};

/* No cmocka asserts here: they would jump into the wrong stack. */
static void *poll_many(void *argument)
{
	struct poller *poller = argument;
	struct ibv_poll_cq_attr none = { 0 };

	while (atomic_load(poller->polled) < MESSAGES) {
		if (ibv_start_poll(poller->ends->cq, &none))
			continue;
		if (poller->ends->cq->status != IBV_WC_SUCCESS)
			abort();
		poller->sum += poller->ends->cq->wr_id;
		atomic_fetch_add(poller->polled, 1);
		ibv_end_poll(poller->ends->cq);
	}
	return NULL;
}

static void threads_poll_one_queue(void **state)
{
	struct ends ends;
	atomic_int polled = 0;
	struct poller pollers[2] = { { &ends, &polled, 0 }, { &ends, &polled, 0 } };
	pthread_t threads[2];

	(void)state;
	open_ends(&ends, 0, 64, IBV_WC_STANDARD_FLAGS, 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, poll_many, &pollers[i]), 0);
	for (uint64_t i = 0; i < MESSAGES; i++) {
		while (fixture_post_recv(&ends.b, i, 0, 16))
			;
		assert_int_equal(fixture_post(&ends.a, IBV_WR_SEND, i, 0, 8, NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
		fixture_expect(&ends.a, ends.a.send_cq, NULL, i, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(pollers[0].sum + pollers[1].sum,
			 (uint64_t)MESSAGES * (MESSAGES - 1) / 2);
	close_ends(&ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_one_completion_after_the_other),
		cmocka_unit_test(stamps_completions_with_the_time),
		cmocka_unit_test(refuses_what_it_does_not_have),
		cmocka_unit_test(ignores_an_overrun_if_asked_to),
		cmocka_unit_test(resized_queue_keeps_its_completions),
		cmocka_unit_test(threads_poll_one_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

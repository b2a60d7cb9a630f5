/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pier/error.h>

#include "soft_fixture.h"

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct fixture_options stepped = { .stepped = 1 };

enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
};

static struct ibv_qp_attr valid_attr(const struct soft_fixture *fixture,
				     enum ibv_qp_state state)
{
	struct ibv_gid_entry entry;

	assert_int_equal(soft->query_gid(fixture->context, 1, 0, &entry), 0);
	return (struct ibv_qp_attr){
		.qp_state = state,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = fixture->qp->qp_num,
		.max_rd_atomic = 1,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.dgid = entry.gid },
	};
}

static void bring_to(struct soft_fixture *fixture, enum ibv_qp_state state)
{
	struct fixture_endpoint self;

	assert_int_equal(fixture_to(fixture, IBV_QPS_RESET), 0);
	fixture_describe(fixture, &self);
	assert_int_equal(soft->set_qp_address(fixture->qp, self.blob, self.blob_length),
			 0);
	if (state == IBV_QPS_RESET)
		return;
	assert_int_equal(fixture_to_init(fixture), 0);
	if (state == IBV_QPS_ERR)
		assert_int_equal(fixture_to(fixture, IBV_QPS_ERR), 0);
	if (state == IBV_QPS_INIT || state == IBV_QPS_ERR)
		return;
	assert_int_equal(fixture_to_rtr(fixture, &self), 0);
	if (state == IBV_QPS_RTS)
		assert_int_equal(fixture_to_rts(fixture), 0);
}

static int mask_of(enum ibv_qp_state from, enum ibv_qp_state to)
{
	if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
		return TO_INIT;
	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
		return TO_RTR;
	if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
		return TO_RTS;
	return IBV_QP_STATE;
}

static void allows_only_valid_transitions(void **state)
{
	const enum ibv_qp_state states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
					     IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR };
	/* Rows from, columns to, in the order above; SQD cannot be reached. */
	const int allowed[6][6] = {
		{ 1, 1, 0, 0, 0, 0 },
		{ 1, 1, 1, 0, 0, 1 },
		{ 1, 0, 0, 1, 0, 1 },
		{ 1, 0, 0, 1, 0, 1 },
		{ 0 },
		{ 1, 0, 0, 0, 0, 1 },
	};
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	for (int from = 0; from < 6; from++) {
		for (int to = 0; to < 6; to++) {
			struct ibv_qp_attr attr = valid_attr(&fixture, states[to]);
			int expected = allowed[from][to] ? 0 : EINVAL;

			if (states[from] == IBV_QPS_SQD)
				continue;
			bring_to(&fixture, states[from]);
			assert_int_equal(
				soft->modify_qp(fixture.qp, &attr,
						mask_of(states[from], states[to])),
				expected);
			assert_int_equal(fixture.qp->state,
					 expected ? states[from] : states[to]);
		}
	}
	fixture_close(&fixture);
}

static void check_each_bit(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	struct soft_fixture fixture;

	fixture_open(&fixture, &stepped);
	for (int bit = 1; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
		struct ibv_qp_attr attr = valid_attr(&fixture, to);

		if (bit == IBV_QP_STATE || !(mask & bit))
			continue;
		bring_to(&fixture, from);
		assert_int_equal(soft->modify_qp(fixture.qp, &attr, mask & ~bit), EINVAL);
		assert_non_null(strstr(pier_error_message(), "needs IBV_QP_"));
		assert_int_equal(fixture.qp->state, from);
	}
	bring_to(&fixture, from);
	struct ibv_qp_attr attr = valid_attr(&fixture, to);

	assert_int_equal(soft->modify_qp(fixture.qp, &attr, mask | IBV_QP_QKEY), EINVAL);
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, mask | IBV_QP_PATH_MIG_STATE),
			 EINVAL);
	fixture_close(&fixture);
}

static void checks_every_mask_bit(void **state)
{
	(void)state;
	check_each_bit(IBV_QPS_RESET, IBV_QPS_INIT, TO_INIT);
	check_each_bit(IBV_QPS_INIT, IBV_QPS_RTR, TO_RTR);
	check_each_bit(IBV_QPS_RTR, IBV_QPS_RTS, TO_RTS);
}

static void refuses_values_out_of_range(void **state)
{
	struct ibv_qp_attr attr;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	attr = valid_attr(&fixture, IBV_QPS_INIT);
	attr.port_num = 2;
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_INIT), EINVAL);
	attr = valid_attr(&fixture, IBV_QPS_INIT);
	attr.pkey_index = 1;
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_INIT), EINVAL);
	bring_to(&fixture, IBV_QPS_INIT);
	attr = valid_attr(&fixture, IBV_QPS_RTR);
	attr.ah_attr.is_global = 0;
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_RTR), EINVAL);
	attr = valid_attr(&fixture, IBV_QPS_RTR);
	attr.max_dest_rd_atomic = 17;
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_RTR), EINVAL);
	attr = valid_attr(&fixture, IBV_QPS_RTR);
	attr.ah_attr.grh.dgid.raw[15] ^= 1;
	/* A peer of another process, whose address we do not have: RESET forgets it. */
	assert_int_equal(fixture_to(&fixture, IBV_QPS_RESET), 0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_RTR), ENOTCONN);
	assert_int_equal(fixture.qp->state, IBV_QPS_INIT);
	fixture_close(&fixture);
}

static void checks_the_state_when_posting(void **state)
{
	const enum ibv_qp_state states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
					     IBV_QPS_RTS, IBV_QPS_ERR };
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	for (int i = 0; i < 5; i++) {
		int send = states[i] == IBV_QPS_RTS || states[i] == IBV_QPS_ERR ? 0
										: EINVAL;

		bring_to(&fixture, states[i]);
		assert_int_equal(fixture_post(&fixture, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0),
				 send);
		assert_int_equal(fixture_post_recv(&fixture, 1, 0, 8),
				 states[i] == IBV_QPS_RESET ? EINVAL : 0);
	}
	fixture_close(&fixture);
}

static void objects_in_use_cannot_be_destroyed(void **state)
{
	struct soft_fixture fixture;
	int before = fixture_count_fds();

	(void)state;
	fixture_open(&fixture,
		     &(struct fixture_options){ .stepped = 1, .with_channel = 1 });
	assert_int_equal(soft->dealloc_pd(fixture.pd), EBUSY);
	assert_int_equal(soft->destroy_cq(fixture.send_cq), EBUSY);
	assert_int_equal(soft->destroy_comp_channel(fixture.channel), EBUSY);
	assert_int_equal(soft->close_device(fixture.context), -1);
	assert_int_equal(errno, EBUSY);
	assert_int_equal(soft->destroy_qp(fixture.qp), 0);
	fixture.qp = NULL;
	assert_int_equal(soft->dealloc_pd(fixture.pd), EBUSY);
	fixture_close(&fixture);
	assert_int_equal(fixture_count_fds(), before);
}

static void refuses_invalid_creations(void **state)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD };
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	attr.send_cq = attr.recv_cq = fixture.send_cq;
	assert_null(soft->create_qp(fixture.pd, &attr));
	assert_int_equal(errno, EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RC;
	attr.cap.max_send_wr = 1 << 20;
	assert_null(soft->create_qp(fixture.pd, &attr));
	assert_int_equal(errno, EINVAL);
	assert_null(soft->create_cq(fixture.context, 0, NULL, NULL, 0));
	assert_int_equal(errno, EINVAL);
	fixture_close(&fixture);
}

static void queries_return_the_attributes(void **state)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_gid_entry gid;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	assert_int_equal(soft->query_device(fixture.context, &device), 0);
	assert_int_equal(device.atomic_cap, IBV_ATOMIC_GLOB);
	assert_int_equal(soft->query_port(fixture.context, 1, &port), 0);
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	assert_int_equal(soft->query_port(fixture.context, 2, &port), EINVAL);
	assert_int_equal(soft->query_gid(fixture.context, 1, 1, &gid), ENODATA);
	bring_to(&fixture, IBV_QPS_RTS);
	assert_int_equal(soft->query_qp(fixture.qp, &attr, IBV_QP_STATE, &init), 0);
	assert_int_equal(attr.qp_state, IBV_QPS_RTS);
	assert_int_equal(attr.dest_qp_num, fixture.qp->qp_num);
	assert_int_equal(init.cap.max_send_wr, 16);
	fixture_close(&fixture);
}

/* An alternate path is kept, and not used. */
static void query_returns_what_was_set(void **state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr, found;
	struct fixture_endpoint self;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	fixture_describe(&fixture, &self);
	assert_int_equal(soft->set_qp_address(fixture.qp, self.blob, self.blob_length),
			 0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	attr = valid_attr(&fixture, IBV_QPS_RTR);
	attr.path_mtu = IBV_MTU_2048;
	attr.rq_psn = 0x123456;
	attr.min_rnr_timer = 12;
	attr.max_dest_rd_atomic = 3;
	attr.ah_attr.sl = 2;
	attr.ah_attr.grh.hop_limit = 7;
	attr.alt_ah_attr.port_num = 1;
	attr.alt_timeout = 5;
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_RTR | IBV_QP_ALT_PATH), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.cur_qp_state = IBV_QPS_INIT;
	attr.sq_psn = 0xabcdef;
	attr.timeout = 14;
	attr.retry_cnt = 6;
	attr.rnr_retry = 5;
	attr.max_rd_atomic = 2;
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_RTS | IBV_QP_CUR_STATE),
			 EINVAL);
	attr.cur_qp_state = IBV_QPS_RTR;
	assert_int_equal(soft->modify_qp(fixture.qp, &attr, TO_RTS | IBV_QP_CUR_STATE),
			 0);
	assert_int_equal(soft->query_qp(fixture.qp, &found, 0, &init), 0);
	assert_int_equal(found.cur_qp_state, IBV_QPS_RTS);
	assert_int_equal(found.path_mtu, IBV_MTU_2048);
	assert_int_equal(found.rq_psn, 0x123456);
	assert_int_equal(found.sq_psn, 0xabcdef);
	assert_int_equal(found.min_rnr_timer, 12);
	assert_int_equal(found.max_dest_rd_atomic, 3);
	assert_int_equal(found.max_rd_atomic, 2);
	assert_int_equal(found.timeout, 14);
	assert_int_equal(found.retry_cnt, 6);
	assert_int_equal(found.rnr_retry, 5);
	assert_int_equal(found.dest_qp_num, fixture.qp->qp_num);
	assert_int_equal(found.port_num, 1);
	assert_int_equal(found.alt_timeout, 5);
	assert_int_equal(found.path_mig_state, IBV_MIG_MIGRATED);
	assert_memory_equal(&found.ah_attr, &attr.ah_attr, sizeof(attr.ah_attr));
	assert_memory_equal(&found.alt_ah_attr, &attr.alt_ah_attr,
			    sizeof(attr.alt_ah_attr));
	assert_int_equal(init.cap.max_inline_data, 64);
	assert_ptr_equal(init.send_cq, fixture.send_cq);
	fixture_close(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(allows_only_valid_transitions),
		cmocka_unit_test(checks_every_mask_bit),
		cmocka_unit_test(refuses_values_out_of_range),
		cmocka_unit_test(checks_the_state_when_posting),
		cmocka_unit_test(objects_in_use_cannot_be_destroyed),
		cmocka_unit_test(refuses_invalid_creations),
		cmocka_unit_test(queries_return_the_attributes),
		cmocka_unit_test(query_returns_what_was_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pier/error.h>

#include "soft_fixture.h"

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct rig_options stepped = { .stepped = 1 };

enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
};

static struct ibv_qp_attr valid_attr(const struct rig *rig, enum ibv_qp_state state)
{
	struct ibv_gid_entry entry;

	assert_int_equal(soft->query_gid(rig->context, 1, 0, &entry), 0);
	return (struct ibv_qp_attr){
		.qp_state = state,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = rig->qp->qp_num,
		.max_rd_atomic = 1,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.dgid = entry.gid },
	};
}

static void bring_to(struct rig *rig, enum ibv_qp_state state)
{
	struct rig_endpoint self;

	assert_int_equal(rig_to(rig, IBV_QPS_RESET), 0);
	rig_describe(rig, &self);
	assert_int_equal(soft->set_qp_address(rig->qp, self.blob, self.blob_length), 0);
	if (state == IBV_QPS_RESET)
		return;
	assert_int_equal(rig_to_init(rig), 0);
	if (state == IBV_QPS_ERR)
		assert_int_equal(rig_to(rig, IBV_QPS_ERR), 0);
	if (state == IBV_QPS_INIT || state == IBV_QPS_ERR)
		return;
	assert_int_equal(rig_to_rtr(rig, &self), 0);
	if (state == IBV_QPS_RTS)
		assert_int_equal(rig_to_rts(rig), 0);
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
	struct rig rig;

	(void)state;
	rig_open(&rig, &stepped);
	for (int from = 0; from < 6; from++) {
		for (int to = 0; to < 6; to++) {
			struct ibv_qp_attr attr = valid_attr(&rig, states[to]);
			int expected = allowed[from][to] ? 0 : EINVAL;

			if (states[from] == IBV_QPS_SQD)
				continue;
			bring_to(&rig, states[from]);
			assert_int_equal(
				soft->modify_qp(rig.qp, &attr,
						mask_of(states[from], states[to])),
				expected);
			assert_int_equal(rig.qp->state,
					 expected ? states[from] : states[to]);
		}
	}
	rig_close(&rig);
}

static void check_each_bit(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	struct rig rig;

	rig_open(&rig, &stepped);
	for (int bit = 1; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
		struct ibv_qp_attr attr = valid_attr(&rig, to);

		if (bit == IBV_QP_STATE || !(mask & bit))
			continue;
		bring_to(&rig, from);
		assert_int_equal(soft->modify_qp(rig.qp, &attr, mask & ~bit), EINVAL);
		assert_non_null(strstr(pier_error_message(), "needs IBV_QP_"));
		assert_int_equal(rig.qp->state, from);
	}
	bring_to(&rig, from);
	struct ibv_qp_attr attr = valid_attr(&rig, to);

	assert_int_equal(soft->modify_qp(rig.qp, &attr, mask | IBV_QP_QKEY), EINVAL);
	assert_int_equal(soft->modify_qp(rig.qp, &attr, mask | IBV_QP_ALT_PATH), EINVAL);
	rig_close(&rig);
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
	struct rig rig;

	(void)state;
	rig_open(&rig, &stepped);
	attr = valid_attr(&rig, IBV_QPS_INIT);
	attr.port_num = 2;
	assert_int_equal(soft->modify_qp(rig.qp, &attr, TO_INIT), EINVAL);
	attr = valid_attr(&rig, IBV_QPS_INIT);
	attr.pkey_index = 1;
	assert_int_equal(soft->modify_qp(rig.qp, &attr, TO_INIT), EINVAL);
	bring_to(&rig, IBV_QPS_INIT);
	attr = valid_attr(&rig, IBV_QPS_RTR);
	attr.ah_attr.is_global = 0;
	assert_int_equal(soft->modify_qp(rig.qp, &attr, TO_RTR), EINVAL);
	attr = valid_attr(&rig, IBV_QPS_RTR);
	attr.max_dest_rd_atomic = 17;
	assert_int_equal(soft->modify_qp(rig.qp, &attr, TO_RTR), EINVAL);
	attr = valid_attr(&rig, IBV_QPS_RTR);
	attr.ah_attr.grh.dgid.raw[15] ^= 1;
	/* A peer of another process, whose address we do not have: RESET forgets it. */
	assert_int_equal(rig_to(&rig, IBV_QPS_RESET), 0);
	assert_int_equal(rig_to_init(&rig), 0);
	assert_int_equal(soft->modify_qp(rig.qp, &attr, TO_RTR), ENOTCONN);
	assert_int_equal(rig.qp->state, IBV_QPS_INIT);
	rig_close(&rig);
}

static void checks_the_state_when_posting(void **state)
{
	const enum ibv_qp_state states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
					     IBV_QPS_RTS, IBV_QPS_ERR };
	struct rig rig;

	(void)state;
	rig_open(&rig, &stepped);
	for (int i = 0; i < 5; i++) {
		int send = states[i] == IBV_QPS_RTS || states[i] == IBV_QPS_ERR ? 0
										: EINVAL;

		bring_to(&rig, states[i]);
		assert_int_equal(rig_post(&rig, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0), send);
		assert_int_equal(rig_post_recv(&rig, 1, 0, 8),
				 states[i] == IBV_QPS_RESET ? EINVAL : 0);
	}
	rig_close(&rig);
}

static void objects_in_use_cannot_be_destroyed(void **state)
{
	struct rig rig;
	int before = rig_count_fds();

	(void)state;
	rig_open(&rig, &(struct rig_options){ .stepped = 1, .with_channel = 1 });
	assert_int_equal(soft->dealloc_pd(rig.pd), EBUSY);
	assert_int_equal(soft->destroy_cq(rig.send_cq), EBUSY);
	assert_int_equal(soft->destroy_comp_channel(rig.channel), EBUSY);
	assert_int_equal(soft->close_device(rig.context), -1);
	assert_int_equal(errno, EBUSY);
	assert_int_equal(soft->destroy_qp(rig.qp), 0);
	rig.qp = NULL;
	assert_int_equal(soft->dealloc_pd(rig.pd), EBUSY);
	rig_close(&rig);
	assert_int_equal(rig_count_fds(), before);
}

static void refuses_invalid_creations(void **state)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD };
	struct rig rig;

	(void)state;
	rig_open(&rig, &stepped);
	attr.send_cq = attr.recv_cq = rig.send_cq;
	assert_null(soft->create_qp(rig.pd, &attr));
	assert_int_equal(errno, EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RC;
	attr.cap.max_send_wr = 1 << 20;
	assert_null(soft->create_qp(rig.pd, &attr));
	assert_int_equal(errno, EINVAL);
	assert_null(soft->create_cq(rig.context, 0, NULL, NULL, 0));
	assert_int_equal(errno, EINVAL);
	rig_close(&rig);
}

static void queries_return_the_attributes(void **state)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_gid_entry gid;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct rig rig;

	(void)state;
	rig_open(&rig, &stepped);
	assert_int_equal(soft->query_device(rig.context, &device), 0);
	assert_int_equal(device.atomic_cap, IBV_ATOMIC_GLOB);
	assert_int_equal(soft->query_port(rig.context, 1, &port), 0);
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	assert_int_equal(soft->query_port(rig.context, 2, &port), EINVAL);
	assert_int_equal(soft->query_gid(rig.context, 1, 1, &gid), ENODATA);
	bring_to(&rig, IBV_QPS_RTS);
	assert_int_equal(soft->query_qp(rig.qp, &attr, IBV_QP_STATE, &init), 0);
	assert_int_equal(attr.qp_state, IBV_QPS_RTS);
	assert_int_equal(attr.dest_qp_num, rig.qp->qp_num);
	assert_int_equal(init.cap.max_send_wr, 16);
	rig_close(&rig);
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

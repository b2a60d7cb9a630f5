/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A queue pair that is connected to itself, on a fake NIC that needs a second for every
 * GID and poll. The program replaces clock_gettime(2).
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/deadline.h"
#include "device/device.h"
#include "device/loop.h"

enum {
	SECOND_MS = 1000,
	FULL_TABLE = 256,
};

static struct {
	time_t seconds;
	int working_gid; /* its index; -1: none */
	bool no_gids;
	int connects, polls, live;
	struct ibv_qp_attr attr; /* of the last connect */
	struct ibv_device verbs_device;
	struct ibv_context context;
	struct ibv_cq cq;
	struct ibv_qp qp;
	struct pier_device device;
} nic;

int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	(void)clock;
	*ret_time = (struct timespec){ .tv_sec = nic.seconds };
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port,
		      struct ibv_port_attr *ret_attr)
{
	(void)context;
	(void)port;
	*ret_attr = (struct ibv_port_attr){
		.state = IBV_PORT_ACTIVE,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
		.gid_tbl_len = FULL_TABLE,
	};
	return 0;
}

static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	(void)context;
	(void)port;
	if (nic.no_gids)
		return ENODATA;
	*ret_entry = (struct ibv_gid_entry){
		.gid.raw = { 1, (uint8_t)index },
		.gid_index = index,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
	};
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel, int comp_vector)
{
	(void)cqe;
	(void)cq_context;
	(void)channel;
	(void)comp_vector;
	nic.cq.context = context;
	nic.live++;
	return &nic.cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	(void)cq;
	nic.live--;
	return 0;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)pd;
	(void)attr;
	nic.qp.context = &nic.context;
	nic.live++;
	return &nic.qp;
}

static int destroy_qp(struct ibv_qp *qp)
{
	(void)qp;
	nic.live--;
	return 0;
}

/* As in Linux, where rdma_resolve_ip() waits for a neighbour for 1000 ms. */
static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	if (!(mask & IBV_QP_AV))
		return 0;
	nic.connects++;
	nic.seconds++;
	nic.attr = *attr;
	return attr->ah_attr.grh.sgid_index == nic.working_gid ? 0 : EHOSTUNREACH;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	(void)wr;
	(void)bad;
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	(void)cq;
	(void)count;
	(void)wc;
	nic.polls++;
	nic.seconds++;
	return 0;
}

static const struct pier_provider provider = {
	.name = "fake",
	.query_port = query_port,
	.query_gid = query_gid,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.destroy_qp = destroy_qp,
};

static int setup(void **state)
{
	(void)state;
	pier_drop_gids(nic.device.gids[0].gids);
	memset(&nic, 0, sizeof(nic));
	snprintf(nic.verbs_device.name, sizeof(nic.verbs_device.name), "fake0");
	nic.context.device = &nic.verbs_device;
	nic.seconds = 100;
	nic.working_gid = -1;
	nic.context.ops.post_send = post_send;
	nic.context.ops.poll_cq = poll_cq;
	nic.device.provider = &provider;
	nic.device.context = &nic.context;
	nic.device.limits.phys_port_cnt = 1;
	return 0;
}

static int create(struct pier_loop **ret_loop)
{
	return pier_loop_create(&nic.device, NULL, pier_deadline(5 * SECOND_MS),
				ret_loop);
}

static void takes_the_first_gid_that_works(void **state)
{
	struct pier_loop *loop = NULL;

	(void)state;
	nic.working_gid = 3;
	expect_ok(create(&loop));
	assert_int_equal(nic.connects, 4);
	assert_int_equal(nic.attr.ah_attr.grh.dgid.raw[1], 3);
	pier_loop_destroy(loop);
	assert_int_equal(nic.live, 0);
}

/* Each needs a second. */
static void gids_are_tried_until_the_deadline(void **state)
{
	struct pier_loop *loop = NULL;

	(void)state;
	expect_result(create(&loop), -EHOSTUNREACH);
	test_assert_sentence("connect a queue pair to itself");
	assert_in_range(nic.connects, 5, 6);
	assert_int_equal(nic.live, 0);
}

static void reports_that_there_is_no_gid(void **state)
{
	struct pier_loop *loop = NULL;

	(void)state;
	nic.no_gids = true;
	expect_result(create(&loop), -EADDRNOTAVAIL);
	test_assert_sentence("port 1 has no GID to send from");
	assert_int_equal(nic.live, 0);
}

static void completion_is_awaited_until_the_deadline(void **state)
{
	struct pier_loop *loop = NULL;
	struct ibv_sge element = { .length = 1 };

	(void)state;
	nic.working_gid = 0;
	expect_ok(create(&loop));
	expect_result(pier_loop_run(loop, IBV_WR_RDMA_READ, &element, 0, 0,
				    pier_deadline(3 * SECOND_MS)),
		      -EHOSTUNREACH);
	test_assert_sentence("no completion of a request to itself in 4000 ms");
	assert_int_equal(nic.polls, 5);
	pier_loop_destroy(loop);
}

#define CASE(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(takes_the_first_gid_that_works),
		CASE(gids_are_tried_until_the_deadline),
		CASE(reports_that_there_is_no_gid),
		CASE(completion_is_awaited_until_the_deadline),
	};

	return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}

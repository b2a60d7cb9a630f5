/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_VERBS_END_H
#define PIER_TESTS_VERBS_END_H

#include "tests/support/cmocka.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

/* Shared by the tests of libpier-verbs: connections of soft0 by plain verbs. */

enum {
	LENGTH = 64
};

static inline struct ibv_context *open_soft0(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	assert_non_null(list);
	context = ibv_open_device(list[0]);
	assert_non_null(context);
	ibv_free_device_list(list);
	return context;
}

#define assert_no_object(call)                       \
	do {                                         \
		errno = 0;                           \
		assert_null(call);                   \
		assert_int_equal(errno, EOPNOTSUPP); \
	} while (0)

/* One end of a connection, and the memory that it offers. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[LENGTH];
};

static inline void open_end(struct end *end)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	end->context = open_soft0();
	end->pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, 4, NULL, NULL, 0);
	assert_true(end->pd && end->cq);
	init.send_cq = init.recv_cq = end->cq;
	init.cap = (struct ibv_qp_cap){
		.max_send_wr = 4,
		.max_send_sge = 1,
		.max_recv_wr = 4,
		.max_recv_sge = 1,
	};
	end->qp = ibv_create_qp(end->pd, &init);
	end->mr = ibv_reg_mr(end->pd, end->memory, LENGTH,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ);
	assert_true(end->qp && end->mr);
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	assert_int_equal(ibv_modify_qp(end->qp, &attr,
				       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS),
			 0);
}

static inline void connect_end(struct end *end, const union ibv_gid *gid, uint32_t qpn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qpn,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.dgid = *gid },
	};

	assert_int_equal(ibv_modify_qp(end->qp, &attr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC |
					       IBV_QP_MIN_RNR_TIMER),
			 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.max_rd_atomic = 1;
	assert_int_equal(ibv_modify_qp(end->qp, &attr,
				       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC),
			 0);
}

static inline void post_between(struct end *from, struct end *to,
				enum ibv_wr_opcode opcode, uint32_t rkey,
				unsigned int flags)
{
	struct ibv_sge piece = {
		.addr = (uintptr_t)from->memory,
		.length = LENGTH,
		.lkey = from->mr->lkey,
	};
	struct ibv_send_wr wr = {
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = flags,
		.wr.rdma = { .remote_addr = (uintptr_t)to->memory, .rkey = rkey },
	}, *bad;

	assert_int_equal(ibv_post_send(from->qp, &wr, &bad), 0);
}

static inline enum ibv_wc_status wait_for_completion(struct end *end)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		continue;
	assert_int_equal(count, 1);
	return wc.status;
}

static inline void write_between(struct end *from, struct end *to)
{
	memset(from->memory, 'f', LENGTH);
	post_between(from, to, IBV_WR_RDMA_WRITE, to->mr->rkey, IBV_SEND_SIGNALED);
	assert_int_equal(wait_for_completion(from), IBV_WC_SUCCESS);
	assert_memory_equal(to->memory, from->memory, LENGTH);
}

static inline void destroy_objects(struct end *end)
{
	assert_int_equal(ibv_destroy_qp(end->qp), 0);
	assert_int_equal(ibv_dereg_mr(end->mr), 0);
	assert_int_equal(ibv_destroy_cq(end->cq), 0);
	assert_int_equal(ibv_dealloc_pd(end->pd), 0);
}

static inline void close_end(struct end *end)
{
	destroy_objects(end);
	assert_int_equal(ibv_close_device(end->context), 0);
}

#endif

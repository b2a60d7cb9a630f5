/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "soft_fake.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/link.h"

/* Receives that several queue pairs take from one queue. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	PEERS = 3,
	DEPTH = 8,
	PIECE = 64
};

static const struct fixture_options stepped = { .stepped = 1, .srq_depth = DEPTH };

/* Queue pairs of one context, which share everything else; a peer for each. */
struct hub {
	struct soft_fixture ends[PEERS], peers[PEERS];
};

static void connect_end(struct hub *hub, int i)
{
	struct fixture_endpoint to_end, to_peer;

	fixture_describe(&hub->ends[i], &to_end);
	fixture_describe(&hub->peers[i], &to_peer);
	fixture_connect(&hub->ends[i], &to_peer);
	fixture_connect(&hub->peers[i], &to_end);
}

static void open_hub(struct hub *hub, const struct fixture_options *options)
{
	struct fixture_options plain = *options;

	plain.srq_depth = 0;
	fixture_open(&hub->ends[0], options);
	for (int i = 0; i < PEERS; i++) {
		if (i > 0) {
			hub->ends[i] = hub->ends[0];
			fixture_create_qp(&hub->ends[i]);
		}
		fixture_open(&hub->peers[i], &plain);
		connect_end(hub, i);
	}
}

static void close_hub(struct hub *hub)
{
	for (int i = PEERS; i-- > 0;) {
		fixture_close(&hub->peers[i]);
		if (i > 0 && hub->ends[i].qp)
			assert_int_equal(soft->destroy_qp(hub->ends[i].qp), 0);
	}
	fixture_close(&hub->ends[0]);
}

static int post_srq(const struct soft_fixture *fixture, uint64_t wr_id, uint64_t offset,
		    uint32_t length)
{
	struct ibv_sge sge = fixture_sge(fixture, offset, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = length > 0 };
	struct ibv_recv_wr *bad = NULL;
	int error = ibv_post_srq_recv(fixture->srq, &wr, &bad);

	if (bad != (error ? &wr : NULL))
		abort(); /* also in threads */
	return error;
}

static int send_piece(struct soft_fixture *fixture, uint64_t wr_id, unsigned int flags)
{
	memset(fixture->memory, (int)wr_id, PIECE);
	return fixture_post(fixture, IBV_WR_SEND, wr_id, 0, PIECE, NULL, 0,
			    flags | IBV_SEND_SIGNALED);
}

static void expect_recv(struct hub *hub, int end, uint64_t wr_id,
			enum ibv_wc_status status)
{
	struct soft_fixture *fixture = &hub->ends[end];

	fixture_expect(fixture, fixture->recv_cq, &hub->peers[end], wr_id, status);
}

/* In the order in which they were posted, whichever queue pair needs one. */
static void takes_receives_in_order(void **state)
{
	static const int order[] = { 1, 0, 2, 2, 1 };
	struct hub hub;

	(void)state;
	open_hub(&hub, &stepped);
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(post_srq(&hub.ends[0], i, 100 * i, PIECE), 0);
	for (uint64_t i = 0; i < 5; i++) {
		assert_int_equal(send_piece(&hub.peers[order[i]], 10 + i, 0), 0);
		expect_recv(&hub, order[i], i, IBV_WC_SUCCESS);
		fixture_expect(&hub.peers[order[i]], hub.peers[order[i]].send_cq,
			       &hub.ends[order[i]], 10 + i, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 500; i++)
		assert_int_equal(hub.ends[0].memory[i],
				 i % 100 < PIECE ? 10 + i / 100 : 0);
	close_hub(&hub);
}

static void empty_queue_is_rnr(void **state)
{
	struct fixture_options options = stepped;
	struct hub hub;

	(void)state;
	open_hub(&hub, &options);
	assert_int_equal(send_piece(&hub.peers[0], 1, 0), 0);
	fixture_expect(&hub.peers[0], hub.peers[0].send_cq, &hub.ends[0], 1,
		       IBV_WC_RNR_RETRY_EXC_ERR);
	close_hub(&hub);
	options.rnr_retry = 7;
	options.min_rnr_timer = 1;
	open_hub(&hub, &options);
	assert_int_equal(send_piece(&hub.peers[0], 1, 0), 0);
	for (int i = 0; i < 200; i++)
		fixture_step(&hub.peers[0], &hub.ends[0]);
	fixture_expect_none(&hub.peers[0], hub.peers[0].send_cq);
	assert_int_equal(post_srq(&hub.ends[0], 7, 0, PIECE), 0);
	expect_recv(&hub, 0, 7, IBV_WC_SUCCESS);
	fixture_expect(&hub.peers[0], hub.peers[0].send_cq, &hub.ends[0], 1,
		       IBV_WC_SUCCESS);
	close_hub(&hub);
}

/*
 * A receive occupies its place until its completion was polled; then the place is reused.
 */
static void limits_outstanding_receives(void **state)
{
	struct hub hub;

	(void)state;
	open_hub(&hub, &stepped);
	for (uint64_t i = 0; i < DEPTH; i++)
		assert_int_equal(post_srq(&hub.ends[0], i, PIECE * i, PIECE), 0);
	assert_int_equal(post_srq(&hub.ends[0], 99, 0, PIECE), ENOMEM);
	for (uint64_t round = 0; round < 5 * DEPTH; round++) {
		int who = (int)round % PEERS;

		assert_int_equal(send_piece(&hub.peers[who], 1, 0), 0);
		fixture_expect(&hub.peers[who], hub.peers[who].send_cq, &hub.ends[who], 1,
			       IBV_WC_SUCCESS);
		assert_int_equal(post_srq(&hub.ends[0], 99, 0, PIECE), ENOMEM);
		expect_recv(&hub, who, round, IBV_WC_SUCCESS);
		assert_int_equal(post_srq(&hub.ends[0], DEPTH + round, 0, PIECE), 0);
		assert_int_equal(post_srq(&hub.ends[0], 99, 0, PIECE), ENOMEM);
	}
	close_hub(&hub);
}

/* Completions are polled in another order than the receives were posted. */
static void accepts_completions_out_of_order(void **state)
{
	struct hub hub;
	struct ibv_cq *other;
	struct soft_fixture *end = &hub.ends[0];

	(void)state;
	open_hub(&hub, &stepped);
	/* Its completions go to another CQ. */
	other = soft->create_cq(end->context, 16, NULL, NULL, 0);
	assert_int_equal(soft->destroy_qp(hub.ends[1].qp), 0);
	hub.ends[1].recv_cq = other;
	fixture_create_qp(&hub.ends[1]);
	assert_int_equal(fixture_to(&hub.peers[1], IBV_QPS_RESET), 0);
	connect_end(&hub, 1);
	for (uint64_t i = 0; i < DEPTH; i++)
		assert_int_equal(post_srq(end, i, PIECE * i, PIECE), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(send_piece(&hub.peers[i], 1, 0), 0);
		fixture_expect(&hub.peers[i], hub.peers[i].send_cq, &hub.ends[i], 1,
			       IBV_WC_SUCCESS);
	}
	expect_recv(&hub, 1, 1, IBV_WC_SUCCESS);
	assert_int_equal(post_srq(end, 8, 0, PIECE), 0);
	assert_int_equal(post_srq(end, 9, 0, PIECE), ENOMEM);
	expect_recv(&hub, 0, 0, IBV_WC_SUCCESS);
	assert_int_equal(post_srq(end, 9, 0, PIECE), 0);
	assert_int_equal(post_srq(end, 10, 0, PIECE), ENOMEM);
	assert_int_equal(soft->destroy_qp(hub.ends[1].qp), 0);
	hub.ends[1].qp = NULL;
	assert_int_equal(soft->destroy_cq(other), 0);
	close_hub(&hub);
}

/*
 * The receive in use fails with the queue pair; those in the queue stay available to
 * others.
 */
static void error_keeps_the_queue(void **state)
{
	struct hub hub;

	(void)state;
	open_hub(&hub, &stepped);
	assert_int_equal(post_srq(&hub.ends[0], 1, 0, PIECE - 1), 0);
	assert_int_equal(post_srq(&hub.ends[0], 2, 100, PIECE), 0);
	assert_int_equal(send_piece(&hub.peers[0], 1, 0), 0);
	expect_recv(&hub, 0, 1, IBV_WC_LOC_LEN_ERR);
	fixture_expect(&hub.peers[0], hub.peers[0].send_cq, &hub.ends[0], 1,
		       IBV_WC_REM_INV_REQ_ERR);
	for (int i = 0; i < 50; i++)
		fixture_step(&hub.ends[0], &hub.peers[0]);
	fixture_expect_none(&hub.ends[0], hub.ends[0].recv_cq);
	assert_int_equal(fixture_to(&hub.ends[1], IBV_QPS_ERR), 0);
	fixture_expect_none(&hub.ends[0], hub.ends[0].recv_cq);
	assert_int_equal(send_piece(&hub.peers[2], 3, 0), 0);
	expect_recv(&hub, 2, 2, IBV_WC_SUCCESS);
	for (int i = 0; i < 200; i++)
		assert_int_equal(hub.ends[0].memory[i],
				 i >= 100 && i < 100 + PIECE ? 3 : 0);
	close_hub(&hub);
}

/* A peer that hangs up after half of a message. */
struct half {
	struct fake fake;
	struct soft_fixture fixture;
	int fd;
};

static void open_half(struct half *half)
{
	fixture_open(&half->fixture, &stepped);
	fake_make(&half->fake, &half->fixture);
	fake_connect(&half->fixture, &half->fake);
	half->fd = fake_call_stepped(&half->fake, &half->fixture);
	for (uint64_t i = 0; i < DEPTH; i++)
		assert_int_equal(post_srq(&half->fixture, i, 0, PIECE), 0);
	fake_send(half->fd, (struct soft_header){ .opcode = SOFT_SEND, .length = 8 });
	fixture_write_all(half->fd, "1234", 4);
	fake_step(&half->fixture);
	assert_int_equal(post_srq(&half->fixture, 98, 0, PIECE), ENOMEM);
}

/* One place is free again, and no more than one. */
static void expect_one_place(struct half *half)
{
	assert_int_equal(post_srq(&half->fixture, 98, 0, PIECE), 0);
	assert_int_equal(post_srq(&half->fixture, 99, 0, PIECE), ENOMEM);
}

static void half_a_message_frees_its_place(void **state)
{
	struct half half;

	(void)state;
	open_half(&half);
	close(half.fd);
	fixture_expect(&half.fixture, half.fixture.recv_cq, NULL, 0, IBV_WC_WR_FLUSH_ERR);
	expect_one_place(&half);
	fake_step(&half.fixture);
	fixture_expect_none(&half.fixture, half.fixture.recv_cq);
	fixture_close(&half.fixture);
}

/* A reset or destroyed queue pair takes its current receive with it. */
static void reset_frees_the_current_receive(void **state)
{
	struct half half;

	(void)state;
	open_half(&half);
	assert_int_equal(fixture_to(&half.fixture, IBV_QPS_RESET), 0);
	expect_one_place(&half);
	fixture_expect_none(&half.fixture, half.fixture.recv_cq);
	close(half.fd);
	fixture_close(&half.fixture);
	open_half(&half);
	assert_int_equal(soft->destroy_qp(half.fixture.qp), 0);
	half.fixture.qp = NULL;
	expect_one_place(&half);
	close(half.fd);
	fixture_close(&half.fixture);
}

/* An unpolled completion goes with its queue pair; the place does not. */
static void purged_completions_free_their_places(void **state)
{
	struct hub hub;

	(void)state;
	open_hub(&hub, &stepped);
	for (uint64_t i = 0; i < DEPTH; i++)
		assert_int_equal(post_srq(&hub.ends[0], i, 0, PIECE), 0);
	for (uint64_t i = 0; i < 2; i++) {
		assert_int_equal(send_piece(&hub.peers[1], 1, 0), 0);
		fixture_expect(&hub.peers[1], hub.peers[1].send_cq, &hub.ends[1], 1,
			       IBV_WC_SUCCESS);
	}
	assert_int_equal(post_srq(&hub.ends[0], 8, 0, PIECE), ENOMEM);
	assert_int_equal(soft->destroy_qp(hub.ends[1].qp), 0);
	hub.ends[1].qp = NULL;
	fixture_expect_none(&hub.ends[0], hub.ends[0].recv_cq);
	assert_int_equal(post_srq(&hub.ends[0], 8, 0, PIECE), 0);
	assert_int_equal(post_srq(&hub.ends[0], 9, 0, PIECE), 0);
	assert_int_equal(post_srq(&hub.ends[0], 10, 0, PIECE), ENOMEM);
	close_hub(&hub);
}

/* Completions that did not fit into a CQ do not keep places of the SRQ. */
static void cq_overrun_frees_the_places(void **state)
{
	struct fixture_options options = stepped;
	struct hub hub;
	struct ibv_wc wc;

	(void)state;
	options.cq_depth = 1;
	open_hub(&hub, &options);
	for (uint64_t i = 0; i < DEPTH; i++)
		assert_int_equal(post_srq(&hub.ends[0], i, 0, PIECE), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(send_piece(&hub.peers[i], 1, 0), 0);
		for (int step = 0; step < 50; step++)
			fixture_step(&hub.ends[i], &hub.peers[i]);
	}
	assert_int_equal(post_srq(&hub.ends[0], 8, 0, PIECE), 0);
	assert_int_equal(post_srq(&hub.ends[0], 9, 0, PIECE), ENOMEM);
	assert_int_equal(ibv_poll_cq(hub.ends[0].recv_cq, 1, &wc), 1);
	assert_int_equal(wc.wr_id, 0);
	assert_int_equal(post_srq(&hub.ends[0], 9, 0, PIECE), 0);
	close_hub(&hub);
}

/* Immediates and solicited events work as without an SRQ. */
static void reports_immediates_and_solicited_events(void **state)
{
	struct fixture_options options = stepped;
	struct pollfd waited = { .events = POLLIN };
	struct fixture_endpoint to_end;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	struct hub hub;
	void *context;

	(void)state;
	options.with_channel = 1;
	open_hub(&hub, &options);
	waited.fd = hub.ends[0].channel->fd;
	fixture_describe(&hub.ends[2], &to_end);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(post_srq(&hub.ends[0], i, 0, PIECE), 0);
	assert_int_equal(ibv_req_notify_cq(hub.ends[0].recv_cq, 1), 0);
	assert_int_equal(send_piece(&hub.peers[0], 1, 0), 0);
	expect_recv(&hub, 0, 0, IBV_WC_SUCCESS);
	assert_int_equal(poll(&waited, 1, 0), 0);
	assert_int_equal(fixture_post(&hub.peers[2], IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 0,
				      &to_end, 0, IBV_SEND_SOLICITED),
			 0);
	wc = fixture_wait(&hub.ends[2], hub.ends[2].recv_cq, &hub.peers[2]);
	assert_int_equal(wc.wr_id, 1);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(wc.wc_flags, IBV_WC_WITH_IMM);
	assert_int_equal(wc.imm_data, htobe32(0x12345678));
	assert_int_equal(wc.qp_num, hub.ends[2].qp->qp_num);
	assert_int_equal(poll(&waited, 1, 0), 1);
	assert_int_equal(soft->get_cq_event(hub.ends[0].channel, &cq, &context), 0);
	assert_ptr_equal(cq, hub.ends[0].recv_cq);
	soft->ack_cq_events(cq, 1);
	close_hub(&hub);
}

/* The target of a WRITE with immediate is not writable: its receive is flushed. */
static void refused_write_flushes_its_receive(void **state)
{
	struct fixture_endpoint to_end;
	struct hub hub;

	(void)state;
	open_hub(&hub, &stepped);
	fixture_describe(&hub.ends[0], &to_end);
	to_end.rkey ^= 1;
	assert_int_equal(post_srq(&hub.ends[0], 1, 0, PIECE), 0);
	assert_int_equal(post_srq(&hub.ends[0], 2, 0, PIECE), 0);
	assert_int_equal(fixture_post(&hub.peers[0], IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8,
				      &to_end, 0, 0),
			 0);
	expect_recv(&hub, 0, 1, IBV_WC_WR_FLUSH_ERR);
	fixture_expect(&hub.peers[0], hub.peers[0].send_cq, &hub.ends[0], 1,
		       IBV_WC_REM_ACCESS_ERR);
	fixture_expect_none(&hub.ends[0], hub.ends[0].recv_cq);
	close_hub(&hub);
}

static void refuses_invalid_queues(void **state)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 2 } };
	struct ibv_srq_init_attr zero = { 0 }, deep = { .attr.max_wr = SOFT_MAX_WR + 1 };
	struct ibv_srq_init_attr wide = { .attr = { .max_wr = 1,
						    .max_sge = SOFT_MAX_SGE + 1 } };
	struct ibv_sge sges[3] = { 0 };
	struct ibv_recv_wr wrs[3] = {
		{ .next = &wrs[1] },
		{ .next = &wrs[2], .sg_list = sges, .num_sge = 3 },
	}, *bad = NULL;
	struct ibv_srq_attr changed = { .max_wr = 8 };
	struct ibv_qp_init_attr qp_attr = { .qp_type = IBV_QPT_RC };
	struct ibv_device_attr device;
	struct ibv_srq *srq;
	struct ibv_pd *pd;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, NULL);
	assert_int_equal(soft->query_device(fixture.context, &device), 0);
	assert_true(device.max_srq > 0);
	assert_int_equal(device.max_srq_wr, SOFT_MAX_WR);
	assert_int_equal(device.max_srq_sge, SOFT_MAX_SGE);
	assert_null(soft->create_srq(fixture.pd, &zero));
	assert_int_equal(errno, EINVAL);
	assert_null(soft->create_srq(fixture.pd, &deep));
	assert_null(soft->create_srq(fixture.pd, &wide));
	pd = soft->alloc_pd(fixture.context);
	srq = soft->create_srq(pd, &attr);
	assert_non_null(srq);
	assert_int_equal(soft->dealloc_pd(pd), EBUSY);
	assert_int_equal(ibv_post_srq_recv(srq, wrs, &bad), EINVAL);
	assert_ptr_equal(bad, &wrs[1]);
	assert_true(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	changed.max_wr = SOFT_MAX_WR + 1;
	assert_int_equal(soft->modify_srq(srq, &changed, IBV_SRQ_MAX_WR), EINVAL);
	changed.max_wr = 0;
	assert_int_equal(soft->modify_srq(srq, &changed, IBV_SRQ_MAX_WR), EINVAL);
	changed.srq_limit = 5;
	assert_int_equal(soft->modify_srq(srq, &changed, IBV_SRQ_LIMIT), EINVAL);
	assert_int_equal(soft->modify_srq(srq, &changed, 1 << 2), EINVAL);
	assert_int_equal(soft->query_srq(srq, &changed), 0);
	assert_int_equal(changed.max_wr, 4);
	assert_int_equal(changed.max_sge, 2);
	assert_int_equal(changed.srq_limit, 0);
	/* Of another PD than the queue pair's. */
	qp_attr.send_cq = qp_attr.recv_cq = fixture.send_cq;
	qp_attr.srq = srq;
	assert_null(soft->create_qp(fixture.pd, &qp_attr));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(soft->destroy_srq(srq), 0);
	assert_int_equal(soft->dealloc_pd(pd), 0);
	fixture_close(&fixture);
}

static int resize_srq(struct soft_fixture *fixture, uint32_t depth)
{
	struct ibv_srq_attr attr = { .max_wr = depth };

	return soft->modify_srq(fixture->srq, &attr, IBV_SRQ_MAX_WR);
}

/* Requests that wait keep their order, and those not polled yet their places. */
static void resized_queue_keeps_its_receives(void **state)
{
	struct ibv_srq_attr attr;
	struct hub hub;
	struct soft_fixture *end = &hub.ends[0];

	(void)state;
	open_hub(&hub, &stepped);
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(post_srq(end, i, PIECE * i, PIECE), 0);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(send_piece(&hub.peers[0], 10 + i, 0), 0);
		if (i < 2)
			expect_recv(&hub, 0, i, IBV_WC_SUCCESS);
	}
	fixture_step(&hub.peers[0], end);
	assert_int_equal(resize_srq(end, 2), EINVAL);
	assert_int_equal(resize_srq(end, 3), 0);
	assert_int_equal(soft->query_srq(end->srq, &attr), 0);
	assert_int_equal(attr.max_wr, 3);
	assert_int_equal(post_srq(end, 5, 0, PIECE), ENOMEM);
	assert_int_equal(resize_srq(end, 4), 0);
	assert_int_equal(post_srq(end, 5, 5 * PIECE, PIECE), 0);
	assert_int_equal(post_srq(end, 6, 0, PIECE), ENOMEM);
	expect_recv(&hub, 0, 2, IBV_WC_SUCCESS);
	for (uint64_t i = 3; i < 6; i++) {
		assert_int_equal(send_piece(&hub.peers[0], 10 + i, 0), 0);
		expect_recv(&hub, 0, i, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 6 * PIECE; i++)
		assert_int_equal(end->memory[i], 10 + i / PIECE);
	close_hub(&hub);
}

static void queue_pair_ignores_its_own_receive_limits(void **state)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_recv_wr = UINT32_MAX, .max_recv_sge = UINT32_MAX },
	}, found;
	struct ibv_qp_attr attr;
	struct ibv_qp *qp;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	assert_int_equal(soft->destroy_srq(fixture.srq), EBUSY);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(fixture_post_recv(&fixture, 1, 0, 8), EINVAL);
	init.send_cq = init.recv_cq = fixture.send_cq;
	init.srq = fixture.srq;
	qp = soft->create_qp(fixture.pd, &init);
	assert_non_null(qp);
	assert_ptr_equal(qp->srq, fixture.srq);
	assert_int_equal(soft->query_qp(qp, &attr, IBV_QP_CAP, &found), 0);
	assert_ptr_equal(found.srq, fixture.srq);
	assert_int_equal(found.cap.max_recv_wr, 0);
	assert_int_equal(attr.cap.max_recv_sge, 0);
	assert_int_equal(soft->destroy_qp(qp), 0);
	assert_int_equal(soft->destroy_srq(fixture.srq), EBUSY);
	fixture_close(&fixture);
}

enum {
	MESSAGES = 3000
};

/* No cmocka asserts here: they would jump into the wrong stack. */
static void *send_many(void *argument)
{
	struct soft_fixture *fixture = argument;
	struct ibv_wc wc;
	int count;

	for (uint32_t i = 0; i < MESSAGES; i++) {
		memcpy(fixture->memory, &i, sizeof(i));
		if (fixture_post(fixture, IBV_WR_SEND, i, 0, sizeof(i), NULL, 0,
				 IBV_SEND_SIGNALED))
			abort();
		while ((count = ibv_poll_cq(fixture->send_cq, 1, &wc)) == 0)
			;
		if (count != 1 || wc.status != IBV_WC_SUCCESS)
			abort();
	}
	return NULL;
}

struct poster {
	const struct soft_fixture *fixture;
	atomic_uint_fast64_t *slot_free; /* how often each was received */
};

/* A receive's slot is its wr_id; the polling thread reports the free ones. */
static void *post_many(void *argument)
{
	struct poster *poster = argument;

	for (uint64_t posted = 0; posted < PEERS * MESSAGES; posted++) {
		uint64_t slot = posted % DEPTH;

		while (atomic_load(&poster->slot_free[slot]) * DEPTH + slot < posted)
			;
		while (post_srq(poster->fixture, slot, slot * PIECE, PIECE))
			;
	}
	return NULL;
}

/* One thread posts, another polls; every message arrives once and in order. */
static void threads_can_post_and_poll(void **state)
{
	struct fixture_options options = { .srq_depth = DEPTH,
					   .rnr_retry = 7,
					   .min_rnr_timer = 1 };
	atomic_uint_fast64_t slot_free[DEPTH] = { 0 };
	uint32_t next[PEERS] = { 0 };
	pthread_t senders[PEERS], thread;
	struct poster poster;
	struct hub hub;

	(void)state;
	open_hub(&hub, &options);
	poster.fixture = &hub.ends[0];
	poster.slot_free = slot_free;
	assert_int_equal(pthread_create(&thread, NULL, post_many, &poster), 0);
	for (int i = 0; i < PEERS; i++)
		assert_int_equal(
			pthread_create(&senders[i], NULL, send_many, &hub.peers[i]), 0);
	for (int received = 0; received < PEERS * MESSAGES; received++) {
		struct ibv_wc wc = fixture_wait(&hub.ends[0], hub.ends[0].recv_cq, NULL);
		uint32_t value;
		int who = 0;

		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		assert_true(wc.wr_id < DEPTH);
		while (hub.ends[who].qp->qp_num != wc.qp_num)
			assert_true(++who < PEERS);
		memcpy(&value, hub.ends[0].memory + wc.wr_id * PIECE, sizeof(value));
		assert_int_equal(value, next[who]++);
		atomic_fetch_add(&slot_free[wc.wr_id], 1);
	}
	pthread_join(thread, NULL);
	for (int i = 0; i < PEERS; i++)
		pthread_join(senders[i], NULL);
	close_hub(&hub);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_receives_in_order),
		cmocka_unit_test(empty_queue_is_rnr),
		cmocka_unit_test(limits_outstanding_receives),
		cmocka_unit_test(accepts_completions_out_of_order),
		cmocka_unit_test(error_keeps_the_queue),
		cmocka_unit_test(half_a_message_frees_its_place),
		cmocka_unit_test(reset_frees_the_current_receive),
		cmocka_unit_test(purged_completions_free_their_places),
		cmocka_unit_test(cq_overrun_frees_the_places),
		cmocka_unit_test(reports_immediates_and_solicited_events),
		cmocka_unit_test(refused_write_flushes_its_receive),
		cmocka_unit_test(refuses_invalid_queues),
		cmocka_unit_test(resized_queue_keeps_its_receives),
		cmocka_unit_test(queue_pair_ignores_its_own_receive_limits),
		cmocka_unit_test(threads_can_post_and_poll),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

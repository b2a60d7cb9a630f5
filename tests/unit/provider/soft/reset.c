/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <pier/error.h>

#include "soft_fake.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/link.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"

/*
 * After RESET a queue pair is a new one: its earlier endpoint no longer reaches it, and
 * data from before does not arrive.
 */

static const struct pier_provider *const soft = &pier_soft_provider;

static const struct fixture_options stepped = { .stepped = 1 };

struct pair {
	struct soft_fixture a, b;
	struct fixture_endpoint to_a, to_b; /* their latest descriptions */
};

static void describe(struct pair *pair)
{
	fixture_describe(&pair->a, &pair->to_a);
	fixture_describe(&pair->b, &pair->to_b);
}

static void open_pair(struct pair *pair, const struct fixture_options *options)
{
	fixture_open_pair(&pair->a, &pair->b, options);
	describe(pair);
}

static void close_pair(struct pair *pair)
{
	fixture_close(&pair->a);
	fixture_close(&pair->b);
}

static void reset_both(struct pair *pair)
{
	assert_int_equal(fixture_to(&pair->a, IBV_QPS_RESET), 0);
	assert_int_equal(fixture_to(&pair->b, IBV_QPS_RESET), 0);
}

static void connect_both(struct pair *pair)
{
	describe(pair);
	fixture_connect(&pair->a, &pair->to_b);
	fixture_connect(&pair->b, &pair->to_a);
}

/* Go as far as possible: returns the result of going to RTR with that endpoint. */
static int try_connect(struct soft_fixture *fixture, const struct fixture_endpoint *peer)
{
	assert_int_equal(soft->set_qp_address(fixture->qp, peer->blob, peer->blob_length),
			 0);
	assert_int_equal(fixture_to_init(fixture), 0);
	return fixture_to_rtr(fixture, peer);
}

static void expect_write(struct pair *pair, uint64_t wr_id)
{
	assert_int_equal(fixture_post(&pair->a, IBV_WR_RDMA_WRITE, wr_id, 0, 8,
				      &pair->to_b, 0, IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&pair->a, pair->a.send_cq, &pair->b, wr_id, IBV_WC_SUCCESS);
}

static void settle(struct pair *pair)
{
	for (int i = 0; i < 300; i++)
		fixture_step(&pair->a, &pair->b);
}

static const uint8_t *secret_of(const struct fixture_endpoint *endpoint)
{
	return endpoint->blob + 4; /* version, count, port */
}

static void reset_draws_a_new_secret(void **state)
{
	struct fixture_endpoint before;
	struct pair pair;
	int fds;

	(void)state;
	open_pair(&pair, &stepped);
	fds = fixture_count_fds();
	for (int round = 0; round < 4; round++) {
		before = pair.to_b;
		expect_write(&pair, round);
		reset_both(&pair);
		connect_both(&pair);
		assert_int_equal(before.qpn, pair.to_b.qpn);
		assert_memory_not_equal(secret_of(&before), secret_of(&pair.to_b),
					SOFT_SECRET_SIZE);
		assert_memory_not_equal(secret_of(&pair.to_a), secret_of(&pair.to_b),
					SOFT_SECRET_SIZE);
		assert_int_equal(fixture_count_fds(), fds);
	}
	expect_write(&pair, 9);
	close_pair(&pair);
}

/* With the earlier endpoint, and with none: the peer's endpoint is forgotten too. */
static void refuses_stale_endpoints(void **state)
{
	struct fixture_endpoint stale;
	struct pair pair;

	(void)state;
	open_pair(&pair, &stepped);
	stale = pair.to_b;
	reset_both(&pair);
	assert_int_equal(try_connect(&pair.a, &stale), ECONNREFUSED);
	assert_non_null(strstr(pier_error_message(), "reset since"));
	assert_int_equal(pair.a.qp->state, IBV_QPS_INIT);
	assert_int_equal(fixture_to(&pair.a, IBV_QPS_RESET), 0);
	assert_int_equal(fixture_to_init(&pair.a), 0);
	assert_int_equal(fixture_to_rtr(&pair.a, &stale), ENOTCONN);
	assert_int_equal(fixture_to(&pair.a, IBV_QPS_RESET), 0);
	connect_both(&pair);
	expect_write(&pair, 1);
	close_pair(&pair);
}

/* Its own endpoint is treated like any other. */
static void refuses_its_own_stale_endpoint(void **state)
{
	struct fixture_endpoint stale, self;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &stepped);
	fixture_describe(&fixture, &stale);
	fixture_connect(&fixture, &stale);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_RESET), 0);
	assert_int_equal(try_connect(&fixture, &stale), ECONNREFUSED);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_RESET), 0);
	fixture_describe(&fixture, &self);
	fixture_connect(&fixture, &self);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 8, &self, 0,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_SUCCESS);
	fixture_close(&fixture);
}

/* An end that waits for the earlier peer does not accept the stream of the new one. */
static void does_not_accept_a_stale_peer(void **state)
{
	const struct fixture_options impatient = { .stepped = 1,
						   .timeout = FIXTURE_IMPATIENT };
	struct pair pair;

	(void)state;
	fixture_open(&pair.a, &impatient);
	fixture_open(&pair.b, &impatient);
	describe(&pair);
	/* It gives the other end a stream, which is closed by the reset. */
	fixture_connect(&pair.a, &pair.to_b);
	pier_soft_lock(&soft_context(pair.a.context)->engine);
	pier_soft_close_link(&((struct soft_qp *)pair.a.qp)->link);
	pier_soft_unlock(&soft_context(pair.a.context)->engine);
	assert_int_equal(fixture_to(&pair.b, IBV_QPS_RESET), 0);
	assert_int_equal(try_connect(&pair.b, &pair.to_a), 0);
	assert_int_equal(fixture_to_rts(&pair.b), 0);
	assert_false(pier_soft_link_open(&((struct soft_qp *)pair.a.qp)->link));
	assert_int_equal(
		fixture_post(&pair.b, IBV_WR_RDMA_WRITE, 1, 0, 8, &pair.to_a, 0, 0), 0);
	fixture_expect(&pair.b, pair.b.send_cq, &pair.a, 1, IBV_WC_RETRY_EXC_ERR);
	close_pair(&pair);
}

/* Data sent, half received, posted or completed before the reset is discarded. */
static void discards_data_from_before(void **state)
{
	struct pair pair;
	struct ibv_wc wc;

	(void)state;
	open_pair(&pair, &stepped);
	memset(pair.a.memory, 0xbb, 40000);
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(fixture_post_recv(&pair.b, i, 0, 20000), 0);
	/* One request is complete but not polled; the next is in flight. */
	assert_int_equal(
		fixture_post(&pair.a, IBV_WR_SEND, 1, 0, 8, NULL, 0, IBV_SEND_SIGNALED),
		0);
	settle(&pair);
	assert_int_equal(fixture_post(&pair.a, IBV_WR_SEND, 2, 0, 20000, NULL, 0, 0), 0);
	assert_int_equal(fixture_post(&pair.a, IBV_WR_RDMA_WRITE, 3, 0, 20000, &pair.to_b,
				      20000, 0),
			 0);
	for (int i = 0; i < 4; i++)
		fixture_step(&pair.a, NULL);
	fixture_step(&pair.b, NULL);
	reset_both(&pair);
	memset(pair.b.memory, 0, FIXTURE_MEMORY);
	connect_both(&pair);
	assert_int_equal(fixture_post_recv(&pair.b, 7, 50000, 100), 0);
	settle(&pair);
	assert_int_equal(ibv_poll_cq(pair.a.send_cq, 1, &wc), 0);
	assert_int_equal(ibv_poll_cq(pair.b.recv_cq, 1, &wc), 0);
	memset(pair.a.memory, 0xcc, 100);
	assert_int_equal(
		fixture_post(&pair.a, IBV_WR_SEND, 8, 0, 100, NULL, 0, IBV_SEND_SIGNALED),
		0);
	fixture_expect(&pair.b, pair.b.recv_cq, &pair.a, 7, IBV_WC_SUCCESS);
	fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 8, IBV_WC_SUCCESS);
	settle(&pair);
	assert_int_equal(ibv_poll_cq(pair.b.recv_cq, 1, &wc), 0);
	for (int i = 0; i < FIXTURE_MEMORY; i++)
		assert_int_equal(pair.b.memory[i], i >= 50000 && i < 50100 ? 0xcc : 0);
	close_pair(&pair);
}

/* Only one end is reset: the other detects it, and is no peer of the new one. */
static void detects_the_reset_of_one_end(void **state)
{
	struct pair pair;

	(void)state;
	open_pair(&pair, &stepped);
	expect_write(&pair, 1);
	assert_int_equal(fixture_post_recv(&pair.a, 5, 0, 8), 0);
	assert_int_equal(fixture_to(&pair.b, IBV_QPS_RESET), 0);
	fixture_expect(&pair.a, pair.a.recv_cq, &pair.b, 5, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(pair.a.qp->state, IBV_QPS_ERR);
	/* Now both are reset. */
	assert_int_equal(fixture_to(&pair.a, IBV_QPS_RESET), 0);
	connect_both(&pair);
	expect_write(&pair, 2);
	close_pair(&pair);
}

/* Of waiting streams: one that was accepted, and one whose proof is pending. */
static void closes_waiting_streams(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE];
	struct fake fake, stale;
	struct soft_fixture fixture;
	int parked, begun, fd;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	parked = fake_call(&fake, &fixture);
	begun = fake_dial(&fixture);
	fake_say_hello(&fake, begun, transcript);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_RESET), 0);
	assert_true(fake_hangs_up(parked));
	fake_prove(&fake, begun, transcript);
	assert_true(fake_hangs_up(begun));
	/* A peer that presents the earlier secret. */
	stale = fake;
	fixture_describe(&fixture, &fake.to_fixture);
	fake_connect(&fixture, &fake);
	fd = fake_dial(&fixture);
	fake_say_hello(&stale, fd, transcript);
	fake_prove(&stale, fd, transcript);
	assert_true(fake_hangs_up(fd));
	close(fd);
	/* A peer that knows the new secret is accepted. */
	fd = fake_call(&fake, &fixture);
	fake_send(fd, (struct soft_header){ .opcode = SOFT_WRITE });
	assert_int_equal(fake_next(fd).opcode, SOFT_ACK);
	close(fd);
	close(parked);
	close(begun);
	fixture_close(&fixture);
}

/* The endpoint of a returning peer is checked anew, with its current secret. */
static void checks_a_returning_peer_anew(void **state)
{
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	fd = fake_call(&fake, &fixture);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_RESET), 0);
	assert_true(fake_hangs_up(fd));
	close(fd);
	fixture_describe(&fixture, &fake.to_fixture);
	fake.address.secret[0] ^= 1; /* the peer's own endpoint is new too */
	fake_connect(&fixture, &fake);
	fake.address.secret[0] ^= 1; /* and this is the earlier one */
	fd = fake_call(&fake, &fixture);
	assert_true(fake_hangs_up(fd));
	close(fd);
	fake.address.secret[0] ^= 1;
	fd = fake_call(&fake, &fixture);
	fake_send(fd, (struct soft_header){ .opcode = SOFT_WRITE });
	assert_int_equal(fake_next(fd).opcode, SOFT_ACK);
	close(fd);
	fixture_close(&fixture);
}

/* A request that fails while it is sent closes the link; an answer waits behind it. */
static void drops_an_answer_behind_a_failed_request(void **state)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad;
	struct soft_qp *qp;
	struct pair pair;

	(void)state;
	open_pair(&pair, &stepped);
	qp = (struct soft_qp *)pair.a.qp;
	assert_int_equal(
		fixture_post(&pair.b, IBV_WR_RDMA_READ, 1, 0, 8, &pair.to_a, 0, 0), 0);
	fixture_step(&pair.b, NULL);
	sge = fixture_sge(&pair.a, 0, 8);
	sge.lkey ^= 1;
	assert_int_equal(ibv_post_send(pair.a.qp, &wr, &bad), 0);
	qp->link.answers_first = true; /* so that this time the request is sent */
	for (int i = 0; i < 50; i++)
		fixture_step(&pair.a, NULL);
	fixture_expect(&pair.a, pair.a.send_cq, NULL, 0, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(qp->link.frame_count, 0);
	reset_both(&pair);
	connect_both(&pair);
	expect_write(&pair, 2);
	close_pair(&pair);
}

/* With the engines' own threads, repeatedly. */
static void can_be_reset_many_times(void **state)
{
	struct pair pair;
	int fds;

	(void)state;
	open_pair(&pair, NULL);
	fds = fixture_count_fds();
	for (int round = 0; round < 100; round++) {
		assert_int_equal(fixture_post_recv(&pair.b, 1, 0, 8), 0);
		assert_int_equal(fixture_post(&pair.a, IBV_WR_SEND, 2, 0, 8, NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
		if (round % 2)
			fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 2,
				       IBV_WC_SUCCESS);
		reset_both(&pair);
		fixture_expect_none(&pair.a, pair.a.send_cq);
		fixture_expect_none(&pair.b, pair.b.recv_cq);
		connect_both(&pair);
	}
	expect_write(&pair, 3);
	assert_int_equal(fixture_count_fds(), fds);
	close_pair(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reset_draws_a_new_secret),
		cmocka_unit_test(refuses_stale_endpoints),
		cmocka_unit_test(refuses_its_own_stale_endpoint),
		cmocka_unit_test(does_not_accept_a_stale_peer),
		cmocka_unit_test(discards_data_from_before),
		cmocka_unit_test(detects_the_reset_of_one_end),
		cmocka_unit_test(closes_waiting_streams),
		cmocka_unit_test(checks_a_returning_peer_anew),
		cmocka_unit_test(drops_an_answer_behind_a_failed_request),
		cmocka_unit_test(can_be_reset_many_times),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory vanishes at any moment while two NICs transfer it. Each request completes, with
 * its bytes moved or with an error, and neither NIC runs into the limit on its peer's
 * silence. The NICs are stepped; the test explores the orders of steps, posts and the
 * vanishing that differ from the usual order at a few moments. PIER_DEVIATIONS is their
 * number; 2 takes minutes.
 */
#include "vanished_fixture.h"

static void note(struct end *end, const struct ibv_wc *wc)
{
	/* In order; after one failure all later requests fail. */
	assert_int_equal(wc->wr_id, end->completed);
	end->completed++;
	if (end->failed > 0)
		assert_int_equal(wc->status, IBV_WC_WR_FLUSH_ERR);
	if (wc->status == IBV_WC_SUCCESS)
		return;
	if (end->failed++ == 0)
		end->first_failure = wc->status;
}

static void collect(struct exchange *exchange)
{
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		while (ibv_poll_cq(exchange->ends[i].fixture.send_cq, 1, &wc) == 1)
			note(&exchange->ends[i], &wc);
	}
	while (ibv_poll_cq(exchange->ends[1].fixture.recv_cq, 1, &wc) == 1)
		assert_int_equal(wc.wr_id, RECEIVES + exchange->received++);
}

/* Returns false if the action is not possible now. */
static bool act(struct exchange *exchange, enum action action)
{
	switch (action) {
	case POST_FIRST:
	case POST_SECOND:
		return post_next(exchange, action == POST_SECOND);
	case POST_RECEIVE:
		return post_receive(exchange);
	case STEP_FIRST:
	case STEP_SECOND:
		return step(exchange, action == STEP_SECOND);
	default:
		return vanish(exchange, action == VANISH_SECOND);
	}
}

static bool act_as_usual(struct exchange *exchange)
{
	for (int action = 0; action < ACTIONS; action++) {
		if (act(exchange, (enum action)action))
			return true;
	}
	return false;
}

static unsigned int most_deviations(const struct story *story)
{
	const char *wanted = getenv("PIER_DEVIATIONS");

	return wanted ? (unsigned int)atoi(wanted) : story->deviations;
}

/* Returns false if no action is possible any more. */
static bool go_on(struct exchange *exchange)
{
	unsigned int choice;

	if (exchange->deviations == most_deviations(exchange->story))
		return act_as_usual(exchange);
	choice = explore_choose(&exchange->explorer, ACTIONS + 1);
	if (choice == 0)
		return act_as_usual(exchange);
	exchange->deviations++;
	if (act(exchange, (enum action)(choice - 1)))
		return true;
	explore_prune(&exchange->explorer);
	return act_as_usual(exchange);
}

/* Writes into memory that is still there. */
static void expect_written(const struct exchange *exchange, unsigned int at)
{
	const struct end *end = &exchange->ends[at];

	for (unsigned int i = 0; i < end->completed - end->failed; i++) {
		const struct request *request = &exchange->story->requests[at][i];
		const uint8_t *bytes = exchange->ends[!at].kept.memory +
				       offset_of(exchange, at, i);

		if (request->opcode != IBV_WR_RDMA_WRITE || !request->peer_kept)
			continue;
		assert_int_equal(bytes[0], request->kept ? 'k' : 'v');
		assert_int_equal(bytes[length_of(exchange, request) - 1],
				 request->kept ? 'k' : 'v');
	}
}

static void judge(struct exchange *exchange)
{
	enum ibv_qp_state states[2];

	for (unsigned int i = 0; i < 2; i++) {
		struct end *end = &exchange->ends[i];

		assert_int_equal(end->completed, end->posted);
		expect_written(exchange, i);
		states[i] = end->fixture.qp->state;
		if (end->failed > 0)
			assert_int_equal(states[i], IBV_QPS_ERR);
	}
	assert_int_equal(states[0], states[1]);
	if (states[1] == IBV_QPS_ERR)
		assert_int_equal(exchange->received, exchange->receives);
	exchange->good += states[0] == IBV_QPS_RTS;
	exchange->bad += states[0] == IBV_QPS_ERR;
}

static void explore(const struct story *story, enum way way)
{
	struct exchange exchange = { .story = story, .way = way };

	exchange.behind = offset_of(&exchange, 2, 0);
	exchange.area = exchange.behind + size_of(&exchange, &story->requests[0][0]);
	if (way == BY_SOCKETS)
		setenv("PIER_SOFT_SHARED", "off", 1);
	if (way != BY_ADDRESS)
		setenv("PIER_SOFT_CMA", "off", 1);
	do {
		open_exchange(&exchange);
		while (go_on(&exchange))
			collect(&exchange);
		collect(&exchange);
		judge(&exchange);
		close_exchange(&exchange);
	} while (explore_next(&exchange.explorer));
	unsetenv("PIER_SOFT_SHARED");
	unsetenv("PIER_SOFT_CMA");
	print_message("%s, way %d: %lu runs: %lu good, %lu failed\n", story->name,
		      (int)way, exchange.explorer.runs, exchange.good, exchange.bad);
	assert_true(exchange.good > 0);
	assert_true(exchange.bad > 0);
}

static void explore_all_ways(const struct story *story)
{
	for (int way = 0; way < WAYS; way++)
		explore(story, (enum way)way);
}

static void survives_loss_of_a_write_source(void **state)
{
	const struct story small = {
		.name = "small write",
		.requests = { { { IBV_WR_RDMA_WRITE, SMALL, .peer_kept = true } } },
		.vanishes = { true, false },
		.deviations = 1,
	};
	const struct story large = {
		.name = "large write",
		.requests = { { { IBV_WR_RDMA_WRITE, LARGE, .peer_kept = true } } },
		.vanishes = { true, false },
		.deviations = 1,
	};

	(void)state;
	explore_all_ways(&small);
	explore_all_ways(&large);
}

static void survives_loss_of_a_source_between_others(void **state)
{
	const struct request kept = { IBV_WR_RDMA_WRITE, SMALL, .kept = true,
				      .peer_kept = true };
	const struct story story = {
		.name = "between writes",
		.requests = { { kept,
				{ IBV_WR_RDMA_WRITE, SMALL, .peer_kept = true },
				kept },
			      { kept } },
		.vanishes = { true, false },
		.deviations = 1,
	};

	(void)state;
	explore_all_ways(&story);
}

/* The peer refuses the send at first, so it must be repeated. */
static void survives_loss_of_a_source_behind_a_send(void **state)
{
	const struct story small = {
		.name = "small, behind a send",
		.requests = { { { IBV_WR_SEND, SMALL, .kept = true },
				{ IBV_WR_RDMA_WRITE, SMALL, .peer_kept = true } } },
		.vanishes = { true, false },
		.receives = 1,
		.deviations = 1,
	};
	const struct story large = {
		.name = "large, behind a send",
		.requests = { { { IBV_WR_SEND, SMALL, .kept = true },
				{ IBV_WR_RDMA_WRITE, LARGE, .peer_kept = true } } },
		.vanishes = { true, false },
		.receives = 1,
		.deviations = 1,
	};

	(void)state;
	explore_all_ways(&small);
	explore_all_ways(&large);
}

static void survives_loss_of_a_send_source(void **state)
{
	const struct story story = {
		.name = "large send",
		.requests = { { { IBV_WR_SEND, LARGE } } },
		.vanishes = { true, false },
		.receives = 1,
		.deviations = 1,
	};

	(void)state;
	explore(&story, BY_SOCKETS);
	explore(&story, BY_FIFOS);
}

static void survives_loss_of_remote_memory(void **state)
{
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	const enum size sizes[] = { SMALL, LARGE };

	(void)state;
	for (int i = 0; i < 4; i++) {
		const struct request kept = { IBV_WR_RDMA_WRITE, SMALL, .kept = true,
					      .peer_kept = true };
		const struct story story = {
			.name = i % 2 ? "peer's memory, read" : "peer's memory, written",
			.requests = { { kept,
					{ opcodes[i % 2], sizes[i / 2], .kept = true },
					kept },
				      { kept } },
			.vanishes = { false, true },
			.deviations = 1,
		};

		explore_all_ways(&story);
	}
}

static void survives_loss_of_a_read_target(void **state)
{
	const enum size sizes[] = { SMALL, LARGE };

	(void)state;
	for (int i = 0; i < 2; i++) {
		const struct story story = {
			.name = "landing of a read",
			.requests = { { { IBV_WR_RDMA_READ, sizes[i],
					  .peer_kept = true } } },
			.vanishes = { true, false },
			.deviations = 1,
		};

		explore_all_ways(&story);
	}
}

static void survives_loss_of_sources_at_both_ends(void **state)
{
	const struct request small = { IBV_WR_RDMA_WRITE, SMALL, .kept = true,
				       .peer_kept = true };
	const struct request large = { IBV_WR_RDMA_WRITE, LARGE, .peer_kept = true };
	const struct story story = {
		.name = "at both ends",
		.requests = { { small, large }, { small, large } },
		.vanishes = { true, true },
		.deviations = 1,
	};

	(void)state;
	explore(&story, BY_FIFOS);
}

/* The end that refuses a write has begun one of its own, which it cannot finish. */
static void survives_loss_of_a_source_while_refusing(void **state)
{
	const struct story story = {
		.name = "while refusing",
		.requests = { { { IBV_WR_RDMA_WRITE, LARGE, .peer_kept = true } },
			      { { IBV_WR_RDMA_WRITE, SMALL, .kept = true } } },
		.vanishes = { true, false },
		.deviations = 1,
	};

	(void)state;
	explore(&story, BY_SOCKETS);
	explore(&story, BY_FIFOS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(survives_loss_of_a_write_source),
		cmocka_unit_test(survives_loss_of_a_source_between_others),
		cmocka_unit_test(survives_loss_of_a_source_behind_a_send),
		cmocka_unit_test(survives_loss_of_a_send_source),
		cmocka_unit_test(survives_loss_of_remote_memory),
		cmocka_unit_test(survives_loss_of_a_read_target),
		cmocka_unit_test(survives_loss_of_sources_at_both_ends),
		cmocka_unit_test(survives_loss_of_a_source_while_refusing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Streams whose channels fail at random, at either end, and which are resumed until all
 * bytes have arrived. PIER_STREAMS is the number of streams of each kind.
 */
#include "stream_fixture.h"

#include <pthread.h>

#include "core/deadline.h"
#include "tests/support/manual_clock.h"

enum {
	STREAMS = 40,
	STALL_MS = 20000,
};

static uint64_t below(uint64_t count)
{
	return test_random_below(&fixture.random, count);
}

static int count_streams(void)
{
	const char *wanted = getenv("PIER_STREAMS");

	return wanted ? atoi(wanted) : STREAMS;
}

/* Near the beginning, or where a position in a note or an announcement overflows. */
static uint64_t choose_start(void)
{
	static const uint64_t blocks[] = { 0, UINT64_C(1) << 28, UINT64_C(1) << 31,
					   UINT64_C(1) << 32, UINT64_C(5) << 32 };
	uint64_t start = blocks[below(5)];

	return start ? (start - below(3 * SIZE / BLOCK)) * BLOCK : 0;
}

/* As if everything before had been moved. */
static void start_at(uint64_t position)
{
	struct pier_transfer *transfer = fixture.transfer;
	struct pier_receiver *receiver = fixture.receiver;

	transfer->attr.length = transfer->drive.length = position;
	transfer->drive.done = transfer->stream.base.released = position;
	receiver->drive.length = receiver->drive.done = position;
	receiver->stream.base.released = receiver->stream.arrived = position;
	receiver->stream.base.seen = position;
}

static struct flow begin_random_stream(uint32_t rails)
{
	uint64_t start = choose_start();

	fixture.attr.max_recv_wr = (uint32_t)below(2) ? 1 + (uint32_t)below(4) : 16;
	fixture.attr.max_send_wr = (uint32_t)below(2) ? 2 + (uint32_t)below(4) : 16;
	make_ends(rails, below(2), below(2));
	begin_stream(rails, STALL_MS);
	start_at(start);
	return (struct flow){ .length = start + below(6 * SIZE / BLOCK) * BLOCK,
			      .filled = start,
			      .used = start };
}

static void break_something(uint32_t rails)
{
	struct side *side = below(2) ? &fixture.here : &fixture.there;

	switch (below(12)) {
	case 0:
		pier_transfer_fail(fixture.transfer, -EIO);
		break;
	case 1:
		pier_receiver_fail(fixture.receiver, -ENOSPC);
		break;
	case 2:
		expect_ok(pier_channel_cancel(fixture.here.channels[below(rails)]));
		expect_ok(pier_channel_cancel(fixture.there.channels[below(rails)]));
		break;
	default:
		expect_ok(pier_channel_cancel(side->channels[below(rails)]));
	}
}

/* Drive both ends, at different paces, until both have ended. */
static void move_and_break(struct flow *flow, uint32_t rails, unsigned int calm)
{
	int64_t until = pier_deadline(STALL_MS / 2);

	flow->sent = flow->came = 0;
	while (flow->sent == 0 || flow->came == 0) {
		if (below(calm) == 0)
			break_something(rails);
		if (below(2) && flow->sent == 0)
			fill_some(flow, at_random(12));
		if (below(2))
			flow->sent = pier_transfer_progress(fixture.transfer);
		if (below(2))
			flow->came = pier_receiver_progress(fixture.receiver);
		if (below(2) && flow->came == 0)
			use_some(flow, at_random(12));
		if (pier_now() > until)
			fail_msg("it hangs: %d, %d", flow->sent, flow->came);
	}
}

/* Resume with as many rails, or another number of them. */
static uint32_t resume_both(uint32_t rails)
{
	uint32_t count = 1 + (uint32_t)below(rails);

	reconnect(rails);
	expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails, count));
	expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, count));
	return count;
}

/*
 * The receiver may end first. The transfer then fails if its caller ends it, or if no
 * rail is left that brings the news.
 */
static bool check_ends(const struct flow *flow)
{
	if (flow->came < 0) {
		assert_true(flow->sent < 0);
		return false;
	}
	assert_int_equal(flow->used, flow->length);
	if (flow->sent == 1)
		assert_int_equal(status().done, flow->length);
	else if (flow->sent != -EIO)
		assert_int_equal(status().working_rails, 0);
	return true;
}

static void all_bytes_arrive(void **state)
{
	(void)state;
	make_ends(1, false, false);
	shuffle();
	for (int i = count_streams(); i > 0; i--) {
		uint32_t rails = 1 + (uint32_t)below(MAX_RAILS), working = rails;
		struct flow flow = begin_random_stream(rails);
		unsigned int calm = 20 + (unsigned int)below(200);

		move_and_break(&flow, working, calm);
		while (!check_ends(&flow)) {
			working = resume_both(rails);
			move_and_break(&flow, working, calm);
		}
		expect_guards(&fixture.here);
		expect_guards(&fixture.there);
	}
}

/* An end in a thread of its own, which breaks its channels at random. */
struct end {
	struct flow *flow;
	struct test_random random;
	uint32_t rails;
	unsigned int calm;
};

static void break_channel(struct end *end, struct side *side)
{
	if (test_random_below(&end->random, end->calm) == 0)
		expect_ok(pier_channel_cancel(
			side->channels[test_random_below(&end->random, end->rails)]));
}

static void *send_and_break(void *context)
{
	struct end *end = context;

	while (end->flow->sent == 0) {
		break_channel(end, &fixture.here);
		fill_some(end->flow, SIZE);
		end->flow->sent = pier_transfer_wait(fixture.transfer, STALL_MS);
		if (end->flow->sent == -ETIMEDOUT)
			end->flow->sent = 0;
	}
	return NULL;
}

static void receive_and_break(struct end *end)
{
	while (end->flow->came == 0) {
		uint64_t most = test_random_below(&end->random, SIZE / BLOCK + 1) * BLOCK;

		break_channel(end, &fixture.there);
		end->flow->came = pier_receiver_wait(fixture.receiver, 1);
		if (end->flow->came == -ETIMEDOUT)
			end->flow->came = 0;
		if (end->flow->came == 0)
			use_some(end->flow, most);
	}
}

/* `there` has the bytes that were used. */
static void move_in_threads(struct flow *here, struct flow *there, uint32_t rails)
{
	unsigned int calm = 50 + (unsigned int)below(200);
	struct end sending = { here, { below(1000000) + 1 }, rails, calm };
	struct end receiving = { there, { below(1000000) + 1 }, rails, calm };
	pthread_t sender;

	here->sent = there->came = 0;
	assert_int_equal(pthread_create(&sender, NULL, send_and_break, &sending), 0);
	receive_and_break(&receiving);
	assert_int_equal(pthread_join(sender, NULL), 0);
	assert_null(strstr(fixture.transfer->drive.sentence, "nothing was heard"));
	assert_null(strstr(fixture.receiver->drive.sentence, "nothing new"));
	there->sent = here->sent;
}

static void all_bytes_arrive_in_threads(void **state)
{
	(void)state;
	make_ends(1, false, false);
	shuffle();
	for (int i = count_streams(); i > 0; i--) {
		uint32_t rails = 1 + (uint32_t)below(MAX_RAILS), working = rails;
		struct flow here = begin_random_stream(rails);
		/* The bytes that were filled are known to the other thread only. */
		struct flow there = { .length = here.length,
				      .filled = here.length,
				      .used = here.used };

		move_in_threads(&here, &there, working);
		while (!check_ends(&there)) {
			working = resume_both(rails);
			move_in_threads(&here, &there, working);
		}
		expect_guards(&fixture.here);
		expect_guards(&fixture.there);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(all_bytes_arrive),
		CASE(all_bytes_arrive_in_threads),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("stream_random", tests, make_folder,
					   remove_folder);
}

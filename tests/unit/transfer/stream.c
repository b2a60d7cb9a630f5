/* SPDX-License-Identifier: BSD-3-Clause */
#include "stream_fixture.h"

#include <pthread.h>

#include "core/deadline.h"
#include "tests/support/manual_clock.h"
#include "tests/support/requests.h"

static void moves_any_length(void **state)
{
	static const uint64_t lengths[] = { 0, BLOCK, SIZE, SIZE + BLOCK, 7 * SIZE };

	(void)state;
	for (uint32_t rails = 1; rails <= MAX_RAILS; rails *= 2)
		for (int bounced = 0; bounced < 4; bounced++)
			for (int i = 0; i < 5; i++) {
				struct flow flow = { .length = lengths[i] };

				fixture.attr.max_recv_wr = i % 2 ? 1 : 16;
				make_ends(rails, bounced & 1, bounced & 2);
				shuffle();
				begin_stream(rails, PATIENT);
				move_all(&flow);
				expect_guards(&fixture.here);
				expect_guards(&fixture.there);
			}
}

static void positions_are_checked(void **state)
{
	uint64_t end;

	(void)state;
	make_ends(1, true, true);
	begin_stream(1, PATIENT);
	assert_int_equal(pier_transfer_limit(fixture.transfer), SIZE);
	expect_result(pier_transfer_extend(fixture.transfer, SIZE + BLOCK), -ENOSPC);
	expect_result(pier_transfer_extend(fixture.transfer, 100), -EINVAL);
	expect_ok(pier_transfer_extend(fixture.transfer, 3 * BLOCK));
	expect_result(pier_transfer_extend(fixture.transfer, BLOCK), -EINVAL);
	expect_ok(pier_transfer_finish(fixture.transfer));
	expect_result(pier_transfer_extend(fixture.transfer, 4 * BLOCK), -EINVAL);
	expect_result(pier_receiver_release(fixture.receiver, BLOCK), -EINVAL);
	while (pier_receiver_arrived(fixture.receiver, &end) == 0 && end < 3 * BLOCK)
		drive_once(&(struct flow){ 0 });
	expect_result(pier_receiver_release(fixture.receiver, 4 * BLOCK), -EINVAL);
	expect_result(pier_receiver_release(fixture.receiver, 100), -EINVAL);
	expect_ok(pier_receiver_release(fixture.receiver, 2 * BLOCK));
	expect_result(pier_receiver_release(fixture.receiver, BLOCK), -EINVAL);
	expect_result(pier_transfer_fail(fixture.transfer, 5), -EINVAL);
	expect_result(pier_receiver_fail(fixture.receiver, -5000), -EINVAL);
	expect_result(pier_receiver_fail(fixture.receiver, -ETIMEDOUT), -EINVAL);
	expect_result(pier_receiver_fail(fixture.receiver, -EINTR), -EINVAL);
	expect_result(pier_transfer_pack(fixture.transfer, NULL, 0), -EINVAL);
}

static void attributes_are_checked(void **state)
{
	struct pier_transfer_attr attr;
	struct pier_receiver_attr receiver;

	(void)state;
	make_ends(1, true, true);
	attr = attr_of(1, 0);
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.stream_size = 100;
	expect_result(pier_transfer_create(&attr, &fixture.transfer), -EINVAL);
	attr.stream_size = SIZE;
	expect_result(pier_transfer_run(&attr, PATIENT), -EINVAL);
	attr.length = 1;
	expect_result(pier_transfer_create(&attr, &fixture.transfer), -EINVAL);
	attr.length = 0;
	attr.flags = 0;
	expect_result(pier_transfer_create(&attr, &fixture.transfer), -EINVAL);
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.stream_size = (uint64_t)AREA / BLOCK * BLOCK + BLOCK;
	expect_result(pier_transfer_create(&attr, &fixture.transfer), -ERANGE);
	pier_receiver_attr_init(&receiver);
	receiver.rails = fixture.receiver_rails;
	receiver.rail_count = 1;
	receiver.stream_size = PIER_STREAM_SIZE_MAX + BLOCK;
	expect_result(pier_receiver_create(&receiver, &fixture.receiver), -EINVAL);
	receiver.stream_size = SIZE;
	receiver.length = 1;
	expect_result(pier_receiver_create(&receiver, &fixture.receiver), -EINVAL);
	attr.stream_size = 0;
	expect_ok(pier_transfer_create(&attr, &fixture.transfer));
	assert_int_equal(pier_transfer_limit(fixture.transfer), 0);
	expect_result(pier_transfer_extend(fixture.transfer, BLOCK), -EINVAL);
	expect_result(pier_transfer_finish(fixture.transfer), -EINVAL);
	expect_result(pier_transfer_fail(fixture.transfer, -EIO), -EINVAL);
}

/* A receiving end that does not release anything is alive as long as it is driven. */
static void a_slow_end_is_not_given_up(void **state)
{
	struct flow flow = { .length = 3 * SIZE };
	int64_t until;

	(void)state;
	make_ends(2, true, true);
	begin_stream(2, 100);
	until = pier_deadline(450);
	while (pier_now() < until) {
		fill_some(&flow, at_random(12));
		drive_once(&flow);
		assert_int_equal(flow.sent, 0);
		assert_int_equal(flow.came, 0);
	}
	assert_int_equal(flow.filled, SIZE);
	until = pier_deadline(450);
	/* Neither is a sending end that has nothing to send. */
	while (pier_now() < until) {
		drive_once(&flow);
		use_some(&flow, at_random(12));
		assert_int_equal(flow.sent, 0);
		assert_int_equal(flow.came, 0);
	}
	move_all(&flow);
}

/* Both processes were stopped for longer than they wait for each other. */
static void time_away_does_not_count(void **state)
{
	struct flow flow = { .length = 3 * SIZE };
	int64_t until;

	(void)state;
	make_ends(2, true, true);
	begin_stream(2, 100);
	fill_some(&flow, SIZE);
	/* Nothing may be in flight that is heard of later. */
	while (pier_transfer_limit(fixture.transfer) < 2 * SIZE || status().in_flight) {
		drive_once(&flow);
		use_some(&flow, SIZE);
	}
	until = pier_deadline(300);
	while (pier_now() < until)
		continue;
	move_all(&flow);
}

static void a_silent_end_is_given_up(void **state)
{
	int result;

	(void)state;
	make_ends(2, true, true);
	begin_stream(2, BRIEF);
	while ((result = pier_transfer_wait(fixture.transfer, PATIENT)) == 0)
		pier_transfer_limit(fixture.transfer);
	expect_result(result, -EHOSTUNREACH);
	assert_non_null(strstr(pier_error_message(), "nothing was heard"));
	make_ends(2, true, true);
	begin_stream(2, BRIEF);
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -EHOSTUNREACH);
}

static void an_error_reaches_the_other_end(void **state)
{
	static const int errors[] = { -ENOSPC, -EIO, -ECANCELED };

	(void)state;
	for (int i = 0; i < 3; i++) {
		for (int receiving = 0; receiving < 2; receiving++) {
			struct flow flow = { .length = 3 * SIZE };

			make_ends(2, true, true);
			begin_stream(2, PATIENT);
			for (int n = 0; n < 5; n++)
				move_once(&flow);
			if (errors[i] == -ECANCELED)
				expect_ok(
					receiving
						? pier_receiver_cancel(fixture.receiver)
						: pier_transfer_cancel(fixture.transfer));
			else
				expect_ok(receiving ? pier_receiver_fail(fixture.receiver,
									 errors[i])
						    : pier_transfer_fail(fixture.transfer,
									 errors[i]));
			drive_to_both_ends(&flow);
			assert_int_equal(flow.sent, errors[i]);
			assert_int_equal(flow.came, errors[i]);
			pier_transfer_progress(fixture.transfer);
			assert_int_equal(!!strstr(pier_error_message(), "the peer"),
					 receiving);
		}
	}
}

/* A rail that fails at either end, at any moment: the other moves its chunks. */
static void other_rails_take_over(void **state)
{
	(void)state;
	for (int round = 0; round < 40; round++) {
		struct flow flow = { .length = 5 * SIZE };
		struct side *side = round % 2 ? &fixture.here : &fixture.there;
		uint64_t fails_at = at_random(4 * SIZE / BLOCK);
		uint32_t rails = round % 3 ? 2 : 4;
		bool failed = false;

		make_ends(rails, round & 4, round & 8);
		begin_stream(rails, PATIENT);
		while (flow.sent == 0 || flow.came == 0) {
			if (!failed && flow.filled >= fails_at) {
				expect_ok(pier_channel_cancel(side->channels[1]));
				failed = true;
			}
			move_once(&flow);
		}
		assert_int_equal(flow.sent, 1);
		assert_int_equal(flow.came, 1);
		assert_int_equal(flow.used, flow.length);
		assert_true(failed);
		assert_int_equal(status().working_rails, rails - 1);
	}
}

static void resumes_when_all_rails_had_failed(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct side *side = round % 2 ? &fixture.here : &fixture.there;
		struct flow flow = { .length = 5 * SIZE };

		make_ends(2, round & 4, round & 8);
		begin_stream(2, PATIENT);
		for (int failures = 0; failures < 3; failures++) {
			for (uint64_t i = at_random(20) / BLOCK; i > 0; i--)
				move_once(&flow);
			if (flow.sent || flow.came)
				break;
			expect_ok(pier_channel_cancel(side->channels[0]));
			expect_ok(pier_channel_cancel(side->channels[1]));
			drive_to_both_ends(&flow);
			if (flow.came == 1)
				break;
			assert_true(flow.sent < 0 && flow.came < 0);
			reconnect(2);
			expect_ok(pier_receiver_resume(fixture.receiver,
						       fixture.receiver_rails, 2));
			expect_ok(
				pier_transfer_resume(fixture.transfer, fixture.rails, 2));
			flow.sent = flow.came = 0;
		}
		/* All bytes were used, but perhaps the sender does not know it. */
		if (flow.came == 1)
			assert_int_equal(flow.used, flow.length);
		else
			move_all(&flow);
	}
}

/* As if another transfer had sent what follows: the receiver has used the place since. */
static void what_was_released_elsewhere_is_not_repeated(void **state)
{
	struct flow flow = { .length = 3 * SIZE };
	uint8_t later[BLOCK], found[BLOCK];
	uint64_t arrived = 0;

	(void)state;
	make_ends(1, false, false);
	begin_stream(1, PATIENT);
	fill_some(&flow, SIZE);
	while (arrived < SIZE) {
		drive_once(&flow);
		expect_ok(pier_receiver_arrived(fixture.receiver, &arrived));
	}
	expect_ok(pier_channel_cancel(fixture.here.channels[0]));
	expect_ok(pier_channel_cancel(fixture.there.channels[0]));
	drive_to_both_ends(&flow);
	use_some(&flow, 4 * BLOCK);
	memset(later, 0xa5, sizeof(later));
	expect_ok(pier_buffer_copy_to(fixture.there.buffer, GUARD + 3 * BLOCK, later,
				      BLOCK));

	expect_result(pier_transfer_released(fixture.transfer, BLOCK + 1), -EINVAL);
	expect_result(pier_transfer_released(fixture.transfer, SIZE + BLOCK), -ERANGE);
	expect_ok(pier_transfer_released(fixture.transfer, 4 * BLOCK));
	expect_ok(pier_transfer_released(fixture.transfer, 2 * BLOCK));
	reconnect(1);
	expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1));
	expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
	do
		drive_once(&flow);
	while (status().done < SIZE);
	expect_ok(pier_buffer_copy_from(fixture.there.buffer, GUARD + 3 * BLOCK, found,
					BLOCK));
	assert_memory_equal(found, later, BLOCK);
	move_all(&flow);
}

static void send_immediate(struct pier_channel *channel, uint32_t immediate,
			   uint32_t length)
{
	struct pier_gather element;
	struct pier_remote target;

	if (length == 0) {
		expect_ok(test_channel_send_imm(channel, NULL, 0, immediate, PATIENT));
		return;
	}
	expect_ok(pier_mr_gather(fixture.here.mrs[0], pier_mr_iova(fixture.here.mrs[0]),
				 length, &element));
	expect_ok(pier_remote_sub(&fixture.remotes[0], 0, length, &target));
	expect_ok(test_channel_write_imm(channel, &element, 1, &target, immediate,
					 PATIENT));
}

static void hostile_senders_are_refused(void **state)
{
	static const struct {
		uint32_t immediate, length;
	} cases[] = {
		{ SIZE / BLOCK, 1 },	     /* behind the end of the buffer */
		{ SIZE / BLOCK - 1, 2 },     /* around its end */
		{ 0, SIZE / BLOCK + 1 },     /* longer than it */
		{ UINT32_MAX, 1 },	     /* before the beginning */
		{ 0x80000000, 1 },	     /* far away */
		{ 0, 0 },		     /* no note */
		{ 2u << PIER_NOTE_BITS, 0 }, /* a receiver's */
		{ 5u << PIER_NOTE_BITS, 0 },
		{ 4u << PIER_NOTE_BITS | 1, 0 },		  /* no such rail */
		{ 3u << PIER_NOTE_BITS | (SIZE / BLOCK + 1), 0 }, /* ends too late */
		{ 9u << PIER_NOTE_BITS, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_ends(1, true, true);
		begin_stream(1, PATIENT);
		send_immediate(fixture.here.channels[0], cases[i].immediate,
			       cases[i].length);
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -EBADMSG);
		/* The sending end, which is honest here, is told. */
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -EBADMSG);
	}
}

static void nothing_follows_the_end(void **state)
{
	static const struct {
		uint32_t immediate, length;
	} cases[] = {
		{ 1, 1 },			 /* a chunk */
		{ 3u << PIER_NOTE_BITS | 2, 0 }, /* another end */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_ends(1, true, true);
		begin_stream(1, PATIENT);
		send_immediate(fixture.here.channels[0], 3u << PIER_NOTE_BITS | 1, 0);
		send_immediate(fixture.here.channels[0], cases[i].immediate,
			       cases[i].length);
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -EBADMSG);
	}
}

static void hostile_receivers_are_refused(void **state)
{
	static const uint32_t cases[] = {
		0,
		2u << PIER_NOTE_BITS | 1, /* more room than was sent */
		2u << PIER_NOTE_BITS | PIER_NOTE_MASK,
		3u << PIER_NOTE_BITS, /* a sender's */
		4u << PIER_NOTE_BITS,
		5u << PIER_NOTE_BITS | 1, /* no such rail */
		15u << PIER_NOTE_BITS,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_ends(1, true, true);
		begin_stream(1, PATIENT);
		send_immediate(fixture.there.channels[0], cases[i], 0);
		pier_transfer_limit(fixture.transfer);
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -EBADMSG);
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -EBADMSG);
	}
}

/* Notes on different rails can overtake each other. */
static void older_room_is_ignored(void **state)
{
	struct flow flow = { .length = 3 * SIZE };

	(void)state;
	make_ends(2, true, true);
	begin_stream(2, PATIENT);
	while (flow.used < SIZE)
		move_once(&flow);
	expect_ok(test_channel_send_imm(fixture.there.channels[1], NULL, 0,
					pier_position_note(PIER_NOTE_ROOM, BLOCK),
					PATIENT));
	move_all(&flow);
}

static void *send_from_a_thread(void *context)
{
	struct flow *flow = context;

	while (flow->sent == 0) {
		fill_some(flow, SIZE);
		flow->sent = pier_transfer_wait(fixture.transfer, PATIENT);
	}
	return NULL;
}

/* Both ends sleep while they wait for each other. */
static void two_threads_wait_for_each_other(void **state)
{
	struct flow flow = { .length = 50 * SIZE };
	uint64_t used = 0, end;
	pthread_t sender;
	int came = 0;

	(void)state;
	make_ends(2, false, false);
	begin_stream(2, PATIENT);
	assert_int_equal(pthread_create(&sender, NULL, send_from_a_thread, &flow), 0);
	while (came == 0) {
		expect_ok(pier_receiver_arrived(fixture.receiver, &end));
		for (; used < end; used += BLOCK)
			use_block(used);
		expect_ok(pier_receiver_release(fixture.receiver, used));
		came = pier_receiver_wait(fixture.receiver, PATIENT);
	}
	assert_int_equal(pthread_join(sender, NULL), 0);
	assert_int_equal(came, 1);
	assert_int_equal(flow.sent, 1);
	assert_int_equal(used, flow.length);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(moves_any_length),
		CASE(positions_are_checked),
		CASE(attributes_are_checked),
		CASE(a_slow_end_is_not_given_up),
		CASE(time_away_does_not_count),
		CASE(a_silent_end_is_given_up),
		CASE(an_error_reaches_the_other_end),
		CASE(other_rails_take_over),
		CASE(resumes_when_all_rails_had_failed),
		CASE(what_was_released_elsewhere_is_not_repeated),
		CASE(hostile_senders_are_refused),
		CASE(nothing_follows_the_end),
		CASE(hostile_receivers_are_refused),
		CASE(older_room_is_ignored),
		CASE(two_threads_wait_for_each_other),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("stream", tests, make_folder, remove_folder);
}

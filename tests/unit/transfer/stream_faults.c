/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams with an end that hangs, with full queues, and with errors: nothing waits long.
 */
#include "stream_fixture.h"

#include "core/deadline.h"
#include "tests/support/manual_clock.h"
#include "tests/support/requests.h"

enum {
	STALL_MS = 30000,
	LONG = 2 * STALL_MS,
};

static void make_narrow_ends(uint32_t rails, uint32_t receives)
{
	fixture.attr.max_recv_wr = receives;
	make_ends(rails, true, true);
}

/* Returns the result. Time passes while the device owes nothing. */
static int drive_transfer_to_its_end(uint32_t rails)
{
	int result;

	while ((result = pier_transfer_progress(fixture.transfer)) == 0) {
		uint32_t outstanding = 0;

		pier_transfer_limit(fixture.transfer);
		for (uint32_t i = 0; i < rails; i++)
			outstanding += pier_queue_outstanding(
				&fixture.here.channels[i]->sends);
		if (outstanding == 0)
			manual_clock_advance(STALL_MS / 50);
	}
	return result;
}

/* Its device goes on to acknowledge notes, as long as there are receives. */
static void a_hung_receiver_is_given_up(void **state)
{
	int64_t began = pier_now();

	(void)state;
	make_narrow_ends(2, 1000);
	begin_stream(2, STALL_MS);
	expect_result(drive_transfer_to_its_end(2), -EHOSTUNREACH);
	assert_non_null(strstr(pier_error_message(), "nothing was heard"));
	assert_true(pier_now() - began < LONG * INT64_C(1000000));
}

/* Chunks are in flight for which the receiver has no receives. */
static void fill_all(uint32_t rails)
{
	struct flow flow = { .length = 2 * SIZE };

	make_narrow_ends(rails, 1);
	begin_stream(rails, PATIENT);
	fill_some(&flow, SIZE);
	expect_result(pier_transfer_progress(fixture.transfer), 0);
	assert_true(status().in_flight > rails);
}

static void an_error_does_not_wait_for_chunks(void **state)
{
	(void)state;
	for (int receiving = 0; receiving < 2; receiving++) {
		struct flow flow = { .length = 2 * SIZE };
		int64_t began = pier_now();

		fill_all(2);
		if (receiving)
			expect_ok(pier_receiver_fail(fixture.receiver, -ENOSPC));
		else
			expect_ok(pier_transfer_fail(fixture.transfer, -ENOSPC));
		drive_to_both_ends(&flow);
		assert_int_equal(flow.sent, -ENOSPC);
		assert_int_equal(flow.came, -ENOSPC);
		assert_true(pier_now() - began < LONG * INT64_C(1000000));
	}
}

/* Fill the send queue with writes; the peer has a receive for the first one only. */
static void fill_queue(struct side *side)
{
	struct pier_work work;
	int error = 0;

	for (int count = 0; !error; count++) {
		error = test_post_write_imm(side->channels[0], NULL, 0, NULL, 0, &work);
		if (!error && count > 0)
			expect_ok(pier_work_drop(side->channels[0], work));
		else if (!error)
			expect_ok(test_work_wait(side->channels[0], work, PATIENT, NULL));
	}
	assert_int_equal(error, -EAGAIN);
}

static void an_error_that_cannot_be_told_ends_it(void **state)
{
	int64_t began = pier_now();
	int result;

	(void)state;
	make_narrow_ends(1, 1);
	begin_stream(1, STALL_MS);
	fill_queue(&fixture.here);
	expect_ok(pier_transfer_cancel(fixture.transfer));
	while ((result = pier_transfer_progress(fixture.transfer)) == 0)
		manual_clock_advance(STALL_MS / 50);
	expect_result(result, -ECANCELED);
	assert_true(pier_now() - began < LONG * INT64_C(1000000));
	make_narrow_ends(1, 1);
	begin_stream(1, STALL_MS);
	fill_queue(&fixture.there);
	expect_ok(pier_receiver_cancel(fixture.receiver));
	began = pier_now();
	while ((result = pier_receiver_progress(fixture.receiver)) == 0)
		manual_clock_advance(STALL_MS / 50);
	expect_result(result, -ECANCELED);
	assert_true(pier_now() - began < LONG * INT64_C(1000000));
}

/* Returns when a note has been due for a while. */
static void wait_for_note(int (*progress)(void))
{
	for (int i = 0; i < 10; i++) {
		manual_clock_advance(110);
		expect_result(progress(), 0);
	}
}

static int progress_here(void)
{
	return pier_transfer_progress(fixture.transfer);
}

static int progress_there(void)
{
	return pier_receiver_progress(fixture.receiver);
}

static void expect_sleep(const struct pier_drive *drive)
{
	assert_true(drive->ops->wake_at(drive) > pier_now());
}

/* A note that is due and cannot be posted does not keep its end awake. */
static void a_refused_note_lets_it_sleep(void **state)
{
	(void)state;
	fill_all(1);
	wait_for_note(progress_here);
	expect_sleep(&fixture.transfer->drive);
	/* So that the chunks need not be waited for. */
	expect_ok(pier_receiver_destroy(fixture.receiver));
	fixture.receiver = NULL;
	make_narrow_ends(1, 1);
	begin_stream(1, PATIENT);
	fill_queue(&fixture.there);
	wait_for_note(progress_there);
	expect_sleep(&fixture.receiver->drive);
}

/* The peer's writes to a failed rail must not arrive, even if no receive is posted. */
static void a_rail_without_receives_is_stopped(void **state)
{
	struct flow flow = { .length = 5 * SIZE };

	(void)state;
	close_side(&fixture.there);
	open_side(&fixture.there, "fault:post_recv@3=ENOMEM:soft0");
	make_narrow_ends(2, 1);
	begin_stream(2, PATIENT);
	move_all(&flow);
	assert_int_equal(status().working_rails, 1);
	assert_int_equal(!!fixture.there.channels[0]->broken +
				 !!fixture.there.channels[1]->broken,
			 1);
}

/* The flush at the end failed; nothing repeats it before the receiver is resumed. */
static void bytes_without_a_flush_are_not_reported(void **state)
{
	struct flow flow = { .length = SIZE };
	uint64_t end;

	(void)state;
	make_ends(1, false, false);
	begin_stream(1, PATIENT);
	fill_some(&flow, SIZE);
	while (fixture.receiver->stream.arrived == 0)
		drive_once(&flow);
	expect_ok(pier_receiver_cancel(fixture.receiver));
	fixture.gpu->flush_error = EOPNOTSUPP;
	drive_to_both_ends(&flow);
	fixture.gpu->flush_error = 0;
	expect_result(pier_receiver_arrived(fixture.receiver, &end), -EIO);
	reconnect(1);
	expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1));
	expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
	flow.sent = flow.came = 0;
	move_all(&flow);
}

/* The next completion is in the queue, where the plan's fault strikes it. */
static void await_completion(struct pier_channel *channel)
{
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };

	assert_int_equal(poll(&fd, 1, PATIENT), 1);
}

/*
 * The chunk and the end arrive, but are reported as failed. The receiver ends before it
 * hears of the failed rail, and then answers nothing more.
 */
static void the_answer_to_the_end_suffices(void **state)
{
	uint64_t end = 0;
	int came;

	(void)state;
	close_side(&fixture.here);
	open_side(&fixture.here, "fault:wc@1=RETRY_EXC_ERR:soft0");
	make_ends(2, true, true);
	begin_stream(2, STALL_MS);
	fill_block(0);
	expect_ok(pier_transfer_extend(fixture.transfer, BLOCK));
	expect_ok(pier_transfer_finish(fixture.transfer));
	assert_int_equal(ibv_req_notify_cq(fixture.here.channels[0]->cq, 0), 0);
	expect_result(pier_transfer_progress(fixture.transfer), 0);
	/* Not the answer of the receiver, if that comes first. */
	await_completion(fixture.here.channels[0]);
	while ((came = pier_receiver_progress(fixture.receiver)) == 0) {
		expect_ok(pier_receiver_arrived(fixture.receiver, &end));
		expect_ok(pier_receiver_release(fixture.receiver, end));
	}
	assert_int_equal(came, 1);
	pier_transfer_limit(fixture.transfer);
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
	assert_int_equal(status().working_rails, 1);
	assert_int_equal(status().done, BLOCK);
}

/* Until the receiver has stopped the rail, late packets may arrive on it. */
static void a_failed_rail_holds_its_chunks_back(void **state)
{
	struct flow flow = { .length = 2 * SIZE };
	uint32_t held;

	(void)state;
	make_narrow_ends(2, 1);
	begin_stream(2, PATIENT);
	fill_some(&flow, SIZE);
	expect_result(pier_transfer_progress(fixture.transfer), 0);
	expect_ok(pier_channel_cancel(fixture.here.channels[0]));
	expect_result(pier_transfer_progress(fixture.transfer), 0);
	held = fixture.transfer->stream.held_count;
	assert_true(held > 0);
	for (int i = 0; i < 100; i++)
		expect_result(pier_transfer_progress(fixture.transfer), 0);
	assert_int_equal(fixture.transfer->stream.held_count, held);
	move_all(&flow);
	assert_int_equal(fixture.transfer->stream.held_count, 0);
}

/* A step takes some of the notes that were collected; arming reports the others. */
static void event_loops_are_told_of_leftovers(void **state)
{
	uint32_t alive = pier_make_note(PIER_NOTE_ALIVE, 0);

	(void)state;
	make_narrow_ends(1, 100);
	begin_stream(1, PATIENT);
	for (int i = 0; i < 100; i++)
		expect_ok(test_channel_send_imm(fixture.there.channels[0], NULL, 0, alive,
						PATIENT));
	expect_result(pier_transfer_progress(fixture.transfer), 0);
	assert_true(pier_channel_arm(fixture.here.channels[0]) > 0);
	expect_result(pier_transfer_progress(fixture.transfer), 0);
	expect_ok(pier_channel_arm(fixture.here.channels[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_hung_receiver_is_given_up),
		CASE(an_error_does_not_wait_for_chunks),
		CASE(an_error_that_cannot_be_told_ends_it),
		CASE(a_refused_note_lets_it_sleep),
		CASE(a_rail_without_receives_is_stopped),
		CASE(bytes_without_a_flush_are_not_reported),
		CASE(the_answer_to_the_end_suffices),
		CASE(a_failed_rail_holds_its_chunks_back),
		CASE(event_loops_are_told_of_leftovers),
	};

	return cmocka_run_group_tests_name("stream_faults", tests, make_folder,
					   remove_folder);
}

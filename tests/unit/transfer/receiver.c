/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The receiving end of transfers that announce their chunks: both ends with bounce
 * buffers, over soft0.
 */
#include "bounce_fixture.h"
#include "tests/support/manual_clock.h"
#include "tests/support/requests.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "channel/channel.h"
#include "region/mr.h"
#include "transfer/rail.h"

enum {
	STALL_MS = 1000,
};

static struct pier_receiver_attr receiver_of(uint32_t count, uint64_t length)
{
	struct pier_receiver_attr attr;

	pier_receiver_attr_init(&attr);
	attr.rails = fixture.receiver_rails;
	attr.rail_count = count;
	attr.length = length;
	return attr;
}

static struct pier_receiver_status landed(void)
{
	struct pier_receiver_status now;

	pier_receiver_query(fixture.receiver, &now, sizeof(now));
	return now;
}

static struct pier_rail_status receiver_rail(uint32_t index)
{
	struct pier_rail_status now;

	expect_ok(pier_receiver_query_rail(fixture.receiver, index, &now, sizeof(now)));
	return now;
}

static void begin_receiver(uint32_t count, uint64_t length)
{
	struct pier_receiver_attr attr = receiver_of(count, length);

	expect_ok(pier_receiver_create(&attr, &fixture.receiver));
}

static struct pier_transfer_attr announced(uint32_t count, uint64_t length)
{
	struct pier_transfer_attr attr = attr_of(count, length);

	attr.flags = PIER_TRANSFER_ANNOUNCE;
	return attr;
}

static bool is_second_rail_idle(void)
{
	struct pier_rail_status now;

	return pier_transfer_query_rail(fixture.transfer, 1, &now, sizeof(now)) == 0 &&
	       now.in_flight == 0;
}

/*
 * Drive both ends in turn from one thread until both have ended, and return their
 * results.
 */
static void drive(int *ret_transfer, int *ret_receiver)
{
	*ret_transfer = *ret_receiver = 0;
	while (*ret_transfer == 0 || *ret_receiver == 0) {
		*ret_transfer = pier_transfer_progress(fixture.transfer);
		*ret_receiver = pier_receiver_progress(fixture.receiver);
	}
}

/*
 * The same if the receiver, or its first of two rails, fails: time passes while only
 * requests that the receiver does not answer are in flight.
 */
static void drive_until_stalled(int *ret_transfer, int *ret_receiver)
{
	*ret_transfer = *ret_receiver = 0;
	while (*ret_transfer == 0 || *ret_receiver == 0) {
		*ret_transfer = pier_transfer_progress(fixture.transfer);
		*ret_receiver = pier_receiver_progress(fixture.receiver);
		if (*ret_receiver < 0 ||
		    (receiver_rail(0).error && is_second_rail_idle()))
			manual_clock_advance(STALL_MS / 50);
	}
}

static void expect_both_arrive(void)
{
	int sent, came;

	drive(&sent, &came);
	expect_result(pier_transfer_progress(fixture.transfer), 1);
	expect_result(pier_receiver_progress(fixture.receiver), 1);
	assert_int_equal(landed().done, landed().length);
	assert_true(landed().ended);
}

static const uint64_t lengths[] = { 0, 1, 4096, CHUNK, CHUNK + 1, LENGTH };

/* Few receives and many; the next receiver uses those that are left. */
static void receives_any_length(void **state)
{
	static const uint32_t depths[] = { 1, 3, 40 };

	(void)state;
	for (uint32_t rails = 1; rails <= MAX_RAILS; rails *= 2) {
		for (int d = 0; d < 3; d++) {
			fixture.attr.max_recv_wr = depths[d];
			make_rails(rails, true, true);
			begin_receiver(rails, 0);
			for (size_t i = 0; i < 12; i++) {
				struct pier_transfer_attr attr = announced(
					rails, lengths[i / 2]);

				attr.window = i % 2 ? 1 : 8;
				shuffle();
				expect_result(pier_receiver_progress(fixture.receiver),
					      1);
				expect_ok(pier_receiver_next(fixture.receiver,
							     fixture.receiver_rails,
							     rails, attr.length));
				begin(&attr);
				expect_both_arrive();
				expect_moved(attr.length, false);
				assert_int_equal(landed().receives, rails * depths[d]);
			}
			expect_ok(pier_receiver_destroy(fixture.receiver));
			fixture.receiver = NULL;
		}
	}
}

static void flushes_direct_memory_once(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(2, true, false);
	attr = announced(2, LENGTH);
	shuffle();
	begin_receiver(2, LENGTH);
	begin(&attr);
	expect_both_arrive();
	assert_true(receiver_rail(0).done > 0 && receiver_rail(1).done > 0);
	assert_int_equal(receiver_rail(0).done + receiver_rail(1).done, LENGTH);
	assert_int_equal(fixture.gpu->flushes, 2);
	assert_int_equal(fixture.gpu->copies, 21);
	expect_moved(LENGTH, false);
	expect_result(pier_receiver_query_rail(fixture.receiver, 2,
					       &(struct pier_rail_status){ 0 },
					       sizeof(struct pier_rail_status)),
		      -ERANGE);
}

/* Chunks that have arrived are copied while the others are in flight. */
static void copies_as_chunks_arrive(void **state)
{
	struct pier_transfer_attr attr;
	uint64_t last = 0;
	int steps = 0;

	(void)state;
	fixture.attr.max_recv_wr = 2;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	attr.window = 2;
	shuffle();
	begin_receiver(1, LENGTH);
	begin(&attr);
	while (pier_transfer_progress(fixture.transfer) == 0) {
		expect_result(pier_receiver_progress(fixture.receiver) < 0, 0);
		/* The sender is ahead by no more than its window. */
		assert_true(landed().done + 2 * CHUNK + 777 >= status().done);
		steps += landed().done != last;
		last = landed().done;
	}
	assert_true(steps >= 5);
	expect_both_arrive();
	expect_moved(LENGTH, false);
}

/* From the callback of the sender: the far end of the first rail dies. */
static uint64_t kill_at;
static int stop_rail(void *context, uint64_t done, uint64_t length)
{
	(void)context;
	(void)length;
	if (done >= kill_at && kill_at) {
		expect_ok(pier_channel_cancel(fixture.there.channels[0]));
		kill_at = 0;
	}
	return 0;
}

/* The other rail moves chunks again; each byte is counted once. */
static void counts_repeated_chunks_once(void **state)
{
	(void)state;
	for (uint64_t at = CHUNK; at < 14 * CHUNK; at += 4 * CHUNK) {
		struct pier_transfer_attr attr;

		make_rails(2, true, true);
		attr = announced(2, LENGTH);
		attr.progress = stop_rail;
		attr.window = 2;
		shuffle();
		kill_at = at;
		begin_receiver(2, LENGTH);
		begin(&attr);
		expect_both_arrive();
		assert_int_equal(landed().working_rails, 1);
		assert_int_equal(receiver_rail(0).error, -ECANCELED);
		assert_int_equal(receiver_rail(0).done + receiver_rail(1).done, LENGTH);
		assert_int_equal(receiver_rail(0).in_flight, 0);
		expect_moved(LENGTH, false);
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

/* All rails die; both ends continue on others with exactly the missing bytes. */
static void resumes_after_all_rails_fail(void **state)
{
	(void)state;
	for (uint64_t at = CHUNK; at < 16 * CHUNK; at += 4 * CHUNK) {
		struct pier_transfer_attr attr;
		uint64_t missing;
		int sent, came;

		make_rails(1, true, true);
		attr = announced(1, LENGTH);
		attr.progress = stop_rail;
		attr.window = 3;
		shuffle();
		kill_at = at;
		begin_receiver(1, LENGTH);
		begin(&attr);
		drive(&sent, &came);
		assert_true(sent < 0);
		assert_int_equal(came, -ECANCELED);
		expect_result(pier_receiver_progress(fixture.receiver), -ECANCELED);
		test_assert_sentence("bytes have arrived: rail 0 of 1 failed: ");
		/*
		 * The receiver has all that the sender knows to have arrived, and
		 * possibly more.
		 */
		assert_true(landed().done >= status().done);
		missing = LENGTH - landed().done;
		expect_result(
			pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1),
			-EPIPE);
		expect_result(pier_receiver_next(fixture.receiver, fixture.receiver_rails,
						 1, 1),
			      -EBUSY);
		connect_rail(0);
		name_rail(0);
		expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails,
					       1));
		expect_result(
			pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1),
			-EBUSY);
		expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
		expect_both_arrive();
		assert_int_equal(receiver_rail(0).done, missing);
		expect_result(
			pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1),
			-EALREADY);
		expect_moved(LENGTH, false);
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

/* A cancelled receiver is resumed: chunks that used its receives meanwhile count. */
static void loses_nothing_between_end_and_resume(void **state)
{
	struct pier_receiver_rail moved;
	struct pier_transfer_attr attr;

	(void)state;
	fixture.attr.max_recv_wr = 40;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	shuffle();
	begin_receiver(1, LENGTH);
	expect_ok(pier_receiver_cancel(fixture.receiver));
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -ECANCELED);
	test_assert_sentence("0 of 328457 bytes have arrived: it was cancelled");
	expect_result(pier_receiver_cancel(fixture.receiver), -EALREADY);
	expect_ok(pier_transfer_run(&attr, PATIENT));
	moved = fixture.receiver_rails[0];
	moved.offset = 0;
	expect_result(pier_receiver_resume(fixture.receiver, &moved, 1), -EINVAL);
	test_assert_sentence("not as it was");
	expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1));
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), 1);
	expect_moved(LENGTH, false);
}

/* Also if the channel is gone before the receiver is resumed on another one. */
static void loses_nothing_of_a_broken_channel(void **state)
{
	struct pier_transfer_attr attr;
	int sent = 0;

	(void)state;
	fixture.attr.max_recv_wr = 5;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	shuffle();
	begin_receiver(1, LENGTH);
	expect_ok(pier_receiver_cancel(fixture.receiver));
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -ECANCELED);
	begin(&attr);
	while (status().done < 5 * CHUNK)
		expect_result(pier_transfer_progress(fixture.transfer), 0);
	expect_ok(pier_channel_cancel(fixture.there.channels[0]));
	while (sent == 0)
		sent = pier_transfer_progress(fixture.transfer);
	assert_true(sent < 0);
	/* Its failure is detected, and the chunks that it brought before count. */
	reg(&fixture.there, 1, true);
	connect_rail(1);
	fixture.here.mrs[1] = fixture.here.mrs[0];
	name_rail(1);
	fixture.here.mrs[1] = NULL;
	expect_ok(pier_receiver_resume(fixture.receiver, &fixture.receiver_rails[1], 1));
	assert_int_equal(landed().done, 5 * CHUNK);
	expect_ok(pier_transfer_resume(fixture.transfer, &fixture.rails[1], 1));
	expect_both_arrive();
	expect_moved(LENGTH, false);
}

/* The device at the receiving end is lost: it held bytes that will not be moved again. */
static void fails_with_its_device(void **state)
{
	(void)state;
	for (int at = 0; at < 20; at += 6) {
		struct pier_transfer_attr attr;
		int sent, came;

		make_rails(2, false, true);
		attr = announced(2, 20 * CHUNK);
		attr.stall_ms = STALL_MS;
		shuffle();
		begin_receiver(2, 20 * CHUNK);
		begin(&attr);
		fixture.gpu->copy_error = EIO;
		fixture.gpu->fail_copy_at = at + 1;
		drive_until_stalled(&sent, &came);
		assert_int_equal(came, -EIO);
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -EIO);
		test_assert_sentence("device lost");
		assert_int_equal(landed().done / CHUNK, at);
		assert_int_equal(landed().working_rails, 2);
		expect_result(
			pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 2),
			-EIO);
		assert_int_equal(fixture.gpu->copies, at + 1);
		fixture.gpu->copy_error = 0;
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

static void reports_failed_flush(void **state)
{
	struct pier_transfer_attr attr;
	int sent, came;

	(void)state;
	make_rails(1, true, false);
	attr = announced(1, LENGTH);
	begin_receiver(1, LENGTH);
	begin(&attr);
	fixture.gpu->flush_error = EOPNOTSUPP;
	drive(&sent, &came);
	assert_int_equal(sent, 1);
	assert_int_equal(came, -EOPNOTSUPP);
	assert_int_equal(landed().error, -EOPNOTSUPP);
	test_assert_sentence("no flush");
}

/* All bytes have arrived, and the caller may have another way to make them visible. */
static void continues_without_a_flush(void **state)
{
	struct pier_transfer_attr attr;
	int sent, came;

	(void)state;
	make_rails(1, true, false);
	attr = announced(1, LENGTH);
	begin_receiver(1, LENGTH);
	for (int round = 0; round < 3; round++) {
		shuffle();
		begin(&attr);
		fixture.gpu->flush_error = EOPNOTSUPP;
		drive(&sent, &came);
		assert_int_equal(came, -EOPNOTSUPP);
		assert_int_equal(landed().done, LENGTH);
		assert_int_equal(fixture.gpu->flushes, 1);
		expect_ok(pier_receiver_next(fixture.receiver, fixture.receiver_rails, 1,
					     LENGTH));
		assert_int_equal(landed().done, 0);
		expect_moved(LENGTH, false);
	}
	/* Or the flush succeeds later. */
	begin(&attr);
	drive(&sent, &came);
	assert_int_equal(came, -EOPNOTSUPP);
	fixture.gpu->flush_error = 0;
	expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1));
	fixture.gpu->flushes = 0;
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), 1);
	assert_int_equal(fixture.gpu->flushes, 1);
}

/*
 * The same for a receiver: half arrives directly in the memory, half through a bounce
 * buffer.
 */
static void flushes_before_it_resumes(void **state)
{
	(void)state;
	for (int error = 0; error <= EOPNOTSUPP; error += EOPNOTSUPP) {
		struct pier_transfer_attr attr;

		make_rails(2, true, false);
		reg(&fixture.there, 1, true);
		name_rail(1);
		attr = announced(1, LENGTH);
		attr.progress = stop_rail;
		attr.window = 3;
		shuffle();
		kill_at = 10 * CHUNK;
		fixture.gpu->flush_error = error;
		begin_receiver(1, LENGTH);
		begin(&attr);
		drive(&(int){ 0 }, &(int){ 0 });
		expect_result(pier_receiver_progress(fixture.receiver), -ECANCELED);
		assert_int_equal(fixture.gpu->flushes, 1);
		expect_ok(pier_receiver_resume(fixture.receiver,
					       &fixture.receiver_rails[1], 1));
		expect_ok(pier_transfer_resume(fixture.transfer, &fixture.rails[1], 1));
		fixture.gpu->flush_error = 0;
		expect_both_arrive();
		assert_int_equal(fixture.gpu->flushes, error ? 2 : 1);
		expect_moved(LENGTH, false);
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

/* Bytes that arrived directly after the end, on a working rail, are flushed too. */
static void flushes_bytes_that_arrived_after_the_end(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	fixture.attr.max_recv_wr = 40;
	make_rails(1, true, false);
	attr = announced(1, LENGTH);
	shuffle();
	begin_receiver(1, LENGTH);
	expect_ok(pier_receiver_cancel(fixture.receiver));
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -ECANCELED);
	expect_ok(pier_transfer_run(&attr, PATIENT));
	assert_int_equal(fixture.gpu->flushes, 0);
	/* Its channel is gone by now, and the next one has a bounce buffer. */
	expect_ok(pier_channel_cancel(fixture.there.channels[0]));
	reg(&fixture.there, 1, true);
	connect_rail(1);
	name_rail(1);
	expect_ok(pier_receiver_resume(fixture.receiver, &fixture.receiver_rails[1], 1));
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), 1);
	assert_int_equal(fixture.gpu->flushes, 1);
	expect_moved(LENGTH, false);
}

/*
 * Chunks in bounce buffers are copied; the device was not written to and is not flushed.
 */
static void receives_into_partly_bounced_regions(void **state)
{
	static uint8_t plain[5 * CHUNK];
	struct pier_remote parts[4];
	struct pier_transfer_attr attr;
	uint32_t count;

	(void)state;
	expect_ok(pier_buffer_free(fixture.there.buffer));
	expect_ok(pier_buffer_alloc("gpu:3", AREA, &fixture.there.buffer));
	reg(&fixture.here, 0, false);
	reg_parts(&fixture.there, plain, sizeof(plain));
	connect_rail(0);
	expect_ok(pier_mr_remote_vec(fixture.there.mrs[0], parts, 4, &count));
	fixture.rails[0] = (struct pier_rail){ .channel = fixture.here.channels[0],
					       .mr = fixture.here.mrs[0],
					       .offset = GUARD,
					       .parts = parts,
					       .count = count };
	fixture.receiver_rails[0] = (struct pier_receiver_rail){
		.channel = fixture.there.channels[0], .mr = fixture.there.mrs[0]
	};
	attr = announced(1, LENGTH);
	shuffle();
	begin_receiver(1, LENGTH);
	begin(&attr);
	expect_both_arrive();
	assert_int_equal(fixture.gpu->flushes, 0);
	assert_memory_equal(plain, fixture.here.image + GUARD, sizeof(plain));
	memcpy(fixture.there.image + GUARD + sizeof(plain),
	       fixture.here.image + GUARD + sizeof(plain), LENGTH - sizeof(plain));
	expect_image(&fixture.there);
}

/* Two receives, and a receiver that does not poll for a while: the sender waits. */
static void sender_waits_for_receives(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	fixture.attr.max_recv_wr = 2;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	attr.window = 8;
	shuffle();
	begin_receiver(1, LENGTH);
	begin(&attr);
	while (status().done < 2 * CHUNK)
		expect_result(pier_transfer_progress(fixture.transfer), 0);
	manual_clock_hurry(true);
	expect_result(pier_transfer_wait(fixture.transfer, BRIEF), -ETIMEDOUT);
	manual_clock_hurry(false);
	assert_int_equal(status().done, 2 * CHUNK);
	assert_int_equal(landed().done, 0);
	expect_both_arrive();
	expect_moved(LENGTH, false);
}

/* Unless the channel's retries run out. */
static void sender_gives_up_without_retries(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	fixture.attr.max_recv_wr = 2;
	fixture.attr.rnr_retry_count = 1;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	begin_receiver(1, LENGTH);
	expect_result(pier_transfer_run(&attr, PATIENT), -EAGAIN);
}

/*
 * The nth receive is refused: chunks that arrived before count, and the other rail
 * continues.
 */
static void survives_refused_receives(void **state)
{
	static const int nths[] = { 1, 4, 5, 9 };

	(void)state;
	fixture.attr.max_recv_wr = 4;
	for (size_t i = 0; i < 2 * sizeof(nths) / sizeof(nths[0]); i++) {
		uint32_t rails = 1 + i % 2;
		struct pier_transfer_attr attr;
		char device[64];
		int sent, came;

		snprintf(device, sizeof(device), "fault:post_recv@%d=ENOMEM:soft0",
			 nths[i / 2]);
		close_side(&fixture.there);
		open_side(&fixture.there, device);
		make_rails(rails, true, true);
		attr = announced(rails, LENGTH);
		/* A queue pair that has stopped does not answer. */
		attr.stall_ms = STALL_MS;
		shuffle();
		begin_receiver(rails, LENGTH);
		begin(&attr);
		drive_until_stalled(&sent, &came);
		assert_int_equal(came, rails == 1 ? -ENOMEM : 1);
		assert_int_equal(landed().working_rails, rails - 1);
		assert_true(landed().done >= status().done);
		if (rails == 2)
			expect_moved(LENGTH, false);
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
		/* The channels hold nothing of it. */
		for (uint32_t r = 0; r < rails; r++)
			assert_int_equal(
				pier_channel_outstanding(fixture.there.channels[r]), 0);
	}
}

/* A write as a peer may send it, with immediate data or without. */
static void write_bytes(uint64_t offset, uint32_t length, const uint32_t *immediate)
{
	struct pier_channel *channel = fixture.here.channels[0];
	struct pier_gather source;
	struct pier_remote target;

	expect_ok(pier_mr_gather(fixture.here.mrs[0], pier_mr_iova(fixture.here.mrs[0]),
				 length, &source));
	expect_ok(pier_remote_sub(&fixture.remotes[0], GUARD + offset, length, &target));
	if (immediate)
		expect_ok(test_channel_write_imm(channel, &source, length > 0,
						 length ? &target : NULL, *immediate,
						 PATIENT));
	else
		expect_ok(pier_channel_write(channel, &source, 1, &target, PATIENT));
}

/* A chunk: the last `blocks` bytes have the immediate data. */
static void announce(uint32_t block, uint64_t offset, uint32_t length)
{
	uint32_t blocks = (length + 4095) / 4096;

	write_bytes(offset, length - blocks, NULL);
	write_bytes(offset + length - blocks, blocks, &block);
}

static void rejects_invalid_announcements(void **state)
{
	static const struct {
		uint32_t immediate, blocks;
	} hostile[] = {
		{ 0, 0 },		  /* no bytes */
		{ LENGTH / 4096, 0 },	  /* nor of the last block */
		{ 1 + LENGTH / 4096, 1 }, /* starts at the end */
		{ UINT32_MAX, 1 },	  /* far behind the end */
		{ 0, LENGTH / 4096 + 2 }, /* more than all blocks */
		{ 0, 4096 },		  /* the length, as if in bytes */
		{ LENGTH / 4096, 2 },	  /* beyond the end */
		{ LENGTH / 4096 - 1, 3 }, /* beyond it by one */
	};
	(void)state;
	for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
		make_rails(1, true, true);
		begin_receiver(1, LENGTH);
		write_bytes(0, hostile[i].blocks, &hostile[i].immediate);
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -EBADMSG);
		test_assert_sentence("which no transfer of 328457 bytes has");
		assert_int_equal(landed().done, 0);
		assert_int_equal(fixture.gpu->copies, 0);
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

static void rejects_messages_as_chunks(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct pier_channel *channel;

		make_rails(1, true, true);
		channel = fixture.here.channels[0];
		begin_receiver(1, LENGTH);
		expect_ok(i ? test_channel_send_imm(channel, NULL, 0, 1, PATIENT)
			    : pier_channel_send(channel, NULL, 0, PATIENT));
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -EBADMSG);
		test_assert_sentence("a message, and no chunk");
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

/* The same blocks again, in part, and overlapping: a block counts once. */
static void counts_each_block_once(void **state)
{
	static const struct {
		uint32_t block, count;
		uint64_t done;
		int copies;
	} steps[] = {
		{ 2, 2, 2, 1 }, { 2, 2, 2, 1 }, { 3, 2, 3, 2 },
		{ 0, 4, 5, 3 }, { 1, 3, 5, 3 }, { 63, 3, 8, 4 },
	};
	(void)state;
	make_rails(1, true, true);
	begin_receiver(1, LENGTH);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		announce(steps[i].block, steps[i].block * 4096ul, steps[i].count * 4096);
		expect_result(pier_receiver_wait(fixture.receiver, 0), 0);
		assert_int_equal(landed().done, steps[i].done * 4096);
		assert_int_equal(fixture.gpu->copies, steps[i].copies);
	}
}

/* A late chunk after completion: the memory is not touched again. */
static void ignores_late_chunks(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	shuffle();
	begin_receiver(1, LENGTH);
	begin(&attr);
	expect_both_arrive();
	memset(fixture.there.image, 0x5a, AREA);
	expect_ok(
		pier_buffer_copy_to(fixture.there.buffer, 0, fixture.there.image, AREA));
	announce(0, 0, CHUNK);
	expect_result(pier_receiver_progress(fixture.receiver), 1);
	expect_image(&fixture.there);
}

/* No receive is left behind to take the message of a later one. */
static void stops_channels_with_unused_receives(void **state)
{
	struct pier_channel *channel;
	struct pier_work work;

	(void)state;
	fixture.attr.max_recv_wr = 16;
	make_rails(1, true, true);
	channel = fixture.there.channels[0];
	begin_receiver(1, LENGTH);
	assert_int_equal(pier_channel_outstanding(channel), fixture.attr.max_recv_wr);
	expect_ok(pier_receiver_destroy(fixture.receiver));
	fixture.receiver = NULL;
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_result(pier_channel_post_recv(channel, NULL, 0, &work), -EPIPE);
	test_assert_sentence("receiver was destroyed");
	/* After a reset the channel is as new: all places are free. */
	expect_ok(pier_channel_reset(channel));
	for (uint32_t i = 0; i < fixture.attr.max_recv_wr; i++)
		expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
}

static void reset_rail(void)
{
	struct pier_endpoint a, b;

	expect_ok(pier_channel_reset(fixture.here.channels[0]));
	expect_ok(pier_channel_reset(fixture.there.channels[0]));
	expect_ok(pier_channel_endpoint(fixture.here.channels[0], &a));
	expect_ok(pier_channel_endpoint(fixture.there.channels[0], &b));
	expect_ok(pier_channel_connect(fixture.here.channels[0], &b));
	expect_ok(pier_channel_connect(fixture.there.channels[0], &a));
}

static int stop_at(void *context, uint64_t done, uint64_t length)
{
	const uint64_t *at = context;

	(void)length;
	return done == *at;
}

/* The channel was reset after the end, with some or all of its receives used. */
static void resumes_after_a_reset(void **state)
{
	(void)state;
	fixture.attr.max_recv_wr = 5;
	for (uint64_t at = 0; at <= 5 * CHUNK; at += CHUNK) {
		struct pier_transfer_attr attr;

		make_rails(1, true, true);
		attr = announced(1, LENGTH);
		attr.window = 1;
		attr.progress = stop_at;
		attr.context = &at;
		shuffle();
		begin_receiver(1, LENGTH);
		expect_ok(pier_receiver_cancel(fixture.receiver));
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -ECANCELED);
		begin(&attr);
		if (at == 0)
			expect_ok(pier_transfer_cancel(fixture.transfer));
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -ECANCELED);
		reset_rail();
		expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails,
					       1));
		assert_int_equal(landed().done, at);
		assert_int_equal(landed().receives, 5);
		expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
		expect_both_arrive();
		expect_moved(LENGTH, false);
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

/* While the receiver runs, a reset makes the rail fail. */
static void reset_fails_its_rail(void **state)
{
	(void)state;
	fixture.attr.max_recv_wr = 5;
	make_rails(1, true, true);
	begin_receiver(1, LENGTH);
	for (uint32_t i = 0; i < 5; i++)
		announce(i, i * 4096ul, 4096);
	reset_rail();
	expect_result(pier_receiver_wait(fixture.receiver, PATIENT), -ECANCELED);
	test_assert_sentence("the channel was reset");
	assert_int_equal(landed().done, 5 * 4096);
	assert_int_equal(pier_channel_outstanding(fixture.there.channels[0]), 0);
	expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1));
	assert_int_equal(landed().receives, 5);
}

/* Both ends of a channel were reset between two receivers. */
static void continues_after_a_reset(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	begin_receiver(1, LENGTH);
	begin(&attr);
	expect_both_arrive();
	/* It would be taken for a chunk of the next transfer. */
	announce(0, 0, CHUNK);
	reset_rail();
	shuffle();
	expect_ok(
		pier_receiver_next(fixture.receiver, fixture.receiver_rails, 1, LENGTH));
	expect_result(pier_receiver_progress(fixture.receiver), 0);
	assert_int_equal(landed().done, 0);
	begin(&attr);
	expect_both_arrive();
	expect_moved(LENGTH, false);
}

/* The next receiver uses another channel: the earlier one is stopped. */
static void stops_channels_it_does_not_need(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(2, true, true);
	attr = announced(1, LENGTH);
	begin_receiver(1, LENGTH);
	begin(&attr);
	expect_both_arrive();
	shuffle();
	expect_ok(pier_receiver_next(fixture.receiver, &fixture.receiver_rails[1], 1,
				     LENGTH));
	assert_int_equal(pier_channel_outstanding(fixture.there.channels[0]), 0);
	expect_result(pier_channel_error(fixture.there.channels[0], NULL, 0), -ECANCELED);
	attr.rails = &fixture.rails[1];
	begin(&attr);
	expect_both_arrive();
	expect_moved(LENGTH, false);
}

/* The time passes at once. */
static int wait_in_vain(int timeout_ms)
{
	int result;

	manual_clock_hurry(true);
	result = pier_receiver_wait(fixture.receiver, timeout_ms);
	manual_clock_hurry(false);
	return result;
}

static void waits_no_longer_than_its_timeout(void **state)
{
	struct pier_receiver_attr attr;

	(void)state;
	make_rails(1, true, true);
	attr = receiver_of(1, LENGTH);
	expect_ok(pier_receiver_create(&attr, &fixture.receiver));
	expect_result(pier_receiver_wait(fixture.receiver, 0), 0);
	expect_result(wait_in_vain(BRIEF), -ETIMEDOUT);
	test_assert_sentence("the receiver did not end within 20 ms");
	expect_result(pier_receiver_wait(fixture.receiver, -2), -EINVAL);
	expect_result(pier_receiver_progress(fixture.receiver), 0);
	expect_ok(pier_receiver_destroy(fixture.receiver));
	connect_rail(0);
	name_rail(0);
	attr.stall_ms = BRIEF;
	expect_ok(pier_receiver_create(&attr, &fixture.receiver));
	expect_result(wait_in_vain(PIER_TIMEOUT_DEFAULT), -EHOSTUNREACH);
	test_assert_sentence("nothing new arrived within 20 ms");
}

/* A sender that repeats chunks which have arrived makes no progress. */
static void stalls_if_no_new_bytes_arrive(void **state)
{
	struct pier_receiver_attr attr;
	int result = 0;

	(void)state;
	make_rails(1, true, true);
	attr = receiver_of(1, LENGTH);
	attr.stall_ms = BRIEF;
	expect_ok(pier_receiver_create(&attr, &fixture.receiver));
	while (result == 0) {
		announce(1, 4096, 4096);
		manual_clock_advance(BRIEF / 4);
		result = pier_receiver_progress(fixture.receiver);
	}
	assert_int_equal(result, -EHOSTUNREACH);
	assert_int_equal(landed().done, 4096);
}

/* Each copy lasts until one more chunk has arrived: three are always waiting. */
static uint32_t announced_blocks, blocks_to_announce;
static void announce_next(void)
{
	uint32_t block = announced_blocks;

	if (block == blocks_to_announce)
		return;
	announced_blocks++;
	announce(block, block * 4096ul, 4096);
}

static void announce_while_copying(uint32_t count)
{
	announced_blocks = 0;
	blocks_to_announce = count;
	for (int i = 0; i < 3; i++)
		announce_next();
	fixture.gpu->before_copy = announce_next;
}

/*
 * The call returns. A later wait must not sleep over the chunks left, although no event
 * announces them.
 */
static void returns_while_chunks_arrive(void **state)
{
	struct pier_channel *channel;
	uint64_t done;

	(void)state;
	make_rails(1, true, true);
	channel = fixture.there.channels[0];
	begin_receiver(1, LENGTH);
	announce_while_copying(LENGTH / 4096);
	expect_result(pier_receiver_progress(fixture.receiver), 0);
	done = landed().done / 4096;
	assert_in_range(done, 1, announced_blocks - 1);
	/* No more chunks arrive, and all have been collected. */
	fixture.gpu->before_copy = NULL;
	assert_true(pier_channel_arm(channel) > 0);
	for (int i = 0; i < 5 && landed().done / 4096 < announced_blocks; i++) {
		expect_result(pier_receiver_progress(fixture.receiver), 0);
		assert_true(landed().done / 4096 > done);
		done = landed().done / 4096;
	}
	assert_int_equal(done, announced_blocks);
	assert_int_equal(pier_channel_arm(channel), 0);
}

/* Also if all completions were collected before the call returned. */
static void keeps_chunks_that_were_collected(void **state)
{
	struct pier_channel *channel;
	uint64_t count = 0;

	(void)state;
	make_rails(1, true, true);
	channel = fixture.there.channels[0];
	begin_receiver(1, LENGTH);
	for (uint32_t i = 0; i < 10; i++)
		announce(i, i * 4096ul, 4096);
	/*
	 * A call whose time is up at once does one small step, and collects everything.
	 */
	while (pier_channel_arm(channel) > 0) {
		expect_result(pier_receiver_wait(fixture.receiver, 0), 0);
		if (count < 10)
			count++;
		assert_int_equal(landed().done, count * 4096);
	}
	assert_int_equal(count, 10);
}

/* The channel of the first rail gets a completion queue that others could share. */
static struct pier_cq *share_queue(void)
{
	struct pier_channel **channel = &fixture.there.channels[0];
	struct pier_channel_attr attr = fixture.attr;
	struct pier_endpoint here, there;
	struct pier_cq *cq;

	expect_ok(pier_cq_create(fixture.there.pd, NULL, &cq));
	attr.cq = cq;
	expect_ok(pier_channel_destroy(*channel));
	expect_ok(pier_channel_create(fixture.there.pd, &attr, channel));
	expect_ok(pier_channel_reset(fixture.here.channels[0]));
	expect_ok(pier_channel_endpoint(fixture.here.channels[0], &here));
	expect_ok(pier_channel_endpoint(*channel, &there));
	expect_ok(pier_channel_connect(fixture.here.channels[0], &there));
	expect_ok(pier_channel_connect(*channel, &here));
	name_rail(0);
	return cq;
}

/*
 * A channel of the same completion queue that is looked at later in the step collects
 * for this one, which no event announces.
 */
static void keeps_chunks_that_another_channel_collected(void **state)
{
	struct pier_channel *channel;
	struct pier_cq *cq;

	(void)state;
	make_rails(1, true, true);
	cq = share_queue();
	channel = fixture.there.channels[0];
	begin_receiver(1, LENGTH);
	expect_result(pier_receiver_progress(fixture.receiver), 0);
	expect_result(pier_channel_arm(channel), 0);
	channel->unseen = true;
	expect_result(pier_receiver_progress(fixture.receiver), 0);
	expect_result(pier_channel_arm(channel), 1);
	expect_result(pier_channel_arm(channel), 0);
	expect_ok(pier_receiver_destroy(fixture.receiver));
	fixture.receiver = NULL;
	expect_ok(pier_channel_destroy(channel));
	fixture.there.channels[0] = NULL;
	expect_ok(pier_cq_destroy(cq));
}

static void reports_that_the_peer_is_gone(void **state)
{
	(void)state;
	make_rails(1, true, true);
	begin_receiver(1, LENGTH);
	expect_ok(pier_channel_destroy(fixture.here.channels[0]));
	fixture.here.channels[0] = NULL;
	assert_true(pier_receiver_wait(fixture.receiver, PATIENT) < 0);
	test_assert_sentence("rail 0 of 1 failed");
	assert_int_equal(landed().receives, 0);
}

/* Whether there is something to poll before sleeping. */
static bool arm(int epoll)
{
	struct epoll_event event;
	int collected = pier_channel_arm(fixture.there.channels[0]);

	assert_true(collected >= 0);
	collected += pier_channel_arm(fixture.here.channels[0]);
	return collected > 0 || epoll_wait(epoll, &event, 1, PATIENT) > 0;
}

/* By epoll, as the header documents; both ends in one thread. */
static void can_be_driven_by_epoll(void **state)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(EPOLL_CLOEXEC), result;
	struct pier_transfer_attr attr;

	(void)state;
	fixture.attr.max_recv_wr = 3;
	make_rails(1, true, true);
	attr = announced(1, LENGTH);
	shuffle();
	begin_receiver(1, LENGTH);
	for (int i = 0; i < 2; i++)
		expect_ok(epoll_ctl(epoll, EPOLL_CTL_ADD,
				    pier_channel_fd(i ? fixture.here.channels[0]
						      : fixture.there.channels[0]),
				    &event));
	begin(&attr);
	while ((result = pier_receiver_progress(fixture.receiver)) == 0) {
		assert_true(pier_transfer_progress(fixture.transfer) >= 0);
		assert_true(arm(epoll));
	}
	assert_int_equal(result, 1);
	expect_both_arrive();
	close(epoll);
	expect_moved(LENGTH, false);
}

static void *send_all(void *argument)
{
	return (void *)(intptr_t)(pier_transfer_run(argument, PATIENT) != 0);
}

/* Each end in its own thread, one receiver after the other. */
static void runs_in_threads(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	fixture.attr.max_recv_wr = 3;
	make_rails(2, true, true);
	attr = announced(2, LENGTH);
	begin_receiver(2, 0);
	for (int round = 0; round < 20; round++) {
		pthread_t thread;
		void *failed;

		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), 1);
		shuffle();
		expect_ok(pier_receiver_next(fixture.receiver, fixture.receiver_rails, 2,
					     LENGTH));
		assert_int_equal(pthread_create(&thread, NULL, send_all, &attr), 0);
		expect_result(pier_receiver_wait(fixture.receiver, PATIENT), 1);
		assert_int_equal(pthread_join(thread, &failed), 0);
		assert_null(failed);
		expect_moved(LENGTH, false);
	}
}

/* Transfers that cannot be announced. */
static void refuses_transfers_that_cannot_be_announced(void **state)
{
	struct pier_transfer_attr attr, good;
	struct pier_transfer *transfer = NULL;
	struct pier_remote parts[2];

	(void)state;
	make_rails(1, true, true);
	good = announced(1, LENGTH);
#define refuse(sentence)                                                        \
	do {                                                                    \
		expect_result(pier_transfer_create(&attr, &transfer), -EINVAL); \
		test_assert_sentence(sentence);                                 \
		assert_null(transfer);                                          \
	} while (0)
	attr = good;
	attr.direction = PIER_TRANSFER_READ;
	refuse("reading tells the peer nothing");
	attr = good;
	attr.flags |= PIER_TRANSFER_NOTIFY;
	refuse("with PIER_TRANSFER_NOTIFY");
	attr = good;
	attr.chunk = 4097;
	refuse("chunk 4097 is no multiple of 4096");
	attr = good;
	attr.length = (UINT64_C(1) << 44) + 1;
	refuse("more than 16 TiB");
	expect_ok(pier_remote_sub(&fixture.remotes[0], 0, GUARD + 4097, &parts[0]));
	expect_ok(pier_remote_sub(&fixture.remotes[0], GUARD + 4097, LENGTH - 4097,
				  &parts[1]));
	fixture.rails[0].parts = parts;
	fixture.rails[0].count = 2;
	attr = good;
	refuse("a remote part ends 4097 bytes from the beginning");
	/* The last chunk may end anywhere. */
	parts[0].length--;
	parts[1].addr--;
	parts[1].length++;
	expect_ok(pier_transfer_create(&good, &transfer));
	expect_ok(pier_transfer_destroy(transfer));
	transfer = NULL;
	fixture.attr.max_send_wr = 1;
	connect_rail(1);
	fixture.rails[0].channel = fixture.here.channels[1];
	attr = good;
	refuse("a chunk takes two requests");
}

/* A state without announcements has ranges that are invalid here. */
static void refuses_foreign_states(void **state)
{
	static uint8_t wire[64] = { 'P', 'r', 'T', 'S', 1, 0, 0, 0, 1 };
	struct pier_transfer *transfer = NULL;
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(1, true, true);
	attr = announced(1, 8192 + 5);
	attr.state = wire;
	attr.state_size = 40;
	wire[17] = 0x20; /* length 8197 */
	wire[16] = 5;
	wire[32] = 1; /* one byte at 4095 */
	wire[24] = 0xff;
	wire[25] = 0x0f;
	expect_result(pier_transfer_create(&attr, &transfer), -EINVAL);
	test_assert_sentence("missing range [4095, +1)");
	wire[24] = 0; /* at 4096, which ends within a block */
	wire[25] = 0x10;
	expect_result(pier_transfer_create(&attr, &transfer), -EINVAL);
	wire[33] = 0x10; /* 4096 and 5 more: to the end */
	wire[32] = 5;
	expect_ok(pier_transfer_create(&attr, &transfer));
	expect_ok(pier_transfer_destroy(transfer));
}

/* Whether a source can be announced whose parts begin at these offsets, from 100 on. */
static int check_parts(const uint64_t *starts, uint32_t count)
{
	struct pier_mr_part parts[8] = { { 0 } };
	struct pier_mr mr = { .parts = parts, .part_count = count + 1 };
	struct pier_channel channel = { .max_msg_size = 1 << 30,
					.attr = { .max_send_wr = 2 } };
	struct pier_send_rail rail = {
		.base = { .flow.channel = &channel, .mr = &mr, .offset = 100 },
		.length = 3 * 4096,
		.max_sge = 3,
		.max_chunk = 10000
	};
	int error;

	for (uint32_t i = 0; i < count; i++)
		parts[i + 1].start = starts[i];
	error = pier_check_announced_rail(&rail);
	assert_int_equal(rail.max_chunk, 8192);
	return error;
}

/* A block with more parts than a request has elements does not fit one chunk. */
static void refuses_blocks_of_too_many_parts(void **state)
{
	(void)state;
	expect_ok(check_parts((uint64_t[]){ 101, 4195 }, 2));
	expect_result(check_parts((uint64_t[]){ 101, 102, 4195 }, 3), -EINVAL);
	test_assert_sentence("in more parts than the 3 elements");
	/* A part that begins with the block does not count in the one before. */
	expect_ok(check_parts((uint64_t[]){ 101, 102, 4196, 4197, 4198 }, 5));
	expect_result(check_parts((uint64_t[]){ 4196, 4197, 4198, 4199 }, 4), -EINVAL);
	expect_result(check_parts((uint64_t[]){ 4195, 4197, 4198, 4199 }, 4), -EINVAL);
	expect_ok(check_parts((uint64_t[]){ 4195, 4197, 4198, 8292 }, 4));
	/* Parts before and behind the transfer do not matter. */
	expect_ok(check_parts((uint64_t[]){ 50, 60, 70, 100, 101, 102 }, 6));
	expect_ok(check_parts((uint64_t[]){ 12388, 12389, 12390, 12391 }, 4));
}

/* Parts of one page, and few elements in a request: chunks still end on blocks. */
static void ends_chunks_of_many_parts_on_blocks(void **state)
{
	struct pier_transfer_attr attr;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char spec[32];

	(void)state;
	snprintf(spec, sizeof(spec), "gpu:%zu", (AREA + page - 1) / page);
	expect_ok(pier_buffer_free(fixture.here.buffer));
	expect_ok(pier_buffer_alloc(spec, AREA, &fixture.here.buffer));
	fixture.attr.max_send_sge = 3;
	make_rails(1, true, true);
	expect_ok(pier_mr_dereg(fixture.here.mrs[0]));
	fixture.gpu->seams = fixture.gpu->no_pcie = true;
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	expect_ok(pier_mr_reg_buffer(fixture.here.pd, fixture.here.buffer, 0, AREA, 0,
				     PIER_POLICY_BOUNCE, &fixture.here.mrs[0]));
	assert_true(pier_mr_parts(fixture.here.mrs[0]) > AREA / page);
	name_rail(0);
	fixture.rails[0].offset = GUARD - 100;
	attr = announced(1, LENGTH);
	shuffle();
	begin_receiver(1, LENGTH);
	begin(&attr);
	expect_both_arrive();
	memcpy(fixture.there.image + GUARD, fixture.here.image + GUARD - 100, LENGTH);
	expect_image(&fixture.here);
	expect_image(&fixture.there);
}

static void refuses_invalid_arguments(void **state)
{
	struct pier_receiver_rail twice[2];
	struct pier_receiver_attr attr, good;
	struct pier_receiver *receiver = NULL;

	(void)state;
	make_rails(2, true, true);
	good = receiver_of(1, LENGTH);
#define refuse_receiver(error, sentence)                                         \
	do {                                                                     \
		expect_result(pier_receiver_create(&attr, &receiver), -(error)); \
		test_assert_sentence(sentence);                                  \
		assert_null(receiver);                                           \
	} while (0)
	expect_result(pier_receiver_create(NULL, &receiver), -EINVAL);
	attr = good;
	attr.size = 8;
	refuse_receiver(EINVAL, "pier_receiver_attr_init()");
	attr = good;
	attr.flags = 2;
	refuse_receiver(EINVAL, "flags 0x2");
	attr = good;
	attr.stall_ms = 0;
	refuse_receiver(EINVAL, "stall_ms 0");
	attr = good;
	attr.rail_count = 0;
	refuse_receiver(EINVAL, "0 rails");
	attr.rail_count = PIER_RAILS_MAX + 1;
	refuse_receiver(EINVAL, "65 rails");
	attr = good;
	attr.rails = NULL;
	refuse_receiver(EINVAL, "rails is NULL");
	attr = good;
	attr.length = (UINT64_C(1) << 44) + 1;
	refuse_receiver(EINVAL, "more than 16 TiB");
	attr.length = AREA - GUARD + 1;
	refuse_receiver(ERANGE, "leave the region");
	attr = good;
	twice[0] = twice[1] = fixture.receiver_rails[0];
	attr.rails = twice;
	attr.rail_count = 2;
	refuse_receiver(EINVAL, "rails 0 and 1 have the same channel");
	twice[0].mr = fixture.here.mrs[0];
	attr.rail_count = 1;
	refuse_receiver(EINVAL, "another protection domain");
	attr = good;
	expect_ok(pier_channel_post_recv(fixture.there.channels[0], NULL, 0, NULL));
	refuse_receiver(EBUSY, "1 receives posted");
	expect_ok(pier_channel_cancel(fixture.there.channels[0]));
	refuse_receiver(EPIPE, "rail 0 of a receiver");
	/* None of these posted anything. */
	assert_int_equal(pier_channel_outstanding(fixture.there.channels[1]), 0);
}

static void refuses_channels_with_shared_receives(void **state)
{
	struct pier_recv_pool *pool = NULL;
	struct pier_receiver *receiver = NULL;
	struct pier_receiver_attr attr;

	(void)state;
	make_rails(1, true, true);
	attr = receiver_of(1, LENGTH);
	expect_ok(test_recv_pool_create(fixture.there.channels[0]->pd,
					fixture.there.channels[0], NULL, &pool));
	expect_result(pier_receiver_create(&attr, &receiver), -EINVAL);
	test_assert_sentence("a receive pool");
	expect_ok(pier_recv_pool_destroy(pool));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(receives_any_length),
		CASE(flushes_direct_memory_once),
		CASE(copies_as_chunks_arrive),
		CASE(counts_repeated_chunks_once),
		CASE(resumes_after_all_rails_fail),
		CASE(loses_nothing_between_end_and_resume),
		CASE(loses_nothing_of_a_broken_channel),
		CASE(fails_with_its_device),
		CASE(reports_failed_flush),
		CASE(continues_without_a_flush),
		CASE(flushes_before_it_resumes),
		CASE(flushes_bytes_that_arrived_after_the_end),
		CASE(receives_into_partly_bounced_regions),
		CASE(sender_waits_for_receives),
		CASE(sender_gives_up_without_retries),
		CASE(survives_refused_receives),
		CASE(rejects_invalid_announcements),
		CASE(rejects_messages_as_chunks),
		CASE(counts_each_block_once),
		CASE(ignores_late_chunks),
		CASE(stops_channels_with_unused_receives),
		CASE(continues_after_a_reset),
		CASE(resumes_after_a_reset),
		CASE(reset_fails_its_rail),
		CASE(stops_channels_it_does_not_need),
		CASE(waits_no_longer_than_its_timeout),
		CASE(stalls_if_no_new_bytes_arrive),
		CASE(returns_while_chunks_arrive),
		CASE(keeps_chunks_that_were_collected),
		CASE(keeps_chunks_that_another_channel_collected),
		CASE(reports_that_the_peer_is_gone),
		CASE(can_be_driven_by_epoll),
		CASE(runs_in_threads),
		CASE(refuses_transfers_that_cannot_be_announced),
		CASE(refuses_foreign_states),
		CASE(refuses_blocks_of_too_many_parts),
		CASE(ends_chunks_of_many_parts_on_blocks),
		CASE(refuses_invalid_arguments),
		CASE(refuses_channels_with_shared_receives),
	};

	return cmocka_run_group_tests_name("receiver", tests, make_folder, remove_folder);
}

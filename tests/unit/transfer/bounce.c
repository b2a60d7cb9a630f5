/* SPDX-License-Identifier: BSD-3-Clause */
/* Transfers to and from memory that the NIC cannot reach, or that needs a flush. */
#include <poll.h>

#include "bounce_fixture.h"

static const uint64_t lengths[] = { 0, 1, CHUNK, CHUNK + 1, LENGTH };

static void moves_bounced_bytes(void **state)
{
	static const uint32_t windows[] = { 1, 0 };

	(void)state;
	for (uint32_t rails = 1; rails <= MAX_RAILS; rails *= 2) {
		make_rails(rails, true, false);
		for (size_t i = 0; i < 2 * sizeof(lengths) / sizeof(lengths[0]); i++) {
			struct pier_transfer_attr attr = attr_of(rails, lengths[i / 2]);

			attr.window = windows[i % 2];
			shuffle();
			expect_ok(pier_transfer_run(&attr, PATIENT));
			expect_moved(attr.length, false);
			attr.direction = PIER_TRANSFER_READ;
			shuffle();
			expect_ok(pier_transfer_run(&attr, PATIENT));
			expect_moved(attr.length, true);
		}
	}
}

/* At both ends. The owner of remote memory decides what its NIC sees. */
static void reads_bounce_buffers_of_a_peer(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(2, true, true);
	attr = attr_of(2, LENGTH);
	attr.direction = PIER_TRANSFER_READ;
	shuffle();
	publish_there(2);
	expect_ok(pier_transfer_run(&attr, PATIENT));
	expect_moved(LENGTH, true);
}

/* For each copy: the chunks in flight, and those that had arrived. */
static struct {
	int copies, in_flight[32], landed[32];
} seen;

static void look(void)
{
	struct pier_transfer_status now = status();
	int index = seen.copies++;

	assert_in_range(index, 0, 31);
	seen.in_flight[index] = (int)now.in_flight;
	seen.landed[index] = (int)(now.done / CHUNK);
}

static void watch(const struct pier_transfer_attr *attr)
{
	shuffle();
	begin(attr);
	memset(&seen, 0, sizeof(seen));
	fixture.gpu->before_copy = look;
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
	fixture.gpu->before_copy = NULL;
	assert_int_equal(fixture.gpu->copies, 20);
}

/*
 * A chunk is copied just before it is posted: all chunks before it have been posted, and
 * none behind it has been copied.
 */
static void copies_before_each_post(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(1, true, false);
	attr = attr_of(1, 20 * CHUNK);
	attr.window = 4;
	watch(&attr);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(seen.landed[i] + seen.in_flight[i], i);
		assert_in_range(seen.in_flight[i], 0, 3);
	}
	expect_moved(20 * CHUNK, false);
}

/*
 * A read chunk is copied while the NIC stays busy: at each copy its window is full, or
 * all chunks have been posted.
 */
static void copies_while_chunks_are_in_flight(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(1, true, false);
	attr = attr_of(1, 20 * CHUNK);
	attr.direction = PIER_TRANSFER_READ;
	attr.window = 4;
	watch(&attr);
	for (int i = 0; i < 20; i++) {
		/* At most 4 chunks that have arrived are still to be copied. */
		if (seen.landed[i] < 12)
			assert_int_equal(seen.in_flight[i], 4);
	}
	expect_moved(20 * CHUNK, true);
}

static void does_not_copy_direct_memory(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(2, false, false);
	attr = attr_of(2, LENGTH);
	shuffle();
	expect_ok(pier_transfer_run(&attr, PATIENT));
	assert_int_equal(fixture.gpu->copies, 0);
	assert_int_equal(fixture.gpu->flushes, 0);
	expect_moved(LENGTH, false);
}

static int expect_flushed(void *context, uint64_t done, uint64_t length)
{
	int *at_end = context;

	if (done == length)
		*at_end = fixture.gpu->flushes;
	else
		assert_int_equal(fixture.gpu->flushes, 0);
	return 0;
}

/* Once for each rail that brought something, before completion is reported. */
static void flushes_direct_memory_once(void **state)
{
	struct pier_transfer_attr attr;
	int at_end = 0;

	(void)state;
	make_rails(2, false, false);
	attr = attr_of(2, LENGTH);
	attr.direction = PIER_TRANSFER_READ;
	attr.progress = expect_flushed;
	attr.context = &at_end;
	shuffle();
	begin(&attr);
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
	assert_true(rail_status(0).done > 0 && rail_status(1).done > 0);
	assert_int_equal(fixture.gpu->flushes, 2);
	assert_int_equal(at_end, 2);
	expect_result(pier_transfer_progress(fixture.transfer), 1);
	assert_int_equal(fixture.gpu->flushes, 2);
	assert_int_equal(fixture.gpu->copies, 0);
	expect_moved(LENGTH, true);
	/* One chunk, one rail. */
	attr.length = 1;
	attr.progress = NULL;
	fixture.gpu->flushes = 0;
	expect_ok(pier_transfer_run(&attr, PATIENT));
	assert_int_equal(fixture.gpu->flushes, 1);
}

static int never_at_end(void *context, uint64_t done, uint64_t length)
{
	(void)context;
	assert_true(done < length);
	return 0;
}

/*
 * All bytes have arrived but are not visible: the transfer fails until a flush succeeds.
 */
static void reports_failed_flush(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	make_rails(1, false, false);
	attr = attr_of(1, LENGTH);
	attr.direction = PIER_TRANSFER_READ;
	attr.progress = never_at_end;
	shuffle();
	begin(&attr);
	fixture.gpu->flush_error = EOPNOTSUPP;
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -EOPNOTSUPP);
	test_assert_sentence("cannot flush the data that arrived on rail 0");
	test_assert_sentence("no flush");
	assert_int_equal(status().done, LENGTH);
	expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -EOPNOTSUPP);
	fixture.gpu->flush_error = 0;
	fixture.gpu->flushes = 0;
	expect_ok(pier_transfer_destroy(fixture.transfer));
	fixture.transfer = NULL;
	attr.progress = NULL;
	begin(&attr);
	fixture.gpu->flush_error = EOPNOTSUPP;
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -EOPNOTSUPP);
	fixture.gpu->flush_error = 0;
	fixture.gpu->flushes = 0;
	expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
	assert_int_equal(fixture.gpu->flushes, 1);
	expect_moved(LENGTH, true);
}

static int cancel_half(void *context, uint64_t done, uint64_t length)
{
	bool *armed = context;
	bool cancels = *armed && done >= length / 2;

	*armed &= !cancels;
	return cancels;
}

/* It ends in the middle, and resumes on a rail whose memory needs no flush. */
static void flushes_before_it_resumes(void **state)
{
	(void)state;
	make_rails(2, false, false);
	reg(&fixture.here, 1, true);
	name_rail(1);
	for (int error = 0; error <= EOPNOTSUPP; error += EOPNOTSUPP) {
		struct pier_transfer_attr attr = attr_of(1, LENGTH);
		bool armed = true;

		attr.direction = PIER_TRANSFER_READ;
		attr.progress = cancel_half;
		attr.context = &armed;
		attr.window = 2;
		shuffle();
		publish_there(2);
		fixture.gpu->flush_error = error;
		begin(&attr);
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -ECANCELED);
		test_assert_sentence("its progress callback cancelled it");
		assert_int_equal(fixture.gpu->flushes, 1);
		assert_int_equal(rail_status(0).error, 0);
		assert_in_range(status().done, LENGTH / 2, LENGTH - 1);
		expect_ok(pier_transfer_resume(fixture.transfer, &fixture.rails[1], 1));
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT),
			      error ? -error : 1);
		assert_int_equal(fixture.gpu->flushes, error ? 2 : 1);
		fixture.gpu->flush_error = 0;
		if (error) {
			expect_ok(pier_transfer_resume(fixture.transfer,
						       &fixture.rails[1], 1));
			expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
			assert_int_equal(fixture.gpu->flushes, 3);
		}
		expect_moved(LENGTH, true);
	}
}

/* The device is lost in the middle, and returns. */
static void fails_and_resumes_with_the_device(void **state)
{
	(void)state;
	make_rails(1, true, false);
	for (int at = 1; at < 20; at += 6) {
		for (int reading = 0; reading < 2; reading++) {
			struct pier_transfer_attr attr = attr_of(1, LENGTH);

			attr.direction = reading ? PIER_TRANSFER_READ
						 : PIER_TRANSFER_WRITE;
			attr.window = 3;
			shuffle();
			fixture.gpu->copy_error = EIO;
			fixture.gpu->fail_copy_at = at;
			begin(&attr);
			expect_result(pier_transfer_wait(fixture.transfer, PATIENT),
				      -EIO);
			test_assert_sentence("rail 0 of 1 failed");
			test_assert_sentence("device lost");
			assert_int_equal(status().done, (at - 1) * CHUNK);
			assert_int_equal(status().in_flight, 0);
			assert_non_null(strstr(rail_status(0).sentence, "device lost"));
			expect_moved((uint64_t)(at - 1) * CHUNK, reading);
			fixture.gpu->copy_error = 0;
			expect_ok(
				pier_transfer_resume(fixture.transfer, fixture.rails, 1));
			expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
			assert_int_equal(rail_status(0).done, LENGTH - (at - 1) * CHUNK);
			expect_moved(LENGTH, reading);
		}
	}
}

/* The copies of one rail fail; another rail, which needs none, moves its chunks. */
static void other_rails_take_over(void **state)
{
	(void)state;
	make_rails(2, true, false);
	reg(&fixture.here, 1, false);
	name_rail(1);
	for (int reading = 0; reading < 2; reading++) {
		struct pier_transfer_attr attr = attr_of(2, LENGTH);

		attr.direction = reading ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
		shuffle();
		fixture.gpu->copy_error = EIO;
		fixture.gpu->fail_copy_at = 3;
		begin(&attr);
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
		fixture.gpu->copy_error = 0;
		assert_int_equal(rail_status(0).error, -EIO);
		assert_int_equal(rail_status(0).done, 2 * CHUNK);
		assert_int_equal(rail_status(1).done, LENGTH - 2 * CHUNK);
		assert_int_equal(status().working_rails, 1);
		expect_moved(LENGTH, reading);
	}
}

/* From the callback: the far end of the first rail dies after this many bytes. */
static int kill_rail(void *context, uint64_t done, uint64_t length)
{
	uint64_t *at = context;

	(void)length;
	if (done >= *at) {
		expect_ok(pier_channel_destroy(fixture.there.channels[0]));
		fixture.there.channels[0] = NULL;
	}
	return 0;
}

static void survives_a_dead_rail(void **state)
{
	(void)state;
	for (uint64_t at = CHUNK; at < 18 * CHUNK; at += 5 * CHUNK) {
		struct pier_transfer_attr attr;

		make_rails(2, true, false);
		attr = attr_of(2, LENGTH);
		attr.direction = (at / CHUNK) & 1 ? PIER_TRANSFER_READ
						  : PIER_TRANSFER_WRITE;
		attr.progress = kill_rail;
		attr.context = &at;
		attr.window = 3;
		shuffle();
		expect_ok(pier_transfer_run(&attr, PATIENT));
		assert_null(fixture.there.channels[0]);
		expect_moved(LENGTH, attr.direction == PIER_TRANSFER_READ);
	}
}

/* A chunk that a full queue refuses is copied once, however often it is tried again. */
static void copies_once_although_the_queue_is_full(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	fixture.attr.max_send_wr = 16;
	make_rails(1, true, false);
	/* Sends for which the peer has no receive. */
	for (uint32_t i = 0; i < fixture.attr.max_send_wr; i++)
		expect_ok(
			pier_channel_post_send(fixture.here.channels[0], NULL, 0, NULL));
	attr = attr_of(1, LENGTH);
	shuffle();
	begin(&attr);
	for (int i = 0; i < 50; i++)
		expect_result(pier_transfer_progress(fixture.transfer), 0);
	assert_int_equal(fixture.gpu->copies, 1);
	for (uint32_t i = 0; i < fixture.attr.max_send_wr; i++)
		expect_ok(
			pier_channel_post_recv(fixture.there.channels[0], NULL, 0, NULL));
	expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
	assert_int_equal(fixture.gpu->copies, 21);
	expect_moved(LENGTH, false);
}

/* Chunks cross seams; only parts with bounce buffers are copied. */
static void moves_partly_bounced_regions(void **state)
{
	static uint8_t plain[5 * CHUNK + 333];
	struct pier_transfer_attr attr;

	(void)state;
	expect_ok(pier_buffer_free(fixture.here.buffer));
	expect_ok(pier_buffer_alloc("gpu:3", AREA, &fixture.here.buffer));
	shuffle_side(&fixture.here);
	memcpy(plain, fixture.here.image + GUARD, sizeof(plain));
	reg(&fixture.there, 0, false);
	reg_parts(&fixture.here, plain, sizeof(plain));
	shuffle_side(&fixture.there);
	connect_rail(0);
	name_rail(0);
	fixture.rails[0].offset = 0;
	attr = attr_of(1, LENGTH);
	expect_ok(pier_transfer_run(&attr, PATIENT));
	expect_moved(LENGTH, false);
	attr.direction = PIER_TRANSFER_READ;
	shuffle_side(&fixture.there);
	fixture.gpu->flushes = 0;
	/* No NIC wrote to the device. */
	fixture.gpu->flush_error = EOPNOTSUPP;
	expect_ok(pier_transfer_run(&attr, PATIENT));
	assert_int_equal(fixture.gpu->flushes, 0);
	assert_memory_equal(plain, fixture.there.image + GUARD, sizeof(plain));
	memcpy(fixture.here.image + GUARD + sizeof(plain),
	       fixture.there.image + GUARD + sizeof(plain), LENGTH - sizeof(plain));
	expect_image(&fixture.here);
}

/* Of the device's memory at this end; of what the peer's NIC reaches at the other. */
static void moves_device_memory_with_digests(void **state)
{
	(void)state;
	for (int i = 0; i < 8; i++) {
		bool reading = i & 1;
		struct pier_transfer_attr attr;

		make_rails(2, i & 2, i & 4);
		attr = attr_of(2, LENGTH);
		attr.flags = PIER_TRANSFER_DIGEST;
		attr.direction = reading ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
		shuffle();
		publish_there(2);
		expect_ok(pier_transfer_run(&attr, PATIENT));
		if (reading || !(i & 4))
			expect_moved(LENGTH, reading);
	}
}

static void await_completion(void)
{
	struct pier_channel *channel = fixture.here.channels[0];
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };
	int collected;

	while ((collected = pier_channel_arm(channel)) == 0)
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
	assert_true(collected > 0);
}

/* The bytes here become wrong between the copy and the second read. */
static void digest_covers_the_copy(void **state)
{
	uint8_t wrong;

	(void)state;
	for (int bounced = 0; bounced < 2; bounced++) {
		struct pier_transfer_attr attr;

		make_rails(1, bounced, false);
		attr = attr_of(1, CHUNK);
		attr.flags = PIER_TRANSFER_DIGEST;
		attr.direction = PIER_TRANSFER_READ;
		shuffle();
		begin(&attr);
		expect_result(pier_transfer_progress(fixture.transfer), 0);
		await_completion();
		expect_result(pier_transfer_progress(fixture.transfer), 0);
		wrong = (uint8_t)~fixture.there.image[GUARD];
		expect_ok(pier_buffer_copy_to(fixture.here.buffer, GUARD, &wrong, 1));
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT), -EBADMSG);
		test_assert_sentence(bounced ? "path bounce" : "path dma-buf");
		expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
		expect_result(pier_transfer_wait(fixture.transfer, PATIENT), 1);
		expect_moved(CHUNK, true);
	}
}

/* A byte of the bounce buffer changes just before it is copied to the device. */
static void spoil_bounce_buffer(void)
{
	uint8_t wrong = (uint8_t)~fixture.here.image[GUARD];
	struct pier_gather byte;
	struct pier_remote place;

	fixture.gpu->before_copy = NULL;
	expect_ok(pier_buffer_copy_to(fixture.here.buffer, 0, &wrong, 1));
	expect_ok(pier_mr_gather(fixture.here.mrs[1], pier_mr_iova(fixture.here.mrs[1]),
				 1, &byte));
	expect_ok(pier_remote_sub(&fixture.remotes[0], GUARD, 1, &place));
	expect_ok(
		pier_channel_write(fixture.here.channels[1], &byte, 1, &place, PATIENT));
}

static void receiver_judges_what_was_copied(void **state)
{
	struct pier_transfer_attr attr;
	struct pier_receiver_attr receiving;

	(void)state;
	for (int spoiled = 0; spoiled < 2; spoiled++) {
		int sent = 0, came = 0;

		make_rails(2, false, true);
		attr = attr_of(1, CHUNK);
		attr.flags = PIER_TRANSFER_ANNOUNCE | PIER_TRANSFER_DIGEST;
		shuffle();
		pier_receiver_attr_init(&receiving);
		receiving.rails = fixture.receiver_rails;
		receiving.rail_count = 1;
		receiving.length = CHUNK;
		receiving.flags = PIER_TRANSFER_DIGEST;
		expect_ok(pier_receiver_create(&receiving, &fixture.receiver));
		begin(&attr);
		while (sent == 0)
			sent = pier_transfer_progress(fixture.transfer);
		fixture.gpu->before_copy = spoiled ? spoil_bounce_buffer : NULL;
		while (came == 0)
			came = pier_receiver_progress(fixture.receiver);
		assert_int_equal(sent, 1);
		expect_result(came, spoiled ? -EBADMSG : 1);
		if (!spoiled)
			expect_moved(CHUNK, false);
		expect_ok(pier_receiver_destroy(fixture.receiver));
		fixture.receiver = NULL;
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(moves_bounced_bytes),
		CASE(reads_bounce_buffers_of_a_peer),
		CASE(copies_before_each_post),
		CASE(copies_while_chunks_are_in_flight),
		CASE(does_not_copy_direct_memory),
		CASE(flushes_direct_memory_once),
		CASE(reports_failed_flush),
		CASE(flushes_before_it_resumes),
		CASE(fails_and_resumes_with_the_device),
		CASE(other_rails_take_over),
		CASE(survives_a_dead_rail),
		CASE(copies_once_although_the_queue_is_full),
		CASE(moves_partly_bounced_regions),
		CASE(moves_device_memory_with_digests),
		CASE(digest_covers_the_copy),
		CASE(receiver_judges_what_was_copied),
	};

	return cmocka_run_group_tests_name("bounce", tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The requests of a ring, and how fills fail. */
#include <pier/cq.h>
#include <pier/post.h>
#include <pier/recovery.h>
#include <pier/ring.h>

#include "../transfer_fixture.h"
#include "tests/support/manual_clock.h"

enum {
	SLOTS = 4,
	SLOT_SIZE = 1000,
	MANY = 100,
};

static struct pier_ring *ring;
static struct pier_ring_slot slot;

static void make_ring(int stall_ms)
{
	struct pier_ring_attr attr;

	pier_ring_attr_init(&attr);
	attr.slots = SLOTS;
	attr.slot_size = SLOT_SIZE;
	attr.mr = &region;
	attr.stall_ms = stall_ms;
	expect_ok(pier_ring_create(&fake.pd, &attr, &ring));
}

static int setup_ring(void **state)
{
	setup(state);
	make_ring(PATIENT);
	return 0;
}

static int teardown_ring(void **state)
{
	complete(fake.sends, IBV_WC_WR_FLUSH_ERR);
	expect_ok(pier_ring_destroy(ring));
	ring = NULL;
	return teardown(state);
}

static void reconnect(uint32_t depth, uint32_t max_msg_size)
{
	expect_ok(pier_channel_destroy(channel));
	connect_channel(depth, max_msg_size);
	fake.logged = fake.doorbells = 0;
}

static struct pier_ring_source source(void)
{
	return (struct pier_ring_source){ channel, &target, 1 };
}

/* Reads of 10 bytes that follow each other in the slot, each 20 bytes apart there. */
static int begin_reads(uint32_t count, uint64_t remote_offset)
{
	struct pier_ring_source from = source();
	struct pier_ring_read reads[MANY];

	for (uint32_t i = 0; i < count; i++)
		reads[i] = (struct pier_ring_read){
			.offset = (uint64_t)i * 10,
			.remote_offset = remote_offset + (uint64_t)i * 20,
			.length = 10,
		};
	return pier_ring_fill(ring, &from, 1, reads, count, NULL);
}

static void expect_read(int index, uint64_t offset, uint64_t remote_offset,
			uint32_t length)
{
	const struct fake_send *send = &fake.log[index];

	assert_in_range(index, 0, fake.logged - 1);
	assert_int_equal(send->wr.opcode, IBV_WR_RDMA_READ);
	assert_int_equal(send->wr.wr.rdma.remote_addr, target.addr + remote_offset);
	assert_int_equal(send->wr.wr.rdma.rkey, target.rkey);
	assert_int_equal(send->wr.num_sge, 1);
	assert_int_equal(send->sg_list[0].addr, region.iova + offset);
	assert_int_equal(send->sg_list[0].length, length);
}

static struct pier_ring_status ring_status(void)
{
	struct pier_ring_status now;

	pier_ring_query(ring, &now, sizeof(now));
	return now;
}

static void expect_next(uint32_t number)
{
	expect_result(pier_ring_next(ring, PATIENT, &slot), 1);
	assert_int_equal(slot.number, number);
	assert_int_equal(slot.missing, 0);
	expect_ok(pier_ring_release(ring, &slot));
}

static void rings_once_for_32_reads(void **state)
{
	(void)state;
	reconnect(MANY, 1u << 30);
	expect_ok(begin_reads(70, 0));
	/* Half of the queue is more than a doorbell takes. */
	assert_int_equal(fake.doorbells, 3);
	assert_int_equal(fake.logged, 70);
	for (int i = 0; i < 70; i++) {
		bool last = i == 31 || i == 63 || i == 69;

		expect_read(i, (uint64_t)i * 10, (uint64_t)i * 20, 10);
		assert_int_equal(!!(fake.log[i].wr.send_flags & IBV_SEND_SIGNALED), last);
	}
	assert_int_equal(ring_status().doorbells, 3);
	assert_int_equal(ring_status().in_flight, 70);
	complete(70, IBV_WC_SUCCESS);
	expect_next(0);
	assert_int_equal(slot.length, 700);
	assert_int_equal(ring_status().bytes, 700);
}

/* Half of the queue at a time: the device has the next chunk before it reports one. */
static void posts_as_many_as_there_is_room_for(void **state)
{
	(void)state;
	expect_ok(begin_reads(18, 0));
	assert_int_equal(fake.logged, DEPTH);
	assert_int_equal(fake.doorbells, 2);
	for (int posted = DEPTH; posted < 16; posted += DEPTH / 2) {
		complete(DEPTH / 2 - 1, IBV_WC_SUCCESS);
		expect_result(pier_ring_progress(ring), 0);
		assert_int_equal(fake.logged, posted);
		complete(1, IBV_WC_SUCCESS);
		expect_result(pier_ring_progress(ring), 0);
		assert_int_equal(fake.logged, posted + 4);
	}
	/* The rest needs less room. */
	complete(2, IBV_WC_SUCCESS);
	expect_result(pier_ring_progress(ring), 0);
	assert_int_equal(fake.logged, 18);
	complete(fake.sends, IBV_WC_SUCCESS);
	expect_next(0);
}

/* The younger fill waits for room behind the older one. */
static void posts_fills_in_the_order_of_their_beginning(void **state)
{
	(void)state;
	expect_ok(begin_reads(DEPTH + 4, 0));
	expect_ok(begin_reads(1, 9000));
	assert_int_equal(fake.logged, DEPTH);
	complete(4, IBV_WC_SUCCESS);
	expect_result(pier_ring_progress(ring), 0);
	assert_int_equal(fake.logged, DEPTH + 4);
	complete(4, IBV_WC_SUCCESS);
	expect_result(pier_ring_progress(ring), 0);
	assert_int_equal(fake.logged, DEPTH + 5);
	expect_read(DEPTH + 4, SLOT_SIZE, 9000, 10);
	complete(fake.sends, IBV_WC_SUCCESS);
	expect_next(0);
	expect_next(1);
}

/* At parts of the source and at the longest message. */
static void splits_reads(void **state)
{
	const struct pier_remote parts[] = { { target.addr, 13, target.rkey },
					     { 0, 0, 0 },
					     { target.addr + 500, 60, target.rkey } };
	struct pier_ring_source from;
	const struct pier_ring_read reads[] = {
		{ .offset = 100, .remote_offset = 5, .length = 40 },
		{ .offset = 200, .remote_offset = 73, .length = 0 },
		{ .offset = 300, .remote_offset = 63, .length = 10 },
	};
	uint32_t index;

	(void)state;
	reconnect(DEPTH, 16);
	from = (struct pier_ring_source){ channel, parts, 3 };
	expect_ok(pier_ring_fill(ring, &from, 1, reads, 3, NULL));
	assert_int_equal(fake.logged, 4);
	expect_read(0, 100, 5, 8);
	expect_read(1, 108, 500, 16);
	expect_read(2, 124, 516, 16);
	expect_read(3, 300, 550, 10);
	complete(4, IBV_WC_SUCCESS);
	expect_next(0);
	assert_int_equal(slot.length, 310);
	/* A read of which only a part arrived is missing, and is read again as a whole.
	 */
	reconnect(2, 16);
	from.channel = channel;
	expect_ok(pier_ring_fill(ring, &from, 1, reads, 3, NULL));
	assert_int_equal(fake.logged, 2);
	complete(1, IBV_WC_SUCCESS);
	expect_result(pier_ring_progress(ring), 0);
	complete(1, IBV_WC_REM_ACCESS_ERR);
	complete(fake.sends, IBV_WC_WR_FLUSH_ERR);
	expect_result(pier_ring_next(ring, PATIENT, &slot), -EACCES);
	assert_int_equal(slot.missing, 2);
	expect_result(pier_ring_missing(ring, slot.number, &index, 1), 2);
	assert_int_equal(index, 0);
	reconnect(DEPTH, 16);
	from.channel = channel;
	expect_ok(pier_ring_retry(ring, slot.number, &from, 1));
	assert_int_equal(fake.logged, 4);
	complete(4, IBV_WC_SUCCESS);
	expect_next(1);
}

/* The nth chunk fails, and those behind it are flushed. */
static void repeats_missing_reads(void **state)
{
	uint32_t missing[18];

	(void)state;
	for (int nth = 0; nth < 5; nth++) {
		struct pier_ring_source from;
		uint32_t left = 18 - 4 * (uint32_t)nth;

		expect_ok(begin_reads(18, 0));
		for (int i = 0; i < nth; i++) {
			complete(4, IBV_WC_SUCCESS);
			expect_result(pier_ring_progress(ring), 0);
		}
		complete(1, IBV_WC_REM_ACCESS_ERR);
		complete(fake.sends, IBV_WC_WR_FLUSH_ERR);
		expect_result(pier_ring_next(ring, PATIENT, &slot), -EACCES);
		test_assert_sentence("of 18 reads are missing: ");
		assert_int_equal(slot.error, -EACCES);
		assert_int_equal(slot.missing, left);
		assert_int_equal(pier_channel_outstanding(channel), 0);
		expect_result(pier_ring_uses(ring, channel), 0);
		from = source();
		expect_result(pier_ring_retry(ring, slot.number, &from, 1), -EPIPE);
		expect_result(pier_ring_missing(ring, slot.number, missing, 18),
			      (int)left);
		for (uint32_t i = 0; i < left; i++)
			assert_int_equal(missing[i], 18 - left + i);
		reconnect(MANY, 1u << 30);
		from = source();
		expect_ok(pier_ring_retry(ring, slot.number, &from, 1));
		expect_result(pier_ring_retry(ring, slot.number, &from, 1), -EBUSY);
		assert_int_equal(fake.logged, left);
		expect_read(0, slot.offset + (18 - left) * 10, (18 - left) * 20, 10);
		complete(fake.sends, IBV_WC_SUCCESS);
		expect_next(slot.number);
		expect_result(pier_ring_retry(ring, slot.number, &from, 1), -ENOENT);
		reconnect(DEPTH, 1u << 30);
	}
}

/* All fills of a channel fail with its first error, and can be continued in any order. */
static void all_fills_of_a_channel_fail(void **state)
{
	struct pier_ring_source from;

	(void)state;
	for (int i = 0; i < 3; i++)
		expect_ok(begin_reads(6, 0));
	complete(1, IBV_WC_RETRY_EXC_ERR);
	complete(fake.sends, IBV_WC_WR_FLUSH_ERR);
	expect_result(pier_ring_progress(ring), 1);
	assert_int_equal(ring_status().ended, 3);
	reconnect(MANY, 1u << 30);
	from = source();
	for (uint32_t i = 3; i > 0; i--)
		expect_ok(pier_ring_retry(ring, i - 1, &from, 1));
	complete(fake.sends, IBV_WC_SUCCESS);
	for (uint32_t i = 0; i < 3; i++)
		expect_next(i);
}

/* The channel breaks before a fill has posted anything: it fails with the cause, too. */
static void unposted_fill_fails_with_the_error_of_the_channel(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++)
		expect_ok(begin_reads(DEPTH, 0));
	complete(1, IBV_WC_REM_ACCESS_ERR);
	complete(fake.sends, IBV_WC_WR_FLUSH_ERR);
	for (uint32_t i = 0; i < 3; i++) {
		expect_result(pier_ring_next(ring, 0, &slot), -EACCES);
		assert_int_equal(slot.number, i);
		expect_ok(pier_ring_release(ring, &slot));
	}
}

/* Reads of two connections of one channel: each fill fails with its own error. */
static void reads_after_a_reset_fail_with_their_own_error(void **state)
{
	struct pier_endpoint next = peer;

	(void)state;
	next.qpn++;
	expect_ok(begin_reads(6, 0));
	expect_ok(begin_reads(6, 0));
	assert_in_range(fake.sends, 1, 11);
	expect_ok(pier_channel_reset(channel));
	expect_ok(pier_channel_connect(channel, &next));
	expect_result(pier_ring_next(ring, 0, &slot), -ECANCELED);
	expect_ok(pier_ring_release(ring, &slot));
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(fake.sends, 6);
	complete(1, IBV_WC_REM_ACCESS_ERR);
	complete(fake.sends, IBV_WC_WR_FLUSH_ERR);
	expect_result(pier_ring_next(ring, 0, &slot), -EACCES);
}

static void timeouts_stop_nothing(void **state)
{
	(void)state;
	expect_ok(begin_reads(4, 0));
	expect_result(pier_ring_next(ring, 0, &slot), 0);
	expect_result(pier_ring_next(ring, BRIEF, &slot), -ETIMEDOUT);
	assert_int_equal(slot.error, 0);
	expect_result(pier_ring_wait(ring, BRIEF), -ETIMEDOUT);
	test_assert_sentence("nothing new within 20 ms");
	expect_result(pier_ring_next(ring, -2, &slot), -EINVAL);
	assert_int_equal(slot.error, 0);
	assert_int_equal(fake.sends, 4);
	complete(4, IBV_WC_SUCCESS);
	expect_next(0);
}

/* Its flush does not come for a second. */
static void dead_channel_does_not_delay_a_step(void **state)
{
	(void)state;
	expect_ok(pier_ring_destroy(ring));
	make_ring(BRIEF);
	expect_ok(begin_reads(18, 0));
	fake.never_flushes = true;
	manual_clock_advance(BRIEF);
	expect_result(pier_ring_next(ring, 0, &slot), 0);
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_ring_uses(ring, channel), 1);
	expect_result(pier_ring_next(ring, 0, &slot), 0);
	manual_clock_advance(1000);
	expect_result(pier_ring_next(ring, 0, &slot), -EHOSTUNREACH);
	assert_int_equal(pier_ring_uses(ring, channel), 0);
	assert_int_equal(fake.state, IBV_QPS_RESET);
}

static void stops_a_channel_that_stalls(void **state)
{
	(void)state;
	expect_ok(pier_ring_destroy(ring));
	make_ring(BRIEF);
	expect_ok(begin_reads(18, 0));
	complete(4, IBV_WC_SUCCESS);
	expect_result(pier_ring_next(ring, PATIENT, &slot), -EHOSTUNREACH);
	test_assert_sentence("14 of 18 reads are missing");
	test_assert_sentence("no request completed within 20 ms");
	assert_int_equal(slot.error, -EHOSTUNREACH);
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_result(begin_reads(1, 0), -EPIPE);
}

/* The flush of the first channel does not arrive. */
static void other_channels_go_on_while_one_is_stopped(void **state)
{
	struct pier_ring_read reads[3 * DEPTH];
	struct pier_channel_attr channel_attr;
	struct pier_ring_source sources[2];
	struct pier_cq_attr cq_attr;
	struct pier_cq *cq;

	(void)state;
	pier_cq_attr_init(&cq_attr);
	expect_ok(pier_cq_create(&fake.pd, &cq_attr, &cq));
	pier_channel_attr_init(&channel_attr);
	channel_attr.max_send_wr = DEPTH;
	channel_attr.cq = cq;
	for (int i = 0; i < 2; i++) {
		sources[i] = source();
		expect_ok(pier_channel_create(&fake.pd, &channel_attr,
					      &sources[i].channel));
		expect_ok(pier_channel_connect(sources[i].channel, &peer));
	}
	for (uint32_t i = 0; i < 3 * DEPTH; i++)
		reads[i] = (struct pier_ring_read){ .source = i >= DEPTH,
						    .offset = (uint64_t)i * 10,
						    .length = 10 };
	fake.never_flushes = true;
	expect_ok(pier_ring_fill(ring, sources, 2, reads, 3 * DEPTH, NULL));
	assert_int_equal(fake.sends, 2 * DEPTH);
	/* The last reads of the first chunks. */
	fake_complete(fake.send_ids[DEPTH + DEPTH / 2 - 1], IBV_WC_SUCCESS,
		      IBV_WC_RDMA_READ, 10);
	fake_complete(fake.send_ids[DEPTH / 2 - 1], IBV_WC_REM_ACCESS_ERR,
		      IBV_WC_RDMA_READ, 10);
	expect_result(pier_ring_progress(ring), 0);
	assert_int_equal(pier_channel_error(sources[0].channel, NULL, 0), -EACCES);
	assert_true(pier_channel_outstanding(sources[0].channel) > 0);
	assert_int_equal(ring_status().bytes, DEPTH / 2 * 10);
	manual_clock_advance(1000);
	expect_result(pier_ring_progress(ring), 0);
	assert_int_equal(pier_channel_outstanding(sources[0].channel), 0);
	while (pier_ring_progress(ring) == 0)
		complete(fake.sends, IBV_WC_SUCCESS);
	expect_result(pier_ring_next(ring, 0, &slot), -EACCES);
	assert_int_equal(slot.missing, DEPTH);
	expect_ok(pier_channel_error(sources[1].channel, NULL, 0));
	expect_ok(pier_ring_release(ring, &slot));
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_destroy(sources[i].channel));
	expect_ok(pier_cq_destroy(cq));
}

/* Others fill the send queue: their channel is left alone. */
static void fails_if_others_fill_the_queue(void **state)
{
	struct pier_scatter element = { 0x10000, 1, 0x11 };
	struct pier_ring_source from = source();
	struct pier_work works[DEPTH];

	(void)state;
	expect_ok(pier_ring_destroy(ring));
	make_ring(BRIEF);
	for (int i = 0; i < DEPTH; i++)
		expect_ok(
			pier_channel_post_read(channel, &element, 1, &target, &works[i]));
	expect_ok(begin_reads(1, 0));
	expect_result(pier_ring_next(ring, PATIENT, &slot), -EAGAIN);
	test_assert_sentence("full of other requests for 20 ms");
	assert_int_equal(fake.state, IBV_QPS_RTS);
	complete(DEPTH, IBV_WC_SUCCESS);
	for (int i = 0; i < DEPTH; i++)
		expect_result(pier_work_poll(channel, works[i], NULL), 1);
	expect_ok(pier_ring_retry(ring, 0, &from, 1));
	complete(1, IBV_WC_SUCCESS);
	expect_next(0);
}

/* Requests of others complete, and nobody asks for their results yet. */
static void waits_for_others(void **state)
{
	struct pier_scatter element = { 0x10000, 1, 0x11 };
	struct pier_work works[8 * DEPTH];
	int count = 0;

	(void)state;
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_read(channel, &element, 1, &target,
						 &works[count++]));
	expect_ok(begin_reads(4, 0));
	assert_int_equal(fake.sends, DEPTH);
	complete(DEPTH, IBV_WC_SUCCESS);
	expect_result(pier_ring_progress(ring), 0);
	assert_int_equal(fake.sends, 4);
	complete(4, IBV_WC_SUCCESS);
	expect_next(0);
	/* The queue is empty, but keeps as many results as it can. */
	while (pier_channel_post_read(channel, &element, 1, &target, &works[count]) ==
	       0) {
		complete(1, IBV_WC_SUCCESS);
		assert_in_range(++count, 0, 8 * DEPTH - 1);
	}
	expect_ok(begin_reads(4, 0));
	expect_result(pier_ring_next(ring, BRIEF, &slot), -ETIMEDOUT);
	assert_int_equal(fake.sends, 0);
	while (count > 0)
		expect_result(pier_work_poll(channel, works[--count], NULL), 1);
	expect_result(pier_ring_progress(ring), 0);
	complete(4, IBV_WC_SUCCESS);
	expect_next(1);
}

/* What was posted arrives, and the channel still works. */
static void fails_if_posting_fails(void **state)
{
	(void)state;
	fake.fail_call = fake.calls + 5;
	expect_ok(begin_reads(18, 0));
	assert_int_equal(fake.sends, 4);
	expect_result(pier_ring_progress(ring), 0);
	complete(4, IBV_WC_SUCCESS);
	expect_result(pier_ring_next(ring, PATIENT, &slot), -ENOSPC);
	assert_int_equal(slot.missing, 14);
	assert_int_equal(fake.state, IBV_QPS_RTS);
}

/* A chunk of which the device took a part has no completion to wait for. */
static void stops_if_the_device_takes_half_a_chunk(void **state)
{
	(void)state;
	fake.fail_call = fake.calls + 6;
	expect_ok(begin_reads(18, 0));
	expect_result(pier_ring_next(ring, PATIENT, &slot), -ENOSPC);
	assert_int_equal(slot.missing, 18);
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_channel_outstanding(channel), 0);
}

static void stops_if_polling_fails(void **state)
{
	(void)state;
	expect_ok(begin_reads(4, 0));
	fake.poll_error = -1;
	expect_result(pier_ring_next(ring, PATIENT, &slot), -EIO);
	assert_int_equal(slot.missing, 4);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	fake.poll_error = 0;
}

/* The handle of a chunk is lost, so its reads may not have arrived. */
static void reads_with_lost_handles_are_missing(void **state)
{
	struct pier_work work;

	(void)state;
	expect_ok(begin_reads(4, 0));
	work.id = fake.send_ids[3];
	complete(4, IBV_WC_SUCCESS);
	expect_result(pier_work_poll(channel, work, NULL), 1);
	expect_result(pier_ring_next(ring, PATIENT, &slot), -ESTALE);
	assert_int_equal(slot.missing, 4);
}

/* Not even the flush arrives. */
static void is_destroyed_with_a_lost_nic(void **state)
{
	(void)state;
	expect_ok(pier_ring_destroy(ring));
	make_ring(BRIEF);
	fake.never_flushes = true;
	expect_ok(begin_reads(18, 0));
	expect_ok(pier_ring_destroy(ring));
	assert_int_equal(pier_channel_outstanding(channel), 0);
	make_ring(BRIEF);
}

#define ring_test(body) cmocka_unit_test_setup_teardown(body, setup_ring, teardown_ring)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ring_test(rings_once_for_32_reads),
		ring_test(posts_as_many_as_there_is_room_for),
		ring_test(posts_fills_in_the_order_of_their_beginning),
		ring_test(splits_reads),
		ring_test(repeats_missing_reads),
		ring_test(all_fills_of_a_channel_fail),
		ring_test(unposted_fill_fails_with_the_error_of_the_channel),
		ring_test(reads_after_a_reset_fail_with_their_own_error),
		ring_test(timeouts_stop_nothing),
		ring_test(dead_channel_does_not_delay_a_step),
		ring_test(stops_a_channel_that_stalls),
		ring_test(other_channels_go_on_while_one_is_stopped),
		ring_test(fails_if_others_fill_the_queue),
		ring_test(waits_for_others),
		ring_test(fails_if_posting_fails),
		ring_test(stops_if_the_device_takes_half_a_chunk),
		ring_test(stops_if_polling_fails),
		ring_test(reads_with_lost_handles_are_missing),
		ring_test(is_destroyed_with_a_lost_nic),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_STREAM_FIXTURE_H
#define UNIT_STREAM_FIXTURE_H

#include "bounce_fixture.h"

#include "transfer/ends.h"

/*
 * Streams, over soft0: both ends with bounce buffers or without. One thread fills, uses
 * and drives both, in steps of random size; the byte at each position is known.
 */

enum {
	BLOCK = PIER_STREAM_BLOCK,
	SIZE = 9 * CHUNK, /* no power of two, and less than the memory */
};

struct flow {
	uint64_t length, filled, used;
	bool finished;
	int sent, came; /* results of the last calls */
};

static inline uint8_t byte_at(uint64_t position)
{
	return (uint8_t)(position * 31 + position / BLOCK * 7 + position / SIZE);
}

static inline void fill_block(uint64_t position)
{
	uint8_t block[BLOCK];

	for (uint64_t i = 0; i < BLOCK; i++)
		block[i] = byte_at(position + i);
	expect_ok(pier_buffer_copy_to(fixture.here.buffer, GUARD + position % SIZE, block,
				      BLOCK));
}

static inline void use_block(uint64_t position)
{
	uint8_t block[BLOCK];

	expect_ok(pier_buffer_copy_from(fixture.there.buffer, GUARD + position % SIZE,
					block, BLOCK));
	for (uint64_t i = 0; i < BLOCK; i++)
		if (block[i] != byte_at(position + i))
			fail_msg("byte %llu of the stream is wrong",
				 (unsigned long long)(position + i));
}

static inline uint64_t at_random(uint64_t blocks)
{
	return test_random_next(&fixture.random) % (blocks + 1) * BLOCK;
}

/* The objects of the last test go before their channels. */
static inline void make_ends(uint32_t rails, bool here, bool there)
{
	expect_ok(pier_transfer_destroy(fixture.transfer));
	expect_ok(pier_receiver_destroy(fixture.receiver));
	fixture.transfer = NULL;
	fixture.receiver = NULL;
	make_rails(rails, here, there);
}

static inline void begin_stream(uint32_t rails, int stall_ms)
{
	struct pier_transfer_attr sender = attr_of(rails, 0);
	struct pier_receiver_attr receiver;

	sender.flags = PIER_TRANSFER_ANNOUNCE;
	sender.stream_size = SIZE;
	sender.stall_ms = stall_ms;
	pier_receiver_attr_init(&receiver);
	receiver.rails = fixture.receiver_rails;
	receiver.rail_count = rails;
	receiver.stream_size = SIZE;
	receiver.stall_ms = stall_ms;
	expect_ok(pier_receiver_create(&receiver, &fixture.receiver));
	begin(&sender);
}

/* At most `most` bytes. */
static inline void fill_some(struct flow *flow, uint64_t most)
{
	uint64_t limit = pier_transfer_limit(fixture.transfer);
	uint64_t end = flow->filled + most;

	if (flow->finished)
		return;
	if (end > limit)
		end = limit;
	if (end > flow->length)
		end = flow->length;
	for (uint64_t at = flow->filled; at < end; at += BLOCK)
		fill_block(at);
	flow->filled = end;
	expect_ok(pier_transfer_extend(fixture.transfer, end));
	flow->finished = end == flow->length;
	if (flow->finished)
		expect_ok(pier_transfer_finish(fixture.transfer));
}

static inline void use_some(struct flow *flow, uint64_t most)
{
	uint64_t end;

	expect_ok(pier_receiver_arrived(fixture.receiver, &end));
	assert_in_range(end, flow->used, flow->filled);
	if (end > flow->used + most)
		end = flow->used + most;
	for (; flow->used < end; flow->used += BLOCK)
		use_block(flow->used);
	expect_ok(pier_receiver_release(fixture.receiver, end));
}

static inline void drive_once(struct flow *flow)
{
	flow->sent = pier_transfer_progress(fixture.transfer);
	flow->came = pier_receiver_progress(fixture.receiver);
}

static inline void move_once(struct flow *flow)
{
	fill_some(flow, at_random(12));
	drive_once(flow);
	use_some(flow, at_random(12));
}

static inline void move_all(struct flow *flow)
{
	while (flow->sent == 0 || flow->came == 0)
		move_once(flow);
	expect_result(pier_transfer_progress(fixture.transfer), 1);
	expect_result(pier_receiver_progress(fixture.receiver), 1);
	assert_int_equal(flow->used, flow->length);
	assert_int_equal(status().done, flow->length);
}

/* Guard bytes before and behind the buffer, at both ends. */
static inline void expect_guards(const struct side *side)
{
	static uint8_t found[AREA];

	expect_ok(pier_buffer_copy_from(side->buffer, 0, found, AREA));
	assert_memory_equal(found, side->image, GUARD);
	assert_memory_equal(found + GUARD + SIZE, side->image + GUARD + SIZE,
			    AREA - GUARD - SIZE);
}

static inline void drive_to_both_ends(struct flow *flow)
{
	flow->sent = flow->came = 0;
	while (flow->sent == 0 || flow->came == 0)
		drive_once(flow);
}

static inline void reconnect(uint32_t rails)
{
	for (uint32_t i = 0; i < rails; i++) {
		expect_ok(pier_channel_reset(fixture.here.channels[i]));
		expect_ok(pier_channel_reset(fixture.there.channels[i]));
	}
	for (uint32_t i = 0; i < rails; i++) {
		struct pier_endpoint here, there;

		expect_ok(pier_channel_endpoint(fixture.here.channels[i], &here));
		expect_ok(pier_channel_endpoint(fixture.there.channels[i], &there));
		expect_ok(pier_channel_connect(fixture.here.channels[i], &there));
		expect_ok(pier_channel_connect(fixture.there.channels[i], &here));
	}
}

#endif

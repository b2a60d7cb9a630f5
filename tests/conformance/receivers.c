/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/*
 * Transfers that announce their chunks, and receivers at the other end. One thread drives
 * both. The first rail is the world's channel, the second is made here.
 */

enum {
	CHUNK = 8192,
	HERE = 1000, /* offset of the bytes in the area of a; THERE: in that of b */
	THERE = 4097,
	LENGTH = AREA_LENGTH - THERE - 999,
	PARTS = 2, /* of the remote vector */
	RAILS = 2,
	BUFFER = 23 * 4096, /* of a stream */
	STREAM = 4 * BUFFER + 7 * 4096,
};

struct rails {
	struct pier_channel *near, *far; /* of the second rail */
	struct pier_remote parts[PARTS];
	struct pier_rail list[RAILS];
	struct pier_receiver_rail receivers[RAILS];
	struct pier_transfer *transfer;
	struct pier_receiver *receiver;
};

static void add_channels(struct world *world, struct rails *rails)
{
	struct pier_channel *near = world->a.channel, *far = world->b.channel;

	expect_ok(end_prepare(&world->a, NULL));
	expect_ok(end_prepare(&world->b, NULL));
	expect_ok(ends_connect(&world->a, &world->b));
	rails->near = world->a.channel;
	rails->far = world->b.channel;
	world->a.channel = near;
	world->b.channel = far;
}

static struct rails make_rails(struct world *world)
{
	static const size_t ends[PARTS + 1] = { 0, THERE + 5 * 4096, AREA_LENGTH };
	struct rails rails = { NULL };

	for (int i = 0; i < PARTS; i++)
		rails.parts[i] = remote_at(&world->b.area, ends[i],
					   ends[i + 1] - ends[i]);
	add_channels(world, &rails);
	return rails;
}

static void name_rails(const struct world *world, struct rails *rails)
{
	for (int i = 0; i < RAILS; i++) {
		rails->list[i] = (struct pier_rail){
			.channel = i ? rails->near : world->a.channel,
			.mr = world->a.area.mr,
			.offset = HERE,
			.parts = rails->parts,
			.count = PARTS,
			.remote_offset = THERE,
		};
		rails->receivers[i] = (struct pier_receiver_rail){
			.channel = i ? rails->far : world->b.channel,
			.mr = world->b.area.mr,
			.offset = THERE,
		};
	}
}

static void close_rails(struct rails *rails)
{
	expect_ok(pier_transfer_destroy(rails->transfer));
	expect_ok(pier_receiver_destroy(rails->receiver));
	expect_ok(pier_channel_destroy(rails->near));
	expect_ok(pier_channel_destroy(rails->far));
}

static void begin(struct rails *rails, uint32_t count, uint64_t length)
{
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	attr.rails = rails->list;
	attr.rail_count = count;
	attr.length = length;
	attr.chunk = CHUNK;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	expect_ok(pier_transfer_destroy(rails->transfer));
	expect_ok(pier_transfer_create(&attr, &rails->transfer));
}

static void begin_receiver(struct rails *rails, uint32_t count, uint64_t length)
{
	struct pier_receiver_attr attr;

	pier_receiver_attr_init(&attr);
	attr.rails = rails->receivers;
	attr.rail_count = count;
	attr.length = length;
	expect_ok(pier_receiver_create(&attr, &rails->receiver));
}

/* Drives both until they have ended, and returns their results. */
static void drive(struct rails *rails, int *ret_sent, int *ret_came)
{
	*ret_sent = *ret_came = 0;
	while (*ret_sent == 0 || *ret_came == 0) {
		*ret_sent = pier_transfer_progress(rails->transfer);
		*ret_came = pier_receiver_progress(rails->receiver);
	}
}

static void expect_received(struct world *world, struct rails *rails, uint64_t length)
{
	struct pier_receiver_status status;
	int sent, came;

	drive(rails, &sent, &came);
	expect_result(pier_transfer_progress(rails->transfer), 1);
	expect_result(pier_receiver_progress(rails->receiver), 1);
	pier_receiver_query(rails->receiver, &status, sizeof(status));
	assert_int_equal(status.done, length);
	image_copy(&world->b.area, THERE, &world->a.area, HERE, length);
	world_expect(world);
}

/* Receivers of different lengths use the same channels, one after the other. */
static void receiver_copies_announced_chunks(void **state)
{
	static const uint64_t lengths[] = { 0, 1, 4096, CHUNK, CHUNK + 1, LENGTH };
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);

	name_rails(world, &rails);
	begin_receiver(&rails, RAILS, 0);
	expect_result(pier_receiver_progress(rails.receiver), 1);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		area_shuffle(world, &world->a.area);
		area_shuffle(world, &world->b.area);
		expect_ok(pier_receiver_next(rails.receiver, rails.receivers, RAILS,
					     lengths[i]));
		begin(&rails, RAILS, lengths[i]);
		expect_received(world, &rails, lengths[i]);
	}
	close_rails(&rails);
}

/* The receiving end of a rail stops in the middle, and the other rail moves the rest. */
static void repeated_chunk_is_counted_once(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct pier_receiver_status status = { .done = 0 };

	name_rails(world, &rails);
	begin_receiver(&rails, RAILS, LENGTH);
	begin(&rails, RAILS, LENGTH);
	while (status.done < LENGTH / 4) {
		expect_result(pier_transfer_progress(rails.transfer) < 0, 0);
		expect_result(pier_receiver_progress(rails.receiver) < 0, 0);
		pier_receiver_query(rails.receiver, &status, sizeof(status));
	}
	expect_ok(pier_channel_cancel(rails.far));
	expect_received(world, &rails, LENGTH);
	close_rails(&rails);
}

/*
 * The channels that failed are reset and used again. Chunks that had arrived stay
 * counted.
 */
static void receiver_resumes_on_reset_channels(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct pier_receiver_status status = { .done = 0 };
	int sent, came;

	name_rails(world, &rails);
	begin_receiver(&rails, 1, LENGTH);
	begin(&rails, 1, LENGTH);
	while (status.done < LENGTH / 4) {
		expect_result(pier_transfer_progress(rails.transfer) < 0, 0);
		expect_result(pier_receiver_progress(rails.receiver) < 0, 0);
		pier_receiver_query(rails.receiver, &status, sizeof(status));
	}
	expect_ok(pier_channel_cancel(world->b.channel));
	drive(&rails, &sent, &came);
	assert_true(sent < 0 && came < 0);
	expect_ok(pier_channel_reset(world->a.channel));
	expect_ok(pier_channel_reset(world->b.channel));
	expect_ok(ends_connect(&world->a, &world->b));
	expect_ok(pier_receiver_resume(rails.receiver, rails.receivers, 1));
	expect_ok(pier_transfer_resume(rails.transfer, rails.list, 1));
	expect_received(world, &rails, LENGTH);
	close_rails(&rails);
}

/* No transfer of this length has this chunk number. Only the write itself arrives. */
static void invalid_chunk_number_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct pier_gather source = gather_at(&world->a.area, HERE, 4096);
	struct pier_remote target = remote_at(&world->b.area, THERE, 4096);

	name_rails(world, &rails);
	begin_receiver(&rails, RAILS, LENGTH);
	expect_ok(test_channel_write_imm(rails.near, &source, 1, &target, 0x7fffffff,
					 PATIENT));
	expect_result(pier_receiver_wait(rails.receiver, PATIENT), -EBADMSG);
	image_copy(&world->b.area, THERE, &world->a.area, HERE, 4096);
	world_expect(world);
	close_rails(&rails);
}

static void begin_stream(struct rails *rails)
{
	struct pier_receiver_attr receiver;
	struct pier_transfer_attr attr;

	pier_receiver_attr_init(&receiver);
	receiver.rails = rails->receivers;
	receiver.rail_count = RAILS;
	receiver.stream_size = BUFFER;
	expect_ok(pier_receiver_create(&receiver, &rails->receiver));
	pier_transfer_attr_init(&attr);
	attr.rails = rails->list;
	attr.rail_count = RAILS;
	attr.chunk = CHUNK;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.stream_size = BUFFER;
	expect_ok(pier_transfer_create(&attr, &rails->transfer));
}

/* The source is the same in each lap around the buffer, and a rail fails in the third. */
static void stream_moves_more_than_its_buffer(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	uint64_t filled = 0, used = 0, end;
	int sent = 0, came = 0;
	bool finished = false;

	name_rails(world, &rails);
	begin_stream(&rails);
	while (sent == 0 || came == 0) {
		uint64_t limit = pier_transfer_limit(rails.transfer);

		filled = limit < STREAM ? limit : STREAM;
		if (!finished)
			expect_ok(pier_transfer_extend(rails.transfer, filled));
		finished = filled == STREAM;
		if (finished)
			expect_ok(pier_transfer_finish(rails.transfer));
		if (used > 2 * BUFFER && !pier_channel_error(rails.far, NULL, 0))
			expect_ok(pier_channel_cancel(rails.far));
		sent = pier_transfer_progress(rails.transfer);
		came = pier_receiver_progress(rails.receiver);
		expect_ok(pier_receiver_arrived(rails.receiver, &end));
		assert_in_range(end, used, filled);
		used = end;
		expect_ok(pier_receiver_release(rails.receiver, used));
	}
	expect_result(pier_transfer_progress(rails.transfer), 1);
	expect_result(pier_receiver_progress(rails.receiver), 1);
	assert_int_equal(used, STREAM);
	image_copy(&world->b.area, THERE, &world->a.area, HERE, BUFFER);
	world_expect(world);
	close_rails(&rails);
}

int run_receiver_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(receiver_copies_announced_chunks),
		world_case(repeated_chunk_is_counted_once),
		world_case(receiver_resumes_on_reset_channels),
		world_case(invalid_chunk_number_is_refused),
		world_case(stream_moves_more_than_its_buffer),
	};

	return cmocka_run_group_tests_name("receivers", cases, NULL, NULL);
}

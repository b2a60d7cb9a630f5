/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/*
 * Transfers in chunks over one rail or several, some of which fail. The first rail is the
 * world's channel, the others are made here.
 */

enum {
	MORE_RAILS = 2,
	CHUNK = 5000,
	HERE = 1000, /* offset of the bytes in the area of a; THERE: in that of b */
	THERE = 4097,
	LENGTH = AREA_LENGTH - THERE - 999,
	PARTS = 3, /* of the remote vector */
};

struct rails {
	struct pier_channel *near[MORE_RAILS], *far[MORE_RAILS];
	struct pier_remote parts[PARTS];
	struct pier_rail list[1 + MORE_RAILS];
};

/* Adds a pair of channels besides those of the world. */
static void add_rail(struct world *world, struct rails *rails, int index)
{
	struct pier_channel *near = world->a.channel, *far = world->b.channel;

	expect_ok(end_prepare(&world->a, NULL));
	expect_ok(end_prepare(&world->b, NULL));
	expect_ok(ends_connect(&world->a, &world->b));
	rails->near[index] = world->a.channel;
	rails->far[index] = world->b.channel;
	world->a.channel = near;
	world->b.channel = far;
}

static struct rails make_rails(struct world *world)
{
	static const size_t ends[PARTS + 1] = { 0, THERE + 3 * CHUNK + 1,
						THERE + 9 * CHUNK, AREA_LENGTH };
	struct rails rails;

	for (int i = 0; i < PARTS; i++)
		rails.parts[i] = remote_at(&world->b.area, ends[i],
					   ends[i + 1] - ends[i]);
	for (int i = 0; i < MORE_RAILS; i++)
		add_rail(world, &rails, i);
	return rails;
}

static void close_rails(struct rails *rails)
{
	for (int i = 0; i < MORE_RAILS; i++) {
		expect_ok(pier_channel_destroy(rails->near[i]));
		expect_ok(pier_channel_destroy(rails->far[i]));
	}
}

static struct pier_transfer_attr attr_of(const struct world *world, struct rails *rails,
					 uint32_t count, uint64_t length)
{
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	for (uint32_t i = 0; i < count; i++)
		rails->list[i] = (struct pier_rail){
			.channel = i ? rails->near[i - 1] : world->a.channel,
			.mr = world->a.area.mr,
			.offset = HERE,
			.parts = rails->parts,
			.count = PARTS,
			.remote_offset = THERE,
		};
	attr.rails = rails->list;
	attr.rail_count = count;
	attr.length = length;
	attr.chunk = CHUNK;
	return attr;
}

static void expect_moved(struct world *world, uint64_t length, bool reading)
{
	if (reading)
		image_copy(&world->a.area, HERE, &world->b.area, THERE, length);
	else
		image_copy(&world->b.area, THERE, &world->a.area, HERE, length);
	world_expect(world);
}

static void move(struct world *world, struct pier_transfer_attr *attr)
{
	area_shuffle(world, &world->a.area);
	area_shuffle(world, &world->b.area);
	attr->direction = PIER_TRANSFER_WRITE;
	expect_ok(pier_transfer_run(attr, PATIENT));
	expect_moved(world, attr->length, false);
	area_shuffle(world, &world->a.area);
	attr->direction = PIER_TRANSFER_READ;
	expect_ok(pier_transfer_run(attr, PATIENT));
	expect_moved(world, attr->length, true);
}

static void transfer_moves_all_bytes(void **state)
{
	static const uint64_t lengths[] = { 0, 1, CHUNK - 1, CHUNK, CHUNK + 1, LENGTH };
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);

	for (uint32_t count = 1; count <= 1 + MORE_RAILS; count += MORE_RAILS) {
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			struct pier_transfer_attr attr = attr_of(world, &rails, count,
								 lengths[i]);

			move(world, &attr);
		}
	}
	close_rails(&rails);
}

static void transfer_compares_digests(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);

	for (uint32_t count = 1; count <= 1 + MORE_RAILS; count += MORE_RAILS) {
		struct pier_transfer_attr attr = attr_of(world, &rails, count, LENGTH);
		struct pier_transfer *transfer;
		int error;

		attr.flags = PIER_TRANSFER_DIGEST;
		error = pier_transfer_create(&attr, &transfer);
		if (error == -ELIBACC) {
			close_rails(&rails);
			world_skip("there is no libisal");
		}
		expect_ok(error);
		expect_ok(pier_transfer_destroy(transfer));
		move(world, &attr);
	}
	close_rails(&rails);
}

static int count_calls(void *context, uint64_t done, uint64_t length)
{
	uint64_t *last = context;

	if (done <= *last || done > length)
		return 1;
	*last = done;
	return 0;
}

static void progress_is_reported_and_announced(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct pier_transfer_attr attr = attr_of(world, &rails, 3, LENGTH);
	struct pier_result result;
	struct pier_work work;
	uint64_t last = 0;

	attr.progress = count_calls;
	attr.context = &last;
	attr.flags = PIER_TRANSFER_NOTIFY;
	attr.immediate = 0x8001fe02;
	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &work));
	expect_ok(pier_transfer_run(&attr, PATIENT));
	assert_int_equal(last, LENGTH);
	result = expect_end(world->b.channel, work, 0);
	assert_true(result.has_immediate);
	assert_int_equal(result.immediate, 0x8001fe02);
	assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
	expect_moved(world, LENGTH, false);
	close_rails(&rails);
}

/*
 * The progress callback stops the far ends of rails when half of the bytes have arrived.
 */
struct killer {
	struct pier_channel **first;
	int count;
};

static int kill_rails(void *context, uint64_t done, uint64_t length)
{
	struct killer *killer = context;

	for (int i = 0; i < killer->count && done >= length / 2; i++) {
		expect_ok(pier_channel_destroy(killer->first[i]));
		killer->first[i] = NULL;
	}
	return 0;
}

static void other_rails_take_over(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct pier_transfer_attr attr = attr_of(world, &rails, 3, LENGTH);
	struct killer killer = { rails.far, MORE_RAILS };

	attr.progress = kill_rails;
	attr.context = &killer;
	expect_ok(pier_transfer_run(&attr, PATIENT));
	expect_moved(world, LENGTH, false);
	close_rails(&rails);
}

static void resume(struct world *world, struct pier_transfer *transfer,
		   struct rails *rails)
{
	struct pier_transfer_status status;
	struct pier_rail_status rail;
	uint64_t missing;

	pier_transfer_query(transfer, &status, sizeof(status));
	assert_true(status.ended);
	assert_int_equal(status.in_flight, 0);
	assert_int_equal(status.working_rails, 0);
	assert_true(status.done >= LENGTH / 2 && status.done < LENGTH);
	missing = LENGTH - status.done;
	/* The only rail is now the world's channel, which has not been used yet. */
	attr_of(world, rails, 1, LENGTH);
	expect_ok(pier_transfer_resume(transfer, rails->list, 1));
	expect_result(pier_transfer_wait(transfer, PATIENT), 1);
	expect_ok(pier_transfer_query_rail(transfer, 0, &rail, sizeof(rail)));
	assert_int_equal(rail.done, missing);
}

static void transfer_resumes_after_all_rails_failed(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct killer killer = { rails.far, MORE_RAILS };

	for (int reading = 0; reading < 2; reading++) {
		struct pier_transfer_attr attr = attr_of(world, &rails, 3, LENGTH);
		struct pier_transfer *transfer;

		attr.rails = &rails.list[1];
		attr.rail_count = MORE_RAILS;
		attr.direction = reading ? PIER_TRANSFER_READ : PIER_TRANSFER_WRITE;
		attr.progress = kill_rails;
		attr.context = &killer;
		killer.count = MORE_RAILS;
		expect_ok(pier_transfer_create(&attr, &transfer));
		assert_true(pier_transfer_wait(transfer, PATIENT) < 0);
		killer.count = 0;
		resume(world, transfer, &rails);
		expect_ok(pier_transfer_destroy(transfer));
		expect_moved(world, LENGTH, reading);
		close_rails(&rails);
		rails = make_rails(world);
		area_shuffle(world, &world->b.area);
	}
	close_rails(&rails);
}

/*
 * The progress callback stops the far end of the only rail once, when half of the bytes
 * have arrived.
 */
static int stop_far_end(void *context, uint64_t done, uint64_t length)
{
	struct pier_channel **far = context;

	if (done >= length / 2 && *far) {
		expect_ok(pier_channel_cancel(*far));
		*far = NULL;
	}
	return 0;
}

/* The failed channel is reset, and the missing bytes follow over it. */
static void transfer_resumes_on_a_reset_channel(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct pier_transfer_attr attr = attr_of(world, &rails, 1, LENGTH);
	struct pier_channel *far = world->b.channel;
	struct pier_transfer *transfer;

	attr.progress = stop_far_end;
	attr.context = &far;
	expect_ok(pier_transfer_create(&attr, &transfer));
	assert_true(pier_transfer_wait(transfer, PATIENT) < 0);
	expect_ok(pier_channel_reset(world->a.channel));
	expect_ok(pier_channel_reset(world->b.channel));
	expect_ok(ends_connect(&world->a, &world->b));
	resume(world, transfer, &rails);
	expect_ok(pier_transfer_destroy(transfer));
	expect_moved(world, LENGTH, false);
	close_rails(&rails);
}

/*
 * A refusal by the peer breaks the rail. Nothing stays in flight, and nothing is written.
 */
static void refused_write_ends_the_transfer(void **state)
{
	struct world *world = world_connected(state);
	struct rails rails = make_rails(world);
	struct pier_transfer_attr attr = attr_of(world, &rails, 1, LENGTH);

	for (int i = 0; i < PARTS; i++)
		rails.parts[i].rkey ^= 0x5a5a5a5a;
	expect_result(pier_transfer_run(&attr, PATIENT), -EACCES);
	test_assert_sentence("0 of ");
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	world_expect(world);
	close_rails(&rails);
}

int run_transfer_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(transfer_moves_all_bytes),
		world_case(transfer_compares_digests),
		world_case(progress_is_reported_and_announced),
		world_case(other_rails_take_over),
		world_case(transfer_resumes_after_all_rails_failed),
		world_case(transfer_resumes_on_a_reset_channel),
		world_case(refused_write_ends_the_transfer),
	};

	return cmocka_run_group_tests_name("transfers", cases, NULL, NULL);
}

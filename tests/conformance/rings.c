/* SPDX-License-Identifier: BSD-3-Clause */
#include "cases.h"
#include "world.h"

/*
 * Rings whose slots lie in the area of a, filled from the area of b, which is described
 * in parts.
 */

enum {
	SLOTS = 3,
	SLOT_SIZE = 60001,
	BEGIN = 7, /* offset of the first slot */
	READS = 100,
	PARTS = 3,
};

struct stage {
	struct pier_remote parts[PARTS];
	struct pier_ring_source source;
	struct pier_ring *ring;
};

static struct stage set_stage(struct world *world)
{
	static const size_t ends[PARTS + 1] = { 0, 20011, 150000, AREA_LENGTH };
	struct pier_ring_attr attr;
	struct stage stage;

	for (int i = 0; i < PARTS; i++)
		stage.parts[i] = remote_at(&world->b.area, ends[i],
					   ends[i + 1] - ends[i]);
	stage.source = (struct pier_ring_source){ world->a.channel, NULL, PARTS };
	pier_ring_attr_init(&attr);
	attr.mr = world->a.area.mr;
	attr.offset = BEGIN;
	attr.slots = SLOTS;
	attr.slot_size = SLOT_SIZE;
	expect_ok(pier_ring_create(world->a.pd, &attr, &stage.ring));
	return stage;
}

/* Begin a fill of random reads with gaps, and note what it brings. */
static void begin_fill(struct world *world, struct stage *stage, uint32_t count)
{
	struct pier_ring_read reads[READS] = { { 0 } };
	uint32_t number;

	stage->source.parts = stage->parts;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t length = (uint32_t)test_random_below(&world->random, 500);

		reads[i] = (struct pier_ring_read){
			.offset = i * 600,
			.length = length,
			.remote_offset = test_random_below(&world->random,
							   AREA_LENGTH - length),
		};
	}
	expect_ok(pier_ring_fill(stage->ring, &stage->source, 1, reads, count, &number));
	for (uint32_t i = 0; i < count; i++)
		image_copy(&world->a.area, BEGIN + number * SLOT_SIZE + reads[i].offset,
			   &world->b.area, reads[i].remote_offset, reads[i].length);
}

static void return_slots(struct stage *stage, int count)
{
	struct pier_ring_slot slots[SLOTS];

	for (int i = 0; i < count; i++)
		expect_result(pier_ring_next(stage->ring, PATIENT, &slots[i]), 1);
	for (int i = 0; i < count; i++)
		expect_ok(pier_ring_release(stage->ring, &slots[count - 1 - i]));
}

static void ring_fills_slots(void **state)
{
	struct world *world = world_connected(state);
	struct stage stage = set_stage(world);

	for (int round = 0; round < 5; round++) {
		begin_fill(world, &stage, READS);
		begin_fill(world, &stage, 0);
		begin_fill(world, &stage, 33);
		return_slots(&stage, SLOTS);
		world_expect(world);
	}
	expect_ok(pier_ring_destroy(stage.ring));
}

/* A refusal breaks the channel; after a reset the missing reads follow. */
static void ring_continues_on_a_reset_channel(void **state)
{
	struct world *world = world_connected(state);
	struct stage stage = set_stage(world);
	struct pier_ring_slot slot;

	stage.parts[1].rkey ^= 0x5a5a5a5a;
	begin_fill(world, &stage, READS);
	assert_true(pier_ring_next(stage.ring, PATIENT, &slot) < 0);
	assert_in_range(slot.missing, 1, READS);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	stage.parts[1].rkey ^= 0x5a5a5a5a;
	expect_ok(pier_channel_reset(world->a.channel));
	expect_ok(pier_channel_reset(world->b.channel));
	expect_ok(ends_connect(&world->a, &world->b));
	expect_ok(pier_ring_retry(stage.ring, slot.number, &stage.source, 1));
	return_slots(&stage, 1);
	world_expect(world);
	expect_ok(pier_ring_destroy(stage.ring));
}

int run_ring_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(ring_fills_slots),
		world_case(ring_continues_on_a_reset_channel),
	};

	return cmocka_run_group_tests_name("rings", cases, NULL, NULL);
}

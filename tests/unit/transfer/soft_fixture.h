/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_TRANSFER_SOFT_FIXTURE_H
#define UNIT_TRANSFER_SOFT_FIXTURE_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

/* Two ends on soft0 with several channels between them, and memory with guards. */

enum {
	LENGTH = 1 << 20,
	GUARD = 8192, /* guard bytes before and behind the bytes that are moved */
	AREA = LENGTH + 2 * GUARD,
	CHUNK = 16 << 10,
	MAX_RAILS = 4,
	PARTS = 3, /* number of parts of the remote vector */
	PATIENT = 60000,
};

/* One end: memory, and the ends of the channels. */
struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	uint8_t *memory;
	struct pier_channel *channels[MAX_RAILS];
};

struct pair {
	struct side here, there;
	uint8_t *source, *target; /* their previous or expected contents */
	uint32_t rail_count;
	struct pier_remote parts[PARTS];
	struct pier_rail rails[MAX_RAILS];
	struct test_census before;
	struct test_random random;
};

static inline void open_side(struct side *side)
{
	void *memory;

	expect_ok(pier_device_open("soft0", &side->device));
	expect_ok(pier_pd_alloc(side->device, &side->pd));
	expect_ok(pier_buffer_alloc("memfd", AREA, &side->buffer));
	expect_ok(pier_buffer_map(side->buffer, &memory));
	side->memory = memory;
	expect_ok(pier_mr_reg_buffer(side->pd, side->buffer, 0, AREA, PIER_ACCESS_SHARED,
				     PIER_POLICY_DIRECT, &side->mr));
}

static inline void close_side(struct side *side)
{
	for (int i = 0; i < MAX_RAILS; i++)
		expect_ok(pier_channel_destroy(side->channels[i]));
	expect_ok(pier_mr_dereg(side->mr));
	expect_ok(pier_buffer_free(side->buffer));
	expect_ok(pier_pd_dealloc(side->pd));
	expect_ok(pier_device_close(side->device));
}

/* New ends for a rail, connected to each other. */
static inline void connect_rail(struct pair *pair, uint32_t index)
{
	struct pier_channel **a = &pair->here.channels[index];
	struct pier_channel **b = &pair->there.channels[index];
	struct pier_endpoint of_a, of_b;

	expect_ok(pier_channel_destroy(*a));
	expect_ok(pier_channel_destroy(*b));
	expect_ok(pier_channel_create(pair->here.pd, NULL, a));
	expect_ok(pier_channel_create(pair->there.pd, NULL, b));
	expect_ok(pier_channel_endpoint(*a, &of_a));
	expect_ok(pier_channel_endpoint(*b, &of_b));
	expect_ok(pier_channel_connect(*a, &of_b));
	expect_ok(pier_channel_connect(*b, &of_a));
	pair->rails[index] = (struct pier_rail){ .channel = *a,
						 .mr = pair->here.mr,
						 .offset = GUARD,
						 .parts = pair->parts,
						 .count = PARTS,
						 .remote_offset = GUARD };
}

static inline void fill(struct test_random *random, uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length; i += 8) {
		uint64_t value = test_random_next(random);

		memcpy(bytes + i, &value, 8);
	}
}

static inline void shuffle(struct pair *pair)
{
	fill(&pair->random, pair->source, AREA);
	fill(&pair->random, pair->target, AREA);
	memcpy(pair->here.memory, pair->source, AREA);
	memcpy(pair->there.memory, pair->target, AREA);
}

/* Describe the peer's memory in three parts, none of which ends with a chunk. */
static inline void describe_target(struct pair *pair)
{
	static const uint64_t ends[PARTS + 1] = { 0, GUARD + 3 * CHUNK + 1,
						  GUARD + 7 * CHUNK - 1, AREA };
	struct pier_remote whole;

	expect_ok(pier_mr_remote(pair->there.mr, &whole));
	for (int i = 0; i < PARTS; i++)
		expect_ok(pier_remote_sub(&whole, ends[i], ends[i + 1] - ends[i],
					  &pair->parts[i]));
}

static inline int setup(void **state)
{
	struct pair *pair = calloc(1, sizeof(*pair));

	pair->before = test_take_census();
	pair->random = test_random_start();
	pair->source = malloc(AREA);
	pair->target = malloc(AREA);
	open_side(&pair->here);
	open_side(&pair->there);
	describe_target(pair);
	shuffle(pair);
	*state = pair;
	return 0;
}

static inline int teardown(void **state)
{
	struct pair *pair = *state;
	struct test_census before = pair->before;

	close_side(&pair->here);
	close_side(&pair->there);
	free(pair->source);
	free(pair->target);
	free(pair);
	test_assert_census(&before);
	return 0;
}

static inline struct pier_transfer_attr attr_of(struct pair *pair, uint32_t rails,
						uint64_t length)
{
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	for (uint32_t i = 0; i < rails; i++)
		connect_rail(pair, i);
	attr.rails = pair->rails;
	attr.rail_count = rails;
	attr.length = length;
	attr.chunk = CHUNK;
	return attr;
}

static inline void expect_image(const struct side *side, const uint8_t *image)
{
	if (memcmp(side->memory, image, AREA) == 0)
		return;
	for (size_t i = 0; i < AREA; i++)
		if (side->memory[i] != image[i])
			fail_msg("byte %zu - %d of %d is not what it must be", i, GUARD,
				 LENGTH);
}

/* Expect this many bytes to have arrived, and nothing else to have changed. */
static inline void expect_moved(struct pair *pair, uint64_t length, bool reading)
{
	if (reading)
		memcpy(pair->source + GUARD, pair->target + GUARD, length);
	else
		memcpy(pair->target + GUARD, pair->source + GUARD, length);
	expect_image(&pair->here, pair->source);
	expect_image(&pair->there, pair->target);
}

static inline struct pier_rail_status rail_status(const struct pier_transfer *transfer,
						  uint32_t index)
{
	struct pier_rail_status status;

	expect_ok(pier_transfer_query_rail(transfer, index, &status, sizeof(status)));
	return status;
}

#define transfer_test(body) cmocka_unit_test_setup_teardown(body, setup, teardown)

#endif

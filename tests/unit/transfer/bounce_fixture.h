/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_STAGING_FIXTURE_H
#define UNIT_STAGING_FIXTURE_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/gpu.h"
#include "tests/support/random.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

/*
 * Two ends on soft0 with memory that the CPU cannot reach, and channels between them.
 * Each rail has its own region at either end, and thus its own bounce buffers.
 */

enum {
	CHUNK = 16 << 10,
	LENGTH = 20 * CHUNK + 777,
	GUARD = 8192, /* guard bytes before and behind the bytes that are moved */
	AREA = GUARD + LENGTH + GUARD,
	MAX_RAILS = 4,
	PATIENT = 60000,
	BRIEF = 20,
};

struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mrs[MAX_RAILS];
	struct pier_channel *channels[MAX_RAILS];
	uint8_t *image; /* the contents of the buffer, or the expected ones */
};

static struct {
	char folder[32];
	struct gpu_control *gpu;
	struct side here, there;
	struct pier_channel_attr attr; /* number of channels created */
	struct pier_remote remotes[MAX_RAILS];
	struct pier_rail rails[MAX_RAILS];
	struct pier_receiver_rail receiver_rails[MAX_RAILS];
	struct pier_transfer *transfer;
	struct pier_receiver *receiver;
	struct test_census before;
	struct test_random random;
} fixture = { .folder = "/tmp/pier-unit-XXXXXX" };

static inline int make_folder(void **state)
{
	(void)state;
	fixture.gpu = test_load_gpu(fixture.folder);
	fixture.random = test_random_start();
	return 0;
}

static inline int remove_folder(void **state)
{
	(void)state;
	return test_remove_gpu(fixture.folder);
}

static inline void open_side(struct side *side, const char *device)
{
	expect_ok(pier_device_open(device, &side->device));
	expect_ok(pier_pd_alloc(side->device, &side->pd));
	expect_ok(pier_buffer_alloc("gpu", AREA, &side->buffer));
	side->image = malloc(AREA);
}

static inline void close_side(struct side *side)
{
	for (int i = 0; i < MAX_RAILS; i++) {
		expect_ok(pier_channel_destroy(side->channels[i]));
		expect_ok(pier_mr_dereg(side->mrs[i]));
	}
	expect_ok(pier_buffer_free(side->buffer));
	expect_ok(pier_pd_dealloc(side->pd));
	expect_ok(pier_device_close(side->device));
	free(side->image);
	*side = (struct side){ 0 };
}

static inline int setup(void **state)
{
	(void)state;
	memset(fixture.gpu, 0, sizeof(*fixture.gpu));
	fixture.before = test_take_census();
	pier_channel_attr_init(&fixture.attr);
	fixture.attr.rnr_retry_count = 7;
	fixture.transfer = NULL;
	fixture.receiver = NULL;
	open_side(&fixture.here, "soft0");
	open_side(&fixture.there, "soft0");
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	fixture.gpu->before_copy = NULL;
	expect_ok(pier_transfer_destroy(fixture.transfer));
	expect_ok(pier_receiver_destroy(fixture.receiver));
	close_side(&fixture.here);
	close_side(&fixture.there);
	assert_int_equal(fixture.gpu->open_exports, 0);
	assert_int_equal(fixture.gpu->locks, fixture.gpu->unlocks);
	assert_int_equal(fixture.gpu->live, 0);
	test_assert_census(&fixture.before);
	return 0;
}

/* A region of all of an end's memory; it replaces the previous one. */
static inline void reg(struct side *side, uint32_t index, bool bounced)
{
	expect_ok(pier_mr_dereg(side->mrs[index]));
	fixture.gpu->export_error = bounced ? EPERM : 0;
	expect_ok(pier_mr_reg_buffer(side->pd, side->buffer, 0, AREA, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &side->mrs[index]));
	assert_int_equal(pier_mr_path(side->mrs[index]),
			 bounced ? PIER_PATH_BOUNCE : PIER_PATH_DMABUF);
	fixture.gpu->export_error = 0;
}

/*
 * The region of a rail: host memory, followed by segments of the device with bounce
 * buffers.
 */
static inline void reg_parts(struct side *side, uint8_t *plain, size_t length)
{
	struct pier_mr_attr attr;
	struct pier_mr_range ranges[2];

	pier_mr_attr_init(&attr);
	ranges[0] = pier_mr_range_host(plain, length);
	ranges[1] = pier_mr_range_buffer(side->buffer, GUARD + length,
					 AREA - GUARD - length);
	attr.ranges = ranges;
	attr.range_count = 2;
	attr.access = PIER_ACCESS_SHARED;
	attr.policy = PIER_POLICY_BOUNCE;
	fixture.gpu->seams = fixture.gpu->no_pcie = true;
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	expect_ok(pier_mr_reg_attr(side->pd, &attr, &side->mrs[0]));
	assert_int_equal(pier_mr_path(side->mrs[0]), PIER_PATH_MIXED);
	assert_int_equal(pier_mr_parts(side->mrs[0]), 4);
}

/* New ends for a rail, connected to each other. */
static inline void connect_rail(uint32_t index)
{
	struct pier_channel **a = &fixture.here.channels[index];
	struct pier_channel **b = &fixture.there.channels[index];
	struct pier_endpoint of_a, of_b;

	expect_ok(pier_channel_destroy(*a));
	expect_ok(pier_channel_destroy(*b));
	expect_ok(pier_channel_create(fixture.here.pd, &fixture.attr, a));
	expect_ok(pier_channel_create(fixture.there.pd, &fixture.attr, b));
	expect_ok(pier_channel_endpoint(*a, &of_a));
	expect_ok(pier_channel_endpoint(*b, &of_b));
	expect_ok(pier_channel_connect(*a, &of_b));
	expect_ok(pier_channel_connect(*b, &of_a));
}

static inline void name_rail(uint32_t index)
{
	expect_ok(pier_mr_remote(fixture.there.mrs[index], &fixture.remotes[index]));
	fixture.rails[index] =
		(struct pier_rail){ .channel = fixture.here.channels[index],
				    .mr = fixture.here.mrs[index],
				    .offset = GUARD,
				    .parts = &fixture.remotes[index],
				    .count = 1,
				    .remote_offset = GUARD };
	fixture.receiver_rails[index] =
		(struct pier_receiver_rail){ .channel = fixture.there.channels[index],
					     .mr = fixture.there.mrs[index],
					     .offset = GUARD };
}

/* Rails whose regions have bounce buffers at the local end, the remote end, or both. */
static inline void make_rails(uint32_t count, bool here, bool there)
{
	for (uint32_t i = 0; i < count; i++) {
		reg(&fixture.here, i, here);
		reg(&fixture.there, i, there);
		connect_rail(i);
		name_rail(i);
	}
	fixture.gpu->copies = 0;
	fixture.gpu->flushes = 0;
}

static inline void shuffle_side(struct side *side)
{
	for (size_t i = 0; i < AREA; i++)
		side->image[i] = (uint8_t)(test_random_next(&fixture.random) >> 24);
	expect_ok(pier_buffer_copy_to(side->buffer, 0, side->image, AREA));
}

/* New bytes at both ends. */
static inline void shuffle(void)
{
	shuffle_side(&fixture.here);
	shuffle_side(&fixture.there);
	fixture.gpu->copies = 0;
	fixture.gpu->flushes = 0;
}

static inline void expect_image(const struct side *side)
{
	static uint8_t found[AREA];
	int error = fixture.gpu->copy_error;

	fixture.gpu->copy_error = 0;
	expect_ok(pier_buffer_copy_from(side->buffer, 0, found, AREA));
	fixture.gpu->copy_error = error;
	for (size_t i = 0; i < AREA; i++)
		if (found[i] != side->image[i])
			fail_msg("byte %zu - %d of %d is not what it must be", i, GUARD,
				 LENGTH);
}

/* Expect this many bytes to have arrived, and nothing else to have changed. */
static inline void expect_moved(uint64_t length, bool reading)
{
	struct side *from = reading ? &fixture.there : &fixture.here;
	struct side *to = reading ? &fixture.here : &fixture.there;

	memcpy(to->image + GUARD, from->image + GUARD, length);
	expect_image(&fixture.here);
	expect_image(&fixture.there);
}

/* Copy the other end's memory to where its NIC sees it. */
static inline void publish_there(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		expect_ok(pier_mr_sync_for_nic(fixture.there.mrs[i], 0, AREA));
	fixture.gpu->copies = 0;
}

static inline struct pier_transfer_attr attr_of(uint32_t count, uint64_t length)
{
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	attr.rails = fixture.rails;
	attr.rail_count = count;
	attr.length = length;
	attr.chunk = CHUNK;
	return attr;
}

static inline void begin(const struct pier_transfer_attr *attr)
{
	expect_ok(pier_transfer_destroy(fixture.transfer));
	expect_ok(pier_transfer_create(attr, &fixture.transfer));
}

static inline struct pier_transfer_status status(void)
{
	struct pier_transfer_status now;

	pier_transfer_query(fixture.transfer, &now, sizeof(now));
	return now;
}

static inline struct pier_rail_status rail_status(uint32_t index)
{
	struct pier_rail_status now;

	expect_ok(pier_transfer_query_rail(fixture.transfer, index, &now, sizeof(now)));
	return now;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif

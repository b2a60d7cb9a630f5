/* SPDX-License-Identifier: BSD-3-Clause */
#include "stock.h"
#include "../../support/random.h"

#include <stdlib.h>
#include <sys/mman.h>

/* That the regions which were made otherwise are of use: bytes arrive in them. */

enum {
	PATIENT = 30000, /* milliseconds */
	TARGET = 4001,	 /* offset of what is written, across pages */
	MOVED = 9003,	 /* bytes */
};

/* One side of a connection; with a device of its own, as another process has. */
struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *channel;
	uint8_t image[STOCK_LENGTH]; /* what must be in the buffer */
};

static void open_side(struct side *side, const char *spec, struct test_random *random)
{
	expect_ok(pier_device_open(stock_device, &side->device));
	expect_ok(pier_pd_alloc(side->device, &side->pd));
	side->buffer = stock_alloc(spec);
	for (size_t i = 0; i < STOCK_LENGTH; i++)
		side->image[i] = (uint8_t)(test_random_next(random) >> 56);
	expect_ok(pier_buffer_copy_to(side->buffer, 0, side->image, STOCK_LENGTH));
	expect_ok(pier_mr_reg_buffer(side->pd, side->buffer, 0, STOCK_LENGTH,
				     PIER_ACCESS_SHARED, PIER_POLICY_ANY, &side->mr));
	assert_int_equal(pier_mr_path(side->mr), PIER_PATH_HOST);
	expect_ok(pier_channel_create(side->pd, NULL, &side->channel));
}

static void close_side(struct side *side)
{
	expect_ok(pier_channel_destroy(side->channel));
	expect_ok(pier_mr_dereg(side->mr));
	expect_ok(pier_buffer_free(side->buffer));
	expect_ok(pier_pd_dealloc(side->pd));
	expect_ok(pier_device_close(side->device));
}

static void connect_sides(struct side *a, struct side *b)
{
	struct pier_endpoint of_a, of_b;

	expect_ok(pier_channel_endpoint(a->channel, &of_a));
	expect_ok(pier_channel_endpoint(b->channel, &of_b));
	expect_ok(pier_channel_connect(a->channel, &of_b));
	expect_ok(pier_channel_connect(b->channel, &of_a));
}

/* Every byte, those around what was written too, and both ways of looking. */
static void expect_image(const struct side *side)
{
	uint8_t now[STOCK_LENGTH];
	void *mapped;

	expect_ok(pier_buffer_copy_from(side->buffer, 0, now, STOCK_LENGTH));
	assert_memory_equal(now, side->image, STOCK_LENGTH);
	expect_ok(pier_buffer_map(side->buffer, &mapped));
	assert_memory_equal(mapped, side->image, STOCK_LENGTH);
}

static void write_and_read(struct side *from, struct side *to)
{
	struct pier_remote whole, target;
	struct pier_gather source;
	struct pier_scatter back;

	expect_ok(pier_mr_remote(to->mr, &whole));
	expect_ok(pier_remote_sub(&whole, TARGET, MOVED, &target));
	expect_ok(pier_mr_gather(from->mr, pier_mr_iova(from->mr) + 7, MOVED, &source));
	expect_ok(pier_channel_write(from->channel, &source, 1, &target, PATIENT));
	memcpy(to->image + TARGET, from->image + 7, MOVED);
	expect_image(to);
	expect_image(from);
	expect_ok(pier_mr_scatter(from->mr, pier_mr_iova(from->mr) + STOCK_LENGTH - MOVED,
				  MOVED, &back));
	expect_ok(pier_channel_read(from->channel, &back, 1, &target, PATIENT));
	memcpy(from->image + STOCK_LENGTH - MOVED, to->image + TARGET, MOVED);
	expect_image(from);
	expect_image(to);
}

static void try_memory(const char *of_a, const char *of_b, struct test_random *random)
{
	struct side *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));

	assert_true(a && b);
	open_side(a, of_a, random);
	open_side(b, of_b, random);
	connect_sides(a, b);
	write_and_read(a, b);
	write_and_read(b, a);
	close_side(a);
	close_side(b);
	free(a);
	free(b);
}

static void bytes_arrive(void **state)
{
	static const char *const specs[] = { "host", "memfd", "udmabuf" };
	const int count = sizeof(specs) / sizeof(specs[0]);
	struct test_random random = test_random_start();
	struct test_census before = test_take_census();

	(void)state;
	for (int i = 0; i < count * count; i++) {
		try_memory(specs[i / count], specs[i % count], &random);
		test_assert_census(&before);
	}
}

static void expect_dmabuf_image(const struct side *side)
{
	struct pier_dmabuf dmabuf;
	uint8_t *pages;

	expect_ok(pier_dmabuf_export(side->buffer, 0, STOCK_LENGTH, PIER_MAPPING_AUTO,
				     &dmabuf));
	assert_int_equal(dmabuf.offset, 0);
	pages = mmap(NULL, STOCK_LENGTH, PROT_READ, MAP_SHARED, dmabuf.fd, 0);
	assert_true(pages != MAP_FAILED);
	assert_memory_equal(pages, side->image, STOCK_LENGTH);
	assert_int_equal(munmap(pages, STOCK_LENGTH), 0);
	pier_dmabuf_close(&dmabuf);
}

/* A GPU that imports the udmabuf sees what the NIC wrote into the memfd's pages. */
static void bytes_are_in_the_dmabuf_too(void **state)
{
	struct test_random random = test_random_start();
	struct side *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));

	(void)state;
	assert_true(a && b);
	open_side(a, "host", &random);
	open_side(b, "udmabuf", &random);
	connect_sides(a, b);
	write_and_read(a, b);
	expect_dmabuf_image(b);
	close_side(a);
	close_side(b);
	free(a);
	free(b);
}

int run_bytes_cases(void)
{
	const struct CMUnitTest cases[] = {
		stock_case(bytes_arrive),
		stock_case(bytes_are_in_the_dmabuf_too),
	};

	return cmocka_run_group_tests_name("bytes", cases, NULL, NULL);
}

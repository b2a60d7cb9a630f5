/* SPDX-License-Identifier: BSD-3-Clause */
/* Rings in memory that the NIC cannot reach, or that needs a flush. */
#include "../bounce_fixture.h"

enum {
	SLOTS = 2,
	SLOT_SIZE = AREA / SLOTS,
};

static struct pier_ring *ring;
static struct pier_ring_slot slot;

/* In the memory of this end, whose region has a bounce buffer or none. */
static void make_ring(bool bounced)
{
	struct pier_ring_attr attr;

	make_rails(1, bounced, false);
	pier_ring_attr_init(&attr);
	attr.mr = fixture.here.mrs[0];
	attr.slots = SLOTS;
	attr.slot_size = SLOT_SIZE;
	expect_ok(pier_ring_create(fixture.here.pd, &attr, &ring));
	shuffle();
}

static int teardown_ring(void **state)
{
	expect_ok(pier_ring_destroy(ring));
	ring = NULL;
	return teardown(state);
}

static struct pier_ring_source source(void)
{
	return (struct pier_ring_source){ fixture.here.channels[0], &fixture.remotes[0],
					  1 };
}

static void begin_reads(const struct pier_ring_read *reads, uint32_t count)
{
	struct pier_ring_source from = source();
	uint32_t number;

	expect_ok(pier_ring_fill(ring, &from, 1, reads, count, &number));
	for (uint32_t i = 0; i < count; i++)
		memcpy(fixture.here.image + number * SLOT_SIZE + reads[i].offset,
		       fixture.there.image + reads[i].remote_offset, reads[i].length);
}

static void expect_next(void)
{
	expect_result(pier_ring_next(ring, PATIENT, &slot), 1);
	expect_image(&fixture.here);
	expect_ok(pier_ring_release(ring, &slot));
}

/* Adjacent reads in one copy; the bytes between others keep their contents. */
static void copies_what_was_read(void **state)
{
	static const struct pier_ring_read reads[] = {
		{ .offset = 0, .remote_offset = 777, .length = 100 },
		{ .offset = 100, .remote_offset = 5000, .length = 55 },
		{ .offset = 155, .remote_offset = 0, .length = 1 },
		{ .offset = 1000, .remote_offset = 9, .length = 3000 },
		{ .offset = 5000, .remote_offset = 9, .length = 0 },
	};

	(void)state;
	make_ring(true);
	for (int i = 0; i < 2 * SLOTS; i++) {
		fixture.gpu->copies = 0;
		begin_reads(reads, 5);
		/* Not pier_ring_wait(), which the release before ends, too. */
		expect_result(pier_ring_next(ring, PATIENT, &slot), 1);
		assert_int_equal(fixture.gpu->copies, 2);
		assert_int_equal(fixture.gpu->flushes, 0);
		expect_image(&fixture.here);
		expect_ok(pier_ring_release(ring, &slot));
	}
}

static struct {
	int copies;
	uint32_t in_flight[8];
} seen;

static void look(void)
{
	struct pier_ring_status now;

	pier_ring_query(ring, &now, sizeof(now));
	assert_in_range(seen.copies, 0, 7);
	seen.in_flight[seen.copies++] = now.in_flight;
}

/* The send queue has room for 16, and half of it is posted again before each copy. */
static void copies_while_reads_are_in_flight(void **state)
{
	struct pier_ring_read reads[32];

	(void)state;
	make_ring(true);
	for (uint32_t i = 0; i < 32; i++)
		reads[i] = (struct pier_ring_read){ .offset = i * 1000,
						    .remote_offset = i * 1000,
						    .length = 1000 };
	memset(&seen, 0, sizeof(seen));
	fixture.gpu->copies = 0;
	fixture.gpu->before_copy = look;
	begin_reads(reads, 32);
	expect_result(pier_ring_wait(ring, PATIENT), 1);
	fixture.gpu->before_copy = NULL;
	assert_int_equal(seen.copies, 4);
	for (int i = 0; i < 3; i++)
		assert_true(seen.in_flight[i] >= (i < 2 ? 16 : 8));
	expect_next();
}

static void flushes_once_for_each_slot(void **state)
{
	static const struct pier_ring_read reads[] = {
		{ .offset = 0, .remote_offset = 777, .length = 100 },
		{ .offset = 1000, .remote_offset = 5000, .length = 55 },
	};

	(void)state;
	make_ring(false);
	begin_reads(reads, 2);
	begin_reads(NULL, 0);
	expect_result(pier_ring_wait(ring, PATIENT), 1);
	assert_int_equal(fixture.gpu->flushes, 0);
	expect_next();
	assert_int_equal(fixture.gpu->flushes, 1);
	expect_next();
	assert_int_equal(fixture.gpu->flushes, 1);
	assert_int_equal(fixture.gpu->copies, 2); /* by expect_image() */
}

/* The reads whose copy failed are missing. */
static void failed_copies_are_repeated(void **state)
{
	static const struct pier_ring_read read = { .length = 100 };
	struct pier_ring_source from;

	(void)state;
	make_ring(true);
	from = source();
	fixture.gpu->copy_error = EIO;
	begin_reads(&read, 1);
	assert_true(pier_ring_next(ring, PATIENT, &slot) < 0);
	assert_int_equal(slot.missing, 1);
	fixture.gpu->copy_error = 0;
	expect_ok(pier_ring_retry(ring, slot.number, &from, 1));
	expect_next();
}

/* All bytes have arrived, and are flushed again. */
static void failed_flushes_are_repeated(void **state)
{
	static const struct pier_ring_read read = { .length = 100 };
	struct pier_ring_source from;

	(void)state;
	make_ring(false);
	from = source();
	begin_reads(&read, 1);
	fixture.gpu->flush_error = EIO;
	for (int i = 0; i < 2; i++) {
		assert_true(pier_ring_next(ring, PATIENT, &slot) < 0);
		assert_int_equal(slot.missing, 0);
		expect_result(pier_ring_retry(ring, slot.number, &from, 1), -EALREADY);
	}
	fixture.gpu->flush_error = 0;
	expect_next();
}

#define ring_test(body) cmocka_unit_test_setup_teardown(body, setup, teardown_ring)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ring_test(copies_what_was_read),
		ring_test(copies_while_reads_are_in_flight),
		ring_test(flushes_once_for_each_slot),
		ring_test(failed_copies_are_repeated),
		ring_test(failed_flushes_are_repeated),
	};

	return cmocka_run_group_tests_name("ring_bounce", tests, make_folder,
					   remove_folder);
}

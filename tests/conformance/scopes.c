/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/*
 * All requests posted in a scope have completed when it ends, and its report lists
 * failures.
 */

enum {
	SEGMENT = 700,
	SEGMENTS = 100,
	WINDOW = 5,
};

/* Returns from inside the scope's block. The report belongs to the caller. */
static void write_some(struct world *world, const struct pier_scope_attr *attr, int count,
		       struct pier_scope_report *report)
{
	PIER_SCOPE(world->a.channel, attr, report)
	{
		for (int i = 0; i < SEGMENTS; i++) {
			size_t at = (size_t)i * (SEGMENT + 1);
			struct pier_gather source = gather_at(&world->a.area, at,
							      SEGMENT);
			struct pier_remote target = remote_at(&world->b.area, at,
							      SEGMENT);

			if (i == count)
				return;
			expect_ok(pier_channel_post_write(world->a.channel, &source, 1,
							  &target, NULL));
			assert_true(pier_channel_outstanding(world->a.channel) <= WINDOW);
			image_copy(&world->b.area, at, &world->a.area, at, SEGMENT);
		}
	}
}

static void scope_completes_its_requests(void **state)
{
	struct world *world = world_connected(state);
	struct pier_scope_attr attr;
	struct pier_scope_report report;

	pier_scope_attr_init(&attr);
	attr.window = WINDOW;
	write_some(world, &attr, SEGMENTS, &report);
	assert_int_equal(report.error, 0);
	assert_int_equal(report.posted, SEGMENTS);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	/* The bytes of completed writes have arrived. */
	world_expect(world);
	area_shuffle(world, &world->a.area);
	write_some(world, &attr, 7, &report);
	assert_int_equal(report.error, 0);
	assert_int_equal(report.posted, 7);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	world_expect(world);
}

static void scope_completes_receives(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 11, 100);
	struct pier_scatter target = scatter_at(&world->b.area, 22, 100);
	struct pier_scope_report report;

	PIER_SCOPE(world->b.channel, NULL, &report)
	{
		struct pier_scope_report sent;

		expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, NULL));
		/* Scopes of different channels are independent. */
		PIER_SCOPE(world->a.channel, NULL, &sent)
		expect_ok(pier_channel_post_send(world->a.channel, &source, 1, NULL));
		assert_int_equal(sent.error, 0);
	}
	assert_int_equal(report.error, 0);
	assert_int_equal(report.posted, 1);
	image_copy(&world->b.area, 22, &world->a.area, 11, 100);
	world_expect(world);
}

/* The report has the cause and the flushed requests of both queues. No byte is moved. */
static void report_lists_failures(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, SEGMENT);
	struct pier_scatter target = scatter_at(&world->a.area, 0, SEGMENT);
	struct pier_remote good = remote_at(&world->b.area, 0, SEGMENT), bad = good;
	struct pier_scope_attr attr;
	struct pier_scope_failure failures[4];
	struct pier_scope_report report;
	struct pier_work behind = { 0 };

	pier_scope_attr_init(&attr);
	bad.rkey ^= 0x5a5a5a5a;
	attr.failures = failures;
	attr.max_failures = 4;
	PIER_SCOPE(world->a.channel, &attr, &report)
	{
		expect_ok(pier_channel_post_recv(world->a.channel, &target, 1, NULL));
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &bad,
						  NULL));
		/* The first request may have failed before this one is posted. */
		if (pier_channel_post_write(world->a.channel, &source, 1, &good,
					    &behind) != 0)
			report.body_error = -ENODATA;
	}
	assert_int_equal(report.error, report.body_error ? -ENODATA : -EACCES);
	test_assert_sentence("refused");
	assert_int_equal(report.drain_error, -EACCES);
	assert_int_equal(report.failed, report.posted);
	assert_int_equal(failures[0].result.error, -EACCES);
	assert_int_equal(failures[0].work.id, report.cause.work.id);
	if (!report.body_error) {
		assert_int_equal(failures[1].work.id, behind.id);
		assert_int_equal(failures[1].result.error, -ECANCELED);
		expect_result(pier_work_poll(world->a.channel, behind, NULL), -ESTALE);
	}
	assert_int_equal(failures[report.failed - 1].result.opcode, PIER_OP_RECV);
	assert_int_equal(failures[report.failed - 1].result.error, -ECANCELED);
	world_expect(world);
}

static void scope_ends_at_its_deadline(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, SEGMENT);
	struct pier_scatter target = scatter_at(&world->b.area, 0, SEGMENT);
	struct pier_scope_attr attr;
	struct pier_scope_report report;

	pier_scope_attr_init(&attr);
	attr.timeout_ms = BRIEF;
	PIER_SCOPE(world->b.channel, &attr, &report)
	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, NULL));
	assert_int_equal(report.error, -ETIMEDOUT);
	assert_int_equal(report.failed, 1);
	assert_int_equal(pier_channel_outstanding(world->b.channel), 0);
	/* A message that arrives now finds no receive, and the memory is unchanged. */
	assert_true(pier_channel_send(world->a.channel, &source, 1, PATIENT) < 0);
	world_expect(world);
}

static void unpolled_handles_are_an_error(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 5, SEGMENT);
	struct pier_remote target = remote_at(&world->b.area, 5, SEGMENT);
	struct pier_scope_attr attr;
	struct pier_scope_report report;
	struct pier_work first, second;

	pier_scope_attr_init(&attr);
	attr.flags = PIER_SCOPE_MANUAL;
	PIER_SCOPE(world->a.channel, &attr, &report)
	{
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target,
						  &first));
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target,
						  &second));
		expect_end(world->a.channel, first, 0);
	}
	assert_int_equal(report.error, -ENOTEMPTY);
	assert_int_equal(report.unpolled, 1);
	assert_int_equal(report.first_unpolled.id, second.id);
	assert_int_equal(report.drain_error, 0);
	/*
	 * If the body reports an error, the unpolled handles are not an additional error.
	 */
	PIER_SCOPE(world->a.channel, &attr, &report)
	{
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target,
						  &second));
		report.body_error = -ENODATA;
	}
	assert_int_equal(report.error, -ENODATA);
	assert_int_equal(report.unpolled, 1);
	image_copy(&world->b.area, 5, &world->a.area, 5, SEGMENT);
	world_expect(world);
}

static void scope_can_outlive_its_channel(void **state)
{
	struct world *world = world_connected(state);
	struct pier_scatter target = scatter_at(&world->a.area, 0, SEGMENT);
	struct pier_scope_report report;

	PIER_SCOPE(world->a.channel, NULL, &report)
	{
		expect_ok(pier_channel_post_recv(world->a.channel, &target, 1, NULL));
		expect_ok(pier_channel_destroy(world->a.channel));
		world->a.channel = NULL;
	}
	assert_int_equal(report.error, -ECANCELED);
	assert_int_equal(report.failed, 1);
	world_expect(world);
}

int run_scope_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(scope_completes_its_requests),
		world_case(scope_completes_receives),
		world_case(report_lists_failures),
		world_case(scope_ends_at_its_deadline),
		world_case(unpolled_handles_are_an_error),
		world_case(scope_can_outlive_its_channel),
	};

	return cmocka_run_group_tests_name("scopes", cases, NULL, NULL);
}

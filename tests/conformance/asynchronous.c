/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "cases.h"
#include "world.h"

/* Regions registered by threads of an event queue. */

static int register_area(struct pier_event_queue *queue, const struct end *end,
			 size_t offset, size_t length,
			 struct pier_registration **ret_registration)
{
	struct pier_mr_range range = pier_mr_range_buffer(end->area.buffer, offset,
							  length);
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_SHARED;
	attr.context = (void *)end;
	return pier_mr_reg_async(queue, end->pd, &attr, ret_registration);
}

static struct pier_event next_event(struct pier_event_queue *queue)
{
	struct pollfd fd = { .fd = pier_event_queue_fd(queue), .events = POLLIN };
	struct pier_event event = { 0 };

	assert_int_equal(poll(&fd, 1, PATIENT), 1);
	expect_result(pier_event_queue_wait(queue, 0, &event, sizeof(event)), 1);
	if (event.error)
		fail_msg("registered by a thread: %d: %s", event.error, event.sentence);
	return event;
}

static void peer_writes_into_async_region(void **state)
{
	enum {
		OFFSET = 4099,
		LENGTH = 70001
	};
	struct world *world = world_connected(state);
	struct end *ends[] = { &world->a, &world->b };
	struct pier_registration *registrations[2];
	struct pier_event_queue *queue;
	struct pier_mr *regions[2];
	struct pier_gather source;
	struct pier_remote target;

	expect_ok(pier_event_queue_create(NULL, &queue));
	for (int i = 0; i < 2; i++) {
		struct pier_event event;

		expect_ok(
			register_area(queue, ends[i], OFFSET, LENGTH, &registrations[i]));
		event = next_event(queue);
		assert_ptr_equal(event.registration, registrations[i]);
		assert_ptr_equal(event.context, ends[i]);
		regions[i] = event.mr;
	}
	expect_ok(pier_mr_gather(regions[0], pier_mr_iova(regions[0]), LENGTH, &source));
	expect_ok(pier_mr_remote(regions[1], &target));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, OFFSET, &world->a.area, OFFSET, LENGTH);
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_mr_dereg(regions[i]));
		expect_ok(pier_registration_close(registrations[i]));
	}
	expect_ok(pier_event_queue_destroy(queue));
	world_expect(world);
}

static void cancel_maybe(struct pier_registration *registration)
{
	int error = pier_registration_cancel(registration);

	assert_true(error == 0 || error == -EALREADY);
}

/* The driver may still be registering a closed region. */
static void destroy_soon(struct pier_event_queue *queue)
{
	time_t deadline = time(NULL) + PATIENT / 1000;
	int error;

	while ((error = pier_event_queue_destroy(queue)) == -EBUSY &&
	       time(NULL) < deadline)
		sched_yield();
	expect_ok(error);
}

/* A registration may be cancelled or closed at any moment, and leaves nothing behind. */
static void cancelled_registration_leaves_nothing(void **state)
{
	enum {
		ROUNDS = 100
	};
	struct world *world = world_opened(state);
	struct pier_registration *registrations[ROUNDS];
	struct pier_event_queue *queue;
	int events = 0;

	expect_ok(pier_event_queue_create(NULL, &queue));
	for (int i = 0; i < ROUNDS; i++) {
		expect_ok(register_area(queue, &world->a, 0, AREA_LENGTH,
					&registrations[i]));
		if (i % 3 == 1)
			cancel_maybe(registrations[i]);
		if (i % 3 == 2)
			expect_ok(pier_registration_close(registrations[i]));
		else
			events++;
	}
	while (events-- > 0) {
		struct pier_event event;

		expect_result(
			pier_event_queue_wait(queue, PATIENT, &event, sizeof(event)), 1);
		assert_true(event.error == 0 || event.error == -ECANCELED);
		expect_ok(pier_mr_dereg(event.mr));
		expect_ok(pier_registration_close(event.registration));
	}
	destroy_soon(queue);
	world_expect(world);
}

int run_asynchronous_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(peer_writes_into_async_region),
		world_case(cancelled_registration_leaves_nothing),
	};

	return cmocka_run_group_tests_name("asynchronous registration", cases, NULL,
					   NULL);
}

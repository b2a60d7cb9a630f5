/*
 * SPDX-License-Identifier: BSD-3-Clause
 *
 * Registrations through an event queue while the driver takes its time: nothing
 * waits for it, and what it gives to nobody is taken back.
 */
#include "async_fixture.h"

/* A registration in the driver, which stays there until the gate opens. */
static struct pier_registration *begin(struct async_fixture *fixture)
{
	struct pier_registration *registration;

	set_gate(true);
	registration = fixture_submit(fixture);
	wait_for_gate(1);
	fixture_expect_no_event(fixture);
	return registration;
}

static void expect_regions(const struct async_fixture *fixture, size_t count)
{
	assert_int_equal(pier_object_count(PIER_OBJECT_MR),
			 fixture->before.objects[PIER_OBJECT_MR] + count);
}

static void read_and_close(struct async_fixture *fixture,
			   struct pier_registration *registration)
{
	struct pier_event event = fixture_expect_event(fixture, registration, 0);

	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void cancels_a_waiting_registration(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *running = begin(fixture),
				 *queued = fixture_submit(fixture);
	struct pier_event event;

	expect_ok(pier_registration_cancel(queued));
	event = fixture_expect_event(fixture, queued, -ECANCELED);
	assert_non_null(strstr(event.sentence, "cancelled"));
	expect_result(pier_registration_cancel(queued), -EALREADY);
	expect_ok(pier_registration_close(queued));
	set_gate(false);
	read_and_close(fixture, running);
	assert_int_equal(gate.registrations, 1);
}

static void cancels_a_running_registration(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = begin(fixture);
	struct pier_event event;

	expect_ok(pier_registration_cancel(registration));
	expect_ok(pier_registration_cancel(registration));
	fixture_expect_no_event(fixture);
	set_gate(false);
	event = fixture_expect_event(fixture, registration, -ECANCELED);
	assert_non_null(strstr(event.sentence, "cancelled"));
	assert_int_equal(gate.deregistrations, 1);
	expect_regions(fixture, 0);
	expect_result(pier_registration_cancel(registration), -EALREADY);
	expect_ok(pier_registration_close(registration));
}

static void cancels_a_failing_registration(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = begin(fixture);

	gate.reg_error = ENOMEM;
	expect_ok(pier_registration_cancel(registration));
	set_gate(false);
	fixture_expect_event(fixture, registration, -ECANCELED);
	expect_ok(pier_registration_close(registration));
	assert_int_equal(gate.deregistrations, 0);
}

/* The cancel came too late: the caller gets the region. */
static void delivers_the_region_if_cancel_is_late(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = begin(fixture);

	gate.dereg_error = EIO;
	expect_ok(pier_registration_cancel(registration));
	set_gate(false);
	read_and_close(fixture, registration);
}

static void closes_a_waiting_registration(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *running = begin(fixture);

	expect_ok(pier_registration_close(fixture_submit(fixture)));
	assert_int_equal(pier_object_count(PIER_OBJECT_REGISTRATION),
			 fixture->before.objects[PIER_OBJECT_REGISTRATION] + 1);
	set_gate(false);
	read_and_close(fixture, running);
	fixture_expect_no_event(fixture);
	assert_int_equal(gate.registrations, 1);
}

/* Closing returns while the driver works; the result is released afterwards. */
static void closes_a_running_registration(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = begin(fixture);

	expect_ok(pier_registration_close(registration));
	expect_result(pier_event_queue_destroy(fixture->queue), -EBUSY);
	test_assert_sentence("still works on 1 registration that is closed");
	expect_result(pier_pd_dealloc(fixture->pd), -EBUSY);
	test_assert_sentence("under way");
	set_gate(false);
	fixture_destroy_queue(fixture);
	assert_int_equal(gate.deregistrations, 1);
	expect_regions(fixture, 0);
	expect_ok(pier_event_queue_create(NULL, &fixture->queue));
	fixture_expect_no_event(fixture);
}

static void closes_a_cancelled_registration(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = begin(fixture);

	expect_ok(pier_registration_cancel(registration));
	expect_ok(pier_registration_close(registration));
	set_gate(false);
	fixture_destroy_queue(fixture);
	expect_regions(fixture, 0);
}

/*
 * A closed handle takes no room in the queue, but occupies the thread until the driver
 * returns.
 */
static void makes_room_when_closed(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration;

	fixture_use_queue(fixture, 1, 1);
	expect_ok(pier_registration_close(begin(fixture)));
	registration = fixture_submit(fixture);
	fixture_expect_no_event(fixture);
	set_gate(false);
	read_and_close(fixture, registration);
}

static void uses_the_requested_number_of_threads(void **state)
{
	enum {
		WORKERS = 3,
		COUNT = 9
	};
	struct async_fixture *fixture = *state;
	struct pier_registration *registrations[COUNT];

	fixture_use_queue(fixture, WORKERS, COUNT);
	set_gate(true);
	for (int i = 0; i < COUNT; i++)
		registrations[i] = fixture_submit(fixture);
	wait_for_gate(WORKERS);
	/* When one is let through, another takes its place. */
	let_one_through();
	fixture_wait_for_event(fixture);
	wait_for_gate(WORKERS);
	assert_int_equal(gate.registrations, WORKERS + 1);
	set_gate(false);
	for (int i = 0; i < COUNT; i++) {
		struct pier_event event;

		expect_result(pier_event_queue_wait(fixture->queue, FIXTURE_DEADLINE_MS,
						    &event, sizeof(event)),
			      1);
		assert_int_equal(event.error, 0);
		expect_ok(pier_mr_dereg(event.mr));
	}
	for (int i = 0; i < COUNT; i++)
		expect_ok(pier_registration_close(registrations[i]));
	assert_int_equal(gate.most, WORKERS);
	assert_int_equal(gate.registrations, COUNT);
}

/* From the call on, also while the registration waits behind another. */
static void registration_keeps_its_buffer_busy(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *running = begin(fixture), *registration;
	struct pier_buffer *buffer;
	struct pier_event event;

	expect_ok(pier_buffer_alloc("memfd", FIXTURE_PAGE, &buffer));
	fixture->range = pier_mr_range_buffer(buffer, 0, FIXTURE_PAGE);
	registration = fixture_submit(fixture);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_registration_cancel(registration));
	fixture_expect_event(fixture, registration, -ECANCELED);
	expect_ok(pier_registration_close(registration));
	expect_ok(pier_buffer_free(buffer));

	expect_ok(pier_buffer_alloc("memfd", FIXTURE_PAGE, &buffer));
	fixture->range = pier_mr_range_buffer(buffer, 0, FIXTURE_PAGE);
	registration = fixture_submit(fixture);
	let_one_through();
	read_and_close(fixture, running);
	wait_for_gate(1);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	set_gate(false);
	event = fixture_expect_event(fixture, registration, 0);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_registration_close(registration));
}

static void registration_keeps_its_pd_busy(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *running = begin(fixture),
				 *queued = fixture_submit(fixture);

	expect_result(pier_pd_dealloc(fixture->pd), -EBUSY);
	expect_ok(pier_registration_cancel(queued));
	fixture_expect_event(fixture, queued, -ECANCELED);
	expect_result(pier_pd_dealloc(fixture->pd), -EBUSY);
	gate.reg_error = ENOMEM;
	set_gate(false);
	fixture_expect_event(fixture, running, -ENOMEM);
	/* Once its event has been read a handle can be closed without the PD. */
	expect_ok(pier_pd_dealloc(fixture->pd));
	expect_ok(pier_registration_close(running));
	expect_ok(pier_registration_close(queued));
	expect_ok(pier_pd_alloc(fixture->device, &fixture->pd));
}

/* The caller may reuse the memory that the attributes point to once the call returns. */
static void borrows_attributes_only_for_the_call(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *running = begin(fixture), *registration;
	struct pier_event event;
	int fd = memfd_create("async", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, FIXTURE_LENGTH), 0);
	fixture->range = pier_mr_range_dmabuf(fd, FIXTURE_PAGE, 2 * FIXTURE_PAGE);
	registration = fixture_submit(fixture);
	close(fd);
	memset(&fixture->range, 0xa5, sizeof(fixture->range));
	fixture->attr.access = -1;
	set_gate(false);
	read_and_close(fixture, running);
	event = fixture_expect_event(fixture, registration, 0);
	assert_int_equal(pier_mr_length(event.mr), 2 * FIXTURE_PAGE);
	assert_int_equal(pier_mr_iova(event.mr), FIXTURE_PAGE);
	assert_int_equal(pier_mr_path(event.mr), PIER_PATH_DMABUF);
	assert_int_equal(test_mr_info(event.mr).access, PIER_ACCESS_SHARED);
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_registration_close(registration));
}

/*
 * The duplicate of an fd is closed with its registration, in every way that one can end.
 */
static void closes_its_duplicate_fds(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *running = begin(fixture);
	struct test_census before;
	int fd = memfd_create("async", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, FIXTURE_LENGTH), 0);
	before = test_take_census();
	fixture->range = pier_mr_range_dmabuf(fd, 0, FIXTURE_PAGE);
	expect_ok(pier_registration_close(fixture_submit(fixture)));
	test_assert_census(&before);
	set_gate(false);
	read_and_close(fixture, running);
	before = test_take_census();
	gate.reg_error = ENOMEM;
	running = fixture_submit(fixture);
	fixture_expect_event(fixture, running, -ENOMEM);
	expect_ok(pier_registration_close(running));
	test_assert_census(&before);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_case(cancels_a_waiting_registration),
		fixture_case(cancels_a_running_registration),
		fixture_case(cancels_a_failing_registration),
		fixture_case(delivers_the_region_if_cancel_is_late),
		fixture_case(closes_a_waiting_registration),
		fixture_case(closes_a_running_registration),
		fixture_case(closes_a_cancelled_registration),
		fixture_case(makes_room_when_closed),
		fixture_case(uses_the_requested_number_of_threads),
		fixture_case(registration_keeps_its_buffer_busy),
		fixture_case(registration_keeps_its_pd_busy),
		fixture_case(borrows_attributes_only_for_the_call),
		fixture_case(closes_its_duplicate_fds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

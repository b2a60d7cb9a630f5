/*
 * SPDX-License-Identifier: BSD-3-Clause
 *
 * Registrations through an event queue while the driver takes its time: nothing
 * waits for it, and what it gives to nobody is taken back.
 */
#include "async_fixture.h"

/* A registration in the driver, which stays there until the gate opens. */
static struct pier_registration *begin(struct rig *rig)
{
	struct pier_registration *registration;

	set_gate(true);
	registration = rig_submit(rig);
	wait_for_gate(1);
	rig_expect_no_event(rig);
	return registration;
}

static void expect_regions(const struct rig *rig, size_t count)
{
	assert_int_equal(pier_object_count(PIER_OBJECT_MR),
			 rig->before.objects[PIER_OBJECT_MR] + count);
}

static void read_and_close(struct rig *rig, struct pier_registration *registration)
{
	struct pier_event event = rig_expect_event(rig, registration, 0);

	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void cancels_a_waiting_registration(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *running = begin(rig), *queued = rig_submit(rig);
	struct pier_event event;

	expect_ok(pier_registration_cancel(queued));
	event = rig_expect_event(rig, queued, -ECANCELED);
	assert_non_null(strstr(event.sentence, "cancelled"));
	expect_result(pier_registration_cancel(queued), -EALREADY);
	expect_ok(pier_registration_close(queued));
	set_gate(false);
	read_and_close(rig, running);
	assert_int_equal(gate.registrations, 1);
}

static void cancels_a_running_registration(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = begin(rig);
	struct pier_event event;

	expect_ok(pier_registration_cancel(registration));
	expect_ok(pier_registration_cancel(registration));
	rig_expect_no_event(rig);
	set_gate(false);
	event = rig_expect_event(rig, registration, -ECANCELED);
	assert_non_null(strstr(event.sentence, "cancelled"));
	assert_int_equal(gate.deregistrations, 1);
	expect_regions(rig, 0);
	expect_result(pier_registration_cancel(registration), -EALREADY);
	expect_ok(pier_registration_close(registration));
}

static void cancels_a_failing_registration(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = begin(rig);

	gate.reg_error = ENOMEM;
	expect_ok(pier_registration_cancel(registration));
	set_gate(false);
	rig_expect_event(rig, registration, -ECANCELED);
	expect_ok(pier_registration_close(registration));
	assert_int_equal(gate.deregistrations, 0);
}

/* The cancel came too late: the caller gets the region. */
static void delivers_the_region_if_cancel_is_late(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = begin(rig);

	gate.dereg_error = EIO;
	expect_ok(pier_registration_cancel(registration));
	set_gate(false);
	read_and_close(rig, registration);
}

static void closes_a_waiting_registration(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *running = begin(rig);

	expect_ok(pier_registration_close(rig_submit(rig)));
	assert_int_equal(pier_object_count(PIER_OBJECT_REGISTRATION),
			 rig->before.objects[PIER_OBJECT_REGISTRATION] + 1);
	set_gate(false);
	read_and_close(rig, running);
	rig_expect_no_event(rig);
	assert_int_equal(gate.registrations, 1);
}

/* Closing returns while the driver works; the result is released afterwards. */
static void closes_a_running_registration(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = begin(rig);

	expect_ok(pier_registration_close(registration));
	expect_result(pier_event_queue_destroy(rig->queue), -EBUSY);
	test_assert_sentence("still works on 1 registration that is closed");
	expect_result(pier_dealloc_pd(rig->pd), -EBUSY);
	test_assert_sentence("under way");
	set_gate(false);
	rig_destroy_queue(rig);
	assert_int_equal(gate.deregistrations, 1);
	expect_regions(rig, 0);
	expect_ok(pier_event_queue_create(NULL, &rig->queue));
	rig_expect_no_event(rig);
}

static void closes_a_cancelled_registration(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = begin(rig);

	expect_ok(pier_registration_cancel(registration));
	expect_ok(pier_registration_close(registration));
	set_gate(false);
	rig_destroy_queue(rig);
	expect_regions(rig, 0);
}

/*
 * A closed handle takes no room in the queue, but occupies the thread until the driver
 * returns.
 */
static void makes_room_when_closed(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration;

	rig_use_queue(rig, 1, 1);
	expect_ok(pier_registration_close(begin(rig)));
	registration = rig_submit(rig);
	rig_expect_no_event(rig);
	set_gate(false);
	read_and_close(rig, registration);
}

static void uses_the_requested_number_of_threads(void **state)
{
	enum {
		WORKERS = 3,
		COUNT = 9
	};
	struct rig *rig = *state;
	struct pier_registration *registrations[COUNT];

	rig_use_queue(rig, WORKERS, COUNT);
	set_gate(true);
	for (int i = 0; i < COUNT; i++)
		registrations[i] = rig_submit(rig);
	wait_for_gate(WORKERS);
	/* When one is let through, another takes its place. */
	let_one_through();
	rig_wait_for_event(rig);
	wait_for_gate(WORKERS);
	assert_int_equal(gate.registrations, WORKERS + 1);
	set_gate(false);
	for (int i = 0; i < COUNT; i++) {
		struct pier_event event;

		expect_ok(pier_event_queue_wait(rig->queue, RIG_DEADLINE_MS, &event));
		assert_int_equal(event.error, 0);
		expect_ok(pier_dereg_mr(event.mr));
	}
	for (int i = 0; i < COUNT; i++)
		expect_ok(pier_registration_close(registrations[i]));
	assert_int_equal(gate.most, WORKERS);
	assert_int_equal(gate.registrations, COUNT);
}

/* From the call on, also while the registration waits behind another. */
static void registration_keeps_its_buffer_busy(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *running = begin(rig), *registration;
	struct pier_buffer *buffer;
	struct pier_event event;

	expect_ok(pier_buffer_alloc("memfd", RIG_PAGE, &buffer));
	rig->range = pier_mr_range_buffer(buffer, 0, RIG_PAGE);
	registration = rig_submit(rig);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_registration_cancel(registration));
	rig_expect_event(rig, registration, -ECANCELED);
	expect_ok(pier_registration_close(registration));
	expect_ok(pier_buffer_free(buffer));

	expect_ok(pier_buffer_alloc("memfd", RIG_PAGE, &buffer));
	rig->range = pier_mr_range_buffer(buffer, 0, RIG_PAGE);
	registration = rig_submit(rig);
	let_one_through();
	read_and_close(rig, running);
	wait_for_gate(1);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	set_gate(false);
	event = rig_expect_event(rig, registration, 0);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_registration_close(registration));
}

static void registration_keeps_its_pd_busy(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *running = begin(rig), *queued = rig_submit(rig);

	expect_result(pier_dealloc_pd(rig->pd), -EBUSY);
	expect_ok(pier_registration_cancel(queued));
	rig_expect_event(rig, queued, -ECANCELED);
	expect_result(pier_dealloc_pd(rig->pd), -EBUSY);
	gate.reg_error = ENOMEM;
	set_gate(false);
	rig_expect_event(rig, running, -ENOMEM);
	/* Once its event has been read a handle can be closed without the PD. */
	expect_ok(pier_dealloc_pd(rig->pd));
	expect_ok(pier_registration_close(running));
	expect_ok(pier_registration_close(queued));
	expect_ok(pier_alloc_pd(rig->device, &rig->pd));
}

/* The caller may reuse the memory that the attributes point to once the call returns. */
static void borrows_attributes_only_for_the_call(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *running = begin(rig), *registration;
	struct pier_event event;
	int fd = memfd_create("async", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, RIG_LENGTH), 0);
	rig->range = pier_mr_range_dmabuf(fd, RIG_PAGE, 2 * RIG_PAGE);
	registration = rig_submit(rig);
	close(fd);
	memset(&rig->range, 0xa5, sizeof(rig->range));
	rig->attr.access = -1;
	set_gate(false);
	read_and_close(rig, running);
	event = rig_expect_event(rig, registration, 0);
	assert_int_equal(pier_mr_length(event.mr), 2 * RIG_PAGE);
	assert_int_equal(pier_mr_iova(event.mr), RIG_PAGE);
	assert_int_equal(pier_mr_path(event.mr), PIER_PATH_DMABUF);
	assert_int_equal(pier_mr_access(event.mr), PIER_ACCESS_SHARED);
	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_registration_close(registration));
}

/*
 * The duplicate of an fd is closed with its registration, in every way that one can end.
 */
static void closes_its_duplicate_fds(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *running = begin(rig);
	struct test_census before;
	int fd = memfd_create("async", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, RIG_LENGTH), 0);
	before = test_take_census();
	rig->range = pier_mr_range_dmabuf(fd, 0, RIG_PAGE);
	expect_ok(pier_registration_close(rig_submit(rig)));
	test_assert_census(&before);
	set_gate(false);
	read_and_close(rig, running);
	before = test_take_census();
	gate.reg_error = ENOMEM;
	running = rig_submit(rig);
	rig_expect_event(rig, running, -ENOMEM);
	expect_ok(pier_registration_close(running));
	test_assert_census(&before);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		rig_case(cancels_a_waiting_registration),
		rig_case(cancels_a_running_registration),
		rig_case(cancels_a_failing_registration),
		rig_case(delivers_the_region_if_cancel_is_late),
		rig_case(closes_a_waiting_registration),
		rig_case(closes_a_running_registration),
		rig_case(closes_a_cancelled_registration),
		rig_case(makes_room_when_closed),
		rig_case(uses_the_requested_number_of_threads),
		rig_case(registration_keeps_its_buffer_busy),
		rig_case(registration_keeps_its_pd_busy),
		rig_case(borrows_attributes_only_for_the_call),
		rig_case(closes_its_duplicate_fds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

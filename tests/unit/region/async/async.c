/*
 * SPDX-License-Identifier: BSD-3-Clause
 *
 * Registrations through an event queue: what comes back, and what is refused.
 */
#include "async_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>

enum {
	CLOSED_FD = 1 << 20, /* more than any limit on open files */
};

static void delivers_a_region(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration;
	struct pier_event event;

	fixture_expect_no_event(fixture);
	registration = fixture_submit(fixture);
	event = fixture_expect_event(fixture, registration, 0);
	fixture_expect_no_event(fixture);
	assert_int_equal(pier_mr_length(event.mr), FIXTURE_LENGTH);
	assert_int_equal(pier_mr_iova(event.mr), (uintptr_t)fixture->memory);
	assert_int_equal(test_mr_info(event.mr).access, PIER_ACCESS_SHARED);
	assert_ptr_equal(test_mr_info(event.mr).context, fixture);
	assert_ptr_equal(test_mr_info(event.mr).pd, fixture->pd);
	expect_ok(pier_registration_close(registration));
	assert_int_equal(gate.deregistrations, 0);
	expect_ok(pier_mr_dereg(event.mr));
}

/* The waiting call repeats the sentence of the driver's refusal. */
static void delivers_a_failure(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration;
	struct pier_event event;
	struct pier_mr *mr;

	fixture->range.length += 1;
	expect_result(pier_mr_reg_attr(fixture->pd, &fixture->attr, &mr), -EFAULT);
	registration = fixture_submit(fixture);
	event = fixture_expect_event(fixture, registration, -EFAULT);
	assert_string_equal(event.sentence, pier_error_message());
	expect_ok(pier_registration_close(registration));
	fixture_expect_no_event(fixture);
}

static void registers_keys_and_ranges(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_mr_range ranges[] = { pier_mr_range_host(fixture->memory, 100),
					  pier_mr_range_pointer(fixture->memory + 700,
								50) };
	struct pier_registration *registration;
	struct pier_event event;

	fixture->attr.ranges = ranges;
	fixture->attr.range_count = 2;
	fixture->attr.requested_key = UINT32_MAX;
	registration = fixture_submit(fixture);
	event = fixture_expect_event(fixture, registration, -EKEYREJECTED);
	expect_ok(pier_registration_close(registration));
	fixture->attr.requested_key = 0;
	registration = fixture_submit(fixture);
	event = fixture_expect_event(fixture, registration, 0);
	assert_int_equal(pier_mr_length(event.mr), 150);
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void expect_refusal(struct async_fixture *fixture, int error)
{
	struct pier_registration *registration = (void *)fixture;
	struct test_census before = test_take_census();

	expect_result(pier_mr_reg_async(fixture->queue, fixture->pd, &fixture->attr,
					&registration),
		      error);
	assert_ptr_equal(registration, fixture);
	test_assert_census(&before);
}

/* A refused submission yields no handle and no event, and takes no room. */
static void refuses_mistakes_at_once(void **state)
{
	struct async_fixture *fixture = *state;
	const struct pier_mr_range good = fixture->range,
				   far = { PIER_MR_HOST, -1, (void *)UINTPTR_MAX,
					   NULL,	 0,  10 };
	struct pier_registration *registration = NULL;

	fixture_use_queue(fixture, 1, 1);
	expect_result(pier_mr_reg_async(fixture->queue, fixture->pd, NULL, &registration),
		      -EINVAL);
	assert_null(registration);
	fixture->attr.size = sizeof(fixture->attr.size);
	expect_refusal(fixture, -EINVAL);
	fixture->attr.size = sizeof(fixture->attr);
	fixture->attr.range_count = 0;
	expect_refusal(fixture, -EINVAL);
	fixture->attr.range_count = 1;
	fixture->attr.access = PIER_ACCESS_REMOTE_WRITE;
	expect_refusal(fixture, -EINVAL);
	fixture->attr.access = PIER_ACCESS_SHARED;
	fixture->range.length = 0;
	expect_refusal(fixture, -EINVAL);
	fixture->range = far;
	expect_refusal(fixture, -EINVAL);
	fixture->range = pier_mr_range_dmabuf(CLOSED_FD, 0, 4096);
	expect_refusal(fixture, -EBADF);
	fixture->range = pier_mr_range_buffer(NULL, 0, 4096);
	expect_refusal(fixture, -EINVAL);
	fixture->range = good;
	assert_int_equal(gate.registrations, 0);
	fixture_expect_no_event(fixture);
	registration = fixture_submit(fixture);
	fixture_wait_for_event(fixture);
	expect_ok(pier_registration_close(registration));
}

/* Extensible struct: fields that only a newer library knows must be zero. */
static void refuses_unknown_nonzero_attributes(void **state)
{
	struct async_fixture *fixture = *state;
	struct {
		struct pier_mr_attr attr;
		uint64_t tail;
	} newer = { fixture->attr, 1 };
	struct pier_registration *registration = NULL;

	newer.attr.size = sizeof(newer);
	expect_result(pier_mr_reg_async(fixture->queue, fixture->pd, &newer.attr,
					&registration),
		      -EINVAL);
	assert_null(registration);
	newer.tail = 0;
	expect_ok(pier_mr_reg_async(fixture->queue, fixture->pd, &newer.attr,
				    &registration));
	expect_ok(pier_registration_close(registration));
}

/* Other registrations may be in progress, so nothing is counted. */
static void expect_full(struct async_fixture *fixture)
{
	struct pier_registration *registration = (void *)fixture;

	expect_result(pier_mr_reg_async(fixture->queue, fixture->pd, &fixture->attr,
					&registration),
		      -EAGAIN);
	assert_ptr_equal(registration, fixture);
}

static void refuses_submissions_when_full(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *first, *second;
	struct pier_event event;

	fixture_use_queue(fixture, 1, 2);
	first = fixture_submit(fixture);
	second = fixture_submit(fixture);
	expect_full(fixture);
	/* Reading an event makes room, whether or not its handle is closed. */
	event = fixture_expect_event(fixture, first, 0);
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_registration_close(first));
	first = fixture_submit(fixture);
	expect_full(fixture);
	/* Closing makes room too, in every state. */
	expect_ok(pier_registration_close(second));
	second = fixture_submit(fixture);
	expect_full(fixture);
	expect_ok(pier_registration_close(second));
	expect_ok(pier_registration_close(first));
}

static void closes_finished_registrations(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *kept = fixture_submit(fixture),
				 *closed = fixture_submit(fixture);
	struct pier_event event = fixture_expect_event(fixture, kept, 0);

	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_registration_close(kept));
	fixture_wait_for_event(fixture);
	expect_ok(pier_registration_close(closed));
	fixture_expect_no_event(fixture);
	assert_int_equal(gate.deregistrations, 2);
	assert_int_equal(pier_object_count(PIER_OBJECT_MR),
			 fixture->before.objects[PIER_OBJECT_MR]);
	expect_ok(pier_registration_close(NULL));
}

static void keeps_the_handle_when_closing_fails(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = fixture_submit(fixture);
	struct pier_event event;

	fixture_wait_for_event(fixture);
	gate.dereg_error = EIO;
	expect_result(pier_registration_close(registration), -EIO);
	event = fixture_expect_event(fixture, registration, 0);
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void refuses_to_cancel_finished_registrations(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = fixture_submit(fixture);
	struct pier_event event;

	fixture_wait_for_event(fixture);
	expect_result(pier_registration_cancel(registration), -EALREADY);
	event = fixture_expect_event(fixture, registration, 0);
	expect_result(pier_registration_cancel(registration), -EALREADY);
	fixture_expect_no_event(fixture);
	assert_int_equal(gate.deregistrations, 0);
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void refuses_to_destroy_a_queue_in_use(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registration = fixture_submit(fixture);
	struct pier_event event;

	fixture_wait_for_event(fixture);
	expect_result(pier_event_queue_destroy(fixture->queue), -EBUSY);
	test_assert_sentence("1 registration is not closed");
	event = fixture_expect_event(fixture, registration, 0);
	expect_result(pier_event_queue_destroy(fixture->queue), -EBUSY);
	expect_ok(pier_registration_close(registration));
	/* The region does not need the queue. */
	expect_ok(pier_event_queue_destroy(fixture->queue));
	fixture->queue = NULL;
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_event_queue_destroy(NULL));
}

/* The fd is readable while an event is left; each later event makes a new edge. */
static void can_be_polled(void **state)
{
	struct async_fixture *fixture = *state;
	struct pier_registration *registrations[3];
	struct epoll_event edge = { .events = EPOLLIN | EPOLLET }, seen;
	int epoll = epoll_create1(EPOLL_CLOEXEC),
	    queue = pier_event_queue_fd(fixture->queue);

	assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, queue, &edge), 0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 3; i++)
			registrations[i] = fixture_submit(fixture);
		assert_int_equal(epoll_wait(epoll, &seen, 1, FIXTURE_DEADLINE_MS), 1);
		for (int i = 0; i < 3; i++) {
			struct pier_event event = fixture_expect_event(
				fixture, registrations[i], 0);

			expect_ok(pier_mr_dereg(event.mr));
			expect_ok(pier_registration_close(registrations[i]));
		}
		fixture_expect_no_event(fixture);
		/* Consume an edge that a later one of the three events may have made. */
		epoll_wait(epoll, &seen, 1, 0);
	}
	close(epoll);
}

static void waits_until_the_timeout(void **state)
{
	struct async_fixture *fixture = *state;
	int64_t start = pier_now();
	struct pier_event event;

	expect_result(pier_event_queue_wait(fixture->queue, 30, &event, sizeof(event)),
		      -ETIMEDOUT);
	assert_true(pier_now() - start >= 30 * 1000000);
	expect_result(pier_event_queue_wait(fixture->queue, -2, &event, sizeof(event)),
		      -EINVAL);
}

static void refuses_invalid_attributes(void **state)
{
	struct pier_event_queue_attr attr;
	struct pier_event_queue *queue = NULL;

	pier_event_queue_attr_init(&attr);
	(void)state;
	attr.size--;
	expect_result(pier_event_queue_create(&attr, &queue), -EINVAL);
	attr.size++;
	attr.workers = 0;
	expect_result(pier_event_queue_create(&attr, &queue), -EINVAL);
	attr.workers = 65;
	expect_result(pier_event_queue_create(&attr, &queue), -EINVAL);
	test_assert_sentence("65");
	attr.workers = 64;
	attr.depth = 0;
	expect_result(pier_event_queue_create(&attr, &queue), -EINVAL);
	assert_null(queue);
	attr.depth = UINT32_MAX;
	expect_ok(pier_event_queue_create(&attr, &queue));
	expect_ok(pier_event_queue_destroy(queue));
}

/*
 * Find a line of a file in /proc/self/task/TID, without the newline. Returns false if the
 * thread is gone.
 */
static bool read_task(const char *task, const char *file, const char *begin,
		      char *ret_line, int size)
{
	char path[300];
	bool found = false;
	FILE *stream;

	snprintf(path, sizeof(path), "/proc/self/task/%s/%s", task, file);
	stream = fopen(path, "r");
	if (!stream)
		return false;
	while (!found && fgets(ret_line, size, stream))
		found = strncmp(ret_line, begin, strlen(begin)) == 0;
	fclose(stream);
	return found;
}

/* The threads of event queues block the application's signals. */
static int count_workers(void)
{
	/* SIGKILL and SIGSTOP cannot be blocked; the C library uses 32 and 33. */
	const uint64_t others = 1ull << 8 | 1ull << 18 | 3ull << 31;
	DIR *folder = opendir("/proc/self/task");
	char line[128];
	int count = 0;

	assert_non_null(folder);
	for (struct dirent *entry; (entry = readdir(folder));) {
		if (!read_task(entry->d_name, "comm", "", line, sizeof(line)) ||
		    strcmp(line, "pier-reg\n") != 0 ||
		    !read_task(entry->d_name, "status", "SigBlk:", line, sizeof(line)))
			continue;
		count++;
		assert_true((strtoull(line + 7, NULL, 16) | others) == UINT64_MAX);
	}
	closedir(folder);
	return count;
}

/* A joined thread stays visible for a moment. */
static void expect_workers(int expected)
{
	int64_t deadline = pier_deadline(FIXTURE_DEADLINE_MS);

	while (count_workers() > expected && pier_now() < deadline)
		sched_yield();
	assert_int_equal(count_workers(), expected);
}

static void threads_block_signals(void **state)
{
	struct async_fixture *fixture = *state;

	expect_workers(1);
	fixture_use_queue(fixture, 7, 1);
	expect_workers(7);
	expect_ok(pier_event_queue_destroy(fixture->queue));
	fixture->queue = NULL;
	expect_workers(0);
	expect_ok(pier_event_queue_create(NULL, &fixture->queue));
	expect_workers(2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_case(delivers_a_region),
		fixture_case(delivers_a_failure),
		fixture_case(registers_keys_and_ranges),
		fixture_case(refuses_mistakes_at_once),
		fixture_case(refuses_unknown_nonzero_attributes),
		fixture_case(refuses_submissions_when_full),
		fixture_case(closes_finished_registrations),
		fixture_case(keeps_the_handle_when_closing_fails),
		fixture_case(refuses_to_cancel_finished_registrations),
		fixture_case(refuses_to_destroy_a_queue_in_use),
		fixture_case(can_be_polled),
		fixture_case(waits_until_the_timeout),
		fixture_case(refuses_invalid_attributes),
		fixture_case(threads_block_signals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

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
	struct rig *rig = *state;
	struct pier_registration *registration;
	struct pier_event event;

	rig_expect_no_event(rig);
	registration = rig_submit(rig);
	event = rig_expect_event(rig, registration, 0);
	rig_expect_no_event(rig);
	assert_int_equal(pier_mr_length(event.mr), RIG_LENGTH);
	assert_int_equal(pier_mr_iova(event.mr), (uintptr_t)rig->memory);
	assert_int_equal(pier_mr_access(event.mr), PIER_ACCESS_SHARED);
	assert_ptr_equal(pier_mr_context(event.mr), rig);
	assert_ptr_equal(pier_mr_pd(event.mr), rig->pd);
	expect_ok(pier_registration_close(registration));
	assert_int_equal(gate.deregistrations, 0);
	expect_ok(pier_dereg_mr(event.mr));
}

/* The waiting call repeats the sentence of the driver's refusal. */
static void delivers_a_failure(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration;
	struct pier_event event;
	struct pier_mr *mr;

	rig->range.length += 1;
	expect_result(pier_reg_mr_attr(rig->pd, &rig->attr, &mr), -EFAULT);
	registration = rig_submit(rig);
	event = rig_expect_event(rig, registration, -EFAULT);
	assert_string_equal(event.sentence, pier_error_message());
	expect_ok(pier_registration_close(registration));
	rig_expect_no_event(rig);
}

static void registers_keys_and_ranges(void **state)
{
	struct rig *rig = *state;
	struct pier_mr_range ranges[] = { pier_mr_range_host(rig->memory, 100),
					  pier_mr_range_pointer(rig->memory + 700, 50) };
	struct pier_registration *registration;
	struct pier_event event;

	rig->attr.ranges = ranges;
	rig->attr.range_count = 2;
	rig->attr.requested_key = UINT32_MAX;
	registration = rig_submit(rig);
	event = rig_expect_event(rig, registration, -EKEYREJECTED);
	expect_ok(pier_registration_close(registration));
	rig->attr.requested_key = 0;
	registration = rig_submit(rig);
	event = rig_expect_event(rig, registration, 0);
	assert_int_equal(pier_mr_length(event.mr), 150);
	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void expect_refusal(struct rig *rig, int error)
{
	struct pier_registration *registration = (void *)rig;
	struct test_census before = test_take_census();

	expect_result(pier_reg_mr_async(rig->queue, rig->pd, &rig->attr, &registration),
		      error);
	assert_ptr_equal(registration, rig);
	test_assert_census(&before);
}

/* A refused submission yields no handle and no event, and takes no room. */
static void refuses_mistakes_at_once(void **state)
{
	struct rig *rig = *state;
	const struct pier_mr_range good = rig->range,
				   far = { PIER_MR_HOST, -1, (void *)UINTPTR_MAX,
					   NULL,	 0,  10 };
	struct pier_registration *registration = NULL;

	rig_use_queue(rig, 1, 1);
	expect_result(pier_reg_mr_async(rig->queue, rig->pd, NULL, &registration),
		      -EINVAL);
	assert_null(registration);
	rig->attr.size = sizeof(rig->attr.size);
	expect_refusal(rig, -EINVAL);
	rig->attr.size = sizeof(rig->attr);
	rig->attr.range_count = 0;
	expect_refusal(rig, -EINVAL);
	rig->attr.range_count = 1;
	rig->attr.access = PIER_ACCESS_REMOTE_WRITE;
	expect_refusal(rig, -EINVAL);
	rig->attr.access = PIER_ACCESS_SHARED;
	rig->range.length = 0;
	expect_refusal(rig, -EINVAL);
	rig->range = far;
	expect_refusal(rig, -EINVAL);
	rig->range = pier_mr_range_dmabuf(CLOSED_FD, 0, 4096);
	expect_refusal(rig, -EBADF);
	rig->range = pier_mr_range_buffer(NULL, 0, 4096);
	expect_refusal(rig, -EINVAL);
	rig->range = good;
	assert_int_equal(gate.registrations, 0);
	rig_expect_no_event(rig);
	registration = rig_submit(rig);
	rig_wait_for_event(rig);
	expect_ok(pier_registration_close(registration));
}

/* Extensible struct: fields that only a newer library knows must be zero. */
static void refuses_unknown_nonzero_attributes(void **state)
{
	struct rig *rig = *state;
	struct {
		struct pier_mr_attr attr;
		uint64_t tail;
	} newer = { rig->attr, 1 };
	struct pier_registration *registration = NULL;

	newer.attr.size = sizeof(newer);
	expect_result(pier_reg_mr_async(rig->queue, rig->pd, &newer.attr, &registration),
		      -EINVAL);
	assert_null(registration);
	newer.tail = 0;
	expect_ok(pier_reg_mr_async(rig->queue, rig->pd, &newer.attr, &registration));
	expect_ok(pier_registration_close(registration));
}

/* Other registrations may be in progress, so nothing is counted. */
static void expect_full(struct rig *rig)
{
	struct pier_registration *registration = (void *)rig;

	expect_result(pier_reg_mr_async(rig->queue, rig->pd, &rig->attr, &registration),
		      -EAGAIN);
	assert_ptr_equal(registration, rig);
}

static void refuses_submissions_when_full(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *first, *second;
	struct pier_event event;

	rig_use_queue(rig, 1, 2);
	first = rig_submit(rig);
	second = rig_submit(rig);
	expect_full(rig);
	/* Reading an event makes room, whether or not its handle is closed. */
	event = rig_expect_event(rig, first, 0);
	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_registration_close(first));
	first = rig_submit(rig);
	expect_full(rig);
	/* Closing makes room too, in every state. */
	expect_ok(pier_registration_close(second));
	second = rig_submit(rig);
	expect_full(rig);
	expect_ok(pier_registration_close(second));
	expect_ok(pier_registration_close(first));
}

static void closes_finished_registrations(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *kept = rig_submit(rig), *closed = rig_submit(rig);
	struct pier_event event = rig_expect_event(rig, kept, 0);

	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_registration_close(kept));
	rig_wait_for_event(rig);
	expect_ok(pier_registration_close(closed));
	rig_expect_no_event(rig);
	assert_int_equal(gate.deregistrations, 2);
	assert_int_equal(pier_object_count(PIER_OBJECT_MR),
			 rig->before.objects[PIER_OBJECT_MR]);
	expect_ok(pier_registration_close(NULL));
}

static void keeps_the_handle_when_closing_fails(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = rig_submit(rig);
	struct pier_event event;

	rig_wait_for_event(rig);
	gate.dereg_error = EIO;
	expect_result(pier_registration_close(registration), -EIO);
	event = rig_expect_event(rig, registration, 0);
	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void refuses_to_cancel_finished_registrations(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = rig_submit(rig);
	struct pier_event event;

	rig_wait_for_event(rig);
	expect_result(pier_registration_cancel(registration), -EALREADY);
	event = rig_expect_event(rig, registration, 0);
	expect_result(pier_registration_cancel(registration), -EALREADY);
	rig_expect_no_event(rig);
	assert_int_equal(gate.deregistrations, 0);
	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_registration_close(registration));
}

static void refuses_to_destroy_a_queue_in_use(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registration = rig_submit(rig);
	struct pier_event event;

	rig_wait_for_event(rig);
	expect_result(pier_event_queue_destroy(rig->queue), -EBUSY);
	test_assert_sentence("1 registration is not closed");
	event = rig_expect_event(rig, registration, 0);
	expect_result(pier_event_queue_destroy(rig->queue), -EBUSY);
	expect_ok(pier_registration_close(registration));
	/* The region does not need the queue. */
	expect_ok(pier_event_queue_destroy(rig->queue));
	rig->queue = NULL;
	expect_ok(pier_dereg_mr(event.mr));
	expect_ok(pier_event_queue_destroy(NULL));
}

/* The fd is readable while an event is left; each later event makes a new edge. */
static void can_be_polled(void **state)
{
	struct rig *rig = *state;
	struct pier_registration *registrations[3];
	struct epoll_event edge = { .events = EPOLLIN | EPOLLET }, seen;
	int epoll = epoll_create1(EPOLL_CLOEXEC), queue = pier_event_queue_fd(rig->queue);

	assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, queue, &edge), 0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 3; i++)
			registrations[i] = rig_submit(rig);
		assert_int_equal(epoll_wait(epoll, &seen, 1, RIG_DEADLINE_MS), 1);
		for (int i = 0; i < 3; i++) {
			struct pier_event event = rig_expect_event(rig, registrations[i],
								   0);

			expect_ok(pier_dereg_mr(event.mr));
			expect_ok(pier_registration_close(registrations[i]));
		}
		rig_expect_no_event(rig);
		/* Consume an edge that a later one of the three events may have made. */
		epoll_wait(epoll, &seen, 1, 0);
	}
	close(epoll);
}

static void waits_until_the_timeout(void **state)
{
	struct rig *rig = *state;
	int64_t start = pier_now();
	struct pier_event event;

	expect_result(pier_event_queue_wait(rig->queue, 30, &event), -ETIMEDOUT);
	assert_true(pier_now() - start >= 30 * 1000000);
	expect_result(pier_event_queue_wait(rig->queue, -1, &event), -EINVAL);
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
	int64_t deadline = pier_deadline(RIG_DEADLINE_MS);

	while (count_workers() > expected && pier_now() < deadline)
		sched_yield();
	assert_int_equal(count_workers(), expected);
}

static void threads_block_signals(void **state)
{
	struct rig *rig = *state;

	expect_workers(1);
	rig_use_queue(rig, 7, 1);
	expect_workers(7);
	expect_ok(pier_event_queue_destroy(rig->queue));
	rig->queue = NULL;
	expect_workers(0);
	expect_ok(pier_event_queue_create(NULL, &rig->queue));
	expect_workers(2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		rig_case(delivers_a_region),
		rig_case(delivers_a_failure),
		rig_case(registers_keys_and_ranges),
		rig_case(refuses_mistakes_at_once),
		rig_case(refuses_unknown_nonzero_attributes),
		rig_case(refuses_submissions_when_full),
		rig_case(closes_finished_registrations),
		rig_case(keeps_the_handle_when_closing_fails),
		rig_case(refuses_to_cancel_finished_registrations),
		rig_case(refuses_to_destroy_a_queue_in_use),
		rig_case(can_be_polled),
		rig_case(waits_until_the_timeout),
		rig_case(refuses_invalid_attributes),
		rig_case(threads_block_signals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

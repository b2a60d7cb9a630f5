/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_ASYNC_FIXTURE_H
#define TESTS_UNIT_ASYNC_FIXTURE_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/pier.h>

#include "device/device.h"
#include "core/deadline.h"

/*
 * soft0 behind a gate. Driver calls that register wait while the gate is shut, until the
 * test lets them through; the test can also make them fail.
 */

enum {
	FIXTURE_PAGE = 4096,
	FIXTURE_PAGES = 16,
	FIXTURE_LENGTH = FIXTURE_PAGES * FIXTURE_PAGE,
	FIXTURE_DEADLINE_MS = 60000,
};

/* The lock protects all fields. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool shut;
	int permits;	 /* calls that may pass the shut gate */
	int inside;	 /* calls that are waiting now */
	int most;	 /* most calls that ever waited at once */
	int reg_error;	 /* errno of the next registrations, or 0 */
	int dereg_error; /* errno of the next deregistration, or 0 */
	int registrations, deregistrations;
};

struct async_fixture {
	struct test_census before;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_event_queue *queue;
	uint8_t *memory; /* FIXTURE_LENGTH bytes, followed by an inaccessible page */
	struct pier_mr_range range;
	struct pier_mr_attr attr; /* covers all of `range` */
};

static struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Returns 0, or the errno that the call fails with. */
static int pass_gate(void)
{
	int error;

	pthread_mutex_lock(&gate.lock);
	gate.registrations++;
	gate.inside++;
	if (gate.inside > gate.most)
		gate.most = gate.inside;
	pthread_cond_broadcast(&gate.changed);
	while (gate.shut && gate.permits == 0)
		pthread_cond_wait(&gate.changed, &gate.lock);
	if (gate.shut)
		gate.permits--;
	gate.inside--;
	error = gate.reg_error;
	pthread_mutex_unlock(&gate.lock);
	errno = error;
	return error;
}

static struct ibv_mr *gated_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				   uint64_t iova, int access)
{
	return pass_gate() ? NULL
			   : pier_soft_provider.reg_mr(pd, addr, length, iova, access);
}

static struct ibv_mr *gated_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
					  size_t length, uint64_t iova, int fd,
					  int access)
{
	return pass_gate() ? NULL
			   : pier_soft_provider.reg_dmabuf_mr(pd, offset, length, iova,
							      fd, access);
}

static int gated_dereg_mr(struct ibv_mr *mr)
{
	int error;

	pthread_mutex_lock(&gate.lock);
	error = gate.dereg_error;
	gate.dereg_error = 0;
	gate.deregistrations += error == 0;
	pthread_mutex_unlock(&gate.lock);
	return error ? error : pier_soft_provider.dereg_mr(mr);
}

static inline void set_gate(bool shut)
{
	pthread_mutex_lock(&gate.lock);
	gate.shut = shut;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

static inline void let_one_through(void)
{
	pthread_mutex_lock(&gate.lock);
	gate.permits++;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

static inline void wait_for_gate(int inside)
{
	int64_t end = pier_deadline(FIXTURE_DEADLINE_MS);
	struct timespec until = { end / 1000000000, end % 1000000000 };
	int error = 0;

	pthread_mutex_lock(&gate.lock);
	while (gate.inside != inside && !error)
		error = pthread_cond_timedwait(&gate.changed, &gate.lock, &until);
	pthread_mutex_unlock(&gate.lock);
	assert_int_equal(error, 0);
}

static inline void fixture_use_queue(struct async_fixture *fixture, uint32_t workers,
				     uint32_t depth)
{
	struct pier_event_queue_attr attr;

	pier_event_queue_attr_init(&attr);
	attr.workers = workers;
	attr.depth = depth;
	expect_ok(pier_event_queue_destroy(fixture->queue));
	expect_ok(pier_event_queue_create(&attr, &fixture->queue));
}

/* A queue of one thread: a job behind one that waits at the gate stays queued. */
static inline int fixture_setup(void **state)
{
	static struct pier_provider gated;
	struct async_fixture *fixture = calloc(1, sizeof(*fixture));
	pthread_condattr_t clock;

	gate = (struct gate){ .lock = PTHREAD_MUTEX_INITIALIZER };
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&gate.changed, &clock);
	assert_non_null(fixture);
	fixture->before = test_take_census();
	fixture->memory = mmap(NULL, FIXTURE_LENGTH + FIXTURE_PAGE,
			       PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			       0);
	assert_true(fixture->memory != MAP_FAILED);
	assert_int_equal(
		mprotect(fixture->memory + FIXTURE_LENGTH, FIXTURE_PAGE, PROT_NONE), 0);
	expect_ok(pier_device_open("soft0", &fixture->device));
	gated = *fixture->device->provider;
	gated.reg_mr = gated_reg_mr;
	gated.reg_dmabuf_mr = gated_reg_dmabuf_mr;
	gated.dereg_mr = gated_dereg_mr;
	fixture->device->provider = &gated;
	expect_ok(pier_pd_alloc(fixture->device, &fixture->pd));
	fixture_use_queue(fixture, 1, 1024);
	fixture->range = pier_mr_range_host(fixture->memory, FIXTURE_LENGTH);
	pier_mr_attr_init(&fixture->attr);
	fixture->attr.ranges = &fixture->range;
	fixture->attr.range_count = 1;
	fixture->attr.access = PIER_ACCESS_SHARED;
	fixture->attr.context = fixture;
	*state = fixture;
	return 0;
}

/* Calls in the driver finish on their own. */
static inline void fixture_destroy_queue(struct async_fixture *fixture)
{
	int64_t deadline = pier_deadline(FIXTURE_DEADLINE_MS);
	int error;

	while ((error = pier_event_queue_destroy(fixture->queue)) == -EBUSY &&
	       strstr(pier_error_message(), "still works") && pier_now() < deadline)
		sched_yield();
	expect_ok(error);
	fixture->queue = NULL;
}

static inline int fixture_teardown(void **state)
{
	struct async_fixture *fixture = *state;

	set_gate(false);
	fixture_destroy_queue(fixture);
	expect_ok(pier_pd_dealloc(fixture->pd));
	expect_ok(pier_device_close(fixture->device));
	munmap(fixture->memory, FIXTURE_LENGTH + FIXTURE_PAGE);
	test_assert_census(&fixture->before);
	free(fixture);
	return 0;
}

#define fixture_case(body) \
	cmocka_unit_test_setup_teardown(body, fixture_setup, fixture_teardown)

static inline struct pier_registration *fixture_submit(struct async_fixture *fixture)
{
	struct pier_registration *registration = NULL;

	expect_ok(pier_mr_reg_async(fixture->queue, fixture->pd, &fixture->attr,
				    &registration));
	assert_non_null(registration);
	return registration;
}

static inline bool fixture_readable(const struct async_fixture *fixture)
{
	struct pollfd fd = { .fd = pier_event_queue_fd(fixture->queue),
			     .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

/* No event, by any way of asking. */
static inline void fixture_expect_no_event(struct async_fixture *fixture)
{
	struct pier_event event;

	assert_false(fixture_readable(fixture));
	expect_result(pier_event_queue_wait(fixture->queue, 0, &event, sizeof(event)), 0);
	expect_result(pier_event_queue_wait(fixture->queue, 0, &event, sizeof(event)), 0);
}

/* The next event, which must belong to this registration. */
static inline struct pier_event fixture_expect_event(
	struct async_fixture *fixture, struct pier_registration *registration, int error)
{
	struct pier_event event;

	memset(&event, 0xa5, sizeof(event));
	expect_result(pier_event_queue_wait(fixture->queue, FIXTURE_DEADLINE_MS, &event,
					    sizeof(event)),
		      1);
	assert_int_equal(event.kind, PIER_EVENT_MR_REGISTERED);
	assert_ptr_equal(event.registration, registration);
	assert_ptr_equal(event.context, fixture->attr.context);
	if (event.error != error)
		fail_msg("%d, not %d: %s", event.error, error, event.sentence);
	assert_int_equal(event.mr == NULL, error != 0);
	assert_int_equal(event.sentence[0] == '\0', error == 0);
	return event;
}

static inline void fixture_wait_for_event(struct async_fixture *fixture)
{
	struct pollfd fd = { .fd = pier_event_queue_fd(fixture->queue),
			     .events = POLLIN };

	assert_int_equal(poll(&fd, 1, FIXTURE_DEADLINE_MS), 1);
}

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "tests/unit/channel/counter_fixture.h"

/* Counters over a NIC that moves nothing, but counts what the test says. */

enum {
	PARTS = 3,
};

/* The counter of verbs region i. */
static struct {
	struct ibv_mr mrs[PARTS];
	struct pier_provider_counter *bound[PARTS];
	int calls;
	int fail_call; /* this call fails, from 1 */
} counting;

static int bind_counter(struct ibv_mr *mr, struct pier_provider_counter *counter)
{
	struct pier_provider_counter **bound = &counting.bound[mr - counting.mrs];

	if (++counting.calls == counting.fail_call)
		return ENOSPC;
	if (counter && *bound)
		return EBUSY;
	*bound = counter;
	return 0;
}

/* A write of a peer into verbs region i. */
static void arrive(int part)
{
	struct pier_provider_counter *counter = counting.bound[part];

	if (!counter)
		return;
	atomic_fetch_add(&counter->value, 1);
	counter->notify(counter);
}

static struct pier_pd *counting_pd(void)
{
	static struct pier_provider provider;
	struct pier_pd *pd = fake_reset();

	memset(&counting, 0, sizeof(counting));
	provider = *pd->device->provider;
	provider.bind_counter = bind_counter;
	pd->device->provider = &provider;
	return pd;
}

static void soft0_counts_writes(void **state)
{
	struct pier_device_attr attr = { 0 };
	struct pier_device *device;

	(void)state;
	expect_ok(pier_device_open(PIER_SOFT_DEVICE, &device));
	expect_ok(pier_device_query(device, &attr, sizeof(attr)));
	assert_true(attr.counters);
	expect_ok(pier_device_close(device));
}

static void keeps_its_value(void **state)
{
	struct pier_counter *counter = counter_of(fake_reset());

	(void)state;
	assert_int_equal(fake.pd.children, 1);
	assert_int_equal(pier_object_count(PIER_OBJECT_COUNTER), 1);
	assert_int_equal(pier_counter_read(counter), 0);
	expect_ok(pier_counter_add(counter, UINT64_MAX));
	assert_true(pier_counter_read(counter) == UINT64_MAX);
	expect_ok(pier_counter_add(counter, 3));
	assert_int_equal(pier_counter_read(counter), 2);
	destroy(counter);
	expect_ok(pier_counter_destroy(NULL));
}

/* As in a child of fork(2): nothing is done, and no lock is taken. */
static void child_leaves_the_counter_alone(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);

	(void)state;
	expect_ok(pier_counter_bind(counter, &mr));
	counter->object.generation++;
	expect_result(pier_counter_bind(counter, &mr), -ECHILD);
	test_assert_sentence("counter on fake0");
	expect_result(pier_counter_bind_imm(counter, &mr, (void *)&mr, 1), -ECHILD);
	expect_result(pier_counter_unbind(counter, &mr), -ECHILD);
	expect_result(pier_counter_add(counter, 5), -ECHILD);
	expect_result(pier_counter_wait(counter, 0, 0), -ECHILD);
	expect_result(pier_counter_destroy(counter), -ECHILD);
	assert_int_equal(pier_counter_read(counter), 0);
	counter->object.generation--;
	expect_ok(pier_counter_unbind(counter, &mr));
	destroy(counter);
}

static void reports_that_a_device_cannot_count(void **state)
{
	struct pier_pd *pd = fake_reset();
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);

	(void)state;
	expect_result(pier_counter_bind(counter, &mr), -EOPNOTSUPP);
	test_assert_sentence("1000 bytes on fake0");
	test_assert_sentence("pier_counter_bind_imm()");
	assert_int_equal(mr.counters, 0);
	destroy(counter);
}

static void binds_and_unbinds(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd), *other = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);

	(void)state;
	expect_ok(pier_counter_bind(counter, &mr));
	expect_result(pier_counter_bind(other, &mr), -EBUSY);
	test_assert_sentence("the region has a counter");
	expect_result(pier_counter_unbind(other, &mr), -ENOENT);
	expect_result(pier_counter_destroy(counter), -EBUSY);
	expect_result(pier_mr_dereg(&mr), -EBUSY);
	test_assert_sentence("a counter is bound");
	arrive(0);
	arrive(0);
	assert_int_equal(pier_counter_read(counter), 2);
	assert_int_equal(pier_counter_read(other), 0);
	expect_ok(pier_counter_unbind(counter, &mr));
	assert_int_equal(mr.counters, 0);
	assert_null(counting.bound[0]);
	expect_ok(pier_counter_bind(other, &mr));
	arrive(0);
	assert_int_equal(pier_counter_read(counter), 2);
	assert_int_equal(pier_counter_read(other), 1);
	expect_ok(pier_counter_unbind(other, &mr));
	expect_ok(pier_counter_destroy(other));
	destroy(counter);
}

static void binds_every_part_or_none(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);
	struct pier_mr_part parts[PARTS];

	(void)state;
	for (int i = 0; i < PARTS; i++)
		parts[i] = (struct pier_mr_part){ .mr = &counting.mrs[i] };
	mr.parts = parts;
	mr.part_count = PARTS;
	for (int call = 1; call <= PARTS; call++) {
		counting.calls = 0;
		counting.fail_call = call;
		expect_result(pier_counter_bind(counter, &mr), -ENOSPC);
		assert_int_equal(mr.counters, 0);
		for (int i = 0; i < PARTS; i++)
			assert_null(counting.bound[i]);
	}
	counting.fail_call = 0;
	expect_ok(pier_counter_bind(counter, &mr));
	for (int i = 0; i < PARTS; i++)
		arrive(i);
	assert_int_equal(pier_counter_read(counter), PARTS);
	/* If the device fails to unbind, it can be tried again. */
	counting.calls = 0;
	counting.fail_call = 2;
	expect_result(pier_counter_unbind(counter, &mr), -ENOSPC);
	expect_result(pier_counter_destroy(counter), -EBUSY);
	expect_ok(pier_counter_unbind(counter, &mr));
	for (int i = 0; i < PARTS; i++)
		assert_null(counting.bound[i]);
	destroy(counter);
}

static void counts_for_several_regions(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr a = region_of(pd, &counting.mrs[0]);
	struct pier_mr b = region_of(pd, &counting.mrs[1]);

	(void)state;
	expect_ok(pier_counter_bind(counter, &a));
	expect_ok(pier_counter_bind(counter, &b));
	expect_result(pier_counter_bind(counter, &b), -EBUSY);
	arrive(0);
	arrive(1);
	expect_ok(pier_counter_unbind(counter, &a));
	arrive(0);
	arrive(1);
	assert_int_equal(pier_counter_read(counter), 3);
	expect_result(pier_counter_destroy(counter), -EBUSY);
	expect_ok(pier_counter_unbind(counter, &b));
	destroy(counter);
}

static void refuses_invalid_attributes(void **state)
{
	struct pier_pd *pd = counting_pd(), other = *pd;
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);

	(void)state;
	mr.access = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_READ;
	expect_result(pier_counter_bind(counter, &mr), -EACCES);
	test_assert_sentence("PIER_ACCESS_REMOTE_WRITE");
	mr = region_of(&other, &counting.mrs[0]);
	expect_result(pier_counter_bind(counter, &mr), -EINVAL);
	test_assert_sentence("one protection domain");
	assert_int_equal(counting.calls, 0);
	expect_result(pier_counter_unbind(counter, &mr), -ENOENT);
	destroy(counter);
}

static void waits_no_longer_than_its_timeout(void **state)
{
	struct pier_counter *counter = counter_of(counting_pd());
	int64_t start = pier_now();

	(void)state;
	expect_result(pier_counter_wait(counter, 1, -2), -EINVAL);
	test_assert_sentence("timeout_ms -2");
	expect_result(pier_counter_wait(counter, 1, 0), 0);
	expect_result(pier_counter_wait(counter, 1, BRIEF), -ETIMEDOUT);
	assert_true(pier_now() - start >= BRIEF * INT64_C(1000000));
	test_assert_sentence("did not reach 1 within 30 ms; it is at 0");
	expect_result(pier_counter_wait(counter, 0, 0), 1);
	pier_counter_add(counter, 1);
	expect_result(pier_counter_wait(counter, 1, 0), 1);
	destroy(counter);
}

struct waiter {
	struct pier_counter *counter;
	uint64_t threshold;
	int result;
	uint64_t seen;
};

/* A lost wake-up ends with the deadline, and the value is found then. */
static int wait_awake(struct pier_counter *counter, uint64_t threshold)
{
	int64_t deadline = pier_deadline(PATIENT);
	int done = pier_counter_wait(counter, threshold, PATIENT);

	if (done < 0)
		return done;
	return pier_now() >= deadline ? -ETIME : 0;
}

static void *wait_for_value(void *argument)
{
	struct waiter *waiter = argument;

	waiter->result = wait_awake(waiter->counter, waiter->threshold);
	waiter->seen = pier_counter_read(waiter->counter);
	return NULL;
}

static uint64_t wake_at(struct pier_counter *counter)
{
	uint64_t value;

	pthread_mutex_lock(&counter->sleeping);
	value = counter->wake_at;
	pthread_mutex_unlock(&counter->sleeping);
	return value;
}

/* Until a thread waits for that value and none for a lower one. */
static void await_sleeper(struct pier_counter *counter, uint64_t value)
{
	int64_t deadline = pier_deadline(PATIENT);

	while (wake_at(counter) != value) {
		assert_true(pier_now() < deadline);
		sched_yield();
	}
}

/* Start a wait, and return once it sleeps. */
static pthread_t begin(struct waiter *waiter)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, wait_for_value, waiter), 0);
	await_sleeper(waiter->counter, waiter->threshold);
	return thread;
}

static void finish(pthread_t thread, const struct waiter *waiter)
{
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(waiter->result, 0);
	assert_true(waiter->seen >= waiter->threshold);
}

/* A broadcast would forget the value that a thread waits for. */
static void wakes_no_thread_too_early(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);
	struct waiter waiter = { .counter = counter, .threshold = 100 };
	pthread_t thread;

	(void)state;
	expect_ok(pier_counter_bind(counter, &mr));
	thread = begin(&waiter);
	for (int i = 1; i < 100; i++) {
		arrive(0);
		assert_int_equal(wake_at(counter), 100);
	}
	arrive(0);
	finish(thread, &waiter);
	assert_true(wake_at(counter) == UINT64_MAX);
	expect_ok(pier_counter_unbind(counter, &mr));
	destroy(counter);
}

/* Also the thread that waits for more and was there first. */
static void wakes_each_at_its_value(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);
	struct waiter late = { .counter = counter, .threshold = 9 };
	struct waiter soon = { .counter = counter, .threshold = 4 };
	pthread_t threads[2];

	(void)state;
	expect_ok(pier_counter_bind(counter, &mr));
	threads[0] = begin(&late);
	threads[1] = begin(&soon);
	for (int i = 0; i < 4; i++)
		arrive(0);
	finish(threads[1], &soon);
	await_sleeper(counter, 9);
	for (int i = 4; i < 9; i++)
		arrive(0);
	finish(threads[0], &late);
	expect_ok(pier_counter_unbind(counter, &mr));
	destroy(counter);
}

static void can_be_woken_by_the_caller(void **state)
{
	struct pier_counter *counter = counter_of(counting_pd());
	struct waiter waiter = { .counter = counter, .threshold = 5 };
	pthread_t thread = begin(&waiter);

	(void)state;
	pier_counter_add(counter, 5);
	finish(thread, &waiter);
	waiter.threshold = 50;
	thread = begin(&waiter);
	pier_counter_add(counter, 55);
	finish(thread, &waiter);
	destroy(counter);
}

enum {
	WAITERS = 16,
	ROUNDS = 5000,
};

/* Waits for each of its values in turn, from its number on. */
static void *wait_for_many(void *argument)
{
	struct waiter *waiter = argument;

	while (waiter->threshold <= ROUNDS && waiter->result == 0) {
		waiter->result = wait_awake(waiter->counter, waiter->threshold);
		waiter->threshold += WAITERS;
	}
	return NULL;
}

static void loses_no_wakeup(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd);
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);
	struct waiter waiters[WAITERS];
	pthread_t threads[WAITERS];

	(void)state;
	expect_ok(pier_counter_bind(counter, &mr));
	for (int i = 0; i < WAITERS; i++) {
		waiters[i] = (struct waiter){ .counter = counter,
					      .threshold = (uint64_t)i + 1 };
		assert_int_equal(
			pthread_create(&threads[i], NULL, wait_for_many, &waiters[i]), 0);
	}
	/*
	 * No value comes before a thread asked for it, and half of the time that thread
	 * sleeps.
	 */
	for (int i = 0; i < ROUNDS; i++) {
		if (i % 2)
			await_sleeper(counter, (uint64_t)i + 1);
		arrive(0);
	}
	for (int i = 0; i < WAITERS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(waiters[i].result, 0);
	}
	assert_int_equal(pier_counter_read(counter), ROUNDS);
	expect_ok(pier_counter_unbind(counter, &mr));
	destroy(counter);
}

static void refuses_to_mix_ways_of_counting(void **state)
{
	struct pier_pd *pd = counting_pd();
	struct pier_counter *counter = counter_of(pd);
	struct pier_channel_attr attr;
	struct pier_mr mr = region_of(pd, &counting.mrs[0]);
	struct pier_channel *channel;

	pier_channel_attr_init(&attr);
	(void)state;
	attr.max_send_sge = attr.max_recv_sge = attr.max_rd_atomic = 1;
	expect_ok(pier_channel_create(pd, &attr, &channel));
	expect_ok(pier_counter_bind(counter, &mr));
	expect_result(pier_counter_bind_imm(counter, &mr, channel, 1), -EINVAL);
	test_assert_sentence("bound natively");
	expect_ok(pier_counter_unbind(counter, &mr));
	expect_ok(pier_counter_bind_imm(counter, &mr, channel, 1));
	expect_result(pier_counter_bind(counter, &mr), -EINVAL);
	test_assert_sentence("has channels bound");
	expect_ok(pier_counter_unbind(counter, &mr));
	expect_ok(pier_channel_destroy(channel));
	destroy(counter);
}

static int interrupt_at_second(void *calls)
{
	return ++*(int *)calls == 2;
}

static void wait_can_be_interrupted(void **state)
{
	struct pier_counter *counter = counter_of(fake_reset());
	int calls = 0;

	(void)state;
	pier_interrupt_set(interrupt_at_second, &calls);
	expect_result(pier_counter_wait(counter, 1, PATIENT), -EINTR);
	test_assert_sentence("interrupted");
	assert_int_equal(calls, 2);
	/* The check lets it go on. */
	expect_result(pier_counter_wait(counter, 1, 1), -ETIMEDOUT);
	pier_interrupt_set(NULL, NULL);
	destroy(counter);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		counter_case(soft0_counts_writes),
		counter_case(keeps_its_value),
		counter_case(child_leaves_the_counter_alone),
		counter_case(reports_that_a_device_cannot_count),
		counter_case(binds_and_unbinds),
		counter_case(binds_every_part_or_none),
		counter_case(counts_for_several_regions),
		counter_case(refuses_invalid_attributes),
		counter_case(waits_no_longer_than_its_timeout),
		counter_case(wakes_no_thread_too_early),
		counter_case(wakes_each_at_its_value),
		counter_case(can_be_woken_by_the_caller),
		counter_case(loses_no_wakeup),
		counter_case(refuses_to_mix_ways_of_counting),
		counter_case(wait_can_be_interrupted),
	};

	return cmocka_run_group_tests_name("counters", cases, NULL, NULL);
}

/*
 * SPDX-License-Identifier: BSD-3-Clause
 *
 * An event queue that many threads use at once: none of them waits for another,
 * and every registration is accounted for.
 */
#include "async_fixture.h"
#include "tests/support/random.h"

#include <stdatomic.h>

/* The caller's plain variable. It is not atomic, so that TSan checks the access. */
struct order {
	struct async_fixture *fixture;
	struct pier_registration *handle;
	atomic_int rounds_read;
	_Atomic(const char *) problem;
};

enum {
	ROUNDS = 2000
};

static const char *read_one(struct order *order, int64_t deadline)
{
	struct pier_event event;

	while (!pier_event_queue_wait(order->fixture->queue, 0, &event, sizeof(event)))
		if (pier_now() > deadline)
			return "no event";
	if (event.registration != order->handle)
		return "the event came before the handle";
	if (pier_mr_dereg(event.mr) || pier_registration_close(order->handle))
		return "not given back";
	return NULL;
}

static void *read_events(void *argument)
{
	struct order *order = argument;
	int64_t deadline = pier_deadline(FIXTURE_DEADLINE_MS);
	const char *problem = NULL;

	for (int round = 0; round < ROUNDS && !problem; round++) {
		problem = read_one(order, deadline);
		atomic_store(&order->problem, problem);
		atomic_store(&order->rounds_read, round + 1);
	}
	return NULL;
}

static void writes_the_handle_before_the_event(void **state)
{
	struct order order = { .fixture = *state };
	pthread_t reader;

	assert_int_equal(pthread_create(&reader, NULL, read_events, &order), 0);
	for (int round = 0; round < ROUNDS && !atomic_load(&order.problem); round++) {
		order.handle = NULL;
		expect_ok(pier_mr_reg_async(order.fixture->queue, order.fixture->pd,
					    &order.fixture->attr, &order.handle));
		while (atomic_load(&order.rounds_read) <= round)
			sched_yield();
	}
	pthread_join(reader, NULL);
	if (atomic_load(&order.problem))
		fail_msg("%s", atomic_load(&order.problem));
}

enum {
	COUNT = 10000,
	WORKERS = 4,
	SUBMITTERS = 2,
	READERS = 2,
	MEDDLERS = 2,
};

/* One registration. Its lock protects everything except the outcome. */
struct slot {
	pthread_mutex_t lock;
	struct pier_registration *handle; /* NULL: not submitted yet, or closed */
	bool submitted, closed, cancelled;
	int error;	     /* the expected outcome if nobody cancels */
	int events, outcome; /* the event that came */
	uint64_t closed_at;  /* the crowd's clock at the time, or 0 */
};

struct crowd {
	struct async_fixture *fixture;
	struct slot *slots;
	struct pier_buffer *buffer;
	uint64_t seed;
	atomic_uint next;     /* next slot to submit */
	atomic_uint settled;  /* slots whose event was read or that were closed before */
	atomic_bool ended;    /* the submitters have finished */
	atomic_ullong clock;  /* increases with each closed handle */
	atomic_int threads;   /* for seeds */
	atomic_uint problems; /* violated rules: reported on stderr */
	int64_t deadline;
};

static bool check(struct crowd *crowd, bool fine, const char *what, size_t index)
{
	if (fine)
		return true;
	fprintf(stderr, "registration %zu: %s: %s\n", index, what, pier_error_message());
	atomic_fetch_add(&crowd->problems, 1);
	return false;
}

static struct test_random crowd_random(struct crowd *crowd)
{
	uint64_t thread = (uint64_t)atomic_fetch_add(&crowd->threads, 1) + 1;

	return (struct test_random){ (crowd->seed ^ (thread << 40)) | 1 };
}

/* Memory of some kind; sometimes one page too many, which is not mapped. */
static struct pier_mr_range choose_range(struct crowd *crowd, struct test_random *random,
					 int *ret_error)
{
	size_t page = test_random_below(random, FIXTURE_PAGES);
	struct pier_mr_range host = pier_mr_range_host(
		crowd->fixture->memory + page * FIXTURE_PAGE,
		FIXTURE_LENGTH - page * FIXTURE_PAGE);
	struct pier_mr_range buffer = pier_mr_range_buffer(
		crowd->buffer, page * FIXTURE_PAGE, FIXTURE_PAGE);

	*ret_error = 0;
	if (test_random_below(random, 3) == 0)
		return buffer;
	if (test_random_below(random, 8) == 0) {
		host.length += FIXTURE_PAGE;
		*ret_error = -EFAULT;
	}
	return host;
}

static void close_slot(struct crowd *crowd, struct slot *slot)
{
	size_t index = (size_t)(slot - crowd->slots);

	check(crowd, pier_registration_close(slot->handle) == 0, "not closed", index);
	slot->handle = NULL;
	slot->closed = true;
	slot->closed_at = atomic_fetch_add(&crowd->clock, 1) + 1;
	if (slot->events == 0)
		atomic_fetch_add(&crowd->settled, 1);
}

/* The caller holds the slot's lock. */
static void meddle(struct crowd *crowd, struct slot *slot, struct test_random *random)
{
	int error;

	if (test_random_below(random, 3) == 0) {
		close_slot(crowd, slot);
		return;
	}
	error = pier_registration_cancel(slot->handle);
	check(crowd, error == 0 || error == -EALREADY, "not cancelled",
	      (size_t)(slot - crowd->slots));
	slot->cancelled = slot->cancelled || error == 0;
}

static void submit(struct crowd *crowd, struct test_random *random, size_t index)
{
	struct slot *slot = &crowd->slots[index];
	struct pier_mr_range range = choose_range(crowd, random, &slot->error);
	struct pier_mr_attr attr = crowd->fixture->attr;
	int error;

	attr.ranges = &range;
	attr.context = slot;
	pthread_mutex_lock(&slot->lock);
	while ((error = pier_mr_reg_async(crowd->fixture->queue, crowd->fixture->pd,
					  &attr, &slot->handle)) == -EAGAIN &&
	       pier_now() < crowd->deadline)
		sched_yield();
	slot->submitted = check(crowd, error == 0, "not submitted", index);
	if (slot->submitted && test_random_below(random, 4) == 0)
		meddle(crowd, slot, random);
	pthread_mutex_unlock(&slot->lock);
}

static void *run_submitter(void *argument)
{
	struct crowd *crowd = argument;
	struct test_random random = crowd_random(crowd);
	size_t index;

	while ((index = atomic_fetch_add(&crowd->next, 1)) < COUNT)
		submit(crowd, &random, index);
	return NULL;
}

/* A recently submitted one can be in any state. */
static void *run_meddler(void *argument)
{
	struct crowd *crowd = argument;
	struct test_random random = crowd_random(crowd);

	while (!atomic_load(&crowd->ended)) {
		size_t last = atomic_load(&crowd->next);
		size_t index = last - 1 - test_random_below(&random, 9);
		struct slot *slot = &crowd->slots[index < COUNT ? index : 0];

		if (pthread_mutex_trylock(&slot->lock))
			continue;
		if (slot->handle)
			meddle(crowd, slot, &random);
		pthread_mutex_unlock(&slot->lock);
		sched_yield();
	}
	return NULL;
}

/* `asked_at`: the clock before the event was requested. */
static void take_event(struct crowd *crowd, const struct pier_event *event,
		       uint64_t asked_at)
{
	struct slot *slot = event->context;
	size_t index = (size_t)(slot - crowd->slots);

	pthread_mutex_lock(&slot->lock);
	check(crowd, slot->submitted, "an event of a call that failed", index);
	check(crowd, slot->events == 0, "a second event", index);
	check(crowd, !slot->handle || slot->handle == event->registration,
	      "another's event", index);
	check(crowd, !slot->closed || slot->closed_at > asked_at,
	      "an event after the closing", index);
	if (!slot->closed)
		atomic_fetch_add(&crowd->settled, 1);
	slot->events++;
	slot->outcome = event->error;
	pthread_mutex_unlock(&slot->lock);
	check(crowd, (event->mr == NULL) == (event->error != 0), "region or error",
	      index);
	if (event->mr)
		check(crowd,
		      test_mr_info(event->mr).context == slot &&
			      pier_mr_dereg(event->mr) == 0,
		      "its region", index);
}

static void *run_reader(void *argument)
{
	struct crowd *crowd = argument;
	struct test_random random = crowd_random(crowd);

	while (atomic_load(&crowd->settled) < COUNT && pier_now() < crowd->deadline) {
		uint64_t asked_at = atomic_load(&crowd->clock);
		struct pier_event event;

		if (pier_event_queue_wait(crowd->fixture->queue,
					  (int)test_random_below(&random, 2), &event,
					  sizeof(event)) == 1)
			take_event(crowd, &event, asked_at);
	}
	return NULL;
}

static void start(pthread_t *threads, int count, void *(*run)(void *),
		  struct crowd *crowd)
{
	for (int i = 0; i < count; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run, crowd), 0);
}

static void join(pthread_t *threads, int count)
{
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

static void run_crowd(struct crowd *crowd)
{
	pthread_t submitters[SUBMITTERS], meddlers[MEDDLERS], readers[READERS];

	start(readers, READERS, run_reader, crowd);
	start(meddlers, MEDDLERS, run_meddler, crowd);
	start(submitters, SUBMITTERS, run_submitter, crowd);
	join(submitters, SUBMITTERS);
	atomic_store(&crowd->ended, true);
	join(meddlers, MEDDLERS);
	join(readers, READERS);
}

/* Count what the meddlers achieved, to detect a run in which they did nothing. */
struct tally {
	int closed, silent, cancelled, failed, registered;
};

static void count_slot(struct crowd *crowd, struct tally *tally, size_t index)
{
	struct slot *slot = &crowd->slots[index];
	int expected = slot->cancelled ? -ECANCELED : slot->error;

	if (!slot->closed)
		close_slot(crowd, slot);
	else
		tally->closed++;
	if (slot->events == 0) {
		tally->silent++;
		return;
	}
	if (slot->outcome != expected)
		fail_msg("registration %zu: %d, not %d", index, slot->outcome, expected);
	tally->cancelled += slot->outcome == -ECANCELED;
	tally->failed += slot->outcome == -EFAULT;
	tally->registered += slot->outcome == 0;
}

static void accounts_for_every_registration(void **state)
{
	struct async_fixture *fixture = *state;
	struct crowd crowd = { .fixture = fixture,
			       .slots = calloc(COUNT, sizeof(struct slot)),
			       .seed = test_random_start().state,
			       .deadline = pier_deadline(FIXTURE_DEADLINE_MS) };
	struct tally tally = { 0 };
	uint32_t settled;

	assert_non_null(crowd.slots);
	for (size_t i = 0; i < COUNT; i++)
		pthread_mutex_init(&crowd.slots[i].lock, NULL);
	expect_ok(pier_buffer_alloc("memfd", FIXTURE_LENGTH, &crowd.buffer));
	fixture_use_queue(fixture, WORKERS, 40);
	run_crowd(&crowd);
	settled = atomic_load(&crowd.settled);
	for (size_t i = 0; i < COUNT; i++)
		count_slot(&crowd, &tally, i);
	assert_int_equal(crowd.problems, 0);
	assert_int_equal(settled, COUNT);
	fprintf(stderr,
		"%d registered, %d failed, %d cancelled, %d without an event; %d closed "
		"by others\n",
		tally.registered, tally.failed, tally.cancelled, tally.silent,
		tally.closed);
	assert_int_equal(tally.registered + tally.failed + tally.cancelled + tally.silent,
			 COUNT);
	assert_true(tally.registered > 0 && tally.failed > 0 && tally.cancelled > 0 &&
		    tally.silent > 0);
	fixture_destroy_queue(fixture);
	expect_ok(pier_buffer_free(crowd.buffer));
	assert_in_range(gate.most, 1, WORKERS);
	for (size_t i = 0; i < COUNT; i++)
		pthread_mutex_destroy(&crowd.slots[i].lock);
	free(crowd.slots);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_case(writes_the_handle_before_the_event),
		fixture_case(accounts_for_every_registration),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

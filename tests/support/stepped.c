/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <time.h>

#include "cmocka.h"
#include "random.h"

#include "provider/soft/queues/pass.h"
#include "provider/soft/soft.h"

/*
 * Linked into a program, this file replaces the engines' threads of soft0. Whenever any
 * completion queue is polled, one NIC makes a single step, and PIER_SEED decides which.
 * The work of a queue pair is thus divided into its smallest steps, and the steps of both
 * ends interleave in orders that threads hardly ever produce. If no thread polls, because
 * all sleep or are in other processes, a thread makes the steps.
 */

enum {
	MOST_NICS = 64,
	PAUSE_NANOSECONDS = 50000,
	STEPS_AT_ONCE = 8,
};

static struct {
	pthread_mutex_t lock;
	struct soft_context *nics[MOST_NICS];
	unsigned int count;
	unsigned long steps;
	struct test_random random;
	bool watched, driven;
} stepped = { .lock = PTHREAD_MUTEX_INITIALIZER };

int __real_pier_soft_start_engine(struct soft_context *context, bool stepped);
void __real_pier_soft_stop_engine(struct soft_context *context);
int __wrap_pier_soft_start_engine(struct soft_context *context, bool stepped);
void __wrap_pier_soft_stop_engine(struct soft_context *context);
void __wrap_pier_soft_poll_engine(struct soft_context *context);

/* Called with the lock held, which keeps the NICs alive. */
static void step(void)
{
	uint64_t chosen;

	if (stepped.count == 0)
		return;
	chosen = test_random_below(&stepped.random, stepped.count);
	pier_soft_step(stepped.nics[chosen]);
	stepped.steps++;
}

void __wrap_pier_soft_poll_engine(struct soft_context *context)
{
	(void)context;
	pthread_mutex_lock(&stepped.lock);
	step();
	pthread_mutex_unlock(&stepped.lock);
}

/* Steps if no other thread has since the last check. */
static void *drive(void *argument)
{
	const struct timespec moment = { .tv_nsec = PAUSE_NANOSECONDS };
	unsigned long last = 0;

	for (;;) {
		pthread_mutex_lock(&stepped.lock);
		if (stepped.steps == last) {
			for (int i = 0; i < STEPS_AT_ONCE; i++)
				step();
		}
		last = stepped.steps;
		pthread_mutex_unlock(&stepped.lock);
		clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, NULL);
	}
	return argument;
}

static void hold(void)
{
	pthread_mutex_lock(&stepped.lock);
}

static void release(void)
{
	pthread_mutex_unlock(&stepped.lock);
}

/* A child has none of the threads, and must not touch its parent's NICs. */
static void start_anew(void)
{
	stepped.count = 0;
	stepped.driven = false;
	pthread_mutex_unlock(&stepped.lock);
}

/* One seed for all random choices of this program. */
static void draw(void)
{
	char seed[32];

	if (stepped.random.state)
		return;
	stepped.random = test_random_start();
	snprintf(seed, sizeof(seed), "%#llx", (unsigned long long)stepped.random.state);
	setenv("PIER_SEED", seed, 1);
}

/* Prints the number of steps, which shows that the NICs had no threads of their own. */
static __attribute__((destructor)) void tell(void)
{
	fprintf(stderr, "# %lu single steps\n", stepped.steps);
}

static int watch(void)
{
	pthread_attr_t detached;
	pthread_t thread;
	int error = 0;

	if (!stepped.watched)
		error = pthread_atfork(hold, release, start_anew);
	stepped.watched = true;
	draw();
	if (error || stepped.driven)
		return error;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	error = pthread_create(&thread, &detached, drive, NULL);
	pthread_attr_destroy(&detached);
	stepped.driven = error == 0;
	return error;
}

int __wrap_pier_soft_start_engine(struct soft_context *context, bool is_stepped)
{
	int error = __real_pier_soft_start_engine(context, true);

	(void)is_stepped;
	if (error)
		return error;
	pthread_mutex_lock(&stepped.lock);
	error = -watch();
	assert_true(stepped.count < MOST_NICS);
	stepped.nics[stepped.count++] = context;
	pthread_mutex_unlock(&stepped.lock);
	return error;
}

void __wrap_pier_soft_stop_engine(struct soft_context *context)
{
	pthread_mutex_lock(&stepped.lock);
	for (unsigned int i = 0; i < stepped.count; i++) {
		if (stepped.nics[i] == context)
			stepped.nics[i--] = stepped.nics[--stepped.count];
	}
	pthread_mutex_unlock(&stepped.lock);
	__real_pier_soft_stop_engine(context);
}

/*
 * The thread that steps when no thread polls exists when cases fork, and their children
 * start new threads. ThreadSanitizer would abort them by default.
 */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Threads without a context, all at once: each call sets its own context and removes it.
 * They are the first to use everything.
 */
#include "cuda_fixture.h"

#include <pthread.h>

enum {
	THREADS = 8,
	ROUNDS = 40,
};

struct worker {
	pthread_t thread;
	unsigned int number;
	uint64_t shared; /* an address of the application's, on device 1 */
	const char *problem;
};

#define EXPECT(condition)                             \
	do {                                          \
		if (!(condition)) {                   \
			worker->problem = #condition; \
			return NULL;                  \
		}                                     \
	} while (0)

/* One round of everything; each thread has its own byte of the shared memory. */
static void *work(void *argument)
{
	static const char *const units[] = { "0", "1", "0:vmm:2M", "1:host" };
	struct worker *worker = argument;
	struct pier_backend_export dmabuf;
	struct pier_memory own, found;
	struct pier_backend_unit unit;
	uint64_t identity;
	char in, out = 0;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		CUcontext current = (CUcontext)worker;

		in = (char)(round + worker->number);
		EXPECT(cuda->alloc(units[(round + worker->number) % 4], 1, &own) == 0);
		EXPECT(cuda->copy_to(&own, 5, &in, 1) == 0);
		EXPECT(cuda->copy_from(&own, 5, &out, 1) == 0);
		EXPECT(in == out);
		EXPECT(call_export(cuda, &own, own.address, pier_host_page(),
				   PIER_MAPPING_DEFAULT, &dmabuf) == 0);
		cuda->close_export(&dmabuf);
		EXPECT(call_find(cuda, own.address + 5, 1, &found) == 0);
		cuda->free(&own);
		EXPECT(cuda->copy_from(&found, 5, &out, 1) == 0);
		EXPECT(in == out);
		cuda->release(&found);

		EXPECT(call_find(cuda, worker->shared + worker->number, 1, &found) == 0);
		EXPECT(cuda->copy_to(&found, worker->number, &in, 1) == 0);
		EXPECT(call_export(cuda, &found, found.address, found.length,
				   PIER_MAPPING_DEFAULT, &dmabuf) == 0);
		EXPECT(cuda->copy_from(&found, worker->number, &out, 1) == 0);
		EXPECT(in == out);
		cuda->close_export(&dmabuf);
		cuda->release(&found);
		EXPECT(cuda->identity(worker->shared, &identity) == 0);
		EXPECT(cuda->unit(worker->number % 2, &unit) == 0);
		EXPECT(app.cuCtxGetCurrent(&current) == CUDA_SUCCESS);
		EXPECT(current == NULL);
	}
	return NULL;
}

static void threads_can_share_the_backend(void **state)
{
	CUcontext context = fixture_context(1), popped;
	struct worker workers[THREADS];
	uint64_t shared;

	(void)state;
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	shared = fixture_alloc(context, 4 * FIXTURE_MIB);
	for (unsigned int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .number = i, .shared = shared };
		assert_int_equal(
			pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned int i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		if (workers[i].problem)
			fail_msg("thread %u: not: %s", i, workers[i].problem);
	}
	fixture_free(context, shared);
	fixture_destroy(context);
}

/* One thread retains it, and the others release it. */
static void primary_context_is_retained_once(void **state)
{
	(void)state;
	assert_int_equal(app.control->device[0].primary_users, 1);
	assert_int_equal(app.control->device[1].primary_users, 1);
	/* So does a stream in each. */
	assert_int_equal(app.control->live[FAKE_CUDA_STREAM], 2);
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(app.control->current, 0);
	assert_int_equal(app.control->abandoned, 0);
	for (int kind = 0; kind < FAKE_CUDA_KINDS; kind++) {
		if (kind != FAKE_CUDA_PRIMARY && kind != FAKE_CUDA_STREAM)
			assert_int_equal(app.control->live[kind], 0);
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(threads_can_share_the_backend, teardown),
		cmocka_unit_test_teardown(primary_context_is_retained_once, teardown),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}

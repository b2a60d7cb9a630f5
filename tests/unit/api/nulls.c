/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every pointer that must not be NULL is refused with a sentence that names it. The calls
 * are generated from the public headers: null_calls.py.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/backend.h>
#include <pier/pier.h>
#include <pier/verbs.h>

#include <null_calls.h> /* of the build */

enum {
	LENGTH = 65536
};

/* An object of each type, by the type's name. The call of a type without one does not
 * compile. */
static struct {
	struct pier_device *pier_device;
	struct pier_pd *pier_pd;
	struct ibv_pd *ibv_pd;
	struct pier_buffer *pier_buffer;
	struct pier_copy *pier_copy;
	struct pier_mr *pier_mr;
	struct pier_mr_cache *pier_mr_cache;
	struct pier_cq *pier_cq;
	struct pier_srq *pier_srq;
	struct pier_channel *pier_channel;
	struct pier_counter *pier_counter;
	struct pier_event_queue *pier_event_queue;
	struct pier_registration *pier_registration;
	struct pier_recv_pool *pier_recv_pool;
	struct pier_group *pier_group;
	struct pier_ring *pier_ring;
	struct pier_transfer *pier_transfer;
	struct pier_receiver *pier_receiver;
} given;
/* A place for all else. */
static uint64_t scratch[LENGTH / sizeof(uint64_t)];

/* The function and its pointer, for the sentence; the call, and what it must return. */
struct call {
	const char *function, *pointer;
	int64_t (*call)(void);
	int64_t expected;
};

#define CALL(function, pointer, expected, call)          \
	static int64_t null_##function##_##pointer(void) \
	{                                                \
		return call;                             \
	}
CALLS
#undef CALL
#define CALL(function, pointer, expected, call) \
	{ #function, #pointer, null_##function##_##pointer, expected },
static const struct call calls[] = { CALLS };

enum {
	COUNT = sizeof(calls) / sizeof(calls[0])
};

static struct pier_channel *make_channel(void)
{
	struct pier_channel *channel;

	expect_ok(pier_channel_create(given.pier_pd, NULL, &channel));
	return channel;
}

/* A channel whose peer is in this process. */
static struct pier_channel *make_pair(void)
{
	struct pier_channel *ends[] = { make_channel(), make_channel() };
	struct pier_endpoint endpoints[2];

	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_endpoint(ends[i], &endpoints[i]));
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_connect(ends[i], &endpoints[!i]));
	return ends[0];
}

static void make_memory(void)
{
	struct pier_mr_range range = pier_mr_range_host(scratch, LENGTH);
	struct pier_mr_attr attr;

	expect_ok(pier_buffer_alloc("memfd", LENGTH, &given.pier_buffer));
	expect_ok(pier_buffer_copy_start_to(given.pier_buffer, 0, scratch, 1, NULL,
					    &given.pier_copy));
	expect_ok(pier_mr_reg(given.pier_pd, scratch, LENGTH,
			      PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE,
			      &given.pier_mr));
	expect_ok(pier_mr_cache_create(given.pier_pd, NULL, &given.pier_mr_cache));
	expect_ok(pier_event_queue_create(NULL, &given.pier_event_queue));
	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	expect_ok(pier_mr_reg_async(given.pier_event_queue, given.pier_pd, &attr,
				    &given.pier_registration));
}

static void make_transfers(void)
{
	struct pier_remote remote;
	struct pier_rail rail = { make_pair(), given.pier_mr, 0, &remote, 1, 0 };
	struct pier_receiver_rail receiver_rail = { .channel = make_pair(),
						    .mr = given.pier_mr };
	struct pier_transfer_attr attr;
	struct pier_receiver_attr receiver_attr;

	expect_ok(pier_mr_remote(given.pier_mr, &remote));
	pier_transfer_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	expect_ok(pier_transfer_create(&attr, &given.pier_transfer));
	pier_receiver_attr_init(&receiver_attr);
	receiver_attr.rails = &receiver_rail;
	receiver_attr.rail_count = 1;
	expect_ok(pier_receiver_create(&receiver_attr, &given.pier_receiver));
}

static void make_objects(void)
{
	memset(scratch, 1,
	       sizeof(scratch)); /* a list of elements that are not empty, too */
	expect_ok(pier_device_open(PIER_SOFT_DEVICE, &given.pier_device));
	expect_ok(pier_pd_alloc(given.pier_device, &given.pier_pd));
	given.ibv_pd = pier_pd_verbs(given.pier_pd);
	make_memory();
	expect_ok(pier_cq_create(given.pier_pd, NULL, &given.pier_cq));
	expect_ok(pier_srq_create(given.pier_pd, NULL, &given.pier_srq));
	expect_ok(pier_counter_create(given.pier_pd, &given.pier_counter));
	given.pier_channel = make_pair();
	expect_ok(pier_recv_pool_create(given.pier_pd, NULL, &given.pier_recv_pool));
	expect_ok(pier_group_create(given.pier_pd, 0, 2, NULL, &given.pier_group));
	expect_ok(pier_ring_create(given.pier_pd, NULL, &given.pier_ring));
	make_transfers();
}

/* Returns whether the pointer is refused; otherwise it prints what happened. */
static bool is_refused(const struct call *call)
{
	char sentence[128];
	int64_t result;

	snprintf(sentence, sizeof(sentence), "%s is NULL", call->pointer);
	pier_fail(EIO, "nothing was refused");
	result = call->call();
	if (result == call->expected && strstr(pier_error_message(), sentence))
		return true;
	print_error("%s: %s NULL: returns %lld: %s\n", call->function, call->pointer,
		    (long long)result, pier_error_message());
	return false;
}

/* The progress of a child, which a call can end. */
struct progress {
	int next, failed;
};

static void make_calls(struct progress *progress)
{
	make_objects();
	while (progress->next < COUNT) {
		const struct call *call = &calls[progress->next++];

		progress->failed += !is_refused(call);
	}
}

/* Each call that crashes ends a child, and the next child goes on behind it. */
static void null_is_refused_by_name(void **state)
{
	struct progress *progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE,
					 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status = -1;

	(void)state;
	assert_true(progress != MAP_FAILED);
	while (status) {
		int next = progress->next;
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0) {
			make_calls(progress);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		if (!status)
			break;
		assert_true(progress->next > next); /* otherwise the objects failed */
		progress->failed++;
		print_error("%s: %s NULL: ends with wait status %#x\n",
			    calls[progress->next - 1].function,
			    calls[progress->next - 1].pointer, (unsigned int)status);
	}
	assert_int_equal(progress->next, COUNT);
	assert_int_equal(progress->failed, 0);
	munmap(progress, sizeof(*progress));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(null_is_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

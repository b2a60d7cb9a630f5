/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Started copies, with backends of the test: "lazy" copies when it is queried, "plain"
 * has only copy_to() and copy_from(), and "old" has a table that ends before
 * copy_start().
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/manual_clock.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/backend.h>
#include <pier/pier.h>

#include "core/clock.h"

enum {
	LENGTH = 64 << 10,
	BEFORE = 3, /* guard bytes */
};

/* The device's memory, which the CPU of the library cannot reach. */
static char device[LENGTH];

static struct {
	int starts, queries, ends, frees;
	int busy; /* this many queries report an unfinished copy */
	int start_error, query_error;
	bool done_at_start;
	struct pier_backend_copy last;
} lazy;

static int probe_nothing(char *ret_detail, size_t size)
{
	(void)size;
	ret_detail[0] = '\0';
	return 0;
}

static int alloc_device(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	if (unit || length > LENGTH)
		return pier_fail(EINVAL, "one allocation of 64 KiB");
	ret_memory->address = 1 << 20;
	ret_memory->length = LENGTH;
	return 0;
}

static void free_device(struct pier_memory *memory)
{
	(void)memory;
	lazy.frees++;
}

static void copy_bytes(const struct pier_backend_copy *copy)
{
	if (copy->to_host)
		memcpy(copy->host, device + copy->offset, copy->length);
	else
		memcpy(device + copy->offset, copy->host, copy->length);
}

static int start_lazy(const struct pier_memory *memory,
		      const struct pier_backend_copy *copy, void **ret_copy)
{
	struct pier_backend_copy *started;

	assert_int_equal(memory->length, LENGTH);
	assert_int_equal(copy->size, sizeof(*copy));
	lazy.starts++;
	lazy.last = *copy;
	if (lazy.start_error)
		return pier_fail(lazy.start_error, "the stream is gone");
	if (lazy.done_at_start) {
		copy_bytes(copy);
		return 0;
	}
	started = malloc(sizeof(*started));
	assert_non_null(started);
	*started = *copy;
	*ret_copy = started;
	return 0;
}

static int query_lazy(void *copy)
{
	lazy.queries++;
	if (lazy.busy > 0) {
		lazy.busy--;
		return 0;
	}
	lazy.ends++;
	if (!lazy.query_error)
		copy_bytes(copy);
	free(copy);
	return lazy.query_error ? pier_fail(lazy.query_error, "the device is lost") : 1;
}

static int copy_to_plain(const struct pier_memory *memory, uint64_t offset,
			 const void *source, uint64_t length)
{
	(void)memory;
	memcpy(device + offset, source, length);
	return lazy.start_error ? pier_fail(lazy.start_error, "no copy") : 0;
}

static int copy_from_plain(const struct pier_memory *memory, uint64_t offset,
			   void *destination, uint64_t length)
{
	(void)memory;
	memcpy(destination, device + offset, length);
	return 0;
}

#define COMMON                                                      \
	.abi = PIER_BACKEND_ABI, .description = "memory of a test", \
	.probe = probe_nothing, .alloc = alloc_device, .free = free_device

static const struct pier_backend lazy_backend = {
	COMMON,
	.size = sizeof(lazy_backend),
	.name = "lazy",
	.copy_start = start_lazy,
	.copy_query = query_lazy,
};

static const struct pier_backend plain_backend = {
	COMMON,
	.size = sizeof(plain_backend),
	.name = "plain",
	.copy_to = copy_to_plain,
	.copy_from = copy_from_plain,
};

/* Its table ends before copy_start(): the library must not use the bytes behind it. */
static const struct pier_backend old_backend = {
	COMMON,
	.size = offsetof(struct pier_backend, copy_start),
	.name = "old",
	.copy_to = copy_to_plain,
	.copy_from = copy_from_plain,
	.copy_start = start_lazy,
};

static const struct pier_backend half_backend = {
	COMMON,
	.size = sizeof(half_backend),
	.name = "half",
	.copy_query = query_lazy,
};

static int add_backends(void **state)
{
	(void)state;
	expect_ok(pier_backend_register(&lazy_backend));
	expect_ok(pier_backend_register(&plain_backend));
	expect_ok(pier_backend_register(&old_backend));
	return 0;
}

static struct test_census before;

static int before_test(void **state)
{
	(void)state;
	memset(&lazy, 0, sizeof(lazy));
	memset(device, '.', sizeof(device));
	before = test_take_census();
	return 0;
}

static int after_test(void **state)
{
	(void)state;
	assert_int_equal(lazy.ends +
				 (lazy.start_error || lazy.done_at_start) * lazy.starts,
			 lazy.starts);
	test_assert_census(&before);
	return 0;
}

static struct pier_buffer *alloc_buffer(const char *spec)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_alloc(spec, LENGTH, &buffer));
	return buffer;
}

static void expect_done(struct pier_copy *copy)
{
	expect_result(pier_copy_wait(copy, PIER_TIMEOUT_DEFAULT), 1);
	expect_ok(pier_copy_free(copy));
}

static void copies_both_ways(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *in = NULL, *out = NULL;
	char back[16];
	int stream;

	(void)state;
	memset(back, '.', sizeof(back));
	expect_ok(pier_buffer_copy_start_to(buffer, BEFORE, "bytes", 5, &stream, &in));
	assert_ptr_equal(lazy.last.stream, &stream);
	assert_false(lazy.last.to_host);
	assert_memory_equal(device, "..........", 10);
	expect_done(in);
	assert_memory_equal(device, "...bytes..", 10);
	expect_ok(
		pier_buffer_copy_start_from(buffer, BEFORE - 1, back + 1, 6, NULL, &out));
	assert_null(lazy.last.stream);
	assert_true(lazy.last.to_host);
	expect_done(out);
	assert_memory_equal(back, "..bytes...", 10);
	expect_ok(pier_buffer_free(buffer));
}

static void wait_reports_each_state(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;

	(void)state;
	lazy.busy = 2;
	expect_ok(pier_buffer_copy_start_to(buffer, 0, "x", 1, NULL, &copy));
	expect_result(pier_copy_wait(copy, 0), 0);
	expect_result(pier_copy_wait(copy, 0), 0);
	assert_int_equal(device[0], '.');
	expect_result(pier_copy_wait(copy, 0), 1);
	assert_int_equal(device[0], 'x');
	/*
	 * The library does not query the backend for a copy that the backend has
	 * released.
	 */
	expect_result(pier_copy_wait(copy, 30000), 1);
	expect_ok(pier_copy_free(copy));
	assert_int_equal(lazy.queries, 3);
	expect_ok(pier_buffer_free(buffer));
}

static void copy_keeps_its_buffer_busy(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copies[2];
	size_t alive = pier_object_count(PIER_OBJECT_COPY);

	(void)state;
	for (size_t i = 0; i < 2; i++)
		expect_ok(pier_buffer_copy_start_to(buffer, i, "x", 1, NULL, &copies[i]));
	assert_int_equal(pier_object_count(PIER_OBJECT_COPY), alive + 2);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	test_assert_sentence("it still has 2 copy requests");
	expect_done(copies[0]);
	/* Done, but not freed yet. */
	expect_result(pier_copy_wait(copies[1], 0), 1);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_copy_free(copies[1]));
	assert_int_equal(lazy.frees, 0);
	expect_ok(pier_buffer_free(buffer));
}

static void failed_start_leaves_nothing_behind(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = (struct pier_copy *)0x1;
	char byte = 'x';

	(void)state;
	lazy.start_error = EIO;
	expect_result(pier_buffer_copy_start_to(buffer, 0, &byte, 1, NULL, &copy), -EIO);
	test_assert_sentence("starting to copy 1 bytes to a buffer of lazy: the stream "
			     "is gone");
	expect_result(pier_buffer_copy_start_from(buffer, 0, &byte, 1, NULL, &copy),
		      -EIO);
	assert_int_equal(lazy.starts, 2);
	expect_result(pier_buffer_copy_start_to(buffer, LENGTH, &byte, 1, NULL, &copy),
		      -ERANGE);
	assert_int_equal(lazy.starts, 2);
	assert_ptr_equal(copy, (void *)0x1);
	assert_int_equal(byte, 'x');
	expect_ok(pier_buffer_free(buffer));
}

static void failed_copy_is_reported_each_time(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;
	char byte;

	(void)state;
	lazy.query_error = ENODEV;
	expect_ok(pier_buffer_copy_start_from(buffer, 0, &byte, 1, NULL, &copy));
	expect_result(pier_copy_wait(copy, 0), -ENODEV);
	test_assert_sentence("copying 1 bytes from a buffer of lazy: the device is lost");
	expect_result(pier_copy_wait(copy, 0), -ENODEV);
	test_assert_sentence("failed before");
	assert_int_equal(lazy.queries, 1);
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_buffer_free(buffer));
}

static void copy_may_finish_at_start(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;

	(void)state;
	lazy.done_at_start = true;
	expect_ok(pier_buffer_copy_start_to(buffer, 1, "x", 1, NULL, &copy));
	expect_done(copy);
	/* A copy of no bytes too. */
	expect_ok(pier_buffer_copy_start_to(buffer, LENGTH, NULL, 0, NULL, &copy));
	expect_done(copy);
	assert_int_equal(lazy.queries, 0);
	assert_int_equal(lazy.starts, 1);
	assert_memory_equal(device, ".x.", 3);
	expect_ok(pier_buffer_free(buffer));
}

/* "old": functions past the size of its table count as NULL. */
static void backends_without_copy_start_copy_at_once(void **state)
{
	static const char *const specs[] = { "plain", "old", "host", "memfd" };

	(void)state;
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		struct pier_buffer *buffer = alloc_buffer(specs[i]);
		struct pier_copy *copy = NULL;
		char back[4] = "..";

		expect_ok(pier_buffer_copy_start_to(buffer, 5, "yz", 2, NULL, &copy));
		expect_done(copy);
		expect_ok(pier_buffer_copy_start_from(buffer, 5, back, 2, NULL, &copy));
		assert_string_equal(back, "yz");
		expect_done(copy);
		expect_result(pier_buffer_copy_start_to(buffer, 5, "yz", 2, back, &copy),
			      -EOPNOTSUPP);
		test_assert_sentence("has no streams");
		expect_ok(pier_buffer_free(buffer));
	}
	assert_int_equal(lazy.starts, 0);
}

static void reports_a_copy_that_failed_at_once(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("plain");
	struct pier_copy *copy = NULL;

	(void)state;
	lazy.start_error = EIO;
	expect_result(pier_buffer_copy_start_to(buffer, 0, "x", 1, NULL, &copy), -EIO);
	test_assert_sentence("no copy");
	assert_null(copy);
	expect_ok(pier_buffer_free(buffer));
}

static void refuses_a_table_with_one_member_only(void **state)
{
	(void)state;
	expect_result(pier_backend_register(&half_backend), -EINVAL);
	test_assert_sentence("copy_start");
}

/* The library implements blocking copies with started ones. */
static void waiting_copies_need_no_other_members(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	char back[4] = "..";

	(void)state;
	expect_ok(pier_buffer_copy_to(buffer, 7, "yz", 2));
	expect_ok(pier_buffer_copy_from(buffer, 7, back, 2));
	assert_string_equal(back, "yz");
	assert_int_equal(lazy.starts, 2);
	lazy.query_error = EIO;
	expect_result(pier_buffer_copy_to(buffer, 0, "x", 1), -EIO);
	test_assert_sentence("the device is lost");
	lazy.query_error = 0;
	lazy.done_at_start = true;
	expect_ok(pier_buffer_copy_to(buffer, 0, "x", 1));
	assert_int_equal(lazy.queries, 3);
	lazy.done_at_start = false;
	lazy.starts = lazy.ends;
	expect_ok(pier_buffer_free(buffer));
}

/* More queries than the wait makes without a pause. */
static void waits_pause_between_queries(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;
	int64_t start;

	(void)state;
	manual_clock_hurry(true);
	lazy.busy = 1000;
	expect_ok(pier_buffer_copy_to(buffer, 0, "x", 1));
	assert_int_equal(lazy.busy, 0);
	assert_int_equal(device[0], 'x');
	expect_ok(pier_buffer_copy_start_to(buffer, 1, "y", 1, NULL, &copy));
	lazy.busy = INT_MAX;
	lazy.queries = 0;
	start = pier_now();
	expect_result(pier_copy_wait(copy, 10000), -ETIMEDOUT);
	test_assert_sentence("copy of 1 bytes to a buffer of lazy is not done after "
			     "10000 ms");
	assert_true(pier_now() - start >= INT64_C(10000) * 1000000);
	assert_true(lazy.queries < 200);
	lazy.busy = 40;
	expect_result(pier_copy_wait(copy, PIER_TIMEOUT_DEFAULT), 1);
	assert_int_equal(device[1], 'y');
	manual_clock_hurry(false);
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_buffer_free(buffer));
}

static int interrupt(void *context)
{
	++*(int *)context;
	return 1;
}

/* A blocking copy is not interrupted: its memory would still be in use. */
static void waits_can_be_interrupted(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;
	int calls = 0;

	(void)state;
	manual_clock_hurry(true);
	expect_ok(pier_buffer_copy_start_to(buffer, 0, "x", 1, NULL, &copy));
	pier_interrupt_set(interrupt, &calls);
	lazy.busy = 1000;
	expect_result(pier_copy_wait(copy, 30000), -EINTR);
	assert_int_equal(calls, 1);
	expect_ok(pier_buffer_copy_to(buffer, 1, "y", 1));
	assert_true(calls > 1);
	pier_interrupt_set(NULL, NULL);
	manual_clock_hurry(false);
	expect_result(pier_copy_wait(copy, 0), 1);
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_buffer_free(buffer));
}

static void running_copy_is_not_freed(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;

	(void)state;
	lazy.busy = 1;
	expect_ok(pier_buffer_copy_start_to(buffer, 0, "x", 1, NULL, &copy));
	expect_result(pier_copy_free(copy), -EBUSY);
	test_assert_sentence("it is still running; wait for it");
	expect_result(pier_buffer_free(buffer), -EBUSY);
	assert_int_equal(device[0], '.');
	/* It has ended meanwhile. */
	expect_ok(pier_copy_free(copy));
	assert_int_equal(device[0], 'x');
	/* So has one that failed: its error is that of a wait. */
	lazy.query_error = EIO;
	expect_ok(pier_buffer_copy_start_to(buffer, 0, "x", 1, NULL, &copy));
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_copy_free(NULL));
	expect_ok(pier_buffer_free(buffer));
}

static void refuses_arguments(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;

	(void)state;
	expect_result(pier_copy_wait(NULL, 0), -EINVAL);
	test_assert_sentence("copy");
	expect_ok(pier_buffer_copy_start_to(buffer, 0, "x", 1, NULL, &copy));
	expect_result(pier_copy_wait(copy, -2), -EINVAL);
	assert_int_equal(lazy.queries, 0);
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_buffer_free(buffer));
}

/* Bounce buffers of such a backend. */
static void region_bounces_through_them(void **state)
{
	struct pier_device *nic = NULL;
	struct pier_pd *pd = NULL;
	struct pier_mr *mr = NULL;
	struct pier_buffer *buffer = alloc_buffer("lazy");

	(void)state;
	expect_ok(pier_device_open("soft0", &nic));
	expect_ok(pier_pd_alloc(nic, &pd));
	expect_ok(pier_mr_reg_buffer(pd, buffer, 0, LENGTH, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &mr));
	lazy.starts = lazy.ends;
	expect_ok(pier_mr_sync_for_nic(mr, 0, 100));
	assert_true(lazy.last.to_host && lazy.last.length == 100);
	memset(device, 'x', 200);
	expect_ok(pier_mr_sync_for_device(mr, 10, 50));
	assert_memory_equal(device + 9, "x.", 2);
	assert_memory_equal(device + 59, ".x", 2);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(nic));
	expect_ok(pier_buffer_free(buffer));
}

static void child_cannot_end_its_parents_copy(void **state)
{
	struct pier_buffer *buffer = alloc_buffer("lazy");
	struct pier_copy *copy = NULL;
	int status;
	pid_t child;

	(void)state;
	expect_ok(pier_buffer_copy_start_to(buffer, 0, "x", 1, NULL, &copy));
	child = fork();
	if (child == 0)
		_exit(pier_copy_wait(copy, 0) == -ECHILD &&
				      pier_copy_free(copy) == -ECHILD &&
				      lazy.queries == 0 &&
				      pier_buffer_free(buffer) == -EBUSY
			      ? 0
			      : 1);
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	expect_done(copy);
	expect_ok(pier_buffer_free(buffer));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, before_test, after_test)
	const struct CMUnitTest tests[] = {
		CASE(copies_both_ways),
		CASE(wait_reports_each_state),
		CASE(copy_keeps_its_buffer_busy),
		CASE(failed_start_leaves_nothing_behind),
		CASE(failed_copy_is_reported_each_time),
		CASE(copy_may_finish_at_start),
		CASE(backends_without_copy_start_copy_at_once),
		CASE(reports_a_copy_that_failed_at_once),
		CASE(refuses_a_table_with_one_member_only),
		CASE(waiting_copies_need_no_other_members),
		CASE(waits_pause_between_queries),
		CASE(waits_can_be_interrupted),
		CASE(running_copy_is_not_freed),
		CASE(refuses_arguments),
		CASE(region_bounces_through_them),
		CASE(child_cannot_end_its_parents_copy),
	};

	return cmocka_run_group_tests(tests, add_backends, NULL);
}

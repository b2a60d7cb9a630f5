/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The canary on soft0, with a backend scripted by the test: memory whose exports are of
 * other pages than the device uses is refused, the answer is kept, and the path is taken
 * where the canary cannot be sent. Also the variables that switch paths off.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pier/pier.h>

#define SECOND 1000000000LL

enum {
	LENGTH = 10000,
	THREADS = 4,
};

static struct {
	char folder[32];
	struct gpu_control *gpu;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct test_census before;
	char result[1024];	  /* of the last registration's canary */
	atomic_llong leap, leaps; /* nanoseconds: at each look at the clock, and in all */
	struct timespec leapt_at;
} fixture = { .folder = "/tmp/pier-unit-XXXXXX" };

static int read_clock(clockid_t clock, struct timespec *ret_time)
{
	int (*real)(clockid_t clock, struct timespec * ret_time);

	*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	return real(clock, ret_time);
}

/*
 * A clock that leaps makes deadlines pass soon. Meanwhile no other time passes, and after
 * each leap the NIC's thread may run.
 */
int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	const struct timespec pause = { .tv_nsec = 20000 };
	long long leap = clock == CLOCK_MONOTONIC ? atomic_load(&fixture.leap) : 0;
	long long leaps = atomic_fetch_add(&fixture.leaps, leap) + leap;
	int result = read_clock(clock, ret_time);

	if (clock != CLOCK_MONOTONIC)
		return result;
	if (leap) {
		*ret_time = fixture.leapt_at;
		nanosleep(&pause, NULL);
	}
	leaps += ret_time->tv_nsec;
	ret_time->tv_sec += leaps / SECOND;
	ret_time->tv_nsec = leaps % SECOND;
	return result;
}

static void begin_leaping(void)
{
	read_clock(CLOCK_MONOTONIC, &fixture.leapt_at);
	fixture.leap = SECOND / 200;
}

static int make_folder(void **state)
{
	(void)state;
	fixture.gpu = test_load_gpu(fixture.folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	return test_remove_gpu(fixture.folder);
}

static int setup(void **state)
{
	(void)state;
	memset(fixture.gpu, 0, sizeof(*fixture.gpu));
	unsetenv("PIER_CANARY");
	fixture.leap = 0;
	fixture.before = test_take_census();
	expect_ok(pier_buffer_alloc("gpu", LENGTH, &fixture.buffer));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	expect_ok(pier_buffer_free(fixture.buffer));
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	fixture.pd = NULL;
	fixture.device = NULL;
	assert_int_equal(fixture.gpu->open_exports, 0);
	assert_int_equal(fixture.gpu->live, 0);
	unsetenv("PIER_DMABUF");
	unsetenv("PIER_PEERMEM");
	test_assert_census(&fixture.before);
	return 0;
}

static void open_device(const char *name)
{
	expect_ok(pier_device_open(name, &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
}

static int reg(enum pier_policy policy, struct pier_mr **ret_mr)
{
	return pier_mr_reg_buffer(fixture.pd, fixture.buffer, 0, LENGTH,
				  PIER_ACCESS_SHARED, policy, ret_mr);
}

/* Returns the number of copies that the canary made for it. */
static int copies_of_reg(void)
{
	int before = fixture.gpu->copies;
	struct pier_mr *mr = NULL;

	expect_ok(reg(PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	snprintf(fixture.result, sizeof(fixture.result), "%s", test_mr_info(mr).canary);
	expect_ok(pier_mr_dereg(mr));
	return fixture.gpu->copies - before;
}

/* One copy in each direction, once, and none of them of the program's memory. */
static void is_sent_once_for_a_pair(void **state)
{
	static uint8_t image[LENGTH], back[LENGTH];

	(void)state;
	memset(image, 0x5a, sizeof(image));
	open_device("soft0");
	expect_ok(pier_buffer_copy_to(fixture.buffer, 0, image, LENGTH));
	assert_int_equal(copies_of_reg(), 2);
	assert_int_equal(copies_of_reg(), 0);
	/* Its memory stays, because freeing it waits for kernels. It is no object. */
	assert_int_equal(fixture.gpu->live, 2);
	assert_int_equal(pier_object_count(PIER_OBJECT_BUFFER), 1);
	expect_ok(pier_buffer_copy_from(fixture.buffer, 0, back, LENGTH));
	assert_memory_equal(back, image, LENGTH);
}

static void is_sent_for_each_device(void **state)
{
	(void)state;
	open_device("soft0");
	assert_int_equal(copies_of_reg(), 2);
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	open_device("soft0");
	assert_int_equal(copies_of_reg(), 2);
}

static void is_not_sent_if_switched_off(void **state)
{
	(void)state;
	setenv("PIER_CANARY", "off", 1);
	fixture.gpu->foreign_pages = ~0U;
	open_device("soft0");
	assert_int_equal(copies_of_reg(), 0);
}

/* Wrong data would arrive, and no call would fail. */
static void refuses_foreign_pages(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	fixture.gpu->foreign_pages = ~0U;
	open_device("soft0");
	for (int i = 0; i < 2; i++) {
		int exports = fixture.gpu->exports;

		expect_result(reg(PIER_POLICY_DIRECT, &mr), -EIO);
		test_assert_sentence(
			"soft0 and the device do not share the memory of gpu");
		/* The first bytes of the pattern may be those of the other page. */
		test_assert_sentence("mapping default): at offset ");
		test_assert_sentence("mapping pcie): at offset ");
		/* The answers are kept: the memory is not even exported. */
		assert_int_equal(fixture.gpu->exports - exports, i ? 0 : 4);
	}
}

/* The refusal is a reason like any other: the policy decides what is next. */
static void falls_back_to_a_bounce_buffer(void **state)
{
	static uint8_t image[LENGTH], back[LENGTH];
	struct pier_mr *mr = NULL;

	(void)state;
	memset(image, 0x77, sizeof(image));
	fixture.gpu->foreign_pages = ~0U;
	open_device("soft0");
	expect_ok(reg(PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	assert_non_null(strstr(pier_mr_reason(mr), "do not share the memory of gpu"));
	expect_ok(pier_buffer_copy_to(fixture.buffer, 0, image, LENGTH));
	expect_ok(pier_mr_sync_for_nic(mr, 0, LENGTH));
	expect_ok(pier_mr_sync_for_device(mr, 0, LENGTH));
	expect_ok(pier_buffer_copy_from(fixture.buffer, 0, back, LENGTH));
	assert_memory_equal(back, image, LENGTH);
	expect_ok(pier_mr_dereg(mr));
}

/* On Grace the wrong mapping registers, and shows only when it is used. */
static void finds_the_mapping_that_works(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	fixture.gpu->foreign_pages = 1U << PIER_MAPPING_DEFAULT;
	open_device("soft0");
	expect_ok(reg(PIER_POLICY_DIRECT, &mr));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_PCIE);
	expect_ok(pier_mr_dereg(mr));
}

/* Host memory passes the loop before and after, so the failure is the device memory's. */
static void refuses_if_the_nic_cannot_reach_it(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	open_device("fault:wc@2=LOC_PROT_ERR,wc@5=LOC_PROT_ERR:soft0");
	expect_result(reg(PIER_POLICY_DIRECT, &mr), -EIO);
	test_assert_sentence("the NIC's read fails: a request to itself completes with "
			     "the error 4");
}

static void close_device(void)
{
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	fixture.pd = NULL;
	fixture.device = NULL;
}

static void expect_taken(const char *device, int copies, int copies_again)
{
	open_device(device);
	assert_int_equal(copies_of_reg(), copies);
	assert_ptr_equal(strstr(fixture.result, "not run: "), fixture.result);
	assert_int_equal(copies_of_reg(), copies_again);
	assert_int_equal(strcmp(fixture.result, "passed") == 0, copies_again == 2);
	close_device();
}

/* What says nothing about the pair is no answer to keep. */
static void path_is_taken_if_it_cannot_be_sent(void **state)
{
	(void)state;
	/* A device without reliable queue pairs, such as EFA: asked once. */
	expect_taken("fault:create_qp@1=EOPNOTSUPP:soft0", 0, 0);
	expect_taken("fault:create_qp@1=ENOMEM:soft0", 0, 2);
	expect_taken("fault:create_cq@1=EMFILE:soft0", 0, 2);
	expect_taken("fault:modify_qp@1=EINVAL:soft0", 0, 0);
	expect_taken("fault:reg_mr@1=ENOMEM:soft0", 0, 2);
	/* The second: the first is that of the program's memory. */
	expect_taken("fault:reg_dmabuf_mr@2=ENOMEM:soft0", 0, 2);
	expect_taken("fault:post_send@1=EINVAL:soft0", 0, 0);
	expect_taken("fault:wc@1=RETRY_EXC_ERR:soft0", 0, 0);
	/* A port that goes down meanwhile: host memory does not arrive any more, either.
	 */
	expect_taken("fault:wc@2=RETRY_EXC_ERR,wc@3=RETRY_EXC_ERR:soft0", 1, 2);
	expect_taken("fault:wc@2=RETRY_EXC_ERR,create_qp@2=ENOMEM:soft0", 1, 2);
	fixture.gpu->copy_error = EIO;
	expect_taken("soft0", 1, 0);
}

static void count_warning(enum pier_log_level level, const char *message, void *argument)
{
	int *warnings = argument;

	if (level == PIER_LOG_WARNING && strstr(message, "was not tested: "))
		++*warnings;
}

/* Nothing else shows that the path was taken untested. Once: more would hide others. */
static void untested_path_is_a_warning(void **state)
{
	int warnings = 0;

	(void)state;
	fixture.gpu->copy_error = ENOMEM;
	open_device("soft0");
	pier_log_set(PIER_LOG_WARNING, count_warning, &warnings);
	for (int i = 0; i < 10; i++)
		copies_of_reg();
	pier_log_set(PIER_LOG_WARNING, NULL, NULL);
	assert_int_equal(warnings, 1);
}

/* A GID of another network namespace: the next one works. */
static void tries_other_gids(void **state)
{
	(void)state;
	open_device("fault:like=mlx5,modify_qp@2=ENETUNREACH:soft0");
	assert_int_equal(copies_of_reg(), 2);
	assert_string_equal(fixture.result, "passed");
	assert_int_equal(copies_of_reg(), 0);
}

/* A program that uses all of a GPU is not asked for memory at each registration. */
static void errors_that_may_pass_are_put_off(void **state)
{
	int sent = 0;

	(void)state;
	fixture.gpu->copy_error = ENOMEM;
	open_device("soft0");
	fixture.gpu->allocs = 0;
	for (int i = 1; i <= 100; i++)
		sent += copies_of_reg();
	/* The registrations 1, 2, 4, 8, 16, 32, 64. */
	assert_int_equal(sent, 7);
	assert_ptr_equal(strstr(fixture.result, "not run: "), fixture.result);
	/* Its memory stays although it could not be sent. */
	assert_int_equal(fixture.gpu->allocs, 1);
	assert_int_equal(fixture.gpu->live, 2);
}

/* What the NIC wrote is held back until a flush, as after each receive. */
static void flushes_what_the_nic_wrote(void **state)
{
	(void)state;
	fixture.gpu->holds_back = true;
	open_device("soft0");
	assert_int_equal(copies_of_reg(), 2);
	assert_string_equal(fixture.result, "passed");
	assert_int_equal(fixture.gpu->flushes, 1);
	assert_true(fixture.gpu->flushed.read_back);
	assert_int_equal(fixture.gpu->flushed.mapping, PIER_MAPPING_DEFAULT);
	assert_string_equal(fixture.gpu->flusher, "soft0");
	fixture.gpu->flush_error = EIO;
	close_device();
	open_device("soft0");
	assert_int_equal(copies_of_reg(), 1);
	assert_string_equal(fixture.result, "not run: flush a pattern: no flush");
}

/* Seconds of a registration, by a clock that leaps. */
static time_t seconds_of_reg(const char *device, int copies)
{
	struct timespec start, end;

	open_device(device);
	begin_leaping();
	clock_gettime(CLOCK_MONOTONIC, &start);
	assert_int_equal(copies_of_reg(), copies);
	clock_gettime(CLOCK_MONOTONIC, &end);
	fixture.leap = 0;
	close_device();
	return end.tv_sec - start.tv_sec;
}

static void nic_that_never_completes_does_not_hang_it(void **state)
{
	(void)state;
	assert_in_range(seconds_of_reg("fault:lost@1:soft0", 0), 5, 9);
	assert_non_null(strstr(fixture.result, "no completion of a request to itself"));
	/* Only with the device's memory, and later not with the host's, either. */
	assert_in_range(seconds_of_reg("fault:lost@2,lost@3:soft0", 1), 9, 19);
	assert_non_null(strstr(fixture.result, "no completion of a request to itself"));
	/* Each request is just in time, and all of them are not. */
	assert_in_range(seconds_of_reg("fault:late@1+=4500ms:soft0", 1), 9, 19);
}

static void refuses_memory_that_never_completes(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	open_device("fault:lost@2,lost@5:soft0");
	begin_leaping();
	expect_result(reg(PIER_POLICY_DIRECT, &mr), -EIO);
	fixture.leap = 0;
	test_assert_sentence(
		"the NIC's read fails: no completion of a request to itself");
}

static void tells_what_it_found(void **state)
{
	struct pier_mr *mr = NULL;
	static char host[8];

	(void)state;
	setenv("PIER_CANARY", "off", 1);
	open_device("soft0");
	copies_of_reg();
	assert_string_equal(fixture.result, "off: PIER_CANARY");
	close_device();
	unsetenv("PIER_CANARY");
	open_device("soft0");
	copies_of_reg();
	assert_string_equal(fixture.result, "passed");
	expect_ok(pier_mr_reg(fixture.pd, host, sizeof(host), 0, &mr));
	assert_string_equal(test_mr_info(mr).canary, "");
	expect_ok(pier_mr_dereg(mr));
}

/* It has memory and access rights of its own. */
static void is_sent_for_any_region(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct pier_buffer *small = NULL;
	struct pier_mr *mr = NULL;

	(void)state;
	open_device("soft0");
	/* A page, which nobody may write, on a device that exports larger ones. */
	fixture.gpu->granularity = 16 * page;
	expect_ok(pier_buffer_alloc("gpu", page, &small));
	expect_ok(pier_mr_reg_buffer(fixture.pd, small, 0, page, 0, PIER_POLICY_DIRECT,
				     &mr));
	assert_string_equal(test_mr_info(mr).canary, "passed");
	assert_int_equal(fixture.gpu->copies, 2);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(small));
}

/* soft0 joins the ranges before they have keys, without a canary. */
static void is_not_sent_under_a_requested_key(void **state)
{
	struct pier_mr_range ranges[] = {
		pier_mr_range_buffer(fixture.buffer, 0, 4096),
		pier_mr_range_buffer(fixture.buffer, 0, 4096),
	};
	struct pier_mr_attr attr;
	struct pier_mr *mr = NULL;

	(void)state;
	open_device("soft0");
	pier_mr_attr_init(&attr);
	attr.ranges = ranges;
	attr.range_count = 2;
	attr.requested_key = 1;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	assert_int_equal(fixture.gpu->copies, 0);
	assert_ptr_equal(strstr(test_mr_info(mr).canary, "not run: "),
			 test_mr_info(mr).canary);
	expect_ok(pier_mr_dereg(mr));
	/* The parts of an indirect key take their usual paths. */
	attr.requested_key = 0;
	attr.addressing = PIER_ADDRESSING_ZERO_BASED;
	attr.split = PIER_SPLIT_NEVER;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	assert_int_equal(pier_mr_parts(mr), 1);
	assert_string_equal(test_mr_info(mr).canary, "passed");
	assert_int_equal(fixture.gpu->copies, 2);
	expect_ok(pier_mr_dereg(mr));
}

static void *fork_children(void *argument)
{
	pid_t child;

	while (!atomic_load((atomic_bool *)argument)) {
		child = fork();
		assert_true(child >= 0);
		if (child == 0)
			_exit(0);
		assert_int_equal(waitpid(child, NULL, 0), child);
	}
	return NULL;
}

static void survives_forks(void **state)
{
	atomic_bool done = false;
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, fork_children, &done), 0);
	for (int i = 0; i < 20; i++) {
		open_device("soft0");
		assert_int_equal(copies_of_reg(), 2);
		assert_string_equal(fixture.result, "passed");
		close_device();
	}
	atomic_store(&done, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *register_memory(void *argument)
{
	struct pier_mr *mr = NULL;

	(void)argument;
	for (int i = 0; i < 10; i++) {
		expect_ok(reg(PIER_POLICY_BOUNCE, &mr));
		assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
		expect_ok(pier_mr_dereg(mr));
	}
	return NULL;
}

/* Each may send a canary; one answer is kept, and no lock is held meanwhile. */
static void threads_agree(void **state)
{
	pthread_t threads[THREADS];

	(void)state;
	fixture.gpu->foreign_pages = ~0U;
	open_device("soft0");
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, register_memory, NULL),
				 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	/* Nobody freed memory, for which the threads could wait for each other. */
	assert_int_equal(fixture.gpu->live, fixture.gpu->allocs);
}

static void dmabufs_are_switched_off(void **state)
{
	struct pier_device_attr attr;
	struct pier_mr *mr = NULL;

	(void)state;
	setenv("PIER_DMABUF", "off", 1);
	open_device("soft0");
	expect_ok(pier_device_query(fixture.device, &attr, sizeof(attr)));
	assert_false(attr.dmabuf);
	expect_result(reg(PIER_POLICY_DIRECT, &mr), -EOPNOTSUPP);
	test_assert_sentence("PIER_DMABUF=off switched them off");
	expect_result(pier_mr_reg_dmabuf(fixture.pd, 0, 1, 0, 0, 0, &mr), -EOPNOTSUPP);
	test_assert_sentence("PIER_DMABUF=off switched them off");
	expect_ok(reg(PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	assert_non_null(strstr(pier_mr_reason(mr), "PIER_DMABUF=off"));
	expect_ok(pier_mr_dereg(mr));
}

static void peer_memory_is_switched_off(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	setenv("PIER_DMABUF", "off", 1);
	setenv("PIER_PEERMEM", "off", 1);
	open_device("soft0");
	expect_result(reg(PIER_POLICY_PEERMEM, &mr), -EOPNOTSUPP);
	test_assert_sentence("PIER_PEERMEM=off switched it off");
}

static void refuses_other_values(void **state)
{
	static const char *const names[] = { "PIER_DMABUF", "PIER_PEERMEM", "PIER_CANARY",
					     "PIER_RELAXED_ORDERING" };
	struct pier_device *device = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		setenv(names[i], "no", 1);
		expect_result(pier_device_open("soft0", &device), -EINVAL);
		test_assert_sentence(names[i]);
		test_assert_sentence("=no: not \"on\", \"off\" or \"auto\"");
		unsetenv(names[i]);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(is_sent_once_for_a_pair),
		CASE(is_sent_for_each_device),
		CASE(is_not_sent_if_switched_off),
		CASE(refuses_foreign_pages),
		CASE(falls_back_to_a_bounce_buffer),
		CASE(finds_the_mapping_that_works),
		CASE(refuses_if_the_nic_cannot_reach_it),
		CASE(path_is_taken_if_it_cannot_be_sent),
		CASE(tries_other_gids),
		CASE(untested_path_is_a_warning),
		CASE(errors_that_may_pass_are_put_off),
		CASE(flushes_what_the_nic_wrote),
		CASE(nic_that_never_completes_does_not_hang_it),
		CASE(refuses_memory_that_never_completes),
		CASE(tells_what_it_found),
		CASE(is_sent_for_any_region),
		CASE(is_not_sent_under_a_requested_key),
		CASE(survives_forks),
		CASE(threads_agree),
		CASE(dmabufs_are_switched_off),
		CASE(peer_memory_is_switched_off),
		CASE(refuses_other_values),
	};

	return cmocka_run_group_tests_name("canary", tests, make_folder, remove_folder);
}

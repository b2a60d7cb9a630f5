/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/census.h"
#include "../support/expect.h"
#include "../support/gpu.h"

#include <string.h>
#include <time.h>

#include <pier/pier.h>

/*
 * The canary against a real kernel: the memory of the scripted backend is exported as
 * udmabufs, and as those of other pages if it is told to. The NIC registers both without
 * a complaint.
 *
 * usage: vm_canary [DEVICE]
 */

enum {
	LENGTH = 1 << 16,
};

static struct {
	const char *name;
	char folder[32];
	struct gpu_control *gpu;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct test_census before;
} fixture = { .folder = "/tmp/pier-vm-XXXXXX" };

static int make_folder(void **state)
{
	(void)state;
	fixture.gpu = test_load_gpu(fixture.folder);
	return unsetenv("PIER_CANARY");
}

static int remove_folder(void **state)
{
	(void)state;
	return test_remove_gpu(fixture.folder);
}

static int setup(void **state)
{
	(void)state;
	fixture.before = test_take_census();
	memset(fixture.gpu, 0, sizeof(*fixture.gpu));
	fixture.gpu->udmabuf = true;
	expect_ok(pier_device_open(fixture.name, &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	expect_ok(pier_buffer_alloc("gpu", LENGTH, &fixture.buffer));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	expect_ok(pier_buffer_free(fixture.buffer));
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	unsetenv("PIER_CANARY");
	test_assert_census(&fixture.before);
	return 0;
}

static int reg(enum pier_policy policy, struct pier_mr **ret_mr)
{
	return pier_mr_reg_buffer(fixture.pd, fixture.buffer, 0, LENGTH,
				  PIER_ACCESS_SHARED, policy, ret_mr);
}

/* Returns the microseconds of a registration. */
static long time_registration(void)
{
	struct timespec start, end;
	struct pier_mr *mr = NULL;

	clock_gettime(CLOCK_MONOTONIC, &start);
	expect_ok(reg(PIER_POLICY_DIRECT, &mr));
	clock_gettime(CLOCK_MONOTONIC, &end);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_dereg(mr));
	return (end.tv_sec - start.tv_sec) * 1000000 +
	       (end.tv_nsec - start.tv_nsec) / 1000;
}

static void accepts_the_pages_of_the_device(void **state)
{
	long first = time_registration(), next = time_registration();

	(void)state;
	/* It was sent, and only once. */
	assert_int_equal(fixture.gpu->copies, 2);
	printf("# the first registration took %ld us, the next %ld us\n", first, next);
}

static void refuses_other_pages(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	fixture.gpu->foreign_pages = ~0U;
	expect_result(reg(PIER_POLICY_DIRECT, &mr), -EIO);
	test_assert_sentence("do not share the memory of gpu");
	test_assert_sentence("the device wrote 0x");
	expect_ok(reg(PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	expect_ok(pier_mr_dereg(mr));
}

/* Without the canary nothing fails. */
static void kernel_registers_other_pages(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	setenv("PIER_CANARY", "off", 1);
	expect_ok(pier_device_open(fixture.name, &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	fixture.gpu->foreign_pages = ~0U;
	expect_ok(reg(PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_dereg(mr));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(accepts_the_pages_of_the_device),
		CASE(refuses_other_pages),
		CASE(kernel_registers_other_pages),
	};

	fixture.name = argc > 1 ? argv[1] : "rxe0";
	if (access("/dev/udmabuf", W_OK) != 0) {
		printf("1..0 # SKIP no /dev/udmabuf\n");
		return 77;
	}
	return cmocka_run_group_tests_name("canary", tests, make_folder, remove_folder);
}

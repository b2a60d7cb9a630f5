/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The device's attributes define the order in which its code sees a NIC's writes.
 * pier_mr_sync_for_device() must act accordingly: do nothing, flush, or let the NIC read.
 */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <errno.h>

#include "driver.h"

enum {
	LENGTH = 2 * GPU_BLOCK,
};

static bool is_ordered(void)
{
	return gpu_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
	       CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

static bool can_flush(void)
{
	return gpu_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
	       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
}

static void tells_of_the_device(void **state)
{
	CUresult error;

	(void)state;
	gpu_say("a NIC's writes are %s; they %s be flushed by the host",
		is_ordered() ? "ordered for the device" : "not ordered for the device",
		can_flush() ? "can" : "cannot");
	if (!gpu.call.cuFlushGPUDirectRDMAWrites)
		gpu_skip("the driver has no cuFlushGPUDirectRDMAWrites");
	gpu_push();
	error = gpu.call.cuFlushGPUDirectRDMAWrites(
		CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
		CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
	gpu_pop();
	gpu_say("cuFlushGPUDirectRDMAWrites: %s", gpu_error(error));
}

/* A direct region: the device's attributes decide, whatever the NIC does. */
static void sync_direct(void *argument)
{
	struct pier_buffer *buffer = argument;
	struct pier_mr *mr = NULL;
	int error;

	expect_ok(pier_mr_reg_buffer(gpu.pd, buffer, 0, LENGTH, PIER_ACCESS_SHARED,
				     PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_sync_for_nic(mr, 0, LENGTH));
	error = pier_mr_sync_for_device(mr, 0, LENGTH);
	gpu_say("pier_mr_sync_for_device of a direct region (%s): %s",
		is_ordered()  ? "the device orders writes"
		: can_flush() ? "the driver flushes"
			      : "the NIC reads back",
		error ? pier_error_message() : "ok");
	expect_ok(error);
	expect_ok(pier_mr_sync_for_device(mr, LENGTH, 0));
	expect_ok(pier_mr_dereg(mr));
}

static void syncs_a_direct_region(void **state)
{
	struct pier_buffer *buffer = NULL;
	struct pier_mr *mr = NULL;

	(void)state;
	expect_ok(pier_buffer_alloc(gpu_spec(""), LENGTH, &buffer));
	if (pier_mr_reg_buffer(gpu.pd, buffer, 0, LENGTH, PIER_ACCESS_SHARED,
			       PIER_POLICY_DIRECT, &mr)) {
		expect_ok(pier_buffer_free(buffer));
		gpu_skip("no direct region on %s: %s", pier_device_name(gpu.nic),
			 pier_error_message());
	}
	expect_ok(pier_mr_dereg(mr));
	gpu_run_steady(sync_direct, buffer);
	expect_ok(pier_buffer_free(buffer));
}

/* With or without a bounce buffer: the copy is complete on return, and needs no flush. */
static void sync_any(void *argument)
{
	struct pier_buffer *buffer = NULL;
	struct pier_mr *mr = NULL;

	(void)argument;
	expect_ok(pier_buffer_alloc(gpu_spec(":vmm"), LENGTH, &buffer));
	expect_ok(pier_mr_reg_buffer(gpu.pd, buffer, 100, LENGTH - 100,
				     PIER_ACCESS_SHARED, PIER_POLICY_BOUNCE, &mr));
	gpu_say("a region of VMM, bounce buffer allowed: %s",
		pier_path_name(pier_mr_path(mr)));
	expect_ok(pier_mr_sync_for_nic(mr, 0, LENGTH - 100));
	if (pier_mr_path(mr) == PIER_PATH_BOUNCE)
		expect_ok(pier_mr_sync_for_device(mr, 0, LENGTH - 100));
	expect_result(pier_mr_sync_for_device(mr, 1, LENGTH - 100), -ERANGE);
	expect_result(pier_mr_sync_for_nic(mr, 0, LENGTH), -ERANGE);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
}

static void syncs_what_may_have_a_bounce_buffer(void **state)
{
	(void)state;
	if (!gpu_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		gpu_skip("the device has no virtual memory management");
	gpu_run_steady(sync_any, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(tells_of_the_device),
		TEST(syncs_a_direct_region),
		TEST(syncs_what_may_have_a_bounce_buffer),
	};

	gpu_open_cuda();
	return cmocka_run_group_tests_name("gpu_visibility", tests, gpu_open_nic,
					   gpu_close_nic);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One key over memory of several segments, as PyTorch's expandable ones are.
 */
#include "cuda_fixture.h"

#include "core/deadline.h"
#include "device/loop.h"
#include "region/mr.h"

enum {
	SEGMENTS = 3,
	SKIPPED = 100,
};

static struct {
	struct pier_device *device;
	struct pier_pd *pd;
	struct fixture_vmm range;
	struct pier_buffer *buffer;
	uint64_t length;
	uint8_t *bytes, *arrived;
} fixture;

static void open_device(const char *name)
{
	expect_ok(pier_device_open(name, &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
}

static void close_device(void)
{
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
}

static int setup(void **state)
{
	fixture_setup(state);
	fixture.range = fixture_map(0, FIXTURE_BLOCK, SEGMENTS, true);
	fixture.length = fixture.range.length - SKIPPED;
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)(fixture.range.address + SKIPPED),
				   fixture.length, &fixture.buffer));
	fixture.bytes = malloc(fixture.length);
	fixture.arrived = calloc(1, fixture.length);
	assert_non_null(fixture.bytes);
	assert_non_null(fixture.arrived);
	for (uint64_t i = 0; i < fixture.length; i++)
		fixture.bytes[i] = (uint8_t)(i * 7 + i / 253);
	expect_ok(pier_buffer_copy_to(fixture.buffer, 0, fixture.bytes, fixture.length));
	return 0;
}

static int teardown(void **state)
{
	free(fixture.bytes);
	free(fixture.arrived);
	expect_ok(pier_buffer_free(fixture.buffer));
	fixture_unmap(&fixture.range);
	return fixture_teardown(state);
}

static int reg(enum pier_policy policy, struct pier_mr **ret_mr)
{
	struct pier_mr_range range = pier_mr_range_buffer(fixture.buffer, 0,
							  fixture.length);
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_SHARED;
	attr.policy = policy;
	attr.addressing = PIER_ADDRESSING_ZERO_BASED;
	attr.split = PIER_SPLIT_NEVER;
	return pier_mr_reg_attr(fixture.pd, &attr, ret_mr);
}

/* A peer reads all bytes by one key. */
static void check_bytes(const struct pier_mr *mr)
{
	struct pier_remote remote;
	struct pier_loop *loop;
	struct pier_mr *host;
	struct ibv_sge element;

	expect_ok(pier_mr_remote(mr, &remote));
	assert_int_equal(remote.length, fixture.length);
	expect_ok(pier_mr_reg(fixture.pd, fixture.arrived, fixture.length,
			      PIER_ACCESS_SHARED, &host));
	element = (struct ibv_sge){ (uintptr_t)fixture.arrived, (uint32_t)fixture.length,
				    pier_mr_lkey(host) };
	expect_ok(pier_loop_create(fixture.device, fixture.pd->pd, pier_deadline(30000),
				   &loop));
	expect_ok(pier_loop_run(loop, IBV_WR_RDMA_READ, &element, remote.addr,
				remote.rkey, pier_deadline(30000)));
	pier_loop_destroy(loop);
	assert_memory_equal(fixture.arrived, fixture.bytes, fixture.length);
	expect_ok(pier_mr_dereg(host));
}

static void one_key_covers_all_segments(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	open_device("soft0");
	expect_ok(reg(PIER_POLICY_DIRECT, &mr));
	assert_int_equal(mr->beneath_count, SEGMENTS);
	assert_int_equal(pier_mr_parts(mr), 1);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	check_bytes(mr);
	expect_ok(pier_mr_dereg(mr));
	close_device();
}

static void failure_is_named(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	open_device("fault:join_mrs@1=EOPNOTSUPP:soft0");
	expect_result(reg(PIER_POLICY_DIRECT, &mr), -EOPNOTSUPP);
	test_assert_sentence("3 parts under one key: create an indirect key");
	close_device();
	open_device("fault:like=irdma:soft0");
	expect_result(reg(PIER_POLICY_DIRECT, &mr), -EOPNOTSUPP);
	test_assert_sentence("it cannot be registered under one key");
	close_device();
}

/* One bounce buffer has one key. */
static void policy_allows_a_bounce_buffer(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	open_device("fault:join_mrs@1=EOPNOTSUPP:soft0");
	expect_ok(reg(PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	assert_int_equal(pier_mr_parts(mr), 1);
	assert_null(mr->beneath);
	expect_ok(pier_mr_sync_for_device(mr, 0, fixture.length));
	expect_ok(pier_mr_dereg(mr));
	expect_ok(reg(PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_dereg(mr));
	close_device();
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(one_key_covers_all_segments),
		CASE(failure_is_named),
		CASE(policy_allows_a_bounce_buffer),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}

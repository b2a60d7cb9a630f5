/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Buffers in the memory of a NIC. They are on soft0, whose provider the test wraps to
 * take capabilities away.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

#include "core/page.h"
#include "device/device.h"

enum {
	LENGTH = 3000,
	OFFSET = 77,
	ROUNDS = 2000,
};

static struct {
	struct pier_device *device, *other;
	struct pier_pd *pd, *other_pd;
	const struct pier_provider *real;
	struct pier_provider provider; /* the device's own */
	struct pier_buffer *buffer;
	struct test_census before;
	/* What the driver does not have. */
	bool lacks_memory, lacks_copies, lacks_alignment, lacks_export;
	int dms; /* that exist */
} fixture;

static struct ibv_dm *alloc_dm(struct ibv_context *context,
			       struct ibv_alloc_dm_attr *attr)
{
	struct ibv_dm *dm = NULL;

	assert_int_equal(attr->length % pier_host_page(), 0);
	if (fixture.lacks_memory)
		errno = EOPNOTSUPP;
	else if (fixture.lacks_alignment && attr->log_align_req > 3)
		errno = EINVAL;
	else
		dm = fixture.real->alloc_dm(context, attr);
	if (dm && fixture.lacks_copies)
		dm->memcpy_to_dm = NULL;
	fixture.dms += dm != NULL;
	return dm;
}

static int free_dm(struct ibv_dm *dm)
{
	fixture.dms--;
	return fixture.real->free_dm(dm);
}

static int dm_export_dmabuf_fd(struct ibv_dm *dm)
{
	if (!fixture.lacks_export)
		return fixture.real->dm_export_dmabuf_fd(dm);
	errno = EOPNOTSUPP;
	return -1;
}

static int setup(void **state)
{
	(void)state;
	memset(&fixture, 0, sizeof(fixture));
	fixture.before = test_take_census();
	expect_ok(pier_device_open("soft0", &fixture.device));
	expect_ok(pier_device_open("soft0", &fixture.other));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	expect_ok(pier_pd_alloc(fixture.other, &fixture.other_pd));
	fixture.real = fixture.device->provider;
	fixture.provider = *fixture.real;
	fixture.provider.alloc_dm = alloc_dm;
	fixture.provider.free_dm = free_dm;
	fixture.provider.dm_export_dmabuf_fd = dm_export_dmabuf_fd;
	fixture.device->provider = &fixture.provider;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	expect_ok(pier_buffer_free(fixture.buffer));
	assert_int_equal(fixture.dms, 0);
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_pd_dealloc(fixture.other_pd));
	expect_ok(pier_device_close(fixture.device));
	expect_ok(pier_device_close(fixture.other));
	test_assert_census(&fixture.before);
	return 0;
}

static int alloc(void)
{
	return pier_buffer_alloc_on_nic(fixture.device, LENGTH, &fixture.buffer);
}

static int reg(struct pier_pd *pd, enum pier_policy policy, struct pier_mr **ret_mr)
{
	return pier_mr_reg_buffer(pd, fixture.buffer, OFFSET, LENGTH - OFFSET,
				  PIER_ACCESS_SHARED, policy, ret_mr);
}

static void memory_belongs_to_its_device(void **state)
{
	struct pier_buffer_info info;
	void *pointer;

	(void)state;
	expect_ok(alloc());
	expect_ok(pier_buffer_query(fixture.buffer, &info, sizeof(info)));
	assert_string_equal(info.backend, "nic");
	assert_string_equal(info.unit, "soft0");
	assert_false(info.mappable);
	assert_string_equal(info.no_export, "");
	assert_int_equal(pier_buffer_length(fixture.buffer), LENGTH);
	expect_result(pier_buffer_map(fixture.buffer, &pointer), -EOPNOTSUPP);
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_result(pier_device_close(fixture.device), -EBUSY);
	test_assert_sentence("still has 1 buffer");
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
}

/* soft0, as mlx5, refuses everything but whole words of 4 bytes. */
static void any_bytes_are_copied(void **state)
{
	static uint8_t image[LENGTH], now[LENGTH];
	struct test_random random = test_random_start();

	(void)state;
	expect_ok(alloc());
	expect_ok(pier_buffer_copy_from(fixture.buffer, 0, now, LENGTH));
	assert_memory_equal(now, image, LENGTH);
	for (int i = 0; i < ROUNDS; i++) {
		uint8_t bytes[32];
		size_t length = test_random_below(&random, sizeof(bytes) + 1);
		size_t offset = test_random_below(&random, LENGTH - length + 1);

		for (size_t j = 0; j < length; j++)
			bytes[j] = (uint8_t)test_random_below(&random, 256);
		memcpy(image + offset, bytes, length);
		expect_ok(pier_buffer_copy_to(fixture.buffer, offset, bytes, length));
		memset(bytes, 0, sizeof(bytes));
		expect_ok(pier_buffer_copy_from(fixture.buffer, offset, bytes, length));
		assert_memory_equal(bytes, image + offset, length);
	}
	expect_ok(pier_buffer_copy_from(fixture.buffer, 0, now, LENGTH));
	assert_memory_equal(now, image, LENGTH);
}

static void its_own_device_registers_it_from_0(void **state)
{
	struct pier_mr_part_info part;
	struct pier_remote remote;
	struct pier_mr *mr;

	(void)state;
	fixture.lacks_export = true;
	expect_ok(alloc());
	expect_ok(reg(fixture.pd, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_NIC);
	assert_string_equal(pier_path_name(pier_mr_path(mr)), "nic");
	assert_int_equal(pier_mr_iova(mr), pier_buffer_address(fixture.buffer) + OFFSET);
	expect_ok(pier_mr_part(mr, 0, &part, sizeof(part)));
	assert_int_equal(part.iova, 0);
	expect_ok(pier_mr_remote(mr, &remote));
	assert_int_equal(remote.addr, 0);
	assert_int_equal(remote.length, LENGTH - OFFSET);
	expect_result(pier_buffer_free(fixture.buffer), -EBUSY);
	expect_ok(pier_mr_dereg(mr));
	expect_result(pier_mr_reg_buffer(fixture.pd, fixture.buffer, 0, LENGTH,
					 PIER_ACCESS_ON_DEMAND, PIER_POLICY_DIRECT, &mr),
		      -EINVAL);
	test_assert_sentence("as the NIC's own memory");
}

static void other_regions_are_of_its_dmabuf(void **state)
{
	struct pier_mr_range range;
	struct pier_mr_attr attr;
	struct pier_mr *mr;

	(void)state;
	expect_ok(alloc());
	expect_ok(reg(fixture.other_pd, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_dereg(mr));
	range = pier_mr_range_buffer(fixture.buffer, OFFSET, LENGTH - OFFSET);
	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.tph = PIER_TPH_TARGET;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_dereg(mr));
	attr.tph = PIER_TPH_NONE;
	attr.requested_key = 5;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	assert_int_equal(test_mr_info(mr).lkey, 5);
	expect_ok(pier_mr_dereg(mr));
}

static void without_a_dmabuf_others_need_a_bounce_buffer(void **state)
{
	struct pier_mr *mr;

	(void)state;
	fixture.lacks_export = true;
	expect_ok(alloc());
	expect_result(reg(fixture.other_pd, PIER_POLICY_PEERMEM, &mr), -EOPNOTSUPP);
	test_assert_sentence("exporting");
	test_assert_sentence("memory of soft0");
	expect_ok(reg(fixture.other_pd, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	expect_ok(pier_mr_dereg(mr));
}

static void unaligned_memory_has_no_dmabuf(void **state)
{
	struct pier_mr *mr;

	(void)state;
	fixture.lacks_alignment = true;
	expect_ok(alloc());
	expect_ok(reg(fixture.pd, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_dereg(mr));
	expect_result(reg(fixture.other_pd, PIER_POLICY_DIRECT, &mr), -EOPNOTSUPP);
	test_assert_sentence("does not align its memory to pages");
}

static void refusals_leave_nothing(void **state)
{
	struct pier_mr *mr;
	struct pier_device *faulty;
	struct pier_pd *pd;

	(void)state;
	expect_result(pier_buffer_alloc_on_nic(fixture.device, 0, &fixture.buffer),
		      -EINVAL);
	expect_result(
		pier_buffer_alloc_on_nic(fixture.device, UINT64_MAX, &fixture.buffer),
		-ENOMEM);
	expect_result(pier_buffer_alloc_on_nic(fixture.device, UINT64_C(1) << 40,
					       &fixture.buffer),
		      -ENOMEM);
	fixture.lacks_memory = true;
	expect_result(alloc(), -EOPNOTSUPP);
	test_assert_sentence("3000 bytes of memory of soft0");
	fixture.lacks_memory = false;
	fixture.lacks_copies = true;
	expect_result(alloc(), -EOPNOTSUPP);
	test_assert_sentence("its driver cannot copy");
	expect_ok(pier_device_open("fault:alloc_dm@1=ENOMEM,reg_dm_mr@1=EIO:soft0",
				   &faulty));
	expect_ok(pier_pd_alloc(faulty, &pd));
	expect_result(pier_buffer_alloc_on_nic(faulty, LENGTH, &fixture.buffer), -ENOMEM);
	expect_ok(pier_buffer_alloc_on_nic(faulty, LENGTH, &fixture.buffer));
	expect_result(reg(pd, PIER_POLICY_DIRECT, &mr), -EIO);
	expect_ok(reg(pd, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(fixture.buffer));
	fixture.buffer = NULL;
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(faulty));
	expect_ok(pier_device_open("fault:like=mlx5:soft0", &faulty));
	expect_result(pier_buffer_alloc_on_nic(faulty, LENGTH, &fixture.buffer),
		      -EOPNOTSUPP);
	expect_ok(pier_device_close(faulty));
}

static int play_child(void)
{
	char byte = 'x';

	if (pier_buffer_copy_to(fixture.buffer, 0, &byte, 1) != -ECHILD)
		return 1;
	if (pier_buffer_alloc_on_nic(fixture.device, 1, &fixture.buffer) != -ECHILD)
		return 2;
	return pier_buffer_free(fixture.buffer) == 0 && fixture.dms == 1 ? 0 : 3;
}

static void a_child_leaves_it_to_its_parent(void **state)
{
	char byte = 'p';
	int status;
	pid_t child;

	(void)state;
	expect_ok(alloc());
	expect_ok(pier_buffer_copy_to(fixture.buffer, 0, &byte, 1));
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(play_child());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	byte = 0;
	expect_ok(pier_buffer_copy_from(fixture.buffer, 0, &byte, 1));
	assert_int_equal(byte, 'p');
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(memory_belongs_to_its_device),
		CASE(any_bytes_are_copied),
		CASE(its_own_device_registers_it_from_0),
		CASE(other_regions_are_of_its_dmabuf),
		CASE(without_a_dmabuf_others_need_a_bounce_buffer),
		CASE(unaligned_memory_has_no_dmabuf),
		CASE(refusals_leave_nothing),
		CASE(a_child_leaves_it_to_its_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Registration of memory that the CPU cannot reach, with a backend scripted by the test:
 * the path of a region and how it is reported, mappings, segments, bounce buffers, and
 * which side sees a write when.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <infiniband/verbs.h>
#include <pier/pier.h>

#include "backends/backend.h"

enum {
	PATIENT = 30000,
};

static struct {
	char folder[32];
	struct gpu_control *gpu;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct test_census before;
	size_t page;
} fixture = { .folder = "/tmp/pier-unit-XXXXXX" };

static int make_folder(void **state)
{
	(void)state;
	fixture.page = (size_t)sysconf(_SC_PAGESIZE);
	fixture.gpu = test_load_gpu(fixture.folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	return test_remove_gpu(fixture.folder);
}

/* soft0, and 6 pages in `unit` segments. */
static void start(const char *spec)
{
	expect_ok(pier_buffer_alloc(spec, 6 * fixture.page, &fixture.buffer));
}

static int setup(void **state)
{
	(void)state;
	memset(fixture.gpu, 0, sizeof(*fixture.gpu));
	fixture.before = test_take_census();
	fixture.buffer = NULL;
	expect_ok(pier_device_open("soft0", &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	expect_ok(pier_buffer_free(fixture.buffer));
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	assert_int_equal(fixture.gpu->open_exports, 0);
	assert_int_equal(fixture.gpu->locks, fixture.gpu->unlocks);
	assert_int_equal(fixture.gpu->live, 0);
	test_assert_census(&fixture.before);
	return 0;
}

static int reg(size_t offset, size_t length, enum pier_policy policy,
	       struct pier_mr **ret_mr)
{
	return pier_mr_reg_buffer(fixture.pd, fixture.buffer, offset, length,
				  PIER_ACCESS_SHARED, policy, ret_mr);
}

static void uses_the_default_mapping(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	expect_ok(reg(0, 100, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_DEFAULT);
	assert_string_equal(pier_mr_reason(mr), "");
	assert_int_equal(fixture.gpu->exports_by[PIER_MAPPING_PCIE], 0);
	expect_ok(pier_mr_dereg(mr));
}

/* The backend learns which NIC imports the range, and with which access. */
static void names_the_importer_and_its_access(void **state)
{
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	expect_ok(reg(fixture.page + 1, 100, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_dereg(mr));
	assert_string_equal(fixture.gpu->importer, "soft0");
	assert_int_equal(fixture.gpu->request.access,
			 PIER_BACKEND_READ | PIER_BACKEND_WRITE);
	assert_int_equal(fixture.gpu->request.address,
			 pier_buffer_address(fixture.buffer) + fixture.page);
	assert_int_equal(fixture.gpu->request.length, fixture.page);
	expect_ok(pier_mr_reg_buffer(fixture.pd, fixture.buffer, 0, 100,
				     IBV_ACCESS_REMOTE_READ, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_dereg(mr));
	assert_int_equal(fixture.gpu->request.access, PIER_BACKEND_READ);
	/* The caller's own export names no importer and allows every access. */
	expect_ok(pier_dmabuf_export(fixture.buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf));
	pier_dmabuf_close(&dmabuf);
	assert_string_equal(fixture.gpu->importer, "");
	assert_int_equal(fixture.gpu->request.access,
			 PIER_BACKEND_READ | PIER_BACKEND_WRITE);
}

/*
 * Exports cover whole steps of the granularity, counted from the start of the allocation
 * and cut at its end.
 */
static void exports_whole_steps(void **state)
{
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;
	uint64_t step = 4 * fixture.page;

	(void)state;
	fixture.gpu->granularity = step;
	start("gpu");
	expect_ok(pier_dmabuf_export(fixture.buffer, fixture.page + 1, 10,
				     PIER_MAPPING_AUTO, &dmabuf));
	assert_int_equal(fixture.gpu->request.address,
			 pier_buffer_address(fixture.buffer));
	assert_int_equal(fixture.gpu->request.length, step);
	assert_int_equal(dmabuf.offset, fixture.page + 1);
	assert_int_equal(dmabuf.iova,
			 pier_buffer_address(fixture.buffer) + fixture.page + 1);
	pier_dmabuf_close(&dmabuf);
	/* The last step is shorter. */
	expect_ok(pier_dmabuf_export(fixture.buffer, 6 * fixture.page - 1, 1,
				     PIER_MAPPING_AUTO, &dmabuf));
	assert_int_equal(fixture.gpu->request.length, 2 * fixture.page);
	assert_int_equal(dmabuf.offset, 6 * fixture.page - 1);
	pier_dmabuf_close(&dmabuf);
	expect_ok(reg(step - 1, 2, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(fixture.gpu->request.length, 6 * fixture.page);
	expect_ok(pier_mr_dereg(mr));
}

static void refuses_a_false_granularity(void **state)
{
	struct pier_dmabuf dmabuf;

	(void)state;
	fixture.gpu->granularity = fixture.page + 1;
	start("gpu");
	expect_result(
		pier_dmabuf_export(fixture.buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf),
		-EIO);
	test_assert_sentence("the backend exports steps of ");
	assert_int_equal(fixture.gpu->exports, 0);
}

/* The backend "gpu" without segment(); its exports report where they end. */
static void register_partial(void)
{
	static bool registered;
	struct pier_backend table = *pier_find_backend("gpu", 3);

	fixture.gpu->partial = true;
	if (registered)
		return;
	table.name = "partial";
	table.segment = NULL;
	table.parts = true;
	expect_ok(pier_backend_register(&table));
	registered = true;
}

/* One range with several fds: a region of parts. */
static void registers_a_part_for_each_dmabuf(void **state)
{
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;

	(void)state;
	register_partial();
	start("partial:3");
	expect_ok(reg(1, 6 * fixture.page - 1, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_parts(mr), 3);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_dmabuf_export(fixture.buffer, 2 * fixture.page - 1, 1,
				     PIER_MAPPING_AUTO, &dmabuf));
	pier_dmabuf_close(&dmabuf);
	expect_result(pier_dmabuf_export(fixture.buffer, 2 * fixture.page - 1, 2,
					 PIER_MAPPING_AUTO, &dmabuf),
		      -EXDEV);
	test_assert_sentence("its first 1 bytes are in a dma-buf of their own");
}

static void refuses_a_short_export(void **state)
{
	struct pier_dmabuf dmabuf;

	(void)state;
	fixture.gpu->partial = true;
	start("gpu:3");
	expect_result(pier_dmabuf_export(fixture.buffer, 0, 6 * fixture.page,
					 PIER_MAPPING_AUTO, &dmabuf),
		      -EIO);
	test_assert_sentence("the backend exported ");
}

/*
 * The mapping that worked for the NIC is tried first the next time; one that failed is
 * not ruled out.
 */
static void finds_and_remembers_the_mapping(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	expect_ok(reg(0, 6 * fixture.page, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_PCIE);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_dereg(mr));
	assert_int_equal(fixture.gpu->exports_by[PIER_MAPPING_DEFAULT], 1);
	expect_ok(reg(0, 6 * fixture.page, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_dereg(mr));
	assert_int_equal(fixture.gpu->exports_by[PIER_MAPPING_DEFAULT], 1);
	assert_int_equal(fixture.gpu->exports_by[PIER_MAPPING_PCIE], 2);
	fixture.gpu->takes = PIER_MAPPING_DEFAULT;
	expect_ok(reg(0, 6 * fixture.page, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_DEFAULT);
	expect_ok(pier_mr_dereg(mr));
}

static void remembers_the_mapping_for_each_nic(void **state)
{
	struct pier_device *other = NULL;
	struct pier_pd *pd = NULL;
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	expect_ok(reg(0, 100, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_dereg(mr));
	fixture.gpu->takes = PIER_MAPPING_AUTO;
	expect_ok(pier_device_open("soft0", &other));
	expect_ok(pier_pd_alloc(other, &pd));
	expect_ok(pier_mr_reg_buffer(pd, fixture.buffer, 0, 100, 0, PIER_POLICY_DIRECT,
				     &mr));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_DEFAULT);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(other));
}

static void reports_why_both_mappings_failed(void **state)
{
	struct pier_mr *mr = (void *)1;

	(void)state;
	start("gpu");
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	fixture.gpu->no_pcie = true;
	expect_result(reg(0, 100, PIER_POLICY_DIRECT, &mr), -EINVAL);
	test_assert_sentence("with the mapping \"default\": ");
	test_assert_sentence("with \"pcie\": ");
	test_assert_sentence("the driver has no such mapping");
	assert_ptr_equal(mr, (void *)1);
}

static int reg_mapped(enum pier_mapping mapping, int ordering, struct pier_mr **ret_mr)
{
	struct pier_mr_range range = pier_mr_range_buffer(fixture.buffer, 0,
							  6 * fixture.page);
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.mapping = mapping;
	attr.ordering = (enum pier_ordering)ordering;
	return pier_mr_reg_attr(fixture.pd, &attr, ret_mr);
}

static void uses_the_requested_mapping(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	expect_ok(reg_mapped(PIER_MAPPING_PCIE, 0, &mr));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_PCIE);
	expect_ok(pier_mr_dereg(mr));
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	expect_result(reg_mapped(PIER_MAPPING_DEFAULT, 0, &mr), -EINVAL);
	assert_int_equal(fixture.gpu->exports, 2);
	expect_result(reg_mapped((enum pier_mapping)3, 0, &mr), -EINVAL);
	test_assert_sentence("mapping 3");
	expect_result(reg_mapped(PIER_MAPPING_AUTO, 3, &mr), -EINVAL);
	test_assert_sentence("ordering 3");
}

/* Register the buffer on a device that is opened now, for its switches. */
static bool is_relaxed(int access, enum pier_ordering ordering)
{
	struct pier_mr_range range = pier_mr_range_buffer(fixture.buffer, 0, 100);
	struct pier_device *device = NULL;
	struct pier_pd *pd = NULL;
	struct pier_mr *mr = NULL;
	struct pier_mr_attr attr;
	bool relaxed;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = access;
	attr.ordering = ordering;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_mr_reg_attr(pd, &attr, &mr));
	relaxed = test_mr_info(mr).access & PIER_ACCESS_RELAXED_ORDERING;
	assert_int_equal(test_mr_info(mr).access & ~PIER_ACCESS_RELAXED_ORDERING,
			 access & ~PIER_ACCESS_RELAXED_ORDERING);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
	return relaxed;
}

static void relaxes_only_what_completions_announce(void **state)
{
	const int receive = PIER_ACCESS_LOCAL_WRITE, flag = PIER_ACCESS_RELAXED_ORDERING;

	(void)state;
	start("gpu");
	/* The backend must allow it. */
	assert_false(is_relaxed(receive, PIER_ORDERING_AUTO));
	expect_ok(pier_buffer_free(fixture.buffer));
	fixture.gpu->any_order = true;
	start("gpu");
	assert_true(is_relaxed(receive, PIER_ORDERING_AUTO));
	assert_true(is_relaxed(receive | PIER_ACCESS_REMOTE_READ, PIER_ORDERING_AUTO));
	/* Something on the device may wait for the last byte of a peer's write. */
	assert_false(is_relaxed(PIER_ACCESS_SHARED, PIER_ORDERING_AUTO));
	assert_false(is_relaxed(receive | PIER_ACCESS_REMOTE_ATOMIC, PIER_ORDERING_AUTO));
	assert_false(is_relaxed(PIER_ACCESS_REMOTE_READ, PIER_ORDERING_AUTO));
	assert_true(is_relaxed(PIER_ACCESS_SHARED, PIER_ORDERING_COMPLETIONS));
	assert_false(is_relaxed(receive, PIER_ORDERING_STRICT));
	assert_true(is_relaxed(PIER_ACCESS_SHARED | flag, PIER_ORDERING_AUTO));
}

/* Something waits for the bytes of the whole region, whoever writes them. */
static void sub_region_has_the_ordering_of_its_region(void **state)
{
	struct pier_mr_range range;
	struct pier_mr *mr = NULL, *part = NULL;
	struct pier_mr_attr attr;

	(void)state;
	fixture.gpu->any_order = true;
	start("gpu");
	range = pier_mr_range_buffer(fixture.buffer, 0, 100);
	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_LOCAL_WRITE;
	attr.ordering = PIER_ORDERING_STRICT;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	expect_ok(pier_mr_reg_sub(mr, 0, 10, PIER_ACCESS_LOCAL_WRITE, &part));
	assert_int_equal(test_mr_info(part).access, PIER_ACCESS_LOCAL_WRITE);
	expect_ok(pier_mr_dereg(part));
	expect_ok(pier_mr_dereg(mr));
}

static void switches_relaxed_ordering(void **state)
{
	struct pier_mr_range range;
	struct pier_mr *mr = NULL;
	struct pier_mr_attr attr;

	(void)state;
	fixture.gpu->any_order = true;
	start("gpu");
	setenv("PIER_RELAXED_ORDERING", "off", 1);
	assert_false(is_relaxed(PIER_ACCESS_LOCAL_WRITE, PIER_ORDERING_AUTO));
	assert_false(is_relaxed(PIER_ACCESS_RELAXED_ORDERING, PIER_ORDERING_AUTO));
	setenv("PIER_RELAXED_ORDERING", "on", 1);
	assert_true(is_relaxed(PIER_ACCESS_SHARED, PIER_ORDERING_AUTO));
	assert_false(is_relaxed(PIER_ACCESS_SHARED, PIER_ORDERING_STRICT));
	unsetenv("PIER_RELAXED_ORDERING");
	range = pier_mr_range_buffer(fixture.buffer, 0, 100);
	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_RELAXED_ORDERING;
	attr.ordering = PIER_ORDERING_STRICT;
	expect_result(pier_mr_reg_attr(fixture.pd, &attr, &mr), -EINVAL);
	test_assert_sentence("ordering is strict");
}

static void exports_with_a_mapping(void **state)
{
	struct pier_dmabuf dmabuf;

	(void)state;
	start("gpu");
	expect_ok(pier_dmabuf_export(fixture.buffer, 7, 100, PIER_MAPPING_PCIE, &dmabuf));
	assert_int_equal(dmabuf.offset, 7);
	assert_int_equal(fixture.gpu->exports_by[PIER_MAPPING_PCIE], 1);
	pier_dmabuf_close(&dmabuf);
	fixture.gpu->no_pcie = true;
	expect_result(
		pier_dmabuf_export(fixture.buffer, 0, 1, PIER_MAPPING_PCIE, &dmabuf),
		-EOPNOTSUPP);
	expect_result(pier_dmabuf_export(fixture.buffer, 0, 1, (enum pier_mapping) - 1,
					 &dmabuf),
		      -EINVAL);
	assert_string_equal(pier_mapping_name(PIER_MAPPING_PCIE), "pcie");
	assert_string_equal(pier_mapping_name((enum pier_mapping)9), "unknown");
}

/* One part for each segment that the range touches. */
static void registers_by_segments(void **state)
{
	struct pier_mr_part_info part;
	struct pier_mr *mr = NULL;
	size_t page = fixture.page;
	uint64_t lengths[] = { 2 * page - 5, 2 * page, 7 };

	(void)state;
	start("gpu:3");
	fixture.gpu->seams = true;
	expect_ok(reg(5, 4 * page + 2, PIER_POLICY_ANY, &mr));
	assert_int_equal(pier_mr_parts(mr), 3);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	for (uint32_t i = 0, start = 0; i < 3; i++) {
		expect_ok(pier_mr_part(mr, i, &part, sizeof(part)));
		assert_int_equal(part.length, lengths[i]);
		assert_int_equal(part.offset, start);
		assert_int_equal(part.iova, pier_mr_iova(mr) + start);
		start += (uint32_t)part.length;
	}
	assert_string_equal(pier_mr_reason(mr), "");
	assert_int_equal(fixture.gpu->exports_by[PIER_MAPPING_PCIE], 0);
	expect_ok(pier_mr_dereg(mr));
	/* Within one segment. */
	expect_ok(reg(2 * page, 2 * page, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_parts(mr), 1);
	expect_ok(pier_mr_dereg(mr));
}

static void makes_no_parts_if_forbidden(void **state)
{
	struct pier_mr_range range;
	struct pier_mr_attr attr;
	struct pier_mr *mr = NULL;

	pier_mr_attr_init(&attr);
	(void)state;
	start("gpu:3");
	range = pier_mr_range_buffer(fixture.buffer, 0, 6 * fixture.page);
	fixture.gpu->seams = true;
	attr.ranges = &range;
	attr.range_count = 1;
	attr.split = PIER_SPLIT_NEVER;
	expect_result(pier_mr_reg_attr(fixture.pd, &attr, &mr), -EOPNOTSUPP);
	test_assert_sentence("several segments");
	fixture.gpu->lies_about_segments = true;
	attr.split = PIER_SPLIT_SEAMS;
	expect_result(pier_mr_reg_attr(fixture.pd, &attr, &mr), -EIO);
	test_assert_sentence("no segment");
}

/* Some parts succeed, then one fails: nothing remains. */
static void undoes_earlier_segments_on_failure(void **state)
{
	struct pier_mr *mr = (void *)1;

	(void)state;
	start("gpu:6");
	fixture.gpu->seams = true;
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	fixture.gpu->no_pcie = true;
	expect_result(reg(0, 6 * fixture.page, PIER_POLICY_DIRECT, &mr), -EINVAL);
	assert_ptr_equal(mr, (void *)1);
}

/*
 * The driver runs out of memory in the middle: parts that exist are not registered again.
 */
static void appends_ranges_after_segments(void **state)
{
	struct pier_mr_attr attr;
	struct pier_mr_part_info part;
	struct pier_mr_range range;
	struct pier_mr *mr = NULL;

	pier_mr_attr_init(&attr);
	(void)state;
	start("gpu:3");
	fixture.gpu->seams = true;
	fixture.gpu->export_error = ENOMEM;
	/* All segments at once, then the first, then the second. */
	fixture.gpu->fail_export_at = 3;
	range = pier_mr_range_buffer(fixture.buffer, 0, 6 * fixture.page);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.split = PIER_SPLIT_PIECES;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	assert_int_equal(pier_mr_parts(mr), 3);
	for (uint32_t i = 0; i < 3; i++) {
		expect_ok(pier_mr_part(mr, i, &part, sizeof(part)));
		assert_int_equal(part.length, 2 * fixture.page);
	}
	expect_ok(pier_mr_dereg(mr));
}

/* Several ranges, one of them with segments: the device does not join them. */
static void accepts_segments_among_ranges(void **state)
{
	static char host[100];
	struct pier_mr *mr = NULL;
	struct pier_mr_range ranges[2];

	(void)state;
	start("gpu:3");
	fixture.gpu->seams = true;
	ranges[0] = pier_mr_range_host(host, sizeof(host));
	ranges[1] = pier_mr_range_buffer(fixture.buffer, 0, 3 * fixture.page);
	expect_ok(test_reg_mr_vec(fixture.pd, ranges, 2, PIER_ACCESS_SHARED, &mr));
	assert_int_equal(pier_mr_parts(mr), 3);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_MIXED);
	expect_ok(pier_mr_dereg(mr));
}

/* Only the range without a direct path gets a bounce buffer. */
static void bounces_one_of_several_ranges(void **state)
{
	static char host[100];
	struct pier_mr *mr = NULL;
	struct pier_mr_range ranges[2];
	struct pier_mr_attr attr;
	struct pier_mr_part_info part;

	pier_mr_attr_init(&attr);
	(void)state;
	start("gpu");
	fixture.gpu->export_error = EPERM;
	ranges[0] = pier_mr_range_host(host, sizeof(host));
	ranges[1] = pier_mr_range_buffer(fixture.buffer, 0, 100);
	attr.ranges = ranges;
	attr.range_count = 2;
	expect_result(pier_mr_reg_attr(fixture.pd, &attr, &mr), -EPERM);
	attr.policy = PIER_POLICY_BOUNCE;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	assert_int_equal(pier_mr_parts(mr), 2);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_MIXED);
	expect_ok(pier_mr_part(mr, 0, &part, sizeof(part)));
	assert_int_equal(part.path, PIER_PATH_HOST);
	expect_ok(pier_mr_part(mr, 1, &part, sizeof(part)));
	assert_int_equal(part.path, PIER_PATH_BOUNCE);
	expect_ok(pier_mr_dereg(mr));
}

static void registers_host_memory_as_host_memory(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	fixture.gpu->host = true;
	start("gpu");
	expect_ok(reg(3, 100, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_HOST);
	assert_int_equal(fixture.gpu->exports, 0);
	expect_ok(pier_mr_dereg(mr));
}

static void bounces_only_if_the_policy_allows_it(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	fixture.gpu->export_error = EPERM;
	expect_result(reg(0, 100, PIER_POLICY_DIRECT, &mr), -EPERM);
	/*
	 * The address is mapped without any access, since the CPU cannot reach a GPU's
	 * memory.
	 */
	expect_result(reg(0, 100, PIER_POLICY_ANY, &mr), -EFAULT);
	test_assert_sentence("as peer memory");
	test_assert_sentence("before that, as a dma-buf: ");
	test_assert_sentence("the driver refuses");
	expect_ok(reg(0, 100, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	assert_non_null(strstr(pier_mr_reason(mr), "as a dma-buf: "));
	assert_non_null(strstr(pier_mr_reason(mr), "as peer memory: "));
	assert_int_equal(pier_mr_iova(mr), pier_buffer_address(fixture.buffer));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_AUTO);
	expect_ok(pier_mr_dereg(mr));
}

/* They belong to the allocation, and asking for them takes calls of the driver. */
static void asks_for_the_facts_of_a_buffer_once(void **state)
{
	struct pier_buffer_info info;
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	expect_ok(reg(0, 100, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_dmabuf_export(fixture.buffer, 0, 100, PIER_MAPPING_AUTO, &dmabuf));
	pier_dmabuf_close(&dmabuf);
	expect_ok(pier_buffer_query(fixture.buffer, &info, sizeof(info)));
	assert_string_equal(info.kind, "test memory");
	fixture.gpu->export_error = EPERM;
	expect_ok(reg(0, 100, PIER_POLICY_BOUNCE, &mr));
	expect_ok(pier_mr_dereg(mr));
	assert_int_equal(fixture.gpu->describes, 1);
}

/* The sentence is the backend's, once, and the driver is not asked. */
static void names_the_range_that_cannot_be_exported(void **state)
{
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;
	const char *why;

	(void)state;
	fixture.gpu->says_no_export = true;
	start("gpu");
	expect_result(
		pier_dmabuf_export(fixture.buffer, 0, 100, PIER_MAPPING_AUTO, &dmabuf),
		-EOPNOTSUPP);
	test_assert_sentence("do otherwise");
	expect_result(reg(0, 100, PIER_POLICY_DIRECT, &mr), -EOPNOTSUPP);
	test_assert_sentence("do otherwise");
	expect_ok(reg(0, 100, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(fixture.gpu->exports, 0);
	why = strstr(pier_mr_reason(mr), "do otherwise");
	assert_non_null(why);
	assert_null(strstr(why + 1, "do otherwise"));
	assert_non_null(strstr(why, "as peer memory"));
	expect_ok(pier_mr_dereg(mr));
	/* Memory whose pages move is not registered by its address. */
	expect_ok(pier_buffer_free(fixture.buffer));
	fixture.gpu->moves = true;
	start("gpu");
	expect_result(reg(0, 100, PIER_POLICY_ANY, &mr), -EOPNOTSUPP);
	expect_ok(reg(0, 100, PIER_POLICY_BOUNCE, &mr));
	assert_null(strstr(pier_mr_reason(mr), "as peer memory"));
	expect_ok(pier_mr_dereg(mr));
}

/*
 * Host memory of a driver that the NIC cannot pin: by its dma-buf, or with a bounce
 * buffer.
 */
static void falls_back_from_host_memory(void **state)
{
	struct pier_mr *mr = NULL;
	void *cpu = NULL;

	(void)state;
	fixture.gpu->host = true;
	start("gpu");
	expect_ok(pier_buffer_map(fixture.buffer, &cpu));
	assert_int_equal(mprotect(cpu, 6 * fixture.page, PROT_NONE), 0);
	expect_result(reg(0, 100, PIER_POLICY_DIRECT, &mr), -EFAULT);
	expect_ok(reg(0, 100, PIER_POLICY_ANY, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	assert_non_null(strstr(pier_mr_reason(mr), "as host memory: "));
	expect_ok(pier_mr_dereg(mr));
	fixture.gpu->export_error = EPERM;
	expect_ok(reg(0, 100, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	assert_non_null(strstr(pier_mr_reason(mr), "the driver refuses"));
	expect_ok(pier_mr_dereg(mr));
}

static void connect_ends(struct pier_channel **ret_a, struct pier_channel **ret_b)
{
	struct pier_endpoint a, b;

	expect_ok(pier_channel_create(fixture.pd, NULL, ret_a));
	expect_ok(pier_channel_create(fixture.pd, NULL, ret_b));
	expect_ok(pier_channel_endpoint(*ret_a, &a));
	expect_ok(pier_channel_endpoint(*ret_b, &b));
	expect_ok(pier_channel_connect(*ret_a, &b));
	expect_ok(pier_channel_connect(*ret_b, &a));
}

/* Compare all bytes of the device's memory with the expected ones. */
static void expect_device(const uint8_t *image, size_t length)
{
	uint8_t *found = malloc(length);

	assert_non_null(found);
	expect_ok(pier_buffer_copy_from(fixture.buffer, 0, found, length));
	assert_memory_equal(found, image, length);
	free(found);
}

static void read_at(struct pier_channel *channel, struct pier_mr *from, uint64_t offset,
		    struct pier_mr *into, uint8_t *bytes, size_t length)
{
	struct pier_scatter target;
	struct pier_remote whole, part;

	expect_ok(pier_mr_scatter(into, (uintptr_t)bytes, length, &target));
	expect_ok(pier_mr_remote(from, &whole));
	expect_ok(pier_remote_sub(&whole, offset, length, &part));
	expect_ok(pier_channel_read(channel, &target, 1, &part, PATIENT));
}

static void write_at(struct pier_channel *channel, struct pier_mr *to, uint64_t offset,
		     struct pier_mr *from, uint8_t *bytes, size_t length)
{
	struct pier_gather source;
	struct pier_remote whole, part;

	expect_ok(pier_mr_gather(from, (uintptr_t)bytes, length, &source));
	expect_ok(pier_mr_remote(to, &whole));
	expect_ok(pier_remote_sub(&whole, offset, length, &part));
	expect_ok(pier_channel_write(channel, &source, 1, &part, PATIENT));
}

/* A sync copies the bytes it names between the two memories, and no others. */
static void check_bounce(struct pier_mr *mr, uint64_t begin, uint64_t skew)
{
	struct pier_channel *a = NULL, *b = NULL;
	static uint8_t plain[64], image[6 << 16];
	struct pier_mr *host = NULL;
	size_t length = 6 * fixture.page;

	assert_true(length <= sizeof(image));
	for (size_t i = 0; i < length; i++)
		image[i] = (uint8_t)(i * 7 + i / 251);
	expect_ok(pier_buffer_copy_to(fixture.buffer, 0, image, length));
	expect_ok(pier_mr_reg(fixture.pd, plain, sizeof(plain), PIER_ACCESS_LOCAL_WRITE,
			      &host));
	connect_ends(&a, &b);
	/* The NIC sees 16 of 64 bytes, with zeroes around them. */
	expect_ok(pier_mr_sync_for_nic(mr, begin + 16, 16));
	read_at(a, mr, begin, host, plain, 64);
	for (int i = 0; i < 64; i++)
		assert_int_equal(plain[i],
				 i >= 16 && i < 32 ? image[skew + begin + i] : 0);
	/* The device sees the bytes of the peer that the sync names. */
	memset(plain, 0xee, sizeof(plain));
	write_at(a, mr, begin, host, plain, 64);
	expect_device(image, length);
	expect_ok(pier_mr_sync_for_device(mr, begin + 8, 20));
	memset(image + skew + begin + 8, 0xee, 20);
	expect_device(image, length);
	expect_ok(pier_channel_destroy(a));
	expect_ok(pier_channel_destroy(b));
	expect_ok(pier_mr_dereg(host));
}

static void sync_copies_the_named_bytes(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	fixture.gpu->export_error = EPERM;
	expect_ok(reg(123, 2 * fixture.page, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(fixture.gpu->locks, 1);
	check_bounce(mr, fixture.page - 40, 123);
	/* Direct regions have nothing to copy, and bounce buffers nothing to flush. */
	assert_int_equal(fixture.gpu->flushes, 0);
	expect_ok(pier_mr_dereg(mr));
}

/* Across the seam between two bounce buffers. */
static void bounces_by_segments(void **state)
{
	struct pier_mr_part_info part;
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu:3");
	fixture.gpu->seams = true;
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	fixture.gpu->no_pcie = true;
	expect_ok(reg(0, 6 * fixture.page, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_parts(mr), 3);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	expect_ok(pier_mr_part(mr, 2, &part, sizeof(part)));
	assert_int_equal(part.path, PIER_PATH_BOUNCE);
	fixture.gpu->copies = 0;
	expect_ok(pier_mr_sync_for_nic(mr, 2 * fixture.page - 10, 20));
	assert_int_equal(fixture.gpu->copies, 2);
	expect_ok(pier_mr_sync_for_nic(mr, 0, 6 * fixture.page));
	assert_int_equal(fixture.gpu->copies, 5);
	expect_ok(pier_mr_sync_for_nic(mr, 6 * fixture.page, 0));
	assert_int_equal(fixture.gpu->copies, 5);
	expect_ok(pier_mr_dereg(mr));
}

/* The NIC sees the same bytes through a sub-region as through its base. */
static void shares_the_bounce_buffer_with_sub_regions(void **state)
{
	struct pier_mr *mr = NULL, *sub = NULL;

	(void)state;
	start("gpu");
	fixture.gpu->export_error = EPERM;
	expect_ok(reg(100, 4 * fixture.page, PIER_POLICY_BOUNCE, &mr));
	expect_ok(pier_mr_reg_sub(mr, fixture.page - 50, fixture.page, PIER_ACCESS_SHARED,
				  &sub));
	assert_int_equal(pier_mr_path(sub), PIER_PATH_BOUNCE);
	assert_non_null(strstr(pier_mr_reason(sub), "the driver refuses"));
	assert_int_equal(fixture.gpu->locks, 1);
	check_bounce(sub, 30, fixture.page + 50);
	expect_ok(pier_mr_dereg(sub));
	expect_ok(pier_mr_dereg(mr));
}

/* Also if the sub-region spans several parts and could do without one itself. */
static void shares_several_bounce_buffers(void **state)
{
	struct pier_mr *mr = NULL, *sub = NULL;

	(void)state;
	start("gpu:3");
	fixture.gpu->seams = true;
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	fixture.gpu->no_pcie = true;
	expect_ok(reg(0, 6 * fixture.page, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_parts(mr), 3);
	fixture.gpu->seams = false;
	fixture.gpu->takes = 0;
	expect_ok(pier_mr_reg_sub(mr, 2 * fixture.page - 50, fixture.page,
				  PIER_ACCESS_SHARED, &sub));
	assert_int_equal(pier_mr_parts(sub), 2);
	assert_int_equal(pier_mr_path(sub), PIER_PATH_BOUNCE);
	assert_int_equal(fixture.gpu->locks, 3);
	expect_ok(pier_mr_dereg(sub));
	expect_ok(pier_mr_dereg(mr));
}

/* Only memory that a NIC wrote to directly needs a flush. */
static void flushes_no_bounce_buffer(void **state)
{
	static char host[100];
	struct pier_mr_attr attr;
	struct pier_mr_range ranges[2];
	struct pier_mr *mr = NULL;

	pier_mr_attr_init(&attr);
	(void)state;
	start("gpu");
	fixture.gpu->export_error = EPERM;
	fixture.gpu->flush_error = EOPNOTSUPP;
	ranges[0] = pier_mr_range_host(host, sizeof(host));
	ranges[1] = pier_mr_range_buffer(fixture.buffer, 0, 100);
	attr.ranges = ranges;
	attr.range_count = 2;
	attr.policy = PIER_POLICY_BOUNCE;
	expect_ok(pier_mr_reg_attr(fixture.pd, &attr, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_MIXED);
	expect_ok(pier_mr_sync_for_device(mr, 0, 200));
	assert_int_equal(fixture.gpu->flushes, 0);
	assert_int_equal(fixture.gpu->copies, 1);
	expect_ok(pier_mr_dereg(mr));
}

static void flushes_direct_memory(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	expect_ok(reg(0, 100, PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_sync_for_nic(mr, 0, 100));
	assert_int_equal(fixture.gpu->flushes, 0);
	expect_ok(pier_mr_sync_for_device(mr, 0, 100));
	assert_int_equal(fixture.gpu->flushes, 1);
	assert_int_equal(fixture.gpu->copies, 0);
	fixture.gpu->flush_error = EOPNOTSUPP;
	expect_result(pier_mr_sync_for_device(mr, 0, 100), -EOPNOTSUPP);
	test_assert_sentence("no flush");
	expect_ok(pier_mr_dereg(mr));
}

/* The backend learns the bytes and the NIC. */
static void flushes_the_range_that_was_written(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	expect_ok(reg(3 * fixture.page, 2 * fixture.page, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_sync_for_device(mr, 100, 50));
	assert_int_equal(fixture.gpu->flushed.address,
			 pier_buffer_address(fixture.buffer) + 3 * fixture.page + 100);
	assert_int_equal(fixture.gpu->flushed.length, 50);
	assert_string_equal(fixture.gpu->flusher, "soft0");
	expect_ok(pier_mr_dereg(mr));
}

/*
 * soft0 would refuse another key or address. The region allows no remote reads: the NIC
 * reads by the local key.
 */
static void reads_back_if_the_backend_asks(void **state)
{
	struct pier_mr *mr = NULL, *sub = NULL;

	(void)state;
	start("gpu:3");
	fixture.gpu->reads_back = true;
	fixture.gpu->seams = true;
	fixture.gpu->takes = PIER_MAPPING_PCIE;
	expect_ok(pier_mr_reg_buffer(fixture.pd, fixture.buffer, 0, 6 * fixture.page,
				     PIER_ACCESS_LOCAL_WRITE, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_sync_for_device(mr, 5 * fixture.page + 7, 10));
	assert_int_equal(fixture.gpu->flushes, 2);
	assert_true(fixture.gpu->flushed.read_back);
	assert_int_equal(fixture.gpu->flushed.mapping, PIER_MAPPING_PCIE);
	expect_ok(pier_mr_reg_sub(mr, 3, 100, PIER_ACCESS_LOCAL_WRITE, &sub));
	expect_ok(pier_mr_sync_for_device(sub, 99, 1));
	assert_int_equal(fixture.gpu->flushes, 4);
	expect_ok(pier_mr_dereg(sub));
	expect_ok(pier_mr_dereg(mr));
}

/* The second segment has another mapping than the first: each is flushed by its own. */
static void flushes_each_mapping(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu:3");
	fixture.gpu->reads_back = true;
	fixture.gpu->seams = true;
	fixture.gpu->export_error = EIO;
	/* All at once, the first segment, and this one. */
	fixture.gpu->fail_export_at = 3;
	expect_ok(reg(0, 6 * fixture.page, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_DEFAULT);
	expect_ok(pier_mr_sync_for_device(mr, 0, 6 * fixture.page));
	assert_int_equal(fixture.gpu->flushes, 4);
	assert_int_equal(fixture.gpu->flushes_by[PIER_MAPPING_DEFAULT], 2);
	assert_int_equal(fixture.gpu->flushes_by[PIER_MAPPING_PCIE], 2);
	expect_ok(pier_mr_sync_for_device(mr, 0, 2 * fixture.page));
	assert_int_equal(fixture.gpu->flushes_by[PIER_MAPPING_DEFAULT], 4);
	expect_ok(pier_mr_sync_for_device(mr, 2 * fixture.page, 1));
	assert_int_equal(fixture.gpu->flushes_by[PIER_MAPPING_PCIE], 4);
	assert_int_equal(fixture.gpu->flushes, 8);
	expect_ok(pier_mr_dereg(mr));
}

/* Without a queue pair nothing can be promised. The next call tries again. */
static void fails_where_the_nic_cannot_read_back(void **state)
{
	struct pier_device *device = NULL;
	struct pier_pd *pd = NULL;
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	fixture.gpu->reads_back = true;
	expect_ok(pier_device_open(
		"fault:create_qp@1=EOPNOTSUPP,wc@1=RETRY_EXC_ERR:soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_mr_reg_buffer(pd, fixture.buffer, 0, 100, PIER_ACCESS_SHARED,
				     PIER_POLICY_DIRECT, &mr));
	expect_result(pier_mr_sync_for_device(mr, 0, 100), -EOPNOTSUPP);
	test_assert_sentence("letting fault:soft0 read back a byte: create a queue pair");
	expect_result(pier_mr_sync_for_device(mr, 0, 100), -EIO);
	test_assert_sentence("a request to itself completes with the error 12");
	assert_int_equal(fixture.gpu->flushes, 2);
	expect_ok(pier_mr_sync_for_device(mr, 0, 100));
	assert_int_equal(fixture.gpu->flushes, 4);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

static void refuses_invalid_syncs(void **state)
{
	static char host[100];
	struct pier_mr *mr = NULL;

	(void)state;
	start("gpu");
	fixture.gpu->export_error = EPERM;
	expect_ok(reg(0, 100, PIER_POLICY_BOUNCE, &mr));
	expect_result(pier_mr_sync_for_nic(mr, 99, 2), -ERANGE);
	test_assert_sentence("leave the region of 100");
	expect_result(pier_mr_sync_for_device(mr, UINT64_MAX, 2), -ERANGE);
	fixture.gpu->copy_error = EIO;
	expect_result(pier_mr_sync_for_nic(mr, 0, 100), -EIO);
	test_assert_sentence("device lost");
	expect_result(pier_mr_sync_for_device(mr, 0, 100), -EIO);
	expect_ok(pier_mr_dereg(mr));
	/* The program's own memory needs neither. */
	expect_ok(pier_mr_reg(fixture.pd, host, sizeof(host), 0, &mr));
	expect_ok(pier_mr_sync_for_nic(mr, 0, 100));
	expect_ok(pier_mr_sync_for_device(mr, 0, 100));
	expect_ok(pier_mr_dereg(mr));
}

/* soft0 would refuse another key or address, so the read used exactly this byte. */
static void flush_reads_the_byte_back(void **state)
{
	struct pier_mr *mr = NULL, *other = NULL;
	static char host[8];

	(void)state;
	start("gpu:3");
	fixture.gpu->seams = true;
	expect_ok(reg(0, 6 * fixture.page, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_read_back(mr, 0));
	expect_ok(pier_mr_read_back(mr, 5 * fixture.page));
	expect_ok(pier_mr_read_back(mr, 6 * fixture.page - 1));
	expect_result(pier_mr_read_back(mr, 6 * fixture.page), -ERANGE);
	expect_result(pier_mr_read_back(mr, UINT64_MAX), -ERANGE);
	/* No rights of peers are needed. */
	expect_ok(pier_mr_reg(fixture.pd, host, sizeof(host), 0, &other));
	expect_ok(pier_mr_read_back(other, 7));
	expect_ok(pier_mr_dereg(other));
	expect_ok(pier_mr_dereg(mr));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(uses_the_default_mapping),
		CASE(names_the_importer_and_its_access),
		CASE(exports_whole_steps),
		CASE(refuses_a_false_granularity),
		CASE(registers_a_part_for_each_dmabuf),
		CASE(refuses_a_short_export),
		CASE(finds_and_remembers_the_mapping),
		CASE(remembers_the_mapping_for_each_nic),
		CASE(reports_why_both_mappings_failed),
		CASE(uses_the_requested_mapping),
		CASE(relaxes_only_what_completions_announce),
		CASE(sub_region_has_the_ordering_of_its_region),
		CASE(switches_relaxed_ordering),
		CASE(exports_with_a_mapping),
		CASE(registers_by_segments),
		CASE(makes_no_parts_if_forbidden),
		CASE(undoes_earlier_segments_on_failure),
		CASE(appends_ranges_after_segments),
		CASE(accepts_segments_among_ranges),
		CASE(bounces_one_of_several_ranges),
		CASE(registers_host_memory_as_host_memory),
		CASE(bounces_only_if_the_policy_allows_it),
		CASE(asks_for_the_facts_of_a_buffer_once),
		CASE(names_the_range_that_cannot_be_exported),
		CASE(falls_back_from_host_memory),
		CASE(sync_copies_the_named_bytes),
		CASE(bounces_by_segments),
		CASE(shares_the_bounce_buffer_with_sub_regions),
		CASE(shares_several_bounce_buffers),
		CASE(flushes_no_bounce_buffer),
		CASE(flushes_direct_memory),
		CASE(flushes_the_range_that_was_written),
		CASE(reads_back_if_the_backend_asks),
		CASE(flushes_each_mapping),
		CASE(fails_where_the_nic_cannot_read_back),
		CASE(refuses_invalid_syncs),
		CASE(flush_reads_the_byte_back),
	};

	return cmocka_run_group_tests_name("device_memory", tests, make_folder,
					   remove_folder);
}

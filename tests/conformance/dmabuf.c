/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "cases.h"
#include "world.h"

/* Exported memory that the caller registers at an iova of its choice. */

static const struct {
	size_t offset, length;
} parts[] = {
	{ 0, AREA_LENGTH }, { 1, 1 },	  { 4095, 2 },
	{ 4096, 4096 },	    { 77, 9999 }, { 70001, 100000 },
};

/* Registers an export, and closes the fd as soon as the region exists. */
static int reg_export(struct end *end, size_t offset, size_t length, uint64_t iova_base,
		      struct pier_mr **ret_mr)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct pier_dmabuf dmabuf;
	uint64_t iova;
	int error = pier_dmabuf_export(end->area.buffer, offset, length,
				       PIER_MAPPING_AUTO, &dmabuf);

	if (error)
		return error;
	assert_int_equal(dmabuf.length, length);
	assert_int_equal(dmabuf.offset % page, dmabuf.iova % page);
	iova = iova_base ? iova_base + dmabuf.offset % page : dmabuf.iova;
	error = pier_mr_reg_dmabuf(end->pd, dmabuf.offset, dmabuf.length, iova, dmabuf.fd,
				   PIER_ACCESS_SHARED, ret_mr);
	pier_dmabuf_close(&dmabuf);
	assert_int_equal(dmabuf.fd, -1);
	if (!error) {
		assert_int_equal(pier_mr_iova(*ret_mr), iova);
		assert_int_equal(pier_mr_path(*ret_mr), PIER_PATH_DMABUF);
	}
	return error;
}

/* A wrapped memfd is host memory, except on a device that accepts it as a dma-buf. */
static void skip_if_memfd(struct end *end)
{
	struct pier_device_attr attr;
	struct pier_dmabuf dmabuf;
	bool memfd;

	expect_ok(pier_device_query(end->device, &attr, sizeof(attr)));
	expect_ok(pier_dmabuf_export(end->area.buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf));
	memfd = fcntl(dmabuf.fd, F_GET_SEALS) >= 0;
	pier_dmabuf_close(&dmabuf);
	if (memfd && !attr.memfd_as_dmabuf)
		world_skip("the export is a memfd, which this device does not take");
}

/* The first export shows whether this device and memory support dma-bufs. */
static void skip_if_impossible(struct world *world)
{
	struct pier_device_attr attr;
	struct pier_mr *mr;
	int error;

	expect_ok(pier_device_query(world->b.device, &attr, sizeof(attr)));
	if (!attr.dmabuf)
		world_skip("this device cannot register dma-bufs");
	if (pier_mr_path(world->b.area.mr) == PIER_PATH_HOST)
		world_skip("the device reaches this memory as host memory");
	error = reg_export(&world->b, 0, 1, 0, &mr);
	if (error == -EOPNOTSUPP)
		world_skip(pier_error_message());
	expect_ok(error);
	expect_ok(pier_mr_dereg(mr));
}

static void write_and_read_back(struct world *world, size_t part, uint64_t iova_base)
{
	size_t offset = parts[part].offset, length = parts[part].length;
	struct pier_gather source = gather_at(&world->a.area, 0, length);
	struct pier_scatter back = scatter_at(&world->a.area, AREA_LENGTH - length,
					      length);
	struct pier_remote remote;
	struct pier_mr *mr;

	expect_ok(reg_export(&world->b, offset, length, iova_base, &mr));
	expect_ok(pier_mr_remote(mr, &remote));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &remote, PATIENT));
	image_copy(&world->b.area, offset, &world->a.area, 0, length);
	world_expect(world);
	expect_ok(pier_channel_read(world->a.channel, &back, 1, &remote, PATIENT));
	image_copy(&world->a.area, AREA_LENGTH - length, &world->b.area, offset, length);
	world_expect(world);
	expect_ok(pier_mr_dereg(mr));
}

static void peer_reaches_dmabuf_at_its_address(void **state)
{
	struct world *world = world_connected(state);

	skip_if_impossible(world);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		write_and_read_back(world, i, 0);
}

static void peer_reaches_dmabuf_at_another_iova(void **state)
{
	static const uint64_t bases[] = { UINT64_C(0x100000), UINT64_C(1) << 46 };
	struct world *world = world_connected(state);

	skip_if_impossible(world);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		write_and_read_back(world, i, bases[i % 2]);
}

/* The local elements of requests also use the region's iova. */
static void gathers_from_dmabuf_at_another_iova(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote target = remote_at(&world->b.area, 3, 5000);
	struct pier_gather source;
	struct pier_mr *mr;

	skip_if_impossible(world);
	expect_ok(reg_export(&world->a, 4001, 6000, UINT64_C(1) << 40, &mr));
	expect_ok(pier_mr_gather(mr, pier_mr_iova(mr) + 1000, 5000, &source));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, 3, &world->a.area, 5001, 5000);
	world_expect(world);
	expect_ok(pier_mr_dereg(mr));
}

static void write_past_dmabuf_region_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 101);
	struct pier_remote remote;
	struct pier_work work;
	struct pier_mr *mr;

	skip_if_impossible(world);
	expect_ok(reg_export(&world->b, 5000, 100, UINT64_C(1) << 40, &mr));
	expect_ok(pier_mr_remote(mr, &remote));
	remote.length = 101;
	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &remote, &work));
	expect_end(world->a.channel, work, -EACCES);
	world_expect(world);
	expect_ok(pier_mr_dereg(mr));
}

/* Another fd of the dma-buf hits the kept region, and the peer writes through it. */
static void cache_finds_a_dmabuf_by_its_file(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 1000);
	struct pier_mr *first = NULL, *again = NULL;
	struct pier_mr_cache *cache = NULL;
	struct pier_remote whole, part;
	struct pier_dmabuf dmabuf;
	struct pier_mr_range range;
	int fd;

	skip_if_impossible(world);
	expect_ok(pier_mr_cache_create(world->b.pd, NULL, &cache));
	expect_ok(pier_dmabuf_export(world->b.area.buffer, 0, AREA_LENGTH,
				     PIER_MAPPING_AUTO, &dmabuf));
	range = pier_mr_range_dmabuf(dmabuf.fd, dmabuf.offset, dmabuf.length);
	expect_ok(pier_mr_cache_get(cache, &range, PIER_ACCESS_SHARED, &first));
	expect_ok(pier_mr_cache_put(cache, first));
	fd = fcntl(dmabuf.fd, F_DUPFD_CLOEXEC, 0);
	range = pier_mr_range_dmabuf(fd, dmabuf.offset + 4096, 1000);
	expect_ok(pier_mr_cache_get(cache, &range, PIER_ACCESS_SHARED, &again));
	close(fd);
	pier_dmabuf_close(&dmabuf);
	assert_ptr_equal(again, first);
	expect_ok(pier_mr_remote(again, &whole));
	expect_ok(
		pier_remote_sub(&whole, range.offset - pier_mr_iova(again), 1000, &part));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &part, PATIENT));
	image_copy(&world->b.area, 4096, &world->a.area, 0, 1000);
	world_expect(world);
	expect_ok(pier_mr_cache_put(cache, again));
	expect_ok(pier_mr_cache_destroy(cache));
}

static void invalid_dmabuf_ranges_are_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;

	skip_if_impossible(world);
	expect_ok(pier_dmabuf_export(world->b.area.buffer, 100, 1000, PIER_MAPPING_AUTO,
				     &dmabuf));
	expect_result(pier_buffer_free(world->b.area.buffer), -EBUSY);
	expect_result(pier_mr_reg_dmabuf(world->b.pd, dmabuf.offset, 1000,
					 dmabuf.iova + 1, dmabuf.fd, PIER_ACCESS_SHARED,
					 &mr),
		      -EINVAL);
	expect_result(pier_mr_reg_dmabuf(world->b.pd, dmabuf.offset, 0, dmabuf.iova,
					 dmabuf.fd, PIER_ACCESS_SHARED, &mr),
		      -EINVAL);
	expect_result(pier_mr_reg_dmabuf(world->b.pd, dmabuf.offset, (size_t)1 << 40,
					 dmabuf.iova, dmabuf.fd, PIER_ACCESS_SHARED, &mr),
		      -EINVAL);
	assert_null(mr);
	pier_dmabuf_close(&dmabuf);
	pier_dmabuf_close(&dmabuf);
	expect_result(pier_dmabuf_export(world->b.area.buffer, 0, AREA_LENGTH + 1,
					 PIER_MAPPING_AUTO, &dmabuf),
		      -ERANGE);
	expect_result(pier_dmabuf_export(world->b.area.buffer, 0, 0, PIER_MAPPING_AUTO,
					 &dmabuf),
		      -EINVAL);
}

/* The caller may close its fd at once, because the buffer has its own. */
static void wrapped_dmabuf_outlives_the_callers_fd(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 9999);
	struct pier_buffer *buffer = NULL;
	struct pier_dmabuf dmabuf;
	struct pier_remote remote;
	struct pier_mr *mr = NULL;
	char byte = 0;

	skip_if_impossible(world);
	skip_if_memfd(&world->b);
	expect_ok(pier_dmabuf_export(world->b.area.buffer, 4321, 9999, PIER_MAPPING_AUTO,
				     &dmabuf));
	expect_ok(pier_buffer_wrap_dmabuf(dmabuf.fd, dmabuf.offset, 9999, &buffer));
	pier_dmabuf_close(&dmabuf);
	assert_int_equal(pier_buffer_length(buffer), 9999);
	expect_ok(pier_mr_reg_buffer(world->b.pd, buffer, 0, 9999, PIER_ACCESS_SHARED,
				     PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_mr_remote(mr, &remote));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &remote, PATIENT));
	image_copy(&world->b.area, 4321, &world->a.area, 0, 9999);
	world_expect(world);
	if (pier_buffer_copy_from(buffer, 9998, &byte, 1) == 0)
		assert_int_equal((unsigned char)byte, world->b.area.image[4321 + 9998]);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
}

int run_dmabuf_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(peer_reaches_dmabuf_at_its_address),
		world_case(peer_reaches_dmabuf_at_another_iova),
		world_case(gathers_from_dmabuf_at_another_iova),
		world_case(write_past_dmabuf_region_is_refused),
		world_case(cache_finds_a_dmabuf_by_its_file),
		world_case(invalid_dmabuf_ranges_are_refused),
		world_case(wrapped_dmabuf_outlives_the_callers_fd),
	};

	return cmocka_run_group_tests_name("dma-buf", cases, NULL, NULL);
}

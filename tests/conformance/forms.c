/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../support/memory_of.h"
#include "cases.h"
#include "world.h"

/*
 * Every form of registration by attributes: the bytes must arrive where the attributes
 * say.
 */

enum {
	OFFSET = 4173, /* in the areas; not aligned to pages */
	LENGTH = 9999,
	KEY = 4711,
};

static struct pier_mr_attr attr_of(const struct pier_mr_range *range)
{
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_SHARED;
	return attr;
}

static struct pier_mr_range range_of(const struct end *end)
{
	return pier_mr_range_buffer(end->area.buffer, OFFSET, LENGTH);
}

static uint64_t host_page(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* `a` writes all of a region of `b`, which covers the bytes from OFFSET on. */
static void write_all(struct world *world, const struct pier_mr *mr)
{
	struct pier_gather source = gather_at(&world->a.area, 1, LENGTH);
	struct pier_remote target;

	expect_ok(pier_mr_remote(mr, &target));
	assert_int_equal(target.length, LENGTH);
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, OFFSET, &world->a.area, 1, LENGTH);
	world_expect(world);
}

static void peer_writes_with_every_addressing(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr_range range = range_of(&world->b);
	uint64_t address = pier_buffer_address(world->b.area.buffer) + OFFSET;
	uint64_t in_page = address % host_page(), far = 0x6ffff0000000;
	struct {
		enum pier_addressing addressing;
		uint64_t iova, begin;
	} cases[] = {
		{ PIER_ADDRESSING_VIRTUAL, 0, address },
		{ PIER_ADDRESSING_ZERO_BASED, 0, in_page },
		{ PIER_ADDRESSING_IOVA, far + in_page, far + in_page },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_mr_attr attr = attr_of(&range);
		struct pier_mr *mr = NULL;

		attr.addressing = cases[i].addressing;
		attr.iova = cases[i].iova;
		attr.context = world;
		expect_ok(pier_mr_reg_attr(world->b.pd, &attr, &mr));
		assert_int_equal(pier_mr_iova(mr), cases[i].begin);
		assert_ptr_equal(test_mr_info(mr).context, world);
		area_shuffle(world, &world->a.area);
		write_all(world, mr);
		expect_ok(pier_mr_dereg(mr));
	}
}

/* Some drivers have the CPU copy messages of up to 32 or 64 bytes, to the element's
 * address. */
static void short_messages_arrive_with_every_addressing(void **state)
{
	static const size_t lengths[] = { 1, 8, 32, 33, 64, 65 };
	static uint8_t innocent[2 * 65536] __attribute__((aligned(65536)));
	struct world *world = world_connected(state);
	struct pier_mr_range range = range_of(&world->b);
	struct pier_mr_attr attr = attr_of(&range);

	for (int addressing = PIER_ADDRESSING_VIRTUAL; addressing <= PIER_ADDRESSING_IOVA;
	     addressing++) {
		struct pier_scatter target;
		struct pier_work receive;
		struct pier_mr *mr = NULL;

		attr.addressing = (enum pier_addressing)addressing;
		/* Addresses of other memory of the process. */
		attr.iova = addressing == PIER_ADDRESSING_IOVA
				    ? (uintptr_t)innocent +
					      (pier_buffer_address(world->b.area.buffer) +
					       OFFSET) %
						      host_page()
				    : 0;
		expect_ok(pier_mr_reg_attr(world->b.pd, &attr, &mr));
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			struct pier_gather source = gather_at(&world->a.area, 11 + i,
							      lengths[i]);

			expect_ok(pier_mr_scatter(mr, pier_mr_iova(mr) + 100 * i, 100,
						  &target));
			expect_ok(pier_channel_post_recv(world->b.channel, &target, 1,
							 &receive));
			expect_ok(
				pier_channel_send(world->a.channel, &source, 1, PATIENT));
			expect_end(world->b.channel, receive, 0);
			image_copy(&world->b.area, OFFSET + 100 * i, &world->a.area,
				   11 + i, lengths[i]);
		}
		world_expect(world);
		for (size_t i = 0; i < sizeof(innocent); i++)
			assert_int_equal(innocent[i], 0);
		area_shuffle(world, &world->a.area);
		expect_ok(pier_mr_dereg(mr));
	}
}

static void pointer_into_buffer_is_recognised(void **state)
{
	struct world *world = world_connected(state);
	struct pier_buffer *buffer = world->b.area.buffer;
	uint64_t address = pier_buffer_address(buffer) + OFFSET;
	struct pier_mr_range range = pier_mr_range_pointer((void *)(uintptr_t)address,
							   LENGTH);
	struct pier_mr_attr attr = attr_of(&range);
	struct pier_mr *mr = NULL;

	if (test_is_nic(test_backend))
		world_skip("there are no pointers to memory of a NIC");
	expect_ok(pier_mr_reg_attr(world->b.pd, &attr, &mr));
	assert_int_equal(pier_mr_iova(mr), address);
	assert_int_equal(pier_mr_path(mr), pier_mr_path(world->b.area.mr));
	write_all(world, mr);
	expect_ok(pier_mr_dereg(mr));
}

static void requested_key_is_used(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr_range range = range_of(&world->b);
	struct pier_mr_attr attr = attr_of(&range);
	struct pier_mr *mr = NULL, *second = NULL;
	struct pier_device_attr device;

	expect_ok(pier_device_query(world->b.device, &device, sizeof(device)));
	attr.requested_key = device.max_requested_key + 1;
	expect_result(pier_mr_reg_attr(world->b.pd, &attr, &mr), -EKEYREJECTED);
	attr.requested_key = KEY;
	if (device.max_requested_key == 0) {
		expect_result(pier_mr_reg_attr(world->b.pd, &attr, &mr), -EKEYREJECTED);
		test_assert_sentence("chooses all keys");
		return;
	}
	for (int round = 0; round < 2; round++) {
		expect_ok(pier_mr_reg_attr(world->b.pd, &attr, &mr));
		assert_int_equal(test_mr_info(mr).rkey, KEY);
		expect_result(pier_mr_reg_attr(world->b.pd, &attr, &second), -ENOKEY);
		area_shuffle(world, &world->a.area);
		write_all(world, mr);
		/* A freed key can be used again. */
		expect_ok(pier_mr_dereg(mr));
	}
	attr.requested_key = device.max_requested_key;
	expect_ok(pier_mr_reg_attr(world->b.pd, &attr, &mr));
	expect_ok(pier_mr_dereg(mr));
	assert_null(second);
}

static void peer_writes_into_hinted_region(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr_range range = range_of(&world->b);
	struct pier_mr_attr attr = attr_of(&range);
	struct pier_mr *mr = NULL;
	int error;

	attr.tph = PIER_TPH_TARGET;
	error = pier_mr_reg_attr(world->b.pd, &attr, &mr);
	if (error == -EOPNOTSUPP) {
		assert_null(mr);
		test_assert_sentence("allocating a DMA handle for TPH hint 3");
		return;
	}
	expect_ok(error);
	write_all(world, mr);
	expect_ok(pier_mr_dereg(mr));
}

/* True if whole pages of this memory must get one key: see pier_mr_reg_attr(). */
static bool must_join(struct end *end)
{
	struct pier_device_attr device;
	struct pier_dmabuf dmabuf;
	bool memfd;

	expect_ok(pier_device_query(end->device, &device, sizeof(device)));
	if (device.max_joined_ranges >= 3)
		return true;
	if (!device.dmabuf || access("/dev/udmabuf", R_OK | W_OK) != 0 ||
	    pier_dmabuf_export(end->area.buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf))
		return false;
	memfd = fcntl(dmabuf.fd, F_GET_SEALS) >= 0;
	pier_dmabuf_close(&dmabuf);
	return memfd;
}

/* One key covers pages of the area in a different order than in memory. */
static void whole_pages_get_one_key(void **state)
{
	struct world *world = world_connected(state);
	size_t page = host_page(), length = 3 * page + 100 + 50;
	struct pier_buffer *buffer = world->b.area.buffer;
	/* The first range begins, and the last ends, in the middle of a page. */
	struct pier_mr_range ranges[] = {
		pier_mr_range_buffer(buffer, 3 * page - 100, 100),
		pier_mr_range_buffer(buffer, 0, 2 * page),
		pier_mr_range_buffer(buffer, 5 * page, page),
		pier_mr_range_buffer(buffer, 7 * page, 50),
	};
	struct pier_mr_attr attr = attr_of(ranges);
	struct pier_gather source = gather_at(&world->a.area, 7, length);
	struct pier_remote target;
	struct pier_mr *mr = NULL;
	size_t from = 7;

	attr.range_count = 4;
	attr.addressing = PIER_ADDRESSING_ZERO_BASED;
	attr.split = PIER_SPLIT_NEVER;
	if (!must_join(&world->b)) {
		expect_result(pier_mr_reg_attr(world->b.pd, &attr, &mr), -EOPNOTSUPP);
		test_assert_sentence("4 ranges");
		return;
	}
	expect_ok(pier_mr_reg_attr(world->b.pd, &attr, &mr));
	assert_int_equal(pier_mr_parts(mr), 1);
	assert_int_equal(pier_mr_length(mr), length);
	expect_ok(pier_mr_remote(mr, &target));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	for (size_t i = 0; i < 4; i++) {
		image_copy(&world->b.area, ranges[i].offset, &world->a.area, from,
			   ranges[i].length);
		from += ranges[i].length;
	}
	world_expect(world);
	expect_ok(pier_mr_dereg(mr));
}

/*
 * One key covers memory of two kinds, which begins and ends anywhere. The peer writes and
 * reads across all seams; at the end nothing is registered any more.
 */
static void parts_of_any_kind_get_one_key(void **state)
{
	enum {
		HOST = 1001,
		FROM = 7
	};
	struct world *world = world_connected(state);
	struct end *end = &world->b;
	static uint8_t memory[2 * HOST];
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(memory + 1, HOST),
		pier_mr_range_buffer(end->area.buffer, OFFSET, LENGTH),
		pier_mr_range_host(memory + HOST + 1, HOST - 1),
	};
	const size_t length = HOST + LENGTH + HOST - 1;
	struct pier_gather source = gather_at(&world->a.area, FROM, length);
	struct pier_scatter back = scatter_at(&world->a.area, 40000, length);
	struct pier_mr_attr attr = attr_of(ranges);
	size_t regions = pier_object_count(PIER_OBJECT_MR);
	struct pier_device_attr device;
	struct pier_remote target;
	struct pier_mr *mr = NULL;

	expect_ok(pier_device_query(end->device, &device, sizeof(device)));
	attr.range_count = 3;
	attr.addressing = PIER_ADDRESSING_ZERO_BASED;
	attr.split = PIER_SPLIT_NEVER;
	if (device.max_joined_ranges < 3) {
		expect_result(pier_mr_reg_attr(end->pd, &attr, &mr), -EOPNOTSUPP);
		test_assert_sentence("3 ranges under one key");
		return;
	}
	expect_ok(pier_mr_reg_attr(end->pd, &attr, &mr));
	assert_int_equal(pier_mr_parts(mr), 1);
	assert_int_equal(pier_mr_iova(mr), 0);
	expect_ok(pier_mr_remote(mr, &target));
	assert_int_equal(target.length, length);
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	assert_memory_equal(memory + 1, world->a.area.image + FROM, HOST);
	assert_memory_equal(memory + HOST + 1, world->a.area.image + FROM + HOST + LENGTH,
			    HOST - 1);
	image_copy(&world->b.area, OFFSET, &world->a.area, FROM + HOST, LENGTH);
	expect_ok(pier_channel_read(world->a.channel, &back, 1, &target, PATIENT));
	image_copy(&world->a.area, 40000, &world->a.area, FROM, length);
	world_expect(world);
	expect_ok(pier_mr_dereg(mr));
	assert_int_equal(pier_object_count(PIER_OBJECT_MR), regions);
}

/* The pages have never been touched, and are not accessible yet. */
static void on_demand_region_covers_unmapped_pages(void **state)
{
	struct world *world = world_connected(state);
	size_t length = 4 * host_page();
	uint8_t *memory = mmap(NULL, length, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct pier_mr_range range = pier_mr_range_host(memory, length);
	struct pier_mr_attr attr = attr_of(&range);
	struct pier_gather source = gather_at(&world->a.area, 3, length);
	struct pier_device_attr device;
	struct pier_remote target;
	struct pier_mr *mr = NULL;
	int error;

	assert_ptr_not_equal(memory, MAP_FAILED);
	expect_ok(pier_device_query(world->b.device, &device, sizeof(device)));
	attr.access |= PIER_ACCESS_ON_DEMAND;
	error = pier_mr_reg_attr(world->b.pd, &attr, &mr);
	assert_int_equal(error, device.on_demand ? 0 : -EOPNOTSUPP);
	if (device.on_demand) {
		assert_int_equal(mprotect(memory, length, PROT_READ | PROT_WRITE), 0);
		expect_ok(pier_mr_remote(mr, &target));
		expect_ok(pier_channel_write(world->a.channel, &source, 1, &target,
					     PATIENT));
		assert_memory_equal(memory, world->a.area.image + 3, length);
		expect_ok(pier_mr_dereg(mr));
	}
	munmap(memory, length);
	world_expect(world);
}

static void unsupported_access_is_refused(void **state)
{
	struct world *world = world_opened(state);
	uint8_t *memory = mmap(NULL, 100, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pier_device_attr device;
	struct pier_mr *mr = NULL;
	struct {
		int access;
		bool there;
	} cases[] = {
		{ PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_ATOMIC, false },
		{ PIER_ACCESS_MW_BIND, false },
	};

	assert_ptr_not_equal(memory, MAP_FAILED);
	expect_ok(pier_device_query(world->a.device, &device, sizeof(device)));
	cases[0].there = device.atomics;
	cases[1].there = device.memory_windows;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		expect_result(pier_mr_reg(world->a.pd, memory, 100, cases[i].access, &mr),
			      cases[i].there ? 0 : -EOPNOTSUPP);
		if (cases[i].there)
			expect_ok(pier_mr_dereg(mr));
		else
			test_assert_sentence(device.name);
	}
	munmap(memory, 100);
}

int run_form_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(peer_writes_with_every_addressing),
		world_case(short_messages_arrive_with_every_addressing),
		world_case(pointer_into_buffer_is_recognised),
		world_case(requested_key_is_used),
		world_case(peer_writes_into_hinted_region),
		world_case(whole_pages_get_one_key),
		world_case(parts_of_any_kind_get_one_key),
		world_case(on_demand_region_covers_unmapped_pages),
		world_case(unsupported_access_is_refused),
	};

	return cmocka_run_group_tests_name("forms", cases, NULL, NULL);
}

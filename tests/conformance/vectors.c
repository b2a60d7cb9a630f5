/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/*
 * Regions of several ranges. The peer writes and reads them as one, however many keys the
 * device uses for them. All bytes around the ranges must stay unchanged.
 */

enum {
	RANGES = 4,
	LENGTH = 4097 + 9999 + 1 + 37429,
	MAX_ELEMENTS = 4, /* as in test_attr() */
	MAX_PARTS = RANGES,
};

/* Ranges of an area's buffer, not in the order of their addresses. */
static const struct {
	size_t offset, length;
} layout[RANGES] = { { 150001, 4097 }, { 77, 9999 }, { 100000, 1 }, { 12288, 37429 } };

static struct pier_mr *reg_ranges(const struct end *end)
{
	struct pier_mr_range ranges[RANGES];
	struct pier_mr *mr;

	for (int i = 0; i < RANGES; i++) {
		struct pier_mr_range range = pier_mr_range_buffer(
			end->area.buffer, layout[i].offset, layout[i].length);

		ranges[i] = range;
	}
	expect_ok(test_reg_mr_vec(end->pd, ranges, RANGES, PIER_ACCESS_SHARED, &mr));
	assert_int_equal(pier_mr_length(mr), LENGTH);
	assert_in_range(pier_mr_parts(mr), 1, RANGES);
	return mr;
}

/* Returns the offset in the area of a byte of the region. */
static size_t find_byte(size_t offset)
{
	int range = 0;

	for (; offset >= layout[range].length; range++)
		offset -= layout[range].length;
	return layout[range].offset + offset;
}

/* Copies bytes from one region's image to the other's. */
static void image_copy_ranges(struct area *to, size_t to_offset, const struct area *from,
			      size_t from_offset, size_t length)
{
	for (size_t i = 0; i < length; i++)
		image_copy(to, find_byte(to_offset + i), from, find_byte(from_offset + i),
			   1);
}

static uint32_t gather_list_at(const struct pier_mr *mr, size_t offset, size_t length,
			       struct pier_gather *ret_list)
{
	uint64_t addr = pier_mr_iova(mr) + offset;
	uint32_t count, needed;

	expect_ok(pier_mr_gather_list(mr, addr, length, ret_list, MAX_PARTS, &count));
	expect_result(pier_mr_gather_list(mr, addr, length, NULL, 0, &needed),
		      count ? -ENOSPC : 0);
	assert_int_equal(count, needed);
	return count;
}

static uint32_t scatter_list_at(const struct pier_mr *mr, size_t offset, size_t length,
				struct pier_scatter *ret_list)
{
	uint32_t count;

	expect_ok(pier_mr_scatter_list(mr, pier_mr_iova(mr) + offset, length, ret_list,
				       MAX_PARTS, &count));
	return count;
}

/* The remote vector that the peer unpacks from the region's wire form. */
static uint32_t remote_vec_at(const struct pier_mr *mr, size_t offset, size_t length,
			      struct pier_remote *ret_parts)
{
	struct pier_remote own[MAX_PARTS], all[MAX_PARTS];
	uint8_t wire[PIER_REMOTE_VEC_WIRE_SIZE(MAX_PARTS)];
	uint32_t count;
	int size;

	expect_ok(pier_mr_remote_vec(mr, own, MAX_PARTS, &count));
	size = pier_remote_vec_pack(own, count, wire, sizeof(wire));
	assert_int_equal(size, PIER_REMOTE_VEC_WIRE_SIZE(count));
	expect_ok(pier_remote_vec_unpack(wire, (size_t)size, all, MAX_PARTS, &count));
	expect_ok(pier_remote_vec_sub(all, count, offset, length, ret_parts, MAX_PARTS,
				      &count));
	return count;
}

struct move {
	size_t local, remote, length;
};

static void write_ranges(struct world *world, const struct pier_mr *from,
			 const struct pier_mr *to, const struct move *move)
{
	struct pier_gather list[MAX_PARTS];
	struct pier_remote parts[MAX_PARTS];
	uint32_t num_sge = gather_list_at(from, move->local, move->length, list);
	uint32_t count = remote_vec_at(to, move->remote, move->length, parts);

	expect_ok(test_channel_write_vec(world->a.channel, list, num_sge, parts, count,
					 PATIENT));
	image_copy_ranges(&world->b.area, move->remote, &world->a.area, move->local,
			  move->length);
	world_expect(world);
}

static void read_ranges(struct world *world, const struct pier_mr *to,
			const struct pier_mr *from, const struct move *move)
{
	struct pier_scatter list[MAX_PARTS];
	struct pier_remote parts[MAX_PARTS];
	uint32_t num_sge = scatter_list_at(to, move->local, move->length, list);
	uint32_t count = remote_vec_at(from, move->remote, move->length, parts);

	expect_ok(test_channel_read_vec(world->a.channel, list, num_sge, parts, count,
					PATIENT));
	image_copy_ranges(&world->a.area, move->local, &world->b.area, move->remote,
			  move->length);
	world_expect(world);
}

/*
 * Moves across all seams, across one on one side only, within a range, and of no bytes.
 */
static const struct move moves[] = {
	{ 0, 0, LENGTH },      { 4000, 4096, 9001 }, { 14095, 3, 4000 },
	{ 5000, 5000, 1 },     { 4096, 14096, 2 },   { 18000, 14096, 33334 },
	{ LENGTH, LENGTH, 0 }, { 1, 2, LENGTH - 2 },
};

static void vector_moves_across_seams(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr *a = reg_ranges(&world->a), *b = reg_ranges(&world->b);

	for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
		write_ranges(world, a, b, &moves[i]);
		area_shuffle(world, &world->b.area);
		read_ranges(world, a, b, &moves[i]);
	}
	expect_ok(pier_mr_dereg(a));
	expect_ok(pier_mr_dereg(b));
}

/* More requests than fit into the send queue, of one element each. */
static void long_vector_fits_a_short_queue(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct world *world;
	struct pier_mr *a, *b;

	attr.max_send_wr = 2;
	attr.max_send_sge = 1;
	world = world_connected_with(state, &attr);
	a = reg_ranges(&world->a);
	b = reg_ranges(&world->b);
	for (int i = 0; i < 6; i++) {
		size_t length = test_random_below(&world->random, LENGTH);
		struct move move = {
			.local = test_random_below(&world->random, LENGTH - length),
			.remote = test_random_below(&world->random, LENGTH - length),
			.length = length,
		};

		write_ranges(world, a, b, &move);
		area_shuffle(world, &world->b.area);
		read_ranges(world, a, b, &move);
	}
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	expect_ok(pier_mr_dereg(a));
	expect_ok(pier_mr_dereg(b));
}

/* Posted without waiting: one handle covers all requests. */
static void posted_vector_crosses_seams(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr *a = reg_ranges(&world->a), *b = reg_ranges(&world->b);
	struct pier_gather list[MAX_PARTS];
	struct pier_scatter targets[MAX_PARTS];
	struct pier_remote parts[MAX_PARTS];
	uint32_t num_sge = gather_list_at(a, 0, LENGTH, list), count;
	struct pier_work work;

	count = remote_vec_at(b, 0, LENGTH, parts);
	expect_ok(test_post_write_vec(world->a.channel, list, num_sge, parts, count,
				      &work));
	expect_end(world->a.channel, work, 0);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	image_copy_ranges(&world->b.area, 0, &world->a.area, 0, LENGTH);
	world_expect(world);
	area_shuffle(world, &world->b.area);
	num_sge = scatter_list_at(a, 0, LENGTH, targets);
	expect_ok(test_post_read_vec(world->a.channel, targets, num_sge, parts, count,
				     &work));
	expect_end(world->a.channel, work, 0);
	image_copy_ranges(&world->a.area, 0, &world->b.area, 0, LENGTH);
	world_expect(world);
	expect_ok(pier_mr_dereg(a));
	expect_ok(pier_mr_dereg(b));
}

/* One message whose elements split at the seams of both sides. */
static void message_crosses_seams(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr *a = reg_ranges(&world->a), *b = reg_ranges(&world->b);
	struct pier_gather list[MAX_PARTS];
	struct pier_scatter targets[MAX_PARTS];
	uint32_t num_sge = gather_list_at(a, 3, LENGTH - 4, list);
	uint32_t count = scatter_list_at(b, 1, LENGTH - 1, targets);
	struct pier_work work;

	assert_in_range(num_sge, 1, MAX_ELEMENTS);
	assert_in_range(count, 1, MAX_ELEMENTS);
	expect_ok(pier_channel_post_recv(world->b.channel, targets, (int)count, &work));
	expect_ok(pier_channel_send(world->a.channel, list, (int)num_sge, PATIENT));
	assert_int_equal(expect_end(world->b.channel, work, 0).byte_length, LENGTH - 4);
	image_copy_ranges(&world->b.area, 1, &world->a.area, 3, LENGTH - 4);
	world_expect(world);
	expect_ok(pier_mr_dereg(a));
	expect_ok(pier_mr_dereg(b));
}

/* If the vector is shorter than the elements, nothing is written. */
static void too_short_remote_vector_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr *a = reg_ranges(&world->a), *b = reg_ranges(&world->b);
	struct pier_gather list[MAX_PARTS];
	struct pier_remote parts[MAX_PARTS];
	uint32_t num_sge = gather_list_at(a, 0, LENGTH, list), count;

	count = remote_vec_at(b, 1, LENGTH - 1, parts);
	expect_result(test_channel_write_vec(world->a.channel, list, num_sge, parts,
					     count, PATIENT),
		      -ERANGE);
	expect_result(pier_mr_gather_list(a, pier_mr_iova(a) + 1, LENGTH, list, MAX_PARTS,
					  &num_sge),
		      -ERANGE);
	expect_result(pier_remote_vec_sub(parts, count, 1, LENGTH - 1, parts, MAX_PARTS,
					  &count),
		      -ERANGE);
	write_ranges(world, a, b, &moves[1]);
	expect_ok(pier_mr_dereg(a));
	expect_ok(pier_mr_dereg(b));
}

int run_vector_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(vector_moves_across_seams),
		world_case(long_vector_fits_a_short_queue),
		world_case(posted_vector_crosses_seams),
		world_case(message_crosses_seams),
		world_case(too_short_remote_vector_is_refused),
	};

	return cmocka_run_group_tests_name("vectors", cases, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "provider/soft/limits.h"
#include "soft_fixture.h"
#include "tests/support/random.h"

/* Regions of many pieces, compared with one plain array of bytes. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	ARENA = 1 << 18,
	MEMFDS = 2,
	ARENAS = 1 + MEMFDS, /* the first is host memory */
	ALL = ARENAS * ARENA,
	SGES = 4,
	BATCH = 8,
	EVERYTHING = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		     IBV_ACCESS_REMOTE_READ
};

static const uint64_t IOVA = 0x7654321000007;

/*
 * Memory of which some pieces belong to a region. Byte i of the region is memory[at[i]]
 * and should be expected[at[i]]; all bytes between are guards.
 */
struct scattered {
	uint8_t *memory, *expected;
	int fds[MEMFDS];
	struct pier_provider_part *parts;
	uint32_t count;
	uint32_t *at;
	uint32_t length;
	struct ibv_mr *mr;
};

static void map_arenas(struct scattered *region)
{
	region->memory = mmap(NULL, ALL, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(region->memory, MAP_FAILED);
	for (int i = 0; i < MEMFDS; i++) {
		region->fds[i] = memfd_create("arena", MFD_CLOEXEC);
		assert_int_equal(ftruncate(region->fds[i], ARENA), 0);
		assert_ptr_equal(mmap(region->memory + (i + 1) * ARENA, ARENA,
				      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				      region->fds[i], 0),
				 region->memory + (i + 1) * ARENA);
	}
}

static void add_part(struct scattered *region, int arena, uint32_t offset,
		     uint32_t length)
{
	struct pier_provider_part *part = &region->parts[region->count++];

	*part = (struct pier_provider_part){
		.fd = arena == 0 ? -1 : region->fds[arena - 1],
		.length = length,
	};
	if (arena == 0)
		part->addr = region->memory + offset;
	else
		part->offset = offset;
	for (uint32_t i = 0; i < length; i++)
		region->at[region->length++] = (uint32_t)arena * ARENA + offset + i;
}

static uint32_t random_length(struct test_random *random, uint32_t most)
{
	uint32_t below = test_random_below(random, 2) ? 3 : 200;

	if (test_random_below(random, 10) == 0)
		below = 5000;
	return 1 + (uint32_t)test_random_below(random, below < most ? below : most);
}

static void add_parts(struct scattered *region, struct test_random *random,
		      uint32_t count, uint32_t longest)
{
	uint32_t used[ARENAS] = { 0 };

	while (region->count < count) {
		int arena = (int)test_random_below(random, ARENAS);
		uint32_t offset = used[arena] + (uint32_t)test_random_below(random, 8);
		uint32_t length = random_length(random, longest);

		if (offset + length > ARENA)
			break;
		add_part(region, arena, offset, length);
		used[arena] = offset + length;
	}
}

/* The page rule applies to a single piece only. */
static uint64_t iova_of(const struct scattered *region)
{
	uint64_t page = sysconf(_SC_PAGESIZE);

	return region->count > 1 ? IOVA : (IOVA & -page) | (region->at[0] & (page - 1));
}

static void make_region(struct scattered *region, struct ibv_pd *pd,
			struct test_random *random, uint32_t count, uint32_t longest)
{
	memset(region, 0, sizeof(*region));
	map_arenas(region);
	region->expected = malloc(ALL);
	region->at = malloc(ALL * sizeof(*region->at));
	region->parts = calloc(count, sizeof(*region->parts));
	assert_true(region->expected && region->at && region->parts);
	for (int i = 0; i < ALL; i++)
		region->expected[i] = (uint8_t)test_random_next(random);
	memcpy(region->memory, region->expected, ALL);
	add_parts(region, random, count, longest);
	region->mr = soft->reg_parts(pd, region->parts, region->count, iova_of(region),
				     EVERYTHING, NULL);
	assert_non_null(region->mr);
	assert_int_equal(region->mr->length, region->length);
}

static void free_region(struct scattered *region)
{
	assert_int_equal(soft->dereg_mr(region->mr), 0);
	munmap(region->memory, ALL);
	for (int i = 0; i < MEMFDS; i++)
		close(region->fds[i]);
	free(region->expected);
	free(region->at);
	free(region->parts);
}

/* Including the guards between the pieces. */
static void check_bytes(const struct scattered *region)
{
	assert_memory_equal(region->memory, region->expected, ALL);
}

/* Ranges of a region in [from, to), of `total` bytes together. */
struct ranges {
	struct ibv_sge sges[SGES];
	int count;
};

static void choose_ranges(const struct scattered *region, struct test_random *random,
			  uint32_t from, uint32_t to, uint32_t total, struct ranges *ret)
{
	ret->count = 1 + (int)test_random_below(random, SGES);
	for (int i = 0; i < ret->count; i++) {
		uint32_t length = total;

		if (i + 1 < ret->count)
			length = (uint32_t)test_random_below(random, total + 1);
		total -= length;
		ret->sges[i] = (struct ibv_sge){
			.addr = iova_of(region) + from +
				test_random_below(random, to - from - length + 1),
			.length = length,
			.lkey = region->mr->lkey,
		};
	}
}

/* The effect of the copy on the plain arrays. */
static void expect_copy(const struct scattered *from, const struct ranges *source,
			const struct scattered *to, const struct ranges *target,
			uint32_t total)
{
	uint8_t *bytes = malloc(total + 1);
	uint32_t done = 0;

	assert_non_null(bytes);
	for (int i = 0; i < source->count; i++) {
		uint64_t at = source->sges[i].addr - iova_of(from);

		for (uint32_t j = 0; j < source->sges[i].length; j++)
			bytes[done++] = from->expected[from->at[at + j]];
	}
	assert_int_equal(done, total);
	done = 0;
	for (int i = 0; i < target->count; i++) {
		uint64_t at = target->sges[i].addr - iova_of(to);

		for (uint32_t j = 0; j < target->sges[i].length && done < total; j++)
			to->expected[to->at[at + j]] = bytes[done++];
	}
	assert_int_equal(done, total);
	free(bytes);
}

static void post(struct soft_fixture *fixture, enum ibv_wr_opcode opcode, uint64_t wr_id,
		 struct ranges *local, const struct ranges *remote)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = wr_id,
		.sg_list = local->sges,
		.num_sge = local->count,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};

	if (remote) {
		wr.wr.rdma.remote_addr = remote->sges[0].addr;
		wr.wr.rdma.rkey = remote->sges[0].lkey;
	}
	assert_int_equal(ibv_post_send(fixture->qp, &wr, &bad), 0);
}

struct side {
	struct soft_fixture *fixture;
	struct scattered *region;
	uint32_t from, to; /* the target of the writes */
};

static struct ranges one_range(const struct scattered *region, struct test_random *random,
			       uint32_t from, uint32_t to, uint32_t total)
{
	struct ranges range = { .count = 1 };

	range.sges[0] = (struct ibv_sge){
		.addr = iova_of(region) + from +
			test_random_below(random, to - from - total + 1),
		.length = total,
		.lkey = region->mr->lkey,
	};
	return range;
}

static uint32_t choose_total(struct test_random *random, uint32_t most)
{
	static const uint32_t scales[] = { 4, 100, 5000, ALL };
	uint32_t scale = scales[test_random_below(random, 4)];

	return (uint32_t)test_random_below(random, 1 + (scale < most ? scale : most));
}

static void post_recv(struct soft_fixture *fixture, uint64_t wr_id, struct ranges *into)
{
	struct ibv_recv_wr *bad,
		wr = { .wr_id = wr_id, .sg_list = into->sges, .num_sge = into->count };

	assert_int_equal(ibv_post_recv(fixture->qp, &wr, &bad), 0);
}

/* From the lower half of one region to [from, to) of the other, by WRITE or READ. */
static bool move(const struct side *source, const struct side *target,
		 struct test_random *random, uint64_t wr_id, bool pull)
{
	struct scattered *from = source->region, *to = target->region;
	uint32_t readable = (from->length + 1) / 2, room = target->to - target->from;
	uint32_t total = choose_total(random, readable < room ? readable : room);
	bool send = !pull && test_random_below(random, 2);
	struct ranges sources, targets;

	if (pull)
		sources = one_range(from, random, 0, readable, total);
	else
		choose_ranges(from, random, 0, readable, total, &sources);
	if (pull || send)
		choose_ranges(to, random, target->from, target->to, total, &targets);
	else
		targets = one_range(to, random, target->from, target->to, total);
	expect_copy(from, &sources, to, &targets, total);
	if (send)
		post_recv(target->fixture, wr_id, &targets);
	if (pull)
		post(target->fixture, IBV_WR_RDMA_READ, wr_id, &targets, &sources);
	else if (send)
		post(source->fixture, IBV_WR_SEND, wr_id, &sources, NULL);
	else
		post(source->fixture, IBV_WR_RDMA_WRITE, wr_id, &sources, &targets);
	return send;
}

/*
 * `a` pushes into the third quarter of `b` while `b` pulls into its last one. Answers and
 * requests share the stream, and there is no race.
 */
static void run_batch(struct soft_fixture *a, struct soft_fixture *b,
		      struct scattered *from, struct scattered *to,
		      struct test_random *random)
{
	uint32_t half = (to->length + 1) / 2;
	uint32_t border = half + (to->length - half + 1) / 2;
	const struct side source = { .fixture = a, .region = from };
	const struct side pushed = { b, to, half, border };
	const struct side pulled = { b, to, border, to->length };
	uint32_t pushes = (uint32_t)test_random_below(random, BATCH + 1);
	uint32_t pulls = (uint32_t)test_random_below(random, BATCH + 1);
	bool sends[BATCH];

	for (uint32_t i = 0; i < pushes; i++)
		sends[i] = move(&source, &pushed, random, i, false);
	for (uint32_t i = 0; i < pulls; i++)
		move(&source, &pulled, random, i, true);
	for (uint32_t i = 0; i < pushes; i++) {
		fixture_expect(a, a->send_cq, b, i, IBV_WC_SUCCESS);
		if (sends[i])
			fixture_expect(b, b->recv_cq, a, i, IBV_WC_SUCCESS);
	}
	for (uint32_t i = 0; i < pulls; i++)
		fixture_expect(b, b->send_cq, a, i, IBV_WC_SUCCESS);
	check_bytes(from);
	check_bytes(to);
}

static uint32_t choose_count(struct test_random *random)
{
	static const uint32_t counts[] = { 1, 2, SOFT_MAX_VECTOR, 300, SOFT_MAX_PARTS };

	if (test_random_below(random, 2))
		return 1 + (uint32_t)test_random_below(random, SOFT_MAX_PARTS);
	return counts[test_random_below(random, 5)];
}

static void run_random(int stepped, int rounds)
{
	struct fixture_options options = { .rnr_retry = 7,
					   .max_rd_atomic = 4,
					   .stepped = stepped };
	struct test_random random = test_random_start();
	struct soft_fixture a, b;

	fixture_open_pair(&a, &b, &options);
	for (int i = 0; i < rounds; i++) {
		struct scattered from, to;
		uint32_t longest = test_random_below(&random, 3) ? 5000 : 1;

		make_region(&from, a.pd, &random, choose_count(&random), longest);
		make_region(&to, b.pd, &random, choose_count(&random), longest);
		for (int j = 0; j < 10; j++)
			run_batch(&a, &b, &from, &to, &random);
		free_region(&from);
		free_region(&to);
	}
	fixture_close(&a);
	fixture_close(&b);
}

static void copies_random_ranges(void **state)
{
	(void)state;
	run_random(0, 20);
}

static void copies_random_ranges_stepped(void **state)
{
	(void)state;
	run_random(1, 10);
}

/* Around the length of a vector, with a header before and one behind. */
static void handles_the_ends_of_a_vector(void **state)
{
	struct fixture_options options = { .stepped = 1 };
	struct test_random random = test_random_start();
	struct scattered from, to;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &options);
	make_region(&from, a.pd, &random, SOFT_MAX_PARTS, 1);
	make_region(&to, b.pd, &random, SOFT_MAX_PARTS, 1);
	for (uint32_t length = SOFT_MAX_VECTOR - 3; length <= SOFT_MAX_VECTOR + 3;
	     length++) {
		for (uint32_t i = 0; i < 3; i++) {
			struct ranges source, target;

			source = one_range(&from, &random, 0, from.length, length);
			target = one_range(&to, &random, i * 100, i * 100 + length,
					   length);
			expect_copy(&from, &source, &to, &target, length);
			post(&a, IBV_WR_RDMA_WRITE, i, &source, &target);
		}
		for (uint32_t i = 0; i < 3; i++)
			fixture_expect(&a, a.send_cq, &b, i, IBV_WC_SUCCESS);
		check_bytes(&to);
	}
	free_region(&from);
	free_region(&to);
	fixture_close(&a);
	fixture_close(&b);
}

/* Rights and bounds apply to the whole region. */
static void checks_rights_and_bounds(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (int over = 0; over <= 1; over++) {
		struct scattered from, to;
		struct ranges source, target;
		struct soft_fixture a, b;

		fixture_open_pair(&a, &b, NULL);
		make_region(&from, a.pd, &random, 200, 10);
		make_region(&to, b.pd, &random, 100, 3);
		source = one_range(&from, &random, 0, from.length, 7);
		target = one_range(&to, &random, to.length - 7, to.length, 7);
		if (over)
			target.sges[0].addr++;
		else
			expect_copy(&from, &source, &to, &target, 7);
		post(&a, IBV_WR_RDMA_WRITE, 1, &source, &target);
		fixture_expect(&a, a.send_cq, &b, 1,
			       over ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
		check_bytes(&to);
		free_region(&from);
		free_region(&to);
		fixture_close(&a);
		fixture_close(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_random_ranges),
		cmocka_unit_test(copies_random_ranges_stepped),
		cmocka_unit_test(handles_the_ends_of_a_vector),
		cmocka_unit_test(checks_rights_and_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

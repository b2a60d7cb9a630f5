/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transfers over soft0 between regions of many parts, beside a model that knows where
 * each byte of a region lies. After each transfer the test compares the whole memory of
 * both ends, including the bytes around the parts. PIER_SEED repeats a run.
 */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

#include "device/device.h"
#include "region/mr.h"

enum {
	SLOT = 12 * 1024 + 1, /* each range lies in one slot and touches no other */
	SLOTS = 15,	      /* of one memory */
	BYTES = SLOT * SLOTS,
	MEMORIES = 3,
	MAX_RANGES = 40,
	MAX_PIECES = 6, /* parts of a region that one transfer uses */
	ROUNDS = 40,
	TRANSFERS = 15,
	MAX_RECV_SGE = 16,
	PATIENT = 30000,
};

struct memory {
	struct pier_buffer *buffer; /* NULL: from malloc() */
	uint8_t *bytes;
	uint8_t image[BYTES]; /* the model */
};

struct end {
	struct pier_provider provider;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_channel *channel;
	struct memory memories[MEMORIES];
	struct pier_mr *mr;
	/* For each byte of the region: its place in the image. */
	uint8_t *where[BYTES * MEMORIES];
	uint64_t length;
};

static struct end ends[2];
static struct test_random dice;

static uint64_t below(uint64_t limit)
{
	return test_random_below(&dice, limit);
}

static void open_memory(struct memory *memory, const char *backend)
{
	void *pointer = NULL;

	if (backend) {
		expect_ok(pier_buffer_alloc(backend, BYTES, &memory->buffer));
		expect_ok(pier_buffer_map(memory->buffer, &pointer));
	} else {
		pointer = malloc(BYTES);
	}
	assert_non_null(pointer);
	memory->bytes = pointer;
}

/* The NIC refuses longer regions. */
static uint64_t longest = UINT64_MAX;

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     int access)
{
	errno = EINVAL;
	return length > longest
		       ? NULL
		       : pier_soft_provider.reg_mr(pd, addr, length, iova, access);
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access)
{
	errno = EINVAL;
	return length > longest ? NULL
				: pier_soft_provider.reg_dmabuf_mr(pd, offset, length,
								   iova, fd, access);
}

/* Each range has its own key here; another test covers one key for several ranges. */
static void open_end(struct end *end)
{
	static const char *const backends[MEMORIES] = { NULL, "host", "memfd" };

	expect_ok(pier_device_open("soft0", &end->device));
	end->provider = *end->device->provider;
	end->provider.reg_parts = NULL;
	end->provider.reg_mr = reg_mr;
	end->provider.reg_dmabuf_mr = reg_dmabuf_mr;
	end->device->provider = &end->provider;
	expect_ok(pier_pd_alloc(end->device, &end->pd));
	for (int i = 0; i < MEMORIES; i++)
		open_memory(&end->memories[i], backends[i]);
}

static void close_end(struct end *end)
{
	for (int i = 0; i < MEMORIES; i++) {
		if (!end->memories[i].buffer)
			free(end->memories[i].bytes);
		expect_ok(pier_buffer_free(end->memories[i].buffer));
	}
	expect_ok(pier_pd_dealloc(end->pd));
	expect_ok(pier_device_close(end->device));
}

static void shuffle_memories(struct end *end)
{
	for (int i = 0; i < MEMORIES; i++) {
		struct memory *memory = &end->memories[i];

		for (int byte = 0; byte < BYTES; byte++)
			memory->image[byte] = (uint8_t)(test_random_next(&dice) >> 56);
		memcpy(memory->bytes, memory->image, BYTES);
	}
}

static void compare_memories(const struct end *end)
{
	for (int i = 0; i < MEMORIES; i++) {
		const struct memory *memory = &end->memories[i];

		if (memcmp(memory->bytes, memory->image, BYTES) == 0)
			continue;
		for (int byte = 0; byte < BYTES; byte++)
			if (memory->bytes[byte] != memory->image[byte])
				fail_msg("memory %d of end %td: byte %d is %#x, not %#x",
					 i, end - ends, byte, memory->bytes[byte],
					 memory->image[byte]);
	}
}

/* Register a random range in a slot, and add it to the model. */
static struct pier_mr_range choose_range(struct end *end, uint64_t slot)
{
	struct memory *memory = &end->memories[slot / SLOTS];
	uint64_t start = slot % SLOTS * SLOT, most = below(4) ? 200 : SLOT;
	uint64_t length = 1 + below(most), offset = start + below(SLOT - length + 1);
	struct pier_mr_range range = pier_mr_range_host(memory->bytes + offset, length);
	struct pier_mr_range of_buffer = pier_mr_range_buffer(memory->buffer, offset,
							      length);

	for (uint64_t i = 0; i < length; i++)
		end->where[end->length++] = memory->image + offset + i;
	return memory->buffer ? of_buffer : range;
}

static void make_region(struct end *end, uint32_t range_count, enum pier_split split)
{
	uint64_t slots[SLOTS * MEMORIES], count = SLOTS * MEMORIES;
	uint64_t max_mr_size = end->device->limits.max_mr_size;
	struct pier_mr_range ranges[MAX_RANGES];
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	end->length = 0;
	for (uint64_t i = 0; i < count; i++)
		slots[i] = i;
	attr.ranges = ranges;
	attr.range_count = range_count;
	attr.split = split;
	attr.access = PIER_ACCESS_SHARED;
	for (uint32_t i = 0; i < attr.range_count; i++) {
		uint64_t chosen = below(count);

		ranges[i] = choose_range(end, slots[chosen]);
		slots[chosen] = slots[--count];
	}
	if (split == PIER_SPLIT_PIECES)
		end->device->limits.max_mr_size = longest = 4096;
	expect_ok(pier_mr_reg_attr(end->pd, &attr, &end->mr));
	end->device->limits.max_mr_size = max_mr_size;
	longest = UINT64_MAX;
	assert_int_equal(pier_mr_length(end->mr), end->length);
	assert_true(pier_mr_parts(end->mr) >= attr.range_count);
}

static void connect_ends(uint32_t max_send_wr, uint32_t max_send_sge)
{
	struct pier_channel_attr attr;
	struct pier_endpoint endpoints[2];

	pier_channel_attr_init(&attr);
	attr.max_send_wr = max_send_wr;
	attr.max_send_sge = max_send_sge;
	attr.retry_count = 3;
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_channel_create(ends[i].pd, &attr, &ends[i].channel));
		expect_ok(pier_channel_endpoint(ends[i].channel, &endpoints[i]));
	}
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_connect(ends[i].channel, &endpoints[!i]));
}

/* Pieces of a region that do not overlap, in any order. */
struct choice {
	uint64_t offsets[MAX_PIECES], lengths[MAX_PIECES];
	uint32_t count;
	uint64_t length;
};

static struct choice choose_pieces(const struct end *end)
{
	struct choice choice = { .count = 1 + (uint32_t)below(MAX_PIECES) };
	uint64_t stripe = end->length / choice.count, first = below(choice.count);

	for (uint32_t i = 0; i < choice.count; i++) {
		uint64_t start = (first + i) % choice.count * stripe;
		uint64_t length = below(4) ? below(stripe + 1) : stripe;

		choice.lengths[i] = length;
		choice.offsets[i] = start + below(stripe - length + 1);
		choice.length += length;
	}
	return choice;
}

static void shorten(struct choice *choice, uint64_t length)
{
	choice->length = 0;
	for (uint32_t i = 0; i < choice->count; i++) {
		if (choice->lengths[i] > length - choice->length)
			choice->lengths[i] = length - choice->length;
		choice->length += choice->lengths[i];
	}
}

/* List the places of the bytes of a choice in order. */
static uint8_t **find_bytes(const struct end *end, const struct choice *choice)
{
	uint8_t **bytes = malloc((choice->length + 1) * sizeof(*bytes));
	uint64_t at = 0;

	assert_non_null(bytes);
	for (uint32_t i = 0; i < choice->count; i++)
		for (uint64_t byte = 0; byte < choice->lengths[i]; byte++)
			bytes[at++] = end->where[choice->offsets[i] + byte];
	return bytes;
}

static void copy_in_model(const struct end *to, const struct choice *target,
			  const struct end *from, const struct choice *source,
			  uint64_t length)
{
	uint8_t **targets = find_bytes(to, target), **sources = find_bytes(from, source);

	for (uint64_t i = 0; i < length; i++)
		*targets[i] = *sources[i];
	free(targets);
	free(sources);
}

/* Allocate exactly the size needed, so that ASan notices one element too many. */
static void *list_elements(const struct end *end, const struct choice *choice,
			   bool scatter, uint32_t *ret_count)
{
	uint64_t iova = pier_mr_iova(end->mr);
	struct pier_gather *list = NULL;
	uint32_t count = 0;

	for (uint32_t i = 0; i < choice->count; i++) {
		uint64_t addr = iova + choice->offsets[i], length = choice->lengths[i];
		uint32_t more, made;

		if (length == 0)
			continue;
		expect_result(pier_mr_gather_list(end->mr, addr, length, NULL, 0, &more),
			      -ENOSPC);
		list = realloc(list, (count + more) * sizeof(*list));
		assert_non_null(list);
		expect_ok(scatter ? pier_mr_scatter_list(end->mr, addr, length,
							 (struct pier_scatter *)list +
								 count,
							 more, &made)
				  : pier_mr_gather_list(end->mr, addr, length,
							list + count, more, &made));
		assert_int_equal(made, more);
		count += more;
	}
	*ret_count = count;
	return list;
}

/* Send to the other end as bytes or as text. */
static uint32_t send_descriptor(const struct pier_mr *mr, struct pier_remote *ret_parts)
{
	struct pier_remote own[PIER_MR_PARTS_MAX];
	char text[PIER_REMOTE_VEC_TEXT_SIZE(PIER_MR_PARTS_MAX)];
	uint8_t wire[PIER_REMOTE_VEC_WIRE_MAX];
	uint32_t count, arrived;
	int size;

	expect_ok(pier_mr_remote_vec(mr, own, PIER_MR_PARTS_MAX, &count));
	assert_int_equal(count, pier_mr_parts(mr));
	size = pier_remote_vec_pack(own, count, wire, sizeof(wire));
	assert_int_equal(size, PIER_REMOTE_VEC_WIRE_SIZE(count));
	expect_ok(pier_remote_vec_unpack(wire, (size_t)size, ret_parts, count, &arrived));
	if (below(2)) {
		expect_ok(pier_remote_vec_to_text(own, count, text, sizeof(text)));
		expect_ok(pier_remote_vec_from_text(text, ret_parts, count, &arrived));
	}
	assert_int_equal(arrived, count);
	return count;
}

/* The vector for a choice of the other end's region. */
static struct pier_remote *choose_remote(const struct end *end,
					 const struct choice *choice, uint32_t *ret_count)
{
	struct pier_remote whole[PIER_MR_PARTS_MAX], *parts;
	uint32_t whole_count = send_descriptor(end->mr, whole), count = 0;
	uint64_t length;

	parts = malloc((choice->count * whole_count + 1) * sizeof(*parts));
	assert_non_null(parts);
	for (uint32_t i = 0; i < choice->count; i++) {
		uint32_t more;

		expect_ok(pier_remote_vec_sub(whole, whole_count, choice->offsets[i],
					      choice->lengths[i], parts + count,
					      whole_count, &more));
		count += more;
	}
	expect_ok(pier_remote_vec_length(parts, count, &length));
	assert_int_equal(length, choice->length);
	*ret_count = count;
	return parts;
}

static int post_and_wait(struct pier_channel *channel, int error, struct pier_work work)
{
	return error ? error : test_work_wait(channel, work, PATIENT, NULL);
}

/* Post if the send queue has room for all; a blocking call need not check. */
static void transfer(struct pier_channel *channel, bool read, const void *list,
		     uint32_t num_sge, const struct pier_remote *parts, uint32_t count)
{
	struct pier_work work = { 0 };
	int error = -E2BIG;

	if (below(2) && read)
		error = post_and_wait(
			channel,
			test_post_read_vec(channel, list, num_sge, parts, count, &work),
			work);
	else if (!read && below(2))
		error = post_and_wait(
			channel,
			test_post_write_vec(channel, list, num_sge, parts, count, &work),
			work);
	if (error == -E2BIG)
		error = read ? test_channel_read_vec(channel, list, num_sge, parts, count,
						     PATIENT)
			     : test_channel_write_vec(channel, list, num_sge, parts,
						      count, PATIENT);
	expect_ok(error);
}

static void move_one_sided(struct end *here, struct end *there)
{
	struct choice local = choose_pieces(here), distant = choose_pieces(there);
	bool read = below(2);
	struct pier_remote *parts;
	uint32_t num_sge, count;
	void *list;

	shorten(&local, distant.length);
	list = list_elements(here, &local, read, &num_sge);
	parts = choose_remote(there, &distant, &count);
	transfer(here->channel, read, list, num_sge, parts, count);
	if (read)
		copy_in_model(here, &local, there, &distant, local.length);
	else
		copy_in_model(there, &distant, here, &local, local.length);
	free(parts);
	free(list);
}

/* Of any length, from anywhere to anywhere, across seams on both sides. */
static void choose_message(const struct end *here, const struct end *there,
			   struct choice *ret_source, struct choice *ret_target)
{
	uint64_t most = here->length < there->length ? here->length : there->length;
	uint64_t length = below(most + 1);

	*ret_source = (struct choice){ .count = 1, .length = length };
	*ret_target = *ret_source;
	ret_source->lengths[0] = ret_target->lengths[0] = length;
	ret_source->offsets[0] = below(here->length - length + 1);
	ret_target->offsets[0] = below(there->length - length + 1);
}

static void move_message(struct end *here, struct end *there, uint32_t max_send_sge)
{
	struct choice source, target;
	struct pier_gather *gather;
	struct pier_scatter *scatter;
	uint32_t gathers, scatters;
	struct pier_work work;

	choose_message(here, there, &source, &target);
	gather = list_elements(here, &source, false, &gathers);
	scatter = list_elements(there, &target, true, &scatters);
	if (gathers <= max_send_sge && scatters <= MAX_RECV_SGE) {
		expect_ok(pier_channel_post_recv(there->channel, scatter, (int)scatters,
						 &work));
		expect_ok(
			pier_channel_send(here->channel, gather, (int)gathers, PATIENT));
		expect_ok(test_work_wait(there->channel, work, PATIENT, NULL));
		copy_in_model(there, &target, here, &source, source.length);
	}
	free(gather);
	free(scatter);
}

static void compare_ends(void)
{
	compare_memories(&ends[0]);
	compare_memories(&ends[1]);
}

static void close_round(void)
{
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_channel_destroy(ends[i].channel));
		expect_ok(pier_mr_dereg(ends[i].mr));
	}
}

static void run_round(void)
{
	uint32_t max_send_sge = 1 + (uint32_t)below(8);

	connect_ends(1 + (uint32_t)below(20), max_send_sge);
	for (int i = 0; i < 2; i++) {
		shuffle_memories(&ends[i]);
		make_region(&ends[i], 1 + (uint32_t)below(MAX_RANGES),
			    below(2) ? PIER_SPLIT_PIECES : PIER_SPLIT_SEAMS);
	}
	for (int i = 0; i < TRANSFERS; i++) {
		struct end *here = &ends[below(2)], *there = &ends[here == &ends[0]];

		if (below(4))
			move_one_sided(here, there);
		else
			move_message(here, there, max_send_sge);
		compare_ends();
	}
	close_round();
}

static void moves_as_the_model_says(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++)
		run_round();
}

/*
 * Use both regions as far as both reach; the second key of the peer is wrong.
 * *ret_written returns the bytes that were written all the same.
 */
static int write_with_a_wrong_key(struct choice *ret_written, bool blocking)
{
	struct pier_remote parts[PIER_MR_PARTS_MAX];
	struct choice all = { .count = 1, .length = ends[0].length };
	uint32_t count = send_descriptor(ends[1].mr, parts), num_sge;
	struct pier_work work = { 0 };
	struct pier_gather *list;
	int error;

	if (all.length > ends[1].length)
		all.length = ends[1].length;
	all.lengths[0] = all.length;
	list = list_elements(&ends[0], &all, false, &num_sge);
	assert_int_equal(count, 3);
	parts[1].rkey ^= 0x5555;
	if (blocking) {
		error = test_channel_write_vec(ends[0].channel, list, num_sge, parts,
					       count, PATIENT);
	} else {
		expect_ok(test_post_write_vec(ends[0].channel, list, num_sge, parts,
					      count, &work));
		error = test_work_wait(ends[0].channel, work, PATIENT, NULL);
	}
	free(list);
	if (all.length > parts[0].length)
		all.length = all.lengths[0] = parts[0].length;
	*ret_written = all;
	return error;
}

static void fails_at_the_second_part(bool blocking, int expected)
{
	struct choice written;

	connect_ends(16, 8);
	shuffle_memories(&ends[0]);
	shuffle_memories(&ends[1]);
	make_region(&ends[1], 3, PIER_SPLIT_SEAMS);
	make_region(&ends[0], 20, PIER_SPLIT_SEAMS);
	/* Long enough for a request behind the one that fails. */
	while (ends[0].length <= 2 * (uint64_t)SLOT) {
		expect_ok(pier_mr_dereg(ends[0].mr));
		make_region(&ends[0], 20, PIER_SPLIT_SEAMS);
	}
	expect_result(write_with_a_wrong_key(&written, blocking), expected);
	test_assert_sentence("IBV_WC_REM_ACCESS_ERR");
	copy_in_model(&ends[1], &written, &ends[0], &written, written.length);
	compare_ends();
	assert_int_equal(pier_channel_outstanding(ends[0].channel), 0);
	close_round();
}

/* A blocking call reports the error of the request that failed, not that of its flush. */
static void reports_the_request_that_failed(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++) {
		fails_at_the_second_part(true, -EACCES);
		fails_at_the_second_part(false, -ECANCELED);
	}
}

static int open_ends(void **state)
{
	static struct test_census before;

	before = test_take_census();
	*state = &before;
	dice = test_random_start();
	open_end(&ends[0]);
	open_end(&ends[1]);
	return 0;
}

static int close_ends(void **state)
{
	close_end(&ends[0]);
	close_end(&ends[1]);
	test_assert_census(*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(moves_as_the_model_says, open_ends,
						close_ends),
		cmocka_unit_test_setup_teardown(reports_the_request_that_failed,
						open_ends, close_ends),
	};

	return cmocka_run_group_tests_name("vector", tests, NULL, NULL);
}

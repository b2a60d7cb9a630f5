/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/*
 * Sub-regions: what their rights allow the peer and what they do not. Each case runs with
 * a registered sub-region, and with one bound to the peer's channel, which is a memory
 * window if the device has them.
 */

enum {
	BASE_OFFSET = 8193,
	BASE_LENGTH = 60000,
	PART_OFFSET = 5003, /* in the base */
	PART_LENGTH = 30011,
	PART_AT = BASE_OFFSET + PART_OFFSET, /* in the area */
	SOME = 1000,
	READ = PIER_ACCESS_REMOTE_READ,
	WRITE = PIER_ACCESS_REMOTE_WRITE,
};

/* The second end's base, a region of a part of its area, and a sub-region of the base. */
struct part {
	struct world *world;
	struct pier_mr *base, *mr;
	bool window;
	struct pier_remote remote;
};

typedef int (*make_part)(struct part *part, int access);

static int register_part(struct part *part, int access)
{
	int local = access & WRITE ? PIER_ACCESS_LOCAL_WRITE : 0;

	return pier_mr_reg_sub(part->base, PART_OFFSET, PART_LENGTH, access | local,
			       &part->mr);
}

static int bind_part(struct part *part, int access)
{
	return pier_mr_bind_sub(part->world->b.channel, part->base, PART_OFFSET,
				PART_LENGTH, access, PATIENT, &part->mr);
}

/*
 * The base grants the peer no right, so every access needs the sub-region. It allows
 * windows if the device and the memory support them.
 */
static void open_base(struct part *part, struct world *world)
{
	const int local = PIER_ACCESS_LOCAL_WRITE;
	struct pier_device_attr attr;
	struct end *end = &world->b;

	expect_ok(pier_device_query(end->device, &attr, sizeof(attr)));
	part->world = world;
	part->window = attr.memory_windows &&
		       pier_mr_path(end->area.mr) == PIER_PATH_HOST;
	expect_ok(pier_mr_reg_buffer(end->pd, end->area.buffer, BASE_OFFSET, BASE_LENGTH,
				     part->window ? local | PIER_ACCESS_MW_BIND : local,
				     PIER_POLICY_DIRECT, &part->base));
}

static void open_part(struct part *part, make_part make, int access)
{
	expect_ok(make(part, access));
	assert_int_equal(test_mr_info(part->mr).is_window,
			 make == bind_part && part->window);
	assert_int_equal(pier_mr_iova(part->mr), pier_mr_iova(part->base) + PART_OFFSET);
	assert_int_equal(pier_mr_length(part->mr), PART_LENGTH);
	assert_int_equal(test_mr_info(part->mr).access & (READ | WRITE), access);
	expect_ok(pier_mr_remote(part->mr, &part->remote));
	assert_int_equal(part->remote.length, PART_LENGTH);
	assert_int_not_equal(part->remote.rkey, test_mr_info(part->base).rkey);
}

static struct part open_both(void **state, make_part make, int access)
{
	struct part part = { 0 };

	open_base(&part, world_connected(state));
	open_part(&part, make, access);
	return part;
}

static void close_part(struct part *part)
{
	expect_result(pier_mr_dereg(part->base), -EBUSY);
	expect_ok(pier_mr_dereg(part->mr));
	part->mr = NULL;
}

static void close_both(struct part *part)
{
	if (part->mr)
		close_part(part);
	expect_ok(pier_mr_dereg(part->base));
}

static void expect_write(struct part *part, size_t offset, size_t length)
{
	struct world *world = part->world;
	struct pier_gather source = gather_at(&world->a.area, 7, length);
	struct pier_remote target;

	expect_ok(pier_remote_sub(&part->remote, offset, length, &target));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, PART_AT + offset, &world->a.area, 7, length);
	world_expect(world);
}

static void expect_read(struct part *part, size_t offset, size_t length)
{
	struct world *world = part->world;
	struct pier_scatter target = scatter_at(&world->a.area, 90001, length);
	struct pier_remote source;

	expect_ok(pier_remote_sub(&part->remote, offset, length, &source));
	expect_ok(pier_channel_read(world->a.channel, &target, 1, &source, PATIENT));
	image_copy(&world->a.area, 90001, &world->b.area, PART_AT + offset, length);
	world_expect(world);
}

/* The request moves no byte and breaks the channel. */
static void expect_refused(struct part *part, uint64_t addr, bool read)
{
	struct world *world = part->world;
	struct pier_gather source = gather_at(&world->a.area, 0, SOME);
	struct pier_scatter target = scatter_at(&world->a.area, 0, SOME);
	struct pier_remote remote = { addr, SOME, part->remote.rkey };
	struct pier_work work;

	if (read)
		expect_ok(pier_channel_post_read(world->a.channel, &target, 1, &remote,
						 &work));
	else
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &remote,
						  &work));
	expect_end(world->a.channel, work, -EACCES);
	world_expect(world);
}

static void connect_anew(struct world *world)
{
	expect_ok(pier_channel_destroy(world->a.channel));
	world->a.channel = NULL;
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	expect_ok(end_prepare(&world->a, NULL));
	expect_ok(end_prepare(&world->b, NULL));
	expect_ok(ends_connect(&world->a, &world->b));
}

static void grants_its_rights(void **state, make_part make)
{
	struct part part = open_both(state, make, READ | WRITE);

	expect_write(&part, 0, PART_LENGTH);
	expect_read(&part, 0, PART_LENGTH);
	expect_write(&part, 0, 1);
	expect_write(&part, PART_LENGTH - 1, 1);
	expect_read(&part, 4095, 2);
	close_both(&part);
}

/*
 * Accesses that exceed the sub-region by one byte on either side, inside the base and
 * beyond it.
 */
static void refuses_bytes_outside(void **state, make_part make)
{
	const uint64_t beyond[] = {
		-(uint64_t)1,
		PART_LENGTH - SOME + 1,
		PART_LENGTH + 1,
		-(uint64_t)PART_OFFSET,
		-(uint64_t)PART_OFFSET - BASE_OFFSET,
	};
	struct part part = open_both(state, make, READ | WRITE);

	for (size_t i = 0; i < 2 * sizeof(beyond) / sizeof(beyond[0]); i++) {
		expect_refused(&part, part.remote.addr + beyond[i / 2], i % 2);
		close_part(&part);
		connect_anew(part.world);
		open_part(&part, make, READ | WRITE);
	}
	expect_write(&part, PART_LENGTH - SOME, SOME);
	close_both(&part);
}

static void refuses_other_rights(void **state, make_part make)
{
	struct part part = open_both(state, make, READ);

	expect_read(&part, 3, SOME);
	expect_refused(&part, part.remote.addr, false);
	close_part(&part);
	connect_anew(part.world);
	open_part(&part, make, WRITE);
	expect_write(&part, 3, SOME);
	expect_refused(&part, part.remote.addr, true);
	close_both(&part);
}

/* Two sub-regions of the same bytes have different rights. */
static void may_overlap_others(void **state, make_part make)
{
	struct part reading = open_both(state, make, READ), writing = reading;

	open_part(&writing, make, WRITE);
	assert_int_not_equal(reading.remote.rkey, writing.remote.rkey);
	expect_write(&writing, 0, SOME);
	expect_read(&reading, 0, SOME);
	close_part(&writing);
	expect_read(&reading, 10, SOME);
	close_both(&reading);
}

static void is_refused_after_deregistration(void **state, make_part make)
{
	struct part part = open_both(state, make, READ | WRITE);

	expect_write(&part, 0, SOME);
	close_part(&part);
	expect_refused(&part, part.remote.addr, false);
	close_both(&part);
}

/* A window loses its key with its channel, but must still be deregistered. */
static void closes_after_its_channel(void **state, make_part make)
{
	struct part part = open_both(state, make, READ | WRITE);

	expect_write(&part, 0, SOME);
	connect_anew(part.world);
	if (test_mr_info(part.mr).is_window)
		expect_refused(&part, part.remote.addr, false);
	else
		expect_write(&part, 5, SOME);
	close_both(&part);
}

/* A window's key is valid only on its channel. */
static void bound_sub_refuses_other_peers(void **state)
{
	struct part part = open_both(state, bind_part, READ | WRITE);
	struct end *a = &part.world->a, *b = &part.world->b;
	struct pier_channel *first_a = a->channel, *first_b = b->channel;

	expect_ok(end_prepare(a, NULL));
	expect_ok(end_prepare(b, NULL));
	expect_ok(ends_connect(a, b));
	if (test_mr_info(part.mr).is_window)
		expect_refused(&part, part.remote.addr, false);
	else
		expect_write(&part, 0, SOME);
	expect_ok(pier_channel_destroy(a->channel));
	expect_ok(pier_channel_destroy(b->channel));
	a->channel = first_a;
	b->channel = first_b;
	expect_write(&part, 1, SOME);
	close_both(&part);
}

/*
 * A message of the peer invalidates the peer's own key before it is received. rxe reports
 * this with the kernel's flag (IB_WC_WITH_INVALIDATE in do_complete() of rxe_resp.c),
 * which has another value than that of libibverbs.
 */
static void send_with_invalidate_ends_bound_sub(void **state)
{
	struct part part = open_both(state, bind_part, READ | WRITE);
	struct pier_request last = { .opcode = PIER_OP_SEND,
				     .flags = PIER_POST_INVALIDATE,
				     .invalidate_rkey = part.remote.rkey };
	struct end *a = &part.world->a, *b = &part.world->b;
	struct pier_work work, receive;
	struct pier_result result;

	if (!test_mr_info(part.mr).is_window) {
		close_both(&part);
		world_skip("there are no memory windows here");
	}
	expect_write(&part, 1, SOME);
	expect_ok(pier_channel_post_recv(b->channel, NULL, 0, &receive));
	expect_ok(pier_channel_post_request(a->channel, &last, &work));
	result = expect_end(b->channel, receive, 0);
	assert_true(result.has_invalidated || test_vague);
	if (result.has_invalidated)
		assert_int_equal(result.invalidated_rkey, part.remote.rkey);
	expect_end(a->channel, work, 0);
	expect_refused(&part, part.remote.addr, false);
	close_both(&part);
}

static void invalid_bound_subs_are_refused(void **state)
{
	struct part part = { 0 };
	struct world *world = world_connected(state);
	struct pier_channel *channel = world->b.channel;
	struct pier_mr *untouched = NULL;

	open_base(&part, world);
	expect_result(
		pier_mr_bind_sub(channel, part.base, 0, 0, READ, PATIENT, &untouched),
		-EINVAL);
	expect_result(pier_mr_bind_sub(channel, part.base, BASE_LENGTH - 9, 10, READ,
				       PATIENT, &untouched),
		      -ERANGE);
	expect_result(pier_mr_bind_sub(channel, part.base, 0, 1, PIER_ACCESS_LOCAL_WRITE,
				       PATIENT, &untouched),
		      -EINVAL);
	expect_result(pier_mr_bind_sub(world->a.channel, part.base, 0, 1, READ, PATIENT,
				       &untouched),
		      -EINVAL);
	assert_null(untouched);
	/* The refused calls do not break the channel. */
	open_part(&part, bind_part, READ);
	expect_read(&part, 0, SOME);
	close_both(&part);
}

/* Devices count writes into regions, not into windows. */
static void windows_cannot_have_counters(void **state)
{
	struct part part = open_both(state, bind_part, WRITE);
	struct pier_counter *counter;

	expect_ok(pier_counter_create(part.world->b.pd, &counter));
	if (test_mr_info(part.mr).is_window)
		expect_result(pier_counter_bind(counter, part.mr), -EOPNOTSUPP);
	expect_write(&part, 0, SOME);
	expect_ok(pier_counter_destroy(counter));
	close_both(&part);
}

#define both_ways(body)                                 \
	static void registered_sub_##body(void **state) \
	{                                               \
		body(state, register_part);             \
	}                                               \
	static void bound_sub_##body(void **state)      \
	{                                               \
		body(state, bind_part);                 \
	}

both_ways(grants_its_rights) both_ways(refuses_bytes_outside)
	both_ways(refuses_other_rights) both_ways(may_overlap_others)
		both_ways(is_refused_after_deregistration)
			both_ways(closes_after_its_channel)

				int run_subregion_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(registered_sub_grants_its_rights),
		world_case(bound_sub_grants_its_rights),
		world_case(registered_sub_refuses_bytes_outside),
		world_case(bound_sub_refuses_bytes_outside),
		world_case(registered_sub_refuses_other_rights),
		world_case(bound_sub_refuses_other_rights),
		world_case(registered_sub_may_overlap_others),
		world_case(bound_sub_may_overlap_others),
		world_case(registered_sub_is_refused_after_deregistration),
		world_case(bound_sub_is_refused_after_deregistration),
		world_case(registered_sub_closes_after_its_channel),
		world_case(bound_sub_closes_after_its_channel),
		world_case(bound_sub_refuses_other_peers),
		world_case(send_with_invalidate_ends_bound_sub),
		world_case(invalid_bound_subs_are_refused),
		world_case(windows_cannot_have_counters),
	};

	return cmocka_run_group_tests_name("sub-regions", cases, NULL, NULL);
}

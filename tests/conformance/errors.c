/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/*
 * Requests that must fail: with which error, which requests are flushed, and no byte is
 * moved.
 */

/* Posts the bad request, a good one behind it, and a receive at the same end. */
static void expect_refused(struct world *world, const struct pier_remote *remote,
			   bool read)
{
	struct pier_gather source = gather_at(&world->a.area, 0, 1000);
	struct pier_scatter target = scatter_at(&world->a.area, 0, 1000);
	struct pier_remote good = remote_at(&world->b.area, 0, 1000);
	struct pier_work bad, behind, receive;
	struct pier_result result;

	expect_ok(pier_channel_post_recv(world->a.channel, &target, 1, &receive));
	if (read)
		expect_ok(pier_channel_post_read(world->a.channel, &target, 1, remote,
						 &bad));
	else
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, remote,
						  &bad));
	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &good, &behind));
	result = expect_end(world->a.channel, bad, -EACCES);
	assert_int_not_equal(result.status, 0);
	test_assert_sentence(read ? "read" : "write");
	expect_end(world->a.channel, behind, -ECANCELED);
	expect_end(world->a.channel, receive, -ECANCELED);
	expect_result(pier_channel_post_write(world->a.channel, &source, 1, &good, NULL),
		      -EPIPE);
	test_assert_sentence("refused");
	world_expect(world);
}

static void write_with_wrong_key_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote remote = remote_at(&world->b.area, 0, 1000);

	remote.rkey ^= 0x5a5a5a5a;
	expect_refused(world, &remote, false);
}

static void read_with_wrong_key_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote remote = remote_at(&world->b.area, 0, 1000);

	remote.rkey ^= 0x5a5a5a5a;
	expect_refused(world, &remote, true);
}

static void write_past_region_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote remote = remote_at(&world->b.area, AREA_LENGTH - 999, 999);

	remote.length = 1000;
	expect_refused(world, &remote, false);
}

static void read_before_region_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote remote = remote_at(&world->b.area, 0, 1000);

	remote.addr--;
	expect_refused(world, &remote, true);
}

static void wrapping_address_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote remote = remote_at(&world->b.area, 0, 1000);

	remote.addr = UINT64_MAX - 500;
	expect_refused(world, &remote, false);
}

static void deregistered_key_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote remote;
	struct pier_mr *mr;

	expect_ok(pier_mr_reg_buffer(world->b.pd, world->b.area.buffer, 0, 2000,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_remote(mr, &remote));
	expect_ok(pier_mr_dereg(mr));
	expect_refused(world, &remote, false);
}

/* A region with this access refuses a read or a write. */
static void expect_no_right(void **state, int access, bool read)
{
	struct world *world = world_connected(state);
	struct pier_remote remote;
	struct pier_mr *mr;

	expect_ok(pier_mr_reg_buffer(world->b.pd, world->b.area.buffer, 0, 2000, access,
				     PIER_POLICY_DIRECT, &mr));
	remote = (struct pier_remote){ pier_mr_iova(mr), 2000, test_mr_info(mr).rkey };
	expect_refused(world, &remote, read);
	expect_ok(pier_mr_dereg(mr));
}

static void write_without_right_is_refused(void **state)
{
	expect_no_right(state, PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_READ, false);
}

static void read_without_right_is_refused(void **state)
{
	expect_no_right(state, PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE, true);
}

static void write_without_channel_access_is_refused(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct pier_remote remote;
	struct world *world;

	attr.access = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_READ;
	world = world_connected_with(state, &attr);
	remote = remote_at(&world->b.area, 0, 1000);
	expect_refused(world, &remote, false);
}

/* Unchecked elements, which the checked functions would have refused. */
static void local_element_outside_region_fails(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather outside = pier_mr_gather_unchecked(
		world->a.area.mr, area_at(&world->a.area, AREA_LENGTH - 9), 10);
	struct pier_remote target = remote_at(&world->b.area, 0, 10);
	struct pier_work work;

	expect_ok(pier_channel_post_write(world->a.channel, &outside, 1, &target, &work));
	expect_vague_end(world->a.channel, work, -EFAULT, -ECANCELED);
	world_expect(world);
}

static void read_into_read_only_memory_fails(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote source = remote_at(&world->b.area, 0, 10);
	struct pier_scatter target;
	struct pier_work work;
	struct pier_mr *mr;

	expect_ok(pier_mr_reg_buffer(world->a.pd, world->a.area.buffer, 0, 100,
				     PIER_ACCESS_LOCAL_READ, PIER_POLICY_DIRECT, &mr));
	expect_result(pier_mr_scatter(mr, pier_mr_iova(mr), 10, &target), -EACCES);
	target = pier_mr_scatter_unchecked(mr, pier_mr_iova(mr), 10);
	expect_ok(pier_channel_post_read(world->a.channel, &target, 1, &source, &work));
	expect_end(world->a.channel, work, -EFAULT);
	world_expect(world);
	expect_ok(pier_mr_dereg(mr));
}

static void send_without_receive_fails(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct pier_gather source;
	struct world *world;
	struct pier_work work, behind;

	attr.rnr_retry_count = 2;
	attr.min_rnr_timer = 1;
	world = world_connected_with(state, &attr);
	source = gather_at(&world->a.area, 0, 100);
	expect_ok(pier_channel_post_send(world->a.channel, &source, 1, &work));
	expect_ok(pier_channel_post_send(world->a.channel, &source, 1, &behind));
	expect_end(world->a.channel, work, -EAGAIN);
	test_assert_sentence("no receive");
	expect_end(world->a.channel, behind, -ECANCELED);
	world_expect(world);
}

/* Both ends fail, each with its own error. The guard behind the receive is unchanged. */
static void message_longer_than_receive_fails(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 9001);
	struct pier_scatter target = scatter_at(&world->b.area, 100, 9000);
	uint8_t *guarded = world->b.area.image + 100, now[9000];
	struct pier_work send, receive;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_ok(pier_channel_post_send(world->a.channel, &source, 1, &send));
	expect_vague_end(world->b.channel, receive, -EMSGSIZE, -EIO);
	expect_vague_end(world->a.channel, send, -EMSGSIZE, -EREMOTEIO);
	/* The device may have written any part of the receive. */
	expect_ok(pier_buffer_copy_from(world->b.area.buffer, 100, now, sizeof(now)));
	memcpy(guarded, now, sizeof(now));
	world_expect(world);
}

/* The peer destroys its channel while this end's requests are outstanding. */
static void peer_closing_fails_requests(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 1000);
	struct pier_remote target = remote_at(&world->b.area, 0, 1000);
	struct pier_work receive, send, write;

	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target, &write));
	if (pier_channel_post_send(world->a.channel, &source, 1, &send) == 0)
		assert_true(test_work_finish(world->a.channel, send, PATIENT, NULL) < 0);
	assert_true(test_work_finish(world->a.channel, write, PATIENT, NULL) < 0);
	expect_end(world->a.channel, receive, -ECANCELED);
	expect_result(pier_channel_post_send(world->a.channel, &source, 1, NULL), -EPIPE);
	world_expect(world);
}

static void arguments_are_checked_before_posting(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_gather five[5];
	struct pier_remote target = remote_at(&world->b.area, 0, 10);

	for (int i = 0; i < 5; i++)
		five[i] = gather_at(&world->a.area, 0, 11);
	expect_result(pier_channel_post_write(world->a.channel, five, 1, &target, NULL),
		      -ENOTCONN);
	expect_ok(ends_connect(&world->a, &world->b));
	expect_result(pier_channel_post_write(world->a.channel, five, 1, &target, NULL),
		      -ERANGE);
	expect_result(pier_channel_post_send(world->a.channel, five, 5, NULL), -EINVAL);
	expect_result(pier_channel_post_send(world->a.channel, five, -1, NULL), -EINVAL);
	for (int i = 0; i < 4; i++)
		five[i].length = UINT32_MAX;
	expect_result(pier_channel_post_send(world->a.channel, five, 4, NULL), -EMSGSIZE);
	expect_result(
		test_work_finish(world->a.channel, (struct pier_work){ 1 }, -2, NULL),
		-EINVAL);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	world_expect(world);
}

#define expect_null(call, name)               \
	do {                                  \
		expect_result(call, -EINVAL); \
		test_assert_sentence(name);   \
	} while (0)

/* Calls of <pier/inline.h> do not check a list of one element. */
static void null_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_channel *channel = world->a.channel;
	struct pier_gather gather = gather_at(&world->a.area, 0, 8);
	struct pier_scatter scatter = scatter_at(&world->a.area, 0, 8);
	struct pier_remote remote = remote_at(&world->b.area, 0, 16);
	struct pier_request request = { .opcode = PIER_OP_WRITE,
					.num_sge = 1,
					.remote = &remote };
	const char *list = "sg_list is NULL";

	expect_null(pier_channel_post_send(channel, NULL, 2, NULL), list);
	expect_null(pier_channel_post_write(channel, NULL, 2, &remote, NULL), list);
	expect_null(pier_channel_post_read(channel, NULL, 2, &remote, NULL), list);
	expect_null(pier_channel_post_write(channel, NULL, 100, &remote, NULL), list);
	expect_null(pier_channel_send(channel, NULL, 1, PATIENT), list);
	expect_null(pier_channel_write(channel, NULL, 1, &remote, PATIENT), list);
	expect_null(pier_channel_read(channel, NULL, 1, &remote, PATIENT), list);
	expect_null(test_post_send_imm(channel, NULL, 1, 0, NULL), list);
	expect_null(test_post_write_imm(channel, NULL, 1, &remote, 0, NULL), list);
	expect_null(pier_channel_post_recv(channel, NULL, 1, NULL), list);
	expect_null(test_post_fetch_add(channel, NULL, &remote, 1, NULL), list);
	expect_null(test_post_compare_swap(channel, NULL, &remote, 1, 2, NULL), list);
	expect_null(pier_channel_post_request(channel, NULL, NULL), "request is NULL");
	expect_null(pier_channel_post_request(channel, &request, NULL), list);
	expect_null(pier_channel_post_batch(channel, NULL, 1, NULL), "requests is NULL");
	expect_null(pier_channel_post_batch(channel, &request, 1, NULL), list);
	expect_null(pier_channel_post_writes(channel, NULL, 1, NULL), "pairs is NULL");
	expect_null(pier_channel_post_reads(channel, NULL, 1, NULL), "pairs is NULL");
	expect_null(pier_channel_run_request(channel, NULL, PATIENT, NULL),
		    "request is NULL");
	expect_null(test_post_write_vec(channel, NULL, 1, &remote, 2, NULL),
		    "sg_list is NULL");
	expect_null(test_post_read_vec(channel, &scatter, 1, NULL, 2, NULL),
		    "remote is NULL");
	expect_null(test_channel_write_vec(channel, &gather, 1, NULL, 2, PATIENT),
		    "remote is NULL");
	expect_null(test_channel_read_vec(channel, NULL, 1, &remote, 2, PATIENT),
		    "sg_list is NULL");
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_ok(test_channel_write_vec(channel, NULL, 0, NULL, 0, PATIENT));
	world_expect(world);
}

int run_error_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(write_with_wrong_key_is_refused),
		world_case(read_with_wrong_key_is_refused),
		world_case(write_past_region_is_refused),
		world_case(read_before_region_is_refused),
		world_case(wrapping_address_is_refused),
		world_case(deregistered_key_is_refused),
		world_case(write_without_right_is_refused),
		world_case(read_without_right_is_refused),
		world_case(write_without_channel_access_is_refused),
		world_case(local_element_outside_region_fails),
		world_case(read_into_read_only_memory_fails),
		world_case(send_without_receive_fails),
		world_case(message_longer_than_receive_fails),
		world_case(peer_closing_fails_requests),
		world_case(arguments_are_checked_before_posting),
		world_case(null_is_refused),
	};

	return cmocka_run_group_tests_name("errors", cases, NULL, NULL);
}

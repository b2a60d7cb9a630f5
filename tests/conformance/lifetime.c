/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/* What keeps what, and that closing is always possible, at once and for good. */

static void keeps_parents(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct end *end = &world->a;
	struct pier_pd *pd = end->pd;

	expect_result(pier_close_device(end->device), -EBUSY);
	expect_result(pier_dealloc_pd(pd), -EBUSY);
	expect_result(pier_free_buffer(end->area.buffer), -EBUSY);
	expect_ok(pier_destroy_channel(end->channel));
	end->channel = NULL;
	expect_result(pier_dealloc_pd(pd), -EBUSY);
	expect_ok(pier_dereg_mr(end->area.mr));
	end->area.mr = NULL;
	expect_ok(pier_free_buffer(end->area.buffer));
	end->area.buffer = NULL;
	expect_result(pier_close_device(end->device), -EBUSY);
	expect_ok(pier_dealloc_pd(pd));
	end->pd = NULL;
	expect_ok(pier_close_device(end->device));
	end->device = NULL;
}

/* -EBUSY changed nothing: everything still works. */
static void works_after_a_refused_close(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 777);
	struct pier_remote target = remote_at(&world->b.area, 1, 777);

	expect_result(pier_close_device(world->a.device), -EBUSY);
	expect_result(pier_dealloc_pd(world->b.pd), -EBUSY);
	expect_result(pier_free_buffer(world->b.area.buffer), -EBUSY);
	expect_ok(pier_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, 1, &world->a.area, 0, 777);
	world_expect(world);
}

static void closes_with_work_outstanding(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 100000);
	struct pier_remote target = remote_at(&world->b.area, 1, 100000);
	struct pier_scatter receive = scatter_at(&world->b.area, 0, 100000);

	for (int i = 0; i < 8; i++) {
		expect_ok(pier_post_recv(world->b.channel, &receive, 1, NULL));
		expect_ok(pier_post_write(world->a.channel, &source, 1, &target, NULL));
	}
	expect_ok(pier_destroy_channel(world->a.channel));
	world->a.channel = NULL;
	expect_ok(pier_destroy_channel(world->b.channel));
	world->b.channel = NULL;
	/* Nothing writes any more: what is put there now stays. */
	area_shuffle(world, &world->b.area);
	area_shuffle(world, &world->a.area);
	world_expect(world);
}

/* The closed end's memory is its own again, while the peer still sends. */
static void leaves_memory_alone_after_closing(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 5000);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 5000);

	expect_ok(pier_post_recv(world->b.channel, &target, 1, NULL));
	expect_ok(pier_destroy_channel(world->b.channel));
	world->b.channel = NULL;
	assert_true(pier_send(world->a.channel, &source, 1, PATIENT) < 0);
	world_expect(world);
}

static void closes_what_never_connected(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_scatter target = scatter_at(&world->a.area, 0, 10);
	struct pier_endpoint endpoint;

	for (int i = 0; i < 16; i++)
		expect_ok(pier_post_recv(world->a.channel, &target, 1, NULL));
	/* One of the two connects; the peer goes away. */
	expect_ok(pier_channel_endpoint(world->a.channel, &endpoint));
	expect_ok(pier_connect_channel(world->b.channel, &endpoint));
	expect_ok(pier_destroy_channel(world->a.channel));
	world->a.channel = NULL;
	expect_ok(pier_destroy_channel(world->b.channel));
	world->b.channel = NULL;
	expect_ok(pier_destroy_channel(NULL));
	world_expect(world);
}

static void connects_only_once(void **state)
{
	struct world *world = world_connected(state);
	struct pier_endpoint endpoint;

	expect_ok(pier_channel_endpoint(world->b.channel, &endpoint));
	expect_result(pier_connect_channel(world->a.channel, &endpoint), -EISCONN);
	/* And is none the worse for the attempt. */
	expect_ok(pier_write(world->a.channel, NULL, 0, &(struct pier_remote){ 0 },
			     PATIENT));
}

/* Connections are made anew, one after the other, on the same devices. */
static void connects_again_and_again(void **state)
{
	struct world *world = world_connected(state);

	for (size_t round = 0; round < 20; round++) {
		struct pier_gather source = gather_at(&world->a.area, round, 500);
		struct pier_remote target = remote_at(&world->b.area, 600 * round, 500);

		expect_ok(pier_write(world->a.channel, &source, 1, &target, PATIENT));
		image_copy(&world->b.area, 600 * round, &world->a.area, round, 500);
		expect_ok(pier_destroy_channel(world->a.channel));
		world->a.channel = NULL;
		expect_ok(pier_destroy_channel(world->b.channel));
		world->b.channel = NULL;
		expect_ok(end_prepare(&world->a, NULL));
		expect_ok(end_prepare(&world->b, NULL));
		expect_ok(ends_connect(&world->a, &world->b));
	}
	world_expect(world);
}

static void refuses_impossible_attributes(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_channel_attr attr = test_attr();
	struct pier_channel *channel = NULL;
	struct pier_device_attr device;

	expect_ok(pier_query_device(world->a.device, &device));
	attr.max_send_wr = device.max_qp_wr + 1;
	expect_result(pier_prepare_channel(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("max_send_wr");
	attr = test_attr();
	attr.port = device.port_count + 1;
	expect_result(pier_prepare_channel(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("port");
	attr = test_attr();
	attr.max_send_sge = device.max_sge + 1;
	expect_result(pier_prepare_channel(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("max_send_sge");
	attr = test_attr();
	attr.gid_index = 100000;
	expect_result(pier_prepare_channel(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("gid_index");
	assert_null(channel);
}

int run_lifetime_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(keeps_parents),
		world_case(works_after_a_refused_close),
		world_case(closes_with_work_outstanding),
		world_case(leaves_memory_alone_after_closing),
		world_case(closes_what_never_connected),
		world_case(connects_only_once),
		world_case(connects_again_and_again),
		world_case(refuses_impossible_attributes),
	};

	return cmocka_run_group_tests_name("lifetime", cases, NULL, NULL);
}

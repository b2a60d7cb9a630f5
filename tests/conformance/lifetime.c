/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pier/verbs.h>

#include "cases.h"
#include "world.h"

/* Objects keep their parents. A channel can always be closed, immediately. */

static void parents_cannot_be_closed_first(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct end *end = &world->a;
	struct pier_pd *pd = end->pd;

	expect_result(pier_device_close(end->device), -EBUSY);
	expect_result(pier_pd_dealloc(pd), -EBUSY);
	expect_result(pier_buffer_free(end->area.buffer), -EBUSY);
	expect_ok(pier_channel_destroy(end->channel));
	end->channel = NULL;
	expect_result(pier_pd_dealloc(pd), -EBUSY);
	expect_ok(pier_mr_dereg(end->area.mr));
	end->area.mr = NULL;
	expect_ok(pier_buffer_free(end->area.buffer));
	end->area.buffer = NULL;
	expect_result(pier_device_close(end->device), -EBUSY);
	expect_ok(pier_pd_dealloc(pd));
	end->pd = NULL;
	expect_ok(pier_device_close(end->device));
	end->device = NULL;
}

/* A close refused with -EBUSY changes nothing. */
static void refused_close_changes_nothing(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 777);
	struct pier_remote target = remote_at(&world->b.area, 1, 777);

	expect_result(pier_device_close(world->a.device), -EBUSY);
	expect_result(pier_pd_dealloc(world->b.pd), -EBUSY);
	expect_result(pier_buffer_free(world->b.area.buffer), -EBUSY);
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, 1, &world->a.area, 0, 777);
	world_expect(world);
}

/* Regions of an imported protection domain work on channels of the original one. */
static void imported_pd_shares_keys_with_its_pd(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote target = remote_at(&world->b.area, 1, 777);
	struct area *area = &world->a.area;
	struct pier_gather source;
	struct pier_pd *pd;
	struct pier_mr *mr;

	expect_ok(pier_pd_import(pier_pd_verbs(world->a.pd), &pd));
	assert_ptr_equal(pier_pd_device(pd), world->a.device);
	expect_ok(pier_mr_reg_buffer(pd, area->buffer, 0,
				     pier_buffer_length(area->buffer),
				     PIER_ACCESS_LOCAL_READ, PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_mr_gather(mr, area_at(area, 0), 777, &source));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	expect_result(pier_pd_dealloc(pd), -EBUSY);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_pd_dealloc(pd));
	image_copy(&world->b.area, 1, area, 0, 777);
	world_expect(world);
}

static void channel_closes_with_outstanding_requests(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 100000);
	struct pier_remote target = remote_at(&world->b.area, 1, 100000);
	struct pier_scatter receive = scatter_at(&world->b.area, 0, 100000);

	for (int i = 0; i < 8; i++) {
		expect_ok(pier_channel_post_recv(world->b.channel, &receive, 1, NULL));
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target,
						  NULL));
	}
	expect_ok(pier_channel_destroy(world->a.channel));
	world->a.channel = NULL;
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	/* No DMA continues, so bytes written now stay. */
	area_shuffle(world, &world->b.area);
	area_shuffle(world, &world->a.area);
	world_expect(world);
}

/* After its channel is destroyed, an end's memory is unchanged by the peer's sends. */
static void closed_channel_receives_nothing(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 5000);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 5000);

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, NULL));
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	assert_true(pier_channel_send(world->a.channel, &source, 1, PATIENT) < 0);
	world_expect(world);
}

static void unconnected_channel_closes(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_scatter target = scatter_at(&world->a.area, 0, 10);
	struct pier_endpoint endpoint;

	for (int i = 0; i < 16; i++)
		expect_ok(pier_channel_post_recv(world->a.channel, &target, 1, NULL));
	/* One of the two connects, and its peer is destroyed. */
	expect_ok(pier_channel_endpoint(world->a.channel, &endpoint));
	expect_ok(pier_channel_connect(world->b.channel, &endpoint));
	expect_ok(pier_channel_destroy(world->a.channel));
	world->a.channel = NULL;
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	expect_ok(pier_channel_destroy(NULL));
	world_expect(world);
}

static void second_connect_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_endpoint endpoint;

	expect_ok(pier_channel_endpoint(world->b.channel, &endpoint));
	expect_result(pier_channel_connect(world->a.channel, &endpoint), -EISCONN);
	/* The refused call does not break the channel. */
	expect_ok(pier_channel_write(world->a.channel, NULL, 0,
				     &(struct pier_remote){ 0 }, PATIENT));
}

/* The region cannot be deregistered while a request of this kind uses it. */
static void expect_kept(struct pier_mr *mr, const char *kind)
{
	char words[64];

	snprintf(words, sizeof(words), "in use by a %s", kind);
	expect_result(pier_mr_dereg(mr), -EBUSY);
	test_assert_sentence(words);
}

static void expect_dereg(struct area *area)
{
	expect_ok(pier_mr_dereg(area->mr));
	area->mr = NULL;
}

static void regions_of_posted_requests_are_kept(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 3, 5000);
	struct pier_scatter target = scatter_at(&world->b.area, 11, 5000);
	struct pier_work send, receive;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_kept(world->b.area.mr, "receive");
	expect_ok(pier_channel_post_send(world->a.channel, &source, 1, &send));
	/* The region is in use until the completion has been polled. */
	expect_kept(world->a.area.mr, "send");
	expect_end(world->a.channel, send, 0);
	expect_kept(world->b.area.mr, "receive");
	expect_dereg(&world->a.area);
	expect_end(world->b.channel, receive, 0);
	expect_dereg(&world->b.area);
	image_copy(&world->b.area, 11, &world->a.area, 3, 5000);
	world_expect(world);
}

static void regions_of_writes_and_reads_are_kept(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 5000);
	struct pier_scatter target = scatter_at(&world->a.area, 9000, 5000);
	struct pier_remote remote = remote_at(&world->b.area, 1, 5000);
	struct pier_work work;

	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &remote, &work));
	expect_kept(world->a.area.mr, "write");
	expect_end(world->a.channel, work, 0);
	expect_ok(pier_channel_post_read(world->a.channel, &target, 1, &remote, &work));
	expect_kept(world->a.area.mr, "read");
	expect_end(world->a.channel, work, 0);
	expect_dereg(&world->a.area);
	/* b's device does not report the peer's requests, so its region is not in use. */
	expect_dereg(&world->b.area);
	image_copy(&world->b.area, 1, &world->a.area, 0, 5000);
	image_copy(&world->a.area, 9000, &world->b.area, 1, 5000);
	world_expect(world);
}

/* Whether PATIENT has passed since `begin`: only if something is wrong. */
static bool too_late(const struct timespec *begin)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - begin->tv_sec) * 1000 > PATIENT;
}

static void regions_are_kept_until_polled(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 100);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 100);
	struct timespec begin;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, NULL));
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	expect_kept(world->b.area.mr, "receive");
	clock_gettime(CLOCK_MONOTONIC, &begin);
	while (pier_channel_outstanding(world->b.channel) > 0) {
		assert_true(pier_channel_poll(world->b.channel) >= 0);
		assert_false(too_late(&begin));
	}
	expect_dereg(&world->b.area);
	image_copy(&world->b.area, 0, &world->a.area, 0, 100);
	world_expect(world);
}

static void destroying_channel_releases_regions(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_scatter target = scatter_at(&world->a.area, 0, 100);
	struct area other = { 0 };

	expect_ok(area_open(&other, world->a.pd, PIER_ACCESS_SHARED));
	expect_ok(pier_channel_post_recv(world->a.channel, &target, 1, NULL));
	expect_kept(world->a.area.mr, "receive");
	/* Other regions of the protection domain are not in use. */
	expect_ok(area_close(&other));
	expect_ok(pier_channel_destroy(world->a.channel));
	world->a.channel = NULL;
	expect_dereg(&world->a.area);
	world_expect(world);
}

/* Runs in a child, where cmocka does not assert. Returns the number of wrong results. */
static int use_the_parents(const struct world *world)
{
	const struct end *end = &world->a;
	struct pier_gather source;
	struct pier_remote remote;
	struct pier_result result;
	int results[] = {
		pier_mr_remote(world->b.area.mr, &remote),
		pier_mr_gather(end->area.mr, area_at(&end->area, 0), 100, &source),
		pier_channel_write(end->channel, &source, 1, &remote, PATIENT),
		pier_channel_post_write(end->channel, &source, 1, &remote, NULL),
		pier_channel_poll(end->channel),
		test_work_finish(end->channel, (struct pier_work){ 1 }, PATIENT, &result),
		pier_channel_destroy(end->channel),
		pier_mr_dereg(end->area.mr),
		pier_pd_dealloc(end->pd),
		pier_device_close(end->device),
	};
	int failures = 0;

	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		failures += results[i] != (i < 2 ? 0 : -ECHILD);
	return failures;
}

static void child_cannot_use_parents_objects(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 50, 12345);
	struct pier_remote remote = remote_at(&world->b.area, 1, 12345);
	int status = -1;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0)
		_exit(use_the_parents(world));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &remote, PATIENT));
	image_copy(&world->b.area, 1, &world->a.area, 50, 12345);
	world_expect(world);
}

/* Connect new channels of the same devices, one pair after the other. */
static void channels_connect_repeatedly(void **state)
{
	struct world *world = world_connected(state);

	for (size_t round = 0; round < 20; round++) {
		struct pier_gather source = gather_at(&world->a.area, round, 500);
		struct pier_remote target = remote_at(&world->b.area, 600 * round, 500);

		expect_ok(pier_channel_write(world->a.channel, &source, 1, &target,
					     PATIENT));
		image_copy(&world->b.area, 600 * round, &world->a.area, round, 500);
		expect_ok(pier_channel_destroy(world->a.channel));
		world->a.channel = NULL;
		expect_ok(pier_channel_destroy(world->b.channel));
		world->b.channel = NULL;
		expect_ok(end_prepare(&world->a, NULL));
		expect_ok(end_prepare(&world->b, NULL));
		expect_ok(ends_connect(&world->a, &world->b));
	}
	world_expect(world);
}

/* A device that has no RC queue pairs is good for regions, and refuses channels. */
static void channel_is_refused_with_the_devices_reason(void **state)
{
	struct world *world = world_opened(state);
	struct pier_channel *channel = NULL;
	char reason[512];
	int error = pier_device_check_channels(world->a.device);

	snprintf(reason, sizeof(reason), "%s", pier_error_message());
	expect_result(pier_channel_create(world->a.pd, NULL, &channel), error);
	if (error) {
		assert_int_equal(error, -EOPNOTSUPP);
		assert_null(channel);
		test_assert_sentence(reason);
		test_assert_sentence("queue pairs");
	}
	expect_ok(pier_channel_destroy(channel));
}

static void impossible_attributes_are_refused(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_channel_attr attr = test_attr();
	struct pier_channel *channel = NULL;
	struct pier_device_attr device;

	expect_ok(pier_device_query(world->a.device, &device, sizeof(device)));
	attr.max_send_wr = device.max_qp_wr + 1;
	expect_result(pier_channel_create(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("max_send_wr");
	attr = test_attr();
	attr.port = device.port_count + 1;
	expect_result(pier_channel_create(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("port");
	attr = test_attr();
	attr.max_send_sge = device.max_sge + 1;
	expect_result(pier_channel_create(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("max_send_sge");
	attr = test_attr();
	attr.gid_index = 100000;
	expect_result(pier_channel_create(world->a.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("gid_index");
	assert_null(channel);
}

int run_lifetime_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(parents_cannot_be_closed_first),
		world_case(refused_close_changes_nothing),
		world_case(imported_pd_shares_keys_with_its_pd),
		world_case(channel_closes_with_outstanding_requests),
		world_case(closed_channel_receives_nothing),
		world_case(unconnected_channel_closes),
		world_case(second_connect_is_refused),
		world_case(regions_of_posted_requests_are_kept),
		world_case(regions_of_writes_and_reads_are_kept),
		world_case(regions_are_kept_until_polled),
		world_case(destroying_channel_releases_regions),
		world_case(child_cannot_use_parents_objects),
		world_case(channels_connect_repeatedly),
		world_case(channel_is_refused_with_the_devices_reason),
		world_case(impossible_attributes_are_refused),
	};

	return cmocka_run_group_tests_name("lifetime", cases, NULL, NULL);
}

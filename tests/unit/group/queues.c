/* SPDX-License-Identifier: BSD-3-Clause */
/* The completion queues of groups. */
#include "tests/support/cmocka.h"
#include "group_fixture.h"

#include <errno.h>

#include "channel/cq/cq.h"
#include "group/group.h"

static struct crew *connected(void **state, uint32_t size)
{
	struct group_fixture *fixture = *state;

	expect_ok(crew_open(&fixture->crew, size, "soft0", "soft0", "host", NULL, seed));
	expect_ok(crew_exchange(&fixture->crew));
	expect_ok(crew_connect(&fixture->crew));
	return &fixture->crew;
}

static int pass_barriers(struct crew_member *member)
{
	int error = 0;

	for (int i = 0; i < 3 && !error; i++)
		error = pier_group_barrier(member->group, CREW_PATIENT);
	return error;
}

static struct pier_cq *queue_of(struct pier_group *group, uint32_t rank)
{
	struct pier_channel_attr attr;

	pier_channel_query(pier_group_channel(group, rank), &attr, sizeof(attr));
	return attr.cq;
}

/* The channels of barriers are not the caller's. */
static void queue_returns_no_channels_of_barriers(void **state)
{
	struct crew *crew = connected(state, 3);
	struct pier_group *group = crew->members[1].group;
	struct pier_cq *cq = queue_of(group, 0);
	struct pier_channel *channel = pier_group_channel(group, 2), *ready[2];
	struct pier_result result;
	struct pier_work work;

	expect_ok(crew_run(crew, pass_barriers));
	expect_result(pier_cq_poll(cq, ready, 2), 0);
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	expect_ok(pier_channel_send(pier_group_channel(crew->members[2].group, 1), NULL,
				    0, CREW_PATIENT));
	while (pier_work_poll(channel, work, &result) == 0)
		continue;
	assert_int_equal(result.error, 0);
	expect_ok(crew_run(crew, pass_barriers));
	assert_true(pier_cq_poll(cq, ready, 2) <= 1);
}

static void queue_belongs_to_the_group(void **state)
{
	struct crew *crew = connected(state, 2);
	struct crew_member *member = &crew->members[0];
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;

	pier_channel_attr_init(&attr);
	attr.cq = queue_of(member->group, 1);
	assert_ptr_equal(attr.cq, queue_of(member->group, 0));
	expect_result(pier_channel_create(member->pd, &attr, &channel), -EBUSY);
	test_assert_sentence("it belongs to the group of 2, rank 0, on soft0");
	expect_result(pier_cq_destroy(attr.cq), -EBUSY);
	assert_null(channel);
}

static struct pier_pd *open_pd(void)
{
	struct pier_device *device;
	struct pier_pd *pd;

	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	return pd;
}

static void close_pd(struct pier_pd *pd)
{
	struct pier_device *device = pier_pd_device(pd);

	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

/* Each has room for the channels of two of the five ranks: 40 entries for a rank. */
static void device_with_short_queues_gets_several(void **state)
{
	struct pier_pd *pd = open_pd();
	struct pier_group *group = NULL;
	size_t fds = test_count_fds();

	(void)state;
	pd->device->limits.max_cqe = 39;
	expect_result(pier_group_create(pd, 0, 5, NULL, &group), -EINVAL);
	test_assert_sentence("a rank needs a completion queue of 40; the device has 39");
	pd->device->limits.max_cqe = 100;
	expect_ok(pier_group_create(pd, 0, 5, NULL, &group));
	assert_int_equal(group->cq_count, 3);
	assert_int_equal(test_count_fds(), fds + 3);
	assert_ptr_equal(queue_of(group, 0), queue_of(group, 1));
	assert_ptr_not_equal(queue_of(group, 1), queue_of(group, 2));
	expect_ok(pier_group_destroy(group));
	close_pd(pd);
}

/* The receives of the shared queue are for requests, and counted once. */
static void channels_of_barriers_have_their_own_receives(void **state)
{
	struct pier_pd *pd = open_pd();
	struct pier_channel_attr channel;
	struct pier_group_attr attr;
	struct pier_srq_attr srq_attr;
	struct pier_group *group = NULL;
	struct pier_srq *srq;

	(void)state;
	pier_srq_attr_init(&srq_attr);
	srq_attr.max_wr = 1000;
	expect_ok(pier_srq_create(pd, &srq_attr, &srq));
	pier_channel_attr_init(&channel);
	channel.srq = srq;
	pier_group_attr_init(&attr);
	attr.channel = &channel;
	expect_ok(pier_group_create(pd, 0, 4, &attr, &group));
	assert_ptr_equal(group->members[1].channel->attr.srq, srq);
	assert_null(group->members[1].control->attr.srq);
	assert_int_equal(queue_of(group, 0)->completions.cq->cqe, 1000 + 4 * (16 + 8));
	expect_ok(pier_group_destroy(group));
	expect_ok(pier_srq_destroy(srq));
	close_pd(pd);
}

static void caller_can_give_the_queue(void **state)
{
	struct pier_pd *pd = open_pd();
	struct pier_channel_attr channel;
	struct pier_group_attr attr;
	struct pier_group *group = NULL;
	struct pier_cq *cq;
	uint32_t depth;

	(void)state;
	expect_ok(pier_cq_create(pd, NULL, &cq));
	depth = pier_cq_room(cq);
	pier_channel_attr_init(&channel);
	channel.cq = cq;
	pier_group_attr_init(&attr);
	attr.channel = &channel;
	expect_ok(pier_group_create(pd, 0, 4, &attr, &group));
	assert_ptr_equal(queue_of(group, 3), cq);
	assert_int_equal(pier_cq_room(cq), depth - 4 * 32 - 3 * 8);
	assert_int_equal(pier_object_count(PIER_OBJECT_CQ), 1);
	expect_ok(pier_group_destroy(group));
	assert_int_equal(pier_cq_room(cq), depth);
	expect_result(pier_group_create(pd, 0, 40, &attr, &group), -ENOSPC);
	test_assert_sentence("making rank 0 of a group of 40");
	assert_int_equal(pier_cq_room(cq), depth);
	expect_ok(pier_cq_destroy(cq));
	close_pd(pd);
}

#define fixture_test(body) cmocka_unit_test_setup_teardown(body, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(queue_returns_no_channels_of_barriers),
		fixture_test(queue_belongs_to_the_group),
		fixture_test(device_with_short_queues_gets_several),
		fixture_test(channels_of_barriers_have_their_own_receives),
		fixture_test(caller_can_give_the_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

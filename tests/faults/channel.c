/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include <pier/recovery.h>
#include <pier/verbs.h>

#include "../conformance/world.h"
#include "../support/manual_clock.h"

/* Cases that need several faults or several requests. */

enum {
	LENGTH = 1000,
	SHORTLY_MS = 40,
};

static struct world *behind(void **state, const char *plan)
{
	static char name[256];

	snprintf(name, sizeof(name), "fault:%s:soft0", plan);
	test_device = name;
	test_peer_device = "soft0";
	test_backend = "host";
	return world_connected(state);
}

static int post_write(struct world *world, size_t offset, struct pier_work *ret_work)
{
	struct pier_gather source = gather_at(&world->a.area, offset, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, offset, LENGTH);
	int error = pier_channel_post_write(world->a.channel, &source, 1, &target,
					    ret_work);

	if (!error)
		image_copy(&world->b.area, offset, &world->a.area, offset, LENGTH);
	return error;
}

/*
 * Posts a write with immediate data. The peer's receive shows that it arrived, even if
 * this end has given up by then.
 */
static int post_heard_write(struct world *world, size_t offset,
			    struct pier_work *ret_work, struct pier_work *ret_heard)
{
	struct pier_gather source = gather_at(&world->a.area, offset, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, offset, LENGTH);

	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, ret_heard));
	image_copy(&world->b.area, offset, &world->a.area, offset, LENGTH);
	return test_post_write_imm(world->a.channel, &source, 1, &target, 7, ret_work);
}

/* Neither a timeout nor later failures replace the first cause. */
static void keeps_the_first_cause(void **state)
{
	struct world *world = behind(state, "wc@1=REM_OP_ERR,lost@2+");
	struct pier_work first, second, heard[2];
	struct pier_result result;

	expect_ok(post_heard_write(world, 0, &first, &heard[0]));
	expect_ok(post_heard_write(world, LENGTH, &second, &heard[1]));
	expect_end(world->a.channel, first, -EREMOTEIO);
	expect_result(test_work_finish(world->a.channel, second, SHORTLY_MS, &result),
		      -ETIMEDOUT);
	assert_int_equal(result.error, -ECANCELED);
	expect_result(post_write(world, 0, NULL), -EPIPE);
	test_assert_sentence("REM_OP_ERR");
	expect_end(world->b.channel, heard[0], 0);
	expect_end(world->b.channel, heard[1], 0);
	world_expect(world);
}

/* A completion behind the lost one does not complete it. */
static void makes_up_what_was_lost(void **state)
{
	struct world *world = behind(state, "lost@1");
	struct pier_result result = { .error = -1 };
	struct pier_work first, second;

	expect_ok(post_write(world, 0, &first));
	expect_ok(post_write(world, LENGTH, &second));
	expect_end(world->a.channel, second, 0);
	expect_result(test_work_finish(world->a.channel, first, SHORTLY_MS, &result),
		      -ETIMEDOUT);
	assert_int_equal(result.error, -ECANCELED);
	world_expect(world);
}

/* A request that the device refused takes no entry in a queue. */
static void gives_back_what_is_refused(void **state)
{
	struct world *world = behind(state, "post_send@1+=ENOSPC,post_recv@1+=ENOSPC");

	for (int i = 0; i < 100; i++) {
		expect_result(post_write(world, 0, NULL), -ENOSPC);
		expect_result(pier_channel_post_recv(world->a.channel, NULL, 0, NULL),
			      -ENOSPC);
	}
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	world_expect(world);
}

/*
 * The queue pair is stopped by ERR. If the device flushes its requests, the flush is
 * awaited.
 */
static void stops_in_order(void **state)
{
	struct world *world = behind(state, "late@1=300ms");
	struct pier_work work, receive, heard;

	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	expect_ok(post_heard_write(world, 0, &work, &heard));
	expect_result(test_work_finish(world->a.channel, work, SHORTLY_MS, NULL),
		      -ETIMEDOUT);
	assert_int_equal(pier_channel_verbs_qp(world->a.channel)->state, IBV_QPS_ERR);
	expect_end(world->a.channel, receive, -ECANCELED);
	expect_end(world->b.channel, heard, 0);
	world_expect(world);
}

/* If a queue pair cannot be moved to ERR, it is reset, and has no requests left. */
static void stops_where_err_is_refused(void **state)
{
	struct world *world = behind(state, "modify_qp@4=EIO,dead@1=3600s");
	struct pier_work work, receive;

	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	expect_ok(post_write(world, 0, &work));
	expect_result(test_work_finish(world->a.channel, work, SHORTLY_MS, NULL),
		      -ETIMEDOUT);
	assert_int_equal(pier_channel_verbs_qp(world->a.channel)->state, IBV_QPS_RESET);
	expect_end(world->a.channel, receive, -ECANCELED);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
}

/* The channel keeps its completion queue, which no longer works. */
static void is_not_reset_after_an_overrun(void **state)
{
	struct world *world = behind(state, "overrun@1");
	struct pier_channel *channel = world->a.channel;
	struct pier_endpoint peer;
	struct pier_work work;

	expect_ok(pier_channel_endpoint(world->b.channel, &peer));
	expect_ok(post_write(world, 0, &work));
	expect_result(test_work_finish(channel, work, PATIENT, NULL), -EIO);
	for (int i = 0; i < 2; i++) {
		expect_result(pier_channel_reset(channel), -EIO);
		test_assert_sentence("poll the completion queue");
		expect_result(pier_channel_connect(channel, &peer), -EISCONN);
		expect_result(pier_channel_post_recv(channel, NULL, 0, NULL), -EPIPE);
		assert_int_equal(pier_channel_outstanding(channel), 0);
	}
}

static void is_reset_after_a_poll_that_failed(void **state)
{
	struct world *world = behind(state, "poll_cq@1=EIO");
	struct pier_work work;

	expect_ok(post_write(world, 0, &work));
	expect_result(test_work_finish(world->a.channel, work, PATIENT, NULL), -EIO);
	expect_ok(pier_channel_reset(world->a.channel));
	expect_ok(pier_channel_reset(world->b.channel));
	expect_ok(ends_connect(&world->a, &world->b));
	expect_ok(post_write(world, LENGTH, &work));
	expect_end(world->a.channel, work, 0);
}

/* The completion never arrives, but the device has said why. */
static void ends_the_wait_when_the_device_fails(void **state)
{
	struct world *world = behind(state, "lost@1,async@1=DEVICE_FATAL");
	struct pier_work work, heard;

	expect_ok(post_heard_write(world, 0, &work, &heard));
	expect_result(test_work_finish(world->a.channel, work, PATIENT, NULL), -EIO);
	test_assert_sentence("fault:soft0 has reported IBV_EVENT_DEVICE_FATAL");
	expect_result(post_write(world, 0, NULL), -EPIPE);
	test_assert_sentence("the channel was cancelled");
	expect_end(world->b.channel, heard, 0);
	world_expect(world);
}

static void names_the_event_of_a_failure(void **state)
{
	static const struct {
		const char *plan, *sentence;
	} cases[] = {
		{ "wc@1=RETRY_EXC_ERR,async@1=PORT_ERR", "port 1 is down: the device has "
							 "reported IBV_EVENT_PORT_ERR" },
		{ "wc@1=FATAL_ERR,async@1=QP_FATAL",
		  "the device has reported IBV_EVENT_QP_FATAL for it" },
		{ "wc@1=FATAL_ERR,async@1=CQ_ERR",
		  "the device has reported IBV_EVENT_CQ_ERR for it" },
		{ "wc@1=FATAL_ERR,async@1=DEVICE_FATAL",
		  "has reported IBV_EVENT_DEVICE_FATAL: close" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct world *world = behind(state, cases[i].plan);
		struct pier_gather source = gather_at(&world->a.area, 0, LENGTH);
		struct pier_remote target = remote_at(&world->b.area, 0, LENGTH);

		/* The event may arrive before the completion, and ends the wait then. */
		assert_true(pier_channel_write(world->a.channel, &source, 1, &target,
					       PATIENT) < 0);
		test_assert_sentence(cases[i].sentence);
		expect_result(post_write(world, 0, NULL), -EPIPE);
		test_assert_sentence(cases[i].sentence);
		world_teardown(state);
		world_setup(state);
	}
}

/*
 * The sentence names the region that the device could not access, and no cache hands it
 * out again: its memory may have been taken away.
 */
static void blames_regions_of_this_end(void **state)
{
	struct world *world = behind(state, "wc@1=LOC_PROT_ERR");
	struct pier_mr_range range = pier_mr_range_buffer(world->a.area.buffer, LENGTH,
							  LENGTH);
	struct pier_remote target = remote_at(&world->b.area, LENGTH, LENGTH);
	struct pier_mr_cache_stats stats;
	struct pier_mr_cache *cache = NULL;
	struct pier_mr *mr[3] = { NULL };
	struct pier_gather source;
	char name[100];

	expect_ok(pier_mr_cache_create(world->a.pd, NULL, &cache));
	expect_ok(pier_mr_cache_get(cache, &range, 0, &mr[0]));
	expect_ok(pier_mr_cache_get(cache, &range, 0, &mr[1]));
	assert_ptr_equal(mr[0], mr[1]);
	expect_ok(pier_mr_gather(mr[0], pier_mr_iova(mr[0]), LENGTH, &source));
	expect_result(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT),
		      -EFAULT);
	image_copy(&world->b.area, LENGTH, &world->a.area, LENGTH, LENGTH);
	snprintf(name, sizeof(name),
		 "; it used the region of %" PRIu64 " bytes at %#" PRIx64,
		 pier_mr_length(mr[0]), pier_mr_iova(mr[0]));
	test_assert_sentence(name);
	expect_result(post_write(world, 0, NULL), -EPIPE);
	test_assert_sentence(name);

	expect_ok(pier_mr_cache_get(cache, &range, 0, &mr[2]));
	assert_ptr_not_equal(mr[2], mr[0]);
	pier_mr_cache_query_stats(cache, &stats, sizeof(stats));
	assert_int_equal(stats.invalidations, 1);
	for (size_t i = 0; i < 3; i++)
		expect_ok(pier_mr_cache_put(cache, mr[i]));
	expect_ok(pier_mr_cache_destroy(cache));
	world_expect(world);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		world_case(keeps_the_first_cause),
		world_case(makes_up_what_was_lost),
		world_case(gives_back_what_is_refused),
		world_case(stops_in_order),
		world_case(stops_where_err_is_refused),
		world_case(is_not_reset_after_an_overrun),
		world_case(is_reset_after_a_poll_that_failed),
		world_case(ends_the_wait_when_the_device_fails),
		world_case(names_the_event_of_a_failure),
		world_case(blames_regions_of_this_end),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("channels behind plans", cases, NULL, NULL);
}

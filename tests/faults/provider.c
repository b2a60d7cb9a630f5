/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include <pier/verbs.h>

#include "../conformance/world.h"
#include "../support/manual_clock.h"
#include "provider/fault/cq.h"
#include "provider/fault/fault.h"
#include "core/deadline.h"

/* The effect of fault plans on completions, requests and events. */

enum {
	LENGTH = 1000,
	LATE_MS = 60,
};

/* Connects both ends. The first end's device has a fault plan. */
static struct world *behind_with(void **state, const char *plan,
				 const struct pier_channel_attr *attr)
{
	static char name[256];

	snprintf(name, sizeof(name), "fault:%s:soft0", plan);
	test_device = name;
	test_peer_device = "soft0";
	test_backend = "host";
	return world_connected_with(state, attr);
}

static struct world *behind(void **state, const char *plan)
{
	return behind_with(state, plan, NULL);
}

static struct pier_work post_write(struct world *world, size_t offset)
{
	struct pier_gather source = gather_at(&world->a.area, offset, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, offset, LENGTH);
	struct pier_work work;

	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target, &work));
	image_copy(&world->b.area, offset, &world->a.area, offset, LENGTH);
	return work;
}

static void is_known_by_name(void **state)
{
	struct world *world = behind(state, "seed=5,reg@3=ENOMEM");
	struct pier_device_attr attr;
	struct pier_device *again;
	struct pier_mr *mr;
	uint8_t bytes[64];

	assert_string_equal(pier_device_name(world->a.device), "fault:soft0");
	expect_ok(pier_device_query(world->a.device, &attr, sizeof(attr)));
	assert_string_equal(attr.provider, "fault");
	assert_true(attr.memfd_as_dmabuf);
	expect_ok(pier_device_open(pier_device_name(world->a.device), &again));
	expect_ok(pier_device_close(again));
	/* The area's registration was the first. */
	expect_ok(pier_mr_reg(world->a.pd, bytes, 64, PIER_ACCESS_SHARED, &mr));
	expect_ok(pier_mr_dereg(mr));
	expect_result(pier_mr_reg(world->a.pd, bytes, 64, PIER_ACCESS_SHARED, &mr),
		      -ENOMEM);
	test_assert_sentence("reg@3=ENOMEM strikes reg_mr (seed=5)");
}

static void is_reached_by_the_environment(void **state)
{
	struct world *world = world_empty(state);

	setenv("PIER_DEVICE", "fault:alloc_pd@1=EMFILE:soft0", 1);
	expect_ok(pier_device_open(NULL, &world->a.device));
	unsetenv("PIER_DEVICE");
	expect_result(pier_pd_alloc(world->a.device, &world->a.pd), -EMFILE);
	expect_ok(pier_pd_alloc(world->a.device, &world->a.pd));
}

static void refuses_bad_names(void **state)
{
	struct world *world = world_empty(state);

	expect_result(pier_device_open("fault:what@1=EIO:soft0", &world->a.device),
		      -EINVAL);
	test_assert_sentence("what@1=EIO");
	expect_result(pier_device_open("fault:reg@1=EIO:soft9", &world->a.device),
		      -ENODEV);
	test_assert_sentence("soft9");
	expect_result(pier_device_open("fault:", &world->a.device), -ENODEV);
	expect_result(pier_device_open("fault", &world->a.device), -ENODEV);
	expect_result(
		pier_device_open("fault:open_device@1=EPERM:soft0", &world->a.device),
		-EPERM);
	assert_null(world->a.device);
}

static void closes_again_after_a_failure(void **state)
{
	struct world *world = world_empty(state);

	expect_ok(pier_device_open("fault:close_device@1=EIO:soft0", &world->a.device));
	expect_result(pier_device_close(world->a.device), -EIO);
	test_assert_sentence("close_device@1=EIO");
	assert_string_equal(pier_device_name(world->a.device), "fault:soft0");
}

static void fails_a_completion(void **state)
{
	struct world *world = behind(state, "wc@2=REM_OP_ERR");
	struct pier_work first, second, third, receive;
	struct pier_result result;

	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	first = post_write(world, 0);
	second = post_write(world, LENGTH + 1);
	third = post_write(world, 2 * (LENGTH + 1));
	expect_end(world->a.channel, first, 0);
	result = expect_end(world->a.channel, second, -EREMOTEIO);
	assert_int_equal(result.status, IBV_WC_REM_OP_ERR);
	assert_int_equal(result.vendor_error, 0xfa17);
	test_assert_sentence("0xfa17");
	/*
	 * A request that was executed still counts as flushed, and the other queue is
	 * flushed too.
	 */
	result = expect_end(world->a.channel, third, -ECANCELED);
	test_assert_sentence("IBV_WC_REM_OP_ERR");
	expect_end(world->a.channel, receive, -ECANCELED);
	expect_result(pier_channel_post_recv(world->a.channel, NULL, 0, NULL), -EPIPE);
}

static void is_late_by_time(void **state)
{
	struct world *world = behind(state, "late@1=60ms");
	struct pier_work first, second;
	int64_t start = pier_now();

	first = post_write(world, 0);
	second = post_write(world, LENGTH + 1);
	/*
	 * The thread sleeps, and the fd wakes it. The second completion does not
	 * overtake.
	 */
	expect_end(world->a.channel, second, 0);
	assert_true(pier_now() - start >= LATE_MS * INT64_C(1000000));
	expect_end(world->a.channel, first, 0);
	assert_true(pier_now() - start < PATIENT * INT64_C(1000000));
	world_expect(world);
}

static void is_late_by_polls(void **state)
{
	struct world *world = behind(state, "late@1=50polls");
	struct pier_work work = post_write(world, 0);
	struct pier_result result;
	int polls = 0;

	while (pier_work_poll(world->a.channel, work, &result) == 0)
		polls++;
	assert_true(polls >= 50);
	assert_int_equal(result.error, 0);
}

/*
 * A sleeping thread does not poll. It is woken repeatedly until it has polled often
 * enough.
 */
static void is_late_by_polls_for_a_sleeper(void **state)
{
	struct world *world = behind(state, "late@1=400polls");

	expect_end(world->a.channel, post_write(world, 0), 0);
	world_expect(world);
}

/* A late completion delays only its own queue pair. */
static void overtakes_on_another_channel(void **state)
{
	struct world *world = behind(state, "late@1=3600s");
	struct pollfd fd = { .fd = pier_channel_fd(world->a.channel), .events = POLLIN };
	struct end other = { .device = world->a.device, .pd = world->a.pd };
	struct end peer = { .device = world->b.device, .pd = world->b.pd };
	struct pier_gather source = gather_at(&world->a.area, LENGTH, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, LENGTH, LENGTH);
	struct pier_result result;
	struct pier_work late;

	expect_ok(pier_channel_arm(world->a.channel));
	late = post_write(world, 0);
	assert_int_equal(poll(&fd, 1, PATIENT), 1);
	expect_result(pier_work_poll(world->a.channel, late, &result), 0);
	expect_ok(end_prepare(&other, NULL));
	expect_ok(end_prepare(&peer, NULL));
	expect_ok(ends_connect(&other, &peer));
	expect_ok(pier_channel_write(other.channel, &source, 1, &target, PATIENT));
	image_copy(&world->b.area, LENGTH, &world->a.area, LENGTH, LENGTH);
	expect_result(pier_work_poll(world->a.channel, late, &result), 0);
	expect_ok(pier_channel_destroy(other.channel));
	expect_ok(pier_channel_destroy(peer.channel));
	world_expect(world);
}

static void loses_completions(void **state)
{
	struct world *world = behind(state, "lost@2");
	struct pier_result result;
	struct pier_work lost;

	expect_end(world->a.channel, post_write(world, 0), 0);
	lost = post_write(world, LENGTH + 1);
	expect_end(world->a.channel, post_write(world, 2 * (LENGTH + 1)), 0);
	expect_result(pier_work_poll(world->a.channel, lost, &result), 0);
	world_expect(world);
}

static void overruns(void **state)
{
	struct world *world = behind(state, "overrun@2");
	struct pier_result result;
	struct pier_work work;

	expect_end(world->a.channel, post_write(world, 0), 0);
	work = post_write(world, LENGTH + 1);
	expect_result(test_work_finish(world->a.channel, work, PATIENT, &result), -EIO);
	assert_int_equal(result.error, -ECANCELED);
	expect_result(pier_channel_post_recv(world->a.channel, NULL, 0, NULL), -EPIPE);
}

static void breaks_queue_pairs_by_an_overrun(void **state)
{
	struct world *world = behind(state, "overrun@1");
	struct pier_work work = post_write(world, 0);
	struct pier_result result;
	int done = 0;

	while (done == 0)
		done = pier_work_poll(world->a.channel, work, &result);
	expect_result(done, -EIO);
	assert_int_equal(pier_channel_verbs_qp(world->a.channel)->state, IBV_QPS_ERR);
}

/* Completions withheld for a dead peer are flushed if the channel is stopped earlier. */
static void flushes_what_is_withheld(void **state)
{
	struct world *world = behind(state, "dead@1=3600s");
	struct pier_gather source = gather_at(&world->a.area, 0, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, 0, LENGTH);
	struct pier_work work[2];
	struct pier_result result;

	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target,
						  &work[i]));
	expect_result(test_work_finish(world->a.channel, work[0], BRIEF, &result),
		      -ETIMEDOUT);
	assert_int_equal(result.error, -ECANCELED);
	/* The state is ERR, not RESET, which gives no completions. */
	assert_int_equal(pier_channel_verbs_qp(world->a.channel)->state, IBV_QPS_ERR);
	expect_end(world->a.channel, work[1], -ECANCELED);
	world_expect(world);
}

/* A reset discards the withheld completions of a queue pair. */
static void forgets_at_a_reset(void **state)
{
	struct world *world = behind(state, "late@1=3600s");
	struct pier_work work = post_write(world, 0);
	struct pier_result result;

	expect_result(test_work_finish(world->a.channel, work, BRIEF, &result),
		      -ETIMEDOUT);
	assert_int_equal(pier_channel_verbs_qp(world->a.channel)->state, IBV_QPS_RESET);
	assert_int_equal(fault_cq(pier_channel_verbs_cq(world->a.channel))->count, 0);
	world_expect(world);
}

static struct pier_work post_unsent_write(struct world *world)
{
	struct pier_gather source = gather_at(&world->a.area, LENGTH, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, LENGTH, LENGTH);
	struct pier_work work;

	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target, &work));
	return work;
}

static void lets_the_peer_die(void **state)
{
	struct world *world = behind(state, "dead@2=60ms");
	int64_t start;
	struct pier_work work[3], receive;

	expect_ok(pier_channel_post_recv(world->a.channel, NULL, 0, &receive));
	work[0] = post_write(world, 0);
	start = pier_now();
	for (int i = 1; i < 3; i++)
		work[i] = post_unsent_write(world);
	expect_end(world->a.channel, work[0], 0);
	expect_end(world->a.channel, work[1], -EHOSTUNREACH);
	assert_true(pier_now() - start >= LATE_MS * INT64_C(1000000));
	expect_end(world->a.channel, work[2], -ECANCELED);
	expect_end(world->a.channel, receive, -ECANCELED);
	/* No byte was sent. */
	world_expect(world);
}

/* A slow peer answers the requests sent before it died, however late. */
static void lets_the_peer_answer_first(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct world *world;
	struct pier_work send, late, receive;
	int64_t dead;

	attr.rnr_retry_count = 7;
	attr.min_rnr_timer = 1;
	world = behind_with(state, "dead@2=20ms", &attr);
	expect_ok(pier_channel_post_send(world->a.channel, NULL, 0, &send));
	late = post_unsent_write(world);
	dead = pier_deadline(BRIEF);
	while (pier_now() < dead)
		expect_result(pier_work_poll(world->a.channel, send, NULL), 0);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 2);
	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &receive));
	expect_end(world->a.channel, send, 0);
	expect_end(world->a.channel, late, -EHOSTUNREACH);
	expect_end(world->b.channel, receive, 0);
	world_expect(world);
}

static void refuses_one_of_a_list(void **state)
{
	struct world *world = behind(state, "post_send@2=ENOSPC");
	struct ibv_qp *qp = pier_channel_verbs_qp(world->a.channel);
	struct ibv_cq *cq = pier_channel_verbs_cq(world->a.channel);
	struct ibv_send_wr list[3] = { { .wr_id = 1, .next = &list[1] },
				       { .wr_id = 2, .next = &list[2] },
				       { .wr_id = 3 } };
	struct ibv_send_wr *bad = NULL;
	struct ibv_wc wc;

	for (int i = 0; i < 3; i++) {
		list[i].opcode = IBV_WR_RDMA_WRITE;
		list[i].send_flags = IBV_SEND_SIGNALED;
	}
	assert_ptr_equal(qp->context, pier_device_verbs(world->a.device));
	assert_ptr_equal(qp->send_cq, cq);
	expect_result(ibv_post_send(qp, list, &bad), ENOSPC);
	assert_ptr_equal(bad, &list[1]);
	assert_ptr_equal(list[0].next, &list[1]);
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		continue;
	assert_int_equal(wc.wr_id, 1);
	assert_int_equal(wc.qp_num, qp->qp_num);
	for (int i = 0; i < 100; i++)
		assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
}

/* The fd's timer does not know the library's clock. */
static void gives_events_late(void **state)
{
	struct world *world = behind(state, "event@1=60ms");
	struct pollfd fd = { .fd = pier_channel_fd(world->a.channel), .events = POLLIN };
	int64_t start = pier_device_now();

	expect_ok(pier_channel_arm(world->a.channel));
	post_write(world, 0);
	assert_int_equal(poll(&fd, 1, PATIENT), 1);
	assert_true(pier_device_now() - start >= LATE_MS * INT64_C(1000000));
	/* The timer may expire before the device is done. */
	while (pier_channel_arm(world->a.channel) == 0)
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
	post_write(world, LENGTH + 1);
	assert_int_equal(poll(&fd, 1, PATIENT), 1);
	assert_int_equal(pier_channel_arm(world->a.channel), 1);
	world_expect(world);
}

/* Also for completions from before the device was armed. */
static void gives_an_event_of_before(void **state)
{
	struct world *world = behind(state, "event@1=60ms");
	struct ibv_cq *cq = pier_channel_verbs_cq(world->a.channel), *found = NULL;
	struct pollfd fd = { .fd = pier_channel_fd(world->a.channel), .events = POLLIN };
	void *context = NULL;

	expect_ok(pier_channel_arm(world->a.channel));
	post_write(world, 0);
	/* The timer may expire before the device is done. */
	do
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
	while (pier_fault_get_cq_event(cq->channel, &found, &context));
	assert_ptr_equal(found, cq);
	assert_ptr_equal(context, cq->cq_context);
	ibv_ack_cq_events(cq, 1);
	assert_int_equal(poll(&fd, 1, 0), 0);
	assert_int_equal(pier_fault_get_cq_event(cq->channel, &found, &context), -1);
	assert_int_equal(errno, EAGAIN);
	world_expect(world);
}

static void fails_polls(void **state)
{
	struct world *world = behind(state, "poll_cq@1=EIO");
	struct pier_work work = post_write(world, 0);
	struct pier_result result;

	expect_result(pier_work_poll(world->a.channel, work, &result), -EIO);
	expect_end(world->a.channel, work, 0);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		world_case(is_known_by_name),
		world_case(is_reached_by_the_environment),
		world_case(refuses_bad_names),
		world_case(closes_again_after_a_failure),
		world_case(fails_a_completion),
		world_case(is_late_by_time),
		world_case(is_late_by_polls),
		world_case(is_late_by_polls_for_a_sleeper),
		world_case(overtakes_on_another_channel),
		world_case(loses_completions),
		world_case(overruns),
		world_case(breaks_queue_pairs_by_an_overrun),
		world_case(flushes_what_is_withheld),
		world_case(forgets_at_a_reset),
		world_case(lets_the_peer_die),
		world_case(lets_the_peer_answer_first),
		world_case(refuses_one_of_a_list),
		world_case(gives_events_late),
		world_case(gives_an_event_of_before),
		world_case(fails_polls),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("plans of faults", cases, NULL, NULL);
}

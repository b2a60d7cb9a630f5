/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include <pier/recovery.h>
#include <pier/verbs.h>

#include "counter_fixture.h"
#include "tests/support/manual_clock.h"

/* The verbs calls that recover a channel, and the state that the channel keeps. */

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.mtu = 1024,
	.generation = 7,
};

static struct pier_channel_attr small_attr(void)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = 4;
	attr.max_recv_wr = 3;
	attr.max_send_sge = attr.max_recv_sge = 2;
	return attr;
}

static struct pier_channel *prepared(void)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	expect_ok(pier_channel_create(fake_reset(), &attr, &channel));
	return channel;
}

static struct pier_channel *connected(void)
{
	struct pier_channel *channel = prepared();

	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct pier_endpoint endpoint_of(struct pier_channel *channel)
{
	struct pier_endpoint endpoint;

	expect_ok(pier_channel_endpoint(channel, &endpoint));
	return endpoint;
}

static void close_channel(struct pier_channel *channel)
{
	fake.fail_call = 0;
	expect_ok(pier_channel_destroy(channel));
	assert_int_equal(fake.pd.children, 0);
	assert_int_equal(fake.qps + fake.cqs + fake.channels, 0);
}

/* Connect to a peer that was reset too, and move some bytes. */
static void expect_usable(struct pier_channel *channel, uint32_t generation)
{
	struct pier_endpoint newer = peer;
	struct pier_work receive, send;
	struct pier_result result;

	newer.generation = generation;
	assert_int_equal(pier_channel_error(channel, NULL, 0), 0);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -ENOTCONN);
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &receive));
	expect_ok(pier_channel_connect(channel, &newer));
	expect_ok(pier_channel_post_send(channel, NULL, 0, &send));
	fake_complete(send.id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	fake_complete(receive.id, IBV_WC_SUCCESS, IBV_WC_RECV, 5);
	expect_ok(test_work_wait(channel, send, 1000, NULL));
	expect_ok(test_work_wait(channel, receive, 1000, &result));
	assert_int_equal(result.byte_length, 5);
}

/* A post, its failure, and two requests behind it. */
static void break_channel(struct pier_channel *channel)
{
	struct pier_work work[3];

	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, &work[i]));
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work[2]));
	/* The receive queue may report first. */
	fake_complete(work[2].id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
	fake_complete(work[0].id, IBV_WC_REM_ACCESS_ERR, IBV_WC_SEND, 0);
	fake_complete(work[1].id, IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND, 0);
	assert_int_equal(pier_channel_poll(channel), 3);
	for (int i = 0; i < 3; i++)
		expect_ok(pier_work_drop(channel, work[i]));
}

static void reports_the_first_cause(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_channel_failure failure;

	(void)state;
	memset(&failure, 0xa5, sizeof(failure));
	assert_int_equal(pier_channel_error(channel, &failure, sizeof(failure)), 0);
	assert_int_equal((uint32_t)failure.error_class, 0xa5a5a5a5);
	break_channel(channel);
	assert_int_equal(pier_channel_error(channel, &failure, sizeof(failure)), -EACCES);
	assert_int_equal(failure.error_class, PIER_CLASS_REFUSED);
	assert_int_equal(failure.first.error, -EACCES);
	assert_int_equal(failure.first.status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(failure.first.vendor_error, 0x77);
	assert_int_equal(failure.first.opcode, PIER_OP_SEND);
	assert_int_equal(failure.flushed, 2);
	assert_non_null(strstr(failure.sentence, "wrong rkey"));
	assert_non_null(strstr(failure.sentence, "; check "));
	close_channel(channel);
}

/* Only flushes: the first of them is the cause, not a later one. */
static void counts_flushes_without_a_cause(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_channel_failure failure;
	struct pier_result result;
	struct pier_work work[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		expect_ok(pier_channel_post_recv(channel, NULL, 0, &work[i]));
		fake_complete(work[i].id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
	}
	assert_int_equal(pier_channel_poll(channel), 3);
	assert_int_equal(pier_channel_error(channel, &failure, sizeof(failure)),
			 -ECANCELED);
	assert_int_equal(failure.error_class, PIER_CLASS_FLUSHED);
	assert_int_equal(failure.flushed, 2);
	/* The first error does not send its reader to look for the first error. */
	assert_null(strstr(failure.sentence, "first error"));
	assert_non_null(strstr(failure.sentence, "peer's channel"));
	expect_result(pier_work_poll(channel, work[1], &result), 1);
	assert_null(strstr(pier_error_message(), "first error"));
	close_channel(channel);
}

static void reports_that_it_stopped_by_itself(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_channel_failure failure;

	(void)state;
	expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
	expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
	expect_result(pier_channel_send(channel, NULL, 0, 0), -ETIMEDOUT);
	assert_int_equal(pier_channel_error(channel, &failure, sizeof(failure)),
			 -ETIMEDOUT);
	assert_int_equal(failure.error_class, PIER_CLASS_STOPPED);
	assert_int_equal(failure.first.error, -ETIMEDOUT);
	assert_int_equal(failure.first.status, 0);
	assert_int_equal(failure.flushed, 3);
	assert_non_null(strstr(failure.sentence, "within 0 ms"));
	close_channel(channel);
}

static void works_again_after_an_error(void **state)
{
	static const enum ibv_qp_state way[] = { IBV_QPS_ERR, IBV_QPS_RESET,
						 IBV_QPS_INIT };
	struct pier_channel *channel = connected();
	struct pier_endpoint before = endpoint_of(channel), after;
	int fd = pier_channel_fd(channel);
	struct ibv_qp_attr init = fake.init;

	(void)state;
	break_channel(channel);
	fake.changes = 0;
	fake.sq_psn = before.psn;
	expect_ok(pier_channel_reset(channel));
	assert_int_equal(fake.changes, 3);
	assert_memory_equal(fake.states, way, sizeof(way));
	assert_memory_equal(&fake.init, &init, sizeof(init));
	after = endpoint_of(channel);
	assert_int_equal(after.generation, before.generation + 1);
	assert_int_not_equal(after.psn, before.psn);
	assert_int_equal(after.qpn, before.qpn);
	assert_int_equal(pier_channel_fd(channel), fd);
	expect_usable(channel, 8);
	assert_int_equal(fake.rts.sq_psn, after.psn);
	close_channel(channel);
}

/* Packets in flight at the reset are at most half of the PSN range away. */
static void new_psn_is_far_from_the_last_packet(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_endpoint newer = peer;
	bool differ = false;
	uint32_t first = 0;

	(void)state;
	for (int i = 0; i < 200; i++) {
		uint32_t last = (uint32_t)(i * 0x12345 + 0xfff000) & 0xffffff, distance;

		fake.sq_psn = last;
		expect_ok(pier_channel_reset(channel));
		distance = (endpoint_of(channel).psn - last) & 0xffffff;
		assert_in_range(distance, 0x600000, 0x9fffff);
		differ = differ || (i > 0 && distance != first);
		first = distance;
		newer.generation++;
		expect_ok(pier_channel_connect(channel, &newer));
	}
	assert_true(differ);
	close_channel(channel);
}

/* The caller's PSN was for the first connection, and the query reports it. */
static void new_psn_is_far_from_the_first_if_unknown(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;
	uint32_t distance;

	(void)state;
	attr.psn = 0x123456;
	expect_ok(pier_channel_create(fake_reset(), &attr, &channel));
	assert_int_equal(endpoint_of(channel).psn, 0x123456);
	expect_ok(pier_channel_connect(channel, &peer));
	/* First to ERR, and then the query. */
	fake.fail_call = fake.calls + 2;
	expect_ok(pier_channel_reset(channel));
	distance = (endpoint_of(channel).psn - 0x123456) & 0xffffff;
	assert_in_range(distance, 0x600000, 0x9fffff);
	close_channel(channel);
}

static void reports_requests_outstanding_at_the_reset(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work done, sends[2], receive, next;
	struct pier_result result;

	(void)state;
	expect_ok(pier_channel_post_send(channel, NULL, 0, &done));
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, &sends[i]));
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &receive));
	fake_complete(done.id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	expect_ok(pier_channel_reset(channel));
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_usable(channel, 8);
	expect_ok(pier_channel_post_send(channel, NULL, 0, &next));
	assert_int_equal(pier_work_poll(channel, next, &result), 0);
	assert_int_equal(pier_work_poll(channel, done, &result), 1);
	assert_int_equal(result.error, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_not_equal(sends[i].id, next.id);
		assert_int_equal(pier_work_poll(channel, sends[i], &result), 1);
		assert_int_equal(result.error, -ECANCELED);
		assert_int_equal(pier_work_poll(channel, sends[i], &result), -ESTALE);
	}
	expect_result(test_work_wait(channel, receive, 0, NULL), -ECANCELED);
	assert_int_equal(pier_channel_error(channel, NULL, 0), 0);
	close_channel(channel);
}

/* Without completions the queue pair still goes to RESET. */
static void does_not_wait_for_a_dead_device(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work;
	int64_t begin = pier_now();

	(void)state;
	expect_ok(pier_channel_post_send(channel, NULL, 0, &work));
	fake.never_flushes = true;
	fake.changes = 0;
	expect_ok(pier_channel_reset(channel));
	assert_true(pier_now() - begin < INT64_C(10000000000));
	assert_int_equal(fake.changes, 3);
	expect_result(test_work_wait(channel, work, 0, NULL), -ECANCELED);
	expect_usable(channel, 8);
	close_channel(channel);
}

static void can_be_reset_in_any_state(void **state)
{
	struct pier_channel *channel = prepared();
	struct pier_work receive;

	(void)state;
	/* Before the channel was connected. */
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &receive));
	expect_ok(pier_channel_reset(channel));
	expect_result(test_work_wait(channel, receive, 0, NULL), -ECANCELED);
	/* A second time, and without an error. */
	expect_ok(pier_channel_reset(channel));
	expect_usable(channel, 7);
	expect_ok(pier_channel_reset(channel));
	/* After a failed connect, which must not blame the peer. */
	fake.fail_call = fake.calls + 1;
	expect_result(
		pier_channel_connect(channel, &(struct pier_endpoint){ .qpn = 0x55,
								       .gid = { 0xfd, 1 },
								       .generation = 8 }),
		-ENOSPC);
	expect_result(pier_channel_connect(channel, &peer), -EISCONN);
	expect_ok(pier_channel_reset(channel));
	expect_usable(channel, 8);
	/* After a timeout, which stops everything. */
	expect_result(pier_channel_send(channel, NULL, 0, 0), -ETIMEDOUT);
	expect_ok(pier_channel_reset(channel));
	expect_usable(channel, 9);
	close_channel(channel);
}

static void refuses_stale_endpoints(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_endpoint other = peer;

	(void)state;
	expect_ok(pier_channel_reset(channel));
	expect_result(pier_channel_connect(channel, &peer), -ESTALE);
	test_assert_sentence("generation 7");
	other.generation = 6;
	expect_result(pier_channel_connect(channel, &other), -ESTALE);
	/* Nothing was changed. */
	assert_int_equal(fake.state, IBV_QPS_INIT);
	expect_usable(channel, 8);
	expect_ok(pier_channel_reset(channel));
	other.generation = 8;
	expect_result(pier_channel_connect(channel, &other), -ESTALE);
	expect_usable(channel, UINT32_C(1) << 31);
	expect_ok(pier_channel_reset(channel));
	expect_usable(channel, UINT32_MAX);
	expect_ok(pier_channel_reset(channel));
	expect_usable(channel, 1); /* 0 is not a generation */
	expect_ok(pier_channel_reset(channel));
	other.generation = UINT32_MAX;
	expect_result(pier_channel_connect(channel, &other), -ESTALE);
	other.generation = 1;
	expect_result(pier_channel_connect(channel, &other), -ESTALE);
	close_channel(channel);
}

/* Another channel may get the number, and some endpoints have no generation. */
static void accepts_endpoints_of_other_channels(void **state)
{
	struct pier_endpoint other = peer;
	struct pier_channel *channel = connected();

	(void)state;
	expect_ok(pier_channel_reset(channel));
	other.qpn++;
	expect_ok(pier_channel_connect(channel, &other));
	expect_ok(pier_channel_reset(channel));
	other.gid[5]++;
	expect_ok(pier_channel_connect(channel, &other));
	expect_ok(pier_channel_reset(channel));
	other.generation -= UINT32_C(1) << 16;
	expect_ok(pier_channel_connect(channel, &other));
	expect_ok(pier_channel_reset(channel));
	for (int i = 0; i < 2; i++) {
		other.generation = 0;
		expect_ok(pier_channel_connect(channel, &other));
		expect_ok(pier_channel_reset(channel));
	}
	close_channel(channel);
}

/* Each call of the provider fails once: the channel can be reset again afterwards. */
static void can_be_retried_after_every_failure(void **state)
{
	int failures = 0;

	(void)state;
	for (int call = 1;; call++) {
		struct pier_channel *channel = connected();
		struct pier_work work;
		int error, before = fake.calls;

		expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
		before = fake.calls;
		fake.fail_call = before + call;
		error = pier_channel_reset(channel);
		if (fake.calls < fake.fail_call) {
			close_channel(channel);
			break;
		}
		assert_int_equal(pier_channel_outstanding(channel), 0);
		expect_result(test_work_wait(channel, work, 0, NULL), -ECANCELED);
		fake.fail_call = 0;
		if (error) {
			failures++;
			expect_result(error, -ENOSPC);
			expect_result(pier_channel_post_send(channel, NULL, 0, NULL),
				      channel->broken ? -EPIPE : -ENOTCONN);
			expect_ok(pier_channel_reset(channel));
		}
		expect_usable(channel, 8);
		close_channel(channel);
	}
	/* The port, its GID, to RESET and to INIT; the others are optional. */
	assert_int_equal(failures, 1 + 1 + 2);
}

static void needs_an_active_port(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	fake.port.state = IBV_PORT_DOWN;
	expect_result(pier_channel_reset(channel), -ENETDOWN);
	/* Its queue pair accepts no more requests. */
	assert_int_equal(pier_channel_error(channel, NULL, 0), -ENETDOWN);
	expect_result(pier_channel_post_recv(channel, NULL, 0, NULL), -EPIPE);
	expect_result(pier_channel_connect(channel, &peer), -EISCONN);
	fake.port.state = IBV_PORT_ACTIVE;
	fake.gids[1].gid.raw[1] = 0x42;
	expect_ok(pier_channel_reset(channel));
	assert_int_equal(pier_channel_error(channel, NULL, 0), 0);
	assert_int_equal(endpoint_of(channel).gid[1], 0x42);
	expect_usable(channel, 8);
	close_channel(channel);
}

static void invalidates_windows(void **state)
{
	static uint8_t memory[8192];
	struct pier_channel *channel;
	struct pier_mr *base, *window;
	struct pier_remote remote;

	(void)state;
	fake_reset();
	fake.device.limits.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	fake.completes = true;
	expect_ok(pier_channel_create(&fake.pd, NULL, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	expect_ok(pier_mr_reg(&fake.pd, memory, sizeof(memory),
			      PIER_ACCESS_SHARED | PIER_ACCESS_MW_BIND, &base));
	expect_ok(pier_mr_bind_sub(channel, base, 0, 100, PIER_ACCESS_REMOTE_READ, 1000,
				   &window));
	assert_true(test_mr_info(window).is_window);
	assert_int_equal(fake.mws, 1);
	fake.fail_call = fake.calls + 2; /* after ERR */
	expect_result(pier_channel_reset(channel), -ENOSPC);
	test_assert_sentence("memory window");
	assert_int_equal(fake.mws, 1);
	expect_ok(pier_channel_reset(channel));
	assert_int_equal(fake.mws, 0);
	assert_int_equal(pier_mr_remote(window, &remote), 0);
	fake.completes = false;
	expect_usable(channel, 8);
	expect_ok(pier_mr_dereg(window));
	expect_ok(pier_mr_dereg(base));
	close_channel(channel);
}

static void keeps_its_counters(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_counter *counter = counter_of(&fake.pd);
	struct ibv_mr verbs = { 0 };
	struct pier_mr region = region_of(&fake.pd, &verbs);
	struct pier_work work;

	(void)state;
	expect_ok(pier_counter_bind_imm(counter, &region, channel, 7));
	expect_ok(pier_channel_reset(channel));
	expect_usable(channel, 8);
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	fake_complete_imm(work.id, IBV_WC_RECV_RDMA_WITH_IMM, 10, htonl(7));
	expect_result(pier_counter_wait(counter, 1, 1000), 1);
	expect_ok(pier_channel_destroy(channel));
	destroy(counter);
}

static void can_be_reset_repeatedly(void **state)
{
	struct pier_channel *channel = connected();
	uint32_t first = endpoint_of(channel).generation, generation = 8;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		if (i % 3 == 0)
			break_channel(channel);
		expect_ok(pier_channel_reset(channel));
		expect_usable(channel, generation++);
	}
	/* 0 is skipped. */
	assert_in_range(endpoint_of(channel).generation - first, 1000, 1001);
	close_channel(channel);
}

/* irdma: irdma_modify_qp_roce() accepts RESET in ERR and does nothing. */
static void replaces_a_queue_pair_that_stays_in_error(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_endpoint before = endpoint_of(channel);

	(void)state;
	fake.stays_in_error = true;
	break_channel(channel);
	expect_ok(pier_channel_reset(channel));
	assert_int_equal(fake.qps, 1);
	assert_int_not_equal(endpoint_of(channel).qpn, before.qpn);
	assert_ptr_equal(pier_channel_verbs_qp(channel)->send_cq, fake.cq);
	expect_usable(channel, 8);
	close_channel(channel);
}

/* The channel has a queue pair even if the new one or the old one makes trouble. */
static void survives_a_replacement_that_fails(void **state)
{
	bool failed = true;

	(void)state;
	for (int call = 1; failed; call++) {
		struct pier_channel *channel = connected();

		fake.stays_in_error = true;
		break_channel(channel);
		fake.fail_call = fake.calls + call;
		failed = pier_channel_reset(channel) < 0;
		fake.fail_call = 0;
		expect_ok(pier_channel_reset(channel));
		assert_int_equal(fake.qps, 1);
		expect_usable(channel, 8);
		close_channel(channel);
	}
}

static void passes_attributes_to_the_device(void **state)
{
	struct pier_channel_attr attr = small_attr(), found;
	struct pier_channel *channel;

	(void)state;
	fake_reset();
	fake.port.lmc = 3;
	fake.less_inline = 4;
	attr.cq_depth = 100;
	attr.comp_vector = 2;
	attr.flow_label = 0xabcde;
	attr.src_path_bits = 5;
	attr.static_rate = IBV_RATE_10_GBPS;
	attr.max_rd_atomic = 5;
	attr.max_dest_rd_atomic = 200;
	attr.max_inline = 64;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	assert_int_equal(fake.cq->cqe, 100);
	assert_int_equal(fake.comp_vector, 2);
	pier_channel_query(channel, &found, sizeof(found));
	assert_int_equal(found.mtu, 2048);
	assert_int_equal(found.max_rd_atomic, 5);
	assert_int_equal(found.max_dest_rd_atomic, 8); /* the device's */
	assert_int_equal(endpoint_of(channel).max_rd_atomic, 8);
	expect_ok(pier_channel_connect(channel, &peer));
	assert_int_equal(fake.rtr.ah_attr.grh.flow_label, 0xabcde);
	assert_int_equal(fake.rtr.ah_attr.src_path_bits, 5);
	assert_int_equal(fake.rtr.ah_attr.static_rate, IBV_RATE_10_GBPS);
	assert_int_equal(fake.rtr.max_dest_rd_atomic, 8);
	pier_channel_query(channel, &found, sizeof(found));
	assert_int_equal(found.size, sizeof(found));
	assert_int_equal(found.mtu, 1024);
	assert_int_equal(found.max_inline, 60);
	assert_int_equal(found.cq_depth, 100);
	assert_int_equal(found.max_rd_atomic, 0); /* the peer serves none */
	assert_int_equal(found.gid_index, 1);
	assert_int_equal(found.psn, endpoint_of(channel).psn);
	assert_int_equal(found.flow_label, 0xabcde);
	close_channel(channel);
	attr.comp_vector = 3;
	expect_result(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("comp_vector 3");
	attr.comp_vector = UINT32_MAX - 1;
	expect_result(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		counter_case(reports_the_first_cause),
		counter_case(counts_flushes_without_a_cause),
		counter_case(reports_that_it_stopped_by_itself),
		counter_case(works_again_after_an_error),
		counter_case(new_psn_is_far_from_the_last_packet),
		counter_case(new_psn_is_far_from_the_first_if_unknown),
		counter_case(reports_requests_outstanding_at_the_reset),
		counter_case(does_not_wait_for_a_dead_device),
		counter_case(can_be_reset_in_any_state),
		counter_case(refuses_stale_endpoints),
		counter_case(accepts_endpoints_of_other_channels),
		counter_case(can_be_retried_after_every_failure),
		counter_case(needs_an_active_port),
		counter_case(invalidates_windows),
		counter_case(keeps_its_counters),
		counter_case(can_be_reset_repeatedly),
		counter_case(replaces_a_queue_pair_that_stays_in_error),
		counter_case(survives_a_replacement_that_fails),
		counter_case(passes_attributes_to_the_device),
	};

	/* The fake NIC has no events to wait for. */
	manual_clock_hurry(true);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

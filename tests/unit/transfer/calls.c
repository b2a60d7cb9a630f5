/* SPDX-License-Identifier: BSD-3-Clause */
/* Progress, cancelling, notifying the peer, saved state, and invalid arguments. */
#include "transfer_fixture.h"
#include "tests/support/manual_clock.h"

struct watcher {
	int calls, cancel_at;
	uint64_t done, length;
};

static int watch(void *context, uint64_t done, uint64_t length)
{
	struct watcher *watcher = context;

	assert_true(watcher->calls == 0 || done > watcher->done);
	watcher->done = done;
	watcher->length = length;
	return ++watcher->calls == watcher->cancel_at;
}

static void reports_progress(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);
	struct watcher watcher = { 0 };

	(void)state;
	attr.progress = watch;
	attr.context = &watcher;
	begin_with(&attr);
	expect_going(4);
	assert_int_equal(watcher.calls, 0);
	complete(2, IBV_WC_SUCCESS);
	expect_going(4);
	assert_int_equal(watcher.calls, 1);
	assert_int_equal(watcher.done, 20);
	assert_int_equal(watcher.length, 95);
	expect_going(4);
	assert_int_equal(watcher.calls, 1);
	finish(0, 0, 95);
	assert_int_equal(watcher.done, 95);
	assert_int_equal(watcher.calls, 1 + 8);
	expect_ok(pier_transfer_destroy(transfer));
	/* Not more often than that, except at the end. */
	attr.progress_ms = 3600 * 1000;
	watcher = (struct watcher){ 0 };
	fake.logged = 0;
	begin_with(&attr);
	finish(0, 0, 95);
	assert_in_range(watcher.calls, 1, 2);
	assert_int_equal(watcher.done, 95);
}

static void can_be_cancelled_by_its_callback(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);
	struct watcher watcher = { .cancel_at = 2 };

	(void)state;
	attr.progress = watch;
	attr.context = &watcher;
	begin_with(&attr);
	expect_going(4);
	complete(1, IBV_WC_SUCCESS);
	expect_going(4);
	complete(1, IBV_WC_SUCCESS);
	expect_going(3);
	complete(3, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), -ECANCELED);
	test_assert_sentence("50 of 95 bytes have arrived: its progress callback");
	fake.logged = 0;
	expect_ok(pier_transfer_resume(transfer, &rail, 1));
	finish(0, 50, 45);
}

/* Too late: the last byte has arrived. */
static void succeeds_when_cancelled_at_the_end(void **state)
{
	struct pier_transfer_attr attr = attr_of(15);
	struct watcher watcher = { .cancel_at = 1 };

	(void)state;
	attr.progress = watch;
	attr.context = &watcher;
	begin_with(&attr);
	expect_going(2);
	expect_ok(pier_transfer_cancel(transfer));
	complete(2, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), 1);
}

static void can_be_destroyed_when_idle(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);

	(void)state;
	attr.stall_ms = BRIEF;
	begin_with(&attr);
	expect_going(4);
	expect_ok(pier_transfer_destroy(transfer));
	transfer = NULL;
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(fake.state, IBV_QPS_ERR);
	/* A transfer that was only created leaves the channel as it is. */
	expect_ok(pier_channel_destroy(channel));
	connect_channel(DEPTH, 1u << 30);
	rail.channel = channel;
	begin_with(&attr);
	expect_ok(pier_transfer_destroy(transfer));
	transfer = NULL;
	assert_int_equal(fake.state, IBV_QPS_RTS);
	expect_ok(pier_transfer_destroy(NULL));
}

static void notifies_the_peer_at_the_end(void **state)
{
	struct pier_transfer_attr attr = attr_of(15);

	(void)state;
	attr.flags = PIER_TRANSFER_NOTIFY;
	attr.immediate = 0x01020304;
	begin_with(&attr);
	expect_going(2);
	complete(1, IBV_WC_SUCCESS);
	expect_going(1);
	complete(1, IBV_WC_SUCCESS);
	expect_going(1);
	assert_int_equal(status().done, 15);
	assert_int_equal(fake.logged, 3);
	assert_int_equal(fake.last_send.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
	assert_int_equal(fake.last_send.imm_data, htobe32(0x01020304));
	assert_int_equal(fake.last_send.num_sge, 0);
	complete(1, IBV_WC_RNR_RETRY_EXC_ERR);
	expect_result(pier_transfer_progress(transfer), -EAGAIN);
	test_assert_sentence("15 of 15 bytes have arrived");
	expect_ok(pier_channel_destroy(channel));
	connect_channel(DEPTH, 1u << 30);
	rail.channel = channel;
	expect_ok(pier_transfer_resume(transfer, &rail, 1));
	expect_going(1);
	assert_int_equal(fake.logged, 4);
	assert_int_equal(fake.last_send.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
	complete(1, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), 1);
	assert_int_equal(fake.logged, 4);
}

/* One process saves the state; another resumes from it. */
static void resumes_in_another_process(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);
	uint8_t wire[1000];
	int size;

	(void)state;
	begin_with(&attr);
	expect_going(4);
	complete(3, IBV_WC_SUCCESS);
	expect_going(4);
	size = pier_transfer_pack(transfer, wire, sizeof(wire));
	assert_int_equal(size, 24 + 16);
	assert_int_equal(pier_transfer_pack(transfer, NULL, 0), size);
	expect_result(pier_transfer_pack(transfer, wire, 39), -ENOSPC);
	expect_ok(pier_transfer_cancel(transfer));
	complete(4, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), -ECANCELED);
	expect_ok(pier_transfer_destroy(transfer));
	transfer = NULL;
	fake.logged = 0;
	attr.state = wire;
	attr.state_size = (size_t)size;
	begin_with(&attr);
	assert_int_equal(status().done, 30);
	finish(0, 30, 65);
	attr.length = 94;
	expect_result(pier_transfer_create(&attr, &transfer), -EBADMSG);
	attr.length = 95;
	attr.state_size--;
	expect_result(pier_transfer_create(&attr, &transfer), -EMSGSIZE);
}

static const struct pier_endpoint no_reads = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
};

/* A call with one invalid argument. */
#define expect_refused(change, error)                                         \
	do {                                                                  \
		struct pier_transfer_attr attr = attr_of(95);                 \
		struct pier_transfer *none = (void *)7;                       \
                                                                              \
		change;                                                       \
		expect_result(pier_transfer_create(&attr, &none), (error));   \
		assert_ptr_equal(none, (void *)7);                            \
		assert_int_equal(pier_object_count(PIER_OBJECT_TRANSFER), 0); \
	} while (0)

static void refuses_invalid_arguments(void **state)
{
	(void)state;
	expect_result(pier_transfer_create(NULL, &transfer), -EINVAL);
	expect_refused(attr.size = 8, -EINVAL);
	expect_refused(attr.direction = 3, -EINVAL);
	expect_refused(attr.flags = 4, -EINVAL);
	expect_refused(attr.progress_ms = -1, -EINVAL);
	expect_refused(attr.stall_ms = 0, -EINVAL);
	test_assert_sentence("stall_ms 0");
	expect_refused(attr.rail_count = 0, -EINVAL);
	expect_refused(attr.rails = NULL, -EINVAL);
	test_assert_sentence("rails is NULL");
	expect_refused(rail.parts = NULL, -EINVAL);
	test_assert_sentence("parts is NULL");
	expect_refused(attr.rail_count = PIER_RAILS_MAX + 1, -EINVAL);
	expect_refused(rail.offset = region.length - 94, -ERANGE);
	test_assert_sentence("rail 0 of a transfer: offset");
	expect_refused(rail.offset = UINT64_MAX, -ERANGE);
	expect_refused(rail.remote_offset = target.length - 94, -ERANGE);
	expect_refused(rail.count = 0, -ERANGE);
	expect_refused(region.pd = NULL, -EINVAL);
	region.pd = &fake.pd;
	region.access = PIER_ACCESS_REMOTE_READ;
	expect_refused(attr.direction = PIER_TRANSFER_READ, -EACCES);
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_channel_create(&fake.pd, NULL, &channel));
	expect_refused(, -ENOTCONN);
	expect_ok(pier_channel_connect(channel, &no_reads));
	region.access = PIER_ACCESS_SHARED;
	expect_refused(attr.direction = PIER_TRANSFER_READ, -EOPNOTSUPP);
	assert_int_equal(fake.logged, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		transfer_test(reports_progress),
		transfer_test(can_be_cancelled_by_its_callback),
		transfer_test(succeeds_when_cancelled_at_the_end),
		transfer_test(can_be_destroyed_when_idle),
		transfer_test(notifies_the_peer_at_the_end),
		transfer_test(resumes_in_another_process),
		transfer_test(refuses_invalid_arguments),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("transfer_calls", tests, NULL, NULL);
}

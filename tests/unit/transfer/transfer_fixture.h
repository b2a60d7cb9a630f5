/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_TRANSFER_FIXTURE_H
#define UNIT_TRANSFER_FIXTURE_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/transfer.h>

#include "region/mr.h"
#include "nic/nic.h"

/*
 * Shared by the transfer tests: one channel over a NIC that completes what the test says,
 * when it says, and a transfer in chunks of 10 bytes.
 */

enum {
	DEPTH = 8,
	SEND_SGE = 3,
	PATIENT = 20000, /* for events that must come, in milliseconds */
	BRIEF = 20,	 /* for calls that end at their timeout */
	LIMIT = 500,	 /* the same, if an event must come before */
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.max_rd_atomic = 4,
};

static struct ibv_mr verbs_mr = { .lkey = 0x11, .rkey = 0x22 };
static struct pier_mr region;
static struct pier_remote target = { 0x900000, 1u << 20, 0x77 };
static struct pier_channel *channel;
static struct pier_transfer *transfer;
static struct test_census census;

static inline void connect_channel(uint32_t depth, uint32_t max_msg_size)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = depth;
	attr.max_recv_wr = 1;
	attr.max_send_sge = attr.max_recv_sge = SEND_SGE;
	attr.timeout_ms = PATIENT;
	fake.port.max_msg_sz = max_msg_size;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
}

static inline int setup(void **state)
{
	(void)state;
	census = test_take_census();
	fake_reset();
	connect_channel(DEPTH, 1u << 30);
	region = (struct pier_mr){
		.mr = &verbs_mr,
		.pd = &fake.pd,
		.iova = 0x10000,
		.length = 1u << 20,
		.access = PIER_ACCESS_SHARED,
	};
	transfer = NULL;
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	fake.poll_error = 0;
	expect_ok(pier_transfer_destroy(transfer));
	expect_ok(pier_channel_destroy(channel));
	assert_int_equal(fake.qps, 0);
	test_assert_census(&census);
	return 0;
}

/* Chunks of 10 bytes. */
static struct pier_rail rail;
static inline struct pier_transfer_attr attr_of(uint64_t length)
{
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	rail = (struct pier_rail){
		.channel = channel, .mr = &region, .parts = &target, .count = 1
	};
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = length;
	attr.chunk = 10;
	return attr;
}

static inline void begin(uint64_t length)
{
	struct pier_transfer_attr attr = attr_of(length);

	expect_ok(pier_transfer_create(&attr, &transfer));
}

static inline void begin_with(const struct pier_transfer_attr *attr)
{
	expect_ok(pier_transfer_create(attr, &transfer));
}

static inline struct pier_transfer_status status(void)
{
	struct pier_transfer_status now;

	pier_transfer_query(transfer, &now, sizeof(now));
	assert_int_equal(now.rails, 1);
	return now;
}

static inline struct pier_rail_status rail_status(void)
{
	struct pier_rail_status now;

	expect_ok(pier_transfer_query_rail(transfer, 0, &now, sizeof(now)));
	return now;
}

/* Expect it to continue, with this many requests in flight. */
static inline void expect_going(int in_flight)
{
	expect_result(pier_transfer_progress(transfer), 0);
	assert_int_equal(fake.sends, in_flight);
	assert_false(status().ended);
}

static inline void complete(int count, enum ibv_wc_status how)
{
	for (int i = 0; i < count; i++)
		fake_complete(fake.send_ids[0], how, IBV_WC_RDMA_WRITE, 0);
}

static inline void expect_request(int index, enum ibv_wr_opcode opcode, uint64_t offset,
				  uint32_t length)
{
	const struct fake_send *send = &fake.log[index];

	assert_in_range(index, 0, fake.logged - 1);
	assert_int_equal(send->wr.opcode, opcode);
	assert_int_equal(send->wr.wr.rdma.remote_addr, target.addr + offset);
	assert_int_equal(send->wr.wr.rdma.rkey, target.rkey);
	assert_int_equal(send->wr.num_sge, 1);
	assert_int_equal(send->sg_list[0].addr, region.iova + offset);
	assert_int_equal(send->sg_list[0].length, length);
	assert_int_equal(send->sg_list[0].lkey, 0x11);
}

/*
 * Complete the transfer. The missing bytes must come chunk by chunk, from the nth request
 * on.
 */
static inline void finish(int from, uint64_t offset, uint64_t length)
{
	int index = from;

	while (pier_transfer_progress(transfer) == 0) {
		assert_true(fake.sends > 0);
		complete(1, IBV_WC_SUCCESS);
	}
	for (; length > 0; index++) {
		uint32_t chunk = length < 10 ? (uint32_t)length : 10;

		expect_request(index, IBV_WR_RDMA_WRITE, offset, chunk);
		offset += chunk;
		length -= chunk;
	}
	assert_int_equal(fake.logged, index);
	expect_result(pier_transfer_progress(transfer), 1);
	assert_int_equal(status().done, status().length);
	assert_int_equal(status().error, 0);
}

#define transfer_test(body) cmocka_unit_test_setup_teardown(body, setup, teardown)

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* How transfers with remote vectors become requests, as the NIC gets them. */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/random.h"

#include <errno.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/object.h>

#include "nic/nic.h"

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.psn = 0x66,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.mtu = 1024,
	.max_rd_atomic = 4,
};

enum {
	SEND_SGE = 6,
	READ_SGE = 4, /* the fake device's max_sge_rd */
};

static struct pier_channel *connected(uint32_t depth, uint32_t max_msg_size)
{
	struct pier_channel_attr attr;
	struct pier_pd *pd = fake_reset();
	struct pier_channel *channel;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = depth;
	attr.max_recv_wr = 1;
	attr.max_send_sge = SEND_SGE;
	attr.max_recv_sge = 1;
	fake.port.max_msg_sz = max_msg_size;
	assert_int_equal(pier_channel_create(pd, &attr, &channel), 0);
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	return channel;
}

static void destroy(struct pier_channel *channel)
{
	assert_int_equal(pier_channel_destroy(channel), 0);
	assert_int_equal(fake.qps, 0);
	assert_int_equal(fake.pd.children, 0);
	assert_int_equal(pier_object_count(PIER_OBJECT_CHANNEL), 0);
}

static void complete_first(void)
{
	fake_complete(fake.send_ids[0], IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0);
}

static void assert_sge(const struct ibv_sge *sge, uint64_t addr, uint32_t length,
		       uint32_t lkey)
{
	assert_int_equal(sge->addr, addr);
	assert_int_equal(sge->length, length);
	assert_int_equal(sge->lkey, lkey);
}

static void assert_request(const struct fake_send *send, enum ibv_wr_opcode opcode,
			   uint64_t addr, uint32_t rkey, int num_sge)
{
	assert_int_equal(send->wr.opcode, opcode);
	assert_int_equal(send->wr.wr.rdma.remote_addr, addr);
	assert_int_equal(send->wr.wr.rdma.rkey, rkey);
	assert_int_equal(send->wr.num_sge, num_sge);
}

/* 10 + 0 + 20 + 5 bytes from here to 15 + 0 + 12 + 100. */
static const struct pier_gather pieces[] = {
	{ 0x100, 10, 1 }, { 0x200, 0, 2 }, { 0x300, 20, 3 }, { 0x400, 5, 4 }
};
static const struct pier_remote parts[] = {
	{ 0x10000, 15, 11 }, { 0x20000, 0, 12 }, { 0x30000, 12, 13 }, { 0x40000, 100, 14 }
};

static void splits_at_seams(void **state)
{
	struct pier_channel *channel = connected(8, 1 << 20);
	struct pier_work work;

	(void)state;
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &work), 0);
	assert_int_equal(fake.logged, 3);
	assert_request(&fake.log[0], IBV_WR_RDMA_WRITE, 0x10000, 11, 2);
	assert_sge(&fake.log[0].sg_list[0], 0x100, 10, 1);
	assert_sge(&fake.log[0].sg_list[1], 0x300, 5, 3);
	assert_request(&fake.log[1], IBV_WR_RDMA_WRITE, 0x30000, 13, 1);
	assert_sge(&fake.log[1].sg_list[0], 0x305, 12, 3);
	assert_request(&fake.log[2], IBV_WR_RDMA_WRITE, 0x40000, 14, 2);
	assert_sge(&fake.log[2].sg_list[0], 0x311, 3, 3);
	assert_sge(&fake.log[2].sg_list[1], 0x400, 5, 4);
	/* The first two are not watched, so their places are free. */
	complete_first();
	complete_first();
	assert_int_equal(pier_work_poll(channel, work, NULL), 0);
	assert_int_equal(pier_channel_outstanding(channel), 1);
	complete_first();
	assert_int_equal(pier_work_poll(channel, work, NULL), 1);
	destroy(channel);
}

static void splits_long_messages(void **state)
{
	struct pier_channel *channel = connected(8, 7);
	struct pier_work work;

	(void)state;
	assert_int_equal(test_post_read_vec(channel,
					    &(struct pier_scatter){ 0x500, 20, 5 }, 1,
					    &parts[3], 1, &work),
			 0);
	assert_int_equal(fake.logged, 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_request(&fake.log[i], IBV_WR_RDMA_READ, 0x40000 + 7 * i, 14, 1);
		assert_sge(&fake.log[i].sg_list[0], 0x500 + 7 * i, i < 2 ? 7 : 6, 5);
	}
	destroy(channel);
}

static void splits_many_elements(void **state)
{
	const struct pier_remote target = { 0x1000, 13, 7 };
	struct pier_channel *channel = connected(8, 1 << 20);
	struct pier_gather bytes[2 * SEND_SGE + 1];

	(void)state;
	for (uint32_t i = 0; i < 2 * SEND_SGE + 1; i++)
		bytes[i] = (struct pier_gather){ 100 * i, 1, i };
	assert_int_equal(
		test_post_write_vec(channel, bytes, 2 * SEND_SGE + 1, &target, 1, NULL),
		0);
	assert_int_equal(fake.logged, 3);
	assert_request(&fake.log[1], IBV_WR_RDMA_WRITE, 0x1000 + SEND_SGE, 7, SEND_SGE);
	assert_request(&fake.log[2], IBV_WR_RDMA_WRITE, 0x1000 + 2 * SEND_SGE, 7, 1);
	assert_int_equal(test_post_read_vec(channel, (struct pier_scatter *)bytes,
					    READ_SGE + 1, &target, 1, NULL),
			 0);
	assert_int_equal(fake.logged, 5);
	assert_request(&fake.log[3], IBV_WR_RDMA_READ, 0x1000, 7, READ_SGE);
	assert_request(&fake.log[4], IBV_WR_RDMA_READ, 0x1000 + READ_SGE, 7, 1);
	destroy(channel);
}

/* An empty request, so that there is something to wait for. */
static void posts_an_empty_transfer(void **state)
{
	struct pier_channel *channel = connected(8, 1 << 20);
	struct pier_work work;

	(void)state;
	assert_int_equal(test_post_write_vec(channel, NULL, 0, NULL, 0, &work), 0);
	assert_int_equal(test_post_write_vec(channel, &pieces[1], 1, parts, 4, &work), 0);
	assert_int_equal(test_post_write_vec(channel, &pieces[1], 1, &parts[1], 1, &work),
			 0);
	assert_int_equal(test_post_read_vec(channel, NULL, 0, parts, 4, &work), 0);
	assert_int_equal(fake.logged, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(fake.log[i].wr.num_sge, 0);
	destroy(channel);
}

/* Only the last request wakes the peer, and the whole has one context. */
static void last_request_carries_the_immediate_data(void **state)
{
	struct pier_request request = test_write_vec(pieces, 4, parts, 4);
	struct pier_channel *channel = connected(1, 1 << 20);
	struct pier_result result = { 0 };

	(void)state;
	request.flags = PIER_POST_IMMEDIATE;
	request.immediate = 7;
	request.context = &request;
	fake.completes = true;
	/* The queue has room for one of them. */
	assert_int_equal(pier_channel_post_request(channel, &request, NULL), -E2BIG);
	assert_int_equal(pier_channel_run_request(channel, &request, 1000, &result), 0);
	assert_ptr_equal(result.context, &request);
	assert_true(fake.logged > 1);
	for (int i = 0; i < fake.logged; i++)
		assert_int_equal(fake.log[i].wr.opcode,
				 i + 1 == fake.logged ? IBV_WR_RDMA_WRITE_WITH_IMM
						      : IBV_WR_RDMA_WRITE);
	destroy(channel);
}

static void refuses_invalid_transfers_before_posting(void **state)
{
	const struct pier_remote wrong[] = { parts[3], { 2, UINT64_MAX, 1 } };
	struct pier_channel *channel = connected(2, 1 << 20);
	struct pier_work work = { 7 };

	(void)state;
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 3, &work),
			 -ERANGE);
	test_assert_sentence("write of 35 bytes; the remote vector of 3 parts has 27");
	assert_int_equal(test_post_write_vec(channel, pieces, 1, NULL, 2, &work),
			 -EINVAL);
	assert_int_equal(test_post_write_vec(channel, pieces, 4, wrong, 2, &work),
			 -ERANGE);
	test_assert_sentence("part 1 of a remote vector");
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &work),
			 -E2BIG);
	test_assert_sentence("3 requests are needed, and the send queue has 2");
	assert_int_equal(test_channel_write_vec(channel, pieces, 4, parts, 3, 0),
			 -ERANGE);
	assert_int_equal(test_channel_write_vec(channel, pieces, 4, parts, 4, -2),
			 -EINVAL);
	assert_int_equal(fake.logged, 0);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(work.id, 7);
	destroy(channel);
}

static void refuses_a_port_that_sends_no_messages(void **state)
{
	struct pier_channel *channel = connected(2, 0);

	(void)state;
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, NULL),
			 -EMSGSIZE);
	assert_int_equal(fake.logged, 0);
	destroy(channel);
}

static void waits_for_room_in_the_queue(void **state)
{
	struct pier_channel *channel = connected(4, 1 << 20);
	struct pier_work work[2], vec = { 7 };

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(
			pier_channel_post_write(channel, NULL, 0, parts, &work[i]), 0);
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &vec),
			 -EAGAIN);
	test_assert_sentence("3 requests are needed");
	assert_int_equal(fake.logged, 2);
	assert_int_equal(vec.id, 7);
	complete_first();
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &vec), 0);
	assert_int_equal(fake.logged, 5);
	/*
	 * The queue is full, and a call that can wait for room has posted nothing to
	 * wait for.
	 */
	assert_int_equal(test_channel_write_vec(channel, pieces, 4, parts, 4, 1000),
			 -EAGAIN);
	assert_int_equal(pier_channel_outstanding(channel), 4);
	destroy(channel);
}

/* Room in the queue is not enough: unpolled results are kept, up to a limit. */
static void keeps_unpolled_results(void **state)
{
	struct pier_channel *channel = connected(4, 1 << 20);
	struct pier_work work[8], vec = { 7 };
	struct pier_result result;

	(void)state;
	for (int i = 0; i < 8; i++) {
		assert_int_equal(
			pier_channel_post_write(channel, NULL, 0, parts, &work[i]), 0);
		complete_first();
		assert_int_equal(pier_channel_poll(channel), 1);
	}
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &vec),
			 -EAGAIN);
	test_assert_sentence("4 completed requests");
	assert_int_equal(test_channel_write_vec(channel, pieces, 4, parts, 4, 1000),
			 -EAGAIN);
	assert_int_equal(pier_channel_post_write(channel, NULL, 0, parts, NULL), -EAGAIN);
	assert_int_equal(fake.logged, 8);
	assert_int_equal(vec.id, 7);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pier_work_drop(channel, work[2 * i]), 0);
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &vec), 0);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(pier_work_poll(channel, work[1], &result), 1);
	assert_int_equal(pier_work_poll(channel, work[7], &result), 1);
	assert_int_equal(pier_work_poll(channel, work[2], &result), -ESTALE);
	destroy(channel);
}

/* Completed requests that nobody asks for are collected when their places are needed. */
static void frees_places_by_collecting(void **state)
{
	struct pier_channel *channel = connected(3, 1 << 20);

	(void)state;
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, NULL), 0);
	for (int i = 0; i < 3; i++)
		complete_first();
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, NULL), 0);
	assert_int_equal(fake.logged, 6);
	fake_complete(fake.send_ids[0], IBV_WC_REM_ACCESS_ERR, IBV_WC_RDMA_WRITE, 0);
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, NULL), -EPIPE);
	test_assert_sentence("IBV_WC_REM_ACCESS_ERR");
	assert_int_equal(fake.logged, 6);
	destroy(channel);
}

static void refuses_unconnected_channels_and_unserved_reads(void **state)
{
	struct pier_endpoint none = peer;
	struct pier_channel *channel;

	(void)state;
	none.max_rd_atomic = 0;
	assert_int_equal(pier_channel_create(fake_reset(), NULL, &channel), 0);
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, NULL),
			 -ENOTCONN);
	assert_int_equal(pier_channel_connect(channel, &none), 0);
	assert_int_equal(test_post_read_vec(channel, (const struct pier_scatter *)pieces,
					    4, parts, 4, NULL),
			 -EOPNOTSUPP);
	assert_int_equal(fake.logged, 0);
	destroy(channel);
}

/* Half a write that nobody can wait for is stopped. */
static void stops_a_transfer_posted_in_part(void **state)
{
	struct pier_channel *channel = connected(8, 1 << 20);
	struct pier_work work = { 7 };

	(void)state;
	fake.fail_call = fake.calls + 1;
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &work),
			 -ENOSPC);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	fake.fail_call = fake.calls + 3;
	assert_int_equal(test_post_write_vec(channel, pieces, 4, parts, 4, &work),
			 -ENOSPC);
	test_assert_sentence(
		"write: 2 of 3 requests were posted, and then: post a write");
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(work.id, 7);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	test_assert_sentence("2 of 3 requests were posted");
	destroy(channel);
}

/* Nothing completes, neither after all is posted nor while waiting for room. */
static void stops_at_its_timeout(void **state)
{
	(void)state;
	for (uint32_t depth = 2; depth <= 3; depth++) {
		struct pier_channel *channel = connected(depth, 1 << 20);

		assert_int_equal(test_channel_write_vec(channel, pieces, 4, parts, 4, 20),
				 -ETIMEDOUT);
		test_assert_sentence("20 ms");
		assert_int_equal(fake.logged, depth);
		assert_int_equal(fake.state, IBV_QPS_ERR);
		assert_int_equal(pier_channel_outstanding(channel), 0);
		assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
		destroy(channel);
	}
}

static void reports_a_failing_queue(void **state)
{
	struct pier_channel *channel = connected(2, 1 << 20);

	(void)state;
	assert_int_equal(test_post_write_vec(channel, pieces, 2, parts, 4, NULL), 0);
	fake.poll_error = -1;
	assert_int_equal(test_post_write_vec(channel, &pieces[2], 1, parts, 4, NULL),
			 -EIO);
	assert_int_equal(fake.logged, 1);
	assert_int_equal(pier_channel_outstanding(channel), 1);
	assert_int_equal(test_channel_write_vec(channel, pieces, 4, parts, 4, 1000),
			 -EIO);
	test_assert_sentence("write: 1 of 3 requests were posted");
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	fake.poll_error = 0;
	destroy(channel);
}

/*
 * A byte-by-byte model from the words of the header: a byte goes into the request
 * before it unless that is full. The NIC must get the same bytes in as many requests.
 */
enum {
	MAX_PIECES = 40,
	MAX_PARTS = 12,
	MAX_BYTES = 20 * MAX_PIECES,
};

struct byte {
	uint64_t addr, remote_addr;
	uint32_t lkey, rkey;
	uint32_t request;
};

struct plan {
	struct pier_gather pieces[MAX_PIECES];
	struct pier_remote parts[MAX_PARTS];
	uint32_t num_sge, count, max_sge, max_msg_size;
	struct byte bytes[MAX_BYTES];
	uint32_t length, requests;
};

static uint64_t some_or_none(struct test_random *random, uint64_t below)
{
	return test_random_below(random, 3) ? test_random_below(random, below) : 0;
}

static void make_plan(struct plan *plan, struct test_random *random, uint32_t max_sge)
{
	uint64_t room = 0;

	plan->max_sge = max_sge;
	plan->max_msg_size = 1 + (uint32_t)test_random_below(random, 60);
	plan->num_sge = (uint32_t)test_random_below(random, MAX_PIECES + 1);
	plan->count = 1 + (uint32_t)test_random_below(random, MAX_PARTS);
	plan->length = plan->requests = 0;
	for (uint32_t i = 0; i < plan->num_sge; i++) {
		plan->pieces[i].addr = test_random_next(random) >> 1;
		plan->pieces[i].length = (uint32_t)some_or_none(random, 20);
		plan->pieces[i].lkey = i;
		plan->length += plan->pieces[i].length;
	}
	for (uint32_t i = 0; i < plan->count; i++) {
		uint64_t length = some_or_none(random, 120);

		if (i + 1 == plan->count && room + length < plan->length)
			length = plan->length - room;
		plan->parts[i] = (struct pier_remote){ test_random_next(random) >> 1,
						       length, i };
		room += length;
	}
}

/* Where each byte comes from and goes to. */
static void fill_bytes(struct plan *plan)
{
	uint64_t piece_offset = 0, part_offset = 0;
	uint32_t piece = 0, part = 0;

	for (uint32_t i = 0; i < plan->length; i++) {
		while (piece_offset == plan->pieces[piece].length)
			piece++, piece_offset = 0;
		while (part_offset == plan->parts[part].length)
			part++, part_offset = 0;
		plan->bytes[i] = (struct byte){
			.addr = plan->pieces[piece].addr + piece_offset++,
			.remote_addr = plan->parts[part].addr + part_offset++,
			.lkey = plan->pieces[piece].lkey,
			.rkey = plan->parts[part].rkey,
		};
	}
}

static void fill_requests(struct plan *plan)
{
	uint32_t elements = 0, length = 0;

	for (uint32_t i = 0; i < plan->length; i++) {
		struct byte *byte = &plan->bytes[i];
		bool next_part = i == 0 || byte->rkey != byte[-1].rkey;
		bool next_piece = i == 0 || byte->lkey != byte[-1].lkey;

		if (next_part || length == plan->max_msg_size ||
		    (next_piece && elements == plan->max_sge)) {
			plan->requests++;
			elements = length = 0;
			next_piece = true;
		}
		elements += next_piece;
		length++;
		byte->request = plan->requests - 1;
	}
}

static void compare_plan(const struct plan *plan)
{
	uint32_t at = 0;

	assert_int_equal(fake.logged, plan->requests ? plan->requests : 1);
	for (uint32_t request = 0; request < (uint32_t)fake.logged; request++) {
		const struct fake_send *send = &fake.log[request];
		uint64_t remote_addr = send->wr.wr.rdma.remote_addr;

		for (int i = 0; i < send->wr.num_sge; i++) {
			for (uint32_t b = 0; b < send->sg_list[i].length; b++, at++) {
				assert_true(at < plan->length);
				assert_int_equal(plan->bytes[at].request, request);
				assert_int_equal(plan->bytes[at].addr,
						 send->sg_list[i].addr + b);
				assert_int_equal(plan->bytes[at].lkey,
						 send->sg_list[i].lkey);
				assert_int_equal(plan->bytes[at].remote_addr,
						 remote_addr++);
				assert_int_equal(plan->bytes[at].rkey,
						 send->wr.wr.rdma.rkey);
			}
		}
	}
	assert_int_equal(at, plan->length);
}

static void agrees_with_a_model(void **state)
{
	struct test_random random = test_random_start();
	static struct plan plan;
	int compared = 0;

	(void)state;
	for (int round = 0; round < 2000; round++) {
		bool read = test_random_below(&random, 2);
		struct pier_channel *channel;
		int error;

		make_plan(&plan, &random, read ? READ_SGE : SEND_SGE);
		fill_bytes(&plan);
		fill_requests(&plan);
		channel = connected(100, plan.max_msg_size);
		error = read ? test_post_read_vec(
				       channel, (struct pier_scatter *)plan.pieces,
				       plan.num_sge, plan.parts, plan.count, NULL)
			     : test_post_write_vec(channel, plan.pieces, plan.num_sge,
						   plan.parts, plan.count, NULL);
		assert_int_equal(error, plan.requests > 100 ? -E2BIG : 0);
		if (!error) {
			compare_plan(&plan);
			compared++;
		}
		destroy(channel);
	}
	assert_true(compared > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(splits_at_seams),
		cmocka_unit_test(splits_long_messages),
		cmocka_unit_test(splits_many_elements),
		cmocka_unit_test(posts_an_empty_transfer),
		cmocka_unit_test(last_request_carries_the_immediate_data),
		cmocka_unit_test(refuses_invalid_transfers_before_posting),
		cmocka_unit_test(refuses_a_port_that_sends_no_messages),
		cmocka_unit_test(waits_for_room_in_the_queue),
		cmocka_unit_test(keeps_unpolled_results),
		cmocka_unit_test(frees_places_by_collecting),
		cmocka_unit_test(refuses_unconnected_channels_and_unserved_reads),
		cmocka_unit_test(stops_a_transfer_posted_in_part),
		cmocka_unit_test(stops_at_its_timeout),
		cmocka_unit_test(reports_a_failing_queue),
		cmocka_unit_test(agrees_with_a_model),
	};

	return cmocka_run_group_tests_name("channel_vec", tests, NULL, NULL);
}

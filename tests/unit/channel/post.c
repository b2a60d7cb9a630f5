/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests with flags, atomics and batches, as the NIC gets them. */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <arpa/inet.h>
#include <errno.h>

#include <pier/post.h>
#include <pier/recovery.h>
#include <pier/waiting.h>

#include "channel/channel.h"
#include "nic/nic.h"

enum {
	SENDS = 40,
	SGE = 3,
	KEY = 5,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.max_rd_atomic = 4,
};
static const struct pier_remote remote = { 0x10000, 4096, 0x99 };
static const struct pier_gather source = { 0x1000, 8, KEY };
static const struct pier_scatter target = { 0x1000, 8, KEY };

static struct pier_channel *connected_with(uint32_t sends, uint32_t max_inline)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;

	pier_channel_attr_init(&attr);
	fake_reset();
	fake.device.limits.atomic_cap = IBV_ATOMIC_HCA;
	fake.device.limits.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	attr.max_send_wr = sends;
	attr.max_send_sge = attr.max_recv_sge = SGE;
	attr.max_inline = max_inline;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct pier_channel *connected(void)
{
	return connected_with(SENDS, 0);
}

static void complete_sends(int count)
{
	while (count-- > 0)
		fake_complete(fake.send_ids[0], IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 8);
}

static struct pier_request a_write(void)
{
	return (struct pier_request){ .opcode = PIER_OP_WRITE,
				      .gather = &source,
				      .num_sge = 1,
				      .remote = &remote };
}

static void posts_every_verb(void **state)
{
	static const struct {
		enum pier_opcode opcode;
		int flags;
		enum ibv_wr_opcode verb;
		unsigned int send_flags;
	} cases[] = {
		{ PIER_OP_SEND, 0, IBV_WR_SEND, 0 },
		{ PIER_OP_SEND, PIER_POST_IMMEDIATE | PIER_POST_SOLICITED,
		  IBV_WR_SEND_WITH_IMM, IBV_SEND_SOLICITED },
		{ PIER_OP_SEND, PIER_POST_INVALIDATE | PIER_POST_FENCE,
		  IBV_WR_SEND_WITH_INV, IBV_SEND_FENCE },
		{ PIER_OP_WRITE, PIER_POST_FENCE, IBV_WR_RDMA_WRITE, IBV_SEND_FENCE },
		{ PIER_OP_WRITE, PIER_POST_IMMEDIATE, IBV_WR_RDMA_WRITE_WITH_IMM, 0 },
		{ PIER_OP_READ, PIER_POST_FENCE, IBV_WR_RDMA_READ, IBV_SEND_FENCE },
		{ PIER_OP_COMPARE_SWAP, 0, IBV_WR_ATOMIC_CMP_AND_SWP, 0 },
		{ PIER_OP_FETCH_ADD, PIER_POST_FENCE, IBV_WR_ATOMIC_FETCH_AND_ADD,
		  IBV_SEND_FENCE },
	};
	struct pier_channel *channel = connected();

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_request request = a_write();
		const struct ibv_send_wr *wr = &fake.last_send;

		request.opcode = cases[i].opcode;
		request.flags = cases[i].flags;
		request.immediate = 0xa0b0c0d0;
		request.compare = 11;
		request.operand = 22;
		expect_ok(pier_channel_post_request(channel, &request, NULL));
		assert_int_equal(wr->opcode, cases[i].verb);
		assert_int_equal(wr->send_flags, cases[i].send_flags | IBV_SEND_SIGNALED);
		assert_int_equal(fake.log[i].sg_list[0].lkey, KEY);
		if (cases[i].flags & PIER_POST_IMMEDIATE)
			assert_int_equal(ntohl(wr->imm_data), 0xa0b0c0d0);
		if (cases[i].flags & PIER_POST_INVALIDATE)
			assert_int_equal(wr->invalidate_rkey, 0xa0b0c0d0);
		if (cases[i].opcode == PIER_OP_COMPARE_SWAP) {
			assert_int_equal(wr->wr.atomic.compare_add, 11);
			assert_int_equal(wr->wr.atomic.swap, 22);
		}
		if (cases[i].opcode == PIER_OP_FETCH_ADD)
			assert_int_equal(wr->wr.atomic.compare_add, 22);
		if (cases[i].opcode >= PIER_OP_COMPARE_SWAP) {
			assert_int_equal(wr->wr.atomic.remote_addr, remote.addr);
			assert_int_equal(wr->wr.atomic.rkey, remote.rkey);
		} else if (cases[i].opcode != PIER_OP_SEND) {
			assert_int_equal(wr->wr.rdma.remote_addr, remote.addr);
			assert_int_equal(wr->wr.rdma.rkey, remote.rkey);
		}
	}
	expect_ok(pier_channel_destroy(channel));
}

static void refuses_impossible_requests(void **state)
{
	static const struct {
		int opcode, flags;
	} wrong[] = {
		{ 0, 0 },
		{ PIER_OP_RECV, PIER_POST_FENCE },
		{ PIER_OP_RECV_WRITE_IMM, 0 },
		{ PIER_OP_BIND, 0 },
		{ PIER_OP_FETCH_ADD + 1, 0 },
		{ -1, 0 },
		{ PIER_OP_WRITE, 1 << 4 },
		{ PIER_OP_READ, PIER_POST_IMMEDIATE },
		{ PIER_OP_FETCH_ADD, PIER_POST_IMMEDIATE },
		{ PIER_OP_WRITE, PIER_POST_INVALIDATE },
		{ PIER_OP_READ, PIER_POST_INVALIDATE },
		{ PIER_OP_SEND, PIER_POST_INVALIDATE | PIER_POST_IMMEDIATE },
		{ PIER_OP_WRITE, PIER_POST_SOLICITED },
		{ PIER_OP_READ, PIER_POST_SOLICITED },
		{ PIER_OP_COMPARE_SWAP, PIER_POST_SOLICITED },
	};
	struct pier_channel *channel = connected();
	struct pier_request request = a_write();
	struct pier_work work = { 7 };

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		request.opcode = (enum pier_opcode)wrong[i].opcode;
		request.flags = wrong[i].flags;
		expect_result(pier_channel_post_request(channel, &request, &work),
			      -EINVAL);
		expect_result(pier_channel_post_batch(channel, &request, 1, &work),
			      -EINVAL);
	}
	request = a_write();
	request.remote_count = 2;
	expect_result(pier_channel_post_batch(channel, &request, 1, &work), -EINVAL);
	test_assert_sentence("request 0 of a batch: a batch takes no remote vectors");
	fake.device.limits.device_cap_flags = 0;
	request = a_write();
	request.opcode = PIER_OP_SEND;
	request.flags = PIER_POST_INVALIDATE;
	expect_result(pier_channel_post_request(channel, &request, &work), -EOPNOTSUPP);
	assert_int_equal(work.id, 7);
	assert_int_equal(fake.logged, 0);
	expect_ok(pier_channel_destroy(channel));
}

static void refuses_invalid_atomics(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scatter four = { 0x1000, 4, KEY };
	struct pier_remote odd = { 0x10004, 8, 1 }, small = { 0x10000, 7, 1 };
	struct pier_result result;
	struct pier_work work;

	(void)state;
	expect_result(test_post_fetch_add(channel, &four, &remote, 1, NULL), -EINVAL);
	test_assert_sentence("of 4 bytes: atomics take 8");
	expect_result(test_post_fetch_add(channel, &target, &odd, 1, NULL), -EINVAL);
	test_assert_sentence("not a multiple of 8");
	expect_result(test_post_fetch_add(channel, &target, &small, 1, NULL), -ERANGE);
	expect_result(test_post_compare_swap(channel, &target, NULL, 1, 2, NULL),
		      -EINVAL);
	assert_int_equal(fake.logged, 0);
	expect_ok(test_post_compare_swap(channel, &target, &remote, 1, 2, &work));
	assert_non_null(pier_region_in_use(&fake.pd, KEY));
	complete_sends(1);
	expect_result(pier_work_poll(channel, work, &result), 1);
	assert_int_equal(result.opcode, PIER_OP_COMPARE_SWAP);
	assert_int_equal(result.byte_length, 8);
	assert_null(pier_region_in_use(&fake.pd, KEY));
	fake.completes = true;
	expect_ok(test_channel_compare_swap(channel, &target, &remote, 1, 2, 1000));
	expect_ok(test_channel_fetch_add(channel, &target, &remote, 1, 1000));
	assert_int_equal(fake.last_send.opcode, IBV_WR_ATOMIC_FETCH_AND_ADD);
	fake.completes_with = IBV_WC_REM_ACCESS_ERR;
	expect_result(test_channel_fetch_add(channel, &target, &remote, 1, 1000),
		      -EACCES);
	test_assert_sentence("fetch and add failed");
	expect_ok(pier_channel_destroy(channel));

	channel = connected();
	expect_ok(pier_channel_destroy(channel));
	fake.device.limits.atomic_cap = IBV_ATOMIC_NONE;
	expect_ok(pier_channel_create(&fake.pd, NULL, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	expect_result(test_post_fetch_add(channel, &target, &remote, 1, NULL),
		      -EOPNOTSUPP);
	expect_ok(pier_channel_destroy(channel));
}

static struct pier_work post_with_context(struct pier_channel *channel,
					  enum pier_opcode opcode, void *context)
{
	struct pier_request request = a_write();
	struct pier_work work;

	request.opcode = opcode;
	request.context = context;
	expect_ok(pier_channel_post_request(channel, &request, &work));
	return work;
}

static void expect_context(struct pier_channel *channel, struct pier_work work, int error,
			   const void *context)
{
	struct pier_result result = { .context = channel };

	expect_result(pier_work_poll(channel, work, &result), 1);
	assert_int_equal(result.error, error);
	assert_ptr_equal(result.context, context);
}

/* Each entry of the ring is used by requests with a context and without one. */
static void contexts_come_back_with_results(void **state)
{
	static const enum pier_opcode opcodes[] = {
		PIER_OP_SEND, PIER_OP_RECV,	 PIER_OP_WRITE,
		PIER_OP_READ, PIER_OP_FETCH_ADD, PIER_OP_WRITE,
	};
	struct pier_channel *channel = connected_with(2, 0);
	struct pier_result result;
	struct pier_work work;
	int marks[6];

	(void)state;
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 6; i++) {
			work = post_with_context(channel, opcodes[i], &marks[i]);
			expect_result(pier_work_poll(channel, work, &result), 0);
			fake_complete(work.id, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 8);
			expect_context(channel, work, 0, &marks[i]);
			expect_result(pier_work_poll(channel, work, &result), -ESTALE);
		}
		expect_ok(pier_channel_post_write(channel, &source, 1, &remote, &work));
		fake_complete(work.id, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 8);
		expect_context(channel, work, 0, NULL);
	}
	expect_ok(pier_channel_post_recv(channel, &target, 1, &work));
	fake_complete(work.id, IBV_WC_SUCCESS, IBV_WC_RECV, 8);
	expect_context(channel, work, 0, NULL);
	expect_ok(pier_channel_destroy(channel));
}

/* Results that were collected with others, set aside, flushed or made up. */
static void contexts_come_back_late(void **state)
{
	struct pier_channel *channel = connected_with(2, 0);
	struct pier_work kept[2], last, lost;
	int marks[4];

	(void)state;
	for (int i = 0; i < 2; i++)
		kept[i] = post_with_context(channel, PIER_OP_WRITE, &marks[i]);
	complete_sends(2);
	assert_int_equal(pier_channel_poll(channel), 2);
	last = post_with_context(channel, PIER_OP_SEND, &marks[2]);
	lost = post_with_context(channel, PIER_OP_SEND, &marks[3]);
	fake_complete(last.id, IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND, 0);
	assert_int_equal(pier_channel_poll(channel), 1);
	expect_ok(pier_channel_cancel(channel));
	expect_context(channel, kept[1], 0, &marks[1]);
	expect_context(channel, kept[0], 0, &marks[0]);
	expect_context(channel, last, -ECANCELED, &marks[2]);
	expect_context(channel, lost, -ECANCELED, &marks[3]);
	expect_ok(pier_channel_destroy(channel));
}

/* A request without a handle fails: the channel says whose it was. */
static void context_names_the_request_that_broke_the_channel(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_request requests[3] = { a_write(), a_write(), a_write() };
	struct pier_channel_failure failure;
	struct pier_work work;
	int marks[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		requests[i].context = &marks[i];
	expect_ok(pier_channel_post_batch(channel, requests, 3, &work));
	fake_complete(fake.log[1].wr.wr_id, IBV_WC_REM_ACCESS_ERR, IBV_WC_RDMA_WRITE, 0);
	fake_complete(work.id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0);
	expect_context(channel, work, -ECANCELED, &marks[2]);
	expect_result(pier_channel_error(channel, &failure, sizeof(failure)), -EACCES);
	assert_ptr_equal(failure.first.context, &marks[1]);
	expect_ok(pier_channel_destroy(channel));
}

/* A list that is split fails in its first part, which has no handle. */
static void parts_of_a_list_have_its_context(void **state)
{
	struct pier_gather list[SGE + 1] = { source, source, source, source };
	struct pier_channel *channel = connected();
	struct pier_request request = a_write();
	struct pier_channel_failure failure;
	struct pier_work work;

	(void)state;
	request.gather = list;
	request.num_sge = SGE + 1;
	request.context = &request;
	expect_ok(pier_channel_post_request(channel, &request, &work));
	assert_int_equal(fake.logged, 2);
	fake_complete(fake.log[0].wr.wr_id, IBV_WC_LOC_PROT_ERR, IBV_WC_RDMA_WRITE, 0);
	fake_complete(work.id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0);
	expect_context(channel, work, -ECANCELED, &request);
	expect_result(pier_channel_error(channel, &failure, sizeof(failure)), -EFAULT);
	assert_ptr_equal(failure.first.context, &request);
	expect_ok(pier_channel_destroy(channel));
}

/* Only the last request is signalled, and its completion covers all. */
static void signals_the_last_of_a_batch(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_request requests[5];
	struct pier_result result;
	struct pier_work work;

	(void)state;
	for (int i = 0; i < 5; i++)
		requests[i] = a_write();
	requests[2].opcode = PIER_OP_SEND;
	requests[2].flags = PIER_POST_IMMEDIATE;
	requests[4].opcode = PIER_OP_READ;
	expect_ok(pier_channel_post_batch(channel, requests, 5, &work));
	assert_int_equal(fake.doorbells, 1);
	assert_int_equal(fake.logged, 5);
	assert_int_equal(pier_channel_outstanding(channel), 5);
	assert_int_equal(pier_channel_send_room(channel), SENDS - 5);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(fake.log[i].wr.send_flags & IBV_SEND_SIGNALED,
				 i == 4 ? IBV_SEND_SIGNALED : 0);
		assert_int_equal(fake.log[i].sg_list[0].addr, source.addr);
	}
	assert_int_equal(fake.log[2].wr.opcode, IBV_WR_SEND_WITH_IMM);
	assert_null(fake.log[4].wr.next);
	assert_int_equal(fake.log[4].wr.wr_id, work.id);
	assert_non_null(pier_region_in_use(&fake.pd, KEY));
	expect_result(pier_work_poll(channel, work, &result), 0);
	fake_complete(work.id, IBV_WC_SUCCESS, IBV_WC_RDMA_READ, 8);
	expect_result(pier_work_poll(channel, work, &result), 1);
	assert_int_equal(result.opcode, PIER_OP_READ);
	assert_int_equal(result.byte_length, 8);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_null(pier_region_in_use(&fake.pd, KEY));
	expect_ok(pier_channel_destroy(channel));
}

static void posts_pairs(void **state)
{
	struct pier_channel *channel = connected_with(SENDS, 4);
	struct pier_write_pair writes[4];
	struct pier_read_pair reads[2];
	struct pier_work work;

	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		writes[i] = (struct pier_write_pair){
			{ 0x1000 + i,
			  i == 1   ? 3
			  : i == 2 ? 0
				   : 100,
			  KEY + i },
			{ 0x10000 + i, 100, 0x90 + i },
		};
	expect_ok(pier_channel_post_writes(channel, writes, 4, &work));
	assert_int_equal(fake.doorbells, 1);
	for (uint32_t i = 0; i < 4; i++) {
		const struct ibv_send_wr *wr = &fake.log[i].wr;
		unsigned int flags = i == 3 ? IBV_SEND_SIGNALED : 0;

		assert_int_equal(wr->opcode, IBV_WR_RDMA_WRITE);
		assert_int_equal(wr->num_sge, 1);
		assert_int_equal(fake.log[i].sg_list[0].lkey, KEY + i);
		assert_int_equal(wr->wr.rdma.remote_addr, 0x10000 + i);
		assert_int_equal(wr->wr.rdma.rkey, 0x90 + i);
		assert_int_equal(wr->send_flags, i == 1 ? IBV_SEND_INLINE : flags);
		/* Neither inline bytes nor empty elements. */
		assert_int_equal(pier_region_in_use(&fake.pd, KEY + i) != NULL,
				 i == 0 || i == 3);
	}
	for (uint32_t i = 0; i < 2; i++)
		reads[i] = (struct pier_read_pair){ { 0x1000, 8, KEY },
						    { 0x10000, 8, 1 } };
	expect_ok(pier_channel_post_reads(channel, reads, 2, NULL));
	assert_int_equal(fake.last_send.opcode, IBV_WR_RDMA_READ);
	reads[1].remote.length = 7;
	expect_result(pier_channel_post_reads(channel, reads, 2, NULL), -ERANGE);
	test_assert_sentence("request 1 of a batch: read of 8 bytes");
	writes[3].gather.length = UINT32_C(1) << 31;
	writes[3].remote.length = UINT32_C(1) << 31;
	expect_result(pier_channel_post_writes(channel, writes, 4, NULL), -EMSGSIZE);
	test_assert_sentence("request 3 of a batch");
	assert_int_equal(fake.logged, 6);
	expect_ok(pier_channel_destroy(channel));
}

static void splits_batches_between_doorbells(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_request requests[SENDS + 1];
	struct pier_work work = { 7 };

	(void)state;
	for (int i = 0; i <= SENDS; i++)
		requests[i] = a_write();
	expect_result(pier_channel_post_batch(channel, requests, 0, &work), -EINVAL);
	expect_result(pier_channel_post_batch(channel, requests, SENDS + 1, &work),
		      -E2BIG);
	/*
	 * An invalid request behind the first doorbell is found before that doorbell is
	 * rung.
	 */
	requests[35].remote = NULL;
	expect_result(pier_channel_post_batch(channel, requests, SENDS, &work), -EINVAL);
	test_assert_sentence("request 35 of a batch");
	requests[35] = a_write();
	requests[3].num_sge = SGE + 1;
	expect_result(pier_channel_post_batch(channel, requests, SENDS, &work), -EINVAL);
	test_assert_sentence("request 3 of a batch: 4 elements");
	requests[3] = a_write();
	assert_int_equal(fake.doorbells, 0);
	expect_ok(pier_channel_post_batch(channel, requests, SENDS, &work));
	assert_int_equal(fake.doorbells, 2);
	for (int i = 0; i < SENDS; i++)
		assert_int_equal(fake.log[i].wr.send_flags,
				 i == SENDS - 1 ? IBV_SEND_SIGNALED : 0);
	assert_null(fake.log[31].wr.next);
	expect_result(pier_channel_post_batch(channel, requests, 1, NULL), -EAGAIN);
	fake_complete(work.id, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0);
	expect_ok(pier_channel_post_batch(channel, requests, 1, NULL));
	expect_ok(pier_channel_destroy(channel));
}

/* A request of a batch fails: its cause is kept, and the batch ends with a flush. */
static void reports_which_request_of_a_batch_failed(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_request requests[4];
	struct pier_result result;
	struct pier_work work;

	(void)state;
	for (int i = 0; i < 4; i++)
		requests[i] = a_write();
	expect_ok(pier_channel_post_batch(channel, requests, 4, &work));
	fake_complete(fake.log[1].wr.wr_id, IBV_WC_REM_ACCESS_ERR, IBV_WC_RDMA_WRITE, 0);
	fake_complete(fake.log[2].wr.wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0);
	expect_result(pier_work_poll(channel, work, &result), 0);
	assert_int_equal(pier_channel_outstanding(channel), 1);
	fake_complete(work.id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0);
	expect_result(test_work_wait(channel, work, 0, &result), -ECANCELED);
	test_assert_sentence("IBV_WC_REM_ACCESS_ERR");
	expect_result(pier_channel_post_batch(channel, requests, 4, &work), -EPIPE);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_ok(pier_channel_destroy(channel));
}

static void stops_a_batch_posted_in_part(void **state)
{
	(void)state;
	for (int refused = 0; refused < SENDS; refused++) {
		struct pier_channel *channel = connected();
		struct pier_request requests[SENDS];
		struct pier_work work = { 7 };

		for (int i = 0; i < SENDS; i++)
			requests[i] = a_write();
		fake.fail_call = fake.calls + 1 + refused;
		expect_result(pier_channel_post_batch(channel, requests, SENDS, &work),
			      -ENOSPC);
		assert_int_equal(fake.state, refused ? IBV_QPS_ERR : IBV_QPS_RTS);
		assert_int_equal(pier_channel_outstanding(channel), 0);
		assert_int_equal(work.id, 7);
		assert_null(pier_region_in_use(&fake.pd, KEY));
		expect_result(pier_channel_post_batch(channel, requests, 1, NULL),
			      refused ? -EPIPE : 0);
		expect_ok(pier_channel_destroy(channel));
	}
}

/* A request that the device refused needs no completion. */
static void forgets_refused_requests(void **state)
{
	const struct pier_request requests[2] = { a_write(), a_write() };
	struct pier_channel *channel = connected();
	struct pier_work work = { 7 };

	(void)state;
	fake.fail_call = fake.calls + 1;
	expect_result(pier_channel_post_recv(channel, &target, 1, &work), -ENOSPC);
	fake.fail_call = fake.calls + 1;
	expect_result(pier_channel_post_write(channel, &source, 1, &remote, &work),
		      -ENOSPC);
	fake.fail_call = fake.calls + 2;
	expect_result(pier_channel_post_batch(channel, requests, 2, &work), -ENOSPC);
	expect_ok(pier_channel_cancel(channel));
	assert_int_equal(channel->sends.kept, 0);
	assert_int_equal(channel->receives.kept, 0);
	assert_int_equal(work.id, 7);
	expect_ok(pier_channel_destroy(channel));
}

/* A batch never overwrites a result that somebody may still ask for. */
static void batches_keep_earlier_results(void **state)
{
	struct pier_channel *channel = connected_with(4, 0);
	struct pier_request requests[4];
	struct pier_work works[4], work;
	struct pier_result result;

	(void)state;
	for (int i = 0; i < 4; i++) {
		requests[i] = a_write();
		requests[i].opcode = PIER_OP_READ;
		expect_ok(pier_channel_post_request(channel, &requests[i], &works[i]));
	}
	complete_sends(4);
	expect_ok(pier_channel_post_batch(channel, requests, 4, &work));
	for (int i = 0; i < 4; i++) {
		expect_result(pier_work_poll(channel, works[i], &result), 1);
		assert_int_equal(result.byte_length, 8);
	}
	expect_ok(pier_channel_destroy(channel));
}

static void splits_long_lists(void **state)
{
	const struct pier_gather list[7] = { { 1, 10, 1 }, { 2, 10, 2 }, { 3, 10, 3 },
					     { 4, 10, 4 }, { 5, 10, 5 }, { 6, 10, 6 },
					     { 7, 10, 7 } };
	struct pier_channel *channel = connected();
	struct pier_request request = a_write();
	struct pier_work work;

	(void)state;
	request.gather = list;
	request.num_sge = 7;
	request.flags = PIER_POST_IMMEDIATE | PIER_POST_SOLICITED | PIER_POST_FENCE;
	request.immediate = 9;
	expect_ok(pier_channel_post_request(channel, &request, &work));
	assert_int_equal(fake.logged, 3);
	for (int i = 0; i < 3; i++) {
		const struct ibv_send_wr *wr = &fake.log[i].wr;

		assert_int_equal(wr->opcode,
				 i == 2 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
		assert_int_equal(wr->num_sge, i == 2 ? 1 : 3);
		assert_int_equal(wr->wr.rdma.remote_addr, remote.addr + 30u * i);
		assert_true(wr->send_flags & IBV_SEND_FENCE);
		assert_int_equal(wr->send_flags & IBV_SEND_SOLICITED,
				 i == 2 ? IBV_SEND_SOLICITED : 0);
	}
	complete_sends(3);
	expect_ok(test_work_wait(channel, work, 0, NULL));
	fake.completes = true;
	expect_ok(pier_channel_write(channel, list, 7, &remote, 1000));
	expect_ok(pier_channel_read(channel, (const struct pier_scatter *)list, 7,
				    &remote, 1000));
	assert_int_equal(fake.logged, 9);
	request.opcode = PIER_OP_SEND;
	request.flags = 0;
	expect_result(pier_channel_post_request(channel, &request, NULL), -EINVAL);
	expect_result(pier_channel_post_write(channel, list, 7, NULL, NULL), -EINVAL);
	expect_ok(pier_channel_destroy(channel));
}

static void dropped_handles_free_their_places(void **state)
{
	struct pier_channel *channel = connected_with(2, 0);
	struct pier_result result;
	struct pier_work works[2];

	(void)state;
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 2; i++)
			expect_ok(pier_channel_post_write(channel, &source, 1, &remote,
							  &works[i]));
		expect_ok(pier_work_drop(channel, works[0]));
		expect_result(pier_work_drop(channel, works[0]), -ESTALE);
		expect_result(pier_work_poll(channel, works[0], &result), -ESTALE);
		complete_sends(2);
		expect_result(pier_channel_poll(channel), 2);
		expect_ok(pier_work_drop(channel, works[1]));
		expect_result(pier_work_poll(channel, works[1], &result), -ESTALE);
		assert_int_equal(pier_channel_outstanding(channel), 0);
	}
	expect_ok(pier_channel_destroy(channel));
}

/* Random posts and polls: each handle gets its own result, once. */
static void agrees_with_a_model(void **state)
{
	struct pier_channel *channel = connected_with(8, 0);
	struct test_random random = test_random_start();
	struct {
		struct pier_work work;
		uint32_t length;
	} open[32];
	int count = 0;

	(void)state;
	for (int step = 0; step < 20000; step++) {
		struct pier_scatter element = { 0, 1, KEY };
		struct pier_result result;
		int which, done;

		element.length += (uint32_t)test_random_below(&random, 1000);
		switch (test_random_below(&random, 4)) {
		case 0:
			if (count == 16 || !pier_channel_send_room(channel))
				break;
			done = pier_channel_post_read(channel, &element, 1, &remote,
						      &open[count].work);
			if (done == -EAGAIN)
				break;
			expect_ok(done);
			open[count++].length = element.length;
			break;
		case 1:
			done = pier_channel_post_write(channel, &source, 1, &remote,
						       NULL);
			assert_true(done == 0 || done == -EAGAIN);
			break;
		case 2:
			complete_sends(fake.sends < 3 ? fake.sends : 3);
			break;
		default:
			if (count == 0)
				break;
			which = (int)test_random_below(&random, (uint64_t)count);
			done = pier_work_poll(channel, open[which].work, &result);
			assert_true(done == 0 || done == 1);
			if (done == 0)
				break;
			assert_int_equal(result.error, 0);
			assert_int_equal(result.opcode, PIER_OP_READ);
			assert_int_equal(result.byte_length, open[which].length);
			expect_result(pier_work_poll(channel, open[which].work, &result),
				      -ESTALE);
			open[which] = open[--count];
		}
		assert_true(pier_channel_outstanding(channel) <= 8);
	}
	expect_ok(pier_channel_destroy(channel));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(posts_every_verb),
		cmocka_unit_test(refuses_impossible_requests),
		cmocka_unit_test(refuses_invalid_atomics),
		cmocka_unit_test(contexts_come_back_with_results),
		cmocka_unit_test(contexts_come_back_late),
		cmocka_unit_test(context_names_the_request_that_broke_the_channel),
		cmocka_unit_test(parts_of_a_list_have_its_context),
		cmocka_unit_test(signals_the_last_of_a_batch),
		cmocka_unit_test(posts_pairs),
		cmocka_unit_test(splits_batches_between_doorbells),
		cmocka_unit_test(reports_which_request_of_a_batch_failed),
		cmocka_unit_test(stops_a_batch_posted_in_part),
		cmocka_unit_test(forgets_refused_requests),
		cmocka_unit_test(batches_keep_earlier_results),
		cmocka_unit_test(splits_long_lists),
		cmocka_unit_test(dropped_handles_free_their_places),
		cmocka_unit_test(agrees_with_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

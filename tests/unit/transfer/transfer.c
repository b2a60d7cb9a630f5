/* SPDX-License-Identifier: BSD-3-Clause */
/* How a transfer becomes requests, as the NIC gets them. */
#include <arpa/inet.h>

#include "tests/support/random.h"
#include "transfer_fixture.h"

static void limits_requests_in_flight(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);

	(void)state;
	attr.window = 3;
	begin_with(&attr);
	assert_int_equal(fake.sends, 0);
	expect_going(3);
	expect_going(3);
	assert_int_equal(status().in_flight, 3);
	assert_int_equal(rail_status().in_flight, 3);
	complete(1, IBV_WC_SUCCESS);
	expect_going(3);
	assert_int_equal(status().done, 10);
	complete(3, IBV_WC_SUCCESS);
	expect_going(3);
	assert_int_equal(status().done, 40);
	finish(0, 0, 95);
	assert_int_equal(rail_status().done, 95);
}

/* Half of the queue by default, and all of it at most. */
static void leaves_room_for_other_requests(void **state)
{
	struct pier_transfer_attr attr = attr_of(1000);

	(void)state;
	begin(1000);
	expect_going(DEPTH / 2);
	expect_ok(pier_transfer_cancel(transfer));
	complete(DEPTH / 2, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), -ECANCELED);
	expect_ok(pier_transfer_destroy(transfer));
	attr.window = 1000;
	begin_with(&attr);
	expect_going(DEPTH);
	complete(DEPTH, IBV_WC_SUCCESS);
	expect_going(DEPTH);
	complete(DEPTH, IBV_WC_SUCCESS);
	expect_ok(pier_transfer_cancel(transfer));
	expect_result(pier_transfer_progress(transfer), -ECANCELED);
	assert_int_equal(status().done, 20 * DEPTH);
}

static void shares_the_queue_with_other_requests(void **state)
{
	struct pier_gather element = { 0x10000, 1, 0x11 };
	struct pier_work works[DEPTH - 1];
	struct pier_transfer_attr attr = attr_of(50);

	(void)state;
	for (int i = 0; i < DEPTH - 1; i++)
		expect_ok(pier_channel_post_write(channel, &element, 1, &target,
						  &works[i]));
	attr.window = 4;
	begin_with(&attr);
	expect_going(DEPTH);
	complete(2, IBV_WC_SUCCESS);
	/* Their places are free; their results are kept for their owner. */
	expect_going(DEPTH);
	expect_result(pier_work_poll(channel, works[0], NULL), 1);
	expect_result(pier_work_poll(channel, works[1], NULL), 1);
	complete(DEPTH, IBV_WC_SUCCESS);
	for (int i = 2; i < DEPTH - 1; i++)
		expect_result(pier_work_poll(channel, works[i], NULL), 1);
	finish(DEPTH - 1, 0, 50);
}

static void ends_chunks_at_seams(void **state)
{
	static const struct pier_remote parts[] = {
		{ 0x1000, 4, 1 }, { 0x2000, 0, 2 }, { 0x3000, 15, 3 }, { 0x4000, 50, 4 }
	};
	static const struct {
		uint64_t addr;
		uint32_t rkey, length;
	} expected[] = { { 0x1002, 1, 2 },
			 { 0x3000, 3, 10 },
			 { 0x300a, 3, 5 },
			 { 0x4000, 4, 10 },
			 { 0x400a, 4, 3 } };
	struct pier_transfer_attr attr = attr_of(30);

	(void)state;
	rail.parts = parts;
	rail.count = 4;
	rail.remote_offset = 2;
	rail.offset = 100;
	attr.window = DEPTH;
	begin_with(&attr);
	expect_going(5);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(fake.log[i].wr.wr.rdma.remote_addr, expected[i].addr);
		assert_int_equal(fake.log[i].wr.wr.rdma.rkey, expected[i].rkey);
		assert_int_equal(fake.log[i].sg_list[0].length, expected[i].length);
	}
	assert_int_equal(fake.log[1].sg_list[0].addr, region.iova + 102);
	complete(5, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), 1);
}

static void reads_from_the_peer(void **state)
{
	struct pier_transfer_attr attr = attr_of(25);

	(void)state;
	attr.direction = PIER_TRANSFER_READ;
	begin_with(&attr);
	expect_going(3);
	expect_request(0, IBV_WR_RDMA_READ, 0, 10);
	expect_request(2, IBV_WR_RDMA_READ, 20, 5);
	complete(3, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), 1);
}

static void expect_announced(int index, enum ibv_wr_opcode opcode, uint64_t offset,
			     uint32_t length, unsigned int flags)
{
	expect_request(index, opcode, offset, length);
	assert_int_equal(fake.log[index].wr.send_flags, flags);
}

/*
 * The payload goes without immediate data; the write behind it has as many bytes as the
 * chunk has blocks. Both are posted at once, and complete as one.
 */
static void announces_behind_the_payload(void **state)
{
	struct pier_transfer_attr attr = attr_of(5 * 4096 + 100);

	(void)state;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.chunk = 3 * 4096;
	begin_with(&attr);
	expect_going(4);
	assert_int_equal(fake.doorbells, 2);
	expect_announced(0, IBV_WR_RDMA_WRITE, 0, 3 * 4096 - 3, 0);
	expect_announced(1, IBV_WR_RDMA_WRITE_WITH_IMM, 3 * 4096 - 3, 3,
			 IBV_SEND_SIGNALED);
	assert_int_equal(ntohl(fake.log[1].wr.imm_data), 0);
	expect_announced(2, IBV_WR_RDMA_WRITE, 3 * 4096, 2 * 4096 + 100 - 3, 0);
	expect_announced(3, IBV_WR_RDMA_WRITE_WITH_IMM, 5 * 4096 + 100 - 3, 3,
			 IBV_SEND_SIGNALED);
	assert_int_equal(ntohl(fake.log[3].wr.imm_data), 3);
	assert_int_equal(status().in_flight, 2);
	fake_complete(fake.send_ids[1], IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0);
	assert_int_equal(pier_transfer_progress(transfer), 0);
	assert_int_equal(status().done, 3 * 4096);
	fake_complete(fake.log[3].wr.wr_id, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0);
	expect_result(pier_transfer_progress(transfer), 1);
}

/* A queue of 8 requests holds 4 such chunks, of which half are used by default. */
static void announced_chunks_take_two_requests(void **state)
{
	struct pier_transfer_attr attr = attr_of(20 * 4096);

	(void)state;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.chunk = 4096;
	begin_with(&attr);
	expect_going(DEPTH / 2);
	assert_int_equal(status().in_flight, DEPTH / 4);
	expect_ok(pier_transfer_cancel(transfer));
	complete(DEPTH / 2, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), -ECANCELED);
	expect_ok(pier_transfer_destroy(transfer));
	attr.window = 1000;
	begin_with(&attr);
	expect_going(DEPTH);
	assert_int_equal(status().in_flight, DEPTH / 2);
	expect_ok(pier_transfer_cancel(transfer));
	complete(DEPTH, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), -ECANCELED);
}

static void respects_the_longest_message(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	expect_ok(pier_channel_destroy(channel));
	connect_channel(DEPTH, 7);
	attr = attr_of(20);
	begin_with(&attr);
	expect_going(3);
	expect_request(1, IBV_WR_RDMA_WRITE, 7, 7);
	expect_request(2, IBV_WR_RDMA_WRITE, 14, 6);
	complete(3, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), 1);
}

/* A hundred thousand chunks of 100 MiB: more than the fake NIC logs. */
static void moves_tebibytes(void **state)
{
	struct pier_transfer_attr attr;

	(void)state;
	region.length = target.length = UINT64_C(10) << 40;
	attr = attr_of(region.length);
	attr.chunk = 100u << 20;
	fake.completes = true;
	expect_ok(pier_transfer_run(&attr, PATIENT));
	assert_int_equal(fake.last_send.wr.rdma.remote_addr,
			 target.addr + (region.length - 1) / attr.chunk * attr.chunk);
	target.length = 1u << 20;
}

static void completes_an_empty_transfer(void **state)
{
	(void)state;
	begin(0);
	expect_result(pier_transfer_wait(transfer, 0), 1);
	assert_int_equal(fake.logged, 0);
	expect_result(pier_transfer_cancel(transfer), -EALREADY);
	expect_result(pier_transfer_resume(transfer, &rail, 1), -EALREADY);
}

/*
 * Each byte moves once, from its source to its target, in requests that the channel
 * accepts and that are as long as possible.
 */
enum {
	MAX_PARTS = 10,
	MAX_BYTES = 600,
};

struct plan {
	struct ibv_mr verbs[MAX_PARTS];
	struct pier_mr_part locals[MAX_PARTS];
	struct pier_remote remotes[MAX_PARTS];
	uint32_t local_count, remote_count, chunk;
	uint64_t offset, remote_offset, length;
};

static void make_plan(struct plan *plan, struct test_random *random)
{
	uint64_t room = 0, remote_room = 0;

	memset(plan, 0, sizeof(*plan));
	plan->local_count = 1 + (uint32_t)test_random_below(random, MAX_PARTS);
	plan->remote_count = 1 + (uint32_t)test_random_below(random, MAX_PARTS);
	plan->chunk = 1 + (uint32_t)test_random_below(random, 60);
	for (uint32_t i = 0; i < plan->local_count; i++) {
		uint64_t length = 1 + test_random_below(random, 50);

		plan->verbs[i].lkey = 100 + i;
		plan->locals[i] = (struct pier_mr_part){ &plan->verbs[i], room, length,
							 0x100000 * (i + 1),
							 PIER_PATH_HOST };
		room += length;
	}
	for (uint32_t i = 0; i < plan->remote_count; i++) {
		uint64_t length = test_random_below(random, 50);

		plan->remotes[i] = (struct pier_remote){ 0x7000000 * (uint64_t)(i + 1),
							 length, 200 + i };
		remote_room += length;
	}
	plan->offset = test_random_below(random, room + 1);
	plan->remote_offset = test_random_below(random, remote_room + 1);
	room -= plan->offset;
	remote_room -= plan->remote_offset;
	plan->length = test_random_below(random,
					 (room < remote_room ? room : remote_room) + 1);
}

static uint64_t local_addr(const struct plan *plan, uint64_t at, uint32_t *ret_lkey)
{
	uint32_t i = plan->local_count - 1;

	while (plan->locals[i].start > at)
		i--;
	*ret_lkey = 100 + i;
	return plan->locals[i].iova + at - plan->locals[i].start;
}

static uint64_t remote_addr(const struct plan *plan, uint64_t at, uint32_t *ret_rkey)
{
	uint32_t i = 0;

	for (; at >= plan->remotes[i].length; i++)
		at -= plan->remotes[i].length;
	*ret_rkey = 200 + i;
	return plan->remotes[i].addr + at;
}

/* Whether one more byte would have fitted into a request that ends here. */
static bool could_go_on(const struct plan *plan, const struct fake_send *send,
			uint32_t length, uint64_t at)
{
	const struct ibv_sge *last = &send->sg_list[send->wr.num_sge - 1];
	uint32_t rkey, lkey;
	uint64_t addr;

	if (at == plan->length || length == plan->chunk)
		return false;
	remote_addr(plan, plan->remote_offset + at, &rkey);
	addr = local_addr(plan, plan->offset + at, &lkey);
	return rkey == send->wr.wr.rdma.rkey &&
	       (send->wr.num_sge < SEND_SGE ||
		(lkey == last->lkey && addr == last->addr + last->length));
}

/* Returns where the next request begins. */
static uint64_t check_request(const struct plan *plan, const struct fake_send *send,
			      uint64_t at)
{
	uint32_t length = 0, lkey, rkey;

	assert_in_range(send->wr.num_sge, 1, SEND_SGE);
	for (int i = 0; i < send->wr.num_sge; i++) {
		for (uint32_t b = 0; b < send->sg_list[i].length; b++, length++, at++) {
			assert_int_equal(send->sg_list[i].addr + b,
					 local_addr(plan, plan->offset + at, &lkey));
			assert_int_equal(send->sg_list[i].lkey, lkey);
			assert_int_equal(
				send->wr.wr.rdma.remote_addr + length,
				remote_addr(plan, plan->remote_offset + at, &rkey));
			assert_int_equal(send->wr.wr.rdma.rkey, rkey);
		}
	}
	assert_in_range(length, 1, plan->chunk);
	assert_false(could_go_on(plan, send, length, at));
	return at;
}

static void agrees_with_a_model(void **state)
{
	struct test_random random = test_random_start();
	static struct plan plan;
	int compared = 0;

	(void)state;
	fake.completes = true;
	for (int round = 0; round < 3000; round++) {
		struct pier_transfer_attr attr;
		uint64_t at = 0;

		make_plan(&plan, &random);
		region.parts = plan.locals;
		region.part_count = plan.local_count;
		region.length = plan.locals[plan.local_count - 1].start +
				plan.locals[plan.local_count - 1].length;
		attr = attr_of(plan.length);
		attr.chunk = plan.chunk;
		rail.parts = plan.remotes;
		rail.count = plan.remote_count;
		rail.offset = plan.offset;
		rail.remote_offset = plan.remote_offset;
		fake.logged = 0;
		expect_ok(pier_transfer_run(&attr, PATIENT));
		if (fake.logged == FAKE_QUEUE)
			continue; /* more than the fake NIC logs */
		for (int i = 0; i < fake.logged; i++)
			at = check_request(&plan, &fake.log[i], at);
		assert_int_equal(at, plan.length);
		compared++;
	}
	assert_true(compared > 2000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		transfer_test(limits_requests_in_flight),
		transfer_test(leaves_room_for_other_requests),
		transfer_test(shares_the_queue_with_other_requests),
		transfer_test(ends_chunks_at_seams),
		transfer_test(reads_from_the_peer),
		transfer_test(announces_behind_the_payload),
		transfer_test(announced_chunks_take_two_requests),
		transfer_test(respects_the_longest_message),
		transfer_test(moves_tebibytes),
		transfer_test(completes_an_empty_transfer),
		transfer_test(agrees_with_a_model),
	};

	return cmocka_run_group_tests_name("transfer", tests, NULL, NULL);
}

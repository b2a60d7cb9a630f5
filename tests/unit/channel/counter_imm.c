/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>

#include "tests/unit/channel/counter_fixture.h"
#include "tests/support/random.h"

/* Counters of writes with immediate data. The NIC completes what the test says. */

/* A channel, its counter and a region whose number peers know. */
struct announced {
	struct pier_channel *channel;
	struct pier_counter *counter;
	struct pier_mr mr;
};

static struct announced open_announced(void)
{
	struct pier_channel_attr attr;
	struct announced open = { .mr = region_of(fake_reset(), NULL) };

	pier_channel_attr_init(&attr);
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.max_rd_atomic = 1;
	expect_ok(pier_channel_create(&fake.pd, &attr, &open.channel));
	open.counter = counter_of(&fake.pd);
	return open;
}

static void close_announced(struct announced *open)
{
	expect_ok(pier_channel_destroy(open->channel));
	assert_int_equal(open->mr.counters, 0);
	destroy(open->counter);
}

/* A receive that the peer's message has used up; it is not polled. */
static void receive(struct announced *open, enum ibv_wc_opcode opcode, uint32_t immediate)
{
	expect_ok(pier_channel_post_recv(open->channel, NULL, 0, NULL));
	fake_complete_imm(fake.recv_ids[0], opcode, 5, htonl(immediate));
}

static void counts_only_announced_writes(void **state)
{
	struct announced open = open_announced();
	struct pier_result result;
	struct pier_work work;

	(void)state;
	receive(&open, IBV_WC_RECV_RDMA_WITH_IMM, 0x11223344);
	assert_int_equal(pier_channel_poll(open.channel), 1);
	expect_ok(
		pier_counter_bind_imm(open.counter, &open.mr, open.channel, 0x11223344));
	assert_int_equal(pier_counter_read(open.counter), 0);
	receive(&open, IBV_WC_RECV_RDMA_WITH_IMM, 0x11223344);
	receive(&open, IBV_WC_RECV_RDMA_WITH_IMM, 0x11223345);
	receive(&open, IBV_WC_RECV_RDMA_WITH_IMM, 0x44332211);
	receive(&open, IBV_WC_RECV, 0x11223344); /* a send */
	assert_int_equal(pier_channel_poll(open.channel), 4);
	assert_int_equal(pier_counter_read(open.counter), 1);
	/* A handle gives its result as always. */
	expect_ok(pier_channel_post_recv(open.channel, NULL, 0, &work));
	fake_complete_imm(work.id, IBV_WC_RECV_RDMA_WITH_IMM, 7, htonl(0x11223344));
	expect_result(pier_work_poll(open.channel, work, &result), 1);
	assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
	assert_int_equal(result.byte_length, 7);
	assert_int_equal(result.immediate, 0x11223344);
	assert_int_equal(pier_counter_read(open.counter), 2);
	close_announced(&open);
}

static void does_not_count_failures(void **state)
{
	struct announced open = open_announced();

	(void)state;
	expect_ok(pier_counter_bind_imm(open.counter, &open.mr, open.channel, 0));
	receive(&open, IBV_WC_RECV_RDMA_WITH_IMM, 0);
	expect_ok(pier_channel_post_recv(open.channel, NULL, 0, NULL));
	expect_ok(pier_channel_post_recv(open.channel, NULL, 0, NULL));
	fake_complete(fake.recv_ids[0], IBV_WC_LOC_PROT_ERR, IBV_WC_RECV_RDMA_WITH_IMM,
		      0);
	/* A value that was reached before the wait ends it at once. */
	expect_result(pier_counter_wait(open.counter, 1, PATIENT), 1);
	expect_result(pier_counter_wait(open.counter, 2, PATIENT), -EPIPE);
	test_assert_sentence("the channel is broken");
	assert_int_equal(pier_counter_read(open.counter), 1);
	close_announced(&open);
}

static void collects_completions_while_it_waits(void **state)
{
	struct announced open = open_announced();
	int64_t start;

	(void)state;
	expect_ok(pier_counter_bind_imm(open.counter, &open.mr, open.channel, 8));
	receive(&open, IBV_WC_RECV_RDMA_WITH_IMM, 8);
	assert_int_equal(pier_counter_read(open.counter), 0);
	expect_result(pier_counter_wait(open.counter, 1, 0), 1);
	start = pier_now();
	expect_result(pier_counter_wait(open.counter, 2, BRIEF), -ETIMEDOUT);
	assert_true(pier_now() - start >= BRIEF * INT64_C(1000000));
	/* The refusal breaks nothing. */
	receive(&open, IBV_WC_RECV_RDMA_WITH_IMM, 8);
	expect_result(pier_counter_wait(open.counter, 2, PATIENT), 1);
	fake.poll_error = -1;
	expect_result(pier_counter_wait(open.counter, 3, PATIENT), -EIO);
	fake.poll_error = 0;
	close_announced(&open);
}

static void refuses_invalid_bindings(void **state)
{
	struct announced open = open_announced();
	struct pier_counter *other = counter_of(&fake.pd);
	struct pier_pd elsewhere = fake.pd;

	(void)state;
	open.mr.access = PIER_ACCESS_LOCAL_WRITE;
	expect_result(pier_counter_bind_imm(other, &open.mr, open.channel, 1), -EACCES);
	test_assert_sentence("region");
	open.mr.access = PIER_ACCESS_SHARED;
	open.channel->attr.access = PIER_ACCESS_REMOTE_READ;
	expect_result(pier_counter_bind_imm(other, &open.mr, open.channel, 1), -EACCES);
	test_assert_sentence("through the channel");
	open.channel->attr.access = PIER_ACCESS_SHARED;
	open.channel->pd = &elsewhere;
	expect_result(pier_counter_bind_imm(other, &open.mr, open.channel, 1), -EINVAL);
	open.channel->pd = &fake.pd;
	expect_ok(pier_counter_bind_imm(open.counter, &open.mr, open.channel, 1));
	expect_result(pier_counter_bind_imm(other, &open.mr, open.channel, 1), -EBUSY);
	expect_result(pier_counter_bind_imm(open.counter, &open.mr, open.channel, 1),
		      -EBUSY);
	test_assert_sentence("immediate 0x1");
	expect_ok(pier_counter_bind_imm(other, &open.mr, open.channel, 2));
	expect_result(pier_mr_dereg(&open.mr), -EBUSY);
	expect_ok(pier_counter_unbind(other, &open.mr));
	expect_ok(pier_counter_destroy(other));
	close_announced(&open);
}

enum {
	COUNTERS = 4,
	IMMEDIATES = 40,
	REGIONS = 3,
};

/* A model of the bindings. */
struct model {
	struct test_random random;
	struct pier_counter *counters[COUNTERS];
	struct pier_mr mrs[REGIONS];
	struct {
		int counter, region; /* -1: not counted */
	} of[IMMEDIATES];
	uint64_t expected[COUNTERS];
	struct announced open; /* Its region cannot be unbound: last. */
};

static void open_model(struct model *model)
{
	*model = (struct model){ .random = test_random_start(),
				 .open = open_announced() };
	for (int i = 0; i < COUNTERS; i++)
		model->counters[i] = counter_of(&fake.pd);
	for (int i = 0; i < REGIONS; i++)
		model->mrs[i] = region_of(&fake.pd, NULL);
	for (int i = 0; i < IMMEDIATES; i++)
		model->of[i].counter = model->of[i].region = -1;
}

/* The channel is destroyed first, and ends its bindings. */
static void close_model(struct model *model)
{
	expect_ok(pier_channel_destroy(model->open.channel));
	for (int i = 0; i < REGIONS; i++)
		assert_int_equal(model->mrs[i].counters, 0);
	for (int i = 0; i < COUNTERS; i++)
		expect_ok(pier_counter_destroy(model->counters[i]));
	destroy(model->open.counter);
}

static int any(struct model *model, int below)
{
	return (int)test_random_below(&model->random, (uint64_t)below);
}

/* Also numbers that are negative as ints. */
static uint32_t immediate_of(int number)
{
	return (uint32_t)number * 0x0fedcba9u;
}

static void arrive_some(struct model *model)
{
	int number = any(model, IMMEDIATES), counter = model->of[number].counter;

	receive(&model->open, IBV_WC_RECV_RDMA_WITH_IMM, immediate_of(number));
	assert_int_equal(pier_channel_poll(model->open.channel), 1);
	if (counter >= 0)
		model->expected[counter]++;
}

static void bind_some(struct model *model)
{
	int number = any(model, IMMEDIATES);
	int counter = any(model, COUNTERS), region = any(model, REGIONS);
	bool taken = model->of[number].counter >= 0;

	expect_result(pier_counter_bind_imm(model->counters[counter], &model->mrs[region],
					    model->open.channel, immediate_of(number)),
		      taken ? -EBUSY : 0);
	if (taken)
		return;
	model->of[number].counter = counter;
	model->of[number].region = region;
}

static void unbind_some(struct model *model)
{
	int counter = any(model, COUNTERS), region = any(model, REGIONS);
	bool bound = false;

	for (int i = 0; i < IMMEDIATES; i++) {
		if (model->of[i].counter != counter || model->of[i].region != region)
			continue;
		bound = true;
		model->of[i].counter = model->of[i].region = -1;
	}
	expect_result(pier_counter_unbind(model->counters[counter], &model->mrs[region]),
		      bound ? 0 : -ENOENT);
}

static void agrees_with_a_model(void **state)
{
	struct model model;

	(void)state;
	open_model(&model);
	for (int step = 0; step < 20000; step++) {
		int what = any(&model, 100);

		if (what < 60)
			arrive_some(&model);
		else if (what < 98)
			bind_some(&model);
		else
			unbind_some(&model);
		for (int i = 0; i < COUNTERS; i++)
			assert_int_equal(pier_counter_read(model.counters[i]),
					 model.expected[i]);
	}
	close_model(&model);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		counter_case(counts_only_announced_writes),
		counter_case(does_not_count_failures),
		counter_case(collects_completions_while_it_waits),
		counter_case(refuses_invalid_bindings),
		counter_case(agrees_with_a_model),
	};

	return cmocka_run_group_tests_name("counters of immediates", cases, NULL, NULL);
}

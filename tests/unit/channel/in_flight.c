/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Regions in use by the requests of channels, and for how long. The NIC completes what
 * the test says.
 */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include <pier/channel.h>

#include "device/pd.h"
#include "nic/nic.h"

enum {
	KEY = 5,
	OTHER = 6,
	SGE = 3,
	SENDS = 4,
	RECEIVES = 3,
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

static struct pier_channel *connected_with(uint32_t max_inline)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = SENDS;
	attr.max_recv_wr = RECEIVES;
	attr.max_send_sge = attr.max_recv_sge = SGE;
	attr.max_inline = max_inline;
	expect_ok(pier_channel_create(fake_reset(), &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct pier_channel *connected(void)
{
	return connected_with(0);
}

static void expect_use(uint32_t key, const char *name)
{
	const char *use = pier_region_in_use(&fake.pd, key);

	if (!name)
		assert_null(use);
	else if (!use)
		fail_msg("a %s does not keep the region", name);
	else
		assert_string_equal(use, name);
}

static void complete_send(void)
{
	fake_complete(fake.send_ids[0], IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 8);
}

/* From posting until the completion is collected, not only until it arrives. */
static void expect_kept(struct pier_channel *channel, struct pier_work work,
			const char *name)
{
	struct pier_result result;

	expect_use(KEY, name);
	expect_use(OTHER, NULL);
	expect_use(0, NULL);
	if (fake.sends)
		complete_send();
	else
		fake_complete(fake.recv_ids[0], IBV_WC_SUCCESS, IBV_WC_RECV, 8);
	expect_use(KEY, name);
	expect_result(pier_work_poll(channel, work, &result), 1);
	expect_use(KEY, NULL);
}

static void keeps_the_regions_of_each_kind_of_request(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work;

	(void)state;
	expect_use(KEY, NULL);
	expect_ok(pier_channel_post_send(channel, &source, 1, &work));
	expect_kept(channel, work, "send");
	expect_ok(test_post_send_imm(channel, &source, 1, 1, &work));
	expect_kept(channel, work, "send");
	expect_ok(pier_channel_post_write(channel, &source, 1, &remote, &work));
	expect_kept(channel, work, "write");
	expect_ok(test_post_write_imm(channel, &source, 1, &remote, 1, &work));
	expect_kept(channel, work, "write");
	expect_ok(pier_channel_post_read(channel, &target, 1, &remote, &work));
	expect_kept(channel, work, "read");
	expect_ok(pier_channel_post_recv(channel, &target, 1, &work));
	expect_kept(channel, work, "receive");
	expect_ok(pier_channel_destroy(channel));
}

static void keeps_regions_of_unwatched_requests(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	expect_ok(pier_channel_post_write(channel, &source, 1, &remote, NULL));
	complete_send();
	expect_use(KEY, "write");
	expect_result(pier_channel_poll(channel), 1);
	expect_use(KEY, NULL);
	expect_ok(pier_channel_destroy(channel));
}

/* Devices ignore the keys of empty elements. */
static void ignores_keys_of_empty_elements(void **state)
{
	struct pier_gather empty[SGE] = { { 0, 0, KEY }, { 1, 1, OTHER }, { 2, 0, KEY } };
	struct pier_channel *channel = connected_with(8);
	struct pier_gather longer = { 0x1000, 9, KEY };

	(void)state;
	expect_ok(pier_channel_post_write(channel, &source, 1, &remote, NULL));
	assert_true(fake.last_send.send_flags & IBV_SEND_INLINE);
	expect_use(KEY, NULL);
	expect_ok(pier_channel_post_write(channel, &longer, 1, &remote, NULL));
	expect_use(KEY, "write");
	expect_ok(pier_channel_destroy(channel));

	channel = connected();
	expect_ok(pier_channel_post_write(channel, empty, SGE, &remote, NULL));
	expect_use(KEY, NULL);
	expect_use(OTHER, "write");
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	expect_use(KEY, NULL);
	expect_ok(pier_channel_destroy(channel));
}

static void refused_request_keeps_no_region(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	fake.fail_call = fake.calls + 1;
	expect_result(pier_channel_post_write(channel, &source, 1, &remote, NULL),
		      -ENOSPC);
	expect_use(KEY, NULL);
	fake.fail_call = fake.calls + 1;
	expect_result(pier_channel_post_recv(channel, &target, 1, NULL), -ENOSPC);
	expect_use(KEY, NULL);
	expect_ok(pier_channel_destroy(channel));
}

static void stopped_channel_keeps_no_region(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work;

	(void)state;
	expect_ok(pier_channel_post_recv(channel, &target, 1, NULL));
	expect_ok(pier_channel_post_write(channel, &source, 1, &remote, &work));
	expect_result(test_work_finish(channel, work, 0, NULL), -ETIMEDOUT);
	expect_use(KEY, NULL);
	expect_ok(pier_channel_destroy(channel));

	/* A queue pair that gives no flushes either. */
	channel = connected();
	fake.never_flushes = true;
	expect_ok(pier_channel_post_recv(channel, &target, 1, NULL));
	expect_ok(pier_channel_post_write(channel, &source, 1, &remote, &work));
	expect_result(test_work_finish(channel, work, 0, NULL), -ETIMEDOUT);
	expect_use(KEY, NULL);
	expect_ok(pier_channel_destroy(channel));
}

static void destroying_the_channel_releases_regions(void **state)
{
	struct pier_channel *first = connected(), *second = NULL;

	(void)state;
	expect_ok(pier_channel_create(&fake.pd, NULL, &second));
	expect_ok(pier_channel_post_recv(second, &target, 1, NULL));
	expect_use(KEY, "receive");
	expect_ok(pier_channel_post_write(first, &source, 1, &remote, NULL));
	expect_ok(pier_channel_destroy(second));
	expect_use(KEY, "write");
	expect_ok(pier_channel_destroy(first));
	expect_use(KEY, NULL);
}

/* A model of what is outstanding, beside the channel's own. */
struct model {
	struct pier_work works[SENDS + RECEIVES];
	uint32_t keys[SENDS + RECEIVES][SGE]; /* 0: none */
	int posted[SENDS + RECEIVES];	      /* the step in which it was posted */
};

enum {
	MODEL_KEYS = 6, /* from 1 */
};

static void expect_model(const struct model *model)
{
	for (uint32_t key = 1; key <= MODEL_KEYS; key++) {
		bool used = false;

		for (int i = 0; i < SENDS + RECEIVES; i++)
			for (int j = 0; j < SGE; j++)
				used |= model->keys[i][j] == key;
		if (used != (pier_region_in_use(&fake.pd, key) != NULL))
			fail_msg("key %u: in use is %d", key, used);
	}
}

static void post_random(struct pier_channel *channel, struct model *model, int i,
			struct test_random *random)
{
	struct pier_scatter elements[SGE];
	int count = (int)test_random_below(random, SGE + 1);

	for (int j = 0; j < count; j++) {
		elements[j] = (struct pier_scatter){
			.addr = 1,
			.length = (uint32_t)test_random_below(random, 3),
			.lkey = 1 + (uint32_t)test_random_below(random, MODEL_KEYS),
		};
		model->keys[i][j] = elements[j].length ? elements[j].lkey : 0;
	}
	if (i < SENDS)
		expect_ok(pier_channel_post_read(channel, elements, count, &remote,
						 &model->works[i]));
	else
		expect_ok(pier_channel_post_recv(channel, elements, count,
						 &model->works[i]));
}

static void finish(struct pier_channel *channel, struct model *model, int i)
{
	struct pier_result result;

	fake_complete(model->works[i].id, IBV_WC_SUCCESS, IBV_WC_RDMA_READ, 0);
	expect_model(model);
	expect_result(pier_work_poll(channel, model->works[i], &result), 1);
	model->works[i].id = 0;
	memset(model->keys[i], 0, sizeof(model->keys[i]));
}

/* Queues complete in order. */
static int oldest_beside(const struct model *model, int i)
{
	int first = i < SENDS ? 0 : SENDS, end = i < SENDS ? SENDS : SENDS + RECEIVES;

	for (int j = first; j < end; j++) {
		if (model->works[j].id && model->posted[j] < model->posted[i])
			i = j;
	}
	return i;
}

static void agrees_with_a_model(void **state)
{
	struct pier_channel *channel = connected();
	struct test_random random = test_random_start();
	struct model model = { 0 };

	(void)state;
	for (int step = 0; step < 5000; step++) {
		int i = (int)test_random_below(&random, SENDS + RECEIVES);

		if (model.works[i].id) {
			finish(channel, &model, oldest_beside(&model, i));
		} else {
			post_random(channel, &model, i, &random);
			model.posted[i] = step;
		}
		expect_model(&model);
	}
	expect_ok(pier_channel_destroy(channel));
}

struct watch {
	struct pier_pd *pd;
	atomic_bool stop;
	bool wrong;
	unsigned int looks;
};

/* No request uses OTHER, whatever happens to KEY in the same slots. */
static void *look_for_other(void *argument)
{
	struct watch *watch = argument;

	do {
		watch->wrong |= pier_region_in_use(watch->pd, OTHER) != NULL;
		pier_region_in_use(watch->pd, KEY);
		watch->looks++;
	} while (!atomic_load(&watch->stop));
	return NULL;
}

static void post_and_finish(struct pier_channel *channel,
			    const struct pier_scatter *elements, int count)
{
	struct pier_work work;
	struct pier_result result;

	expect_ok(pier_channel_post_read(channel, elements, count, &remote, &work));
	complete_send();
	expect_result(pier_work_poll(channel, work, &result), 1);
}

static void can_be_queried_while_requests_run(void **state)
{
	struct pier_scatter old[SGE] = { { 1, 1, OTHER },
					 { 1, 1, OTHER },
					 { 1, 1, OTHER } };
	struct pier_scatter new[SGE] = { { 1, 1, KEY }, { 1, 1, KEY }, { 1, 1, KEY } };
	struct pier_channel *channel = connected();
	struct watch watch = { .pd = &fake.pd };
	pthread_t thread;

	(void)state;
	for (int i = 0; i < SENDS; i++)
		post_and_finish(channel, old, SGE);
	assert_int_equal(pthread_create(&thread, NULL, look_for_other, &watch), 0);
	for (int i = 0; i < 20000; i++)
		post_and_finish(channel, new, 1 + i % SGE);
	atomic_store(&watch.stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(watch.looks > 0);
	assert_false(watch.wrong);
	expect_ok(pier_channel_destroy(channel));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keeps_the_regions_of_each_kind_of_request),
		cmocka_unit_test(keeps_regions_of_unwatched_requests),
		cmocka_unit_test(ignores_keys_of_empty_elements),
		cmocka_unit_test(refused_request_keeps_no_region),
		cmocka_unit_test(stopped_channel_keeps_no_region),
		cmocka_unit_test(destroying_the_channel_releases_regions),
		cmocka_unit_test(agrees_with_a_model),
		cmocka_unit_test(can_be_queried_while_requests_run),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

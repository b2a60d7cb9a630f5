/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/element.h>
#include <pier/error.h>
#include <pier/verbs.h>

#include "region/mr.h"
#include "nic/nic.h"

/*
 * Sub-regions for the peer of a channel: which requests the NIC gets, and which it does
 * not.
 */

enum {
	LENGTH = 16384,
	OFFSET = 4100,
	PART = 777,
	KEY_BOUND = 0x2000, /* FAKE_MW_KEY, incremented */
	ALL_RIGHTS = PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC | PIER_ACCESS_MW_BIND,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.mtu = 1024,
};

struct world {
	struct pier_channel *channel;
	struct pier_mr *base;
	struct test_census before;
	uint8_t memory[LENGTH];
};

static int set_up(void **state)
{
	struct world *world = calloc(1, sizeof(*world));

	world->before = test_take_census();
	fake_reset();
	fake.device.limits.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	fake.completes = true;
	assert_int_equal(pier_channel_create(&fake.pd, NULL, &world->channel), 0);
	assert_int_equal(pier_channel_connect(world->channel, &peer), 0);
	assert_int_equal(
		pier_mr_reg(&fake.pd, world->memory, LENGTH, ALL_RIGHTS, &world->base),
		0);
	*state = world;
	return 0;
}

static int tear_down(void **state)
{
	struct world *world = *state;

	fake.fail_call = 0;
	assert_int_equal(pier_channel_destroy(world->channel), 0);
	assert_int_equal(pier_mr_dereg(world->base), 0);
	assert_int_equal(fake.mrs, 0);
	assert_int_equal(fake.mws, 0);
	assert_int_equal(fake.pd.children, 0);
	test_assert_census(&world->before);
	free(world);
	return 0;
}

static void register_base(struct world *world, int access)
{
	assert_int_equal(pier_mr_dereg(world->base), 0);
	assert_int_equal(
		pier_mr_reg(&fake.pd, world->memory, LENGTH, access, &world->base), 0);
}

static int bind_part(struct world *world, int access, struct pier_mr **ret_mr)
{
	return pier_mr_bind_sub(world->channel, world->base, OFFSET, PART, access, 1000,
				ret_mr);
}

static struct pier_mr *bound(struct world *world)
{
	struct pier_mr *window;

	assert_int_equal(bind_part(world, PIER_ACCESS_REMOTE_READ, &window), 0);
	assert_true(test_mr_info(window).is_window);
	return window;
}

#define expect_refusal(call, error, text)      \
	do {                                   \
		assert_int_equal(call, error); \
		test_assert_sentence(text);    \
	} while (0)

static void asks_the_nic_to_bind(void **state)
{
	struct world *world = *state;
	const struct ibv_send_wr *wr = &fake.last_send;
	const int access = PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC;
	struct pier_mr *window;
	int mrs = fake.mrs;

	assert_int_equal(bind_part(world, access, &window), 0);
	assert_int_equal(fake.last_mw_type, IBV_MW_TYPE_2);
	assert_int_equal(wr->opcode, IBV_WR_BIND_MW);
	assert_int_equal(wr->num_sge, 0);
	assert_null(wr->next);
	assert_int_equal(wr->send_flags, IBV_SEND_SIGNALED);
	assert_int_equal(wr->bind_mw.rkey, KEY_BOUND);
	assert_int_equal(wr->bind_mw.mw->rkey, KEY_BOUND); /* fixed afterwards */
	assert_ptr_equal(wr->bind_mw.bind_info.mr, pier_mr_verbs(world->base));
	assert_int_equal(wr->bind_mw.bind_info.addr, (uintptr_t)world->memory + OFFSET);
	assert_int_equal(wr->bind_mw.bind_info.length, PART);
	assert_int_equal(wr->bind_mw.bind_info.mw_access_flags, access);
	assert_int_equal(fake.mrs, mrs);
	assert_int_equal(fake.mws, 1);
	assert_int_equal(pier_channel_outstanding(world->channel), 0);
	assert_int_equal(pier_mr_dereg(window), 0);
	assert_int_equal(fake.mws, 0);
}

static void describes_a_region_for_the_peer(void **state)
{
	struct world *world = *state;
	struct pier_mr *window = bound(world), *untouched = NULL;
	struct pier_mr_part_info part;
	struct pier_remote remote;
	struct pier_scatter scatter;
	struct pier_gather gather;

	assert_int_equal(pier_mr_iova(window), (uintptr_t)world->memory + OFFSET);
	assert_int_equal(pier_mr_length(window), PART);
	assert_int_equal(test_mr_info(window).access, PIER_ACCESS_REMOTE_READ);
	assert_int_equal(pier_mr_path(window), PIER_PATH_HOST);
	assert_int_equal(test_mr_info(window).rkey, KEY_BOUND);
	assert_int_equal(test_mr_info(window).lkey, 0);
	assert_null(pier_mr_verbs(window));
	assert_null(test_mr_info(window).context);
	assert_ptr_equal(test_mr_info(window).pd, &fake.pd);
	assert_int_equal(pier_mr_parts(window), 1);
	assert_int_equal(pier_mr_part(window, 0, &part, sizeof(part)), 0);
	assert_int_equal(part.offset, 0);
	assert_int_equal(part.length, PART);
	assert_int_equal(part.iova, pier_mr_iova(window));
	assert_int_equal(part.lkey, 0);
	assert_int_equal(part.rkey, KEY_BOUND);
	assert_int_equal(part.path, PIER_PATH_HOST);
	assert_int_equal(pier_mr_part(window, 1, &part, sizeof(part)), -ERANGE);
	assert_int_equal(pier_mr_remote(window, &remote), 0);
	assert_int_equal(remote.addr, pier_mr_iova(window));
	assert_int_equal(remote.length, PART);
	assert_int_equal(remote.rkey, KEY_BOUND);
	expect_refusal(pier_mr_gather(window, pier_mr_iova(window), 1, &gather), -EACCES,
		       "memory window");
	expect_refusal(pier_mr_scatter(window, pier_mr_iova(window), 1, &scatter),
		       -EACCES, "memory window");
	expect_refusal(pier_mr_reg_sub(window, 0, 1, PIER_ACCESS_REMOTE_READ, &untouched),
		       -EINVAL, "memory window");
	expect_refusal(pier_mr_bind_sub(world->channel, window, 0, 1,
					PIER_ACCESS_REMOTE_READ, 0, &untouched),
		       -EINVAL, "memory window");
	assert_null(untouched);
	assert_false(test_mr_info(world->base).is_window);
	assert_int_equal(pier_mr_dereg(window), 0);
}

static void refuses_invalid_windows_before_posting(void **state)
{
	struct world *world = *state;
	struct pier_channel *channel = world->channel;
	struct pier_mr *base = world->base, *untouched = NULL;
	const int read = PIER_ACCESS_REMOTE_READ;
	struct pier_pd other = fake.pd;
	int calls = fake.calls;

	expect_refusal(bind_part(world, 0, &untouched), -EINVAL, "one or more of them");
	expect_refusal(bind_part(world, PIER_ACCESS_SHARED, &untouched), -EINVAL,
		       "access 0x7");
	expect_refusal(bind_part(world, read | PIER_ACCESS_MW_BIND, &untouched), -EINVAL,
		       "rights of a peer");
	expect_refusal(bind_part(world, read | 1 << 19, &untouched), -EINVAL,
		       "rights of a peer");
	expect_refusal(pier_mr_bind_sub(channel, base, 0, 0, read, 0, &untouched),
		       -EINVAL, "length 0");
	expect_refusal(
		pier_mr_bind_sub(channel, base, LENGTH - 9, 10, read, 0, &untouched),
		-ERANGE, "leave the region");
	expect_refusal(
		pier_mr_bind_sub(channel, base, 1, UINT64_MAX, read, 0, &untouched),
		-ERANGE, "leave the region");
	expect_refusal(pier_mr_bind_sub(channel, base, 0, 1, read, -2, &untouched),
		       -EINVAL, "timeout_ms");
	fake.device.lacking_access = PIER_ACCESS_REMOTE_ATOMIC;
	expect_refusal(bind_part(world, PIER_ACCESS_REMOTE_ATOMIC, &untouched),
		       -EOPNOTSUPP, "REMOTE_ATOMIC");
	base->pd = &other;
	expect_refusal(bind_part(world, read, &untouched), -EINVAL, "protection domain");
	base->pd = &fake.pd;
	assert_int_equal(fake.calls, calls);
	assert_null(untouched);
}

static void writing_needs_local_write(void **state)
{
	static const int windows[] = { IBV_DEVICE_MEM_WINDOW_TYPE_2A, 0 };
	struct world *world = *state;
	struct pier_mr *sub = NULL;
	int calls;

	register_base(world, PIER_ACCESS_REMOTE_READ | PIER_ACCESS_MW_BIND);
	for (size_t i = 0; i < 2; i++) {
		fake.device.limits.device_cap_flags = (unsigned int)windows[i];
		calls = fake.calls;
		expect_refusal(bind_part(world, PIER_ACCESS_REMOTE_WRITE, &sub), -EINVAL,
			       "LOCAL_WRITE");
		expect_refusal(bind_part(world, PIER_ACCESS_REMOTE_ATOMIC, &sub), -EINVAL,
			       "LOCAL_WRITE");
		assert_int_equal(fake.calls, calls);
		assert_int_equal(bind_part(world, PIER_ACCESS_REMOTE_READ, &sub), 0);
		assert_int_equal(test_mr_info(sub).is_window, i == 0);
		assert_int_equal(pier_mr_dereg(sub), 0);
	}
}

/* A separate region of the same part, with the rights that it needs. */
static void expect_region(struct world *world)
{
	const int writing = PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_LOCAL_WRITE;
	uint64_t address = (uintptr_t)world->memory + OFFSET;
	int mrs = fake.mrs, sends = fake.sends;
	struct pier_mr *sub;

	assert_int_equal(bind_part(world, PIER_ACCESS_REMOTE_WRITE, &sub), 0);
	assert_false(test_mr_info(sub).is_window);
	assert_int_equal(fake.mrs, mrs + 1);
	assert_int_equal(fake.mws, 0);
	assert_int_equal(fake.sends, sends);
	assert_int_not_equal(fake.last_send.opcode, IBV_WR_BIND_MW);
	assert_int_equal(fake.last_mr.addr, address);
	assert_int_equal(fake.last_mr.length, PART);
	assert_int_equal(fake.last_mr_access, writing);
	assert_int_equal(test_mr_info(sub).access, writing);
	assert_int_equal(pier_mr_iova(sub), pier_mr_iova(world->base) + OFFSET);
	assert_int_equal(pier_mr_dereg(world->base), -EBUSY);
	assert_int_equal(pier_mr_dereg(sub), 0);
	assert_int_equal(bind_part(world, PIER_ACCESS_REMOTE_READ, &sub), 0);
	assert_int_equal(fake.last_mr_access, PIER_ACCESS_REMOTE_READ);
	assert_int_equal(pier_mr_dereg(sub), 0);
}

static void registers_if_the_device_has_no_windows(void **state)
{
	struct world *world = *state;

	fake.device.limits.device_cap_flags = 0;
	expect_region(world);
	/* Type 1 is not enough. */
	fake.device.limits.device_cap_flags = IBV_DEVICE_MEM_WINDOW;
	expect_region(world);
}

static void registers_if_the_provider_has_no_windows(void **state)
{
	struct world *world = *state;
	struct pier_provider without = *fake.device.provider;

	without.alloc_mw = NULL;
	fake.device.provider = &without;
	expect_region(world);
	/* The other parts need no window. */
	assert_int_equal(pier_channel_destroy(world->channel), 0);
	world->channel = NULL;
	assert_int_equal(pier_mr_dereg(world->base), 0);
	world->base = NULL;
}

static void registers_without_the_right_to_bind(void **state)
{
	struct world *world = *state;

	register_base(world, ALL_RIGHTS & ~PIER_ACCESS_MW_BIND);
	expect_region(world);
}

static void registers_for_several_parts(void **state)
{
	struct world *world = *state;
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(world->memory, 4096),
		pier_mr_range_host(world->memory + 4096, LENGTH - 4096),
	};

	assert_int_equal(pier_mr_dereg(world->base), 0);
	assert_int_equal(test_reg_mr_vec(&fake.pd, ranges, 2, ALL_RIGHTS, &world->base),
			 0);
	assert_int_equal(pier_mr_parts(world->base), 2);
	expect_region(world);
}

static void registers_before_there_is_a_peer(void **state)
{
	struct world *world = *state;

	assert_int_equal(pier_channel_destroy(world->channel), 0);
	assert_int_equal(pier_channel_create(&fake.pd, NULL, &world->channel), 0);
	expect_region(world);
}

static void keeps_its_base_busy(void **state)
{
	struct world *world = *state;
	struct pier_mr *first = bound(world), *second = bound(world);

	expect_refusal(pier_mr_dereg(world->base), -EBUSY, "2 sub-regions");
	assert_int_equal(fake.pd.children, 4);
	expect_refusal(pier_pd_dealloc(&fake.pd), -EBUSY, "3 regions and 1 channel");
	assert_int_equal(pier_mr_dereg(first), 0);
	expect_refusal(pier_mr_dereg(world->base), -EBUSY, "1 sub-region");
	assert_int_equal(fake.mrs, 1);
	assert_int_equal(pier_mr_dereg(second), 0);
}

/* rxe uses the bounds of the region beneath, which therefore covers only the part. */
static void enforces_bounds_that_the_device_ignores(void **state)
{
	struct world *world = *state;
	struct pier_mr *window;
	int mrs = fake.mrs;

	fake.device.unbounded_windows = true;
	assert_int_equal(bind_part(world, PIER_ACCESS_REMOTE_WRITE, &window), 0);
	assert_true(test_mr_info(window).is_window);
	assert_int_equal(fake.mrs, mrs + 1);
	assert_int_equal(fake.last_mr.addr, (uintptr_t)world->memory + OFFSET);
	assert_int_equal(fake.last_mr.length, PART);
	assert_int_equal(fake.last_mr_access,
			 PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_MW_BIND);
	assert_int_equal(fake.last_send.opcode, IBV_WR_BIND_MW);
	assert_int_equal(fake.last_send.bind_mw.bind_info.mr->rkey, fake.last_mr.rkey);
	assert_int_equal(test_mr_info(window).access, PIER_ACCESS_REMOTE_WRITE);
	assert_int_equal(test_mr_info(window).rkey, KEY_BOUND);
	assert_int_equal(test_mr_info(window).lkey, 0);
	assert_null(pier_mr_verbs(window));
	assert_int_equal(pier_mr_dereg(world->base), -EBUSY);
	/* Destroy the window first, as the kernel demands; then again. */
	fake.fail_call = fake.calls + 2;
	assert_int_equal(pier_mr_dereg(window), -ENOSPC);
	assert_int_equal(fake.mws, 0);
	assert_int_equal(fake.mrs, mrs + 1);
	assert_int_equal(pier_mr_dereg(window), 0);
	assert_int_equal(fake.mrs, mrs);
}

static void outlives_its_channel(void **state)
{
	struct world *world = *state;
	struct pier_mr *first = bound(world), *second = bound(world);

	assert_int_equal(pier_mr_dereg(first), 0);
	first = bound(world);
	assert_int_equal(pier_channel_destroy(world->channel), 0);
	world->channel = NULL;
	/* A driver may wait for bound windows. */
	assert_int_equal(fake.mws_at_destroy, 0);
	assert_int_equal(fake.qps, 0);
	assert_true(test_mr_info(first).is_window);
	assert_int_equal(test_mr_info(first).rkey, KEY_BOUND);
	assert_int_equal(pier_mr_dereg(world->base), -EBUSY);
	assert_int_equal(pier_mr_dereg(second), 0);
	assert_int_equal(pier_mr_dereg(first), 0);
}

static void closing_can_be_retried(void **state)
{
	struct world *world = *state;
	struct pier_mr *window = bound(world);

	fake.fail_call = fake.calls + 1;
	expect_refusal(pier_mr_dereg(window), -ENOSPC, "deregistering 777 bytes");
	assert_int_equal(fake.mws, 1);
	fake.fail_call = fake.calls + 1;
	expect_refusal(pier_channel_destroy(world->channel), -ENOSPC, "memory window");
	assert_int_equal(fake.mws, 1);
	assert_int_equal(fake.qps, 1);
	assert_int_equal(pier_mr_dereg(window), 0);
}

/* Each call of the NIC fails once: nothing is left, and nothing was written. */
static void failure_leaves_nothing_behind(void **state)
{
	struct world *world = *state;

	for (int unbounded = 0; unbounded < 2; unbounded++) {
		struct pier_mr *window = NULL;
		struct test_census before = test_take_census();
		int children = (int)fake.pd.children, mrs = fake.mrs, failures = 0;

		fake.device.unbounded_windows = unbounded;
		for (;; failures++) {
			fake.fail_call = fake.calls + 1 + failures;
			if (!bind_part(world, PIER_ACCESS_REMOTE_READ, &window))
				break;
			test_assert_sentence(failures == unbounded + 1 ? "post a bind"
					     : failures == unbounded
						     ? "allocating a memory window"
						     : "registering 777 bytes");
			assert_null(window);
			assert_int_equal(fake.mws, 0);
			assert_int_equal(fake.mrs, mrs);
			assert_int_equal(fake.pd.children, children);
			assert_int_equal(world->base->children, 0);
			assert_int_equal(pier_channel_outstanding(world->channel), 0);
			test_assert_census(&before);
		}
		/* Allocating and posting; the region beneath if there is one. */
		assert_int_equal(failures, 2 + unbounded);
		fake.fail_call = 0;
		assert_int_equal(pier_mr_dereg(window), 0);
	}
}

static void a_refused_bind_breaks_the_channel(void **state)
{
	struct world *world = *state;
	struct test_census before = test_take_census();
	struct pier_mr *window = NULL;
	int posted;

	fake.completes_with = IBV_WC_MW_BIND_ERR;
	expect_refusal(bind_part(world, PIER_ACCESS_REMOTE_READ, &window), -EIO,
		       "bind failed: IBV_WC_MW_BIND_ERR");
	assert_null(window);
	assert_int_equal(fake.mws, 0);
	test_assert_census(&before);
	posted = fake.calls;
	expect_refusal(bind_part(world, PIER_ACCESS_REMOTE_READ, &window), -EPIPE,
		       "IBV_WC_MW_BIND_ERR");
	assert_int_equal(fake.calls, posted);
	assert_int_equal(world->base->children, 0);
}

static void a_late_bind_breaks_the_channel(void **state)
{
	struct world *world = *state;
	struct pier_mr *window = NULL;

	fake.completes = false;
	expect_refusal(pier_mr_bind_sub(world->channel, world->base, OFFSET, PART,
					PIER_ACCESS_REMOTE_READ, 5, &window),
		       -ETIMEDOUT, "bind did not complete within 5 ms");
	assert_null(window);
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(fake.mws, 0);
	assert_int_equal(world->base->children, 0);
	assert_int_equal(pier_channel_outstanding(world->channel), 0);
}

static void refuses_a_full_queue(void **state)
{
	struct world *world = *state;
	struct pier_mr *window = NULL;
	struct pier_work work[16];

	fake.completes = false;
	for (int i = 0; i < 16; i++)
		assert_int_equal(
			pier_channel_post_send(world->channel, NULL, 0, &work[i]), 0);
	expect_refusal(bind_part(world, PIER_ACCESS_REMOTE_READ, &window), -EAGAIN,
		       "queue is full");
	assert_int_equal(fake.mws, 0);
	assert_int_equal(fake.state, IBV_QPS_RTS);
}

static void refuses_a_channel_that_failed(void **state)
{
	struct world *world = *state;
	struct pier_mr *untouched = NULL;

	assert_int_equal(pier_channel_destroy(world->channel), 0);
	assert_int_equal(pier_channel_create(&fake.pd, NULL, &world->channel), 0);
	fake.fail_call = fake.calls + 1;
	assert_int_equal(pier_channel_connect(world->channel, &peer), -ENOSPC);
	expect_refusal(bind_part(world, PIER_ACCESS_REMOTE_READ, &untouched), -ENOTCONN,
		       "failed to connect");
	assert_null(untouched);
}

static void *deregister(void *window)
{
	return (void *)(intptr_t)pier_mr_dereg(window);
}

/*
 * One thread destroys a window while another destroys its channel: once, whichever is
 * first.
 */
static void two_threads_destroy_it_once(void **state)
{
	struct world *world = *state;

	for (int round = 0; round < 200; round++) {
		struct pier_mr *window = bound(world);
		pthread_t thread;
		void *result;

		assert_int_equal(pthread_create(&thread, NULL, deregister, window), 0);
		assert_int_equal(pier_channel_destroy(world->channel), 0);
		assert_int_equal(pthread_join(thread, &result), 0);
		assert_null(result);
		assert_int_equal(fake.mws_at_destroy, 0);
		assert_int_equal(fake.mws, 0);
		assert_int_equal(world->base->children, 0);
		assert_int_equal(pier_channel_create(&fake.pd, NULL, &world->channel), 0);
		assert_int_equal(pier_channel_connect(world->channel, &peer), 0);
	}
}

int main(void)
{
#define window_test(body) cmocka_unit_test_setup_teardown(body, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		window_test(asks_the_nic_to_bind),
		window_test(describes_a_region_for_the_peer),
		window_test(refuses_invalid_windows_before_posting),
		window_test(writing_needs_local_write),
		window_test(registers_if_the_device_has_no_windows),
		window_test(registers_if_the_provider_has_no_windows),
		window_test(registers_without_the_right_to_bind),
		window_test(registers_for_several_parts),
		window_test(registers_before_there_is_a_peer),
		window_test(keeps_its_base_busy),
		window_test(enforces_bounds_that_the_device_ignores),
		window_test(outlives_its_channel),
		window_test(closing_can_be_retried),
		window_test(failure_leaves_nothing_behind),
		window_test(a_refused_bind_breaks_the_channel),
		window_test(a_late_bind_breaks_the_channel),
		window_test(refuses_a_full_queue),
		window_test(refuses_a_channel_that_failed),
		window_test(two_threads_destroy_it_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A queue pair that is connected to itself, on a NIC whose GIDs the kernel does not
 * resolve. The program replaces clock_gettime(2), and each attempt takes time.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "device/loop.h"
#include "nic.h"

enum {
	RESOLVED_IN_S = 2,
	ALLOWED_S = 5,
};

static int unresolved; /* at first */

int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
	(void)clock;
	*ret_now = (struct timespec){
		.tv_sec = 1000 + (unresolved - fake.unresolved) * RESOLVED_IN_S,
	};
	return 0;
}

static void set_gids(int count)
{
	fake_reset();
	fake.unresolved = unresolved = count;
	for (int i = 0; i < FAKE_GIDS; i++)
		fake.gids[i] = (struct ibv_gid_entry){
			.gid.raw = { 0xfd, [15] = (uint8_t)i },
			.gid_type = IBV_GID_TYPE_ROCE_V2,
		};
}

/* ib_resolve_eth_dmac() waits for each GID. */
static void gives_up_on_gids_that_are_not_resolved(void **state)
{
	struct pier_loop *loop;

	(void)state;
	set_gids(INT_MAX);
	expect_result(pier_loop_create(&fake.device, &fake.verbs_pd, &loop), -ETIMEDOUT);
	test_assert_sentence("connect a queue pair to itself: Connection timed out");
	assert_int_equal(INT_MAX - fake.unresolved, ALLOWED_S / RESOLVED_IN_S + 1);
	assert_int_equal(fake.qps + fake.cqs, 0);
}

static void takes_the_first_gid_that_is_resolved(void **state)
{
	struct pier_loop *loop;

	(void)state;
	set_gids(2);
	expect_ok(pier_loop_create(&fake.device, &fake.verbs_pd, &loop));
	assert_int_equal(fake.rtr.ah_attr.grh.sgid_index, 2);
	assert_int_equal(fake.rtr.ah_attr.grh.dgid.raw[15], 2);
	pier_loop_destroy(loop);
	assert_int_equal(fake.qps + fake.cqs, 0);
}

static void reports_that_there_is_no_gid(void **state)
{
	struct pier_loop *loop;

	(void)state;
	set_gids(0);
	memset(fake.gids, 0, sizeof(fake.gids));
	expect_result(pier_loop_create(&fake.device, &fake.verbs_pd, &loop),
		      -EADDRNOTAVAIL);
	test_assert_sentence("port 1 has no GID to send from");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gives_up_on_gids_that_are_not_resolved),
		cmocka_unit_test(takes_the_first_gid_that_is_resolved),
		cmocka_unit_test(reports_that_there_is_no_gid),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include "provider/fault/plan.h"

static struct pier_fault_plan plan;

static int read_plan(const char *text)
{
	int error = pier_fault_read_plan(text, strlen(text), &plan);

	plan.opening = false;
	return error;
}

static int forget_plan(void **state)
{
	(void)state;
	pier_fault_end_plan(&plan);
	return 0;
}

/* A bit for each of the first `count` occasions on which the call fails. */
static uint64_t failures(enum pier_fault_occasion occasion, int count)
{
	uint64_t bits = 0;

	for (int i = 0; i < count; i++)
		bits |= (uint64_t)(pier_fault_fails(&plan, occasion) != 0) << i;
	return bits;
}

static void counts_occasions(void **state)
{
	(void)state;
	expect_ok(read_plan("reg_mr@3=ENOMEM,alloc_pd@2+=EACCES,reg@5=EIO"));
	assert_int_equal(failures(FAULT_REG_MR, 4), 1 << 2);
	assert_int_equal(failures(FAULT_ALLOC_PD, 4), 0xe);
	/* The fifth registration, in another form. */
	assert_int_equal(pier_fault_fails(&plan, FAULT_REG_PARTS), EIO);
	assert_int_equal(errno, EIO);
	test_assert_sentence("reg@5=EIO");
	test_assert_sentence("seed=");
	assert_int_equal(failures(FAULT_DEALLOC_PD, 8), 0);
}

static void repeats_a_seed(void **state)
{
	uint64_t first;

	(void)state;
	expect_ok(read_plan("seed=42,post_send~4=EIO"));
	first = failures(FAULT_POST_SEND, 64);
	assert_int_not_equal(first, 0);
	assert_int_not_equal(first, UINT64_MAX);
	/* Occasions counted by other rules make no difference. */
	forget_plan(NULL);
	expect_ok(read_plan("seed=42,post_send~4=EIO,reg_mr~2=EIO"));
	failures(FAULT_REG_MR, 7);
	assert_int_equal(failures(FAULT_POST_SEND, 64), first);
	forget_plan(NULL);
	expect_ok(read_plan("seed=43,post_send~4=EIO"));
	assert_int_not_equal(failures(FAULT_POST_SEND, 64), first);
}

static void draws_and_reports_a_seed(void **state)
{
	char again[64];
	uint64_t first;

	(void)state;
	expect_ok(read_plan("post_send~4=EIO"));
	snprintf(again, sizeof(again), "seed=%llu,post_send~4=EIO",
		 (unsigned long long)plan.seed);
	first = failures(FAULT_POST_SEND, 64);
	forget_plan(NULL);
	expect_ok(read_plan(again));
	assert_int_equal(failures(FAULT_POST_SEND, 64), first);
}

/*
 * Queries of the device's capabilities while it is opened are not occasions of their
 * call.
 */
static void does_not_count_probes(void **state)
{
	(void)state;
	expect_ok(read_plan("alloc_pd@1=EIO,call@3=ENOMEM"));
	plan.opening = true;
	assert_int_equal(pier_fault_fails(&plan, FAULT_ALLOC_PD), 0);
	assert_int_equal(pier_fault_fails(&plan, FAULT_REG_DMABUF_MR), 0);
	assert_int_equal(pier_fault_fails(&plan, FAULT_DEALLOC_PD), 0);
	assert_int_equal(pier_fault_fails(&plan, FAULT_QUERY_DEVICE), ENOMEM);
	plan.opening = false;
	assert_int_equal(pier_fault_fails(&plan, FAULT_ALLOC_PD), EIO);
}

static const struct pier_fault_rule *first_strike(enum pier_fault_effect effect,
						  enum pier_fault_occasion occasion)
{
	const struct pier_fault_rule *rule = pier_fault_strikes(&plan, effect, occasion);

	assert_non_null(rule);
	return rule;
}

static void parses_values(void **state)
{
	(void)state;
	expect_ok(read_plan("wc@1=RNR_RETRY_EXC_ERR,late@1=50us,late@2=3s,late@3=9polls,"
			    "lost@1,overrun@1+,dead@1,dead@2=7ms,event@1=3600s,"
			    "async@1=CQ_ERR,async@2=GID_CHANGE,"
			    "corrupt@1,drop@2,stale@1+,misplace~1"));
	assert_int_equal(first_strike(FAULT_STATUS, FAULT_COMPLETION)->value,
			 IBV_WC_RNR_RETRY_EXC_ERR);
	assert_int_equal(first_strike(FAULT_LATE, FAULT_COMPLETION)->value, 50000);
	assert_int_equal(first_strike(FAULT_LATE, FAULT_COMPLETION)->value, 3000000000);
	assert_true(first_strike(FAULT_LATE, FAULT_COMPLETION)->in_polls);
	first_strike(FAULT_LOST, FAULT_COMPLETION);
	assert_null(pier_fault_strikes(&plan, FAULT_LOST, FAULT_COMPLETION));
	first_strike(FAULT_OVERRUN, FAULT_COMPLETION);
	first_strike(FAULT_OVERRUN, FAULT_COMPLETION);
	assert_int_equal(first_strike(FAULT_DEAD, FAULT_POST_SEND)->value, 500000000);
	assert_int_equal(first_strike(FAULT_DEAD, FAULT_POST_SEND)->value, 7000000);
	assert_int_equal(first_strike(FAULT_NOTIFY_LATE, FAULT_REQ_NOTIFY_CQ)->value,
			 3600000000000);
	assert_int_equal(first_strike(FAULT_ASYNC, FAULT_POST_SEND)->value,
			 IBV_EVENT_CQ_ERR);
	assert_int_equal(first_strike(FAULT_ASYNC, FAULT_POST_SEND)->value,
			 IBV_EVENT_GID_CHANGE);
	first_strike(FAULT_CORRUPT, FAULT_POST_SEND);
	assert_null(pier_fault_strikes(&plan, FAULT_DROP, FAULT_POST_SEND));
	first_strike(FAULT_STALE, FAULT_POST_SEND);
	first_strike(FAULT_MISPLACE, FAULT_POST_SEND);
}

static void rejects_malformed_plans(void **state)
{
	static const struct {
		const char *plan, *why;
	} cases[] = {
		{ "reg@x=ENOMEM", "N is a number" },
		{ "reg@0=ENOMEM", "N is a number" },
		{ "reg@4294967296=ENOMEM", "N is a number" },
		{ "reg@99999999999999999999999=ENOMEM", "N is a number" },
		{ "rag@1=ENOMEM", "\"rag@1=ENOMEM\": that is no word" },
		{ "reg", "say when" },
		{ "reg=ENOMEM", "say when" },
		{ "reg@1", "a value is missing" },
		{ "reg@1=", "is not the name of an errno, such as ENOMEM" },
		{ "reg@1=ENOMEN", "is not the name of an errno, such as ENOMEM" },
		{ "reg@1=12", "is not the name of an errno, such as ENOMEM" },
		{ "reg@1x=EIO", "behind the number" },
		{ "reg~3+=EIO", "behind the number" },
		{ "wc@1=SUCCESS", "no error of enum ibv_wc_status" },
		{ "wc@1=IBV_WC_REM_OP_ERR", "no error of enum ibv_wc_status" },
		{ "async@1=IBV_EVENT_PORT_ERR", "no event of enum ibv_event_type" },
		{ "late@1", "a value is missing" },
		{ "late@1=5", "the unit is us, ms, s or polls" },
		{ "late@1=5h", "the unit" },
		{ "late@1=ms", "a time is a number" },
		{ "late@1=3601s", "more than an hour" },
		{ "event@1=5polls", "the unit is us, ms or s" },
		{ "lost@1=3ms", "takes no value" },
		{ "corrupt@1=3", "takes no value" },
		{ "seed=", "a seed is" },
		{ "seed=12x", "a seed is" },
		{ "seed=18446744073709551616", "a seed is" },
		{ "reg@1=EIO,", "ends with a comma" },
		{ ",reg@1=EIO", "no word" },
		{ "reg@1=EIO,,reg@2=EIO", "no word" },
		{ "destroy_comp_channel@1=EPROTONOSUPPORTEPROTONOSUPPORT", "47" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_fault_plan untouched;

		memset(&untouched, 0x5a, sizeof(untouched));
		expect_result(pier_fault_read_plan(cases[i].plan, strlen(cases[i].plan),
						   &untouched),
			      -EINVAL);
		test_assert_sentence(cases[i].why);
		for (size_t b = 0; b < sizeof(untouched); b++)
			assert_int_equal(((uint8_t *)&untouched)[b], 0x5a);
	}
}

static void limits_the_number_of_rules(void **state)
{
	char text[PIER_FAULT_RULES * 16 + 16] = "";

	(void)state;
	for (int i = 0; i < PIER_FAULT_RULES; i++)
		strcat(text, i ? ",reg@9=EIO" : "reg@9=EIO");
	expect_ok(read_plan(text));
	assert_int_equal(plan.count, PIER_FAULT_RULES);
	forget_plan(NULL);
	strcat(text, ",reg@9=EIO");
	expect_result(read_plan(text), -EINVAL);
	test_assert_sentence("one rule too many");
	expect_ok(read_plan(""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(counts_occasions, forget_plan),
		cmocka_unit_test_teardown(repeats_a_seed, forget_plan),
		cmocka_unit_test_teardown(draws_and_reports_a_seed, forget_plan),
		cmocka_unit_test_teardown(does_not_count_probes, forget_plan),
		cmocka_unit_test_teardown(parses_values, forget_plan),
		cmocka_unit_test(rejects_malformed_plans),
		cmocka_unit_test_teardown(limits_the_number_of_rules, forget_plan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

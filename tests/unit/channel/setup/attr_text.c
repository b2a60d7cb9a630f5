/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"
#include "tests/support/recorded.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/error.h>

#include "channel/setup/attr.h"
#include "channel/setup/connect.h"
#include "nic/nic.h"

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.psn = 0x66,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
};

static void expect_refusal(const char *text, const char *sentence)
{
	struct pier_channel_attr attr, usual;

	pier_channel_attr_init(&attr);
	pier_channel_attr_init(&usual);
	assert_int_equal(pier_channel_attr_parse(&attr, text), -EINVAL);
	if (!strstr(pier_error_message(), sentence))
		fail_msg("no \"%s\" in: %s", sentence, pier_error_message());
	assert_memory_equal(&attr, &usual, sizeof(attr));
}

static void sets_every_key(void **state)
{
	struct pier_channel_attr attr, wanted;

	(void)state;
	pier_channel_attr_init(&attr);
	wanted = attr;
	expect_ok(pier_channel_attr_parse(&attr, ""));
	assert_memory_equal(&attr, &wanted, sizeof(attr));
	wanted.port = 2;
	wanted.gid_index = 3;
	wanted.mtu = 1024;
	wanted.traffic_class = 106;
	wanted.service_level = 5;
	wanted.pkey_index = 65535;
	wanted.hop_limit = 1;
	wanted.flow_label = 0xabcde;
	wanted.timeout = 0;
	wanted.retry_count = 6;
	wanted.rnr_retry_count = 5;
	wanted.min_rnr_timer = 31;
	wanted.max_rd_atomic = 1;
	expect_ok(pier_channel_attr_parse(
		&attr, "port=2,gid=3,mtu=1024,tc=1,tc=106,sl=5,pkey=65535,hop_limit=1,"
		       "flow_label=0xabCDE,timeout=0,retry=6,rnr_retry=5,rnr_timer=31,"
		       "rd_atomic=1"));
	assert_memory_equal(&attr, &wanted, sizeof(attr));
}

static void refuses_what_it_does_not_know(void **state)
{
	(void)state;
	expect_refusal(
		"sl=1,tclass=106",
		"\"tclass=106\" is not KEY=NUMBER; the keys are port, gid, mtu, tc");
	expect_refusal("tc", "\"tc\" is not KEY=NUMBER");
	expect_refusal("tc,sl=1", "\"tc\" is not KEY=NUMBER");
	expect_refusal("sl=1,,tc=1", "\"\" is not KEY=NUMBER");
	expect_refusal("=1", "\"=1\" is not KEY=NUMBER");
	expect_refusal("tc=256", "\"tc=256\": tc is a number from 0 to 255");
	expect_refusal("sl=16", "0 to 15");
	expect_refusal("timeout=32", "0 to 31");
	expect_refusal("retry=8", "0 to 7");
	expect_refusal("flow_label=0x100000", "0 to 1048575");
	for (size_t i = 0; i < 9; i++) {
		static const char *const numbers[] = {
			"sl=",	 "sl=-1", "sl=+1",	   "sl= 1", "sl=1 ",
			"sl=0x", "sl=1x", "sl=4294967297", "sl=a",
		};

		expect_refusal(numbers[i], "sl is a number from 0 to 15");
	}
}

static struct pier_channel_attr read_attr(const struct pier_channel_attr *given)
{
	struct pier_channel_attr attr;

	fake_reset();
	expect_ok(pier_read_channel_attr(given, &fake.device.limits, &attr));
	return attr;
}

static void environment_sets_what_is_unset(void **state)
{
	struct pier_channel_attr given, attr;

	(void)state;
	pier_channel_attr_init(&given);
	given.timeout = 20;
	given.service_level = 2;
	assert_int_equal(setenv("PIER_CHANNEL", "timeout=14,tc=106,sl=3,retry=5", 1), 0);
	attr = read_attr(&given);
	assert_int_equal(attr.timeout, 20);
	assert_int_equal(attr.service_level, 2);
	assert_int_equal(attr.traffic_class, 106);
	assert_int_equal(attr.retry_count, 5);
	attr = read_attr(NULL);
	assert_int_equal(attr.timeout, 14);
	assert_int_equal(attr.service_level, 3);
	given.traffic_class = 0;
	assert_int_equal(read_attr(&given).traffic_class, 0);
}

/* What the caller sets stays, also if it is what an unset member would get. */
static void environment_does_not_replace_an_explicit_default(void **state)
{
	static const char *const text =
		"port=2,gid=3,mtu=1024,tc=106,sl=5,pkey=7,hop_limit=1,flow_label=9,"
		"timeout=14,retry=5,rnr_retry=4,rnr_timer=31,rd_atomic=1";
	struct pier_channel_attr usual = read_attr(NULL), replaced, attr;

	(void)state;
	assert_int_equal(usual.traffic_class, PIER_TRAFFIC_CLASS_PORT);
	assert_int_equal(usual.gid_index, PIER_GID_ANY);
	assert_int_equal(setenv("PIER_CHANNEL", text, 1), 0);
	attr = read_attr(&usual);
	assert_memory_equal(&attr, &usual, sizeof(attr));
	replaced = usual;
	expect_ok(pier_channel_attr_parse(&replaced, text));
	attr = read_attr(NULL);
	assert_memory_equal(&attr, &replaced, sizeof(attr));
}

static void environment_with_a_typo_is_an_error(void **state)
{
	struct pier_channel *channel;

	(void)state;
	assert_int_equal(setenv("PIER_CHANNEL", "rnr-retry=7", 1), 0);
	assert_int_equal(pier_channel_create(fake_reset(), NULL, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "PIER_CHANNEL: \"rnr-retry=7\""));
	assert_non_null(strstr(pier_error_message(), "rnr_retry"));
	assert_int_equal(fake.calls, 0);
}

static void environment_beyond_the_device_is_named(void **state)
{
	struct pier_channel *channel;

	(void)state;
	assert_int_equal(setenv("PIER_CHANNEL", "port=200", 1), 0);
	assert_int_equal(pier_channel_create(fake_reset(), NULL, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "port 200 is not in"));
	assert_non_null(strstr(pier_error_message(), "PIER_CHANNEL=port=200"));
}

static void environment_reaches_the_device(void **state)
{
	struct pier_channel *channel;

	(void)state;
	assert_int_equal(setenv("PIER_CHANNEL", "tc=106,retry=4", 1), 0);
	expect_ok(pier_channel_create(fake_reset(), NULL, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	assert_int_equal(fake.rtr.ah_attr.grh.traffic_class, 106);
	assert_int_equal(fake.rts.retry_cnt, 4);
	expect_ok(pier_channel_destroy(channel));
}

/* A line of port 2's file in sysfs, and the traffic class of a channel there. */
static uint8_t class_on(const char *line, enum pier_link_layer link_layer,
			uint32_t gid_type, uint8_t given)
{
	struct recorded tree = recorded_start();
	struct pier_channel channel = {
		.pd = fake_reset(),
		.link_layer = link_layer,
		.gid.gid_type = gid_type,
	};
	uint8_t found;

	channel.attr.port = 2;
	channel.attr.traffic_class = given;
	if (line)
		recorded_add(&tree, line);
	found = pier_traffic_class_in(tree.root, &channel);
	recorded_close(&tree);
	return found;
}

static uint8_t class_from(const char *line, uint8_t given)
{
	return class_on(line, PIER_LINK_ETHERNET, IBV_GID_TYPE_ROCE_V2, given);
}

#define TC_FILE(contents) "class/infiniband/fake0/tc/2/traffic_class = " contents

static void default_traffic_class_is_the_ports(void **state)
{
	static const char set[] = TC_FILE("Global tclass=96");

	(void)state;
	assert_int_equal(class_from(set, PIER_TRAFFIC_CLASS_PORT), 96);
	assert_int_equal(class_from(set, 0), 0);
	assert_int_equal(class_from(set, 32), 32);
	assert_int_equal(class_from(TC_FILE("Global tclass=0"), PIER_TRAFFIC_CLASS_PORT),
			 0);
	assert_int_equal(class_on(set, PIER_LINK_INFINIBAND, IBV_GID_TYPE_IB,
				  PIER_TRAFFIC_CLASS_PORT),
			 0);
	assert_int_equal(class_on(set, PIER_LINK_ETHERNET, IBV_GID_TYPE_ROCE_V1,
				  PIER_TRAFFIC_CLASS_PORT),
			 0);
}

static void traffic_class_of_other_ports_is_that_of_ucx(void **state)
{
	static const char *const unset[] = {
		NULL,
		TC_FILE(""),
		TC_FILE("Global tclass=256"),
		TC_FILE("tclass=96"),
	};

	(void)state;
	for (size_t i = 0; i < sizeof(unset) / sizeof(unset[0]); i++)
		assert_int_equal(class_from(unset[i], PIER_TRAFFIC_CLASS_PORT), 106);
}

static void query_reports_the_effective_traffic_class(void **state)
{
	struct pier_channel *channel;
	struct pier_channel_attr found;

	(void)state;
	expect_ok(pier_channel_create(fake_reset(), NULL, &channel));
	pier_channel_query(channel, &found, sizeof(found));
	assert_int_equal(found.traffic_class, 106);
	expect_ok(pier_channel_connect(channel, &peer));
	assert_int_equal(fake.rtr.ah_attr.grh.traffic_class, 106);
	expect_ok(pier_channel_destroy(channel));
}

static int clear_environment(void **state)
{
	(void)state;
	return unsetenv("PIER_CHANNEL");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sets_every_key),
		cmocka_unit_test(refuses_what_it_does_not_know),
		cmocka_unit_test_teardown(environment_sets_what_is_unset,
					  clear_environment),
		cmocka_unit_test_teardown(
			environment_does_not_replace_an_explicit_default,
			clear_environment),
		cmocka_unit_test_teardown(environment_with_a_typo_is_an_error,
					  clear_environment),
		cmocka_unit_test_teardown(environment_beyond_the_device_is_named,
					  clear_environment),
		cmocka_unit_test_teardown(environment_reaches_the_device,
					  clear_environment),
		cmocka_unit_test(default_traffic_class_is_the_ports),
		cmocka_unit_test(traffic_class_of_other_ports_is_that_of_ucx),
		cmocka_unit_test(query_reports_the_effective_traffic_class),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

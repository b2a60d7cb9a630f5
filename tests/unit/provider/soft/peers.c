/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "tests/support/cmocka.h"
#include "provider/soft/connect/address.h"

/* Which addresses soft0 calls by TCP. */

static struct soft_peers parsed(const char *text)
{
	struct soft_peers peers;

	assert_int_equal(pier_soft_parse_peers(text, &peers), 0);
	return peers;
}

static bool may_call_port(const char *list, const char *text, uint16_t port)
{
	struct soft_peers peers = parsed(list);
	struct in6_addr address;

	assert_true(pier_soft_parse_ip(text, &address));
	return pier_soft_may_call(&peers, &address, port);
}

static bool may_call(const char *list, const char *text)
{
	return may_call_port(list, text, 40000);
}

static void calls_single_addresses(void **state)
{
	(void)state;
	assert_true(may_call("192.0.2.1", "192.0.2.1"));
	assert_false(may_call("192.0.2.1", "192.0.2.2"));
	assert_true(may_call("192.0.2.1/32", "192.0.2.1"));
	assert_false(may_call("192.0.2.1/32", "192.0.2.0"));
	assert_true(may_call("2001:db8::1", "2001:db8::1"));
	assert_true(may_call("2001:db8::1/128", "2001:db8:0::0:1"));
	assert_false(may_call("2001:db8::1/128", "2001:db8::"));
	assert_true(may_call("192.0.2.1,2001:db8::1", "2001:db8::1"));
	assert_false(may_call("192.0.2.1,2001:db8::1", "192.0.2.2"));
}

static void calls_addresses_of_a_network(void **state)
{
	(void)state;
	assert_true(may_call("192.0.2.0/24", "192.0.2.255"));
	assert_false(may_call("192.0.2.0/24", "192.0.3.0"));
	assert_false(may_call("192.0.2.0/24", "192.0.1.255"));
	/* Bits behind the prefix do not matter. */
	assert_true(may_call("192.0.2.77/24", "192.0.2.1"));
	assert_true(may_call("192.0.2.128/25", "192.0.2.128"));
	assert_false(may_call("192.0.2.128/25", "192.0.2.127"));
	assert_true(may_call("192.0.2.4/31", "192.0.2.5"));
	assert_false(may_call("192.0.2.4/31", "192.0.2.6"));
	assert_true(may_call("2001:db8::/33", "2001:db8:7fff::1"));
	assert_false(may_call("2001:db8::/33", "2001:db8:8000::1"));
}

static void calls_all_of_a_family(void **state)
{
	(void)state;
	assert_true(may_call("0.0.0.0/0", "203.0.113.9"));
	assert_false(may_call("0.0.0.0/0", "2001:db8::1"));
	assert_true(may_call("::/0", "2001:db8::1"));
	/* The addresses of IPv6 include those of IPv4. */
	assert_true(may_call("::/0", "203.0.113.9"));
}

static void treats_mapped_addresses_as_ipv4(void **state)
{
	(void)state;
	assert_true(may_call("192.0.2.0/24", "::ffff:192.0.2.1"));
	assert_true(may_call("::ffff:192.0.2.0/120", "192.0.2.1"));
	assert_false(may_call("::ffff:192.0.2.0/120", "192.0.3.1"));
	assert_true(may_call("::ffff:0.0.0.0/96", "192.0.3.1"));
	/* Deprecated ::a.b.c.d (RFC 4291, section 2.5.5.1) is another address. */
	assert_false(may_call("192.0.2.1", "::192.0.2.1"));
}

static void never_calls_low_ports(void **state)
{
	(void)state;
	assert_false(may_call_port("::/0", "192.0.2.1", 0));
	assert_false(may_call_port("::/0", "192.0.2.1", 22));
	assert_false(may_call_port("::/0", "192.0.2.1", 1023));
	assert_true(may_call_port("::/0", "192.0.2.1", 1024));
	assert_true(may_call_port("::/0", "192.0.2.1", 65535));
}

static void calls_loopback_if_allowed(void **state)
{
	struct soft_peers peers = parsed("attached");
	struct in6_addr address;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_true(pier_soft_parse_ip(i ? "::1" : "127.3.2.1", &address));
		assert_true(pier_soft_is_loopback(&address));
		peers.loopback = false;
		assert_false(pier_soft_may_call(&peers, &address, 40000));
		peers.loopback = true;
		assert_true(pier_soft_may_call(&peers, &address, 40000));
	}
	assert_true(pier_soft_parse_ip("128.0.0.1", &address));
	assert_false(pier_soft_is_loopback(&address));
	/* No host has an interface in a network for documentation (RFC 3849). */
	assert_false(may_call("attached", "2001:db8::1"));
	assert_true(may_call("attached,2001:db8::/32", "2001:db8::1"));
}

static void none_disables_calls(void **state)
{
	struct soft_peers peers = parsed("none");

	(void)state;
	assert_false(pier_soft_calls_anybody(&peers));
	peers = parsed("attached");
	assert_true(pier_soft_calls_anybody(&peers));
	peers = parsed("192.0.2.1");
	assert_true(pier_soft_calls_anybody(&peers));
}

static void rejects_malformed_lists(void **state)
{
	static const char *const bad[] = {
		"",
		"::ffff:10.0.0.0/8",
		"::ffff:10.0.0.0/95",
		",",
		"192.0.2.1,",
		",192.0.2.1",
		"192.0.2.1,,192.0.2.2",
		" 192.0.2.1",
		"192.0.2.1 ",
		"192.0.2",
		"192.0.2.256",
		"192.0.2.1/",
		"192.0.2.1/33",
		"192.0.2.1/-1",
		"192.0.2.1/+8",
		"192.0.2.1/ 8",
		"192.0.2.1/8x",
		"192.0.2.1/8/8",
		"192.0.2.1/0x8",
		"192.0.2.1/4294967296",
		"2001:db8::/129",
		"2001:db8::/999",
		"[2001:db8::1]",
		"2001:db8::1%eth0",
		"localhost",
		"Attached",
		"none,192.0.2.1",
		"192.0.2.1/8,attached,x",
		"1111:2222:3333:4444:5555:6666:7777:8888:9999:1111:2222:3333:4444:5555",
	};
	struct soft_peers peers = { .count = 77 };
	char long_list[64 * 8 + 16] = "1.2.3.4";

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(pier_soft_parse_peers(bad[i], &peers), -EINVAL);
		test_assert_sentence("PIER_SOFT_PEERS");
		assert_int_equal(peers.count, 77);
	}
	for (int i = 1; i < SOFT_MAX_NETWORKS; i++)
		strcat(long_list, ",1.2.3.4");
	assert_int_equal(pier_soft_parse_peers(long_list, &peers), 0);
	assert_int_equal(peers.count, SOFT_MAX_NETWORKS);
	strcat(long_list, ",1.2.3.4");
	assert_int_equal(pier_soft_parse_peers(long_list, &peers), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls_single_addresses),
		cmocka_unit_test(calls_addresses_of_a_network),
		cmocka_unit_test(calls_all_of_a_family),
		cmocka_unit_test(treats_mapped_addresses_as_ipv4),
		cmocka_unit_test(never_calls_low_ports),
		cmocka_unit_test(calls_loopback_if_allowed),
		cmocka_unit_test(none_disables_calls),
		cmocka_unit_test(rejects_malformed_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

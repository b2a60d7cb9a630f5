/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Ends whose endpoints offer the GIDs of their ports. Both are on one NIC, whose table a
 * test changes in between. The NIC reports no events, so each channel reads the table.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/group.h>
#include <pier/recovery.h>

#include "channel/channel.h"
#include "nic/nic.h"

enum {
	V1 = IBV_GID_TYPE_ROCE_V1,
	V2 = IBV_GID_TYPE_ROCE_V2,
};

static const char ipv4_a[] = "::ffff:192.0.2.1", ipv4_b[] = "::ffff:192.0.2.2";
static const char ipv6_a[] = "2001:db8::a", ipv6_b[] = "2001:db8::b";

static void set_gid(int index, const char *text, uint32_t type)
{
	memset(&fake.gids[index], 0, sizeof(fake.gids[index]));
	assert_int_equal(inet_pton(AF_INET6, text, fake.gids[index].gid.raw), 1);
	fake.gids[index].gid_type = type;
}

/* A: RoCE v1 and v2, of IPv4 and IPv6. */
static void set_table_a(void)
{
	set_gid(0, ipv4_a, V1);
	set_gid(1, ipv6_a, V1);
	set_gid(2, ipv6_a, V2);
	set_gid(3, ipv4_a, V2);
}

/* B: IPv6 alone. */
static void set_table_b(void)
{
	memset(fake.gids, 0, sizeof(fake.gids));
	set_gid(1, ipv6_b, V2);
}

static struct pier_channel *new_channel(uint32_t gid_index,
					struct pier_endpoint *ret_endpoint)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel;

	pier_channel_attr_init(&attr);
	attr.gid_index = gid_index;
	attr.max_send_wr = attr.max_recv_wr = 4;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_endpoint(channel, ret_endpoint));
	return channel;
}

/* The two ends of a connection, each with its own table of GIDs. */
static void make_ends(struct pier_channel **ret_a, struct pier_endpoint *ret_of_a,
		      struct pier_channel **ret_b, struct pier_endpoint *ret_of_b)
{
	fake_reset();
	set_table_a();
	*ret_a = new_channel(PIER_GID_ANY, ret_of_a);
	set_table_b();
	*ret_b = new_channel(PIER_GID_ANY, ret_of_b);
}

static void expect_route(unsigned int index, const char *peer)
{
	char found[INET6_ADDRSTRLEN];

	inet_ntop(AF_INET6, fake.rtr.ah_attr.grh.dgid.raw, found, sizeof(found));
	assert_string_equal(found, peer);
	assert_int_equal(fake.rtr.ah_attr.grh.sgid_index, index);
}

/* The message of each program: MPI, a file, a command line. */
static struct pier_endpoint send_as_text(const struct pier_endpoint *endpoint)
{
	char text[PIER_ENDPOINT_TEXT_MAX];
	struct pier_endpoint received;

	assert_true(pier_endpoint_to_text(endpoint, text, sizeof(text)) >= 0);
	expect_ok(pier_endpoint_from_text(text, &received));
	return received;
}

static void ends_with_different_first_gids_connect(void **state)
{
	struct pier_endpoint of_a, of_b;
	struct pier_channel *a, *b;
	struct pier_channel_attr attr;

	(void)state;
	make_ends(&a, &of_a, &b, &of_b);
	of_a = send_as_text(&of_a);
	of_b = send_as_text(&of_b);
	/* Without lists, the first of each would be used. */
	assert_int_equal(of_a.gid[15], 1);
	expect_ok(pier_channel_connect(a, &of_b));
	expect_route(2, ipv6_b);
	expect_ok(pier_channel_connect(b, &of_a));
	expect_route(1, ipv6_a);
	pier_channel_query(a, &attr, sizeof(attr));
	assert_int_equal(attr.gid_index, 2);
	expect_ok(pier_channel_destroy(a));
	expect_ok(pier_channel_destroy(b));
}

/* So a peer that got an earlier one, or gets it later, computes the same. */
static void the_offer_stays_the_same_until_a_reset(void **state)
{
	struct pier_endpoint of_a, of_b, again;
	struct pier_channel *a, *b;

	(void)state;
	make_ends(&a, &of_a, &b, &of_b);
	expect_ok(pier_channel_endpoint(a, &again));
	assert_memory_equal(&again, &of_a, sizeof(again));
	expect_ok(pier_channel_connect(a, &of_b));
	expect_ok(pier_channel_endpoint(a, &again));
	assert_memory_equal(&again, &of_a, sizeof(again));
	set_gid(1, ipv4_b, V2);
	expect_ok(pier_channel_reset(a));
	expect_ok(pier_channel_endpoint(a, &again));
	assert_int_equal(again.address_length, 8 + 18);
	assert_int_equal(again.gid[15], 2);
	assert_int_equal(again.address[8 + 18 - 1], 2);
	expect_result(pier_channel_connect(a, &of_b), -ESTALE);
	expect_ok(pier_channel_destroy(a));
	expect_ok(pier_channel_destroy(b));
}

static void channels_share_one_list(void **state)
{
	struct pier_endpoint endpoint;
	struct pier_channel *a, *b, *c;

	(void)state;
	fake_reset();
	set_table_a();
	a = new_channel(PIER_GID_ANY, &endpoint);
	b = new_channel(PIER_GID_ANY, &endpoint);
	c = new_channel(3, &endpoint);
	assert_ptr_equal(a->gids, b->gids);
	assert_null(c->gids);
	expect_ok(pier_channel_destroy(a));
	expect_ok(pier_channel_endpoint(b, &endpoint));
	assert_int_equal(endpoint.address_length, 8 + 4 * 18);
	expect_ok(pier_channel_destroy(b));
	expect_ok(pier_channel_destroy(c));
}

static void a_gid_index_is_the_only_offer(void **state)
{
	struct pier_endpoint of_a, of_b;
	struct pier_channel *a, *b;

	(void)state;
	fake_reset();
	set_table_a();
	a = new_channel(0, &of_a);
	assert_int_equal(of_a.address_length, 8 + 18);
	b = new_channel(PIER_GID_ANY, &of_b);
	expect_ok(pier_channel_connect(b, &of_a));
	expect_route(0, ipv4_a);
	expect_ok(pier_channel_destroy(b));
	set_table_b();
	b = new_channel(PIER_GID_ANY, &of_b);
	expect_result(pier_channel_connect(a, &of_b), -EADDRNOTAVAIL);
	test_assert_sentence("the first are ::ffff:192.0.2.1 of type 1 and 2001:db8::b "
			     "of type 2");
	expect_ok(pier_channel_destroy(a));
	expect_ok(pier_channel_destroy(b));
}

/* A peer without pier sends to the GID in this end's endpoint. */
static void a_peer_without_a_list_gets_the_first_gid(void **state)
{
	struct pier_endpoint of_a, peer = { .qpn = 9 };
	struct pier_channel *a;

	(void)state;
	fake_reset();
	set_table_a();
	a = new_channel(PIER_GID_ANY, &of_a);
	inet_pton(AF_INET6, ipv4_b, peer.gid);
	expect_ok(pier_channel_connect(a, &peer));
	expect_route(3, ipv4_b);
	expect_ok(pier_channel_reset(a));
	inet_pton(AF_INET6, ipv6_b, peer.gid);
	expect_result(pier_channel_connect(a, &peer), -EINVAL);
	test_assert_sentence("gid is an IPv6 address");
	expect_ok(pier_channel_destroy(a));
}

static void hostile_lists_change_nothing(void **state)
{
	struct pier_endpoint of_a, of_b, bad;
	struct pier_channel *a, *b;

	(void)state;
	make_ends(&a, &of_a, &b, &of_b);
	for (int i = 0; i < 4 * 8; i++) {
		int changes;

		bad = of_b;
		/* Each byte behind the magic, another length, and no GID at all. */
		if (i % 8 >= 4)
			bad.address[i % 8] ^= (uint8_t)(1 + i / 8);
		else if (i % 8)
			bad.address_length += (uint16_t)(i % 8);
		else
			memset(bad.address + 8 + 2, 0, 16);
		expect_ok(pier_channel_reset(b));
		expect_ok(pier_channel_reset(a));
		changes = fake.changes;
		assert_true(pier_channel_connect(a, &bad) < 0);
		test_assert_sentence(i % 8 ? "peer's endpoint: address" : "no GID of");
		assert_int_equal(fake.changes, changes);
		assert_int_equal(a->gid.gid_index, b->gid.gid_index);
	}
	expect_ok(pier_channel_destroy(a));
	expect_ok(pier_channel_destroy(b));
}

static void new_group(uint32_t rank, struct pier_group **ret_group, void *ret_blobs,
		      size_t size)
{
	struct pier_channel_attr attr;
	struct pier_group_attr group_attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = attr.max_recv_wr = 4;
	pier_group_attr_init(&group_attr);
	group_attr.channel = &attr;
	expect_ok(pier_group_create(&fake.pd, rank, 2, &group_attr, ret_group));
	expect_ok(pier_group_endpoints(*ret_group, ret_blobs, size));
}

/* The NIC moves no bytes, so each member connects its channels and waits in vain. */
static void members_of_a_group_agree(void **state)
{
	uint8_t of_a[2][PIER_GROUP_BLOB_SIZE], of_b[2][PIER_GROUP_BLOB_SIZE];
	uint8_t to_a[2][PIER_GROUP_BLOB_SIZE] = { 0 };
	struct pier_group *a, *b;

	(void)state;
	fake_reset();
	set_table_a();
	new_group(0, &a, of_a, sizeof(of_a));
	set_table_b();
	new_group(1, &b, of_b, sizeof(of_b));
	memcpy(to_a[1], of_b[0], sizeof(to_a[1]));
	expect_result(pier_group_connect(a, to_a, sizeof(to_a), 0), -ETIMEDOUT);
	expect_route(2, ipv6_b);
	memset(to_a, 0, sizeof(to_a));
	memcpy(to_a[0], of_a[1], sizeof(to_a[0]));
	expect_result(pier_group_connect(b, to_a, sizeof(to_a), 0), -ETIMEDOUT);
	expect_ok(pier_group_destroy(b));
	expect_ok(pier_group_destroy(a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends_with_different_first_gids_connect),
		cmocka_unit_test(the_offer_stays_the_same_until_a_reset),
		cmocka_unit_test(channels_share_one_list),
		cmocka_unit_test(a_gid_index_is_the_only_offer),
		cmocka_unit_test(a_peer_without_a_list_gets_the_first_gid),
		cmocka_unit_test(hostile_lists_change_nothing),
		cmocka_unit_test(members_of_a_group_agree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <arpa/inet.h>
#include <errno.h>

#include "channel/setup/gid.h"
#include "channel/setup/endpoint.h"

enum {
	IB = IBV_GID_TYPE_IB,
	V1 = IBV_GID_TYPE_ROCE_V1,
	V2 = IBV_GID_TYPE_ROCE_V2,
	MOST = 4,
};

struct address {
	const char *text; /* NULL: the last one */
	uint32_t type;
};

static struct pier_gid_list list_of(const struct address *table)
{
	struct ibv_gid_entry entries[MOST] = { 0 };
	struct pier_gid_list list;
	uint32_t count = 0;

	for (; count < MOST && table[count].text; count++) {
		assert_int_equal(
			inet_pton(AF_INET6, table[count].text, entries[count].gid.raw),
			1);
		entries[count].gid_type = table[count].type;
		entries[count].gid_index = count;
	}
	pier_rank_gids(entries, count, &list);
	return list;
}

static const struct {
	struct address a[MOST], b[MOST];
	int chosen_a, chosen_b; /* -1: none go together */
} cases[] = {
	/* One host: the same table. */
	{ { { "fe80::1", V2 }, { "::ffff:10.0.0.1", V2 } },
	  { { "fe80::1", V2 }, { "::ffff:10.0.0.1", V2 } },
	  1,
	  1 },
	/* The subnet of the VLAN is the only one in common. */
	{ { { "::ffff:10.0.0.1", V2 }, { "::ffff:10.100.0.1", V2 } },
	  { { "::ffff:192.168.7.2", V2 }, { "::ffff:10.100.0.2", V2 } },
	  1,
	  1 },
	/* One end has IPv4 and IPv6, the other IPv6 alone. */
	{ { { "::ffff:10.0.0.1", V2 }, { "2001:db8::1", V2 } },
	  { { "fe80::2", V2 }, { "2001:db8::2", V2 } },
	  1,
	  1 },
	/* One end has RoCE v1 alone. */
	{ { { "::ffff:10.0.0.1", V1 }, { "::ffff:10.0.0.1", V2 } },
	  { { "::ffff:10.0.0.2", V1 } },
	  0,
	  0 },
	/* On Ethernet, type 0 is RoCE v1. */
	{ { { "::ffff:10.0.0.1", IB } }, { { "::ffff:10.0.0.2", V1 } }, 0, 0 },
	{ { { "::ffff:10.0.0.1", IB }, { "fe80::1", V1 } },
	  { { "::ffff:10.0.0.2", IB }, { "fe80::2", V1 } },
	  1,
	  1 },
	{ { { "::ffff:10.0.0.1", IB } }, { { "::ffff:10.0.0.2", V2 } }, -1, -1 },
	/* A type that pier does not know matches no other. */
	{ { { "::ffff:10.0.0.1", 3 } }, { { "::ffff:10.0.0.2", V1 } }, -1, -1 },
	{ { { "::ffff:10.0.0.1", 3 } }, { { "::ffff:10.0.0.2", 4 } }, -1, -1 },
	/* Link-local addresses remain. */
	{ { { "::ffff:10.0.0.1", V2 }, { "fe80::1", V2 } },
	  { { "2001:db8::2", V2 }, { "fe80::2", V2 } },
	  1,
	  1 },
	{ { { "::ffff:169.254.1.1", V2 } }, { { "fe80::2", V2 } }, -1, -1 },
	{ { { "::ffff:10.0.0.1", V2 } }, { { "2001:db8::2", V2 } }, -1, -1 },
	{ { { "::ffff:10.0.0.1", V2 } }, { { "::ffff:10.0.0.2", V1 } }, -1, -1 },
};

static void check_pair(const struct pier_gid_list *own, const struct pier_gid_list *peer,
		       int chosen_own, int chosen_peer)
{
	struct ibv_gid_entry of_own, of_peer;

	if (chosen_own < 0) {
		expect_result(pier_agree_on_gids(own, peer, &of_own, &of_peer),
			      -EADDRNOTAVAIL);
		test_assert_sentence("no GID of this end goes with one of the peer's (");
		return;
	}
	expect_ok(pier_agree_on_gids(own, peer, &of_own, &of_peer));
	assert_int_equal(of_own.gid_index, chosen_own);
	assert_int_equal(of_peer.gid_index, chosen_peer);
}

static void chooses_a_pair_of_one_family_and_subnet(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_gid_list a = list_of(cases[i].a), b = list_of(cases[i].b);

		print_message("case %zu\n", i);
		check_pair(&a, &b, cases[i].chosen_a, cases[i].chosen_b);
		check_pair(&b, &a, cases[i].chosen_b, cases[i].chosen_a);
	}
}

/* Few different values, so that many pairs are equally good. */
static struct pier_gid_list random_list(struct test_random *random)
{
	struct ibv_gid_entry entries[PIER_GID_OFFERS] = { 0 };
	uint32_t count = 1 + (uint32_t)test_random_below(random, PIER_GID_OFFERS);
	struct pier_gid_list list;

	for (uint32_t i = 0; i < count; i++) {
		static const char *const texts[] = { "::ffff:10.0.0.1", "::ffff:10.0.0.2",
						     "2001:db8::1", "2001:db8::2",
						     "fe80::1" };

		inet_pton(AF_INET6, texts[test_random_below(random, 5)],
			  entries[i].gid.raw);
		entries[i].gid_type = (uint32_t)test_random_below(random, 3);
		entries[i].gid_index = i;
	}
	pier_rank_gids(entries, count, &list);
	return list;
}

static struct pier_gid_list send_list(const struct pier_gid_list *list)
{
	uint8_t wire[PIER_GIDS_WIRE_MAX];
	struct pier_gid_list received;

	expect_ok(pier_unpack_gids(wire, pier_pack_gids(list, wire), &received));
	assert_int_equal(received.count, list->count);
	return received;
}

static void both_ends_choose_the_same_pair(void **state)
{
	struct test_random random = test_random_start();
	int agreed = 0;

	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct pier_gid_list a = random_list(&random), b = random_list(&random);
		struct pier_gid_list a_at_b = send_list(&a), b_at_a = send_list(&b);
		struct ibv_gid_entry a_of_a, b_of_a, a_of_b, b_of_b;
		int at_a = pier_agree_on_gids(&a, &b_at_a, &a_of_a, &b_of_a);
		int at_b = pier_agree_on_gids(&b, &a_at_b, &b_of_b, &a_of_b);

		assert_int_equal(at_a, at_b);
		if (at_a)
			continue;
		agreed++;
		assert_memory_equal(&a_of_a.gid, &a_of_b.gid, 16);
		assert_memory_equal(&b_of_a.gid, &b_of_b.gid, 16);
		assert_int_equal(a_of_a.gid_type ? a_of_a.gid_type : V1,
				 b_of_b.gid_type ? b_of_b.gid_type : V1);
	}
	assert_in_range(agreed, 1, 2000);
}

static void packs_the_documented_form(void **state)
{
	static const struct address table[MOST] = { { "2001:db8::1", V1 },
						    { "::ffff:10.0.0.1", V2 } };
	static const uint8_t golden[8 + 2 * 18] = {
		'P', 'r', 'G', 'I', 1, 0, 44, 0, 2,   0,    [20] = 0xff, 0xff,
		10,  0,	  0,   1,   1, 0, 32, 1, 0xd, 0xb8, [43] = 1,
	};
	struct pier_gid_list list = list_of(table);
	uint8_t wire[PIER_GIDS_WIRE_MAX];

	(void)state;
	assert_int_equal(pier_pack_gids(&list, wire), sizeof(golden));
	assert_memory_equal(wire, golden, sizeof(golden));
}

static void refuses_malformed_lists(void **state)
{
	uint8_t wire[PIER_GIDS_WIRE_MAX + 18] = "PrGI\1";
	struct pier_gid_list list;

	(void)state;
	for (size_t size = 0; size <= sizeof(wire); size++) {
		bool valid = size >= 8 + 18 && (size - 8) % 18 == 0 &&
			     size <= PIER_GIDS_WIRE_MAX;

		wire[6] = (uint8_t)size;
		assert_int_equal(pier_unpack_gids(wire, size, &list),
				 valid ? 0 : -EINVAL);
		/* Its own length is another one. */
		wire[7] = 1;
		assert_int_equal(pier_unpack_gids(wire, size, &list), -EINVAL);
		wire[7] = 0;
	}
	/* Another version may have another length. */
	wire[4] = 2;
	for (size_t size = 6; size <= sizeof(wire); size++) {
		wire[6] = (uint8_t)size;
		expect_result(pier_unpack_gids(wire, size, &list), -EPROTONOSUPPORT);
		test_assert_sentence("version 2");
	}
	expect_result(pier_unpack_gids(wire, 5, &list), -EINVAL);
	wire[6] = 8 + 18;
	wire[0] ^= 1;
	expect_result(pier_unpack_gids(wire, 8 + 18, &list), -EINVAL);
}

static void clamps_the_mtu(void **state)
{
	(void)state;
	assert_int_equal(pier_clamp_mtu(0, 1024), 1024);
	assert_int_equal(pier_clamp_mtu(1024, 0), 1024);
	assert_int_equal(pier_clamp_mtu(4096, 1024), 1024);
	assert_int_equal(pier_clamp_mtu(256, 1024), 256);
	assert_int_equal(pier_clamp_mtu(0, 0), 0);
	for (uint32_t bytes = 0; bytes <= 8192; bytes++)
		assert_int_equal(pier_mtu_valid(bytes),
				 bytes == 256 || bytes == 512 || bytes == 1024 ||
					 bytes == 2048 || bytes == 4096);
	for (uint32_t bytes = 256; bytes <= 4096; bytes *= 2)
		assert_int_equal(pier_mtu_from_verbs(pier_mtu_to_verbs(bytes)), bytes);
	assert_int_equal(pier_mtu_to_verbs(1024), IBV_MTU_1024);
	assert_int_equal(pier_mtu_from_verbs((enum ibv_mtu)0), 0);
	assert_int_equal(pier_mtu_from_verbs((enum ibv_mtu)6), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chooses_a_pair_of_one_family_and_subnet),
		cmocka_unit_test(both_ends_choose_the_same_pair),
		cmocka_unit_test(packs_the_documented_form),
		cmocka_unit_test(refuses_malformed_lists),
		cmocka_unit_test(clamps_the_mtu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

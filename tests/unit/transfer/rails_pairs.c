/* SPDX-License-Identifier: BSD-3-Clause */
/* How two ends describe their NICs, and which of them they connect. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transfer/rails.h"

enum {
	PAIRS = 16,
};

struct end {
	struct pier_rails rails;
	uint8_t bytes[PIER_RAILS_SIZE_MAX];
	size_t size;
};

static struct end ends[2];
static struct pier_rail_pair pairs[2][PAIRS];

static struct pier_rail_port *add(int end, const char *name, enum pier_link_layer layer,
				  enum pier_distance distance, uint32_t speed)
{
	struct pier_rails *rails = &ends[end].rails;
	struct pier_rail_port *port = &rails->ports[rails->count++];

	*port = (struct pier_rail_port){ .port = 1,
					 .speed = speed,
					 .kind = PIER_RAIL_VERBS,
					 .link_layer = layer,
					 .distance = distance };
	snprintf(port->device, sizeof(port->device), "%s", name);
	return port;
}

static void add_ib(int end, const char *name, uint8_t subnet, enum pier_distance distance)
{
	struct pier_rail_port *port = add(end, name, PIER_LINK_INFINIBAND, distance,
					  400000);

	port->subnet[0] = 0xfe;
	port->subnet[7] = subnet;
	port->subnet_bits = 64;
}

static struct pier_rail_port *add_roce(int end, const char *name, uint8_t gids,
				       uint8_t subnet, enum pier_distance distance)
{
	struct pier_rail_port *port = add(end, name, PIER_LINK_ETHERNET, distance,
					  200000);

	port->gids = gids;
	port->subnet[12] = 10;
	port->subnet[13] = subnet;
	port->subnet_bits = subnet ? 120 : 0;
	if (!subnet)
		memset(port->subnet, 0, sizeof(port->subnet));
	return port;
}

static void start(void)
{
	memset(ends, 0, sizeof(ends));
	ends[0].rails.salt = 2;
	ends[1].rails.salt = 1;
}

static void pack(struct end *end)
{
	end->size = (size_t)pier_rails_pack(&end->rails, end->bytes, sizeof(end->bytes));
}

static int choose_at(int end, uint32_t count)
{
	return pier_rails_choose(ends[end].bytes, ends[end].size, ends[!end].bytes,
				 ends[!end].size, pairs[end], count,
				 sizeof(pairs[end][0]));
}

/* Both ends choose, and must agree. Returns the number of pairs. */
static int choose(uint32_t count)
{
	int found[2];

	for (int end = 0; end < 2; end++)
		pack(&ends[end]);
	for (int end = 0; end < 2; end++)
		found[end] = choose_at(end, count);
	assert_int_equal(found[0], found[1]);
	for (int i = 0; i < found[0]; i++) {
		const struct pier_rail_pair *a = &pairs[0][i], *b = &pairs[1][i];

		assert_string_equal(a->device, b->peer_device);
		assert_string_equal(a->peer_device, b->device);
		assert_int_equal(a->port, b->peer_port);
		assert_int_equal(a->peer_port, b->port);
		assert_int_equal(a->speed, b->speed);
		assert_int_equal(a->distance, b->distance);
	}
	return found[0];
}

static void expect_pair(int index, const char *device, const char *peer)
{
	assert_string_equal(pairs[0][index].device, device);
	assert_string_equal(pairs[0][index].peer_device, peer);
}

/* Two DGX hosts: the memory is near another NIC at each end. */
static void pairs_the_nearest_at_both_ends(void **state)
{
	char name[16];

	(void)state;
	start();
	for (int end = 0; end < 2; end++) {
		for (int i = 0; i < 8; i++) {
			snprintf(name, sizeof(name), "mlx5_%d", i);
			add_ib(end, name, 0,
			       i == (end ? 5 : 2) ? PIER_DISTANCE_SWITCH
						  : PIER_DISTANCE_NODE);
		}
	}
	assert_int_equal(choose(PAIRS), 1);
	expect_pair(0, "mlx5_2", "mlx5_5");
	assert_int_equal(pairs[0][0].distance, PIER_DISTANCE_SWITCH);
	assert_int_equal(pairs[0][0].speed, 400000);
}

/* Host memory: all are equally near, and NICs of one name meet. */
static void pairs_all_equal_rails(void **state)
{
	static const char *const names[2][4] = {
		{ "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3" },
		{ "mlx5_2", "mlx5_3", "mlx5_0", "mlx5_9" },
	};

	(void)state;
	start();
	for (int end = 0; end < 2; end++)
		for (int i = 0; i < 4; i++)
			add_ib(end, names[end][i], 0, PIER_DISTANCE_NODE);
	assert_int_equal(choose(PAIRS), 4);
	expect_pair(0, "mlx5_2", "mlx5_2");
	expect_pair(1, "mlx5_0", "mlx5_0");
	expect_pair(2, "mlx5_3", "mlx5_3");
	expect_pair(3, "mlx5_1", "mlx5_9");
}

static void keeps_fabrics_apart(void **state)
{
	(void)state;
	start();
	add_ib(0, "mlx5_0", 1, PIER_DISTANCE_SWITCH);
	add_ib(0, "mlx5_1", 2, PIER_DISTANCE_NODE);
	add_roce(0, "mlx5_2", PIER_RAIL_IPV4, 1, PIER_DISTANCE_SWITCH);
	add_ib(1, "mlx5_0", 2, PIER_DISTANCE_NODE);
	add_roce(1, "mlx5_1", PIER_RAIL_IPV6, 1, PIER_DISTANCE_SWITCH);
	assert_int_equal(choose(PAIRS), 1);
	expect_pair(0, "mlx5_1", "mlx5_0");
	/* Software NICs reach only each other. */
	start();
	add_roce(0, "mlx5_0", PIER_RAIL_IPV4, 1, PIER_DISTANCE_SWITCH);
	add_roce(1, "soft0", 0, 0, PIER_DISTANCE_UNKNOWN)->kind = PIER_RAIL_SOFT;
	assert_int_equal(choose(PAIRS), -EHOSTUNREACH);
	test_assert_sentence(
		"Here: soft0 port 1 (software); there: mlx5_0 port 1 (Ethernet)");
	add_roce(0, "soft0", 0, 0, PIER_DISTANCE_UNKNOWN)->kind = PIER_RAIL_SOFT;
	assert_int_equal(choose(PAIRS), 1);
	expect_pair(0, "soft0", "soft0");
}

/* RoCE: each rail has a subnet of its own, and the nearest NICs are on different ones. */
static void prefers_a_common_subnet(void **state)
{
	char name[16];

	(void)state;
	start();
	for (int end = 0; end < 2; end++) {
		for (uint8_t i = 0; i < 4; i++) {
			snprintf(name, sizeof(name), "mlx5_%d", end ? 9 - i : i);
			add_roce(end, name, PIER_RAIL_IPV4, i + 1,
				 i == (end ? 1 : 0) ? PIER_DISTANCE_SWITCH
						    : PIER_DISTANCE_NODE);
		}
	}
	assert_int_equal(choose(PAIRS), 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(atoi(pairs[0][i].device + 5) +
					 atoi(pairs[0][i].peer_device + 5),
				 9);
	/* Where each port has its own, routers connect them. */
	start();
	for (int end = 0; end < 2; end++) {
		add_roce(end, "mlx5_0", PIER_RAIL_IPV4, end ? 10 : 11,
			 PIER_DISTANCE_SYSTEM);
		add_roce(end, "mlx5_1", PIER_RAIL_IPV4, end ? 12 : 13,
			 PIER_DISTANCE_SWITCH);
	}
	assert_int_equal(choose(PAIRS), 1);
	expect_pair(0, "mlx5_1", "mlx5_1");
}

/*
 * Front-end NICs share a subnet, as fast as the GPU's own: those are each in one of their
 * own, behind a router.
 */
static void distance_counts_where_routers_lead(void **state)
{
	(void)state;
	for (int routed = 0; routed < 4; routed++) {
		start();
		for (int end = 0; end < 2; end++) {
			uint8_t gids = PIER_RAIL_IPV4;

			if (routed >> end & 1)
				gids |= PIER_RAIL_ROUTED;
			add_roce(end, "front", PIER_RAIL_IPV4 | PIER_RAIL_ROUTED, 1,
				 PIER_DISTANCE_SYSTEM);
			add_roce(end, "rail", gids, end ? 12 : 13, PIER_DISTANCE_SWITCH);
		}
		assert_int_equal(choose(PAIRS), 1);
		/* Without a router at both, nobody knows whether they reach each other.
		 */
		expect_pair(0, routed == 3 ? "rail" : "front",
			    routed == 3 ? "rail" : "front");
	}
	/* A router is no kind of GID. */
	start();
	add_roce(0, "a", PIER_RAIL_IPV4 | PIER_RAIL_ROUTED, 1, PIER_DISTANCE_SWITCH);
	add_roce(1, "b", PIER_RAIL_IPV6 | PIER_RAIL_ROUTED, 1, PIER_DISTANCE_SWITCH);
	for (int end = 0; end < 2; end++)
		pack(&ends[end]);
	assert_int_equal(choose_at(0, 1), -EHOSTUNREACH);
}

/* A management port that is near, and in one subnet, is not chosen. */
static void prefers_fast_ports(void **state)
{
	(void)state;
	start();
	for (int end = 0; end < 2; end++) {
		add_roce(end, "mlx5_0", PIER_RAIL_IPV4, 1, PIER_DISTANCE_SAME)->speed =
			25000;
		add_roce(end, "mlx5_1", PIER_RAIL_IPV4, end ? 2 : 3, PIER_DISTANCE_NODE);
		add_roce(end, "mlx5_2", PIER_RAIL_IPV4, end ? 4 : 5, PIER_DISTANCE_NODE);
	}
	assert_int_equal(choose(PAIRS), 2);
	expect_pair(0, "mlx5_1", "mlx5_1");
	expect_pair(1, "mlx5_2", "mlx5_2");
	assert_int_equal(choose(1), 1);
	expect_pair(0, "mlx5_1", "mlx5_1");
	expect_result(choose_at(0, 0), -EINVAL);
}

static void make_random_end(int end, struct test_random *random)
{
	uint32_t count = 1 + (uint32_t)test_random_below(random, 8);

	for (uint32_t i = 0; i < count; i++) {
		char name[16];
		enum pier_distance distance = test_random_below(random, 3);
		uint8_t subnet = (uint8_t)test_random_below(random, 3);

		snprintf(name, sizeof(name), "nic%d", (int)test_random_below(random, 10));
		if (test_random_below(random, 2))
			add_ib(end, name, subnet, distance);
		else
			add_roce(end, name, (uint8_t)test_random_below(random, 16),
				 subnet, distance);
	}
	ends[end].rails.salt = test_random_next(random);
}

/* Whatever the ends have, both choose the same, and no port twice. */
static void both_ends_agree(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (int round = 0; round < 2000; round++) {
		uint32_t limit = 1 + (uint32_t)test_random_below(&random, PAIRS);
		int found;

		start();
		make_random_end(0, &random);
		make_random_end(1, &random);
		/* A name may appear twice; ports are told apart by number. */
		for (int end = 0; end < 2; end++)
			for (uint32_t i = 0; i < ends[end].rails.count; i++)
				ends[end].rails.ports[i].port = i + 1;
		found = choose(limit);
		assert_true(found <= (int)limit && (found > 0 || found == -EHOSTUNREACH));
		for (int i = 0; i < found; i++) {
			assert_int_equal(pairs[0][i].speed, pairs[0][0].speed);
			assert_int_equal(pairs[0][i].distance, pairs[0][0].distance);
			for (int j = 0; j < i; j++) {
				assert_int_not_equal(pairs[0][i].port, pairs[0][j].port);
				assert_int_not_equal(pairs[0][i].peer_port,
						     pairs[0][j].peer_port);
			}
		}
	}
}

static void rejects_malformed_descriptions(void **state)
{
	static const struct {
		size_t at;
		uint8_t value;
		const char *sentence;
	} wrong[] = {
		{ 0, 'X', "no description" },
		{ 4, 2, "version 2; this library has 1" },
		{ 6, 0, "0 ports in 208 bytes" },
		{ 6, 3, "3 ports in 208 bytes" },
		{ 16, 0, "port number 0" },	     /* no name */
		{ 16 + 1, ' ', "port number 0" },    /* a space in it */
		{ 16 + 20, 'x', "port number 0" },   /* bytes behind it */
		{ 112 + 64, 0, "port number 1" },    /* port 0 */
		{ 16 + 65, 1, "port number 0" },     /* port 257 */
		{ 16 + 72, 3, "port number 0" },     /* kind */
		{ 16 + 73, 0, "port number 0" },     /* link layer */
		{ 16 + 74, 8, "port number 0" },     /* distance */
		{ 16 + 75, 32, "port number 0" },    /* GIDs */
		{ 16 + 76 + 8, 1, "port number 0" }, /* behind the prefix */
		{ 16 + 92, 129, "port number 0" },   /* bits */
		{ 16 + 93, 1, "port number 0" },     /* not zero */
	};

	(void)state;
	start();
	for (int i = 0; i < 2; i++)
		add_ib(i, "mlx5_0", 1, PIER_DISTANCE_NODE);
	add_ib(0, "mlx5_1", 1, PIER_DISTANCE_NODE);
	assert_int_equal(choose(PAIRS), 1);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		uint8_t kept = ends[0].bytes[wrong[i].at];

		assert_int_equal(ends[0].size, 208);
		ends[0].bytes[wrong[i].at] = wrong[i].value;
		expect_result(choose_at(1, PAIRS), -EBADMSG);
		test_assert_sentence(wrong[i].sentence);
		expect_result(choose_at(0, PAIRS), -EBADMSG);
		ends[0].bytes[wrong[i].at] = kept;
	}
	ends[0].size--;
	expect_result(choose_at(1, PAIRS), -EBADMSG);
	ends[0].size = 15;
	expect_result(choose_at(1, PAIRS), -EBADMSG);
}

static void describe(int end, const char *devices)
{
	int size = pier_rails_describe(NULL, devices, NULL, 0);

	assert_true(size > 0);
	expect_result(
		pier_rails_describe(NULL, devices, ends[end].bytes, (size_t)size - 1),
		-ENOSPC);
	ends[end].size = (size_t)size;
	assert_int_equal(
		pier_rails_describe(NULL, devices, ends[end].bytes, ends[end].size),
		size);
}

/* A device that is named twice is two rails. */
static void describes_named_devices(void **state)
{
	struct test_census before = test_take_census();

	(void)state;
	describe(0, "soft0,soft0");
	setenv("PIER_DEVICE", "fault:reg@9=EIO,seed=1:soft0", 1);
	describe(1, NULL);
	unsetenv("PIER_DEVICE");
	assert_int_equal(choose_at(0, PAIRS), 1);
	expect_pair(0, "soft0", "fault:reg@9=EIO,seed=1:soft0");
	describe(1, "soft0,soft0,soft0");
	assert_int_equal(choose_at(0, PAIRS), 2);
	expect_pair(1, "soft0", "soft0");
	expect_result(pier_rails_describe(NULL, "soft0,nic9", NULL, 0), -ENODEV);
	test_assert_sentence("no RDMA device \"nic9\"");
	test_assert_census(&before);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(pairs_the_nearest_at_both_ends),
		cmocka_unit_test(pairs_all_equal_rails),
		cmocka_unit_test(keeps_fabrics_apart),
		cmocka_unit_test(prefers_a_common_subnet),
		cmocka_unit_test(distance_counts_where_routers_lead),
		cmocka_unit_test(prefers_fast_ports),
		cmocka_unit_test(both_ends_agree),
		cmocka_unit_test(rejects_malformed_descriptions),
		cmocka_unit_test(describes_named_devices),
	};

	return cmocka_run_group_tests_name("rails_pairs", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <cmocka.h>

#include "channel/setup/gid.h"
#include "channel/setup/mtu.h"
#include "nic.h"

enum {
	IB = IBV_GID_TYPE_IB,
	V1 = IBV_GID_TYPE_ROCE_V1,
	V2 = IBV_GID_TYPE_ROCE_V2,
};

struct address {
	const char *text; /* NULL: the last entry */
	uint32_t type;
};

static const struct {
	struct address table[5];
	int chosen;
} cases[] = {
	{ { { NULL, 0 } }, -1 },
	{ { { "::", V2 } }, -1 },
	{ { { "fe80::1", V1 } }, 0 },
	{ { { "fe80::1", V1 }, { "fe80::1", V2 } }, 1 },
	{ { { "fe80::1", V1 }, { "fe80::1", V2 }, { "::ffff:10.0.0.1", V1 } }, 1 },
	{ { { "fe80::1", V2 }, { "2001:db8::1", V2 } }, 1 },
	{ { { "fe80::1", V2 }, { "fd00::1", V2 } }, 1 },
	{ { { "2001:db8::1", V2 }, { "::ffff:10.0.0.1", V2 } }, 1 },
	{ { { "::ffff:10.0.0.1", V2 }, { "2001:db8::1", V2 } }, 0 },
	{ { { "::ffff:10.0.0.1", V1 }, { "::ffff:10.0.0.1", V2 } }, 1 },
	{ { { "::ffff:10.0.0.1", V2 }, { "::ffff:10.0.0.2", V2 } }, 0 },
	{ { { "::ffff:169.254.3.4", V2 }, { "2001:db8::1", V2 } }, 1 },
	{ { { "::ffff:169.254.3.4", V2 }, { "fe80::1", V1 } }, 0 },
	{ { { "fe80::1", IB }, { "fe80::1", V1 } }, 1 },
	{ { { "fe80::1", IB } }, 0 },
	{ { { "::", V1 }, { "febf::1", V2 }, { "::", V2 }, { "fec0::1", V2 } }, 3 },
};

static void chooses_the_gid_by_type_and_scope(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ibv_gid_entry entries[5] = { 0 };
		size_t count = 0;

		while (count < 5 && cases[i].table[count].text) {
			assert_int_equal(inet_pton(AF_INET6, cases[i].table[count].text,
						   entries[count].gid.raw),
					 1);
			entries[count].gid_type = cases[i].table[count].type;
			count++;
		}
		if (pier_choose_gid(entries, count) != cases[i].chosen)
			fail_msg("case %zu: chose %d, not %d", i,
				 pier_choose_gid(entries, count), cases[i].chosen);
	}
}

static void skips_empty_entries(void **state)
{
	struct ibv_gid_entry entry;

	(void)state;
	fake_reset();
	fake.gids[3].gid.raw[0] = 0x20;
	fake.gids[3].gid_type = V2;
	assert_int_equal(
		pier_find_gid(fake.device.provider, &fake.context, 1, FAKE_GIDS, &entry),
		0);
	assert_int_equal(entry.gid_index, 1);
	fake.gids[1].gid_type = V1;
	assert_int_equal(
		pier_find_gid(fake.device.provider, &fake.context, 1, FAKE_GIDS, &entry),
		0);
	assert_int_equal(entry.gid_index, 3);
	assert_int_equal(pier_find_gid(fake.device.provider, &fake.context, 1, 1, &entry),
			 -EADDRNOTAVAIL);
	assert_int_equal(pier_find_gid(fake.device.provider, &fake.context, 1, 0, &entry),
			 -EADDRNOTAVAIL);
	fake.fail_call = fake.calls + 2;
	assert_int_equal(
		pier_find_gid(fake.device.provider, &fake.context, 1, FAKE_GIDS, &entry),
		-ENOSPC);
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
		cmocka_unit_test(chooses_the_gid_by_type_and_scope),
		cmocka_unit_test(skips_empty_entries),
		cmocka_unit_test(clamps_the_mtu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

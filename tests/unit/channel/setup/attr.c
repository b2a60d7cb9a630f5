/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <pier/error.h>
#include <pier/recovery.h>

#include "channel/setup/attr.h"

static const struct ibv_device_attr device = {
	.max_qp_wr = 1000,
	.max_sge = 6,
	.max_cqe = 1500,
	.phys_port_cnt = 2,
};

static struct pier_channel_attr good(void)
{
	struct pier_channel_attr attr;

	assert_int_equal(pier_read_channel_attr(NULL, &device, &attr), 0);
	attr.max_send_sge = attr.max_recv_sge = 4;
	return attr;
}

/* A wrong value, and what the sentence must contain. */
#define WRONG(field, value, ...)                                                    \
	do {                                                                        \
		const char *words[] = { #field, __VA_ARGS__ };                      \
		struct pier_channel_attr attr = good();                             \
                                                                                    \
		attr.field = (value);                                               \
		assert_int_equal(pier_check_channel_attr(&attr, &device), -EINVAL); \
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)       \
			if (!strstr(pier_error_message(), words[i]))                \
				fail_msg("no \"%s\" in: %s", words[i],              \
					 pier_error_message());                     \
	} while (0)

#define RIGHT(field, value)                                                   \
	do {                                                                  \
		struct pier_channel_attr attr = good();                       \
                                                                              \
		attr.field = (value);                                         \
		assert_int_equal(pier_check_channel_attr(&attr, &device), 0); \
	} while (0)

static void names_value_and_limit(void **state)
{
	(void)state;
	WRONG(port, 0, "1 to 2");
	WRONG(port, 3, "port 3", "1 to 2");
	WRONG(max_send_wr, 0, "1 to 1000");
	WRONG(max_send_wr, 1001, "1001", "1000");
	WRONG(max_recv_wr, 0, "1 to 1000");
	WRONG(max_recv_wr, UINT32_MAX, "4294967295", "1000");
	WRONG(max_send_sge, 7, "7", "1 to 6");
	WRONG(max_recv_sge, 0, "1 to 6");
	WRONG(mtu, 1500, "1500", "1024");
	WRONG(mtu, 8192, "8192");
	WRONG(timeout, 32, "32", "31");
	WRONG(retry_count, 8, "8", "7");
	WRONG(rnr_retry_count, 8, "8", "7");
	WRONG(min_rnr_timer, 32, "32", "31");
	WRONG(service_level, 16, "16", "15");
	WRONG(psn, 1 << 24, "16777216", "16777215");
	WRONG(access, 1 << 7, "0x80");
	WRONG(timeout_ms, 0, "0");
	WRONG(timeout_ms, -1, "-1");
	WRONG(cq_depth, 31, "31", "32 to 1500");
	WRONG(cq_depth, 1501, "1501", "32 to 1500");
	WRONG(flow_label, 1 << 20, "1048576", "1048575");
	WRONG(keepalive_ms, (uint32_t)INT32_MAX + 1, "2147483648", "2147483647");
	WRONG(max_rd_atomic, 256, "256", "255");
	WRONG(max_dest_rd_atomic, 256, "256", "255");
	WRONG(traffic_class, 256, "256", "255");
	WRONG(hop_limit, 256, "256", "255");
	WRONG(static_rate, 1, "static_rate 1");
	WRONG(static_rate, 256 + IBV_RATE_10_GBPS, "259");
}

static void accepts_values_in_range(void **state)
{
	(void)state;
	RIGHT(port, 2);
	RIGHT(max_send_wr, 1000);
	RIGHT(max_send_sge, 6);
	RIGHT(mtu, 0);
	RIGHT(mtu, 4096);
	RIGHT(timeout, 31);
	RIGHT(retry_count, 0);
	RIGHT(rnr_retry_count, 7);
	RIGHT(min_rnr_timer, 31);
	RIGHT(psn, 0);
	RIGHT(psn, 0xffffff);
	RIGHT(psn, PIER_UNSET);
	RIGHT(access, 0);
	RIGHT(timeout_ms, 1);
	RIGHT(cq_depth, 0);
	RIGHT(cq_depth, 32);
	RIGHT(cq_depth, 1500);
	RIGHT(flow_label, (1 << 20) - 1);
	RIGHT(keepalive_ms, 1);
	RIGHT(keepalive_ms, INT32_MAX);
	RIGHT(max_dest_rd_atomic, 0);
	RIGHT(max_dest_rd_atomic, 255);
	RIGHT(max_dest_rd_atomic, PIER_UNSET);
	RIGHT(static_rate, IBV_RATE_2_5_GBPS);
	RIGHT(static_rate, IBV_RATE_400_GBPS);
}

static void adds_flags_to_unset_access(void **state)
{
	struct pier_channel_attr attr, result;

	(void)state;
	pier_channel_attr_init(&attr);
	attr.access |= PIER_ACCESS_REMOTE_ATOMIC;
	assert_int_equal(pier_read_channel_attr(&attr, &device, &result), 0);
	assert_int_equal(result.access, PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC);
}

static void cq_holds_both_queues(void **state)
{
	struct pier_channel_attr attr = good();

	(void)state;
	attr.max_send_wr = 1000;
	attr.max_recv_wr = 500;
	assert_int_equal(pier_check_channel_attr(&attr, &device), 0);
	attr.max_recv_wr = 501;
	assert_int_equal(pier_check_channel_attr(&attr, &device), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "1501"));
	assert_non_null(strstr(pier_error_message(), "1500"));
}

/* Keepalives need a place in the send queue and the CQ, and a timeout. */
static void reserves_a_place_for_the_keepalive(void **state)
{
	struct pier_channel_attr attr = good();

	(void)state;
	assert_int_equal(pier_cq_entries(&attr), 32);
	attr.keepalive_ms = 100;
	assert_int_equal(pier_cq_entries(&attr), 33);
	attr.cq_depth = 32;
	assert_int_equal(pier_check_channel_attr(&attr, &device), -EINVAL);
	attr.cq_depth = 40;
	assert_int_equal(pier_check_channel_attr(&attr, &device), 0);
	assert_int_equal(pier_cq_entries(&attr), 40);
	attr.cq_depth = 0;
	attr.max_send_wr = 999;
	assert_int_equal(pier_check_channel_attr(&attr, &device), 0);
	attr.max_send_wr = 1000;
	assert_int_equal(pier_check_channel_attr(&attr, &device), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "keepalive_ms"));
	attr.max_send_wr = 16;
	attr.timeout = 0;
	assert_int_equal(pier_check_channel_attr(&attr, &device), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "timeout 0"));
	attr.keepalive_ms = 0;
	assert_int_equal(pier_check_channel_attr(&attr, &device), 0);
}

static void refuses_invalid_path_bits(void **state)
{
	struct ibv_port_attr port = { .state = IBV_PORT_ACTIVE, .lmc = 2 };
	struct pier_channel_attr attr = good();

	(void)state;
	attr.src_path_bits = 3;
	assert_int_equal(pier_check_channel_port(&attr, &port), 0);
	attr.src_path_bits = 4;
	assert_int_equal(pier_check_channel_port(&attr, &port), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "src_path_bits 4"));
	port.lmc = 0;
	attr.src_path_bits = 1;
	assert_int_equal(pier_check_channel_port(&attr, &port), -EINVAL);
	attr.src_path_bits = 0;
	assert_int_equal(pier_check_channel_port(&attr, &port), 0);
}

static void refuses_an_unusable_port(void **state)
{
	struct ibv_port_attr port = { .state = IBV_PORT_ACTIVE, .gid_tbl_len = 4 };
	struct pier_channel_attr attr = good();

	(void)state;
	assert_int_equal(pier_check_channel_port(&attr, &port), 0);
	attr.gid_index = 3;
	assert_int_equal(pier_check_channel_port(&attr, &port), 0);
	attr.gid_index = 4;
	assert_int_equal(pier_check_channel_port(&attr, &port), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "gid_index 4"));
	attr.gid_index = PIER_GID_ANY - 1;
	assert_int_equal(pier_check_channel_port(&attr, &port), -EINVAL);
	port.state = IBV_PORT_DOWN;
	assert_int_equal(pier_check_channel_port(&attr, &port), -ENETDOWN);
	assert_non_null(strstr(pier_error_message(), "DOWN"));
}

static void reads_structs_of_other_sizes(void **state)
{
	struct {
		struct pier_channel_attr attr;
		char later[16];
	} newer = { .later = { 0 } };
	struct pier_channel_attr result;

	(void)state;
	pier_channel_attr_init(&newer.attr);
	newer.attr.size = sizeof(newer);
	newer.attr.max_send_wr = 33;
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), 0);
	assert_int_equal(result.max_send_wr, 33);
	assert_int_equal(result.size, sizeof(result));
	/* A later member that is unset. */
	memset(newer.later + 4, 0xff, 4);
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), 0);
	newer.later[4] = 0;
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), -EINVAL);
	memset(newer.later, 0, sizeof(newer.later));
	newer.later[15] = 1;
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), -EINVAL);
	/* The end of the first version; later fields have their defaults. */
	newer.attr.size = offsetof(struct pier_channel_attr, cq_depth);
	newer.attr.max_dest_rd_atomic = 3;
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), 0);
	assert_int_equal(result.max_send_wr, 33);
	assert_int_equal(result.max_dest_rd_atomic, PIER_UNSET);
	/* The first version, with nothing behind it. */
	newer.attr.waiting = PIER_WAIT_POLL;
	newer.attr.size = offsetof(struct pier_channel_attr, waiting);
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), 0);
	assert_int_equal(result.waiting, PIER_WAIT_ADAPTIVE);
	assert_int_equal(result.spin_us, 50);
	newer.attr.size--;
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), -EINVAL);
	newer.attr.size = 0;
	assert_int_equal(pier_read_channel_attr(&newer.attr, &device, &result), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "pier_channel_attr_init()"));
}

/* The defaults must fit a small device. */
static void clamps_defaults_to_the_device(void **state)
{
	struct pier_channel_attr result;

	(void)state;
	assert_int_equal(pier_read_channel_attr(NULL, &device, &result), 0);
	assert_int_equal(result.max_send_sge, 6);
	assert_int_equal(result.max_send_wr, 16);
	assert_int_equal(pier_check_channel_attr(&result, &device), 0);
}

/* Also if other members were changed; what the caller chose is refused instead. */
static void clamps_each_untouched_default(void **state)
{
	struct pier_channel_attr attr, result;

	(void)state;
	pier_channel_attr_init(&attr);
	attr.max_send_wr = 100;
	attr.max_recv_sge = 7;
	assert_int_equal(pier_read_channel_attr(&attr, &device, &result), 0);
	assert_int_equal(result.max_send_sge, 6);
	assert_int_equal(result.max_send_wr, 100);
	assert_int_equal(result.max_recv_sge, 7);
	assert_int_equal(pier_check_channel_attr(&result, &device), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "max_recv_sge 7"));
}

/* rxe takes 7 as no limit: COMPST_ERROR_RETRY in rxe_comp.c. */
static void limits_retries_on_rxe(void **state)
{
	struct ibv_device_attr rxe = device;
	struct pier_channel_attr result;

	(void)state;
	rxe.vendor_id = 0xffffff;
	assert_int_equal(pier_read_channel_attr(NULL, &rxe, &result), 0);
	assert_int_equal(result.retry_count, 6);
	assert_int_equal(pier_read_channel_attr(NULL, &device, &result), 0);
	assert_int_equal(result.retry_count, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_value_and_limit),
		cmocka_unit_test(accepts_values_in_range),
		cmocka_unit_test(adds_flags_to_unset_access),
		cmocka_unit_test(cq_holds_both_queues),
		cmocka_unit_test(reserves_a_place_for_the_keepalive),
		cmocka_unit_test(refuses_invalid_path_bits),
		cmocka_unit_test(refuses_an_unusable_port),
		cmocka_unit_test(reads_structs_of_other_sizes),
		cmocka_unit_test(clamps_defaults_to_the_device),
		cmocka_unit_test(clamps_each_untouched_default),
		cmocka_unit_test(limits_retries_on_rxe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

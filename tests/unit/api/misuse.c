/* SPDX-License-Identifier: BSD-3-Clause */
/* Mistakes that a caller can make, and the errors that the headers promise. */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <string.h>

#include <pier/pier.h>

enum {
	LENGTH = 4096,
};

static struct pier_device *device;
static struct pier_pd *pd;
static struct pier_mr *mr;
static struct pier_channel *channel;
static struct pier_remote whole;
static char memory[LENGTH];

static void connect_to_itself(struct pier_channel *one)
{
	struct pier_endpoint endpoint;

	expect_ok(pier_channel_endpoint(one, &endpoint));
	expect_ok(pier_channel_connect(one, &endpoint));
}

static int open_fixture(void **state)
{
	(void)state;
	expect_ok(pier_device_open(PIER_SOFT_DEVICE, &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_mr_reg(pd, memory, LENGTH, PIER_ACCESS_SHARED, &mr));
	expect_ok(pier_mr_remote(mr, &whole));
	expect_ok(pier_channel_create(pd, NULL, &channel));
	connect_to_itself(channel);
	return 0;
}

static int close_fixture(void **state)
{
	(void)state;
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_pd_dealloc(pd));
	return pier_device_close(device);
}

static void expect_transfer_refused(const struct pier_rail *rail, const char *reason)
{
	struct pier_transfer *transfer;
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	attr.rails = rail;
	attr.rail_count = 1;
	attr.length = LENGTH;
	expect_result(pier_transfer_create(&attr, &transfer), -EINVAL);
	test_assert_sentence(reason);
}

static void null_in_a_rail_is_refused(void **state)
{
	struct pier_receiver_rail receiver_rail = { .channel = channel };
	struct pier_receiver *receiver;
	struct pier_receiver_attr attr;

	(void)state;
	expect_transfer_refused(
		&(struct pier_rail){ .mr = mr, .parts = &whole, .count = 1 },
		"rail 0 of a transfer: channel is NULL");
	expect_transfer_refused(
		&(struct pier_rail){ .channel = channel, .parts = &whole, .count = 1 },
		"rail 0 of a transfer: mr is NULL");
	expect_transfer_refused(
		&(struct pier_rail){ .channel = channel, .mr = mr, .count = 1 },
		"parts is NULL");
	pier_receiver_attr_init(&attr);
	attr.rails = &receiver_rail;
	attr.rail_count = 1;
	attr.length = LENGTH;
	expect_result(pier_receiver_create(&attr, &receiver), -EINVAL);
	test_assert_sentence("rail 0 of a receiver: mr is NULL");
	receiver_rail = (struct pier_receiver_rail){ .mr = mr };
	expect_result(pier_receiver_create(&attr, &receiver), -EINVAL);
	test_assert_sentence("rail 0 of a receiver: channel is NULL");
}

static void null_in_a_source_is_refused(void **state)
{
	const struct pier_ring_read read = { .length = 10 };
	struct pier_ring_source source = { .parts = &whole, .count = 1 };
	struct pier_ring *ring;

	(void)state;
	expect_ok(pier_ring_create(pd, NULL, &ring));
	expect_result(pier_ring_fill(ring, &source, 1, &read, 1, NULL), -EINVAL);
	test_assert_sentence("source 0 of a fill: channel is NULL");
	source = (struct pier_ring_source){ .channel = channel, .count = 1 };
	expect_result(pier_ring_fill(ring, &source, 1, &read, 1, NULL), -EINVAL);
	test_assert_sentence("source 0 of a fill: parts is NULL");
	expect_ok(pier_ring_destroy(ring));
}

/* The queue pair would refuse it for a reason that says nothing about the mistake. */
static void cancelled_channel_is_not_connected(void **state)
{
	struct pier_endpoint endpoint;
	struct pier_channel *other;

	(void)state;
	expect_ok(pier_channel_create(pd, NULL, &other));
	expect_ok(pier_channel_endpoint(other, &endpoint));
	expect_ok(pier_channel_cancel(other));
	expect_result(pier_channel_connect(other, &endpoint), -EPIPE);
	test_assert_sentence("the channel was cancelled");
	expect_result(pier_channel_handshake(other, 0, 0, 0), -EPIPE);
	test_assert_sentence("the channel was cancelled");
	expect_ok(pier_channel_reset(other));
	connect_to_itself(other);
	expect_ok(pier_channel_destroy(other));
}

static void channel_of_a_group_is_connected_by_the_group(void **state)
{
	struct pier_endpoint endpoint;
	struct pier_channel *member;
	struct pier_group *group;

	(void)state;
	expect_ok(pier_group_create(pd, 0, 2, NULL, &group));
	member = pier_group_channel(group, 1);
	expect_ok(pier_channel_endpoint(member, &endpoint));
	expect_result(pier_channel_connect(member, &endpoint), -EBUSY);
	test_assert_sentence("it belongs to the group of 2");
	expect_result(pier_channel_handshake(member, 0, 0, 0), -EBUSY);
	expect_result(pier_channel_reset(member), -EBUSY);
	expect_result(pier_channel_destroy(member), -EBUSY);
	expect_ok(pier_group_destroy(group));
}

static void gid_index_beyond_the_table_is_refused(void **state)
{
	struct pier_gid_entry entry;
	struct pier_port_attr port;

	(void)state;
	expect_ok(pier_device_query_port(device, 1, &port, sizeof(port)));
	expect_result(
		pier_device_query_gid(device, 1, port.gid_count, &entry, sizeof(entry)),
		-EINVAL);
	test_assert_sentence("no GID index");
	expect_result(pier_device_query_gid(device, 1, UINT32_MAX, &entry, sizeof(entry)),
		      -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(null_in_a_rail_is_refused),
		cmocka_unit_test(null_in_a_source_is_refused),
		cmocka_unit_test(cancelled_channel_is_not_connected),
		cmocka_unit_test(channel_of_a_group_is_connected_by_the_group),
		cmocka_unit_test(gid_index_beyond_the_table_is_refused),
	};

	return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

static const size_t mib = 1 << 20;

static void notifications_follow_the_bytes(void **)
{
	test_memory source(3 * mib), target(3 * mib);
	test_agent one("one"), two("two");
	nixlBackendReqH *handle;

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two",
			     { { source.addr, target.addr, 3 * mib } });
	for (unsigned round = 0; round < 20; round++) {
		std::string message = std::to_string(round);
		nixl_status_t status;

		source.fill((uint8_t)round);
		status = one.post(NIXL_WRITE, "two", handle, &message);
		/* The initiator makes no progress meanwhile: its thread does. */
		assert_true(two.next_notice() ==
			    std::make_pair(std::string("one"), message));
		assert_true(target.get() == std::string(3 * mib, (char)round));
		assert_int_equal(one.wait(handle, status), NIXL_SUCCESS);
	}
	one.release(handle);
}

static void notifications_of_reads_arrive_at_the_owner(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one"), two("two");
	std::string message = "read it";

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	target.fill(9);
	assert_int_equal(one.move(NIXL_READ, "two", { { source.addr, target.addr, mib } },
				  &message),
			 NIXL_SUCCESS);
	assert_true(source.get() == target.get());
	assert_true(two.next_notice().second == message);
}

static void notifications_have_any_length_and_keep_their_order(void **)
{
	const size_t lengths[] = { 0, 1, 4087, 4088, 4089, 3 * mib, 7, 0, 100000 };
	test_agent one("one"), two("two");

	one.meet(two);
	for (size_t length : lengths)
		assert_int_equal(one.engine->genNotif("two", test_bytes(length, 1)),
				 NIXL_SUCCESS);
	for (size_t length : lengths)
		assert_true(two.next_notice().second == test_bytes(length, 1));
}

/* The receiver's thread takes them, so that the sender never waits for its program. */
static void notifications_wait_for_their_reader(void **)
{
	test_memory source(4096), target(4096);
	test_agent one("one"), two("two");
	std::string message;

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	for (int i = 0; i < 500; i++) {
		message = std::to_string(i);
		assert_int_equal(one.move(NIXL_WRITE, "two",
					  { { source.addr, target.addr, 4096 } },
					  &message),
				 NIXL_SUCCESS);
	}
	for (int i = 0; i < 500; i++)
		assert_true(two.next_notice().second == std::to_string(i));
}

static void a_peer_without_metadata_is_not_found(void **)
{
	test_agent one("one");

	assert_int_equal(one.engine->genNotif("two", "x"), NIXL_ERR_NOT_FOUND);
	assert_int_equal(one.engine->connect("two"), NIXL_ERR_NOT_FOUND);
	assert_int_equal(one.engine->disconnect("two"), NIXL_ERR_NOT_FOUND);
}

std::vector<CMUnitTest> notice_tests()
{
	return {
		cmocka_unit_test(notifications_follow_the_bytes),
		cmocka_unit_test(notifications_of_reads_arrive_at_the_owner),
		cmocka_unit_test(notifications_have_any_length_and_keep_their_order),
		cmocka_unit_test(notifications_wait_for_their_reader),
		cmocka_unit_test(a_peer_without_metadata_is_not_found),
	};
}

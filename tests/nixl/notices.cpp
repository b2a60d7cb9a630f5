/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

#include <dlfcn.h>
#include <list>

/* In C++ a function there hides the constructor of a struct of its name. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include "../fakes/cuda/control.h"
#pragma GCC diagnostic pop

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

/* One flush covers all memory of a device, however many regions are registered. */
static void check_flushes(const std::string &cache)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
	auto *find = (struct fake_cuda * (*)(void)) dlsym(driver, "fake_cuda_control");
	std::list<test_memory> targets;
	test_memory source(4096);
	test_agent one("one"), two("two", { { "cache", cache } });
	std::string message = "written";
	uint64_t before;

	assert_non_null(find);
	one.register_memory(source);
	for (int i = 0; i < 20; i++) {
		targets.emplace_back(4096);
		two.register_memory(targets.back());
	}
	one.meet(two);
	before = find()->flushes;
	assert_int_equal(one.move(NIXL_WRITE, "two",
				  { { source.addr, targets.back().addr, 4096 } },
				  &message),
			 NIXL_SUCCESS);
	assert_true(two.next_notice().second == message);
	assert_int_equal(find()->flushes - before, 1);
	dlclose(driver);
}

static void devices_are_flushed_once_for_each_nic(void **)
{
	check_flushes("off");
	check_flushes("on");
}

static void expect_notices(test_agent &two, int count)
{
	for (int i = 0; i < count; i++)
		assert_true(two.next_notice().second == test_bytes(1000, (unsigned)i));
}

/* What was accepted is sent when the peer is removed, and when the agent ends. */
static void notifications_are_sent_before_the_end(void **)
{
	test_agent two("two");

	for (bool is_removed : { true, false }) {
		test_agent one("one");

		one.meet(two);
		for (int i = 0; i < 100; i++)
			assert_int_equal(one.engine->genNotif(
						 "two", test_bytes(1000, (unsigned)i)),
					 NIXL_SUCCESS);
		if (is_removed)
			one.forget("two");
	}
	expect_notices(two, 100);
	expect_notices(two, 100);
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
	std::vector<CMUnitTest> tests = {
		cmocka_unit_test(notifications_follow_the_bytes),
		cmocka_unit_test(notifications_of_reads_arrive_at_the_owner),
		cmocka_unit_test(notifications_have_any_length_and_keep_their_order),
		cmocka_unit_test(notifications_wait_for_their_reader),
		cmocka_unit_test(notifications_are_sent_before_the_end),
		cmocka_unit_test(a_peer_without_metadata_is_not_found),
	};
	if (options.backend == "cuda")
		tests.push_back(cmocka_unit_test(devices_are_flushed_once_for_each_nic));
	return tests;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

#include <dlfcn.h>
#include <list>
#include <sys/mman.h>
#include <unistd.h>

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
	const size_t lengths[] = { 0, 1, 4075, 4076, 4077, 3 * mib, 7, 0, 100000 };
	test_agent one("one"), two("two");

	one.meet(two);
	for (size_t length : lengths)
		assert_int_equal(one.engine->genNotif("two", test_bytes(length, 1)),
				 NIXL_SUCCESS);
	for (size_t length : lengths)
		assert_true(two.next_notice().second == test_bytes(length, 1));
}

static void notifications_that_are_too_long_are_refused(void **)
{
	std::string text(64 * mib + 1, 'x');
	test_agent one("one"), two("two");
	nixlBackendReqH *handle;

	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two", {});
	assert_int_equal(one.post(NIXL_WRITE, "two", handle, &text),
			 NIXL_ERR_INVALID_PARAM);
	one.release(handle);
	assert_int_equal(one.engine->genNotif("two", text), NIXL_ERR_INVALID_PARAM);
	assert_int_equal(one.engine->genNotif("two", "short"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "short");
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

static uint64_t fake_flushes()
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
	auto *find = (struct fake_cuda * (*)(void)) dlsym(driver, "fake_cuda_control");

	assert_non_null(find);
	dlclose(driver);
	return find()->flushes;
}

/* Memory of a GPU in many regions. */
struct many_regions {
	static constexpr int count = 1000;
	static constexpr size_t block = 512;
	test_memory whole{ count * block };
	std::list<test_memory> parts;

	many_regions()
	{
		for (int i = 0; i < count; i++)
			parts.emplace_back(whole, i * block, block);
	}
	void register_with(test_agent &owner)
	{
		for (test_memory &one : parts)
			assert_true(owner.register_memory(one));
	}
};

/* One flush covers all memory of a device, however many regions are registered. */
static void check_flushes_of_writes(const nixl_b_params_t &parameters)
{
	many_regions sources, targets;
	test_agent one("one", parameters), two("two", parameters);
	std::vector<test_range> ranges;
	std::string message = "written";
	notif_list_t none;
	uint64_t before;

	sources.register_with(one);
	targets.register_with(two);
	one.meet(two);
	for (int i = 0; i < targets.count; i++)
		ranges.push_back({ sources.whole.addr + i * sources.block,
				   targets.whole.addr + i * targets.block,
				   targets.block });
	before = fake_flushes();
	for (int i = 0; i < 10; i++)
		assert_int_equal(two.engine->getNotifs(none), NIXL_SUCCESS);
	assert_int_equal(one.engine->genNotif("two", message), NIXL_SUCCESS);
	assert_true(two.next_notice().second == message);
	assert_int_equal(fake_flushes(), before);
	assert_int_equal(one.move(NIXL_WRITE, "two", { ranges[0] }, &message),
			 NIXL_SUCCESS);
	assert_true(two.next_notice().second == message);
	assert_int_equal(fake_flushes(), before + 1);
	assert_int_equal(one.move(NIXL_WRITE, "two", ranges, &message), NIXL_SUCCESS);
	assert_true(two.next_notice().second == message);
	assert_int_equal(fake_flushes(), before + 2);
	assert_int_equal(one.move(NIXL_READ, "two", ranges), NIXL_SUCCESS);
	assert_int_equal(fake_flushes(), before + 3);
}

/* Nothing is flushed before it has arrived. */
static void only_what_was_used_is_flushed(void **)
{
	check_flushes_of_writes({});
	check_flushes_of_writes({ { "cache", "on" } });
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

/* Lines that the backend prints meanwhile. */
static std::string printed_during(const std::function<void()> &step)
{
	int kept = dup(2), memory = memfd_create("lines", MFD_CLOEXEC);
	std::string lines(65536, 0);
	ssize_t length;

	assert_true(kept >= 0 && memory >= 0 && dup2(memory, 2) == 2);
	step();
	assert_int_equal(dup2(kept, 2), 2);
	length = pread(memory, &lines[0], lines.size(), 0);
	assert_true(length >= 0);
	lines.resize((size_t)length);
	close(kept);
	close(memory);
	return lines;
}

/*
 * A notification whose completion never comes. Removing the peer does not wait for it: a
 * call that did would have given up the connection. The end of the agent says that it was
 * not delivered.
 */
static void notifications_that_cannot_be_sent_are_counted(void **)
{
	std::string lines;
	test_agent two("two");

	setenv("PIER_CANARY", "off", 1);
	lines = printed_during([&] {
		test_agent one("one", { { "device", "fault:lost@1+:" + options.device },
					{ "timeout", "300" } });
		size_t channels;

		one.meet(two);
		assert_int_equal(one.engine->genNotif("two", "x"), NIXL_SUCCESS);
		channels = pier_object_count(PIER_OBJECT_CHANNEL);
		one.forget("two");
		assert_int_equal(pier_object_count(PIER_OBJECT_CHANNEL), channels);
		assert_int_equal(one.engine->genNotif("two", "x"), NIXL_ERR_NOT_FOUND);
	});
	unsetenv("PIER_CANARY");
	assert_true(lines.find("agent \"two\": 1 notifications were not delivered") !=
		    std::string::npos);
	assert_true(lines.find("agent \"one\" has ended: 0 rails were lost, 1 "
			       "notifications were not delivered") != std::string::npos);
}

/*
 * The second completion never comes, nor any event of the device, and nobody calls the
 * sender. The pause lets its thread fall asleep, in which it would miss the deadline.
 */
static void an_idle_connection_gets_a_deadline(void **)
{
	size_t channels;

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one",
		       { { "device", "fault:lost@2+,event@1+=3600s:" + options.device },
			 { "timeout", "1" } });
	test_agent two("two");
	unsetenv("PIER_CANARY");

	one.meet(two);
	assert_int_equal(one.engine->genNotif("two", "first"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "first");
	usleep(300000);
	channels = pier_object_count(PIER_OBJECT_CHANNEL);
	assert_int_equal(one.engine->genNotif("two", "second"), NIXL_SUCCESS);
	test_until("the end of the connection",
		   [&] { return pier_object_count(PIER_OBJECT_CHANNEL) < channels; });
}

/* Nothing happens on the connection of a peer that is removed: its end is asked for. */
static void an_idle_connection_ends_with_its_peer(void **)
{
	test_agent one("one"), two("two");
	size_t channels;

	one.meet(two);
	assert_int_equal(one.engine->genNotif("two", "first"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "first");
	usleep(300000);
	channels = pier_object_count(PIER_OBJECT_CHANNEL);
	assert_int_equal(one.engine->disconnect("two"), NIXL_SUCCESS);
	test_until("the end of the connection",
		   [&] { return pier_object_count(PIER_OBJECT_CHANNEL) < channels; });
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
		cmocka_unit_test(notifications_that_are_too_long_are_refused),
		cmocka_unit_test(notifications_wait_for_their_reader),
		cmocka_unit_test(notifications_are_sent_before_the_end),
		cmocka_unit_test(an_idle_connection_ends_with_its_peer),
		cmocka_unit_test(a_peer_without_metadata_is_not_found),
	};
	if (options.device == PIER_SOFT_DEVICE) {
		tests.push_back(
			cmocka_unit_test(notifications_that_cannot_be_sent_are_counted));
		tests.push_back(cmocka_unit_test(an_idle_connection_gets_a_deadline));
	}
	if (options.backend == "cuda")
		tests.push_back(cmocka_unit_test(only_what_was_used_is_flushed));
	return tests;
}

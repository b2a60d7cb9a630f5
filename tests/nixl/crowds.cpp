/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

#include <atomic>
#include <memory>
#include <thread>

static const size_t kib = 1 << 10;
static const size_t many = 10;

/* Every agent writes to its own part of every other's memory. */
static void many_agents_exchange_bytes(void **)
{
	std::vector<std::unique_ptr<test_memory>> sources, targets;
	std::vector<std::unique_ptr<test_agent>> agents;

	for (size_t i = 0; i < many; i++) {
		sources.push_back(std::make_unique<test_memory>(64 * kib));
		targets.push_back(std::make_unique<test_memory>(many * 64 * kib));
		agents.push_back(
			std::make_unique<test_agent>("agent" + std::to_string(i)));
		agents[i]->register_memory(*sources[i]);
		agents[i]->register_memory(*targets[i]);
		sources[i]->put(0, test_bytes(64 * kib, (unsigned)i));
	}
	for (size_t i = 0; i < many; i++)
		for (size_t j = i + 1; j < many; j++)
			agents[i]->meet(*agents[j]);
	for (size_t i = 0; i < many; i++)
		for (size_t j = 0; j < many; j++) {
			test_range range = { sources[i]->addr,
					     targets[j]->addr + i * 64 * kib, 64 * kib };
			std::string message = std::to_string(i);

			assert_int_equal(agents[i]->move(NIXL_WRITE, agents[j]->name,
							 { range }, &message),
					 NIXL_SUCCESS);
			assert_true(agents[j]->next_notice().first == agents[i]->name);
		}
	for (size_t i = 0; i < many; i++)
		for (size_t j = 0; j < many; j++)
			assert_true(targets[j]->get(i * 64 * kib, 64 * kib) ==
				    test_bytes(64 * kib, (unsigned)i));
}

/*
 * Threads of one agent post to the same peer at once, and another thread asks for
 * notifications. The requests are prepared and released by this thread, because the
 * lists of test_agent are not protected.
 */
static void threads_share_a_connection(void **)
{
	const size_t count = 4, length = 300 * kib;
	const int rounds = 30;
	test_memory source(count * length), target(count * length);
	test_agent one("one"), two("two");
	std::vector<nixlBackendReqH *> handles;
	std::vector<std::thread> threads;
	std::string message = "x";
	std::atomic<size_t> failed{ 0 };

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	source.put(0, test_bytes(count * length, 2));
	for (size_t i = 0; i < count; i++)
		handles.push_back(one.prepare(NIXL_WRITE, "two",
					      { { source.addr + i * length,
						  target.addr + i * length, length } }));
	for (size_t i = 0; i < count; i++)
		threads.emplace_back([&, i] {
			for (int round = 0; round < rounds; round++)
				failed += one.wait(handles[i],
						   one.post(NIXL_WRITE, "two", handles[i],
							    &message)) != NIXL_SUCCESS;
		});
	for (size_t i = 0; i < count * rounds; i++)
		assert_true(two.next_notice().second == message);
	for (std::thread &thread : threads)
		thread.join();
	assert_int_equal(failed.load(), 0);
	assert_true(target.get() == test_bytes(count * length, 2));
	for (nixlBackendReqH *handle : handles)
		one.release(handle);
}

/* Both begin at once, so that each calls while it is called. */
static void agents_call_each_other_at_once(void **)
{
	test_memory first(64 * kib), second(64 * kib);

	for (int round = 0; round < 10; round++) {
		test_agent one("one"), two("two");
		std::atomic<int> failed{ 0 };

		one.register_memory(first);
		two.register_memory(second);
		one.meet(two);
		std::thread other([&] {
			std::string message = "from two";

			failed += two.move(NIXL_READ, "one",
					   { { second.addr, first.addr, 64 * kib } },
					   &message) != NIXL_SUCCESS;
		});
		std::string message = "from one";

		failed += one.move(NIXL_READ, "two",
				   { { first.addr, second.addr, 64 * kib } },
				   &message) != NIXL_SUCCESS;
		other.join();
		assert_int_equal(failed.load(), 0);
		assert_true(one.next_notice().second == "from two");
		assert_true(two.next_notice().second == "from one");
	}
}

/* A thread that posts without end does not hold up the removal of its peer. */
static void peers_are_removed_while_threads_post(void **)
{
	test_memory source(64 * kib), target(64 * kib);
	test_agent one("one"), two("two");
	std::atomic<int> posted{ 0 };
	nixlBackendReqH *handle;
	nixl_status_t last;

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two",
			     { { source.addr, target.addr, 64 * kib } });
	std::thread poster([&] {
		do {
			last = one.wait(handle, one.post(NIXL_WRITE, "two", handle));
			posted++;
		} while (last == NIXL_SUCCESS);
	});
	test_until("transfers", [&] { return posted > 10; });
	one.forget("two");
	poster.join();
	assert_true(last == NIXL_ERR_REMOTE_DISCONNECT || last == NIXL_ERR_NOT_FOUND);
	one.release(handle);
}

std::vector<CMUnitTest> crowd_tests()
{
	return {
		cmocka_unit_test(many_agents_exchange_bytes),
		cmocka_unit_test(threads_share_a_connection),
		cmocka_unit_test(agents_call_each_other_at_once),
		cmocka_unit_test(peers_are_removed_while_threads_post),
	};
}

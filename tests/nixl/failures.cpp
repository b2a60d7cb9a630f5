/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

#include <atomic>
#include <chrono>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <dlfcn.h>
#include <list>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <sched.h>
#include <set>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "bytes.hpp"
#include "sockets.hpp"

static const size_t mib = 1 << 20;

/* Returns false if the socket ends, or nothing arrives for that time. */
static bool read_all(int socket, void *ret_bytes, size_t size, int timeout_ms)
{
	struct pollfd wait = { socket, POLLIN, 0 };
	char *next = (char *)ret_bytes;

	while (size > 0 && poll(&wait, 1, timeout_ms) == 1) {
		ssize_t count = recv(socket, next, size, 0);

		if (count <= 0)
			return false;
		next += count;
		size -= (size_t)count;
	}
	return size == 0;
}

/* Returns false if the peer has closed its end. */
static bool write_all(int socket, const void *bytes, size_t size)
{
	const char *next = (const char *)bytes;

	while (size > 0) {
		ssize_t count = send(socket, next, size, MSG_NOSIGNAL);
		struct pollfd wait = { socket, POLLOUT, 0 };

		if (count < 0 && errno == EAGAIN)
			count = poll(&wait, 1, 30000) == 1 ? 0 : -1;
		if (count < 0)
			return false;
		next += count;
		size -= (size_t)count;
	}
	return true;
}

static std::string with_plan(const std::string &plan)
{
	return "fault:" + plan + ":" + options.device;
}

/* A request that was released touches no memory, and disturbs no other request. */
static void cancelled_requests_end(void **)
{
	test_memory source(64 * mib), target(64 * mib), other(mib);
	test_agent one("one"), two("two");
	std::string message = "never", next = "next";
	nixlBackendReqH *handle;

	one.register_memory(source);
	one.register_memory(other);
	two.register_memory(target);
	one.meet(two);
	for (int round = 0; round < 5; round++) {
		nixl_status_t status;

		handle = one.prepare(NIXL_WRITE, "two",
				     { { source.addr, target.addr, 64 * mib } });
		status = one.post(NIXL_WRITE, "two", handle, &message);
		one.release(handle);
		if (status == NIXL_SUCCESS)
			assert_true(two.next_notice().second == message);
		one.deregister_memory(source);
		one.register_memory(source);
	}
	other.put(0, test_bytes(mib, 4));
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { other.addr, target.addr, mib } }, &next),
		NIXL_SUCCESS);
	assert_true(target.get(0, mib) == test_bytes(mib, 4));
	/* The bytes of a request that ended before it was cancelled were all there. */
	while (two.next_notice().second != next)
		;
}

/*
 * The completion never comes. The request is released at once, and disturbs nobody: a
 * call that waited for it would have to give up the connection. Only its memory waits.
 */
static void requests_that_cannot_end_are_released(void **)
{
	test_memory source(mib), target(mib);
	nixlBackendReqH *handle;
	size_t channels;

	/* On memory of a GPU the canary's completion would be the first, and lost. */
	setenv("PIER_CANARY", "off", 1);
	test_agent one("one",
		       { { "device", with_plan("lost@2") }, { "timeout", "300" } });
	test_agent two("two");
	unsetenv("PIER_CANARY");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two", { { source.addr, target.addr, mib } });
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, 4096 } }),
		NIXL_SUCCESS);
	assert_int_equal(one.post(NIXL_WRITE, "two", handle), NIXL_IN_PROG);
	channels = pier_object_count(PIER_OBJECT_CHANNEL);
	one.release(handle);
	assert_int_equal(pier_object_count(PIER_OBJECT_CHANNEL), channels);
	one.deregister_memory(source);
	assert_true(pier_object_count(PIER_OBJECT_CHANNEL) < channels);
	one.register_memory(source);
	source.put(0, test_bytes(mib, 6));
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } }),
		NIXL_SUCCESS);
	assert_true(target.get() == test_bytes(mib, 6));
}

/*
 * Two NICs, of which one has a fault. The first rail carries the notifications. Pairs of
 * equal names would be the first, so the other one has a plan without faults.
 */
static std::string two_rails(const std::string &plan, bool is_first)
{
	const std::string good = with_plan("seed=1"), bad = with_plan(plan);

	/* A name that begins with a plan would be one device. */
	return "," + (is_first ? bad + "," + good : good + "," + bad);
}

/*
 * One of two rails fails during transfers in both directions. All of them are done, and
 * their notifications arrive once and in order.
 */
static void lose_a_rail(const std::string &sender, const std::string &receiver,
			const char *timeout = "60")
{
	/* Many small pieces: their number matters, and bytes cost time. */
	const size_t count = 512, block = 512, length = count * block;
	test_memory source(length), target(length);
	std::vector<test_range> ranges;
	size_t channels;

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", { { "device", sender }, { "timeout", timeout } });
	test_agent two("two", { { "device", receiver } });
	unsetenv("PIER_CANARY");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	for (size_t i = 0; i < count; i++)
		ranges.push_back(
			{ source.addr + i * block, target.addr + i * block, block });
	channels = pier_object_count(PIER_OBJECT_CHANNEL) + 4;
	for (unsigned round = 0; round < 12; round++) {
		nixl_xfer_op_t kind = round % 2 ? NIXL_READ : NIXL_WRITE;
		test_memory &from = kind == NIXL_WRITE ? source : target;
		test_memory &to = kind == NIXL_WRITE ? target : source;
		std::string message = test_bytes(round * 3000, round);

		from.put(0, test_bytes(length, round));
		assert_int_equal(one.engine->genNotif("two", "before"), NIXL_SUCCESS);
		assert_int_equal(one.move(kind, "two", ranges, &message),
				 NIXL_SUCCESS);
		assert_true(to.get() == test_bytes(length, round));
		assert_true(two.next_notice().second == "before");
		assert_true(two.next_notice().second == message);
	}
	test_until("the end of the rail at both ends", [&] {
		notif_list_t list;

		assert_int_equal(two.engine->getNotifs(list), NIXL_SUCCESS);
		assert_true(list.empty());
		return pier_object_count(PIER_OBJECT_CHANNEL) == channels - 2;
	});
}

static void transfers_survive_a_lost_rail(void **)
{
	const std::string good = options.device + "," + options.device;

	for (bool is_first : { false, true }) {
		for (const char *plan :
		     { "wc@1=RETRY_EXC_ERR", "wc@5=RETRY_EXC_ERR", "wc@20=LOC_QP_OP_ERR",
		       "dead@5=20ms", "post_send@1=EIO", "post_send@7=EIO",
		       "poll_cq@20=EIO", "req_notify_cq@1=EIO" })
			lose_a_rail(two_rails(plan, is_first), good);
		lose_a_rail(good, two_rails("req_notify_cq@3=EIO", is_first));
	}
	lose_a_rail(good, two_rails("post_recv@40=EIO", true));
}

/* Nothing completes on one rail for half of the time that a request has. */
static void a_rail_without_completions_is_lost(void **)
{
	lose_a_rail(two_rails("lost@2+", false), options.device + "," + options.device,
		    "10");
}

static std::atomic<bool> refuses_flushes;
static std::atomic<int> flushes;

/* In place of libpier's: what the plugin flushes. */
extern "C" int pier_mr_sync_for_device(struct pier_mr *mr, uint64_t offset,
				       uint64_t length)
{
	static const auto next = reinterpret_cast<decltype(&pier_mr_sync_for_device)>(
		dlsym(RTLD_NEXT, "pier_mr_sync_for_device"));

	flushes++;
	return refuses_flushes ? -EIO : next(mr, offset, length);
}

/* A lost NIC that completed nothing brought no bytes, and may fail to flush any. */
static void reads_that_are_repeated_flush_the_other_nic(void **)
{
	const std::string good = options.device + "," + options.device;
	test_memory source(8 * mib), target(8 * mib);

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", { { "device", two_rails("wc@1=RETRY_EXC_ERR", true) } });
	test_agent two("two", { { "device", good } });
	unsetenv("PIER_CANARY");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	target.put(0, test_bytes(8 * mib, 12));
	flushes = 0;
	assert_int_equal(
		one.move(NIXL_READ, "two", { { source.addr, target.addr, 8 * mib } }),
		NIXL_SUCCESS);
	assert_int_equal(flushes, 1);
	assert_true(source.get() == target.get());
}

/* It would say that bytes are there. Others are delivered, in order. */
static void a_notification_of_bytes_that_are_not_visible_is_lost(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one"), two("two");
	std::string message = "not visible", next = "visible";

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	refuses_flushes = true;
	assert_int_equal(one.engine->genNotif("two", "before"), NIXL_SUCCESS);
	assert_int_equal(one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } },
				  &message),
			 NIXL_SUCCESS);
	assert_int_equal(one.engine->genNotif("two", "after"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "before");
	assert_true(two.next_notice().second == "after");
	refuses_flushes = false;
	assert_int_equal(one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } },
				  &next),
			 NIXL_SUCCESS);
	assert_true(two.next_notice().second == next);
}

/* What ends of rails tell each other, on the way. */
static std::atomic<bool> holds_records, doubles_records;
static std::mutex records_lock;
static std::vector<std::pair<int, std::string>> records_held;

/* In place of the C library's: records that are held are sent later. */
extern "C" ssize_t send(int fd, const void *bytes, size_t size, int flags)
{
	static const auto next =
		reinterpret_cast<ssize_t (*)(int, const void *, size_t, int)>(
			dlsym(RTLD_NEXT, "send"));

	if (size != 12 || flags != (MSG_DONTWAIT | MSG_NOSIGNAL))
		return next(fd, bytes, size, flags);
	if (doubles_records)
		next(fd, bytes, size, flags);
	if (!holds_records)
		return next(fd, bytes, size, flags);
	std::unique_lock<std::mutex> guard(records_lock);

	if (!holds_records) {
		guard.unlock();
		return next(fd, bytes, size, flags);
	}
	records_held.emplace_back(fd, std::string((const char *)bytes, size));
	return (ssize_t)size;
}

static bool are_records_held()
{
	std::lock_guard<std::mutex> guard(records_lock);

	return !records_held.empty();
}

/*
 * Late packets of a lost rail could overwrite newer bytes as long as its end at the peer
 * exists. Requests are not done before the peer says that it has ended.
 */
static void repeated_writes_wait_for_the_peer(void **)
{
	const std::string good = options.device + "," + options.device;
	const size_t length = 8 * mib;
	test_memory source(length), target(length);
	nixlBackendReqH *handle;

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", { { "device", two_rails("dead@2=1ms", false) } });
	test_agent two("two", { { "device", good } });
	unsetenv("PIER_CANARY");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	source.put(0, test_bytes(length, 11));
	handle = one.prepare(NIXL_WRITE, "two", { { source.addr, target.addr, length } });
	holds_records = true;
	assert_int_equal(one.post(NIXL_WRITE, "two", handle), NIXL_IN_PROG);
	test_until("the failure", [&] {
		one.engine->checkXfer(handle);
		return are_records_held();
	});
	for (int i = 0; i < 5000; i++) {
		assert_int_equal(one.engine->checkXfer(handle), NIXL_IN_PROG);
		sched_yield();
	}
	std::unique_lock<std::mutex> guard(records_lock);

	holds_records = false;
	for (const auto &one_record : records_held)
		send(one_record.first, one_record.second.data(),
		     one_record.second.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
	records_held.clear();
	guard.unlock();
	assert_int_equal(one.wait(handle), NIXL_SUCCESS);
	assert_true(target.get() == source.get());
	one.release(handle);
}

/* One rail of two fails, and its record comes twice: the other rail ends, too. */
static void a_second_record_ends_the_connection(void **)
{
	test_memory source(mib), target(mib);
	size_t channels;

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", { { "device", two_rails("wc@1=RETRY_EXC_ERR", true) } });
	test_agent two("two", { { "device", options.device + "," + options.device } });
	unsetenv("PIER_CANARY");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	channels = pier_object_count(PIER_OBJECT_CHANNEL);
	doubles_records = true;
	one.move(NIXL_READ, "two", { { source.addr, target.addr, mib } });
	test_until("the end of the connection",
		   [&] { return pier_object_count(PIER_OBJECT_CHANNEL) == channels; });
	doubles_records = false;
}

int run_victim(int socket)
{
	test_memory memory(8 * mib);
	test_agent agent("victim");
	notif_list_t list;
	std::string bytes;
	uint64_t size;
	char byte;

	agent.register_memory(memory);
	bytes = agent.metadata();
	size = bytes.size();
	if (!write_all(socket, &size, sizeof(size)) ||
	    !write_all(socket, bytes.data(), bytes.size()))
		return 1;
	/* Until it is killed, or its killer is. */
	while (recv(socket, &byte, 1, MSG_DONTWAIT) != 0)
		agent.engine->getNotifs(list);
	return 0;
}

/* Returns the process; the address of its memory comes with its metadata. */
static pid_t start_victim(test_agent &killer, int &ret_socket, uint64_t &ret_addr)
{
	int sockets[2];
	std::string bytes;
	uint64_t size;
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = fork();
	if (child == 0) {
		/* Without close-on-exec. */
		int kept = dup(sockets[1]);

		execl(options.program.c_str(), options.program.c_str(), "--device",
		      options.device.c_str(), "--backend", options.backend.c_str(),
		      "--victim", std::to_string(kept).c_str(), nullptr);
		_exit(127);
	}
	close(sockets[1]);
	assert_true(read_all(sockets[0], &size, sizeof(size), TEST_SECONDS * 1000));
	bytes.resize(size);
	assert_true(read_all(sockets[0], &bytes[0], size, TEST_SECONDS * 1000));
	assert_int_equal(killer.load(bytes), NIXL_SUCCESS);
	ret_addr = killer.address_of("victim");
	/* The victim ends if this process does. */
	ret_socket = sockets[0];
	return child;
}

static unsigned draw_seed()
{
	const char *given = getenv("PIER_SEED");
	unsigned seed = given ? (unsigned)strtoul(given, nullptr, 0)
			      : std::random_device()();

	print_message("PIER_SEED=%u\n", seed);
	return seed;
}

/* Transfers, of which the last is running when the peer is killed. */
static void kill_during_transfers(test_agent &one, test_memory &source,
				  std::mt19937 &random)
{
	uint64_t target;
	int socket;
	pid_t child = start_victim(one, socket, target);
	std::vector<test_range> ranges;
	std::string message = "killed?";
	nixlBackendReqH *handle;
	nixl_status_t status;

	for (uint64_t offset = 0; offset < 8 * mib; offset += 8192)
		ranges.push_back({ source.addr + offset, target + offset, 8192 });
	handle = one.prepare(random() % 2 ? NIXL_WRITE : NIXL_READ, "victim", ranges);
	for (unsigned i = random() % 10; i > 0; i--)
		assert_int_equal(one.wait(handle, one.post(NIXL_WRITE, "victim", handle,
							   &message)),
				 NIXL_SUCCESS);
	status = one.post(NIXL_WRITE, "victim", handle, &message);
	for (unsigned i = random() % 200; i > 0 && status == NIXL_IN_PROG; i--)
		status = one.engine->checkXfer(handle);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, nullptr, 0), child);
	status = one.wait(handle, status);
	assert_true(status == NIXL_SUCCESS || status == NIXL_ERR_REMOTE_DISCONNECT);
	test_until("the death of the peer is reported", [&] {
		return one.wait(handle, one.post(NIXL_WRITE, "victim", handle)) ==
		       NIXL_ERR_REMOTE_DISCONNECT;
	});
	one.release(handle);
	assert_int_equal(one.engine->disconnect("victim"), NIXL_SUCCESS);
	close(socket);
}

static void killed_peers_are_reported(void **)
{
	test_memory source(8 * mib);
	test_agent one("one");
	std::mt19937 random(draw_seed());
	/* In the guest a process starts slowly. */
	int kills = options.device == PIER_SOFT_DEVICE ? 12 : 3;

	one.register_memory(source);
	for (int i = 0; i < kills; i++)
		kill_during_transfers(one, source, random);
}

/* An agent that ended and was started again is another one. */
static void agents_that_start_again_are_reached(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one");

	one.register_memory(source);
	for (unsigned round = 0; round < 3; round++) {
		test_agent two("two");

		two.register_memory(target);
		assert_int_equal(one.load(two.metadata()), NIXL_SUCCESS);
		source.put(0, test_bytes(mib, round));
		assert_int_equal(one.move(NIXL_WRITE, "two",
					  { { source.addr, target.addr, mib } }),
				 NIXL_SUCCESS);
		assert_true(target.get() == test_bytes(mib, round));
	}
}

/*
 * A request belongs to the process that it was prepared for. Another one of that name
 * gets none of its bytes, whether the peer was removed first or not.
 */
static void requests_of_a_former_process_are_refused(void **)
{
	const size_t count = 4;
	test_memory source(mib), first(mib);
	std::list<test_memory> targets;
	std::string message = "for the first";
	test_agent one("one");

	source.put(0, test_bytes(mib, 1));
	one.register_memory(source);
	for (bool is_removed : { true, false }) {
		nixlBackendReqH *handle;
		{
			test_agent two("two");

			two.register_memory(first);
			assert_int_equal(one.load(two.metadata()), NIXL_SUCCESS);
			handle = one.prepare(NIXL_WRITE, "two",
					     { { source.addr, first.addr, mib } });
			assert_int_equal(
				one.wait(handle, one.post(NIXL_WRITE, "two", handle)),
				NIXL_SUCCESS);
		}
		if (is_removed)
			one.forget("two");

		test_agent two("two");

		targets.clear();
		for (size_t i = 0; i < count; i++) {
			targets.emplace_back(mib);
			two.register_memory(targets.back());
		}
		first.fill(0);
		assert_int_equal(one.load(two.metadata()), NIXL_SUCCESS);
		test_until("the end of the first process is noticed", [&] {
			return one.post(NIXL_WRITE, "two", handle, &message) ==
			       NIXL_ERR_NOT_FOUND;
		});
		assert_int_equal(one.engine->checkXfer(handle), NIXL_ERR_NOT_FOUND);
		assert_int_equal(one.engine->genNotif("two", "to the second"),
				 NIXL_SUCCESS);
		assert_true(two.next_notice().second == "to the second");
		for (test_memory &target : targets)
			assert_true(target.get() == std::string(mib, 0));
		assert_true(first.get() == std::string(mib, 0));
		one.release(handle);
		one.forget("two");
	}
}

/* NIXL frees what it knows of the peer's memory while a request is in progress. */
static void peers_are_removed_during_transfers(void **)
{
	test_memory source(16 * mib), target(16 * mib);
	std::vector<test_range> ranges;
	test_agent one("one"), two("two");
	std::string bytes;

	one.register_memory(source);
	two.register_memory(target);
	bytes = two.metadata();
	for (size_t i = 0; i < 4000; i++)
		ranges.push_back(
			{ source.addr + i * 4096, target.addr + i * 4096, 2048 });
	for (unsigned round = 0; round < 5; round++) {
		nixlBackendReqH *handle;
		nixl_status_t status;

		assert_int_equal(one.load(bytes), NIXL_SUCCESS);
		source.put(0, test_bytes(16 * mib, round));
		handle = one.prepare(NIXL_WRITE, "two", ranges);
		status = one.post(NIXL_WRITE, "two", handle);
		one.forget("two");
		assert_int_equal(one.wait(handle, status), NIXL_SUCCESS);
		for (size_t i = 0; i < 4000; i += 1333)
			assert_true(target.get(i * 4096, 2048) ==
				    source.get(i * 4096, 2048));
		assert_int_equal(one.post(NIXL_WRITE, "two", handle), NIXL_ERR_NOT_FOUND);
		one.release(handle);
	}
}

/* The first completion is late, so the transfer is in progress when its peer is removed.
 */
static void transfers_finish_before_the_end(void **)
{
	test_memory source(16 * mib), target(16 * mib);
	std::string message = "the last";
	nixlBackendReqH *handle;

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", { { "device", with_plan("late@1=200ms") } }), two("two");
	unsetenv("PIER_CANARY");

	source.put(0, test_bytes(16 * mib, 7));
	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two",
			     { { source.addr, target.addr, 16 * mib } });
	one.post(NIXL_WRITE, "two", handle, &message);
	one.forget("two");
	assert_int_equal(one.wait(handle), NIXL_SUCCESS);
	one.release(handle);
	/* The notification of a transfer is part of it. */
	assert_true(two.next_notice().second == message);
	assert_true(target.get() == source.get());
}

/*
 * After the call no request touches the memory, and none can begin to. Requests of other
 * memory are not disturbed.
 */
static void memory_is_deregistered_during_transfers(void **)
{
	test_memory source(64 * mib), target(64 * mib), other(mib);
	test_agent one("one"), two("two");
	nixlBackendReqH *handle;

	one.register_memory(other);
	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_READ, "two",
			     { { source.addr, target.addr, 64 * mib } });
	one.post(NIXL_READ, "two", handle);
	one.deregister_memory(source);
	assert_int_not_equal(one.engine->checkXfer(handle), NIXL_IN_PROG);
	assert_int_equal(one.post(NIXL_READ, "two", handle), NIXL_ERR_INVALID_PARAM);
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { other.addr, target.addr, mib } }),
		NIXL_SUCCESS);
	one.release(handle);
}

/* Memory for which the NIC needs several keys, at both ends. */
static void memory_of_several_keys_is_moved(void **)
{
	const size_t length = 4 * mib;
	test_memory source(length), target(length);
	/* Only this path is tried, so the fault is its result. */
	nixl_b_params_t parameters = { { "device", with_plan("reg@1=ENOMEM") },
				       { "policy", "direct" } };
	std::vector<test_range> ranges;

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", parameters), two("two", parameters);
	unsetenv("PIER_CANARY");

	assert_true(one.register_memory(source));
	assert_true(two.register_memory(target));
	one.meet(two);
	/* Odd ranges, which cross the seams of both ends at different places. */
	for (size_t offset = 0; offset + 99999 <= length; offset += 99999)
		ranges.push_back({ source.addr + offset,
				   target.addr + length - 99999 - offset, 99999 });
	for (nixl_xfer_op_t kind : { NIXL_WRITE, NIXL_READ }) {
		test_memory &from = kind == NIXL_WRITE ? source : target;

		from.put(0, test_bytes(length, 3 + kind));
		assert_int_equal(one.move(kind, "two", ranges), NIXL_SUCCESS);
		for (const test_range &range : ranges)
			assert_true(source.get(range.local - source.addr, 99999) ==
				    target.get(range.remote - target.addr, 99999));
	}
}

/*
 * Memory that the cache fails to register is registered without it. The cache tries again
 * to deregister a region that it got back, here the region of memory that was replaced.
 */
static void faults_of_a_cache_are_survived(void **)
{
	test_memory plain(mib), replaced(mib), other(mib);
	test_agent one("one", { { "device", with_plan("reg@1=EIO,dereg_mr@1=EIO") },
				{ "cache", "on" } });
	nixlBackendMD *mine;
	nixlBlobDesc desc;

	assert_true(one.register_memory(plain));
	desc.addr = replaced.addr;
	desc.len = mib;
	desc.devId = 0;
	assert_int_equal(one.engine->registerMem(desc, DRAM_SEG, mine), NIXL_SUCCESS);
	assert_ptr_equal(mmap((void *)replaced.addr, mib, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 (void *)replaced.addr);
	/* Waits until the cache has noticed what the system has reported so far. */
	assert_true(one.register_memory(other));
	assert_int_not_equal(one.engine->deregisterMem(mine), NIXL_SUCCESS);
}

/* A lost completion ends its request within the time limit. */
static void requests_end_without_a_completion(void **)
{
	test_memory source(mib), target(mib);
	nixlBackendReqH *handle;

	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", { { "device", with_plan("lost@1") }, { "timeout", "1" } });
	test_agent two("two");
	unsetenv("PIER_CANARY");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two", { { source.addr, target.addr, mib } });
	assert_int_equal(one.wait(handle, one.post(NIXL_WRITE, "two", handle)),
			 NIXL_ERR_REMOTE_DISCONNECT);
	test_until("the next transfer", [&] {
		return one.wait(handle, one.post(NIXL_WRITE, "two", handle)) ==
		       NIXL_SUCCESS;
	});
	one.release(handle);
}

static std::atomic<bool> refuses_watches, holds_calls;

/* Whether it is the socket of a caller, which has no name. */
static bool is_callers(int fd)
{
	struct sockaddr_storage address = {};
	socklen_t length = sizeof(address);

	return !getsockname(fd, (struct sockaddr *)&address, &length) &&
	       address.ss_family == AF_UNIX && length == sizeof(sa_family_t);
}

/* In place of the C library's: the system watches no more sockets of callers. */
extern "C" int epoll_ctl(int epoll, int operation, int fd,
			 struct epoll_event *event) noexcept
{
	static const auto next =
		reinterpret_cast<int (*)(int, int, int, struct epoll_event *)>(
			dlsym(RTLD_NEXT, "epoll_ctl"));

	/* The plugin's. soft0 has a ring here, whose socket it watches for input alone.
	 */
	bool is_plugin = operation == EPOLL_CTL_ADD && event->events & EPOLLOUT &&
			 event->events & EPOLLIN;

	if (refuses_watches && is_plugin && is_callers(fd)) {
		errno = ENOSPC;
		return -1;
	}
	return next(epoll, operation, fd, event);
}

/* The same: callers wait in the queue. */
extern "C" int accept4(int socket, struct sockaddr *ret_address, socklen_t *length, int flags)
{
	static const auto next =
		reinterpret_cast<int (*)(int, struct sockaddr *, socklen_t *, int)>(
			dlsym(RTLD_NEXT, "accept4"));

	if (holds_calls) {
		errno = EAGAIN;
		return -1;
	}
	return next(socket, ret_address, length, flags);
}

/* Requests that are posted while the agent is being called start when it has answered. */
static void what_is_posted_before_the_connection_is_moved(void **)
{
	const size_t count = 4;
	test_memory source(count * mib), target(count * mib);
	test_agent one("one"), two("two", { { "connect_timeout", "300" } });
	std::vector<nixlBackendReqH *> handles;
	std::string wanted = test_bytes(count * mib, 3), message = "written";

	one.register_memory(source);
	two.register_memory(target);
	source.put(0, wanted);
	target.fill(0);
	holds_calls = true;
	one.meet(two);
	for (size_t i = 0; i < count; i++)
		handles.push_back(one.prepare(
			NIXL_WRITE, "two",
			{ { source.addr + i * mib, target.addr + i * mib, mib } }));
	for (nixlBackendReqH *handle : handles)
		assert_int_equal(one.post(NIXL_WRITE, "two", handle, &message),
				 NIXL_IN_PROG);
	assert_int_equal(one.engine->genNotif("two", "last"), NIXL_SUCCESS);
	for (nixlBackendReqH *handle : handles)
		assert_int_equal(one.engine->checkXfer(handle), NIXL_IN_PROG);
	/* One is given up. */
	one.release(handles.back());
	handles.pop_back();
	wanted.replace((count - 1) * mib, mib, mib, '\0');
	holds_calls = false;
	for (nixlBackendReqH *handle : handles) {
		assert_int_equal(one.wait(handle), NIXL_SUCCESS);
		one.release(handle);
	}
	assert_true(target.get() == wanted);
	assert_true(two.next_notice().second == "last");
	for (size_t i = 0; i < count - 1; i++)
		assert_true(two.next_notice().second == message);
}

/* A connection that nothing would drive is not kept. */
static void connections_that_cannot_be_watched_end(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one"), two("two");
	size_t channels;
	nixl_status_t status;

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	channels = pier_object_count(PIER_OBJECT_CHANNEL);
	refuses_watches = true;
	status = one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } });
	refuses_watches = false;
	/* The connection has ended after the request was posted, or before. */
	assert_true(status == NIXL_ERR_BACKEND || status == NIXL_ERR_REMOTE_DISCONNECT);
	test_until("the channels are destroyed",
		   [&] { return pier_object_count(PIER_OBJECT_CHANNEL) == channels; });
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } }),
		NIXL_SUCCESS);
}

/* The keys of deregistered memory are no longer valid; the next transfer works. */
static void deregistered_memory_is_refused(void **)
{
	test_memory source(mib), gone(mib), target(mib);
	test_agent one("one"), two("two");
	nixl_status_t status;

	one.register_memory(source);
	two.register_memory(gone);
	two.register_memory(target);
	one.meet(two);
	two.deregister_memory(gone);
	status = one.move(NIXL_WRITE, "two", { { source.addr, gone.addr, mib } });
	assert_true(status < 0);
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } }),
		NIXL_SUCCESS);
}

/*
 * One agent's device has a fault at the nth occasion. It starts or it does not; what it
 * reports as done is done; and it works as soon as the fault is over.
 */
static bool run_with_plan(const std::string &plan)
{
	/* Many small pieces: their number matters, and bytes cost time under sanitizers.
	 */
	const size_t pieces = 512, piece = 512, length = pieces * piece;
	test_memory source(length), target(length);
	nixl_b_params_t parameters = { { "device", with_plan(plan) } };
	nixlBackendInitParams init;
	std::string message = "done";
	std::vector<test_range> ranges;
	bool has_failed = false;

	init.localAgent = "probe";
	init.type = "PIER";
	init.customParams = &parameters;
	nixlBackendEngine *probe = test_load_plugin()->create_engine(&init);
	has_failed = probe->getInitErr();
	test_load_plugin()->destroy_engine(probe);
	if (has_failed)
		return true;

	test_agent one("one", parameters), two("two");

	if (!one.register_memory(source)) {
		has_failed = true;
		assert_true(one.register_memory(source));
	}
	two.register_memory(target);
	one.meet(two);
	for (size_t i = 0; i < pieces; i++)
		ranges.push_back(
			{ source.addr + i * piece, target.addr + i * piece, piece });
	for (unsigned round = 0; round < 8; round++) {
		const std::string wanted = test_bytes(length, round);
		nixl_status_t status;

		source.put(0, wanted);
		/* The connection may fail to be made. */
		if (one.engine->connect("two")) {
			has_failed = true;
			continue;
		}
		status = one.move(NIXL_WRITE, "two", ranges, &message);
		if (status == NIXL_SUCCESS) {
			assert_true(target.get() == wanted);
			assert_true(two.next_notice().second == message);
		} else {
			has_failed = true;
		}
	}
	nixl_status_t last = one.move(NIXL_WRITE, "two", ranges);
	/* The fault may come as late as this, and last for some milliseconds. */
	for (int tries = 0; last != NIXL_SUCCESS && !has_failed && tries < 100; tries++) {
		usleep(20000);
		last = one.move(NIXL_WRITE, "two", ranges);
	}
	assert_int_equal(last, NIXL_SUCCESS);
	assert_true(target.get() == source.get());
	return has_failed;
}

static void faults_are_reported_and_survived(void **)
{
	const char *faults[] = { "wc@%=RETRY_EXC_ERR", "wc@%=REM_ACCESS_ERR",
				 "wc@%=LOC_QP_OP_ERR", "dead@%=20ms",
				 "late@%=30ms",	       "post_send@%=EIO",
				 "poll_cq@%=EIO",      "create_qp@%=ENOMEM",
				 "modify_qp@%=EIO",    "reg@%=ENOMEM",
				 "create_cq@%=ENOMEM", "req_notify_cq@%=EIO" };

	for (const std::string fault : faults)
		for (int n : { 1, 2, 3, 7, 20, 40 }) {
			std::string plan = fault;

			plan.replace(plan.find('%'), 1, std::to_string(n));
			run_with_plan(plan);
		}
}

static pier_nixl::agent_address address_of_engine(const test_agent &agent)
{
	pier_nixl::agent_address address;
	std::string bytes;

	assert_int_equal(agent.engine->getConnInfo(bytes), NIXL_SUCCESS);
	assert_true(address.read(bytes));
	return address;
}

/*
 * The address lists more devices than the memory has regions. The device of the only rail
 * would select a region that is not there.
 */
static void refuse_other_devices(test_agent &one, test_agent &two)
{
	const std::string all = two.metadata();
	pier_nixl::agent_address address = address_of_engine(two);
	size_t skipped = 4 + two.name.size() + 4 + address.write().size();
	pier_nixl::byte_writer writer;
	test_memory source(mib);

	one.register_memory(source);
	address.devices.insert(address.devices.begin(), "none");
	writer.put_string("more");
	writer.put_string(address.write());
	writer.put_bytes(all.data() + skipped, all.size() - skipped);
	assert_int_equal(one.load(writer.out), NIXL_SUCCESS);
	one.prepare(NIXL_WRITE, "more", { { source.addr, one.address_of("more"), mib } },
		    NIXL_ERR_INVALID_PARAM);
	one.deregister_memory(source);
}

/* Every truncated or altered form is refused, or harmless. */
static void hostile_metadata_is_refused(void **)
{
	test_memory memory(mib);
	test_agent one("one"), two("two");
	std::string bytes, altered;
	nixlBackendMD *loaded;
	nixlBlobDesc desc;

	two.register_memory(memory);
	assert_int_equal(two.engine->getConnInfo(bytes), NIXL_SUCCESS);
	for (size_t length = 0; length < bytes.size(); length++)
		assert_int_equal(
			one.engine->loadRemoteConnInfo("two", bytes.substr(0, length)),
			NIXL_ERR_MISMATCH);
	for (size_t i = 0; i < bytes.size(); i++) {
		altered = bytes;
		altered[i] = (char)~altered[i];
		one.engine->loadRemoteConnInfo("two", altered);
	}
	desc.addr = memory.addr;
	desc.len = memory.length;
	desc.devId = 0;
	for (const char *wrong : { "", "\1", "\1\1xyz", "\2\1" }) {
		desc.metaInfo = wrong;
		assert_int_equal(one.engine->loadRemoteMD(desc, DRAM_SEG, "two", loaded),
				 NIXL_ERR_MISMATCH);
	}
	refuse_other_devices(one, two);
}

/* Callers without the token, or that say nothing, get no answer and hold up nobody. */
static void strangers_at_the_door_are_refused(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one"), two("two");
	std::vector<pier_nixl::owned_fd> strangers(200);
	pier_nixl::agent_address address;
	pier_nixl::agent_hello hello;
	std::string bytes;
	char byte;

	one.register_memory(source);
	two.register_memory(target);
	assert_int_equal(two.engine->getConnInfo(bytes), NIXL_SUCCESS);
	assert_true(address.read(bytes));
	/* All is right but a bit of the token. */
	hello.token = address.token;
	hello.token[PIER_NIXL_TOKEN_SIZE - 1] ^= 1;
	hello.agent = "stranger";
	hello.description = address.description;
	for (size_t i = 0; i < strangers.size(); i++) {
		assert_int_equal(pier_nixl::dial_unix(address.unix_name, strangers[i]),
				 0);
		if (i >= 100)
			continue;
		bytes = i % 2 ? hello.write() : test_bytes(i * 7, (unsigned)i);
		write_all(strangers[i].fd, bytes.data(), bytes.size());
	}
	one.meet(two);
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } }),
		NIXL_SUCCESS);
	for (pier_nixl::owned_fd &stranger : strangers)
		assert_false(read_all(stranger.fd, &byte, 1, 30000));
}

/* A caller that has the token, and was accepted. */
static pier_nixl::owned_fd call_with_hello(const test_agent &agent)
{
	pier_nixl::agent_address address = address_of_engine(agent);
	pier_nixl::agent_hello hello;
	pier_nixl::owned_fd caller;
	std::string bytes;
	char byte;

	hello.token = address.token;
	hello.agent = "hung";
	hello.description = address.description;
	bytes = hello.write();
	assert_int_equal(pier_nixl::dial_unix(address.unix_name, caller), 0);
	assert_true(write_all(caller.fd, bytes.data(), bytes.size()));
	assert_true(read_all(caller.fd, &byte, 1, 30000));
	assert_int_equal(byte, PIER_NIXL_HELLO_ACCEPTED);
	return caller;
}

/*
 * Callers with the token that then say nothing: some before the handshake, some in it.
 * Others connect meanwhile, and the agent ends without waiting for them.
 */
static void callers_that_hang_hold_up_nobody(void **)
{
	std::vector<pier_nixl::owned_fd> callers;
	test_agent one("one", { { "connect_timeout", "60" } });
	test_agent two("two", { { "connect_timeout", "300" } });

	for (size_t i = 0; i < 70; i++)
		callers.push_back(call_with_hello(two));
	for (size_t i = 0; i < 5; i++)
		write_all(callers[callers.size() - 1 - i].fd, "P", 1);
	one.meet(two);
	assert_int_equal(one.engine->genNotif("two", "hello"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "hello");
}

static bool has_ended(int socket)
{
	struct pollfd wait = { socket, POLLRDHUP, 0 };

	return poll(&wait, 1, 0) == 1;
}

/* Callers stop at each byte of their first message, and a hundred others pass them. */
static void a_hundred_connect_beside_hung_callers(void **)
{
	static const char handshake[] = "PIER\1\0\1\0\xff\0\0\0";
	test_agent one("one"), two("two", { { "connect_timeout", "300" } });
	std::string bytes = address_of_engine(two).write();
	std::vector<pier_nixl::owned_fd> hung;
	std::set<std::string> names, arrived;

	for (size_t i = 1; i < sizeof(handshake); i++) {
		hung.push_back(call_with_hello(two));
		write_all(hung.back().fd, handshake, i);
	}
	for (int i = 0; i < 100; i++) {
		std::string name = "two as " + std::to_string(i);

		names.insert(name);
		assert_int_equal(one.engine->loadRemoteConnInfo(name, bytes),
				 NIXL_SUCCESS);
		assert_int_equal(one.engine->genNotif(name, name), NIXL_SUCCESS);
	}
	for (int i = 0; i < 100; i++)
		arrived.insert(two.next_notice().second);
	assert_true(arrived == names);
	for (const pier_nixl::owned_fd &caller : hung)
		assert_false(has_ended(caller.fd));
}

/* The oldest caller leaves for another one, but none whose handshakes are done. */
static void a_caller_that_has_connected_stays(void **)
{
	std::vector<pier_nixl::owned_fd> hung;
	test_agent one("one"), two("two", { { "connect_timeout", "300" } });

	one.meet(two);
	assert_int_equal(one.engine->genNotif("two", "first"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "first");
	for (size_t i = 0; i < 65; i++) {
		hung.push_back(call_with_hello(two));
		write_all(hung.back().fd, "P", 1);
	}
	test_until("a place", [&] { return has_ended(hung[0].fd); });
	for (size_t i = 1; i < hung.size(); i++)
		assert_false(has_ended(hung[i].fd));
	assert_int_equal(one.engine->genNotif("two", "second"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "second");
}

/* The address of a peer like this one, whose calls arrive at a socket of the test. */
static pier_nixl::agent_address pose_as(const test_agent &like,
					pier_nixl::owned_fd &ret_socket)
{
	pier_nixl::agent_address address = address_of_engine(like);

	address.token[0] ^= 1;
	address.hosts.clear();
	assert_int_equal(pier_nixl::listen_unix(ret_socket, address.unix_name), 0);
	return address;
}

static pier_nixl::owned_fd take_call(const pier_nixl::owned_fd &socket)
{
	pier_nixl::owned_fd made;

	test_until("a call", [&] {
		made = pier_nixl::owned_fd(
			accept4(socket.fd, nullptr, nullptr, SOCK_CLOEXEC));
		return made.fd >= 0;
	});
	return made;
}

/* The peer takes the call, and perhaps accepts the hello, and then says nothing. */
static void silent_peers_are_reported(void **)
{
	const char accepted = PIER_NIXL_HELLO_ACCEPTED;
	test_agent one("one", { { "connect_timeout", "1" } }), two("two");

	for (const std::string peer : { "silent", "accepting" }) {
		pier_nixl::owned_fd socket, caller;
		nixlBackendReqH *handle;

		assert_int_equal(one.engine->loadRemoteConnInfo(
					 peer, pose_as(two, socket).write()),
				 NIXL_SUCCESS);
		handle = one.prepare(NIXL_WRITE, peer, {});
		assert_int_equal(one.engine->genNotif(peer, "hello"), NIXL_SUCCESS);
		caller = take_call(socket);
		if (peer == "accepting")
			write_all(caller.fd, &accepted, 1);
		assert_int_equal(one.wait(handle, one.post(NIXL_WRITE, peer, handle)),
				 NIXL_ERR_REMOTE_DISCONNECT);
		one.release(handle);
	}
}

/* Nothing listens at any of its addresses. */
static void peers_that_are_gone_are_reported(void **)
{
	test_agent one("one", { { "connect_timeout", "300" } }), two("two");
	pier_nixl::owned_fd socket;
	pier_nixl::agent_address address = pose_as(two, socket);

	assert_int_equal(pier_nixl::listen_tcp("127.0.0.1", socket, address.hosts,
					       address.port),
			 0);
	address.hosts.push_back("127.0.0.2");
	address.unix_name = "none";
	socket = pier_nixl::owned_fd();
	assert_int_equal(one.engine->loadRemoteConnInfo("gone", address.write()),
			 NIXL_SUCCESS);
	assert_int_equal(one.move(NIXL_WRITE, "gone", {}), NIXL_ERR_REMOTE_DISCONNECT);
}

/* No call waits for a peer that takes the connection and says nothing. */
static void a_hung_peer_holds_up_nobody(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one", { { "connect_timeout", "60" } }), two("two");
	std::vector<nixlBackendReqH *> handles;
	pier_nixl::owned_fd socket, caller;
	std::string message = "written";

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	assert_int_equal(one.engine->loadRemoteConnInfo("hung",
							pose_as(two, socket).write()),
			 NIXL_SUCCESS);
	assert_int_equal(one.engine->connect("hung"), NIXL_SUCCESS);
	for (int i = 0; i < 64; i++) {
		handles.push_back(one.prepare(NIXL_WRITE, "hung", {}));
		assert_int_equal(one.post(NIXL_WRITE, "hung", handles.back()),
				 NIXL_IN_PROG);
		assert_int_equal(one.engine->genNotif("hung", "hello"), NIXL_SUCCESS);
	}
	caller = take_call(socket);
	source.put(0, test_bytes(mib, 8));
	assert_int_equal(one.move(NIXL_WRITE, "two",
				  { { source.addr, target.addr, mib } }, &message),
			 NIXL_SUCCESS);
	assert_true(two.next_notice().second == message);
	assert_true(target.get() == source.get());
	assert_int_equal(two.engine->genNotif("one", "answer"), NIXL_SUCCESS);
	assert_true(one.next_notice().second == "answer");
	one.deregister_memory(source);
	for (nixlBackendReqH *handle : handles)
		assert_int_equal(one.engine->checkXfer(handle), NIXL_IN_PROG);
	socket = pier_nixl::owned_fd();
	caller = pier_nixl::owned_fd();
	for (nixlBackendReqH *handle : handles) {
		assert_int_equal(one.wait(handle), NIXL_ERR_REMOTE_DISCONNECT);
		one.release(handle);
	}
}

static pier_nixl::owned_fd call_by_tcp(uint16_t port)
{
	struct sockaddr_in address = {};
	pier_nixl::owned_fd made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));

	address.sin_family = AF_INET;
	address.sin_port = htons(port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(connect(made.fd, (struct sockaddr *)&address, sizeof(address)),
			 0);
	return made;
}

/*
 * No connection to a socket whose queue is full is established, which is the end of the
 * first call after 2 s. The next one would find room.
 */
static void a_peer_that_does_not_answer_is_not_called_again_at_once(void **)
{
	test_agent one("one", { { "connect_timeout", "300" } }), two("two");
	pier_nixl::owned_fd socket, caller;
	pier_nixl::agent_address address = pose_as(two, socket);

	assert_int_equal(
		pier_nixl::listen_tcp("127.0.0.1", socket, address.hosts, address.port),
		0);
	assert_int_equal(listen(socket.fd, 0), 0);
	caller = call_by_tcp(address.port);
	assert_int_equal(one.engine->loadRemoteConnInfo("busy", address.write()),
			 NIXL_SUCCESS);
	assert_int_equal(one.move(NIXL_WRITE, "busy", {}), NIXL_ERR_REMOTE_DISCONNECT);
	take_call(socket);

	one.prepare(NIXL_WRITE, "busy", {}, NIXL_ERR_REMOTE_DISCONNECT);
	assert_int_equal(one.engine->genNotif("busy", "hello"),
			 NIXL_ERR_REMOTE_DISCONNECT);
	assert_int_equal(accept4(socket.fd, nullptr, nullptr, SOCK_CLOEXEC), -1);

	/* Fresh metadata may be of a peer that has started again. */
	assert_int_equal(one.engine->loadRemoteConnInfo("busy", address.write()),
			 NIXL_SUCCESS);
	assert_int_equal(one.engine->genNotif("busy", "hello"), NIXL_SUCCESS);
	take_call(socket);
}

/* Silent strangers that call again as soon as they are closed. */
struct crowd {
	uint16_t port;
	std::atomic<unsigned> calls{ 0 };
	std::atomic<bool> over{ false };

	void call_again_and_again()
	{
		std::vector<pier_nixl::owned_fd> sockets(100);
		std::vector<struct pollfd> polled;

		while (!over) {
			polled.clear();
			for (pier_nixl::owned_fd &one : sockets)
				polled.push_back({ one.fd, POLLIN | POLLRDHUP, 0 });
			if (calls >= sockets.size())
				poll(polled.data(), polled.size(), 20);
			for (size_t i = 0; i < sockets.size(); i++)
				if (sockets[i].fd < 0 || polled[i].revents) {
					sockets[i] = call_by_tcp(port);
					calls++;
				}
		}
	}
};

/* The hello of a distant caller comes later than its connection. */
static void a_crowd_that_comes_back_keeps_nobody_out(void **)
{
	static const int tries = 100, hello_delay_ms = 200;
	static const unsigned calls_meanwhile = 150;
	test_agent one("one", { { "address", "127.0.0.1" } });
	pier_nixl::agent_address address = address_of_engine(one);
	pier_nixl::agent_hello hello;
	crowd strangers{ address.port };
	bool accepted = false;

	hello.token = address.token;
	hello.agent = "distant";
	hello.description = address.description;
	std::string bytes = hello.write();
	std::thread thread(&crowd::call_again_and_again, &strangers);

	while (strangers.calls < 100)
		poll(nullptr, 0, 1);
	/* If the strangers drive it out, they do so before it says a word. */
	for (int i = 0; i < tries && !accepted; i++) {
		pier_nixl::owned_fd caller = call_by_tcp(address.port);
		unsigned calls = strangers.calls;
		char byte;

		for (int ms = 0;
		     ms < hello_delay_ms && strangers.calls - calls < calls_meanwhile;
		     ms++)
			poll(nullptr, 0, 1);
		accepted = write_all(caller.fd, bytes.data(), bytes.size()) &&
			   read_all(caller.fd, &byte, 1, 30000);
	}
	strangers.over = true;
	thread.join();
	assert_true(accepted);
}

/* Both ends of TCP connections of this process notice that a host is gone. */
static void expect_keepalive()
{
	int found = 0;

	for (int fd = 0; fd < 1024; fd++) {
		struct sockaddr_storage peer;
		socklen_t length = sizeof(peer), size = sizeof(int);
		int alive = 0, idle = 0;

		if (getpeername(fd, (struct sockaddr *)&peer, &length) ||
		    peer.ss_family == AF_UNIX)
			continue;
		getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &size);
		getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size);
		assert_true(alive && idle <= 60);
		found++;
	}
	assert_true(found >= 2);
}

/*
 * Addresses that do not answer, and that of another agent, do not prevent a connection.
 * All but the first are addresses of the loopback device, and are called before it.
 */
static void agents_are_found_at_any_of_their_addresses(void **)
{
	test_agent one("one"), two("two", { { "address", "127.0.0.1" } });
	pier_nixl::agent_address address = address_of_engine(two);
	std::string port = ":" + std::to_string(address.port);
	test_agent other("other", { { "address", "127.0.0.2" + port } });
	std::vector<std::string> hosts;
	pier_nixl::owned_fd silent;
	pier_nixl::dialing order;
	uint16_t same = 0;

	assert_int_equal(pier_nixl::listen_tcp("127.0.0.3" + port, silent, hosts, same),
			 0);
	address.unix_name = "none";
	address.hosts = { "203.0.113.1", "127.0.0.2", "127.0.0.3", "127.0.0.4",
			  "127.0.0.1" };
	order.begin(address, "", 1000);
	assert_int_equal(order.step(), 0);
	assert_true(order.where.starts_with("[127.0.0.2]"));
	assert_int_equal(one.engine->loadRemoteConnInfo("two", address.write()),
			 NIXL_SUCCESS);
	assert_int_equal(one.engine->genNotif("two", "found"), NIXL_SUCCESS);
	assert_true(two.next_notice().second == "found");
	expect_keepalive();
	take_call(silent);
}

/* The agent listens everywhere; its peers call the addresses of its host. */
static void wildcard_addresses_are_not_advertised(void **)
{
	for (const char *where : { "0.0.0.0", "0.0.0.0:0", "::", "[::]:0" }) {
		test_agent one("one", { { "address", where } });

		assert_true(address_of_engine(one).port > 0);
		for (const std::string &host : address_of_engine(one).hosts)
			assert_true(host != "0.0.0.0" && host != "::");
	}
}

/* Faults that a plan injects are the same on every device. */
std::vector<CMUnitTest> failure_tests()
{
	std::vector<CMUnitTest> tests = {
		cmocka_unit_test(cancelled_requests_end),
		cmocka_unit_test(killed_peers_are_reported),
		cmocka_unit_test(agents_that_start_again_are_reached),
		cmocka_unit_test(requests_of_a_former_process_are_refused),
		cmocka_unit_test(peers_are_removed_during_transfers),
		cmocka_unit_test(memory_is_deregistered_during_transfers),
		cmocka_unit_test(connections_that_cannot_be_watched_end),
		cmocka_unit_test(deregistered_memory_is_refused),
		cmocka_unit_test(hostile_metadata_is_refused),
		cmocka_unit_test(strangers_at_the_door_are_refused),
		cmocka_unit_test(callers_that_hang_hold_up_nobody),
		cmocka_unit_test(a_hundred_connect_beside_hung_callers),
		cmocka_unit_test(a_caller_that_has_connected_stays),
		cmocka_unit_test(what_is_posted_before_the_connection_is_moved),
		cmocka_unit_test(silent_peers_are_reported),
		cmocka_unit_test(peers_that_are_gone_are_reported),
		cmocka_unit_test(a_hung_peer_holds_up_nobody),
		cmocka_unit_test(a_peer_that_does_not_answer_is_not_called_again_at_once),
		cmocka_unit_test(a_crowd_that_comes_back_keeps_nobody_out),
		cmocka_unit_test(agents_are_found_at_any_of_their_addresses),
		cmocka_unit_test(wildcard_addresses_are_not_advertised),
	};
	if (options.device == PIER_SOFT_DEVICE) {
		tests.push_back(cmocka_unit_test(requests_that_cannot_end_are_released));
		tests.push_back(cmocka_unit_test(transfers_survive_a_lost_rail));
		tests.push_back(cmocka_unit_test(a_rail_without_completions_is_lost));
		tests.push_back(
			cmocka_unit_test(repeated_writes_wait_for_the_peer));
		tests.push_back(cmocka_unit_test(a_second_record_ends_the_connection));
		tests.push_back(cmocka_unit_test(requests_end_without_a_completion));
		tests.push_back(cmocka_unit_test(transfers_finish_before_the_end));
		tests.push_back(cmocka_unit_test(memory_of_several_keys_is_moved));
		tests.push_back(cmocka_unit_test(faults_are_reported_and_survived));
	}
	if (options.backend == "cuda" || options.backend == "hip") {
		tests.push_back(
			cmocka_unit_test(reads_that_are_repeated_flush_the_other_nic));
		tests.push_back(cmocka_unit_test(
			a_notification_of_bytes_that_are_not_visible_is_lost));
	}
	if (options.device == PIER_SOFT_DEVICE && options.backend == "host")
		tests.push_back(cmocka_unit_test(faults_of_a_cache_are_survived));
	return tests;
}

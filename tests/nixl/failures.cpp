/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sockets.hpp"

static const size_t mib = 1 << 20;

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
		/* Fails while a request has it. */
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

/* The completion never comes: the connection is given up, the next one works. */
static void requests_that_cannot_end_are_cancelled(void **)
{
	test_memory source(mib), target(mib);
	std::chrono::steady_clock::time_point start;
	nixlBackendReqH *handle;

	/* On memory of a GPU the canary's completion would be the first, and lost. */
	setenv("PIER_CANARY", "off", 1);
	test_agent one("one", { { "device", with_plan("lost@1") } }), two("two");
	unsetenv("PIER_CANARY");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two", { { source.addr, target.addr, mib } });
	assert_int_equal(one.post(NIXL_WRITE, "two", handle), NIXL_IN_PROG);
	start = std::chrono::steady_clock::now();
	one.release(handle);
	/* It waited for the completion. */
	assert_true(std::chrono::steady_clock::now() - start > std::chrono::seconds(2));
	source.put(0, test_bytes(mib, 6));
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } }),
		NIXL_SUCCESS);
	assert_true(target.get() == test_bytes(mib, 6));
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
	if (pier_nixl::write_all(socket, &size, sizeof(size), 10000) ||
	    pier_nixl::write_all(socket, bytes.data(), bytes.size(), 10000))
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
	assert_int_equal(
		pier_nixl::read_all(sockets[0], &size, sizeof(size), TEST_SECONDS * 1000),
		0);
	bytes.resize(size);
	assert_int_equal(
		pier_nixl::read_all(sockets[0], &bytes[0], size, TEST_SECONDS * 1000), 0);
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
	test_memory source(2 * mib), target(2 * mib);
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
	for (size_t i = 0; i < 512; i++)
		ranges.push_back(
			{ source.addr + i * 4096, target.addr + i * 4096, 4096 });
	for (unsigned round = 0; round < 8; round++) {
		nixl_status_t status;

		source.put(0, test_bytes(2 * mib, round));
		/* The connection may fail to be made. */
		if (one.engine->connect("two")) {
			has_failed = true;
			continue;
		}
		status = one.move(NIXL_WRITE, "two", ranges, &message);
		if (status == NIXL_SUCCESS) {
			assert_true(target.get() == test_bytes(2 * mib, round));
			assert_true(two.next_notice().second == message);
		} else {
			has_failed = true;
		}
	}
	assert_int_equal(one.move(NIXL_WRITE, "two", ranges), NIXL_SUCCESS);
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
}

/* Callers without the token get no answer, and hold up nobody. */
static void strangers_at_the_door_are_refused(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one"), two("two");
	std::vector<pier_nixl::owned_fd> strangers(100);
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
		assert_int_equal(pier_nixl::dial_agent(address, strangers[i]), 0);
		bytes = i % 2 ? hello.write() : test_bytes(i * 7, (unsigned)i);
		pier_nixl::write_all(strangers[i].fd, bytes.data(), bytes.size(), 1000);
	}
	one.meet(two);
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, mib } }),
		NIXL_SUCCESS);
	for (pier_nixl::owned_fd &stranger : strangers)
		assert_true(pier_nixl::read_all(stranger.fd, &byte, 1, 10000) < 0);
}

/* Faults that a plan injects are the same on every device. */
std::vector<CMUnitTest> failure_tests()
{
	std::vector<CMUnitTest> tests = {
		cmocka_unit_test(cancelled_requests_end),
		cmocka_unit_test(killed_peers_are_reported),
		cmocka_unit_test(agents_that_start_again_are_reached),
		cmocka_unit_test(deregistered_memory_is_refused),
		cmocka_unit_test(hostile_metadata_is_refused),
		cmocka_unit_test(strangers_at_the_door_are_refused),
	};
	if (options.device == PIER_SOFT_DEVICE) {
		tests.push_back(cmocka_unit_test(requests_that_cannot_end_are_cancelled));
		tests.push_back(cmocka_unit_test(faults_are_reported_and_survived));
	}
	return tests;
}

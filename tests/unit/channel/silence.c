/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pier/pier.h>

/*
 * A stopped peer on soft0: its process lives and its links stay open, but it answers
 * nothing. The child is forked before a device is opened.
 */

enum {
	PATIENT = 30000,
	KEEPALIVE = 50,
	LIMIT = 2000,  /* of soft0, without retries */
	SLACK = 30000, /* for a busy machine */
	LENGTH = 1 << 20,
	MARK = 77,
	MARK_AT = 4000,
};

struct end {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr;
	struct pier_channel *channel;
	uint8_t memory[LENGTH];
};

static struct end end;

static int open_end(uint32_t keepalive_ms)
{
	struct pier_channel_attr attr;
	int error = pier_device_open("soft0", &end.device);

	pier_channel_attr_init(&attr);
	attr.keepalive_ms = keepalive_ms;
	attr.retry_count = 0;
	if (!error)
		error = pier_pd_alloc(end.device, &end.pd);
	if (!error)
		error = pier_mr_reg(end.pd, end.memory, LENGTH, PIER_ACCESS_SHARED,
				    &end.mr);
	return error ? error : pier_channel_create(end.pd, &attr, &end.channel);
}

static int close_end(void)
{
	int error = pier_channel_destroy(end.channel);

	if (!error)
		error = pier_mr_dereg(end.mr);
	if (!error)
		error = pier_pd_dealloc(end.pd);
	return error ? error : pier_device_close(end.device);
}

static int complain(const char *step)
{
	fprintf(stderr, "child: %s: %s\n", step, pier_error_message());
	return 3;
}

static int word(int stream)
{
	char byte;

	return read(stream, &byte, 1) == 1 ? byte : -1;
}

static bool tell(int stream, char byte)
{
	return write(stream, &byte, 1) == 1;
}

/* In all memory: the new bytes, and the writes of the new connection. */
static bool holds_only_the_mark(void)
{
	for (size_t i = 0; i < LENGTH; i++)
		if (end.memory[i] != (i == MARK_AT ? MARK : 'z'))
			return false;
	return true;
}

/* Connected; told to begin again; polls when the mark has come. */
static int be_peer(int stream)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	struct pier_work mark;

	if (open_end(0) || pier_channel_handshake(end.channel, stream, stream, PATIENT) ||
	    pier_mr_remote(end.mr, &remote))
		return complain("connect");
	pier_remote_pack(&remote, wire);
	if (write(stream, wire, sizeof(wire)) != (ssize_t)sizeof(wire))
		return complain("write");
	if (word(stream) != 'r')
		return 0;
	if (pier_channel_reset(end.channel) ||
	    pier_channel_post_recv(end.channel, NULL, 0, &mark))
		return complain("reset");
	memset(end.memory, 'z', LENGTH);
	if (pier_channel_handshake(end.channel, stream, stream, PATIENT))
		return complain("second handshake");
	if (test_work_wait(end.channel, mark, PATIENT, NULL) || !holds_only_the_mark())
		return complain("memory");
	return close_end() ? complain("close") : 0;
}

static pid_t start_peer(int *ret_stream)
{
	int fds[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		_exit(be_peer(fds[1]));
	}
	close(fds[1]);
	*ret_stream = fds[0];
	return child;
}

/* Connected, and then stopped. */
static pid_t meet(int *ret_stream, struct pier_remote *ret_remote, uint32_t keepalive_ms)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	pid_t child = start_peer(ret_stream);
	int status;

	expect_ok(open_end(keepalive_ms));
	expect_ok(pier_channel_handshake(end.channel, *ret_stream, *ret_stream, PATIENT));
	assert_int_equal(recv(*ret_stream, wire, sizeof(wire), MSG_WAITALL),
			 sizeof(wire));
	expect_ok(pier_remote_unpack(wire, sizeof(wire), ret_remote));
	assert_int_equal(kill(child, SIGSTOP), 0);
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(WIFSTOPPED(status));
	return child;
}

static void part(pid_t child, int stream, bool killed)
{
	int status;

	if (killed)
		assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WIFSIGNALED(status), killed);
	assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : 0, 0);
	close(stream);
	expect_ok(close_end());
}

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void expect_noticed(int64_t since)
{
	struct pier_channel_failure failure;
	int64_t took = milliseconds() - since;

	expect_result(pier_channel_error(end.channel, &failure, sizeof(failure)),
		      -EHOSTUNREACH);
	assert_int_equal(failure.error_class, PIER_CLASS_UNREACHABLE);
	assert_int_equal(failure.first.opcode, PIER_OP_KEEPALIVE);
	assert_in_range(took, LIMIT, KEEPALIVE + LIMIT + SLACK);
}

static void waiting_thread_detects_a_silent_peer(void **state)
{
	struct test_census before = test_take_census();
	struct pier_remote remote;
	int64_t begin;
	int stream;
	pid_t child = meet(&stream, &remote, KEEPALIVE);

	(void)state;
	begin = milliseconds();
	expect_result(pier_channel_recv(end.channel, NULL, 0, PATIENT, NULL), -ECANCELED);
	expect_noticed(begin);
	part(child, stream, true);
	test_assert_census(&before);
}

/* The caller's own loop, which sleeps on the fd for as long as it may. */
static void polling_thread_detects_a_silent_peer(void **state)
{
	struct test_census before = test_take_census();
	struct pier_remote remote;
	struct pollfd fd;
	int64_t begin;
	int stream, turns = 0;
	pid_t child = meet(&stream, &remote, KEEPALIVE);

	(void)state;
	fd = (struct pollfd){ .fd = pier_channel_fd(end.channel), .events = POLLIN };
	begin = milliseconds();
	while (pier_channel_error(end.channel, NULL, 0) == 0) {
		int next = pier_channel_next_ms(end.channel);

		assert_true(turns++ < 100);
		if (pier_channel_arm(end.channel) == 0)
			assert_true(poll(&fd, 1, next < 0 ? PATIENT : next) >= 0);
	}
	expect_noticed(begin);
	assert_in_range(turns, 2, 10);
	part(child, stream, true);
	test_assert_census(&before);
}

/*
 * Requests that were on their way to a stopped peer when both ends were reset meet
 * another connection and another use of the memory.
 */
static void receives_nothing_of_the_old_connection(void **state)
{
	struct test_census before = test_take_census();
	struct pier_remote remote, mark;
	struct pier_gather source;
	struct pier_work work[8];
	int stream;
	pid_t child = meet(&stream, &remote, 0);

	(void)state;
	memset(end.memory, 'x', LENGTH);
	expect_ok(pier_mr_gather(end.mr, pier_mr_iova(end.mr), LENGTH, &source));
	for (int i = 0; i < 8; i++)
		expect_ok(pier_channel_post_write(end.channel, &source, 1, &remote,
						  &work[i]));
	expect_ok(pier_channel_reset(end.channel));
	for (int i = 0; i < 8; i++)
		expect_result(test_work_wait(end.channel, work[i], 0, NULL), -ECANCELED);
	assert_true(tell(stream, 'r'));
	assert_int_equal(kill(child, SIGCONT), 0);
	expect_ok(pier_channel_handshake(end.channel, stream, stream, PATIENT));
	end.memory[0] = MARK;
	source.length = 1;
	expect_ok(pier_remote_sub(&remote, MARK_AT, 1, &mark));
	expect_ok(test_channel_write_imm(end.channel, &source, 1, &mark, 1, PATIENT));
	part(child, stream, false);
	test_assert_census(&before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waiting_thread_detects_a_silent_peer),
		cmocka_unit_test(polling_thread_detects_a_silent_peer),
		cmocka_unit_test(receives_nothing_of_the_old_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

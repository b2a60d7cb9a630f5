/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/link/auth.h"

/*
 * A user who knows no secret holds the peer's name in the abstract namespace of the
 * caller's host, where the peer does not have it because it is on another host. Whoever
 * calls finds the user's process there. The user relays the handshake to the real peer,
 * or keeps the caller waiting.
 */

static const char needle[] = "nobody on the way may read this";

enum attack {
	RELAY,	      /* forwards everything, and looks for the needle */
	FILL_BACKLOG, /* accepts nobody */
	STAY_SILENT,  /* accepts and says nothing */
	ALTER_OFFER,  /* relays, but the caller offers one cipher */
	ALTER_CHOICE  /* relays, but the peer chooses another */
};

struct attempt {
	enum attack attack;
	bool is_nobody; /* the attacker is not of the user that runs the test */
	bool far;	/* the peer is in another network namespace, and has no TCP */
	bool may_call;	/* the caller may use TCP */
	struct soft_fixture fixture;
	struct fixture_endpoint mine, its;
	pid_t peer, attacker;
	int peer_fd, attacker_fd;
};

static pid_t fork_child(int *ret_fd, int *ret_child_fd)
{
	int fds[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(fds[child == 0 ? 0 : 1]);
	*ret_fd = fds[0];
	*ret_child_fd = fds[1];
	return child;
}

/* The peer does what the byte says: 'm': wait for the message, 'x': end. */
static void peer_body(const struct attempt *attempt, int fd)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	char word;

	if (attempt->far && unshare(CLONE_NEWNET) < 0)
		_exit(97);
	if (!attempt->far) { /* as if it were on another host */
		setenv("PIER_SOFT_UNIX", "off", 1);
		setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	}
	fixture_open(&fixture, NULL);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	assert_int_equal(fixture_post_recv(&fixture, 1, 0, 4096), 0);
	fixture_write_all(fd, "r", 1);
	fixture_read_all(fd, &word, 1);
	if (word == 'm') {
		fixture_expect(&fixture, fixture.recv_cq, NULL, 1, IBV_WC_SUCCESS);
		assert_memory_equal(fixture.memory, needle, sizeof(needle));
		fixture_write_all(fd, "y", 1);
		fixture_read_all(fd, &word, 1);
	}
	fixture_close(&fixture);
	_exit(0);
}

/* A socket on the peer's host, which a second process of the user has there. */
static int make_outgoing(const struct attempt *attempt)
{
	char path[64];
	int space;

	if (attempt->far) {
		snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)attempt->peer);
		space = open(path, O_RDONLY | O_CLOEXEC);
		if (space < 0 || setns(space, CLONE_NEWNET) < 0)
			_exit(97);
		close(space);
	}
	return socket(attempt->far ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void reach_peer(const struct attempt *attempt, int fd)
{
	struct sockaddr_in tcp = { .sin_family = AF_INET };
	struct soft_address address;
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(&(struct soft_meeting){ 0 },
					       &attempt->its.gid, &name);
	int error;

	if (pier_soft_unpack_address(attempt->its.blob, attempt->its.blob_length,
				     &address))
		_exit(96);
	tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	tcp.sin_port = htons(address.port);
	error = attempt->far ? connect(fd, (struct sockaddr *)&name, length)
			     : connect(fd, (struct sockaddr *)&tcp, sizeof(tcp));
	if (error)
		_exit(95);
}

/* The byte is the one at `at` of what came from this end; `passed` bytes came before. */
static void alter_cipher(uint8_t *bytes, size_t count, size_t passed, size_t at)
{
	if (at >= passed && at < passed + count)
		bytes[at - passed] = bytes[at - passed] == SOFT_CHACHA20 ? SOFT_AES
									 : SOFT_CHACHA20;
}

static void pass_on(enum attack attack, int caller, int peer, int report)
{
	struct pollfd ends[2] = { { .fd = caller, .events = POLLIN },
				  { .fd = peer, .events = POLLIN } };
	static uint8_t bytes[1 << 20];
	size_t passed[2] = { 0, 0 };

	for (;;) {
		poll(ends, 2, -1);
		for (int i = 0; i < 2; i++) {
			ssize_t count;

			if (!ends[i].revents)
				continue;
			count = read(ends[i].fd, bytes, sizeof(bytes));
			if (count <= 0)
				_exit(0);
			if (memmem(bytes, (size_t)count, needle, sizeof(needle) - 1))
				fixture_write_all(report, "f", 1);
			if (i == 0 && attack == ALTER_OFFER)
				alter_cipher(bytes, (size_t)count, passed[i],
					     SOFT_HELLO_SIZE - 1);
			if (i == 1 && attack == ALTER_CHOICE)
				alter_cipher(bytes, (size_t)count, passed[i],
					     SOFT_CHALLENGE_SIZE - 1);
			passed[i] += (size_t)count;
			fixture_write_all(ends[1 - i].fd, bytes, (size_t)count);
		}
	}
}

static void fill_backlog(const struct sockaddr_un *name, socklen_t length)
{
	for (int i = 0; i < 4; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

		connect(fd, (const struct sockaddr *)name, length);
	}
}

static void attacker_body(const struct attempt *attempt, int report)
{
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(&(struct soft_meeting){ 0 },
					       &attempt->its.gid, &name);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), caller;
	int peer = make_outgoing(attempt);

	if (attempt->is_nobody) {
		peer_become_nobody();
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* the change of user clears it */
	}
	if (bind(listener, (struct sockaddr *)&name, length) < 0 ||
	    listen(listener, 0) < 0)
		_exit(94);
	if (attempt->attack == FILL_BACKLOG)
		fill_backlog(&name, length);
	fixture_write_all(report, "r", 1);
	if (attempt->attack == FILL_BACKLOG)
		pause();
	caller = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (attempt->attack == STAY_SILENT)
		pause();
	reach_peer(attempt, peer);
	pass_on(attempt->attack, caller, peer, report);
}

/* Our end has the lower name, so that it calls even where neither listens on TCP. */
static void open_attempt(struct attempt *attempt)
{
	int child_fd;
	char byte;

	attempt->peer = fork_child(&attempt->peer_fd, &child_fd);
	if (attempt->peer == 0)
		peer_body(attempt, child_fd);
	fixture_read_all(attempt->peer_fd, &attempt->its, sizeof(attempt->its));
	if (attempt->may_call)
		setenv("PIER_SOFT_PEERS", "127.0.0.1", 1);
	for (;;) {
		fixture_open(&attempt->fixture, NULL);
		fixture_describe(&attempt->fixture, &attempt->mine);
		if (memcmp(&attempt->mine.gid, &attempt->its.gid, 16) < 0)
			break;
		fixture_close(&attempt->fixture);
	}
	unsetenv("PIER_SOFT_PEERS");
	attempt->attacker = fork_child(&attempt->attacker_fd, &child_fd);
	if (attempt->attacker == 0)
		attacker_body(attempt, child_fd);
	fixture_read_all(attempt->attacker_fd, &byte, 1);
	fixture_write_all(attempt->peer_fd, &attempt->mine, sizeof(attempt->mine));
	fixture_read_all(attempt->peer_fd, &byte, 1);
}

static void end_child(pid_t child, int fd, bool is_killed)
{
	int status;

	if (is_killed)
		kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(is_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
	close(fd);
}

static void close_attempt(struct attempt *attempt)
{
	fixture_write_all(attempt->peer_fd, "x", 1);
	end_child(attempt->peer, attempt->peer_fd, false);
	end_child(attempt->attacker, attempt->attacker_fd, true);
	fixture_close(&attempt->fixture);
}

/* The message arrives, by a sealed link, and the attacker has not read it. */
static void check_message(struct attempt *attempt)
{
	char byte;

	assert_non_null(peer_qp(&attempt->fixture)->link.seal);
	memcpy(attempt->fixture.memory, needle, sizeof(needle));
	fixture_write_all(attempt->peer_fd, "m", 1);
	assert_int_equal(fixture_post(&attempt->fixture, IBV_WR_SEND, 1, 0,
				      sizeof(needle), NULL, 0, IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&attempt->fixture, attempt->fixture.send_cq, NULL, 1,
		       IBV_WC_SUCCESS);
	fixture_read_all(attempt->peer_fd, &byte, 1);
	/* The attacker has ended if it lost the caller. */
	assert_int_not_equal(recv(attempt->attacker_fd, &byte, 1, MSG_DONTWAIT), 1);
}

static void skip_unless_root(bool needs_namespace)
{
	pid_t child;
	int status;

	if (!peer_is_root())
		skip();
	if (!needs_namespace)
		return;
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(unshare(CLONE_NEWNET) < 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (status != 0) {
		puts("skip: no network namespaces");
		skip();
	}
}

/* Two root processes that take anybody; the attacker is a stranger to both. */
static void stranger_between_unix_sockets_reads_nothing(void **state)
{
	struct attempt attempt = { .attack = RELAY, .is_nobody = true, .far = true };

	(void)state;
	skip_unless_root(true);
	open_attempt(&attempt);
	fixture_connect(&attempt.fixture, &attempt.its);
	check_message(&attempt);
	close_attempt(&attempt);
}

static void stranger_between_unix_and_tcp_reads_nothing(void **state)
{
	struct attempt attempt = { .attack = RELAY, .is_nobody = true };

	(void)state;
	skip_unless_root(false);
	open_attempt(&attempt);
	fixture_connect(&attempt.fixture, &attempt.its);
	check_message(&attempt);
	close_attempt(&attempt);
}

static void expect_refusal(enum attack attack, bool is_nobody)
{
	struct attempt attempt = { .attack = attack, .is_nobody = is_nobody };

	open_attempt(&attempt);
	assert_int_equal(pier_soft_provider.set_qp_address(attempt.fixture.qp,
							   attempt.its.blob,
							   attempt.its.blob_length),
			 0);
	assert_int_equal(fixture_to_init(&attempt.fixture), 0);
	assert_int_equal(fixture_to_rtr(&attempt.fixture, &attempt.its), ECONNREFUSED);
	close_attempt(&attempt);
}

/* For us the attacker is a process of our user, and the link a plain one. */
static void ends_that_disagree_about_sealing_refuse(void **state)
{
	(void)state;
	expect_refusal(RELAY, false);
}

static void cipher_that_was_altered_is_refused(void **state)
{
	(void)state;
	skip_unless_root(false);
	expect_refusal(ALTER_OFFER, true);
	expect_refusal(ALTER_CHOICE, true);
}

/* The caller's own deadline is 5 s. */
static void check_detour(enum attack attack, bool is_nobody)
{
	struct attempt attempt = { .attack = attack,
				   .is_nobody = is_nobody,
				   .may_call = true };
	uint64_t start;

	open_attempt(&attempt);
	start = fixture_milliseconds();
	fixture_connect(&attempt.fixture, &attempt.its);
	print_message("connected after %llu ms\n",
		      (unsigned long long)(fixture_milliseconds() - start));
	check_message(&attempt);
	close_attempt(&attempt);
}

static void holder_of_the_name_does_not_prevent_tcp(void **state)
{
	(void)state;
	check_detour(RELAY, false);
	check_detour(FILL_BACKLOG, false);
	check_detour(STAY_SILENT, false);
}

static void stranger_with_the_name_does_not_prevent_tcp(void **state)
{
	(void)state;
	skip_unless_root(false);
	check_detour(FILL_BACKLOG, true);
	check_detour(STAY_SILENT, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stranger_between_unix_sockets_reads_nothing),
		cmocka_unit_test(stranger_between_unix_and_tcp_reads_nothing),
		cmocka_unit_test(ends_that_disagree_about_sealing_refuse),
		cmocka_unit_test(cipher_that_was_altered_is_refused),
		cmocka_unit_test(holder_of_the_name_does_not_prevent_tcp),
		cmocka_unit_test(stranger_with_the_name_does_not_prevent_tcp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

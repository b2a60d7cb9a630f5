/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/socket.h"
#include "provider/soft/soft.h"

/*
 * Processes of other users: they send fds that block the process when it closes them, or
 * take all slots of connections that are not authenticated.
 */

static const struct fixture_options stepped = { .stepped = 1 };

enum {
	LINGER_SECONDS = 4
};

/* A TCP socket with unsent bytes, which takes LINGER_SECONDS to close. */
static int make_lingering_socket(int *ret_listener)
{
	struct linger linger = { .l_onoff = 1, .l_linger = LINGER_SECONDS };
	struct sockaddr_in name = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(name);
	char bytes[65536] = { 0 };

	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&name, sizeof(name)) < 0 ||
	    listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&name, &size) < 0 ||
	    connect(fd, (struct sockaddr *)&name, size) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) < 0)
		_exit(98);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	*ret_listener = listener;
	return fd;
}

/* Another user, whose connection is not even accepted: its fds are closed with it. */
static void stranger_body(const struct soft_fixture *fixture, int ready, bool lingers)
{
	int door, sent, listener = -1;
	char byte;

	peer_become_nobody();
	door = fake_dial(fixture);
	sent = lingers ? make_lingering_socket(&listener) : STDIN_FILENO;
	/* The last copy of the socket is the one that takes long to close. */
	for (int i = 0; i < (lingers ? 1 : SOFT_HELLO_SIZE); i++)
		peer_send(door, "p", 1, sent, lingers ? 1 : 2);
	if (lingers)
		close(sent);
	fixture_write_all(ready, "r", 1);
	/* The listener is there until the parent has seen enough. */
	fixture_read_all(ready, &byte, 1);
	_exit(0);
}

static void check_stranger(bool lingers)
{
	int before, sockets[2], status;
	uint64_t start;
	struct soft_fixture fixture;
	pid_t child;
	char byte;

	fixture_open(&fixture, &stepped);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	before = fixture_count_fds();
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		stranger_body(&fixture, sockets[1], lingers);
	fixture_read_all(sockets[0], &byte, 1);
	start = fixture_milliseconds();
	fake_step(&fixture);
	assert_in_range(fixture_milliseconds() - start, 0, 1000 * LINGER_SECONDS / 2);
	assert_in_range(fixture_count_fds(), before, before + 1);
	fixture_write_all(sockets[0], "x", 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(sockets[0]);
	close(sockets[1]);
	fixture_close(&fixture);
}

static void stranger_leaves_no_fds_with_root(void **state)
{
	(void)state;
	if (!peer_is_root())
		skip();
	check_stranger(false);
}

enum {
	CROWD = 256 /* more than slots and backlog together */
};

/* Connects as often as it can, sends nothing, and connects again when it is closed. */
static void crowd_body(const struct soft_fixture *fixture, int ready)
{
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(
		&soft_context(fixture->context)->node.meeting,
		&soft_context(fixture->context)->node.gid, &name);
	struct pollfd doors[CROWD];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (geteuid() == 0)
		peer_become_nobody();
	for (int i = 0; i < CROWD; i++)
		doors[i].fd = -1;
	for (int round = 0;; round++) {
		for (int i = 0; i < CROWD; i++) {
			if (doors[i].fd >= 0 && !(doors[i].revents & POLLHUP))
				continue;
			close(doors[i].fd);
			doors[i] = (struct pollfd){
				.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0),
			};
			connect(doors[i].fd, (struct sockaddr *)&name, length);
		}
		if (round == 3)
			fixture_write_all(ready, "r", 1);
		poll(doors, CROWD, 10);
	}
}

/* A caller that knows the secret connects before its own deadline of 5 seconds. */
static void crowd_only_delays_a_caller(void **state)
{
	int sockets[2], door;
	struct fake fake;
	uint64_t start;
	struct soft_fixture fixture;
	pid_t child;
	char byte;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		crowd_body(&fixture, sockets[1]);
	fixture_read_all(sockets[0], &byte, 1);
	start = fixture_milliseconds();
	for (int i = 0; i < 3; i++) {
		door = fake_call(&fake, &fixture);
		close(door);
	}
	print_message("three calls through the crowd: %llu ms\n",
		      (unsigned long long)(fixture_milliseconds() - start));
	assert_in_range(fixture_milliseconds() - start, 0, 3 * 5000);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(sockets[0]);
	close(sockets[1]);
	fixture_close(&fixture);
}

static bool kernel_refuses_fds(void)
{
	int sockets[2], error;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	pier_soft_accept_fds(sockets[1], false);
	error = peer_send(sockets[0], "p", 1, STDIN_FILENO, 1) < 0 ? errno : 0;
	close(sockets[0]);
	close(sockets[1]);
	return error == EPERM;
}

static void stranger_cannot_block_root_with_a_lingering_socket(void **state)
{
	(void)state;
	if (!peer_is_root())
		skip();
	if (!kernel_refuses_fds()) {
		puts("skip: the kernel has no SO_PASSRIGHTS (Linux 6.16)");
		skip();
	}
	check_stranger(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crowd_only_delays_a_caller),
		cmocka_unit_test(stranger_leaves_no_fds_with_root),
		cmocka_unit_test(stranger_cannot_block_root_with_a_lingering_socket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

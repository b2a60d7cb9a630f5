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
	STAY_SILENT   /* accepts and says nothing */
};

struct scene {
	enum attack attack;
	bool is_nobody; /* the attacker is not of the user that runs the test */
	bool far;	/* the peer is in another network namespace, and has no TCP */
	bool may_call;	/* the caller may use TCP */
	struct rig rig;
	struct rig_endpoint mine, its;
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
static void peer_body(const struct scene *scene, int fd)
{
	struct rig_endpoint mine, its;
	struct rig rig;
	char word;

	if (scene->far && unshare(CLONE_NEWNET) < 0)
		_exit(97);
	if (!scene->far) { /* as if it were on another host */
		setenv("PIER_SOFT_UNIX", "off", 1);
		setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	}
	rig_open(&rig, NULL);
	rig_describe(&rig, &mine);
	rig_exchange(fd, &mine, &its);
	rig_connect(&rig, &its);
	assert_int_equal(rig_post_recv(&rig, 1, 0, 4096), 0);
	rig_write_all(fd, "r", 1);
	rig_read_all(fd, &word, 1);
	if (word == 'm') {
		rig_expect(&rig, rig.recv_cq, NULL, 1, IBV_WC_SUCCESS);
		assert_memory_equal(rig.memory, needle, sizeof(needle));
		rig_write_all(fd, "y", 1);
		rig_read_all(fd, &word, 1);
	}
	rig_close(&rig);
	_exit(0);
}

/* A socket on the peer's host, which a second process of the user has there. */
static int make_outgoing(const struct scene *scene)
{
	char path[64];
	int space;

	if (scene->far) {
		snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)scene->peer);
		space = open(path, O_RDONLY | O_CLOEXEC);
		if (space < 0 || setns(space, CLONE_NEWNET) < 0)
			_exit(97);
		close(space);
	}
	return socket(scene->far ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void reach_peer(const struct scene *scene, int fd)
{
	struct sockaddr_in tcp = { .sin_family = AF_INET };
	struct soft_address address;
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(&scene->its.gid, &name);
	int error;

	if (pier_soft_unpack_address(scene->its.blob, scene->its.blob_length, &address))
		_exit(96);
	tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	tcp.sin_port = htons(address.port);
	error = scene->far ? connect(fd, (struct sockaddr *)&name, length)
			   : connect(fd, (struct sockaddr *)&tcp, sizeof(tcp));
	if (error)
		_exit(95);
}

static void pass_on(int caller, int peer, int report)
{
	struct pollfd ends[2] = { { .fd = caller, .events = POLLIN },
				  { .fd = peer, .events = POLLIN } };
	static uint8_t bytes[1 << 20];

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
				rig_write_all(report, "f", 1);
			rig_write_all(ends[1 - i].fd, bytes, (size_t)count);
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

static void attacker_body(const struct scene *scene, int report)
{
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(&scene->its.gid, &name);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), caller;
	int peer = make_outgoing(scene);

	if (scene->is_nobody) {
		peer_become_nobody();
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* the change of user clears it */
	}
	if (bind(listener, (struct sockaddr *)&name, length) < 0 ||
	    listen(listener, 0) < 0)
		_exit(94);
	if (scene->attack == FILL_BACKLOG)
		fill_backlog(&name, length);
	rig_write_all(report, "r", 1);
	if (scene->attack == FILL_BACKLOG)
		pause();
	caller = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (scene->attack == STAY_SILENT)
		pause();
	reach_peer(scene, peer);
	pass_on(caller, peer, report);
}

/* Our end has the lower name, so that it calls even where neither listens on TCP. */
static void open_scene(struct scene *scene)
{
	int child_fd;
	char byte;

	scene->peer = fork_child(&scene->peer_fd, &child_fd);
	if (scene->peer == 0)
		peer_body(scene, child_fd);
	rig_read_all(scene->peer_fd, &scene->its, sizeof(scene->its));
	if (scene->may_call)
		setenv("PIER_SOFT_PEERS", "127.0.0.1", 1);
	for (;;) {
		rig_open(&scene->rig, NULL);
		rig_describe(&scene->rig, &scene->mine);
		if (memcmp(&scene->mine.gid, &scene->its.gid, 16) < 0)
			break;
		rig_close(&scene->rig);
	}
	unsetenv("PIER_SOFT_PEERS");
	scene->attacker = fork_child(&scene->attacker_fd, &child_fd);
	if (scene->attacker == 0)
		attacker_body(scene, child_fd);
	rig_read_all(scene->attacker_fd, &byte, 1);
	rig_write_all(scene->peer_fd, &scene->mine, sizeof(scene->mine));
	rig_read_all(scene->peer_fd, &byte, 1);
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

static void close_scene(struct scene *scene)
{
	rig_write_all(scene->peer_fd, "x", 1);
	end_child(scene->peer, scene->peer_fd, false);
	end_child(scene->attacker, scene->attacker_fd, true);
	rig_close(&scene->rig);
}

/* The message arrives, by a sealed link, and the attacker has not read it. */
static void check_message(struct scene *scene)
{
	char byte;

	assert_non_null(peer_qp(&scene->rig)->link.seal);
	memcpy(scene->rig.memory, needle, sizeof(needle));
	rig_write_all(scene->peer_fd, "m", 1);
	assert_int_equal(rig_post(&scene->rig, IBV_WR_SEND, 1, 0, sizeof(needle), NULL, 0,
				  IBV_SEND_SIGNALED),
			 0);
	rig_expect(&scene->rig, scene->rig.send_cq, NULL, 1, IBV_WC_SUCCESS);
	rig_read_all(scene->peer_fd, &byte, 1);
	/* The attacker has ended if it lost the caller. */
	assert_int_not_equal(recv(scene->attacker_fd, &byte, 1, MSG_DONTWAIT), 1);
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
	struct scene scene = { .attack = RELAY, .is_nobody = true, .far = true };

	(void)state;
	skip_unless_root(true);
	open_scene(&scene);
	rig_connect(&scene.rig, &scene.its);
	check_message(&scene);
	close_scene(&scene);
}

static void stranger_between_unix_and_tcp_reads_nothing(void **state)
{
	struct scene scene = { .attack = RELAY, .is_nobody = true };

	(void)state;
	skip_unless_root(false);
	open_scene(&scene);
	rig_connect(&scene.rig, &scene.its);
	check_message(&scene);
	close_scene(&scene);
}

/* For us the attacker is a process of our user, and the link a plain one. */
static void ends_that_disagree_about_sealing_refuse(void **state)
{
	struct scene scene = { .attack = RELAY };

	(void)state;
	open_scene(&scene);
	assert_int_equal(pier_soft_provider.set_qp_address(scene.rig.qp, scene.its.blob,
							   scene.its.blob_length),
			 0);
	assert_int_equal(rig_to_init(&scene.rig), 0);
	assert_int_equal(rig_to_rtr(&scene.rig, &scene.its), ECONNREFUSED);
	close_scene(&scene);
}

/* The caller's own deadline is 5 s. */
static void check_detour(enum attack attack, bool is_nobody)
{
	struct scene scene = { .attack = attack,
			       .is_nobody = is_nobody,
			       .may_call = true };
	uint64_t start;

	open_scene(&scene);
	start = rig_milliseconds();
	rig_connect(&scene.rig, &scene.its);
	print_message("connected after %llu ms\n",
		      (unsigned long long)(rig_milliseconds() - start));
	check_message(&scene);
	close_scene(&scene);
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
		cmocka_unit_test(holder_of_the_name_does_not_prevent_tcp),
		cmocka_unit_test(stranger_with_the_name_does_not_prevent_tcp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

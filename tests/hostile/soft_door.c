/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/credentials.h"
#include "provider/soft/soft.h"

/*
 * Peers that send fds over the Unix socket where there are to be none: to use up the
 * fds of the process, or to block it when it closes them.
 */

static const struct rig_options stepped = { .stepped = 1 };

enum {
	LINGER_SECONDS = 4
};

/* The engine's thread may still be closing some. */
static void expect_fds(int expected)
{
	uint64_t deadline = rig_milliseconds() + RIG_DEADLINE_MS;

	while (rig_count_fds() != expected && rig_milliseconds() < deadline)
		;
	assert_int_equal(rig_count_fds(), expected);
}

/* Each byte of a hello with two fds, for which a buffer for one has room. */
static void fds_with_a_hello_are_refused(void **state)
{
	struct fake fake;
	struct rig rig;
	int socket, before;

	(void)state;
	rig_open(&rig, NULL);
	fake_make(&fake, &rig);
	before = rig_count_fds();
	socket = fake_dial(&rig);
	for (int i = 0; i < SOFT_HELLO_SIZE; i++) {
		if (peer_send(socket, "p", 1, STDIN_FILENO, 2) < 0)
			break;
	}
	assert_true(fake_hangs_up(socket));
	close(socket);
	expect_fds(before);
	rig_close(&rig);
}

static void send_proof(const struct fake *fake, int socket, const uint8_t *transcript,
		       int count)
{
	uint8_t proof[SOFT_PROOF_SIZE];
	struct soft_address its;

	assert_int_equal(pier_soft_unpack_address(fake->to_rig.blob,
						  fake->to_rig.blob_length, &its),
			 0);
	pier_soft_prove(its.secret, SOFT_CALLER_PROVES, transcript, proof);
	pier_soft_prove(fake->address.secret, SOFT_CALLER_IDENTITY, transcript,
			proof + SOFT_MAC_SIZE);
	peer_send(socket, proof, sizeof(proof), STDIN_FILENO, count);
}

/* A proof has one fd at most. */
static void fds_with_a_proof_are_refused(void **state)
{
	const int counts[] = { 2, 3, PEER_MAX_FDS };

	(void)state;
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		uint8_t transcript[SOFT_MAC_SIZE];
		struct fake fake;
		struct rig rig;
		int socket, before;

		rig_open(&rig, NULL);
		fake_make(&fake, &rig);
		before = rig_count_fds();
		socket = fake_dial(&rig);
		fake_say_hello(&fake, socket, transcript);
		send_proof(&fake, socket, transcript, counts[i]);
		assert_true(fake_hangs_up(socket));
		close(socket);
		expect_fds(before);
		rig_close(&rig);
	}
}

/* An fd that is no shared memory is closed, and the link does without. */
static void foreign_fd_with_a_proof_is_closed(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE], welcome[SOFT_WELCOME_SIZE];
	struct fake fake;
	struct rig rig;
	int socket, before;

	(void)state;
	rig_open(&rig, NULL);
	fake_make(&fake, &rig);
	before = rig_count_fds();
	socket = fake_dial(&rig);
	fake_say_hello(&fake, socket, transcript);
	send_proof(&fake, socket, transcript, 1);
	rig_read_all(socket, welcome, sizeof(welcome));
	/* Ours, and the one that waits for the queue pair. */
	expect_fds(before + 2);
	close(socket);
	rig_close(&rig);
}

/* One fd with each byte of a proof that does not hold. */
static void fds_with_a_false_proof_do_not_pile_up(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE];
	struct fake fake;
	struct rig rig;
	int socket, before;

	(void)state;
	rig_open(&rig, NULL);
	fake_make(&fake, &rig);
	before = rig_count_fds();
	socket = fake_dial(&rig);
	fake_say_hello(&fake, socket, transcript);
	for (int i = 0; i < SOFT_PROOF_SIZE; i++) {
		if (peer_send(socket, "p", 1, STDIN_FILENO, 1) < 0)
			break;
	}
	assert_true(fake_hangs_up(socket));
	close(socket);
	expect_fds(before);
	rig_close(&rig);
}

/* More fds than a leave has pieces, with words of a peer that knows the secret. */
static void fds_with_words_do_not_pile_up(void **state)
{
	const uint8_t wake[] = { 1 }, leave[40] = { 5, 255 };
	const struct {
		const void *bytes;
		size_t length;
	} words[] = {
		{ wake, 1 }, { leave, sizeof(leave) }, { leave, 30 }, { leave, 1 }
	};

	(void)state;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		int before = rig_count_fds();
		struct rig a, b;

		rig_open_pair(&a, &b, &stepped);
		assert_int_equal(rig_post_recv(&b, 11, 0, 8), 0);
		for (int k = 0; k < 3; k++)
			peer_send(peer_qp(&a)->link.tx_fd, words[i].bytes,
				  words[i].length, STDIN_FILENO, PEER_MAX_FDS);
		rig_expect(&b, b.recv_cq, NULL, 11, IBV_WC_WR_FLUSH_ERR);
		rig_close(&a);
		rig_close(&b);
		assert_int_equal(rig_count_fds(), before);
	}
}

struct flood {
	int socket;
	atomic_bool over;
};

static void *send_asks(void *argument)
{
	struct flood *flood = argument;
	uint64_t end = rig_milliseconds() + 3000;
	static uint8_t asks[1 << 20];

	for (size_t i = 0; i < sizeof(asks); i += 8)
		asks[i] = 2;
	while (!atomic_load(&flood->over) && rig_milliseconds() < end)
		send(flood->socket, asks, sizeof(asks), MSG_NOSIGNAL | MSG_DONTWAIT);
	return NULL;
}

/* A peer that never stops talking does not keep the engine from the others. */
static void endless_words_do_not_stop_the_engine(void **state)
{
	struct flood flood;
	pthread_t thread;
	uint64_t start, longest = 0;
	struct rig a, b;

	(void)state;
	rig_open_pair(&a, &b, &stepped);
	flood.socket = peer_qp(&a)->link.tx_fd;
	atomic_init(&flood.over, false);
	assert_int_equal(pthread_create(&thread, NULL, send_asks, &flood), 0);
	for (uint64_t end = rig_milliseconds() + 1000; rig_milliseconds() < end;) {
		start = rig_milliseconds();
		rig_step(&b, NULL);
		if (rig_milliseconds() - start > longest)
			longest = rig_milliseconds() - start;
	}
	atomic_store(&flood.over, true);
	pthread_join(thread, NULL);
	assert_in_range(longest, 0, 1000);
	rig_close(&a);
	rig_close(&b);
}

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

/* Another user, which need not even be let in: the fds are closed with its connection. */
static void stranger_body(const struct rig *rig, int ready, bool lingers)
{
	int door, sent, listener = -1;
	char byte;

	peer_become_nobody();
	door = fake_dial(rig);
	sent = lingers ? make_lingering_socket(&listener) : STDIN_FILENO;
	/* The last copy of the socket is the one that takes long to close. */
	for (int i = 0; i < (lingers ? 1 : SOFT_HELLO_SIZE); i++)
		peer_send(door, "p", 1, sent, lingers ? 1 : 2);
	if (lingers)
		close(sent);
	rig_write_all(ready, "r", 1);
	/* The listener is there until the parent has seen enough. */
	rig_read_all(ready, &byte, 1);
	_exit(0);
}

static void check_stranger(bool lingers)
{
	int before, sockets[2], status;
	uint64_t start;
	struct rig rig;
	pid_t child;
	char byte;

	rig_open(&rig, &stepped);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	before = rig_count_fds();
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		stranger_body(&rig, sockets[1], lingers);
	rig_read_all(sockets[0], &byte, 1);
	start = rig_milliseconds();
	fake_step(&rig);
	assert_in_range(rig_milliseconds() - start, 0, 1000 * LINGER_SECONDS / 2);
	assert_in_range(rig_count_fds(), before, before + 1);
	rig_write_all(sockets[0], "x", 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(sockets[0]);
	close(sockets[1]);
	rig_close(&rig);
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

/* Connects as often as it can, says nothing, and comes again when it is turned away. */
static void crowd_body(const struct rig *rig, int ready)
{
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(&soft_context(rig->context)->gid, &name);
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
			rig_write_all(ready, "r", 1);
		poll(doors, CROWD, 10);
	}
}

/* A caller that knows the secret gets through before its own deadline, of 5 seconds. */
static void crowd_only_delays_a_caller(void **state)
{
	int sockets[2], door;
	struct fake fake;
	uint64_t start;
	struct rig rig;
	pid_t child;
	char byte;

	(void)state;
	rig_open(&rig, NULL);
	fake_make(&fake, &rig);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		crowd_body(&rig, sockets[1]);
	rig_read_all(sockets[0], &byte, 1);
	start = rig_milliseconds();
	for (int i = 0; i < 3; i++) {
		door = fake_call(&fake, &rig);
		close(door);
	}
	print_message("three calls through the crowd: %llu ms\n",
		      (unsigned long long)(rig_milliseconds() - start));
	assert_in_range(rig_milliseconds() - start, 0, 3 * 5000);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(sockets[0]);
	close(sockets[1]);
	rig_close(&rig);
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
		cmocka_unit_test(fds_with_a_hello_are_refused),
		cmocka_unit_test(fds_with_a_proof_are_refused),
		cmocka_unit_test(foreign_fd_with_a_proof_is_closed),
		cmocka_unit_test(fds_with_a_false_proof_do_not_pile_up),
		cmocka_unit_test(fds_with_words_do_not_pile_up),
		cmocka_unit_test(endless_words_do_not_stop_the_engine),
		cmocka_unit_test(crowd_only_delays_a_caller),
		cmocka_unit_test(stranger_leaves_no_fds_with_root),
		cmocka_unit_test(stranger_cannot_block_root_with_a_lingering_socket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

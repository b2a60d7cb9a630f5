/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/regions/segments.h"

/* Settings of the machine or the process under which soft0 must not be killed. */

static void connect_fixture(struct soft_fixture *fixture, int socket,
			    struct fixture_endpoint *ret_its)
{
	const struct fixture_options options = { .timeout = FIXTURE_IMPATIENT };
	struct fixture_endpoint mine;

	fixture_open(fixture, &options);
	fixture_describe(fixture, &mine);
	fixture_exchange(socket, &mine, ret_its);
	fixture_connect(fixture, ret_its);
}

/* A link between two processes, and one WRITE over it. */
static enum ibv_wc_status connect_and_write(int socket)
{
	struct fixture_endpoint its;
	struct ibv_wc completion;
	struct soft_fixture fixture;

	connect_fixture(&fixture, socket, &its);
	if (fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 64, &its, 0,
			 IBV_SEND_SIGNALED) != 0)
		return IBV_WC_GENERAL_ERR;
	completion = fixture_wait(&fixture, fixture.send_cq, NULL);
	fixture_close(&fixture);
	return completion.status;
}

static void peer_body(int socket)
{
	struct fixture_endpoint its;
	struct soft_fixture fixture;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	connect_fixture(&fixture, socket, &its);
	for (;;)
		pause();
}

/* The first link makes files of 129 KiB (TCP) or 516 KiB (the same host). */
static void limited_body(int socket)
{
	const struct rlimit limit = { 32 << 10, 32 << 10 };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
		_exit(99);
	/* SIGXFSZ would end the process here. */
	_exit((int)connect_and_write(socket));
}

static int run_with_file_size_limit(void)
{
	int sockets[2], status;
	pid_t peer, limited;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	peer = fork();
	assert_true(peer >= 0);
	if (peer == 0)
		peer_body(sockets[0]);
	limited = fork();
	assert_true(limited >= 0);
	if (limited == 0)
		limited_body(sockets[1]);
	assert_int_equal(waitpid(limited, &status, 0), limited);
	kill(peer, SIGKILL);
	assert_int_equal(waitpid(peer, NULL, 0), peer);
	close(sockets[0]);
	close(sockets[1]);
	return status;
}

static void file_size_limit_fails_a_tcp_link(void **state)
{
	int status;

	(void)state;
	setenv("PIER_SOFT_UNIX", "off", 1);
	setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	status = run_with_file_size_limit();
	unsetenv("PIER_SOFT_UNIX");
	unsetenv("PIER_SOFT_ADDRESS");
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), IBV_WC_RETRY_EXC_ERR);
}

static void file_size_limit_leaves_a_link_of_the_host(void **state)
{
	int status;

	(void)state;
	status = run_with_file_size_limit();
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), IBV_WC_SUCCESS);
}

/* In a mount namespace of its own, where the file reads as under strict overcommit. */
static void strict_overcommit_body(void)
{
	FILE *setting;
	int fd;

	if (unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("hostile", "/tmp", "tmpfs", 0, NULL) < 0)
		_exit(1);
	setting = fopen("/tmp/strict", "we");
	if (!setting || fputs("2\n", setting) < 0 || fclose(setting) != 0 ||
	    mount("/tmp/strict", "/proc/sys/vm/overcommit_memory", NULL, MS_BIND, NULL) <
		    0)
		_exit(1);
	fd = peer_memfd(SOFT_SHARED_MEMORY_SIZE, 0, SOFT_FINAL_SEALS);
	if (pier_soft_create_shared_memory() || pier_soft_adopt_shared_memory(fd))
		_exit(2);
	_exit(0);
}

/* A peer could punch holes into shared memory, which then may be a SIGBUS. */
static void strict_overcommit_shares_no_memory(void **state)
{
	int status;
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (child == 0)
		strict_overcommit_body();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 1) {
		puts("skip: no mounts in a namespace of its own");
		skip();
	}
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(file_size_limit_fails_a_tcp_link),
		cmocka_unit_test(file_size_limit_leaves_a_link_of_the_host),
		cmocka_unit_test(strict_overcommit_shares_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

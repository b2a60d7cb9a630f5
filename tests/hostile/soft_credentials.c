/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/socket.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/soft.h"

/*
 * Processes that know the secret, but could not take an fd of the owner out of /proc:
 * they get none, and no addresses of host memory either.
 */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	SIZE = 65536,
	FINAL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	BOTH = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
};

static void be_plain(void)
{
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = { .version =
							   _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

	if (syscall(SYS_capset, &header, none) < 0)
		_exit(99);
}

static void enter_user_namespace(void)
{
	if (unshare(CLONE_NEWUSER) < 0)
		_exit(98);
}

static void be_undumpable(void)
{
	assert_int_equal(prctl(PR_SET_DUMPABLE, 0), 0);
}

static void be_dumpable(void)
{
	assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
}

static void attacker_body(int socket, void (*change)(void))
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	change();
	fixture_open(&fixture, NULL);
	fixture_describe(&fixture, &mine);
	fixture_exchange(socket, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_read_all(socket, &its.rkey, sizeof(its.rkey));
	its.address = 0;
	for (int i = 0; i < 5; i++) {
		if (fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, SIZE, &its, 0,
				 IBV_SEND_SIGNALED) ||
		    fixture_wait(&fixture, fixture.send_cq, NULL).status !=
			    IBV_WC_SUCCESS)
			_exit(97);
	}
	fixture_write_all(socket, "d", 1);
	fixture_read_all(socket, &its.rkey, 1);
	fixture_close(&fixture);
	_exit(0);
}

/* Whether the region is host memory. */
static bool by_address;

/* What happens to the owner once the link is made. */
static void (*change_later)(void) = be_plain;

/* Whether the owner gives a grant to a process that was changed so. */
static bool gives_fd_to(void (*change)(void), bool in_new_pid_namespace)
{
	int file = peer_memfd(SIZE, 0, FINAL), sockets[2], status;
	const struct soft_fifo *fifo;
	struct fixture_endpoint mine, its;
	struct soft_fixture owner;
	struct ibv_mr *mr;
	bool given;
	pid_t child;
	char done;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = in_new_pid_namespace ? (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD,
						      NULL, NULL, NULL, NULL)
				     : fork();
	assert_true(child >= 0);
	if (child == 0)
		attacker_body(sockets[1], change);
	close(sockets[1]);
	fixture_open(&owner, NULL);
	mr = by_address ? soft->reg_mr(owner.pd, owner.memory, SIZE, 0, BOTH)
			: soft->reg_dmabuf_mr(owner.pd, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	fixture_describe(&owner, &mine);
	fixture_exchange(sockets[0], &mine, &its);
	fixture_connect(&owner, &its);
	change_later();
	fixture_write_all(sockets[0], &mr->rkey, sizeof(mr->rkey));
	fixture_read_all(sockets[0], &done, 1);
	pier_soft_lock(&soft_context(owner.context)->engine);
	fifo = peer_qp(&owner)->link.fifo;
	given = fifo && fifo->given[0].mr;
	pier_soft_unlock(&soft_context(owner.context)->engine);
	fixture_write_all(sockets[0], "x", 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&owner);
	close(sockets[0]);
	close(file);
	return given;
}

static void process_of_the_same_kind_gets_fds(void **state)
{
	(void)state;
	assert_true(gives_fd_to(be_plain, false));
}

static void other_user_gets_no_fd(void **state)
{
	(void)state;
	if (!peer_is_root())
		skip();
	assert_false(gives_fd_to(peer_become_nobody, false));
}

static void process_with_fewer_capabilities_gets_no_fd(void **state)
{
	(void)state;
	if (!peer_is_root())
		skip();
	assert_false(gives_fd_to(drop_capabilities, false));
}

static void process_of_another_namespace_gets_no_fd(void **state)
{
	(void)state;
	if (!peer_is_root())
		skip();
	assert_false(gives_fd_to(be_plain, true));
	assert_false(gives_fd_to(enter_user_namespace, false));
}

static void undumpable_process_gives_no_fd(void **state)
{
	bool given;

	(void)state;
	be_undumpable();
	given = gives_fd_to(be_dumpable, false);
	be_dumpable();
	assert_false(given);
}

static void process_that_becomes_undumpable_gives_no_fd(void **state)
{
	bool given;

	(void)state;
	change_later = be_undumpable;
	given = gives_fd_to(be_plain, false);
	change_later = be_plain;
	be_dumpable();
	assert_false(given);
}

/* Connects from a user namespace, leaves the connection to a child, and exits. */
static void leave_connection_body(const struct sockaddr_un *name, socklen_t length)
{
	int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pid_t holder;

	if (unshare(CLONE_NEWUSER) < 0 ||
	    connect(connection, (const struct sockaddr *)name, length) < 0)
		_exit(1);
	holder = fork();
	if (holder == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		for (;;)
			pause();
	}
	_exit(holder < 0);
}

/* Process 1 of a pid namespace: what it forked ends with it. */
static void reused_pid_body(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t length = sizeof(name.sun_family); /* the kernel finds a name */
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fd, status;
	struct clone_args again = { .exit_signal = SIGCHLD, .set_tid_size = 1 };
	pid_t attacker, other;

	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("proc", "/proc", "proc", 0, NULL) < 0 ||
	    bind(listener, (struct sockaddr *)&name, length) < 0)
		_exit(1);
	length = sizeof(name);
	if (getsockname(listener, (struct sockaddr *)&name, &length) < 0 ||
	    listen(listener, 1) < 0)
		_exit(1);
	attacker = fork();
	if (attacker == 0)
		leave_connection_body(&name, length);
	fd = accept(listener, NULL, NULL);
	if (waitpid(attacker, &status, 0) != attacker || status != 0)
		_exit(1);
	again.set_tid = (uintptr_t)&attacker;
	other = (pid_t)syscall(SYS_clone3, &again, sizeof(again));
	if (other == 0)
		for (;;)
			pause();
	if (other != attacker)
		_exit(1);
	_exit(pier_soft_may_have_fds(fd) ? 2 : 0);
}

/* asm-generic/socket.h */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static bool kernel_has_peer_pidfd(void)
{
	int sockets[2], pidfd = -1;
	socklen_t size = sizeof(pidfd);

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	getsockopt(sockets[0], SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size);
	close(sockets[0]);
	close(sockets[1]);
	if (pidfd >= 0)
		close(pidfd);
	return pidfd >= 0;
}

static void process_with_a_reused_pid_gets_no_fd(void **state)
{
	pid_t child;
	int status;

	(void)state;
	if (!peer_is_root())
		skip();
	if (!kernel_has_peer_pidfd()) {
		puts("skip: no SO_PEERPIDFD (Linux 6.5)");
		skip();
	}
	child = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, NULL,
			       NULL, NULL, NULL);
	assert_true(child >= 0);
	if (child == 0)
		reused_pid_body();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int use_addresses(void **state)
{
	(void)state;
	by_address = true;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(process_of_the_same_kind_gets_fds),
		cmocka_unit_test(other_user_gets_no_fd),
		cmocka_unit_test(process_with_fewer_capabilities_gets_no_fd),
		cmocka_unit_test(process_of_another_namespace_gets_no_fd),
		cmocka_unit_test(undumpable_process_gives_no_fd),
		cmocka_unit_test(process_that_becomes_undumpable_gives_no_fd),
		cmocka_unit_test(process_with_a_reused_pid_gets_no_fd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) +
	       cmocka_run_group_tests_name("by address", tests, use_addresses, NULL);
}

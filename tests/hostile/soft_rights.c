/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/control.h"
#include "provider/soft/link/credentials.h"
#include "provider/soft/link/ring.h"
#include "provider/soft/soft.h"

/*
 * An initiator on the same host that asks for the memory of keys which give it less than
 * that. An fd that it gets is opened again for writing, and written to where no region
 * ever was.
 */

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct rig_options stepped = { .stepped = 1 };

enum {
	SIZE = 65536,
	FINAL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	BOTH = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
};

/* The fd that the owner sends for a key; -1: none. */
static int ask(struct rig *attacker, struct rig *owner, uint32_t key)
{
	uint8_t word[SOFT_MAX_CONTROL];
	int fd;

	assert_true(pier_soft_send_grant_request(peer_qp(attacker), key));
	for (int i = 0; i < 20; i++)
		rig_step(owner, NULL);
	assert_true(peer_receive(peer_qp(attacker)->link.rx_fd, word, sizeof(word), &fd) >
		    0);
	return fd;
}

/* What an attacker does with an fd, however it was opened. */
static bool can_write_outside(int fd, uint64_t offset)
{
	char path[32], byte = 'x';
	int again;
	bool written;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again < 0)
		return false;
	written = pwrite(again, &byte, 1, (off_t)offset) == 1;
	close(again);
	return written;
}

static void expect_no_fd(struct rig *attacker, struct rig *owner, uint32_t key, int file,
			 uint64_t outside)
{
	int fd = ask(attacker, owner, key);
	char byte = 0;

	if (fd >= 0) {
		print_message("an fd came; outside of the key's rights it can%s write\n",
			      can_write_outside(fd, outside) ? "" : "not");
		close(fd);
	}
	assert_int_equal(pread(file, &byte, 1, (off_t)outside), 1);
	assert_int_equal(byte, 0);
	assert_int_equal(fd, -1);
}

static void expect_region_without_fd(uint64_t offset, uint64_t length, int access,
				     int seals, uint64_t outside)
{
	int file = peer_memfd(SIZE, 0, seals), before = rig_count_fds();
	struct rig attacker, owner;
	struct ibv_mr *mr;

	rig_open_pair(&attacker, &owner, &stepped);
	mr = soft->reg_dmabuf_mr(owner.pd, offset, length, offset, file, access);
	assert_non_null(mr);
	expect_no_fd(&attacker, &owner, mr->rkey, file, outside);
	assert_int_equal(soft->dereg_mr(mr), 0);
	rig_close(&attacker);
	rig_close(&owner);
	assert_int_equal(rig_count_fds(), before);
	close(file);
}

static void key_with_one_right_gives_no_fd(void **state)
{
	(void)state;
	expect_region_without_fd(0, SIZE, IBV_ACCESS_REMOTE_READ, FINAL, 0);
	expect_region_without_fd(
		0, SIZE, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE, FINAL, 0);
	expect_region_without_fd(0, SIZE, IBV_ACCESS_LOCAL_WRITE, FINAL, 0);
}

static void key_of_a_part_gives_no_fd(void **state)
{
	(void)state;
	expect_region_without_fd(0, SIZE - 1, BOTH, FINAL, SIZE - 1);
	expect_region_without_fd(0, 4096, BOTH, FINAL, 4096);
	expect_region_without_fd(4096, SIZE - 4096, BOTH, FINAL, 0);
	expect_region_without_fd(0, 4096, IBV_ACCESS_REMOTE_READ, FINAL, 4096);
}

/* The owner could make the file longer, and the rest is nobody else's. */
static void key_of_a_growing_file_gives_no_fd(void **state)
{
	(void)state;
	expect_region_without_fd(0, SIZE, BOTH, F_SEAL_SHRINK, 0);
	expect_region_without_fd(0, SIZE, BOTH, F_SEAL_SHRINK | F_SEAL_SEAL, 0);
	/* Without the last seal the peer could add one against the owner's writes. */
	expect_region_without_fd(0, SIZE, BOTH, F_SEAL_SHRINK | F_SEAL_GROW, 0);
}

static void queue_pair_with_one_right_gives_no_fd(void **state)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	int file = peer_memfd(SIZE, 0, FINAL);
	struct rig attacker, owner;
	struct ibv_mr *mr;

	(void)state;
	rig_open_pair(&attacker, &owner, &stepped);
	mr = soft->reg_dmabuf_mr(owner.pd, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	assert_int_equal(soft->modify_qp(owner.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	expect_no_fd(&attacker, &owner, mr->rkey, file, 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	rig_close(&attacker);
	rig_close(&owner);
	close(file);
}

/* Keys that are not this queue pair's: of another domain, of a window, of nothing. */
static void key_of_something_else_gives_no_fd(void **state)
{
	int file = peer_memfd(SIZE, 0, FINAL);
	struct rig attacker, owner;
	struct ibv_pd *other;
	struct ibv_mr *mr;
	struct ibv_mw *mw;

	(void)state;
	rig_open_pair(&attacker, &owner, &stepped);
	other = soft->alloc_pd(owner.context);
	assert_non_null(other);
	mr = soft->reg_dmabuf_mr(other, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	mw = soft->alloc_mw(owner.pd, IBV_MW_TYPE_2);
	assert_non_null(mw);
	expect_no_fd(&attacker, &owner, mr->rkey, file, 0);
	expect_no_fd(&attacker, &owner, mw->rkey, file, 0);
	expect_no_fd(&attacker, &owner, 0xabcdef01, file, 0);
	assert_int_equal(soft->dealloc_mw(mw), 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	assert_int_equal(soft->dealloc_pd(other), 0);
	rig_close(&attacker);
	rig_close(&owner);
	close(file);
}

/* The peer's fd has flags of its own: the application's stay as they are. */
static void key_of_a_whole_file_gives_its_fd(void **state)
{
	int file = peer_memfd(SIZE, 0, FINAL), fd;
	struct rig attacker, owner;
	struct ibv_mr *mr;

	(void)state;
	rig_open_pair(&attacker, &owner, &stepped);
	mr = soft->reg_dmabuf_mr(owner.pd, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	fd = ask(&attacker, &owner, mr->rkey);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_SETFL, O_APPEND), 0);
	assert_int_equal(fcntl(file, F_GETFL) & O_APPEND, 0);
	assert_int_equal(lseek(fd, 100, SEEK_SET), 100);
	assert_int_equal(lseek(file, 0, SEEK_CUR), 0);
	close(fd);
	assert_int_equal(soft->dereg_mr(mr), 0);
	rig_close(&attacker);
	rig_close(&owner);
	close(file);
}

/* Processes that could not take the fd out of /proc, though they know the secret. */

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
	struct rig_endpoint mine, its;
	struct rig rig;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	change();
	rig_open(&rig, NULL);
	rig_describe(&rig, &mine);
	rig_exchange(socket, &mine, &its);
	rig_connect(&rig, &its);
	rig_read_all(socket, &its.rkey, sizeof(its.rkey));
	its.address = 0;
	for (int i = 0; i < 5; i++) {
		if (rig_post(&rig, IBV_WR_RDMA_WRITE, 1, 0, SIZE, &its, 0,
			     IBV_SEND_SIGNALED) ||
		    rig_wait(&rig, rig.send_cq, NULL).status != IBV_WC_SUCCESS)
			_exit(97);
	}
	rig_write_all(socket, "d", 1);
	rig_read_all(socket, &its.rkey, 1);
	rig_close(&rig);
	_exit(0);
}

/* What happens to the owner once the link is made. */
static void (*change_later)(void) = be_plain;

/* Whether the owner gave a leave to a process that was changed so. */
static bool gives_fd_to(void (*change)(void), bool in_new_pid_namespace)
{
	int file = peer_memfd(SIZE, 0, FINAL), sockets[2], status;
	const struct soft_ring *ring;
	struct rig_endpoint mine, its;
	struct rig owner;
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
	rig_open(&owner, NULL);
	mr = soft->reg_dmabuf_mr(owner.pd, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	rig_describe(&owner, &mine);
	rig_exchange(sockets[0], &mine, &its);
	rig_connect(&owner, &its);
	change_later();
	rig_write_all(sockets[0], &mr->rkey, sizeof(mr->rkey));
	rig_read_all(sockets[0], &done, 1);
	pier_soft_lock(soft_context(owner.context));
	ring = peer_qp(&owner)->link.ring;
	given = ring && ring->given[0].mr;
	pier_soft_unlock(soft_context(owner.context));
	rig_write_all(sockets[0], "x", 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	rig_close(&owner);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(key_with_one_right_gives_no_fd),
		cmocka_unit_test(key_of_a_part_gives_no_fd),
		cmocka_unit_test(key_of_a_growing_file_gives_no_fd),
		cmocka_unit_test(queue_pair_with_one_right_gives_no_fd),
		cmocka_unit_test(key_of_something_else_gives_no_fd),
		cmocka_unit_test(key_of_a_whole_file_gives_its_fd),
		cmocka_unit_test(process_of_the_same_kind_gets_fds),
		cmocka_unit_test(other_user_gets_no_fd),
		cmocka_unit_test(process_with_fewer_capabilities_gets_no_fd),
		cmocka_unit_test(process_of_another_namespace_gets_no_fd),
		cmocka_unit_test(undumpable_process_gives_no_fd),
		cmocka_unit_test(process_that_becomes_undumpable_gives_no_fd),
		cmocka_unit_test(process_with_a_reused_pid_gets_no_fd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

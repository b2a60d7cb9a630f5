/* SPDX-License-Identifier: BSD-3-Clause */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_fixture.h"

/* A child is the other end. It is forked before any device is opened. */
struct child {
	pid_t pid;
	int fd;
};

static struct child fork_child(void (*body)(int fd))
{
	struct child child;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (child.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		body(fds[1]);
		_exit(0);
	}
	close(fds[1]);
	child.fd = fds[0];
	return child;
}

static void join_child(const struct child *child, bool killed)
{
	int status;

	close(child->fd);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	if (killed)
		assert_true(WIFSIGNALED(status));
	else
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Connect, and then only wait for the last message. */
static void passive_body(int fd)
{
	struct rig rig;
	struct rig_endpoint mine, its;
	char last;

	rig_open(&rig, NULL);
	memset(rig.memory, 'p', RIG_MEMORY);
	rig_describe(&rig, &mine);
	rig_exchange(fd, &mine, &its);
	rig_connect(&rig, &its);
	rig_write_all(fd, "r", 1);
	rig_read_all(fd, &last, 1);
	rig_close(&rig);
}

static void deregister_body(int fd)
{
	struct rig_endpoint mine, its;
	struct rig rig;
	char word;

	rig_open(&rig, NULL);
	rig_describe(&rig, &mine);
	rig_exchange(fd, &mine, &its);
	rig_connect(&rig, &its);
	rig_write_all(fd, "r", 1);
	rig_read_all(fd, &word, 1);
	assert_int_equal(pier_soft_provider.dereg_mr(rig.mr), 0);
	memset(rig.memory, 0, RIG_MEMORY);
	rig.mr = NULL;
	rig_read_all(fd, &word, 1);
	/* The bytes behind it were not written. */
	for (int i = 0; i < RIG_MEMORY; i++)
		assert_int_equal(rig.memory[i], 0);
	rig_close(&rig);
}

static void connect_to(struct rig *rig, const struct rig_options *options,
		       const struct child *child, struct rig_endpoint *ret_peer)
{
	struct rig_endpoint mine;
	char ready;

	rig_open(rig, options);
	rig_describe(rig, &mine);
	rig_exchange(child->fd, &mine, ret_peer);
	rig_connect(rig, ret_peer);
	rig_read_all(child->fd, &ready, 1);
}

static void check_write_and_read(void)
{
	struct child child = fork_child(passive_body);
	struct rig_endpoint peer;
	struct rig rig;

	connect_to(&rig, NULL, &child, &peer);
	memset(rig.memory, 'w', 4096);
	assert_int_equal(rig_post(&rig, IBV_WR_RDMA_WRITE, 1, 0, 1000, &peer, 100,
				  IBV_SEND_SIGNALED),
			 0);
	rig_expect(&rig, rig.send_cq, NULL, 1, IBV_WC_SUCCESS);
	/* The guard bytes on both sides come back with it. */
	assert_int_equal(rig_post(&rig, IBV_WR_RDMA_READ, 2, 8192, 1002, &peer, 99,
				  IBV_SEND_SIGNALED),
			 0);
	rig_expect(&rig, rig.send_cq, NULL, 2, IBV_WC_SUCCESS);
	assert_int_equal(rig.memory[8192], 'p');
	assert_memory_equal(rig.memory + 8193, rig.memory, 1000);
	assert_int_equal(rig.memory[8192 + 1001], 'p');
	assert_int_equal(rig.memory[8192 + 1002], 0);
	rig_write_all(child.fd, "x", 1);
	join_child(&child, false);
	rig_close(&rig);
}

static void connects_by_unix_socket(void **state)
{
	(void)state;
	check_write_and_read();
}

static void connects_by_tcp(void **state)
{
	(void)state;
	setenv("PIER_SOFT_UNIX", "off", 1);
	setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	check_write_and_read();
	unsetenv("PIER_SOFT_UNIX");
	unsetenv("PIER_SOFT_ADDRESS");
}

static void detects_a_killed_peer(void **state)
{
	struct child child = fork_child(passive_body);
	struct rig_endpoint peer;
	struct rig rig;

	(void)state;
	connect_to(&rig, NULL, &child, &peer);
	assert_int_equal(rig_post_recv(&rig, 7, 0, 100), 0);
	kill(child.pid, SIGKILL);
	rig_expect(&rig, rig.recv_cq, NULL, 7, IBV_WC_WR_FLUSH_ERR);
	join_child(&child, true);
	rig_close(&rig);
}

static void detects_a_stopped_peer(void **state)
{
	const struct rig_options impatient = { .timeout = RIG_IMPATIENT };
	struct child child = fork_child(passive_body);
	struct rig_endpoint peer;
	struct rig rig;
	int status;

	(void)state;
	connect_to(&rig, &impatient, &child, &peer);
	kill(child.pid, SIGSTOP);
	assert_int_equal(waitpid(child.pid, &status, WUNTRACED), child.pid);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(rig_post(&rig, IBV_WR_RDMA_WRITE, 1, 0, 8, &peer, 0, 0), 0);
	assert_int_equal(rig_post(&rig, IBV_WR_RDMA_WRITE, 2, 0, 8, &peer, 0, 0), 0);
	rig_expect(&rig, rig.send_cq, NULL, 1, IBV_WC_RETRY_EXC_ERR);
	rig_expect(&rig, rig.send_cq, NULL, 2, IBV_WC_WR_FLUSH_ERR);
	kill(child.pid, SIGKILL);
	join_child(&child, true);
	rig_close(&rig);
}

/* Larger than sockets hold, from both sides at once. */
enum {
	LARGE = 8 << 20
};

static void exchange_large(int fd)
{
	const struct pier_provider *soft = &pier_soft_provider;
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	char *memory = aligned_alloc(4096, 2 * LARGE), word;
	struct rig_endpoint mine, its;
	struct ibv_send_wr *bad, wr = { .num_sge = 1,
					.opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = LARGE };
	struct ibv_mr *mr;
	struct rig rig;

	assert_non_null(memory);
	rig_open(&rig, NULL);
	mr = soft->reg_mr(rig.pd, memory, 2 * LARGE, (uintptr_t)memory, access);
	assert_non_null(mr);
	memset(memory, 'L', LARGE);
	rig_describe(&rig, &mine);
	mine.rkey = mr->rkey;
	mine.address = (uintptr_t)memory;
	rig_exchange(fd, &mine, &its);
	rig_connect(&rig, &its);
	rig_write_all(fd, "r", 1);
	rig_read_all(fd, &word, 1);
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = its.address + LARGE;
	wr.wr.rdma.rkey = its.rkey;
	for (int i = 0; i < 4; i++)
		assert_int_equal(ibv_post_send(rig.qp, &wr, &bad), 0);
	for (int i = 0; i < 4; i++)
		rig_expect(&rig, rig.send_cq, NULL, 0, IBV_WC_SUCCESS);
	rig_write_all(fd, "d", 1);
	rig_read_all(fd, &word, 1);
	assert_memory_equal(memory, memory + LARGE, LARGE);
	assert_int_equal(soft->dereg_mr(mr), 0);
	rig_close(&rig);
	free(memory);
}

static void moves_large_data_both_ways(void **state)
{
	struct child child = fork_child(exchange_large);

	(void)state;
	exchange_large(child.fd);
	join_child(&child, false);
}

/* The region is deregistered in the middle of a stream of writes into it. */
static void deregistration_stops_writes(void **state)
{
	struct child child = fork_child(deregister_body);
	struct rig_endpoint peer;
	struct ibv_wc wc;
	struct rig rig;
	int posted = 0;

	(void)state;
	connect_to(&rig, NULL, &child, &peer);
	rig_write_all(child.fd, "d", 1);
	do {
		assert_int_equal(rig_post(&rig, IBV_WR_RDMA_WRITE, posted++, 0,
					  RIG_MEMORY, &peer, 0, IBV_SEND_SIGNALED),
				 0);
		wc = rig_wait(&rig, rig.send_cq, NULL);
	} while (wc.status == IBV_WC_SUCCESS);
	assert_int_equal(wc.status, IBV_WC_REM_ACCESS_ERR);
	rig_write_all(child.fd, "x", 1);
	join_child(&child, false);
	rig_close(&rig);
}

static void reports_a_missing_peer(void **state)
{
	const struct rig_options impatient = { .timeout = RIG_IMPATIENT };
	struct child child = fork_child(passive_body);
	struct rig_endpoint mine, peer;
	struct rig rig;

	(void)state;
	rig_open(&rig, &impatient);
	rig_describe(&rig, &mine);
	rig_exchange(child.fd, &mine, &peer);
	kill(child.pid, SIGKILL);
	join_child(&child, true);
	assert_int_equal(
		pier_soft_provider.set_qp_address(rig.qp, peer.blob, peer.blob_length),
		0);
	assert_int_equal(rig_to_init(&rig), 0);
	/*
	 * The calling end gets the error at once, the other one with its first request.
	 */
	if (memcmp(&mine.gid, &peer.gid, sizeof(mine.gid)) < 0) {
		assert_int_not_equal(rig_to_rtr(&rig, &peer), 0);
		assert_int_equal(rig.qp->state, IBV_QPS_INIT);
	} else {
		assert_int_equal(rig_to_rtr(&rig, &peer), 0);
		assert_int_equal(rig_to_rts(&rig), 0);
		assert_int_equal(rig_post(&rig, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0), 0);
		rig_expect(&rig, rig.send_cq, NULL, 1, IBV_WC_RETRY_EXC_ERR);
	}
	rig_close(&rig);
}

static void leaves_no_fd_open(void **state)
{
	int before = rig_count_fds();

	check_write_and_read();
	assert_int_equal(rig_count_fds(), before);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connects_by_unix_socket),
		cmocka_unit_test(connects_by_tcp),
		cmocka_unit_test(detects_a_killed_peer),
		cmocka_unit_test(detects_a_stopped_peer),
		cmocka_unit_test(moves_large_data_both_ways),
		cmocka_unit_test(deregistration_stops_writes),
		cmocka_unit_test(reports_a_missing_peer),
		cmocka_unit_test(leaves_no_fd_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

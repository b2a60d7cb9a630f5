/* SPDX-License-Identifier: BSD-3-Clause */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/link/crypto.h"
#include "provider/soft/link/seal.h"
#include "soft_fixture.h"

/* What the two ends offer, as if they were on other hosts. 0: what this one has. */
static uint8_t our_ciphers, its_ciphers;
static enum soft_cipher sealed_with;

uint8_t __real_pier_soft_offered_ciphers(void);
uint8_t __wrap_pier_soft_offered_ciphers(void);
struct soft_seal *__real_pier_soft_create_seal(const struct soft_session *session,
					       bool caller);
struct soft_seal *__wrap_pier_soft_create_seal(const struct soft_session *session,
					       bool caller);

uint8_t __wrap_pier_soft_offered_ciphers(void)
{
	return our_ciphers ? our_ciphers : __real_pier_soft_offered_ciphers();
}

struct soft_seal *__wrap_pier_soft_create_seal(const struct soft_session *session,
					       bool caller)
{
	sealed_with = session->cipher;
	return __real_pier_soft_create_seal(session, caller);
}

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
	struct soft_fixture fixture;
	struct fixture_endpoint mine, its;
	char last;

	our_ciphers = its_ciphers;
	fixture_open(&fixture, NULL);
	memset(fixture.memory, 'p', FIXTURE_MEMORY);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_write_all(fd, "r", 1);
	fixture_read_all(fd, &last, 1);
	fixture_close(&fixture);
}

static void deregister_body(int fd)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	char word;

	fixture_open(&fixture, NULL);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_write_all(fd, "r", 1);
	fixture_read_all(fd, &word, 1);
	assert_int_equal(pier_soft_provider.dereg_mr(fixture.mr), 0);
	memset(fixture.memory, 0, FIXTURE_MEMORY);
	fixture.mr = NULL;
	fixture_read_all(fd, &word, 1);
	/* The bytes behind it were not written. */
	for (int i = 0; i < FIXTURE_MEMORY; i++)
		assert_int_equal(fixture.memory[i], 0);
	fixture_close(&fixture);
}

static void connect_to(struct soft_fixture *fixture,
		       const struct fixture_options *options, const struct child *child,
		       struct fixture_endpoint *ret_peer)
{
	struct fixture_endpoint mine;
	char ready;

	fixture_open(fixture, options);
	fixture_describe(fixture, &mine);
	fixture_exchange(child->fd, &mine, ret_peer);
	fixture_connect(fixture, ret_peer);
	fixture_read_all(child->fd, &ready, 1);
}

static void check_write_and_read(void)
{
	struct child child = fork_child(passive_body);
	struct fixture_endpoint peer;
	struct soft_fixture fixture;

	connect_to(&fixture, NULL, &child, &peer);
	memset(fixture.memory, 'w', 4096);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 1000, &peer, 100,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_SUCCESS);
	/* The guard bytes on both sides come back with it. */
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_READ, 2, 8192, 1002, &peer,
				      99, IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 2, IBV_WC_SUCCESS);
	assert_int_equal(fixture.memory[8192], 'p');
	assert_memory_equal(fixture.memory + 8193, fixture.memory, 1000);
	assert_int_equal(fixture.memory[8192 + 1001], 'p');
	assert_int_equal(fixture.memory[8192 + 1002], 0);
	fixture_write_all(child.fd, "x", 1);
	join_child(&child, false);
	fixture_close(&fixture);
}

static void connects_by_unix_socket(void **state)
{
	(void)state;
	check_write_and_read();
}

static void check_ciphers(uint8_t ours, uint8_t its, enum soft_cipher expected)
{
	our_ciphers = ours;
	its_ciphers = its;
	check_write_and_read();
	our_ciphers = its_ciphers = 0;
	assert_int_equal(sealed_with, expected);
}

static void connects_by_a_cipher_that_both_have(void **state)
{
	const uint8_t fast = SOFT_AES_FAST | SOFT_CHACHA20 | SOFT_AES;
	const uint8_t slow = SOFT_CHACHA20 | SOFT_AES;

	(void)state;
	setenv("PIER_SOFT_UNIX", "off", 1);
	setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	check_ciphers(fast, fast, SOFT_AES_FAST);
	check_ciphers(fast, slow, SOFT_CHACHA20);
	check_ciphers(slow, fast, SOFT_CHACHA20);
	check_ciphers(slow, SOFT_AES, SOFT_AES);
	check_ciphers(SOFT_AES, fast, SOFT_AES);
	unsetenv("PIER_SOFT_UNIX");
	unsetenv("PIER_SOFT_ADDRESS");
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
	struct fixture_endpoint peer;
	struct soft_fixture fixture;

	(void)state;
	connect_to(&fixture, NULL, &child, &peer);
	assert_int_equal(fixture_post_recv(&fixture, 7, 0, 100), 0);
	kill(child.pid, SIGKILL);
	fixture_expect(&fixture, fixture.recv_cq, NULL, 7, IBV_WC_WR_FLUSH_ERR);
	join_child(&child, true);
	fixture_close(&fixture);
}

static void detects_a_stopped_peer(void **state)
{
	const struct fixture_options impatient = { .timeout = FIXTURE_IMPATIENT };
	struct child child = fork_child(passive_body);
	struct fixture_endpoint peer;
	struct soft_fixture fixture;
	int status;

	(void)state;
	connect_to(&fixture, &impatient, &child, &peer);
	kill(child.pid, SIGSTOP);
	assert_int_equal(waitpid(child.pid, &status, WUNTRACED), child.pid);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 8, &peer, 0, 0),
			 0);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 2, 0, 8, &peer, 0, 0),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_RETRY_EXC_ERR);
	fixture_expect(&fixture, fixture.send_cq, NULL, 2, IBV_WC_WR_FLUSH_ERR);
	kill(child.pid, SIGKILL);
	join_child(&child, true);
	fixture_close(&fixture);
}

/* Larger than sockets hold, from both sides at once. */
enum {
	LARGE = 8 << 20
};

static void exchange_large(int fd)
{
	const struct pier_provider *soft = &pier_soft_provider;
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	char *memory = aligned_alloc(FIXTURE_PAGE, 2 * LARGE), word;
	struct fixture_endpoint mine, its;
	struct ibv_send_wr *bad, wr = { .num_sge = 1,
					.opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = LARGE };
	struct ibv_mr *mr;
	struct soft_fixture fixture;

	assert_non_null(memory);
	fixture_open(&fixture, NULL);
	mr = soft->reg_mr(fixture.pd, memory, 2 * LARGE, (uintptr_t)memory, access);
	assert_non_null(mr);
	memset(memory, 'L', LARGE);
	fixture_describe(&fixture, &mine);
	mine.rkey = mr->rkey;
	mine.address = (uintptr_t)memory;
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_write_all(fd, "r", 1);
	fixture_read_all(fd, &word, 1);
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = its.address + LARGE;
	wr.wr.rdma.rkey = its.rkey;
	for (int i = 0; i < 4; i++)
		assert_int_equal(ibv_post_send(fixture.qp, &wr, &bad), 0);
	for (int i = 0; i < 4; i++)
		fixture_expect(&fixture, fixture.send_cq, NULL, 0, IBV_WC_SUCCESS);
	fixture_write_all(fd, "d", 1);
	fixture_read_all(fd, &word, 1);
	assert_memory_equal(memory, memory + LARGE, LARGE);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&fixture);
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
	struct fixture_endpoint peer;
	struct ibv_wc wc;
	struct soft_fixture fixture;
	int posted = 0;

	(void)state;
	connect_to(&fixture, NULL, &child, &peer);
	fixture_write_all(child.fd, "d", 1);
	do {
		assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, posted++, 0,
					      FIXTURE_MEMORY, &peer, 0,
					      IBV_SEND_SIGNALED),
				 0);
		wc = fixture_wait(&fixture, fixture.send_cq, NULL);
	} while (wc.status == IBV_WC_SUCCESS);
	assert_int_equal(wc.status, IBV_WC_REM_ACCESS_ERR);
	fixture_write_all(child.fd, "x", 1);
	join_child(&child, false);
	fixture_close(&fixture);
}

static void reports_a_missing_peer(void **state)
{
	const struct fixture_options impatient = { .timeout = FIXTURE_IMPATIENT };
	struct child child = fork_child(passive_body);
	struct fixture_endpoint mine, peer;
	struct soft_fixture fixture;
	struct ibv_wc wc;

	(void)state;
	fixture_open(&fixture, &impatient);
	fixture_describe(&fixture, &mine);
	fixture_exchange(child.fd, &mine, &peer);
	kill(child.pid, SIGKILL);
	join_child(&child, true);
	assert_int_equal(pier_soft_provider.set_qp_address(fixture.qp, peer.blob,
							   peer.blob_length),
			 0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	/*
	 * The calling end gets the error at once, the other one with its first request:
	 * it is flushed if the end of the peer's stream was noticed before.
	 */
	if (memcmp(&mine.gid, &peer.gid, sizeof(mine.gid)) < 0) {
		assert_int_not_equal(fixture_to_rtr(&fixture, &peer), 0);
		assert_int_equal(fixture.qp->state, IBV_QPS_INIT);
	} else {
		assert_int_equal(fixture_to_rtr(&fixture, &peer), 0);
		assert_int_equal(fixture_to_rts(&fixture), 0);
		assert_int_equal(fixture_post(&fixture, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0),
				 0);
		wc = fixture_wait(&fixture, fixture.send_cq, NULL);
		assert_int_equal(wc.wr_id, 1);
		if (wc.status != IBV_WC_WR_FLUSH_ERR)
			assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
	}
	fixture_close(&fixture);
}

static void leaves_no_fd_open(void **state)
{
	int before = fixture_count_fds();

	check_write_and_read();
	assert_int_equal(fixture_count_fds(), before);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connects_by_unix_socket),
		cmocka_unit_test(connects_by_tcp),
		cmocka_unit_test(connects_by_a_cipher_that_both_have),
		cmocka_unit_test(detects_a_killed_peer),
		cmocka_unit_test(detects_a_stopped_peer),
		cmocka_unit_test(moves_large_data_both_ways),
		cmocka_unit_test(deregistration_stops_writes),
		cmocka_unit_test(reports_a_missing_peer),
		cmocka_unit_test(leaves_no_fd_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

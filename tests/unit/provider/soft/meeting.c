/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/connect/call.h"
#include "provider/soft/connect/connect.h"
#include "provider/soft/connect/node.h"
#include "provider/soft/engine.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

/* Contexts whose queue pairs know nothing of each other but GID and QPN. */

static const struct fixture_options meets = { .meets = 1 };
static char folder[64];

static int make_folder(void **state)
{
	const char *parent = getenv("TMPDIR");

	(void)state;
	snprintf(folder, sizeof(folder), "%s/meet-XXXXXX", parent ? parent : "/tmp");
	assert_non_null(mkdtemp(folder));
	return setenv("XDG_RUNTIME_DIR", folder, 1);
}

static int remove_folder(void **state)
{
	char path[96];

	(void)state;
	snprintf(path, sizeof(path), "%s/pier-soft0/key", folder);
	assert_int_equal(unlink(path), 0);
	*strrchr(path, '/') = 0;
	/* Fails if a socket is left in it. */
	assert_int_equal(rmdir(path), 0);
	return rmdir(folder);
}

/* Like Mooncake: through RESET first, which drops what came before. */
static void go_to_rts(struct soft_fixture *fixture, const struct fixture_endpoint *peer)
{
	assert_int_equal(fixture_to(fixture, IBV_QPS_RESET), 0);
	fixture_connect(fixture, peer);
}

static void expect_write(struct soft_fixture *from, const struct fixture_endpoint *to,
			 uint64_t wr_id, enum ibv_wc_status status)
{
	assert_int_equal(fixture_post(from, IBV_WR_RDMA_WRITE, wr_id, 0, 1000, to, 2000,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(from, from->send_cq, NULL, wr_id, status);
}

static void two_contexts_of_a_process_meet(void **state)
{
	struct soft_fixture a, b;
	struct fixture_endpoint to_a, to_b;

	(void)state;
	fixture_open_pair(&a, &b, &meets);
	fixture_describe(&a, &to_a);
	fixture_describe(&b, &to_b);
	memset(a.memory, 'a', 1000);
	expect_write(&a, &to_b, 1, IBV_WC_SUCCESS);
	assert_memory_equal(b.memory + 2000, a.memory, 1000);
	expect_write(&b, &to_a, 2, IBV_WC_SUCCESS);
	fixture_close(&a);
	fixture_close(&b);
}

static uint8_t child_timeout; /* for the next child; 0: the fixture's */

/* 'r': the child goes to RTS; 'w': it writes; 'f': it writes, which has to fail. */
static void serve(int fd)
{
	const struct fixture_options options = { .meets = 1, .timeout = child_timeout };
	struct soft_fixture fixture;
	struct fixture_endpoint mine, its;
	char word;

	fixture_open(&fixture, &options);
	memset(fixture.memory, 'c', 1000);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	for (fixture_read_all(fd, &word, 1); word != 'x';
	     fixture_read_all(fd, &word, 1)) {
		if (word == 'r')
			go_to_rts(&fixture, &its);
		else
			expect_write(&fixture, &its, 9,
				     word == 'w' ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR);
		fixture_write_all(fd, "k", 1);
	}
	fixture_close(&fixture);
}

static pid_t fork_server(int *ret_fd)
{
	int fds[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		serve(fds[1]);
		_exit(0);
	}
	close(fds[1]);
	*ret_fd = fds[0];
	return child;
}

static void tell(int fd, const char *word)
{
	char answer;

	fixture_write_all(fd, word, 1);
	fixture_read_all(fd, &answer, 1);
}

static void end_server(pid_t child, int fd)
{
	int status;

	fixture_write_all(fd, "x", 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(fd);
}

/*
 * Each word is a step: we or the child go to RTS, or write. Names are random, so each
 * order runs with either end as the lower one.
 */
static void run_steps(const char *steps)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	pid_t child;
	int fd;

	child = fork_server(&fd);
	fixture_open(&fixture, &meets);
	memset(fixture.memory, 'p', 1000);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	for (; *steps; steps++) {
		if (*steps == 'R')
			go_to_rts(&fixture, &its);
		else if (*steps == 'W')
			expect_write(&fixture, &its, 1, IBV_WC_SUCCESS);
		else
			tell(fd, (const char[]){ *steps, 0 });
	}
	end_server(child, fd);
	fixture_close(&fixture);
}

static void either_end_may_be_first(void **state)
{
	(void)state;
	for (int i = 0; i < 6; i++)
		run_steps(i % 2 ? "RrWw" : "rRwW");
}

static void an_end_may_be_reset_before_use(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++) {
		run_steps("RrrWw");
		run_steps("rRrwW");
		run_steps("RrRRrwW");
	}
}

static void both_ends_may_start_anew(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++)
		run_steps(i % 2 ? "RrWwrRwWRrWw" : "RrWwRrwWrRWw");
}

/*
 * Any order of resets at both ends. They can write when both are in RTS and neither has
 * exchanged anything since, or both have with each other.
 */
static void make_steps(struct test_random *random, char *ret_steps, int count)
{
	bool up[2] = { false, false }, used[2] = { false, false };

	for (int i = 0; i < count; i++) {
		int end = (int)test_random_below(random, 2);

		if (up[0] && up[1] && used[0] == used[1] &&
		    test_random_below(random, 2) == 0) {
			used[0] = used[1] = true;
			*ret_steps++ = end ? 'W' : 'w';
		} else {
			up[end] = true;
			used[end] = false;
			*ret_steps++ = end ? 'R' : 'r';
		}
	}
	*ret_steps = 0;
}

static void any_order_of_resets_connects(void **state)
{
	struct test_random random = test_random_start();
	char steps[41];

	(void)state;
	for (int i = 0; i < 20; i++) {
		make_steps(&random, steps, sizeof(steps) - 1);
		if (i % 2)
			setenv("PIER_SOFT_UNIX", "off", 1);
		setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
		run_steps(steps);
		unsetenv("PIER_SOFT_UNIX");
		unsetenv("PIER_SOFT_ADDRESS");
	}
}

/* Its numbers would not fit: as on hardware the new peer gets no answer. */
static void a_used_end_takes_no_new_peer(void **state)
{
	(void)state;
	child_timeout = FIXTURE_IMPATIENT;
	run_steps("RrWwrfRrWw");
	child_timeout = 0;
}

/* Both call before either knows of the other's call, and one of the two calls counts. */
static int barrier_fd = -1;
int __real_pier_soft_call(struct soft_connection *connection,
			  const struct ibv_qp_attr *attr,
			  struct soft_early_stream *ret_stream);
int __wrap_pier_soft_call(struct soft_connection *connection,
			  const struct ibv_qp_attr *attr,
			  struct soft_early_stream *ret_stream);

static void wait_at_barrier(int fd)
{
	char word;

	if (fd < 0)
		return;
	fixture_write_all(fd, "b", 1);
	fixture_read_all(fd, &word, 1);
}

/* The lower end has called. Its listener gets the peer's call before it adopts its own.
 */
static int crossing_fd = -1;
static bool is_lower;
static _Atomic bool holds_listener;
static sem_t listener_held;

static int call_in_turn(struct soft_connection *connection,
			const struct ibv_qp_attr *attr,
			struct soft_early_stream *ret_stream)
{
	is_lower = pier_soft_precedes_peer(connection, &attr->ah_attr.grh.dgid,
					   attr->dest_qp_num);
	wait_at_barrier(crossing_fd); /* neither knows of the other's call */
	if (!is_lower)
		wait_at_barrier(crossing_fd); /* the lower end's call is there */
	return __real_pier_soft_call(connection, attr, ret_stream);
}

int __real_pier_soft_connect(struct soft_connection *connection,
			     const struct ibv_qp_attr *attr);
int __wrap_pier_soft_connect(struct soft_connection *connection,
			     const struct ibv_qp_attr *attr);

int __wrap_pier_soft_connect(struct soft_connection *connection,
			     const struct ibv_qp_attr *attr)
{
	int error = __real_pier_soft_connect(connection, attr);

	if (crossing_fd >= 0 && is_lower)
		holds_listener = true;
	wait_at_barrier(crossing_fd);
	if (crossing_fd >= 0 && is_lower)
		sem_wait(&listener_held);
	return error;
}

/* After the listener has answered the peer's call, and before it keeps the stream. */
void __real_pier_soft_tune_stream(int fd);
void __wrap_pier_soft_tune_stream(int fd);

void __wrap_pier_soft_tune_stream(int fd)
{
	if (holds_listener) {
		holds_listener = false;
		wait_at_barrier(crossing_fd); /* the peer has kept one of the two */
		sem_post(&listener_held);
	}
	__real_pier_soft_tune_stream(fd);
}

int __wrap_pier_soft_call(struct soft_connection *connection,
			  const struct ibv_qp_attr *attr,
			  struct soft_early_stream *ret_stream)
{
	int error;

	if (crossing_fd >= 0)
		return call_in_turn(connection, attr, ret_stream);
	wait_at_barrier(barrier_fd);
	error = __real_pier_soft_call(connection, attr, ret_stream);
	wait_at_barrier(barrier_fd);
	return error;
}

static void both_ends_may_call_at_once(void **state)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	int fd, barrier[2];
	pid_t child;
	char word;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, barrier), 0);
	barrier_fd = barrier[0];
	child = fork_server(&fd);
	barrier_fd = barrier[1];
	fixture_open(&fixture, &meets);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	for (int i = 0; i < 20; i++) {
		fixture_write_all(fd, "r", 1);
		go_to_rts(&fixture, &its);
		if (i % 2)
			expect_write(&fixture, &its, 1, IBV_WC_SUCCESS);
		fixture_read_all(fd, &word, 1);
		tell(fd, "w");
		expect_write(&fixture, &its, 2, IBV_WC_SUCCESS);
	}
	end_server(child, fd);
	fixture_close(&fixture);
	barrier_fd = -1;
	close(barrier[0]);
	close(barrier[1]);
}

/* Names are random, so either end is the lower one. */
static void calls_that_cross_leave_one_stream(void **state)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	int fd, barrier[2];
	pid_t child;
	char word;

	(void)state;
	assert_int_equal(sem_init(&listener_held, 0, 0), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, barrier), 0);
	crossing_fd = barrier[0];
	child = fork_server(&fd);
	crossing_fd = barrier[1];
	fixture_open(&fixture, &meets);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	for (int i = 0; i < 5; i++) {
		fixture_write_all(fd, "r", 1);
		go_to_rts(&fixture, &its);
		fixture_read_all(fd, &word, 1);
		expect_write(&fixture, &its, 1, IBV_WC_SUCCESS);
		tell(fd, "w");
	}
	end_server(child, fd);
	fixture_close(&fixture);
	crossing_fd = -1;
	close(barrier[0]);
	close(barrier[1]);
	sem_destroy(&listener_held);
}

static void steps_by_tcp_need_only_the_gid(void **state)
{
	(void)state;
	setenv("PIER_SOFT_UNIX", "off", 1);
	setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	for (int i = 0; i < 4; i++) {
		run_steps("RrWwRrWw");
		run_steps("rRwWrRrwW");
	}
	unsetenv("PIER_SOFT_UNIX");
	unsetenv("PIER_SOFT_ADDRESS");
}

/* Posted before the child is in RTR; it arrives when the child is. */
static void a_send_waits_for_the_peer(void **state)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	pid_t child;
	int fd;

	(void)state;
	child = fork_server(&fd);
	fixture_open(&fixture, &meets);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	go_to_rts(&fixture, &its);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 1000, &its, 0,
				      IBV_SEND_SIGNALED),
			 0);
	tell(fd, "r");
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_SUCCESS);
	end_server(child, fd);
	fixture_close(&fixture);
}

/*
 * While a thread starts, the AddressSanitizer of GCC 12 holds locks of its allocator. It
 * does not free them in a child that is forked then, whose threads may wait for ever.
 */
static void await_started_thread(struct soft_fixture *fixture)
{
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;
	struct soft_context *context = soft_context(fixture->context);
	bool sleeps = false;

	while (!sleeps) {
		assert_true(fixture_milliseconds() < deadline);
		pier_soft_lock(&context->engine);
		sleeps = context->engine.blocking;
		pier_soft_unlock(&context->engine);
	}
}

/* The child has copies of the sockets of a device that is not its own. */
static void a_child_meets_its_parent(void **state)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	pid_t child;
	int fd;

	(void)state;
#ifdef __SANITIZE_THREAD__
	print_message("skip: a forked child cannot start threads under "
		      "ThreadSanitizer\n");
	skip();
#endif
	for (int i = 0; i < 2; i++) {
		fixture_open(&fixture, &meets);
		fixture_describe(&fixture, &mine);
		await_started_thread(&fixture);
		child = fork_server(&fd);
		fixture_exchange(fd, &mine, &its);
		assert_memory_not_equal(&mine.gid, &its.gid, sizeof(mine.gid));
		if (i == 0)
			go_to_rts(&fixture, &its);
		tell(fd, "r");
		if (i == 1)
			go_to_rts(&fixture, &its);
		expect_write(&fixture, &its, 1, IBV_WC_SUCCESS);
		tell(fd, "w");
		end_server(child, fd);
		fixture_close(&fixture);
	}
}

static void a_peer_that_never_comes_times_out(void **state)
{
	const struct fixture_options impatient = { .meets = 1,
						   .timeout = FIXTURE_IMPATIENT };
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	pid_t child;
	int fd;

	(void)state;
	child = fork_server(&fd);
	fixture_open(&fixture, &impatient);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	go_to_rts(&fixture, &its);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 8, &its, 0, 0),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_RETRY_EXC_ERR);
	end_server(child, fd);
	fixture_close(&fixture);
}

/* Of the child, whose queue pair we ask for. */
static void another_key_is_an_error(void **state)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	char command[192], key[96];
	pid_t child;
	int fd;

	(void)state;
	snprintf(key, sizeof(key), "%s/other", folder);
	snprintf(command, sizeof(command), "umask 077; head -c 32 /dev/zero >%s", key);
	assert_int_equal(system(command), 0);
	setenv("PIER_SOFT_KEY", key, 1);
	child = fork_server(&fd);
	unsetenv("PIER_SOFT_KEY");
	fixture_open(&fixture, &meets);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(fixture_to_rtr(&fixture, &its), EKEYREJECTED);
	test_assert_sentence("has another key");
	end_server(child, fd);
	fixture_close(&fixture);
	assert_int_equal(unlink(key), 0);
}

static void expect_refused_gid(const uint8_t *address, uint16_t port, int error,
			       const char *sentence)
{
	struct fixture_endpoint peer = {
		.gid.raw = { 0xfd, 0, 'p', 'i', 'e', 'r', 1, 1 },
		.qpn = 2,
	};
	uint16_t wire = htobe16(port);
	struct soft_fixture fixture;

	memcpy(peer.gid.raw + 8, address, 4);
	memcpy(peer.gid.raw + 12, &wire, 2);
	fixture_open(&fixture, &meets);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(fixture_to_rtr(&fixture, &peer), error);
	test_assert_sentence(sentence);
	fixture_close(&fixture);
}

/* A GID may come from a stranger, who wants this process to call somebody. */
static void an_address_in_a_gid_is_not_trusted(void **state)
{
	(void)state;
	expect_refused_gid((const uint8_t[]){ 192, 0, 2, 1 }, 2000, EHOSTUNREACH,
			   "does not use TCP");
	setenv("PIER_SOFT_PEERS", "192.0.2.0/24", 1);
	expect_refused_gid((const uint8_t[]){ 198, 51, 100, 1 }, 2000, EACCES,
			   "PIER_SOFT_PEERS");
	expect_refused_gid((const uint8_t[]){ 192, 0, 2, 1 }, 22, EACCES,
			   "ports below 1024");
	expect_refused_gid((const uint8_t[]){ 0, 0, 0, 0 }, 2000, EINVAL,
			   "nobody can have");
	expect_refused_gid((const uint8_t[]){ 224, 0, 0, 1 }, 2000, EINVAL,
			   "nobody can have");
	expect_refused_gid((const uint8_t[]){ 192, 0, 2, 1 }, 0, EINVAL,
			   "nobody can have");
	unsetenv("PIER_SOFT_PEERS");
}

/* As on hardware: receives stay, and a request fails after the ack timeout. */
static void a_peer_that_is_gone_shows_by_timeouts(void **state)
{
	const struct fixture_options quick = { .meets = 1, .timeout = 14 };
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	pid_t child;
	int fd;

	(void)state;
	child = fork_server(&fd);
	fixture_open(&fixture, &quick);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	go_to_rts(&fixture, &its);
	tell(fd, "r");
	expect_write(&fixture, &its, 1, IBV_WC_SUCCESS);
	assert_int_equal(fixture_post_recv(&fixture, 7, 0, 100), 0);
	end_server(child, fd);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 2, 0, 8, &its, 0, 0),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 2, IBV_WC_RETRY_EXC_ERR);
	fixture_expect(&fixture, fixture.recv_cq, NULL, 7, IBV_WC_WR_FLUSH_ERR);
	fixture_close(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_contexts_of_a_process_meet),
		cmocka_unit_test(either_end_may_be_first),
		cmocka_unit_test(an_end_may_be_reset_before_use),
		cmocka_unit_test(both_ends_may_start_anew),
		cmocka_unit_test(any_order_of_resets_connects),
		cmocka_unit_test(a_used_end_takes_no_new_peer),
		cmocka_unit_test(both_ends_may_call_at_once),
		cmocka_unit_test(calls_that_cross_leave_one_stream),
		cmocka_unit_test(steps_by_tcp_need_only_the_gid),
		cmocka_unit_test(a_child_meets_its_parent),
		cmocka_unit_test(a_send_waits_for_the_peer),
		cmocka_unit_test(a_peer_that_never_comes_times_out),
		cmocka_unit_test(an_address_in_a_gid_is_not_trusted),
		cmocka_unit_test(another_key_is_an_error),
		cmocka_unit_test(a_peer_that_is_gone_shows_by_timeouts),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

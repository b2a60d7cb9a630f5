/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_fixture.h"
#include "tests/support/cmocka.h"

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
			 uint64_t wr_id)
{
	assert_int_equal(fixture_post(from, IBV_WR_RDMA_WRITE, wr_id, 0, 1000, to, 2000,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(from, from->send_cq, NULL, wr_id, IBV_WC_SUCCESS);
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
	expect_write(&a, &to_b, 1);
	assert_memory_equal(b.memory + 2000, a.memory, 1000);
	expect_write(&b, &to_a, 2);
	fixture_close(&a);
	fixture_close(&b);
}

/* The child goes to RTS, and again whenever it is told to. */
static void serve(int fd)
{
	struct soft_fixture fixture;
	struct fixture_endpoint mine, its;
	char word;

	fixture_open(&fixture, &meets);
	memset(fixture.memory, 'c', 1000);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	for (fixture_read_all(fd, &word, 1); word != 'x';
	     fixture_read_all(fd, &word, 1)) {
		if (word == 'r')
			go_to_rts(&fixture, &its);
		else
			expect_write(&fixture, &its, 9);
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
			expect_write(&fixture, &its, 1);
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

/* Both call at once, and one of the two calls counts. */
static void both_ends_may_call_at_once(void **state)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	char word;
	pid_t child;
	int fd;

	(void)state;
	child = fork_server(&fd);
	fixture_open(&fixture, &meets);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	for (int i = 0; i < 50; i++) {
		fixture_write_all(fd, "r", 1);
		go_to_rts(&fixture, &its);
		if (i % 2)
			expect_write(&fixture, &its, 1);
		fixture_read_all(fd, &word, 1);
		tell(fd, "w");
		expect_write(&fixture, &its, 2);
	}
	end_server(child, fd);
	fixture_close(&fixture);
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
	expect_write(&fixture, &its, 1);
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
		cmocka_unit_test(both_ends_may_call_at_once),
		cmocka_unit_test(steps_by_tcp_need_only_the_gid),
		cmocka_unit_test(a_send_waits_for_the_peer),
		cmocka_unit_test(a_peer_that_never_comes_times_out),
		cmocka_unit_test(another_key_is_an_error),
		cmocka_unit_test(a_peer_that_is_gone_shows_by_timeouts),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

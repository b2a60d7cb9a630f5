/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/soft.h"
#include "soft_fixture.h"

/* Connecting to another process under adverse conditions. */

enum {
	CALLERS = 300
};

struct caller {
	struct rig rig;
	struct rig_endpoint peer;
	int result;
};

/* The lower name calls. Names are random, so it takes a few tries. */
static void open_as(struct rig *rig, bool caller, const union ibv_gid *gid)
{
	struct ibv_gid_entry mine;

	for (;;) {
		rig_open(rig, NULL);
		assert_int_equal(pier_soft_provider.query_gid(rig->context, 1, 0, &mine),
				 0);
		if ((memcmp(&mine.gid, gid, sizeof(*gid)) < 0) == caller)
			return;
		rig_close(rig);
	}
}

/* More queue pairs beside the first one; all share the other objects of `base`. */
static void open_more(struct caller *callers, const struct rig *base)
{
	for (int i = 0; i < CALLERS; i++) {
		callers[i].rig = *base;
		if (i > 0)
			rig_create_qp(&callers[i].rig);
	}
}

static void exchange_all(int fd, struct caller *callers)
{
	struct rig_endpoint mine;

	for (int i = 0; i < CALLERS; i++) {
		rig_describe(&callers[i].rig, &mine);
		rig_exchange(fd, &mine, &callers[i].peer);
	}
}

static void close_all(struct caller *callers)
{
	for (int i = 1; i < CALLERS; i++)
		assert_int_equal(pier_soft_provider.destroy_qp(callers[i].rig.qp), 0);
	rig_close(&callers[0].rig);
	free(callers);
}

static void *run_caller(void *argument)
{
	struct caller *caller = argument;
	const struct rig_endpoint *peer = &caller->peer;

	caller->result = pier_soft_provider.set_qp_address(caller->rig.qp, peer->blob,
							   peer->blob_length);
	if (!caller->result)
		caller->result = rig_to_init(&caller->rig);
	if (!caller->result)
		caller->result = rig_to_rtr(&caller->rig, peer);
	return NULL;
}

static void crowd_body(int fd)
{
	struct caller *callers = calloc(CALLERS, sizeof(*callers));
	pthread_t threads[CALLERS];
	union ibv_gid gid;
	struct rig base;

	rig_read_all(fd, &gid, sizeof(gid));
	open_as(&base, true, &gid);
	open_more(callers, &base);
	exchange_all(fd, callers);
	for (int i = 0; i < CALLERS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, run_caller, &callers[i]), 0);
	for (int i = 0; i < CALLERS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < CALLERS; i++)
		assert_int_equal(callers[i].result, 0);
	rig_write_all(fd, "x", 1);
	close_all(callers);
}

static void join(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t fork_child(void (*body)(int fd), int *ret_fd)
{
	int fds[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		body(fds[1]);
		_exit(0);
	}
	close(fds[1]);
	*ret_fd = fds[0];
	return child;
}

static void send_gid(const struct rig *rig, int fd)
{
	struct rig_endpoint mine;

	rig_describe(rig, &mine);
	rig_write_all(fd, &mine.gid, sizeof(mine.gid));
}

/* More callers at once than the listener has places; none is turned away. */
static void accepts_many_peers_at_once(void **state)
{
	struct caller *callers = calloc(CALLERS, sizeof(*callers));
	struct rig base;
	pid_t child;
	char word;
	int fd;

	(void)state;
	child = fork_child(crowd_body, &fd);
	rig_open(&base, NULL);
	send_gid(&base, fd);
	open_more(callers, &base);
	exchange_all(fd, callers);
	for (int i = 0; i < CALLERS; i++) {
		run_caller(&callers[i]);
		assert_int_equal(callers[i].result, 0);
	}
	rig_read_all(fd, &word, 1);
	join(child);
	close_all(callers);
	close(fd);
}

/* A process of another user; root and that user must be able to connect. */
static void other_user_body(int fd)
{
	struct rig_endpoint mine, its;
	union ibv_gid gid;
	struct rig rig;
	char calls;

	assert_int_equal(seteuid(65534), 0);
	rig_read_all(fd, &gid, sizeof(gid));
	rig_read_all(fd, &calls, 1);
	open_as(&rig, calls == 'y', &gid);
	rig_describe(&rig, &mine);
	rig_exchange(fd, &mine, &its);
	rig_connect(&rig, &its);
	rig_write_all(fd, "r", 1);
	rig_read_all(fd, &calls, 1);
	rig_close(&rig);
}

static void check_other_user(const char *calls)
{
	struct rig_endpoint mine, its;
	struct rig rig;
	pid_t child;
	char word;
	int fd;

	child = fork_child(other_user_body, &fd);
	rig_open(&rig, NULL);
	send_gid(&rig, fd);
	rig_write_all(fd, calls, 1);
	rig_describe(&rig, &mine);
	rig_exchange(fd, &mine, &its);
	rig_connect(&rig, &its);
	rig_read_all(fd, &word, 1);
	assert_int_equal(
		rig_post(&rig, IBV_WR_RDMA_WRITE, 1, 0, 8, &its, 0, IBV_SEND_SIGNALED),
		0);
	rig_expect(&rig, rig.send_cq, NULL, 1, IBV_WC_SUCCESS);
	assert_non_null(((struct soft_qp *)rig.qp)->link.seal);
	rig_write_all(fd, "x", 1);
	join(child);
	rig_close(&rig);
	close(fd);
}

/* As with `sudo pier cp FILE user@localhost:`, whichever of the two calls. */
static void connects_root_and_another_user(void **state)
{
	(void)state;
	if (geteuid() != 0) {
		print_message("skipped: not root, so only one user to be\n");
		skip();
	}
	setenv("PIER_SOFT_ADDRESS", "none", 1);
	check_other_user("y");
	check_other_user("n");
	unsetenv("PIER_SOFT_ADDRESS");
}

static void check_any_address(const char *any)
{
	struct rig_endpoint endpoint;
	struct rig rig;

	setenv("PIER_SOFT_ADDRESS", any, 1);
	rig_open(&rig, NULL);
	rig_describe(&rig, &endpoint);
	assert_int_equal(pier_soft_provider.set_qp_address(rig.qp, endpoint.blob,
							   endpoint.blob_length),
			 0);
	assert_true(soft_context(rig.context)->listeners.port > 0);
	for (uint32_t i = 0; i < soft_context(rig.context)->listeners.count; i++)
		assert_int_not_equal(
			soft_context(rig.context)->listeners.addresses[i].s6_addr32[3],
			0);
	rig_close(&rig);
	unsetenv("PIER_SOFT_ADDRESS");
}

/* A wildcard address is not one that a peer could call. */
static void refuses_a_wildcard_address(void **state)
{
	(void)state;
	check_any_address("::");
	check_any_address("0.0.0.0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(accepts_many_peers_at_once),
		cmocka_unit_test(connects_root_and_another_user),
		cmocka_unit_test(refuses_a_wildcard_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

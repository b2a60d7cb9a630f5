/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

/* Connecting to another process under adverse conditions. */

enum {
	CALLERS = 300
};

struct caller {
	struct soft_fixture fixture;
	struct fixture_endpoint peer;
	int result;
};

/* The lower name calls. Names are random, so it takes a few tries. */
static void open_as(struct soft_fixture *fixture, bool caller, const union ibv_gid *gid)
{
	struct ibv_gid_entry mine;

	for (;;) {
		fixture_open(fixture, NULL);
		assert_int_equal(
			pier_soft_provider.query_gid(fixture->context, 1, 0, &mine), 0);
		if ((memcmp(&mine.gid, gid, sizeof(*gid)) < 0) == caller)
			return;
		fixture_close(fixture);
	}
}

/* More queue pairs beside the first one; all share the other objects of `base`. */
static void open_more(struct caller *callers, const struct soft_fixture *base)
{
	for (int i = 0; i < CALLERS; i++) {
		callers[i].fixture = *base;
		if (i > 0)
			fixture_create_qp(&callers[i].fixture);
	}
}

static void exchange_all(int fd, struct caller *callers)
{
	struct fixture_endpoint mine;

	for (int i = 0; i < CALLERS; i++) {
		fixture_describe(&callers[i].fixture, &mine);
		fixture_exchange(fd, &mine, &callers[i].peer);
	}
}

static void close_all(struct caller *callers)
{
	for (int i = 1; i < CALLERS; i++)
		assert_int_equal(pier_soft_provider.destroy_qp(callers[i].fixture.qp), 0);
	fixture_close(&callers[0].fixture);
	free(callers);
}

static void *run_caller(void *argument)
{
	struct caller *caller = argument;
	const struct fixture_endpoint *peer = &caller->peer;

	caller->result = pier_soft_provider.set_qp_address(caller->fixture.qp, peer->blob,
							   peer->blob_length);
	if (!caller->result)
		caller->result = fixture_to_init(&caller->fixture);
	if (!caller->result)
		caller->result = fixture_to_rtr(&caller->fixture, peer);
	return NULL;
}

static void crowd_body(int fd)
{
	struct caller *callers = calloc(CALLERS, sizeof(*callers));
	pthread_t threads[CALLERS];
	union ibv_gid gid;
	struct soft_fixture base;

	fixture_read_all(fd, &gid, sizeof(gid));
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
	fixture_write_all(fd, "x", 1);
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

static void send_gid(const struct soft_fixture *fixture, int fd)
{
	struct fixture_endpoint mine;

	fixture_describe(fixture, &mine);
	fixture_write_all(fd, &mine.gid, sizeof(mine.gid));
}

/* More callers at once than the listener has places; none is turned away. */
static void accepts_many_peers_at_once(void **state)
{
	struct caller *callers = calloc(CALLERS, sizeof(*callers));
	struct soft_fixture base;
	pid_t child;
	char word;
	int fd;

	(void)state;
	child = fork_child(crowd_body, &fd);
	fixture_open(&base, NULL);
	send_gid(&base, fd);
	open_more(callers, &base);
	exchange_all(fd, callers);
	for (int i = 0; i < CALLERS; i++) {
		run_caller(&callers[i]);
		assert_int_equal(callers[i].result, 0);
	}
	fixture_read_all(fd, &word, 1);
	join(child);
	close_all(callers);
	close(fd);
}

/* A process of another user; root and that user must be able to connect. */
static void other_user_body(int fd)
{
	struct fixture_endpoint mine, its;
	union ibv_gid gid;
	struct soft_fixture fixture;
	char calls;

	assert_int_equal(seteuid(65534), 0);
	fixture_read_all(fd, &gid, sizeof(gid));
	fixture_read_all(fd, &calls, 1);
	open_as(&fixture, calls == 'y', &gid);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_write_all(fd, "r", 1);
	fixture_read_all(fd, &calls, 1);
	fixture_close(&fixture);
}

static void check_other_user(const char *calls)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	struct soft_engine *engine;
	bool sealed;
	pid_t child;
	char word;
	int fd;

	child = fork_child(other_user_body, &fd);
	fixture_open(&fixture, NULL);
	engine = &soft_context(fixture.context)->engine;
	send_gid(&fixture, fd);
	fixture_write_all(fd, calls, 1);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_read_all(fd, &word, 1);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 8, &its, 0,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_SUCCESS);
	pier_soft_lock(engine);
	sealed = ((struct soft_qp *)fixture.qp)->link.seal;
	pier_soft_unlock(engine);
	assert_true(sealed);
	fixture_write_all(fd, "x", 1);
	join(child);
	fixture_close(&fixture);
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

/* Connects, and is gone. */
static void leaver_body(int fd)
{
	struct fixture_endpoint mine, its;
	union ibv_gid gid;
	struct soft_fixture fixture;

	fixture_read_all(fd, &gid, sizeof(gid));
	open_as(&fixture, true, &gid);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
}

/* The peer's end of the stream closes before this end goes to RTR and uses it. */
static void open_and_lose_peer(struct soft_fixture *ret_fixture)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	pid_t child;
	int fd;

	child = fork_child(leaver_body, &fd);
	fixture_open(&fixture, NULL);
	send_gid(&fixture, fd);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	join(child);
	assert_int_equal(
		pier_soft_provider.set_qp_address(fixture.qp, its.blob, its.blob_length),
		0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(fixture_post_recv(&fixture, 1, 0, 8), 0);
	/* From here on the queue pair may fail at any time. */
	assert_int_equal(fixture_to_rtr(&fixture, &its), 0);
	fixture_expect(&fixture, fixture.recv_cq, NULL, 1, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(fixture.qp->state, IBV_QPS_ERR);
	close(fd);
	*ret_fixture = fixture;
}

static void notices_a_peer_that_has_left(void **state)
{
	struct soft_fixture fixture;

	(void)state;
	open_and_lose_peer(&fixture);
	fixture_close(&fixture);
}

/* As on hardware. The requests fail, as with a peer that left later. */
static void goes_to_rts_without_its_peer(void **state)
{
	struct soft_fixture fixture;

	(void)state;
	open_and_lose_peer(&fixture);
	/* Attributes are missing. */
	assert_int_equal(abs(fixture_to(&fixture, IBV_QPS_RTS)), EINVAL);
	assert_int_equal(fixture_to_rts(&fixture), 0);
	assert_int_equal(fixture.qp->state, IBV_QPS_ERR);
	assert_int_equal(abs(fixture_to_rts(&fixture)), EINVAL);
	assert_int_equal(fixture_post(&fixture, IBV_WR_SEND, 2, 0, 8, NULL, 0, 0), 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(fixture_post_recv(&fixture, 3, 0, 8), 0);
	fixture_expect(&fixture, fixture.recv_cq, NULL, 3, IBV_WC_WR_FLUSH_ERR);
	fixture_close(&fixture);
}

/* ERR and RESET end what the loss of the peer allows. */
static void does_not_go_from_err_to_rts(void **state)
{
	struct soft_fixture fixture;

	(void)state;
	open_and_lose_peer(&fixture);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_ERR), 0);
	assert_int_equal(abs(fixture_to_rts(&fixture)), EINVAL);
	fixture_close(&fixture);
	open_and_lose_peer(&fixture);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_RESET), 0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_ERR), 0);
	assert_int_equal(abs(fixture_to_rts(&fixture)), EINVAL);
	fixture_close(&fixture);
}

static void check_any_address(const char *any)
{
	struct fixture_endpoint endpoint;
	struct soft_fixture fixture;

	setenv("PIER_SOFT_ADDRESS", any, 1);
	fixture_open(&fixture, NULL);
	fixture_describe(&fixture, &endpoint);
	assert_int_equal(pier_soft_provider.set_qp_address(fixture.qp, endpoint.blob,
							   endpoint.blob_length),
			 0);
	assert_true(soft_context(fixture.context)->node.listeners.port > 0);
	for (uint32_t i = 0; i < soft_context(fixture.context)->node.listeners.count; i++)
		assert_int_not_equal(soft_context(fixture.context)
					     ->node.listeners.addresses[i]
					     .s6_addr32[3],
				     0);
	fixture_close(&fixture);
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
		cmocka_unit_test(notices_a_peer_that_has_left),
		cmocka_unit_test(goes_to_rts_without_its_peer),
		cmocka_unit_test(does_not_go_from_err_to_rts),
		cmocka_unit_test(refuses_a_wildcard_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

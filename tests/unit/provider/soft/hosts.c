/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cmocka.h"
#include "soft_fixture.h"

/*
 * Two network namespaces with a virtual cable between them act as two hosts: the abstract
 * Unix sockets of one do not exist in the other, so the NICs use TCP.
 */

static const char *reason;

/* Values of PIER_SOFT_ADDRESS and PIER_SOFT_PEERS; NULL: not set. */
struct plan {
	const char *near_address, *near_peers, *far_address;
	bool refused;
	bool meets, shares_folder; /* with a key; and with the folder, like containers */
};

static char folder[64];

static void set_or_unset(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

static bool run(const char *command)
{
	if (system(command) == 0)
		return true;
	reason = command;
	return false;
}

static bool leave_network(void)
{
	int flags = geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET;

	if (unshare(flags) == 0)
		return true;
	reason = strerror(errno);
	return false;
}

/* The folder of one host. */
static void use_folder(const char *name)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	setenv("XDG_RUNTIME_DIR", path, 1);
}

/* The other host: serves until told to stop. */
static void far_body(int fd, const struct plan *plan)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	char word;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (unshare(CLONE_NEWNET) < 0)
		_exit(1);
	fixture_write_all(fd, "n", 1);
	fixture_read_all(fd, &word, 1);
	if (!run("ip addr add 10.99.0.2/24 dev far && ip link set far up"))
		_exit(1);
	set_or_unset("PIER_SOFT_ADDRESS", plan->far_address);
	if (plan->meets && !plan->shares_folder)
		use_folder("far");
	fixture_open(&fixture, &(struct fixture_options){ .meets = plan->meets });
	memset(fixture.memory, 'f', FIXTURE_MEMORY);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	if (!plan->refused)
		fixture_connect(&fixture, &its);
	fixture_write_all(fd, "r", 1);
	fixture_read_all(fd, &word, 1);
	fixture_close(&fixture);
	_exit(0);
}

static bool lay_cable(pid_t far)
{
	char command[128];

	snprintf(command, sizeof(command),
		 "ip link add near type veth peer name far netns %d", (int)far);
	return run(command) && run("ip addr add 10.99.0.1/24 dev near") &&
	       run("ip link set near up");
}

/* Neither end listens, so whichever end calls gets the error. */
static void be_refused(struct soft_fixture *fixture, const struct fixture_endpoint *its)
{
	struct fixture_endpoint other = *its;

	if (other.blob_length > 0)
		assert_int_equal(pier_soft_provider.set_qp_address(
					 fixture->qp, other.blob, other.blob_length),
				 0);
	assert_int_equal(fixture_to_init(fixture), 0);
	memset(other.gid.raw + 8, 0xff, 8); /* the higher name, so that we call */
	assert_int_not_equal(fixture_to_rtr(fixture, &other), 0);
	test_assert_sentence("PIER_SOFT_ADDRESS");
}

static void use(int fd, const struct plan *plan)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	char word;

	fixture_open(&fixture, &(struct fixture_options){ .meets = plan->meets });
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	if (plan->refused) {
		be_refused(&fixture, &its);
		fixture_read_all(fd, &word, 1);
		fixture_write_all(fd, "x", 1);
		fixture_close(&fixture);
		return;
	}
	fixture_connect(&fixture, &its);
	fixture_read_all(fd, &word, 1);
	memset(fixture.memory, 'w', 30000);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 30000, &its, 8,
				      IBV_SEND_SIGNALED),
			 0);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_READ, 2, 30000, 30016, &its,
				      0, IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_SUCCESS);
	fixture_expect(&fixture, fixture.send_cq, NULL, 2, IBV_WC_SUCCESS);
	assert_int_equal(fixture.memory[30000 + 7], 'f');
	assert_memory_equal(fixture.memory + 30008, fixture.memory, 30000 - 8);
	assert_int_equal(fixture.memory[60008], 'f');
	fixture_write_all(fd, "x", 1);
	fixture_close(&fixture);
}

static void check_hosts(const struct plan *plan)
{
	int fds[2], status;
	char word;
	pid_t far;

	if (!leave_network()) {
		print_message("skipped: no network namespace: %s\n", reason);
		skip();
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	far = fork();
	assert_true(far >= 0);
	if (far == 0)
		far_body(fds[1], plan);
	close(fds[1]);
	fixture_read_all(fds[0], &word, 1);
	if (!lay_cable(far)) {
		kill(far, SIGKILL);
		waitpid(far, &status, 0);
		print_message("skipped: failed: %s\n", reason);
		skip();
	}
	fixture_write_all(fds[0], "c", 1);
	set_or_unset("PIER_SOFT_ADDRESS", plan->near_address);
	set_or_unset("PIER_SOFT_PEERS", plan->near_peers);
	use(fds[0], plan);
	assert_int_equal(waitpid(far, &status, 0), far);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(fds[0]);
}

static void connects_if_both_listen(void **state)
{
	(void)state;
	check_hosts(&(struct plan){ .near_address = "::", .far_address = "0.0.0.0" });
	check_hosts(&(struct plan){ .near_address = "10.99.0.1",
				    .far_address = "10.99.0.2" });
}

/* Whatever the order of their names. */
static void connects_if_one_listens(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++)
		check_hosts(
			&(struct plan){ .near_peers = i % 2 ? "10.99.0.2" : "attached",
					.far_address = "10.99.0.2" });
}

static void reports_that_neither_listens(void **state)
{
	(void)state;
	check_hosts(&(struct plan){ .refused = true });
}

/* Two folders, and a key that the user has brought to both hosts. */
static void make_key(void)
{
	const char *parent = getenv("TMPDIR");
	char command[256], key[96];

	snprintf(folder, sizeof(folder), "%s/hosts-XXXXXX", parent ? parent : "/tmp");
	assert_non_null(mkdtemp(folder));
	snprintf(key, sizeof(key), "%s/key", folder);
	snprintf(command, sizeof(command),
		 "cd %s && mkdir near far && umask 077 && head -c 32 /dev/urandom >key",
		 folder);
	assert_int_equal(system(command), 0);
	setenv("PIER_SOFT_KEY", key, 1);
	use_folder("near");
}

static void check_meeting(const struct plan *plan)
{
	char command[96];

	make_key();
	check_hosts(plan);
	unsetenv("PIER_SOFT_KEY");
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	assert_int_equal(system(command), 0);
}

static void hosts_meet_by_key_and_gid(void **state)
{
	(void)state;
	check_meeting(&(struct plan){
		.meets = true, .near_address = "::", .far_address = "0.0.0.0" });
	check_meeting(&(struct plan){
		.meets = true, .near_address = "10.99.0.1", .far_address = "10.99.0.2" });
}

static void containers_meet_in_a_shared_folder(void **state)
{
	(void)state;
	check_meeting(&(struct plan){ .meets = true, .shares_folder = true });
}

static void hosts_do_not_meet_without_an_address(void **state)
{
	(void)state;
	check_meeting(&(struct plan){ .meets = true, .refused = true });
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connects_if_both_listen),
		cmocka_unit_test(connects_if_one_listens),
		cmocka_unit_test(reports_that_neither_listens),
		cmocka_unit_test(hosts_meet_by_key_and_gid),
		cmocka_unit_test(containers_meet_in_a_shared_folder),
		cmocka_unit_test(hosts_do_not_meet_without_an_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

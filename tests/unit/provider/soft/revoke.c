/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/random.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

/*
 * A region is deregistered while a peer copies directly into it; bytes written there
 * afterwards must stay. The peer is a thread with its own device or another process,
 * which is killed at the end.
 */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	AREA = 1 << 20,
	SOURCE = 1 << 20,
	OUTSTANDING = 8,
	ROUNDS = 20
};

struct area {
	int fd;
	uint8_t *memory;
};

static struct area open_area(size_t size)
{
	struct area area = { .fd = memfd_create("area",
						MFD_CLOEXEC | MFD_ALLOW_SEALING) };

	if (area.fd < 0 || ftruncate(area.fd, (off_t)size) < 0 ||
	    fcntl(area.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		abort();
	area.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, area.fd, 0);
	if (area.memory == MAP_FAILED)
		abort();
	return area;
}

static void close_area(const struct area *area, size_t size)
{
	munmap(area->memory, size);
	close(area->fd);
}

/* Write until refused, and return the final status. */
static enum ibv_wc_status write_until_refused(struct soft_fixture *fixture,
					      struct ibv_mr *source, uint64_t address,
					      uint32_t key, struct test_random *random)
{
	uint32_t outstanding = 0;
	struct ibv_wc wc = { 0 };

	for (;;) {
		uint32_t length = 1 + (uint32_t)(test_random_below(random, SOURCE));
		struct ibv_sge sge = {
			.addr = address,
			.length = length,
			.lkey = source->lkey,
		};
		struct ibv_send_wr *bad, wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
		};

		wr.wr.rdma.rkey = key;
		wr.wr.rdma.remote_addr = test_random_below(random, AREA - length + 1);
		if (ibv_post_send(fixture->qp, &wr, &bad) == 0)
			outstanding++;
		while (outstanding == OUTSTANDING || wc.status) {
			int count = ibv_poll_cq(fixture->send_cq, 1, &wc);

			outstanding -= count > 0;
			if (count > 0 && wc.status)
				return wc.status;
		}
	}
}

/* From a steady and a host source in turn: the NIC copies one, the kernel the other. */
static enum ibv_wc_status be_peer(struct soft_fixture *fixture, uint32_t key,
				  unsigned int turn, struct test_random *random)
{
	struct area area = open_area(SOURCE);
	uint8_t *host = aligned_alloc(FIXTURE_PAGE, SOURCE);
	enum ibv_wc_status status;
	struct ibv_mr *mr;

	if (!host)
		abort();
	memset(area.memory, 's', SOURCE);
	memset(host, 's', SOURCE);
	mr = turn % 2 ? soft->reg_mr(fixture->pd, host, SOURCE, 0, 0)
		      : soft->reg_dmabuf_mr(fixture->pd, 0, SOURCE, 0, area.fd, 0);
	if (!mr)
		abort();
	status = write_until_refused(fixture, mr, 0, key, random);
	soft->dereg_mr(mr);
	close_area(&area, SOURCE);
	free(host);
	return status;
}

/* Whether the region is host memory, to which the peer gets the addresses. */
static bool by_address;

struct owner {
	struct soft_fixture fixture;
	struct area area;
	uint8_t *host; /* the same memory for the region, as in a region of the fd */
	struct ibv_mr *mr;
};

static void open_owner(struct owner *owner)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ;

	fixture_open(&owner->fixture, NULL);
	owner->area = open_area(AREA);
	owner->host = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, owner->area.fd,
			   0);
	assert_ptr_not_equal(owner->host, MAP_FAILED);
	if (by_address)
		owner->mr = soft->reg_mr(owner->fixture.pd, owner->host, AREA, 0, access);
	else
		owner->mr = soft->reg_dmabuf_mr(owner->fixture.pd, 0, AREA, 0,
						owner->area.fd, access);
	assert_non_null(owner->mr);
}

static bool has_given(struct owner *owner)
{
	const struct soft_fifo *fifo;
	bool given;

	pier_soft_lock(&soft_context(owner->fixture.context)->engine);
	fifo = ((struct soft_qp *)owner->fixture.qp)->link.fifo;
	given = fifo && fifo->given[0].mr;
	pier_soft_unlock(&soft_context(owner->fixture.context)->engine);
	return given;
}

/* Until it has used a grant for a while. */
static void let_peer_write(struct owner *owner, struct test_random *random)
{
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;
	volatile uint8_t *middle = &owner->area.memory[AREA / 2];

	while (!has_given(owner))
		assert_true(fixture_milliseconds() < deadline);
	*middle = 'm';
	while (*middle != 's')
		assert_true(fixture_milliseconds() < deadline);
	for (uint64_t i = test_random_below(random, 200000); i > 0; i--)
		(void)*middle;
}

/* No write arrives after it. */
static void take_back(struct owner *owner)
{
	uint64_t start = fixture_milliseconds();

	assert_int_equal(soft->dereg_mr(owner->mr), 0);
	assert_in_range(fixture_milliseconds() - start, 0, FIXTURE_DEADLINE_MS);
	memset(owner->area.memory, 'o', AREA);
}

static void close_owner(struct owner *owner)
{
	for (int i = 0; i < AREA; i++)
		assert_int_equal(owner->area.memory[i], 'o');
	munmap(owner->host, AREA);
	close_area(&owner->area, AREA);
	fixture_close(&owner->fixture);
}

struct peer_thread {
	struct soft_fixture fixture;
	uint32_t key;
	unsigned int turn;
	struct test_random random;
	enum ibv_wc_status status;
};

static void *run_peer(void *argument)
{
	struct peer_thread *peer = argument;

	peer->status = be_peer(&peer->fixture, peer->key, peer->turn, &peer->random);
	return NULL;
}

static void revokes_from_a_thread(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (unsigned int turn = 0; turn < ROUNDS; turn++) {
		struct peer_thread peer = { .turn = turn,
					    .random = { test_random_next(&random) | 1 } };
		struct fixture_endpoint to_owner, to_peer;
		struct owner owner;
		pthread_t thread;

		open_owner(&owner);
		fixture_open(&peer.fixture, NULL);
		fixture_describe(&owner.fixture, &to_owner);
		fixture_describe(&peer.fixture, &to_peer);
		fixture_connect(&owner.fixture, &to_peer);
		fixture_connect(&peer.fixture, &to_owner);
		peer.key = owner.mr->rkey;
		assert_int_equal(pthread_create(&thread, NULL, run_peer, &peer), 0);
		let_peer_write(&owner, &random);
		take_back(&owner);
		pthread_join(thread, NULL);
		assert_int_equal(peer.status, IBV_WC_REM_ACCESS_ERR);
		fixture_close(&peer.fixture);
		close_owner(&owner);
	}
}

static void peer_body(int fd, unsigned int turn, struct test_random random)
{
	struct fixture_endpoint mine, its;
	enum ibv_wc_status status;
	struct soft_fixture fixture;
	uint32_t key;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fixture_open(&fixture, NULL);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_read_all(fd, &key, sizeof(key));
	status = be_peer(&fixture, key, turn, &random);
	fixture_close(&fixture);
	_exit(status == IBV_WC_REM_ACCESS_ERR ? 0 : 1);
}

static void check_process(unsigned int turn, bool killed, struct test_random *random)
{
	struct test_random seed = { test_random_next(random) | 1 };
	struct fixture_endpoint mine, its;
	struct owner owner;
	int fds[2], status;
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		peer_body(fds[1], turn, seed);
	close(fds[1]);
	open_owner(&owner);
	fixture_describe(&owner.fixture, &mine);
	fixture_exchange(fds[0], &mine, &its);
	fixture_connect(&owner.fixture, &its);
	fixture_write_all(fds[0], &owner.mr->rkey, sizeof(owner.mr->rkey));
	let_peer_write(&owner, random);
	if (killed)
		kill(child, SIGKILL);
	take_back(&owner);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (killed)
		assert_true(WIFSIGNALED(status));
	else
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(fds[0]);
	close_owner(&owner);
}

/*
 * A peer that may not have our files gets none; everything else works through the fifo.
 */
static void other_user_body(int fd)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
		abort();
	fixture_open(&fixture, NULL);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_read_all(fd, &its.rkey, sizeof(its.rkey));
	its.address = 0;
	memset(fixture.memory, 's', 10);
	for (int i = 0; i < 5; i++) {
		if (fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 10, &its, 20,
				 IBV_SEND_SIGNALED) ||
		    fixture_wait(&fixture, fixture.send_cq, NULL).status !=
			    IBV_WC_SUCCESS)
			abort();
	}
	fixture_write_all(fd, "d", 1);
	fixture_read_all(fd, &its.rkey, 1);
	fixture_close(&fixture);
	_exit(0);
}

static void does_not_grant_to_another_user(void **state)
{
	struct fixture_endpoint mine, its;
	struct owner owner;
	int fds[2], status;
	pid_t child;
	char done;

	(void)state;
	if (geteuid() != 0) {
		puts("skip: only root can be another user");
		skip();
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		other_user_body(fds[1]);
	close(fds[1]);
	open_owner(&owner);
	fixture_describe(&owner.fixture, &mine);
	fixture_exchange(fds[0], &mine, &its);
	fixture_connect(&owner.fixture, &its);
	fixture_write_all(fds[0], &owner.mr->rkey, sizeof(owner.mr->rkey));
	fixture_read_all(fds[0], &done, 1);
	assert_false(has_given(&owner));
	assert_int_equal(owner.area.memory[19], 0);
	assert_int_equal(owner.area.memory[20], 's');
	assert_int_equal(owner.area.memory[30], 0);
	fixture_write_all(fds[0], "x", 1);
	take_back(&owner);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(fds[0]);
	close_owner(&owner);
}

static void revokes_from_another_process(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (unsigned int turn = 0; turn < ROUNDS; turn++)
		check_process(turn, false, &random);
}

static void revokes_from_a_killed_process(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (unsigned int turn = 0; turn < ROUNDS; turn++)
		check_process(turn, true, &random);
}

static int use_files(void **state)
{
	(void)state;
	by_address = false;
	return 0;
}

static int use_addresses(void **state)
{
	(void)state;
	by_address = true;
	return 0;
}

/* ThreadSanitizer allows no processes with threads after the first thread. */
int main(void)
{
	const struct CMUnitTest processes[] = {
		cmocka_unit_test(does_not_grant_to_another_user),
		cmocka_unit_test(revokes_from_another_process),
		cmocka_unit_test(revokes_from_a_killed_process),
	};
	const struct CMUnitTest threads[] = {
		cmocka_unit_test(revokes_from_a_thread),
	};

	return cmocka_run_group_tests(processes, use_files, NULL) +
	       cmocka_run_group_tests(processes, use_addresses, NULL) +
	       cmocka_run_group_tests(threads, use_addresses, NULL) +
	       cmocka_run_group_tests(threads, use_files, NULL);
}

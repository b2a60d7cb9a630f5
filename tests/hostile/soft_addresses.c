/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_grants.h"

/*
 * A target that lies about its addresses, or whose pid becomes that of something else. No
 * copy reaches any other process, and requests succeed through the FIFO while it is
 * there.
 */

enum {
	BOTH = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
};

/* Where nothing is, in any process; sanitizers allow memory there. */
#define FAR ((uint8_t *)UINT64_C(0x7e9000000000))

/* The victim writes to the first key, and the peer answers its request for a grant. */
static void give_addresses(struct pair *pair, uint64_t shared_memory, uint64_t address,
			   uint64_t length, uint32_t rights)
{
	struct fixture_endpoint remote = { .rkey = pair->mrs[0]->rkey };
	struct soft_grant_message message = {
		.key = remote.rkey,
		.serial = 1000,
		.rights = rights,
		.shared_memory = shared_memory,
		.count = 1,
		.segments = { { address, length, 0 } },
	};

	assert_int_equal(fixture_post(&pair->victim, IBV_WR_RDMA_WRITE, 1, 0, LENGTH,
				      &remote, 0, IBV_SEND_SIGNALED),
			 0);
	intercept_grant_request(pair);
	atomic_store(&peer_fifo(&pair->peer)->in->valid[0], message.serial);
	assert_true(pier_soft_send_grant(&peer_qp(&pair->peer)->link, &message, NULL));
	fixture_expect(&pair->victim, pair->victim.send_cq, &pair->peer, 1,
		       IBV_WC_SUCCESS);
	for (int i = 0; i < 20; i++)
		fixture_step(&pair->victim, &pair->peer);
}

static uint64_t layout_of(const struct soft_fixture *fixture)
{
	return (uintptr_t)peer_fifo(fixture)->memory->layout;
}

/* At each of these addresses is something, but not the memory that both ends share. */
static void false_place_of_the_shared_memory(void **state)
{
	uint8_t *other = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(other, MAP_FAILED);
	for (int i = 0; i < 4; i++) {
		struct pair pair;
		uint64_t places[4];

		open_pair(&pair);
		places[0] = (uintptr_t)other;
		places[1] = layout_of(&pair.peer) + 64;
		places[2] = (uintptr_t)FAR;
		places[3] = UINT64_MAX - 100;
		give_addresses(&pair, places[i], (uintptr_t)pair.peer.memory, LENGTH,
			       BOTH);
		assert_false(has_grant(&pair, 0));
		assert_true(peer_fifo(&pair.victim)->unreachable);
		assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
		close_pair(&pair);
	}
	munmap(other, LENGTH);
}

/* Of memory that is not there, or of more than there is. */
static void false_addresses(void **state)
{
	const struct {
		uint64_t address, length;
	} parts[] = {
		{ (uintptr_t)FAR, LENGTH },	{ 0, LENGTH },
		{ UINT64_MAX - 4095, LENGTH },	{ UINT64_C(1) << 63, LENGTH },
		{ (uintptr_t)FAR, UINT64_MAX },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		struct pair pair;

		open_pair(&pair);
		give_addresses(&pair, layout_of(&pair.peer), parts[i].address,
			       parts[i].length, BOTH);
		memset(pair.victim.memory, 's', LENGTH);
		assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
		assert_int_equal(pair.peer.memory[LENGTH - 1], 's');
		assert_false(has_grant(&pair, 0));
		close_pair(&pair);
	}
}

/* Rights that do not exist, and a region that is shorter than what is asked for. */
static void useless_grants(void **state)
{
	const struct {
		uint64_t length;
		uint32_t rights;
	} grants[] = { { LENGTH, 0 }, { LENGTH, ~(uint32_t)BOTH }, { 8, BOTH } };

	(void)state;
	for (size_t i = 0; i < sizeof(grants) / sizeof(grants[0]); i++) {
		uint8_t *decoy = aligned_alloc(4096, LENGTH);
		struct pair pair;

		assert_non_null(decoy);
		memset(decoy, 'd', LENGTH);
		open_pair(&pair);
		give_addresses(&pair, layout_of(&pair.peer), (uintptr_t)decoy,
			       grants[i].length, grants[i].rights);
		assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
		for (int k = 0; k < LENGTH; k++)
			assert_int_equal(decoy[k], 'd');
		close_pair(&pair);
		free(decoy);
	}
}

/* Waits for a byte, and then ends with 0 if nothing has touched the memory. */
static void watch(int socket, const uint8_t *memory, uint8_t expected)
{
	char byte;

	if (read(socket, &byte, 1) != 1)
		_exit(1);
	for (int i = 0; i < LENGTH; i++) {
		if (memory[i] != expected)
			_exit(2);
	}
	_exit(0);
}

/* A pid that is used again: by a process that has all memory of the peer but the fifo. */
static void pid_of_another_process(void **state)
{
	struct pair pair;
	int sockets[2], status;
	pid_t child;

	(void)state;
	open_pair(&pair);
	give_addresses(&pair, layout_of(&pair.peer), (uintptr_t)pair.peer.memory, LENGTH,
		       BOTH);
	assert_true(has_grant(&pair, 0));
	memset(pair.peer.memory, 'p', LENGTH);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		watch(sockets[1], pair.peer.memory, 'p');
	peer_fifo(&pair.victim)->peer_pid = child;
	memset(pair.victim.memory, 's', LENGTH);
	/* No WRITE does without the witness. */
	peer_fifo(&pair.victim)->witnessed = pier_soft_now();
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	assert_int_equal(pair.peer.memory[LENGTH - 1], 's');
	assert_false(has_grant(&pair, 0));
	assert_int_equal(write(sockets[0], "x", 1), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close_pair(&pair);
	close(sockets[0]);
	close(sockets[1]);
}

static uint8_t *map_far(uint8_t byte)
{
	uint8_t *memory = mmap(FAR, LENGTH, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (memory != FAR)
		_exit(98);
	memset(memory, byte, LENGTH);
	return memory;
}

/* Another program in the process of the peer, with other memory at the same address. */
static int run_after_exec(int socket)
{
	uint8_t *memory = map_far('n');

	if (write(socket, "r", 1) != 1)
		return 97;
	watch(socket, memory, 'n');
	return 96;
}

static void execute_body(int socket)
{
	struct fixture_endpoint mine, its;
	char number[16], byte;
	struct soft_fixture fixture;
	struct ibv_mr *mr;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fixture_open(&fixture, NULL);
	mr = soft->reg_mr(fixture.pd, map_far('p'), LENGTH, 0, BOTH);
	if (!mr)
		_exit(99);
	fixture_describe(&fixture, &mine);
	mine.rkey = mr->rkey;
	fixture_exchange(socket, &mine, &its);
	fixture_connect(&fixture, &its);
	fixture_read_all(socket, &byte, 1);
	snprintf(number, sizeof(number), "%d", socket);
	fcntl(socket, F_SETFD, 0);
	execl("/proc/self/exe", "hostile_soft_addresses", number, (char *)NULL);
	_exit(95);
}

/* As if the engine had not run yet. */
static void miss_events(const struct soft_fixture *fixture)
{
	struct epoll_event events[8];
	int fd = soft_context(fixture->context)->engine.epoll_fd;

	while (epoll_wait(fd, events, 8, 0) > 0)
		;
}

static void program_replaces_the_peer(void **state)
{
	struct fixture_endpoint mine, its;
	struct soft_fixture victim;
	int sockets[2], status;
	pid_t child;
	char byte;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		execute_body(sockets[1]);
	fixture_open(&victim, &stepped);
	fixture_describe(&victim, &mine);
	fixture_exchange(sockets[0], &mine, &its);
	fixture_connect(&victim, &its);
	its.address = 0;
	do {
		assert_int_equal(fixture_post(&victim, IBV_WR_RDMA_WRITE, 1, 0, LENGTH,
					      &its, 0, IBV_SEND_SIGNALED),
				 0);
		fixture_expect(&victim, victim.send_cq, NULL, 1, IBV_WC_SUCCESS);
		fixture_step(&victim, NULL);
	} while (peer_fifo(&victim)->received[0].state != SOFT_GRANT_RECEIVED);
	assert_true(peer_fifo(&victim)->received[0].by_address);
	fixture_write_all(sockets[0], "e", 1);
	fixture_read_all(sockets[0], &byte, 1);
	/* The victim does not know yet that the link has ended. */
	assert_int_equal(fixture_post(&victim, IBV_WR_RDMA_WRITE, 2, 0, LENGTH, &its, 0,
				      IBV_SEND_SIGNALED),
			 0);
	miss_events(&victim);
	fixture_expect(&victim, victim.send_cq, NULL, 2, IBV_WC_RETRY_EXC_ERR);
	fixture_write_all(sockets[0], "c", 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	fixture_close(&victim);
	close(sockets[0]);
	close(sockets[1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(false_place_of_the_shared_memory),
		cmocka_unit_test(false_addresses),
		cmocka_unit_test(useless_grants),
		cmocka_unit_test(pid_of_another_process),
		cmocka_unit_test(program_replaces_the_peer),
	};

	if (argc > 1)
		return run_after_exec(atoi(argv[1]));
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/engine.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/grant.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

/*
 * Direct copies by address: of host memory, and of other regions whose fds no peer gets.
 * Where they are not possible, the FIFO does the same.
 */

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct fixture_options stepped = { .stepped = 1 };

enum {
	READABLE = IBV_ACCESS_REMOTE_READ,
	WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	BOTH = READABLE | WRITABLE,
	IOVA = FIXTURE_PAGE,
	LARGE = 3 << 20,
};

/* What the kernel answers to the copies of this process; 0: the truth. */
static int refusal;
static unsigned int copies;

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long count,
				const struct iovec *there, unsigned long their_count,
				unsigned long flags);
ssize_t __real_process_vm_writev(pid_t pid, const struct iovec *here, unsigned long count,
				 const struct iovec *there, unsigned long their_count,
				 unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long count,
				const struct iovec *there, unsigned long their_count,
				unsigned long flags);
ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *here, unsigned long count,
				 const struct iovec *there, unsigned long their_count,
				 unsigned long flags);

static bool is_refused(void)
{
	copies++;
	if (refusal)
		errno = refusal;
	return refusal;
}

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long count,
				const struct iovec *there, unsigned long their_count,
				unsigned long flags)
{
	return is_refused() ? -1
			    : __real_process_vm_readv(pid, here, count, there,
						      their_count, flags);
}

ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *here, unsigned long count,
				 const struct iovec *there, unsigned long their_count,
				 unsigned long flags)
{
	return is_refused() ? -1
			    : __real_process_vm_writev(pid, here, count, there,
						       their_count, flags);
}

/* Two ends, and a region of b. */
struct pair {
	struct soft_fixture a, b;
	uint8_t *memory;
	struct ibv_mr *mr;
	struct fixture_endpoint remote;
};

static struct soft_qp *qp_of(const struct soft_fixture *fixture)
{
	return (struct soft_qp *)fixture->qp;
}

static struct soft_fifo *fifo_of(const struct soft_fixture *fixture)
{
	assert_non_null(qp_of(fixture)->link.fifo);
	return qp_of(fixture)->link.fifo;
}

static const struct soft_received_grant *grant_of(const struct pair *pair)
{
	const struct soft_received_grant *grants = fifo_of(&pair->a)->received;

	for (int i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (grants[i].key == pair->remote.rkey)
			return &grants[i];
	}
	return NULL;
}

static void step_often(struct pair *pair)
{
	for (int i = 0; i < 40; i++)
		fixture_step(&pair->a, &pair->b);
}

static void transfer(struct pair *pair, enum ibv_wr_opcode opcode, uint64_t at,
		     uint32_t length, enum ibv_wc_status status)
{
	assert_int_equal(fixture_post(&pair->a, opcode, 1, 0, length, &pair->remote, at,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&pair->a, pair->a.send_cq, &pair->b, 1, status);
}

/* Two requests through the FIFO; at the second a grant is requested. */
static void use_twice(struct pair *pair, enum ibv_wr_opcode opcode)
{
	transfer(pair, opcode, 0, 1, IBV_WC_SUCCESS);
	transfer(pair, opcode, 0, 1, IBV_WC_SUCCESS);
	step_often(pair);
}

static uint8_t *map_memory(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

static void open_parts(struct pair *pair, const struct pier_provider_part *parts,
		       uint32_t count, int access)
{
	fixture_open_pair(&pair->a, &pair->b, &stepped);
	pair->mr = soft->reg_parts(pair->b.pd, parts, count, IOVA, access, NULL);
	assert_non_null(pair->mr);
	pair->remote.rkey = pair->mr->rkey;
	pair->remote.address = IOVA;
	use_twice(pair, access & IBV_ACCESS_REMOTE_WRITE ? IBV_WR_RDMA_WRITE
							 : IBV_WR_RDMA_READ);
}

static void open_pair(struct pair *pair, int access)
{
	struct pier_provider_part part = { .fd = -1, .length = LARGE };

	part.addr = pair->memory = map_memory(LARGE);
	open_parts(pair, &part, 1, access);
}

static void expect_grant(const struct pair *pair)
{
	assert_int_equal(grant_of(pair)->state, SOFT_GRANT_RECEIVED);
	assert_true(grant_of(pair)->by_address);
}

static void close_pair(struct pair *pair)
{
	if (pair->mr)
		assert_int_equal(soft->dereg_mr(pair->mr), 0);
	fixture_close(&pair->a);
	fixture_close(&pair->b);
	if (pair->memory)
		munmap(pair->memory, LARGE);
}

static void fill(uint8_t *memory, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		memory[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + seed);
}

/* Expect the bytes and guards, and no traffic in the fifos. */
static void check_write(struct pair *pair)
{
	uint64_t put = fifo_of(&pair->a)->put;
	unsigned int before = copies;

	fill(pair->a.memory, 30000, 1);
	memset(pair->memory, 0, 40000);
	transfer(pair, IBV_WR_RDMA_WRITE, 100, 30000, IBV_WC_SUCCESS);
	assert_int_equal(pair->memory[99], 0);
	assert_memory_equal(pair->memory + 100, pair->a.memory, 30000);
	assert_int_equal(pair->memory[30100], 0);
	assert_int_equal(fifo_of(&pair->a)->put, put);
	assert_int_equal(copies, before + 1);
}

static void check_read(struct pair *pair)
{
	uint64_t put = fifo_of(&pair->a)->put, taken = fifo_of(&pair->a)->taken;

	fill(pair->memory, 40000, 2);
	memset(pair->a.memory, 0, FIXTURE_MEMORY);
	transfer(pair, IBV_WR_RDMA_READ, 77, 30000, IBV_WC_SUCCESS);
	assert_memory_equal(pair->a.memory, pair->memory + 77, 30000);
	assert_int_equal(pair->a.memory[30000], 0);
	assert_int_equal(fifo_of(&pair->a)->put, put);
	assert_int_equal(fifo_of(&pair->a)->taken, taken);
}

static void copies_host_memory(void **state)
{
	struct pair pair;

	(void)state;
	open_pair(&pair, BOTH);
	expect_grant(&pair);
	/* With the witness and, just after it, without. */
	for (int i = 0; i < 20; i++) {
		check_write(&pair);
		check_read(&pair);
	}
	close_pair(&pair);
}

/* A key with one right gives a peer that right, and nothing else. */
static void follows_the_rights_of_the_key(void **state)
{
	struct pair pair;

	(void)state;
	open_pair(&pair, READABLE);
	expect_grant(&pair);
	check_read(&pair);
	pair.memory[0] = 'g';
	transfer(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(pair.memory[0], 'g');
	close_pair(&pair);
	open_pair(&pair, WRITABLE);
	expect_grant(&pair);
	check_write(&pair);
	pair.a.memory[0] = 'g';
	transfer(&pair, IBV_WR_RDMA_READ, 0, 8, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(pair.a.memory[0], 'g');
	close_pair(&pair);
}

static void follows_the_rights_of_the_queue_pair(void **state)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	struct pair pair;

	(void)state;
	open_pair(&pair, BOTH);
	assert_int_equal(soft->modify_qp(pair.b.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	step_often(&pair);
	assert_null(grant_of(&pair));
	use_twice(&pair, IBV_WR_RDMA_READ);
	expect_grant(&pair);
	check_read(&pair);
	pair.memory[0] = 'g';
	transfer(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(pair.memory[0], 'g');
	close_pair(&pair);
}

static void refuses_invalid_copies(void **state)
{
	const struct {
		uint64_t at;
		uint32_t length;
	} ranges[] = {
		{ (uint64_t)-1, 8 },	      { LARGE - 7, 8 },	      { LARGE, 1 },
		{ UINT64_MAX - IOVA - 3, 8 }, { (uint64_t)-IOVA, 8 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) * 2; i++) {
		struct pair pair;

		open_pair(&pair, BOTH);
		memset(pair.memory, 'g', LARGE);
		transfer(&pair, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
			 ranges[i / 2].at, ranges[i / 2].length, IBV_WC_REM_ACCESS_ERR);
		for (int k = 0; k < LARGE; k++)
			assert_int_equal(pair.memory[k], 'g');
		close_pair(&pair);
	}
}

/* Host memory between parts of a memfd: every message crosses every edge. */
static void copies_regions_of_mixed_memory(void **state)
{
	int fd = memfd_create("loose", MFD_CLOEXEC);
	uint8_t *host = map_memory(FIXTURE_PAGE), *file;
	struct pier_provider_part parts[] = {
		{ fd, 4090, NULL, 10 },
		{ -1, 0, host + 5, 7 },
		{ fd, 4100, NULL, FIXTURE_PAGE - 4100 },
		{ -1, 0, host + 4096, 4096 },
	};
	struct pair pair = { 0 };

	(void)state;
	assert_int_equal(ftruncate(fd, FIXTURE_PAGE), 0);
	file = mmap(NULL, FIXTURE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(file, MAP_FAILED);
	open_parts(&pair, parts, 4, BOTH);
	expect_grant(&pair);
	for (uint32_t start = 0; start < 20; start++) {
		uint64_t put = fifo_of(&pair.a)->put;

		memset(file, 0, FIXTURE_PAGE);
		memset(host, 0, FIXTURE_PAGE);
		fill(pair.a.memory, 5000, start);
		transfer(&pair, IBV_WR_RDMA_WRITE, start, 4000, IBV_WC_SUCCESS);
		for (uint32_t i = 0; i < 5017; i++) {
			bool inside = i >= start && i < start + 4000;
			uint8_t byte = i < 10	? file[4090 + i]
				       : i < 17 ? host[5 + i - 10]
						: file[4100 + i - 17];

			assert_int_equal(byte, inside ? pair.a.memory[i - start] : 0);
		}
		assert_int_equal(file[4089], 0);
		assert_int_equal(host[4], 0);
		assert_int_equal(host[12], 0);
		assert_int_equal(fifo_of(&pair.a)->put, put);
	}
	close_pair(&pair);
	munmap(host, FIXTURE_PAGE);
	munmap(file, FIXTURE_PAGE);
	close(fd);
}

/* What is reported when memory of one end has vanished. */
static enum ibv_wc_status write_or_read_vanished(enum ibv_wr_opcode opcode, bool ours,
						 size_t at, bool by_fifo)
{
	uint8_t *memory = map_memory(LARGE);
	struct ibv_sge sge = { (uintptr_t)memory, LARGE, 0 };
	struct ibv_send_wr *bad, wr = { .wr_id = 1,
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = opcode,
					.send_flags = IBV_SEND_SIGNALED };
	struct pair pair;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	if (by_fifo)
		setenv("PIER_SOFT_CMA", "off", 1);
	open_pair(&pair, BOTH);
	unsetenv("PIER_SOFT_CMA");
	assert_int_equal(grant_of(&pair)->state,
			 by_fifo ? SOFT_GRANT_DENIED : SOFT_GRANT_RECEIVED);
	mr = soft->reg_mr(pair.a.pd, memory, LARGE, (uintptr_t)memory, WRITABLE);
	assert_non_null(mr);
	sge.lkey = mr->lkey;
	wr.wr.rdma.rkey = pair.remote.rkey;
	wr.wr.rdma.remote_addr = IOVA;
	assert_int_equal(
		mprotect((ours ? memory : pair.memory) + at, FIXTURE_PAGE, PROT_NONE), 0);
	assert_int_equal(ibv_post_send(pair.a.qp, &wr, &bad), 0);
	wc = fixture_wait(&pair.a, pair.a.send_cq, &pair.b);
	step_often(&pair);
	assert_int_equal(pair.b.qp->state, IBV_QPS_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	close_pair(&pair);
	munmap(memory, LARGE);
	return wc.status;
}

static void vanished_memory_fails_as_through_the_fifo(void **state)
{
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	const size_t places[] = { 0, LARGE / 2, LARGE - FIXTURE_PAGE };

	(void)state;
	for (size_t i = 0; i < 12; i++) {
		enum ibv_wr_opcode opcode = opcodes[i % 2];
		bool ours = i / 2 % 2;
		size_t place = places[i / 4];
		enum ibv_wc_status status = write_or_read_vanished(opcode, ours, place,
								   true);

		assert_int_not_equal(status, IBV_WC_SUCCESS);
		assert_int_equal(write_or_read_vanished(opcode, ours, place, false),
				 status);
	}
}

static void copies_on_demand_regions(void **state)
{
	struct pair pair;

	(void)state;
	open_pair(&pair, BOTH | IBV_ACCESS_ON_DEMAND);
	expect_grant(&pair);
	check_write(&pair);
	check_read(&pair);
	munmap(pair.memory + FIXTURE_PAGE, FIXTURE_PAGE);
	transfer(&pair, IBV_WR_RDMA_READ, FIXTURE_PAGE - 8, 16, IBV_WC_REM_ACCESS_ERR);
	close_pair(&pair);
}

static void counts_direct_writes(void **state)
{
	struct pier_provider_counter counter = { 0 };
	struct pair pair;

	(void)state;
	open_pair(&pair, BOTH);
	assert_int_equal(soft->bind_counter(pair.mr, &counter), 0);
	step_often(&pair);
	use_twice(&pair, IBV_WR_RDMA_WRITE);
	expect_grant(&pair);
	for (uint64_t i = 3; i <= 7; i++) {
		uint64_t put = fifo_of(&pair.a)->put;

		transfer(&pair, IBV_WR_RDMA_WRITE, i, 3, IBV_WC_SUCCESS);
		assert_int_equal(fifo_of(&pair.a)->put, put + SOFT_HEADER_SIZE);
		assert_int_equal(atomic_load(&counter.value), i);
	}
	assert_int_equal(soft->bind_counter(pair.mr, NULL), 0);
	close_pair(&pair);
}

/* The key is stale, and the owner may reuse or free the memory at once. */
static void deregistration_revokes_the_grant(void **state)
{
	struct epoll_event event;
	struct pair pair;

	(void)state;
	open_pair(&pair, BOTH);
	assert_int_equal(soft->dereg_mr(pair.mr), 0);
	pair.mr = NULL;
	memset(pair.memory, 'o', LARGE);
	/* The message that revokes the grant. */
	while (epoll_wait(soft_context(pair.a.context)->engine.epoll_fd, &event, 1, 0) >
	       0)
		;
	transfer(&pair, IBV_WR_RDMA_WRITE, 0, 100, IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < LARGE; i++)
		assert_int_equal(pair.memory[i], 'o');
	close_pair(&pair);
}

/* The key now stands for other memory. */
static void reregistration_revokes_the_grant(void **state)
{
	uint8_t *other = map_memory(LARGE);
	struct pair pair;

	(void)state;
	open_pair(&pair, BOTH);
	assert_int_equal(pier_soft_rereg_mr(pair.mr, IBV_REREG_MR_CHANGE_TRANSLATION,
					    NULL, other, LARGE, 0),
			 0);
	pair.remote.address = (uintptr_t)other;
	memset(pair.memory, 'o', LARGE);
	use_twice(&pair, IBV_WR_RDMA_WRITE);
	expect_grant(&pair);
	fill(pair.a.memory, 1000, 3);
	transfer(&pair, IBV_WR_RDMA_WRITE, 5, 1000, IBV_WC_SUCCESS);
	assert_memory_equal(other + 5, pair.a.memory, 1000);
	pair.remote.address = IOVA;
	transfer(&pair, IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < LARGE; i++)
		assert_int_equal(pair.memory[i], 'o');
	close_pair(&pair);
	munmap(other, LARGE);
}

static void *finish_copy(void *argument)
{
	struct pair *pair = argument;
	struct soft_direction *direction = fifo_of(&pair->a)->out;

	/* The owner does not continue before the copy has ended. */
	while (atomic_load(&direction->valid[atomic_load(&direction->busy) - 1]))
		;
	pair->memory[0] = 'l';
	atomic_store(&direction->busy, 0);
	return NULL;
}

static void deregistration_waits_for_a_copy(void **state)
{
	pthread_t thread;
	struct pair pair;

	(void)state;
	open_pair(&pair, BOTH);
	atomic_store(&fifo_of(&pair.a)->out->busy, grant_of(&pair)->slot + 1);
	assert_int_equal(pthread_create(&thread, NULL, finish_copy, &pair), 0);
	assert_int_equal(soft->dereg_mr(pair.mr), 0);
	pair.mr = NULL;
	assert_int_equal(pair.memory[0], 'l');
	pthread_join(thread, NULL);
	assert_non_null(fifo_of(&pair.b));
	close_pair(&pair);
}

/* The kernel refuses: from the beginning, or later on. The link then uses the fifo. */
static void uses_the_fifo_where_the_kernel_refuses(void **state)
{
	const int errors[] = { EPERM, ENOSYS, ESRCH };

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(errors) / sizeof(errors[0]); i++) {
		unsigned int tried;
		struct pair pair;

		refusal = i % 2 ? errors[i / 2] : 0;
		open_pair(&pair, BOTH);
		refusal = errors[i / 2];
		for (int k = 0; k < 3; k++) {
			tried = copies;
			fill(pair.a.memory, 1000, (uint32_t)k);
			transfer(&pair, IBV_WR_RDMA_WRITE, 9, 1000, IBV_WC_SUCCESS);
			assert_memory_equal(pair.memory + 9, pair.a.memory, 1000);
			memset(pair.a.memory, 0, 1000);
			transfer(&pair, IBV_WR_RDMA_READ, 9, 1000, IBV_WC_SUCCESS);
			assert_memory_equal(pair.memory + 9, pair.a.memory, 1000);
		}
		assert_int_equal(copies, tried);
		assert_true(fifo_of(&pair.a)->unreachable);
		assert_int_equal(grant_of(&pair)->state, SOFT_GRANT_DENIED);
		refusal = 0;
		close_pair(&pair);
	}
}

static bool forbid(long call)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(rules) / sizeof(rules[0]), rules };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum {
	NO_SECCOMP = 77
};

/* In a process that may not make one of the system calls. */
static void forbidden_body(long call)
{
	struct pair pair;

	if (!forbid(call))
		_exit(NO_SECCOMP);
	open_pair(&pair, BOTH);
	for (int i = 0; i < 3; i++) {
		transfer(&pair, IBV_WR_RDMA_READ, 9, 1000, IBV_WC_SUCCESS);
		fill(pair.a.memory, 1000, (uint32_t)i);
		transfer(&pair, IBV_WR_RDMA_WRITE, 9, 1000, IBV_WC_SUCCESS);
		assert_memory_equal(pair.memory + 9, pair.a.memory, 1000);
	}
	assert_true(fifo_of(&pair.a)->unreachable);
	close_pair(&pair);
	_exit(0);
}

static void uses_the_fifo_where_seccomp_forbids(void **state)
{
	const long calls[] = { SYS_process_vm_readv, SYS_process_vm_writev };

	(void)state;
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();
		int status;

		assert_true(child >= 0);
		if (child == 0)
			forbidden_body(calls[i]);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) == NO_SECCOMP)
			skip();
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

static void the_environment_switches_it_off(void **state)
{
	unsigned int before = copies;
	struct pair pair;

	(void)state;
	setenv("PIER_SOFT_CMA", "off", 1);
	open_pair(&pair, BOTH);
	unsetenv("PIER_SOFT_CMA");
	assert_int_equal(grant_of(&pair)->state, SOFT_GRANT_DENIED);
	assert_int_equal(copies, before);
	close_pair(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_host_memory),
		cmocka_unit_test(follows_the_rights_of_the_key),
		cmocka_unit_test(follows_the_rights_of_the_queue_pair),
		cmocka_unit_test(refuses_invalid_copies),
		cmocka_unit_test(copies_regions_of_mixed_memory),
		cmocka_unit_test(vanished_memory_fails_as_through_the_fifo),
		cmocka_unit_test(copies_on_demand_regions),
		cmocka_unit_test(counts_direct_writes),
		cmocka_unit_test(deregistration_revokes_the_grant),
		cmocka_unit_test(reregistration_revokes_the_grant),
		cmocka_unit_test(deregistration_waits_for_a_copy),
		cmocka_unit_test(uses_the_fifo_where_the_kernel_refuses),
		cmocka_unit_test(uses_the_fifo_where_seccomp_forbids),
		cmocka_unit_test(the_environment_switches_it_off),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

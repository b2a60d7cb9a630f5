/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_fixture.h"

/* One more key over regions, with the rules of an mlx5 NIC: join_mrs() and its company.
 */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		   IBV_ACCESS_REMOTE_READ,
	LENGTH = 3000, /* of a part */
	PARTS = 3,
};

/* Both ends, and three regions of `b`: two of host memory and one of a memfd. */
static struct {
	struct soft_fixture a, b;
	uint8_t memory[2][LENGTH];
	uint8_t *mapped;
	int fd;
	struct ibv_mr *mrs[PARTS];
	struct ibv_sge parts[PARTS];
} world;

static int setup(void **state)
{
	size_t page = sysconf(_SC_PAGESIZE);

	(void)state;
	memset(&world, 0, sizeof(world));
	fixture_open_pair(&world.a, &world.b, NULL);
	world.fd = memfd_create("joined", MFD_CLOEXEC);
	assert_int_equal(ftruncate(world.fd, (off_t)page), 0);
	world.mapped = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, world.fd, 0);
	assert_ptr_not_equal(world.mapped, MAP_FAILED);
	for (int i = 0; i < 2; i++)
		world.mrs[i] = soft->reg_mr(world.b.pd, world.memory[i], LENGTH,
					    (uintptr_t)world.memory[i], WRITABLE);
	world.mrs[2] = soft->reg_dmabuf_mr(world.b.pd, 0, LENGTH, 0, world.fd, WRITABLE);
	for (int i = 0; i < PARTS; i++) {
		assert_non_null(world.mrs[i]);
		world.parts[i] = (struct ibv_sge){
			.addr = i < 2 ? (uintptr_t)world.memory[i] + 1 : 1,
			.length = LENGTH - 1,
			.lkey = world.mrs[i]->lkey,
		};
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < PARTS; i++)
		assert_int_equal(soft->dereg_mr(world.mrs[i]), 0);
	munmap(world.mapped, sysconf(_SC_PAGESIZE));
	close(world.fd);
	fixture_close(&world.a);
	fixture_close(&world.b);
	return 0;
}

/* The request of the key completes on the queue pair's own CQ. */
static struct ibv_mr *join(void)
{
	struct ibv_mr *mr = soft->join_mrs(world.b.qp, world.parts, PARTS, WRITABLE);

	assert_non_null(mr);
	fixture_expect(&world.b, world.b.send_cq, &world.a, 0, IBV_WC_SUCCESS);
	return mr;
}

static void peers_reach_all_parts(void **state)
{
	struct fixture_endpoint peer = { 0 };
	struct ibv_mr *mr = join();

	(void)state;
	assert_true(mr->lkey == mr->rkey && mr->pd == world.b.pd);
	assert_int_equal(mr->length, PARTS * (LENGTH - 1));
	for (size_t i = 0; i < FIXTURE_MEMORY; i++)
		world.a.memory[i] = (uint8_t)(i * 7 + i / 251);
	peer.rkey = mr->rkey;
	assert_int_equal(fixture_post(&world.a, IBV_WR_RDMA_WRITE, 1, 0,
				      PARTS * (LENGTH - 1), &peer, 0, IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&world.a, world.a.send_cq, &world.b, 1, IBV_WC_SUCCESS);
	for (int i = 0; i < PARTS; i++) {
		const uint8_t *bytes = i < 2 ? world.memory[i] : world.mapped;

		assert_int_equal(bytes[0], 0);
		assert_memory_equal(bytes + 1, world.a.memory + i * (LENGTH - 1),
				    LENGTH - 1);
	}
	/* One byte beyond the last part. */
	assert_int_equal(fixture_post(&world.a, IBV_WR_RDMA_WRITE, 2, 0, 2, &peer,
				      PARTS * (LENGTH - 1) - 1, IBV_SEND_SIGNALED),
			 0);
	fixture_expect(&world.a, world.a.send_cq, &world.b, 2, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->unjoin_mrs(mr), 0);
}

/* The key goes first. */
static void parts_stay_as_long_as_the_key(void **state)
{
	struct ibv_mr *mr = join(), *second = join();

	(void)state;
	for (int i = 0; i < PARTS; i++)
		assert_int_equal(soft->dereg_mr(world.mrs[i]), EBUSY);
	assert_int_equal(soft->unjoin_mrs(mr), 0);
	for (int i = 0; i < PARTS; i++)
		assert_int_equal(soft->dereg_mr(world.mrs[i]), EBUSY);
	assert_int_equal(soft->unjoin_mrs(second), 0);
}

/* The fds of the memfd. The engines open and close others at any time. */
static int count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	char target[64];
	int count = 0;

	assert_non_null(folder);
	for (struct dirent *entry; (entry = readdir(folder));) {
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, target,
					    sizeof(target) - 1);

		target[length < 0 ? 0 : length] = '\0';
		count += strstr(target, "memfd:joined") != NULL;
	}
	closedir(folder);
	return count;
}

static void refuse(struct ibv_qp *qp, uint32_t count, int access, int error)
{
	int fds = count_fds();

	errno = 0;
	assert_null(soft->join_mrs(qp, world.parts, count, access));
	assert_int_equal(errno, error);
	assert_int_equal(count_fds(), fds);
}

/* Teardown shows that the regions are free again. */
static void refuses_what_the_nic_refuses(void **state)
{
	/* The memfd comes before the part that is refused. */
	const struct ibv_sge part = world.parts[0], memfd = world.parts[2];
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	struct ibv_sge *last = &world.parts[2];
	struct ibv_pd *other = soft->alloc_pd(world.b.context);
	struct ibv_mr *mr;

	(void)state;
	world.parts[0] = memfd;
	*last = part;
	last->lkey ^= 1;
	refuse(world.b.qp, PARTS, WRITABLE, EINVAL);
	*last = part;
	last->length++;
	refuse(world.b.qp, PARTS, WRITABLE, EINVAL);
	last->length = 0;
	refuse(world.b.qp, PARTS, WRITABLE, EINVAL);
	*last = part;
	/* Rights that the parts do not give. */
	refuse(world.b.qp, PARTS, WRITABLE | IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
	/* Of another protection domain, and not pinned. */
	for (int i = 0; i < 2; i++) {
		mr = soft->reg_mr(i == 0 ? other : world.b.pd, world.memory[0], LENGTH,
				  (uintptr_t)world.memory[0],
				  WRITABLE | (i == 0 ? 0 : IBV_ACCESS_ON_DEMAND));
		assert_non_null(mr);
		last->lkey = mr->lkey;
		last->addr = (uintptr_t)world.memory[0];
		refuse(world.b.qp, PARTS, WRITABLE, EINVAL);
		assert_int_equal(soft->dereg_mr(mr), 0);
	}
	assert_int_equal(soft->dealloc_pd(other), 0);
	*last = part;
	refuse(world.b.qp, PIER_JOIN_PARTS + 1, WRITABLE, ENOMEM);
	errno = 0;
	attr.send_cq = attr.recv_cq = world.b.send_cq;
	assert_null(soft->create_join_qp(world.b.pd, &attr, PIER_JOIN_PARTS + 1));
	assert_int_equal(errno, EINVAL);
	/* A queue pair that cannot send. */
	assert_int_equal(fixture_to(&world.b, IBV_QPS_RESET), 0);
	refuse(world.b.qp, PARTS, WRITABLE, EINVAL);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(peers_reach_all_parts),
		CASE(parts_stay_as_long_as_the_key),
		CASE(refuses_what_the_nic_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "provider/soft/regions/region.h"
#include "soft_fixture.h"

/* ibv_rereg_mr(3): the keys stay, and what they stand for changes. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	SIZE = 4096
};

static const struct fixture_options stepped = { .stepped = 1 };

struct ends {
	struct soft_fixture owner, peer;
	struct fixture_endpoint to_owner;
	struct ibv_mr *mr; /* the first half of the owner's memory */
};

static void open_ends(struct ends *ends)
{
	fixture_open_pair(&ends->owner, &ends->peer, &stepped);
	fixture_describe(&ends->owner, &ends->to_owner);
	ends->mr = soft->reg_mr(ends->owner.pd, ends->owner.memory, SIZE,
				(uintptr_t)ends->owner.memory, WRITABLE);
	assert_non_null(ends->mr);
	ends->to_owner.rkey = ends->mr->rkey;
}

static void close_ends(struct ends *ends)
{
	assert_int_equal(soft->dereg_mr(ends->mr), 0);
	fixture_close(&ends->owner);
	fixture_close(&ends->peer);
}

static enum ibv_wc_status write_there(struct ends *ends, uint64_t offset)
{
	memset(ends->peer.memory, 'w', 8);
	assert_int_equal(fixture_post(&ends->peer, IBV_WR_RDMA_WRITE, 1, 0, 8,
				      &ends->to_owner, offset, IBV_SEND_SIGNALED),
			 0);
	return fixture_wait(&ends->peer, ends->peer.send_cq, &ends->owner).status;
}

static void refuse(struct ends *ends, int flags, struct ibv_pd *pd, void *addr,
		   size_t length, int access, int error)
{
	errno = 0;
	assert_int_equal(pier_soft_rereg_mr(ends->mr, flags, pd, addr, length, access),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, error);
}

static void changes_the_access(void **state)
{
	struct ends ends;

	(void)state;
	open_ends(&ends);
	assert_int_equal(write_there(&ends, 0), IBV_WC_SUCCESS);
	assert_int_equal(pier_soft_rereg_mr(ends.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
					    NULL, 0, IBV_ACCESS_LOCAL_WRITE),
			 0);
	assert_int_equal(ends.mr->rkey, ends.to_owner.rkey);
	assert_int_equal(write_there(&ends, 0), IBV_WC_REM_ACCESS_ERR);
	close_ends(&ends);
}

static void changes_the_memory(void **state)
{
	uint8_t *other;
	struct ends ends;

	(void)state;
	open_ends(&ends);
	other = ends.owner.memory + 2 * SIZE;
	assert_int_equal(pier_soft_rereg_mr(ends.mr, IBV_REREG_MR_CHANGE_TRANSLATION,
					    NULL, other, 2 * SIZE, 0),
			 0);
	assert_ptr_equal(ends.mr->addr, other);
	assert_int_equal(ends.mr->length, 2 * SIZE);
	assert_int_equal(write_there(&ends, 4 * SIZE - 8), IBV_WC_SUCCESS);
	assert_memory_equal(other + 2 * SIZE - 8, "wwwwwwww\0", 9);
	assert_int_equal(write_there(&ends, 0), IBV_WC_REM_ACCESS_ERR);
	close_ends(&ends);
}

static void changes_the_domain(void **state)
{
	struct ibv_pd *pd;
	struct ends ends;

	(void)state;
	open_ends(&ends);
	pd = soft->alloc_pd(ends.owner.context);
	assert_int_equal(
		pier_soft_rereg_mr(ends.mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0), 0);
	assert_ptr_equal(ends.mr->pd, pd);
	assert_int_equal(soft->dealloc_pd(pd), EBUSY);
	assert_int_equal(write_there(&ends, 0), IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(pier_soft_rereg_mr(ends.mr, IBV_REREG_MR_CHANGE_PD,
					    ends.owner.pd, NULL, 0, 0),
			 0);
	assert_int_equal(soft->dealloc_pd(pd), 0);
	close_ends(&ends);
}

/* Whatever is refused leaves the region as it was. */
static void refuses_invalid_changes(void **state)
{
	char *gone = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *file_mr, *first;
	struct ends ends;
	int fd;

	(void)state;
	open_ends(&ends);
	refuse(&ends, 0, NULL, NULL, 0, 0, EINVAL);
	refuse(&ends, 1 << 3, NULL, NULL, 0, 0, EINVAL);
	refuse(&ends, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0, EINVAL);
	refuse(&ends, IBV_REREG_MR_CHANGE_PD, ends.peer.pd, NULL, 0, 0, EINVAL);
	refuse(&ends, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, SIZE, 0, EINVAL);
	refuse(&ends, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, gone, 0, 0, EINVAL);
	refuse(&ends, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, gone, SIZE, 0, EFAULT);
	refuse(&ends, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, gone, SIZE, WRITABLE,
	       EINVAL);
	refuse(&ends, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE,
	       EINVAL);
	assert_int_equal(write_there(&ends, 0), IBV_WC_SUCCESS);
	fd = memfd_create("rereg", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, SIZE), 0);
	file_mr = soft->reg_dmabuf_mr(ends.owner.pd, 0, SIZE, 0, fd, WRITABLE);
	assert_non_null(file_mr);
	first = ends.mr;
	ends.mr = file_mr;
	refuse(&ends, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0, EINVAL);
	ends.mr = first;
	assert_int_equal(soft->dereg_mr(file_mr), 0);
	close(fd);
	munmap(gone, SIZE);
	close_ends(&ends);
}

static void keeps_a_region_with_windows(void **state)
{
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED };
	struct ibv_mw *mw;
	struct ends ends;

	(void)state;
	open_ends(&ends);
	assert_int_equal(pier_soft_rereg_mr(ends.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
					    NULL, 0, WRITABLE | IBV_ACCESS_MW_BIND),
			 0);
	mw = soft->alloc_mw(ends.owner.pd, IBV_MW_TYPE_1);
	bind.bind_info.mr = ends.mr;
	bind.bind_info.addr = (uintptr_t)ends.owner.memory;
	bind.bind_info.length = 8;
	assert_int_equal(ibv_bind_mw(ends.owner.qp, mw, &bind), 0);
	fixture_expect(&ends.owner, ends.owner.send_cq, &ends.peer, 0, IBV_WC_SUCCESS);
	refuse(&ends, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, WRITABLE, EBUSY);
	assert_int_equal(soft->dealloc_mw(mw), 0);
	close_ends(&ends);
}

/* Flags that devices may ignore. */
static void ignores_hints(void **state)
{
	struct ibv_mr *mr;
	struct ends ends;

	(void)state;
	open_ends(&ends);
	mr = soft->reg_mr(ends.owner.pd, ends.owner.memory, SIZE, 0,
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING |
				  IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_FIRST << 1);
	assert_non_null(mr);
	assert_int_equal(soft->dereg_mr(mr), 0);
	close_ends(&ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes_the_access),
		cmocka_unit_test(changes_the_memory),
		cmocka_unit_test(changes_the_domain),
		cmocka_unit_test(refuses_invalid_changes),
		cmocka_unit_test(keeps_a_region_with_windows),
		cmocka_unit_test(ignores_hints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

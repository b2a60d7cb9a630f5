/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/census.h"
#include "court.h"
#include "fds.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <pier/pier.h>
#include <pier/verbs.h>

/*
 * The library of preload/, as programs see it. This program restarts itself with the
 * library preloaded.
 *
 * usage: vm_preload LIBRARY [DEVICE]
 */

enum {
	WRITE = PIER_ACCESS_LOCAL_WRITE,
	ROUNDS = 500,
};

struct world {
	struct court court;
	struct targets targets;
	const char *device;
};

/*
 * The library fills in all that libibverbs does, and ibv_dereg_mr() deregisters the
 * region.
 */
static void test_region(void **state)
{
	struct world *world = *state;
	const struct target *target = &world->targets.list[TARGET_UDMABUF];
	uint64_t page = world->court.page, offset = page + 5;
	struct test_census before = test_take_census();

	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_mr *mr = ibv_reg_dmabuf_mr(world->court.pd, offset, 2 * page,
						      0x700005, target->fd, WRITE);

		if (!mr)
			fail_msg("ibv_reg_dmabuf_mr: %m");
		assert_ptr_equal(mr->addr, (void *)(uintptr_t)offset);
		assert_int_equal(mr->length, 2 * page);
		assert_ptr_equal(mr->pd, world->court.pd);
		assert_ptr_equal(mr->context, world->court.context);
		assert_int_not_equal(mr->lkey, 0);
		assert_int_not_equal(mr->rkey, 0);
		assert_int_equal(ibv_dereg_mr(mr), 0);
	}
	test_assert_census(&before);
}

/* Regions have different handles: of two, the right one is deregistered. */
static void test_handles(void **state)
{
	struct world *world = *state;
	int fd = world->targets.list[TARGET_PIECES].fd;
	struct ibv_mr *first, *second;

	first = ibv_reg_dmabuf_mr(world->court.pd, 0, 1, 0, fd, WRITE);
	second = ibv_reg_dmabuf_mr(world->court.pd, 0, 1, 0, fd, WRITE);
	assert_non_null(first);
	assert_non_null(second);
	assert_int_not_equal(first->handle, second->handle);
	assert_int_not_equal(first->rkey, second->rkey);
	/* The kernel keeps the PD while a region is left. */
	assert_int_equal(ibv_dereg_mr(first), 0);
	assert_int_equal(ibv_dealloc_pd(world->court.pd), EBUSY);
	assert_int_equal(ibv_dereg_mr(second), 0);
}

static void refuse(struct world *world, uint64_t offset, uint64_t iova, int fd, int error)
{
	errno = 0;
	assert_null(ibv_reg_dmabuf_mr(world->court.pd, offset, 1, iova, fd, WRITE));
	assert_int_equal(errno, error);
}

static void test_refusals(void **state)
{
	struct world *world = *state;
	const struct target *target = &world->targets.list[TARGET_UDMABUF];

	refuse(world, 0, 0, -1, EBADF);
	refuse(world, 0, 1, target->fd, EINVAL);
	refuse(world, target->size, 0, target->fd, EINVAL);
	refuse(world, 0, 0, world->targets.list[world->targets.dmabufs].fd, EINVAL);
}

/* pier detects that the device supports dma-bufs, and uses them. */
static void test_pier(void **state)
{
	struct world *world = *state;
	struct test_census before = test_take_census();
	struct pier_device_attr attr;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr;

	assert_int_equal(pier_device_open(world->device, &device), 0);
	assert_int_equal(pier_device_query(device, &attr, sizeof(attr)), 0);
	assert_true(attr.dmabuf);
	assert_int_equal(pier_pd_alloc(device, &pd), 0);
	assert_int_equal(pier_mr_reg_dmabuf(pd, 3, 7, 0x9003,
					    world->targets.list[TARGET_UDMABUF].fd, WRITE,
					    &mr),
			 0);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	assert_int_equal(pier_mr_iova(mr), 0x9003);
	assert_ptr_equal(pier_mr_verbs(mr)->addr, (void *)3);
	assert_int_equal(pier_mr_dereg(mr), 0);
	assert_int_equal(pier_pd_dealloc(pd), 0);
	assert_int_equal(pier_device_close(device), 0);
	test_assert_census(&before);
}

static int run_cases(void *argument)
{
	struct world *world = argument;
	const struct CMUnitTest cases[] = {
		cmocka_unit_test_prestate(test_region, world),
		cmocka_unit_test_prestate(test_handles, world),
		cmocka_unit_test_prestate(test_refusals, world),
		cmocka_unit_test_prestate(test_pier, world),
	};

	return cmocka_run_group_tests_name("preload", cases, NULL, NULL);
}

static int run(const char *device)
{
	struct world world = { .device = device };

	return court_hold(&world.court, &world.targets, device, run_cases, &world);
}

int main(int argc, char **argv)
{
	const char *loaded = getenv("LD_PRELOAD");

	if (argc < 2) {
		fprintf(stderr, "usage: %s LIBRARY [DEVICE]\n", argv[0]);
		return 2;
	}
	if (loaded && strstr(loaded, argv[1]))
		return run(argc > 2 ? argv[2] : "rxe0");
	setenv("LD_PRELOAD", argv[1], 1);
	execv(argv[0], argv);
	perror(argv[0]);
	return EXIT_FAILURE;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "cases.h"
#include "world.h"

/* Many registrations, half of which must fail. None may leave anything behind. */

enum {
	REGISTRATIONS = 10000,
	CLOSED_FD = 1 << 20, /* beyond any limit on open files */
};

struct attempt {
	struct world *world;
	int null_fd;
	struct pier_mr *mr;
};

static int reg_part(struct attempt *attempt, size_t offset, size_t length, int access)
{
	return pier_mr_reg_buffer(attempt->world->a.pd, attempt->world->a.area.buffer,
				  offset, length, access, PIER_POLICY_DIRECT,
				  &attempt->mr);
}

static int past_the_end(struct attempt *attempt)
{
	return reg_part(attempt, AREA_LENGTH - 10, 11, PIER_ACCESS_SHARED);
}

static int no_length(struct attempt *attempt)
{
	return reg_part(attempt, 10, 0, PIER_ACCESS_SHARED);
}

static int overflowing(struct attempt *attempt)
{
	return reg_part(attempt, 10, SIZE_MAX - 5, PIER_ACCESS_SHARED);
}

static int remote_write_alone(struct attempt *attempt)
{
	return reg_part(attempt, 0, 10, PIER_ACCESS_REMOTE_WRITE);
}

static int unknown_access(struct attempt *attempt)
{
	return reg_part(attempt, 0, 10, 1 << 19);
}

static int unknown_policy(struct attempt *attempt)
{
	return pier_mr_reg_buffer(attempt->world->a.pd, attempt->world->a.area.buffer, 0,
				  10, PIER_ACCESS_SHARED, (enum pier_policy)9,
				  &attempt->mr);
}

static int closed_fd(struct attempt *attempt)
{
	return pier_mr_reg_dmabuf(attempt->world->a.pd, 0, 4096, 0, CLOSED_FD,
				  PIER_ACCESS_SHARED, &attempt->mr);
}

static int no_dmabuf(struct attempt *attempt)
{
	return pier_mr_reg_dmabuf(attempt->world->a.pd, 0, 4096, 0, attempt->null_fd,
				  PIER_ACCESS_SHARED, &attempt->mr);
}

static int misaligned_iova(struct attempt *attempt)
{
	return pier_mr_reg_dmabuf(attempt->world->a.pd, 0, 4096, 1, attempt->null_fd,
				  PIER_ACCESS_SHARED, &attempt->mr);
}

static int unmapped(struct attempt *attempt)
{
	/* The first page is never mapped (vm.mmap_min_addr). */
	return pier_mr_reg(attempt->world->a.pd, (void *)16, 100, PIER_ACCESS_SHARED,
			   &attempt->mr);
}

static const struct {
	int (*attempt)(struct attempt *attempt);
	int error;
	bool dmabuf; /* -EOPNOTSUPP is also correct */
} failures[] = {
	{ past_the_end, -ERANGE, false },   { no_length, -EINVAL, false },
	{ overflowing, -ERANGE, false },    { remote_write_alone, -EINVAL, false },
	{ unknown_access, -EINVAL, false }, { unknown_policy, -EINVAL, false },
	{ closed_fd, -EBADF, true },	    { no_dmabuf, -EINVAL, true },
	{ misaligned_iova, -EINVAL, true }, { unmapped, -EFAULT, false },
};

static void expect_failure(struct attempt *attempt, size_t which)
{
	struct pier_mr *untouched = attempt->mr;
	int error = failures[which].attempt(attempt);

	if (error != failures[which].error &&
	    !(failures[which].dmabuf && error == -EOPNOTSUPP))
		fail_msg("failure %zu: %d, not %d: %s", which, error,
			 failures[which].error, pier_error_message());
	assert_ptr_equal(attempt->mr, untouched);
}

static void register_random_part(struct attempt *attempt)
{
	struct test_random *random = &attempt->world->random;
	size_t offset = test_random_below(random, AREA_LENGTH);
	size_t length = 1 + test_random_below(random, AREA_LENGTH - offset);

	expect_ok(reg_part(attempt, offset, length, PIER_ACCESS_SHARED));
	assert_int_equal(pier_mr_length(attempt->mr), length);
	assert_int_equal(pier_mr_iova(attempt->mr),
			 pier_buffer_address(attempt->world->a.area.buffer) + offset);
	expect_ok(pier_mr_dereg(attempt->mr));
}

static void failed_registrations_leave_nothing(void **state)
{
	struct world *world = world_opened(state);
	struct attempt attempt = { .world = world };
	struct test_census before;

	attempt.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_true(attempt.null_fd >= 0);
	before = test_take_census();
	for (size_t i = 0; i < REGISTRATIONS; i++) {
		if (i % 2)
			expect_failure(&attempt, (i / 2) % (sizeof(failures) /
							    sizeof(failures[0])));
		else
			register_random_part(&attempt);
	}
	test_assert_census(&before);
	close(attempt.null_fd);
	world_expect(world);
}

/* Many regions at once make the tables of keys grow and shrink. */
static void many_regions_exist_at_once(void **state)
{
	enum {
		MANY = 300
	};
	struct world *world = world_connected(state);
	struct pier_mr *regions[MANY];
	struct pier_remote target;
	struct pier_gather source = gather_at(&world->a.area, 0, 100);

	for (size_t i = 0; i < MANY; i++)
		expect_ok(pier_mr_reg_buffer(world->b.pd, world->b.area.buffer,
					     600 * i + 1, 100, PIER_ACCESS_SHARED,
					     PIER_POLICY_DIRECT, &regions[i]));
	for (size_t i = 0; i < MANY; i += 7) {
		expect_ok(pier_mr_remote(regions[i], &target));
		expect_ok(pier_channel_write(world->a.channel, &source, 1, &target,
					     PATIENT));
		image_copy(&world->b.area, 600 * i + 1, &world->a.area, 0, 100);
	}
	for (size_t i = 0; i < MANY; i++)
		expect_ok(pier_mr_dereg(regions[i]));
	world_expect(world);
}

int run_registration_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(failed_registrations_leave_nothing),
		world_case(many_regions_exist_at_once),
	};

	return cmocka_run_group_tests_name("registration", cases, NULL, NULL);
}

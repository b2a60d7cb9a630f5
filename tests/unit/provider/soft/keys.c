/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_fixture.h"

/* Requested keys, and every way in which reg_parts() refuses. */

static const struct pier_provider *const soft = &pier_soft_provider;

enum {
	WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		   IBV_ACCESS_REMOTE_READ
};

static struct ibv_mr *reg_with_key(struct soft_fixture *fixture, uint32_t key)
{
	const struct pier_provider_part part = { .fd = -1,
						 .addr = fixture->memory,
						 .length = FIXTURE_MEMORY };

	errno = 0;
	return soft->reg_parts(fixture->pd, &part, 1, 0, WRITABLE, &key);
}

static void refuse_key(struct soft_fixture *fixture, uint32_t key, int error)
{
	assert_null(reg_with_key(fixture, key));
	assert_int_equal(errno, error);
}

static void accepts_the_documented_keys(void **state)
{
	const uint32_t most = soft->max_key;
	struct ibv_mr *first, *last;
	struct soft_fixture fixture;

	(void)state;
	assert_int_equal(most, 65535);
	fixture_open(&fixture, NULL);
	refuse_key(&fixture, 0, EKEYREJECTED);
	refuse_key(&fixture, most + 1, EKEYREJECTED);
	refuse_key(&fixture, UINT32_MAX, EKEYREJECTED);
	refuse_key(&fixture, fixture.mr->lkey, EKEYREJECTED);
	first = reg_with_key(&fixture, 1);
	last = reg_with_key(&fixture, most);
	assert_true(first && last);
	assert_int_equal(first->lkey, 1);
	assert_int_equal(first->rkey, 1);
	assert_int_equal(last->rkey, most);
	refuse_key(&fixture, 1, ENOKEY);
	refuse_key(&fixture, most, ENOKEY);
	assert_int_equal(soft->dereg_mr(first), 0);
	refuse_key(&fixture, most, ENOKEY);
	first = reg_with_key(&fixture, 1);
	assert_non_null(first);
	assert_int_equal(soft->dereg_mr(first), 0);
	assert_int_equal(soft->dereg_mr(last), 0);
	fixture_close(&fixture);
}

/* The provider never chooses a key that a caller may request. */
static void chosen_keys_are_never_requestable(void **state)
{
	enum {
		MANY = 200
	};
	struct ibv_mr *mrs[MANY];
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, NULL);
	assert_true(fixture.mr->lkey > soft->max_key);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++) {
			mrs[i] = soft->reg_mr(fixture.pd, fixture.memory, 64,
					      (uintptr_t)fixture.memory, WRITABLE);
			assert_non_null(mrs[i]);
			assert_true(mrs[i]->lkey > soft->max_key);
			assert_int_equal(mrs[i]->lkey, mrs[i]->rkey);
		}
		for (int i = 0; i < MANY; i++)
			assert_int_equal(soft->dereg_mr(mrs[i]), 0);
	}
	fixture_close(&fixture);
}

static void write_to_key(struct soft_fixture *a, struct soft_fixture *b, uint64_t wr_id,
			 uint32_t key, enum ibv_wc_status status)
{
	struct fixture_endpoint peer = { .rkey = key };

	assert_int_equal(fixture_post(a, IBV_WR_RDMA_WRITE, wr_id, 0, 100, &peer, 7,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_expect(a, a->send_cq, b, wr_id, status);
}

static void transfers_with_a_requested_key(void **state)
{
	struct soft_fixture a, b;
	struct ibv_mr *mr;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	memset(a.memory, 'k', 100);
	mr = reg_with_key(&b, 4711);
	assert_non_null(mr);
	write_to_key(&a, &b, 1, 4711, IBV_WC_SUCCESS);
	assert_int_equal(b.memory[6], 0);
	assert_memory_equal(b.memory + 7, a.memory, 100);
	assert_int_equal(b.memory[107], 0);
	write_to_key(&a, &b, 2, 4712, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&a);
	fixture_close(&b);
}

static void freed_key_can_be_requested_again(void **state)
{
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	assert_int_equal(soft->dereg_mr(reg_with_key(&b, 4711)), 0);
	write_to_key(&a, &b, 1, 4711, IBV_WC_REM_ACCESS_ERR);
	fixture_close(&a);
	fixture_close(&b);
}

/* A key is taken in the whole context, but gives access only within its PD. */
static void refuses_keys_of_another_pd(void **state)
{
	const uint32_t key = 12;
	const struct pier_provider_part part = { .fd = -1, .length = FIXTURE_MEMORY };
	struct pier_provider_part mine = part;
	struct ibv_pd *other;
	struct ibv_mr *mr;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	other = soft->alloc_pd(b.context);
	assert_non_null(other);
	mine.addr = b.memory;
	mr = soft->reg_parts(other, &mine, 1, 0, WRITABLE, &key);
	assert_non_null(mr);
	refuse_key(&b, key, ENOKEY);
	assert_int_equal(soft->dealloc_pd(other), EBUSY);
	write_to_key(&a, &b, 1, key, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(soft->dereg_mr(mr), 0);
	assert_int_equal(soft->dealloc_pd(other), 0);
	fixture_close(&a);
	fixture_close(&b);
}

/* Only the memfds of this file; sanitizers create and remove other mappings. */
static int count_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int count = 0;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "memfd:parts") != NULL;
	fclose(maps);
	return count;
}

static const struct refusal {
	struct pier_provider_part last; /* behind three valid ones */
	uint64_t iova;
	int access, error;
} refusals[] = {
	{ { .fd = -1, .length = 0 }, 0, WRITABLE, EINVAL },
	{ { .fd = -1, .length = SIZE_MAX }, 0, WRITABLE, EINVAL },
	{ { .fd = -1, .length = SIZE_MAX - 24575 }, 0, WRITABLE, EINVAL },
	{ { .fd = -1, .length = 1 }, UINT64_MAX - 24575, WRITABLE, EINVAL },
	{ { .fd = -1, .length = 1, .addr = (void *)16 }, 0, WRITABLE, EFAULT },
	{ { .fd = -2, .length = 1 }, 0, WRITABLE, EBADF },
	{ { .fd = 1000000, .length = 1 }, 0, WRITABLE, EBADF },
	{ { .fd = 'n', .length = 1 }, 0, WRITABLE, EINVAL },
	{ { .fd = 'm', .length = 0 }, 0, WRITABLE, EINVAL },
	{ { .fd = 'm', .length = 65537 }, 0, WRITABLE, EINVAL },
	{ { .fd = 'm', .length = 1, .offset = 65536 }, 0, WRITABLE, EINVAL },
	{ { .fd = 'm', .length = 2, .offset = UINT64_MAX }, 0, WRITABLE, EINVAL },
	{ { .fd = 'm', .length = 1 }, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL },
	{ { .fd = 'm', .length = 1 }, 0, WRITABLE | IBV_ACCESS_MW_BIND, EINVAL },
	{ { .fd = 'r', .length = 1 }, 0, WRITABLE, EACCES },
};

static int open_again(int fd, int flags)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

/* Nothing is left behind, whichever piece is refused, and for whatever reason. */
static void refused_part_leaves_nothing_behind(void **state)
{
	int memfd = memfd_create("parts", MFD_CLOEXEC), fds;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), readable;
	struct soft_fixture fixture;

	(void)state;
	assert_int_equal(ftruncate(memfd, 65536), 0);
	readable = open_again(memfd, O_RDONLY);
	assert_true(null >= 0 && readable >= 0);
	fixture_open(&fixture, NULL);
	fds = fixture_count_fds();
	assert_int_equal(count_mappings(), 0);
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		const struct refusal *refusal = &refusals[i];
		struct pier_provider_part parts[4] = {
			{ .fd = memfd, .offset = 3, .length = 8191 },
			{ .fd = -1, .addr = fixture.memory, .length = 8193 },
			{ .fd = memfd, .offset = 20000, .length = 8192 },
			refusal->last,
		};

		if (parts[3].fd == 'm' || parts[3].fd == 'n' || parts[3].fd == 'r')
			parts[3].fd = parts[3].fd == 'm'   ? memfd
				      : parts[3].fd == 'n' ? null
							   : readable;
		errno = 0;
		assert_null(soft->reg_parts(fixture.pd, parts, 4, refusal->iova,
					    refusal->access, NULL));
		if (errno != refusal->error)
			fail_msg("refusal %zu: errno %d", i, errno);
		assert_int_equal(fixture_count_fds(), fds);
		assert_int_equal(count_mappings(), 0);
	}
	fixture_close(&fixture);
	close(readable);
	close(null);
	close(memfd);
}

/* A key in use is detected last; nothing is left behind in that case either. */
static void refused_region_leaves_nothing_behind(void **state)
{
	const uint32_t count = soft->max_parts + 1, key = 5, bad_key = 0;
	struct pier_provider_part *parts = calloc(count, sizeof(*parts));
	int memfd = memfd_create("parts", MFD_CLOEXEC), fds;
	struct ibv_mr *mr;
	struct soft_fixture fixture;

	(void)state;
	assert_non_null(parts);
	assert_int_equal(count, 1025);
	assert_int_equal(ftruncate(memfd, 65536), 0);
	fixture_open(&fixture, NULL);
	for (uint32_t i = 0; i < count; i++)
		parts[i] = (struct pier_provider_part){ .fd = memfd,
							.offset = i,
							.length = 1 };
	mr = reg_with_key(&fixture, key);
	assert_non_null(mr);
	fds = fixture_count_fds();
	errno = 0;
	assert_null(soft->reg_parts(fixture.pd, parts, 0, 0, WRITABLE, NULL));
	assert_int_equal(errno, EINVAL);
	assert_null(soft->reg_parts(fixture.pd, parts, count, 0, WRITABLE, NULL));
	assert_int_equal(errno, E2BIG);
	assert_null(soft->reg_parts(fixture.pd, parts, 2, 0, WRITABLE, &bad_key));
	assert_int_equal(errno, EKEYREJECTED);
	assert_null(soft->reg_parts(fixture.pd, parts, count - 1, 0, WRITABLE, &key));
	assert_int_equal(errno, ENOKEY);
	/* A single piece must keep to the page rule; several need not. */
	assert_null(soft->reg_parts(fixture.pd, parts, 1, 1, WRITABLE, NULL));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(fixture_count_fds(), fds);
	assert_int_equal(count_mappings(), 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	mr = soft->reg_parts(fixture.pd, parts, count - 1, 1, WRITABLE, &key);
	assert_non_null(mr);
	assert_int_equal(mr->length, count - 1);
	assert_int_equal(fixture_count_fds(),
			 fds + 1); /* for peers; the sum over all pieces */
	assert_true(count_mappings() > 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	assert_int_equal(fixture_count_fds(), fds);
	assert_int_equal(count_mappings(), 0);
	fixture_close(&fixture);
	close(memfd);
	free(parts);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(accepts_the_documented_keys),
		cmocka_unit_test(chosen_keys_are_never_requestable),
		cmocka_unit_test(transfers_with_a_requested_key),
		cmocka_unit_test(freed_key_can_be_requested_again),
		cmocka_unit_test(refuses_keys_of_another_pd),
		cmocka_unit_test(refused_part_leaves_nothing_behind),
		cmocka_unit_test(refused_region_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

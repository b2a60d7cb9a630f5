/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cache_fixture.h"

struct cache_fixture fixture;

struct pinned {
	struct ibv_mr mr;
	uint64_t tag;
};

/*
 * An address outside those that mmap(2) chooses: what the test unmaps here stays free
 * until the test maps it again. Sanitizers may ignore the hint.
 */
#ifdef __SANITIZE_THREAD__
#define PLACE ((void *)0x4000000000)
#else
#define PLACE ((void *)0x200000000000)
#endif

/* The tag that the page holds now. The page may begin before the program's own object. */
__attribute__((no_sanitize("address", "thread"))) static uint64_t tag_at(uint64_t address)
{
	return *(volatile uint64_t *)(uintptr_t)(address & ~((uint64_t)fixture.page - 1));
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     int access)
{
	struct pinned *pinned;

	(void)iova, (void)access;
	if (atomic_load(&fixture.fails) > 0) {
		atomic_fetch_sub(&fixture.fails, 1);
		errno = ENOMEM;
		return NULL;
	}
	pinned = calloc(1, sizeof(*pinned));
	if (!pinned)
		return NULL;
	pinned->tag = tag_at((uintptr_t)addr);
	pinned->mr = (struct ibv_mr){ .pd = pd, .addr = addr, .length = length };
	atomic_fetch_add(&fixture.live, 1);
	atomic_fetch_add(&fixture.registered, 1);
	if (fixture.on_register)
		fixture.on_register(addr);
	return &pinned->mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	if (atomic_load(&fixture.sticks) > 0) {
		atomic_fetch_sub(&fixture.sticks, 1);
		return EBUSY;
	}
	if (fixture.on_deregister)
		fixture.on_deregister(mr->addr);
	atomic_fetch_sub(&fixture.live, 1);
	free(mr);
	return 0;
}

static const struct pier_provider provider = {
	.name = "pins",
	.reg_mr = reg_mr,
	.dereg_mr = dereg_mr,
};

void fixture_start(const struct pier_mr_cache_attr *attr)
{
	memset(&fixture, 0, sizeof(fixture));
	fixture.page = (size_t)sysconf(_SC_PAGESIZE);
	fixture.device.provider = &provider;
	fixture.device.context = &fixture.context;
	fixture.device.limits.max_mr_size = UINT64_MAX;
	snprintf(fixture.device.name, sizeof(fixture.device.name), "pins0");
	fixture.pd.device = &fixture.device;
	fixture.pd.pd = &fixture.verbs_pd;
	/* The current generation, so that a child can use the PD as its own. */
	fixture.pd.object.generation = pier_fork_generation;
	pthread_mutex_init(&fixture.pd.lock, NULL);
	pier_list_init(&fixture.pd.users);
	fixture.before = test_take_census();
	expect_ok(pier_mr_cache_create(&fixture.pd, attr, &fixture.cache));
	assert_int_equal(atomic_load(&fixture.pd.children), 1);
}

void fixture_end(void)
{
	expect_ok(pier_mr_cache_destroy(fixture.cache));
	assert_int_equal(atomic_load(&fixture.live), 0);
	assert_int_equal(atomic_load(&fixture.pd.children), 0);
	test_assert_census(&fixture.before);
}

void fixture_need_watch(void)
{
	if (fixture_stats().watching)
		return;
	fixture_end();
	fprintf(stderr, "skip: userfaultfd: %s\n", pier_error_message());
	skip();
}

void fixture_tag(void *memory, size_t pages, uint64_t tag)
{
	for (size_t i = 0; i < pages; i++)
		*(uint64_t *)((char *)memory + i * fixture.page) = tag;
}

/* A hint that is taken would be ignored: each mapping has a place of its own. */
void *fixture_map(size_t pages, uint64_t tag)
{
	static size_t used;
	size_t length = pages * fixture.page;
	void *memory = mmap((char *)PLACE + used, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	used += length;
	assert_ptr_not_equal(memory, MAP_FAILED);
	fixture_tag(memory, pages, tag);
	return memory;
}

struct pier_mr *fixture_get(void *addr, size_t length, int access)
{
	struct pier_mr *mr = NULL;

	expect_ok(test_cache_get(fixture.cache, addr, length, access, &mr));
	assert_true(pier_mr_encloses(mr, (uintptr_t)addr, length));
	assert_int_equal(access & ~test_mr_info(mr).access, 0);
	return mr;
}

struct pier_mr *fixture_get_buffer(struct pier_buffer *buffer, size_t offset,
				   size_t length, int access)
{
	struct pier_mr *mr = NULL;

	expect_ok(test_cache_get_buffer(fixture.cache, buffer, offset, length, access,
					&mr));
	assert_true(pier_mr_encloses(mr, pier_buffer_address(buffer) + offset, length));
	assert_int_equal(access & ~test_mr_info(mr).access, 0);
	return mr;
}

void fixture_put(struct pier_mr *mr)
{
	expect_ok(pier_mr_cache_put(fixture.cache, mr));
}

void fixture_touch(void *addr, size_t length, int access)
{
	fixture_put(fixture_get(addr, length, access));
}

struct pier_mr_cache_stats fixture_stats(void)
{
	struct pier_mr_cache_stats stats;

	pier_mr_cache_query_stats(fixture.cache, &stats, sizeof(stats));
	return stats;
}

bool fixture_is_fresh(const struct pier_mr *mr)
{
	const struct pinned *pinned = (const struct pinned *)mr->mr;

	return pinned->tag == tag_at((uintptr_t)pinned->mr.addr);
}

void fixture_deadline(unsigned int seconds)
{
	alarm(seconds); /* SIGALRM ends the program */
}

void fixture_await_live(int count)
{
	struct timespec now, start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while (atomic_load(&fixture.live) != count) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - start.tv_sec > 20)
			fail_msg("%d regions are registered, not %d",
				 atomic_load(&fixture.live), count);
		sched_yield();
	}
}

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_CACHE_FIXTURE_H
#define PIER_TESTS_CACHE_FIXTURE_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <stdatomic.h>

#include "region/cache/index.h"
#include "device/device.h"
#include "region/mr.h"

/*
 * A NIC that pins. A region remembers the bytes of its first page at registration. New
 * memory at the same address has different bytes, so a stale region can be told from a
 * fresh one.
 */
struct cache_fixture {
	struct test_census before;
	struct pier_device device;
	struct ibv_context context;
	struct ibv_pd verbs_pd;
	struct pier_pd pd;
	struct pier_mr_cache *cache;
	size_t page;
	atomic_int live, registered;	 /* regions now, and in total */
	atomic_int fails;		 /* this many registrations fail with ENOMEM */
	atomic_int sticks;		 /* this many deregistrations fail with EBUSY */
	void (*on_register)(void *addr); /* called in the middle of a registration */
	void (*on_deregister)(void *addr);
};

extern struct cache_fixture fixture;

/*
 * Create a cache with these attributes, or the defaults if NULL. The test must leave
 * nothing of it behind.
 */
void fixture_start(const struct pier_mr_cache_attr *attr);
void fixture_end(void);

/* Skip the test where the kernel does not allow memory to be watched. */
void fixture_need_watch(void);

/* Map new pages, each of which begins with the tag. */
void *fixture_map(size_t pages, uint64_t tag);
void fixture_tag(void *memory, size_t pages, uint64_t tag);

struct pier_mr *fixture_get(void *addr, size_t length, int access);
struct pier_mr *fixture_get_buffer(struct pier_buffer *buffer, size_t offset,
				   size_t length, int access);
void fixture_put(struct pier_mr *mr);
/* Get and put. */
void fixture_touch(void *addr, size_t length, int access);
struct pier_mr_cache_stats fixture_stats(void);

/* Whether the region refers to the memory that is there now. */
bool fixture_is_fresh(const struct pier_mr *mr);

/* End the program as failed after this many seconds: a deadlock. */
void fixture_deadline(unsigned int seconds);

/* Wait until this many regions are registered, or fail. */
void fixture_await_live(int count);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_CACHE_RIG_H
#define PIER_TESTS_CACHE_RIG_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <stdatomic.h>

#include "region/cache/cache.h"
#include "device/device.h"
#include "region/mr.h"

/*
 * A NIC that pins: a region remembers the bytes that its first page had when it
 * was registered. Memory that came back at the same address has others, so a
 * region that stands for what was there before is told from a fresh one.
 */
struct cache_rig {
	struct test_census before;
	struct pier_device device;
	struct ibv_context context;
	struct ibv_pd verbs_pd;
	struct pier_pd pd;
	struct pier_mr_cache *cache;
	size_t page;
	atomic_int live, registered;	 /* regions, now and ever */
	atomic_int fails;		 /* so many registrations fail with ENOMEM */
	atomic_int sticks;		 /* so many deregistrations with EBUSY */
	void (*on_register)(void *addr); /* in the middle of one */
	void (*on_deregister)(void *addr);
};

extern struct cache_rig rig;

/* A cache with these attributes; NULL: the defaults. Nothing of it may be left. */
void rig_start(const struct pier_mr_cache_attr *attr);
void rig_end(void);

/* Skips the test where the kernel does not let memory be watched. */
void rig_need_watch(void);

/* New pages, each of which begins with the tag. */
void *rig_map(size_t pages, uint64_t tag);
void rig_tag(void *memory, size_t pages, uint64_t tag);

struct pier_mr *rig_get(void *addr, size_t length, int access);
struct pier_mr *rig_get_buffer(struct pier_buffer *buffer, size_t offset, size_t length,
			       int access);
void rig_put(struct pier_mr *mr);
/* Get and put. */
void rig_touch(void *addr, size_t length, int access);
struct pier_mr_cache_stats rig_stats(void);

/* Whether a region stands for what is in memory now. */
bool rig_is_fresh(const struct pier_mr *mr);

/* Ends the program, as failed, when it takes so long: a deadlock. */
void rig_deadline(unsigned int seconds);

/* Waits until as many regions are registered, or fails. */
void rig_await_live(int count);

#endif

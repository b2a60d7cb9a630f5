/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include "cmocka.h"
#include "requests.h"

#include <pier/cache.h>
#include <pier/error.h>
#include <pier/mr.h>

/* The call must return this; otherwise the sentence is printed. */
#define expect_result(call, expected)                                              \
	do {                                                                       \
		int result_ = (call), expected_ = (expected);                      \
                                                                                   \
		if (result_ != expected_)                                          \
			fail_msg("%s:%d: %s = %d, not %d: %s", __FILE__, __LINE__, \
				 #call, result_, expected_, pier_error_message()); \
	} while (0)
#define expect_ok(call) expect_result(call, 0)

/* Register several ranges as one region, with the defaults. */
static inline int test_reg_mr_vec(struct pier_pd *pd, const struct pier_mr_range *ranges,
				  uint32_t count, int access, struct pier_mr **ret_mr)
{
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = ranges;
	attr.range_count = count;
	attr.access = access;
	return pier_mr_reg_attr(pd, &attr, ret_mr);
}

/* Of a pointer, a buffer. */
static inline int test_cache_get(struct pier_mr_cache *cache, void *addr, size_t length,
				 int access, struct pier_mr **ret_mr)
{
	struct pier_mr_range range = pier_mr_range_pointer(addr, length);

	return pier_mr_cache_get(cache, &range, access, ret_mr);
}

static inline int test_cache_get_buffer(struct pier_mr_cache *cache,
					struct pier_buffer *buffer, size_t offset,
					size_t length, int access,
					struct pier_mr **ret_mr)
{
	struct pier_mr_range range = pier_mr_range_buffer(buffer, offset, length);

	return pier_mr_cache_get(cache, &range, access, ret_mr);
}

static inline int test_cache_invalidate(struct pier_mr_cache *cache, void *addr,
					size_t length)
{
	struct pier_mr_range range = pier_mr_range_pointer(addr, length);

	return pier_mr_cache_invalidate(cache, &range);
}

static inline struct pier_buffer_info test_buffer_info(const struct pier_buffer *buffer)
{
	struct pier_buffer_info info;

	expect_ok(pier_buffer_query(buffer, &info, sizeof(info)));
	return info;
}

static inline struct pier_mr_info test_mr_info(const struct pier_mr *mr)
{
	struct pier_mr_info info;

	pier_mr_query(mr, &info, sizeof(info));
	return info;
}

#endif

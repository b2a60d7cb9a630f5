/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call that takes attributes takes those of other versions of the library: shorter
 * ones never, longer ones if what it does not know is zero or unset. A size that was
 * never set is refused.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <string.h>

#include <pier/pier.h>

enum {
	LENGTH = 4096,
	NEWER = 24, /* bytes that a newer header has */
};

static struct pier_device *device;
static struct pier_pd *pd;
static struct pier_mr *mr;
static struct pier_channel *channel, *other;
static struct pier_remote whole;
static char memory[LENGTH];

static int open_fixture(void **state)
{
	struct pier_endpoint endpoint;

	(void)state;
	expect_ok(pier_device_open(PIER_SOFT_DEVICE, &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_mr_reg(pd, memory, LENGTH, PIER_ACCESS_SHARED, &mr));
	expect_ok(pier_mr_remote(mr, &whole));
	expect_ok(pier_channel_create(pd, NULL, &channel));
	expect_ok(pier_channel_endpoint(channel, &endpoint));
	expect_ok(pier_channel_connect(channel, &endpoint));
	expect_ok(pier_channel_create(pd, NULL, &other));
	return 0;
}

static int close_fixture(void **state)
{
	(void)state;
	expect_ok(pier_channel_destroy(other));
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_pd_dealloc(pd));
	return pier_device_close(device);
}

/* Fill in attributes, and make the object and destroy it. */
struct kind {
	const char *init_name;
	size_t size;
	void (*init)(void *attr);
	int (*make)(const void *attr);
};

#define INIT(name)                             \
	static void init_##name(void *attr)    \
	{                                      \
		pier_##name##_attr_init(attr); \
	}
#define MAKE(name, create, destroy)                \
	static int make_##name(const void *attr)   \
	{                                          \
		struct pier_##name *object = NULL; \
		int error = create;                \
                                                   \
		if (!error)                        \
			expect_ok(destroy);        \
		return error;                      \
	}
INIT(channel)
INIT(cq)
INIT(srq)
INIT(recv_pool)
INIT(mr_cache)
INIT(event_queue)
INIT(group)
INIT(ring)
INIT(scope)
MAKE(channel, pier_channel_create(pd, attr, &object), pier_channel_destroy(object))
MAKE(cq, pier_cq_create(pd, attr, &object), pier_cq_destroy(object))
MAKE(srq, pier_srq_create(pd, attr, &object), pier_srq_destroy(object))
MAKE(recv_pool, pier_recv_pool_create(pd, attr, &object), pier_recv_pool_destroy(object))
MAKE(mr_cache, pier_mr_cache_create(pd, attr, &object), pier_mr_cache_destroy(object))
MAKE(event_queue, pier_event_queue_create(attr, &object),
     pier_event_queue_destroy(object))
MAKE(group, pier_group_create(pd, 0, 1, attr, &object), pier_group_destroy(object))
MAKE(ring, pier_ring_create(pd, attr, &object), pier_ring_destroy(object))
MAKE(mr, pier_mr_reg_attr(pd, attr, &object), pier_mr_dereg(object))
MAKE(transfer, pier_transfer_create(attr, &object), pier_transfer_destroy(object))
MAKE(receiver, pier_receiver_create(attr, &object), pier_receiver_destroy(object))

static int make_scope(const void *attr)
{
	struct pier_scope scope;
	int error = pier_scope_begin(channel, attr, &scope);

	return error ? error : pier_scope_end(&scope, 0, NULL);
}

static void init_mr(void *attr)
{
	static struct pier_mr_range range;
	struct pier_mr_attr *mr_attr = attr;

	range = pier_mr_range_host(memory, LENGTH);
	pier_mr_attr_init(mr_attr);
	mr_attr->ranges = &range;
	mr_attr->range_count = 1;
}

static void init_transfer(void *attr)
{
	static struct pier_rail rail;
	struct pier_transfer_attr *transfer_attr = attr;

	rail = (struct pier_rail){
		.channel = channel, .mr = mr, .parts = &whole, .count = 1
	};
	pier_transfer_attr_init(transfer_attr);
	transfer_attr->rails = &rail;
	transfer_attr->rail_count = 1;
	transfer_attr->length = LENGTH;
}

static void init_receiver(void *attr)
{
	static struct pier_receiver_rail rail;
	struct pier_receiver_attr *receiver_attr = attr;

	/* Destroying a receiver breaks its channel. */
	expect_ok(pier_channel_reset(other));
	rail = (struct pier_receiver_rail){ .channel = other, .mr = mr };
	pier_receiver_attr_init(receiver_attr);
	receiver_attr->rails = &rail;
	receiver_attr->rail_count = 1;
	receiver_attr->length = LENGTH;
}

#define KIND(name)                                                               \
	{                                                                        \
		"pier_" #name "_attr_init()", sizeof(struct pier_##name##_attr), \
			init_##name, make_##name                                 \
	}

/* tests/lint/check_headers: each struct of attributes is named here. */
static const struct kind kinds[] = {
	KIND(channel), KIND(cq),       KIND(event_queue), KIND(group),
	KIND(mr),      KIND(mr_cache), KIND(receiver),	  KIND(recv_pool),
	KIND(ring),    KIND(scope),    KIND(srq),	  KIND(transfer),
};

/* The attributes, and zeros behind them. */
static char page[2 * LENGTH] __attribute__((aligned(16)));

static void set_size(size_t size)
{
	memcpy(page, &size, sizeof(size));
}

static void expect_refused(const struct kind *kind, const char *reason)
{
	int error = kind->make(page);

	if (error != -EINVAL || !strstr(pier_error_message(), reason))
		fail_msg("%s and another size: %d: %s", kind->init_name, error,
			 pier_error_message());
}

static void check_kind(const struct kind *kind)
{
	const uint32_t unset = PIER_UNSET;

	memset(page, 0, sizeof(page));
	kind->init(page);
	set_size(0);
	expect_refused(kind, kind->init_name);
	set_size(sizeof(size_t));
	expect_refused(kind, kind->init_name);
	set_size(LENGTH + 1);
	expect_refused(kind, kind->init_name);
	set_size(SIZE_MAX);
	expect_refused(kind, kind->init_name);

	set_size(kind->size + NEWER);
	expect_ok(kind->make(page));
	kind->init(page);
	set_size(kind->size + NEWER);
	memcpy(page + kind->size, &unset, sizeof(unset));
	expect_ok(kind->make(page));
	page[kind->size] = 1;
	expect_refused(kind, "install the newer libpier");
}

static void other_versions_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		check_kind(&kinds[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(other_versions_are_taken_or_refused),
	};

	return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "stock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is refused and what is taken, and what is said about it. */

/* What no call may write when it fails. */
#define UNTOUCHED ((struct pier_mr *)(uintptr_t)1)

static const char *const kinds_of_dmabuf[] = { "udmabuf", "dma_heap:system" };
static const char *const kinds_of_host[] = { "host", "memfd" };

enum {
	KINDS = 2,
	ROUNDS = 50,
};

static void assert_no_dmabuf_sentence(void)
{
	test_assert_sentence(stock_device);
	test_assert_sentence("cannot register dma-bufs");
	test_assert_sentence("driver");
}

static void says_that_it_cannot(void **state)
{
	struct stock *stock = *state;
	struct pier_device *again;
	struct pier_device_attr attr;

	for (int i = 0; i < ROUNDS; i++) {
		expect_ok(pier_device_open(stock_device, &again));
		expect_ok(pier_device_query(again, &attr, sizeof(attr)));
		assert_string_equal(attr.name, stock_device);
		assert_string_equal(attr.provider, "verbs");
		assert_false(attr.dmabuf);
		assert_false(attr.memfd_as_dmabuf);
		expect_ok(pier_device_close(again));
	}
	/* The one that was open all the time. */
	expect_ok(pier_device_query(stock->device, &attr, sizeof(attr)));
	assert_false(attr.dmabuf);
	stock_expect_quiet(stock);
}

static void refuse_fd(struct stock *stock, uint64_t offset, uint64_t iova, int fd)
{
	struct pier_mr *mr = UNTOUCHED;

	expect_result(pier_mr_reg_dmabuf(stock->pd, offset, 4096, iova, fd,
					 PIER_ACCESS_SHARED, &mr),
		      -EOPNOTSUPP);
	assert_no_dmabuf_sentence();
	assert_ptr_equal(mr, UNTOUCHED);
}

static void refuses_a_dmabuf_of_the_caller(void **state)
{
	struct stock *stock = *state;

	for (int i = 0; i < KINDS; i++) {
		struct pier_buffer *buffer = stock_alloc(kinds_of_dmabuf[i]);
		struct pier_dmabuf dmabuf;

		expect_ok(pier_dmabuf_export(buffer, 0, STOCK_LENGTH, PIER_MAPPING_AUTO,
					     &dmabuf));
		refuse_fd(stock, dmabuf.offset, dmabuf.iova, dmabuf.fd);
		/* The fd stays the caller's, open. */
		assert_true(fcntl(dmabuf.fd, F_GETFD) >= 0);
		pier_dmabuf_close(&dmabuf);
		expect_ok(pier_buffer_free(buffer));
	}
	stock_expect_quiet(stock);
}

/* Whatever the fd is, the device is the reason. */
static void refuses_what_is_no_dmabuf(void **state)
{
	struct stock *stock = *state;
	int memfd = memfd_create("pier-test", MFD_CLOEXEC);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	assert_true(memfd >= 0 && null >= 0);
	assert_int_equal(ftruncate(memfd, 4096), 0);
	refuse_fd(stock, 0, 0, -1);
	refuse_fd(stock, 0, 0, null);
	refuse_fd(stock, 0, 0, memfd);
	close(null);
	close(memfd);
	stock_expect_quiet(stock);
}

static void refuse_direct(struct stock *stock, struct pier_buffer *buffer)
{
	struct pier_mr *mr = UNTOUCHED;

	expect_result(pier_mr_reg_buffer(stock->pd, buffer, 0, STOCK_LENGTH,
					 PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &mr),
		      -EOPNOTSUPP);
	assert_no_dmabuf_sentence();
	assert_ptr_equal(mr, UNTOUCHED);
}

static void direct_only_is_refused(void **state)
{
	struct stock *stock = *state;

	for (int i = 0; i < KINDS; i++) {
		struct pier_buffer *buffer = stock_alloc(kinds_of_dmabuf[i]);

		refuse_direct(stock, buffer);
		/* No region keeps it. */
		expect_ok(pier_buffer_free(buffer));
	}
	stock_expect_quiet(stock);
}

/* Registered as host memory, and said to be so. */
static struct pier_mr *reg_as_host(struct stock *stock, struct pier_buffer *buffer,
				   enum pier_policy policy)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg_buffer(stock->pd, buffer, 0, STOCK_LENGTH,
				     PIER_ACCESS_SHARED, policy, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_HOST);
	assert_int_equal(pier_mr_iova(mr), pier_buffer_address(buffer));
	assert_int_equal(pier_mr_length(mr), STOCK_LENGTH);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	return mr;
}

static void assert_warned(const struct stock *stock, unsigned int count, const char *part)
{
	assert_int_equal(stock->log.count, count);
	if (!strstr(stock->log.last, part))
		fail_msg("\"%s\" is not in: %s", part, stock->log.last);
}

static void udmabuf_falls_back_and_says_why(void **state)
{
	struct stock *stock = *state;
	struct pier_buffer *buffer = stock_alloc("udmabuf");

	for (unsigned int i = 1; i <= 3; i++) {
		struct pier_mr *mr = reg_as_host(stock, buffer, PIER_POLICY_ANY);

		/* Each time: nothing of the last time is remembered. */
		assert_warned(stock, i, "udmabuf memory is registered as host memory");
		assert_warned(stock, i, "not as a dma-buf");
		assert_warned(stock, i, "cannot register dma-bufs");
		assert_warned(stock, i, stock_device);
		expect_ok(pier_mr_dereg(mr));
	}
	expect_ok(pier_buffer_free(buffer));
}

/* The CPU's mapping of a heap's dma-buf has no pages that could be pinned. */
static void refuse_heap(struct stock *stock, struct pier_buffer *buffer)
{
	struct pier_mr *mr = UNTOUCHED;

	expect_result(pier_mr_reg_buffer(stock->pd, buffer, 0, STOCK_LENGTH,
					 PIER_ACCESS_SHARED, PIER_POLICY_ANY, &mr),
		      -EFAULT);
	assert_ptr_equal(mr, UNTOUCHED);
	test_assert_sentence("as host memory");
	test_assert_sentence("Bad address");
	test_assert_sentence("as a dma-buf");
	assert_no_dmabuf_sentence();
}

static void dma_heap_has_no_other_path(void **state)
{
	struct stock *stock = *state;
	struct pier_buffer *buffer = stock_alloc("dma_heap:system");

	refuse_heap(stock, buffer);
	expect_ok(pier_buffer_free(buffer));
	/* There is no region, so none is said to be host memory. */
	stock_expect_quiet(stock);
}

static void host_memory_needs_no_dmabuf(void **state)
{
	static const enum pier_policy policies[] = { PIER_POLICY_DIRECT,
						     PIER_POLICY_ANY };
	struct stock *stock = *state;

	for (int i = 0; i < KINDS * 2; i++) {
		struct pier_buffer *buffer = stock_alloc(kinds_of_host[i / 2]);
		struct pier_mr *mr = reg_as_host(stock, buffer, policies[i % 2]);

		expect_ok(pier_mr_dereg(mr));
		expect_ok(pier_buffer_free(buffer));
	}
	/* It is what this memory is made for, and worth no warning. */
	stock_expect_quiet(stock);
}

/* Success after failure and failure after success, on the same objects. */
static void nothing_is_remembered(void **state)
{
	struct stock *stock = *state;
	struct pier_buffer *udmabuf = stock_alloc("udmabuf");
	struct pier_buffer *heap = stock_alloc("dma_heap:system");
	struct test_census before = test_take_census();

	for (int i = 0; i < ROUNDS; i++) {
		struct pier_mr *mr;

		refuse_direct(stock, udmabuf);
		refuse_heap(stock, heap);
		mr = reg_as_host(stock, udmabuf, PIER_POLICY_ANY);
		refuse_heap(stock, heap);
		refuse_direct(stock, udmabuf);
		expect_ok(pier_mr_dereg(mr));
		refuse_direct(stock, heap);
		test_assert_census(&before);
	}
	assert_int_equal(stock->log.count, ROUNDS);
	expect_ok(pier_buffer_free(udmabuf));
	expect_ok(pier_buffer_free(heap));
}

int run_policy_cases(void)
{
	const struct CMUnitTest cases[] = {
		stock_case(says_that_it_cannot),
		stock_case(refuses_a_dmabuf_of_the_caller),
		stock_case(refuses_what_is_no_dmabuf),
		stock_case(direct_only_is_refused),
		stock_case(udmabuf_falls_back_and_says_why),
		stock_case(dma_heap_has_no_other_path),
		stock_case(host_memory_needs_no_dmabuf),
		stock_case(nothing_is_remembered),
	};

	return cmocka_run_group_tests_name("policy", cases, NULL, NULL);
}

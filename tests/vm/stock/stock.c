/* SPDX-License-Identifier: BSD-3-Clause */
#include "stock.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * What pier does on a device whose driver cannot register dma-bufs, such as the
 * kernel's own rxe: it says so, follows the caller's policy, and never claims a
 * dma-buf. With LD_PRELOAD of the library that asks rxe's driver all the same,
 * nothing changes.
 * usage: vm_stock [DEVICE]
 */

enum {
	EXIT_SKIPPED = 77, /* meson's number for a skipped test */
};

const char *stock_device = "rxe0";

static int skip_all(const char *reason)
{
	printf("skip: %s\n", reason);
	return EXIT_SKIPPED;
}

static bool is_listed(const char *device)
{
	struct pier_device_info *list;
	uint32_t count;
	bool found = false;

	if (pier_device_list(&list, &count, sizeof(*list)))
		return false;
	for (size_t i = 0; i < count; i++)
		found |= strcmp(list[i].name, device) == 0;
	free(list);
	return found;
}

static void take_log(enum pier_log_level level, const char *message, void *argument)
{
	struct stock_log *log = argument;

	if (level > PIER_LOG_WARNING)
		return;
	log->count++;
	snprintf(log->last, sizeof(log->last), "%s", message);
}

int stock_setup(void **state)
{
	struct stock *stock = calloc(1, sizeof(*stock));

	if (!stock)
		return -1;
	stock->before = test_take_census();
	pier_log_set(PIER_LOG_WARNING, take_log, &stock->log);
	expect_ok(pier_device_open(stock_device, &stock->device));
	expect_ok(pier_pd_alloc(stock->device, &stock->pd));
	*state = stock;
	return 0;
}

int stock_teardown(void **state)
{
	struct stock *stock = *state;
	struct test_census before = stock->before;

	expect_ok(pier_pd_dealloc(stock->pd));
	expect_ok(pier_device_close(stock->device));
	pier_log_set(PIER_LOG_NONE, NULL, NULL);
	free(stock);
	test_assert_census(&before);
	return 0;
}

struct pier_buffer *stock_alloc(const char *spec)
{
	struct pier_buffer *buffer;

	expect_ok(pier_buffer_alloc(spec, STOCK_LENGTH, &buffer));
	return buffer;
}

void stock_expect_quiet(const struct stock *stock)
{
	if (stock->log.count)
		fail_msg("logged without a reason: %s", stock->log.last);
}

/* The module that the test guest has says how many dma-bufs it has registered. */
static bool is_changed_rxe(void)
{
	return access("/sys/module/rdma_rxe/parameters/dmabuf_registered", F_OK) == 0;
}

int main(int argc, char **argv)
{
	int failed;

	if (argc > 1)
		stock_device = argv[1];
	if (!is_listed(stock_device))
		return skip_all("the RDMA device to be tested is not here");
	if (is_changed_rxe())
		return skip_all("the rdma_rxe that is loaded registers dma-bufs");
	failed = run_policy_cases();
	failed += run_bytes_cases();
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

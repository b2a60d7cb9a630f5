/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libibverbs opened at run time: there (libpier-verbs in its place), not there, and older
 * than pier needs. An argument chooses: a process opens it once.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

#include <pier/pier.h>

int run_first_example(void);
#define main run_first_example
#include "examples/first.c"
#undef main

static const char *lacking; /* a version */
static const char *mode;
static int opened;
static char logged[1024];

void *__real_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags);
void *__real_dlvsym(void *library, const char *name, const char *version);
void *__wrap_dlvsym(void *library, const char *name, const char *version);

void *__wrap_dlopen(const char *file, int flags)
{
	if (strcmp(file, "libibverbs.so.1") != 0)
		return __real_dlopen(file, flags);
	opened++;
	if (strcmp(mode, "missing") == 0)
		file = "libibverbs-that-is-missing.so.1";
	return __real_dlopen(file, flags);
}

void *__wrap_dlvsym(void *library, const char *name, const char *version)
{
	if (strcmp(mode, "old") == 0 && strcmp(version, "IBVERBS_1.12") == 0)
		return NULL;
	if (lacking && strcmp(version, lacking) == 0)
		return NULL;
	return __real_dlvsym(library, name, version);
}

static void keep_reason(enum pier_log_level level, const char *message, void *argument)
{
	(void)level;
	(void)argument;
	if (strstr(message, "libibverbs"))
		snprintf(logged, sizeof(logged), "%s", message);
}

/* How many devices there are of this provider. */
static size_t count_devices(const char *provider)
{
	struct pier_device_info *list;
	uint32_t count, found = 0;

	expect_ok(pier_device_list(&list, &count, sizeof(*list)));
	for (size_t i = 0; i < count; i++)
		found += strcmp(list[i].provider, provider) == 0;
	free(list);
	return found;
}

/* First, so that this is the first use. */
static void first_use_opens_it(void **state)
{
	(void)state;
	assert_int_equal(opened, 0);
	pier_log_set(PIER_LOG_INFO, keep_reason, NULL);
	assert_int_equal(count_devices("soft"), 1);
	assert_int_equal(count_devices("verbs"), strcmp(mode, "found") == 0);
	pier_log_set(PIER_LOG_WARNING, NULL, NULL);
	assert_int_equal(opened, 1);
}

static void reason_is_logged_once(void **state)
{
	const char *reason = strcmp(mode, "missing") == 0
				     ? "libibverbs-that-is-missing.so.1: cannot open"
				     : "has no ibv_reg_dmabuf_mr@IBVERBS_1.12";

	(void)state;
	if (strcmp(mode, "found") == 0)
		assert_string_equal(logged, "");
	else if (!strstr(logged, reason))
		fail_msg("\"%s\" is not in: %s", reason, logged);
}

static void sentence_names_the_packages(void **state)
{
	struct pier_device *device;
	bool named;

	(void)state;
	expect_result(pier_device_open("mlx5_77", &device), -ENODEV);
	named = strstr(pier_error_message(), "install rdma-core (Debian: libibverbs1");
	assert_int_equal(named, strcmp(mode, "found") != 0);
}

/* On soft0 itself, or on the one that libpier-verbs makes a device of libibverbs. */
static void example_writes(void **state)
{
	(void)state;
	expect_result(run_first_example(), 0);
}

static void static_rate_is_accepted(void **state)
{
	struct pier_channel_attr attr;
	struct pier_device *device;
	struct pier_channel *channel;
	struct pier_pd *pd;

	(void)state;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	pier_channel_attr_init(&attr);
	attr.static_rate = IBV_RATE_10_GBPS;
	expect_ok(pier_channel_create(pd, &attr, &channel));
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

/* A libibverbs that pier accepts may lack them. */
static void dma_handles_need_a_newer_one(void **state)
{
	static char memory[4096];
	struct pier_mr_range range = pier_mr_range_host(memory, sizeof(memory));
	struct pier_mr_attr attr;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr;

	(void)state;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.tph = PIER_TPH_TARGET;
	expect_ok(pier_mr_reg_attr(pd, &attr, &mr));
	expect_ok(pier_mr_dereg(mr));
	if (strcmp(mode, "found") == 0) {
		lacking = "IBVERBS_1.15";
		expect_result(pier_mr_reg_attr(pd, &attr, &mr), -EOPNOTSUPP);
		test_assert_sentence("has no ibv_alloc_dmah(): DMA handles came with "
				     "rdma-core 59");
		lacking = NULL;
	}
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

static void dmabufs_of_a_nics_memory_need_a_newer_one(void **state)
{
	struct pier_buffer *buffer;
	struct pier_device *device;
	struct pier_dmabuf dmabuf;

	(void)state;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_buffer_alloc_on_nic(device, 4096, &buffer));
	expect_ok(pier_dmabuf_export(buffer, 0, 4096, PIER_MAPPING_AUTO, &dmabuf));
	pier_dmabuf_close(&dmabuf);
	if (strcmp(mode, "found") == 0) {
		lacking = "IBVERBS_1.16";
		expect_result(
			pier_dmabuf_export(buffer, 0, 4096, PIER_MAPPING_AUTO, &dmabuf),
			-EOPNOTSUPP);
		test_assert_sentence("has no ibv_dm_export_dmabuf_fd(): dma-bufs of a "
				     "NIC's memory came with rdma-core 62");
		lacking = NULL;
	}
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_device_close(device));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_use_opens_it),
		cmocka_unit_test(reason_is_logged_once),
		cmocka_unit_test(sentence_names_the_packages),
		cmocka_unit_test(example_writes),
		cmocka_unit_test(static_rate_is_accepted),
		cmocka_unit_test(dma_handles_need_a_newer_one),
		cmocka_unit_test(dmabufs_of_a_nics_memory_need_a_newer_one),
	};

	mode = argc > 1 ? argv[1] : "found";
	return cmocka_run_group_tests(tests, NULL, NULL);
}

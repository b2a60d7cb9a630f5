/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

#include "backends/hip/kernel.h"

/* Kernels that give no NIC a GPU's memory. This program has a configuration of its own.
 */

static const char *config = "CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n";

FILE *fopen(const char *path, const char *mode)
{
	FILE *(*real)(const char *path, const char *mode);
	void *symbol = dlsym(RTLD_NEXT, "fopen");

	memcpy(&real, &symbol, sizeof(real));
	if (strncmp(path, "/boot/config-", 13) == 0)
		return config ? fmemopen((void *)config, strlen(config), "r") : NULL;
	if (strncmp(path, "/lib/modules/", 13) == 0)
		return NULL;
	return real(path, mode);
}

/* Before anything else has opened HIP. */
static int without_switch(void **state)
{
	int result = fixture_open(state);

	unsetenv("PIER_DMABUF");
	return result;
}

static void refuses_dmabufs_by_the_configuration(void **state)
{
	struct pier_device *device;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_pd *pd;

	(void)state;
	expect_ok(pier_open_device("soft0", &device));
	expect_ok(pier_alloc_pd(device, &pd));
	expect_ok(pier_buffer_alloc("hip:0", 100, &buffer));
	expect_result(pier_reg_buffer_mr(pd, buffer, 0, 100, PIER_ACCESS_SHARED,
					 PIER_POLICY_DIRECT, &mr),
		      -EOPNOTSUPP);
	test_assert_sentence("by /boot/config-");
	test_assert_sentence("this kernel has no CONFIG_PCI_P2PDMA");
	expect_ok(pier_reg_buffer_mr(pd, buffer, 0, 100, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	expect_ok(pier_dereg_mr(mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_dealloc_pd(pd));
	expect_ok(pier_close_device(device));
}

static void expect_reason(const char *text, const char *reason)
{
	char found[256] = "?";

	config = text;
	pier_hip_explain_kernel(found, sizeof(found));
	if (reason)
		assert_non_null(strstr(found, reason));
	else
		assert_string_equal(found, "");
}

/* A configuration that is not there, or silent, is no reason: the canary decides. */
static void only_a_definite_answer_is_a_reason(void **state)
{
	(void)state;
	expect_reason("# CONFIG_DMABUF_MOVE_NOTIFY is not set\n",
		      "no CONFIG_DMABUF_MOVE_NOTIFY");
	expect_reason("CONFIG_PCI_P2PDMA=y\nCONFIG_DMABUF_MOVE_NOTIFY=y\n", NULL);
	expect_reason("CONFIG_PCI_P2PDMA=y\n", NULL);
	expect_reason("# CONFIG_PCI_P2PDMA_EXTRA is not set\n", NULL);
	expect_reason(NULL, NULL);
	setenv("PIER_DMABUF", "on", 1);
	expect_reason("# CONFIG_PCI_P2PDMA is not set\n", NULL);
	unsetenv("PIER_DMABUF");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(refuses_dmabufs_by_the_configuration,
						fixture_before, fixture_after),
		cmocka_unit_test(only_a_definite_answer_is_a_reason),
	};

	return cmocka_run_group_tests_name("hip_kernel", tests, without_switch, NULL);
}

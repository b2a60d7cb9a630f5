/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

#include "backends/hip/load.h"

/* Kernels that give no NIC a GPU's memory. This program has a configuration of its own.
 */

static const char unset[] = "CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n";

static struct {
	const char *place; /* how its name begins */
	const void *bytes; /* NULL: there is none */
	size_t size;
	int error; /* of opening the others */
} config = { "/boot/config-", unset, sizeof(unset) - 1, ENOENT };

static int make_file(const void *bytes, size_t size)
{
	int fd = memfd_create("config", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, size), size);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

int __wrap_open(const char *path, int flags, ...)
{
	if (strcmp(path, "/proc/config.gz") != 0 && strncmp(path, "/boot/", 6) != 0 &&
	    strncmp(path, "/lib/modules/", 13) != 0 &&
	    strncmp(path, "/usr/lib/kernel/", 16) != 0 &&
	    strncmp(path, "/usr/lib/ostree-boot/", 21) != 0)
		return __real_open(path, flags, 0600);
	assert_true(flags & O_CLOEXEC);
	if (config.bytes && strncmp(path, config.place, strlen(config.place)) == 0)
		return make_file(config.bytes, config.size);
	errno = config.error;
	return -1;
}

int __wrap_open64(const char *path, int flags, ...)
{
	return __wrap_open(path, flags, 0600);
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
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_buffer_alloc("hip:0", 100, &buffer));
	expect_result(pier_mr_reg_buffer(pd, buffer, 0, 100, PIER_ACCESS_SHARED,
					 PIER_POLICY_DIRECT, &mr),
		      -EOPNOTSUPP);
	test_assert_sentence("by /boot/config-");
	test_assert_sentence("the kernel has no CONFIG_PCI_P2PDMA");
	expect_ok(pier_mr_reg_buffer(pd, buffer, 0, 100, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

/* HIP is opened once in a process: this is another one. */
static void the_probe_says_what_is_unknown(void **state)
{
	char detail[256]; /* that of pier_backend_info */
	int status;
	pid_t child = fork();

	(void)state;
	if (child == 0) {
		config.bytes = NULL;
		_exit(pier_hip_backend.probe(detail, sizeof(detail)) != 0 ||
		      !strstr(detail, "; dma-bufs, by") ||
		      !strstr(detail, "no configuration of the kernel can be read, so "
				      "the canary decides whether a NIC reaches the "
				      "memory"));
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void the_probe_gives_the_reason(void **state)
{
	char detail[256];

	(void)state;
	expect_ok(pier_hip_backend.probe(detail, sizeof(detail)));
	assert_non_null(strstr(detail, "; no dma-bufs: by /boot/config-"));
	assert_non_null(strstr(detail, "try it (PIER_DMABUF=on)"));
}

static void expect_answer(bool known, const char *reason)
{
	char found[256] = "?";

	assert_int_equal(pier_hip_explain_kernel(found, sizeof(found)), known);
	if (reason)
		assert_non_null(strstr(found, reason));
	else
		assert_string_equal(found, "");
}

static void expect_reason(const char *text, const char *reason)
{
	config.bytes = text;
	config.size = text ? strlen(text) : 0;
	expect_answer(text && *text, reason);
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
	expect_reason("", NULL);
	expect_reason(NULL, NULL);
	config.error = EACCES;
	expect_reason(NULL, NULL);
	setenv("PIER_DMABUF", "on", 1);
	config.bytes = unset;
	config.size = strlen(unset);
	expect_answer(true, NULL);
	unsetenv("PIER_DMABUF");
}

static void finds_the_configuration_of_each_distribution(void **state)
{
	static const char *const places[] = {
		"/boot/config-",
		"/lib/modules/",
		"/usr/lib/kernel/config-",
		"/usr/lib/ostree-boot/config-",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		config.place = places[i];
		expect_reason(unset, places[i]);
	}
}

/*
 * gzip: "CONFIG_PCI_P2PDMA=y", and "# CONFIG_DMABUF_MOVE_NOTIFY is not set". A container
 * sees the kernel's own copy and no other.
 */
static void reads_the_configuration_of_the_kernel(void **state)
{
	static const uint8_t packed[] = {
		0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff, 0x73,
		0xf6, 0xf7, 0x73, 0xf3, 0x74, 0x8f, 0x0f, 0x70, 0xf6, 0x8c, 0x0f,
		0x30, 0x0a, 0x70, 0xf1, 0x75, 0xb4, 0xad, 0xe4, 0x52, 0x56, 0x70,
		0x86, 0x88, 0x02, 0xb9, 0x4e, 0xa1, 0x6e, 0xf1, 0xbe, 0xfe, 0x61,
		0xae, 0xf1, 0x7e, 0xfe, 0x21, 0x9e, 0x6e, 0x91, 0x0a, 0x99, 0xc5,
		0x0a, 0x79, 0xf9, 0x25, 0x0a, 0xc5, 0xa9, 0x25, 0x5c, 0x00, 0xd0,
		0x2e, 0x14, 0x46, 0x3b, 0x00, 0x00, 0x00,
	};

	(void)state;
	config.place = "/proc/config.gz";
	config.bytes = packed;
	config.size = sizeof(packed);
	expect_answer(true, "by /proc/config.gz the kernel has no CONFIG_DMABUF_MOVE");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* Before HIP is opened here. */
		fixture_test(the_probe_says_what_is_unknown),
		cmocka_unit_test_setup_teardown(refuses_dmabufs_by_the_configuration,
						fixture_before, fixture_after),
		fixture_test(the_probe_gives_the_reason),
		cmocka_unit_test(only_a_definite_answer_is_a_reason),
		cmocka_unit_test(finds_the_configuration_of_each_distribution),
		cmocka_unit_test(reads_the_configuration_of_the_kernel),
	};

	return cmocka_run_group_tests_name("hip_kernel", tests, without_switch, NULL);
}

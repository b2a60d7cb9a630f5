/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Data Direct through libmlx5.so.1, which is there only if libibverbs has loaded it:
 * without it, with one that is too old (an argument names the file), and with a new one.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "mlx5/mlx5.h"
#include "provider/provider.h"

static struct ibv_device device, other;
static struct ibv_context context = { .device = &device };
static struct ibv_pd pd = { .context = &context };
static const char *library;
static struct fake_mlx5 *fake;

static int query(char *ret_path, size_t size)
{
	return pier_verbs_provider.query_data_direct(&context, ret_path, size);
}

static void no_library_is_no_mlx5(void **state)
{
	char path[64];

	(void)state;
	assert_int_equal(query(path, sizeof(path)), EOPNOTSUPP);
	errno = 0;
	assert_null(pier_verbs_provider.reg_data_direct_mr(&pd, 0, 1, 0, 3, 0));
	assert_int_equal(errno, EOPNOTSUPP);
}

/* Loaded by libibverbs in the real case, under another name. */
static void load(void)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	assert_non_null(handle);
	fake = dlsym(handle, "fake_mlx5");
	assert_non_null(fake);
	fake->device = &other;
}

static void old_library_is_named(void **state)
{
	char path[64];

	(void)state;
	load();
	assert_int_equal(query(path, sizeof(path)), EOPNOTSUPP);
	fake->device = &device;
	assert_int_equal(query(path, sizeof(path)), ENODEV);
	test_assert_sentence("rdma-core 54");
}

static void reports_the_engine(void **state)
{
	char path[64] = "";

	(void)state;
	load();
	assert_int_equal(query(path, sizeof(path)), EOPNOTSUPP);
	fake->device = &device;
	fake->path_error = ENODEV;
	assert_int_equal(query(path, sizeof(path)), ENODEV);
	test_assert_sentence("no Data Direct engine");
	/* An error of the kernel does not make it another kind of NIC. */
	fake->path_error = EOPNOTSUPP;
	assert_int_equal(query(path, sizeof(path)), ENODEV);
	fake->path_error = 0;
	fake->path = "/devices/pci0001:00/0001:00:00.0";
	assert_int_equal(query(path, 8), ENODEV);
	assert_int_equal(query(path, sizeof(path)), 0);
	assert_string_equal(path, fake->path);
}

static void registers_with_the_engine(void **state)
{
	(void)state;
	errno = 0;
	assert_null(pier_verbs_provider.reg_data_direct_mr(&pd, 1, 2, 1, 4, 5));
	assert_int_equal(errno, EOPNOTSUPP);
	assert_non_null(pier_verbs_provider.reg_data_direct_mr(&pd, 1, 2, 65536, 4, 5));
	assert_ptr_equal(fake->last.pd, &pd);
	assert_int_equal(fake->last.offset, 1);
	assert_int_equal(fake->last.length, 2);
	assert_int_equal(fake->last.iova, 65536);
	assert_int_equal(fake->last.fd, 4);
	assert_int_equal(fake->last.access, 5);
	/* MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT */
	assert_int_equal(fake->last.mlx5_access, 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest new_tests[] = {
		cmocka_unit_test(no_library_is_no_mlx5),
		cmocka_unit_test(reports_the_engine),
		cmocka_unit_test(registers_with_the_engine),
	};
	const struct CMUnitTest old_tests[] = {
		cmocka_unit_test(no_library_is_no_mlx5),
		cmocka_unit_test(old_library_is_named),
	};

	if (argc != 2)
		return 2;
	library = argv[1];
	if (strstr(library, "mlx5_old"))
		return cmocka_run_group_tests(old_tests, NULL, NULL);
	return cmocka_run_group_tests(new_tests, NULL, NULL);
}

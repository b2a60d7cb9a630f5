/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Data Direct and queue pairs through libmlx5.so.1, which is there only if libibverbs has
 * loaded it: without it, with one that is too old (an argument names the file), and with
 * a new one.
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

static int plain_qps;

/* In place of libibverbs' own, which would look for the driver in the context. */
struct ibv_qp *ibv_create_qp(struct ibv_pd *in, struct ibv_qp_init_attr *attr)
{
	static struct ibv_qp qp;

	assert_ptr_equal(in, &pd);
	attr->cap.max_inline_data = 7;
	plain_qps++;
	return &qp;
}

static struct ibv_qp *create_qp(struct ibv_qp_init_attr *attr)
{
	return pier_create_direct_qp(&pier_verbs_provider, &pd, attr);
}

static void other_nics_have_plain_queue_pairs(void **state)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };

	(void)state;
	assert_non_null(create_qp(&attr));
	assert_int_equal(attr.cap.max_inline_data, 7);
	load();
	assert_non_null(create_qp(&attr));
	assert_int_equal(plain_qps, 2);
}

static void cpu_writes_no_received_bytes(void **state)
{
	struct ibv_srq srq;
	struct ibv_qp_init_attr attr = { .qp_context = state,
					 .srq = &srq,
					 .cap = { .max_send_wr = 3 },
					 .qp_type = IBV_QPT_RC };

	load();
	fake->device = &device;
	assert_ptr_equal(create_qp(&attr)->context, &context);
	assert_int_equal(plain_qps, 2);
	assert_ptr_equal(fake->last_qp.pd, &pd);
	assert_ptr_equal(fake->last_qp.qp_context, state);
	assert_ptr_equal(fake->last_qp.srq, &srq);
	assert_int_equal(fake->last_qp.cap.max_send_wr, 3);
	assert_int_equal(fake->last_qp.qp_type, IBV_QPT_RC);
	assert_int_equal(fake->last_qp.send_ops_flags, 0);
	/* MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, ..._CREATE_DISABLE_SCATTER_TO_CQE */
	assert_int_equal(fake->qp_mask, 1);
	assert_int_equal(fake->qp_flags, 8);
	assert_int_equal(fake->qp_ops, 0);
	assert_int_equal(attr.cap.max_inline_data, 60);
	fake->qp_error = ENOMEM;
	assert_null(create_qp(&attr));
	assert_int_equal(errno, ENOMEM);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest new_tests[] = {
		cmocka_unit_test(no_library_is_no_mlx5),
		cmocka_unit_test(other_nics_have_plain_queue_pairs),
		cmocka_unit_test(cpu_writes_no_received_bytes),
		cmocka_unit_test(reports_the_engine),
		cmocka_unit_test(registers_with_the_engine),
	};
	const struct CMUnitTest old_tests[] = {
		cmocka_unit_test(no_library_is_no_mlx5),
		cmocka_unit_test(other_nics_have_plain_queue_pairs),
		cmocka_unit_test(cpu_writes_no_received_bytes),
		cmocka_unit_test(old_library_is_named),
	};

	if (argc != 2)
		return 2;
	library = argv[1];
	if (strstr(library, "mlx5_old"))
		return cmocka_run_group_tests(old_tests, NULL, NULL);
	return cmocka_run_group_tests(new_tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Data Direct, queue pairs and indirect keys through libmlx5.so.1, which is there only if
 * libibverbs has loaded it: without it, with one that is too old (an argument names the
 * file), and with a new one.
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
	assert_false(pier_verbs_provider.can_join(&context));
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
	memset(fake, 0, sizeof(*fake));
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

enum {
	/* Requests of 1024 bytes have room for them beside 192 others. */
	LIST_MAX = 52,
	ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

static struct ibv_sge list[LIST_MAX + 1];

static void list_entries(void)
{
	for (uint32_t i = 0; i < LIST_MAX + 1; i++)
		list[i] = (struct ibv_sge){ 0x10000 * i + i, 100 + i, 7000 + i };
}

static struct ibv_qp *create_join_qp(uint32_t count)
{
	struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 1 },
					 .qp_type = IBV_QPT_RC };

	return pier_verbs_provider.create_join_qp(&pd, &attr, count);
}

static void only_mlx5_joins(void **state)
{
	(void)state;
	load();
	assert_false(pier_verbs_provider.can_join(&context));
	fake->device = &device;
	assert_true(pier_verbs_provider.can_join(&context));
}

static void check_join(uint32_t count)
{
	struct ibv_qp *qp = create_join_qp(count);
	struct ibv_mr *mr;

	assert_non_null(qp);
	assert_int_equal(fake->last_qp.comp_mask,
			 IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
	assert_int_equal(fake->last_qp.send_ops_flags, 0);
	/* MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS and ..._SEND_OPS_FLAGS */
	assert_int_equal(fake->qp_mask, 5);
	assert_int_equal(fake->qp_flags, 8);
	/* MLX5DV_QP_EX_WITH_MR_LIST */
	assert_int_equal(fake->qp_ops, 2);
	mr = pier_verbs_provider.join_mrs(qp, list, count,
					  ALL_ACCESS | IBV_ACCESS_RELAXED_ORDERING |
						  IBV_ACCESS_MW_BIND);
	assert_non_null(mr);
	assert_int_equal(fake->mkeys, 1);
	assert_ptr_equal(fake->mkey_pd, &pd);
	assert_ptr_equal(mr->pd, &pd);
	assert_ptr_equal(mr->context, &context);
	assert_int_equal(mr->lkey, fake->list.key);
	assert_int_equal(mr->rkey, fake->list.key);
	assert_int_equal(fake->list.access, ALL_ACCESS);
	assert_int_equal(fake->list.flags, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	assert_int_equal(fake->list.count, count);
	assert_memory_equal(fake->list.entries, list, count * sizeof(list[0]));
	/* A key that could not be destroyed stays, and can be destroyed later. */
	fake->destroy_error = EBUSY;
	assert_int_equal(pier_verbs_provider.unjoin_mrs(mr), EBUSY);
	fake->destroy_error = 0;
	assert_int_equal(pier_verbs_provider.unjoin_mrs(mr), 0);
	assert_int_equal(fake->mkeys, 0);
}

static void joins_regions(void **state)
{
	(void)state;
	load();
	list_entries();
	for (uint32_t count = 2; count <= LIST_MAX; count++)
		check_join(count);
}

static void refuse_join(struct ibv_qp *qp, uint32_t count, int error)
{
	errno = 0;
	assert_null(pier_verbs_provider.join_mrs(qp, list, count, ALL_ACCESS));
	assert_int_equal(errno, error);
	assert_int_equal(fake->mkeys, 0);
}

static void failed_joins_leave_no_key(void **state)
{
	struct ibv_qp_init_attr plain = { .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp;

	(void)state;
	load();
	list_entries();
	fake->device = &device;
	errno = 0;
	assert_null(create_join_qp(LIST_MAX + 1));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(create_join_qp(1 << 16));
	assert_int_equal(errno, EINVAL);
	qp = create_join_qp(4);
	assert_non_null(qp);
	refuse_join(qp, 5, ENOMEM);
	/* A function without DEVX, as mlx5dv_devx_obj_create() says it. */
	fake->mkey_error = EOPNOTSUPP;
	refuse_join(qp, 4, EOPNOTSUPP);
	fake->mkey_error = 0;
	qp = create_qp(&plain);
	assert_non_null(qp);
	refuse_join(qp, 2, EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest new_tests[] = {
		cmocka_unit_test(no_library_is_no_mlx5),
		cmocka_unit_test(other_nics_have_plain_queue_pairs),
		cmocka_unit_test(cpu_writes_no_received_bytes),
		cmocka_unit_test(reports_the_engine),
		cmocka_unit_test(registers_with_the_engine),
		cmocka_unit_test(only_mlx5_joins),
		cmocka_unit_test(joins_regions),
		cmocka_unit_test(failed_joins_leave_no_key),
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

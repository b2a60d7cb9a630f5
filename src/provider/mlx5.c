/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include <pier/backend.h>

#include "mlx5.h"

/*
 * The functions of libmlx5 beyond verbs, found at run time: few machines have the
 * library, and older ones lack those of Data Direct (rdma-core 54, MLX5_1.25 in
 * libmlx5.map).
 */

enum {
	/* MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT in mlx5_api.h. */
	DATA_DIRECT = 1,
	/* MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS in mlx5dv.h. */
	HAS_CREATE_FLAGS = 1,
	/* MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE. */
	DISABLE_SCATTER_TO_CQE = 1 << 3,
};

/* struct mlx5dv_qp_init_attr. */
struct qp_attr {
	uint64_t comp_mask;
	uint32_t create_flags;
	struct {
		uint32_t dc_type;
		uint64_t dct_access_key;
	} dc_init_attr;
	uint64_t send_ops_flags;
};

typedef bool is_supported_function(struct ibv_device *device);
typedef int get_path_function(struct ibv_context *context, char *ret_path, size_t size);
typedef struct ibv_mr *reg_function(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access, int mlx5_access);
typedef struct ibv_qp *create_qp_function(struct ibv_context *context,
					  struct ibv_qp_init_attr_ex *attr,
					  struct qp_attr *mlx5_attr);

/*
 * Where there is an mlx5 device, libibverbs has loaded the library: its plug-in is a link
 * to it (rdma_shared_provider() in rdma-core's buildlib/rdma_functions.cmake). It stays
 * loaded, so the function stays valid.
 */
static void *find_function(const char *name)
{
	void *library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *function;

	if (!library)
		return NULL;
	function = dlsym(library, name);
	dlclose(library);
	return function;
}

static bool is_mlx5(const struct ibv_context *context)
{
	is_supported_function *is_supported = (is_supported_function *)find_function(
		"mlx5dv_is_supported");

	return is_supported && is_supported(context->device);
}

int pier_mlx5_query_data_direct(struct ibv_context *context, char *ret_path, size_t size)
{
	get_path_function *get_path;
	int error;

	if (!is_mlx5(context))
		return EOPNOTSUPP;
	get_path = (get_path_function *)find_function(
		"mlx5dv_get_data_direct_sysfs_path");
	if (!get_path || !find_function("mlx5dv_reg_dmabuf_mr"))
		return -pier_fail(ENODEV,
				  "libmlx5.so.1 has no "
				  "mlx5dv_get_data_direct_sysfs_path(): Data Direct came "
				  "with rdma-core 54; install a newer one");
	error = get_path(context, ret_path, size);
	if (!error)
		return 0;
	/* EOPNOTSUPP means another thing here, of a kernel without the operation. */
	return -pier_fail(ENODEV, "the NIC has no Data Direct engine (%s)",
			  error == ENODEV ? "ENODEV" : "its kernel driver fails");
}

struct ibv_mr *pier_mlx5_reg_data_direct_mr(struct ibv_pd *pd, uint64_t offset,
					    size_t length, uint64_t iova, int fd,
					    int access)
{
	reg_function *reg = (reg_function *)find_function("mlx5dv_reg_dmabuf_mr");

	if (reg)
		return reg(pd, offset, length, iova, fd, access, DATA_DIRECT);
	errno = EOPNOTSUPP;
	return NULL;
}

/*
 * As mlx5_create_qp() in libmlx5 does, with one flag more. mlx5dv_create_qp() is older
 * than mlx5dv_is_supported() (MLX5_1.3 and 1.8 in libmlx5.map).
 */
struct ibv_qp *pier_mlx5_create_direct_qp(struct ibv_pd *pd,
					  struct ibv_qp_init_attr *attr)
{
	struct qp_attr flags = { .comp_mask = HAS_CREATE_FLAGS,
				 .create_flags = DISABLE_SCATTER_TO_CQE };
	struct ibv_qp_init_attr_ex extended = { 0 };
	create_qp_function *create;
	struct ibv_qp *qp;

	if (!is_mlx5(pd->context))
		return ibv_create_qp(pd, attr);
	create = (create_qp_function *)find_function("mlx5dv_create_qp");
	if (!create) {
		pier_fail(EOPNOTSUPP, "libmlx5.so.1 has no mlx5dv_create_qp(): install a "
				      "newer rdma-core");
		errno = EOPNOTSUPP;
		return NULL;
	}
	/* The members are the first ones of the extended structure. */
	memcpy(&extended, attr, sizeof(*attr));
	extended.comp_mask = IBV_QP_INIT_ATTR_PD;
	extended.pd = pd;
	qp = create(pd->context, &extended, &flags);
	if (qp)
		attr->cap = extended.cap;
	return qp;
}
